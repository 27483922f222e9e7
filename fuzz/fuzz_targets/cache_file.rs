//! Heads and index of a read cache with any bytes. Loading ends, asks only for bytes of the file,
//! and returns a cache that a volume can use. A client then reads either the data once written in
//! that place, or the store's data, and nothing else. The blocks in the file are sound. So a block
//! from another place must not pass, whatever the index claims.
//!
//! Input: settings, then heads and index. Bit 0 of the settings: put all checksums right. Bit 1:
//! the store says that it does not know the later writes. Bit 2: all ranges are pinned.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use longhaul_core::block::{Range, ReadPiece, Reply, Request, Time};
use longhaul_core::host::cache::{Cache, Geometry, Load, Pins};
use longhaul_core::host::{Config, DiskOperation, Mode, Volume};
use longhaul_core::wire::link::{Changes, ReadPart, ToHost, ToStore, encode_data};
use longhaul_fuzz::{seeds, world};
use std::sync::OnceLock;

const HEAD: usize = 4096;
const FRONT: usize = 3 * HEAD;
const TAG: u128 = 99;
const BLOCK: usize = 4096;
/// The written ranges: as many lines as there are slots, and half as many again.
const WRITTEN: Range = Range { lba: 0, sectors: 6 * 32 };

fn geometry() -> Geometry {
    Geometry::new(2, 2).unwrap()
}

struct Rig {
    host: Volume,
    file: Vec<u8>,
    epoch: u64,
    now: Time,
    data: Vec<u8>,
}

impl Rig {
    fn new(epoch: u64, committed: u64, cache: Cache, file: Vec<u8>) -> Rig {
        let now = Time(1);
        let config = Config::new(Mode::WriteThrough);
        let attached = world::attached(epoch, committed);
        let mut host = Volume::new(now, config, world::HOST, attached, None);
        host.set_cache(now, cache);
        Rig { host, file, epoch, now, data: Vec::new() }
    }

    fn run(&mut self, changes: &Changes) {
        let (volume, epoch) = (world::VOLUME, self.epoch);
        for _ in 0..200 {
            let mut idle = true;
            while let Some(operation) = self.host.poll_cache() {
                idle = false;
                let result = world::disk(std::slice::from_mut(&mut self.file), operation);
                self.host.handle_cache(self.now, result);
            }
            while let Some((_, frame)) = self.host.poll_message() {
                idle = false;
                let answer = match frame.message {
                    ToStore::Read { request, range, .. } => {
                        encode_data(request, volume, &[ReadPart::Hole(range.sectors)])
                    }
                    ToStore::Batch { last, .. } => {
                        ToHost::Committed { volume, epoch, seq: last }.into()
                    }
                    ToStore::Changed { request, .. } => {
                        ToHost::Changed { request, volume, result: Ok(changes.clone()) }.into()
                    }
                    ToStore::Detach { request, .. } => ToHost::Detached { request }.into(),
                    _ => continue,
                };
                self.host.handle_message(self.now, answer);
            }
            while let Some((_, reply)) = self.host.poll_reply() {
                if let Ok(Reply::Data(pieces)) = reply {
                    self.data.clear();
                    for piece in pieces {
                        match piece {
                            ReadPiece::Data(data) => self.data.extend_from_slice(&data),
                            ReadPiece::Zeroes(sectors) => {
                                self.data.resize(self.data.len() + sectors as usize * 512, 0);
                            }
                        }
                    }
                }
            }
            while self.host.poll_event().is_some() {}
            assert!(self.host.poll_disk().is_none(), "there is no journal");
            if idle {
                let Some(at) = self.host.poll_timeout() else { return };
                self.now = at;
                self.host.handle_timeout(at);
            }
        }
    }
}

fn content() -> Bytes {
    (0..WRITTEN.bytes()).map(|n| (n / 512 + n % 7) as u8 | 1).collect()
}

/// The file of a cache after an orderly end.
fn file() -> &'static [u8] {
    static FILE: OnceLock<Vec<u8>> = OnceLock::new();
    FILE.get_or_init(|| {
        let cache = Cache::fresh(geometry(), world::VOLUME, TAG);
        let mut rig = Rig::new(1, 0, cache, vec![0; geometry().bytes() as usize]);
        let changes = Changes::Ranges(Vec::new());
        rig.run(&changes);
        let request = Request::Write { range: WRITTEN, data: content(), fua: false };
        rig.host.handle_request(rig.now, 1, request);
        rig.run(&changes);
        rig.host.handle_shutdown(rig.now);
        rig.run(&changes);
        assert!(rig.host.is_detached());
        rig.file
    })
}

fn make_seeds() -> Vec<Vec<u8>> {
    [0, 1, 2, 5].map(|settings| [&[settings][..], &file()[..FRONT]].concat()).to_vec()
}

/// Checksums of two heads and a page, each over all but itself.
fn reseal(front: &mut [u8]) {
    for (page, at) in front.chunks_exact_mut(HEAD).zip([124, 124, 60]) {
        let crc = crc32c::crc32c_append(crc32c::crc32c(&page[..at]), &page[at + 4..]);
        page[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    }
}

fuzz_target!(init: seeds("cache_file", make_seeds), |data: &[u8]| {
    let Some((settings, front)) = data.split_first() else { return };
    let mut file = file().to_vec();
    let front = &front[..front.len().min(FRONT)];
    file[..front.len()].copy_from_slice(front);
    if settings & 1 == 1 {
        reseal(&mut file[..FRONT]);
    }
    let mut load = Load::new(geometry(), Some(world::VOLUME));
    while let Some(operation) = load.poll_disk() {
        let DiskOperation::Read { offset, bytes, .. } = operation else {
            panic!("loading is read-only: {operation:?}")
        };
        assert!(offset + bytes as u64 <= geometry().bytes());
        load.handle_disk(world::disk(std::slice::from_mut(&mut file), operation));
    }
    let report = load.report();
    assert!(report.valid_bytes <= geometry().capacity_bytes());
    for block in load.blocks() {
        assert!(block.offset < geometry().bytes());
    }
    let cache = load.finish(world::VOLUME, TAG);
    assert_eq!(cache.status().valid_bytes, report.valid_bytes);
    let mut rig = Rig::new(2, 100, cache, file);
    if settings & 4 == 4 {
        let mut pins = Pins::default();
        pins.add(Range::new(0, world::SECTORS));
        rig.host.handle_pins(rig.now, pins);
    }
    let known = settings & 2 == 0;
    let changes = if known { Changes::Ranges(Vec::new()) } else { Changes::Unknown };
    rig.run(&changes);
    rig.host.handle_request(rig.now, 1, Request::Read(WRITTEN));
    rig.run(&changes);
    assert_eq!(rig.data.len() as u64, WRITTEN.bytes(), "the read is answered");
    for (block, expected) in rig.data.chunks(BLOCK).zip(content().chunks(BLOCK)) {
        assert!(block == expected || block.iter().all(|byte| *byte == 0), "another block's data");
    }
    rig.host.handle_shutdown(rig.now);
    rig.run(&changes);
    let cache = rig.host.status(rig.now).cache.unwrap_or_default();
    assert!(cache.valid_bytes <= cache.capacity_bytes);
    assert!(cache.pinned_valid_bytes <= cache.pinned_bytes.min(cache.valid_bytes));
});
