//! The backend with io_uring.
//!
//! A turn of the caller costs one system call, however many disks and operations it has. At the
//! end of an operation the kernel signals an eventfd. A task on the caller's runtime, the
//! attendant, waits for it and hands out the ends of operations.

use super::backend::{Backend, DiskMessage, DiskRequest, FileAction, Mailbox, lock};
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{IoUring, opcode, squeue};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::ThreadId;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

/// Most operations that the kernel has. Others wait. The queue of ends has twice as many places, so
/// it never overflows.
const OPERATIONS_MAX: u32 = 256;

/// If the kernel takes no operations for want of memory, the attendant offers them again after this
/// time.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// How long a thread that waits for an operation relies on the attendant.
const ATTENDANT_LIMIT: Duration = Duration::from_secs(1);

pub(super) struct Ring {
    queues: Mutex<RingQueues>,
    /// The kernel signals it for each end. Threads signal it to have the attendant submit.
    event: Arc<OwnedFd>,
    attendant: OnceLock<AbortHandle>,
}

struct RingQueues {
    ring: IoUring,
    /// Operations that the kernel has, or gets next, by number.
    under_way: HashMap<u64, UnderWay>,
    waiting: VecDeque<DiskRequest>,
    last: u64,
    /// The thread on which the attendant last ran. Only this one submits: if a thread ends, the
    /// kernel cancels what it has submitted.
    owner: Option<ThreadId>,
}

/// An operation that the kernel has. It owns the open file, the buffers, and the list of them. It
/// stays in `under_way` until the kernel has told the end of the operation.
struct UnderWay {
    request: DiskRequest,
    /// Only the kernel reads it.
    _vectors: Vectors,
}

/// The buffers of an operation in the kernel's form.
struct Vectors {
    _list: Vec<libc::iovec>,
}

// SAFETY: the pointers lead into buffers that the same `UnderWay` owns, on the heap. Moving them to
// another thread changes neither, and only the kernel follows the pointers.
#[allow(unsafe_code)]
unsafe impl Send for Vectors {}

impl Ring {
    /// Makes a ring, and the task that attends it on the current runtime.
    ///
    /// # Errors
    /// If the kernel or a sandbox refuses, or if there is no runtime.
    pub(super) fn new() -> io::Result<Arc<Ring>> {
        let runtime = Handle::try_current().map_err(io::Error::other)?;
        let mut builder = IoUring::builder();
        builder.setup_coop_taskrun();
        let ring = builder.build(OPERATIONS_MAX).or_else(|_| {
            // Before Linux 5.19 there is no such flag.
            IoUring::new(OPERATIONS_MAX)
        })?;
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        ring.submitter().register_eventfd(event.as_raw_fd())?;
        let watched = watch(&runtime, event.clone())?;
        let queues = RingQueues {
            ring,
            under_way: HashMap::new(),
            waiting: VecDeque::new(),
            last: 0,
            owner: None,
        };
        let ring = Arc::new(Ring { queues: Mutex::new(queues), event, attendant: OnceLock::new() });
        let attendant = runtime.spawn(attend(Arc::downgrade(&ring), watched));
        // It is new.
        let _ = ring.attendant.set(attendant.abort_handle());
        Ok(ring)
    }

    /// Has the attendant run.
    fn call_attendant(&self) {
        // The only error is that the counter is full. Then the attendant is called already.
        let _ = rustix::io::write(&*self.event, &1u64.to_ne_bytes());
    }

    /// Submits, and hands out the ends of operations. Whether to come again soon.
    fn attend(&self) -> bool {
        let mut queues = lock(&self.queues);
        queues.owner = Some(std::thread::current().id());
        queues.reap();
        !queues.submit()
    }
}

#[allow(unsafe_code)]
fn watch(runtime: &Handle, event: Arc<OwnedFd>) -> io::Result<AsyncFd<Arc<OwnedFd>>> {
    let _entered = runtime.enter();
    // SAFETY: the value owns the descriptor, keeps it open as long as it lives, and always names
    // the same one.
    let watched = unsafe { AsyncFd::register_with_interest(event, Interest::READABLE) };
    Ok(watched?)
}

/// See [`Ring::attend`]. Ends with the ring.
async fn attend(ring: Weak<Ring>, event: AsyncFd<Arc<OwnedFd>>) {
    let _guard = AbortOnPanic;
    loop {
        let Ok(mut ready) = event.readable().await else { return };
        // Nobody reads the counter: each signal makes a new event, whatever its value.
        ready.clear_ready();
        let Some(ring) = ring.upgrade() else { return };
        if ring.attend() {
            ring.call_attendant();
            drop(ring);
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }
}

/// Ends the process if the attendant panics. Without one, all journals of the thread would wait
/// forever, and clients with them. A restart recovers every journal.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

impl Backend for Ring {
    fn start(&self, request: DiskRequest) {
        let mut queues = lock(&self.queues);
        queues.waiting.push_back(request);
        queues.fill();
    }

    fn submit(&self) {
        let mut queues = lock(&self.queues);
        if queues.ring.submission().is_empty() {
            return;
        }
        let submitted = queues.owner == Some(std::thread::current().id()) && queues.submit();
        if !submitted {
            drop(queues);
            self.call_attendant();
        }
    }

    fn wait(&self, mailbox: &Mailbox) {
        let owner = lock(&self.queues).owner;
        let is_foreign = owner.is_some_and(|owner| owner != std::thread::current().id());
        if is_foreign && self.is_attended() {
            self.call_attendant();
            if mailbox.wait(Some(ATTENDANT_LIMIT)) {
                return;
            }
        }
        // The attendant's runtime has ended, or this thread holds it up. The lock stays held:
        // nobody else may take the end that this waits for.
        let mut queues = lock(&self.queues);
        loop {
            queues.reap();
            if !mailbox.is_empty() {
                return;
            }
            if !queues.wait() {
                std::thread::sleep(RETRY_INTERVAL);
            }
        }
    }

    fn is_attended(&self) -> bool {
        self.attendant.get().is_some_and(|task| !task.is_finished())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.call_attendant();
        // Each disk waits for its operations and holds the ring, so nothing should be under way.
        let mut queues = lock(&self.queues);
        while !queues.under_way.is_empty() {
            if !queues.wait() {
                std::thread::sleep(RETRY_INTERVAL);
            }
            queues.reap();
        }
    }
}

impl RingQueues {
    /// Moves waiting operations into the kernel's queue while it has places.
    fn fill(&mut self) {
        while self.under_way.len() < OPERATIONS_MAX as usize
            && let Some(request) = self.waiting.pop_front()
        {
            self.push(request);
        }
    }

    #[allow(unsafe_code)]
    fn push(&mut self, mut request: DiskRequest) {
        let operation = &mut request.operation;
        let (fd, offset) = (Fd(operation.file.as_raw_fd()), operation.next_offset());
        let done = operation.done;
        let mut vectors: Vec<libc::iovec> = operation
            .rest()
            .iter()
            .map(|part| libc::iovec { iov_base: part.as_ptr() as *mut _, iov_len: part.len() })
            .collect();
        if let FileAction::Read(data) = &mut operation.action {
            let rest = &mut data[done..];
            vectors.push(libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() });
        }
        let (list, count) = (vectors.as_ptr(), vectors.len() as u32);
        let entry: squeue::Entry = match &operation.action {
            FileAction::Write { sync, .. } => {
                let flags = if *sync { libc::RWF_DSYNC } else { 0 };
                opcode::Writev::new(fd, list, count).offset(offset).rw_flags(flags).build()
            }
            FileAction::Read(_) => opcode::Readv::new(fd, list, count).offset(offset).build(),
            FileAction::Sync => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
        };
        self.last += 1;
        let entry = entry.user_data(self.last);
        // SAFETY: the operation owns its open file and its buffers, and `vectors` is the list of
        // the buffers. All of them are on the heap. They move into `under_way` below, where nothing
        // touches them. `reap` takes them out after the kernel has told the end of the operation.
        // `Drop` waits for all ends.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        if pushed.is_err() {
            // This does not happen: the queue has a place for each operation under way.
            self.waiting.push_front(request);
            return;
        }
        self.under_way
            .insert(self.last, UnderWay { request, _vectors: Vectors { _list: vectors } });
    }

    /// Gives the kernel all operations in its queue. False if it did not take all of them.
    fn submit(&mut self) -> bool {
        while !self.ring.submission().is_empty() {
            match self.ring.submit() {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::debug!("the kernel takes no operations for now: {error}");
                    return false;
                }
            }
        }
        true
    }

    /// Waits for the end of an operation. False if the kernel did not take all operations.
    fn wait(&mut self) -> bool {
        self.submit() && {
            match self.ring.submit_and_wait(1) {
                Ok(_) => true,
                Err(error) => error.kind() == io::ErrorKind::Interrupted,
            }
        }
    }

    /// Hands out the ends of operations.
    fn reap(&mut self) {
        let ends: Vec<(u64, i32)> =
            self.ring.completion().map(|end| (end.user_data(), end.result())).collect();
        for (number, result) in ends {
            let Some(UnderWay { mut request, .. }) = self.under_way.remove(&number) else {
                continue;
            };
            let call = usize::try_from(result).map_err(|_| Errno::from_raw_os_error(-result));
            match request.operation.progress(call) {
                None => self.push(request),
                Some(outcome) => {
                    let DiskRequest { token, operation, mailbox } = request;
                    mailbox.post(DiskMessage::Ended { token, operation, outcome });
                }
            }
        }
        self.fill();
    }
}
