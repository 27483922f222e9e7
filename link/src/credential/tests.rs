//! Credentials: creation, reading, withdrawal, and transfer to other stores.

use super::authority::{CLIENT_LIFE, Leaf, Pair, STORE_LIFE, new_leaf};
use super::directory::directory;
use super::issued::IssuedFile;
use super::seen::pem;
use super::*;
use anyhow::Result;
use std::path::Path;
use time::{Duration, OffsetDateTime};

fn addresses() -> Vec<String> {
    vec!["127.0.0.1:7777".to_owned()]
}

#[test]
fn a_first_start_makes_everything_and_the_next_one_keeps_it() {
    let dir = tempfile::tempdir().unwrap();
    let first = prepare(dir.path(), &addresses(), "1").unwrap();
    let path = dir.path().join("credentials/admin.toml");
    let credential = Credential::load(&path).unwrap();
    assert_eq!(credential.stores, addresses());
    assert_eq!(credential.ca, first.ca);
    assert!(Issued::new(dir.path()).accepts(&credential.serial));
    for entry in std::fs::read_dir(dir.path().join("credentials")).unwrap() {
        use std::os::unix::fs::PermissionsExt as _;
        let metadata = entry.unwrap().metadata().unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    }
    // An administrator moved the credential to the host: the store does not write it again.
    std::fs::remove_file(&path).unwrap();
    let again = prepare(dir.path(), &addresses(), "1").unwrap();
    assert_eq!(
        (&first.ca, &first.own.now().certificate),
        (&again.ca, &again.own.now().certificate)
    );
    assert!(!path.exists());
}

#[test]
fn a_first_start_that_was_interrupted_anywhere_starts_over() {
    for kept in [&[][..], &["ca.pem"], &["ca.pem", "store.pem"], &["ca.pem", "admin.toml"]] {
        let dir = tempfile::tempdir().unwrap();
        prepare(dir.path(), &addresses(), "1").unwrap();
        for name in ["ca.pem", "store.pem", "issued.json", "admin.toml"] {
            if !kept.contains(&name) {
                std::fs::remove_file(dir.path().join("credentials").join(name)).unwrap();
            }
        }
        prepare(dir.path(), &addresses(), "1").unwrap();
        let path = dir.path().join("credentials/admin.toml");
        let credential = Credential::load(&path).unwrap();
        assert!(Issued::new(dir.path()).accepts(&credential.serial), "{kept:?}");
    }
}

#[test]
fn a_new_address_reaches_the_credential() {
    let dir = tempfile::tempdir().unwrap();
    prepare(dir.path(), &addresses(), "1").unwrap();
    prepare(dir.path(), &["store.example:7777".to_owned()], "1").unwrap();
    let path = dir.path().join("credentials/admin.toml");
    assert_eq!(Credential::load(&path).unwrap().stores, ["store.example:7777"]);
    rotate(dir.path()).unwrap();
    assert_eq!(Credential::load(&path).unwrap().stores, ["store.example:7777"]);
}

/// Replaces the store's certificate by one that seems to be `age` old.
fn made_before(state: &Path, age: Duration) -> Pair {
    let dir = directory(state);
    let ca = Pair::read(&dir.join("ca.pem")).unwrap().unwrap();
    let old = new_leaf(&ca, OffsetDateTime::now_utc() - age, STORE_LIFE, Leaf::Store).unwrap();
    let mut issued = IssuedFile::read(&dir).unwrap().unwrap();
    let mut grant =
        issued.list.accepted.values().find(|grant| grant.kind == Kind::Store).unwrap().clone();
    let seen = inspect(&old.certificate).unwrap();
    grant.not_after = issued::stamp_of(seen.not_after).unwrap();
    issued.list.accepted.insert(seen.serial, grant);
    issued.write(&dir).unwrap();
    old.write(&dir.join("store.pem")).unwrap();
    old
}

#[test]
fn the_certificate_of_a_store_ends_within_months_and_is_renewed_past_half_its_time() {
    let dir = tempfile::tempdir().unwrap();
    let first = prepare(dir.path(), &addresses(), "1").unwrap();
    let now = OffsetDateTime::now_utc();
    assert!(first.own.now().not_after < now + Duration::days(100));
    assert!(!first.own.tend().unwrap());
    // One that has served a while stays.
    let young = made_before(dir.path(), STORE_LIFE / 2 - Duration::days(1));
    let same = prepare(dir.path(), &addresses(), "1").unwrap();
    assert_eq!(same.own.now().certificate, young.certificate);
    // After half its time a new one exists, and the store shows it once the others know it.
    let old = made_before(dir.path(), STORE_LIFE / 2 + Duration::days(1));
    let second = prepare(dir.path(), &addresses(), "1").unwrap();
    assert_ne!(second.own.now().certificate, old.certificate);
    assert_eq!(second.ca, first.ca);
    let issued = Issued::new(dir.path());
    assert!(issued.accepts(&second.own.now().serial));
    assert!(!same.own.tend().unwrap(), "it waits");
    assert_eq!(same.own.now().certificate, young.certificate);
}

#[test]
fn a_withdrawn_certificate_of_a_store_is_refused_and_another_one_shown() {
    let dir = tempfile::tempdir().unwrap();
    let identity = prepare(dir.path(), &addresses(), "1").unwrap();
    let issued = Issued::new(dir.path());
    let old = identity.own.now();
    assert!(issued.accepts(&old.serial));
    rotate(dir.path()).unwrap();
    assert!(!issued.accepts(&old.serial));
    assert!(identity.own.tend().unwrap());
    let new = identity.own.now();
    assert!(issued.accepts(&new.serial) && new.serial != old.serial);
    assert_eq!(issued.grant(&new.serial).unwrap().store.as_deref(), Some("1"));
    assert_eq!(revoke_store(dir.path(), "2").unwrap(), 0);
    assert_eq!(revoke_store(dir.path(), "1").unwrap(), 1);
    assert!(!issued.accepts(&new.serial));
    // The name of a store in another list does not make one.
    let admin = Credential::load(&dir.path().join("credentials/admin.toml")).unwrap();
    assert!(!issued.accepts(&format!("{OF_STORE}{}", admin.serial)));
}

#[test]
fn rotation_is_noticed_by_a_running_store() {
    let dir = tempfile::tempdir().unwrap();
    prepare(dir.path(), &addresses(), "1").unwrap();
    let path = dir.path().join("credentials/admin.toml");
    let issued = Issued::new(dir.path());
    let old = Credential::load(&path).unwrap();
    assert!(issued.accepts(&old.serial));
    assert_eq!(rotate(dir.path()).unwrap(), path);
    let new = Credential::load(&path).unwrap();
    assert!(!issued.accepts(&old.serial));
    assert!(issued.accepts(&new.serial));
    std::fs::remove_file(dir.path().join("credentials/issued.json")).unwrap();
    assert!(!issued.accepts(&new.serial));
}

#[test]
fn credentials_of_tenants_come_and_go_by_themselves() {
    let dir = tempfile::tempdir().unwrap();
    prepare(dir.path(), &addresses(), "1").unwrap();
    let issued = Issued::new(dir.path());
    let file = |name: &str| dir.path().join(name);
    let all = || vec![ALL.to_owned()];
    let issue = |tenant: Option<&str>, name: &str, role, volumes| {
        let wanted = Wanted { name, tenant, role, volumes };
        super::issue(dir.path(), &wanted, &file(name))
    };
    let new = |tenant: &str, name: &str| {
        issue(Some(tenant), name, Role::Admin, all()).unwrap();
        Credential::load(&file(name)).unwrap()
    };
    let (one, two, other) = (new("acme", "one"), new("acme", "two"), new("other", "three"));
    assert_eq!(tenant_of(&one.serial), Some("acme"));
    assert_eq!(one.stores, addresses());
    // The list accepts its serial number with its tenant only.
    assert!(issued.accepts(&one.serial) && !issued.accepts(bare(&one.serial)));
    assert!(!issued.accepts(&one.serial.replace("acme", "other")));
    rotate(dir.path()).unwrap();
    assert!([&one, &two, &other].iter().all(|credential| issued.accepts(&credential.serial)));
    assert_eq!(revoke(dir.path(), Some(bare(&one.serial)), None).unwrap(), 1);
    assert!(!issued.accepts(&one.serial) && issued.accepts(&two.serial));
    assert_eq!(revoke(dir.path(), None, Some("acme")).unwrap(), 1);
    assert!(!issued.accepts(&two.serial) && issued.accepts(&other.serial));
    assert_eq!(revoke(dir.path(), None, Some("acme")).unwrap(), 0);
    // A host's, by name.
    issue(None, "db-host", Role::Write, vec!["db*".to_owned()]).unwrap();
    let host = Credential::load(&file("db-host")).unwrap();
    let grant = issued.grant(&host.serial).unwrap();
    assert_eq!((grant.kind, grant.role), (Kind::Host, Role::Write));
    assert_eq!(grant.key, key_id(&host.certificate).unwrap());
    assert!(issued.reach(&host.serial).has("db1") && !issued.reach(&host.serial).has("x"));
    assert_eq!(revoke(dir.path(), Some("db-host"), None).unwrap(), 1);
    assert!(!issued.accepts(&host.serial) && !issued.reach(&host.serial).has("db1"));
    // A full administrator must be left.
    let admin = Credential::load(&dir.path().join("credentials/admin.toml")).unwrap();
    assert_eq!(tenant_of(&admin.serial), None);
    let last = format!("{:#}", revoke(dir.path(), Some(&admin.serial), None).unwrap_err());
    assert!(last.contains("credential rotate") && issued.accepts(&admin.serial), "{last}");
    issue(None, "deputy", Role::Admin, all()).unwrap();
    assert_eq!(revoke(dir.path(), Some("admin"), None).unwrap(), 1);
    let message = |tenant: Option<&str>, name: &str, pattern: &str| {
        let error = issue(tenant, name, Role::Read, vec![pattern.to_owned()]).unwrap_err();
        format!("{error:#}")
    };
    assert!(message(Some("acme"), "one", "*").contains("exists"));
    assert!(message(None, "deputy", "*").contains("exists"));
    std::fs::remove_file(file("deputy")).unwrap();
    assert!(message(None, "deputy", "*").contains("another name"));
    assert!(message(Some("a/b"), "new", "*").contains("letters") && !file("new").exists());
    assert!(message(None, "new", "a?").contains("pattern") && !file("new").exists());
    assert!(message(None, "a b", "*").contains("name"));
}

/// Has a store join in `two`, by a token of the one in `one`.
pub fn join(one: &Path, two: &Path, store: &str) {
    let joining = Joining::begin(two, &invite(one).unwrap()).unwrap();
    let signed = answer(one, &joining.token().serial, store, joining.request()).unwrap();
    joining.finish(store, signed).unwrap();
}

#[test]
fn a_renewal_does_not_outlive_the_credential() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    prepare(one.path(), &addresses(), "1").unwrap();
    join(one.path(), two.path(), "2");
    prepare(two.path(), &addresses(), "2").unwrap();
    let issue = |name: &str| {
        let file = one.path().join(name);
        let (role, volumes) = (Role::Write, vec![ALL.to_owned()]);
        super::issue(one.path(), &Wanted { name, tenant: None, role, volumes }, &file).unwrap();
        Credential::load(&file).unwrap()
    };
    let renewed = |at: &Path, credential: &Credential| {
        let request = credential.request().unwrap();
        let key = key_id(&credential.certificate).unwrap();
        let certificate = renew(at, &credential.serial, &key, &request).unwrap();
        inspect(&certificate.into()).unwrap().serial
    };
    let agree = || {
        accept(one.path(), &accepted(two.path()).unwrap()).unwrap();
        accept(two.path(), &accepted(one.path()).unwrap()).unwrap();
    };
    let nowhere =
        |serial: &str| [one.path(), two.path()].iter().all(|at| !Issued::new(at).accepts(serial));
    // By its serial number, after a renewal: the holder has a certificate of another number.
    let leaked = issue("leaked");
    let other = issue("other");
    agree();
    let newer = renewed(one.path(), &leaked);
    agree();
    assert!(Issued::new(two.path()).accepts(&newer));
    assert_eq!(revoke(two.path(), Some(&leaked.serial), None).unwrap(), 2);
    agree();
    assert!(nowhere(&leaked.serial) && nowhere(&newer));
    // Renewed at one store before that hears what the other one has withdrawn.
    let racing = issue("racing");
    agree();
    assert_eq!(revoke(two.path(), Some("racing"), None).unwrap(), 1);
    let late = renewed(one.path(), &racing);
    assert!(Issued::new(one.path()).accepts(&late));
    agree();
    assert!(nowhere(&late) && nowhere(&racing.serial));
    assert!(Issued::new(two.path()).accepts(&other.serial), "another key is another credential");
    let again = |key: &str| {
        let request = racing.request().unwrap();
        format!("{:#}", renew(one.path(), &late, key, &request).unwrap_err())
    };
    assert!(again(&key_id(&racing.certificate).unwrap()).contains("withdrawn"));
    assert!(again(&key_id(&other.certificate).unwrap()).contains("another key"));
}

#[test]
fn an_invited_store_has_the_same_ca_and_accepts_the_same() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = prepare(one.path(), &addresses(), "1").unwrap();
    let credential = Credential::load(&one.path().join("credentials/admin.toml")).unwrap();
    join(one.path(), two.path(), "2");
    let second = prepare(two.path(), &addresses(), "2").unwrap();
    assert!(!two.path().join("credentials/admin.toml").exists());
    // The answer has the list of that time: over a replica the store sees no other list.
    assert_eq!(first.ca, second.ca);
    let (own, others) = (first.own.now(), second.own.now());
    assert_ne!(own.certificate, others.certificate);
    assert!(Issued::new(one.path()).accepts(&others.serial), "it is known where it joined");
    let issued = Issued::new(two.path());
    assert!(issued.accepts(&credential.serial));
    assert!(issued.accepts(&own.serial), "another store is let in");
    assert!(own.serial.starts_with(OF_STORE) && !credential.serial.contains(':'));
    // The other store withdraws the same, once it has the list.
    rotate(one.path()).unwrap();
    accept(two.path(), &accepted(one.path()).unwrap()).unwrap();
    assert!(!issued.accepts(&credential.serial));
    assert!(!issued.accepts(&own.serial));
}

#[test]
fn a_token_is_good_once_for_one_store_and_has_no_key_of_the_ca() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let error = format!("{:#}", invite(one.path()).unwrap_err());
    assert!(error.contains("holds no credentials"), "{error}");
    prepare(one.path(), &addresses(), "1").unwrap();
    let text = invite(one.path()).unwrap();
    let ca = Pair::read(&one.path().join("credentials/ca.pem")).unwrap().unwrap();
    let key = pem("PRIVATE KEY", ca.key.secret_pkcs8_der());
    assert!(key.lines().filter(|line| line.len() > 40).all(|line| !text.contains(line)));
    let token = Credential::parse(&text).unwrap();
    assert!(token.not_after <= OffsetDateTime::now_utc() + Duration::hours(1));
    let begin = |state: &Path| Joining::begin(state, &text);
    let joining = begin(two.path()).unwrap();
    let answered = |serial: &str, request: &[u8]| answer(one.path(), serial, "2", request);
    let why = |result: Result<Signed>| format!("{:#}", result.err().unwrap());
    assert!(why(answered(&token.serial, b"x")).contains("not a request"));
    assert!(why(answered(&token.serial, &vec![0; 5000])).contains("at most"));
    let mut forged = joining.request().to_vec();
    *forged.last_mut().unwrap() ^= 1;
    assert!(why(answered(&token.serial, &forged)).contains("not a request"));
    answered(&token.serial, joining.request()).unwrap();
    assert!(why(answered(&token.serial, joining.request())).contains("was used"));
    assert!(!Issued::new(one.path()).accepts(&token.serial));
    // No other certificate is a token.
    let admin = Credential::load(&one.path().join("credentials/admin.toml")).unwrap();
    assert!(why(answered(&admin.serial, joining.request())).contains("token"));
    // One of another store that this one has heard of.
    join(one.path(), two.path(), "2");
    let other = Credential::parse(&invite(two.path()).unwrap_err().to_string()).err();
    assert!(other.is_some(), "it has never been started");
    prepare(two.path(), &addresses(), "2").unwrap();
    let foreign = Credential::parse(&invite(two.path()).unwrap()).unwrap();
    accept(one.path(), &accepted(two.path()).unwrap()).unwrap();
    assert!(why(answered(&foreign.serial, joining.request())).contains("another store"));
    // The function leaves the state of another installation alone, and rejects a file that is no
    // token.
    let third = tempfile::tempdir().unwrap();
    prepare(third.path(), &addresses(), "3").unwrap();
    let error = format!("{:#}", begin(third.path()).err().unwrap());
    assert!(error.contains("another installation"), "{error}");
    let error = format!("{:#}", Joining::begin(two.path(), "version = 1").err().unwrap());
    assert!(error.contains("no token"), "{error}");
}

#[test]
fn each_mistake_has_its_message() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("admin.toml");
    let message = |path: &Path| format!("{:#}", Credential::load(path).unwrap_err());
    assert!(message(&path).contains("admin.toml does not exist"));
    assert!(message(dir.path()).contains("is not a file"));
    std::fs::write(&path, "not = toml = at all").unwrap();
    assert!(message(&path).contains("not valid TOML"), "{}", message(&path));
    std::fs::write(&path, "version = 1").unwrap();
    assert!(message(&path).contains("missing field"), "{}", message(&path));
    assert!(format!("{:#}", rotate(dir.path()).unwrap_err()).contains("holds no credentials"));

    let old = expired(dir.path());
    std::fs::write(&path, old).unwrap();
    assert!(message(&path).contains("expired on"), "{}", message(&path));
    assert!(message(&path).contains("credential rotate"));
}

/// A certificate of the store in `state` that ends after this time, and a file of it.
fn lasting(state: &Path, life: Duration) -> (String, Grant) {
    let dir = directory(state);
    let ca = Pair::read(&dir.join("ca.pem")).unwrap().unwrap();
    let then = OffsetDateTime::now_utc() + life - CLIENT_LIFE;
    let of = Leaf::Client { name: "admin", tenant: None };
    let client = new_leaf(&ca, then, CLIENT_LIFE, of).unwrap();
    let path = dir.join("admin.toml");
    file::write(&path, &addresses(), &ca.certificate, &client, "do everything").unwrap();
    let seen = inspect(&client.certificate).unwrap();
    let grant = Grant {
        name: "admin".into(),
        kind: Kind::Operator,
        role: Role::Admin,
        volumes: vec![ALL.to_owned()],
        key: key_id(&client.certificate).unwrap(),
        store: None,
        issued: issued::stamp_of(then).unwrap(),
        not_after: issued::stamp_of(seen.not_after).unwrap(),
    };
    (seen.serial, grant)
}

/// Lets the store in `state` accept a credential that ends after this time, and writes it.
pub fn ending(state: &Path, after: std::time::Duration) {
    let dir = directory(state);
    let (serial, grant) = lasting(state, after.try_into().unwrap());
    let mut issued = IssuedFile::read(&dir).unwrap().unwrap();
    issued.list.accepted.insert(serial, grant);
    issued.write(&dir).unwrap();
}

/// A credential of the store in `state` that ended a day ago.
pub fn expired(state: &Path) -> String {
    prepare(state, &addresses(), "1").unwrap();
    lasting(state, Duration::days(-1));
    std::fs::read_to_string(directory(state).join("admin.toml")).unwrap()
}
