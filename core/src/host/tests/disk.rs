//! The disk under a journal. Operations on it are under way together and end in any order.

use super::world::{Rng, VOLUME, recover};
use crate::host::journal::{Geometry, JournalError, Recovered, create_plan};
use crate::host::{DiskOperation, DiskResult};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Clone)]
pub struct Disk {
    pub live: Vec<Vec<u8>>,
    pub durable: Vec<Vec<u8>>,
    /// Pages of complete writes that no sync has made durable.
    unsynced: Vec<BTreeSet<usize>>,
    /// The pages that each sync under way makes durable.
    covered: BTreeMap<u64, BTreeSet<usize>>,
    pub syncs: usize,
}

impl Disk {
    pub fn new(geometry: Geometry, journal: u128) -> Disk {
        let mut files = vec![vec![0; geometry.file_bytes as usize]; geometry.files as usize];
        for (file, page) in create_plan(geometry, journal, VOLUME).unwrap() {
            files[file as usize][..4096].copy_from_slice(&page);
        }
        Disk {
            live: files.clone(),
            durable: files,
            unsynced: vec![BTreeSet::new(); geometry.files as usize],
            covered: BTreeMap::new(),
            syncs: 0,
        }
    }

    /// An operation is under way.
    pub fn begin(&mut self, operation: &DiskOperation) {
        match operation {
            DiskOperation::Write { offset, data, .. } => {
                assert!(*offset >= 4096 && offset.is_multiple_of(4096));
                assert!(data.len().is_multiple_of(4096));
            }
            DiskOperation::Sync { id, file } => {
                self.covered.insert(*id, self.unsynced[*file as usize].clone());
            }
            DiskOperation::Read { .. } => unreachable!(),
        }
    }

    /// An operation succeeds.
    pub fn finish(&mut self, operation: DiskOperation) -> DiskResult {
        let (id, file, pages) = match operation {
            DiskOperation::Write { id, file, offset, data, sync } => {
                let pages = self.write(file, offset as usize, &data);
                (id, file, sync.then_some(pages))
            }
            DiskOperation::Sync { id, file } => {
                (id, file, Some(self.covered.remove(&id).unwrap_or_default()))
            }
            DiskOperation::Read { .. } => unreachable!(),
        };
        self.syncs += usize::from(pages.is_some());
        for page in pages.into_iter().flatten() {
            if self.unsynced[file as usize].remove(&page) {
                self.keep(file as usize, page);
            }
        }
        DiskResult::Done { id }
    }

    fn write(&mut self, file: u32, offset: usize, data: &[u8]) -> BTreeSet<usize> {
        let file = file as usize;
        self.live[file][offset..offset + data.len()].copy_from_slice(data);
        let pages: BTreeSet<usize> = (offset..offset + data.len()).step_by(4096).collect();
        self.unsynced[file].extend(&pages);
        pages
    }

    fn keep(&mut self, file: usize, page: usize) {
        self.durable[file][page..page + 4096].copy_from_slice(&self.live[file][page..page + 4096]);
    }

    /// The page cache drops what it could not write.
    pub fn drop_cache(&mut self) {
        self.live = self.durable.clone();
        self.unsynced.fill(BTreeSet::new());
        self.covered.clear();
    }

    /// The process dies. Some pages of the writes under way are in the page cache.
    pub fn stop(&mut self, under_way: &VecDeque<DiskOperation>, rng: &mut Rng) {
        for operation in under_way {
            let DiskOperation::Write { file, offset, data, .. } = operation else { continue };
            let odds = [0, 50, 100][rng.below(3) as usize];
            for (at, page) in (*offset as usize..).step_by(4096).zip(data.chunks(4096)) {
                if rng.chance(odds) {
                    self.write(*file, at, page);
                }
            }
        }
        self.covered.clear();
    }

    /// Power goes; each unsynced page may or may not have made it.
    pub fn cut(&mut self, rng: &mut Rng) {
        let keep = [0, 50, 90, 100][rng.below(4) as usize];
        for file in 0..self.live.len() {
            for page in std::mem::take(&mut self.unsynced[file]) {
                if rng.chance(keep) {
                    self.keep(file, page);
                }
            }
        }
        self.live = self.durable.clone();
    }

    pub fn recover(&self) -> Result<Recovered, JournalError> {
        recover(&self.live)
    }
}
