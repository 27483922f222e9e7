//! The envelope of the pipeline: who asked, for whom, about which object, and the message itself.
//!
//! [`classify`] is the one match over all message kinds that says what a message is about. Stages
//! match on the [`Target`] and on the few messages that they act on themselves.

use super::refusal::Refusal;
use longhaul_core::block::VolumeId;
use longhaul_core::wire::link::{
    Frame, Lane, Principal, RequestId, StoreId, ToHost, ToStore, VolumeOperation,
};
use std::sync::Arc;

/// Where the answer to a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReplyTo {
    pub session: u64,
    pub lane: Lane,
    /// 0 for a message without a number: its answer names volume and epoch.
    pub request: RequestId,
}

/// The object that a message is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// The session itself.
    Session,
    /// The stores of the installation.
    Stores,
    /// Tenants of the installation.
    Tenants,
    /// All volumes, deleted volumes, or a volume that does not exist yet.
    Catalog,
    /// A volume, by name.
    Volume(String),
    /// `VOLUME` or `VOLUME@SNAPSHOT`, by name.
    VolumeOrSnapshot(String),
    /// The objects of a volume, by the volume's name. Listing them needs no engine.
    Objects(String),
    /// An attribute of a volume, by the volume's identity. It lies beside the volume's log.
    Attribute(VolumeId),
    /// A volume or a snapshot, by identity.
    Id(VolumeId),
    /// The same, in a message that may be the copy of an old packet: it must cause no lookup.
    Early(VolumeId),
    /// A range of a volume or snapshot that is copied to a volume.
    Copy { from: VolumeId, into: VolumeId },
}

impl Target {
    /// The volumes and snapshots that the message names by identity.
    pub fn identities(&self) -> [Option<VolumeId>; 2] {
        match self {
            Target::Id(id) | Target::Early(id) | Target::Attribute(id) => [Some(*id), None],
            Target::Copy { from, into } => [Some(*from), Some(*into)],
            Target::Session
            | Target::Stores
            | Target::Tenants
            | Target::Catalog
            | Target::Volume(_)
            | Target::VolumeOrSnapshot(_)
            | Target::Objects(_) => [None, None],
        }
    }

    /// The name of the volume, if the message has a name.
    pub fn volume_name(&self) -> Option<&str> {
        match self {
            Target::Volume(name) | Target::Objects(name) => Some(name),
            Target::VolumeOrSnapshot(name) => Some(volume_of(name)),
            _ => None,
        }
    }
}

/// A request on its way through the pipeline.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub reply_to: ReplyTo,
    /// The principal of the session.
    pub principal: Arc<Principal>,
    pub target: Target,
    /// The volume or snapshot whose engine answers. The snapshot stage sets it.
    pub engine: Option<VolumeId>,
    pub body: Frame<ToStore>,
}

impl Request {
    pub fn new(
        session: u64,
        lane: Lane,
        principal: Arc<Principal>,
        body: Frame<ToStore>,
    ) -> Request {
        let (request, target) = classify(&body.message);
        let reply_to = ReplyTo { session, lane, request };
        Request { reply_to, principal, target, engine: None, body }
    }

    pub fn session(&self) -> u64 {
        self.reply_to.session
    }

    pub fn message(&self) -> &ToStore {
        &self.body.message
    }

    /// A batch in another lane would neither wait in the right place nor count for a limit.
    pub fn is_in_wrong_lane(&self) -> bool {
        self.reply_to.lane != Lane::Drain && matches!(self.body.message, ToStore::Batch { .. })
    }

    /// Another store sent it.
    pub fn is_from_store(&self) -> bool {
        self.principal.store
    }

    /// The same request about another message, as the tenant scope renames it.
    pub fn with_message(self, message: ToStore) -> Request {
        let (_, target) = classify(&message);
        Request { target, body: Frame { message, payload: self.body.payload }, ..self }
    }
}

/// The decision of a stage about a request.
#[derive(Debug)]
pub(super) enum Decision {
    /// The next stage decides.
    Pass(Request),
    /// The stage keeps the request: it answers it, or gives it back later.
    Hold,
    /// Answer the request with this.
    Answer(ReplyTo, ToHost),
    /// Answer the request with the refusal that fits its message.
    Refuse(Request, Refusal),
    /// Another store serves the volume and answers the request.
    Forward(Request, Redirect),
    /// The peer broke the protocol: its session ends.
    Close(u64, String),
}

/// The store that serves a volume.
#[derive(Clone, Debug)]
pub(super) struct Redirect {
    pub store: StoreId,
    pub addresses: Vec<String>,
    /// The volume, if its store was looked up for an earlier request and may have changed since.
    pub cached_for: Option<VolumeId>,
}

/// The number of a message, and the object that it is about.
fn classify(message: &ToStore) -> (RequestId, Target) {
    match message {
        ToStore::Hello { .. } => (0, Target::Session),
        ToStore::Store { request, .. } => (*request, Target::Stores),
        ToStore::Tenant { request, .. } => (*request, Target::Tenants),
        ToStore::Attach { request, name, .. } => (*request, Target::VolumeOrSnapshot(name.clone())),
        ToStore::Resume { request, volume, .. }
        | ToStore::Detach { request, volume, .. }
        | ToStore::Read { request, volume, .. }
        | ToStore::Status { request, volume, .. }
        | ToStore::Changed { request, volume, .. } => (*request, Target::Id(*volume)),
        ToStore::Batch { volume, .. }
        | ToStore::Announce { volume, .. }
        | ToStore::Barrier { volume, .. } => (0, Target::Id(*volume)),
        ToStore::EarlyRead { request, volume, .. } => (*request, Target::Early(*volume)),
        ToStore::Stage { request, volume, into, .. } => {
            (*request, Target::Copy { from: *volume, into: *into })
        }
        ToStore::Volume { request, operation } => (*request, of_operation(operation)),
    }
}

fn of_operation(operation: &VolumeOperation) -> Target {
    match operation {
        VolumeOperation::Create { .. } | VolumeOperation::List | VolumeOperation::Trash(_) => {
            Target::Catalog
        }
        VolumeOperation::Show { name } => Target::VolumeOrSnapshot(name.clone()),
        VolumeOperation::Snapshot { name, .. }
        | VolumeOperation::Lost { name, .. }
        | VolumeOperation::AcceptLoss { name }
        | VolumeOperation::Resize { name, .. }
        | VolumeOperation::Shrink { name, .. }
        | VolumeOperation::Delete { name } => Target::Volume(name.clone()),
        VolumeOperation::Stored { name } => Target::Objects(name.clone()),
        VolumeOperation::GetAttribute { volume, .. }
        | VolumeOperation::SetAttribute { volume, .. } => Target::Attribute(*volume),
    }
}

/// The parts of `VOLUME@SNAPSHOT`.
pub(super) fn split(name: &str) -> Option<(&str, &str)> {
    name.split_once('@')
}

/// The volume in `VOLUME` or `VOLUME@SNAPSHOT`.
pub(super) fn volume_of(name: &str) -> &str {
    split(name).map_or(name, |(volume, _)| volume)
}
