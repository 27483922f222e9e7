//! The moves of the segments that a clone has from its parents: the second map of each parent, by
//! its newest root.
//!
//! A parent keeps the root of every snapshot that has clones. So its collector keeps all data that
//! a clone needs, in some place. A clone asks for the place only when it finds a segment or a
//! bundle of a parent missing.

use super::super::facts::Facts;
use super::super::outputs::Outputs;
use super::super::purpose::ObjectPurpose;
use super::super::roots;
use crate::store::ancestor::Ancestor;
use crate::store::catalog::{self, RootName};
use crate::store::object::ObjectMeta;
use bytes::Bytes;

/// The second maps of a clone's parents, the nearest first.
pub(super) struct AncestorMaps {
    ancestors: Vec<Ancestor>,
}

/// How the reading of the newest roots goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AncestorsRead {
    Reading,
    All,
}

impl AncestorMaps {
    pub fn new(facts: &Facts) -> AncestorMaps {
        AncestorMaps { ancestors: Ancestor::all(facts.config(), facts.spec()) }
    }

    pub fn all(&self) -> &[Ancestor] {
        &self.ancestors
    }

    /// Reads the newest root of each, from that one on.
    pub fn look_at(&self, out: &mut Outputs, which: usize) -> AncestorsRead {
        let Some(ancestor) = self.ancestors.get(which) else { return AncestorsRead::All };
        out.list(ObjectPurpose::ListAncestor(which), catalog::root_prefix(ancestor.id()));
        AncestorsRead::Reading
    }

    pub fn listed(&self, out: &mut Outputs, which: usize, list: &[ObjectMeta]) -> AncestorsRead {
        let Some(ancestor) = self.ancestors.get(which) else { return AncestorsRead::Reading };
        let prefix = catalog::root_prefix(ancestor.id());
        let names = list.iter().filter_map(|meta| catalog::parse_root_key(&prefix, &meta.key));
        let newer = names.filter(|name| Some(*name) > ancestor.newest());
        let mut newer: Vec<RootName> = newer.collect();
        newer.sort_unstable();
        self.read_newest(out, which, newer)
    }

    /// Reads the newest of these roots.
    fn read_newest(
        &self,
        out: &mut Outputs,
        which: usize,
        mut names: Vec<RootName>,
    ) -> AncestorsRead {
        let (Some(ancestor), Some(name)) = (self.ancestors.get(which), names.pop()) else {
            return self.look_at(out, which + 1);
        };
        let key = catalog::root_key(ancestor.id(), name);
        out.read(ObjectPurpose::ReadAncestor(which, name, names), key);
        AncestorsRead::Reading
    }

    /// Takes the result of reading a root; if it is damaged, the engine reads the next of `older`.
    pub fn handle_root(
        &mut self,
        facts: &Facts,
        out: &mut Outputs,
        (which, name): (usize, RootName),
        older: Vec<RootName>,
        data: Option<&Bytes>,
    ) -> AncestorsRead {
        // The store that deleted it had written newer ones.
        let Some(data) = data else { return self.look_at(out, which) };
        let Some(ancestor) = self.ancestors.get_mut(which) else { return AncestorsRead::Reading };
        let Some(root) = roots::parse(out, ancestor.spec(), 1, name, data) else {
            return self.read_newest(out, which, older);
        };
        ancestor.adopt(name, root.moved.levels, &mut facts.pages());
        self.look_at(out, which + 1)
    }
}
