//! The actor's loop: it waits for sessions, tasks, questions and timers, and takes one after the
//! other.

use super::super::StoreActor;
use crate::view::{FleetState, MapMemory, SessionState, Snapshot, VolumeState};
use longhaul_link::ListenerEvent;
use std::time::Duration;

/// Most frames between two looks at other inputs.
const FRAMES_AT_ONCE: usize = 64;
/// How long hosts get to go to other stores before this one stops. Also how long the replica gets
/// for the operations that it lacks.
const AWAY_LIMIT: Duration = Duration::from_secs(5);

impl StoreActor {
    /// Serves until another store has taken over the replica. Returns that as an error. May be
    /// dropped between any two events.
    pub async fn serve(&mut self) -> anyhow::Error {
        loop {
            self.step().await;
            if let Some(why) = self.replica.ended() {
                return why;
            }
        }
    }

    /// Lets the engines finish what is under way.
    pub async fn finish(&mut self) {
        if self.send_away() {
            let away = async {
                while self.engines.has_hosts() {
                    self.step().await;
                }
            };
            // Those that find no other store wait for this one.
            let _ = tokio::time::timeout(AWAY_LIMIT, away).await;
        }
        self.shut_down_engines();
        while !self.operations.jobs.is_idle() || !self.engines.is_idle() {
            self.step().await;
        }
        // The next start finds the operations that the replica still lacks.
        let settled = self.replica.replica().replicated().settle();
        let _ = tokio::time::timeout(AWAY_LIMIT, settled).await;
        self.objects.finish().await;
    }

    /// Ends all sessions.
    pub async fn close(self) {
        self.sessions.shutdown().await;
    }

    /// This location has just been taken over: takes all volumes from the stores that served them
    /// before.
    pub fn take_over(&mut self) {
        self.replica.take_over(self.directory.ids());
    }

    /// Tells the other stores that they should look at the location.
    pub fn tell_stores(&self) {
        self.fleet.tell_peers();
    }

    async fn step(&mut self) {
        let deadline = self.stages.rates.poll_timeout();
        let wait = deadline.map(|at| at.since(self.meter.now()));
        let timeout = async {
            match wait {
                // Timers of the runtime have a millisecond's grain: zero must not wait for one.
                Some(Duration::ZERO) => tokio::task::yield_now().await,
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(done) = self.inputs.done.recv() => {
                self.task_done(done);
                while let Ok(done) = self.inputs.done.try_recv() {
                    self.task_done(done);
                }
            }
            Some(event) = self.sessions.event() => {
                self.session_event(event);
                for _ in 1..FRAMES_AT_ONCE {
                    let Some(event) = self.sessions.try_event() else { break };
                    self.session_event(event);
                }
            }
            Some(question) = self.inputs.questions.recv() => {
                let _ = question.send(self.snapshot());
            }
            () = timeout => self.pass_due(),
            () = self.engines.ended() => {}
            _ = self.inputs.look.tick() => {
                self.close_unused();
                self.tend_fleet();
                self.keep_schedules();
                self.operations.trash.tick();
                self.tend_limits();
                self.fleet.tend_certificate();
                self.sessions.recorder.tick();
                self.tell_known_damage();
            }
            _ = self.inputs.look_for_room.tick() => {
                self.look_for_room();
                self.look_for_shares();
            }
            _ = self.inputs.remind.tick(), if self.fleet.is_shared() => self.remind(),
            () = self.replica.tick() => self.tend_replica(),
            found = self.damage.next() => self.found_damaged(found),
        }
    }

    fn session_event(&mut self, event: ListenerEvent) {
        match event {
            ListenerEvent::Opened { session, peer, principal, software } => {
                tracing::info!(
                    "session {session}: {peer} ({software}, credential {})",
                    principal.serial
                );
                self.sessions.opened(session, peer, &principal, &software);
            }
            ListenerEvent::Closed { session, reason } => {
                tracing::info!("session {session} closed: {reason}");
                self.session_closed(session);
            }
            ListenerEvent::Frame { session, lane, frame } => {
                {
                    let mut counts = self.meter.counts();
                    counts.frames += 1;
                    counts.received_bytes += frame.payload.len() as u64;
                }
                self.enter(session, lane, frame);
            }
        }
    }

    fn session_closed(&mut self, session: u64) {
        self.sessions.closed(session);
        self.stages.ownership.forget(session);
        self.stages.unknown.forget(session);
        self.operations.diffs.forget(session);
        self.forget_held(session);
        for id in self.engines.session_closed(self.meter.now(), session) {
            self.drive(id);
        }
    }

    /// The state of the store at this moment.
    fn snapshot(&self) -> Snapshot {
        let volumes = self.directory.entries().map(|entry| {
            let info = self.info(entry);
            let Some(engine) = self.engines.get(entry.spec.id) else {
                return VolumeState { info, space: None, failed: None, retrying: None };
            };
            let driven = engine.lock();
            VolumeState {
                info,
                space: driven.volume.space(),
                failed: driven.volume.failed().map(ToString::to_string),
                retrying: driven.failures.retrying.as_ref().map(|(_, error)| error.clone()),
            }
        });
        let listener = self.sessions.listener();
        let sessions = listener.statistics().into_iter();
        let sessions = sessions.map(|(peer, link)| SessionState { peer, link });
        Snapshot {
            volumes: volumes.collect(),
            open: self.engines.len(),
            fleet: self.fleet.fleet.as_ref().map(|fleet| FleetState {
                leases: self.stages.ownership.count(),
                stores: fleet.peers.list().len() + 1,
                evacuating: fleet.is_evacuating(),
            }),
            sessions: sessions.collect(),
            tenants: self.stages.rates.states(),
            counts: self.meter.counts().clone(),
            map: MapMemory::of(&self.engines.config.pages.lock()),
            datagrams: listener.datagrams(),
            early: listener.early(),
            answer_bytes: listener.answer_bytes(),
            waiting_bytes: listener.waiting_bytes(),
            cache: self.objects.cache(),
            usage: self.objects.usage(),
        }
    }
}
