//! A copy under way: which part is to be done next, and how far it has come.
//!
//! Promises: no more than [`IN_FLIGHT`] chunks are under way; what a chunk reads or writes is not
//! touched by an earlier one that is not done, so that the result is as if the moves had been done one
//! after the other, and one within a volume whose ranges overlap like a memmove; after a failure or
//! [`Job::stop`] no part is begun any more, and the job is over when none that could write is left.

use super::{Failure, Part, PartFailure, PartReply, Problem};
use crate::block::{BLOCK_SECTORS, MAX_STAGE_SECTORS, Range, StagedPiece, VolumeId};
use crate::front::scsi::sense::Side;
use std::collections::BTreeMap;

/// Chunks of a copy that are under way at a time: enough to keep a store busy while the answer to one
/// travels, and no more than 16 MiB that wait in its memory. Guessed.
const IN_FLIGHT: usize = 4;

/// Names a logical unit for whoever drives the job.
pub type UnitId = u64;

/// What is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// From which unit; `None` for zeroes.
    pub source: Option<UnitId>,
    /// To which unit.
    pub destination: UnitId,
    /// The destination's volume.
    pub into: VolumeId,
    /// Sectors of the source; of zeroes, only their number counts.
    pub from: Range,
    /// Where the first of them goes.
    pub lba: u64,
    /// What fails the move if it is broken.
    pub watch: Option<u64>,
}

impl Move {
    fn to(&self) -> Range {
        Range::new(self.lba, self.from.sectors)
    }

    /// Whether the last sectors have to go first.
    fn is_backward(&self) -> bool {
        self.source == Some(self.destination)
            && self.lba > self.from.lba
            && self.from.intersect(self.to()).is_some()
    }
}

/// A chunk's way.
#[derive(Debug)]
enum Progress {
    /// It is being staged.
    Staging,
    /// Staged; to be written.
    Staged(Vec<StagedPiece>),
    /// It is being written.
    Writing,
}

#[derive(Debug)]
struct Chunk {
    /// Of the list of moves.
    of: usize,
    source: Option<UnitId>,
    destination: UnitId,
    from: Range,
    to: Range,
    progress: Progress,
}

/// Names a part of a job, for its answer.
pub type PartId = u64;

/// A part that is to be begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// For the answer.
    pub id: PartId,
    /// By which unit.
    pub unit: UnitId,
    /// What.
    pub part: Part,
}

/// A copy.
#[derive(Debug)]
pub struct Job {
    moves: Vec<Move>,
    /// Sectors of each move that are not done.
    left: Vec<u64>,
    /// The move that the next chunk is cut from, and sectors of it that chunks were cut from.
    next: usize,
    cut: u64,
    chunks: BTreeMap<PartId, Chunk>,
    last_id: PartId,
    failure: Option<Failure>,
    stopped: bool,
    sectors: u64,
}

impl Job {
    /// A copy that has not begun.
    #[must_use]
    pub fn new(moves: Vec<Move>) -> Job {
        let left = moves.iter().map(|it| it.from.sectors).collect();
        Job {
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

    /// Begins no part any more. What has been written stays.
    pub fn stop(&mut self) {
        self.stopped = true;
        self.drop_idle();
    }

    /// Parts under way that write nothing: after a stop nobody needs their answers.
    pub fn staging(&self) -> impl Iterator<Item = PartId> {
        let staging = |chunk: &Chunk| matches!(chunk.progress, Progress::Staging);
        self.chunks.iter().filter(move |(_, chunk)| staging(chunk)).map(|(id, _)| *id)
    }

    /// Whether nothing is left to do or to wait for.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.chunks.is_empty() && (self.is_ending() || self.next == self.moves.len())
    }

    /// Why it ended before its end.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// Moves that are done, with all before them; sectors that are written.
    #[must_use]
    pub fn progress(&self) -> (u16, u64) {
        let done = self.left.iter().take_while(|left| **left == 0).count();
        // Lists of moves are shorter than that.
        (u16::try_from(done).unwrap_or(u16::MAX), self.sectors)
    }

    /// Whether no part is begun any more.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.stopped || self.failure.is_some()
    }

    /// Chunks that are staged are given up.
    fn drop_idle(&mut self) {
        self.chunks.retain(|_, chunk| !matches!(chunk.progress, Progress::Staged(_)));
    }

    /// The next part to begin, if one may begin now.
    pub fn poll(&mut self) -> Option<Order> {
        if self.is_ending() {
            return None;
        }
        let staged = self.chunks.iter_mut().find_map(|(id, chunk)| match &mut chunk.progress {
            Progress::Staged(pieces) => {
                let pieces = std::mem::take(pieces);
                chunk.progress = Progress::Writing;
                Some(Order { id: *id, unit: chunk.destination, part: Part::Write(pieces) })
            }
            _ => None,
        });
        staged.or_else(|| self.begin())
    }

    /// The next chunk, if no earlier one is in its way.
    fn begin(&mut self) -> Option<Order> {
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
                let part = Part::Stage { range: from, into: it.into, lba: to.lba, watch: it.watch };
                (unit, part, Progress::Staging)
            }
            None => (it.destination, Part::Zero(to), Progress::Writing),
        };
        let (of, source, destination) = (self.next, it.source, it.destination);
        self.chunks.insert(id, Chunk { of, source, destination, from, to, progress });
        Some(Order { id, unit, part })
    }

    /// The outcome of a part. One that cannot be begun has failed.
    pub fn handle(&mut self, id: PartId, result: Result<PartReply, PartFailure>) {
        let Some(chunk) = self.chunks.get_mut(&id) else { return };
        let writes = matches!(chunk.progress, Progress::Writing);
        match result {
            Ok(PartReply::Staged(pieces)) if !writes => {
                chunk.progress = Progress::Staged(pieces);
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
                // Lists of moves are shorter than that.
                let segment = u16::try_from(chunk.of).unwrap_or(u16::MAX);
                self.chunks.remove(&id);
                if !self.is_ending() {
                    self.failure = Some(Failure { segment, problem: Problem::Part(side, failure) });
                }
                self.drop_idle();
            }
        }
    }
}

/// The next chunk of a move of which `done` sectors were cut. It ends where a checksum block of the
/// destination does, so that blocks are not written in halves.
fn cut(it: &Move, done: u64) -> (Range, Range) {
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

    fn moved(source: UnitId, destination: UnitId, from: u64, lba: u64, sectors: u64) -> Move {
        let from = Range::new(from, sectors);
        Move { source: Some(source), destination, into: VOLUME, from, lba, watch: None }
    }

    /// Units are arrays of sectors; staged pieces remember what they hold by their object's number.
    struct World {
        units: Vec<Vec<u32>>,
        staged: Vec<Vec<u32>>,
        open: Vec<Order>,
    }

    impl World {
        fn new(sectors: u64) -> World {
            let unit = |unit: u64| (0..sectors).map(|at| (unit << 24 | at) as u32).collect();
            World { units: vec![unit(0), unit(1)], staged: Vec::new(), open: Vec::new() }
        }

        /// Carries out the part at `index`, staged data being what is there by now.
        fn answer(&mut self, job: &mut Job, index: usize) {
            let Order { id, unit, part } = self.open.remove(index);
            let sectors = |range: Range| range.lba as usize..range.end() as usize;
            let reply = match part {
                Part::Stage { range, lba, .. } => {
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
                Part::Write(pieces) => {
                    for piece in pieces {
                        let crate::block::Staged::Data(data) = piece.content else { panic!() };
                        self.units[unit as usize][sectors(piece.range)]
                            .copy_from_slice(&self.staged[data.object as usize]);
                    }
                    PartReply::Done
                }
                Part::Zero(range) => {
                    self.units[unit as usize][sectors(range)].fill(0);
                    PartReply::Done
                }
            };
            job.handle(id, Ok(reply));
        }
    }

    proptest! {
        /// Whatever the order in which parts are answered, the result is that of one move after the
        /// other, each as a whole.
        #[test]
        fn as_if_one_after_the_other(
            moves in prop::collection::vec((0..2u64, 0..2u64, 0..30_000u64, 0..30_000u64, 0..30_000u64), 1..5),
            order in prop::collection::vec(any::<prop::sample::Index>(), 200),
        ) {
            let moves: Vec<Move> = moves
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
            let mut job = Job::new(moves.clone());
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
        let mut job = Job::new(vec![moved(0, 1, 0, 3, 3 * MAX_STAGE_SECTORS)]);
        let mut ends = Vec::new();
        while let Some(Order { part: Part::Stage { range, lba, .. }, .. }) = job.poll() {
            ends.push((lba, lba + range.sectors));
        }
        assert_eq!(ends, [(3, 8192), (8192, 16384), (16384, 24576), (24576, 24579)]);
    }

    #[test]
    fn after_a_failure_only_writes_are_waited_for() {
        let mut job = Job::new(vec![moved(0, 1, 0, 0, 4 * MAX_STAGE_SECTORS)]);
        let orders: Vec<Order> = std::iter::from_fn(|| job.poll()).collect();
        assert_eq!(orders.len(), 4);
        job.handle(orders[0].id, Ok(PartReply::Staged(Vec::new())));
        let write = job.poll().unwrap();
        assert_eq!(write.part, Part::Write(Vec::new()));
        job.handle(orders[1].id, Ok(PartReply::Staged(Vec::new())));
        job.handle(orders[2].id, Err(PartFailure::Changed));
        assert_eq!(job.poll(), None, "what is staged is not written any more");
        assert_eq!(job.staging().collect::<Vec<_>>(), [orders[3].id]);
        job.handle(orders[3].id, Err(PartFailure::Ended));
        assert!(!job.is_over(), "a write is under way");
        job.handle(write.id, Ok(PartReply::Done));
        assert!(job.is_over());
        let problem = Problem::Part(Side::Source, PartFailure::Changed);
        assert_eq!(job.failure(), Some(Failure { segment: 0, problem }));
    }

    #[test]
    fn a_stop_is_no_failure() {
        let zeroes = Move { source: None, ..moved(0, 1, 0, 0, 1 << 30) };
        let mut job = Job::new(vec![zeroes, moved(0, 1, 0, 0, 8)]);
        let order = job.poll().unwrap();
        assert_eq!(order.part, Part::Zero(Range::new(0, 1 << 30)), "in one go");
        assert_eq!(job.poll(), None, "the second writes what the first does");
        job.stop();
        assert!(!job.is_over());
        job.handle(order.id, Err(PartFailure::Ended));
        assert!(job.is_over() && job.failure().is_none());
    }
}
