//! Heads and pages of a version table with any bytes. An accepted head encodes to the same bytes.
//! All of them lead to a verdict, and to a root or none. A volume with such a table answers every
//! read with zeroes, which is what the store has, or with an error.
//!
//! Input, in order:
//!
//! - settings (bit 0: put the checksums of heads right);
//! - three numbers of 8 bytes: the granted epoch and committed number, and the number of a
//!   statement;
//! - two heads;
//! - pages of blocks and sectors.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longhaul_core::block::{Range, ReadPiece, Reply, Request, Time};
use longhaul_core::host::versions::{
    HEAD_BYTES, Head, JournalEnd, Rooting, STATEMENT_BYTES, Statement, Verdict,
};
use longhaul_core::host::{Config, DiskOperation, DiskResult, Mode, Versions, Volume};
use longhaul_core::wire::link::{Changes, ReadPart, ToStore, encode_data};
use longhaul_fuzz::{seeds, world};

const PAGE: usize = 4096;
const READ: Range = Range { lba: 0, sectors: 64 };

fn make_seeds() -> Vec<Vec<u8>> {
    let mut numbers = Vec::new();
    for number in [3_u64, 7, 6] {
        numbers.extend_from_slice(&number.to_le_bytes());
    }
    let heads = [true, false].map(|complete| {
        let first = Head::new(&world::attached(1, 5), world::HOST, complete, [1; 32]);
        let second = first.attached(&world::attached(2, 6), world::HOST);
        [&second.encode()[..], &first.encode()].concat()
    });
    let mut page = vec![0; PAGE];
    page[4..12].copy_from_slice(&[1, 0, 0, 0, 2, 0, 0, 0]);
    let all = |settings: u8, heads: &[u8]| [&[settings][..], &numbers, heads, &page].concat();
    vec![all(0, &heads[0]), all(1, &heads[1])]
}

fn number(data: &mut &[u8]) -> u64 {
    let Some((number, rest)) = data.split_first_chunk() else { return 0 };
    *data = rest;
    u64::from_le_bytes(*number)
}

/// Reads from a file, with zeroes beyond its end.
fn read(files: &[Vec<u8>; 3], operation: DiskOperation) -> DiskResult {
    match operation {
        DiskOperation::Read { id, file, offset, bytes } => {
            let file = &files[file as usize];
            let from = usize::try_from(offset).unwrap_or(usize::MAX).min(file.len());
            let mut data = file[from..file.len().min(from + bytes)].to_vec();
            data.resize(bytes, 0);
            DiskResult::Data { id, data: data.into() }
        }
        DiskOperation::Write { id, .. } | DiskOperation::Sync { id, .. } => DiskResult::Done { id },
    }
}

fuzz_target!(init: seeds("versions", make_seeds), |data: &[u8]| {
    let Some((settings, mut data)) = data.split_first() else { return };
    let (epoch, committed, stated) = (number(&mut data), number(&mut data), number(&mut data));
    let (heads, pages) = data.split_at(data.len().min(2 * HEAD_BYTES));
    let mut heads = heads.to_vec();
    if settings & 1 == 1 {
        for head in heads.chunks_exact_mut(HEAD_BYTES) {
            let crc = crc32c::crc32c(&head[..124]);
            head[124..128].copy_from_slice(&crc.to_le_bytes());
        }
    }
    let _ = heads.get(..STATEMENT_BYTES).and_then(Statement::parse);
    let Ok(Some(head)) = Head::newest(world::VOLUME, &heads) else { return };
    assert_eq!(Head::newest(world::VOLUME, &head.encode()), Ok(Some(head.clone())));
    let attached = world::attached(epoch, committed);
    let statement = Some(Statement { epoch: stated, seq: stated, key: head.key(), root: None });
    let journal = Some(JournalEnd { before: stated, last: committed });
    if let Verdict::Ask(moment) = head.judge(&attached, journal, statement, None) {
        assert!(moment.seq <= committed);
        for changes in [Changes::Unknown, Changes::Ranges(vec![READ])] {
            let verdict = head.judge(&attached, journal, statement, Some(changes));
            assert!(!matches!(verdict, Verdict::Ask(_)));
        }
    }
    let (blocks, sectors) = pages.split_at(pages.len().min(PAGE));
    if let Some(mut rooting) = Rooting::new(&head) {
        let taken: Result<(), ()> = rooting.take(0, blocks, |_| Ok(sectors.to_vec()));
        taken.expect("there is no error");
        let _ = rooting.finish();
    }
    let files = [heads, blocks.to_vec(), sectors.to_vec()];
    let now = Time(1);
    let attached = world::attached(1, 5);
    let config = Config::new(Mode::WriteThrough);
    let mut host = Volume::new(now, config, world::HOST, attached, None);
    let Some(versions) = Versions::new(head, 5, &[], 0) else { return };
    host.set_versions(now, versions);
    host.handle_request(now, 1, Request::Read(READ));
    for _ in 0..100 {
        while let Some(operation) = host.poll_versions() {
            host.handle_versions(now, read(&files, operation));
        }
        while let Some((_, frame)) = host.poll_message() {
            if let ToStore::Read { request, range, .. } = frame.message {
                let parts = [ReadPart::Hole(range.sectors)];
                host.handle_message(now, encode_data(request, world::VOLUME, &parts));
            }
        }
        if let Some((1, reply)) = host.poll_reply() {
            if let Ok(Reply::Data(pieces)) = reply {
                assert!(pieces.iter().all(|piece| matches!(piece, ReadPiece::Zeroes(_))));
            }
            return;
        }
    }
    panic!("a read is not answered");
});
