//! The objects that a volume's map consists of: roots and fragments.

use super::report::{Damage, Report, read};
use super::stored::Stored;
use anyhow::Result;
use longhaul_base::units::show_bytes;
use longhaul_core::store::catalog::{self, RootName, VolumeSpec};
use longhaul_core::store::check::{LogCheck, Need, RootCheck};
use longhaul_core::store::gc::bundle;
use longhaul_core::store::map::fragment::Fragment;
use std::collections::{BTreeMap, BTreeSet};

/// The parts of a map, and how far the check has got.
pub(super) struct MapCheck<'a> {
    objects: &'a dyn Stored,
    spec: &'a VolumeSpec,
    /// Roots, and whether the check has looked at them.
    pub(super) roots: BTreeMap<RootName, bool>,
    /// Fragments by key, with their bytes.
    fragments: BTreeMap<String, u64>,
    /// Segments and staged objects, by key.
    data: BTreeSet<String>,
    /// The log from a root on whose segments may be gone.
    base: Option<LogCheck>,
    named: BTreeSet<String>,
    damaged: BTreeSet<String>,
    /// Roots of snapshots that the check has looked at, with their fragments.
    pins: BTreeSet<RootName>,
    pinned: BTreeSet<String>,
    /// Verified bundles; `None` for damaged ones.
    bundles: BTreeMap<String, Option<bundle::Index>>,
    /// Segments may be gone that no root needs.
    collected: bool,
}

impl<'a> MapCheck<'a> {
    /// Finds the objects.
    pub(super) fn list(objects: &'a dyn Stored, spec: &'a VolumeSpec) -> Result<MapCheck<'a>> {
        let prefix = catalog::root_prefix(spec.id);
        let roots = objects.list(&prefix)?;
        let roots = roots.iter().filter_map(|meta| catalog::parse_root_key(&prefix, &meta.key));
        let fragments = objects.list(&catalog::fragment_prefix(spec.id))?.into_iter();
        let mut data = BTreeSet::new();
        for prefix in [catalog::segment_prefix(spec.id), catalog::staged_prefix(spec.id)] {
            data.extend(objects.list(&prefix)?.into_iter().map(|meta| meta.key));
        }
        let roots: Vec<RootName> = roots.collect();
        let collected = roots.iter().any(|name| {
            let bytes = read(objects, &catalog::root_key(spec.id, *name));
            let root = bytes.ok().and_then(|bytes| RootCheck::new(spec, *name, &bytes).ok());
            root.is_some_and(|root| root.has_collected())
        });
        Ok(MapCheck {
            collected,
            pins: BTreeSet::new(),
            pinned: BTreeSet::new(),
            bundles: BTreeMap::new(),
            objects,
            spec,
            roots: roots.into_iter().map(|name| (name, false)).collect(),
            fragments: fragments.map(|meta| (meta.key, meta.bytes)).collect(),
            data,
            base: None,
            named: BTreeSet::new(),
            damaged: BTreeSet::new(),
        })
    }

    /// Verifies the roots of the segment that the log has come to, with their fragments. If the log
    /// is sound so far, also checks that they agree with it.
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
        // The store keeps the newest two. Older ones may be left over, and also those of a store
        // that another one overtook. Such roots name deleted objects.
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
        for fragment in root.moved_fragments() {
            let key = catalog::fragment_key(fragment.id);
            self.named.insert(key.clone());
            let object = read(self.objects, &key).map_err(|error| error.to_string());
            let checked = object.and_then(|object| {
                root.handle_moved(&fragment, &object).map_err(|error| error.to_string())
            });
            if let Err(problem) = checked {
                whole = false;
                if self.damaged.insert(key.clone()) {
                    let problem = format!(
                        "{problem}; data moved out of segments {} may be unreadable",
                        fragment.span
                    );
                    self.damage(&key, problem, FRAGMENT_ADVICE, report);
                }
            }
        }
        if whole && kept {
            if root.has_collected() {
                self.check_needs(root.needs(), report);
            }
            self.check_pins(&root, report);
        }
        if whole && kept && root.has_collected() && log.is_none() {
            self.base.get_or_insert_with(|| LogCheck::after(&root));
        }
        if let Some(log) = log.filter(|_| whole)
            && let Err(problem) = root.compare(log)
        {
            self.damage(&key, problem, ROOT_ADVICE, report);
        }
    }

    /// The roots of the snapshots that a root names, and whether what these need is there: what has
    /// moved that root says.
    fn check_pins(&mut self, root: &RootCheck, report: &mut Report) {
        for name in root.pins() {
            if !self.pins.insert(name) {
                continue;
            }
            let key = catalog::pin_key(self.spec.id, name);
            let bytes = read(self.objects, &key).map_err(|error| error.to_string());
            let pin = bytes.and_then(|bytes| {
                RootCheck::new(self.spec, name, &bytes).map_err(|error| error.to_string())
            });
            match pin {
                Ok(pin) => {
                    for fragment in pin.fragments() {
                        self.check_pinned(root, &fragment, report);
                    }
                }
                Err(problem) => self.damage(&key, problem, PIN_ADVICE, report),
            }
        }
    }

    fn check_pinned(&mut self, root: &RootCheck, fragment: &Fragment, report: &mut Report) {
        let key = catalog::fragment_key(fragment.id);
        if !self.pinned.insert(key.clone()) {
            return;
        }
        self.named.insert(key.clone());
        let object = read(self.objects, &key).map_err(|error| error.to_string());
        let needs = object
            .and_then(|object| root.needs_of(fragment, &object).map_err(|error| error.to_string()));
        match needs {
            Ok(needs) if root.has_collected() => self.check_needs(needs, report),
            Ok(_) => {}
            Err(problem) => {
                if self.damaged.insert(key.clone()) {
                    let problem =
                        format!("{problem}; {} of snapshots may not be readable", fragment.span);
                    self.damage(&key, problem, PIN_ADVICE, report);
                }
            }
        }
    }

    /// Checks that the objects that a root needs exist. Verifies the bundles among them. The check
    /// of segments verifies those.
    fn check_needs(&mut self, needs: BTreeMap<String, Need>, report: &mut Report) {
        for (key, Need { bundle, runs }) in needs {
            let Some(bundle) = bundle else {
                if !self.data.contains(&key) && self.damaged.insert(key.clone()) {
                    let lost = runs.iter().map(|(range, _)| range.to_string()).collect::<Vec<_>>();
                    let problem = format!("it is missing; {} cannot be read", lost.join(", "));
                    self.damage(&key, problem, DATA_ADVICE, report);
                }
                continue;
            };
            if !self.bundles.contains_key(&key) {
                let object = read(self.objects, &key).map_err(|error| error.to_string());
                let index = object.and_then(|object| {
                    bundle::verify(bundle.id, &object).map_err(|(problem, _)| problem)?;
                    bundle.index(&object).map_err(|error| error.to_string())
                });
                if let Err(problem) = &index {
                    self.damaged.insert(key.clone());
                    self.damage(&key, problem.clone(), DATA_ADVICE, report);
                }
                self.bundles.insert(key.clone(), index.ok());
            }
            let Some(Some(index)) = self.bundles.get(&key) else { continue };
            let lost =
                runs.iter().find(|(range, place)| index.find(*place, range.sectors).is_none());
            if let Some((range, _)) = lost
                && self.damaged.insert(key.clone())
            {
                self.damage(&key, format!("it does not have {range}"), DATA_ADVICE, report);
            }
        }
    }

    /// The log of a volume up to the segment that took a snapshot, by the root of that, if segments
    /// before it may be gone.
    pub(super) fn log_of_snapshot(self, segment: u64) -> Option<LogCheck> {
        let newest = *self.roots.last_key_value().filter(|_| self.collected)?.0;
        let bytes = read(self.objects, &catalog::root_key(self.spec.id, newest)).ok()?;
        let root = RootCheck::new(self.spec, newest, &bytes).ok()?;
        let name = root.pins().find(|name| name.segment == segment)?;
        let bytes = read(self.objects, &catalog::pin_key(self.spec.id, name)).ok()?;
        let mut pin = RootCheck::new(self.spec, name, &bytes).ok()?;
        for fragment in pin.fragments() {
            let object = read(self.objects, &catalog::fragment_key(fragment.id)).ok()?;
            pin.handle_fragment(&fragment, &object).ok()?;
        }
        Some(LogCheck::after(&pin))
    }

    /// Looks at the kept roots if segments of them may be gone. Returns the segment after which the
    /// log has to be followed, and the log there.
    pub(super) fn base(&mut self, report: &mut Report) -> Option<(u64, LogCheck)> {
        let newest = *self.roots.last_key_value()?.0;
        let kept: Vec<RootName> = self.roots.keys().rev().take(2).copied().collect();
        let kept = kept.into_iter().rev().filter(|name| name.generation == newest.generation);
        for name in kept {
            let key = catalog::root_key(self.spec.id, name);
            let bytes = read(self.objects, &key).ok();
            let root = bytes.and_then(|bytes| RootCheck::new(self.spec, name, &bytes).ok());
            if !root.is_some_and(|root| root.has_collected()) {
                continue;
            }
            self.roots.insert(name, true);
            self.check_root(name, None, report);
            if let Some(log) = self.base.take() {
                return Some((name.segment, log));
            }
        }
        None
    }

    fn damage(&self, key: &str, problem: String, advice: &str, report: &mut Report) {
        // Without all segments, a root is the only source, so the advice is different.
        let advice = match advice {
            ROOT_ADVICE | FRAGMENT_ADVICE if self.collected => COLLECTED_ADVICE,
            advice => advice,
        };
        let (file, advice) = (self.objects.place(key), advice.to_owned());
        report.damage.push(Damage { file, offset: None, problem, advice });
    }

    /// Verifies the remaining roots. Returns a summary.
    pub(super) fn finish(mut self, report: &mut Report) -> String {
        let left = self.roots.iter().filter(|(_, done)| !**done);
        for name in left.map(|(name, _)| *name).collect::<Vec<_>>() {
            self.check_root(name, None, report);
        }
        let unused = self.fragments.iter().filter(|(key, _)| !self.named.contains(*key));
        let unused: Vec<u64> = unused.map(|(_, bytes)| *bytes).collect();
        if !unused.is_empty() {
            report.notes.push(format!(
                "volume {}: {} fragments of its map ({}) belong to no root: replaced lately, or \
                 left over from unfinished work; the next store that opens the volume deletes them",
                self.spec.name,
                unused.len(),
                show_bytes(unused.iter().sum())
            ));
        }
        format!("{} roots, {} fragments", self.roots.len(), self.named.len())
    }
}

const ROOT_ADVICE: &str = "delete it: the store then reads an older one, or the segments";

const COLLECTED_ADVICE: &str =
    "restore it from a copy; do not delete it: segments that it stands for have been collected";

const PIN_ADVICE: &str = "restore it from a copy, or delete the snapshots that cannot be read";

const DATA_ADVICE: &str = "restore it from a copy: without it the listed data is lost";

const FRAGMENT_ADVICE: &str = "restore it from a copy; or delete all of the volume's objects below \
                               root/: the store then reads all segments";
