//! Tells the store early which acknowledged ranges are still to come, so that the loss of this host
//! would not go unnoticed.
//!
//! The announcer collects ranges for a moment and sends them ahead of the data. After an attach or
//! resume it announces all uncommitted ranges again from the dirty map, a frame at a time.

use crate::block::{Range, Seq, Time};
use crate::wire::link::{Announced, MAX_ANNOUNCE_ENTRIES};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long to collect ranges.
const COLLECT: Duration = Duration::from_millis(5);

/// Ranges to announce.
#[derive(Debug, Default)]
pub(super) struct Announcer {
    /// Disjoint ranges by first sector: end and last write.
    pending: BTreeMap<u64, (u64, Seq)>,
    since: Option<Time>,
    /// Announce everything again, from this sector on. `true` before the first frame.
    rest: Option<(u64, bool)>,
}

impl Announcer {
    /// Announces everything once.
    pub(super) fn begin() -> Announcer {
        Announcer { rest: Some((0, true)), ..Announcer::default() }
    }

    /// Adds a write of `range` with the number `seq`, the highest so far.
    pub(super) fn add(&mut self, now: Time, range: Range, seq: Seq) {
        self.since.get_or_insert(now);
        let (mut lba, mut end) = (range.lba, range.end());
        if self.pending.len() >= MAX_ANNOUNCE_ENTRIES {
            // The list is full: widen a neighbor instead of growing.
            if let Some((&before, &(before_end, _))) = self.pending.range(..=lba).next_back() {
                lba = before;
                end = end.max(before_end);
            } else if let Some((&after, &(after_end, _))) = self.pending.range(lba..).next() {
                end = end.max(after_end).max(after);
            }
        }
        while let Some((&other, &(other_end, _))) = self.pending.range(..=end).next_back() {
            if other_end < lba {
                break;
            }
            self.pending.remove(&other);
            lba = lba.min(other);
            end = end.max(other_end);
        }
        self.pending.insert(lba, (end, seq));
    }

    /// Forgets the collected ranges: the next announcement covers everything.
    pub(super) fn restart(&mut self) {
        self.pending.clear();
        self.since = None;
        self.rest = Some((0, true));
    }

    /// The time to send the collected ranges.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.since.map(|since| since.after(COLLECT))
    }

    pub(super) fn is_full(&self) -> bool {
        self.pending.len() >= MAX_ANNOUNCE_ENTRIES
    }

    /// Takes the uncommitted ones of the collected ranges.
    pub(super) fn take(&mut self, committed: Seq) -> Vec<Announced> {
        self.since = None;
        let entries = std::mem::take(&mut self.pending).into_iter();
        entries
            .filter(|(_, (_, seq))| *seq > committed)
            .map(|(lba, (end, seq))| Announced { range: Range::between(lba, end), seq })
            .collect()
    }

    /// The sector from which on everything is still to be announced.
    pub(super) fn untold(&self) -> Option<u64> {
        self.rest.map(|(lba, _)| lba)
    }

    /// Whether an announcement of everything is due, and no frame of it has gone out.
    pub(super) fn has_told_nothing(&self) -> bool {
        self.rest.is_some_and(|(_, first)| first)
    }

    /// Takes one frame of `uncommitted`, which starts at the sector where the last frame ended.
    /// Adjacent ranges become one entry. Also returns whether this is the first frame.
    pub(super) fn take_rest(
        &mut self,
        uncommitted: impl Iterator<Item = (Range, Seq)>,
    ) -> Option<(bool, Vec<Announced>)> {
        let (_, first) = self.rest.take()?;
        let mut entries: Vec<Announced> = Vec::new();
        for (range, seq) in uncommitted {
            let full = entries.len() == MAX_ANNOUNCE_ENTRIES;
            match entries.last_mut() {
                Some(last) if last.range.end() >= range.lba => {
                    last.range = Range::between(last.range.lba, range.end());
                    last.seq = last.seq.max(seq);
                }
                Some(last) if full => {
                    self.rest = Some((last.range.end(), false));
                    break;
                }
                _ => entries.push(Announced { range, seq }),
            }
        }
        Some((first, entries))
    }
}
