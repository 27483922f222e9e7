//! `longhaul check`: verifies the files of a stopped host or store, and changes nothing.
//!
//! The engines verify (`Recovery`, `LogCheck`, `RootCheck`). This module finds and reads the files.
//! It reports damage with the file, the offset and what to do.

mod keys;
mod map;
mod report;
mod small;
mod stored;

use crate::host::columns;
use anyhow::{Context as _, Result, bail};
use keys::DataKeys;
use longhaul_base::disk::FileArea;
use longhaul_base::units::show_bytes;
use longhaul_base::{Usage, files};
use longhaul_core::block::Range;
use longhaul_core::host::cache::{Geometry, Load, RECORD_BYTES};
use longhaul_core::host::journal::{JournalError, Recovery};
use longhaul_core::store::catalog::{self, VolumeSpec};
use longhaul_core::store::check::LogCheck;
use longhaul_core::store::map::Place;
use longhaul_core::store::map::table::Table;
use longhaul_core::store::segment::{self, Segment};
use longhaul_core::store::staged;
use longhaul_core::store::trash::{Decision, Record, TRASH_PREFIX};
use longhaul_host::state::{self, JournalDevice, VolumeFile};
use longhaul_host::{cache, lengths, pins, run_recovery};
use longhaul_objects::{Location, StoppedDevice};
use longhaul_store::location::LocationRole;
use map::MapCheck;
use report::{Checked, Damage, Report, directories, read};
use rustix::fs::FlockOperation;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use stored::{Directory, InPlace, Stored};

/// Missing segments to name one by one.
const MAX_GAP: usize = 16;

/// Checks a directory, or another location of a store's objects, and prints the findings.
///
/// # Errors
/// If it is not one of longhaul's, is in use, or something in it is damaged.
pub fn check(dir: &Path, journal: Option<&Path>, json: bool) -> Result<()> {
    let (_locks, report): (Vec<File>, _) = match Location::parse(dir)? {
        Location::Directory(dir) => (
            lock(&dir, "lock")?.into_iter().chain(lock(&dir, "shared.lock")?).collect(),
            check_directory(&dir, journal)?,
        ),
        Location::Device(path) => (Vec::new(), check_device(&path)?),
        Location::Bucket { .. } => bail!(
            "check takes a directory or a device, and {0} is a bucket: copy its objects (`aws s3 \
             sync {0} DIR`) while its store is stopped, and check the copy",
            dir.display()
        ),
        Location::Memory { .. } => bail!("the memory of a store has nothing to check"),
    };
    print(dir, &report, json)
}

/// The files that a check of a directory finds damaged.
pub fn damage_in(dir: &Path) -> Result<Vec<PathBuf>> {
    Ok(check_directory(dir, None)?.damage.into_iter().map(|damage| damage.file).collect())
}

fn check_directory(dir: &Path, journal: Option<&Path>) -> Result<Report> {
    if longhaul_base::dirs::is_state_dir(dir) {
        let device = journal.map(JournalDevice::open_stopped).transpose()?;
        check_host(dir, device.as_ref())
    } else if dir.join("objects").is_dir() {
        check_store(dir)
    } else {
        bail!(
            "{} is neither the state directory of a host (there is no host.toml) nor the data \
             directory of a store (there is no objects/)",
            dir.display()
        )
    }
}

fn print(dir: &Path, report: &Report, json: bool) -> Result<()> {
    let out = if json { serde_json::to_string_pretty(report)? + "\n" } else { in_words(report) };
    std::io::stdout().write_all(out.as_bytes()).context("cannot write the report")?;
    match report.damage.len() {
        0 => Ok(()),
        1 => bail!("{} has damage in one place", dir.display()),
        count => bail!("{} has damage in {count} places", dir.display()),
    }
}

/// Sees to it that nobody writes in the meantime, without writing itself.
fn lock(dir: &Path, name: &str) -> Result<Option<File>> {
    let path = dir.join(name);
    // Nobody has used it, a copy left it out, or it is no file, which another check reports.
    let Ok(file) = files::open(&path) else { return Ok(None) };
    // The one that stores share is free if none of them has it.
    let operation = match name {
        "lock" => FlockOperation::NonBlockingLockShared,
        _ => FlockOperation::NonBlockingLockExclusive,
    };
    match rustix::fs::flock(&file, operation) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) if name != "lock" => {
            bail!("{} is in use by a store: stop all of them, then check", dir.display())
        }
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let pid = files::read_to_string(&path).unwrap_or_default();
            bail!(
                "{} is in use by the process with pid {}: stop it, then check",
                dir.display(),
                pid.trim()
            );
        }
        Err(error) => Err(error).with_context(|| format!("cannot lock {}", path.display())),
    }
}

fn check_host(dir: &Path, device: Option<&JournalDevice>) -> Result<Report> {
    let mut report = Report { kind: "host", ..Report::default() };
    if let Err(error) = state::identity(dir, false) {
        report.damage.push(Damage {
            file: dir.join("host.toml"),
            offset: None,
            problem: format!("{error:#}"),
            advice: "restore it from a copy: the store knows this host by it".into(),
        });
    }
    small::host_state(dir, &mut report);
    small::tables(dir, &mut report)?;
    let volumes = dir.join("volumes");
    for path in directories(&volumes)? {
        let description = path.join("volume.json");
        if !description.exists() {
            small::without_description(&path, &mut report);
            continue;
        }
        small::host_volume(&path, &mut report);
        match state::read_volume(&description) {
            Ok(volume) => {
                check_journal(&path, &volume, device, &mut report)?;
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

fn check_journal(
    dir: &Path,
    volume: &VolumeFile,
    device: Option<&JournalDevice>,
    report: &mut Report,
) -> Result<()> {
    let mut checked = Checked {
        name: volume.name.clone(),
        id: volume.id.clone(),
        ok: false,
        epoch: volume.epoch,
        last_seq: 0,
        parts: 0,
        bytes: 0,
        data_keys: BTreeMap::new(),
        found: String::new(),
    };
    let opened = match (&volume.slot, device) {
        (None, _) => state::open_journal(dir, volume, false),
        (Some(slot), Some(device)) => device.open_journal(volume, slot),
        (Some(_), None) => bail!(Usage(format!(
            "the journal of volume {} is on a journal device: name it with --journal DEVICE",
            volume.name
        ))),
    };
    match opened {
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
            let mut recovery = Recovery::new(Some(volume.volume_id()?), lengths(&files));
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
                    let device = device.filter(|_| volume.slot.is_some());
                    let (file, offset) = place(dir, device, &files, &error);
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

/// A damaged read cache is no damage: the host does not use it.
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
    // Another check reports an entry that is no file.
    let Ok(file) = files::open(&path) else { return Ok(()) };
    let bytes = file.metadata()?.len();
    let Some(geometry) = Geometry::for_size(bytes) else {
        report.notes.push(format!("{} is no read cache: it will be made anew", path.display()));
        return Ok(());
    };
    let mut load = Load::new(geometry, Some(volume.volume_id()?));
    longhaul_base::cache_file::run_load(&mut load, &file);
    let (mut blocks, mut bad) = (0_u64, 0_u64);
    let mut record = vec![0; RECORD_BYTES];
    for block in load.blocks() {
        blocks += 1;
        let read = file.read_exact_at(&mut record, block.offset);
        bad += u64::from(read.is_err() || !block.matches(&record));
    }
    let found = load.report();
    report.notes.push(format!(
        "{}: a read cache with {blocks} blocks of 4 KiB, {bad} of them damaged, and {} damaged \
         pages of its index; the host does not use the damaged parts",
        path.display(),
        found.bad_pages
    ));
    Ok(())
}

/// The place of the damage in a journal: file and offset.
fn place(
    dir: &Path,
    device: Option<&JournalDevice>,
    files: &[FileArea],
    error: &anyhow::Error,
) -> (PathBuf, Option<u64>) {
    let (file, offset) = match error.downcast_ref::<JournalError>() {
        Some(
            JournalError::FileHeader { file, .. }
            | JournalError::Mixed { file, .. }
            | JournalError::Truncated { file, .. },
        ) => (*file, 0),
        Some(
            JournalError::Version { file, offset, .. }
            | JournalError::Damaged { file, offset, .. }
            | JournalError::Read { file, offset, .. },
        ) => (*file, *offset),
        _ => return (dir.to_owned(), None),
    };
    match device {
        Some(device) => {
            let start = files.get(file as usize).map_or(0, FileArea::start);
            (device.path().to_owned(), Some(start + offset))
        }
        None => (state::journal_path(dir, file), Some(offset)),
    }
}

fn check_store(dir: &Path) -> Result<Report> {
    let mut report = Report { kind: "store", ..Report::default() };
    match longhaul_store::installation(dir) {
        Ok(Some(_)) => {}
        Ok(None) => report.damage.push(Damage {
            file: dir.join(longhaul_base::dirs::STORE_FILE),
            offset: None,
            problem: "it is not there".into(),
            advice: "bring it back: a store refuses to start on objects without it".into(),
        }),
        Err(error) => report.damage.push(Damage {
            file: dir.join(longhaul_base::dirs::STORE_FILE),
            offset: None,
            problem: format!("{error:#}"),
            advice: "a store refuses to start on it".into(),
        }),
    }
    small::store_state(dir, &mut report);
    check_objects(&Directory(dir.join("objects")), &mut report)?;
    Ok(report)
}

/// The index of a device, the content of all of its objects, and what they mean.
fn check_device(path: &Path) -> Result<Report> {
    let device = StoppedDevice::open(path)?;
    let mut report = Report { kind: "store", ..Report::default() };
    for meta in device.list("") {
        if let Err(problem) = device.verify(&meta.key) {
            let advice =
                "restore the device from a copy, or see the description of the object below".into();
            let file = device.place(&meta.key);
            report.damage.push(Damage { file, offset: None, problem, advice });
        }
    }
    check_objects(&device, &mut report)?;
    Ok(report)
}

fn check_objects(all: &dyn Stored, report: &mut Report) -> Result<()> {
    let (objects, role) = InPlace::find(all)?;
    match role {
        LocationRole::Primary { .. } => {}
        LocationRole::Replica { of, built: true, .. } => {
            report.notes.push(format!("it is a replica of {of}"));
        }
        LocationRole::Replica { of, .. } => report.notes.push(format!(
            "it is to be a replica of {of}, and not everything has been there yet: volumes may be \
             missing or cut short"
        )),
        LocationRole::Replaced { by } => {
            report.notes.push(format!("volumes are served from {by} now"))
        }
    }
    let objects = &objects;
    small::objects(objects, report)?;
    let mut specs: BTreeMap<String, VolumeSpec> = BTreeMap::new();
    let mut nameless = false;
    for meta in objects.list("volumes/")? {
        let key = meta.key;
        let spec = read(objects, &key).map_err(|error| error.to_string()).and_then(|bytes| {
            catalog::decode_spec(&key, &bytes).map_err(|error| error.to_string())
        });
        match spec {
            Ok(spec) => {
                specs.insert(spec.id.to_string(), spec);
            }
            Err(problem) => {
                nameless = true;
                report.damage.push(Damage {
                    file: objects.place(&key),
                    offset: None,
                    problem,
                    advice: "restore it from a copy: without it the volume has no name and no size"
                        .into(),
                });
            }
        }
    }
    let before = report.damage.len();
    let deleted = deleted(objects, report)?;
    nameless |= report.damage.len() > before;
    let whole = |record: &Record| {
        let mut parents = record.spec.parents.iter().map(|parent| parent.volume.to_string());
        let there = |id: &String| specs.contains_key(id) || deleted.contains_key(id);
        record.decision != Decision::Purged && parents.all(|id| there(&id))
    };
    let kept = deleted.values().filter(|record| whole(record));
    let kept: Vec<VolumeSpec> = kept.map(|record| record.spec.clone()).collect();
    for spec in kept {
        specs.entry(spec.id.to_string()).or_insert(spec);
    }
    let all = objects.list("v/")?;
    let ids: BTreeSet<&str> = all.iter().filter_map(|meta| meta.key.split('/').nth(1)).collect();
    for id in ids {
        if !specs.contains_key(id) && !deleted.contains_key(id) {
            let file = objects.place(&format!("v/{id}"));
            if nameless {
                let file = file.display();
                report
                    .notes
                    .push(format!("{file} belongs to a volume whose description is damaged"));
                continue;
            }
            report.damage.push(Damage {
                file,
                offset: None,
                problem: "the volume of this data has no description".into(),
                advice: "restore its description (below volumes/ or deleted/) from a copy; if it \
                         was to be deleted, remove it"
                    .into(),
            });
        }
    }
    small::tenants(objects, specs.values(), report)?;
    for spec in specs.values() {
        check_volume(objects, &specs, spec, report)?;
    }
    Ok(())
}

/// The last decision about each deleted volume.
fn deleted(objects: &dyn Stored, report: &mut Report) -> Result<BTreeMap<String, Record>> {
    let mut newest: BTreeMap<String, Record> = BTreeMap::new();
    let mut keys: Vec<_> = objects.list(TRASH_PREFIX)?.into_iter().map(|meta| meta.key).collect();
    keys.sort_unstable();
    for key in keys {
        let record = read(objects, &key)
            .map_err(|error| error.to_string())
            .and_then(|bytes| Record::decode(&key, &bytes).map_err(|error| error.to_string()));
        match record {
            Ok(record) => {
                newest.insert(record.spec.id.to_string(), record);
            }
            Err(problem) => report.damage.push(Damage {
                file: objects.place(&key),
                offset: None,
                problem,
                advice:
                    "restore it from a copy: without it a deleted volume cannot be brought back"
                        .into(),
            }),
        }
    }
    Ok(newest)
}

/// The beginning of a volume's log. That of a clone begins with its parent's. The check of the
/// parent reports damage of that.
fn begin_log(
    objects: &dyn Stored,
    specs: &BTreeMap<String, VolumeSpec>,
    spec: &VolumeSpec,
) -> Result<LogCheck, String> {
    let Some(parent) = spec.parents.first() else { return Ok(LogCheck::new(spec)) };
    let of = specs.get(&parent.volume.to_string()).filter(|of| of.parents == spec.parents[1..]);
    let of =
        of.ok_or_else(|| format!("it is a clone of volume {}, which is not there", parent.volume))?;
    let listed = MapCheck::list(objects, of).map_err(|error| format!("{error:#}"))?;
    if let Some(log) = listed.log_of_snapshot(parent.segment) {
        return Ok(log.begin_clone(spec));
    }
    let mut log = begin_log(objects, specs, of)?;
    while log.next() <= parent.segment && log.is_whole() {
        match read(objects, &catalog::segment_key(of.id, log.next())) {
            Ok(object) => drop(log.handle_segment(&object)),
            Err(_) => log.handle_missing(log.next()),
        }
    }
    if log.is_whole() {
        return Ok(log.begin_clone(spec));
    }
    Err(format!(
        "it is a clone of {}, whose log is damaged: only its own part has been verified",
        of.name
    ))
}

/// The segments from the next one to the one before `until` are missing. Reports only the beginning
/// of a long gap: its end may be a file that has nothing to do with the volume.
fn handle_gap(
    objects: &dyn Stored,
    spec: &VolumeSpec,
    log: &mut LogCheck,
    until: u64,
    report: &mut Report,
) {
    let header = 0..segment::HEADER_BYTES as u64;
    let object = objects.read(&catalog::segment_key(spec.id, until), header).unwrap_or_default();
    for number in log.missing(until, &object).take(MAX_GAP) {
        report.damage.push(Damage {
            file: objects.place(&catalog::segment_key(spec.id, number)),
            offset: None,
            problem: "this segment is missing, and later ones or a root are there".into(),
            advice: SEGMENT_ADVICE.into(),
        });
    }
    if log.next() < until {
        log.handle_missing(until - 1);
    }
}

/// Whether the log ends before these segments: a store that ended had them on their way. The log
/// must reach the segment `rooted`.
fn ends_before(
    objects: &dyn Stored,
    spec: &VolumeSpec,
    log: &LogCheck,
    rooted: u64,
    segments: &BTreeSet<u64>,
) -> bool {
    let leftover = |number: &u64| {
        let header = 0..segment::HEADER_BYTES as u64;
        let object = objects.read(&catalog::segment_key(spec.id, *number), header);
        object.is_ok_and(|object| log.is_leftover(*number, &object, objects.proves_segments()))
    };
    !segments.contains(&log.next())
        && rooted < log.next()
        && segments.range(log.next()..).all(leftover)
}

fn check_volume(
    objects: &dyn Stored,
    specs: &BTreeMap<String, VolumeSpec>,
    spec: &VolumeSpec,
    report: &mut Report,
) -> Result<()> {
    let before = report.damage.len();
    let numbers = |prefix: String| -> Result<BTreeSet<u64>> {
        let found = objects.list(&prefix)?;
        Ok(found.iter().filter_map(|meta| catalog::parse_number(&prefix, &meta.key)).collect())
    };
    let segments = numbers(catalog::segment_prefix(spec.id))?;
    let mut map = MapCheck::list(objects, spec)?;
    let sizes = numbers(catalog::size_prefix(spec.id))?;
    let mut log = begin_log(objects, specs, spec).unwrap_or_else(|problem| {
        report.notes.push(format!("volume {}: {problem}", spec.name));
        let mut log = LogCheck::new(spec);
        log.handle_missing(spec.begins_after());
        log
    });
    map.check_roots_of(spec.begins_after(), Some(&log).filter(|log| log.is_whole()), report);
    let mut resized = BTreeMap::new();
    let mut bytes = 0;
    let mut data_keys = DataKeys::default();
    // Garbage collection may have deleted segments of an old root. So look at them one by one, and
    // follow the log from that root.
    let base = map.base(report);
    let through = base.as_ref().map_or(0, |(through, _)| *through);
    if let Some((_, after)) = base {
        log = after;
    }
    for &number in segments.range(..=through) {
        let key = catalog::segment_key(spec.id, number);
        let checked = read(objects, &key).map_err(|error| error.to_string()).and_then(|object| {
            bytes += object.len() as u64;
            let segment = segment::verify(&object).map_err(|error| error.to_string())?;
            match (segment.header.volume, segment.header.number) == (spec.id, number) {
                true => {
                    data_keys.segment(spec.id, &segment, &object);
                    Ok(segment)
                }
                false => Err("it is another segment, or another volume's".to_owned()),
            }
        });
        match checked {
            Ok(Segment { header, .. }) if header.sectors > 0 => {
                resized.insert(number, header.sectors);
            }
            Ok(_) => {}
            Err(problem) => {
                let offset = offset_in(&problem);
                let (file, advice) = (objects.place(&key), SEGMENT_ADVICE.into());
                report.damage.push(Damage { file, offset, problem, advice });
            }
        }
    }
    let mut leftovers = 0;
    let rooted = map.roots.keys().map(|name| name.segment).max().unwrap_or(0);
    for &number in segments.range(through + 1..) {
        if number < log.next() || ends_before(objects, spec, &log, rooted, &segments) {
            leftovers += 1;
            continue;
        }
        handle_gap(objects, spec, &mut log, number, report);
        let key = catalog::segment_key(spec.id, number);
        let problem = match read(objects, &key) {
            Ok(object) => {
                bytes += object.len() as u64;
                let checked = log.handle_segment(&object);
                if let Ok(segment) = &checked {
                    data_keys.segment(spec.id, segment, &object);
                }
                if let Ok(Segment { header, .. }) = &checked
                    && header.sectors > 0
                {
                    resized.insert(number, header.sectors);
                }
                checked.err()
            }
            Err(error) => {
                log.handle_missing(number);
                Some(format!("it cannot be read: {error}"))
            }
        };
        if let Some(problem) = problem {
            let offset = offset_in(&problem);
            let (file, advice) = (objects.place(&key), SEGMENT_ADVICE.into());
            report.damage.push(Damage { file, offset, problem, advice });
        }
        let sound = report.damage.len() == before && log.is_whole();
        map.check_roots_of(number, sound.then_some(&log), report);
    }
    handle_gap(objects, spec, &mut log, rooted.saturating_add(1), report);
    if leftovers > 0 {
        report.notes.push(format!(
            "volume {}: {leftovers} segments that a store had on their way when it ended are not \
             part of the log, and take space only",
            spec.name
        ));
    }
    let found = map.finish(report);
    for number in &sizes {
        let key = catalog::size_key(spec.id, *number);
        if let Some(problem) = check_size(objects, spec, &key, resized.get(number)) {
            report.damage.push(Damage {
                file: objects.place(&key),
                offset: None,
                problem,
                advice: "delete it: only a list of volumes that are not in use may then show an \
                         older size"
                    .into(),
            });
        }
    }
    check_staged(objects, spec, log.table(), report)?;
    data_keys.bundles(objects, spec.id)?;
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
        data_keys: data_keys.into_bytes(),
        found: format!("{found}; {outstanding}"),
    });
    Ok(())
}

/// Verifies the staged objects that the log refers to, and notes those it does not.
fn check_staged(
    objects: &dyn Stored,
    spec: &VolumeSpec,
    table: &Table,
    report: &mut Report,
) -> Result<()> {
    let prefix = catalog::staged_prefix(spec.id);
    let mut unused: BTreeMap<u64, u64> = BTreeMap::new();
    for meta in objects.list(&prefix)? {
        if let Some(number) = catalog::parse_number(&prefix, &meta.key) {
            unused.insert(number, meta.bytes);
        }
    }
    let mut referenced: BTreeMap<u64, Vec<(Range, Place)>> = BTreeMap::new();
    let places = table.iter_from(0).filter_map(|(range, place)| Some((range, place?)));
    for (range, place) in places.filter(|(_, place)| place.is_staged()) {
        referenced.entry(place.segment()).or_default().push((range, place));
    }
    for (number, places) in referenced {
        unused.remove(&number);
        let key = catalog::staged_key(spec.id, number);
        let mut damaged = |offset: Option<u64>, range: Range, problem: String| {
            let problem = format!("{problem}; {range} of the volume cannot be read");
            let (file, advice) = (objects.place(&key), STAGED_ADVICE.into());
            report.damage.push(Damage { file, offset, problem, advice });
        };
        match read(objects, &key) {
            Ok(object) => {
                for (range, place) in places {
                    if let Err(error) = staged::check(spec.id, &object, range.lba, place) {
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
            "volume {}: {} staged objects ({}) have no visible data: their copies were never made, \
             or clients have overwritten them; they go with the volume",
            spec.name,
            unused.len(),
            show_bytes(unused.values().sum())
        ));
    }
    Ok(())
}

/// Checks a size noted beside the log, which is for the segment of that number.
fn check_size(
    objects: &dyn Stored,
    spec: &VolumeSpec,
    key: &str,
    logged: Option<&u64>,
) -> Option<String> {
    let bytes = match read(objects, key) {
        Ok(bytes) => bytes,
        Err(error) => return Some(format!("it cannot be read: {error}")),
    };
    match (catalog::decode_size(spec, key, &bytes), logged) {
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
    out += &keys::in_words(report);
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
mod tests;
