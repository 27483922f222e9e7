//! The segments and bundles of a volume: the moved ones, the ones to empty, and the ones to give
//! up.

use crate::block::VolumeId;
use crate::store::catalog;
use crate::store::gc::bundle::{Bundle, BundleId};
use crate::store::gc::moved;
use crate::store::gc::round::{Emptied, Object};
use crate::store::gc::usage::Source;
use crate::store::map::MapError;
use crate::store::map::fragment::{self, Fragment};
use crate::store::map::page::MapEntry;
use crate::store::object::ObjectMeta;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// Objects that the inventory remembers as unmovable.
const STUCK_MAX: usize = 1 << 16;

/// The objects of a count and of the moves after it, and the facts that outlive a count.
pub(super) struct Inventory {
    volume: VolumeId,
    /// With their bytes.
    segments: BTreeMap<u64, u64>,
    bundles: BTreeMap<BundleId, u64>,
    /// The entries of the second map.
    moved: BTreeMap<u64, Option<Bundle>>,
    /// The last segment that the collector may empty.
    limit: u64,
    /// Objects, with their bytes, that no reader needs once the second map exists.
    given_up: Vec<(String, u64)>,
    /// Given up, and not deleted yet.
    condemned: BTreeSet<String>,
    /// The first segments of engines, and the unmovable objects.
    stuck: BTreeSet<Object>,
}

/// The input of a choice.
pub(super) struct Candidates {
    /// Objects that the collector may empty.
    pub objects: Vec<Emptied>,
    /// The bytes of each of them.
    pub sources: Vec<Source>,
    /// Bytes of all others.
    pub fixed: u64,
}

impl Inventory {
    pub fn new(volume: VolumeId) -> Inventory {
        Inventory {
            volume,
            segments: BTreeMap::new(),
            bundles: BTreeMap::new(),
            moved: BTreeMap::new(),
            limit: 0,
            given_up: Vec::new(),
            condemned: BTreeSet::new(),
            stuck: BTreeSet::new(),
        }
    }

    /// A count begins: the collector may empty segments up to `limit`.
    pub fn begin(&mut self, limit: u64) {
        self.clear();
        self.limit = limit;
    }

    /// Forgets all objects.
    pub fn clear(&mut self) {
        self.segments.clear();
        self.bundles.clear();
        self.moved.clear();
        self.limit = 0;
    }

    /// Keeps the objects that the collector wanted to give up.
    pub fn reprieve(&mut self) {
        for (key, _) in self.given_up.drain(..) {
            self.condemned.remove(&key);
        }
    }

    /// The last segment that the collector may empty.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    pub fn segments_listed(&mut self, list: &[ObjectMeta]) {
        let prefix = catalog::segment_prefix(self.volume);
        let found = list
            .iter()
            .filter_map(|meta| Some((catalog::parse_number(&prefix, &meta.key)?, meta.bytes)));
        self.segments = found.collect();
    }

    pub fn bundles_listed(&mut self, list: &[ObjectMeta]) {
        let found = list.iter().filter_map(|meta| {
            Some((catalog::parse_bundle_key(self.volume, &meta.key)?, meta.bytes))
        });
        self.bundles = found.collect();
    }

    /// Takes a fragment of the second map. Of entries about one segment the last one counts.
    pub fn take_moved(&mut self, named: &Fragment, object: &Bytes) -> Result<(), MapError> {
        if Fragment::verify(object)? != *named {
            return Err(MapError::Invalid("it is another one than the root names"));
        }
        let range = named.index_range();
        let bytes = object.slice(range.start as usize..range.end as usize);
        let index = fragment::Index::new(named, bytes)?;
        for page in 0..index.pages() {
            let range = index.range(page);
            let bytes = &object[range.start as usize..range.end as usize];
            for entry in index.verified_entries(page, bytes)? {
                let MapEntry { range, place } = entry?;
                let bundle = place.map(|place| moved::bundle_at(self.volume, place));
                for segment in range.lba..range.end() {
                    self.moved.insert(segment, bundle);
                }
            }
        }
        Ok(())
    }

    /// These segments are in that bundle now, or nowhere.
    pub fn note_moved(&mut self, segments: &[u64], bundle: Option<Bundle>) {
        self.moved.extend(segments.iter().map(|each| (*each, bundle)));
    }

    /// A bundle of `bytes` bytes exists.
    pub fn add_bundle(&mut self, id: BundleId, bytes: u64) {
        self.bundles.insert(id, bytes);
    }

    pub fn bytes_of(&self, object: Object) -> u64 {
        let bytes = match object {
            Object::Segment(number) => self.segments.get(&number),
            Object::Bundle(id) => self.bundles.get(&id),
        };
        bytes.copied().unwrap_or(0)
    }

    pub fn key(&self, object: Object) -> String {
        match object {
            Object::Segment(number) => catalog::segment_key(self.volume, number),
            Object::Bundle(id) => catalog::bundle_key(id),
        }
    }

    /// Gives up moved segments and empty bundles: leftovers of a store that stopped halfway.
    pub fn give_up_garbage(&mut self) {
        let Inventory { segments, bundles, moved, .. } = &*self;
        let named: BTreeSet<BundleId> = moved.values().flatten().map(|bundle| bundle.id).collect();
        let bundles = bundles.keys().filter(|id| !named.contains(id)).copied();
        let mut garbage: Vec<Object> = bundles.map(Object::Bundle).collect();
        let segments = segments.keys().filter(|number| moved.contains_key(number));
        garbage.extend(segments.copied().map(Object::Segment));
        for object in garbage {
            if !self.stuck.contains(&object) {
                self.give_up(object);
            }
        }
    }

    /// No reader needs the object once the second map exists.
    pub fn give_up(&mut self, object: Object) {
        let key = self.key(object);
        let bytes = match object {
            Object::Segment(number) => self.segments.remove(&number),
            Object::Bundle(id) => self.bundles.remove(&id),
        };
        if self.condemned.insert(key.clone()) {
            self.given_up.push((key, bytes.unwrap_or(0)));
        }
    }

    /// The second map exists: returns the given-up objects, with their bytes.
    pub fn take_given_up(&mut self) -> Vec<(String, u64)> {
        std::mem::take(&mut self.given_up)
    }

    /// The engine has deleted an object, or its successor will.
    pub fn deleted(&mut self, key: &str) {
        self.condemned.remove(key);
    }

    /// Another engine decides which objects to delete.
    pub fn forget_condemned(&mut self) {
        self.condemned.clear();
    }

    /// The collector cannot empty the object. Returns whether that is new.
    pub fn stick(&mut self, object: Object) -> bool {
        let new = !self.stuck.contains(&object);
        if self.stuck.len() < STUCK_MAX {
            self.stuck.insert(object);
        }
        new
    }

    fn is_condemned(&self, object: Object) -> bool {
        !self.condemned.is_empty() && self.condemned.contains(&self.key(object))
    }

    /// Objects that the collector may empty, and the bytes of the others.
    pub fn candidates(&self) -> Candidates {
        let (mut objects, mut sources, mut fixed) = (Vec::new(), Vec::new(), 0);
        let mut add = |object, segments: Vec<u64>, bytes| {
            sources.push(Source { segments: segments.clone(), bytes });
            objects.push(Emptied { object, segments });
        };
        for (&number, &bytes) in &self.segments {
            let object = Object::Segment(number);
            if self.moved.contains_key(&number) || self.is_condemned(object) {
                continue;
            }
            if number > self.limit || self.stuck.contains(&object) {
                fixed += bytes;
            } else {
                add(object, vec![number], bytes);
            }
        }
        let mut inside: BTreeMap<BundleId, Vec<u64>> = BTreeMap::new();
        for (segment, bundle) in &self.moved {
            if let Some(bundle) = bundle {
                inside.entry(bundle.id).or_default().push(*segment);
            }
        }
        for (id, segments) in inside {
            let Some(&bytes) = self.bundles.get(&id) else { continue };
            if self.stuck.contains(&Object::Bundle(id)) {
                fixed += bytes;
            } else {
                add(Object::Bundle(id), segments, bytes);
            }
        }
        Candidates { objects, sources, fixed }
    }
}
