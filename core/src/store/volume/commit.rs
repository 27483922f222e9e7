//! Batches, announcements, and the segment being put.

use super::super::object::{Copies, ObjectOperation};
use super::super::open::Replay;
use super::super::segment::{self, HEADER_BYTES, Header, Piece, Segment, SegmentKind, Token};
use super::super::{Event, OpenError, SessionId, catalog};
use super::snapshots::Asked;
use super::{Phase, Purpose, Second, Volume};
use crate::block::{Epoch, Seq};
use crate::record;
use crate::wire::link::{
    Announced, HostId, JournalState, Lane, MAX_ANNOUNCE_ENTRIES, MAX_BATCH_BYTES, RequestId,
    SnapshotOperation, ToHost,
};
use bytes::Bytes;

/// What a batch costs in the queue besides its records and its index; rounded up.
const BATCH_OVERHEAD: u64 = 256;

/// A batch that has been verified.
pub(super) struct Batch {
    pub session: SessionId,
    pub epoch: Epoch,
    pub first: Seq,
    pub last: Seq,
    pub payload: Bytes,
    pub pieces: Vec<Piece>,
}

impl Batch {
    fn cost(&self) -> u64 {
        let index = self.pieces.len() * size_of::<Piece>();
        self.payload.len() as u64 + index as u64 + BATCH_OVERHEAD
    }
}

/// Who wants an epoch, with what.
#[derive(Clone, Copy)]
pub(super) struct Wish {
    pub host: HostId,
    pub journal: Option<JournalState>,
    /// Also from a host that is connected.
    pub take_over: bool,
}

/// Something that changes the log, or has to wait its turn with what does.
pub(super) enum Work {
    Batch(Batch),
    Attach {
        session: SessionId,
        lane: Lane,
        request: RequestId,
        wish: Wish,
    },
    Resume {
        session: SessionId,
        lane: Lane,
        request: RequestId,
        epoch: Epoch,
        host: HostId,
    },
    Detach {
        session: SessionId,
        lane: Lane,
        request: RequestId,
        epoch: Epoch,
    },
    AcceptLoss {
        session: SessionId,
        lane: Lane,
        request: RequestId,
    },
    Resize {
        session: SessionId,
        lane: Lane,
        request: RequestId,
        sectors: u64,
        /// It is to become smaller.
        shrink: bool,
    },
    Snapshot {
        asked: Asked,
        operation: SnapshotOperation,
    },
    /// Changes nothing, but what another store was told counts as much.
    Lost {
        session: SessionId,
        lane: Lane,
        request: RequestId,
        from_lba: u64,
    },
}

impl Work {
    pub fn is_batch(&self) -> bool {
        matches!(self, Work::Batch(_))
    }

    pub fn session(&self) -> SessionId {
        match self {
            Work::Batch(batch) => batch.session,
            Work::Attach { session, .. }
            | Work::Resume { session, .. }
            | Work::Detach { session, .. }
            | Work::AcceptLoss { session, .. }
            | Work::Resize { session, .. }
            | Work::Lost { session, .. } => *session,
            Work::Snapshot { asked, .. } => asked.session,
        }
    }
}

/// What was so before a segment.
pub(super) struct Before {
    /// The host that had not detached.
    pub unclean: Option<HostId>,
    /// It, for people.
    pub holder: Option<String>,
    /// Bytes that were announced.
    pub lost: u64,
}

/// The segment being put.
pub(super) struct Put {
    pub(super) segment: Segment,
    data: Vec<Bytes>,
    /// What asked for it; `None` for batches and announcements.
    pub request: Option<Work>,
    /// The session that asked is gone.
    pub closed: bool,
    /// The object found in its place could not be read once.
    doubtful: bool,
}

impl Put {
    /// What asked for it, if that still waits for an answer.
    pub fn asked(self) -> Option<Work> {
        self.request.filter(|_| !self.closed)
    }

    pub fn session_closed(&mut self, session: SessionId) {
        self.closed |= self.request.as_ref().is_some_and(|work| work.session() == session);
    }
}

impl Volume {
    pub(super) fn can_put(&self) -> bool {
        self.put.is_none() && matches!(self.phase, Phase::Running)
    }

    pub(super) fn batch(
        &mut self,
        session: SessionId,
        epoch: Epoch,
        first: Seq,
        last: Seq,
        payload: Bytes,
    ) {
        let current = self.state.epoch();
        let volume = self.spec.id;
        if self.shutting_down || matches!(self.phase, Phase::Opening(_) | Phase::Failed(_)) {
            return;
        }
        let holds = self.holder.filter(|holder| holder.session == session);
        if epoch < current && holds.is_some() {
            // A straggler of an epoch that this very session has replaced.
            return;
        }
        if epoch < current {
            self.send(session, Lane::Control, ToHost::Fenced { volume, epoch: current });
            return;
        }
        let Some(holder) = holds.filter(|_| epoch == current) else {
            self.refuse_batch(session, epoch, "this connection has not resumed the epoch".into());
            return;
        };
        if holder.refused {
            return;
        }
        match self.verify_batch(epoch, first, last, &payload) {
            Ok(pieces) => {
                let batch = Batch { session, epoch, first, last, payload, pieces };
                self.queue_bytes += batch.cost();
                self.queue.push_back(Work::Batch(batch));
            }
            Err(reason) => self.refuse_batch(session, epoch, reason),
        }
    }

    /// Verifies every byte of a batch; the one pass over its payload.
    fn verify_batch(
        &self,
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
            let record = record::parse(self.spec.id, &payload.slice(at..))
                .map_err(|error| format!("record at byte {at}: {error}"))?;
            let header = record.header;
            if header.seq < seq || header.seq > last {
                return Err(format!("record at byte {at}: number {} is out of order", header.seq));
            }
            if header.epoch > epoch {
                return Err(format!(
                    "record at byte {at}: epoch {} is in the future",
                    header.epoch
                ));
            }
            if !header.range.fits(self.state.sectors) {
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

    pub(super) fn refuse_batch(&mut self, session: SessionId, epoch: Epoch, reason: String) {
        if let Some(holder) = &mut self.holder
            && holder.session == session
        {
            if holder.refused {
                return;
            }
            holder.refused = true;
        }
        self.event(Event::BatchRefused { session, reason: reason.clone() });
        let volume = self.spec.id;
        self.send(session, Lane::Control, ToHost::BatchRefused { volume, epoch, reason });
    }

    pub(super) fn announce(
        &mut self,
        session: SessionId,
        epoch: Epoch,
        replace: bool,
        entries: &[Announced],
    ) {
        let holds = self.holder.is_some_and(|holder| holder.session == session);
        let open = matches!(self.phase, Phase::Running | Phase::CatchingUp(_));
        if !open || !holds || epoch != self.state.epoch() || self.shutting_down {
            return;
        }
        // What a segment of another engine says is as good as what this session does: the host may
        // have told it more since. Once this one has caught up, the session is resumed, and replaces.
        let replace = replace && matches!(self.phase, Phase::Running);
        let mut ignored = entries.len().saturating_sub(MAX_ANNOUNCE_ENTRIES) as u64;
        let mut changed = replace && !self.state.announced.is_empty();
        if replace {
            self.state.announced.clear();
        }
        for entry in entries.iter().take(MAX_ANNOUNCE_ENTRIES) {
            if entry.range.is_empty() || !entry.range.fits(self.state.sectors) {
                ignored += 1;
            } else if entry.seq > self.state.committed {
                self.state.announced.insert(*entry);
                changed = true;
            }
        }
        if changed {
            self.announce_unsaved.get_or_insert(self.now);
        }
        if ignored > 0 {
            self.event(Event::AnnounceIgnored { session, entries: ignored });
        }
    }

    /// Begins whatever is next in the queue, until a segment is being put or the log is being read.
    pub(super) fn advance_queue(&mut self) {
        self.advance_snapping();
        while self.can_put() {
            let Some(work) = self.queue.pop_front() else {
                self.put_announced();
                return;
            };
            match work {
                Work::Batch(batch) => self.put_batches(batch),
                control => self.begin_control(control),
            }
        }
    }

    fn put_announced(&mut self) {
        if self.put_fence() {
            return;
        }
        let Some(since) = self.announce_unsaved else { return };
        let due = self.now >= since.after(self.config.announce_persist);
        // In an epoch that has not begun, or with the log as it should be, there is nothing to save.
        if (due || self.shutting_down) && self.state.epoch() > 0 {
            self.put_segment(SegmentKind::Announce, Vec::new(), None);
        }
    }

    /// Puts a segment of this batch and as many of the following as fit.
    fn put_batches(&mut self, batch: Batch) {
        let mut gathered: Vec<Batch> = Vec::new();
        let mut bytes = 0;
        let mut next = Some(batch);
        while let Some(batch) = next {
            self.queue_bytes = self.queue_bytes.saturating_sub(batch.cost());
            let expected = gathered.last().map_or(self.state.committed, |last| last.last) + 1;
            if self.accept(&batch, expected) {
                bytes += batch.payload.len() as u64;
                gathered.push(batch);
            }
            next = match self.queue.front() {
                Some(Work::Batch(batch))
                    if gathered.is_empty()
                        || bytes + batch.payload.len() as u64 <= self.config.segment_bytes =>
                {
                    match self.queue.pop_front() {
                        Some(Work::Batch(batch)) => Some(batch),
                        _ => None,
                    }
                }
                _ => None,
            };
        }
        if !gathered.is_empty() {
            self.put_segment(SegmentKind::Data, gathered, None);
        }
    }

    /// Whether the batch is the next one. One that is there already is answered, one that leaves a
    /// gap refused.
    fn accept(&mut self, batch: &Batch, expected: Seq) -> bool {
        let holds = self.holder.is_some_and(|holder| holder.session == batch.session);
        if !holds || batch.epoch != self.state.epoch() {
            return false;
        }
        if batch.last < expected {
            if batch.last <= self.state.committed {
                self.tell_committed();
            }
            return false;
        }
        if batch.first != expected {
            let reason = format!("it begins at {}, the next number is {expected}", batch.first);
            self.refuse_batch(batch.session, batch.epoch, reason);
            return false;
        }
        true
    }

    fn tell_committed(&mut self) {
        let Some(holder) = self.holder.filter(|holder| holder.connected) else { return };
        let (volume, epoch, seq) = (self.spec.id, self.state.epoch(), self.state.committed);
        self.send(holder.session, Lane::Control, ToHost::Committed { volume, epoch, seq });
        if self.second == Second::InStep {
            self.tell_second();
        }
    }

    /// Builds a segment that does not begin an epoch.
    pub(super) fn put_segment(
        &mut self,
        kind: SegmentKind,
        batches: Vec<Batch>,
        request: Option<Work>,
    ) {
        let last = batches.last().map_or(self.state.committed, |batch| batch.last);
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
        let limit = self.config.announce_in_segment_max;
        (footer.announced, footer.rounded) = self.state.announced.snapshot(last, limit);
        let (epoch, host) = (self.state.epoch(), self.state.host());
        self.put_built(kind, epoch, host, last, footer, records, request);
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of a segment, once")]
    pub(super) fn put_built(
        &mut self,
        kind: SegmentKind,
        epoch: Epoch,
        host: Option<HostId>,
        last: Seq,
        footer: segment::Footer,
        records: Vec<Bytes>,
        request: Option<Work>,
    ) {
        let counter = self.next_counter();
        let header = Header {
            volume: self.spec.id,
            number: self.state.number + 1,
            kind,
            epoch,
            host: host.unwrap_or(HostId(0)),
            token: Token { incarnation: self.incarnation, counter },
            first: self.state.committed + 1,
            last,
            records_bytes: 0,
            footer_bytes: 0,
            previous: self.state.header_crc,
            sectors: match &request {
                Some(Work::Resize { sectors, .. }) => *sectors,
                _ => 0,
            },
            newest: record::RECORD_VERSION,
        };
        let (segment, data) = segment::build(header, footer, records);
        self.announce_unsaved = None;
        self.put = Some(Put { segment, data, request, closed: false, doubtful: false });
        self.issue_put();
    }

    fn issue_put(&mut self) {
        let Some(put) = &self.put else { return };
        let key = catalog::segment_key(self.spec.id, put.segment.header.number);
        let data = put.data.clone();
        self.book.issue(Purpose::PutSegment, ObjectOperation::Put { key, data });
    }

    /// The segment exists, and it is ours.
    pub(super) fn segment_put(&mut self) {
        let Some(put) = &self.put else { return };
        let header = &put.segment.header;
        if header.token.begins() {
            self.confirm_put(header.number);
        } else {
            self.segment_confirmed();
        }
    }

    /// And it is the next one of the log.
    pub(super) fn segment_confirmed(&mut self) {
        self.rolling.exists = false;
        let Some(put) = self.put.take() else { return };
        if !self.may_apply(&put.segment) {
            self.rolling.exists = true;
            self.put = Some(put);
            return;
        }
        // Whoever else wrote to the log until now finds this in its way.
        self.fencing = false;
        let clean = self.state.clean;
        let lost = self.state.announced.bytes();
        let attaches = put.segment.header.kind == SegmentKind::Attach;
        let before = Before {
            unclean: self.state.host().filter(|_| !clean),
            holder: attaches
                .then(|| self.former())
                .flatten()
                .filter(|_| self.connected() || !clean),
            lost,
        };
        self.state.commit(&put.segment);
        self.map_segment(&put.segment);
        self.resized_by(&put.segment);
        if let Some(note) = &put.segment.footer.note
            && put.segment.header.kind == SegmentKind::Rollback
        {
            let (epoch, segment) = (self.state.epoch(), note.segment);
            self.event(Event::RolledBack { epoch, segment, bytes: lost });
        }
        match put.request {
            None => {
                if put.segment.header.kind == SegmentKind::Data {
                    self.tell_committed();
                }
            }
            Some(work) => self.control_done(work, put.closed, before),
        }
    }

    /// There is an object in the segment's place: is it the segment, put by an attempt that was
    /// thought to have failed?
    pub(super) fn read_back(&mut self) {
        let Some(put) = &self.put else { return };
        let key = catalog::segment_key(self.spec.id, put.segment.header.number);
        let range = Some(0..HEADER_BYTES as u64);
        self.book
            .issue(Purpose::ReadBack, ObjectOperation::Get { key, range, copies: Copies::Refused });
    }

    pub(super) fn segment_read_back(&mut self, data: Option<&[u8]>) {
        let Some(put) = &mut self.put else { return };
        let Some(data) = data else {
            self.issue_put();
            return;
        };
        match segment::parse_header(data) {
            Ok((header, crc)) if header.token == put.segment.header.token => {
                if crc == put.segment.header_crc {
                    self.segment_put();
                } else {
                    let key = catalog::segment_key(self.spec.id, header.number);
                    let reason = "it has the token of another segment".to_owned();
                    self.fail(OpenError::Damaged { key, reason });
                }
            }
            Ok(_) => self.lost_race(),
            Err(_) if !put.doubtful => {
                put.doubtful = true;
                self.read_back();
            }
            Err(error) => {
                let key = catalog::segment_key(self.spec.id, put.segment.header.number);
                self.fail(OpenError::Damaged { key, reason: error.to_string() });
            }
        }
    }

    /// Another store wrote the segment of this number: its log is the log.
    fn lost_race(&mut self) {
        self.lost_put();
        self.catch_up();
    }

    /// What was to be in a segment is not.
    pub(super) fn lost_put(&mut self) {
        let Some(put) = self.put.take() else { return };
        if put.request.is_none()
            && let Some(holder) = self.holder
        {
            let reason = "another store wrote to the volume: resume";
            self.refuse_batch(holder.session, self.state.epoch(), reason.into());
        }
        // Judged anew by what the log says then.
        if let Some(work) = put.asked() {
            self.probed = true;
            self.queue.push_front(work);
        }
    }

    /// Looks for segments that another store has written.
    pub(super) fn catch_up(&mut self) {
        self.phase = Phase::CatchingUp(Replay::new(self.spec.id, self.state.number + 1, 1));
        self.advance_log();
    }

    /// Another store has gone on with the log: nobody holds the epoch here any more.
    pub(super) fn drop_holder(&mut self) {
        self.queue.retain(|work| !work.is_batch());
        self.queue_bytes = 0;
        self.announce_unsaved = None;
        self.await_holder();
        let Some(holder) = self.holder else { return };
        let held = holder.epoch;
        let (volume, epoch) = (self.spec.id, self.state.epoch());
        if epoch != held {
            self.send(holder.session, Lane::Control, ToHost::Fenced { volume, epoch });
        } else {
            // The same epoch went on elsewhere: its host may come back here, but not unasked.
            self.refuse_batch(
                holder.session,
                epoch,
                "another store went on with it: resume".into(),
            );
        }
        self.holder = None;
    }
}
