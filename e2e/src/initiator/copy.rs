//! Third-party copies as an initiator asks for them (SPC-4, SBC-4): parameter lists, put together
//! here once more.

use super::session::{NONE, READ, WRITE};
use super::{Outcome, Session};

/// A unit as a copy names it: its designator of type NAA, and its block length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Of VPD page 83h.
    pub naa: [u8; 8],
    /// Bytes in a block.
    pub block: u32,
}

/// A segment: source and destination by number, blocks of the source, first block of each.
#[derive(Clone, Copy, Debug)]
pub struct Segment(pub u16, pub u16, pub u16, pub u64, pub u64);

/// Blocks of a list with a token: first one and count.
pub type Range = (u64, u32);

/// A token.
pub type Token = [u8; 512];

/// The end of a command with a token, as RECEIVE ROD TOKEN INFORMATION tells.
#[derive(Clone, Debug)]
pub struct Information {
    /// Service action of that command.
    pub action: u8,
    /// COPY OPERATION STATUS.
    pub status: u8,
    /// Blocks.
    pub blocks: u64,
    /// The new token.
    pub token: Option<Box<Token>>,
}

impl Unit {
    /// Identification descriptor CSCD descriptor.
    #[must_use]
    pub fn descriptor(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        // Code set binary, designator of the logical unit of type NAA.
        (bytes[0], bytes[4], bytes[5], bytes[7]) = (0xe4, 1, 3, 8);
        bytes[8..16].copy_from_slice(&self.naa);
        bytes[28..32].copy_from_slice(&self.block.to_be_bytes());
        bytes
    }
}

/// The token that stands for zeroes.
#[must_use]
pub fn zeroes() -> Token {
    let mut token = [0; 512];
    token[..4].copy_from_slice(&0xffff_0001u32.to_be_bytes());
    token[6..8].copy_from_slice(&0x01f8u16.to_be_bytes());
    token
}

/// The parameter list of EXTENDED COPY(LID1) as list 1.
#[must_use]
pub fn list(units: &[Unit], segments: &[Segment]) -> Vec<u8> {
    let mut list = vec![0; 16];
    list[0] = 1;
    list[2..4].copy_from_slice(&(32 * units.len() as u16).to_be_bytes());
    list[8..12].copy_from_slice(&(28 * segments.len() as u32).to_be_bytes());
    for unit in units {
        list.extend(unit.descriptor());
    }
    for Segment(source, destination, blocks, from, to) in segments {
        list.extend([0x02, 0, 0, 0x18]);
        list.extend([*source, *destination].iter().flat_map(|index| index.to_be_bytes()));
        list.extend([0, 0]);
        list.extend(blocks.to_be_bytes());
        list.extend([*from, *to].iter().flat_map(|lba| lba.to_be_bytes()));
    }
    list
}

fn ranges(list: &mut Vec<u8>, ranges: &[Range]) {
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

impl Session {
    /// VPD page 83h and READ CAPACITY (16) of the unit.
    #[track_caller]
    pub fn unit(&mut self) -> Unit {
        let command = self.command(READ, 1024, &[0x12, 1, 0x83, 4, 0, 0]);
        let page = self.run(0, &command, &[]).good();
        let mut rest = &page[4..];
        let naa = loop {
            let length = usize::from(rest[3]);
            if (rest[0] & 0x0f, rest[1] & 0x3f) == (1, 3) {
                break rest[4..4 + length].try_into().expect("a designator of 8 bytes");
            }
            rest = &rest[4 + length..];
        };
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[13]) = (0x9e, 0x10, 32);
        let command = self.command(READ, 32, &cdb);
        let capacity = self.run(0, &command, &[]).good();
        let block = u32::from_be_bytes(capacity[8..12].try_into().expect("4 bytes"));
        Unit { naa, block }
    }

    /// A command with a parameter list, with its length at bytes 10 to 13.
    #[track_caller]
    pub fn listed(&mut self, mut cdb: [u8; 16], list: &[u8]) -> Outcome {
        let length = list.len() as u32;
        cdb[10..14].copy_from_slice(&length.to_be_bytes());
        let flags = if list.is_empty() { NONE } else { WRITE };
        let command = self.command(flags, length, &cdb);
        self.run(0, &command, list)
    }

    /// EXTENDED COPY(LID1).
    #[track_caller]
    pub fn extended_copy(&mut self, units: &[Unit], segments: &[Segment]) -> Outcome {
        let mut cdb = [0; 16];
        cdb[0] = 0x83;
        self.listed(cdb, &list(units, segments))
    }

    /// POPULATE TOKEN as list `id`; a timeout of 0 seconds is the target's own.
    #[track_caller]
    pub fn populate_token(&mut self, id: u32, timeout: u32, blocks: &[Range]) -> Outcome {
        let mut list = vec![0; 16];
        list[4..8].copy_from_slice(&timeout.to_be_bytes());
        ranges(&mut list, blocks);
        self.with_token(0x10, id, &list)
    }

    /// WRITE USING TOKEN as list `id`, from `offset` blocks on.
    #[track_caller]
    pub fn write_using_token(
        &mut self,
        id: u32,
        immediate: bool,
        token: &Token,
        offset: u64,
        blocks: &[Range],
    ) -> Outcome {
        let mut list = vec![0; 536];
        list[2] = u8::from(immediate);
        list[8..16].copy_from_slice(&offset.to_be_bytes());
        list[16..528].copy_from_slice(token);
        ranges(&mut list, blocks);
        self.with_token(0x11, id, &list)
    }

    #[track_caller]
    fn with_token(&mut self, action: u8, id: u32, list: &[u8]) -> Outcome {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1]) = (0x83, action);
        cdb[6..10].copy_from_slice(&id.to_be_bytes());
        self.listed(cdb, list)
    }

    /// RECEIVE ROD TOKEN INFORMATION.
    ///
    /// # Panics
    /// If the lengths in it do not go together.
    #[track_caller]
    pub fn token_information(&mut self, id: u32) -> Information {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1]) = (0x84, 0x07);
        cdb[2..6].copy_from_slice(&id.to_be_bytes());
        cdb[10..14].copy_from_slice(&1024u32.to_be_bytes());
        let command = self.command(READ, 1024, &cdb);
        let data = self.run(0, &command, &[]).good();
        let u32_at = |at: usize| u32::from_be_bytes(data[at..at + 4].try_into().expect("4 bytes"));
        assert_eq!(u32_at(0) as usize + 4, data.len());
        assert_eq!(data[15], 0xf1, "counted in blocks");
        let at = 32 + usize::from(data[13]);
        let token = (u32_at(at) > 0).then(|| {
            assert_eq!((u32_at(at), data.len()), (514, at + 4 + 514));
            Box::new(data[at + 6..].try_into().expect("512 bytes"))
        });
        let blocks = u64::from_be_bytes(data[16..24].try_into().expect("8 bytes"));
        Information { action: data[4] & 0x1f, status: data[5] & 0x7f, blocks, token }
    }

    /// A token for these blocks.
    #[track_caller]
    pub fn token(&mut self, timeout: u32, blocks: &[Range]) -> Token {
        self.populate_token(77, timeout, blocks).good();
        *self.token_information(77).token.expect("a token")
    }

    /// READ (16).
    #[track_caller]
    pub fn read16(&mut self, lba: u64, blocks: u32, block: u32) -> Vec<u8> {
        let command = self.command(READ, blocks * block, &cdb16(0x88, lba, blocks));
        self.run(0, &command, &[]).good()
    }

    /// WRITE (16).
    #[track_caller]
    pub fn write16(&mut self, lba: u64, data: &[u8], block: u32) {
        let length = data.len() as u32;
        let command = self.command(WRITE, length, &cdb16(0x8a, lba, length / block));
        self.run(0, &command, data).good();
    }

    /// GET LBA STATUS from a block on: runs of blocks, and their mapping. More runs may follow.
    #[track_caller]
    pub fn mapped(&mut self, lba: u64) -> Vec<(u64, u32, bool)> {
        let mut cdb = cdb16(0x9e, lba, 4096);
        cdb[1] = 0x12;
        let command = self.command(READ, 4096, &cdb);
        let data = self.run(0, &command, &[]).good();
        let runs = data[8..].chunks_exact(16).map(|run| {
            let lba = u64::from_be_bytes(run[..8].try_into().expect("8 bytes"));
            let blocks = u32::from_be_bytes(run[8..12].try_into().expect("4 bytes"));
            (lba, blocks, run[12] & 0x0f == 0)
        });
        runs.collect()
    }
}

/// READ (16) and commands of its form.
fn cdb16(code: u8, lba: u64, blocks: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = code;
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
    cdb
}
