//! What passes between sessions and everything else: here it is decided what a credential may do, and what it sees.
//!
//! What a message needs says [`rights`](super::rights); what a credential is good for says the list of those accepted,
//! as it is when its session begins. A session of a credential that is withdrawn ends within a second.
//!
//! A session's tenant is that of its certificate. To a session of a tenant volumes have the names that they have there;
//! inside they are `TENANT/NAME`, and no other name leads to them. What is asked by identity is answered as if there were
//! no such volume, unless it is one that the credential covers. What concerns the installation is refused to others than
//! those who may have all of it. Sessions of other stores have been through this where they come from, and may say what
//! stores say to each other.
//!
//! Everything that is asked in a session passes [`Shell::inbound`] and [`Shell::may_see`], everything that is answered
//! [`Guests::outbound`].

use super::rights::{Scope, needs};
use super::snapshots::volume_of;
use super::{Asked, Shell};
use crate::absent::no_such_volume;
use longhaul_core::block::VolumeId;
use longhaul_core::store::catalog::check_name;
use longhaul_core::store::tenant;
use longhaul_core::wire::link::{
    AttachError, Lane, Principal, SnapshotOperation, StageError, ToHost, ToStore, TrashOperation,
    TrashReply, VolumeError, VolumeOperation, VolumeReply,
};
use longhaul_link::credential::{Grant, Issued, Kind, Reach, Role};
use std::collections::HashMap;
use std::sync::Arc;

/// Whose a session is, and what may be done in it.
struct Guest {
    principal: Principal,
    /// Nothing once the certificate is withdrawn.
    grant: Option<Grant>,
    reach: Reach,
}

impl Guest {
    fn new(principal: &Principal, grant: Option<Grant>) -> Guest {
        let tenant = principal.tenant.as_deref();
        let reach = grant.as_ref().map_or_else(Reach::nothing, |grant| grant.reach(tenant));
        Guest { principal: principal.clone(), grant, reach }
    }

    /// The volumes that it knows of, if there are others.
    fn limits(&self) -> Option<&Reach> {
        (!self.principal.store && !self.reach.is_everything()).then_some(&self.reach)
    }

    /// Why it may not say that, and who may.
    fn refuses(&self, message: &ToStore) -> Option<String> {
        let needs = needs(message);
        let Some(grant) = &self.grant else {
            return Some("the credential was withdrawn".to_owned());
        };
        if grant.kind == Kind::Store {
            let why = "the certificate is a store's, and is good for what stores say to each other";
            return (!needs.stores).then(|| why.to_owned());
        }
        match (grant.kind == Kind::Join, needs.scope == Scope::Token) {
            (true, true) => return None,
            (true, false) => return Some("a token is good for `longhaul store join` only".into()),
            (false, true) => {
                return Some("this takes a token, which `longhaul store invite` makes".to_owned());
            }
            (false, false) => {}
        }
        let Grant { name, role, .. } = grant;
        match (needs.scope, &self.principal.tenant) {
            (Scope::Stores, _) => {
                return Some("only another store may ask for that".to_owned());
            }
            (Scope::Installation, Some(tenant)) => {
                return Some(format!(
                    "the credential is one of tenant {tenant}, and this is for the installation's own: use its admin.toml"
                ));
            }
            (Scope::Installation, None) if !self.reach.is_everything() => {
                return Some(format!(
                    "credential {name} is for some volumes only, and this is for the whole installation: use a \
                     credential for all volumes, as its admin.toml"
                ));
            }
            (Scope::Installation | Scope::Volumes | Scope::Covered | Scope::Token, _) => {}
        }
        (*role < needs.role).then(|| lacks(name, *role, needs.role))
    }

    /// What was asked, with the names that volumes have inside; or why not, and what to answer.
    fn admit(&self, message: ToStore) -> Result<ToStore, Box<Refused>> {
        if let Some(why) = self.refuses(&message) {
            return Err(Box::new(Refused { why: Some(VolumeError::Forbidden(why)), message }));
        }
        let Some(reach) = self.limits() else { return Ok(message) };
        let (there, made) = names(&message);
        if let Some(name) = made.filter(|name| !reach.covers(name)) {
            let credential = self.grant.as_ref().map_or("", |grant| &grant.name);
            let why = format!(
                "credential {credential} is not for a volume {name}: choose a name that its patterns cover, or have one \
                 issued for more volumes"
            );
            return Err(Box::new(Refused { why: Some(VolumeError::Forbidden(why)), message }));
        }
        if there.is_some_and(|name| !reach.covers(name)) {
            return Err(Box::new(Refused { why: None, message }));
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
        "credential {name} has role {has}, and this takes role {needs}: have one issued where a store runs, with \
         `longhaul credential issue --role {needs}`"
    )
}

/// What a session may not say.
#[derive(Debug, PartialEq, Eq)]
struct Refused {
    /// Nothing if there is no such volume for it.
    why: Option<VolumeError>,
    message: ToStore,
}

impl Refused {
    fn answer(self) -> Option<ToHost> {
        let Some(why) = self.why else { return no_such_volume(self.message) };
        match self.message {
            ToStore::Attach { request, .. } | ToStore::Resume { request, .. } => {
                let result = Err(AttachError::Forbidden(why.to_string()));
                Some(ToHost::Attached { request, result })
            }
            ToStore::Volume { request, .. } => Some(ToHost::Volume { request, result: Err(why) }),
            ToStore::Store { request, .. } => Some(ToHost::Store { request, result: Err(why) }),
            ToStore::Tenant { request, .. } => Some(ToHost::Tenant { request, result: Err(why) }),
            ToStore::Batch { volume, epoch, .. } => {
                let reason = why.to_string();
                Some(ToHost::BatchRefused { volume, epoch, reason })
            }
            ToStore::Stage { request, volume, .. } => {
                let result = Err(StageError::Unsupported);
                Some(ToHost::Staged { request, volume, result })
            }
            message => no_such_volume(message),
        }
    }
}

/// The volume that a message names, and one that it is to make or to name anew.
fn names(message: &ToStore) -> (Option<&str>, Option<&str>) {
    let (there, made) = match message {
        ToStore::Attach { name, .. } => (Some(name), None),
        ToStore::Volume { operation, .. } => match operation {
            VolumeOperation::Create { name, .. }
            | VolumeOperation::Trash(TrashOperation::Restore { name, .. }) => (None, Some(name)),
            VolumeOperation::Snapshot { name, operation } => match operation {
                SnapshotOperation::Clone { clone, .. } => (Some(name), Some(clone)),
                _ => (Some(name), None),
            },
            VolumeOperation::Show { name }
            | VolumeOperation::Delete { name }
            | VolumeOperation::Lost { name, .. }
            | VolumeOperation::AcceptLoss { name }
            | VolumeOperation::Resize { name, .. }
            | VolumeOperation::Shrink { name, .. }
            | VolumeOperation::Stored { name } => (Some(name), None),
            // By identity, which is looked up: see `identities`.
            VolumeOperation::List
            | VolumeOperation::GetAttribute { .. }
            | VolumeOperation::SetAttribute { .. }
            | VolumeOperation::Trash(TrashOperation::List { .. } | TrashOperation::Purge { .. }) => {
                (None, None)
            }
        },
        ToStore::Hello { .. }
        | ToStore::Resume { .. }
        | ToStore::Detach { .. }
        | ToStore::Batch { .. }
        | ToStore::Announce { .. }
        | ToStore::Read { .. }
        | ToStore::ReadBehind { .. }
        | ToStore::Status { .. }
        | ToStore::Stage { .. }
        | ToStore::Changed { .. }
        | ToStore::Barrier { .. }
        | ToStore::Store { .. }
        | ToStore::Tenant { .. } => (None, None),
    };
    (there.map(|name| volume_of(name)), made.map(|name| volume_of(name)))
}

/// The sessions, and whose they are.
pub(super) struct Guests {
    issued: Arc<Issued>,
    all: HashMap<u64, Guest>,
}

impl Guests {
    /// Of a store that accepts these.
    pub(super) fn new(issued: Arc<Issued>) -> Guests {
        Guests { issued, all: HashMap::new() }
    }

    /// A session has begun.
    pub(super) fn opened(&mut self, session: u64, principal: &Principal) {
        let grant = self.issued.grant(&principal.serial);
        self.all.insert(session, Guest::new(principal, grant));
    }

    /// Whose a session is; nothing once it is over, and for the shell's own.
    pub(super) fn principal(&self, session: u64) -> Option<&Principal> {
        self.all.get(&session).map(|guest| &guest.principal)
    }

    /// A session is over, and nothing is sent to it any more.
    pub(super) fn closed(&mut self, session: u64) {
        self.all.remove(&session);
    }

    /// The volumes that a session knows of, if there are others for it.
    fn limits(&self, session: u64) -> Option<&Reach> {
        self.all.get(&session)?.limits()
    }

    /// What is told to a session, with the names that volumes have there.
    pub(super) fn outbound(&self, session: u64, mut message: ToHost) -> ToHost {
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

/// The name that a volume has for whoever knows of these; nothing if it is none of them.
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

fn qualify_operation(tenant: &str, operation: &mut VolumeOperation) -> Result<(), VolumeError> {
    match operation {
        VolumeOperation::Create { name, .. }
        | VolumeOperation::Show { name }
        | VolumeOperation::Delete { name }
        | VolumeOperation::Lost { name, .. }
        | VolumeOperation::AcceptLoss { name }
        | VolumeOperation::Resize { name, .. }
        | VolumeOperation::Shrink { name, .. }
        | VolumeOperation::Stored { name }
        | VolumeOperation::Trash(TrashOperation::Restore { name, .. }) => qualify(tenant, name),
        VolumeOperation::Snapshot { name, operation } => {
            if let SnapshotOperation::Clone { clone, .. } = operation {
                qualify(tenant, clone)?;
            }
            qualify(tenant, name)
        }
        VolumeOperation::List
        | VolumeOperation::GetAttribute { .. }
        | VolumeOperation::SetAttribute { .. }
        | VolumeOperation::Trash(TrashOperation::List { .. } | TrashOperation::Purge { .. }) => {
            Ok(())
        }
    }
}

/// What a session asked, with the names that volumes have inside.
fn qualified(tenant: &str, mut message: ToStore) -> Result<ToStore, Box<Refused>> {
    let qualified = match &mut message {
        ToStore::Attach { name, .. } => qualify(tenant, name),
        ToStore::Volume { operation, .. } => qualify_operation(tenant, operation),
        // By identity: whose it is may have to be looked up first.
        _ => Ok(()),
    };
    match (qualified, &message) {
        (Ok(()), _) => Ok(message),
        (Err(_), ToStore::Attach { .. }) => Err(Box::new(Refused { why: None, message })),
        (Err(error), _) => Err(Box::new(Refused { why: Some(error), message })),
    }
}

/// The volumes, or snapshots of them, that a message names by identity.
fn identities(message: &ToStore) -> [Option<VolumeId>; 2] {
    match message {
        ToStore::Resume { volume, .. }
        | ToStore::Detach { volume, .. }
        | ToStore::Batch { volume, .. }
        | ToStore::Announce { volume, .. }
        | ToStore::Read { volume, .. }
        | ToStore::ReadBehind { volume, .. }
        | ToStore::Status { volume, .. }
        | ToStore::Changed { volume, .. }
        | ToStore::Barrier { volume, .. }
        | ToStore::Volume {
            operation:
                VolumeOperation::GetAttribute { volume, .. }
                | VolumeOperation::SetAttribute { volume, .. },
            ..
        } => [Some(*volume), None],
        ToStore::Stage { volume, into, .. } => [Some(*volume), Some(*into)],
        // What names volumes names those of the tenant, and deleted ones are looked at where they are found.
        ToStore::Hello { .. }
        | ToStore::Attach { .. }
        | ToStore::Volume { .. }
        | ToStore::Store { .. }
        | ToStore::Tenant { .. } => [None, None],
    }
}

impl Shell {
    /// What a session asked, as it is understood inside; nothing if that is answered.
    pub(super) fn inbound(&self, session: u64, lane: Lane, message: ToStore) -> Option<ToStore> {
        let Some(guest) = self.guests.all.get(&session) else { return Some(message) };
        match guest.admit(message) {
            Ok(message) => Some(message),
            Err(refused) => {
                if let Some(VolumeError::Forbidden(why)) = &refused.why {
                    self.watch.refused(session, &refused.message, why);
                }
                if let Some(answer) = refused.answer() {
                    self.send(session, lane, answer.into());
                }
                None
            }
        }
    }

    /// Whether the session's credential covers all volumes that a message names by identity, as far as they are known: of
    /// those that it does not, nobody says anything.
    pub(super) fn may_see(&self, session: u64, message: &ToStore) -> bool {
        let Some(reach) = self.guests.limits(session) else { return true };
        let mut named = identities(message).into_iter().flatten();
        named.all(|id| self.full_name(id).is_none_or(|name| reach.has(name)))
    }

    /// Whether a session may have what belongs to a volume.
    pub(super) fn may_have(&self, session: u64, volume: VolumeId) -> bool {
        let Some(reach) = self.guests.limits(session) else { return true };
        self.full_name(volume).is_some_and(|name| reach.has(name))
    }

    /// The name of a volume, or of the volume of a snapshot, if that is known.
    fn full_name(&self, id: VolumeId) -> Option<&str> {
        let volume = self.snapshots.place(id).map_or(id, |place| place.volume);
        self.names.get(&volume).map(String::as_str)
    }

    /// The volumes that are there for whoever asks something; all if there are no others.
    pub(super) fn reach_of(&self, asked: Asked) -> Option<Reach> {
        self.guests.limits(asked.session).cloned()
    }
}

#[cfg(test)]
mod tests;
