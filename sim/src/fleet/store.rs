//! The state of a store process.

use super::engines::Engine;
use super::requests::{Asker, Request};
use crate::rng::Rng;
use longhaul_core::block::{Time, VolumeId};
use longhaul_core::store::VolumeSpec;
use longhaul_core::store::fleet::claim::LeaseHolder;
use longhaul_core::store::fleet::holdings::Holdings;
use longhaul_core::store::fleet::listing::CatalogEntry;
use longhaul_core::store::fleet::members::Registered;
use longhaul_core::wire::link::StoreId;
use std::collections::{BTreeMap, VecDeque};

/// The stage in the life of a store process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Down,
    Starting,
    Up,
    /// Its engines finish their work.
    Stopping,
}

/// The state of a claim to a volume, and of its release.
#[derive(Default)]
pub(super) struct VolumeClaim {
    pub asker: Option<Request>,
    pub waiting: VecDeque<Request>,
    /// The holder of the lease by the last claim, and the time of that claim.
    pub holder: Option<(StoreId, Time)>,
    /// The time at which this store took the volume from another store.
    pub taken: Option<Time>,
    /// The questions of stores that wait until this store has released the volume.
    pub releasing: Vec<u64>,
}

/// A change of the catalog that waits for its turn.
pub(super) enum Job {
    /// The change for an operation of an operator: number and attempt.
    Operation(u64, u64),
    /// The deletion of a volume without an engine, and the recipient of the answer.
    Delete { entry: CatalogEntry, lease: Option<u64>, clones: Option<Vec<VolumeId>>, to: Asker },
}

/// The background work of a store.
#[derive(Default)]
pub(super) struct Chores {
    pub jobs: VecDeque<Job>,
    pub running: bool,
    /// The volume of the restoration in progress.
    pub restoring: Option<VolumeId>,
    /// The volume of the deletion in progress.
    pub deleting: Option<VolumeSpec>,
    /// For each deleted volume, the time of its next step in seconds since 1970.
    pub due: BTreeMap<VolumeId, u64>,
    pub tending: VecDeque<VolumeId>,
    pub looking: bool,
    pub look_again: bool,
    /// Operations, and below them requests of hosts, for volumes that the store does not know.
    pub unknown: Vec<(u64, u64)>,
    pub unknown_sessions: Vec<Request>,
}

pub(super) struct Store {
    pub id: StoreId,
    pub stage: Stage,
    /// Number of the process; it grows whenever a process ends.
    pub incarnation: u64,
    /// Random identity of the process, as leases name it.
    pub process: u128,
    /// The error of its clock in seconds.
    pub skew: i64,
    /// Whether its hosts have to leave it.
    pub draining: bool,
    /// Whether no further process starts.
    pub left: bool,
    /// The known volumes, by name.
    pub directory: BTreeMap<String, CatalogEntry>,
    pub holdings: Holdings,
    pub claims: BTreeMap<VolumeId, VolumeClaim>,
    pub engines: BTreeMap<VolumeId, Engine>,
    pub chores: Chores,
    /// The stores that did not answer, and the time until which this store asks them nothing.
    pub silent: BTreeMap<usize, Time>,
    /// The registration that the last start found in the location.
    pub known: Option<Registered>,
}

impl Store {
    pub fn new(at: usize, rng: &mut Rng) -> Store {
        Store {
            id: StoreId(at as u128 + 1),
            stage: Stage::Down,
            incarnation: 0,
            process: 0,
            skew: rng.between(0, 20) as i64 - 10,
            draining: false,
            left: false,
            directory: BTreeMap::new(),
            holdings: Holdings::default(),
            claims: BTreeMap::new(),
            engines: BTreeMap::new(),
            chores: Chores::default(),
            silent: BTreeMap::new(),
            known: None,
        }
    }

    pub fn is_up(&self) -> bool {
        matches!(self.stage, Stage::Up | Stage::Stopping)
    }

    pub fn holder(&self) -> LeaseHolder {
        let addresses = vec![format!("store-{}", self.id)];
        LeaseHolder { id: self.id, incarnation: self.process, addresses }
    }

    pub fn entry_of(&self, id: VolumeId) -> Option<&CatalogEntry> {
        self.directory.values().find(|entry| entry.spec.id == id)
    }

    /// The description of a known volume, unless a deletion here runs or waits.
    pub fn spec(&self, id: VolumeId) -> Option<&VolumeSpec> {
        let going = self.chores.deleting.as_ref().is_some_and(|spec| spec.id == id);
        let queued = self
            .chores
            .jobs
            .iter()
            .any(|job| matches!(job, Job::Delete { entry, .. } if entry.spec.id == id));
        if going || queued { None } else { self.entry_of(id).map(|entry| &entry.spec) }
    }

    /// Clears the memory of an ended process.
    pub fn forget_all(&mut self) {
        self.directory.clear();
        self.holdings = Holdings::default();
        self.claims.clear();
        self.engines.clear();
        self.chores = Chores::default();
        self.silent.clear();
        self.draining = false;
    }
}
