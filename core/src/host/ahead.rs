//! The volume's side of reading ahead: what is asked for, for whom, and what becomes of the answers.

use super::io::Event;
use super::pieces::{pieces, verified};
use super::readahead::{Trace, Waiter, Why};
use super::reads::{Asked, LinkUse};
use super::versions::Standing;
use super::volume::{Link, Volume};
use crate::block::{Range, ReadPiece, Time};
use crate::wire::link::{MAX_READ_SECTORS, Piece, ReadError, RequestId};
use bytes::Bytes;

/// Runs of the dirty map, and pieces of what is missing, that one hint looks at: its range may be the
/// volume.
const RUNS: usize = 1024;

impl Volume {
    /// A client says that it will read a range.
    pub(super) fn prefetch(&mut self, range: Range) {
        self.ask_ahead(range, Why::Hint);
    }

    /// Asks for what of a range the store alone has, and is neither here nor under way. False if
    /// something stood against asking for all of it.
    fn ask_ahead(&mut self, range: Range, why: Why) -> bool {
        if self.link != Link::Up {
            return false;
        }
        let absent: Vec<Range> = self
            .log
            .newest(range)
            .take(RUNS)
            .filter(|(_, place)| place.is_none())
            .flat_map(|(part, _)| self.readahead.missing(part))
            .collect();
        let absent = absent.into_iter().flat_map(|part| pieces(part, MAX_READ_SECTORS));
        for part in absent.take(RUNS) {
            for part in self.caching.missing(part) {
                if !self.readahead.may_ask(self.context.now, part.bytes(), why) {
                    return false;
                }
                let request = self.next_request();
                self.ask_as(request, part, LinkUse::Prefetch, false);
                self.readahead.asked(self.context.now, request, part, why);
            }
        }
        true
    }

    /// A client reads a range: reads on where it is likely to.
    pub(super) fn read_on(&mut self, range: Range) {
        let (stream, lost) = self.readahead.observe(self.context.now, range);
        if lost {
            self.out.event(Event::TraceReplayed { followed: false });
        }
        let Some(stream) = stream else { return };
        while self.link == Link::Up
            && let Some(next) =
                self.readahead.next_of_stream(self.context.now, stream, self.sectors())
            && self.ask_ahead(next, Why::Stream)
        {
            self.readahead.asked_for_stream(stream, next);
        }
    }

    /// Goes on with a trace.
    pub(super) fn replay_on(&mut self) {
        while self.link == Link::Up && self.readahead.is_replaying() {
            let Some(next) = self.readahead.next_of_trace(self.sectors()) else {
                self.readahead.stop_replay();
                return self.out.event(Event::TraceReplayed { followed: true });
            };
            if !self.readahead.has_room_for_trace(self.context.now)
                || !self.ask_ahead(next, Why::Trace)
            {
                return;
            }
            self.readahead.asked_for_trace(next);
        }
    }

    /// Takes the answer to what was asked for ahead.
    pub(super) fn ahead_came(
        &mut self,
        request: RequestId,
        asked: Asked,
        result: Result<Vec<Piece>, ReadError>,
        (payload, standing): (Bytes, &Standing),
    ) {
        let found = match result {
            Ok(pieces) => verified(asked.range, &pieces, payload, &mut self.packer)
                .ok()
                .filter(|_| *standing != Standing::Outdated),
            Err(error) => {
                let waiters = self.readahead.arrived(request, None);
                self.ask_for(waiters);
                return self.store_refused(asked, error);
            }
        };
        if found.is_some() {
            self.adopt(&asked, standing);
        }
        let waiters = self.readahead.arrived(request, found.as_deref());
        match found {
            Some(pieces) => {
                for Waiter { read, slot, range } in waiters {
                    let pieces = cut(asked.range, &pieces, range);
                    self.cache_missed(range, &pieces, asked.spoiled);
                    self.fill_from_ahead(read, slot, pieces);
                }
            }
            None => self.ask_for(waiters),
        }
    }

    /// What reads waited for does not come: they ask for themselves.
    pub(super) fn ask_for(&mut self, waiters: Vec<Waiter>) {
        for Waiter { read, slot, range } in waiters {
            self.out.count().store_read_bytes += range.bytes();
            self.ask(range, LinkUse::Read { read, slot }, false);
        }
    }

    // --- for the shell ---

    /// Records which sectors clients read, in order of their first use, until
    /// [`Volume::handle_stop_recording`]. False if that is being done already.
    pub fn handle_record(&mut self, now: Time) -> bool {
        self.input(now);
        self.readahead.record()
    }

    /// What was recorded, if anything was.
    pub fn handle_stop_recording(&mut self, now: Time) -> Option<Trace> {
        self.input(now);
        self.readahead.stop_recording()
    }

    /// Reads a trace ahead, as fast as the line allows and no further ahead of the clients than
    /// there is memory for, until its end or until clients read something else.
    /// [`Event::TraceReplayed`] says how it ended, unless another takes its place.
    pub fn handle_replay(&mut self, now: Time, trace: &Trace) {
        self.input(now);
        self.readahead.start_replay(trace);
    }

    /// Ends a replay; false if there was none.
    pub fn handle_stop_replay(&mut self, now: Time) -> bool {
        self.input(now);
        self.readahead.stop_replay()
    }

    /// Limits on what goes over the line, in bytes a second: for the drain, and for reading ahead.
    /// Reads are never limited, nor is the part of the drain that somebody waits for.
    pub fn handle_limits(&mut self, now: Time, drain: Option<u64>, readahead: Option<u64>) {
        self.input(now);
        self.drain.limit.set(now, drain);
        self.readahead.limit.set(now, readahead);
    }
}

/// The part `wanted` of the pieces of `range`.
fn cut(range: Range, pieces: &[ReadPiece], wanted: Range) -> Vec<ReadPiece> {
    let mut at = range.lba;
    let mut out = Vec::new();
    for piece in pieces {
        let whole = Range::new(at, piece.sectors());
        at = whole.end();
        let Some(part) = whole.intersect(wanted) else { continue };
        out.push(piece.cut(Range::new(part.lba - whole.lba, part.sectors)));
    }
    out
}
