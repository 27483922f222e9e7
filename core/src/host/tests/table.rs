//! The files of the version table in the scripted world. They are sparse. A power cut goes back to
//! their durable image, sector by sector.

pub use super::world::Rng;
use crate::disk::{DiskOperation, DiskResult};
use crate::host::versions::FILES;
use bytes::Bytes;
use std::collections::{BTreeSet, VecDeque};

#[derive(Clone, Default)]
pub struct TableDisk {
    live: Vec<Vec<u8>>,
    durable: Vec<Vec<u8>>,
    unsynced: Vec<BTreeSet<usize>>,
    pub writes: VecDeque<DiskOperation>,
    pub reads: Vec<DiskOperation>,
    pub bytes: u64,
}

impl TableDisk {
    pub fn new() -> TableDisk {
        let files = vec![Vec::new(); FILES as usize];
        TableDisk {
            live: files.clone(),
            durable: files,
            unsynced: vec![BTreeSet::new(); FILES as usize],
            ..TableDisk::default()
        }
    }

    pub fn file(&self, file: usize) -> &[u8] {
        &self.live[file]
    }

    pub fn start(&mut self, operation: DiskOperation) {
        match operation {
            DiskOperation::Read { .. } => self.reads.push(operation),
            _ => self.writes.push_back(operation),
        }
    }

    pub fn write(&mut self, file: usize, offset: usize, data: &[u8]) {
        let end = offset + data.len();
        for image in [&mut self.live[file], &mut self.durable[file]] {
            image.resize(image.len().max(end), 0);
        }
        self.live[file][offset..end].copy_from_slice(data);
        self.unsynced[file].extend((offset..end).step_by(512));
        self.bytes += data.len() as u64;
    }

    pub fn sync(&mut self, file: usize) {
        for at in std::mem::take(&mut self.unsynced[file]) {
            self.durable[file][at..at + 512].copy_from_slice(&self.live[file][at..at + 512]);
        }
    }

    /// Carries out the oldest write or sync.
    pub fn finish(&mut self) -> Option<DiskResult> {
        let id = match self.writes.pop_front()? {
            DiskOperation::Write { id, file, offset, data, sync } => {
                self.write(file as usize, offset as usize, &data);
                if sync {
                    self.sync(file as usize);
                }
                id
            }
            DiskOperation::Sync { id, file } => {
                self.sync(file as usize);
                id
            }
            DiskOperation::Read { .. } => unreachable!(),
        };
        Some(DiskResult::Done { id })
    }

    pub fn finish_read(&mut self) -> Option<DiskResult> {
        let DiskOperation::Read { id, file, offset, bytes } = self.reads.pop()? else {
            unreachable!()
        };
        let mut data = vec![0; bytes];
        let file = &self.live[file as usize];
        let from = (offset as usize).min(file.len());
        let have = bytes.min(file.len() - from);
        data[..have].copy_from_slice(&file[from..from + have]);
        Some(DiskResult::Data { id, data: Bytes::from(data) })
    }

    /// The process is gone, perhaps in the middle of a write, and perhaps with the power.
    pub fn cut(&mut self, power: bool, rng: &mut Rng) {
        if let Some(DiskOperation::Write { file, offset, data, .. }) = self.writes.pop_front() {
            let part = rng.below(data.len() as u64 / 512 + 1) as usize * 512;
            self.write(file as usize, offset as usize, &data[..part]);
        }
        self.writes.clear();
        self.reads.clear();
        if !power {
            return;
        }
        let keep = [0, 50, 90, 100][rng.below(4) as usize];
        for file in 0..self.live.len() {
            for at in std::mem::take(&mut self.unsynced[file]) {
                if rng.chance(keep) {
                    self.durable[file][at..at + 512]
                        .copy_from_slice(&self.live[file][at..at + 512]);
                }
            }
        }
        self.live = self.durable.clone();
    }
}
