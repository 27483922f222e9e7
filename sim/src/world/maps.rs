//! The objects of a volume's map, as an independent reader sees them: sector by sector.
//!
//! A root names only existing objects. For every sector it agrees with the segments up to its own.
//! No store ever deletes objects that the newest root names, or that the one before it needs. These
//! include segments to replay.

use super::World;
use super::announced::still;
use crate::model::{Image, Stamp, stamp};
use crate::note;
use bytes::Bytes;
use longhaul_core::block::{Range, SECTOR_BYTES, Seq};
use longhaul_core::extent::Extent;
use longhaul_core::record;
use longhaul_core::store::catalog::{self, RootName};
use longhaul_core::store::gc::bundle::{Bundle, BundleId, Head, Index as BundleIndex};
use longhaul_core::store::gc::moved;
use longhaul_core::store::log::LogState;
use longhaul_core::store::map::Place;
use longhaul_core::store::map::fragment::{Fragment, FragmentId, Index};
use longhaul_core::store::map::levels::Levels;
use longhaul_core::store::map::page::MapEntry;
use longhaul_core::store::root::{self, Root};
use longhaul_core::store::segment::{Segment, SegmentKind};
use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, BTreeSet};

/// The content of the map, by the segments.
#[derive(Debug, Default)]
pub struct Said {
    /// For each segment, in order.
    segments: Vec<Vec<(Range, Option<Place>)>>,
    /// The last number committed with each.
    committed: Vec<Seq>,
    /// Those that rolled back, and to which.
    rolled_back: BTreeMap<u64, u64>,
    /// The maps after those that took snapshots.
    taken: BTreeMap<u64, Vec<Option<Place>>>,
    /// The map after some segment.
    after: usize,
    map: Vec<Option<Place>>,
}

fn paint(map: &mut Vec<Option<Place>>, range: Range, place: Option<Place>) {
    if map.len() < range.end() as usize {
        map.resize(range.end() as usize, None);
    }
    for n in 0..range.sectors {
        map[(range.lba + n) as usize] = Extent::skip(&place, n);
    }
}

impl Said {
    /// The next segment exists.
    pub fn push(&mut self, segment: &Segment) {
        let number = segment.header.number;
        // Void numbers say nothing.
        self.segments.resize(number as usize - 1, Vec::new());
        self.committed.resize(number as usize - 1, segment.header.first - 1);
        let pieces = segment.footer.pieces.iter();
        self.segments.push(pieces.map(|piece| (piece.range, Place::of(number, piece))).collect());
        self.committed.push(segment.header.last);
        match (segment.header.kind, &segment.footer.note) {
            (SegmentKind::Rollback, Some(note)) => {
                self.rolled_back.insert(number, note.segment);
            }
            (SegmentKind::Snapshot, _) => {
                self.taken.insert(number, Vec::new());
            }
            _ => {}
        }
    }

    /// The map after that segment, and the last number committed.
    fn after(&mut self, segment: u64) -> Option<(&[Option<Place>], Seq)> {
        let segment = segment as usize;
        if segment < self.after {
            (self.after, self.map) = (0, Vec::new());
        }
        while self.after < segment {
            for (range, place) in self.segments.get(self.after)? {
                paint(&mut self.map, *range, *place);
            }
            self.after += 1;
            let number = self.after as u64;
            if let Some(from) = self.rolled_back.get(&number) {
                self.map.clone_from(self.taken.get(from)?);
            }
            if let Some(taken) = self.taken.get_mut(&number) {
                taken.clone_from(&self.map);
            }
        }
        Some((&self.map, *self.committed.get(segment.checked_sub(1)?)?))
    }
}

impl World {
    /// A put of an object that belongs to a map took effect; false if it is none.
    pub(super) fn map_object_created(&mut self, volume: usize, key: &str, object: &Bytes) -> bool {
        let id = self.volumes[volume].id;
        if catalog::parse_number(&catalog::owner_prefix(id), key).is_some() {
            self.coverage.claims += 1;
        } else if catalog::parse_fragment_key(id, key).is_some() {
            let verified = Fragment::verify(object).map_err(|e| format!("fragment {key}: {e}"));
            self.require(verified.map(|_| ()));
        } else if let Some(name) = catalog::parse_root_key(&catalog::root_prefix(id), key) {
            self.coverage.roots += 1;
            let checked = self.root_created(volume, name, object);
            self.require(checked.map_err(|e| format!("root {key}: {e}")));
        } else if let Some(bundle) = catalog::parse_bundle_key(id, key) {
            self.coverage.bundles += 1;
            let head = Head::parse(object).map_err(|e| format!("bundle {key}: {e}"));
            self.require(head.and_then(|head| {
                let whole = (head.id, head.bytes()) == (bundle, object.len() as u64);
                if whole { Ok(()) } else { Err(format!("bundle {key} is not what its name says")) }
            }));
        } else if catalog::parse_pin_key(&catalog::pin_prefix(id), key).is_some() {
            // The check of its content comes when a root names it.
        } else {
            return false;
        }
        true
    }

    fn root_created(
        &mut self,
        volume: usize,
        name: RootName,
        object: &Bytes,
    ) -> Result<(), String> {
        let spec = &self.volumes[volume].spec;
        let root = root::parse(spec, object, 1000).map_err(|e| e.to_string())?;
        let Root { generation, state, levels, pins, moved } = root;
        if (generation, state.number) != (name.generation, name.segment) {
            return Err("it is not what its name says".to_owned());
        }
        // If there is a newer one, nobody reads this root any more, and its objects may be gone. An
        // overtaken store put it, or a late put brings back a deleted root.
        if self.newest_root(volume).is_some_and(|newest| newest > name) {
            self.coverage.roots_outdated += 1;
            return Ok(());
        }
        note!(
            self,
            "v{volume} root {name:?}: {:?}",
            levels.runs().iter().chain(levels.sorted()).map(Vec::len).collect::<Vec<_>>()
        );
        self.coverage.map_levels = self.coverage.map_levels.max(levels.sorted().len() as u64);
        let moves = self.moves(volume, &moved.levels)?;
        let map = self.check_map(volume, &state, &levels)?;
        self.image(volume, &map, &moves)?;
        self.check_pins(volume, &state, &pins, &moves)?;
        let truth = &mut self.volumes[volume].truth;
        truth.moves = moves;
        if state.number == truth.segments {
            // It is of after the segment: its host may have said since that less is outstanding.
            let (said, _) = state.announced.snapshot(state.committed, 1000);
            truth.announced = still(&truth.announced, &said);
        }
        truth.roots.push(name);
        if truth.roots.len() > 2 {
            truth.roots.remove(0);
        }
        Ok(())
    }

    /// Checks that these levels agree with the segments up to that state.
    pub(super) fn check_map(
        &mut self,
        volume: usize,
        state: &LogState,
        levels: &Levels,
    ) -> Result<Vec<Option<Place>>, String> {
        let map = self.painted(levels)?;
        let said = &mut self.volumes[volume].truth.said;
        let Some((expected, committed)) = said.after(state.number) else {
            return Err("it is of a segment that is not there".to_owned());
        };
        if state.committed != committed {
            return Err(format!("it says that {} is committed, not {committed}", state.committed));
        }
        let at = |map: &[Option<Place>], lba: usize| map.get(lba).copied().flatten();
        for lba in 0..map.len().max(expected.len()) {
            let (found, expected) = (at(&map, lba), at(expected, lba));
            if found != expected {
                return Err(format!("sector {lba} lies in {found:?}, not in {expected:?}"));
            }
        }
        Ok(map)
    }

    /// The content of fragments, sector by sector.
    fn painted(&self, levels: &Levels) -> Result<Vec<Option<Place>>, String> {
        let mut map = Vec::new();
        self.entries(levels, |entry| paint(&mut map, entry.range, entry.place))?;
        Ok(map)
    }

    /// The entries of fragments, those that count last.
    fn entries(&self, levels: &Levels, mut take: impl FnMut(MapEntry)) -> Result<(), String> {
        let runs = levels.runs().iter().chain(levels.sorted());
        for fragment in runs.rev().flatten() {
            let key = catalog::fragment_key(fragment.id);
            let Some(object) = self.objects.map.get(&key) else {
                return Err(format!("it names {key}, which is not there"));
            };
            if Fragment::verify(object) != Ok(*fragment) {
                return Err(format!("{key} is not what it says"));
            }
            let range = fragment.index_range();
            let index = object.slice(range.start as usize..range.end as usize);
            let index = Index::new(fragment, index).map_err(|e| e.to_string())?;
            for page in 0..index.pages() {
                let range = index.range(page);
                let bytes = &object[range.start as usize..range.end as usize];
                for entry in index.entries(page, bytes).map_err(|e| e.to_string())? {
                    take(entry.map_err(|e| e.to_string())?);
                }
            }
        }
        Ok(())
    }

    /// The content of the second map of a root.
    fn moves(&self, volume: usize, levels: &Levels) -> Result<BTreeMap<u64, Bundle>, String> {
        let id = self.volumes[volume].id;
        let mut moves = BTreeMap::new();
        self.entries(levels, |MapEntry { range, place }| {
            for segment in range.lba..range.end() {
                match place {
                    Some(place) => moves.insert(segment, moved::bundle_at(id, place)),
                    None => moves.remove(&segment),
                };
            }
        })?;
        Ok(moves)
    }

    /// The content of the volume by a map, read from the objects that it names.
    pub(super) fn image(
        &self,
        volume: usize,
        map: &[Option<Place>],
        moves: &BTreeMap<u64, Bundle>,
    ) -> Result<Image, String> {
        let id = self.volumes[volume].id;
        let mut packer = self.packer(volume);
        let mut image = Vec::with_capacity(map.len());
        let mut indexes: BTreeMap<BundleId, BundleIndex> = BTreeMap::new();
        for (lba, place) in map.iter().enumerate() {
            let Some(place) = place.filter(|place| !place.is_zero()) else {
                image.push(Stamp::default());
                continue;
            };
            let lba = lba as u64;
            let moved = moves.get(&place.segment()).filter(|_| !place.is_staged());
            let (key, place) = match moved {
                None => (catalog::data_key(id, place.segment()), place),
                Some(bundle) => {
                    let key = catalog::bundle_key(bundle.id);
                    let object = self.objects.map.get(&key);
                    let object = object.ok_or_else(|| format!("{key} is not there"))?;
                    let index = match indexes.entry(bundle.id) {
                        Slot::Occupied(index) => index.into_mut(),
                        Slot::Vacant(slot) => {
                            slot.insert(bundle.index(object).map_err(|e| format!("{key}: {e}"))?)
                        }
                    };
                    let found = index.find(place, 1);
                    let found = found.ok_or_else(|| format!("{key} does not have {place:?}"))?;
                    (key, found)
                }
            };
            let object = self.objects.map.get(&key);
            let object = object.ok_or_else(|| format!("sector {lba}: {key} is not there"))?;
            let bytes = object.slice(place.offset() as usize..);
            let found = record::parse(id, &bytes).map_err(|e| format!("{key} {place:?}: {e}"))?;
            let header = found.header;
            if (header.seq, header.range) != (place.seq(), place.record(lba)) {
                return Err(format!("sector {lba}: {key} has {header:?} for {place:?}"));
            }
            let sector = Range::new(lba, 1);
            let data = if header.kind == record::Kind::Packed {
                packer.unpack(&bytes, sector).map_err(|e| format!("{key} {place:?}: {e}"))?
            } else {
                let at = ((lba - header.range.lba) * SECTOR_BYTES) as usize;
                found.data.payload.slice(at..at + SECTOR_BYTES as usize)
            };
            image.push(stamp(&data)?);
        }
        Ok(image)
    }

    /// The content of the volume by the newest root, and its segment.
    pub(super) fn image_of_root(&self, volume: usize) -> Result<Option<(Image, u64)>, String> {
        let Some(name) = self.newest_root(volume) else { return Ok(None) };
        let root = self.root(volume, &catalog::root_key(self.volumes[volume].id, name))?;
        let map = self.painted(&root.levels)?;
        let moves = self.moves(volume, &root.moved.levels)?;
        Ok(Some((self.image(volume, &map, &moves)?, name.segment)))
    }

    /// The objects with data that a root needs, and the roots of snapshots that it names.
    fn needed(&self, volume: usize, name: RootName) -> Result<BTreeSet<String>, String> {
        let id = self.volumes[volume].id;
        let root = self.root(volume, &catalog::root_key(id, name))?;
        let moves = self.moves(volume, &root.moved.levels)?;
        let mut needed = BTreeSet::new();
        let mut need = |map: Vec<Option<Place>>| {
            for place in map.into_iter().flatten().filter(|place| !place.is_zero()) {
                needed.insert(match moves.get(&place.segment()) {
                    Some(bundle) if !place.is_staged() => catalog::bundle_key(bundle.id),
                    _ => catalog::data_key(id, place.segment()),
                });
            }
        };
        need(self.painted(&root.levels)?);
        for pin in root.pins.values() {
            let pin = self.root(volume, &catalog::pin_key(id, *pin))?;
            need(self.painted(&pin.levels)?);
        }
        Ok(needed)
    }

    /// Whether a store may delete an object with data: none of the last two roots needs it, for its
    /// data or for a replay.
    fn may_delete_data(&mut self, volume: usize, key: &str) -> Result<(), String> {
        let id = self.volumes[volume].id;
        let roots = self.volumes[volume].truth.roots.clone();
        let newest = *roots.last().ok_or("there is no root")?;
        // A root of another generation keeps nothing any more.
        for &name in roots.iter().filter(|name| name.generation == newest.generation) {
            let what = catalog::root_key(id, name);
            if !self.volumes[volume].truth.needed.contains_key(&name) {
                let needed = self.needed(volume, name)?;
                let known = &mut self.volumes[volume].truth.needed;
                known.retain(|other, _| roots.contains(other));
                known.insert(name, needed);
            }
            if self.volumes[volume].truth.needed[&name].contains(key) {
                return Err(format!("{what} needs it"));
            }
            let number = catalog::parse_number(&catalog::segment_prefix(id), key);
            if number.is_some_and(|number| number > name.segment) {
                return Err(format!("{what} is of a segment before it"));
            }
        }
        if let Some(number) = catalog::parse_number(&catalog::segment_prefix(id), key) {
            self.coverage.segments_deleted += 1;
            self.volumes[volume].truth.deleted.insert(number);
        }
        Ok(())
    }

    /// The root that a store would open.
    fn newest_root(&self, volume: usize) -> Option<RootName> {
        let prefix = catalog::root_prefix(self.volumes[volume].id);
        let (key, _) = self.objects.list(&prefix).pop()?;
        catalog::parse_root_key(&prefix, &key)
    }

    /// A store is about to delete an object.
    pub(super) fn object_deleted(&mut self, volume: usize, key: &str) {
        if !self.objects.map.contains_key(key) {
            return;
        }
        let checked = self.may_delete(volume, key);
        self.coverage.map_deletes += 1;
        self.require(checked.map_err(|e| format!("{key} is deleted: {e}")));
    }

    fn may_delete(&mut self, volume: usize, key: &str) -> Result<(), String> {
        let id = self.volumes[volume].id;
        let newest = self.newest_root(volume).ok_or("there is no root")?;
        let newest_key = catalog::root_key(id, newest);
        if key == newest_key {
            return Err("it is the newest root".to_owned());
        }
        if catalog::parse_root_key(&catalog::root_prefix(id), key).is_some() {
            return Ok(());
        }
        let root = self.root(volume, &newest_key)?;
        if let Some(pin) = catalog::parse_pin_key(&catalog::pin_prefix(id), key) {
            let named = root.pins.get(&pin.segment) == Some(&pin);
            return if named { Err(format!("{newest_key} names it")) } else { Ok(()) };
        }
        let Some(fragment) = catalog::parse_fragment_key(id, key) else {
            return self.may_delete_data(volume, key);
        };
        match self.named_by(volume, &newest_key)?.get(&fragment) {
            Some(by) => Err(format!("{by} names it")),
            None => Ok(()),
        }
    }

    fn root(&self, volume: usize, key: &str) -> Result<Root, String> {
        let object = self.objects.map.get(key).ok_or_else(|| format!("{key} is not there"))?;
        let root = root::parse(&self.volumes[volume].spec, object, 1000);
        root.map_err(|e| format!("{key}: {e}"))
    }

    /// The fragments that a root names, and the roots of snapshots that it names, and which does.
    pub(super) fn named_by(
        &self,
        volume: usize,
        key: &str,
    ) -> Result<BTreeMap<FragmentId, String>, String> {
        let root = self.root(volume, key)?;
        let mut named = BTreeMap::new();
        for pin in root.pins.values() {
            let key = catalog::pin_key(self.volumes[volume].id, *pin);
            let levels = self.root(volume, &key)?.levels;
            named.extend(levels.fragments().map(|fragment| (fragment.id, key.clone())));
        }
        let own = root.levels.fragments().chain(root.moved.levels.fragments());
        named.extend(own.map(|fragment| (fragment.id, key.to_owned())));
        Ok(named)
    }
}
