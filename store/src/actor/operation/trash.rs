//! Deleted volumes: the times of their next steps.
//!
//! This store looks at each when it hears of it, and then when its time is up. Without deleted
//! volumes it sends no request to the objects.

use super::super::completions::Completions;
use super::super::request::ReplyTo;
use crate::lease::Holder;
use crate::trash::{self, Tended};
use longhaul_core::block::VolumeId;
use longhaul_core::store::VolumeSpec;
use longhaul_core::store::trash::HANDS_OFF;
use longhaul_core::wire::link::{TrashReply, VolumeError, VolumeReply};
use longhaul_link::credential::Reach;
use longhaul_objects::Objects;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The outcomes of the trash's tasks.
pub(in super::super) enum TrashDone {
    /// The step for a deleted volume has ended.
    Tended(VolumeId, Result<Tended, VolumeError>),
    /// The steps for all due volumes have ended.
    TendedAll,
    Listed(ReplyTo, Result<VolumeReply, VolumeError>),
}

/// The consequences of a step for a deleted volume.
pub(in super::super) enum TrashEffect {
    Nothing,
    /// The deletion did not finish, and the volume stays.
    Kept,
    /// The data is gone. The volume was a clone of this one.
    Removed(Option<VolumeId>),
}

/// The store's knowledge of deleted volumes.
pub(in super::super) struct Trash {
    /// For how many seconds data stays.
    grace: u64,
    /// Times of the next steps, in seconds since 1970.
    due: BTreeMap<VolumeId, u64>,
    /// That is under way.
    tending: bool,
    me: Option<Holder>,
    objects: Arc<dyn Objects>,
    done: Completions<TrashDone>,
}

impl Trash {
    /// Keeps data for that long; `known` are the volumes that have records already.
    pub fn new(
        (grace, known): (Duration, impl IntoIterator<Item = VolumeId>),
        me: Option<Holder>,
        objects: Arc<dyn Objects>,
        done: Completions<TrashDone>,
    ) -> Trash {
        let due = known.into_iter().map(|id| (id, 0)).collect();
        Trash { grace: grace.as_secs(), due, tending: false, me, objects, done }
    }

    /// Looks at a volume not later than that.
    fn look_at(&mut self, id: VolumeId, at: u64) {
        let due = self.due.entry(id).or_insert(at);
        *due = at.min(*due);
    }

    fn next_look(&self) -> u64 {
        crate::clock::now().saturating_add(HANDS_OFF)
    }

    /// Notes that a volume was deleted, or that its deletion has failed somewhere.
    pub fn note_deletion(&mut self, id: VolumeId) {
        self.look_at(id, self.next_look());
    }

    /// Other stores have deleted these.
    pub fn know_deleted(&mut self, volumes: impl IntoIterator<Item = VolumeId>) {
        let at = self.next_look();
        for id in volumes {
            if !self.due.contains_key(&id) {
                self.look_at(id, at);
            }
        }
    }

    /// Whether data goes with the name.
    pub fn deletes_at_once(&self) -> bool {
        self.grace == 0
    }

    /// Sees to the deleted volumes of which it is time.
    pub fn tick(&mut self) {
        let now = crate::clock::now();
        let due = self.due.iter().filter(|(_, at)| **at <= now);
        let due: Vec<VolumeId> = due.map(|(id, _)| *id).collect();
        if due.is_empty() || std::mem::replace(&mut self.tending, true) {
            return;
        }
        let (objects, done) = (self.objects.clone(), self.done.clone());
        let (me, grace) = (self.me.clone(), self.grace);
        tokio::spawn(async move {
            for id in due {
                let tended = trash::tend(&*objects, me.as_ref(), id, grace, now).await;
                done.send(TrashDone::Tended(id, tended));
            }
            done.send(TrashDone::TendedAll);
        });
    }

    pub fn tended_all(&mut self) {
        self.tending = false;
    }

    /// The step for a deleted volume has ended.
    pub fn tended(&mut self, id: VolumeId, result: Result<Tended, VolumeError>) -> TrashEffect {
        match result {
            Ok(Tended::Wait(at)) => {
                self.due.insert(id, at);
            }
            Ok(Tended::Nothing) => {
                self.due.remove(&id);
            }
            Ok(Tended::Kept) => {
                self.due.remove(&id);
                tracing::warn!("the deletion of volume {id} was cut short: the volume stays");
                return TrashEffect::Kept;
            }
            Ok(Tended::Removed(spec)) => {
                self.due.remove(&id);
                tracing::info!(
                    "removed the data of volume {} ({id}), which was deleted",
                    spec.name
                );
                return TrashEffect::Removed(spec.parents.first().map(|parent| parent.volume));
            }
            Err(error) => {
                self.note_deletion(id);
                tracing::warn!("deleted volume {id}: {error}; its data stays for now");
            }
        }
        TrashEffect::Nothing
    }

    /// A deleted volume has a name again.
    pub fn restored(&mut self, id: VolumeId) {
        self.due.remove(&id);
    }

    /// Lists deleted volumes after that one, of those that the session sees.
    pub fn list(&self, to: ReplyTo, after: VolumeId, of: Option<Reach>) {
        let (objects, grace) = (self.objects.clone(), self.grace);
        self.done.spawn(async move {
            let wanted = |spec: &VolumeSpec| of.as_ref().is_none_or(|reach| reach.has(&spec.name));
            let list = trash::list(&*objects, after, grace, wanted).await;
            let reply =
                list.map(|(volumes, more)| VolumeReply::Trash(TrashReply::List { volumes, more }));
            TrashDone::Listed(to, reply)
        });
    }
}
