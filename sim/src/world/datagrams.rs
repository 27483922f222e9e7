//! The datagram client and server of `longhaul_core::link`. Most sessions send their read lane
//! through them, in datagrams that get lost, come twice and overtake each other.
//!
//! This module checks nothing. An answer to another request, or one put together from two, is wrong
//! data for the reader. A request without an answer holds up the end.

use super::{Event, World};
use crate::link::{Direction, Session, encode};
use bytes::Bytes;
use longhaul_core::block::Time;
use longhaul_core::link::{AskCounters, Output};
use longhaul_core::wire::link::{Frame, Lane, ToHost, ToStore};

/// Largest datagram, in bytes: small, so that short reads have several parts.
const DATAGRAM_BYTES: usize = 700;

impl World {
    /// A session that can carry datagrams now.
    fn datagram_session(&mut self, number: u64) -> Option<&mut Session> {
        let (session, _) = self.sessions.get_mut(&number)?;
        (session.datagrams.is_some() && session.connected).then_some(session)
    }

    /// Sends a request of the read lane: in datagrams, or by stream.
    pub(super) fn ask_by_datagram(&mut self, number: u64, frame: Frame<ToStore>) {
        let now = self.now;
        match self.datagram_session(number).and_then(|session| session.datagrams.as_mut()) {
            Some(ends) => ends.client.handle_request(now, frame, Some(DATAGRAM_BYTES)),
            None => return self.stream_up(number, &frame),
        }
        self.flush_datagrams(number);
    }

    /// Sends a reply of the read lane; gives back what goes by stream.
    pub(super) fn answer_by_datagram(
        &mut self,
        number: u64,
        frame: Frame<ToHost>,
    ) -> Option<Frame<ToHost>> {
        let Some((session, _)) = self.sessions.get_mut(&number) else { return Some(frame) };
        let Some(ends) = &mut session.datagrams else { return Some(frame) };
        let rest = ends.server.handle_reply(frame, DATAGRAM_BYTES);
        self.flush_datagrams(number);
        rest
    }

    /// A datagram arrives.
    pub(super) fn datagram(&mut self, number: u64, direction: Direction, bytes: Bytes) {
        match direction {
            Direction::Up => self.datagram_up(number, bytes),
            Direction::Down => {
                let now = self.now;
                let Some((session, _)) = self.sessions.get_mut(&number) else { return };
                let Some(ends) = session.datagrams.as_mut().filter(|_| session.host_open) else {
                    return;
                };
                ends.client.handle_datagram(now, bytes);
            }
        }
        self.flush_datagrams(number);
    }

    fn datagram_up(&mut self, number: u64, bytes: Bytes) {
        let Some((session, _)) = self.sessions.get_mut(&number) else { return };
        let (store, volume) = (session.store, session.volume);
        let process = &self.stores[store];
        let there =
            process.up && process.incarnation == session.store_incarnation && session.store_open;
        let full = process.open.get(&volume).is_some_and(|open| !open.machine.wants_input());
        // If the store does not take a datagram, the datagram is lost, as with a full receive
        // buffer.
        let Some(ends) = session.datagrams.as_mut().filter(|_| there && !full) else { return };
        let Some(frame) = ends.server.handle_datagram(bytes, DATAGRAM_BYTES) else { return };
        self.take_up(number, store, Lane::Read, frame);
    }

    /// The host's machine has something to do.
    pub(super) fn datagram_timer(&mut self, number: u64, due: Time) {
        let now = self.now;
        let Some(session) = self.datagram_session(number).filter(|session| session.host_open)
        else {
            return;
        };
        let Some(ends) = session.datagrams.as_mut().filter(|ends| ends.timer == Some(due)) else {
            return;
        };
        ends.timer = None;
        ends.client.handle_timeout(now);
        self.flush_datagrams(number);
    }

    /// Carries out what the machines of a session want.
    fn flush_datagrams(&mut self, number: u64) {
        let now = self.now;
        loop {
            let Some((session, _)) = self.sessions.get_mut(&number) else { return };
            let Some(ends) = &mut session.datagrams else { return };
            if let Some(bytes) = ends.server.poll_datagram() {
                self.carry(number, Direction::Down, &bytes);
                continue;
            }
            match ends.client.poll() {
                Some(Output::Datagram(bytes)) => self.carry(number, Direction::Up, &bytes),
                Some(Output::Stream(frame)) => self.stream_up(number, &frame),
                Some(Output::Reply(frame)) => self.take_down(number, frame),
                None => break,
            }
        }
        let Some(ends) =
            self.datagram_session(number).and_then(|session| session.datagrams.as_mut())
        else {
            return;
        };
        let counters = ends.client.counters();
        let before = std::mem::replace(&mut ends.counted, counters);
        let due = ends.client.poll_timeout();
        let timer = due.filter(|due| ends.timer.replace(*due) != Some(*due));
        self.count_datagrams(&before, &counters);
        if let Some(due) = timer {
            self.schedule(Time(due.0.max(now.0 + 1)), Event::DatagramTimer(number, due));
        }
    }

    fn count_datagrams(&mut self, before: &AskCounters, now: &AskCounters) {
        self.coverage.datagram_requests += now.requests - before.requests;
        self.coverage.datagram_repeats += now.repeats - before.repeats;
        self.coverage.datagram_recovered += now.recovered - before.recovered;
        self.coverage.datagram_by_stream += now.by_stream - before.by_stream;
    }

    fn carry(&mut self, number: u64, direction: Direction, bytes: &Bytes) {
        let now = self.now;
        let Some((session, _)) = self.sessions.get_mut(&number) else { return };
        let arrivals = session.carry(now);
        for at in arrivals {
            self.schedule(at, Event::Datagram(number, direction, bytes.clone()));
        }
    }

    fn stream_up(&mut self, number: u64, frame: &Frame<ToStore>) {
        let bytes = match encode(frame) {
            Ok(bytes) => bytes,
            Err(error) => return self.fail(format!("a host's frame cannot be encoded: {error}")),
        };
        let now = self.now;
        let Some((session, _)) = self.sessions.get_mut(&number) else { return };
        if let Some(due) = session.send(now, Direction::Up, Lane::Read, bytes) {
            self.schedule(due, Event::Deliver(number, Direction::Up, Lane::Read));
        }
    }
}
