//! The rules. A list of exceptions says why each is one.

use crate::imports::Imports;
use crate::source::{CRATES, SIDE_BY_SIDE, Source, sources, workspace};
use crate::types::{public_types, structs};
use std::collections::{BTreeMap, BTreeSet};

/// Longest line, in characters.
const MAX_LINE: usize = 100;
/// Longest file, in lines.
const MAX_FILE: usize = 800;
/// Most fields of a struct.
const MAX_FIELDS: usize = 20;
/// Most files that take names from each other.
const MAX_CIRCLE: usize = 2;
/// Lines that are longer than they should be, by directory. They only get fewer.
const LONGER_LINES: [(&str, usize); 12] = [
    ("core", 67),
    ("base", 1),
    ("objects", 5),
    ("link", 10),
    ("api", 1),
    ("store", 8),
    ("cli", 3),
    ("sim", 1),
    ("lab", 14),
    ("e2e", 8),
    ("fuzz", 9),
    ("bench", 2),
];

fn all() -> Vec<Source> {
    let directories = CRATES.iter().map(|name| format!("{name}/src"));
    directories.flat_map(|directory| sources(&directory).unwrap()).collect()
}

fn fail_if_any(rule: &str, found: Vec<String>) {
    assert!(found.is_empty(), "{rule}:\n{}\n{} in all", found.join("\n"), found.len());
}

#[test]
fn crates_depend_on_lower_ones_only() {
    let mut found = Vec::new();
    for (at, name) in CRATES.iter().enumerate() {
        let manifest = std::fs::read_to_string(workspace().join(name).join("Cargo.toml")).unwrap();
        let dependencies = manifest.split("[dependencies]").nth(1).unwrap_or_default();
        let dependencies = dependencies.split("\n[").next().unwrap_or_default();
        for line in dependencies.lines() {
            let Some(other) = line.strip_prefix("longhaul-") else { continue };
            let other = other.split(['.', ' ', '=']).next().unwrap_or_default();
            let side = SIDE_BY_SIDE
                .iter()
                .any(|(a, b)| (*name, other) == (*a, *b) || (other, *name) == (*a, *b));
            if !CRATES[..at].contains(&other) || side {
                found.push(format!("{name} depends on {other}"));
            }
        }
    }
    fail_if_any("arrows between crates go down", found);
}

/// The rooms of the core from which each room may take names.
const ROOMS: [(&str, &[&str]); 14] = [
    ("block", &[]),
    ("disk", &[]),
    ("extent", &["block"]),
    ("ranges", &["block", "extent"]),
    ("limit", &["block"]),
    ("record", &["block", "pack"]),
    ("pack", &["block", "record"]),
    ("wire", &["block", "record"]),
    ("cache", &["block", "disk", "extent", "pack", "ranges", "wire"]),
    ("front", &["block", "record", "wire"]),
    ("link", &["block", "wire"]),
    ("host", &["block", "cache", "disk", "extent", "limit", "pack", "ranges", "record", "wire"]),
    ("store", &["block", "cache", "disk", "extent", "limit", "pack", "ranges", "record", "wire"]),
    ("fleet", &["block", "store", "wire"]),
];

#[test]
fn rooms_of_the_core_keep_to_themselves() {
    let sources = sources("core/src").unwrap();
    let imports = Imports::read("core/src/", &sources);
    let room = |path: &str| {
        let inside = path.strip_prefix("core/src/").unwrap_or(path);
        inside.split(['/', '.']).next().unwrap_or_default().to_owned()
    };
    let mut found = BTreeSet::new();
    for (file, targets) in imports.arrows() {
        for target in targets {
            let (from, to) = (room(file), room(target));
            let may = ROOMS.iter().find(|(name, _)| *name == from).map_or(&[][..], |(_, may)| *may);
            if from != to && from != "lib" && !may.contains(&to.as_str()) {
                found.insert(format!("{file} takes names from {target}"));
            }
        }
    }
    fail_if_any("a room takes names from the rooms below it only", found.into_iter().collect());
}

#[test]
fn no_circle_has_more_than_two_files() {
    let mut found = Vec::new();
    for name in CRATES {
        let sources = sources(&format!("{name}/src")).unwrap();
        for circle in Imports::read(&format!("{name}/src/"), &sources).circles() {
            if circle.len() > MAX_CIRCLE {
                found.push(format!("{} files: {}", circle.len(), circle.join(", ")));
            }
        }
    }
    fail_if_any("files do not take names from each other in circles", found);
}

/// Names that the core must not use: the process around it hands it time, randomness, files and
/// threads.
const NOT_IN_CORE: [&str; 12] = [
    "std::fs",
    "std::net",
    "std::thread",
    "std::process",
    "std::env",
    "std::time::Instant",
    "std::time::SystemTime",
    "Instant::now",
    "SystemTime::now",
    "fastrand",
    "tokio",
    "SystemRandom",
];

#[test]
fn the_core_has_no_clock_no_files_and_no_randomness() {
    let mut found = Vec::new();
    for source in sources("core/src").unwrap().iter().filter(|source| !source.is_test()) {
        let code = source.code();
        for banned in NOT_IN_CORE.iter().filter(|banned| code.contains(**banned)) {
            found.push(format!("{}: {banned}", source.path));
        }
    }
    fail_if_any("the core is a state machine", found);
}

#[test]
fn lines_are_short() {
    let mut found = Vec::new();
    for directory in CRATES.iter().chain(&["sim", "lab", "e2e", "tidy", "fuzz", "bench"]) {
        let mut long = Vec::new();
        for source in sources(directory).unwrap() {
            for (at, line) in source.text.lines().enumerate() {
                if line.chars().count() > MAX_LINE {
                    long.push(format!("{}:{}", source.path, at + 1));
                }
            }
        }
        let most = LONGER_LINES.iter().find(|(name, _)| name == directory).map_or(0, |(_, n)| *n);
        if long.len() > most {
            found.append(&mut long);
        }
    }
    fail_if_any("lines have at most 100 characters", found);
}

/// Longer files, and why.
const LONG_FILES: [(&str, &str); 1] =
    [("core/src/host/tests/world.rs", "the world of all tests of a host's volume")];

#[test]
fn files_are_short() {
    let long = all().into_iter().filter(|source| source.text.lines().count() > MAX_FILE);
    let long = long
        .map(|source| source.path)
        .filter(|path| LONG_FILES.iter().all(|(file, _)| file != path));
    fail_if_any("files have at most 800 lines", long.collect());
}

/// Structs that may have more fields, how many, and why.
const MANY_FIELDS: [(&str, usize, &str); 2] = [
    ("Counters", 24, "a list of numbers that are shown"),
    ("Status", 31, "a list of numbers that are shown"),
];

#[test]
fn no_struct_owns_too_much() {
    let mut found = Vec::new();
    for source in all().iter().filter(|source| !source.is_test()) {
        for one in structs(source) {
            let most = MANY_FIELDS.iter().find(|(name, ..)| *name == one.name);
            if one.fields > most.map_or(MAX_FIELDS, |(_, most, _)| *most) {
                found.push(format!("{}: {} has {} fields", source.path, one.name, one.fields));
            }
        }
    }
    fail_if_any("a struct has at most 20 fields", found);
}

/// Parts of crates that have their own words: in iSCSI and in NBD a session is a session.
const DIALECTS: [&str; 6] = ["iscsi", "nbd", "scsi", "host", "store", "link"];

/// Pairs of modules in one room with a public type of one name. They only get fewer.
const SAME_NAMES: usize = 20;

#[test]
fn public_types_have_names_of_their_own() {
    let mut seen: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for source in all().iter().filter(|source| !source.is_test()) {
        let mut parts = source.path.split('/');
        let mut room = parts.next().unwrap_or_default().to_owned();
        for part in parts.filter(|part| DIALECTS.contains(part)) {
            room = format!("{room}/{part}");
        }
        for public in public_types(source) {
            seen.entry((room.clone(), public)).or_default().push(source.path.clone());
        }
    }
    let several = seen.iter().filter(|(_, files)| files.len() > 1);
    let found: Vec<String> = several
        .map(|((room, public), files)| format!("{room}: {public} is in {}", files.join(", ")))
        .collect();
    if found.len() > SAME_NAMES {
        fail_if_any("no two modules of a room have a public type of one name", found);
    }
}
