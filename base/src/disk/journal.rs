//! The disk of a journal. See [`super`] for the promises.

use super::area::FileArea;
use super::backend::{FileAction, WriteData};
use super::counters::{DiskCounters, DiskTimes};
use super::direct::{DirectAlignment, reopen};
use super::inline::{InlineWrites, start_writeback};
use super::port::{DiskRead, OperationEnd, Port, failed, read_cached, read_ended, reason};
use super::zero::{Zero, Zeroing};
use bytes::Bytes;
use longhaul_core::host::{DiskOperation, DiskResult};
use rustix::fs::OFlags;
use std::cell::OnceCell;
use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;

/// After this many bytes since a sync, the kernel starts to send them to the disk before the next
/// sync. If a client flushes after each write or two, its data is on its way when the flush
/// arrives. That shortens the flush (`docs/performance.md`). For other clients these are a few
/// small requests to the disk for each sync. The number is a guess.
const EAGER_BYTES: u64 = 64 << 10;

/// The zeroes begin once a write goes beyond this place in the first file. Each attach writes a
/// frame, and a volume that nobody writes has only a few of these.
const UNUSED_BYTES: u64 = 64 << 10;

/// Most open file descriptions of a file for direct writes, and so most writes with a sync that are
/// under way in a file.
const DIRECT_MAX: usize = 2;

/// The files of a journal, and the operations on them that are under way.
pub struct JournalDisk {
    files: Vec<JournalFile>,
    names: String,
    port: Port<JournalStep>,
    /// Results that nobody has taken.
    results: Vec<DiskResult>,
    /// Why a write or sync failed. The disk begins none after that.
    failed: Option<String>,
    inline: InlineWrites,
    /// Bytes that the caller's thread has written since the last sync.
    unsynced: u64,
    /// See [`UNUSED_BYTES`].
    zero: Option<Zero>,
    zeroing: Option<Zeroing>,
    /// The file of the last write.
    entered: usize,
    counters: DiskCounters,
    times: DiskTimes,
}

/// One file of a journal.
struct JournalFile {
    /// For buffered writes, syncs and reads.
    plain: Arc<File>,
    /// Where the journal's file starts in `plain`.
    start: u64,
    /// A sync of `plain` is under way.
    is_syncing: bool,
    /// Open only while the journal writes the file.
    direct: Vec<DirectFile>,
    /// `None`: the file takes no direct writes.
    alignment: OnceCell<Option<DirectAlignment>>,
    /// Writes under way through `plain`.
    plain_writes: usize,
    /// Writes under way through `direct`.
    direct_writes: usize,
    /// Writes and syncs that others hold up, each in order.
    held_writes: VecDeque<JournalWrite>,
    held_syncs: VecDeque<u64>,
}

/// A description of a file for direct writes.
struct DirectFile {
    file: Arc<File>,
    /// A write with a sync is under way.
    is_syncing: bool,
}

struct JournalWrite {
    id: u64,
    offset: u64,
    data: Bytes,
    sync: bool,
}

/// The description that a write goes through.
#[derive(Clone, Copy)]
enum Through {
    Plain,
    Direct(usize),
}

/// An operation under way.
enum JournalStep {
    Read(DiskRead),
    Write { id: u64, file: u32, through: Through, sync: bool },
    Sync { id: u64, file: u32 },
}

impl JournalDisk {
    /// The disk of a journal with these files, which are open for reads and writes. Each has an
    /// open file description of its own. `names` names the files in errors. The files of `zero` are
    /// whole files and hold no frame. They get zeroes in the background once the journal is in use.
    pub fn start(files: Vec<FileArea>, names: String, zero: Option<Zero>) -> JournalDisk {
        JournalDisk {
            files: files.into_iter().map(JournalFile::new).collect(),
            names,
            port: Port::new(),
            results: Vec::new(),
            failed: None,
            inline: InlineWrites::new(),
            unsynced: 0,
            zero,
            zeroing: None,
            entered: 0,
            counters: DiskCounters::default(),
            times: DiskTimes::default(),
        }
    }

    /// Takes an operation. Returns the result of a small write that nothing holds up, or of a read
    /// that the page cache can answer. All other results come from [`JournalDisk::take_results`]
    /// after [`JournalDisk::submit`].
    pub fn start_operation(&mut self, operation: DiskOperation) -> Option<DiskResult> {
        let (id, number) = place(&operation);
        let Some(file) = self.files.get_mut(number as usize) else {
            return Some(failed(id, &self.names, number, "use", "no such file"));
        };
        match operation {
            DiskOperation::Read { offset, bytes, .. } => {
                let place = file.start + offset;
                match read_cached(&file.plain, place, bytes, false) {
                    Ok(data) => Some(DiskResult::Data { id, data }),
                    Err(data) => {
                        let read = JournalStep::Read(DiskRead { id, file: number });
                        self.port.start(read, &file.plain, place, FileAction::Read(data));
                        None
                    }
                }
            }
            _ if self.failed.is_some() => Some(self.refuse(id)),
            DiskOperation::Write { offset, data, sync, .. } => {
                let write = JournalWrite { id, offset, data, sync };
                self.enter(number, offset);
                if self.may_write_inline(number, &write) {
                    return Some(self.write_inline(number, &write));
                }
                self.files[number as usize].held_writes.push_back(write);
                self.begin(number);
                None
            }
            DiskOperation::Sync { .. } => {
                file.held_syncs.push_back(id);
                self.begin(number);
                None
            }
        }
    }

    /// Begins the operations taken since the last call, with at most one system call.
    pub fn submit(&mut self) {
        self.port.submit();
    }

    /// Takes the results since the last call.
    pub fn take_results(&mut self) -> Vec<DiskResult> {
        for end in self.port.ends() {
            match end {
                Some(end) => self.ended(end),
                None => (0..self.files.len() as u32).for_each(|file| self.begin(file)),
            }
        }
        // An end may have let others begin.
        self.port.submit();
        std::mem::take(&mut self.results)
    }

    /// Resolves when [`JournalDisk::take_results`] may have results.
    pub fn watch(&self) -> impl Future<Output = ()> + use<> {
        self.port.watch()
    }

    /// The times of its operations.
    pub fn times(&self) -> DiskTimes {
        self.times.clone()
    }

    /// Its totals.
    pub fn counters(&self) -> DiskCounters {
        self.counters
    }

    #[cfg(test)]
    pub(super) fn on(mut self, backend: Arc<dyn super::backend::Backend>) -> JournalDisk {
        self.port.set_backend(backend);
        self
    }

    /// Descriptions for direct writes that are open now.
    #[cfg(test)]
    pub(super) fn open_directs(&self) -> usize {
        self.files.iter().map(|file| file.direct.len()).sum()
    }

    /// Whether the zeroing has not begun.
    #[cfg(test)]
    pub(super) fn zeroing_is_idle(&self) -> bool {
        self.zeroing.is_none()
    }

    /// Writes small data inline however long an earlier write took.
    #[cfg(test)]
    pub(super) fn forget_pause(&mut self) {
        self.inline.forget_pause();
    }

    /// Begins the zeroes, and closes what a file that the journal has left needs no more.
    fn enter(&mut self, number: u32, offset: u64) {
        let is_used = number > 0 || offset > UNUSED_BYTES;
        if let Some(zero) = self.zero.take_if(|_| is_used) {
            let files: Vec<Arc<File>> = self.files.iter().map(|file| file.plain.clone()).collect();
            self.zeroing = Some(Zeroing::start(&files, zero, self.port.mailbox()));
        }
        if self.entered != number as usize {
            self.entered = number as usize;
            for file in self.files.iter_mut().filter(|file| file.direct_writes == 0) {
                file.direct.clear();
            }
        }
    }

    /// Takes a file over from the zeroing thread; false if that has to wait.
    fn reach(&mut self, number: u32) -> bool {
        self.zeroing.as_mut().is_none_or(|zeroing| zeroing.reach(number))
    }

    // --- writes by the caller's thread ---

    fn may_write_inline(&mut self, number: u32, write: &JournalWrite) -> bool {
        let file = &self.files[number as usize];
        !write.sync
            && file.is_idle()
            && self.inline.may_write(write.data.len())
            && self.reach(number)
    }

    fn write_inline(&mut self, number: u32, write: &JournalWrite) -> DiskResult {
        let JournalWrite { id, offset, ref data, .. } = *write;
        let JournalFile { plain: ref file, start, .. } = self.files[number as usize];
        let (place, bytes) = (start + offset, data.len() as u64);
        let written = self.inline.write(file, data, place).and_then(|took| {
            self.unsynced += bytes;
            if self.unsynced <= EAGER_BYTES {
                start_writeback(file, place, bytes)?;
            }
            Ok(took)
        });
        match written {
            Ok(took) => {
                self.counters.writes += 1;
                self.counters.bytes += bytes;
                self.times.write.record(took);
                DiskResult::Done { id }
            }
            Err(error) => self.fail(id, reason(&self.names, number, "write", error)),
        }
    }

    // --- operations of the backend ---

    /// Begins the held operations of a file that may begin.
    fn begin(&mut self, number: u32) {
        while self.begin_write(number) {}
        let file = &mut self.files[number as usize];
        if !file.is_syncing
            && let Some(id) = file.held_syncs.pop_front()
        {
            file.is_syncing = true;
            self.unsynced = 0;
            self.port.start(
                JournalStep::Sync { id, file: number },
                &file.plain,
                0,
                FileAction::Sync,
            );
        }
    }

    /// Begins the next held write of a file, if it may begin.
    fn begin_write(&mut self, number: u32) -> bool {
        if self.files[number as usize].held_writes.is_empty() || !self.reach(number) {
            return false;
        }
        let file = &mut self.files[number as usize];
        let Some(through) = file.way_of_next_write() else { return false };
        let Some(JournalWrite { id, offset, data, sync }) = file.held_writes.pop_front() else {
            return false;
        };
        self.counters.bytes += data.len() as u64;
        let step = JournalStep::Write { id, file: number, through, sync };
        let alignment = file.alignment.get().copied().flatten();
        let place = file.start + offset;
        let (handle, data) = match (through, alignment) {
            (Through::Direct(number), Some(alignment)) => {
                file.direct_writes += 1;
                let direct = &mut file.direct[number];
                direct.is_syncing |= sync;
                (direct.file.clone(), WriteData::Aligned(alignment.align(data)))
            }
            _ => {
                file.plain_writes += 1;
                file.is_syncing |= sync;
                (file.plain.clone(), WriteData::Pieces(vec![data]))
            }
        };
        self.port.start(step, &handle, place, FileAction::Write { data, sync });
        true
    }

    fn ended(&mut self, end: OperationEnd<JournalStep>) {
        let OperationEnd { what, operation, outcome, took } = end;
        // Its buffers go before the caller asks for new ones.
        let (id, number, action) = match what {
            JournalStep::Read(what) => {
                self.times.read.record(took);
                let end = OperationEnd { what, operation, outcome, took };
                let result = read_ended(end, &self.names, false);
                self.results.push(result);
                return;
            }
            JournalStep::Write { id, file, through, sync } => {
                self.counters.writes += 1;
                self.counters.syncs += u64::from(sync);
                self.times.write.record(took);
                self.files[file as usize].write_ended(through, sync);
                (id, file, "write")
            }
            JournalStep::Sync { id, file } => {
                self.counters.syncs += 1;
                self.times.sync.record(took);
                self.files[file as usize].is_syncing = false;
                (id, file, "fdatasync")
            }
        };
        drop(operation);
        let result = match outcome {
            _ if self.failed.is_some() => self.refuse(id),
            Ok(_) => DiskResult::Done { id },
            Err(error) => self.fail(id, reason(&self.names, number, action, error)),
        };
        self.results.push(result);
        self.begin(number);
    }

    // --- failures ---

    /// Begins no write or sync any more.
    fn fail(&mut self, id: u64, error: String) -> DiskResult {
        self.failed = Some(error.clone());
        for number in 0..self.files.len() {
            let file = &mut self.files[number];
            let writes = file.held_writes.drain(..).map(|write| write.id);
            let held: Vec<u64> = writes.chain(file.held_syncs.drain(..)).collect();
            for id in held {
                let refused = self.refuse(id);
                self.results.push(refused);
            }
        }
        if !self.results.is_empty() {
            self.port.mailbox().wake();
        }
        DiskResult::Failed { id, error }
    }

    /// The result of an operation that nobody may rely on.
    fn refuse(&self, id: u64) -> DiskResult {
        let first = self.failed.as_deref().unwrap_or_default();
        DiskResult::Failed { id, error: format!("not trusted after: {first}") }
    }
}

impl Drop for JournalDisk {
    fn drop(&mut self) {
        // After that the thread holds up no write.
        if let Some(mut zeroing) = self.zeroing.take() {
            zeroing.stop();
        }
        (0..self.files.len() as u32).for_each(|file| self.begin(file));
        while !self.port.is_idle() {
            self.port.wait();
            self.take_results();
        }
    }
}

impl JournalFile {
    fn new(area: FileArea) -> JournalFile {
        let (file, start) = area.into_parts();
        JournalFile {
            plain: Arc::new(file),
            start,
            is_syncing: false,
            direct: Vec::new(),
            alignment: OnceCell::new(),
            plain_writes: 0,
            direct_writes: 0,
            held_writes: VecDeque::new(),
            held_syncs: VecDeque::new(),
        }
    }

    /// Whether no write and no sync is under way or waits.
    fn is_idle(&self) -> bool {
        self.plain_writes + self.direct_writes == 0
            && !self.is_syncing
            && self.held_writes.is_empty()
            && self.held_syncs.is_empty()
    }

    /// The description for the next held write; `None` if it has to wait for others.
    fn way_of_next_write(&mut self) -> Option<Through> {
        let write = self.held_writes.front()?;
        let (offset, bytes, sync) = (write.offset, write.data.len(), write.sync);
        let alignment = self.alignment.get_or_init(|| DirectAlignment::of(&self.plain));
        if alignment.is_some_and(|alignment| alignment.fits(self.start + offset, bytes)) {
            if self.plain_writes > 0 {
                return None;
            }
            let free = self.direct.iter().position(|direct| !(sync && direct.is_syncing));
            if let Some(place) = free {
                return Some(Through::Direct(place));
            }
            if self.direct.len() >= DIRECT_MAX {
                return None;
            }
            if let Ok(file) = reopen(&self.plain, OFlags::DIRECT) {
                self.direct.push(DirectFile { file: Arc::new(file), is_syncing: false });
                return Some(Through::Direct(self.direct.len() - 1));
            }
            // Too many open files, perhaps. Buffered writes need no other description.
            if self.direct.is_empty() {
                self.alignment = OnceCell::from(None);
            }
        }
        (self.direct_writes == 0 && !(sync && self.is_syncing)).then_some(Through::Plain)
    }

    fn write_ended(&mut self, through: Through, sync: bool) {
        match through {
            Through::Plain => {
                self.plain_writes -= 1;
                self.is_syncing &= !sync;
            }
            Through::Direct(place) => {
                self.direct_writes -= 1;
                if sync {
                    self.direct[place].is_syncing = false;
                }
            }
        }
    }
}

/// The number of an operation, and of its file.
fn place(operation: &DiskOperation) -> (u64, u32) {
    match operation {
        DiskOperation::Write { id, file, .. }
        | DiskOperation::Sync { id, file }
        | DiskOperation::Read { id, file, .. } => (*id, *file),
    }
}
