//! The journal: a ring of files that holds every write until the store has committed it.
//!
//! Promises: a record gets its address when the journal appends it, and keeps the address. A frame
//! counts as written, or as stable, only after all frames before it. The journal overwrites only
//! committed writes. After a failed write or sync it writes nothing more. Without a disk (write-
//! through, or after a failure) the same structure works in memory: frames stay there until their
//! commit.
//!
//! It must not know requests, the link, or the waiting clients. The volume tells it when to sync,
//! and which writes the store has committed.

pub(crate) mod format;
mod frames;
mod memory;
pub(crate) mod recovery;
mod stability;

pub use format::{
    FRAME_HEADER_BYTES, FileHeader, FrameHeader, FrameRef, Geometry, JOURNAL_VERSION, JournalError,
    MAX_FRAME_BYTES, MIN_FILE_BYTES, OtherVersion, PAGE_BYTES, create_plan,
};
pub(crate) use frames::Frame;
pub use recovery::{Recovered, Recovery, Report};
pub(crate) use stability::FinishedOperation;

use super::io::DiskOperation;
use crate::block::{Epoch, Seq, Time};
use bytes::{Bytes, BytesMut};
use frames::Frames;
use memory::FrameMemory;
use stability::{SYNCS_MAX, Stability, UnderWay, UnstableFrame, WRITES_MAX};

/// The open frame, which takes records.
#[derive(Debug)]
struct OpenFrame {
    addr: u64,
    /// Most bytes, header included.
    limit: u64,
    data: BytesMut,
    first: Seq,
    last: Seq,
    born: Time,
}

/// The present place of the bytes at an address.
pub(crate) enum BytesAt {
    /// In memory.
    Memory(Bytes),
    /// In this file.
    Disk { file: u32 },
    /// Recycled.
    Gone,
}

const PAGE: u64 = PAGE_BYTES;

/// The disk may as well begin with a frame of this many bytes while it works on others. A guess.
const LONG_FRAME_BYTES: u64 = 256 << 10;

#[derive(Debug)]
pub(crate) struct Journal {
    geometry: Geometry,
    id: u128,
    incarnation: u32,
    epoch: Epoch,
    /// The journal writes nothing to disk (any more).
    memory_only: bool,
    /// Addresses from here on were never on stable storage: only memory has them.
    memory_from: u64,
    /// The end of the last sealed frame; the open one starts here or in the next file.
    head: u64,
    /// The end of the file of the last frame.
    file_end: u64,
    /// A newer lap may have overwritten addresses below this one.
    floor: u64,
    /// Number of the next frame.
    number: u64,
    prev_crc: u32,
    next_seq: Seq,
    open: Option<OpenFrame>,
    /// Sealed frames in memory, without gaps up to the head, except at ends of files.
    memory: FrameMemory,
    frames: Frames,
    disk: Stability,
    /// The end of the frame that begins this epoch, once it exists.
    epoch_frame_end: Option<u64>,
    /// Reads under way in each file.
    pins: Vec<u32>,
    frame_max: u64,
    /// Size of the buffer of a new frame: that of the longest frame of late. It keeps copies of a
    /// growing frame few, and empty room small.
    frame_hint: u64,
}

impl Journal {
    /// A journal that goes on after a recovery, or one in memory.
    pub(crate) fn new(
        now: Time,
        recovered: Option<&Recovered>,
        memory_only: bool,
        epoch: Epoch,
        committed: Seq,
        memory_max: u64,
    ) -> Journal {
        let empty = Recovered::empty(Geometry::default(), 0, crate::block::VolumeId(0));
        let known = recovered.unwrap_or(&empty);
        let geometry = known.geometry;
        // Four frames at least: one open, two under way to the disk, one that waits for a sync.
        let frame_max = geometry.frame_max().min((memory_max / 4 / PAGE * PAGE).max(4 * PAGE));
        let mut journal = Journal {
            geometry,
            id: known.journal,
            incarnation: known.incarnation.saturating_add(1),
            epoch,
            memory_only,
            memory_from: if memory_only { known.end } else { u64::MAX },
            head: known.end,
            file_end: known.file_end(),
            floor: known.tail.addr,
            number: known.number,
            prev_crc: known.prev_crc,
            next_seq: known.last.max(committed) + 1,
            open: None,
            memory: FrameMemory::new(memory_max.max(4 * frame_max)),
            frames: Frames::new(known.frames(now), known.versions.is_some()),
            disk: Stability::new(known.end, known.tail.addr),
            epoch_frame_end: None,
            pins: vec![0; geometry.files as usize],
            frame_max,
            frame_hint: 4 * PAGE,
        };
        if memory_only {
            journal.disk = Stability::new(known.end, known.end);
        } else if known.used {
            journal.disk.adopt(geometry.files, known.tail.addr);
        }
        journal.commit(committed);
        journal
    }

    /// Longest data record of this journal, in sectors.
    pub(crate) fn record_sectors_max(&self) -> u64 {
        format::record_sectors_max(self.frame_max)
    }

    /// Whether the epoch is on record, so that the volume may acknowledge writes.
    pub(crate) fn is_ready(&self) -> bool {
        self.memory_only || self.epoch_frame_end.is_some_and(|end| end <= self.disk.stable())
    }

    pub(crate) fn is_memory_only(&self) -> bool {
        self.memory_only
    }

    pub(crate) fn next_seq(&self) -> Seq {
        self.next_seq
    }

    /// The last number on stable storage; everything before it is too.
    pub(crate) fn stable_seq(&self) -> Seq {
        self.disk.stable_seq()
    }

    /// The last number in the files, synced or not. It survives the end of the process.
    pub(crate) fn written_seq(&self) -> Seq {
        self.disk.written_seq()
    }

    /// Whether all appended records are on stable storage.
    pub(crate) fn is_stable(&self) -> bool {
        self.memory_only || (self.open.is_none() && self.disk.is_all_stable())
    }

    /// The time of the acknowledgment of the oldest write that is not on stable storage, nor on its
    /// way there.
    pub(crate) fn oldest_uncovered(&self) -> Option<Time> {
        if self.memory_only {
            return None;
        }
        self.disk.oldest_uncovered().or(self.open.as_ref().map(|open| open.born))
    }

    /// Bytes written that need one more sync.
    pub(crate) fn unsynced_bytes(&self) -> u64 {
        self.disk.unsynced_bytes()
    }

    /// The address below which all writes are committed.
    pub(crate) fn tail(&self) -> u64 {
        let open = self.open.as_ref().map_or(self.head, |open| open.addr);
        self.frames.first().map_or(open, |frame| frame.at.addr)
    }

    /// Addresses below are gone.
    pub(crate) fn floor(&self) -> u64 {
        self.floor
    }

    /// Address space used by writes that the store has not committed, in bytes.
    pub(crate) fn used_bytes(&self) -> u64 {
        let open = self.open.as_ref().map_or(0, |open| open.data.len() as u64);
        self.head + open - self.tail().min(self.head + open)
    }

    /// Bytes of its capacity.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        if self.memory_only { self.memory.max() } else { self.geometry.ring() }
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// Bytes of records that the store has not committed.
    pub(crate) fn lag_bytes(&self) -> u64 {
        let open = self.open.as_ref().map_or(0, |open| open.data.len() - FRAME_HEADER_BYTES);
        self.frames.body_bytes() + open as u64
    }

    /// The time of the acknowledgment of the oldest uncommitted write.
    pub(crate) fn oldest_uncommitted(&self) -> Option<Time> {
        let sealed = self.frames.iter().find(|frame| frame.first <= frame.last);
        sealed.map(|frame| frame.born).or(self.open.as_ref().map(|open| open.born))
    }

    /// Frames that the drain may send, from the one at or after `addr` on.
    pub(crate) fn drainable(&self, addr: u64) -> impl Iterator<Item = &Frame> {
        let limit = if self.memory_only { u64::MAX } else { self.disk.stable() };
        self.frames.from(addr).take_while(move |frame| frame.end() <= limit)
    }

    /// The first uncommitted number that the journal holds, or will hold. The same frame may hold
    /// committed numbers before it.
    pub(crate) fn first_uncommitted(&self) -> Seq {
        let open = self.open.as_ref().map_or(self.next_seq, |open| open.first);
        self.frames.first().map_or(open, |frame| frame.first)
    }

    /// Bytes from `addr` on that the drain may send, headers and padding included.
    pub(crate) fn drainable_bytes(&self, addr: u64) -> u64 {
        let open = self.open.as_ref().map_or(0, |open| open.data.len() as u64);
        let end =
            if self.memory_only { self.head + open } else { self.disk.stable().min(self.head) };
        end.saturating_sub(addr.max(self.tail()))
    }

    /// The time of the acknowledgment of the oldest write from `addr` on that the drain may send.
    pub(crate) fn oldest_drainable(&self, addr: u64) -> Option<Time> {
        let sealed = self.drainable(addr).find(|frame| frame.first <= frame.last);
        let open = self.open.as_ref().filter(|_| self.memory_only);
        sealed.map(|frame| frame.born).or(open.map(|open| open.born))
    }

    // --- appending ---

    /// Makes room for a record of `bytes`. If that fails, writes have to wait for the disk or the
    /// store.
    pub(crate) fn make_room(&mut self, now: Time, bytes: u64) -> bool {
        if !self.is_ready() {
            return false;
        }
        if let Some(open) = &self.open {
            if open.data.len() as u64 + bytes <= open.limit {
                return self.grow_open(bytes);
            }
            self.seal();
        }
        let need = FrameHeader::frame_bytes_for(bytes);
        let Some((addr, limit)) = self.place(need) else { return false };
        let capacity = self.frame_hint.clamp(need, limit.max(need));
        let Some(mut data) = self.buffer(capacity) else { return false };
        self.enter(addr);
        data.resize(FRAME_HEADER_BYTES, 0);
        let (first, last) = (self.next_seq, self.next_seq - 1);
        self.open = Some(OpenFrame { addr, limit, data, first, last, born: now });
        true
    }

    /// The place of the next record: its address, its number, and the buffer to append it to. Call
    /// only after [`Journal::make_room`].
    pub(crate) fn append(&mut self) -> Option<(u64, Seq, &mut BytesMut)> {
        let open = self.open.as_mut()?;
        let seq = self.next_seq;
        self.next_seq += 1;
        open.last = seq;
        Some((open.addr + open.data.len() as u64, seq, &mut open.data))
    }

    fn can_enter(&self, file_start: u64) -> bool {
        let lap_before = (file_start + self.geometry.area()).saturating_sub(self.geometry.ring());
        self.disk.published() >= lap_before
            && self.pins[self.geometry.file(file_start) as usize] == 0
    }

    /// Whether only the publication of the tail is missing for the next file to be free.
    pub(crate) fn publishing_helps(&self) -> bool {
        let lap_before =
            (self.file_end + self.geometry.area()).saturating_sub(self.geometry.ring());
        !self.memory_only && self.disk.published() < lap_before && self.kept() >= lap_before
    }

    /// Address and longest length of a frame of at least `need` bytes, if there is room.
    ///
    /// The last page of a file stays free until the next file is free. Otherwise a full journal
    /// would have no place for one more frame, and could never publish that its tail has moved on.
    fn place(&self, need: u64) -> Option<(u64, u64)> {
        if self.memory_only {
            return Some((self.head, self.frame_max.max(need)));
        }
        let next = self.can_enter(self.file_end);
        let left = self.file_end - self.head;
        let reserve = if next { 0 } else { PAGE };
        if left >= need + reserve {
            return Some((self.head, self.frame_max.min(left - reserve)));
        }
        let left = self.geometry.area() - PAGE;
        (next && left >= need).then(|| (self.file_end, self.frame_max.min(left)))
    }

    /// Place of a frame without records.
    fn place_empty(&self) -> Option<u64> {
        let left = self.file_end - self.head;
        let next = self.can_enter(self.file_end);
        if left >= 2 * PAGE || (left >= PAGE && (next || self.publishing_helps())) {
            Some(self.head)
        } else {
            next.then_some(self.file_end)
        }
    }

    /// The next frame is at `addr`. If that is in the next file, the file's old content is gone.
    fn enter(&mut self, addr: u64) {
        if !self.memory_only && addr == self.file_end {
            self.file_end = addr + self.geometry.area();
            self.floor = self.floor.max(self.file_end.saturating_sub(self.geometry.ring()));
            self.head = addr;
        }
    }

    fn grow_open(&mut self, bytes: u64) -> bool {
        let Some(open) = &self.open else { return false };
        let (have, len) = (memory::charge(&open.data), open.data.len() as u64);
        let need = (len + bytes).div_ceil(PAGE) * PAGE;
        if need <= have {
            return true;
        }
        let want = (2 * have).clamp(need, open.limit.max(need));
        // During the copy both buffers exist.
        if !self.reclaim(want) {
            return false;
        }
        let Some(open) = &mut self.open else { return false };
        self.memory.move_to_longer(&mut open.data, want);
        true
    }

    fn buffer(&mut self, bytes: u64) -> Option<BytesMut> {
        if let Some(spare) = self.memory.take_spare(bytes) {
            return Some(spare);
        }
        self.reclaim(bytes).then(|| self.memory.allocate(bytes))
    }

    /// Frees memory until `bytes` more fit, if that is possible.
    fn reclaim(&mut self, bytes: u64) -> bool {
        let (fit, evicted) = self.memory.reclaim(bytes, self.copied_below());
        self.evicted(evicted);
        fit
    }

    /// Frames that end here or before need not be in memory: the disk has them, or nobody needs
    /// them.
    fn copied_below(&self) -> u64 {
        let on_disk = self.disk.stable().min(self.memory_from);
        if self.memory_only { on_disk.max(self.tail()) } else { on_disk }
    }

    /// Frames up to that address have left the memory.
    fn evicted(&mut self, end: u64) {
        if end > self.memory_from {
            self.floor = self.floor.max(end);
        }
    }

    /// Stops using the copy in memory of the frame that holds `addr`. False if there is no copy, or
    /// no other one.
    pub(crate) fn drop_copy(&mut self, addr: u64) -> bool {
        let evicted = self.memory.drop_through(addr, self.copied_below());
        self.evicted(evicted);
        addr < evicted
    }

    /// Flips a bit in the memory of `addr`, as bad memory would.
    #[cfg(test)]
    pub(crate) fn rot(&mut self, addr: u64) {
        self.memory.rot(addr);
    }

    /// Closes the open frame, if there is one.
    pub(crate) fn seal(&mut self) {
        let Some(open) = self.open.take() else { return };
        let OpenFrame { addr, mut data, first, last, born, .. } = open;
        let body = data.len() - FRAME_HEADER_BYTES;
        let bytes = FrameHeader::frame_bytes_for(body as u64);
        // The buffer has room for whole pages: a longer one would count for more than its charge.
        debug_assert!(bytes <= data.capacity() as u64);
        data.resize(bytes as usize, 0);
        let charge = memory::charge(&data);

        let at = FrameRef { addr, number: self.number, prev_crc: self.prev_crc, before: first - 1 };
        let tail = self.frames.first_kept().map_or(at, |frame| frame.at);
        let header = FrameHeader {
            journal: self.id,
            incarnation: self.incarnation,
            body_bytes: body as u32,
            addr,
            number: self.number,
            epoch: self.epoch,
            first_seq: first,
            last_seq: last,
            tail,
            synced_addr: self.disk.stable().min(addr),
            prev_crc: self.prev_crc,
        };
        self.prev_crc = header.encode_to(&mut data);
        self.number += 1;
        self.head = addr + bytes;
        self.frame_hint = bytes.max((self.frame_hint - self.frame_hint / 8) / PAGE * PAGE);
        self.frames.push(Frame { at, bytes, body_bytes: body as u64, first, last, born });
        self.memory.push(addr, data.freeze(), charge);
        if !self.memory_only {
            self.disk.sealed(UnstableFrame {
                file: self.geometry.file(addr),
                addr,
                end: addr + bytes,
                before: at.before,
                last,
                tail_addr: tail.addr,
                born,
            });
        }
    }

    /// Seals a frame without records; false if there is no place for it now.
    fn seal_empty(&mut self, now: Time) -> bool {
        self.seal();
        let Some(addr) = self.place_empty() else { return false };
        // At most one page beyond the limit. If the journal could not publish its tail, it would
        // never free the memory.
        let _ = self.reclaim(PAGE);
        let mut data = self.memory.allocate(PAGE);
        self.enter(addr);
        data.resize(FRAME_HEADER_BYTES, 0);
        let (first, last) = (self.next_seq, self.next_seq - 1);
        self.open = Some(OpenFrame { addr, limit: PAGE, data, first, last, born: now });
        self.seal();
        true
    }

    // --- the disk ---

    /// The next write or sync, if one is due. Numbers up to `wanted` have to become stable;
    /// [`Seq::MAX`] means everything, also frames without records.
    pub(crate) fn next_operation(
        &mut self,
        now: Time,
        wanted: Seq,
        ids: &mut u64,
    ) -> Option<DiskOperation> {
        if self.memory_only {
            return None;
        }
        if self.disk.is_adopting() {
            return self.disk.begin_sync(wanted, ids);
        }
        if self.epoch_frame_end.is_none() {
            if self.has_gap() || !self.seal_empty(now) {
                return None;
            }
            self.epoch_frame_end = Some(self.head);
        }
        let wanted = if self.is_ready() { wanted } else { Seq::MAX };
        if self.disk.has_begun_all() {
            if self.is_seal_due(wanted) {
                self.seal();
            }
            // One at a time: its page may be beyond the limit of the memory.
            let publish = wanted == Seq::MAX && self.is_stable() && self.publishing_helps();
            if publish {
                // If it has no place, it needs the release of the pins on the next file. That comes
                // back here.
                let _ = self.seal_empty(now);
            }
        }
        self.next_write(wanted, ids).or_else(|| self.disk.begin_sync(wanted, ids))
    }

    /// Whether it is better to write the open frame now than to let it gather more records.
    fn is_seal_due(&self, wanted: Seq) -> bool {
        let Some(open) = &self.open else { return false };
        let UnderWay { writes, syncs } = self.disk.under_way();
        let long = LONG_FRAME_BYTES.min(self.frame_max / 4);
        let is_long = open.data.len() as u64 >= long && writes + syncs < WRITES_MAX;
        let is_free = if open.first <= wanted { syncs < SYNCS_MAX } else { writes == 0 };
        is_free || is_long
    }

    /// Begins the write of the next sealed frame.
    fn next_write(&mut self, wanted: Seq, ids: &mut u64) -> Option<DiskOperation> {
        let (frame, id, sync) = self.disk.begin_write(wanted, ids)?;
        let bytes = (frame.end - frame.addr) as usize;
        // Only stable frames leave the memory.
        let data = self.memory.get(frame.addr, bytes)?;
        let offset = self.geometry.offset(frame.addr);
        Some(DiskOperation::Write { id, file: frame.file, offset, data, sync })
    }

    /// Takes the outcome of a write or sync.
    pub(crate) fn finish(&mut self, id: u64, error: Option<String>) -> FinishedOperation {
        let finished = self.disk.finish(id, error, self.next_seq - 1);
        if let FinishedOperation::Failed(_) = finished {
            self.latch();
        }
        finished
    }

    /// Writes nothing any more. Data that is not on stable storage lives in memory from now on.
    pub(crate) fn latch(&mut self) {
        if self.memory_only {
            // After the first call the journal does not know which frames it was adopting.
            return;
        }
        self.seal();
        self.memory_only = true;
        self.memory_from = self.disk.stop();
    }

    /// The store has everything up to `seq`.
    pub(crate) fn commit(&mut self, seq: Seq) {
        self.frames.commit(seq, !self.memory_only);
        if self.memory_only {
            let evicted = self.memory.drop_below(self.tail());
            self.evicted(evicted);
        }
    }

    // --- what the store has ---

    /// The address below which the journal needs nothing: the tail, or held frames before it.
    fn kept(&self) -> u64 {
        self.frames.first_held().map_or_else(|| self.tail(), |frame| frame.at.addr)
    }

    /// From now on holds committed frames until their release.
    pub(crate) fn hold(&mut self) {
        self.frames.hold();
    }

    /// Releases frames with numbers up to `seq`.
    pub(crate) fn release(&mut self, seq: Seq) {
        self.frames.release(seq);
    }

    /// Whether numbers are missing after the held frames, because another host had the volume
    /// since. A frame of this epoch would name a held frame as its tail. Recovery could not walk
    /// from there across the missing numbers. So the journal has to release the held frames first.
    pub(crate) fn has_gap(&self) -> bool {
        !self.memory_only
            && self.epoch_frame_end.is_none()
            && self.frames.last_held().is_some_and(|frame| frame.last + 1 < self.next_seq)
    }

    /// Address space of held frames, in bytes.
    pub(crate) fn held_bytes(&self) -> u64 {
        if self.memory_only { 0 } else { self.tail() - self.kept() }
    }

    // --- reading ---

    /// The place to read `bytes` bytes at `addr`.
    pub(crate) fn locate(&self, addr: u64, bytes: usize) -> BytesAt {
        if let Some(open) = &self.open
            && addr >= open.addr
        {
            let start = (addr - open.addr) as usize;
            let part = open.data.get(start..start + bytes);
            return part
                .map_or(BytesAt::Gone, |part| BytesAt::Memory(Bytes::copy_from_slice(part)));
        }
        if let Some(data) = self.memory.get(addr, bytes) {
            return BytesAt::Memory(data);
        }
        if addr < self.floor || addr >= self.memory_from {
            return BytesAt::Gone;
        }
        BytesAt::Disk { file: self.geometry.file(addr) }
    }

    /// File and offset of an address, for messages.
    pub(crate) fn spot(&self, addr: u64) -> (u32, u64) {
        (self.geometry.file(addr), self.geometry.offset(addr))
    }

    /// A read in `file` has begun: the journal does not recycle the file until [`Journal::unpin`].
    pub(crate) fn pin(&mut self, file: u32) {
        self.pins[file as usize] += 1;
    }

    /// A read in `file` is over.
    pub(crate) fn unpin(&mut self, file: u32) {
        self.pins[file as usize] -= 1;
    }
}
