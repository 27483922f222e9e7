//! The version of each block of a keyed volume. It reveals a store that answers with an older one.
//!
//! Promises: committed content from the store is the last written version, as far as this host
//! knows ([`Standing`]). The table on disk has all writes up to [`Versions::durable`], and the
//! journal keeps the later ones. Two limits bound the memory: that of pages, and [`QUEUE_MAX`]
//! changes plus those of one batch. After a restart, the records of the journal take the place of
//! the changes until the table has applied them. It must not know requests, packing or the link.
//!
//! # Life of a change
//!
//! The drain *feeds* the table a record when it sends it. The record is *due* once it is committed.
//! Then the table *applies* it to pages in memory, which it may have to read before. A
//! [checkpoint](table) puts the pages on the disk. From the feeding until the table has applied it
//! a change stands in an overlay. So the comparison of an answer always uses the newest version.

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

/// With more unapplied changes than this, the drain sends nothing.
const QUEUE_MAX: usize = 1 << 17;
/// Changes whose pages the table asks for together. They fit into memory beside changed pages.
const AHEAD: usize = 64;
/// Blocks to change in one go: a discard may be as large as the volume.
const TURN_BLOCKS: usize = 1 << 15;
const TURN: Duration = Duration::from_millis(1);
/// How long a change may wait for a checkpoint if no space is short.
const INTERVAL: Duration = Duration::from_secs(10);

/// A record, or a part of one, that a journal holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fed {
    pub(crate) seq: Seq,
    pub(crate) range: Range,
    pub(crate) seal: Seal,
}

/// A change that the table has not applied, or not all of.
#[derive(Clone, Copy, Debug)]
struct BlockChange {
    seq: Seq,
    range: Range,
    mark: Mark,
}

/// The result of comparing an answer of the store with the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Unknown before the table has read something, or done something.
    Unknown,
    /// The newest version. For the listed blocks, this is the first version that the host sees.
    Newest(Vec<(Range, Seal)>),
    /// An older version, or content of another volume.
    Outdated,
}

/// The state of the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionsStatus {
    /// Whether the table knows the version of every block, not only of those written or read here.
    pub complete: bool,
    /// All writes up to this number are in the table on disk.
    pub durable: Seq,
    /// Answers of the store that were not the newest version.
    pub outdated: u64,
    /// Damaged bytes of the table. The marks in them are unknown.
    pub damaged_bytes: u64,
    /// Why the host compares nothing any more.
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
    /// Changes of the queue, or of the journal before them, that are left until the table has
    /// forgotten all ranges of its verdict.
    until_forgotten: usize,
    /// The last number fed.
    fed: Seq,
    committed: Seq,
    /// The time of the first applied change that no checkpoint has.
    since: Option<Time>,
    turn: Option<Time>,
    /// Requests that waited for the disk can go on.
    moved: bool,
    outdated: u64,
}

impl Versions {
    /// A table from [`Head::newest`] and [`Head::judge`], or a new one; `head` is on stable
    /// storage. `forgotten` are the ranges of the verdict. `committed` is the last number that the
    /// store has. At most `memory` bytes of the table are in memory. `None` if its key is invalid.
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
        // After all changes that the journal feeds.
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

    /// The volume of the table.
    pub(crate) fn volume(&self) -> VolumeId {
        self.volume
    }

    /// Takes the committed records of a recovered journal, in order.
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

    /// Takes the records of a frame, which are complete and in order.
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

    /// The last number that the store can have: it has received no later one. Unknown after a
    /// failure of the disk.
    pub(crate) fn fed(&self) -> Seq {
        if self.table.failed().is_some() { Seq::MAX } else { self.fed }
    }

    /// Whether the drain has to wait until the table has applied some changes.
    pub(crate) fn is_full(&self) -> bool {
        self.queue.len() >= QUEUE_MAX
    }

    /// The store has everything up to `seq`.
    pub(crate) fn commit(&mut self, seq: Seq) {
        self.committed = self.committed.max(seq);
    }

    /// The last number of applied writes. While ranges are left to forget, it is the number at the
    /// opening of the table. The reason: after a crash the host asks for the changes again only if
    /// the table does not claim to have them.
    fn applied(&self) -> Seq {
        if self.until_forgotten > 0 {
            return self.table.head().seq;
        }
        let next = self.queue.front().map(|change| change.seq);
        next.map_or(self.committed, |seq| self.committed.min(seq.saturating_sub(1)))
    }

    /// All writes up to this number are in the table on disk, so the journal need not keep them.
    /// After a failure of the disk it keeps nothing for the table.
    pub(crate) fn durable(&self) -> Seq {
        if self.table.failed().is_some() { Seq::MAX } else { self.table.head().seq }
    }

    /// Applies due changes, and makes a checkpoint if there is a reason. `short`: a request waits
    /// for room in the journal, or soon will. `closing`: the volume is about to end.
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
        // A version that the host has seen for the first time is no write of this host, and still
        // needs a checkpoint.
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
                // Read the pages for the next changes at the same time.
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

    /// The next time when [`Versions::settle`] has something to do.
    pub(crate) fn deadline(&self) -> Option<Time> {
        if self.table.failed().is_some() {
            return None;
        }
        let due = self.since.map(|since| since.after(INTERVAL));
        let due = due.filter(|_| !self.table.is_frozen());
        [self.turn, due].into_iter().flatten().min()
    }

    /// Whether the table on disk has all committed writes.
    pub(crate) fn is_settled(&self) -> bool {
        let failed = self.table.failed().is_some();
        let kept = self.since.is_none() && self.table.head().seq >= self.committed;
        failed || (!self.table.is_frozen() && kept)
    }

    // --- comparing ---

    /// Compares an answer of the store with the table; `pieces` are its parts in order.
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

    /// Whether all of a range has that mark; `None` if the table has to read pages first. Calls
    /// `new` with blocks of which nothing is known.
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

    /// Whether content of mark `found` is valid where the table has `mark`. `None` if the table
    /// does not know.
    fn fits(&self, mark: Mark, found: Mark) -> Option<bool> {
        match mark {
            Mark::BLANK if self.table.head().complete => Some(found == Mark::ZERO),
            Mark::BLANK | Mark::UNKNOWN => None,
            mark => Some(mark == found),
        }
    }

    /// Content that the host sees for the first time has proved to be of this volume. No write has
    /// touched it since the request. So from now on it is the expected version.
    pub(crate) fn adopt(&mut self, now: Time, new: &[(Range, Seal)]) {
        for (range, seal) in new {
            let whole = range.sectors == BLOCK_SECTORS;
            let Some(mark) = self.key.mark(seal).filter(|_| whole) else { continue };
            // The table may have learned it meanwhile, or be busy. Then the next read has its turn.
            let free = !self.table.is_frozen() && !self.table.is_crowded();
            let over = self.overlay.overlapping(*range).next().is_some();
            if free && !over && self.is_unknown(range.lba / BLOCK_SECTORS) {
                self.table.set(*range, mark);
                self.since.get_or_insert(now);
            }
        }
    }

    /// The newest version of a block, for the read cache. Zero sectors have the mark of zeroes,
    /// wherever that knowledge comes from.
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

    /// Whether the table cannot take new versions now.
    pub(crate) fn is_busy(&self) -> bool {
        self.table.is_frozen() || self.table.is_crowded()
    }

    fn is_unknown(&mut self, block: u64) -> bool {
        let mark = self.table.get(block);
        matches!(mark, Some(Ok(mark)) if self.fits(mark, Mark::ZERO).is_none())
    }

    /// The store says that a range has no data. Returns how many sectors from its start may be so
    /// as far as this host knows. `None` if the table has to read pages first.
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

    /// Takes the outcome of an operation. Returns the error if the disk has just failed.
    pub(crate) fn handle_disk(&mut self, result: DiskResult) -> Option<String> {
        let before = self.table.failed().is_some();
        self.table.handle_disk(result);
        self.moved = true;
        self.table.failed().filter(|_| !before).map(str::to_owned)
    }

    /// Whether the table may have new knowledge since the last call.
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

/// Joins neighboring parts of a block with the same seal.
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

/// The seals of the parts of an answer; `None` if it does not answer for that range.
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
