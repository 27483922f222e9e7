//! POPULATE TOKEN and WRITE USING TOKEN (SBC-4), which Windows calls offloaded data transfer.

use super::format::{
    AMOUNT_AT, ANY_POINT_IN_TIME, CHANGE_VULNERABLE, CREATOR_AT, DEFAULT_POINT_IN_TIME,
    DEFAULT_TIMEOUT, DESCRIPTOR_BYTES, MAX_RANGES, MAX_TIMEOUT, OFFSET_AT, POPULATE_RANGES_AT,
    RANDOM_AT, RANGE_BYTES, RodToken, SPECIFIC_AT, TOKEN_AT, TOKEN_BYTES, TOKEN_LENGTH, WRITE,
    WRITE_RANGES_AT, ZEROES,
};
use super::plan::{CopyPlan, CopyRequest, Designator, ListId, PopulateToken};
use crate::block::{Range, Time};
use crate::front::scsi::command::number;
use crate::front::scsi::handler::{CommandContext, CommandOutcome};
use crate::front::scsi::logical_unit::LogicalUnit;
use crate::front::scsi::nexus::NexusId;
use crate::front::scsi::sense::{Sense, code};
use crate::front::scsi::volume_io::IoKind;
use sha3::Digest as _;
use std::time::Duration;

/// Makes a token for ranges that are watched, and keeps it as the result of the command.
pub(in crate::front::scsi) fn make(
    unit: &mut LogicalUnit,
    now: Time,
    nexus: NexusId,
    request: &PopulateToken,
    watch: u64,
) -> CommandOutcome {
    let id = unit.tokens.allot();
    let sectors = request.ranges.iter().map(|range| range.sectors).sum::<u64>();
    let token = Box::new(token_bytes(unit, id, sectors));
    let timeout = Duration::from_secs(request.timeout.into());
    unit.tokens.insert(now, id, token.clone(), &request.ranges, watch, timeout);
    unit.copies.add_token(nexus, request.list, sectors, token);
    CommandOutcome::DONE
}

fn token_bytes(unit: &LogicalUnit, id: u64, sectors: u64) -> RodToken {
    let block_bytes = unit.config.block_bytes;
    let mut token = [0; TOKEN_BYTES];
    token[..4].copy_from_slice(&CHANGE_VULNERABLE.to_be_bytes());
    token[6..8].copy_from_slice(&TOKEN_LENGTH.to_be_bytes());
    token[8..16].copy_from_slice(&id.to_be_bytes());
    token[CREATOR_AT..CREATOR_AT + DESCRIPTOR_BYTES]
        .copy_from_slice(&unit.designator().descriptor(block_bytes));
    let bytes = u128::from(sectors) * u128::from(crate::block::SECTOR_BYTES);
    token[AMOUNT_AT..AMOUNT_AT + 16].copy_from_slice(&bytes.to_be_bytes());
    // The fields of READ CAPACITY(16) from byte 8 on.
    token[SPECIFIC_AT..SPECIFIC_AT + 4].copy_from_slice(&block_bytes.to_be_bytes());
    token[SPECIFIC_AT + 5] = unit.physical_blocks().trailing_zeros() as u8;
    token[SPECIFIC_AT + 6] = 0xc0;
    let random = sha3::Sha3_256::new()
        .chain_update(unit.config.token_secret.0)
        .chain_update(id.to_be_bytes())
        .finalize();
    token[RANDOM_AT..RANDOM_AT + random.len()].copy_from_slice(&random);
    token
}

fn length(context: &CommandContext, at: usize) -> Result<u64, CommandOutcome> {
    let length = u64::from(context.cdb.u32(10));
    if length > (at + MAX_RANGES * RANGE_BYTES) as u64 {
        return Err(Sense::list_length().into());
    }
    Ok(length)
}

/// The length of the parameter list of POPULATE TOKEN.
pub(in crate::front::scsi) fn populate_length(
    unit: &LogicalUnit,
    context: &CommandContext,
) -> Result<u64, CommandOutcome> {
    is_free(unit, context)?;
    length(context, POPULATE_RANGES_AT)
}

/// The length of the parameter list of WRITE USING TOKEN.
pub(in crate::front::scsi) fn write_using_token_length(
    unit: &LogicalUnit,
    context: &CommandContext,
) -> Result<u64, CommandOutcome> {
    is_free(unit, context)?;
    match unit.is_write_protected() {
        Some(sense) => Err(sense.into()),
        None => length(context, WRITE_RANGES_AT),
    }
}

/// Checks that no copy under way has the LIST IDENTIFIER.
fn is_free(unit: &LogicalUnit, context: &CommandContext) -> Result<(), CommandOutcome> {
    if unit.copies.is_running(context.nexus, ListId::Four(context.cdb.u32(6))) {
        return Err(Sense::illegal(code::OPERATION_IN_PROGRESS).into());
    }
    Ok(())
}

/// POPULATE TOKEN. It takes so little time that IMMED has no effect.
pub(in crate::front::scsi) fn populate(
    unit: &mut LogicalUnit,
    context: &CommandContext,
    list: &[u8],
) -> CommandOutcome {
    if context.cdb.u32(10) == 0 {
        return CommandOutcome::DONE;
    }
    match parse_populate(unit, context, list) {
        Ok(populate) => {
            let ranges = populate.ranges.iter().copied().filter(|it| !it.is_empty()).collect();
            let kind = IoKind::Watch { ranges, populate: Box::new(populate) };
            CommandOutcome::Medium(Box::new(unit.io(kind, Range::new(0, 0), false)))
        }
        Err(sense) => sense.into(),
    }
}

fn parse_populate(
    unit: &LogicalUnit,
    context: &CommandContext,
    list: &[u8],
) -> Result<PopulateToken, Sense> {
    let ranges = ranges(unit, list, POPULATE_RANGES_AT)?;
    let timeout = match number(&list[4..8]) as u32 {
        0 => DEFAULT_TIMEOUT,
        seconds if seconds > MAX_TIMEOUT => return Err(Sense::in_list(4, None)),
        seconds => seconds,
    };
    // RTV: the ROD type is selected.
    if list[2] & 0x02 != 0 {
        match number(&list[8..12]) as u32 {
            CHANGE_VULNERABLE | ANY_POINT_IN_TIME | DEFAULT_POINT_IN_TIME => {}
            _ => return Err(Sense::illegal(code::UNSUPPORTED_TOKEN_TYPE).at(false, 8, None)),
        }
    }
    // A token must represent some data.
    if ranges.iter().all(|range| range.is_empty()) {
        return Err(Sense::in_list(POPULATE_RANGES_AT + 8, None));
    }
    Ok(PopulateToken { list: context.cdb.u32(6), ranges, timeout })
}

/// The range descriptors of a list, from offset `at` on, as sectors.
fn ranges(unit: &LogicalUnit, list: &[u8], at: usize) -> Result<Vec<Range>, Sense> {
    if list.len() < at {
        return Err(Sense::list_length());
    }
    let available = number(&list[..2]) as usize + 2;
    let length = number(&list[at - 2..at]) as usize;
    let descriptors = list.get(at..at + length).ok_or(Sense::list_length())?;
    if available < at + length {
        return Err(Sense::in_list(0, None));
    }
    if length < RANGE_BYTES {
        return Err(Sense::in_list(at - 2, None));
    }
    // Ignore an incomplete descriptor at the end.
    let (descriptors, _) = descriptors.as_chunks::<RANGE_BYTES>();
    if descriptors.len() > MAX_RANGES {
        return Err(Sense::illegal(code::TOO_MANY_SEGMENT_DESCRIPTORS).at(
            false,
            at as u16 - 2,
            None,
        ));
    }
    let mut ranges: Vec<Range> = Vec::with_capacity(descriptors.len());
    for (index, descriptor) in descriptors.iter().enumerate() {
        let range = unit.range(number(&descriptor[..8]), number(&descriptor[8..12]))?;
        // Ranges must not overlap.
        if ranges.iter().any(|other| other.intersect(range).is_some()) {
            return Err(Sense::in_list(at + index * RANGE_BYTES, None));
        }
        ranges.push(range);
    }
    Ok(ranges)
}

/// WRITE USING TOKEN.
pub(in crate::front::scsi) fn write_using_token(
    unit: &mut LogicalUnit,
    context: &CommandContext,
    list: &[u8],
) -> CommandOutcome {
    if context.cdb.u32(10) == 0 {
        return CommandOutcome::DONE;
    }
    match parse_write(unit, list) {
        Ok(plan) => CommandOutcome::Copy(Box::new(CopyRequest {
            plan,
            list: Some(ListId::Four(context.cdb.u32(6))),
            action: WRITE,
            immediate: list[2] & 0x01 != 0,
        })),
        Err(sense) => sense.into(),
    }
}

fn parse_write(unit: &LogicalUnit, list: &[u8]) -> Result<CopyPlan, Sense> {
    let ranges = ranges(unit, list, WRITE_RANGES_AT)?;
    let unknown = Sense::illegal(code::TOKEN_UNKNOWN);
    let token = list[TOKEN_AT..].first_chunk::<TOKEN_BYTES>().ok_or(Sense::list_length())?;
    let kind = number(&token[..4]) as u32;
    if kind != CHANGE_VULNERABLE && kind != ZEROES {
        return Err(Sense::illegal(code::UNSUPPORTED_TOKEN_TYPE).at(false, TOKEN_AT as u16, None));
    }
    if number(&token[6..8]) != u64::from(TOKEN_LENGTH) {
        return Err(Sense::illegal(code::INVALID_TOKEN_LENGTH));
    }
    if kind == ZEROES {
        return Ok(CopyPlan::Zeroes { ranges });
    }
    let creator = token[CREATOR_AT..].first_chunk::<DESCRIPTOR_BYTES>().ok_or(unknown)?;
    // OFFSET INTO ROD is in blocks of this unit.
    let skip = number(&list[OFFSET_AT..OFFSET_AT + 8])
        .checked_mul(unit.block_sectors())
        .ok_or(Sense::in_list(OFFSET_AT, None))?;
    Ok(CopyPlan::Token {
        token: Box::new(*token),
        creator: Designator::parse(creator).ok_or(unknown)?,
        skip,
        ranges,
        delete: list[2] & 0x02 != 0,
    })
}
