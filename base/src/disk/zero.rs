//! Zeroes ahead of a journal, so that a later sync need not convert unwritten extents.
//!
//! A thread writes them into fresh files while the journal works on others. It begins once
//! the journal is in use, and lives no longer than its work.

use super::backend::{DiskMessage, Mailbox, lock};
use super::direct::{AlignedBytes, DirectAlignment, reopen};
use bytes::Bytes;
use rustix::fs::OFlags;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes to zero at a time. A write may have to wait for that many.
const CHUNK_BYTES: u64 = 256 << 10;

/// A file begins with its header.
const HEADER_BYTES: u64 = 4096;

/// Pause after a chunk. A quarter of a GB/s at most: foreground I/O of this disk comes first.
const PAUSE: Duration = Duration::from_millis(1);

/// Files of a journal that get zeroes in the background.
pub struct Zero {
    /// Number of the first file. This one and all after it hold no frame.
    pub from: u32,
    /// Called after each file with the number of finished files, from the journal's first.
    pub done: Box<dyn Fn(u32) + Send>,
}

/// The zeroing thread, as the writer sees it.
pub(super) struct Zeroing {
    shared: Arc<ZeroShared>,
    /// Files below this number belong to the writer.
    owned: u32,
    thread: Option<JoinHandle<()>>,
}

pub(super) struct ZeroShared {
    turn: Mutex<ZeroTurn>,
    stop: AtomicBool,
}

/// Who is where.
#[derive(Default)]
struct ZeroTurn {
    /// Files below this number belong to the writer, or will after the chunk under way.
    reached: u32,
    /// The file of the chunk under way.
    writing: Option<u32>,
}

impl Zeroing {
    /// Starts the thread. Without one, there are no zeroes.
    pub(super) fn start(files: &[Arc<File>], zero: Zero, mailbox: &Arc<Mailbox>) -> Zeroing {
        let stop = AtomicBool::new(false);
        let turn = ZeroTurn { reached: zero.from, writing: None };
        let shared = Arc::new(ZeroShared { turn: Mutex::new(turn), stop });
        let mut zeroing = Zeroing { shared: shared.clone(), owned: zero.from, thread: None };
        let fresh = files.get(zero.from as usize..).unwrap_or_default().to_vec();
        if !fresh.is_empty() {
            let mailbox = mailbox.clone();
            let builder = std::thread::Builder::new().name("journal-zero".into());
            match builder.spawn(move || zero_ahead(&shared, &fresh, &zero, &mailbox)) {
                Ok(thread) => zeroing.thread = Some(thread),
                Err(error) => tracing::debug!("no zeroes ahead of a journal: {error}"),
            }
        }
        zeroing
    }

    /// Whether a file belongs to the writer.
    pub(super) fn owns(&self, file: u32) -> bool {
        file < self.owned
    }

    /// Takes a file over for the writer. False if the thread is at it: then it sends
    /// [`DiskMessage::HandedOver`] after the chunk under way.
    pub(super) fn reach(&mut self, file: u32) -> bool {
        if self.owns(file) {
            return true;
        }
        let mut turn = lock(&self.shared.turn);
        turn.reached = turn.reached.max(file + 1);
        if turn.writing.is_none_or(|writing| writing >= turn.reached) {
            self.owned = turn.reached;
        }
        file < self.owned
    }

    /// Ends the thread.
    pub(super) fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread has reported its panic already.
            let _ = thread.join();
        }
        lock(&self.shared.turn).writing = None;
    }
}

/// Writes zeroes into files that the writer has not reached, except their headers. It opens each
/// file once more. The kernel reports an error of writeback once to each open file description
/// (fsync(2)). If a sync here took the error from the writer's description, the writer's next sync
/// would succeed without its data. A failure ends it: the writer learns of it from its own next
/// sync of the file.
fn zero_ahead(shared: &ZeroShared, files: &[Arc<File>], zero: &Zero, mailbox: &Mailbox) {
    for (number, file) in (zero.from..).zip(files) {
        let Ok(end) = file.metadata().map(|meta| meta.len()) else { return };
        let mut offset = HEADER_BYTES;
        let Some((file, zeroes)) = open(file, end) else { return };
        let zeroes = zeroes.as_slice();
        let mut is_ours = true;
        while offset < end && is_ours {
            if shared.stop.load(Ordering::Relaxed) {
                return;
            }
            is_ours = {
                let mut turn = lock(&shared.turn);
                turn.writing = (turn.reached <= number).then_some(number);
                turn.writing.is_some()
            };
            if !is_ours {
                break;
            }
            let part = (end - offset).min(CHUNK_BYTES);
            let written = file.write_all_at(&zeroes[..part as usize], offset);
            is_ours = {
                let mut turn = lock(&shared.turn);
                turn.writing = None;
                turn.reached <= number
            };
            if !is_ours {
                mailbox.post(DiskMessage::HandedOver);
            }
            if written.is_err() {
                return;
            }
            offset += part;
            std::thread::sleep(PAUSE);
        }
        // The writer syncs a file that it has taken over.
        if is_ours && rustix::fs::fdatasync(&file).is_err() {
            return;
        }
        (zero.done)(number + 1);
    }
}

/// A description of a file that ends at `end`, and the zeroes of a chunk for it. The writes are
/// direct where they can be. Zeroes in the page cache would be in the way of the writer's direct
/// writes, and of everybody's memory.
fn open(file: &File, end: u64) -> Option<(File, AlignedBytes)> {
    let zeroes = Bytes::from(vec![0; CHUNK_BYTES as usize]);
    let whole = end.saturating_sub(HEADER_BYTES) as usize;
    let direct = DirectAlignment::of(file).filter(|alignment| alignment.fits(HEADER_BYTES, whole));
    if let Some(alignment) = direct
        && let Ok(file) = reopen(file, OFlags::DIRECT)
    {
        return Some((file, alignment.align(zeroes)));
    }
    let alignment = DirectAlignment::NONE;
    Some((reopen(file, OFlags::empty()).ok()?, alignment.align(zeroes)))
}
