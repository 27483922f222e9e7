//! Commands that do not access blocks, and sense data.

use super::*;

#[test]
fn inquiry_tells_who_it_is_and_is_cut_to_the_allocation_length() {
    let mut world = World::new(512);
    let full = world.good(&[0x12, 0, 0, 1, 0, 0], &[]);
    assert_eq!((full.len(), full[4]), (96, 91));
    assert_eq!(&full[..8], &[0, 0, 6, 0x12, 91, 0x18, 0, 2]);
    assert_eq!(&full[8..32], b"LONGHAULVOLUME          ");
    for allocation in 0..=96 {
        let cut = world.good(&[0x12, 0, 0, 0, allocation, 0], &[]);
        assert_eq!(cut, full[..usize::from(allocation)]);
    }
    assert_eq!(world.bad(&[0x12, 0, 1, 0, 96, 0], &[]), code::INVALID_FIELD_IN_CDB);
}

#[test]
fn every_listed_page_is_there_and_as_long_as_it_says() {
    let mut world = World::new(4096);
    let list = world.good(&[0x12, 1, 0, 0, 255, 0], &[]);
    assert_eq!(list[4..], [0x00, 0x80, 0x83, 0x86, 0x8f, 0xb0, 0xb1, 0xb2]);
    for page in &list[4..] {
        let bytes = world.good(&[0x12, 1, *page, 4, 0, 0], &[]);
        assert_eq!(bytes[1], *page);
        assert_eq!(usize::from(u16::from_be_bytes([bytes[2], bytes[3]])), bytes.len() - 4);
    }
    assert_eq!(world.bad(&[0x12, 1, 0xc0, 4, 0, 0], &[]), code::INVALID_FIELD_IN_CDB);
    let limits = world.good(&[0x12, 1, 0xb0, 4, 0, 0], &[]);
    assert_eq!(limits.len(), 64);
    assert_eq!(limits[8..12], 8192u32.to_be_bytes());
    assert_eq!(limits[36..44], 8192u64.to_be_bytes());
    assert_eq!(limits[44..48], 255u32.to_be_bytes());
    assert_eq!(limits[4], 1);
}

#[test]
fn identification_is_of_the_volume_and_the_port() {
    let mut world = World::new(512);
    let page = world.good(&[0x12, 1, 0x83, 4, 0, 0], &[]);
    let mut kinds = Vec::new();
    let mut at = 4;
    while at < page.len() {
        let length = usize::from(page[at + 3]);
        kinds.push((page[at + 1] & 0x3f, page[at + 4..at + 4 + length].to_vec()));
        at += 4 + length;
    }
    assert_eq!(at, page.len());
    let names: Vec<u8> = kinds.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(names, [0x01, 0x03, 0x14, 0x15, 0x18, 0x28]);
    assert_eq!(kinds[0].1, b"LONGHAUL0123456789abcdef0011223344556677");
    assert_eq!(kinds[1].1[0] >> 4, 3);
    assert_eq!(kinds[2].1, [0, 0, 0, 1]);
    assert_eq!(kinds[4].1, b"iqn.2026-11.io.longhaul:v,t,0x0001\0\0");
    assert_eq!(kinds[5].1.len() % 4, 0);
    // The other host sees the same.
    let other = world.run_by(2, &[0x12, 1, 0x83, 4, 0, 0], &[]);
    assert_eq!(bytes_of(&other.data), page);
}

#[test]
fn capacity_in_logical_blocks() {
    for (block, exponent) in [(512u32, 3), (4096, 0)] {
        let mut world = World::new(block);
        let last = SECTORS * 512 / u64::from(block) - 1;
        let ten = world.good(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[]);
        assert_eq!(ten, [(last as u32).to_be_bytes(), block.to_be_bytes()].concat());
        let sixteen = world.good(&[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 96, 0, 0], &[]);
        assert_eq!(sixteen.len(), 32);
        assert_eq!(sixteen[..8], last.to_be_bytes());
        assert_eq!(sixteen[8..12], block.to_be_bytes());
        assert_eq!(sixteen[12..16], [0, exponent, 0xc0, 0]);
    }
}

#[test]
fn other_logical_units_are_not_there() {
    let mut world = World::new(512);
    let mut ask = |lun: u64, cdb: [u8; 6]| {
        let task = world.next_task;
        world.next_task += 1;
        let mut bytes = [0; 16];
        bytes[..6].copy_from_slice(&cdb);
        let command = Command {
            lun,
            cdb: bytes,
            more_cdb: Bytes::new(),
            attribute: Attribute::Simple,
            out_bytes: 0,
            in_bytes: 0,
        };
        world.device.handle_command(NOW, 1, task, command);
        world.collect();
        world.responses.remove(&task).unwrap()
    };
    let elsewhere = 1 << 48;
    assert_eq!(code_of(&ask(elsewhere, [0; 6])), code::LUN_NOT_SUPPORTED);
    assert_eq!(bytes_of(&ask(elsewhere, [0x12, 0, 0, 0, 36, 0]).data)[0], 0x7f);
    let sense = bytes_of(&ask(elsewhere, [0x03, 0, 0, 0, 18, 0]).data);
    assert_eq!((sense[2], sense[12]), (5, 0x25));
    assert_eq!(ask(0x4000 << 48, [0; 6]).status, Status::Good);
}

#[test]
fn report_luns_selects() {
    let mut world = World::new(512);
    let report = |select: u8| [0xa0, 0, select, 0, 0, 0, 0, 0, 0, 64, 0, 0];
    assert_eq!(world.good(&report(0), &[]), [0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(world.good(&report(1), &[]), [0; 8]);
    assert_eq!(world.good(&report(2), &[]).len(), 16);
    assert_eq!(world.bad(&report(3), &[]), code::INVALID_FIELD_IN_CDB);
}

#[test]
fn the_table_of_commands_is_in_order_and_reported() {
    for pair in command_table::COMMANDS.windows(2) {
        assert!((pair[0].opcode, pair[0].action) < (pair[1].opcode, pair[1].action));
    }
    let mut world = World::new(512);
    let ask = |options: u8, opcode: u8, action: u8| {
        [0xa3, 0x0c, options, opcode, 0, action, 0, 0, 0xff, 0xff, 0, 0]
    };
    for timeouts in [0, 0x80] {
        let all = world.good(&ask(timeouts, 0, 0), &[]);
        let each = if timeouts == 0 { 8 } else { 20 };
        assert_eq!(all.len(), 4 + each * command_table::COMMANDS.len());
        assert_eq!(all[..4], ((all.len() - 4) as u32).to_be_bytes());
    }
    for entry in command_table::COMMANDS {
        let (right, wrong) = if entry.action.is_some() { (2, 1) } else { (1, 2) };
        let action = entry.action.unwrap_or(0);
        assert_eq!(entry.usage.len(), Cdb([entry.opcode; 16]).len());
        let one = world.good(&ask(right, entry.opcode, action), &[]);
        assert_eq!(one[1] & 7, 3);
        assert_eq!(usize::from(one[3]), entry.usage.len());
        assert_eq!(one[4], entry.opcode);
        assert_eq!(world.good(&ask(3, entry.opcode, action), &[]), one);
        let refused = world.run(&ask(wrong, entry.opcode, action), &[]);
        assert_eq!(code_of(&refused), code::INVALID_FIELD_IN_CDB);
        // A pointer to byte 1 would mean that the service action does not exist.
        assert_eq!(refused.sense[15..18], [0xca, 0, 2]);
    }
    assert_eq!(world.good(&ask(1, 0x04, 0), &[]), [0, 1, 0, 0]);
    assert_eq!(world.good(&ask(2, 0x9e, 0x1f), &[]), [0, 1, 0, 0]);
}

#[test]
fn foreign_commands_are_refused() {
    let mut world = World::new(512);
    for opcode in [0x04, 0x43, 0x48, 0x85, 0xa1, 0xad, 0xff] {
        let mut cdb = [0; 16];
        cdb[0] = opcode;
        assert_eq!(world.bad(&cdb, &[]), code::INVALID_OPERATION_CODE);
    }
    let response = world.run(&[0x9e, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[]);
    assert_eq!((code_of(&response), &response.sense[15..18]), (0x2400, &[0xcc, 0, 1][..]));
    // NACA.
    let response = world.run(&[0, 0, 0, 0, 0, 4], &[]);
    assert_eq!((code_of(&response), &response.sense[15..18]), (0x2400, &[0xca, 0, 5][..]));
}

fn mode_select(page: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let list = [&[0, 0, 0, 0], page].concat();
    (vec![0x15, 0x10, 0, 0, list.len() as u8, 0], list)
}

const CONTROL: [u8; 12] = [0x0a, 0x0a, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn mode_pages_current_changeable_default_saved() {
    let mut world = World::new(512);
    let all = world.good(&[0x1a, 0, 0x3f, 0, 255, 0], &[]);
    assert_eq!(usize::from(all[0]) + 1, all.len());
    assert_eq!(all[2..4], [0x10, 8]);
    assert_eq!(all[4..12], [0, 0, 0x10, 0, 0, 0, 2, 0]);
    let codes = |mut pages: &[u8]| {
        let mut codes = Vec::new();
        while let [code, length, ..] = pages {
            codes.push(*code);
            pages = &pages[usize::from(*length) + 2..];
        }
        codes
    };
    assert_eq!(codes(&all[12..]), [0x01, 0x08, 0x0a, 0x1c]);
    // DBD, and all subpages.
    let plain = world.good(&[0x1a, 8, 0x3f, 0xff, 255, 0], &[]);
    assert_eq!((plain[3], &plain[4..]), (0, &all[12..]));
    let caching = world.good(&[0x1a, 8, 0x48, 0, 255, 0], &[]);
    assert_eq!(caching[4..7], [0x08, 0x12, 0x04]);
    assert!(caching[7..].iter().all(|byte| *byte == 0));
    let control = world.good(&[0x1a, 8, 0x4a, 0, 255, 0], &[]);
    assert_eq!(control[4..10], [0x0a, 0x0a, 0x04, 0, 0x08, 0x40]);
    assert_eq!(world.bad(&[0x1a, 8, 0xca, 0, 255, 0], &[]), code::SAVING_NOT_SUPPORTED);
    assert_eq!(world.bad(&[0x1a, 8, 0x02, 0, 255, 0], &[]), code::INVALID_FIELD_IN_CDB);
    assert_eq!(world.bad(&[0x1a, 8, 0x0a, 1, 255, 0], &[]), code::INVALID_FIELD_IN_CDB);
    // LLBAA.
    let long = world.good(&[0x5a, 0x10, 0x08, 0, 0, 0, 0, 1, 0, 0], &[]);
    assert_eq!(long[..8], [0, long.len() as u8 - 2, 0, 0x10, 1, 0, 0, 16]);
    assert_eq!(long[8..16], SECTORS.to_be_bytes());
    assert_eq!(long[20..24], 512u32.to_be_bytes());
}

#[test]
fn mode_select_changes_what_can_be_changed_and_tells_the_others() {
    let mut world = World::new(512);
    let mut page = CONTROL;
    page[2] = 0x04;
    let (cdb, list) = mode_select(&page);
    world.good(&cdb, &list);
    // The sense data of the other nexus' unit attention is in descriptor format already.
    let told = world.run_by(2, &[0; 6], &[]);
    assert_eq!(told.sense[..4], [0x72, key::UNIT_ATTENTION, 0x2a, 0x01]);
    assert_eq!(world.run_by(2, &[0; 6], &[]).status, Status::Good);
    assert_eq!(world.run(&[0; 6], &[]).status, Status::Good);
    let response = world.run(&cdb16(0x88, 0, 1 << 40, 1), &[]);
    assert_eq!(response.sense[..8], [0x72, 5, 0x21, 0, 0, 0, 0, 12]);
    assert_eq!(response.sense[8..12], [0, 0x0a, 0x80, 0]);
    assert_eq!(response.sense[12..], (1u64 << 40).to_be_bytes());
    // No parameter changes, so no nexus is told.
    world.good(&cdb, &list);
    assert_eq!(world.run_by(2, &[0; 6], &[]).status, Status::Good);
    // A reset restores the default.
    world.device.handle_management(NOW, 1, 7, 0, ManagementFunction::LogicalUnitReset);
    world.collect();
    assert_eq!(world.managed.pop(), Some((7, ManagementResponse::Complete)));
    for nexus in 1..=2 {
        let told = world.run_by(nexus, &[0; 6], &[]);
        assert_eq!(attention(&told), Some(code::DEVICE_RESET_OCCURRED));
        assert_eq!(world.run_by(nexus, &[0; 6], &[]).status, Status::Good);
    }
}

#[test]
fn mode_select_refuses_by_the_book() {
    let mut world = World::new(512);
    let mut refused = |page: &[u8], at: u16, bit: u8| {
        let (cdb, list) = mode_select(page);
        let response = world.run(&cdb, &list);
        assert_eq!(code_of(&response), code::INVALID_FIELD_IN_LIST);
        let [high, low] = at.to_be_bytes();
        assert_eq!(response.sense[15..18], [0x88 | bit, high, low]);
    };
    let mut page = CONTROL;
    page[3] = 0x00;
    refused(&page, 7, 4);
    page = CONTROL;
    page[4] = 0x18;
    refused(&page, 8, 4);
    refused(&[0x02, 0x0e], 4, 5);
    refused(&[0x4a, 0x01, 0, 0], 4, 6);
    let (cdb, list) = mode_select(&CONTROL[..8]);
    assert_eq!(world.bad(&cdb, &list), code::PARAMETER_LIST_LENGTH_ERROR);
    let (cdb, list) = mode_select(&[0x0a, 0x09, 0, 0]);
    assert_eq!(world.bad(&cdb, &list), code::INVALID_FIELD_IN_LIST);
    // SP; PF not set; less than a header; another block length.
    assert_eq!(world.bad(&[0x15, 0x11, 0, 0, 4, 0], &[0; 4]), code::INVALID_FIELD_IN_CDB);
    assert_eq!(world.bad(&[0x15, 0x00, 0, 0, 4, 0], &[0; 4]), code::INVALID_FIELD_IN_CDB);
    assert_eq!(world.bad(&[0x15, 0x10, 0, 0, 3, 0], &[0; 3]), code::PARAMETER_LIST_LENGTH_ERROR);
    let list = [0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 4, 0];
    assert_eq!(world.bad(&[0x15, 0x10, 0, 0, 12, 0], &list), code::INVALID_FIELD_IN_LIST);
    let list = [0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 2, 0];
    world.good(&[0x15, 0x10, 0, 0, 12, 0], &list);
    world.good(&[0x15, 0x10, 0, 0, 0, 0], &[]);
    // A list with an error changes nothing.
    let mut caching = [0; 20];
    caching[..3].copy_from_slice(&[0x08, 0x12, 0x04]);
    page = CONTROL;
    page[6] = 1;
    let (cdb, list) = mode_select(&[&caching[..], &page].concat());
    assert_eq!(world.bad(&cdb, &list), code::INVALID_FIELD_IN_LIST);
    assert!(!world.device.unit.mode.write_cache);
}

#[test]
fn the_write_cache_really_switches() {
    let mut world = World::new(512);
    let fua_of_write = |world: &mut World, flags: u8| {
        world.submit(1, &cdb10(0x2a, flags, 0, 1), Attribute::Simple, &[1; 512]);
        world.send(0);
        let fua = matches!(world.requests[0].1, Request::Write { fua: true, .. });
        world.drain();
        fua
    };
    // No initiator has asked for it yet.
    assert!(fua_of_write(&mut world, 0));
    let mut caching = [0; 20];
    caching[..3].copy_from_slice(&[0x08, 0x12, 0x04]);
    let (cdb, list) = mode_select(&caching);
    world.good(&cdb, &list);
    assert_eq!(world.flushes, 0);
    assert!(!fua_of_write(&mut world, 0));
    assert!(fua_of_write(&mut world, 0x08));
    caching[2] = 0;
    let (cdb, list) = mode_select(&caching);
    world.good(&cdb, &list);
    assert_eq!(world.flushes, 1);
    assert!(fua_of_write(&mut world, 0));
}

#[test]
fn software_write_protection() {
    let mut world = World::new(512);
    let mut page = CONTROL;
    page[4] = 0x08;
    let (cdb, list) = mode_select(&page);
    world.good(&cdb, &list);
    assert_eq!(world.good(&[0x1a, 8, 0x0a, 0, 255, 0], &[])[2], 0x90);
    world.good(&cdb10(0x28, 0, 0, 1), &[]);
    let list = unmap_list(&[(0, 1)]);
    let writes: [(&[u8], usize); 8] = [
        (&cdb10(0x2a, 0, 0, 1), 512),
        (&cdb10(0x2e, 0, 0, 1), 512),
        (&cdb10(0x41, 8, 0, 1), 0),
        (&cdb16(0x93, 0, 0, 1), 0),
        (&caw(0, 1), 1024),
        (&cdb16(0x8b, 0, 0, 1), 512),
        (&cdb16(0x9c, 0, 0, 0), 0),
        (&unmap(&list), list.len()),
    ];
    for (cdb, out) in writes {
        assert_eq!(world.bad(cdb, &vec![0; out]), code::SOFTWARE_WRITE_PROTECTED);
    }
    assert_eq!(world.mapped, vec![false; SECTORS as usize]);
}

#[test]
fn request_sense_takes_a_unit_attention_and_inquiry_does_not() {
    let mut world = World::new(512);
    world.device.handle_resized(NOW, SECTORS - 8);
    world.good(&[0x12, 0, 0, 0, 96, 0], &[]);
    world.good(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0], &[]);
    let sense = world.good(&[0x03, 0, 0, 0, 18, 0], &[]);
    assert_eq!((sense[0], sense[2], sense[12], sense[13]), (0x70, 6, 0x2a, 0x09));
    let sense = world.good(&[0x03, 1, 0, 0, 18, 0], &[]);
    assert_eq!(sense, [0x72, 0, 0, 0, 0, 0, 0, 0]);
    let told = world.run_by(2, &[0; 6], &[]);
    assert_eq!(attention(&told), Some(code::CAPACITY_CHANGED));
    assert_eq!(world.run_by(2, &[0; 6], &[]).status, Status::Good);
}

#[test]
fn small_commands() {
    let mut world = World::new(512);
    world.good(&[0x1e, 0, 0, 0, 1, 0], &[]);
    assert_eq!(world.bad(&[0x1e, 0, 0, 0, 2, 0], &[]), code::INVALID_FIELD_IN_CDB);
    world.good(&[0x1b, 0, 0, 0, 0, 0], &[]);
    assert_eq!(world.flushes, 1);
    world.good(&[0x1b, 1, 0, 0, 1, 0], &[]);
    world.good(&[0x1b, 0, 0, 0, 4, 0], &[]);
    assert_eq!(world.flushes, 1);
    assert_eq!(world.bad(&[0x1b, 0, 0, 0, 2, 0], &[]), code::INVALID_FIELD_IN_CDB);
    assert_eq!(world.bad(&[0x1b, 0, 0, 0, 0x30, 0], &[]), code::INVALID_FIELD_IN_CDB);
    assert_eq!(world.good(&[0x37, 0, 0x1d, 0, 0, 0, 0, 0, 32, 0], &[]), [0, 0x1d, 0, 0]);
    assert_eq!(world.good(&[0xb7, 0x1d, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0], &[]).len(), 8);
    assert_eq!(world.good(&[0x1c, 1, 0, 0, 32, 0], &[]), [0, 0, 0, 1, 0]);
    world.good(&[0x1d, 4, 0, 0, 0, 0], &[]);
    world.good(&[0x1d, 0x10, 0, 0, 4, 0], &[0; 4]);
    assert_eq!(world.bad(&[0x1d, 0x10, 0, 0, 4, 0], &[1, 0, 0, 0]), code::INVALID_FIELD_IN_LIST);
    assert_eq!(world.good(&[0x4d, 0, 0x40, 0, 0, 0, 0, 0, 32, 0], &[]), [0, 0, 0, 2, 0, 0x2f]);
    assert_eq!(world.good(&[0x4d, 0, 0x6f, 0, 0, 0, 0, 0, 32, 0], &[]).len(), 12);
    let groups = world.good(&[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], &[]);
    assert_eq!(groups, [0, 0, 0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1]);
    let extended = world.good(&[0xa3, 0x2a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], &[]);
    assert_eq!(extended[..8], [0, 0, 0, 16, 0x10, 0, 0, 0]);
    let functions = world.good(&[0xa3, 0x0d, 0x80, 0, 0, 0, 0, 0, 1, 0, 0, 0], &[]);
    assert_eq!((functions.len(), functions[3]), (16, 12));
}
