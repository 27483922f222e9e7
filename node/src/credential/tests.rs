//! Credentials are made, read, withdrawn and handed on.

use super::*;

fn addresses() -> Vec<String> {
    vec!["127.0.0.1:7777".to_owned()]
}

#[test]
fn a_first_start_makes_everything_and_the_next_one_keeps_it() {
    let dir = tempfile::tempdir().unwrap();
    let first = prepare(dir.path(), &addresses()).unwrap();
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
    // The credential was moved to the host: it is not written again.
    std::fs::remove_file(&path).unwrap();
    let again = prepare(dir.path(), &addresses()).unwrap();
    assert_eq!((first.ca, first.certificate), (again.ca, again.certificate));
    assert!(!path.exists());
}

#[test]
fn a_first_start_that_was_interrupted_anywhere_starts_over() {
    for kept in [&[][..], &["ca.pem"], &["ca.pem", "server.pem"], &["ca.pem", "admin.toml"]] {
        let dir = tempfile::tempdir().unwrap();
        prepare(dir.path(), &addresses()).unwrap();
        for name in ["ca.pem", "server.pem", "issued.json", "admin.toml"] {
            if !kept.contains(&name) {
                std::fs::remove_file(dir.path().join("credentials").join(name)).unwrap();
            }
        }
        prepare(dir.path(), &addresses()).unwrap();
        let path = dir.path().join("credentials/admin.toml");
        let credential = Credential::load(&path).unwrap();
        assert!(Issued::new(dir.path()).accepts(&credential.serial), "{kept:?}");
    }
}

#[test]
fn a_new_address_reaches_the_credential() {
    let dir = tempfile::tempdir().unwrap();
    prepare(dir.path(), &addresses()).unwrap();
    prepare(dir.path(), &["store.example:7777".to_owned()]).unwrap();
    let path = dir.path().join("credentials/admin.toml");
    assert_eq!(Credential::load(&path).unwrap().stores, ["store.example:7777"]);
    rotate(dir.path()).unwrap();
    assert_eq!(Credential::load(&path).unwrap().stores, ["store.example:7777"]);
}

#[test]
fn a_server_certificate_past_half_its_time_is_renewed() {
    let dir = tempfile::tempdir().unwrap();
    let first = prepare(dir.path(), &addresses()).unwrap();
    let path = dir.path().join("credentials");
    let ca = Pair::read(&path.join("ca.pem")).unwrap().unwrap();
    let long_ago = OffsetDateTime::now_utc() - Duration::days(SERVER_DAYS / 2 + 1);
    let old = new_leaf(&ca, long_ago, SERVER_DAYS, Leaf::Server).unwrap();
    old.write(&path.join("server.pem")).unwrap();
    let second = prepare(dir.path(), &addresses()).unwrap();
    assert_ne!(second.certificate, old.certificate);
    assert_eq!(second.ca, first.ca);
}

#[test]
fn rotation_is_noticed_by_a_running_store() {
    let dir = tempfile::tempdir().unwrap();
    prepare(dir.path(), &addresses()).unwrap();
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
    prepare(dir.path(), &addresses()).unwrap();
    let issued = Issued::new(dir.path());
    let file = |name: &str| dir.path().join(name);
    let new = |tenant: &str, name: &str| {
        issue(dir.path(), tenant, &file(name)).unwrap();
        Credential::load(&file(name)).unwrap()
    };
    let (one, two, other) = (new("acme", "one"), new("acme", "two"), new("other", "three"));
    assert_eq!(tenant_of(&one.serial), Some("acme"));
    assert_eq!(one.stores, addresses());
    // What a store that knows no tenants makes of such a certificate is not on the list.
    assert!(issued.accepts(&one.serial) && !issued.accepts(bare(&one.serial)));
    assert!(!issued.accepts(&one.serial.replace("acme", "other")));
    rotate(dir.path()).unwrap();
    assert!([&one, &two, &other].iter().all(|credential| issued.accepts(&credential.serial)));
    assert_eq!(revoke(dir.path(), Some(bare(&one.serial)), None).unwrap(), 1);
    assert!(!issued.accepts(&one.serial) && issued.accepts(&two.serial));
    assert_eq!(revoke(dir.path(), None, Some("acme")).unwrap(), 1);
    assert!(!issued.accepts(&two.serial) && issued.accepts(&other.serial));
    assert_eq!(revoke(dir.path(), None, Some("acme")).unwrap(), 0);
    // The installation's own is rotated, not revoked.
    let admin = Credential::load(&dir.path().join("credentials/admin.toml")).unwrap();
    assert_eq!(tenant_of(&admin.serial), None);
    assert_eq!(revoke(dir.path(), Some(&admin.serial), None).unwrap(), 0);
    assert!(issued.accepts(&admin.serial));
    let message = |tenant: &str, name: &str| {
        format!("{:#}", issue(dir.path(), tenant, &file(name)).unwrap_err())
    };
    assert!(message("acme", "one").contains("exists"));
    assert!(message("a/b", "new").contains("letters") && !file("new").exists());
}

#[test]
fn an_invited_store_has_the_same_ca_and_accepts_the_same() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = prepare(one.path(), &addresses()).unwrap();
    let credential = Credential::load(&one.path().join("credentials/admin.toml")).unwrap();
    let text = invite(one.path()).unwrap();
    join(two.path(), &text).unwrap();
    let second = prepare(two.path(), &addresses()).unwrap();
    assert_eq!(first.ca, second.ca);
    assert_ne!(first.certificate, second.certificate);
    let issued = Issued::new(two.path());
    assert!(issued.accepts(&credential.serial));
    assert!(issued.accepts(&first.peer.serial), "another store is let in");
    assert!(first.peer.serial.starts_with(OF_STORE) && !credential.serial.contains(':'));
    // What one withdraws the other does once it is told.
    rotate(one.path()).unwrap();
    let now = accepted(one.path()).unwrap();
    assert!(now.generation > accepted(two.path()).unwrap().generation);
    accept(two.path(), now).unwrap();
    assert!(!issued.accepts(&credential.serial));
    // Twice is once; another installation's state is left alone.
    join(two.path(), &text).unwrap();
    let other = tempfile::tempdir().unwrap();
    prepare(other.path(), &addresses()).unwrap();
    let error = format!("{:#}", join(other.path(), &text).unwrap_err());
    assert!(error.contains("another installation"), "{error}");
    assert!(join(two.path(), "version = 1").is_err());
}

#[test]
fn each_mistake_has_its_message() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("admin.toml");
    let message = |path: &Path| format!("{:#}", Credential::load(path).unwrap_err());
    assert!(message(&path).contains("there is no credential file"));
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

/// Lets the store in `state` accept a credential that ends after this time, and writes it.
pub fn ending(state: &Path, after: std::time::Duration) {
    let dir = directory(state);
    let ca = Pair::read(&dir.join("ca.pem")).unwrap().unwrap();
    let then = OffsetDateTime::now_utc() - Duration::days(9) + after;
    let client = new_leaf(&ca, then, 9, Leaf::Client(None)).unwrap();
    let mut issued = IssuedFile::read(&dir).unwrap().unwrap();
    issued.accepted.extend(entry(&client).unwrap());
    issued.write(&dir).unwrap();
    write_credential(&dir.join("admin.toml"), &addresses(), &ca, &client).unwrap();
}

/// A credential of the store in `state` that ended a day ago.
pub fn expired(state: &Path) -> String {
    prepare(state, &addresses()).unwrap();
    let dir = directory(state);
    let ca = Pair::read(&dir.join("ca.pem")).unwrap().unwrap();
    let then = OffsetDateTime::now_utc() - Duration::days(10);
    let client = new_leaf(&ca, then, 9, Leaf::Client(None)).unwrap();
    write_credential(&dir.join("admin.toml"), &addresses(), &ca, &client).unwrap();
    std::fs::read_to_string(dir.join("admin.toml")).unwrap()
}
