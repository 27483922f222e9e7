//! Sweeps: what no root names is found and deleted.
//!
//! A fragment that leaves the map of a volume with snapshots may be in the map of one of these, which nobody wants to keep
//! in memory. So now and then all fragments are listed, and the roots of the snapshots read one after the
//! other; what neither these nor the last two roots name belongs to nobody. That is so after a claim, for what those
//! before have left behind, after a snapshot has been deleted, and when much may belong to nobody.
//!
//! Promises: a snapshot's root that cannot be read means that nothing is deleted. What is found is deleted by the
//! rules for everything else: by who has written a root, after a delay, and a look.

use super::super::catalog::{self, RootName};
use super::super::map::fragment::FragmentId;
use super::super::object::{Copies, ObjectMeta, ObjectOperation};
use super::super::{Event, root};
use super::upkeep::{Gone, Step};
use super::{Purpose, Volume};
use bytes::Bytes;
use std::collections::BTreeSet;

/// A sweep under way.
#[derive(Default)]
pub(super) struct Sweep {
    /// What no root that has been looked at names.
    candidates: BTreeSet<FragmentId>,
    /// Roots of snapshots to be looked at.
    pins: Vec<RootName>,
    /// The one that is being read.
    reading: Option<RootName>,
}

impl Volume {
    pub(super) fn begin_sweep(&mut self) {
        (self.upkeep.sweep_due, self.upkeep.perhaps_bytes) = (false, 0);
        self.upkeep.sweep = Some(Sweep::default());
        self.upkeep.step = Step::Listing;
        let prefix = catalog::fragment_prefix(self.spec.id);
        self.book.issue(Purpose::ListFragments, ObjectOperation::List { prefix });
    }

    /// What the last roots name and the map no longer does.
    fn gone(&self) -> impl Iterator<Item = &Gone> {
        let kept = self.upkeep.kept.iter().map(|kept| &kept.gone);
        kept.chain(std::iter::once(&self.upkeep.gone))
    }

    /// Fragments that the map or the last roots name, or that are being made for the map.
    fn named(&self) -> BTreeSet<FragmentId> {
        let moved = &self.collect.moved;
        let fragments = self.tree.levels().fragments().chain(self.tree.under_way());
        let fragments = fragments.chain(moved.levels().fragments()).chain(moved.under_way());
        let mut named: BTreeSet<FragmentId> = fragments.map(|fragment| fragment.id).collect();
        for gone in self.gone() {
            named.extend(&gone.fragments);
            named.extend(gone.perhaps.iter().map(|(id, _)| id));
        }
        named
    }

    /// Roots of snapshots that the last roots name.
    fn pinned(&self) -> BTreeSet<RootName> {
        let gone = self.gone().flat_map(|gone| &gone.pins);
        self.upkeep.pins.values().chain(gone).copied().collect()
    }

    pub(super) fn fragments_listed(&mut self, list: &[ObjectMeta]) {
        let Some(own) = self.upkeep.generation else { return };
        let named = self.named();
        let found = list.iter().filter_map(|meta| {
            let id = catalog::parse_fragment_key(self.spec.id, &meta.key)?;
            (id.generation <= own && !named.contains(&id)).then_some(id)
        });
        let candidates = found.collect();
        if let Some(sweep) = &mut self.upkeep.sweep {
            sweep.candidates = candidates;
        }
        let prefix = catalog::pin_prefix(self.spec.id);
        self.book.issue(Purpose::ListPins, ObjectOperation::List { prefix });
    }

    pub(super) fn pins_listed(&mut self, list: &[ObjectMeta]) {
        let Some(own) = self.upkeep.generation else { return };
        let prefix = catalog::pin_prefix(self.spec.id);
        let pinned = self.pinned();
        let found = list.iter().filter_map(|meta| catalog::parse_pin_key(&prefix, &meta.key));
        // Of this generation, none is forgotten that is not on its way out.
        let stray = found.filter(|name| name.generation < own && !pinned.contains(name));
        let stray = stray.map(|name| catalog::pin_key(self.spec.id, name)).collect();
        self.orphaned(stray);
        self.upkeep.step = Step::Idle;
        let pins = self.pinned().into_iter().collect();
        if let Some(sweep) = &mut self.upkeep.sweep {
            sweep.pins = pins;
            self.sweep_on();
        }
    }

    /// No root names these that is kept, once there is one of this generation.
    fn orphaned(&mut self, keys: Vec<String>) {
        if self.upkeep.kept.iter().any(|kept| self.upkeep.generation == Some(kept.generation())) {
            self.doom(keys);
        } else {
            self.upkeep.orphans.extend(keys);
        }
    }

    /// Reads the next root, or comes to an end.
    fn sweep_on(&mut self) {
        let Some(sweep) = &mut self.upkeep.sweep else { return };
        if self.shutting_down {
            self.upkeep.sweep = None;
            return;
        }
        let next = if sweep.candidates.is_empty() { None } else { sweep.pins.pop() };
        if let Some(name) = next {
            sweep.reading = Some(name);
            self.read_pin(name);
            return;
        }
        let named = self.named();
        if let Some(sweep) = self.upkeep.sweep.take() {
            let found = sweep.candidates.into_iter().filter(|id| !named.contains(id));
            self.orphaned(found.map(catalog::fragment_key).collect());
        }
    }

    pub(super) fn read_pin(&mut self, name: RootName) {
        let key = catalog::pin_key(self.source().id, name);
        self.book.issue(
            Purpose::ReadPin(name),
            ObjectOperation::Get { key, range: None, copies: Copies::Refused },
        );
    }

    /// A root of a snapshot, if it is good; nothing if it is not there.
    pub(super) fn parse_pin(&mut self, name: RootName, data: Option<Bytes>) -> Option<root::Root> {
        let parsed = data.ok_or_else(|| "it is missing".to_owned()).and_then(|data| {
            root::parse(self.source(), &data, 1).map_err(|error| error.to_string())
        });
        match parsed {
            Ok(root) if (root.generation, root.state.number) == (name.generation, name.segment) => {
                return Some(root);
            }
            Ok(_) => self.pin_damaged(name, "it is not the one of its name".to_owned()),
            Err(reason) => self.pin_damaged(name, reason),
        }
        None
    }

    fn pin_damaged(&mut self, name: RootName, reason: String) {
        let key = catalog::pin_key(self.source().id, name);
        self.event(Event::RootDamaged { key, reason });
    }

    /// What reading the root of a snapshot gave, on behalf of a sweep.
    pub(super) fn sweep_read(&mut self, name: RootName, data: Option<Bytes>) {
        let Some(sweep) = &mut self.upkeep.sweep else { return };
        if sweep.reading.take_if(|reading| *reading == name).is_none() {
            return;
        }
        if data.is_none() && self.upkeep.pin_missed != Some(name) && self.pinned().contains(&name) {
            // Whoever has taken over may have deleted it: a look, and then a sweep, come first.
            self.upkeep.pin_missed = Some(name);
            (self.upkeep.suspicious, self.upkeep.sweep_due) = (true, true);
            self.upkeep.sweep = None;
            return;
        }
        // It may have been deleted since, as nothing needs it any more.
        if data.is_some() || self.pinned().contains(&name) {
            let root = self.parse_pin(name, data);
            match (root, &mut self.upkeep.sweep) {
                (Some(root), Some(sweep)) => {
                    for fragment in root.levels.fragments() {
                        sweep.candidates.remove(&fragment.id);
                    }
                }
                _ => {
                    self.upkeep.sweep = None;
                    return;
                }
            }
        }
        self.sweep_on();
    }
}
