//! The allocations of the iSCSI target and its device for a command, without engine and sockets.
//! Lower this bound, but raise it only with a reason.

use bytes::{Bytes, BytesMut};
use longhaul_core::block::{ReadPiece, Reply, Request, Time, VolumeId};
use longhaul_core::front::iscsi::{Access, Config, Event, Peer, Target};
use longhaul_core::front::scsi::{DeviceConfig, TokenSecret};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

const NOW: Time = Time(1);
const BLOCK_BYTES: usize = 4096;

thread_local! {
    /// Allocations of this thread so far: tests run beside each other.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

#[expect(unsafe_code, reason = "an allocator that counts")]
// SAFETY: all of it is the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, bytes) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A target with an initiator that has logged in.
struct World {
    target: Target,
    number: u32,
    requests: Vec<(u64, u64, Request)>,
    /// The result of a read.
    block: Bytes,
    /// Allocations within the target.
    allocations: u64,
    sent_bytes: usize,
}

impl World {
    fn new() -> World {
        let config = Config {
            error_recovery_level: 2,
            max_connections: 8,
            max_recv_data_segment: 256 << 10,
            max_burst: 1 << 20,
            first_burst: 256 << 10,
            max_outstanding_r2t: 16,
            commands: 256,
            session_bytes: 32 << 20,
            ping_after: Duration::from_secs(15),
            ping_limit: Duration::from_secs(15),
            login_limit: Duration::from_secs(15),
            sessions_per_initiator: 64,
            weak_chap: false,
            has_others: false,
            portals: Vec::new(),
        };
        let mut target = Target::new(config, Access::default());
        let peer = Peer {
            address: "127.0.0.1:5000".into(),
            portal: "127.0.0.1:3260".into(),
            loopback: true,
        };
        target.handle_accept(NOW, 1, peer, [7; 32]);
        let mut world = World {
            target,
            number: 0,
            requests: Vec::new(),
            block: Bytes::from(vec![7; BLOCK_BYTES]),
            allocations: 0,
            sent_bytes: 0,
        };
        let keys = "InitiatorName=iqn.2001-04.com.example:i\0TargetName=iqn.2026-11.io.longhaul:v\0\
            InitialR2T=No\0";
        let mut login = BytesMut::new();
        pdu(&mut login, [0x43, 0x87], 0x8000_0000_0001_0000, 0, 1, &[0; 16], keys.as_bytes());
        world.input(&mut login);
        // The unit attention of a new nexus.
        let mut input = BytesMut::new();
        world.command(&mut input, 0, 0, [0; 16], &[]);
        world.input(&mut input);
        world
    }

    /// Appends a command with its number.
    fn command(&mut self, input: &mut BytesMut, flags: u8, bytes: u32, cdb: [u8; 16], data: &[u8]) {
        self.number += 1;
        pdu(input, [0x01, 0x80 | flags], 0, bytes, self.number, &cdb, data);
    }

    /// Takes all of the input, then answers the requests, until nothing is left.
    fn input(&mut self, input: &mut BytesMut) {
        let before = ALLOCATIONS.get();
        self.target.handle_input(NOW, 1, input);
        self.allocations += ALLOCATIONS.get() - before;
        loop {
            let before = ALLOCATIONS.get();
            let event = self.target.poll_event();
            self.allocations += ALLOCATIONS.get() - before;
            match event {
                Some(Event::Request { device, id, request }) => {
                    self.requests.push((device, id, request));
                }
                Some(Event::Open { volume }) => {
                    let config = DeviceConfig {
                        volume: VolumeId(7),
                        target_name: format!("iqn.2026-11.io.longhaul:{volume}"),
                        name: volume.clone(),
                        sectors: 1 << 20,
                        block_bytes: 512,
                        read_only: false,
                        reservations: Bytes::new(),
                        token_secret: TokenSecret([0; 32]),
                    };
                    self.target.handle_opened(NOW, &volume, Ok(config));
                }
                Some(Event::Output { connection }) => {
                    let before = ALLOCATIONS.get();
                    while let Some(piece) = self.target.poll_output(connection) {
                        self.sent_bytes += piece.len();
                    }
                    self.allocations += ALLOCATIONS.get() - before;
                }
                Some(Event::Close { reason, .. }) => panic!("closed: {reason}"),
                Some(_) => {}
                None if self.requests.is_empty() => break,
                None => {
                    let mut requests = std::mem::take(&mut self.requests);
                    for (device, id, request) in requests.drain(..) {
                        let reply = match request {
                            // The engine's list of pieces is not the target's.
                            Request::Read(_) => {
                                Reply::Data(vec![ReadPiece::Data(self.block.clone())])
                            }
                            _ => Reply::Done,
                        };
                        let before = ALLOCATIONS.get();
                        self.target.handle_reply(NOW, device, id, Ok(reply));
                        self.allocations += ALLOCATIONS.get() - before;
                    }
                    self.requests = requests;
                }
            }
        }
    }

    /// Rounds of 4 KiB commands, `depth` at a time; gives the bytes sent.
    fn run(&mut self, write: bool, depth: u32, rounds: u32) -> usize {
        let sent = self.sent_bytes;
        let data = [9; BLOCK_BYTES];
        for round in 0..rounds {
            let mut input = BytesMut::with_capacity(256 << 10);
            for at in 0..depth {
                let mut cdb = [0; 16];
                cdb[0] = if write { 0x8a } else { 0x88 };
                cdb[6..10].copy_from_slice(&(round * depth + at).wrapping_mul(8).to_be_bytes());
                cdb[13] = 8;
                let (flags, data) = if write { (0x20, &data[..]) } else { (0x40, &data[..0]) };
                self.command(&mut input, flags, BLOCK_BYTES as u32, cdb, data);
            }
            self.input(&mut input);
            assert!(input.is_empty());
        }
        self.sent_bytes - sent
    }
}

/// Appends a PDU; `number` is its tag and CmdSN.
fn pdu(
    out: &mut BytesMut,
    head: [u8; 2],
    lun: u64,
    bytes: u32,
    number: u32,
    cdb: &[u8; 16],
    data: &[u8],
) {
    out.extend_from_slice(&[head[0], head[1], 0, 0, 0]);
    out.extend_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&lun.to_be_bytes());
    out.extend_from_slice(&number.to_be_bytes());
    out.extend_from_slice(&bytes.to_be_bytes());
    out.extend_from_slice(&number.to_be_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(cdb);
    out.extend_from_slice(data);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Allocations of a command.
fn allocations(write: bool, depth: u32) -> f64 {
    let mut world = World::new();
    // Buffers grow to what they need.
    world.run(write, depth, 64);
    world.allocations = 0;
    let rounds = 1024 / depth;
    let sent = world.run(write, depth, rounds);
    let commands = rounds * depth;
    let least = if write { 48 } else { 48 + BLOCK_BYTES };
    assert_eq!(sent, commands as usize * least, "every command ended well");
    world.allocations as f64 / f64::from(commands)
}

#[test]
fn a_command_allocates_little() {
    // A read: its effect on the volume. A write also has its output on the way in, the list of its
    // pieces, and the input buffer. At depth 32, nodes of maps come and go.
    let bounds = [(false, 1, 1.1), (false, 32, 1.6), (true, 1, 4.1), (true, 32, 3.8)];
    for (write, depth, most) in bounds {
        let found = allocations(write, depth);
        assert!(found <= most, "write {write}, depth {depth}: {found} allocations a command");
    }
}

/// Not a test: `cargo test --release -p longhaul-core --test iscsi_allocations -- --ignored
/// --nocapture`.
#[test]
#[ignore = "a measurement"]
#[expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "it measures time")]
fn time_of_a_command() {
    for (write, depth) in [(false, 1), (false, 32), (true, 1), (true, 32)] {
        let mut world = World::new();
        world.run(write, depth, 1000 / depth);
        let mut best = f64::MAX;
        for _ in 0..10 {
            let start = std::time::Instant::now();
            world.run(write, depth, 20_000 / depth);
            best = best.min(start.elapsed().as_nanos() as f64 / f64::from(20_000 / depth * depth));
        }
        println!("write {write}, depth {depth}: {best:.0} ns a command, with making it up");
    }
}
