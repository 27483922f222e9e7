//! The threads of a store that serve sessions: sockets, encryption, lanes. The engines of the
//! sessions' volumes run there, too.

use std::io;
use std::thread::JoinHandle;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// Most threads that wait for the disk at a time, for each link thread.
const BLOCKING_THREADS: usize = 32;

/// The threads, or the current runtime in their place.
pub(crate) struct LinkThreads {
    /// At least one.
    runtimes: Vec<Handle>,
    threads: Vec<LinkThread>,
}

struct LinkThread {
    /// The thread ends when this goes.
    running: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl LinkThreads {
    /// Starts `count` threads. For one there is no thread: the current runtime does its work, and a
    /// request wakes no other thread.
    pub fn start(count: usize) -> io::Result<LinkThreads> {
        let mut all = LinkThreads { runtimes: Vec::new(), threads: Vec::new() };
        if count <= 1 {
            all.runtimes.push(Handle::current());
            return Ok(all);
        }
        for number in 0..count {
            let runtime = Builder::new_current_thread()
                .enable_all()
                .max_blocking_threads(BLOCKING_THREADS)
                .build()?;
            let (running, stopped) = oneshot::channel::<()>();
            all.runtimes.push(runtime.handle().clone());
            let builder = std::thread::Builder::new().name(format!("link-{number}"));
            let thread = builder.spawn(move || {
                let _ = runtime.block_on(stopped);
            })?;
            all.threads.push(LinkThread { running: Some(running), thread: Some(thread) });
        }
        Ok(all)
    }

    /// One for each thread.
    pub fn runtimes(&self) -> &[Handle] {
        &self.runtimes
    }
}

impl Drop for LinkThread {
    fn drop(&mut self) {
        drop(self.running.take());
        if let Some(thread) = self.thread.take() {
            // It has reported its panic already.
            let _ = thread.join();
        }
    }
}
