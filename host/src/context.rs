//! The parts that front threads share, and those that the volumes of one share.

use super::front::placement::{Placement, Seat};
use super::learning::LearnedTables;
use super::registry::remembered::RememberedVolumes;
use super::settings::VolumeSettings;
use super::space::JournalSpace;
use super::state::StateDir;
use super::uplink::Router;
use super::volume::Clock;
use std::rc::Rc;
use std::sync::Arc;

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
}

impl HostShared {
    /// For a host of `threads` front threads without volumes.
    pub fn new(state: Arc<StateDir>, clock: Clock, threads: usize) -> HostShared {
        HostShared {
            space: JournalSpace::new(state.clone()),
            remembered: RememberedVolumes::new(state.clone()),
            placement: Placement::new(threads),
            state,
            clock,
        }
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

    /// A seat of a volume that this thread has, or nobody. `None` if another one has it.
    pub fn sit(&self, name: &str) -> Option<Seat> {
        self.shared.placement.sit_on(name, self.number)
    }
}
