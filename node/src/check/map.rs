//! The objects that a volume's map consists of: roots and fragments.

use super::stored::Stored;
use super::{Damage, Report, read};
use crate::units::show_bytes;
use anyhow::Result;
use longhaul_core::store::catalog::{self, RootName, VolumeSpec};
use longhaul_core::store::check::{LogCheck, RootCheck};
use std::collections::{BTreeMap, BTreeSet};

/// What there is of a map, and how far it has been looked at.
pub(super) struct MapCheck<'a> {
    objects: &'a dyn Stored,
    spec: &'a VolumeSpec,
    /// Roots, and whether they have been looked at.
    pub(super) roots: BTreeMap<RootName, bool>,
    /// Fragments by key, with their bytes.
    fragments: BTreeMap<String, u64>,
    named: BTreeSet<String>,
    damaged: BTreeSet<String>,
}

impl<'a> MapCheck<'a> {
    /// Finds the objects.
    pub(super) fn list(objects: &'a dyn Stored, spec: &'a VolumeSpec) -> Result<MapCheck<'a>> {
        let prefix = catalog::root_prefix(spec.id);
        let roots = objects.list(&prefix)?;
        let roots = roots.iter().filter_map(|meta| catalog::parse_root_key(&prefix, &meta.key));
        let fragments = objects.list(&catalog::fragment_prefix(spec.id))?.into_iter();
        Ok(MapCheck {
            objects,
            spec,
            roots: roots.map(|name| (name, false)).collect(),
            fragments: fragments.map(|meta| (meta.key, meta.bytes)).collect(),
            named: BTreeSet::new(),
            damaged: BTreeSet::new(),
        })
    }

    /// Verifies the roots of the segment that the log has come to, with their fragments; and that they are
    /// what the log says, if that is sound so far.
    pub(super) fn check_roots_of(
        &mut self,
        segment: u64,
        log: Option<&LogCheck>,
        report: &mut Report,
    ) {
        let names = self.roots.iter().filter(|(name, done)| name.segment == segment && !**done);
        for name in names.map(|(name, _)| *name).collect::<Vec<_>>() {
            self.roots.insert(name, true);
            self.check_root(name, log, report);
        }
    }

    fn check_root(&mut self, name: RootName, log: Option<&LogCheck>, report: &mut Report) {
        let key = catalog::root_key(self.spec.id, name);
        let bytes = read(self.objects, &key).map_err(|error| error.to_string());
        let root = bytes.and_then(|bytes| {
            RootCheck::new(self.spec, name, &bytes).map_err(|error| error.to_string())
        });
        let mut root = match root {
            Ok(root) => root,
            Err(problem) => return self.damage(&key, problem, ROOT_ADVICE, report),
        };
        // The newest two are kept. Older ones, and one of a store that was overtaken, may be left over, and
        // name what has been deleted.
        let newest = self.roots.last_key_value().map_or(0, |(newest, _)| newest.generation);
        let kept = name.generation == newest && self.roots.range(name..).count() <= 2;
        let fragments = root.fragments();
        let mut whole = true;
        for fragment in &fragments {
            let key = catalog::fragment_key(fragment.id);
            self.named.insert(key.clone());
            if !self.fragments.contains_key(&key) && !kept {
                return;
            }
            let object = read(self.objects, &key).map_err(|error| error.to_string());
            let checked = object.and_then(|object| {
                root.handle_fragment(fragment, &object).map_err(|error| error.to_string())
            });
            if let Err(problem) = checked {
                whole = false;
                if self.damaged.insert(key.clone()) {
                    let problem =
                        format!("{problem}; {} of the volume may not be readable", fragment.span);
                    self.damage(&key, problem, FRAGMENT_ADVICE, report);
                }
            }
        }
        if let Some(log) = log.filter(|_| whole)
            && let Err(problem) = root.compare(log)
        {
            self.damage(&key, problem, ROOT_ADVICE, report);
        }
    }

    fn damage(&self, key: &str, problem: String, advice: &str, report: &mut Report) {
        let (file, advice) = (self.objects.place(key), advice.to_owned());
        report.damage.push(Damage { file, offset: None, problem, advice });
    }

    /// Verifies what has not been, and says what was found.
    pub(super) fn finish(mut self, report: &mut Report) -> String {
        let left = self.roots.iter().filter(|(_, done)| !**done);
        for name in left.map(|(name, _)| *name).collect::<Vec<_>>() {
            self.check_root(name, None, report);
        }
        let unused = self.fragments.iter().filter(|(key, _)| !self.named.contains(*key));
        let unused: Vec<u64> = unused.map(|(_, bytes)| *bytes).collect();
        if !unused.is_empty() {
            report.notes.push(format!(
                "volume {}: {} fragments of its map ({}) belong to no root: replaced lately, or of work that was cut \
                 short; a store that goes on with the volume deletes them",
                self.spec.name,
                unused.len(),
                show_bytes(unused.iter().sum())
            ));
        }
        format!("{} roots, {} fragments", self.roots.len(), self.named.len())
    }
}

const ROOT_ADVICE: &str = "delete it: the store then reads an older one, or the segments";

const FRAGMENT_ADVICE: &str = "restore it from a copy; or delete all of the volume's objects below root/: the store \
                               then reads all segments";
