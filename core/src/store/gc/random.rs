//! Any history of writes, any kept roots and any emptied segments: the data that every root names
//! is there, unchanged, and in one place only.

use super::bundle::{BundleId, Head, Index};
use super::round::{Emptied, Event, Object, Output, Round};
use super::usage::{Fixed, Policy, Source, Usage, choose};
use crate::block::{Range, VolumeId};
use crate::pack::{Compression, Packer, Packing};
use crate::record::{self, Kind};
use crate::store::map::Place;
use crate::store::map::fragment::{Builder, Fragment, FragmentId};
use crate::store::map::page::MapEntry;
use crate::store::map::table::Table;
use crate::store::segment::{self, Piece, SegmentKind};
use crate::wire::link::HostId;
use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

type Entries = Vec<(Range, Option<Place>)>;

const SECTORS: u64 = 512;
const VOLUME: VolumeId = VolumeId(7);

#[derive(Clone, Debug)]
enum Write {
    Data(Range),
    Packed(Range),
    Zero(Range),
    Discard(Range),
    /// The segment ends.
    Seal,
    /// Keeps a root of the present map.
    Keep,
}

fn write() -> impl Strategy<Value = Write> {
    let range = |longest: u64| {
        (0..SECTORS, 1..longest).prop_map(|(lba, n)| Range::new(lba, n.min(SECTORS - lba)))
    };
    prop_oneof![
        8 => range(100).prop_map(Write::Data),
        4 => range(20).prop_map(Write::Data),
        6 => range(100).prop_map(Write::Packed),
        1 => range(100).prop_map(Write::Zero),
        1 => range(100).prop_map(Write::Discard),
        6 => Just(Write::Seal),
        2 => Just(Write::Keep),
    ]
}

/// The stored objects, and the expected content.
#[derive(Default)]
struct World {
    /// Everything in it is the number of its write, in each byte and each sector.
    segments: BTreeMap<u64, Bytes>,
    bundles: BTreeMap<BundleId, Bytes>,
    moved: BTreeMap<u64, BundleId>,
    fragments: BTreeMap<FragmentId, Bytes>,
    roots: Vec<(Table, Vec<Fragment>)>,
    /// The content of the fragments: roots share equal ones.
    known: Vec<(Entries, Fragment)>,
    next_bundle: u64,
}

/// Header and records of a segment; nothing looks at the rest.
fn segment_of(number: u64, records: Bytes) -> Bytes {
    let last = u64::from(!records.is_empty());
    let header = segment::Header {
        volume: VOLUME,
        number,
        kind: if last > 0 { SegmentKind::Data } else { SegmentKind::Announce },
        epoch: 1,
        host: HostId(1),
        token: segment::Token { incarnation: 1, counter: number },
        first: 1,
        last,
        records_bytes: 0,
        footer_bytes: 0,
        previous: 0,
        void_after: 0,
        voids: false,
        ahead: 0,
        sectors: 0,
    };
    let (_, parts) = segment::build(header, segment::Footer::default(), vec![records.clone()]);
    [&parts[0][..], &records].concat().into()
}

fn content(seq: u64, sectors: u64) -> Vec<u8> {
    vec![seq as u8; (sectors * 512) as usize]
}

impl World {
    fn new(history: &[Write]) -> World {
        let mut world = World { next_bundle: 1, ..World::default() };
        let mut map = Table::new();
        let (mut number, mut seq) = (1, 0);
        let mut open = BytesMut::new();
        for write in history.iter().chain([&Write::Seal, &Write::Keep]) {
            let offset = (segment::HEADER_BYTES + open.len()) as u32;
            let (range, kind) = match *write {
                Write::Data(range) => (range, Kind::Data),
                Write::Packed(range) => (range, Kind::Packed),
                Write::Zero(range) => (range, Kind::Zero),
                Write::Discard(range) => (range, Kind::Discard),
                Write::Seal => {
                    let records = std::mem::take(&mut open).freeze();
                    world.segments.insert(number, segment_of(number, records));
                    number += 1;
                    continue;
                }
                // Only whole segments.
                Write::Keep if open.is_empty() => {
                    world.keep(&map);
                    continue;
                }
                Write::Keep => continue,
            };
            seq += 1;
            let mut packed_bytes = 0;
            let mut kind = kind;
            match kind {
                Kind::Data => {
                    let data = content(seq, range.sectors);
                    record::encode_data(VOLUME, 1, seq, range, &data, &mut open);
                }
                Kind::Packed => {
                    let data = Bytes::from(content(seq, range.sectors));
                    let packing = Packing { compression: Compression::Lz4, ..Packing::default() };
                    let mut packer = Packer::new(VOLUME, packing);
                    let header = packer.pack(1, seq, range, &data, &mut open);
                    (kind, packed_bytes) = (header.kind, header.packed_bytes);
                }
                _ => record::encode_marker(VOLUME, kind, 1, seq, range, &mut open),
            }
            map.apply(number, &Piece { kind, range, seq, offset, staged: None, packed_bytes });
        }
        world
    }

    fn keep(&mut self, map: &Table) {
        let mut fragments = Vec::new();
        let entries: Vec<_> = map.iter_from(0).collect();
        for part in entries.chunks(7) {
            if let Some((_, fragment)) = self.known.iter().find(|(entries, _)| entries == part) {
                fragments.push(*fragment);
                continue;
            }
            let mut builder = Builder::new(64);
            for (range, place) in part {
                builder.push(MapEntry { range: *range, place: *place });
            }
            let number = self.fragments.len() as u64 + 1;
            let id = FragmentId { volume: VOLUME, generation: 1, number };
            let (fragment, data) = builder.finish(id);
            self.fragments.insert(id, data.concat().into());
            self.known.push((part.to_vec(), fragment));
            fragments.push(fragment);
        }
        self.roots.push((map.clone(), fragments));
    }

    fn last(&self) -> u64 {
        *self.segments.keys().last().unwrap_or(&0)
    }

    fn objects(&self) -> Vec<(Emptied, Source)> {
        let mut objects = Vec::new();
        let mut add = |object, segments: Vec<u64>, bytes: usize| {
            let source = Source { segments: segments.clone(), bytes: bytes as u64 };
            objects.push((Emptied { object, segments }, source));
        };
        for (number, bytes) in &self.segments {
            add(Object::Segment(*number), vec![*number], bytes.len());
        }
        for (id, bytes) in &self.bundles {
            let here = self.moved.iter().filter(|(_, bundle)| *bundle == id);
            add(Object::Bundle(*id), here.map(|(segment, _)| *segment).collect(), bytes.len());
        }
        objects
    }

    fn object(&self, object: Object) -> Bytes {
        match object {
            Object::Segment(number) => self.segments[&number].clone(),
            Object::Bundle(id) => self.bundles[&id].clone(),
        }
    }

    /// Empties these; returns the objects that stay because they are damaged.
    fn collect(&mut self, emptied: Vec<Emptied>) -> (Usage, BTreeSet<Object>) {
        let mut roots = self.roots.iter();
        let names = (1, self.next_bundle);
        let mut round = Round::new(VOLUME, names, 3000, (0, self.last()), emptied);
        let mut bundles = BTreeMap::new();
        let mut damaged = BTreeSet::new();
        let mut usage = None;
        while !round.is_done() {
            if round.wants_root() {
                match roots.next() {
                    Some((_, fragments)) => round.handle_root(fragments.iter().copied()),
                    None => round.end_roots(),
                }
            }
            while let Some(output) = round.poll() {
                match output {
                    Output::ReadFragment(fragment) => {
                        let bytes = self.fragments[&fragment.id].clone();
                        round.handle_fragment(fragment.id, bytes).unwrap();
                    }
                    Output::ReadObject(object) => {
                        round.handle_object(object, Ok(self.object(object)));
                    }
                    Output::Put(id, data) => {
                        assert!(bundles.insert(id, Bytes::from(data.concat())).is_none());
                        round.handle_put(id);
                    }
                }
            }
            while round.step().unwrap() {}
            usage = usage.or_else(|| round.usage().cloned());
            while let Some(event) = round.poll_event() {
                match event {
                    Event::Moved { bundle, segments, .. } => {
                        let bytes = bundles[&bundle.id].clone();
                        self.bundles.insert(bundle.id, bytes);
                        self.moved.extend(segments.into_iter().map(|segment| (segment, bundle.id)));
                    }
                    Event::Unnamed(segments) => {
                        for segment in segments {
                            self.moved.remove(&segment);
                        }
                    }
                    Event::Emptied(Object::Segment(number)) => {
                        self.segments.remove(&number).unwrap();
                    }
                    Event::Emptied(Object::Bundle(id)) => {
                        self.bundles.remove(&id).unwrap();
                    }
                    Event::Damaged(object, _) => {
                        damaged.insert(object);
                    }
                }
            }
        }
        self.next_bundle = round.next();
        let usage = usage.or_else(|| round.usage().cloned());
        (usage.expect("the fragments were read"), damaged)
    }

    fn index(&self, id: BundleId) -> Index {
        let bytes = &self.bundles[&id];
        let head = Head::parse(bytes).unwrap();
        assert_eq!((head.id, head.bytes()), (id, bytes.len() as u64));
        let range = head.index_range();
        Index::new(head, bytes.slice(range.start as usize..range.end as usize)).unwrap()
    }

    /// Reads what a root says, all of it.
    fn verify(&self) {
        for (map, _) in &self.roots {
            for (range, place) in map.iter_from(0) {
                if let Some(place) = place.filter(|place| !place.is_zero()) {
                    self.verify_run(range, place);
                }
            }
        }
    }

    fn verify_run(&self, range: Range, place: Place) {
        let (bytes, found) = match self.moved.get(&place.segment()) {
            None => (&self.segments[&place.segment()], place),
            Some(bundle) => {
                let found = self.index(*bundle).find(place, range.sectors);
                (&self.bundles[bundle], found.expect("it is in the bundle"))
            }
        };
        let record = record::parse(VOLUME, &bytes.slice(found.offset() as usize..)).unwrap();
        let header = record.header;
        assert_eq!((header.seq, header.range), (place.seq(), found.record(range.lba)));
        assert_eq!(header.packed_bytes > 0, found.packed_bytes() > 0);
        assert!(found.packed_bytes() == 0 || found.packed_bytes() == header.record_bytes());
        let data = if header.kind == Kind::Packed {
            let mut packer = Packer::new(VOLUME, Packing::default());
            let whole = bytes.slice(found.offset() as usize..);
            packer.unpack(&whole.slice(..header.record_bytes()), range).unwrap()
        } else {
            record.data.sectors(range)
        };
        assert_eq!(data, content(place.seq(), range.sectors));
    }
}

fn pick<T: Clone>(all: &[T], choice: u64) -> Vec<T> {
    let chosen = |(number, _): &(usize, &T)| choice.rotate_left(*number as u32 % 64) & 1 == 1;
    all.iter().enumerate().filter(chosen).map(|(_, each)| each.clone()).collect()
}

proptest! {
    #[test]
    fn what_is_named_survives_every_round(
        history in prop::collection::vec(write(), 1..120),
        rounds in prop::collection::vec((any::<u64>(), any::<u64>()), 1..5),
    ) {
        let mut world = World::new(&history);
        world.verify();
        for (choice, dropped) in rounds {
            let roots = std::mem::take(&mut world.roots);
            let latest = roots.last().cloned();
            world.roots = pick(&roots, dropped);
            world.roots.extend(latest);
            let objects: Vec<_> = world.objects().into_iter().map(|(emptied, _)| emptied).collect();
            let emptied = pick(&objects, choice);
            let (_, damaged) = world.collect(emptied.clone());
            prop_assert!(damaged.is_empty(), "{:?}", damaged);
            for Emptied { object, .. } in &emptied {
                let stays = match object {
                    Object::Segment(number) => world.segments.contains_key(number),
                    Object::Bundle(id) => world.bundles.contains_key(id),
                };
                prop_assert!(!stays, "{:?}", object);
            }
            world.verify();
        }
    }

    #[test]
    fn what_is_chosen_by_the_counts_gives_back_what_nobody_names(
        history in prop::collection::vec(write(), 1..120),
    ) {
        let mut world = World::new(&history);
        let (usage, _) = world.collect(Vec::new());
        let (objects, sources): (Vec<_>, Vec<_>) = world.objects().into_iter().unzip();
        let policy = Policy { high_percent: 100, low_percent: 100, ..Policy::default() };
        let choice = choose(&sources, &usage, &policy, Fixed::default());
        let chosen: Vec<_> = choice.unnamed.into_iter().chain(choice.moved).collect();
        // An object without names is always among them.
        for (number, source) in sources.iter().enumerate() {
            if source.segments.iter().all(|segment| usage.of(*segment) == 0) {
                prop_assert!(chosen.contains(&number) || source.bytes == 0);
            }
        }
        world.collect(chosen.iter().map(|number| objects[*number].clone()).collect());
        world.verify();
        // And goes without a trace.
        let (usage, _) = world.collect(Vec::new());
        for (segment, bytes) in &world.segments {
            prop_assert!(bytes.is_empty() || usage.of(*segment) > 0, "segment {}", segment);
        }
        // The count is exact, and is that of the oldest root that has the segment.
        for segment in 1..=world.last() {
            let named = |(map, _): &(Table, Vec<Fragment>)| {
                let here = |place: &Place| !place.is_zero() && place.segment() == segment;
                let runs = map.iter_from(0).filter(|(_, place)| place.as_ref().is_some_and(here));
                runs.map(|(range, _)| range.sectors).sum::<u64>()
            };
            let most = world.roots.iter().map(named).max().unwrap_or(0);
            prop_assert_eq!(most > 0, usage.of(segment) > 0, "segment {}", segment);
        }
    }

    #[test]
    fn a_damaged_object_stays_and_the_others_go(
        history in prop::collection::vec(write(), 20..120),
        (at, bit) in (any::<prop::sample::Index>(), 0..8),
    ) {
        let mut world = World::new(&history);
        let objects: Vec<_> = world.objects().into_iter().map(|(emptied, _)| emptied).collect();
        let full: Vec<u64> =
            world.segments.iter().filter(|(_, bytes)| !bytes.is_empty()).map(|(n, _)| *n).collect();
        prop_assume!(!full.is_empty());
        let number = full[at.index(full.len())];
        let mut bytes = world.segments[&number].to_vec();
        let byte = at.index(bytes.len());
        bytes[byte] ^= 1_u8 << bit;
        let before = world.segments.insert(number, bytes.into()).unwrap();
        let (_, damaged) = world.collect(objects);
        // The collector does not read an object without names.
        let stays = damaged.contains(&Object::Segment(number));
        prop_assert_eq!(stays, world.segments.contains_key(&number));
        if stays {
            prop_assert!(!world.moved.contains_key(&number));
            world.segments.insert(number, before);
        }
        world.verify();
    }

    #[test]
    fn bytes_that_are_no_bundle_are_refused(
        history in prop::collection::vec(write(), 20..60),
        (at, bit) in (any::<prop::sample::Index>(), 0..8),
    ) {
        let mut world = World::new(&history);
        let objects = world.objects().into_iter().map(|(emptied, _)| emptied).collect();
        world.collect(objects);
        for bytes in world.bundles.values() {
            let head = Head::parse(bytes).unwrap();
            let end = head.index_range().end as usize;
            let mut bad = bytes[..end].to_vec();
            let byte = at.index(bad.len());
            bad[byte] ^= 1_u8 << bit;
            let bad = Bytes::from(bad);
            let parsed = Head::parse(&bad).and_then(|head| {
                let range = head.index_range();
                Index::new(head, bad.slice(range.start as usize..range.end as usize))
            });
            prop_assert!(parsed.is_err());
        }
    }
}

/// A store under random overwrites of blocks, and the space that the policy keeps.
#[test]
fn space_and_writes_stay_bounded_under_random_overwrites() {
    // In blocks; a segment is as many as 4 MiB have.
    const LIVE: usize = 1 << 17;
    const SEGMENT: usize = 1 << 10;
    let policy = Policy { moved_bytes_max: u64::MAX, ..Policy::default() };
    let mut random = 88_172_645_463_325_252_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as usize
    };
    let mut at = vec![0_u32; LIVE];
    let mut objects: Vec<Vec<u32>> = Vec::new();
    let (mut total, mut moved, mut written, mut most, mut since) = (0, 0, 0, 0, 0);
    for round in 0..10 * LIVE {
        let block = if round < LIVE { round } else { next() % LIVE };
        if objects.last().is_none_or(|last| last.len() >= SEGMENT) {
            objects.push(Vec::new());
        }
        let newest = objects.len() - 1;
        at[block] = newest as u32;
        objects[newest].push(block as u32);
        total += 1;
        since += 1;
        written += usize::from(round >= 5 * LIVE);
        if since >= LIVE / 50 {
            since = 0;
            let mut usage = Usage::new(0, objects.len() as u64);
            let mut counts = vec![0_u64; objects.len()];
            for place in &at {
                counts[*place as usize] += 1;
            }
            for (number, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
                let place = Place::new(number as u64 + 1, 1, 0, 0, *count);
                usage.count(MapEntry { range: Range::new(0, *count), place });
            }
            usage.end_root();
            // A block is a sector here.
            let sources: Vec<_> = (0..newest)
                .map(|number| {
                    let bytes = objects[number].len() as u64 * 512;
                    Source { segments: vec![number as u64 + 1], bytes }
                })
                .collect();
            let choice = choose(&sources, &usage, &policy, Fixed::default());
            let chosen: Vec<_> = choice.unnamed.into_iter().chain(choice.moved).collect();
            for number in chosen {
                let blocks = std::mem::take(&mut objects[number]);
                total -= blocks.len();
                let live = blocks.into_iter().filter(|block| at[*block as usize] == number as u32);
                let live: BTreeSet<u32> = live.collect();
                if live.is_empty() {
                    continue;
                }
                total += live.len();
                moved += if round >= 5 * LIVE { live.len() } else { 0 };
                let bundle = objects.len() as u32;
                for block in &live {
                    at[*block as usize] = bundle;
                }
                objects.push(live.into_iter().collect());
            }
            objects.push(Vec::new());
        }
        if round >= 5 * LIVE {
            most = most.max(total);
        }
    }
    let amplification = (written + moved) as f64 / written as f64;
    let space = most as f64 / LIVE as f64;
    println!("written {amplification:.2} times, space at most {space:.2} of what is live");
    assert!(amplification <= 2.0 && space <= 1.5, "{amplification} {space}");
}
