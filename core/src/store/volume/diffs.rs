//! Map diffs: the ranges that hosts wrote since a moment in the log. The segments' footers list
//! them; the engine reads these from the end of the log back to that moment.
//!
//! Promises: an answer with ranges holds every sector that a committed write has touched between
//! the moment and the request. If the engine cannot read or prove something, the answer is
//! "unknown". A request reads at most [`SEGMENTS_MAX`] segments and [`RANGES_MAX`] ranges. At most
//! [`DIFFS_MAX`] requests are in progress.

use super::super::catalog;
use super::super::log::LogState;
use super::super::open::{Part, Replay};
use super::super::segment::{self, Header, Segment, SegmentKind};
use super::super::session::SessionId;
use super::context::Context;
use super::facts::Facts;
use super::outputs::Outputs;
use super::purpose::ObjectPurpose;
use super::reply::ReplyAddress;
use crate::block::{Range, Seq};
use crate::extent::{RangeSet, Uniform};
use crate::wire::link::{Changes, MAX_CHANGED_RANGES, Moment, ReadError, ToHost};
use std::collections::BTreeMap;

/// Segments that one request looks at, at most: 4 GiB of writes if these are full.
const SEGMENTS_MAX: u64 = 1024;
/// Segments read at once for a request.
const WINDOW: u64 = 8;
/// Requests in progress; a further one gets the answer "unknown".
const DIFFS_MAX: usize = 16;
/// Ranges in memory for a request: some 6 MB.
const RANGES_MAX: usize = 1 << 16;

/// Requests in progress.
#[derive(Debug, Default)]
pub(super) struct MapDiffs {
    next: u64,
    diffs: BTreeMap<u64, Diff>,
}

#[derive(Debug)]
struct Diff {
    to: ReplyAddress,
    /// Everything committed after this number counts.
    since: Seq,
    /// The engine does not read segments at or below this number; 0 is before the first.
    floor: u64,
    /// The next segment to ask for, going down.
    next: NextNumber,
    reading: usize,
    /// The newest segment that the engine could not read, 0 for none.
    failed: u64,
    /// The last segment, and the checksum of its header.
    top: (u64, u32),
    /// Of the headers read, their checksums and what they say of the one before.
    links: BTreeMap<u64, (u32, u32)>,
    ranges: Ranges,
}

impl Diff {
    /// Whether a header belongs to this log, as far as the engine has read its neighbors. A store
    /// without contact may have put a segment in the place of a deleted one, and that one does not
    /// belong to the log.
    fn link(&mut self, header: &Header, crc: u32) -> bool {
        let Header { number, previous, .. } = *header;
        self.links.insert(number, (crc, previous));
        let above = match self.links.get(&header.number_after()) {
            _ if number == self.top.0 => Some(self.top.1),
            link => link.map(|(_, previous)| *previous),
        };
        let below = self.links.get(&header.number_before()).map(|(crc, _)| *crc);
        above.is_none_or(|above| above == crc) && below.is_none_or(|below| below == previous)
    }

    /// Takes the header of a segment, which may be the one that the next number depends on.
    fn learn(&mut self, header: &Header) {
        if self.next == NextNumber::Asked(header.number) {
            self.next = NextNumber::before(header.number, header.void_after);
        }
    }

    /// Takes the number of the next segment to ask for, if that is known.
    fn take_next(&mut self) -> Option<u64> {
        let (number, next) = match self.next {
            NextNumber::Known { number, void_after } => {
                (number, NextNumber::before(number, void_after))
            }
            NextNumber::First(number) => (number, NextNumber::Asked(number)),
            NextNumber::Asked(_) => return None,
        };
        if number <= self.floor || self.reading as u64 >= WINDOW {
            return None;
        }
        self.next = next;
        Some(number)
    }
}

/// The number of the next segment, going down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextNumber {
    /// The last void numbers before it follow `void_after`.
    Known { number: u64, void_after: u64 },
    /// Void numbers follow it. Its header says what is before it.
    First(u64),
    /// A read of that header is in progress, or has failed.
    Asked(u64),
}

impl NextNumber {
    /// The one before `number`, which comes after the void numbers that follow `void_after`.
    fn before(number: u64, void_after: u64) -> NextNumber {
        let before = segment::number_before(number, void_after);
        if before == void_after {
            NextNumber::First(before)
        } else {
            NextNumber::Known { number: before, void_after }
        }
    }
}

/// Answers a request.
pub(super) fn answer(
    facts: &Facts,
    out: &mut Outputs,
    to: ReplyAddress,
    result: Result<Changes, ReadError>,
) {
    let ReplyAddress { session, lane, request } = to;
    out.send(session, lane, ToHost::Changed { request, volume: facts.id(), result });
}

/// Whether the log went through that moment: it knows the epoch, and all later epochs built on the
/// writes of that moment. A rollback may have begun an epoch without a host. The segments since
/// then do not list its changes.
fn is_moment(log: &LogState, moment: Moment) -> bool {
    let history = &log.history;
    let known =
        history.iter().any(|entry| entry.epoch == moment.epoch && entry.host == Some(moment.host));
    let mut later = history.iter().filter(|entry| entry.epoch > moment.epoch);
    known
        && moment.seq <= log.committed
        && later.all(|entry| entry.base >= moment.seq && entry.host.is_some())
}

impl MapDiffs {
    /// Nobody waits for these answers.
    pub fn forget(&mut self, session: SessionId) {
        self.diffs.retain(|_, diff| diff.to.session != session);
    }

    /// Begins to answer a request of a host that may read.
    pub fn begin(&mut self, cx: &mut Context<'_>, to: ReplyAddress, since: Moment) {
        if !is_moment(cx.log, since) || self.diffs.len() >= DIFFS_MAX {
            return answer(cx.facts, cx.out, to, Ok(Changes::Unknown));
        }
        // The parent's content existed before any host attached this volume.
        let begins = cx.facts.spec().begins_after();
        let next = cx.log.number;
        let diff = Diff {
            to,
            since: since.seq,
            floor: next.saturating_sub(SEGMENTS_MAX).max(begins),
            next: if next == cx.log.void_after {
                NextNumber::First(next)
            } else {
                NextNumber::Known { number: next, void_after: cx.log.void_after }
            },
            reading: 0,
            failed: 0,
            top: (next, cx.log.header_crc),
            links: BTreeMap::new(),
            ranges: Ranges::default(),
        };
        self.next += 1;
        let number = self.next;
        self.diffs.insert(number, diff);
        self.go_on(cx.facts, cx.out, number);
    }

    /// Asks for more segments, or answers if there are none.
    fn go_on(&mut self, facts: &Facts, out: &mut Outputs, key: u64) {
        let Some(diff) = self.diffs.get_mut(&key) else { return };
        while let Some(number) = diff.take_next() {
            read_part(facts, out, key, number, Part::Header);
            diff.reading += 1;
        }
        if diff.reading > 0 {
            return;
        }
        // Segments before the floor need not be readable.
        let known = diff.failed <= diff.floor;
        if let Some(diff) = self.diffs.remove(&key) {
            let changes =
                if known { Changes::Ranges(diff.ranges.finish()) } else { Changes::Unknown };
            answer(facts, out, diff.to, Ok(changes));
        }
    }

    /// The engine will read nothing more.
    pub fn refuse_all(&mut self, facts: &Facts, out: &mut Outputs) {
        for diff in std::mem::take(&mut self.diffs).into_values() {
            answer(facts, out, diff.to, Err(ReadError::NotAttached));
        }
    }

    /// Takes a part of a segment; nothing if the object is not there.
    pub fn handle_part(
        &mut self,
        facts: &Facts,
        out: &mut Outputs,
        key: u64,
        (number, part): (u64, Part),
        data: Option<&[u8]>,
    ) {
        if self.take_part(facts, out, key, number, part, data).is_none()
            && let Some(diff) = self.diffs.get_mut(&key)
        {
            diff.failed = diff.failed.max(number);
        }
        self.go_on(facts, out, key);
    }

    fn take_part(
        &mut self,
        facts: &Facts,
        out: &mut Outputs,
        key: u64,
        number: u64,
        part: Part,
        data: Option<&[u8]>,
    ) -> Option<()> {
        // The requester is gone, or has its answer.
        let Some(diff) = self.diffs.get_mut(&key) else { return Some(()) };
        diff.reading -= 1;
        if number <= diff.floor {
            return Some(());
        }
        let data = data?;
        let (header, crc) = match part {
            Part::Header => segment::parse_header(data).ok()?,
            Part::Tail(header, crc) => (header, crc),
        };
        if header.volume != facts.spec().id || header.number != number {
            return None;
        }
        if part == Part::Header && !diff.link(&header, crc) {
            return None;
        }
        diff.learn(&header);
        if header.last <= diff.since {
            // All before it is older still.
            diff.floor = diff.floor.max(number);
            return Some(());
        }
        if header.first <= diff.since + 1 {
            diff.floor = diff.floor.max(number - 1);
        } else if header.number_before() <= diff.floor {
            // The last segment that the engine may read does not reach back far enough.
            return None;
        }
        if header.kind != SegmentKind::Data {
            return Some(());
        }
        let Part::Tail(..) = part else {
            diff.reading += 1;
            read_part(facts, out, key, number, Part::Tail(header, crc));
            return Some(());
        };
        let Segment { footer, .. } = segment::parse_tail(header, crc, data).ok()?;
        for piece in footer.pieces.iter().filter(|piece| piece.seq > diff.since) {
            diff.ranges.insert(piece.range);
        }
        Some(())
    }
}

fn read_part(facts: &Facts, out: &mut Outputs, diff: u64, number: u64, part: Part) {
    let purpose = ObjectPurpose::ScanLog { diff, number, part };
    let key = catalog::segment_key(facts.spec().id, number);
    out.read_range(purpose, key, Replay::range(part));
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
