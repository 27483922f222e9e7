//! The state that the task which attaches a volume shares with commands about that volume.

use super::kept_journal::KeptJournal;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tokio::sync::Notify;

/// Whether the host shuts down, and what has to end before it may.
#[derive(Default)]
pub struct Shutdown {
    begun: Cell<bool>,
    attempts: Cell<usize>,
}

impl Shutdown {
    /// Begins it: the host attaches nothing any more.
    pub fn begin(&self) {
        self.begun.set(true);
    }

    /// Whether it has begun.
    pub fn has_begun(&self) -> bool {
        self.begun.get()
    }

    /// Counts an attempt to attach a volume until the guard goes.
    pub fn attempt(self: &Rc<Self>) -> AttemptGuard {
        self.attempts.set(self.attempts.get() + 1);
        AttemptGuard(self.clone())
    }

    /// Attempts that are under way.
    pub fn attempts(&self) -> usize {
        self.attempts.get()
    }
}

/// An attempt that is under way.
pub struct AttemptGuard(Rc<Shutdown>);

impl Drop for AttemptGuard {
    fn drop(&mut self) {
        self.0.attempts.set(self.0.attempts.get() - 1);
    }
}

/// The end of a detached volume that a command does not want any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// Its files here stay.
    Cancelled,
    /// The host frees its space.
    Detached {
        /// Also if the store may not have everything.
        drop_undelivered: bool,
    },
}

/// The state that the task and the commands share.
pub struct AttachTask {
    name: String,
    shutdown: Rc<Shutdown>,
    /// A command does not want the volume any more.
    leaving: Cell<Option<Leaving>>,
    /// The registry has forgotten the volume.
    forgotten: Cell<bool>,
    /// The task has something to look at.
    wake: Notify,
    /// The journal in the state directory; counts until the volume is attached.
    kept: RefCell<Option<KeptJournal>>,
}

impl AttachTask {
    /// The task of a volume that nobody has tried to attach.
    pub fn new(name: &str, shutdown: Rc<Shutdown>) -> Rc<AttachTask> {
        Rc::new(AttachTask {
            name: name.to_owned(),
            shutdown,
            leaving: Cell::new(None),
            forgotten: Cell::new(false),
            wake: Notify::new(),
            kept: RefCell::default(),
        })
    }

    /// The name of the volume.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether an attempt is not to go on: the host stops, or a command does not want the volume
    /// any more.
    pub fn gives_up(&self) -> bool {
        self.shutdown.has_begun() || self.forgotten.get() || self.leaving.get().is_some()
    }

    /// The end of the volume, if a command does not want it any more.
    pub fn leaving(&self) -> Option<Leaving> {
        self.leaving.get()
    }

    /// A command does not want the volume any more, or does again.
    pub fn set_leaving(&self, leaving: Option<Leaving>) {
        self.leaving.set(leaving);
    }

    /// The registry has forgotten the volume.
    pub fn forget(&self) {
        self.forgotten.set(true);
    }

    /// Wakes the task.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Resolves when the task was woken.
    pub async fn woken(&self) {
        self.wake.notified().await;
    }

    /// The journal that the state directory keeps of the volume.
    pub fn kept(&self) -> Option<KeptJournal> {
        self.kept.borrow().clone()
    }

    /// Remembers [`AttachTask::kept`].
    pub fn set_kept(&self, kept: Option<KeptJournal>) {
        self.kept.replace(kept);
    }
}
