//! A session: its connections, numbers and tags, and commands from one end to the other. It checks
//! the target's PDUs for a command against RFC 7143 §11.4, §11.7 and §11.8 on the way.

use super::connection::{Connection, Received};
use super::login::{self, Login, Refused};
use super::pdu::{self, NO_TAG, Pdu, op};
use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

/// Flags of a SCSI Command: it is all there, and data comes.
pub const READ: u8 = 0xc0;
/// It is all there, and data goes.
pub const WRITE: u8 = 0xa0;
/// It is all there, and no data moves.
pub const NONE: u8 = 0x80;

/// The difference between moved and expected data (§11.4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residual {
    /// Not at all.
    None,
    /// So many bytes less.
    Underflow(u32),
    /// So many bytes more.
    Overflow(u32),
}

/// The end of a command.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// iSCSI response.
    pub response: u8,
    /// SCSI status.
    pub status: u8,
    /// Sense data.
    pub sense: Vec<u8>,
    /// Input.
    pub data: Vec<u8>,
    /// The residual data.
    pub residual: Residual,
    /// Every R2T.
    pub r2ts: Vec<Pdu>,
    /// Every Data-In.
    pub data_in: Vec<Pdu>,
    /// The PDU with the status.
    pub end: Pdu,
}

impl Outcome {
    /// Input of a command that must have gone well.
    ///
    /// # Panics
    /// If it has not.
    #[track_caller]
    pub fn good(self) -> Vec<u8> {
        assert_eq!((self.response, self.status), (0, 0), "{self:?}");
        self.data
    }

    /// Sense key and additional sense code with its qualifier, of a command that must have failed
    /// so.
    ///
    /// # Panics
    /// If it has no sense.
    #[track_caller]
    #[must_use]
    pub fn sense(&self) -> (u8, u16) {
        assert_eq!((self.response, self.status), (0, 2), "no CHECK CONDITION: {self:?}");
        let sense = &self.sense;
        match sense[0] & 0x7f {
            0x70 => (sense[2] & 0xf, u16::from_be_bytes([sense[12], sense[13]])),
            0x72 => (sense[1] & 0xf, u16::from_be_bytes([sense[2], sense[3]])),
            _ => panic!("no sense data: {self:?}"),
        }
    }
}

/// The results of a command so far, and its rules.
#[derive(Debug)]
struct Progress {
    data: Vec<u8>,
    data_in: Vec<Pdu>,
    r2ts: Vec<Pdu>,
    /// Bytes since the last sequence of Data-In ended.
    burst: usize,
    /// The end of the data so far, unsolicited or solicited.
    asked: u32,
}

/// A session.
pub struct Session {
    /// Its connections; those that ended leave a hole.
    connections: BTreeMap<usize, Connection>,
    /// The login it began with.
    pub login: Login,
    /// The target's part of its identity.
    pub tsih: u16,
    /// Number of the next command.
    pub cmd_sn: u32,
    /// The negotiated values, by key.
    pub agreed: BTreeMap<String, String>,
    next_itt: u32,
}

impl Index<usize> for Session {
    type Output = Connection;

    fn index(&self, at: usize) -> &Connection {
        &self.connections[&at]
    }
}

impl IndexMut<usize> for Session {
    fn index_mut(&mut self, at: usize) -> &mut Connection {
        self.connections.get_mut(&at).expect("the connection is there")
    }
}

impl Session {
    /// Logs in.
    ///
    /// # Errors
    /// The target's refusal.
    #[track_caller]
    pub fn open(login: &Login) -> Result<Session, Refused> {
        let (connection, tsih, answers) = login.run()?;
        Ok(Session {
            connections: BTreeMap::from([(usize::from(login.cid), connection)]),
            login: login.clone(),
            tsih,
            cmd_sn: login.cmd_sn,
            agreed: login::agreed(&answers),
            next_itt: fastrand::u32(..1 << 30),
        })
    }

    /// Adds a connection with this CID, or puts one in the place of the one that has it.
    ///
    /// # Errors
    /// The target's refusal.
    #[track_caller]
    pub fn join(&mut self, cid: u16) -> Result<(), Refused> {
        self.join_with(cid, [])
    }

    /// The same, with keys of the connection's own.
    ///
    /// # Errors
    /// The target's refusal.
    #[track_caller]
    pub fn join_with<'a>(
        &mut self,
        cid: u16,
        keys: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<(), Refused> {
        let mut login = self.login.clone();
        let digests = ["HeaderDigest", "DataDigest", "MaxRecvDataSegmentLength"];
        login.keys.retain(|(key, _)| digests.contains(&key.as_str()));
        login.tsih = self.tsih;
        login.cid = cid;
        // §11.12.8: of a connection that joins, it is the number of the next command.
        login.cmd_sn = self.cmd_sn;
        let (connection, _, _) = login.keys(keys).run()?;
        self.connections.insert(usize::from(cid), connection);
        Ok(())
    }

    /// Takes a connection out, to drop or keep it.
    #[track_caller]
    pub fn take(&mut self, at: usize) -> Connection {
        self.connections.remove(&at).expect("the connection is there")
    }

    /// The negotiated value of a key that has a number.
    #[must_use]
    #[track_caller]
    pub fn number(&self, key: &str) -> u32 {
        self.agreed[key].parse().unwrap()
    }

    /// Longest data segment that this side takes.
    #[must_use]
    pub fn segment(&self) -> u32 {
        login::value(&self.login.keys, "MaxRecvDataSegmentLength")
            .map_or(8192, |value| value.parse().unwrap())
    }

    /// A tag that no task has.
    pub fn tag(&mut self) -> u32 {
        self.next_itt += 1;
        self.next_itt
    }

    /// With the next number; an immediate request does not use it up.
    #[must_use]
    pub fn numbered(&mut self, pdu: Pdu) -> Pdu {
        let number = self.cmd_sn;
        if !pdu.is_immediate() {
            self.cmd_sn = number.wrapping_add(1);
        }
        pdu.with32(24, number)
    }

    /// A command with the next number and a tag of its own.
    #[must_use]
    pub fn command(&mut self, flags: u8, expected: u32, cdb: &[u8]) -> Pdu {
        let itt = self.tag();
        // Simple task attribute.
        self.numbered(pdu::command(flags | 1, itt, expected, cdb))
    }

    /// READ (10) of blocks of 512 bytes.
    #[must_use]
    pub fn read(&mut self, lba: u32, blocks: u16) -> Pdu {
        self.command(READ, u32::from(blocks) * 512, &cdb10(0x28, lba, blocks))
    }

    /// WRITE (10) of blocks of 512 bytes, without data.
    #[must_use]
    pub fn write(&mut self, lba: u32, blocks: u16) -> Pdu {
        self.command(WRITE, u32::from(blocks) * 512, &cdb10(0x2a, lba, blocks))
    }

    /// Sends a command on a connection, with `out` as the target asks for it, and waits for its
    /// end.
    #[track_caller]
    pub fn run(&mut self, at: usize, command: &Pdu, out: &[u8]) -> Outcome {
        self[at].send(command);
        self.finish(at, command, out)
    }

    /// TEST UNIT READY until there is no unit attention any more.
    ///
    /// # Panics
    /// If it ends in any other way.
    #[track_caller]
    pub fn settle(&mut self, at: usize) {
        for _ in 0..8 {
            let command = self.command(NONE, 0, &[0; 6]);
            let outcome = self.run(at, &command, &[]);
            if outcome.status == 0 {
                return;
            }
            assert_eq!(outcome.sense().0, 6, "{outcome:?}");
        }
        panic!("unit attentions without end");
    }

    /// Writes blocks of 512 bytes as negotiated: as much immediate, unsolicited and solicited data
    /// as possible.
    #[track_caller]
    pub fn write_blocks(&mut self, at: usize, lba: u32, data: &[u8]) -> Outcome {
        let mut command = self.write(lba, (data.len() / 512) as u16);
        let first = (self.number("FirstBurstLength") as usize).min(data.len());
        let segment = self.number("MaxRecvDataSegmentLength") as usize;
        let mut sent = 0;
        if self.agreed["ImmediateData"] == "Yes" {
            sent = first.min(segment);
            command.data = data[..sent].to_vec();
        }
        let more = self.agreed["InitialR2T"] == "No" && sent < first;
        if more {
            command.header[1] &= !0x80;
        }
        self[at].send(&command);
        if more {
            let itt = command.itt();
            for piece in sequence(itt, NO_TAG, sent as u32, &data[sent..first], segment) {
                self[at].send(&piece);
            }
            sent = first;
        }
        let mut progress = Progress::new(sent as u32);
        self.go_on(at, &command, data, &mut progress)
    }

    /// Reads blocks of 512 bytes.
    #[track_caller]
    pub fn read_blocks(&mut self, at: usize, lba: u32, blocks: u16) -> Vec<u8> {
        let command = self.read(lba, blocks);
        self.run(at, &command, &[]).good()
    }

    /// Waits for the end of a command, after all its immediate data.
    #[track_caller]
    pub fn finish(&mut self, at: usize, command: &Pdu, out: &[u8]) -> Outcome {
        let mut progress = Progress::new(command.data.len() as u32);
        self.go_on(at, command, out, &mut progress)
    }

    /// Waits for the end of a write on connection 0 whose R2Ts the test has answered; it must get
    /// no more of them.
    #[track_caller]
    pub fn finish_write(&mut self, command: &Pdu) -> Outcome {
        let end = self[0].expect(op::RESPONSE);
        assert_eq!(end.itt(), command.itt(), "of another task: {end:?}");
        let mut progress = Progress::new(0);
        progress.outcome(command, end)
    }

    #[track_caller]
    fn go_on(&mut self, at: usize, command: &Pdu, out: &[u8], progress: &mut Progress) -> Outcome {
        let itt = command.itt();
        let most = self.number("MaxBurstLength");
        let level = self.number("ErrorRecoveryLevel");
        let target_segment = self.number("MaxRecvDataSegmentLength") as usize;
        let own_segment = self.segment() as usize;
        loop {
            let pdu = match self[at].receive_within(super::connection::PATIENCE) {
                Received::Pdu(pdu) => pdu,
                other => panic!("{other:?} instead of the end of {command:?}, after {progress:?}"),
            };
            assert_eq!(pdu.itt(), itt, "of another task: {pdu:?}");
            match pdu.opcode() {
                op::R2T => {
                    progress.r2t(command, &pdu, most);
                    let from = pdu.offset() as usize;
                    let data = &out[from..from + pdu.count() as usize];
                    for mut piece in sequence(itt, pdu.ttt(), pdu.offset(), data, target_segment) {
                        piece.header[8..16].copy_from_slice(&pdu.header[8..16]);
                        self[at].send(&piece);
                    }
                }
                op::DATA_IN => {
                    progress.data_in(&pdu, most, own_segment);
                    if pdu.flags() & 0x40 != 0 {
                        assert!(level > 0, "§11.7.2: an A bit at level 0: {pdu:?}");
                        assert_ne!(pdu.ttt(), NO_TAG, "§11.7.4: no tag to acknowledge: {pdu:?}");
                        let begin = pdu.data_sn() + 1;
                        let mut ack = pdu::snack(pdu::snack::DATA_ACK, NO_TAG, pdu.ttt(), begin, 0);
                        ack.header[8..16].copy_from_slice(&pdu.header[8..16]);
                        self[at].send(&ack);
                    }
                    if pdu.flags() & 1 != 0 {
                        return progress.end(command, pdu);
                    }
                }
                op::RESPONSE => return progress.end(command, pdu),
                _ => panic!("not of a command: {pdu:?}"),
            }
        }
    }

    /// Logs the session out, in order.
    ///
    /// # Panics
    /// If the target does not say goodbye.
    #[track_caller]
    pub fn close(mut self, at: usize) {
        let itt = self.tag();
        let logout = self.numbered(pdu::logout(0, itt, 0).immediate());
        self[at].send(&logout);
        let answer = self[at].expect(op::LOGOUT_RESPONSE);
        assert_eq!((answer.itt(), answer.header[2]), (itt, 0), "{answer:?}");
        let rest = self[at].expect_closed(super::connection::PATIENCE);
        assert!(rest.is_empty(), "after the logout: {rest:?}");
    }
}

impl Progress {
    fn new(sent: u32) -> Progress {
        Progress { data: Vec::new(), data_in: Vec::new(), r2ts: Vec::new(), burst: 0, asked: sent }
    }

    /// §11.8, at DataSequenceInOrder=Yes.
    #[track_caller]
    fn r2t(&mut self, command: &Pdu, r2t: &Pdu, most: u32) {
        assert_eq!(r2t.data_sn() as usize, self.r2ts.len(), "R2TSN: {r2t:?}");
        assert_eq!(r2t.offset(), self.asked, "§11.8.4: not where the last one ended: {r2t:?}");
        assert_ne!(r2t.count(), 0, "an R2T for nothing: {r2t:?}");
        assert!(r2t.count() <= most, "§13.13: more than MaxBurstLength: {r2t:?}");
        assert_ne!(r2t.ttt(), NO_TAG, "no tag: {r2t:?}");
        assert_eq!(r2t.flags(), 0x80, "{r2t:?}");
        assert_eq!(r2t.header[8..16], command.header[8..16], "another LUN: {r2t:?}");
        self.asked += r2t.count();
        assert!(self.asked <= command.get32(20), "more than was announced: {r2t:?}");
        self.r2ts.push(r2t.clone());
    }

    /// §11.7.
    #[track_caller]
    fn data_in(&mut self, pdu: &Pdu, most: u32, segment: usize) {
        assert_eq!(pdu.data_sn() as usize, self.data_in.len(), "DataSN: {pdu:?}");
        assert_eq!(pdu.offset() as usize, self.data.len(), "offset: {pdu:?}");
        assert!(pdu.data.len() <= segment, "longer than MaxRecvDataSegmentLength: {pdu:?}");
        self.burst += pdu.data.len();
        assert!(self.burst <= most as usize, "§13.13: longer than MaxBurstLength: {pdu:?}");
        if pdu.flags() & 0x80 != 0 {
            self.burst = 0;
        }
        self.data.extend(&pdu.data);
        self.data_in.push(pdu.clone());
    }

    #[track_caller]
    fn end(&mut self, command: &Pdu, end: Pdu) -> Outcome {
        let collapsed = end.opcode() == op::DATA_IN;
        if collapsed {
            assert_ne!(end.flags() & 0x80, 0, "§11.7.3: S without F: {end:?}");
        } else {
            assert_eq!(end.flags() & 0x98, 0x80, "{end:?}");
            let pdus = (self.data_in.len() + self.r2ts.len()) as u32;
            let right = if end.header[2] == 0 { pdus } else { 0 };
            assert_eq!(end.data_sn(), right, "§11.4.8: ExpDataSN: {end:?}");
        }
        self.outcome(command, end)
    }

    #[track_caller]
    fn outcome(&mut self, command: &Pdu, end: Pdu) -> Outcome {
        let collapsed = end.opcode() == op::DATA_IN;
        let expected = command.get32(20);
        let residual = match end.flags() & 0x06 {
            0 => Residual::None,
            2 => Residual::Underflow(end.count()),
            4 => Residual::Overflow(end.count()),
            _ => panic!("both over and under: {end:?}"),
        };
        assert_eq!(self.burst, 0, "the last Data-In has no F bit");
        let mut sense = Vec::new();
        if !collapsed && end.data.len() >= 2 {
            let length = usize::from(u16::from_be_bytes([end.data[0], end.data[1]]));
            sense = end.data[2..2 + length].to_vec();
        }
        if command.flags() & 0x40 != 0 && (collapsed || end.header[2] == 0) {
            // §11.4.5.1: the moved data and the residual are the expected data.
            let came = self.data.len() as u32;
            let right = match residual {
                Residual::None => came == expected,
                Residual::Underflow(missing) => came.checked_add(missing) == Some(expected),
                // A failed command may tell of data that goes the other way.
                Residual::Overflow(_) => came == expected || end.header[3] != 0,
            };
            assert!(right, "residual: {end:?}, {came} bytes came of {expected}");
        }
        Outcome {
            response: if collapsed { 0 } else { end.header[2] },
            status: end.header[3],
            sense,
            data: std::mem::take(&mut self.data),
            residual,
            r2ts: std::mem::take(&mut self.r2ts),
            data_in: std::mem::take(&mut self.data_in),
            end,
        }
    }
}

/// A CDB of ten bytes.
#[must_use]
pub fn cdb10(code: u8, lba: u32, blocks: u16) -> [u8; 10] {
    let mut cdb = [0; 10];
    cdb[0] = code;
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

/// A sequence of Data-Out PDUs of at most `segment` bytes each, in order.
#[must_use]
pub fn sequence(itt: u32, ttt: u32, offset: u32, data: &[u8], segment: usize) -> Vec<Pdu> {
    let count = data.len().div_ceil(segment);
    let pieces = data.chunks(segment).enumerate();
    let made = pieces.map(|(number, piece)| {
        let at = offset + (number * segment) as u32;
        pdu::data_out(number + 1 == count, itt, ttt, number as u32, at, piece)
    });
    made.collect()
}
