//! Reads, prefetches and status queries: from memory, the journal's files, what was read ahead, or
//! the store.
//!
//! A part that the dirty map does not have may be taken from the store at any later time: everything
//! older than the read is committed, and what is written meanwhile is concurrent with it. What is
//! read ahead has no such excuse, so a write spoils it. A part that is staged is the store's to give
//! too, once it is committed: until then a read of it waits.

use super::cache::{Found, Reader};
use super::copy::Staging;
use super::dirty::RecordPlace;
use super::io::Event;
use super::journal::Where;
use super::pieces::{Unfit, collect, merge, pieces, verified};
use super::readahead::{Found as Ahead, Sent, Waiter};
use super::versioning::Parked;
use super::versions::Standing;
use super::volume::{Link, Volume};
use super::warming::For;
use crate::block::{
    BlockError, BlockState, Range, ReadPiece, Reply, SECTOR_BYTES, Seq, StatusRun, VolumeId,
};
use crate::pack::Packer;
use crate::record::{self, Kind, Location, RecordError};
use crate::wire::link::{
    Changes, Lane, MAX_READ_SECTORS, Moment, Piece, ReadError, RequestId, ToStore,
};
use bytes::Bytes;
use std::collections::BTreeMap;

/// Up to here a payload is read together with its record's header, beyond it after it.
const NEAR_BYTES: usize = 64 << 10;
/// Records this close to each other in a file are read in one go, ...
const GAP_BYTES: u64 = 16 << 10;
/// ... up to this much.
const JOINED_BYTES: u64 = 1 << 20;
/// Runs of the dirty map that one status query looks at: its range may be the volume.
const RUNS: usize = 1024;

/// What a part of a read has become.
#[derive(Debug)]
pub(super) enum Slot {
    Pending,
    One(ReadPiece),
    Many(Vec<ReadPiece>),
}

/// Whose a read is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    /// A client's request.
    Client(u64),
    /// A part of another read, which has to be read anew.
    Slot { read: u64, slot: usize },
}

#[derive(Debug)]
struct Read {
    target: Target,
    slots: Vec<Slot>,
    pending: usize,
    error: Option<BlockError>,
}

/// A run of sectors in the journal's files that a slot waits for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    slot: usize,
    place: RecordPlace,
    wanted: Range,
}

/// What a disk read is for.
#[derive(Debug)]
pub(super) enum DiskUse {
    /// Records from journal address `addr` on.
    Near { read: u64, addr: u64, parts: Vec<Part> },
    /// Header and table of a long record.
    Prefix { read: u64, part: Part },
    /// The wanted blocks of a long record.
    Payload { read: u64, part: Part, prefix: Bytes },
    /// Frames of the batch being put together, from this one on.
    Drain { generation: u64, first: usize },
}

#[derive(Debug)]
pub(super) enum LinkUse {
    Read {
        read: u64,
        slot: usize,
    },
    /// The rest is with [`super::readahead`].
    Prefetch,
    Status {
        id: u64,
        local: Vec<(Range, Option<BlockState>)>,
    },
    Stage(Staging),
    /// What was written since then, for the cache.
    Changes(Moment),
    /// Content for the cache.
    Warm(For),
    /// What has content, and then that content, to be encrypted anew; the rest is with [`super::rewriting`].
    Look(u64),
    Rewrite(u64),
}

#[derive(Debug)]
pub(super) struct Asked {
    pub(super) range: Range,
    pub(super) what: LinkUse,
    /// Under way on the present connection.
    sent: bool,
    /// Something was written to the range that the answer may not have: it is not for the cache.
    pub(super) spoiled: bool,
    /// Asked a second time because the first answer was damaged.
    pub(super) again: bool,
    at: Sent,
}

/// A part of a read that waits for a staged record to be committed.
#[derive(Debug)]
struct Uncommitted {
    read: u64,
    slot: usize,
    range: Range,
}

/// Requests that wait for the disk or the store.
#[derive(Debug, Default)]
pub(super) struct Reads {
    reads: BTreeMap<u64, Read>,
    next: u64,
    /// Reads under way at the disk with the file they pin.
    pub(super) disk: BTreeMap<u64, (u32, DiskUse)>,
    asked: BTreeMap<u64, Asked>,
    /// Answers that wait for the table of versions.
    parked: Vec<(RequestId, Asked, Parked)>,
    /// By the number that has to be committed, and in the order of their coming.
    uncommitted: BTreeMap<Seq, Vec<Uncommitted>>,
}

impl LinkUse {
    /// Whether no client waits for it, but only what this host does by itself.
    fn is_ours(&self) -> bool {
        matches!(
            self,
            LinkUse::Prefetch | LinkUse::Warm(_) | LinkUse::Look(_) | LinkUse::Rewrite(_)
        )
    }
}

impl Target {
    fn client(self) -> Option<u64> {
        match self {
            Target::Client(id) => Some(id),
            Target::Slot { .. } => None,
        }
    }
}

impl Reads {
    /// The last number that a read waits to see committed.
    pub(super) fn awaited(&self) -> Option<Seq> {
        self.uncommitted.last_key_value().map(|(seq, _)| *seq)
    }

    /// This answer waits for the table of versions.
    pub(super) fn park(&mut self, request: RequestId, asked: Asked, parked: Parked) {
        self.parked.push((request, asked, parked));
    }

    pub(super) fn take_parked(&mut self) -> Vec<(RequestId, Asked, Parked)> {
        std::mem::take(&mut self.parked)
    }

    /// All that was asked and has not been dealt with.
    fn all_asked(&self) -> impl Iterator<Item = &Asked> {
        self.asked.values().chain(self.parked.iter().map(|(_, asked, _)| asked))
    }

    /// What was asked under this number; it is answered now.
    pub(super) fn take_asked(&mut self, request: u64) -> Option<Asked> {
        self.asked.remove(&request)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.reads.is_empty()
            && self
                .all_asked()
                .all(|asked| asked.what.is_ours() || matches!(asked.what, LinkUse::Changes(_)))
    }

    pub(super) fn waiting(&self) -> u64 {
        let waits = self.all_asked().filter(|asked| !asked.what.is_ours());
        (self.reads.len() + waits.count()) as u64
    }

    /// Whether the read has not been answered.
    pub(super) fn waits(&self, read: u64) -> bool {
        self.reads.contains_key(&read)
    }

    /// The connection is gone: what was asked on it has to be asked again, or forgotten.
    pub(super) fn link_lost(&mut self) {
        self.asked.retain(|_, asked| !matches!(asked.what, LinkUse::Prefetch));
        self.parked.retain(|(_, asked, _)| !matches!(asked.what, LinkUse::Prefetch));
        for asked in self.asked.values_mut() {
            asked.sent = false;
        }
    }

    /// `range` is written: what is asked of it may not have that, which matters if there is a cache, or a table of
    /// versions.
    pub(super) fn spoil(&mut self, range: Range, matters: bool) {
        if !matters {
            return;
        }
        let parked = self.parked.iter_mut().map(|(_, asked, _)| asked);
        for asked in self.asked.values_mut().chain(parked) {
            asked.spoiled |= asked.range.intersect(range).is_some();
        }
    }

    /// Gives up on everything; gives the requests that have to be told.
    pub(super) fn fail_all(&mut self) -> Vec<u64> {
        let reads = std::mem::take(&mut self.reads).into_values();
        let mut ids: Vec<u64> = reads.filter_map(|read| read.target.client()).collect();
        let parked = self.take_parked().into_iter().map(|(_, asked, _)| asked);
        for asked in std::mem::take(&mut self.asked).into_values().chain(parked) {
            match asked.what {
                LinkUse::Status { id, .. } | LinkUse::Stage(Staging { id, .. }) => ids.push(id),
                LinkUse::Read { .. } | LinkUse::Changes(_) => {}
                LinkUse::Prefetch | LinkUse::Warm(_) => {}
                LinkUse::Look(_) | LinkUse::Rewrite(_) => {}
            }
        }
        self.uncommitted.clear();
        ids
    }
}

impl Volume {
    // --- reads ---

    pub(super) fn read(&mut self, id: u64, range: Range) {
        self.out.count().reads += 1;
        self.out.count().read_bytes += range.bytes();
        self.read_for(Target::Client(id), range);
        // After what this read waits for.
        self.read_on(range);
    }

    pub(super) fn read_for(&mut self, target: Target, range: Range) {
        let key = self.reads.next;
        self.reads.next += 1;
        let mut slots: Vec<Slot> = Vec::new();
        let mut on_disk: Vec<Part> = Vec::new();
        let mut in_memory: Vec<Part> = Vec::new();
        let mut absent: Vec<Range> = Vec::new();
        let mut absent_slots: Vec<usize> = Vec::new();
        let mut uncommitted: Vec<(Seq, Uncommitted)> = Vec::new();
        let mut cached: Vec<(usize, Range, u64)> = Vec::new();
        let mut used: Vec<(Range, ReadPiece)> = Vec::new();
        let mut coming: Vec<(RequestId, Waiter)> = Vec::new();
        let mut gone = 0;
        for (wanted, place) in self.log.newest(range) {
            let Some(place) = place else {
                for (part, ahead) in self.readahead.read(self.context.now, wanted) {
                    match ahead {
                        Ahead::Here(piece) => {
                            self.out.count().readahead_hit_bytes += part.bytes();
                            if self.caching.is_on() {
                                used.push((part, piece.clone()));
                            }
                            slots.push(Slot::One(piece));
                            continue;
                        }
                        Ahead::Coming(request) => {
                            self.out.count().readahead_wait_bytes += part.bytes();
                            let waiter = Waiter { read: key, slot: slots.len(), range: part };
                            coming.push((request, waiter));
                            slots.push(Slot::Pending);
                            continue;
                        }
                        Ahead::Absent => {}
                    }
                    for (part, found) in self.caching.cover(part) {
                        match found {
                            Found::Zero => {
                                self.out.count().cache_hit_bytes += part.bytes();
                                slots.push(Slot::One(ReadPiece::Zeroes(part.sectors)));
                            }
                            Found::At(at) => {
                                self.out.count().cache_hit_bytes += part.bytes();
                                cached.push((slots.len(), part, at));
                                slots.push(Slot::Pending);
                            }
                            Found::Absent => {
                                for part in pieces(part, MAX_READ_SECTORS) {
                                    absent_slots.push(slots.len());
                                    absent.push(part);
                                    slots.push(Slot::Pending);
                                }
                            }
                        }
                    }
                }
                continue;
            };
            if place.kind() == Kind::Staged {
                // The store has it, and only the store knows what it is.
                let waits = Uncommitted { read: key, slot: slots.len(), range: wanted };
                uncommitted.push((place.seq, waits));
                slots.push(Slot::Pending);
                continue;
            }
            if place.kind().is_marker() {
                self.out.count().memory_hit_bytes += wanted.bytes();
                slots.push(Slot::One(ReadPiece::Zeroes(wanted.sectors)));
                continue;
            }
            let packed = place.kind() == Kind::Packed;
            let (skip, bytes) = if packed {
                (0, place.packed_bytes())
            } else {
                let record = place.record(wanted);
                let skip = record::HEADER_BYTES as u64
                    + 4 * record.blocks()
                    + (wanted.lba - record.lba) * SECTOR_BYTES;
                (skip, wanted.bytes() as usize)
            };
            match self.log.journal().locate(place.addr + skip, bytes) {
                Where::Memory(bytes)
                    if !packed && !self.verifies_memory() && !self.packer.is_encrypting() =>
                {
                    self.out.count().memory_hit_bytes += wanted.bytes();
                    slots.push(Slot::One(ReadPiece::Data(bytes)));
                }
                Where::Memory(_) => {
                    self.out.count().memory_hit_bytes += wanted.bytes();
                    in_memory.push(Part { slot: slots.len(), place, wanted });
                    slots.push(Slot::Pending);
                }
                Where::Disk { .. } => {
                    self.out.count().journal_hit_bytes += wanted.bytes();
                    on_disk.push(Part { slot: slots.len(), place, wanted });
                    slots.push(Slot::Pending);
                }
                // Committed and dropped from memory, never on disk: the store has it.
                Where::Gone => {
                    gone += 1;
                    absent_slots.push(slots.len());
                    absent.push(wanted);
                    slots.push(Slot::Pending);
                }
            }
        }
        debug_assert_eq!(gone, 0, "addresses at or above the floor are readable");
        self.cache_used(used);
        let pending = on_disk.len()
            + in_memory.len()
            + cached.len()
            + absent.len()
            + uncommitted.len()
            + coming.len();
        if pending == 0 {
            return self.deliver(target, Ok(collect(slots)));
        }
        self.reads.reads.insert(key, Read { target, slots, pending, error: None });
        self.read_journal(key, on_disk);
        for part in in_memory {
            self.read_memory(key, part);
        }
        for (slot, range, at) in cached {
            self.caching.read(Reader { read: key, slot }, range, at);
        }
        for (slot, range) in absent_slots.into_iter().zip(absent) {
            self.out.count().store_read_bytes += range.bytes();
            self.ask(range, LinkUse::Read { read: key, slot }, false);
        }
        for (seq, waits) in uncommitted {
            self.reads.uncommitted.entry(seq).or_default().push(waits);
        }
        for (request, waiter) in coming {
            self.readahead.wait(request, waiter);
        }
    }

    /// A read has come to its end.
    fn deliver(&mut self, target: Target, result: Result<Vec<ReadPiece>, BlockError>) {
        match target {
            Target::Client(id) => self.out.reply(id, result.map(Reply::Data)),
            Target::Slot { read, slot } => self.fill(read, slot, result.map(Slot::Many)),
        }
    }

    /// Asks the store for staged parts of reads that are committed by now.
    pub(super) fn read_committed(&mut self) {
        while let Some(first) = self.reads.uncommitted.first_entry()
            && *first.key() <= self.log.committed()
        {
            for Uncommitted { read, slot, range } in first.remove() {
                self.out.count().store_read_bytes += range.bytes();
                self.ask(range, LinkUse::Read { read, slot }, false);
            }
        }
    }

    /// Reads what is in memory, and verifies it.
    fn read_memory(&mut self, read: u64, part: Part) {
        let addr = part.place.addr;
        let found = match self.log.journal().locate(addr, part.span().unwrap_or(0)) {
            Where::Memory(data) => part.extract(addr, &data, &mut self.packer),
            Where::Disk { .. } | Where::Gone => Err("it is not in memory".into()),
        };
        if let Err(problem) = &found
            && self.use_disk(addr, part.wanted, problem)
        {
            return self.read_journal(read, vec![part]);
        }
        self.fill_from_journal(read, part, found);
    }

    /// Issues as few disk reads as make sense.
    fn read_journal(&mut self, read: u64, parts: Vec<Part>) {
        let mut parts = parts.into_iter().peekable();
        while let Some(part) = parts.next() {
            let start = part.place.addr;
            let Some(span) = part.near_span() else {
                let Some(location) = part.location() else { continue };
                let what = DiskUse::Prefix { read, part };
                self.disk_ask(start, location.prefix_bytes, what);
                continue;
            };
            let file = self.log.journal().spot(start).0;
            let mut end = start + span as u64;
            let mut joined = vec![part];
            while let Some(next) = parts.peek()
                && let Some(span) = next.near_span()
                && next.place.addr >= start
                && next.place.addr <= end + GAP_BYTES
                && self.log.journal().spot(next.place.addr).0 == file
                && next.place.addr + span as u64 - start <= JOINED_BYTES
            {
                end = end.max(next.place.addr + span as u64);
                joined.push(*next);
                parts.next();
            }
            let what = DiskUse::Near { read, addr: start, parts: joined };
            self.disk_ask(start, (end - start) as usize, what);
        }
    }

    fn disk_ask(&mut self, addr: u64, bytes: usize, what: DiskUse) {
        let (file, offset) = self.log.journal().spot(addr);
        let id = self.out.read_file((file, offset), bytes);
        self.log.pin(file);
        self.reads.disk.insert(id, (file, what));
    }

    /// Takes the outcome of a disk read.
    pub(super) fn disk_read(&mut self, id: u64, outcome: Result<Bytes, String>) {
        let Some((file, what)) = self.reads.disk.remove(&id) else { return };
        match what {
            DiskUse::Drain { generation, first } => self.drain_read(generation, first, outcome),
            DiskUse::Near { read, addr, parts } => {
                for part in parts {
                    let packer = &mut self.packer;
                    let found = outcome.clone().and_then(|data| part.extract(addr, &data, packer));
                    self.fill_from_journal(read, part, found);
                }
            }
            DiskUse::Prefix { read, part } => match (outcome, part.location()) {
                (Ok(prefix), Some(location)) => {
                    let addr = part.place.addr + location.payload_start as u64;
                    let what = DiskUse::Payload { read, part, prefix };
                    self.disk_ask(addr, location.payload_bytes, what);
                }
                (outcome, _) => {
                    let error = outcome.err().unwrap_or_default();
                    self.fill_from_journal(read, part, Err(error));
                }
            },
            DiskUse::Payload { read, part, prefix } => {
                let found =
                    outcome.and_then(|payload| part.verify(self.context.volume, &prefix, payload));
                self.fill_from_journal(read, part, found);
            }
        }
        self.log.unpin(file);
    }

    fn fill_from_journal(&mut self, read: u64, part: Part, found: Result<Bytes, String>) {
        let Part { slot, place, wanted } = part;
        let plain = self.packer.is_encrypting() && place.kind() == Kind::Data;
        let found = if plain { Err(RecordError::Plain(wanted).to_string()) } else { found };
        let problem = match found {
            Ok(data) => return self.fill(read, slot, Ok(Slot::One(ReadPiece::Data(data)))),
            Err(problem) => problem,
        };
        let (file, offset) = self.log.journal().spot(place.addr);
        let (range, shipping_waits) = (wanted, false);
        self.out.event(Event::JournalDamaged { range, file, offset, problem, shipping_waits });
        if place.seq > self.log.committed() || self.behind {
            return self.fill(read, slot, Err(BlockError::Medium(wanted)));
        }
        // The journal was no more than a cache of it: the store has this, or something newer.
        self.log.forget(wanted, place.addr);
        if self.reads.reads.contains_key(&read) {
            self.out.count().store_read_bytes += wanted.bytes();
            self.ask(wanted, LinkUse::Read { read, slot }, false);
        }
    }

    /// A part of a read has its outcome.
    pub(super) fn fill(&mut self, key: u64, slot: usize, result: Result<Slot, BlockError>) {
        let Some(read) = self.reads.reads.get_mut(&key) else { return };
        read.pending -= 1;
        match result {
            Ok(content) => read.slots[slot] = content,
            Err(error) => read.error = read.error.or(Some(error)),
        }
        if read.pending == 0
            && let Some(read) = self.reads.reads.remove(&key)
        {
            let result = match read.error {
                None => Ok(collect(read.slots)),
                Some(error) => Err(error),
            };
            self.deliver(read.target, result);
        }
    }

    // --- status ---

    pub(super) fn query_status(&mut self, id: u64, range: Range) {
        let local: Vec<(Range, Option<BlockState>)> = self
            .log
            .cover(range)
            .take(RUNS)
            .map(|(part, place)| (part, place.map(|place| place.state())))
            .collect();
        let unknown = local.iter().position(|(_, state)| state.is_none());
        let first = match unknown {
            // What is known here is an answer; the store may be a long way off.
            Some(known) if known == 0 || self.link == Link::Up => local[known].0,
            _ => {
                let runs = merge(&local[..unknown.unwrap_or(local.len())], &[]);
                return self.out.reply(id, Ok(Reply::Status(runs)));
            }
        };
        let end = local.last().map_or(first.end(), |(part, _)| part.end());
        self.ask(Range::between(first.lba, end), LinkUse::Status { id, local }, false);
    }

    /// Takes the store's answer to a status query.
    pub(super) fn store_status(&mut self, request: u64, result: Result<Vec<StatusRun>, ReadError>) {
        let Some(asked) = self.reads.asked.remove(&request) else { return };
        let runs = match result {
            Ok(runs) => runs,
            Err(error) => return self.store_refused(asked, error),
        };
        self.take_status(request, asked, runs);
    }

    pub(super) fn take_status(&mut self, request: u64, asked: Asked, runs: Vec<StatusRun>) {
        let Some(runs) = self.true_runs(asked.range, &runs) else {
            return self.reads.park(request, asked, Parked::Status(runs));
        };
        if let LinkUse::Look(number) = asked.what {
            return self.rewrite_looked(number, asked.range, &runs);
        }
        let Asked { range, what: LinkUse::Status { id, local }, again, .. } = asked else {
            return;
        };
        let merged = merge(&local, &runs);
        if !merged.is_empty() {
            self.out.reply(id, Ok(Reply::Status(merged)));
        } else if again {
            self.out.reply(id, Err(BlockError::Medium(range)));
        } else {
            self.ask(range, LinkUse::Status { id, local }, true);
        }
    }

    /// What was read ahead for a part of a read has come.
    pub(super) fn fill_from_ahead(&mut self, read: u64, slot: usize, pieces: Vec<ReadPiece>) {
        self.fill(read, slot, Ok(Slot::Many(pieces)));
    }

    // --- the store ---

    pub(super) fn ask(&mut self, range: Range, what: LinkUse, again: bool) {
        let request = self.next_request();
        self.ask_as(request, range, what, again);
    }

    pub(super) fn ask_as(&mut self, request: RequestId, range: Range, what: LinkUse, again: bool) {
        let sent = match self.link {
            Link::Up => true,
            // Somebody waits: it goes behind the Resume that is under way.
            Link::Resuming(_) => matches!(what, LinkUse::Read { .. }),
            Link::Down | Link::Held(_) => false,
        };
        let matters = self.caching.is_on() || self.versions.is_on();
        let spoiled = matters && self.log.not_at_store(range).next().is_some();
        let at = self.readahead.sent(self.context.now);
        let asked = Asked { range, what, sent, spoiled, again, at };
        if sent {
            self.send_asked(request, &asked);
        }
        self.reads.asked.insert(request, asked);
    }

    fn send_asked(&mut self, request: u64, asked: &Asked) {
        let (volume, epoch, range) = (self.context.volume, self.context.epoch, asked.range);
        let read = match self.link {
            Link::Up => ToStore::Read { request, volume, epoch, range },
            _ => {
                let committed = self.log.committed();
                ToStore::ReadBehind { request, volume, epoch, committed, range }
            }
        };
        let (lane, message) = match asked.what {
            LinkUse::Read { .. } => (Lane::Read, read),
            LinkUse::Prefetch | LinkUse::Warm(_) | LinkUse::Rewrite(_) => (Lane::ReadAhead, read),
            LinkUse::Look(_) => {
                (Lane::ReadAhead, ToStore::Status { request, volume, epoch, range })
            }
            LinkUse::Status { .. } => {
                (Lane::Read, ToStore::Status { request, volume, epoch, range })
            }
            LinkUse::Stage(Staging { into, lba, object, .. }) => {
                let stage = ToStore::Stage { request, volume, epoch, range, into, lba, object };
                (Lane::ReadAhead, stage)
            }
            LinkUse::Changes(since) => {
                (Lane::Control, ToStore::Changed { request, volume, epoch, since })
            }
        };
        self.out.send(lane, message);
    }

    /// What is not under way on this connection is asked again, after a resume; before its answer what
    /// somebody waits for.
    pub(super) fn ask_again(&mut self) {
        let up = self.link == Link::Up;
        let goes =
            |asked: &Asked| !asked.sent && (up || matches!(asked.what, LinkUse::Read { .. }));
        let (unsent, rest): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.reads.asked).into_iter().partition(|(_, asked)| goes(asked));
        self.reads.asked = rest;
        for asked in unsent.into_values() {
            let what = match asked.what {
                // The object may have come to be, or may yet.
                LinkUse::Stage(staging) => LinkUse::Stage(staging.again()),
                what => what,
            };
            self.ask(asked.range, what, asked.again);
        }
    }

    /// Takes the store's answer to a read.
    pub(super) fn store_data(
        &mut self,
        request: u64,
        result: Result<Vec<Piece>, ReadError>,
        payload: Bytes,
    ) {
        let Some(asked) = self.reads.asked.remove(&request) else { return };
        if result.is_ok() {
            self.readahead.measure(self.context.now, asked.at, asked.range.bytes());
        }
        self.take_data(request, asked, result, payload);
    }

    /// Takes the answer once the versions of its blocks are known.
    pub(super) fn take_data(
        &mut self,
        request: u64,
        asked: Asked,
        result: Result<Vec<Piece>, ReadError>,
        payload: Bytes,
    ) {
        let standing = self.standing(&asked, &result, &payload);
        let result = match (&standing, result) {
            (Standing::Unknown, Ok(pieces)) => {
                return self.reads.park(request, asked, Parked::Data(pieces, payload));
            }
            (_, result) => result,
        };
        if let LinkUse::Prefetch = asked.what {
            return self.ahead_came(request, asked, result, (payload, &standing));
        }
        if let LinkUse::Rewrite(number) = asked.what {
            return self.rewrite_came((number, asked), result, (payload, &standing));
        }
        let pieces = match result {
            Ok(pieces) => pieces,
            Err(error) => return self.store_refused(asked, error),
        };
        let mut found = verified(asked.range, &pieces, payload, &mut self.packer);
        if standing == Standing::Outdated {
            if let (Ok(_), LinkUse::Read { read, slot }) = (&found, &asked.what) {
                let (read, slot) = (*read, *slot);
                return self.outdated(asked, read, slot);
            }
            // What is not for a client can be had later, if it has changed since it was asked for.
            let later = asked.spoiled && matches!(asked.what, LinkUse::Warm(_));
            found = found.and_then(|found| if later { Ok(found) } else { Err(Unfit::Damaged) });
        } else if found.is_ok() {
            self.adopt(&asked, &standing);
        }
        match (asked.what, found) {
            (LinkUse::Read { read, slot }, Ok(pieces)) => {
                self.cache_missed(asked.range, &pieces, asked.spoiled);
                self.fill(read, slot, Ok(Slot::Many(pieces)));
            }
            (LinkUse::Read { read, slot }, Err(unfit)) => {
                if asked.again {
                    let range = asked.range;
                    self.out.event(match unfit {
                        Unfit::Damaged => Event::StoreDamaged { range },
                        Unfit::Plain => Event::StorePlain { range },
                    });
                    self.fill(read, slot, Err(BlockError::Medium(range)));
                } else {
                    self.ask(asked.range, LinkUse::Read { read, slot }, true);
                }
            }
            (LinkUse::Warm(whose), found) => {
                let Asked { range, spoiled, again, .. } = asked;
                self.warm_came(whose, range, found.ok(), spoiled, again);
            }
            (LinkUse::Prefetch | LinkUse::Rewrite(_), _) => {}
            // An answer of the wrong kind: asked again, it may come right.
            (
                what @ (LinkUse::Status { .. }
                | LinkUse::Stage(_)
                | LinkUse::Changes(_)
                | LinkUse::Look(_)),
                _,
            ) => self.ask(asked.range, what, true),
        }
    }

    pub(super) fn store_refused(&mut self, asked: Asked, error: ReadError) {
        match error {
            ReadError::Fenced(epoch) => {
                // Put back, so that it is answered with everything else.
                let request = self.next_request();
                self.reads.asked.insert(request, asked);
                self.fence(epoch);
            }
            ReadError::NotAttached => {
                if let LinkUse::Prefetch = asked.what {
                    return;
                }
                let request = self.next_request();
                self.reads.asked.insert(request, Asked { sent: false, ..asked });
                if self.link == Link::Up {
                    self.hold();
                }
            }
            ReadError::Medium(_) | ReadError::Invalid => {
                let range = match error {
                    ReadError::Medium(range) => range,
                    _ => asked.range,
                };
                match asked.what {
                    LinkUse::Read { read, slot } => {
                        self.out.event(Event::StoreDamaged { range });
                        self.fill(read, slot, Err(BlockError::Medium(range)));
                    }
                    LinkUse::Status { id, .. } => {
                        self.out.reply(id, Err(BlockError::Medium(range)));
                    }
                    LinkUse::Stage(staging) => {
                        self.out.event(Event::StoreDamaged { range });
                        self.out.reply(staging.id, Err(BlockError::Medium(range)));
                    }
                    LinkUse::Warm(whose) => self.warm_failed(whose, asked.range),
                    LinkUse::Look(number) | LinkUse::Rewrite(number) => self.rewrite_failed(number),
                    LinkUse::Prefetch => {}
                    LinkUse::Changes(_) => self.cache_changes(&Changes::Unknown),
                }
            }
        }
    }
}

impl Part {
    fn location(&self) -> Option<Location> {
        Location::new(self.place.record(self.wanted), self.wanted)
    }

    /// Bytes from the start of the record that one read has to get; `None` if the map is wrong.
    fn span(&self) -> Option<usize> {
        match self.place.kind() {
            Kind::Packed => Some(self.place.packed_bytes()),
            _ => self.location().map(|location| location.span()),
        }
    }

    /// As [`Part::span`], unless the payload is better read after the header.
    fn near_span(&self) -> Option<usize> {
        let far = |location: Location| location.payload_start > NEAR_BYTES;
        let whole = self.place.kind() == Kind::Packed || !self.location().is_none_or(far);
        whole.then(|| self.span()).flatten()
    }

    /// The wanted bytes out of what was read from journal address `addr` on.
    fn extract(&self, addr: u64, data: &Bytes, packer: &mut Packer) -> Result<Bytes, String> {
        let start = (self.place.addr - addr) as usize;
        let end = start + self.span().ok_or("the map is wrong")?;
        if data.len() < end {
            return Err(format!("only {} of {end} bytes could be read", data.len()));
        }
        if self.place.kind() == Kind::Packed {
            let (seq, record) = (self.place.seq, self.place.record(self.wanted));
            let found = packer.unpack_of(seq, record, &data[start..end], self.wanted);
            return found.map_err(|error| error.to_string());
        }
        let location = self.location().ok_or("the map is wrong")?;
        let prefix = data.slice(start..start + location.prefix_bytes);
        self.verify(packer.volume(), &prefix, data.slice(start + location.payload_start..end))
    }

    fn verify(&self, volume: VolumeId, prefix: &Bytes, payload: Bytes) -> Result<Bytes, String> {
        let location = self.location().ok_or("the map is wrong")?;
        let fragment = location
            .extract(volume, self.place.seq, prefix, payload)
            .map_err(|error| error.to_string())?;
        Ok(fragment.sectors(self.wanted))
    }
}
