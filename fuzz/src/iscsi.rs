//! Common parts of the targets for iSCSI and SCSI: PDUs as bytes, a volume that answers at once,
//! and a target with its connections.

use bytes::{Bytes, BytesMut};
use longhaul_core::block::{
    BlockError, BlockState, MAX_STAGE_SECTORS, MAX_TRANSFER_BYTES, Range, ReadPiece, Reply,
    Request, Staged, StagedPiece, StatusRun, Time, VolumeId,
};
use longhaul_core::front::iscsi::{
    Access, CloseReason, Config, ConnectionId, Event, OpenError, Peer, Target,
};
use longhaul_core::front::scsi::{DeviceConfig, TokenSecret};
use std::collections::BTreeMap;
use std::time::Duration;

/// Sectors of the volume.
pub const SECTORS: u64 = 4096;

/// A PDU with its data segment; `fields` are 32 bits each, at these places of the header.
pub fn pdu(opcode: u8, flags: u8, fields: &[(usize, u32)], data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 48];
    bytes[0] = opcode;
    bytes[1] = flags;
    bytes[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
    for (at, value) in fields {
        bytes[*at..at + 4].copy_from_slice(&value.to_be_bytes());
    }
    bytes.extend(data);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// A SCSI command; see [`pdu`].
pub fn command(
    flags: u8,
    itt: u32,
    cmd_sn: u32,
    expected: u32,
    cdb: &[u8],
    data: &[u8],
) -> Vec<u8> {
    let mut bytes = pdu(0x01, flags, &[(16, itt), (20, expected), (24, cmd_sn)], data);
    bytes[32..32 + cdb.len()].copy_from_slice(cdb);
    bytes
}

/// A login request of ISID `port`.
pub fn login(flags: u8, port: u8, tsih: u16, text: &[u8]) -> Vec<u8> {
    let mut bytes = pdu(0x43, flags, &[(16, 1), (24, 1)], text);
    bytes[8..14].copy_from_slice(&[0x80, 0, 0, 0, 0, port]);
    bytes[14..16].copy_from_slice(&tsih.to_be_bytes());
    bytes
}

/// The unit of a volume of this identity and with blocks of 512 bytes, as copies name it.
pub fn unit(volume: u64) -> [u8; 32] {
    let mut bytes = [0; 32];
    (bytes[0], bytes[4], bytes[5], bytes[7]) = (0xe4, 1, 3, 8);
    bytes[8..16].copy_from_slice(&(volume >> 4 | 3 << 60).to_be_bytes());
    bytes[30] = 2;
    bytes
}

/// The parameter list of EXTENDED COPY: 8 blocks between two units, and 8 back.
pub fn copy_list(units: [[u8; 32]; 2]) -> Vec<u8> {
    let mut list = vec![0; 16];
    (list[0], list[3], list[11]) = (1, 64, 56);
    list.extend(units.concat());
    for (source, destination) in [(0, 1), (1, 0)] {
        let mut segment = [0; 28];
        (segment[0], segment[3], segment[11]) = (2, 24, 8);
        (segment[5], segment[7], segment[27]) = (source, destination, 100);
        list.extend(segment);
    }
    list
}

/// The parameter list of POPULATE TOKEN for 8 blocks.
pub fn populate_list() -> Vec<u8> {
    let mut list = vec![0; 32];
    (list[1], list[15], list[27]) = (30, 16, 8);
    list
}

/// The parameter list of WRITE USING TOKEN for 8 blocks: the first token that a unit makes, or
/// zeroes.
pub fn token_list(creator: Option<[u8; 32]>) -> Vec<u8> {
    let mut list = vec![0; 536 + 16];
    list[..2].copy_from_slice(&550u16.to_be_bytes());
    (list[22], list[23], list[535], list[547]) = (0x01, 0xf8, 16, 8);
    match creator {
        None => list[16..20].copy_from_slice(&[0xff, 0xff, 0, 1]),
        Some(creator) => {
            list[16..20].copy_from_slice(&[0, 0x80, 0, 1]);
            list[31] = 1;
            list[32..64].copy_from_slice(&creator);
        }
    }
    list
}

/// The answer of the volume, as a function of the request alone.
pub fn reply(request: &Request) -> Result<Reply, BlockError> {
    Ok(match request {
        Request::Read(range) if range.lba % 61 == 60 => return Err(BlockError::Medium(*range)),
        Request::Read(range) if range.sectors > 3 => {
            let data = Bytes::from(vec![1; 2 * 512]);
            Reply::Data(vec![ReadPiece::Data(data), ReadPiece::Zeroes(range.sectors - 2)])
        }
        Request::Read(range) => Reply::Data(vec![ReadPiece::Zeroes(range.sectors)]),
        Request::Status(range) => {
            let sectors = range.sectors.div_ceil(2);
            let run = |sectors, state| StatusRun { sectors, state };
            let mut runs = vec![run(sectors, BlockState::Data)];
            if range.sectors > sectors {
                runs.push(run(range.sectors - sectors, BlockState::Hole));
            }
            Reply::Status(runs)
        }
        Request::Write { range, .. } if range.lba % 67 == 66 => return Err(BlockError::NoSpace),
        Request::Watch(ranges) => Reply::Watching(ranges.len() as u64),
        Request::Stage { range, .. } if range.lba % 59 == 58 => {
            return Err(BlockError::Unsupported);
        }
        Request::Stage { watch: Some(_), range, .. } if range.lba % 53 == 52 => {
            return Err(BlockError::Changed);
        }
        Request::Stage { range, lba, .. } => {
            let piece = |from, sectors, content| {
                let range = Range::new(from, sectors);
                (sectors > 0).then_some(StagedPiece { range, content })
            };
            let half = range.sectors / 2;
            let pieces = [
                piece(*lba, half, Staged::Hole),
                piece(lba + half, range.sectors - half, Staged::Zero),
            ];
            Reply::Staged(pieces.into_iter().flatten().collect())
        }
        _ => Reply::Done,
    })
}

/// A request lies within the volume, and its payload has the range's length.
pub fn check(request: &Request) {
    let range = match request {
        Request::Read(range) => {
            assert!(range.bytes() <= MAX_TRANSFER_BYTES, "{request:?}");
            *range
        }
        Request::Write { range, data, .. } => {
            assert_eq!(data.len() as u64, range.bytes());
            *range
        }
        Request::Discard { range, .. } | Request::Zero { range, .. } => *range,
        Request::Prefetch(range) | Request::Status(range) => *range,
        Request::Flush => Range::new(0, 1),
        Request::Watch(ranges) => {
            assert!(ranges.iter().all(|range| range.fits(SECTORS) && !range.is_empty()));
            return;
        }
        Request::Unwatch(_) => return,
        Request::Stage { range, object, .. } => {
            assert!(range.sectors <= MAX_STAGE_SECTORS && *object == 0, "{request:?}");
            *range
        }
        Request::WriteStaged { pieces, .. } => {
            assert!(pieces.iter().all(|piece| piece.range.fits(SECTORS)), "{request:?}");
            return;
        }
    };
    assert!(range.fits(SECTORS), "{request:?}");
}

/// The volume as a device.
pub fn device(block_bytes: u32, reservations: Bytes) -> DeviceConfig {
    DeviceConfig {
        volume: VolumeId(0x70),
        name: "v".into(),
        target_name: "iqn.2026-11.io.longhaul:v".into(),
        sectors: SECTORS,
        block_bytes,
        read_only: false,
        reservations,
        token_secret: TokenSecret([0; 32]),
    }
}

/// Small, so that inputs reach every limit.
pub fn config() -> Config {
    Config {
        error_recovery_level: 2,
        max_connections: 3,
        max_recv_data_segment: 16 << 10,
        max_burst: 16 << 10,
        first_burst: 8 << 10,
        max_outstanding_r2t: 3,
        commands: 16,
        session_bytes: 256 << 10,
        ping_after: Duration::from_secs(10),
        ping_limit: Duration::from_secs(5),
        login_limit: Duration::from_secs(15),
        sessions_per_initiator: 4,
        weak_chap: false,
        has_others: true,
        portals: vec!["127.0.0.1:3260".into()],
    }
}

/// A target with a volume `v`, and what it has said.
pub struct World {
    /// The target.
    pub target: Target,
    now: Time,
    /// Sent bytes that the target has not taken.
    inputs: BTreeMap<ConnectionId, BytesMut>,
    /// Bytes received, by connection.
    pub outputs: BTreeMap<ConnectionId, Vec<u8>>,
    /// Closed connections, and why.
    pub closed: BTreeMap<ConnectionId, CloseReason>,
}

impl World {
    /// Without connections.
    pub fn new(config: Config, access: Access) -> World {
        World {
            target: Target::new(config, access),
            now: Time(1),
            inputs: BTreeMap::new(),
            outputs: BTreeMap::new(),
            closed: BTreeMap::new(),
        }
    }

    /// A new connection.
    pub fn accept(&mut self, id: ConnectionId) {
        let peer = Peer {
            address: format!("127.0.0.1:{}", 5000 + id),
            portal: "127.0.0.1:3260".into(),
            loopback: true,
        };
        self.inputs.insert(id, BytesMut::new());
        self.outputs.insert(id, Vec::new());
        self.target.handle_accept(self.now, id, peer, [7; 32]);
        self.pump();
    }

    /// Bytes arrive on a connection.
    pub fn send(&mut self, id: ConnectionId, bytes: &[u8]) {
        if self.closed.contains_key(&id) {
            return;
        }
        let Some(input) = self.inputs.get_mut(&id) else { return };
        input.extend_from_slice(bytes);
        loop {
            let Some(mut input) = self.inputs.remove(&id) else { return };
            let before = input.len();
            if self.target.wants_input(id) {
                assert!(self.target.wanted(id) <= (16 << 10) + 48 + 1020 + 12, "wants a lot");
                self.target.handle_input(self.now, id, &mut input);
            }
            let left = input.len();
            self.inputs.insert(id, input);
            self.pump();
            if left == 0 || left == before {
                return;
            }
        }
    }

    /// The initiator has closed a connection.
    pub fn drop_connection(&mut self, id: ConnectionId) {
        if self.inputs.remove(&id).is_some() {
            self.target.handle_closed(self.now, id);
            self.pump();
        }
    }

    /// Time passes.
    pub fn pass(&mut self, time: Duration) {
        self.now = self.now.after(time);
        for _ in 0..100 {
            if self.target.poll_timeout().is_none_or(|due| due > self.now) {
                break;
            }
            self.target.handle_timeout(self.now);
            self.pump();
        }
        let next = self.target.poll_timeout();
        assert!(next.is_none_or(|due| due > self.now), "a timer that stays due");
    }

    fn pump(&mut self) {
        while let Some(event) = self.target.poll_event() {
            match event {
                // The other targets have no volume.
                Event::Place { connection, .. } => self.target.handle_placed(self.now, connection),
                Event::Ask { copy, .. } => self.target.handle_answers(self.now, copy, Vec::new()),
                Event::Tell { target, message } => {
                    if let Some(answer) = message.undelivered() {
                        self.target.handle_told(self.now, target, answer);
                    }
                }
                Event::Open { volume } => {
                    let result = match volume.as_str() {
                        "v" => Ok(device(512, Bytes::new())),
                        "w" => Ok(DeviceConfig {
                            volume: VolumeId(0x80),
                            name: "w".into(),
                            target_name: "iqn.2026-11.io.longhaul:w".into(),
                            ..device(512, Bytes::new())
                        }),
                        "later" => Err(OpenError::Unavailable(volume.clone())),
                        _ => Err(OpenError::NotFound(volume.clone())),
                    };
                    self.target.handle_opened(self.now, &volume, result);
                }
                Event::List { connection } => {
                    let all = vec!["v".to_owned(), "w".to_owned()];
                    self.target.handle_listed(self.now, connection, all);
                }
                Event::Request { device, id, request } => {
                    check(&request);
                    self.target.handle_reply(self.now, device, id, reply(&request));
                }
                Event::Save { device, id, .. } => {
                    self.target.handle_saved(self.now, device, id, Ok(()));
                }
                Event::Output { connection } => {
                    while let Some(piece) = self.target.poll_output(connection) {
                        if let Some(output) = self.outputs.get_mut(&connection) {
                            output.extend_from_slice(&piece);
                        }
                    }
                }
                Event::Close { connection, reason } => {
                    let again = self.closed.insert(connection, reason);
                    assert_eq!(again, None, "closed twice");
                    while let Some(piece) = self.target.poll_output(connection) {
                        if let Some(output) = self.outputs.get_mut(&connection) {
                            output.extend_from_slice(&piece);
                        }
                    }
                    self.inputs.remove(&connection);
                    self.target.handle_closed(self.now, connection);
                }
                Event::LoggedIn { .. } | Event::LoggedOut { .. } | Event::Released { .. } => {}
            }
        }
        for session in self.target.sessions() {
            assert!(session.commands <= 4 * 4096 && session.connections.len() <= 4, "{session:?}");
        }
    }
}

/// Takes a PDU apart that the target sent, without digests: header and data segment.
pub fn take<'a>(bytes: &mut &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let (header, rest) = bytes.split_at_checked(48)?;
    let length = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
    let (data, rest) = rest.split_at_checked(length.next_multiple_of(4))?;
    *bytes = rest;
    Some((header, &data[..length]))
}
