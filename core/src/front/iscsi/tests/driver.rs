//! An initiator, the shell and a volume around a target. The initiator checks every PDU: StatSN, a
//! window that never shrinks, digests, lengths, padding.

use super::super::*;
use super::device::{READ, WRITE};
pub use crate::block::Request;
use crate::block::{BLOCK_SECTORS, Range, ReadPiece, Reply, Time, VolumeId};
use crate::front::scsi::{DeviceConfig, TokenSecret};
use crate::wire::iscsi::{BHS_BYTES, RESERVED_TAG, opcode};
pub use bytes::Bytes;
use bytes::{Buf, BufMut, BytesMut};
pub use std::collections::BTreeMap;
use std::collections::VecDeque;
pub use std::time::Duration;

pub const SECTORS: u64 = 1 << 13;
pub const INITIATOR: &str = "iqn.2001-04.com.example:i";

pub fn config() -> Config {
    Config {
        error_recovery_level: 2,
        max_connections: 4,
        max_recv_data_segment: 64 << 10,
        max_burst: 128 << 10,
        first_burst: 64 << 10,
        max_outstanding_r2t: 4,
        commands: 32,
        session_bytes: 4 << 20,
        ping_after: Duration::from_secs(10),
        ping_limit: Duration::from_secs(5),
        login_limit: Duration::from_secs(15),
        sessions_per_initiator: 4,
        weak_chap: false,
        has_others: false,
        portals: vec!["127.0.0.1:3260".into()],
    }
}

pub fn device_config() -> DeviceConfig {
    DeviceConfig {
        volume: VolumeId(1),
        name: "v".into(),
        target_name: format!("{TARGET_PREFIX}v"),
        sectors: SECTORS,
        block_bytes: 512,
        read_only: false,
        reservations: Bytes::new(),
        token_secret: TokenSecret([0; 32]),
    }
}

pub fn parameters() -> Parameters {
    Parameters {
        header_digest: false,
        data_digest: false,
        initiator_data_segment: 32 << 10,
        target_data_segment: 64 << 10,
        max_burst: 128 << 10,
        first_burst: 64 << 10,
        initial_r2t: false,
        immediate_data: true,
        max_outstanding_r2t: 4,
        max_connections: 4,
        error_recovery_level: 0,
        time2wait: 2,
        time2retain: 20,
        data_pdu_in_order: true,
        data_sequence_in_order: true,
        task_reporting: TaskReporting::Rfc3720,
        protocol_level: 1,
    }
}

pub fn identity(isid: u8, tsih: u16, cid: u16) -> Identity {
    Identity {
        initiator: INITIATOR.into(),
        alias: String::new(),
        isid: [0x40, 0, 0, 0, 0, isid],
        tsih,
        cid,
        volume: Some("v".into()),
        user: None,
    }
}

/// A PDU for the target.
#[derive(Clone, Debug)]
pub struct Out {
    pub bhs: [u8; BHS_BYTES],
    pub ahs: Vec<u8>,
    pub data: Vec<u8>,
}

impl Out {
    pub fn new(opcode: u8, immediate: bool, flags: u8, itt: u32) -> Out {
        let mut bhs = [0; BHS_BYTES];
        bhs[0] = opcode | u8::from(immediate) << 6;
        bhs[1] = flags;
        Out { bhs, ahs: Vec::new(), data: Vec::new() }.put(16, itt)
    }

    pub fn put(mut self, at: usize, value: u32) -> Out {
        self.bhs[at..at + 4].copy_from_slice(&value.to_be_bytes());
        self
    }

    pub fn data(mut self, data: &[u8]) -> Out {
        self.data = data.to_vec();
        self
    }

    pub fn encode(&self, parameters: &Parameters) -> Vec<u8> {
        let mut bhs = self.bhs;
        bhs[4] = (self.ahs.len() / 4) as u8;
        bhs[5..8].copy_from_slice(&(self.data.len() as u32).to_be_bytes()[1..]);
        let mut bytes = [&bhs[..], &self.ahs].concat();
        if parameters.header_digest {
            bytes.put_u32_le(crc32c::crc32c(&bytes.clone()));
        }
        if !self.data.is_empty() {
            let mut data = self.data.clone();
            data.resize(data.len().next_multiple_of(4), 0);
            bytes.extend_from_slice(&data);
            if parameters.data_digest {
                bytes.put_u32_le(crc32c::crc32c(&data));
            }
        }
        bytes
    }
}

/// A PDU from the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct In {
    pub bhs: [u8; BHS_BYTES],
    pub data: Vec<u8>,
}

impl In {
    pub fn opcode(&self) -> u8 {
        self.bhs[0] & 0x3f
    }
    pub fn flags(&self) -> u8 {
        self.bhs[1]
    }
    pub fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.bhs[at..at + 4].try_into().unwrap())
    }
    pub fn itt(&self) -> u32 {
        self.u32(16)
    }
    pub fn ttt(&self) -> u32 {
        self.u32(20)
    }
    pub fn stat_sn(&self) -> u32 {
        self.u32(24)
    }
}

/// One end of a connection.
pub struct Conn {
    pub id: ConnectionId,
    pub parameters: Parameters,
    buffer: BytesMut,
    input: BytesMut,
    /// The next StatSN.
    pub stat_sn: u32,
    pub received: VecDeque<In>,
    pub closed: Option<CloseReason>,
    /// Statuses are repeated.
    pub again: bool,
}

pub struct World {
    pub target: Target,
    pub now: Time,
    pub conns: Vec<Conn>,
    pub disk: Vec<u8>,
    /// Requests are kept until the test asks for them.
    pub hold: bool,
    pub held: VecDeque<(DeviceId, u64, Request)>,
    pub events: Vec<Event>,
    max_cmd_sn: Option<u32>,
    /// The sizes of the pieces of input.
    pub cut: usize,
}

impl World {
    pub fn new(config: Config) -> World {
        World {
            target: Target::new(config, Access::default()),
            now: Time(1),
            conns: Vec::new(),
            disk: (0..SECTORS * 512).map(|i| (i / 512 * 7 + i % 251) as u8).collect(),
            hold: false,
            held: VecDeque::new(),
            events: Vec::new(),
            max_cmd_sn: None,
            cut: usize::MAX,
        }
    }

    /// The index of a connection in the full feature phase.
    pub fn connect(&mut self, identity: Identity, parameters: Parameters, cmd_sn: u32) -> usize {
        self.try_connect(identity, parameters, cmd_sn).unwrap()
    }

    pub fn try_connect(
        &mut self,
        identity: Identity,
        parameters: Parameters,
        cmd_sn: u32,
    ) -> Result<usize, u16> {
        let id = self.conns.len() as u64 + 100;
        let peer = Peer {
            address: "127.0.0.1:5000".into(),
            portal: "127.0.0.1:3260".into(),
            loopback: true,
        };
        self.target.handle_accept(self.now, id, peer, [0; 32]);
        if self.target.skip_open("v") {
            assert!(self.target.handle_opened(self.now, "v", Ok(device_config())).is_some());
        }
        let stat_sn = 0xffff_fff0;
        self.target.skip_login(id, identity, parameters, cmd_sn, stat_sn)?;
        self.conns.push(Conn {
            id,
            parameters,
            buffer: BytesMut::new(),
            input: BytesMut::new(),
            stat_sn,
            received: VecDeque::new(),
            closed: None,
            again: false,
        });
        self.pump();
        Ok(self.conns.len() - 1)
    }

    pub fn tsih(&self, at: usize) -> u16 {
        let id = self.conns[at].id;
        self.target
            .sessions()
            .find(|session| session.connections.contains(&id))
            .map_or(0, |session| session.identity.tsih)
    }

    /// Sends with correct numbers.
    pub fn send(&mut self, at: usize, out: Out) {
        let stat_sn = self.conns[at].stat_sn;
        self.send_raw(at, &out.put(28, stat_sn));
    }

    pub fn send_raw(&mut self, at: usize, out: &Out) {
        let bytes = out.encode(&self.conns[at].parameters);
        self.send_bytes(at, &bytes);
    }

    pub fn send_bytes(&mut self, at: usize, bytes: &[u8]) {
        for part in bytes.chunks(self.cut.min(bytes.len().max(1))) {
            let conn = &mut self.conns[at];
            conn.input.extend_from_slice(part);
            self.target.handle_input(self.now, conn.id, &mut conn.input);
        }
        self.pump();
    }

    pub fn drop_connection(&mut self, at: usize) {
        self.target.handle_closed(self.now, self.conns[at].id);
        self.conns[at].closed.get_or_insert(CloseReason::LoggedOut);
        self.pump();
    }

    pub fn pass(&mut self, time: Duration) {
        let end = self.now.after(time);
        while let Some(due) = self.target.poll_timeout()
            && due <= end
        {
            self.now = self.now.max(due);
            self.target.handle_timeout(self.now);
            self.pump();
            assert!(self.target.poll_timeout().is_none_or(|next| next > self.now), "a timer stuck");
        }
        self.now = end;
    }

    /// Answers the requests that were kept.
    pub fn answer_all(&mut self) {
        while let Some((device, id, request)) = self.held.pop_front() {
            self.answer(device, id, request);
        }
        self.pump();
    }

    pub fn answer(&mut self, device: DeviceId, id: u64, request: Request) {
        let reply = match request {
            Request::Read(range) => Reply::Data(self.pieces(range)),
            Request::Write { range, data, .. } => {
                let at = range.lba as usize * 512;
                assert_eq!(data.len() as u64, range.bytes());
                self.disk[at..at + data.len()].copy_from_slice(&data);
                Reply::Done
            }
            other => panic!("{other:?}"),
        };
        self.target.handle_reply(self.now, device, id, Ok(reply));
    }

    /// Data blocks alternate between pieces of their own, with zeroes where the disk has zeroes.
    fn pieces(&self, range: Range) -> Vec<ReadPiece> {
        let mut pieces = Vec::new();
        let mut lba = range.lba;
        while lba < range.end() {
            let end = ((lba / BLOCK_SECTORS + 1) * BLOCK_SECTORS).min(range.end());
            let data = &self.disk[lba as usize * 512..end as usize * 512];
            pieces.push(if data.iter().all(|byte| *byte == 0) {
                ReadPiece::Zeroes(end - lba)
            } else {
                ReadPiece::Data(Bytes::copy_from_slice(data))
            });
            lba = end;
        }
        pieces
    }

    pub fn pump(&mut self) {
        loop {
            let mut busy = false;
            while let Some(event) = self.target.poll_event() {
                busy = true;
                match event.clone() {
                    Event::Request { device, id, request } if self.hold => {
                        self.held.push_back((device, id, request));
                    }
                    Event::Request { device, id, request } => self.answer(device, id, request),
                    Event::Close { connection, reason } => {
                        if let Some(at) = self.conns.iter().position(|c| c.id == connection) {
                            self.drain(at);
                            self.conns[at].closed.get_or_insert(reason);
                            self.target.handle_closed(self.now, connection);
                        }
                    }
                    Event::Output { connection } => {
                        if let Some(at) = self.conns.iter().position(|c| c.id == connection) {
                            self.drain(at);
                        }
                    }
                    _ => self.events.push(event),
                }
            }
            if !busy {
                break;
            }
        }
        for at in 0..self.conns.len() {
            let id = self.conns[at].id;
            assert!(self.target.poll_output(id).is_none(), "output that nobody was told of");
        }
    }

    fn drain(&mut self, at: usize) {
        let id = self.conns[at].id;
        while let Some(piece) = self.target.poll_output(id) {
            assert!(!piece.is_empty());
            self.conns[at].buffer.extend_from_slice(&piece);
        }
        while self.parse(at) {}
    }

    fn parse(&mut self, at: usize) -> bool {
        let conn = &mut self.conns[at];
        if conn.buffer.is_empty() {
            return false;
        }
        let p = conn.parameters;
        let bhs: [u8; BHS_BYTES] = conn.buffer.split_to(BHS_BYTES)[..].try_into().unwrap();
        assert_eq!(bhs[4], 0, "additional headers from a target");
        if p.header_digest {
            assert_eq!(conn.buffer.get_u32_le(), crc32c::crc32c(&bhs));
        }
        let length = u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]]) as usize;
        let mut pdu = In { bhs, data: Vec::new() };
        assert!(length <= p.initiator_data_segment as usize, "a segment too long");
        if length > 0 {
            let data = conn.buffer.split_to(length.next_multiple_of(4));
            assert!(data[length..].iter().all(|byte| *byte == 0));
            if p.data_digest {
                assert_eq!(conn.buffer.get_u32_le(), crc32c::crc32c(&data));
            }
            pdu.data = data[..length].to_vec();
        }
        let numbered = match pdu.opcode() {
            opcode::DATA_IN => pdu.flags() & 1 != 0,
            opcode::R2T => false,
            opcode::NOP_IN => pdu.itt() != RESERVED_TAG,
            _ => true,
        };
        if pdu.opcode() == opcode::DATA_IN && !numbered {
            assert_eq!(pdu.stat_sn(), 0);
        } else if !conn.again || pdu.stat_sn() == conn.stat_sn {
            assert_eq!(pdu.stat_sn(), conn.stat_sn, "{pdu:x?}");
            conn.stat_sn = conn.stat_sn.wrapping_add(u32::from(numbered));
        }
        if let Some(before) = self.max_cmd_sn {
            let grown = pdu.u32(32).wrapping_sub(before) as i32;
            assert!(self.conns.len() > 1 || grown >= 0, "the window shrank");
        }
        self.max_cmd_sn = Some(pdu.u32(32));
        self.conns[at].received.push_back(pdu);
        true
    }

    pub fn take(&mut self, at: usize) -> Vec<In> {
        self.conns[at].received.drain(..).collect()
    }

    pub fn one(&mut self, at: usize) -> In {
        let all = self.take(at);
        assert_eq!(all.len(), 1, "{all:x?}");
        all.into_iter().next().unwrap()
    }

    pub fn expect_closed(&self, at: usize) -> &CloseReason {
        self.conns[at].closed.as_ref().expect("the connection is open")
    }
}

pub fn cdb(operation: u8, lba: u64, bytes: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = operation;
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&bytes.to_be_bytes());
    cdb
}

pub const F: u8 = 0x80;
pub const R: u8 = 0x40;
pub const W: u8 = 0x20;

pub fn command(flags: u8, itt: u32, cmd_sn: u32, expected: u32, cdb: [u8; 16]) -> Out {
    let mut out =
        Out::new(opcode::SCSI_COMMAND, false, flags, itt).put(20, expected).put(24, cmd_sn);
    out.bhs[32..].copy_from_slice(&cdb);
    out
}

pub fn read(itt: u32, cmd_sn: u32, lba: u64, bytes: u32) -> Out {
    command(F | R, itt, cmd_sn, bytes, cdb(READ, lba, bytes))
}

pub fn write(flags: u8, itt: u32, cmd_sn: u32, lba: u64, bytes: u32) -> Out {
    command(flags | W, itt, cmd_sn, bytes, cdb(WRITE, lba, bytes))
}

pub fn nothing(itt: u32, cmd_sn: u32) -> Out {
    command(F, itt, cmd_sn, 0, cdb(0, 0, 0))
}

pub fn data_out(last: bool, itt: u32, ttt: u32, data_sn: u32, offset: u32, data: &[u8]) -> Out {
    Out::new(opcode::DATA_OUT, false, if last { F } else { 0 }, itt)
        .put(20, ttt)
        .put(36, data_sn)
        .put(40, offset)
        .data(data)
}

pub fn logout(reason: u8, cid: u16, itt: u32, cmd_sn: u32) -> Out {
    let mut out = Out::new(opcode::LOGOUT, true, F | reason, itt).put(24, cmd_sn);
    out.bhs[20..22].copy_from_slice(&cid.to_be_bytes());
    out
}

pub fn manage(function: u8, itt: u32, cmd_sn: u32, referenced: u32, ref_cmd_sn: u32) -> Out {
    Out::new(opcode::TASK_MANAGEMENT, true, F | function, itt)
        .put(20, referenced)
        .put(24, cmd_sn)
        .put(32, ref_cmd_sn)
}

pub fn snack(kind: u8, itt: u32, tag: u32, begin: u32, run: u32) -> Out {
    Out::new(opcode::SNACK, false, F | kind, itt).put(20, tag).put(40, begin).put(44, run)
}

pub fn pattern(seed: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i / 512 * 3 + i % 509) as u8 ^ seed).collect()
}

/// Joins Data-In PDUs, and checks their numbers, offsets and sequences.
pub fn assemble(pdus: &[In], parameters: &Parameters) -> Vec<u8> {
    let mut data = Vec::new();
    let mut burst = 0;
    for (sn, pdu) in pdus.iter().filter(|pdu| pdu.opcode() == opcode::DATA_IN).enumerate() {
        assert_eq!(pdu.u32(36), sn as u32);
        assert_eq!(pdu.u32(40) as usize, data.len());
        data.extend_from_slice(&pdu.data);
        burst += pdu.data.len();
        assert!(burst <= parameters.max_burst as usize);
        if pdu.flags() & F != 0 {
            burst = 0;
        }
    }
    assert_eq!(burst, 0, "the last sequence has no end");
    data
}

/// Answers every R2T in the queue of connection `at` with data of `source`. Other PDUs stay.
pub fn answer_r2ts(world: &mut World, at: usize, source: &[u8]) -> usize {
    let mut answered = 0;
    loop {
        let all = world.take(at);
        let (r2ts, rest): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|pdu| pdu.opcode() == opcode::R2T);
        world.conns[at].received.extend(rest);
        if r2ts.is_empty() {
            return answered;
        }
        for r2t in r2ts {
            answered += 1;
            solicited(world, at, &r2t, source);
        }
    }
}

/// Answers one R2T.
pub fn solicited(world: &mut World, at: usize, r2t: &In, source: &[u8]) {
    let (offset, bytes) = (r2t.u32(40) as usize, r2t.u32(44) as usize);
    let segment = world.conns[at].parameters.target_data_segment as usize;
    let mut done = 0;
    let mut sn = 0;
    while done < bytes {
        let part = segment.min(bytes - done);
        let data = &source[offset + done..offset + done + part];
        let last = done + part == bytes;
        let mut out = data_out(last, r2t.itt(), r2t.ttt(), sn, (offset + done) as u32, data);
        out.bhs[8..16].copy_from_slice(&r2t.bhs[8..16]);
        world.send(at, out);
        done += part;
        sn += 1;
    }
}
