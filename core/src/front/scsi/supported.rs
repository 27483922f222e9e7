//! REPORT SUPPORTED OPERATION CODES and REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS.

use super::handler::{CommandContext, CommandEntry, CommandOutcome};
use super::logical_unit::LogicalUnit;
use super::sense::Sense;

/// The command timeouts descriptor (SPC-5 §6.37.4): no timeouts are specified.
const TIMEOUTS: [u8; 12] = [0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// REPORT SUPPORTED OPERATION CODES.
pub(super) fn operation_codes(table: &[CommandEntry], context: &CommandContext) -> CommandOutcome {
    let cdb = &context.cdb;
    let timeouts = cdb.byte(2) & 0x80 != 0;
    let (opcode, action) = (cdb.byte(3), cdb.u16(4));
    let of_opcode = || table.iter().filter(move |entry| entry.opcode == opcode);
    let with_actions = of_opcode().any(|entry| entry.action.is_some());
    let by_action = || of_opcode().find(|entry| entry.action.map(u16::from) == Some(action));
    let bytes = match cdb.byte(2) & 0x07 {
        0 => all(table, timeouts),
        // One command that has no service actions.
        1 if with_actions => return Sense::in_cdb(2, Some(2)).into(),
        1 => one(of_opcode().next(), timeouts),
        // One command that has service actions.
        2 if !with_actions && of_opcode().next().is_some() => {
            return Sense::in_cdb(2, Some(2)).into();
        }
        2 => one(by_action(), timeouts),
        // One command of either kind. Service action 0 stands for none.
        3 if with_actions => one(by_action(), timeouts),
        3 => one(of_opcode().next().filter(|_| action == 0), timeouts),
        _ => return Sense::in_cdb(2, Some(2)).into(),
    };
    CommandOutcome::data(bytes, cdb.u32(6) as usize)
}

fn all(table: &[CommandEntry], timeouts: bool) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    for entry in table {
        let flags = u8::from(timeouts) << 1 | u8::from(entry.action.is_some());
        bytes.extend([entry.opcode, 0, 0, entry.action.unwrap_or(0), 0, flags, 0]);
        // A command has at most 16 bytes.
        bytes.push(entry.usage.len() as u8);
        if timeouts {
            bytes.extend(TIMEOUTS);
        }
    }
    // The table has fewer than a hundred entries.
    let length = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    bytes
}

fn one(entry: Option<&CommandEntry>, timeouts: bool) -> Vec<u8> {
    let Some(entry) = entry else {
        // SUPPORT: not supported.
        return vec![0, 1, 0, 0];
    };
    // SUPPORT: in conformance with a standard.
    let mut bytes = vec![0, u8::from(timeouts) << 7 | 3, 0, entry.usage.len() as u8];
    bytes.extend(entry.usage);
    // The service action is fixed, so its bits have its value (SPC-5 §6.37.3).
    if let Some(action) = entry.action {
        bytes[5] = bytes[5] & 0xe0 | action;
    }
    if timeouts {
        bytes.extend(TIMEOUTS);
    }
    bytes
}

/// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS.
pub(super) fn task_management(_unit: &mut LogicalUnit, context: &CommandContext) -> CommandOutcome {
    let cdb = &context.cdb;
    // ABORT TASK, ABORT TASK SET, CLEAR TASK SET, LOGICAL UNIT RESET, QUERY TASK, TARGET RESET;
    // QUERY ASYNCHRONOUS EVENT, QUERY TASK SET, I_T NEXUS RESET.
    let mut bytes = vec![0xde, 0x07, 0, 0];
    // REPD: return extended parameter data.
    if cdb.byte(2) & 0x80 != 0 {
        bytes[3] = 12;
        bytes.extend([0; 12]);
    }
    CommandOutcome::data(bytes, cdb.u32(6) as usize)
}
