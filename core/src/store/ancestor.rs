//! A volume that a clone goes back to, and what has moved of it.

use super::VolumeSpec;
use super::catalog::RootName;
use super::config::Config;
use super::map::Tree;
use super::map::levels::Levels;
use super::map::pages::Pages;
use super::map::table::Table;
use crate::block::VolumeId;
use crate::wire::link::Parent;

/// A parent of a clone, or a parent of one.
pub(super) struct Ancestor {
    spec: VolumeSpec,
    /// The root that the volume has read.
    newest: Option<RootName>,
    /// The segments that have moved, as the root says.
    moved: Tree,
}

impl Ancestor {
    /// Those of a volume, the nearest first.
    pub fn all(config: &Config, spec: &VolumeSpec) -> Vec<Ancestor> {
        let ancestor = |(n, parent): (usize, &Parent)| Ancestor {
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

    pub fn spec(&self) -> &VolumeSpec {
        &self.spec
    }

    /// The root that the volume has read.
    pub fn newest(&self) -> Option<RootName> {
        self.newest
    }

    /// The segments of it that have moved, as far as the volume knows.
    pub fn moved(&self) -> &Tree {
        &self.moved
    }

    /// A newer root says what has moved.
    pub fn adopt(&mut self, name: RootName, levels: Levels, pages: &mut Pages) {
        self.moved.adopt(levels, 0, pages);
        self.moved.load(Table::new(), pages);
        self.newest = Some(name);
    }
}
