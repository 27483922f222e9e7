//! The files of the audit log, and the chain of their lines.

use super::{Event, moment};
use anyhow::{Context as _, Result, bail};
use longhaul_base::files;
use longhaul_base::text::bounded;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use time::OffsetDateTime;

/// Longest readable line, in bytes. Written lines have at most a quarter of that.
const LINE_BYTES: usize = 64 << 10;
/// The predecessor that the very first line names.
const NONE_BEFORE: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// One of the logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The actions of clients.
    Main,
    /// Refused connections and requests.
    Refused,
}

impl Kind {
    const ALL: [Kind; 2] = [Kind::Main, Kind::Refused];

    fn name(self) -> &'static str {
        match self {
            Kind::Main => "audit.jsonl",
            Kind::Refused => "audit.refused.jsonl",
        }
    }

    /// Largest size of a file before it is put aside.
    pub(super) fn file_bytes(self) -> u64 {
        match self {
            Kind::Main => 16 << 20,
            Kind::Refused => 1 << 20,
        }
    }

    /// Most files that were put aside.
    pub(super) fn files_kept(self) -> usize {
        match self {
            Kind::Main => 8,
            Kind::Refused => 4,
        }
    }

    /// Its files that there may be, the oldest first.
    fn files(self, state: &Path) -> Vec<PathBuf> {
        let path = state.join(self.name());
        let older = (1..=self.files_kept()).rev().map(|number| aside(&path, number));
        older.filter(|path| path.exists()).chain([path.clone()]).collect()
    }
}

/// A line of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// Counted from 1, never again from the start.
    pub number: u64,
    /// When, in UTC.
    pub time: String,
    /// On whose behalf; nothing for the installation.
    pub tenant: Option<String>,
    /// Name of the credential.
    pub name: Option<String>,
    /// Serial number of the certificate.
    pub credential: Option<String>,
    /// Where from.
    pub peer: String,
    /// The requested action, as in `volume.delete`.
    pub action: String,
    /// The object of the action.
    pub object: String,
    /// `ok`, or why not.
    pub outcome: String,
    /// Lost lines before this one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost: u64,
    /// SHA-256 of the line before it, without its end, in hexadecimal.
    pub previous: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks this way")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Takes a line apart, without its end.
///
/// # Errors
/// If it is none.
pub fn parse(bytes: &[u8]) -> Result<Line> {
    if bytes.len() > LINE_BYTES {
        bail!("longer than {LINE_BYTES} bytes");
    }
    let line: Line = serde_json::from_slice(bytes)?;
    let is_hash = line.previous.len() == NONE_BEFORE.len()
        && line.previous.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if !is_hash || line.number == 0 {
        bail!("it has no place in the log");
    }
    Ok(line)
}

fn hash(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The last written line.
#[derive(Clone)]
struct Head {
    number: u64,
    hash: String,
}

/// One of the logs, open for writes.
pub(super) struct Log {
    kind: Kind,
    path: PathBuf,
    file: File,
    /// Bytes of the file that are whole lines.
    bytes: u64,
    /// The file may end with a part of a line, after a failed write.
    torn: bool,
    head: Head,
    lost: Arc<AtomicU64>,
}

fn open(path: &Path) -> Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path);
    let file = file.and_then(|file| match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(std::io::ErrorKind::InvalidData.into()),
    });
    file.with_context(|| format!("cannot open the audit log {}", path.display()))
}

/// Bytes of whole lines of a file, and the last one.
fn tail(path: &Path) -> Result<(u64, Option<Head>)> {
    let context = || format!("cannot read the audit log {}", path.display());
    let mut file = files::open(path).with_context(context)?;
    let length = file.metadata().with_context(context)?.len();
    let from = length.saturating_sub(2 * LINE_BYTES as u64);
    file.seek(SeekFrom::Start(from)).with_context(context)?;
    let mut bytes = Vec::new();
    file.take(2 * LINE_BYTES as u64).read_to_end(&mut bytes).with_context(context)?;
    let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') else {
        // One line that has no end; a longer one is none of this log.
        return Ok((if from == 0 { 0 } else { length }, None));
    };
    let lines: Vec<&[u8]> = bytes[..end].split(|byte| *byte == b'\n').collect();
    // The last readable line has its number.
    let number = lines
        .iter()
        .rev()
        .zip(0..)
        .find_map(|(line, after)| Some(parse(line).ok()?.number.saturating_add(after)));
    let last = lines.last().map(|line| Head { number: number.unwrap_or(0), hash: hash(line) });
    Ok((from + end as u64 + 1, last))
}

impl Log {
    pub(super) fn open(state: &Path, kind: Kind, lost: Arc<AtomicU64>) -> Result<Log> {
        let path = state.join(kind.name());
        let file = open(&path)?;
        let (bytes, mut head) = tail(&path)?;
        // A crash has cut its last line short.
        file.set_len(bytes).with_context(|| format!("cannot write {}", path.display()))?;
        for number in 1..=kind.files_kept() {
            let before = aside(&path, number);
            if head.is_some() || !before.exists() {
                break;
            }
            head = tail(&before)?.1;
        }
        let head = head.unwrap_or_else(|| Head { number: 0, hash: NONE_BEFORE.to_owned() });
        Ok(Log { kind, path, file, bytes, torn: false, head, lost })
    }

    /// Writes lines, and counts those whose write failed.
    pub(super) fn append(&mut self, events: Vec<(String, Event)>) {
        let count = events.len() as u64;
        let lost = self.lost.swap(0, Ordering::Relaxed);
        let mut head = self.head.clone();
        let mut text = String::new();
        for (nth, (time, event)) in events.into_iter().enumerate() {
            let lost = if nth == 0 { lost } else { 0 };
            let Ok(line) = serde_json::to_string(&line(&head, time, &event, lost)) else {
                continue;
            };
            head = Head { number: head.number + 1, hash: hash(line.as_bytes()) };
            text.push_str(&line);
            text.push('\n');
        }
        if let Err(error) = self.write(text.as_bytes()) {
            tracing::error!("the audit log {} cannot be written: {error}", self.path.display());
            self.lost.fetch_add(lost + count, Ordering::Relaxed);
            return;
        }
        self.bytes += text.len() as u64;
        self.head = head;
        if self.bytes > self.kind.file_bytes() {
            match put_aside(&self.path, self.kind) {
                Ok(new) => (self.file, self.bytes) = (new, 0),
                Err(error) => tracing::error!("{error:#}"),
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        if self.torn {
            self.file.set_len(self.bytes)?;
            self.torn = false;
        }
        let written = self.file.write_all(bytes).and_then(|()| self.file.sync_data());
        if written.is_err() {
            self.torn = self.file.set_len(self.bytes).is_err();
        }
        written
    }
}

/// Formats a line. Bounds and escapes all texts.
fn line(before: &Head, time: String, event: &Event, lost: u64) -> Line {
    let some = |text: &Option<String>| text.as_deref().map(bounded);
    Line {
        number: before.number + 1,
        time,
        tenant: some(&event.tenant),
        name: some(&event.name),
        credential: some(&event.credential),
        peer: bounded(&event.peer),
        action: bounded(&event.action),
        object: bounded(&event.object),
        outcome: bounded(&event.outcome),
        lost,
        previous: before.hash.clone(),
    }
}

fn aside(path: &Path, number: usize) -> PathBuf {
    path.with_extension(format!("{number}.jsonl"))
}

/// Begins a new file; the one that is there becomes the first of those before.
pub(super) fn put_aside(path: &Path, kind: Kind) -> Result<File> {
    for number in (1..kind.files_kept()).rev() {
        let from = aside(path, number);
        if from.exists() {
            std::fs::rename(&from, aside(path, number + 1))
                .with_context(|| format!("cannot move {}", from.display()))?;
        }
    }
    std::fs::rename(path, aside(path, 1))
        .with_context(|| format!("cannot move {}", path.display()))?;
    let file = open(path)?;
    if let Some(dir) = path.parent() {
        let synced = files::sync_dir(dir);
        synced.with_context(|| format!("cannot sync {}", dir.display()))?;
    }
    Ok(file)
}

/// Calls for each line of a file, with its bytes.
fn lines(path: &Path, mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let file = files::open(path).with_context(|| {
        format!(
            "audit log {} does not exist: give the state directory of a store that has run",
            path.display()
        )
    })?;
    let mut file = BufReader::new(file);
    loop {
        let mut line = Vec::new();
        // An overlong line comes in parts, none of which is a valid line.
        let limit = LINE_BYTES as u64 + 2;
        let read = file.by_ref().take(limit).read_until(b'\n', &mut line);
        if read.with_context(|| format!("cannot read {}", path.display()))? == 0 {
            return Ok(());
        }
        each(&line)?;
    }
}

/// Reads the lines of a store since a time, the oldest first. Skips a line that a crash has cut
/// short.
///
/// # Errors
/// If there is no audit log, or it is unreadable.
pub fn read(
    state: &Path,
    since: Option<OffsetDateTime>,
    mut each: impl FnMut(&Line) -> Result<()>,
) -> Result<()> {
    let since = since.map(moment).unwrap_or_default();
    let wanted = |bytes: &[u8]| -> Option<Line> {
        let line = parse(bytes.strip_suffix(b"\n")?).ok()?;
        (line.time >= since).then_some(line)
    };
    // These are few: insert each at its place among the others.
    let mut refused = Vec::new();
    for path in Kind::Refused.files(state).iter().filter(|path| path.exists()) {
        lines(path, |bytes| {
            refused.extend(wanted(bytes));
            Ok(())
        })?;
    }
    let mut refused = refused.into_iter().peekable();
    for path in Kind::Main.files(state) {
        lines(&path, |bytes| {
            let Some(line) = wanted(bytes) else { return Ok(()) };
            while let Some(earlier) = refused.next_if(|refusal| refusal.time < line.time) {
                each(&earlier)?;
            }
            each(&line)
        })?;
    }
    refused.try_for_each(|line| each(&line))
}

/// The findings in a log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// Lines of the main log and of the refusals.
    pub lines: u64,
    /// Number of the oldest line of the main log. The rotation of files deleted the earlier ones.
    pub first: u64,
    /// Number of its last line.
    pub last: u64,
    /// SHA-256 of its last line, for the operator to keep elsewhere.
    pub head: Option<String>,
    /// The problems, and their places.
    pub problems: Vec<Problem>,
}

/// A problem at a place of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Which file.
    pub file: String,
    /// Number of the line in it, from 1.
    pub line: u64,
    /// What.
    pub what: String,
}

/// Goes along the chain of a log.
#[derive(Default)]
struct ChainWalk {
    lines: u64,
    first: u64,
    last: Option<(Line, String, LinePlace)>,
    /// The lines after this place have no proven predecessor.
    broken: bool,
    problems: Vec<Problem>,
    /// That hash is of one of the lines.
    anchored: bool,
}

#[derive(Clone)]
struct LinePlace {
    file: String,
    line: u64,
}

impl ChainWalk {
    fn problem(&mut self, place: &LinePlace, what: String) {
        let LinePlace { file, line } = place.clone();
        self.problems.push(Problem { file, line, what });
    }

    fn line(&mut self, place: LinePlace, bytes: &[u8], anchor: Option<&str>, oldest_goes: bool) {
        self.lines += 1;
        let found = hash(bytes);
        self.anchored |= anchor == Some(found.as_str());
        let line = match parse(bytes) {
            Ok(line) => line,
            Err(_) => {
                self.broken = true;
                return self
                    .problem(&place, "this is no line of an audit log: it was edited".into());
            }
        };
        match &self.last {
            // After an unreadable line, only the higher number counts.
            Some((last, ..)) if self.broken && line.number > last.number => {}
            Some((last, hash, before)) => {
                let (due, before) = (last.number + 1, before.clone());
                if line.number > due {
                    let (from, to) = (due, line.number - 1);
                    self.problem(&place, format!("lines {from} to {to} are missing before it"));
                } else if line.number < due {
                    let (number, after) = (line.number, last.number);
                    let what = format!(
                        "line {number} comes after line {after}: moved, repeated or edited"
                    );
                    self.problem(&place, what);
                } else if line.previous != *hash {
                    let what =
                        "this line, or the one after it, was edited: they do not belong together";
                    self.problem(&before, what.to_owned());
                }
            }
            None if self.broken => {}
            None => {
                self.first = line.number;
                let none_before = line.previous == NONE_BEFORE;
                if (line.number == 1) != none_before || line.number > 1 && !oldest_goes {
                    let what = "lines before it are missing".to_owned();
                    self.problem(&place, what);
                }
            }
        }
        self.broken = false;
        self.last = Some((line, found, place));
    }
}

/// Verifies the chains of a store's logs; `anchor` is the hash of a line that was there once.
///
/// # Errors
/// If there is no audit log, or it is unreadable.
pub fn verify(state: &Path, anchor: Option<&str>) -> Result<Verified> {
    let mut all = Verified::default();
    let mut anchored = false;
    for kind in Kind::ALL {
        let files = kind.files(state);
        if kind == Kind::Refused && files.iter().all(|path| !path.exists()) {
            continue;
        }
        let mut walk = ChainWalk::default();
        // Rotation deletes files only once there are as many as it keeps.
        let oldest_goes = files.len() > kind.files_kept();
        for path in &files {
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let mut number = 0;
            lines(path, |bytes| {
                number += 1;
                let place = LinePlace { file: file.clone(), line: number };
                match bytes.strip_suffix(b"\n") {
                    Some(whole) => walk.line(place, whole, anchor, oldest_goes),
                    // A write of it is under way, or a crash has cut it short: the next start
                    // removes it.
                    None if path == files.last().unwrap_or(path) => {}
                    None => {
                        walk.problem(&place, "the line has no end: it was cut short".to_owned())
                    }
                }
                Ok(())
            })?;
        }
        anchored |= walk.anchored;
        all.lines += walk.lines;
        if kind == Kind::Main {
            (all.first, all.last) = (walk.first, 0);
            if let Some((line, hash, _)) = walk.last {
                (all.last, all.head) = (line.number, Some(hash));
            }
        }
        all.problems.extend(walk.problems);
    }
    if anchor.is_some() && !anchored {
        let what = "no line has the given hash: somebody cut off the end of the log or wrote it \
                    anew, or the line is older than the kept ones";
        let file = Kind::Main.name().to_owned();
        all.problems.push(Problem { file, line: 0, what: what.to_owned() });
    }
    Ok(all)
}
