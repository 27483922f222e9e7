//! Reads a cache file: its heads, then the pages of its index.
//!
//! Promises: the outcome is a usable cache, whatever the file holds. Damaged parts are empty. The
//! module reads a part at a time, so that memory holds little more than the index.

use super::format::{Geometry, Head, PAGE_BYTES, restore_page};
use super::index::{Index, LINE_BLOCKS};
use crate::block::VolumeId;
use crate::disk::{DiskOperation, DiskResult};
use bytes::Bytes;

/// Pages read at a time.
const STEP_PAGES: usize = 256;

/// The findings of reading a cache file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Whether the file holds a cache.
    pub found: bool,
    /// Pages of the index that are damaged, or older than the head allows.
    pub bad_pages: usize,
    /// Damaged heads. After a power cut one of the two may always be damaged.
    pub bad_heads: usize,
    /// Whether the blocks in the file are encrypted.
    pub sealed: bool,
    /// Bytes of valid blocks, by the index.
    pub valid_bytes: u64,
}

/// Reads a cache file. Carry out the reads that [`Load::poll_disk`] returns and give their outcomes
/// to [`Load::handle_disk`], until there are none.
#[derive(Debug)]
pub struct Load {
    geometry: Geometry,
    volume: Option<VolumeId>,
    heads: [Option<Bytes>; 2],
    head: Option<Head>,
    index: Index,
    next_page: usize,
    newest_round: u64,
    asked: bool,
    loaded: Loaded,
}

impl Load {
    /// Begins to read a cache file. If `volume` is `None` the file may belong to any volume.
    #[must_use]
    pub fn new(geometry: Geometry, volume: Option<VolumeId>) -> Load {
        Load {
            geometry,
            volume,
            heads: [None, None],
            head: None,
            index: geometry.index(),
            next_page: 0,
            newest_round: 0,
            asked: false,
            loaded: Loaded::default(),
        }
    }

    /// The next read. `None` after the last.
    pub fn poll_disk(&mut self) -> Option<DiskOperation> {
        if self.asked {
            return None;
        }
        if let Some(number) = self.heads.iter().position(Option::is_none) {
            self.asked = true;
            let (offset, bytes) =
                (self.geometry.head_at(number as u64), self.geometry.head_bytes());
            return Some(DiskOperation::Read { id: 0, file: 0, offset, bytes });
        }
        let head = self.head.as_ref()?;
        // Skip pages that no round ever wrote.
        let rest = head.rounds.get(self.next_page..)?;
        self.next_page += rest.iter().position(|round| *round > 0)?;
        let pages = (self.geometry.pages() - self.next_page).min(STEP_PAGES);
        self.asked = true;
        let offset = self.geometry.page_at(self.next_page);
        Some(DiskOperation::Read { id: 0, file: 0, offset, bytes: pages * PAGE_BYTES })
    }

    /// Takes the outcome of the read.
    pub fn handle_disk(&mut self, result: DiskResult) {
        self.asked = false;
        let data = match result {
            DiskResult::Data { data, .. } => data,
            DiskResult::Done { .. } | DiskResult::Failed { .. } => Bytes::new(),
        };
        if let Some(slot) = self.heads.iter_mut().find(|head| head.is_none()) {
            *slot = Some(data);
            if self.heads.iter().all(Option::is_some) {
                self.choose();
            }
            return;
        }
        let Some(head) = &self.head else { return };
        let pages = (self.geometry.pages() - self.next_page).min(STEP_PAGES);
        for page in self.next_page..self.next_page + pages {
            let at = (page - self.next_page) * PAGE_BYTES;
            let bytes = data.get(at..at + PAGE_BYTES).unwrap_or_default();
            if head.rounds.get(page).is_none_or(|round| *round == 0) {
                continue;
            }
            match restore_page(head, page, bytes, &mut self.index) {
                Some(round) => self.newest_round = self.newest_round.max(u64::from(round)),
                None => self.loaded.bad_pages += 1,
            }
        }
        self.next_page += pages;
    }

    fn choose(&mut self) {
        let heads = self.heads.iter().flatten();
        let blank = |bytes: &Bytes| bytes.iter().all(|byte| *byte == 0);
        let parse = |bytes: &Bytes| Head::parse(self.geometry, self.volume, bytes);
        self.loaded.bad_heads =
            heads.clone().filter(|bytes| !blank(bytes) && parse(bytes).is_none()).count();
        self.head = heads.filter_map(parse).max_by_key(|head| head.round);
        self.loaded.found = self.head.is_some();
        self.loaded.sealed = self.head.as_ref().is_some_and(|head| head.sealed);
    }

    /// The findings, after the last read.
    #[must_use]
    pub fn report(&self) -> Loaded {
        Loaded { valid_bytes: self.index.valid_blocks() * crate::block::BLOCK_BYTES, ..self.loaded }
    }

    /// The blocks in the file that can be verified: all valid blocks except zeroes. Each comes with
    /// its line and its byte in the file.
    pub fn blocks(&self) -> impl Iterator<Item = StoredBlock> + '_ {
        let tag = self.head.as_ref().map_or(0, |head| head.tag);
        (0..self.index.slots()).flat_map(move |slot| {
            let line = self.index.line(slot);
            (0..LINE_BLOCKS).filter_map(move |n| {
                let stamp = self.index.stamp(slot, n).filter(|stamp| *stamp != 0)?;
                let offset = self.geometry.block_at(slot, n);
                Some(StoredBlock { tag, block: line? * LINE_BLOCKS + n, stamp, offset })
            })
        })
    }

    /// The parts of a cache: the head if the file held one, the index, and the newest round in
    /// that.
    pub(super) fn into_parts(self) -> (Geometry, Option<Head>, Index, u64) {
        (self.geometry, self.head, self.index, self.newest_round)
    }
}

/// A block that the index says is in the file.
#[derive(Clone, Copy, Debug)]
pub struct StoredBlock {
    tag: u128,
    block: u64,
    stamp: u16,
    /// The byte at which its record of [`super::RECORD_BYTES`] bytes begins.
    pub offset: u64,
}

impl StoredBlock {
    /// Whether `record` is this block.
    #[must_use]
    pub fn matches(&self, record: &[u8]) -> bool {
        super::format::is_block(self.tag, self.block, self.stamp, record)
    }
}
