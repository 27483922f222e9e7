//! Decides about changes of the log: batches and operations in order of arrival, announcements, and
//! the segments whose puts are in progress.
//!
//! Several puts of segments with batches may be in progress. Each builds on the one before, and
//! counts once all before it exist. Any other segment goes alone, and so does the first one of an
//! engine. Batches that arrive meanwhile form the next segment, and only much data goes ahead of an
//! answer. So a trickle of batches has as few segments as before.
//!
//! The machine decides which batches count, and the content of a segment. It does not know whether
//! the engine may write to the log. Its owner asks for the next change only while the engine has
//! read the log to its end.

use super::super::catalog;
use super::super::event::{Event, OpenError};
use super::super::log::LogState;
use super::super::segment::{self, HEADER_BYTES, Header, Piece, Segment, SegmentKind, Token};
use super::super::session::SessionId;
use super::context::Context;
use super::facts::Facts;
use super::outputs::Outputs;
use super::ownership::{AttachRequest, Ownership};
use super::purpose::ObjectPurpose;
use super::reply::ReplyAddress;
use super::snapshots::SnapshotRequest;
use crate::block::{Epoch, Seq, Time};
use crate::record;
use crate::wire::link::{Announced, HostId, Lane, MAX_ANNOUNCE_ENTRIES, MAX_BATCH_BYTES, ToHost};
use bytes::Bytes;
use std::collections::VecDeque;

/// The cost of a batch in the queue besides its records and its index; rounded up.
const BATCH_OVERHEAD: u64 = 256;

/// A verified batch.
pub(super) struct Batch {
    session: SessionId,
    epoch: Epoch,
    first: Seq,
    last: Seq,
    payload: Bytes,
    pieces: Vec<Piece>,
}

impl Batch {
    fn cost(&self) -> u64 {
        let index = self.pieces.len() * size_of::<Piece>();
        self.payload.len() as u64 + index as u64 + BATCH_OVERHEAD
    }
}

/// Something that changes the log, or has to wait its turn with what does.
pub(super) enum LogChange {
    Batch(Batch),
    Attach {
        to: ReplyAddress,
        request: AttachRequest,
    },
    Resume {
        to: ReplyAddress,
        epoch: Epoch,
        host: HostId,
    },
    Detach {
        to: ReplyAddress,
        epoch: Epoch,
    },
    AcceptLoss {
        to: ReplyAddress,
    },
    Grow {
        to: ReplyAddress,
        sectors: u64,
    },
    Shrink {
        to: ReplyAddress,
        sectors: u64,
    },
    Snapshot(SnapshotRequest),
    /// Changes nothing. It waits for its turn because announcements at another store count too.
    Lost {
        to: ReplyAddress,
        from_lba: u64,
    },
}

impl LogChange {
    fn is_batch(&self) -> bool {
        matches!(self, LogChange::Batch(_))
    }

    pub fn session(&self) -> SessionId {
        match self {
            LogChange::Batch(batch) => batch.session,
            LogChange::Attach { to, .. }
            | LogChange::Resume { to, .. }
            | LogChange::Detach { to, .. }
            | LogChange::AcceptLoss { to }
            | LogChange::Grow { to, .. }
            | LogChange::Shrink { to, .. }
            | LogChange::Snapshot(SnapshotRequest { to, .. })
            | LogChange::Lost { to, .. } => to.session,
        }
    }

    /// Whether it leaves the epoch to its host.
    pub fn keeps_epoch(&self) -> bool {
        match self {
            LogChange::Detach { .. } | LogChange::Resume { .. } | LogChange::Grow { .. } => true,
            LogChange::Snapshot(request) => !request.operation.begins_epoch(),
            _ => false,
        }
    }
}

/// The content of a segment besides batches.
pub(super) struct SegmentPlan {
    pub kind: SegmentKind,
    pub epoch: Epoch,
    pub host: Option<HostId>,
    pub last: Seq,
    pub footer: segment::Footer,
    pub records: Vec<Bytes>,
    /// The change that asked for it; `None` for batches and announcements.
    pub change: Option<LogChange>,
}

impl SegmentPlan {
    /// Plans a segment that stays in the epoch. It has the announced writes.
    pub fn in_epoch(
        facts: &Facts,
        log: &LogState,
        kind: SegmentKind,
        change: Option<LogChange>,
    ) -> SegmentPlan {
        let limit = facts.config().announce_in_segment_max;
        let last = log.committed;
        let (announced, rounded) = log.announced.snapshot(last, limit);
        let footer = segment::Footer { announced, rounded, ..segment::Footer::default() };
        let (epoch, host, records) = (log.epoch(), log.host(), Vec::new());
        SegmentPlan { kind, epoch, host, last, footer, records, change }
    }

    /// Plans a segment that begins an epoch without a host, and gives up the announced writes. A
    /// fully delivered journal holds nothing that would come back.
    pub fn ends_epoch(log: &LogState, kind: SegmentKind, change: LogChange) -> SegmentPlan {
        let last = log.committed;
        let footer = segment::Footer { base: last, ..segment::Footer::default() };
        let epoch = log.epoch() + 1;
        SegmentPlan {
            kind,
            epoch,
            host: None,
            last,
            footer,
            records: Vec::new(),
            change: Some(change),
        }
    }
}

/// The progress of a put.
enum PutProgress {
    UnderWay,
    /// The segment exists.
    Durable,
    /// A list of roots has to confirm that the segment is the next one of the log.
    Confirming,
    /// The segment of another engine is in its place.
    Taken,
    Damaged(OpenError),
}

/// A segment whose put is in progress.
pub(super) struct SegmentPut {
    segment: Segment,
    data: Vec<Bytes>,
    bytes: u64,
    progress: PutProgress,
    change: Option<LogChange>,
    /// The session that asked is gone.
    closed: bool,
    /// One read of the object in its place has failed.
    doubtful: bool,
}

impl SegmentPut {
    pub fn segment(&self) -> &Segment {
        &self.segment
    }

    /// The change that asked for it, and whether the session that asked is gone.
    pub fn into_change(self) -> (Option<LogChange>, bool) {
        (self.change, self.closed)
    }

    fn number(&self) -> u64 {
        self.segment.header.number
    }

    /// Whether nothing may go ahead beside it.
    fn is_alone(&self) -> bool {
        let Header { kind, token, .. } = self.segment.header;
        kind != SegmentKind::Data || token.begins()
    }

    /// The change that asked for it, if that still waits for an answer.
    fn asked(self) -> Option<LogChange> {
        self.change.filter(|_| !self.closed)
    }
}

/// The first segment that is not part of the log yet.
pub(super) enum PutFront {
    /// Its put, or a list of roots, is in progress. Or no put is.
    Waits,
    /// It exists.
    Durable,
    /// It exists. The engine has to confirm that it is the next one of the log.
    Confirm(u64),
    /// The segment of another store is in its place: that store's log is the log.
    Rival,
    Damaged(OpenError),
}

/// The waiting changes, and the puts in progress.
#[derive(Default)]
pub(super) struct Committer {
    queue: VecDeque<LogChange>,
    queue_bytes: u64,
    /// For the front of the queue, the engine has read the segments that another store wrote.
    probed: bool,
    /// In order of the log.
    puts: VecDeque<SegmentPut>,
    put_bytes: u64,
    /// The segment of the first put exists, and waits for the map that it rolls back to.
    exists: bool,
    /// The engine has to take the next number.
    fencing: bool,
    counter: u64,
    announce_unsaved: Option<Time>,
}

/// Verifies every byte of a batch; the one pass over its payload.
fn verify_batch(
    cx: &Context<'_>,
    epoch: Epoch,
    first: Seq,
    last: Seq,
    payload: &Bytes,
) -> Result<Vec<Piece>, String> {
    if first == 0 || last < first || last == Seq::MAX {
        return Err(format!("{first}..={last} are not numbers of a batch"));
    }
    if payload.len() > MAX_BATCH_BYTES {
        return Err(format!("{} bytes are more than a batch may have", payload.len()));
    }
    let mut pieces = Vec::new();
    let (mut at, mut seq) = (0, first);
    while at < payload.len() {
        let record = record::parse(cx.facts.spec().id, &payload.slice(at..))
            .map_err(|error| format!("record at byte {at}: {error}"))?;
        let header = record.header;
        if header.seq < seq || header.seq > last {
            return Err(format!("record at byte {at}: number {} is out of order", header.seq));
        }
        if header.epoch > epoch {
            return Err(format!("record at byte {at}: epoch {} is in the future", header.epoch));
        }
        if !header.range.fits(cx.log.sectors) {
            return Err(format!("record at byte {at}: {} is beyond the volume", header.range));
        }
        let offset = at as u32;
        let record::Header { kind, range, seq: number, staged, packed_bytes, .. } = header;
        pieces.push(Piece { kind, range, seq: number, offset, staged, packed_bytes });
        seq = header.seq;
        at += header.record_bytes();
    }
    // Nothing later in the batch can have overwritten its last write.
    if pieces.is_empty() || seq != last {
        return Err(format!("the record of number {last} is missing"));
    }
    Ok(pieces)
}

impl Committer {
    pub fn queue_bytes(&self) -> u64 {
        self.queue_bytes
    }

    /// The counter in the token of the last segment that the engine has built.
    pub fn counter(&self) -> u64 {
        self.counter
    }

    pub fn is_putting(&self) -> bool {
        !self.puts.is_empty()
    }

    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.puts.is_empty()
    }

    /// Since when announcements wait that no segment has carried.
    pub fn unsaved_since(&self) -> Option<Time> {
        self.announce_unsaved
    }

    /// That session waits for no answers; the engine still commits its batches.
    pub fn forget(&mut self, session: SessionId) {
        let leaves = |change: &LogChange| !change.is_batch() && change.session() == session;
        if self.queue.front().is_some_and(leaves) {
            // The engine read the log for the host that leaves. The result may be older than the
            // knowledge of the next host.
            self.probed = false;
        }
        self.queue.retain(|change| !leaves(change));
        for put in &mut self.puts {
            put.closed |= put.change.as_ref().is_some_and(|change| change.session() == session);
        }
    }

    /// The engine has to take the next number, so that another store does not continue the log.
    pub fn fence(&mut self) {
        self.fencing = true;
    }

    /// Queues a batch of a session, or refuses it.
    pub fn take_batch(
        &mut self,
        cx: &mut Context<'_>,
        owner: &mut Ownership,
        session: SessionId,
        epoch: Epoch,
        (first, last): (Seq, Seq),
        payload: Bytes,
    ) {
        let current = cx.log.epoch();
        let volume = cx.facts.spec().id;
        let holds = owner.is_held_by(session);
        if epoch < current && holds {
            // A straggler of an epoch that this very session has replaced.
            return;
        }
        if epoch < current {
            cx.out.send(session, Lane::Control, ToHost::Fenced { volume, epoch: current });
            return;
        }
        if !holds || epoch != current {
            let reason = "this connection has not resumed the epoch".into();
            return owner.refuse_batch(cx, session, epoch, reason);
        }
        if owner.is_refusing() {
            return;
        }
        match verify_batch(cx, epoch, first, last, &payload) {
            Ok(pieces) => {
                let batch = Batch { session, epoch, first, last, payload, pieces };
                self.queue_bytes += batch.cost();
                self.queue.push_back(LogChange::Batch(batch));
            }
            Err(reason) => owner.refuse_batch(cx, session, epoch, reason),
        }
    }

    /// Notes what the host of the current epoch has acknowledged.
    pub fn announce(
        &mut self,
        (facts, log, out): (&Facts, &mut LogState, &mut Outputs),
        session: SessionId,
        replace: bool,
        entries: &[Announced],
    ) {
        let mut ignored = entries.len().saturating_sub(MAX_ANNOUNCE_ENTRIES) as u64;
        let mut changed = replace && !log.announced.is_empty();
        if replace {
            log.announced.clear();
        }
        for entry in entries.iter().take(MAX_ANNOUNCE_ENTRIES) {
            if entry.range.is_empty() || !entry.range.fits(log.sectors) {
                ignored += 1;
            } else if entry.seq > log.committed {
                log.announced.insert(*entry);
                changed = true;
            }
        }
        if changed {
            self.announce_unsaved.get_or_insert(facts.now());
        }
        if ignored > 0 {
            out.event(Event::AnnounceIgnored { session, entries: ignored });
        }
    }

    /// Announces the writes of all batches that wait: their host has acknowledged them, whether it
    /// announced them or not.
    pub fn announce_queued(&self, log: &mut LogState, owner: &Ownership) {
        for change in &self.queue {
            if let LogChange::Batch(batch) = change
                && owner.is_held_by(batch.session)
                && batch.epoch == log.epoch()
            {
                for piece in &batch.pieces {
                    if piece.seq > log.committed {
                        log.announced.insert(Announced { range: piece.range, seq: piece.seq });
                    }
                }
            }
        }
    }

    pub fn push(&mut self, change: LogChange) {
        self.queue.push_back(change);
    }

    /// The next operation whose turn has come. The machine puts batches, announcements and a fence
    /// on the way. `begins`: another engine wrote the last segment of the log.
    pub fn next(
        &mut self,
        cx: &mut Context<'_>,
        owner: &mut Ownership,
        begins: bool,
    ) -> Option<LogChange> {
        loop {
            let has_turn = match self.queue.front() {
                Some(LogChange::Batch(_)) => self.may_put_batches(cx),
                _ => self.puts.is_empty(),
            };
            if !has_turn {
                return None;
            }
            match self.queue.pop_front() {
                None => {
                    self.put_announced(cx, begins);
                    return None;
                }
                Some(LogChange::Batch(batch)) => self.put_batches(cx, owner, begins, batch),
                Some(change) => return Some(change),
            }
        }
    }

    /// Whether a segment with batches may begin. It goes ahead of others if it is worth a put of
    /// its own.
    fn may_put_batches(&self, cx: &Context<'_>) -> bool {
        let Some(last) = self.puts.back() else { return true };
        let config = cx.facts.config();
        !last.is_alone()
            && self.puts.len() < config.in_flight.segments
            && self.queue_bytes >= config.segment_bytes / 2
            && self.put_bytes + config.segment_bytes <= config.in_flight.bytes
    }

    /// The last number that the log commits once all puts in progress have ended.
    fn committed_soon(&self, cx: &Context<'_>) -> Seq {
        self.puts.back().map_or(cx.log.committed, |put| put.segment.header.last)
    }

    /// Whether the engine has read the log for that operation. If not, the operation is the queue's
    /// front again.
    ///
    /// The segments of another store decide too, and must be in the answer, because a host drops
    /// the writes that the answer calls committed. A detach finds them when it puts its segment.
    pub fn probed(&mut self, change: LogChange) -> Option<LogChange> {
        if !self.probed && !matches!(change, LogChange::Detach { .. }) {
            self.probed = true;
            self.queue.push_front(change);
            return None;
        }
        self.probed = false;
        Some(change)
    }

    /// The engine reads the log from its beginning, for anything that waits.
    pub fn probe_anew(&mut self) {
        self.announce_unsaved = None;
        self.probed = !self.queue.is_empty();
    }

    fn put_announced(&mut self, cx: &mut Context<'_>, begins: bool) {
        let begun = cx.log.epoch() > 0;
        // A volume that nobody has ever attached has nothing to go on with.
        let fences = self.fencing && begun && !cx.facts.is_stopping();
        self.fencing &= begun;
        if fences {
            let plan = SegmentPlan::in_epoch(cx.facts, cx.log, SegmentKind::Announce, None);
            return self.put(cx, begins, plan);
        }
        let Some(since) = self.announce_unsaved else { return };
        let due = cx.facts.now() >= since.after(cx.facts.config().announce_persist);
        // In an epoch that has not begun, or with the log as it should be, there is nothing to
        // save.
        if (due || cx.facts.is_stopping()) && begun {
            let plan = SegmentPlan::in_epoch(cx.facts, cx.log, SegmentKind::Announce, None);
            self.put(cx, begins, plan);
        }
    }

    /// Puts a segment of this batch and as many of the following as fit.
    fn put_batches(
        &mut self,
        cx: &mut Context<'_>,
        owner: &mut Ownership,
        begins: bool,
        batch: Batch,
    ) {
        let mut gathered: Vec<Batch> = Vec::new();
        let committed = self.committed_soon(cx);
        let mut bytes = 0;
        let mut next = Some(batch);
        while let Some(batch) = next {
            self.queue_bytes = self.queue_bytes.saturating_sub(batch.cost());
            let expected = gathered.last().map_or(committed, |last| last.last) + 1;
            if is_next(cx, owner, &batch, expected) {
                bytes += batch.payload.len() as u64;
                gathered.push(batch);
            }
            next = match self.queue.front() {
                Some(LogChange::Batch(batch))
                    if gathered.is_empty()
                        || bytes + batch.payload.len() as u64
                            <= cx.facts.config().segment_bytes =>
                {
                    match self.queue.pop_front() {
                        Some(LogChange::Batch(batch)) => Some(batch),
                        _ => None,
                    }
                }
                _ => None,
            };
        }
        if !gathered.is_empty() {
            let plan = data_segment(cx, gathered);
            self.put(cx, begins, plan);
        }
    }

    /// Puts the next segment. `begins`: another engine wrote the one before it.
    pub fn put(&mut self, cx: &mut Context<'_>, begins: bool, plan: SegmentPlan) {
        let SegmentPlan { kind, epoch, host, last, footer, records, change } = plan;
        self.counter += 1;
        let counter = if begins { self.counter | segment::BEGINS } else { self.counter };
        let (before, previous, void_after) = match self.puts.back() {
            Some(SegmentPut { segment: Segment { header, header_crc, .. }, .. }) => {
                (header.number, *header_crc, header.last_void_after())
            }
            None => (cx.log.number, cx.log.header_crc, cx.log.void_after),
        };
        let number = segment::number_after(before, void_after);
        // The engine that wrote the segment before may have had others on their way.
        let others = begins && before > cx.facts.spec().begins_after();
        let header = Header {
            volume: cx.facts.spec().id,
            number,
            kind,
            epoch,
            host: host.unwrap_or(HostId(0)),
            token: Token { incarnation: cx.facts.incarnation(), counter },
            first: self.committed_soon(cx) + 1,
            last,
            records_bytes: 0,
            footer_bytes: 0,
            previous,
            void_after,
            voids: others,
            ahead: self.puts.len() as u8,
            sectors: match &change {
                Some(LogChange::Grow { sectors, .. } | LogChange::Shrink { sectors, .. }) => {
                    *sectors
                }
                _ => 0,
            },
        };
        let (segment, data) = segment::build(header, footer, records);
        self.announce_unsaved = None;
        let bytes = segment.header.tail().end;
        self.put_bytes += bytes;
        let put = SegmentPut {
            segment,
            data,
            bytes,
            progress: PutProgress::UnderWay,
            change,
            closed: false,
            doubtful: false,
        };
        issue_put(cx, &put);
        self.puts.push_back(put);
    }

    fn put_of(&mut self, number: u64) -> Option<&mut SegmentPut> {
        self.puts.iter_mut().find(|put| put.number() == number)
    }

    /// The segment of that number exists, and it is this engine's.
    pub fn handle_put(&mut self, number: u64) {
        if let Some(put) = self.put_of(number) {
            put.progress = PutProgress::Durable;
        }
    }

    /// The progress of the first put. The others count after it.
    pub fn front(&mut self) -> PutFront {
        let Some(put) = self.puts.front_mut() else { return PutFront::Waits };
        match &put.progress {
            PutProgress::UnderWay | PutProgress::Confirming => PutFront::Waits,
            PutProgress::Durable if put.segment.header.token.begins() => {
                put.progress = PutProgress::Confirming;
                PutFront::Confirm(put.number())
            }
            PutProgress::Durable => PutFront::Durable,
            PutProgress::Taken => PutFront::Rival,
            PutProgress::Damaged(error) => PutFront::Damaged(error.clone()),
        }
    }

    /// Whether a list of roots has to confirm the segment of that number.
    pub fn is_confirming(&self, number: u64) -> bool {
        let confirms = |put: &SegmentPut| {
            put.number() == number && matches!(put.progress, PutProgress::Confirming)
        };
        self.puts.front().is_some_and(confirms)
    }

    /// The segment of the first put exists, and is the next one of the log: the caller applies it,
    /// or hands it back.
    pub fn take_confirmed(&mut self) -> Option<SegmentPut> {
        self.exists = false;
        let put = self.puts.pop_front()?;
        self.put_bytes -= put.bytes;
        Some(put)
    }

    /// The segment exists, and waits for a map.
    pub fn wait_for_map(&mut self, put: SegmentPut) {
        self.exists = true;
        self.put_bytes += put.bytes;
        self.puts.push_front(put);
    }

    /// Whether there is such a segment.
    pub fn waits_for_map(&self) -> bool {
        self.exists
    }

    /// A segment of this engine is part of the log: another store that wrote to the log until now
    /// finds it in the way.
    pub fn fenced(&mut self) {
        self.fencing = false;
    }

    /// Takes the header of the object in the place of the segment of that number; nothing if there
    /// is nothing. An attempt that seemed to fail may have put the segment.
    pub fn handle_read_back(&mut self, cx: &mut Context<'_>, number: u64, data: Option<&[u8]>) {
        let Some(put) = self.put_of(number) else { return };
        let Some(data) = data else { return issue_put(cx, put) };
        let damaged = |reason: String| {
            let key = catalog::segment_key(cx.facts.spec().id, number);
            PutProgress::Damaged(OpenError::Damaged { key, reason })
        };
        put.progress = match segment::parse_header(data) {
            Ok((header, crc)) if header.token == put.segment.header.token => {
                if crc == put.segment.header_crc {
                    PutProgress::Durable
                } else {
                    damaged("it has the token of another segment".to_owned())
                }
            }
            Ok(_) => PutProgress::Taken,
            Err(_) if !put.doubtful => {
                put.doubtful = true;
                return read_back(cx, number);
            }
            Err(error) => damaged(error.to_string()),
        };
    }

    /// Another store wrote the segment in the place of the first put: the content was not this
    /// engine's. The segments after it never count, wherever they arrive.
    pub fn lost(&mut self, cx: &mut Context<'_>, owner: &mut Ownership) {
        let Some(put) = self.take_puts(cx.out) else { return };
        if put.change.is_none() {
            let reason = "another store wrote to the volume: resume";
            owner.refuse_holder(cx, Some(cx.log.epoch()), reason);
        }
        // Judged anew by what the log says then.
        if let Some(change) = put.asked() {
            self.probed = true;
            self.queue.push_front(change);
        }
    }

    /// Nobody holds the epoch here any more.
    pub fn drop_batches(&mut self) {
        self.queue.retain(|change| !change.is_batch());
        self.queue_bytes = 0;
        self.announce_unsaved = None;
    }

    /// Gives up the puts in progress. They may have their effect. Returns the first one.
    fn take_puts(&mut self, out: &mut Outputs) -> Option<SegmentPut> {
        out.retain(|purpose| {
            !matches!(
                purpose,
                ObjectPurpose::PutSegment(_)
                    | ObjectPurpose::ReadBack(_)
                    | ObjectPurpose::ConfirmPut(_)
            )
        });
        (self.put_bytes, self.exists) = (0, false);
        std::mem::take(&mut self.puts).into_iter().next()
    }

    /// Gives up the puts in progress. Returns the change that still waits for an answer.
    pub fn give_up_puts(&mut self, out: &mut Outputs) -> Option<LogChange> {
        self.take_puts(out).and_then(SegmentPut::asked)
    }

    /// Gives up what waits.
    pub fn take_queue(&mut self) -> VecDeque<LogChange> {
        self.queue_bytes = 0;
        std::mem::take(&mut self.queue)
    }
}

fn issue_put(cx: &mut Context<'_>, put: &SegmentPut) {
    let key = catalog::segment_key(cx.facts.spec().id, put.number());
    cx.out.put(ObjectPurpose::PutSegment(put.number()), key, put.data.clone());
}

/// An object exists in the place of the segment of that number. Reads it.
pub(super) fn read_back(cx: &mut Context<'_>, number: u64) {
    let key = catalog::segment_key(cx.facts.spec().id, number);
    cx.out.read_range(ObjectPurpose::ReadBack(number), key, 0..HEADER_BYTES as u64);
}

/// Whether the batch is the next one. Answers one that the log has already, and refuses one that
/// leaves a gap.
fn is_next(cx: &mut Context<'_>, owner: &mut Ownership, batch: &Batch, expected: Seq) -> bool {
    if !owner.is_held_by(batch.session) || batch.epoch != cx.log.epoch() {
        return false;
    }
    if batch.last < expected {
        if batch.last <= cx.log.committed {
            owner.tell_committed(cx);
        }
        return false;
    }
    if batch.first != expected {
        let reason = format!("it begins at {}, the next number is {expected}", batch.first);
        owner.refuse_batch(cx, batch.session, batch.epoch, reason);
        return false;
    }
    true
}

fn data_segment(cx: &Context<'_>, batches: Vec<Batch>) -> SegmentPlan {
    let last = batches.last().map_or(cx.log.committed, |batch| batch.last);
    let mut footer = segment::Footer::default();
    let mut records = Vec::with_capacity(batches.len());
    let mut offset = HEADER_BYTES as u32;
    for batch in batches {
        let moved =
            batch.pieces.iter().map(|piece| Piece { offset: piece.offset + offset, ..*piece });
        footer.pieces.extend(moved);
        offset += batch.payload.len() as u32;
        records.push(batch.payload);
    }
    let limit = cx.facts.config().announce_in_segment_max;
    (footer.announced, footer.rounded) = cx.log.announced.snapshot(last, limit);
    let (kind, epoch, host) = (SegmentKind::Data, cx.log.epoch(), cx.log.host());
    SegmentPlan { kind, epoch, host, last, footer, records, change: None }
}
