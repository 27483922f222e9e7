//! What has moved of the segments that a clone has from its parents: the second map of each says it, of its newest root.
//!
//! A parent keeps the root of every snapshot that there are clones of, so its collector leaves all that a clone needs of it,
//! somewhere. Where, a clone asks when it finds a segment or a bundle of a parent's gone, and not before.

use super::super::catalog::RootName;
use super::super::map::Tree;
use super::super::map::levels::Levels;
use super::super::map::table::Table;
use super::super::moves::Maps;
use super::super::object::{Copies, ObjectMeta, ObjectOperation};
use super::super::{Config, Event, VolumeSpec, catalog, root};
use super::collect::Collect;
use super::upkeep::Step;
use super::{Purpose, Volume};
use crate::block::VolumeId;
use bytes::Bytes;

/// A volume that a clone goes back to.
pub(in super::super) struct Ancestor {
    spec: VolumeSpec,
    /// The root that was read.
    newest: Option<RootName>,
    /// What it says has moved.
    moved: Tree,
}

/// The maps of a volume.
pub(super) fn maps<'a>(
    spec: &'a VolumeSpec,
    tree: &'a Tree,
    collect: &'a Collect,
    ancestors: &'a [Ancestor],
) -> Maps<'a> {
    Maps { spec, tree, moved: &collect.moved, ancestors }
}

impl Ancestor {
    /// Those of a volume, the nearest first.
    pub fn all(config: &Config, spec: &VolumeSpec) -> Vec<Ancestor> {
        let ancestor = |(n, parent): (usize, &crate::wire::link::Parent)| Ancestor {
            spec: VolumeSpec {
                id: parent.volume,
                created_sectors: 0,
                parents: spec.parents[n + 1..].to_vec(),
                ..spec.clone()
            },
            newest: None,
            moved: Tree::new(config.map, parent.volume, 0, Levels::default()),
        };
        spec.parents.iter().enumerate().map(ancestor).collect()
    }

    pub fn id(&self) -> VolumeId {
        self.spec.id
    }

    /// What has moved of it, as far as that is known.
    pub fn moved(&self) -> &Tree {
        &self.moved
    }
}

impl Volume {
    /// Reads the newest root of each, and then looks for roots of the volume itself.
    pub(super) fn look_at_ancestors(&mut self) {
        self.look_at_ancestor(0);
    }

    fn look_at_ancestor(&mut self, which: usize) {
        let Some(ancestor) = self.ancestors.get(which) else { return self.list_roots() };
        let prefix = catalog::root_prefix(ancestor.spec.id);
        self.book.issue(Purpose::ListAncestor(which), ObjectOperation::List { prefix });
    }

    pub(super) fn ancestor_listed(&mut self, which: usize, list: &[ObjectMeta]) {
        let Some(ancestor) = self.ancestors.get(which) else { return };
        let prefix = catalog::root_prefix(ancestor.spec.id);
        let names = list.iter().filter_map(|meta| catalog::parse_root_key(&prefix, &meta.key));
        let newer = names.filter(|name| Some(*name) > ancestor.newest);
        let mut newer: Vec<RootName> = newer.collect();
        newer.sort_unstable();
        self.read_ancestor(which, newer);
    }

    /// Reads the newest of these roots.
    fn read_ancestor(&mut self, which: usize, mut names: Vec<RootName>) {
        // What was begun has come to nothing.
        if !matches!(self.upkeep.step, Step::Roots { .. }) {
            return;
        }
        let (Some(ancestor), Some(name)) = (self.ancestors.get(which), names.pop()) else {
            return self.look_at_ancestor(which + 1);
        };
        let key = catalog::root_key(ancestor.spec.id, name);
        self.book.issue(
            Purpose::ReadAncestor(which, name, names),
            ObjectOperation::Get { key, range: None, copies: Copies::Refused },
        );
    }

    pub(super) fn ancestor_read(
        &mut self,
        which: usize,
        name: RootName,
        older: Vec<RootName>,
        data: Option<&Bytes>,
    ) {
        // Whoever deleted it had written newer ones.
        let Some(data) = data else { return self.look_at_ancestor(which) };
        let Some(ancestor) = self.ancestors.get_mut(which) else { return };
        let parsed = root::parse(&ancestor.spec, data, 1).map_err(|error| error.to_string());
        let parsed = parsed.and_then(|root| {
            let said = (root.generation, root.state.number);
            let same = said == (name.generation, name.segment);
            if same { Ok(root) } else { Err("it is not the one of its name".to_owned()) }
        });
        match parsed {
            Ok(root) => {
                let pages = &mut *self.config.pages.lock();
                ancestor.moved.adopt(root.moved.levels, 0, pages);
                ancestor.moved.load(Table::new(), pages);
                ancestor.newest = Some(name);
            }
            Err(reason) => {
                let key = catalog::root_key(ancestor.spec.id, name);
                self.event(Event::RootDamaged { key, reason });
                return self.read_ancestor(which, older);
            }
        }
        self.look_at_ancestor(which + 1);
    }
}
