//! VPD page 8Fh, third-party copy (SPC-5, and SBC-4 for block devices).

use super::format::{
    BLOCK_TO_BLOCK, CHANGE_VULNERABLE, COPY_ACTIONS, DEFAULT_TIMEOUT, IDENTIFICATION,
    MAX_DESCRIPTORS, MAX_LIST_BYTES, MAX_RANGES, MAX_SEGMENT_BYTES, MAX_SEGMENTS, MAX_TIMEOUT,
    RECEIVE_ACTIONS, TOKEN_BYTES, ZEROES,
};
use crate::block::{MAX_STAGE_SECTORS, SECTOR_BYTES};
use crate::front::scsi::limits::MAX_COPIES;

/// Types of descriptors.
mod kind {
    pub const BLOCK_LIMITS: u16 = 0x0000;
    pub const COMMANDS: u16 = 0x0001;
    pub const PARAMETERS: u16 = 0x0004;
    pub const DESCRIPTORS: u16 = 0x0008;
    pub const TOKEN_FEATURES: u16 = 0x0106;
    pub const TOKEN_TYPES: u16 = 0x0108;
    pub const GENERAL: u16 = 0x8001;
}

/// The page without its header.
pub(in crate::front::scsi) fn page(block_bytes: u32) -> Vec<u8> {
    let mut page = Vec::new();
    let mut add = |kind: u16, mut body: Vec<u8>| {
        body.resize(body.len().next_multiple_of(4), 0);
        page.extend(kind.to_be_bytes());
        // A descriptor has a few dozen bytes.
        page.extend((body.len() as u16).to_be_bytes());
        page.extend(body);
    };
    add(kind::BLOCK_LIMITS, block_limits(block_bytes));
    add(kind::COMMANDS, commands());
    add(kind::PARAMETERS, parameters());
    add(kind::DESCRIPTORS, vec![2, BLOCK_TO_BLOCK, IDENTIFICATION]);
    add(kind::TOKEN_FEATURES, token_features());
    add(kind::TOKEN_TYPES, token_types());
    add(kind::GENERAL, general());
    page
}

/// Block device ROD token limits.
fn block_limits(block_bytes: u32) -> Vec<u8> {
    let mut body = vec![0; 32];
    body[6..8].copy_from_slice(&(MAX_RANGES as u16).to_be_bytes());
    body[8..12].copy_from_slice(&MAX_TIMEOUT.to_be_bytes());
    body[12..16].copy_from_slice(&DEFAULT_TIMEOUT.to_be_bytes());
    // MAXIMUM TOKEN TRANSFER SIZE is that of the ranges. OPTIMAL TRANSFER COUNT is some chunks.
    let optimal = 16 * MAX_STAGE_SECTORS * SECTOR_BYTES / u64::from(block_bytes.max(1));
    body[24..32].copy_from_slice(&optimal.to_be_bytes());
    body
}

fn commands() -> Vec<u8> {
    let mut list = vec![0x83, COPY_ACTIONS.len() as u8];
    list.extend(COPY_ACTIONS);
    list.extend([0x84, RECEIVE_ACTIONS.len() as u8]);
    list.extend(RECEIVE_ACTIONS);
    let mut body = vec![list.len() as u8];
    body.extend(list);
    body
}

fn parameters() -> Vec<u8> {
    let mut body = vec![0; 28];
    body[4..6].copy_from_slice(&(MAX_DESCRIPTORS as u16).to_be_bytes());
    body[6..8].copy_from_slice(&(MAX_SEGMENTS as u16).to_be_bytes());
    body[8..12].copy_from_slice(&(MAX_LIST_BYTES as u32).to_be_bytes());
    body
}

/// ROD token features: the lifetime of tokens. Tokens of other copy managers are not supported.
fn token_features() -> Vec<u8> {
    let mut body = vec![0; 44];
    // MINIMUM and MAXIMUM TOKEN LIFETIME, MAXIMUM TOKEN INACTIVITY TIMEOUT. No lifetime is
    // promised.
    body[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
    body[20..24].copy_from_slice(&MAX_TIMEOUT.to_be_bytes());
    let mut block = vec![0; 48];
    block[2..4].copy_from_slice(&44u16.to_be_bytes());
    // OPTIMAL BYTES FROM TOKEN PER SEGMENT, and to a token (any number).
    block[24..32].copy_from_slice(&u64::MAX.to_be_bytes());
    let optimal = 16 * MAX_STAGE_SECTORS * SECTOR_BYTES;
    block[32..40].copy_from_slice(&optimal.to_be_bytes());
    body[42..44].copy_from_slice(&(block.len() as u16).to_be_bytes());
    body.extend(block);
    body
}

fn token_types() -> Vec<u8> {
    const IN: u8 = 0x02;
    const OUT: u8 = 0x01;
    let mut list = Vec::new();
    for (kind, flags) in [(CHANGE_VULNERABLE, IN | OUT), (ZEROES, IN)] {
        let mut body = [0; 64];
        body[..4].copy_from_slice(&kind.to_be_bytes());
        body[4] = flags;
        list.extend(body);
    }
    let mut body = vec![0; 4];
    body[2..].copy_from_slice(&(list.len() as u16).to_be_bytes());
    body.extend(list);
    body
}

fn general() -> Vec<u8> {
    let mut body = vec![0; 32];
    body[..4].copy_from_slice(&(MAX_COPIES as u32).to_be_bytes());
    body[4..8].copy_from_slice(&(MAX_COPIES as u32).to_be_bytes());
    body[8..12].copy_from_slice(&MAX_SEGMENT_BYTES.to_be_bytes());
    // DATA SEGMENT GRANULARITY: a sector.
    body[12] = SECTOR_BYTES.trailing_zeros() as u8;
    body
}

const _: () = assert!(TOKEN_BYTES == 512);
