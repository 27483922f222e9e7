//! The plan of a read: the parts that are available, and the sources of the others.

use super::ReadSlot;
use crate::block::{Range, ReadPiece, SECTOR_BYTES, Seq};
use crate::host::cache::{self, Reader};
use crate::host::dirty::RecordPlace;
use crate::host::journal::{BytesAt, Journal};
use crate::host::journal_reads::JournalPart;
use crate::host::pieces::{PendingPart, pieces};
use crate::host::readahead;
use crate::host::status::Counters;
use crate::record::{self, Kind};
use crate::wire::link::{MAX_READ_SECTORS, RequestId};

/// The slots of a read, and the requests that fill the pending ones.
#[derive(Debug, Default)]
pub(in crate::host) struct ReadPlan {
    read: u64,
    pub(in crate::host) slots: Vec<ReadSlot>,
    /// In the journal's files.
    pub(in crate::host) on_disk: Vec<JournalPart>,
    /// In memory, to verify or unpack.
    pub(in crate::host) in_memory: Vec<JournalPart>,
    /// In the cache, at these bytes of its file.
    pub(in crate::host) cached: Vec<(Reader, Range, u64)>,
    /// At the store.
    pub(in crate::host) absent: Vec<PendingPart>,
    /// At the store, after the commit of these numbers.
    pub(in crate::host) uncommitted: Vec<(Seq, PendingPart)>,
    /// On its way as a read-ahead.
    pub(in crate::host) coming: Vec<(RequestId, PendingPart)>,
    /// Content from the read-ahead that is of use now.
    pub(in crate::host) used: Vec<(Range, ReadPiece)>,
}

impl ReadPlan {
    /// Of the read with this number.
    pub(in crate::host) fn new(read: u64) -> ReadPlan {
        ReadPlan { read, ..ReadPlan::default() }
    }

    /// The next slot, which is pending.
    fn wait(&mut self) -> usize {
        self.slots.push(ReadSlot::Pending);
        self.slots.len() - 1
    }

    fn part(&mut self, range: Range) -> PendingPart {
        PendingPart { read: self.read, slot: self.wait(), range }
    }

    /// The journal has the next part. Takes data in memory as it is if it is `trusted`.
    pub(in crate::host) fn add_record(
        &mut self,
        (wanted, place): (Range, RecordPlace),
        journal: &Journal,
        trusted: bool,
        counters: &mut Counters,
    ) {
        if place.kind() == Kind::Staged {
            // The store has it, and only the store knows what it is.
            let part = self.part(wanted);
            return self.uncommitted.push((place.seq, part));
        }
        if place.kind().is_marker() {
            counters.memory_hit_bytes += wanted.bytes();
            return self.slots.push(ReadSlot::One(ReadPiece::Zeroes(wanted.sectors)));
        }
        let packed = place.kind() == Kind::Packed;
        let (skip, bytes) = if packed {
            (0, place.packed_bytes())
        } else {
            let record = place.record(wanted);
            let skip = record::HEADER_BYTES as u64
                + 4 * record.blocks()
                + (wanted.lba - record.lba) * SECTOR_BYTES;
            (skip, wanted.bytes() as usize)
        };
        match journal.locate(place.addr + skip, bytes) {
            BytesAt::Memory(bytes) if !packed && trusted => {
                counters.memory_hit_bytes += wanted.bytes();
                self.slots.push(ReadSlot::One(ReadPiece::Data(bytes)));
            }
            BytesAt::Memory(_) => {
                counters.memory_hit_bytes += wanted.bytes();
                let slot = self.wait();
                self.in_memory.push(JournalPart { slot, place, wanted });
            }
            BytesAt::Disk { .. } => {
                counters.journal_hit_bytes += wanted.bytes();
                let slot = self.wait();
                self.on_disk.push(JournalPart { slot, place, wanted });
            }
            // Committed and dropped from memory, never on disk: the store has it.
            BytesAt::Gone => {
                debug_assert!(false, "addresses at or above the floor are readable");
                let part = self.part(wanted);
                self.absent.push(part);
            }
        }
    }

    /// The next part comes from the read-ahead, present or under way. False if it does not. With
    /// `keeps`, notes useful content for the cache.
    pub(in crate::host) fn add_ahead(
        &mut self,
        part: Range,
        found: readahead::AheadFound,
        keeps: bool,
        counters: &mut Counters,
    ) -> bool {
        match found {
            readahead::AheadFound::Here(piece) => {
                counters.readahead_hit_bytes += part.bytes();
                if keeps {
                    self.used.push((part, piece.clone()));
                }
                self.slots.push(ReadSlot::One(piece));
            }
            readahead::AheadFound::Coming(request) => {
                counters.readahead_wait_bytes += part.bytes();
                let part = self.part(part);
                self.coming.push((request, part));
            }
            readahead::AheadFound::Absent => return false,
        }
        true
    }

    /// The next part comes from the store. `found` is the state of it in the cache.
    pub(in crate::host) fn add_cached(
        &mut self,
        part: Range,
        found: cache::Found,
        counters: &mut Counters,
    ) {
        match found {
            cache::Found::Zero => {
                counters.cache_hit_bytes += part.bytes();
                self.slots.push(ReadSlot::One(ReadPiece::Zeroes(part.sectors)));
            }
            cache::Found::At(at) => {
                counters.cache_hit_bytes += part.bytes();
                let PendingPart { read, slot, range } = self.part(part);
                self.cached.push((Reader { read, slot }, range, at));
            }
            cache::Found::Absent => {
                for part in pieces(part, MAX_READ_SECTORS) {
                    let part = self.part(part);
                    self.absent.push(part);
                }
            }
        }
    }
}
