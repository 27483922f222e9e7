//! Reads the log: the segments after a root, or after the known ones, in order.
//!
//! The replay reads a few segments ahead of the one to apply. The log ends at the first number
//! without an object. If a later segment exists, a segment is missing.

use super::catalog;
use super::event::OpenError;
use super::object::GetError;
use super::segment::{self, HEADER_BYTES, Header, Segment};
use crate::block::VolumeId;
use bytes::Bytes;
use std::collections::BTreeMap;

/// The number of segments that an opening volume reads at once.
pub(super) const OPEN_WINDOW: u64 = 8;

/// The part of a segment that a read is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Header,
    Tail(Header, u32),
}

#[derive(Debug)]
enum Progress {
    Reading,
    Ready(Box<Segment>),
    Absent,
    Damaged(String),
}

#[derive(Debug)]
struct SegmentRead {
    progress: Progress,
    /// A damaged or missing segment gets a second look.
    again: bool,
}

/// The next step.
pub(super) enum ReplayStep {
    /// Apply this one; the next call asks for the one after it.
    Apply(Box<Segment>),
    /// Reads are under way.
    Wait,
    /// That was all.
    End,
    Failed(OpenError),
}

/// Reads segments from some number on.
#[derive(Debug)]
pub(super) struct Replay {
    volume: VolumeId,
    next: u64,
    window: u64,
    slots: BTreeMap<u64, SegmentRead>,
    reads: Vec<(u64, Part)>,
    pub applied: u64,
}

impl Replay {
    pub fn new(volume: VolumeId, next: u64, window: u64) -> Replay {
        Replay { volume, next, window, slots: BTreeMap::new(), reads: Vec::new(), applied: 0 }
    }

    /// Parts of segments to read now.
    pub fn reads(&mut self) -> Vec<(u64, Part)> {
        for number in self.next..self.next.saturating_add(self.window) {
            self.slots.entry(number).or_insert_with(|| {
                self.reads.push((number, Part::Header));
                SegmentRead { progress: Progress::Reading, again: false }
            });
        }
        std::mem::take(&mut self.reads)
    }

    pub fn range(part: Part) -> std::ops::Range<u64> {
        match part {
            Part::Header => 0..HEADER_BYTES as u64,
            Part::Tail(header, _) => header.tail(),
        }
    }

    /// Takes the result of the read of a part. The queue has already asked a failing object store
    /// again.
    pub fn handle(&mut self, number: u64, part: Part, result: Result<Bytes, GetError>) {
        let Some(entry) = self.slots.get_mut(&number) else { return };
        let parsed = match (result, part) {
            (Err(_), Part::Header) => {
                entry.progress = Progress::Absent;
                return;
            }
            (Err(_), Part::Tail(..)) => Err("it vanished while it was read".to_owned()),
            (Ok(bytes), Part::Header) => match segment::parse_header(&bytes) {
                Ok((header, crc)) => {
                    self.reads.push((number, Part::Tail(header, crc)));
                    return;
                }
                Err(error) => Err(error.to_string()),
            },
            (Ok(bytes), Part::Tail(header, crc)) => {
                segment::parse_tail(header, crc, &bytes).map_err(|error| error.to_string())
            }
        };
        match parsed {
            Ok(segment) => entry.progress = Progress::Ready(Box::new(segment)),
            Err(_) if !entry.again => {
                entry.again = true;
                self.reads.push((number, Part::Header));
            }
            Err(reason) => entry.progress = Progress::Damaged(reason),
        }
    }

    /// The next step returns this last segment again.
    pub fn put_back(&mut self, segment: Box<Segment>) {
        (self.next, self.applied) = (self.next - 1, self.applied - 1);
        self.slots
            .insert(self.next, SegmentRead { progress: Progress::Ready(segment), again: false });
    }

    pub fn step(&mut self) -> ReplayStep {
        let key = || catalog::segment_key(self.volume, self.next);
        let later = self.slots.range(self.next + 1..);
        let reading = later.clone().any(|(_, entry)| matches!(entry.progress, Progress::Reading));
        let exists = later.clone().any(|(_, entry)| !matches!(entry.progress, Progress::Absent));
        let Some(entry) = self.slots.get_mut(&self.next) else { return ReplayStep::Wait };
        match &entry.progress {
            Progress::Reading => ReplayStep::Wait,
            Progress::Ready(_) => {
                let Some(SegmentRead { progress: Progress::Ready(segment), .. }) =
                    self.slots.remove(&self.next)
                else {
                    return ReplayStep::Wait;
                };
                self.next += 1;
                self.applied += 1;
                self.window = OPEN_WINDOW;
                // Numbers that had no object a while ago may have one by now.
                if matches!(
                    self.slots.get(&self.next),
                    Some(SegmentRead { progress: Progress::Absent, again: false })
                ) {
                    self.slots.remove(&self.next);
                }
                ReplayStep::Apply(segment)
            }
            Progress::Damaged(reason) => {
                ReplayStep::Failed(OpenError::Damaged { key: key(), reason: reason.clone() })
            }
            Progress::Absent if reading => ReplayStep::Wait,
            Progress::Absent if !exists => ReplayStep::End,
            // A rival may have written this segment and later ones since. The replay has seen a
            // later one now. If this one is still absent, it is missing.
            Progress::Absent if !entry.again => {
                entry.again = true;
                entry.progress = Progress::Reading;
                self.reads.push((self.next, Part::Header));
                ReplayStep::Wait
            }
            Progress::Absent => ReplayStep::Failed(OpenError::Missing { key: key() }),
        }
    }
}
