//! What goes into the audit log: what changes something, or takes or leaves a volume, with what was answered.

use crate::audit::{self, Audit};
use longhaul_api::schedule;
use longhaul_base::limits::{MAX_OPEN_REQUESTS, MAX_OPEN_REQUESTS_OF_ONE, Place, Places};
use longhaul_base::text::escaped;
use longhaul_core::block::VolumeId;
use longhaul_core::store::{Event, SessionPeer, tenant};
use longhaul_core::wire::link::{
    Claim, Principal, ReplicaOperation, RequestId, SnapshotOperation, StoreOperation,
    TenantOperation, ToHost, ToStore, TrashOperation, VolumeOperation,
};
use longhaul_link::credential::bare;
use longhaul_link::party;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Attaching with leave to take the volume from a host that is connected.
const TAKE_OVER: &str = "volume.take-over";
/// The attribute that hosts set by themselves.
pub(super) const RESERVATIONS: &str = "reservations";

/// Sees what passes.
pub(super) struct Watch(Mutex<Watched>);

struct Watched {
    audit: Audit,
    sessions: HashMap<u64, Session>,
    /// Requests without an answer, of all sessions.
    places: Places<Arc<str>>,
}

struct Session {
    who: Who,
    party: Arc<str>,
    /// Requests without an answer: a number stands for one of them at a time, so that no answer is taken for another's.
    open: HashMap<RequestId, Open>,
}

/// A request without an answer.
struct Open {
    answer: AnswerKind,
    /// What goes into the log, and about what, if anything does.
    action: Option<(&'static str, String)>,
    /// What is to be said with the answer.
    note: Option<String>,
    _place: Place<Arc<str>>,
}

#[derive(Clone)]
struct Who {
    peer: SocketAddr,
    principal: Principal,
}

impl Who {
    fn event(&self, action: &str, object: String, outcome: String) -> audit::Event {
        audit::Event {
            tenant: self.principal.tenant.clone(),
            name: Some(match self.principal.store {
                true => "store".to_owned(),
                false => self.principal.name.clone(),
            }),
            credential: Some(bare(&self.principal.serial).to_owned()),
            peer: self.peer.to_string(),
            action: action.to_owned(),
            object,
            outcome,
        }
    }
}

impl Watch {
    /// Writes it down there.
    pub(super) fn new(audit: Audit) -> Watch {
        let places = Places::new(MAX_OPEN_REQUESTS, MAX_OPEN_REQUESTS_OF_ONE);
        Watch(Mutex::new(Watched { audit, sessions: HashMap::new(), places }))
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
        let party = party(principal).into();
        let mut watched = self.lock();
        watched.audit.write(who.event("session.open", software.to_owned(), "ok".to_owned()));
        watched.sessions.insert(session, Session { who, party, open: HashMap::new() });
    }

    /// Who is at the other end of a session; nobody if it is over, or within the process.
    pub(super) fn peer(&self, session: u64) -> SessionPeer {
        let watched = self.lock();
        let Some(Session { who: Who { peer, principal }, .. }) = watched.sessions.get(&session)
        else {
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
        let mut watched = self.lock();
        let Watched { audit, sessions, .. } = &mut *watched;
        match event {
            Event::Attached { session, request, former, .. } => {
                let open = sessions.get_mut(&session.0).and_then(|of| of.open.get_mut(request));
                let Some(open) = open else { return };
                if open.action.as_ref().is_some_and(|(action, _)| *action == TAKE_OVER) {
                    let former = former.clone().unwrap_or_else(|| "nobody".to_owned());
                    open.note = Some(format!("ok, taken from {former}"));
                }
            }
            Event::OtherKey { session, action, request, epoch, key } => {
                let Some(of) = sessions.get_mut(&session.0) else { return };
                if let Some(request) = request {
                    of.open.remove(request);
                }
                let outcome = format!("refused: epoch {epoch} belongs to key {key}");
                audit.write(of.who.event(action, volume.to_owned(), outcome));
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
        let Some(Session { who, open, .. }) = watched.sessions.remove(&session) else { return };
        for Open { action, note, .. } in open.into_values() {
            let Some((action, object)) = action else { continue };
            let ended = || "the session ended before the answer".to_owned();
            watched.audit.write(who.event(action, object, note.unwrap_or_else(ended)));
        }
    }

    /// Something is asked.
    ///
    /// # Errors
    /// Why the session is to be ended and what was asked not to be done: an answer could be taken for that to something
    /// else, or there are too many requests without one.
    pub(super) fn asked(&self, session: u64, message: &ToStore) -> Result<(), String> {
        let Some((request, answer)) = answered_by(message) else { return Ok(()) };
        let mut watched = self.lock();
        let Watched { audit, sessions, places } = &mut *watched;
        let Some(of) = sessions.get_mut(&session) else { return Ok(()) };
        let refused = if of.open.contains_key(&request) {
            format!("request {request} is asked while another one of this number has no answer")
        } else if let Some(place) = places.take(of.party.clone()) {
            let action = action(message).map(|(_, action, object)| {
                (action, object.named(of.who.principal.tenant.as_deref()))
            });
            of.open.insert(request, Open { answer, action, note: None, _place: place });
            return Ok(());
        } else {
            "too many requests of this tenant, or with this credential, have no answer".to_owned()
        };
        let (name, object) = match action(message) {
            Some((_, action, object)) => (action, object.named(of.who.principal.tenant.as_deref())),
            None => ("request.refused", subject(message).to_owned()),
        };
        audit.refused_request(of.who.event(name, object, format!("refused: {refused}")));
        Err(refused)
    }

    /// A session may not do what it asked.
    pub(super) fn refused(&self, session: u64, message: &ToStore, why: &str) {
        let mut watched = self.lock();
        let Watched { audit, sessions, .. } = &mut *watched;
        let Some(of) = sessions.get_mut(&session) else { return };
        // It is written here, where the rest of it is bounded, and not with its answer.
        let open = answered_by(message).and_then(|(request, _)| of.open.get_mut(&request));
        let action = open.and_then(|open| open.action.take());
        let (action, object) =
            action.unwrap_or_else(|| ("request.refused", subject(message).to_owned()));
        audit.refused_request(of.who.event(action, object, why.to_owned()));
    }

    /// Something is answered.
    pub(super) fn answered(&self, session: u64, message: &ToHost) {
        let Some((request, answer, outcome)) = outcome(message) else { return };
        let mut watched = self.lock();
        let Watched { audit, sessions, .. } = &mut *watched;
        let Some(of) = sessions.get_mut(&session) else { return };
        if of.open.get(&request).is_none_or(|open| open.answer != answer) {
            return;
        }
        let Some(Open { action, note, .. }) = of.open.remove(&request) else { return };
        if let Some((action, object)) = action {
            audit.write(of.who.event(action, object, note.unwrap_or(outcome)));
        }
    }
}

/// What a request is about, of which the log says no more.
fn subject(message: &ToStore) -> &'static str {
    match message {
        ToStore::Store { .. } => "stores",
        ToStore::Tenant { .. } => "tenants",
        _ => "a volume",
    }
}

/// What is answered to a request that may go into the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerKind {
    Attached,
    Detached,
    Volume,
    Store,
    Tenant,
}

/// The number of a request, and the kind of its answer.
fn answered_by(message: &ToStore) -> Option<(RequestId, AnswerKind)> {
    match message {
        ToStore::Attach { request, .. } | ToStore::Resume { request, .. } => {
            Some((*request, AnswerKind::Attached))
        }
        ToStore::Detach { request, .. } => Some((*request, AnswerKind::Detached)),
        ToStore::Volume { request, .. } => Some((*request, AnswerKind::Volume)),
        ToStore::Store { request, .. } => Some((*request, AnswerKind::Store)),
        ToStore::Tenant { request, .. } => Some((*request, AnswerKind::Tenant)),
        ToStore::Hello { .. }
        | ToStore::Batch { .. }
        | ToStore::Announce { .. }
        | ToStore::Read { .. }
        | ToStore::ReadBehind { .. }
        | ToStore::Status { .. }
        | ToStore::Stage { .. }
        | ToStore::Changed { .. }
        | ToStore::Barrier { .. } => None,
    }
}

/// What something is about.
enum Object {
    /// A volume, as the session names it.
    Volume(String),
    /// An identity, or what is no volume.
    Other(String),
}

impl Object {
    /// As the log has it, if that tenant asks.
    fn named(self, tenant: Option<&str>) -> String {
        match self {
            Object::Volume(name) => tenant::within(tenant, &name),
            Object::Other(text) => text,
        }
    }
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

/// Which request a message answers, of which kind it is, and how.
fn outcome(message: &ToHost) -> Option<(RequestId, AnswerKind, String)> {
    fn said<T, E: std::fmt::Display>(result: &Result<T, E>) -> String {
        result.as_ref().map_or_else(ToString::to_string, |_| "ok".to_owned())
    }
    Some(match message {
        ToHost::Attached { request, result } => (*request, AnswerKind::Attached, said(result)),
        ToHost::Detached { request } => (*request, AnswerKind::Detached, "ok".to_owned()),
        ToHost::Volume { request, result } => (*request, AnswerKind::Volume, said(result)),
        ToHost::Store { request, result } => (*request, AnswerKind::Store, said(result)),
        ToHost::Tenant { request, result } => (*request, AnswerKind::Tenant, said(result)),
        _ => return None,
    })
}

#[cfg(test)]
#[path = "watch/tests.rs"]
mod tests;
