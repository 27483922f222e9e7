//! Opening: the newest root that is good, then the segments after it; all segments if there is no root.

use super::super::announce::Outstanding;
use super::super::catalog::{RootName, VolumeSpec};
use super::super::log::State;
use super::super::object::{Copies, ObjectMeta, ObjectOperation};
use super::super::open::{OPEN_WINDOW, Replay, Step};
use super::super::{Event, OpenError, catalog, root};
use super::{Phase, Purpose, Volume};
use crate::wire::link::Parent;
use bytes::Bytes;

pub(super) enum Opening {
    /// The roots are being listed.
    Roots,
    /// A root is being read; these are older, the newest last.
    Root {
        older: Vec<RootName>,
    },
    /// The root of a snapshot is being read.
    Pin,
    Replay(Replay),
}

impl Volume {
    pub(super) fn list_roots(&mut self) {
        let prefix = catalog::root_prefix(self.source().id);
        self.book.issue(Purpose::ListRoots, ObjectOperation::List { prefix });
    }

    /// Whose roots are read: the volume's own, or its parent's.
    pub(super) fn source(&self) -> &VolumeSpec {
        self.origin.as_ref().unwrap_or(&self.spec)
    }

    /// The roots of a list, the newest last.
    pub(super) fn roots_in(&self, list: &[ObjectMeta]) -> Vec<RootName> {
        let prefix = catalog::root_prefix(self.source().id);
        let names = list.iter().filter_map(|meta| catalog::parse_root_key(&prefix, &meta.key));
        let mut names: Vec<RootName> = names.collect();
        names.sort_unstable();
        names
    }

    pub(super) fn roots_listed(&mut self, list: &[ObjectMeta]) {
        let names = self.roots_in(list);
        if !matches!(self.phase, Phase::Opening(_)) {
            return self.upkeep_roots_listed(names);
        }
        if self.origin.is_none() {
            self.end.opens(names.last().copied());
        }
        let own = self.origin.is_none() && !self.is_readonly();
        for name in names.iter().filter(|_| own) {
            self.must_reach(name.segment, catalog::root_key(self.spec.id, *name));
        }
        self.open_root(names);
    }

    /// The log has to have this segment, says that object.
    fn must_reach(&mut self, segment: u64, key: String) {
        if self.must_reach.as_ref().is_none_or(|(most, _)| segment >= *most) {
            self.must_reach = Some((segment, key));
        }
    }

    /// Reads the newest of these roots.
    fn open_root(&mut self, mut candidates: Vec<RootName>) {
        let Some(name) = candidates.pop() else {
            if self.origin.is_some() {
                return self.fail(OpenError::ParentBehind);
            }
            if let Some(parent) = self.spec.parents.first() {
                return self.open_parent(*parent);
            }
            self.state = State::new(&self.spec, self.config.announce_entries_max);
            return self.replay_log();
        };
        self.phase = Phase::Opening(Opening::Root { older: candidates });
        self.read_root(name);
    }

    pub(super) fn read_root(&mut self, name: RootName) {
        let key = catalog::root_key(self.source().id, name);
        self.book.issue(
            Purpose::ReadRoot(name),
            ObjectOperation::Get { key, range: None, copies: Copies::Refused },
        );
    }

    /// A root that is what its name says, if it is good.
    pub(super) fn parse_root(&mut self, name: RootName, data: &Bytes) -> Option<root::Root> {
        let parsed = root::parse(self.source(), data, self.config.announce_entries_max);
        let parsed = parsed.map_err(|error| error.to_string()).and_then(|root| {
            let said = (root.generation, root.state.number);
            if said == (name.generation, name.segment) {
                Ok(root)
            } else {
                Err("it is not the one of its name".to_owned())
            }
        });
        match parsed {
            Ok(root) => Some(root),
            Err(reason) => {
                let key = catalog::root_key(self.source().id, name);
                self.event(Event::RootDamaged { key, reason });
                None
            }
        }
    }

    pub(super) fn root_read(&mut self, name: RootName, data: Option<Bytes>) {
        let Phase::Opening(opening) = &mut self.phase else {
            return self.upkeep_root_read(name, data);
        };
        let Opening::Root { older } = opening else { return };
        let older = std::mem::take(older);
        let Some(data) = data else {
            // Whoever deleted it had written newer ones.
            self.phase = Phase::Opening(Opening::Roots);
            self.list_roots();
            return;
        };
        match self.parse_root(name, &data) {
            Some(root) if self.origin.is_some() => self.parent_root(&root),
            Some(root) if self.only_root(name, &root) => {}
            Some(root) => {
                self.base_on(name, root);
                self.replay_log();
            }
            None => self.open_root(older),
        }
    }

    /// Forgets what is known and begins with a root.
    fn base_on(&mut self, name: RootName, root: root::Root) {
        self.state = root.state.clone();
        self.adopt_moved(root.moved);
        self.tree.adopt(root.levels, root.state.number, &mut self.config.pages.lock());
        self.upkeep.based_on(name, root.state, root.pins);
    }

    /// A clone without a root of its own begins with a snapshot of its parent.
    fn open_parent(&mut self, parent: Parent) {
        self.origin = Some(VolumeSpec {
            id: parent.volume,
            created_sectors: 0,
            parents: self.spec.parents[1..].to_vec(),
            ..self.spec.clone()
        });
        self.phase = Phase::Opening(Opening::Roots);
        self.list_roots();
    }

    /// The newest root of the parent names the snapshot's: that was so before the clone was made.
    fn parent_root(&mut self, root: &root::Root) {
        let Some(parent) = self.spec.parents.first() else { return };
        let there = root.state.snapshots.at(parent.segment);
        let there = there.is_some_and(|snapshot| snapshot.id == parent.snapshot);
        match root.pins.get(&parent.segment).filter(|_| there) {
            Some(pin) => {
                self.phase = Phase::Opening(Opening::Pin);
                self.read_pin(*pin);
            }
            None if root.state.number < parent.segment => self.fail(OpenError::ParentBehind),
            None => self.fail(OpenError::NoParent),
        }
    }

    fn parent_pin(&mut self, name: RootName, data: Option<Bytes>) {
        let Some(root) = self.parse_pin(name, data) else {
            let key = catalog::pin_key(self.source().id, name);
            let reason = "the root of the snapshot that the clone began with cannot be read";
            return self.fail(OpenError::Damaged { key, reason: reason.to_owned() });
        };
        self.origin = None;
        let through = root.state.number;
        self.state = State { volume: self.spec.id, clean: true, ..root.state };
        self.state.announced = Outstanding::new(self.config.announce_entries_max);
        self.tree.adopt(root.levels, through, &mut self.config.pages.lock());
        self.upkeep.begun_with(self.state.clone());
        self.replay_log();
    }

    /// What reading the root of a snapshot gave, whatever it was for.
    pub(super) fn pin_read(&mut self, name: RootName, data: Option<Bytes>) {
        if self.origin.is_some() {
            self.parent_pin(name, data);
        } else if self.is_readonly() {
            self.only_pin_read(name, data);
        } else {
            self.sweep_read(name, data);
        }
    }

    fn replay_log(&mut self) {
        let replay = Replay::new(self.spec.id, self.state.number + 1, OPEN_WINDOW);
        self.phase = Phase::Opening(Opening::Replay(replay));
    }

    /// Applies the segments that have been read, until the log ends or more has to be read.
    pub(super) fn advance_log(&mut self) {
        while !self.end.is_listing() {
            let Some(replay) = self.phase.replay() else { return };
            let (step, applied) = (replay.step(), replay.applied);
            match step {
                Step::Apply(segment) if !self.may_apply(&segment) => {
                    if let Some(replay) = self.phase.replay() {
                        replay.put_back(segment);
                    }
                    return;
                }
                Step::Apply(segment) => match self.state.apply(&segment) {
                    Ok(()) => {
                        self.map_segment(&segment);
                        self.resized_by(&segment);
                        self.adopt_if_reached();
                        let last = self.only.as_ref().map(|only| only.segment);
                        if last == Some(self.state.number) {
                            let applied = self.replayed();
                            return self.only_replayed(applied);
                        }
                    }
                    Err(reason) => {
                        let applied = applied - 1;
                        let key = catalog::segment_key(self.spec.id, segment.header.number);
                        let error = OpenError::Damaged { key, reason: reason.to_owned() };
                        self.replay_ended(applied, Err(error));
                    }
                },
                Step::Wait => {
                    let Some(replay) = self.phase.replay() else { return };
                    for (number, part) in replay.reads() {
                        let key = catalog::segment_key(self.spec.id, number);
                        let range = Some(Replay::range(part));
                        self.book.issue(
                            Purpose::ReadLog { number, part },
                            ObjectOperation::Get { key, range, copies: Copies::Refused },
                        );
                    }
                    return;
                }
                Step::End => self.replay_ended(applied, Ok(())),
                Step::Failed(error) => self.replay_ended(applied, Err(error)),
            }
        }
    }

    /// Segments that have been read and applied.
    fn replayed(&mut self) -> u64 {
        self.phase.replay().map_or(0, |replay| replay.applied)
    }

    pub(super) fn log_ended(&mut self, applied: u64) {
        match std::mem::replace(&mut self.phase, Phase::Running) {
            Phase::Opening(_) => {
                if let Some((number, key)) = self.must_reach.take()
                    && self.state.number < number
                {
                    let end = self.state.number;
                    self.fail(OpenError::Truncated { key, number, end });
                    return;
                }
                self.event(Event::Opened {
                    segments: self.state.number,
                    replayed: applied,
                    epoch: self.state.epoch(),
                    committed: self.state.committed,
                });
                self.held_bytes = 0;
                for (session, lane, frame) in std::mem::take(&mut self.held) {
                    self.message(session, lane, frame);
                }
            }
            Phase::CatchingUp(_) => {
                self.upkeep.caught_up();
                if applied > 0 {
                    self.event(Event::Rival {
                        epoch: self.state.epoch(),
                        host: self.state.host(),
                        segments: applied,
                    });
                    self.drop_holder();
                }
            }
            Phase::Running | Phase::Failed(_) => {}
        }
    }
}
