//! Where the tasks of one child of the actor send what became of them.

use std::sync::Arc;
use tokio::sync::mpsc::UnboundedSender;

/// A child's way to the actor's queue of events. The child knows its own completions and no others.
pub(super) struct Completions<T>(Arc<dyn Fn(T) + Send + Sync>);

impl<T> Clone for Completions<T> {
    fn clone(&self) -> Completions<T> {
        Completions(self.0.clone())
    }
}

impl<T: Send + 'static> Completions<T> {
    /// Into that queue.
    pub fn new<E: From<T> + Send + 'static>(events: &UnboundedSender<E>) -> Completions<T> {
        let events = events.clone();
        Completions(Arc::new(move |completion| {
            let _ = events.send(E::from(completion));
        }))
    }

    pub fn send(&self, completion: T) {
        (self.0)(completion);
    }

    /// Runs a task that completes with this.
    pub fn spawn(&self, task: impl Future<Output = T> + Send + 'static) {
        let completions = self.clone();
        tokio::spawn(async move { completions.send(task.await) });
    }
}
