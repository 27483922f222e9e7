//! Translates names and identities to engines: which volume or snapshot a request means.
//!
//! A snapshot never changes, so any store may read it, whichever store serves its volume. The store
//! opens it from the objects by the segment that took it. If a host names the snapshot, the engine
//! of the volume knows that segment. A host may come back by identity, to this store after a
//! restart or to another one. Then the note in the location names the segment.

use super::super::completions::Completions;
use super::super::directory::{Directory, SnapshotLocation};
use super::super::refusal::Refusal;
use super::super::request::{Decision, Request, Target, split};
use bytes::Bytes;
use longhaul_core::block::VolumeId;
use longhaul_core::store::catalog::{self, snapshot_key};
use longhaul_core::wire::link::{ToStore, VolumeError};
use longhaul_objects::{GetError, Objects, PutError};
use std::collections::VecDeque;
use std::sync::Arc;

/// The outcomes of this stage's tasks.
pub(in super::super) enum SnapshotDone {
    /// The location's note about the snapshot of a request.
    Located(VolumeId, Option<SnapshotLocation>, Request),
    /// The note about the snapshot's location failed.
    NotNoted(VolumeError, Request),
}

/// A request that names a snapshot: the engine of its volume is to say which one.
pub(in super::super) struct NamedSnapshot {
    pub volume: VolumeId,
    pub request: Request,
}

pub(in super::super) struct SnapshotNames {
    named: VecDeque<NamedSnapshot>,
    objects: Arc<dyn Objects>,
    done: Completions<SnapshotDone>,
}

impl SnapshotNames {
    pub fn new(objects: Arc<dyn Objects>, done: Completions<SnapshotDone>) -> SnapshotNames {
        SnapshotNames { named: VecDeque::new(), objects, done }
    }

    /// Finds the engine for a request. `proven` says whether the address of the session is proven,
    /// `open` whether an engine is open.
    pub fn decide(
        &mut self,
        mut request: Request,
        directory: &Directory,
        proven: impl Fn() -> bool,
        open: impl Fn(VolumeId) -> bool,
    ) -> Decision {
        let engine = match &request.target {
            Target::Session
            | Target::Stores
            | Target::Tenants
            | Target::Catalog
            | Target::Objects(_)
            | Target::Attribute(_) => return Decision::Pass(request),
            Target::VolumeOrSnapshot(name) if let Some((volume, _)) = split(name) => {
                let Some(volume) = directory.entry(volume).map(|entry| entry.spec.id) else {
                    return not_found(request, directory);
                };
                self.named.push_back(NamedSnapshot { volume, request });
                return Decision::Hold;
            }
            Target::Volume(name) | Target::VolumeOrSnapshot(name) => {
                directory.entry(name).map(|entry| entry.spec.id)
            }
            Target::Id(id) | Target::Early(id) | Target::Copy { from: id, .. }
                if directory.snapshot(*id).is_some() =>
            {
                Some(*id)
            }
            Target::Id(id) => {
                let (id, known) = (*id, directory.has_volume(*id));
                // A host that had attached a snapshot comes back.
                if !known && matches!(request.message(), ToStore::Resume { epoch: 0, .. }) {
                    let objects = self.objects.clone();
                    self.done.spawn(async move {
                        let location = read_location(&*objects, id).await;
                        SnapshotDone::Located(id, location, request)
                    });
                    return Decision::Hold;
                }
                known.then_some(id)
            }
            // The copy of an old packet opens nothing: the host asks again.
            Target::Early(id) => {
                (open(*id) || proven()).then_some(*id).filter(|id| directory.has_volume(*id))
            }
            // A volume that does not exist would get an object that nothing ever deletes.
            Target::Copy { into, .. } if !directory.has_volume(*into) => {
                return Decision::Refuse(request, Refusal::NoCopy);
            }
            Target::Copy { from, .. } => directory.has_volume(*from).then_some(*from),
        };
        match engine {
            Some(_) => {
                request.engine = engine;
                Decision::Pass(request)
            }
            None => not_found(request, directory),
        }
    }

    /// The next request that names a snapshot.
    pub fn poll_named(&mut self) -> Option<NamedSnapshot> {
        self.named.pop_front()
    }

    /// Notes in the location where a snapshot is: without that a host would not find it again after
    /// a restart of the store.
    pub fn note(&self, id: VolumeId, location: SnapshotLocation, request: Request) {
        let objects = self.objects.clone();
        self.done.spawn(async move {
            match note_location(&*objects, id, &location).await {
                Ok(()) => SnapshotDone::Located(id, Some(location), request),
                Err(error) => SnapshotDone::NotNoted(error, request),
            }
        });
    }

    /// A snapshot does not exist any more.
    pub fn forget(&self, id: VolumeId) {
        let objects = self.objects.clone();
        tokio::spawn(async move {
            let key = snapshot_key(id);
            if let Err(error) = objects.delete(&key).await {
                tracing::debug!("cannot delete {key}, which nothing needs: {error}");
            }
        });
    }
}

/// The volume does not exist, or its description is damaged.
pub(in super::super) fn not_found(request: Request, directory: &Directory) -> Decision {
    let name = request.target.volume_name();
    let refusal = match name.and_then(|name| directory.damage(name)) {
        Some(reason) => Refusal::Damaged(reason.clone()),
        None => Refusal::NotFound,
    };
    Decision::Refuse(request, refusal)
}

async fn read_location(objects: &dyn Objects, id: VolumeId) -> Option<SnapshotLocation> {
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
        Ok((volume, segment)) => Some(SnapshotLocation { volume, segment }),
        Err(error) => {
            tracing::warn!("{error}");
            None
        }
    }
}

async fn note_location(
    objects: &dyn Objects,
    id: VolumeId,
    location: &SnapshotLocation,
) -> Result<(), VolumeError> {
    let data = Bytes::from(catalog::encode_place(location.volume, location.segment));
    match objects.put(&snapshot_key(id), vec![data]).await {
        // An earlier note says the same.
        Ok(()) | Err(PutError::Exists) => Ok(()),
        Err(PutError::Failed(error)) => Err(error.into()),
    }
}
