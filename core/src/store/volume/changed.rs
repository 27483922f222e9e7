//! What was written since a moment in the log: the segments' footers say it, read from the end of the
//! log back to that moment.
//!
//! Promises: an answer with ranges holds every sector that a committed write after the moment has
//! touched, up to the request at least; whatever cannot be read or proved is "unknown". Bounded: at
//! most [`SEGMENTS_MAX`] segments and [`RANGES_MAX`] ranges are looked at for a request, and
//! [`WALKS_MAX`] requests at a time.

use super::super::object::{Copies, ObjectOperation};
use super::super::open::{Part, Replay};
use super::super::segment::{self, Segment, SegmentKind};
use super::super::{SessionId, catalog};
use super::{Purpose, Volume};
use crate::block::{Epoch, Range, Seq};
use crate::extent::{RangeSet, Uniform};
use crate::wire::link::{Changes, Lane, MAX_CHANGED_RANGES, Moment, ReadError, RequestId, ToHost};
use std::collections::BTreeMap;

/// Segments that one request looks at, at most: 4 GiB of writes if these are full.
const SEGMENTS_MAX: u64 = 1024;
/// Segments read at once for a request.
const WINDOW: u64 = 8;
/// Requests answered at a time; more are told that nothing is known.
const WALKS_MAX: usize = 16;
/// Ranges kept while a request is worked on: some 6 MB of memory.
const RANGES_MAX: usize = 1 << 16;

/// Requests that are being answered.
#[derive(Debug, Default)]
pub(super) struct Walks {
    next: u64,
    walks: BTreeMap<u64, Walk>,
}

#[derive(Debug)]
struct Walk {
    session: SessionId,
    lane: Lane,
    request: RequestId,
    /// Everything committed after this number counts.
    since: Seq,
    /// Segments at or below this number are not looked at any more; 0 is before the first.
    floor: u64,
    /// The next segment to ask for, going down.
    next: u64,
    reading: usize,
    /// The newest segment that could not be read, 0 for none.
    failed: u64,
    /// The last segment, and the checksum of its header.
    top: (u64, u32),
    /// Of the headers read, their checksums and what they say of the one before.
    links: BTreeMap<u64, (u32, u32)>,
    ranges: Ranges,
}

impl Walk {
    /// Whether a header is one of this log, as far as its neighbours have been read: what a store that was out of touch
    /// put in the place of a deleted segment is not.
    fn link(&mut self, number: u64, crc: u32, previous: u32) -> bool {
        self.links.insert(number, (crc, previous));
        let above = match self.links.get(&(number + 1)) {
            _ if number == self.top.0 => Some(self.top.1),
            link => link.map(|(_, previous)| *previous),
        };
        let below = self.links.get(&(number - 1)).map(|(crc, _)| *crc);
        above.is_none_or(|above| above == crc) && below.is_none_or(|below| below == previous)
    }
}

impl Walks {
    /// Nobody waits for these answers.
    pub(super) fn forget(&mut self, session: SessionId) {
        self.walks.retain(|_, walk| walk.session != session);
    }
}

impl Volume {
    /// Begins to answer a request, if nothing speaks against it.
    pub(super) fn changed(
        &mut self,
        session: SessionId,
        lane: Lane,
        request: RequestId,
        epoch: Epoch,
        since: Moment,
    ) {
        // Not for observers: it is the one who writes that has to know.
        let checked = match epoch {
            0 => Err(ReadError::Invalid),
            _ => self.check_read(session, epoch, Range::new(0, 1), u64::MAX),
        };
        if let Err(error) = checked {
            return self.tell_changed(session, lane, request, Err(error));
        }
        if !self.is_moment(since) || self.walks.walks.len() >= WALKS_MAX {
            return self.tell_changed(session, lane, request, Ok(Changes::Unknown));
        }
        // What is a parent's was there before anybody attached this volume.
        let floor = self.state.number.saturating_sub(SEGMENTS_MAX).max(self.spec.begins_after());
        let ranges = Ranges::default();
        let next = self.state.number;
        let since = since.seq;
        let (reading, failed) = (0, 0);
        let (top, links) = ((next, self.state.header_crc), BTreeMap::new());
        let walk = Walk {
            session,
            lane,
            request,
            since,
            floor,
            next,
            reading,
            failed,
            top,
            links,
            ranges,
        };
        self.walks.next += 1;
        let number = self.walks.next;
        self.walks.walks.insert(number, walk);
        self.walk_on(number);
    }

    /// Whether the log went through that moment: it knows the epoch, and all later ones were built on
    /// what was committed then. One that is nobody's may have begun by rolling back, of which the segments since
    /// then do not say what it changed.
    fn is_moment(&self, moment: Moment) -> bool {
        let history = &self.state.history;
        let known = history
            .iter()
            .any(|entry| entry.epoch == moment.epoch && entry.host == Some(moment.host));
        let mut later = history.iter().filter(|entry| entry.epoch > moment.epoch);
        known
            && moment.seq <= self.state.committed
            && later.all(|entry| entry.base >= moment.seq && entry.host.is_some())
    }

    fn tell_changed(
        &mut self,
        session: SessionId,
        lane: Lane,
        request: RequestId,
        result: Result<Changes, ReadError>,
    ) {
        let volume = self.id();
        self.send(session, lane, ToHost::Changed { request, volume, result });
    }

    /// Asks for more segments, or answers if there are none.
    fn walk_on(&mut self, number: u64) {
        let Some(walk) = self.walks.walks.get_mut(&number) else { return };
        while walk.next > walk.floor && (walk.reading as u64) < WINDOW {
            let purpose = Purpose::Walk { walk: number, number: walk.next, part: Part::Header };
            let key = catalog::segment_key(self.spec.id, walk.next);
            let range = Some(Replay::range(Part::Header));
            walk.next -= 1;
            walk.reading += 1;
            self.book.issue(purpose, ObjectOperation::Get { key, range, copies: Copies::Refused });
        }
        if walk.reading > 0 {
            return;
        }
        // What is too old need not be readable.
        let known = walk.failed <= walk.floor;
        if let Some(walk) = self.walks.walks.remove(&number) {
            let changes =
                if known { Changes::Ranges(walk.ranges.finish()) } else { Changes::Unknown };
            self.tell_changed(walk.session, walk.lane, walk.request, Ok(changes));
        }
    }

    /// Nothing more will be read.
    pub(super) fn refuse_walks(&mut self) {
        for walk in std::mem::take(&mut self.walks.walks).into_values() {
            self.tell_changed(walk.session, walk.lane, walk.request, Err(ReadError::NotAttached));
        }
    }

    /// Takes a part of a segment.
    pub(super) fn walked(&mut self, walk: u64, number: u64, part: Part, data: Option<&[u8]>) {
        if self.walk_step(walk, number, part, data).is_none()
            && let Some(walk) = self.walks.walks.get_mut(&walk)
        {
            walk.failed = walk.failed.max(number);
        }
        self.walk_on(walk);
    }

    fn walk_step(&mut self, key: u64, number: u64, part: Part, data: Option<&[u8]>) -> Option<()> {
        // The one who asked is gone, or has been answered.
        let Some(walk) = self.walks.walks.get_mut(&key) else { return Some(()) };
        walk.reading -= 1;
        if number <= walk.floor {
            return Some(());
        }
        let data = data?;
        let (header, crc) = match part {
            Part::Header => segment::parse_header(data).ok()?,
            Part::Tail(header, crc) => (header, crc),
        };
        if header.volume != self.spec.id || header.number != number {
            return None;
        }
        if part == Part::Header && !walk.link(number, crc, header.previous) {
            return None;
        }
        if header.last <= walk.since {
            // All before it is older still.
            walk.floor = walk.floor.max(number);
            return Some(());
        }
        if header.first <= walk.since + 1 {
            walk.floor = walk.floor.max(number - 1);
        } else if number == walk.floor + 1 {
            // The last one that may be looked at does not reach back far enough.
            return None;
        }
        if header.kind != SegmentKind::Data {
            return Some(());
        }
        let Part::Tail(..) = part else {
            walk.reading += 1;
            let part = Part::Tail(header, crc);
            let range = Some(Replay::range(part));
            let purpose = Purpose::Walk { walk: key, number, part };
            let key = catalog::segment_key(self.spec.id, number);
            self.book.issue(purpose, ObjectOperation::Get { key, range, copies: Copies::Refused });
            return Some(());
        };
        let Segment { footer, .. } = segment::parse_tail(header, crc, data).ok()?;
        for piece in footer.pieces.iter().filter(|piece| piece.seq > walk.since) {
            walk.ranges.insert(piece.range);
        }
        Some(())
    }
}

/// Ranges that become wider when there are too many.
#[derive(Debug)]
pub(super) struct Ranges {
    set: RangeSet,
    /// They begin and end at multiples of this many sectors.
    granule: u64,
}

impl Default for Ranges {
    fn default() -> Self {
        Ranges { set: RangeSet::new(), granule: 1 }
    }
}

impl Ranges {
    pub(super) fn insert(&mut self, range: Range) {
        self.add(range);
        while self.set.len() > RANGES_MAX {
            self.widen();
        }
    }

    fn add(&mut self, range: Range) {
        let start = range.lba / self.granule * self.granule;
        let end = range.end().div_ceil(self.granule) * self.granule;
        self.set.insert(Range::between(start, end), Uniform(()));
    }

    fn widen(&mut self) {
        // A cache forgets whole blocks anyway.
        self.granule = (self.granule * 2).max(crate::block::BLOCK_SECTORS);
        let old = std::mem::take(&mut self.set);
        for (range, _) in old.iter_from(0) {
            self.add(range);
        }
    }

    pub(super) fn finish(mut self) -> Vec<Range> {
        while self.set.len() > MAX_CHANGED_RANGES {
            self.widen();
        }
        self.set.iter_from(0).map(|(range, _)| range).collect()
    }
}
