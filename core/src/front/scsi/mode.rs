//! MODE SENSE and MODE SELECT: the mode parameters that initiators can see and change.
//!
//! Sources: SPC-5 §6.13 to §6.16 and §7.5, SBC-4 §6.5. The device does not save parameters. They
//! live as long as the device, and a logical unit reset restores the defaults.

use super::command::number;
use super::handler::{CommandContext, CommandOutcome};
use super::logical_unit::LogicalUnit;
use super::mode_parameters::ModeParameters;
use super::sense::{Sense, code};
use super::volume_io::IoKind;
use crate::block::Range;

const RECOVERY: u8 = 0x01;
const CACHING: u8 = 0x08;
const CONTROL: u8 = 0x0a;
const EXCEPTIONS: u8 = 0x1c;
const ALL: u8 = 0x3f;
const ALL_SUBPAGES: u8 = 0xff;

/// The pages, in the order of their codes.
const PAGES: [u8; 4] = [RECOVERY, CACHING, CONTROL, EXCEPTIONS];

/// The page with these parameters.
fn page(page: u8, parameters: &ModeParameters) -> Vec<u8> {
    let bit = |set: bool, bit: u8| if set { bit } else { 0 };
    match page {
        // AWRE and ARRE describe the store. The other fields do not apply.
        RECOVERY => vec![page, 0x0a, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        CACHING => {
            let mut bytes = vec![0; 20];
            bytes[..3].copy_from_slice(&[page, 0x12, bit(parameters.write_cache, 0x04)]);
            bytes
        }
        CONTROL => vec![
            page,
            0x0a,
            bit(parameters.descriptor_sense, 0x04),
            // QUEUE ALGORITHM MODIFIER: unrestricted reordering.
            0x10,
            bit(parameters.write_protect, 0x08),
            bit(parameters.task_aborted, 0x40),
            0,
            0,
            0,
            0,
            0,
            0,
        ],
        // DEXCPT: no informational exceptions.
        _ => vec![page, 0x0a, 0x08, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    }
}

/// The mask of the bits of a page that can be changed.
fn changeable(code: u8) -> Vec<u8> {
    let all = ModeParameters {
        write_cache: true,
        descriptor_sense: true,
        write_protect: true,
        task_aborted: true,
    };
    let none = ModeParameters {
        write_cache: false,
        descriptor_sense: false,
        write_protect: false,
        task_aborted: false,
    };
    let (set, clear) = (page(code, &all), page(code, &none));
    let mut mask: Vec<u8> = set.iter().zip(&clear).map(|(set, clear)| set ^ clear).collect();
    mask[..2].copy_from_slice(&set[..2]);
    mask
}

/// MODE SENSE(6), (10).
pub(super) fn sense(unit: &mut LogicalUnit, context: &CommandContext) -> CommandOutcome {
    let cdb = &context.cdb;
    let short = cdb.len() == 6;
    let (code, subpage) = (cdb.byte(2) & 0x3f, cdb.byte(3));
    let known = code == ALL || PAGES.contains(&code);
    if !known {
        return Sense::in_cdb(2, Some(5)).into();
    }
    // No page has subpages, but an initiator may ask for all subpages of a page.
    if subpage != 0 && subpage != ALL_SUBPAGES {
        return Sense::in_cdb(3, None).into();
    }
    let parameters = match cdb.byte(2) >> 6 {
        0 | 1 => unit.mode,
        2 => ModeParameters::default(),
        _ => return Sense::illegal(code::SAVING_NOT_SUPPORTED).into(),
    };
    let mut body = Vec::new();
    let descriptor = if cdb.byte(1) & 0x08 != 0 {
        0
    } else {
        let long = !short && cdb.byte(1) & 0x10 != 0;
        body.extend(block_descriptor(unit, long));
        body.len()
    };
    for page_code in PAGES.into_iter().filter(|page| code == ALL || code == *page) {
        body.extend(match cdb.byte(2) >> 6 {
            1 => changeable(page_code),
            _ => page(page_code, &parameters),
        });
    }
    let protected = unit.is_write_protected().is_some();
    // WP, DPOFUA.
    let specific = if protected { 0x90 } else { 0x10 };
    // Header, descriptor and pages have less than a hundred bytes.
    let mut bytes = if short {
        vec![(body.len() + 3) as u8, 0, specific, descriptor as u8]
    } else {
        let long = u8::from(descriptor == 16);
        vec![0, (body.len() + 6) as u8, 0, specific, long, 0, 0, descriptor as u8]
    };
    bytes.extend(body);
    let allocation = if short { usize::from(cdb.byte(4)) } else { usize::from(cdb.u16(7)) };
    CommandOutcome::data(bytes, allocation)
}

/// The block descriptor (SBC-4 §6.5.2).
fn block_descriptor(unit: &LogicalUnit, long: bool) -> Vec<u8> {
    let blocks = unit.blocks();
    let size = unit.config.block_bytes.to_be_bytes();
    if long {
        let mut bytes = blocks.to_be_bytes().to_vec();
        bytes.extend([0; 4]);
        bytes.extend(size);
        bytes
    } else {
        let mut bytes = u32::try_from(blocks).unwrap_or(u32::MAX).to_be_bytes().to_vec();
        bytes.extend(size);
        // The upper byte of the block length is the density code, which is 0.
        bytes[4] = 0;
        bytes
    }
}

/// The length of the parameter list of MODE SELECT(6), (10).
pub(super) fn list_length(
    _unit: &LogicalUnit,
    context: &CommandContext,
) -> Result<u64, CommandOutcome> {
    let cdb = &context.cdb;
    // PF 0 means vendor-specific pages.
    if cdb.byte(1) & 0x10 == 0 {
        return Err(Sense::in_cdb(1, Some(4)).into());
    }
    // SP.
    if cdb.byte(1) & 0x01 != 0 {
        return Err(Sense::in_cdb(1, Some(0)).into());
    }
    Ok(if cdb.len() == 6 { u64::from(cdb.byte(4)) } else { u64::from(cdb.u16(7)) })
}

/// MODE SELECT(6), (10). It applies all of the list, or nothing.
pub(super) fn select(
    unit: &mut LogicalUnit,
    context: &CommandContext,
    list: &[u8],
) -> CommandOutcome {
    let cdb = &context.cdb;
    let short = cdb.len() == 6;
    let asked = if short { usize::from(cdb.byte(4)) } else { usize::from(cdb.u16(7)) };
    if asked == 0 {
        return CommandOutcome::DONE;
    }
    let parameters = match selected(unit, list, short) {
        Ok(parameters) => parameters,
        Err(sense) => return sense.into(),
    };
    let before = std::mem::replace(&mut unit.mode, parameters);
    if before != parameters {
        let nexus = context.nexus;
        unit.nexuses.establish(code::MODE_PARAMETERS_CHANGED, |other| other != nexus);
    }
    // When the cache is switched off or the medium protected, earlier writes are made durable.
    let settles = before.write_cache && !parameters.write_cache
        || parameters.write_protect && !before.write_protect;
    if settles {
        let flush = IoKind::Flush { immediate: false };
        let io = unit.io(flush, Range::new(0, 0), false);
        return CommandOutcome::Medium(Box::new(io));
    }
    CommandOutcome::DONE
}

fn selected(unit: &LogicalUnit, list: &[u8], short: bool) -> Result<ModeParameters, Sense> {
    let header = if short { 4 } else { 8 };
    if list.len() < header {
        return Err(Sense::list_length());
    }
    // MODE DATA LENGTH and the device-specific parameter are reserved here; MEDIUM TYPE is 0.
    let medium = if short { 1 } else { 2 };
    if list[medium] != 0 {
        return Err(Sense::in_list(medium, None));
    }
    let long = !short && list[4] & 0x01 != 0;
    let length_at = if short { 3 } else { 6 };
    let descriptor = number(&list[length_at..header]) as usize;
    let expected = if long { 16 } else { 8 };
    if descriptor != 0 && descriptor != expected {
        return Err(Sense::in_list(length_at, None));
    }
    let Some(pages) = list.get(header + descriptor..) else { return Err(Sense::list_length()) };
    if descriptor != 0 {
        check_descriptor(unit, &list[header..header + descriptor], header, long)?;
    }
    let mut parameters = unit.mode;
    let mut at = header + descriptor;
    let mut rest = pages;
    while let [first, ..] = *rest {
        let code = first & 0x3f;
        // SPF: no page has subpages.
        if first & 0x40 != 0 || !PAGES.contains(&code) {
            return Err(Sense::in_list(at, Some(if first & 0x40 != 0 { 6 } else { 5 })));
        }
        let current = page(code, &parameters);
        let Some(length) = rest.get(1) else { return Err(Sense::list_length()) };
        if usize::from(*length) != current.len() - 2 {
            return Err(Sense::in_list(at + 1, None));
        }
        let Some((new, after)) = rest.split_at_checked(current.len()) else {
            return Err(Sense::list_length());
        };
        let mask = changeable(code);
        for index in 2..current.len() {
            let differs = (new[index] ^ current[index]) & !mask[index];
            if differs != 0 {
                // The highest wrong bit has a number of 7 at most.
                let bit = differs.ilog2() as u8;
                return Err(Sense::in_list(at + index, Some(bit)));
            }
        }
        match code {
            CACHING => parameters.write_cache = new[2] & 0x04 != 0,
            CONTROL => {
                parameters.descriptor_sense = new[2] & 0x04 != 0;
                parameters.write_protect = new[4] & 0x08 != 0;
                parameters.task_aborted = new[5] & 0x40 != 0;
            }
            _ => {}
        }
        at += current.len();
        rest = after;
    }
    Ok(parameters)
}

/// Checks a block descriptor. It has to match the medium, but may leave the number of blocks open.
fn check_descriptor(
    unit: &LogicalUnit,
    descriptor: &[u8],
    at: usize,
    long: bool,
) -> Result<(), Sense> {
    let expected = block_descriptor(unit, long);
    let (count, size) = if long { (0..8, 12..16) } else { (0..4, 5..8) };
    let blocks = &descriptor[count.clone()];
    let open = blocks.iter().all(|byte| *byte == 0) || blocks.iter().all(|byte| *byte == 0xff);
    if !open && *blocks != expected[count] {
        return Err(Sense::in_list(at, None));
    }
    if descriptor[size.clone()] != expected[size.clone()] {
        return Err(Sense::in_list(at + size.start, None));
    }
    Ok(())
}
