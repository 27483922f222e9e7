//! Tests of the cache over a file in memory. The simulator tests the volume's use of the cache.

use super::*;
use crate::pack::{DATA_KEY_BYTES, DataKey, Keys, SEAL_BYTES};
use crate::wire::link::HostId;
use std::collections::BTreeMap;

const VOLUME: VolumeId = VolumeId(5);
const NOW: Time = Time(1);

fn moment(seq: u64) -> Moment {
    Moment { epoch: 1, host: HostId(1), seq }
}

pub(super) struct Rig {
    pub cache: Cache,
    file: Vec<u8>,
    geometry: Geometry,
    reads: BTreeMap<u64, Result<Bytes, Unusable>>,
    failed: Option<String>,
    broken: bool,
    /// The version of all blocks.
    version: Version,
}

impl Rig {
    pub fn new(sets: u32, ways: u16) -> Rig {
        let geometry = Geometry::new(sets, ways).unwrap();
        Rig {
            cache: Cache::fresh(geometry, VOLUME, 77),
            file: vec![0; geometry.bytes() as usize],
            geometry,
            reads: BTreeMap::new(),
            failed: None,
            broken: false,
            version: Version::Unknown,
        }
    }

    fn run(&mut self) {
        self.cache.settle(NOW, moment(1), false);
        while let Some(operation) = self.cache.poll_disk() {
            let result = match operation {
                DiskOperation::Write { id, .. } | DiskOperation::Sync { id, .. } if self.broken => {
                    DiskResult::Failed { id, error: "broken".into() }
                }
                DiskOperation::Write { id, offset, data, .. } => {
                    let at = offset as usize;
                    self.file[at..at + data.len()].copy_from_slice(&data);
                    DiskResult::Done { id }
                }
                DiskOperation::Sync { id, .. } => DiskResult::Done { id },
                DiskOperation::Read { id, offset, bytes, .. } => {
                    let at = offset as usize;
                    DiskResult::Data {
                        id,
                        data: Bytes::copy_from_slice(&self.file[at..at + bytes]),
                    }
                }
            };
            let version = self.version;
            match self.cache.handle_disk_versions(NOW, result, &mut |_| version) {
                Outcome::None => {}
                Outcome::Read(reader, _, result) => {
                    self.reads.insert(reader.read, result);
                }
                Outcome::Failed(error, _) => self.failed = Some(error),
            }
            self.cache.settle(NOW, moment(1), false);
        }
    }

    fn offer(&mut self, source: Source, range: Range) {
        let (version, piece) = (self.version, ReadPiece::Data(content(range)));
        self.cache.offer_versions(NOW, source, range, &[piece], &mut |_| version);
        self.run();
    }

    /// Acts like a client: reads, and offers the data on a miss. True on a hit.
    pub fn access(&mut self, range: Range) -> bool {
        let hit = self.cache.cover(range).iter().all(|(_, found)| *found != Found::Absent);
        if !hit {
            self.cache.missed(range.bytes());
            self.offer(Source::Read, range);
        }
        hit
    }

    fn read(&mut self, range: Range) -> Vec<(Range, Option<Result<Bytes, Unusable>>)> {
        let runs = self.cache.cover(range);
        for (n, (part, found)) in (0..).zip(&runs) {
            if let Found::At(at) = found {
                self.cache.read(Reader { read: n, slot: 0 }, *part, *at);
            }
        }
        self.run();
        let mut reads = std::mem::take(&mut self.reads);
        runs.iter().zip(0..).map(|((part, _), n)| (*part, reads.remove(&n))).collect()
    }

    /// Ends the process, after a write of the index if `orderly`, and begins another.
    fn restart(&mut self, orderly: bool) -> Loaded {
        if orderly {
            self.cache.settle(NOW, moment(2), true);
            self.run();
            assert!(self.cache.is_settled(moment(2)));
        }
        let mut load = Load::new(self.geometry, Some(VOLUME));
        while let Some(DiskOperation::Read { id, offset, bytes, .. }) = load.poll_disk() {
            let at = offset as usize;
            let data = Bytes::copy_from_slice(&self.file[at..at + bytes]);
            load.handle_disk(DiskResult::Data { id, data });
        }
        let report = load.report();
        self.cache = load.finish(VOLUME, 78);
        self.cache.set_interval(Duration::from_secs(1));
        report
    }
}

fn content(range: Range) -> Bytes {
    (range.lba..range.end()).flat_map(|lba| [lba as u8 ^ 0x5a; 512]).collect::<Vec<u8>>().into()
}

pub(super) fn line(n: u64) -> Range {
    Range::new(n * LINE_SECTORS, LINE_SECTORS)
}

fn rig() -> Rig {
    let mut rig = Rig::new(3, 4);
    rig.cache.set_interval(Duration::from_secs(1));
    rig.run();
    rig
}

#[test]
fn what_was_offered_is_found_in_one_piece() {
    let mut rig = rig();
    rig.offer(Source::Read, Range::new(0, 64));
    // Lines of neighboring sets lie side by side: one read covers them, limited to the range.
    let range = Range::new(13, 40);
    assert_eq!(rig.read(range), [(range, Some(Ok(content(range))))]);
    let parts = rig.cache.cover(Range::new(60, 12));
    assert_eq!(parts.len(), 2);
    assert_eq!(parts[1], (Range::new(64, 8), Found::Absent));
}

#[test]
fn parts_of_blocks_are_not_taken_and_pieces_are_put_together() {
    let mut rig = rig();
    let pieces = [
        ReadPiece::Data(content(Range::new(4, 8))),
        ReadPiece::Zeroes(2),
        ReadPiece::Data(content(Range::new(14, 5))),
    ];
    rig.cache.offer(NOW, Source::Read, Range::new(4, 15), &pieces);
    rig.run();
    assert_eq!(rig.cache.status().valid_bytes, BLOCK_BYTES);
    let read = rig.read(Range::new(8, 8));
    let mut expected = content(Range::new(8, 8)).to_vec();
    expected[4 * 512..6 * 512].fill(0);
    assert_eq!(read, [(Range::new(8, 8), Some(Ok(Bytes::from(expected))))]);
}

#[test]
fn zeroes_need_no_disk() {
    let mut rig = rig();
    rig.cache.offer(NOW, Source::Read, Range::new(0, 16), &[ReadPiece::Zeroes(16)]);
    assert!(rig.cache.poll_disk().is_none());
    assert_eq!(rig.cache.cover(Range::new(3, 9)), [(Range::new(3, 9), Found::Zero)]);
    rig.restart(true);
    rig.cache.handle_changes(NOW, &Changes::Ranges(Vec::new()));
    assert_eq!(rig.cache.cover(Range::new(3, 9)), [(Range::new(3, 9), Found::Zero)]);
}

#[test]
fn a_restart_waits_for_the_store_and_forgets_what_it_names() {
    let mut rig = rig();
    rig.offer(Source::Read, Range::new(0, 64));
    assert_eq!(rig.restart(true).valid_bytes, 64 * 512);
    assert_eq!(rig.cache.asks(), Some(moment(2)));
    assert_eq!(rig.cache.cover(line(0)), [(line(0), Found::Absent)], "not before the store's word");
    rig.cache.forget(NOW, Range::new(0, 1));
    rig.cache.handle_changes(NOW, &Changes::Ranges(vec![Range::new(40, 9)]));
    assert_eq!(rig.cache.status().dropped_bytes, 2 * BLOCK_BYTES);
    let absent = |rig: &mut Rig, lba| rig.cache.cover(Range::new(lba, 1))[0].1 == Found::Absent;
    let gone: Vec<u64> = (0..64).filter(|lba| absent(&mut rig, *lba)).collect();
    assert_eq!(gone, (0..8).chain(40..56).collect::<Vec<u64>>());
    rig.restart(true);
    rig.cache.handle_changes(NOW, &Changes::Unknown);
    assert!(rig.cache.status().dropped_all);
    assert_eq!(rig.cache.status().valid_bytes, 0);
}

#[test]
fn a_crash_costs_what_the_index_had_not_said() {
    let mut rig = rig();
    rig.offer(Source::Read, line(0));
    rig.restart(true);
    rig.cache.handle_changes(NOW, &Changes::Ranges(Vec::new()));
    rig.offer(Source::Read, line(1));
    assert_eq!(rig.restart(false).valid_bytes, LINE_BYTES);
}

#[test]
fn damage_is_a_miss_and_only_once() {
    let mut rig = rig();
    rig.offer(Source::Read, line(0));
    let at = rig.geometry.block_at(rig.cache.index.find(0).unwrap(), 2) as usize;
    rig.file[at + 100] ^= 1;
    let read = rig.read(line(0));
    assert!(matches!(read[..], [(_, Some(Err(Unusable::Damaged(_))))]), "{read:?}");
    assert_eq!(rig.cache.status().counters.damaged_blocks, 1);
    let found: Vec<_> = rig.cache.cover(line(0)).iter().map(|(part, _)| part.sectors).collect();
    assert_eq!(found, [16, 8, 8], "the others are still there");
}

#[test]
fn a_lost_write_of_a_block_or_page_is_noticed() {
    let mut rig = rig();
    rig.offer(Source::Read, line(0));
    rig.restart(true);
    let old = rig.file.clone();
    rig.cache.handle_changes(NOW, &Changes::Ranges(Vec::new()));
    rig.cache.forget(NOW, line(0));
    rig.offer(Source::Read, line(0));
    // A different stamp, so that the old block does not pass for the new one.
    let at = rig.geometry.block_at(rig.cache.index.find(0).unwrap(), 0) as usize;
    rig.file[at..at + RECORD_BYTES].copy_from_slice(&old[at..at + RECORD_BYTES]);
    assert!(matches!(rig.read(Range::new(0, 8))[0].1, Some(Err(Unusable::Damaged(_)))));
    assert_eq!(rig.restart(true).bad_pages, 0);
    let page = rig.geometry.page_at(0) as usize;
    rig.file[page..page + format::PAGE_BYTES]
        .copy_from_slice(&old[page..page + format::PAGE_BYTES]);
    let report = rig.restart(false);
    assert_eq!((report.bad_pages, report.valid_bytes), (1, 0));
}

#[test]
fn a_write_meanwhile_spoils_what_is_on_its_way() {
    let mut rig = rig();
    rig.cache.offer(NOW, Source::Read, line(0), &[ReadPiece::Data(content(line(0)))]);
    rig.cache.forget(NOW, Range::new(9, 1));
    rig.run();
    assert_eq!(rig.cache.status().valid_bytes, 3 * BLOCK_BYTES);
    assert_eq!(rig.cache.cover(Range::new(8, 8)), [(Range::new(8, 8), Found::Absent)]);
}

#[test]
fn a_broken_disk_turns_the_cache_off() {
    let mut rig = rig();
    rig.offer(Source::Read, line(0));
    rig.broken = true;
    rig.offer(Source::Read, line(1));
    assert_eq!(rig.failed.as_deref(), Some("broken"));
    assert!(rig.cache.status().off);
    assert_eq!(rig.cache.cover(line(0)), [(line(0), Found::Absent)]);
    rig.offer(Source::Read, line(2));
    assert!(rig.cache.poll_disk().is_none() && rig.cache.is_settled(moment(9)));
}

#[test]
fn a_scan_neither_empties_nor_rewrites_the_cache() {
    let mut rig = Rig::new(5, 63);
    let lines = 5 * 63;
    let hot = lines * 3 / 4;
    for _ in 0..4 {
        for n in 0..hot {
            rig.access(line(n));
        }
    }
    let before = rig.cache.status().counters.written_bytes;
    for n in 1000..1000 + 10 * lines {
        rig.access(line(n));
    }
    let written = rig.cache.status().counters.written_bytes - before;
    let capacity = rig.cache.status().capacity_bytes;
    assert!(written < capacity / 2, "{written} of {capacity}");
    let left = (0..hot).filter(|n| rig.access(line(*n))).count() as u64;
    assert!(left * 10 >= hot * 9, "{left} of {hot}");
}

#[test]
fn another_working_set_gets_in() {
    let mut rig = Rig::new(5, 63);
    let lines = 5 * 63;
    for round in 0..3 {
        for n in 0..lines {
            rig.access(line(n));
        }
        assert!(round < 1 || rig.cache.status().counters.hit_bytes > 0);
    }
    let mut hits = 0;
    for _ in 0..30 {
        hits = (0..lines / 2).filter(|n| rig.access(line(5000 + n))).count() as u64;
    }
    assert!(hits * 10 >= lines / 2 * 9, "{hits} of {}", lines / 2);
}

#[test]
fn memory_is_a_thousandth_of_the_file() {
    for bytes in [MIN_CACHE_BYTES, 1 << 30, 10 << 30, 1 << 40, MAX_CACHE_BYTES] {
        let geometry = Geometry::for_size(bytes).unwrap();
        assert!(geometry.bytes() <= bytes);
        assert!(geometry.capacity_bytes() >= bytes / 100 * 98 - (2 << 20), "{bytes}");
        let slots = geometry.capacity_bytes() / LINE_BYTES;
        let pages = geometry.pages() as u64;
        // Index, hands of 63 slots, rounds and two sets of pages.
        let memory = slots * 15 + slots / 63 * 3 + pages * 4 + pages / 4 + 1;
        assert!(memory <= bytes / 1000, "{memory} for {bytes}");
    }
    assert_eq!(Geometry::for_size(1 << 19), None);
    assert_eq!(Geometry::for_size(MAX_CACHE_BYTES + 1), None);
}

// --- sealed ---

const OLD: Version = Version::Is([5; 8]);
const NEW: Version = Version::Is([5, 5, 5, 5, 5, 5, 5, 6]);

/// The sealer of one opening of the keys. Each opening has its own salt.
fn sealer(salt: u8) -> Option<Sealer> {
    let keys = BTreeMap::from([(1, DataKey::new([3; DATA_KEY_BYTES]))]);
    Some(Sealer::new(VOLUME, Keys::new([salt; 12], keys).unwrap()))
}

fn sealed_rig() -> Rig {
    let mut rig = Rig::new(3, 4);
    rig.cache.set_interval(Duration::from_secs(1));
    rig.cache.seal(sealer(1));
    rig.version = OLD;
    rig.run();
    rig
}

impl Rig {
    /// The content that the cache gives out for a range. `None` if it lacks a part.
    fn given(&mut self, range: Range) -> Option<Vec<u8>> {
        let mut all = Vec::new();
        for (_, outcome) in self.read(range) {
            all.extend_from_slice(&outcome?.ok()?);
        }
        Some(all)
    }

    fn restart_sealed(&mut self, salt: u8) -> Loaded {
        let loaded = self.restart(true);
        self.cache.seal(sealer(salt));
        self.cache.handle_changes(NOW, &Changes::Ranges(Vec::new()));
        loaded
    }
}

fn is_there(file: &[u8], data: &[u8]) -> bool {
    file.windows(data.len()).any(|window| window == data)
}

#[test]
fn what_is_sealed_is_not_on_the_disk_in_plain_text_and_comes_back() {
    let mut rig = sealed_rig();
    rig.offer(Source::Read, Range::new(0, 64));
    assert!(!(0..64).any(|lba| is_there(&rig.file, &content(Range::new(lba, 1))[..64])));
    for range in [Range::new(0, 64), Range::new(5, 1), Range::new(3, 30)] {
        assert_eq!(rig.given(range), Some(content(range).to_vec()));
    }
    let loaded = rig.restart_sealed(2);
    assert!(loaded.sealed && loaded.valid_bytes == 32 << 10);
    assert_eq!(rig.given(Range::new(0, 64)), Some(content(Range::new(0, 64)).to_vec()));
    assert_eq!(rig.cache.status().counters.damaged_blocks, 0);
    let zeroes = line(20);
    rig.cache.offer_versions(NOW, Source::Read, zeroes, &[ReadPiece::Zeroes(32)], &mut |_| OLD);
    rig.run();
    assert!(rig.cache.cover(zeroes).iter().all(|(_, found)| matches!(found, Found::At(_))));
    assert_eq!(rig.given(zeroes), Some(vec![0; 16 << 10]));
}

#[test]
fn an_older_version_is_a_miss_also_if_nobody_said_that_it_was_written() {
    let mut rig = sealed_rig();
    rig.offer(Source::Read, line(0));
    rig.restart_sealed(2);
    rig.version = Version::Unknown;
    assert_eq!(rig.given(line(0)), None);
    rig.version = OLD;
    assert!(rig.given(line(0)).is_some(), "what is not known may come to be");
    rig.version = NEW;
    let outcome = rig.read(Range::new(8, 8)).remove(0).1;
    assert_eq!(outcome, Some(Err(Unusable::Replaced)));
    assert_eq!(rig.cache.cover(Range::new(8, 8))[0].1, Found::Absent);
    rig.version = OLD;
    assert_eq!(rig.given(Range::new(8, 8)), None, "it does not come back");
    assert!(rig.given(Range::new(0, 8)).is_some());
    assert_eq!(rig.cache.status().counters.damaged_blocks, 0);
}

#[test]
fn what_has_no_known_version_is_not_taken() {
    let mut rig = sealed_rig();
    for (version, taken) in [(Version::Unknown, true), (Version::Later, false)] {
        let data = [ReadPiece::Data(content(line(0)))];
        let offered = rig.cache.offer_versions(NOW, Source::Warm, line(0), &data, &mut |_| version);
        assert_eq!(offered, taken, "{version:?}");
    }
    rig.cache.offer(NOW, Source::Read, line(0), &[ReadPiece::Data(content(line(0)))]);
    rig.run();
    assert_eq!(rig.cache.status().valid_bytes, 0);
}

#[test]
fn a_cache_of_the_other_kind_is_empty() {
    let mut rig = rig();
    rig.version = OLD;
    rig.offer(Source::Read, line(0));
    rig.cache.offer(NOW, Source::Read, line(1), &[ReadPiece::Zeroes(32)]);
    rig.run();
    assert!(!rig.restart_sealed(2).sealed);
    assert_eq!(rig.cache.status().valid_bytes, 0);
    rig.offer(Source::Read, line(0));
    assert!(rig.restart(true).sealed);
    rig.cache.seal(None);
    rig.cache.handle_changes(NOW, &Changes::Ranges(Vec::new()));
    assert_eq!((rig.given(line(0)), rig.cache.status().valid_bytes), (None, 0));
}

#[test]
fn damage_of_a_sealed_block_is_a_miss() {
    let mut rig = sealed_rig();
    for n in 0..RECORD_BYTES {
        if n % 97 != 0 && n < RECORD_BYTES - 16 - SEAL_BYTES {
            continue;
        }
        rig.offer(Source::Read, Range::new(0, 8));
        let [(range, Found::At(at))] = rig.cache.cover(Range::new(0, 8))[..] else { panic!() };
        rig.file[at as usize + n] ^= 1 << (n % 8);
        rig.cache.read(Reader { read: 0, slot: 0 }, range, at);
        rig.run();
        assert!(matches!(rig.reads.remove(&0), Some(Err(Unusable::Damaged(_)))), "byte {n}");
        assert_eq!(rig.cache.cover(range)[0].1, Found::Absent);
    }
}
