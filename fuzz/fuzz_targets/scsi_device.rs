//! A device that gets any commands with any output, from several nexuses that come and go. It never
//! panics. Requests lie within the volume, with a payload of their length. It asks for no more
//! output than the initiator announced. Every command ends once. The same inputs give the same
//! outputs.
//!
//! Input: settings, then steps: a byte for the kind, and its bytes.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use longhaul_core::block::{BlockError, Range, Request, Staged, StagedPiece, Time, VolumeId};
use longhaul_core::front::scsi::Side;
use longhaul_core::front::scsi::copy::{CopyFailure, CopyPart, CopyProblem};
use longhaul_core::front::scsi::{
    Attribute, Command, DataIn, Device, DeviceOutput, ManagementFunction, Nexus, Status,
};
use longhaul_fuzz::iscsi::{check, copy_list, device, populate_list, reply, token_list, unit};
use longhaul_fuzz::{Input, seeds};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const NOW: Time = Time(1);

/// A command as a step: nexus, attribute, CDB, announced output, output.
fn step(nexus: u8, cdb: &[u8], data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![nexus % 3, 0];
    let mut whole = [0; 16];
    whole[..cdb.len()].copy_from_slice(cdb);
    bytes.extend(whole);
    bytes.extend((data.len() as u32).to_le_bytes());
    bytes.extend(data);
    bytes
}

fn make_seeds() -> Vec<Vec<u8>> {
    let reads = [
        vec![0],
        step(0, &[0; 6], &[]),
        step(0, &[0x12, 1, 0xb0, 0, 255, 0], &[]),
        step(0, &[0x12, 1, 0x83, 0, 255, 0], &[]),
        step(0, &[0x1a, 0, 0x3f, 0, 255, 0], &[]),
        step(0, &[0x5a, 0, 0x3f, 0, 0, 0, 0, 1, 0, 0], &[]),
        step(0, &[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0], &[]),
        step(0, &[0x9e, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0], &[]),
        step(0, &[0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0], &[]),
        step(0, &[0x88, 0, 0, 0, 0, 0, 0, 0, 0, 60, 0, 0, 0, 2, 0, 0], &[]),
        step(0, &[0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 255, 0, 0, 0], &[]),
        step(0, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0], &[]),
        step(0, &[0x34, 0, 0, 0, 0, 0, 0, 0, 8, 0], &[]),
    ];
    let writes = [
        vec![0],
        step(0, &[0; 6], &[]),
        step(0, &[0x2a, 8, 0, 0, 0, 0, 0, 0, 2, 0], &[7; 1024]),
        step(0, &[0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0], &[1; 1024]),
        step(0, &[0x8b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0], &[1; 512]),
        step(0, &[0x93, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0], &[0; 512]),
        step(0, &[0x2e, 2, 0, 0, 0, 0, 0, 0, 1, 0], &[7; 512]),
        step(0, &[0x2f, 2, 0, 0, 0, 0, 0, 0, 1, 0], &[7; 512]),
        step(
            0,
            &[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0],
            &[0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0, 0],
        ),
        step(
            0,
            &[0x15, 0x10, 0, 0, 24, 0],
            &[0, 0, 0, 0, 8, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ),
        step(0, &[0x35, 2, 0, 0, 0, 0, 0, 0, 0, 0], &[]),
        step(0, &[0x9c, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0], &[3; 1024]),
    ];
    let mut register = [0; 24];
    register[15] = 5;
    let mut act = [0; 24];
    act[7] = 5;
    act[15] = 6;
    let reserved = [
        vec![2],
        step(0, &[0; 6], &[]),
        step(1, &[0; 6], &[]),
        step(0, &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], &register),
        step(1, &[0x5f, 6, 0, 0, 0, 0, 0, 0, 24, 0], &register),
        step(0, &[0x5f, 1, 1, 0, 0, 0, 0, 0, 24, 0], &act),
        step(1, &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[1; 512]),
        step(1, &[0x5f, 5, 3, 0, 0, 0, 0, 0, 24, 0], &act),
        step(0, &[0x5e, 3, 0, 0, 0, 0, 0, 1, 0, 0], &[]),
        vec![3, 0],
        vec![4, 1],
        step(0, &[0x16, 0, 0, 0, 0, 0], &[]),
        vec![5, 2, 0],
    ];
    let third = |action: u8, list: &[u8]| {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[9]) = (0x83, action, 5);
        cdb[10..14].copy_from_slice(&(list.len() as u32).to_be_bytes());
        step(0, &cdb, list)
    };
    let mut immediate = token_list(None);
    immediate[2] = 1;
    let copies = [
        vec![0],
        step(0, &[0; 6], &[]),
        step(0, &[0x12, 1, 0x8f, 4, 0, 0], &[]),
        step(0, &[0x84, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0], &[]),
        third(0, &copy_list([unit(0x70), unit(0x80)])),
        vec![6, 0],
        step(0, &[0x84, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0], &[]),
        step(0, &[0x84, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0], &[]),
        third(0x10, &populate_list()),
        step(0, &[0x84, 7, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0], &[]),
        third(0x11, &token_list(Some(unit(0x70)))),
        third(0x11, &immediate),
        vec![6, 1],
        vec![7, 0, 3],
        vec![7, 1, 4],
        vec![7, 2, 5],
        vec![5, 12],
    ];
    vec![reads.concat(), writes.concat(), reserved.concat(), copies.concat()]
}

/// Commands that have not ended, and the rest of what a run has come to.
#[derive(Default)]
struct World {
    /// Announced output, by task.
    open: BTreeMap<u64, Vec<u8>>,
    nexuses: BTreeMap<u64, u64>,
    functions: BTreeSet<u64>,
    next: u64,
    log: Vec<String>,
    /// Requests wait for a step that answers them.
    hold: bool,
    held: Vec<(u64, Request)>,
    /// Copies that have not ended.
    copies: Vec<u64>,
    /// Parts that have not ended.
    parts: BTreeSet<u64>,
}

impl World {
    fn name(&mut self, device: &mut Device, which: u8) -> u64 {
        if let Some(nexus) = self.nexuses.get(&u64::from(which)) {
            return *nexus;
        }
        self.next += 1;
        self.nexuses.insert(u64::from(which), self.next);
        let initiator_port = format!("iqn.2001-04.com.example:i,i,0x80000000000{which}");
        device.handle_nexus(NOW, self.next, Nexus { initiator_port, relative_port: 1 });
        self.next
    }

    fn pump(&mut self, device: &mut Device, input: &mut Input<'_>) {
        while let Some(output) = device.poll_output() {
            self.log.push(format!("{output:?}"));
            match output {
                DeviceOutput::WantData { task, bytes } => {
                    let data = &self.open[&task];
                    assert!(bytes > 0 && bytes <= data.len() as u64, "{bytes} of {}", data.len());
                    let data = &data[..bytes as usize];
                    match input.byte() % 8 {
                        0 => device.handle_data_failure(NOW, task, 0x0b, 0x4705),
                        cut => {
                            let (first, second) = data.split_at(data.len() / usize::from(cut));
                            let pieces = [first, second].map(Bytes::copy_from_slice);
                            device.handle_data(NOW, task, pieces.to_vec());
                        }
                    }
                }
                DeviceOutput::Response { task, response } => {
                    assert!(self.open.remove(&task).is_some(), "task {task} ends twice");
                    assert!(response.sense.len() <= 252);
                    let check = response.status == Status::CheckCondition;
                    assert_eq!(check, !response.sense.is_empty(), "{response:?}");
                    if let DataIn::Parameter(data) = &response.data {
                        assert!(data.len() <= 1 << 20);
                    }
                }
                DeviceOutput::Aborted { task } => {
                    assert!(self.open.remove(&task).is_some(), "task {task} ends twice");
                }
                DeviceOutput::ManagementDone { id, .. } => {
                    assert!(self.functions.remove(&id), "function {id} ends twice");
                }
                DeviceOutput::Request { id, request } => {
                    check(&request);
                    if self.hold {
                        self.held.push((id, request));
                    } else {
                        device.handle_reply(NOW, id, reply(&request));
                    }
                }
                DeviceOutput::Copy { id, .. } => self.copies.push(id),
                DeviceOutput::EndCopy { id } => assert!(self.copies.contains(&id), "no copy {id}"),
                DeviceOutput::Part { task, .. } => {
                    assert!(self.parts.remove(&task), "part {task} ends twice");
                }
                DeviceOutput::SaveReservations { id, data } => {
                    assert!(data.len() <= 1 << 20);
                    let failed = input.byte() == 1;
                    let result = if failed { Err("no space".to_owned()) } else { Ok(()) };
                    device.handle_saved(NOW, id, result);
                }
            }
        }
    }
}

fn run(data: &[u8]) -> Vec<String> {
    let mut input = Input(data);
    let settings = input.byte();
    let block_bytes = if settings & 1 == 0 { 512 } else { 4096 };
    let mut device = Device::new(device(block_bytes, Bytes::new()));
    let mut world = World { hold: settings & 2 != 0, ..World::default() };
    while !input.is_empty() {
        match input.byte() {
            which @ 0..=2 => {
                let nexus = world.name(&mut device, which);
                let flags = input.byte();
                let mut cdb = [0; 16];
                let given = input.bytes(16);
                cdb[..given.len()].copy_from_slice(given);
                let length = input.u32() as usize % (64 << 10);
                let data = input.bytes(length);
                world.next += 1;
                let task = world.next;
                world.open.insert(task, data.to_vec());
                let attribute = match flags & 7 {
                    2 => Attribute::Ordered,
                    3 => Attribute::HeadOfQueue,
                    4 => Attribute::Aca,
                    _ => Attribute::Simple,
                };
                let command = Command {
                    lun: if flags & 0x80 == 0 { 0 } else { u64::from(flags) << 48 },
                    cdb,
                    more_cdb: Bytes::copy_from_slice(if flags & 0x40 != 0 { data } else { &[] })
                        .slice(..if flags & 0x40 != 0 { data.len().min(244) } else { 0 }),
                    attribute,
                    out_bytes: data.len() as u64,
                    in_bytes: 1 << 20,
                };
                device.handle_command(NOW, nexus, task, command);
            }
            3 => {
                let which = u64::from(input.byte() % 3);
                if let Some(nexus) = world.nexuses.remove(&which) {
                    device.handle_nexus_loss(NOW, nexus);
                }
            }
            4 => {
                for (id, request) in std::mem::take(&mut world.held) {
                    let result = match input.byte() {
                        1 => Err(BlockError::Fenced),
                        2 => Err(BlockError::ShuttingDown),
                        _ => reply(&request),
                    };
                    device.handle_reply(NOW, id, result);
                }
            }
            5 => {
                let which = input.byte();
                let nexus = world.name(&mut device, which % 3);
                let task = world.next.saturating_sub(u64::from(input.byte()));
                let function = match which >> 2 {
                    0 => ManagementFunction::AbortTask(task),
                    1 => ManagementFunction::AbortTaskSet,
                    2 => ManagementFunction::ClearTaskSet,
                    3 => ManagementFunction::LogicalUnitReset,
                    4 => ManagementFunction::TargetReset,
                    5 => ManagementFunction::QueryTask(task),
                    6 => ManagementFunction::QueryTaskSet,
                    7 => ManagementFunction::QueryAsyncEvent,
                    _ => ManagementFunction::NexusReset,
                };
                world.next += 1;
                world.functions.insert(world.next);
                device.handle_management(NOW, nexus, world.next, 0, function);
            }
            6 => {
                let failed = input.byte() == 1;
                let side = Side::Source;
                let failure = CopyFailure { segment: 1, problem: CopyProblem::OutOfRange(side) };
                if !world.copies.is_empty() {
                    let id = world.copies.remove(0);
                    device.handle_copy_progress(id, 1, 8);
                    device.handle_copied(NOW, id, if failed { Err(failure) } else { Ok(()) });
                }
            }
            7 => {
                let (which, lba) = (input.byte(), u64::from(input.byte()));
                let nexus = world.name(&mut device, which >> 2 & 1);
                let range = Range::new(lba, 8);
                let part = match which % 4 {
                    0 => CopyPart::Stage { range, into: VolumeId(0x80), lba, watch: Some(1) },
                    1 => CopyPart::Write(vec![StagedPiece { range, content: Staged::Hole }]),
                    2 => CopyPart::Zero(range),
                    _ => CopyPart::Stage { range, into: VolumeId(0x80), lba, watch: None },
                };
                world.next += 1;
                world.parts.insert(world.next);
                device.handle_part(NOW, nexus, world.next, part);
            }
            8 => {
                let part = world.next.saturating_sub(u64::from(input.byte()));
                if world.parts.contains(&part) {
                    device.end_part(NOW, part);
                }
            }
            9 => device.handle_timeout(NOW.after(Duration::from_secs(input.byte().into()))),
            _ => {}
        }
        world.pump(&mut device, &mut input);
    }
    world.hold = false;
    for (id, request) in std::mem::take(&mut world.held) {
        device.handle_reply(NOW, id, reply(&request));
        world.pump(&mut device, &mut Input(&[]));
    }
    for id in std::mem::take(&mut world.copies) {
        device.handle_copied(NOW, id, Ok(()));
        world.pump(&mut device, &mut Input(&[]));
    }
    assert!(world.parts.is_empty(), "parts without an end: {:?}", world.parts);
    assert!(world.functions.is_empty(), "functions without an end: {:?}", world.functions);
    // Tasks of a lost nexus end without an answer. No other tasks do.
    for nexus in std::mem::take(&mut world.nexuses).into_values() {
        device.handle_nexus_loss(NOW, nexus);
    }
    world.pump(&mut device, &mut Input(&[]));
    world.log
}

fuzz_target!(init: seeds("scsi_device", make_seeds), |data: &[u8]| {
    assert_eq!(run(data), run(data), "not a function of the input");
});
