//! A scripted world around one engine.
//!
//! The disk has a live and a durable image, and operations end in any order. A power cut keeps any
//! subset of the unsynced pages. The store is an array that commits whole batches. The model knows
//! the writes to each sector, in the order of their submission. The engine numbers them in that
//! order, and every write here is one record. So write `n` has number `n`. A write that becomes
//! several packed records counts as so many writes; they survive together or not at all.

use super::disk::Disk;
use super::store::Store;
use super::table::TableDisk;
use crate::block::{
    BlockError, Range, ReadPiece, Reply, Request, STAGED_BIT, Seq, Staged, StagedPiece, StatusRun,
    Time, VolumeId,
};
use crate::host::journal::{FrameHeader, Geometry, JournalError, Recovered, Recovery};
use crate::host::versions::{HEAD_BYTES, Head, JournalEnd, Rollback, Statement, Verdict, Versions};
use crate::host::{Config, DiskOperation, DiskResult, Event, Mode, Volume};
use crate::pack::{Keys, Packing};
use crate::wire::link::{Attached, Changes, Frame, HostId, Lane, ToHost, ToStore};
use bytes::{Bytes, BytesMut};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

pub const SECTORS: u64 = 256;
/// Writes up to this length are one record in every geometry used here.
pub const ONE_RECORD: u64 = 16;
pub const VOLUME: VolumeId = VolumeId(0xabcd);
pub const HOST: HostId = HostId(7);
pub const JOURNAL: u128 = 0x1122_3344_5566_7788;
pub const SMALL: Geometry = Geometry { file_bytes: 64 << 10, files: 3 };

#[derive(Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// Content of a sector after write `op` (0: never written).
pub fn sector(op: u64, lba: u64) -> [u8; 512] {
    let mut bytes = [0; 512];
    if op > 0 {
        for (n, chunk) in bytes.chunks_exact_mut(8).enumerate() {
            let word = op << 32 | lba << 8 | n as u64;
            chunk.copy_from_slice(&word.to_le_bytes());
        }
    }
    bytes
}

pub fn payload(op: u64, range: Range) -> Bytes {
    let mut out = BytesMut::new();
    for lba in range.lba..range.end() {
        out.extend_from_slice(&sector(op, lba));
    }
    out.freeze()
}

pub fn recover(files: &[Vec<u8>]) -> Result<Recovered, JournalError> {
    run(files, Recovery::new(Some(VOLUME), files.iter().map(|f| f.len() as u64).collect())).0
}

pub fn run(
    files: &[Vec<u8>],
    mut recovery: Recovery,
) -> (Result<Recovered, JournalError>, Recovery) {
    loop {
        if let Some(outcome) = recovery.poll_outcome() {
            return (outcome, recovery);
        }
        let mut operations = Vec::new();
        while let Some(operation) = recovery.poll_disk() {
            operations.push(operation);
        }
        assert!(!operations.is_empty(), "recovery neither reads nor ends");
        for operation in operations.into_iter().rev() {
            let DiskOperation::Read { id, file, offset, bytes } = operation else { panic!() };
            let data = &files[file as usize][offset as usize..offset as usize + bytes];
            recovery.handle_disk(DiskResult::Data { id, data: Bytes::copy_from_slice(data) });
        }
    }
}

/// A submitted write.
#[derive(Clone, Debug)]
struct Submitted {
    range: Range,
    content: Content,
}

#[derive(Clone, Debug)]
enum Content {
    Own,
    Zero,
    Copy(Bytes),
}

impl Submitted {
    /// The content of a sector after this write, with number `seq`.
    fn sector(&self, seq: Seq, lba: u64) -> [u8; 512] {
        match &self.content {
            Content::Own => sector(seq, lba),
            Content::Zero => [0; 512],
            Content::Copy(bytes) => {
                let at = ((lba - self.range.lba) * 512) as usize;
                bytes[at..at + 512].try_into().unwrap()
            }
        }
    }
}

#[derive(Debug)]
enum Wanted {
    Write(Seq),
    Flush(Seq),
    Read { range: Range, floors: Vec<Seq> },
    Prefetch,
    Status(Range),
    Stage { range: Range, floors: Vec<Seq> },
    Anything,
}

pub struct World {
    pub now: Time,
    pub rng: Rng,
    pub volume: Volume,
    pub config: Config,
    pub disk: Disk,
    pub store: Store,
    pub link_up: bool,
    pub lanes: BTreeMap<Lane, VecDeque<Frame<ToStore>>>,
    pub to_host: VecDeque<Frame<ToHost>>,
    /// Writes and syncs taken and not answered.
    pub mutations: VecDeque<DiskOperation>,
    pub reads: Vec<DiskOperation>,
    log: Vec<Submitted>,
    /// Numbers of records that are not the last of their write.
    torn: BTreeSet<Seq>,
    acknowledged: BTreeSet<Seq>,
    /// Highest number that a flush has made durable.
    pub flushed: Seq,
    outstanding: BTreeMap<u64, Wanted>,
    next_id: u64,
    pub errors: Vec<(u64, BlockError)>,
    pub events: Vec<Event>,
    pub statuses: Vec<Vec<StatusRun>>,
    pub staged: Vec<StagedPiece>,
    pub watching: Vec<u64>,
    pub max_memory: u64,
    /// The files of the version table, if the volume is keyed.
    pub table: TableDisk,
    pub table_fails: bool,
    /// The last statement of a holder of the keys.
    pub statement: Option<Statement>,
    /// Writes up to this number come from others, and this host's journal does not have them.
    others: Seq,
    /// The store's list of these.
    changes: Option<Changes>,
    /// The reasons for which tables were given up.
    pub refused: Vec<Rollback>,
}

impl World {
    pub fn new(seed: u64, config: Config) -> World {
        let geometry = match config.mode {
            Mode::Journal(geometry) => geometry,
            Mode::WriteThrough => SMALL,
        };
        let disk = Disk::new(geometry, JOURNAL);
        let mut store = Store::unpacking(config.packing.clone());
        let recovered = match config.mode {
            Mode::Journal(_) => Some(disk.recover().unwrap()),
            Mode::WriteThrough => None,
        };
        let now = Time(1_000_000_000);
        let attached = store.attach();
        let volume = Volume::new(now, config.clone(), HOST, attached.clone(), recovered);
        let mut world = World {
            now,
            rng: Rng(seed),
            volume,
            config,
            disk,
            store,
            link_up: true,
            lanes: BTreeMap::new(),
            to_host: VecDeque::new(),
            mutations: VecDeque::new(),
            reads: Vec::new(),
            log: Vec::new(),
            torn: BTreeSet::new(),
            acknowledged: BTreeSet::new(),
            flushed: 0,
            outstanding: BTreeMap::new(),
            next_id: 0,
            errors: Vec::new(),
            events: Vec::new(),
            statuses: Vec::new(),
            staged: Vec::new(),
            watching: Vec::new(),
            max_memory: 0,
            table: TableDisk::new(),
            table_fails: false,
            statement: None,
            others: 0,
            changes: None,
            refused: Vec::new(),
        };
        world.open_table(&attached, None);
        world
    }

    /// Whether the volume has a version table.
    fn has_table(&self) -> bool {
        self.config.packing.keys.is_some() && matches!(self.config.mode, Mode::Journal(_))
    }

    pub fn table_head(&self) -> Head {
        Head::newest(VOLUME, self.table.file(0)).unwrap().unwrap()
    }

    /// Works like a shell between the attach and the first request.
    fn open_table(&mut self, attached: &Attached, journal: Option<JournalEnd>) {
        if !self.has_table() {
            return;
        }
        let found = Head::newest(VOLUME, self.table.file(0)).unwrap();
        let verdict = found.map(|head| {
            let verdict = head.judge(attached, journal, self.statement, None);
            let verdict = match verdict {
                Verdict::Ask(_) => {
                    let changes = self.changes.clone().unwrap_or(Changes::Unknown);
                    head.judge(attached, journal, self.statement, Some(changes))
                }
                verdict => verdict,
            };
            (head, verdict)
        });
        let (head, forgotten) = match verdict {
            Some((head, Verdict::Go(ranges))) => (head.attached(attached, HOST), ranges),
            Some((_, Verdict::Refuse(why))) => {
                self.refused.push(why);
                self.table = TableDisk::new();
                (Head::new(attached, HOST, false, [5; 32]), Vec::new())
            }
            Some((_, Verdict::Ask(_))) => panic!("asked twice"),
            None => (Head::new(attached, HOST, attached.committed == 0, [5; 32]), Vec::new()),
        };
        let Attached { epoch, committed: seq, .. } = *attached;
        self.statement = Some(Statement { epoch, seq, key: head.key(), root: None });
        self.table.write(0, head.slot() as usize * HEAD_BYTES, &head.encode());
        self.table.sync(0);
        // The limit is so low that pages have to go.
        let versions = Versions::new(head, attached.committed, &forgotten, 1).unwrap();
        self.volume.set_versions(self.now, versions);
    }

    /// The present content of the journal.
    pub fn recovered(&self) -> Result<Recovered, JournalError> {
        let files = &self.disk.live;
        let recovery = Recovery::new(Some(VOLUME), files.iter().map(|f| f.len() as u64).collect());
        run(files, if self.has_table() { recovery.with_versions() } else { recovery }).0
    }

    /// Another host takes the volume over. It has nothing of it; the store has everything.
    pub fn elsewhere(&self, config: Config) -> World {
        let mut world = World::new(self.rng.0 + 1, config);
        let (image, records) = self.store.copy();
        world.store.paste(image, records);
        world.store.committed = self.store.committed;
        world.log = self.log.clone();
        let recovered = match world.config.mode {
            Mode::Journal(_) => Some(world.disk.recover().unwrap()),
            Mode::WriteThrough => None,
        };
        let attached = world.store.attach();
        let config = world.config.clone();
        world.volume = Volume::new(world.now, config, HOST, attached.clone(), recovered);
        world.table = TableDisk::new();
        world.open_table(&attached, None);
        world.acknowledged = (1..=world.store.committed).collect();
        world.settle();
        world
    }

    pub fn small() -> Config {
        Config {
            memory_bytes: 256 << 10,
            readahead_bytes: 64 << 10,
            ..Config::new(Mode::Journal(SMALL))
        }
    }

    pub fn last(&self) -> Seq {
        self.log.len() as Seq
    }

    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    pub fn is_outstanding(&self, id: u64) -> bool {
        self.outstanding.contains_key(&id)
    }

    /// Takes all outputs.
    pub fn poll(&mut self) {
        while let Some((id, result)) = self.volume.poll_reply() {
            self.replied(id, result);
        }
        while let Some(operation) = self.volume.poll_disk() {
            match operation {
                DiskOperation::Read { .. } => self.reads.push(operation),
                DiskOperation::Write { .. } | DiskOperation::Sync { .. } => {
                    if let DiskOperation::Write { data, .. } = &operation {
                        self.check_overwrite(data);
                    }
                    self.disk.begin(&operation);
                    self.mutations.push_back(operation);
                }
            }
        }
        while let Some(operation) = self.volume.poll_versions() {
            self.table.start(operation);
        }
        while let Some((lane, frame)) = self.volume.poll_message() {
            frame.encode_head().unwrap();
            if self.link_up {
                self.lanes.entry(lane).or_default().push_back(frame);
            }
        }
        self.poll_events();
        let status = self.volume.status(self.now);
        self.max_memory = self.max_memory.max(status.memory_bytes);
        // A frame without records may exceed the limit by its page.
        assert!(status.memory_bytes <= self.config.memory_bytes + 4096);
        assert!(status.dirty_entries <= self.config.map_entries_max);
        let ahead = status.readahead.buffered_bytes + status.readahead.in_flight_bytes;
        assert!(ahead <= self.config.readahead_bytes, "{ahead} bytes ahead");
        let timeout = self.volume.poll_timeout();
        assert!(timeout.is_none_or(|at| at > self.now), "a timeout that is due would spin");
    }

    fn poll_events(&mut self) {
        while let Some(event) = self.volume.poll_event() {
            if let Event::Rewritten { range, first, last } = event {
                self.rewritten(range, first, last);
            }
            self.events.push(event);
        }
    }

    /// The engine has written the content of a range again. It has taken the next numbers for that.
    /// The content is that of the last write there.
    fn rewritten(&mut self, range: Range, first: Seq, last: Seq) {
        let before = self.last();
        assert_eq!(first, before + 1, "{range} is rewritten in the order of all writes");
        let content: Vec<u8> =
            (range.lba..range.end()).flat_map(|lba| self.expected(lba, before)).collect();
        let content = Bytes::from(content);
        let longest = if first == last { SECTORS } else { self.record_sectors() };
        let mut at = range.lba;
        while at < range.end() {
            let end = ((at + longest) / 8 * 8).min(range.end());
            let part = Range::between(at, end);
            let skip = ((at - range.lba) * 512) as usize;
            let data = content.slice(skip..skip + part.bytes() as usize);
            self.log.push(Submitted { range: part, content: Content::Copy(data) });
            at = end;
        }
        assert_eq!(self.last(), last);
        self.torn.extend(first..last);
    }

    /// New writes are under another key from now on, and all older content has to come under it.
    pub fn rotate(&mut self, keys: Keys) {
        self.config.packing.keys = Some(keys.clone());
        self.store.packer.set_keys(keys.clone());
        self.volume.handle_keys(self.now, keys);
    }

    /// Recovery must not need the bytes that this write overwrites, even if the write fails: a
    /// durable frame says that the journal begins after them.
    fn check_overwrite(&self, frame: &[u8]) {
        let Mode::Journal(geometry) = self.config.mode else { return };
        let (header, _) = FrameHeader::parse(frame).unwrap().unwrap();
        let overwritten = (header.addr + frame.len() as u64).saturating_sub(geometry.ring());
        if overwritten == 0 {
            return;
        }
        let pages = self.disk.durable.iter().flat_map(|file| file.chunks(4096));
        let tails = pages.filter_map(|page| FrameHeader::parse(page).unwrap());
        let tail = tails.map(|(header, _)| header.tail.addr).max().unwrap_or(0);
        assert!(tail >= overwritten, "durable tail {tail}, overwritten up to {overwritten}");
    }

    fn replied(&mut self, id: u64, result: Result<Reply, BlockError>) {
        let wanted = self.outstanding.remove(&id).expect("one reply a request");
        let reply = match result {
            Ok(reply) => reply,
            Err(error) => return self.errors.push((id, error)),
        };
        match wanted {
            Wanted::Write(seq) => {
                let first = (1..seq).rev().take_while(|before| self.torn.contains(before)).last();
                self.acknowledged.extend(first.unwrap_or(seq)..=seq);
            }
            Wanted::Flush(seq) => self.flushed = self.flushed.max(seq),
            Wanted::Anything => {
                if let Reply::Watching(watch) = reply {
                    self.watching.push(watch);
                }
            }
            Wanted::Stage { range, floors } => {
                let Reply::Staged(pieces) = reply else { panic!("{reply:?}") };
                for piece in pieces {
                    let Staged::Data(staged) = piece.content else { panic!("{piece:?}") };
                    let (lba, content) = self.store.staged[&staged.object].clone();
                    assert_eq!((piece.range.lba, piece.range.sectors), (lba, range.sectors));
                    for (n, data) in content.chunks(512).enumerate() {
                        self.check(range.lba + n as u64, floors[n], data);
                    }
                    self.staged.push(piece);
                }
            }
            Wanted::Prefetch => assert_eq!(reply, Reply::Done),
            Wanted::Status(range) => {
                let Reply::Status(runs) = reply else { panic!("{reply:?}") };
                let sectors: u64 = runs.iter().map(|run| run.sectors).sum();
                assert!(sectors >= 1 && sectors <= range.sectors);
                self.statuses.push(runs);
            }
            Wanted::Read { range, floors } => {
                let Reply::Data(pieces) = reply else { panic!("{reply:?}") };
                let mut lba = range.lba;
                for piece in pieces {
                    match piece {
                        ReadPiece::Zeroes(sectors) => {
                            for lba in lba..lba + sectors {
                                self.check(lba, floors[(lba - range.lba) as usize], &[0; 512]);
                            }
                            lba += sectors;
                        }
                        ReadPiece::Data(data) => {
                            for data in data.chunks(512) {
                                self.check(lba, floors[(lba - range.lba) as usize], data);
                                lba += 1;
                            }
                        }
                    }
                }
                assert_eq!(lba, range.end());
            }
        }
    }

    /// `data` must be the content of a write that is not older than `floor`, the newest
    /// acknowledged one.
    fn check(&self, lba: u64, floor: Seq, data: &[u8]) {
        let zero = data.iter().all(|b| *b == 0);
        if floor == 0 && zero {
            return;
        }
        for seq in (floor.max(1)..=self.last()).rev() {
            let op = &self.log[seq as usize - 1];
            if Range::new(lba, 1).intersect(op.range).is_none() {
                continue;
            }
            if data == op.sector(seq, lba) {
                return;
            }
        }
        let word = u64::from_le_bytes(data[..8].try_into().unwrap());
        panic!(
            "sector {lba}: got write {} of sector {}, floor {floor}",
            word >> 32,
            word >> 8 & 0xffffff
        );
    }

    /// Content of a sector after writes up to `seq`.
    fn expected(&self, lba: u64, seq: Seq) -> [u8; 512] {
        let newest = (1..=seq)
            .rev()
            .find(|seq| Range::new(lba, 1).intersect(self.log[*seq as usize - 1].range).is_some());
        match newest {
            Some(seq) => self.log[seq as usize - 1].sector(seq, lba),
            None => [0; 512],
        }
    }

    // --- requests ---

    fn submit(&mut self, wanted: Wanted, request: Request) -> u64 {
        self.next_id += 1;
        self.outstanding.insert(self.next_id, wanted);
        self.volume.handle_request(self.now, self.next_id, request);
        self.next_id
    }

    pub fn write(&mut self, lba: u64, sectors: u64, fua: bool) -> u64 {
        let range = Range::new(lba, sectors);
        let first = self.last() + 1;
        let mut data = BytesMut::new();
        let mut at = range.lba;
        while at < range.end() {
            let end = (at + self.record_sectors()) / 8 * 8;
            let range = Range::between(at, end.min(range.end()));
            self.log.push(Submitted { range, content: Content::Own });
            data.extend_from_slice(&payload(self.last(), range));
            at = range.end();
        }
        let seq = self.last();
        self.torn.extend(first..seq);
        let request = Request::Write { range, data: data.freeze(), fua };
        self.submit(Wanted::Write(seq), request)
    }

    fn is_packing(&self) -> bool {
        self.config.packing != Packing::default()
    }

    /// Longest record of data.
    fn record_sectors(&self) -> u64 {
        if self.is_packing() { self.config.packed_sectors_max } else { SECTORS }
    }

    pub fn zero(&mut self, lba: u64, sectors: u64, allocate: bool) -> u64 {
        let range = Range::new(lba, sectors);
        self.log.push(Submitted { range, content: Content::Zero });
        let request = Request::Zero { range, allocate, fua: false };
        self.submit(Wanted::Write(self.last()), request)
    }

    pub fn discard(&mut self, lba: u64, sectors: u64) -> u64 {
        let range = Range::new(lba, sectors);
        self.log.push(Submitted { range, content: Content::Zero });
        self.submit(Wanted::Write(self.last()), Request::Discard { range, fua: false })
    }

    pub fn flush(&mut self) -> u64 {
        // The flush covers all acknowledged writes; numbers go up in order.
        let covered = self.acknowledged.last().copied().unwrap_or(0);
        self.submit(Wanted::Flush(covered), Request::Flush)
    }

    /// For each sector, the last write known to be acknowledged.
    fn floors(&self, range: Range) -> Vec<Seq> {
        let floor = |lba| {
            let acknowledged = self.acknowledged.iter().rev();
            acknowledged
                .copied()
                .find(|seq| {
                    Range::new(lba, 1).intersect(self.log[*seq as usize - 1].range).is_some()
                })
                .unwrap_or(0)
        };
        (range.lba..range.end()).map(floor).collect()
    }

    pub fn read(&mut self, lba: u64, sectors: u64) -> u64 {
        let range = Range::new(lba, sectors);
        let floors = self.floors(range);
        self.submit(Wanted::Read { range, floors }, Request::Read(range))
    }

    /// Stages sectors of the volume for another place in it.
    pub fn stage(&mut self, range: Range, lba: u64, watch: Option<u64>) -> u64 {
        let floors = self.floors(range);
        let object = STAGED_BIT | self.rng.next();
        let request = Request::Stage { range, into: VOLUME, lba, object, watch };
        self.submit(Wanted::Stage { range, floors }, request)
    }

    /// Writes a staged piece without its first `skip` sectors.
    pub fn write_staged(&mut self, piece: StagedPiece, skip: u64, fua: bool) -> u64 {
        let range = Range::between(piece.range.lba + skip, piece.range.end());
        let Staged::Data(staged) = piece.content else { panic!("{piece:?}") };
        let (_, content) = &self.store.staged[&staged.object];
        let content = Content::Copy(content.slice((skip * 512) as usize..));
        self.log.push(Submitted { range, content });
        let pieces = vec![StagedPiece { range, ..piece }];
        self.submit(Wanted::Write(self.last()), Request::WriteStaged { pieces, fua })
    }

    pub fn prefetch(&mut self, lba: u64, sectors: u64) -> u64 {
        self.submit(Wanted::Prefetch, Request::Prefetch(Range::new(lba, sectors)))
    }

    pub fn status(&mut self, lba: u64, sectors: u64) -> u64 {
        let range = Range::new(lba, sectors);
        self.submit(Wanted::Status(range), Request::Status(range))
    }

    /// A request that the model knows nothing of.
    pub fn raw(&mut self, request: Request) -> u64 {
        self.submit(Wanted::Anything, request)
    }

    pub fn random_request(&mut self) {
        let lba = self.rng.below(SECTORS - ONE_RECORD);
        let sectors = 1 + self.rng.below(ONE_RECORD);
        let fua = self.rng.chance(10);
        match self.rng.below(23) {
            20 | 21 => {
                let to = self.rng.below(SECTORS - ONE_RECORD);
                self.stage(Range::new(lba, sectors), to, None)
            }
            22 if !self.staged.is_empty() && self.config.packing.keys.is_none() => {
                let at = self.rng.below(self.staged.len() as u64) as usize;
                let piece = self.staged[at];
                let skip = self.rng.below(piece.range.sectors);
                self.write_staged(piece, skip, fua)
            }
            0..10 => self.write(lba, sectors, fua),
            10 => self.zero(lba, sectors, fua),
            11 => {
                let long = self.rng.below(SECTORS - lba) + 1;
                self.discard(lba, long)
            }
            12..14 => self.flush(),
            14 => self.prefetch(lba, sectors),
            15 => self.status(lba, sectors),
            _ => {
                let long = self.rng.below(SECTORS - lba) + 1;
                self.read(lba, long)
            }
        };
    }

    // --- the world's moves ---

    /// Answers the oldest write or sync.
    pub fn finish_mutation(&mut self) -> bool {
        self.finish_mutation_at(0)
    }

    /// Answers one of the writes and syncs under way.
    pub fn finish_mutation_at(&mut self, place: usize) -> bool {
        let Some(operation) = self.mutations.remove(place) else { return false };
        let result = self.disk.finish(operation);
        self.volume.handle_disk(self.now, result);
        true
    }

    /// Fails the oldest write or sync.
    pub fn fail_mutation(&mut self) -> bool {
        let Some(operation) = self.mutations.pop_front() else { return false };
        self.disk.drop_cache();
        let (DiskOperation::Write { id, .. }
        | DiskOperation::Sync { id, .. }
        | DiskOperation::Read { id, .. }) = operation;
        let error = "input/output error".to_owned();
        self.volume.handle_disk(self.now, DiskResult::Failed { id, error });
        true
    }

    pub fn finish_read(&mut self) -> bool {
        if self.reads.is_empty() {
            return false;
        }
        let at = self.rng.below(self.reads.len() as u64) as usize;
        let DiskOperation::Read { id, file, offset, bytes } = self.reads.swap_remove(at) else {
            unreachable!()
        };
        let data = &self.disk.live[file as usize][offset as usize..offset as usize + bytes];
        let data = Bytes::copy_from_slice(data);
        self.volume.handle_disk(self.now, DiskResult::Data { id, data });
        true
    }

    /// Finishes one operation on the version table.
    pub fn finish_table(&mut self, read: bool) -> bool {
        let done = if read { self.table.finish_read() } else { self.table.finish() };
        let Some(mut result) = done else { return false };
        if self.table_fails
            && let DiskResult::Done { id } = result
        {
            result = DiskResult::Failed { id, error: "input/output error".to_owned() };
        }
        self.volume.handle_versions(self.now, result);
        true
    }

    pub fn deliver(&mut self, lane: Lane) -> bool {
        let Some(frame) = self.lanes.get_mut(&lane).and_then(VecDeque::pop_front) else {
            return false;
        };
        if let Some(reply) = self.store.handle(frame) {
            self.to_host.push_back(reply);
        }
        true
    }

    pub fn answer(&mut self) -> bool {
        let Some(frame) = self.to_host.pop_front() else { return false };
        self.volume.handle_message(self.now, frame);
        if self.config.packing.keys.as_ref().is_some_and(Keys::retires) {
            // The engine's own writes have their place in the order.
            self.poll_events();
        }
        true
    }

    pub fn link_down(&mut self) {
        if self.link_up {
            self.link_up = false;
            self.lanes.clear();
            self.to_host.clear();
            self.volume.handle_link_down(self.now);
        }
    }

    pub fn link_up(&mut self) {
        if !self.link_up {
            self.link_up = true;
            self.volume.handle_link_up(self.now);
        }
    }

    pub fn advance(&mut self, by: Duration) {
        self.now = self.now.after(by);
        self.volume.handle_timeout(self.now);
    }

    /// Makes one move of any kind, then polls everything.
    pub fn step(&mut self) {
        match self.rng.below(16) {
            0..5 => self.random_request(),
            5..8 => {
                let place = self.rng.below(self.mutations.len().max(1) as u64);
                self.finish_mutation_at(place as usize);
                let read = self.rng.clone().chance(50);
                self.finish_table(read);
            }
            8..10 => {
                self.finish_read();
                self.finish_table(true);
            }
            10..12 => {
                let lane = Lane::ALL[self.rng.below(4) as usize];
                self.deliver(lane);
            }
            12..14 => {
                self.answer();
            }
            14 => {
                let by = self.rng.below(20_000_000);
                self.advance(Duration::from_nanos(by));
            }
            _ if self.rng.chance(20) => self.link_down(),
            _ => self.link_up(),
        }
        // Sometimes several inputs come before the shell gets round to the outputs.
        if self.rng.chance(70) {
            self.poll();
        }
    }

    /// So many moves.
    pub fn steps(&mut self, steps: usize) {
        for _ in 0..steps {
            self.step();
        }
    }

    /// Does everything. Time passes as needed, and no fault happens.
    pub fn settle(&mut self) {
        self.poll();
        self.link_up();
        for _ in 0..200_000 {
            self.poll();
            let mut moved = self.finish_mutation();
            moved |= self.finish_read();
            moved |= self.finish_table(true) | self.finish_table(false);
            for lane in Lane::ALL {
                moved |= self.deliver(lane);
            }
            moved |= self.answer();
            if moved {
                continue;
            }
            let Some(at) = self.volume.poll_timeout() else { return };
            self.now = at;
            self.volume.handle_timeout(at);
        }
        panic!("the world never comes to rest: {:#?}", self.volume.status(self.now));
    }

    /// Does everything that needs no time and no disk of the table.
    pub fn bustle(&mut self) {
        loop {
            self.poll();
            let mut moved = self.finish_mutation() | self.finish_read();
            for lane in Lane::ALL {
                moved |= self.deliver(lane);
            }
            if !(moved | self.answer()) {
                return self.poll();
            }
        }
    }

    /// After [`World::settle`]: everything has its answer and is committed, and reads agree.
    pub fn check_settled(&mut self) {
        assert_eq!(self.outstanding.len(), 0, "{:?}", self.outstanding);
        if self.store.packer.is_encrypting() {
            // A store that can copy can read.
            self.errors.retain(|(_, error)| *error != BlockError::Unsupported);
        }
        assert_eq!(self.errors, []);
        assert_eq!(self.store.committed, self.last());
        self.check_store();
        for lba in (0..SECTORS).step_by(32) {
            self.read(lba, 32);
        }
        self.settle();
        assert_eq!(self.outstanding.len(), 0);
        assert_eq!(self.errors, []);
        let status = self.volume.status(self.now);
        assert_eq!((status.lag_bytes, status.in_flight_bytes), (0, 0));
    }

    /// The store holds exactly the prefix that it reports.
    pub fn check_store(&self) {
        let committed = self.store.committed;
        assert!(!self.torn.contains(&committed), "only a part of a write, up to {committed}");
        for lba in 0..SECTORS {
            let expected = self.expected(lba, self.store.committed);
            assert!(self.store.sector(lba) == expected, "sector {lba} at the store");
        }
    }

    /// The process is gone (with the power, unless `power` is off). Then it starts again.
    pub fn crash(&mut self, power: bool) {
        self.disk.stop(&self.mutations, &mut self.rng);
        if power {
            self.disk.cut(&mut self.rng);
        }
        self.table.cut(power, &mut self.rng);
        let recovered = self.recovered().expect("nothing stable was lost");
        let last = recovered.last;
        let with_others = last.max(self.others);
        assert!(with_others >= self.flushed, "flushed up to {}, recovered {last}", self.flushed);
        assert!(
            with_others >= self.store.committed,
            "the store has {}, recovered {last}",
            self.store.committed
        );
        assert!(last <= self.last());
        assert!(!self.torn.contains(&last), "only a part of a write was recovered, up to {last}");
        if !power && !self.volume.status(self.now).memory_only {
            let acknowledged = self.acknowledged.last().copied().unwrap_or(0);
            let last = last.max(self.store.committed);
            assert!(last >= acknowledged, "acknowledged up to {acknowledged}, recovered {last}");
        }
        self.restart(recovered);
    }

    /// Its host died, another one had the volume, and now it is back.
    pub fn come_back(&mut self, power: bool, other: &World) {
        self.disk.stop(&self.mutations, &mut self.rng);
        if power {
            self.disk.cut(&mut self.rng);
        }
        self.table.cut(power, &mut self.rng);
        let recovered = self.recovered().expect("nothing stable was lost");
        let written = &other.log[self.store.committed as usize..];
        self.changes = Some(Changes::Ranges(written.iter().map(|write| write.range).collect()));
        let (image, records) = other.store.copy();
        self.store.paste(image, records);
        (self.store.committed, self.store.epoch) = (other.store.committed, other.store.epoch);
        (self.log, self.torn) = (other.log.clone(), other.torn.clone());
        (self.statement, self.others) = (other.statement, other.store.committed);
        self.restart(recovered);
    }

    pub fn restart(&mut self, recovered: Recovered) {
        let last = recovered.last.max(self.store.committed);
        self.log.truncate(last as usize);
        self.torn.split_off(&last);
        // The surviving writes were visible to all. So they count as acknowledged.
        self.acknowledged = (1..=last).collect();
        self.flushed = 0;
        self.outstanding.clear();
        self.mutations.clear();
        self.reads.clear();
        self.lanes.clear();
        self.to_host.clear();
        self.link_up = true;
        let attached = self.store.attach();
        let (now, config) = (self.now, self.config.clone());
        let ends = recovered.ends();
        self.volume = Volume::new(now, config, HOST, attached.clone(), Some(recovered));
        self.open_table(&attached, Some(ends));
        self.poll();
    }
}
