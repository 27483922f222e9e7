//! The backend that the disks of a thread share.

use super::backend::Backend;
use super::pool::Pool;
use super::ring::Ring;
use std::cell::RefCell;
use std::sync::{Arc, Weak};

/// Switches the io_uring off if its value is `off`.
const SWITCH: &str = "LONGHAUL_IO_URING";

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
    if std::env::var_os(SWITCH).is_some_and(|value| value == "off") {
        tracing::info!("no io_uring, because of {SWITCH}=off: threads read and write local disks");
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
