//! Finds, reads or makes the journal of a volume before its attach.

use super::refusals::refuse_loss;
use crate::context::HostContext;
use crate::failure::{AttachFailure, JournalDisk};
use crate::kept_journal::KeptJournal;
use crate::state::{JournalDevice, JournalShape, StateDir, VolumeFile, journal_path, zeroed_files};
use crate::task::AttachTask;
use anyhow::{Context as _, Result};
use longhaul_base::disk::FileArea;
use longhaul_base::units::show_bytes;
use longhaul_core::block::VolumeId;
use longhaul_core::host::journal::{self, Recovered, Recovery};
use longhaul_core::host::{DiskOperation, DiskResult};
use longhaul_core::wire::link::VolumeInfo;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Instant;

/// The journal of a volume, ready for its engine.
pub struct OpenedJournal {
    pub(super) files: Vec<FileArea>,
    pub(super) recovered: Recovered,
    /// The first file to zero in the background. This and all later files hold no frame. `None` on
    /// a device, where all space has been written or is as good.
    pub(super) zero_from: Option<u32>,
    pub(super) kept: KeptJournal,
    /// This attach made it, and nobody has used it.
    made: bool,
}

/// Removes a journal that was made for an unsuccessful attach.
pub async fn discard(host: &HostContext, task: &AttachTask, journal: &mut Option<OpenedJournal>) {
    let Some(OpenedJournal { kept, .. }) = journal.take_if(|journal| journal.made) else { return };
    task.set_kept(None);
    let state = host.state.clone();
    let freed = tokio::task::spawn_blocking(move || state.free_volume(&kept.file)).await;
    if let Err(error) = freed.context("the thread for files failed").flatten() {
        tracing::warn!(volume = task.name(), "the journal made for it stays: {error:#}");
    }
}

/// Reads the journal kept for a name before the host asks the store, which may be out of reach for
/// long. So the status shows the undelivered writes from the start. On failure says of which volume
/// the journal is.
pub(super) async fn prepare(
    host: &HostContext,
    task: &AttachTask,
    journal: &mut Option<OpenedJournal>,
) -> Result<(), (Option<VolumeId>, AttachFailure)> {
    let name = task.name();
    let all = host.state.volumes().map_err(|error| (None, error.into()))?;
    let mut named = all.into_iter().filter(|volume| volume.name == name);
    let first = named.next();
    let file = match first {
        Some(file) if file.released => named.find(|volume| !volume.released).or(Some(file)),
        first => first,
    };
    let unused = |file: &VolumeFile| {
        host.settings.write_through && file.released && file.delivered
            || host.state.is_half_freed(file)
    };
    let Some(file) = file.filter(|file| !unused(file)) else {
        *journal = None;
        task.set_kept(None);
        return Ok(());
    };
    let id = file.volume_id().map_err(|error| (None, error.into()))?;
    if journal.as_ref().is_some_and(|opened| opened.is_still(&file, &host.state.volume_dir(id))) {
        return Ok(());
    }
    *journal = None;
    task.set_kept(Some(KeptJournal::unread(file.clone())));
    let (state, shape) = (host.state.clone(), host.settings.journal);
    let recovered = tokio::task::spawn_blocking(move || recover(&state, file, shape)).await;
    let opened = recovered.context("the thread that reads a journal failed");
    let opened = opened.and_then(|opened| opened).map_err(|error| (Some(id), error.into()))?;
    task.set_kept(Some(opened.kept.clone()));
    *journal = Some(opened);
    Ok(())
}

impl OpenedJournal {
    /// Whether this is the journal of that description. An operator may have moved its files away,
    /// or brought others.
    fn is_still(&self, file: &VolumeFile, dir: &Path) -> bool {
        let same = |number: u32, open: &FileArea| -> std::io::Result<bool> {
            if file.slot.is_some() {
                return Ok(true);
            }
            let there = std::fs::metadata(journal_path(dir, number))?;
            let here = open.file().metadata()?;
            Ok((there.dev(), there.ino()) == (here.dev(), here.ino()))
        };
        let mut files = (0..).zip(&self.files);
        self.kept.file == *file && files.all(|(number, open)| same(number, open).unwrap_or(false))
    }
}

/// Finds the journal of a volume and what it holds, or makes one.
pub(super) async fn open_journal(
    host: &HostContext,
    info: &VolumeInfo,
) -> Result<OpenedJournal, AttachFailure> {
    let state = host.state.clone();
    let shape = host.settings.journal;
    let info = info.clone();
    let known = state.volume(info.id)?.filter(|file| !state.is_half_freed(file));
    if known.is_none() {
        refuse_loss(host, &info).await?;
    }
    let opened = tokio::task::spawn_blocking(move || match known {
        Some(file) => recover(&state, file, shape),
        None => create(&state, &info, shape),
    });
    Ok(opened.await.context("the thread that opens a journal failed")??)
}

fn create(state: &StateDir, info: &VolumeInfo, shape: JournalShape) -> Result<OpenedJournal> {
    let started = Instant::now();
    let shape = state.device().map_or(shape, JournalDevice::shape);
    let mut file = VolumeFile::new(&info.name, info.id, info.sectors, info.block_bytes, shape)?;
    let number = file.journal_number()?;
    let geometry = shape.geometry();
    let plan = journal::create_plan(geometry, number, info.id)?;
    state.create_journal(&mut file, &plan)?;
    let took = started.elapsed().as_secs_f64();
    let size = show_bytes(shape.bytes());
    tracing::info!(volume = info.name, "made a journal of {size} in {took:.2} s");
    let files = state.open_journal(&file)?;
    let recovered = Recovered::empty(geometry, number, info.id);
    let zero_from = file.slot.is_none().then_some(1);
    let kept = KeptJournal::unread(file);
    Ok(OpenedJournal { files, recovered, zero_from, kept, made: true })
}

fn recover(state: &StateDir, file: VolumeFile, wanted: JournalShape) -> Result<OpenedJournal> {
    let started = Instant::now();
    let files = state.open_journal(&file)?;
    let id = file.volume_id()?;
    let dir = state.volume_dir(id);
    distrust_page_cache(&files, &dir)?;
    let mut recovery = Recovery::new(Some(id), lengths(&files));
    if file.encrypted {
        recovery = recovery.with_versions();
    }
    let recovered = std::thread::scope(|scope| {
        // The disk reads ahead while the recovery verifies. If it cannot, only time is lost.
        scope.spawn(|| {
            for file in &files {
                let _ = file.advise(rustix::fs::Advice::WillNeed);
            }
        });
        run_recovery(&mut recovery, &files)
    })
    .with_context(|| format!("the journal in {} cannot be used", dir.display()))?;
    let report = recovery.report();
    tracing::info!(
        volume = file.name,
        "recovered a journal with {} writes ({}) in {:.2} s",
        report.records,
        show_bytes(report.live_bytes),
        started.elapsed().as_secs_f64()
    );
    if file.journal != wanted && file.slot.is_none() {
        tracing::info!(
            volume = file.name,
            "the journal keeps its size of {}; --journal-size is for new ones",
            show_bytes(file.journal.bytes())
        );
    }
    if let Some(device) = state.device().filter(|_| file.slot.is_none()) {
        tracing::info!(
            volume = file.name,
            "the journal stays in {}; those that are made from now on are on {}",
            dir.display(),
            device.path().display()
        );
    }
    let zero_from = report.files_reached.max(zeroed_files(&dir, &file));
    let zero_from = file.slot.is_none().then_some(zero_from);
    // A device does not know when it was written. The description is from before all writes.
    let described = std::fs::metadata(dir.join("volume.json")).and_then(|meta| meta.modified());
    let kept = KeptJournal::read(file, &files, report, described.ok());
    Ok(OpenedJournal { files, recovered, zero_from, kept, made: false })
}

/// Makes reads of a journal return the content of its disk.
///
/// The page cache may hold more. After a failed fsync the kernel marks the pages clean although
/// they never reached the disk (fsync(2), and "PostgreSQL's fsync surprise", LWN 2018). A killed
/// process may have left pages without a sync. Recovery would adopt writes from such pages, and the
/// next power cut would take them away. So this first writes all dirty pages, because
/// `POSIX_FADV_DONTNEED` skips them. Then it drops all clean pages. Only then may recovery read the
/// files.
pub(super) fn distrust_page_cache(files: &[FileArea], dir: &Path) -> Result<(), JournalDisk> {
    for (number, file) in (0..).zip(files) {
        let path = journal_path(dir, number);
        let failed = |what: &str, error: rustix::io::Errno| {
            JournalDisk(format!(
                "the disk under the journal fails: {what} of {}: {error}; the host does not use it \
                 until a restart: check the disk, or carry {} to another one",
                path.display(),
                dir.display()
            ))
        };
        rustix::fs::fdatasync(file.file()).map_err(|error| failed("fdatasync", error))?;
        file.advise(rustix::fs::Advice::DontNeed)
            .map_err(|error| failed("dropping the page cache", error))?;
    }
    Ok(())
}

/// Notes that the volume is in use here, before the host asks the store for it. Once the attach has
/// fenced off another host, nothing may fail. Returns the old description, to restore if the store
/// refuses.
pub(super) fn claim(
    state: &StateDir,
    file: &mut VolumeFile,
) -> Result<Option<VolumeFile>, AttachFailure> {
    if !file.released {
        return Ok(None);
    }
    let before = file.clone();
    (file.released, file.delivered) = (false, false);
    state.save_volume(file)?;
    Ok(Some(before))
}

/// Takes a claim back.
pub(super) fn undo(
    host: &HostContext,
    name: &str,
    before: Option<VolumeFile>,
    journal: &mut Option<OpenedJournal>,
) {
    if let Some(file) = before
        && let Some(opened) = journal
    {
        if let Err(error) = host.state.save_volume(&file) {
            tracing::warn!(volume = name, "it will be attached at the next start: {error:#}");
        }
        opened.kept.file = file;
    }
}

/// The length of each file.
pub fn lengths(files: &[FileArea]) -> Vec<u64> {
    files.iter().map(FileArea::bytes).collect()
}

/// Carries out the reads of a recovery until it has an outcome.
pub fn run_recovery(recovery: &mut Recovery, files: &[FileArea]) -> Result<Recovered> {
    loop {
        let Some(operation) = recovery.poll_disk() else {
            let outcome = recovery.poll_outcome().context("recovery came to no end")?;
            return Ok(outcome?);
        };
        let result = match operation {
            DiskOperation::Read { id, file, offset, bytes } => {
                let mut data = vec![0; bytes];
                match files[file as usize].read_exact_at(&mut data, offset) {
                    Ok(()) => DiskResult::Data { id, data: data.into() },
                    Err(error) => DiskResult::Failed { id, error: error.to_string() },
                }
            }
            DiskOperation::Write { id, .. } | DiskOperation::Sync { id, .. } => {
                DiskResult::Failed { id, error: "recovery is read-only".into() }
            }
        };
        recovery.handle_disk(result);
    }
}

/// The name of journal files in errors, without their number.
pub(super) fn journal_names(state: &StateDir, file: &VolumeFile, dir: &Path) -> String {
    match (state.device(), &file.slot) {
        (Some(device), Some(slot)) => {
            format!("{} slot {} journal", device.path().display(), slot.number)
        }
        _ => journal_path(dir, 0).with_extension("").display().to_string(),
    }
}
