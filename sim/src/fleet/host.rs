//! Hosts. Each has at most one volume and a link to one store, and goes from store to store.

use super::place::{MS, SECOND};
use super::requests::{Asker, Request};
use super::store::Stage;
use super::{Event, World};
use crate::note;
use crate::rng::Rng;
use bytes::{Bytes, BytesMut};
use longhaul_core::block::{Epoch, Range, SECTOR_BYTES, Seq, Time, VolumeId};
use longhaul_core::record;
use longhaul_core::store::SessionId;
use longhaul_core::wire::link::{AttachError, Attached, Frame, HostId, ToHost, ToStore};
use std::collections::VecDeque;

/// A write that a host has sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    pub lba: u64,
    pub sectors: u64,
    pub stamp: u64,
}

/// A link from a host to a store.
pub(super) struct Session {
    pub host: usize,
    pub store: usize,
    incarnation: u64,
    host_open: bool,
    store_open: bool,
    /// Arrival times of the last frame to the store, and of the last frame to the host.
    up: Time,
    down: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Attaching,
    Attached,
    Resuming,
    Detaching,
}

/// A batch that the store has not committed yet.
struct Batch {
    first: Seq,
    last: Seq,
    payload: Bytes,
}

pub(super) struct Host {
    pub id: HostId,
    pub generation: u64,
    state: State,
    /// The time of the last change of the state.
    since: Time,
    session: Option<u64>,
    name: String,
    volume: VolumeId,
    epoch: Epoch,
    sectors: u64,
    next: Seq,
    acked: Seq,
    batches: VecDeque<Batch>,
    /// The store that served the host last.
    served: usize,
    /// Whether the store has told the host to leave.
    leaves: bool,
    tries: u32,
    rng: Rng,
}

impl Host {
    pub fn new(at: usize, rng: Rng) -> Host {
        Host {
            id: HostId(at as u128 + 1),
            generation: 0,
            state: State::Idle,
            since: Time(0),
            session: None,
            name: String::new(),
            volume: VolumeId(0),
            epoch: 0,
            sectors: 0,
            next: 1,
            acked: 0,
            batches: VecDeque::new(),
            served: 0,
            leaves: false,
            tries: 0,
            rng,
        }
    }

    pub fn is_idle(&self) -> bool {
        self.state == State::Idle
    }
}

impl World {
    fn become_state(&mut self, host: usize, state: State) {
        note!(self, "h{host} {state:?}");
        let now = self.now;
        let at = &mut self.hosts[host];
        (at.state, at.since) = (state, now);
    }

    /// A random running store, if possible without an evacuation, and other than `not`. If no other
    /// store runs, the result is `not` itself.
    fn some_store(&mut self, host: usize, not: Option<usize>) -> Option<usize> {
        let fits = |at: &usize| Some(*at) != not && self.stores[*at].stage == Stage::Up;
        let mut stores: Vec<usize> = (0..self.stores.len()).filter(fits).collect();
        if stores.iter().any(|at| !self.stores[*at].draining) {
            stores.retain(|at| !self.stores[*at].draining);
        }
        if stores.is_empty() {
            return not.filter(|at| self.stores[*at].stage == Stage::Up);
        }
        let index = self.hosts[host].rng.index(stores.len());
        Some(stores[index])
    }

    fn connect(&mut self, host: usize, store: usize) {
        self.cut_host(host);
        let number = self.number();
        let incarnation = self.stores[store].incarnation;
        let session = Session {
            host,
            store,
            incarnation,
            host_open: true,
            store_open: true,
            up: self.now,
            down: self.now,
        };
        self.sessions.insert(number, session);
        note!(self, "h{host} session {number} to s{store}");
        self.hosts[host].session = Some(number);
        self.hosts[host].leaves = false;
    }

    /// The sessions between a store and hosts that have not noticed an end of their link.
    pub(super) fn sessions_of(&self, store: usize) -> Vec<u64> {
        let incarnation = self.stores[store].incarnation;
        let of = self.sessions.iter().filter(|(_, session)| {
            let same = session.incarnation == incarnation || !self.stores[store].is_up();
            session.store == store && session.host_open && same
        });
        of.map(|(number, _)| *number).collect()
    }

    /// Closes the link of a host at once. The store notices later.
    pub(super) fn cut_host(&mut self, host: usize) {
        let Some(number) = self.hosts[host].session.take() else { return };
        if let Some(session) = self.sessions.get_mut(&number) {
            session.host_open = false;
        }
        let delay = self.hosts[host].rng.spread(MS, 5 * SECOND);
        self.after(delay, Event::StoreNotices(number));
    }

    /// Breaks the link of a host. Host and store notice at different times.
    pub(super) fn break_host(&mut self, host: usize) {
        let Some(number) = self.hosts[host].session else { return };
        let delay = self.hosts[host].rng.spread(MS, 2 * SECOND);
        self.after(delay, Event::HostNotices(number));
        let delay = self.hosts[host].rng.spread(MS, 5 * SECOND);
        self.after(delay, Event::StoreNotices(number));
    }

    pub(super) fn host_notices(&mut self, number: u64) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        if !std::mem::take(&mut session.host_open) {
            return;
        }
        let host = session.host;
        if self.hosts[host].session == Some(number) {
            self.hosts[host].session = None;
            match self.hosts[host].state {
                State::Attached | State::Resuming => self.resume(host),
                State::Idle => {}
                State::Attaching | State::Detaching => self.become_state(host, State::Idle),
            }
        }
    }

    pub(super) fn store_notices(&mut self, number: u64) {
        let now = self.now;
        let Some(session) = self.sessions.get_mut(&number) else { return };
        if !std::mem::take(&mut session.store_open) {
            return;
        }
        let (store, incarnation) = (session.store, session.incarnation);
        if session.host_open {
            self.after(MS, Event::HostNotices(number));
        } else {
            self.sessions.remove(&number);
        }
        if self.stores[store].incarnation != incarnation || !self.stores[store].is_up() {
            return;
        }
        let at = &mut self.stores[store];
        at.claims.values_mut().for_each(|claim| claim.forget(number));
        at.chores.unknown_sessions.retain(|request| request.asker != Asker::Session(number));
        let engines: Vec<VolumeId> = at.engines.keys().copied().collect();
        for id in engines {
            if let Some(engine) = self.stores[store].engines.get_mut(&id) {
                engine.machine.handle_session_closed(now, SessionId(number));
            }
            self.drive(store, id);
        }
    }

    fn send_up(&mut self, host: usize, frame: Frame<ToStore>) {
        let Some(number) = self.hosts[host].session else { return };
        let delay = self.hosts[host].rng.spread(MS / 4, 30 * MS);
        let Some(session) = self.sessions.get_mut(&number) else { return };
        session.up = Time(session.up.0.max(self.now.0 + delay) + 1);
        let due = session.up;
        self.schedule(due, Event::Up(number, Box::new(frame)));
    }

    pub(super) fn send_down(&mut self, number: u64, message: ToHost) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        let delay = self.rng.spread(MS / 4, 30 * MS);
        session.down = Time(session.down.0.max(self.now.0 + delay) + 1);
        let due = session.down;
        self.schedule(due, Event::Down(number, Box::new(message.into())));
    }

    pub(super) fn frame_up(&mut self, number: u64, frame: Frame<ToStore>) {
        let Some(session) = self.sessions.get(&number) else { return };
        let (store, incarnation) = (session.store, session.incarnation);
        let at = &self.stores[store];
        let open = session.store_open && at.incarnation == incarnation && at.is_up();
        if !open {
            return;
        }
        let volume = match &frame.message {
            ToStore::Attach { name, .. } => at.directory.get(name).map(|entry| entry.spec.id),
            ToStore::Resume { volume, .. }
            | ToStore::Batch { volume, .. }
            | ToStore::Detach { volume, .. } => at.entry_of(*volume).map(|entry| entry.spec.id),
            _ => None,
        };
        let asker = Asker::Session(number);
        let request =
            Request { asker, volume: volume.unwrap_or(VolumeId(0)), frame, from_store: false };
        if volume.is_some() {
            return self.take(store, request);
        }
        self.stores[store].chores.unknown_sessions.push(request);
        self.look_around(store);
    }

    /// Handles a request for an unknown volume once more, after a look at the location.
    pub(super) fn take_unknown(&mut self, store: usize, mut request: Request) {
        let at = &self.stores[store];
        let volume = match &request.frame.message {
            ToStore::Attach { name, .. } => at.directory.get(name).map(|entry| entry.spec.id),
            ToStore::Resume { volume, .. }
            | ToStore::Batch { volume, .. }
            | ToStore::Detach { volume, .. } => at.entry_of(*volume).map(|entry| entry.spec.id),
            _ => None,
        };
        match volume {
            Some(volume) => {
                request.volume = volume;
                self.take(store, request);
            }
            None => {
                let error = longhaul_core::wire::link::VolumeError::NotFound;
                self.refuse(store, request, error);
            }
        }
    }

    pub(super) fn host_wakes(&mut self, host: usize) {
        let generation = self.hosts[host].generation;
        let delay = self.hosts[host].rng.spread(50 * MS, 3 * SECOND);
        self.after(delay, Event::HostWakes(host, generation));
        let waited = self.now.0 - self.hosts[host].since.0;
        let quiet = self.end.is_quiet();
        let state = self.hosts[host].state;
        match state {
            State::Idle if !quiet && self.hosts[host].rng.percent(60) => self.attach(host),
            State::Attaching if waited > 20 * SECOND => {
                self.cut_host(host);
                self.become_state(host, State::Idle);
            }
            State::Detaching if waited > 10 * SECOND => self.resume(host),
            State::Resuming if waited > 5 * SECOND => self.resume(host),
            State::Attached => self.use_volume(host, quiet),
            _ => {}
        }
    }

    fn attach(&mut self, host: usize) {
        let names: Vec<&String> =
            self.truths.values().flat_map(|truth| truth.names.iter().take(1)).collect();
        if names.is_empty() {
            return;
        }
        let name = names[self.hosts[host].rng.index(names.len())].clone();
        let Some(store) = self.some_store(host, None) else { return };
        self.connect(host, store);
        let at = &mut self.hosts[host];
        at.name.clone_from(&name);
        let take_over = at.rng.percent(30);
        let message = ToStore::Attach { request: 1, name, host: at.id, journal: None, take_over };
        note!(self, "h{host} attaches {:?}", message);
        self.become_state(host, State::Attaching);
        self.send_up(host, message.into());
    }

    /// Resumes the session of a host with a volume, mostly at another store. After 12 attempts
    /// without success the host gives the volume up.
    fn resume(&mut self, host: usize) {
        let before = self.hosts[host].served;
        let at = &mut self.hosts[host];
        at.tries += 1;
        if at.tries > 12 {
            self.cut_host(host);
            return self.become_state(host, State::Idle);
        }
        let not = if at.rng.percent(70) { Some(before) } else { None };
        self.become_state(host, State::Resuming);
        let Some(store) = self.some_store(host, not) else { return };
        self.connect(host, store);
        let at = &self.hosts[host];
        let message =
            ToStore::Resume { request: 2, volume: at.volume, epoch: at.epoch, host: at.id };
        self.send_up(host, message.into());
    }

    fn use_volume(&mut self, host: usize, quiet: bool) {
        let leaves = std::mem::take(&mut self.hosts[host].leaves);
        if quiet {
            return self.detach(host);
        }
        if leaves {
            self.coverage.drained += 1;
            return self.resume(host);
        }
        match self.hosts[host].rng.weighted(&[75, 10, 10, 5]) {
            0 => self.write(host),
            1 => self.detach(host),
            2 => {
                self.hosts[host].tries = 0;
                self.resume(host);
            }
            _ => {
                note!(self, "h{host} dies");
                self.cut_host(host);
                self.become_state(host, State::Idle);
            }
        }
    }

    fn write(&mut self, host: usize) {
        if self.hosts[host].batches.len() >= 3 {
            return;
        }
        let at = &mut self.hosts[host];
        let (volume, epoch, first) = (at.volume, at.epoch, at.next);
        let last = first + at.rng.below(3);
        let mut payload = BytesMut::new();
        for seq in first..=last {
            let sectors = at.rng.between(1, 3);
            let lba = at.rng.below(at.sectors - sectors);
            let stamp = at.rng.draw() | 1;
            let data = stamp.to_le_bytes().repeat((sectors * SECTOR_BYTES) as usize / 8);
            let range = Range::new(lba, sectors);
            record::encode_data(volume, epoch, seq, range, &data, &mut payload);
            let write = Write { lba, sectors, stamp };
            if let Some(truth) = self.truths.get_mut(&volume) {
                truth.sent.insert((epoch, seq), write);
            }
        }
        at.next = last + 1;
        let payload = payload.freeze();
        at.batches.push_back(Batch { first, last, payload: payload.clone() });
        let message = ToStore::Batch { volume, epoch, first, last };
        self.send_up(host, Frame { message, payload });
    }

    fn detach(&mut self, host: usize) {
        if !self.hosts[host].batches.is_empty() {
            return;
        }
        let (volume, epoch) = (self.hosts[host].volume, self.hosts[host].epoch);
        self.become_state(host, State::Detaching);
        self.send_up(host, ToStore::Detach { request: 3, volume, epoch }.into());
    }

    pub(super) fn frame_down(&mut self, number: u64, message: &ToHost) {
        let Some(session) = self.sessions.get(&number).filter(|session| session.host_open) else {
            return;
        };
        let (host, store) = (session.host, session.store);
        if self.hosts[host].session != Some(number) {
            return;
        }
        note!(self, "h{host} hears {message:?}");
        let at = &self.hosts[host];
        let (volume, epoch) = (at.volume, at.epoch);
        match message {
            ToHost::Attached { request, result } => match (at.state, result) {
                (State::Attaching, Ok(attached)) if *request == 1 => {
                    self.attached(host, store, attached);
                }
                (State::Resuming, Ok(attached)) if *request == 2 => {
                    self.resumed(host, store, attached);
                }
                (State::Attaching, Err(_)) => {
                    self.cut_host(host);
                    self.become_state(host, State::Idle);
                }
                (State::Resuming, Err(error)) => self.not_resumed(host, error),
                _ => {}
            },
            ToHost::Committed { volume: of, epoch: then, seq }
                if *of == volume && *then == epoch =>
            {
                let at = &mut self.hosts[host];
                at.acked = at.acked.max(*seq);
                if let Some(truth) = self.truths.get_mut(of) {
                    truth.acked = truth.acked.max(*seq);
                }
                at.batches.retain(|batch| batch.last > *seq);
                self.coverage.commits += 1;
            }
            ToHost::Fenced { volume: of, .. } if *of == volume => {
                if matches!(self.hosts[host].state, State::Attached | State::Resuming) {
                    self.coverage.fenced += 1;
                    self.cut_host(host);
                    self.become_state(host, State::Idle);
                }
            }
            ToHost::BatchRefused { volume: of, .. }
                if *of == volume && self.hosts[host].state == State::Attached =>
            {
                self.resume(host);
            }
            ToHost::Detached { request: 3 } if self.hosts[host].state == State::Detaching => {
                self.cut_host(host);
                self.become_state(host, State::Idle);
            }
            ToHost::Stores { leave: true, .. } => self.hosts[host].leaves = true,
            _ => {}
        }
    }

    fn attached(&mut self, host: usize, store: usize, attached: &Attached) {
        self.coverage.attached += 1;
        let at = &mut self.hosts[host];
        self.coverage.attached_elsewhere += u64::from(at.served != store);
        (at.volume, at.epoch, at.sectors) = (attached.volume, attached.epoch, attached.sectors);
        (at.next, at.acked) = (attached.committed + 1, attached.committed);
        (at.served, at.tries) = (store, 0);
        at.batches.clear();
        self.become_state(host, State::Attached);
    }

    fn resumed(&mut self, host: usize, store: usize, attached: &Attached) {
        let at = &mut self.hosts[host];
        if attached.committed < at.acked {
            let acked = at.acked;
            let id = attached.volume;
            if self.truths.get(&id).is_some_and(|truth| !truth.fate.condemned) {
                self.fail(format!("volume {id} resumes at {}, not {acked}", attached.committed));
            }
            return;
        }
        self.coverage.resumed_elsewhere += u64::from(at.served != store);
        (at.served, at.tries, at.sectors) = (store, 0, attached.sectors);
        at.acked = attached.committed;
        at.batches.retain(|batch| batch.last > attached.committed);
        let (volume, epoch) = (at.volume, at.epoch);
        let again: Vec<Frame<ToStore>> = at
            .batches
            .iter()
            .map(|batch| Frame {
                message: ToStore::Batch { volume, epoch, first: batch.first, last: batch.last },
                payload: batch.payload.clone(),
            })
            .collect();
        self.become_state(host, State::Attached);
        for frame in again {
            self.send_up(host, frame);
        }
    }

    fn not_resumed(&mut self, host: usize, error: &AttachError) {
        match error {
            AttachError::Fenced { .. } | AttachError::NotFound => {
                self.coverage.fenced += 1;
                self.cut_host(host);
                self.become_state(host, State::Idle);
            }
            // The host tries again after a while.
            _ => self.cut_host(host),
        }
    }
}
