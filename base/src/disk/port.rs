//! The way of one disk to its backend.

use super::backend::{Backend, DiskMessage, DiskRequest, FileAction, FileOperation, Mailbox};
use super::shared::of_this_thread;
use bytes::Bytes;
use longhaul_core::host::DiskResult;
use rustix::io::{Errno, ReadWriteFlags};
use std::collections::HashMap;
use std::fs::File;
use std::io::IoSliceMut;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Operations of one disk that are under way. `T` says what an operation is.
pub(super) struct Port<T> {
    /// Of the thread that started the first operation.
    backend: Option<Arc<dyn Backend>>,
    mailbox: Arc<Mailbox>,
    under_way: HashMap<u64, (T, Instant)>,
    last: u64,
}

/// The end of an operation.
pub(super) struct OperationEnd<T> {
    pub what: T,
    pub operation: FileOperation,
    pub outcome: Result<usize, Errno>,
    pub took: Duration,
}

impl<T> Port<T> {
    pub(super) fn new() -> Port<T> {
        Port { backend: None, mailbox: Arc::default(), under_way: HashMap::new(), last: 0 }
    }

    #[cfg(test)]
    pub(super) fn set_backend(&mut self, backend: Arc<dyn Backend>) {
        self.backend = Some(backend);
    }

    pub(super) fn start(&mut self, what: T, file: &Arc<File>, offset: u64, action: FileAction) {
        self.last += 1;
        let (token, mailbox) = (self.last, self.mailbox.clone());
        let operation = FileOperation::new(file.clone(), offset, action);
        self.under_way.insert(token, (what, Instant::now()));
        let backend = self.backend.get_or_insert_with(of_this_thread);
        backend.start(DiskRequest { token, operation, mailbox });
    }

    pub(super) fn submit(&self) {
        if let Some(backend) = self.backend.as_ref().filter(|_| !self.under_way.is_empty()) {
            backend.submit();
        }
    }

    /// The next ends of operations. An end is `None` if a file was handed over.
    pub(super) fn ends(&mut self) -> Vec<Option<OperationEnd<T>>> {
        let messages = self.mailbox.take().into_iter();
        let ends = messages.filter_map(|message| match message {
            DiskMessage::HandedOver => Some(None),
            DiskMessage::Ended { token, operation, outcome } => {
                let (what, begun) = self.under_way.remove(&token)?;
                Some(Some(OperationEnd { what, operation, outcome, took: begun.elapsed() }))
            }
        });
        ends.collect()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Blocks until an operation has ended, if one is under way.
    pub(super) fn wait(&self) {
        if let Some(backend) = self.backend.as_ref().filter(|_| !self.under_way.is_empty()) {
            backend.submit();
            backend.wait(&self.mailbox);
        }
    }

    pub(super) fn mailbox(&self) -> &Arc<Mailbox> {
        &self.mailbox
    }

    /// Resolves when there are ends, or after [`Mailbox::wake`].
    pub(super) fn watch(&self) -> impl Future<Output = ()> + use<T> {
        let mailbox = self.mailbox.clone();
        async move { mailbox.arrival().await }
    }
}

/// A read that the backend does.
#[derive(Clone, Copy, Debug)]
pub(super) struct DiskRead {
    pub id: u64,
    pub file: u32,
}

/// Reads from the page cache. Returns the buffer if the page cache has not all of it.
pub(super) fn read_cached(
    file: &File,
    offset: u64,
    bytes: usize,
    sparse: bool,
) -> Result<Bytes, Vec<u8>> {
    let mut data = vec![0; bytes];
    let slices = &mut [IoSliceMut::new(&mut data)];
    match rustix::io::preadv2(file, slices, offset, ReadWriteFlags::NOWAIT) {
        Ok(read) if read == bytes || sparse && is_end(file, offset, read) => Ok(data.into()),
        _ => Err(data),
    }
}

/// Whether the file ends after these bytes at `offset`.
fn is_end(file: &File, offset: u64, read: usize) -> bool {
    file.metadata().is_ok_and(|meta| meta.len() <= offset + read as u64)
}

/// The result of a read that has ended. Reads beyond the end of a sparse file return zeroes.
pub(super) fn read_ended(end: OperationEnd<DiskRead>, names: &str, sparse: bool) -> DiskResult {
    let DiskRead { id, file } = end.what;
    let FileAction::Read(data) = end.operation.action else {
        return failed(id, names, file, "read", "another operation has its number");
    };
    match end.outcome {
        Ok(read) if read == data.len() || sparse => DiskResult::Data { id, data: data.into() },
        Ok(_) => failed(id, names, file, "read", "it ends before"),
        Err(error) => failed(id, names, file, "read", error),
    }
}

/// A failure that names the file.
pub(super) fn failed(
    id: u64,
    names: &str,
    file: u32,
    what: &str,
    error: impl std::fmt::Display,
) -> DiskResult {
    DiskResult::Failed { id, error: reason(names, file, what, error) }
}

/// The reason of a failure, with the name of the file.
pub(super) fn reason(names: &str, file: u32, what: &str, error: impl std::fmt::Display) -> String {
    format!("{what} of {names}.{file:04}: {error}")
}
