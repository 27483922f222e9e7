//! Commands that report the state of the unit without access to blocks.

use super::handler::{CommandContext, CommandOutcome};
use super::logical_unit::LogicalUnit;
use super::response::DataIn;
use super::sense::{Sense, code, key};

/// TEST UNIT READY. The conditions that make it fail were checked when the command arrived.
pub(super) fn test_unit_ready(
    _unit: &mut LogicalUnit,
    _context: &CommandContext,
) -> CommandOutcome {
    CommandOutcome::DONE
}

/// REQUEST SENSE: takes the next unit attention condition, or reports NO SENSE.
pub(super) fn request_sense(unit: &mut LogicalUnit, context: &CommandContext) -> CommandOutcome {
    let sense = match unit.nexuses.take_attention(context.nexus) {
        Some(code) => Sense::attention(code),
        None => Sense::new(key::NO_SENSE, code::NONE),
    };
    requested(context, sense)
}

/// Sense data as parameter data, in the format that DESC selects.
pub(super) fn requested(context: &CommandContext, sense: Sense) -> CommandOutcome {
    let bytes = sense.bytes(context.cdb.byte(1) & 0x01 != 0);
    let cut = bytes.len().min(usize::from(context.cdb.byte(4)));
    CommandOutcome::Good(DataIn::Parameter(bytes.slice(..cut)))
}

/// READ CAPACITY(10).
pub(super) fn read_capacity_10(
    unit: &mut LogicalUnit,
    _context: &CommandContext,
) -> CommandOutcome {
    let last = unit.blocks().saturating_sub(1);
    // The value FFFFFFFFh tells the initiator to use READ CAPACITY(16).
    let last = u32::try_from(last).unwrap_or(u32::MAX);
    let mut bytes = last.to_be_bytes().to_vec();
    bytes.extend(unit.config.block_bytes.to_be_bytes());
    CommandOutcome::data(bytes, 8)
}

/// READ CAPACITY(16).
pub(super) fn read_capacity_16(unit: &mut LogicalUnit, context: &CommandContext) -> CommandOutcome {
    let mut bytes = vec![0; 32];
    let last = unit.blocks().saturating_sub(1);
    bytes[..8].copy_from_slice(&last.to_be_bytes());
    bytes[8..12].copy_from_slice(&unit.config.block_bytes.to_be_bytes());
    // LOGICAL BLOCKS PER PHYSICAL BLOCK EXPONENT. The first physical block begins with block 0.
    bytes[13] = unit.physical_blocks().trailing_zeros() as u8;
    // LBPME, LBPRZ: blocks can be unmapped, and read as zeroes then.
    bytes[14] = 0xc0;
    CommandOutcome::data(bytes, context.cdb.u32(10) as usize)
}

/// PREVENT ALLOW MEDIUM REMOVAL: the medium is not removable.
pub(super) fn prevent_allow(_unit: &mut LogicalUnit, context: &CommandContext) -> CommandOutcome {
    match context.cdb.byte(4) & 0x03 {
        0 | 1 => CommandOutcome::DONE,
        // The values are for media changers, and obsolete.
        _ => Sense::in_cdb(4, Some(1)).into(),
    }
}

/// READ DEFECT DATA(10), (12): empty lists in the requested format.
pub(super) fn read_defect_data(
    _unit: &mut LogicalUnit,
    context: &CommandContext,
) -> CommandOutcome {
    let cdb = &context.cdb;
    if cdb.len() == 10 {
        CommandOutcome::data(vec![0, cdb.byte(2) & 0x1f, 0, 0], usize::from(cdb.u16(7)))
    } else {
        CommandOutcome::data(vec![0, cdb.byte(1) & 0x1f, 0, 0, 0, 0, 0, 0], cdb.u32(6) as usize)
    }
}

/// RECEIVE DIAGNOSTIC RESULTS: the only page is the list of pages.
pub(super) fn receive_diagnostic(
    _unit: &mut LogicalUnit,
    context: &CommandContext,
) -> CommandOutcome {
    let cdb = &context.cdb;
    // PCV 0 asks for the last page that the device sent. That can only be this page.
    if cdb.byte(1) & 0x01 != 0 && cdb.byte(2) != 0 {
        return Sense::in_cdb(2, None).into();
    }
    CommandOutcome::data(vec![0, 0, 0, 1, 0], usize::from(cdb.u16(3)))
}

/// The length of the parameter list of SEND DIAGNOSTIC.
pub(super) fn diagnostic_length(
    _unit: &LogicalUnit,
    context: &CommandContext,
) -> Result<u64, CommandOutcome> {
    let cdb = &context.cdb;
    let length = u64::from(cdb.u16(3));
    // The default self-test has no list. Other self-tests are not supported.
    if cdb.byte(1) & 0xe0 != 0 {
        return Err(Sense::in_cdb(1, Some(7)).into());
    }
    if length > 0 && (cdb.byte(1) & 0x04 != 0 || length > 4) {
        return Err(Sense::in_cdb(3, None).into());
    }
    // PF 0 means a vendor-specific list.
    if length > 0 && cdb.byte(1) & 0x10 == 0 {
        return Err(Sense::in_cdb(1, Some(4)).into());
    }
    Ok(length)
}

/// SEND DIAGNOSTIC.
pub(super) fn send_diagnostic(
    _unit: &mut LogicalUnit,
    context: &CommandContext,
    list: &[u8],
) -> CommandOutcome {
    match list {
        _ if context.cdb.u16(3) == 0 => CommandOutcome::DONE,
        [0, _, 0, 0] => CommandOutcome::DONE,
        [page, ..] if *page != 0 => Sense::in_list(0, None).into(),
        [_, _, _, _] => Sense::in_list(2, None).into(),
        _ => Sense::list_length().into(),
    }
}

/// LOG SENSE: the list of pages, and the informational exceptions page.
pub(super) fn log_sense(_unit: &mut LogicalUnit, context: &CommandContext) -> CommandOutcome {
    let cdb = &context.cdb;
    // SP: the device never saves parameters.
    if cdb.byte(1) & 0x01 != 0 {
        return Sense::in_cdb(1, Some(0)).into();
    }
    let bytes = match (cdb.byte(2) & 0x3f, cdb.byte(3)) {
        (0x00, 0x00) => vec![0x00, 0, 0, 2, 0x00, 0x2f],
        (0x00, 0xff) => vec![0x40, 0xff, 0, 6, 0x00, 0x00, 0x00, 0xff, 0x2f, 0x00],
        // The general parameter: no exception (ASC and ASCQ 0), unknown temperature.
        (0x2f, 0x00) => vec![0x2f, 0, 0, 8, 0, 0, 0x03, 4, 0, 0, 0xff, 0],
        (0x00 | 0x2f, _) => return Sense::in_cdb(3, None).into(),
        _ => return Sense::in_cdb(2, Some(5)).into(),
    };
    CommandOutcome::data(bytes, usize::from(cdb.u16(7)))
}
