//! Who may act at a store, and what is written down about it.

use longhaul_e2e::process::{LIMIT, Output, command, longhaul, run, run_within};
use longhaul_e2e::site::Site;
use longhaul_e2e::wait_for;
use serde_json::Value;
use std::path::Path;

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
    // The end is missed only by who knows it.
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
