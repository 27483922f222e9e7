//! Toy volumes at home, written by one store after another, and their replica. In any order of
//! events, the objects in the replica are usable at any moment.

use super::*;
use crate::store::catalog::{RootName, VolumeSpec};
use crate::store::map::fragment::FragmentId;
use crate::store::segment::IN_FLIGHT_MAX;
use crate::store::{ObjectMeta, StorageError};
use proptest::prelude::*;
use std::collections::BTreeMap;

type Map = BTreeMap<String, Bytes>;

const LIMITS: Limits = Limits {
    window: 3,
    held_bytes: 40,
    entries: 6,
    visits: 1,
    retry: (Duration::from_millis(1), Duration::from_millis(4)),
};

#[derive(Clone, Debug)]
enum Op {
    /// A volume does something at home, told to the replica unless somebody else does it.
    Segment(usize),
    /// A segment that another store puts, which does not tell.
    Theirs(usize),
    Fragment(usize),
    /// Names the fragments that there are, but this many.
    Root(usize, usize),
    /// Deletes what the last root does not name.
    Delete(usize),
    Name(usize),
    /// The operation at this place at home ends.
    End(usize),
    /// The environment executes the replica's operation at this place; or the operation fails, with
    /// or without effect.
    Do(usize),
    Fail(usize, bool),
    Later,
    /// The store dies, and another begins.
    Crash,
    /// The volume goes to another store, which does not tell.
    Leave(usize),
    Visit(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let volume = 0..2usize;
    prop_oneof![
        6 => volume.clone().prop_map(Op::Segment),
        1 => volume.clone().prop_map(Op::Theirs),
        6 => volume.clone().prop_map(Op::Fragment),
        4 => (volume.clone(), 0..4usize).prop_map(|(v, n)| Op::Root(v, n)),
        4 => volume.clone().prop_map(Op::Delete),
        1 => volume.clone().prop_map(Op::Name),
        16 => (0..5usize).prop_map(Op::End),
        30 => (0..6usize).prop_map(Op::Do),
        3 => (0..6usize, any::<bool>()).prop_map(|(n, e)| Op::Fail(n, e)),
        4 => Just(Op::Later),
        1 => Just(Op::Crash),
        1 => volume.clone().prop_map(Op::Leave),
        2 => (0..3usize).prop_map(Op::Visit),
    ]
}

/// A toy: segments in a row, fragments, and roots that name fragments and the last segment.
#[derive(Clone, Default)]
struct Toy {
    segments: u64,
    putting: bool,
    fragments: Vec<u64>,
    next: u64,
    /// Those that the newest root there names.
    named: Vec<u64>,
    root: u64,
    roots: u64,
    deleted: u64,
}

/// An operation at home under way.
struct Ending {
    volume: usize,
    began: Option<Moment>,
    key: String,
    data: Bytes,
}

struct Rig {
    now: Time,
    home: Map,
    away: Map,
    toys: Vec<Toy>,
    ending: Vec<Ending>,
    replica: Replica,
    pending: Vec<(u64, Site, ObjectOperation)>,
    told: BTreeMap<u64, String>,
}

fn id(volume: usize) -> VolumeId {
    VolumeId(volume as u128 + 1)
}

fn fragment(volume: usize, number: u64) -> String {
    catalog::fragment_key(FragmentId { volume: id(volume), generation: 1, number })
}

fn root(volume: usize, segment: u64, number: u64) -> String {
    catalog::root_key(id(volume), RootName { generation: 1, segment, number })
}

impl Rig {
    fn new() -> Rig {
        let now = Time(1);
        Rig {
            now,
            home: Map::new(),
            away: Map::new(),
            toys: vec![Toy::default(); 2],
            ending: Vec::new(),
            replica: Replica::new(now, LIMITS),
            pending: Vec::new(),
            told: BTreeMap::new(),
        }
    }

    fn put(&mut self, volume: usize, key: String, data: String) {
        let began = Some(self.replica.begin());
        self.ending.push(Ending { volume, began, key, data: data.into() });
    }

    fn end(&mut self, at: usize) {
        if self.ending.is_empty() {
            return;
        }
        let Ending { volume, began, key, data } = self.ending.remove(at % self.ending.len());
        assert!(self.home.insert(key.clone(), data.clone()).is_none(), "{key} again");
        let toy = &mut self.toys[volume];
        if let Some(number) = catalog::parse_number(&catalog::segment_prefix(id(volume)), &key) {
            (toy.segments, toy.putting) = (number, false);
        }
        if let Some(fragment) = catalog::parse_fragment_key(id(volume), &key) {
            toy.fragments.push(fragment.number);
        }
        if let Some(root) = catalog::parse_root_key(&catalog::root_prefix(id(volume)), &key) {
            toy.root = root.segment;
            toy.named = data.iter().map(|byte| u64::from(*byte)).collect();
        }
        let Some(began) = began else { return };
        let number =
            self.replica.put(self.now, began, &key, Some(&[data]), self.now.0.is_multiple_of(3));
        self.told.insert(number.unwrap(), key);
    }

    fn segment(&mut self, volume: usize, told: bool) {
        let toy = &mut self.toys[volume];
        if !std::mem::replace(&mut toy.putting, true) {
            let number = toy.segments + 1;
            let key = catalog::segment_key(id(volume), number);
            let began = told.then(|| self.replica.begin());
            self.ending.push(Ending {
                volume,
                began,
                key,
                data: format!("segment {number}").into(),
            });
        }
    }

    fn delete(&mut self, key: &str) {
        let number = self.replica.delete(self.now, key, self.now.0.is_multiple_of(3));
        self.told.insert(number.unwrap(), key.to_owned());
    }

    /// Forgets the operations in progress at home: they end, and the replica does not hear of it.
    fn lose(&mut self, volume: Option<usize>) {
        for ending in &mut self.ending {
            if volume.is_none_or(|volume| volume == ending.volume) {
                ending.began = None;
            }
        }
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Segment(volume) => self.segment(volume, true),
            Op::Theirs(volume) => self.segment(volume, false),
            Op::Fragment(volume) => {
                let toy = &mut self.toys[volume];
                toy.next += 1;
                let number = toy.next;
                if number < 120 {
                    self.put(volume, fragment(volume, number), format!("fragment {number}"));
                }
            }
            Op::Root(volume, without) => {
                let toy = &mut self.toys[volume];
                if self.ending.iter().any(|e| e.volume == volume && e.key.contains("/root/")) {
                    return;
                }
                toy.roots += 1;
                let keep = toy.fragments.len().saturating_sub(without);
                let named = toy.fragments[..keep].to_vec();
                let key = root(volume, toy.segments, toy.roots);
                let data: String = named.iter().map(|n| char::from(*n as u8)).collect();
                self.put(volume, key, data);
            }
            Op::Delete(volume) => {
                let rooting = |e: &Ending| e.volume == volume && e.key.contains("/root/");
                if self.ending.iter().any(rooting) || self.toys[volume].roots == 0 {
                    return;
                }
                let toy = &mut self.toys[volume];
                let named = toy.named.clone();
                let gone: Vec<u64> = toy.fragments.extract_if(.., |n| !named.contains(n)).collect();
                let (first, last) = (toy.deleted + 1, toy.root);
                toy.deleted = last.max(toy.deleted);
                for number in gone {
                    self.delete(&fragment(volume, number));
                }
                for number in first..=last {
                    self.delete(&catalog::segment_key(id(volume), number));
                }
            }
            Op::Name(volume) => {
                let key = catalog::name_key(&format!("toy{volume}"));
                if !self.home.contains_key(&key)
                    && !self.ending.iter().any(|e| e.key == key)
                    && self.toys[volume].root > 0
                {
                    let spec = VolumeSpec {
                        id: id(volume),
                        name: format!("toy{volume}"),
                        created_sectors: 8,
                        block_bytes: 512,
                        created: 1,
                        parents: Vec::new(),
                    };
                    self.put(volume, key, String::from_utf8(catalog::encode_spec(&spec)).unwrap());
                }
            }
            Op::End(at) => self.end(at),
            Op::Do(at) => self.carry_out(at, true, false),
            Op::Fail(at, effect) => self.carry_out(at, effect, true),
            Op::Later => {
                self.now = self.now.after(Duration::from_millis(2));
                self.replica.handle_timeout(self.now);
            }
            Op::Crash => {
                self.lose(None);
                // Operations in progress there may still have their effect.
                for (_, site, operation) in std::mem::take(&mut self.pending) {
                    if self.now.0.is_multiple_of(2) {
                        self.effect(site, &operation);
                    }
                }
                self.told.clear();
                self.replica = Replica::new(self.now, LIMITS);
            }
            Op::Leave(volume) => {
                self.lose(Some(volume));
                self.replica.leave(self.now, id(volume));
            }
            Op::Visit(2) => self.replica.visit(self.now, StreamId::Catalog),
            Op::Visit(volume) => self.replica.visit(self.now, StreamId::Volume(id(volume))),
        }
        self.poll();
        self.check();
        self.now = self.now.after(Duration::from_nanos(1));
    }

    fn poll(&mut self) {
        while let Some(operation) = self.replica.poll_operation() {
            self.pending.push(operation);
        }
        while let Some(number) = self.replica.poll_repeated() {
            // Of what somebody else did meanwhile nobody knows.
            let Some(key) = self.told.remove(&number) else { continue };
            assert_eq!(self.home.contains_key(&key), self.away.contains_key(&key), "{key}");
        }
        assert_eq!(self.replica.fenced(), None);
    }

    fn effect(&mut self, site: Site, operation: &ObjectOperation) -> ObjectResult {
        let map = if site == Site::Home { &mut self.home } else { &mut self.away };
        match operation {
            ObjectOperation::Put { key, data } => {
                assert_eq!(site, Site::Away);
                if map.contains_key(key) {
                    return ObjectResult::Put(Err(PutError::Exists));
                }
                map.insert(key.clone(), data.concat().into());
                ObjectResult::Put(Ok(()))
            }
            ObjectOperation::Get { key, range, .. } => {
                let Some(data) = map.get(key) else {
                    return ObjectResult::Get(Err(GetError::NotFound));
                };
                let end = range.as_ref().map_or(data.len(), |r| data.len().min(r.end as usize));
                ObjectResult::Get(Ok(data.slice(..end)))
            }
            ObjectOperation::List { prefix } => ObjectResult::List(Ok(list(map, prefix, ""))),
            ObjectOperation::ListAfter { prefix, after } => {
                ObjectResult::List(Ok(list(map, prefix, after)))
            }
            ObjectOperation::Delete { key } => {
                map.remove(key);
                ObjectResult::Delete(Ok(()))
            }
        }
    }

    fn carry_out(&mut self, at: usize, effect: bool, fails: bool) {
        if self.pending.is_empty() {
            return;
        }
        let (number, site, operation) = self.pending.remove(at % self.pending.len());
        let mut result = None;
        if effect {
            result = Some(self.effect(site, &operation));
            self.check();
        }
        let error = || StorageError::unavailable("no");
        let result = match result.filter(|_| !fails) {
            Some(result) => result,
            None => match operation {
                ObjectOperation::Put { .. } => ObjectResult::Put(Err(PutError::Failed(error()))),
                ObjectOperation::Get { .. } => ObjectResult::Get(Err(GetError::Failed(error()))),
                ObjectOperation::Delete { .. } => ObjectResult::Delete(Err(error())),
                _ => ObjectResult::List(Err(error())),
            },
        };
        self.replica.handle_operation(self.now, number, result);
    }

    /// Both sides are usable.
    fn check(&self) {
        for (place, map) in [("home", &self.home), ("away", &self.away)] {
            for volume in 0..self.toys.len() {
                let prefix = catalog::root_prefix(id(volume));
                let roots = map.keys().filter_map(|key| catalog::parse_root_key(&prefix, key));
                let newest = roots.max();
                let through = newest.map_or(0, |newest| newest.segment);
                if let Some(newest) = newest {
                    for number in map[&catalog::root_key(id(volume), newest)].iter() {
                        let key = fragment(volume, u64::from(*number));
                        assert!(map.contains_key(&key), "{place}: {newest:?} names {key}");
                    }
                }
                let prefix = catalog::segment_prefix(id(volume));
                let numbers = map.keys().filter_map(|key| catalog::parse_number(&prefix, key));
                let later: Vec<u64> = numbers.filter(|number| *number > through).collect();
                let missing = (through + 1..).find(|number| !later.contains(number)).unwrap();
                let most = if place == "home" { 1 } else { IN_FLIGHT_MAX };
                let near = later.last().is_none_or(|last| *last < missing + most);
                assert!(near, "{place}: segments of {volume} after {through}: {later:?}");
                if map.contains_key(&catalog::name_key(&format!("toy{volume}"))) {
                    assert!(newest.is_some(), "{place}: toy{volume} has a name and nothing else");
                }
            }
        }
        // The other one may have to do without home at any time.
        for key in self.away.keys() {
            let Some(there) = self.home.get(key) else { continue };
            assert_eq!(Some(there), self.away.get(key), "{key}");
        }
    }

    /// Everything gets there in the end.
    fn finish(&mut self) {
        while !self.ending.is_empty() {
            self.step(&Op::End(0));
        }
        for volume in 0..3 {
            self.step(&Op::Visit(volume));
        }
        for _ in 0..10_000 {
            if self.replica.is_idle() {
                break;
            }
            self.step(&Op::Do(0));
            self.step(&Op::Later);
        }
        assert!(self.replica.is_idle(), "{:?}", self.replica.status());
        assert_eq!(self.held(), 0);
        for key in self.home.keys() {
            let segment = catalog::parse_data_key(key);
            // Not needed there any more.
            let old = segment.is_some_and(|(volume, number)| {
                let prefix = catalog::root_prefix(volume);
                let roots =
                    self.away.keys().filter_map(|key| catalog::parse_root_key(&prefix, key));
                roots.max().is_some_and(|newest| number <= newest.segment)
            });
            assert!(old || self.away.contains_key(key), "{key} is missing");
        }
    }

    fn held(&self) -> u64 {
        self.replica.held_bytes
    }
}

fn list(map: &Map, prefix: &str, after: &str) -> Vec<ObjectMeta> {
    let found = map.range(prefix.to_owned()..).take_while(|(key, _)| key.starts_with(prefix));
    let found = found.filter(|(key, _)| key.as_str() > after);
    found.map(|(key, data)| ObjectMeta { key: key.clone(), bytes: data.len() as u64 }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn what_is_there_can_be_used_at_any_time(ops in prop::collection::vec(op(), 1..400)) {
        let mut rig = Rig::new();
        for op in &ops {
            rig.step(op);
        }
        rig.finish();
    }
}

/// Lets the replica work until it has nothing to do or is fenced.
fn settle(rig: &mut Rig) {
    for _ in 0..200 {
        while let Some(operation) = rig.replica.poll_operation() {
            rig.pending.push(operation);
        }
        let Some((number, site, operation)) = rig.pending.pop() else { return };
        let result = rig.effect(site, &operation);
        rig.replica.handle_operation(rig.now, number, result);
    }
}

#[test]
fn whoever_goes_on_there_ends_it() {
    let number = |rig: &mut Rig, key: &str| {
        let (began, data) = (rig.replica.begin(), Bytes::from_static(b"ours"));
        rig.home.insert(key.into(), data.clone());
        rig.replica.put(rig.now, began, key, Some(&[data]), true).unwrap()
    };
    let segment = |number| catalog::segment_key(id(0), number);

    // With a volume: by the next segment.
    let mut rig = Rig::new();
    let first = number(&mut rig, &segment(1));
    settle(&mut rig);
    assert_eq!(rig.replica.poll_repeated(), Some(first));
    rig.away.insert(segment(2), Bytes::from_static(b"theirs"));
    number(&mut rig, &segment(2));
    settle(&mut rig);
    assert!(rig.replica.fenced().unwrap().contains(&segment(2)));
    number(&mut rig, &segment(3));
    settle(&mut rig);
    assert_eq!((rig.replica.poll_repeated(), rig.away.len()), (None, 2));
    assert!(rig.replica.is_idle() && rig.replica.poll_timeout().is_none());

    // One that begins later finds it so.
    rig.replica = Replica::new(rig.now, LIMITS);
    rig.replica.visit(rig.now, StreamId::Volume(id(0)));
    rig.home.insert(catalog::owner_key(id(0), 1), Bytes::from_static(b"our claim"));
    rig.away.insert(catalog::owner_key(id(0), 1), Bytes::from_static(b"their claim"));
    settle(&mut rig);
    assert_eq!(rig.replica.fenced(), None, "it is the same name: nothing is missing");
    number(&mut rig, &segment(2));
    settle(&mut rig);
    assert!(rig.replica.fenced().is_some());

    // For the catalog a mark tells, even if the mark came after the put of the name began.
    let mut rig = Rig::new();
    let name = catalog::name_key("new");
    number(&mut rig, &name);
    for _ in 0..100 {
        while let Some(operation) = rig.replica.poll_operation() {
            rig.pending.push(operation);
        }
        let Some((number, site, operation)) = rig.pending.pop() else { break };
        let result = rig.effect(site, &operation);
        if matches!(&operation, ObjectOperation::Put { key, .. } if *key == name) {
            rig.away.insert(catalog::PROMOTED_KEY.into(), Bytes::from_static(b"{}"));
        }
        rig.replica.handle_operation(rig.now, number, result);
    }
    assert!(rig.away.contains_key(&name));
    assert_eq!((rig.replica.poll_repeated(), rig.replica.fenced().is_some()), (None, true));
    rig.replica = Replica::new(rig.now, LIMITS);
    rig.replica.visit(rig.now, StreamId::Volume(id(1)));
    settle(&mut rig);
    assert!(rig.replica.fenced().unwrap().contains("promoted"));
}

/// Another store stages an object and names it in a segment while a visit looks through the volume.
#[test]
fn what_a_segment_names_is_there_before_it() {
    let (staged, segment) = (catalog::staged_key(id(0), 1), catalog::segment_key(id(0), 1));
    for (before, newest_first) in (0..30).flat_map(|n| [(n, false), (n, true)]) {
        let mut rig = Rig::new();
        rig.replica.visit(rig.now, StreamId::Volume(id(0)));
        for done in 0..100 {
            if done == before {
                for key in [&staged, &segment] {
                    rig.home.insert(key.clone(), Bytes::from_static(b"theirs"));
                }
            }
            rig.poll();
            let at = if newest_first { rig.pending.len().saturating_sub(1) } else { 0 };
            rig.carry_out(at, true, false);
            let there = |key: &String| rig.away.contains_key(key);
            assert!(there(&staged) || !there(&segment), "after {before} operations");
        }
        assert!(rig.replica.is_idle());
    }
}

/// Home puts one segment after the other. The replica puts many at a time, and never one that a
/// reader of the log would miss another one by.
#[test]
fn several_segments_go_at_a_time() {
    let mut rig = Rig::new();
    let limits = Limits { window: 40, held_bytes: 1 << 20, entries: 100, ..LIMITS };
    rig.replica = Replica::new(rig.now, limits);
    let put = |rig: &mut Rig, key: String| {
        let (began, data) = (rig.replica.begin(), Bytes::from_static(b"ours"));
        rig.home.insert(key.clone(), data.clone());
        rig.replica.put(rig.now, began, &key, Some(&[data]), false);
        rig.poll();
    };
    put(&mut rig, catalog::segment_key(id(0), 1));
    settle(&mut rig);
    for number in 2..=40 {
        put(&mut rig, catalog::segment_key(id(0), number));
    }
    assert_eq!(rig.pending.len() as u64, IN_FLIGHT_MAX);
    // The first one is late: the others wait for it.
    while rig.pending.len() > 1 {
        rig.carry_out(1, true, false);
        rig.poll();
    }
    assert_eq!(rig.away.len() as u64, IN_FLIGHT_MAX);
    assert!(!rig.away.contains_key(&catalog::segment_key(id(0), 2)));
    settle(&mut rig);
    assert_eq!(rig.away.len(), 40);
}

/// A store has a segment on its way behind a gap. Another store fills the gap, and the first one
/// writes a root of that log: the other's segment comes before the root.
#[test]
fn a_root_waits_for_a_segment_that_another_store_put_into_a_gap() {
    let mut rig = Rig::new();
    let put = |rig: &mut Rig, key: String| {
        let (began, data) = (rig.replica.begin(), Bytes::from_static(b"ours"));
        rig.home.insert(key.clone(), data.clone());
        rig.replica.put(rig.now, began, &key, Some(&[data]), false);
        settle(rig);
    };
    let root =
        |segment| catalog::root_key(id(0), RootName { generation: 1, segment, number: segment });
    for number in [1, 2] {
        put(&mut rig, catalog::segment_key(id(0), number));
    }
    put(&mut rig, root(2));
    put(&mut rig, catalog::segment_key(id(0), 4));
    rig.home.insert(catalog::segment_key(id(0), 3), Bytes::from_static(b"another's"));
    put(&mut rig, root(3));
    assert!(rig.away.contains_key(&root(3)));
    assert!(rig.away.contains_key(&catalog::segment_key(id(0), 3)));
}

/// A replica is in step if it lacks nothing from before the moment. A takeover of a replica that
/// lags loses committed writes.
#[test]
fn who_is_behind_a_moment_is_known() {
    let number = |rig: &mut Rig, key: &str| {
        let (began, data) = (rig.replica.begin(), Bytes::from_static(b"ours"));
        rig.home.insert(key.into(), data.clone());
        rig.replica.put(rig.now, began, key, Some(&[data]), false);
    };
    let mut rig = Rig::new();
    for volume in 0..2 {
        number(&mut rig, &catalog::segment_key(id(volume), 1));
    }
    settle(&mut rig);
    number(&mut rig, &catalog::segment_key(id(0), 2));
    let since = rig.replica.begin();
    assert_eq!(rig.replica.behind(since), 1);
    // Later operations do not count.
    number(&mut rig, &catalog::segment_key(id(1), 2));
    assert_eq!(rig.replica.behind(since), 1);
    settle(&mut rig);
    number(&mut rig, &catalog::segment_key(id(0), 3));
    assert_eq!(rig.replica.behind(since), 0);
    // The state of an unvisited volume is unknown.
    rig.replica.visit(rig.now, StreamId::Volume(id(1)));
    assert_eq!(rig.replica.behind(since), 1);
    settle(&mut rig);
    assert_eq!(rig.replica.behind(rig.replica.begin()), 0);
}

#[test]
fn objects_are_told_apart_by_their_first_bytes() {
    let whole = |text: &str| -> Vec<Bytes> {
        text.as_bytes().chunks(2).map(Bytes::copy_from_slice).collect()
    };
    assert!(is_head(&whole("abcde"), b"abcde") && is_head(&[], b""));
    for other in ["abcd", "abcdef", "abXde", ""] {
        assert!(!is_head(&whole("abcde"), other.as_bytes()), "{other}");
    }
    let long = vec![Bytes::from(vec![7; COMPARED_BYTES as usize + 5])];
    assert!(is_head(&long, &vec![7; COMPARED_BYTES as usize]));
    assert!(!is_head(&long, &vec![7; COMPARED_BYTES as usize - 1]));
}

#[test]
fn what_belongs_to_a_store_stays_at_home() {
    let of = StreamId::of;
    assert_eq!(of(&catalog::segment_key(id(4), 1)), Some(StreamId::Volume(id(4))));
    assert_eq!(of("volumes/a"), Some(StreamId::Catalog));
    assert_eq!(of(&format!("v/{}/lease/0000000000000001", id(4))), None);
    assert_eq!((of("stores/1/2"), of("v/x/seg/1"), of("site/1")), (None, None, None));
}
