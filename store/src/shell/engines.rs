//! The engines of volumes in use: opened when somebody wants them, driven, and put away.

use super::super::catalog::Entry;
use super::super::events::log;
use super::super::scrub::Found;
use super::snapshots::{Place, read_schedule};
use super::{Asked, Outcome, Shell, deliver, repair};
use longhaul_api::schedule::Schedule;
use longhaul_base::random;
use longhaul_core::block::{Time, VolumeId};
use longhaul_core::store::{
    Event, ObjectOperation, ObjectResult, OpenError, PutError, SessionId, Volume,
};
use longhaul_objects::{self, Objects};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc;

/// A volume that cannot be used is opened anew when somebody wants it, so much later; each time twice as much, up to
/// sixteen times: it takes a list and some reads.
const OPEN_AGAIN: Duration = Duration::from_secs(4);

pub(super) struct Engine {
    pub(super) volume: Volume,
    /// What an engine before it asked of the objects is not answered to this one.
    pub(super) number: u64,
    /// Sessions that have spoken to it.
    pub(super) sessions: BTreeSet<u64>,
    pub(super) paused: bool,
    /// Whether a frame has come for it since the last look.
    pub(super) used: bool,
    /// Deletions that wait until it is open, and then until it is idle.
    pub(super) deletions: Vec<Asked>,
    pub(super) leaving: bool,
    /// The last failure of an operation that has not succeeded since, and what it was about.
    pub(super) retrying: Option<(String, String)>,
    /// Operations on objects without an outcome yet.
    pub(super) under_way: usize,
    /// Whose host had the volume at the last look, and whose has been told what is known to be damaged, and when.
    pub(super) seen: Option<SessionId>,
    pub(super) told: Option<(SessionId, Instant)>,
    /// Snapshots by the clock, and whether one is just being taken or deleted.
    pub(super) schedule: Schedule,
    pub(super) scheduling: bool,
    /// When it was seen that the volume cannot be used, and how often in a row before.
    pub(super) failed_at: Option<Instant>,
    pub(super) failures: u32,
    /// What it failed for has been brought back since.
    pub(super) repaired: bool,
}

impl Engine {
    /// A session is over.
    pub(super) fn session_closed(&mut self, now: Time, session: u64) {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let since = since.map_or(0, |since| since.as_secs());
        self.volume.handle_silent(SessionId(session), since);
        self.volume.handle_session_closed(now, SessionId(session));
    }

    /// Whether the volume could not be used some time ago, and nothing is left of that: what was missing is, or may
    /// be, there again.
    fn may_be_opened_anew(&self) -> bool {
        let pause = OPEN_AGAIN * (1 << self.failures.min(4));
        self.failed_at.is_some_and(|at| self.repaired || at.elapsed() >= pause)
            && self.under_way == 0
            && self.deletions.is_empty()
            && !self.leaving
    }
}

impl Shell {
    /// Drops the engines that nobody needs: memory is for volumes in use, not for all that ever were.
    /// With nothing under way nothing is lost; opening one again reads its newest root and the few
    /// segments after it. One that cannot go on or is owed writes stays, for its state to be seen.
    pub(super) fn put_away(&mut self) {
        let (known, objects) = (&mut self.known, &self.objects);
        self.engines.retain(|id, engine| {
            let used = std::mem::take(&mut engine.used);
            let volume = &engine.volume;
            if volume.id() != volume.spec().id && volume.failed().is_some() {
                return !engine.sessions.is_empty();
            }
            let at_rest = volume.is_idle() && volume.poll_timeout().is_none();
            let Some(live) = volume.info() else { return true };
            let needed = live.connected || live.announced_bytes > 0 || !engine.deletions.is_empty();
            if used || needed || !at_rest {
                return true;
            }
            tracing::debug!("volume {}: not in use, closed", volume.spec().name);
            known.insert(*id, live);
            objects.left(*id);
            false
        });
        // Where nothing happens nobody looks how much memory there is.
        if self.config.pages.lock().is_crowded() {
            let now = self.now();
            for id in self.engines.keys().copied().collect::<Vec<_>>() {
                if let Some(engine) = self.engines.get_mut(&id) {
                    engine.volume.handle_timeout(now);
                }
                self.drive(id);
            }
        }
    }

    pub(super) fn timeouts(&mut self) {
        let now = self.now();
        let due = |engine: &Engine| engine.volume.poll_timeout().is_some_and(|at| at <= now);
        let due: Vec<_> = self.engines.iter().filter(|(_, e)| due(e)).map(|(id, _)| *id).collect();
        for id in due {
            if let Some(engine) = self.engines.get_mut(&id) {
                engine.volume.handle_timeout(now);
            }
            self.drive(id);
        }
    }

    /// Makes sure that a volume has an engine; false if it is being deleted or there is none.
    pub(super) fn open(&mut self, id: VolumeId) -> bool {
        let mut failures = 0;
        if let Some(engine) = self.engines.get(&id) {
            if !engine.may_be_opened_anew() {
                return !engine.leaving;
            }
            failures = engine.failures.saturating_add(1);
        }
        let place = self.snapshots.place(id).cloned();
        let volume = place.as_ref().map_or(id, |place| place.volume);
        let spec = self.names.get(&volume).and_then(|name| self.catalog.get(name));
        let Some(Entry { spec, .. }) = spec.cloned() else { return false };
        let incarnation = match random::identity() {
            Ok(incarnation) => incarnation,
            Err(error) => {
                tracing::error!("cannot open volume {}: {error:#}", spec.name);
                return false;
            }
        };
        self.engines_opened += 1;
        self.survey.forget(id);
        let config = self.config.clone();
        let now = self.now();
        let volume = match place {
            None => Volume::open(now, spec, incarnation, config),
            Some(Place { segment, .. }) => {
                Volume::open_snapshot(now, spec, (segment, id), incarnation, config)
            }
        };
        let engine = Engine {
            volume,
            number: self.engines_opened,
            sessions: BTreeSet::new(),
            paused: false,
            used: true,
            deletions: Vec::new(),
            leaving: false,
            retrying: None,
            under_way: 0,
            seen: None,
            told: None,
            schedule: Schedule::default(),
            scheduling: false,
            failed_at: None,
            repaired: false,
            failures,
        };
        if engine.volume.id() == engine.volume.spec().id {
            // Another store may have had it until now.
            self.keeper.replicated().visit_volume(id);
        }
        let second = self.second_of(id);
        let grace = self.config.holder_grace;
        let awaited = now < Time(0).after(grace) || self.claims.is_taken_within(id, grace);
        let engine = self.engines.entry(id).insert_entry(engine);
        let volume = &mut engine.into_mut().volume;
        volume.handle_replica(now, second);
        if awaited {
            volume.handle_awaited(now.after(grace));
        }
        if self.second.take_fencing(id) {
            volume.handle_fence(now);
        }
        true
    }

    /// Takes everything an engine has to give.
    pub(super) fn drive(&mut self, id: VolumeId) {
        let mut damaged = Vec::new();
        let mut settled = false;
        loop {
            let now = self.now();
            let Some(engine) = self.engines.get_mut(&id) else { return };
            let mut again = false;
            let mut damage = Vec::new();
            while let Some((number, operation)) = engine.volume.poll_object() {
                let begun = Instant::now();
                if let ObjectOperation::Get { key, range: Some(range), copies } = &operation
                    && let Some(result) = self.objects.try_read(key, range, *copies)
                {
                    let took = begun.elapsed();
                    self.elsewhere += took;
                    self.counts.get.record(took);
                    self.counts.gets += 1;
                    self.counts.get_bytes += result.as_ref().map_or(0, |data| data.len() as u64);
                    engine.volume.handle_object(now, number, ObjectResult::Get(result));
                    again = true;
                } else {
                    engine.under_way += 1;
                    let of = (id, engine.number, number);
                    start(&self.objects, &self.outcomes.0, of, operation);
                }
            }
            while let Some((number, result)) = engine.volume.poll_places() {
                let _ = self.outcomes.0.send(Outcome::Places(number, result));
            }
            while let Some(event) = engine.volume.poll_event() {
                if let Event::Retry { key, error, .. } = &event {
                    engine.retrying = Some((key.clone(), error.clone()));
                }
                settled |= matches!(&event, Event::Failed(_) | Event::Opened { .. });
                match &event {
                    Event::Failed(_) => engine.failed_at = Some(Instant::now()),
                    Event::Opened { .. } => engine.failures = 0,
                    _ => {}
                }
                let told = self.damage.event(&event);
                damaged.extend(told.map(|what| (engine.volume.spec().id, what)));
                self.counts.map.add(&event);
                self.counts.collect.add(&event);
                let whole = engine.volume.id() == engine.volume.spec().id;
                if whole && let Event::Opened { .. } = &event {
                    read_schedule(&self.objects, &self.outcomes.0, id);
                }
                if let Event::Failed(OpenError::NoSnapshot) = &event {
                    // Whoever comes by its name is told what there is now.
                    self.snapshots.remove(id);
                }
                if let Event::Opened { .. } | Event::Resized { .. } = &event
                    && whole
                    && let Some(sectors) = engine.volume.sectors()
                    && let Some(entry) = self.catalog.get_mut(&engine.volume.spec().name)
                {
                    entry.sectors = sectors;
                }
                log(&engine.volume.spec().name, &event);
                self.watch.event(&engine.volume.spec().name, &event);
                damage.extend(Some(event).filter(repair::may_concern));
            }
            // After the events, which say more of what is answered.
            while let Some((session, lane, frame)) = engine.volume.poll_message() {
                self.counts.sent_bytes += frame.payload.len() as u64;
                let gate = (&self.guests, &self.watch);
                deliver(&self.listener, gate, &self.outcomes.0, session.0, lane, frame);
            }
            for event in damage {
                self.repair(id, &event);
            }
            if !again {
                break;
            }
        }
        for (volume, (object, range)) in damaged {
            self.found_damaged(Found { volume, object, ranges: vec![range] });
        }
        self.pause(id);
        self.delete(id);
        self.let_go(id);
        if settled {
            // Some may have waited for what its log says.
            self.next_walks();
        }
    }

    /// Stops reading what a volume's sessions drain while the volume has no room.
    pub(super) fn pause(&mut self, id: VolumeId) {
        let Some(engine) = self.engines.get_mut(&id) else { return };
        let paused = !engine.volume.wants_input();
        if paused == std::mem::replace(&mut engine.paused, paused) {
            return;
        }
        let sessions = engine.sessions.clone();
        self.pause_drains(&sessions);
    }

    /// Reads what sessions drain or not, as their volumes have room, and their tenants' limits allow.
    pub(super) fn pause_drains(&self, sessions: &BTreeSet<u64>) {
        for session in sessions {
            let mut engines = self.engines.values();
            let any = engines.any(|engine| engine.paused && engine.sessions.contains(session));
            self.listener.pause_drain(*session, any || self.limits.is_full(*session));
        }
    }
}

/// Carries out an operation in a task of its own.
fn start(
    objects: &Arc<dyn Objects>,
    outcomes: &mpsc::UnboundedSender<Outcome>,
    (volume, engine, id): (VolumeId, u64, u64),
    operation: ObjectOperation,
) {
    let bytes = match &operation {
        ObjectOperation::Put { data, .. } => data.iter().map(|part| part.len() as u64).sum(),
        _ => 0,
    };
    let (objects, outcomes) = (objects.clone(), outcomes.clone());
    let key = operation.key().to_owned();
    tokio::spawn(async move {
        let begun = Instant::now();
        let result = longhaul_objects::execute(&*objects, operation).await;
        let took = begun.elapsed();
        let _ = outcomes.send(Outcome::Object { volume, engine, id, key, result, bytes, took });
    });
}

/// Whether an operation is over with this: it had an answer, or is not tried again. Deletions are not;
/// what stays is deleted with the next.
pub(super) fn settles(result: &ObjectResult) -> bool {
    !matches!(
        result,
        ObjectResult::Put(Err(PutError::Failed(_)))
            | ObjectResult::Get(Err(longhaul_objects::GetError::Failed(_)))
            | ObjectResult::List(Err(_))
    )
}
