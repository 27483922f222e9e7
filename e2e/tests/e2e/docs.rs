//! The documentation against the repository and the binary: links lead somewhere, flags and metrics
//! exist.

use longhaul_e2e::process::{longhaul, repository, run};
use longhaul_e2e::site::{Site, files_below, http_get};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn pages() -> Vec<(PathBuf, String)> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(repository())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .collect();
    if repository().join("docs").exists() {
        files.extend(files_below(&repository().join("docs")));
    }
    files.retain(|path| path.extension().is_some_and(|end| end == "md"));
    files.into_iter().map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

/// As GitHub makes anchors of headings.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().trim().to_lowercase().replace(' ', "-")
}

fn anchors(page: &str) -> BTreeSet<String> {
    page.lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| anchor(line.trim_start_matches('#')))
        .collect()
}

#[test]
fn links_lead_somewhere() {
    let mut broken = Vec::new();
    for (path, text) in pages() {
        let mut rest = text.as_str();
        while let Some(at) = rest.find("](") {
            rest = &rest[at + 2..];
            let Some(end) = rest.find(')') else { break };
            let link = &rest[..end];
            if link.contains("://") || link.contains(char::is_whitespace) {
                continue;
            }
            let (file, part) =
                link.split_once('#').map_or((link, None), |(file, part)| (file, Some(part)));
            let target = if file.is_empty() {
                path.clone()
            } else {
                path.parent().unwrap_or(Path::new("")).join(file)
            };
            let found = match part {
                None => target.exists(),
                Some(part) => {
                    std::fs::read_to_string(&target).is_ok_and(|page| anchors(&page).contains(part))
                }
            };
            if !found {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
}

/// All words of the help of all commands.
fn help() -> String {
    let mut all = run(longhaul(), ["--help"]).ok().stdout;
    for command in ["demo", "store", "host", "volume", "credential", "status", "check"] {
        all += &run(longhaul(), [command, "--help"]).ok().stdout;
    }
    for command in ["create", "list", "show", "delete", "import", "export", "lost", "accept-loss"] {
        all += &run(longhaul(), ["volume", command, "--help"]).ok().stdout;
    }
    for command in ["rotate", "show"] {
        all += &run(longhaul(), ["credential", command, "--help"]).ok().stdout;
    }
    all
}

fn words<'a>(text: &'a str, start: &str) -> BTreeSet<&'a str> {
    let part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    text.split(|c: char| !part(c))
        .filter(|word| word.starts_with(start) && word.len() > start.len())
        .collect()
}

#[test]
fn flags_in_the_documentation_exist() {
    let help = help();
    let known = words(&help, "--");
    let mut unknown = Vec::new();
    for (path, text) in pages() {
        for line in
            text.lines().filter(|line| line.contains("longhaul ") && !line.contains("cargo "))
        {
            let command = line.split("longhaul ").nth(1).unwrap_or_default();
            let command = command.split(['`', '|', '#']).next().unwrap_or_default();
            for flag in words(command, "--").difference(&known) {
                unknown.push(format!("{}: {flag} in `{line}`", path.display()));
            }
        }
    }
    assert!(unknown.is_empty(), "flags that do not exist:\n{}", unknown.join("\n"));
    let operations =
        std::fs::read_to_string(repository().join("docs/operations.md")).unwrap_or_default();
    assert!(operations.is_empty() || operations.contains("--journal-size"));
}

#[test]
fn metrics_in_the_documentation_exist() {
    let site = Site::with_volume("disk", 32);
    let mut host = site.host("host").with(["--volume", "disk"]);
    host.start();
    host.client("disk").disconnect();
    let mut all = String::new();
    for admin in [&host.admin, &site.store.admin] {
        all += &http_get(admin, "/metrics").unwrap().1;
    }
    let known = words(&all, "longhaul_");
    let mut unknown = Vec::new();
    for (path, text) in pages() {
        for name in words(&text, "longhaul_") {
            let rust = ["longhaul_core", "longhaul_e2e", "longhaul_sim"]
                .iter()
                .any(|c| name.starts_with(c));
            if !rust && !name.ends_with('_') && !known.contains(name) {
                unknown.push(format!("{}: {name}", path.display()));
            }
        }
    }
    assert!(unknown.is_empty(), "metrics that do not exist:\n{}", unknown.join("\n"));
}
