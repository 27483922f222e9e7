//! Changes of the catalog and of what lies beside the volumes' logs: one after the other.

use super::super::completions::Completions;
use super::super::request::ReplyTo;
use crate::catalog::{self, Entry, NotCreated};
use crate::lease::Holder;
use crate::trash;
use crate::trash::Tended;
use bytes::Bytes;
use longhaul_api::schedule;
use longhaul_core::block::{Epoch, VolumeId};
use longhaul_core::store::VolumeSpec;
use longhaul_core::wire::link::{VolumeError, VolumeReply};
use longhaul_link::credential::Reach;
use longhaul_objects::Objects;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// A change.
pub(in super::super) enum CatalogJob {
    Create {
        name: String,
        sectors: u64,
        block_bytes: u32,
    },
    Delete {
        entry: Entry,
        /// The lease by which this store has the volume.
        lease: Option<u64>,
        /// Its clones, as far as its log knows, if that could be read.
        clones: Option<BTreeSet<VolumeId>>,
        /// Whether its data goes with the name.
        at_once: bool,
    },
    /// A deleted volume is to have a name again, at the store that this is.
    Restore {
        me: Option<Holder>,
        volume: VolumeId,
        name: String,
        /// The volumes that the session sees, if there are others.
        of: Option<Reach>,
    },
    /// The data of a deleted volume, one of those if the session sees no others, is to go.
    Purge(VolumeId, Option<Reach>),
    GetAttribute {
        volume: VolumeId,
        attribute: String,
    },
    SetAttribute {
        volume: VolumeId,
        epoch: Epoch,
        attribute: String,
        data: Bytes,
        replaces: Option<[u8; 32]>,
    },
}

/// The outcome of a change.
pub(in super::super) enum JobDone {
    Created(Vec<ReplyTo>, Result<VolumeSpec, NotCreated>),
    /// The deletion of a volume has ended. The flag tells whether the removal of its data is under
    /// way.
    Deleted(Vec<ReplyTo>, VolumeSpec, Result<(), VolumeError>, bool),
    /// A deleted volume has a name again, or not.
    Restored(Vec<ReplyTo>, VolumeId, Result<Entry, VolumeError>),
    /// The removal of a deleted volume's data is about to begin.
    Purged(Vec<ReplyTo>, Result<(), VolumeError>),
    /// A read or a change of an attribute has ended. Names the volume, if that was its schedule.
    Attribute(Vec<ReplyTo>, Result<VolumeReply, VolumeError>, Option<VolumeId>),
    /// The removal of a deleted volume's data has ended, as far as it works. No other change waits
    /// for that.
    Removed(VolumeId, Result<Tended, VolumeError>),
    /// The count of a volume's objects has ended. No other change waits for that.
    Counted(ReplyTo, Result<VolumeReply, VolumeError>),
}

pub(in super::super) struct CatalogJobs {
    waiting: VecDeque<(Vec<ReplyTo>, CatalogJob)>,
    running: bool,
    /// Deleted volumes with a removal of data under way.
    removing: usize,
    objects: Arc<dyn Objects>,
    done: Completions<JobDone>,
}

impl CatalogJobs {
    pub fn new(objects: Arc<dyn Objects>, done: Completions<JobDone>) -> CatalogJobs {
        CatalogJobs { waiting: VecDeque::new(), running: false, removing: 0, objects, done }
    }

    /// Whether all changes that the store has to finish before its end are done.
    pub fn is_idle(&self) -> bool {
        !self.running && self.removing == 0
    }

    /// Makes a change after all earlier ones.
    pub fn push(&mut self, to: Vec<ReplyTo>, job: CatalogJob) {
        self.waiting.push_back((to, job));
        self.next();
    }

    /// A change is over. [`CatalogJobs::next`] begins another one.
    pub fn finished(&mut self, done: &JobDone) {
        match done {
            JobDone::Removed(..) => self.removing -= 1,
            JobDone::Counted(..) => {}
            JobDone::Deleted(.., true) | JobDone::Purged(_, Ok(())) => {
                self.running = false;
                self.removing += 1;
            }
            _ => self.running = false,
        }
    }

    /// Lists the objects of a volume, whichever store serves it.
    pub fn count(&self, to: ReplyTo, id: VolumeId) {
        let objects = self.objects.clone();
        self.done.spawn(async move {
            let stored = catalog::stored(&*objects, id).await.map(VolumeReply::Stored);
            JobDone::Counted(to, stored)
        });
    }

    pub fn next(&mut self) {
        if self.running {
            return;
        }
        let Some((to, job)) = self.waiting.pop_front() else { return };
        self.running = true;
        let (objects, done) = (self.objects.clone(), self.done.clone());
        tokio::spawn(async move {
            match job {
                CatalogJob::Create { name, sectors, block_bytes } => {
                    let result = catalog::create(&*objects, name, sectors, block_bytes).await;
                    done.send(JobDone::Created(to, result));
                }
                CatalogJob::Delete { entry, lease, clones, at_once } => {
                    let id = entry.spec.id;
                    // The log notes clones that never came to be, too; the descriptions are what
                    // counts.
                    let result = trash::delete(&*objects, &entry, lease, clones.as_ref()).await;
                    let removing = at_once && result.is_ok();
                    done.send(JobDone::Deleted(to, entry.spec, result, removing));
                    if removing {
                        let removed = trash::purge(&*objects, id).await;
                        done.send(JobDone::Removed(id, removed));
                    }
                }
                CatalogJob::Restore { me, volume, name, of } => {
                    let (me, of) = (me.as_ref(), of.as_ref());
                    let result = trash::restore(&*objects, me, volume, &name, of).await;
                    done.send(JobDone::Restored(to, volume, result));
                }
                CatalogJob::Purge(id, of) => {
                    let result = trash::condemn(&*objects, id, of.as_ref()).await.map(|_| ());
                    let condemned = result.is_ok();
                    done.send(JobDone::Purged(to, result));
                    if condemned {
                        let removed = trash::purge(&*objects, id).await;
                        done.send(JobDone::Removed(id, removed));
                    }
                }
                CatalogJob::GetAttribute { volume, attribute } => {
                    let result = catalog::attribute(&*objects, volume, &attribute).await;
                    let result = result.map(VolumeReply::Attribute);
                    done.send(JobDone::Attribute(to, result, None));
                }
                CatalogJob::SetAttribute { volume, epoch, attribute, data, replaces } => {
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
                    done.send(JobDone::Attribute(to, reply, of));
                }
            }
        });
    }
}
