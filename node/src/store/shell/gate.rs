//! What passes between sessions and everything else: here it is decided what a tenant sees.
//!
//! A session's tenant is that of its certificate. To a session of a tenant volumes have the names that they have there;
//! inside they are `TENANT/NAME`, and no other name leads to them. What is asked by identity is answered as if there were
//! no such volume, unless it is the tenant's. What concerns the installation is refused. Sessions of other stores have
//! been through this where they come from.
//!
//! Everything that is asked in a session passes [`Shell::inbound`] and [`Shell::may_see`], everything that is answered
//! [`Guests::outbound`].

use super::snapshots::volume_of;
use super::{Asked, Shell};
use longhaul_core::block::VolumeId;
use longhaul_core::store::catalog::check_name;
use longhaul_core::store::tenant;
use longhaul_core::wire::link::{
    AttachError, Principal, SnapshotOperation, ToHost, ToStore, TrashOperation, TrashReply,
    VolumeError, VolumeOperation, VolumeReply,
};
use std::collections::HashMap;

/// The sessions, and whose they are.
#[derive(Default)]
pub(super) struct Guests {
    principals: HashMap<u64, Principal>,
}

impl Guests {
    /// A session has begun.
    pub(super) fn opened(&mut self, session: u64, principal: &Principal) {
        self.principals.insert(session, principal.clone());
    }

    /// Whose a session is; nothing once it is over, and for the shell's own.
    pub(super) fn principal(&self, session: u64) -> Option<&Principal> {
        self.principals.get(&session)
    }

    /// A session is over, and nothing is sent to it any more.
    pub(super) fn closed(&mut self, session: u64) {
        self.principals.remove(&session);
    }

    /// The tenant whose session it is; nobody's may do everything.
    pub(super) fn tenant(&self, session: u64) -> Option<&str> {
        self.principal(session)?.tenant.as_deref()
    }

    /// What is told to a session, with the names that volumes have there.
    pub(super) fn outbound(&self, session: u64, mut message: ToHost) -> ToHost {
        let Some(tenant) = self.tenant(session) else { return message };
        match &mut message {
            ToHost::Volume { result: Ok(reply), .. } => strip_reply(tenant, reply),
            ToHost::Volume { result: Err(error), .. } => strip_error(tenant, error),
            ToHost::Attached { result: Err(AttachError::Damaged(why)), .. } => {
                *why = strip_text(tenant, why);
            }
            ToHost::Attached { result: Err(AttachError::InUse { volume, .. }), .. } => {
                *volume = strip_text(tenant, volume);
            }
            _ => {}
        }
        message
    }
}

/// The name that a volume has for its tenant; nothing if it is another one's.
fn strip<'a>(tenant: &str, name: &'a str) -> Option<&'a str> {
    let (of, name) = tenant::split(name);
    (of == Some(tenant)).then_some(name)
}

fn strip_reply(tenant: &str, reply: &mut VolumeReply) {
    let keep = |name: &mut String| match strip(tenant, name).map(str::to_owned) {
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

fn strip_error(tenant: &str, error: &mut VolumeError) {
    if let VolumeError::Invalid(why) | VolumeError::Store(why) = error {
        *why = strip_text(tenant, why);
    }
}

/// A message that names volumes of the tenant, with the names that they have there.
fn strip_text(tenant: &str, text: &str) -> String {
    text.replace(&format!("{tenant}/"), "")
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

/// What a session asked, with the names that volumes have inside; or what to answer.
fn qualified(tenant: &str, mut message: ToStore) -> Result<ToStore, Box<ToHost>> {
    let not_for_tenants = || {
        VolumeError::Invalid(format!(
            "the credential is one of tenant {tenant}, and this is for the installation's own: use its admin.toml"
        ))
    };
    match &mut message {
        ToStore::Attach { request, name, .. } => qualify(tenant, name).map_err(|_| {
            ToHost::Attached { request: *request, result: Err(AttachError::NotFound) }
        })?,
        ToStore::Volume { request, operation } => qualify_operation(tenant, operation)
            .map_err(|error| ToHost::Volume { request: *request, result: Err(error) })?,
        ToStore::Store { request, .. } => {
            let result = Err(not_for_tenants());
            return Err(Box::new(ToHost::Store { request: *request, result }));
        }
        ToStore::Tenant { request, .. } => {
            let result = Err(not_for_tenants());
            return Err(Box::new(ToHost::Tenant { request: *request, result }));
        }
        // By identity: whose it is may have to be looked up first.
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
        | ToStore::Barrier { .. } => {}
    }
    Ok(message)
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
    pub(super) fn inbound(
        &self,
        session: u64,
        lane: longhaul_core::wire::link::Lane,
        message: ToStore,
    ) -> Option<ToStore> {
        let Some(tenant) = self.guests.tenant(session) else { return Some(message) };
        match qualified(tenant, message) {
            Ok(message) => Some(message),
            Err(answer) => {
                self.send(session, lane, (*answer).into());
                None
            }
        }
    }

    /// Whether all volumes that a message names by identity are those of the session's tenant, as far as they are known: of
    /// those that are not, nobody says anything.
    pub(super) fn may_see(&self, session: u64, message: &ToStore) -> bool {
        let Some(tenant) = self.guests.tenant(session) else { return true };
        let mut named = identities(message).into_iter().flatten();
        named.all(|id| self.owner(id).is_none_or(|of| of == Some(tenant)))
    }

    /// Whether a session may have what belongs to a volume.
    pub(super) fn may_have(&self, session: u64, volume: VolumeId) -> bool {
        let Some(tenant) = self.guests.tenant(session) else { return true };
        self.owner(volume) == Some(Some(tenant))
    }

    /// The tenant, if it has one, of a volume or of the volume of a snapshot, if that is known.
    fn owner(&self, id: VolumeId) -> Option<Option<&str>> {
        let volume = self.snapshots.place(id).map_or(id, |place| place.volume);
        self.names.get(&volume).map(|name| tenant::tenant_of(name))
    }

    /// The tenant on whose behalf something is asked.
    pub(super) fn tenant_of(&self, asked: Asked) -> Option<String> {
        self.guests.tenant(asked.session).map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_core::wire::link::{HostId, StoreOperation, TenantOperation, VolumeInfo};

    fn volume(operation: VolumeOperation) -> ToStore {
        ToStore::Volume { request: 1, operation }
    }

    #[test]
    fn a_tenant_names_its_own_volumes_and_no_others() {
        let show = |name: &str| volume(VolumeOperation::Show { name: name.into() });
        assert_eq!(qualified("acme", show("db")), Ok(show("acme/db")));
        assert_eq!(qualified("acme", show("db@monday")), Ok(show("acme/db@monday")));
        for odd in ["other/db", "acme/db", "../db", "_other/db", "", "/", "@x", "db/"] {
            let answer = qualified("acme", show(odd)).unwrap_err();
            assert!(
                matches!(&*answer, ToHost::Volume { request: 1, result: Err(VolumeError::Invalid(why)) }
                    if why.contains("letters")),
                "{odd}: {answer:?}"
            );
            let (host, journal) = (HostId(1), None);
            let attach =
                ToStore::Attach { request: 1, name: odd.into(), host, journal, take_over: false };
            let result = Err(AttachError::NotFound);
            let answer = ToHost::Attached { request: 1, result };
            assert_eq!(qualified("acme", attach), Err(Box::new(answer)));
        }
        let clone = |name: &str, clone: &str| {
            let clone = clone.to_owned();
            let operation =
                SnapshotOperation::Clone { snapshot: "s".into(), clone, id: VolumeId(7) };
            volume(VolumeOperation::Snapshot { name: name.into(), operation })
        };
        assert_eq!(qualified("acme", clone("db", "copy")), Ok(clone("acme/db", "acme/copy")));
        assert!(qualified("acme", clone("db", "other/copy")).is_err());
        let restore = |name: &str| {
            let (volume, name) = (VolumeId(7), name.to_owned());
            self::volume(VolumeOperation::Trash(TrashOperation::Restore { volume, name }))
        };
        assert_eq!(qualified("acme", restore("db")), Ok(restore("acme/db")));
        assert!(qualified("acme", restore("other/db")).is_err());
        for message in [
            ToStore::Store { request: 1, operation: StoreOperation::Report },
            ToStore::Tenant { request: 1, operation: TenantOperation::List },
        ] {
            let answer = format!("{:?}", qualified("acme", message).unwrap_err());
            assert!(answer.contains("admin.toml"), "{answer}");
        }
    }

    #[test]
    fn a_tenant_is_told_of_its_own_volumes_by_their_names() {
        let mut guests = Guests::default();
        let of = |tenant: Option<&str>, store| {
            let tenant = tenant.map(str::to_owned);
            Principal { tenant, store, ..Principal::embedded() }
        };
        guests.opened(1, &of(Some("acme"), false));
        guests.opened(2, &of(None, false));
        guests.opened(3, &of(None, true));
        let info = |name: &str| VolumeInfo {
            name: name.into(),
            id: VolumeId(1),
            sectors: 8,
            block_bytes: 512,
            created: 0,
            live: None,
        };
        let list = |names: &[&str]| {
            let list = names.iter().map(|name| info(name)).collect();
            ToHost::Volume { request: 1, result: Ok(VolumeReply::List(list)) }
        };
        let all = ["db", "acme/db", "acm/x", "acme2/y", "acme/z"];
        assert_eq!(guests.outbound(1, list(&all)), list(&["db", "z"]));
        for session in [2, 3, 4] {
            assert_eq!(guests.outbound(session, list(&all)), list(&all));
        }
        let error = |why: &str| {
            let result = Err(VolumeError::Invalid(why.into()));
            ToHost::Volume { request: 1, result }
        };
        assert_eq!(guests.outbound(1, error("delete acme/db first")), error("delete db first"));
        guests.closed(1);
        assert_eq!(guests.tenant(1), None);
    }
}
