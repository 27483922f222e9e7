//! The journal that this host keeps of a volume while it is not attached.

use super::state::VolumeFile;
use longhaul_core::host::journal::Report;
use std::fs::File;
use std::time::SystemTime;

/// The journal that this host keeps of a volume while it is not attached.
#[derive(Clone, Debug)]
pub struct KeptJournal {
    /// Its description.
    pub file: VolumeFile,
    /// Bytes of writes that may be missing at the store. Never less than are missing.
    pub lag_bytes: u64,
    /// Journal space they take.
    pub journal_bytes: u64,
    /// The last write to the journal; the oldest one that is missing at the store is not younger.
    pub since: Option<SystemTime>,
    /// Whether the journal has been read; until then it may be full.
    pub known: bool,
}

impl KeptJournal {
    /// Of a journal that was not read yet: all of it may be undelivered.
    pub fn unread(file: VolumeFile) -> KeptJournal {
        let bytes = if file.delivered { 0 } else { file.journal.bytes() };
        let since = (bytes > 0).then(SystemTime::now);
        KeptJournal { known: file.delivered, file, lag_bytes: bytes, journal_bytes: bytes, since }
    }

    /// Of a journal that was read.
    pub fn read(file: VolumeFile, files: &[File], report: &Report) -> KeptJournal {
        if file.delivered || report.live_bytes == 0 {
            let (lag_bytes, journal_bytes, since) = (0, 0, None);
            return KeptJournal { file, lag_bytes, journal_bytes, since, known: true };
        }
        let written = |file: &File| file.metadata().and_then(|meta| meta.modified()).ok();
        KeptJournal {
            file,
            lag_bytes: report.live_bytes,
            journal_bytes: report.end.saturating_sub(report.tail),
            since: files.iter().filter_map(written).max(),
            known: true,
        }
    }
}
