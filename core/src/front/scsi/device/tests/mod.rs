//! A host and a volume around the device: commands in, requests answered in any order.

mod commands;
mod copies;
pub(super) mod lists;
mod medium;
mod properties;
mod tasks;

use super::*;
use crate::block::{
    BlockState, Range, ReadPiece, Request, SECTOR_BYTES, Staged, StagedPiece, StatusRun, VolumeId,
};
use crate::front::scsi::config::TokenSecret;
use crate::front::scsi::copy;
use crate::front::scsi::function::ManagementResponse;
use crate::front::scsi::sense::key;
use std::collections::BTreeMap;

pub(super) const SECTORS: u64 = 4096;
pub(super) const NOW: Time = Time(0);

/// A device, the bytes of its volume, and its outputs.
pub(super) struct World {
    pub device: Device,
    pub bytes: Vec<u8>,
    /// By sector.
    pub mapped: Vec<bool>,
    /// Requests without an answer, in order.
    pub requests: Vec<(u64, Request)>,
    pub flushes: usize,
    /// Output that hosts are ready to send.
    pub sends: BTreeMap<TaskId, Bytes>,
    /// Bytes of the pieces in which output is handed in.
    pub piece: usize,
    pub wants: Vec<(TaskId, u64)>,
    pub responses: BTreeMap<TaskId, CommandResponse>,
    pub aborted: BTreeSet<TaskId>,
    pub managed: Vec<(u64, ManagementResponse)>,
    pub saves: Vec<(u64, Bytes)>,
    /// Copies that have not ended, and those of them that are to end.
    pub copies: Vec<(u64, copy::CopyPlan)>,
    pub ends: BTreeSet<u64>,
    pub parts: BTreeMap<TaskId, Result<copy::PartReply, copy::PartFailure>>,
    /// By number.
    pub watches: BTreeMap<u64, Vec<Range>>,
    pub next_watch: u64,
    pub next_task: TaskId,
}

impl World {
    pub fn new(block_bytes: u32) -> World {
        let config = DeviceConfig {
            volume: VolumeId(0x0123_4567_89ab_cdef_0011_2233_4455_6677),
            name: "v".into(),
            target_name: "iqn.2026-11.io.longhaul:v".into(),
            sectors: SECTORS,
            block_bytes,
            read_only: false,
            reservations: Bytes::new(),
            token_secret: TokenSecret([7; 32]),
        };
        let mut world = World {
            device: Device::new(config),
            bytes: vec![0; (SECTORS * SECTOR_BYTES) as usize],
            mapped: vec![false; SECTORS as usize],
            requests: Vec::new(),
            flushes: 0,
            sends: BTreeMap::new(),
            piece: 8192,
            wants: Vec::new(),
            responses: BTreeMap::new(),
            aborted: BTreeSet::new(),
            managed: Vec::new(),
            saves: Vec::new(),
            copies: Vec::new(),
            ends: BTreeSet::new(),
            parts: BTreeMap::new(),
            watches: BTreeMap::new(),
            next_watch: 1,
            next_task: 1,
        };
        for nexus in 1..=2 {
            world.nexus(nexus);
            // Power on.
            let response = world.run_by(nexus, &[0; 6], &[]);
            assert_eq!(attention(&response), Some(code::RESET_OCCURRED));
        }
        world
    }

    pub fn nexus(&mut self, nexus: NexusId) {
        let initiator_port = format!("iqn.2026-11.io.example:{nexus},i,0x000000000001");
        self.device.handle_nexus(NOW, nexus, Nexus { initiator_port, relative_port: 1 });
    }

    /// Hands in a command with its output; returns its task.
    pub fn submit(
        &mut self,
        nexus: NexusId,
        cdb: &[u8],
        attribute: Attribute,
        out: &[u8],
    ) -> TaskId {
        let task = self.next_task;
        self.next_task += 1;
        self.sends.insert(task, Bytes::copy_from_slice(out));
        let mut bytes = [0; 16];
        bytes[..cdb.len()].copy_from_slice(cdb);
        let command = Command {
            lun: 0,
            cdb: bytes,
            more_cdb: Bytes::new(),
            attribute,
            out_bytes: out.len() as u64,
            in_bytes: 1 << 20,
        };
        self.device.handle_command(NOW, nexus, task, command);
        self.collect();
        task
    }

    /// Takes all outputs of the device.
    pub fn collect(&mut self) {
        while let Some(output) = self.device.poll_output() {
            match output {
                DeviceOutput::WantData { task, bytes } => {
                    assert!(bytes > 0 && bytes <= self.sends[&task].len() as u64);
                    self.wants.push((task, bytes));
                }
                DeviceOutput::Response { task, response } => {
                    assert!(!self.aborted.contains(&task));
                    assert!(self.responses.insert(task, response).is_none(), "two responses");
                }
                DeviceOutput::Aborted { task } => {
                    assert!(!self.responses.contains_key(&task));
                    assert!(self.aborted.insert(task));
                }
                DeviceOutput::ManagementDone { id, response } => self.managed.push((id, response)),
                DeviceOutput::Request { id, request } => {
                    self.check(&request);
                    self.requests.push((id, request));
                }
                DeviceOutput::SaveReservations { id, data } => self.saves.push((id, data)),
                DeviceOutput::Copy { id, plan, .. } => self.copies.push((id, plan)),
                DeviceOutput::EndCopy { id } => {
                    assert!(self.copies.iter().any(|(copy, _)| *copy == id));
                    assert!(self.ends.insert(id), "told to end twice");
                }
                DeviceOutput::Part { task, result } => {
                    assert!(self.parts.insert(task, result).is_none(), "a part ended twice");
                }
            }
        }
    }

    fn check(&self, request: &Request) {
        let sectors = self.device.unit.config.sectors;
        match request {
            Request::Flush => {}
            Request::Write { range, data, .. } => {
                assert!(range.fits(sectors) && range.bytes() == data.len() as u64);
                assert!(!range.is_empty() && range.bytes() <= crate::block::MAX_TRANSFER_BYTES);
            }
            Request::Read(range) => {
                assert!(range.fits(sectors) && !range.is_empty());
                assert!(range.bytes() <= crate::block::MAX_TRANSFER_BYTES);
            }
            Request::Discard { range, .. }
            | Request::Zero { range, .. }
            | Request::Prefetch(range)
            | Request::Status(range) => assert!(range.fits(sectors) && !range.is_empty()),
            Request::Watch(ranges) => {
                assert!(ranges.iter().all(|range| range.fits(sectors) && !range.is_empty()));
            }
            Request::Unwatch(watch) => assert!(*watch < self.next_watch),
            Request::Stage { range, object, .. } => {
                assert!(range.fits(sectors) && !range.is_empty() && *object == 0);
                assert!(range.sectors <= crate::block::MAX_STAGE_SECTORS);
            }
            Request::WriteStaged { pieces, .. } => {
                assert!(!pieces.is_empty());
                let fits = |it: &StagedPiece| it.range.fits(sectors) && !it.range.is_empty();
                assert!(pieces.iter().all(fits));
            }
        }
    }

    /// Hands in the output that one task wants.
    pub fn send(&mut self, index: usize) {
        let (task, bytes) = self.wants.remove(index);
        let mut left = self.sends[&task].slice(..bytes as usize);
        let mut data = Vec::new();
        while !left.is_empty() {
            data.push(left.split_to(left.len().min(self.piece.max(1))));
        }
        self.device.handle_data(NOW, task, data);
        self.collect();
    }

    /// Answers one request.
    pub fn answer(&mut self, index: usize) {
        let (id, request) = self.requests.remove(index);
        let reply = self.carry_out(request);
        self.device.handle_reply(NOW, id, Ok(reply));
        self.collect();
    }

    pub fn fail(&mut self, index: usize, error: BlockError) {
        let (id, _) = self.requests.remove(index);
        self.device.handle_reply(NOW, id, Err(error));
        self.collect();
    }

    fn carry_out(&mut self, request: Request) -> Reply {
        let at = |range: Range| {
            (range.lba * SECTOR_BYTES) as usize..(range.end() * SECTOR_BYTES) as usize
        };
        let sectors = |range: Range| range.lba as usize..range.end() as usize;
        match request {
            Request::Read(range) => {
                // Zeroes for unmapped sectors, data in pieces for others.
                let mut pieces = Vec::new();
                for sector in range.lba..range.end() {
                    let one = Range::new(sector, 1);
                    pieces.push(if self.mapped[sector as usize] {
                        ReadPiece::Data(Bytes::copy_from_slice(&self.bytes[at(one)]))
                    } else {
                        ReadPiece::Zeroes(1)
                    });
                }
                Reply::Data(pieces)
            }
            Request::Write { range, data, .. } => {
                self.bytes[at(range)].copy_from_slice(&data);
                self.mapped[sectors(range)].fill(true);
                Reply::Done
            }
            Request::Flush => {
                self.flushes += 1;
                Reply::Done
            }
            Request::Discard { range, .. } | Request::Zero { range, allocate: false, .. } => {
                self.bytes[at(range)].fill(0);
                self.mapped[sectors(range)].fill(false);
                Reply::Done
            }
            Request::Zero { range, .. } => {
                self.bytes[at(range)].fill(0);
                self.mapped[sectors(range)].fill(true);
                Reply::Done
            }
            Request::Prefetch(_) => Reply::Done,
            Request::Status(range) => {
                let mut runs: Vec<StatusRun> = Vec::new();
                for sector in range.lba..range.end() {
                    let mapped = self.mapped[sector as usize];
                    let state = if mapped { BlockState::Data } else { BlockState::Hole };
                    match runs.last_mut() {
                        Some(run) if run.state == state => run.sectors += 1,
                        _ => runs.push(StatusRun { sectors: 1, state }),
                    }
                }
                Reply::Status(runs)
            }
            Request::Watch(ranges) => {
                let watch = self.next_watch;
                self.next_watch += 1;
                self.watches.insert(watch, ranges);
                Reply::Watching(watch)
            }
            Request::Unwatch(watch) => {
                self.watches.remove(&watch);
                Reply::Done
            }
            Request::Stage { range, lba, .. } => {
                let range = Range::new(lba, range.sectors);
                Reply::Staged(vec![StagedPiece { range, content: Staged::Hole }])
            }
            Request::WriteStaged { pieces, .. } => {
                for piece in pieces {
                    self.bytes[at(piece.range)].fill(0);
                    self.mapped[sectors(piece.range)].fill(false);
                }
                Reply::Done
            }
        }
    }

    /// Ends a copy.
    pub fn copied(&mut self, index: usize, result: Result<(), copy::CopyFailure>) {
        let (id, _) = self.copies.remove(index);
        self.ends.remove(&id);
        self.device.handle_copied(NOW, id, result);
        self.collect();
    }

    /// Acts on everything that is pending, in order.
    pub fn drain(&mut self) {
        loop {
            if !self.wants.is_empty() {
                self.send(0);
            } else if !self.requests.is_empty() {
                self.answer(0);
            } else if let Some((id, _)) = self.saves.pop() {
                self.device.handle_saved(NOW, id, Ok(()));
                self.collect();
            } else if !self.copies.is_empty() {
                self.copied(0, Ok(()));
            } else {
                break;
            }
        }
    }

    pub fn run_by(&mut self, nexus: NexusId, cdb: &[u8], out: &[u8]) -> CommandResponse {
        let task = self.submit(nexus, cdb, Attribute::Simple, out);
        self.drain();
        self.responses.remove(&task).expect("no response")
    }

    pub fn run(&mut self, cdb: &[u8], out: &[u8]) -> CommandResponse {
        self.run_by(1, cdb, out)
    }

    pub fn good(&mut self, cdb: &[u8], out: &[u8]) -> Vec<u8> {
        let response = self.run(cdb, out);
        assert_eq!(response.status, Status::Good, "{cdb:02x?}: {response:02x?}");
        bytes_of(&response.data)
    }

    /// The code of the sense data, in fixed format, of a failed command.
    pub fn bad(&mut self, cdb: &[u8], out: &[u8]) -> u16 {
        let response = self.run(cdb, out);
        assert_eq!(response.status, Status::CheckCondition, "{cdb:02x?}");
        code_of(&response)
    }
}

pub(super) fn bytes_of(data: &DataIn) -> Vec<u8> {
    match data {
        DataIn::None => Vec::new(),
        DataIn::Parameter(bytes) => bytes.to_vec(),
        DataIn::Pieces(pieces) => pieces
            .iter()
            .flat_map(|piece| match piece {
                ReadPiece::Data(data) => data.to_vec(),
                ReadPiece::Zeroes(sectors) => vec![0; (sectors * SECTOR_BYTES) as usize],
            })
            .collect(),
    }
}

pub(super) fn code_of(response: &CommandResponse) -> u16 {
    u16::from_be_bytes([response.sense[12], response.sense[13]])
}

pub(super) fn attention(response: &CommandResponse) -> Option<u16> {
    let is = response.status == Status::CheckCondition && response.sense[2] == key::UNIT_ATTENTION;
    is.then(|| code_of(response))
}

/// READ(16), and commands of the same form.
pub(super) fn cdb16(opcode: u8, flags: u8, lba: u64, blocks: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    cdb[1] = flags;
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

/// READ(10), and commands of the same form.
pub(super) fn cdb10(opcode: u8, flags: u8, lba: u32, blocks: u16) -> [u8; 10] {
    let mut cdb = [0; 10];
    cdb[0] = opcode;
    cdb[1] = flags;
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

pub(super) fn caw(lba: u64, blocks: u8) -> [u8; 16] {
    let mut cdb = cdb16(0x89, 0, lba, 0);
    cdb[13] = blocks;
    cdb
}

/// UNMAP's parameter list.
pub(super) fn unmap_list(ranges: &[(u64, u32)]) -> Vec<u8> {
    let length = (16 * ranges.len()) as u16;
    let mut list = (length + 6).to_be_bytes().to_vec();
    list.extend(length.to_be_bytes());
    list.extend([0; 4]);
    for (lba, blocks) in ranges {
        list.extend(lba.to_be_bytes());
        list.extend(blocks.to_be_bytes());
        list.extend([0; 4]);
    }
    list
}

pub(super) fn unmap(list: &[u8]) -> [u8; 10] {
    cdb10(0x42, 0, 0, list.len() as u16)
}
