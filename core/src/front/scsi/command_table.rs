//! The table of commands. The device recognizes commands by it, and answers REPORT SUPPORTED
//! OPERATION CODES from it.
//!
//! Sources: SPC-5 §6 and SBC-4 §5 for the commands, SPC-2 §7.21 for RESERVE and RELEASE.

use super::command::{Cdb, Command};
use super::handler::{CommandEntry, Handler};
use super::sense::{Sense, code};
use super::{control, copy, data, inquiry, mode, persistent, port_groups, supported};

const fn entry(opcode: u8, usage: &'static [u8], run: Handler) -> CommandEntry {
    CommandEntry { opcode, action: None, usage, run }
}

const fn action(opcode: u8, action: u8, usage: &'static [u8], run: Handler) -> CommandEntry {
    CommandEntry { opcode, action: Some(action), usage, run }
}

use Handler::{Control, List, Medium, Table};

/// NACA, the only bit of the CONTROL byte that the device checks.
const C: u8 = 0x04;
/// A byte that is evaluated as a whole.
const F: u8 = 0xff;

/// All commands, by operation code and service action.
pub(super) static COMMANDS: &[CommandEntry] = &[
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
    action(
        0x83,
        0x00,
        THIRD_PARTY,
        List(copy::list::extended_copy_length, copy::list::extended_copy),
    ),
    // POPULATE TOKEN
    action(0x83, 0x10, WITH_TOKEN, List(copy::token::populate_length, copy::token::populate)),
    // WRITE USING TOKEN
    action(
        0x83,
        0x11,
        WITH_TOKEN,
        List(copy::token::write_using_token_length, copy::token::write_using_token),
    ),
    // RECEIVE COPY RESULTS: COPY STATUS, RECEIVE DATA, OPERATING PARAMETERS, FAILED SEGMENT DETAILS
    action(0x84, 0x00, RESULTS, Control(copy::report::copy_status)),
    action(0x84, 0x01, RESULTS, Control(copy::report::receive_data)),
    action(0x84, 0x03, RESULTS, Control(copy::report::operating_parameters)),
    action(0x84, 0x04, RESULTS, Control(copy::report::failed_segment_details)),
    // RECEIVE ROD TOKEN INFORMATION
    action(
        0x84,
        0x07,
        &[0x84, 0x1f, F, F, F, F, 0, 0, 0, 0, F, F, F, F, 0, C],
        Control(copy::report::rod_token_information),
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
        Control(port_groups::report_target_port_groups),
    ),
    // REPORT SUPPORTED OPERATION CODES
    action(
        0xa3,
        0x0c,
        &[0xa3, 0x1f, 0x87, F, F, F, F, F, F, F, 0, C],
        Table(supported::operation_codes),
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
const PERSISTENT_OUT_RUN: Handler = List(persistent::out_length, persistent::out);

/// The entry of a command.
///
/// # Errors
///
/// The table has no such command, or the command sets NACA.
pub(super) fn find(command: &Command) -> Result<&'static CommandEntry, Sense> {
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
    // NACA: auto contingent allegiance is not supported (NORMACA is 0).
    let control = entry.usage.len() - 1;
    if cdb.byte(control) & C != 0 {
        // A command has at most 16 bytes.
        return Err(Sense::in_cdb(control as u16, Some(2)));
    }
    Ok(entry)
}
