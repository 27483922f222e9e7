//! Parameter lists of copies and their commands, for tests.

use crate::front::scsi::copy::RodToken;

/// The designator of a volume with this identity.
pub fn naa(volume: u128) -> [u8; 8] {
    let local = (volume >> 64) as u64 ^ volume as u64;
    (local >> 4 | 3 << 60).to_be_bytes()
}

pub fn descriptor(name: [u8; 8], block_bytes: u32) -> [u8; 32] {
    let mut bytes = [0; 32];
    (bytes[0], bytes[4], bytes[5], bytes[7]) = (0xe4, 1, 3, 8);
    bytes[8..16].copy_from_slice(&name);
    bytes[28..].copy_from_slice(&block_bytes.to_be_bytes());
    bytes
}

/// Source, destination, blocks, source block, destination block.
pub type Seg = (u16, u16, u16, u64, u64);

pub fn segment((source, destination, blocks, from, to): Seg) -> [u8; 28] {
    let mut bytes = [0; 28];
    (bytes[0], bytes[3]) = (2, 24);
    bytes[4..6].copy_from_slice(&source.to_be_bytes());
    bytes[6..8].copy_from_slice(&destination.to_be_bytes());
    bytes[10..12].copy_from_slice(&blocks.to_be_bytes());
    bytes[12..20].copy_from_slice(&from.to_be_bytes());
    bytes[20..28].copy_from_slice(&to.to_be_bytes());
    bytes
}

pub fn cdb(action: u8, list: u32, length: usize) -> Vec<u8> {
    let mut cdb = vec![0; 16];
    (cdb[0], cdb[1]) = (0x83, action);
    if action != 0 {
        cdb[6..10].copy_from_slice(&list.to_be_bytes());
    }
    cdb[10..14].copy_from_slice(&(length as u32).to_be_bytes());
    cdb
}

/// EXTENDED COPY with these units and segments, as list `id`.
pub fn extended_copy_of(id: u8, units: &[[u8; 32]], segments: &[Seg]) -> (Vec<u8>, Vec<u8>) {
    let mut list = vec![0; 16];
    list[0] = id;
    list[2..4].copy_from_slice(&(32 * units.len() as u16).to_be_bytes());
    list[8..12].copy_from_slice(&(28 * segments.len() as u32).to_be_bytes());
    list.extend(units.iter().flatten());
    list.extend(segments.iter().flat_map(|it| segment(*it)));
    (cdb(0, 0, list.len()), list)
}

/// EXTENDED COPY between two units.
pub fn extended_copy(segments: &[Seg]) -> (Vec<u8>, Vec<u8>) {
    extended_copy_of(1, &[descriptor(naa(1), 512), descriptor(naa(2), 512)], segments)
}

fn ranges(list: &mut Vec<u8>, ranges: &[(u64, u32)]) {
    let at = list.len();
    list[at - 2..].copy_from_slice(&(16 * ranges.len() as u16).to_be_bytes());
    for (lba, blocks) in ranges {
        list.extend(lba.to_be_bytes());
        list.extend(blocks.to_be_bytes());
        list.extend([0; 4]);
    }
    let length = list.len() as u16 - 2;
    list[..2].copy_from_slice(&length.to_be_bytes());
}

/// POPULATE TOKEN.
pub fn populate(id: u32, blocks: &[(u64, u32)]) -> (Vec<u8>, Vec<u8>) {
    let mut list = vec![0; 16];
    ranges(&mut list, blocks);
    (cdb(0x10, id, list.len()), list)
}

/// WRITE USING TOKEN.
pub fn write_using_token(
    id: u32,
    flags: u8,
    offset: u64,
    token: &RodToken,
    blocks: &[(u64, u32)],
) -> (Vec<u8>, Vec<u8>) {
    let mut list = vec![0; 536];
    list[2] = flags;
    list[8..16].copy_from_slice(&offset.to_be_bytes());
    list[16..528].copy_from_slice(token);
    ranges(&mut list, blocks);
    (cdb(0x11, id, list.len()), list)
}

/// The block zeroes token.
pub fn zero_token() -> RodToken {
    let mut token = [0; 512];
    token[..4].copy_from_slice(&0xffff_0001u32.to_be_bytes());
    token[6..8].copy_from_slice(&0x01f8u16.to_be_bytes());
    token
}

/// RECEIVE COPY RESULTS.
pub fn results(action: u8, id: u8) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[2], cdb[12]) = (0x84, action, id, 4);
    cdb
}

/// RECEIVE ROD TOKEN INFORMATION.
pub fn token_information(id: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[12]) = (0x84, 0x07, 4);
    cdb[2..6].copy_from_slice(&id.to_be_bytes());
    cdb
}

/// The token in the data of RECEIVE ROD TOKEN INFORMATION.
pub fn token_of(information: &[u8]) -> RodToken {
    let at = 32 + usize::from(information[13]);
    assert_eq!(information[at..at + 4], 514u32.to_be_bytes());
    information[at + 6..at + 518].try_into().unwrap()
}
