//! Engines: opened when somebody wants them, driven, and closed.

use super::super::StoreActor;
use super::super::damage::TELL_AGAIN;
use super::super::engine_task::{Attend, EngineTask, Outputs, SentFrame};
use super::super::engines::{DeletionStep, Engine, Opening, ScheduleRead};
use super::super::operation::jobs::CatalogJob;
use super::super::operation::map_diff::PlacesFound;
use super::super::repair::{RepairDone, may_concern};
use super::super::request::ReplyTo;
use super::super::stage::ownership::moved;
use crate::catalog::Entry;
use crate::events::log;
use crate::scrub::FoundDamage;
use longhaul_core::block::{Time, VolumeId};
use longhaul_core::store::{Event, OpenError, ReplicaDurability, SHELL_SESSION, SessionId, Volume};
use longhaul_core::wire::link::{Frame, Lane, Parent, ToHost, VolumeError};
use std::sync::Arc;

impl StoreActor {
    /// An engine's task has something for the actor.
    pub(super) fn attend(&mut self, call: &Attend) {
        let engine = self.engines.get(call.volume);
        if engine.is_some_and(|engine| engine.task.number == call.engine) {
            self.drive(call.volume);
        }
    }

    pub(super) fn schedule_read(&mut self, read: ScheduleRead) {
        let ScheduleRead(id, schedule) = read;
        if let Some(engine) = self.engines.get_mut(id) {
            engine.set_schedule(schedule);
        }
        self.keep_schedule(id);
    }

    /// Makes sure that a volume has an engine. False if its deletion is under way or it does not
    /// exist.
    pub(super) fn open(&mut self, id: VolumeId) -> bool {
        self.open_for(id, SHELL_SESSION.0)
    }

    /// As [`StoreActor::open`]. A new engine runs in the thread of that session.
    pub(super) fn open_for(&mut self, id: VolumeId, session: u64) -> bool {
        let failures = match self.engines.opening(id) {
            Opening::Open(failures) => failures,
            Opening::IsOpen => return true,
            Opening::Leaving => return false,
        };
        let snapshot = self.directory.snapshot(id).cloned();
        let volume = snapshot.as_ref().map_or(id, |snapshot| snapshot.volume);
        let Some(spec) = self.directory.spec(volume).cloned() else { return false };
        self.operations.lists.forget(id);
        if snapshot.is_none() {
            // Another store may have had it until now.
            self.replica.replica().replicated().visit_volume(id);
        }
        let second = self.replica.state_of(id);
        let grace = self.engines.config.holder_grace;
        let taken = self.stages.ownership.is_taken_within(id, grace);
        let fence = self.replica.take_fencing(id);
        let home = self.sessions.listener().runtime_of(session);
        let name = spec.name.clone();
        let opened = self.engines.open((id, spec, snapshot), failures, home, |volume, now| {
            volume.handle_replica(now, second);
            if now < Time(0).after(grace) || taken {
                volume.handle_awaited(now.after(grace));
            }
            if fence {
                volume.handle_fence(now);
            }
        });
        match opened {
            Ok(Some(failed)) => self.close_engine(&failed, |_, _| {}),
            Ok(None) => {}
            Err(error) => tracing::error!("cannot open volume {name}: {error:#}"),
        }
        self.engines.has(id)
    }

    /// Takes everything an engine has to give.
    pub(super) fn drive(&mut self, id: VolumeId) {
        let mut settled = false;
        loop {
            let Some(engine) = self.engines.get(id) else { return };
            let task = engine.task.clone();
            self.take_outputs(id, &task, &mut settled);
            if let Some(engine) = self.engines.get_mut(id)
                && engine.room_changed()
            {
                let sessions = engine.sessions().clone();
                self.pause_drains(&sessions);
            }
            self.go_on_deleting(id);
            self.let_go(id);
            let watched = self.stages.ownership.is_left(id)
                || self.engines.get(id).is_some_and(Engine::is_watched);
            if task.attended(watched) {
                break;
            }
        }
        if settled {
            // Some may have waited for what its log says.
            self.next_diffs();
        }
    }

    /// Handles the outputs of an engine so far.
    fn take_outputs(&mut self, id: VolumeId, task: &Arc<EngineTask>, settled: &mut bool) {
        let mut damaged = Vec::new();
        if let Some(Outputs { places, events, messages }) = task.take_outputs() {
            for (number, result) in places {
                self.operations.diffs.queue(PlacesFound(number, result));
            }
            let damage = self.take_events(id, events, settled, &mut damaged);
            self.send_all(messages);
            for event in damage {
                self.repair(id, &event);
            }
        }
        for (volume, (object, range)) in damaged {
            self.found_damaged(FoundDamage { volume, object, ranges: vec![range] });
        }
    }

    fn send_all(&self, messages: impl IntoIterator<Item = (SessionId, Lane, Frame<ToHost>)>) {
        for (session, lane, frame) in messages {
            self.meter.counts().sent_bytes += frame.payload.len() as u64;
            self.sessions.send(session.0, lane, frame);
        }
    }

    /// Handles events of an engine. Returns those that may report something damaged or missing.
    fn take_events(
        &mut self,
        id: VolumeId,
        events: impl IntoIterator<Item = Event>,
        settled: &mut bool,
        damaged: &mut Vec<(VolumeId, (String, longhaul_core::block::Range))>,
    ) -> Vec<Event> {
        let mut damage = Vec::new();
        for event in events {
            let Some(engine) = self.engines.get_mut(id) else { return damage };
            if let Event::Failed(_) = &event {
                engine.mark_failed();
            }
            let (whole, sectors) = (engine.is_whole(), engine.lock().volume.sectors());
            let spec = engine.spec();
            *settled |= matches!(&event, Event::Failed(_) | Event::Opened { .. });
            let told = self.damage.event(&event);
            damaged.extend(told.map(|what| (spec.id, what)));
            {
                let mut counts = self.meter.counts();
                counts.map.add(&event);
                counts.collect.add(&event);
            }
            if let Event::Failed(OpenError::NoSnapshot) = &event {
                // A later request by its name gets the present snapshot.
                self.directory.remove_snapshot(id);
            }
            if let Event::Opened { .. } | Event::Resized { .. } = &event
                && whole
                && let Some(sectors) = sectors
            {
                self.directory.set_sectors(&spec.name, sectors);
            }
            log(&spec.name, &event);
            self.sessions.recorder.event(&spec.name, &event);
            if whole && let Event::Opened { .. } = &event {
                self.engines.read_schedule(id);
            }
            damage.extend(Some(event).filter(may_concern));
        }
        damage
    }

    /// Closes the engines that nobody needs, and has the others give memory back if there is too
    /// little.
    pub(super) fn close_unused(&mut self) {
        self.engines.close_unused();
        for id in self.engines.failed_snapshots() {
            self.drive(id);
            if let Some(engine) = self.engines.remove(id) {
                self.close_engine(&engine, |_, _| {});
            }
        }
        // Where nothing happens nobody looks how much memory there is.
        if self.engines.config.pages.lock().is_crowded() {
            for id in self.engines.ids() {
                if let Some(engine) = self.engines.get(id) {
                    engine.lock().volume.handle_timeout(self.meter.now());
                }
                self.drive(id);
            }
        }
    }

    /// Lets all engines finish what is under way.
    pub(super) fn shut_down_engines(&mut self) {
        for id in self.engines.ids() {
            let now = self.meter.now();
            if let Some(engine) = self.engines.get_mut(id) {
                engine.stop(now);
            }
            self.drive(id);
        }
    }

    /// Drops an engine. Its operations under way may still have their effect. The next engine, at
    /// any store, reads the log. The waiting requests get the answer to come again.
    pub(super) fn drop_engine(&mut self, id: VolumeId) {
        self.engines.forget_live(id);
        self.operations.lists.forget(id);
        let mut settled = false;
        if let Some(task) = self.engines.get(id).map(|engine| engine.task.clone()) {
            self.take_outputs(id, &task, &mut settled);
        }
        let Some(mut engine) = self.engines.remove(id) else { return };
        self.close_engine(&engine, Volume::handle_taken);
        let deletions = engine.take_deletions();
        self.sessions.reply(&deletions, &Err(moved()));
        self.pause_drains(engine.sessions());
        if settled {
            self.next_diffs();
        }
    }

    /// Closes an engine that is out of the list. Its outputs go out, and frames that came
    /// meanwhile pass the stages once more.
    fn close_engine(&mut self, engine: &Engine, last: impl FnOnce(&mut Volume, Time)) {
        let (Outputs { places, events, messages }, frames) = engine.task.close(last);
        for event in events {
            log(&engine.spec().name, &event);
            self.sessions.recorder.event(&engine.spec().name, &event);
        }
        self.send_all(messages);
        for (number, result) in places {
            self.places_found(PlacesFound(number, result));
        }
        for SentFrame { session, lane, frame } in frames {
            self.enter(session, lane, frame);
        }
    }

    /// Call this before a request to a volume that no host uses here. Another store may have
    /// written to the volume after its engine read the log.
    pub(super) fn reopen_if_unused(&mut self, id: VolumeId) {
        let unused = self.engines.get(id).is_some_and(|engine| engine.is_unused());
        if unused && !self.fleet.is_alone() {
            self.drop_engine(id);
        }
    }

    /// Deletes a volume, if no host has it attached, which its log says.
    pub(super) fn begin_delete(&mut self, id: VolumeId, to: ReplyTo) {
        if !self.open(id) {
            return self.sessions.reply(&[to], &Err(VolumeError::NotFound));
        }
        if let Some(engine) = self.engines.get_mut(id) {
            engine.delete(to);
        }
        self.drive(id);
    }

    /// Goes on with the deletion of a volume, if one waits for its engine.
    fn go_on_deleting(&mut self, id: VolumeId) {
        let now = self.meter.now();
        let Some(engine) = self.engines.get_mut(id) else { return };
        match engine.deletion_step(now) {
            DeletionStep::Wait => {}
            DeletionStep::Refuse(to, error) => self.sessions.reply(&to, &Err(error)),
            // Handle the resulting operations like any others.
            DeletionStep::ShutDown => self.drive(id),
            DeletionStep::Idle => {
                let Ok(lease) = self.stages.ownership.deleting_lease(id) else {
                    // The engine may not know of hosts and clones: the requester tries again.
                    return self.drop_engine(id);
                };
                let Some(mut engine) = self.engines.remove(id) else { return };
                let clones = {
                    let driven = engine.lock();
                    let clones = driven.volume.state().snapshots.clones();
                    let clones = clones.map(|clone| clone.id).collect();
                    driven.volume.failed().is_none().then_some(clones)
                };
                let spec = engine.spec().clone();
                let sectors = self.directory.entry(&spec.name).map(|entry| entry.sectors);
                let sectors = sectors.unwrap_or(spec.created_sectors);
                let entry = Entry { sectors, spec };
                let at_once = self.operations.trash.deletes_at_once();
                self.directory.begin_deletion(id);
                let job = CatalogJob::Delete { entry, lease, clones, at_once };
                self.operations.jobs.push(engine.take_deletions(), job);
                self.close_engine(&engine, |_, _| {});
            }
        }
    }

    /// Restores the objects that an engine reports as damaged or missing, if there is a replica.
    fn repair(&mut self, id: VolumeId, event: &Event) {
        let Some(engine) = self.engines.get(id) else { return };
        if engine.lock().volume.replica() != ReplicaDurability::None {
            self.repairs.begin(id, engine.spec(), event);
        }
    }

    /// The restore of an object has ended.
    pub(super) fn repaired(&mut self, done: &RepairDone) {
        let now = self.meter.now();
        for (id, last) in self.repairs.end(done) {
            let Some(engine) = self.engines.get_mut(id) else { continue };
            engine.handle_repaired(now, &done.key, done.repaired, last);
            self.drive(id);
        }
    }

    /// Tells engines where what they put is.
    pub(super) fn tell_engines_of_replica(&mut self) {
        for id in self.engines.ids() {
            let (second, now) = (self.replica.state_of(id), self.meter.now());
            let Some(engine) = self.engines.get(id) else { continue };
            let changed = {
                let mut driven = engine.lock();
                let changed = driven.volume.replica() != second;
                if changed {
                    driven.volume.handle_replica(now, second);
                }
                changed
            };
            if changed {
                self.drive(id);
            }
        }
    }

    /// An object of a volume is damaged. Its host has to know, and so do those of the volume's
    /// clones.
    pub(super) fn found_damaged(&mut self, found: FoundDamage) {
        let FoundDamage { volume, object, ranges } = found;
        let now = self.meter.now();
        let mut told = Vec::new();
        for (id, engine) in self.engines.iter_mut() {
            let spec = engine.spec();
            let of = |parent: &Parent| parent.volume == volume;
            if spec.id == id && (spec.id == volume || spec.parents.iter().any(of)) {
                engine.lock().volume.handle_damaged(now, &object, &ranges);
                told.push(id);
            }
        }
        for id in told {
            self.drive(id);
        }
    }

    /// Reports earlier findings to hosts that have come, and repeats the report now and then. A
    /// reason that kept a host from writing the data back may have gone.
    pub(super) fn tell_known_damage(&mut self) {
        let now = self.meter.now();
        let mut told = Vec::new();
        for (id, engine) in self.engines.iter_mut() {
            if engine.due_notice(TELL_AGAIN).is_none() {
                continue;
            }
            let spec = engine.spec().clone();
            let parents = spec.parents.iter().map(|parent| parent.volume);
            for volume in std::iter::once(spec.id).chain(parents) {
                for (object, ranges) in self.damage.known(volume) {
                    engine.lock().volume.handle_damaged(now, &object, &ranges);
                    told.push(id);
                }
            }
        }
        told.dedup();
        for id in told {
            self.drive(id);
        }
    }
}
