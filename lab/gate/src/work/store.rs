//! Segments and maps.

use super::{BLOCK, SECTORS, VOLUME, bytes, somewhere};
use bytes::{Bytes, BytesMut};
use longhaul_core::block::{Range, Seq, Time};
use longhaul_core::record::{self, Kind};
use longhaul_core::store::catalog::VolumeSpec;
use longhaul_core::store::map::levels::Levels;
use longhaul_core::store::map::lookup::{Answer, Lookup};
use longhaul_core::store::map::pages::Pages;
use longhaul_core::store::map::tree::Output;
use longhaul_core::store::map::{Get, Limits, Tree};
use longhaul_core::store::segment::{self, Piece};
use longhaul_core::store::{
    Config, GetError, ObjectMeta, ObjectOperation, ObjectResult, PutError, SessionId, Volume,
};
use longhaul_core::wire::link::{Frame, HostId, Lane, ToHost, ToStore};
use std::collections::BTreeMap;
use std::hint::black_box;

const SESSION: SessionId = SessionId(1);

/// Writes of 4 KiB in a batch, which becomes a segment of one MiB.
const BATCH: u64 = 256;

/// A store volume over objects in memory.
struct Store {
    volume: Volume,
    objects: BTreeMap<String, Bytes>,
    epoch: u64,
    committed: Seq,
}

impl Store {
    fn new() -> Store {
        let spec = VolumeSpec {
            id: VOLUME,
            name: "v".into(),
            created_sectors: SECTORS,
            block_bytes: 4096,
            created: 0,
            parents: Vec::new(),
        };
        let mut store = Store {
            volume: Volume::open(Time(1), spec, 1, Config::default()),
            objects: BTreeMap::new(),
            epoch: 0,
            committed: 0,
        };
        store.settle();
        let (name, host) = ("v".to_owned(), HostId(1));
        let attach = ToStore::Attach { request: 1, name, host, journal: None, take_over: false };
        store.send(Lane::Control, attach.into());
        assert!(store.epoch > 0, "nobody is attached");
        store
    }

    fn send(&mut self, lane: Lane, frame: Frame<ToStore>) {
        self.volume.handle_message(Time(1), SESSION, lane, frame);
        self.settle();
    }

    fn settle(&mut self) {
        loop {
            while let Some((_, _, frame)) = self.volume.poll_message() {
                match frame.message {
                    ToHost::Attached { result: Ok(attached), .. } => self.epoch = attached.epoch,
                    ToHost::Committed { seq, .. } => self.committed = seq,
                    _ => {}
                }
            }
            while self.volume.poll_event().is_some() {}
            let Some((id, operation)) = self.volume.poll_object() else { return };
            let result = self.object(operation);
            self.volume.handle_object(Time(1), id, result);
        }
    }

    fn object(&mut self, operation: ObjectOperation) -> ObjectResult {
        match operation {
            ObjectOperation::Put { key, .. } if self.objects.contains_key(&key) => {
                ObjectResult::Put(Err(PutError::Exists))
            }
            ObjectOperation::Put { key, data } => {
                self.objects.insert(key, data.concat().into());
                ObjectResult::Put(Ok(()))
            }
            ObjectOperation::Get { key, range, .. } => {
                ObjectResult::Get(match self.objects.get(&key) {
                    None => Err(GetError::NotFound),
                    Some(data) => {
                        let range = range.unwrap_or(0..data.len() as u64);
                        let end = range.end.min(data.len() as u64) as usize;
                        Ok(data.slice((range.start as usize).min(end)..end))
                    }
                })
            }
            ObjectOperation::List { prefix } | ObjectOperation::ListAfter { prefix, .. } => {
                let found = self.objects.iter().filter(|(key, _)| key.starts_with(&prefix));
                let meta = |(key, data): (&String, &Bytes)| ObjectMeta {
                    key: key.clone(),
                    bytes: data.len() as u64,
                };
                ObjectResult::List(Ok(found.map(meta).collect()))
            }
            ObjectOperation::Delete { key } => {
                self.objects.remove(&key);
                ObjectResult::Delete(Ok(()))
            }
        }
    }

    /// The batch with this number, from 0.
    fn batch(&self, number: u64, data: &[u8]) -> Frame<ToStore> {
        let (first, last) = (number * BATCH + 1, (number + 1) * BATCH);
        let mut payload = BytesMut::new();
        for seq in first..=last {
            record::encode_data(VOLUME, self.epoch, seq, somewhere(seq), data, &mut payload);
        }
        let message = ToStore::Batch { volume: VOLUME, epoch: self.epoch, first, last };
        Frame { message, payload: payload.freeze() }
    }
}

/// A batch becomes a segment: check, build, and the map.
pub fn seal(operations: u32) -> Box<dyn FnMut()> {
    let mut store = Store::new();
    let data = bytes(4096);
    let batches: Vec<_> =
        (0..u64::from(operations)).map(|number| store.batch(number, &data)).collect();
    let mut batches = batches.into_iter();
    Box::new(move || {
        let mut last = 0;
        for batch in batches.by_ref() {
            last += BATCH;
            store.send(Lane::Drain, batch);
        }
        assert_eq!(store.committed, last, "not everything is committed");
    })
}

/// Verifies a whole segment.
pub fn verify(operations: u32) -> Box<dyn FnMut()> {
    let mut store = Store::new();
    let batch = store.batch(0, &bytes(4096));
    store.send(Lane::Drain, batch);
    let largest = store.objects.values().max_by_key(|object| object.len()).cloned();
    let object = largest.unwrap_or_default();
    Box::new(move || {
        for _ in 0..operations {
            assert!(black_box(segment::verify(black_box(&object))).is_ok());
        }
    })
}

/// Entries of the map, and those of a segment.
const ENTRIES: u64 = 20_000;
const PER_SEGMENT: u64 = 1000;

fn piece(number: u64) -> Piece {
    Piece {
        kind: Kind::Data,
        range: somewhere(number),
        seq: number + 1,
        offset: (128 + number % PER_SEGMENT * 4148) as u32,
        staged: None,
        packed_bytes: 0,
    }
}

fn empty() -> (Tree, Pages) {
    let levels = Levels::new(Vec::new(), Vec::new());
    let levels = levels.unwrap_or_else(|error| unreachable!("nothing is in order: {error}"));
    (Tree::new(Limits::default(), VOLUME, 1, levels), Pages::new(64 << 20))
}

/// A map whose entries are in fragments, and the fragments' bytes.
fn flushed() -> (Tree, Pages, BTreeMap<u64, Bytes>) {
    let (mut tree, mut pages) = empty();
    let mut objects = BTreeMap::new();
    for number in 0..ENTRIES {
        tree.apply(number / PER_SEGMENT + 1, &piece(number), &mut pages);
    }
    tree.freeze(ENTRIES / PER_SEGMENT);
    loop {
        let stepped = tree.step(&mut pages);
        let mut more = stepped.unwrap_or_else(|damage| unreachable!("{damage:?}"));
        while let Some(output) = tree.poll() {
            more = true;
            match output {
                Output::Put(fragment, data) => {
                    objects.insert(fragment.id.number, Bytes::from(data.concat()));
                    tree.handle_written(fragment.id);
                }
                Output::Get(get) => {
                    let bytes = part(&objects, &get);
                    let taken = tree.handle_read(&get, bytes);
                    taken.unwrap_or_else(|damage| unreachable!("{damage:?}"));
                }
            }
        }
        while tree.poll_event().is_some() {}
        if !more {
            return (tree, pages, objects);
        }
    }
}

fn part(objects: &BTreeMap<u64, Bytes>, get: &Get) -> Bytes {
    objects[&get.fragment.id.number].slice(get.bytes.start as usize..get.bytes.end as usize)
}

fn look(tree: &Tree, pages: &mut Pages, objects: &BTreeMap<u64, Bytes>, range: Range) -> usize {
    let mut lookup = Lookup::new(range);
    loop {
        match tree.look(&mut lookup, pages).unwrap_or_else(|damage| unreachable!("{damage:?}")) {
            Answer::Parts(parts) => return parts.len(),
            Answer::Needs(needs) => {
                for get in needs {
                    let taken = lookup.supply(&get, part(objects, &get), pages);
                    taken.unwrap_or_else(|damage| unreachable!("{damage:?}"));
                }
            }
        }
    }
}

/// Looks blocks up whose pages are in memory.
pub fn look_up(operations: u32) -> Box<dyn FnMut()> {
    let (tree, mut pages, objects) = flushed();
    for number in 0..ENTRIES {
        look(&tree, &mut pages, &objects, somewhere(number));
    }
    Box::new(move || {
        for number in 0..u64::from(operations) {
            // All over the map, and each time somewhere else.
            let range = somewhere(number * 7919 % ENTRIES);
            assert_eq!(black_box(look(&tree, &mut pages, &objects, range)), 1);
        }
    })
}

/// Puts entries into the table in memory.
pub fn apply(operations: u32) -> Box<dyn FnMut()> {
    let (mut tree, mut pages) = empty();
    for number in 0..ENTRIES {
        tree.apply(1, &piece(number), &mut pages);
    }
    Box::new(move || {
        for number in ENTRIES..ENTRIES + u64::from(operations) {
            tree.apply(2, &piece(number), &mut pages);
        }
        assert!(tree.table().len() as u64 > ENTRIES);
    })
}

const _: () = assert!(BLOCK * (ENTRIES + 10_000) < SECTORS, "no block comes twice");
