//! The commands this device knows: one table, from which commands are recognised and REPORT
//! SUPPORTED OPERATION CODES is answered.
//!
//! Sources: SPC-5 §6 and SBC-4 §5 for the commands, SPC-2 §7.21 for RESERVE and RELEASE.

use super::sense::Sense;
use super::sense::code;
use super::{Command, control, copy, data, inquiry, management, mode, persistent, supported};
use super::{Context, Device, Outcome, Plan};

/// How a command is carried out.
#[derive(Clone, Copy, Debug)]
pub(super) enum Run {
    /// At once, without output.
    Control(fn(&mut Device, &Context) -> Outcome),
    /// With a parameter list, whose length the first function tells.
    List(
        fn(&Device, &Context) -> Result<u64, Outcome>,
        fn(&mut Device, &Context, &[u8]) -> Outcome,
    ),
    /// By requests to the volume.
    Medium(fn(&Device, &Context) -> Result<Plan, Sense>),
}

/// A command.
#[derive(Debug)]
pub(super) struct Entry {
    pub opcode: u8,
    /// Service action, where there are several.
    pub action: Option<u8>,
    /// Which bits of the command are looked at (SPC-5 §6.37.3); the bytes are as many as the
    /// command has.
    pub usage: &'static [u8],
    pub run: Run,
}

const fn entry(opcode: u8, usage: &'static [u8], run: Run) -> Entry {
    Entry { opcode, action: None, usage, run }
}

const fn action(opcode: u8, action: u8, usage: &'static [u8], run: Run) -> Entry {
    Entry { opcode, action: Some(action), usage, run }
}

use Run::{Control, List, Medium};

/// NACA, the one bit of CONTROL that is looked at.
const C: u8 = 0x04;
/// Whole bytes.
const F: u8 = 0xff;

/// All commands, by operation code and service action.
pub(super) static COMMANDS: &[Entry] = &[
    // TEST UNIT READY
    entry(0x00, &[0x00, 0, 0, 0, 0, C], Control(control::test_unit_ready)),
    // REQUEST SENSE
    entry(0x03, &[0x03, 0x01, 0, 0, F, C], Control(control::request_sense)),
    // READ(6)
    entry(0x08, &[0x08, 0x1f, F, F, F, C], Medium(data::read)),
    // WRITE(6)
    entry(0x0a, &[0x0a, 0x1f, F, F, F, C], Medium(data::write)),
    // INQUIRY
    entry(0x12, &[0x12, 0x01, F, F, F, C], Control(inquiry::inquiry)),
    // MODE SELECT(6)
    entry(0x15, &[0x15, 0x11, 0, 0, F, C], List(mode::list_length, mode::select)),
    // RESERVE(6)
    entry(0x16, &[0x16, 0x1f, 0, F, F, C], Control(persistent::reserve)),
    // RELEASE(6)
    entry(0x17, &[0x17, 0x1f, 0, F, F, C], Control(persistent::release)),
    // MODE SENSE(6)
    entry(0x1a, &[0x1a, 0x08, F, F, F, C], Control(mode::sense)),
    // START STOP UNIT
    entry(0x1b, &[0x1b, 0x01, 0, 0x0f, 0xf7, C], Medium(data::start_stop)),
    // RECEIVE DIAGNOSTIC RESULTS
    entry(0x1c, &[0x1c, 0x01, F, F, F, C], Control(control::receive_diagnostic)),
    // SEND DIAGNOSTIC
    entry(
        0x1d,
        &[0x1d, 0xf7, 0, F, F, C],
        List(control::diagnostic_length, control::send_diagnostic),
    ),
    // PREVENT ALLOW MEDIUM REMOVAL
    entry(0x1e, &[0x1e, 0, 0, 0, 0x03, C], Control(control::prevent_allow)),
    // READ CAPACITY(10)
    entry(0x25, &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, C], Control(control::read_capacity_10)),
    // READ(10)
    entry(0x28, &[0x28, 0xf8, F, F, F, F, 0, F, F, C], Medium(data::read)),
    // WRITE(10)
    entry(0x2a, &[0x2a, 0xf8, F, F, F, F, 0, F, F, C], Medium(data::write)),
    // WRITE AND VERIFY(10)
    entry(0x2e, &[0x2e, 0xf6, F, F, F, F, 0, F, F, C], Medium(data::write_and_verify)),
    // VERIFY(10)
    entry(0x2f, &[0x2f, 0xf6, F, F, F, F, 0, F, F, C], Medium(data::verify)),
    // PRE-FETCH(10)
    entry(0x34, &[0x34, 0x02, F, F, F, F, 0, F, F, C], Medium(data::prefetch)),
    // SYNCHRONIZE CACHE(10)
    entry(0x35, &[0x35, 0x02, F, F, F, F, 0, F, F, C], Medium(data::synchronize_cache)),
    // READ DEFECT DATA(10)
    entry(0x37, &[0x37, 0, 0x1f, 0, 0, 0, 0, F, F, C], Control(control::read_defect_data)),
    // WRITE SAME(10)
    entry(0x41, &[0x41, 0xfe, F, F, F, F, 0, F, F, C], Medium(data::write_same)),
    // UNMAP
    entry(0x42, &[0x42, 0x01, 0, 0, 0, 0, 0, F, F, C], List(data::unmap_length, data::unmap)),
    // LOG SENSE
    entry(0x4d, &[0x4d, 0x01, F, F, 0, 0, 0, F, F, C], Control(control::log_sense)),
    // MODE SELECT(10)
    entry(0x55, &[0x55, 0x11, 0, 0, 0, 0, 0, F, F, C], List(mode::list_length, mode::select)),
    // MODE SENSE(10)
    entry(0x5a, &[0x5a, 0x18, F, F, 0, 0, 0, F, F, C], Control(mode::sense)),
    // PERSISTENT RESERVE IN: READ KEYS, READ RESERVATION, REPORT CAPABILITIES, READ FULL STATUS
    action(0x5e, 0x00, &[0x5e, 0x1f, 0, 0, 0, 0, 0, F, F, C], Control(persistent::reserve_in)),
    action(0x5e, 0x01, &[0x5e, 0x1f, 0, 0, 0, 0, 0, F, F, C], Control(persistent::reserve_in)),
    action(0x5e, 0x02, &[0x5e, 0x1f, 0, 0, 0, 0, 0, F, F, C], Control(persistent::reserve_in)),
    action(0x5e, 0x03, &[0x5e, 0x1f, 0, 0, 0, 0, 0, F, F, C], Control(persistent::reserve_in)),
    // PERSISTENT RESERVE OUT: REGISTER, RESERVE, RELEASE, CLEAR, PREEMPT, PREEMPT AND ABORT,
    // REGISTER AND IGNORE EXISTING KEY, REGISTER AND MOVE
    action(0x5f, 0x00, PERSISTENT_OUT, PERSISTENT_OUT_RUN),
    action(0x5f, 0x01, PERSISTENT_OUT, PERSISTENT_OUT_RUN),
    action(0x5f, 0x02, PERSISTENT_OUT, PERSISTENT_OUT_RUN),
    action(0x5f, 0x03, PERSISTENT_OUT, PERSISTENT_OUT_RUN),
    action(0x5f, 0x04, PERSISTENT_OUT, PERSISTENT_OUT_RUN),
    action(0x5f, 0x05, PERSISTENT_OUT, PERSISTENT_OUT_RUN),
    action(0x5f, 0x06, PERSISTENT_OUT, PERSISTENT_OUT_RUN),
    action(0x5f, 0x07, PERSISTENT_OUT, PERSISTENT_OUT_RUN),
    // EXTENDED COPY(LID1)
    action(0x83, 0x00, THIRD_PARTY, List(copy::extended_copy_length, copy::extended_copy)),
    // POPULATE TOKEN
    action(0x83, 0x10, WITH_TOKEN, List(copy::populate_length, copy::populate)),
    // WRITE USING TOKEN
    action(0x83, 0x11, WITH_TOKEN, List(copy::write_using_token_length, copy::write_using_token)),
    // RECEIVE COPY RESULTS: COPY STATUS, RECEIVE DATA, OPERATING PARAMETERS, FAILED SEGMENT DETAILS
    action(0x84, 0x00, RESULTS, Control(copy::copy_status)),
    action(0x84, 0x01, RESULTS, Control(copy::receive_data)),
    action(0x84, 0x03, RESULTS, Control(copy::operating_parameters)),
    action(0x84, 0x04, RESULTS, Control(copy::failed_segment_details)),
    // RECEIVE ROD TOKEN INFORMATION
    action(
        0x84,
        0x07,
        &[0x84, 0x1f, F, F, F, F, 0, 0, 0, 0, F, F, F, F, 0, C],
        Control(copy::rod_token_information),
    ),
    // READ(16)
    entry(0x88, &[0x88, 0xf8, F, F, F, F, F, F, F, F, F, F, F, F, 0, C], Medium(data::read)),
    // COMPARE AND WRITE
    entry(
        0x89,
        &[0x89, 0xf8, F, F, F, F, F, F, F, F, 0, 0, 0, F, 0, C],
        Medium(data::compare_and_write),
    ),
    // WRITE(16)
    entry(0x8a, &[0x8a, 0xf8, F, F, F, F, F, F, F, F, F, F, F, F, 0, C], Medium(data::write)),
    // ORWRITE(16)
    entry(0x8b, &[0x8b, 0xf8, F, F, F, F, F, F, F, F, F, F, F, F, 0, C], Medium(data::orwrite)),
    // WRITE AND VERIFY(16)
    entry(
        0x8e,
        &[0x8e, 0xf6, F, F, F, F, F, F, F, F, F, F, F, F, 0, C],
        Medium(data::write_and_verify),
    ),
    // VERIFY(16)
    entry(0x8f, &[0x8f, 0xf6, F, F, F, F, F, F, F, F, F, F, F, F, 0, C], Medium(data::verify)),
    // PRE-FETCH(16)
    entry(0x90, &[0x90, 0x02, F, F, F, F, F, F, F, F, F, F, F, F, 0, C], Medium(data::prefetch)),
    // SYNCHRONIZE CACHE(16)
    entry(
        0x91,
        &[0x91, 0x02, F, F, F, F, F, F, F, F, F, F, F, F, 0, C],
        Medium(data::synchronize_cache),
    ),
    // WRITE SAME(16)
    entry(0x93, &[0x93, 0xff, F, F, F, F, F, F, F, F, F, F, F, F, 0, C], Medium(data::write_same)),
    // WRITE ATOMIC(16)
    entry(
        0x9c,
        &[0x9c, 0xf8, F, F, F, F, F, F, F, F, F, F, F, F, 0, C],
        Medium(data::write_atomic),
    ),
    // READ CAPACITY(16)
    action(
        0x9e,
        0x10,
        &[0x9e, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, C],
        Control(control::read_capacity_16),
    ),
    // GET LBA STATUS(16)
    action(
        0x9e,
        0x12,
        &[0x9e, 0x1f, F, F, F, F, F, F, F, F, F, F, F, F, F, C],
        Medium(data::get_lba_status),
    ),
    // REPORT LUNS
    entry(0xa0, &[0xa0, 0, F, 0, 0, 0, F, F, F, F, 0, C], Control(inquiry::report_luns)),
    // REPORT TARGET PORT GROUPS
    action(
        0xa3,
        0x0a,
        &[0xa3, 0xff, 0, 0, 0, 0, F, F, F, F, 0, C],
        Control(management::report_target_port_groups),
    ),
    // REPORT SUPPORTED OPERATION CODES
    action(
        0xa3,
        0x0c,
        &[0xa3, 0x1f, 0x87, F, F, F, F, F, F, F, 0, C],
        Control(supported::operation_codes),
    ),
    // REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS
    action(
        0xa3,
        0x0d,
        &[0xa3, 0x1f, 0x80, 0, 0, 0, F, F, F, F, 0, C],
        Control(supported::task_management),
    ),
    // READ(12)
    entry(0xa8, &[0xa8, 0xf8, F, F, F, F, F, F, F, F, 0, C], Medium(data::read)),
    // WRITE(12)
    entry(0xaa, &[0xaa, 0xf8, F, F, F, F, F, F, F, F, 0, C], Medium(data::write)),
    // WRITE AND VERIFY(12)
    entry(0xae, &[0xae, 0xf6, F, F, F, F, F, F, F, F, 0, C], Medium(data::write_and_verify)),
    // VERIFY(12)
    entry(0xaf, &[0xaf, 0xf6, F, F, F, F, F, F, F, F, 0, C], Medium(data::verify)),
    // READ DEFECT DATA(12)
    entry(0xb7, &[0xb7, 0x1f, 0, 0, 0, 0, F, F, F, F, 0, C], Control(control::read_defect_data)),
];

const THIRD_PARTY: &[u8] = &[0x83, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, C];
const WITH_TOKEN: &[u8] = &[0x83, 0x1f, 0, 0, 0, 0, F, F, F, F, F, F, F, F, 0, C];
const RESULTS: &[u8] = &[0x84, 0x1f, F, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, C];
const PERSISTENT_OUT: &[u8] = &[0x5f, 0x1f, F, 0, 0, F, F, F, F, C];
const PERSISTENT_OUT_RUN: Run = List(persistent::out_length, persistent::out);

/// A command's bytes, and where the fields that most commands have are in them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cdb(pub [u8; 16]);

impl Cdb {
    pub fn byte(&self, at: usize) -> u8 {
        self.0[at & 15]
    }

    pub fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.byte(at), self.byte(at + 1)])
    }

    pub fn u32(&self, at: usize) -> u32 {
        u32::from(self.u16(at)) << 16 | u32::from(self.u16(at + 2))
    }

    pub fn u64(&self, at: usize) -> u64 {
        u64::from(self.u32(at)) << 32 | u64::from(self.u32(at + 4))
    }

    /// Bytes of the command, as its operation code tells (SPC-5 §4.2.5.1); 16 for the groups that
    /// have no length.
    pub fn len(&self) -> usize {
        match self.byte(0) >> 5 {
            0 => 6,
            1 | 2 => 10,
            5 => 12,
            _ => 16,
        }
    }

    /// LOGICAL BLOCK ADDRESS.
    pub fn lba(&self) -> u64 {
        match self.len() {
            6 => u64::from(self.u32(0) & 0x1f_ffff),
            16 => self.u64(2),
            _ => u64::from(self.u32(2)),
        }
    }

    /// TRANSFER LENGTH, in logical blocks.
    pub fn blocks(&self) -> u64 {
        match self.len() {
            // 0 means 256 here, and only here.
            6 => match self.byte(4) {
                0 => 256,
                blocks => u64::from(blocks),
            },
            10 => u64::from(self.u16(7)),
            12 => u64::from(self.u32(6)),
            _ => u64::from(self.u32(10)),
        }
    }

    /// The byte where [`Cdb::blocks`] is.
    pub fn blocks_at(&self) -> u16 {
        match self.len() {
            6 => 4,
            10 => 7,
            12 => 6,
            _ => 10,
        }
    }

    /// The byte of flags of a command that transfers blocks; those of six bytes have none.
    pub fn flags(&self) -> u8 {
        if self.len() == 6 { 0 } else { self.byte(1) }
    }
}

/// What `command` asks for.
///
/// # Errors
///
/// There is no such command, or it wants what no command gets.
pub(super) fn find(command: &Command) -> Result<&'static Entry, Sense> {
    let cdb = Cdb(command.cdb);
    let opcode = cdb.byte(0);
    let first = COMMANDS.partition_point(|entry| entry.opcode < opcode);
    let mut entries =
        COMMANDS[first..].iter().take_while(|entry| entry.opcode == opcode).peekable();
    if entries.peek().is_none() {
        return Err(Sense::illegal(code::INVALID_OPERATION_CODE));
    }
    let wanted = cdb.byte(1) & 0x1f;
    let entry = entries
        .find(|entry| entry.action.is_none_or(|action| action == wanted))
        .ok_or(Sense::in_cdb(1, Some(4)))?;
    // NACA: there is no auto contingent allegiance here (NORMACA is 0).
    let control = entry.usage.len() - 1;
    if cdb.byte(control) & C != 0 {
        // A command has at most 16 bytes.
        return Err(Sense::in_cdb(control as u16, Some(2)));
    }
    Ok(entry)
}
