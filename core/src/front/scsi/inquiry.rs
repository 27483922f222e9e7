//! The identity of the device: INQUIRY with its VPD pages, and REPORT LUNS.
//!
//! The identity of the logical unit comes from the volume's identity alone. So it is the same after
//! a restart, on another host, and on every path.

use super::control::requested;
use super::copy::vpd;
use super::handler::{CommandContext, CommandOutcome};
use super::limits::{
    MAX_ATOMIC_BYTES, MAX_COMPARE_BLOCKS, MAX_SAME_BYTES, MAX_TRANSFER_BYTES, MAX_UNMAP_DESCRIPTORS,
};
use super::logical_unit::{LogicalUnit, NAA};
use super::nexus::TARGET_PORT;
use super::sense::{Sense, code};
use crate::block::BLOCK_BYTES;

/// T10 vendor identification, eight characters; not registered.
const VENDOR: &[u8; 8] = b"LONGHAUL";
const PRODUCT: &[u8; 16] = b"VOLUME          ";

/// OPTIMAL TRANSFER LENGTH in bytes: the length of a record.
const OPTIMAL_BYTES: u64 = 1 << 20;

/// The VPD pages, in order.
const PAGES: [u8; 8] = [0x00, 0x80, 0x83, 0x86, 0x8f, 0xb0, 0xb1, 0xb2];

/// Version descriptors (SPC-5 §6.6.2): SAM-5, SPC-4, SPC-5, SBC-3, SBC-4, iSCSI.
const VERSIONS: [u16; 6] = [0x00a0, 0x0460, 0x05c0, 0x04c0, 0x0600, 0x0960];

/// The outcome of a command to a logical unit that does not exist (SPC-5 §6.6.1, §6.36; SAM-5
/// §5.9.4).
pub(super) fn elsewhere(context: &CommandContext) -> CommandOutcome {
    let nowhere = Sense::illegal(code::LUN_NOT_SUPPORTED);
    match context.cdb.byte(0) {
        0x12 if context.cdb.byte(1) & 0x01 == 0 && context.cdb.byte(2) == 0 => {
            let mut bytes = standard();
            // Peripheral qualifier and type: no device can be here.
            bytes[0] = 0x7f;
            CommandOutcome::data(bytes, usize::from(context.cdb.u16(3)))
        }
        0x03 => requested(context, nowhere),
        _ => nowhere.into(),
    }
}

/// REPORT LUNS: one logical unit, and no well-known ones.
pub(super) fn report_luns(_unit: &mut LogicalUnit, context: &CommandContext) -> CommandOutcome {
    let luns = match context.cdb.byte(2) {
        // The device has no well-known logical units, so these are all.
        0x00 | 0x02 => 1,
        0x01 => 0,
        _ => return Sense::in_cdb(2, None).into(),
    };
    let mut bytes = vec![0, 0, 0, luns * 8, 0, 0, 0, 0];
    bytes.resize(8 + usize::from(luns) * 8, 0);
    CommandOutcome::data(bytes, context.cdb.u32(6) as usize)
}

/// INQUIRY.
pub(super) fn inquiry(unit: &mut LogicalUnit, context: &CommandContext) -> CommandOutcome {
    let cdb = &context.cdb;
    let allocation = usize::from(cdb.u16(3));
    let page = cdb.byte(2);
    if cdb.byte(1) & 0x01 == 0 {
        return match page {
            0 => CommandOutcome::data(standard(), allocation),
            _ => Sense::in_cdb(2, None).into(),
        };
    }
    let body = match page {
        0x00 => PAGES.to_vec(),
        0x80 => serial(unit).into_bytes(),
        0x83 => identification(unit, context),
        0x86 => extended(),
        0x8f => vpd::page(unit.config.block_bytes),
        0xb0 => limits(unit),
        0xb1 => characteristics(),
        0xb2 => provisioning(),
        _ => return Sense::in_cdb(2, None).into(),
    };
    let mut bytes = vec![0, page];
    // The longest page is the identification, with two names of at most 223 bytes.
    bytes.extend((body.len() as u16).to_be_bytes());
    bytes.extend(body);
    CommandOutcome::data(bytes, allocation)
}

/// Standard INQUIRY data. VERSION is that of SPC-4, because hosts and test suites take SPC-5's for
/// an error. The version descriptors name both.
fn standard() -> Vec<u8> {
    let mut bytes = vec![0; 96];
    bytes[2] = 0x06;
    // HISUP, format 2.
    bytes[3] = 0x12;
    bytes[4] = 96 - 5;
    // TPGS (implicit), 3PC.
    bytes[5] = 0x18;
    // CMDQUE.
    bytes[7] = 0x02;
    bytes[8..16].copy_from_slice(VENDOR);
    bytes[16..32].copy_from_slice(PRODUCT);
    bytes[32..36].copy_from_slice(&revision());
    for (at, version) in bytes[58..].chunks_exact_mut(2).zip(VERSIONS) {
        at.copy_from_slice(&version.to_be_bytes());
    }
    bytes
}

/// Major and minor version in four characters.
fn revision() -> [u8; 4] {
    let version = concat!(env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));
    let mut revision = *b"    ";
    for (at, byte) in revision.iter_mut().zip(version.bytes()) {
        *at = byte;
    }
    revision
}

fn serial(unit: &LogicalUnit) -> String {
    unit.config.volume.to_string()
}

const BINARY: u8 = 1;

/// Device identification (SPC-5 §7.7.6).
fn identification(unit: &LogicalUnit, context: &CommandContext) -> Vec<u8> {
    const ASCII: u8 = 2;
    const UTF8: u8 = 3;
    const UNIT: u8 = 0x00;
    // PIV with the association to the target port or the target device. The protocol is iSCSI.
    const PORT: u8 = 0x90;
    const TARGET: u8 = 0xa0;
    let mut bytes = Vec::new();
    let mut add = |set: u8, kind: u8, value: &[u8]| {
        let protocol = if kind & 0x80 != 0 { 0x50 } else { 0 };
        // A value has at most 255 bytes, because iSCSI names have at most 223.
        let length = value.len().min(255);
        bytes.extend([protocol | set, kind, 0, length as u8]);
        bytes.extend(&value[..length]);
    };
    let t10 = [VENDOR.as_slice(), serial(unit).as_bytes()].concat();
    add(ASCII, UNIT | 0x1, &t10);
    add(NAA.0, UNIT | NAA.1, &unit.naa());
    let port = unit.nexuses.relative_port(context.nexus);
    let [high, low] = port.to_be_bytes();
    add(BINARY, PORT | 0x4, &[0, 0, high, low]);
    let [high, low] = TARGET_PORT.to_be_bytes();
    add(BINARY, PORT | 0x5, &[0, 0, high, low]);
    let target = &unit.config.target_name;
    add(UTF8, PORT | 0x8, &padded(&format!("{target},t,0x{TARGET_PORT:04x}")));
    add(UTF8, TARGET | 0x8, &padded(target));
    bytes
}

/// A SCSI name string: it ends with a null and is a multiple of four bytes long (SPC-5 §7.7.6.11).
fn padded(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.truncate(251);
    bytes.resize((bytes.len() + 1).next_multiple_of(4), 0);
    bytes
}

/// Extended INQUIRY data (SPC-5 §7.7.7).
fn extended() -> Vec<u8> {
    let mut body = vec![0; 60];
    // HEADSUP, ORDSUP, SIMPSUP.
    body[1] = 0x07;
    // V_SUP: the unit has a volatile cache.
    body[2] = 0x01;
    body
}

/// Block limits (SBC-4 §6.6.4).
fn limits(unit: &LogicalUnit) -> Vec<u8> {
    let blocks = |bytes: u64| {
        // The value is a few MiB.
        ((bytes / u64::from(unit.config.block_bytes.max(1))) as u32).to_be_bytes()
    };
    let physical = blocks(BLOCK_BYTES);
    let mut body = vec![0; 60];
    // WSNZ.
    body[0] = 0x01;
    body[1] = MAX_COMPARE_BLOCKS;
    // OPTIMAL TRANSFER LENGTH GRANULARITY, MAXIMUM and OPTIMAL TRANSFER LENGTH. MAXIMUM PREFETCH
    // LENGTH is 0: no limit.
    body[2..4].copy_from_slice(&physical[2..]);
    body[4..8].copy_from_slice(&blocks(MAX_TRANSFER_BYTES));
    body[8..12].copy_from_slice(&blocks(OPTIMAL_BYTES));
    // MAXIMUM UNMAP LBA COUNT (no limit), then descriptors, granularity and alignment (0, valid).
    body[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
    body[20..24].copy_from_slice(&MAX_UNMAP_DESCRIPTORS.to_be_bytes());
    body[24..28].copy_from_slice(&physical);
    body[28] = 0x80;
    body[36..40].copy_from_slice(&blocks(MAX_SAME_BYTES));
    // MAXIMUM ATOMIC TRANSFER LENGTH, without alignment, granularity or boundaries.
    body[40..44].copy_from_slice(&blocks(MAX_ATOMIC_BYTES));
    body
}

/// Block device characteristics (SBC-4 §6.6.2): a non-rotating medium.
fn characteristics() -> Vec<u8> {
    let mut body = vec![0; 60];
    body[1] = 0x01;
    body
}

/// Logical block provisioning (SBC-4 §6.6.7).
fn provisioning() -> Vec<u8> {
    // LBPU, LBPWS, LBPWS10, LBPRZ (unmapped blocks read as zeroes); thin provisioning.
    vec![0, 0xe4, 0x02, 0]
}
