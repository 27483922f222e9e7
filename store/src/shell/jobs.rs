//! What changes the catalog or lies beside the volumes' logs: creations, deletions, attributes.

use super::watch::RESERVATIONS;
use super::{Asked, Job, Outcome, Shell, Work};
use crate::catalog::{self, Entry};
use crate::trash;
use bytes::Bytes;
use longhaul_api::schedule;
use longhaul_core::block::{Epoch, VolumeId};
use longhaul_core::store::catalog::is_attribute_name;
use longhaul_core::wire::link::{
    MAX_ATTRIBUTE_BYTES, ToStore, VolumeError, VolumeOperation, VolumeReply,
};

/// The attributes that volumes may have: so their number, and what they take, is bounded.
const ATTRIBUTES: [&str; 5] = [
    longhaul_api::keys::ATTRIBUTE,
    longhaul_api::keys::PROGRESS_ATTRIBUTE,
    longhaul_api::keys::VERSIONS_ATTRIBUTE,
    schedule::ATTRIBUTE,
    RESERVATIONS,
];

/// Those that only the host sets that has the volume.
const OF_HOSTS: [&str; 3] =
    [longhaul_api::keys::PROGRESS_ATTRIBUTE, longhaul_api::keys::VERSIONS_ATTRIBUTE, RESERVATIONS];

fn is_kept(attribute: &str) -> Result<(), VolumeError> {
    match ATTRIBUTES.contains(&attribute) {
        true => Ok(()),
        false => Err(VolumeError::Invalid(format!(
            "a volume has no attribute {attribute}; there are {}",
            ATTRIBUTES.join(", ")
        ))),
    }
}

fn not_open() -> VolumeError {
    VolumeError::Store("the volume is not open here yet; try again".to_owned())
}

impl Shell {
    /// Why there is no volume of that name to do something with.
    fn no_volume(&self, name: &str) -> VolumeError {
        let damaged = self.unusable.get(name);
        damaged.map_or(VolumeError::NotFound, |reason| VolumeError::Store(reason.clone()))
    }

    /// Does what concerns the catalog; returns the volume whose engine is to do the rest.
    pub(super) fn volume_operation(
        &mut self,
        asked: Asked,
        operation: &VolumeOperation,
    ) -> Option<VolumeId> {
        match operation {
            VolumeOperation::Create { name, sectors, block_bytes } => {
                let (name, sectors, block_bytes) = (name.clone(), *sectors, *block_bytes);
                let work = Work::Create { name, sectors, block_bytes };
                self.jobs.push_back(Job { asked: vec![asked], work });
                self.next_job();
                None
            }
            VolumeOperation::List if self.fleet.is_some() => {
                self.lists.push(asked);
                self.look_around();
                None
            }
            VolumeOperation::List => {
                self.list(vec![asked], Vec::new());
                None
            }
            VolumeOperation::Show { name }
            | VolumeOperation::Lost { name, .. }
            | VolumeOperation::AcceptLoss { name }
            | VolumeOperation::Delete { name }
            | VolumeOperation::Snapshot { name, .. }
            | VolumeOperation::Shrink { name, .. }
            | VolumeOperation::Resize { name, .. } => match self.catalog.get(name) {
                Some(entry) => Some(entry.spec.id),
                None => {
                    self.reply(&[asked], &Err(self.no_volume(name)));
                    None
                }
            },
            VolumeOperation::Stored { name } => {
                match self.catalog.get(name) {
                    Some(entry) => self.ask_stored(asked, entry.spec.id),
                    None => self.reply(&[asked], &Err(self.no_volume(name))),
                }
                None
            }
            VolumeOperation::Trash(operation) => {
                self.trash_operation(asked, operation);
                None
            }
            VolumeOperation::GetAttribute { volume, attribute } => {
                let work = Work::GetAttribute { volume: *volume, attribute: attribute.clone() };
                let allowed = self.attribute_is_known(*volume, attribute, 0);
                self.attribute_job(asked, allowed, work);
                None
            }
            VolumeOperation::SetAttribute { volume, epoch, attribute, data, replaces } => {
                let work = Work::SetAttribute {
                    volume: *volume,
                    epoch: *epoch,
                    attribute: attribute.clone(),
                    data: Bytes::copy_from_slice(data),
                    replaces: *replaces,
                };
                let allowed = self
                    .attribute_is_known(*volume, attribute, data.len())
                    .and_then(|()| is_kept(attribute))
                    .and_then(|()| self.epoch_is_current(*volume, *epoch))
                    .and_then(|()| self.may_set(asked.session, *volume, attribute));
                if let Err(VolumeError::Forbidden(why)) = &allowed {
                    let (request, operation) = (asked.request, operation.clone());
                    self.watch.refused(asked.session, &ToStore::Volume { request, operation }, why);
                }
                self.attribute_job(asked, allowed, work);
                None
            }
        }
    }

    /// Deletes a volume, if no host has it attached, which its log says.
    pub(super) fn begin_delete(&mut self, id: VolumeId, asked: Asked) {
        if !self.open(id) {
            return self.reply(&[asked], &Err(VolumeError::NotFound));
        }
        if let Some(engine) = self.engines.get_mut(&id) {
            engine.deletions.push(asked);
        }
        self.drive(id);
    }

    /// Lists what a volume consists of, whoever serves it.
    fn ask_stored(&self, asked: Asked, id: VolumeId) {
        let (objects, outcomes) = (self.objects.clone(), self.outcomes.0.clone());
        tokio::spawn(async move {
            let stored = catalog::stored(&*objects, id).await.map(VolumeReply::Stored);
            let _ = outcomes.send(Outcome::Replied(asked, stored));
        });
    }

    fn attribute_job(&mut self, asked: Asked, allowed: Result<(), VolumeError>, work: Work) {
        match allowed {
            Ok(()) => {
                self.jobs.push_back(Job { asked: vec![asked], work });
                self.next_job();
            }
            Err(error) => self.reply(&[asked], &Err(error)),
        }
    }

    fn attribute_is_known(
        &self,
        volume: VolumeId,
        attribute: &str,
        bytes: usize,
    ) -> Result<(), VolumeError> {
        let invalid = |what: &str| Err(VolumeError::Invalid(what.to_owned()));
        if !self.names.contains_key(&volume) {
            return Err(VolumeError::NotFound);
        }
        if !is_attribute_name(attribute) {
            return invalid("an attribute's name has at most 32 small letters and dashes");
        }
        if bytes > MAX_ATTRIBUTE_BYTES {
            return invalid("an attribute has at most 192 KiB");
        }
        Ok(())
    }

    /// Whether an epoch is the last one, as far as this store knows.
    fn epoch_is_current(&mut self, volume: VolumeId, epoch: Epoch) -> Result<(), VolumeError> {
        match self.live(volume) {
            Some(live) if live.epoch == epoch => Ok(()),
            Some(live) if live.epoch > epoch => Err(VolumeError::Fenced(live.epoch)),
            // Its host has yet to resume at this store.
            _ => Err(not_open()),
        }
    }

    /// Whether a session has the volume as its host has it, if the attribute is only set by that.
    fn may_set(&self, session: u64, volume: VolumeId, attribute: &str) -> Result<(), VolumeError> {
        if !OF_HOSTS.contains(&attribute) {
            return Ok(());
        }
        let Some(engine) = self.engines.get(&volume) else { return Err(not_open()) };
        match engine.volume.is_key_of_epoch(self.watch.peer(session).key) {
            true => Ok(()),
            false => Err(VolumeError::Forbidden(format!(
                "attribute {attribute} is set by the host that has the volume attached, and by nobody else"
            ))),
        }
    }

    /// Goes on with the deletion of a volume, if one waits for its engine.
    pub(super) fn delete(&mut self, id: VolumeId) {
        let now = self.now();
        let Some(engine) = self.engines.get_mut(&id) else { return };
        if engine.deletions.is_empty() {
            return;
        }
        if !engine.leaving {
            let failed = engine.volume.failed().is_some();
            let refusal = match engine.volume.info() {
                None if !failed => return,
                // What cannot be opened cannot be attached either.
                None => None,
                Some(_) if failed => None,
                Some(live) => match live.host {
                    Some(host) if live.connected => Some(VolumeError::InUse(host)),
                    Some(host) if !live.clean => Some(VolumeError::Invalid(format!(
                        "host {host} has the volume attached but is not connected: start it and let it stop in order, \
                         or see with `longhaul volume lost {0}` what it owes and give that up with \
                         `longhaul volume accept-loss {0}`, then delete",
                        engine.volume.spec().name
                    ))),
                    _ => None,
                },
            };
            if let Some(error) = refusal {
                let asked = std::mem::take(&mut engine.deletions);
                return self.reply(&asked, &Err(error));
            }
            engine.leaving = true;
            engine.volume.handle_shutdown(now);
            // What that asks for is taken like any other.
            return self.drive(id);
        }
        if engine.volume.is_idle()
            && let Some(engine) = self.engines.remove(&id)
        {
            let lease = self.fleet.as_ref().and_then(|_| self.claims.lease(id));
            let clones = engine.volume.state().snapshots.clones().map(|clone| clone.id).collect();
            let spec = engine.volume.spec().clone();
            let sectors = self.catalog.get(&spec.name).map(|entry| entry.sectors);
            let entry = Entry { sectors: sectors.unwrap_or(spec.created_sectors), spec };
            let at_once = self.deletes_at_once();
            let work = Work::Delete { entry, lease, clones, at_once };
            self.names.remove(&id);
            self.jobs.push_back(Job { asked: engine.deletions, work });
            self.next_job();
        }
    }

    pub(super) fn next_job(&mut self) {
        if self.working {
            return;
        }
        let Some(Job { asked, work }) = self.jobs.pop_front() else { return };
        self.working = true;
        let (objects, outcomes) = (self.objects.clone(), self.outcomes.0.clone());
        tokio::spawn(async move {
            match work {
                Work::Create { name, sectors, block_bytes } => {
                    let result = catalog::create(&*objects, name, sectors, block_bytes).await;
                    let _ = outcomes.send(Outcome::Created(asked, result));
                }
                Work::Delete { entry, lease, clones, at_once } => {
                    let id = entry.spec.id;
                    // The log notes clones that never came to be, too; the descriptions are what counts.
                    let result = trash::delete(&*objects, &entry, lease, &clones).await;
                    let removing = at_once && result.is_ok();
                    let _ = outcomes.send(Outcome::Deleted(asked, entry.spec, result, removing));
                    if removing {
                        let removed = trash::purge(&*objects, id).await;
                        let _ = outcomes.send(Outcome::Removed(id, removed));
                    }
                }
                Work::Restore { me, volume, name, of } => {
                    let (me, of) = (me.as_ref(), of.as_ref());
                    let result = trash::restore(&*objects, me, volume, &name, of).await;
                    let _ = outcomes.send(Outcome::Restored(asked, result));
                }
                Work::Purge(id, of) => {
                    let result = trash::condemn(&*objects, id, of.as_ref()).await.map(|_| ());
                    let condemned = result.is_ok();
                    let _ = outcomes.send(Outcome::Purged(asked, result));
                    if condemned {
                        let removed = trash::purge(&*objects, id).await;
                        let _ = outcomes.send(Outcome::Removed(id, removed));
                    }
                }
                Work::GetAttribute { volume, attribute } => {
                    let result = catalog::attribute(&*objects, volume, &attribute).await;
                    let result = result.map(VolumeReply::Attribute);
                    let _ = outcomes.send(Outcome::Attribute(asked, result, None));
                }
                Work::SetAttribute { volume, epoch, attribute, data, replaces } => {
                    let objects = &*objects;
                    let set = match replaces {
                        None => {
                            catalog::set_attribute(objects, volume, epoch, &attribute, data).await
                        }
                        Some(old) => {
                            let new = (data, old);
                            catalog::replace_attribute(objects, volume, epoch, &attribute, new)
                                .await
                        }
                    };
                    let reply = set.map(|()| VolumeReply::Done);
                    let of = (attribute == schedule::ATTRIBUTE).then_some(volume);
                    let _ = outcomes.send(Outcome::Attribute(asked, reply, of));
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hosts_and_commands_set_is_kept() {
        for name in ["keys", "rewrite", "versions", "schedule", "reservations"] {
            is_kept(name).unwrap();
        }
        let refused = is_kept("keyz").unwrap_err().to_string();
        assert!(refused.contains("keyz") && refused.contains("keys, rewrite"), "{refused}");
    }
}
