//! The output of a command on its way in: immediate, unsolicited and solicited data (RFC 7143 §4.2.5,
//! §11.7, §11.8), in what order it comes, and what of it has to be asked for again.
//!
//! Promises: nothing outside of what was announced or asked for is kept, nothing is kept twice, and
//! small pieces are copied together, so that the memory they pin stays in proportion to their bytes.

use crate::wire::iscsi::RESERVED_TAG;
use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;

/// Pieces below this are copied: each slice keeps the buffer alive that it was read into.
const SMALL_BYTES: usize = 4096;

/// Smallest MaxRecvDataSegmentLength (§13.12): a peer that sends much less per PDU than this, and not
/// in order, is made to stop.
const SMALLEST_SEGMENT_BYTES: u32 = 512;

/// How often parts of one command's output are asked for again.
const MAX_RECOVERIES: u32 = 64;

/// Additional sense codes of iSCSI conditions, all with the key ABORTED COMMAND (§11.4.7.2).
pub(super) mod condition {
    pub(in crate::front::iscsi) const UNEXPECTED_UNSOLICITED_DATA: u16 = 0x0c0c;
    pub(in crate::front::iscsi) const INCORRECT_AMOUNT_OF_DATA: u16 = 0x0c0d;
    pub(in crate::front::iscsi) const PROTOCOL_SERVICE_CRC_ERROR: u16 = 0x4705;
}

/// What was agreed about output.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// Lost data is asked for again (ErrorRecoveryLevel ≥ 1); otherwise the command fails.
    pub(super) recover: bool,
    /// DataPDUInOrder.
    pub(super) in_order: bool,
    /// MaxBurstLength, in bytes.
    pub(super) max_burst: u32,
    /// MaxOutstandingR2T.
    pub(super) max_outstanding: usize,
}

/// A Data-Out, as far as it matters here.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) ttt: u32,
    pub(super) last: bool,
    pub(super) data_sn: u32,
    pub(super) offset: u32,
    pub(super) bytes: u32,
    /// `None`: its digest did not match.
    pub(super) data: Option<Bytes>,
}

/// A sequence of Data-Out PDUs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Burst {
    pub(super) ttt: u32,
    pub(super) r2t_sn: u32,
    pub(super) offset: u32,
    pub(super) end: u32,
    next_offset: u32,
    data_sn: u32,
}

/// What has arrived.
#[derive(Debug, Default)]
struct Received {
    /// By offset, without overlap.
    pieces: Vec<(u32, Bytes)>,
    /// Small pieces that follow each other, the last of all that arrived.
    tail: BytesMut,
    tail_offset: u32,
}

impl Received {
    fn seal(&mut self) {
        if !self.tail.is_empty() {
            let data = self.tail.split().freeze();
            self.place(self.tail_offset, data);
        }
    }

    fn place(&mut self, offset: u32, data: Bytes) {
        let at = match self.pieces.last() {
            Some((last, _)) if *last > offset => {
                self.pieces.partition_point(|(start, _)| *start < offset)
            }
            _ => self.pieces.len(),
        };
        self.pieces.insert(at, (offset, data));
    }

    /// Keeps `data` unless some of it is there already.
    fn insert(&mut self, offset: u32, data: Bytes) {
        if data.is_empty() {
            return;
        }
        let follows = self.tail_offset + self.tail.len() as u32 == offset;
        if !self.tail.is_empty() && !follows {
            self.seal();
        }
        if data.len() < SMALL_BYTES {
            if self.tail.is_empty() {
                self.tail_offset = offset;
            }
            self.tail.extend_from_slice(&data);
        } else {
            self.seal();
            self.place(offset, data);
        }
    }

    /// The first part of `from..to` that has not arrived.
    fn hole(&mut self, mut from: u32, to: u32) -> Option<(u32, u32)> {
        self.seal();
        let at = self.pieces.partition_point(|(start, data)| start + data.len() as u32 <= from);
        for (start, data) in &self.pieces[at..] {
            if from >= to || *start > from {
                break;
            }
            from = start + data.len() as u32;
        }
        if from >= to {
            return None;
        }
        let next = self.pieces.partition_point(|(start, _)| *start < from);
        let end = self.pieces.get(next).map_or(to, |(start, _)| to.min(*start));
        Some((from, end))
    }

    /// The first `bytes`, which must all be there.
    fn take(&mut self, bytes: u32) -> Vec<Bytes> {
        self.seal();
        let mut left = bytes as usize;
        let mut taken = Vec::with_capacity(self.pieces.len());
        for (_, mut data) in self.pieces.drain(..) {
            data.truncate(left);
            left -= data.len();
            if !data.is_empty() {
                taken.push(data);
            }
        }
        taken
    }
}

/// The output of one command.
#[derive(Debug)]
pub(super) struct Collect {
    /// Bytes the initiator is ready to send.
    expected: u32,
    /// All of it, if it came with the command: most writes need nothing else here.
    whole: Option<Bytes>,
    received: Received,
    /// Unsolicited Data-Out PDUs are still to come.
    unsolicited: Option<Burst>,
    bursts: Vec<Burst>,
    /// What the device wants; only from then on is anything asked for.
    wanted: Option<u32>,
    /// Everything before it has been sent, or asked for at least once.
    asked: u32,
    /// To be asked for again.
    again: VecDeque<(u32, u32)>,
    recoveries: u32,
    failure: Option<u16>,
    handed: bool,
}

impl Collect {
    /// A command that expects to send `expected` bytes and brought `immediate`; at most `unsolicited`
    /// bytes come without being asked for, and more do unless `last`.
    pub(super) fn new(expected: u32, unsolicited: u32, immediate: Bytes, last: bool) -> Collect {
        let limit = unsolicited.min(expected);
        let mut collect = Collect {
            expected,
            whole: None,
            received: Received::default(),
            unsolicited: None,
            bursts: Vec::new(),
            wanted: None,
            asked: 0,
            again: VecDeque::new(),
            recoveries: 0,
            failure: None,
            handed: false,
        };
        let sent = immediate.len() as u32;
        if sent > limit {
            collect.fail(if limit == 0 && expected > 0 {
                condition::UNEXPECTED_UNSOLICITED_DATA
            } else {
                condition::INCORRECT_AMOUNT_OF_DATA
            });
        } else {
            collect.asked = sent;
            // With nothing more to come, nothing will ever look for holes.
            if last && sent == expected && immediate.len() >= SMALL_BYTES {
                collect.whole = Some(immediate);
            } else {
                collect.received.insert(0, immediate);
            }
        }
        if !last {
            let offset = sent.min(limit);
            collect.unsolicited = Some(Burst {
                ttt: RESERVED_TAG,
                r2t_sn: 0,
                offset,
                end: limit,
                next_offset: offset,
                data_sn: 0,
            });
        }
        collect
    }

    /// Ends the command, once all that was announced or asked for has come.
    pub(super) fn fail(&mut self, condition: u16) {
        self.failure.get_or_insert(condition);
    }

    /// Nothing is on its way in.
    pub(super) fn is_quiet(&self) -> bool {
        self.unsolicited.is_none() && self.bursts.is_empty()
    }

    /// R2Ts that were not answered in full.
    pub(super) fn bursts(&self) -> &[Burst] {
        &self.bursts
    }

    /// The device wants this many bytes, at most what the initiator expects to send.
    pub(super) fn want(&mut self, bytes: u64) {
        self.wanted = Some(u32::try_from(bytes).unwrap_or(u32::MAX).min(self.expected));
    }

    /// A Data-Out arrived. False if it answers nothing that was asked for.
    pub(super) fn handle(&mut self, rules: Rules, segment: Segment) -> bool {
        let Segment { ttt, last, data_sn, offset, bytes, data } = segment;
        let solicited = ttt != RESERVED_TAG;
        let burst = if solicited {
            self.bursts.iter_mut().find(|burst| burst.ttt == ttt)
        } else if self.unsolicited.is_none() {
            self.fail(condition::UNEXPECTED_UNSOLICITED_DATA);
            return true;
        } else {
            self.unsolicited.as_mut()
        };
        let Some(burst) = burst else { return false };
        let mut failure = None;
        let ahead = data_sn.wrapping_sub(burst.data_sn) as i32;
        if ahead < 0 && rules.recover {
            return true;
        }
        if ahead != 0 && !rules.recover {
            failure = Some(condition::PROTOCOL_SERVICE_CRC_ERROR);
        }
        burst.data_sn = data_sn.wrapping_add(1);
        let end =
            offset.checked_add(bytes).filter(|end| offset >= burst.offset && *end <= burst.end);
        let in_order = offset == burst.next_offset
            || !rules.in_order
            || rules.recover && ahead > 0 && offset > burst.next_offset;
        let mut insert = None;
        match (end, data) {
            (None, _) => failure = Some(condition::INCORRECT_AMOUNT_OF_DATA),
            (Some(_), _) if !in_order => failure = Some(condition::INCORRECT_AMOUNT_OF_DATA),
            (Some(end), Some(data)) => {
                burst.next_offset = end;
                insert = Some(data);
            }
            (Some(end), None) => {
                burst.next_offset = end;
                if !rules.recover {
                    failure = Some(condition::PROTOCOL_SERVICE_CRC_ERROR);
                }
            }
        }
        let burst = *burst;
        if let Some(condition) = failure {
            self.fail(condition);
        }
        if let Some(data) = insert
            && self.failure.is_none()
            && bytes > 0
        {
            // A part that is there already was sent twice: the first copy counts.
            match self.received.is_free(offset, offset + bytes, rules.in_order) {
                true => self.received.insert(offset, data),
                false if rules.recover => {}
                false => self.fail(condition::INCORRECT_AMOUNT_OF_DATA),
            }
            let most = self.expected / SMALLEST_SEGMENT_BYTES + 64;
            if self.received.pieces.len() > most as usize {
                self.fail(condition::INCORRECT_AMOUNT_OF_DATA);
            }
        }
        if last {
            self.close(rules, burst, solicited);
        } else if solicited
            && self.failure.is_none()
            && rules.in_order
            && burst.next_offset == burst.end
        {
            // All that was asked for, without the F bit: there is nothing left to wait for.
            self.fail(condition::INCORRECT_AMOUNT_OF_DATA);
            self.close(rules, burst, solicited);
        }
        true
    }

    /// The last PDU of a sequence has come.
    fn close(&mut self, rules: Rules, burst: Burst, solicited: bool) {
        let end = if solicited {
            self.bursts.retain(|other| other.ttt != burst.ttt);
            burst.end
        } else {
            self.unsolicited = None;
            // Without an order only what arrived tells how far it goes.
            let end = if rules.in_order { burst.next_offset } else { self.received.end() };
            self.asked = self.asked.max(end);
            end
        };
        if self.failure.is_some() {
            return;
        }
        let mut from = burst.offset;
        while let Some((hole, hole_end)) = self.received.hole(from, end) {
            self.recoveries += 1;
            if !rules.recover {
                self.fail(condition::INCORRECT_AMOUNT_OF_DATA);
                return;
            }
            if self.recoveries > MAX_RECOVERIES {
                self.fail(condition::PROTOCOL_SERVICE_CRC_ERROR);
                return;
            }
            self.again.push_back((hole, hole_end));
            from = hole_end;
        }
    }

    /// The next part to ask for, if one may be asked for now; it counts as asked for, under the tag
    /// and number given.
    pub(super) fn ask(&mut self, rules: Rules, ttt: u32, r2t_sn: u32) -> Option<Burst> {
        let wanted = self.wanted?;
        if self.unsolicited.is_some()
            || self.failure.is_some()
            || self.bursts.len() >= rules.max_outstanding.max(1)
        {
            return None;
        }
        let (offset, end) = loop {
            match self.again.pop_front() {
                Some((offset, _)) if offset >= wanted => {}
                Some((offset, end)) => {
                    let end = end.min(wanted);
                    if end - offset > rules.max_burst {
                        self.again.push_front((offset + rules.max_burst, end));
                    }
                    break (offset, end.min(offset.saturating_add(rules.max_burst)));
                }
                None if self.asked >= wanted => return None,
                None => {
                    let offset = self.asked;
                    self.asked = wanted.min(offset.saturating_add(rules.max_burst));
                    break (offset, self.asked);
                }
            }
        };
        let burst = Burst { ttt, r2t_sn, offset, end, next_offset: offset, data_sn: 0 };
        self.bursts.push(burst);
        Some(burst)
    }

    /// What was asked for and has not come is asked for again, as on another connection it must be
    /// (§7.2.2).
    pub(super) fn restart(&mut self) {
        let mut lost: Vec<(u32, u32)> =
            self.bursts.drain(..).map(|burst| (burst.offset, burst.end)).collect();
        if let Some(burst) = self.unsolicited.take() {
            self.asked = burst.offset;
        }
        lost.append(&mut self.again.drain(..).collect());
        for (mut from, end) in lost {
            while let Some((hole, hole_end)) = self.received.hole(from, end) {
                self.again.push_back((hole, hole_end));
                from = hole_end;
            }
        }
        if let Some(wanted) = self.wanted
            && self.asked < wanted
        {
            // Of an unsolicited sequence that was cut some may be there.
            let mut from = self.asked;
            while let Some((hole, hole_end)) = self.received.hole(from, wanted) {
                if hole_end == wanted {
                    self.asked = hole;
                    return;
                }
                self.again.push_back((hole, hole_end));
                from = hole_end;
            }
            self.asked = wanted;
        }
    }

    /// What the device is to be given, once.
    pub(super) fn finish(&mut self) -> Option<Result<Vec<Bytes>, u16>> {
        let wanted = self.wanted?;
        if self.handed || !self.is_quiet() {
            return None;
        }
        if let Some(condition) = self.failure {
            self.handed = true;
            return Some(Err(condition));
        }
        if !self.again.iter().all(|(offset, _)| *offset >= wanted) || self.asked < wanted {
            return None;
        }
        self.handed = true;
        if let Some(mut whole) = self.whole.take() {
            whole.truncate(wanted as usize);
            return Some(Ok(vec![whole]));
        }
        Some(Ok(self.received.take(wanted)))
    }
}

impl Received {
    /// Whether nothing of `from..to` has arrived. In order, only what comes before the end can have.
    fn is_free(&mut self, from: u32, to: u32, in_order: bool) -> bool {
        if in_order && from >= self.end() {
            return true;
        }
        self.hole(from, to) == Some((from, to))
    }

    /// The end of the last part.
    fn end(&self) -> u32 {
        let pieces = self.pieces.last().map_or(0, |(start, data)| start + data.len() as u32);
        let tail = if self.tail.is_empty() { 0 } else { self.tail_offset + self.tail.len() as u32 };
        pieces.max(tail)
    }
}
