//! Operations on the catalog: creations, deletions, attributes, lists, and the trash.

use super::super::StoreActor;
use super::super::operation::attributes::{self, is_kept};
use super::super::operation::jobs::{CatalogJob, JobDone};
use super::super::operation::lists::{AskedList, ListDone};
use super::super::operation::trash::{TrashDone, TrashEffect};
use super::super::request::{Decision, ReplyTo, Request};
use crate::catalog::{Entry, NotCreated};
use crate::trash::Tended;
use bytes::Bytes;
use longhaul_core::block::VolumeId;
use longhaul_core::store::VolumeSpec;
use longhaul_core::wire::link::{
    LiveInfo, StoreReport, ToStore, TrashOperation, TrashReply, VolumeError, VolumeInfo,
    VolumeOperation, VolumeReply,
};
use std::collections::{BTreeMap, BTreeSet};

impl StoreActor {
    /// Does what concerns the catalog, and what lies beside the volumes' logs.
    pub(super) fn catalog_operation(&mut self, request: Request) -> Decision {
        let to = request.reply_to;
        let ToStore::Volume { operation, .. } = request.message() else { return Decision::Hold };
        match operation {
            VolumeOperation::Create { name, sectors, block_bytes } => {
                let (name, sectors, block_bytes) = (name.clone(), *sectors, *block_bytes);
                let job = CatalogJob::Create { name, sectors, block_bytes };
                self.operations.jobs.push(vec![to], job);
            }
            VolumeOperation::List if self.fleet.is_shared() => {
                self.operations.lists.wait_for_look(to);
                self.look_around();
            }
            VolumeOperation::List => {
                self.list(AskedList { to: vec![to], reports: Vec::new() });
            }
            VolumeOperation::Stored { name } => match self.directory.entry(name) {
                Some(entry) => self.operations.jobs.count(to, entry.spec.id),
                None => self.sessions.reply(&[to], &Err(self.directory.no_volume(name))),
            },
            VolumeOperation::Trash(operation) => {
                let operation = operation.clone();
                self.trash_operation(to, operation);
            }
            VolumeOperation::GetAttribute { volume, attribute } => {
                let (volume, attribute) = (*volume, attribute.clone());
                let allowed = self.attribute_is_known(volume, &attribute, 0);
                let job = CatalogJob::GetAttribute { volume, attribute };
                self.attribute_job(to, allowed, job);
            }
            VolumeOperation::SetAttribute { volume, epoch, attribute, data, replaces } => {
                let allowed = self
                    .attribute_is_known(*volume, attribute, data.len())
                    .and_then(|()| is_kept(attribute))
                    .and_then(|()| attributes::is_current(self.live(*volume), *epoch))
                    .and_then(|()| self.may_set(to.session, *volume, attribute));
                if let Err(VolumeError::Forbidden(why)) = &allowed {
                    self.sessions.recorder.refused(to.session, request.message(), why);
                }
                let job = CatalogJob::SetAttribute {
                    volume: *volume,
                    epoch: *epoch,
                    attribute: attribute.clone(),
                    data: Bytes::copy_from_slice(data),
                    replaces: *replaces,
                };
                self.attribute_job(to, allowed, job);
            }
            // These are for the engine of the volume.
            VolumeOperation::Show { .. }
            | VolumeOperation::Lost { .. }
            | VolumeOperation::AcceptLoss { .. }
            | VolumeOperation::Delete { .. }
            | VolumeOperation::Snapshot { .. }
            | VolumeOperation::Shrink { .. }
            | VolumeOperation::Resize { .. } => {}
        }
        Decision::Hold
    }

    fn attribute_job(&mut self, to: ReplyTo, allowed: Result<(), VolumeError>, job: CatalogJob) {
        match allowed {
            Ok(()) => self.operations.jobs.push(vec![to], job),
            Err(error) => self.sessions.reply(&[to], &Err(error)),
        }
    }

    fn attribute_is_known(
        &self,
        volume: VolumeId,
        attribute: &str,
        bytes: usize,
    ) -> Result<(), VolumeError> {
        if !self.directory.has_volume(volume) {
            return Err(VolumeError::NotFound);
        }
        attributes::is_valid(attribute, bytes)
    }

    /// Whether a session may set an attribute. Only the host of the volume may set some of them.
    fn may_set(&self, session: u64, volume: VolumeId, attribute: &str) -> Result<(), VolumeError> {
        if !attributes::is_of_host(attribute) {
            return Ok(());
        }
        let Some(engine) = self.engines.get(volume) else { return Err(attributes::not_open()) };
        match engine.lock().volume.is_key_of_epoch(self.sessions.recorder.peer(session).key) {
            true => Ok(()),
            false => Err(VolumeError::Forbidden(format!(
                "only the host that has the volume attached may set attribute {attribute}"
            ))),
        }
    }

    /// A change of the catalog has ended.
    pub(super) fn job_done(&mut self, done: JobDone) {
        self.operations.jobs.finished(&done);
        match done {
            JobDone::Created(to, result) => self.created(&to, result),
            JobDone::Deleted(to, spec, result, _) => self.deleted(&to, spec, result),
            JobDone::Restored(to, id, result) => self.restored(&to, id, result),
            JobDone::Purged(to, result) => {
                let reply = result.map(|()| VolumeReply::Trash(TrashReply::Purged));
                self.sessions.reply(&to, &reply);
            }
            JobDone::Attribute(to, result, of) => {
                if let Some(volume) = of {
                    self.engines.read_schedule(volume);
                }
                self.sessions.reply(&to, &result);
            }
            JobDone::Removed(id, result) => self.tended(id, result),
            JobDone::Counted(to, result) => self.sessions.reply(&[to], &result),
        }
        self.operations.jobs.next();
    }

    fn created(&mut self, to: &[ReplyTo], result: Result<VolumeSpec, NotCreated>) {
        let reply = match result {
            Ok(spec) => {
                tracing::info!("created volume {} ({})", spec.name, spec.id);
                let sectors = spec.created_sectors;
                Ok(self.learn_new(Entry { spec, sectors }))
            }
            Err(NotCreated { error, taken }) => {
                if let Some(entry) =
                    taken.filter(|entry| !self.directory.has_name(&entry.spec.name))
                {
                    tracing::warn!(
                        "volume {} ({}) was not known here: it was created at another store, or \
                         without an answer",
                        entry.spec.name,
                        entry.spec.id
                    );
                    self.directory.learn(*entry);
                }
                Err(error)
            }
        };
        self.sessions.reply(to, &reply);
    }

    /// This store has created a volume.
    pub(super) fn learn_new(&mut self, entry: Entry) -> VolumeReply {
        let info = entry.spec.info(entry.sectors, None);
        self.directory.learn(entry);
        self.fleet.tell_peers();
        VolumeReply::Volume(info)
    }

    fn deleted(&mut self, to: &[ReplyTo], spec: VolumeSpec, result: Result<(), VolumeError>) {
        self.operations.trash.note_deletion(spec.id);
        if matches!(result, Ok(()) | Err(VolumeError::NotFound)) {
            tracing::info!("deleted volume {} ({})", spec.name, spec.id);
            self.directory.remove(&spec.name);
            self.engines.forget_live(spec.id);
            self.operations.lists.forget(spec.id);
            self.forget_requests_for(spec.id);
            self.fleet.tell_peers();
            if result.is_err() {
                // Somebody else has deleted it, and there may be another one of its name.
                self.look_around();
            }
        } else {
            self.directory.undo_deletion(spec);
        }
        self.sessions.reply(to, &result.map(|()| VolumeReply::Done));
    }

    /// A deleted volume has a name again, or not.
    fn restored(&mut self, to: &[ReplyTo], id: VolumeId, result: Result<Entry, VolumeError>) {
        if result.is_err() {
            // It may have been decided, and have no name.
            self.operations.trash.note_deletion(id);
        }
        let reply = result.map(|entry| {
            let (name, id) = (&entry.spec.name, entry.spec.id);
            tracing::info!("volume {name} ({id}) is no longer deleted");
            self.operations.trash.restored(id);
            self.learn_new(entry)
        });
        self.sessions.reply(to, &reply);
    }

    /// Carries out an operation on deleted volumes.
    fn trash_operation(&mut self, to: ReplyTo, operation: TrashOperation) {
        let of = self.sessions.scope.limits(to.session).cloned();
        let job = match operation {
            TrashOperation::List { after } => return self.operations.trash.list(to, after, of),
            TrashOperation::Restore { volume, name } => {
                CatalogJob::Restore { me: self.fleet.me(), volume, name, of }
            }
            TrashOperation::Purge { volume } => CatalogJob::Purge(volume, of),
        };
        self.operations.jobs.push(vec![to], job);
    }

    pub(super) fn trash_done(&mut self, done: TrashDone) {
        match done {
            TrashDone::Tended(id, result) => self.tended(id, result),
            TrashDone::TendedAll => self.operations.trash.tended_all(),
            TrashDone::Listed(to, result) => self.sessions.reply(&[to], &result),
        }
    }

    /// The step for a deleted volume has ended.
    fn tended(&mut self, id: VolumeId, result: Result<Tended, VolumeError>) {
        match self.operations.trash.tended(id, result) {
            TrashEffect::Nothing | TrashEffect::Removed(None) => {}
            TrashEffect::Kept => self.fleet.tell_peers(),
            TrashEffect::Removed(Some(parent)) => self.forget_clone(parent, id),
        }
    }

    /// State of a volume, from its engine, from the time when that closed, or from its log.
    pub(super) fn live(&self, id: VolumeId) -> Option<LiveInfo> {
        let read = || self.operations.lists.get(id, self.fleet.is_alone()).cloned();
        self.engines.live(id).or_else(read)
    }

    pub(super) fn info(&self, entry: &Entry) -> VolumeInfo {
        entry.spec.info(entry.sectors, self.live(entry.spec.id))
    }

    pub(super) fn list_done(&mut self, done: ListDone) {
        let complete = match done {
            ListDone::Reports(to, reports) => return self.list(AskedList { to, reports }),
            ListDone::Read(id, live) => {
                let known = (&self.directory, &self.engines.config);
                self.operations.lists.read(id, live, known)
            }
            ListDone::Due(number) => self.operations.lists.due(number),
        };
        for list in complete {
            self.answer_list(&list);
        }
    }

    /// Answers a list, once the store knows the state of the volumes that the session sees.
    fn list(&mut self, asked: AskedList) {
        let alone = self.fleet.is_alone();
        let served = asked.reports.iter().flat_map(|report: &StoreReport| &report.volumes);
        let reported: BTreeSet<VolumeId> = served.map(|served| served.volume).collect();
        let sees = |to: &ReplyTo, id| self.sessions.scope.may_have(to.session, id, &self.directory);
        let unknown = |id: &VolumeId| {
            asked.to.iter().any(|to| sees(to, *id))
                && !reported.contains(id)
                && self.live(*id).is_none()
                && !self.operations.lists.is_read(*id, alone)
        };
        let ids = self.directory.entries().map(|entry| entry.spec.id);
        let missing: BTreeSet<VolumeId> = ids.filter(unknown).collect();
        if missing.is_empty() {
            return self.answer_list(&asked);
        }
        let known = (&self.directory, &self.engines.config);
        self.operations.lists.open(asked, missing, known);
    }

    /// Lists all volumes with what the stores know that have them open.
    fn answer_list(&self, asked: &AskedList) {
        let lives = asked.reports.iter().flat_map(|report| &report.volumes);
        let lives: BTreeMap<VolumeId, &LiveInfo> =
            lives.map(|served| (served.volume, &served.live)).collect();
        let list = self.directory.entries().map(|entry| {
            let id = entry.spec.id;
            match lives.get(&id).filter(|_| self.stages.ownership.lease(id).is_none()) {
                Some(live) => entry.spec.info(entry.sectors, Some((*live).clone())),
                None => self.info(entry),
            }
        });
        let damaged = self.directory.damaged();
        let damaged = damaged.map(|(name, why)| VolumeInfo::unusable(name.clone(), why.clone()));
        let list = list.chain(damaged).collect();
        self.sessions.reply(&asked.to, &Ok(VolumeReply::List(list)));
    }
}
