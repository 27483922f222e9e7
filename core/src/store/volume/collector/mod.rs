//! Garbage collection of segments. It counts the named bytes of every segment and bundle, and moves
//! the rest of badly used ones. It hands the unneeded objects to [map
//! maintenance](super::maintenance), which deletes them by its own rule.
//!
//! The collector works for the engine that maintains the map, in steps. It has the map merged,
//! lists segments and bundles, and reads the second map. It reads the kept roots one at a time, and
//! then has a [`Round`] read all fragments of these roots. The collector gives up objects without
//! named data at once. It empties the chosen objects in a round of its own, which begins after the
//! count. At the end of each it writes the second map, and a root that has it. If it cannot read an
//! object, it stops and gives up nothing.
//!
//! It leaves alone the segments after the oldest kept root, because opening may have to replay
//! them. It also leaves alone the first segment of each engine: see [`super::log_reader`].

mod count;
mod inventory;

use super::super::catalog::{self, RootName};
use super::super::config::Config;
use super::super::event::Event;
use super::super::gc::bundle::Bundle;
use super::super::gc::moved::{self, FIRST_FRAGMENT, Moved};
use super::super::gc::round::{self, Emptied, Object, Round};
use super::super::gc::usage::{Fixed, choose};
use super::super::map::Get;
use super::super::map::fragment::{Fragment, FragmentId};
use super::super::map::levels::Levels;
use super::super::map::page::MapEntry;
use super::super::map::table::Table;
use super::super::map::tree::{self, Tree};
use super::super::object::{Copies, ObjectMeta, StorageError};
use super::super::segment::{self, HEADER_BYTES};
use super::context::Context;
use super::facts::Facts;
use super::maintenance::{MapMaintenance, put_fragment, read_fragment};
use super::outputs::Outputs;
use super::purpose::{CollectorRequest, ObjectOutcome, ObjectPurpose};
use super::roots;
use crate::block::{Time, VolumeId};
use bytes::Bytes;
use count::SpaceCount;
use inventory::{Candidates, Inventory};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Headers of segments read at a time.
const HEADS: usize = 4;
/// Pause after a failed read.
const PAUSE: Duration = Duration::from_secs(60);
/// The collector has the map merged before a count if more than one part in this number may be
/// hidden.
const HIDDEN: u64 = 64;
/// The content of the kept roots that the round has not read yet.
#[derive(Default)]
struct KeptRoots {
    /// The roots of all their snapshots, in order: the collector reads these one at a time.
    pins: BTreeSet<(u64, RootName)>,
    /// The fragments of each.
    fragments: VecDeque<Vec<Fragment>>,
    /// The read of a snapshot's root is in progress.
    reading: bool,
}

#[derive(Default)]
enum CollectorStep {
    #[default]
    Idle,
    /// The engine writes the map up to that segment.
    Flushing(u64),
    /// The engine merges the map.
    Merging,
    /// The engine renews the kept roots, so that all of them have the present map.
    Renewing,
    Segments,
    Bundles,
    Moved(VecDeque<Fragment>),
    /// The collector reads the kept roots, the oldest first: the remaining ones, and the content of
    /// the others.
    Roots(VecDeque<RootName>, KeptRoots),
    Round(Box<Round>, KeptRoots),
    /// The collector reads the headers of segments without named data.
    Heads {
        left: VecDeque<u64>,
        reading: usize,
    },
    /// The collector writes the second map.
    Writing,
}

/// The collector of a volume.
pub(super) struct Collector {
    /// The second map.
    moved: Tree,
    step: CollectorStep,
    /// Answers to requests of an earlier serial have no use.
    serial: u64,
    inventory: Inventory,
    next_bundle: u64,
    /// The objects to empty next.
    chosen: Vec<Emptied>,
    count: SpaceCount,
    /// Work is ready.
    stepping: bool,
    /// The collector reads and writes nothing before then.
    paused: Option<Time>,
}

impl Collector {
    pub fn new(config: &Config, volume: VolumeId) -> Collector {
        Collector {
            moved: Tree::new(config.map, volume, 0, Levels::default()),
            step: CollectorStep::Idle,
            serial: 0,
            inventory: Inventory::new(volume),
            next_bundle: 1,
            chosen: Vec::new(),
            count: SpaceCount::default(),
            stepping: false,
            paused: None,
        }
    }

    /// The engine has applied a segment of `bytes` bytes.
    pub fn applied(&mut self, bytes: u64) {
        self.count.written(bytes);
    }

    /// Snapshots are not there any more.
    pub fn recount(&mut self) {
        self.count.recount();
    }

    /// Whether the engine that wrote the newest root may have deleted segments of the volume.
    pub fn may_have_deleted(&self) -> bool {
        self.count.is_known() || self.moved.levels().fragments().next().is_some()
    }

    /// The content of the next root about the second map.
    pub fn for_root(&self) -> Moved {
        let levels = self.moved.levels().clone();
        let (stored_bytes, named_bytes) = self.count.for_root();
        Moved { levels, stored_bytes, named_bytes }
    }

    /// The bytes of all segments and bundles, and their named bytes, as far as known.
    pub fn space(&self) -> Option<(u64, u64)> {
        self.count.space()
    }

    /// Whether a read of the fragments of kept roots is in progress: the engine must delete none
    /// then.
    pub fn is_counting(&self) -> bool {
        matches!(self.step, CollectorStep::Roots(..) | CollectorStep::Moved(_))
            || matches!(&self.step, CollectorStep::Round(round, _) if round.usage().is_none())
    }

    fn is_idle(&self) -> bool {
        matches!(self.step, CollectorStep::Idle)
    }

    /// Ends the round without effect.
    fn forget_round(&mut self) {
        self.step = CollectorStep::Idle;
        self.serial += 1;
        self.inventory.clear();
        self.chosen.clear();
        self.inventory.reprieve();
        self.stepping = false;
    }

    /// The second map.
    pub fn moved(&self) -> &Tree {
        &self.moved
    }

    /// Whether a fragment is one of the second map.
    pub fn owns(fragment: FragmentId) -> bool {
        fragment.number >= FIRST_FRAGMENT
    }

    /// The engine has deleted an object, or its successor will.
    pub fn deleted(&mut self, key: &str) {
        self.inventory.deleted(key);
    }

    /// The maps are those of a root.
    pub fn adopt(&mut self, facts: &Facts, moved: Moved) {
        let Moved { levels, stored_bytes, named_bytes } = moved;
        self.stop(facts);
        let pages = &mut *facts.pages();
        self.moved.adopt(levels, 0, pages);
        self.moved.load(Table::new(), pages);
        self.count.adopt(stored_bytes, named_bytes);
        self.inventory.forget_condemned();
    }

    /// Another engine maintains the map, or this one begins to.
    pub fn stop(&mut self, facts: &Facts) {
        self.forget_round();
        let levels = self.moved.levels().clone();
        let pages = &mut *facts.pages();
        // Moves that no root has do not count.
        self.moved.adopt(levels, 0, pages);
        self.moved.load(Table::new(), pages);
    }

    /// This engine maintains the map, in that generation.
    pub fn own(&mut self, generation: u64) {
        self.moved.own(generation, FIRST_FRAGMENT);
        self.next_bundle = 1;
        self.inventory.forget_condemned();
    }

    /// Whether collecting is to begin.
    fn is_due(&self, facts: &Facts, map: &MapMaintenance) -> bool {
        let Some(policy) = facts.config().garbage_collection else { return false };
        if !may_collect(facts, map) || !self.is_idle() || map.is_root_due(facts) {
            return false;
        }
        let own = facts.spec().parents.is_empty();
        !self.chosen.is_empty() || self.count.is_due(&policy, map.tree().mapped_bytes(), own)
    }

    /// Whether nothing is under way, and nothing is to begin.
    pub fn is_at_rest(&self, facts: &Facts, map: &MapMaintenance) -> bool {
        facts.is_stopping() || self.is_idle() && (!self.is_due(facts, map) || self.paused.is_some())
    }

    /// The time of the next work, once the engine has read the log to its end.
    pub fn poll_timeout(&self, facts: &Facts, map: &MapMaintenance) -> Option<Time> {
        if !may_collect(facts, map) {
            return None;
        }
        let step = self.stepping.then_some(facts.now());
        let wanted = !self.is_idle() || self.is_due(facts, map);
        let paused = self.paused.filter(|_| wanted);
        [step, paused].into_iter().flatten().min()
    }

    /// Some of the work that waits for nothing.
    pub fn take_step(&mut self, cx: &mut Context<'_>, map: &mut MapMaintenance) {
        self.paused.take_if(|until| *until <= cx.facts.now());
        if !self.stepping || !may_collect(cx.facts, map) {
            return;
        }
        match &mut self.step {
            CollectorStep::Round(round, _) => match round.step() {
                Ok(more) => self.stepping = more,
                Err(error) => self.fail(cx, "a fragment".into(), &error.to_string()),
            },
            CollectorStep::Writing => {
                let stepped = self.moved.step(&mut cx.facts.pages());
                self.stepping = stepped.clone().unwrap_or(self.moved.is_flushing());
                self.moved_outputs(cx, map);
                let moved = &self.moved;
                // The next call tries a merge with damage again.
                if moved.is_settled() || stepped.is_err() && !moved.is_flushing() {
                    self.moves_written(cx, map);
                }
            }
            _ => self.stepping = false,
        }
    }

    /// Begins the next step, once the engine has read the log to its end. `held`: reads wait, and
    /// come first.
    pub fn advance(&mut self, cx: &mut Context<'_>, map: &mut MapMaintenance, held: bool) {
        if !may_collect(cx.facts, map) {
            if cx.facts.is_stopping() && !self.is_idle() {
                self.stop(cx.facts);
            }
            return;
        }
        self.advance_merging(cx, map);
        self.advance_round(cx, map, held);
        if self.is_due(cx.facts, map) && self.paused.is_none() {
            self.begin(cx, map);
        }
    }

    fn list(&self, out: &mut Outputs, request: CollectorRequest, prefix: String) {
        out.list(ObjectPurpose::Collect(self.serial, request), prefix);
    }

    fn read(&self, out: &mut Outputs, request: CollectorRequest, key: String) {
        out.read(ObjectPurpose::Collect(self.serial, request), key);
    }

    /// The count would include data that the map hides from itself, and data that segments without
    /// a root hide. If that may be much, the engine writes and merges the map first.
    fn begin(&mut self, cx: &mut Context<'_>, map: &mut MapMaintenance) {
        let uncertain = map.tree().uncertain_bytes() > map.tree().mapped_bytes() / HIDDEN;
        if uncertain && self.chosen.is_empty() {
            self.step = CollectorStep::Flushing(map.flush(cx.log));
            return self.advance_merging(cx, map);
        }
        self.begin_counting(cx, map);
    }

    /// Continues once the map is merged as far as possible. The map of a clone cannot merge
    /// completely while it shares fragments with its parents.
    fn advance_merging(&mut self, cx: &mut Context<'_>, map: &mut MapMaintenance) {
        if matches!(self.step, CollectorStep::Flushing(last) if map.through() >= last) {
            self.step = CollectorStep::Merging;
            let id = cx.facts.spec().id;
            if map.tree().levels().fragments().all(|fragment| fragment.id.volume == id) {
                map.compact();
            }
        }
        if matches!(self.step, CollectorStep::Merging) && map.is_compacted(cx) {
            self.step = CollectorStep::Renewing;
            cx.out.event(Event::Compacted);
            map.renew_roots();
        }
        if matches!(self.step, CollectorStep::Renewing) && !map.is_renewing() {
            self.begin_counting(cx, map);
        }
    }

    fn begin_counting(&mut self, cx: &mut Context<'_>, map: &MapMaintenance) {
        self.serial += 1;
        self.count.begin();
        let limit = map.oldest_kept();
        self.inventory.begin(limit);
        self.step = CollectorStep::Segments;
        let prefix = catalog::segment_prefix(cx.facts.spec().id);
        self.list(cx.out, CollectorRequest::Segments, prefix);
    }

    /// A read failed: the collector knows nothing, and gives up nothing.
    fn fail(&mut self, cx: &mut Context<'_>, key: String, error: &str) {
        self.stop(cx.facts);
        self.paused = Some(cx.facts.now().after(PAUSE));
        self.count.recount();
        let error = StorageError::unavailable(error);
        cx.out.event(Event::Retry { key, error, failures: 1 });
    }

    /// Takes the result of a request.
    pub fn handle(
        &mut self,
        cx: &mut Context<'_>,
        map: &mut MapMaintenance,
        (serial, ask): (u64, CollectorRequest),
        key: String,
        outcome: ObjectOutcome,
    ) {
        if serial != self.serial {
            return;
        }
        let data = match outcome {
            ObjectOutcome::List(list) => return self.listed(cx, map, &ask, &list),
            ObjectOutcome::Data(data) => Some(data),
            ObjectOutcome::NotFound => None,
            ObjectOutcome::Done | ObjectOutcome::Exists => {
                if let (CollectorRequest::Put(id), CollectorStep::Round(round, _)) =
                    (ask, &mut self.step)
                {
                    round.handle_put(id);
                    self.stepping = true;
                }
                return;
            }
        };
        let done = match (ask, data, &mut self.step) {
            (CollectorRequest::Moved(fragment), Some(data), CollectorStep::Moved(_)) => {
                let taken = self.inventory.take_moved(&fragment, &data);
                if taken.is_ok() {
                    self.next_moved(cx, map);
                }
                taken.map_err(|error| (key.clone(), error.to_string()))
            }
            (CollectorRequest::Root(name), Some(data), CollectorStep::Roots(..)) => {
                let announce_max = cx.facts.config().announce_entries_max;
                match roots::parse(cx.out, cx.facts.spec(), announce_max, name, &data) {
                    Some(root) => {
                        if let CollectorStep::Roots(_, kept) = &mut self.step {
                            kept.fragments.push_back(root.levels.fragments().copied().collect());
                            kept.pins.extend(root.pins);
                        }
                        self.next_root(cx, map);
                        Ok(())
                    }
                    None => Err((key.clone(), "it is damaged".to_owned())),
                }
            }
            (CollectorRequest::Pin(name), data @ Some(_), CollectorStep::Round(..)) => {
                match roots::parse_pin(cx.out, cx.facts.spec(), name, data) {
                    Some(pin) => {
                        if let CollectorStep::Round(round, kept) = &mut self.step {
                            kept.reading = false;
                            round.handle_root(pin.levels.fragments().copied());
                            self.stepping = true;
                        }
                        Ok(())
                    }
                    None => Err((key.clone(), "it is damaged".to_owned())),
                }
            }
            (CollectorRequest::Fragment(id), Some(data), CollectorStep::Round(round, _)) => {
                self.stepping = true;
                round.handle_fragment(id, data).map_err(|error| (key.clone(), error.to_string()))
            }
            (CollectorRequest::Object(object), Some(data), CollectorStep::Round(..)) => {
                self.object_to_empty(cx.facts.spec().id, object, data);
                Ok(())
            }
            (CollectorRequest::Head(number), data, CollectorStep::Heads { .. }) => {
                self.head_read(cx, map, number, data);
                Ok(())
            }
            (_, Some(_), _) => Ok(()),
            (ask, None, _) => {
                // A store that has taken over may have deleted it.
                map.suspect();
                if let CollectorRequest::Object(object) = ask {
                    self.inventory.stick(object);
                }
                Err((key.clone(), "it is not there".to_owned()))
            }
        };
        if let Err((key, error)) = done {
            self.fail(cx, key, &error);
        }
    }

    fn listed(
        &mut self,
        cx: &mut Context<'_>,
        map: &mut MapMaintenance,
        ask: &CollectorRequest,
        list: &[ObjectMeta],
    ) {
        let id = cx.facts.spec().id;
        match (ask, &self.step) {
            (CollectorRequest::Segments, CollectorStep::Segments) => {
                self.inventory.segments_listed(list);
                self.step = CollectorStep::Bundles;
                let prefix = catalog::bundle_prefix(id);
                self.list(cx.out, CollectorRequest::Bundles, prefix);
            }
            (CollectorRequest::Bundles, CollectorStep::Bundles) => {
                self.inventory.bundles_listed(list);
                // The oldest first, so that the newest entry is the last.
                let levels = self.moved.levels();
                let runs = levels.runs().iter().chain(levels.sorted());
                let fragments = runs.rev().flatten().copied().collect();
                self.step = CollectorStep::Moved(fragments);
                self.next_moved(cx, map);
            }
            _ => {}
        }
    }

    fn next_moved(&mut self, cx: &mut Context<'_>, map: &MapMaintenance) {
        let CollectorStep::Moved(fragments) = &mut self.step else { return };
        if let Some(fragment) = fragments.pop_front() {
            let key = catalog::fragment_key(fragment.id);
            return self.read(cx.out, CollectorRequest::Moved(fragment), key);
        }
        self.inventory.give_up_garbage();
        let names = map.kept_roots();
        self.step = CollectorStep::Roots(names.into(), KeptRoots::default());
        self.next_root(cx, map);
    }

    /// Reads the next kept root, or begins the round.
    fn next_root(&mut self, cx: &mut Context<'_>, map: &MapMaintenance) {
        let CollectorStep::Roots(names, kept) = &mut self.step else { return };
        if let Some(name) = names.pop_front() {
            let key = catalog::root_key(cx.facts.spec().id, name);
            return self.read(cx.out, CollectorRequest::Root(name), key);
        }
        let kept = std::mem::take(kept);
        let generation = map.generation().unwrap_or(0);
        let Candidates { objects, .. } = self.inventory.candidates();
        let chosen = std::mem::take(&mut self.chosen);
        let known: BTreeMap<Object, &Emptied> =
            objects.iter().map(|each| (each.object, each)).collect();
        let same = |each: &Emptied| known.get(&each.object).is_some_and(|known| *known == each);
        let emptied: Vec<Emptied> = chosen.into_iter().filter(same).collect();
        self.count.begin_round(!emptied.is_empty());
        let bundles = (generation, self.next_bundle);
        // The parents collect the objects that a clone has from them.
        let segments = (cx.facts.spec().begins_after(), self.inventory.limit());
        let bytes = cx.facts.config().segment_bytes;
        let round = Round::new(cx.facts.spec().id, bundles, bytes, segments, emptied);
        self.step = CollectorStep::Round(Box::new(round), kept);
        self.stepping = true;
    }

    /// Goes on with a round: asks for what it wants, as long as nobody else waits.
    fn advance_round(&mut self, cx: &mut Context<'_>, map: &mut MapMaintenance, reads_wait: bool) {
        loop {
            let held = self.paused.is_some() || reads_wait;
            let CollectorStep::Round(round, kept) = &mut self.step else { return };
            if let Some(event) = round.poll_event() {
                self.round_event(cx, event);
                continue;
            }
            if round.is_done() {
                return self.round_done(cx, map);
            }
            if held || kept.reading {
                return;
            }
            if round.wants_root() {
                // Snapshots are as old as the kept roots or older: the order is that of their
                // segments.
                if let Some((_, name)) = kept.pins.pop_first() {
                    kept.reading = true;
                    let key = catalog::pin_key(cx.facts.spec().id, name);
                    return self.read(cx.out, CollectorRequest::Pin(name), key);
                }
                match kept.fragments.pop_front() {
                    Some(fragments) => round.handle_root(fragments),
                    None => round.end_roots(),
                }
                self.stepping = true;
                continue;
            }
            let Some(output) = round.poll() else { return };
            self.next_bundle = round.next();
            let bytes = match &output {
                round::Output::ReadFragment(fragment) => fragment.bytes(),
                round::Output::ReadObject(object) => self.inventory.bytes_of(*object),
                round::Output::Put(_, data) => data.iter().map(|part| part.len() as u64).sum(),
            };
            let rate =
                cx.facts.config().garbage_collection.map_or(0, |policy| policy.bytes_per_second);
            if rate > 0 {
                let pause = Duration::from_nanos(
                    (u128::from(bytes) * 1_000_000_000 / u128::from(rate)) as u64,
                );
                self.paused = Some(cx.facts.now().after(pause));
            }
            match output {
                round::Output::ReadFragment(fragment) => {
                    let key = catalog::fragment_key(fragment.id);
                    self.read(cx.out, CollectorRequest::Fragment(fragment.id), key);
                }
                round::Output::ReadObject(object) => {
                    let key = self.inventory.key(object);
                    self.read(cx.out, CollectorRequest::Object(object), key);
                }
                round::Output::Put(id, data) => {
                    let key = catalog::bundle_key(id);
                    cx.out.put(
                        ObjectPurpose::Collect(self.serial, CollectorRequest::Put(id)),
                        key,
                        data,
                    );
                }
            }
        }
    }

    fn object_to_empty(&mut self, volume: VolumeId, object: Object, data: Bytes) {
        let result = match object {
            Object::Segment(number) => {
                self.may_go(volume, number, &data).map(|()| data).map_err(str::to_owned)
            }
            Object::Bundle(_) => Ok(data),
        };
        if let CollectorStep::Round(round, _) = &mut self.step {
            round.handle_object(object, result);
            self.stepping = true;
        }
    }

    /// Whether the engine may delete a segment one day.
    fn may_go(&mut self, volume: VolumeId, number: u64, data: &[u8]) -> Result<(), &'static str> {
        match segment::parse_header(data) {
            Ok((header, _)) if (header.volume, header.number) != (volume, number) => {
                Err("it is another segment")
            }
            Ok((header, _)) if header.token.begins() => {
                self.inventory.stick(Object::Segment(number));
                Err("an engine began with it")
            }
            Ok(_) => Ok(()),
            Err(_) => Err("its header is damaged"),
        }
    }

    /// The count has ended, or the round has moved the chosen objects.
    fn round_done(&mut self, cx: &mut Context<'_>, map: &mut MapMaintenance) {
        let CollectorStep::Round(round, _) = std::mem::take(&mut self.step) else { return };
        let (Some(policy), Some(usage)) = (cx.facts.config().garbage_collection, round.usage())
        else {
            return self.forget_round();
        };
        let Candidates { objects, sources, fixed } = self.inventory.candidates();
        let fixed = Fixed { stored_bytes: fixed, named_bytes: fixed };
        let choice = choose(&sources, usage, &policy, fixed);
        let mut heads = VecDeque::new();
        for number in choice.unnamed {
            let Emptied { object, segments } = &objects[number];
            match object {
                Object::Segment(segment) => heads.push_back(*segment),
                Object::Bundle(_) => {
                    self.note_moved(cx.facts, segments, None);
                    self.inventory.give_up(*object);
                }
            }
        }
        // If a round freed hardly any space, no other one follows.
        if self.count.counted(choice.stored_bytes, choice.named_bytes) {
            let chosen = choice.moved.into_iter().map(|number| objects[number].clone());
            self.chosen = chosen.collect();
        }
        cx.out.event(Event::Counted {
            stored_bytes: choice.stored_bytes,
            named_bytes: choice.named_bytes,
        });
        self.step = CollectorStep::Heads { left: heads, reading: 0 };
        self.next_heads(cx, map);
    }

    fn round_event(&mut self, cx: &mut Context<'_>, event: round::Event) {
        match event {
            round::Event::Moved { bundle, segments, bytes } => {
                self.inventory.add_bundle(bundle.id, bytes);
                self.note_moved(cx.facts, &segments, Some(&bundle));
                let segments = segments.len() as u64;
                cx.out.event(Event::Moved { segments, bytes });
            }
            round::Event::Unnamed(segments) => {
                self.note_moved(cx.facts, &segments, None);
            }
            round::Event::Emptied(object) => self.inventory.give_up(object),
            round::Event::Damaged(object, reason) => {
                if self.inventory.stick(object) {
                    let key = self.inventory.key(object);
                    cx.out.event(Event::NotCollected { key, reason });
                }
            }
        }
    }

    fn next_heads(&mut self, cx: &mut Context<'_>, map: &mut MapMaintenance) {
        while let CollectorStep::Heads { left, reading } = &mut self.step
            && *reading < HEADS
            && let Some(number) = left.pop_front()
        {
            *reading += 1;
            let key = catalog::segment_key(cx.facts.spec().id, number);
            let purpose = ObjectPurpose::Collect(self.serial, CollectorRequest::Head(number));
            cx.out.read_range(purpose, key, 0..HEADER_BYTES as u64);
        }
        if !matches!(&self.step, CollectorStep::Heads { reading: 0, .. }) {
            return;
        }
        self.step = CollectorStep::Writing;
        if self.moved.table().is_empty() {
            self.moves_written(cx, map);
        } else {
            self.moved.freeze(0);
            self.stepping = true;
        }
    }

    fn head_read(
        &mut self,
        cx: &mut Context<'_>,
        map: &mut MapMaintenance,
        number: u64,
        data: Option<Bytes>,
    ) {
        if let CollectorStep::Heads { reading, .. } = &mut self.step {
            *reading -= 1;
        }
        if let Some(data) = data {
            match self.may_go(cx.facts.spec().id, number, &data) {
                Ok(()) => self.inventory.give_up(Object::Segment(number)),
                Err(_) => drop(self.inventory.stick(Object::Segment(number))),
            }
        }
        self.next_heads(cx, map);
    }

    fn note_moved(&mut self, facts: &Facts, segments: &[u64], bundle: Option<&Bundle>) {
        self.inventory.note_moved(segments, bundle.copied());
        let pages = &mut *facts.pages();
        for range in segments.iter().filter_map(|segment| moved::range_of(*segment)) {
            let place = bundle.and_then(moved::place_of);
            self.moved.replace(MapEntry { range, place }, pages);
        }
    }

    /// Executes the outputs of the second map, and takes the events of its ended work.
    fn moved_outputs(&mut self, cx: &mut Context<'_>, map: &mut MapMaintenance) {
        while let Some(output) = self.moved.poll() {
            match output {
                tree::Output::Put(fragment, data) => put_fragment(cx.out, fragment, data),
                tree::Output::Get(get) => read_fragment(cx.out, get, Copies::Refused),
            }
        }
        while let Some(event) = self.moved.poll_event() {
            if let tree::Event::Merged { gone, .. } = event {
                for fragment in gone {
                    cx.facts.pages().forget(fragment.id);
                    map.drop_fragment(fragment.id);
                }
            }
        }
    }

    pub fn fragment_put(&mut self, fragment: FragmentId) {
        self.moved.handle_written(fragment);
        self.stepping = true;
    }

    /// A part of a fragment of the second map; nothing if that is gone.
    pub fn fragment_read(&mut self, get: &Get, data: Option<Bytes>) {
        // The next step asks for it again, or reports the damage.
        let _ = self.moved.handle_read(get, data.unwrap_or_default());
        self.stepping = true;
    }

    /// The second map exists: the next root has it, and no reader needs the given-up objects.
    fn moves_written(&mut self, cx: &mut Context<'_>, map: &mut MapMaintenance) {
        self.step = CollectorStep::Idle;
        self.inventory.clear();
        self.stepping = false;
        let given_up = self.inventory.take_given_up();
        let bytes: u64 = given_up.iter().map(|(_, bytes)| bytes).sum();
        self.count.end(map.tree().mapped_bytes());
        if !given_up.is_empty() {
            let objects = given_up.len() as u64;
            cx.out.event(Event::Reclaimed { objects, bytes });
            map.drop_objects(given_up.into_iter().map(|(key, _)| key).collect());
        }
    }
}

/// Whether this engine has anything to collect, once it has read the log to its end.
fn may_collect(facts: &Facts, map: &MapMaintenance) -> bool {
    facts.config().garbage_collection.is_some() && !facts.is_stopping() && map.has_written()
}
