//! Giving space back: counts what is named of every segment and bundle, moves what is left of those that are badly used, and
//! hands what nobody needs any more to the [upkeep](super::upkeep), which deletes it by its own rule.
//!
//! It is for who has the upkeep, and goes from step to step: has the map merged, lists segments and bundles, reads the second map, reads the
//! roots that are kept one at a time, and then has a [`Round`] read all fragments that these name. What the count finds to be
//! unnamed is given up at once; what is worth emptying is emptied in a round of its own that begins after it. At the
//! end of each the second map is written, and a root that has it. Anything that cannot be read ends it, and nothing
//! is given up then.
//!
//! Segments after the oldest root that is kept are left alone: opening may have to replay them. So is a segment that
//! an engine began with: see [`super::end`].

mod writing;

use super::super::catalog::{self, RootName};
use super::super::gc::bundle::{Bundle, BundleId};
use super::super::gc::moved::{self, Moved};
use super::super::gc::round::{self, Emptied, Object, Round};
use super::super::gc::usage::{Fixed, Source, choose};
use super::super::map::MapError;
use super::super::map::fragment::{self, Fragment, FragmentId};
use super::super::map::levels::Levels;
use super::super::map::page::Entry;
use super::super::map::table::Table;
use super::super::map::tree::Tree;
use super::super::object::{Copies, ObjectMeta, ObjectOperation};
use super::super::segment;
use super::super::{Config, Event};
use super::purpose::Outcome;
use super::{Phase, Purpose, Volume};
use crate::block::{Time, VolumeId};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Headers of segments read at a time.
const HEADS: usize = 4;
/// Pause after something could not be read.
const PAUSE: Duration = Duration::from_secs(60);
/// A count is worth its reading when so much more is stored than after the last: a part in so many.
const GROWN: u64 = 32;
/// The map is merged before it is counted if more than a part in so many of what it maps may be hidden.
const HIDDEN: u64 = 64;
/// A round that gives back less than a part in so many is the last for a while.
const LEAST: u64 = 128;
/// Objects that are remembered as not to be emptied.
const STUCK_MAX: usize = 1 << 16;

/// What is asked of the object store.
#[derive(Clone, Debug)]
pub(super) enum Ask {
    Segments,
    Bundles,
    /// A fragment of the second map.
    Moved(Fragment),
    Root(RootName),
    /// The root of a snapshot.
    Pin(RootName),
    Fragment(FragmentId),
    Object(Object),
    Put(BundleId),
    Head(u64),
}

/// What the roots that are kept say, and has not been looked at.
#[derive(Default)]
pub(super) struct Kept {
    /// The roots of all their snapshots, in order: these are read one at a time.
    pins: BTreeSet<(u64, RootName)>,
    /// The fragments of each.
    fragments: VecDeque<Vec<Fragment>>,
    /// The root of a snapshot is being read.
    reading: bool,
}

/// What there is.
#[derive(Default)]
struct Inventory {
    /// With their bytes.
    segments: BTreeMap<u64, u64>,
    bundles: BTreeMap<BundleId, u64>,
    /// What the second map says.
    moved: BTreeMap<u64, Option<Bundle>>,
    /// The last segment that may be emptied.
    limit: u64,
}

#[derive(Default)]
enum Step {
    #[default]
    Idle,
    /// The map up to that segment is being written.
    Flushing(u64),
    /// It is being merged.
    Merging,
    /// All roots that are kept are to be of what the map is now.
    Renewing,
    Segments,
    Bundles,
    Moved(VecDeque<Fragment>),
    /// The roots that are kept are being read, the oldest first: those left, and what the others say.
    Roots(VecDeque<RootName>, Kept),
    Round(Box<Round>, Kept),
    /// Of segments of which nothing is named the headers are read.
    Heads {
        left: VecDeque<u64>,
        reading: usize,
    },
    /// The second map is being written.
    Writing,
}

/// The collector of a volume.
pub(super) struct Collect {
    volume: VolumeId,
    /// The second map.
    pub moved: Tree,
    step: Step,
    /// Answers to what was asked for an earlier one are not waited for.
    serial: u64,
    inventory: Inventory,
    next_bundle: u64,
    /// What is to be emptied next.
    chosen: Vec<Emptied>,
    /// Bytes stored and named as of the last count, and written since.
    stored: u64,
    named: u64,
    written: u64,
    /// Bytes stored when the last count ended, if this engine has counted.
    counted: Option<u64>,
    /// Bytes stored when the round began that empties something; otherwise as many as can be.
    emptying: u64,
    /// What nobody needs once the second map is written, with its bytes.
    given_up: Vec<(String, u64)>,
    /// Given up, and not deleted yet.
    condemned: BTreeSet<String>,
    /// Segments that engines began with, and what could not be emptied.
    stuck: BTreeSet<Object>,
    /// Bytes that were mapped when the last count ended.
    mapped: u64,
    /// Much may have become unnamed at once.
    recount: bool,
    /// There is work that waits for nothing.
    stepping: bool,
    /// Nothing is read or written before then.
    paused: Option<Time>,
}

impl Collect {
    pub fn new(config: &Config, volume: VolumeId) -> Collect {
        Collect {
            volume,
            moved: Tree::new(config.map, volume, 0, Levels::default()),
            step: Step::Idle,
            serial: 0,
            inventory: Inventory::default(),
            next_bundle: 1,
            chosen: Vec::new(),
            stored: 0,
            named: 0,
            written: 0,
            counted: None,
            emptying: 0,
            given_up: Vec::new(),
            condemned: BTreeSet::new(),
            stuck: BTreeSet::new(),
            mapped: 0,
            recount: false,
            stepping: false,
            paused: None,
        }
    }

    /// A segment of so many bytes has been applied.
    pub fn written(&mut self, bytes: u64) {
        self.written = self.written.saturating_add(bytes);
    }

    /// Snapshots are not there any more.
    pub fn recount(&mut self) {
        self.recount = true;
    }

    /// Whether segments of the volume may have been deleted by whoever wrote the newest root.
    pub fn may_have_deleted(&self) -> bool {
        self.stored > 0 || self.moved.levels().fragments().next().is_some()
    }

    /// As the next root is to have it.
    pub fn to_root(&self) -> Moved {
        let levels = self.moved.levels().clone();
        let stored_bytes = if self.stored > 0 { self.stored + self.written } else { 0 };
        Moved { levels, stored_bytes, named_bytes: self.named }
    }

    /// Bytes of all segments and bundles, and what is named of them, as far as it is known.
    pub fn space(&self) -> Option<(u64, u64)> {
        (self.stored > 0).then_some((self.stored + self.written, self.named))
    }

    /// Whether fragments of roots that are kept are being read: none may be deleted.
    pub fn is_reading(&self) -> bool {
        matches!(self.step, Step::Roots(..) | Step::Moved(_))
            || matches!(&self.step, Step::Round(round, _) if round.usage().is_none())
    }

    pub fn is_idle(&self) -> bool {
        matches!(self.step, Step::Idle)
    }

    /// What was begun comes to nothing.
    fn stop(&mut self) {
        self.step = Step::Idle;
        self.serial += 1;
        self.inventory = Inventory::default();
        self.chosen.clear();
        for (key, _) in self.given_up.drain(..) {
            self.condemned.remove(&key);
        }
        self.stepping = false;
    }

    /// An object has been deleted, or will be by who comes next.
    pub fn deleted(&mut self, key: &str) {
        self.condemned.remove(key);
    }

    /// Objects that may be emptied, and what the others take.
    fn sources(&self) -> (Vec<Emptied>, Vec<Source>, u64) {
        let Inventory { segments, bundles, moved, limit } = &self.inventory;
        let (mut objects, mut sources, mut fixed) = (Vec::new(), Vec::new(), 0);
        let mut add = |object, segments: Vec<u64>, bytes| {
            sources.push(Source { segments: segments.clone(), bytes });
            objects.push(Emptied { object, segments });
        };
        for (&number, &bytes) in segments {
            let object = Object::Segment(number);
            if moved.contains_key(&number) || self.is_condemned(object) {
                continue;
            }
            if number > *limit || self.stuck.contains(&object) {
                fixed += bytes;
            } else {
                add(object, vec![number], bytes);
            }
        }
        let mut inside: BTreeMap<BundleId, Vec<u64>> = BTreeMap::new();
        for (segment, bundle) in moved {
            if let Some(bundle) = bundle {
                inside.entry(bundle.id).or_default().push(*segment);
            }
        }
        for (id, segments) in inside {
            let Some(&bytes) = bundles.get(&id) else { continue };
            if self.stuck.contains(&Object::Bundle(id)) {
                fixed += bytes;
            } else {
                add(Object::Bundle(id), segments, bytes);
            }
        }
        (objects, sources, fixed)
    }

    fn key(&self, object: Object) -> String {
        match object {
            Object::Segment(number) => catalog::segment_key(self.volume, number),
            Object::Bundle(id) => catalog::bundle_key(id),
        }
    }

    fn is_condemned(&self, object: Object) -> bool {
        !self.condemned.is_empty() && self.condemned.contains(&self.key(object))
    }

    fn give_up(&mut self, object: Object) {
        let key = self.key(object);
        let bytes = match object {
            Object::Segment(number) => self.inventory.segments.remove(&number),
            Object::Bundle(id) => self.inventory.bundles.remove(&id),
        };
        if self.condemned.insert(key.clone()) {
            self.given_up.push((key, bytes.unwrap_or(0)));
        }
    }

    fn stick(&mut self, object: Object) {
        if self.stuck.len() < STUCK_MAX {
            self.stuck.insert(object);
        }
    }
}

impl Volume {
    /// The maps are those of a root.
    pub(super) fn adopt_moved(&mut self, moved: Moved) {
        let Moved { levels, stored_bytes, named_bytes } = moved;
        self.stop_collecting();
        let pages = &mut *self.config.pages.lock();
        self.collect.moved.adopt(levels, 0, pages);
        self.collect.moved.load(Table::new(), pages);
        let collect = &mut self.collect;
        (collect.stored, collect.named) = (stored_bytes, named_bytes);
        (collect.written, collect.counted) = (0, None);
        collect.condemned.clear();
    }

    /// Somebody else has the upkeep, or this engine begins to.
    pub(super) fn stop_collecting(&mut self) {
        self.collect.stop();
        let levels = self.collect.moved.levels().clone();
        let pages = &mut *self.config.pages.lock();
        // What moved and no root says so has not.
        self.collect.moved.adopt(levels, 0, pages);
        self.collect.moved.load(Table::new(), pages);
    }

    /// The upkeep is this engine's, in that generation.
    pub(super) fn own_moved(&mut self, generation: u64) {
        self.collect.moved.own(generation, moved::FIRST_FRAGMENT);
        self.collect.next_bundle = 1;
        self.collect.condemned.clear();
    }

    fn collects(&self) -> bool {
        self.config.collect.is_some()
            && matches!(self.phase, Phase::Running)
            && !self.shutting_down
            && self.upkeep.has_written()
    }

    /// Whether collecting is to begin.
    fn is_collecting_due(&self) -> bool {
        let Some(policy) = self.config.collect else { return false };
        if !self.collects() || !self.collect.is_idle() || self.is_root_due() {
            return false;
        }
        let collect = &self.collect;
        let mut stored = collect.stored.saturating_add(collect.written);
        if collect.stored == 0 && collect.counted.is_none() && self.spec.parents.is_empty() {
            // Nobody has counted, and what is mapped was written some time.
            stored = stored.max(self.tree.mapped_bytes());
        }
        let counted = collect.counted.unwrap_or(0);
        let grown = counted + counted / GROWN;
        // Discarded, or overwritten by a merge's account.
        let fallen = collect.mapped.saturating_sub(self.tree.mapped_bytes());
        let named = collect.named.saturating_sub(fallen);
        !collect.chosen.is_empty()
            || stored >= policy.least_bytes
                && (collect.recount
                    || (stored > grown || fallen > collect.mapped / GROWN)
                        && stored > named.saturating_mul(policy.high_percent) / 100)
    }

    /// Whether nothing is under way, and nothing is to begin.
    pub(super) fn collect_is_idle(&self) -> bool {
        self.shutting_down
            || self.collect.is_idle()
                && (!self.is_collecting_due() || self.collect.paused.is_some())
    }

    pub(super) fn collect_timeout(&self) -> Option<Time> {
        if !self.collects() {
            return None;
        }
        let step = self.collect.stepping.then_some(self.now);
        let wanted = !self.collect.is_idle() || self.is_collecting_due();
        let paused = self.collect.paused.filter(|_| wanted);
        [step, paused].into_iter().flatten().min()
    }

    /// Some of the work that waits for nothing.
    pub(super) fn collect_step(&mut self) {
        self.collect.paused.take_if(|until| *until <= self.now);
        if !self.collect.stepping || !self.collects() {
            return;
        }
        match &mut self.collect.step {
            Step::Round(round, _) => match round.step() {
                Ok(more) => self.collect.stepping = more,
                Err(error) => self.give_up_collecting("a fragment".into(), &error.to_string()),
            },
            Step::Writing => {
                let stepped = self.collect.moved.step(&mut self.config.pages.lock());
                self.collect.stepping = stepped.clone().unwrap_or(self.collect.moved.is_flushing());
                self.moved_outputs();
                let moved = &self.collect.moved;
                // A merge that found damage is tried again the next time.
                if moved.is_settled() || stepped.is_err() && !moved.is_flushing() {
                    self.moves_written();
                }
            }
            _ => self.collect.stepping = false,
        }
    }

    /// Begins whatever is next.
    pub(super) fn advance_collect(&mut self) {
        if !self.collects() {
            if self.shutting_down && !self.collect.is_idle() {
                self.stop_collecting();
            }
            return;
        }
        self.advance_merging();
        self.advance_round();
        if self.is_collecting_due() && self.collect.paused.is_none() {
            self.begin_collecting();
        }
    }

    fn ask(&mut self, ask: Ask, operation: ObjectOperation) {
        self.book.issue(Purpose::Collect(self.collect.serial, ask), operation);
    }

    fn ask_for(&mut self, ask: Ask, key: String, range: Option<std::ops::Range<u64>>) {
        self.ask(ask, ObjectOperation::Get { key, range, copies: Copies::Refused });
    }

    /// What the map hides of itself would be counted as named, and so would what the segments hide that no root knows:
    /// if that may be much, the map is written and merged before.
    fn begin_collecting(&mut self) {
        let uncertain = self.tree.uncertain_bytes() > self.tree.mapped_bytes() / HIDDEN;
        if uncertain && self.collect.chosen.is_empty() {
            self.collect.step = Step::Flushing(self.flush());
            return self.advance_merging();
        }
        self.begin_counting();
    }

    /// Goes on when the map is merged as far as it can be. That of a clone is not, as long as it has fragments of its
    /// parents in common with them.
    fn advance_merging(&mut self) {
        if matches!(self.collect.step, Step::Flushing(last) if self.upkeep.through() >= last) {
            self.collect.step = Step::Merging;
            let id = self.spec.id;
            if self.tree.levels().fragments().all(|fragment| fragment.id.volume == id) {
                self.compact();
            }
        }
        if matches!(self.collect.step, Step::Merging) && self.is_compacted() {
            self.collect.step = Step::Renewing;
            self.event(Event::Compacted);
            self.upkeep.renew_roots();
        }
        if matches!(self.collect.step, Step::Renewing) && !self.upkeep.is_renewing() {
            self.begin_counting();
        }
    }

    fn begin_counting(&mut self) {
        self.collect.serial += 1;
        (self.collect.written, self.collect.recount) = (0, false);
        let limit = self.upkeep.oldest_kept();
        self.collect.inventory = Inventory { limit, ..Inventory::default() };
        self.collect.step = Step::Segments;
        let prefix = catalog::segment_prefix(self.spec.id);
        self.ask(Ask::Segments, ObjectOperation::List { prefix });
    }

    /// Something could not be read: nothing is known, and nothing given up.
    fn give_up_collecting(&mut self, key: String, error: &str) {
        self.stop_collecting();
        self.collect.paused = Some(self.now.after(PAUSE));
        self.collect.recount = true;
        self.event(Event::Retry { key, error: error.to_owned(), failures: 1 });
    }

    /// What came of something that was asked for.
    pub(super) fn collected(&mut self, serial: u64, ask: Ask, key: String, outcome: Outcome) {
        if serial != self.collect.serial {
            return;
        }
        let data = match outcome {
            Outcome::List(list) => return self.collect_listed(&ask, &list),
            Outcome::Data(data) => Some(data),
            Outcome::NotFound => None,
            Outcome::Done | Outcome::Exists => {
                if let (Ask::Put(id), Step::Round(round, _)) = (ask, &mut self.collect.step) {
                    round.handle_put(id);
                    self.collect.stepping = true;
                }
                return;
            }
        };
        let done = match (ask, data, &mut self.collect.step) {
            (Ask::Moved(fragment), Some(data), Step::Moved(_)) => {
                let taken = self.take_moved(&fragment, &data);
                taken.map_err(|error| (key.clone(), error.to_string()))
            }
            (Ask::Root(name), Some(data), Step::Roots(..)) => match self.parse_root(name, &data) {
                Some(root) => {
                    if let Step::Roots(_, kept) = &mut self.collect.step {
                        kept.fragments.push_back(root.levels.fragments().copied().collect());
                        kept.pins.extend(root.pins);
                    }
                    self.next_root();
                    Ok(())
                }
                None => Err((key.clone(), "it is damaged".to_owned())),
            },
            (Ask::Pin(name), data @ Some(_), Step::Round(..)) => match self.parse_pin(name, data) {
                Some(pin) => {
                    if let Step::Round(round, kept) = &mut self.collect.step {
                        kept.reading = false;
                        round.handle_root(pin.levels.fragments().copied());
                        self.collect.stepping = true;
                    }
                    Ok(())
                }
                None => Err((key.clone(), "it is damaged".to_owned())),
            },
            (Ask::Fragment(id), Some(data), Step::Round(round, _)) => {
                self.collect.stepping = true;
                round.handle_fragment(id, data).map_err(|error| (key.clone(), error.to_string()))
            }
            (Ask::Object(object), Some(data), Step::Round(..)) => {
                self.object_to_empty(object, data);
                Ok(())
            }
            (Ask::Head(number), data, Step::Heads { .. }) => {
                self.head_read(number, data);
                Ok(())
            }
            (_, Some(_), _) => Ok(()),
            (ask, None, _) => {
                // A store that has taken over may have deleted it.
                self.upkeep.suspect();
                if let Ask::Object(object) = ask {
                    self.collect.stick(object);
                }
                Err((key.clone(), "it is not there".to_owned()))
            }
        };
        if let Err((key, error)) = done {
            self.give_up_collecting(key, &error);
        }
    }

    fn collect_listed(&mut self, ask: &Ask, list: &[ObjectMeta]) {
        let id = self.spec.id;
        match (ask, &self.collect.step) {
            (Ask::Segments, Step::Segments) => {
                let prefix = catalog::segment_prefix(id);
                let found = list.iter().filter_map(|meta| {
                    Some((catalog::parse_number(&prefix, &meta.key)?, meta.bytes))
                });
                self.collect.inventory.segments = found.collect();
                self.collect.step = Step::Bundles;
                let prefix = catalog::bundle_prefix(id);
                self.ask(Ask::Bundles, ObjectOperation::List { prefix });
            }
            (Ask::Bundles, Step::Bundles) => {
                let found = list.iter().filter_map(|meta| {
                    Some((catalog::parse_bundle_key(id, &meta.key)?, meta.bytes))
                });
                self.collect.inventory.bundles = found.collect();
                // The oldest first, so that the newest entry is the last.
                let levels = self.collect.moved.levels();
                let runs = levels.runs().iter().chain(levels.sorted());
                let fragments = runs.rev().flatten().copied().collect();
                self.collect.step = Step::Moved(fragments);
                self.next_moved();
            }
            _ => {}
        }
    }

    fn next_moved(&mut self) {
        let Step::Moved(fragments) = &mut self.collect.step else { return };
        if let Some(fragment) = fragments.pop_front() {
            let key = catalog::fragment_key(fragment.id);
            return self.ask_for(Ask::Moved(fragment), key, None);
        }
        self.give_up_garbage();
        let names = self.upkeep.kept_roots();
        self.collect.step = Step::Roots(names.into(), Kept::default());
        self.next_root();
    }

    fn take_moved(&mut self, named: &Fragment, object: &Bytes) -> Result<(), MapError> {
        if Fragment::verify(object)? != *named {
            return Err(MapError::Invalid("it is another one than the root names"));
        }
        let range = named.index_range();
        let bytes = object.slice(range.start as usize..range.end as usize);
        let index = fragment::Index::new(named, bytes)?;
        let moved = &mut self.collect.inventory.moved;
        for page in 0..index.pages() {
            let range = index.range(page);
            let bytes = &object[range.start as usize..range.end as usize];
            for entry in index.verified_entries(page, bytes)? {
                let Entry { range, place } = entry?;
                let bundle = place.map(|place| moved::bundle_at(self.spec.id, place));
                for segment in range.lba..range.end() {
                    moved.insert(segment, bundle);
                }
            }
        }
        self.next_moved();
        Ok(())
    }

    /// Segments that have moved, and bundles that nothing is in: what a store that was cut short has left over.
    fn give_up_garbage(&mut self) {
        let Inventory { segments, bundles, moved, .. } = &self.collect.inventory;
        let named: BTreeSet<BundleId> = moved.values().flatten().map(|bundle| bundle.id).collect();
        let bundles = bundles.keys().filter(|id| !named.contains(id)).copied();
        let mut garbage: Vec<Object> = bundles.map(Object::Bundle).collect();
        let segments = segments.keys().filter(|number| moved.contains_key(number));
        garbage.extend(segments.copied().map(Object::Segment));
        for object in garbage {
            if !self.collect.stuck.contains(&object) {
                self.collect.give_up(object);
            }
        }
    }

    /// Reads the next of the roots that are kept, or begins the round.
    fn next_root(&mut self) {
        let Step::Roots(names, kept) = &mut self.collect.step else { return };
        if let Some(name) = names.pop_front() {
            let key = catalog::root_key(self.spec.id, name);
            return self.ask_for(Ask::Root(name), key, None);
        }
        let kept = std::mem::take(kept);
        let generation = self.upkeep.generation().unwrap_or(0);
        let (objects, ..) = self.collect.sources();
        let chosen = std::mem::take(&mut self.collect.chosen);
        let known: BTreeMap<Object, &Emptied> =
            objects.iter().map(|each| (each.object, each)).collect();
        let same = |each: &Emptied| known.get(&each.object).is_some_and(|known| *known == each);
        let emptied: Vec<Emptied> = chosen.into_iter().filter(same).collect();
        self.collect.emptying = if emptied.is_empty() { u64::MAX } else { self.collect.stored };
        let bundles = (generation, self.collect.next_bundle);
        // What a clone has of its parents is theirs to collect.
        let segments = (self.spec.begins_after(), self.collect.inventory.limit);
        let bytes = self.config.segment_bytes;
        let round = Round::new(self.spec.id, bundles, bytes, segments, emptied);
        self.collect.step = Step::Round(Box::new(round), kept);
        self.collect.stepping = true;
    }

    /// Goes on with a round: asks for what it wants, as long as nobody else waits.
    fn advance_round(&mut self) {
        loop {
            let held = self.collect.paused.is_some() || self.reads.waiting() > 0;
            let Step::Round(round, kept) = &mut self.collect.step else { return };
            if let Some(event) = round.poll_event() {
                self.round_event(event);
                continue;
            }
            if round.is_done() {
                return self.round_done();
            }
            if held || kept.reading {
                return;
            }
            if round.wants_root() {
                // Snapshots are older than what is kept, or as old as it: the order is that of their segments.
                if let Some((_, name)) = kept.pins.pop_first() {
                    kept.reading = true;
                    let key = catalog::pin_key(self.spec.id, name);
                    return self.ask_for(Ask::Pin(name), key, None);
                }
                match kept.fragments.pop_front() {
                    Some(fragments) => round.handle_root(fragments),
                    None => round.end_roots(),
                }
                self.collect.stepping = true;
                continue;
            }
            let Some(output) = round.poll() else { return };
            self.collect.next_bundle = round.next();
            let bytes = match &output {
                round::Output::ReadFragment(fragment) => fragment.bytes(),
                round::Output::ReadObject(Object::Segment(number)) => {
                    self.collect.inventory.segments.get(number).copied().unwrap_or(0)
                }
                round::Output::ReadObject(Object::Bundle(id)) => {
                    self.collect.inventory.bundles.get(id).copied().unwrap_or(0)
                }
                round::Output::Put(_, data) => data.iter().map(|part| part.len() as u64).sum(),
            };
            let rate = self.config.collect.map_or(0, |policy| policy.bytes_per_second);
            if rate > 0 {
                let pause = Duration::from_nanos(
                    (u128::from(bytes) * 1_000_000_000 / u128::from(rate)) as u64,
                );
                self.collect.paused = Some(self.now.after(pause));
            }
            match output {
                round::Output::ReadFragment(fragment) => {
                    let key = catalog::fragment_key(fragment.id);
                    self.ask_for(Ask::Fragment(fragment.id), key, None);
                }
                round::Output::ReadObject(object) => {
                    let key = self.collect.key(object);
                    self.ask_for(Ask::Object(object), key, None);
                }
                round::Output::Put(id, data) => {
                    let key = catalog::bundle_key(id);
                    self.ask(Ask::Put(id), ObjectOperation::Put { key, data });
                }
            }
        }
    }

    fn object_to_empty(&mut self, object: Object, data: Bytes) {
        let result = match object {
            Object::Segment(number) => {
                self.may_go(number, &data).map(|()| data).map_err(str::to_owned)
            }
            Object::Bundle(_) => Ok(data),
        };
        if let Step::Round(round, _) = &mut self.collect.step {
            round.handle_object(object, result);
            self.collect.stepping = true;
        }
    }

    /// Whether a segment may be deleted one day.
    fn may_go(&mut self, number: u64, data: &[u8]) -> Result<(), &'static str> {
        match segment::parse_header(data) {
            Ok((header, _)) if (header.volume, header.number) != (self.spec.id, number) => {
                Err("it is another segment")
            }
            Ok((header, _)) if header.token.begins() => {
                self.collect.stick(Object::Segment(number));
                Err("an engine began with it")
            }
            Ok(_) => Ok(()),
            Err(_) => Err("its header is damaged"),
        }
    }

    /// All is counted, and what was chosen before is moved.
    fn round_done(&mut self) {
        let Step::Round(round, _) = std::mem::take(&mut self.collect.step) else { return };
        let (Some(policy), Some(usage)) = (self.config.collect, round.usage()) else {
            return self.collect.stop();
        };
        let (objects, sources, fixed) = self.collect.sources();
        let fixed = Fixed { stored_bytes: fixed, named_bytes: fixed };
        let choice = choose(&sources, usage, &policy, fixed);
        let mut heads = VecDeque::new();
        for number in choice.unnamed {
            let Emptied { object, segments } = &objects[number];
            match object {
                Object::Segment(segment) => heads.push_back(*segment),
                Object::Bundle(_) => {
                    self.collect.inventory.moved.extend(segments.iter().map(|each| (*each, None)));
                    self.note_moved(segments, None);
                    self.collect.give_up(*object);
                }
            }
        }
        // A round that gave hardly anything back is not followed by another.
        let before = std::mem::take(&mut self.collect.emptying);
        if choice.stored_bytes < before - before / LEAST {
            let chosen = choice.moved.into_iter().map(|number| objects[number].clone());
            self.collect.chosen = chosen.collect();
        }
        self.collect.stored = choice.stored_bytes;
        self.collect.named = choice.named_bytes;
        self.event(Event::Counted {
            stored_bytes: choice.stored_bytes,
            named_bytes: choice.named_bytes,
        });
        self.collect.step = Step::Heads { left: heads, reading: 0 };
        self.next_heads();
    }
}

impl Volume {
    fn round_event(&mut self, event: round::Event) {
        match event {
            round::Event::Moved { bundle, segments, bytes } => {
                let inventory = &mut self.collect.inventory;
                inventory.bundles.insert(bundle.id, bytes);
                inventory.moved.extend(segments.iter().map(|each| (*each, Some(bundle))));
                self.note_moved(&segments, Some(&bundle));
                let segments = segments.len() as u64;
                self.event(Event::Moved { segments, bytes });
            }
            round::Event::Unnamed(segments) => {
                let inventory = &mut self.collect.inventory;
                inventory.moved.extend(segments.iter().map(|each| (*each, None)));
                self.note_moved(&segments, None);
            }
            round::Event::Emptied(object) => self.collect.give_up(object),
            round::Event::Damaged(object, reason) => {
                if !self.collect.stuck.contains(&object) {
                    self.collect.stick(object);
                    self.event(Event::NotCollected { key: self.collect.key(object), reason });
                }
            }
        }
    }
}
