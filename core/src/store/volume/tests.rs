//! The engine over an object store in memory that delays, fails, and fails after taking effect.

use super::*;
use crate::block::{BlockState, Range, STAGED_BIT, VolumeId};
use crate::pack::{Compression, Packer, Packing};
use crate::record::{self, Kind};
use crate::store::check::LogCheck;
use crate::store::map;
use crate::store::map::fragment::Fragment;
use crate::store::map::levels::Levels;
use crate::store::map::lookup::{Answer, Lookup};
use crate::store::map::pages::{Pages, SharedPages};
use crate::store::map::table::Table;
use crate::store::map::{Limits, Place};
use crate::store::object::{GetError, ObjectMeta, PutError, StorageError};
use crate::store::{root, segment};
use crate::wire::link;
use crate::wire::link::{
    Announced, AttachError, Attached, HostId, JournalState, VolumeOperation, VolumeReply,
};
use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

mod absent;
mod collector;
mod copy;
mod damage;
mod diff;
mod diffs;
mod early;
mod in_flight;
mod maintenance;
mod ownership;
mod resize;
mod rivals;
mod rollback;
mod scenarios;
mod snapshots;
mod taken;

pub(super) const SECTORS: u64 = 64;
pub(super) const ID: VolumeId = VolumeId(0x10);

pub(super) fn spec() -> VolumeSpec {
    VolumeSpec {
        id: ID,
        name: "test".into(),
        created_sectors: SECTORS,
        block_bytes: 512,
        created: 1,
        parents: Vec::new(),
    }
}

/// The effect of a put before it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Good,
    FailsBefore,
    FailsAfter,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Objects(pub BTreeMap<String, Bytes>);

impl Objects {
    pub fn execute(&mut self, operation: &ObjectOperation, fate: Fate) -> ObjectResult {
        let failed = || StorageError::unavailable("injected");
        match operation {
            ObjectOperation::Put { key, data } => {
                if fate == Fate::FailsBefore {
                    return ObjectResult::Put(Err(PutError::Failed(failed())));
                }
                let exists = self.0.contains_key(key);
                if !exists {
                    self.0.insert(key.clone(), data.concat().into());
                }
                ObjectResult::Put(match fate {
                    Fate::FailsAfter => Err(PutError::Failed(failed())),
                    _ if exists => Err(PutError::Exists),
                    _ => Ok(()),
                })
            }
            ObjectOperation::Get { .. } if fate != Fate::Good => {
                ObjectResult::Get(Err(GetError::Failed(failed())))
            }
            ObjectOperation::Get { key, range, .. } => {
                ObjectResult::Get(match (self.0.get(key), range) {
                    (None, _) => Err(GetError::NotFound),
                    (Some(object), None) => Ok(object.clone()),
                    (Some(object), Some(range)) => {
                        let end = (range.end as usize).min(object.len());
                        Ok(object.slice((range.start as usize).min(end)..end))
                    }
                })
            }
            ObjectOperation::List { .. } | ObjectOperation::ListAfter { .. }
                if fate != Fate::Good =>
            {
                ObjectResult::List(Err(failed()))
            }
            ObjectOperation::List { prefix } | ObjectOperation::ListAfter { prefix, .. } => {
                let ours = self.0.iter().filter(|(key, _)| key.starts_with(prefix));
                let meta = ours.map(|(key, object)| ObjectMeta {
                    key: key.clone(),
                    bytes: object.len() as u64,
                });
                ObjectResult::List(Ok(meta.collect()))
            }
            ObjectOperation::Delete { key } => {
                self.0.remove(key);
                ObjectResult::Delete(Ok(()))
            }
        }
    }

    /// The roots, the newest last, and their keys.
    pub fn roots(&self) -> Vec<(String, Result<root::Root, map::MapError>)> {
        let prefix = catalog::root_prefix(ID);
        let ours = self.0.iter().filter(|(key, _)| key.starts_with(&prefix));
        ours.map(|(key, object)| (key.clone(), root::parse(&spec(), object, 1000))).collect()
    }

    /// Each object that the newest root names exists, and matches the root.
    pub fn check_newest_root(&self) {
        let Some((key, root)) = self.roots().pop() else { return };
        for fragment in root.unwrap().levels.fragments() {
            let object = self.0.get(&catalog::fragment_key(fragment.id));
            let object = object.unwrap_or_else(|| panic!("{key} names {fragment:?}"));
            assert_eq!(Fragment::verify(object), Ok(*fragment));
        }
    }

    pub fn damage(&mut self, key: &str, at: usize) {
        let object = self.0.get_mut(key).unwrap();
        let mut bytes = object.to_vec();
        bytes[at] ^= 0x40;
        *object = bytes.into();
    }
}

/// An engine with its operations under way.
pub(super) struct Rig {
    pub volume: Volume,
    pub now: Time,
    pub pending: Vec<(u64, ObjectOperation)>,
    pub inbox: Vec<(SessionId, Lane, Frame<ToHost>)>,
    pub events: Vec<Event>,
}

impl Rig {
    pub fn open(incarnation: u128, config: &Config) -> Rig {
        let now = Time(0);
        let volume = Volume::open(now, spec(), incarnation, config.clone());
        let mut rig = Rig { volume, now, pending: vec![], inbox: vec![], events: vec![] };
        rig.collect();
        rig
    }

    pub fn collect(&mut self) {
        while let Some(operation) = self.volume.poll_object() {
            self.pending.push(operation);
        }
        while let Some(message) = self.volume.poll_message() {
            self.inbox.push(message);
        }
        while let Some(event) = self.volume.poll_event() {
            self.events.push(event);
        }
    }

    pub fn send(&mut self, session: u64, lane: Lane, frame: impl Into<Frame<ToStore>>) {
        self.volume.handle_message(self.now, SessionId(session), lane, frame.into());
        self.collect();
    }

    pub fn execute(&mut self, objects: &mut Objects, index: usize, fate: Fate) {
        let (id, operation) = self.pending.remove(index);
        let result = objects.execute(&operation, fate);
        self.volume.handle_object(self.now, id, result);
        self.collect();
    }

    /// Time passes until the next timer, if there is one.
    pub fn tick(&mut self) -> bool {
        let Some(due) = self.volume.poll_timeout() else { return false };
        self.now = self.now.max(due);
        self.volume.handle_timeout(self.now);
        self.collect();
        true
    }

    /// Everything succeeds until no work is left.
    pub fn settle(&mut self, objects: &mut Objects) {
        for _ in 0..100_000 {
            if !self.pending.is_empty() {
                self.execute(objects, 0, Fate::Good);
            } else if !self.tick() {
                return;
            }
        }
        panic!("the engine does not come to rest");
    }

    /// As an operator who ordered a takeover.
    pub fn attach(
        &mut self,
        objects: &mut Objects,
        session: u64,
        host: u128,
        journal: Option<(u64, u64)>,
    ) -> Result<Attached, AttachError> {
        let journal = journal.map(|(epoch, last)| JournalState { volume: ID, epoch, last });
        let (name, host) = ("test".to_owned(), HostId(host));
        self.send(
            session,
            Lane::Control,
            ToStore::Attach { request: 1, name, host, journal, take_over: true },
        );
        self.settle(objects);
        self.take_attached(session).expect("no answer to attach")
    }

    pub fn resume(
        &mut self,
        objects: &mut Objects,
        session: u64,
        host: u128,
        epoch: u64,
    ) -> Result<Attached, AttachError> {
        let host = HostId(host);
        let message = ToStore::Resume { request: 1, volume: ID, epoch, host };
        self.send(session, Lane::Control, message);
        self.settle(objects);
        self.take_attached(session).expect("no answer to resume")
    }

    pub fn take_attached(&mut self, session: u64) -> Option<Result<Attached, AttachError>> {
        let at = self.inbox.iter().position(|(to, _, frame)| {
            *to == SessionId(session) && matches!(frame.message, ToHost::Attached { .. })
        })?;
        match self.inbox.remove(at).2.message {
            ToHost::Attached { result, .. } => Some(result),
            _ => None,
        }
    }

    pub fn has(&self, session: u64, what: impl Fn(&ToHost) -> bool) -> bool {
        self.inbox.iter().any(|(to, _, frame)| *to == SessionId(session) && what(&frame.message))
    }

    pub fn committed(&self, session: u64, number: u64) -> bool {
        self.has(session, |m| matches!(m, ToHost::Committed { seq, .. } if *seq == number))
    }

    pub fn refused(&self, session: u64) -> bool {
        self.has(session, |m| matches!(m, ToHost::BatchRefused { .. }))
    }

    pub fn fenced(&self, session: u64) -> bool {
        self.has(session, |m| matches!(m, ToHost::Fenced { .. }))
    }

    /// Reads as an observer: the tag of every sector, or the damaged range.
    pub fn read(&mut self, objects: &mut Objects, range: Range) -> Result<Vec<u16>, ReadError> {
        let message = ToStore::Read { request: 77, volume: ID, epoch: 0, range };
        self.send(999, Lane::Read, message);
        self.settle(objects);
        let at = self
            .inbox
            .iter()
            .position(|(_, _, f)| matches!(f.message, ToHost::Data { request: 77, .. }))
            .expect("no answer to read");
        let frame = self.inbox.remove(at).2;
        let ToHost::Data { result, .. } = &frame.message else { unreachable!() };
        let pieces = result.clone()?;
        let mut tags = Vec::new();
        for part in link::decode_data(range, &pieces, frame.payload.clone()).unwrap() {
            match part {
                link::ReadPart::Hole(sectors) | link::ReadPart::Zero(sectors) => {
                    tags.extend(std::iter::repeat_n(0, sectors as usize));
                }
                link::ReadPart::Packed { wanted, record } => {
                    let mut packer = Packer::new(ID, Packing::default());
                    let data = packer.unpack(&record, wanted).unwrap();
                    tags.extend(data.chunks(512).map(tag_of));
                }
                link::ReadPart::Data { wanted, fragment } => {
                    fragment.verify().unwrap();
                    tags.extend(fragment.sectors(wanted).chunks(512).map(tag_of));
                }
            }
        }
        Ok(tags)
    }

    pub fn read_all(&mut self, objects: &mut Objects) -> Result<Vec<u16>, ReadError> {
        let sectors = self.volume.sectors().unwrap_or(SECTORS);
        self.read(objects, Range::new(0, sectors))
    }
}

pub(super) fn tag_of(sector: &[u8]) -> u16 {
    assert!(sector.chunks(2).all(|pair| pair == &sector[..2]), "torn sector");
    u16::from_le_bytes([sector[0], sector[1]])
}

/// A write; a data write fills every sector with its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Write {
    pub kind: Kind,
    pub range: Range,
    pub tag: u16,
}

pub(super) const fn data(lba: u64, sectors: u64, tag: u16) -> Write {
    Write { kind: Kind::Data, range: Range::new(lba, sectors), tag }
}

/// The content after these writes, a tag for each sector.
pub(super) fn content(writes: &[Write]) -> Vec<u16> {
    content_of(SECTORS, writes)
}

pub(super) fn content_of(sectors: u64, writes: &[Write]) -> Vec<u16> {
    let mut out = vec![0; sectors as usize];
    for write in writes {
        for s in write.range.lba..write.range.end() {
            out[s as usize] = if write.kind.is_marker() { 0 } else { write.tag };
        }
    }
    out
}

pub(super) fn records(epoch: u64, first: u64, writes: &[Write]) -> Bytes {
    records_of(ID, epoch, first, writes)
}

pub(super) fn records_of(volume: VolumeId, epoch: u64, first: u64, writes: &[Write]) -> Bytes {
    let mut out = BytesMut::new();
    for (n, write) in writes.iter().enumerate() {
        let seq = first + n as u64;
        let fill = || write.tag.to_le_bytes().repeat(write.range.bytes() as usize / 2);
        if write.kind == Kind::Packed {
            // Some as they are, some compressed.
            let compression = [Compression::None, Compression::Lz4][n % 2];
            let mut packer = Packer::new(volume, Packing { compression, keys: None });
            packer.pack(epoch, seq, write.range, &fill(), &mut out);
        } else if write.kind == Kind::Data {
            let fill = fill();
            record::encode_data(volume, epoch, seq, write.range, &fill, &mut out);
        } else {
            record::encode_marker(volume, write.kind, epoch, seq, write.range, &mut out);
        }
    }
    out.freeze()
}

pub(super) fn batch(epoch: u64, first: u64, writes: &[Write]) -> Frame<ToStore> {
    let last = first + writes.len() as u64 - 1;
    Frame {
        message: ToStore::Batch { volume: ID, epoch, first, last },
        payload: records(epoch, first, writes),
    }
}

pub(super) fn announce(epoch: u64, replace: bool, entries: &[(u64, u64, u64)]) -> ToStore {
    let entries = entries
        .iter()
        .map(|&(lba, sectors, seq)| Announced { range: Range::new(lba, sectors), seq })
        .collect();
    ToStore::Announce { volume: ID, epoch, replace, entries }
}

/// All writes that the log holds, verified with the offline check.
pub(super) fn writes_in(objects: &Objects) -> Vec<Write> {
    let mut check = LogCheck::new(&spec());
    let mut writes = Vec::new();
    while let Some(object) = objects.0.get(&catalog::segment_key(ID, check.next())) {
        let segment = check.handle_segment(object).expect("the log is valid");
        for piece in segment.footer.pieces {
            let record = record::parse(ID, &object.slice(piece.offset as usize..)).unwrap();
            assert_eq!(piece.seq, writes.len() as u64 + 1, "the tests leave no number out");
            let first = Range::new(piece.range.lba, 1);
            let tag = match piece.kind {
                Kind::Data => tag_of(&record.data.payload[..512]),
                Kind::Packed => {
                    let mut packer = Packer::new(ID, Packing::default());
                    tag_of(&packer.unpack(&object[piece.offset as usize..], first).unwrap())
                }
                _ => 0,
            };
            writes.push(Write { kind: piece.kind, range: piece.range, tag });
        }
    }
    writes
}

pub(super) fn same_state(a: &LogState, b: &LogState) {
    assert_eq!((a.number, a.void_after, a.sectors), (b.number, b.void_after, b.sectors));
    assert_eq!(a.header_crc, b.header_crc);
    assert_eq!(a.history, b.history);
    assert_eq!((a.committed, a.clean), (b.committed, b.clean));
    let announced = |state: &LogState| state.announced.iter_from(0).collect::<Vec<_>>();
    assert_eq!(announced(a), announced(b));
}

/// All that the map says.
pub(super) fn places(volume: &Volume, objects: &Objects) -> Vec<(Range, Option<Place>)> {
    let mut lookup = Lookup::new(Range::new(0, volume.log.sectors));
    let mut pages = Pages::new(0);
    loop {
        match volume.map.tree().look(&mut lookup, &mut pages).unwrap() {
            Answer::Parts(parts) => return parts,
            Answer::Needs(needs) => {
                for get in needs {
                    let object = &objects.0[&catalog::fragment_key(get.fragment.id)];
                    let bytes = object.slice(get.bytes.start as usize..get.bytes.end as usize);
                    lookup.supply(&get, bytes, &mut pages).unwrap();
                }
            }
        }
    }
}

/// The same of a table by itself.
pub(super) fn places_in(table: &Table, sectors: u64) -> Vec<(Range, Option<Place>)> {
    let mut lookup = Lookup::new(Range::new(0, sectors));
    let answer = lookup.step(&[table], &Levels::default(), &mut Pages::new(0));
    let Ok(Answer::Parts(parts)) = answer else { panic!("{answer:?}") };
    parts
}

/// Pages of a few entries and fragments of a few pages: all levels occur.
pub(super) fn tiny() -> Config {
    Config {
        flush_every_segments: 3,
        map: Limits { page_bytes: 40, fragment_bytes: 100, runs: 2, level_bytes: 400, factor: 2 },
        pages: SharedPages::new(2000),
        delete_delay: Duration::from_millis(50),
        sweep_bytes: 50,
        ..Config::default()
    }
}
