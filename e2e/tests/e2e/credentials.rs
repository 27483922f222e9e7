//! Rights at a store, and its log of them.

use longhaul_e2e::process::{LIMIT, Output, command, longhaul, run, run_within};
use longhaul_e2e::site::{Site, Store};
use longhaul_e2e::wait_for;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

const MIB: u64 = 8;

/// Runs a command with a credential.
fn with<'a>(credential: &Path, args: impl IntoIterator<Item = &'a str>) -> Output {
    let mut command = command(longhaul());
    command.args(args).arg("--credential").arg(credential);
    run_within(command, LIMIT)
}

/// Runs `longhaul store audit` on the state directory of a store.
fn audit(state: &Path, args: &[&str]) -> Output {
    let state = state.to_str().unwrap();
    run(longhaul(), ["store", "audit", "--state", state].iter().chain(args).copied())
}

/// Its lines.
fn lines(state: &Path) -> Vec<Value> {
    let text = audit(state, &["--json"]).ok().stdout;
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn who_edits_the_audit_log_is_found_out() {
    let mut site = Site::with_volume("disk", MIB);
    let state = site.store.dir().to_owned();
    site.volume(["delete", "disk"]).ok();
    site.create("disk", MIB);
    assert!(site.store.stop().success());
    let verified = audit(&state, &["--verify", "--json"]).ok().json();
    let head = verified["head"].as_str().unwrap().to_owned();
    assert!(verified["lines"].as_u64().unwrap() >= 6, "{verified}");
    // It goes on over a restart, and the hash from before is still that of a line.
    site.store.restart();
    site.volume(["delete", "disk"]).ok();
    site.store.kill();
    audit(&state, &["--verify", "--head", &head]).ok();
    let path = state.join("audit.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    let deletion = text.lines().position(|line| line.contains("volume.delete")).unwrap();
    let edited = |edit: &dyn Fn(usize, &str) -> Option<String>| {
        let lines = text.lines().enumerate().filter_map(|(n, line)| edit(n, line));
        let edited: String = lines.map(|line| line + "\n").collect();
        std::fs::write(&path, edited).unwrap();
    };
    edited(&|n, line| (n != deletion).then(|| line.to_owned()));
    let place = format!("audit.jsonl line {}", deletion + 1);
    let found = audit(&state, &["--verify"]);
    assert!(found.stdout.contains(&place) && found.stdout.contains("missing"), "{}", found.stdout);
    found.fails(1, &["was changed at"]);
    edited(&|n, line| {
        let innocent = line.replace("volume.delete", "volume.create");
        Some(if n == deletion { innocent } else { line.to_owned() })
    });
    let found = audit(&state, &["--verify"]);
    assert!(found.stdout.contains(&place) && found.stdout.contains("edited"), "{}", found.stdout);
    // Only a reader who knows the end misses it.
    let newest = std::fs::read_to_string(&path).map(|_| text.lines().count()).unwrap();
    edited(&|n, line| (n + 3 < newest).then(|| line.to_owned()));
    audit(&state, &["--verify"]).ok();
    edited(&|n, line| (n < 2).then(|| line.to_owned()));
    audit(&state, &["--verify", "--head", &head]).fails(1, &["was changed at"]);
}

#[test]
fn who_is_refused_takes_no_room_from_others_in_the_audit_log() {
    let site = Site::with_volume("disk", MIB);
    let state = site.store.dir().to_owned();
    let old = site.path("old.toml");
    std::fs::copy(site.store.credential(), &old).unwrap();
    run(longhaul(), ["credential", "rotate", "--state", state.to_str().unwrap()]).ok();
    wait_for("the old credential to be refused", LIMIT, || {
        !with(&old, ["volume", "list"]).status.success()
    });
    let before = std::fs::read_to_string(state.join("audit.jsonl")).unwrap();
    for _ in 0..25 {
        with(&old, ["volume", "list"]).fails(1, &["withdrawn"]);
    }
    let refused = |line: &Value| line["action"] == "session.open" && line["outcome"] != "ok";
    wait_for("refusals to be written down", LIMIT, || lines(&state).iter().any(refused));
    let after = std::fs::read_to_string(state.join("audit.jsonl")).unwrap();
    assert_eq!(before, after);
    // In the worst case the minute of the store has ended meanwhile, once.
    let written = lines(&state).iter().filter(|line| refused(line)).count();
    assert!((1..=21).contains(&written), "{written} lines of at least 25 refusals");
    audit(&state, &["--verify"]).ok();
}

/// Issues a credential, and returns its file.
fn issue(site: &Site, name: &str, role: &str, more: &[&str]) -> PathBuf {
    let file = site.path(&format!("{name}.toml"));
    let state = site.store.dir().to_str().unwrap();
    let mut command = command(longhaul());
    command.args(["credential", "issue", "--role", role, "--name", name, "--state", state]);
    command.args(more).arg(&file);
    run_within(command, LIMIT).ok();
    file
}

fn names(credential: &Path) -> Vec<String> {
    let list = with(credential, ["volume", "list", "--json"]).ok().json();
    let list = list["volumes"].as_array().unwrap().iter();
    list.map(|volume| volume["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_credential_may_do_what_its_role_says_with_the_volumes_that_it_covers() {
    let site = Site::with_volume("db", MIB);
    for name in ["db2", "other"] {
        site.create(name, MIB);
    }
    let read = issue(&site, "reader", "read", &["--volumes", "db*"]);
    let write = issue(&site, "host-1", "write", &["--volumes", "db", "--volumes", "x-*"]);
    let admin = issue(&site, "deputy", "admin", &["--volumes", "db*"]);
    let (image, out) = (site.path("image"), site.path("out"));
    std::fs::write(&image, vec![7; 1 << 20]).unwrap();
    let (image, out) = (image.to_str().unwrap(), out.to_str().unwrap());
    wait_for("the credentials to be accepted", LIMIT, || {
        with(&admin, ["volume", "list"]).status.success()
    });
    assert_eq!(names(&read), ["db", "db2"]);
    assert_eq!(names(&write), ["db"]);
    assert_eq!(names(&site.store.credential()), ["db", "db2", "other"]);
    // A volume outside the patterns does not exist, for any role.
    for credential in [&read, &write, &admin] {
        with(credential, ["volume", "show", "other"]).fails(1, &["no such volume"]);
        with(credential, ["volume", "delete", "other"]).fails(1, &[]);
        with(credential, ["volume", "export", "other", out]).fails(1, &["no such volume"]);
        with(credential, ["store", "list"]).fails(1, &["the whole installation"]);
        with(credential, ["tenant", "list"]).fails(1, &["the whole installation"]);
    }
    // To import is to attach.
    with(&read, ["volume", "import", "db", image]).fails(1, &["reader", "role write"]);
    with(&write, ["volume", "import", "db", image]).ok();
    with(&read, ["volume", "export", "db", out]).ok();
    assert_eq!(std::fs::read(out).unwrap()[..1 << 20], std::fs::read(image).unwrap());
    with(&read, ["snapshot", "create", "db@monday"]).fails(1, &["role write"]);
    with(&write, ["snapshot", "create", "db@monday"]).ok();
    with(&read, ["snapshot", "list", "db"]).ok();
    with(&write, ["snapshot", "rollback", "db@monday"]).fails(1, &["role admin"]);
    with(&write, ["volume", "delete", "db"]).fails(1, &["role admin", "credential issue"]);
    with(&write, ["volume", "create", "x-1", "--size", "1MiB"]).fails(1, &["role admin"]);
    with(&admin, ["volume", "create", "x-1", "--size", "1MiB"]).fails(1, &["deputy", "x-1"]);
    with(&admin, ["volume", "create", "db3", "--size", "1MiB"]).ok();
    with(&admin, ["volume", "delete", "db3"]).ok();
    // The list has them with the store's, and the log has refusals.
    let state = site.store.dir().to_str().unwrap();
    let list = run(longhaul(), ["credential", "list", "--json", "--state", state]).ok().json();
    let list = list["credentials"].as_array().unwrap();
    let of = |name: &str| list.iter().find(|entry| entry["name"] == name).unwrap();
    assert_eq!((&of("host-1")["kind"], &of("host-1")["role"]), (&"host".into(), &"write".into()));
    assert_eq!(of("reader")["volumes"], serde_json::json!(["db*"]));
    assert_eq!(list.iter().filter(|entry| entry["kind"] == "store").count(), 1);
    let refused = |action: &str, why: &str| {
        let said = |line: &Value, what: &str| line[what].as_str().unwrap().to_owned();
        let all = lines(site.store.dir());
        all.iter().any(|line| said(line, "action") == action && said(line, "outcome").contains(why))
    };
    assert!(refused("volume.attach", "role write") && refused("volume.delete", "role admin"));
    assert!(refused("request.refused", "the whole installation"));
    // By name one goes, and the others stay.
    run(longhaul(), ["credential", "revoke", "reader", "--state", state]).ok();
    wait_for("it to be refused", LIMIT, || !with(&read, ["volume", "list"]).status.success());
    with(&read, ["volume", "list"]).fails(1, &["withdrawn"]);
    assert_eq!(names(&write), ["db"]);
}

#[test]
fn a_credential_is_renewed_for_its_key_and_revoked_with_what_it_was_before() {
    let site = Site::with_volume("db", MIB);
    let host = issue(&site, "host-1", "write", &["--volumes", "db"]);
    let before = site.path("before.toml");
    std::fs::copy(&host, &before).unwrap();
    let shown = |file: &Path| {
        let file = file.to_str().unwrap();
        run(longhaul(), ["credential", "show", "--json", file]).ok().json()
    };
    run(longhaul(), ["credential", "renew", host.to_str().unwrap()]).ok();
    let (new, old) = (shown(&host), shown(&before));
    assert!(new["key"] == old["key"] && new["serial"] != old["serial"], "{new} {old}");
    for file in [&host, &before] {
        assert_eq!(names(file), ["db"]);
        with(file, ["volume", "delete", "db"]).fails(1, &["host-1", "role admin"]);
    }
    let state = site.store.dir().to_str().unwrap();
    run(longhaul(), ["credential", "revoke", "host-1", "--state", state]).ok();
    for file in [&host, &before] {
        wait_for("it to be refused", LIMIT, || !with(file, ["volume", "list"]).status.success());
    }
    let file = host.to_str().unwrap();
    run(longhaul(), ["credential", "renew", file]).fails(1, &["withdrawn"]);
}

/// A credential file of the certificate that a store shows to other stores.
fn of_store(site: &Site, state: &Path, name: &str) -> PathBuf {
    let read = |file: &str| std::fs::read_to_string(state.join("credentials").join(file)).unwrap();
    let own = read("store.pem");
    let (certificate, key) = own.split_at(own.find("-----BEGIN PRIVATE KEY").unwrap());
    let ca = read("ca.pem");
    let ca = ca.split_inclusive("-----END CERTIFICATE-----\n").next().unwrap();
    let file = site.path(name);
    let text = format!(
        "version = 1\nstores = [{:?}]\nnot_after = \"\"\nca = \"\"\"{ca}\"\"\"\n\
         certificate = \"\"\"{certificate}\"\"\"\nkey = \"\"\"{key}\"\"\"\n",
        site.store.address
    );
    std::fs::write(&file, text).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    file
}

#[test]
fn the_certificate_of_a_store_that_is_forgotten_is_good_for_nothing() {
    let site = Site::with_volume("disk", MIB);
    let mut other = crate::fleet::invited(&site, "second");
    other.restart();
    let admin = site.store.credential();
    let stores = || with(&admin, ["store", "list", "--json"]).ok().json();
    wait_for("both stores", LIMIT, || stores()["stores"].as_array().unwrap().len() == 2);
    let stolen = of_store(&site, other.dir(), "stolen.toml");
    // While stores accept it, it is good for requests between stores, and the log has that.
    with(&stolen, ["volume", "create", "theirs", "--size", "1MiB"]).fails(1, &["a store's"]);
    with(&stolen, ["volume", "show", "disk"]).ok();
    let by_store = |line: &Value| line["name"] == "store" && line["action"] == "session.open";
    assert!(lines(site.store.dir()).iter().any(by_store));
    other.kill();
    let silent = |all: Value| {
        let all = all["stores"].as_array().unwrap().clone();
        all.into_iter().find(|store| store["state"] == "no-answer")
    };
    wait_for("it to be missed", LIMIT, || silent(stores()).is_some());
    let id = silent(stores()).unwrap()["id"].as_str().unwrap().to_owned();
    with(&admin, ["store", "forget", &id]).ok();
    wait_for("its certificate to be refused", LIMIT, || {
        !with(&stolen, ["volume", "show", "disk"]).status.success()
    });
    for args in [&["volume", "create", "theirs", "--size", "1MiB"][..], &["volume", "list"]] {
        with(&stolen, args.iter().copied()).fails(1, &["withdrawn"]);
    }
    // And so is the one that a store had before the rotation.
    let old = of_store(&site, site.store.dir(), "old.toml");
    with(&old, ["volume", "show", "disk"]).ok();
    let state = site.store.dir().to_str().unwrap();
    run(longhaul(), ["credential", "rotate", "--state", state]).ok();
    wait_for("the old certificate to be refused", LIMIT, || {
        !with(&old, ["volume", "show", "disk"]).status.success()
    });
    with(&old, ["volume", "show", "disk"]).fails(1, &["withdrawn"]);
    wait_for("the store to show the new one", LIMIT, || {
        with(&site.store.credential(), ["volume", "list"]).status.success()
    });
}

#[test]
fn a_token_makes_one_store_of_the_installation_and_is_worth_nothing_then() {
    let site = Site::with_volume("disk", MIB);
    let state = site.store.dir().to_str().unwrap().to_owned();
    let invite = |args: &[&str]| {
        let all = ["store", "invite", "--state", &state].into_iter();
        run(longhaul(), all.chain(args.iter().copied()))
    };
    let join = |state: &Path, token: &Path| {
        let (state, token) = (state.to_str().unwrap(), token.to_str().unwrap());
        run(longhaul(), ["store", "join", "--state", state, token])
    };
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let (token, other) = (site.path("token"), site.path("redirected"));
    invite(&[token.to_str().unwrap()]).ok();
    invite(&[token.to_str().unwrap()]).fails(1, &["exists"]);
    assert_eq!(mode(&token), 0o600);
    // In a file that others could read, except that the command fixes this first.
    let file = std::fs::File::create(&other).unwrap();
    file.set_permissions(std::fs::Permissions::from_mode(0o644)).unwrap();
    let mut redirected = command(longhaul());
    redirected.args(["store", "invite", "--state", &state]).stdout(file);
    assert!(redirected.status().unwrap().success());
    assert_eq!(mode(&other), 0o600);
    let ca = std::fs::read_to_string(site.store.dir().join("credentials/ca.pem")).unwrap();
    let secret = &ca[ca.find("PRIVATE KEY").unwrap()..];
    let secret = secret.lines().nth(1).unwrap();
    assert!(!std::fs::read_to_string(&token).unwrap().contains(secret));
    // As a credential it is good for nothing.
    with(&token, ["volume", "list"]).fails(1, &["store join"]);
    with(&token, ["volume", "delete", "disk"]).fails(1, &["store join"]);
    join(&site.path("second"), &token).ok();
    join(&site.path("third"), &token).fails(1, &["withdrawn"]);
    assert!(!site.path("third").join("credentials").exists());
    let mut second = Store::stopped(&site.path("second"));
    second.set_data(&state);
    second.restart();
    let admin = site.store.credential();
    wait_for("both stores", LIMIT, || {
        let list = with(&admin, ["store", "list", "--json"]).ok().json();
        let serving = |store: &&Value| store["state"] == "serving";
        list["stores"].as_array().unwrap().iter().filter(serving).count() == 2
    });
    let all = lines(site.store.dir());
    let joined = |line: &&Value| line["action"] == "store.join" && line["outcome"] == "ok";
    assert_eq!(all.iter().filter(joined).count(), 1);
    let refused = |line: &Value| line["outcome"].as_str().unwrap().contains("store join");
    assert!(all.iter().any(refused));
    let withdrawn = |line: &Value| line["outcome"].as_str().unwrap().contains("withdrawn");
    wait_for("the second use to be written down", LIMIT, || {
        lines(site.store.dir()).iter().any(withdrawn)
    });
}
