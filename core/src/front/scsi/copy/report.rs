//! RECEIVE COPY RESULTS and RECEIVE ROD TOKEN INFORMATION (SPC-4).

use super::format::{
    BLOCK_TO_BLOCK, IDENTIFICATION, MAX_DESCRIPTORS, MAX_LIST_BYTES, MAX_SEGMENT_BYTES,
    MAX_SEGMENTS, TOKEN_BYTES,
};
use super::plan::ListId;
use super::results::{CopyResult, CopyState};
use crate::block::SECTOR_BYTES;
use crate::front::scsi::handler::{CommandContext, CommandOutcome};
use crate::front::scsi::limits::MAX_COPIES;
use crate::front::scsi::logical_unit::LogicalUnit;
use crate::front::scsi::sense::Sense;

/// The result that a command asks for.
fn named<'a>(
    unit: &'a LogicalUnit,
    context: &CommandContext,
    list: ListId,
) -> Result<&'a CopyResult, Sense> {
    unit.copies.get(context.nexus, list).ok_or(Sense::in_cdb(2, None))
}

fn allocation(context: &CommandContext) -> usize {
    context.cdb.u32(10) as usize
}

/// RECEIVE COPY RESULTS, COPY STATUS.
pub(in crate::front::scsi) fn copy_status(
    unit: &mut LogicalUnit,
    context: &CommandContext,
) -> CommandOutcome {
    let entry = match named(unit, context, ListId::One(context.cdb.byte(2))) {
        Ok(entry) => entry,
        Err(sense) => return sense.into(),
    };
    let state = match entry.state {
        CopyState::Running { .. } => 0,
        CopyState::Done => 1,
        CopyState::Failed | CopyState::Stopped => 2,
    };
    let bytes = entry.sectors.saturating_mul(SECTOR_BYTES);
    // TRANSFER COUNT UNITS: bytes, or the smallest power of 1024 that lets the count fit.
    let units = (0..4).find(|units| bytes >> (10 * units) <= u64::from(u32::MAX)).unwrap_or(4);
    let mut data = vec![0, 0, 0, 8, state];
    data.extend(entry.segments.to_be_bytes());
    data.push(units as u8);
    data.extend(((bytes >> (10 * units)) as u32).to_be_bytes());
    CommandOutcome::data(data, allocation(context))
}

/// RECEIVE COPY RESULTS, RECEIVE DATA: no data is held.
pub(in crate::front::scsi) fn receive_data(
    unit: &mut LogicalUnit,
    context: &CommandContext,
) -> CommandOutcome {
    match named(unit, context, ListId::One(context.cdb.byte(2))) {
        Ok(CopyResult { state: CopyState::Running { .. }, .. }) => Sense::in_cdb(2, None).into(),
        Ok(_) => CommandOutcome::data(vec![0; 4], allocation(context)),
        Err(sense) => sense.into(),
    }
}

/// RECEIVE COPY RESULTS, FAILED SEGMENT DETAILS.
pub(in crate::front::scsi) fn failed_segment_details(
    unit: &mut LogicalUnit,
    context: &CommandContext,
) -> CommandOutcome {
    let entry = match named(unit, context, ListId::One(context.cdb.byte(2))) {
        Ok(CopyResult { state: CopyState::Running { .. }, .. }) => {
            return Sense::in_cdb(2, None).into();
        }
        Ok(entry) => entry,
        Err(sense) => return sense.into(),
    };
    if entry.state == CopyState::Done {
        return CommandOutcome::data(vec![0; 4], allocation(context));
    }
    let mut data = vec![0; 60];
    data[56] = entry.status;
    data[58..60].copy_from_slice(&(entry.sense.len() as u16).to_be_bytes());
    data.extend(&entry.sense);
    // Sense data has less than 256 bytes.
    let available = (data.len() - 4) as u32;
    data[..4].copy_from_slice(&available.to_be_bytes());
    CommandOutcome::data(data, allocation(context))
}

/// RECEIVE COPY RESULTS, OPERATING PARAMETERS.
pub(in crate::front::scsi) fn operating_parameters(
    _unit: &mut LogicalUnit,
    context: &CommandContext,
) -> CommandOutcome {
    let mut data = vec![0; 44];
    // SNLID.
    data[4] = 1;
    data[8..10].copy_from_slice(&(MAX_DESCRIPTORS as u16).to_be_bytes());
    data[10..12].copy_from_slice(&(MAX_SEGMENTS as u16).to_be_bytes());
    data[12..16].copy_from_slice(&(MAX_LIST_BYTES as u32).to_be_bytes());
    data[16..20].copy_from_slice(&MAX_SEGMENT_BYTES.to_be_bytes());
    // TOTAL CONCURRENT COPIES, MAXIMUM CONCURRENT COPIES.
    data[34..36].copy_from_slice(&(MAX_COPIES as u16).to_be_bytes());
    data[36] = MAX_COPIES as u8;
    // DATA SEGMENT GRANULARITY: a sector.
    data[37] = SECTOR_BYTES.trailing_zeros() as u8;
    let kinds = [BLOCK_TO_BLOCK, IDENTIFICATION];
    data[43] = kinds.len() as u8;
    data.extend(kinds);
    let available = (data.len() - 4) as u32;
    data[..4].copy_from_slice(&available.to_be_bytes());
    CommandOutcome::data(data, allocation(context))
}

/// RECEIVE ROD TOKEN INFORMATION.
pub(in crate::front::scsi) fn rod_token_information(
    unit: &mut LogicalUnit,
    context: &CommandContext,
) -> CommandOutcome {
    // TRANSFER COUNT UNITS: logical blocks.
    const BLOCKS: u8 = 0xf1;
    let block_sectors = unit.block_sectors();
    let entry = match named(unit, context, ListId::Four(context.cdb.u32(2))) {
        Ok(entry) => entry,
        Err(sense) => return sense.into(),
    };
    let state = match entry.state {
        CopyState::Running { background: false } => 0x11,
        CopyState::Running { background: true } => 0x12,
        CopyState::Done => 0x01,
        CopyState::Failed => 0x02,
        CopyState::Stopped => 0x60,
    };
    let mut data = vec![0; 32];
    data[4] = entry.action;
    data[5] = state;
    data[6..8].copy_from_slice(&entry.segments.to_be_bytes());
    // ESTIMATED STATUS UPDATE DELAY: not specified.
    data[8..12].copy_from_slice(&[0xff; 4]);
    data[12] = entry.status;
    // Sense data has less than 256 bytes.
    data[13] = entry.sense.len() as u8;
    data[14] = entry.sense.len() as u8;
    data[15] = BLOCKS;
    data[16..24].copy_from_slice(&(entry.sectors / block_sectors).to_be_bytes());
    data[24..26].copy_from_slice(&entry.segments.to_be_bytes());
    data.extend(&entry.sense);
    match &entry.token {
        None => data.extend([0; 4]),
        Some(token) => {
            data.extend((2 + TOKEN_BYTES as u32).to_be_bytes());
            data.extend([0; 2]);
            data.extend(token.as_slice());
        }
    }
    let available = (data.len() - 4) as u32;
    data[..4].copy_from_slice(&available.to_be_bytes());
    CommandOutcome::data(data, allocation(context))
}
