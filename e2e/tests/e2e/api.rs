//! The HTTP API, as a program sees it that knows nothing but HTTP; and as the commands use it.

use longhaul_e2e::process::{LIMIT, Output, command, longhaul, run, run_within};
use longhaul_e2e::site::{Relay, Site, metric};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;

/// `curl` with the credential of a site's store: status and body.
struct Curl<'a> {
    site: &'a Site,
    files: String,
}

impl<'a> Curl<'a> {
    fn new(site: &'a Site) -> Curl<'a> {
        Curl::of(site, site.store.credential().to_str().unwrap())
    }

    fn of(site: &'a Site, credential: &str) -> Curl<'a> {
        let files = site.path("unpacked").join(credential.replace('/', "-"));
        let files = files.to_str().unwrap().to_owned();
        run(longhaul(), ["credential", "unpack", credential, &files]).ok();
        Curl { site, files }
    }

    fn curl(&self, args: &[&str], path: &str) -> Output {
        let port = self.site.store.address.rsplit_once(':').unwrap().1;
        let resolve = format!("longhaul-store:{port}:127.0.0.1");
        let url = format!("https://longhaul-store:{port}{path}");
        let ca = format!("{}/ca.pem", self.files);
        let all = ["--silent", "--show-error", "--cacert", &ca, "--resolve", &resolve];
        run("curl", all.into_iter().chain(args.iter().copied()).chain([url.as_str()]))
    }

    fn ask(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let (certificate, key) =
            (format!("{}/certificate.pem", self.files), format!("{}/key.pem", self.files));
        let mut args = vec!["--cert", &certificate, "--key", &key, "--write-out", "\n%{http_code}"];
        args.extend(["--request", method]);
        let body = body.map(|body| body.to_string());
        if let Some(body) = &body {
            args.extend(["--header", "content-type: application/json", "--data", body]);
        }
        let said = self.curl(&args, path).ok().stdout;
        let (body, code) = said.rsplit_once('\n').unwrap();
        let body = if body.is_empty() { Value::Null } else { serde_json::from_str(body).unwrap() };
        (code.parse().unwrap(), body)
    }

    #[track_caller]
    fn fails(&self, method: &str, path: &str, body: Option<Value>, code: u16, why: &str) {
        let (found, body) = self.ask(method, path, body);
        let error = body["error"].as_str().unwrap_or_default();
        assert!(found == code && error.contains(why), "{method} {path}: {found} {body}");
    }
}

#[test]
fn all_of_a_volumes_life_is_done_over_http() {
    let mut site = Site::new();
    let mut host = site.host("host");
    let api = Curl::new(&site);
    let mib = 1 << 20;
    let (code, made) =
        api.ask("POST", "/v1/volumes", Some(json!({"name": "disk", "size_bytes": 8 * mib})));
    assert_eq!((code, &made["name"], &made["block_bytes"]), (201, &"disk".into(), &512.into()));
    host.start();
    let mut client = host.client("disk");
    client.write(0, &[1; 1 << 20]).unwrap();
    let (code, taken) =
        api.ask("POST", "/v1/volumes/disk/snapshots", Some(json!({"name": "monday"})));
    assert_eq!((code, &taken["volume"], &taken["name"]), (201, &"disk".into(), &"monday".into()));
    assert_eq!(api.ask("GET", "/v1/volumes/disk/snapshots/monday", None), (200, taken.clone()));
    let (_, list) = api.ask("GET", "/v1/volumes/disk/snapshots", None);
    assert_eq!(list, json!({ "snapshots": [taken] }));
    client.write(512 << 10, &[2; 4096]).unwrap();
    client.flush().unwrap();
    host.wait_drained("disk", LIMIT);
    // The same as the commands say.
    let (_, shown) = api.ask("GET", "/v1/volumes/disk", None);
    assert_eq!(shown, site.show("disk"));
    let (_, list) = api.ask("GET", "/v1/volumes", None);
    assert_eq!(list, site.volume(["list", "--json"]).ok().json());
    let (_, usage) = api.ask("GET", "/v1/volumes/disk/usage", None);
    assert_eq!(usage, site.volume(["usage", "disk", "--json"]).ok().json());
    let (_, changes) = api.ask("GET", "/v1/volumes/disk/snapshots/monday/changes", None);
    let range = json!({"offset_bytes": 512 << 10, "bytes": 4096, "type": "data"});
    assert_eq!(changes, json!({ "ranges": [range] }));
    let (_, stores) = api.ask("GET", "/v1/stores", None);
    assert_eq!(
        (&stores["stores"][0]["state"], &stores["stores"][0]["hosts"]),
        (&"serving".into(), &1.into())
    );
    let (_, lost) = api.ask("GET", "/v1/volumes/disk/lost", None);
    assert_eq!((&lost["connected"], &lost["bytes"]), (&true.into(), &0.into()), "{lost}");

    let schedule = json!({"schedule": "monthly=1"});
    assert_eq!(
        api.ask("PUT", "/v1/volumes/disk/schedule", Some(schedule.clone())),
        (200, schedule.clone())
    );
    assert_eq!(api.ask("GET", "/v1/volumes/disk/schedule", None), (200, schedule));
    let (code, _) = api.ask("PATCH", "/v1/volumes/disk", Some(json!({"size_bytes": 16 * mib})));
    assert_eq!((code, site.show("disk")["size_bytes"].as_u64()), (200, Some(16 * mib)));
    let shrink = json!({"size_bytes": 8 * mib, "force": true});
    api.fails("PATCH", "/v1/volumes/disk", Some(shrink.clone()), 409, "attached");
    api.fails("POST", "/v1/volumes/disk/snapshots/monday/rollback", None, 409, "attached");
    api.fails("DELETE", "/v1/volumes/disk", None, 409, "attached");
    client.disconnect();
    assert!(host.stop().success());
    assert_eq!(api.ask("PATCH", "/v1/volumes/disk", Some(shrink)).0, 200);
    assert_eq!(api.ask("POST", "/v1/volumes/disk/snapshots/monday/rollback", None).0, 204);
    assert_eq!(site.export("disk")[512 << 10], 1);
    let clones = "/v1/volumes/disk/snapshots/monday/clones";
    assert_eq!(api.ask("POST", clones, Some(json!({"name": "copy"}))).0, 201);
    assert_eq!(site.export("copy")[512 << 10], 1);
    assert_eq!(api.ask("DELETE", "/v1/volumes/disk/lost", None).0, 204);
    api.fails("DELETE", "/v1/volumes/disk", None, 400, "copy");
    assert_eq!(api.ask("DELETE", "/v1/volumes/copy", None), (204, Value::Null));
    assert_eq!(api.ask("DELETE", "/v1/volumes/disk/snapshots/monday", None).0, 204);
    assert_eq!(api.ask("DELETE", "/v1/volumes/disk", None).0, 204);
    let (_, deleted) = api.ask("GET", "/v1/deleted", None);
    let find = |name: &str| {
        let all = deleted["volumes"].as_array().unwrap();
        let found = all.iter().find(|volume| volume["name"] == name).expect("a deleted volume");
        found["id"].as_str().unwrap().to_owned()
    };
    let restore = format!("/v1/deleted/{}/restore", find("disk"));
    let (code, back) = api.ask("POST", &restore, Some(json!({"name": "back"})));
    assert_eq!((code, &back["name"]), (200, &"back".into()), "{back}");
    assert_eq!(api.ask("DELETE", &format!("/v1/deleted/{}", find("copy")), None).0, 204);
    assert_eq!(api.ask("GET", "/v1/deleted", None).1, json!({ "volumes": [] }));

    let limits = json!({"max_volumes": 1, "max_iops": 1000, "max_rate": mib});
    let new = json!({"name": "acme", "limits": limits});
    assert_eq!(api.ask("POST", "/v1/tenants", Some(new)).0, 201);
    let of_tenant = |name: &str| Some(json!({"name": name, "size_bytes": mib}));
    assert_eq!(api.ask("POST", "/v1/volumes", of_tenant("acme/db")).0, 201);
    let (code, refused) = api.ask("POST", "/v1/volumes", of_tenant("acme/more"));
    assert!((400..500).contains(&code), "{code} {refused}");
    assert_eq!(api.ask("GET", "/v1/volumes/acme%2Fdb", None).1["name"], "acme/db");
    let (_, tenant) = api.ask("GET", "/v1/tenants/acme", None);
    assert_eq!((&tenant["max_iops"], &tenant["max_rate"]), (&1000.into(), &mib.into()));
    assert_eq!((&tenant["waiting_requests"], &tenant["waiting_bytes"]), (&0.into(), &0.into()));
    api.fails("PUT", "/v1/tenants/acme", Some(json!({"max_iops": 0})), 400, "stop everything");
    assert_eq!(api.ask("PUT", "/v1/tenants/acme", Some(json!({}))).0, 200);
    let (issued, state) = (site.path("acme.toml"), site.store.dir().to_str().unwrap());
    let issued = issued.to_str().unwrap();
    run(
        longhaul(),
        [
            "credential",
            "issue",
            "--role",
            "admin",
            "--name",
            "acme",
            "--tenant",
            "acme",
            "--state",
            state,
            issued,
        ],
    )
    .ok();
    let theirs = Curl::of(&site, issued);
    let (_, list) = theirs.ask("GET", "/v1/volumes", None);
    let names: Vec<&Value> =
        list["volumes"].as_array().unwrap().iter().map(|v| &v["name"]).collect();
    assert_eq!(names, ["db"]);
    theirs.fails("GET", "/v1/volumes/back", None, 404, "no such volume");
    theirs.fails("GET", "/v1/volumes/other%2Fdb", None, 400, "letters");
    theirs.fails("GET", "/v1/stores", None, 403, "admin.toml");
    theirs.fails(
        "PUT",
        "/v1/store/evacuation",
        Some(json!({"evacuating": true})),
        403,
        "admin.toml",
    );
    theirs.fails("GET", "/v1/tenants", None, 403, "admin.toml");
    theirs.fails("GET", "/v1/tenants/acme", None, 403, "admin.toml");
    let (_, tenant) = api.ask("GET", "/v1/tenants/acme", None);
    assert_eq!((&tenant["max_volumes"], &tenant["volumes"]), (&Value::Null, &1.into()));
    assert_eq!((&tenant["max_iops"], &tenant["max_rate"]), (&Value::Null, &Value::Null));
    assert_eq!(api.ask("DELETE", "/v1/volumes/acme%2Fdb", None).0, 204);
    let (_, deleted) = api.ask("GET", "/v1/deleted", None);
    let id = deleted["volumes"][0]["id"].as_str().unwrap();
    assert_eq!(api.ask("DELETE", &format!("/v1/deleted/{id}"), None).0, 204);
    assert_eq!(api.ask("DELETE", "/v1/tenants/acme", None).0, 204);
    api.fails(
        "PUT",
        "/v1/store/evacuation",
        Some(json!({"evacuating": true})),
        400,
        "no other store",
    );
    let (_, drained) = api.ask("PUT", "/v1/store/evacuation", Some(json!({"evacuating": false})));
    assert_eq!(drained["evacuating"], false);
    assert!(site.store.stop().success());
}

#[test]
fn what_cannot_be_done_over_http_is_said_so() {
    let site = Site::with_volume("disk", 8);
    let api = Curl::new(&site);
    api.fails("GET", "/v1/volumes/other", None, 404, "no such volume");
    api.fails("GET", "/v1/volumes/disk/snapshots/other", None, 404, "no such snapshot");
    api.fails("DELETE", "/v1/volumes/disk/snapshots/other", None, 404, "no such snapshot");
    api.fails("GET", "/v1/volumes/disk/snapshots/other/changes", None, 404, "no snapshot other");
    for method in ["GET", "DELETE"] {
        api.fails(method, "/v1/tenants/other", None, 404, "no tenant other");
    }
    api.fails("PUT", "/v1/tenants/other", Some(json!({})), 404, "no tenant other");
    api.fails("DELETE", "/v1/volumes/other?now=true", None, 404, "no such volume");
    api.fails("DELETE", &format!("/v1/stores/{:032}", 1), None, 404, "no store");
    api.fails("GET", "/v1/nothing", None, 404, "openapi.json");
    api.fails("PUT", "/v1/volumes", None, 405, "openapi.json");
    let new = |name: &str, size: u64| Some(json!({"name": name, "size_bytes": size}));
    api.fails("POST", "/v1/volumes", new("disk", 4096), 409, "exists");
    api.fails("POST", "/v1/volumes", new("a b", 4096), 400, "not a volume name");
    api.fails("POST", "/v1/volumes", new("other", 1000), 400, "multiple of 512");
    api.fails("POST", "/v1/volumes", Some(json!({"name": "a", "size": 1})), 422, "size");
    api.fails(
        "PATCH",
        "/v1/volumes/disk",
        Some(json!({"size_bytes": 4096})),
        400,
        "resize --force",
    );
    api.fails(
        "PUT",
        "/v1/volumes/disk/schedule",
        Some(json!({"schedule": "yearly"})),
        400,
        "yearly",
    );
    api.fails("DELETE", "/v1/stores/12", None, 400, "32 hexadecimal");
    api.fails("GET", "/v1/volumes/disk/snapshots/a/changes?from=b", None, 400, "from");
    // Programs need not read the words.
    let kind = |method: &str, path: &str, body| api.ask(method, path, body).1["kind"].clone();
    assert_eq!(kind("GET", "/v1/volumes/other", None), "not-found");
    assert_eq!(kind("POST", "/v1/volumes", new("disk", 4096)), "exists");
    assert_eq!(kind("POST", "/v1/volumes", new("a b", 4096)), "invalid");
    // The answer comes before the end of the request, and the client reads it after that.
    let large = json!({"name": "a".repeat(100_000), "size_bytes": 4096});
    api.fails("POST", "/v1/volumes", Some(large.clone()), 413, "at most 65536 bytes");
    assert_eq!(kind("POST", "/v1/volumes", Some(large)), "too-large");
    // A client without a certificate, or with a withdrawn one, does not get in.
    let nobody = api.curl(&[], "/v1/volumes");
    assert!(!nobody.status.success() && nobody.stdout.is_empty(), "{nobody}");
    run(longhaul(), ["credential", "rotate", "--state", site.store.dir().to_str().unwrap()]).ok();
    let withdrawn = api.curl(
        &[
            "--cert",
            &format!("{}/certificate.pem", api.files),
            "--key",
            &format!("{}/key.pem", api.files),
        ],
        "/v1/volumes",
    );
    assert!(!withdrawn.status.success() && withdrawn.stdout.is_empty(), "{withdrawn}");
    let api = Curl::new(&site);
    assert_eq!(api.ask("GET", "/v1/volumes", None).1["volumes"][0]["name"], "disk");
}

/// Every path of the document exists, and answers as described.
#[test]
fn the_openapi_document_is_what_is_served() {
    let site = Site::with_volume("disk", 8);
    site.snapshot(["create", "disk@a"]).ok();
    let api = Curl::new(&site);
    assert_eq!(api.ask("POST", "/v1/tenants", Some(json!({"name": "t"}))).0, 201);
    let (code, document) = api.ask("GET", "/v1/openapi.json", None);
    assert_eq!(code, 200);
    assert!(document["openapi"].as_str().unwrap().starts_with("3."), "{document}");
    let mut schemas = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let at = path
            .replace("{volume}", "disk")
            .replace("{snapshot}", "a")
            .replace("{store}", "1")
            .replace("{id}", "1")
            .replace("{tenant}", "t");
        for (method, said) in methods.as_object().unwrap() {
            assert!(said["description"].is_string() || said["summary"].is_string(), "{path}");
            if method == "get" {
                let (code, body) = api.ask("GET", &at, None);
                assert_eq!(code, 200, "{path}: {body}");
                let schema = &said["responses"]["200"]["content"]["application/json"]["schema"];
                if let Some(name) = schema["$ref"].as_str().and_then(|name| name.rsplit('/').next())
                {
                    let fields =
                        document["components"]["schemas"][name]["properties"].as_object().unwrap();
                    let there: Vec<&String> = body.as_object().unwrap().keys().collect();
                    assert!(
                        there.iter().all(|field| fields.contains_key(*field)),
                        "{path}: {body}"
                    );
                    schemas.insert(name.to_owned());
                }
            } else {
                // The API does nothing without a body, or for missing things.
                let at = at.replace("disk", "none").replace("tenants/t", "tenants/none");
                let (code, body) = api.ask(&method.to_uppercase(), &at, None);
                let known = code != 405
                    && !body["error"].as_str().unwrap_or_default().contains("openapi.json");
                assert!(known, "{method} {path}: {code} {body}");
            }
        }
    }
    assert!(schemas.contains("Volumes") && schemas.contains("Usage"), "{schemas:?}");
}

/// Runs a command with a credential.
fn with<'a>(credential: &Path, args: impl IntoIterator<Item = &'a str>) -> Output {
    let mut command = command(longhaul());
    command.args(args).arg("--credential").arg(credential);
    run_within(command, LIMIT)
}

/// Requests to a store over HTTP.
fn requests(site: &Site) -> f64 {
    metric(&site.store.admin, "longhaul_store_http_requests_total")
}

#[test]
fn commands_go_over_http_and_where_tcp_does_not_get_through_over_the_link() {
    let mut site = Site::with_volume("disk", 8);
    let mut host = site.host("host");
    host.start();
    let mut client = host.client("disk");
    client.write(0, &[1; 1 << 20]).unwrap();
    site.snapshot(["create", "disk@monday"]).ok();
    client.write(4096, &[2; 8192]).unwrap();
    client.flush().unwrap();
    client.disconnect();
    host.wait_drained("disk", LIMIT);
    assert!(host.stop().success());
    site.volume(["clone", "disk@monday", "copy"]).ok();
    site.volume(["delete", "copy"]).ok();
    // It relays datagrams.
    let relay = Relay::start(&site, []);
    let admin = site.store.credential();
    let shown: &[&[&str]] = &[
        &["volume", "list"],
        &["volume", "list", "--deleted"],
        &["volume", "show", "disk"],
        &["volume", "show", "disk@monday"],
        &["volume", "usage", "disk"],
        &["volume", "diff", "disk@monday", "disk"],
        &["volume", "lost", "disk"],
        &["snapshot", "list"],
        &["snapshot", "schedule", "disk"],
        &["tenant", "list"],
        &["store", "list"],
    ];
    let refused: &[&[&str]] = &[
        &["volume", "show", "none"],
        &["volume", "show", "a b"],
        &["volume", "show", ""],
        &["volume", "create", "disk", "--size", "1MiB"],
        &["volume", "create", "odd", "--size", "1000"],
        &["volume", "resize", "disk", "1MiB"],
        &["volume", "delete", "none", "--now"],
        &["volume", "undelete", "none"],
        &["volume", "clone", "disk@none", "x"],
        &["volume", "diff", "disk@none", "disk"],
        &["snapshot", "create", "disk@monday"],
        &["snapshot", "rollback", "disk@none"],
        &["snapshot", "schedule", "disk", "yearly"],
        &["tenant", "show", "none"],
        &["tenant", "set", "none", "--max-volumes", "1"],
        &["store", "forget", "none"],
    ];
    // A volume that a command opens says more at the next.
    site.volume(["show", "disk"]).ok();
    for args in shown.iter().chain(refused) {
        for json in [&[][..], &["--json"]] {
            let all = || args.iter().chain(json).copied();
            let before = requests(&site);
            let over_http = with(&admin, all());
            let between = requests(&site);
            let over_link = with(&admin, all().chain(["--store", &relay.address]));
            // A command that makes no sense asks nobody.
            let asked = !matches!(args[..], ["volume", "show", ""] | [_, "schedule", _, _]);
            assert_eq!(between > before, asked, "{args:?}: {before} {between}");
            assert_eq!(requests(&site), between, "{args:?}");
            assert_eq!(over_http.status.code(), over_link.status.code(), "{args:?}");
            assert_eq!(over_http.status.success(), shown.contains(args), "{args:?}: {over_http}");
            assert_eq!(
                (&over_http.stdout, &over_http.stderr),
                (&over_link.stdout, &over_link.stderr)
            );
        }
    }
    // Changing commands, over both. A relay knows no more than so many hosts.
    let relay = Relay::start(&site, []);
    for (name, store) in [("one", site.store.address.clone()), ("two", relay.address.clone())] {
        let run = |args: &[&str]| {
            let before = requests(&site);
            let output = with(&admin, args.iter().copied().chain(["--store", &store])).ok();
            assert_eq!(requests(&site) > before, name == "one", "{args:?}");
            output
        };
        let (snapshot, clone) = (format!("{name}@a"), format!("{name}-clone"));
        run(&["volume", "create", name, "--size", "1MiB"]);
        run(&["volume", "resize", name, "2MiB"]);
        run(&["volume", "resize", name, "1MiB", "--force"]);
        run(&["snapshot", "create", &snapshot]);
        run(&["snapshot", "schedule", name, "daily=1"]);
        run(&["snapshot", "rollback", &snapshot]);
        run(&["volume", "clone", &snapshot, &clone]);
        run(&["volume", "accept-loss", &clone]);
        run(&["volume", "delete", &clone]);
        run(&["volume", "undelete", &clone]);
        run(&["volume", "delete", &clone, "--now"]);
        run(&["snapshot", "delete", &snapshot]);
        run(&["volume", "delete", name]);
        run(&["volume", "delete", name, "--now"]);
        run(&["tenant", "create", name]);
        run(&["tenant", "set", name, "--max-volumes", "3"]);
        assert_eq!(run(&["tenant", "show", name, "--json"]).json()["max_volumes"], 3);
        run(&["tenant", "delete", name]);
        run(&["store", "evacuate", "--off"]);
    }
    // Each store gets its requests at its own address.
    let before = requests(&site);
    with(&admin, ["store", "rebalance", "--store", &relay.address]).ok();
    assert_eq!(requests(&site), before + 1.0);
    // Data and keys go over the link in any case.
    let before = requests(&site);
    let (key, image) = (site.path("key"), site.path("image"));
    let (key, image) = (key.to_str().unwrap(), image.to_str().unwrap());
    run(longhaul(), ["credential", "new-key", key]).ok();
    site.volume(["create", "secret", "--size", "8MiB", "--encrypt", "--key-file", key]).ok();
    site.volume(["rotate-key", "secret", "--key-file", key]).ok();
    site.volume(["export", "disk", image]).ok();
    site.volume(["import", "secret", image, "--key-file", key]).ok();
    site.snapshot(["send", "disk@monday", image, "--force"]).ok();
    assert_eq!(requests(&site), before);
    // So does what becomes of the keys of a clone.
    site.snapshot(["create", "secret@a"]).ok();
    site.volume(["clone", "secret@a", "copy"]).fails(2, &["--key-file"]);
    site.volume(["clone", "secret@a", "copy", "--key-file", key]).ok();
    let copy = site.path("copied");
    let copy = copy.to_str().unwrap();
    site.volume(["export", "copy", copy, "--key-file", key]).ok();
    assert!(requests(&site) > before);
    // A restarted store gets requests as before.
    assert!(site.store.stop().success());
    site.volume(["list"]).fails(1, &["cannot reach the store at", "is it running"]);
    site.store.restart();
    site.volume(["show", "copy"]).ok();
    assert_eq!(requests(&site), 1.0);
}

#[test]
fn a_credential_shows_what_is_its_own_over_http_and_says_why_it_is_refused() {
    let site = Site::with_volume("own", 8);
    let (state, admin) = (site.store.dir().to_str().unwrap(), site.store.credential());
    let acme = site.path("acme.toml");
    with(&admin, ["tenant", "create", "acme"]).ok();
    let file = acme.to_str().unwrap();
    run(
        longhaul(),
        [
            "credential",
            "issue",
            "--role",
            "admin",
            "--name",
            "acme",
            "--tenant",
            "acme",
            "--state",
            state,
            file,
        ],
    )
    .ok();
    with(&acme, ["volume", "create", "db", "--size", "8MiB"]).ok();
    let before = requests(&site);
    let names = |credential: &Path| -> Vec<String> {
        let list = with(credential, ["volume", "list", "--json"]).ok().json();
        let list = list["volumes"].as_array().unwrap().iter();
        list.map(|volume| volume["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&acme), ["db"]);
    assert_eq!(names(&admin), ["acme/db", "own"]);
    with(&acme, ["volume", "show", "own"]).fails(1, &["volume own: ", "no such volume"]);
    with(&acme, ["volume", "delete", "own"]).fails(1, &["no such volume"]);
    with(&acme, ["snapshot", "create", "own@a"]).fails(1, &["no such volume"]);
    with(&acme, ["store", "list"]).fails(1, &["admin.toml"]);
    assert!(requests(&site) - before >= 6.0);
    // Each gets its own refusal, as over the link.
    run(longhaul(), ["credential", "revoke", "--tenant", "acme", "--state", state]).ok();
    let refused = || with(&acme, ["volume", "list"]);
    longhaul_e2e::wait_for("the credential to be refused", LIMIT, || !refused().status.success());
    let why = ["cannot reach the store at", "the credential was withdrawn"];
    refused().fails(1, &why);
    let other = Site::new();
    let foreign = other.store.credential();
    let at = site.store.address.as_str();
    let wrong = with(&foreign, ["volume", "list", "--store", at]);
    wrong.fails(1, &["cannot reach the store at", "belongs to another CA"]);
    with(&site.path("none.toml"), ["volume", "list"]).fails(1, &["none.toml does not exist"]);
    with(&admin, ["volume", "list", "--store", "nonsense"]).fails(1, &["give it as HOST:PORT"]);
}
