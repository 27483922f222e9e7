//! What a volume may look like: the model that every answer is compared with.
//!
//! Every write of a world is an [`Op`] with a number; every sector that it writes carries the
//! number, its volume and its address ([`fill`]), so any sector that is ever read back tells which
//! write put it there. A [`Branch`] is the order of writes as one attachment sees it: the writes it
//! started from and its own in the order in which they were requested, which is the order of their
//! numbers (a write's `seq` is its place in the branch).
//!
//! It knows nothing of journals, links or objects.

use longhaul_core::block::{BlockState, Range, ReadPiece, SECTOR_BYTES, Seq, StatusRun};

const SECTOR: usize = SECTOR_BYTES as usize;
const STAMP: u32 = 0x51_6d_7e_a1;

/// What a write does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Writes stamped data.
    Data,
    /// Discards.
    Discard,
    /// Writes zeroes; whether they stay allocated.
    Zero(bool),
}

/// A write, discard or zeroing.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    /// Volume index.
    pub volume: usize,
    /// What it does.
    pub kind: Kind,
    /// Where.
    pub range: Range,
}

/// The number of an [`Op`], from 1; 0 is a sector never written.
pub type OpId = u32;

fn word(volume: usize, op: OpId, lba: u64) -> u64 {
    let mixed = (u64::from(op) << 32) ^ (lba << 8) ^ volume as u64;
    mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Appends the content of one sector of a write.
pub fn fill(volume: usize, op: OpId, lba: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&STAMP.to_le_bytes());
    out.extend_from_slice(&(volume as u32).to_le_bytes());
    out.extend_from_slice(&op.to_le_bytes());
    out.extend_from_slice(&(lba as u32).to_le_bytes());
    let first = word(volume, op, lba);
    for n in 2..(SECTOR as u64 / 8) {
        out.extend_from_slice(
            &first.wrapping_add(n.wrapping_mul(0x0101_0101_0101_0101)).to_le_bytes(),
        );
    }
}

/// Which write put this sector there; 0 for zeroes.
///
/// # Errors
/// If no write of the world ever put these bytes into this sector of this volume.
pub fn stamp(volume: usize, lba: u64, sector: &[u8]) -> Result<OpId, String> {
    if sector.iter().all(|byte| *byte == 0) {
        return Ok(0);
    }
    let number = |at: usize| {
        sector.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
    };
    let op = number(8);
    let mut expected = Vec::with_capacity(SECTOR);
    fill(volume, op, lba, &mut expected);
    if number(0) == STAMP && expected == sector {
        return Ok(op);
    }
    if number(0) == STAMP && (number(4) as usize != volume || u64::from(number(12)) != lba) {
        return Err(format!(
            "sector {lba} of volume {volume} holds sector {} of volume {} (write {op})",
            number(12),
            number(4)
        ));
    }
    Err(format!("sector {lba} of volume {volume} holds bytes that nobody wrote"))
}

/// The writes of one attachment in order.
#[derive(Clone, Debug)]
pub struct Branch {
    /// Volume index.
    pub volume: usize,
    /// All writes; the one with number `seq` is at `seq - 1`.
    pub log: Vec<OpId>,
    /// For each sector, the places (seq) in the log of the writes that touch it, in order.
    history: Vec<Vec<u32>>,
    /// For each sector, the oldest place whose effect a new read may still show.
    floor: Vec<u32>,
    /// Highest acknowledged place.
    pub acknowledged: Seq,
    /// Everything up to here survives a crash of the host.
    pub flushed: Seq,
}

impl Branch {
    /// A branch that starts from these writes, all of them certain.
    #[must_use]
    pub fn new(volume: usize, sectors: u64, log: Vec<OpId>, ops: &[Op]) -> Branch {
        let mut branch = Branch {
            volume,
            log: Vec::new(),
            history: vec![Vec::new(); sectors as usize],
            floor: vec![0; sectors as usize],
            acknowledged: 0,
            flushed: 0,
        };
        for op in log {
            let seq = branch.push(op, &ops[op as usize - 1]);
            branch.raise(ops[op as usize - 1].range, seq as u32);
        }
        branch.acknowledged = branch.log.len() as Seq;
        branch.flushed = branch.acknowledged;
        branch
    }

    /// Adds a requested write: its number.
    pub fn push(&mut self, id: OpId, op: &Op) -> Seq {
        self.log.push(id);
        let seq = self.log.len() as u32;
        for lba in op.range.lba..op.range.end() {
            self.history[lba as usize].push(seq);
        }
        Seq::from(seq)
    }

    /// A write was acknowledged: reads that begin from now on see it or a later one.
    pub fn acknowledge(&mut self, seq: Seq, range: Range) {
        self.raise(range, seq as u32);
        self.acknowledged = self.acknowledged.max(seq);
    }

    fn raise(&mut self, range: Range, seq: u32) {
        for lba in range.lba..range.end() {
            let floor = &mut self.floor[lba as usize];
            *floor = (*floor).max(seq);
        }
    }

    /// What a read of `range` that begins now may show at least.
    #[must_use]
    pub fn floors(&self, range: Range) -> Vec<u32> {
        self.floor[range.lba as usize..range.end() as usize].to_vec()
    }

    fn data_of(&self, seq: u32, ops: &[Op]) -> OpId {
        if seq == 0 {
            return 0;
        }
        let op = self.log[seq as usize - 1];
        if ops[op as usize - 1].kind == Kind::Data { op } else { 0 }
    }

    /// The places whose effect a read that began at `floor` may show at a sector.
    fn candidates(&self, lba: u64, floor: u32) -> impl Iterator<Item = u32> + '_ {
        let history = &self.history[lba as usize];
        let from = history.partition_point(|seq| *seq <= floor);
        std::iter::once(floor).chain(history[from..].iter().copied())
    }

    /// Compares what a read found with what it may show, and holds later reads to it.
    ///
    /// # Errors
    /// Says which sector shows what, and what it might have shown.
    pub fn check_read(
        &mut self,
        range: Range,
        floors: &[u32],
        pieces: &[ReadPiece],
        ops: &[Op],
    ) -> Result<(), String> {
        let mut lba = range.lba;
        for piece in pieces {
            match piece {
                ReadPiece::Zeroes(sectors) => {
                    for _ in 0..*sectors {
                        self.check_sector(lba, range, floors, 0, ops)?;
                        lba += 1;
                    }
                }
                ReadPiece::Data(bytes) => {
                    if bytes.is_empty() || bytes.len() % SECTOR != 0 {
                        return Err(format!(
                            "a read piece of {} bytes at sector {lba}",
                            bytes.len()
                        ));
                    }
                    for sector in bytes.chunks_exact(SECTOR) {
                        let op = stamp(self.volume, lba, sector)?;
                        self.check_sector(lba, range, floors, op, ops)?;
                        lba += 1;
                    }
                }
            }
        }
        if lba != range.end() {
            return Err(format!("a read of {range} was answered up to sector {lba}"));
        }
        Ok(())
    }

    fn check_sector(
        &mut self,
        lba: u64,
        range: Range,
        floors: &[u32],
        found: OpId,
        ops: &[Op],
    ) -> Result<(), String> {
        let Some(floor) = lba.checked_sub(range.lba).and_then(|n| floors.get(n as usize)) else {
            return Err(format!("a read of {range} was answered beyond its end"));
        };
        let mut matching =
            self.candidates(lba, *floor).filter(|seq| self.data_of(*seq, ops) == found);
        let (first, second) = (matching.next(), matching.next());
        drop(matching);
        match (first, second) {
            (Some(seq), None) => {
                let floor = &mut self.floor[lba as usize];
                *floor = (*floor).max(seq);
                Ok(())
            }
            (Some(_), Some(_)) => Ok(()),
            (None, _) => {
                let allowed: Vec<String> = self
                    .candidates(lba, *floor)
                    .map(|seq| format!("{}@{seq}", self.data_of(seq, ops)))
                    .collect();
                let place = self.log.iter().position(|op| *op == found).map(|n| n + 1);
                Err(format!(
                    "sector {lba} of volume {} shows write {found} (seq {place:?} here), allowed are {}",
                    self.volume,
                    allowed.join(", ")
                ))
            }
        }
    }

    /// Compares a status answer with what it may say.
    ///
    /// # Errors
    /// Says which sector is called what.
    pub fn check_status(
        &self,
        range: Range,
        floors: &[u32],
        runs: &[StatusRun],
        ops: &[Op],
    ) -> Result<(), String> {
        let mut lba = range.lba;
        for run in runs {
            for _ in 0..run.sectors {
                let Some(floor) = floors.get((lba - range.lba) as usize) else {
                    return Err(format!("a status of {range} was answered beyond its end"));
                };
                let allowed = self.candidates(lba, *floor).any(|seq| {
                    let kind = if seq == 0 {
                        Kind::Discard
                    } else {
                        ops[self.log[seq as usize - 1] as usize - 1].kind
                    };
                    match run.state {
                        BlockState::Data => kind == Kind::Data,
                        BlockState::Zero => matches!(kind, Kind::Zero(_)),
                        BlockState::Hole => matches!(kind, Kind::Discard | Kind::Zero(false)),
                    }
                });
                if !allowed {
                    return Err(format!(
                        "sector {lba} of volume {} is said to be {:?} and cannot be",
                        self.volume, run.state
                    ));
                }
                lba += 1;
            }
        }
        if runs.is_empty() || lba > range.end() {
            return Err(format!("a status of {range} was answered up to sector {lba}"));
        }
        Ok(())
    }
}

/// An image of a volume: for each sector the write whose data it shows, 0 for zeroes.
pub type Image = Vec<OpId>;

/// Applies a write to an image.
pub fn apply(image: &mut Image, id: OpId, op: &Op) {
    let value = if op.kind == Kind::Data { id } else { 0 };
    for lba in op.range.lba..op.range.end() {
        image[lba as usize] = value;
    }
}

/// The image after all these writes.
#[must_use]
pub fn image(sectors: u64, log: &[OpId], ops: &[Op]) -> Image {
    let mut image = vec![0; sectors as usize];
    for id in log {
        apply(&mut image, *id, &ops[*id as usize - 1]);
    }
    image
}

/// Where two images differ first, in words.
#[must_use]
pub fn difference(expected: &Image, found: &Image) -> Option<String> {
    let lba = expected.iter().zip(found).position(|(a, b)| a != b)?;
    let count = expected.iter().zip(found).filter(|(a, b)| a != b).count();
    Some(format!(
        "{count} sectors differ, the first is {lba}: expected write {}, found write {}",
        expected[lba], found[lba]
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn op(lba: u64, sectors: u64) -> Op {
        Op { volume: 1, kind: Kind::Data, range: Range::new(lba, sectors) }
    }

    fn data(id: OpId, lba: u64, sectors: u64) -> ReadPiece {
        let mut out = Vec::new();
        for lba in lba..lba + sectors {
            fill(1, id, lba, &mut out);
        }
        ReadPiece::Data(Bytes::from(out))
    }

    #[test]
    fn a_stamp_names_its_write_and_its_place() {
        let mut sector = Vec::new();
        fill(1, 7, 9, &mut sector);
        assert_eq!(stamp(1, 9, &sector), Ok(7));
        assert!(stamp(1, 10, &sector).is_err());
        assert!(stamp(2, 9, &sector).is_err());
        sector[300] ^= 1;
        assert!(stamp(1, 9, &sector).is_err());
        assert_eq!(stamp(1, 9, &[0; 512]), Ok(0));
    }

    #[test]
    fn reads_show_the_newest_acknowledged_or_a_concurrent_write() {
        let ops = [op(0, 4), op(2, 4), op(2, 2)];
        let mut branch = Branch::new(1, 8, vec![1], &ops);
        branch.push(2, &ops[1]);
        let range = Range::new(2, 2);
        let floors = branch.floors(range);
        assert!(branch.check_read(range, &floors, &[data(1, 2, 2)], &ops).is_ok());
        assert!(branch.check_read(range, &floors, &[data(2, 2, 2)], &ops).is_ok());
        // Once seen, never unseen.
        let floors = branch.floors(range);
        assert!(branch.check_read(range, &floors, &[data(1, 2, 2)], &ops).is_err());
        branch.push(3, &ops[2]);
        branch.acknowledge(3, ops[2].range);
        let floors = branch.floors(range);
        assert!(branch.check_read(range, &floors, &[data(2, 2, 2)], &ops).is_err());
        assert!(branch.check_read(range, &floors, &[ReadPiece::Zeroes(2)], &ops).is_err());
        assert!(branch.check_read(range, &floors, &[data(3, 2, 1)], &ops).is_err());
        assert!(branch.check_read(range, &floors, &[data(3, 2, 2)], &ops).is_ok());
    }
}
