//! Commands that read, write or look at blocks: their fields checked, and what they do to the volume.
//!
//! Sources: SBC-4 §5. There is no protection information, so every RDPROTECT, WRPROTECT and
//! VRPROTECT but 0 is refused; DPO is a hint that is not taken; group numbers mean nothing here
//! (GROUP_SUP is 0). FUA_NV, SYNC_NV and other fields that SBC-4 calls obsolete are not looked at.

use super::io::{Against, Io, Kind};
use super::sense::{Sense, code};
use super::{Context, Device, MAX_ATOMIC_BYTES, MAX_TRANSFER_BYTES, Outcome, Plan};
use crate::block::Range;

/// Most blocks of a COMPARE AND WRITE: what its field can say, and no more than is atomic.
pub(super) const MAX_COMPARE_BLOCKS: u8 = 0xff;
const _: () = assert!(MAX_COMPARE_BLOCKS as u64 * 4096 <= MAX_ATOMIC_BYTES);

/// Most bytes of a WRITE SAME, for a pattern is written for real.
pub(super) const MAX_SAME_BYTES: u64 = 32 << 20;

/// Most descriptors of an UNMAP.
pub(super) const MAX_UNMAP_DESCRIPTORS: u32 = 256;

/// Most sectors whose status is looked up at a time, 4 GiB: the answer may be short.
const MAX_STATUS_SECTORS: u64 = 8 << 20;

const PROTECT: u8 = 0xe0;
const FUA: u8 = 0x08;

impl Device {
    pub(super) fn io(&self, kind: Kind, range: Range, durable: bool) -> Io {
        Io::new(kind, range, self.block_sectors(), durable)
    }

    fn bytes(&self, blocks: u64) -> u64 {
        blocks.saturating_mul(u64::from(self.config.block_bytes))
    }

    /// The sectors of these blocks.
    pub(super) fn range(&self, lba: u64, blocks: u64) -> Result<Range, Sense> {
        let size = self.blocks();
        if lba > size || blocks > size - lba {
            return Err(Sense::out_of_range(lba.max(size)));
        }
        Ok(Range::new(lba * self.block_sectors(), blocks * self.block_sectors()))
    }

    /// The same, from `lba` to the end if the number of blocks is 0.
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
    fn transfer(&self, context: &Context) -> Result<Range, Sense> {
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

    /// Writes are durable when they end.
    fn durable(&self, context: &Context) -> bool {
        context.cdb.flags() & FUA != 0 || self.writes_through()
    }
}

/// A command that wants exactly its output, or ends without doing anything.
fn exactly(context: &Context, wanted: u64, io: Io) -> Plan {
    if context.out_bytes < wanted {
        return short(wanted, io);
    }
    Plan { wanted, collect: wanted, io }
}

/// The initiator sends less than the command says (RFC 7143 §11.4.5.1: an overflow), and what it
/// sends is no use.
fn short(wanted: u64, mut io: Io) -> Plan {
    io.refuse(Sense::illegal(code::INVALID_FIELD_IN_INFORMATION_UNIT));
    Plan { wanted, collect: 0, io }
}

fn plain(io: Io) -> Plan {
    Plan { wanted: 0, collect: 0, io }
}

/// READ(6), (10), (12), (16).
pub(super) fn read(device: &Device, context: &Context) -> Result<Plan, Sense> {
    let range = device.transfer(context)?;
    Ok(plain(device.io(Kind::Read, range, context.cdb.flags() & FUA != 0)))
}

/// WRITE(6), (10), (12), (16). Of an initiator that sends less, the whole blocks that it sends are
/// written; the residual count tells it.
pub(super) fn write(device: &Device, context: &Context) -> Result<Plan, Sense> {
    let range = device.transfer(context)?;
    device.writable()?;
    let durable = device.durable(context);
    Ok(partly(device, context, range, |range| device.io(Kind::Write, range, durable)))
}

fn partly(device: &Device, context: &Context, range: Range, io: impl Fn(Range) -> Io) -> Plan {
    let wanted = range.bytes();
    if context.out_bytes >= wanted {
        return Plan { wanted, collect: wanted, io: io(range) };
    }
    let block = u64::from(device.config.block_bytes);
    let blocks = context.out_bytes / block;
    let sent = Range::new(range.lba, blocks * device.block_sectors());
    Plan { wanted, collect: sent.bytes(), io: io(sent) }
}

/// WRITE ATOMIC(16).
pub(super) fn write_atomic(device: &Device, context: &Context) -> Result<Plan, Sense> {
    let cdb = &context.cdb;
    if cdb.flags() & PROTECT != 0 {
        return Err(Sense::in_cdb(1, Some(7)));
    }
    // ATOMIC BOUNDARY: MAXIMUM ATOMIC BOUNDARY SIZE is 0.
    if cdb.u16(10) != 0 {
        return Err(Sense::in_cdb(10, None));
    }
    let range = device.range(cdb.lba(), u64::from(cdb.u16(12)))?;
    if range.bytes() > MAX_ATOMIC_BYTES {
        return Err(Sense::in_cdb(12, None));
    }
    device.writable()?;
    let io = device.io(Kind::Write, range, device.durable(context));
    Ok(exactly(context, range.bytes(), io))
}

/// WRITE AND VERIFY(10), (12), (16).
pub(super) fn write_and_verify(device: &Device, context: &Context) -> Result<Plan, Sense> {
    let range = device.transfer(context)?;
    let against = match context.cdb.byte(1) >> 1 & 3 {
        0 => Against::Nothing,
        1 => Against::Output,
        _ => return Err(Sense::in_cdb(1, Some(2))),
    };
    device.writable()?;
    Ok(partly(device, context, range, |range| {
        device.io(Kind::WriteAndVerify(against), range, true)
    }))
}

/// VERIFY(10), (12), (16).
pub(super) fn verify(device: &Device, context: &Context) -> Result<Plan, Sense> {
    let cdb = &context.cdb;
    if cdb.flags() & PROTECT != 0 {
        return Err(Sense::in_cdb(1, Some(7)));
    }
    let against = match cdb.byte(1) >> 1 & 3 {
        0 => Against::Nothing,
        1 => Against::Output,
        3 => Against::Block,
        _ => return Err(Sense::in_cdb(1, Some(2))),
    };
    let range = device.range(cdb.lba(), cdb.blocks())?;
    let wanted = match against {
        Against::Nothing => 0,
        Against::Block if range.is_empty() => 0,
        Against::Block => device.bytes(1),
        Against::Output => range.bytes(),
    };
    if wanted > MAX_TRANSFER_BYTES {
        return Err(Sense::in_cdb(cdb.blocks_at(), None));
    }
    Ok(exactly(context, wanted, device.io(Kind::Verify(against), range, false)))
}

/// COMPARE AND WRITE.
pub(super) fn compare_and_write(device: &Device, context: &Context) -> Result<Plan, Sense> {
    let cdb = &context.cdb;
    if cdb.flags() & PROTECT != 0 {
        return Err(Sense::in_cdb(1, Some(7)));
    }
    let range = device.range(cdb.lba(), u64::from(cdb.byte(13)))?;
    device.writable()?;
    let wanted = range.bytes() * 2;
    // Half of the wrong number of bytes would be compared with the wrong blocks.
    if context.out_bytes != wanted {
        return Err(Sense::in_cdb(13, None));
    }
    let io = device.io(Kind::CompareAndWrite, range, device.durable(context));
    Ok(exactly(context, wanted, io))
}

/// ORWRITE(16).
pub(super) fn orwrite(device: &Device, context: &Context) -> Result<Plan, Sense> {
    let range = device.transfer(context)?;
    device.writable()?;
    let io = device.io(Kind::OrWrite, range, device.durable(context));
    Ok(exactly(context, range.bytes(), io))
}

/// WRITE SAME(10), (16).
pub(super) fn write_same(device: &Device, context: &Context) -> Result<Plan, Sense> {
    let cdb = &context.cdb;
    let flags = cdb.byte(1);
    if flags & PROTECT != 0 {
        return Err(Sense::in_cdb(1, Some(7)));
    }
    // ANCHOR: ANC_SUP is 0.
    if flags & 0x10 != 0 {
        return Err(Sense::in_cdb(1, Some(4)));
    }
    // PBDATA and LBDATA of SBC-2 want another block than the one that is sent.
    if flags & 0x06 != 0 {
        return Err(Sense::in_cdb(1, Some(if flags & 0x04 != 0 { 2 } else { 1 })));
    }
    let range = device.range(cdb.lba(), cdb.blocks())?;
    // WSNZ is 1: a length of 0, which could mean all the rest, is refused.
    if range.is_empty() || range.bytes() > MAX_SAME_BYTES {
        return Err(Sense::in_cdb(cdb.blocks_at(), None));
    }
    device.writable()?;
    let unmap = flags & 0x08 != 0;
    let io = device.io(Kind::WriteSame { unmap }, range, device.writes_through());
    // NDOB.
    let wanted = if cdb.len() == 16 && flags & 0x01 != 0 { 0 } else { device.bytes(1) };
    if context.out_bytes != wanted {
        return Ok(short(wanted, io));
    }
    Ok(exactly(context, wanted, io))
}

/// The parameter list of UNMAP.
pub(super) fn unmap_length(device: &Device, context: &Context) -> Result<u64, Outcome> {
    // ANCHOR.
    if context.cdb.byte(1) & 0x01 != 0 {
        return Err(Sense::in_cdb(1, Some(0)).into());
    }
    match device.is_write_protected() {
        Some(sense) => Err(sense.into()),
        None => Ok(u64::from(context.cdb.u16(7))),
    }
}

/// UNMAP.
pub(super) fn unmap(device: &mut Device, context: &Context, list: &[u8]) -> Outcome {
    if context.cdb.u16(7) == 0 {
        return Outcome::DONE;
    }
    match discards(device, list) {
        Ok(ranges) => {
            let durable = device.writes_through();
            let io = device.io(Kind::Discard(ranges), Range::new(0, 0), durable);
            Outcome::Medium(Box::new(io))
        }
        Err(sense) => sense.into(),
    }
}

fn discards(device: &Device, list: &[u8]) -> Result<Vec<Range>, Sense> {
    let Some((header, rest)) = list.split_first_chunk::<8>() else {
        return Err(Sense::list_length());
    };
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    // An incomplete descriptor at the end is ignored, if the list says that it is incomplete.
    let descriptors = rest.get(..length).ok_or(Sense::list_length())?.as_chunks::<16>().0;
    if descriptors.len() as u64 > u64::from(MAX_UNMAP_DESCRIPTORS) {
        return Err(Sense::in_list(2, None));
    }
    let mut ranges = Vec::with_capacity(descriptors.len());
    let mut sum = 0u64;
    for (index, descriptor) in descriptors.iter().enumerate() {
        let (lba, blocks) = (number(&descriptor[..8]), number(&descriptor[8..12]));
        sum += blocks;
        // MAXIMUM UNMAP LBA COUNT is what one descriptor can say.
        if sum > u64::from(u32::MAX) {
            return Err(Sense::in_list(8 + 16 * index + 8, None));
        }
        ranges.push(device.range(lba, blocks)?);
    }
    ranges.retain(|range| !range.is_empty());
    Ok(ranges)
}

/// A big-endian number of at most eight bytes.
pub(super) fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// SYNCHRONIZE CACHE(10), (16). All of the volume is flushed, whatever the range.
pub(super) fn synchronize_cache(device: &Device, context: &Context) -> Result<Plan, Sense> {
    let cdb = &context.cdb;
    if cdb.lba() > 0 || cdb.blocks() > 0 {
        device.range_or_rest(cdb.lba(), cdb.blocks())?;
    }
    let immediate = cdb.byte(1) & 0x02 != 0;
    Ok(plain(device.io(Kind::Flush { immediate }, Range::new(0, 0), false)))
}

/// PRE-FETCH(10), (16): GOOD, never CONDITION MET, which would promise that the blocks will be in
/// the cache.
pub(super) fn prefetch(device: &Device, context: &Context) -> Result<Plan, Sense> {
    let cdb = &context.cdb;
    let range = match (cdb.lba(), cdb.blocks()) {
        (0, 0) => device.range(0, device.blocks())?,
        (lba, blocks) => device.range_or_rest(lba, blocks)?,
    };
    Ok(plain(device.io(Kind::Prefetch, range, false)))
}

/// GET LBA STATUS(16).
pub(super) fn get_lba_status(device: &Device, context: &Context) -> Result<Plan, Sense> {
    let cdb = &context.cdb;
    // REPORT TYPE: all blocks.
    if cdb.byte(14) != 0 {
        return Err(Sense::in_cdb(14, None));
    }
    let mut range = device.range_or_rest(cdb.u64(2), 0)?;
    range.sectors = range.sectors.min(MAX_STATUS_SECTORS);
    let allocation = cdb.u32(10) as usize;
    Ok(plain(device.io(Kind::Status { allocation }, range, false)))
}

/// START STOP UNIT: there is nothing that spins, so to stop is to make everything durable.
pub(super) fn start_stop(device: &Device, context: &Context) -> Result<Plan, Sense> {
    let flags = context.cdb.byte(4);
    match flags >> 4 {
        // START_VALID, ACTIVE, LU_CONTROL.
        0 | 1 | 7 => {}
        _ => return Err(Sense::in_cdb(4, Some(7))),
    }
    // LOEJ: there is no medium to load or eject.
    if flags & 0x02 != 0 {
        return Err(Sense::in_cdb(4, Some(1)));
    }
    let stops = flags & 0xf5 == 0;
    let kind = if stops {
        Kind::Flush { immediate: context.cdb.byte(1) & 0x01 != 0 }
    } else {
        Kind::Nothing
    };
    Ok(plain(device.io(kind, Range::new(0, 0), false)))
}
