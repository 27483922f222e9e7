//! The backend without io_uring: threads of the runtime.

use super::backend::{Backend, DiskMessage, DiskRequest, FileAction, FileOperation, Mailbox, lock};
use rustix::io::{Errno, ReadWriteFlags};
use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::sync::{Arc, Mutex, Weak};
use tokio::runtime::Handle;

/// A queue of operations. For each one, a thread of the runtime's blocking pool takes the oldest.
pub(super) struct Pool {
    queue: Mutex<VecDeque<DiskRequest>>,
    /// `None`: without a runtime, the caller's thread does the work.
    runtime: Option<Handle>,
    /// For the threads.
    me: Weak<Pool>,
}

impl Pool {
    pub(super) fn new() -> Arc<Pool> {
        let runtime = Handle::try_current().ok();
        Arc::new_cyclic(|me| Pool { queue: Mutex::default(), runtime, me: me.clone() })
    }

    /// Carries out the oldest operation. Returns whether there was one.
    fn work(&self) -> bool {
        let next = lock(&self.queue).pop_front();
        let Some(DiskRequest { token, mut operation, mailbox }) = next else { return false };
        let outcome = loop {
            let call = call(&mut operation);
            if let Some(outcome) = operation.progress(call) {
                break outcome;
            }
        };
        mailbox.post(DiskMessage::Ended { token, operation, outcome });
        true
    }
}

impl Backend for Pool {
    fn start(&self, request: DiskRequest) {
        lock(&self.queue).push_back(request);
        let (Some(runtime), Some(pool)) = (&self.runtime, self.me.upgrade()) else {
            self.work();
            return;
        };
        runtime.spawn_blocking(move || pool.work());
    }

    fn submit(&self) {}

    fn wait(&self, mailbox: &Mailbox) {
        while mailbox.is_empty() {
            // The runtime may have ended, or all of its threads may wait like this one.
            if !self.work() {
                mailbox.wait(None);
            }
        }
    }

    fn is_attended(&self) -> bool {
        // A runtime that has ended takes no work. Then `wait` does it.
        true
    }
}

/// One system call of an operation.
fn call(operation: &mut FileOperation) -> Result<usize, Errno> {
    let (offset, done) = (operation.next_offset(), operation.done);
    match &mut operation.action {
        FileAction::Sync => rustix::fs::fdatasync(&*operation.file).map(|()| 0),
        FileAction::Read(data) => {
            let slices = &mut [IoSliceMut::new(&mut data[done..])];
            rustix::io::preadv(&*operation.file, slices, offset)
        }
        FileAction::Write { sync: false, .. } => {
            rustix::io::pwritev(&*operation.file, &operation.rest(), offset)
        }
        FileAction::Write { sync: true, .. } => {
            let (file, data) = (&*operation.file, &operation.rest());
            rustix::io::pwritev2(file, data, offset, ReadWriteFlags::DSYNC)
        }
    }
}
