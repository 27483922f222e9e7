//! The disk of a cache or a version table. See [`super`] for the promises.

use super::backend::{FileAction, WriteData};
use super::counters::DiskCounters;
use super::inline::InlineWrites;
use super::port::{DiskRead, OperationEnd, Port, failed, read_cached, read_ended, reason};
use bytes::Bytes;
use longhaul_core::host::{DiskOperation, DiskResult};
use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;

/// Most buffers of one gathered write, as many as Linux takes (`IOV_MAX`).
const MAX_SLICES: usize = 1024;

/// Files whose writes and syncs run in the given order, one after another.
pub struct OrderedDisk {
    files: Vec<Arc<File>>,
    names: String,
    /// Reads beyond the end of a file return zeroes.
    sparse: bool,
    port: Port<OrderedStep>,
    /// Writes and syncs that wait for the run under way.
    queue: VecDeque<Command>,
    /// A run is under way.
    is_running: bool,
    /// Results that nobody has taken.
    results: Vec<DiskResult>,
    /// Why a write or sync failed. The disk tries none after that.
    failed: Option<String>,
    inline: InlineWrites,
    counters: DiskCounters,
}

enum Command {
    Write { id: u64, file: u32, offset: u64, data: Bytes, sync: bool },
    Sync { id: u64, file: u32 },
}

/// Commands that one write, one sync, or one of each carries out.
struct CommandRun {
    ids: Vec<u64>,
    file: u32,
    offset: u64,
    pieces: Vec<Bytes>,
    sync: bool,
}

/// An operation under way.
enum OrderedStep {
    Read(DiskRead),
    Write(CommandRun),
    Sync(CommandRun),
}

impl OrderedDisk {
    /// The disk with these files, which are open for reads and writes. `names` names the files in
    /// errors.
    pub fn new(files: Vec<File>, names: String) -> OrderedDisk {
        OrderedDisk {
            files: files.into_iter().map(Arc::new).collect(),
            names,
            sparse: false,
            port: Port::new(),
            queue: VecDeque::new(),
            is_running: false,
            results: Vec::new(),
            failed: None,
            inline: InlineWrites::new(),
            counters: DiskCounters::default(),
        }
    }

    /// Like [`OrderedDisk::new`], for files that grow: reads beyond their ends return zeroes.
    pub fn sparse(files: Vec<File>, names: String) -> OrderedDisk {
        let mut disk = OrderedDisk::new(files, names);
        disk.sparse = true;
        disk
    }

    /// Takes an operation. Returns the result of a small write that need not wait for another one,
    /// or of a read that the page cache can answer. All other results come from
    /// [`OrderedDisk::take_results`] after [`OrderedDisk::submit`].
    pub fn start_operation(&mut self, operation: DiskOperation) -> Option<DiskResult> {
        match operation {
            DiskOperation::Write { id, file, offset, data, sync } => {
                if let Some(result) = self.write_inline(id, file, offset, &data, sync) {
                    return Some(result);
                }
                self.queue.push_back(Command::Write { id, file, offset, data, sync });
                None
            }
            DiskOperation::Sync { id, file } => {
                self.queue.push_back(Command::Sync { id, file });
                None
            }
            DiskOperation::Read { id, file, offset, bytes } => {
                let Some(handle) = self.files.get(file as usize) else {
                    return Some(failed(id, &self.names, file, "read", "no such file"));
                };
                match read_cached(handle, offset, bytes, self.sparse) {
                    Ok(data) => Some(DiskResult::Data { id, data }),
                    Err(data) => {
                        let read = OrderedStep::Read(DiskRead { id, file });
                        self.port.start(read, handle, offset, FileAction::Read(data));
                        None
                    }
                }
            }
        }
    }

    /// Begins the operations taken since the last call, with at most one system call.
    pub fn submit(&mut self) {
        self.begin();
        if !self.results.is_empty() {
            // Failures without an operation.
            self.port.mailbox().wake();
        }
        self.port.submit();
    }

    /// Takes the results since the last call.
    pub fn take_results(&mut self) -> Vec<DiskResult> {
        for end in self.port.ends().into_iter().flatten() {
            self.ended(end);
        }
        // An end may have let others begin.
        self.begin();
        self.port.submit();
        std::mem::take(&mut self.results)
    }

    /// Resolves when [`OrderedDisk::take_results`] may have results.
    pub fn watch(&self) -> impl Future<Output = ()> + use<> {
        self.port.watch()
    }

    /// Its totals.
    pub fn counters(&self) -> DiskCounters {
        self.counters
    }

    /// Does a small write on the caller's thread, if nothing else is under way.
    fn write_inline(
        &mut self,
        id: u64,
        number: u32,
        offset: u64,
        data: &Bytes,
        sync: bool,
    ) -> Option<DiskResult> {
        let is_free = !sync && !self.is_running && self.queue.is_empty() && self.failed.is_none();
        if !is_free || !self.inline.may_write(data.len()) {
            return None;
        }
        let file = self.files.get(number as usize)?;
        Some(match self.inline.write(file, data, offset) {
            Ok(_) => {
                self.wrote(data.len());
                DiskResult::Done { id }
            }
            Err(error) => {
                let error = reason(&self.names, number, "write", error);
                self.failed = Some(error.clone());
                DiskResult::Failed { id, error }
            }
        })
    }

    fn wrote(&mut self, bytes: usize) {
        self.counters.writes += 1;
        self.counters.bytes += bytes as u64;
    }

    /// Begins the next run, if none is under way.
    fn begin(&mut self) {
        while !self.is_running
            && let Some(run) = next_run(&mut self.queue)
        {
            match &self.failed {
                Some(first) => {
                    let error = format!("not tried after: {first}");
                    self.run_ended(&run, Err(error));
                }
                None => {
                    self.is_running = true;
                    self.go_on(run);
                }
            }
        }
    }

    /// Begins the next step of a run.
    fn go_on(&mut self, mut run: CommandRun) {
        let Some(handle) = self.files.get(run.file as usize) else {
            let error = reason(&self.names, run.file, "use", "no such file");
            self.run_ended(&run, Err(error));
            return;
        };
        if run.pieces.is_empty() {
            self.port.start(OrderedStep::Sync(run), handle, 0, FileAction::Sync);
        } else {
            let data = WriteData::Pieces(std::mem::take(&mut run.pieces));
            let offset = run.offset;
            // A sync of its own, and not one of this write alone: it covers all earlier ones.
            let action = FileAction::Write { data, sync: false };
            self.port.start(OrderedStep::Write(run), handle, offset, action);
        }
    }

    fn ended(&mut self, end: OperationEnd<OrderedStep>) {
        let OperationEnd { what, operation, outcome, took } = end;
        match what {
            OrderedStep::Read(what) => {
                let end = OperationEnd { what, operation, outcome, took };
                let result = read_ended(end, &self.names, self.sparse);
                self.results.push(result);
            }
            OrderedStep::Write(run) => {
                drop(operation);
                match outcome {
                    Ok(bytes) => {
                        self.wrote(bytes);
                        match run.sync {
                            true => self.go_on(run),
                            false => self.run_ended(&run, Ok(())),
                        }
                    }
                    Err(error) => {
                        let error = reason(&self.names, run.file, "write", error);
                        self.run_ended(&run, Err(error));
                    }
                }
            }
            OrderedStep::Sync(run) => {
                self.counters.syncs += 1;
                let error = |error| reason(&self.names, run.file, "fdatasync", error);
                let outcome = outcome.map(|_| ()).map_err(error);
                self.run_ended(&run, outcome);
            }
        }
    }

    fn run_ended(&mut self, run: &CommandRun, outcome: Result<(), String>) {
        self.is_running = false;
        self.results.extend(run.ids.iter().map(|&id| match &outcome {
            Ok(()) => DiskResult::Done { id },
            Err(error) => DiskResult::Failed { id, error: error.clone() },
        }));
        if let Err(error) = outcome {
            self.failed.get_or_insert(error);
        }
    }

    #[cfg(test)]
    pub(super) fn on(mut self, backend: Arc<dyn super::backend::Backend>) -> OrderedDisk {
        self.port.set_backend(backend);
        self
    }

    /// Writes small data inline however long an earlier write took.
    #[cfg(test)]
    pub(super) fn forget_pause(&mut self) {
        self.inline.forget_pause();
    }
}

impl Drop for OrderedDisk {
    fn drop(&mut self) {
        self.submit();
        while !self.port.is_idle() {
            self.port.wait();
            self.take_results();
        }
    }
}

/// The next commands that one write and one sync can carry out.
fn next_run(queue: &mut VecDeque<Command>) -> Option<CommandRun> {
    let mut run = match queue.pop_front()? {
        Command::Write { id, file, offset, data, sync } => {
            CommandRun { ids: vec![id], file, offset, pieces: vec![data], sync }
        }
        Command::Sync { id, file } => {
            CommandRun { ids: vec![id], file, offset: 0, pieces: Vec::new(), sync: true }
        }
    };
    let mut end = run.offset + run.pieces.first().map_or(0, |piece| piece.len() as u64);
    while let Some(next) = queue.pop_front_if(|next| run.takes(next, end)) {
        run.ids.push(next.id());
        match next {
            Command::Write { data, sync, .. } => {
                end += data.len() as u64;
                run.pieces.push(data);
                run.sync |= sync;
            }
            Command::Sync { .. } => run.sync = true,
        }
    }
    Some(run)
}

impl CommandRun {
    /// Whether the next command joins this run. So it does if it writes on where the run ends, or
    /// is the sync that the run does anyway or that follows a write.
    fn takes(&self, next: &Command, end: u64) -> bool {
        match next {
            Command::Write { file, offset, .. } => {
                *file == self.file && !self.sync && *offset == end && self.pieces.len() < MAX_SLICES
            }
            Command::Sync { file, .. } => *file == self.file,
        }
    }
}

impl Command {
    fn id(&self) -> u64 {
        match self {
            Command::Write { id, .. } | Command::Sync { id, .. } => *id,
        }
    }
}
