//! The backend that the disks of a thread share.

use super::backend::Backend;
use super::pool::Pool;
use super::ring::Ring;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Whether the process does without io_uring.
static THREADS_ONLY: AtomicBool = AtomicBool::new(false);

/// Lets threads do the work of all disks that begin from now on, as where the kernel refuses an
/// io_uring.
pub fn use_threads_only() {
    THREADS_ONLY.store(true, Ordering::Relaxed);
}

thread_local! {
    static OF_THIS_THREAD: RefCell<Option<Weak<dyn Backend>>> = const { RefCell::new(None) };
}

/// The backend that all disks of this thread share.
pub(super) fn of_this_thread() -> Arc<dyn Backend> {
    OF_THIS_THREAD.with_borrow_mut(|shared| {
        let known = shared.as_ref().and_then(Weak::upgrade);
        // The runtime of an earlier one may have ended.
        if let Some(backend) = known.filter(|backend| backend.is_attended()) {
            return backend;
        }
        let backend = new_backend();
        *shared = Some(Arc::downgrade(&backend));
        backend
    })
}

fn new_backend() -> Arc<dyn Backend> {
    if THREADS_ONLY.load(Ordering::Relaxed) {
        return Pool::new();
    }
    match Ring::new() {
        Ok(ring) => ring,
        Err(error) => {
            tracing::info!("no io_uring ({error}): threads read and write local disks");
            Pool::new()
        }
    }
}
