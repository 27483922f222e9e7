//! The iSCSI target with its login and its device, as a shell sees them: an initiator logs in,
//! writes, reads back and logs out.

#![expect(clippy::unwrap_used, reason = "tests")]

use bytes::{Bytes, BytesMut};
use longhaul_core::block::{ReadPiece, Reply, Request, Time, VolumeId};
use longhaul_core::front::iscsi::{Access, CloseReason, Config, Event, OpenError, Peer, Target};
use longhaul_core::front::scsi::{DeviceConfig, TokenSecret};
use std::time::Duration;

const SECTORS: u64 = 4096;
const NOW: Time = Time(1);

fn config() -> Config {
    Config {
        error_recovery_level: 2,
        max_connections: 4,
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
        has_others: false,
        portals: vec!["127.0.0.1:3260".into()],
    }
}

fn device(name: &str) -> DeviceConfig {
    DeviceConfig {
        volume: VolumeId(7),
        name: name.into(),
        target_name: format!("iqn.2026-11.io.longhaul:{name}"),
        sectors: SECTORS,
        block_bytes: 512,
        read_only: false,
        reservations: Bytes::new(),
        token_secret: TokenSecret([0; 32]),
    }
}

struct World {
    target: Target,
    disk: Vec<u8>,
    output: BytesMut,
    closed: Option<CloseReason>,
    released: bool,
    cmd_sn: u32,
    stat_sn: u32,
}

impl World {
    fn new() -> World {
        let mut target = Target::new(config(), Access::default());
        let peer = Peer {
            address: "127.0.0.1:5000".into(),
            portal: "127.0.0.1:3260".into(),
            loopback: true,
        };
        target.handle_accept(NOW, 1, peer, [7; 32]);
        World {
            target,
            disk: vec![0; SECTORS as usize * 512],
            output: BytesMut::new(),
            closed: None,
            released: false,
            cmd_sn: 1,
            stat_sn: 0,
        }
    }

    /// Sends a PDU and gives the one that comes back.
    fn exchange(
        &mut self,
        opcode: u8,
        flags: u8,
        fill: impl FnOnce(&mut [u8; 48]),
        data: &[u8],
    ) -> (Vec<u8>, Vec<u8>) {
        let mut bhs = [0; 48];
        bhs[0] = opcode;
        bhs[1] = flags;
        bhs[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        bhs[19] = 1;
        bhs[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        bhs[28..32].copy_from_slice(&self.stat_sn.to_be_bytes());
        fill(&mut bhs);
        if opcode & 0x40 == 0 {
            self.cmd_sn += 1;
        }
        let mut input = BytesMut::from(&bhs[..]);
        input.extend_from_slice(data);
        input.resize(input.len().next_multiple_of(4), 0);
        self.target.handle_input(NOW, 1, &mut input);
        self.pump();
        let bhs = self.output.split_to(48).to_vec();
        self.stat_sn = u32::from_be_bytes(bhs[24..28].try_into().unwrap()) + 1;
        let length = u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]]) as usize;
        let mut data = self.output.split_to(length.next_multiple_of(4)).to_vec();
        data.truncate(length);
        assert!(self.output.is_empty(), "more than one PDU");
        (bhs, data)
    }

    fn command(&mut self, flags: u8, expected: u32, cdb: &[u8], data: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let fill = |bhs: &mut [u8; 48]| {
            bhs[20..24].copy_from_slice(&expected.to_be_bytes());
            bhs[32..32 + cdb.len()].copy_from_slice(cdb);
        };
        self.exchange(0x01, 0x80 | flags, fill, data)
    }

    fn pump(&mut self) {
        while let Some(event) = self.target.poll_event() {
            match event {
                Event::Open { volume } => {
                    let result = match volume.as_str() {
                        "v" => Ok(device("v")),
                        _ => Err(OpenError::NotFound(volume.clone())),
                    };
                    self.target.handle_opened(NOW, &volume, result);
                }
                Event::Request { device, id, request } => {
                    let reply = match request {
                        Request::Read(range) => {
                            let at = range.lba as usize * 512;
                            let data = &self.disk[at..at + range.bytes() as usize];
                            Reply::Data(vec![ReadPiece::Data(Bytes::copy_from_slice(data))])
                        }
                        Request::Write { range, data, .. } => {
                            let at = range.lba as usize * 512;
                            self.disk[at..at + data.len()].copy_from_slice(&data);
                            Reply::Done
                        }
                        _ => Reply::Done,
                    };
                    self.target.handle_reply(NOW, device, id, Ok(reply));
                }
                Event::Output { connection } => {
                    while let Some(piece) = self.target.poll_output(connection) {
                        self.output.extend_from_slice(&piece);
                    }
                }
                Event::Close { connection, reason } => {
                    self.target.handle_closed(NOW, connection);
                    self.closed = Some(reason);
                }
                Event::Released { .. } => self.released = true,
                _ => {}
            }
        }
    }

    /// Logs in with one request, which asks for the operational stage and the full feature phase.
    fn login(&mut self, volume: &str) -> (Vec<u8>, String) {
        let text = format!(
            "InitiatorName=iqn.2001-04.com.example:i\0SessionType=Normal\0\
             TargetName=iqn.2026-11.io.longhaul:{volume}\0\
             InitialR2T=No\0ImmediateData=Yes\0MaxRecvDataSegmentLength=262144\0"
        );
        let fill = |bhs: &mut [u8; 48]| bhs[8..14].copy_from_slice(&[0x40, 0, 0, 0, 0, 1]);
        let (bhs, data) = self.exchange(0x43, 0x80 | 1 << 2 | 3, fill, text.as_bytes());
        (bhs, String::from_utf8(data).unwrap())
    }
}

#[test]
fn a_session_from_login_to_logout() {
    let mut world = World::new();
    let (bhs, text) = world.login("v");
    assert_eq!((bhs[0], bhs[1], &bhs[36..38]), (0x23, 0x87, &[0, 0][..]), "{text}");
    assert_ne!(bhs[14..16], [0, 0], "a TSIH");
    for pair in ["TargetPortalGroupTag=1\0", "InitialR2T=No\0", "ImmediateData=Yes\0"] {
        assert!(text.contains(pair), "{text}");
    }
    let (bhs, sense) = world.command(0, 0, &[0; 6], &[]);
    assert_eq!((bhs[0], bhs[3]), (0x21, 2), "a unit attention comes first");
    assert_eq!(sense[2 + 2] & 0x0f, 6);
    let (bhs, _) = world.command(0, 0, &[0; 6], &[]);
    assert_eq!((bhs[0], bhs[3]), (0x21, 0));
    let (bhs, data) = world.command(0x40, 255, &[0x12, 0, 0, 0, 255, 0], &[]);
    assert_eq!((bhs[0], bhs[1] & 0x83), (0x25, 0x83), "with its status, and an underflow");
    assert_eq!(&data[8..16], b"LONGHAUL");
    let payload: Vec<u8> = (0..8192u32).map(|i| (i % 251) as u8).collect();
    let (bhs, _) = world.command(0x20, 8192, &[0x2a, 0, 0, 0, 0, 5, 0, 0, 16, 0], &payload);
    assert_eq!((bhs[0], bhs[1], bhs[3]), (0x21, 0x80, 0));
    let (bhs, data) = world.command(0x40, 8192, &[0x28, 0, 0, 0, 0, 5, 0, 0, 16, 0], &[]);
    assert_eq!((bhs[0], bhs[1], bhs[3]), (0x25, 0x81, 0));
    assert_eq!(data, payload);
    let (bhs, _) = world.exchange(0x46, 0x80, |_| {}, &[]);
    assert_eq!((bhs[0], bhs[2]), (0x26, 0));
    assert_eq!(world.closed, Some(CloseReason::LoggedOut));
    assert!(world.released);
    assert_eq!(world.target.sessions().count(), 0);
    assert_eq!(world.target.poll_timeout(), None);
}

#[test]
fn a_volume_that_is_not_there() {
    let mut world = World::new();
    let (bhs, _) = world.login("other");
    assert_eq!((bhs[0], &bhs[36..38]), (0x23, &[2, 3][..]));
    assert!(matches!(world.closed, Some(CloseReason::Refused(_))));
    assert_eq!(world.target.poll_timeout(), None);
}

#[test]
fn a_volume_that_is_opened_for_nobody_is_released() {
    let mut world = World::new();
    let text = b"InitiatorName=iqn.2001-04.com.example:i\0SessionType=Normal\0\
                 TargetName=iqn.2026-11.io.longhaul:v\0\0\0\0";
    let mut login = BytesMut::zeroed(48);
    (login[0], login[1]) = (0x43, 0x80 | 1 << 2 | 3);
    login[7] = text.len() as u8 - 3;
    login.extend_from_slice(text);
    login.truncate(48 + (text.len() - 3).next_multiple_of(4));
    world.target.handle_input(NOW, 1, &mut login);
    assert_eq!(world.target.poll_event(), Some(Event::Open { volume: "v".into() }));
    world.target.handle_closed(NOW, 1);
    let device = world.target.handle_opened(NOW, "v", Ok(device("v")));
    let released = Event::Released { device: device.unwrap(), volume: "v".into() };
    assert_eq!(world.target.poll_event(), Some(released));
    assert_eq!(world.target.poll_timeout(), None);
}
