//! A disk with a page cache, for a host's journal files.
//!
//! Promises: a read sees every completed write, until the power goes. A sync covers only writes
//! that were complete when it began. These survive a power cut after its end. Any part of the other
//! data survives, torn at 512 bytes. A process crash loses only operations under way. After a
//! failed sync the cached pages count as clean although they never reached the disk, as on Linux. A
//! sync that was under way with these pages fails too. A later one succeeds and does not save them.
//!
//! It knows nothing of journals: files are numbered byte arrays.

use crate::rng::Rng;
use std::collections::BTreeMap;

/// Smallest unit that the disk writes as a whole.
pub const SECTOR: usize = 512;
const PAGE_SECTORS: usize = 8;

#[derive(Clone, Debug)]
struct File {
    /// What reads see.
    live: Vec<u8>,
    /// The bytes that survive a power cut.
    durable: Vec<u8>,
    /// Sectors in which both may differ and that the next sync writes, with the moment of the last
    /// write there.
    dirty: BTreeMap<usize, Moment>,
    /// Extents of the writes since the last sync, in order.
    writes: Vec<Extent>,
    /// Sectors that a failed sync left behind, with the moment of the failure: live and durable
    /// bytes differ until the next write there.
    limbo: BTreeMap<usize, Moment>,
}

/// Counts what happens to a disk.
type Moment = u64;

/// Where a write went.
#[derive(Clone, Copy, Debug)]
struct Extent {
    first: usize,
    sectors: usize,
    moment: Moment,
}

/// A sync under way.
#[derive(Clone, Copy, Debug)]
pub struct Covered {
    file: u32,
    /// It covers the writes before this moment.
    began: Moment,
}

/// The files of one journal.
#[derive(Clone, Debug)]
pub struct Disk {
    files: Vec<File>,
    moment: Moment,
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
            dirty: BTreeMap::new(),
            writes: Vec::new(),
            limbo: BTreeMap::new(),
        };
        Disk { files: vec![file; files as usize], moment: 0, damaged: false }
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
        let moment = self.tick();
        let (offset, file) = (offset as usize, &mut self.files[file as usize]);
        file.live[offset..offset + data.len()].copy_from_slice(data);
        let (first, sectors) = extent(offset, data.len());
        for sector in first..first + sectors {
            file.dirty.insert(sector, moment);
            file.limbo.remove(&sector);
        }
        file.writes.push(Extent { first, sectors, moment });
    }

    /// A write that ends when its own data is durable.
    pub fn write_durably(&mut self, file: u32, offset: u64, data: &[u8]) {
        self.write(file, offset, data);
        let file = &mut self.files[file as usize];
        let (first, sectors) = extent(offset as usize, data.len());
        for sector in first..first + sectors {
            file.dirty.remove(&sector);
            file.keep(sector);
        }
        file.writes.pop();
    }

    /// A write of that kind that fails: its data is in the page cache, and parts of it on the disk.
    pub fn fail_write_durably(&mut self, file: u32, offset: u64, data: &[u8], rng: &mut Rng) {
        self.write(file, offset, data);
        let moment = self.tick();
        let file = &mut self.files[file as usize];
        let (first, sectors) = extent(offset as usize, data.len());
        for sector in first..first + sectors {
            file.dirty.remove(&sector);
            file.keep_or_forget(sector, moment, rng);
        }
        file.writes.pop();
    }

    /// Makes a file durable.
    pub fn sync(&mut self, file: u32) {
        let covered = self.begin_sync(file);
        let kept = self.finish_sync(covered);
        debug_assert!(kept, "nothing happened meanwhile");
    }

    /// Begins a sync of everything written to a file so far.
    #[must_use]
    pub fn begin_sync(&mut self, file: u32) -> Covered {
        Covered { file, began: self.tick() }
    }

    /// Ends a sync. False if a part of the writes that it covers was lost meanwhile.
    #[must_use]
    pub fn finish_sync(&mut self, Covered { file, began }: Covered) -> bool {
        let file = &mut self.files[file as usize];
        for sector in file.take_covered(began) {
            file.keep(sector);
        }
        file.limbo.values().all(|failed| *failed < began)
    }

    /// A sync that fails: some pages made it, the others never will.
    pub fn fail_sync(&mut self, Covered { file, began }: Covered, rng: &mut Rng) {
        let moment = self.tick();
        let file = &mut self.files[file as usize];
        for sector in file.take_covered(began) {
            file.keep_or_forget(sector, moment, rng);
        }
    }

    fn tick(&mut self) -> Moment {
        self.moment += 1;
        self.moment
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
            let dirty: Vec<usize> = std::mem::take(&mut file.dirty).into_keys().collect();
            let whole = rng.index(file.writes.len() + 1);
            let odds = rng.between(1, 99);
            let mut page = (usize::MAX, false);
            let mut kept = 0;
            for sector in &dirty {
                let keep = match mode {
                    0 => false,
                    1 => true,
                    // A prefix of the writes, the last of them torn.
                    2 => file.writes[..whole].iter().enumerate().any(|(n, extent)| {
                        let Extent { first, sectors, .. } = *extent;
                        let cut = if n + 1 == whole { sectors / 2 } else { sectors };
                        (first..first + cut).contains(sector)
                    }),
                    // The newest writes only: the elevator took them first.
                    3 => file.writes[whole..].iter().any(|&Extent { first, sectors, .. }| {
                        (first..first + sectors).contains(sector)
                    }),
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

    /// A failure: the sector made it, or never will.
    fn keep_or_forget(&mut self, sector: usize, moment: Moment, rng: &mut Rng) {
        if rng.percent(50) {
            self.keep(sector);
        } else {
            self.limbo.insert(sector, moment);
        }
    }

    /// The dirty sectors that nobody wrote to since `began`. They are clean from now on.
    fn take_covered(&mut self, began: Moment) -> Vec<usize> {
        self.writes.retain(|write| write.moment > began);
        let covered = self.dirty.extract_if(.., |_, moment| *moment < began);
        covered.map(|(sector, _)| sector).collect()
    }
}

/// The first sector of a range, and how many there are.
fn extent(offset: usize, bytes: usize) -> (usize, usize) {
    let first = offset / SECTOR;
    (first, (offset + bytes).div_ceil(SECTOR) - first)
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
            let beside = disk.begin_sync(0);
            let failing = disk.begin_sync(0);
            disk.fail_sync(failing, &mut rng);
            assert_eq!(disk.read(0, 0, 4096), [1; 4096]);
            let all_kept = disk.files[0].limbo.is_empty();
            assert_eq!(disk.finish_sync(beside), all_kept, "it covers the same write");
            let later = disk.begin_sync(0);
            assert!(disk.finish_sync(later));
            disk.cut_power(&mut rng);
            lost |= disk.read(0, 0, 4096) != [1; 4096];
        }
        assert!(lost);
    }

    #[test]
    fn a_sync_covers_what_was_complete_when_it_began() {
        let (mut kept, mut lost) = (0, 0);
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let mut disk = Disk::new(1, 64 << 10);
            disk.write(0, 0, &[1; 4096]);
            let covered = disk.begin_sync(0);
            disk.write(0, 4096, &[2; 4096]);
            disk.write_durably(0, 8192, &[3; 4096]);
            assert!(disk.finish_sync(covered));
            disk.cut_power(&mut rng);
            assert_eq!(disk.read(0, 0, 4096), [1; 4096]);
            assert_eq!(disk.read(0, 8192, 4096), [3; 4096]);
            match disk.read(0, 4096, 4096) == [2; 4096] {
                true => kept += 1,
                false => lost += 1,
            }
        }
        assert!(kept > 0 && lost > 0, "{kept} {lost}");
    }
}
