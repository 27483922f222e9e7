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

use crate::block::{Time, VolumeId};
use crate::store::catalog::{self, RootName};
use crate::store::map::fragment::{Fragment, FragmentId};
use crate::store::object::ObjectMeta;
use crate::store::root::Root;
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

    pub fn has_pins(&self) -> bool {
        !self.pins.is_empty()
    }

    pub fn has_objects(&self) -> bool {
        !self.objects.is_empty()
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

/// What an audit wants next.
pub(super) enum AuditStep {
    /// This root of a snapshot is to be read.
    Read(RootName),
    /// It is at its end: [`Deletion::end_audit`].
    End,
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
    }

    /// What the root that is being put no longer names.
    pub fn take_dropped(&mut self) -> Dropped {
        std::mem::take(&mut self.dropped)
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
        volume: VolumeId,
        (name, dropped): (RootName, Dropped),
        due: Time,
        named_bytes: u64,
        audit_bytes: u64,
    ) -> bool {
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
        self.doom(due, keys);
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
    pub fn begin_audit(&mut self) {
        (self.audit_due, self.perhaps_bytes) = (false, 0);
        self.audit = Some(Audit::default());
    }

    pub fn stop_audit(&mut self) {
        self.audit = None;
    }

    /// Takes the list of all fragments. `mapped` are those of the maps, or that are being made for them.
    pub fn fragments_listed(
        &mut self,
        volume: VolumeId,
        generation: u64,
        mapped: impl Iterator<Item = FragmentId>,
        list: &[ObjectMeta],
    ) {
        let named: BTreeSet<FragmentId> = mapped.chain(self.named()).collect();
        let found = list.iter().filter_map(|meta| {
            let id = catalog::parse_fragment_key(volume, &meta.key)?;
            (id.generation <= generation && !named.contains(&id)).then_some(id)
        });
        let candidates = found.collect();
        if let Some(audit) = &mut self.audit {
            audit.candidates = candidates;
        }
    }

    /// Takes the list of all roots of snapshots. The newest root names `pins`.
    pub fn pins_listed(
        &mut self,
        volume: VolumeId,
        generation: u64,
        pins: impl Iterator<Item = RootName>,
        due: Time,
        list: &[ObjectMeta],
    ) {
        let prefix = catalog::pin_prefix(volume);
        let pinned = self.pinned(pins);
        let found = list.iter().filter_map(|meta| catalog::parse_pin_key(&prefix, &meta.key));
        // Of this generation, none is forgotten that is not on its way out.
        let stray = found.filter(|name| name.generation < generation && !pinned.contains(name));
        let stray = stray.map(|name| catalog::pin_key(volume, name)).collect();
        self.orphaned(generation, due, stray);
        if let Some(audit) = &mut self.audit {
            audit.pins = pinned.into_iter().collect();
        }
    }

    /// What the audit wants next.
    pub fn audit_next(&mut self) -> AuditStep {
        let Some(audit) = &mut self.audit else { return AuditStep::Nothing };
        let next = if audit.candidates.is_empty() { None } else { audit.pins.pop() };
        match next {
            Some(name) => {
                audit.reading = Some(name);
                AuditStep::Read(name)
            }
            None => AuditStep::End,
        }
    }

    /// What is left is deleted, unless the maps have it by now.
    pub fn end_audit(
        &mut self,
        generation: u64,
        mapped: impl Iterator<Item = FragmentId>,
        due: Time,
    ) {
        let named: BTreeSet<FragmentId> = mapped.chain(self.named()).collect();
        let Some(audit) = self.audit.take() else { return };
        let found = audit.candidates.into_iter().filter(|id| !named.contains(id));
        let found = found.map(catalog::fragment_key).collect();
        self.orphaned(generation, due, found);
    }

    /// Whether the audit waits for that root of a snapshot, which has been read.
    pub fn take_audited(&mut self, name: RootName) -> bool {
        let Some(audit) = &mut self.audit else { return false };
        audit.reading.take_if(|reading| *reading == name).is_some()
    }

    /// Whether the last roots name that root of a snapshot, those in `pins` among them.
    pub fn is_pinned(&self, name: RootName, pins: impl Iterator<Item = RootName>) -> bool {
        self.pinned(pins).contains(&name)
    }

    /// A root of a snapshot is not there although a root names it: says whether that is new. Whoever has taken over may
    /// have deleted it, so another audit comes after that is known.
    pub fn misses_pin(&mut self, name: RootName) -> bool {
        let new = self.pin_missed != Some(name);
        if new {
            self.pin_missed = Some(name);
            self.audit_due = true;
            self.audit = None;
        }
        new
    }

    /// The audit has read the root of a snapshot.
    pub fn audited(&mut self, root: &Root) {
        let Some(audit) = &mut self.audit else { return };
        for fragment in root.levels.fragments() {
            audit.candidates.remove(&fragment.id);
        }
    }
}
