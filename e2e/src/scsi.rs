//! An iSCSI client with as many commands in flight as the target's window takes, over what
//! [`initiator`](crate::initiator) has for connections and logins. It knows nothing of longhaul.
//!
//! Commands take effect in their order of sending. Data goes with the command if it is short. A
//! longer write, for whose data the target asks, is an ordered task (SAM-5 §8.9). All PDUs have
//! digests.

use crate::client::{Command, PATIENCE, Reply, Wire};
use crate::initiator::connection::before;
use crate::initiator::pdu::{self, NO_TAG, Pdu, op};
use crate::initiator::session::{NONE, READ, WRITE, sequence};
use crate::initiator::{Connection, Login, Received};
use std::collections::{BTreeMap, VecDeque};
use std::io::{Error, ErrorKind, Result};
use std::net::TcpStream;
use std::time::Instant;

const INITIATOR: &str = "iqn.2026-11.test.longhaul:client";

/// Bytes that go with a command.
const FIRST_BURST: usize = 32 << 10;

/// Task attributes.
const SIMPLE: u8 = 1;
const ORDERED: u8 = 2;

/// Error numbers for what the target says; which one is no matter.
const EIO: u32 = 5;
const EBUSY: u32 = 16;

/// Status of a command.
const GOOD: u8 = 0;
const CHECK_CONDITION: u8 = 2;

struct Task {
    cookie: u64,
    /// The data of a write.
    out: Vec<u8>,
    /// What was read.
    data: Vec<u8>,
}

/// A session with one connection.
pub struct Iscsi {
    connection: Connection,
    size: u64,
    block: u64,
    next_cookie: u64,
    next_itt: u32,
    cmd_sn: u32,
    target_segment: usize,
    tasks: BTreeMap<u32, Task>,
    /// Replies that came while there was no room for another command.
    ready: VecDeque<Reply>,
}

fn closed(what: &str) -> Error {
    Error::new(ErrorKind::ConnectionAborted, what.to_owned())
}

fn out_of_step(pdu: &Pdu) -> Error {
    Error::new(ErrorKind::InvalidData, format!("not what a command needs: {pdu:?}"))
}

impl Iscsi {
    /// Logs in to a target at `ADDR:PORT`.
    ///
    /// # Errors
    /// The system's error; [`ErrorKind::PermissionDenied`] if the target refuses the login.
    pub fn connect(address: &str, target: &str) -> Result<Iscsi> {
        TcpStream::connect(address)?;
        let first_burst = FIRST_BURST.to_string();
        let login = Login::to(address, target, INITIATOR).keys([
            ("HeaderDigest", "CRC32C"),
            ("DataDigest", "CRC32C"),
            ("MaxRecvDataSegmentLength", "65536"),
            ("MaxBurstLength", "1048576"),
            ("FirstBurstLength", first_burst.as_str()),
            ("ImmediateData", "Yes"),
            ("InitialR2T", "Yes"),
            ("MaxOutstandingR2T", "4"),
        ]);
        let (connection, _, answers) = login.run().map_err(|refused| {
            let text = format!("login to {target} refused: {refused:x?}");
            Error::new(ErrorKind::PermissionDenied, text)
        })?;
        let agreed = crate::initiator::login::agreed(&answers);
        let mut client = Iscsi {
            connection,
            size: 0,
            block: 0,
            next_cookie: 1,
            next_itt: 1,
            cmd_sn: login.cmd_sn,
            target_segment: agreed["MaxRecvDataSegmentLength"].parse().unwrap(),
            tasks: BTreeMap::new(),
            ready: VecDeque::new(),
        };
        client.identify()?;
        Ok(client)
    }

    fn identify(&mut self) -> Result<()> {
        // TEST UNIT READY, until there is no unit attention any more.
        for _ in 0..8 {
            self.command(NONE, 0, &[0; 6], Vec::new())?;
            if self.receive()?.result.is_ok() {
                break;
            }
        }
        // READ CAPACITY (16).
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[13]) = (0x9e, 0x10, 32);
        self.command(READ, 32, &cdb, Vec::new())?;
        let data = self.receive()?.result.map_err(|_| closed("the capacity is not told"))?;
        let last = u64::from_be_bytes(data[..8].try_into().expect("8 bytes"));
        self.block = u64::from(u32::from_be_bytes(data[8..12].try_into().expect("4 bytes")));
        self.size = (last + 1) * self.block;
        Ok(())
    }

    fn command(&mut self, flags: u8, expected: u32, cdb: &[u8], out: Vec<u8>) -> Result<u64> {
        let start = Instant::now();
        while before(self.connection.max_cmd_sn, self.cmd_sn) {
            if start.elapsed() > PATIENCE {
                return Err(Error::new(ErrorKind::TimedOut, "the command window stays closed"));
            }
            if let Some(reply) = self.step()? {
                self.ready.push_back(reply);
            }
        }
        let (itt, cookie) = (self.next_itt, self.next_cookie);
        self.next_itt += 1;
        self.next_cookie += 1;
        let immediate = out.len().min(FIRST_BURST).min(self.target_segment);
        let attribute = if immediate < out.len() { ORDERED } else { SIMPLE };
        let command = pdu::command(flags | attribute, itt, expected, cdb);
        let command = command.with32(24, self.cmd_sn).with_data(&out[..immediate]);
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        self.tasks.insert(itt, Task { cookie, out, data: Vec::new() });
        self.connection.send(&command);
        Ok(cookie)
    }

    /// Takes the next PDU; gives a reply if it ends a task.
    fn step(&mut self) -> Result<Option<Reply>> {
        let pdu = match self.connection.receive_within(PATIENCE) {
            Received::Pdu(pdu) => pdu,
            Received::Closed => {
                self.tasks.clear();
                self.ready.clear();
                return Err(closed("the target has closed the connection"));
            }
            Received::Nothing => return Err(Error::new(ErrorKind::TimedOut, "no answer")),
        };
        if pdu.opcode() == op::ASYNC {
            // A request to log out, or an announcement of the connection's end, which follows.
            return Ok(None);
        }
        let itt = pdu.itt();
        let Some(task) = self.tasks.get_mut(&itt) else { return Err(out_of_step(&pdu)) };
        let ended = match pdu.opcode() {
            op::R2T => {
                let (from, count) = (pdu.offset() as usize, pdu.count() as usize);
                let data = task.out.get(from..from + count).ok_or_else(|| out_of_step(&pdu))?;
                for mut piece in sequence(itt, pdu.ttt(), pdu.offset(), data, self.target_segment) {
                    piece.header[8..16].copy_from_slice(&pdu.header[8..16]);
                    self.connection.send(&piece);
                }
                false
            }
            op::DATA_IN if pdu.offset() as usize == task.data.len() => {
                task.data.extend(&pdu.data);
                pdu.flags() & 1 != 0
            }
            op::RESPONSE => true,
            _ => return Err(out_of_step(&pdu)),
        };
        if !ended {
            return Ok(None);
        }
        let Task { cookie, data, .. } = self.tasks.remove(&itt).expect("it was there");
        let response = if pdu.opcode() == op::RESPONSE { pdu.header[2] } else { 0 };
        let result = match (response, pdu.header[3]) {
            (0, GOOD) => Ok(data),
            (0, CHECK_CONDITION) => {
                eprintln!("sense data: {:x?}", pdu.data);
                Err(EIO)
            }
            (0, _) => Err(EBUSY),
            _ => Err(EIO),
        };
        Ok(Some(Reply { cookie, result }))
    }
}

impl Wire for Iscsi {
    fn size(&self) -> u64 {
        self.size
    }

    fn in_flight(&self) -> usize {
        self.tasks.len() + self.ready.len()
    }

    fn takes_fua(&self, command: Command) -> bool {
        command == Command::Write
    }

    fn send(
        &mut self,
        command: Command,
        fua: bool,
        at: u64,
        length: u32,
        data: &[u8],
    ) -> Result<u64> {
        assert!(!fua || self.takes_fua(command), "{command:?} has no FUA bit");
        let (lba, blocks) = (at / self.block, length / self.block as u32);
        let mut cdb = [0; 16];
        cdb[2..10].copy_from_slice(&lba.to_be_bytes());
        cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
        match command {
            Command::Read => {
                cdb[0] = 0x88;
                self.command(READ, length, &cdb, Vec::new())
            }
            Command::Write => {
                cdb[0] = 0x8a;
                cdb[1] = if fua { 0x08 } else { 0 };
                self.command(WRITE, length, &cdb, data.to_vec())
            }
            // SYNCHRONIZE CACHE (16): of 0 blocks is of all from the first on.
            Command::Flush => {
                cdb[0] = 0x91;
                self.command(NONE, 0, &cdb, Vec::new())
            }
            // WRITE SAME (16).
            Command::Zero => {
                cdb[0] = 0x93;
                let block = vec![0; self.block as usize];
                self.command(WRITE, block.len() as u32, &cdb, block)
            }
            // UNMAP, with one descriptor.
            Command::Discard => {
                let mut list = vec![0; 24];
                list[1] = 22;
                list[3] = 16;
                list[8..16].copy_from_slice(&lba.to_be_bytes());
                list[16..20].copy_from_slice(&blocks.to_be_bytes());
                let mut cdb = [0; 10];
                (cdb[0], cdb[8]) = (0x42, 24);
                self.command(WRITE, 24, &cdb, list)
            }
        }
    }

    fn receive(&mut self) -> Result<Reply> {
        if let Some(reply) = self.ready.pop_front() {
            return Ok(reply);
        }
        let start = Instant::now();
        loop {
            if let Some(reply) = self.step()? {
                return Ok(reply);
            }
            if start.elapsed() > PATIENCE {
                return Err(Error::new(ErrorKind::TimedOut, "no command ends"));
            }
        }
    }

    fn set_write_cache(&mut self, on: bool) -> Result<()> {
        const WCE: u8 = 0x04;
        // MODE SENSE(6) and SELECT(6) of the caching page, without block descriptors.
        self.command(READ, 64, &[0x1a, 0x08, 0x08, 0, 64, 0], Vec::new())?;
        let refused = |_| Error::new(ErrorKind::Unsupported, "the caching page is refused");
        let mut pages = self.receive()?.result.map_err(refused)?;
        // The byte in the answer is reserved in the request.
        pages[..3].fill(0);
        pages[4] &= 0x7f;
        pages[6] = pages[6] & !WCE | if on { WCE } else { 0 };
        let length = pages.len() as u8;
        self.command(WRITE, length.into(), &[0x15, 0x10, 0, 0, length, 0], pages)?;
        self.receive()?.result.map_err(refused)?;
        Ok(())
    }

    fn disconnect(mut self: Box<Self>) {
        let logout = pdu::logout(0, NO_TAG - 1, 0).immediate().with32(24, self.cmd_sn);
        self.connection.send(&logout);
        let _ = self.connection.receive_within(PATIENCE);
    }
}
