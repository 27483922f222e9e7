//! Hosts: processes that attach volumes, with state directories that outlive them.

use super::storage::UnderWay;
use super::{Event, MS, State, Told, World};
use crate::disk::Disk;
use crate::link::{Direction, EncodeHead, Session, encode};
use crate::model::OpId;
use crate::note;
use crate::plan::Acknowledge;
use longhaul_core::block::{Epoch, Seq};
use longhaul_core::host::journal::{Geometry, Recovered};
use longhaul_core::host::{self, Config, Durability, Mode, OnJournalFailure};
use longhaul_core::pack::{DATA_KEY_BYTES, DataKey, Keys, Packing};
use longhaul_core::wire::link::{
    Attached, Frame, JournalState, Lane, ToHost, ToStore, VolumeReply,
};
use std::time::Duration;

/// A state directory's journal, and what the model knows about it.
pub struct Journal {
    pub(super) disk: Disk,
    /// The writes of the attachment that used it last.
    pub(super) view: Vec<OpId>,
    /// All writes up to here were promised to survive.
    pub(super) flushed: Seq,
    /// Logical positions seen, to notice that the ring came round.
    pub(super) written_bytes: u64,
}

/// A slot that asks for an epoch.
pub struct Attaching {
    pub(super) recovered: Option<Recovered>,
    pub(super) state: Option<JournalState>,
    pub(super) request: u64,
    /// A granted epoch, and the request for the changes before it.
    pub(super) granted: Option<(Attached, u64)>,
}

/// Most data keys of a volume.
const KEYS_MAX: u8 = 8;

fn keys(volume: usize, newest: u8) -> Option<Keys> {
    let key = |number: u8| (number.into(), DataKey::new([number; DATA_KEY_BYTES]));
    Keys::new([volume as u8; 12], (1..=newest).map(key).collect())
}

impl World {
    pub(super) fn geometry(&self, volume: usize) -> Geometry {
        let plan = self.plan.volumes[volume];
        Geometry { file_bytes: plan.file_bytes, files: plan.files }
    }

    /// The compression and encryption of a volume's hosts. The salt is the same in all attachments.
    /// So the epochs keep the nonces of records apart here. Those of caches come again.
    pub(super) fn packing(&self, volume: usize) -> Packing {
        let plan = self.plan.volumes[volume];
        let keys = keys(volume, KEYS_MAX).filter(|_| plan.encrypted);
        Packing { compression: plan.compression, keys }
    }

    /// The same for the beginning of an epoch. For some volumes every other epoch has a new key,
    /// and all content has to come under it.
    pub(super) fn packing_in(&self, volume: usize, epoch: Epoch) -> Packing {
        let plan = self.plan.volumes[volume];
        let mut packing = self.packing(volume);
        if plan.encrypted && plan.files % 2 == 1 {
            let newest = (1 + epoch / 2).min(KEYS_MAX.into()) as u8;
            packing.keys = keys(volume, newest).map(|keys| keys.with_retiring(true));
        }
        packing
    }

    pub(super) fn host_config(&self, volume: usize) -> Config {
        let plan = self.plan.volumes[volume];
        let mode = match plan.acknowledge {
            Acknowledge::WriteThrough => Mode::WriteThrough,
            Acknowledge::Host | Acknowledge::Store => Mode::Journal(self.geometry(volume)),
        };
        Config {
            durability: match plan.acknowledge {
                Acknowledge::Host => Durability::Host,
                Acknowledge::Store | Acknowledge::WriteThrough => Durability::Store,
            },
            on_journal_failure: if plan.continues {
                OnJournalFailure::Continue
            } else {
                OnJournalFailure::Stop
            },
            memory_bytes: plan.memory_bytes,
            window_max_bytes: 4 << 20,
            batch_bytes: plan.batch_bytes,
            readahead_bytes: plan.readahead_bytes,
            drain_linger: Duration::from_nanos(plan.linger),
            sync_interval: Duration::from_nanos(plan.linger),
            map_entries_max: plan.map_entries,
            packing: self.packing(volume),
            packed_sectors_max: plan.packed_sectors,
            cache_interval: Duration::from_nanos(plan.cache.interval),
            cache_writing_bytes: plan.cache.writing_bytes,
            ..Config::new(mode)
        }
    }

    pub(super) fn start_host(&mut self, host: usize) {
        note!(self, "h{host} starts");
        self.hosts[host].up = true;
        for volume in 0..self.volumes.len() {
            if self.slot(host, volume).wanted {
                self.start_slot(host, volume);
            }
        }
    }

    /// A host's process begins to attach a volume: it recovers the journal, then asks a store.
    pub(super) fn start_slot(&mut self, host: usize, volume: usize) {
        self.stop_slot(host, volume);
        let mut attaching = Attaching { recovered: None, state: None, request: 0, granted: None };
        if self.slot(host, volume).journal.is_some() {
            match self.recover(host, volume) {
                Ok(recovered) => {
                    let state = recovered.state();
                    note!(self, "h{host} v{volume} recovered {state:?}");
                    let asked =
                        self.slot(host, volume).journal.as_ref().map_or(0, |j| j.view.len());
                    let last = state.map_or(0, |state| state.last);
                    if last > asked as Seq {
                        return self.fail(format!(
                            "host {host} recovered writes up to {last} of volume {volume}, asked \
                             for were {asked}"
                        ));
                    }
                    let slot = self.slot(host, volume);
                    let view = slot.journal.as_ref().map(|journal| &journal.view);
                    let id = view.and_then(|view| view.get(last.checked_sub(1)? as usize));
                    if id.copied().is_some_and(|id| self.ops.is_torn(id)) {
                        return self.fail(format!(
                            "host {host} recovered a part of a write of volume {volume}, up to \
                             {last}"
                        ));
                    }
                    self.coverage.journals_recovered += u64::from(last > 0);
                    attaching.state = state;
                    attaching.recovered = Some(recovered);
                }
                Err(error) => {
                    note!(self, "h{host} v{volume} cannot recover: {error}");
                    let slot = self.slot(host, volume);
                    if !slot.journal.as_ref().is_some_and(|journal| journal.disk.damaged) {
                        return self.fail(format!(
                            "host {host} cannot recover the journal of volume {volume}, which \
                             nobody damaged: {error}"
                        ));
                    }
                    // The operator does what the message says.
                    slot.journal = None;
                    slot.table.bereft = true;
                    self.coverage.journals_damaged += 1;
                }
            }
        }
        self.slot(host, volume).state = State::Attaching(Box::new(attaching));
        self.reconnect(host, volume);
    }

    /// The process no longer does anything about a volume; the disk keeps what it has.
    pub(super) fn stop_slot(&mut self, host: usize, volume: usize) {
        let (epoch, now) = (self.slot(host, volume).epoch, self.now);
        let branch =
            self.branches.get(&(volume, epoch)).map(|branch| (branch.log.clone(), branch.flushed));
        let slot = self.slot(host, volume);
        if let (State::Running(_), Some((log, flushed)), Some(journal)) =
            (&slot.state, branch, &mut slot.journal)
        {
            journal.view = log;
            journal.flushed = flushed;
        }
        let status = slot.machine().and_then(|machine| machine.status(now).cache);
        let slot = self.slot(host, volume);
        slot.generation += 1;
        slot.cache.stop();
        slot.table.stop();
        slot.asked.clear();
        slot.state = State::Down;
        slot.timer = None;
        slot.connecting = false;
        slot.disk_operations = UnderWay::default();
        slot.latched = false;
        slot.stopping = false;
        slot.fenced = false;
        slot.epoch = 0;
        slot.up_since = None;
        slot.ahead = [0; 3];
        slot.recent.clear();
        slot.client.reset();
        if let Some(status) = status {
            self.coverage.cache_hits += status.counters.hit_bytes;
            self.coverage.cache_written +=
                status.counters.written_bytes - status.counters.index_bytes;
            self.coverage.cache_evictions += status.counters.evictions;
            self.coverage.cache_damaged += status.counters.damaged_blocks;
            self.coverage.cache_pinned += status.pinned_valid_bytes;
        }
        let slot = self.slot(host, volume);
        if let Some(number) = slot.session.take() {
            self.cut(number);
            if let Some((session, _)) = self.sessions.get_mut(&number) {
                session.host_open = false;
            }
        }
    }

    /// A host process dies, with or without its page cache.
    pub(super) fn crash_host(&mut self, host: usize, power: bool) {
        note!(self, "h{host} {}", if power { "loses power" } else { "dies" });
        self.hosts[host].up = false;
        self.hosts[host].incarnation += 1;
        for volume in 0..self.volumes.len() {
            let slot = self.slot(host, volume);
            let under_way = std::mem::take(&mut slot.disk_operations);
            let mut rng = slot.disk_rng.clone();
            slot.disk_rng.draw();
            let mut torn = false;
            if let Some(journal) = &mut slot.journal {
                under_way.cut_short(&mut journal.disk, &mut rng);
                torn = power && journal.disk.cut_power(&mut rng);
            }
            self.coverage.torn_writes += u64::from(torn);
            self.crash_cache(host, volume, power);
            self.crash_table(host, volume, power);
            self.stop_slot(host, volume);
        }
        let incarnation = self.hosts[host].incarnation;
        let delay = if self.finishing { MS } else { self.chaos_rng.spread(5 * MS, 1500 * MS) };
        self.after(delay, Event::StartHost(host, incarnation));
    }

    /// Asks a host to stop.
    pub(super) fn stop_host(&mut self, host: usize) {
        if !self.hosts[host].up {
            return;
        }
        note!(self, "h{host} is told to stop");
        for volume in 0..self.volumes.len() {
            if matches!(self.slot(host, volume).state, State::Running(_)) {
                self.shut_down_slot(host, volume);
            } else {
                self.stop_slot(host, volume);
            }
        }
        let incarnation = self.hosts[host].incarnation;
        self.after(2000 * MS, Event::HostDeadline(host, incarnation));
        self.host_may_exit(host);
    }

    pub(super) fn shut_down_slot(&mut self, host: usize, volume: usize) {
        let now = self.now;
        let slot = self.slot(host, volume);
        if std::mem::replace(&mut slot.stopping, true) {
            return;
        }
        if let Some(machine) = slot.machine() {
            machine.handle_shutdown(now);
        }
        self.pump_host(host, volume);
    }

    fn host_may_exit(&mut self, host: usize) {
        let stopping = self.hosts[host].slots.iter().any(|slot| slot.stopping);
        let done = self.hosts[host].slots.iter().all(|slot| match &slot.state {
            State::Running(machine) => slot.stopping && machine.is_drained() && slot.detached,
            _ => true,
        });
        if self.hosts[host].up && stopping && done && !self.finishing {
            note!(self, "h{host} has stopped in order");
            self.coverage.host_shutdowns += 1;
            self.crash_host(host, false);
        }
    }

    /// Kills a host that does not finish stopping.
    pub(super) fn host_deadline(&mut self, host: usize) {
        if !self.finishing {
            self.crash_host(host, false);
        }
    }

    // Sessions.

    /// Makes a new session some time soon.
    pub(super) fn reconnect(&mut self, host: usize, volume: usize) {
        let at = self.at(host, volume);
        let delay = self.link_rng.spread(100_000, if self.finishing { 5 * MS } else { 300 * MS });
        let slot = self.slot(host, volume);
        if !std::mem::replace(&mut slot.connecting, true) {
            self.after(delay, Event::Connect(at));
        }
    }

    pub(super) fn connect(&mut self, host: usize, volume: usize) {
        let now = self.now;
        let wander = self.link_rng.percent(self.plan.wander);
        let slot = self.slot(host, volume);
        slot.connecting = false;
        if slot.session.is_some() || matches!(slot.state, State::Down) {
            return;
        }
        let other = 1 - slot.store;
        if wander && self.stores[other].up {
            self.slot(host, volume).store = other;
            self.coverage.store_switches += 1;
        }
        let store = self.slot(host, volume).store;
        if !self.stores[store].up || self.stores[store].stopping {
            let slot = self.slot(host, volume);
            slot.store = other;
            return self.reconnect(host, volume);
        }
        let number = self.number();
        let quality = self.plan.quality;
        let rng = self.link_rng.fork(number);
        let incarnation = self.stores[store].incarnation;
        let session = Session::new((host, volume), (store, incarnation), quality, rng);
        let told = Told { host: Some(self.hosts[host].id), ..Told::default() };
        self.sessions.insert(number, (session, told));
        note!(self, "h{host} v{volume} session {number} to s{store}");
        let slot = self.slot(host, volume);
        slot.session = Some(number);
        match &mut slot.state {
            State::Running(machine) => {
                machine.handle_link_up(now);
                self.pump_host(host, volume);
            }
            State::Attaching(_) => self.ask_to_attach(host, volume),
            State::Refused(_) => {
                let at = self.at(host, volume);
                self.after(MS, Event::Operator(at));
            }
            State::Down => {}
        }
    }

    fn ask_to_attach(&mut self, host: usize, volume: usize) {
        let request = self.number();
        let (name, id) = (self.volumes[volume].name.clone(), self.hosts[host].id);
        let at = self.at(host, volume);
        let slot = self.slot(host, volume);
        let take_over = slot.take_over;
        let State::Attaching(attaching) = &mut slot.state else { return };
        (attaching.request, attaching.granted) = (request, None);
        let journal = attaching.state;
        let message = ToStore::Attach { request, name, host: id, journal, take_over };
        self.send_up(host, volume, Lane::Control, &message.into());
        self.after(8000 * MS, Event::AttachTimeout(at, request));
    }

    pub(super) fn attach_timeout(&mut self, host: usize, volume: usize, request: u64) {
        let slot = self.slot(host, volume);
        if let State::Attaching(attaching) = &slot.state
            && attaching.request == request
            && let Some(number) = slot.session
        {
            self.cut(number);
        }
    }

    pub(super) fn host_notices(&mut self, number: u64) {
        let now = self.now;
        let Some((session, _)) = self.sessions.get_mut(&number) else { return };
        let (host, volume, done) = (session.host, session.volume, !session.store_open);
        let open = std::mem::take(&mut session.host_open);
        if done {
            self.sessions.remove(&number);
        }
        let slot = self.slot(host, volume);
        if !open || slot.session != Some(number) {
            return;
        }
        slot.session = None;
        note!(self, "h{host} v{volume} notices the end of session {number}");
        if let Some(machine) = self.slot(host, volume).machine() {
            machine.handle_link_down(now);
            self.pump_host(host, volume);
        }
        self.reconnect(host, volume);
    }

    /// Sends a frame to the store, if there is a session.
    pub(super) fn send_up(
        &mut self,
        host: usize,
        volume: usize,
        lane: Lane,
        frame: &Frame<ToStore>,
    ) {
        let bytes = match encode(frame) {
            Ok(bytes) => bytes,
            Err(error) => return self.fail(format!("a host's frame cannot be encoded: {error}")),
        };
        let now = self.now;
        let Some(number) = self.slot(host, volume).session else { return };
        let Some((session, told)) = self.sessions.get_mut(&number) else { return };
        match &frame.message {
            ToStore::Announce { entries, replace, .. } => {
                if *replace {
                    told.announced.clear();
                }
                told.announced.extend(entries.iter().copied());
            }
            ToStore::Resume { .. } => *told = Told::default(),
            ToStore::Batch { last, .. } => told.shipped = told.shipped.max(*last),
            _ => {}
        }
        if let ToStore::Read { request, range, .. } | ToStore::EarlyRead { request, range, .. } =
            &frame.message
            && self.plan.liar
        {
            self.hosts[host].slots[volume].asked.insert(*request, *range);
        }
        if let ToStore::EarlyRead { .. } = &frame.message {
            self.coverage.reads_behind += 1;
        }
        if lane == Lane::Read {
            self.ask_by_datagram(number, frame.clone());
        } else if let Some(due) = session.send(now, Direction::Up, lane, bytes) {
            self.schedule(due, Event::Deliver(number, Direction::Up, lane));
        }
    }

    pub(super) fn deliver_down(&mut self, number: u64, lane: Lane) {
        let Some((session, _)) = self.sessions.get_mut(&number) else { return };
        let Some(bytes) = session.pipe(Direction::Down, lane).receive() else { return };
        match Frame::<ToHost>::whole(bytes) {
            Ok(frame) => self.take_down(number, frame),
            Err(error) => self.fail(format!("a store's frame cannot be decoded: {error}")),
        }
    }

    pub(super) fn take_down(&mut self, number: u64, frame: Frame<ToHost>) {
        let now = self.now;
        let Some((session, _)) = self.sessions.get(&number) else { return };
        let (host, volume, open) = (session.host, session.volume, session.host_open);
        if !open || self.slot(host, volume).session != Some(number) {
            return;
        }
        let frame = match &frame.message {
            ToHost::Data { request, .. } => {
                let range = self.slot(host, volume).asked.remove(request);
                self.perhaps_lie((host, volume), range, frame)
            }
            ToHost::Changed { .. } => self.perhaps_deny_changes((host, volume), frame),
            _ => frame,
        };
        match &mut self.slot(host, volume).state {
            State::Running(machine) => {
                let early = !machine.status(now).link_up
                    && matches!(frame.message, ToHost::Data { result: Ok(_), .. });
                machine.handle_message(now, frame.clone());
                self.coverage.reads_before_attached += u64::from(early);
                if let ToHost::Attached { result: Ok(_), .. } = &frame.message {
                    self.coverage.resumes += 1;
                }
                self.pump_host(host, volume);
            }
            State::Attaching(_) if matches!(frame.message, ToHost::Changed { .. }) => {
                self.judged(host, volume, &frame.message);
            }
            State::Attaching(attaching) => {
                if let ToHost::Attached { request, result } = frame.message
                    && request == attaching.request
                {
                    match result {
                        Ok(attached) if self.has_versions(volume) => {
                            self.judge(host, volume, attached, None);
                        }
                        Ok(attached) => self.attached(host, volume, attached, None),
                        Err(error) => self.refused(host, volume, error),
                    }
                }
            }
            State::Refused(_) => {
                if let ToHost::Volume { result, .. } = frame.message {
                    note!(self, "h{host} v{volume} operator is told {result:?}");
                    if !matches!(result, Ok(VolumeReply::Lost { .. })) {
                        self.stop_slot(host, volume);
                        self.want(host, volume);
                    }
                }
            }
            State::Down => {}
        }
    }

    /// Takes everything a host's volume has to say.
    pub(super) fn pump_host(&mut self, host: usize, volume: usize) {
        loop {
            let Some(machine) = self.slot(host, volume).machine() else { return };
            // Take the events first: one of them may report taken numbers.
            if let Some(event) = machine.poll_event() {
                self.host_event(host, volume, &event);
            } else if let Some((number, result)) = machine.poll_reply() {
                self.answered(host, volume, number, result);
            } else if let Some(operation) = machine.poll_disk() {
                self.begin_disk(host, volume, operation);
            } else if let Some(operation) = machine.poll_cache() {
                self.begin_cache(host, volume, operation);
            } else if let Some(operation) = machine.poll_versions() {
                self.begin_versions(host, volume, operation);
            } else if let Some((lane, frame)) = machine.poll_message() {
                note!(
                    self,
                    "h{host} v{volume} {lane:?} -> {:?} +{}",
                    frame.message,
                    frame.payload.len()
                );
                self.send_up(host, volume, lane, &frame);
            } else {
                break;
            }
            if self.violation.is_some() {
                return;
            }
        }
        self.arm_host(host, volume);
        let now = self.now;
        let slot = &mut self.hosts[host].slots[volume];
        let State::Running(machine) = &slot.state else { return };
        let status = machine.status(now);
        let ahead = status.readahead;
        let totals = [
            ahead.detected.used,
            status.counters.readahead_wait_bytes,
            ahead.detected.wasted + ahead.traces.wasted + ahead.hints.wasted,
        ];
        let counters = [
            &mut self.coverage.read_ahead,
            &mut self.coverage.read_while_coming,
            &mut self.coverage.read_ahead_wasted,
        ];
        for ((counter, new), old) in counters.into_iter().zip(totals).zip(slot.ahead) {
            // A new machine begins again.
            *counter += new.saturating_sub(old);
        }
        slot.ahead = totals;
        slot.up_since = match status.link_up {
            true => slot.up_since.or(Some(now)),
            false => None,
        };
        if self.slot(host, volume).stopping {
            self.host_may_exit(host);
        }
    }

    fn arm_host(&mut self, host: usize, volume: usize) {
        let at = self.at(host, volume);
        let slot = self.slot(host, volume);
        let State::Running(machine) = &slot.state else { return };
        if let Some(due) = machine.poll_timeout()
            && slot.timer.is_none_or(|timer| due < timer)
        {
            slot.timer = Some(due);
            self.schedule(due, Event::HostTimer(at));
        }
    }

    pub(super) fn host_timer(&mut self, host: usize, volume: usize) {
        let now = self.now;
        let slot = self.slot(host, volume);
        slot.timer = None;
        if let Some(machine) = slot.machine()
            && machine.poll_timeout().is_some_and(|due| due <= now)
        {
            machine.handle_timeout(now);
        }
        self.pump_host(host, volume);
    }

    fn host_event(&mut self, host: usize, volume: usize, event: &host::Event) {
        note!(self, "h{host} v{volume} event {event:?}");
        let truth_epoch = self.volumes[volume].truth.epoch;
        let slot = self.slot(host, volume);
        let damaged = slot.journal.as_ref().is_some_and(|journal| journal.disk.damaged);
        match event {
            host::Event::Fenced { epoch } => {
                slot.fenced = true;
                if truth_epoch <= slot.epoch {
                    let own = slot.epoch;
                    return self.fail(format!(
                        "host {host} in epoch {own} is told to be fenced by epoch {epoch}, the log \
                         is in {truth_epoch}"
                    ));
                }
                self.coverage.fences += 1;
                let at = self.at(host, volume);
                self.slot(host, volume).wanted = false;
                // The clients get their errors, then the process lets go of the volume.
                self.after(5 * MS, Event::LetGo(at));
            }
            host::Event::JournalFailed { continues, .. } => {
                slot.latched = true;
                slot.table.bereft = true;
                self.coverage.latches += 1;
                if !continues {
                    // The operator replaces the disk's cable and starts the process again.
                    let at = self.at(host, volume);
                    let delay = self.chaos_rng.spread(5 * MS, 500 * MS);
                    self.after(delay, Event::LetGo(at));
                }
            }
            host::Event::CacheFailed { .. } => self.coverage.cache_failures += 1,
            host::Event::CacheReady { found_bytes, dropped_bytes, dropped_all } => {
                let mut begun = self.volumes[volume].truth.history.iter();
                // Nobody knows which ranges the deleted segments changed.
                let told_nothing = begun.any(|begun| begun.host.0 == 0)
                    || !self.volumes[volume].truth.deleted.is_empty();
                self.coverage.caches_dropped += u64::from(*dropped_all);
                if *dropped_all && !told_nothing {
                    return self.fail(format!("host {host} is told nothing about its cache"));
                }
                self.coverage.cache_kept += u64::from(dropped_bytes < found_bytes);
                self.coverage.cache_dropped_some +=
                    u64::from(*dropped_bytes > 0 && dropped_bytes < found_bytes);
            }
            host::Event::Detached => slot.detached = true,
            host::Event::WrittenBack { range, first, last } => {
                let zero = self.written_back(host, volume, *range, (*first, *last));
                self.coverage.written_back += 1;
                self.coverage.written_back_data += u64::from(!zero);
            }
            host::Event::Rewritten { range, first, last } => {
                self.written_back(host, volume, *range, (*first, *last));
                self.coverage.rewritten += 1;
            }
            host::Event::EncryptedAnew { failed_bytes: 0, .. } => {
                self.coverage.encrypted_anew += 1;
            }
            host::Event::Resized { .. } => self.coverage.resizes_told += 1,
            host::Event::Warmed { bytes, .. } => self.coverage.cache_warmed += bytes,
            host::Event::TraceReplayed { followed: true } => self.coverage.traces_followed += 1,
            host::Event::JournalDamaged { .. } if !damaged => {
                self.fail(format!("host {host} found damage that nobody did: {event:?}"));
            }
            host::Event::StoreOutdated { .. }
            | host::Event::StoreDamaged { .. }
            | host::Event::StorePlain { .. }
                if self.plan.liar && self.has_versions(volume) =>
            {
                self.coverage.lies_found += 1;
            }
            host::Event::StoreOutdated { .. } | host::Event::VersionsFailed { .. } => {
                self.fail(format!("host {host} found a lie that nobody told: {event:?}"));
            }
            host::Event::StoreDamaged { .. } | host::Event::StorePlain { .. } => {
                self.fail(format!("host {host} was told of damage that nobody did: {event:?}"));
            }
            host::Event::StoreLostWrites { .. } => {
                self.fail(format!("the store went back: {event:?}"));
            }
            _ => {}
        }
    }

    /// The process gives up a volume that it can do nothing more for; perhaps it tries again.
    pub(super) fn let_go(&mut self, host: usize, volume: usize) {
        let fenced = self.slot(host, volume).fenced;
        self.stop_slot(host, volume);
        if !fenced || self.finishing || self.chaos_rng.percent(30) {
            self.want(host, volume);
        }
    }

    /// Looks at a slot from time to time.
    pub(super) fn audit_slot(&mut self, host: usize, volume: usize) -> Result<(), String> {
        let committed = self.volumes[volume].truth.log.len() as Seq;
        let now = self.now;
        self.check_told(host, volume, 60 * MS)?;
        let slot = self.slot(host, volume);
        while slot.recent.front().is_some_and(|(_, seq, _)| *seq <= committed) {
            slot.recent.pop_front();
        }
        let epoch: Epoch = slot.epoch;
        let State::Running(machine) = &slot.state else { return Ok(()) };
        let status = machine.status(now);
        if status.epoch != epoch {
            return Err(format!("host {host} serves epoch {epoch} and says {}", status.epoch));
        }
        self.coverage.write_waits += u64::from(status.waiting_writes > 0);
        Ok(())
    }
}

impl World {
    /// Longest data record of a volume's host, in sectors, as `docs/formats.md` gives it: half of a
    /// frame. A frame is at most half of a journal file or a quarter of the memory for writes.
    pub(super) fn record_sectors(&self, volume: usize) -> u64 {
        const PAGE: u64 = 4096;
        let plan = self.plan.volumes[volume];
        let area = match plan.acknowledge {
            Acknowledge::WriteThrough => u64::MAX,
            Acknowledge::Host | Acknowledge::Store => plan.file_bytes - PAGE,
        };
        let memory = (plan.memory_bytes / 4 / PAGE * PAGE).max(4 * PAGE);
        let frame = (area / 2 / PAGE * PAGE).min(4 << 20).min(memory);
        (frame / 2 / 512 / 8 * 8).clamp(8, longhaul_core::record::MAX_RECORD_SECTORS)
    }
}
