//! The rates of drain and read-ahead of each volume.

use crate::schedule::Schedule;
use crate::settings::Limits;
use crate::volume::Volume;
use anyhow::Result;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Limits by volume.
pub(super) struct VolumeLimits {
    /// Those of the command line.
    common: RefCell<Limits>,
    /// Those that commands have set.
    by_name: RefCell<BTreeMap<String, Limits>>,
}

impl VolumeLimits {
    /// Only those of the command line.
    pub fn new(common: Limits) -> VolumeLimits {
        VolumeLimits { common: RefCell::new(common), by_name: RefCell::default() }
    }

    /// The limits of a volume: those set by command, or else those of the command line.
    pub fn of(&self, name: &str) -> Limits {
        let own = self.by_name.borrow().get(name).cloned();
        own.unwrap_or_else(|| self.common.borrow().clone())
    }

    /// Volumes that no command has given limits have these from now on.
    pub fn set_common(&self, limits: Limits) {
        self.common.replace(limits);
    }

    /// Sets limits of one volume by command. A limit that is not given stays.
    ///
    /// # Errors
    /// If a rate cannot be understood.
    pub fn set(&self, volume: &Volume, drain: Option<&str>, readahead: Option<&str>) -> Result<()> {
        let mut limits = self.of(volume.name());
        if let Some(rate) = drain {
            limits.drain = Schedule::parse(rate)?;
        }
        if let Some(rate) = readahead {
            limits.readahead = Schedule::parse(rate)?;
        }
        tracing::info!(
            volume = volume.name(),
            "limits: drain {}, read-ahead {}",
            limits.drain,
            limits.readahead
        );
        self.by_name.borrow_mut().insert(volume.name().to_owned(), limits);
        self.apply(volume);
        Ok(())
    }

    /// Gives a volume the limits of this time of day.
    pub fn apply(&self, volume: &Volume) {
        let Limits { drain, readahead } = self.of(volume.name());
        let (drain, readahead) = (drain.now(), readahead.now());
        volume.with(|now, engine| engine.handle_limits(now, drain, readahead));
    }
}
