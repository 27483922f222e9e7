//! The files of one journal: carries out the operations that the engine asks of its disk.
//!
//! Promises: the disk does writes and syncs in the order given, one after another. It does a small
//! write at once if nothing else is under way. One thread does all others. The page cache answers
//! reads at once, or another thread does. After a write or sync has failed the disk writes nothing
//! more, and every later one fails too. The reason: a second fsync may succeed without having
//! stored the data that the first one lost. The disk knows nothing of the frames in the files.

use crate::histogram::Histogram;
use bytes::{Bytes, BytesMut};
use longhaul_core::host::{DiskOperation, DiskResult};
use rustix::io::{Errno, ReadWriteFlags};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Most buffers of one gathered write, as many as Linux takes (`IOV_MAX`).
const MAX_SLICES: usize = 1024;

/// Bytes to zero at a time ahead of the journal. A write may have to wait for that many.
const ZERO_CHUNK_BYTES: u64 = 256 << 10;

/// After this many bytes since a sync, the kernel starts to send them to the disk before the next
/// sync. If a client flushes after each write or two, its data is on its way when the flush
/// arrives. That shortens the flush (`docs/performance.md`). For other clients these are a few
/// small requests to the disk for each sync. The number is a guess.
const EAGER_BYTES: u64 = 64 << 10;

/// Longest write by the caller's own thread, in bytes. A copy of it into the page cache takes less
/// time than waking another thread (`docs/performance.md`).
const DIRECT_BYTES: usize = 64 << 10;

/// If a write by the caller's own thread takes longer than this, the kernel held it up. When much
/// memory is dirty, the kernel makes every writer wait. ...
const DIRECT_LIMIT: Duration = Duration::from_millis(1);

/// ... Then the journal's thread does the waiting for this long.
const DIRECT_PAUSE: Duration = Duration::from_secs(1);

/// Files of a journal that get zeroes in the background.
pub struct Zero {
    /// Number of the first file.
    pub from: u32,
    /// This file and all after it, opened only for this purpose. The kernel reports a background
    /// write error once to each open file description (fsync(2)). If a sync here took the error
    /// from the writer's description, the writer's next sync would succeed without its data.
    pub files: Vec<File>,
    /// Called after each file with the number of finished files, from the journal's first.
    pub done: Box<dyn Fn(u32) + Send>,
}

/// The journal files of a volume and the thread that writes them.
pub struct Disk {
    shared: Arc<Shared>,
    /// Commands of this turn; [`Disk::submit`] hands them over together.
    batch: Vec<Command>,
    /// The caller's own thread writes nothing before this time.
    direct_from: Instant,
    thread: Option<JoinHandle<()>>,
    zeroer: Option<JoinHandle<()>>,
}

enum Command {
    Write { id: u64, file: u32, offset: u64, data: Bytes, sync: bool },
    Sync { id: u64, file: u32 },
}

struct Shared {
    files: Vec<File>,
    names: String,
    /// Reads beyond the end of a file return zeroes.
    sparse: bool,
    queue: Mutex<Queue>,
    work: Condvar,
    /// Writes and syncs that the thread has and has not finished.
    under_way: AtomicUsize,
    state: Mutex<Written>,
    done: Mutex<Vec<DiskResult>>,
    /// Whether the front knows of results that it has not taken.
    told: AtomicBool,
    notify: Notify,
    /// Files below this number belong to the writer, which has reached them.
    reached: Mutex<u32>,
    /// The same number, for readers that must not wait for zeroes.
    owned: AtomicU32,
    stop: AtomicBool,
    writes: AtomicU64,
    syncs: AtomicU64,
    bytes: AtomicU64,
    times: Mutex<DiskTimes>,
}

/// The state of the writes.
#[derive(Default)]
struct Written {
    /// Why one failed. The disk tries nothing after that.
    failed: Option<String>,
    /// Bytes since the last sync.
    unsynced: u64,
}

#[derive(Default)]
struct Queue {
    commands: VecDeque<Command>,
    closed: bool,
    sleeping: bool,
}

/// Totals of a journal's disk.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct DiskCounters {
    /// Write calls.
    pub writes: u64,
    /// Calls of fdatasync.
    pub syncs: u64,
    /// Bytes written.
    pub bytes: u64,
}

/// How long a journal's disk took.
#[derive(Clone, Debug, Default)]
pub struct DiskTimes {
    /// Write calls.
    pub write: Histogram,
    /// Calls of fdatasync.
    pub sync: Histogram,
    /// Reads that the page cache could not answer.
    pub read: Histogram,
}

/// A panic with the lock held leaves queues of whole entries behind: they stay usable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Disk {
    /// Starts the thread of a journal. `names` names the files in errors. The files of `zero` hold
    /// no frame. They get zeroes in the background, so that a later sync need not convert unwritten
    /// extents.
    ///
    /// # Errors
    /// If no thread can start.
    pub fn start(files: Vec<File>, names: String, zero: Option<Zero>) -> io::Result<Disk> {
        Disk::begin(files, names, zero, false)
    }

    /// Like [`Disk::start`], for files that grow: reads beyond their ends return zeroes.
    ///
    /// # Errors
    /// If no thread can start.
    pub fn start_sparse(files: Vec<File>, names: String) -> io::Result<Disk> {
        Disk::begin(files, names, None, true)
    }

    fn begin(
        files: Vec<File>,
        names: String,
        zero: Option<Zero>,
        sparse: bool,
    ) -> io::Result<Disk> {
        let shared = Arc::new(Shared {
            files,
            names,
            sparse,
            queue: Mutex::default(),
            work: Condvar::new(),
            under_way: AtomicUsize::new(0),
            state: Mutex::default(),
            done: Mutex::default(),
            told: AtomicBool::new(false),
            notify: Notify::new(),
            reached: Mutex::new(0),
            owned: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            writes: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            times: Mutex::default(),
        });
        let writer = shared.clone();
        let thread = std::thread::Builder::new()
            .name("journal".into())
            .spawn(move || Writer { shared: writer }.run())?;
        let zeroer = match zero {
            Some(zero) if !zero.files.is_empty() => {
                let shared = shared.clone();
                let builder = std::thread::Builder::new().name("journal-zero".into());
                Some(builder.spawn(move || zero_ahead(&shared, &zero))?)
            }
            _ => None,
        };
        Ok(Disk {
            shared,
            batch: Vec::new(),
            direct_from: Instant::now(),
            thread: Some(thread),
            zeroer,
        })
    }

    /// Takes an operation. Returns the result of a small write that need not wait for another one,
    /// or of a read that the page cache can answer. All other results come from
    /// [`Disk::take_results`] after [`Disk::submit`].
    pub fn start_operation(&mut self, operation: DiskOperation) -> Option<DiskResult> {
        match operation {
            DiskOperation::Write { id, file, offset, data, sync } => {
                if !sync && self.may_write_directly(file, &data) {
                    let command = Command::Write { id, file, offset, data, sync };
                    let begun = Instant::now();
                    let result = self.shared.execute(std::slice::from_ref(&command));
                    if begun.elapsed() > DIRECT_LIMIT {
                        self.direct_from = Instant::now() + DIRECT_PAUSE;
                    }
                    return Some(match result {
                        Ok(()) => DiskResult::Done { id },
                        Err(error) => DiskResult::Failed { id, error },
                    });
                }
                self.batch.push(Command::Write { id, file, offset, data, sync });
                None
            }
            DiskOperation::Sync { id, file } => {
                self.batch.push(Command::Sync { id, file });
                None
            }
            DiskOperation::Read { id, file, offset, bytes } => {
                let Some(handle) = self.shared.files.get(file as usize) else {
                    return Some(self.shared.failed(id, file, "read", "no such file"));
                };
                let mut data = BytesMut::zeroed(bytes);
                let slices = &mut [IoSliceMut::new(&mut data)];
                if let Ok(read) =
                    rustix::io::preadv2(handle, slices, offset, ReadWriteFlags::NOWAIT)
                    && (read == bytes || self.shared.is_end(handle, offset, read))
                {
                    return Some(DiskResult::Data { id, data: data.freeze() });
                }
                let shared = self.shared.clone();
                tokio::task::spawn_blocking(move || {
                    let begun = Instant::now();
                    let handle = &shared.files[file as usize];
                    let read = match read_up_to(handle, &mut data, offset) {
                        Ok(read) if read < bytes && !shared.sparse => {
                            Err(io::ErrorKind::UnexpectedEof.into())
                        }
                        read => read,
                    };
                    let result = match read {
                        Ok(_) => DiskResult::Data { id, data: data.freeze() },
                        Err(error) => shared.failed(id, file, "read", &error.to_string()),
                    };
                    lock(&shared.times).read.record(begun.elapsed());
                    shared.complete([result]);
                });
                None
            }
        }
    }

    fn may_write_directly(&self, file: u32, data: &Bytes) -> bool {
        data.len() <= DIRECT_BYTES
            && self.batch.is_empty()
            && self.shared.under_way.load(Ordering::Acquire) == 0
            // The file may still wait for zeroes before the writer can have it.
            && file < self.shared.owned.load(Ordering::Relaxed)
            && Instant::now() >= self.direct_from
    }

    /// Hands the operations started since the last call to the thread, with at most one wake-up.
    pub fn submit(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        self.shared.under_way.fetch_add(self.batch.len(), Ordering::Relaxed);
        let mut queue = lock(&self.shared.queue);
        queue.commands.extend(self.batch.drain(..));
        if std::mem::take(&mut queue.sleeping) {
            drop(queue);
            self.shared.work.notify_one();
        }
    }

    /// Takes the results since the last call.
    pub fn take_results(&self) -> Vec<DiskResult> {
        self.shared.told.store(false, Ordering::Release);
        std::mem::take(&mut *lock(&self.shared.done))
    }

    /// Resolves when [`Disk::take_results`] has results.
    pub fn watch(&self) -> impl Future<Output = ()> + use<> {
        let shared = self.shared.clone();
        async move { shared.notify.notified().await }
    }

    /// The times of its operations.
    pub fn times(&self) -> DiskTimes {
        lock(&self.shared.times).clone()
    }

    /// Its totals.
    pub fn counters(&self) -> DiskCounters {
        DiskCounters {
            writes: self.shared.writes.load(Ordering::Relaxed),
            syncs: self.shared.syncs.load(Ordering::Relaxed),
            bytes: self.shared.bytes.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.submit();
        self.shared.stop.store(true, Ordering::Relaxed);
        lock(&self.shared.queue).closed = true;
        self.shared.work.notify_one();
        for thread in [self.thread.take(), self.zeroer.take()].into_iter().flatten() {
            // The thread has reported its panic already.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Whether the file ends after these bytes at `offset`, and may end there.
    fn is_end(&self, file: &File, offset: u64, read: usize) -> bool {
        self.sparse && file.metadata().is_ok_and(|meta| meta.len() <= offset + read as u64)
    }

    fn complete(&self, results: impl IntoIterator<Item = DiskResult>) {
        lock(&self.done).extend(results);
        if !self.told.swap(true, Ordering::AcqRel) {
            self.notify.notify_one();
        }
    }

    fn failed(&self, id: u64, file: u32, what: &str, error: &str) -> DiskResult {
        DiskResult::Failed { id, error: format!("{what} of {}.{file:04}: {error}", self.names) }
    }
}

struct Writer {
    shared: Arc<Shared>,
}

impl Writer {
    fn run(self) {
        while let Some(commands) = self.next() {
            let results = self.shared.execute(&commands);
            // Drop the buffers before the front asks for new ones.
            let ids: Vec<u64> = commands.iter().map(Command::id).collect();
            drop(commands);
            self.shared.under_way.fetch_sub(ids.len(), Ordering::Release);
            self.shared.complete(ids.into_iter().map(|id| match &results {
                Ok(()) => DiskResult::Done { id },
                Err(error) => DiskResult::Failed { id, error: error.clone() },
            }));
        }
    }

    /// The next commands that one system call, or one write and one sync, can carry out.
    fn next(&self) -> Option<Vec<Command>> {
        let mut queue = lock(&self.shared.queue);
        loop {
            if let Some(first) = queue.commands.pop_front() {
                let mut run = vec![first];
                while run.len() < MAX_SLICES
                    && let Some(next) = queue.commands.front()
                    && run.last().is_some_and(|last| last.joins(next))
                    && let Some(next) = queue.commands.pop_front()
                {
                    run.push(next);
                }
                return Some(run);
            }
            if queue.closed {
                return None;
            }
            queue.sleeping = true;
            queue = self.shared.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.sleeping = false;
        }
    }
}

impl Shared {
    /// Carries out commands that one system call, or one write and one sync, can carry out.
    fn execute(&self, commands: &[Command]) -> Result<(), String> {
        // Held throughout, so that groups of commands run one after another.
        let mut state = lock(&self.state);
        if let Some(error) = &state.failed {
            return Err(format!("not tried after: {error}"));
        }
        let done = self.attempt(&mut state.unsynced, commands);
        if let Err(error) = &done {
            state.failed = Some(error.clone());
        }
        done
    }

    fn attempt(&self, unsynced: &mut u64, commands: &[Command]) -> Result<(), String> {
        let Some(number) = commands.first().map(Command::file) else { return Ok(()) };
        let context = |what: &str, error: &dyn std::fmt::Display| {
            format!("{what} of {}.{number:04}: {error}", self.names)
        };
        let Some(file) = self.files.get(number as usize) else {
            return Err(context("write", &"no such file"));
        };
        let mut slices = Vec::with_capacity(commands.len());
        let mut start = None;
        let mut sync = false;
        for command in commands {
            match command {
                Command::Write { offset, data, sync: and_sync, .. } => {
                    start.get_or_insert(*offset);
                    slices.push(IoSlice::new(data));
                    sync |= and_sync;
                }
                Command::Sync { .. } => sync = true,
            }
        }
        if let Some(start) = start {
            self.reach(number);
            let bytes: usize = slices.iter().map(|slice| slice.len()).sum();
            let begun = Instant::now();
            write_all(file, &mut slices, start).map_err(|error| context("write", &error))?;
            lock(&self.times).write.record(begun.elapsed());
            self.writes.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            *unsynced += bytes as u64;
            if !sync && *unsynced <= EAGER_BYTES {
                start_writeback(file, start, bytes as u64)
                    .map_err(|error| context("write", &error))?;
            }
        }
        if sync {
            self.syncs.fetch_add(1, Ordering::Relaxed);
            *unsynced = 0;
            let begun = Instant::now();
            rustix::fs::fdatasync(file).map_err(|error| context("fdatasync", &error))?;
            lock(&self.times).sync.record(begun.elapsed());
        }
        Ok(())
    }

    /// Takes a file over from the zeroing thread. Waits for the chunk under way.
    fn reach(&self, file: u32) {
        if self.owned.load(Ordering::Relaxed) <= file {
            let mut reached = lock(&self.reached);
            *reached = (*reached).max(file + 1);
            self.owned.store(*reached, Ordering::Relaxed);
        }
    }
}

impl Command {
    fn id(&self) -> u64 {
        match self {
            Command::Write { id, .. } | Command::Sync { id, .. } => *id,
        }
    }

    fn file(&self) -> u32 {
        match self {
            Command::Write { file, .. } | Command::Sync { file, .. } => *file,
        }
    }

    /// Whether this and `next` can be one call. So it is if `next` writes on where this ends, or is
    /// the sync that this does anyway or that follows a write.
    fn joins(&self, next: &Command) -> bool {
        match (self, next) {
            (
                Command::Write { file, offset, data, sync: false, .. },
                Command::Write { file: next_file, offset: next_offset, .. },
            ) => file == next_file && offset + data.len() as u64 == *next_offset,
            (_, Command::Sync { file, .. }) => self.file() == *file,
            _ => false,
        }
    }
}

/// Reads until `data` is full or the file ends. Returns the number of bytes.
fn read_up_to(file: &File, data: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < data.len() {
        match file.read_at(&mut data[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

fn write_all(file: &File, slices: &mut [IoSlice<'_>], mut offset: u64) -> Result<(), Errno> {
    let mut rest = slices;
    while rest.iter().any(|slice| !slice.is_empty()) {
        match rustix::io::pwritev(file, rest, offset) {
            Ok(0) => return Err(Errno::IO),
            Ok(written) => {
                offset += written as u64;
                IoSlice::advance_slices(&mut rest, written);
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Has the kernel start writing a range to the disk, without waiting for it.
#[allow(unsafe_code)]
fn start_writeback(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let range = (offset.try_into(), bytes.try_into());
    let (Ok(offset), Ok(bytes)) = range else { return Err(Errno::OVERFLOW.into()) };
    // SAFETY: the descriptor is open as long as `file` is borrowed, and the call takes no memory.
    let done = unsafe {
        libc::sync_file_range(file.as_raw_fd(), offset, bytes, libc::SYNC_FILE_RANGE_WRITE)
    };
    if done == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        // A sandbox may not know or may forbid the call. Then the sync does all of the work.
        error if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => Ok(()),
        error => Err(error),
    }
}

/// Writes zeroes into fresh files that the writer has not reached, except their first 4 KiB, which
/// hold the header. A failure ends it: the writer learns of it from its own next sync of the file.
fn zero_ahead(shared: &Shared, zero: &Zero) {
    let zeroes = vec![0; ZERO_CHUNK_BYTES as usize];
    for (number, file) in (zero.from..).zip(&zero.files) {
        let Ok(end) = file.metadata().map(|meta| meta.len()) else { return };
        let mut offset = 4096;
        while offset < end {
            if shared.stop.load(Ordering::Relaxed) {
                return;
            }
            let reached = lock(&shared.reached);
            if *reached > number {
                break;
            }
            let part = (end - offset).min(ZERO_CHUNK_BYTES);
            if file.write_all_at(&zeroes[..part as usize], offset).is_err() {
                return;
            }
            drop(reached);
            offset += part;
            // A quarter of a GB/s at most: foreground I/O of this disk comes first.
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        if rustix::fs::fdatasync(file).is_err() {
            return;
        }
        (zero.done)(number + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(dir: &tempfile::TempDir, count: u32) -> Vec<File> {
        (0..count)
            .map(|number| {
                let mut options = File::options();
                let file = options.read(true).write(true).create(true).truncate(true);
                let file = file.open(dir.path().join(format!("journal.{number:04}"))).unwrap();
                file.set_len(1 << 20).unwrap();
                file
            })
            .collect()
    }

    /// Opens the files of [`files`] once more, from this one on.
    fn again(dir: &tempfile::TempDir, from: u32, count: u32) -> Vec<File> {
        let path = |number| dir.path().join(format!("journal.{number:04}"));
        (from..count).map(|n| File::options().write(true).open(path(n)).unwrap()).collect()
    }

    async fn results(disk: &Disk, count: usize) -> Vec<DiskResult> {
        let mut all = Vec::new();
        while all.len() < count {
            let watch = tokio::time::timeout(Duration::from_secs(10), disk.watch());
            watch.await.expect("the thread answers");
            all.extend(disk.take_results());
        }
        all
    }

    fn write(id: u64, file: u32, offset: u64, data: &'static [u8]) -> DiskOperation {
        DiskOperation::Write { id, file, offset, data: Bytes::from_static(data), sync: false }
    }

    #[tokio::test]
    async fn writes_syncs_and_reads() {
        let dir = tempfile::tempdir().unwrap();
        let mut disk = Disk::start(files(&dir, 2), "journal".into(), None).unwrap();
        assert_eq!(disk.start_operation(write(1, 0, 4096, b"abc")), None);
        assert_eq!(disk.start_operation(write(2, 0, 4099, b"def")), None);
        assert_eq!(disk.start_operation(DiskOperation::Sync { id: 3, file: 0 }), None);
        assert_eq!(disk.start_operation(write(4, 1, 0, b"x")), None);
        disk.submit();
        let done = results(&disk, 4).await;
        assert_eq!(done, (1..=4).map(|id| DiskResult::Done { id }).collect::<Vec<_>>());
        assert_eq!((disk.counters().writes, disk.counters().syncs), (2, 1), "adjacent ones join");
        let read = DiskOperation::Read { id: 5, file: 0, offset: 4096, bytes: 6 };
        let data = match disk.start_operation(read) {
            Some(result) => result,
            None => results(&disk, 1).await.remove(0),
        };
        assert_eq!(data, DiskResult::Data { id: 5, data: Bytes::from_static(b"abcdef") });
        let beyond = DiskOperation::Read { id: 6, file: 0, offset: (1 << 20) - 1, bytes: 6 };
        assert_eq!(disk.start_operation(beyond), None);
        let failed = results(&disk, 1).await.remove(0);
        assert!(matches!(failed, DiskResult::Failed { id: 6, error } if error.contains("0000")));
    }

    #[tokio::test]
    async fn a_failed_write_latches() {
        let dir = tempfile::tempdir().unwrap();
        let mut all = files(&dir, 2);
        all[0] = File::open(dir.path().join("journal.0000")).unwrap();
        let mut disk = Disk::start(all, "journal".into(), None).unwrap();
        disk.start_operation(write(1, 0, 0, b"read-only"));
        disk.start_operation(DiskOperation::Sync { id: 2, file: 1 });
        disk.start_operation(write(3, 1, 0, b"fine but too late"));
        disk.submit();
        for (result, expected) in results(&disk, 3).await.into_iter().zip(1..) {
            let DiskResult::Failed { id, error } = result else { panic!("{result:?}") };
            assert_eq!(id, expected);
            assert!(error.contains("write of journal.0000"), "{error}");
        }
        assert_eq!(std::fs::read(dir.path().join("journal.0001")).unwrap()[0], 0);
    }

    #[tokio::test]
    async fn small_writes_that_need_not_wait_are_done_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut all = files(&dir, 2);
        all[1] = File::open(dir.path().join("journal.0001")).unwrap();
        let mut disk = Disk::start(all, "journal".into(), None).unwrap();
        // Any time of a write on a loaded machine is fine.
        let start = |disk: &mut Disk, operation| {
            disk.direct_from = Instant::now();
            disk.start_operation(operation)
        };
        assert_eq!(start(&mut disk, write(1, 0, 4096, b"first")), None, "it takes the file over");
        disk.submit();
        results(&disk, 1).await;
        let done = Some(DiskResult::Done { id: 2 });
        assert_eq!(start(&mut disk, write(2, 0, 8192, b"second")), done);
        assert_eq!(std::fs::read(dir.path().join("journal.0000")).unwrap()[8192..8198], *b"second");
        assert_eq!(disk.counters().writes, 2);
        let long = Bytes::from(vec![1; DIRECT_BYTES + 1]);
        let long = DiskOperation::Write { id: 3, file: 0, offset: 0, data: long, sync: false };
        assert_eq!(start(&mut disk, long), None);
        assert_eq!(start(&mut disk, write(4, 0, 12288, b"x")), None, "another one waits");
        disk.submit();
        results(&disk, 2).await;
        assert_eq!(start(&mut disk, DiskOperation::Sync { id: 5, file: 0 }), None);
        assert_eq!(start(&mut disk, write(6, 0, 12288, b"y")), None, "a sync waits");
        disk.submit();
        results(&disk, 2).await;
        // A failure stops both kinds of writes.
        disk.shared.owned.store(2, Ordering::Relaxed);
        let failed = start(&mut disk, write(7, 1, 0, b"read-only"));
        assert!(matches!(failed, Some(DiskResult::Failed { id: 7, .. })), "{failed:?}");
        assert_eq!(start(&mut disk, DiskOperation::Sync { id: 8, file: 0 }), None);
        disk.submit();
        let failed = results(&disk, 1).await.remove(0);
        assert!(matches!(failed, DiskResult::Failed { id: 8, error } if error.contains("after")));
    }

    #[tokio::test]
    async fn zeroing_stays_out_of_what_was_reached() {
        let dir = tempfile::tempdir().unwrap();
        let all = files(&dir, 3);
        for file in &all {
            file.write_all_at(&[7; 1 << 20], 0).unwrap();
        }
        let mut disk = Disk::start(all, "journal".into(), None).unwrap();
        disk.start_operation(write(1, 1, 8192, b"kept"));
        disk.submit();
        results(&disk, 1).await;
        let (told, done) = std::sync::mpsc::channel();
        let done_to = Box::new(move |files| told.send(files).unwrap());
        zero_ahead(&disk.shared, &Zero { from: 1, files: again(&dir, 1, 3), done: done_to });
        let done: Vec<u32> = done.try_iter().collect();
        assert_eq!(done, [2, 3], "a file that the writer took over is dealt with");
        let read = |n: u32| std::fs::read(dir.path().join(format!("journal.{n:04}"))).unwrap();
        assert!(read(0).iter().all(|byte| *byte == 7), "already written before it was opened");
        assert_eq!(&read(1)[8192..8196], b"kept");
        assert!(read(2)[..4096].iter().all(|byte| *byte == 7), "the header stays");
        assert!(read(2)[4096..].iter().all(|byte| *byte == 0));
    }

    #[tokio::test]
    async fn zeroing_goes_on_where_it_ended() {
        let dir = tempfile::tempdir().unwrap();
        let all = files(&dir, 4);
        for file in &all {
            file.write_all_at(&[7; 1 << 20], 0).unwrap();
        }
        let (told, done) = std::sync::mpsc::channel();
        let told = Box::new(move |files| told.send(files).unwrap());
        let zero = Zero { from: 2, files: again(&dir, 2, 4), done: told };
        let disk = Disk::start(all, "journal".into(), Some(zero)).unwrap();
        assert_eq!([done.recv().unwrap(), done.recv().unwrap()], [3, 4]);
        drop(disk);
        let read = |n: u32| std::fs::read(dir.path().join(format!("journal.{n:04}"))).unwrap();
        assert!((0..2).all(|n| read(n).iter().all(|byte| *byte == 7)));
        assert!((2..4).all(|n| read(n)[4096..].iter().all(|byte| *byte == 0)));
    }
}
