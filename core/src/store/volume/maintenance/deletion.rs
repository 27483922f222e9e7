//! Deletion of objects that no root names any more.
//!
//! Only an engine that has written a root of its own generation deletes objects. It deletes an
//! object if neither of the last two roots names it, nor a snapshot's root that these name. It
//! waits for a delay first. If a store has claimed a later generation *after* that delay, it
//! deletes nothing.
//!
//! A fragment that leaves the map of a volume may still be in the map of a snapshot. No engine can
//! keep all of these maps in memory. So now and then a sweep lists all fragments, and reads the
//! roots of the snapshots one after the other. Fragments that neither these nor the last two roots
//! name have no owner. A sweep follows a claim, because of the leftovers of former engines. It
//! also follows the deletion of a snapshot, and the growth of the space without a possible owner.
//! If the engine cannot read a snapshot's root, the sweep deletes nothing.

use super::super::context::Context;
use super::super::facts::Facts;
use super::super::outputs::Outputs;
use super::super::purpose::ObjectPurpose;
use super::super::roots;
use crate::block::{Time, VolumeId};
use crate::store::catalog::{self, RootName};
use crate::store::map::fragment::{Fragment, FragmentId};
use crate::store::object::ObjectMeta;
use bytes::Bytes;
use std::collections::{BTreeSet, VecDeque};

/// Roots that an engine keeps: the newest, and one in case that one is damaged.
pub(super) const ROOTS_KEPT: usize = 2;
/// A sweep is due when fragments that only snapshots may name have more bytes than this part of
/// the map, and some for each snapshot.
const PERHAPS: u64 = 4;

/// Objects that a root named, and a later one does not.
#[derive(Default)]
pub(super) struct Dropped {
    /// No snapshot can name these.
    fragments: Vec<FragmentId>,
    /// Some may name these, of this size in bytes: a sweep will tell.
    perhaps: Vec<(FragmentId, u64)>,
    /// The roots of snapshots.
    pins: Vec<RootName>,
    /// Segments and bundles.
    objects: Vec<String>,
}

impl Dropped {
    pub fn drop_pins(&mut self, pins: impl Iterator<Item = RootName>) {
        self.pins.extend(pins);
    }
}

/// A kept root.
struct KeptRoot {
    name: RootName,
    /// Objects that the root before it named, and this one does not.
    dropped: Dropped,
}

/// A sweep under way.
#[derive(Default)]
struct Sweep {
    /// Fragments that no root so far names.
    candidates: BTreeSet<FragmentId>,
    /// Roots of snapshots that the sweep still has to read.
    pins: Vec<RootName>,
    /// The read in progress.
    reading: Option<RootName>,
}

/// The use of a snapshot's root for a sweep.
pub(super) enum PinRead {
    /// The sweep has read it: [`Deletion::sweep_on`].
    Audited,
    /// A root names it and it is not there: somebody may have taken over.
    Missing,
    /// The sweep does not continue with it.
    Nothing,
}

/// The objects that the engine may delete, with the times.
#[derive(Default)]
pub(super) struct Deletion {
    kept: VecDeque<KeptRoot>,
    /// Objects that the newest root names and the map no longer does.
    dropped: Dropped,
    /// Objects that no kept root names, as soon as there is a root of this generation.
    orphans: Vec<String>,
    doomed: VecDeque<(Time, Vec<String>)>,
    /// The engine has dropped segments or bundles. No root says so yet, or only the newest does.
    objects_unwritten: bool,
    /// The number of roots to write although the map matches the newest one. After these no kept
    /// root names fragments that merges have replaced.
    renew: usize,
    sweep: Option<Sweep>,
    sweep_due: bool,
    /// Bytes of fragments that no root names but perhaps one of a snapshot.
    perhaps_bytes: u64,
    /// The root of a snapshot that was not there for a sweep.
    pin_missed: Option<RootName>,
}

impl Deletion {
    /// Ends the work in progress without effect: another engine continues from the newest root, or
    /// this engine does.
    pub fn stop(&mut self) {
        self.sweep = None;
        self.kept.clear();
        self.doomed.clear();
        self.dropped.objects.clear();
        self.objects_unwritten = false;
        self.renew = 0;
    }

    /// The map goes on from a newer root of another engine.
    pub fn adopt(&mut self) {
        self.dropped = Dropped::default();
    }

    /// Takes the roots that exist at the claim of a generation. The engine keeps none of them,
    /// except that of [`Deletion::begin`].
    pub fn claim(&mut self, roots: impl Iterator<Item = String>) {
        self.orphans = roots.collect();
    }

    /// The generation begins with that root.
    pub fn begin(&mut self, volume: VolumeId, name: RootName) {
        let key = catalog::root_key(volume, name);
        self.orphans.retain(|orphan| *orphan != key);
        self.kept.push_back(KeptRoot { name, dropped: Dropped::default() });
    }

    /// The next root does not name this any more, and no root of a snapshot does.
    pub fn drop_fragment(&mut self, fragment: FragmentId) {
        self.dropped.fragments.push(fragment);
    }

    /// The same, unless the root of a snapshot does.
    pub fn drop_perhaps(&mut self, fragment: Fragment) {
        self.dropped.perhaps.push((fragment.id, fragment.bytes()));
    }

    /// The next root does not name these segments and bundles any more.
    pub fn drop_objects(&mut self, objects: Vec<String>) {
        self.dropped.objects.extend(objects);
        self.objects_unwritten = true;
    }

    /// No root is to name what the map no longer has.
    pub fn renew_roots(&mut self) {
        self.renew = ROOTS_KEPT;
    }

    /// Whether the engine still has to write such a root.
    pub fn is_renewing(&self) -> bool {
        self.renew > 0
    }

    /// Whether to write a root although the map matches the newest one.
    pub fn wants_root(&self) -> bool {
        self.objects_unwritten || self.renew > 0
    }

    /// The objects that the next root no longer names.
    pub fn take_dropped(&mut self) -> Dropped {
        std::mem::take(&mut self.dropped)
    }

    /// A put of a root that no longer names these has begun.
    pub fn root_made(&mut self, dropped: &Dropped) {
        self.renew = self.renew.saturating_sub(1);
        if !dropped.pins.is_empty() {
            self.renew = self.renew.max(1);
        }
        // The engine deletes nothing while it keeps the root that named it.
        self.objects_unwritten = !dropped.objects.is_empty();
    }

    /// All roots that a reader may open: the engine gives up nothing that one of them names.
    pub fn kept_roots(&self) -> Vec<RootName> {
        self.kept.iter().map(|kept| kept.name).collect()
    }

    pub fn keeps_enough(&self) -> bool {
        self.kept.len() >= ROOTS_KEPT
    }

    fn all_dropped(&self) -> impl Iterator<Item = &Dropped> {
        let kept = self.kept.iter().map(|kept| &kept.dropped);
        kept.chain(std::iter::once(&self.dropped))
    }

    /// Fragments that the last roots name, or perhaps do, and the map no longer does.
    fn named(&self) -> impl Iterator<Item = FragmentId> {
        self.all_dropped().flat_map(|dropped| {
            let perhaps = dropped.perhaps.iter().map(|(id, _)| *id);
            dropped.fragments.iter().copied().chain(perhaps)
        })
    }

    /// Roots of snapshots that the last roots name, those in `pins` among them.
    fn pinned(&self, pins: impl Iterator<Item = RootName>) -> BTreeSet<RootName> {
        pins.chain(self.all_dropped().flat_map(|dropped| dropped.pins.iter().copied())).collect()
    }

    /// A put of a root has ended, which decides the objects to delete. Returns whether roots of
    /// snapshots are among them. `named_bytes` are those of the map's fragments, and `sweep_bytes`
    /// are those that a sweep reads.
    pub fn root_put(
        &mut self,
        facts: &Facts,
        (name, dropped): (RootName, Dropped),
        named_bytes: u64,
        sweep_bytes: u64,
    ) -> bool {
        let volume = facts.spec().id;
        self.kept.push_back(KeptRoot { name, dropped });
        let mut keys = std::mem::take(&mut self.orphans);
        let mut unpinned = false;
        while self.kept.len() > ROOTS_KEPT {
            let old = self.kept.pop_front();
            keys.extend(old.map(|old| catalog::root_key(volume, old.name)));
            let next = self.kept.front_mut();
            let dropped = next.map(|next| std::mem::take(&mut next.dropped)).unwrap_or_default();
            keys.extend(dropped.fragments.into_iter().map(catalog::fragment_key));
            keys.extend(dropped.objects);
            unpinned |= !dropped.pins.is_empty();
            keys.extend(dropped.pins.into_iter().map(|name| catalog::pin_key(volume, name)));
            self.perhaps_bytes += dropped.perhaps.iter().map(|(_, bytes)| bytes).sum::<u64>();
        }
        self.sweep_due |=
            unpinned || self.perhaps_bytes > (named_bytes / PERHAPS).saturating_add(sweep_bytes);
        self.doom(delete_at(facts), keys);
        unpinned
    }

    /// The engine may delete these then, if no other engine has taken over.
    fn doom(&mut self, due: Time, keys: Vec<String>) {
        if !keys.is_empty() {
            self.doomed.push_back((due, keys));
        }
    }

    /// The time of the next deletion.
    pub fn due(&self) -> Option<Time> {
        self.doomed.front().map(|(due, _)| *due)
    }

    /// The objects that the engine may delete since that time.
    pub fn take_due(&mut self, since: Time) -> Vec<String> {
        let mut keys = Vec::new();
        while let Some((_, due)) = self.doomed.pop_front_if(|(due, _)| *due <= since) {
            keys.extend(due);
        }
        keys
    }

    /// No kept root names these, once there is one of this generation.
    fn orphaned(&mut self, generation: u64, due: Time, keys: Vec<String>) {
        if self.kept.iter().any(|kept| kept.name.generation == generation) {
            self.doom(due, keys);
        } else {
            self.orphans.extend(keys);
        }
    }

    /// Whether it is time for a sweep.
    pub fn is_audit_due(&self) -> bool {
        self.sweep_due && self.sweep.is_none()
    }

    /// Begins a sweep: lists all fragments.
    pub fn begin_sweep(&mut self, facts: &Facts, out: &mut Outputs) {
        (self.sweep_due, self.perhaps_bytes) = (false, 0);
        self.sweep = Some(Sweep::default());
        out.list(ObjectPurpose::ListFragments, catalog::fragment_prefix(facts.spec().id));
    }

    /// Takes the list of all fragments, and asks for all roots of snapshots. `mapped` are the
    /// fragments of the maps, and new ones for them.
    pub fn fragments_listed(
        &mut self,
        cx: &mut Context<'_>,
        generation: u64,
        mapped: impl Iterator<Item = FragmentId>,
        list: &[ObjectMeta],
    ) {
        let volume = cx.facts.spec().id;
        let named: BTreeSet<FragmentId> = mapped.chain(self.named()).collect();
        let found = list.iter().filter_map(|meta| {
            let id = catalog::parse_fragment_key(volume, &meta.key)?;
            (id.generation <= generation && !named.contains(&id)).then_some(id)
        });
        let candidates = found.collect();
        if let Some(sweep) = &mut self.sweep {
            sweep.candidates = candidates;
        }
        cx.out.list(ObjectPurpose::ListPins, catalog::pin_prefix(volume));
    }

    /// Takes the list of all roots of snapshots. The newest root names `pins`.
    pub fn pins_listed(
        &mut self,
        facts: &Facts,
        generation: u64,
        pins: impl Iterator<Item = RootName>,
        list: &[ObjectMeta],
    ) {
        let volume = facts.spec().id;
        let prefix = catalog::pin_prefix(volume);
        let pinned = self.pinned(pins);
        let found = list.iter().filter_map(|meta| catalog::parse_pin_key(&prefix, &meta.key));
        // The engine forgets only roots of this generation that it will delete.
        let stray = found.filter(|name| name.generation < generation && !pinned.contains(name));
        let stray = stray.map(|name| catalog::pin_key(volume, name)).collect();
        self.orphaned(generation, delete_at(facts), stray);
        if let Some(sweep) = &mut self.sweep {
            sweep.pins = pinned.into_iter().collect();
        }
    }

    /// Reads the next root of a snapshot, or ends the sweep: it deletes the rest, unless the maps
    /// have it by now.
    pub fn sweep_on(
        &mut self,
        cx: &mut Context<'_>,
        generation: Option<u64>,
        mapped: impl Iterator<Item = FragmentId>,
    ) {
        if cx.facts.is_stopping() {
            self.sweep = None;
        }
        let Some(sweep) = &mut self.sweep else { return };
        let next = if sweep.candidates.is_empty() { None } else { sweep.pins.pop() };
        if let Some(name) = next {
            sweep.reading = Some(name);
            return roots::read_pin(cx.out, cx.facts.spec().id, name);
        }
        let named: BTreeSet<FragmentId> = mapped.chain(self.named()).collect();
        let Some(sweep) = self.sweep.take() else { return };
        let found = sweep.candidates.into_iter().filter(|id| !named.contains(id));
        let found = found.map(catalog::fragment_key).collect();
        self.orphaned(generation.unwrap_or(0), delete_at(cx.facts), found);
    }

    /// Takes the result of reading the root of a snapshot, if the sweep waits for it. The newest
    /// root names `pins`.
    pub fn pin_read(
        &mut self,
        cx: &mut Context<'_>,
        pins: impl Iterator<Item = RootName>,
        name: RootName,
        data: Option<Bytes>,
    ) -> PinRead {
        let Some(sweep) = &mut self.sweep else { return PinRead::Nothing };
        if sweep.reading.take_if(|reading| *reading == name).is_none() {
            return PinRead::Nothing;
        }
        let pinned = self.pinned(pins).contains(&name);
        if data.is_none() && pinned && self.misses_pin(name) {
            return PinRead::Missing;
        }
        // The engine may have deleted it since, because nothing needs it any more.
        if data.is_some() || pinned {
            let Some(root) = roots::parse_pin(cx.out, cx.facts.spec(), name, data) else {
                self.sweep = None;
                return PinRead::Nothing;
            };
            if let Some(sweep) = &mut self.sweep {
                for fragment in root.levels.fragments() {
                    sweep.candidates.remove(&fragment.id);
                }
            }
        }
        PinRead::Audited
    }

    /// A root names this root of a snapshot, which does not exist. Returns whether that is new. An
    /// engine that took over may have deleted it, so another sweep follows once this engine knows
    /// that.
    fn misses_pin(&mut self, name: RootName) -> bool {
        let new = self.pin_missed != Some(name);
        if new {
            self.pin_missed = Some(name);
            self.sweep_due = true;
            self.sweep = None;
        }
        new
    }
}

/// The time of the deletion of objects that no root names from now on.
fn delete_at(facts: &Facts) -> Time {
    facts.now().after(facts.config().delete_delay)
}
