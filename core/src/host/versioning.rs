//! The volume's side of [`versions`](super::versions): answers of the store are compared before anybody
//! sees them, and the journal keeps what the table does not have yet.
//!
//! Why an answer has to be the newest version: nothing of its range was uncommitted when it was asked for, or
//! else it counts as spoiled; so it holds all that the table knew then. What was written since makes it spoiled,
//! too, and then another version may be right: the range is read once more, from the journal if that has it.

use super::io::{DiskOperation, DiskResult, Event};
use super::reads::{Asked, LinkUse, Target};
use super::versions::{Standing, Versions, VersionsStatus, seals_of_answer};
use super::volume::Volume;
use crate::block::{BLOCK_SECTORS, BlockState, Range, StatusRun, Time};
use crate::cache::Version;
use crate::wire::link::{Piece, ReadError};
use bytes::Bytes;

/// Sectors that the answer to one status query is about (64 MiB), since all of it has to be looked up.
const STATUS_SECTORS: u64 = 1 << 17;
/// Of a full journal, the part that is held for the table before a checkpoint makes room.
const HELD_OF_JOURNAL: u64 = 4;

/// The versions of a keyed volume, if it has any.
#[derive(Debug, Default)]
pub(super) struct Versioning(Option<Box<Versions>>);

/// An answer that waits until it can be compared.
#[derive(Debug)]
pub(super) enum Parked {
    Data(Vec<Piece>, Bytes),
    Status(Vec<StatusRun>),
}

impl Versioning {
    pub(super) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn status(&self) -> Option<VersionsStatus> {
        self.0.as_ref().map(|versions| versions.status())
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.0.as_ref()?.deadline()
    }

    pub(super) fn is_settled(&self) -> bool {
        self.0.as_ref().is_none_or(|versions| versions.is_settled())
    }

    pub(super) fn is_full(&self) -> bool {
        self.0.as_ref().is_some_and(|versions| versions.is_full())
    }

    pub(super) fn poll_disk(&mut self) -> Option<DiskOperation> {
        self.0.as_mut()?.poll_disk()
    }

    /// The newest version of a block that the read cache gives.
    pub(super) fn version(&mut self, block: u64) -> Version {
        self.0.as_mut().map_or(Version::Unknown, |versions| versions.version(block))
    }

    /// The newest version of a block that the read cache is offered.
    pub(super) fn version_offered(&mut self, block: u64) -> Version {
        let busy = self.0.as_ref().is_some_and(|versions| versions.is_busy());
        match self.version(block) {
            Version::Unknown if busy => Version::Later,
            version => version,
        }
    }

    /// Whether something has to be read before the versions of a range are known.
    fn is_later(&mut self, range: Range) -> bool {
        let blocks = range.lba / BLOCK_SECTORS..range.end().div_ceil(BLOCK_SECTORS);
        // All of them, so that what has to be read is read at once.
        blocks.fold(false, |later, block| later | (self.version(block) == Version::Later))
    }

    /// A frame with these records is shipped.
    pub(super) fn feed(&mut self, records: &[u8]) {
        if let Some(versions) = &mut self.0 {
            versions.feed(records);
        }
    }

    /// What of `committed`, which a store says it has, it can have.
    pub(super) fn possible(&self, committed: u64) -> u64 {
        self.0.as_ref().map_or(committed, |versions| committed.min(versions.fed()))
    }

    pub(super) fn commit(&mut self, committed: u64) {
        if let Some(versions) = &mut self.0 {
            versions.commit(committed);
        }
    }
}

impl Volume {
    /// Gives a keyed volume its table of versions, before its first request. Its journal has to have been recovered
    /// [with versions](super::journal::Recovery::with_versions), or be new.
    pub fn set_versions(&mut self, now: Time, mut versions: Versions) {
        self.input(now);
        self.log.hold();
        versions.replay(std::mem::take(&mut self.replayed));
        self.versions = Versioning(Some(Box::new(versions)));
    }

    /// The next operation on the files of the table of versions. Writes and syncs are carried out in the order given,
    /// but in none with those of the journal. A read beyond the end of a file gives zeroes.
    pub fn poll_versions(&mut self) -> Option<DiskOperation> {
        self.settle();
        self.versions.poll_disk()
    }

    /// Takes the outcome of an operation on the files of the table of versions.
    pub fn handle_versions(&mut self, now: Time, result: DiskResult) {
        self.input(now);
        let Some(versions) = &mut self.versions.0 else { return };
        if let Some(error) = versions.handle_disk(result) {
            self.out.event(Event::VersionsFailed { error });
        }
    }

    pub(super) fn settle_versions(&mut self) {
        let held = self.log.journal().held_bytes();
        let waits = self.acknowledger.has_waiting_writes() || self.rewriting.wants_room();
        let short = held > 0
            && (waits
                || self.log.journal().has_gap()
                || held >= self.log.journal().capacity_bytes() / HELD_OF_JOURNAL);
        let closing = self.shutting_down || self.fenced.is_some();
        let Some(versions) = &mut self.versions.0 else { return };
        versions.settle(self.context.now, short, closing);
        self.log.release(versions.durable());
        if versions.take_moved() {
            for result in self.caching.take_parked() {
                self.cache_done(result);
            }
            for (request, asked, parked) in self.reads.take_parked() {
                match parked {
                    Parked::Data(pieces, payload) => {
                        self.take_data(request, asked, Ok(pieces), payload);
                    }
                    Parked::Status(runs) => self.take_status(request, asked, runs),
                }
            }
        }
    }

    /// Whether the outcome of an operation of the read cache has to wait for the table.
    pub(super) fn cache_waits(&mut self, result: &DiskResult) -> bool {
        let DiskResult::Data { id, .. } = result else { return false };
        let range = self.caching.get().and_then(|cache| cache.needs_versions(*id));
        range.is_some_and(|range| self.versions.is_later(range))
    }

    /// What an answer is; [`Standing::Newest`] if nothing can be said about it.
    pub(super) fn standing(
        &mut self,
        asked: &Asked,
        result: &Result<Vec<Piece>, ReadError>,
        payload: &Bytes,
    ) -> Standing {
        let (Some(versions), Ok(pieces)) = (&mut self.versions.0, result) else {
            return Standing::Newest(Vec::new());
        };
        match seals_of_answer(versions.volume(), asked.range, pieces, payload) {
            Some(pieces) => versions.standing(&pieces),
            // It is damaged, which is found out elsewhere.
            None => Standing::Newest(Vec::new()),
        }
    }

    /// An answer has proved to be the volume's.
    pub(super) fn adopt(&mut self, asked: &Asked, standing: &Standing) {
        if let (Some(versions), Standing::Newest(new), false) =
            (&mut self.versions.0, standing, asked.spoiled)
        {
            versions.adopt(self.context.now, new);
        }
    }

    /// A part of a read has come, and is not the newest version.
    pub(super) fn outdated(&mut self, asked: Asked, read: u64, slot: usize) {
        let Asked { range, spoiled, again, .. } = asked;
        if spoiled {
            // It may have been when it was asked for.
            self.read_for(Target::Slot { read, slot }, range);
        } else if again {
            self.out.event(Event::StoreOutdated { range });
            self.fill(read, slot, Err(crate::block::BlockError::Medium(range)));
        } else {
            self.ask(range, LinkUse::Read { read, slot }, true);
        }
    }

    /// The store's runs as far as they may be true: what it says to have no data, and this host knows to have, counts as
    /// data. Nothing if something has to be read first.
    pub(super) fn true_runs(&mut self, range: Range, runs: &[StatusRun]) -> Option<Vec<StatusRun>> {
        let Some(versions) = &mut self.versions.0 else { return Some(runs.to_vec()) };
        let mut out: Vec<StatusRun> = Vec::new();
        let mut add = |sectors: u64, state: BlockState| match out.last_mut() {
            Some(last) if last.state == state => last.sectors += sectors,
            _ if sectors > 0 => out.push(StatusRun { sectors, state }),
            _ => {}
        };
        let (mut at, mut known) = (range.lba, true);
        let end = range.end().min(range.lba + STATUS_SECTORS);
        for run in runs {
            let here = Range::between(at, end.min(at.saturating_add(run.sectors)));
            at = here.end();
            let mut rest = here;
            while !rest.is_empty() {
                let zeroes = match run.state {
                    BlockState::Data => Some(0),
                    BlockState::Zero | BlockState::Hole => versions.zeroes(rest),
                };
                let Some(zeroes) = zeroes else {
                    known = false;
                    break;
                };
                add(zeroes, run.state);
                let from = rest.lba + zeroes;
                let next = if run.state == BlockState::Data { rest.end() } else { from + 1 };
                let next = next.min(rest.end());
                add(next - from, BlockState::Data);
                rest = Range::between(next, rest.end());
            }
            if at >= end {
                break;
            }
        }
        known.then_some(out)
    }
}
