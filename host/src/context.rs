//! The parts that front threads share, and those that the volumes of one share.

use super::front::{Fronts, PlacedFront, Placement, Seat};
use super::iscsi::IscsiPlaces;
use super::learning::LearnedTables;
use super::nbd::NbdPlaces;
use super::registry::RememberedVolumes;
use super::settings::VolumeSettings;
use super::space::JournalSpace;
use super::state::StateDir;
use super::uplink::Router;
use super::volume::Clock;
use anyhow::Result;
use std::rc::Rc;
use std::sync::{Arc, OnceLock, Weak};

/// The parts that all front threads of a host share.
#[derive(Clone)]
pub struct HostShared {
    /// Where the host keeps descriptions and journals of volumes.
    pub state: Arc<StateDir>,
    /// The time of the engines.
    pub clock: Clock,
    /// Gives the space of journals back.
    pub space: JournalSpace,
    /// The volumes that commands attached.
    pub remembered: RememberedVolumes,
    /// The thread of each volume.
    pub placement: Arc<Placement>,
    /// The ways to the threads; not set if there is only one.
    pub fronts: Arc<OnceLock<Weak<Fronts>>>,
    /// Places for NBD clients.
    pub nbd_places: NbdPlaces,
    /// Places for iSCSI connections.
    pub iscsi_places: IscsiPlaces,
}

impl HostShared {
    /// For a host of `threads` front threads without volumes.
    pub fn new(state: Arc<StateDir>, clock: Clock, threads: usize) -> HostShared {
        HostShared {
            space: JournalSpace::new(state.clone()),
            remembered: RememberedVolumes::new(state.clone()),
            placement: Placement::new(threads),
            fronts: Arc::default(),
            nbd_places: NbdPlaces::default(),
            iscsi_places: IscsiPlaces::default(),
            state,
            clock,
        }
    }

    /// The ways to the threads, if there are others.
    pub fn fronts(&self) -> Option<Arc<Fronts>> {
        self.fronts.get().and_then(Weak::upgrade)
    }

    /// The way to the thread that has a volume, unless that is this one.
    ///
    /// # Errors
    /// If the thread cannot start.
    pub fn elsewhere(&self, name: &str, here: usize) -> Result<Option<PlacedFront>> {
        let Some(fronts) = self.fronts() else { return Ok(None) };
        let (front, seat) = fronts.of(name)?;
        Ok((seat.thread() != here).then_some((front, seat)))
    }
}

/// The parts that all volumes of a front thread share.
pub struct HostContext {
    /// Those of all threads.
    pub shared: HostShared,
    /// Number of this thread.
    pub number: usize,
    /// Where the host keeps descriptions and journals of volumes.
    pub state: Arc<StateDir>,
    /// The settings of the command line.
    pub settings: VolumeSettings,
    /// The link to the store.
    pub router: Rc<Router>,
    /// The time of the engines.
    pub clock: Clock,
    /// Gives the space of journals back.
    pub space: JournalSpace,
    /// The version tables that this thread has learned.
    pub learned: LearnedTables,
}

impl HostContext {
    /// A thread that has no volume yet.
    pub fn new(
        shared: HostShared,
        number: usize,
        settings: VolumeSettings,
        router: Rc<Router>,
    ) -> Rc<HostContext> {
        let (state, space, clock) = (shared.state.clone(), shared.space.clone(), shared.clock);
        let learned = LearnedTables::default();
        Rc::new(HostContext { shared, number, state, settings, router, clock, space, learned })
    }

    /// A seat of a volume that this thread has. `None` if another one has it.
    pub fn sit(&self, name: &str) -> Option<Seat> {
        let seat = self.shared.placement.sit(name);
        (seat.thread() == self.number).then_some(seat)
    }
}
