//! Telling the store early what has been acknowledged and is still to come, so that the loss of
//! this host would not go unnoticed.
//!
//! Ranges are collected for a moment and sent ahead of the data. After an attach or resume
//! everything that is not committed is told again from the dirty map, a frame at a time.

use crate::block::{Range, Seq, Time};
use crate::wire::link::{Announced, MAX_ANNOUNCE_ENTRIES};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long ranges are collected.
const COLLECT: Duration = Duration::from_millis(5);

/// Ranges to announce.
#[derive(Debug, Default)]
pub(super) struct Announcer {
    /// Disjoint ranges by first sector: end and last write.
    pending: BTreeMap<u64, (u64, Seq)>,
    since: Option<Time>,
    /// Everything is told again, from this sector on; `true` if nothing was sent yet.
    rest: Option<(u64, bool)>,
}

impl Announcer {
    /// Everything is told once.
    pub(super) fn begin() -> Announcer {
        Announcer { rest: Some((0, true)), ..Announcer::default() }
    }

    /// A write of `range` has been given the number `seq`, the highest so far.
    pub(super) fn add(&mut self, now: Time, range: Range, seq: Seq) {
        self.since.get_or_insert(now);
        let (mut lba, mut end) = (range.lba, range.end());
        if self.pending.len() >= MAX_ANNOUNCE_ENTRIES {
            // Full and not sent yet: widen a neighbour instead of growing.
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

    /// Forgets what was collected: it will be told again as a whole.
    pub(super) fn restart(&mut self) {
        self.pending.clear();
        self.since = None;
        self.rest = Some((0, true));
    }

    /// When what was collected has to be sent.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.since.map(|since| since.after(COLLECT))
    }

    pub(super) fn is_full(&self) -> bool {
        self.pending.len() >= MAX_ANNOUNCE_ENTRIES
    }

    /// Takes the collected ranges that are not committed.
    pub(super) fn take(&mut self, committed: Seq) -> Vec<Announced> {
        self.since = None;
        let entries = std::mem::take(&mut self.pending).into_iter();
        entries
            .filter(|(_, (_, seq))| *seq > committed)
            .map(|(lba, (end, seq))| Announced { range: Range::between(lba, end), seq })
            .collect()
    }

    /// The sector from which on everything is still to be told.
    pub(super) fn untold(&self) -> Option<u64> {
        self.rest.map(|(lba, _)| lba)
    }

    /// Whether everything is to be told, and nothing of it was.
    pub(super) fn has_told_nothing(&self) -> bool {
        self.rest.is_some_and(|(_, first)| first)
    }

    /// One frame's worth of `uncommitted`, which starts at the sector where the last one ended.
    /// Adjacent ranges become one entry. Gives whether this is the first frame.
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
