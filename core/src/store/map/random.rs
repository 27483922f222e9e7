//! Compares a tree with an array: any sequence of changes, flushes, merges and reopens, with other
//! steps in between, in any order.

use super::fragment::{Fragment, FragmentId, Index};
use super::levels::Levels;
use super::lookup::{Answer, Lookup};
use super::page::MapEntry;
use super::pages::Pages;
use super::tree::{Event, Output};
use super::{Damage, Get, Limits, Place, Tree};
use crate::block::{Range, STAGED_BIT, VolumeId};
use crate::extent::Extent;
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::BTreeMap;

const SIZE: u64 = 500;
const VOLUME: VolumeId = VolumeId(1);

/// Pages of some four entries, fragments of some twelve: all levels occur.
const LIMITS: Limits =
    Limits { page_bytes: 40, fragment_bytes: 120, runs: 2, level_bytes: 900, factor: 2 };

#[derive(Clone, Debug)]
enum Op {
    Write(u64, u64),
    Staged(u64, u64),
    Zero(u64, u64),
    Discard(u64, u64),
    Freeze,
    /// Keeps the present map.
    Split,
    Step(usize),
    /// Does the output at this place in the queue.
    Do(usize),
    /// Begins a lookup; with a number of pages of a level, the lookup goes a part at a time.
    Look(u64, u64, Option<usize>),
    /// Takes the lookup a step further.
    LookOn,
    /// All is to be in one level.
    Compact,
    StopCompacting,
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    let range = || (0..SIZE, 1..24u64);
    prop_oneof![
        8 => range().prop_map(|(lba, sectors)| Op::Write(lba, sectors)),
        1 => range().prop_map(|(lba, sectors)| Op::Staged(lba, sectors)),
        1 => range().prop_map(|(lba, sectors)| Op::Zero(lba, sectors)),
        2 => range().prop_map(|(lba, sectors)| Op::Discard(lba, sectors)),
        1 => (0..SIZE, 0..SIZE).prop_map(|(lba, sectors)| Op::Discard(lba, sectors)),
        3 => Just(Op::Freeze),
        2 => Just(Op::Split),
        8 => (1..6usize).prop_map(Op::Step),
        10 => (0..4usize).prop_map(Op::Do),
        2 => (range(), prop::option::of(1..4usize))
            .prop_map(|((lba, sectors), most)| Op::Look(lba, sectors, most)),
        1 => prop::option::of(1..4usize).prop_map(|most| Op::Look(0, SIZE, most)),
        4 => Just(Op::LookOn),
        1 => Just(Op::Compact),
        1 => Just(Op::StopCompacting),
        1 => Just(Op::Reopen),
    ]
}

/// Counts of events, so that a test can require them.
#[derive(Debug, Default)]
struct Seen {
    flushes: u64,
    kept: u64,
    merges: u64,
    moves: u64,
    deepest: usize,
    waited: u64,
}

struct World {
    tree: Tree,
    pages: Pages,
    cache_bytes: u64,
    objects: BTreeMap<FragmentId, Bytes>,
    outputs: Vec<Output>,
    model: Vec<Option<Place>>,
    /// All changes; a reopened tree applies those again that no flush has.
    log: Vec<MapEntry>,
    flushed: u64,
    /// The map at each split without a flush.
    kept: BTreeMap<u64, Vec<Option<Place>>>,
    generation: u64,
    /// The lookup reads its needs when it continues.
    lookup: Option<(Lookup, Range, Vec<Get>)>,
    seen: Seen,
}

impl World {
    fn new(cache_bytes: u64) -> World {
        World {
            tree: Tree::new(LIMITS, VOLUME, 1, Levels::default()),
            pages: Pages::new(cache_bytes),
            cache_bytes,
            objects: BTreeMap::new(),
            outputs: Vec::new(),
            model: vec![None; SIZE as usize],
            log: Vec::new(),
            flushed: 0,
            kept: BTreeMap::new(),
            generation: 1,
            lookup: None,
            seen: Seen::default(),
        }
    }

    fn change(&mut self, lba: u64, sectors: u64, place: impl FnOnce(u64) -> Option<Place>) {
        let range = Range::between(lba, (lba + sectors).min(SIZE));
        if range.is_empty() {
            return;
        }
        let segment = self.log.len() as u64 + 1;
        let entry = MapEntry { range, place: place(range.sectors) };
        for n in 0..range.sectors {
            self.model[(range.lba + n) as usize] = Extent::skip(&entry.place, n);
        }
        self.tree.replace(entry, &mut self.pages);
        self.log.push(entry);
        assert_eq!(self.log.len() as u64, segment);
    }

    fn run(&mut self, op: &Op) {
        let segment = self.log.len() as u64 + 1;
        match *op {
            Op::Write(lba, sectors) => self.change(lba, sectors, |sectors| {
                Place::new(segment, segment * 3, segment as u32 * 4, 0, sectors)
            }),
            Op::Staged(lba, sectors) => self.change(lba, sectors, |sectors| {
                let object = STAGED_BIT | segment;
                Place::new(object, object, 4, 0, sectors)
            }),
            Op::Zero(lba, sectors) => self.change(lba, sectors, |_| Some(Place::ZERO)),
            Op::Discard(lba, sectors) => self.change(lba, sectors, |_| None),
            Op::Freeze => {
                self.tree.freeze(self.log.len() as u64);
            }
            Op::Split => {
                self.tree.split(self.log.len() as u64);
                self.kept.insert(self.log.len() as u64, self.model.clone());
            }
            Op::Step(steps) => {
                for _ in 0..steps {
                    self.step();
                }
            }
            Op::Do(n) => self.output(n),
            Op::Look(lba, sectors, most) => {
                let range = Range::between(lba, (lba + sectors).min(SIZE));
                let lookup = match most {
                    None => Lookup::new(range),
                    Some(most) => Lookup::bounded(range, most),
                };
                self.lookup = Some((lookup, range, Vec::new()));
                self.look();
            }
            Op::LookOn => self.look(),
            Op::Compact => self.tree.compact(),
            Op::StopCompacting => {
                self.tree.stop_compacting();
                self.events();
            }
            Op::Reopen => self.reopen(),
        }
        assert!(self.pages.bytes() <= self.cache_bytes);
        assert_eq!(self.pages.tables(), self.tree.table_bytes());
    }

    fn step(&mut self) -> bool {
        let more = self.tree.step(&mut self.pages).expect("nothing is damaged");
        while let Some(output) = self.tree.poll() {
            self.outputs.push(output);
        }
        self.events();
        more
    }

    fn events(&mut self) {
        while let Some(event) = self.tree.poll_event() {
            match event {
                Event::Flushed { through, .. } => {
                    assert!(through >= self.flushed);
                    self.flushed = through;
                    self.seen.flushes += 1;
                    if let Some(kept) = self.kept.remove(&through) {
                        assert_eq!(self.in_levels(), kept);
                        self.seen.kept += 1;
                    }
                    assert!(self.kept.keys().all(|other| *other > through));
                }
                Event::Merged { gone, bytes } => {
                    for fragment in gone {
                        let asked = self.outputs.extract_if(
                            ..,
                            |output| matches!(output, Output::Put(other, _) if *other == fragment),
                        );
                        let asked = asked.count() == 1;
                        assert_ne!(self.objects.remove(&fragment.id).is_some(), asked);
                        self.pages.forget(fragment.id);
                    }
                    let merged = u64::from(bytes > 0);
                    self.seen.merges += merged;
                    self.seen.moves += 1 - merged;
                }
                Event::RolledBack { .. } => panic!("nobody rolls back"),
            }
            self.check_levels();
        }
    }

    /// The entries of the levels alone.
    fn in_levels(&self) -> Vec<Option<Place>> {
        let mut map = vec![None; SIZE as usize];
        let levels = self.tree.levels();
        for fragment in levels.runs().iter().chain(levels.sorted()).rev().flatten() {
            let object = &self.objects[&fragment.id];
            let range = fragment.index_range();
            let index = object.slice(range.start as usize..range.end as usize);
            let index = Index::new(fragment, index).unwrap();
            for page in 0..index.pages() {
                let range = index.range(page);
                let bytes = &object[range.start as usize..range.end as usize];
                for entry in index.entries(page, bytes).unwrap() {
                    let MapEntry { range, place } = entry.unwrap();
                    for n in 0..range.sectors {
                        map[(range.lba + n) as usize] = Extent::skip(&place, n);
                    }
                }
            }
        }
        map
    }

    /// Each named fragment exists and matches its name, and the levels survive the form that a root
    /// has.
    fn check_levels(&mut self) {
        let levels = self.tree.levels();
        self.seen.deepest = self.seen.deepest.max(levels.sorted().len());
        let again = |run: &Vec<Fragment>| -> Vec<Fragment> {
            run.iter().map(|fragment| Fragment::parse(&fragment.describe()).unwrap()).collect()
        };
        let runs = levels.runs().iter().map(again).collect();
        let sorted = levels.sorted().iter().map(again).collect();
        assert_eq!(Levels::new(runs, sorted).as_ref(), Ok(levels));
        for fragment in levels.fragments() {
            assert_eq!(Fragment::verify(&self.objects[&fragment.id]), Ok(*fragment));
        }
    }

    fn output(&mut self, n: usize) {
        if self.outputs.is_empty() {
            return;
        }
        match self.outputs.remove(n % self.outputs.len()) {
            Output::Put(fragment, data) => {
                let object = Bytes::from(data.concat());
                assert!(self.objects.insert(fragment.id, object).is_none());
                self.tree.handle_written(fragment.id);
            }
            Output::Get(get) => {
                // It may be of a merge that came to nothing.
                let Some(object) = self.objects.get(&get.fragment.id) else { return };
                let bytes = object.slice(get.bytes.start as usize..get.bytes.end as usize);
                self.tree.handle_read(&get, bytes).expect("nothing is damaged");
            }
        }
    }

    fn look(&mut self) {
        let Some((mut lookup, range, needs)) = self.lookup.take() else { return };
        for get in needs {
            // A merge has replaced the fragment meanwhile.
            let Some(object) = self.objects.get(&get.fragment.id) else { continue };
            let bytes = object.slice(get.bytes.start as usize..get.bytes.end as usize);
            lookup.supply(&get, bytes, &mut self.pages).expect("nothing is damaged");
        }
        match self.tree.look(&mut lookup, &mut self.pages).expect("nothing is damaged") {
            Answer::Needs(needs) => {
                assert!(needs.iter().all(|get| self.objects.contains_key(&get.fragment.id)));
                self.seen.waited += 1;
                self.lookup = Some((lookup, range, needs));
            }
            Answer::Parts(parts) => {
                let mut at = range.lba;
                let mut last = None;
                for (part, place) in parts {
                    assert!(part.lba == at && !part.is_empty());
                    for n in 0..part.sectors {
                        let expected = self.model[(part.lba + n) as usize];
                        assert_eq!(Extent::skip(&place, n), expected, "sector {}", part.lba + n);
                    }
                    at = part.end();
                    if let Some((before, sectors)) = last.replace((place, part.sectors)) {
                        assert!(!Extent::continues(&before, sectors, &place));
                    }
                }
                assert!(at > range.lba || range.is_empty());
                if at < range.end() {
                    let rest = Range::between(at, range.end());
                    self.lookup = Some((Lookup::bounded(rest, 1), rest, Vec::new()));
                }
            }
        }
    }

    /// Loses the memory and the work in progress, and makes the changes after the last flush again.
    fn reopen(&mut self) {
        self.outputs.clear();
        self.generation += 1;
        let levels = self.tree.levels().clone();
        self.objects.retain(|id, _| levels.fragments().any(|fragment| fragment.id == *id));
        self.tree = Tree::new(LIMITS, VOLUME, self.generation, levels);
        self.pages = Pages::new(self.cache_bytes);
        let later = (self.flushed + 1..).zip(&self.log[self.flushed as usize..]);
        let kept = std::mem::take(&mut self.kept);
        if kept.contains_key(&self.flushed) {
            self.tree.split(self.flushed);
        }
        for (number, entry) in later {
            self.tree.replace(*entry, &mut self.pages);
            if kept.contains_key(&number) {
                self.tree.split(number);
            }
        }
        self.kept = kept;
        self.lookup = None;
    }

    fn settle(&mut self) {
        for _ in 0..100_000 {
            let more = self.step();
            if self.outputs.is_empty() && !more {
                return;
            }
            self.output(0);
        }
        panic!("it does not come to rest");
    }

    fn check_all(&mut self) {
        let all = Range::new(0, SIZE);
        self.lookup = Some((Lookup::new(all), all, Vec::new()));
        for _ in 0..3 {
            self.look();
        }
        // An index, pages, the answer: the lookup knows its needs at once.
        assert!(self.lookup.is_none());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    #[test]
    fn behaves_as_an_array(
        ops in prop::collection::vec(op(), 1..250),
        cache_bytes in prop_oneof![Just(0), 300..3000u64, Just(1 << 20)],
    ) {
        let mut world = World::new(cache_bytes);
        for op in &ops {
            world.run(op);
        }
        world.check_all();
        world.settle();
        world.check_all();
        world.run(&Op::Reopen);
        world.check_all();
        // Merged to the end, what the fragments say is what there is.
        world.run(&Op::Compact);
        world.settle();
        prop_assert!(!world.tree.is_compacting());
        let named = world.tree.levels().fragments().map(|fragment| fragment.data_sectors);
        let data = |place: &&Option<Place>| place.is_some_and(|place| !place.is_zero());
        prop_assert_eq!(named.sum::<u64>(), world.in_levels().iter().filter(data).count() as u64);
        prop_assert_eq!(world.tree.levels().overlying_sectors(), 0);
        world.check_all();
    }
}

/// Numbers that look random and are always the same.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % limit
    }
}

#[test]
fn a_long_life_sees_every_level_and_ends_as_nothing() {
    let mut world = World::new(2000);
    let mut numbers = Numbers(1);
    for round in 0..400 {
        for _ in 0..30 {
            let (lba, sectors) = (numbers.below(SIZE), 1 + numbers.below(4));
            let discard = numbers.below(8) == 0;
            world.run(&if discard { Op::Discard(lba, sectors) } else { Op::Write(lba, sectors) });
        }
        world.run(&Op::Freeze);
        for _ in 0..40 {
            world.run(&Op::Step(3));
            world.run(&Op::Do(numbers.below(3) as usize));
            world.run(&Op::LookOn);
        }
        world.run(&Op::Look(numbers.below(SIZE), 9, None));
        if round % 50 == 0 {
            world.check_all();
        }
    }
    world.settle();
    world.check_all();
    let seen = &world.seen;
    assert!(seen.flushes > 100 && seen.merges > 100 && seen.moves > 0, "{seen:?}");
    assert!(seen.deepest >= 3 && seen.waited > 100, "{seen:?}");
    // Holes go once nothing lies below them; with them all goes.
    for _ in 0..40 {
        world.run(&Op::Discard(0, SIZE));
        world.run(&Op::Freeze);
        world.settle();
    }
    world.check_all();
    let entries: u64 = world.tree.levels().fragments().map(|fragment| fragment.entries).sum();
    assert!(entries <= 2, "{entries}");
}

#[test]
fn what_is_written_in_order_ends_up_in_few_fragments() {
    let mut world = World::new(2000);
    for round in 0..100 {
        world.run(&Op::Write(round * 5, 5));
        world.run(&Op::Freeze);
        world.settle();
    }
    world.check_all();
    let count = world.tree.levels().fragments().count();
    let bytes: u64 = world.tree.levels().fragments().map(Fragment::bytes).sum();
    assert!(count <= 20, "{count} fragments, {bytes} bytes");
}

#[test]
fn damage_is_noticed_and_confined() {
    let mut world = World::new(0);
    for n in 0..60 {
        world.run(&Op::Write(n * 8, 3));
    }
    world.run(&Op::Freeze);
    while world.seen.flushes == 0 {
        world.step();
        world.output(0);
    }
    let levels = world.tree.levels().clone();
    let fragment = *levels.fragments().next().unwrap();
    let good = world.objects[&fragment.id].clone();
    for at in 0..good.len() {
        let mut object = good.to_vec();
        object[at] ^= 1;
        assert!(Fragment::verify(&object.into()).is_err(), "byte {at}");
    }
    // The damage of the first page does not affect data in others.
    let mut object = good.to_vec();
    object[3] ^= 1;
    let read = |lba: u64, pages: &mut Pages| -> Result<_, Damage> {
        let mut lookup = Lookup::new(Range::new(lba, 3));
        loop {
            match lookup.step(&[], &levels, pages)? {
                Answer::Parts(parts) => return Ok(parts),
                Answer::Needs(needs) => {
                    for get in needs {
                        let bytes = get.bytes.start as usize..get.bytes.end as usize;
                        let object = match get.fragment.id == fragment.id {
                            true => &object[bytes],
                            false => &world.objects[&get.fragment.id][bytes],
                        };
                        lookup.supply(&get, Bytes::copy_from_slice(object), pages)?;
                    }
                }
            }
        }
    };
    let damage = read(0, &mut world.pages).unwrap_err();
    assert!(damage.span.lba == 0 && damage.span.end() < 100, "{damage:?}");
    assert!(read(damage.span.end(), &mut world.pages).is_ok());
}
