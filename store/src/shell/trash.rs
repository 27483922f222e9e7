//! Volumes that are deleted: when something is to be done about them, and what is asked of them.

use super::{Asked, Job, Outcome, Shell, Work};
use crate::trash::{self, Tended};
use longhaul_core::block::VolumeId;
use longhaul_core::store::VolumeSpec;
use longhaul_core::store::trash::HANDS_OFF;
use longhaul_core::wire::link::{TrashOperation, TrashReply, VolumeError, VolumeInfo, VolumeReply};
use std::collections::BTreeMap;
use std::time::Duration;

/// What this store knows of deleted volumes. It looks at each when it hears of it, and then when its time is up: where
/// nothing is deleted nothing is asked of the objects.
#[derive(Default)]
pub(super) struct Trash {
    /// For how many seconds data stays.
    grace: u64,
    /// When something is to be done, in seconds since 1970.
    due: BTreeMap<VolumeId, u64>,
    /// That is under way.
    tending: bool,
}

impl Trash {
    /// Keeps data for that long; `known` are the volumes that have records already.
    pub(super) fn new(grace: Duration, known: impl IntoIterator<Item = VolumeId>) -> Trash {
        let due = known.into_iter().map(|id| (id, 0)).collect();
        Trash { grace: grace.as_secs(), due, tending: false }
    }

    /// Looks at a volume not later than that.
    fn look_at(&mut self, id: VolumeId, at: u64) {
        let due = self.due.entry(id).or_insert(at);
        *due = at.min(*due);
    }
}

impl Shell {
    /// A volume is deleted, or its deletion has failed somewhere.
    pub(super) fn note_deletion(&mut self, id: VolumeId) {
        let at = crate::now().saturating_add(self.trash.grace.max(HANDS_OFF));
        self.trash.look_at(id, at);
    }

    /// Other stores have deleted these.
    pub(super) fn know_deleted(&mut self, volumes: impl IntoIterator<Item = VolumeId>) {
        let at = crate::now().saturating_add(self.trash.grace.max(HANDS_OFF));
        for id in volumes {
            if !self.trash.due.contains_key(&id) {
                self.trash.look_at(id, at);
            }
        }
    }

    /// Whether data goes with the name.
    pub(super) fn deletes_at_once(&self) -> bool {
        self.trash.grace == 0
    }

    /// Sees to the deleted volumes of which it is time.
    pub(super) fn tend_trash(&mut self) {
        let now = crate::now();
        let due = self.trash.due.iter().filter(|(_, at)| **at <= now);
        let due: Vec<VolumeId> = due.map(|(id, _)| *id).collect();
        if due.is_empty() || std::mem::replace(&mut self.trash.tending, true) {
            return;
        }
        let (objects, outcomes) = (self.objects.clone(), self.outcomes.0.clone());
        let me = self.fleet.as_ref().map(|fleet| fleet.me.clone());
        let grace = self.trash.grace;
        tokio::spawn(async move {
            for id in due {
                let tended = trash::tend(&*objects, me.as_ref(), id, grace, now).await;
                let _ = outcomes.send(Outcome::Tended(id, tended));
            }
            let _ = outcomes.send(Outcome::TendedAll);
        });
    }

    /// All that were due have been seen to.
    pub(super) fn tended_all(&mut self) {
        self.trash.tending = false;
    }

    /// A deleted volume was seen to.
    pub(super) fn tended(&mut self, id: VolumeId, result: Result<Tended, VolumeError>) {
        match result {
            Ok(Tended::Wait(at)) => {
                self.trash.due.insert(id, at);
            }
            Ok(Tended::Nothing) => {
                self.trash.due.remove(&id);
            }
            Ok(Tended::Kept) => {
                self.trash.due.remove(&id);
                tracing::warn!("the deletion of volume {id} was cut short: the volume stays");
                self.tell_stores();
            }
            Ok(Tended::Removed(spec)) => {
                self.trash.due.remove(&id);
                tracing::info!(
                    "removed the data of volume {} ({id}), which was deleted",
                    spec.name
                );
                if let Some(parent) = spec.parents.first() {
                    self.forget_clone(parent.volume, id);
                }
            }
            Err(error) => {
                self.note_deletion(id);
                tracing::warn!("deleted volume {id}: {error}; its data stays for now");
            }
        }
    }

    /// Something is asked about deleted volumes.
    pub(super) fn trash_operation(&mut self, asked: Asked, operation: &TrashOperation) {
        let work = match operation {
            TrashOperation::List { after } => {
                let (objects, outcomes) = (self.objects.clone(), self.outcomes.0.clone());
                let (after, grace) = (*after, self.trash.grace);
                let of = self.reach_of(asked);
                tokio::spawn(async move {
                    let wanted =
                        |spec: &VolumeSpec| of.as_ref().is_none_or(|reach| reach.has(&spec.name));
                    let list = trash::list(&*objects, after, grace, wanted).await;
                    let reply = list.map(|(volumes, more)| {
                        VolumeReply::Trash(TrashReply::List { volumes, more })
                    });
                    let _ = outcomes.send(Outcome::Replied(asked, reply));
                });
                return;
            }
            TrashOperation::Restore { volume, name } => {
                let me = self.fleet.as_ref().map(|fleet| fleet.me.clone());
                let (volume, name, of) = (*volume, name.clone(), self.reach_of(asked));
                Work::Restore { me, volume, name, of }
            }
            TrashOperation::Purge { volume } => Work::Purge(*volume, self.reach_of(asked)),
        };
        self.jobs.push_back(Job { asked: vec![asked], work });
        self.next_job();
    }

    /// A deleted volume has a name again, or not.
    pub(super) fn restored(
        &mut self,
        asked: &[Asked],
        result: Result<crate::catalog::Entry, VolumeError>,
    ) {
        let reply = result.map(|entry| {
            let (name, id) = (&entry.spec.name, entry.spec.id);
            tracing::info!("volume {name} ({id}) is no longer deleted");
            self.trash.due.remove(&id);
            let info: VolumeInfo = entry.spec.info(entry.sectors, None);
            self.learn(entry);
            self.tell_stores();
            VolumeReply::Volume(info)
        });
        self.reply(asked, &reply);
    }
}
