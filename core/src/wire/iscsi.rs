//! The bytes of the iSCSI protocol: the header segment of every PDU, parsed and encoded.
//!
//! Source: RFC 7143 §11. Parsing never allocates and never fails on what a session has to judge
//! (reserved bits, orders of numbers, lengths against what was negotiated): it only takes fields from
//! their places. Nothing here knows sessions.

/// Bytes of the basic header segment (§11.2.1).
pub const BHS_BYTES: usize = 48;
/// Bytes of a CRC32C digest (§13.1).
pub const DIGEST_BYTES: usize = 4;
/// A task tag that names no task (§11.2.1.8).
pub const RESERVED_TAG: u32 = 0xffff_ffff;
/// Most bytes of a data segment that its 24-bit length field can say.
pub const MAX_DATA_SEGMENT_BYTES: usize = 0xff_ffff;
/// Well-known TCP port (§17.1).
pub const PORT: u16 = 3260;

/// Operation codes (§11.2.1.2).
pub mod opcode {
    /// Initiator's ping or answer to one.
    pub const NOP_OUT: u8 = 0x00;
    /// SCSI command.
    pub const SCSI_COMMAND: u8 = 0x01;
    /// Task management function request.
    pub const TASK_MANAGEMENT: u8 = 0x02;
    /// Login request.
    pub const LOGIN: u8 = 0x03;
    /// Text request.
    pub const TEXT: u8 = 0x04;
    /// Data of a write.
    pub const DATA_OUT: u8 = 0x05;
    /// Logout request.
    pub const LOGOUT: u8 = 0x06;
    /// Selective negative acknowledgement.
    pub const SNACK: u8 = 0x10;
    /// Target's ping or answer to one.
    pub const NOP_IN: u8 = 0x20;
    /// SCSI response.
    pub const SCSI_RESPONSE: u8 = 0x21;
    /// Task management function response.
    pub const TASK_MANAGEMENT_RESPONSE: u8 = 0x22;
    /// Login response.
    pub const LOGIN_RESPONSE: u8 = 0x23;
    /// Text response.
    pub const TEXT_RESPONSE: u8 = 0x24;
    /// Data of a read.
    pub const DATA_IN: u8 = 0x25;
    /// Logout response.
    pub const LOGOUT_RESPONSE: u8 = 0x26;
    /// Ready to transfer.
    pub const R2T: u8 = 0x31;
    /// Asynchronous message.
    pub const ASYNC: u8 = 0x32;
    /// A PDU was not accepted.
    pub const REJECT: u8 = 0x3f;
}

/// Reasons of a Reject (§11.17.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum RejectReason {
    /// The data digest did not match; the PDU may be sent again.
    DataDigestError = 0x02,
    /// A SNACK asked for what is gone.
    SnackReject = 0x03,
    /// The PDU breaks the protocol.
    ProtocolError = 0x04,
    /// Not supported at this level.
    CommandNotSupported = 0x05,
    /// Too many immediate commands.
    TooManyImmediateCommands = 0x06,
    /// The task is in progress.
    TaskInProgress = 0x07,
    /// An acknowledgement of data that was not sent.
    InvalidDataAck = 0x08,
    /// A field has a value that makes no sense.
    InvalidPduField = 0x09,
    /// Out of resources: long operation.
    LongOperationReject = 0x0a,
    /// Deprecated by §11.17.1, sent by nobody; kept out of use.
    NegotiationReset = 0x0b,
    /// Waiting for a logout.
    WaitingForLogout = 0x0c,
}

/// Task management functions (§11.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Function {
    /// Ends one task.
    AbortTask = 1,
    /// Ends the tasks of this nexus.
    AbortTaskSet = 2,
    /// Clears an auto contingent allegiance.
    ClearAca = 3,
    /// Ends the tasks of all nexuses.
    ClearTaskSet = 4,
    /// Resets the logical unit.
    LogicalUnitReset = 5,
    /// Resets all logical units of the target.
    TargetWarmReset = 6,
    /// The same, and ends all sessions.
    TargetColdReset = 7,
    /// Moves a task's allegiance to this connection.
    TaskReassign = 8,
    /// Asks whether a task exists (RFC 7144).
    QueryTask = 9,
    /// Asks whether the nexus has tasks (RFC 7144).
    QueryTaskSet = 10,
    /// Ends and reports as a reset of the nexus would (RFC 7144).
    ItNexusReset = 11,
    /// Asks for a unit attention (RFC 7144).
    QueryAsyncEvent = 12,
}

/// Outcomes of a task management function (§11.6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FunctionResponse {
    /// Done.
    Complete = 0,
    /// No such task.
    NoTask = 1,
    /// No such logical unit.
    NoLun = 2,
    /// The task's connection still holds it.
    StillAllegiant = 3,
    /// Allegiance cannot be moved.
    ReassignNotSupported = 4,
    /// Not supported.
    NotSupported = 5,
    /// Not allowed.
    AuthorizationFailed = 6,
    /// Done; the answer is yes (RFC 7144).
    Succeeded = 7,
    /// Not done.
    Rejected = 255,
}

/// What an initiator sends: the fields of its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// §11.18.
    NopOut {
        /// Logical unit, as it came.
        lun: u64,
        /// Of the target's ping that this answers, or reserved.
        ttt: u32,
    },
    /// §11.3.
    ScsiCommand {
        /// No unsolicited data follows.
        last: bool,
        /// Input is expected.
        read: bool,
        /// Output is expected.
        write: bool,
        /// Task attribute, 0 to 7.
        attribute: u8,
        /// Logical unit.
        lun: u64,
        /// Bytes the initiator expects to move.
        expected_bytes: u32,
        /// The first 16 bytes of the command.
        cdb: [u8; 16],
    },
    /// §11.5.
    TaskManagement {
        /// Which function; see [`Function`].
        function: u8,
        /// Logical unit.
        lun: u64,
        /// The task it concerns.
        referenced: u32,
        /// Its command number.
        referenced_cmd_sn: u32,
        /// Of a reassigned task: what the initiator expects next.
        exp_data_sn: u32,
    },
    /// §11.12.
    Login {
        /// Wants to go on to `next`.
        transit: bool,
        /// The text goes on in the next request.
        more: bool,
        /// Current stage.
        stage: u8,
        /// Stage to go to.
        next: u8,
        /// Newest version the initiator speaks.
        version_max: u8,
        /// Oldest version the initiator speaks.
        version_min: u8,
        /// Initiator's part of the session's identity.
        isid: [u8; 6],
        /// Target's part, or 0.
        tsih: u16,
        /// Connection within the session.
        cid: u16,
    },
    /// §11.10.
    Text {
        /// Last of the exchange from the initiator's side.
        last: bool,
        /// The text goes on in the next request.
        more: bool,
        /// Logical unit.
        lun: u64,
        /// Continues an exchange, or reserved.
        ttt: u32,
    },
    /// §11.7.
    DataOut {
        /// Last of its sequence.
        last: bool,
        /// Logical unit.
        lun: u64,
        /// Of the R2T, or reserved when unsolicited.
        ttt: u32,
        /// Number within its sequence.
        data_sn: u32,
        /// Place in the command's output, in bytes.
        offset: u32,
    },
    /// §11.14.
    Logout {
        /// Close session (0), close connection (1), remove connection for recovery (2).
        reason: u8,
        /// Which connection.
        cid: u16,
    },
    /// §11.16.
    Snack {
        /// Data or R2T (0), status (1), data acknowledgement (2), R-data (3).
        kind: u8,
        /// Logical unit.
        lun: u64,
        /// Target transfer tag or SNACK tag.
        tag: u32,
        /// First number.
        begin: u32,
        /// How many; 0 is all from there.
        run: u32,
    },
    /// Any other code.
    Unknown,
}

/// A parsed header of a PDU from an initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// Operation code.
    pub opcode: u8,
    /// The I bit: outside the order of commands.
    pub immediate: bool,
    /// Bytes of additional header segments.
    pub ahs_bytes: usize,
    /// Bytes of the data segment, without padding.
    pub data_bytes: usize,
    /// Initiator task tag.
    pub itt: u32,
    /// Command number; meaningless in Data-Out and SNACK, which carry none.
    pub cmd_sn: u32,
    /// All statuses before it have arrived.
    pub exp_stat_sn: u32,
    /// The rest.
    pub request: Request,
}

fn be16(bytes: &[u8; BHS_BYTES], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be32(bytes: &[u8; BHS_BYTES], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn be64(bytes: &[u8; BHS_BYTES], at: usize) -> u64 {
    u64::from(be32(bytes, at)) << 32 | u64::from(be32(bytes, at + 4))
}

impl RequestHeader {
    /// Takes the fields from their places.
    #[must_use]
    pub fn parse(b: &[u8; BHS_BYTES]) -> RequestHeader {
        let opcode = b[0] & 0x3f;
        let lun = be64(b, 8);
        let first = b[1] & 0x80 != 0;
        let second = b[1] & 0x40 != 0;
        let request = match opcode {
            opcode::NOP_OUT => Request::NopOut { lun, ttt: be32(b, 20) },
            opcode::SCSI_COMMAND => Request::ScsiCommand {
                last: first,
                read: second,
                write: b[1] & 0x20 != 0,
                attribute: b[1] & 0x07,
                lun,
                expected_bytes: be32(b, 20),
                cdb: std::array::from_fn(|i| b[32 + i]),
            },
            opcode::TASK_MANAGEMENT => Request::TaskManagement {
                function: b[1] & 0x7f,
                lun,
                referenced: be32(b, 20),
                referenced_cmd_sn: be32(b, 32),
                exp_data_sn: be32(b, 36),
            },
            opcode::LOGIN => Request::Login {
                transit: first,
                more: second,
                stage: b[1] >> 2 & 0x03,
                next: b[1] & 0x03,
                version_max: b[2],
                version_min: b[3],
                isid: std::array::from_fn(|i| b[8 + i]),
                tsih: be16(b, 14),
                cid: be16(b, 20),
            },
            opcode::TEXT => Request::Text { last: first, more: second, lun, ttt: be32(b, 20) },
            opcode::DATA_OUT => Request::DataOut {
                last: first,
                lun,
                ttt: be32(b, 20),
                data_sn: be32(b, 36),
                offset: be32(b, 40),
            },
            opcode::LOGOUT => Request::Logout { reason: b[1] & 0x7f, cid: be16(b, 20) },
            opcode::SNACK => Request::Snack {
                kind: b[1] & 0x0f,
                lun,
                tag: be32(b, 20),
                begin: be32(b, 40),
                run: be32(b, 44),
            },
            _ => Request::Unknown,
        };
        RequestHeader {
            opcode,
            immediate: b[0] & 0x40 != 0,
            ahs_bytes: usize::from(b[4]) * 4,
            data_bytes: usize::from(b[5]) << 16 | usize::from(b[6]) << 8 | usize::from(b[7]),
            itt: be32(b, 16),
            cmd_sn: be32(b, 24),
            exp_stat_sn: be32(b, 28),
            request,
        }
    }
}

/// How what was moved differs from what the initiator expected (§11.4.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residual {
    /// Not at all.
    #[default]
    None,
    /// This many bytes were not moved that were expected.
    Underflow(u32),
    /// This many more would have been moved.
    Overflow(u32),
}

impl Residual {
    fn flags(self) -> u8 {
        match self {
            Residual::None => 0,
            Residual::Underflow(_) => 0x02,
            Residual::Overflow(_) => 0x04,
        }
    }

    fn count(self) -> u32 {
        match self {
            Residual::None => 0,
            Residual::Underflow(count) | Residual::Overflow(count) => count,
        }
    }
}

/// What a target sends: the fields of its header but for those in [`ResponseHeader`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// §11.19.
    NopIn {
        /// Logical unit.
        lun: u64,
        /// Of a ping of the target's own, or reserved.
        ttt: u32,
    },
    /// §11.4.
    Scsi {
        /// 0: completed at target, 1: target failure.
        response: u8,
        /// SCSI status.
        status: u8,
        /// After an R-data SNACK, else 0.
        snack_tag: u32,
        /// Data-In and R2T PDUs sent for the command.
        exp_data_sn: u32,
        /// Bytes not moved.
        residual: Residual,
    },
    /// §11.6.
    TaskManagement {
        /// Outcome.
        response: FunctionResponse,
    },
    /// §11.13.
    Login {
        /// Goes on to `next`.
        transit: bool,
        /// The text goes on in the next response.
        more: bool,
        /// Current stage.
        stage: u8,
        /// Stage to go to.
        next: u8,
        /// Newest version the target speaks.
        version_max: u8,
        /// The version spoken.
        version_active: u8,
        /// As in the request.
        isid: [u8; 6],
        /// Of the session once it exists, else as in the request.
        tsih: u16,
        /// Class and detail of the outcome.
        status: u16,
    },
    /// §11.11.
    Text {
        /// Last of the exchange.
        last: bool,
        /// The text goes on in the next response.
        more: bool,
        /// Logical unit.
        lun: u64,
        /// To continue the exchange with, or reserved.
        ttt: u32,
    },
    /// §11.7.
    DataIn {
        /// Last of its sequence.
        last: bool,
        /// An acknowledgement is asked for.
        acknowledge: bool,
        /// The command's status, if it ends with this PDU.
        status: Option<u8>,
        /// Logical unit, where `ttt` is not reserved.
        lun: u64,
        /// For the acknowledgement, or reserved.
        ttt: u32,
        /// Number within the command.
        data_sn: u32,
        /// Place in the command's input, in bytes.
        offset: u32,
        /// With a status.
        residual: Residual,
    },
    /// §11.15.
    Logout {
        /// 0: closed, 1: no such connection, 2: recovery not supported, 3: cleanup failed.
        response: u8,
        /// Seconds to wait before a new attempt.
        time2wait: u16,
        /// Seconds for which tasks are kept after that.
        time2retain: u16,
    },
    /// §11.8.
    R2t {
        /// Logical unit.
        lun: u64,
        /// Names the sequence that it asks for.
        ttt: u32,
        /// Number within the command.
        r2t_sn: u32,
        /// First byte wanted.
        offset: u32,
        /// Bytes wanted.
        bytes: u32,
    },
    /// §11.9.
    Async {
        /// Logical unit.
        lun: u64,
        /// Event code.
        event: u8,
        /// Vendor code.
        vendor: u8,
        /// Its parameters.
        parameters: [u16; 3],
    },
    /// §11.17.
    Reject {
        /// Why.
        reason: RejectReason,
        /// Of a rejected data acknowledgement, else 0.
        data_sn: u32,
    },
}

/// What every header of a target carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHeader {
    /// Initiator task tag.
    pub itt: u32,
    /// Number of this status, or of the next one where the PDU carries none.
    pub stat_sn: u32,
    /// The next command number the target expects.
    pub exp_cmd_sn: u32,
    /// The last command number the target would take.
    pub max_cmd_sn: u32,
    /// Bytes of the data segment, without padding; at most [`MAX_DATA_SEGMENT_BYTES`].
    pub data_bytes: usize,
    /// The rest.
    pub response: Response,
}

impl ResponseHeader {
    /// The header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; BHS_BYTES] {
        debug_assert!(self.data_bytes <= MAX_DATA_SEGMENT_BYTES, "cut to what was negotiated");
        let mut b = [0; BHS_BYTES];
        let put16 = |b: &mut [u8; BHS_BYTES], at: usize, value: u16| {
            b[at..at + 2].copy_from_slice(&value.to_be_bytes());
        };
        let put32 = |b: &mut [u8; BHS_BYTES], at: usize, value: u32| {
            b[at..at + 4].copy_from_slice(&value.to_be_bytes());
        };
        b[1] = 0x80;
        let length = (self.data_bytes as u32).to_be_bytes();
        b[5..8].copy_from_slice(&length[1..]);
        put32(&mut b, 16, self.itt);
        put32(&mut b, 24, self.stat_sn);
        put32(&mut b, 28, self.exp_cmd_sn);
        put32(&mut b, 32, self.max_cmd_sn);
        match self.response {
            Response::NopIn { lun, ttt } => {
                b[0] = opcode::NOP_IN;
                b[8..16].copy_from_slice(&lun.to_be_bytes());
                put32(&mut b, 20, ttt);
            }
            Response::Scsi { response, status, snack_tag, exp_data_sn, residual } => {
                b[0] = opcode::SCSI_RESPONSE;
                b[1] |= residual.flags();
                b[2] = response;
                b[3] = status;
                put32(&mut b, 20, snack_tag);
                put32(&mut b, 36, exp_data_sn);
                put32(&mut b, 44, residual.count());
            }
            Response::TaskManagement { response } => {
                b[0] = opcode::TASK_MANAGEMENT_RESPONSE;
                b[2] = response as u8;
            }
            Response::Login {
                transit,
                more,
                stage,
                next,
                version_max,
                version_active,
                isid,
                tsih,
                status,
            } => {
                b[0] = opcode::LOGIN_RESPONSE;
                b[1] = u8::from(transit) << 7 | u8::from(more) << 6 | stage << 2 | next;
                b[2] = version_max;
                b[3] = version_active;
                b[8..14].copy_from_slice(&isid);
                put16(&mut b, 14, tsih);
                put16(&mut b, 36, status);
            }
            Response::Text { last, more, lun, ttt } => {
                b[0] = opcode::TEXT_RESPONSE;
                b[1] = u8::from(last) << 7 | u8::from(more) << 6;
                b[8..16].copy_from_slice(&lun.to_be_bytes());
                put32(&mut b, 20, ttt);
            }
            Response::DataIn { last, acknowledge, status, lun, ttt, data_sn, offset, residual } => {
                b[0] = opcode::DATA_IN;
                b[1] = u8::from(last) << 7 | u8::from(acknowledge) << 6;
                b[8..16].copy_from_slice(&lun.to_be_bytes());
                put32(&mut b, 20, ttt);
                match status {
                    Some(status) => {
                        b[1] |= 0x01 | residual.flags();
                        b[3] = status;
                        put32(&mut b, 44, residual.count());
                    }
                    // §11.7.4: reserved without a status.
                    None => put32(&mut b, 24, 0),
                }
                put32(&mut b, 36, data_sn);
                put32(&mut b, 40, offset);
            }
            Response::Logout { response, time2wait, time2retain } => {
                b[0] = opcode::LOGOUT_RESPONSE;
                b[2] = response;
                put16(&mut b, 40, time2wait);
                put16(&mut b, 42, time2retain);
            }
            Response::R2t { lun, ttt, r2t_sn, offset, bytes } => {
                b[0] = opcode::R2T;
                b[8..16].copy_from_slice(&lun.to_be_bytes());
                put32(&mut b, 20, ttt);
                put32(&mut b, 36, r2t_sn);
                put32(&mut b, 40, offset);
                put32(&mut b, 44, bytes);
            }
            Response::Async { lun, event, vendor, parameters } => {
                b[0] = opcode::ASYNC;
                b[8..16].copy_from_slice(&lun.to_be_bytes());
                b[36] = event;
                b[37] = vendor;
                for (at, parameter) in [38, 40, 42].into_iter().zip(parameters) {
                    put16(&mut b, at, parameter);
                }
            }
            Response::Reject { reason, data_sn } => {
                b[0] = opcode::REJECT;
                b[2] = reason as u8;
                put32(&mut b, 36, data_sn);
            }
        }
        b
    }
}
