//! Finds the names that each file takes from other files.

use crate::source::Source;
use std::collections::{BTreeMap, BTreeSet};

/// The files of one crate as modules, and what each takes from the others.
#[derive(Debug, Default)]
pub struct Imports {
    /// The file of each module, by the module's path without `crate`.
    files: BTreeMap<Vec<String>, String>,
    /// The meaning of each module's names, if they come from another module.
    aliases: BTreeMap<Vec<String>, BTreeMap<String, Vec<String>>>,
    /// Names in each module that it has from other crates.
    foreign: BTreeMap<Vec<String>, BTreeSet<String>>,
    /// From file to file.
    arrows: BTreeMap<String, BTreeSet<String>>,
    /// The paths in the first file that name something in the second.
    names: BTreeMap<(String, String), BTreeSet<String>>,
}

impl Imports {
    /// Reads the files of a crate, whose sources are below `root`, as `core/src/`.
    #[must_use]
    pub fn read(root: &str, sources: &[Source]) -> Imports {
        let mut imports = Imports::default();
        let read: Vec<_> = sources.iter().filter(|source| !source.is_test()).collect();
        for source in &read {
            if let Some(module) = module_of(root, &source.path) {
                imports.files.insert(module, source.path.clone());
            }
        }
        let mut uses = BTreeMap::new();
        for source in &read {
            let Some(module) = module_of(root, &source.path) else { continue };
            uses.insert(module.clone(), paths(&source.code(), &imports.children(&module)));
        }
        for (module, (_, used, foreign)) in &uses {
            imports.foreign.insert(module.clone(), foreign.clone());
            let names = used
                .iter()
                .filter_map(|path| Some((path.last()?.clone(), absolute(module, path)?)));
            imports.aliases.insert(module.clone(), names.collect());
        }
        for (module, (all, ..)) in &uses {
            let Some(file) = imports.files.get(module).cloned() else { continue };
            let mut targets = BTreeSet::new();
            for path in all.iter().filter_map(|path| absolute(module, path)) {
                let Some(target) = imports.file_of(&path, 8) else { continue };
                if target != file {
                    targets.insert(target.clone());
                    let names = imports.names.entry((file.clone(), target)).or_default();
                    names.insert(path.join("::"));
                }
            }
            imports.arrows.insert(file, targets);
        }
        imports
    }

    fn children(&self, module: &[String]) -> BTreeSet<String> {
        let below = self
            .files
            .keys()
            .filter(|other| other.len() == module.len() + 1 && other.starts_with(module));
        below.filter_map(|other| other.last().cloned()).collect()
    }

    /// The file that defines what a path names.
    fn file_of(&self, path: &[String], depth: u32) -> Option<String> {
        let known = (0..=path.len()).rev().find(|n| self.files.contains_key(&path[..*n]))?;
        let module = &path[..known];
        if let Some(name) = path.get(known)
            && self.foreign.get(module).is_some_and(|names| names.contains(name))
        {
            return None;
        }
        if let (Some(name), true) = (path.get(known), depth > 0)
            && let Some(target) = self.aliases.get(module).and_then(|names| names.get(name))
            && target != path
        {
            let mut target = target.clone();
            target.extend(path[known + 1..].iter().cloned());
            return self.file_of(&target, depth - 1);
        }
        self.files.get(module).cloned()
    }

    /// From each file to those that it takes names from.
    #[must_use]
    pub fn arrows(&self) -> &BTreeMap<String, BTreeSet<String>> {
        &self.arrows
    }

    /// The names that the first file takes from the second, as paths from the crate's root on.
    pub fn names(&self, from: &str, to: &str) -> impl Iterator<Item = &str> {
        let names = self.names.get(&(from.to_owned(), to.to_owned()));
        names.into_iter().flatten().map(String::as_str)
    }

    /// Files that take names from each other, directly or by way of others.
    /// Each circle is in order of path.
    #[must_use]
    pub fn circles(&self) -> Vec<Vec<String>> {
        let reach: BTreeMap<&String, BTreeSet<&String>> =
            self.arrows.keys().map(|file| (file, self.reach(file))).collect();
        let mut seen = BTreeSet::new();
        let mut found = Vec::new();
        for file in self.arrows.keys() {
            if seen.contains(file) {
                continue;
            }
            let returns =
                |other: &&&String| reach.get(**other).is_some_and(|all| all.contains(file));
            let circle: Vec<String> =
                reach[file].iter().filter(returns).map(|file| (*file).clone()).collect();
            seen.extend(circle.iter().cloned());
            if circle.len() > 1 {
                found.push(circle);
            }
        }
        found
    }

    fn reach(&self, file: &String) -> BTreeSet<&String> {
        let mut all = BTreeSet::new();
        let mut left: Vec<&String> = self.arrows[file].iter().collect();
        while let Some(next) = left.pop() {
            if all.insert(next) {
                left.extend(self.arrows.get(next).into_iter().flatten());
            }
        }
        all
    }
}

/// The path of the module in a file, without `crate`.
fn module_of(root: &str, path: &str) -> Option<Vec<String>> {
    let inside = path.strip_prefix(root)?.strip_suffix(".rs")?;
    let mut parts: Vec<String> = inside.split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|last| matches!(last.as_str(), "mod" | "lib" | "main")) {
        parts.pop();
    }
    Some(parts)
}

/// A path as seen from a module, from the crate's root on.
fn absolute(module: &[String], path: &[String]) -> Option<Vec<String>> {
    let mut at = module.to_vec();
    let mut rest = path;
    match rest.first()?.as_str() {
        "crate" => {
            at.clear();
            rest = &rest[1..];
        }
        "self" => rest = &rest[1..],
        _ => {}
    }
    while rest.first().is_some_and(|first| first == "super") {
        at.pop()?;
        rest = &rest[1..];
    }
    at.extend(rest.iter().cloned());
    Some(at)
}

type Path = Vec<String>;

/// All paths in code that begin with `crate`, `super`, `self` or a child module. In addition, those
/// of them that `use` brings in, and the names that it brings in from other crates.
fn paths(code: &str, children: &BTreeSet<String>) -> (Vec<Path>, Vec<Path>, BTreeSet<String>) {
    let relative =
        |first: &str| matches!(first, "crate" | "super" | "self") || children.contains(first);
    let mut used = Vec::new();
    let mut outside = String::new();
    for statement in code.split_inclusive(';') {
        match use_of(statement) {
            Some((before, tree)) => {
                outside.push_str(before);
                expand(&[], tree, &mut used);
            }
            None => outside.push_str(statement),
        }
    }
    let is_own = |path: &Path| path.first().is_some_and(|first| relative(first));
    let foreign = used.iter().filter(|path| !is_own(path)).filter_map(|path| path.last().cloned());
    let foreign = foreign.collect();
    used.retain(is_own);
    let mut all = used.clone();
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut last_end = 0;
    for (at, _) in outside.match_indices("::") {
        if at < last_end {
            continue;
        }
        let begin = outside[..at].rfind(|c: char| !is_name(c)).map_or(0, |at| at + 1);
        let end =
            outside[at..].find(|c: char| !is_name(c) && c != ':').map_or(outside.len(), |n| at + n);
        last_end = end;
        let path: Path = outside[begin..end].split("::").map(str::to_owned).collect();
        if path.first().is_some_and(|first| relative(first)) && !outside[..begin].ends_with("::") {
            all.push(path);
        }
    }
    (all, used, foreign)
}

/// The tree of a `use` that ends a statement, and what comes before it.
fn use_of(statement: &str) -> Option<(&str, &str)> {
    let at = statement.rfind("use ")?;
    let before = &statement[..at];
    let begins = before.is_empty() || before.ends_with(['\n', ' ', '}', ')', ']']);
    let tree = statement[at + 4..].trim_end_matches(';');
    let whole = !tree.contains(['(', '=', '<', '&']) && !tree.contains(" for ");
    (begins && whole).then_some((before, tree))
}

/// The paths of a tree, as `{a::B, c::{D, E as F}}`.
fn expand(prefix: &[String], tree: &str, into: &mut Vec<Path>) {
    let tree = tree.trim();
    if let Some(open) = tree.find('{') {
        let mut prefix = prefix.to_vec();
        let head = tree[..open].trim().trim_end_matches("::");
        prefix
            .extend(head.split("::").filter(|part| !part.is_empty()).map(|p| p.trim().to_owned()));
        let inside = tree[open + 1..].trim_end().trim_end_matches('}');
        let mut depth = 0;
        let mut begin = 0;
        for (at, c) in inside.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    expand(&prefix, &inside[begin..at], into);
                    begin = at + 1;
                }
                _ => {}
            }
        }
        expand(&prefix, &inside[begin..], into);
    } else if !tree.is_empty() {
        let tree = tree.split(" as ").next().unwrap_or(tree).trim();
        let mut path = prefix.to_vec();
        path.extend(tree.split("::").map(|part| part.trim().to_owned()));
        if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
            path.pop();
        }
        into.push(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crate_of(files: &[(&str, &str)]) -> Imports {
        let files = files.iter();
        let files = files.map(|(path, text)| Source { path: (*path).into(), text: (*text).into() });
        Imports::read("x/src/", &files.collect::<Vec<_>>())
    }

    #[test]
    fn circles_are_seen_through_nested_imports_and_names_passed_on() {
        let imports = crate_of(&[
            ("x/src/lib.rs", "mod a;\nmod b;\nmod c;\n"),
            ("x/src/a/mod.rs", "mod part;\npub use part::Part;\nuse crate::{b::{B, Other}, c};\n"),
            ("x/src/a/part.rs", "pub struct Part;\n"),
            ("x/src/b.rs", "fn f() { crate::a::make(); }\npub struct B;\n"),
            ("x/src/c.rs", "use super::a::Part;\n// use crate::b::B;\n"),
        ]);
        let from_c = &imports.arrows()["x/src/c.rs"];
        assert_eq!(from_c.iter().collect::<Vec<_>>(), ["x/src/a/part.rs"]);
        assert_eq!(imports.circles(), [["x/src/a/mod.rs", "x/src/b.rs"]]);
    }

    #[test]
    fn what_comes_from_another_crate_ties_nothing() {
        let imports = crate_of(&[
            ("x/src/lib.rs", "mod a;\npub use core::fmt::{Debug, Error};\npub use a::A;\n"),
            ("x/src/a.rs", "use super::{Debug, Error};\npub struct A;\n"),
        ]);
        assert!(imports.circles().is_empty());
    }

    #[test]
    fn what_is_for_tests_does_not_count() {
        let imports = crate_of(&[
            ("x/src/a.rs", "pub fn f() {}\n#[cfg(test)]\nmod tests {\n use crate::b;\n}\n"),
            ("x/src/b.rs", "use crate::a::f;\n"),
        ]);
        assert!(imports.circles().is_empty());
    }
}
