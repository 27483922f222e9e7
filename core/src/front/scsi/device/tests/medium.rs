//! Commands that access blocks.

use super::*;

fn pattern(blocks: usize, seed: u8) -> Vec<u8> {
    (0..blocks * 512).map(|at| (at / 512) as u8 ^ at as u8 ^ seed).collect()
}

#[test]
fn all_reads_and_writes_agree() {
    let mut world = World::new(512);
    let six = |opcode: u8, lba: u8, blocks: u8| [opcode, 0, 0, lba, blocks, 0];
    let twelve = |opcode: u8, lba: u8, blocks: u8| [opcode, 0, 0, 0, 0, lba, 0, 0, 0, blocks, 0, 0];
    world.good(&six(0x0a, 1, 3), &pattern(3, 1));
    assert_eq!(world.good(&cdb10(0x28, 0, 1, 3), &[]), pattern(3, 1));
    world.good(&cdb10(0x2a, 0, 5, 3), &pattern(3, 2));
    assert_eq!(world.good(&twelve(0xa8, 5, 3), &[]), pattern(3, 2));
    world.good(&twelve(0xaa, 9, 2), &pattern(2, 3));
    assert_eq!(world.good(&cdb16(0x88, 0, 9, 2), &[]), pattern(2, 3));
    world.good(&cdb16(0x8a, 0, SECTORS - 2, 2), &pattern(2, 4));
    assert_eq!(world.good(&cdb16(0x88, 0x18, SECTORS - 2, 2), &[]), pattern(2, 4));
    // FUA: the returned data is durable.
    assert_eq!(world.flushes, 1);
    // Only in READ(6), 0 stands for 256 blocks.
    world.good(&six(0x0a, 0, 0), &pattern(256, 5));
    assert_eq!(world.good(&six(0x08, 0, 0), &[]), pattern(256, 5));
    assert!(world.good(&cdb10(0x28, 0, 0, 0), &[]).is_empty());
    world.good(&cdb10(0x2a, 0, 0, 0), &[]);
}

#[test]
fn blocks_of_4096_bytes() {
    let mut world = World::new(4096);
    world.good(&cdb10(0x2a, 0, 1, 2), &pattern(16, 1));
    assert_eq!(world.bytes[4096..12288], pattern(16, 1));
    assert_eq!(world.good(&cdb10(0x28, 0, 1, 2), &[]), pattern(16, 1));
    let last = SECTORS / 8 - 1;
    assert_eq!(world.good(&cdb16(0x88, 0, last, 1), &[]), vec![0; 4096]);
    let response = world.run(&cdb16(0x88, 0, last, 2), &[]);
    assert_eq!(code_of(&response), code::LBA_OUT_OF_RANGE);
    assert_eq!(response.sense[..7], [0xf0, 0, 5, 0, 0, 2, 0]);
    // Sectors after the last whole block are not accessible.
    world.device.handle_resized(NOW, SECTORS - 1);
    world.run(&[0; 6], &[]);
    assert_eq!(world.bad(&cdb16(0x88, 0, last, 1), &[]), code::LBA_OUT_OF_RANGE);
}

/// Output that fits one record is atomic under a crash, however it arrived.
#[test]
fn a_write_that_fits_a_record_is_one_request() {
    for piece in [1024, 4096, 700] {
        let mut world = World::new(512);
        world.piece = piece;
        let mut atomic = cdb16(0x9c, 0, 8, 0);
        atomic[13] = 8;
        for (seed, cdb) in [(1, cdb10(0x2a, 0, 8, 8).to_vec()), (2, atomic.to_vec())] {
            world.submit(1, &cdb, Attribute::Simple, &pattern(8, seed));
            world.send(0);
            assert_eq!(world.requests.len(), 1);
            world.drain();
            assert_eq!(world.bytes[4096..8192], pattern(8, seed));
        }
    }
}

#[test]
fn of_a_longer_write_whole_blocks_are_not_copied_and_cut_ones_are_joined() {
    for (piece, blocks, writes) in
        [(512 << 10, 3072, 3), (512 << 10, 2048, 1), (1 << 20, 2049, 2), (700, 3072, 1)]
    {
        let mut world = World::new(512);
        world.piece = piece;
        let data = pattern(blocks, 1);
        world.submit(1, &cdb16(0x8a, 0, 8, blocks as u32), Attribute::Simple, &data);
        world.send(0);
        assert_eq!(world.requests.len(), writes, "pieces of {piece} bytes");
        world.drain();
        assert!(world.bytes[4096..][..data.len()] == data);
    }
}

#[test]
fn ranges_and_lengths_are_checked_first() {
    let mut world = World::new(512);
    let size = SECTORS;
    for opcode in [0x88, 0x8a, 0x8b, 0x8e, 0x8f, 0x90, 0x91, 0x93] {
        for (lba, blocks, at) in [
            (size, 1, size),
            (size - 1, 2, size),
            (size + 1, 0, size + 1),
            (1 << 63, 1, 1 << 63),
            (u64::MAX, 0, u64::MAX),
            (u64::MAX, u32::MAX, u64::MAX),
        ] {
            let response = world.run(&cdb16(opcode, 0, lba, blocks), &[0; 1024]);
            assert_eq!(code_of(&response), code::LBA_OUT_OF_RANGE, "{opcode:x} {lba}");
            // INFORMATION is valid only if the address fits.
            assert_eq!(response.sense[0] == 0xf0, at <= u64::from(u32::MAX));
            assert_eq!(response.out_wanted, 0);
        }
    }
    assert_eq!(world.bad(&caw(size, 1), &[0; 1024]), code::LBA_OUT_OF_RANGE);
    world.device.handle_resized(NOW, 1 << 40);
    world.run(&[0; 6], &[]);
    for opcode in [0x88, 0x8a, 0x8b, 0x8e] {
        let response = world.run(&cdb16(opcode, 0, 0, 65537), &[]);
        assert_eq!((code_of(&response), &response.sense[15..18]), (0x2400, &[0xc0, 0, 10][..]));
    }
    let mut atomic = cdb16(0x9c, 0, 0, 0);
    atomic[12..14].copy_from_slice(&2041u16.to_be_bytes());
    assert_eq!(world.bad(&atomic, &[]), code::INVALID_FIELD_IN_CDB);
    atomic[12..14].copy_from_slice(&1u16.to_be_bytes());
    atomic[11] = 1;
    assert_eq!(world.bad(&atomic, &[0; 512]), code::INVALID_FIELD_IN_CDB);
    assert_eq!(world.bad(&cdb16(0x93, 0, 0, 0x10001), &[0; 512]), code::INVALID_FIELD_IN_CDB);
    assert_eq!(world.bad(&cdb16(0x93, 0, 0, 0), &[0; 512]), code::INVALID_FIELD_IN_CDB);
}

#[test]
fn protection_information_is_refused_everywhere() {
    let mut world = World::new(512);
    for opcode in [0x28, 0x2a, 0x2e, 0x2f, 0x41] {
        let response = world.run(&cdb10(opcode, 0x20, 0, 1), &[0; 512]);
        assert_eq!((code_of(&response), &response.sense[15..18]), (0x2400, &[0xcf, 0, 1][..]));
    }
    for opcode in [0x88, 0x89, 0x8a, 0x8b, 0x8e, 0x8f, 0x93, 0x9c] {
        assert_eq!(world.bad(&cdb16(opcode, 0xe0, 0, 1), &[0; 512]), code::INVALID_FIELD_IN_CDB);
    }
}

#[test]
fn of_a_short_write_the_whole_blocks_are_written() {
    let mut world = World::new(512);
    for (opcode, flags) in [(0x2a, 0), (0x2e, 0x02)] {
        world.good(&cdb10(0x2a, 0, 0, 2), &[b'a'; 1024]);
        let cdb = cdb10(opcode, flags, 0, 2);
        let response = world.run(&cdb, &[b'b'; 512]);
        assert_eq!((response.status, response.out_wanted), (Status::Good, 1024));
        assert_eq!(world.bytes[..512], [b'b'; 512]);
        assert_eq!(world.bytes[512..1024], [b'a'; 512]);
        for out in [0, 200] {
            let response = world.run(&cdb, &vec![b'c'; out]);
            assert_eq!((response.status, response.out_wanted), (Status::Good, 1024));
        }
        assert_eq!(world.bytes[..512], [b'b'; 512]);
        // If the output is too long, the device uses only the length of the command.
        let response = world.run(&cdb, &[b'd'; 1500]);
        assert_eq!((response.status, response.out_wanted), (Status::Good, 1024));
        assert_eq!(world.bytes[..1024], [b'd'; 1024]);
    }
}

#[test]
fn compare_and_write() {
    let mut world = World::new(512);
    world.piece = 600;
    world.good(&cdb10(0x2a, 0, 10, 4), &pattern(4, 1));
    let both = |compare: &[u8], write: &[u8]| [compare, write].concat();
    world.good(&caw(10, 4), &both(&pattern(4, 1), &pattern(4, 2)));
    assert_eq!(world.bytes[5120..7168], pattern(4, 2));
    let mut wrong = pattern(4, 2);
    wrong[1500] ^= 1;
    let response = world.run(&caw(10, 4), &both(&wrong, &pattern(4, 3)));
    assert_eq!(response.sense[..7], [0xf0, 0, key::MISCOMPARE, 0, 0, 0x05, 0xdc]);
    assert_eq!(code_of(&response), code::MISCOMPARE_DURING_VERIFY);
    assert_eq!(world.bytes[5120..7168], pattern(4, 2));
    // A comparison with unwritten blocks finds zeroes.
    world.good(&caw(100, 1), &both(&[0; 512], &pattern(1, 4)));
    let response = world.run(&caw(102, 1), &both(&[5; 512], &pattern(1, 4)));
    assert_eq!(code_of(&response), code::MISCOMPARE_DURING_VERIFY);
    // The output must be exactly twice the blocks.
    for out in [0, 512, 1536, 2048] {
        let response = world.run(&caw(100, 1), &vec![0; out]);
        assert_eq!((code_of(&response), &response.sense[15..18]), (0x2400, &[0xc0, 0, 13][..]));
    }
    world.good(&caw(100, 0), &[]);
    assert_eq!(world.bad(&caw(100, 0), &[0; 1024]), code::INVALID_FIELD_IN_CDB);
}

#[test]
fn orwrite_sets_bits() {
    let mut world = World::new(512);
    world.piece = 100;
    world.good(&cdb10(0x2a, 0, 1, 1), &[0xa5; 512]);
    world.good(&cdb16(0x8b, 0, 0, 3), &[0x5a; 1536]);
    let expected = [[0x5a; 512], [0xff; 512], [0x5a; 512]].concat();
    assert_eq!(world.bytes[..1536], expected);
    world.good(&cdb16(0x8b, 0, 0, 0), &[]);
}

#[test]
fn verify_compares_with_what_it_is_told() {
    let mut world = World::new(512);
    let blocks = 3000;
    world.piece = 1 << 20;
    world.good(&cdb16(0x8a, 0, 8, blocks), &pattern(blocks as usize, 1));
    world.good(&cdb16(0x8f, 0, 8, blocks), &[]);
    assert_eq!(world.flushes, 1);
    let mut data = pattern(blocks as usize, 1);
    world.good(&cdb16(0x8f, 0x02, 8, blocks), &data);
    data[2500 * 512 + 7] ^= 0x80;
    let response = world.run(&cdb16(0x8f, 0x02, 8, blocks), &data);
    assert_eq!(response.sense[2], key::MISCOMPARE);
    assert_eq!(response.sense[3..7], 2508u32.to_be_bytes());
    // The device compares one block with all.
    world.good(&cdb16(0x8f, 0x06, 3100, 900), &[0; 512]);
    let response = world.run(&cdb16(0x8f, 0x06, 8, 2), &pattern(1, 1));
    assert_eq!(response.sense[3..7], 9u32.to_be_bytes());
    assert_eq!(world.bad(&cdb16(0x8f, 0x04, 8, 1), &[0; 512]), code::INVALID_FIELD_IN_CDB);
    let response = world.run(&cdb16(0x8f, 0x02, 8, 2), &[0; 512]);
    assert_eq!(code_of(&response), code::INVALID_FIELD_IN_INFORMATION_UNIT);
    world.good(&cdb16(0x8f, 0x02, 8, 0), &[]);
}

#[test]
fn write_and_verify_is_durable_and_looks_again() {
    let mut world = World::new(512);
    let task = world.submit(1, &cdb10(0x2e, 0x02, 4, 2), Attribute::Simple, &pattern(2, 1));
    world.send(0);
    assert!(matches!(world.requests[0].1, Request::Write { fua: true, .. }));
    world.answer(0);
    assert!(matches!(world.requests[0].1, Request::Read(_)));
    // The comparison differs from the written data.
    world.bytes[5 * 512 + 3] ^= 1;
    world.drain();
    let response = &world.responses[&task];
    assert_eq!(response.sense[..7], [0xf0, 0, key::MISCOMPARE, 0, 0, 0, 5]);
    world.good(&cdb10(0x2e, 0, 4, 2), &pattern(2, 1));
    assert_eq!(world.bad(&cdb10(0x2e, 0x04, 4, 1), &[0; 512]), code::INVALID_FIELD_IN_CDB);
}

#[test]
fn write_same() {
    let mut world = World::new(512);
    let size = SECTORS as usize;
    let block = pattern(1, 7);
    world.good(&cdb10(0x41, 0, 1, (size - 2) as u16), &block);
    assert!(world.bytes[512..(size - 1) * 512].chunks(512).all(|found| found == block));
    assert!(!world.mapped[0] && world.mapped[1] && !world.mapped[size - 1]);
    // Zeroes stay mapped unless UNMAP allows the opposite.
    world.good(&cdb10(0x41, 0, 1, 10), &[0; 512]);
    assert_eq!(world.bytes[512..11 * 512], [0; 5120]);
    assert!(world.mapped[1..11].iter().all(|mapped| *mapped));
    world.good(&cdb10(0x41, 0x08, 1, 10), &[0; 512]);
    assert!(world.mapped[1..11].iter().all(|mapped| !mapped));
    // With UNMAP, the device writes a block that is not zeroes.
    world.good(&cdb16(0x93, 0x08, 1, 2), &block);
    assert_eq!(world.bytes[512..1024], block);
    // NDOB.
    world.good(&cdb16(0x93, 0x09, 0, size as u32), &[]);
    assert!(world.mapped.iter().all(|mapped| !mapped));
    assert_eq!(world.bytes, vec![0; size * 512]);
    // ANCHOR, with and without UNMAP; LBDATA.
    for flags in [0x10, 0x18, 0x02] {
        assert_eq!(world.bad(&cdb10(0x41, flags, 0, 1), &[0; 512]), code::INVALID_FIELD_IN_CDB);
    }
    for out in [0, 256, 1024] {
        let response = world.run(&cdb10(0x41, 0x08, 0, 1), &vec![0xa6; out]);
        assert_eq!(response.sense[2], key::ILLEGAL_REQUEST);
    }
}

#[test]
fn unmap_by_list() {
    let mut world = World::new(512);
    world.good(&cdb10(0x2a, 0, 0, 32), &pattern(32, 1));
    let list = unmap_list(&[(1, 2), (2, 3), (40, 0), (SECTORS, 0), (8, 1)]);
    world.good(&unmap(&list), &list);
    for sector in 0..32 {
        let kept = !matches!(sector, 1..=4 | 8);
        assert_eq!(world.mapped[sector], kept, "{sector}");
    }
    // The device applies a list completely, or not at all.
    let list = unmap_list(&[(10, 1), (SECTORS - 1, 2)]);
    assert_eq!(world.bad(&unmap(&list), &list), code::LBA_OUT_OF_RANGE);
    assert!(world.mapped[10]);
    world.good(&unmap(&[]), &[]);
    world.good(&unmap(&[0; 8]), &[0; 8]);
    assert_eq!(world.bad(&unmap(&[0; 7]), &[0; 7]), code::PARAMETER_LIST_LENGTH_ERROR);
    let list = unmap_list(&[(10, 1), (11, 1)]);
    assert_eq!(world.bad(&unmap(&list[..30]), &list[..30]), code::PARAMETER_LIST_LENGTH_ERROR);
    assert_eq!(world.bad(&unmap(&list), &list[..30]), code::PARAMETER_LIST_LENGTH_ERROR);
    let most = vec![(12, 1); 256];
    let list = unmap_list(&most);
    world.good(&unmap(&list), &list);
    let list = unmap_list(&[&most[..], &[(0, 1)]].concat());
    assert_eq!(world.bad(&unmap(&list), &list), code::INVALID_FIELD_IN_LIST);
    let mut cdb = unmap(&[]);
    cdb[1] = 1;
    assert_eq!(world.bad(&cdb, &[]), code::INVALID_FIELD_IN_CDB);
}

#[test]
fn get_lba_status() {
    let ask = |lba: u64, allocation: u32| {
        let mut cdb = cdb16(0x9e, 0x12, lba, allocation);
        cdb[1] = 0x12;
        cdb
    };
    let descriptors = |bytes: &[u8]| {
        assert_eq!(bytes[..4], ((bytes.len() - 4) as u32).to_be_bytes());
        let each = bytes[8..].chunks_exact(16).map(|descriptor| {
            let lba = u64::from_be_bytes(descriptor[..8].try_into().unwrap());
            let blocks = u32::from_be_bytes(descriptor[8..12].try_into().unwrap());
            (lba, u64::from(blocks), descriptor[12])
        });
        each.collect::<Vec<_>>()
    };
    let mut world = World::new(512);
    world.good(&cdb10(0x2a, 0, 10, 6), &pattern(6, 1));
    let found = world.good(&ask(0, 1024), &[]);
    assert_eq!(descriptors(&found), [(0, 10, 1), (10, 6, 0), (16, SECTORS - 16, 1)]);
    let found = world.good(&ask(12, 24), &[]);
    assert_eq!(descriptors(&found), [(12, 4, 0)]);
    assert!(world.good(&ask(12, 0), &[]).is_empty());
    assert_eq!(world.bad(&ask(SECTORS, 24), &[]), code::LBA_OUT_OF_RANGE);
    let mut cdb = ask(0, 24);
    cdb[14] = 2;
    assert_eq!(world.bad(&cdb, &[]), code::INVALID_FIELD_IN_CDB);
    // If a part of a block is mapped, the block is mapped.
    let mut world = World::new(4096);
    for sector in [3, 15, 16, 17, 40] {
        world.mapped[sector] = true;
    }
    let found = world.good(&ask(0, 1024), &[]);
    let rest = SECTORS / 8 - 6;
    assert_eq!(descriptors(&found), [(0, 3, 0), (3, 2, 1), (5, 1, 0), (6, rest, 1)]);
}

#[test]
fn flushes_and_hints() {
    let mut world = World::new(512);
    world.good(&cdb10(0x35, 0, 0, 0), &[]);
    world.good(&cdb16(0x91, 0, 5, 3), &[]);
    assert_eq!(world.flushes, 2);
    // IMMED: the command ends before the flush, which goes on.
    let task = world.submit(1, &cdb10(0x35, 0x02, 0, 0), Attribute::Simple, &[]);
    assert_eq!(world.responses[&task].status, Status::Good);
    world.drain();
    assert_eq!(world.flushes, 3);
    world.good(&cdb10(0x34, 0x02, 0, 0), &[]);
    world.good(&cdb16(0x90, 0, SECTORS - 3, 3), &[]);
    assert!(world.device.tasks.is_empty());
}

#[test]
fn errors_of_the_volume_say_what_and_where() {
    let mut world = World::new(4096);
    let mut failed = |error: BlockError| {
        let task = world.submit(1, &cdb10(0x28, 0, 8, 16), Attribute::Simple, &[]);
        world.fail(0, error);
        world.responses.remove(&task).unwrap()
    };
    let response = failed(BlockError::Medium(Range::new(85, 1)));
    assert_eq!(response.sense[..7], [0xf0, 0, key::MEDIUM_ERROR, 0, 0, 0, 10]);
    assert_eq!(code_of(&response), code::UNRECOVERED_READ_ERROR);
    let response = failed(BlockError::Fenced);
    assert_eq!((response.sense[2], code_of(&response)), (key::NOT_READY, 0x040c));
    let response = failed(BlockError::NoSpace);
    assert_eq!((response.sense[2], code_of(&response)), (key::DATA_PROTECT, 0x2707));
    let response = failed(BlockError::Stopped);
    assert_eq!((response.sense[2], code_of(&response)), (key::HARDWARE_ERROR, 0x4400));
    assert_eq!(failed(BlockError::ShuttingDown).status, Status::Busy);
}

#[test]
fn a_volume_that_shrinks_gets_no_request_beyond_its_end() {
    let mut world = World::new(512);
    let list = unmap_list(&[(4000, 1)]);
    let tasks = [
        world.submit(1, &cdb10(0x2a, 0, 4000, 1), Attribute::Simple, &[1; 512]),
        world.submit(1, &caw(4000, 1), Attribute::Simple, &[0; 1024]),
        world.submit(1, &unmap(&list), Attribute::Simple, &list),
        world.submit(1, &cdb16(0x93, 0, 3000, 900), Attribute::Simple, &[0; 512]),
    ];
    world.device.handle_resized(NOW, 2000);
    world.drain();
    for task in tasks {
        let response = &world.responses[&task];
        assert_eq!(code_of(response), code::LBA_OUT_OF_RANGE, "{response:?}");
    }
}
