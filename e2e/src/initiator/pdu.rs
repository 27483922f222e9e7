//! PDUs (RFC 7143 §11): 48 bytes with names for their fields, and what follows them.

use std::fmt;

/// The tag that names nothing.
pub const NO_TAG: u32 = 0xffff_ffff;

/// Opcodes (§11.2.1.2).
pub mod op {
    /// NOP-Out.
    pub const NOP_OUT: u8 = 0x00;
    /// SCSI Command.
    pub const COMMAND: u8 = 0x01;
    /// Task Management Function Request.
    pub const FUNCTION: u8 = 0x02;
    /// Login Request.
    pub const LOGIN: u8 = 0x03;
    /// Text Request.
    pub const TEXT: u8 = 0x04;
    /// SCSI Data-Out.
    pub const DATA_OUT: u8 = 0x05;
    /// Logout Request.
    pub const LOGOUT: u8 = 0x06;
    /// SNACK Request.
    pub const SNACK: u8 = 0x10;
    /// NOP-In.
    pub const NOP_IN: u8 = 0x20;
    /// SCSI Response.
    pub const RESPONSE: u8 = 0x21;
    /// Task Management Function Response.
    pub const FUNCTION_RESPONSE: u8 = 0x22;
    /// Login Response.
    pub const LOGIN_RESPONSE: u8 = 0x23;
    /// Text Response.
    pub const TEXT_RESPONSE: u8 = 0x24;
    /// SCSI Data-In.
    pub const DATA_IN: u8 = 0x25;
    /// Logout Response.
    pub const LOGOUT_RESPONSE: u8 = 0x26;
    /// Ready To Transfer.
    pub const R2T: u8 = 0x31;
    /// Asynchronous Message.
    pub const ASYNC: u8 = 0x32;
    /// Reject.
    pub const REJECT: u8 = 0x3f;
}

/// Functions of task management requests (§11.5.1, RFC 7144 §5).
pub mod function {
    /// ABORT TASK.
    pub const ABORT_TASK: u8 = 1;
    /// ABORT TASK SET.
    pub const ABORT_TASK_SET: u8 = 2;
    /// CLEAR TASK SET.
    pub const CLEAR_TASK_SET: u8 = 4;
    /// LOGICAL UNIT RESET.
    pub const LUN_RESET: u8 = 5;
    /// TARGET WARM RESET.
    pub const WARM_RESET: u8 = 6;
    /// TARGET COLD RESET.
    pub const COLD_RESET: u8 = 7;
    /// TASK REASSIGN.
    pub const TASK_REASSIGN: u8 = 8;
}

/// Kinds of SNACK (§11.16.1).
pub mod snack {
    /// Data-In or R2T.
    pub const DATA_R2T: u8 = 0;
    /// Status.
    pub const STATUS: u8 = 1;
    /// Acknowledgment of Data-In.
    pub const DATA_ACK: u8 = 2;
    /// Data-In anew, cut as the segment length is now.
    pub const R_DATA: u8 = 3;
}

/// Reasons of a Reject (§11.17.1).
pub mod reason {
    /// Data (payload) digest error.
    pub const DATA_DIGEST: u8 = 2;
    /// SNACK reject.
    pub const SNACK: u8 = 3;
    /// Protocol error.
    pub const PROTOCOL: u8 = 4;
    /// Command not supported.
    pub const NOT_SUPPORTED: u8 = 5;
    /// Immediate command reject: too many immediate commands.
    pub const TOO_MANY_IMMEDIATE: u8 = 6;
    /// Task in progress.
    pub const IN_PROGRESS: u8 = 7;
    /// Invalid data ack.
    pub const DATA_ACK: u8 = 8;
    /// Invalid PDU field.
    pub const INVALID_FIELD: u8 = 9;
}

/// A PDU. Encoding makes the lengths in its header right, unless a test has set them.
#[derive(Clone, PartialEq, Eq)]
pub struct Pdu {
    /// The basic header segment, as it travels but for the lengths.
    pub header: [u8; 48],
    /// Additional header segments, with their padding.
    pub ahs: Vec<u8>,
    /// The data segment, without its padding.
    pub data: Vec<u8>,
    /// A false length of `ahs` for the header, in words.
    pub false_ahs_words: Option<u8>,
    /// A false length of `data` for the header.
    pub false_data_bytes: Option<u32>,
}

impl Pdu {
    /// One of this opcode, with the flags byte.
    #[must_use]
    pub fn new(opcode: u8, flags: u8) -> Pdu {
        let mut header = [0; 48];
        header[0] = opcode;
        header[1] = flags;
        Pdu {
            header,
            ahs: Vec::new(),
            data: Vec::new(),
            false_ahs_words: None,
            false_data_bytes: None,
        }
    }

    /// With 16 bits at a place of the header.
    #[must_use]
    pub fn with16(mut self, at: usize, value: u16) -> Pdu {
        self.header[at..at + 2].copy_from_slice(&value.to_be_bytes());
        self
    }

    /// With 32 bits at a place of the header.
    #[must_use]
    pub fn with32(mut self, at: usize, value: u32) -> Pdu {
        self.set32(at, value);
        self
    }

    /// With a byte of the header.
    #[must_use]
    pub fn with8(mut self, at: usize, value: u8) -> Pdu {
        self.header[at] = value;
        self
    }

    /// With a data segment.
    #[must_use]
    pub fn with_data(mut self, data: &[u8]) -> Pdu {
        self.data = data.to_vec();
        self
    }

    /// As an immediate request (the I bit).
    #[must_use]
    pub fn immediate(mut self) -> Pdu {
        self.header[0] |= 0x40;
        self
    }

    /// With 32 bits at a place of the header.
    pub fn set32(&mut self, at: usize, value: u32) {
        self.header[at..at + 4].copy_from_slice(&value.to_be_bytes());
    }

    /// 16 bits of the header.
    #[must_use]
    pub fn get16(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.header[at], self.header[at + 1]])
    }

    /// 32 bits of the header.
    #[must_use]
    pub fn get32(&self, at: usize) -> u32 {
        u32::from(self.get16(at)) << 16 | u32::from(self.get16(at + 2))
    }

    /// Opcode, without the I bit.
    #[must_use]
    pub fn opcode(&self) -> u8 {
        self.header[0] & 0x3f
    }

    /// Whether it has the I bit.
    #[must_use]
    pub fn is_immediate(&self) -> bool {
        self.header[0] & 0x40 != 0
    }

    /// The byte after the opcode.
    #[must_use]
    pub fn flags(&self) -> u8 {
        self.header[1]
    }

    /// Initiator Task Tag.
    #[must_use]
    pub fn itt(&self) -> u32 {
        self.get32(16)
    }

    /// Target Transfer Tag, Referenced Task Tag or SNACK Tag, whichever it has.
    #[must_use]
    pub fn ttt(&self) -> u32 {
        self.get32(20)
    }

    /// CmdSN of a request.
    #[must_use]
    pub fn cmd_sn(&self) -> u32 {
        self.get32(24)
    }

    /// StatSN of a response.
    #[must_use]
    pub fn stat_sn(&self) -> u32 {
        self.get32(24)
    }

    /// ExpCmdSN of a response.
    #[must_use]
    pub fn exp_cmd_sn(&self) -> u32 {
        self.get32(28)
    }

    /// MaxCmdSN of a response.
    #[must_use]
    pub fn max_cmd_sn(&self) -> u32 {
        self.get32(32)
    }

    /// DataSN, R2TSN or ExpDataSN, whichever it has.
    #[must_use]
    pub fn data_sn(&self) -> u32 {
        self.get32(36)
    }

    /// Buffer Offset.
    #[must_use]
    pub fn offset(&self) -> u32 {
        self.get32(40)
    }

    /// Residual count of a response, or what an R2T desires.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.get32(44)
    }

    /// Whether a response bears a number of its own, which counts (§4.2.2.2).
    #[must_use]
    pub fn has_status(&self) -> bool {
        match self.opcode() {
            op::R2T => false,
            op::DATA_IN => self.flags() & 1 != 0,
            op::NOP_IN => self.itt() != NO_TAG,
            _ => true,
        }
    }

    /// As it travels. The digests are of what is there, whatever the header says of lengths.
    #[must_use]
    pub fn encode(&self, header_digest: bool, data_digest: bool) -> Vec<u8> {
        let mut bytes = self.header.to_vec();
        bytes[4] = self.false_ahs_words.unwrap_or((self.ahs.len() / 4) as u8);
        let length = self.false_data_bytes.unwrap_or(self.data.len() as u32).to_be_bytes();
        bytes[5..8].copy_from_slice(&length[1..]);
        bytes.extend(&self.ahs);
        if header_digest {
            bytes.extend(super::crc::digest(&bytes));
        }
        if !self.data.is_empty() {
            let start = bytes.len();
            bytes.extend(&self.data);
            bytes.resize(start + self.data.len().next_multiple_of(4), 0);
            if data_digest {
                bytes.extend(super::crc::digest(&bytes[start..]));
            }
        }
        bytes
    }
}

impl fmt::Debug for Pdu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PDU {:02x} [", self.header[0])?;
        for (at, byte) in self.header.iter().enumerate().skip(1) {
            let gap = if at % 4 == 0 { " " } else { "" };
            write!(f, "{gap}{byte:02x}")?;
        }
        write!(f, "] + {} bytes", self.data.len())
    }
}

/// SCSI Command (§11.3): flags are F (80h), R (40h), W (20h) and the task attribute.
#[must_use]
pub fn command(flags: u8, itt: u32, expected: u32, cdb: &[u8]) -> Pdu {
    let mut pdu = Pdu::new(op::COMMAND, flags).with32(16, itt).with32(20, expected);
    pdu.header[32..32 + cdb.len().min(16)].copy_from_slice(&cdb[..cdb.len().min(16)]);
    pdu
}

/// SCSI Data-Out (§11.7).
#[must_use]
pub fn data_out(last: bool, itt: u32, ttt: u32, data_sn: u32, offset: u32, data: &[u8]) -> Pdu {
    Pdu::new(op::DATA_OUT, if last { 0x80 } else { 0 })
        .with32(16, itt)
        .with32(20, ttt)
        .with32(36, data_sn)
        .with32(40, offset)
        .with_data(data)
}

/// Task Management Function Request (§11.5).
#[must_use]
pub fn manage(function: u8, itt: u32, referenced: u32) -> Pdu {
    Pdu::new(op::FUNCTION, 0x80 | function).with32(16, itt).with32(20, referenced)
}

/// SNACK Request (§11.16).
#[must_use]
pub fn snack(kind: u8, itt: u32, tag: u32, begin: u32, run: u32) -> Pdu {
    Pdu::new(op::SNACK, 0x80 | kind)
        .with32(16, itt)
        .with32(20, tag)
        .with32(40, begin)
        .with32(44, run)
}

/// NOP-Out (§11.18).
#[must_use]
pub fn nop_out(itt: u32, ttt: u32) -> Pdu {
    Pdu::new(op::NOP_OUT, 0x80).with32(16, itt).with32(20, ttt)
}

/// Text Request (§11.10).
#[must_use]
pub fn text(last: bool, itt: u32, ttt: u32, text: &[u8]) -> Pdu {
    let flags = if last { 0x80 } else { 0x40 };
    Pdu::new(op::TEXT, flags).with32(16, itt).with32(20, ttt).with_data(text)
}

/// Logout Request (§11.14): reason 0 closes the session, 1 the connection, 2 removes it for
/// recovery.
#[must_use]
pub fn logout(reason: u8, itt: u32, cid: u16) -> Pdu {
    Pdu::new(op::LOGOUT, 0x80 | reason).with32(16, itt).with16(20, cid)
}
