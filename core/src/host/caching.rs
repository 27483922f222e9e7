//! The volume's side of the read cache: the content that it offers to the cache, and the reads that
//! wait until the cache may answer.
//!
//! The volume offers the cache only the newest acknowledged content. An answer of the store
//! qualifies if no write has touched the range since. A write qualifies once it is committed,
//! except for parts that a newer write replaced. So the version table has the version of this
//! content. A sealed cache binds the content to that version, and gives nothing out before the
//! table has confirmed it. Commits come in bursts, and the cache's disk may be slower than the
//! journal's. So writes wait for the cache's disk, within limits, and leave half of its queue to
//! reads.
//!
//! It must not know the readers, nor other sources of content.

use super::cache::{
    Cache, CacheStatus, Found, LINE_SECTORS, Outcome, Pins, Reader, Source, Unusable,
};
use super::context::Context;
use super::io::{DiskOperation, DiskResult, Event};
use super::keyed::KeyedContent;
use super::log::WriteLog;
use super::outputs::Outputs;
use crate::block::{BLOCK_SECTORS, Range, ReadPiece, Seq, Time};
use crate::pack::{Keys, Sealer};
use crate::record::{self, Kind, Record};
use crate::wire::link::{Changes, Moment};
use bytes::Bytes;
use std::collections::VecDeque;

/// Most bytes of batches to keep for the cache until their commit and until its disk has time.
const SHIPPED_BYTES_MAX: u64 = 16 << 20;

/// The read cache of a volume, if there is one.
#[derive(Debug, Default)]
pub(super) struct Caching {
    cache: Option<Box<Cache>>,
    /// Batches under way to the store, and committed ones that wait for the cache.
    shipped: VecDeque<OfferedBatch>,
    shipped_bytes: u64,
    /// Outcomes of reads that wait for the version table. Their number is at most that of the reads
    /// of the cache.
    parked: Vec<DiskResult>,
}

/// A batch to offer to the cache.
#[derive(Debug)]
struct OfferedBatch {
    /// Its last number.
    last: Seq,
    payload: Bytes,
    /// The next record to offer begins here. The cache has had this many of its sectors.
    at: usize,
    sectors: u64,
}

/// The result of an operation on the cache file.
#[derive(Debug)]
pub(super) enum CacheRead {
    /// The result waits for the version table.
    Waits,
    /// The operation was no read.
    None,
    /// The content of a part.
    Done(Reader, Bytes),
    /// The cache cannot give these parts.
    Lost(Vec<(Reader, Range)>),
}

impl Caching {
    // --- inputs ---

    /// Gives the volume a cache. Returns the moment from which on the store has to list the writes.
    pub(super) fn set_cache(
        &mut self,
        context: &Context,
        keys: Option<Keys>,
        log: &WriteLog,
        mut cache: Cache,
    ) -> Option<Moment> {
        cache.seal(keys.map(|keys| Sealer::new(context.volume, keys)));
        // The store does not know writes that only the journal has.
        for (range, _) in log.uncommitted(0) {
            cache.forget(context.now, range);
        }
        cache.set_interval(context.config.cache_interval);
        cache.set_writing_bytes_max(context.config.cache_writing_bytes);
        let since = cache.asks();
        self.cache = Some(Box::new(cache));
        since
    }

    /// Replaces the keys of the volume.
    pub(super) fn set_keys(&mut self, keys: &Keys) {
        if let Some(cache) = &mut self.cache {
            cache.set_keys(keys.clone());
        }
    }

    /// Replaces the pinned ranges. False if there is no cache.
    pub(super) fn set_pins(&mut self, pins: Pins) -> bool {
        self.cache.as_mut().map(|cache| cache.set_pins(pins)).is_some()
    }

    /// Takes the store's list of writes since the last use of the cache.
    pub(super) fn changed(&mut self, now: Time, changes: &Changes, out: &mut Outputs) {
        let Some(cache) = &mut self.cache else { return };
        cache.handle_changes(now, changes);
        let CacheStatus { found_bytes, dropped_bytes, dropped_all, .. } = cache.status();
        out.event(Event::CacheReady { found_bytes, dropped_bytes, dropped_all });
    }

    /// A client writes a range.
    pub(super) fn forget(&mut self, now: Time, range: Range) {
        if let Some(cache) = &mut self.cache {
            cache.forget(now, range);
        }
    }

    /// The pinned part of a range is not in the cache.
    pub(super) fn lack(&mut self, range: Range) {
        if let Some(cache) = &mut self.cache {
            cache.lack(range);
        }
    }

    /// Continues all work for the cache's disk. `hurried`: the volume is about to end.
    pub(super) fn settle(&mut self, now: Time, moment: Moment, hurried: bool) {
        if let Some(cache) = &mut self.cache {
            cache.settle(now, moment, hurried);
        }
    }

    /// Takes the outcome of an operation on the cache file.
    pub(super) fn handle_disk(
        &mut self,
        now: Time,
        result: DiskResult,
        keyed: &mut KeyedContent,
        out: &mut Outputs,
    ) -> CacheRead {
        let Some(cache) = &mut self.cache else { return CacheRead::Waits };
        if let DiskResult::Data { id, .. } = &result
            && cache.needs_versions(*id).is_some_and(|range| keyed.is_later(range))
        {
            self.parked.push(result);
            return CacheRead::Waits;
        }
        let version = &mut |block| keyed.version(block);
        match cache.handle_disk_versions(now, result, version) {
            Outcome::None => CacheRead::None,
            Outcome::Read(reader, _, Ok(data)) => CacheRead::Done(reader, data),
            Outcome::Read(reader, range, Err(why)) => {
                if let Unusable::Damaged(problem) = why {
                    out.event(Event::CacheDamaged { range, problem });
                }
                CacheRead::Lost(vec![(reader, range)])
            }
            Outcome::Failed(error, reads) => {
                self.shipped.clear();
                out.event(Event::CacheFailed { error });
                CacheRead::Lost(reads)
            }
        }
    }

    /// The outcomes that waited for the version table.
    pub(super) fn take_parked(&mut self) -> Vec<DiskResult> {
        std::mem::take(&mut self.parked)
    }

    // --- inputs: content ---

    /// A batch goes to the store.
    pub(super) fn shipped(&mut self, last: Seq, payload: &Bytes) {
        if !self.cache.as_ref().is_some_and(|cache| cache.is_ready()) {
            return;
        }
        self.shipped.push_back(OfferedBatch { last, payload: payload.clone(), at: 0, sectors: 0 });
        self.shipped_bytes += payload.len() as u64;
        while self.shipped_bytes > SHIPPED_BYTES_MAX
            && let Some(OfferedBatch { payload, at, .. }) = self.shipped.pop_front()
        {
            self.shipped_bytes -= payload.len() as u64;
            if let Some(cache) = &mut self.cache {
                cache.passed_over((payload.len() - at) as u64);
            }
        }
    }

    /// The store has answered for a range that the cache did not have.
    pub(super) fn missed(
        &mut self,
        now: Time,
        (range, pieces): (Range, &[ReadPiece]),
        spoiled: bool,
        keyed: &mut KeyedContent,
    ) {
        let Some(cache) = &mut self.cache else { return };
        cache.missed(range.bytes());
        if !spoiled {
            let version = &mut |block| keyed.version_offered(block);
            cache.offer_versions(now, Source::Read, range, pieces, version);
        }
    }

    /// Clients have read content from the read-ahead.
    pub(super) fn used(
        &mut self,
        now: Time,
        used: Vec<(Range, ReadPiece)>,
        keyed: &mut KeyedContent,
    ) {
        let Some(cache) = &mut self.cache else { return };
        let version = &mut |block| keyed.version_offered(block);
        let mut run: Option<(Range, Vec<ReadPiece>)> = None;
        for (range, piece) in used {
            match &mut run {
                Some((whole, pieces)) if whole.end() == range.lba => {
                    whole.sectors += range.sectors;
                    pieces.push(piece);
                }
                _ => {
                    if let Some((whole, pieces)) = run.replace((range, vec![piece])) {
                        cache.offer_versions(now, Source::Read, whole, &pieces, version);
                    }
                }
            }
        }
        if let Some((whole, pieces)) = run {
            cache.offer_versions(now, Source::Read, whole, &pieces, version);
        }
    }

    /// Content for warming has come. False if the cache did not take all of it.
    pub(super) fn warmed(
        &mut self,
        now: Time,
        (range, pieces): (Range, &[ReadPiece]),
        spoiled: bool,
        keyed: &mut KeyedContent,
    ) -> bool {
        match self.ready() {
            Some(cache) if !spoiled => {
                let version = &mut |block| keyed.version_offered(block);
                cache.offer_versions(now, Source::Warm, range, pieces, version)
            }
            _ => false,
        }
    }

    /// Offers the content of committed writes, without parts that a newer write replaced, as far as
    /// the cache's disk has time.
    pub(super) fn offer_committed(
        &mut self,
        context: &Context,
        log: &WriteLog,
        keyed: &mut KeyedContent,
    ) {
        let committed = log.committed();
        while let Some(mut shipped) = self.shipped.pop_front_if(|batch| batch.last <= committed) {
            while shipped.at < shipped.payload.len() {
                let bytes = shipped.payload.slice(shipped.at..);
                let Ok(record) = record::parse(context.volume, &bytes) else { break };
                if matches!(record.header.kind, Kind::Data | Kind::Packed) {
                    let skip = shipped.sectors;
                    let done = self.offer_record(context.now, (&record, &bytes, skip), log, keyed);
                    if done < record.header.range.sectors {
                        shipped.sectors = done;
                        self.shipped.push_front(shipped);
                        return;
                    }
                }
                shipped.at += record.header.record_bytes();
                shipped.sectors = 0;
            }
            self.shipped_bytes -= shipped.payload.len() as u64;
        }
    }

    /// Offers the parts of a record that are the newest, without its first `skip` sectors. Unpacks
    /// the record for that. `bytes` begin with the record. Returns how far it came, in sectors.
    fn offer_record(
        &mut self,
        now: Time,
        (record, bytes, skip): (&Record, &Bytes, u64),
        log: &WriteLog,
        keyed: &mut KeyedContent,
    ) -> u64 {
        let record::Header { kind, seq, range, .. } = record.header;
        let rest = Range::between(range.lba + skip, range.end());
        let newest: Vec<Range> = log.newest_of(rest, seq).collect();
        let Some(cache) = &mut self.cache else { return range.sectors };
        for part in newest.into_iter().filter(|part| part.sectors >= BLOCK_SECTORS) {
            if cache.is_busy() {
                return Range::between(range.lba, part.lba).sectors;
            }
            let data = if kind == Kind::Packed {
                // A read reports records that do not unpack.
                let Ok(data) = keyed.packer().unpack(bytes, part) else { continue };
                data
            } else {
                let skip = Range::between(range.lba, part.lba).bytes() as usize;
                record.data.payload.slice(skip..skip + part.bytes() as usize)
            };
            // Offer whole lines: the rest of a long record may have to wait.
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
                let version = &mut |block| keyed.version_offered(block);
                cache.offer_versions(now, Source::Write, part, &[piece], version);
                at = end;
            }
        }
        range.sectors
    }

    // --- reading ---

    /// `range` in order and without gaps, as the cache sees it.
    pub(super) fn cover(&mut self, range: Range) -> Vec<(Range, Found)> {
        match &mut self.cache {
            Some(cache) => cache.cover(range),
            None => vec![(range, Found::Absent)],
        }
    }

    /// The parts of a range that are not in the cache.
    pub(super) fn missing(&self, range: Range) -> Vec<Range> {
        self.cache.as_ref().map_or_else(|| vec![range], |cache| cache.missing(range))
    }

    /// Reads what [`Caching::cover`] has found.
    pub(super) fn read(&mut self, reader: Reader, range: Range, at: u64) {
        if let Some(cache) = &mut self.cache {
            cache.read(reader, range, at);
        }
    }

    /// The next operation on the cache file.
    pub(super) fn poll_disk(&mut self) -> Option<DiskOperation> {
        self.cache.as_mut()?.poll_disk()
    }

    // --- outputs ---

    /// The cache, if it is ready.
    pub(super) fn ready(&mut self) -> Option<&mut Cache> {
        self.cache.as_deref_mut().filter(|cache| cache.is_ready())
    }

    /// The cache, if there is one.
    pub(super) fn get(&self) -> Option<&Cache> {
        self.cache.as_deref()
    }

    pub(super) fn is_on(&self) -> bool {
        self.cache.is_some()
    }

    /// Whether nothing is on its way to the disk, and nothing will be.
    pub(super) fn is_settled(&self, moment: Moment) -> bool {
        self.cache.as_ref().is_none_or(|cache| cache.is_settled(moment))
    }

    /// When [`Caching::settle`] has something to do.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.cache.as_ref()?.deadline()
    }

    pub(super) fn status(&self) -> Option<CacheStatus> {
        self.cache.as_ref().map(|cache| cache.status())
    }
}
