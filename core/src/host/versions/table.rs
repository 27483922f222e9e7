//! The table on disk: a mark for each block of the volume. Blocks with partial writes also have
//! marks for their sectors. Pages of both are in memory within a limit.
//!
//! Promises: only a checkpoint writes pages, sectors before blocks, and nothing changes while one
//! is under way. So if a mark says that a block is mixed, its sectors are on stable storage. A
//! power cut leaves the state of the last checkpoint with some of the changes since, and the
//! journal makes these again. A checkpoint writes each page that was changed since the last one. It
//! does so even if the page that was read had these marks already, because the page may have come
//! from the page cache. The table must not know records, the store, or which changes are due.

use super::head::{HEAD_BYTES, Head};
use super::mark::Mark;
use crate::block::{BLOCK_SECTORS, Range, Seq};
use crate::disk::{DiskOperation, DiskResult};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Files of a table: its heads, the blocks, the sectors.
pub const FILES: u32 = 3;
/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

const HEADS: u32 = 0;
/// The file of the marks of blocks.
pub const BLOCKS: u32 = 1;
/// The file of the marks of sectors.
pub const SECTORS: u32 = 2;

/// A page has eight units, each with a checksum: a power cut does not tear them.
const UNIT_BYTES: usize = 512;
const CRC_BYTES: usize = 4;
const UNITS: u64 = (PAGE_BYTES / UNIT_BYTES) as u64;
const MARK_BYTES: usize = 4;
/// Marks of blocks in a unit.
const UNIT_BLOCKS: u64 = ((UNIT_BYTES - CRC_BYTES) / MARK_BYTES) as u64;
/// Bytes of the marks of the sectors of a block, and how many blocks have theirs in a unit.
const SPLIT_BYTES: usize = MARK_BYTES * BLOCK_SECTORS as usize;
const UNIT_SPLITS: u64 = ((UNIT_BYTES - CRC_BYTES) / SPLIT_BYTES) as u64;
/// Blocks of a page of [`BLOCKS`].
pub(crate) const PAGE_BLOCKS: u64 = UNITS * UNIT_BLOCKS;
pub(crate) const PAGE_SPLITS: u64 = UNITS * UNIT_SPLITS;

/// Writes of a checkpoint under way at a time.
const WRITES_MAX: usize = 64;
/// Fewest pages in memory. The unchanged ones have to hold the marks of one answer, or of one
/// status query.
const PAGES_MIN: usize = 1024;
/// Most blocks of one status query (64 MiB).
const STATUS_BLOCKS: u64 = 1 << 14;

const _: () = assert!(UNIT_BLOCKS == 127 && UNIT_SPLITS == 15);
// All of them may have partial writes.
const _: () =
    assert!(PAGES_MIN as u64 / 4 >= STATUS_BLOCKS / PAGE_BLOCKS + STATUS_BLOCKS / PAGE_SPLITS + 4);
// 4 bytes and a share of the checksum for 4 KiB: below 0.1 %.
const _: () = assert!(PAGE_BLOCKS * crate::block::BLOCK_BYTES > 1000 * PAGE_BYTES as u64);

/// The marks of the sectors of a block.
pub(crate) type Split = [Mark; BLOCK_SECTORS as usize];

/// File and number of a page.
type PageId = (u32, u64);

#[derive(Debug)]
struct Page {
    data: Box<[u8; PAGE_BYTES]>,
    used: bool,
}

/// The next step of a checkpoint.
#[derive(Debug, PartialEq, Eq)]
enum CheckpointStep {
    Idle,
    /// Writes these pages of the file, the last one first.
    Write {
        file: u32,
        left: Vec<u64>,
        under_way: usize,
    },
    Sync {
        file: u32,
    },
    Head,
}

#[derive(Debug)]
pub(crate) struct Table {
    pages: BTreeMap<PageId, Page>,
    /// Pages in the order of the search for one that can go.
    clock: VecDeque<PageId>,
    pages_max: usize,
    dirty: [BTreeSet<u64>; 2],
    loading: BTreeMap<u64, PageId>,
    wanted: BTreeSet<PageId>,
    ids: u64,
    disk: VecDeque<DiskOperation>,
    step: CheckpointStep,
    /// The head on stable storage, and the one on its way there.
    head: Head,
    next: Option<Head>,
    failed: Option<String>,
    damaged_bytes: u64,
}

impl Table {
    /// The table whose newest head on stable storage is `head`, with at most `memory` bytes of
    /// pages.
    pub(crate) fn new(head: Head, memory: u64) -> Table {
        Table {
            pages: BTreeMap::new(),
            clock: VecDeque::new(),
            pages_max: (memory as usize / PAGE_BYTES).max(PAGES_MIN),
            dirty: [BTreeSet::new(), BTreeSet::new()],
            loading: BTreeMap::new(),
            wanted: BTreeSet::new(),
            ids: 0,
            disk: VecDeque::new(),
            step: CheckpointStep::Idle,
            head,
            next: None,
            failed: None,
            damaged_bytes: 0,
        }
    }

    /// The head on stable storage.
    pub(crate) fn head(&self) -> &Head {
        &self.head
    }

    /// Why it is unusable now.
    pub(crate) fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// Number of its bytes that were damaged.
    pub(crate) fn damaged_bytes(&self) -> u64 {
        self.damaged_bytes
    }

    /// Whether a checkpoint is under way: no mark may change.
    pub(crate) fn is_frozen(&self) -> bool {
        self.step != CheckpointStep::Idle
    }

    /// Whether only a checkpoint makes room, because too many pages have changed.
    pub(crate) fn is_crowded(&self) -> bool {
        let dirty: usize = self.dirty.iter().map(BTreeSet::len).sum();
        dirty * 4 >= self.pages_max * 3
    }

    /// The pages in memory, and the limit of them.
    #[cfg(test)]
    pub(crate) fn pages_in_memory(&self) -> (usize, usize) {
        (self.pages.len(), self.pages_max)
    }

    /// Sets the limit of the pages in memory.
    #[cfg(test)]
    pub(crate) fn limit_pages(&mut self, pages: usize) {
        self.pages_max = pages;
    }

    // --- marks ---

    /// The marks of a block: one for all of it, or each sector's. `None` if the page has to come
    /// first.
    pub(crate) fn get(&mut self, block: u64) -> Option<Result<Mark, Split>> {
        let mark = block_mark(&self.page((BLOCKS, block / PAGE_BLOCKS))?.data, block);
        if mark != Mark::MIXED {
            return Some(Ok(mark));
        }
        let page = self.page((SECTORS, block / PAGE_SPLITS))?;
        Some(Err(sector_marks(&page.data, block)))
    }

    /// Reads the missing pages for marking the first block of a range.
    pub(crate) fn ask(&mut self, range: Range) {
        let block = range.lba / BLOCK_SECTORS;
        let part = !range.lba.is_multiple_of(BLOCK_SECTORS) || range.sectors < BLOCK_SECTORS;
        let _ = self.get(block);
        if part {
            let _ = self.page((SECTORS, block / PAGE_SPLITS));
        }
    }

    /// Marks a part of one block. False if the page has to come first.
    ///
    /// # Panics
    /// In tests, if the table is frozen.
    pub(crate) fn set(&mut self, part: Range, mark: Mark) -> bool {
        debug_assert!(!self.is_frozen(), "nothing changes during a checkpoint");
        let block = part.lba / BLOCK_SECTORS;
        if part.sectors == BLOCK_SECTORS {
            return self.put_block(block, mark);
        }
        let Some(marks) = self.get(block) else { return false };
        let mut split = match marks {
            Ok(mark) => [mark; BLOCK_SECTORS as usize],
            Err(split) => split,
        };
        let first = (part.lba % BLOCK_SECTORS) as usize;
        split[first..first + part.sectors as usize].fill(mark);
        if split.iter().all(|one| *one == split[0]) {
            return self.put_block(block, split[0]);
        }
        let (page, at) = (block / PAGE_SPLITS, split_offset(block));
        let Some(found) = self.page((SECTORS, page)) else { return false };
        for (n, mark) in split.iter().enumerate() {
            write_mark(&mut found.data[at + MARK_BYTES * n..], *mark);
        }
        self.dirty[1].insert(page);
        self.put_block(block, Mark::MIXED)
    }

    fn put_block(&mut self, block: u64, mark: Mark) -> bool {
        let (page, at) = (block / PAGE_BLOCKS, block_offset(block));
        let Some(found) = self.page((BLOCKS, page)) else { return false };
        write_mark(&mut found.data[at..], mark);
        // Even if the mark was there. A process that died may have written it and never synced it,
        // and then it is not on the disk yet.
        self.dirty[0].insert(page);
        true
    }

    // --- pages ---

    /// A page in memory. If it is missing, begins to read it.
    fn page(&mut self, id: PageId) -> Option<&mut Page> {
        if !self.pages.contains_key(&id) {
            if self.failed.is_none() && self.wanted.insert(id) {
                let (operation, (file, page)) = (self.next_id(), id);
                self.loading.insert(operation, id);
                let (offset, bytes) = (page * PAGE_BYTES as u64, PAGE_BYTES);
                self.disk.push_back(DiskOperation::Read { id: operation, file, offset, bytes });
            }
            return None;
        }
        let page = self.pages.get_mut(&id)?;
        page.used = true;
        Some(page)
    }

    fn next_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    fn loaded(&mut self, id: PageId, data: &[u8]) {
        self.wanted.remove(&id);
        let (page, damaged) = verified(id, data);
        self.damaged_bytes += damaged;
        self.make_room();
        self.pages.insert(id, Page { data: page, used: true });
        self.clock.push_back(id);
    }

    fn is_page_dirty(&self, (file, page): PageId) -> bool {
        self.dirty[(file - BLOCKS) as usize].contains(&page)
    }

    /// Drops pages without recent use, until there is room for another one. Drops none during a
    /// checkpoint: a read must not come before the write of the same page. The end of the
    /// checkpoint makes room.
    fn make_room(&mut self) {
        if self.is_frozen() {
            return;
        }
        // The first round of the clock takes the marks of use, the second the pages.
        for _ in 0..2 * self.clock.len() {
            if self.pages.len() < self.pages_max {
                return;
            }
            let Some(id) = self.clock.pop_front() else { return };
            let dirty = self.is_page_dirty(id);
            let Some(page) = self.pages.get_mut(&id) else { continue };
            if dirty || std::mem::take(&mut page.used) {
                self.clock.push_back(id);
            } else {
                self.pages.remove(&id);
            }
        }
    }

    // --- the disk ---

    /// The next operation. Carry out writes and syncs in the order given.
    pub(crate) fn poll_disk(&mut self) -> Option<DiskOperation> {
        self.disk.pop_front()
    }

    /// Takes the outcome of an operation.
    pub(crate) fn handle_disk(&mut self, result: DiskResult) {
        match result {
            DiskResult::Data { id, data } => {
                if let Some(page) = self.loading.remove(&id) {
                    self.loaded(page, &data);
                }
            }
            DiskResult::Failed { error, .. } => self.fail(error),
            DiskResult::Done { .. } if self.failed.is_none() => self.written(),
            DiskResult::Done { .. } => {}
        }
    }

    fn fail(&mut self, error: String) {
        self.failed.get_or_insert(error);
        self.step = CheckpointStep::Idle;
        self.next = None;
        self.disk.clear();
    }

    /// Puts all changes on stable storage: the marks of all writes up to `seq`, and perhaps of
    /// later ones.
    pub(crate) fn checkpoint(&mut self, seq: Seq) {
        if self.is_frozen() || self.failed.is_some() {
            return;
        }
        self.next = Some(self.head.next(seq));
        self.begin_writing(SECTORS);
    }

    fn begin_writing(&mut self, file: u32) {
        let dirty = std::mem::take(&mut self.dirty[(file - BLOCKS) as usize]);
        let left = dirty.into_iter().rev().collect();
        self.step = CheckpointStep::Write { file, left, under_way: 0 };
        self.write_on();
    }

    /// Goes on with the pages of a file.
    fn write_on(&mut self) {
        loop {
            let CheckpointStep::Write { file, left, under_way } = &mut self.step else { return };
            let file = *file;
            if *under_way >= WRITES_MAX {
                return;
            }
            let Some(number) = left.pop() else { break };
            let Some(page) = self.pages.get_mut(&(file, number)) else { continue };
            *under_way += 1;
            for (n, unit) in page.data.chunks_mut(UNIT_BYTES).enumerate() {
                if unit[CRC_BYTES..].iter().any(|byte| *byte != 0) {
                    let crc = unit_crc((file, number), n, unit);
                    unit[..CRC_BYTES].copy_from_slice(&crc.to_le_bytes());
                }
            }
            let data = Bytes::copy_from_slice(&page.data[..]);
            let (id, offset) = (self.next_id(), number * PAGE_BYTES as u64);
            self.disk.push_back(DiskOperation::Write { id, file, offset, data, sync: false });
        }
        let CheckpointStep::Write { file, under_way: 0, .. } = self.step else { return };
        // The file has no changes.
        self.synced(file);
    }

    /// A write or a sync has ended.
    fn written(&mut self) {
        match &mut self.step {
            CheckpointStep::Idle => {}
            CheckpointStep::Write { file, left, under_way } => {
                *under_way -= 1;
                if left.is_empty() && *under_way == 0 {
                    let file = *file;
                    self.step = CheckpointStep::Sync { file };
                    let id = self.next_id();
                    return self.disk.push_back(DiskOperation::Sync { id, file });
                }
                self.write_on();
            }
            CheckpointStep::Sync { file } => {
                let file = *file;
                self.synced(file);
            }
            CheckpointStep::Head => {
                self.step = CheckpointStep::Idle;
                if let Some(head) = self.next.take() {
                    self.head = head;
                }
                self.make_room();
            }
        }
    }

    /// A file is on stable storage.
    fn synced(&mut self, file: u32) {
        if file == SECTORS {
            return self.begin_writing(BLOCKS);
        }
        let Some(head) = &self.next else { return };
        let (data, offset) = (head.encode(), head.slot() * HEAD_BYTES as u64);
        self.step = CheckpointStep::Head;
        let (id, file) = (self.next_id(), HEADS);
        self.disk.push_back(DiskOperation::Write { id, file, offset, data, sync: true });
    }
}

/// Verifies a page from the disk. In damaged units, all marks become unknown. Also returns the
/// number of damaged bytes.
pub(crate) fn verified(id: PageId, data: &[u8]) -> (Box<[u8; PAGE_BYTES]>, u64) {
    let (mut page, mut damaged) = (Box::new([0; PAGE_BYTES]), 0);
    for (n, (unit, from)) in page.chunks_mut(UNIT_BYTES).zip(data.chunks(UNIT_BYTES)).enumerate() {
        unit[..from.len()].copy_from_slice(from);
        let blank = unit.iter().all(|byte| *byte == 0);
        if !blank && unit[..CRC_BYTES] != unit_crc(id, n, unit).to_le_bytes() {
            damaged += UNIT_BYTES as u64;
            for mark in unit[CRC_BYTES..].chunks_exact_mut(MARK_BYTES) {
                write_mark(mark, Mark::UNKNOWN);
            }
        }
    }
    (page, damaged)
}

/// Number of damaged bytes in a page of that file.
#[must_use]
pub fn damaged_bytes(file: u32, number: u64, page: &[u8]) -> u64 {
    verified((file, number), page).1
}

/// The mark of a block in its page.
pub(crate) fn block_mark(page: &[u8; PAGE_BYTES], block: u64) -> Mark {
    read_mark(&page[block_offset(block)..])
}

/// The marks of the sectors of a block in their page.
pub(crate) fn sector_marks(page: &[u8; PAGE_BYTES], block: u64) -> Split {
    let at = split_offset(block);
    std::array::from_fn(|n| read_mark(&page[at + MARK_BYTES * n..]))
}

fn block_offset(block: u64) -> usize {
    let (unit, at) = (block % PAGE_BLOCKS / UNIT_BLOCKS, block % PAGE_BLOCKS % UNIT_BLOCKS);
    unit as usize * UNIT_BYTES + CRC_BYTES + MARK_BYTES * at as usize
}

fn split_offset(block: u64) -> usize {
    let (unit, at) = (block % PAGE_SPLITS / UNIT_SPLITS, block % PAGE_SPLITS % UNIT_SPLITS);
    unit as usize * UNIT_BYTES + CRC_BYTES + SPLIT_BYTES * at as usize
}

fn read_mark(bytes: &[u8]) -> Mark {
    bytes.first_chunk().map_or(Mark::UNKNOWN, |bytes| Mark(u32::from_le_bytes(*bytes)))
}

fn write_mark(bytes: &mut [u8], mark: Mark) {
    if let Some(bytes) = bytes.first_chunk_mut() {
        *bytes = mark.0.to_le_bytes();
    }
}

/// Covers the content of the unit and its place.
fn unit_crc((file, page): PageId, unit: usize, bytes: &[u8]) -> u32 {
    let place = crc32c::crc32c(&(page << 8 | u64::from(file) << 3 | unit as u64).to_le_bytes());
    crc32c::crc32c_append(place, &bytes[CRC_BYTES..])
}
