//! SIGINT and SIGTERM end the processes inside the namespaces, then this one, as the signal does by
//! default.

use super::{GRACE, namespace};
use anyhow::{Context as _, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Inodes of the namespaces whose processes are to end.
static WATCHED: Mutex<Option<Vec<u64>>> = Mutex::new(None);

/// A signal has come: this process is about to end by it.
static ENDING: AtomicBool = AtomicBool::new(false);

/// If this process is about to end by a signal, waits for that. The output of a command that the
/// signal ended means nothing.
pub fn wait_if_ending() {
    while ENDING.load(Ordering::SeqCst) {
        std::thread::park();
    }
}

fn watched() -> MutexGuard<'static, Option<Vec<u64>>> {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on these too.
pub fn watch(inodes: &[u64]) -> Result<()> {
    let mut watched = watched();
    if watched.is_none() {
        let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot handle signals")?;
        std::thread::Builder::new().name("wan-signals".into()).spawn(move || {
            for signal in signals.forever() {
                ENDING.store(true, Ordering::SeqCst);
                end();
                let _ = emulate_default_handler(signal);
            }
        })?;
    }
    watched.get_or_insert_default().extend(inodes);
    Ok(())
}

/// These no more.
pub fn forget(inodes: &[u64]) {
    if let Some(watched) = watched().as_mut() {
        watched.retain(|inode| !inodes.contains(inode));
    }
}

fn end() {
    let inodes = watched().clone().unwrap_or_default();
    for inode in inodes {
        namespace::end_processes(inode, GRACE);
    }
}
