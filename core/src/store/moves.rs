//! Finds the present place of the data of a lookup's parts: in its segment, or in the bundle that
//! it has moved into.
//!
//! The second map names the bundle. The index of the bundle gives the place in it. A lookup
//! requests parts of both like pages of the first map. It requests all known parts at once, and
//! holds them until it has an answer.

use super::ancestor::Ancestor;
use super::catalog::{self, VolumeSpec};
use super::gc::bundle::{self, Bundle, BundleId};
use super::gc::moved;
use super::map::fragment::{Fragment, FragmentId};
use super::map::lookup::{Answer, Lookup};
use super::map::pages::{Content, Key, Pages, Part};
use super::map::{Damage, Get, MapError, Place, Tree};
use crate::block::{Range, VolumeId};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The maps of a volume.
#[derive(Clone, Copy)]
pub(super) struct Maps<'a> {
    pub spec: &'a VolumeSpec,
    pub tree: &'a Tree,
    /// What has moved.
    pub moved: &'a Tree,
    /// The parents of a clone, whose segments have moved by maps of their own.
    pub ancestors: &'a [Ancestor],
}

impl<'a> Maps<'a> {
    /// The owner of a segment, and the moved segments of that volume; `None` if none has moved.
    fn moved_with(&self, segment: u64) -> Option<(VolumeId, &'a Tree)> {
        let owner = self.spec.owner_of(segment);
        let tree = if owner == self.spec.id {
            self.moved
        } else {
            self.ancestors.iter().find(|ancestor| ancestor.id() == owner)?.moved()
        };
        let some = tree.levels().fragments().next().is_some()
            || !tree.table().is_empty()
            || tree.is_flushing();
        some.then_some((owner, tree))
    }

    /// Whether one of them names that fragment.
    pub fn names(&self, fragment: &Fragment) -> bool {
        self.tree.names(fragment)
            || self.moved.levels().names(fragment)
            || self.ancestors.iter().any(|each| each.moved().levels().names(fragment))
    }
}

/// An object with data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Object {
    /// A segment or a staged object, by its number.
    Own(u64),
    Bundle(BundleId),
}

/// A part of a range, and where it lies: the place is one in that object.
pub(super) type Placed = (Range, Option<(Object, Place)>);

/// Something to read.
#[derive(Clone, Debug)]
pub(super) enum Want {
    /// Of either map.
    Page(Get),
    /// Header and index of a bundle.
    Bundle(Bundle),
}

impl Want {
    pub fn key(&self) -> Key {
        match self {
            Want::Page(get) => get.key(),
            Want::Bundle(bundle) => index_key(bundle.id),
        }
    }
}

/// The page cache keeps indexes of bundles too.
fn index_key(BundleId { volume, generation, number }: BundleId) -> Key {
    (FragmentId { volume, generation, number }, Part::Bundle)
}

/// The reason why the place of a part is unknown.
#[derive(Clone, Debug)]
pub(super) struct Lost {
    /// Of the object that is to say it.
    pub key: String,
    pub range: Range,
    pub reason: MapError,
}

pub(super) enum MovesStep {
    Needs(Vec<Want>),
    Found(Vec<Placed>),
    /// A bundle does not have what the second map says: these are not of one moment any more.
    Stale(Lost),
}

/// The second half of a lookup.
#[derive(Debug)]
pub(super) struct Moves {
    parts: Vec<(Range, Option<Place>)>,
    looking: BTreeMap<u64, Lookup>,
    bundles: BTreeMap<u64, Option<Bundle>>,
    indexes: BTreeMap<BundleId, Arc<bundle::Index>>,
}

impl Moves {
    /// Of what the first map says.
    pub fn new(parts: Vec<(Range, Option<Place>)>, maps: Maps<'_>) -> Moves {
        let mut looking = BTreeMap::new();
        for (_, place) in &parts {
            let Some(place) = place.filter(|place| !place.is_zero()) else { continue };
            let segment = place.segment();
            if let Some(range) = moved::range_of(segment)
                && maps.moved_with(segment).is_some()
            {
                looking.insert(segment, Lookup::new(range));
            }
        }
        Moves { parts, looking, bundles: BTreeMap::new(), indexes: BTreeMap::new() }
    }

    /// The sectors whose place `concerned` is true of, from the first to the last.
    fn hull(&self, concerned: impl Fn(u64) -> bool) -> Range {
        let parts = self.parts.iter().filter(|(_, place)| {
            place.is_some_and(|place| !place.is_zero() && concerned(place.segment()))
        });
        let whole = parts.map(|(range, _)| *range);
        let hull = whole.reduce(|a, b| Range::between(a.lba.min(b.lba), a.end().max(b.end())));
        hull.or(self.parts.first().map(|(range, _)| *range)).unwrap_or(Range::new(0, 1))
    }

    pub fn lost_page(&self, damage: &Damage) -> Lost {
        let range = self.hull(|segment| (damage.span.lba..damage.span.end()).contains(&segment));
        Lost { key: catalog::fragment_key(damage.fragment), range, reason: damage.reason }
    }

    pub fn lost_bundle(&self, bundle: &Bundle, reason: MapError) -> Lost {
        let range = self.hull(|segment| self.bundles.get(&segment) == Some(&Some(*bundle)));
        Lost { key: catalog::bundle_key(bundle.id), range, reason }
    }

    /// Takes a page of the second map.
    pub fn supply(&mut self, get: &Get, bytes: &Bytes, pages: &mut Pages) -> Result<(), Damage> {
        // Verified once: the others find it in the cache, or ask for it again.
        let mut result = Ok(());
        for lookup in self.looking.values_mut() {
            result = lookup.supply(get, bytes.clone(), pages);
            if result.is_err() {
                break;
            }
        }
        result
    }

    /// Takes the index of a bundle.
    pub fn supply_index(
        &mut self,
        bundle: &Bundle,
        bytes: &Bytes,
        pages: &mut Pages,
    ) -> Result<(), MapError> {
        // Copies the index, because a slice would keep the whole fetch in memory.
        let index = Arc::new(bundle.index(&Bytes::copy_from_slice(bytes))?);
        pages.insert(index_key(bundle.id), Content::Bundle(index.clone()));
        self.indexes.insert(bundle.id, index);
        Ok(())
    }

    pub fn step(&mut self, maps: Maps<'_>, pages: &mut Pages) -> Result<MovesStep, Damage> {
        let mut needs: Vec<Want> = Vec::new();
        let mut asked = BTreeSet::new();
        let mut found = Vec::new();
        for (segment, lookup) in &mut self.looking {
            let Some((owner, tree)) = maps.moved_with(*segment) else {
                self.bundles.insert(*segment, None);
                found.push(*segment);
                continue;
            };
            match tree.look(lookup, pages)? {
                Answer::Parts(parts) => {
                    let place = parts.first().and_then(|(_, place)| *place);
                    let bundle = place.map(|place| moved::bundle_at(owner, place));
                    self.bundles.insert(*segment, bundle);
                    found.push(*segment);
                }
                Answer::Needs(wanted) => {
                    let wanted = wanted.into_iter().map(Want::Page);
                    needs.extend(wanted.filter(|want| asked.insert(want.key())));
                }
            }
        }
        for segment in found {
            self.looking.remove(&segment);
        }
        for bundle in self.bundles.values().flatten() {
            if self.indexes.contains_key(&bundle.id) {
                continue;
            }
            match pages.get(&index_key(bundle.id)) {
                Some(Content::Bundle(index)) => {
                    self.indexes.insert(bundle.id, index);
                }
                _ => {
                    let want = Want::Bundle(*bundle);
                    if asked.insert(want.key()) {
                        needs.push(want);
                    }
                }
            }
        }
        if !needs.is_empty() {
            return Ok(MovesStep::Needs(needs));
        }
        let mut placed = Vec::with_capacity(self.parts.len());
        for &(range, place) in &self.parts {
            let Some(place) = place else {
                placed.push((range, None));
                continue;
            };
            let segment = place.segment();
            let bundle = self.bundles.get(&segment).copied().flatten();
            let Some(bundle) = bundle.filter(|_| !place.is_zero()) else {
                placed.push((range, Some((Object::Own(segment), place))));
                continue;
            };
            let index = self.indexes.get(&bundle.id);
            match index.and_then(|index| index.find(place, range.sectors)) {
                Some(place) => placed.push((range, Some((Object::Bundle(bundle.id), place)))),
                None => {
                    let (key, reason) = (
                        catalog::bundle_key(bundle.id),
                        MapError::Invalid("it does not have the entries that the map names"),
                    );
                    return Ok(MovesStep::Stale(Lost { key, range, reason }));
                }
            }
        }
        Ok(MovesStep::Found(placed))
    }
}
