//! The content of a keyed volume: packs and encrypts it, and compares it with the [version
//! table](super::versions). Only this host can do that.
//!
//! An answer has to be the newest version, for these reasons. If a part of its range is uncommitted
//! when a request goes out, the request counts as spoiled. Otherwise the store had all versions
//! that the table knew then. A later write spoils the request, too, and then another version may be
//! right. So the volume reads the range once more, from the journal if that has it.
//!
//! Promises: the module never takes plain text for content of an encrypted volume. If there is a
//! table, it takes only content that the table expects for the newest version. It must not know the
//! readers.

use super::io::{DiskOperation, DiskResult, Event};
use super::outputs::Outputs;
use super::pieces::{Unfit, verified};
use super::versions::{Fed, Standing, Versions, VersionsStatus, seals_of_answer};
use crate::block::{BLOCK_SECTORS, BlockState, Range, ReadPiece, Seq, StatusRun, Time};
use crate::cache::Version;
use crate::pack::{Keys, Packer};
use crate::wire::link::{Piece, ReadError};
use bytes::Bytes;

/// Sectors that one status query covers (64 MiB), because it has to look all of them up.
const STATUS_SECTORS: u64 = 1 << 17;

/// See the module.
#[derive(Debug)]
pub(super) struct KeyedContent {
    packer: Packer,
    /// The table, if the volume is keyed and has one.
    versions: Option<Box<Versions>>,
    /// Changes from the journal, until the version table is there.
    replayed: Vec<Fed>,
}

impl KeyedContent {
    pub(super) fn new(packer: Packer, replayed: Vec<Fed>) -> KeyedContent {
        KeyedContent { packer, versions: None, replayed }
    }

    // --- inputs ---

    /// Gives the volume its version table, before its first request.
    pub(super) fn set_versions(&mut self, mut versions: Versions) {
        versions.replay(std::mem::take(&mut self.replayed));
        self.versions = Some(Box::new(versions));
    }

    /// Replaces the keys.
    pub(super) fn set_keys(&mut self, keys: Keys) {
        self.packer.set_keys(keys);
    }

    /// The drain sends a frame with these records.
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

    /// Continues the work of the table. Returns the number up to which the table needs no writes in
    /// the journal. `short`: a request waits for room in the journal, or soon will. `closing`: the
    /// volume is about to end.
    pub(super) fn settle(&mut self, now: Time, short: bool, closing: bool) -> Option<Seq> {
        let versions = self.versions.as_mut()?;
        versions.settle(now, short, closing);
        Some(versions.durable())
    }

    /// Whether the table may have new knowledge since the last call, for the answers that wait.
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

    /// Compares an answer with the table. [`Standing::Newest`] if the table knows nothing about it.
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
            // It is damaged. Another check will find that.
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

    /// Adopts an answer that has proved to be the volume's. `spoiled`: a write has changed the
    /// range, and the answer may not have it.
    pub(super) fn adopt(&mut self, now: Time, spoiled: bool, standing: &Standing) {
        if let (Some(versions), Standing::Newest(new), false) =
            (&mut self.versions, standing, spoiled)
        {
            versions.adopt(now, new);
        }
    }

    /// The newest version of a block, for a read of the cache.
    pub(super) fn version(&mut self, block: u64) -> Version {
        self.versions.as_mut().map_or(Version::Unknown, |versions| versions.version(block))
    }

    /// The newest version of a block, for an offer to the cache.
    pub(super) fn version_offered(&mut self, block: u64) -> Version {
        let busy = self.versions.as_ref().is_some_and(|versions| versions.is_busy());
        match self.version(block) {
            Version::Unknown if busy => Version::Later,
            version => version,
        }
    }

    /// Whether the table has to read pages before it knows the versions of a range.
    pub(super) fn is_later(&mut self, range: Range) -> bool {
        let blocks = range.lba / BLOCK_SECTORS..range.end().div_ceil(BLOCK_SECTORS);
        // Ask for all blocks, so that the table reads all pages at once.
        blocks.fold(false, |later, block| later | (self.version(block) == Version::Later))
    }

    /// The store's runs as far as they may be true. If the store reports a hole where this host
    /// knows of data, it counts as data. `None` if the table has to read pages first.
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

    /// Whether there is a version table.
    pub(super) fn has_versions(&self) -> bool {
        self.versions.is_some()
    }

    /// The packer.
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

    /// Whether the table on disk has all committed writes.
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
