//! The objects that a volume's map is made of, as an independent reader sees them: sector by sector.
//!
//! A root names only what is there, and says of every sector what the segments up to its own say. What the
//! newest root names is never deleted, and nothing but roots and fragments is.

use super::World;
use crate::note;
use bytes::Bytes;
use longhaul_core::block::{Range, Seq};
use longhaul_core::extent::Extent;
use longhaul_core::store::catalog::{self, RootName};
use longhaul_core::store::map::Place;
use longhaul_core::store::map::fragment::{Fragment, Index};
use longhaul_core::store::root::{self, Root};
use longhaul_core::store::segment::Segment;

/// What segments say of the map.
#[derive(Debug, Default)]
pub struct Said {
    /// For each segment, in order.
    segments: Vec<Vec<(Range, Option<Place>)>>,
    /// The last number committed with each.
    committed: Vec<Seq>,
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
        let pieces = segment.footer.pieces.iter();
        self.segments.push(pieces.map(|piece| (piece.range, Place::of(number, piece))).collect());
        self.committed.push(segment.header.last);
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
        let Root { generation, state, levels } = root;
        if (generation, state.number) != (name.generation, name.segment) {
            return Err("it is not what its name says".to_owned());
        }
        // Nobody reads it any more when there is a newer one: what it names may be gone. It is of a store
        // that was overtaken, or a put that was thought lost brings back what had been deleted.
        if self.newest_root(volume).is_some_and(|newest| newest > name) {
            self.coverage.roots_outdated += 1;
            return Ok(());
        }
        let runs = levels.runs().iter().chain(levels.sorted());
        note!(
            self,
            "v{volume} root {name:?}: {:?}",
            runs.clone().map(Vec::len).collect::<Vec<_>>()
        );
        self.coverage.map_levels = self.coverage.map_levels.max(levels.sorted().len() as u64);
        let mut map = Vec::new();
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
                    let entry = entry.map_err(|e| e.to_string())?;
                    paint(&mut map, entry.range, entry.place);
                }
            }
        }
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
        Ok(())
    }

    /// The root that a store would open.
    fn newest_root(&self, volume: usize) -> Option<RootName> {
        let prefix = catalog::root_prefix(self.volumes[volume].id);
        let (key, _) = self.objects.list(&prefix).pop()?;
        catalog::parse_root_key(&prefix, &key)
    }

    /// An object is about to be deleted.
    pub(super) fn object_deleted(&mut self, volume: usize, key: &str) {
        if !self.objects.map.contains_key(key) {
            return;
        }
        let checked = self.may_delete(volume, key);
        self.coverage.map_deletes += 1;
        self.require(checked.map_err(|e| format!("{key} is deleted: {e}")));
    }

    fn may_delete(&self, volume: usize, key: &str) -> Result<(), String> {
        let id = self.volumes[volume].id;
        let newest = self.newest_root(volume).ok_or("there is no root")?;
        let newest_key = catalog::root_key(id, newest);
        if key == newest_key {
            return Err("it is the newest root".to_owned());
        }
        if catalog::parse_root_key(&catalog::root_prefix(id), key).is_some() {
            return Ok(());
        }
        let fragment =
            catalog::parse_fragment_key(id, key).ok_or("it is neither root nor fragment")?;
        let object = &self.objects.map[&newest_key];
        let root = root::parse(&self.volumes[volume].spec, object, 1000);
        let root = root.map_err(|e| format!("{newest_key}: {e}"))?;
        let named = root.levels.fragments().any(|named| named.id == fragment);
        if named { Err(format!("{newest_key} names it")) } else { Ok(()) }
    }
}
