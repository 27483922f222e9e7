//! Operations of operators: their way to a store, their answers, and the checks of these answers.

use super::World;
use super::requests::{Asker, Request};
use super::store::Job;
use super::task::{Done, task};
use super::tend::Aim;
use super::truth::Truth;
use super::{Event, SECOND};
use crate::note;
use bytes::Bytes;
use longhaul_core::block::{Time, VolumeId};
use longhaul_core::store::fleet::deleted::ListDeleted;
use longhaul_core::store::fleet::listing::{Catalog, CatalogEntry, ReadCatalog};
use longhaul_core::store::fleet::tenants::{AllowSize, OperateTenants};
use longhaul_core::store::tenant::tenant_of;
use longhaul_core::store::trash::{Decision, HANDS_OFF};
use longhaul_core::wire::link::{
    DeletedInfo, Frame, SnapshotOperation, SnapshotReply, TenantOperation, ToStore, VolumeError,
    VolumeOperation, VolumeReply,
};
use std::collections::BTreeMap;

/// The time that an operator waits for an answer.
const PATIENCE: u64 = 40 * SECOND;

/// The request of an operator.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    Create { name: String, sectors: u64 },
    Clone { parent: String, snapshot: String, name: String, id: VolumeId },
    Snapshot { name: String, snapshot: String, id: VolumeId },
    DeleteSnapshot { name: String, snapshot: String },
    Delete { name: String },
    Restore { id: VolumeId, name: String },
    Purge { id: VolumeId },
    Show { name: String },
    Resize { name: String, sectors: u64 },
    Shrink { name: String, sectors: u64 },
    AcceptLoss { name: String },
    Tenant(TenantOperation),
    SetAttribute { id: VolumeId, epoch: u64, value: u64 },
    GetAttribute { id: VolumeId },
    List,
    ListDeleted,
}

impl Kind {
    /// The name of the existing volume that the operation concerns, if it names one.
    pub fn name(&self) -> Option<&str> {
        match self {
            Kind::Clone { parent: name, .. }
            | Kind::Snapshot { name, .. }
            | Kind::DeleteSnapshot { name, .. }
            | Kind::Delete { name }
            | Kind::Show { name }
            | Kind::Resize { name, .. }
            | Kind::Shrink { name, .. }
            | Kind::AcceptLoss { name } => Some(name),
            _ => None,
        }
    }

    fn volume_operation(&self) -> Option<VolumeOperation> {
        let snapshot =
            |name: &String, operation| VolumeOperation::Snapshot { name: name.clone(), operation };
        Some(match self.clone() {
            Kind::Clone { parent, snapshot: of, name, id } => {
                snapshot(&parent, SnapshotOperation::Clone { snapshot: of, clone: name, id })
            }
            Kind::Snapshot { name, snapshot: of, id } => {
                let (created, barrier) = (1, false);
                snapshot(&name, SnapshotOperation::Create { snapshot: of, id, created, barrier })
            }
            Kind::DeleteSnapshot { name, snapshot: of } => {
                snapshot(&name, SnapshotOperation::Delete { snapshot: of })
            }
            Kind::Delete { name } => VolumeOperation::Delete { name },
            Kind::Show { name } => VolumeOperation::Show { name },
            Kind::Resize { name, sectors } => VolumeOperation::Resize { name, sectors },
            Kind::Shrink { name, sectors } => VolumeOperation::Shrink { name, sectors },
            Kind::AcceptLoss { name } => VolumeOperation::AcceptLoss { name },
            _ => return None,
        })
    }
}

/// The content of a successful answer.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    Done,
    Volume(VolumeReply),
    Entry(CatalogEntry),
    Attribute(Bytes),
    Catalog(Catalog),
    Trash(Vec<DeletedInfo>),
}

/// An operation whose operator has no final answer.
pub(super) struct Operation {
    pub kind: Kind,
    pub attempt: u64,
    /// Number of attempts.
    asks: u32,
    pub store: usize,
    /// The times of the first attempt and of the last one.
    begun: Time,
    asked: Time,
    /// The existing and the deleted volumes at the last attempt, with their numbers of
    /// restorations.
    there: BTreeMap<VolumeId, u64>,
    gone: BTreeMap<VolumeId, u64>,
    /// The volume that had the name when the store looked it up.
    pub resolved: Option<VolumeId>,
    looked: bool,
    /// The last acknowledged write of that volume at that time.
    committed: u64,
    /// The number of restorations of that volume at that time.
    restored: u64,
    answer: Option<Result<Reply, VolumeError>>,
    /// The volume that the operation is to create.
    pub made: Option<CatalogEntry>,
    /// Whether a store did not answer when another one forwarded the request. It may still carry
    /// it out.
    pub left: bool,
}

impl World {
    /// Begins an operation of an operator.
    pub(super) fn begin_operation(&mut self, kind: Kind) {
        let number = self.number();
        let operation = Operation {
            kind,
            attempt: 0,
            asks: 0,
            store: 0,
            begun: self.now,
            asked: self.now,
            left: false,
            there: BTreeMap::new(),
            gone: BTreeMap::new(),
            resolved: None,
            looked: false,
            committed: 0,
            restored: 0,
            answer: None,
            made: None,
        };
        self.operator.operations.insert(number, operation);
        self.ask(number);
    }

    /// Sends an operation to a running store. Without one, the operator waits for a second.
    fn ask(&mut self, number: u64) {
        let Some(store) = self.operator.some_store(&self.stores) else {
            self.after(SECOND, Event::OperationAnswered(number, u64::MAX));
            return;
        };
        let exists = |(id, truth): (&VolumeId, &Truth)| {
            (truth.fate.exists && truth.fate.deletes == 0 && !truth.names.is_empty())
                .then_some((*id, truth.fate.restored))
        };
        let there = self.truths.iter().filter_map(exists).collect();
        let gone = self.truths.iter().filter(|(_, truth)| {
            truth.fate.deleted && truth.fate.restores == 0 && truth.names.is_empty()
        });
        let gone = gone.map(|(id, truth)| (*id, truth.fate.restored)).collect();
        let (now, attempts) = (self.now, self.number());
        let Some(operation) = self.operator.operations.get_mut(&number) else { return };
        self.coverage.asked_again += u64::from(operation.asks > 0);
        operation.asks += 1;
        operation.attempt = attempts;
        operation.store = store;
        operation.asked = now;
        (operation.there, operation.gone) = (there, gone);
        (operation.resolved, operation.looked, operation.answer) = (None, false, None);
        note!(self, "operation {number}.{attempts} at s{store} {:?}", operation.kind);
        let delay = self.operator.rng.spread(1000, 50_000_000);
        self.after(delay, Event::OperationArrives(number, attempts));
        self.after(PATIENCE, Event::OperationAnswered(number, attempts));
    }

    fn is_current(&self, number: u64, attempt: u64) -> bool {
        self.operator.operations.get(&number).is_some_and(|at| at.attempt == attempt)
    }

    pub(super) fn operation_arrives(&mut self, number: u64, attempt: u64) {
        if !self.is_current(number, attempt) {
            return;
        }
        let Some(operation) = self.operator.operations.get(&number) else { return };
        let (store, kind, looked) = (operation.store, operation.kind.clone(), operation.looked);
        if !self.stores[store].is_up() {
            return;
        }
        if let Some(name) = kind.name() {
            let entry = self.stores[store].directory.get(name).cloned();
            let Some(entry) = entry else {
                if looked {
                    return self.operation_over(
                        store,
                        (number, attempt),
                        Err(VolumeError::NotFound),
                    );
                }
                if let Some(operation) = self.operator.operations.get_mut(&number) {
                    operation.looked = true;
                }
                self.stores[store].chores.unknown.push((number, attempt));
                return self.look_around(store);
            };
            return self.resolved(store, (number, attempt), &kind, entry);
        }
        let (now, clock) = (self.clock(store), self.clock(store));
        match &kind {
            Kind::Restore { id, .. } => {
                if let Some(truth) = self.truths.get_mut(id) {
                    truth.fate.restores += 1;
                }
                self.push_job(store, Job::Operation(number, attempt));
            }
            Kind::Purge { id } => {
                if let Some(truth) = self.truths.get_mut(id) {
                    truth.fate.purges += 1;
                }
                self.push_job(store, Job::Operation(number, attempt));
            }
            Kind::Tenant(operation) => {
                let operation = OperateTenants(operation.clone());
                let task = task(operation, clock, Done::Tenant);
                self.start(store, Aim::Operation(number, attempt), task);
            }
            Kind::List => {
                let task = task(ReadCatalog::default(), now, Done::Read);
                self.start(store, Aim::Operation(number, attempt), task);
            }
            Kind::ListDeleted => {
                let grace = self.plan.grace;
                let list = ListDeleted { after: VolumeId(0), grace, wanted: &|_| true };
                self.start(store, Aim::Operation(number, attempt), task(list, now, Done::Trash));
            }
            _ => self.push_job(store, Job::Operation(number, attempt)),
        }
    }

    /// Continues an operation after the store has found the volume by its name.
    fn resolved(&mut self, store: usize, of: (u64, u64), kind: &Kind, entry: CatalogEntry) {
        let id = entry.spec.id;
        let committed = self.truths.get(&id).map_or(0, |truth| truth.acked);
        let restored = self.truths.get(&id).map_or(0, |truth| truth.fate.restored);
        if let Some(operation) = self.operator.operations.get_mut(&of.0) {
            operation.resolved = Some(id);
            (operation.committed, operation.restored) = (committed, restored);
        }
        if let Kind::Clone { id: clone, .. } = kind
            && let Some(truth) = self.truths.get_mut(clone)
        {
            truth.fate.again += 1;
        }
        if matches!(kind, Kind::Delete { .. })
            && let Some(truth) = self.truths.get_mut(&id)
        {
            truth.fate.deletes += 1;
        }
        if let Kind::Resize { sectors, .. } = kind
            && entry.spec.tenant().is_some()
        {
            let now = self.clock(store);
            let allow = AllowSize(CatalogEntry { spec: entry.spec, sectors: *sectors });
            self.start(store, Aim::Growth(of.0, of.1), task(allow, now, Done::Allowed));
            return;
        }
        self.ask_volume(store, of, kind, id);
    }

    fn ask_volume(&mut self, store: usize, of: (u64, u64), kind: &Kind, volume: VolumeId) {
        let Some(operation) = kind.volume_operation() else { return };
        let frame = Frame::from(ToStore::Volume { request: 0, operation });
        let asker = Asker::Operation(of.0, of.1);
        self.take(store, Request { asker, volume, frame, from_store: false });
    }

    /// Continues a resize after the decision whether the limits of the tenant allow the size.
    pub(super) fn growth(&mut self, store: usize, of: (u64, u64), result: Result<(), VolumeError>) {
        let operation = self.operator.operations.get(&of.0).filter(|at| at.attempt == of.1);
        let Some(operation) = operation else { return };
        let (kind, id) = (operation.kind.clone(), operation.resolved);
        match (result, id) {
            (Ok(()), Some(id)) => self.ask_volume(store, of, &kind, id),
            (Ok(()), None) => {}
            (Err(error), _) => self.operation_over(store, of, Err(error)),
        }
    }

    /// Answers an operation with the outcome of its procedure.
    pub(super) fn operation_done(
        &mut self,
        store: usize,
        of: (u64, u64),
        done: Done,
        troubled: bool,
    ) {
        let result = match done {
            Done::Cloned(result) => {
                if let Ok(entry) = &result {
                    self.learn_new(store, entry.clone());
                }
                result.map(Reply::Entry)
            }
            Done::Tenant(result) => result.map(|_| Reply::Done),
            Done::Read(result) => {
                if let (Err(error), false) = (&result, troubled) {
                    self.fail(format!("the catalog cannot be read: {error}"));
                }
                result.map(Reply::Catalog).map_err(VolumeError::from)
            }
            Done::Trash(result) => {
                if let (Err(error), false) = (&result, troubled) {
                    self.fail(format!("deleted volumes cannot be listed: {error}"));
                }
                result.map(|(list, _)| Reply::Trash(list))
            }
            _ => return,
        };
        self.operation_over(store, of, result);
    }

    /// Checks the answer of a store, and sends it to the operator. Some answers get lost.
    pub(super) fn operation_over(
        &mut self,
        store: usize,
        (number, attempt): (u64, u64),
        result: Result<Reply, VolumeError>,
    ) {
        note!(self, "operation {number}.{attempt} is answered by s{store} {result:?}");
        let Some(operation) = self.operator.operations.get(&number) else { return };
        if operation.attempt != attempt || operation.answer.is_some() {
            return;
        }
        let checked = self.check_answer(number, &result);
        self.require(checked.map_err(|error| format!("operation {number}: {error}")));
        let Some(operation) = self.operator.operations.get_mut(&number) else { return };
        operation.answer = Some(result);
        let lost = !self.end.is_quiet() && self.operator.rng.percent(5);
        if !lost {
            let delay = self.operator.rng.spread(1000, 50_000_000);
            self.after(delay, Event::OperationAnswered(number, attempt));
        }
    }

    /// Compares an answer with the objects, at the moment at which the store gives it.
    fn check_answer(
        &mut self,
        number: u64,
        result: &Result<Reply, VolumeError>,
    ) -> Result<(), String> {
        let Some(operation) = self.operator.operations.get(&number) else { return Ok(()) };
        let (kind, resolved, left) = (operation.kind.clone(), operation.resolved, operation.left);
        // While a store deletes a volume, it does not find it. So this answer does not mean that
        // the deletion is over.
        let deletes = matches!(kind, Kind::Delete { .. });
        let settled = match result {
            Err(VolumeError::Store(_)) => false,
            Err(VolumeError::NotFound) => !deletes,
            Err(_) => !left,
            Ok(_) => true,
        };
        match &kind {
            Kind::Create { name, .. } => {
                if let Ok(Reply::Entry(entry)) = result {
                    self.coverage.created += 1;
                    // The answer may come after a deletion and a restoration by another name.
                    let renamed = |truth: &Truth| {
                        !truth.names.contains(name)
                            && u64::from(truth.fate.restores) + truth.fate.restored > 0
                    };
                    if self.truths.get(&entry.spec.id).is_some_and(renamed) {
                        return Ok(());
                    }
                    return self.check_exists(entry, name);
                }
                self.coverage.name_taken += u64::from(matches!(result, Err(VolumeError::Exists)));
                if let Err(VolumeError::Invalid(why)) = result {
                    self.coverage.limited += u64::from(why.contains("may have"));
                }
            }
            Kind::Clone { name, id, .. } => {
                let gone = operation.gone.contains_key(id);
                if settled && let Some(truth) = self.truths.get_mut(id) {
                    truth.fate.again = truth.fate.again.saturating_sub(1);
                }
                if let Ok(Reply::Entry(entry)) = result {
                    let still = self.truths.get(id).is_some_and(|truth| {
                        truth.fate.deleted && truth.fate.restores == 0 && !truth.fate.condemned
                    });
                    if gone && still {
                        return Err(format!("clone {id} is said to exist, and is deleted"));
                    }
                    let fate = self.truths.get(&entry.spec.id).map(|truth| truth.fate.exists);
                    self.coverage.cloned += u64::from(fate == Some(false));
                    self.coverage.cloned_again += u64::from(fate == Some(true));
                    self.check_exists(entry, name)?;
                    return self.check_pinned(entry);
                }
            }
            Kind::Delete { .. } => {
                let Some(id) = resolved else { return Ok(()) };
                let there = operation.there.clone();
                self.check_clones(id, &there, result)?;
                let restored = operation.restored;
                self.check_deleted(id, result, (settled, restored))?;
                return Ok(());
            }
            Kind::Restore { id, name } => return self.check_restored(*id, name, result),
            Kind::Purge { id } => {
                let Some(truth) = self.truths.get_mut(id) else { return Ok(()) };
                if settled && result.is_err() {
                    truth.fate.purges = truth.fate.purges.saturating_sub(1);
                }
                let clones =
                    matches!(result, Err(VolumeError::Invalid(why)) if why.contains("clon"));
                self.coverage.purges_refused += u64::from(clones);
                if result.is_ok() && !truth.fate.condemned {
                    return Err(format!("volume {id} is said to be purged, and is not"));
                }
            }
            Kind::Show { .. } => {
                if let Ok(Reply::Volume(VolumeReply::Volume(info))) = result
                    && let Some(live) = &info.live
                    && resolved == Some(info.id)
                {
                    self.coverage.shown += 1;
                    let (committed, begun) = (operation.committed, operation.begun);
                    let excused = self.truths.get(&info.id).is_some_and(|truth| {
                        truth.fate.condemned || truth.fate.rivaled.is_some_and(|at| at >= begun)
                    });
                    if live.committed < committed && !excused {
                        let shown = live.committed;
                        return Err(format!("{committed} were committed, {shown} are shown"));
                    }
                }
            }
            Kind::Resize { .. } | Kind::Shrink { .. } => {
                self.coverage.resized += u64::from(result.is_ok());
            }
            Kind::Snapshot { id, .. } => {
                if let Ok(Reply::Volume(VolumeReply::Snapshot(SnapshotReply::Taken(_)))) = result
                    && let Some(truth) = resolved.and_then(|volume| self.truths.get(&volume))
                    && !truth.fate.condemned
                    && !truth.snapshots.contains_key(id)
                {
                    return Err(format!("snapshot {id} is said to be taken, and is not"));
                }
            }
            Kind::List => {
                if let Ok(Reply::Catalog(catalog)) = result {
                    return self.check_catalog(number, catalog);
                }
            }
            Kind::ListDeleted => {
                if let Ok(Reply::Trash(list)) = result {
                    return self.check_trash(number, list);
                }
            }
            Kind::Tenant(asked) => return self.check_tenant(asked, result),
            Kind::SetAttribute { id, epoch, value } => {
                if result.is_ok() {
                    self.coverage.attributes_set += 1;
                    let (asked, now) = (operation.begun, self.now);
                    self.operator.attributes.set(*id, *epoch, *value, (asked, now));
                } else if settled {
                    self.operator.attributes.refused(*id, *value);
                }
            }
            Kind::GetAttribute { id } => {
                if let Ok(Reply::Attribute(bytes)) = result {
                    self.coverage.attributes_read += 1;
                    let removed = self.truths.get(id).is_none_or(|truth| truth.fate.condemned);
                    if !removed {
                        return self.operator.attributes.check(*id, bytes, operation.asked);
                    }
                }
            }
            Kind::DeleteSnapshot { .. } | Kind::AcceptLoss { .. } => {}
        }
        Ok(())
    }

    /// Checks and notes that an operator hears of a volume with this name. It also checks that the
    /// limits of its tenant permit the volume.
    fn check_exists(&mut self, entry: &CatalogEntry, name: &str) -> Result<(), String> {
        let id = entry.spec.id;
        let Some(truth) = self.truths.get_mut(&id) else {
            return Err(format!("volume {id} is said to exist, and never did"));
        };
        let going = truth.fate.deletes > 0 || truth.fate.deleted;
        // If the parent of a clone is deleted, one store may restore the clone and another one may
        // take that back.
        let orphan = !truth.spec.parents.is_empty() && truth.fate.restored > 0;
        if !truth.names.contains(name) && orphan {
            return Ok(());
        }
        if !truth.names.contains(name) && !going {
            return Err(format!("volume {id} is said to be {name}, it has {:?}", truth.names));
        }
        truth.fate.made = true;
        if going || std::mem::replace(&mut truth.fate.exists, true) {
            return Ok(());
        }
        let Some(tenant) = tenant_of(name) else { return Ok(()) };
        let of = |truth: &&Truth| {
            truth.fate.exists && truth.names.iter().any(|name| tenant_of(name) == Some(tenant))
        };
        // The store that counted last saw all of these volumes. One of the limits since the oldest
        // name has to permit them.
        let volumes = self.truths.values().filter(of);
        let has = volumes.clone().count() as u64;
        let since = volumes.map(Truth::tenant_then).min().unwrap_or(0);
        let most = self.operator.tenants.most_volumes(tenant, since);
        if has > most {
            return Err(format!("tenant {tenant} has {has} volumes, and may have {most}"));
        }
        Ok(())
    }

    /// Checks that the parent of an existing clone has the clone in its log, and is not deleted.
    fn check_pinned(&self, entry: &CatalogEntry) -> Result<(), String> {
        let id = entry.spec.id;
        let Some(clone) = self.truths.get(&id).filter(|clone| clone.fate.deletes == 0) else {
            return Ok(());
        };
        for parent in clone.spec.parents.iter().take(1) {
            let parent = self.truths.get(&parent.volume);
            // The name of a purged parent came late: the parent counts as another volume.
            if parent.is_some_and(|parent| parent.fate.raced) {
                continue;
            }
            if clone.fate.exists && !parent.is_some_and(|parent| parent.clones.contains(&id)) {
                return Err(format!("clone {id} is said to exist, and its parent does not know"));
            }
            let gone = |parent: &Truth| {
                let fate = &parent.fate;
                fate.condemned || fate.deleted && fate.restores + fate.again == 0
            };
            if clone.fate.exists && parent.is_some_and(gone) {
                return Err(format!("clone {id} is said to exist, and its parent is deleted"));
            }
        }
        Ok(())
    }

    /// Checks that no store deletes a volume with clones.
    fn check_clones(
        &self,
        id: VolumeId,
        there: &BTreeMap<VolumeId, u64>,
        result: &Result<Reply, VolumeError>,
    ) -> Result<(), String> {
        let clone = |truth: &&Truth| {
            let fate = &truth.fate;
            let stays = fate.exists && fate.deletes == 0 && fate.restores == 0;
            let of = truth.spec.parents.iter().any(|parent| parent.volume == id);
            stays && of && there.contains_key(&truth.spec.id)
        };
        match self.truths.values().find(clone) {
            Some(clone) if result.is_ok() => {
                Err(format!("volume {id} is deleted, and has clone {}", clone.spec.name))
            }
            _ => Ok(()),
        }
    }

    fn check_deleted(
        &mut self,
        id: VolumeId,
        result: &Result<Reply, VolumeError>,
        (settled, restored_before): (bool, u64),
    ) -> Result<(), String> {
        let Some(truth) = self.truths.get_mut(&id) else { return Ok(()) };
        let fate = &mut truth.fate;
        if settled {
            fate.deletes = fate.deletes.saturating_sub(1);
        }
        if let Err(VolumeError::Invalid(why)) = result {
            self.coverage.has_clones += u64::from(why.contains("clones"));
        }
        if result.is_err() {
            return Ok(());
        }
        self.coverage.deleted += 1;
        if fate.restores + fate.again > 0 || fate.restored != restored_before {
            fate.deletes += 1;
            return Ok(());
        }
        (fate.exists, fate.deleted) = (false, true);
        // A clone that nobody was told of may get its name once more, by a put that failed after
        // its effect. Then its store takes the name back.
        let making = !truth.spec.parents.is_empty() && !truth.fate.made;
        if let Some(name) = truth.names.first().filter(|_| !making) {
            return Err(format!("volume {id} is said to be deleted, and has the name {name}"));
        }
        let restored = truth.decision() == Some(Decision::Restored);
        if !truth.fate.condemned && (restored || truth.records.is_empty()) {
            return Err(format!("volume {id} is said to be deleted, and no record says so"));
        }
        Ok(())
    }

    fn check_restored(
        &mut self,
        id: VolumeId,
        name: &str,
        result: &Result<Reply, VolumeError>,
    ) -> Result<(), String> {
        let Some(truth) = self.truths.get_mut(&id) else { return Ok(()) };
        let fate = &mut truth.fate;
        match result {
            Ok(Reply::Entry(entry)) => {
                self.coverage.restored += 1;
                let old = truth.records.values().next();
                let renamed = old.is_some_and(|record| record.spec.name != name);
                self.coverage.restored_renamed += u64::from(renamed);
                fate.restores = fate.restores.saturating_sub(1);
                fate.restored += 1;
                if fate.condemned && fate.deletes == 0 {
                    return Err(format!("volume {id} is restored, and purged"));
                }
                fate.deleted = false;
                if fate.deletes == 0 {
                    fate.exists = false;
                    self.check_exists(entry, name)?;
                    return self.check_parent(id);
                }
                Ok(())
            }
            Ok(_) | Err(VolumeError::Store(_)) => Ok(()),
            Err(error) => {
                fate.restores = fate.restores.saturating_sub(1);
                let orphan = error.to_string().contains("is a clone");
                self.coverage.orphans_refused += u64::from(orphan);
                Ok(())
            }
        }
    }

    /// Checks that the parent of a restored clone still has its data.
    fn check_parent(&self, id: VolumeId) -> Result<(), String> {
        let Some(truth) = self.truths.get(&id) else { return Ok(()) };
        for parent in truth.spec.parents.iter().take(1) {
            let there = self.truths.get(&parent.volume);
            if there.is_none_or(|parent| parent.fate.condemned) {
                return Err(format!("clone {id} is restored, its parent is purged"));
            }
        }
        Ok(())
    }

    /// Checks that a list has every volume that existed all the time.
    fn check_catalog(&mut self, number: u64, catalog: &Catalog) -> Result<(), String> {
        self.coverage.catalogs += 1;
        let Some(operation) = self.operator.operations.get(&number) else { return Ok(()) };
        for (id, restored) in &operation.there {
            let Some(truth) = self.truths.get(id) else { continue };
            if truth.fate.restored != *restored {
                continue;
            }
            if !truth.fate.exists || truth.fate.deletes > 0 || truth.fate.restores > 0 {
                continue;
            }
            let Some(name) = truth.names.first() else { continue };
            let entry = catalog.entries.get(name);
            if entry.is_none_or(|entry| entry.spec.id != *id) {
                return Err(format!("volume {name} is not in the list"));
            }
        }
        Ok(())
    }

    fn check_trash(&mut self, number: u64, list: &[DeletedInfo]) -> Result<(), String> {
        let Some(operation) = self.operator.operations.get(&number) else { return Ok(()) };
        for (id, restored) in &operation.gone {
            let Some(truth) = self.truths.get(id) else { continue };
            if truth.fate.restored != *restored {
                continue;
            }
            let fate = &truth.fate;
            let kept = fate.deleted && fate.restores == 0 && !fate.condemned && fate.purges == 0;
            if kept && !list.iter().any(|info| info.id == *id) {
                return Err(format!("deleted volume {id} is not in the list"));
            }
        }
        Ok(())
    }

    fn check_tenant(
        &mut self,
        asked: &TenantOperation,
        result: &Result<Reply, VolumeError>,
    ) -> Result<(), String> {
        if let Err(VolumeError::Invalid(why)) = result {
            self.coverage.tenants_in_use += u64::from(why.contains("delete them first"));
        }
        if result.is_err() {
            return Ok(());
        }
        match asked {
            TenantOperation::Create { .. } => self.coverage.tenants_created += 1,
            TenantOperation::Set { .. } => self.coverage.tenants_set += 1,
            TenantOperation::Delete { tenant } => {
                self.coverage.tenants_deleted += 1;
                if self.operator.tenants.limits(tenant).is_some() {
                    return Ok(());
                }
                let of = |truth: &&Truth| {
                    let fate = &truth.fate;
                    let exists = fate.exists && !truth.names.is_empty();
                    let kept = !fate.condemned && (exists || fate.deleted);
                    kept && truth.spec.tenant() == Some(tenant)
                };
                if let Some(truth) = self.truths.values().find(of) {
                    let name = &truth.spec.name;
                    return Err(format!("tenant {tenant} is deleted, and has {name}"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Ends an operation after its answer, or repeats it. Without an answer, this happens when the
    /// operator has waited long enough.
    pub(super) fn operation_answered(&mut self, number: u64, attempt: u64) {
        if attempt == u64::MAX {
            return self.ask(number);
        }
        if !self.is_current(number, attempt) {
            return;
        }
        let quiet = self.end.is_quiet();
        let Some(operation) = self.operator.operations.get_mut(&number) else { return };
        let again = match operation.answer.take() {
            None | Some(Err(VolumeError::Store(_))) => true,
            // Any other answer is final, also a refusal.
            Some(Ok(_) | Err(_)) => false,
        };
        let old = self.now.since(operation.begun).as_secs() > 3 * HANDS_OFF + 120;
        if again && quiet && old && !matches!(operation.kind, Kind::Tenant(_)) {
            let (kind, resolved) = (operation.kind.clone(), operation.resolved);
            let truth = resolved.and_then(|volume| self.truths.get(&volume));
            if truth.is_some_and(|truth| self.is_left_orphan(truth)) {
                self.operator.operations.remove(&number);
                return;
            }
            return self.fail(format!("operation {number} comes to no end: {kind:?}"));
        }
        // A repeated request for the same clone must change nothing.
        let repeat = matches!(operation.kind, Kind::Clone { .. }) && !quiet;
        let repeat = !again && repeat && self.operator.rng.percent(30);
        if repeat || again && (quiet || self.operator.rng.percent(70)) {
            operation.attempt = 0;
            let delay = self.operator.rng.spread(SECOND / 10, 10 * SECOND);
            self.after(delay, Event::OperationAnswered(number, u64::MAX));
        } else {
            self.operator.operations.remove(&number);
        }
    }
}

/// The value of an attribute as the bytes in its object.
pub(super) fn value_bytes(value: u64) -> Bytes {
    Bytes::from(value.to_string())
}
