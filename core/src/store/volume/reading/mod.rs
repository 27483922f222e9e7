//! Reads, and questions about the mapped ranges: the machine checks, looks up, fetches and answers
//! them. They do not queue behind changes of the log.
//!
//! Staging is a read, too: the engine puts the committed content of a range as an object of another
//! volume, or of this one. Nothing refers to the object until the host writes the answer to that
//! volume.

mod damage;
mod early;
mod repair;

use super::super::event::Event;
use super::super::log::LogState;
use super::super::map::Place;
use super::super::moves::{Lost, Maps, Object, Placed, Want};
use super::super::object::Copies;
use super::super::read_request::{ReadPurpose, ReadRequest, StageTarget};
use super::super::reads::{Damage, Finished, Next, Reads};
use super::super::session::{SHELL_SESSION, SessionId};
use super::super::{Places, catalog, staged};
use super::context::Context;
use super::facts::Facts;
use super::outputs::Outputs;
use super::ownership::Ownership;
use super::purpose::{ObjectPurpose, StagedPut};
use super::reply::ReplyAddress;
use crate::block::{
    BlockState, Epoch, MAX_STAGE_SECTORS, MAX_VOLUME_SECTORS, Range, STAGED_BIT, StatusRun,
};
use crate::record::RecordError;
use crate::wire::link::{
    self, Lane, MAX_DAMAGED_RANGES, MAX_READ_SECTORS, MAX_STATUS_RUNS, ReadError, RequestId,
    StageError, ToHost,
};
use bytes::Bytes;
use damage::DamageReports;
use early::{EarlyRead, EarlyReads};
use repair::Repairs;
use std::collections::VecDeque;

/// The present permissions to read.
#[derive(Clone, Copy)]
pub(super) struct Access<'a> {
    pub owner: &'a Ownership,
    /// The volume is open, and takes new work.
    pub serving: bool,
}

/// All reads of a volume, from the message to the answer.
pub(super) struct ReadPath {
    reads: Reads,
    early: EarlyReads,
    repairs: Repairs,
    damages: DamageReports,
    /// Answers for the store service.
    places: VecDeque<(RequestId, Result<Places, ReadError>)>,
}

/// Whether that session may read that range in that epoch. The range has at most `longest` sectors.
pub(super) fn check(
    (facts, log): (&Facts, &LogState),
    access: Access<'_>,
    session: SessionId,
    epoch: Epoch,
    range: Range,
    longest: u64,
) -> Result<(), ReadError> {
    if !access.serving {
        return Err(ReadError::NotAttached);
    }
    if range.is_empty() || range.sectors > longest || !range.fits(log.sectors) {
        return Err(ReadError::Invalid);
    }
    let current = log.epoch();
    if epoch == 0 {
        Ok(())
    } else if facts.is_readonly() {
        Err(ReadError::NotAttached)
    } else if epoch < current {
        Err(ReadError::Fenced(current))
    } else if epoch > current || !access.owner.is_held_by(session) {
        Err(ReadError::NotAttached)
    } else {
        Ok(())
    }
}

fn send(cx: &mut Context<'_>, read: &ReadRequest, message: ToHost) {
    cx.out.send(read.session, read.lane, message);
}

impl ReadPath {
    pub fn new(facts: &Facts) -> ReadPath {
        let config = facts.config();
        let (operations, bytes) = (config.read_operations_max, config.read_bytes_max);
        ReadPath {
            reads: Reads::new(operations, bytes, facts.spec().clone(), facts.id()),
            early: EarlyReads::default(),
            repairs: Repairs::default(),
            damages: DamageReports::default(),
            places: VecDeque::new(),
        }
    }

    pub fn is_idle(&self) -> bool {
        self.reads.is_idle() && self.repairs.is_empty() && self.early.is_empty()
    }

    /// Reads that wait.
    pub fn waiting(&self) -> usize {
        self.reads.waiting()
    }

    /// Nobody waits for the answers of that session.
    pub fn forget(&mut self, session: SessionId) {
        self.reads.forget(session);
        self.repairs.forget(session);
        self.early.forget(session);
    }

    pub fn poll_places(&mut self) -> Option<(RequestId, Result<Places, ReadError>)> {
        self.places.pop_front()
    }

    /// Takes a read.
    pub fn ask(
        &mut self,
        cx: &mut Context<'_>,
        access: Access<'_>,
        read: ReadRequest,
        longest: u64,
    ) {
        let ReadRequest { session, epoch, range, .. } = read;
        match check((cx.facts, cx.log), access, session, epoch, range, longest) {
            Ok(()) => self.reads.push(read),
            Err(error) => self.fail(cx, access, read, error),
        }
    }

    /// A host wants to know what kind its data is; the store service, where it lies.
    pub fn ask_status(
        &mut self,
        cx: &mut Context<'_>,
        access: Access<'_>,
        to: ReplyAddress,
        epoch: Epoch,
        range: Range,
    ) {
        let ReplyAddress { session, lane, request } = to;
        let places = session == SHELL_SESSION;
        let purpose = if places { ReadPurpose::Places } else { ReadPurpose::Status };
        let read = ReadRequest { session, lane, request, epoch, range, purpose };
        self.ask(cx, access, read, u64::MAX);
    }

    /// Reads data for a staged object.
    pub fn ask_stage(
        &mut self,
        cx: &mut Context<'_>,
        access: Access<'_>,
        read: ReadRequest,
        target: StageTarget,
    ) {
        let to = Range::new(target.lba, read.range.sectors);
        // An observer has no business with copies.
        let attached = read.epoch > 0 || cx.facts.is_readonly();
        let possible = attached && target.object & STAGED_BIT != 0 && to.fits(MAX_VOLUME_SECTORS);
        match check(
            (cx.facts, cx.log),
            access,
            read.session,
            read.epoch,
            read.range,
            MAX_STAGE_SECTORS,
        ) {
            Ok(()) if !possible => self.fail(cx, access, read, ReadError::Invalid),
            Ok(()) => self.reads.push(read),
            Err(error) => self.fail(cx, access, read, error),
        }
    }

    /// Takes an early read, whose host knows everything up to `committed` to be committed.
    pub fn ask_early(
        &mut self,
        cx: &mut Context<'_>,
        access: Access<'_>,
        (read, committed): EarlyRead,
    ) {
        let (session, range) = (read.session, read.range);
        let current = cx.log.epoch();
        let holds = read.epoch == current && access.owner.is_held_by(session);
        let sound = !range.is_empty() && range.sectors <= MAX_READ_SECTORS;
        if !access.serving || holds || !sound {
            self.ask(cx, access, read, MAX_READ_SECTORS);
        } else if read.epoch < current
            || access.owner.key_of_other(cx.log, session, read.epoch).is_some()
        {
            self.fail(cx, access, read, ReadError::Fenced(current));
        } else if read.epoch == current
            && committed <= cx.log.committed
            // It may have grown at another store.
            && range.fits(cx.log.sectors)
        {
            self.reads.push(read);
        } else if !self.early.hold((read, committed)) {
            self.fail(cx, access, read, ReadError::NotAttached);
        }
    }

    /// Takes the decision on the Resume or Attach of a session, which decides its early reads too.
    pub fn resume_decided(&mut self, cx: &mut Context<'_>, access: Access<'_>, session: SessionId) {
        for early in self.early.decided(session) {
            self.ask_early(cx, access, early);
        }
    }

    /// The engine serves nothing any more: refuses the early reads.
    pub fn refuse_early(&mut self, cx: &mut Context<'_>, access: Access<'_>) {
        for early in self.early.take() {
            self.ask_early(cx, access, early);
        }
    }

    /// Refuses all reads that have not begun; with `abandon` all that have, too.
    pub fn refuse(&mut self, cx: &mut Context<'_>, access: Access<'_>, abandon: bool) {
        let waiting = self.repairs.take_all();
        let reads = if abandon { self.reads.abandon() } else { self.reads.stop() };
        for read in reads.into_iter().chain(waiting) {
            self.fail(cx, access, read, ReadError::NotAttached);
        }
    }

    /// The map is not worth anything any more: refuses all reads but those that wait for repairs.
    pub fn abandon(&mut self, cx: &mut Context<'_>, access: Access<'_>) {
        for read in self.reads.abandon() {
            self.fail(cx, access, read, ReadError::NotAttached);
        }
    }

    fn fail(
        &mut self,
        cx: &mut Context<'_>,
        access: Access<'_>,
        read: ReadRequest,
        error: ReadError,
    ) {
        let (request, volume) = (read.request, cx.facts.id());
        let message = match read.purpose {
            ReadPurpose::Data => ToHost::Data { request, volume, result: Err(error) },
            ReadPurpose::Status => ToHost::Status { request, volume, result: Err(error) },
            ReadPurpose::Places => return self.places.push_back((request, Err(error))),
            // Leaves the range out.
            ReadPurpose::Damaged(_) => return self.look_up_damage(cx, access),
            ReadPurpose::Stage(_) => {
                ToHost::Staged { request, volume, result: Err(StageError::Read(error)) }
            }
        };
        send(cx, &read, message);
    }

    fn status_found(
        &mut self,
        cx: &mut Context<'_>,
        read: ReadRequest,
        parts: Vec<(Range, Option<Place>)>,
    ) {
        if let ReadPurpose::Places = read.purpose {
            return self.places.push_back((read.request, Ok(parts)));
        }
        let mut runs: Vec<StatusRun> = Vec::new();
        for (part, place) in parts {
            let state = match place {
                None => BlockState::Hole,
                Some(place) if place.is_zero() => BlockState::Zero,
                Some(_) => BlockState::Data,
            };
            match runs.last_mut() {
                Some(last) if last.state == state => last.sectors += part.sectors,
                _ => {
                    if runs.len() == MAX_STATUS_RUNS {
                        break;
                    }
                    runs.push(StatusRun { sectors: part.sectors, state });
                }
            }
        }
        let (request, volume) = (read.request, cx.facts.id());
        send(cx, &read, ToHost::Status { request, volume, result: Ok(runs) });
    }

    /// Refuses reads of epochs that are over, before lookups go on with a map of the epoch that is
    /// now.
    pub fn fence(&mut self, cx: &mut Context<'_>, access: Access<'_>) {
        let epoch = cx.log.epoch();
        for read in self.reads.fence(epoch) {
            self.fail(cx, access, read, ReadError::Fenced(epoch));
        }
    }

    /// Goes on with whatever can go on.
    pub fn advance(&mut self, cx: &mut Context<'_>, access: Access<'_>, maps: Maps<'_>) {
        self.fence(cx, access);
        loop {
            let next = self.reads.poll(maps, &mut cx.facts.pages());
            match next {
                None => return,
                Some(Next::Fetch(read, index, fetch)) => {
                    let purpose = ObjectPurpose::Fetch { read, index, known: fetch.known };
                    let key = cx.facts.object_key(fetch.object);
                    cx.out.get(purpose, key, Some(fetch.range), fetch.copies);
                }
                Some(Next::Page(want, copies, known)) => read_page(cx.out, want, copies, known),
                Some(Next::Finished(finished)) => self.finished(cx, access, finished),
                Some(Next::Looked(read, parts)) => self.status_found(cx, read, parts),
                Some(Next::Placed(read, parts)) => {
                    self.damage_looked_up(cx, access, &read, &parts);
                }
                Some(Next::Lost(read, Lost { key, range, reason })) => {
                    self.damaged(cx, access, read, key, range, reason.to_string());
                }
            }
        }
    }

    /// Takes the result of a fetch; `None` if the object is gone for good.
    pub fn handle_fetch(
        &mut self,
        cx: &mut Context<'_>,
        access: Access<'_>,
        (read, index): (u64, usize),
        data: Option<Bytes>,
    ) {
        if let Some(finished) = self.reads.handle(read, index, data) {
            self.finished(cx, access, finished);
        }
    }

    /// Takes the result of reading a part of a map; `None` if the object is gone.
    pub fn handle_page(&mut self, facts: &Facts, want: &Want, data: Option<Bytes>, maps: Maps<'_>) {
        self.reads.handle_page(want, data, maps, &mut facts.pages());
    }

    /// Whether reads wait for a search for a newer root.
    pub fn is_stranded(&self) -> bool {
        self.reads.is_stranded()
    }

    /// A search for newer roots begins.
    pub fn look_for_roots(&mut self) {
        self.reads.look_for_roots();
    }

    /// The map is the newest there is, and another one than before or not.
    pub fn roots_seen(&mut self, facts: &Facts, newer: bool, maps: Maps<'_>) {
        self.reads.roots_seen(newer, maps, &mut facts.pages());
    }

    fn finished(&mut self, cx: &mut Context<'_>, access: Access<'_>, finished: Finished) {
        let Finished { request: read, result, bytes } = finished;
        let parts = match result {
            Ok(parts) => parts,
            Err(Damage { object, range, reason }) => {
                let key = cx.facts.object_key(object);
                return self.damaged(cx, access, read, key, range, reason);
            }
        };
        let ReadPurpose::Stage(target) = read.purpose else {
            let frame = link::encode_data(read.request, cx.facts.id(), &parts);
            return cx.out.send_frame(read.session, read.lane, frame);
        };
        let StageTarget { into, lba, object } = target;
        let ReadRequest { session, lane, request, epoch, range, .. } = read;
        let key = catalog::staged_key(into, object);
        match staged::encode((cx.facts.id(), into), epoch, object, lba, &parts) {
            Ok(staged::Staged { runs, data }) => {
                let to = ReplyAddress { session, lane, request };
                let put = StagedPut { to, runs, bytes };
                if data.is_empty() {
                    self.staged(cx, put, Ok(()));
                } else {
                    cx.out.put(ObjectPurpose::PutStaged(put), key, data);
                }
            }
            Err(RecordError::NoKey { .. }) => {
                self.reads.release(bytes);
                let (volume, result) = (cx.facts.id(), Err(StageError::Unsupported));
                cx.out.send(session, lane, ToHost::Staged { request, volume, result });
            }
            // It was good when it came: this memory is not.
            Err(error) => {
                self.reads.release(bytes);
                let reason = error.to_string();
                cx.out.event(Event::DataDamaged { key, range, reason });
                self.fail(cx, access, read, ReadError::Medium(range));
            }
        }
    }

    /// The staged object exists, by this put or by another; or does not.
    pub fn staged(&mut self, cx: &mut Context<'_>, put: StagedPut, result: Result<(), StageError>) {
        let StagedPut { to: ReplyAddress { session, lane, request }, runs, bytes } = put;
        self.reads.release(bytes);
        let (volume, result) = (cx.facts.id(), result.map(|()| runs));
        cx.out.send(session, lane, ToHost::Staged { request, volume, result });
    }

    /// A read found an object damaged or gone.
    fn damaged(
        &mut self,
        cx: &mut Context<'_>,
        access: Access<'_>,
        read: ReadRequest,
        key: String,
        range: Range,
        reason: String,
    ) {
        cx.out.event(Event::DataDamaged { key: key.clone(), range, reason });
        let may_wait = access.owner.has_replica() && !cx.facts.is_stopping();
        let asked =
            matches!(read.purpose, ReadPurpose::Data | ReadPurpose::Status | ReadPurpose::Places);
        if !(may_wait && asked && self.repairs.hold(&key, read, range)) {
            self.fail(cx, access, read, ReadError::Medium(range));
        }
    }

    /// Reports the fate of an object that an event called damaged or missing.
    pub fn handle_repaired(
        &mut self,
        cx: &mut Context<'_>,
        access: Access<'_>,
        key: &str,
        repaired: bool,
    ) {
        for (read, range) in self.repairs.decided(key, repaired) {
            if repaired {
                self.ask(cx, access, read, u64::MAX);
            } else {
                self.fail(cx, access, read, ReadError::Medium(range));
            }
        }
    }

    /// An object is damaged, with its present or former data of these ranges.
    pub fn handle_damaged(
        &mut self,
        cx: &mut Context<'_>,
        access: Access<'_>,
        key: &str,
        ranges: &[Range],
    ) {
        let whole = Range::new(0, cx.log.sectors);
        let ranges = ranges.iter().filter_map(|range| range.intersect(whole));
        match data_object(cx.facts, key) {
            Some(object) => self.damages.suspect(object, ranges),
            // Of another volume, or in which nothing can lie that this one reads.
            None if catalog::parse_data_key(key).is_some()
                || !key.starts_with(&catalog::volume_prefix(cx.facts.spec().id)) => {}
            // A part of the map.
            None => self.damages.lost(ranges),
        }
        if !self.damages.is_looking() {
            self.look_up_damage(cx, access);
        }
    }

    /// Looks up the next range, or tells the host the found ranges.
    fn look_up_damage(&mut self, cx: &mut Context<'_>, access: Access<'_>) {
        loop {
            while let Some((object, range)) = self.damages.next() {
                let (session, lane) = (SHELL_SESSION, Lane::ReadAhead);
                // The map may have changed since, or a read of it may be in progress.
                if check((cx.facts, cx.log), access, session, 0, range, u64::MAX).is_ok() {
                    let (request, epoch, purpose) = (0, 0, ReadPurpose::Damaged(object));
                    let read = ReadRequest { session, lane, request, epoch, range, purpose };
                    return self.reads.push(read);
                }
            }
            self.tell_damage(cx, access);
            if !self.damages.is_left() {
                return;
            }
        }
    }

    fn tell_damage(&mut self, cx: &mut Context<'_>, access: Access<'_>) {
        let found = self.damages.take();
        let Some(session) = access.owner.session().filter(|_| !found.is_empty()) else { return };
        let (volume, epoch) = (cx.facts.spec().id, cx.log.epoch());
        let all: Vec<Range> = found.iter_from(0).map(|(range, _)| range).collect();
        let bytes = all.iter().map(|range| range.bytes()).sum();
        cx.out.event(Event::DamageTold { session, ranges: all.len(), bytes });
        for ranges in all.chunks(MAX_DAMAGED_RANGES) {
            let ranges = ranges.to_vec();
            cx.out.send(session, Lane::Control, ToHost::Damaged { volume, epoch, ranges });
        }
    }

    fn damage_looked_up(
        &mut self,
        cx: &mut Context<'_>,
        access: Access<'_>,
        read: &ReadRequest,
        parts: &[Placed],
    ) {
        let ReadPurpose::Damaged(object) = read.purpose else { return };
        self.damages.looked_up(object, parts);
        self.look_up_damage(cx, access);
    }
}

fn read_page(out: &mut Outputs, want: Want, copies: Copies, known: bool) {
    let (key, range) = match &want {
        Want::Page(get) => (catalog::fragment_key(get.fragment.id), get.bytes.clone()),
        Want::Bundle(bundle) => (catalog::bundle_key(bundle.id), bundle.head_range()),
    };
    out.get(ObjectPurpose::ReadPage(want, known), key, Some(range), copies);
}

/// The object of a key, if it is one that this volume may read data from.
fn data_object(facts: &Facts, key: &str) -> Option<Object> {
    if let Some((_, number)) = catalog::parse_data_key(key) {
        return (facts.data_key(number) == key).then_some(Object::Own(number));
    }
    let parents = facts.spec().parents.iter().map(|parent| parent.volume);
    let mut volumes = std::iter::once(facts.spec().id).chain(parents);
    volumes.find_map(|volume| catalog::parse_bundle_key(volume, key)).map(Object::Bundle)
}
