//! Whether the link was tried, and when it changed.

use crate::failure::AttachFailure;
use crate::uplink::Router;
use std::cell::Cell;
use std::rc::Rc;
use tokio::sync::watch;

/// The changes of the link, for those that wait for it.
pub(super) struct LinkWatch {
    router: Rc<Router>,
    /// Changes with the link, and when its first attempt to connect is over.
    generation: watch::Sender<u64>,
    /// Whether the first attempt to connect is over, well or not.
    tried: Cell<bool>,
}

impl LinkWatch {
    /// A link that was not tried yet.
    pub fn new(router: Rc<Router>) -> LinkWatch {
        LinkWatch { router, generation: watch::Sender::new(0), tried: Cell::new(false) }
    }

    /// Follows the changes from now on.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// The link has changed.
    pub fn changed(&self) {
        self.generation.send_modify(|generation| *generation += 1);
    }

    /// The first attempt to connect is over. False if it was before.
    pub fn set_tried(&self) -> bool {
        !self.tried.replace(true)
    }

    /// Resolves when the first attempt to connect is over, well or not.
    pub async fn tried(&self) {
        let mut link = self.subscribe();
        while !self.tried.get() && link.changed().await.is_ok() {}
    }

    /// Whether the failure is a link that may be there in a moment.
    pub fn may_help(&self, failure: &AttachFailure) -> bool {
        *failure == AttachFailure::Link && (self.router.is_up() || !self.tried.get())
    }
}
