//! What goes into the audit log: what changes something, or takes or leaves a volume, with what was answered.

use crate::credential::bare;
use crate::store::audit::{self, Audit};
use crate::store::schedule;
use crate::text::escaped;
use longhaul_core::block::VolumeId;
use longhaul_core::store::{Event, SessionPeer, tenant};
use longhaul_core::wire::link::{
    Claim, Principal, ReplicaOperation, RequestId, SnapshotOperation, StoreOperation,
    TenantOperation, ToHost, ToStore, TrashOperation, VolumeOperation,
};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Actions without an answer yet, at most; of more it is not said what came of them.
const OPEN_MAX: usize = 4096;
/// Attaching with leave to take the volume from a host that is connected.
const TAKE_OVER: &str = "volume.take-over";
/// The attribute that hosts set by themselves.
const RESERVATIONS: &str = "reservations";

/// Sees what passes.
pub(super) struct Watch(Mutex<Watched>);

struct Watched {
    audit: Audit,
    sessions: HashMap<u64, Who>,
    open: HashMap<(u64, RequestId), (&'static str, String)>,
    /// What is to be said with the answer.
    notes: HashMap<(u64, RequestId), String>,
}

#[derive(Clone)]
struct Who {
    peer: SocketAddr,
    principal: Principal,
}

impl Watched {
    fn write(&self, who: &Who, action: &str, object: String, outcome: String) {
        self.audit.write(audit::Event {
            tenant: who.principal.tenant.clone(),
            name: Some(match who.principal.store {
                true => "store".to_owned(),
                false => who.principal.name.clone(),
            }),
            credential: Some(bare(&who.principal.serial).to_owned()),
            peer: who.peer.to_string(),
            action: action.to_owned(),
            object,
            outcome,
        });
    }
}

impl Watch {
    /// Writes it down there.
    pub(super) fn new(audit: Audit) -> Watch {
        let (sessions, open, notes) = (HashMap::new(), HashMap::new(), HashMap::new());
        Watch(Mutex::new(Watched { audit, sessions, open, notes }))
    }

    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session has begun: a host's, an operator's, or another store's.
    pub(super) fn opened(
        &self,
        session: u64,
        peer: SocketAddr,
        principal: &Principal,
        software: &str,
    ) {
        let who = Who { peer, principal: principal.clone() };
        let mut watched = self.lock();
        watched.write(&who, "session.open", software.to_owned(), "ok".to_owned());
        watched.sessions.insert(session, who);
    }

    /// Who is at the other end of a session; nobody if it is over, or within the process.
    pub(super) fn peer(&self, session: u64) -> SessionPeer {
        let watched = self.lock();
        let Some(Who { peer, principal }) = watched.sessions.get(&session) else {
            return SessionPeer::default();
        };
        let name = match principal.name.as_str() {
            "" => peer.to_string(),
            name => format!("{} at {peer}", escaped(name)),
        };
        SessionPeer { key: principal.key, name }
    }

    /// Something has happened to a volume.
    pub(super) fn event(&self, volume: &str, event: &Event) {
        match event {
            Event::Attached { session, request, former, .. } => {
                let mut watched = self.lock();
                let key = (session.0, *request);
                if watched.open.get(&key).is_some_and(|(action, _)| *action == TAKE_OVER) {
                    let former = former.clone().unwrap_or_else(|| "nobody".to_owned());
                    watched.notes.insert(key, format!("ok, taken from {former}"));
                }
            }
            Event::OtherKey { session, action, request, epoch, key } => {
                let mut watched = self.lock();
                if let Some(request) = request {
                    watched.open.remove(&(session.0, *request));
                }
                if let Some(who) = watched.sessions.get(&session.0).cloned() {
                    let outcome = format!("refused: epoch {epoch} belongs to key {key}");
                    watched.write(&who, action, volume.to_owned(), outcome);
                }
            }
            _ => {}
        }
    }

    /// This store has taken a volume from another one.
    pub(super) fn claimed(&self, volume: &str, outcome: &str) {
        self.lock().audit.write(audit::Event {
            name: Some("store".to_owned()),
            action: "store.claim".to_owned(),
            object: volume.to_owned(),
            outcome: outcome.to_owned(),
            ..audit::Event::default()
        });
    }

    /// Every now and then.
    pub(super) fn tick(&self) {
        self.lock().audit.tick();
    }

    /// A session is over.
    pub(super) fn closed(&self, session: u64) {
        let mut watched = self.lock();
        let Some(who) = watched.sessions.remove(&session) else { return };
        let open = watched.open.keys().filter(|(of, _)| *of == session).copied();
        for key in open.collect::<Vec<_>>() {
            if let Some((action, object)) = watched.open.remove(&key) {
                let ended = "the session ended before the answer".to_owned();
                let outcome = watched.notes.remove(&key).unwrap_or(ended);
                watched.write(&who, action, object, outcome);
            }
        }
    }

    /// Something is asked.
    pub(super) fn asked(&self, session: u64, message: &ToStore) {
        let Some((request, action, object)) = action(message) else { return };
        let mut watched = self.lock();
        let Some(who) = watched.sessions.get(&session).cloned() else { return };
        let object = match object {
            Object::Volume(name) => tenant::within(who.principal.tenant.as_deref(), &name),
            Object::Other(text) => text,
        };
        if watched.open.len() >= OPEN_MAX {
            return watched.write(&who, action, object, "not waited for".to_owned());
        }
        watched.open.insert((session, request), (action, object));
    }

    /// A session may not do what it asked: what is not written down with its answer is here.
    pub(super) fn refused(&self, session: u64, message: &ToStore, why: &str) {
        if action(message).is_some() {
            return;
        }
        let watched = self.lock();
        let Some(who) = watched.sessions.get(&session).cloned() else { return };
        let object = match message {
            ToStore::Store { .. } => "stores",
            ToStore::Tenant { .. } => "tenants",
            _ => "a volume",
        };
        watched.write(&who, "request.refused", object.to_owned(), why.to_owned());
    }

    /// Something is answered.
    pub(super) fn answered(&self, session: u64, message: &ToHost) {
        let Some((request, outcome)) = outcome(message) else { return };
        let mut watched = self.lock();
        let Some((action, object)) = watched.open.remove(&(session, request)) else { return };
        let outcome = watched.notes.remove(&(session, request)).unwrap_or(outcome);
        let Some(who) = watched.sessions.get(&session).cloned() else { return };
        watched.write(&who, action, object, outcome);
    }
}

/// What something is about.
enum Object {
    /// A volume, as the session names it.
    Volume(String),
    /// An identity, or what is no volume.
    Other(String),
}

/// What is asked for and about what, if it goes into the log.
fn action(message: &ToStore) -> Option<(RequestId, &'static str, Object)> {
    let by_id = |id: &VolumeId| Object::Other(id.to_string());
    let named = |name: &String| Object::Volume(name.clone());
    Some(match message {
        ToStore::Attach { request, name, take_over: true, .. } => {
            (*request, TAKE_OVER, named(name))
        }
        ToStore::Attach { request, name, .. } => (*request, "volume.attach", named(name)),
        ToStore::Resume { request, volume, .. } => (*request, "volume.resume", by_id(volume)),
        ToStore::Detach { request, volume, .. } => (*request, "volume.detach", by_id(volume)),
        ToStore::Volume { request, operation } => {
            let (action, object) = match operation {
                VolumeOperation::Create { name, .. } => ("volume.create", named(name)),
                VolumeOperation::Delete { name } => ("volume.delete", named(name)),
                VolumeOperation::Resize { name, .. } | VolumeOperation::Shrink { name, .. } => {
                    ("volume.resize", named(name))
                }
                VolumeOperation::AcceptLoss { name } => ("volume.accept-loss", named(name)),
                VolumeOperation::SetAttribute { volume, attribute, .. } => {
                    match attribute.as_str() {
                        RESERVATIONS => return None,
                        schedule::ATTRIBUTE => ("snapshot.schedule", by_id(volume)),
                        _ => ("volume.set-attribute", by_id(volume)),
                    }
                }
                VolumeOperation::Trash(TrashOperation::Restore { name, .. }) => {
                    ("volume.undelete", named(name))
                }
                VolumeOperation::Trash(TrashOperation::Purge { volume }) => {
                    ("volume.purge", by_id(volume))
                }
                VolumeOperation::Snapshot { name, operation } => match operation {
                    SnapshotOperation::Create { snapshot, .. } => {
                        ("snapshot.create", Object::Volume(format!("{name}@{snapshot}")))
                    }
                    SnapshotOperation::Delete { snapshot } => {
                        ("snapshot.delete", Object::Volume(format!("{name}@{snapshot}")))
                    }
                    SnapshotOperation::Rollback { snapshot } => {
                        ("snapshot.rollback", Object::Volume(format!("{name}@{snapshot}")))
                    }
                    SnapshotOperation::Clone { snapshot, clone, .. } => {
                        ("volume.clone", Object::Volume(format!("{name}@{snapshot} as {clone}")))
                    }
                    SnapshotOperation::List { .. }
                    | SnapshotOperation::Forget { .. }
                    | SnapshotOperation::Diff { .. }
                    | SnapshotOperation::Usage { .. } => return None,
                },
                VolumeOperation::List
                | VolumeOperation::Show { .. }
                | VolumeOperation::Lost { .. }
                | VolumeOperation::Stored { .. }
                | VolumeOperation::GetAttribute { .. }
                | VolumeOperation::Trash(TrashOperation::List { .. }) => return None,
            };
            (*request, action, object)
        }
        ToStore::Store { request, operation } => {
            let (action, object) = match operation {
                StoreOperation::Drain { on: true } => ("store.drain", Object::Other(String::new())),
                StoreOperation::Drain { on: false } => {
                    ("store.drain-off", Object::Other(String::new()))
                }
                StoreOperation::Rebalance => ("store.rebalance", Object::Other(String::new())),
                StoreOperation::Forget { id } => ("store.forget", Object::Other(id.to_string())),
                StoreOperation::Release { volume, host, key, claim, .. } => {
                    let what = match claim {
                        Claim::Attach { take_over: true, .. } => "attaches it, taking it over",
                        Claim::Attach { .. } => "attaches it",
                        Claim::Resume(_) => "resumes it",
                    };
                    let object = format!("{volume} for host {host} with key {key}, which {what}");
                    ("store.release", Object::Other(object))
                }
                StoreOperation::Replica(operation) => match operation {
                    ReplicaOperation::Show => return None,
                    ReplicaOperation::Add { location, .. } => {
                        ("store.replica-add", Object::Other(location.clone()))
                    }
                    ReplicaOperation::Remove => {
                        ("store.replica-remove", Object::Other(String::new()))
                    }
                    ReplicaOperation::Mode { in_step: true } => {
                        ("store.replica-in-step", Object::Other(String::new()))
                    }
                    ReplicaOperation::Mode { in_step: false } => {
                        ("store.replica-behind", Object::Other(String::new()))
                    }
                },
                StoreOperation::Renew { .. } => ("credential.renew", Object::Other(String::new())),
                StoreOperation::Sign { store, .. } => {
                    ("store.join", Object::Other(store.to_string()))
                }
                StoreOperation::Report | StoreOperation::List | StoreOperation::Refresh => {
                    return None;
                }
            };
            (*request, action, object)
        }
        ToStore::Tenant { request, operation } => {
            let (action, name) = match operation {
                TenantOperation::Create { tenant, .. } => ("tenant.create", tenant),
                TenantOperation::Set { tenant, .. } => ("tenant.set", tenant),
                TenantOperation::Delete { tenant } => ("tenant.delete", tenant),
                TenantOperation::Show { .. } | TenantOperation::List => return None,
            };
            (*request, action, Object::Other(name.clone()))
        }
        ToStore::Hello { .. }
        | ToStore::Batch { .. }
        | ToStore::Announce { .. }
        | ToStore::Read { .. }
        | ToStore::ReadBehind { .. }
        | ToStore::Status { .. }
        | ToStore::Stage { .. }
        | ToStore::Changed { .. }
        | ToStore::Barrier { .. } => return None,
    })
}

/// Which request a message answers, and how.
fn outcome(message: &ToHost) -> Option<(RequestId, String)> {
    fn said<T, E: std::fmt::Display>(result: &Result<T, E>) -> String {
        result.as_ref().map_or_else(ToString::to_string, |_| "ok".to_owned())
    }
    match message {
        ToHost::Attached { request, result } => Some((*request, said(result))),
        ToHost::Detached { request } => Some((*request, "ok".to_owned())),
        ToHost::Volume { request, result } => Some((*request, said(result))),
        ToHost::Store { request, result } => Some((*request, said(result))),
        ToHost::Tenant { request, result } => Some((*request, said(result))),
        _ => None,
    }
}
