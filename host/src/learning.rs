//! Version tables that this host is learning, and volumes that it learned in vain.
//!
//! Promises: a link that goes down costs only time. This process keeps the part that it has read,
//! for the next attempt. It does not read a volume again that proved to be another than expected:
//! only a restart does.

use super::failure::AttachFailure;
use super::version_table::{create_files, head, memory, start_disk};
use anyhow::{Context as _, Result};
use bytes::Bytes;
use longhaul_base::disk::OrderedDisk;
use longhaul_base::files;
use longhaul_base::units::show_bytes;
use longhaul_core::block::{Range, SECTOR_BYTES, Seq, VolumeId};
use longhaul_core::host::versions::{Head, Learned, Learner};
use longhaul_core::wire::link::{Frame, Piece, ReadError, ToHost};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time between two messages about the progress.
const TELL_INTERVAL: Duration = Duration::from_secs(30);

/// Tables and failures by volume.
#[derive(Default)]
pub struct LearnedTables {
    by_volume: RefCell<BTreeMap<VolumeId, LearnedTable>>,
}

enum LearnedTable {
    /// A link went down meanwhile.
    Begun(Box<TableInProgress>),
    /// With this many writes the volume is not the expected one, for this reason.
    Failed(Seq, String),
}

/// A table on the way.
pub struct TableInProgress {
    learner: Learner,
    disk: OrderedDisk,
    dir: PathBuf,
    committed: Seq,
    told: Instant,
}

impl LearnedTables {
    /// The reason why the volume with this many writes is not the expected one, if an attempt found
    /// so.
    pub fn failed(&self, volume: VolumeId, committed: Seq) -> Option<String> {
        match self.by_volume.borrow().get(&volume) {
            Some(LearnedTable::Failed(seq, why)) if *seq == committed => Some(why.clone()),
            _ => None,
        }
    }

    /// Remembers that the volume with this many writes is not the expected one.
    pub fn fail(&self, volume: VolumeId, committed: Seq, why: String) {
        self.by_volume.borrow_mut().insert(volume, LearnedTable::Failed(committed, why));
    }

    /// Keeps a table for the next attempt.
    pub fn keep(&self, volume: VolumeId, reading: Box<TableInProgress>) {
        self.by_volume.borrow_mut().insert(volume, LearnedTable::Begun(reading));
    }

    /// The table that an earlier attempt began at this write.
    pub fn begun(&self, volume: VolumeId, committed: Seq) -> Option<Box<TableInProgress>> {
        match self.by_volume.borrow_mut().remove(&volume) {
            Some(LearnedTable::Begun(reading)) if reading.committed == committed => Some(reading),
            _ => None,
        }
    }
}

impl TableInProgress {
    /// Begins an empty table beside `dir`.
    ///
    /// # Errors
    /// If the host cannot make its files.
    pub async fn begin(dir: &Path, head: Head, committed: Seq) -> Result<TableInProgress> {
        let dir = dir.with_extension("new");
        let begin = move || {
            let files = create_files(&dir, &head, true)?;
            let learner = Learner::new(head, memory()).context("a version table has no key")?;
            let disk = start_disk(&dir, files);
            Ok(TableInProgress { learner, disk, dir, committed, told: Instant::now() })
        };
        tokio::task::spawn_blocking(begin).await.context("the thread for files failed")?
    }

    /// Where its files are.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The first unknown sector.
    pub fn at(&self) -> u64 {
        self.learner.at()
    }

    /// Takes all unknown sectors before `end` for zeroes.
    pub fn pass(&mut self, end: u64) {
        self.learner.pass(end);
    }

    /// Ends the table and writes all of it to its files.
    ///
    /// # Errors
    /// If a write fails.
    pub async fn finish(&mut self) -> Result<()> {
        self.learner.finish();
        while !self.learner.is_at_rest() {
            self.carry_out().await?;
        }
        Ok(())
    }

    /// Says now and then how far it is.
    pub fn tell(&mut self, name: &str, sectors: u64) {
        if self.told.elapsed() >= TELL_INTERVAL {
            self.told = Instant::now();
            let (at, all) = (self.learner.at() * SECTOR_BYTES, sectors * SECTOR_BYTES);
            tracing::info!(
                volume = name,
                "{} of {} are read, to know the version of every block",
                show_bytes(at),
                show_bytes(all)
            );
        }
    }

    /// Takes what the store answered for a range.
    ///
    /// # Errors
    /// If that is no content of an encrypted volume, or the files cannot be written.
    pub async fn take(
        &mut self,
        name: &str,
        range: Range,
        frame: Frame<ToHost>,
    ) -> Result<(), AttachFailure> {
        let pieces: Vec<Piece> = match frame.message {
            ToHost::Data { result, .. } => result.map_err(|error| refusal(name, range, error))?,
            _ => return Err(unfit(name, range)),
        };
        let payload: Bytes = frame.payload;
        // The sectors before it are zeroes.
        self.learner.pass(range.lba);
        loop {
            match self.learner.take(range, &pieces, &payload) {
                Learned::Taken => return Ok(()),
                Learned::Later => self.carry_out().await?,
                Learned::Unfit => return Err(unfit(name, range)),
            }
        }
    }

    /// Carries out operations on the files until one has its outcome.
    async fn carry_out(&mut self) -> Result<()> {
        let mut moved = false;
        while let Some(operation) = self.learner.poll_disk() {
            if let Some(result) = self.disk.start_operation(operation) {
                self.learner.handle_disk(result).map_err(anyhow::Error::msg)?;
                moved = true;
            }
        }
        self.disk.submit();
        loop {
            for result in self.disk.take_results() {
                self.learner.handle_disk(result).map_err(anyhow::Error::msg)?;
                moved = true;
            }
            if moved {
                return Ok(());
            }
            self.disk.watch().await;
        }
    }
}

/// Removes the files of a table.
pub async fn discard(reading: TableInProgress) {
    let removed = tokio::task::spawn_blocking(move || {
        let TableInProgress { disk, dir, .. } = reading;
        drop(disk);
        std::fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))
    });
    if let Err(error) = removed.await.context("the thread for files failed").flatten() {
        tracing::warn!("{error:#}");
    }
}

/// Puts the table in its place. A table that was there did not know all blocks.
pub fn move_in(reading: TableInProgress, place: &Path, volume: VolumeId) -> Result<Head> {
    let TableInProgress { disk, dir, .. } = reading;
    drop(disk);
    let move_in = || -> std::io::Result<()> {
        match std::fs::remove_dir_all(place) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        std::fs::rename(&dir, place)?;
        place.parent().map_or(Ok(()), files::sync_dir)
    };
    move_in().with_context(|| format!("cannot move {} to {}", dir.display(), place.display()))?;
    head(place, volume)?.context("the table that was just made is gone")
}

/// The attach fails like this for a read error of the store.
pub fn refusal(name: &str, range: Range, error: ReadError) -> AttachFailure {
    match error {
        // The next attempt attaches it again and goes on from there.
        ReadError::NotAttached => AttachFailure::Link,
        ReadError::Fenced(epoch) => AttachFailure::Refused(format!(
            "volume {name} was attached with epoch {epoch} by another host while it was being read"
        )),
        ReadError::Medium(range) => AttachFailure::Refused(format!(
            "volume {name}: the store's data of {range} is damaged, so the host cannot compute its \
             root: run `longhaul check` on the store to see the damage"
        )),
        ReadError::Invalid => unfit(name, range),
    }
}

/// The store gives out what cannot be the content of the volume.
pub fn unfit(name: &str, range: Range) -> AttachFailure {
    AttachFailure::Refused(format!(
        "volume {name}: the store's data of {range} is not content of an encrypted volume"
    ))
}
