//! The events of the link, handed to the volumes that they concern.

use super::volume_registry::VolumeRegistry;
use longhaul_core::block::VolumeId;
use longhaul_core::wire::link::{Frame, ToHost};
use longhaul_link::LinkEvent;
use std::rc::Rc;
use tokio::sync::mpsc;

/// Link events taken at a time.
const EVENT_BATCH: usize = 256;

impl VolumeRegistry {
    /// Hands the events of the link to the volumes that they concern, until the link is closed.
    pub async fn run_link(self: Rc<Self>, mut events: mpsc::UnboundedReceiver<LinkEvent>) {
        let router = self.host.router.clone();
        let mut batch = Vec::with_capacity(EVENT_BATCH);
        let mut was_up = None;
        while events.recv_many(&mut batch, EVENT_BATCH).await > 0 {
            let mut frames: Vec<(VolumeId, Frame<ToHost>)> = Vec::new();
            for event in batch.drain(..) {
                match event {
                    LinkEvent::Frame(frame) => frames.extend(router.route(frame)),
                    LinkEvent::Stores(stores) => {
                        if let Err(error) = self.host.state.save_stores(&stores) {
                            tracing::warn!("the host will have to find the stores anew: {error:#}");
                        }
                    }
                    LinkEvent::Early => {
                        router.set_early();
                        self.attached.resume();
                    }
                    LinkEvent::Unreachable => {
                        if router.is_early() {
                            self.set_link(false);
                        }
                        if self.link.set_tried() {
                            self.link.changed();
                        }
                    }
                    LinkEvent::Up { peer, software, .. } => {
                        self.attached.deliver(&mut frames);
                        tracing::info!(peer, software, "the store is connected");
                        was_up = Some(true);
                        self.link.set_tried();
                        self.set_link(true);
                        tokio::task::spawn_local(self.clone().free_gone());
                    }
                    LinkEvent::Down { reason } => {
                        self.attached.deliver(&mut frames);
                        if self.shutdown.has_begun() {
                            tracing::info!("the link to the store has ended: {reason}");
                        } else if was_up != Some(false) {
                            tracing::warn!("the store cannot be reached, trying on: {reason}");
                        }
                        if was_up.replace(false) == Some(true) || router.is_up() {
                            self.set_link(false);
                        }
                    }
                }
            }
            self.attached.deliver(&mut frames);
        }
    }

    fn set_link(&self, up: bool) {
        self.host.router.set_up(up);
        if up {
            self.attached.resume();
        } else {
            self.attached.suspend();
        }
        self.link.changed();
    }
}
