//! The model of a volume's content, for comparison with every answer.
//!
//! Every write of a world is an [`Op`] with a number. Every sector that it writes carries the
//! number, its volume and its address ([`fill`]). So any sector of a later read names the write
//! that put it there. A [`Branch`] is the order of writes as one attachment sees it. It has the
//! writes that the attachment started from, then its own in the order of their requests. That is
//! also the order of their numbers: the `seq` of a write is its place in the branch. A copy moves
//! the content of sectors elsewhere, with their stamps. The list of writes says which content that
//! was.
//!
//! It knows nothing of journals, links or objects.

use longhaul_core::block::{BlockState, Range, ReadPiece, SECTOR_BYTES, Seq, StatusRun};
use std::collections::BTreeSet;

const SECTOR: usize = SECTOR_BYTES as usize;
const STAMP: u32 = 0x51_6d_7e_a1;

/// The kind of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Writes stamped data.
    Data,
    /// Discards.
    Discard,
    /// Writes zeroes; whether they stay allocated.
    Zero(bool),
    /// Writes what the store had staged: the stamps from this one on in [`Ops`].
    Copy(usize),
    /// Writes what was there, which the host had in its cache: the stamps from this one on in
    /// [`Ops`].
    Again(usize),
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

/// The origin of a sector's content: its write, and the sector that the write was for. A sector of
/// zeroes has the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Index of the volume of the write.
    pub volume: u32,
    /// The write.
    pub op: OpId,
    /// The sector of the write.
    pub lba: u32,
}

impl std::fmt::Display for Stamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.op {
            0 => f.write_str("zeroes"),
            op => write!(f, "write {op} of sector {} of volume {}", self.lba, self.volume),
        }
    }
}

/// All writes of a world.
#[derive(Debug, Default)]
pub struct Ops {
    list: Vec<Op>,
    /// Those that are never there without the one after them.
    torn: BTreeSet<OpId>,
    copied: Vec<Stamp>,
}

impl Ops {
    /// Adds a write: its number.
    pub fn push(&mut self, op: Op) -> OpId {
        self.list.push(op);
        self.list.len() as OpId
    }

    /// Adds a copy of what these sectors held: its number.
    pub fn push_copy(&mut self, volume: usize, range: Range, content: &[Stamp]) -> OpId {
        let kind = Kind::Copy(self.copied.len());
        self.copied.extend_from_slice(content);
        self.push(Op { volume, kind, range })
    }

    /// Adds a write of what these sectors hold already: its number. All of the write that this is a
    /// part of may be zeroes.
    pub fn push_again(
        &mut self,
        volume: usize,
        range: Range,
        content: &[Stamp],
        zero: bool,
    ) -> OpId {
        let kind = if zero { Kind::Zero(true) } else { Kind::Again(self.copied.len()) };
        self.copied.extend_from_slice(content);
        self.push(Op { volume, kind, range })
    }

    /// Joins writes that were pushed one after another, as parts of one atomic write. Marks all but
    /// the last.
    pub fn join(&mut self, first: OpId, last: OpId) {
        self.torn.extend(first..last);
    }

    /// Whether a history that ends with this write ends in the middle of one.
    #[must_use]
    pub fn is_torn(&self, id: OpId) -> bool {
        self.torn.contains(&id)
    }

    /// A write.
    #[must_use]
    pub fn get(&self, id: OpId) -> Op {
        self.list[id as usize - 1]
    }

    /// The content that a write, or none, leaves in a sector of its range.
    #[must_use]
    pub fn shows(&self, id: OpId, lba: u64) -> Stamp {
        let Some(op) = id.checked_sub(1).map(|at| self.list[at as usize]) else {
            return Stamp::default();
        };
        match op.kind {
            Kind::Data => Stamp { volume: op.volume as u32, op: id, lba: lba as u32 },
            Kind::Copy(first) | Kind::Again(first) => {
                self.copied[first + (lba - op.range.lba) as usize]
            }
            Kind::Discard | Kind::Zero(_) => Stamp::default(),
        }
    }
}

fn word(volume: usize, op: OpId, lba: u64) -> u64 {
    let mixed = (u64::from(op) << 32) ^ (lba << 8) ^ volume as u64;
    mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Appends the content of one sector of a write. The content of every other write is compressible.
pub fn fill(volume: usize, op: OpId, lba: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&STAMP.to_le_bytes());
    out.extend_from_slice(&(volume as u32).to_le_bytes());
    out.extend_from_slice(&op.to_le_bytes());
    out.extend_from_slice(&(lba as u32).to_le_bytes());
    let first = word(volume, op, lba);
    let step = if op.is_multiple_of(2) { 0 } else { 0x0101_0101_0101_0101 };
    for n in 2..(SECTOR as u64 / 8) {
        out.extend_from_slice(&first.wrapping_add(n.wrapping_mul(step)).to_le_bytes());
    }
}

/// The origin of a sector's content.
///
/// # Errors
/// If no write of the world ever made these bytes.
pub fn stamp(sector: &[u8]) -> Result<Stamp, String> {
    if sector.iter().all(|byte| *byte == 0) {
        return Ok(Stamp::default());
    }
    let number = |at: usize| {
        sector.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
    };
    let found = Stamp { volume: number(4), op: number(8), lba: number(12) };
    let mut expected = Vec::with_capacity(SECTOR);
    fill(found.volume as usize, found.op, found.lba.into(), &mut expected);
    if number(0) == STAMP && expected == sector {
        return Ok(found);
    }
    Err(format!("bytes that nobody wrote, perhaps {found}"))
}

/// The writes of one attachment in order.
#[derive(Clone, Debug)]
pub struct Branch {
    /// Volume index.
    pub volume: usize,
    /// All writes; the one with number `seq` is at `seq - 1`.
    pub log: Vec<OpId>,
    /// The content after the last rollback: earlier writes are no longer visible.
    base: Image,
    rolled_back: bool,
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
    /// A branch that starts from these writes, all of them certain. `base` is the content of the
    /// last rollback, with the number of the writes before it.
    #[must_use]
    pub fn new(
        volume: usize,
        sectors: u64,
        log: Vec<OpId>,
        base: Option<(Seq, Image)>,
        ops: &Ops,
    ) -> Branch {
        let is_rolled_back = base.is_some();
        let (rolled_back, base) =
            base.unwrap_or_else(|| (0, vec![Stamp::default(); sectors as usize]));
        let mut branch = Branch {
            volume,
            log: Vec::new(),
            base,
            rolled_back: is_rolled_back,
            history: vec![Vec::new(); sectors as usize],
            floor: vec![0; sectors as usize],
            acknowledged: 0,
            flushed: 0,
        };
        for op in log {
            if (branch.log.len() as Seq) < rolled_back {
                branch.log.push(op);
                continue;
            }
            let range = ops.get(op).range;
            let seq = branch.push(op, range);
            branch.raise(range, seq as u32);
        }
        branch.acknowledged = branch.log.len() as Seq;
        branch.flushed = branch.acknowledged;
        branch
    }

    /// Adds a requested write: its number.
    pub fn push(&mut self, id: OpId, range: Range) -> Seq {
        self.log.push(id);
        let seq = self.log.len() as u32;
        for lba in range.lba..range.end() {
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

    /// The oldest writes that a read of `range` may show if it begins now.
    #[must_use]
    pub fn floors(&self, range: Range) -> Vec<u32> {
        self.floor[range.lba as usize..range.end() as usize].to_vec()
    }

    /// The content of a sector after a write that touches it.
    fn shows(&self, seq: u32, lba: u64, ops: &Ops) -> Stamp {
        match seq.checked_sub(1) {
            Some(at) => ops.shows(self.log[at as usize], lba),
            None => self.base[lba as usize],
        }
    }

    /// The content of sectors after all requested writes.
    #[must_use]
    pub fn newest(&self, range: Range, ops: &Ops) -> Vec<Stamp> {
        let newest = |lba: u64| self.history[lba as usize].last().copied().unwrap_or(0);
        (range.lba..range.end()).map(|lba| self.shows(newest(lba), lba, ops)).collect()
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
        ops: &Ops,
    ) -> Result<(), String> {
        let mut lba = range.lba;
        for piece in pieces {
            match piece {
                ReadPiece::Zeroes(sectors) => {
                    for _ in 0..*sectors {
                        self.check_sector(lba, range, floors, Stamp::default(), ops)?;
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
                        let found = stamp(sector).map_err(|e| {
                            format!("sector {lba} of volume {} holds {e}", self.volume)
                        })?;
                        self.check_sector(lba, range, floors, found, ops)?;
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
        found: Stamp,
        ops: &Ops,
    ) -> Result<(), String> {
        let Some(floor) = lba.checked_sub(range.lba).and_then(|n| floors.get(n as usize)) else {
            return Err(format!("a read of {range} was answered beyond its end"));
        };
        let mut matching =
            self.candidates(lba, *floor).filter(|seq| self.shows(*seq, lba, ops) == found);
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
                    .map(|seq| format!("{} (seq {seq})", self.shows(seq, lba, ops)))
                    .collect();
                let place = self.log.iter().position(|op| *op == found.op).map(|n| n + 1);
                Err(format!(
                    "sector {lba} of volume {} shows {found} (seq {place:?} here), allowed are {}",
                    self.volume,
                    allowed.join(", ")
                ))
            }
        }
    }

    /// Compares a status answer with the possible ones.
    ///
    /// # Errors
    /// The sector with the wrong state.
    pub fn check_status(
        &self,
        range: Range,
        floors: &[u32],
        runs: &[StatusRun],
        ops: &Ops,
    ) -> Result<(), String> {
        let mut lba = range.lba;
        for run in runs {
            for _ in 0..run.sectors {
                let Some(floor) = floors.get((lba - range.lba) as usize) else {
                    return Err(format!("a status of {range} was answered beyond its end"));
                };
                let allowed = self.candidates(lba, *floor).any(|seq| {
                    // Nobody knows which holes the content of a rollback has.
                    let rolled_back = seq == 0 && self.rolled_back;
                    let shown = self.base[lba as usize];
                    let kind = if rolled_back && shown == Stamp::default() {
                        return true;
                    } else if rolled_back {
                        Kind::Data
                    } else if seq == 0 {
                        Kind::Discard
                    } else {
                        ops.get(self.log[seq as usize - 1]).kind
                    };
                    match run.state {
                        BlockState::Data => {
                            matches!(kind, Kind::Data | Kind::Copy(_) | Kind::Again(_))
                        }
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

/// An image of a volume: what each sector holds.
pub type Image = Vec<Stamp>;

/// Applies what a write does to `range`, all of it or a part, to an image.
pub fn apply(image: &mut Image, ops: &Ops, id: OpId, range: Range) {
    for lba in range.lba..range.end() {
        image[lba as usize] = ops.shows(id, lba);
    }
}

/// Where two images differ first, in words.
#[must_use]
pub fn difference(expected: &Image, found: &Image) -> Option<String> {
    let lba = expected.iter().zip(found).position(|(a, b)| a != b)?;
    let count = expected.iter().zip(found).filter(|(a, b)| a != b).count();
    Some(format!(
        "{count} sectors differ, the first is {lba}: expected {}, found {}",
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

    fn ops(ops: &[Op]) -> Ops {
        let mut all = Ops::default();
        for op in ops {
            all.push(*op);
        }
        all
    }

    #[test]
    fn a_stamp_names_its_write_and_its_place() {
        let mut sector = Vec::new();
        fill(1, 7, 9, &mut sector);
        assert_eq!(stamp(&sector), Ok(Stamp { volume: 1, op: 7, lba: 9 }));
        for at in [5, 9, 13, 300] {
            sector[at] ^= 1;
            assert!(stamp(&sector).is_err(), "byte {at}");
            sector[at] ^= 1;
        }
        assert_eq!(stamp(&[0; 512]), Ok(Stamp::default()));
    }

    #[test]
    fn a_copy_shows_what_it_was_made_of() {
        let mut all = ops(&[op(0, 4)]);
        let content: Vec<Stamp> = (1..3).map(|lba| all.shows(1, lba)).collect();
        let id = all.push_copy(1, Range::new(6, 2), &content);
        let mut image = vec![Stamp::default(); 8];
        apply(&mut image, &all, id, Range::new(7, 1));
        assert_eq!((image[6].op, image[7]), (0, Stamp { volume: 1, op: 1, lba: 2 }));
    }

    #[test]
    fn reads_show_the_newest_acknowledged_or_a_concurrent_write() {
        let writes = [op(0, 4), op(2, 4), op(2, 2)];
        let ops = ops(&writes);
        let mut branch = Branch::new(1, 8, vec![1], None, &ops);
        branch.push(2, writes[1].range);
        let range = Range::new(2, 2);
        let floors = branch.floors(range);
        assert!(branch.check_read(range, &floors, &[data(1, 2, 2)], &ops).is_ok());
        assert!(branch.check_read(range, &floors, &[data(2, 2, 2)], &ops).is_ok());
        // Once seen, never unseen.
        let floors = branch.floors(range);
        assert!(branch.check_read(range, &floors, &[data(1, 2, 2)], &ops).is_err());
        branch.push(3, writes[2].range);
        branch.acknowledge(3, writes[2].range);
        let floors = branch.floors(range);
        assert!(branch.check_read(range, &floors, &[data(2, 2, 2)], &ops).is_err());
        assert!(branch.check_read(range, &floors, &[ReadPiece::Zeroes(2)], &ops).is_err());
        // The right data of another sector is wrong.
        assert!(branch.check_read(range, &floors, &[data(3, 3, 2)], &ops).is_err());
        assert!(branch.check_read(range, &floors, &[data(3, 2, 1)], &ops).is_err());
        assert!(branch.check_read(range, &floors, &[data(3, 2, 2)], &ops).is_ok());
    }
}
