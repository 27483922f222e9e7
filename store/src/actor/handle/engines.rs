//! Engines: opened when somebody wants them, driven, and closed.

use super::super::StoreActor;
use super::super::damage::TELL_AGAIN;
use super::super::engines::{DeletionStep, EngineDone, ObjectDone, Opening, settles};
use super::super::operation::jobs::CatalogJob;
use super::super::operation::map_diff::PlacesFound;
use super::super::repair::{RepairDone, may_concern};
use super::super::request::ReplyTo;
use super::super::stage::ownership::moved;
use crate::catalog::Entry;
use crate::events::log;
use crate::scrub::FoundDamage;
use longhaul_core::block::{Time, VolumeId};
use longhaul_core::store::{Event, ObjectOperation, ObjectResult, OpenError, ReplicaDurability};
use longhaul_core::wire::link::{Parent, VolumeError};
use std::time::Instant;

impl StoreActor {
    /// A task of an engine is over.
    pub(super) fn engine_done(&mut self, done: EngineDone) {
        match done {
            EngineDone::Object(done) => self.object_done(done),
            EngineDone::Schedule(id, schedule) => {
                if let Some(engine) = self.engines.get_mut(id) {
                    engine.set_schedule(schedule);
                }
                self.keep_schedule(id);
            }
        }
    }

    fn object_done(&mut self, done: ObjectDone) {
        let ObjectDone { volume, engine: number, id, key, result, bytes, took } = done;
        self.meter.counts.add(&result, bytes, took);
        self.meter.begin_work();
        let (now, settled) = (self.meter.now(), settles(&result));
        let engine = self.engines.get_mut(volume).filter(|engine| engine.number() == number);
        let Some(engine) = engine else { return };
        engine.handle_object(now, id, result);
        self.drive(volume);
        if settled && let Some(engine) = self.engines.get_mut(volume) {
            engine.settled(&key);
        }
        self.meter.end_work();
    }

    /// Makes sure that a volume has an engine. False if its deletion is under way or it does not
    /// exist.
    pub(super) fn open(&mut self, id: VolumeId) -> bool {
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
        let (now, grace) = (self.meter.now(), self.engines.config.holder_grace);
        let taken = self.stages.ownership.is_taken_within(id, grace);
        let Some(engine) = self.engines.open(now, id, spec, snapshot, failures) else {
            return false;
        };
        engine.volume.handle_replica(now, second);
        if now < Time(0).after(grace) || taken {
            engine.volume.handle_awaited(now.after(grace));
        }
        if self.replica.take_fencing(id) {
            engine.volume.handle_fence(now);
        }
        true
    }

    /// Takes everything an engine has to give.
    pub(super) fn drive(&mut self, id: VolumeId) {
        let mut damaged = Vec::new();
        let mut settled = false;
        loop {
            let again = self.drive_objects(id);
            let Some(engine) = self.engines.get_mut(id) else { return };
            while let Some((number, result)) = engine.volume.poll_places() {
                self.operations.diffs.queue(PlacesFound(number, result));
            }
            let damage = self.drive_events(id, &mut settled, &mut damaged);
            let Some(engine) = self.engines.get_mut(id) else { return };
            // Messages come after the events, which say more about them.
            while let Some((session, lane, frame)) = engine.volume.poll_message() {
                self.meter.counts.sent_bytes += frame.payload.len() as u64;
                self.sessions.send(session.0, lane, frame);
            }
            for event in damage {
                self.repair(id, &event);
            }
            if !again {
                break;
            }
        }
        for (volume, (object, range)) in damaged {
            self.found_damaged(FoundDamage { volume, object, ranges: vec![range] });
        }
        if let Some(engine) = self.engines.get_mut(id)
            && engine.room_changed()
        {
            let sessions = engine.sessions().clone();
            self.pause_drains(&sessions);
        }
        self.go_on_deleting(id);
        self.let_go(id);
        if settled {
            // Some may have waited for what its log says.
            self.next_diffs();
        }
    }

    /// Begins the object operations of an engine. Returns whether one of them has ended at once.
    fn drive_objects(&mut self, id: VolumeId) -> bool {
        let now = self.meter.now();
        let mut again = false;
        loop {
            let Some(engine) = self.engines.get_mut(id) else { return again };
            let Some((number, operation)) = engine.volume.poll_object() else { return again };
            let begun = Instant::now();
            if let ObjectOperation::Get { key, range: Some(range), copies } = &operation
                && let Some(result) = self.objects.try_read(key, range, *copies)
            {
                let took = begun.elapsed();
                self.meter.add_reading(took);
                let counts = &mut self.meter.counts;
                counts.get.record(took);
                counts.gets += 1;
                counts.get_bytes += result.as_ref().map_or(0, |data| data.len() as u64);
                engine.volume.handle_object(now, number, ObjectResult::Get(result));
                again = true;
            } else {
                engine.object_begun();
                let of = (id, engine.number(), number);
                self.engines.start(of, operation);
            }
        }
    }

    /// Takes the events of an engine. Returns those that may report something damaged or missing.
    fn drive_events(
        &mut self,
        id: VolumeId,
        settled: &mut bool,
        damaged: &mut Vec<(VolumeId, (String, longhaul_core::block::Range))>,
    ) -> Vec<Event> {
        let mut damage = Vec::new();
        loop {
            let Some(engine) = self.engines.get_mut(id) else { return damage };
            let Some(event) = engine.volume.poll_event() else { return damage };
            engine.note(&event);
            let (whole, sectors) = (engine.is_whole(), engine.volume.sectors());
            let spec = engine.volume.spec();
            *settled |= matches!(&event, Event::Failed(_) | Event::Opened { .. });
            let told = self.damage.event(&event);
            damaged.extend(told.map(|what| (spec.id, what)));
            self.meter.counts.map.add(&event);
            self.meter.counts.collect.add(&event);
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
    }

    pub(super) fn timeouts(&mut self) {
        let now = self.meter.now();
        let due = self.engines.due(now);
        self.time_out(now, due);
    }

    fn time_out(&mut self, now: Time, engines: Vec<VolumeId>) {
        for id in engines {
            if let Some(engine) = self.engines.get_mut(id) {
                engine.volume.handle_timeout(now);
            }
            self.drive(id);
        }
    }

    /// Closes the engines that nobody needs, and has the others give memory back if there is too
    /// little.
    pub(super) fn close_unused(&mut self) {
        self.engines.close_unused();
        // Where nothing happens nobody looks how much memory there is.
        if self.engines.config.pages.lock().is_crowded() {
            self.time_out(self.meter.now(), self.engines.ids());
        }
    }

    /// Lets all engines finish what is under way.
    pub(super) fn shut_down_engines(&mut self) {
        let now = self.meter.now();
        for id in self.engines.ids() {
            if let Some(engine) = self.engines.get_mut(id) {
                engine.volume.handle_shutdown(now);
            }
            self.drive(id);
        }
    }

    /// Drops an engine. Its operations under way may still have their effect. The next engine, at
    /// any store, reads the log. The waiting requests get the answer to come again.
    pub(super) fn drop_engine(&mut self, id: VolumeId) {
        self.engines.forget_live(id);
        self.operations.lists.forget(id);
        let now = self.meter.now();
        let Some(mut engine) = self.engines.remove(id) else { return };
        engine.volume.handle_taken(now);
        while let Some((session, lane, frame)) = engine.volume.poll_message() {
            self.sessions.send(session.0, lane, frame);
        }
        while let Some((number, result)) = engine.volume.poll_places() {
            self.places_found(PlacesFound(number, result));
        }
        let deletions = engine.take_deletions();
        self.sessions.reply(&deletions, &Err(moved()));
        self.pause_drains(engine.sessions());
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
                let clones = engine.volume.state().snapshots.clones();
                let clones = clones.map(|clone| clone.id).collect();
                let clones = engine.volume.failed().is_none().then_some(clones);
                let spec = engine.volume.spec().clone();
                let sectors = self.directory.entry(&spec.name).map(|entry| entry.sectors);
                let sectors = sectors.unwrap_or(spec.created_sectors);
                let entry = Entry { sectors, spec };
                let at_once = self.operations.trash.deletes_at_once();
                self.directory.begin_deletion(id);
                let job = CatalogJob::Delete { entry, lease, clones, at_once };
                self.operations.jobs.push(engine.take_deletions(), job);
            }
        }
    }

    /// Restores the objects that an engine reports as damaged or missing, if there is a replica.
    fn repair(&mut self, id: VolumeId, event: &Event) {
        let Some(engine) = self.engines.get(id) else { return };
        if engine.volume.replica() != ReplicaDurability::None {
            self.repairs.begin(id, engine.volume.spec(), event);
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
            let Some(engine) = self.engines.get_mut(id) else { continue };
            if engine.volume.replica() != second {
                engine.volume.handle_replica(now, second);
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
            let spec = engine.volume.spec();
            let of = |parent: &Parent| parent.volume == volume;
            if spec.id == id && (spec.id == volume || spec.parents.iter().any(of)) {
                engine.volume.handle_damaged(now, &object, &ranges);
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
            let spec = engine.volume.spec().clone();
            let parents = spec.parents.iter().map(|parent| parent.volume);
            for volume in std::iter::once(spec.id).chain(parents) {
                for (object, ranges) in self.damage.known(volume) {
                    engine.volume.handle_damaged(now, &object, &ranges);
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
