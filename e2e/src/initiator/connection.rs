//! One connection: PDUs in and out of a socket, their digests, and the target's numbers.

use super::crc::digest;
use super::pdu::{Pdu, op};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// How long an answer may take before the target counts as hanging.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Longest data segment from a target, in bytes.
const MAX_SEGMENT: usize = 1 << 24;

/// The received PDU, or its absence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// A PDU.
    Pdu(Pdu),
    /// The target has closed the connection.
    Closed,
    /// Nothing within the limit.
    Nothing,
}

/// Whether serial number `a` comes before `b` (RFC 1982).
#[must_use]
pub fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// A connection.
pub struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
    /// Headers have digests.
    pub header_digest: bool,
    /// Data segments have digests.
    pub data_digest: bool,
    /// The status number that the target has to use next; none until its first.
    pub next_stat_sn: Option<u32>,
    /// The rules for requests. Follows `next_stat_sn`, unless `hold`.
    pub exp_stat_sn: u32,
    /// It acknowledges no statuses.
    pub hold: bool,
    /// Earlier statuses may come again, and numbers may be missing.
    pub lenient: bool,
    /// The highest that the target has said.
    pub exp_cmd_sn: u32,
    /// The highest that the target has said.
    pub max_cmd_sn: u32,
    /// It answers pings of the target where it waits for PDUs.
    pub answer_pings: bool,
    /// Everything that came, in order.
    pub pings: u32,
}

impl Connection {
    /// Connects.
    ///
    /// # Panics
    /// If nobody listens.
    #[must_use]
    #[track_caller]
    pub fn open(address: &str) -> Connection {
        let stream = TcpStream::connect(address)
            .unwrap_or_else(|error| panic!("no connection to {address}: {error}"));
        stream.set_nodelay(true).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Connection {
            stream,
            input: Vec::new(),
            header_digest: false,
            data_digest: false,
            next_stat_sn: None,
            exp_stat_sn: 0,
            hold: false,
            lenient: false,
            exp_cmd_sn: 0,
            max_cmd_sn: 0,
            answer_pings: true,
            pings: 0,
        }
    }

    /// The initiator's address.
    #[must_use]
    pub fn local(&self) -> std::net::SocketAddr {
        self.stream.local_addr().unwrap()
    }

    /// Sends a PDU with its digests. Fills ExpStatSN in.
    ///
    /// If the target has closed, the next receive shows the failed send.
    pub fn send(&mut self, pdu: &Pdu) {
        let bytes = self.encode(pdu);
        self.send_bytes(&bytes);
    }

    /// A PDU as [`Connection::send`] would send it.
    #[must_use]
    pub fn encode(&self, pdu: &Pdu) -> Vec<u8> {
        let stamped = pdu.clone().with32(28, self.exp_stat_sn);
        stamped.encode(self.header_digest, self.data_digest)
    }

    /// Sends a PDU just as it is.
    pub fn send_raw(&mut self, pdu: &Pdu) {
        let bytes = pdu.encode(self.header_digest, self.data_digest);
        self.send_bytes(&bytes);
    }

    /// Sends bytes.
    ///
    /// # Panics
    /// If the target does not take them within [`PATIENCE`].
    #[track_caller]
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        if let Err(error) = self.stream.write_all(bytes) {
            let stuck = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
            assert!(!stuck, "the target has not taken {} bytes for {PATIENCE:?}", bytes.len());
        }
    }

    /// Sends as much as the target takes within `limit`, and returns the number of bytes.
    pub fn send_some(&mut self, bytes: &[u8], limit: Duration) -> usize {
        let start = Instant::now();
        let mut sent = 0;
        while sent < bytes.len() {
            let left = limit.saturating_sub(start.elapsed());
            if left.is_zero() {
                break;
            }
            self.stream.set_write_timeout(Some(left)).unwrap();
            match self.stream.write(&bytes[sent..]) {
                Ok(count) => sent += count,
                Err(_) => break,
            }
        }
        self.stream.set_write_timeout(Some(PATIENCE)).unwrap();
        sent
    }

    /// Ends the connection without a word, with a reset if unread data of the target is there.
    pub fn drop_now(self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Announces the end of sending.
    pub fn finish_sending(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// The next PDU within `limit`. It answers pings on the way and does not return them.
    #[track_caller]
    pub fn receive_within(&mut self, limit: Duration) -> Received {
        let start = Instant::now();
        loop {
            if let Some(pdu) = self.take() {
                self.note(&pdu);
                if pdu.opcode() == op::NOP_IN && pdu.itt() == u32::MAX && self.answer_pings {
                    if pdu.ttt() != u32::MAX {
                        self.pings += 1;
                        let mut pong =
                            Pdu::new(op::NOP_OUT, 0x80).immediate().with32(20, pdu.ttt());
                        pong.header[8..16].copy_from_slice(&pdu.header[8..16]);
                        // An immediate request bears the number of the next one.
                        let number = self.exp_cmd_sn;
                        self.send(&pong.with32(16, u32::MAX).with32(24, number));
                    }
                    continue;
                }
                return Received::Pdu(pdu);
            }
            let left = limit.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Received::Nothing;
            }
            self.stream.set_read_timeout(Some(left)).unwrap();
            let mut buffer = [0; 1 << 16];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Received::Closed,
                Ok(count) => self.input.extend_from_slice(&buffer[..count]),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => return Received::Closed,
            }
        }
    }

    /// The next PDU.
    ///
    /// # Panics
    /// If the connection closes, or nothing comes.
    #[track_caller]
    pub fn receive(&mut self) -> Pdu {
        match self.receive_within(PATIENCE) {
            Received::Pdu(pdu) => pdu,
            other => panic!("instead of a PDU: {other:?}"),
        }
    }

    /// The next PDU, which must be of this opcode.
    #[track_caller]
    pub fn expect(&mut self, opcode: u8) -> Pdu {
        let pdu = self.receive();
        assert_eq!(pdu.opcode(), opcode, "not what was expected: {pdu:?}");
        pdu
    }

    /// The next PDU, which must be a Reject of `pdu` for `reason`.
    #[track_caller]
    pub fn expect_reject(&mut self, reason: u8, pdu: &Pdu) -> Pdu {
        let reject = self.expect(op::REJECT);
        assert_eq!(reject.header[2], reason, "another reason: {reject:?}");
        // §11.17: it carries the header that it is about.
        assert_eq!(reject.data[16..20], pdu.header[16..20], "of another PDU: {reject:?}");
        assert_eq!(reject.data.len(), 48, "not the whole header");
        reject
    }

    /// Waits for the end of the connection; gives what came before it.
    ///
    /// # Panics
    /// If it does not end within `limit`.
    #[track_caller]
    pub fn expect_closed(&mut self, limit: Duration) -> Vec<Pdu> {
        let start = Instant::now();
        let mut seen = Vec::new();
        loop {
            match self.receive_within(limit.saturating_sub(start.elapsed())) {
                Received::Pdu(pdu) => seen.push(pdu),
                Received::Closed => return seen,
                Received::Nothing => panic!("not closed within {limit:?}; came: {seen:?}"),
            }
        }
    }

    /// Nothing must come for so long.
    #[track_caller]
    pub fn expect_nothing(&mut self, limit: Duration) {
        let received = self.receive_within(limit);
        assert_eq!(received, Received::Nothing);
    }

    /// A PDU from the received bytes, if it is complete.
    #[track_caller]
    fn take(&mut self) -> Option<Pdu> {
        let header: [u8; 48] = *self.input.first_chunk()?;
        let ahs = usize::from(header[4]) * 4;
        let length = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        assert!(length <= MAX_SEGMENT);
        let padded = length.next_multiple_of(4);
        let head = 48 + ahs;
        let data_at = head + if self.header_digest { 4 } else { 0 };
        let total = data_at + padded + if self.data_digest && length > 0 { 4 } else { 0 };
        if self.input.len() < total {
            return None;
        }
        let rest = self.input.split_off(total);
        let bytes = std::mem::replace(&mut self.input, rest);
        if self.header_digest {
            assert_eq!(bytes[head..head + 4], digest(&bytes[..head]), "the target's header digest");
        }
        let segment = &bytes[data_at..data_at + padded];
        if self.data_digest && length > 0 {
            assert_eq!(bytes[data_at + padded..], digest(segment), "the target's data digest");
        }
        // §11.1: padding bytes should be 0.
        assert_eq!(segment[length..], [0; 3][..padded - length], "padding that is not 0");
        let mut pdu = Pdu::new(0, 0).with_data(&segment[..length]);
        pdu.header = header;
        pdu.ahs = bytes[48..head].to_vec();
        Some(pdu)
    }

    /// Keeps the target's numbers, and checks what holds of all of its PDUs.
    #[track_caller]
    fn note(&mut self, pdu: &Pdu) {
        assert!(
            matches!(
                pdu.opcode(),
                op::NOP_IN..=op::LOGOUT_RESPONSE | op::R2T | op::ASYNC | op::REJECT
            ) && !pdu.is_immediate(),
            "no PDU of a target: {pdu:?}"
        );
        if pdu.has_status() {
            let stat_sn = pdu.stat_sn();
            let next = *self.next_stat_sn.get_or_insert(stat_sn);
            if stat_sn == next {
                self.next_stat_sn = Some(next.wrapping_add(1));
            } else {
                assert!(self.lenient, "StatSN {stat_sn} instead of {next}: {pdu:?}");
            }
            if !self.hold {
                self.exp_stat_sn = self.next_stat_sn.unwrap();
            }
        } else if matches!(pdu.opcode(), op::R2T | op::NOP_IN)
            && let Some(next) = self.next_stat_sn
        {
            // §11.8.3, §11.19.2: the number of the next status.
            assert!(self.lenient || pdu.stat_sn() == next, "not StatSN {next}: {pdu:?}");
        }
        if pdu.opcode() == op::DATA_IN && !pdu.has_status() {
            // §11.7: StatSN is there with the S bit only; the other two always.
            assert_eq!(pdu.header[3], 0, "a status without the S bit: {pdu:?}");
        }
        let (expected, max) = (pdu.exp_cmd_sn(), pdu.max_cmd_sn());
        // §4.2.2.1: the window never goes back, and MaxCmdSN is at least ExpCmdSN − 1.
        assert!(!before(max.wrapping_add(1), expected), "a window of negative size: {pdu:?}");
        let fresh = self.exp_cmd_sn == 0 && self.max_cmd_sn == 0;
        if fresh || before(self.exp_cmd_sn, expected) {
            self.exp_cmd_sn = expected;
        }
        if fresh || before(self.max_cmd_sn, max) {
            self.max_cmd_sn = max;
        }
    }
}
