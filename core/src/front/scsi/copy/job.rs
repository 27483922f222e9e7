//! A copy under way: the next parts to do, and the progress.
//!
//! A job promises:
//!
//! - no more than [`IN_FLIGHT`] chunks are under way;
//! - no chunk begins before all earlier chunks that overlap its source or destination. So the
//!   result is the same as that of the moves one after the other. A move within a volume whose
//!   ranges overlap works like memmove;
//! - after a failure or [`CopyJob::stop`] no part begins. The job is over when no part that could
//!   write is left.

use super::failure::{CopyFailure, CopyProblem};
use super::part::{CopyPart, PartFailure, PartReply};
use crate::block::{BLOCK_SECTORS, MAX_STAGE_SECTORS, Range, StagedPiece, VolumeId};
use crate::front::scsi::sense::Side;
use std::collections::BTreeMap;

/// Chunks of a copy that are under way at a time. That keeps a store busy while an answer travels,
/// and at most 16 MiB wait in its memory. Guessed.
const IN_FLIGHT: usize = 4;

/// Names a logical unit for the user of the job.
pub type UnitId = u64;

/// One move of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyMove {
    /// The source unit; `None` for zeroes.
    pub source: Option<UnitId>,
    /// The destination unit.
    pub destination: UnitId,
    /// The volume of the destination.
    pub into: VolumeId,
    /// Sectors of the source. For zeroes only their number matters.
    pub from: Range,
    /// First sector of the destination.
    pub lba: u64,
    /// A watch; if it is broken, the move fails.
    pub watch: Option<u64>,
}

impl CopyMove {
    fn to(&self) -> Range {
        Range::new(self.lba, self.from.sectors)
    }

    /// Whether the move has to begin with its last sectors.
    fn is_backward(&self) -> bool {
        self.source == Some(self.destination)
            && self.lba > self.from.lba
            && self.from.intersect(self.to()).is_some()
    }
}

/// The state of a chunk.
#[derive(Debug)]
enum ChunkProgress {
    /// The source stages it.
    Staging,
    /// The chunk is staged and waits for its write.
    Staged(Vec<StagedPiece>),
    /// The destination writes it.
    Writing,
}

#[derive(Debug)]
struct Chunk {
    /// Index of its move.
    of: usize,
    source: Option<UnitId>,
    destination: UnitId,
    from: Range,
    to: Range,
    progress: ChunkProgress,
}

/// Names a part of a job.
pub type PartId = u64;

/// A part that is to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartOrder {
    /// Name of the part, for its result.
    pub id: PartId,
    /// The unit that does it.
    pub unit: UnitId,
    /// The part.
    pub part: CopyPart,
}

/// A copy.
#[derive(Debug)]
pub struct CopyJob {
    moves: Vec<CopyMove>,
    /// For each move, the sectors without a finished write.
    left: Vec<u64>,
    /// Index of the move that the next chunk comes from, and the sectors of it in earlier chunks.
    next: usize,
    cut: u64,
    chunks: BTreeMap<PartId, Chunk>,
    last_id: PartId,
    failure: Option<CopyFailure>,
    stopped: bool,
    sectors: u64,
}

impl CopyJob {
    /// A copy that has not begun.
    #[must_use]
    pub fn new(moves: Vec<CopyMove>) -> CopyJob {
        let left = moves.iter().map(|it| it.from.sectors).collect();
        CopyJob {
            moves,
            left,
            next: 0,
            cut: 0,
            chunks: BTreeMap::new(),
            last_id: 0,
            failure: None,
            stopped: false,
            sectors: 0,
        }
    }

    /// Stops the copy: no part begins any more. Written data stays.
    pub fn stop(&mut self) {
        self.stopped = true;
        self.drop_idle();
    }

    /// Parts under way that write nothing. After a stop nobody needs their results.
    pub fn staging(&self) -> impl Iterator<Item = PartId> {
        let staging = |chunk: &Chunk| matches!(chunk.progress, ChunkProgress::Staging);
        self.chunks.iter().filter(move |(_, chunk)| staging(chunk)).map(|(id, _)| *id)
    }

    /// Whether the copy has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.chunks.is_empty() && (self.is_ending() || self.next == self.moves.len())
    }

    /// The failure that ended the copy.
    #[must_use]
    pub fn failure(&self) -> Option<CopyFailure> {
        self.failure
    }

    /// The number of moves that are complete, with all before them, and of sectors that they wrote.
    #[must_use]
    pub fn progress(&self) -> (u16, u64) {
        let done = self.left.iter().take_while(|left| **left == 0).count();
        // A list has fewer moves than that.
        (u16::try_from(done).unwrap_or(u16::MAX), self.sectors)
    }

    /// Whether no part begins any more.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.stopped || self.failure.is_some()
    }

    /// Drops the staged chunks.
    fn drop_idle(&mut self) {
        self.chunks.retain(|_, chunk| !matches!(chunk.progress, ChunkProgress::Staged(_)));
    }

    /// Takes the next part that may begin now.
    pub fn poll(&mut self) -> Option<PartOrder> {
        if self.is_ending() {
            return None;
        }
        let staged = self.chunks.iter_mut().find_map(|(id, chunk)| match &mut chunk.progress {
            ChunkProgress::Staged(pieces) => {
                let pieces = std::mem::take(pieces);
                chunk.progress = ChunkProgress::Writing;
                Some(PartOrder { id: *id, unit: chunk.destination, part: CopyPart::Write(pieces) })
            }
            _ => None,
        });
        staged.or_else(|| self.begin())
    }

    /// Cuts the next chunk, unless an earlier one overlaps it.
    fn begin(&mut self) -> Option<PartOrder> {
        while self.next < self.moves.len() && self.cut == self.moves[self.next].from.sectors {
            self.next += 1;
            self.cut = 0;
        }
        let it = *self.moves.get(self.next)?;
        if self.chunks.len() >= IN_FLIGHT {
            return None;
        }
        let (from, to) = cut(&it, self.cut);
        let meets = |a: (Option<UnitId>, Range), b: (Option<UnitId>, Range)| {
            a.0.is_some() && a.0 == b.0 && a.1.intersect(b.1).is_some()
        };
        let in_the_way = |other: &Chunk| {
            let (their_from, their_to) =
                ((other.source, other.from), (Some(other.destination), other.to));
            let (my_from, my_to) = ((it.source, from), (Some(it.destination), to));
            meets(my_from, their_to) || meets(my_to, their_from) || meets(my_to, their_to)
        };
        if self.chunks.values().any(in_the_way) {
            return None;
        }
        self.cut += from.sectors;
        self.last_id += 1;
        let id = self.last_id;
        let (unit, part, progress) = match it.source {
            Some(unit) => {
                let part =
                    CopyPart::Stage { range: from, into: it.into, lba: to.lba, watch: it.watch };
                (unit, part, ChunkProgress::Staging)
            }
            None => (it.destination, CopyPart::Zero(to), ChunkProgress::Writing),
        };
        let (of, source, destination) = (self.next, it.source, it.destination);
        self.chunks.insert(id, Chunk { of, source, destination, from, to, progress });
        Some(PartOrder { id, unit, part })
    }

    /// Takes the result of a part. A part that cannot begin has failed.
    pub fn handle(&mut self, id: PartId, result: Result<PartReply, PartFailure>) {
        let Some(chunk) = self.chunks.get_mut(&id) else { return };
        let writes = matches!(chunk.progress, ChunkProgress::Writing);
        match result {
            Ok(PartReply::Staged(pieces)) if !writes => {
                chunk.progress = ChunkProgress::Staged(pieces);
                if self.is_ending() {
                    self.drop_idle();
                }
            }
            Ok(_) => {
                if let Some(chunk) = self.chunks.remove(&id) {
                    self.left[chunk.of] = self.left[chunk.of].saturating_sub(chunk.to.sectors);
                    self.sectors += chunk.to.sectors;
                }
            }
            Err(failure) => {
                let side = if writes { Side::Destination } else { Side::Source };
                // A list has fewer moves than that.
                let segment = u16::try_from(chunk.of).unwrap_or(u16::MAX);
                self.chunks.remove(&id);
                if !self.is_ending() {
                    self.failure =
                        Some(CopyFailure { segment, problem: CopyProblem::Part(side, failure) });
                }
                self.drop_idle();
            }
        }
    }
}

/// Cuts the next chunk of a move, after its first `done` sectors. The chunk ends at the end of a
/// checksum block of the destination, so that no write covers half a block.
fn cut(it: &CopyMove, done: u64) -> (Range, Range) {
    let to = it.to();
    let left = to.sectors - done;
    if it.source.is_none() {
        return (it.from, to);
    }
    let (at, sectors) = if it.is_backward() {
        let end = to.end() - done;
        let start = end.saturating_sub(MAX_STAGE_SECTORS).next_multiple_of(BLOCK_SECTORS);
        let start = start.max(to.lba);
        (start, end - start)
    } else {
        let start = to.lba + done;
        (start, left.min(MAX_STAGE_SECTORS - start % BLOCK_SECTORS))
    };
    let from = it.from.lba + (at - to.lba);
    (Range::new(from, sectors), Range::new(at, sectors))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const VOLUME: VolumeId = VolumeId(9);

    fn moved(source: UnitId, destination: UnitId, from: u64, lba: u64, sectors: u64) -> CopyMove {
        let from = Range::new(from, sectors);
        CopyMove { source: Some(source), destination, into: VOLUME, from, lba, watch: None }
    }

    /// Units are arrays of sectors. The number of a staged object is the index of its content.
    struct World {
        units: Vec<Vec<u32>>,
        staged: Vec<Vec<u32>>,
        open: Vec<PartOrder>,
    }

    impl World {
        fn new(sectors: u64) -> World {
            let unit = |unit: u64| (0..sectors).map(|at| (unit << 24 | at) as u32).collect();
            World { units: vec![unit(0), unit(1)], staged: Vec::new(), open: Vec::new() }
        }

        /// Does the part at `index`. Staging copies the content of this moment.
        fn answer(&mut self, job: &mut CopyJob, index: usize) {
            let PartOrder { id, unit, part } = self.open.remove(index);
            let sectors = |range: Range| range.lba as usize..range.end() as usize;
            let reply = match part {
                CopyPart::Stage { range, lba, .. } => {
                    assert!(range.sectors <= MAX_STAGE_SECTORS && !range.is_empty());
                    self.staged.push(self.units[unit as usize][sectors(range)].to_vec());
                    let range = Range::new(lba, range.sectors);
                    let data = crate::block::StagedData {
                        object: self.staged.len() as u64 - 1,
                        offset: 0,
                        record: range,
                    };
                    let content = crate::block::Staged::Data(data);
                    PartReply::Staged(vec![StagedPiece { range, content }])
                }
                CopyPart::Write(pieces) => {
                    for piece in pieces {
                        let crate::block::Staged::Data(data) = piece.content else { panic!() };
                        self.units[unit as usize][sectors(piece.range)]
                            .copy_from_slice(&self.staged[data.object as usize]);
                    }
                    PartReply::Done
                }
                CopyPart::Zero(range) => {
                    self.units[unit as usize][sectors(range)].fill(0);
                    PartReply::Done
                }
            };
            job.handle(id, Ok(reply));
        }
    }

    proptest! {
        /// In whatever order the parts are answered, the result equals that of the moves one after
        /// the other.
        #[test]
        fn as_if_one_after_the_other(
            moves in prop::collection::vec(
                (0..2u64, 0..2u64, 0..30_000u64, 0..30_000u64, 0..30_000u64),
                1..5,
            ),
            order in prop::collection::vec(any::<prop::sample::Index>(), 200),
        ) {
            let moves: Vec<CopyMove> = moves
                .into_iter()
                .map(|(source, to, from, lba, sectors)| moved(source, to, from, lba, sectors))
                .collect();
            let mut world = World::new(60_000);
            let mut expected = World::new(60_000).units;
            for it in &moves {
                let unit = it.source.unwrap() as usize;
                let data = expected[unit][it.from.lba as usize..it.from.end() as usize].to_vec();
                let to = it.to();
                expected[it.destination as usize][to.lba as usize..to.end() as usize]
                    .copy_from_slice(&data);
            }
            let mut job = CopyJob::new(moves.clone());
            for index in order.iter().cycle() {
                while let Some(order) = job.poll() {
                    world.open.push(order);
                    prop_assert!(world.open.len() <= IN_FLIGHT);
                }
                if world.open.is_empty() {
                    break;
                }
                let at = index.index(world.open.len());
                world.answer(&mut job, at);
            }
            prop_assert!(job.is_over() && job.failure().is_none());
            let sectors = moves.iter().map(|it| it.from.sectors).sum();
            prop_assert_eq!(job.progress(), (moves.len() as u16, sectors));
            prop_assert!(world.units == expected);
        }
    }

    #[test]
    fn chunks_end_with_blocks_of_the_destination() {
        let mut job = CopyJob::new(vec![moved(0, 1, 0, 3, 3 * MAX_STAGE_SECTORS)]);
        let mut ends = Vec::new();
        while let Some(PartOrder { part: CopyPart::Stage { range, lba, .. }, .. }) = job.poll() {
            ends.push((lba, lba + range.sectors));
        }
        assert_eq!(ends, [(3, 8192), (8192, 16384), (16384, 24576), (24576, 24579)]);
    }

    #[test]
    fn after_a_failure_only_writes_are_waited_for() {
        let mut job = CopyJob::new(vec![moved(0, 1, 0, 0, 4 * MAX_STAGE_SECTORS)]);
        let orders: Vec<PartOrder> = std::iter::from_fn(|| job.poll()).collect();
        assert_eq!(orders.len(), 4);
        job.handle(orders[0].id, Ok(PartReply::Staged(Vec::new())));
        let write = job.poll().unwrap();
        assert_eq!(write.part, CopyPart::Write(Vec::new()));
        job.handle(orders[1].id, Ok(PartReply::Staged(Vec::new())));
        job.handle(orders[2].id, Err(PartFailure::Changed));
        assert_eq!(job.poll(), None, "what is staged is not written any more");
        assert_eq!(job.staging().collect::<Vec<_>>(), [orders[3].id]);
        job.handle(orders[3].id, Err(PartFailure::Ended));
        assert!(!job.is_over(), "a write is under way");
        job.handle(write.id, Ok(PartReply::Done));
        assert!(job.is_over());
        let problem = CopyProblem::Part(Side::Source, PartFailure::Changed);
        assert_eq!(job.failure(), Some(CopyFailure { segment: 0, problem }));
    }

    #[test]
    fn a_stop_is_no_failure() {
        let zeroes = CopyMove { source: None, ..moved(0, 1, 0, 0, 1 << 30) };
        let mut job = CopyJob::new(vec![zeroes, moved(0, 1, 0, 0, 8)]);
        let order = job.poll().unwrap();
        assert_eq!(order.part, CopyPart::Zero(Range::new(0, 1 << 30)), "in one go");
        assert_eq!(job.poll(), None, "the second writes what the first does");
        job.stop();
        assert!(!job.is_over());
        job.handle(order.id, Err(PartFailure::Ended));
        assert!(job.is_over() && job.failure().is_none());
    }
}
