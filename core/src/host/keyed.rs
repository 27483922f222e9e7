//! The content of a volume as only this host can make and check it: packed, encrypted, and compared
//! with the [table of versions](super::versions).
//!
//! Why an answer has to be the newest version: nothing of its range was uncommitted when it was
//! asked for, or else it counts as spoiled; so it holds all that the table knew then. What was
//! written since makes it spoiled, too, and then another version may be right: the range is read
//! once more, from the journal if that has it.
//!
//! Promises: nothing that is plain text is taken for content of an encrypted volume. With a table,
//! nothing is taken for the newest version that the table does not expect. It must not know who
//! asked.

use super::io::{DiskOperation, DiskResult, Event};
use super::outputs::Outputs;
use super::pieces::{Unfit, verified};
use super::versions::{Fed, Standing, Versions, VersionsStatus, seals_of_answer};
use crate::block::{BLOCK_SECTORS, BlockState, Range, ReadPiece, Seq, StatusRun, Time};
use crate::cache::Version;
use crate::pack::{Keys, Packer};
use crate::wire::link::{Piece, ReadError};
use bytes::Bytes;

/// Sectors that the answer to one status query is about (64 MiB), since all of it has to be looked
/// up.
const STATUS_SECTORS: u64 = 1 << 17;

/// See the module.
#[derive(Debug)]
pub(super) struct KeyedContent {
    packer: Packer,
    /// If the volume is keyed and has a table.
    versions: Option<Box<Versions>>,
    /// Changes that the journal held, until the table of versions is there.
    replayed: Vec<Fed>,
}

impl KeyedContent {
    pub(super) fn new(packer: Packer, replayed: Vec<Fed>) -> KeyedContent {
        KeyedContent { packer, versions: None, replayed }
    }

    // --- inputs ---

    /// The volume has a table of versions, from its first request on.
    pub(super) fn set_versions(&mut self, mut versions: Versions) {
        versions.replay(std::mem::take(&mut self.replayed));
        self.versions = Some(Box::new(versions));
    }

    /// The keys are these from now on.
    pub(super) fn set_keys(&mut self, keys: Keys) {
        self.packer.set_keys(keys);
    }

    /// A frame with these records is shipped.
    pub(super) fn feed(&mut self, records: &[u8]) {
        if let Some(versions) = &mut self.versions {
            versions.feed(records);
        }
    }

    /// The store has everything up to here.
    pub(super) fn commit(&mut self, committed: Seq) {
        if let Some(versions) = &mut self.versions {
            versions.commit(committed);
        }
    }

    /// Goes on with the table: gives the number up to which the journal need not keep anything for
    /// it. `short`: somebody waits for room in the journal, or soon will. `closing`: the volume is
    /// let go.
    pub(super) fn settle(&mut self, now: Time, short: bool, closing: bool) -> Option<Seq> {
        let versions = self.versions.as_mut()?;
        versions.settle(now, short, closing);
        Some(versions.durable())
    }

    /// Whether what waited for the table may have become known since the last call.
    pub(super) fn take_moved(&mut self) -> bool {
        self.versions.as_mut().is_some_and(|versions| versions.take_moved())
    }

    /// Takes the outcome of an operation on the files of the table.
    pub(super) fn handle_disk(&mut self, result: DiskResult, out: &mut Outputs) {
        let Some(versions) = &mut self.versions else { return };
        if let Some(error) = versions.handle_disk(result) {
            out.event(Event::VersionsFailed { error });
        }
    }

    /// The next operation on the files of the table.
    pub(super) fn poll_disk(&mut self) -> Option<DiskOperation> {
        self.versions.as_mut()?.poll_disk()
    }

    // --- checking ---

    /// Compares an answer with the table; [`Standing::Newest`] if nothing can be said about it.
    pub(super) fn standing(
        &mut self,
        range: Range,
        result: &Result<Vec<Piece>, ReadError>,
        payload: &Bytes,
    ) -> Standing {
        let (Some(versions), Ok(pieces)) = (&mut self.versions, result) else {
            return Standing::Newest(Vec::new());
        };
        match seals_of_answer(versions.volume(), range, pieces, payload) {
            Some(pieces) => versions.standing(&pieces),
            // It is damaged, which is found out elsewhere.
            None => Standing::Newest(Vec::new()),
        }
    }

    /// The content of an answer, if it matches its checksums and is encrypted where the volume is.
    pub(super) fn open(
        &mut self,
        range: Range,
        pieces: &[Piece],
        payload: Bytes,
    ) -> Result<Vec<ReadPiece>, Unfit> {
        verified(range, pieces, payload, &mut self.packer)
    }

    /// An answer has proved to be the volume's. `spoiled`: something was written that it may not
    /// have.
    pub(super) fn adopt(&mut self, now: Time, spoiled: bool, standing: &Standing) {
        if let (Some(versions), Standing::Newest(new), false) =
            (&mut self.versions, standing, spoiled)
        {
            versions.adopt(now, new);
        }
    }

    /// The newest version of a block that the read cache gives.
    pub(super) fn version(&mut self, block: u64) -> Version {
        self.versions.as_mut().map_or(Version::Unknown, |versions| versions.version(block))
    }

    /// The newest version of a block that the read cache is offered.
    pub(super) fn version_offered(&mut self, block: u64) -> Version {
        let busy = self.versions.as_ref().is_some_and(|versions| versions.is_busy());
        match self.version(block) {
            Version::Unknown if busy => Version::Later,
            version => version,
        }
    }

    /// Whether something has to be read before the versions of a range are known.
    pub(super) fn is_later(&mut self, range: Range) -> bool {
        let blocks = range.lba / BLOCK_SECTORS..range.end().div_ceil(BLOCK_SECTORS);
        // All of them, so that what has to be read is read at once.
        blocks.fold(false, |later, block| later | (self.version(block) == Version::Later))
    }

    /// The store's runs as far as they may be true: what it says to have no data, and this host
    /// knows to have, counts as data. Nothing if something has to be read first.
    pub(super) fn true_runs(&mut self, range: Range, runs: &[StatusRun]) -> Option<Vec<StatusRun>> {
        let Some(versions) = &mut self.versions else { return Some(runs.to_vec()) };
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

    // --- outputs ---

    /// Whether there is a table of versions.
    pub(super) fn has_versions(&self) -> bool {
        self.versions.is_some()
    }

    /// The packer, to pack and unpack with.
    pub(super) fn packer(&mut self) -> &mut Packer {
        &mut self.packer
    }

    pub(super) fn packing(&self) -> &Packer {
        &self.packer
    }

    /// Whether the table takes no more changes.
    pub(super) fn is_full(&self) -> bool {
        self.versions.as_ref().is_some_and(|versions| versions.is_full())
    }

    /// The part of `committed`, as a store claims it, that the store can have.
    pub(super) fn possible(&self, committed: Seq) -> Seq {
        self.versions.as_ref().map_or(committed, |versions| committed.min(versions.fed()))
    }

    /// Whether the table on disk has all that is committed.
    pub(super) fn is_settled(&self) -> bool {
        self.versions.as_ref().is_none_or(|versions| versions.is_settled())
    }

    /// When [`KeyedContent::settle`] has something to do.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.versions.as_ref()?.deadline()
    }

    pub(super) fn status(&self) -> Option<VersionsStatus> {
        self.versions.as_ref().map(|versions| versions.status())
    }
}
