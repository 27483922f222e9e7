//! Procedures in progress, with outcomes of one common type.

use bytes::Bytes;
use longhaul_core::block::VolumeId;
use longhaul_core::store::fleet::claim::ClaimOutcome;
use longhaul_core::store::fleet::deletion::Tended;
use longhaul_core::store::fleet::listing::{Catalog, CatalogChanges, CatalogEntry};
use longhaul_core::store::fleet::members::Registered;
use longhaul_core::store::fleet::names::NotCreated;
use longhaul_core::store::fleet::{Effect, EffectResult, Note, Procedure, Runner};
use longhaul_core::store::{StorageError, VolumeSpec};
use longhaul_core::wire::link::{DeletedInfo, StoreId, TenantReply, VolumeError};
use std::collections::BTreeMap;

/// The outcome of a procedure.
pub(super) enum Done {
    Claimed(ClaimOutcome),
    Created(Result<(), NotCreated>),
    Deleted(Result<(), VolumeError>),
    Restored(Result<CatalogEntry, VolumeError>),
    Condemned(Result<VolumeSpec, VolumeError>),
    Tended(Result<Tended, VolumeError>),
    Cloned(Result<CatalogEntry, VolumeError>),
    Read(Result<Catalog, StorageError>),
    Changes(Result<CatalogChanges, StorageError>),
    Records(Result<BTreeMap<VolumeId, u64>, StorageError>),
    Trash(Result<(Vec<DeletedInfo>, bool), VolumeError>),
    Allowed(Result<(), VolumeError>),
    Tenant(Result<TenantReply, VolumeError>),
    Attribute(Result<Bytes, VolumeError>),
    AttributeSet(Result<(), VolumeError>),
    Stores(Result<BTreeMap<StoreId, Registered>, StorageError>),
    Member(Result<(), StorageError>),
}

/// A procedure in progress, with any outcome.
pub(super) trait Task {
    fn poll_effect(&mut self) -> Option<Effect>;
    fn handle(&mut self, now: u64, result: EffectResult);
    fn poll_note(&mut self) -> Option<Note>;
    fn poll_done(&mut self) -> Option<Done>;
}

struct Running<P: Procedure> {
    runner: Runner<P>,
    done: fn(P::Outcome) -> Done,
}

impl<P: Procedure> Task for Running<P> {
    fn poll_effect(&mut self) -> Option<Effect> {
        self.runner.poll_effect()
    }

    fn handle(&mut self, now: u64, result: EffectResult) {
        self.runner.handle_result(now, result);
    }

    fn poll_note(&mut self) -> Option<Note> {
        self.runner.poll_note()
    }

    fn poll_done(&mut self) -> Option<Done> {
        self.runner.poll_outcome().map(self.done)
    }
}

pub(super) fn task<P: Procedure + 'static>(
    procedure: P,
    now: u64,
    done: fn(P::Outcome) -> Done,
) -> Box<dyn Task> {
    Box::new(Running { runner: Runner::new(procedure, now), done })
}
