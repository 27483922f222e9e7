//! Copies between volumes, as a shell sees them: what they move, and what no initiator can reach by
//! them. All tests run twice: with one target for both volumes, and with a target for each.

#![expect(clippy::unwrap_used, reason = "tests")]

use bytes::{Bytes, BytesMut};
use longhaul_core::block::{
    BlockError, ReadPiece, Reply, Request, Staged, StagedData, StagedPiece, Time, VolumeId,
};
use longhaul_core::front::iscsi::{Access, Config, Event, Grant, Peer, Target};
use longhaul_core::front::scsi::{DeviceConfig, TokenSecret};
use std::collections::BTreeMap;
use std::time::Duration;

const SECTORS: u64 = 40_000;
const NOW: Time = Time(1);
const I: &str = "iqn.2001-04.com.example:i";
const J: &str = "iqn.2001-04.com.example:j";
const NOT_REACHABLE: (u8, u16) = (0x0a, 0x0d02);
const TOKEN_UNKNOWN: (u8, u16) = (0x05, 0x2304);

fn config(has_others: bool) -> Config {
    Config {
        error_recovery_level: 0,
        max_connections: 1,
        max_recv_data_segment: 256 << 10,
        max_burst: 1 << 20,
        first_burst: 256 << 10,
        max_outstanding_r2t: 4,
        commands: 128,
        session_bytes: 64 << 20,
        ping_after: Duration::from_secs(10),
        ping_limit: Duration::from_secs(5),
        login_limit: Duration::from_secs(15),
        sessions_per_initiator: 16,
        weak_chap: false,
        has_others,
        portals: vec!["127.0.0.1:3260".into()],
    }
}

fn identity(volume: &str) -> u128 {
    u128::from(volume.as_bytes()[0]) << 8
}

fn unit(volume: &str) -> [u8; 32] {
    let mut bytes = [0; 32];
    (bytes[0], bytes[4], bytes[5], bytes[7]) = (0xe4, 1, 3, 8);
    bytes[8..16].copy_from_slice(&((identity(volume) as u64) >> 4 | 3 << 60).to_be_bytes());
    bytes[30] = 2;
    bytes
}

/// EXTENDED COPY of `blocks` from the first unit to the second.
fn copy(from: &str, to: &str, blocks: u16, at: u64, lba: u64) -> ([u8; 16], Vec<u8>) {
    let mut list = vec![0; 16];
    (list[3], list[11]) = (64, 28);
    list.extend([unit(from), unit(to)].concat());
    list.extend([2, 0, 0, 24, 0, 0, 0, 1, 0, 0]);
    list.extend(blocks.to_be_bytes());
    list.extend([at, lba].iter().flat_map(|lba| lba.to_be_bytes()));
    (cdb(0, list.len()), list)
}

fn cdb(action: u8, length: usize) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[9]) = (0x83, action, 1);
    cdb[10..14].copy_from_slice(&(length as u32).to_be_bytes());
    cdb
}

/// Names a device: its target, and its name there.
type Unit = (usize, u64);

struct World {
    targets: Vec<Target>,
    /// The target of each connection.
    homes: BTreeMap<u64, usize>,
    access: Access,
    disks: BTreeMap<Unit, Vec<u8>>,
    names: BTreeMap<Unit, String>,
    staged: Vec<Vec<u8>>,
    outputs: BTreeMap<u64, BytesMut>,
    numbers: BTreeMap<u64, u32>,
    /// Requests wait here.
    hold: bool,
    held: Vec<(Unit, u64, Request)>,
}

impl World {
    fn with(targets: usize) -> World {
        let target = |_| Target::new(config(targets > 1), Access::default());
        World {
            targets: (0..targets).map(target).collect(),
            homes: BTreeMap::new(),
            access: Access::default(),
            disks: BTreeMap::new(),
            names: BTreeMap::new(),
            staged: Vec::new(),
            outputs: BTreeMap::new(),
            numbers: BTreeMap::new(),
            hold: false,
            held: Vec::new(),
        }
    }

    fn allow(&mut self, volume: &str, initiators: &[&str]) {
        let grant = |name: &&str| Grant { initiator: (*name).into(), user: None };
        self.access.volumes.insert(volume.into(), initiators.iter().map(grant).collect());
        for target in &mut self.targets {
            target.set_access(NOW, self.access.clone());
        }
        self.pump();
    }

    /// A session of this number with a volume, its unit attention taken.
    fn login(&mut self, id: u64, volume: &str, initiator: &str, loopback: bool) {
        let peer = Peer { address: format!("1:{id}"), portal: "2:3260".into(), loopback };
        self.targets[0].handle_accept(NOW, id, peer, [7; 32]);
        self.homes.insert(id, 0);
        self.numbers.insert(id, 1);
        let text = format!(
            "InitiatorName={initiator}\0SessionType=Normal\0\
             TargetName=iqn.2026-11.io.longhaul:{volume}\0InitialR2T=No\0ImmediateData=Yes\0"
        );
        let mut bhs = [0; 48];
        (bhs[0], bhs[1]) = (0x43, 0x87);
        bhs[8..14].copy_from_slice(&[0x40, 0, 0, 0, 0, id as u8]);
        bhs[24..28].copy_from_slice(&1u32.to_be_bytes());
        self.send(id, bhs, text.as_bytes());
        let (bhs, _) = self.receive(id);
        assert_eq!((bhs[0], bhs[36]), (0x23, 0), "{volume} {initiator}");
        assert_eq!(self.run(id, 0, &[0; 16], &[]).0, 2, "a unit attention");
    }

    fn send(&mut self, id: u64, mut bhs: [u8; 48], data: &[u8]) {
        bhs[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        let mut input = BytesMut::from(&bhs[..]);
        input.extend_from_slice(data);
        input.resize(input.len().next_multiple_of(4), 0);
        self.targets[self.homes[&id]].handle_input(NOW, id, &mut input);
        self.pump();
    }

    fn receive(&mut self, id: u64) -> (Vec<u8>, Vec<u8>) {
        let output = self.outputs.entry(id).or_default();
        let bhs = output.split_to(48).to_vec();
        let length = u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]]) as usize;
        let mut data = output.split_to(length.next_multiple_of(4)).to_vec();
        data.truncate(length);
        (bhs, data)
    }

    fn start(&mut self, id: u64, flags: u8, cdb: &[u8; 16], data: &[u8]) {
        let number = self.numbers[&id];
        self.numbers.insert(id, number + 1);
        let mut bhs = [0; 48];
        (bhs[0], bhs[1]) = (0x01, 0x80 | flags);
        bhs[16..20].copy_from_slice(&number.to_be_bytes());
        let expected = if flags == 0x40 { 1024 } else { data.len() as u32 };
        bhs[20..24].copy_from_slice(&expected.to_be_bytes());
        bhs[24..28].copy_from_slice(&number.to_be_bytes());
        bhs[32..48].copy_from_slice(cdb);
        self.send(id, bhs, data);
    }

    /// Status, and input or sense data.
    fn run(&mut self, id: u64, flags: u8, cdb: &[u8; 16], data: &[u8]) -> (u8, Vec<u8>) {
        self.start(id, flags, cdb, data);
        let (bhs, data) = self.receive(id);
        match bhs[0] {
            0x25 => (bhs[3], data),
            0x21 if bhs[3] == 2 => (2, data[2..].to_vec()),
            0x21 => (bhs[3], data),
            other => panic!("PDU {other:x}"),
        }
    }

    /// Key and code of a command that fails.
    fn fails(&mut self, id: u64, (cdb, list): &([u8; 16], Vec<u8>)) -> (u8, u16) {
        let (status, sense) = self.run(id, 0x20, cdb, list);
        assert_eq!(status, 2);
        (sense[2], u16::from_be_bytes([sense[12], sense[13]]))
    }

    fn good(&mut self, id: u64, (cdb, list): &([u8; 16], Vec<u8>)) {
        let (status, sense) = self.run(id, 0x20, cdb, list);
        assert_eq!(status, 0, "{sense:x?}");
    }

    fn disk(&mut self, volume: &str) -> &mut Vec<u8> {
        let (device, _) = self.names.iter().find(|(_, name)| *name == volume).unwrap();
        self.disks.get_mut(device).unwrap()
    }

    fn token(&mut self, id: u64) -> Vec<u8> {
        let mut list = vec![0; 32];
        (list[1], list[15], list[27]) = (30, 16, 8);
        self.good(id, &(cdb(0x10, 32), list));
        let mut ask = [0; 16];
        (ask[0], ask[1], ask[5], ask[12]) = (0x84, 7, 1, 4);
        let (status, data) = self.run(id, 0x40, &ask, &[]);
        assert_eq!(status, 0);
        data[38..550].to_vec()
    }

    fn answer(&mut self, device: Unit, id: u64, request: Request) {
        let disk = self.disks.get_mut(&device).unwrap();
        let at = |range: longhaul_core::block::Range| {
            range.lba as usize * 512..range.end() as usize * 512
        };
        let reply = match request {
            Request::Read(range) => {
                let data = Bytes::copy_from_slice(&disk[at(range)]);
                Reply::Data(vec![ReadPiece::Data(data)])
            }
            Request::Watch(_) => Reply::Watching(1),
            Request::Stage { range, lba, .. } => {
                self.staged.push(disk[at(range)].to_vec());
                let range = longhaul_core::block::Range::new(lba, range.sectors);
                let object = self.staged.len() as u64 - 1;
                let data = StagedData { object, offset: 0, record: range };
                Reply::Staged(vec![StagedPiece { range, content: Staged::Data(data) }])
            }
            Request::WriteStaged { pieces, .. } => {
                for piece in pieces {
                    let Staged::Data(data) = piece.content else { panic!() };
                    disk[at(piece.range)].copy_from_slice(&self.staged[data.object as usize]);
                }
                Reply::Done
            }
            _ => Reply::Done,
        };
        self.targets[device.0].handle_reply(NOW, device.1, id, Ok(reply));
    }

    /// The target that has a volume.
    fn target_of(&self, volume: &str) -> usize {
        volume.as_bytes()[0] as usize % self.targets.len()
    }

    fn forget(&mut self, volume: &str) {
        let target = self.target_of(volume);
        self.targets[target].handle_volume_gone(NOW, volume, "gone");
        self.pump();
    }

    fn pump(&mut self) {
        loop {
            let events = self.targets.iter_mut().enumerate();
            let next = events.map(|(at, target)| (at, target.poll_event()));
            let Some((at, event)) = next.into_iter().find_map(|(at, event)| Some((at, event?)))
            else {
                return;
            };
            self.act(at, event);
        }
    }

    fn act(&mut self, at: usize, event: Event) {
        match event {
            Event::Place { connection, volume } => {
                let home = self.target_of(&volume);
                if home == at {
                    return self.targets[at].handle_placed(NOW, connection);
                }
                let login = self.targets[at].take_login(connection).unwrap();
                self.homes.insert(connection, home);
                self.targets[home].handle_moved(NOW, connection, login);
            }
            Event::Open { volume } => {
                let config = DeviceConfig {
                    volume: VolumeId(identity(&volume)),
                    name: volume.clone(),
                    target_name: format!("iqn.2026-11.io.longhaul:{volume}"),
                    sectors: SECTORS,
                    block_bytes: 512,
                    read_only: false,
                    reservations: Bytes::new(),
                    token_secret: TokenSecret([3; 32]),
                };
                let device = self.targets[at].handle_opened(NOW, &volume, Ok(config)).unwrap();
                let fill = volume.as_bytes()[0];
                self.disks.insert((at, device), vec![fill; SECTORS as usize * 512]);
                self.names.insert((at, device), volume);
            }
            Event::Ask { copy, asker, question } => {
                let others = self.targets.iter_mut().enumerate().filter(|(other, _)| *other != at);
                let answer = |(other, target): (usize, &mut Target)| {
                    (other, target.answer_copy(NOW, &asker, question.clone()))
                };
                let answers = others.map(answer).collect();
                self.targets[at].handle_answers(NOW, copy, answers);
            }
            Event::Tell { target, message } => self.targets[target].handle_told(NOW, at, message),
            Event::Request { device, id, request } if self.hold => {
                self.held.push(((at, device), id, request));
            }
            Event::Request { device, id, request } => self.answer((at, device), id, request),
            Event::Output { connection } => {
                while let Some(piece) = self.targets[at].poll_output(connection) {
                    self.outputs.entry(connection).or_default().extend_from_slice(&piece);
                }
            }
            Event::Close { connection, .. } => self.targets[at].handle_closed(NOW, connection),
            _ => {}
        }
    }

    /// Answers what was held, and what comes of it.
    fn release(&mut self) {
        self.hold = false;
        for (device, id, request) in std::mem::take(&mut self.held) {
            if self.disks.contains_key(&device) {
                self.answer(device, id, request);
            }
            self.pump();
        }
    }
}

fn data_moves(mut world: World) {
    world.login(1, "a", I, true);
    world.login(2, "b", I, true);
    world.good(1, &copy("a", "b", 30_000, 1, 3));
    let copied = |disk: &[u8]| disk.iter().filter(|byte| **byte == b'a').count();
    assert_eq!(copied(world.disk("b")), 30_000 * 512);
    world.good(2, &copy("a", "b", 1, 0, 0));
    assert_eq!(copied(world.disk("b")), 30_001 * 512);
}

/// CVE-2020-28374: whoever may use one volume of a target must not reach the others through it.
fn nothing_is_reached_by_its_name_alone(mut world: World) {
    world.allow("a", &[I]);
    world.allow("b", &[J]);
    world.login(1, "a", I, false);
    world.login(2, "b", J, false);
    for (from, to) in [("b", "a"), ("a", "b"), ("b", "b"), ("a", "nothing")] {
        assert_eq!(world.fails(1, &copy(from, to, 8, 0, 0)), NOT_REACHABLE, "{from} {to}");
    }
    let mut steal = vec![0; 552];
    steal[..2].copy_from_slice(&550u16.to_be_bytes());
    (steal[535], steal[547]) = (16, 8);
    steal[16..528].copy_from_slice(&world.token(2));
    let steal = (cdb(0x11, 552), steal);
    assert_eq!(world.fails(1, &steal), TOKEN_UNKNOWN);
    // Allowed, but without a session of its own.
    world.allow("b", &[I, J]);
    assert_eq!(world.fails(1, &copy("b", "a", 8, 0, 0)), NOT_REACHABLE);
    assert_eq!(world.fails(1, &steal), TOKEN_UNKNOWN);
    world.login(3, "b", I, false);
    world.good(1, &steal);
    world.good(1, &copy("b", "a", 8, 0, 0));
    // With one, but not allowed any more: it is on its way out.
    world.allow("b", &[J]);
    assert_eq!(world.fails(1, &copy("b", "a", 8, 0, 0)), NOT_REACHABLE);
}

/// A name proves nothing: somebody else's session from loopback is of no use to one from afar who
/// has taken its name.
fn a_name_borrowed_from_loopback_gets_nowhere(mut world: World) {
    world.allow("a", &[I]);
    // Volume b has no list: it is for loopback only.
    world.login(1, "b", I, true);
    world.login(2, "a", I, false);
    assert_eq!(world.fails(2, &copy("b", "a", 8, 0, 0)), NOT_REACHABLE);
    world.login(3, "a", I, true);
    world.good(3, &copy("b", "a", 8, 0, 0));
}

/// Every chunk is asked for again.
fn a_right_withdrawn_in_mid_copy_ends_it(mut world: World) {
    world.allow("a", &[I]);
    world.allow("b", &[I]);
    world.login(1, "a", I, false);
    world.login(2, "b", I, false);
    world.hold = true;
    let (cdb, list) = copy("a", "b", 30_000, 0, 0);
    world.start(1, 0x20, &cdb, &list);
    assert!(world.held.iter().all(|(_, _, request)| matches!(request, Request::Stage { .. })));
    world.allow("b", &[J]);
    world.release();
    let mut found = None;
    while !world.outputs[&1].is_empty() {
        let (bhs, data) = world.receive(1);
        if bhs[0] == 0x21 {
            found = Some((data[4], u16::from_be_bytes([data[14], data[15]])));
        }
    }
    assert_eq!(found, Some(NOT_REACHABLE));
    assert!(world.disk("b").iter().all(|byte| *byte == b'b'), "nothing was written");
}

fn a_volume_gone_in_mid_copy_ends_it(mut world: World) {
    world.login(1, "a", I, true);
    world.login(2, "b", I, true);
    world.hold = true;
    let (cdb, list) = copy("b", "a", 30_000, 0, 0);
    world.start(1, 0x20, &cdb, &list);
    assert_eq!(world.held.len(), 4);
    world.forget("b");
    let (bhs, data) = world.receive(1);
    assert_eq!((bhs[0], bhs[3], data[4]), (0x21, 2, 0x0a), "{data:x?}");
    world.release();
    // The other way round: the volume that got the command.
    world.login(3, "b", I, true);
    world.hold = true;
    world.start(3, 0x20, &cdb, &list);
    world.forget("b");
    world.release();
    assert!(world.disk("a").iter().all(|byte| *byte == b'a'));
    let _ = BlockError::Fenced;
}

macro_rules! with_one_target_and_with_two {
    ($($name:ident)*) => {
        mod one {
            $(#[test]
            fn $name() {
                super::$name(super::World::with(1));
            })*
        }

        mod two {
            $(#[test]
            fn $name() {
                super::$name(super::World::with(2));
            })*
        }
    };
}

with_one_target_and_with_two! {
    data_moves
    nothing_is_reached_by_its_name_alone
    a_name_borrowed_from_loopback_gets_nowhere
    a_right_withdrawn_in_mid_copy_ends_it
    a_volume_gone_in_mid_copy_ends_it
}
