//! Requests over NBD and iSCSI to a host volume: bytes in, bytes out.
//!
//! The journal is in memory. For writes, the store commits every batch at once. For reads it never
//! does, so the journal has all data.

use super::{SECTORS, VOLUME, bytes, somewhere};
use bytes::{Bytes, BytesMut};
use longhaul_core::block::{BlockError, Reply, Time};
use longhaul_core::disk::{DiskOperation, DiskResult};
use longhaul_core::front::iscsi::{self, Access, Peer, Target};
use longhaul_core::front::nbd::{self, ExportInfo, Session, Tls};
use longhaul_core::front::scsi::{DeviceConfig, TokenSecret};
use longhaul_core::host::journal::{Geometry, Recovered};
use longhaul_core::host::{Config, Mode, Volume};
use longhaul_core::wire::link::{Attached, HostId, ToHost, ToStore};
use std::collections::VecDeque;
use std::time::Duration;

const GEOMETRY: Geometry = Geometry { file_bytes: 4 << 20, files: 4 };

/// Time from one burst of operations to the next: some drains and syncs are in it.
const PAUSE: Duration = Duration::from_millis(1);

/// A host volume with its journal and its store.
struct Host {
    volume: Volume,
    files: Vec<Vec<u8>>,
    commits: bool,
    now: Time,
}

impl Host {
    fn new(commits: bool) -> Host {
        let attached =
            Attached { volume: VOLUME, sectors: SECTORS, block_bytes: 512, epoch: 1, committed: 0 };
        let config = Config::new(Mode::Journal(GEOMETRY));
        let journal = Recovered::empty(GEOMETRY, 1, VOLUME);
        let volume = Volume::new(Time(1), config, HostId(1), attached, Some(journal));
        let files = (0..GEOMETRY.files).map(|_| vec![0; GEOMETRY.file_bytes as usize]).collect();
        Host { volume, files, commits, now: Time(1) }
    }

    fn disk(&mut self, operation: DiskOperation) -> DiskResult {
        match operation {
            DiskOperation::Write { id, file, offset, data, .. } => {
                // Nobody reads the journal of a store that commits, and the copy is not the core's.
                if !self.commits {
                    let offset = offset as usize;
                    self.files[file as usize][offset..offset + data.len()].copy_from_slice(&data);
                }
                DiskResult::Done { id }
            }
            DiskOperation::Sync { id, .. } => DiskResult::Done { id },
            DiskOperation::Read { id, file, offset, bytes } => {
                let offset = offset as usize;
                let data = &self.files[file as usize][offset..offset + bytes];
                DiskResult::Data { id, data: Bytes::copy_from_slice(data) }
            }
        }
    }

    /// Does all work; gives the replies.
    fn settle(&mut self, replies: &mut VecDeque<(u64, Result<Reply, BlockError>)>) {
        loop {
            let mut idle = true;
            while let Some(operation) = self.volume.poll_disk() {
                idle = false;
                let result = self.disk(operation);
                self.volume.handle_disk(self.now, result);
            }
            while let Some((_, frame)) = self.volume.poll_message() {
                idle = false;
                if let (true, ToStore::Batch { volume, epoch, last, .. }) =
                    (self.commits, &frame.message)
                {
                    let (volume, epoch, seq) = (*volume, *epoch, *last);
                    let committed = ToHost::Committed { volume, epoch, seq };
                    self.volume.handle_message(self.now, committed.into());
                }
            }
            while let Some(reply) = self.volume.poll_reply() {
                idle = false;
                replies.push_back(reply);
            }
            while self.volume.poll_event().is_some() {
                idle = false;
            }
            if idle {
                return;
            }
        }
    }

    /// Time passes.
    fn pass(&mut self) {
        self.now = self.now.after(PAUSE);
        if self.volume.poll_timeout().is_some_and(|due| due <= self.now) {
            self.volume.handle_timeout(self.now);
        }
    }
}

/// One operation of an initiator.
#[derive(Clone, Copy)]
struct Operation {
    write: bool,
    /// Where.
    place: u64,
    /// How many were before it.
    order: u64,
}

/// An initiator and a host, over one connection.
trait Front {
    /// The bytes of an operation.
    fn bytes(&self, operation: Operation, data: &[u8]) -> Vec<u8>;
    /// Sends bytes, and counts those that come back.
    fn send(&mut self, bytes: &[u8]) -> usize;
    /// The host behind it.
    fn host(&mut self) -> &mut Host;
}

/// Bursts of `depth` operations; reads come after as many writes.
fn bursts<F: Front + 'static>(
    mut front: F,
    write: bool,
    operations: u32,
    depth: usize,
) -> Box<dyn FnMut()> {
    let (data, operations) = (bytes(4096), u64::from(operations));
    let mut order = 0;
    if !write {
        for place in 0..operations {
            front.host().pass();
            let bytes = front.bytes(Operation { write: true, place, order }, &data);
            assert!(front.send(&bytes) > 0, "write {place} has no answer");
            order += 1;
        }
    }
    let all: Vec<Vec<u8>> = (0..operations)
        .map(|place| front.bytes(Operation { write, place, order: order + place }, &data))
        .collect();
    let all: Vec<Vec<u8>> = all.chunks(depth).map(<[Vec<u8>]>::concat).collect();
    // An answer has a header at least.
    let least = depth * if write { 16 } else { 4096 };
    Box::new(move || {
        for burst in &all {
            front.host().pass();
            let length = front.send(burst);
            assert!(length >= least, "{length} bytes answer {depth} operations");
        }
    })
}

struct Nbd {
    session: Session,
    input: BytesMut,
    host: Host,
    replies: VecDeque<(u64, Result<Reply, BlockError>)>,
}

impl Nbd {
    fn new(commits: bool) -> Nbd {
        let config = nbd::Config { tls: Tls::Off, limits: nbd::Limits::default() };
        let mut front = Nbd {
            session: Session::new(config),
            input: BytesMut::new(),
            host: Host::new(commits),
            replies: VecDeque::new(),
        };
        // Fixed newstyle without zeroes; NBD_OPT_GO for `v` without requests for information.
        let mut bytes = 3_u32.to_be_bytes().to_vec();
        bytes.extend(b"IHAVEOPT");
        bytes.extend(7_u32.to_be_bytes());
        bytes.extend(7_u32.to_be_bytes());
        bytes.extend([0, 0, 0, 1, b'v', 0, 0]);
        front.send(&bytes);
        front
    }
}

impl Front for Nbd {
    fn bytes(&self, operation: Operation, data: &[u8]) -> Vec<u8> {
        let Operation { write, place, order } = operation;
        let range = somewhere(place);
        let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
        bytes.extend([0, 0, 0, u8::from(write)]);
        bytes.extend(order.to_be_bytes());
        bytes.extend((range.lba * 512).to_be_bytes());
        bytes.extend((range.bytes() as u32).to_be_bytes());
        bytes.extend(if write { data } else { &[] });
        bytes
    }

    fn send(&mut self, bytes: &[u8]) -> usize {
        self.input.extend_from_slice(bytes);
        let mut answered = 0;
        loop {
            self.session.handle_input(&mut self.input);
            let mut idle = true;
            while let Some(event) = self.session.poll_event() {
                idle = false;
                match event {
                    nbd::Event::LookupExport { name, .. } => {
                        self.session.handle_export(Ok(ExportInfo {
                            name,
                            description: String::new(),
                            sectors: SECTORS,
                            min_block: 512,
                            preferred_block: 4096,
                            max_payload: 32 << 20,
                            read_only: false,
                            bitmaps: Vec::new(),
                        }));
                    }
                    nbd::Event::Request { slot, request } => {
                        self.host.volume.handle_request(self.host.now, slot, request);
                    }
                    nbd::Event::Ready { .. } => {}
                    other => unreachable!("{other:?}"),
                }
            }
            self.host.settle(&mut self.replies);
            while let Some((slot, reply)) = self.replies.pop_front() {
                idle = false;
                self.session.handle_reply(slot, reply);
            }
            while let Some(piece) = self.session.poll_output() {
                answered += piece.len();
            }
            if idle {
                return answered;
            }
        }
    }

    fn host(&mut self) -> &mut Host {
        &mut self.host
    }
}

pub fn nbd_write(operations: u32) -> Box<dyn FnMut()> {
    bursts(Nbd::new(true), true, operations, 1)
}

pub fn nbd_write_32(operations: u32) -> Box<dyn FnMut()> {
    bursts(Nbd::new(true), true, operations, 32)
}

pub fn nbd_read(operations: u32) -> Box<dyn FnMut()> {
    bursts(Nbd::new(false), false, operations, 1)
}

pub fn nbd_read_32(operations: u32) -> Box<dyn FnMut()> {
    bursts(Nbd::new(false), false, operations, 32)
}

/// The only connection.
const CONNECTION: u64 = 1;

/// The keys of the login: the data of a write come with its command.
const KEYS: &str = "InitiatorName=iqn.2001-04.com.example:gate\0\
                    TargetName=iqn.2026-11.io.longhaul:v\0\
                    InitialR2T=No\0ImmediateData=Yes\0MaxRecvDataSegmentLength=262144\0";

struct Iscsi {
    target: Target,
    input: BytesMut,
    host: Host,
    replies: VecDeque<(u64, Result<Reply, BlockError>)>,
    device: Option<iscsi::DeviceId>,
}

impl Iscsi {
    fn new(commits: bool) -> Iscsi {
        // As the host has it.
        let config = iscsi::Config {
            error_recovery_level: 2,
            max_connections: 8,
            max_recv_data_segment: 256 << 10,
            max_burst: 1 << 20,
            first_burst: 256 << 10,
            max_outstanding_r2t: 16,
            commands: 256,
            session_bytes: 32 << 20,
            // Nobody answers a ping here.
            ping_after: Duration::from_secs(10_000),
            ping_limit: Duration::from_secs(15),
            login_limit: Duration::from_secs(15),
            sessions_per_initiator: 64,
            weak_chap: false,
            has_others: false,
            portals: vec!["127.0.0.1:3260".into()],
        };
        let mut front = Iscsi {
            target: Target::new(config, Access::default()),
            input: BytesMut::new(),
            host: Host::new(commits),
            replies: VecDeque::new(),
            device: None,
        };
        let (address, portal) = ("127.0.0.1:5000".into(), "127.0.0.1:3260".into());
        let peer = Peer { address, portal, loopback: true };
        front.target.handle_accept(front.host.now, CONNECTION, peer, [7; 32]);
        // RFC 7143 §11.12: from operational negotiation to full feature phase at once; CmdSN 1.
        let mut login = pdu([0x43, 0x87], 1, 1, 0, KEYS.as_bytes());
        login[8..14].copy_from_slice(&[0x80, 0, 0, 0, 0, 1]);
        front.send(&login);
        // TEST UNIT READY takes the unit attention that a new nexus begins with.
        let answer = front.send(&pdu([0x01, 0x81], 1, 1, 0, b""));
        assert!(answer >= 48, "the login failed");
        front
    }
}

/// A PDU with its data segment. `expected` is the expected length of a command.
fn pdu(head: [u8; 2], tag: u32, number: u32, expected: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 48];
    bytes[..2].copy_from_slice(&head);
    bytes[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
    for (at, value) in [(16, tag), (20, expected), (24, number)] {
        bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
    }
    bytes.extend(data);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

impl Front for Iscsi {
    fn bytes(&self, operation: Operation, data: &[u8]) -> Vec<u8> {
        let Operation { write, place, order } = operation;
        let range = somewhere(place);
        // The first command was TEST UNIT READY.
        let number = order as u32 + 2;
        // Final and simple; and read or write.
        let flags = if write { 0xa1 } else { 0xc1 };
        let data = if write { data } else { &[] };
        let mut bytes = pdu([0x01, flags], number, number, range.bytes() as u32, data);
        // SBC-4 §5.13, §5.40: READ(10) and WRITE(10).
        bytes[32] = if write { 0x2a } else { 0x28 };
        bytes[34..38].copy_from_slice(&(range.lba as u32).to_be_bytes());
        bytes[39..41].copy_from_slice(&(range.sectors as u16).to_be_bytes());
        bytes
    }

    fn send(&mut self, bytes: &[u8]) -> usize {
        self.input.extend_from_slice(bytes);
        let mut answered = 0;
        loop {
            let now = self.host.now;
            self.target.handle_input(now, CONNECTION, &mut self.input);
            let mut idle = true;
            while let Some(event) = self.target.poll_event() {
                idle = false;
                match event {
                    iscsi::Event::Open { volume } => {
                        let device = DeviceConfig {
                            volume: VOLUME,
                            name: "v".into(),
                            target_name: "iqn.2026-11.io.longhaul:v".into(),
                            sectors: SECTORS,
                            block_bytes: 512,
                            read_only: false,
                            reservations: Bytes::new(),
                            token_secret: TokenSecret([0; 32]),
                        };
                        self.target.handle_opened(now, &volume, Ok(device));
                    }
                    iscsi::Event::Request { device, id, request } => {
                        self.device = Some(device);
                        self.host.volume.handle_request(now, id, request);
                    }
                    iscsi::Event::Output { connection } => {
                        while let Some(piece) = self.target.poll_output(connection) {
                            answered += piece.len();
                        }
                    }
                    iscsi::Event::LoggedIn { .. } => {}
                    other => unreachable!("{other:?}"),
                }
            }
            self.host.settle(&mut self.replies);
            while let (Some((id, reply)), Some(device)) = (self.replies.pop_front(), self.device) {
                idle = false;
                self.target.handle_reply(now, device, id, reply);
            }
            if idle {
                return answered;
            }
        }
    }

    fn host(&mut self) -> &mut Host {
        &mut self.host
    }
}

pub fn iscsi_write(operations: u32) -> Box<dyn FnMut()> {
    bursts(Iscsi::new(true), true, operations, 1)
}

pub fn iscsi_read(operations: u32) -> Box<dyn FnMut()> {
    bursts(Iscsi::new(false), false, operations, 1)
}
