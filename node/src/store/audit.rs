//! The audit log: who did what, and what came of it, as a line of JSON for each.
//!
//! ```text
//! STATE/audit.jsonl        the newest lines
//! STATE/audit.1.jsonl      those before, up to audit.8.jsonl; older ones are deleted
//! ```
//!
//! A thread of its own writes and syncs what there is, several lines at once if they come faster than the disk takes them. Nobody
//! waits for it: a disk that fails keeps no one from stopping an intruder. Lines that are lost that way are counted in the next one.

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// A file with more bytes than this is put aside.
const FILE_BYTES: u64 = 16 << 20;
/// Files that are put aside, at most.
const FILES_KEPT: usize = 8;
/// Lines that wait to be written, at most.
const WAITING: usize = 4096;

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// When, in UTC.
    pub time: String,
    /// On whose behalf; nothing for the installation.
    pub tenant: Option<String>,
    /// Serial number of the certificate.
    pub credential: Option<String>,
    /// Where from.
    pub peer: String,
    /// What was asked for, as in `volume.delete`.
    pub action: String,
    /// What it was about.
    pub object: String,
    /// `ok`, or why not.
    pub outcome: String,
    /// Lines before this one that could not be written.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks this way")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// This moment, as lines have it.
pub fn now() -> String {
    moment(OffsetDateTime::now_utc())
}

fn moment(time: OffsetDateTime) -> String {
    // To the millisecond and of one length, so that lines can be compared as text.
    let time = time.replace_nanosecond(time.nanosecond() / 1_000_000 * 1_000_000).unwrap_or(time);
    let text = time.format(&Rfc3339).unwrap_or_default();
    match text.strip_suffix('Z') {
        Some(whole) if !whole.contains('.') => format!("{whole}.000Z"),
        Some(parts) => format!("{parts:0<23}Z"),
        None => text,
    }
}

/// Where lines go.
pub struct Audit {
    lines: Option<SyncSender<String>>,
    lost: u64,
    writer: Option<JoinHandle<()>>,
}

impl Audit {
    /// Writes to the state directory of a store.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(state: &Path) -> Result<Audit> {
        let path = state.join("audit.jsonl");
        let file = open(&path)?;
        let (lines, waiting) = sync_channel(WAITING);
        let writer = std::thread::Builder::new()
            .name("audit".into())
            .spawn(move || write(&path, file, &waiting))
            .context("cannot start the thread of the audit log")?;
        Ok(Audit { lines: Some(lines), lost: 0, writer: Some(writer) })
    }

    /// Writes a line, soon.
    pub fn write(&mut self, mut line: Line) {
        line.lost = self.lost;
        let Ok(mut text) = serde_json::to_string(&line) else { return };
        text.push('\n');
        match self.lines.as_ref().map(|lines| lines.try_send(text)) {
            Some(Ok(())) => self.lost = 0,
            Some(Err(TrySendError::Full(_) | TrySendError::Disconnected(_))) | None => {
                self.lost += 1;
            }
        }
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        self.lines = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

fn open(path: &Path) -> Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
    file.with_context(|| format!("cannot open the audit log {}", path.display()))
}

fn write(path: &Path, mut file: File, waiting: &Receiver<String>) {
    while let Ok(mut text) = waiting.recv() {
        while let Ok(more) = waiting.try_recv() {
            text.push_str(&more);
        }
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_data());
        if let Err(error) = written {
            tracing::error!("the audit log {} cannot be written: {error}", path.display());
        }
        if file.metadata().is_ok_and(|metadata| metadata.len() > FILE_BYTES) {
            match put_aside(path) {
                Ok(new) => file = new,
                Err(error) => tracing::error!("{error:#}"),
            }
        }
    }
}

fn aside(path: &Path, number: usize) -> PathBuf {
    path.with_extension(format!("{number}.jsonl"))
}

/// Begins a new file; the one that is there becomes the first of those before.
fn put_aside(path: &Path) -> Result<File> {
    for number in (1..FILES_KEPT).rev() {
        let from = aside(path, number);
        if from.exists() {
            std::fs::rename(&from, aside(path, number + 1))
                .with_context(|| format!("cannot move {}", from.display()))?;
        }
    }
    std::fs::rename(path, aside(path, 1))
        .with_context(|| format!("cannot move {}", path.display()))?;
    open(path)
}

/// Reads the lines of a store since a time, the oldest first. What a crash has cut short is left out.
///
/// # Errors
/// If there is no audit log, or it cannot be read.
pub fn read(
    state: &Path,
    since: Option<OffsetDateTime>,
    mut each: impl FnMut(&Line) -> Result<()>,
) -> Result<()> {
    let path = state.join("audit.jsonl");
    let since = since.map(moment).unwrap_or_default();
    let older = (1..=FILES_KEPT).rev().map(|number| aside(&path, number));
    for path in older.filter(|path| path.exists()).chain([path.clone()]) {
        let file = File::open(&path).with_context(|| {
            format!(
                "there is no audit log {}: give the state directory of a store that has been started",
                path.display()
            )
        })?;
        for text in BufReader::new(file).lines() {
            let text = text.with_context(|| format!("cannot read {}", path.display()))?;
            if let Ok(line) = serde_json::from_str::<Line>(&text)
                && line.time >= since
            {
                each(&line)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(action: &str) -> Line {
        Line {
            time: now(),
            tenant: Some("acme".into()),
            credential: Some("4a".into()),
            peer: "127.0.0.1:1".into(),
            action: action.into(),
            object: "x".repeat(1000),
            outcome: "ok".into(),
            lost: 0,
        }
    }

    #[test]
    fn lines_are_kept_in_order_and_files_put_aside() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read(dir.path(), None, |_| Ok(())).is_err());
        let all = |since| {
            let mut actions: Vec<String> = Vec::new();
            read(dir.path(), since, |line| {
                actions.push(line.action.clone());
                Ok(())
            })
            .unwrap();
            actions
        };
        let mut audit = Audit::open(dir.path()).unwrap();
        audit.write(line("1"));
        drop(audit);
        // The line of a crash.
        let path = dir.path().join("audit.jsonl");
        open(&path).unwrap().write_all(b"{\"time\":\"20").unwrap();
        open(&path).unwrap().write_all(b"\n").unwrap();
        put_aside(&path).unwrap();
        let mut audit = Audit::open(dir.path()).unwrap();
        audit.write(line("2"));
        drop(audit);
        assert_eq!(all(None), ["1", "2"]);
        assert!(all(Some(OffsetDateTime::now_utc() + time::Duration::hours(1))).is_empty());
        for _ in 0..FILES_KEPT + 2 {
            put_aside(&path).unwrap();
        }
        assert!(all(None).is_empty());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), FILES_KEPT + 1);
    }

    #[test]
    fn a_file_that_is_full_is_put_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        open(&path).unwrap().set_len(FILE_BYTES).unwrap();
        let mut audit = Audit::open(dir.path()).unwrap();
        audit.write(line("1"));
        drop(audit);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
        assert!(aside(&path, 1).exists());
    }

    #[test]
    fn moments_have_one_length() {
        for (nanosecond, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (120_000_000, "1970-01-01T00:00:00.120Z"),
            (7_654_321, "1970-01-01T00:00:00.007Z"),
        ] {
            let time = OffsetDateTime::UNIX_EPOCH.replace_nanosecond(nanosecond).unwrap();
            assert_eq!(moment(time), text);
        }
    }
}
