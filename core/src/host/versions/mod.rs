//! Which version of each block a keyed volume has: what finds out a store that answers with an
//! older one.
//!
//! Promises: what is committed and given out by the store is the version that was written last, as
//! far as this host knows ([`Standing`]); the table on disk has all writes up to
//! [`Versions::durable`], and the journal keeps what comes after. Memory is bounded by its pages
//! and by [`QUEUE_MAX`] changes, with those of one batch; after a restart, until they are applied,
//! by the records that the journal held instead. It must not know requests, packing or the link.
//!
//! # Life of a change
//!
//! A record is *fed* when it is shipped, *due* once it is committed, and then *applied* to pages in
//! memory, which may have to be read before. A [checkpoint](table) puts them on the disk. From the
//! feeding until it is applied a change stands in an overlay, so an answer is always compared with
//! the newest.

mod head;
mod learn;
mod mark;
mod root;
mod root_hash;
mod table;
#[cfg(test)]
mod tests;

pub use head::{
    HEAD_BYTES, Head, HeadError, JournalEnd, Rollback, STATEMENT_BYTES, Statement,
    VERSIONS_VERSION, Verdict,
};
pub use learn::{Learned, Learner};
pub use mark::TABLE_KEY_BYTES;
pub use root::Rooting;
pub use root_hash::{ROOT_BYTES, Root, RootHash};
pub use table::{BLOCKS, FILES, PAGE_BYTES, SECTORS, damaged_bytes};

pub(crate) use mark::{Seal, seals, seals_of};

use super::io::{DiskOperation, DiskResult};
use crate::block::{BLOCK_SECTORS, Range, Seq, Time, VolumeId};
use crate::cache::Version;
use crate::extent::{ExtentMap, Uniform};
use crate::record::{self, Header};
use bytes::Bytes;
use mark::{Mark, MarkKey};
use std::collections::VecDeque;
use std::time::Duration;
use table::Table;

/// Changes fed and not applied beyond which nothing is shipped.
const QUEUE_MAX: usize = 1 << 17;
/// Changes whose pages are asked for together: less than what fits into memory beside pages that
/// have changed.
const AHEAD: usize = 64;
/// Blocks changed in one go: a discard may be as large as the volume.
const TURN_BLOCKS: usize = 1 << 15;
const TURN: Duration = Duration::from_millis(1);
/// How long a change may wait for a checkpoint although nothing is short.
const INTERVAL: Duration = Duration::from_secs(10);

/// A record, or a part of one, that a journal holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fed {
    pub(crate) seq: Seq,
    pub(crate) range: Range,
    pub(crate) seal: Seal,
}

/// A change that has not been applied, or not all of it.
#[derive(Clone, Copy, Debug)]
struct BlockChange {
    seq: Seq,
    range: Range,
    mark: Mark,
}

/// What an answer of the store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It cannot be said before something has been read, or done.
    Unknown,
    /// The newest version; of the blocks there it is the first one seen here.
    Newest(Vec<(Range, Seal)>),
    /// An older version, or none of this volume.
    Outdated,
}

/// How the table is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionsStatus {
    /// Whether the version of every block is known, rather than of those written or read here.
    pub complete: bool,
    /// All writes up to this number are in the table on disk.
    pub durable: Seq,
    /// Answers of the store that were not the newest version.
    pub outdated: u64,
    /// Bytes of the table that were damaged: what they said is unknown.
    pub damaged_bytes: u64,
    /// Why nothing is compared any more.
    pub failed: Option<String>,
}

/// See the module.
#[derive(Debug)]
pub struct Versions {
    volume: VolumeId,
    key: MarkKey,
    table: Table,
    /// In order of their numbers.
    queue: VecDeque<BlockChange>,
    overlay: ExtentMap<Uniform<(Seq, Mark)>>,
    /// How many changes of it, or of the journal before them, are left until all that is to be
    /// forgotten is.
    until_forgotten: usize,
    /// The last number fed.
    fed: Seq,
    committed: Seq,
    /// When the first change was applied that no checkpoint has.
    since: Option<Time>,
    turn: Option<Time>,
    /// What waited for the disk can go on.
    moved: bool,
    outdated: u64,
}

impl Versions {
    /// The table that was opened with [`Head::newest`] and [`Head::judge`], or a new one; `head` is
    /// on stable storage. `forgotten` are the ranges of the verdict, `committed` the last number
    /// that the store has; at most `memory` bytes of the table are in memory. `None` if its key is
    /// none.
    #[must_use]
    pub fn new(head: Head, committed: Seq, forgotten: &[Range], memory: u64) -> Option<Versions> {
        let mut versions = Versions {
            volume: head.volume,
            key: head.mark_key()?,
            fed: head.seq,
            table: Table::new(head, memory),
            queue: VecDeque::new(),
            overlay: ExtentMap::new(),
            until_forgotten: forgotten.len(),
            committed,
            since: None,
            turn: None,
            moved: false,
            outdated: 0,
        };
        // After whatever the journal feeds.
        for range in forgotten {
            versions.push(committed, *range, Mark::UNKNOWN);
        }
        Some(versions)
    }

    // --- changes ---

    fn push(&mut self, seq: Seq, range: Range, mark: Mark) {
        self.overlay.insert(range, Uniform((seq, mark)));
        self.queue.push_back(BlockChange { seq, range, mark });
    }

    /// Whose versions these are.
    pub(crate) fn volume(&self) -> VolumeId {
        self.volume
    }

    /// What a recovered journal holds of what is committed, in order.
    pub(crate) fn replay(&mut self, fed: Vec<Fed>) {
        let forgotten = std::mem::take(&mut self.queue);
        self.overlay.clear();
        for Fed { seq, range, seal } in fed {
            if seq > self.fed && seq <= self.committed {
                let mark = self.key.mark(&seal).unwrap_or(Mark::UNKNOWN);
                self.push(seq, range, mark);
            }
        }
        self.fed = self.fed.max(self.committed);
        for BlockChange { seq, range, mark } in forgotten {
            self.push(seq, range, mark);
        }
        // The journal comes first, so these are the last ones.
        self.until_forgotten = if self.until_forgotten > 0 { self.queue.len() } else { 0 };
    }

    /// The records of a frame, which are all there and in order.
    pub(crate) fn feed(&mut self, mut records: &[u8]) {
        while !records.is_empty() {
            let Ok(header) = record::parse_prefix(self.volume, records) else { return };
            self.feed_record(&header, records);
            records = records.get(header.record_bytes()..).unwrap_or_default();
        }
    }

    fn feed_record(&mut self, header: &Header, bytes: &[u8]) {
        if header.seq <= self.fed || self.table.failed().is_some() {
            return;
        }
        self.fed = header.seq;
        seals(self.volume, header, bytes, |range, seal| {
            let mark = self.key.mark(&seal).unwrap_or(Mark::UNKNOWN);
            self.overlay.insert(range, Uniform((header.seq, mark)));
            self.queue.push_back(BlockChange { seq: header.seq, range, mark });
        });
    }

    /// The last number that the store can have: nothing later was given to it. After a failure of
    /// the disk nothing is known of that.
    pub(crate) fn fed(&self) -> Seq {
        if self.table.failed().is_some() { Seq::MAX } else { self.fed }
    }

    /// Whether nothing more should be shipped before some of it is applied.
    pub(crate) fn is_full(&self) -> bool {
        self.queue.len() >= QUEUE_MAX
    }

    /// The store has everything up to `seq`.
    pub(crate) fn commit(&mut self, seq: Seq) {
        self.committed = self.committed.max(seq);
    }

    /// All writes up to this number are applied. While something is left to be forgotten that is
    /// what it was when the table was opened: after a crash it is asked for anew only if the table
    /// does not say to have it.
    fn applied(&self) -> Seq {
        if self.until_forgotten > 0 {
            return self.table.head().seq;
        }
        let next = self.queue.front().map(|change| change.seq);
        next.map_or(self.committed, |seq| self.committed.min(seq.saturating_sub(1)))
    }

    /// All writes up to this number are in the table on disk: the journal need not keep them. After
    /// a failure of the disk it keeps nothing for the table.
    pub(crate) fn durable(&self) -> Seq {
        if self.table.failed().is_some() { Seq::MAX } else { self.table.head().seq }
    }

    /// Applies what is due, and makes a checkpoint if there is a reason. `short`: somebody waits
    /// for the room in the journal, or soon will. `closing`: the volume is to be let go.
    pub(crate) fn settle(&mut self, now: Time, short: bool, closing: bool) {
        if self.table.failed().is_some() {
            self.queue.clear();
            self.overlay.clear();
            return;
        }
        if self.turn.is_none_or(|turn| turn <= now) {
            self.turn = None;
            self.apply(now);
        }
        let applied = self.applied();
        // What was seen for the first time is no write of this host, and is to be kept all the
        // same.
        let behind = applied > self.table.head().seq || self.since.is_some();
        let due = self.since.is_some_and(|since| since.after(INTERVAL) <= now);
        let wanted = (behind && (short || due || closing)) || self.table.is_crowded();
        if wanted && !self.table.is_frozen() {
            self.since = None;
            self.table.checkpoint(applied);
        }
    }

    fn apply(&mut self, now: Time) {
        let mut left = TURN_BLOCKS;
        while !self.table.is_frozen()
            && !self.table.is_crowded()
            && let Some(change) = self.queue.front_mut()
            && change.seq <= self.committed
        {
            let BlockChange { seq, range, mark } = *change;
            let first = range.lba / BLOCK_SECTORS;
            let end = range.end().min((first + 1) * BLOCK_SECTORS);
            let part = Range::between(range.lba, end);
            if left == 0 {
                self.turn = Some(now.after(TURN));
                return;
            }
            left -= 1;
            if !self.table.set(part, mark) {
                // What the next ones need is read at the same time.
                for BlockChange { range, .. } in self.queue.iter().take(AHEAD) {
                    self.table.ask(*range);
                }
                return;
            }
            self.since.get_or_insert(now);
            self.overlay.remove_if(part, |Uniform(of)| *of == (seq, mark));
            change.range = Range::between(end, range.end());
            if change.range.is_empty() {
                self.queue.pop_front();
                self.until_forgotten = self.until_forgotten.saturating_sub(1);
            }
        }
    }

    /// When [`Versions::settle`] has something to do that it has not now.
    pub(crate) fn deadline(&self) -> Option<Time> {
        if self.table.failed().is_some() {
            return None;
        }
        let due = self.since.map(|since| since.after(INTERVAL));
        let due = due.filter(|_| !self.table.is_frozen());
        [self.turn, due].into_iter().flatten().min()
    }

    /// Whether the table on disk has all that is committed.
    pub(crate) fn is_settled(&self) -> bool {
        let failed = self.table.failed().is_some();
        let kept = self.since.is_none() && self.table.head().seq >= self.committed;
        failed || (!self.table.is_frozen() && kept)
    }

    // --- comparing ---

    /// What an answer of the store is; `pieces` are its parts in order.
    pub(crate) fn standing(&mut self, pieces: &[(Range, Seal)]) -> Standing {
        if self.table.failed().is_some() {
            return Standing::Newest(Vec::new());
        }
        let mut new: Vec<(Range, Seal)> = Vec::new();
        let mut known = true;
        for (range, seal) in pieces {
            let Some(found) = self.key.mark(seal) else {
                self.outdated += 1;
                return Standing::Outdated;
            };
            match self.compare(*range, found, &mut |part| push_new(&mut new, part, *seal)) {
                None => known = false,
                Some(true) => {}
                Some(false) => {
                    self.outdated += 1;
                    return Standing::Outdated;
                }
            }
        }
        if known { Standing::Newest(new) } else { Standing::Unknown }
    }

    /// Whether all of a range is to have that mark; nothing if something has to be read first.
    /// Blocks of which nothing is known are given to `new`.
    fn compare(&mut self, range: Range, found: Mark, new: &mut dyn FnMut(Range)) -> Option<bool> {
        let parts: Vec<_> = self.overlay.cover(range).collect();
        let mut known = true;
        for (part, over) in parts {
            if let Some(Uniform((_, mark))) = over {
                if mark != found && mark != Mark::UNKNOWN {
                    return Some(false);
                }
                continue;
            }
            let mut at = part.lba;
            while at < part.end() {
                let block = at / BLOCK_SECTORS;
                let end = ((block + 1) * BLOCK_SECTORS).min(part.end());
                let here = Range::between(at, end);
                at = end;
                match self.table.get(block) {
                    None => known = false,
                    Some(Ok(mark)) => match self.fits(mark, found) {
                        None => new(here),
                        Some(true) => {}
                        Some(false) => return Some(false),
                    },
                    Some(Err(split)) => {
                        let first = (here.lba % BLOCK_SECTORS) as usize;
                        let marks = &split[first..first + here.sectors as usize];
                        if marks.iter().any(|mark| self.fits(*mark, found) == Some(false)) {
                            return Some(false);
                        }
                    }
                }
            }
        }
        known.then_some(true)
    }

    /// Whether content of mark `found` may be where the table has `mark`; nothing if the table does
    /// not know.
    fn fits(&self, mark: Mark, found: Mark) -> Option<bool> {
        match mark {
            Mark::BLANK if self.table.head().complete => Some(found == Mark::ZERO),
            Mark::BLANK | Mark::UNKNOWN => None,
            mark => Some(mark == found),
        }
    }

    /// What was seen for the first time has proved to be of this volume, and nothing was written to
    /// it since it was asked for: it is the version to be expected from now on.
    pub(crate) fn adopt(&mut self, now: Time, new: &[(Range, Seal)]) {
        for (range, seal) in new {
            let whole = range.sectors == BLOCK_SECTORS;
            let Some(mark) = self.key.mark(seal).filter(|_| whole) else { continue };
            // The table may have come to know it, or be busy: then the next read has its turn.
            let free = !self.table.is_frozen() && !self.table.is_crowded();
            let over = self.overlay.overlapping(*range).next().is_some();
            if free && !over && self.is_unknown(range.lba / BLOCK_SECTORS) {
                self.table.set(*range, mark);
                self.since.get_or_insert(now);
            }
        }
    }

    /// The newest version of a block, for the read cache. Sectors that are zeroes have the mark of
    /// zeroes, however it came to be known.
    pub(crate) fn version(&mut self, block: u64) -> Version {
        if self.table.failed().is_some() {
            return Version::Unknown;
        }
        let whole = Range::new(block * BLOCK_SECTORS, BLOCK_SECTORS);
        let over: Vec<_> = self.overlay.cover(whole).collect();
        let mut marks = [Mark::UNKNOWN; BLOCK_SECTORS as usize];
        if over.iter().any(|(_, over)| over.is_none()) {
            marks = match self.table.get(block) {
                None => return Version::Later,
                Some(Ok(mark)) => [mark; BLOCK_SECTORS as usize],
                Some(Err(split)) => split,
            };
        }
        for (part, over) in over {
            let first = (part.lba - whole.lba) as usize;
            if let Some(Uniform((_, mark))) = over {
                marks[first..first + part.sectors as usize].fill(mark);
            }
        }
        let complete = self.table.head().complete;
        for mark in &mut marks {
            match *mark {
                Mark::BLANK if complete => *mark = Mark::ZERO,
                Mark::BLANK | Mark::UNKNOWN => return Version::Unknown,
                _ => {}
            }
        }
        Version::Is(marks.map(|mark| mark.0))
    }

    /// Whether what is seen for the first time cannot be noted now.
    pub(crate) fn is_busy(&self) -> bool {
        self.table.is_frozen() || self.table.is_crowded()
    }

    fn is_unknown(&mut self, block: u64) -> bool {
        let mark = self.table.get(block);
        matches!(mark, Some(Ok(mark)) if self.fits(mark, Mark::ZERO).is_none())
    }

    /// Of a range that the store says has no data, how many sectors from its start may be so as far
    /// as this host knows; nothing if something has to be read first.
    pub(crate) fn zeroes(&mut self, range: Range) -> Option<u64> {
        if self.table.failed().is_some() {
            return Some(range.sectors);
        }
        let mut at = range.lba;
        while at < range.end() {
            let block = (at / BLOCK_SECTORS + 1) * BLOCK_SECTORS;
            let end = if self.may_be_zero(Range::between(at, block.min(range.end())))? {
                block.min(range.end())
            } else if self.may_be_zero(Range::new(at, 1))? {
                at + 1
            } else {
                break;
            };
            at = end;
        }
        Some(at - range.lba)
    }

    fn may_be_zero(&mut self, range: Range) -> Option<bool> {
        self.compare(range, Mark::ZERO, &mut |_| {})
    }

    // --- the disk ---

    /// The next operation on the files of the table.
    pub(crate) fn poll_disk(&mut self) -> Option<DiskOperation> {
        self.table.poll_disk()
    }

    /// Takes the outcome of one; whether the disk has just failed.
    pub(crate) fn handle_disk(&mut self, result: DiskResult) -> Option<String> {
        let before = self.table.failed().is_some();
        self.table.handle_disk(result);
        self.moved = true;
        self.table.failed().filter(|_| !before).map(str::to_owned)
    }

    /// Whether what waited may have become known since the last call.
    pub(crate) fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    pub(crate) fn status(&self) -> VersionsStatus {
        VersionsStatus {
            complete: self.table.head().complete,
            durable: self.table.head().seq,
            outdated: self.outdated,
            damaged_bytes: self.table.damaged_bytes(),
            failed: self.table.failed().map(str::to_owned),
        }
    }
}

/// Parts of a block that follow each other and have one seal are one.
fn push_new(new: &mut Vec<(Range, Seal)>, part: Range, seal: Seal) {
    let block = |lba: u64| lba / BLOCK_SECTORS;
    match new.last_mut() {
        Some((last, of))
            if *of == seal && last.end() == part.lba && block(last.lba) == block(part.lba) =>
        {
            last.sectors += part.sectors;
        }
        _ => new.push((part, seal)),
    }
}

/// The seals of the parts of an answer; nothing if it is none of that range.
pub(crate) fn seals_of_answer(
    volume: VolumeId,
    range: Range,
    pieces: &[crate::wire::link::Piece],
    payload: &Bytes,
) -> Option<Vec<(Range, Seal)>> {
    use crate::wire::link::{self, ReadPart};
    let parts = link::decode_data(range, pieces, payload.clone()).ok()?;
    let mut at = range.lba;
    let mut out = Vec::with_capacity(parts.len());
    for part in parts {
        match part {
            ReadPart::Hole(sectors) | ReadPart::Zero(sectors) => {
                out.push((Range::new(at, sectors), Seal::Zero));
                at += sectors;
            }
            ReadPart::Data { wanted, .. } => {
                out.push((wanted, Seal::Plain));
                at = wanted.end();
            }
            ReadPart::Packed { wanted, record } => {
                seals_of(volume, &record, wanted, |part, seal| out.push((part, seal)));
                at = wanted.end();
            }
        }
    }
    Some(out)
}
