//! The store's side: requests out of datagrams, replies into them.

use super::budget::Budget;
use super::limits::{MAX_PARTS, MAX_REPLY_BYTES, PACKET_BYTES, STORE_PER_MILLE};
use super::packet::{PART_HEADER_BYTES, Packet, Part};
use super::request::{answered_by, fits_datagram, request_of};
use crate::wire::link::{Frame, RequestId, ToHost, ToStore};
use bytes::{Bytes, BytesMut};
use std::collections::{BTreeMap, VecDeque};

/// Marks the request numbers of datagram requests. So the reply to one never counts as the reply to
/// a request of the same number that came by stream.
const DATAGRAM: RequestId = 1 << 63;
/// Most requests of a session that the store executes for datagrams at a time. It drops further
/// ones. The host takes that for a loss, and in the end it asks by stream.
const MAX_OPEN: usize = 2 * super::MAX_CALLS;
/// Replies kept for what may be missing of them, and their bytes together.
const MAX_DONE: usize = 32;
const MAX_DONE_BYTES: usize = 256 << 10;
/// A reply with at least this many parts goes out in at least seven, so that the parity is a
/// seventh of it.
const FINER_FROM: usize = 5;
const FINER: usize = 7;

/// Smaller datagrams are not worth cutting for; no path that carries QUIC is like that.
const MIN_DATAGRAM_BYTES: usize = 512;
// So every part but the last is full and the last is not empty: see `Part::is_valid`.
const _: () = assert!(MIN_DATAGRAM_BYTES - PART_HEADER_BYTES > MAX_PARTS);

/// Totals since the beginning of the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnswerCounters {
    /// Requests that this machine handed out for execution.
    pub requests: u64,
    /// Requests that came again.
    pub repeats: u64,
    /// Replies that went by datagram.
    pub replies: u64,
    /// Replies that were too large.
    pub by_stream: u64,
    /// Bytes of first copies of parts, with what the network adds.
    pub sent_bytes: u64,
    /// Bytes of parity, with what the network adds.
    pub redundant_bytes: u64,
    /// Bytes of parts that the host asked for again.
    pub repeated_bytes: u64,
}

impl AnswerCounters {
    /// Adds those of another connection.
    pub fn add(&mut self, other: &AnswerCounters) {
        self.requests += other.requests;
        self.repeats += other.repeats;
        self.replies += other.replies;
        self.by_stream += other.by_stream;
        self.sent_bytes += other.sent_bytes;
        self.redundant_bytes += other.redundant_bytes;
        self.repeated_bytes += other.repeated_bytes;
    }
}

/// Requests and replies of one connection.
#[derive(Debug)]
pub struct DatagramServer {
    /// Requests in execution, by call.
    open: BTreeMap<u64, Open>,
    done: VecDeque<Reply>,
    done_bytes: usize,
    next_reply: u16,
    budget: Budget,
    out: VecDeque<Bytes>,
    counters: AnswerCounters,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    /// The number that the host gave it.
    request: RequestId,
    /// The attempt that it is executed for, and the last one that came.
    first: u8,
    last: u8,
}

#[derive(Debug)]
struct Reply {
    call: u64,
    /// The last attempt with an answer.
    attempt: u8,
    number: u16,
    /// Empty if it went nowhere because it was too large.
    frame: Bytes,
    count: usize,
}

impl Default for DatagramServer {
    fn default() -> DatagramServer {
        DatagramServer::new()
    }
}

impl DatagramServer {
    /// Of a connection that begins.
    #[must_use]
    pub fn new() -> DatagramServer {
        DatagramServer {
            open: BTreeMap::new(),
            done: VecDeque::new(),
            done_bytes: 0,
            next_reply: 1,
            budget: Budget::new(STORE_PER_MILLE),
            out: VecDeque::new(),
            counters: AnswerCounters::default(),
        }
    }

    /// Takes a datagram. If it is a new request, returns it for execution, under a number of this
    /// machine's own. The machine ignores a datagram that is no request. `datagram_bytes` is the
    /// largest that it can send now.
    pub fn handle_datagram(
        &mut self,
        datagram: Bytes,
        datagram_bytes: usize,
    ) -> Option<Frame<ToStore>> {
        let Packet::Request { call, attempt, reply, have, head } = Packet::decode(datagram)? else {
            return None;
        };
        let mut frame = Frame::<ToStore>::decode(&head, Bytes::new()).ok()?;
        if call & DATAGRAM != 0 || !fits_datagram(&frame.message) {
            return None;
        }
        if let Some(open) = self.open.get_mut(&call) {
            // The second copy, or what the network has made two of.
            if attempt <= open.last {
                return None;
            }
            open.last = attempt;
            self.counters.repeats += 1;
            self.out.push_back(Packet::Working { call }.encode());
            return None;
        }
        if let Some(at) = self.done.iter().position(|reply| reply.call == call) {
            if attempt <= self.done[at].attempt {
                return None;
            }
            self.done[at].attempt = attempt;
            self.counters.repeats += 1;
            let have = if reply == self.done[at].number { have } else { 0 };
            if self.done[at].frame.is_empty() {
                self.out.push_back(Packet::ByStream { call }.encode());
                return None;
            }
            if self.done[at].fits(datagram_bytes) {
                self.send_again(at, have, attempt);
                return None;
            }
            // The path carries shorter datagrams than before: the next execution cuts the reply
            // anew.
            self.forget(at);
        }
        if self.open.len() >= MAX_OPEN {
            return None;
        }
        let request = request_of(&mut frame.message)?;
        self.open.insert(call, Open { request: *request, first: attempt, last: attempt });
        *request = DATAGRAM | call;
        self.counters.requests += 1;
        Some(frame)
    }

    /// Takes the reply to an executed request; gives back what is not one, for the stream.
    pub fn handle_reply(
        &mut self,
        mut frame: Frame<ToHost>,
        datagram_bytes: usize,
    ) -> Option<Frame<ToHost>> {
        let Some(request) = answered_by(&mut frame.message) else { return Some(frame) };
        if *request & DATAGRAM == 0 {
            return Some(frame);
        }
        let call = *request & !DATAGRAM;
        let Some(open) = self.open.remove(&call) else { return Some(frame) };
        let attempt = open.last;
        *request = open.request;
        let number = self.next_reply;
        // 0 means that nothing has arrived.
        self.next_reply = self.next_reply.checked_add(1).unwrap_or(1);
        let bytes = match frame.encode_head() {
            Ok(head) if head.len() + frame.payload.len() <= MAX_REPLY_BYTES => {
                let mut bytes = BytesMut::from(&head[..]);
                bytes.extend_from_slice(&frame.payload);
                bytes.freeze()
            }
            _ => Bytes::new(),
        };
        let (count, extra) = cut(bytes.len(), datagram_bytes);
        if bytes.is_empty() || count > MAX_PARTS || datagram_bytes < MIN_DATAGRAM_BYTES {
            self.counters.by_stream += 1;
            self.out.push_back(Packet::ByStream { call }.encode());
            self.keep(Reply { call, attempt, number, frame: Bytes::new(), count: 0 });
            return None;
        }
        let reply = Reply { call, attempt, number, frame: bytes, count };
        self.counters.replies += 1;
        let sent = (reply.frame.len() + count * PART_HEADER_BYTES) as u64;
        let sent = sent + (count - extra) as u64 * PACKET_BYTES;
        self.counters.sent_bytes += sent;
        self.budget.earn(sent);
        let stride = Part::stride(reply.frame.len(), count);
        let parity_bytes = (stride + PART_HEADER_BYTES) as u64 + (extra as u64 + 1) * PACKET_BYTES;
        // One packet with the parity and the part that it replaces would lose both together.
        let apart = 2 * (stride + PART_HEADER_BYTES) > datagram_bytes;
        let parity = apart && self.budget.pay(parity_bytes);
        if parity {
            self.counters.redundant_bytes += parity_bytes;
        }
        for index in 0..count {
            let last = !parity && index + 1 == count;
            self.out.push_back(Packet::Part(reply.part(index, last, open.first)).encode());
        }
        if parity {
            self.out.push_back(Packet::Part(reply.part(count, true, open.first)).encode());
        }
        self.keep(reply);
        None
    }

    /// A datagram to send.
    pub fn poll_datagram(&mut self) -> Option<Bytes> {
        self.out.pop_front()
    }

    /// Totals.
    #[must_use]
    pub fn counters(&self) -> AnswerCounters {
        self.counters
    }

    /// Bytes of replies in memory.
    #[cfg(test)]
    pub(super) fn kept_bytes(&self) -> usize {
        self.done_bytes
    }

    fn send_again(&mut self, at: usize, have: u64, attempt: u8) {
        let reply = &self.done[at];
        let missing: Vec<usize> =
            (0..reply.count).filter(|index| have & (1 << index) == 0).collect();
        for (nth, &index) in missing.iter().enumerate() {
            let part = reply.part(index, nth + 1 == missing.len(), attempt);
            self.counters.repeated_bytes +=
                (part.data.len() + PART_HEADER_BYTES) as u64 + PACKET_BYTES;
            self.out.push_back(Packet::Part(part).encode());
        }
    }

    fn keep(&mut self, reply: Reply) {
        self.done_bytes += reply.frame.len();
        self.done.push_back(reply);
        while self.done.len() > MAX_DONE || self.done_bytes > MAX_DONE_BYTES {
            self.forget(0);
        }
    }

    fn forget(&mut self, at: usize) {
        if let Some(gone) = self.done.remove(at) {
            self.done_bytes -= gone.frame.len();
        }
    }
}

/// The number of parts of a reply, and the number of those that exist only to make parity cheaper.
fn cut(bytes: usize, datagram_bytes: usize) -> (usize, usize) {
    let most = datagram_bytes.saturating_sub(PART_HEADER_BYTES).max(1);
    let fewest = bytes.div_ceil(most).max(1);
    let count = if (FINER_FROM..FINER).contains(&fewest) { FINER } else { fewest };
    (count, count - fewest)
}

impl Reply {
    fn fits(&self, datagram_bytes: usize) -> bool {
        Part::stride(self.frame.len(), self.count) + PART_HEADER_BYTES <= datagram_bytes
    }

    fn part(&self, index: usize, last: bool, attempt: u8) -> Part {
        let total = self.frame.len();
        let stride = Part::stride(total, self.count);
        let data = if index < self.count {
            self.frame.slice(index * stride..total.min((index + 1) * stride))
        } else {
            parity(self.frame.chunks(stride), stride)
        };
        Part {
            call: self.call,
            reply: self.number,
            attempt,
            index: index as u8,
            count: self.count as u8,
            last,
            total: total as u32,
            data,
        }
    }
}

/// All parts XORed, shorter ones as if zeroes followed.
pub(super) fn parity<'a>(parts: impl Iterator<Item = &'a [u8]>, stride: usize) -> Bytes {
    let mut sum = vec![0; stride];
    for part in parts {
        for (sum, byte) in sum.iter_mut().zip(part) {
            *sum ^= byte;
        }
    }
    sum.into()
}
