//! Reads the log: the segments after a root, or after the known ones, in order.
//!
//! The replay reads a few segments ahead of the one to apply. The log ends at the first number
//! without an object, void numbers apart. Later segments may exist there: a dead engine had them on
//! their way. They do not count. If one of them proves that the absent one was durable, that one is
//! missing.

use super::catalog;
use super::event::OpenError;
use super::log::LogState;
use super::object::GetError;
use super::segment::{self, HEADER_BYTES, Header, IN_FLIGHT_MAX, Segment};
use crate::block::VolumeId;
use bytes::Bytes;
use std::collections::BTreeMap;

/// The number of segments that an opening volume reads at once. It sees the segment after void
/// numbers, so that the first segment of an engine cannot be missing unnoticed.
pub(super) const OPEN_WINDOW: u64 = IN_FLIGHT_MAX + 1;

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
    header: Option<Header>,
    /// A damaged or missing segment gets a second look.
    again: bool,
}

impl SegmentRead {
    /// Whether the read of its header is in progress.
    fn is_unknown(&self) -> bool {
        self.header.is_none() && matches!(self.progress, Progress::Reading)
    }
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
    /// The last segment before the replay.
    base: u64,
    next: u64,
    /// The number that the last step was about.
    returned: u64,
    proves: bool,
    window: u64,
    slots: BTreeMap<u64, SegmentRead>,
    reads: Vec<(u64, Part)>,
    pub applied: u64,
}

impl Replay {
    /// Reads the segments after that state of the log. `proves`: the segments prove those before
    /// them.
    pub fn after(log: &LogState, proves: bool, window: u64) -> Replay {
        Replay {
            volume: log.volume,
            base: log.number,
            next: log.next_number(),
            returned: log.number,
            proves,
            window,
            slots: BTreeMap::new(),
            reads: Vec::new(),
            applied: 0,
        }
    }

    /// The last segment before the replay.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Parts of segments to read now.
    pub fn reads(&mut self) -> Vec<(u64, Part)> {
        for number in self.next..self.next.saturating_add(self.window) {
            self.slots.entry(number).or_insert_with(|| {
                self.reads.push((number, Part::Header));
                SegmentRead { progress: Progress::Reading, header: None, again: false }
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
                    entry.header = Some(header);
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
        (self.next, self.applied) = (self.returned, self.applied - 1);
        let header = Some(segment.header);
        let progress = Progress::Ready(segment);
        self.slots.insert(self.next, SegmentRead { progress, header, again: false });
    }

    /// Looks at the leftovers that the next segment makes void, as far as the replay has asked for
    /// them. The engine before wrote them. If one of them proves the next segment, that is not the
    /// segment that once was there. A replica may lack a segment that its leftovers prove.
    fn check_leftovers(&self) -> Option<ReplayStep> {
        if !self.proves {
            return None;
        }
        let entry = self.slots.get(&self.next)?;
        let header = entry.header.filter(|_| matches!(entry.progress, Progress::Ready(_)))?;
        let header = Some(header).filter(|header| header.number == self.next)?;
        let mut void = self.slots.range(self.next + 1..header.number_after());
        if void.clone().any(|(_, entry)| entry.is_unknown()) {
            return Some(ReplayStep::Wait);
        }
        let contradicts = |header: Header| header.number_durable() >= self.next;
        let (number, _) = void.find(|(_, entry)| entry.header.is_some_and(contradicts))?;
        let key = catalog::segment_key(self.volume, *number);
        let reason = "it follows another segment than the one before it".to_owned();
        Some(ReplayStep::Failed(OpenError::Damaged { key, reason }))
    }

    pub fn step(&mut self) -> ReplayStep {
        if let Some(step) = self.check_leftovers() {
            return step;
        }
        let key = || catalog::segment_key(self.volume, self.next);
        let later = self.slots.range(self.next + 1..);
        let reading = later.clone().any(|(_, entry)| matches!(entry.progress, Progress::Reading));
        let proves = |entry: &SegmentRead| match &entry.progress {
            // It may be the one that does.
            Progress::Damaged(_) => true,
            Progress::Reading | Progress::Ready(_) | Progress::Absent => {
                entry.header.is_some_and(|header| {
                    header.number >= self.next + IN_FLIGHT_MAX
                        || self.proves && header.number_durable() >= self.next
                })
            }
        };
        let missing = later.clone().any(|(_, entry)| proves(entry));
        let Some(entry) = self.slots.get_mut(&self.next) else { return ReplayStep::Wait };
        match &entry.progress {
            Progress::Reading => ReplayStep::Wait,
            Progress::Ready(_) => {
                let Some(SegmentRead { progress: Progress::Ready(segment), .. }) =
                    self.slots.remove(&self.next)
                else {
                    return ReplayStep::Wait;
                };
                self.returned = self.next;
                self.next = segment.header.number_after();
                self.applied += 1;
                self.window = OPEN_WINDOW;
                self.slots.retain(|number, _| *number >= self.next);
                // Numbers that had no object a while ago may have one by now.
                if matches!(
                    self.slots.get(&self.next),
                    Some(SegmentRead { progress: Progress::Absent, again: false, .. })
                ) {
                    self.slots.remove(&self.next);
                }
                ReplayStep::Apply(segment)
            }
            Progress::Damaged(reason) => {
                ReplayStep::Failed(OpenError::Damaged { key: key(), reason: reason.clone() })
            }
            Progress::Absent if reading => ReplayStep::Wait,
            Progress::Absent if !missing => ReplayStep::End,
            // A rival may have written this segment and later ones since. The replay has seen a
            // later one now that proves it. If this one is still absent, it is missing.
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
