//! Clones: a task makes each of them, with the help of engines.

use super::super::completions::Completions;
use super::super::request::ReplyTo;
use crate::catalog::Entry;
use crate::drive::drive_with;
use longhaul_core::block::VolumeId;
use longhaul_core::store::fleet::clones::CloneVolume;
use longhaul_core::wire::link::{SnapshotOperation, SnapshotReply, VolumeError};
use longhaul_objects::Objects;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Where the answer of an engine goes.
pub(in super::super) type EngineReply = oneshot::Sender<Result<SnapshotReply, VolumeError>>;

/// The messages of the tasks that make clones.
pub(in super::super) enum CloneDone {
    /// The task has a request to an engine.
    AskEngine(VolumeId, SnapshotOperation, EngineReply),
    /// A clone exists, or cannot.
    Cloned(ReplyTo, Result<Entry, VolumeError>),
}

pub(in super::super) struct Clones {
    objects: Arc<dyn Objects>,
    done: Completions<CloneDone>,
}

impl Clones {
    pub fn new(objects: Arc<dyn Objects>, done: Completions<CloneDone>) -> Clones {
        Clones { objects, done }
    }

    /// Makes a clone.
    pub fn begin(&self, to: ReplyTo, clone: CloneVolume) {
        let (objects, done) = (self.objects.clone(), self.done.clone());
        self.done.spawn(async move {
            let ask = |volume, operation| {
                let (reply, answer) = oneshot::channel();
                done.send(CloneDone::AskEngine(volume, operation, reply));
                answer
            };
            CloneDone::Cloned(to, drive_with(clone, &*objects, None, Some(&ask)).await)
        });
    }
}
