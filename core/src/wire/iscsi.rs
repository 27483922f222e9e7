//! The bytes of the iSCSI protocol: the basic header segment of every PDU, parsed and encoded.
//!
//! Source: RFC 7143 §11. Parsing allocates nothing and never fails. It only extracts fields. The
//! session judges reserved bits, the order of numbers, and lengths. Nothing here knows sessions.

/// Bytes of the basic header segment (§11.2.1).
pub const BHS_BYTES: usize = 48;
/// Bytes of a CRC32C digest (§13.1).
pub const DIGEST_BYTES: usize = 4;
/// The reserved task tag, which names no task (§11.2.1.8).
pub const RESERVED_TAG: u32 = 0xffff_ffff;
/// Most bytes of a data segment: the largest value of its 24-bit length field.
pub const MAX_DATA_SEGMENT_BYTES: usize = 0xff_ffff;
/// Well-known TCP port (§17.1).
pub const PORT: u16 = 3260;

/// Operation codes (§11.2.1.2).
pub mod opcode {
    /// Initiator's ping, or its answer to one.
    pub const NOP_OUT: u8 = 0x00;
    /// SCSI command.
    pub const SCSI_COMMAND: u8 = 0x01;
    /// Task management function request.
    pub const TASK_MANAGEMENT: u8 = 0x02;
    /// Login request.
    pub const LOGIN: u8 = 0x03;
    /// Text request.
    pub const TEXT: u8 = 0x04;
    /// Output of a command.
    pub const DATA_OUT: u8 = 0x05;
    /// Logout request.
    pub const LOGOUT: u8 = 0x06;
    /// Selective negative acknowledgment.
    pub const SNACK: u8 = 0x10;
    /// Target's ping, or its answer to one.
    pub const NOP_IN: u8 = 0x20;
    /// SCSI response.
    pub const SCSI_RESPONSE: u8 = 0x21;
    /// Task management function response.
    pub const TASK_MANAGEMENT_RESPONSE: u8 = 0x22;
    /// Login response.
    pub const LOGIN_RESPONSE: u8 = 0x23;
    /// Text response.
    pub const TEXT_RESPONSE: u8 = 0x24;
    /// Input of a command.
    pub const DATA_IN: u8 = 0x25;
    /// Logout response.
    pub const LOGOUT_RESPONSE: u8 = 0x26;
    /// Ready to transfer.
    pub const R2T: u8 = 0x31;
    /// Asynchronous message.
    pub const ASYNC: u8 = 0x32;
    /// A PDU was rejected.
    pub const REJECT: u8 = 0x3f;
}

/// Reasons of a Reject (§11.17.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum RejectReason {
    /// The data digest did not match. The PDU may be sent again.
    DataDigestError = 0x02,
    /// A SNACK asked for PDUs that are gone.
    SnackReject = 0x03,
    /// The PDU violates the protocol.
    ProtocolError = 0x04,
    /// The command is not supported.
    CommandNotSupported = 0x05,
    /// Too many immediate commands.
    TooManyImmediateCommands = 0x06,
    /// The task is in progress.
    TaskInProgress = 0x07,
    /// A SNACK acknowledged data that was not sent.
    InvalidDataAck = 0x08,
    /// A field has an invalid value.
    InvalidPduField = 0x09,
    /// The operation takes too long, or needs too many resources.
    LongOperationReject = 0x0a,
    /// Deprecated by §11.17.1. Nobody sends it.
    NegotiationReset = 0x0b,
    /// The target waits for a logout.
    WaitingForLogout = 0x0c,
}

/// Task management functions (§11.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Function {
    /// Abort one task.
    AbortTask = 1,
    /// Abort the tasks of this nexus.
    AbortTaskSet = 2,
    /// Clear an auto contingent allegiance.
    ClearAca = 3,
    /// Abort the tasks of all nexuses.
    ClearTaskSet = 4,
    /// Reset the logical unit.
    LogicalUnitReset = 5,
    /// Reset all logical units of the target.
    TargetWarmReset = 6,
    /// Reset all logical units, and end all sessions.
    TargetColdReset = 7,
    /// Move a task's allegiance to this connection.
    TaskReassign = 8,
    /// Ask whether a task exists (RFC 7144).
    QueryTask = 9,
    /// Ask whether the nexus has tasks (RFC 7144).
    QueryTaskSet = 10,
    /// Reset the nexus (RFC 7144).
    ItNexusReset = 11,
    /// Ask whether a unit attention waits (RFC 7144).
    QueryAsyncEvent = 12,
}

/// Outcomes of a task management function (§11.6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FunctionResponse {
    /// The function is done.
    Complete = 0,
    /// No such task.
    NoTask = 1,
    /// No such logical unit.
    NoLun = 2,
    /// The task is still allegiant to another connection.
    StillAllegiant = 3,
    /// Tasks cannot be reassigned.
    ReassignNotSupported = 4,
    /// Not supported.
    NotSupported = 5,
    /// Not authorized.
    AuthorizationFailed = 6,
    /// The function is done, and the answer is yes (RFC 7144).
    Succeeded = 7,
    /// The function was rejected.
    Rejected = 255,
}

/// The fields of an initiator's PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// NOP-Out (§11.18).
    NopOut {
        /// Logical unit number.
        lun: u64,
        /// Tag of the target's ping that this answers, or reserved.
        ttt: u32,
    },
    /// SCSI Command (§11.3).
    ScsiCommand {
        /// No unsolicited data follows.
        last: bool,
        /// The command has input.
        read: bool,
        /// The command has output.
        write: bool,
        /// Task attribute, 0 to 7.
        attribute: u8,
        /// Logical unit number.
        lun: u64,
        /// Bytes that the initiator expects to move.
        expected_bytes: u32,
        /// The first 16 bytes of the CDB.
        cdb: [u8; 16],
    },
    /// Task Management Function Request (§11.5).
    TaskManagement {
        /// Code of a [`Function`].
        function: u8,
        /// Logical unit number.
        lun: u64,
        /// Tag of the task that the function is about.
        referenced: u32,
        /// CmdSN of that task.
        referenced_cmd_sn: u32,
        /// Of a reassigned task: the next DataSN or R2TSN that the initiator expects.
        exp_data_sn: u32,
    },
    /// Login Request (§11.12).
    Login {
        /// The initiator is ready to go on to `next`.
        transit: bool,
        /// The text continues in the next request.
        more: bool,
        /// Current stage.
        stage: u8,
        /// Stage to go to.
        next: u8,
        /// Newest version that the initiator speaks.
        version_max: u8,
        /// Oldest version that the initiator speaks.
        version_min: u8,
        /// ISID: the initiator's part of the session identifier.
        isid: [u8; 6],
        /// TSIH: the target's part, or 0.
        tsih: u16,
        /// CID: the connection within the session.
        cid: u16,
    },
    /// Text Request (§11.10).
    Text {
        /// The initiator has no more text after this request.
        last: bool,
        /// The text continues in the next request.
        more: bool,
        /// Logical unit number.
        lun: u64,
        /// Tag of the exchange, or reserved.
        ttt: u32,
    },
    /// SCSI Data-Out (§11.7).
    DataOut {
        /// The PDU ends its sequence.
        last: bool,
        /// Logical unit number.
        lun: u64,
        /// Tag of the R2T; reserved if the data is unsolicited.
        ttt: u32,
        /// Number within its sequence.
        data_sn: u32,
        /// Offset in the output, in bytes.
        offset: u32,
    },
    /// Logout Request (§11.14).
    Logout {
        /// Close session (0), close connection (1), remove connection for recovery (2).
        reason: u8,
        /// CID of the connection.
        cid: u16,
    },
    /// SNACK Request (§11.16).
    Snack {
        /// Data or R2T (0), status (1), data acknowledgment (2), R-data (3).
        kind: u8,
        /// Logical unit number.
        lun: u64,
        /// Target transfer tag or SNACK tag.
        tag: u32,
        /// First number of the run.
        begin: u32,
        /// Length of the run; 0 stands for all from there.
        run: u32,
    },
    /// Any other operation code.
    Unknown,
}

/// A parsed header of a PDU from an initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// Operation code.
    pub opcode: u8,
    /// The I bit: immediate delivery.
    pub immediate: bool,
    /// Bytes of the additional header segments.
    pub ahs_bytes: usize,
    /// Bytes of the data segment, without padding.
    pub data_bytes: usize,
    /// Initiator task tag.
    pub itt: u32,
    /// CmdSN. Data-Out and SNACK have none.
    pub cmd_sn: u32,
    /// ExpStatSN: the initiator has received all statuses before it.
    pub exp_stat_sn: u32,
    /// The fields of the PDU.
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
    /// Extracts the fields of a header.
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

/// The difference between the bytes moved and the bytes expected (§11.4.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residual {
    /// No difference.
    #[default]
    None,
    /// This many expected bytes were not moved.
    Underflow(u32),
    /// This many bytes more would have been moved.
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

/// The fields of a target's PDU, except those in [`ResponseHeader`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// NOP-In (§11.19).
    NopIn {
        /// Logical unit number.
        lun: u64,
        /// Tag of the target's own ping, or reserved.
        ttt: u32,
    },
    /// SCSI Response (§11.4).
    Scsi {
        /// 0: completed at the target, 1: target failure.
        response: u8,
        /// SCSI status.
        status: u8,
        /// Tag of an R-data SNACK, else 0.
        snack_tag: u32,
        /// Number of Data-In and R2T PDUs that were sent for the command.
        exp_data_sn: u32,
        /// Residual count.
        residual: Residual,
    },
    /// Task Management Function Response (§11.6).
    TaskManagement {
        /// Outcome.
        response: FunctionResponse,
    },
    /// Login Response (§11.13).
    Login {
        /// The target goes on to `next`.
        transit: bool,
        /// The text continues in the next response.
        more: bool,
        /// Current stage.
        stage: u8,
        /// Stage to go to.
        next: u8,
        /// Newest version that the target speaks.
        version_max: u8,
        /// The active version.
        version_active: u8,
        /// ISID, as in the request.
        isid: [u8; 6],
        /// TSIH of the session if it exists, else as in the request.
        tsih: u16,
        /// Status class and status detail.
        status: u16,
    },
    /// Text Response (§11.11).
    Text {
        /// The response ends the exchange.
        last: bool,
        /// The text continues in the next response.
        more: bool,
        /// Logical unit number.
        lun: u64,
        /// Tag to continue the exchange with, or reserved.
        ttt: u32,
    },
    /// SCSI Data-In (§11.7).
    DataIn {
        /// The PDU ends its sequence.
        last: bool,
        /// The initiator has to acknowledge the data.
        acknowledge: bool,
        /// The status, if the command ends with this PDU.
        status: Option<u8>,
        /// Logical unit number, unless `ttt` is reserved.
        lun: u64,
        /// Tag for the acknowledgment, or reserved.
        ttt: u32,
        /// Number within the command.
        data_sn: u32,
        /// Offset in the input, in bytes.
        offset: u32,
        /// Residual count; valid with a status.
        residual: Residual,
    },
    /// Logout Response (§11.15).
    Logout {
        /// 0: closed, 1: no such connection, 2: recovery not supported, 3: cleanup failed.
        response: u8,
        /// Time2Wait: seconds to wait before a new login.
        time2wait: u16,
        /// Time2Retain: seconds after that for which tasks are kept.
        time2retain: u16,
    },
    /// Ready To Transfer (§11.8).
    R2t {
        /// Logical unit number.
        lun: u64,
        /// Tag of the sequence that it asks for.
        ttt: u32,
        /// Number within the command.
        r2t_sn: u32,
        /// Offset of the first byte.
        offset: u32,
        /// Number of bytes.
        bytes: u32,
    },
    /// Asynchronous Message (§11.9).
    Async {
        /// Logical unit number.
        lun: u64,
        /// Event code.
        event: u8,
        /// Vendor code.
        vendor: u8,
        /// Parameter1 to Parameter3.
        parameters: [u16; 3],
    },
    /// Reject (§11.17).
    Reject {
        /// The reason.
        reason: RejectReason,
        /// Number of the rejected data acknowledgment, else 0.
        data_sn: u32,
    },
}

/// The header of a target's PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHeader {
    /// Initiator task tag.
    pub itt: u32,
    /// StatSN of this status, or of the next one if the PDU has none.
    pub stat_sn: u32,
    /// ExpCmdSN: the next command number that the target expects.
    pub exp_cmd_sn: u32,
    /// MaxCmdSN: the last command number that the target takes.
    pub max_cmd_sn: u32,
    /// Bytes of the data segment, without padding; at most [`MAX_DATA_SEGMENT_BYTES`].
    pub data_bytes: usize,
    /// The fields of the PDU.
    pub response: Response,
}

impl ResponseHeader {
    /// Encodes the header.
    #[must_use]
    pub fn encode(&self) -> [u8; BHS_BYTES] {
        debug_assert!(self.data_bytes <= MAX_DATA_SEGMENT_BYTES, "cut to the negotiated length");
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
                    // §11.7.4: StatSN is reserved without a status.
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
