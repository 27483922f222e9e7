//! Writes on their way into the journal: cut into records, held back while there is no room,
//! acknowledged when all of them is in its files.

use super::config::{Durability, Mode};
use super::dirty::Place;
use super::volume::{Link, Volume};
use crate::block::{
    BLOCK_SECTORS, Range, Reply, SECTOR_BYTES, Seq, Staged, StagedData, StagedPiece,
};
use crate::pack::is_zero;
use crate::record::{self, Kind, packed};
use crate::wire::link::SecondState;
use bytes::Bytes;

/// A write that waits for room; in parts, since it may be larger than the memory.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) id: u64,
    pub(super) content: Content,
    pub(super) fua: bool,
    /// Sectors, or staged pieces, appended so far.
    pub(super) done: u64,
}

/// What a write brings.
#[derive(Debug)]
pub(super) enum Content {
    Data(Range, Bytes),
    Marker(Kind, Range),
    Staged(Vec<StagedPiece>),
}

/// What of a write becomes its next record, or, if it is packed, its next records: together they are
/// there or not.
struct Part<'a> {
    kind: Kind,
    range: Range,
    data: &'a [u8],
    staged: Option<StagedData>,
    /// What it adds to [`Waiting::done`].
    step: u64,
}

impl Waiting {
    /// The next record, data in at most `longest` sectors; `None` when all is appended.
    fn next(&self, longest: u64) -> Option<Part<'_>> {
        match &self.content {
            Content::Data(range, data) => {
                let lba = range.lba + self.done;
                // Cut where the checksums are cut.
                let end = ((lba + longest) / BLOCK_SECTORS * BLOCK_SECTORS).min(range.end());
                let range = Range::between(lba, end);
                let skip = (self.done * SECTOR_BYTES) as usize;
                let data = data.get(skip..skip + range.bytes() as usize)?;
                let step = range.sectors;
                Some(Part { kind: Kind::Data, range, data, staged: None, step })
            }
            Content::Marker(kind, range) => {
                let (kind, step) = (*kind, range.sectors);
                Some(Part { kind, range: *range, data: &[], staged: None, step })
                    .filter(|part| self.done < part.step)
            }
            Content::Staged(pieces) => {
                let piece = pieces.get(self.done as usize)?;
                let (kind, staged) = match piece.content {
                    Staged::Data(staged) => (Kind::Staged, Some(staged)),
                    Staged::Zero => (Kind::Zero, None),
                    Staged::Hole => (Kind::Discard, None),
                };
                Some(Part { kind, range: piece.range, data: &[], staged, step: 1 })
            }
        }
        .filter(|part| !part.range.is_empty())
    }
}

/// `range` in the parts of at most `longest` sectors that become records of their own, cut where the
/// checksums are cut.
fn records(range: Range, longest: u64) -> impl Iterator<Item = Range> {
    let longest = longest.max(BLOCK_SECTORS);
    let mut at = range.lba;
    std::iter::from_fn(move || {
        let end = at.saturating_add(longest) / BLOCK_SECTORS * BLOCK_SECTORS;
        let part = Range::between(at, end.min(range.end()));
        at = part.end();
        (!part.is_empty()).then_some(part)
    })
}

impl Volume {
    pub(super) fn write(&mut self, mut write: Waiting) {
        if self.waiting.is_empty() && self.append(&mut write) {
            self.acknowledge(&write);
        } else {
            self.waiting.push_back(write);
        }
    }

    /// Lets writes in that waited, in order.
    pub(super) fn admit(&mut self) {
        while let Some(mut write) = self.waiting.pop_front() {
            if !self.append(&mut write) {
                return self.waiting.push_front(write);
            }
            self.acknowledge(&write);
        }
    }

    /// All of the write is in the journal.
    fn acknowledge(&mut self, write: &Waiting) {
        let seq = self.journal.next_seq() - 1;
        let far = write.fua && self.config.durability == Durability::Replica;
        if self.config.mode == Mode::WriteThrough && !far {
            self.commit_waiters.push_back((write.id, seq));
        } else if write.fua {
            self.wait_until_durable(write.id, seq);
        } else if self.journal.is_memory_only() {
            self.reply(write.id, Ok(Reply::Done));
        } else {
            self.written_waiters.push_back((write.id, seq));
        }
    }

    /// Replies once `seq` is durable.
    pub(super) fn wait_until_durable(&mut self, id: u64, seq: Seq) {
        if self.config.durability == Durability::Replica {
            if seq <= self.replicated() {
                self.reply(id, Ok(Reply::Done));
            } else {
                self.replica_waiters.push_back((id, seq));
            }
            return;
        }
        let at_store = self.config.durability == Durability::Store || self.journal.is_memory_only();
        let reached =
            if at_store { self.committed } else { self.journal.stable_seq().max(self.committed) };
        // In write-through nothing is acknowledged that is not committed.
        if seq <= reached || self.config.mode == Mode::WriteThrough {
            self.reply(id, Ok(Reply::Done));
        } else if at_store {
            self.commit_waiters.push_back((id, seq));
        } else {
            self.stable_waiters.push_back((id, seq));
        }
    }

    /// The last number that is at all places where the store keeps its objects.
    pub(super) fn replicated(&self) -> Seq {
        match self.second {
            SecondState::None => self.committed,
            SecondState::Behind => 0,
            SecondState::InStep(seq) => seq.min(self.committed),
        }
    }

    /// Appends as much of a write as there is room for; true if that is all of it.
    pub(super) fn append(&mut self, write: &mut Waiting) -> bool {
        let longest = self.journal.record_sectors_max();
        while let Some(Part { kind, range, data, staged, step }) = write.next(longest) {
            // What is all zeroes needs no payload, whether data is packed or not.
            let zero = kind == Kind::Data && is_zero(data);
            let kind = if zero { Kind::Zero } else { kind };
            let (volume, epoch) = (self.volume, self.epoch);
            let packs = kind == Kind::Data && self.packer.is_active();
            let longest = if packs { self.config.packed_sectors_max } else { u64::MAX };
            let header = record::Header { kind, epoch, seq: 0, range, staged, packed_bytes: 0 };
            let (count, bytes) = if packs {
                let parts = records(range, longest).map(packed::bytes_max);
                parts.fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes))
            } else {
                (1, header.record_bytes())
            };
            // Room for all records of the part in one frame: a frame is there as a whole or not at all,
            // in the journal and in a batch.
            let room =
                self.dirty.make_room(count, self.config.map_entries_max, self.journal.tail())
                    && self.journal.make_room(self.now, bytes as u64);
            if !room {
                return false;
            }
            let mut rest = data;
            for range in records(range, longest) {
                let kind = if packs { Kind::Packed } else { kind };
                let Some((addr, seq, out)) = self.journal.append(kind) else { return false };
                let mut header = record::Header { kind, seq, range, ..header };
                match (kind, staged) {
                    (Kind::Packed, _) => {
                        let (data, after) = rest.split_at(range.bytes() as usize);
                        rest = after;
                        header = self.packer.pack(epoch, seq, range, data, out);
                    }
                    (Kind::Data, _) => record::encode_data(volume, epoch, seq, range, data, out),
                    (_, Some(staged)) => {
                        record::encode_staged(volume, epoch, seq, range, staged, out)
                    }
                    (_, None) => record::encode_marker(volume, kind, epoch, seq, range, out),
                }
                let place = Place::new(addr, &header);
                self.dirty.insert(range, place, self.journal.floor());
                self.written(range, seq);
            }
            self.packer.counters.zero_bytes += if zero { range.bytes() } else { 0 };
            write.done += step;
        }
        true
    }

    /// A range has new content.
    fn written(&mut self, range: Range, seq: Seq) {
        self.readahead.forget(range);
        self.caching.forget(self.now, range);
        self.reads.spoil(range, self.caching.is_on() || self.versions.is_on());
        self.copies.written(range);
        self.rewriting.written(range);
        if self.config.mode != Mode::WriteThrough && self.link == Link::Up {
            self.announcer.add(self.now, range, seq);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{MAX_RECORD_SECTORS, MAX_WHOLE_SECTORS};

    /// What is promised to be there as a whole or not at all is one record.
    #[test]
    fn a_write_of_the_longest_whole_length_is_not_cut() {
        for lba in 0..2 * BLOCK_SECTORS {
            let range = Range::new(lba, MAX_WHOLE_SECTORS);
            let data = Bytes::from(vec![0; range.bytes() as usize]);
            let write = Waiting { id: 0, content: Content::Data(range, data), fua: false, done: 0 };
            let first = write.next(MAX_RECORD_SECTORS).map(|part| part.range);
            assert_eq!(first, Some(range));
        }
    }
}
