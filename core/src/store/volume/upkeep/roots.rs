//! Roots: of the volume, and of its snapshots.

use super::super::super::catalog::{self, RootName};
use super::super::super::map::fragment::Fragment;
use super::super::super::object::ObjectOperation;
use super::super::super::root;
use super::super::super::segment::{Segment, SegmentKind};
use super::super::{Purpose, Volume};
use super::{Kept, PERHAPS, ROOTS_KEPT, Step};

impl Volume {
    /// A segment has been applied: the map after one that took a snapshot, or rolled back to one, is to be written as it is.
    pub(in super::super) fn split_by(&mut self, segment: &Segment) {
        let number = segment.header.number;
        match segment.header.kind {
            SegmentKind::DeleteSnapshot | SegmentKind::Forget | SegmentKind::Shrink => {
                return self.flush_soon();
            }
            SegmentKind::Snapshot => self.tree.split(number),
            SegmentKind::Rollback => self.roll_back_by(segment),
            _ => return,
        }
        self.upkeep.states.insert(number, Box::new(self.state.clone()));
    }

    /// Something is not needed any more, which goes once a root says so: on a volume at rest, too.
    fn flush_soon(&mut self) {
        if !self.is_readonly() {
            let by = self.now.after(self.config.delete_delay);
            self.upkeep.flush_by.get_or_insert(by);
        }
    }

    /// Puts the root of the snapshot that the levels are of, if they are of one and it is not there.
    pub(super) fn put_pin(&mut self) {
        let (Some(generation), Some(state)) = (self.upkeep.generation, &self.upkeep.flushed) else {
            return;
        };
        let segment = state.number;
        if state.snapshots.at(segment).is_none() || self.upkeep.pins.contains_key(&segment) {
            return;
        }
        let name = RootName { generation, segment, number: self.upkeep.pins_made };
        let data = vec![root::encode_pin(generation, state, self.tree.levels())];
        self.upkeep.pins_made += 1;
        self.upkeep.pinning = Some(name);
        self.upkeep.unpinned = self.tree.next();
        let key = catalog::pin_key(self.spec.id, name);
        self.book.issue(Purpose::PutPin(name), ObjectOperation::Put { key, data });
    }

    /// The root of a snapshot is there.
    pub(in super::super) fn pin_put(&mut self, name: RootName) {
        if self.upkeep.pinning.take_if(|pinning| *pinning == name).is_some() {
            self.upkeep.pins.insert(name.segment, name);
        }
    }

    pub(super) fn put_root(&mut self, generation: u64) {
        let Some(state) = &self.upkeep.flushed else { return };
        let (segment, number) = (state.number, self.upkeep.roots);
        let name = RootName { generation, segment, number };
        let announce_max = self.config.announce_entries_max;
        let (moved, pins) = (self.collect.to_root(), &self.upkeep.pins);
        let data = root::encode(generation, state, self.tree.levels(), pins, &moved, announce_max);
        self.upkeep.roots += 1;
        (self.upkeep.flush_unwritten, self.upkeep.merge_unwritten) = (false, false);
        self.upkeep.renew = self.upkeep.renew.saturating_sub(1);
        let mut gone = std::mem::take(&mut self.upkeep.gone);
        let deleted =
            self.upkeep.pins.extract_if(.., |number, _| state.snapshots.at(*number).is_none());
        gone.pins.extend(deleted.map(|(_, name)| name));
        if !gone.pins.is_empty() {
            self.upkeep.renew = self.upkeep.renew.max(1);
        }
        // Nothing is deleted before the root that named it is no longer kept.
        self.upkeep.objects_unwritten = !gone.objects.is_empty();
        self.upkeep.step = Step::Put { gone };
        let key = catalog::root_key(self.spec.id, name);
        self.book.issue(Purpose::PutRoot(name), ObjectOperation::Put { key, data: vec![data] });
    }

    /// The root is there: nobody else can have written one of this generation.
    pub(in super::super) fn root_put(&mut self, name: RootName) {
        let Step::Put { gone } = std::mem::take(&mut self.upkeep.step) else { return };
        self.upkeep.newest = Some(name);
        self.upkeep.kept.push_back(Kept { name, gone });
        let mut keys = std::mem::take(&mut self.upkeep.orphans);
        while self.upkeep.kept.len() > ROOTS_KEPT {
            let old = self.upkeep.kept.pop_front();
            keys.extend(old.map(|old| catalog::root_key(self.spec.id, old.name)));
            let next = self.upkeep.kept.front_mut();
            let gone = next.map(|next| std::mem::take(&mut next.gone)).unwrap_or_default();
            keys.extend(gone.fragments.into_iter().map(catalog::fragment_key));
            keys.extend(gone.objects);
            if !gone.pins.is_empty() {
                self.upkeep.sweep_due = true;
                self.collect.recount();
            }
            keys.extend(gone.pins.into_iter().map(|name| catalog::pin_key(self.spec.id, name)));
            self.upkeep.perhaps_bytes += gone.perhaps.iter().map(|(_, bytes)| bytes).sum::<u64>();
        }
        let named: u64 = self.tree.levels().fragments().map(Fragment::bytes).sum();
        let reads = self.config.sweep_bytes.saturating_mul(self.upkeep.pins.len() as u64);
        self.upkeep.sweep_due |=
            self.upkeep.perhaps_bytes > (named / PERHAPS).saturating_add(reads);
        self.doom(keys);
    }

    /// These may be deleted after a delay, if nobody else has taken over by then.
    pub(in super::super) fn doom(&mut self, keys: Vec<String>) {
        if !keys.is_empty() {
            self.upkeep.doomed.push_back((self.now.after(self.config.delete_delay), keys));
        }
    }
}
