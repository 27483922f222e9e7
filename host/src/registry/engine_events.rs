//! Handles the events of engines.

use super::volume_registry::VolumeRegistry;
use crate::versions;
use crate::volume::Volume;
use longhaul_base::units::show_bytes;
use longhaul_core::block::SECTOR_BYTES;
use longhaul_core::host::Event;
use longhaul_core::wire::link::{AttachError, ToHost, ToStore, VolumeOperation, VolumeReply};
use std::rc::Rc;

impl VolumeRegistry {
    /// Handles a report of an engine.
    pub(super) fn handle_event(self: &Rc<Self>, volume: &Volume, event: Event) {
        let name = volume.name();
        match event {
            Event::Fenced { epoch } => self.fenced(volume, epoch),
            Event::JournalFailed { error, continues } => {
                let then = if continues {
                    "the volume goes on; every flush now waits for the store"
                } else {
                    "the volume has stopped"
                };
                let why = format!("the journal failed: {error}; {then}; replace the disk");
                tracing::error!(volume = name, "{why}");
                volume.set_trouble(why);
            }
            Event::JournalDamaged { range, file, offset, problem, shipping_waits } => {
                let at = if range.is_empty() { String::new() } else { format!(" at {range}") };
                let then = if shipping_waits {
                    "; nothing from there on reaches the store unless a later read succeeds (the \
                     host tries every minute): check the disk, and copy the readable data before \
                     you stop this host"
                } else {
                    "; check disk and memory"
                };
                let why =
                    format!("journal file {file}, offset {offset} is damaged{at}: {problem}{then}");
                tracing::error!(volume = name, "{why}");
                volume.set_trouble(why);
            }
            Event::StoreDamaged { range } => tracing::error!(
                volume = name,
                "the store's data is damaged at {range}: run `longhaul check` on the stopped store"
            ),
            Event::StoreOutdated { range } => tracing::error!(
                volume = name,
                "the store answers with an older version at {range}, or with zeroes in the place \
                 of written data: clients get an error; did somebody restore the store's data from \
                 a copy?"
            ),
            Event::VersionsFailed { error } => {
                let why = format!(
                    "the version table failed: {error}; the host no longer notices older versions \
                     of blocks: replace the disk"
                );
                tracing::error!(volume = name, "{why}");
                volume.set_trouble(why);
            }
            Event::StorePlain { range } => tracing::error!(
                volume = name,
                "the store returns unencrypted data at {range} of an encrypted volume: somebody \
                 without its key wrote it; clients do not get it: write the range again, or roll \
                 back to a snapshot"
            ),
            Event::Resized { sectors } => self.resized(volume, sectors),
            Event::Room { room: true } => tracing::info!(volume = name, "the store has room again"),
            Event::Room { room: false } => tracing::warn!(
                volume = name,
                "the tenant is over its quota of stored bytes: the volume refuses new data with \
                 `no space` until there is room"
            ),
            Event::TraceReplayed { followed: true } => {
                tracing::info!(volume = name, "the trace has been read ahead to its end");
            }
            Event::TraceReplayed { followed: false } => tracing::info!(
                volume = name,
                "the host stops reading the trace ahead: clients read other ranges now"
            ),
            Event::Resumed { committed } => {
                tracing::info!(volume = name, committed, "resumed");
                volume.end_trouble(&self.not_at_the_store(volume));
            }
            Event::Refused(AttachError::NotFound) if volume.is_read_only() => {
                let why = self.not_at_the_store(volume);
                tracing::error!(volume = name, "{why}");
                self.observers.gone(name, &why);
                // Another one of that name may exist.
                self.entries.remove(name);
                self.attached.remove(volume.attached().volume);
            }
            Event::Refused(AttachError::NotFound) => {
                let why = self.not_at_the_store(volume);
                if volume.trouble().as_ref() != Some(&why) {
                    tracing::error!(volume = name, "{why}");
                    volume.set_trouble(why);
                }
            }
            Event::Refused(error) => {
                tracing::warn!(volume = name, "the store does not let it go on for now: {error}");
            }
            Event::BatchRefused { reason } => {
                tracing::warn!(
                    volume = name,
                    "the store refused a batch, shipping it again: {reason}"
                );
            }
            Event::StoreLostWrites { committed, from } => {
                let why = format!(
                    "the store has writes up to {committed} only and once had more; the journal \
                     begins at {from}, so the host sends nothing any more: restore the store's data"
                );
                tracing::error!(volume = name, "{why}");
                volume.set_trouble(why);
            }
            Event::Warmed { bytes, failed_bytes: 0 } => {
                tracing::info!(volume = name, "warmed {}", show_bytes(bytes));
            }
            Event::Warmed { bytes, failed_bytes } => tracing::warn!(
                volume = name,
                "warmed {}; {} could not be read at the store",
                show_bytes(bytes),
                show_bytes(failed_bytes)
            ),
            Event::CacheFailed { error } => {
                let why = format!(
                    "the read cache is off: {error}; reads go to the store; check the disk and \
                     restart this host"
                );
                tracing::error!(volume = name, "{why}");
                volume.set_trouble(why);
            }
            // After a power cut, the damage is the data that was on its way to the disk.
            Event::CacheDamaged { range, problem } => {
                tracing::debug!(
                    volume = name,
                    "the read cache does not have {range}: {problem}; it was read from the store"
                );
            }
            Event::CacheReady { found_bytes, dropped_bytes, dropped_all } => {
                let (found, dropped) = (show_bytes(found_bytes), show_bytes(dropped_bytes));
                if dropped_all {
                    tracing::warn!(
                        volume = name,
                        "the read cache begins empty: the store cannot list the writes since its \
                         {found} were cached"
                    );
                } else {
                    tracing::info!(
                        volume = name,
                        "the read cache has {found}, of which {dropped} were written elsewhere or \
                         later"
                    );
                }
            }
            Event::DamageTold { ranges, bytes } => tracing::warn!(
                volume = name,
                "the store's data is damaged in {ranges} ranges, {} in all: the host writes back \
                 the parts that the read cache has",
                show_bytes(bytes)
            ),
            Event::WrittenBack { range, .. } => {
                tracing::debug!(volume = name, "{range} written back");
            }
            Event::Repaired { told_bytes, written_bytes } => tracing::warn!(
                volume = name,
                "of {} of damaged data at the store, the host wrote back {}; the rest is not in \
                 the read cache, out of reach at the store, or on its way there",
                show_bytes(told_bytes),
                show_bytes(written_bytes)
            ),
            Event::Rewritten { range, .. } => {
                tracing::debug!(volume = name, "{range} encrypted anew");
            }
            Event::EncryptedAnew { key, bytes, failed_bytes: 0 } => tracing::info!(
                volume = name,
                "everything is encrypted with key {key}: {} were encrypted anew",
                show_bytes(bytes)
            ),
            Event::EncryptedAnew { key, bytes, failed_bytes } => tracing::warn!(
                volume = name,
                "{} were encrypted anew with key {key}; the store could not give {}, which is \
                 tried again",
                show_bytes(bytes),
                show_bytes(failed_bytes)
            ),
            Event::Detached => {
                tracing::info!(volume = name, "detached");
                self.release(volume, true);
                self.conclude(volume);
            }
        }
    }

    /// The epoch of an encrypted volume is over: computes its root and states it at the store.
    fn conclude(self: &Rc<Self>, volume: &Volume) {
        let attached = self.attached.get(volume.attached().volume);
        let Some(volume) = attached.filter(|volume| volume.has_versions()) else { return };
        volume.set_concluding(true);
        let host = self.host.clone();
        tokio::task::spawn_local(async move {
            versions::conclude(&host, &volume).await;
            volume.set_concluding(false);
        });
    }

    /// Another host has the volume. From now on, tells clients so.
    fn fenced(self: &Rc<Self>, volume: &Volume, epoch: u64) {
        let (name, lag) = (volume.name().to_owned(), volume.status().0.lag_bytes);
        let kept = if lag == 0 {
            "everything was delivered before".into()
        } else if volume.journal().is_none() {
            format!("{} of undelivered writes are lost: the volume has no journal", show_bytes(lag))
        } else {
            format!(
                "{} that were not delivered are kept in {}",
                show_bytes(lag),
                self.host.state.volume_dir(volume.attached().volume).display()
            )
        };
        let told = fenced_text(&name, "another host", epoch, &kept);
        tracing::error!(volume = name, "{told}");
        self.release(volume, lag == 0);
        self.observers.gone(&name, &told);
        self.entries.fence(&name, epoch, told);
        // The store knows whose the epoch is.
        let this = Rc::downgrade(self);
        tokio::task::spawn_local(async move {
            let Some(registry) = this.upgrade() else { return };
            let operation = VolumeOperation::Show { name: name.clone() };
            let router = &registry.host.router;
            let asked = router.call(|request| ToStore::Volume { request, operation }).await;
            let Ok(ToHost::Volume { result: Ok(VolumeReply::Volume(info)), .. }) = asked else {
                return;
            };
            let live = info.live.filter(|live| live.epoch == epoch);
            let Some(host) = live.and_then(|live| live.host) else { return };
            let why = fenced_text(&name, &format!("host {host}"), epoch, &kept);
            registry.entries.name_fence(&name, epoch, &host.to_string(), why);
        });
    }

    /// The text for an attached volume that the store does not have any more.
    fn not_at_the_store(&self, volume: &Volume) -> String {
        if volume.is_read_only() {
            return "the store does not have this snapshot any more: it was deleted".into();
        }
        format!(
            "the store does not have this volume any more: somebody replaced its data, or the data \
             was in memory only; the host sends nothing until the volume is back, and keeps \
             undelivered writes in {}",
            self.host.state.volume_dir(volume.attached().volume).display()
        )
    }

    fn resized(&self, volume: &Volume, sectors: u64) {
        let size = show_bytes(sectors * SECTOR_BYTES);
        tracing::info!(volume = volume.name(), "resized, it has {size}");
        let noted = || -> anyhow::Result<()> {
            if let Some(mut file) = self.host.state.volume(volume.attached().volume)? {
                file.sectors = sectors;
                self.host.state.save_volume(&file)?;
            }
            Ok(())
        };
        if let Err(error) = noted() {
            // The next attach says it again.
            tracing::warn!(
                volume = volume.name(),
                "while it is not attached its old size is shown, because: {error:#}"
            );
        }
        self.observers.resized(volume, sectors);
    }

    /// Notes that the store needs nothing of the volume's journal any more. `delivered`: the store
    /// has everything in it. If the volume did not use the journal, the journal stays as it is.
    fn release(&self, volume: &Volume, delivered: bool) {
        let Some(journal) = volume.journal() else { return };
        let released = || -> anyhow::Result<()> {
            if let Some(mut file) = self.host.state.volume(volume.attached().volume)?
                && file.journal_id == journal
            {
                (file.released, file.delivered) = (true, delivered);
                self.host.state.save_volume(&file)?;
            }
            Ok(())
        };
        if let Err(error) = released() {
            tracing::warn!(
                volume = volume.name(),
                "it will be attached again at the next start, because: {error:#}"
            );
        }
    }
}

fn fenced_text(name: &str, by: &str, epoch: u64, kept: &str) -> String {
    format!(
        "volume {name} was attached by {by} with epoch {epoch} and is fenced off here; {kept}: \
         detach it there, then `longhaul attach {name}` here"
    )
}
