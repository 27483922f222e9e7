//! The parts that all volumes of a host share.

use super::learning::LearnedTables;
use super::settings::VolumeSettings;
use super::space::JournalSpace;
use super::state::StateDir;
use super::uplink::Router;
use super::volume::Clock;
use std::rc::Rc;
use std::sync::Arc;

/// The parts that all volumes of a host share.
pub struct HostContext {
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
    /// The version tables that this process has learned.
    pub learned: LearnedTables,
}

impl HostContext {
    /// A host that has no volume yet.
    pub fn new(
        state: Arc<StateDir>,
        settings: VolumeSettings,
        router: Rc<Router>,
        clock: Clock,
    ) -> Rc<HostContext> {
        let space = JournalSpace::new(state.clone());
        let learned = LearnedTables::default();
        Rc::new(HostContext { state, settings, router, clock, space, learned })
    }
}
