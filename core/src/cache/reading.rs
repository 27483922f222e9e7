//! Reads blocks from the file.

use super::blocks::{block_range, blocks_touched};
use super::sealed::Opened;
use super::version::VersionOf;
use super::{
    Cache, CachePhase, FAILURES_MAX, LINE_BLOCKS, Outcome, RECORD_BYTES, Reader, Reading, Unusable,
};
use crate::block::{BLOCK_BYTES, BLOCK_SECTORS, Range, SECTOR_BYTES, Time};
use crate::disk::DiskOperation;
use bytes::{Bytes, BytesMut};

impl Cache {
    /// Reads a run at byte `at` of the file, as [`Cache::cover`] has just found it.
    pub fn read(&mut self, what: Reader, range: Range, at: u64) {
        let stamps: Vec<u16> = blocks_touched(range)
            .map(|block| {
                let slot = self.index.find(block / LINE_BLOCKS);
                slot.and_then(|slot| self.index.stamp(slot, block % LINE_BLOCKS)).unwrap_or(0)
            })
            .collect();
        let id = self.id();
        let bytes = stamps.len() * RECORD_BYTES;
        self.reads.insert(id, Reading { what, range, stamps });
        self.out.push_back(DiskOperation::Read { id, file: 0, offset: at, bytes });
    }

    pub(super) fn was_read(
        &mut self,
        now: Time,
        reading: Reading,
        outcome: Result<Bytes, String>,
        version: VersionOf<'_>,
    ) -> Outcome {
        let Reading { what, range, stamps } = reading;
        let first = range.lba / BLOCK_SECTORS;
        let (failed, data) = match outcome {
            Ok(data) => (None, data),
            Err(error) => (Some(error), Bytes::new()),
        };
        let mut whole = BytesMut::new();
        let mut problem = None;
        for ((n, block), stamp) in (0..).zip(first..).zip(&stamps) {
            let record = data.get(n * RECORD_BYTES..(n + 1) * RECORD_BYTES).unwrap_or_default();
            let opened = self.open((block, *stamp), record, version);
            match &opened {
                Opened::Plain => {
                    if stamps.len() > 1 {
                        whole.extend_from_slice(&record[..BLOCK_BYTES as usize]);
                    }
                    continue;
                }
                Opened::Block(plain) => {
                    whole.extend_from_slice(plain);
                    continue;
                }
                Opened::Unknown | Opened::Outdated | Opened::Damaged => {}
            }
            problem = problem.or(Some(Unusable::Replaced));
            // If the cache replaced the block meanwhile, the slot has another stamp or none.
            let Some(slot) = self.slot_of(block, *stamp) else { continue };
            if let Opened::Unknown = opened {
                continue;
            }
            self.clear(now, slot, 1 << (block % LINE_BLOCKS));
            self.lack(block_range(block));
            if let Opened::Damaged = opened {
                self.counters.damaged_blocks += 1;
                let what = || "it is not the block written there".to_owned();
                problem = Some(Unusable::Damaged(failed.clone().unwrap_or_else(what)));
            }
        }
        if let Some(error) = failed {
            self.failures += 1;
            if self.failures >= FAILURES_MAX && self.phase != CachePhase::Off {
                let Outcome::Failed(error, mut reads) = self.fail(error) else {
                    return Outcome::None;
                };
                reads.push((what, range));
                return Outcome::Failed(error, reads);
            }
        }
        if let Some(problem) = problem {
            // The read counted as a hit, and was not one.
            self.counters.hit_bytes -= range.bytes().min(self.counters.hit_bytes);
            self.counters.miss_bytes += range.bytes();
            return Outcome::Read(what, range, Err(problem));
        }
        let blocks = if whole.is_empty() { data } else { whole.freeze() };
        let start = ((range.lba - first * BLOCK_SECTORS) * SECTOR_BYTES) as usize;
        Outcome::Read(what, range, Ok(blocks.slice(start..start + range.bytes() as usize)))
    }
}
