//! The documentation against the binary: commands, flags, variables, metrics and make targets
//! exist.
//!
//! `scripts/links` checks links, `scripts/newcomer` runs the command blocks of several pages.

use crate::replica;
use longhaul_e2e::bucket::{self, can_use_buckets};
use longhaul_e2e::process::{longhaul, repository, run};
use longhaul_e2e::site::{Site, files_below, http_get};
use std::collections::BTreeSet;
use std::path::PathBuf;

fn pages() -> Vec<(PathBuf, String)> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(repository())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .collect();
    files.extend(files_below(&repository().join("docs")));
    files.retain(|path| path.extension().is_some_and(|end| end == "md"));
    assert!(files.len() > 5, "where is the documentation? {files:?}");
    files.into_iter().map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

/// The commands with their help, subcommands after the command they belong to.
fn commands() -> Vec<(Vec<&'static str>, String)> {
    let mut all: Vec<Vec<&str>> = Vec::new();
    let shown = [
        "demo",
        "store",
        "host",
        "attach",
        "detach",
        "volume",
        "snapshot",
        "tenant",
        "credential",
        "iscsi",
        "nbd",
        "limit",
        "cache",
        "trace",
    ];
    for command in shown.into_iter().chain(["status", "check", "relay", "bench-null", "bench-link"])
    {
        all.push(vec![command]);
    }
    let volume = ["create", "list", "show", "resize", "delete", "import", "export", "lost"];
    for command in volume.into_iter().chain([
        "accept-loss",
        "rotate-key",
        "clone",
        "diff",
        "usage",
        "undelete",
    ]) {
        all.push(vec!["volume", command]);
    }
    for command in ["list", "add", "remove", "rebind"] {
        all.push(vec!["volume", "key", command]);
    }
    for command in ["create", "list", "delete", "schedule", "rollback", "send", "receive"] {
        all.push(vec!["snapshot", command]);
    }
    for command in ["write", "read"] {
        all.push(vec!["bench-link", command]);
    }
    for command in
        ["list", "evacuate", "rebalance", "forget", "audit", "invite", "join", "failover"]
    {
        all.push(vec!["store", command]);
    }
    all.push(vec!["store", "replica"]);
    for command in ["show", "add", "remove", "mode"] {
        all.push(vec!["store", "replica", command]);
    }
    for command in ["create", "set", "show", "list", "delete"] {
        all.push(vec!["tenant", command]);
    }
    for command in
        ["rotate", "show", "refresh", "renew", "new-key", "unpack", "issue", "revoke", "list"]
    {
        all.push(vec!["credential", command]);
    }
    for command in ["allow", "deny", "open", "user", "move", "list", "sessions"] {
        all.push(vec!["iscsi", command]);
    }
    for command in ["allow", "deny", "open", "list"] {
        all.push(vec!["nbd", command]);
    }
    for command in ["record", "stop", "replay", "delete", "list"] {
        all.push(vec!["trace", command]);
    }
    for command in ["pin", "unpin", "warm", "stop", "show"] {
        all.push(vec!["cache", command]);
    }
    for command in ["set", "remove"] {
        all.push(vec!["iscsi", "user", command]);
    }
    let help = |command: &Vec<&'static str>| {
        run(longhaul(), command.iter().copied().chain(["--help"])).ok().stdout
    };
    all.into_iter().map(|command| (command.clone(), help(&command))).collect()
}

fn words<'a>(text: &'a str, start: &str) -> BTreeSet<&'a str> {
    let part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    text.split(|c: char| !part(c))
        .filter(|word| word.starts_with(start) && word.len() > start.len())
        .collect()
}

#[test]
fn commands_and_flags_in_the_documentation_exist() {
    let commands = commands();
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for (path, text) in pages() {
        let mut complain =
            |what: &str, line: &str| wrong.push(format!("{}: {what} in `{line}`", path.display()));
        let mut fence = None;
        for line in text.lines() {
            if let Some(kind) = line.strip_prefix("```") {
                fence = if fence.is_none() { Some(kind) } else { None };
                continue;
            }
            if line.contains("cargo ") {
                continue;
            }
            // `longhaul COMMAND …` in a block of commands or quoted; prose does not count.
            for call in line.split("longhaul ").skip(1) {
                let code = fence.is_some_and(|kind| kind.starts_with("sh"))
                    || line.starts_with("ExecStart");
                if !code && !line.contains(&format!("`longhaul {call}")) {
                    continue;
                }
                let call = call.split(['`', '|', '#', '…']).next().unwrap_or_default();
                let typed: Vec<&str> = call.split_whitespace().collect();
                let named = |(command, _): &&(Vec<&str>, String)| typed.starts_with(command);
                let Some((command, help)) = commands.iter().rfind(named) else {
                    if typed.first().is_some_and(|word| !word.starts_with('-')) {
                        complain("no such command", line);
                    }
                    continue;
                };
                checked += 1;
                let group = command.len() == 1 && help.contains("<COMMAND>");
                if group && typed.get(1).is_some_and(|word| !word.starts_with('-')) {
                    complain("no such command", line);
                }
                let known = words(help, "--");
                for flag in words(call, "--").difference(&known) {
                    complain(&format!("no {flag} of {}", command.join(" ")), line);
                }
            }
        }
        let all: String = commands.iter().map(|(_, help)| help.as_str()).collect();
        let known = words(&all, "LONGHAUL_");
        for variable in words(&text, "LONGHAUL_").difference(&known) {
            // Those of the tests are not the binary's.
            let of_tests = [
                "LONGHAUL_BENCH_",
                "LONGHAUL_BIN",
                "LONGHAUL_E2E_",
                "LONGHAUL_LINES",
                "LONGHAUL_WRITE_",
            ];
            if !of_tests.iter().any(|test| variable.starts_with(test)) {
                complain("no such variable", variable);
            }
        }
    }
    assert!(wrong.is_empty(), "what does not exist:\n{}", wrong.join("\n"));
    assert!(checked > 10, "only {checked} commands were found");
}

#[test]
fn make_targets_in_the_documentation_exist() {
    let help =
        run("make", ["-s".as_ref(), "-C".as_ref(), repository().as_os_str(), "help".as_ref()]);
    let help = help.ok().stdout;
    let targets: BTreeSet<&str> = help
        .lines()
        .filter_map(|line| line.trim().strip_prefix("make ")?.split_whitespace().next())
        .collect();
    let (mut unknown, mut checked) = (Vec::new(), 0);
    for (path, text) in pages() {
        for (at, _) in text.match_indices("make ") {
            if !text[..at].ends_with(['`', '\n']) {
                continue;
            }
            let rest = &text[at + "make ".len()..];
            let end =
                rest.find(|c: char| !c.is_ascii_lowercase() && c != '-').unwrap_or(rest.len());
            checked += 1;
            if !targets.contains(&rest[..end]) {
                unknown.push(format!("{}: make {}", path.display(), &rest[..end]));
            }
        }
    }
    assert!(unknown.is_empty(), "targets that do not exist:\n{}", unknown.join("\n"));
    assert!(checked > 3, "only {checked} were found");
}

#[test]
fn metrics_in_the_documentation_exist() {
    let mut site = Site::with_volume("disk", 32);
    // A store without a cache has no metrics of it.
    site.store.stop();
    site.store.set_flags(["--cache-size", "64MiB"]);
    site.store.restart();
    let mut host = site.host("host").with(["--volume", "disk"]);
    host.start();
    host.client("disk").disconnect();
    // Nor has one over a directory any of a bucket.
    let bucket = can_use_buckets("metrics_in_the_documentation_exist").then(bucket::site);
    let of_bucket = bucket.as_ref().map(|(site, ..)| &site.store.admin);
    // Nor one without a replica any of that.
    let place = site.path("replica");
    replica::replica(&site, &site.store, ["add", place.to_str().unwrap()]).ok();
    replica::is_in_step(&site, &site.store);
    let standby = replica::waiting(&site, "standby", &place);
    let mut all = String::new();
    let stores = [&host.admin, &site.store.admin, &standby.admin];
    for admin in stores.into_iter().chain(of_bucket) {
        all += &http_get(admin, "/metrics").unwrap().1;
    }
    let known = words(&all, "longhaul_");
    let (mut unknown, mut checked) = (Vec::new(), 0);
    for (path, text) in pages() {
        for name in words(&text, "longhaul_") {
            // Crates, as a filter of `--log` names them.
            let rust = ["longhaul_core", "longhaul_e2e", "longhaul_link", "longhaul_sim"]
                .iter()
                .any(|c| name.starts_with(c));
            checked += usize::from(!rust);
            if !rust && !name.ends_with('_') && !known.contains(name) && bucket.is_some() {
                unknown.push(format!("{}: {name}", path.display()));
            }
        }
    }
    assert!(unknown.is_empty(), "metrics that do not exist:\n{}", unknown.join("\n"));
    assert!(checked > 3, "only {checked} metrics were found");
}
