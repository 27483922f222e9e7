//! iSCSI with initiators that others wrote, and who gets in.

use longhaul_e2e::iscsi::{Tgt, Verdict, libiscsi, run_suite, table, url};
use longhaul_e2e::process::{LIMIT, Output, command, longhaul, repository, run, run_within};
use longhaul_e2e::site::{Host, START, Site, free_address};
use longhaul_e2e::wait_for;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;

const ALICE: &str = "alice-secret-0123";
const TARGET: &str = "target-secret-0123";
const INITIATOR: &str = "iqn.2026-11.com.example:initiator";

fn site(mib: u64, flags: &[&str]) -> (Site, Host, String) {
    let site = Site::with_volume("disk", mib);
    let (host, portal) = host(&site, flags);
    (site, host, portal)
}

fn host(site: &Site, flags: &[&str]) -> (Host, String) {
    let portal = free_address();
    let mut host = site.host("host").with(["--iscsi", &portal, "--volume", "disk"]);
    host = host.with(flags.iter().copied());
    host.start();
    host.client("disk").disconnect();
    (host, portal)
}

fn longhaul_iscsi<'a>(host: &Host, args: impl IntoIterator<Item = &'a str>) -> Output {
    let mut iscsi = command(longhaul());
    iscsi.args(["iscsi", "--admin", &host.admin]).args(args);
    run_within(iscsi, LIMIT)
}

fn private(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn libiscsi_sees_the_disk() {
    let (_site, host, portal) = site(64, &[]);
    let list = libiscsi("iscsi-ls", ["-s", &format!("iscsi://{portal}")]).ok();
    assert!(list.stdout.contains("Target:iqn.2026-11.io.longhaul:disk"), "{list}");
    assert!(list.stdout.contains("Lun:0"), "{list}");
    let unit = url(&portal, None, "disk");
    let inquiry = libiscsi("iscsi-inq", [unit.as_str()]).ok();
    for part in ["Vendor:LONGHAUL", "Product:VOLUME", "DIRECT_ACCESS"] {
        assert!(inquiry.stdout.contains(part), "{part} in {inquiry}");
    }
    let capacity = libiscsi("iscsi-readcapacity16", [unit.as_str()]).ok();
    for part in ["Total size:67108864", "LOGICAL BLOCK LENGTH IN BYTES:512", "LBPME:1 LBPRZ:1"] {
        assert!(capacity.stdout.contains(part), "{part} in {capacity}");
    }
    let nobody = libiscsi("iscsi-inq", [url(&portal, None, "no-such-volume").as_str()]);
    assert!(!nobody.status.success(), "{nobody}");
    wait_for("all sessions are over", LIMIT, || {
        host.status()["iscsi_connections"] == 0 && host.volume_status("disk")["iscsi_sessions"] == 0
    });
}

#[test]
fn qemu_brings_back_what_it_took() {
    let (site, mut host, portal) = site(64, &[]);
    let (from, to) = (site.path("from"), site.path("to"));
    let mut data = vec![0; 64 << 20];
    let mut rng = fastrand::Rng::with_seed(11);
    for part in data.chunks_mut(320 << 10).step_by(2) {
        rng.fill(part);
    }
    std::fs::write(&from, &data).unwrap();
    let unit = url(&portal, None, "disk");
    let info = run("qemu-img", ["info", "--output=json", "-f", "raw", &unit]).ok().json();
    assert_eq!(info["virtual-size"], 64 << 20, "{info}");
    run("qemu-img", ["convert", "-n", "-f", "raw", "-O", "raw", text(&from), &unit]).ok();
    run("qemu-img", ["convert", "-f", "raw", "-O", "raw", &unit, text(&to)]).ok();
    assert!(std::fs::read(&to).unwrap() == data, "qemu-img brought back something else");
    let script = [
        "write -P 0x11 0 64k",
        "write -P 0x22 -f 1M 4k",
        "write -z -u 32k 32k",
        "discard 1M 4k",
        "write -P 0x33 3145728 8M",
        "flush",
        "read -P 0x11 0 32k",
        "read -P 0 32k 32k",
        "read -P 0 1M 4k",
        "read -P 0x33 3145728 8M",
    ];
    let commands = script.iter().flat_map(|line| ["-c", line]);
    let io = run("qemu-io", ["-f", "raw"].into_iter().chain(commands).chain([unit.as_str()])).ok();
    assert!(!io.stdout.contains("verification failed"), "{io}");
    data[..64 << 10].fill(0x11);
    data[32 << 10..64 << 10].fill(0);
    data[1 << 20..(1 << 20) + 4096].fill(0);
    data[3 << 20..11 << 20].fill(0x33);
    host.wait_drained("disk", LIMIT);
    assert!(host.stop().success());
    assert!(site.export("disk") == data, "the store has something else");
}

#[test]
fn sessions_are_seen_and_survive_a_restart_of_the_host() {
    let (_site, mut host, portal) = site(64, &[]);
    let unit = url(&portal, None, "disk");
    let mut qemu = command("qemu-io");
    qemu.args(["-f", "raw", &unit]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut qemu = qemu.spawn().unwrap();
    let mut input = qemu.stdin.take().unwrap();
    // It takes a line for each time that there is something to read.
    for (line, counter) in [("write -P 0x5a 0 1M\n", "writes"), ("flush\n", "flushes")] {
        input.write_all(line.as_bytes()).unwrap();
        wait_for(line, LIMIT, || {
            host.volume_status("disk")["counters"][counter].as_u64() > Some(0)
        });
    }
    let sessions = longhaul_iscsi(&host, ["sessions", "--json"]).ok().json();
    assert_eq!(sessions[0]["volume"], "disk", "{sessions}");
    assert_eq!(host.volume_status("disk")["iscsi_sessions"], 1);
    let table = longhaul_iscsi(&host, ["sessions"]).ok();
    assert!(table.stdout.contains("disk"), "{table}");
    host.kill();
    host.start();
    input
        .write_all(b"read -P 0x5a 0 1M\nwrite -P 0x6b 0 4k\nflush\nread -P 0x6b 0 4k\nquit\n")
        .unwrap();
    drop(input);
    let output = qemu.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.matches("read ").count() == 2, "{said}");
    assert!(!said.contains("failed"), "{said}");
}

#[test]
fn chap_decides_who_gets_in() {
    let site = Site::with_volume("disk", 64);
    let config = site.path("longhaul.toml");
    // libiscsi 1.19 has MD5 only.
    std::fs::write(&config, "[iscsi]\nweak-chap = true\n").unwrap();
    let (host, portal) = host(&site, &["--config", text(&config)]);
    let secret = site.path("secret");
    private(&secret, &format!("{ALICE}\n"));
    longhaul_iscsi(&host, ["user", "set", "alice", "--secret-file", text(&secret)]).ok();
    longhaul_iscsi(&host, ["allow", "disk", INITIATOR, "--chap-user", "alice"]).ok();
    let inquiry = |user: Option<&str>, more: &str| {
        let unit = format!("{}{more}", url(&portal, user, "disk"));
        libiscsi("iscsi-inq", ["-i", INITIATOR, &unit])
    };
    let alice = format!("alice%{ALICE}");
    inquiry(Some(&alice), "").ok();
    for wrong in [None, Some("alice%wrong-secret-0123"), Some("bob%alice-secret-0123")] {
        let refused = inquiry(wrong, "");
        assert!(!refused.status.success(), "{wrong:?}: {refused}");
    }
    let unit = url(&portal, Some(&alice), "disk");
    let other = libiscsi("iscsi-inq", ["-i", "iqn.2026-11.com.example:other", &unit]);
    assert!(!other.status.success(), "{other}");
    // The other way round: the target has no secret, then a wrong one, then the right one.
    let mutual = format!("?target_user=longhaul&target_password={TARGET}");
    assert!(!inquiry(Some(&alice), &mutual).status.success());
    for (right, told) in [(false, "another-secret-0123"), (true, TARGET)] {
        private(&secret, told);
        let file = text(&secret);
        longhaul_iscsi(&host, ["user", "set", "longhaul", "--target", "--secret-file", file]).ok();
        let output = inquiry(Some(&alice), &mutual);
        assert_eq!(output.status.success(), right, "{output}");
    }
    let list = longhaul_iscsi(&host, ["list"]).ok();
    for part in ["disk", INITIATOR, "alice", "this target"] {
        assert!(list.stdout.contains(part), "{part} in {list}");
    }
    let state = std::fs::metadata(host.state().join("iscsi.json")).unwrap();
    assert_eq!(state.permissions().mode() & 0o777, 0o600);
}

#[test]
fn rights_are_kept_and_withdrawn() {
    let (_site, mut host, portal) = site(64, &[]);
    let unit = url(&portal, None, "disk");
    let inquiry = |name: &str| libiscsi("iscsi-inq", ["-i", name, &unit]).status.success();
    let listed = |name: &str| {
        let list = libiscsi("iscsi-ls", ["-i", name, &format!("iscsi://{portal}")]);
        list.stdout.contains("longhaul:disk")
    };
    let other = "iqn.2026-11.com.example:other";
    assert!(inquiry(other) && listed(other), "over loopback, what is granted to nobody is for all");
    longhaul_iscsi(&host, ["allow", "disk", INITIATOR]).ok();
    for round in ["before a restart", "after it"] {
        assert!(inquiry(INITIATOR) && listed(INITIATOR), "{round}");
        assert!(!inquiry(other) && !listed(other), "{round}");
        host.stop();
        host.start();
        host.client("disk").disconnect();
    }
    longhaul_iscsi(&host, ["deny", "disk", INITIATOR]).ok();
    longhaul_iscsi(&host, ["deny", "disk", INITIATOR]).fails(1, &["not granted", "iscsi list"]);
    assert!(!inquiry(other), "nobody is named any more, and nobody may use it");
    longhaul_iscsi(&host, ["open", "disk"]).ok();
    assert!(inquiry(other) && listed(other), "it has no list any more");
    longhaul_iscsi(&host, ["allow", "disk", "not-a-name"]).fails(1, &["no iscsi name"]);
    longhaul_iscsi(&host, ["allow", "disk", INITIATOR, "--chap-user", "nobody"])
        .fails(1, &["no user nobody", "user set"]);
    let token = host.state().join("admin.token");
    std::fs::remove_file(&token).unwrap();
    longhaul_iscsi(&host, ["allow", "disk", INITIATOR]).fails(1, &["admin.token"]);
    private(&token, "0123456789abcdef0123456789abcdef");
    longhaul_iscsi(&host, ["allow", "disk", INITIATOR]).fails(1, &["token"]);
    assert!(inquiry(other), "nothing was changed");
}

#[test]
fn a_config_file_with_secrets_is_private() {
    let site = Site::with_volume("disk", 64);
    let config = site.path("longhaul.toml");
    let text_of = |volumes: &str| {
        format!(
            "[iscsi]\nweak-chap = true\n[iscsi.users]\nalice = {{ secret = \"{ALICE}\" }}\n\
             [iscsi.volumes]\ndisk = [{volumes}]\n"
        )
    };
    let grant = format!("{{ initiator = \"{INITIATOR}\", chap-user = \"alice\" }}");
    std::fs::write(&config, text_of(&grant)).unwrap();
    let refused = |parts: &[&str]| {
        let flags = ["--iscsi", "127.0.0.1:0", "--config", text(&config)];
        site.host("refused").with(flags).run_to_failure().fails(1, parts);
    };
    std::fs::set_permissions(&config, std::fs::Permissions::from_mode(0o644)).unwrap();
    refused(&["others may", "chmod 600"]);
    private(&config, &text_of("\"no name\""));
    refused(&["no iscsi name", "table [iscsi]"]);
    private(&config, &text_of("{ initiator = \"iqn.2026-11.x:y\", chap-user = \"bob\" }"));
    refused(&["bob", "iscsi.users"]);
    private(&config, "[iscsi]\nusers = 1\n");
    refused(&["table [iscsi]"]);
    private(&config, &text_of(&grant));
    let (host, portal) = host(&site, &["--config", text(&config)]);
    let alice = format!("alice%{ALICE}");
    libiscsi("iscsi-inq", ["-i", INITIATOR, &url(&portal, Some(&alice), "disk")]).ok();
    assert!(
        !libiscsi("iscsi-inq", ["-i", INITIATOR, &url(&portal, None, "disk")]).status.success()
    );
    longhaul_iscsi(&host, ["deny", "disk", INITIATOR]).fails(1, &["config file"]);
}

/// For `make iscsi-conformance`: takes minutes, and fails on nothing.
#[test]
#[ignore = "a table, not a test"]
fn table_of_conformance() {
    let site = Site::with_volume("disk", 128);
    let portals = [free_address(), free_address()];
    let flags = ["--iscsi", &portals[0], "--iscsi", &portals[1], "--volume", "disk"];
    let mut host = site.host("host").with(flags);
    host.start();
    host.client("disk").disconnect();
    let tgt = Tgt::start(&site.path(""), 128);
    let ours = portals.each_ref().map(|portal| url(portal, None, "disk"));
    let theirs = [tgt.url(0), tgt.url(1)];
    println!("| target | paths | passed | left something out | failed |\n|---|---|---|---|---|");
    let mut failed = Vec::new();
    for (target, urls) in [("longhaul", &ours), ("tgt", &theirs)] {
        for paths in [1, 2] {
            let urls: Vec<&str> = urls[..paths].iter().map(String::as_str).collect();
            let results = run_suite(&urls);
            let [passed, skipped, wrong] =
                [Verdict::Passed, Verdict::Skipped, Verdict::Failed].map(|v| results.count(v));
            println!("| {target} | {paths} | {passed} | {skipped} | {wrong} |");
            let tests =
                results.tests.into_iter().filter(|(_, (verdict, _))| *verdict == Verdict::Failed);
            failed.extend(tests.map(|(name, _)| format!("{target}, {paths}: {name}")));
        }
    }
    println!("\nfailed:\n{}", failed.join("\n"));
}

/// Tests of libiscsi's suite that do not pass have to be in the page, and those in the page must
/// not.
#[test]
fn libiscsi_conformance() {
    let site = Site::with_volume("disk", 128);
    let (first, second) = (free_address(), free_address());
    let flags = ["--iscsi", &first, "--iscsi", &second, "--volume", "disk"];
    let mut host = site.host("host").with(flags);
    host.start();
    host.client("disk").disconnect();
    wait_for("the portals listen", START, || {
        libiscsi("iscsi-inq", [url(&second, None, "disk").as_str()]).status.success()
    });
    let page = repository().join("docs/iscsi.md");
    let known = table(&page, "### Tests that do not pass");
    let skipped = table(&page, "### Tests that leave something out");
    let (first, second) = (url(&first, None, "disk"), url(&second, None, "disk"));
    let mut wrong = Vec::new();
    for (paths, urls) in [("one path", vec![&*first]), ("two paths", vec![&*first, &*second])] {
        let results = run_suite(&urls);
        let counts = [Verdict::Passed, Verdict::Skipped, Verdict::Failed].map(|v| results.count(v));
        println!("{paths}: passed {}, skipped {}, failed {}", counts[0], counts[1], counts[2]);
        assert_eq!(counts.iter().sum::<usize>(), 615, "the suite is another one");
        for (name, (verdict, said)) in &results.tests {
            // A row is for a test in whatever family: `Suite.Test`.
            let short = name.split_once('.').map_or(name.as_str(), |(_, short)| short);
            let named = |rows: &[(String, Vec<String>)]| {
                rows.iter().any(|(row, cells)| {
                    let suite =
                        row.strip_suffix(".*").is_some_and(|s| short.starts_with(&format!("{s}.")));
                    (row == short || suite)
                        && (paths == "one path" || !cells.iter().any(|c| c == "one path"))
                })
            };
            let expected = match verdict {
                Verdict::Failed => named(&known),
                Verdict::Skipped => named(&skipped),
                Verdict::Passed => !named(&known),
            };
            if !expected {
                wrong.push(format!("{paths}: {name}: {verdict:?}\n{said}"));
            }
        }
    }
    assert!(wrong.is_empty(), "not as {} says:\n{}", page.display(), wrong.join("\n"));
    assert!(host.server_is_alive());
}
