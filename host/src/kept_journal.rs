//! The journals that this host keeps of volumes while they are detached.

use super::state::VolumeFile;
use longhaul_base::disk::FileArea;
use longhaul_core::host::journal::Report;
use std::time::SystemTime;

/// The journal that this host keeps of a volume while it is detached.
#[derive(Clone, Debug)]
pub struct KeptJournal {
    /// Its description.
    pub file: VolumeFile,
    /// Bytes of writes that may be missing at the store. Never less than are missing.
    pub lag_bytes: u64,
    /// Journal space of these writes.
    pub journal_bytes: u64,
    /// The last write to the journal. The oldest write that is missing at the store is not younger.
    pub since: Option<SystemTime>,
    /// Whether the host has read the journal. Until then it may be full.
    pub known: bool,
}

impl KeptJournal {
    /// The entry of a journal before its first read: the store may lack all of it.
    pub fn unread(file: VolumeFile) -> KeptJournal {
        let bytes = if file.delivered { 0 } else { file.journal.bytes() };
        let since = (bytes > 0).then(SystemTime::now);
        KeptJournal { known: file.delivered, file, lag_bytes: bytes, journal_bytes: bytes, since }
    }

    /// The entry of a journal after its read. `described`: since when it is in use, for one that
    /// does not know its last write.
    pub fn read(
        file: VolumeFile,
        files: &[FileArea],
        report: &Report,
        described: Option<SystemTime>,
    ) -> KeptJournal {
        if file.delivered || report.live_bytes == 0 {
            let (lag_bytes, journal_bytes, since) = (0, 0, None);
            return KeptJournal { file, lag_bytes, journal_bytes, since, known: true };
        }
        KeptJournal {
            file,
            lag_bytes: report.live_bytes,
            journal_bytes: report.end.saturating_sub(report.tail),
            since: files.iter().filter_map(FileArea::modified).max().or(described),
            known: true,
        }
    }
}
