//! The tasks of the store service beside its engines: changes of the catalog, looks at the
//! location, deleted volumes, and the start.

use super::operation::{Kind, Reply, value_bytes};
use super::requests::Asker;
use super::store::{Job, Stage};
use super::task::{Done, task};
use super::tend::{Aim, Entry};
use super::{Event, SECOND, World};
use crate::note;
use longhaul_core::block::VolumeId;
use longhaul_core::store::fleet::attributes::{ReadAttribute, SetAttribute};
use longhaul_core::store::fleet::deleted::FindRecords;
use longhaul_core::store::fleet::deletion::{
    CondemnVolume, DeleteVolume, PurgeVolume, RestoreVolume, TendVolume, Tended,
};
use longhaul_core::store::fleet::listing::{
    CatalogChanges, CatalogEntry, FindChanges, ReadCatalog,
};
use longhaul_core::store::fleet::members::{FindStores, ForgetStores, Register};
use longhaul_core::store::fleet::names::NotCreated;
use longhaul_core::store::fleet::tenants::CreateVolume;
use longhaul_core::store::trash::HANDS_OFF;
use longhaul_core::store::{StorageError, VolumeSpec};
use longhaul_core::wire::link::{SnapshotOperation, VolumeError, VolumeReply};
use std::collections::BTreeMap;

/// The name of the attribute that operators set and read.
const ATTRIBUTE: &str = "keys";

/// Changes of the catalog, one at a time.
impl World {
    pub(super) fn push_job(&mut self, store: usize, job: Job) {
        self.stores[store].chores.jobs.push_back(job);
        self.next_job(store);
    }

    fn next_job(&mut self, store: usize) {
        let at = &mut self.stores[store];
        if at.chores.running {
            return;
        }
        let Some(job) = at.chores.jobs.pop_front() else { return };
        at.chores.running = true;
        let me = Some(at.holder());
        let now = self.clock(store);
        let (asker, task) = match job {
            Job::Delete { entry, lease, clones, to } => {
                self.stores[store].chores.deleting = Some(entry.spec.clone());
                let clones = clones.map(|clones| clones.into_iter().collect());
                (to, task(DeleteVolume { entry, lease, clones }, now, Done::Deleted))
            }
            Job::Operation(number, attempt) => {
                let operation = self.operator.operations.get(&number);
                let Some(operation) = operation.filter(|at| at.attempt == attempt) else {
                    self.stores[store].chores.running = false;
                    return self.next_job(store);
                };
                let task = match operation.kind.clone() {
                    Kind::Create { name, sectors } => {
                        let spec = VolumeSpec {
                            id: VolumeId(self.rng.wide()),
                            name,
                            created_sectors: sectors,
                            block_bytes: 512,
                            created: now,
                            parents: Vec::new(),
                        };
                        let entry = CatalogEntry { spec, sectors };
                        if let Some(operation) = self.operator.operations.get_mut(&number) {
                            operation.made = Some(entry.clone());
                        }
                        task(CreateVolume(entry), now, Done::Created)
                    }
                    Kind::Restore { id: volume, name } => {
                        self.stores[store].chores.restoring = Some(volume);
                        task(RestoreVolume { me, volume, name, of: None }, now, Done::Restored)
                    }
                    Kind::Purge { id: volume } => {
                        task(CondemnVolume { volume, of: None }, now, Done::Condemned)
                    }
                    Kind::SetAttribute { id: volume, epoch, value } => {
                        let (name, data) = (ATTRIBUTE.to_owned(), value_bytes(value));
                        let set = SetAttribute { volume, epoch, name, data, replaces: None };
                        task(set, now, Done::AttributeSet)
                    }
                    Kind::GetAttribute { id: volume } => {
                        let read = ReadAttribute { volume, name: ATTRIBUTE.to_owned() };
                        task(read, now, Done::Attribute)
                    }
                    _ => return,
                };
                (Asker::Operation(number, attempt), task)
            }
        };
        self.start(store, Aim::Job(asker), task);
    }

    /// Handles the outcome of a change of the catalog, and begins the next one.
    pub(super) fn job_done(&mut self, store: usize, asker: &Asker, done: Done) {
        self.stores[store].chores.running = false;
        let of = match asker {
            Asker::Operation(number, attempt) => (*number, *attempt),
            _ => (0, 0),
        };
        match done {
            Done::Created(result) => self.created(store, of, result),
            Done::Deleted(result) => self.deleted(store, asker, result),
            Done::Restored(result) => {
                let id = self.stores[store].chores.restoring.take();
                if let (Err(_), Some(id)) = (&result, id) {
                    self.note_deletion(store, id);
                }
                if let Ok(entry) = &result {
                    self.stores[store].chores.due.remove(&entry.spec.id);
                    self.learn_new(store, entry.clone());
                }
                self.operation_over(store, of, result.map(Reply::Entry));
            }
            Done::Condemned(result) => {
                if let Ok(spec) = &result {
                    let now = self.clock(store);
                    let purge = task(PurgeVolume(spec.id), now, Done::Tended);
                    self.start(store, Aim::Remove(spec.id), purge);
                }
                self.operation_over(store, of, result.map(|_| Reply::Done));
            }
            Done::Attribute(result) => {
                self.operation_over(store, of, result.map(Reply::Attribute));
            }
            Done::AttributeSet(result) => {
                self.operation_over(store, of, result.map(|()| Reply::Done));
            }
            _ => {}
        }
        self.next_job(store);
        self.may_stop(store);
    }

    fn created(&mut self, store: usize, of: (u64, u64), result: Result<(), NotCreated>) {
        let made = self.operator.operations.get(&of.0).and_then(|at| at.made.clone());
        let result = match (result, made) {
            (Ok(()), Some(entry)) => {
                self.learn_new(store, entry.clone());
                Ok(Reply::Entry(entry))
            }
            (Ok(()), None) => return,
            (Err(NotCreated { error, taken }), made) => {
                if let Some(entry) = taken {
                    let name = entry.spec.name.clone();
                    self.stores[store].directory.entry(name).or_insert(*entry);
                }
                let late = made.is_some_and(|made| self.truths.contains_key(&made.spec.id));
                let limited = matches!(&error, VolumeError::Invalid(why) if why.contains("may"));
                self.coverage.limited_late += u64::from(late && limited);
                Err(error)
            }
        };
        self.operation_over(store, of, result);
    }

    /// Adds a volume that got its name here, and tells the other stores.
    pub(super) fn learn_new(&mut self, store: usize, entry: CatalogEntry) {
        self.stores[store].directory.insert(entry.spec.name.clone(), entry);
        self.tell_peers(store);
    }

    fn deleted(&mut self, store: usize, asker: &Asker, result: Result<(), VolumeError>) {
        let Some(spec) = self.stores[store].chores.deleting.take() else { return };
        let id = spec.id;
        self.note_deletion(store, id);
        if matches!(result, Ok(()) | Err(VolumeError::NotFound)) {
            self.forget_volume(store, id);
            self.tell_peers(store);
            if result.is_err() {
                self.look_around(store);
            }
        }
        if result.is_ok() && self.plan.grace == 0 {
            let now = self.clock(store);
            self.start(store, Aim::Remove(id), task(PurgeVolume(id), now, Done::Tended));
        }
        self.answer_volume(store, asker, result.map(|()| VolumeReply::Done));
    }
}

/// Looks at the location, for volumes that other stores created or deleted.
impl World {
    pub(super) fn look_around(&mut self, store: usize) {
        let at = &mut self.stores[store];
        if at.stage != Stage::Up {
            return;
        }
        if std::mem::replace(&mut at.chores.looking, true) {
            at.chores.look_again = true;
            return;
        }
        let known = at.directory.values().map(|entry| entry.spec.clone()).collect();
        let now = self.clock(store);
        self.start(store, Aim::LookVolumes, task(FindChanges { known }, now, Done::Changes));
    }

    pub(super) fn looked(
        &mut self,
        store: usize,
        result: Result<CatalogChanges, StorageError>,
        entry: &Entry,
    ) {
        match result {
            Ok(CatalogChanges { new, gone, .. }) => {
                for name in gone {
                    let at = &self.stores[store];
                    if let Some(entry) = at.directory.get(&name) {
                        let id = entry.spec.id;
                        self.forget_volume(store, id);
                    }
                }
                for entry in new {
                    let name = entry.spec.name.clone();
                    self.stores[store].directory.entry(name).or_insert(entry);
                }
                let now = self.clock(store);
                self.start(store, Aim::LookRecords, task(FindRecords, now, Done::Records));
            }
            Err(error) => {
                if !entry.troubled {
                    self.fail(format!("changes cannot be found: {error}"));
                }
                self.look_is_over(store);
            }
        }
    }

    pub(super) fn looked_at_records(
        &mut self,
        store: usize,
        result: Result<BTreeMap<VolumeId, u64>, StorageError>,
    ) {
        let at = self.next_look(store);
        for id in result.unwrap_or_default().into_keys() {
            self.stores[store].chores.due.entry(id).or_insert(at);
        }
        self.look_is_over(store);
    }

    fn look_is_over(&mut self, store: usize) {
        let chores = &mut self.stores[store].chores;
        chores.looking = false;
        if std::mem::take(&mut chores.look_again) {
            return self.look_around(store);
        }
        let (operations, requests) =
            (std::mem::take(&mut chores.unknown), std::mem::take(&mut chores.unknown_sessions));
        for (number, attempt) in operations {
            self.operation_arrives(number, attempt);
        }
        for request in requests {
            self.take_unknown(store, request);
        }
    }
}

/// Deleted volumes: each one has a time for its next step.
impl World {
    fn next_look(&self, store: usize) -> u64 {
        self.clock(store) + HANDS_OFF
    }

    fn note_deletion(&mut self, store: usize, id: VolumeId) {
        let at = self.next_look(store);
        let due = self.stores[store].chores.due.entry(id).or_insert(at);
        *due = at.min(*due);
    }

    pub(super) fn store_tick(&mut self, store: usize) {
        let incarnation = self.stores[store].incarnation;
        let delay = self.rng.between(5, 30) * SECOND;
        self.after(delay, Event::StoreTick(store, incarnation));
        if self.stores[store].stage != Stage::Up {
            return;
        }
        self.close_unused(store);
        if self.stores[store].draining {
            self.tell_hosts(store);
        }
        let now = self.clock(store);
        let chores = &mut self.stores[store].chores;
        if chores.tending.is_empty() {
            let due = chores.due.iter().filter(|(_, at)| **at <= now);
            chores.tending = due.map(|(id, _)| *id).collect();
            self.tend_next(store);
        }
    }

    fn tend_next(&mut self, store: usize) {
        let (now, grace) = (self.clock(store), self.plan.grace);
        let at = &self.stores[store];
        let Some(volume) = at.chores.tending.front().copied() else { return };
        let tend = TendVolume { me: Some(at.holder()), volume, grace, now };
        self.start(store, Aim::Tend(volume), task(tend, now, Done::Tended));
    }

    /// Handles the outcome of a step for a deleted volume.
    pub(super) fn tended(
        &mut self,
        store: usize,
        id: VolumeId,
        result: Result<Tended, VolumeError>,
        aim: Aim,
    ) {
        if matches!(aim, Aim::Tend(_)) {
            self.stores[store].chores.tending.pop_front();
        }
        let due = &mut self.stores[store].chores.due;
        match result {
            Ok(Tended::Wait(at)) => {
                due.insert(id, at);
            }
            Ok(Tended::Nothing) => {
                due.remove(&id);
            }
            Ok(Tended::Kept) => {
                due.remove(&id);
                self.coverage.kept += 1;
                self.tell_peers(store);
            }
            Ok(Tended::Removed(spec)) => {
                due.remove(&id);
                self.coverage.removed += 1;
                if let Some(parent) = spec.parents.first() {
                    let forget = SnapshotOperation::Forget { id };
                    self.ask_engine(store, parent.volume, forget, Asker::Nobody);
                }
            }
            Err(_) => self.note_deletion(store, id),
        }
        self.tend_next_after(store, &aim);
    }

    fn tend_next_after(&mut self, store: usize, aim: &Aim) {
        if matches!(aim, Aim::Tend(_)) {
            self.tend_next(store);
        }
    }
}

/// Starts of processes, and the removal of stores from the installation.
impl World {
    pub(super) fn start_store(&mut self, store: usize) {
        if self.stores[store].stage != Stage::Down || self.stores[store].left {
            return;
        }
        note!(self, "s{store} starts");
        self.stores[store].stage = Stage::Starting;
        self.stores[store].process = self.rng.wide();
        let now = self.clock(store);
        self.start(store, Aim::StartStores, task(FindStores, now, Done::Stores));
    }

    /// Handles the outcome of a step of a start. If a store is not starting, it ignores the
    /// outcome.
    pub(super) fn start_goes_on(&mut self, store: usize, done: Done) {
        if self.stores[store].stage != Stage::Starting {
            return;
        }
        let now = self.clock(store);
        match done {
            Done::Stores(Ok(found)) => {
                let at = &mut self.stores[store];
                let before = found.get(&at.id).cloned();
                at.known.clone_from(&before);
                self.coverage.joined += u64::from(before.is_none() && self.now.0 > SECOND);
                let (id, addresses) = (at.id, at.holder().addresses);
                let (ca, software) = (String::new(), String::new());
                let register = Register { before, id, addresses, ca, software };
                self.start(store, Aim::StartMember, task(register, now, Done::Member));
            }
            Done::Member(Ok(())) => {
                let read = task(ReadCatalog::default(), now, Done::Read);
                self.start(store, Aim::StartCatalog, read);
            }
            Done::Read(Ok(catalog)) => {
                self.stores[store].directory = catalog.entries;
                self.start(store, Aim::StartRecords, task(FindRecords, now, Done::Records));
            }
            Done::Records(Ok(records)) => {
                let at = &mut self.stores[store];
                at.chores.due = records.into_keys().map(|id| (id, 0)).collect();
                at.stage = Stage::Up;
                let incarnation = at.incarnation;
                note!(self, "s{store} is up");
                self.after(SECOND, Event::StoreTick(store, incarnation));
                self.tell_peers(store);
            }
            _ => {
                self.stores[store].stage = Stage::Down;
                self.after(SECOND, Event::StoreStarts(store));
            }
        }
    }

    /// Removes the registration of a store that is down. Another store executes this.
    pub(super) fn forget_store(&mut self, by: usize, gone: usize) {
        let Some(known) = self.stores[gone].known.take() else { return };
        let id = self.stores[gone].id;
        let now = self.clock(by);
        self.coverage.forgotten += 1;
        let forget = ForgetStores(vec![(id, known)]);
        self.start(by, Aim::Forget, task(forget, now, Done::Member));
    }
}
