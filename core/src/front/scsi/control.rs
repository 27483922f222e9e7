//! Commands that tell what the device is and how it fares, without touching blocks.

use super::sense::{Sense, code, key};
use super::{Context, DataIn, Device, Outcome};

/// TEST UNIT READY: what could be wrong has been looked at before.
pub(super) fn test_unit_ready(_device: &mut Device, _context: &Context) -> Outcome {
    Outcome::DONE
}

/// REQUEST SENSE: the next unit attention, which is then gone, or that there is nothing.
pub(super) fn request_sense(device: &mut Device, context: &Context) -> Outcome {
    let sense = match device.take_attention(context.nexus) {
        Some(code) => Sense::attention(code),
        None => Sense::new(key::NO_SENSE, code::NONE),
    };
    requested(context, sense)
}

/// Sense data as parameter data, in the format that DESC asks for.
pub(super) fn requested(context: &Context, sense: Sense) -> Outcome {
    let bytes = sense.bytes(context.cdb.byte(1) & 0x01 != 0);
    let cut = bytes.len().min(usize::from(context.cdb.byte(4)));
    Outcome::Good(DataIn::Parameter(bytes.slice(..cut)))
}

/// READ CAPACITY(10).
pub(super) fn read_capacity_10(device: &mut Device, _context: &Context) -> Outcome {
    let last = device.blocks().saturating_sub(1);
    // A last block that does not fit says: ask READ CAPACITY(16).
    let last = u32::try_from(last).unwrap_or(u32::MAX);
    let mut bytes = last.to_be_bytes().to_vec();
    bytes.extend(device.config.block_bytes.to_be_bytes());
    Outcome::data(bytes, 8)
}

/// READ CAPACITY(16).
pub(super) fn read_capacity_16(device: &mut Device, context: &Context) -> Outcome {
    let mut bytes = vec![0; 32];
    let last = device.blocks().saturating_sub(1);
    bytes[..8].copy_from_slice(&last.to_be_bytes());
    bytes[8..12].copy_from_slice(&device.config.block_bytes.to_be_bytes());
    // LOGICAL BLOCKS PER PHYSICAL BLOCK EXPONENT; the first physical block begins with block 0.
    bytes[13] = super::inquiry::physical_blocks(device).trailing_zeros() as u8;
    // LBPME, LBPRZ: blocks can be given back, and read as zeroes then.
    bytes[14] = 0xc0;
    Outcome::data(bytes, context.cdb.u32(10) as usize)
}

/// PREVENT ALLOW MEDIUM REMOVAL: there is nothing to remove.
pub(super) fn prevent_allow(_device: &mut Device, context: &Context) -> Outcome {
    match context.cdb.byte(4) & 0x03 {
        0 | 1 => Outcome::DONE,
        // Of media changers, and obsolete.
        _ => Sense::in_cdb(4, Some(1)).into(),
    }
}

/// READ DEFECT DATA(10), (12): lists of the kind and format asked for, and empty.
pub(super) fn read_defect_data(_device: &mut Device, context: &Context) -> Outcome {
    let cdb = &context.cdb;
    if cdb.len() == 10 {
        Outcome::data(vec![0, cdb.byte(2) & 0x1f, 0, 0], usize::from(cdb.u16(7)))
    } else {
        Outcome::data(vec![0, cdb.byte(1) & 0x1f, 0, 0, 0, 0, 0, 0], cdb.u32(6) as usize)
    }
}

/// RECEIVE DIAGNOSTIC RESULTS: the one page is the list of pages.
pub(super) fn receive_diagnostic(_device: &mut Device, context: &Context) -> Outcome {
    let cdb = &context.cdb;
    // PCV is 0: the page that was last sent, which can only have been this one.
    if cdb.byte(1) & 0x01 != 0 && cdb.byte(2) != 0 {
        return Sense::in_cdb(2, None).into();
    }
    Outcome::data(vec![0, 0, 0, 1, 0], usize::from(cdb.u16(3)))
}

/// The parameter list of SEND DIAGNOSTIC.
pub(super) fn diagnostic_length(_device: &Device, context: &Context) -> Result<u64, Outcome> {
    let cdb = &context.cdb;
    let length = u64::from(cdb.u16(3));
    // The default self-test brings no list, the others are not offered.
    if cdb.byte(1) & 0xe0 != 0 {
        return Err(Sense::in_cdb(1, Some(7)).into());
    }
    if length > 0 && (cdb.byte(1) & 0x04 != 0 || length > 4) {
        return Err(Sense::in_cdb(3, None).into());
    }
    // PF is 0: a list of the vendor's.
    if length > 0 && cdb.byte(1) & 0x10 == 0 {
        return Err(Sense::in_cdb(1, Some(4)).into());
    }
    Ok(length)
}

/// SEND DIAGNOSTIC.
pub(super) fn send_diagnostic(_device: &mut Device, context: &Context, list: &[u8]) -> Outcome {
    match list {
        _ if context.cdb.u16(3) == 0 => Outcome::DONE,
        [0, _, 0, 0] => Outcome::DONE,
        [page, ..] if *page != 0 => Sense::in_list(0, None).into(),
        [_, _, _, _] => Sense::in_list(2, None).into(),
        _ => Sense::list_length().into(),
    }
}

/// LOG SENSE: the list of pages, and that there is no exception to report.
pub(super) fn log_sense(_device: &mut Device, context: &Context) -> Outcome {
    let cdb = &context.cdb;
    // SP: nothing is saved.
    if cdb.byte(1) & 0x01 != 0 {
        return Sense::in_cdb(1, Some(0)).into();
    }
    let bytes = match (cdb.byte(2) & 0x3f, cdb.byte(3)) {
        (0x00, 0x00) => vec![0x00, 0, 0, 2, 0x00, 0x2f],
        (0x00, 0xff) => vec![0x40, 0xff, 0, 6, 0x00, 0x00, 0x00, 0xff, 0x2f, 0x00],
        // The general parameter: ASC, ASCQ, and a temperature that is not known.
        (0x2f, 0x00) => vec![0x2f, 0, 0, 8, 0, 0, 0x03, 4, 0, 0, 0xff, 0],
        (0x00 | 0x2f, _) => return Sense::in_cdb(3, None).into(),
        _ => return Sense::in_cdb(2, Some(5)).into(),
    };
    Outcome::data(bytes, usize::from(cdb.u16(7)))
}
