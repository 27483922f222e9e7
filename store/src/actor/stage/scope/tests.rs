use super::*;
use longhaul_core::wire::link::{
    HostId, ReplicaOperation, SnapshotKey, StoreOperation, TenantOperation, VolumeInfo,
};
use longhaul_link::credential::ALL;

fn volume(operation: VolumeOperation) -> ToStore {
    ToStore::Volume { request: 1, operation }
}

#[test]
fn a_tenant_names_its_own_volumes_and_no_others() {
    let show = |name: &str| volume(VolumeOperation::Show { name: name.into() });
    assert_eq!(qualified("acme", show("db")), Ok(show("acme/db")));
    assert_eq!(qualified("acme", show("db@monday")), Ok(show("acme/db@monday")));
    for odd in ["other/db", "acme/db", "../db", "_other/db", "", "/", "@x", "db/"] {
        let answer = qualified("acme", show(odd)).unwrap_err().answer().unwrap();
        assert!(
            matches!(&answer, ToHost::Volume { request: 1, result: Err(VolumeError::Invalid(why)) }
                if why.contains("letters")),
            "{odd}: {answer:?}"
        );
        let (host, journal) = (HostId(1), None);
        let attach =
            ToStore::Attach { request: 1, name: odd.into(), host, journal, take_over: false };
        let result = Err(AttachError::NotFound);
        let answer = ToHost::Attached { request: 1, result };
        assert_eq!(qualified("acme", attach).unwrap_err().answer(), Some(answer));
    }
    let clone = |name: &str, clone: &str| {
        let clone = clone.to_owned();
        let operation = SnapshotOperation::Clone { snapshot: "s".into(), clone, id: VolumeId(7) };
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
        let acme = guest(Some("acme"), Kind::Operator, Role::Admin, &[ALL]);
        let answer = format!("{:?}", acme.admit(message).unwrap_err());
        assert!(answer.contains("Forbidden") && answer.contains("admin.toml"), "{answer}");
    }
}

fn guest(tenant: Option<&str>, kind: Kind, role: Role, patterns: &[&str]) -> SessionScope {
    let (tenant, store) = (tenant.map(str::to_owned), kind == Kind::Store);
    let principal = Principal { tenant, store, ..Principal::embedded() };
    let grant = Grant {
        name: "mine".into(),
        kind,
        role,
        volumes: patterns.iter().map(|pattern| (*pattern).to_owned()).collect(),
        key: String::new(),
        store: None,
        issued: String::new(),
        not_after: String::new(),
    };
    SessionScope::new(&principal, Some(grant))
}

/// Every message, with the least role and its object: the table of `docs/security.md`.
fn table() -> Vec<(ToStore, Role, Scope, bool)> {
    use Role::{Admin, Read, Write};
    use Scope::{Covered, Installation, Stores, Token, Volumes};
    let (request, id, host, epoch, seq) = (1, VolumeId(7), HostId(1), 3, 5);
    let range = longhaul_core::block::Range::new(0, 8);
    let name = || "db".to_owned();
    let since = longhaul_core::wire::link::Moment { epoch, host, seq };
    let (software, attribute) = (String::new(), |name: &str| name.to_owned());
    let key = SnapshotKey { id, segment: 1, sectors: 8 };
    let claim = longhaul_core::wire::link::Claim::Attach { journal: None, take_over: false };
    let set = |attribute: &str| VolumeOperation::SetAttribute {
        volume: id,
        epoch,
        attribute: attribute.to_owned(),
        data: Vec::new(),
        replaces: None,
    };
    let snapshot = || "monday".to_owned();
    let of = |operation| VolumeOperation::Snapshot { name: name(), operation };
    let limits = longhaul_core::wire::link::TenantLimits::default;
    let tenant = || "acme".to_owned();
    let (min_version, max_version) = (1, 14);
    let journal = None;
    let mut all = vec![
        (ToStore::Hello { min_version, max_version, software }, Read, Covered, false),
        (
            ToStore::Attach { request, name: name(), host, journal, take_over: false },
            Write,
            Volumes,
            false,
        ),
        (ToStore::Resume { request, volume: id, epoch, host }, Write, Volumes, false),
        (ToStore::Detach { request, volume: id, epoch }, Write, Volumes, false),
        (ToStore::Batch { volume: id, epoch, first: 1, last: 1 }, Write, Volumes, false),
        (
            ToStore::Announce { volume: id, epoch, replace: true, entries: Vec::new() },
            Write,
            Volumes,
            false,
        ),
        (ToStore::Read { request, volume: id, epoch: 0, range }, Read, Volumes, true),
        (ToStore::Status { request, volume: id, epoch: 0, range }, Read, Volumes, true),
        (
            ToStore::Stage { request, volume: id, epoch, range, into: id, lba: 0, object: 1 << 63 },
            Write,
            Volumes,
            false,
        ),
        (ToStore::Changed { request, volume: id, epoch, since }, Write, Volumes, false),
        (
            ToStore::EarlyRead { request, volume: id, epoch, committed: 0, range },
            Write,
            Volumes,
            false,
        ),
        (ToStore::Barrier { volume: id, epoch, barrier: 1, seq }, Write, Volumes, false),
    ];
    let create = VolumeOperation::Create { name: name(), sectors: 8, block_bytes: 512 };
    let volumes = [
        (create, Admin, Volumes, false),
        (VolumeOperation::List, Read, Covered, false),
        (VolumeOperation::Show { name: name() }, Read, Volumes, true),
        (VolumeOperation::Delete { name: name() }, Admin, Volumes, true),
        (VolumeOperation::Lost { name: name(), from_lba: 0 }, Read, Volumes, true),
        (VolumeOperation::AcceptLoss { name: name() }, Admin, Volumes, true),
        (
            VolumeOperation::GetAttribute { volume: id, attribute: attribute("keys") },
            Read,
            Volumes,
            true,
        ),
        (set("reservations"), Write, Volumes, true),
        (set("schedule"), Write, Volumes, true),
        (set("keys"), Admin, Volumes, true),
        (VolumeOperation::Resize { name: name(), sectors: 16 }, Admin, Volumes, true),
        (VolumeOperation::Shrink { name: name(), sectors: 16 }, Admin, Volumes, true),
        (VolumeOperation::Stored { name: name() }, Read, Volumes, true),
        (
            of(SnapshotOperation::Create { snapshot: snapshot(), id, created: 0, barrier: true }),
            Write,
            Volumes,
            true,
        ),
        (of(SnapshotOperation::List { after: 0, hidden: false }), Read, Volumes, true),
        (of(SnapshotOperation::Delete { snapshot: snapshot() }), Write, Volumes, true),
        (of(SnapshotOperation::Rollback { snapshot: snapshot() }), Admin, Volumes, true),
        (
            of(SnapshotOperation::Clone { snapshot: snapshot(), clone: "db2".into(), id }),
            Admin,
            Volumes,
            true,
        ),
        (of(SnapshotOperation::Forget { id }), Admin, Stores, true),
        (of(SnapshotOperation::Diff { since: key, until: None, range }), Read, Volumes, true),
        (
            of(SnapshotOperation::Usage { snapshots: Vec::new(), volume: None, range }),
            Read,
            Volumes,
            true,
        ),
        (VolumeOperation::Trash(TrashOperation::List { after: VolumeId(0) }), Read, Covered, false),
        (
            VolumeOperation::Trash(TrashOperation::Restore { volume: id, name: name() }),
            Admin,
            Volumes,
            false,
        ),
        (VolumeOperation::Trash(TrashOperation::Purge { volume: id }), Admin, Volumes, false),
    ];
    all.extend(volumes.map(|(operation, role, scope, stores)| {
        (ToStore::Volume { request, operation }, role, scope, stores)
    }));
    let store = longhaul_core::wire::link::StoreId(9);
    let add = ReplicaOperation::Add {
        location: "/b".into(),
        in_step: true,
        standby: Vec::new(),
        discard: false,
    };
    let release = StoreOperation::Release {
        volume: id,
        lease: 1,
        host,
        key: longhaul_core::wire::link::KeyId::NONE,
        claim,
    };
    let stores = [
        (StoreOperation::Report, Read, Installation, true),
        (StoreOperation::List, Read, Installation, false),
        (StoreOperation::Refresh, Admin, Stores, true),
        (release, Admin, Stores, true),
        (StoreOperation::Evacuate { on: true }, Admin, Installation, false),
        (StoreOperation::Rebalance, Admin, Installation, false),
        (StoreOperation::Renew { request: Vec::new() }, Read, Covered, false),
        (StoreOperation::Sign { store, request: Vec::new() }, Read, Token, false),
        (StoreOperation::Forget { id: store }, Admin, Installation, false),
        (StoreOperation::Replica(ReplicaOperation::Show), Read, Installation, true),
        (StoreOperation::Replica(add), Admin, Installation, false),
        (StoreOperation::Replica(ReplicaOperation::Remove), Admin, Installation, false),
        (
            StoreOperation::Replica(ReplicaOperation::Mode { in_step: true }),
            Admin,
            Installation,
            false,
        ),
    ];
    all.extend(stores.map(|(operation, role, scope, stores)| {
        (ToStore::Store { request, operation }, role, scope, stores)
    }));
    let tenants = [
        (TenantOperation::Create { tenant: tenant(), limits: limits() }, Admin),
        (TenantOperation::Set { tenant: tenant(), limits: limits() }, Admin),
        (TenantOperation::Delete { tenant: tenant() }, Admin),
        (TenantOperation::Show { tenant: tenant() }, Read),
        (TenantOperation::List, Read),
    ];
    all.extend(tenants.map(|(operation, role)| {
        (ToStore::Tenant { request, operation }, role, Installation, false)
    }));
    all
}

#[test]
fn each_message_takes_the_role_that_the_table_says() {
    for (message, role, scope, stores) in table() {
        for has in [Role::Read, Role::Write, Role::Admin] {
            for (tenant, patterns) in [
                (None, &[ALL][..]),
                (None, &["db*"]),
                (Some("acme"), &[ALL]),
                (Some("acme"), &["x", "db*"]),
            ] {
                let everything = tenant.is_none() && patterns == [ALL];
                let may = has >= role
                    && match scope {
                        Scope::Volumes | Scope::Covered => true,
                        Scope::Installation => everything,
                        Scope::Stores | Scope::Token => false,
                    };
                let guest = guest(tenant, Kind::Host, has, patterns);
                let admitted = guest.admit(message.clone());
                assert_eq!(admitted.is_ok(), may, "{has} {tenant:?} {patterns:?}: {message:?}");
                if let Err(refused) = admitted {
                    let why = format!("{:?}", refused.refusal);
                    assert!(why.contains("Forbidden"), "{why}: {message:?}");
                    if has < role && scope == Scope::Volumes {
                        assert!(why.contains("role") && why.contains("credential issue"), "{why}");
                    }
                }
            }
        }
        let store = guest(None, Kind::Store, Role::Admin, &[ALL]);
        assert_eq!(store.admit(message.clone()).is_ok(), stores, "a store: {message:?}");
        let token = guest(None, Kind::Join, Role::Read, &[]);
        let joins = scope == Scope::Token;
        assert_eq!(token.admit(message.clone()).is_ok(), joins, "a token: {message:?}");
        let gone = SessionScope { grant: None, ..guest(None, Kind::Host, Role::Admin, &[ALL]) };
        assert!(gone.admit(message).is_err());
    }
}

#[test]
fn what_a_credential_does_not_cover_is_not_there() {
    let guest = |tenant| guest(tenant, Kind::Operator, Role::Admin, &["db*"]);
    for tenant in [None, Some("acme")] {
        let answer = |message| guest(tenant).admit(message).unwrap_err().answer().unwrap();
        let said = |operation| answer(volume(operation));
        let not_there = ToHost::Volume { request: 1, result: Err(VolumeError::NotFound) };
        assert_eq!(said(VolumeOperation::Show { name: "x".into() }), not_there);
        assert_eq!(said(VolumeOperation::Delete { name: "x".into() }), not_there);
        assert_eq!(said(VolumeOperation::Show { name: "x@db".into() }), not_there);
        let (host, journal, name) = (HostId(1), None, "x".to_owned());
        let attach = ToStore::Attach { request: 1, name, host, journal, take_over: false };
        let result = Err(AttachError::NotFound);
        assert_eq!(answer(attach), ToHost::Attached { request: 1, result });
        // The store refuses the name of the volume to create.
        let create = |name: &str| {
            let name = name.to_owned();
            VolumeOperation::Create { name, sectors: 8, block_bytes: 512 }
        };
        let clone = |name: &str, clone: &str| {
            let (snapshot, clone) = ("s".to_owned(), clone.to_owned());
            let operation = SnapshotOperation::Clone { snapshot, clone, id: VolumeId(7) };
            VolumeOperation::Snapshot { name: name.into(), operation }
        };
        for operation in [create("x"), clone("db", "x")] {
            let answer = format!("{:?}", said(operation));
            assert!(answer.contains("Forbidden") && answer.contains("mine"), "{answer}");
        }
        assert_eq!(said(clone("x", "db2")), not_there);
        // Nor is what is a tenant's, whoever asks, and whatever else a name may be.
        for odd in ["acme/db", "acme/db@s", "other/db", "db/x", "", "/", "@db", "../db"] {
            assert_eq!(said(VolumeOperation::Show { name: odd.into() }), not_there, "{odd}");
            let (host, journal, name) = (HostId(1), None, odd.to_owned());
            let attach = ToStore::Attach { request: 1, name, host, journal, take_over: true };
            let result = Err(AttachError::NotFound);
            assert_eq!(answer(attach), ToHost::Attached { request: 1, result }, "{odd}");
            for operation in [create(odd), clone("db", odd)] {
                let answer = format!("{:?}", said(operation));
                assert!(answer.contains("Forbidden"), "{odd}: {answer}");
            }
        }
        assert!(guest(tenant).admit(volume(create("db2"))).is_ok());
        assert!(guest(tenant).admit(volume(clone("db", "db2"))).is_ok());
    }
}

#[test]
fn what_is_told_has_only_what_is_covered() {
    let dir = tempfile::tempdir().unwrap();
    let mut scope = TenantScope::new(Arc::new(Issued::new(dir.path())));
    scope.sessions.insert(1, guest(Some("acme"), Kind::Host, Role::Write, &[ALL]));
    scope.sessions.insert(2, guest(None, Kind::Operator, Role::Admin, &[ALL]));
    scope.sessions.insert(3, guest(None, Kind::Store, Role::Admin, &[ALL]));
    scope.sessions.insert(5, guest(Some("acme"), Kind::Host, Role::Write, &["d*"]));
    scope.sessions.insert(6, guest(None, Kind::Host, Role::Write, &["d*"]));
    let info = |name: &str| VolumeInfo {
        name: name.into(),
        id: VolumeId(1),
        sectors: 8,
        block_bytes: 512,
        created: 0,
        live: None,
        damaged: None,
    };
    let list = |names: &[&str]| {
        let list = names.iter().map(|name| info(name)).collect();
        ToHost::Volume { request: 1, result: Ok(VolumeReply::List(list)) }
    };
    let all = ["db", "acme/db", "acm/x", "acme2/y", "acme/z"];
    assert_eq!(scope.outbound(1, list(&all)), list(&["db", "z"]));
    assert_eq!(scope.outbound(5, list(&all)), list(&["db"]));
    assert_eq!(scope.outbound(6, list(&all)), list(&["db"]));
    for session in [2, 3, 4] {
        assert_eq!(scope.outbound(session, list(&all)), list(&all));
    }
    let error = |why: &str| {
        let result = Err(VolumeError::Invalid(why.into()));
        ToHost::Volume { request: 1, result }
    };
    assert_eq!(scope.outbound(1, error("delete acme/db first")), error("delete db first"));
    scope.closed(1);
    assert_eq!(scope.limits(1), None);
}
