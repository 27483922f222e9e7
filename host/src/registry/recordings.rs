//! Records traces, and replays them.

use crate::blocking::blocking;
use crate::state::StateDir;
use crate::traces::{self, TraceReport, check_name};
use crate::volume::Volume;
use anyhow::{Context as _, Result, bail, ensure};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// The traces that the host records now.
pub(super) struct Recordings {
    state: Arc<StateDir>,
    /// Their names, by volume and epoch.
    names: RefCell<BTreeMap<(String, u64), String>>,
}

fn key(volume: &Volume) -> (String, u64) {
    (volume.name().to_owned(), volume.attached().epoch)
}

impl Recordings {
    /// No recordings.
    pub fn new(state: Arc<StateDir>) -> Recordings {
        Recordings { state, names: RefCell::default() }
    }

    /// Begins to record the reads of clients.
    ///
    /// # Errors
    /// If the name is not valid, or a recording of the volume is under way.
    pub fn record(&self, volume: &Volume, trace: String) -> Result<()> {
        let name = volume.name();
        check_name(&trace)?;
        let mut begun = false;
        volume.with(|now, engine| begun = engine.handle_record(now));
        ensure!(begun, "a trace of volume {name} is being recorded already: stop that first");
        tracing::info!(volume = name, trace, "recording the reads of clients");
        self.names.borrow_mut().insert(key(volume), trace);
        Ok(())
    }

    /// Saves the recording, or ends a replay.
    ///
    /// # Errors
    /// If no recording or replay is under way, or a write fails.
    pub async fn stop(&self, volume: &Volume) -> Result<()> {
        let name = volume.name();
        let (mut recorded, mut replayed) = (None, false);
        volume.with(|now, engine| {
            recorded = engine.handle_stop_recording(now);
            replayed = recorded.is_none() && engine.handle_stop_replay(now);
        });
        let trace = self.names.borrow_mut().remove(&key(volume));
        let (Some(recorded), Some(trace)) = (recorded, trace) else {
            ensure!(replayed, "of volume {name} nothing is being recorded or replayed");
            return Ok(());
        };
        let (state, id) = (self.state.clone(), volume.attached().volume);
        blocking(move || traces::save(&state, id, &trace, &recorded)).await
    }

    /// Reads a trace ahead.
    ///
    /// # Errors
    /// If there is no such trace, or it is unreadable.
    pub async fn replay(&self, volume: &Volume, trace: String) -> Result<()> {
        check_name(&trace)?;
        let (state, id, shown) = (self.state.clone(), volume.attached().volume, trace.clone());
        let Some(loaded) = blocking(move || traces::load(&state, id, &shown)).await? else {
            bail!("volume {} has no trace {trace}", volume.name());
        };
        volume.with(|now, engine| engine.handle_replay(now, &loaded));
        Ok(())
    }

    /// Reads a trace ahead after an attach, if the volume has one of this name.
    pub fn begin_replay(&self, volume: Rc<Volume>, name: String) {
        let state = self.state.clone();
        let id = volume.attached().volume;
        tokio::task::spawn_local(async move {
            let shown = name.clone();
            let load = move || traces::load(&state, id, &shown);
            let loaded = tokio::task::spawn_blocking(load).await;
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

    /// Deletes a trace.
    ///
    /// # Errors
    /// If there is no such trace, or the deletion fails.
    pub fn delete(&self, volume: &Volume, trace: &str) -> Result<()> {
        check_name(trace)?;
        let path = traces::path(&self.state, volume.attached().volume, trace);
        std::fs::remove_file(&path).with_context(|| format!("cannot delete {}", path.display()))
    }

    /// The traces of these volumes. An unreadable trace has no ranges.
    ///
    /// # Errors
    /// If a directory is unreadable.
    pub fn list(&self, volumes: &[Rc<Volume>]) -> Result<Vec<TraceReport>> {
        let mut reports = Vec::new();
        for volume in volumes {
            let id = volume.attached().volume;
            for name in traces::names(&self.state, id)? {
                let trace = traces::load(&self.state, id, &name).ok().flatten().unwrap_or_default();
                let volume = volume.name().to_owned();
                let (ranges, bytes) = (trace.ranges().len(), trace.bytes());
                reports.push(TraceReport { volume, name, ranges, bytes });
            }
        }
        Ok(reports)
    }
}
