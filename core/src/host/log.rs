//! The writes of a volume. The journal holds them. The map says where the newest content lies. The
//! log also knows how far the store has committed them.
//!
//! Promises: the map names records that the journal has, in the order of all writes. A range counts
//! as the store's only after the commit of every write to it. If a write becomes several packed
//! records, one frame holds them all. It must not know the requests that wait for a write, nor
//! other copies of a range.

use super::acknowledge::Progress;
use super::context::Context;
use super::dirty::{DirtyMap, RecordPlace};
use super::io::{DiskOperation, Event};
use super::journal::{FinishedOperation, Journal, Recovered};
use super::journal_reads::{JournalPart, JournalRead, JournalReads};
use super::outputs::Outputs;
use super::writes::{PendingWrite, WritePart, records};
use crate::block::{Range, Seq};
use crate::pack::{Packer, is_zero};
use crate::record::{self, Header, Kind, packed};
use crate::wire::link::{Attached, Moment};
use bytes::Bytes;

/// See the module.
#[derive(Debug)]
pub(super) struct WriteLog {
    journal: Journal,
    dirty: DirtyMap,
    /// Reads of the journal's files that are under way.
    reads: JournalReads,
    /// The store has all writes up to this number.
    committed: Seq,
}

impl WriteLog {
    /// Goes on after a recovery. Its map counts only if nobody else had the volume since.
    pub(super) fn new(
        context: &Context,
        recovered: Option<Recovered>,
        memory_only: bool,
        attached: &Attached,
    ) -> WriteLog {
        let (committed, config) = (attached.committed, &context.config);
        let journal = Journal::new(
            context.now,
            recovered.as_ref(),
            memory_only,
            attached.epoch,
            committed,
            config.memory_bytes,
        );
        let mut dirty = recovered
            .filter(|recovered| recovered.is_current(attached))
            .map(|recovered| recovered.map)
            .unwrap_or_default();
        // A journal may hold more than it needs.
        dirty.make_room(0, config.map_entries_max, journal.tail());
        WriteLog { journal, dirty, reads: JournalReads::default(), committed }
    }

    // --- inputs ---

    /// Appends as much of a write as has room. True if that is all of it. Calls `appended` with the
    /// header of each record, whose range has new content from then on.
    pub(super) fn append(
        &mut self,
        context: &Context,
        packer: &mut Packer,
        write: &mut PendingWrite,
        mut appended: impl FnMut(&Header),
    ) -> bool {
        let Context { now, config, volume, epoch, .. } = context;
        let (volume, epoch) = (*volume, *epoch);
        let longest = self.journal.record_sectors_max();
        while let Some(WritePart { kind, range, data, staged, step }) = write.next(longest) {
            // Zeroes need no payload, packed or not.
            let zero = kind == Kind::Data && is_zero(data);
            let kind = if zero { Kind::Zero } else { kind };
            let packs = kind == Kind::Data && packer.is_active();
            let longest = if packs { config.packed_sectors_max } else { u64::MAX };
            let header = Header { kind, epoch, seq: 0, range, staged, packed_bytes: 0 };
            let (count, bytes) = if packs {
                let parts = records(range, longest).map(packed::bytes_max);
                parts.fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes))
            } else {
                (1, header.record_bytes())
            };
            // One frame needs room for all records of the part. A frame is there as a whole or not
            // at all, in the journal and in a batch.
            let room = self.dirty.make_room(count, config.map_entries_max, self.journal.tail())
                && self.journal.make_room(*now, bytes as u64);
            if !room {
                return false;
            }
            let mut rest = data;
            for range in records(range, longest) {
                let kind = if packs { Kind::Packed } else { kind };
                let Some((addr, seq, out)) = self.journal.append() else { return false };
                let mut header = Header { kind, seq, range, ..header };
                match (kind, staged) {
                    (Kind::Packed, _) => {
                        let (data, after) = rest.split_at(range.bytes() as usize);
                        rest = after;
                        header = packer.pack(epoch, seq, range, data, out);
                    }
                    (Kind::Data, _) => record::encode_data(volume, epoch, seq, range, data, out),
                    (_, Some(staged)) => {
                        record::encode_staged(volume, epoch, seq, range, staged, out);
                    }
                    (_, None) => record::encode_marker(volume, kind, epoch, seq, range, out),
                }
                let place = RecordPlace::new(addr, &header);
                self.dirty.insert(range, place, self.journal.floor());
                appended(&header);
            }
            packer.counters.zero_bytes += if zero { range.bytes() } else { 0 };
            write.advance(step);
        }
        true
    }

    /// The store has everything up to `seq`.
    pub(super) fn commit(&mut self, seq: Seq) {
        self.committed = seq;
        self.journal.commit(seq);
    }

    /// The record at `addr` is damaged in a range that the store has.
    pub(super) fn forget(&mut self, range: Range, addr: u64) {
        self.dirty.forget(range, addr);
    }

    // --- what is where ---

    /// The place of the newest content of a range, in order and without gaps. `None` for parts that
    /// only the store can give.
    pub(super) fn newest(
        &self,
        range: Range,
    ) -> impl Iterator<Item = (Range, Option<RecordPlace>)> + '_ {
        self.dirty.newest(range, self.journal.floor(), self.committed)
    }

    /// Like [`WriteLog::newest`], with committed staged records.
    pub(super) fn cover(
        &self,
        range: Range,
    ) -> impl Iterator<Item = (Range, Option<RecordPlace>)> + '_ {
        self.dirty.cover(range, self.journal.floor())
    }

    /// The parts of a range without uncommitted writes.
    pub(super) fn at_store(&self, range: Range) -> impl Iterator<Item = Range> + '_ {
        let committed = self.committed;
        self.cover(range)
            .filter(move |(_, place)| place.is_none_or(|place| place.seq <= committed))
            .map(|(part, _)| part)
    }

    /// The parts of a range with uncommitted writes.
    pub(super) fn not_at_store(&self, range: Range) -> impl Iterator<Item = Range> + '_ {
        let committed = self.committed;
        self.cover(range)
            .filter(move |(_, place)| place.is_some_and(|place| place.seq > committed))
            .map(|(part, _)| part)
    }

    /// The parts of a range whose newest content is in record `seq`.
    pub(super) fn newest_of(&self, range: Range, seq: Seq) -> impl Iterator<Item = Range> + '_ {
        self.cover(range)
            .filter(move |(_, place)| place.is_some_and(|place| place.seq == seq))
            .map(|(part, _)| part)
    }

    /// All uncommitted ranges at or after a sector, with their numbers.
    pub(super) fn uncommitted(&self, lba: u64) -> impl Iterator<Item = (Range, Seq)> + '_ {
        self.dirty.uncommitted(lba, self.journal.tail())
    }

    pub(super) fn map_entries(&self) -> u64 {
        self.dirty.len() as u64
    }

    // --- how far it is ---

    pub(super) fn progress(&self) -> Progress {
        Progress {
            last: self.last(),
            written: self.journal.written_seq().max(self.committed),
            stable: self.stable(),
            committed: self.committed,
            memory_only: self.journal.is_memory_only(),
        }
    }

    /// The last number given to a write.
    pub(super) fn last(&self) -> Seq {
        self.journal.next_seq() - 1
    }

    /// The last number on stable storage, here or at the store.
    pub(super) fn stable(&self) -> Seq {
        self.journal.stable_seq().max(self.committed)
    }

    /// The last number that the store has committed.
    pub(super) fn committed(&self) -> Seq {
        self.committed
    }

    pub(super) fn is_all_committed(&self) -> bool {
        self.committed + 1 >= self.journal.next_seq()
    }

    /// The last committed write, as a moment in the life of the volume.
    pub(super) fn moment(&self, context: &Context) -> Moment {
        Moment { epoch: context.epoch, host: context.host, seq: self.committed }
    }

    // --- the journal ---

    /// The journal, to look at.
    pub(super) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Takes the outcome of a write or sync.
    pub(super) fn finish(&mut self, id: u64, error: Option<String>) -> FinishedOperation {
        self.journal.finish(id, error)
    }

    /// The next write or sync of the journal's files. Numbers up to `wanted` have to become stable.
    /// `id` is the number of the last operation.
    pub(super) fn next_operation(
        &mut self,
        context: &Context,
        wanted: Seq,
        id: &mut u64,
    ) -> Option<DiskOperation> {
        self.journal.next_operation(context.now, wanted, id)
    }

    /// Writes nothing more to the journal's files.
    pub(super) fn latch(&mut self) {
        self.journal.latch();
    }

    /// Closes the open frame.
    pub(super) fn seal(&mut self) {
        self.journal.seal();
    }

    /// Drops the damaged copy in memory of an address, if the disk has another one. False if not.
    pub(super) fn use_disk(
        &mut self,
        addr: u64,
        range: Range,
        problem: &str,
        out: &mut Outputs,
    ) -> bool {
        let dropped = self.journal.drop_copy(addr);
        if dropped {
            let (file, offset) = self.journal.spot(addr);
            let problem = format!("{problem} (in memory; the copy on disk is used instead)");
            let shipping_waits = false;
            out.event(Event::JournalDamaged { range, file, offset, problem, shipping_waits });
        }
        dropped
    }

    /// From now on keeps committed frames until their release.
    pub(super) fn hold(&mut self) {
        self.journal.hold();
    }

    /// Releases frames up to this number.
    pub(super) fn release(&mut self, seq: Seq) {
        self.journal.release(seq);
    }

    // --- reading the journal's files ---

    /// Reads parts of a read, in as few reads as make sense.
    pub(super) fn read_parts(&mut self, read: u64, parts: Vec<JournalPart>, out: &mut Outputs) {
        self.reads.start_parts(&mut self.journal, read, parts, out);
    }

    /// Reads the wanted blocks of a long record whose header has come. False if the map is wrong.
    pub(super) fn read_payload(
        &mut self,
        read: u64,
        part: JournalPart,
        prefix: Bytes,
        out: &mut Outputs,
    ) -> bool {
        self.reads.start_payload(&mut self.journal, (read, part, prefix), out)
    }

    /// Reads frames for a batch.
    pub(super) fn read_frames(
        &mut self,
        (addr, bytes): (u64, usize),
        (generation, first): (u64, usize),
        out: &mut Outputs,
    ) {
        let what = JournalRead::Frames { generation, first };
        self.reads.start(&mut self.journal, (addr, bytes), what, out);
    }

    /// Ends a read. Returns its use, and the file for [`WriteLog::end_read`].
    pub(super) fn take_read(&mut self, id: u64) -> Option<(u32, JournalRead)> {
        self.reads.take(id)
    }

    /// The caller has taken the outcome of a read of a file.
    pub(super) fn end_read(&mut self, file: u32) {
        self.journal.unpin(file);
    }

    /// Flips a bit in the memory of `addr`, as bad memory would.
    #[cfg(test)]
    pub(super) fn rot(&mut self, addr: u64) {
        self.journal.rot(addr);
    }
}
