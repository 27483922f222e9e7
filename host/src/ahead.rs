//! Limits and traces of a host's volumes: what the command line says of them, what commands change
//! while it runs, and where traces are kept.
//!
//! ```text
//! volumes/ID/traces/NAME.trace     a recording, see docs/formats.md
//! ```

use super::front::Front;
use super::schedule::Schedule;
use super::state::StateDir;
use super::volume::Volume;
use anyhow::{Context as _, Result, bail, ensure};
use longhaul_base::files;
use longhaul_base::span::Span;
use longhaul_core::block::VolumeId;
use longhaul_core::host::{MAX_TRACE_BYTES, Trace};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

/// Longest name of a trace, in bytes.
const MAX_NAME_BYTES: usize = 64;

/// Most traces of a volume.
const MAX_TRACES: usize = 64;

/// How often the time of day is looked at.
const LOOK: Duration = Duration::from_secs(5);

/// What commands can change.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Control {
    /// Attach a volume.
    Attach {
        /// Which.
        volume: String,
        /// Also if another host that is connected has it.
        take_over: bool,
    },
    /// The command that asked for it does not wait any more.
    CancelAttach {
        /// Which volume.
        volume: String,
    },
    /// Detach a volume of which the store has everything, or give up to attach it.
    Detach {
        /// Which.
        volume: String,
        /// Free its journal also if the store may not have everything.
        drop_undelivered: bool,
    },
    /// Other limits for a volume until this host stops; what is not given stays.
    Limit {
        /// Which.
        volume: String,
        /// As [`Schedule::parse`] takes it.
        drain_rate: Option<String>,
        /// As [`Schedule::parse`] takes it.
        readahead_rate: Option<String>,
    },
    /// Record what clients read.
    Record {
        /// Of which volume.
        volume: String,
        /// Of the trace.
        name: String,
    },
    /// Keep what was recorded, or end a replay.
    Stop {
        /// Of which volume.
        volume: String,
    },
    /// Read a trace ahead.
    Replay {
        /// Of which volume.
        volume: String,
        /// Of the trace.
        name: String,
    },
    /// Keep ranges in the read cache.
    Pin {
        /// Of which volume.
        volume: String,
        /// Which.
        ranges: Vec<Span>,
    },
    /// No longer keep them there.
    Unpin {
        /// Of which volume.
        volume: String,
        /// Which.
        ranges: Vec<Span>,
    },
    /// Bring ranges into the read cache.
    Warm {
        /// Of which volume.
        volume: String,
        /// Which.
        ranges: Vec<Span>,
    },
    /// End that.
    StopWarming {
        /// Of which volume.
        volume: String,
    },
    /// Forget a trace.
    Delete {
        /// Of which volume.
        volume: String,
        /// Of the trace.
        name: String,
    },
}

/// A trace that is kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TraceReport {
    /// Of which volume.
    pub volume: String,
    /// Its name.
    pub name: String,
    /// Ranges in it.
    pub ranges: usize,
    /// Bytes of the volume in them.
    pub bytes: u64,
}

/// Limits of a volume by time of day.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// Of the drain.
    pub drain: Schedule,
    /// Of reading ahead.
    pub readahead: Schedule,
}

/// What was changed by command, and what is under way.
#[derive(Default)]
pub struct Ahead {
    /// Those of the command line, once they are other ones than at the start.
    common: RefCell<Option<Limits>>,
    limits: RefCell<BTreeMap<String, Limits>>,
    /// Names of the traces being recorded, by volume and epoch.
    recording: RefCell<BTreeMap<(String, u64), String>>,
}

impl Front {
    /// Gives a volume that was just attached its limits, and begins the trace of `--warm`.
    pub(super) fn dress(self: &Rc<Self>, volume: &Rc<Volume>) {
        self.apply_limits(volume);
        let Some(name) = self.options.warm.clone() else { return };
        let (state, volume) = (self.state.clone(), volume.clone());
        let id = volume.attached().volume;
        tokio::task::spawn_local(async move {
            let shown = name.clone();
            let loaded = tokio::task::spawn_blocking(move || load(&state, id, &shown)).await;
            match loaded.context("the thread that reads a trace failed").flatten() {
                Ok(Some(trace)) => {
                    tracing::info!(volume = volume.name(), trace = name, "reading ahead");
                    volume.with(|now, engine| engine.handle_replay(now, &trace));
                }
                Ok(None) => {}
                Err(error) => tracing::warn!(volume = volume.name(), "{error:#}"),
            }
        });
    }

    /// The limits of a volume: those set by command, or else those of the command line.
    pub(super) fn limits(&self, name: &str) -> Limits {
        let common = self.ahead.common.borrow();
        let common = common.as_ref().unwrap_or(&self.options.limits);
        self.ahead.limits.borrow().get(name).unwrap_or(common).clone()
    }

    /// Volumes that no command has given limits have these from now on.
    pub(super) fn set_common_limits(&self, limits: Limits) {
        self.ahead.common.replace(Some(limits));
        for volume in self.volumes() {
            self.apply_limits(&volume);
        }
    }

    fn apply_limits(&self, volume: &Rc<Volume>) {
        let Limits { drain, readahead } = self.limits(volume.name());
        let (drain, readahead) = (drain.now(), readahead.now());
        volume.with(|now, engine| engine.handle_limits(now, drain, readahead));
    }

    /// Follows the time of day, for as long as the host runs.
    pub async fn run_limits(self: Rc<Self>) {
        loop {
            tokio::time::sleep(LOOK).await;
            for volume in self.volumes() {
                self.apply_limits(&volume);
            }
        }
    }

    pub(super) fn attached(&self, name: &str) -> Result<Rc<Volume>> {
        let volume = self.volumes().into_iter().find(|volume| volume.name() == name);
        volume.with_context(|| format!("volume {name} is not attached here"))
    }

    /// Does what a command asks.
    ///
    /// # Errors
    /// If the volume is not attached, or there is no such trace, or it cannot be read or written.
    pub async fn control(self: &Rc<Self>, control: Control) -> Result<()> {
        match control {
            Control::Attach { volume, take_over } => self.attach_now(&volume, take_over)?,
            Control::CancelAttach { volume } => self.cancel_attach(&volume),
            Control::Detach { volume, drop_undelivered } => {
                self.detach(&volume, drop_undelivered).await?;
            }
            Control::Limit { volume: name, drain_rate, readahead_rate } => {
                let volume = self.attached(&name)?;
                let mut limits = self.limits(&name);
                if let Some(rate) = drain_rate {
                    limits.drain = Schedule::parse(&rate)?;
                }
                if let Some(rate) = readahead_rate {
                    limits.readahead = Schedule::parse(&rate)?;
                }
                tracing::info!(
                    volume = name,
                    "limits: drain {}, read-ahead {}",
                    limits.drain,
                    limits.readahead
                );
                self.ahead.limits.borrow_mut().insert(name, limits);
                self.apply_limits(&volume);
            }
            Control::Record { volume: name, name: trace } => {
                let volume = self.attached(&name)?;
                check_name(&trace)?;
                let mut begun = false;
                volume.with(|now, engine| begun = engine.handle_record(now));
                ensure!(
                    begun,
                    "a trace of volume {name} is being recorded already: stop that first"
                );
                tracing::info!(volume = name, trace, "recording what is read");
                let key = (name, volume.attached().epoch);
                self.ahead.recording.borrow_mut().insert(key, trace);
            }
            Control::Stop { volume: name } => {
                let volume = self.attached(&name)?;
                let (mut recorded, mut replayed) = (None, false);
                volume.with(|now, engine| {
                    recorded = engine.handle_stop_recording(now);
                    replayed = recorded.is_none() && engine.handle_stop_replay(now);
                });
                let key = (name.clone(), volume.attached().epoch);
                let trace = self.ahead.recording.borrow_mut().remove(&key);
                let (Some(recorded), Some(trace)) = (recorded, trace) else {
                    ensure!(replayed, "of volume {name} nothing is being recorded or replayed");
                    return Ok(());
                };
                let (state, id) = (self.state.clone(), volume.attached().volume);
                blocking(move || save(&state, id, &trace, &recorded)).await?;
            }
            Control::Replay { volume: name, name: trace } => {
                let volume = self.attached(&name)?;
                check_name(&trace)?;
                let (state, id) = (self.state.clone(), volume.attached().volume);
                let shown = trace.clone();
                let Some(loaded) = blocking(move || load(&state, id, &shown)).await? else {
                    bail!("volume {name} has no trace {trace}");
                };
                volume.with(|now, engine| engine.handle_replay(now, &loaded));
            }
            Control::Pin { volume, ranges } => self.pin_ranges(&volume, &ranges, true).await?,
            Control::Unpin { volume, ranges } => self.pin_ranges(&volume, &ranges, false).await?,
            Control::Warm { volume, ranges } => self.warm(&volume, &ranges)?,
            Control::StopWarming { volume } => self.stop_warming(&volume)?,
            Control::Delete { volume: name, name: trace } => {
                let volume = self.attached(&name)?;
                check_name(&trace)?;
                let path = path(&self.state, volume.attached().volume, &trace);
                std::fs::remove_file(&path)
                    .with_context(|| format!("cannot delete {}", path.display()))?;
            }
        }
        Ok(())
    }

    /// The traces of all attached volumes.
    ///
    /// # Errors
    /// If a directory cannot be listed. A trace that cannot be read has no ranges.
    pub fn traces(&self) -> Result<Vec<TraceReport>> {
        let mut traces = Vec::new();
        for volume in self.volumes() {
            let id = volume.attached().volume;
            for name in names(&self.state, id)? {
                let trace = load(&self.state, id, &name).ok().flatten().unwrap_or_default();
                let volume = volume.name().to_owned();
                let (ranges, bytes) = (trace.ranges().len(), trace.bytes());
                traces.push(TraceReport { volume, name, ranges, bytes });
            }
        }
        Ok(traces)
    }
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.context("a thread for files failed")?
}

/// # Errors
/// If it would not do as the name of a file.
pub fn check_name(name: &str) -> Result<()> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    ensure!(
        !name.is_empty()
            && name.len() <= MAX_NAME_BYTES
            && name.chars().all(good)
            && !name.starts_with('.'),
        "`{name}` is not a name for a trace: up to {MAX_NAME_BYTES} letters, digits, `.`, `_` and `-`, \
         and no `.` at the beginning"
    );
    Ok(())
}

fn dir(state: &StateDir, id: VolumeId) -> PathBuf {
    state.volume_dir(id).join("traces")
}

fn path(state: &StateDir, id: VolumeId, name: &str) -> PathBuf {
    dir(state, id).join(format!("{name}.trace"))
}

fn names(state: &StateDir, id: VolumeId) -> Result<Vec<String>> {
    let dir = dir(state, id);
    let entries = match std::fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("cannot list {}", dir.display())),
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let name = name.to_str().and_then(|name| name.strip_suffix(".trace"));
        names.extend(name.filter(|name| check_name(name).is_ok()).map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

fn save(state: &StateDir, id: VolumeId, name: &str, trace: &Trace) -> Result<()> {
    let names = names(state, id)?;
    ensure!(
        names.len() < MAX_TRACES || names.iter().any(|other| other == name),
        "there are {MAX_TRACES} traces of this volume already: delete one and record it again"
    );
    files::create_dir(&dir(state, id))?;
    files::replace(&path(state, id, name), &trace.encode(), 0o600)
}

/// `None` if there is no such trace.
fn load(state: &StateDir, id: VolumeId, name: &str) -> Result<Option<Trace>> {
    use std::io::Read as _;
    let path = path(state, id, name);
    let file = match longhaul_base::files::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot open {}", path.display())),
    };
    let mut bytes = Vec::new();
    file.take(MAX_TRACE_BYTES as u64 + 1)
        .read_to_end(&mut bytes)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let trace = Trace::decode(&bytes).with_context(|| {
        format!("{} cannot be used: delete it and record it again", path.display())
    })?;
    Ok(Some(trace))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_are_kept_by_volume_and_damage_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(&dir.path().join("state")).unwrap();
        let id = VolumeId(7);
        assert_eq!(names(&state, id).unwrap(), [""; 0]);
        assert_eq!(load(&state, id, "boot").unwrap(), None);
        let trace = Trace::default();
        save(&state, id, "boot", &trace).unwrap();
        save(&state, id, "boot", &trace).unwrap();
        save(&state, id, "login", &trace).unwrap();
        assert_eq!(names(&state, id).unwrap(), ["boot", "login"]);
        assert_eq!(load(&state, id, "boot").unwrap(), Some(trace));
        assert_eq!(load(&state, VolumeId(8), "boot").unwrap(), None);
        std::fs::write(path(&state, id, "boot"), b"LHTRACE1xxxxxxxxxxxx").unwrap();
        let error = format!("{:#}", load(&state, id, "boot").unwrap_err());
        assert!(error.contains("boot.trace") && error.contains("damaged"), "{error}");
        for bad in ["", ".", "..", ".x", "a/b", "a b", &"x".repeat(65)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
