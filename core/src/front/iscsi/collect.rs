//! The output of a command as it arrives: immediate, unsolicited and solicited data (RFC 7143
//! §4.2.5, §11.7, §11.8).
//!
//! The collector keeps nothing outside of the announced and solicited ranges, and nothing twice. It
//! copies small pieces together, so that the memory which they keep alive stays in proportion to
//! their bytes.

use crate::wire::iscsi::RESERVED_TAG;
use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;

/// The collector copies pieces with fewer bytes, because a slice keeps its whole input buffer
/// alive.
const SMALL_BYTES: usize = 4096;

/// Smallest MaxRecvDataSegmentLength (§13.12). It bounds the number of pieces: a command fails if
/// its initiator sends much smaller ones out of order.
const SMALLEST_SEGMENT_BYTES: u32 = 512;

/// Most recoveries of the output of one command.
const MAX_RECOVERIES: u32 = 64;

/// Additional sense codes of iSCSI conditions, all with the key ABORTED COMMAND (§11.4.7.2).
pub(super) mod condition {
    pub(in crate::front::iscsi) const UNEXPECTED_UNSOLICITED_DATA: u16 = 0x0c0c;
    pub(in crate::front::iscsi) const INCORRECT_AMOUNT_OF_DATA: u16 = 0x0c0d;
    pub(in crate::front::iscsi) const PROTOCOL_SERVICE_CRC_ERROR: u16 = 0x4705;
}

/// The negotiated rules for output.
#[derive(Clone, Copy, Debug)]
pub(super) struct DataOutRules {
    /// Solicit lost data again (ErrorRecoveryLevel ≥ 1). Otherwise the command fails.
    pub(super) recover: bool,
    /// DataPDUInOrder.
    pub(super) in_order: bool,
    /// MaxBurstLength, in bytes.
    pub(super) max_burst: u32,
    /// MaxOutstandingR2T.
    pub(super) max_outstanding: usize,
}

/// The parts of a Data-Out PDU that matter here.
#[derive(Clone, Debug)]
pub(super) struct DataOut {
    pub(super) ttt: u32,
    pub(super) last: bool,
    pub(super) data_sn: u32,
    pub(super) offset: u32,
    pub(super) bytes: u32,
    /// `None` if the digest did not match.
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

/// The output that has arrived.
#[derive(Debug, Default)]
struct Received {
    /// By offset, without overlap.
    pieces: Vec<(u32, Bytes)>,
    /// Small pieces that follow each other. They arrived last.
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

    /// Adds `data`. None of its range may have arrived before.
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

    /// Takes the first `bytes`, which must all have arrived.
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
pub(super) struct DataOutCollector {
    /// Bytes that the initiator is ready to send.
    expected: u32,
    /// All output, if it came with the command. That is so for most writes.
    whole: Option<Bytes>,
    received: Received,
    /// The sequence of unsolicited Data-Out PDUs that is still to come.
    unsolicited: Option<Burst>,
    bursts: Vec<Burst>,
    /// Bytes that the device wants. The collector solicits nothing before the device says so.
    wanted: Option<u32>,
    /// The initiator sent everything before this offset, or an R2T asked for it.
    solicited_end: u32,
    /// Ranges to solicit again.
    to_repeat: VecDeque<(u32, u32)>,
    recoveries: u32,
    failure: Option<u16>,
    handed: bool,
}

impl DataOutCollector {
    /// A command whose initiator expects to send `expected` bytes, and has sent `immediate` of
    /// them. At most `unsolicited` bytes come unsolicited. Unless `last`, more of them follow.
    pub(super) fn new(
        expected: u32,
        unsolicited: u32,
        immediate: Bytes,
        last: bool,
    ) -> DataOutCollector {
        let limit = unsolicited.min(expected);
        let mut collect = DataOutCollector {
            expected,
            whole: None,
            received: Received::default(),
            unsolicited: None,
            bursts: Vec::new(),
            wanted: None,
            solicited_end: 0,
            to_repeat: VecDeque::new(),
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
            collect.solicited_end = sent;
            // If nothing more comes, nothing looks for holes later.
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

    /// Makes the command fail after everything announced or solicited has come.
    pub(super) fn fail(&mut self, condition: u16) {
        self.failure.get_or_insert(condition);
    }

    /// Whether no output is on its way.
    pub(super) fn is_quiet(&self) -> bool {
        self.unsolicited.is_none() && self.bursts.is_empty()
    }

    /// R2Ts that were not answered in full.
    pub(super) fn bursts(&self) -> &[Burst] {
        &self.bursts
    }

    /// The device wants this many bytes, at most `expected`.
    pub(super) fn want(&mut self, bytes: u64) {
        self.wanted = Some(u32::try_from(bytes).unwrap_or(u32::MAX).min(self.expected));
    }

    /// Takes a Data-Out; false if it belongs to no sequence.
    pub(super) fn handle(&mut self, rules: DataOutRules, segment: DataOut) -> bool {
        let DataOut { ttt, last, data_sn, offset, bytes, data } = segment;
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
            // A range that has arrived before was sent twice. The first copy counts.
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
            // The sequence is complete, but lacks the F bit. No more PDUs of it will come.
            self.fail(condition::INCORRECT_AMOUNT_OF_DATA);
            self.close(rules, burst, solicited);
        }
        true
    }

    /// Handles the last PDU of a sequence.
    fn close(&mut self, rules: DataOutRules, burst: Burst, solicited: bool) {
        let end = if solicited {
            self.bursts.retain(|other| other.ttt != burst.ttt);
            burst.end
        } else {
            self.unsolicited = None;
            // Without order, only the arrived data shows the end of the sequence.
            let end = if rules.in_order { burst.next_offset } else { self.received.end() };
            self.solicited_end = self.solicited_end.max(end);
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
            self.to_repeat.push_back((hole, hole_end));
            from = hole_end;
        }
    }

    /// The next range to solicit, if the rules allow one now. The collector records it under this
    /// tag and number.
    pub(super) fn solicit(&mut self, rules: DataOutRules, ttt: u32, r2t_sn: u32) -> Option<Burst> {
        let wanted = self.wanted?;
        if self.unsolicited.is_some()
            || self.failure.is_some()
            || self.bursts.len() >= rules.max_outstanding.max(1)
        {
            return None;
        }
        let (offset, end) = loop {
            match self.to_repeat.pop_front() {
                Some((offset, _)) if offset >= wanted => {}
                Some((offset, end)) => {
                    let end = end.min(wanted);
                    if end - offset > rules.max_burst {
                        self.to_repeat.push_front((offset + rules.max_burst, end));
                    }
                    break (offset, end.min(offset.saturating_add(rules.max_burst)));
                }
                None if self.solicited_end >= wanted => return None,
                None => {
                    let offset = self.solicited_end;
                    self.solicited_end = wanted.min(offset.saturating_add(rules.max_burst));
                    break (offset, self.solicited_end);
                }
            }
        };
        let burst = Burst { ttt, r2t_sn, offset, end, next_offset: offset, data_sn: 0 };
        self.bursts.push(burst);
        Some(burst)
    }

    /// Solicits everything again that was solicited and has not arrived. A reassignment to another
    /// connection needs it (§7.2.2).
    pub(super) fn restart(&mut self) {
        let mut lost: Vec<(u32, u32)> =
            self.bursts.drain(..).map(|burst| (burst.offset, burst.end)).collect();
        if let Some(burst) = self.unsolicited.take() {
            self.solicited_end = burst.offset;
        }
        lost.append(&mut self.to_repeat.drain(..).collect());
        for (mut from, end) in lost {
            while let Some((hole, hole_end)) = self.received.hole(from, end) {
                self.to_repeat.push_back((hole, hole_end));
                from = hole_end;
            }
        }
        if let Some(wanted) = self.wanted
            && self.solicited_end < wanted
        {
            // Parts of an unsolicited sequence that was cut off may have arrived.
            let mut from = self.solicited_end;
            while let Some((hole, hole_end)) = self.received.hole(from, wanted) {
                if hole_end == wanted {
                    self.solicited_end = hole;
                    return;
                }
                self.to_repeat.push_back((hole, hole_end));
                from = hole_end;
            }
            self.solicited_end = wanted;
        }
    }

    /// Takes the output for the device, or the condition that makes the command fail. It returns it
    /// once.
    pub(super) fn finish(&mut self) -> Option<Result<Vec<Bytes>, u16>> {
        let wanted = self.wanted?;
        if self.handed || !self.is_quiet() {
            return None;
        }
        if let Some(condition) = self.failure {
            self.handed = true;
            return Some(Err(condition));
        }
        if !self.to_repeat.iter().all(|(offset, _)| *offset >= wanted)
            || self.solicited_end < wanted
        {
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
    /// Whether nothing of `from..to` has arrived. If data comes in order, only the end needs a
    /// check.
    fn is_free(&mut self, from: u32, to: u32, in_order: bool) -> bool {
        if in_order && from >= self.end() {
            return true;
        }
        self.hole(from, to) == Some((from, to))
    }

    /// The end of the last piece.
    fn end(&self) -> u32 {
        let pieces = self.pieces.last().map_or(0, |(start, data)| start + data.len() as u32);
        let tail = if self.tail.is_empty() { 0 } else { self.tail_offset + self.tail.len() as u32 };
        pieces.max(tail)
    }
}
