//! Hands the results of operations on objects to the machines that asked.

use super::Volume;
use super::collector::Collector;
use super::committer::{self, PutFront};
use super::context::Context;
use super::log_reader::{Beginning, SnapshotMap};
use super::maintenance::{self, Surroundings};
use super::purpose::{ObjectOutcome, ObjectPurpose};
use super::reading::Access;
use super::roots;
use crate::store::announce::Outstanding;
use crate::store::catalog::{self, RootName};
use crate::store::event::OpenError;
use crate::store::log::LogState;
use crate::store::map::Get;
use crate::store::map::fragment::FragmentId;
use crate::store::object::ObjectMeta;
use crate::wire::link::StageError;
use bytes::Bytes;

impl Volume {
    pub(super) fn object_done(
        &mut self,
        purpose: ObjectPurpose,
        key: String,
        outcome: ObjectOutcome,
    ) {
        match purpose {
            ObjectPurpose::Collect(serial, request) => {
                let request = (serial, request);
                self.gc.handle(cx!(self), &mut self.map, request, key, outcome);
                return;
            }
            ObjectPurpose::Delete => return self.gc.deleted(&key),
            _ => {}
        }
        match outcome {
            ObjectOutcome::List(list) => self.listed(purpose, &list),
            ObjectOutcome::Data(data) => self.read(purpose, Some(data)),
            ObjectOutcome::NotFound => self.read(purpose, None),
            ObjectOutcome::Done => self.put(purpose, false),
            ObjectOutcome::Exists => self.put(purpose, true),
        }
    }

    fn listed(&mut self, purpose: ObjectPurpose, list: &[ObjectMeta]) {
        match purpose {
            ObjectPurpose::ListRoots => self.roots_listed(list),
            ObjectPurpose::ListAncestor(which) => {
                self.map.ancestor_listed(cx!(self), which, list);
            }
            ObjectPurpose::ListEnd => {
                let ended = self.reader.end_listed(&self.facts, &self.log, list);
                self.route_end(ended);
            }
            ObjectPurpose::ConfirmPut(number) => self.put_confirmed(number, list),
            ObjectPurpose::ListOwners => maintenance::claim_next(cx!(self), list),
            ObjectPurpose::ListFragments => {
                self.map.fragments_listed(cx!(self), self.gc.moved(), list);
            }
            ObjectPurpose::ListPins => self.map.pins_listed(cx!(self), self.gc.moved(), list),
            // All others are no lists.
            _ => {}
        }
        self.route_map();
    }

    /// A put has ended. `exists`: the object exists already, so an earlier attempt put it, if its
    /// name comes only once.
    fn put(&mut self, purpose: ObjectPurpose, exists: bool) {
        match purpose {
            ObjectPurpose::PutSegment(number) if exists => committer::read_back(cx!(self), number),
            ObjectPurpose::PutSegment(number) => {
                self.commits.handle_put(number);
                self.advance_puts();
            }
            ObjectPurpose::PutOwner(generation) if exists => {
                maintenance::read_owner(cx!(self), generation);
            }
            ObjectPurpose::PutOwner(generation) => {
                self.map.claimed(cx!(self), self.reads.is_stranded(), generation);
            }
            ObjectPurpose::PutPin(name) => self.map.pin_put(name),
            ObjectPurpose::PutFragment(fragment) => self.fragment_put(fragment),
            ObjectPurpose::PutRoot(name) => self.map.root_put(&self.facts, name),
            // The existing object says the same: the segment of that number has only one size.
            ObjectPurpose::PutSize { number } => {
                for to in self.sizes.noted(number) {
                    self.reply_resized(to);
                }
            }
            ObjectPurpose::PutStaged(put) => {
                // An attempt that seemed to fail may have put it; another number is as good.
                let result = if exists { Err(StageError::Exists) } else { Ok(()) };
                self.reads.staged(cx!(self), put, result);
            }
            // All others are no puts.
            _ => {}
        }
        self.route_map();
    }

    /// Takes the result of a read; `None` if the object does not exist.
    fn read(&mut self, purpose: ObjectPurpose, data: Option<Bytes>) {
        match purpose {
            ObjectPurpose::ReadAncestor(which, name, older) => {
                self.map.ancestor_read(cx!(self), (which, name), older, data.as_ref());
            }
            ObjectPurpose::ReadRoot(name) => self.root_read(name, data),
            ObjectPurpose::ReadLog { number, part } => {
                self.reader.handle_part(number, part, data);
            }
            ObjectPurpose::ReadBack(number) => {
                self.commits.handle_read_back(cx!(self), number, data.as_deref());
                self.advance_puts();
            }
            ObjectPurpose::ReadOwner(generation) => {
                self.map.owner_read(cx!(self), around!(self), generation, data);
            }
            ObjectPurpose::ReadPin(name) => self.pin_read(name, data),
            ObjectPurpose::ReadBase(name) => self.map.base_read(cx!(self), name, data),
            ObjectPurpose::ReadFragment(get) => self.fragment_read(&get, data),
            ObjectPurpose::ReadPage(want, _) => {
                let maps = self.map.maps(&self.facts, self.gc.moved());
                self.reads.handle_page(&self.facts, &want, data, maps);
            }
            ObjectPurpose::Rebuild { number, part } => self.map.rebuild_read(number, part, data),
            ObjectPurpose::Fetch { read, index, .. } => {
                self.reads.handle_fetch(cx!(self), access!(self), (read, index), data);
            }
            ObjectPurpose::ScanLog { diff, number, part } => {
                let part = (number, part);
                let (facts, out) = (&self.facts, &mut self.out);
                self.diffs.handle_part(facts, out, diff, part, data.as_deref());
            }
            // All others are no reads.
            _ => {}
        }
        self.route_map();
    }

    fn fragment_put(&mut self, fragment: FragmentId) {
        if Collector::owns(fragment) {
            self.gc.fragment_put(fragment);
        } else {
            self.map.fragment_put(fragment);
        }
    }

    fn fragment_read(&mut self, get: &Get, data: Option<Bytes>) {
        if Collector::owns(get.fragment.id) {
            self.gc.fragment_read(get, data);
        } else {
            self.map.fragment_read(cx!(self), get, data);
        }
    }

    fn roots_listed(&mut self, list: &[ObjectMeta]) {
        if self.reader.is_opening() {
            let beginning = self.reader.roots_listed(cx!(self), list);
            self.begin_from(beginning);
        } else {
            self.map.roots_listed(cx!(self), list);
        }
    }

    fn root_read(&mut self, name: RootName, data: Option<Bytes>) {
        if self.reader.is_opening() {
            let beginning = self.reader.root_read(cx!(self), name, data.as_ref());
            return self.begin_from(beginning);
        }
        let stranded = self.reads.is_stranded();
        let Some((claimed, root)) = self.map.root_read(cx!(self), stranded, name, data) else {
            return;
        };
        match self.reader.snapshot_map(name, &root) {
            SnapshotMap::Unwritten => self.map.go_on_from(cx!(self), claimed, name, root),
            SnapshotMap::Deleted => self.fail(OpenError::NoSnapshot),
            SnapshotMap::Known => self.map.snapshot_known(cx!(self), name, root.moved),
            SnapshotMap::In(pin) => self.map.read_snapshot(cx!(self), pin, root.moved),
        }
    }

    /// Takes the result of reading the root of a snapshot, for any purpose.
    fn pin_read(&mut self, name: RootName, data: Option<Bytes>) {
        if self.reader.wants_pin() {
            let beginning = self.reader.pin_read(cx!(self), name, data);
            self.begin_from(beginning);
        } else {
            self.map.pin_read(cx!(self), self.gc.moved(), name, data);
        }
    }

    /// The volume begins there.
    fn begin_from(&mut self, beginning: Beginning) {
        let announce_max = self.facts.config().announce_entries_max;
        match beginning {
            Beginning::Unknown => {}
            Beginning::Empty => {
                self.log = LogState::new(self.facts.spec(), announce_max);
                self.reader.replay_after(&self.facts, &self.log);
            }
            Beginning::Root(name, root) => {
                self.log = root.state.clone();
                self.map.begin_with(&self.facts, name, *root);
                self.reader.replay_after(&self.facts, &self.log);
            }
            Beginning::Clone(root) => {
                self.log = LogState { volume: self.facts.spec().id, clean: true, ..root.state };
                self.log.announced = Outstanding::new(announce_max);
                self.map.begin_with_clone(&self.facts, self.log.clone(), root.levels);
                self.reader.replay_after(&self.facts, &self.log);
            }
            Beginning::Moved(root) => self.gc.adopt(&self.facts, root.moved),
            Beginning::Snapshot { newest, name, root } => {
                self.log = root.state.clone();
                self.map.begin_with_snapshot(&self.facts, newest, root.state, root.levels);
                if self.reader.is_opening() {
                    self.log_ended(0);
                } else {
                    self.map.snapshot_read(cx!(self), name.generation);
                }
            }
            Beginning::Stale => {
                let stranded = self.reads.is_stranded();
                self.map.look_for_roots(&self.facts, &mut self.out, stranded, None);
            }
            Beginning::Failed(error) => self.fail(error),
        }
        self.route_map();
    }

    /// Applies the segments that exist, in the order of the log.
    fn advance_puts(&mut self) {
        loop {
            match self.commits.front() {
                PutFront::Waits => return,
                PutFront::Durable => {
                    self.segment_confirmed();
                    if self.commits.waits_for_map() {
                        return;
                    }
                }
                PutFront::Confirm(number) => {
                    let prefix = catalog::root_prefix(self.facts.spec().id);
                    return self.out.list(ObjectPurpose::ConfirmPut(number), prefix);
                }
                PutFront::Rival => {
                    self.commits.lost(cx!(self), &mut self.owner);
                    self.reader.disown(self.commits.counter());
                    return self.catch_up();
                }
                PutFront::Damaged(error) => return self.fail(error),
            }
        }
    }

    /// Takes the list of roots after the put of this engine's first segment. That segment has to be
    /// the next one of the log.
    fn put_confirmed(&mut self, number: u64, list: &[ObjectMeta]) {
        if !self.commits.is_confirming(number) {
            return;
        }
        let roots = roots::names(self.facts.spec().id, list);
        if roots.iter().all(|root| root.segment < number) {
            self.segment_confirmed();
        } else {
            self.restart();
        }
    }
}
