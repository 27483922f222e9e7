//! Volumes that come: the tasks that attach them, and their pauses between attempts.

use super::entries::{AttachStage, Wish};
use super::volume_registry::VolumeRegistry;
use crate::attach::{self, Attempt, OnEvent, OpenedJournal};
use crate::failure::AttachFailure;
use crate::task::AttachTask;
use crate::volume::Volume;
use anyhow::{Result, bail};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::watch;

/// Pause between a refused attach and the next attempt.
const RETRY: Duration = Duration::from_secs(5);

/// How long the status shows a volume that a command could not attach.
const FAILURE_SHOWN: Duration = Duration::from_secs(30);

impl VolumeRegistry {
    /// Attaches a volume that the command line names, and keeps trying.
    pub fn attach_always(self: &Rc<Self>, name: &str) {
        self.begin(name, Wish::Always);
    }

    /// Attaches a volume by command. The command succeeds once the volume is attached. Attempts go
    /// on only as long as the store is out of reach.
    ///
    /// # Errors
    /// If a detach of the volume is under way, or only a restart of this host can help.
    pub fn attach_now(self: &Rc<Self>, name: &str, take_over: bool) -> Result<()> {
        if self.shutdown.has_begun() {
            bail!("the host is shutting down");
        }
        let wish = Wish::Command { take_over };
        match self.entries.stage(name) {
            Some(AttachStage::Detaching) => {
                bail!("volume {name} is being detached: try again when that is done")
            }
            Some(AttachStage::Ended(AttachFailure::Disk(why))) => bail!("{why}"),
            Some(AttachStage::Ended(failure)) => {
                self.end(name);
                let by = self.entries.fenced_by(name);
                self.entries.remove(name);
                self.begin(name, wish);
                if let AttachFailure::Fenced(why) = failure {
                    self.entries.remember_fence(name, why, by);
                }
                return Ok(());
            }
            _ => {}
        }
        self.begin(name, wish);
        if let Some(AttachStage::Attached(_)) = self.entries.stage(name) {
            self.keep(name);
        }
        Ok(())
    }

    /// The command that asked for a volume does not wait for it any more.
    pub fn cancel_attach(&self, name: &str) {
        self.entries.cancel(name);
    }

    /// The volume stays attached, also after a restart.
    fn keep(&self, name: &str) {
        self.entries.keep(name);
        self.host.shared.remembered.set(name, true);
    }

    /// Adds a wish for a volume, and starts its task if there is none.
    pub(super) fn begin(self: &Rc<Self>, name: &str, wish: Wish) -> watch::Receiver<AttachStage> {
        let task = || AttachTask::new(name, self.shutdown.clone());
        // The caller holds a seat on this thread.
        let seat = || self.host.shared.placement.sit(name);
        let (stage, new) = self.entries.wish(name, wish, || (task(), seat()));
        if let Some(task) = new {
            tokio::task::spawn_local(self.clone().attach(task));
        }
        stage
    }

    async fn attach(self: Rc<Self>, task: Rc<AttachTask>) {
        let name = task.name();
        let mut link = self.link.subscribe();
        let mut told: Option<AttachFailure> = None;
        let mut journal: Option<OpenedJournal> = None;
        loop {
            if self.shutdown.has_begun() {
                return;
            }
            link.mark_unchanged();
            let Some((asked, take_over)) = self.entries.next_attempt(name) else {
                attach::discard(&self.host, &task, &mut journal).await;
                drop(journal);
                return self.left(&task).await;
            };
            // A wake-up for a command that this attempt answers must not begin another attempt,
            // whose failure would hide this one's.
            tokio::select! {
                biased;
                () = task.woken() => {}
                () = std::future::ready(()) => {}
            }
            self.entries.set(name, AttachStage::Trying(told.clone()));
            let failure = match self.attempt(&task, take_over, &mut journal).await {
                Ok(volume) => return self.attached_now(name, volume),
                Err(failure) => failure,
            };
            // The store did not get the request, or its answer is unknown. So the operator's word
            // still counts, unless a command took it back meanwhile.
            if take_over && failure == AttachFailure::Link {
                self.entries.allow_take_over(name, asked);
            }
            if told.as_ref() != Some(&failure) {
                tell(name, &failure);
                told = Some(failure.clone());
            }
            if let AttachFailure::Disk(_) = failure {
                return self.entries.set(name, AttachStage::Ended(failure));
            }
            let wait_for_link = failure == AttachFailure::Link && !self.host.router.is_up();
            let link_may_help = self.link.may_help(&failure);
            let Some(demand) = self.entries.demand(name) else { return };
            if demand.asked > asked {
                continue;
            }
            let waits = failure == AttachFailure::Link && demand.is_asked();
            let gone = matches!(failure, AttachFailure::NotFound(_));
            self.entries.set(name, AttachStage::Waiting(failure));
            if gone {
                self.clone().free_gone().await;
            }
            // Perhaps nobody wants it any more.
            if !demand.always && !link_may_help && !waits {
                let shown = if asked > 0 { FAILURE_SHOWN } else { Duration::ZERO };
                tokio::select! {
                    biased;
                    () = task.woken() => {}
                    () = tokio::time::sleep(shown) => return self.entries.give_up(name),
                }
                continue;
            }
            tokio::select! {
                _ = link.changed() => {}
                () = task.woken() => {}
                () = tokio::time::sleep(RETRY), if !wait_for_link => {}
            }
        }
    }

    async fn attempt(
        self: &Rc<Self>,
        task: &AttachTask,
        take_over: bool,
        journal: &mut Option<OpenedJournal>,
    ) -> Result<Rc<Volume>, AttachFailure> {
        let _counted = self.shutdown.attempt();
        let weak = Rc::downgrade(self);
        let on_event: OnEvent = Rc::new(move |volume: &Volume, event| {
            if let Some(registry) = weak.upgrade() {
                registry.handle_event(volume, event);
            }
        });
        let attempt = Attempt { host: &self.host, task, take_over, on_event };
        attach::attach(&attempt, journal).await
    }

    fn attached_now(self: &Rc<Self>, name: &str, volume: Rc<Volume>) {
        self.limits.apply(&volume);
        if let Some(trace) = self.host.settings.warm.clone() {
            self.recordings.begin_replay(volume.clone(), trace);
        }
        self.attached.insert(volume.clone());
        let (by_command, leaving) = self.entries.conclude(name);
        // Save it before anybody hears of success: a restart must not forget a successful command.
        if by_command {
            self.keep(name);
        }
        self.entries.set(name, AttachStage::Attached(volume.clone()));
        // A command has changed its mind meanwhile.
        if leaving.is_some()
            && let Err(error) = self.detach_attached(name, volume)
        {
            tracing::warn!(volume = name, "it stays attached: {error:#}");
        }
    }
}

fn tell(name: &str, failure: &AttachFailure) {
    match failure {
        AttachFailure::Link => tracing::info!(volume = name, "waiting for the store"),
        AttachFailure::InUse(why) => tracing::warn!(volume = name, "not attached: {why}"),
        AttachFailure::NotFound(why)
        | AttachFailure::Refused(why)
        | AttachFailure::Fenced(why)
        | AttachFailure::Disk(why) => tracing::error!(volume = name, "not attached: {why}"),
    }
}
