//! A disk with a page cache, for a host's journal files.
//!
//! Promises: a read sees every completed write, until the power goes. Synced data survives a power
//! cut. Any part of the other data survives, torn at 512 bytes. A process crash loses only
//! operations that had not started. After a failed sync the cached pages count as clean although
//! they never reached the disk, as on Linux. A later sync does not save them.
//!
//! It knows nothing of journals: files are numbered byte arrays.

use crate::rng::Rng;
use std::collections::BTreeSet;

/// Smallest unit that the disk writes as a whole.
pub const SECTOR: usize = 512;
const PAGE_SECTORS: usize = 8;

#[derive(Clone, Debug)]
struct File {
    /// What reads see.
    live: Vec<u8>,
    /// The bytes that survive a power cut.
    durable: Vec<u8>,
    /// Sectors in which both may differ and that the next sync writes.
    dirty: BTreeSet<usize>,
    /// Extents of the writes since the last sync, in order: (first sector, sectors).
    writes: Vec<(usize, usize)>,
    /// Sectors that a failed sync left behind: live and durable bytes differ until the next write
    /// there.
    limbo: BTreeSet<usize>,
}

/// The files of one journal.
#[derive(Clone, Debug)]
pub struct Disk {
    files: Vec<File>,
    /// Whether a fault destroyed stable data: explicit errors are allowed from then on.
    pub damaged: bool,
}

impl Disk {
    /// `files` files of `bytes` zero bytes, durable.
    #[must_use]
    pub fn new(files: u32, bytes: u64) -> Disk {
        let file = File {
            live: vec![0; bytes as usize],
            durable: vec![0; bytes as usize],
            dirty: BTreeSet::new(),
            writes: Vec::new(),
            limbo: BTreeSet::new(),
        };
        Disk { files: vec![file; files as usize], damaged: false }
    }

    /// Number of files.
    #[must_use]
    pub fn files(&self) -> u32 {
        self.files.len() as u32
    }

    /// Syncs everything and drops the cache, as a host does before it recovers a journal. From then
    /// on reads see the bytes of the disk, also where a failed sync had left other bytes. True if
    /// there were any.
    pub fn settle(&mut self) -> bool {
        let mut deceived = false;
        for file in 0..self.files() {
            self.sync(file);
            let file = &mut self.files[file as usize];
            deceived |= !std::mem::take(&mut file.limbo).is_empty();
            file.live.copy_from_slice(&file.durable);
        }
        deceived
    }

    /// Length of a file in bytes.
    #[must_use]
    pub fn length(&self, file: u32) -> u64 {
        self.files.get(file as usize).map_or(0, |f| f.live.len() as u64)
    }

    /// Whether a range lies within a file.
    #[must_use]
    pub fn holds(&self, file: u32, offset: u64, bytes: usize) -> bool {
        self.files.get(file as usize).is_some_and(|f| {
            offset <= f.live.len() as u64 && bytes as u64 <= f.live.len() as u64 - offset
        })
    }

    /// The content of the page cache.
    #[must_use]
    pub fn read(&self, file: u32, offset: u64, bytes: usize) -> Vec<u8> {
        self.files[file as usize].live[offset as usize..offset as usize + bytes].to_vec()
    }

    /// Puts data into the page cache.
    pub fn write(&mut self, file: u32, offset: u64, data: &[u8]) {
        let (offset, file) = (offset as usize, &mut self.files[file as usize]);
        file.live[offset..offset + data.len()].copy_from_slice(data);
        let first = offset / SECTOR;
        let sectors = (offset + data.len()).div_ceil(SECTOR) - first;
        file.dirty.extend(first..first + sectors);
        for sector in first..first + sectors {
            file.limbo.remove(&sector);
        }
        file.writes.push((first, sectors));
    }

    /// Makes a file durable.
    pub fn sync(&mut self, file: u32) {
        let file = &mut self.files[file as usize];
        for sector in std::mem::take(&mut file.dirty) {
            file.keep(sector);
        }
        file.writes.clear();
    }

    /// A sync that fails: some pages made it, the others never will.
    pub fn fail_sync(&mut self, file: u32, rng: &mut Rng) {
        let file = &mut self.files[file as usize];
        for sector in std::mem::take(&mut file.dirty) {
            if rng.percent(50) {
                file.keep(sector);
            } else {
                file.limbo.insert(sector);
            }
        }
        file.writes.clear();
    }

    /// A write cut short after a whole number of sectors, by an error or the end of the process.
    pub fn write_part(&mut self, file: u32, offset: u64, data: &[u8], rng: &mut Rng) {
        let keep = match rng.below(3) {
            0 => 0,
            1 => data.len(),
            _ => rng.index(data.len() / SECTOR + 1) * SECTOR,
        };
        if keep > 0 {
            self.write(file, offset, &data[..keep]);
        }
    }

    /// Cuts the power. True if a part of the unsynced data survived and a part did not.
    pub fn cut_power(&mut self, rng: &mut Rng) -> bool {
        let mode = rng.below(6);
        let mut torn = false;
        for file in &mut self.files {
            let dirty: Vec<usize> = std::mem::take(&mut file.dirty).into_iter().collect();
            let whole = rng.index(file.writes.len() + 1);
            let odds = rng.between(1, 99);
            let mut page = (usize::MAX, false);
            let mut kept = 0;
            for sector in &dirty {
                let keep = match mode {
                    0 => false,
                    1 => true,
                    // A prefix of the writes, the last of them torn.
                    2 => file.writes[..whole].iter().enumerate().any(|(n, &(first, sectors))| {
                        let cut = if n + 1 == whole { sectors / 2 } else { sectors };
                        (first..first + cut).contains(sector)
                    }),
                    // The newest writes only: the elevator took them first.
                    3 => file.writes[whole..]
                        .iter()
                        .any(|&(first, sectors)| (first..first + sectors).contains(sector)),
                    4 => {
                        if page.0 != sector / PAGE_SECTORS {
                            page = (sector / PAGE_SECTORS, rng.percent(odds));
                        }
                        page.1
                    }
                    _ => rng.percent(odds),
                };
                if keep {
                    file.keep(*sector);
                    kept += 1;
                }
            }
            torn |= kept > 0 && kept < dirty.len();
            file.writes.clear();
            file.limbo.clear();
            file.live.copy_from_slice(&file.durable);
        }
        torn
    }

    /// Flips a bit on the disk itself.
    pub fn flip(&mut self, file: u32, offset: u64, bytes: usize, rng: &mut Rng) {
        if bytes == 0 {
            return;
        }
        let at = offset as usize + rng.index(bytes);
        let bit = 1 << rng.below(8);
        let file = &mut self.files[file as usize];
        file.live[at] ^= bit;
        file.durable[at] ^= bit;
        self.damaged = true;
    }

    /// A place of `bytes` bytes, aligned to 4 KiB, somewhere in the files.
    pub fn somewhere(&self, bytes: usize, rng: &mut Rng) -> (u32, u64) {
        let file = rng.index(self.files.len());
        let pages = (self.files[file].live.len().saturating_sub(bytes)) / 4096;
        (file as u32, rng.below(pages as u64 + 1) * 4096)
    }
}

impl File {
    fn keep(&mut self, sector: usize) {
        let start = sector * SECTOR;
        let end = (start + SECTOR).min(self.live.len());
        self.durable[start..end].copy_from_slice(&self.live[start..end]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synced_data_survives_a_power_cut_and_the_rest_may_not() {
        let (mut lost, mut kept, mut torn) = (0, 0, 0);
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let mut disk = Disk::new(2, 64 << 10);
            disk.write(0, 4096, &[1; 8192]);
            disk.sync(0);
            disk.write(0, 8192, &[2; 8192]);
            disk.write(1, 0, &[3; 4096]);
            assert_eq!(disk.read(0, 8192, 8192), [2; 8192]);
            disk.cut_power(&mut rng);
            assert_eq!(disk.read(0, 4096, 4096), [1; 4096]);
            let second = disk.read(0, 8192, 8192);
            let twos = second.iter().filter(|byte| **byte == 2).count();
            match twos {
                0 => lost += 1,
                8192 => kept += 1,
                _ => torn += 1,
            }
        }
        assert!(lost > 0 && kept > 0 && torn > 0, "{lost} {kept} {torn}");
    }

    #[test]
    fn a_failed_sync_is_not_made_good_by_the_next() {
        let mut lost = false;
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let mut disk = Disk::new(1, 64 << 10);
            disk.write(0, 0, &[1; 4096]);
            disk.fail_sync(0, &mut rng);
            assert_eq!(disk.read(0, 0, 4096), [1; 4096]);
            disk.sync(0);
            disk.cut_power(&mut rng);
            lost |= disk.read(0, 0, 4096) != [1; 4096];
        }
        assert!(lost);
    }
}
