//! Volumes move between stores: this one takes them for its hosts, and leaves them to others.

use super::super::StoreActor;
use super::super::operation::jobs::CatalogJob;
use super::super::refusal::Refusal;
use super::super::request::{ReplyTo, Request, Target};
use super::super::stage::Stage;
use super::super::stage::ownership::{Claimed, LeftVolume, OwnershipDone, Verdict};
use crate::lease::{self, Source};
use longhaul_core::block::VolumeId;
use longhaul_core::store::fleet::holdings::{HeldEngine, Release};
use longhaul_core::wire::link::{
    AttachError, StoreOperation, StoreReply, ToHost, ToStore, VolumeError, VolumeOperation,
};
use std::collections::VecDeque;

impl StoreActor {
    pub(super) fn ownership_done(&mut self, done: OwnershipDone) {
        match done {
            OwnershipDone::Claimed(id, outcome) => self.claimed(id, outcome),
            OwnershipDone::Forwarded(to, frame) => self.sessions.send(to.session, to.lane, frame),
            OwnershipDone::HolderLost(id, request) => {
                self.stages.ownership.holder_lost(id);
                self.run(Stage::Visibility, request);
            }
        }
    }

    /// The holder of a volume's lease is known.
    fn claimed(&mut self, id: VolumeId, outcome: lease::Outcome) {
        let Some(claimed) = self.stages.ownership.claimed(id, outcome) else { return };
        let Claimed { requester, mut waiting, verdict } = claimed;
        match verdict {
            Verdict::Mine { number, taken, stale } => {
                if stale {
                    // Its engine knows the volume as it was before another store had it.
                    self.drop_engine(id);
                }
                self.note_taken(id, number, taken);
                if let Some(request) = requester {
                    self.run(Stage::Operation, request);
                }
            }
            Verdict::Redirect(redirect) => {
                if let Some(request) = requester {
                    self.forward(request, redirect);
                }
            }
            Verdict::Refused(error) => {
                if let Some(request) = requester {
                    self.refuse_host(&request, error, &mut waiting);
                }
            }
            Verdict::Gone => {
                if let Some(request) = requester {
                    self.gone(id, request);
                }
            }
        }
        self.decide_ownership_again(id, waiting);
    }

    fn note_taken(&mut self, id: VolumeId, number: u64, taken: Option<Source>) {
        let name = self.directory.name_or_empty(id);
        match taken {
            Some(Source::Silent) => {
                self.meter.counts().failovers += 1;
                let outcome = "taken from a store that does not answer";
                self.sessions.recorder.claimed(&name, outcome);
                tracing::warn!("volume {name}: {outcome} (lease {number})");
            }
            Some(Source::Handed) => {
                self.meter.counts().taken_over += 1;
                self.sessions.recorder.claimed(&name, "left by another store");
                tracing::info!("volume {name}: taken from another store (lease {number})");
            }
            Some(Source::Nobody) => tracing::debug!("volume {name}: lease {number}"),
            None => {}
        }
    }

    /// The store that has a volume does not let a host have it. The early reads that the host sent
    /// along get no answer either.
    fn refuse_host(
        &self,
        requester: &Request,
        error: AttachError,
        waiting: &mut VecDeque<Request>,
    ) {
        let (ToStore::Attach { request, .. } | ToStore::Resume { request, .. }) =
            requester.message()
        else {
            return;
        };
        let reply = ToHost::Attached { request: *request, result: Err(error) };
        self.sessions.answer(requester.reply_to, reply);
        for other in std::mem::take(waiting) {
            let early = matches!(other.target, Target::Early(_));
            if early && other.session() == requester.session() {
                self.refuse(other, Refusal::NotServed);
            } else {
                waiting.push_back(other);
            }
        }
    }

    fn decide_ownership_again(&mut self, id: VolumeId, waiting: impl IntoIterator<Item = Request>) {
        for request in waiting {
            if self.directory.has_volume(id) {
                self.run(Stage::Ownership, request);
            } else {
                self.refuse(request, Refusal::NotFound);
            }
        }
    }

    /// A request for a deleted volume.
    fn gone(&mut self, id: VolumeId, request: Request) {
        let name = self.directory.name_or_empty(id);
        if let ToStore::Volume { operation: VolumeOperation::Delete { .. }, .. } = request.message()
            && let Some(entry) = self.directory.entry(&name).cloned()
        {
            // Leftovers of an unfinished deletion.
            let (lease, clones) = (None, None);
            let at_once = self.operations.trash.deletes_at_once();
            self.directory.begin_deletion(id);
            let job = CatalogJob::Delete { entry, lease, clones, at_once };
            return self.operations.jobs.push(vec![request.reply_to], job);
        }
        self.forget_volume(&name);
        self.refuse(request, Refusal::NotFound);
    }

    /// Another store has deleted a volume.
    pub(super) fn forget_volume(&mut self, name: &str) {
        let Some(entry) = self.directory.remove(name) else { return };
        self.drop_engine(entry.spec.id);
        self.forget_requests_for(entry.spec.id);
    }

    /// A volume does not exist any more: all waiting requests get that answer.
    pub(super) fn forget_requests_for(&mut self, id: VolumeId) {
        // Nobody reads its snapshots any more.
        for snapshot in self.directory.snapshots_of(id) {
            self.directory.remove_snapshot(snapshot);
            self.drop_engine(snapshot);
        }
        let waiting = self.stages.ownership.remove(id);
        self.decide_ownership_again(id, waiting);
        self.release_held(id);
    }

    /// Another store wants a volume for a host. Returns the reply, if it is known at once.
    pub(super) fn release(
        &mut self,
        to: ReplyTo,
        operation: StoreOperation,
    ) -> Option<Result<StoreReply, VolumeError>> {
        let StoreOperation::Release { volume: id, lease, host, key, claim } = operation else {
            return None;
        };
        let engine = match self.engines.get_mut(id) {
            None => HeldEngine::None,
            Some(engine) if engine.is_deleted() => HeldEngine::Deleting,
            Some(engine) => HeldEngine::Open(engine.lock().volume.may_leave(host, key, claim)),
        };
        let ownership = &mut self.stages.ownership;
        let held = ownership.lease(id).is_some();
        if let Release::Answer(result) = ownership.handle_release(id, lease, engine) {
            if held && ownership.lease(id).is_none() {
                self.engines.forget_live(id);
                self.operations.lists.forget(id);
            }
            return Some(result);
        }
        let now = self.meter.now();
        self.stages.ownership.begin_leaving(id, to);
        if let Some(engine) = self.engines.get_mut(id) {
            engine.leave(now);
        }
        self.drive(id);
        None
    }

    /// Leaves a volume to another store that waits for it, once nothing is under way.
    pub(super) fn let_go(&mut self, id: VolumeId) {
        let engine = self.engines.get(id);
        if !self.stages.ownership.is_left(id)
            || engine.is_some_and(|engine| !engine.lock().volume.is_idle())
        {
            return;
        }
        if let Some(engine) = engine {
            self.meter.counts().handed_over += 1;
            tracing::info!("volume {}: left to another store", engine.spec().name);
        }
        let LeftVolume { stores, answer, waiting } = self.stages.ownership.left(id);
        self.drop_engine(id);
        self.objects.left(id);
        for to in stores {
            self.sessions.reply_store(to, answer.clone());
        }
        self.decide_ownership_again(id, waiting);
        self.release_held(id);
    }

    /// This store does not serve a volume any more. Requests that wait for room or for their turn
    /// go on, to hear that.
    pub(super) fn release_held(&mut self, volume: VolumeId) {
        let now = self.meter.now();
        self.stages.quotas.release_volume(volume, &mut self.stages.drains);
        self.stages.rates.release_volume(now, volume, &mut self.stages.drains);
        self.resume();
    }
}
