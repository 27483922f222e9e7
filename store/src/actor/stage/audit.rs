//! The audit recorder. It writes requests to the audit log, with the outcome from the answer. It
//! records each request that changes something, and each that attaches or detaches a volume.
//!
//! It is the first stage of the pipeline: a request number stands for one open request, so that no
//! answer counts for another request.

use super::super::request::{Decision, Request};
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

/// An attach with permission to take the volume from a connected host.
const TAKE_OVER: &str = "volume.take-over";
/// The attribute that hosts set by themselves.
pub(in super::super) const RESERVATIONS: &str = "reservations";

/// Records what passes.
pub(in super::super) struct AuditRecorder(Mutex<Recorded>);

struct Recorded {
    audit: Audit,
    sessions: HashMap<u64, RecordedSession>,
    /// Requests without an answer, of all sessions.
    places: Places<Arc<str>>,
}

struct RecordedSession {
    who: AuditedPeer,
    party: Arc<str>,
    /// Requests without an answer. A number stands for one of them at a time, so that no answer
    /// counts for another request.
    open: HashMap<RequestId, OpenRequest>,
}

/// A request without an answer.
struct OpenRequest {
    answer: AnswerKind,
    /// The action for the log, and its object, if there is one.
    action: Option<(&'static str, String)>,
    /// A note to write with the answer.
    note: Option<String>,
    _place: Place<Arc<str>>,
}

#[derive(Clone)]
struct AuditedPeer {
    peer: SocketAddr,
    principal: Principal,
}

impl AuditedPeer {
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

impl AuditRecorder {
    /// Writes it down there.
    pub fn new(audit: Audit) -> AuditRecorder {
        let places = Places::new(MAX_OPEN_REQUESTS, MAX_OPEN_REQUESTS_OF_ONE);
        AuditRecorder(Mutex::new(Recorded { audit, sessions: HashMap::new(), places }))
    }

    fn lock(&self) -> MutexGuard<'_, Recorded> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session has begun: a host's, an operator's, or another store's.
    pub fn opened(&self, session: u64, peer: SocketAddr, principal: &Principal, software: &str) {
        let who = AuditedPeer { peer, principal: principal.clone() };
        let party = party(principal).into();
        let mut recorded = self.lock();
        recorded.audit.write(who.event("session.open", software.to_owned(), "ok".to_owned()));
        recorded.sessions.insert(session, RecordedSession { who, party, open: HashMap::new() });
    }

    /// The peer of a session; nobody if it is over, or within the process.
    pub fn peer(&self, session: u64) -> SessionPeer {
        let recorded = self.lock();
        let Some(RecordedSession { who: AuditedPeer { peer, principal }, .. }) =
            recorded.sessions.get(&session)
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
    pub fn event(&self, volume: &str, event: &Event) {
        let mut recorded = self.lock();
        let Recorded { audit, sessions, .. } = &mut *recorded;
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
    pub fn claimed(&self, volume: &str, outcome: &str) {
        self.lock().audit.write(audit::Event {
            name: Some("store".to_owned()),
            action: "store.claim".to_owned(),
            object: volume.to_owned(),
            outcome: outcome.to_owned(),
            ..audit::Event::default()
        });
    }

    /// Every now and then.
    pub fn tick(&self) {
        self.lock().audit.tick();
    }

    /// A session is over.
    pub fn closed(&self, session: u64) {
        let mut recorded = self.lock();
        let Some(RecordedSession { who, open, .. }) = recorded.sessions.remove(&session) else {
            return;
        };
        for OpenRequest { action, note, .. } in open.into_values() {
            let Some((action, object)) = action else { continue };
            let ended = || "the session ended before the answer".to_owned();
            recorded.audit.write(who.event(action, object, note.unwrap_or_else(ended)));
        }
    }

    /// Notes a request. Ends the session if the answer could count for another request, or if the
    /// party has too many requests without an answer.
    pub fn decide(&self, request: Request) -> Decision {
        match self.asked(request.session(), request.message()) {
            Ok(()) => Decision::Pass(request),
            Err(why) => Decision::Close(request.session(), why),
        }
    }

    fn asked(&self, session: u64, message: &ToStore) -> Result<(), String> {
        let Some(Recordable { request, answer, action }) = recordable(message) else {
            return Ok(());
        };
        let mut recorded = self.lock();
        let Recorded { audit, sessions, places } = &mut *recorded;
        let Some(of) = sessions.get_mut(&session) else { return Ok(()) };
        let tenant = of.who.principal.tenant.as_deref();
        let action = action.map(|(action, object)| (action, object.named(tenant)));
        let refused = if of.open.contains_key(&request) {
            format!("request {request} came while another one with this number has no answer")
        } else if let Some(place) = places.take(of.party.clone()) {
            of.open.insert(request, OpenRequest { answer, action, note: None, _place: place });
            return Ok(());
        } else {
            "too many requests of this tenant, or with this credential, have no answer".to_owned()
        };
        let (action, object) = action.unwrap_or_else(|| unrecorded(Some(answer)));
        audit.refused_request(of.who.event(action, object, format!("refused: {refused}")));
        Err(refused)
    }

    /// A session may not do what it asked.
    pub fn refused(&self, session: u64, message: &ToStore, why: &str) {
        let mut recorded = self.lock();
        let Recorded { audit, sessions, .. } = &mut *recorded;
        let Some(of) = sessions.get_mut(&session) else { return };
        // The line goes out here, within the limits of the other texts, and not with the answer.
        let recordable = recordable(message);
        let answer = recordable.as_ref().map(|of| of.answer);
        let open = recordable.and_then(|recordable| of.open.get_mut(&recordable.request));
        let action = open.and_then(|open| open.action.take());
        let (action, object) = action.unwrap_or_else(|| unrecorded(answer));
        audit.refused_request(of.who.event(action, object, why.to_owned()));
    }

    /// Something is answered.
    pub fn answered(&self, session: u64, message: &ToHost) {
        let Some((request, answer, outcome)) = outcome(message) else { return };
        let mut recorded = self.lock();
        let Recorded { audit, sessions, .. } = &mut *recorded;
        let Some(of) = sessions.get_mut(&session) else { return };
        if of.open.get(&request).is_none_or(|open| open.answer != answer) {
            return;
        }
        let Some(OpenRequest { action, note, .. }) = of.open.remove(&request) else { return };
        if let Some((action, object)) = action {
            audit.write(of.who.event(action, object, note.unwrap_or(outcome)));
        }
    }
}

/// Action and object of a refused request that the log has no action for.
fn unrecorded(answer: Option<AnswerKind>) -> (&'static str, String) {
    let object = match answer {
        Some(AnswerKind::Store) => "stores",
        Some(AnswerKind::Tenant) => "tenants",
        _ => "a volume",
    };
    ("request.refused", object.to_owned())
}

/// The kind of an answer to a request that may go into the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerKind {
    Attached,
    Detached,
    Volume,
    Store,
    Tenant,
}

/// The object of an action.
enum AuditObject {
    /// A volume, as the session names it.
    Volume(String),
    /// An identity, or what is no volume.
    Other(String),
}

impl AuditObject {
    /// As the log has it, if that tenant asks.
    fn named(self, tenant: Option<&str>) -> String {
        match self {
            AuditObject::Volume(name) => tenant::within(tenant, &name),
            AuditObject::Other(text) => text,
        }
    }
}

/// A request that the recorder follows.
struct Recordable {
    request: RequestId,
    answer: AnswerKind,
    /// The action and its object, if it goes into the log.
    action: Option<(&'static str, AuditObject)>,
}

fn recordable(message: &ToStore) -> Option<Recordable> {
    let by_id = |id: &VolumeId| AuditObject::Other(id.to_string());
    let (request, answer, action) = match message {
        ToStore::Attach { request, name, take_over, .. } => {
            let action = if *take_over { TAKE_OVER } else { "volume.attach" };
            let object = AuditObject::Volume(name.clone());
            (*request, AnswerKind::Attached, Some((action, object)))
        }
        ToStore::Resume { request, volume, .. } => {
            (*request, AnswerKind::Attached, Some(("volume.resume", by_id(volume))))
        }
        ToStore::Detach { request, volume, .. } => {
            (*request, AnswerKind::Detached, Some(("volume.detach", by_id(volume))))
        }
        ToStore::Volume { request, operation } => {
            (*request, AnswerKind::Volume, of_volume(operation))
        }
        ToStore::Store { request, operation } => (*request, AnswerKind::Store, of_store(operation)),
        ToStore::Tenant { request, operation } => {
            (*request, AnswerKind::Tenant, of_tenant(operation))
        }
        ToStore::Hello { .. }
        | ToStore::Batch { .. }
        | ToStore::Announce { .. }
        | ToStore::Read { .. }
        | ToStore::EarlyRead { .. }
        | ToStore::Status { .. }
        | ToStore::Stage { .. }
        | ToStore::Changed { .. }
        | ToStore::Barrier { .. } => return None,
    };
    Some(Recordable { request, answer, action })
}

fn of_volume(operation: &VolumeOperation) -> Option<(&'static str, AuditObject)> {
    let by_id = |id: &VolumeId| AuditObject::Other(id.to_string());
    let named = |name: &String| AuditObject::Volume(name.clone());
    Some(match operation {
        VolumeOperation::Create { name, .. } => ("volume.create", named(name)),
        VolumeOperation::Delete { name } => ("volume.delete", named(name)),
        VolumeOperation::Resize { name, .. } | VolumeOperation::Shrink { name, .. } => {
            ("volume.resize", named(name))
        }
        VolumeOperation::AcceptLoss { name } => ("volume.accept-loss", named(name)),
        VolumeOperation::SetAttribute { volume, attribute, .. } => match attribute.as_str() {
            RESERVATIONS => return None,
            schedule::ATTRIBUTE => ("snapshot.schedule", by_id(volume)),
            _ => ("volume.set-attribute", by_id(volume)),
        },
        VolumeOperation::Trash(TrashOperation::Restore { name, .. }) => {
            ("volume.undelete", named(name))
        }
        VolumeOperation::Trash(TrashOperation::Purge { volume }) => ("volume.purge", by_id(volume)),
        VolumeOperation::Snapshot { name, operation } => match operation {
            SnapshotOperation::Create { snapshot, .. } => {
                ("snapshot.create", AuditObject::Volume(format!("{name}@{snapshot}")))
            }
            SnapshotOperation::Delete { snapshot } => {
                ("snapshot.delete", AuditObject::Volume(format!("{name}@{snapshot}")))
            }
            SnapshotOperation::Rollback { snapshot } => {
                ("snapshot.rollback", AuditObject::Volume(format!("{name}@{snapshot}")))
            }
            SnapshotOperation::Clone { snapshot, clone, .. } => {
                ("volume.clone", AuditObject::Volume(format!("{name}@{snapshot} as {clone}")))
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
    })
}

fn of_store(operation: &StoreOperation) -> Option<(&'static str, AuditObject)> {
    Some(match operation {
        StoreOperation::Evacuate { on: true } => {
            ("store.evacuate", AuditObject::Other(String::new()))
        }
        StoreOperation::Evacuate { on: false } => {
            ("store.evacuate-off", AuditObject::Other(String::new()))
        }
        StoreOperation::Rebalance => ("store.rebalance", AuditObject::Other(String::new())),
        StoreOperation::Forget { id } => ("store.forget", AuditObject::Other(id.to_string())),
        StoreOperation::Release { volume, host, key, claim, .. } => {
            let what = match claim {
                Claim::Attach { take_over: true, .. } => "attaches it, taking it over",
                Claim::Attach { .. } => "attaches it",
                Claim::Resume(_) => "resumes it",
            };
            let object = format!("{volume} for host {host} with key {key}, which {what}");
            ("store.release", AuditObject::Other(object))
        }
        StoreOperation::Replica(operation) => match operation {
            ReplicaOperation::Show => return None,
            ReplicaOperation::Add { location, .. } => {
                ("store.replica-add", AuditObject::Other(location.clone()))
            }
            ReplicaOperation::Remove => ("store.replica-remove", AuditObject::Other(String::new())),
            ReplicaOperation::Mode { in_step: true } => {
                ("store.replica-in-step", AuditObject::Other(String::new()))
            }
            ReplicaOperation::Mode { in_step: false } => {
                ("store.replica-behind", AuditObject::Other(String::new()))
            }
        },
        StoreOperation::Renew { .. } => ("credential.renew", AuditObject::Other(String::new())),
        StoreOperation::Sign { store, .. } => ("store.join", AuditObject::Other(store.to_string())),
        StoreOperation::Report | StoreOperation::List | StoreOperation::Refresh => {
            return None;
        }
    })
}

fn of_tenant(operation: &TenantOperation) -> Option<(&'static str, AuditObject)> {
    let (action, name) = match operation {
        TenantOperation::Create { tenant, .. } => ("tenant.create", tenant),
        TenantOperation::Set { tenant, .. } => ("tenant.set", tenant),
        TenantOperation::Delete { tenant } => ("tenant.delete", tenant),
        TenantOperation::Show { .. } | TenantOperation::List => return None,
    };
    Some((action, AuditObject::Other(name.clone())))
}

/// The request that a message answers, the kind of the answer, and the outcome.
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
mod tests;
