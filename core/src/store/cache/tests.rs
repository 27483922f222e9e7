//! The cache over a file in memory that forgets and tears, against what the objects hold.

use super::*;
use crate::block::STAGED_BIT;
use crate::store::catalog;

const NOW: Time = Time(1);
const INSTALLATION: u128 = 99;

/// A small generator: the same numbers each time.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0) % n
    }
}

struct Rig {
    cache: ObjectCache,
    geometry: Geometry,
    /// The file as the process sees it, and the least that a power cut leaves of it.
    file: Vec<u8>,
    stable: Vec<u8>,
    written: Vec<std::ops::Range<usize>>,
    broken: bool,
    trouble: Vec<Trouble>,
}

fn load(geometry: Geometry, file: &[u8], installation: u128, tag: u128) -> ObjectCache {
    let mut load = ObjectCache::load(geometry, installation);
    while let Some(DiskOperation::Read { id, offset, bytes, .. }) = load.poll_disk() {
        let at = offset as usize;
        let data = Bytes::copy_from_slice(&file[at..at + bytes]);
        load.handle_disk(DiskResult::Data { id, data });
    }
    ObjectCache::new(NOW, load, installation, tag, Duration::ZERO)
}

impl Rig {
    fn new(sets: u32, ways: u16) -> Rig {
        let geometry = Geometry::new(sets, ways).unwrap();
        let file = vec![0; geometry.bytes() as usize];
        Rig {
            cache: load(geometry, &file, INSTALLATION, 7),
            geometry,
            stable: file.clone(),
            file,
            written: Vec::new(),
            broken: false,
            trouble: Vec::new(),
        }
    }

    fn run(&mut self) {
        self.cache.settle(NOW, false);
        while let Some(operation) = self.cache.poll_disk() {
            let result = self.execute(operation);
            self.trouble.extend(self.cache.handle_disk(NOW, result));
            self.cache.settle(NOW, false);
        }
    }

    fn execute(&mut self, operation: DiskOperation) -> DiskResult {
        match operation {
            DiskOperation::Write { id, .. } | DiskOperation::Sync { id, .. } if self.broken => {
                DiskResult::Failed { id, error: "broken".into() }
            }
            DiskOperation::Write { id, offset, data, sync, .. } => {
                let at = offset as usize;
                self.file[at..at + data.len()].copy_from_slice(&data);
                self.written.push(at..at + data.len());
                if sync {
                    self.sync();
                }
                DiskResult::Done { id }
            }
            DiskOperation::Sync { id, .. } => {
                self.sync();
                DiskResult::Done { id }
            }
            DiskOperation::Read { id, offset, bytes, .. } => {
                let at = offset as usize;
                DiskResult::Data { id, data: Bytes::copy_from_slice(&self.file[at..at + bytes]) }
            }
        }
    }

    fn sync(&mut self) {
        for range in self.written.drain(..) {
            self.stable[range.clone()].copy_from_slice(&self.file[range]);
        }
    }

    /// The power fails. Some of the unsynced sectors survive. Then another process begins.
    fn crash(&mut self, rng: &mut Rng) {
        for range in std::mem::take(&mut self.written) {
            for at in range.step_by(512) {
                if rng.below(2) == 0 {
                    let end = (at + 512).min(self.file.len());
                    self.stable[at..end].copy_from_slice(&self.file[at..end]);
                }
            }
        }
        self.file.clone_from(&self.stable);
        self.cache = load(self.geometry, &self.file, INSTALLATION, u128::from(rng.below(1 << 40)));
    }

    fn get(&mut self, object: ObjectId, range: std::ops::Range<u64>) -> Option<Bytes> {
        let id = self.cache.look_up(object, &range)?;
        self.run();
        let (found, data) = self.cache.poll_found().unwrap();
        assert_eq!(found, id);
        data
    }

    /// Works like a store: takes a hit, or offers the object store's answer to the cache.
    fn access(&mut self, object: ObjectId, bytes: u64, range: std::ops::Range<u64>) -> bool {
        if let Some(data) = self.get(object, range.clone()) {
            assert_eq!(data, content(object, bytes, &range), "{object:?} {range:?}");
            return true;
        }
        self.cache.missed(&range);
        let whole = ObjectCache::whole(&range);
        let data = content(object, bytes, &whole);
        self.cache.offer(NOW, Source::Read, object, &whole, &data);
        self.run();
        false
    }
}

fn object(volume: u128, number: u64) -> ObjectId {
    ObjectId { volume: VolumeId(volume), number }
}

/// The content of an object of `bytes` bytes.
fn content(object: ObjectId, bytes: u64, range: &std::ops::Range<u64>) -> Bytes {
    let salt = mix(object.volume.0 as u64 ^ mix(object.number));
    let range = range.start.min(bytes)..range.end.min(bytes);
    range.map(|at| mix(salt ^ (at / 8)).to_le_bytes()[at as usize % 8]).collect::<Vec<u8>>().into()
}

#[test]
fn what_was_read_is_found_to_the_end_of_the_object() {
    let mut rig = Rig::new(3, 63);
    let one = object(5, 1);
    for (range, first, again) in [
        (100..9000, false, true),
        (0..CELL_BYTES, true, true),
        // The object ends at 10,000, and its last cell knows; behind that nothing is ever here.
        (9999..10_000, true, true),
        (9000..12_000, true, true),
        (9000..30_000, false, false),
        (20_000..30_000, false, false),
    ] {
        assert_eq!(rig.access(one, 10_000, range.clone()), first, "{range:?}");
        assert_eq!(rig.access(one, 10_000, range.clone()), again, "{range:?}");
    }
    assert!(!rig.access(object(5, 2), 10_000, 0..10), "another object");
    let status = rig.cache.status();
    assert_eq!((status.collisions, status.cache.counters.damaged_blocks), (0, 0));
}

#[test]
fn a_cell_that_is_cut_off_by_the_request_is_not_taken_for_the_end() {
    let mut rig = Rig::new(3, 63);
    let one = object(5, 1);
    // Not whole cells, and not short: the rest of the second cell is unknown.
    let asked = 0..CELL_BYTES + 10;
    let data = content(one, 1 << 20, &asked);
    rig.cache.offer(NOW, Source::Read, one, &asked, &data);
    rig.run();
    assert!(rig.get(one, 0..CELL_BYTES).is_some());
    assert!(rig.get(one, CELL_BYTES..CELL_BYTES + 10).is_none());
}

#[test]
fn two_objects_at_one_place_are_told_apart() {
    // Places for few objects, so that they come to lie over each other.
    let mut rig = Rig::new(1, 8);
    let line = |rig: &Rig, number| rig.cache.line(object(5, number));
    let first = line(&rig, 0);
    // One that begins within what the first may have.
    let near = |number: &u64| (first..first + OBJECT_LINES).contains(&line(&rig, *number));
    let second = (1..40_000_000).find(near).unwrap();
    let behind = (line(&rig, second) - first) * LINE_BLOCKS * CELL_BYTES;
    let bytes = 128 << 20;
    assert!(!rig.access(object(5, 0), bytes, behind..behind + 100));
    assert!(rig.access(object(5, 0), bytes, behind..behind + 100));
    assert!(!rig.access(object(5, second), bytes, 0..100));
    assert_eq!(rig.cache.status().collisions, 1);
    assert!(rig.access(object(5, second), bytes, 0..100));
    assert!(rig.trouble.is_empty());
}

#[test]
fn deleted_and_bad_objects_are_forgotten() {
    let mut rig = Rig::new(3, 63);
    let (one, two) = (object(5, 1), object(5, STAGED_BIT | 1));
    for object in [one, two] {
        rig.access(object, 1 << 20, 0..100_000);
    }
    rig.cache.forget(NOW, one);
    rig.run();
    assert!(rig.get(one, 0..100).is_none() && rig.get(one, 90_000..90_001).is_none());
    assert!(rig.get(two, 0..100_000).is_some());
    rig.crash(&mut Rng(1));
    assert!(rig.get(one, 0..100).is_none(), "it is forgotten for good once the index is written");
    assert!(rig.get(two, 0..100_000).is_some());
}

#[test]
fn a_disk_that_fails_is_left_out() {
    let mut rig = Rig::new(3, 63);
    let one = object(5, 1);
    rig.access(one, 1 << 20, 0..100);
    rig.broken = true;
    rig.access(one, 1 << 20, 50_000..50_100);
    assert_eq!(rig.trouble, [Trouble::Failed("broken".into())]);
    assert!(rig.cache.status().cache.off);
    assert!(!rig.access(one, 1 << 20, 0..100));
}

#[test]
fn another_installation_or_rubbish_is_an_empty_cache() {
    let mut rig = Rig::new(3, 63);
    let one = object(5, 1);
    rig.access(one, 1 << 20, 0..100);
    assert!(rig.get(one, 0..100).is_some());
    rig.cache = load(rig.geometry, &rig.file, INSTALLATION + 1, 8);
    assert!(rig.get(one, 0..100).is_none());
    rig.cache = load(rig.geometry, &rig.file, INSTALLATION, 8);
    assert!(rig.get(one, 0..100).is_some());
    for byte in rig.file.iter_mut().step_by(37) {
        *byte ^= 0x10;
    }
    rig.cache = load(rig.geometry, &rig.file, INSTALLATION, 8);
    assert!(!rig.access(one, 1 << 20, 0..100));
}

/// The cache returns the content of the object, in spite of any fault of the disk.
#[test]
fn nothing_wrong_is_ever_given_out() {
    let (mut hits, mut hits_after_crash) = (0, 0);
    for seed in 0..60 {
        let mut rng = Rng(seed);
        let mut rig = Rig::new(1 + 2 * rng.below(2) as u32, 1 + rng.below(20) as u16);
        let mut crashed = false;
        for _ in 0..300 {
            let object = object(5, rng.below(6));
            let bytes = 1000 + mix(object.number) % 60_000;
            match rng.below(40) {
                0 => rig.cache.forget(NOW, object),
                1 => {
                    rig.crash(&mut rng);
                    crashed = true;
                }
                2 => {
                    let at = rng.below(rig.file.len() as u64) as usize;
                    rig.file[at] ^= 1;
                }
                3 => {
                    let whole = 0..bytes.next_multiple_of(CELL_BYTES);
                    let data = content(object, bytes, &whole);
                    rig.cache.offer(NOW, Source::Write, object, &whole, &data);
                    // The disk has not executed it: it is in progress during other reads, or a
                    // crash loses it.
                    if rng.below(2) == 0 {
                        rig.crash(&mut rng);
                    }
                }
                _ => {
                    let start = rng.below(bytes);
                    let end = start + 1 + rng.below(30_000);
                    let hit = rig.access(object, bytes, start..end);
                    hits += u64::from(hit);
                    hits_after_crash += u64::from(hit && crashed);
                }
            }
        }
    }
    assert!(hits > 1000 && hits_after_crash > 500, "{hits} {hits_after_crash}");
}

#[test]
fn keys_of_data_are_told_from_others() {
    for number in [0, 1, u64::from(u32::MAX), STAGED_BIT, STAGED_BIT | 77] {
        let key = catalog::data_key(VolumeId(0xabc), number);
        assert_eq!(catalog::parse_data_key(&key), Some((VolumeId(0xabc), number)), "{key}");
    }
    for key in [
        catalog::owner_key(VolumeId(1), 1),
        catalog::size_key(VolumeId(1), 1),
        catalog::attribute_key(VolumeId(1), "a", 1, 1),
        catalog::name_key("seg"),
        "v/1/seg/1".into(),
        String::new(),
    ] {
        assert_eq!(catalog::parse_data_key(&key), None, "{key}");
    }
}
