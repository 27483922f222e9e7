//! What the shell has others do for it, and what comes of that.

use super::super::catalog::{Entry, NotCreated};
use super::super::lease;
use super::super::lease::Holder;
use super::super::trash::Tended;
use super::snapshots::Place;
use super::stores;
use super::tenants::FoundStored;
use bytes::Bytes;
use longhaul_api::schedule::Schedule;
use longhaul_core::block::{Epoch, VolumeId};
use longhaul_core::store::{ObjectResult, Places, VolumeSpec};
use longhaul_core::wire::link::{
    Frame, Lane, LiveInfo, ReadError, RequestId, SnapshotOperation, SnapshotReply, StoreReply,
    StoreReport, StoreState, TenantLimits, TenantReply, ToHost, ToStore, VolumeError, VolumeReply,
};
use longhaul_link::credential::Reach;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::oneshot;

/// Who asked for a volume operation.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub(super) session: u64,
    pub(super) lane: Lane,
    pub(super) request: RequestId,
}

pub(super) struct Job {
    pub(super) asked: Vec<Asked>,
    pub(super) work: Work,
}

pub(super) enum Work {
    Create {
        name: String,
        sectors: u64,
        block_bytes: u32,
    },
    Delete {
        entry: Entry,
        /// The lease by which it is this store's.
        lease: Option<u64>,
        /// Its clones, as far as its log knows.
        clones: BTreeSet<VolumeId>,
        /// Whether its data goes with the name.
        at_once: bool,
    },
    /// A deleted volume is to have a name again, at the store that this is.
    Restore {
        me: Option<Holder>,
        volume: VolumeId,
        name: String,
        /// For whom there are no others.
        of: Option<Reach>,
    },
    /// The data of a deleted volume, one of those if whoever asks knows of no others, is to go.
    Purge(VolumeId, Option<Reach>),
    GetAttribute {
        volume: VolumeId,
        attribute: String,
    },
    SetAttribute {
        volume: VolumeId,
        epoch: Epoch,
        attribute: String,
        data: Bytes,
        replaces: Option<[u8; 32]>,
    },
}

pub(super) enum Outcome {
    Object {
        volume: VolumeId,
        engine: u64,
        id: u64,
        key: String,
        result: ObjectResult,
        bytes: u64,
        took: Duration,
    },
    Created(Vec<Asked>, Result<VolumeSpec, NotCreated>),
    Deleted(Vec<Asked>, VolumeSpec, Result<(), VolumeError>, bool),
    /// A deleted volume has a name again, or not.
    Restored(Vec<Asked>, Result<Entry, VolumeError>),
    /// The data of a deleted volume is about to be removed.
    Purged(Vec<Asked>, Result<(), VolumeError>),
    /// A deleted volume was seen to; so were all that it was time for.
    Tended(VolumeId, Result<Tended, VolumeError>),
    TendedAll,
    /// Something was asked that changes nothing.
    Replied(Asked, Result<VolumeReply, VolumeError>),
    /// What tenants have stored, each with how much had been written then.
    Room(Vec<(String, u64, FoundStored)>),
    /// Something was asked about tenants, or changed about one.
    Tenant(Asked, bool, Result<TenantReply, VolumeError>),
    /// What tenants may do.
    Limits(Vec<(String, Result<TenantLimits, VolumeError>)>),
    /// What other stores serve, to share the limits of tenants.
    Shares(Vec<StoreReport>),
    /// A tenant may do what a frame asks for, or not.
    Allowed(Result<(), VolumeError>, u64, Lane, Frame<ToStore>),
    /// An attribute was read, or replaced; the volume, if that was its schedule.
    Attribute(Vec<Asked>, Result<VolumeReply, VolumeError>, Option<VolumeId>),
    /// The data of a deleted volume is removed, as far as that works.
    Removed(VolumeId, Result<Tended, VolumeError>),
    /// A clone exists, or cannot.
    Cloned(Asked, Result<Entry, VolumeError>),
    /// An engine is asked for something, on behalf of a clone.
    Engine(VolumeId, SnapshotOperation, oneshot::Sender<Result<SnapshotReply, VolumeError>>),
    /// What the shell has asked itself.
    Answered(ToHost),
    /// When snapshots of a volume are to be taken.
    Scheduled(VolumeId, Schedule),
    /// What the location says of a snapshot, for a frame.
    Placed(VolumeId, Option<Place>, u64, Lane, Frame<ToStore>),
    /// Where it is could not be noted.
    NotPlaced(VolumeError, u64, Lane, ToStore),
    /// Where what lies that a comparison asked for.
    Places(RequestId, Result<Places, ReadError>),
    /// It is known whose a volume is.
    Claimed(VolumeId, lease::Outcome),
    /// Another store has done what was asked here.
    Forwarded(u64, Lane, Frame<ToHost>),
    /// It could not: it is to be looked up again who has the volume.
    Again(VolumeId, u64, Lane, Frame<ToStore>),
    /// The location was looked at.
    Found(Result<stores::Found, String>),
    /// What other stores say of themselves, for a list, and to share what there is to do.
    Stores(Asked, Vec<StoreState>),
    Loads(Option<Asked>, Vec<StoreReport>),
    /// A certificate that a party asked for is signed, or not.
    Signed(Asked, String, Result<StoreReply, VolumeError>),
    /// This store's own certificate was seen to: whether it shows another one.
    Certificate(anyhow::Result<bool>),
    /// A store that does not answer is forgotten, or not.
    Forgotten(Asked, Result<(), VolumeError>),
    /// What other stores know of volumes.
    Lives(Vec<Asked>, Vec<StoreReport>),
    /// What the end of a volume's log says, if it can be read.
    Surveyed(VolumeId, Option<LiveInfo>),
    /// A list has waited long enough for that.
    ListDue(u64),
    /// What was asked about the second place is done, or not; whether other stores are to know.
    Replica(Asked, Result<StoreReply, VolumeError>, bool),
    /// Somebody has gone on there, or it has been found why nothing is repeated.
    Lost(Result<String, String>),
    /// It has been noted that the second place is complete, or not.
    Built(Result<(), String>),
    /// An object that was damaged or missing has been brought back from there, or not.
    Repaired(String, bool),
}
