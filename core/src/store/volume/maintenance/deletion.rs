//! Deletion of objects that no root names any more.
//!
//! An object is deleted by the engine that has written a root of its own generation, if neither of the last two
//! roots names it, nor a snapshot's root that these name, after a delay, and if *after* that delay no later
//! generation has been claimed.
//!
//! A fragment that leaves the map of a volume with snapshots may be in the map of one of these, which nobody wants to keep
//! in memory. So now and then an audit lists all fragments, and reads the roots of the snapshots one after the
//! other; what neither these nor the last two roots name belongs to nobody. That is so after a claim, for what those
//! before have left behind, after a snapshot has been deleted, and when much may belong to nobody. If a snapshot's root
//! cannot be read, the audit deletes nothing.

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

/// Roots kept: the newest, and one in case that is damaged.
pub(super) const ROOTS_KEPT: usize = 2;
/// An audit is due when fragments that only snapshots may name have more bytes than this part of the map, and some for each
/// snapshot.
const PERHAPS: u64 = 4;

/// What a root named, and a later one does not.
#[derive(Default)]
pub(super) struct Dropped {
    /// No snapshot can name these.
    fragments: Vec<FragmentId>,
    /// Some may name these, of so many bytes: an audit will tell.
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

/// A root that is kept.
struct KeptRoot {
    name: RootName,
    /// What the one before it named, and this one does not.
    dropped: Dropped,
}

/// An audit under way.
#[derive(Default)]
struct Audit {
    /// What no root that has been looked at names.
    candidates: BTreeSet<FragmentId>,
    /// Roots of snapshots to be looked at.
    pins: Vec<RootName>,
    /// The one that is being read.
    reading: Option<RootName>,
}

/// What the root of a snapshot is to an audit.
pub(super) enum PinRead {
    /// It has been looked at: [`Deletion::audit_on`].
    Audited,
    /// A root names it and it is not there: somebody may have taken over.
    Missing,
    /// The audit does not go on with it.
    Nothing,
}

/// What may be deleted, and when.
#[derive(Default)]
pub(super) struct Deletion {
    kept: VecDeque<KeptRoot>,
    /// What the newest root names and the map no longer does.
    dropped: Dropped,
    /// Objects that no kept root names, as soon as there is a root of this generation.
    orphans: Vec<String>,
    doomed: VecDeque<(Time, Vec<String>)>,
    /// Segments or bundles are dropped, and no root says so; or only the newest does.
    objects_unwritten: bool,
    /// So many roots are to be written although the map is what the newest says: until none that is kept names what
    /// merges have replaced.
    renew: usize,
    audit: Option<Audit>,
    audit_due: bool,
    /// Bytes of fragments that no root names but perhaps one of a snapshot.
    perhaps_bytes: u64,
    /// The root of a snapshot that was not there for an audit.
    pin_missed: Option<RootName>,
}

impl Deletion {
    /// What was begun comes to nothing: somebody else goes on from the newest root, or this engine does.
    pub fn stop(&mut self) {
        self.audit = None;
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

    /// The roots that there are when a generation is claimed: none of them is kept, but for that of [`Deletion::begin`].
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

    /// Whether a root that is to be written for that is not.
    pub fn is_renewing(&self) -> bool {
        self.renew > 0
    }

    /// Whether a root is to be written although the map is what the newest says.
    pub fn wants_root(&self) -> bool {
        self.objects_unwritten || self.renew > 0
    }

    /// What the root that is being put no longer names.
    pub fn take_dropped(&mut self) -> Dropped {
        std::mem::take(&mut self.dropped)
    }

    /// A root is being put that no longer names these.
    pub fn root_made(&mut self, dropped: &Dropped) {
        self.renew = self.renew.saturating_sub(1);
        if !dropped.pins.is_empty() {
            self.renew = self.renew.max(1);
        }
        // Nothing is deleted before the root that named it is no longer kept.
        self.objects_unwritten = !dropped.objects.is_empty();
    }

    /// All roots that somebody may open: nothing that one of them names is given up.
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

    /// A root has been put, after which it is known what may be deleted. Says whether that is roots of snapshots.
    /// `named_bytes` are those of the map's fragments, and `audit_bytes` what an audit reads.
    pub fn root_put(
        &mut self,
        facts: &Facts,
        (name, dropped): (RootName, Dropped),
        named_bytes: u64,
        audit_bytes: u64,
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
        self.audit_due |=
            unpinned || self.perhaps_bytes > (named_bytes / PERHAPS).saturating_add(audit_bytes);
        self.doom(delete_at(facts), keys);
        unpinned
    }

    /// These may be deleted then, if nobody else has taken over.
    fn doom(&mut self, due: Time, keys: Vec<String>) {
        if !keys.is_empty() {
            self.doomed.push_back((due, keys));
        }
    }

    /// When something may be deleted.
    pub fn due(&self) -> Option<Time> {
        self.doomed.front().map(|(due, _)| *due)
    }

    /// What may be deleted since that time.
    pub fn take_due(&mut self, since: Time) -> Vec<String> {
        let mut keys = Vec::new();
        while let Some((_, due)) = self.doomed.pop_front_if(|(due, _)| *due <= since) {
            keys.extend(due);
        }
        keys
    }

    /// No root names these that is kept, once there is one of this generation.
    fn orphaned(&mut self, generation: u64, due: Time, keys: Vec<String>) {
        if self.kept.iter().any(|kept| kept.name.generation == generation) {
            self.doom(due, keys);
        } else {
            self.orphans.extend(keys);
        }
    }

    /// Whether an audit is to begin.
    pub fn is_audit_due(&self) -> bool {
        self.audit_due && self.audit.is_none()
    }

    /// Begins an audit: all fragments are listed.
    pub fn begin_audit(&mut self, facts: &Facts, out: &mut Outputs) {
        (self.audit_due, self.perhaps_bytes) = (false, 0);
        self.audit = Some(Audit::default());
        out.list(ObjectPurpose::ListFragments, catalog::fragment_prefix(facts.spec().id));
    }

    /// Takes the list of all fragments, and asks for all roots of snapshots. `mapped` are the fragments of the maps, or
    /// that are being made for them.
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
        if let Some(audit) = &mut self.audit {
            audit.candidates = candidates;
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
        // Of this generation, none is forgotten that is not on its way out.
        let stray = found.filter(|name| name.generation < generation && !pinned.contains(name));
        let stray = stray.map(|name| catalog::pin_key(volume, name)).collect();
        self.orphaned(generation, delete_at(facts), stray);
        if let Some(audit) = &mut self.audit {
            audit.pins = pinned.into_iter().collect();
        }
    }

    /// Reads the next root of a snapshot, or comes to an end: what is left is deleted, unless the maps have it by now.
    pub fn audit_on(
        &mut self,
        cx: &mut Context<'_>,
        generation: Option<u64>,
        mapped: impl Iterator<Item = FragmentId>,
    ) {
        if cx.facts.is_stopping() {
            self.audit = None;
        }
        let Some(audit) = &mut self.audit else { return };
        let next = if audit.candidates.is_empty() { None } else { audit.pins.pop() };
        if let Some(name) = next {
            audit.reading = Some(name);
            return roots::read_pin(cx.out, cx.facts.spec().id, name);
        }
        let named: BTreeSet<FragmentId> = mapped.chain(self.named()).collect();
        let Some(audit) = self.audit.take() else { return };
        let found = audit.candidates.into_iter().filter(|id| !named.contains(id));
        let found = found.map(catalog::fragment_key).collect();
        self.orphaned(generation.unwrap_or(0), delete_at(cx.facts), found);
    }

    /// What reading the root of a snapshot gave, if the audit waits for that. The newest root names `pins`.
    pub fn pin_read(
        &mut self,
        cx: &mut Context<'_>,
        pins: impl Iterator<Item = RootName>,
        name: RootName,
        data: Option<Bytes>,
    ) -> PinRead {
        let Some(audit) = &mut self.audit else { return PinRead::Nothing };
        if audit.reading.take_if(|reading| *reading == name).is_none() {
            return PinRead::Nothing;
        }
        let pinned = self.pinned(pins).contains(&name);
        if data.is_none() && pinned && self.misses_pin(name) {
            return PinRead::Missing;
        }
        // It may have been deleted since, as nothing needs it any more.
        if data.is_some() || pinned {
            let Some(root) = roots::parse_pin(cx.out, cx.facts.spec(), name, data) else {
                self.audit = None;
                return PinRead::Nothing;
            };
            if let Some(audit) = &mut self.audit {
                for fragment in root.levels.fragments() {
                    audit.candidates.remove(&fragment.id);
                }
            }
        }
        PinRead::Audited
    }

    /// A root of a snapshot is not there although a root names it: says whether that is new. Whoever has taken over may
    /// have deleted it, so another audit comes after that is known.
    fn misses_pin(&mut self, name: RootName) -> bool {
        let new = self.pin_missed != Some(name);
        if new {
            self.pin_missed = Some(name);
            self.audit_due = true;
            self.audit = None;
        }
        new
    }
}

/// When something may be deleted that no root names from now on.
fn delete_at(facts: &Facts) -> Time {
    facts.now().after(facts.config().delete_delay)
}
