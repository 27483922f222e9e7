//! The volume's side of the read cache: what it is told, what it is offered, and what becomes of reads
//! that it takes over.
//!
//! What is offered is always the newest acknowledged content: an answer of the store only if nothing was
//! written to its range that the store may not have had, and a write once it is committed and only as
//! far as nothing newer came. So the version that the table of versions has for it is its version: a cache that is
//! sealed binds it to that, and nothing is given out before the table has said that it still is. Commits come in bursts, and the cache's disk is slower than the journal's when
//! both are one: writes wait for it, within limits, and leave half of its queue to what is read.

use super::cache::{
    Cache, CacheStatus, Found, LINE_SECTORS, Outcome, Pins, Reader, Source, Unusable,
};
use super::io::{DiskOperation, DiskResult, Event};
use super::reads::{LinkUse, Slot};
use super::repair::Repairs;
use super::volume::Volume;
use crate::block::{BLOCK_SECTORS, Range, ReadPiece, Seq, Time};
use crate::pack::{Keys, Sealer};
use crate::record::{self, Kind, Record};
use crate::wire::link::{Changes, Moment, ReadError, RequestId};
use bytes::Bytes;
use std::collections::VecDeque;

/// Most bytes of batches that are kept for the cache until they are committed and its disk has time for them.
const SHIPPED_BYTES_MAX: u64 = 16 << 20;

/// The read cache of a volume, if there is one.
#[derive(Debug, Default)]
pub(super) struct Caching {
    cache: Option<Box<Cache>>,
    /// Batches under way to the store, or committed and not all offered.
    shipped: VecDeque<Shipped>,
    shipped_bytes: u64,
    /// Outcomes of reads that wait for the table of versions: no more than there are reads of the cache.
    parked: Vec<DiskResult>,
}

/// A batch that is to be offered.
#[derive(Debug)]
struct Shipped {
    /// Its last number.
    last: Seq,
    payload: Bytes,
    /// Where the record begins that is to be offered next, and the sectors of it that have been.
    at: usize,
    sectors: u64,
}

impl Caching {
    pub(super) fn is_on(&self) -> bool {
        self.cache.is_some()
    }

    pub(super) fn status(&self) -> Option<CacheStatus> {
        self.cache.as_ref().map(|cache| cache.status())
    }

    /// The cache, while it gives out and takes anything.
    pub(super) fn ready(&mut self) -> Option<&mut Cache> {
        self.cache.as_deref_mut().filter(|cache| cache.is_ready())
    }

    /// The cache, if there is one.
    pub(super) fn get(&self) -> Option<&Cache> {
        self.cache.as_deref()
    }

    pub(super) fn poll_disk(&mut self) -> Option<DiskOperation> {
        self.cache.as_mut()?.poll_disk()
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.cache.as_ref()?.deadline()
    }

    pub(super) fn is_settled(&self, moment: Moment) -> bool {
        self.cache.as_ref().is_none_or(|cache| cache.is_settled(moment))
    }

    pub(super) fn forget(&mut self, now: Time, range: Range) {
        if let Some(cache) = &mut self.cache {
            cache.forget(now, range);
        }
    }

    pub(super) fn cover(&mut self, range: Range) -> Vec<(Range, Found)> {
        match &mut self.cache {
            Some(cache) => cache.cover(range),
            None => vec![(range, Found::Absent)],
        }
    }

    pub(super) fn set_keys(&mut self, keys: &Keys) {
        if let Some(cache) = &mut self.cache {
            cache.set_keys(keys.clone());
        }
    }

    pub(super) fn take_parked(&mut self) -> Vec<DiskResult> {
        std::mem::take(&mut self.parked)
    }

    pub(super) fn set_pins(&mut self, pins: Pins) -> bool {
        self.cache.as_mut().map(|cache| cache.set_pins(pins)).is_some()
    }

    pub(super) fn lack(&mut self, range: Range) {
        if let Some(cache) = &mut self.cache {
            cache.lack(range);
        }
    }

    /// The parts of a range that are not in the cache.
    pub(super) fn missing(&self, range: Range) -> Vec<Range> {
        self.cache.as_ref().map_or_else(|| vec![range], |cache| cache.missing(range))
    }

    pub(super) fn read(&mut self, reader: Reader, range: Range, at: u64) {
        if let Some(cache) = &mut self.cache {
            cache.read(reader, range, at);
        }
    }

    /// A batch is on its way.
    pub(super) fn shipped(&mut self, last: Seq, payload: &Bytes) {
        if !self.cache.as_ref().is_some_and(|cache| cache.is_ready()) {
            return;
        }
        self.shipped.push_back(Shipped { last, payload: payload.clone(), at: 0, sectors: 0 });
        self.shipped_bytes += payload.len() as u64;
        while self.shipped_bytes > SHIPPED_BYTES_MAX
            && let Some(Shipped { payload, at, .. }) = self.shipped.pop_front()
        {
            self.shipped_bytes -= payload.len() as u64;
            if let Some(cache) = &mut self.cache {
                cache.passed_over((payload.len() - at) as u64);
            }
        }
    }
}

impl Volume {
    /// Gives the volume a read cache, before its first request. What the cache held in an earlier life
    /// is used once the store has said what was written since. If the volume is encrypted, the cache is
    /// sealed, and is of use with a [table of versions](Volume::set_versions) only.
    ///
    /// What is pinned is for [`Volume::handle_pins`] to say, here and whenever it changes.
    pub fn set_cache(&mut self, now: Time, mut cache: Cache) {
        self.context.now = self.context.now.max(now);
        let keys = self.packer.keys().cloned();
        cache.seal(keys.map(|keys| Sealer::new(self.context.volume, keys)));
        // What the journal has and the store has not, the store cannot tell.
        for (range, _) in self.log.uncommitted(0) {
            cache.forget(self.context.now, range);
        }
        cache.set_interval(self.context.config.cache_interval);
        cache.set_writing_bytes_max(self.context.config.cache_writing_bytes);
        let since = cache.asks();
        self.caching.cache = Some(Box::new(cache));
        if let Some(since) = since {
            self.ask(Range::new(0, 0), LinkUse::Changes(since), false);
        }
        self.touch();
    }

    pub(super) fn settle_cache(&mut self) {
        let (now, moment, hurried) =
            (self.context.now, self.log.moment(&self.context), self.shutting_down);
        if let Some(cache) = &mut self.caching.cache {
            cache.settle(now, moment, hurried);
        }
    }

    /// Takes the store's answer to the question what was written.
    pub(super) fn store_changes(&mut self, request: RequestId, result: Result<Changes, ReadError>) {
        let Some(asked) = self.reads.take_asked(request) else { return };
        match (result, &asked.what) {
            (Ok(changes), LinkUse::Changes(_)) => self.cache_changes(&changes),
            (Err(error), LinkUse::Changes(_)) => self.store_refused(asked, error),
            // An answer of the wrong kind: asked again, it may come right.
            _ => self.ask(asked.range, asked.what, true),
        }
    }

    pub(super) fn cache_changes(&mut self, changes: &Changes) {
        let Some(cache) = &mut self.caching.cache else { return };
        cache.handle_changes(self.context.now, changes);
        let CacheStatus { found_bytes, dropped_bytes, dropped_all, .. } = cache.status();
        self.out.event(Event::CacheReady { found_bytes, dropped_bytes, dropped_all });
    }

    /// Takes the outcome of an operation on the cache file.
    pub(super) fn cache_done(&mut self, result: DiskResult) {
        if self.cache_waits(&result) {
            return self.caching.parked.push(result);
        }
        let Some(cache) = &mut self.caching.cache else { return };
        let version = &mut |block| self.versions.version(block);
        match cache.handle_disk_versions(self.context.now, result, version) {
            Outcome::None => self.cache_committed(),
            Outcome::Read(reader, _, Ok(data)) if Repairs::reads(reader) => {
                self.repair_read(reader, Some(data));
            }
            Outcome::Read(Reader { read, slot }, _, Ok(data)) => {
                self.fill(read, slot, Ok(Slot::One(ReadPiece::Data(data))));
            }
            Outcome::Read(reader, range, Err(why)) => {
                if let Unusable::Damaged(problem) = why {
                    self.out.event(Event::CacheDamaged { range, problem });
                }
                self.read_elsewhere(reader, range);
            }
            Outcome::Failed(error, reads) => {
                self.caching.shipped.clear();
                self.out.event(Event::CacheFailed { error });
                for (reader, range) in reads {
                    self.read_elsewhere(reader, range);
                }
            }
        }
    }

    /// A hit that was none.
    fn read_elsewhere(&mut self, reader: Reader, range: Range) {
        if Repairs::reads(reader) {
            return self.repair_read(reader, None);
        }
        let Reader { read, slot } = reader;
        let hits = &mut self.out.count().cache_hit_bytes;
        *hits = hits.saturating_sub(range.bytes());
        if self.reads.waits(read) {
            self.out.count().store_read_bytes += range.bytes();
            self.ask(range, LinkUse::Read { read, slot }, false);
        }
    }

    /// The store has given what the cache did not have.
    pub(super) fn cache_missed(&mut self, range: Range, pieces: &[ReadPiece], spoiled: bool) {
        let Some(cache) = &mut self.caching.cache else { return };
        cache.missed(range.bytes());
        if !spoiled {
            let version = &mut |block| self.versions.version_offered(block);
            cache.offer_versions(self.context.now, Source::Read, range, pieces, version);
        }
    }

    /// What had been read ahead was of use.
    pub(super) fn cache_used(&mut self, used: Vec<(Range, ReadPiece)>) {
        let Some(cache) = &mut self.caching.cache else { return };
        let version = &mut |block| self.versions.version_offered(block);
        let mut run: Option<(Range, Vec<ReadPiece>)> = None;
        for (range, piece) in used {
            match &mut run {
                Some((whole, pieces)) if whole.end() == range.lba => {
                    whole.sectors += range.sectors;
                    pieces.push(piece);
                }
                _ => {
                    if let Some((whole, pieces)) = run.replace((range, vec![piece])) {
                        cache.offer_versions(
                            self.context.now,
                            Source::Read,
                            whole,
                            &pieces,
                            version,
                        );
                    }
                }
            }
        }
        if let Some((whole, pieces)) = run {
            cache.offer_versions(self.context.now, Source::Read, whole, &pieces, version);
        }
    }

    /// Offers the cache what was written and is committed now, as far as nothing newer has come and its
    /// disk has time for it.
    pub(super) fn cache_committed(&mut self) {
        let committed = self.log.committed();
        while let Some(mut shipped) =
            self.caching.shipped.pop_front_if(|shipped| shipped.last <= committed)
        {
            while shipped.at < shipped.payload.len() {
                let bytes = shipped.payload.slice(shipped.at..);
                let Ok(record) = record::parse(self.context.volume, &bytes) else { break };
                if matches!(record.header.kind, Kind::Data | Kind::Packed) {
                    let done = self.offer_record(&record, &bytes, shipped.sectors);
                    if done < record.header.range.sectors {
                        shipped.sectors = done;
                        self.caching.shipped.push_front(shipped);
                        return;
                    }
                }
                shipped.at += record.header.record_bytes();
                shipped.sectors = 0;
            }
            self.caching.shipped_bytes -= shipped.payload.len() as u64;
        }
    }

    /// Offers what of a record, with which `bytes` begin, is the newest, without its first `skip` sectors. It is
    /// unpacked for that. Up to where it came, in sectors.
    fn offer_record(&mut self, record: &Record, bytes: &Bytes, skip: u64) -> u64 {
        let record::Header { kind, seq, range, .. } = record.header;
        let rest = Range::between(range.lba + skip, range.end());
        let newest: Vec<Range> = self.log.newest_of(rest, seq).collect();
        let Some(cache) = &mut self.caching.cache else { return range.sectors };
        let version = &mut |block| self.versions.version_offered(block);
        for part in newest.into_iter().filter(|part| part.sectors >= BLOCK_SECTORS) {
            if cache.is_busy() {
                return Range::between(range.lba, part.lba).sectors;
            }
            let data = if kind == Kind::Packed {
                // What cannot be unpacked is for a read to complain of.
                let Ok(data) = self.packer.unpack(bytes, part) else { continue };
                data
            } else {
                let skip = Range::between(range.lba, part.lba).bytes() as usize;
                record.data.payload.slice(skip..skip + part.bytes() as usize)
            };
            // By lines: of a long record the rest has to wait.
            let mut at = part.lba;
            while at < part.end() {
                if cache.is_busy() {
                    return Range::between(range.lba, at).sectors;
                }
                let end = ((at / LINE_SECTORS + 1) * LINE_SECTORS).min(part.end());
                let from = Range::between(part.lba, at).bytes() as usize;
                let to = Range::between(part.lba, end).bytes() as usize;
                let piece = ReadPiece::Data(data.slice(from..to));
                let part = Range::between(at, end);
                cache.offer_versions(self.context.now, Source::Write, part, &[piece], version);
                at = end;
            }
        }
        range.sectors
    }
}
