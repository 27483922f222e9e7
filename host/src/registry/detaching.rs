//! Volumes that go: by command, or because the store does not have them any more.
//!
//! Promises: the host frees the space of a journal only once the store has all of it, or an
//! operator allowed the loss.

use super::entries::AttachStage;
use super::volume_registry::VolumeRegistry;
use crate::failure::AttachFailure;
use crate::state::VolumeFile;
use crate::task::{AttachTask, Leaving};
use crate::volume::Volume;
use anyhow::{Result, bail};
use longhaul_base::units::show_bytes;
use longhaul_core::wire::link::{ToHost, ToStore, VolumeError, VolumeOperation, VolumeReply};
use std::rc::Rc;
use std::time::Duration;

/// How often a detach looks whether the store has confirmed the end of the epoch.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

impl VolumeRegistry {
    /// Begins to detach a volume. Its clients have to be gone, and the store has to have everything
    /// of it. Or gives up an attach. When that is done, the volume is gone from the status.
    ///
    /// # Errors
    /// If the volume does not exist here, it is in use, or the store does not have everything.
    pub async fn detach(self: &Rc<Self>, name: &str, drop_undelivered: bool) -> Result<()> {
        match self.entries.stage(name) {
            Some(AttachStage::Attached(volume)) => self.detach_attached(name, volume),
            Some(AttachStage::Detaching) => Ok(()),
            Some(AttachStage::Trying(_) | AttachStage::Waiting(_)) => {
                self.refuse_undelivered(name, drop_undelivered)?;
                self.entries.detach(name, drop_undelivered);
                Ok(())
            }
            Some(AttachStage::Ended(_)) => {
                self.refuse_undelivered(name, drop_undelivered)?;
                self.end(name);
                self.entries.set(name, AttachStage::Detaching);
                let (registry, name) = (self.clone(), name.to_owned());
                tokio::task::spawn_local(async move {
                    if let Err(error) = registry.leave(&name, drop_undelivered).await {
                        tracing::warn!(volume = name, "its space is not free: {error:#}");
                        registry.entries.remove(&name);
                    }
                });
                Ok(())
            }
            None => {
                let known = self.host.state.volumes()?.iter().any(|file| file.name == name);
                if !known && !self.host.shared.remembered.contains(name) {
                    bail!("volume {name} is not attached here");
                }
                self.refuse_undelivered(name, drop_undelivered)?;
                self.leave(name, drop_undelivered).await
            }
        }
    }

    pub(super) fn detach_attached(self: &Rc<Self>, name: &str, volume: Rc<Volume>) -> Result<()> {
        let clients = self.observers.clients(name);
        if clients > 0 {
            bail!("volume {name} has {clients} clients: disconnect them, then detach it");
        }
        let lag = volume.status().0.lag_bytes;
        if lag > 0 {
            bail!("the store does not have {} of volume {name} yet: try again", show_bytes(lag));
        }
        tracing::info!(volume = name, "detaching");
        self.host.shared.remembered.set(name, false);
        self.entries.set(name, AttachStage::Detaching);
        volume.with(|now, engine| engine.handle_shutdown(now));
        tokio::task::spawn_local(self.clone().finish(name.to_owned(), volume));
        Ok(())
    }

    /// Waits for the store, then frees the space here.
    async fn finish(self: Rc<Self>, name: String, volume: Rc<Volume>) {
        while !volume.is_detached() {
            // A volume that another host fences off meanwhile reports that itself.
            if volume.is_fenced() || self.shutdown.has_begun() {
                return;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        drop(volume);
        self.end(&name);
        if let Err(error) = self.leave(&name, false).await {
            tracing::warn!(volume = name, "its space is not free: {error:#}");
        }
    }

    /// Lets go of the engine of a volume that is over.
    pub(super) fn end(&self, name: &str) {
        self.observers.gone(name, "it was detached");
        self.attached.end(name);
    }

    /// Bytes of writes that may be lost if the host frees the space of this name.
    fn undelivered(&self, name: &str, file: &VolumeFile) -> bool {
        let empty = self
            .kept(name)
            .is_some_and(|kept| kept.file.id == file.id && kept.known && kept.lag_bytes == 0);
        file.name == name && !file.delivered && !empty
    }

    fn refuse_undelivered(&self, name: &str, drop_undelivered: bool) -> Result<()> {
        let files = self.host.state.volumes()?;
        match files.iter().find(|file| self.undelivered(name, file)) {
            Some(file) if !drop_undelivered => bail!(
                "volume {name} has writes in {} that the store may lack: attach it here and let it \
                 drain, carry that state directory to a host that can, or give them up with \
                 `longhaul detach {name} --drop-undelivered`",
                self.host.state.volume_dir(file.volume_id()?).display()
            ),
            _ => Ok(()),
        }
    }

    /// Forgets a detached volume, and frees its space here.
    async fn leave(&self, name: &str, drop_undelivered: bool) -> Result<()> {
        self.host.shared.remembered.set(name, false);
        let mut bytes = 0;
        for file in self.host.state.volumes()?.into_iter().filter(|file| file.name == name) {
            let id = file.volume_id()?;
            let lost = self.undelivered(name, &file);
            if self.attached.get(id).is_some() || lost && !drop_undelivered {
                continue;
            }
            if lost {
                tracing::warn!(
                    volume = name,
                    "the host drops the undelivered writes, by order of the operator"
                );
            }
            bytes += file.journal.bytes();
            self.host.space.free(id, file).await?;
        }
        if bytes > 0 {
            let freed = show_bytes(bytes);
            tracing::info!(volume = name, "the space of its journal is free again: {freed}");
        }
        self.entries.remove(name);
        Ok(())
    }

    /// Ends the task that was to attach a volume, because a command does not want it any more.
    pub(super) async fn left(&self, task: &AttachTask) {
        let name = task.name();
        let Some(Leaving::Detached { drop_undelivered }) = task.leaving() else {
            return self.entries.give_up(name);
        };
        if let Err(error) = self.leave(name, drop_undelivered).await {
            tracing::warn!(volume = name, "its space is not free: {error:#}");
        }
        self.entries.remove(name);
    }

    /// Frees the journals of volumes that the store does not have any more, if it had everything.
    pub(super) async fn free_gone(self: Rc<Self>) {
        let files = match self.host.state.volumes() {
            Ok(files) => files,
            Err(error) => return tracing::debug!("{error:#}"),
        };
        for file in files.into_iter().filter(|file| file.released && file.delivered) {
            // Volumes of other threads are theirs.
            let Some(_seat) = self.host.sit(&file.name) else { continue };
            let busy = match self.entries.stage(&file.name) {
                None => false,
                Some(AttachStage::Attached(volume)) => {
                    volume.attached().volume.to_string() == file.id
                }
                Some(AttachStage::Waiting(AttachFailure::NotFound(_))) => false,
                Some(_) => true,
            };
            if busy || self.is_there(&file).await != Some(false) {
                continue;
            }
            // Another task may have attached it meanwhile.
            let Ok(id) = file.volume_id() else { continue };
            let still = self.host.state.volume(id).ok().flatten();
            if still.as_ref() != Some(&file) || self.attached.get(id).is_some() {
                continue;
            }
            let (name, bytes) = (file.name.clone(), show_bytes(file.journal.bytes()));
            match self.host.space.free(id, file).await {
                Ok(()) => tracing::info!(
                    volume = name,
                    "the store does not have it any more: the space of its journal is free again, \
                     {bytes}"
                ),
                Err(error) => tracing::warn!(volume = name, "its space is not free: {error:#}"),
            }
        }
    }

    /// Whether the store has the volume that a journal belongs to; `None` if it does not say.
    async fn is_there(&self, file: &VolumeFile) -> Option<bool> {
        let operation = VolumeOperation::Show { name: file.name.clone() };
        let asked = self.host.router.call(|request| ToStore::Volume { request, operation }).await;
        match asked {
            Ok(ToHost::Volume { result: Ok(VolumeReply::Volume(info)), .. }) => {
                Some(info.id.to_string() == file.id)
            }
            Ok(ToHost::Volume { result: Err(VolumeError::NotFound), .. }) => Some(false),
            _ => None,
        }
    }
}
