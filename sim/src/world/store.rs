//! Store processes: two over one object store. Either can have any volume open, and neither knows
//! what the other does.

use super::announced::covered;
use super::observe::Asked;
use super::{Event, MS, World};
use crate::link::{Direction, EncodeHead, encode};
use crate::note;
use longhaul_core::block::{Epoch, Seq, Time};
use longhaul_core::store::gc::usage::Policy;
use longhaul_core::store::map::Limits;
use longhaul_core::store::map::pages::SharedPages;
use longhaul_core::store::{self, ObjectResult, SessionId, catalog};
use longhaul_core::wire::link::{
    Announced, AttachError, Frame, Lane, StageError, ToHost, ToStore, VolumeOperation,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Memory for the maps of a process.
const PAGES_BYTES: u64 = 24 << 10;

/// A store process.
pub struct Process {
    pub(super) up: bool,
    pub(super) incarnation: u64,
    pub(super) stopping: bool,
    pub(super) open: BTreeMap<usize, Open>,
    /// Pages of its volumes' maps: room for few, so that they come and go.
    pages: SharedPages,
    pub(super) repeater: Option<super::replica::Repeater>,
}

/// A volume that a store process has open, and its knowledge by the model.
pub struct Open {
    pub(super) machine: store::Volume,
    /// Tells it from others of the same process, before and after.
    number: u64,
    /// It finishes what is under way, then the volume is another store's; what comes for it
    /// meanwhile.
    leaving: Option<Vec<(u64, Lane, Frame<ToStore>)>>,
    /// It was told to stop. A volume that opens while its process stops was not.
    stopping: bool,
    timer: Option<Time>,
    /// The session that holds the epoch here, and the epoch.
    holder: Option<(u64, Epoch)>,
    /// Announcements delivered here by the holder and not settled since.
    pub(super) known: Vec<Announced>,
    /// The epoch of its announcement.
    pub(super) known_epoch: Epoch,
    /// The knowledge at the first put of each segment, by key.
    known_at_put: BTreeMap<String, Vec<Announced>>,
    /// The host that was connected then.
    pub(super) holder_at_put: BTreeMap<String, usize>,
    /// Lanes whose input waits.
    held: BTreeSet<(u64, Lane)>,
    /// Attach requests: (session, request) to epoch and last number of the journal, 0 without one,
    /// and whether to take over.
    attaching: BTreeMap<(u64, u64), (Epoch, Seq, bool)>,
    /// Attach and resume requests: (session, request) to the acknowledged size at that time.
    pub(super) due: BTreeMap<(u64, u64), u64>,
    /// Questions about the state of the log: (session, request).
    pub(super) asked: BTreeMap<(u64, u64), Asked>,
}

impl Process {
    /// A process that has just started.
    pub(super) fn new() -> Process {
        let (open, pages) = (BTreeMap::new(), SharedPages::new(PAGES_BYTES));
        Process { up: true, incarnation: 0, stopping: false, open, pages, repeater: None }
    }
}

impl World {
    pub(super) fn store_config(&self) -> store::Config {
        store::Config {
            segment_bytes: self.plan.segments.0,
            queue_bytes: 192 << 10,
            in_flight: store::InFlight { segments: self.plan.segments.1, bytes: 256 << 10 },
            flush_every_segments: 6,
            // Some ten entries a page and three pages a fragment: all levels occur.
            map: Limits {
                page_bytes: 120,
                fragment_bytes: 360,
                runs: 2,
                level_bytes: 1500,
                factor: 3,
            },
            pages: SharedPages::new(PAGES_BYTES),
            delete_delay: Duration::from_millis(300),
            garbage_collection: Some(Policy {
                least_bytes: 0,
                high_percent: 130,
                low_percent: 120,
                moved_bytes_max: 256 << 10,
                ..Policy::default()
            }),
            sweep_bytes: 40,
            announce_entries_max: 24,
            announce_in_segment_max: 12,
            read_operations_max: 4,
            read_bytes_max: 64 << 10,
            reads_waiting_max: 16,
            announce_persist: Duration::from_millis(100),
            holder_grace: Duration::from_millis(100),
            ..store::Config::default()
        }
    }

    fn volume_of(&self, message: &ToStore) -> Option<usize> {
        let by_name = |name: &String| self.volumes.iter().position(|v| v.name == *name);
        match message {
            ToStore::Hello { .. } | ToStore::Store { .. } | ToStore::Tenant { .. } => None,
            ToStore::Attach { name, .. } => by_name(name),
            ToStore::Volume { operation, .. } => match operation {
                VolumeOperation::Show { name }
                | VolumeOperation::Delete { name }
                | VolumeOperation::Lost { name, .. }
                | VolumeOperation::AcceptLoss { name }
                | VolumeOperation::Stored { name }
                | VolumeOperation::Resize { name, .. }
                | VolumeOperation::Shrink { name, .. }
                | VolumeOperation::Snapshot { name, .. }
                | VolumeOperation::Create { name, .. } => by_name(name),
                VolumeOperation::GetAttribute { volume, .. }
                | VolumeOperation::SetAttribute { volume, .. } => {
                    self.volumes.iter().position(|v| v.id == *volume)
                }
                VolumeOperation::List | VolumeOperation::Trash(_) => None,
            },
            ToStore::Resume { volume, .. }
            | ToStore::Detach { volume, .. }
            | ToStore::Batch { volume, .. }
            | ToStore::Announce { volume, .. }
            | ToStore::Read { volume, .. }
            | ToStore::EarlyRead { volume, .. }
            | ToStore::Status { volume, .. }
            | ToStore::Stage { volume, .. }
            | ToStore::Changed { volume, .. }
            | ToStore::Barrier { volume, .. } => self.volumes.iter().position(|v| v.id == *volume),
        }
    }

    /// A frame is due at the store end of a session.
    pub(super) fn deliver_up(&mut self, number: u64, lane: Lane) {
        let Some((session, _)) = self.sessions.get_mut(&number) else { return };
        let (store, volume) = (session.store, session.volume);
        let process = &mut self.stores[store];
        let there =
            process.up && process.incarnation == session.store_incarnation && session.store_open;
        let pipe = session.pipe(Direction::Up, lane);
        if !there {
            pipe.receive();
            return;
        }
        if let Some(open) = process.open.get_mut(&volume)
            && matches!(lane, Lane::Drain | Lane::Read | Lane::ReadAhead)
            && (pipe.held > 0 || !open.machine.wants_input())
        {
            pipe.held += 1;
            open.held.insert((number, lane));
            self.coverage.input_held += 1;
            return;
        }
        let Some(bytes) = pipe.receive() else { return };
        match Frame::<ToStore>::whole(bytes) {
            Ok(frame) => self.take_up(number, store, lane, frame),
            Err(error) => self.fail(format!("a host's frame cannot be decoded: {error}")),
        }
    }

    pub(super) fn take_up(&mut self, number: u64, store: usize, lane: Lane, frame: Frame<ToStore>) {
        note!(self, "s{store} session {number} {lane:?} <- {}", brief_up(&frame));
        let Some(volume) = self.volume_of(&frame.message) else {
            return self.fail(format!("a frame for no volume: {:?}", frame.message));
        };
        self.hand_over_frame(number, store, volume, lane, frame);
    }

    /// A store gets a message about a volume; it opens the volume if it has not.
    pub(super) fn hand_over_frame(
        &mut self,
        number: u64,
        store: usize,
        volume: usize,
        lane: Lane,
        frame: Frame<ToStore>,
    ) {
        if let Some(open) = self.stores[store].open.get_mut(&volume)
            && let Some(waiting) = &mut open.leaving
        {
            waiting.push((number, lane, frame));
            return;
        }
        if !self.stores[store].open.contains_key(&volume) {
            self.open_volume(store, volume);
        }
        self.asked(number, store, volume, &frame.message);
        let epoch = self.volumes[volume].truth.epoch;
        let resized = self.volumes[volume].truth.resized;
        let Some(open) = self.stores[store].open.get_mut(&volume) else { return };
        if let ToStore::Attach { request, .. } | ToStore::Resume { request, .. } = &frame.message {
            open.due.insert((number, *request), resized);
        }
        match &frame.message {
            ToStore::Attach { request, journal, take_over, .. } => {
                let (epoch, last) = journal.map_or((0, 0), |journal| (journal.epoch, journal.last));
                open.attaching.insert((number, *request), (epoch, last, *take_over));
            }
            ToStore::Announce { epoch: said, replace, entries, .. } => {
                self.coverage.announcements += 1;
                // One that stops takes nothing any more: the host tells another store when it
                // resumes.
                if open.holder == Some((number, *said)) && *said == epoch && !open.stopping {
                    if *replace {
                        open.known.clear();
                    }
                    open.known.extend(entries.iter().copied());
                    open.known_epoch = epoch;
                }
            }
            _ => {}
        }
        self.meet_and_tell(number, store, volume, lane, frame);
        self.pump_store(store, volume);
    }

    fn open_volume(&mut self, store: usize, volume: usize) {
        let spec = self.volumes[volume].spec.clone();
        let incarnation = self.rng.wide();
        let pages = self.stores[store].pages.clone();
        let config = store::Config { pages, ..self.store_config() };
        let mut machine = store::Volume::open(self.now, spec, incarnation, config);
        if self.replica.is_some() {
            machine.handle_replica(self.now, store::ReplicaDurability::Behind);
        }
        note!(self, "s{store} opens v{volume}");
        let number = self.number();
        let open = Open {
            machine,
            number,
            leaving: None,
            stopping: false,
            timer: None,
            holder: None,
            known: Vec::new(),
            known_epoch: 0,
            known_at_put: BTreeMap::new(),
            holder_at_put: BTreeMap::new(),
            held: BTreeSet::new(),
            attaching: BTreeMap::new(),
            due: BTreeMap::new(),
            asked: BTreeMap::new(),
        };
        self.stores[store].open.insert(volume, open);
        self.visit_replica(store, volume);
    }

    /// Takes everything a store's volume has to say.
    pub(super) fn pump_store(&mut self, store: usize, volume: usize) {
        loop {
            let Some(open) = self.stores[store].open.get_mut(&volume) else { return };
            if let Some(event) = open.machine.poll_event() {
                note!(self, "s{store} v{volume} event {event:?}");
                match event {
                    store::Event::BatchRefused { ref reason, .. }
                        if reason.contains("beyond the volume") =>
                    {
                        return self
                            .fail(format!("the size that a host was told is refused: {reason}"));
                    }
                    store::Event::BatchRefused { session, .. } => {
                        self.coverage.batches_refused += 1;
                        // It may have stopped listening until the host resumes.
                        if open.holder.is_some_and(|(holder, _)| holder == session.0) {
                            open.holder = None;
                        }
                    }
                    store::Event::Attached { .. }
                    | store::Event::LossAccepted { .. }
                    | store::Event::RolledBack { .. } => {
                        open.known.clear();
                    }
                    store::Event::Opened { segments, .. } => {
                        // The log may have settled since its read.
                        let truth = &self.volumes[volume].truth;
                        if segments == truth.segments {
                            open.known.clone_from(&truth.announced);
                            open.known_epoch = truth.epoch;
                        } else {
                            open.known.clear();
                        }
                    }
                    store::Event::Flushed { .. } => self.coverage.map_flushes += 1,
                    store::Event::Merged { bytes } => {
                        self.coverage.map_merges += u64::from(bytes > 0);
                    }
                    store::Event::Compacted => self.coverage.map_compacted += 1,
                    store::Event::LeftBehind { .. } => {
                        self.coverage.left_behind += 1;
                        open.holder = None;
                    }
                    store::Event::Superseded { .. } => self.coverage.superseded += 1,
                    store::Event::DamageTold { ranges, .. } => {
                        self.coverage.damage_told += ranges as u64;
                    }
                    store::Event::Adopted { again, .. } => {
                        self.coverage.roots_adopted += 1;
                        self.coverage.roots_behind += again;
                    }
                    store::Event::Rival { .. } => {
                        self.coverage.rivals += 1;
                        let truth = &self.volumes[volume].truth;
                        open.known.clone_from(&truth.announced);
                        open.known_epoch = truth.epoch;
                    }
                    _ => {}
                }
                if let store::Event::DataDamaged { .. }
                | store::Event::RootDamaged { .. }
                | store::Event::NotCollected { .. }
                | store::Event::Failed(_) = event
                {
                    return self.fail(format!("the store found damage that nobody did: {event:?}"));
                }
            } else if let Some((id, operation)) = open.machine.poll_object() {
                if let store::ObjectOperation::Put { key, .. } = &operation
                    && !open.known_at_put.contains_key(key)
                {
                    open.known_at_put.insert(key.clone(), open.known.clone());
                    let holder = open.machine.session().and_then(|s| self.sessions.get(&s.0));
                    open.holder_at_put.extend(holder.map(|(s, _)| (key.clone(), s.host)));
                }
                self.begin_object(store, volume, id, operation);
            } else if let Some((session, lane, frame)) = open.machine.poll_message() {
                self.send_down(store, volume, session.0, lane, &frame);
            } else {
                break;
            }
            if self.violation.is_some() {
                return;
            }
        }
        self.release_held(store, volume);
        self.arm_store(store, volume);
        self.leave_volume(store, volume);
    }

    /// The process of a store and the engine of a volume in it, 0 if it has none.
    pub(super) fn engine_now(&self, store: usize, volume: usize) -> (u64, u64) {
        let process = &self.stores[store];
        (process.incarnation, process.open.get(&volume).map_or(0, |open| open.number))
    }

    /// A volume of a store goes to another store. Either it goes in order, because the other one
    /// has asked for it. Or it goes without a word, because this one is out of reach.
    pub(super) fn hand_over(&mut self, store: usize) {
        let now = self.now;
        let process = &self.stores[store];
        if !process.up || process.stopping || process.open.is_empty() {
            return;
        }
        let volumes: Vec<usize> = process.open.keys().copied().collect();
        let volume = volumes[self.chaos_rng.index(volumes.len())];
        let in_order = self.chaos_rng.percent(60);
        let Some(open) = self.stores[store].open.get_mut(&volume) else { return };
        if open.leaving.is_some() {
            return;
        }
        if in_order {
            note!(self, "s{store} is asked for v{volume}");
            self.coverage.handed_over += 1;
            self.coverage.handed_over_attached += u64::from(open.machine.session().is_some());
            open.leaving = Some(Vec::new());
            open.machine.handle_shutdown(now);
            self.pump_store(store, volume);
        } else {
            note!(self, "s{store} has lost v{volume}");
            self.coverage.engines_dropped += 1;
            self.coverage.engines_dropped_busy += u64::from(!open.machine.is_idle());
            self.part_with(store, volume);
        }
    }

    /// Parts with a volume once nothing is under way, and tells those who use it to resume.
    fn leave_volume(&mut self, store: usize, volume: usize) {
        let leaves = |open: &Open| open.leaving.is_some() && open.machine.is_idle();
        if !self.stores[store].open.get(&volume).is_some_and(leaves) {
            return;
        }
        note!(self, "s{store} lets v{volume} go");
        self.part_with(store, volume);
    }

    /// The engine of a volume goes. Its clients have to come again.
    fn part_with(&mut self, store: usize, volume: usize) {
        let now = self.now;
        let Some(open) = self.stores[store].open.get_mut(&volume) else { return };
        let waiting = open.leaving.take();
        open.machine.handle_taken(now);
        while let Some(open) = self.stores[store].open.get_mut(&volume)
            && let Some((session, lane, frame)) = open.machine.poll_message()
        {
            self.send_down(store, volume, session.0, lane, &frame);
        }
        let held = self.stores[store].open.remove(&volume).map(|open| open.held);
        self.leave_replica(store, volume);
        // It holds up no input any more.
        self.deliver_held(held.unwrap_or_default());
        for (number, lane, frame) in waiting.unwrap_or_default() {
            self.hand_over_frame(number, store, volume, lane, frame);
        }
    }

    /// Delivers the waiting input, as soon as the store takes input again.
    fn release_held(&mut self, store: usize, volume: usize) {
        let Some(open) = self.stores[store].open.get_mut(&volume) else { return };
        if open.held.is_empty() || !open.machine.wants_input() {
            return;
        }
        let held = std::mem::take(&mut open.held);
        self.deliver_held(held);
    }

    fn deliver_held(&mut self, held: BTreeSet<(u64, Lane)>) {
        for (number, lane) in held {
            let Some((session, _)) = self.sessions.get_mut(&number) else { continue };
            let pipe = session.pipe(Direction::Up, lane);
            let due = std::mem::take(&mut pipe.held);
            for _ in 0..due {
                self.after(0, Event::Deliver(number, Direction::Up, lane));
            }
        }
    }

    fn arm_store(&mut self, store: usize, volume: usize) {
        let incarnation = self.stores[store].incarnation;
        let Some(open) = self.stores[store].open.get_mut(&volume) else { return };
        let due = open.machine.poll_timeout();
        if let Some(due) = due
            && open.timer.is_none_or(|timer| due < timer)
        {
            open.timer = Some(due);
            self.schedule(due, Event::StoreTimer(store, incarnation, volume));
        }
    }

    pub(super) fn store_timer(&mut self, store: usize, volume: usize) {
        let now = self.now;
        let Some(open) = self.stores[store].open.get_mut(&volume) else { return };
        open.timer = None;
        if open.machine.poll_timeout().is_some_and(|due| due <= now) {
            open.machine.handle_timeout(now);
        }
        self.pump_store(store, volume);
    }

    pub(super) fn object_done(
        &mut self,
        store: usize,
        volume: usize,
        id: u64,
        result: ObjectResult,
    ) {
        let now = self.now;
        let Some(open) = self.stores[store].open.get_mut(&volume) else { return };
        open.machine.handle_object(now, id, result);
        self.pump_store(store, volume);
        self.store_may_exit(store);
    }

    fn send_down(
        &mut self,
        store: usize,
        volume: usize,
        number: u64,
        lane: Lane,
        frame: &Frame<ToHost>,
    ) {
        note!(self, "s{store} session {number} {lane:?} -> {}", brief_down(frame));
        let checked = self
            .check_down(store, volume, number, frame)
            .and_then(|()| self.check_answer(store, volume, number, frame));
        self.require(checked);
        let streamed;
        let frame = if lane == Lane::Read {
            let Some(rest) = self.answer_by_datagram(number, frame.clone()) else { return };
            streamed = rest;
            &streamed
        } else {
            frame
        };
        let bytes = match encode(frame) {
            Ok(bytes) => bytes,
            Err(error) => return self.fail(format!("a store's frame cannot be encoded: {error}")),
        };
        let now = self.now;
        let Some((session, _)) = self.sessions.get_mut(&number) else { return };
        if let Some(due) = session.send(now, Direction::Down, lane, bytes) {
            self.schedule(due, Event::Deliver(number, Direction::Down, lane));
        }
    }

    /// Checks that a store's messages about commits, attachments and losses are true.
    fn check_down(
        &mut self,
        store: usize,
        volume: usize,
        number: u64,
        frame: &Frame<ToHost>,
    ) -> Result<(), String> {
        if let ToHost::Barrier { .. } = &frame.message {
            self.barrier_sent(store, volume, number);
        }
        if self.forgers.contains(&number) {
            return self.check_forger(frame);
        }
        self.check_owner(store, volume, number, frame)?;
        let truth = &self.volumes[volume].truth;
        let committed = truth.log.len() as Seq;
        let Some(open) = self.stores[store].open.get_mut(&volume) else { return Ok(()) };
        match &frame.message {
            ToHost::Committed { epoch, seq, .. } => {
                let branch = self.branches.get(&(volume, *epoch));
                let held = *seq <= committed
                    && branch.is_none_or(|branch| {
                        branch.log.get(..*seq as usize) == truth.log.get(..*seq as usize)
                    });
                if !held {
                    return Err(format!(
                        "store {store} says that epoch {epoch} is committed up to {seq}, but the \
                         objects hold {committed}"
                    ));
                }
                if let Some(replica) = self.replica.as_mut().filter(|replica| replica.plan.sync) {
                    let promised = replica.promised.entry(volume).or_default();
                    *promised = (*seq).max(*promised);
                }
            }
            ToHost::Attached { request, result: Ok(attached) } => {
                if let Some(replica) = self.replica.as_mut().filter(|replica| replica.plan.sync) {
                    let promised = replica.promised.entry(volume).or_default();
                    *promised = attached.committed.max(*promised);
                }
                if attached.committed > committed {
                    return Err(format!(
                        "store {store} attaches at {}, but the objects hold {committed}",
                        attached.committed
                    ));
                }
                if truth.epoch < attached.epoch {
                    return Err(format!(
                        "store {store} grants epoch {}, but the objects say {}",
                        attached.epoch, truth.epoch
                    ));
                }
                if let Some((journal, last, take_over)) = open.attaching.remove(&(number, *request))
                {
                    // The journal of the epoch before is the authority on its announcements. The
                    // knowledge at the time of the store's decision counts.
                    let begun = truth.history.iter().find(|begun| begun.epoch == attached.epoch);
                    let key =
                        begun.map(|begun| catalog::segment_key(attached.volume, begun.segment));
                    let host = self.sessions.get(&number).map(|(session, _)| session.host);
                    let before = key.as_ref().and_then(|key| open.holder_at_put.get(key)).copied();
                    if before.is_some() && before != host {
                        self.coverage.volumes_taken += 1;
                        if !take_over {
                            return Err(format!("h{before:?} is connected, and is taken from"));
                        }
                    }
                    let known = key.and_then(|key| open.known_at_put.get(&key)).cloned();
                    let known = known.unwrap_or_default();
                    let authority = journal > 0 && journal + 1 == attached.epoch;
                    let missing = |entry: &&Announced| entry.seq > committed.max(last);
                    if !authority && let Some(lost) = known.iter().find(missing) {
                        return Err(format!(
                            "store {store} grants epoch {} to a host without the announced write \
                             {} to {}",
                            attached.epoch, lost.seq, lost.range
                        ));
                    }
                }
                let due = open.due.remove(&(number, *request)).unwrap_or_default();
                if attached.sectors < due || attached.sectors > truth.sectors {
                    return Err(format!(
                        "store {store} attaches {} sectors, acknowledged are {due}, there are {}",
                        attached.sectors, truth.sectors
                    ));
                }
                open.holder = Some((number, attached.epoch));
            }
            // A store that is out of touch may not know of a shrink since.
            ToHost::Resized { sectors, .. }
                if truth.sizes.values().all(|size| *size < *sectors) =>
            {
                return Err(format!(
                    "store {store} says that there are {sectors} sectors, the objects say {}",
                    truth.sectors
                ));
            }
            ToHost::Attached { result: Err(AttachError::LossPending { .. }), .. } => {
                // The store must have asked somebody for a write that it does not hold.
                let held = open.machine.info().map_or(0, |info| info.committed);
                let asked = self
                    .branches
                    .iter()
                    .any(|((v, _), branch)| *v == volume && branch.log.len() as Seq > held);
                if !asked {
                    return Err(format!(
                        "store {store} says that a loss is pending, and nothing is lost"
                    ));
                }
            }
            ToHost::Staged { result: Err(StageError::Exists), .. } => {
                self.coverage.staged_exists += 1;
            }
            ToHost::Fenced { .. } if open.holder.is_some_and(|(holder, _)| holder == number) => {
                open.holder = None;
            }
            _ => {}
        }
        Ok(())
    }

    /// The knowledge of a store at the put of a segment.
    pub(super) fn known_at_put(
        &self,
        store: usize,
        volume: usize,
        key: &str,
    ) -> Option<Vec<Announced>> {
        self.stores[store].open.get(&volume)?.known_at_put.get(key).cloned()
    }

    /// Announcements that a segment of this store has to carry: those after `committed` and up to
    /// `owed`.
    pub(super) fn check_announced(
        &self,
        store: usize,
        volume: usize,
        key: &str,
        said: &[Announced],
        committed: Seq,
        owed: Seq,
    ) -> Result<(), String> {
        let open = self.stores[store].open.get(&volume);
        let Some(known) = open.and_then(|open| open.known_at_put.get(key)) else { return Ok(()) };
        let known: Vec<Announced> =
            known.iter().filter(|entry| entry.seq <= owed).copied().collect();
        covered(&known, said, committed)
    }

    /// The store end of a session learns that the session is over.
    pub(super) fn store_notices(&mut self, number: u64) {
        let now = self.now;
        let Some((session, _)) = self.sessions.get_mut(&number) else { return };
        if !std::mem::take(&mut session.store_open) {
            return;
        }
        let (store, volume, incarnation) =
            (session.store, session.volume, session.store_incarnation);
        let done = !session.host_open;
        if done {
            self.sessions.remove(&number);
        }
        let process = &mut self.stores[store];
        if !process.up || process.incarnation != incarnation {
            return;
        }
        if let Some(open) = process.open.get_mut(&volume) {
            note!(self, "s{store} session {number} closed");
            if open.holder.is_some_and(|(holder, _)| holder == number) {
                open.holder = None;
            }
            // Nobody waits for what it asked while the volume was being let go.
            if let Some(waiting) = &mut open.leaving {
                waiting.retain(|(other, ..)| *other != number);
            }
            open.machine.handle_session_closed(now, SessionId(number));
            self.pump_store(store, volume);
        }
    }

    /// A store process dies; what it had under way may still reach the object store.
    pub(super) fn crash_store(&mut self, store: usize) {
        if !self.stores[store].up {
            return;
        }
        note!(self, "s{store} dies");
        let process = &mut self.stores[store];
        process.up = false;
        process.stopping = false;
        process.incarnation += 1;
        process.open.clear();
        process.repeater = None;
        if process.pages.lock().tables() != 0 {
            self.fail("volumes that are closed still count as memory".to_owned());
        }
        self.restart_copies(store);
        let process = &self.stores[store];
        let incarnation = process.incarnation;
        let numbers: Vec<u64> = self
            .sessions
            .iter()
            .filter(|(_, (session, _))| session.store == store && session.store_open)
            .map(|(number, _)| *number)
            .collect();
        for number in numbers {
            if let Some((session, _)) = self.sessions.get_mut(&number) {
                session.store_open = false;
            }
            self.cut(number);
        }
        let delay = if self.finishing { MS } else { self.chaos_rng.spread(5 * MS, 2000 * MS) };
        self.after(delay, Event::StartStore(store, incarnation));
    }

    pub(super) fn start_store(&mut self, store: usize) {
        note!(self, "s{store} starts");
        self.stores[store].up = true;
        self.start_repeating(store);
    }

    /// Asks a store process to stop.
    pub(super) fn stop_store(&mut self, store: usize) {
        let now = self.now;
        if !self.stores[store].up || self.stores[store].stopping {
            return;
        }
        note!(self, "s{store} is told to stop");
        self.stores[store].stopping = true;
        let volumes: Vec<usize> = self.stores[store].open.keys().copied().collect();
        for volume in volumes {
            if let Some(open) = self.stores[store].open.get_mut(&volume) {
                open.machine.handle_shutdown(now);
                open.stopping = true;
            }
            self.pump_store(store, volume);
        }
        let incarnation = self.stores[store].incarnation;
        self.after(3000 * MS, Event::StoreDeadline(store, incarnation));
        self.store_may_exit(store);
    }

    fn store_may_exit(&mut self, store: usize) {
        let process = &self.stores[store];
        if process.up
            && process.stopping
            && process.open.values().all(|open| open.machine.is_idle())
        {
            self.coverage.store_shutdowns += 1;
            self.crash_store(store);
        }
    }

    pub(super) fn store_deadline(&mut self, store: usize) {
        if self.stores[store].stopping {
            self.crash_store(store);
        }
    }
}

fn brief_up(frame: &Frame<ToStore>) -> String {
    match &frame.message {
        ToStore::Announce { epoch, replace, entries, .. } => {
            format!("Announce epoch {epoch} replace {replace} {} entries", entries.len())
        }
        message => format!("{message:?} +{}", frame.payload.len()),
    }
}

fn brief_down(frame: &Frame<ToHost>) -> String {
    match &frame.message {
        ToHost::Data { request, result: Ok(pieces), .. } => {
            format!("Data {request} {} pieces +{}", pieces.len(), frame.payload.len())
        }
        message => format!("{message:?}"),
    }
}
