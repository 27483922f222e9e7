//! EXTENDED COPY(LID1) and its parameter list (SPC-4, "EXTENDED COPY(LID1) command").

use super::format::{
    BLOCK_LENGTH_AT, BLOCK_TO_BLOCK, DESCRIPTOR_BYTES, EXTENDED_COPY, HEADER_BYTES, IDENTIFICATION,
    MAX_DESCRIPTORS, MAX_LIST_BYTES, MAX_SEGMENTS, SEGMENT_BYTES, SEGMENT_LENGTH,
};
use super::plan::{CopyPlan, CopyRequest, CscdDescriptor, Designator, ListId, SegmentDescriptor};
use crate::front::scsi::handler::{CommandContext, CommandOutcome};
use crate::front::scsi::logical_unit::LogicalUnit;
use crate::front::scsi::sense::{Sense, code};

/// The length of the parameter list of EXTENDED COPY.
pub(in crate::front::scsi) fn extended_copy_length(
    _unit: &LogicalUnit,
    context: &CommandContext,
) -> Result<u64, CommandOutcome> {
    let length = u64::from(context.cdb.u32(10));
    if length > (HEADER_BYTES + MAX_LIST_BYTES) as u64 {
        return Err(Sense::list_length().into());
    }
    Ok(length)
}

/// EXTENDED COPY(LID1).
pub(in crate::front::scsi) fn extended_copy(
    _unit: &mut LogicalUnit,
    context: &CommandContext,
    list: &[u8],
) -> CommandOutcome {
    // A command without a list is not an error.
    if context.cdb.u32(10) == 0 {
        return CommandOutcome::DONE;
    }
    parse(list).map_or_else(CommandOutcome::from, |asked| CommandOutcome::Copy(Box::new(asked)))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) << 16 | u32::from(u16_at(bytes, at + 2))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4))
}

fn parse(list: &[u8]) -> Result<CopyRequest, Sense> {
    let Some((header, rest)) = list.split_first_chunk::<HEADER_BYTES>() else {
        return Err(Sense::list_length());
    };
    let (units, segments) = (usize::from(u16_at(header, 2)), u32_at(header, 8) as usize);
    let Some(units) = rest.get(..units) else { return Err(Sense::list_length()) };
    let Some(segments) = rest[units.len()..].get(..segments) else {
        return Err(Sense::list_length());
    };
    if u32_at(header, 12) != 0 {
        return Err(Sense::illegal(code::INLINE_DATA_LENGTH_EXCEEDED).at(false, 12, None));
    }
    let list = list_id(header)?;
    let plan =
        CopyPlan::Segments { descriptors: descriptors(units)?, segments: moves(units, segments)? };
    Ok(CopyRequest { plan, list, action: EXTENDED_COPY, immediate: false })
}

/// LIST IDENTIFIER, subject to LIST ID USAGE; `None` if the result cannot be asked for. STR is for
/// tapes, and PRIORITY is a hint.
fn list_id(header: &[u8; HEADER_BYTES]) -> Result<Option<ListId>, Sense> {
    match header[1] >> 3 & 3 {
        0 | 2 => Ok(Some(ListId::One(header[0]))),
        3 if header[0] == 0 => Ok(None),
        3 => Err(Sense::in_list(0, None)),
        _ => Err(Sense::in_list(1, Some(4))),
    }
}

fn descriptors(bytes: &[u8]) -> Result<Vec<CscdDescriptor>, Sense> {
    let (descriptors, rest) = bytes.as_chunks::<DESCRIPTOR_BYTES>();
    if descriptors.len() > MAX_DESCRIPTORS {
        return Err(Sense::illegal(code::TOO_MANY_TARGET_DESCRIPTORS).at(false, 2, None));
    }
    if !rest.is_empty() {
        return Err(Sense::in_list(2, None));
    }
    let mut found = Vec::with_capacity(descriptors.len());
    for (index, descriptor) in descriptors.iter().enumerate() {
        let at = HEADER_BYTES + index * DESCRIPTOR_BYTES;
        if descriptor[0] != IDENTIFICATION {
            let sense = Sense::illegal(code::UNSUPPORTED_TARGET_DESCRIPTOR);
            // A list has at most 16 descriptors.
            return Err(sense.at(false, at as u16, None));
        }
        // LU ID TYPE and NUL are ignored. Only block devices (type 0) exist here.
        let designator = Designator::parse(descriptor).filter(|_| descriptor[1] & 0x1f == 0);
        let block_bytes = u32_at(descriptor, BLOCK_LENGTH_AT - 1) & 0xff_ffff;
        found.push(CscdDescriptor { designator, block_bytes });
    }
    Ok(found)
}

fn moves(units: &[u8], mut bytes: &[u8]) -> Result<Vec<SegmentDescriptor>, Sense> {
    let mut segments = Vec::new();
    let mut at = HEADER_BYTES + units.len();
    while let Some(kind) = bytes.first() {
        if segments.len() == MAX_SEGMENTS {
            return Err(Sense::illegal(code::TOO_MANY_SEGMENT_DESCRIPTORS).at(false, 8, None));
        }
        if *kind != BLOCK_TO_BLOCK {
            let sense = Sense::illegal(code::UNSUPPORTED_SEGMENT_DESCRIPTOR);
            // The list is shorter than 64 KiB.
            return Err(sense.at(false, at as u16, None));
        }
        let Some((segment, rest)) = bytes.split_first_chunk::<SEGMENT_BYTES>() else {
            return Err(Sense::in_list(8, None));
        };
        if usize::from(u16_at(segment, 2)) != SEGMENT_LENGTH {
            return Err(Sense::in_list(at + 2, None));
        }
        segments.push(SegmentDescriptor {
            source: u16_at(segment, 4),
            destination: u16_at(segment, 6),
            of_destination: segment[1] & 0x02 != 0,
            blocks: u16_at(segment, 10),
            source_lba: u64_at(segment, 12),
            destination_lba: u64_at(segment, 20),
        });
        at += SEGMENT_BYTES;
        bytes = rest;
    }
    Ok(segments)
}
