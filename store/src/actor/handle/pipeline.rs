//! The pipeline: each request passes the stages in the order of [`Stage`], and each stage decides
//! by itself.
//!
//! A stage that holds a request gives it back to the stage after it.

use super::super::StoreActor;
use super::super::engine_task::{Input, SentFrame};
use super::super::refusal::Refusal;
use super::super::request::{Decision, Redirect, Request, Target};
use super::super::routes::reads;
use super::super::stage::Stage;
use super::super::stage::quota::Released;
use super::super::stage::snapshots::not_found;
use longhaul_core::block::VolumeId;
use longhaul_core::store::SessionId;
use longhaul_core::wire::link::{Frame, Lane, ToStore, VolumeError, VolumeOperation};
use std::collections::BTreeSet;

/// Whether the engine takes the message in its own thread, in a turn of its own.
fn is_everyday(message: &ToStore) -> bool {
    matches!(
        message,
        ToStore::Read { .. }
            | ToStore::EarlyRead { .. }
            | ToStore::Batch { .. }
            | ToStore::Announce { .. }
            | ToStore::Barrier { .. }
            | ToStore::Status { .. }
            | ToStore::Stage { .. }
            | ToStore::Changed { .. }
    )
}

impl StoreActor {
    /// A frame has come in.
    pub(super) fn enter(&mut self, session: u64, lane: Lane, frame: Frame<ToStore>) {
        let request = self.sessions.request(session, lane, frame);
        self.run(Stage::Audit, request);
    }

    /// Lets a request pass the stages from that one on; then what stages have given back meanwhile.
    pub(super) fn run(&mut self, stage: Stage, request: Request) {
        self.pass(stage, request);
        self.resume();
    }

    /// Passes a request through the stages from that one on, before anything else does. Batches
    /// must reach their engine in the order in which a stage returns them.
    fn pass(&mut self, mut stage: Stage, mut request: Request) {
        loop {
            let decision = self.decide(stage, request);
            match (decision, stage.next()) {
                (Decision::Pass(passed), Some(next)) => (stage, request) = (next, passed),
                (Decision::Pass(_), None) => return,
                (Decision::Hold, _) if stage == Stage::Unknown => return self.look_around(),
                (Decision::Hold, _) => return,
                (Decision::Answer(to, message), _) => return self.sessions.answer(to, message),
                (Decision::Refuse(request, refusal), _) => return self.refuse(request, refusal),
                (Decision::Forward(request, redirect), _) => {
                    return self.forward(request, redirect);
                }
                (Decision::Close(session, why), _) => return self.sessions.close(session, &why),
            }
        }
    }

    fn decide(&mut self, stage: Stage, request: Request) -> Decision {
        let StoreActor { sessions, directory, engines, stages, fleet, meter, .. } = self;
        let session = request.session();
        match stage {
            Stage::Audit => match sessions.recorder.decide(request) {
                Decision::Pass(request) if request.is_in_wrong_lane() => {
                    let why = "a batch came in another lane than that for batches";
                    Decision::Close(session, why.to_owned())
                }
                decision => decision,
            },
            Stage::Scope => sessions.scope.decide(request),
            // No other store exists that could have created it.
            Stage::Unknown if !fleet.is_shared() => Decision::Pass(request),
            Stage::Unknown => stages.unknown.decide(request, directory, &sessions.scope),
            Stage::Visibility => sessions.scope.decide_identities(request, directory),
            Stage::Growth => stages.quotas.decide_growth(request, directory),
            Stage::Quota => stages.quotas.decide(request, (directory, engines), &mut stages.drains),
            Stage::Rates => {
                stages.rates.decide(meter.now(), request, directory, &mut stages.drains)
            }
            Stage::Snapshots => {
                let proven = || sessions.listener().is_proven(session);
                stages.snapshots.decide(request, directory, proven, |id| engines.has(id))
            }
            Stage::Ownership => stages.ownership.decide(request, directory, |id| engines.has(id)),
            Stage::Operation => self.operate(request),
        }
    }

    /// Takes what stages give back, and what they have to say.
    pub(super) fn resume(&mut self) {
        let mut more = true;
        while std::mem::take(&mut more) {
            let notices = self.stages.quotas.take_notices(&self.directory, &self.engines);
            for (session, message) in notices {
                self.sessions.send(session, Lane::Control, message.into());
            }
            while let Some(released) = self.stages.quotas.poll_released() {
                more = true;
                match released {
                    Released::Pass(request) => self.pass(Stage::Rates, request),
                    Released::Gone(request) => self.pass(Stage::Snapshots, request),
                    Released::Refused(request, refusal) => self.refuse(request, refusal),
                }
            }
            while let Some(request) = self.stages.rates.poll_ready() {
                more = true;
                self.pass(Stage::Snapshots, request);
            }
            while let Some(named) = self.stages.snapshots.poll_named() {
                more = true;
                self.find_snapshot(named, 0);
            }
        }
        let changed = self.stages.drains.take_changed();
        self.pause_drains(&changed);
    }

    /// Answers a request with the refusal that fits its message.
    pub(super) fn refuse(&self, request: Request, refusal: Refusal) {
        if let Refusal::Rejected(VolumeError::Forbidden(why)) = &refusal {
            self.sessions.recorder.refused(request.session(), request.message(), why);
        }
        let Request { reply_to, body, .. } = request;
        if let Some(answer) = refusal.answer(body.message) {
            self.sessions.answer(reply_to, answer);
        }
    }

    /// Another store answers a request.
    pub(super) fn forward(&mut self, request: Request, redirect: Redirect) {
        match self.stages.ownership.forward(request, redirect) {
            Decision::Refuse(request, refusal) => self.refuse(request, refusal),
            _ => self.meter.counts().forwarded += 1,
        }
    }

    /// The last stage: the request goes to the part that answers it.
    fn operate(&mut self, request: Request) -> Decision {
        match (&request.target, &request.body.message) {
            (Target::Session, _) => Decision::Close(request.session(), "a second Hello".to_owned()),
            (Target::Stores, ToStore::Store { operation, .. }) => {
                let operation = operation.clone();
                self.store_operation(&request, operation)
            }
            (Target::Tenants, ToStore::Tenant { operation, .. }) => {
                self.tenant_operation(request.reply_to, operation.clone());
                Decision::Hold
            }
            (Target::Catalog | Target::Objects(_) | Target::Attribute(_), _) => {
                self.catalog_operation(request)
            }
            _ => match request.engine {
                Some(id) => self.hand_to_engine(id, request),
                None => not_found(request, &self.directory),
            },
        }
    }

    /// A request for the engine of a volume that this store serves.
    fn hand_to_engine(&mut self, id: VolumeId, mut request: Request) -> Decision {
        if let ToStore::Volume { operation, .. } = request.message() {
            let delete = matches!(operation, VolumeOperation::Delete { .. });
            self.reopen_if_unused(id);
            if delete {
                self.begin_delete(id, request.reply_to);
                return Decision::Hold;
            }
            match self.snapshot_operation(id, request) {
                Decision::Pass(same) => request = same,
                decision => return decision,
            }
        }
        let session = request.session();
        if !self.open_for(id, session) {
            return not_found(request, &self.directory);
        }
        let announces = matches!(request.message(), ToStore::Announce { .. });
        let everyday = is_everyday(request.message());
        self.open_route(id, &request);
        let Request { reply_to, body, .. } = request;
        if let Some(engine) = self.engines.get_mut(id) {
            let new = engine.meet(session, || self.sessions.recorder.peer(session));
            if new && engine.is_paused() {
                self.sessions.listener().pause_drain(session, true);
            }
            let frame = SentFrame { session, lane: reply_to.lane, frame: body };
            // It is not closed as long as it is in the list.
            let _ = engine.task.push(Input::Frame(frame));
        }
        if !everyday {
            self.drive(id);
        }
        if announces {
            self.stages.quotas.notice(id, &self.directory, &self.engines);
            self.resume();
        }
        Decision::Hold
    }

    /// Lets reads like this one go to their engine by themselves, if the stages would let each of
    /// them pass at once.
    fn open_route(&self, id: VolumeId, request: &Request) {
        let session = request.session();
        if reads(request.message()) == Some(id)
            && self.stages.rates.is_free(self.directory.tenant(id))
            && let Some(engine) = self.engines.get(id)
            && engine.lock().volume.session() == Some(SessionId(session))
        {
            self.engines.open_route(session, id);
        }
    }

    /// Reads what sessions drain or not, as their volumes have room, and their tenants' limits
    /// allow.
    pub(super) fn pause_drains(&self, sessions: &BTreeSet<u64>) {
        for session in sessions {
            let paused =
                self.engines.is_paused_for(*session) || self.stages.drains.is_full(*session);
            self.sessions.listener().pause_drain(*session, paused);
        }
    }
}
