//! Snapshots and clones: which snapshot a name or identity means, and what is to be done besides what the
//! log of a volume says.
//!
//! A snapshot never changes, so any store may read it, whoever has the volume's lease: it is opened from
//! the objects by the segment that took it. Which that is, the engine of the volume says when a host comes
//! by name; for hosts that come back by identity, to this store after a restart or to another one, it is
//! noted in the location.

use super::{Asked, Outcome, Shell};
use crate::absent::no_such_volume;
use crate::catalog::{Entry, attribute};
use crate::drive::drive_with;
use bytes::Bytes;
use longhaul_api::schedule::{self, Due, Schedule};
use longhaul_core::block::VolumeId;
use longhaul_core::store::SHELL_SESSION;
use longhaul_core::store::catalog::{self, check_name, snapshot_key};
use longhaul_core::store::fleet::clones::CloneVolume;
use longhaul_core::store::tenant::{split as split_tenant, tenant_of};
use longhaul_core::wire::link::{
    AttachError, Frame, Lane, RequestId, SNAPSHOT_VERSION, SnapshotError, SnapshotInfo,
    SnapshotOperation, SnapshotReply, ToHost, ToStore, VolumeError, VolumeInfo, VolumeOperation,
    VolumeReply,
};
use longhaul_objects::{GetError, Objects, PutError};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// A snapshot that somebody reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Of which volume.
    pub volume: VolumeId,
    /// It is what that was after this segment.
    pub segment: u64,
}

/// Snapshots in use, and what is being asked of engines on their behalf.
#[derive(Default)]
pub(super) struct Snapshots {
    places: HashMap<VolumeId, Place>,
    asking: HashMap<RequestId, Question>,
    next: RequestId,
}

/// What an answer is for.
enum Question {
    /// Which snapshot a name means: for this frame.
    Find { volume: VolumeId, session: u64, lane: Lane, frame: Frame<ToStore> },
    /// Whether a snapshot is deleted.
    Delete { asked: Asked, id: Option<VolumeId> },
    /// Whatever was asked on behalf of a clone.
    Told(oneshot::Sender<Result<SnapshotReply, VolumeError>>),
    /// Nobody waits.
    Forget,
    /// Nor for what a schedule says, of this volume.
    Scheduled(VolumeId, Due),
}

impl Snapshots {
    pub(super) fn place(&self, id: VolumeId) -> Option<&Place> {
        self.places.get(&id)
    }

    /// Notes where a snapshot is, of whose volume and segment the caller is sure.
    pub(super) fn insert(&mut self, id: VolumeId, place: Place) {
        self.places.insert(id, place);
    }

    pub(super) fn remove(&mut self, id: VolumeId) {
        self.places.remove(&id);
    }

    /// Snapshots of a volume that somebody reads.
    fn of(&self, volume: VolumeId) -> Vec<VolumeId> {
        let of = self.places.iter().filter(|(_, place)| place.volume == volume);
        of.map(|(id, _)| *id).collect()
    }
}

/// `VOLUME@SNAPSHOT`.
pub(super) fn split(name: &str) -> Option<(&str, &str)> {
    name.split_once('@')
}

/// The volume that a name says, of which it may name a snapshot.
pub(super) fn volume_of(name: &str) -> &str {
    split(name).map_or(name, |(volume, _)| volume)
}

/// The name in a frame that may be that of a snapshot.
fn named(message: &ToStore) -> Option<&str> {
    match message {
        ToStore::Attach { name, .. }
        | ToStore::Volume { operation: VolumeOperation::Show { name }, .. } => Some(name),
        _ => None,
    }
}

impl Shell {
    /// Takes a frame that is about a snapshot; gives any other back.
    pub(super) fn take_snapshot_frame(
        &mut self,
        session: u64,
        lane: Lane,
        frame: Frame<ToStore>,
    ) -> Option<Frame<ToStore>> {
        if let Some((volume, _)) = named(&frame.message).and_then(split) {
            match self.catalog.get(volume).map(|entry| entry.spec.id) {
                Some(volume) => self.find(volume, 0, session, lane, frame),
                None => self.refuse(session, lane, frame.message),
            }
            return None;
        }
        let id = match &frame.message {
            ToStore::Resume { volume, .. }
            | ToStore::Detach { volume, .. }
            | ToStore::Batch { volume, .. }
            | ToStore::Announce { volume, .. }
            | ToStore::Read { volume, .. }
            | ToStore::ReadBehind { volume, .. }
            | ToStore::Status { volume, .. }
            | ToStore::Changed { volume, .. }
            | ToStore::Stage { volume, .. } => *volume,
            _ => return Some(frame),
        };
        if self.snapshots.place(id).is_some() {
            self.hand_to_engine(id, session, lane, frame);
            return None;
        }
        // A host that had attached it comes back.
        if matches!(&frame.message, ToStore::Resume { epoch: 0, .. })
            && !self.names.contains_key(&id)
        {
            let (objects, outcomes) = (self.objects.clone(), self.outcomes.0.clone());
            tokio::spawn(async move {
                let place = read_place(&*objects, id).await;
                let _ = outcomes.send(Outcome::Placed(id, place, session, lane, frame));
            });
            return None;
        }
        Some(frame)
    }

    /// What the location says of a snapshot that a host resumes.
    pub(super) fn placed(
        &mut self,
        id: VolumeId,
        place: Option<Place>,
        session: u64,
        lane: Lane,
        frame: Frame<ToStore>,
    ) {
        if self.listener.version(session).is_none() {
            // It is over, and its end has been told: nobody would take it back from the engine.
            return;
        }
        let had = |volume| self.names.contains_key(&volume) && self.may_have(session, volume);
        match place.filter(|place| had(place.volume)) {
            Some(place) => {
                self.snapshots.places.insert(id, place);
                self.hand_to_engine(id, session, lane, frame);
            }
            None => self.refuse(session, lane, frame.message),
        }
    }

    /// Asks the engine of a volume, wherever that is, for its snapshots after that of a segment, to find
    /// the one that a frame names.
    fn find(
        &mut self,
        volume: VolumeId,
        after: u64,
        session: u64,
        lane: Lane,
        frame: Frame<ToStore>,
    ) {
        let question = Question::Find { volume, session, lane, frame };
        let operation = SnapshotOperation::List { after, hidden: false };
        self.ask_engine(volume, operation, question);
    }

    /// Asks the engine of a volume, wherever that is.
    fn ask_engine(&mut self, volume: VolumeId, operation: SnapshotOperation, question: Question) {
        let request = self.note(question);
        match self.names.get(&volume).cloned() {
            Some(name) => {
                let operation = VolumeOperation::Snapshot { name, operation };
                let frame = ToStore::Volume { request, operation }.into();
                self.admit(volume, SHELL_SESSION.0, Lane::Control, frame);
            }
            None => self.answered(ToHost::Volume { request, result: Err(VolumeError::NotFound) }),
        }
    }

    fn note(&mut self, question: Question) -> RequestId {
        self.snapshots.next += 1;
        self.snapshots.asking.insert(self.snapshots.next, question);
        self.snapshots.next
    }

    /// Takes the answer to something that the shell has asked for itself.
    pub(super) fn answered(&mut self, message: ToHost) {
        let ToHost::Volume { request, result } = message else { return };
        let Some(question) = self.snapshots.asking.remove(&request) else { return };
        match question {
            Question::Find { volume, session, lane, frame } => match result {
                Ok(VolumeReply::Snapshot(SnapshotReply::List { snapshots, more })) => {
                    self.listed_snapshots(volume, &snapshots, more, session, lane, frame);
                }
                Ok(_) => self.refuse(session, lane, frame.message),
                Err(error) => self.refuse_snapshot(session, lane, frame.message, error),
            },
            Question::Delete { asked, id } => {
                if let Some(id) = id.filter(|_| result.is_ok()) {
                    self.forget_snapshot(id);
                }
                self.reply(&[asked], &result);
            }
            Question::Told(reply) => {
                let _ = reply.send(match result {
                    Ok(VolumeReply::Snapshot(reply)) => Ok(reply),
                    Ok(_) => Err(VolumeError::NotFound),
                    Err(error) => Err(error),
                });
            }
            Question::Scheduled(volume, due) => self.schedule_kept(volume, &due, result),
            Question::Forget => {
                if let Err(error) = result {
                    // The snapshot stays until its volume is deleted.
                    tracing::warn!("a deleted clone is still noted in its parent: {error}");
                }
            }
        }
    }

    fn listed_snapshots(
        &mut self,
        volume: VolumeId,
        snapshots: &[SnapshotInfo],
        more: bool,
        session: u64,
        lane: Lane,
        frame: Frame<ToStore>,
    ) {
        let name = named(&frame.message).and_then(split).map(|(_, snapshot)| snapshot);
        let found = snapshots.iter().find(|snapshot| Some(snapshot.name.as_str()) == name).cloned();
        let after = snapshots.last().map(|last| last.segment);
        match (found, after) {
            (Some(info), _) => self.found_snapshot(volume, info, session, lane, frame),
            (None, Some(after)) if more => self.find(volume, after, session, lane, frame),
            _ => {
                let error = VolumeError::Snapshot(SnapshotError::NotFound);
                self.refuse_snapshot(session, lane, frame.message, error);
            }
        }
    }

    /// It is known which snapshot a frame names.
    fn found_snapshot(
        &mut self,
        volume: VolumeId,
        info: SnapshotInfo,
        session: u64,
        lane: Lane,
        frame: Frame<ToStore>,
    ) {
        let place = Place { volume, segment: info.segment };
        self.snapshots.places.insert(info.id, place.clone());
        let spec = self.names.get(&volume).and_then(|name| self.catalog.get(name));
        let Some(spec) = spec.map(|entry| entry.spec.clone()) else {
            return self.refuse(session, lane, frame.message);
        };
        match &frame.message {
            ToStore::Volume { request, .. } => {
                let info = VolumeInfo {
                    name: format!("{}@{}", spec.name, info.name),
                    id: info.id,
                    sectors: info.sectors,
                    block_bytes: spec.block_bytes,
                    created: info.created,
                    live: None,
                    damaged: None,
                };
                self.reply(
                    &[Asked { session, lane, request: *request }],
                    &Ok(VolumeReply::Volume(info)),
                );
            }
            _ => {
                let (objects, outcomes) = (self.objects.clone(), self.outcomes.0.clone());
                tokio::spawn(async move {
                    // Without it a host would not find it again after a restart of the store.
                    let id = info.id;
                    let noted = note_place(&*objects, id, &place).await.map(|()| place);
                    let _ = outcomes.send(match noted {
                        Ok(place) => Outcome::Placed(id, Some(place), session, lane, frame),
                        Err(error) => Outcome::NotPlaced(error, session, lane, frame.message),
                    });
                });
            }
        }
    }

    /// A snapshot cannot be had, or not now.
    pub(super) fn refuse_snapshot(
        &self,
        session: u64,
        lane: Lane,
        message: ToStore,
        error: VolumeError,
    ) {
        let reply = match message {
            ToStore::Attach { request, .. } => {
                let error = match error {
                    VolumeError::NotFound | VolumeError::Snapshot(_) => AttachError::NotFound,
                    other => AttachError::Damaged(other.to_string()),
                };
                Some(ToHost::Attached { request, result: Err(error) })
            }
            ToStore::Volume { request, .. } => Some(ToHost::Volume { request, result: Err(error) }),
            other => no_such_volume(other),
        };
        if let Some(reply) = reply {
            self.send(session, lane, reply.into());
        }
    }

    /// What is to be seen to before the engine of a volume, which is this store's, gets an operation on
    /// snapshots; gives it back if the engine is to have it.
    pub(super) fn snapshot_operation(
        &mut self,
        id: VolumeId,
        asked: Asked,
        mut frame: Frame<ToStore>,
    ) -> Option<Frame<ToStore>> {
        if asked.session == SHELL_SESSION.0 {
            return Some(frame);
        }
        let ToStore::Volume { operation: VolumeOperation::Snapshot { operation, .. }, .. } =
            &mut frame.message
        else {
            return Some(frame);
        };
        let refusal = match operation {
            SnapshotOperation::Create { id: identity, created, barrier, .. } => {
                *created = crate::now();
                let holder = self.engines.get(&id).and_then(|engine| engine.volume.session());
                let version = holder.and_then(|session| self.listener.version(session.0));
                if self.is_known(*identity) {
                    VolumeError::Snapshot(SnapshotError::IdTaken)
                } else if *barrier && version.is_some_and(|version| version < SNAPSHOT_VERSION) {
                    VolumeError::Invalid(
                        "the host that has the volume attached is too old to be asked for what it has acknowledged: \
                         update it, or take the snapshot of what the store has with --no-barrier"
                            .into(),
                    )
                } else {
                    return Some(frame);
                }
            }
            SnapshotOperation::Delete { snapshot } => {
                let engine = self.engines.get(&id);
                let known = engine.and_then(|e| e.volume.state().snapshots.named(snapshot));
                let identity = known.map(|snapshot| snapshot.id);
                let operation = SnapshotOperation::Delete { snapshot: snapshot.clone() };
                self.ask_engine(id, operation, Question::Delete { asked, id: identity });
                return None;
            }
            SnapshotOperation::Clone { snapshot, clone, id: identity } => {
                let (snapshot, clone, identity) = (snapshot.clone(), clone.clone(), *identity);
                let taken = self.catalog.get(&clone).map(|entry| &entry.spec);
                let of = self.names.get(&id).and_then(|name| tenant_of(name));
                let (tenant, bare) = split_tenant(&clone);
                match (check_name(bare), taken) {
                    // What a tenant has cannot depend on another one.
                    _ if tenant != of => VolumeError::Invalid(match of {
                        Some(of) => {
                            format!("a clone has the tenant of its volume: call it {of}/NAME")
                        }
                        None => "a clone has the tenant of its volume, which has none".to_owned(),
                    }),
                    (Err(error), _) => VolumeError::Invalid(error.to_string()),
                    (Ok(()), Some(spec)) if spec.id != identity => VolumeError::Exists,
                    (Ok(()), None) if self.is_known(identity) => {
                        VolumeError::Snapshot(SnapshotError::IdTaken)
                    }
                    (Ok(()), _) => {
                        self.clone_volume(asked, id, (snapshot, clone, identity));
                        return None;
                    }
                }
            }
            // Stores say this to themselves, and to each other.
            SnapshotOperation::Forget { .. } if !self.stores.contains(&asked.session) => {
                VolumeError::Invalid("this is for stores to say".into())
            }
            SnapshotOperation::Diff { since, until, range } => {
                let (since, until, range) = (*since, *until, *range);
                self.begin_diff(asked, id, since, until, range);
                return None;
            }
            SnapshotOperation::Usage { snapshots, volume, range } => {
                let (snapshots, volume, range) = (std::mem::take(snapshots), *volume, *range);
                self.begin_usage(asked, id, &snapshots, volume, range);
                return None;
            }
            SnapshotOperation::List { .. }
            | SnapshotOperation::Rollback { .. }
            | SnapshotOperation::Forget { .. } => return Some(frame),
        };
        self.reply(&[asked], &Err(refusal));
        None
    }

    /// Whether it is the identity of a volume, or of a snapshot that is in use here.
    pub(super) fn is_known(&self, id: VolumeId) -> bool {
        self.names.contains_key(&id) || self.snapshots.place(id).is_some()
    }

    /// Makes a clone of a snapshot of a volume, with a name and an identity.
    fn clone_volume(
        &self,
        asked: Asked,
        parent: VolumeId,
        (snapshot, name, id): (String, String, VolumeId),
    ) {
        let entry = self.names.get(&parent).and_then(|name| self.catalog.get(name));
        let Some(parent) = entry.map(|entry| entry.spec.clone()) else {
            return self.reply(&[asked], &Err(VolumeError::NotFound));
        };
        let (objects, outcomes) = (self.objects.clone(), self.outcomes.0.clone());
        tokio::spawn(async move {
            let ask = |volume, operation| {
                let (reply, answer) = oneshot::channel();
                let _ = outcomes.send(Outcome::Engine(volume, operation, reply));
                answer
            };
            let clone = CloneVolume { parent, snapshot, name, id };
            let cloned = drive_with(clone, &*objects, None, Some(&ask)).await;
            let _ = outcomes.send(Outcome::Cloned(asked, cloned));
        });
    }

    /// Asks the engine of a volume for something, on behalf of a clone.
    pub(super) fn ask_for_clone(
        &mut self,
        volume: VolumeId,
        operation: SnapshotOperation,
        reply: oneshot::Sender<Result<SnapshotReply, VolumeError>>,
    ) {
        self.ask_engine(volume, operation, Question::Told(reply));
    }

    /// A clone exists, or cannot.
    pub(super) fn cloned(&mut self, asked: Asked, result: Result<Entry, VolumeError>) {
        let reply = result.map(|entry| {
            let (spec, sectors) = (&entry.spec, entry.sectors);
            tracing::info!("created volume {} ({}), a clone", spec.name, spec.id);
            let info = spec.info(sectors, None);
            self.learn(entry);
            self.tell_stores();
            VolumeReply::Volume(info)
        });
        self.reply(&[asked], &reply);
    }

    /// Nothing is left of a clone: what it began with need not stay for it.
    pub(super) fn forget_clone(&mut self, parent: VolumeId, clone: VolumeId) {
        if self.names.contains_key(&parent) {
            self.ask_engine(parent, SnapshotOperation::Forget { id: clone }, Question::Forget);
        }
    }

    /// A volume is deleted: nobody reads its snapshots any more.
    pub(super) fn forget_snapshots_of(&mut self, volume: VolumeId) {
        for id in self.snapshots.of(volume) {
            self.snapshots.remove(id);
            self.drop_engine(id);
        }
    }

    /// A snapshot is gone, or was found to be.
    pub(super) fn forget_snapshot(&mut self, id: VolumeId) {
        self.snapshots.remove(id);
        self.drop_engine(id);
        let objects = self.objects.clone();
        tokio::spawn(async move {
            let key = snapshot_key(id);
            if let Err(error) = objects.delete(&key).await {
                tracing::debug!("cannot delete {key}, which nothing needs: {error}");
            }
        });
    }
}

/// Snapshots by the clock.
impl Shell {
    /// A volume's schedule is known.
    pub(super) fn scheduled(&mut self, id: VolumeId, schedule: Schedule) {
        if let Some(engine) = self.engines.get_mut(&id) {
            engine.schedule = schedule;
        }
        self.keep_schedule(id);
    }

    /// Takes and deletes what is due, of the volumes that are open here.
    pub(super) fn keep_schedules(&mut self) {
        let scheduled = self.engines.iter().filter(|(_, engine)| !engine.schedule.is_empty());
        for id in scheduled.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.keep_schedule(id);
        }
    }

    fn keep_schedule(&mut self, id: VolumeId) {
        let Some(engine) = self.engines.get_mut(&id) else { return };
        if engine.scheduling || engine.leaving || engine.volume.info().is_none() {
            return;
        }
        let state = engine.volume.state();
        let last = state.snapshots.iter().next_back().map_or(0, |snapshot| snapshot.segment);
        let now = time::OffsetDateTime::now_utc();
        let changed = state.number > last;
        let there: Vec<_> = state.snapshots.iter().collect();
        let Some(due) = engine.schedule.due(now, changed, &there) else { return };
        let operation = match &due {
            Due::Take(name) => {
                let Ok(identity) = longhaul_base::random::identity() else { return };
                SnapshotOperation::Create {
                    snapshot: name.clone(),
                    id: VolumeId(identity),
                    created: crate::now(),
                    barrier: false,
                }
            }
            Due::Delete(name) => SnapshotOperation::Delete { snapshot: name.clone() },
        };
        engine.scheduling = true;
        self.ask_engine(id, operation, Question::Scheduled(id, due));
    }

    fn schedule_kept(&mut self, id: VolumeId, due: &Due, result: Result<VolumeReply, VolumeError>) {
        let name = self.names.get(&id).cloned().unwrap_or_default();
        let (what, snapshot) = match due {
            Due::Take(snapshot) => ("taking", snapshot),
            Due::Delete(snapshot) => ("deleting", snapshot),
        };
        match &result {
            Ok(_) => tracing::info!("volume {name}: {what} snapshot {snapshot}, as scheduled"),
            Err(error) => tracing::warn!("volume {name}: {what} snapshot {snapshot}: {error}"),
        }
        if let Some(engine) = self.engines.get_mut(&id) {
            engine.scheduling = false;
        }
        // What failed is tried again a while later.
        if result.is_ok() {
            self.keep_schedule(id);
        }
    }
}

/// Reads the schedule of a volume, in a task of its own.
pub(super) fn read_schedule(
    objects: &Arc<dyn Objects>,
    outcomes: &mpsc::UnboundedSender<Outcome>,
    volume: VolumeId,
) {
    let (objects, outcomes) = (objects.clone(), outcomes.clone());
    tokio::spawn(async move {
        let read = attribute(&*objects, volume, schedule::ATTRIBUTE).await;
        let text = read.map(|data| String::from_utf8_lossy(&data).into_owned());
        match text.map(|text| text.parse()) {
            Ok(Ok(schedule)) => drop(outcomes.send(Outcome::Scheduled(volume, schedule))),
            Ok(Err(why)) => tracing::warn!("volume {volume}: its schedule is not kept: {why}"),
            Err(error) => tracing::warn!("volume {volume}: its schedule is not known: {error}"),
        }
    });
}

async fn read_place(objects: &dyn Objects, id: VolumeId) -> Option<Place> {
    let key = snapshot_key(id);
    let data = match objects.get(&key, None).await {
        Ok(data) => data,
        Err(GetError::NotFound) => return None,
        Err(error) => {
            tracing::warn!("cannot read {key}: {error}");
            return None;
        }
    };
    match catalog::decode_place(&key, &data) {
        Ok((volume, segment)) => Some(Place { volume, segment }),
        Err(error) => {
            tracing::warn!("{error}");
            None
        }
    }
}

async fn note_place(objects: &dyn Objects, id: VolumeId, place: &Place) -> Result<(), VolumeError> {
    let data = Bytes::from(catalog::encode_place(place.volume, place.segment));
    match objects.put(&snapshot_key(id), vec![data]).await {
        // Whoever was there before has said the same.
        Ok(()) | Err(PutError::Exists) => Ok(()),
        Err(PutError::Failed(error)) => Err(VolumeError::Store(error)),
    }
}
