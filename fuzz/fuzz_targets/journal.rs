//! A journal with damage that the input chooses. Recovery ends, and asks only for existing bytes.
//! It either refuses or returns a state that the engine can continue. Without damage, all writes
//! are there. Without forged checksums, there are never more writes than before.
//!
//! Input: damage after damage; see `damage`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longhaul_core::block::{Range, Reply, Request, Time};
use longhaul_core::host::journal::{FrameHeader, PAGE_BYTES, Recovered, Recovery};
use longhaul_core::host::{Config, DiskOperation, DiskResult, Mode, Volume};
use longhaul_core::wire::link::{ReadPart, ToHost, ToStore, encode_data};
use longhaul_fuzz::{Input, seeds, world};
use std::sync::OnceLock;

const PAGE: usize = PAGE_BYTES as usize;

fn make_seeds() -> Vec<Vec<u8>> {
    vec![
        vec![],
        // Flip, zero, copy, cut off, shorten, swap, garbage, forge.
        vec![0, 0, 0, 0, 0, 0, 200, 17, 0, 0, 1],
        vec![1, 1, 0, 0, 0, 3, 0, 0, 0],
        vec![2, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 5, 0, 0, 0],
        vec![3, 1, 0, 0, 0, 9, 0, 0, 0],
        vec![4, 2, 0, 0, 0, 0, 128, 0, 0],
        vec![5, 0, 0, 0, 0, 1, 0, 0, 0],
        [&[6, 2, 0, 0, 0, 1, 0, 0, 0][..], &[9; 64]].concat(),
        vec![7, 0, 0, 0, 0, 1, 0, 0, 0, 3, 1, 0, 0, 0],
    ]
}

/// Damages the files as the input says. False if it forged a checksum, which no disk does.
fn damage(files: &mut [Vec<u8>], input: &mut Input<'_>) -> bool {
    let mut honest = true;
    for _ in 0..64 {
        if input.is_empty() {
            break;
        }
        let kind = input.byte() % 8;
        let file = input.below(files.len());
        let length = files[file].len();
        if length < PAGE {
            continue;
        }
        match kind {
            0 => {
                let at = input.below(length);
                files[file][at] ^= input.byte();
            }
            1 => {
                let page = input.below(length / PAGE) * PAGE;
                files[file][page..page + PAGE].fill(0);
            }
            2 => {
                let page = input.below(length / PAGE) * PAGE;
                let copy = files[file][page..page + PAGE].to_vec();
                let file = input.below(files.len());
                let pages = files[file].len() / PAGE;
                if pages > 0 {
                    let page = input.below(pages) * PAGE;
                    files[file][page..page + PAGE].copy_from_slice(&copy);
                }
            }
            3 => {
                let at = input.below(length);
                files[file][at..].fill(0);
            }
            4 => {
                let at = input.below(length);
                files[file].truncate(at);
            }
            5 => {
                let other = input.below(files.len());
                files.swap(file, other);
            }
            6 => {
                let at = input.below(length);
                let bytes = input.bytes(200);
                let end = (at + bytes.len()).min(length);
                files[file][at..end].copy_from_slice(&bytes[..end - at]);
            }
            _ => {
                let page = input.below(length / PAGE) * PAGE;
                let bytes = &mut files[file][page..page + PAGE];
                let Ok(Some((mut header, _))) = FrameHeader::parse(bytes) else { continue };
                honest = false;
                let (field, value) = (input.byte() % 11, u64::from(input.u32()));
                match field {
                    0 => header.journal ^= u128::from(value),
                    1 => header.incarnation = value as u32,
                    2 => header.body_bytes = value as u32,
                    3 => header.addr = header.addr.wrapping_add(value << 12),
                    4 => header.number = header.number.wrapping_sub(value),
                    5 => header.epoch = value,
                    6 => header.first_seq = value,
                    7 => header.last_seq = value.wrapping_mul(0x1_0000_0001),
                    8 => header.tail.addr = value << 12,
                    9 => header.synced_addr = value << 12,
                    _ => header.prev_crc = value as u32,
                }
                header.encode_to(bytes);
            }
        }
    }
    honest
}

fn recover(files: &mut [Vec<u8>]) -> Option<Recovered> {
    let lengths: Vec<u64> = files.iter().map(|file| file.len() as u64).collect();
    let mut recovery = Recovery::new(Some(world::VOLUME), lengths.clone());
    for _ in 0..10_000 {
        if let Some(outcome) = recovery.poll_outcome() {
            return match outcome {
                Ok(recovered) => Some(recovered),
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    None
                }
            };
        }
        let operation = recovery.poll_disk().expect("neither an outcome nor anything to do");
        if let DiskOperation::Read { file, offset, bytes, .. } = &operation {
            assert!(offset + *bytes as u64 <= lengths[*file as usize], "{operation:?}");
            assert!(*bytes <= 8 << 20, "{operation:?}");
        }
        let result = world::disk(files, operation);
        recovery.handle_disk(result);
    }
    panic!("recovery does not end");
}

/// Attaches with the recovered state, reads everything, writes, flushes.
fn go_on(files: &mut [Vec<u8>], recovered: Recovered, committed: u64) {
    let epoch = recovered.state().map_or(1, |state| state.epoch.saturating_add(1));
    let config = Config::new(Mode::Journal(recovered.geometry));
    let now = Time(1);
    let attached = world::attached(epoch, committed);
    let mut host = Volume::new(now, config, world::HOST, attached, Some(recovered));
    let volume = world::VOLUME;
    let mut answered = [false; 3];
    host.handle_request(now, 0, Request::Read(Range::new(0, world::SECTORS)));
    host.handle_request(now, 1, world::request(3));
    host.handle_request(now, 2, Request::Flush);
    for _ in 0..10_000 {
        let mut idle = true;
        while let Some(operation) = host.poll_disk() {
            idle = false;
            let result: DiskResult = world::disk(files, operation);
            host.handle_disk(now, result);
        }
        while let Some((_, frame)) = host.poll_message() {
            idle = false;
            if let ToStore::Read { request, range, .. } = frame.message {
                host.handle_message(
                    now,
                    encode_data(request, volume, &[ReadPart::Hole(range.sectors)]),
                );
            }
        }
        while let Some((id, reply)) = host.poll_reply() {
            idle = false;
            assert!(!answered[id as usize], "answered twice");
            answered[id as usize] = true;
            if let Ok(Reply::Data(pieces)) = reply {
                let sectors = pieces.iter().map(|piece| match piece {
                    longhaul_core::block::ReadPiece::Data(data) => data.len() as u64 / 512,
                    longhaul_core::block::ReadPiece::Zeroes(sectors) => *sectors,
                });
                assert_eq!(sectors.sum::<u64>(), world::SECTORS);
            }
        }
        while host.poll_event().is_some() {}
        if idle {
            break;
        }
    }
    let last = host.status(now).last;
    host.handle_message(now, ToHost::Committed { volume, epoch, seq: last }.into());
    while host.poll_disk().is_some() || host.poll_reply().is_some() || host.poll_event().is_some() {
    }
}

fuzz_target!(init: seeds("journal", make_seeds), |data: &[u8]| {
    static VALID: OnceLock<(Vec<Vec<u8>>, u64)> = OnceLock::new();
    let (files, last) = VALID.get_or_init(world::journal);
    let mut files = files.clone();
    let honest = damage(&mut files, &mut Input(data));
    let recovered = recover(&mut files);
    if data.is_empty() {
        let state = recovered.as_ref().expect("a sound journal").state().expect("it was written");
        assert_eq!(state.last, *last);
    }
    if let Some(recovered) = recovered {
        let held = recovered.state().map_or(0, |state| state.last);
        if honest {
            assert!(held <= *last, "{held} of {last} writes were found");
        }
        if files.iter().all(|file| file.len() as u64 == recovered.geometry.file_bytes) {
            go_on(&mut files, recovered, if honest { 12 } else { 0 });
        }
    }
});
