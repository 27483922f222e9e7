//! The commands that a running host takes.

use super::pins;
use super::volume_registry::VolumeRegistry;
use crate::control::HostCommand;
use crate::pins::PinsReport;
use crate::settings::Limits;
use crate::traces::TraceReport;
use anyhow::Result;
use std::rc::Rc;
use std::time::Duration;

/// How often the limits follow the time of day.
const LIMITS_INTERVAL: Duration = Duration::from_secs(5);

impl VolumeRegistry {
    /// Carries a command out.
    ///
    /// # Errors
    /// If the volume is not attached, or there is no such trace, or it cannot be read or written.
    pub async fn control(self: &Rc<Self>, control: HostCommand) -> Result<()> {
        match control {
            HostCommand::Attach { volume, take_over } => self.attach_now(&volume, take_over),
            HostCommand::CancelAttach { volume } => {
                self.cancel_attach(&volume);
                Ok(())
            }
            HostCommand::Detach { volume, drop_undelivered } => {
                self.detach(&volume, drop_undelivered).await
            }
            HostCommand::Limit { volume, drain_rate, readahead_rate } => {
                let volume = self.find(&volume)?;
                self.limits.set(&volume, drain_rate.as_deref(), readahead_rate.as_deref())
            }
            HostCommand::Record { volume, name } => {
                self.recordings.record(&*self.find(&volume)?, name)
            }
            HostCommand::Stop { volume } => self.recordings.stop(&*self.find(&volume)?).await,
            HostCommand::Replay { volume, name } => {
                self.recordings.replay(&*self.find(&volume)?, name).await
            }
            HostCommand::Delete { volume, name } => {
                self.recordings.delete(&*self.find(&volume)?, &name)
            }
            HostCommand::Pin { volume, ranges } => {
                pins::pin_ranges(&self.host, &*self.find(&volume)?, &ranges, true).await
            }
            HostCommand::Unpin { volume, ranges } => {
                pins::pin_ranges(&self.host, &*self.find(&volume)?, &ranges, false).await
            }
            HostCommand::Warm { volume, ranges } => {
                pins::warm(&self.host, &*self.find(&volume)?, &ranges)
            }
            HostCommand::StopWarming { volume } => pins::stop_warming(&*self.find(&volume)?),
        }
    }

    /// The traces of all attached volumes. An unreadable trace has no ranges.
    ///
    /// # Errors
    /// If a directory is unreadable.
    pub fn traces(&self) -> Result<Vec<TraceReport>> {
        self.recordings.list(&self.attached.all())
    }

    /// The pinned ranges of the attached volumes that have a cache.
    pub fn pins(&self) -> Vec<PinsReport> {
        pins::list(&self.attached.all())
    }

    /// Volumes that no command has given limits have these from now on.
    pub fn set_common_limits(&self, limits: Limits) {
        self.limits.set_common(limits);
        self.apply_limits();
    }

    /// Follows the time of day, for as long as the host runs.
    pub async fn run_limits(self: Rc<Self>) {
        loop {
            tokio::time::sleep(LIMITS_INTERVAL).await;
            self.apply_limits();
        }
    }

    fn apply_limits(&self) {
        for volume in self.attached.all() {
            self.limits.apply(&volume);
        }
    }
}
