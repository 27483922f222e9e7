//! The volumes that this store knows: their names, their identities, and their snapshots in use.
//!
//! A name leads to a description and an identity to a name. During the deletion of a volume its
//! identity leads nowhere and its description stays. So nobody uses the volume and nobody takes its
//! name.

use super::super::catalog::{Catalog, Entry};
use longhaul_core::block::VolumeId;
use longhaul_core::store::VolumeSpec;
use longhaul_core::store::tenant::tenant_of;
use longhaul_core::wire::link::VolumeError;
use std::collections::{BTreeMap, HashMap};

/// Where a snapshot is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SnapshotLocation {
    /// Its volume.
    pub volume: VolumeId,
    /// The segment that took it.
    pub segment: u64,
}

/// Names and identities of volumes and snapshots.
pub(super) struct Directory {
    volumes: BTreeMap<String, Entry>,
    /// By name, why descriptions are unusable.
    damaged: BTreeMap<String, String>,
    names: HashMap<VolumeId, String>,
    snapshots: HashMap<VolumeId, SnapshotLocation>,
}

impl Directory {
    pub fn new(catalog: Catalog) -> Directory {
        let Catalog { entries: volumes, damaged } = catalog;
        let specs = volumes.values().map(|entry| &entry.spec);
        let names = specs.map(|spec| (spec.id, spec.name.clone())).collect();
        Directory { volumes, damaged, names, snapshots: HashMap::new() }
    }

    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.volumes.values()
    }

    pub fn ids(&self) -> Vec<VolumeId> {
        self.names.keys().copied().collect()
    }

    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.volumes.get(name)
    }

    pub fn has_name(&self, name: &str) -> bool {
        self.volumes.contains_key(name)
    }

    /// Whether it is the identity of a volume.
    pub fn has_volume(&self, id: VolumeId) -> bool {
        self.names.contains_key(&id)
    }

    /// Whether it is the identity of a volume, or of a snapshot that is in use here.
    pub fn has(&self, id: VolumeId) -> bool {
        self.has_volume(id) || self.snapshots.contains_key(&id)
    }

    pub fn name(&self, id: VolumeId) -> Option<&str> {
        self.names.get(&id).map(String::as_str)
    }

    /// The name of a volume for messages: empty if the volume is unknown.
    pub fn name_or_empty(&self, id: VolumeId) -> String {
        self.names.get(&id).cloned().unwrap_or_default()
    }

    pub fn spec(&self, id: VolumeId) -> Option<&VolumeSpec> {
        let entry = self.names.get(&id).and_then(|name| self.volumes.get(name));
        entry.map(|entry| &entry.spec)
    }

    /// The tenant of a volume.
    pub fn tenant(&self, id: VolumeId) -> Option<&str> {
        self.names.get(&id).and_then(|name| tenant_of(name))
    }

    /// The volume of a snapshot; any other identity as it is.
    pub fn volume_of(&self, id: VolumeId) -> VolumeId {
        self.snapshots.get(&id).map_or(id, |snapshot| snapshot.volume)
    }

    /// The name of a volume, or of the volume of a snapshot.
    pub fn full_name(&self, id: VolumeId) -> Option<&str> {
        self.name(self.volume_of(id))
    }

    /// Why the description of a volume of that name is unusable.
    pub fn damage(&self, name: &str) -> Option<&String> {
        self.damaged.get(name)
    }

    pub fn damaged(&self) -> impl Iterator<Item = (&String, &String)> {
        self.damaged.iter()
    }

    pub fn set_damaged(&mut self, damaged: BTreeMap<String, String>) {
        self.damaged = damaged;
    }

    /// The error for a name that no volume has.
    pub fn no_volume(&self, name: &str) -> VolumeError {
        let damaged = self.damaged.get(name);
        damaged.map_or(VolumeError::NotFound, |reason| VolumeError::Store(reason.clone()))
    }

    pub fn learn(&mut self, entry: Entry) {
        self.names.insert(entry.spec.id, entry.spec.name.clone());
        self.damaged.remove(&entry.spec.name);
        self.volumes.insert(entry.spec.name.clone(), entry);
    }

    pub fn set_sectors(&mut self, name: &str, sectors: u64) {
        if let Some(entry) = self.volumes.get_mut(name) {
            entry.sectors = sectors;
        }
    }

    /// The deletion of a volume begins: its identity leads nowhere.
    pub fn begin_deletion(&mut self, id: VolumeId) {
        self.names.remove(&id);
    }

    /// The deletion failed: the volume stays.
    pub fn undo_deletion(&mut self, spec: VolumeSpec) {
        self.names.insert(spec.id, spec.name);
    }

    /// The volume of that name is deleted.
    pub fn remove(&mut self, name: &str) -> Option<Entry> {
        let entry = self.volumes.remove(name)?;
        self.names.remove(&entry.spec.id);
        Some(entry)
    }

    pub fn snapshot(&self, id: VolumeId) -> Option<&SnapshotLocation> {
        self.snapshots.get(&id)
    }

    /// Notes where a snapshot is. The caller is sure of its volume and segment.
    pub fn insert_snapshot(&mut self, id: VolumeId, location: SnapshotLocation) {
        self.snapshots.insert(id, location);
    }

    pub fn remove_snapshot(&mut self, id: VolumeId) {
        self.snapshots.remove(&id);
    }

    /// The snapshots of a volume that are in use here.
    pub fn snapshots_of(&self, volume: VolumeId) -> Vec<VolumeId> {
        let of = self.snapshots.iter().filter(|(_, snapshot)| snapshot.volume == volume);
        of.map(|(id, _)| *id).collect()
    }
}
