//! Commands that access blocks: the checks of their fields, and the I/O that they lead to.
//!
//! Sources: SBC-4 §5. The device has no protection information, so it refuses every RDPROTECT,
//! WRPROTECT and VRPROTECT except 0. It ignores the hint DPO. Group numbers have no meaning
//! (GROUP_SUP is 0). The device does not check FUA_NV, SYNC_NV and other fields that SBC-4 calls
//! obsolete.

use super::command::number;
use super::handler::{CommandContext, CommandOutcome, TransferPlan};
use super::limits::{MAX_ATOMIC_BYTES, MAX_SAME_BYTES, MAX_TRANSFER_BYTES, MAX_UNMAP_DESCRIPTORS};
use super::logical_unit::LogicalUnit;
use super::sense::{Sense, code};
use super::volume_io::{IoKind, VerifyAgainst, VolumeIo};
use crate::block::Range;

/// Most sectors in one answer to GET LBA STATUS, 4 GiB. The answer may be short.
const MAX_STATUS_SECTORS: u64 = 8 << 20;

const PROTECT: u8 = 0xe0;
const FUA: u8 = 0x08;

impl LogicalUnit {
    fn bytes(&self, blocks: u64) -> u64 {
        blocks.saturating_mul(u64::from(self.config.block_bytes))
    }

    /// The sectors of these logical blocks, or all sectors from `lba` on if the number of blocks is
    /// 0.
    fn range_or_rest(&self, lba: u64, blocks: u64) -> Result<Range, Sense> {
        if blocks > 0 {
            return self.range(lba, blocks);
        }
        match self.blocks().checked_sub(lba) {
            Some(rest @ 1..) => self.range(lba, rest),
            _ => Err(Sense::out_of_range(lba)),
        }
    }

    /// The range of a command that transfers all its blocks.
    fn transfer(&self, context: &CommandContext) -> Result<Range, Sense> {
        let cdb = &context.cdb;
        if cdb.flags() & PROTECT != 0 {
            return Err(Sense::in_cdb(1, Some(7)));
        }
        let range = self.range(cdb.lba(), cdb.blocks())?;
        if range.bytes() > MAX_TRANSFER_BYTES {
            return Err(Sense::in_cdb(cdb.blocks_at(), None));
        }
        Ok(range)
    }

    fn writable(&self) -> Result<(), Sense> {
        self.is_write_protected().map_or(Ok(()), Err)
    }

    /// Whether the writes of a command have to be durable when it ends.
    fn durable(&self, context: &CommandContext) -> bool {
        context.cdb.flags() & FUA != 0 || self.writes_through()
    }
}

/// The plan of a command that needs all its output.
fn exactly(context: &CommandContext, wanted: u64, io: VolumeIo) -> TransferPlan {
    if context.out_bytes < wanted {
        return short(wanted, io);
    }
    TransferPlan { wanted, collect: wanted, io }
}

/// The plan of a command whose initiator sends less than the command says, which is an overflow
/// (RFC 7143 §11.4.5.1). The command fails without collecting its output.
fn short(wanted: u64, mut io: VolumeIo) -> TransferPlan {
    io.refuse(Sense::illegal(code::INVALID_FIELD_IN_INFORMATION_UNIT));
    TransferPlan { wanted, collect: 0, io }
}

fn plain(io: VolumeIo) -> TransferPlan {
    TransferPlan { wanted: 0, collect: 0, io }
}

/// READ(6), (10), (12), (16).
pub(super) fn read(unit: &LogicalUnit, context: &CommandContext) -> Result<TransferPlan, Sense> {
    let range = unit.transfer(context)?;
    Ok(plain(unit.io(IoKind::Read, range, context.cdb.flags() & FUA != 0)))
}

/// WRITE(6), (10), (12), (16). If the initiator sends less than the command says, the device writes
/// the whole blocks among it. The residual count tells the initiator.
pub(super) fn write(unit: &LogicalUnit, context: &CommandContext) -> Result<TransferPlan, Sense> {
    let range = unit.transfer(context)?;
    unit.writable()?;
    let durable = unit.durable(context);
    Ok(partly(unit, context, range, |range| unit.io(IoKind::Write, range, durable)))
}

fn partly(
    unit: &LogicalUnit,
    context: &CommandContext,
    range: Range,
    io: impl Fn(Range) -> VolumeIo,
) -> TransferPlan {
    let wanted = range.bytes();
    if context.out_bytes >= wanted {
        return TransferPlan { wanted, collect: wanted, io: io(range) };
    }
    let block = u64::from(unit.config.block_bytes);
    let blocks = context.out_bytes / block;
    let sent = Range::new(range.lba, blocks * unit.block_sectors());
    TransferPlan { wanted, collect: sent.bytes(), io: io(sent) }
}

/// WRITE ATOMIC(16).
pub(super) fn write_atomic(
    unit: &LogicalUnit,
    context: &CommandContext,
) -> Result<TransferPlan, Sense> {
    let cdb = &context.cdb;
    if cdb.flags() & PROTECT != 0 {
        return Err(Sense::in_cdb(1, Some(7)));
    }
    // ATOMIC BOUNDARY must be 0, because MAXIMUM ATOMIC BOUNDARY SIZE is 0.
    if cdb.u16(10) != 0 {
        return Err(Sense::in_cdb(10, None));
    }
    let range = unit.range(cdb.lba(), u64::from(cdb.u16(12)))?;
    if range.bytes() > MAX_ATOMIC_BYTES {
        return Err(Sense::in_cdb(12, None));
    }
    unit.writable()?;
    let io = unit.io(IoKind::Write, range, unit.durable(context));
    Ok(exactly(context, range.bytes(), io))
}

/// WRITE AND VERIFY(10), (12), (16).
pub(super) fn write_and_verify(
    unit: &LogicalUnit,
    context: &CommandContext,
) -> Result<TransferPlan, Sense> {
    let range = unit.transfer(context)?;
    let against = match context.cdb.byte(1) >> 1 & 3 {
        0 => VerifyAgainst::Nothing,
        1 => VerifyAgainst::Output,
        _ => return Err(Sense::in_cdb(1, Some(2))),
    };
    unit.writable()?;
    Ok(partly(unit, context, range, |range| unit.io(IoKind::WriteAndVerify(against), range, true)))
}

/// VERIFY(10), (12), (16).
pub(super) fn verify(unit: &LogicalUnit, context: &CommandContext) -> Result<TransferPlan, Sense> {
    let cdb = &context.cdb;
    if cdb.flags() & PROTECT != 0 {
        return Err(Sense::in_cdb(1, Some(7)));
    }
    let against = match cdb.byte(1) >> 1 & 3 {
        0 => VerifyAgainst::Nothing,
        1 => VerifyAgainst::Output,
        3 => VerifyAgainst::Block,
        _ => return Err(Sense::in_cdb(1, Some(2))),
    };
    let range = unit.range(cdb.lba(), cdb.blocks())?;
    let wanted = match against {
        VerifyAgainst::Nothing => 0,
        VerifyAgainst::Block if range.is_empty() => 0,
        VerifyAgainst::Block => unit.bytes(1),
        VerifyAgainst::Output => range.bytes(),
    };
    if wanted > MAX_TRANSFER_BYTES {
        return Err(Sense::in_cdb(cdb.blocks_at(), None));
    }
    Ok(exactly(context, wanted, unit.io(IoKind::Verify(against), range, false)))
}

/// COMPARE AND WRITE.
pub(super) fn compare_and_write(
    unit: &LogicalUnit,
    context: &CommandContext,
) -> Result<TransferPlan, Sense> {
    let cdb = &context.cdb;
    if cdb.flags() & PROTECT != 0 {
        return Err(Sense::in_cdb(1, Some(7)));
    }
    let range = unit.range(cdb.lba(), u64::from(cdb.byte(13)))?;
    unit.writable()?;
    let wanted = range.bytes() * 2;
    // With a wrong length, the halves would belong to the wrong blocks.
    if context.out_bytes != wanted {
        return Err(Sense::in_cdb(13, None));
    }
    let io = unit.io(IoKind::CompareAndWrite, range, unit.durable(context));
    Ok(exactly(context, wanted, io))
}

/// ORWRITE(16).
pub(super) fn orwrite(unit: &LogicalUnit, context: &CommandContext) -> Result<TransferPlan, Sense> {
    let range = unit.transfer(context)?;
    unit.writable()?;
    let io = unit.io(IoKind::OrWrite, range, unit.durable(context));
    Ok(exactly(context, range.bytes(), io))
}

/// WRITE SAME(10), (16).
pub(super) fn write_same(
    unit: &LogicalUnit,
    context: &CommandContext,
) -> Result<TransferPlan, Sense> {
    let cdb = &context.cdb;
    let flags = cdb.byte(1);
    if flags & PROTECT != 0 {
        return Err(Sense::in_cdb(1, Some(7)));
    }
    // ANCHOR is not supported (ANC_SUP is 0).
    if flags & 0x10 != 0 {
        return Err(Sense::in_cdb(1, Some(4)));
    }
    // PBDATA and LBDATA of SBC-2 would change the block that is written.
    if flags & 0x06 != 0 {
        return Err(Sense::in_cdb(1, Some(if flags & 0x04 != 0 { 2 } else { 1 })));
    }
    let range = unit.range(cdb.lba(), cdb.blocks())?;
    // A length of 0 would mean all the rest of the medium. The device refuses it (WSNZ is 1).
    if range.is_empty() || range.bytes() > MAX_SAME_BYTES {
        return Err(Sense::in_cdb(cdb.blocks_at(), None));
    }
    unit.writable()?;
    let unmap = flags & 0x08 != 0;
    let io = unit.io(IoKind::WriteSame { unmap }, range, unit.writes_through());
    // NDOB: the command has no output.
    let wanted = if cdb.len() == 16 && flags & 0x01 != 0 { 0 } else { unit.bytes(1) };
    if context.out_bytes != wanted {
        return Ok(short(wanted, io));
    }
    Ok(exactly(context, wanted, io))
}

/// The length of the parameter list of UNMAP.
pub(super) fn unmap_length(
    unit: &LogicalUnit,
    context: &CommandContext,
) -> Result<u64, CommandOutcome> {
    // ANCHOR is not supported.
    if context.cdb.byte(1) & 0x01 != 0 {
        return Err(Sense::in_cdb(1, Some(0)).into());
    }
    match unit.is_write_protected() {
        Some(sense) => Err(sense.into()),
        None => Ok(u64::from(context.cdb.u16(7))),
    }
}

/// UNMAP.
pub(super) fn unmap(
    unit: &mut LogicalUnit,
    context: &CommandContext,
    list: &[u8],
) -> CommandOutcome {
    if context.cdb.u16(7) == 0 {
        return CommandOutcome::DONE;
    }
    match discards(unit, list) {
        Ok(ranges) => {
            let durable = unit.writes_through();
            let io = unit.io(IoKind::Discard(ranges), Range::new(0, 0), durable);
            CommandOutcome::Medium(Box::new(io))
        }
        Err(sense) => sense.into(),
    }
}

fn discards(unit: &LogicalUnit, list: &[u8]) -> Result<Vec<Range>, Sense> {
    let Some((header, rest)) = list.split_first_chunk::<8>() else {
        return Err(Sense::list_length());
    };
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    // Ignore an incomplete descriptor at the end if the length field includes it.
    let descriptors = rest.get(..length).ok_or(Sense::list_length())?.as_chunks::<16>().0;
    if descriptors.len() as u64 > u64::from(MAX_UNMAP_DESCRIPTORS) {
        return Err(Sense::in_list(2, None));
    }
    let mut ranges = Vec::with_capacity(descriptors.len());
    let mut sum = 0u64;
    for (index, descriptor) in descriptors.iter().enumerate() {
        let (lba, blocks) = (number(&descriptor[..8]), number(&descriptor[8..12]));
        sum += blocks;
        // MAXIMUM UNMAP LBA COUNT is the largest value of a descriptor's field.
        if sum > u64::from(u32::MAX) {
            return Err(Sense::in_list(8 + 16 * index + 8, None));
        }
        ranges.push(unit.range(lba, blocks)?);
    }
    ranges.retain(|range| !range.is_empty());
    Ok(ranges)
}

/// SYNCHRONIZE CACHE(10), (16). It flushes the whole volume, whatever the range.
pub(super) fn synchronize_cache(
    unit: &LogicalUnit,
    context: &CommandContext,
) -> Result<TransferPlan, Sense> {
    let cdb = &context.cdb;
    if cdb.lba() > 0 || cdb.blocks() > 0 {
        unit.range_or_rest(cdb.lba(), cdb.blocks())?;
    }
    let immediate = cdb.byte(1) & 0x02 != 0;
    Ok(plain(unit.io(IoKind::Flush { immediate }, Range::new(0, 0), false)))
}

/// PRE-FETCH(10), (16). It ends with GOOD and never with CONDITION MET, which would promise that
/// the blocks will be in the cache.
pub(super) fn prefetch(
    unit: &LogicalUnit,
    context: &CommandContext,
) -> Result<TransferPlan, Sense> {
    let cdb = &context.cdb;
    let range = match (cdb.lba(), cdb.blocks()) {
        (0, 0) => unit.range(0, unit.blocks())?,
        (lba, blocks) => unit.range_or_rest(lba, blocks)?,
    };
    Ok(plain(unit.io(IoKind::Prefetch, range, false)))
}

/// GET LBA STATUS(16).
pub(super) fn get_lba_status(
    unit: &LogicalUnit,
    context: &CommandContext,
) -> Result<TransferPlan, Sense> {
    let cdb = &context.cdb;
    // REPORT TYPE 0: all blocks.
    if cdb.byte(14) != 0 {
        return Err(Sense::in_cdb(14, None));
    }
    let mut range = unit.range_or_rest(cdb.u64(2), 0)?;
    range.sectors = range.sectors.min(MAX_STATUS_SECTORS);
    let allocation = cdb.u32(10) as usize;
    Ok(plain(unit.io(IoKind::Status { allocation }, range, false)))
}

/// START STOP UNIT. The unit has no spindle; a stop makes all writes durable.
pub(super) fn start_stop(
    unit: &LogicalUnit,
    context: &CommandContext,
) -> Result<TransferPlan, Sense> {
    let flags = context.cdb.byte(4);
    match flags >> 4 {
        // Power conditions START_VALID, ACTIVE and LU_CONTROL.
        0 | 1 | 7 => {}
        _ => return Err(Sense::in_cdb(4, Some(7))),
    }
    // LOEJ: the medium cannot be loaded or ejected.
    if flags & 0x02 != 0 {
        return Err(Sense::in_cdb(4, Some(1)));
    }
    let stops = flags & 0xf5 == 0;
    let kind = if stops {
        IoKind::Flush { immediate: context.cdb.byte(1) & 0x01 != 0 }
    } else {
        IoKind::Nothing
    };
    Ok(plain(unit.io(kind, Range::new(0, 0), false)))
}
