//! The audit log: the actions of each client and their outcomes, as a line of JSON for each.
//!
//! ```text
//! STATE/audit.jsonl            the newest lines
//! STATE/audit.1.jsonl          those before, up to audit.8.jsonl; older ones are deleted
//! STATE/audit.refused.jsonl    who was not let in, or may not do what it asked, and up to audit.refused.4.jsonl
//! ```
//!
//! Each line names the SHA-256 of the line before it, also across files and restarts. So [`verify`]
//! finds a line that somebody removed, moved or edited. Refusals have files of their own. Each
//! address without a credential, and each credential, may only fill a part of them. So a refused
//! client cannot push out the lines of others.
//!
//! A thread of its own writes and syncs the lines. It takes several at once if they come faster
//! than the disk. Nobody waits for it: a failed disk must not keep an operator from stopping an
//! intruder. The next line counts the lines that were lost that way.

#[path = "audit/chain.rs"]
mod chain;
#[path = "audit/refusals.rs"]
mod refusals;

use anyhow::{Context as _, Result};
use chain::{Kind, Log};
pub use chain::{Line, Problem, read, verify};
use refusals::{RefusalSource, Refusals};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Most lines that wait for the writer.
const WAITING: usize = 4096;
/// Most refusals among them. They leave room for the lines of actions.
const REFUSALS_WAITING: u64 = 512;

/// An event. Its texts may be anything: the writer bounds and escapes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// On whose behalf; nothing for the installation.
    pub tenant: Option<String>,
    /// Name of the credential.
    pub name: Option<String>,
    /// Serial number of the certificate.
    pub credential: Option<String>,
    /// Where from.
    pub peer: String,
    /// The requested action, as in `volume.delete`.
    pub action: String,
    /// The object of the action.
    pub object: String,
    /// `ok`, or why not.
    pub outcome: String,
}

/// This moment, as lines have it.
pub fn now() -> String {
    moment(OffsetDateTime::now_utc())
}

fn moment(time: OffsetDateTime) -> String {
    // To the millisecond and of one length, so that times compare as text.
    let time = time.replace_nanosecond(time.nanosecond() / 1_000_000 * 1_000_000).unwrap_or(time);
    let text = time.format(&Rfc3339).unwrap_or_default();
    match text.strip_suffix('Z') {
        Some(whole) if !whole.contains('.') => format!("{whole}.000Z"),
        Some(parts) => format!("{parts:0<23}Z"),
        None => text,
    }
}

/// An event for the writer: its time, and its log.
struct Queued {
    time: String,
    kind: Kind,
    event: Event,
}

/// Where lines go. Cheap to clone; all clones write to the same files.
#[derive(Clone)]
pub struct Audit(Arc<AuditShared>);

struct AuditShared {
    lines: Mutex<Option<SyncSender<Box<Queued>>>>,
    /// Lost lines of the main log and of the log of refusals.
    lost: [Arc<AtomicU64>; 2],
    /// Refusals that wait for the writer.
    waiting: Arc<AtomicU64>,
    /// Of addresses, and of credentials.
    refusals: [Mutex<Refusals>; 2],
    writer: Mutex<Option<JoinHandle<()>>>,
}

fn left_out(count: u64) -> String {
    format!("{count} more refusals within a minute are left out")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Audit {
    /// Opens the log in the state directory of a store. Removes a line that a crash has cut short.
    ///
    /// # Errors
    /// If a file does not open.
    pub fn open(state: &Path) -> Result<Audit> {
        let lost = [Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0))];
        let logs = [
            Log::open(state, Kind::Main, lost[0].clone())?,
            Log::open(state, Kind::Refused, lost[1].clone())?,
        ];
        let (lines, waiting) = sync_channel(WAITING);
        let refusals = Arc::new(AtomicU64::new(0));
        let written = refusals.clone();
        let writer = std::thread::Builder::new()
            .name("audit".into())
            .spawn(move || write(logs, &waiting, &written))
            .context("cannot start the thread of the audit log")?;
        let (lines, writer) = (Mutex::new(Some(lines)), Mutex::new(Some(writer)));
        let waiting = refusals;
        let refusals = [(); 2].map(|()| Mutex::new(Refusals::new(Instant::now())));
        Ok(Audit(Arc::new(AuditShared { lines, lost, waiting, refusals, writer })))
    }

    /// Writes a line, soon.
    pub fn write(&self, event: Event) {
        self.queue(Kind::Main, event);
    }

    /// Somebody was not let in, who has shown no credential.
    pub fn refused(&self, peer: SocketAddr, reason: &str) {
        self.refused_at(Instant::now(), peer, reason);
    }

    fn refused_at(&self, now: Instant, peer: SocketAddr, reason: &str) {
        let (summary, write) = lock(&self.0.refusals[0]).note(now, peer.ip());
        self.left_out(summary);
        if write {
            let (action, outcome) = ("session.open".to_owned(), reason.to_owned());
            self.refusal(Event { peer: peer.to_string(), action, outcome, ..Event::default() });
        }
    }

    /// Somebody may not do what it asked with its credential.
    pub fn refused_request(&self, event: Event) {
        let source = RefusalSource::Credential(event.credential.clone().unwrap_or_default());
        let (summary, write) = lock(&self.0.refusals[1]).note(Instant::now(), source);
        self.requests_left_out(summary);
        if write {
            self.refusal(event);
        }
    }

    /// Every now and then: writes how many refusals were left out.
    pub fn tick(&self) {
        let now = Instant::now();
        let summary = lock(&self.0.refusals[0]).end(now);
        self.left_out(summary);
        let summary = lock(&self.0.refusals[1]).end(now);
        self.requests_left_out(summary);
    }

    fn left_out(&self, summary: Vec<(String, u64)>) {
        for (peer, count) in summary {
            let (action, outcome) = ("session.open".to_owned(), left_out(count));
            self.refusal(Event { peer, action, outcome, ..Event::default() });
        }
    }

    fn requests_left_out(&self, summary: Vec<(String, u64)>) {
        for (credential, count) in summary {
            let (action, outcome) = ("request.refused".to_owned(), left_out(count));
            let credential = Some(credential);
            self.refusal(Event { credential, action, outcome, ..Event::default() });
        }
    }

    fn refusal(&self, event: Event) {
        if self.0.waiting.load(Ordering::Relaxed) >= REFUSALS_WAITING {
            self.0.lost[Kind::Refused as usize].fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.0.waiting.fetch_add(1, Ordering::Relaxed);
        self.queue(Kind::Refused, event);
    }

    fn queue(&self, kind: Kind, event: Event) {
        let lines = lock(&self.0.lines);
        // Under the lock, so that times are in the order of lines.
        let queued = Box::new(Queued { time: now(), kind, event });
        match lines.as_ref().map(|lines| lines.try_send(queued)) {
            Some(Ok(())) => {}
            Some(Err(TrySendError::Full(_) | TrySendError::Disconnected(_))) | None => {
                self.0.lost[kind as usize].fetch_add(1, Ordering::Relaxed);
                if kind == Kind::Refused {
                    self.0.waiting.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
    }
}

impl Drop for AuditShared {
    fn drop(&mut self) {
        *lock(&self.lines) = None;
        if let Some(writer) = lock(&self.writer).take() {
            let _ = writer.join();
        }
    }
}

fn write(mut logs: [Log; 2], waiting: &Receiver<Box<Queued>>, refusals: &AtomicU64) {
    while let Ok(first) = waiting.recv() {
        let mut batches = [Vec::new(), Vec::new()];
        let mut next = Some(first);
        while let Some(queued) = next {
            if queued.kind == Kind::Refused {
                refusals.fetch_sub(1, Ordering::Relaxed);
            }
            batches[queued.kind as usize].push((queued.time, queued.event));
            next = waiting.try_recv().ok();
        }
        for (log, batch) in logs.iter_mut().zip(batches) {
            if !batch.is_empty() {
                log.append(batch);
            }
        }
    }
}

#[cfg(test)]
#[path = "audit/tests.rs"]
mod tests;
