//! The registry itself: its parts, and what it answers without doing anything.

use super::attached::AttachedVolumes;
use super::entries::{AttachStage, Entries, FencedBy};
use super::limits::VolumeLimits;
use super::link::LinkWatch;
use super::observers::Observers;
use super::others::OtherThreads;
use super::recordings::Recordings;
use super::reservations::Reservations;
use crate::context::{HostContext, HostShared};
use crate::kept_journal::KeptJournal;
use crate::settings::{Limits, VolumeSettings};
use crate::state::StateDir;
use crate::task::Shutdown;
use crate::uplink::Router;
use crate::volume::Volume;
use anyhow::{Context as _, Result};
use longhaul_base::pattern::Pattern;
use longhaul_link::LinkStatus;
use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

/// All volumes of a front thread.
pub struct VolumeRegistry {
    pub(super) host: Rc<HostContext>,
    pub(super) shutdown: Rc<Shutdown>,
    pub(super) entries: Entries,
    pub(super) attached: AttachedVolumes,
    pub(super) link: Rc<LinkWatch>,
    pub(super) limits: VolumeLimits,
    pub(super) recordings: Recordings,
    pub(super) reservations: Reservations,
    pub(super) observers: Observers,
    /// The other threads of the host, if there may be any.
    pub(super) others: OnceCell<Rc<dyn OtherThreads>>,
    /// Names of volumes that clients may have attached.
    pub(super) on_demand: RefCell<Vec<Pattern>>,
}

impl VolumeRegistry {
    /// No volumes yet, on thread number `number` of the host.
    pub fn new(
        shared: HostShared,
        number: usize,
        settings: VolumeSettings,
        router: Rc<Router>,
    ) -> Rc<VolumeRegistry> {
        let (limits, state) = (settings.limits.clone(), shared.state.clone());
        let host = HostContext::new(shared, number, settings, router.clone());
        let shutdown = Rc::new(Shutdown::default());
        let link = Rc::new(LinkWatch::new(router));
        Rc::new(VolumeRegistry {
            entries: Entries::default(),
            attached: AttachedVolumes::default(),
            limits: VolumeLimits::new(limits),
            recordings: Recordings::new(state),
            reservations: Reservations::new(host.clone(), link.clone(), shutdown.clone()),
            observers: Observers::default(),
            others: OnceCell::new(),
            on_demand: RefCell::default(),
            host,
            shutdown,
            link,
        })
    }

    /// Sets what is told when a volume is taken away from this host: its name, and why.
    pub fn on_gone(&self, gone: impl Fn(&str, &str) + 'static) {
        self.observers.on_gone(gone);
    }

    /// Has `resized` called whenever an attached volume has got a new size, with that size in
    /// sectors. Requests up to there are good by then, and an open of the volume tells the new
    /// size. Clients that know the old size are the business of their protocol.
    pub fn on_resized(&self, resized: impl Fn(&Volume, u64) + 'static) {
        self.observers.on_resized(resized);
    }

    /// Sets what counts the clients of a volume.
    pub fn count_clients(&self, clients: impl Fn(&str) -> usize + 'static) {
        self.observers.count_clients(clients);
    }

    /// Clients may have volumes attached whose names match, from now on.
    pub fn set_on_demand(&self, patterns: Vec<Pattern>) {
        self.on_demand.replace(patterns);
    }

    /// Sets the view of the other threads. Only the first call counts.
    pub fn set_others(&self, others: Rc<dyn OtherThreads>) {
        let _ = self.others.set(others);
    }

    /// Where the host keeps descriptions and journals of volumes.
    pub fn state(&self) -> &StateDir {
        &self.host.state
    }

    /// How the link is doing.
    pub fn link_status(&self) -> LinkStatus {
        self.host.router.status()
    }

    /// Whether the link is up: all of it, not only for early reads.
    #[cfg(test)]
    pub fn is_connected(&self) -> bool {
        self.host.router.is_up()
    }

    /// Resolves when the link's first attempt to connect is over, well or not.
    pub async fn link_tried(&self) {
        self.link.tried().await;
    }

    /// Where each volume is on its way, by name.
    pub fn stages(&self) -> Vec<(String, AttachStage)> {
        self.entries.stages()
    }

    /// The attached volumes.
    pub fn volumes(&self) -> Vec<Rc<Volume>> {
        self.attached.all()
    }

    /// An attached volume by name.
    ///
    /// # Errors
    /// If it is not attached.
    pub fn find(&self, name: &str) -> Result<Rc<Volume>> {
        self.attached.find(name).with_context(|| format!("volume {name} is not attached here"))
    }

    /// The task that attaches a volume.
    pub fn kept(&self, name: &str) -> Option<KeptJournal> {
        self.entries.task(name).and_then(|task| task.kept())
    }

    /// The host that fenced a volume off, if one did.
    pub fn fenced_by(&self, name: &str) -> Option<FencedBy> {
        self.entries.fenced_by(name)
    }

    /// No more attaches.
    pub fn stop(&self) {
        self.shutdown.begin();
    }

    /// Whether there are no more attaches.
    pub fn is_stopping(&self) -> bool {
        self.shutdown.has_begun()
    }

    /// Attempts to attach that are under way. A volume that they attach has to be handed back.
    pub fn attempts(&self) -> usize {
        self.shutdown.attempts()
    }

    /// The limits of a volume.
    pub fn limits(&self, name: &str) -> Limits {
        self.limits.of(name)
    }
}
