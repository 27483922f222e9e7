//! Decides about changes of the log: batches and operations in order of arrival, announcements, and
//! the segment whose put is in progress.
//!
//! At most one put of a segment is in progress. Batches that arrive meanwhile form the next
//! segment. The machine decides which batches count, and the content of a segment. It does not know
//! whether the engine may write to the log. Its owner asks for the next change only while the
//! engine has read the log to its end.

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

/// The segment whose put is in progress.
pub(super) struct SegmentPut {
    segment: Segment,
    data: Vec<Bytes>,
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

    /// The change that asked for it, if that still waits for an answer.
    fn asked(self) -> Option<LogChange> {
        self.change.filter(|_| !self.closed)
    }
}

/// The object in the place of the segment.
pub(super) enum ReadBack {
    /// A read of it is in progress, or the engine puts the segment again.
    Unknown,
    /// The segment, put by an attempt that seemed to fail.
    Ours,
    /// The segment of another store: that store's log is the log.
    Rival,
    Damaged(OpenError),
}

/// The waiting changes, and the put in progress.
#[derive(Default)]
pub(super) struct Committer {
    queue: VecDeque<LogChange>,
    queue_bytes: u64,
    /// For the front of the queue, the engine has read the segments that another store wrote.
    probed: bool,
    put: Option<SegmentPut>,
    /// The segment of the put exists, and waits for the map that it rolls back to.
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

    pub fn is_putting(&self) -> bool {
        self.put.is_some()
    }

    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.put.is_none()
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
        if let Some(put) = &mut self.put {
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
        while self.put.is_none() {
            match self.queue.pop_front() {
                None => {
                    self.put_announced(cx, begins);
                    return None;
                }
                Some(LogChange::Batch(batch)) => self.put_batches(cx, owner, begins, batch),
                Some(change) => return Some(change),
            }
        }
        None
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
        let mut bytes = 0;
        let mut next = Some(batch);
        while let Some(batch) = next {
            self.queue_bytes = self.queue_bytes.saturating_sub(batch.cost());
            let expected = gathered.last().map_or(cx.log.committed, |last| last.last) + 1;
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
        let header = Header {
            volume: cx.facts.spec().id,
            number: cx.log.number + 1,
            kind,
            epoch,
            host: host.unwrap_or(HostId(0)),
            token: Token { incarnation: cx.facts.incarnation(), counter },
            first: cx.log.committed + 1,
            last,
            records_bytes: 0,
            footer_bytes: 0,
            previous: cx.log.header_crc,
            sectors: match &change {
                Some(LogChange::Grow { sectors, .. } | LogChange::Shrink { sectors, .. }) => {
                    *sectors
                }
                _ => 0,
            },
        };
        let (segment, data) = segment::build(header, footer, records);
        self.announce_unsaved = None;
        self.put = Some(SegmentPut { segment, data, change, closed: false, doubtful: false });
        self.issue_put(cx);
    }

    fn issue_put(&self, cx: &mut Context<'_>) {
        let Some(put) = &self.put else { return };
        let key = catalog::segment_key(cx.facts.spec().id, put.segment.header.number);
        cx.out.put(ObjectPurpose::PutSegment, key, put.data.clone());
    }

    /// The number of the segment of the put in progress, if it is the first one of this engine: the
    /// engine has to confirm it.
    pub fn to_confirm(&self) -> Option<u64> {
        let put = self.put.as_ref()?;
        Some(put.segment.header.number).filter(|_| put.segment.header.token.begins())
    }

    pub fn is_putting_number(&self, number: u64) -> bool {
        self.put.as_ref().is_some_and(|put| put.segment.header.number == number)
    }

    /// The segment of the put exists, and is the next one of the log: the caller applies it, or
    /// hands it back.
    pub fn take_confirmed(&mut self) -> Option<SegmentPut> {
        self.exists = false;
        self.put.take()
    }

    /// The segment exists, and waits for a map.
    pub fn wait_for_map(&mut self, put: SegmentPut) {
        self.exists = true;
        self.put = Some(put);
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

    /// An object exists in the segment's place. Reads it, because an attempt that seemed to fail
    /// may have put the segment.
    pub fn read_back(&self, cx: &mut Context<'_>) {
        let Some(put) = &self.put else { return };
        let key = catalog::segment_key(cx.facts.spec().id, put.segment.header.number);
        cx.out.read_range(ObjectPurpose::ReadBack, key, 0..HEADER_BYTES as u64);
    }

    /// Takes the header of what is in the segment's place; nothing if there is nothing.
    pub fn handle_read_back(&mut self, cx: &mut Context<'_>, data: Option<&[u8]>) -> ReadBack {
        let Some(put) = &mut self.put else { return ReadBack::Unknown };
        let Some(data) = data else {
            self.issue_put(cx);
            return ReadBack::Unknown;
        };
        let key = || catalog::segment_key(cx.facts.spec().id, put.segment.header.number);
        match segment::parse_header(data) {
            Ok((header, crc)) if header.token == put.segment.header.token => {
                if crc == put.segment.header_crc {
                    return ReadBack::Ours;
                }
                let reason = "it has the token of another segment".to_owned();
                ReadBack::Damaged(OpenError::Damaged { key: key(), reason })
            }
            Ok(_) => ReadBack::Rival,
            Err(_) if !put.doubtful => {
                put.doubtful = true;
                self.read_back(cx);
                ReadBack::Unknown
            }
            Err(error) => {
                ReadBack::Damaged(OpenError::Damaged { key: key(), reason: error.to_string() })
            }
        }
    }

    /// Another store wrote the segment in this place: its content was not this engine's.
    pub fn lost(&mut self, cx: &mut Context<'_>, owner: &mut Ownership) {
        let Some(put) = self.put.take() else { return };
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

    /// Gives up the put in progress. Returns the change that still waits for an answer to it.
    pub fn give_up_put(&mut self) -> Option<LogChange> {
        self.put.take().and_then(SegmentPut::asked)
    }

    /// Gives up what waits.
    pub fn take_queue(&mut self) -> VecDeque<LogChange> {
        self.queue_bytes = 0;
        std::mem::take(&mut self.queue)
    }
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
