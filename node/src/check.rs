//! `longhaul check`: verifies what a stopped host or store left on its disk, changing nothing.
//!
//! The verifying itself is the engines' own (`Recovery`, `LogCheck`, `check_checkpoint`); here files
//! are found and read, and what is wrong is told with the file, the offset and what to do.

use crate::host::state::{self, VolumeFile};
use crate::host::{cache, columns, lengths, pins, run_recovery};
use crate::store;
use crate::units::show_bytes;
use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use longhaul_core::block::Range;
use longhaul_core::host::cache::{Geometry, Load, RECORD_BYTES};
use longhaul_core::host::journal::{JournalError, Recovery};
use longhaul_core::store::catalog::{self, VolumeSpec};
use longhaul_core::store::check::{LogCheck, check_checkpoint};
use longhaul_core::store::log::State;
use longhaul_core::store::map::Place;
use longhaul_core::store::segment::{Segment, SegmentKind};
use longhaul_core::store::staged;
use rustix::fs::FlockOperation;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// Bytes of a checkpoint read at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Largest segment read: batches are limited, and a segment holds one at least.
const MAX_SEGMENT_BYTES: u64 = 1 << 30;

/// Missing segments that are named one by one.
const MAX_GAP: usize = 16;

/// What a check says.
#[derive(Debug, Default, Serialize)]
struct Report {
    /// `host` or `store`.
    kind: &'static str,
    volumes: Vec<Checked>,
    damage: Vec<Damage>,
    /// What is worth knowing and no damage.
    notes: Vec<String>,
}

/// A volume that was looked at.
#[derive(Debug, Serialize)]
struct Checked {
    name: String,
    id: String,
    ok: bool,
    epoch: u64,
    last_seq: u64,
    /// Journal frames or segments.
    parts: u64,
    bytes: u64,
    /// In words.
    found: String,
}

/// Something that is not as it was written.
#[derive(Debug, Serialize)]
struct Damage {
    file: PathBuf,
    offset: Option<u64>,
    problem: String,
    /// What to do.
    advice: String,
}

/// Checks a directory and prints what was found.
///
/// # Errors
/// If the directory is not one of ours, is in use, or something in it is damaged.
pub fn check(dir: &Path, json: bool) -> Result<()> {
    if dir.to_str().is_some_and(|text| text.starts_with("s3://")) {
        bail!(
            "check takes a directory, and {0} is a bucket: copy what is in it (`aws s3 sync {0} DIR`) while its store is \
             stopped, and check the copy",
            dir.display()
        );
    }
    let _lock = lock(dir)?;
    let report = if state::is_state_dir(dir) {
        check_host(dir)?
    } else if dir.join("objects").is_dir() {
        check_store(dir)?
    } else {
        bail!(
            "{} is neither the state directory of a host (there is no host.toml) nor the data \
             directory of a store (there is no objects/)",
            dir.display()
        );
    };
    let out = if json { serde_json::to_string_pretty(&report)? + "\n" } else { in_words(&report) };
    std::io::stdout().write_all(out.as_bytes()).context("cannot write the report")?;
    match report.damage.len() {
        0 => Ok(()),
        1 => bail!("{} has damage in one place", dir.display()),
        count => bail!("{} has damage in {count} places", dir.display()),
    }
}

/// Sees to it that nobody writes in the meantime, without writing itself.
fn lock(dir: &Path) -> Result<Option<File>> {
    let path = dir.join("lock");
    // Nobody has ever used it, or it was copied without.
    let Ok(file) = File::open(&path) else { return Ok(None) };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let pid = std::fs::read_to_string(&path).unwrap_or_default();
            bail!(
                "{} is in use by the process with pid {}: stop it, then check",
                dir.display(),
                pid.trim()
            );
        }
        Err(error) => Err(error).with_context(|| format!("cannot lock {}", path.display())),
    }
}

fn check_host(dir: &Path) -> Result<Report> {
    let mut report = Report { kind: "host", ..Report::default() };
    if let Err(error) = state::identity(dir, false) {
        report.damage.push(Damage {
            file: dir.join("host.toml"),
            offset: None,
            problem: format!("{error:#}"),
            advice: "restore it from a copy: the store knows this host by it".into(),
        });
    }
    let volumes = dir.join("volumes");
    for path in directories(&volumes)? {
        let description = path.join("volume.json");
        if !description.exists() {
            report.notes.push(format!("{} holds no volume", path.display()));
            continue;
        }
        match state::read_volume(&description) {
            Ok(volume) => {
                check_journal(&path, &volume, &mut report)?;
                check_cache(&path, &volume, &mut report)?;
            }
            Err(error) => report.damage.push(Damage {
                file: description,
                offset: None,
                problem: format!("{error:#}"),
                advice: "restore it from a copy; without it the journal beside it is not found"
                    .into(),
            }),
        }
    }
    Ok(report)
}

fn check_journal(dir: &Path, volume: &VolumeFile, report: &mut Report) -> Result<()> {
    let mut checked = Checked {
        name: volume.name.clone(),
        id: volume.id.clone(),
        ok: false,
        epoch: volume.epoch,
        last_seq: 0,
        parts: 0,
        bytes: 0,
        found: String::new(),
    };
    match state::open_journal(dir, volume, false) {
        Err(error) => {
            checked.found = "its files are not complete".into();
            report.damage.push(Damage {
                file: dir.to_owned(),
                offset: None,
                problem: format!("{error:#}"),
                advice: "bring the files back as they were".into(),
            });
        }
        Ok(files) => {
            let mut recovery = Recovery::new(Some(volume.volume_id()?), lengths(&files)?);
            let outcome = run_recovery(&mut recovery, &files);
            let found = recovery.report();
            checked.epoch = found.epoch.max(volume.epoch);
            checked.last_seq = found.seqs.1;
            checked.parts = found.frames;
            checked.bytes = found.live_bytes;
            match outcome {
                Ok(_) => {
                    checked.ok = true;
                    checked.found = format!(
                        "{} writes from the last known commit on, the end is in journal.{:04} at {}",
                        found.records, found.end_at.0, found.end_at.1
                    );
                }
                Err(error) => {
                    let (file, offset) = place(dir, &error);
                    checked.found = "damaged".into();
                    report.damage.push(Damage {
                        file,
                        offset,
                        problem: format!("{error:#}"),
                        advice: "do not start the host with it before that is done: the state \
                                 directory can be copied and checked elsewhere"
                            .into(),
                    });
                }
            }
        }
    }
    report.volumes.push(checked);
    Ok(())
}

/// What is wrong with a read cache is no damage: it is not used.
fn check_cache(dir: &Path, volume: &VolumeFile, report: &mut Report) -> Result<()> {
    match pins::load(dir) {
        Ok(pins) if pins.bytes() > 0 => report.notes.push(format!(
            "{}: {} pinned in {} ranges",
            pins::path(dir).display(),
            show_bytes(pins.bytes()),
            pins.ranges().count()
        )),
        Ok(_) => {}
        Err(error) => report.notes.push(format!("{error:#}: nothing is pinned; pin it again")),
    }
    let path = cache::path(dir);
    let file = match File::open(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        opened => opened.with_context(|| format!("cannot open {}", path.display()))?,
    };
    let bytes = file.metadata()?.len();
    let Some(geometry) = Geometry::for_size(bytes) else {
        report.notes.push(format!("{} is no read cache: it will be made anew", path.display()));
        return Ok(());
    };
    let mut load = Load::new(geometry, Some(volume.volume_id()?));
    cache::run_load(&mut load, &file);
    let (mut blocks, mut bad) = (0_u64, 0_u64);
    let mut record = vec![0; RECORD_BYTES];
    for block in load.blocks() {
        blocks += 1;
        let read = file.read_exact_at(&mut record, block.offset);
        bad += u64::from(read.is_err() || !block.matches(&record));
    }
    let found = load.report();
    report.notes.push(format!(
        "{}: a read cache with {blocks} blocks of 4 KiB, {bad} of which are not what was written there, and {} bad \
         pages of its index; what is bad is not used",
        path.display(),
        found.bad_pages
    ));
    Ok(())
}

/// Where in which file a journal is damaged.
fn place(dir: &Path, error: &anyhow::Error) -> (PathBuf, Option<u64>) {
    match error.downcast_ref::<JournalError>() {
        Some(
            JournalError::FileHeader { file, .. }
            | JournalError::Mixed { file, .. }
            | JournalError::Truncated { file, .. },
        ) => (state::journal_path(dir, *file), Some(0)),
        Some(
            JournalError::Version { file, offset, .. }
            | JournalError::Damaged { file, offset, .. }
            | JournalError::Read { file, offset, .. },
        ) => (state::journal_path(dir, *file), Some(*offset)),
        _ => (dir.to_owned(), None),
    }
}

fn check_store(dir: &Path) -> Result<Report> {
    let mut report = Report { kind: "store", ..Report::default() };
    match store::installation(dir) {
        Ok(Some(_)) => {}
        Ok(None) => report.notes.push(format!(
            "{} has no {}: no store has been started on it since it was copied here",
            dir.display(),
            store::MARKER
        )),
        Err(error) => report.damage.push(Damage {
            file: dir.join(store::MARKER),
            offset: None,
            problem: format!("{error:#}"),
            advice: "a store refuses to start on it".into(),
        }),
    }
    let objects = &dir.join("objects");
    let mut specs: BTreeMap<String, VolumeSpec> = BTreeMap::new();
    for path in files(&objects.join("volumes"))? {
        let key = key(objects, &path);
        let spec = std::fs::read(&path).map_err(|error| error.to_string()).and_then(|bytes| {
            catalog::decode_spec(&key, &bytes).map_err(|error| error.to_string())
        });
        match spec {
            Ok(spec) => {
                specs.insert(spec.id.to_string(), spec);
            }
            Err(problem) => report.damage.push(Damage {
                file: path,
                offset: None,
                problem,
                advice: "restore it from a copy: without it the volume has no name and no size"
                    .into(),
            }),
        }
    }
    for path in directories(&objects.join("v"))? {
        let id = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !specs.contains_key(&id) {
            report.notes.push(format!(
                "{} belongs to no volume: to one that is being deleted, or whose name is damaged",
                path.display()
            ));
        }
    }
    for spec in specs.values() {
        check_volume(objects, spec, &mut report)?;
    }
    Ok(report)
}

/// Segments from the next one to the one before `until` are not there. Of a long gap only the
/// beginning is reported: its end may be a file that has nothing to do with the volume.
fn handle_gap(
    objects: &Path,
    spec: &VolumeSpec,
    log: &mut LogCheck,
    until: u64,
    report: &mut Report,
) {
    let missing = until.saturating_sub(log.next());
    for number in (log.next()..until).take(MAX_GAP) {
        report.damage.push(Damage {
            file: objects.join(catalog::segment_key(spec.id, number)),
            offset: None,
            problem: "this segment is missing, and later ones or a checkpoint are there".into(),
            advice: SEGMENT_ADVICE.into(),
        });
    }
    log.handle_missing(missing);
}

fn check_volume(objects: &Path, spec: &VolumeSpec, report: &mut Report) -> Result<()> {
    let before = report.damage.len();
    let numbers = |prefix: String| -> Result<BTreeSet<u64>> {
        let files = files(&objects.join(prefix.trim_end_matches('/')))?;
        Ok(files
            .iter()
            .filter_map(|path| catalog::parse_number(&prefix, &key(objects, path)))
            .collect())
    };
    let segments = numbers(catalog::segment_prefix(spec.id))?;
    let checkpoints = numbers(catalog::checkpoint_prefix(spec.id))?;
    let sizes = numbers(catalog::size_prefix(spec.id))?;
    let mut log = LogCheck::new(spec);
    let mut resized = BTreeMap::new();
    let mut bytes = 0;
    for &number in &segments {
        handle_gap(objects, spec, &mut log, number, report);
        let path = objects.join(catalog::segment_key(spec.id, number));
        let problem = match read(&path) {
            Ok(object) => {
                bytes += object.len() as u64;
                let checked = log.handle_segment(&object);
                if let Ok(Segment { header, .. }) = &checked
                    && header.kind == SegmentKind::Resize
                {
                    resized.insert(number, header.sectors);
                }
                checked.err()
            }
            Err(error) => {
                log.handle_missing(1);
                Some(format!("it cannot be read: {error}"))
            }
        };
        if let Some(problem) = problem {
            let offset = offset_in(&problem);
            let advice = SEGMENT_ADVICE.into();
            report.damage.push(Damage { file: path, offset, problem, advice });
        }
    }
    if let Some(last) = checkpoints.last() {
        handle_gap(objects, spec, &mut log, last.saturating_add(1), report);
    }
    for number in &checkpoints {
        let path = objects.join(catalog::checkpoint_key(spec.id, *number));
        let problem = match File::open(&path) {
            Err(error) => Some(error.to_string()),
            Ok(mut file) => {
                check_checkpoint(spec, *number, pieces(&mut file)).err().map(|e| e.to_string())
            }
        };
        if let Some(problem) = problem {
            report.damage.push(Damage {
                file: path,
                offset: None,
                problem,
                advice: "delete it: the store then reads an older one, or the segments".into(),
            });
        }
    }
    for number in &sizes {
        let path = objects.join(catalog::size_key(spec.id, *number));
        if let Some(problem) = check_size(objects, spec, &path, resized.get(number)) {
            report.damage.push(Damage {
                file: path,
                offset: None,
                problem,
                advice: "delete it: only a list of volumes that are not in use may then show an older size".into(),
            });
        }
    }
    check_staged(objects, spec, log.state(), report)?;
    let state = log.state();
    let ok = report.damage.len() == before;
    let outstanding = match (ok, state.clean) {
        (false, _) => "damaged",
        (true, true) => "its last host ended in order",
        (true, false) => "its last host has not ended in order, and may have more",
    };
    report.volumes.push(Checked {
        name: spec.name.clone(),
        id: spec.id.to_string(),
        ok,
        epoch: state.epoch(),
        last_seq: state.committed,
        parts: segments.len() as u64,
        bytes,
        found: format!("{} checkpoints; {outstanding}", checkpoints.len()),
    });
    Ok(())
}

/// Verifies the staged objects that the log refers to, and notes those it does not.
fn check_staged(
    objects: &Path,
    spec: &VolumeSpec,
    state: &State,
    report: &mut Report,
) -> Result<()> {
    let prefix = catalog::staged_prefix(spec.id);
    let mut unused: BTreeMap<u64, u64> = BTreeMap::new();
    for path in files(&objects.join(prefix.trim_end_matches('/')))? {
        if let Some(number) = catalog::parse_number(&prefix, &key(objects, &path)) {
            unused.insert(number, path.metadata().map_or(0, |meta| meta.len()));
        }
    }
    let mut referenced: BTreeMap<u64, Vec<(Range, Place)>> = BTreeMap::new();
    for (range, place) in state.map.iter_from(0).filter(|(_, place)| place.is_staged()) {
        referenced.entry(place.segment()).or_default().push((range, place));
    }
    for (number, places) in referenced {
        unused.remove(&number);
        let path = objects.join(catalog::staged_key(spec.id, number));
        let mut damaged = |offset: Option<u64>, range: Range, problem: String| {
            let problem = format!("{problem}; {range} of the volume cannot be read");
            let advice = STAGED_ADVICE.into();
            report.damage.push(Damage { file: path.clone(), offset, problem, advice });
        };
        match read(&path) {
            Ok(object) => {
                for (range, place) in places {
                    if let Err(error) = staged::check(&object, range.lba, place) {
                        damaged(Some(place.offset().into()), range, error.to_string());
                    }
                }
            }
            Err(error) => {
                for (range, _) in places {
                    damaged(None, range, format!("it cannot be read: {error}"));
                }
            }
        }
    }
    if !unused.is_empty() {
        report.notes.push(format!(
            "volume {}: {} staged objects ({}) hold nothing that is visible: copies that were never made, or have \
             been overwritten; they go when the volume is deleted",
            spec.name,
            unused.len(),
            show_bytes(unused.values().sum())
        ));
    }
    Ok(())
}

/// What is wrong with a size that is noted beside the log, which says it of the segment of that number.
fn check_size(
    objects: &Path,
    spec: &VolumeSpec,
    path: &Path,
    logged: Option<&u64>,
) -> Option<String> {
    let bytes = match read(path) {
        Ok(bytes) => bytes,
        Err(error) => return Some(format!("it cannot be read: {error}")),
    };
    match (catalog::decode_size(spec, &key(objects, path), &bytes), logged) {
        (Err(error), _) => Some(error.to_string()),
        (Ok(sectors), Some(logged)) if sectors != *logged => {
            Some(format!("it says {sectors} sectors, the log says {logged}"))
        }
        _ => None,
    }
}

const SEGMENT_ADVICE: &str = "restore it from a copy; without it the volume does not open, and the \
                              ranges written in it are lost";

const STAGED_ADVICE: &str = "restore it from a copy of the data directory";

/// The offset that a message of the segment parser names.
fn offset_in(problem: &str) -> Option<u64> {
    let rest = problem.split_once("at byte ")?.1;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

fn read(path: &Path) -> std::io::Result<Bytes> {
    let mut data = Vec::new();
    File::open(path)?.take(MAX_SEGMENT_BYTES).read_to_end(&mut data)?;
    Ok(data.into())
}

/// The content of a file in pieces; it ends early where it cannot be read, which the checkpoint's
/// reader reports as cut short.
fn pieces(file: &mut File) -> impl Iterator<Item = Bytes> + '_ {
    std::iter::from_fn(move || {
        let mut piece = Vec::new();
        file.take(PIECE_BYTES as u64).read_to_end(&mut piece).ok()?;
        (!piece.is_empty()).then(|| piece.into())
    })
}

fn key(objects: &Path, path: &Path) -> String {
    path.strip_prefix(objects).unwrap_or(path).to_string_lossy().into_owned()
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    if !dir.exists() {
        return Ok(Vec::new());
    }
    let read = || -> std::io::Result<Vec<PathBuf>> {
        std::fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect()
    };
    let mut paths = read().with_context(|| format!("cannot list {}", dir.display()))?;
    paths.sort();
    Ok(paths)
}

fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    Ok(entries(dir)?.into_iter().filter(|path| path.is_file()).collect())
}

fn directories(dir: &Path) -> Result<Vec<PathBuf>> {
    Ok(entries(dir)?.into_iter().filter(|path| path.is_dir()).collect())
}

fn in_words(report: &Report) -> String {
    let parts = if report.kind == "host" { "FRAMES" } else { "SEGMENTS" };
    let header = ["VOLUME", "", "EPOCH", "LAST WRITE", parts, "BYTES", "FOUND"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(report.volumes.iter().map(|volume| {
        vec![
            volume.name.clone(),
            if volume.ok { "ok" } else { "DAMAGED" }.into(),
            volume.epoch.to_string(),
            volume.last_seq.to_string(),
            volume.parts.to_string(),
            show_bytes(volume.bytes),
            volume.found.clone(),
        ]
    }));
    let mut out = columns(&rows);
    for note in &report.notes {
        out += &format!("note: {note}\n");
    }
    for Damage { file, offset, problem, advice } in &report.damage {
        let at = offset.map(|offset| format!(", offset {offset}")).unwrap_or_default();
        out += &format!("DAMAGE in {}{at}: {problem}\n  what to do: {advice}\n", file.display());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::state::{JournalShape, StateDir};
    use bytes::BytesMut;
    use longhaul_core::block::{STAGED_BIT, StagedData, VolumeId};
    use longhaul_core::host::journal::create_plan;
    use longhaul_core::record;

    fn host() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let shape = JournalShape { file_bytes: 64 << 10, files: 2 };
        let volume = VolumeFile::new("v", VolumeId(7), 2048, 512, shape).unwrap();
        let plan = create_plan(shape.geometry(), volume.journal_number().unwrap(), VolumeId(7));
        state.create_journal(&volume, &plan.unwrap()).unwrap();
        let journal = state.volume_dir(VolumeId(7));
        (dir, journal)
    }

    #[test]
    fn an_intact_host_passes_and_damage_is_placed() {
        let (dir, journal) = host();
        let report = check_host(dir.path()).unwrap();
        assert!(report.damage.is_empty() && report.volumes[0].ok, "{report:?}");
        check(dir.path(), true).unwrap();
        let path = state::journal_path(&journal, 1);
        File::options().write(true).open(&path).unwrap().write_all_at(b"XX", 0).unwrap();
        let report = check_host(dir.path()).unwrap();
        assert_eq!(report.damage.len(), 1);
        assert_eq!((&report.damage[0].file, report.damage[0].offset), (&path, Some(0)));
        assert!(in_words(&report).contains("DAMAGE in"));
        assert!(check(dir.path(), false).unwrap_err().to_string().contains("one place"));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(check_host(dir.path()).unwrap().damage.len(), 1);
    }

    #[test]
    fn a_directory_in_use_or_of_someone_else_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(check(dir.path(), false).unwrap_err().to_string().contains("neither"));
        let held = StateDir::open(dir.path()).unwrap();
        let error = check(dir.path(), false).unwrap_err().to_string();
        assert!(error.contains(&std::process::id().to_string()), "{error}");
        drop(held);
        check(dir.path(), false).unwrap();
    }

    #[test]
    fn staged_objects_are_checked_against_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let objects = dir.path().join("objects");
        let id = VolumeId(9);
        let (name, created_sectors, block_bytes) = ("v".to_owned(), 2048, 512);
        let spec = VolumeSpec { id, name, created_sectors, block_bytes, created: 0 };
        let number = STAGED_BIT | 7;
        let path = objects.join(catalog::staged_key(id, number));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let record = Range::new(16, 8);
        let mut object = BytesMut::new();
        record::encode_data(1, number, record, &[5; 8 * 512], &mut object);
        std::fs::write(&path, &object).unwrap();
        std::fs::write(objects.join(catalog::staged_key(id, number + 1)), b"left").unwrap();
        let mut state = State::new(&spec, 1);
        let data = StagedData { object: number, offset: 0, record };
        let place = Place::staged(18, &data);
        state.map.replace(Range::new(18, 4), place);
        let check = || {
            let mut report = Report::default();
            check_staged(&objects, &spec, &state, &mut report).unwrap();
            (report.damage, report.notes)
        };
        let (damage, notes) = check();
        assert!(damage.is_empty(), "{damage:?}");
        assert!(notes[0].contains("1 staged objects"), "{notes:?}");
        object[900] ^= 1;
        std::fs::write(&path, &object).unwrap();
        let (damage, _) = check();
        assert_eq!((damage.len(), damage[0].offset), (1, Some(0)));
        assert!(damage[0].problem.contains("sectors 18+4"), "{damage:?}");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(check().0.len(), 1);
    }

    #[test]
    fn store_objects_that_are_none_are_placed() {
        let dir = tempfile::tempdir().unwrap();
        let objects = dir.path().join("objects");
        let spec = VolumeSpec {
            id: VolumeId(9),
            name: "v".into(),
            created_sectors: 2048,
            block_bytes: 512,
            created: 0,
        };
        let put = |key: &str, data: &[u8]| {
            let path = objects.join(key);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, data).unwrap();
        };
        put(&catalog::name_key("v"), &catalog::encode_spec(&spec));
        assert!(check_store(dir.path()).unwrap().damage.is_empty());
        put(&catalog::segment_key(spec.id, 2), b"nonsense");
        put(&catalog::checkpoint_key(spec.id, 1), b"nonsense");
        put(&catalog::name_key("w"), b"nonsense");
        put(&catalog::size_key(spec.id, 1), &catalog::encode_size(4096));
        put(&catalog::size_key(spec.id, 2), &catalog::encode_size(1024));
        let report = check_store(dir.path()).unwrap();
        let damaged: BTreeSet<String> =
            report.damage.iter().map(|damage| key(&objects, &damage.file)).collect();
        let expected = BTreeSet::from([
            catalog::name_key("w"),
            catalog::segment_key(spec.id, 1),
            catalog::segment_key(spec.id, 2),
            catalog::checkpoint_key(spec.id, 1),
            catalog::size_key(spec.id, 2),
        ]);
        assert_eq!(damaged, expected);
        assert!(check(dir.path(), true).is_err());
    }
}
