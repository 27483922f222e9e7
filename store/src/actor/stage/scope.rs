//! The tenant scope: it decides which messages a credential may send, and which volumes it sees.
//!
//! [`rights`](super::rights) lists the needs of each message. The list of accepted credentials
//! gives the grant of a credential at the beginning of its session. The session of a withdrawn
//! credential ends within a second.
//!
//! The certificate of a session names its tenant. A session of a tenant uses the names that volumes
//! have within the tenant. Inside the store these names are `TENANT/NAME`, and no other name leads
//! to them. A message may name a volume by identity. It gets the answer for unknown volumes, unless
//! the credential covers the volume. Requests about the installation need a credential for all of
//! it. Messages of other stores passed the scope at the store that received them. A store may send
//! the messages that stores send to each other.
//!
//! Each request passes [`TenantScope::decide`], and [`TenantScope::covers`] once its volume is
//! known. Each answer passes [`TenantScope::outbound`].

use super::super::directory::Directory;
use super::super::refusal::Refusal;
use super::super::request::{Decision, Request, Target, volume_of};
use super::rights::{Needs, Scope, needs};
use longhaul_core::block::VolumeId;
use longhaul_core::store::catalog::check_name;
use longhaul_core::store::tenant;
use longhaul_core::wire::link::{
    AttachError, Principal, SnapshotOperation, ToHost, ToStore, TrashOperation, TrashReply,
    VolumeError, VolumeOperation, VolumeReply,
};
use longhaul_link::credential::{Grant, Issued, Kind, Reach, Role};
use std::collections::HashMap;
use std::sync::Arc;

/// The owner of a session, and its rights.
struct SessionScope {
    principal: Arc<Principal>,
    /// `None` after the withdrawal of the certificate.
    grant: Option<Grant>,
    reach: Reach,
}

impl SessionScope {
    fn new(principal: &Principal, grant: Option<Grant>) -> SessionScope {
        let tenant = principal.tenant.as_deref();
        let reach = grant.as_ref().map_or_else(Reach::nothing, |grant| grant.reach(tenant));
        SessionScope { principal: Arc::new(principal.clone()), grant, reach }
    }

    /// The volumes that it knows of, if there are others.
    fn limits(&self) -> Option<&Reach> {
        (!self.principal.store && !self.reach.is_everything()).then_some(&self.reach)
    }

    /// Why it may not say that, and who may.
    fn refuses(&self, message: &ToStore) -> Option<String> {
        let Needs { role: least, scope, stores } = needs(message);
        let Some(grant) = &self.grant else {
            return Some("the credential was withdrawn".to_owned());
        };
        if grant.kind == Kind::Store {
            let why = "the certificate is a store's, and only valid for messages between stores";
            return (!stores).then(|| why.to_owned());
        }
        match (grant.kind == Kind::Join, scope == Scope::Token) {
            (true, true) => return None,
            (true, false) => return Some("a token is good for `longhaul store join` only".into()),
            (false, true) => {
                return Some("this takes a token, which `longhaul store invite` makes".to_owned());
            }
            (false, false) => {}
        }
        let Grant { name, role, .. } = grant;
        match (scope, &self.principal.tenant) {
            (Scope::Stores, _) => {
                return Some("only another store may ask for that".to_owned());
            }
            (Scope::Installation, Some(tenant)) => {
                return Some(format!(
                    "the credential is one of tenant {tenant}, and this is for the installation's \
                     own: use its admin.toml"
                ));
            }
            (Scope::Installation, None) if !self.reach.is_everything() => {
                return Some(format!(
                    "credential {name} is for some volumes only, and this is for the whole \
                     installation: use a credential for all volumes, as its admin.toml"
                ));
            }
            (Scope::Installation | Scope::Volumes | Scope::Covered | Scope::Token, _) => {}
        }
        (*role < least).then(|| lacks(name, *role, least))
    }

    /// The message with the names inside the store, or the reason of its refusal.
    fn admit(&self, mut message: ToStore) -> Result<ToStore, Box<RefusedMessage>> {
        let refused = |refusal, message| Err(Box::new(RefusedMessage { refusal, message }));
        if let Some(why) = self.refuses(&message) {
            return refused(Refusal::Rejected(VolumeError::Forbidden(why)), message);
        }
        let Some(reach) = self.limits() else { return Ok(message) };
        let Named { existing, new } = names(&mut message);
        if let Some(name) = new.map(|name| volume_of(name)).filter(|name| !reach.covers(name)) {
            let credential = self.grant.as_ref().map_or("", |grant| &grant.name);
            let why = format!(
                "credential {credential} is not for a volume {name}: choose a name that its \
                 patterns cover, or have one issued for more volumes"
            );
            return refused(Refusal::Rejected(VolumeError::Forbidden(why)), message);
        }
        if existing.is_some_and(|name| !reach.covers(volume_of(name))) {
            return refused(Refusal::NotFound, message);
        }
        match reach.tenant() {
            Some(tenant) => qualified(tenant, message),
            None => Ok(message),
        }
    }
}

/// A credential's role is too little.
fn lacks(name: &str, has: Role, needs: Role) -> String {
    format!(
        "credential {name} has role {has}, and this takes role {needs}: have one issued where a \
         store runs, with `longhaul credential issue --role {needs}`"
    )
}

/// A message that a session may not send.
#[derive(Debug, PartialEq, Eq)]
struct RefusedMessage {
    refusal: Refusal,
    message: ToStore,
}

#[cfg(test)]
impl RefusedMessage {
    fn answer(self) -> Option<ToHost> {
        self.refusal.answer(self.message)
    }
}

/// The names in a message.
#[derive(Default)]
struct Named<'a> {
    /// The volume that it is about.
    existing: Option<&'a mut String>,
    /// The volume that it creates or renames.
    new: Option<&'a mut String>,
}

/// The names in a message: all of them are within the tenant of the session.
fn names(message: &mut ToStore) -> Named<'_> {
    let existing = |name| Named { existing: Some(name), new: None };
    let new = |name| Named { existing: None, new: Some(name) };
    match message {
        ToStore::Attach { name, .. } => existing(name),
        ToStore::Volume { operation, .. } => match operation {
            VolumeOperation::Create { name, .. }
            | VolumeOperation::Trash(TrashOperation::Restore { name, .. }) => new(name),
            VolumeOperation::Snapshot { name, operation } => match operation {
                SnapshotOperation::Clone { clone, .. } => {
                    Named { existing: Some(name), new: Some(clone) }
                }
                SnapshotOperation::Create { .. }
                | SnapshotOperation::List { .. }
                | SnapshotOperation::Delete { .. }
                | SnapshotOperation::Rollback { .. }
                | SnapshotOperation::Forget { .. }
                | SnapshotOperation::Diff { .. }
                | SnapshotOperation::Usage { .. } => existing(name),
            },
            VolumeOperation::Show { name }
            | VolumeOperation::Delete { name }
            | VolumeOperation::Lost { name, .. }
            | VolumeOperation::AcceptLoss { name }
            | VolumeOperation::Resize { name, .. }
            | VolumeOperation::Shrink { name, .. }
            | VolumeOperation::Stored { name } => existing(name),
            // These name volumes by identity: see `TenantScope::covers`.
            VolumeOperation::List
            | VolumeOperation::GetAttribute { .. }
            | VolumeOperation::SetAttribute { .. }
            | VolumeOperation::Trash(TrashOperation::List { .. } | TrashOperation::Purge { .. }) => {
                Named::default()
            }
        },
        ToStore::Hello { .. }
        | ToStore::Resume { .. }
        | ToStore::Detach { .. }
        | ToStore::Batch { .. }
        | ToStore::Announce { .. }
        | ToStore::Read { .. }
        | ToStore::EarlyRead { .. }
        | ToStore::Status { .. }
        | ToStore::Stage { .. }
        | ToStore::Changed { .. }
        | ToStore::Barrier { .. }
        | ToStore::Store { .. }
        | ToStore::Tenant { .. } => Named::default(),
    }
}

/// The scopes of all sessions.
pub(in super::super) struct TenantScope {
    issued: Arc<Issued>,
    sessions: HashMap<u64, SessionScope>,
}

impl TenantScope {
    /// For a store that accepts these credentials.
    pub fn new(issued: Arc<Issued>) -> TenantScope {
        TenantScope { issued, sessions: HashMap::new() }
    }

    /// A session has begun.
    pub fn opened(&mut self, session: u64, principal: &Principal) {
        let grant = self.issued.grant(&principal.serial);
        self.sessions.insert(session, SessionScope::new(principal, grant));
    }

    /// A session is over: it gets no more messages.
    pub fn closed(&mut self, session: u64) {
        self.sessions.remove(&session);
    }

    /// The principal of a session; `None` once it is over.
    pub fn principal(&self, session: u64) -> Option<Arc<Principal>> {
        self.sessions.get(&session).map(|of| of.principal.clone())
    }

    /// The volumes that a session sees, if there are others.
    pub fn limits(&self, session: u64) -> Option<&Reach> {
        self.sessions.get(&session)?.limits()
    }

    /// Whether the session may send the message. Names become those that volumes have inside the
    /// store.
    pub fn decide(&self, mut request: Request) -> Decision {
        let Some(scope) = self.sessions.get(&request.session()) else {
            return Decision::Pass(request);
        };
        let hello = ToStore::Hello { min_version: 0, max_version: 0, software: String::new() };
        let message = std::mem::replace(&mut request.body.message, hello);
        match scope.admit(message) {
            Ok(message) if scope.limits().is_none() => {
                request.body.message = message;
                Decision::Pass(request)
            }
            Ok(message) => Decision::Pass(request.with_message(message)),
            Err(refused) => {
                request.body.message = refused.message;
                Decision::Refuse(request, refused.refusal)
            }
        }
    }

    /// Whether the session sees all known volumes that the request names by identity. If the
    /// session does not see a volume, it learns nothing of it.
    pub fn covers(&self, request: &Request, directory: &Directory) -> bool {
        let Some(reach) = self.limits(request.session()) else { return true };
        let mut named = request.target.identities().into_iter().flatten();
        named.all(|id| directory.full_name(id).is_none_or(|name| reach.has(name)))
    }

    /// Passes a request whose volumes the session sees.
    pub fn decide_identities(&self, request: Request, directory: &Directory) -> Decision {
        if self.covers(&request, directory) {
            return Decision::Pass(request);
        }
        let refusal = match request.target {
            Target::Copy { into, .. } if !self.may_have(request.session(), into, directory) => {
                Refusal::NoCopy
            }
            _ => Refusal::NotFound,
        };
        Decision::Refuse(request, refusal)
    }

    /// Whether a session may have what belongs to a volume.
    pub fn may_have(&self, session: u64, volume: VolumeId, directory: &Directory) -> bool {
        let Some(reach) = self.limits(session) else { return true };
        directory.full_name(volume).is_some_and(|name| reach.has(name))
    }

    /// A message for a session, with the names of volumes in that session.
    pub fn outbound(&self, session: u64, mut message: ToHost) -> ToHost {
        let Some(reach) = self.limits(session) else { return message };
        match &mut message {
            ToHost::Volume { result: Ok(reply), .. } => strip_reply(reach, reply),
            ToHost::Volume { result: Err(error), .. } => strip_error(reach, error),
            ToHost::Attached { result: Err(AttachError::Damaged(why)), .. } => {
                *why = strip_text(reach, why);
            }
            ToHost::Attached { result: Err(AttachError::InUse { volume, .. }), .. } => {
                *volume = strip_text(reach, volume);
            }
            _ => {}
        }
        message
    }
}

/// The name of a volume for a session with this reach; `None` if the volume is outside of it.
fn strip<'a>(reach: &Reach, name: &'a str) -> Option<&'a str> {
    let stripped = if reach.tenant().is_some() { tenant::split(name).1 } else { name };
    reach.has(name).then_some(stripped)
}

fn strip_reply(reach: &Reach, reply: &mut VolumeReply) {
    let keep = |name: &mut String| match strip(reach, name).map(str::to_owned) {
        Some(stripped) => {
            *name = stripped;
            true
        }
        None => false,
    };
    match reply {
        VolumeReply::Volume(info) => drop(keep(&mut info.name)),
        VolumeReply::List(list) => list.retain_mut(|info| keep(&mut info.name)),
        VolumeReply::Trash(TrashReply::List { volumes, .. }) => {
            volumes.retain_mut(|info| keep(&mut info.name));
        }
        VolumeReply::Done
        | VolumeReply::Lost { .. }
        | VolumeReply::Attribute(_)
        | VolumeReply::Snapshot(_)
        | VolumeReply::Stored(_)
        | VolumeReply::Trash(TrashReply::Purged) => {}
    }
}

fn strip_error(reach: &Reach, error: &mut VolumeError) {
    if let VolumeError::Invalid(why) | VolumeError::Store(why) = error {
        *why = strip_text(reach, why);
    }
}

/// A message that names volumes of the tenant, with the names that they have there.
fn strip_text(reach: &Reach, text: &str) -> String {
    match reach.tenant() {
        Some(tenant) => text.replace(&format!("{tenant}/"), ""),
        None => text.to_owned(),
    }
}

/// Gives a name that a tenant said its tenant.
fn qualify(tenant: &str, name: &mut String) -> Result<(), VolumeError> {
    check_name(volume_of(name)).map_err(|error| VolumeError::Invalid(error.to_string()))?;
    *name = tenant::within(Some(tenant), name);
    Ok(())
}

/// A message of a tenant, with the names that volumes have inside the store.
fn qualified(tenant: &str, mut message: ToStore) -> Result<ToStore, Box<RefusedMessage>> {
    let Named { existing, new } = names(&mut message);
    let mut all = new.into_iter().chain(existing);
    let refusal = match all.try_for_each(|name| qualify(tenant, name)) {
        Ok(()) => return Ok(message),
        Err(_) if matches!(message, ToStore::Attach { .. }) => Refusal::NotFound,
        Err(error) => Refusal::Rejected(error),
    };
    Err(Box::new(RefusedMessage { refusal, message }))
}

#[cfg(test)]
mod tests;
