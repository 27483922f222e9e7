//! The host's side: requests into datagrams, replies out of them, and the stream when that fails.

use super::budget::Budget;
use super::datagram_server::parity;
use super::limits::{HOST_PER_MILLE, MAX_ASKED_BYTES, MAX_CALLS, PACKET_BYTES};
use super::packet::REQUEST_BYTES_MAX;
use super::packet::{Packet, Part};
use super::request::fits_datagram;
use crate::block::{SECTOR_BYTES, Time};
use crate::wire::link::{FRAME_PREFIX_BYTES, Frame, ToHost, ToStore};
use bytes::{Bytes, BytesMut};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The client sends a request twice only while at most this many are open.
const TWICE_UP_TO: usize = 4;
/// After this many repeats without a new part the stream carries the request.
const MAX_REPEATS: u32 = 2;
/// Finest wait: what the timers of the shell can tell apart.
const TICK: Duration = Duration::from_millis(1);
/// Longest wait for a store that says it is working, and for any repeat.
const LONGEST: Duration = Duration::from_secs(1);
/// Requests that went to the stream, for which the client remembers the times of their datagrams.
const MAX_LATE: usize = 32;
/// Longest pause between the two copies of a request.
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// What comes out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// To be sent.
    Datagram(Bytes),
    /// A request that datagrams do not carry, for the stream. Its reply comes by stream too.
    Stream(Frame<ToStore>),
    /// The reply to a request.
    Reply(Frame<ToHost>),
}

/// Totals since the beginning of the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AskCounters {
    /// Requests that went by datagram.
    pub requests: u64,
    /// Requests sent again, for all of a reply or for what was missing of it.
    pub repeats: u64,
    /// Replies with a part that the client made from the parity.
    pub recovered: u64,
    /// Requests that went by stream after all.
    pub by_stream: u64,
    /// Bytes of requests and of needed parts, with the overhead of the network.
    pub useful_bytes: u64,
    /// Bytes of second copies, parity and parts that had arrived before, with what the network
    /// adds.
    pub redundant_bytes: u64,
}

/// The requests of one connection in datagrams.
#[derive(Debug)]
pub struct DatagramClient {
    calls: BTreeMap<u64, Call>,
    asked_bytes: u64,
    next_call: u64,
    latency: Latency,
    /// Calls without any answer that the client gave up, with the times of their attempts. A late
    /// answer shows how long to wait. On a path that has become longer nothing else shows it.
    late: VecDeque<(u64, Vec<Time>)>,
    /// How late a part may come after a later one; grows when asking at once was too early.
    reordering: Duration,
    budget: Budget,
    out: VecDeque<Output>,
    counters: AskCounters,
}

#[derive(Debug)]
struct Call {
    frame: Frame<ToStore>,
    head: Bytes,
    asked_bytes: u64,
    /// The time of each attempt.
    sent: Vec<Time>,
    /// The time of the next step, unless something arrives, and the step.
    due: Time,
    next: Next,
    attempt: u8,
    /// Repeats since the last new part.
    repeats: u32,
    repeated: Option<Time>,
    /// How often the store said that it is working.
    working: u32,
    reply: Option<Assembly>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// The second copy.
    Twice,
    /// A repeat, or the stream.
    Repeat,
}

#[derive(Debug)]
struct Assembly {
    number: u16,
    /// The attempt that all of it answers, if that is one.
    attempt: Option<u8>,
    total: usize,
    count: usize,
    have: u64,
    data: Vec<Bytes>,
    parity: Option<Bytes>,
    heard: Time,
}

/// How long replies take, in the manner of RFC 6298.
#[derive(Debug)]
struct Latency {
    smoothed: Duration,
    variation: Duration,
    shortest: Option<Duration>,
    /// Between parts of a reply.
    spacing: Duration,
}

impl Latency {
    fn take(&mut self, sample: Duration) {
        match self.shortest {
            None => (self.smoothed, self.variation) = (sample, sample / 2),
            Some(_) => {
                let off = self.smoothed.abs_diff(sample);
                self.variation = (self.variation * 3 + off) / 4;
                self.smoothed = (self.smoothed * 7 + sample) / 8;
            }
        }
        self.shortest = Some(self.shortest.map_or(sample, |shortest| shortest.min(sample)));
    }

    /// If nothing has come after this time, the path has lost something.
    fn timeout(&self) -> Duration {
        (self.smoothed + (self.variation * 4).max(TICK) + TICK).min(LONGEST)
    }

    /// If no part follows another for this time, the missing parts are lost.
    fn gap(&self) -> Duration {
        (self.spacing * 4).max(self.smoothed / 8).max(TICK)
    }

    /// Between the two copies of a request.
    fn pause(&self) -> Duration {
        (self.smoothed / 8).clamp(TICK, LONGEST_PAUSE)
    }
}

impl DatagramClient {
    /// Of a connection that begins, whose round trip has taken this long so far.
    #[must_use]
    pub fn new(rtt: Duration) -> DatagramClient {
        DatagramClient {
            calls: BTreeMap::new(),
            asked_bytes: 0,
            next_call: 1,
            latency: Latency {
                smoothed: rtt,
                variation: rtt / 2,
                shortest: None,
                spacing: Duration::ZERO,
            },
            late: VecDeque::new(),
            reordering: Duration::ZERO,
            budget: Budget::new(HOST_PER_MILLE),
            out: VecDeque::new(),
            counters: AskCounters::default(),
        }
    }

    /// Takes a request: into a datagram, or to the stream. `datagram_bytes` is the largest datagram
    /// that the host can send now.
    pub fn handle_request(
        &mut self,
        now: Time,
        frame: Frame<ToStore>,
        datagram_bytes: Option<usize>,
    ) {
        let bytes = match &frame.message {
            ToStore::Read { range, .. } | ToStore::EarlyRead { range, .. } => {
                range.sectors.saturating_mul(SECTOR_BYTES)
            }
            _ => 0,
        };
        let fits = fits_datagram(&frame.message)
            && frame.payload.is_empty()
            && self.calls.len() < MAX_CALLS
            && self.asked_bytes + bytes <= MAX_ASKED_BYTES
            && datagram_bytes.is_some_and(|most| most >= REQUEST_BYTES_MAX);
        let head = frame.encode_head().ok().filter(|_| fits);
        let Some(mut head) = head else {
            return self.out.push_back(Output::Stream(frame));
        };
        let head = head.split_off(FRAME_PREFIX_BYTES);
        let number = self.next_call;
        self.next_call += 1;
        self.asked_bytes += bytes;
        let (due, next) = if self.calls.len() < TWICE_UP_TO {
            (now.after(self.latency.pause()), Next::Twice)
        } else {
            (now.after(self.latency.timeout()), Next::Repeat)
        };
        let call = Call {
            frame,
            head,
            asked_bytes: bytes,
            sent: vec![now],
            due,
            next,
            attempt: 0,
            repeats: 0,
            repeated: None,
            working: 0,
            reply: None,
        };
        let sent = self.send(number, &call);
        self.budget.earn(sent);
        self.counters.requests += 1;
        self.counters.useful_bytes += sent;
        self.calls.insert(number, call);
    }

    /// Takes a datagram. The client ignores one that is not the store's, or is late.
    pub fn handle_datagram(&mut self, now: Time, datagram: Bytes) {
        let bytes = datagram.len() as u64 + PACKET_BYTES;
        match Packet::decode(datagram) {
            Some(Packet::Part(part)) => {
                if self.part(now, part) {
                    self.budget.earn(bytes);
                    self.counters.useful_bytes += bytes;
                } else {
                    self.counters.redundant_bytes += bytes;
                }
            }
            Some(Packet::Working { call }) => {
                if let Some(call) = self.calls.get_mut(&call) {
                    // The store has the request. Only the reply can get lost now, and that will
                    // seldom lose all of its parts.
                    call.working += 1;
                    call.repeats = 0;
                    call.next = Next::Repeat;
                    let wait = self.latency.timeout() * (1 << call.working.min(10));
                    call.due = now.after(wait.min(LONGEST));
                }
            }
            Some(Packet::ByStream { call }) => self.give_up(call),
            Some(Packet::Request { .. }) | None => {}
        }
    }

    /// Takes a part. Returns whether the client needed it.
    fn part(&mut self, now: Time, part: Part) -> bool {
        let Some(call) = self.calls.get_mut(&part.call) else {
            self.too_late(now, &part);
            return false;
        };
        let (total, count) = (part.total as usize, usize::from(part.count));
        let same = |reply: &Assembly| {
            reply.number == part.reply && reply.total == total && reply.count == count
        };
        let progress = call.reply.as_ref().is_none_or(same);
        if !call.reply.as_ref().is_some_and(same) {
            // Of another execution: nothing that has arrived belongs to it.
            call.reply = Some(Assembly {
                number: part.reply,
                attempt: Some(part.attempt),
                total,
                count,
                have: 0,
                data: vec![Bytes::new(); count],
                parity: None,
                heard: now,
            });
            call.repeated = None;
        }
        let Some(reply) = &mut call.reply else { return false };
        let index = usize::from(part.index);
        if reply.have & (1 << index) != 0 {
            return false;
        }
        if reply.have != 0 {
            let spacing = &mut self.latency.spacing;
            *spacing = (*spacing * 7 + now.since(reply.heard)) / 8;
        }
        reply.heard = now;
        reply.attempt = reply.attempt.filter(|attempt| *attempt == part.attempt);
        reply.have |= 1 << index;
        let is_parity = index == count;
        if is_parity {
            reply.parity = Some(part.data);
        } else {
            reply.data[index] = part.data;
        }
        // No repeat arrives so soon: the part was in flight when the client asked for it again.
        if let (Some(repeated), Some(shortest)) = (call.repeated, self.latency.shortest)
            && now.since(repeated) < shortest / 2
        {
            let late = (now.since(repeated) * 2).max(TICK);
            self.reordering = self.reordering.max(late).min(LONGEST);
        }
        if reply.have.count_ones() as usize >= count {
            self.complete(now, part.call);
            return true;
        }
        if progress {
            call.repeats = 0;
        }
        call.next = Next::Repeat;
        let wait = if part.last { self.reordering } else { self.latency.gap() };
        call.due = now.after(wait);
        if wait.is_zero() && call.repeats < MAX_REPEATS {
            self.repeat(now, part.call);
        }
        !is_parity
    }

    fn complete(&mut self, now: Time, number: u64) {
        let Some(mut call) = self.calls.remove(&number) else { return };
        self.asked_bytes -= call.asked_bytes;
        let mut bytes = BytesMut::new();
        let attempt = call.reply.as_ref().and_then(|reply| reply.attempt);
        if let Some(reply) = call.reply.take() {
            let stride = Part::stride(reply.total, reply.count);
            let missing = (0..reply.count).find(|index| reply.have & (1 << index) == 0);
            let made = missing.map(|_| {
                let others = reply.data.iter().chain(&reply.parity).map(|data| &data[..]);
                parity(others, stride)
            });
            self.counters.recovered += u64::from(made.is_some());
            bytes.reserve(reply.total);
            for (index, data) in reply.data.iter().enumerate() {
                match &made {
                    Some(made) if missing == Some(index) => bytes.extend_from_slice(made),
                    _ => bytes.extend_from_slice(data),
                }
            }
            bytes.truncate(reply.total);
        }
        let asked = attempt.and_then(|attempt| call.sent.get(usize::from(attempt)));
        if let Some(asked) = asked.filter(|_| call.working == 0) {
            self.latency.take(now.since(*asked));
        }
        match Frame::<ToHost>::take(&mut bytes) {
            Ok(Some(reply)) if bytes.is_empty() && answers(&reply.message, &call.frame.message) => {
                self.out.push_back(Output::Reply(reply));
            }
            // The reply is not valid here. The stream carries it too, and ends the connection over
            // it.
            _ => self.stream(call.frame),
        }
    }

    /// When to call [`DatagramClient::handle_timeout`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.calls.values().map(|call| call.due).min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Time) {
        let due: Vec<u64> =
            self.calls.iter().filter(|(_, call)| call.due <= now).map(|(id, _)| *id).collect();
        for number in due {
            let Some(call) = self.calls.get_mut(&number) else { continue };
            match call.next {
                Next::Twice => {
                    call.next = Next::Repeat;
                    let sent = call.sent.first().copied().unwrap_or(now);
                    call.due = sent.after(self.latency.timeout()).max(now.after(TICK));
                    let bytes = request_bytes(call);
                    if self.budget.pay(bytes)
                        && let Some(call) = self.calls.remove(&number)
                    {
                        self.counters.redundant_bytes += self.send(number, &call);
                        self.calls.insert(number, call);
                    }
                }
                Next::Repeat if call.repeats >= MAX_REPEATS => {
                    if call.working == 0 {
                        if self.late.len() == MAX_LATE {
                            self.late.pop_front();
                        }
                        self.late.push_back((number, call.sent.clone()));
                    }
                    self.give_up(number);
                }
                Next::Repeat => self.repeat(now, number),
            }
        }
    }

    /// Something to do for the shell.
    pub fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    /// Totals.
    #[must_use]
    pub fn counters(&self) -> AskCounters {
        self.counters
    }

    /// Requests under way and the bytes they ask for.
    #[cfg(test)]
    pub(super) fn asked(&self) -> (usize, u64) {
        (self.calls.len(), self.asked_bytes)
    }

    fn repeat(&mut self, now: Time, number: u64) {
        let Some(mut call) = self.calls.remove(&number) else { return };
        call.repeats += 1;
        // At its end the store hears no more of it, and the stream carries it.
        if let Some(next) = call.attempt.checked_add(1) {
            call.attempt = next;
            call.sent.push(now);
        }
        call.repeated = Some(now);
        call.next = Next::Repeat;
        call.due = now.after((self.latency.timeout() * (1 << (call.repeats - 1))).min(LONGEST));
        self.counters.repeats += 1;
        self.counters.useful_bytes += self.send(number, &call);
        self.calls.insert(number, call);
    }

    /// Sends a request as it stands; returns what that costs in bytes.
    fn send(&mut self, number: u64, call: &Call) -> u64 {
        let (reply, have) = call.reply.as_ref().map_or((0, 0), |reply| (reply.number, reply.have));
        let (head, attempt) = (call.head.clone(), call.attempt);
        let packet = Packet::Request { call: number, attempt, reply, have, head };
        self.out.push_back(Output::Datagram(packet.encode()));
        request_bytes(call)
    }

    /// A part has come of a call that is over.
    fn too_late(&mut self, now: Time, part: &Part) {
        let Some(at) = self.late.iter().position(|(number, _)| *number == part.call) else {
            return;
        };
        let Some((_, sent)) = self.late.remove(at) else { return };
        if let Some(asked) = sent.get(usize::from(part.attempt)) {
            self.latency.take(now.since(*asked));
        }
    }

    fn give_up(&mut self, number: u64) {
        if let Some(call) = self.calls.remove(&number) {
            self.asked_bytes -= call.asked_bytes;
            self.stream(call.frame);
        }
    }

    fn stream(&mut self, frame: Frame<ToStore>) {
        self.counters.by_stream += 1;
        self.out.push_back(Output::Stream(frame));
    }
}

fn request_bytes(call: &Call) -> u64 {
    (super::packet::REQUEST_HEADER_BYTES + call.head.len()) as u64 + PACKET_BYTES
}

/// Whether a reply is one to the request.
fn answers(reply: &ToHost, request: &ToStore) -> bool {
    match (reply, request) {
        (
            ToHost::Data { request: of, volume: from, .. },
            ToStore::Read { request, volume, .. } | ToStore::EarlyRead { request, volume, .. },
        )
        | (
            ToHost::Status { request: of, volume: from, .. },
            ToStore::Status { request, volume, .. },
        ) => (of, from) == (request, volume),
        _ => false,
    }
}
