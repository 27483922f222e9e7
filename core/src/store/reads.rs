//! Reads of objects for hosts: which parts to fetch for a range, and how to join them into the
//! answer.
//!
//! A read looks up the map first, which may need pages of the map. The read has begun when it knows
//! the places. Segments do not change, so later commits do not affect the read. One fetch brings
//! bytes that lie close to each other in a segment. The read verifies all fetched bytes. It fetches
//! bad bytes once more before it calls them damaged.
//!
//! Staging reads data like read-ahead, and counts with read-ahead until its object exists. Reads
//! that an initiator waits for do not wait for that.

use super::lookups::{Looked, Lookups};
use super::map::Place;
use super::map::pages::Pages;
use super::moves::{Lost, Maps, Object, Placed, Want};
use super::read_request::{ReadPurpose, ReadRequest};
use super::session::SessionId;
use super::{Copies, VolumeSpec};
use crate::block::{Epoch, Range, STAGED_BIT, Seq, VolumeId};
use crate::record::{Fragment, Location, RecordError, packed};
use crate::wire::link::ReadPart;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

/// The largest gap between two wanted parts that one fetch covers. The gap costs half a millisecond
/// at a gigabit per second, less than any request to a bucket. A record of 64 KiB comes in one
/// fetch.
const GAP_BYTES: u64 = 64 << 10;
/// Longest fetch that joining may make.
const JOINED_BYTES: u64 = 4 << 20;

/// A fetch of bytes of an object.
#[derive(Clone, Debug)]
pub(super) struct Fetch {
    pub object: Object,
    pub range: std::ops::Range<u64>,
    pub copies: Copies,
    /// The newest root names the object.
    pub known: bool,
    data: Option<Bytes>,
}

#[derive(Clone, Copy, Debug)]
struct Need {
    object: Object,
    offset: u64,
    seq: Seq,
    record: Range,
    /// Bytes of the record, if it is packed; otherwise 0.
    packed_bytes: usize,
    wanted: Range,
}

#[derive(Debug)]
struct Active {
    request: ReadRequest,
    parts: Vec<Placed>,
    needs: BTreeMap<(Object, u64), Need>,
    fetches: Vec<Fetch>,
    outstanding: usize,
    retried: bool,
    /// An object was not there.
    gone: bool,
    bytes: u64,
}

/// A finished read.
pub(super) struct Finished {
    pub request: ReadRequest,
    pub result: Result<Vec<ReadPart>, Damage>,
    /// The bytes that [`Reads::release`] still has to release; 0 unless the read is for staging.
    pub bytes: u64,
}

/// Why a read failed: the object, the sectors, and what is wrong.
pub(super) struct Damage {
    pub object: Object,
    pub range: Range,
    pub reason: String,
}

/// What comes next.
pub(super) enum Next {
    /// Fetch this, for [`Reads::handle`].
    Fetch(u64, usize, Fetch),
    /// Read this page, for [`Reads::handle_page`]. The flag says whether the newest root names it.
    Page(Want, Copies, bool),
    Finished(Finished),
    /// The answer to a query of status or places.
    Looked(ReadRequest, Vec<(Range, Option<Place>)>),
    /// Where it lies, of which a damaged object had the content.
    Placed(ReadRequest, Vec<Placed>),
    /// The map does not say where it lies.
    Lost(ReadRequest, Lost),
}

/// The volumes whose records an object may hold: a clone reads those of its parents.
struct RecordSources {
    /// The identity in the answers: the volume's, or its snapshot's.
    asked: VolumeId,
    spec: VolumeSpec,
}

impl RecordSources {
    /// The volumes that a record of the object can belong to. The random number of staged data does
    /// not say which volume, and no two are the same.
    fn of(&self, object: Object) -> impl Iterator<Item = VolumeId> {
        let (first, parents) = match object {
            Object::Bundle(id) => (id.volume, &[][..]),
            Object::Own(number) if number & STAGED_BIT == 0 => {
                (self.spec.owner_of(number), &[][..])
            }
            Object::Own(_) => (self.spec.id, &self.spec.parents[..]),
        };
        std::iter::once(first).chain(parents.iter().map(|parent| parent.volume))
    }
}

/// All reads of a volume.
pub(super) struct Reads {
    sources: RecordSources,
    operations_max: usize,
    bytes_max: u64,
    next: u64,
    /// The epoch of the map, as of the last look.
    epoch: Epoch,
    /// By class, as is the backlog: someone waits for the first kind, nobody yet for the second.
    waiting: [VecDeque<ReadRequest>; 2],
    lookups: Lookups,
    /// Reads that know what to fetch, and wait for room.
    ready: [VecDeque<Active>; 2],
    outcomes: VecDeque<Next>,
    backlog: [VecDeque<(u64, usize)>; 2],
    active: BTreeMap<u64, Active>,
    active_bytes: u64,
    /// Bytes that the engine has read and puts as objects now.
    staged_bytes: u64,
    fetching: usize,
}

impl Reads {
    /// Of a volume, answered as if they were of `asked`.
    pub fn new(operations_max: usize, bytes_max: u64, spec: VolumeSpec, asked: VolumeId) -> Reads {
        Reads {
            sources: RecordSources { asked, spec },
            operations_max: operations_max.max(2),
            bytes_max,
            next: 1,
            epoch: 0,
            waiting: Default::default(),
            lookups: Lookups::default(),
            ready: Default::default(),
            outcomes: VecDeque::new(),
            backlog: Default::default(),
            active: BTreeMap::new(),
            active_bytes: 0,
            staged_bytes: 0,
            fetching: 0,
        }
    }

    pub fn waiting(&self) -> usize {
        let queues = self.waiting.iter().map(VecDeque::len).sum::<usize>();
        queues + self.lookups.len() + self.ready.iter().map(VecDeque::len).sum::<usize>()
    }

    pub fn is_idle(&self) -> bool {
        self.active.is_empty() && self.waiting() == 0 && self.outcomes.is_empty()
    }

    pub fn push(&mut self, request: ReadRequest) {
        self.waiting[request.class()].push_back(request);
    }

    /// Drops the reads of a session that have not begun, and all of its reads for staging: no host
    /// would learn of the object.
    pub fn forget(&mut self, session: SessionId) {
        for queue in &mut self.waiting {
            queue.retain(|request| request.session != session);
        }
        self.lookups.take(|request| request.session == session);
        for queue in &mut self.ready {
            queue.retain(|active| active.request.session != session);
        }
        let bytes = &mut self.active_bytes;
        self.active.retain(|_, active| {
            let goes = active.request.session == session && active.request.is_staging();
            *bytes -= if goes { active.bytes } else { 0 };
            !goes
        });
    }

    /// The put of a staged object has ended, with or without success.
    pub fn release(&mut self, bytes: u64) {
        self.staged_bytes -= bytes;
    }

    /// Takes out the reads that have not begun.
    pub fn stop(&mut self) -> Vec<ReadRequest> {
        let mut all: Vec<ReadRequest> = self.waiting.iter_mut().flat_map(std::mem::take).collect();
        all.extend(self.lookups.take(|_| true));
        let ready = self.ready.iter_mut().flat_map(std::mem::take);
        all.extend(ready.map(|active| active.request));
        all
    }

    /// Takes out all reads. The results of their fetches have no use.
    pub fn abandon(&mut self) -> Vec<ReadRequest> {
        let mut all = self.stop();
        all.extend(std::mem::take(&mut self.active).into_values().map(|active| active.request));
        for outcome in std::mem::take(&mut self.outcomes) {
            match outcome {
                Next::Finished(Finished { request, .. })
                | Next::Looked(request, _)
                | Next::Placed(request, _)
                | Next::Lost(request, _) => all.push(request),
                Next::Fetch(..) | Next::Page(..) => {}
            }
        }
        self.backlog = Default::default();
        self.active_bytes = 0;
        all
    }

    /// Takes out the reads of earlier epochs that have not begun; the map belongs to `epoch` from
    /// now on. Otherwise a host that does not know yet that it is fenced would get the next host's
    /// data.
    pub fn fence(&mut self, epoch: Epoch) -> Vec<ReadRequest> {
        if std::mem::replace(&mut self.epoch, epoch) == epoch {
            return Vec::new();
        }
        let stale = |read: &ReadRequest| read.epoch != 0 && read.epoch != epoch;
        let mut fenced = Vec::new();
        for queue in &mut self.waiting {
            let (gone, kept) = std::mem::take(queue).into_iter().partition::<VecDeque<_>, _>(stale);
            *queue = kept;
            fenced.extend(gone);
        }
        fenced.extend(self.lookups.take(stale));
        fenced
    }

    /// Begins waiting reads as far as the limits allow, and gives what comes next.
    pub fn poll(&mut self, maps: Maps<'_>, pages: &mut Pages) -> Option<Next> {
        loop {
            if let Some(outcome) = self.outcomes.pop_front() {
                return Some(outcome);
            }
            for class in [0, 1] {
                // Read-ahead takes half of everything at most.
                if self.fetching >= self.operations_max >> class {
                    continue;
                }
                if let Some((want, copies, known)) = self.lookups.poll(class) {
                    self.fetching += 1;
                    return Some(Next::Page(want, copies, known));
                }
                while let Some((id, index)) = self.backlog[class].pop_front() {
                    let Some(active) = self.active.get(&id) else { continue };
                    self.fetching += 1;
                    return Some(Next::Fetch(id, index, active.fetches[index].clone()));
                }
            }
            if !self.begin(maps, pages) {
                return None;
            }
        }
    }

    /// Takes one read a step further, if the limits allow that.
    fn begin(&mut self, maps: Maps<'_>, pages: &mut Pages) -> bool {
        let class = usize::from(self.waiting[0].is_empty() && self.ready[0].is_empty());
        let most = self.operations_max >> class;
        if self.fetching >= most || !self.backlog[class].is_empty() {
            return false;
        }
        if let Some(active) = self.ready[class].front() {
            let held = self.active_bytes + if class == 0 { 0 } else { self.staged_bytes };
            if held > 0 && held + active.bytes > self.bytes_max >> class {
                return false;
            }
            let Some(active) = self.ready[class].pop_front() else { return false };
            let id = self.next;
            self.next += 1;
            self.active_bytes += active.bytes;
            self.backlog[class].extend((0..active.fetches.len()).map(|index| (id, index)));
            self.active.insert(id, active);
            return true;
        }
        if self.lookups.len() >= most {
            return false;
        }
        let Some(request) = self.waiting[class].pop_front() else { return false };
        if let Some(looked) = self.lookups.begin(request, maps, pages) {
            self.looked(looked);
        }
        true
    }

    fn looked(&mut self, looked: Looked) {
        match looked {
            Looked::Damaged(request, lost) => self.outcomes.push_back(Next::Lost(request, lost)),
            Looked::Status(request, parts) => {
                self.outcomes.push_back(Next::Looked(request, parts));
            }
            Looked::Found(
                request @ ReadRequest { purpose: ReadPurpose::Damaged(_), .. },
                parts,
                _,
            ) => {
                self.outcomes.push_back(Next::Placed(request, parts));
            }
            Looked::Found(request, parts, known) => {
                let active = plan(request, parts, known);
                if active.fetches.is_empty() {
                    let finished =
                        Finished { request, result: assemble(&self.sources, &active), bytes: 0 };
                    self.outcomes.push_back(Next::Finished(finished));
                } else {
                    self.ready[request.class()].push_back(active);
                }
            }
        }
    }

    /// Takes the result of the read of a map part; `None` if the object is gone.
    pub fn handle_page(
        &mut self,
        want: &Want,
        data: Option<Bytes>,
        maps: Maps<'_>,
        pages: &mut Pages,
    ) {
        self.fetching = self.fetching.saturating_sub(1);
        for looked in self.lookups.handle(want, data, maps, pages) {
            self.looked(looked);
        }
    }

    /// Whether reads wait for a search for a newer root.
    pub fn is_stranded(&self) -> bool {
        self.lookups.is_stranded()
    }

    /// A search for newer roots begins.
    pub fn look_for_roots(&mut self) {
        self.lookups.look_for_roots();
    }

    /// The map is the newest there is, and another one than before or not.
    pub fn roots_seen(&mut self, newer: bool, maps: Maps<'_>, pages: &mut Pages) {
        for looked in self.lookups.roots_seen(newer, maps, pages) {
            self.looked(looked);
        }
    }

    /// Takes the result of a fetch; `None` if the object is gone.
    pub fn handle(&mut self, id: u64, index: usize, data: Option<Bytes>) -> Option<Finished> {
        self.fetching = self.fetching.saturating_sub(1);
        let active = self.active.get_mut(&id)?;
        let fetch = active.fetches.get_mut(index)?;
        // The data may have moved since its lookup, or earlier in a newer map than this.
        active.gone |= data.is_none() && !fetch.known;
        fetch.data = Some(data.unwrap_or_default());
        active.outstanding -= 1;
        if active.outstanding > 0 {
            return None;
        }
        if active.gone {
            let active = self.active.remove(&id)?;
            self.active_bytes -= active.bytes;
            self.lookups.strand(active.request);
            return None;
        }
        let result = assemble(&self.sources, active);
        if result.is_err() && !active.retried {
            active.retried = true;
            active.outstanding = active.fetches.len();
            let class = active.request.class();
            for (index, fetch) in active.fetches.iter_mut().enumerate() {
                fetch.data = None;
                fetch.copies = Copies::Bad;
                self.backlog[class].push_back((id, index));
            }
            return None;
        }
        let active = self.active.remove(&id)?;
        let kept = if active.request.is_staging() && result.is_ok() { active.bytes } else { 0 };
        self.active_bytes -= active.bytes;
        self.staged_bytes += kept;
        Some(Finished { request: active.request, result, bytes: kept })
    }
}

fn plan(request: ReadRequest, parts: Vec<Placed>, known: bool) -> Active {
    let mut needs: BTreeMap<(Object, u64), Need> = BTreeMap::new();
    for &(part, place) in &parts {
        let Some((object, place)) = place.filter(|(_, place)| !place.is_zero()) else { continue };
        let offset = u64::from(place.offset());
        needs
            .entry((object, offset))
            .and_modify(|need| {
                let lba = need.wanted.lba.min(part.lba);
                need.wanted = Range::between(lba, need.wanted.end().max(part.end()));
            })
            .or_insert(Need {
                object,
                offset,
                seq: place.seq(),
                record: place.record(part.lba),
                packed_bytes: place.packed_bytes(),
                wanted: part,
            });
    }
    let mut fetches: Vec<Fetch> = Vec::new();
    // In order of object and offset; prefix and payload of one record do not reach into the next.
    for need in needs.values() {
        for range in spans(need).into_iter().flatten() {
            match fetches.last_mut() {
                Some(last)
                    if last.object == need.object
                        && range.start <= last.range.end + GAP_BYTES
                        && range.end - last.range.start <= JOINED_BYTES =>
                {
                    last.range.end = last.range.end.max(range.end);
                }
                _ => fetches.push(Fetch {
                    object: need.object,
                    range,
                    copies: Copies::Welcome,
                    known,
                    data: None,
                }),
            }
        }
    }
    let bytes = fetches.iter().map(|fetch| fetch.range.end - fetch.range.start).sum();
    let outstanding = fetches.len();
    let (retried, gone) = (false, false);
    Active { request, parts, needs, fetches, outstanding, retried, gone, bytes }
}

/// The bytes of the object that hold header and table, and the payload. Of a packed record: all up
/// to where the payload wanted may end, since where it lies only the table says.
fn spans(need: &Need) -> Option<[std::ops::Range<u64>; 2]> {
    if need.packed_bytes > 0 {
        let span = packed::span_max(need.record, need.wanted).min(need.packed_bytes) as u64;
        let end = need.offset + span;
        return Some([need.offset..end, end..end]);
    }
    let location = Location::new(need.record, need.wanted)?;
    let payload = need.offset + location.payload_start as u64;
    Some([
        need.offset..need.offset + location.prefix_bytes as u64,
        payload..payload + location.payload_bytes as u64,
    ])
}

/// The fetched bytes at `range` of an object, if there are any.
fn fetched(fetches: &[Fetch], object: Object, range: &std::ops::Range<u64>) -> Option<Bytes> {
    let after =
        fetches.partition_point(|fetch| (fetch.object, fetch.range.start) <= (object, range.start));
    let fetch = fetches.get(after.checked_sub(1)?)?;
    let data = fetch.data.as_ref()?;
    let start = range.start.checked_sub(fetch.range.start)? as usize;
    let end = start + (range.end - range.start) as usize;
    (fetch.object == object && end <= data.len()).then(|| data.slice(start..end))
}

/// The result for a record.
enum Found {
    Data(Fragment),
    Packed(Bytes),
}

fn extract(
    sources: &RecordSources,
    active: &Active,
    need: &Need,
) -> Result<Found, (Range, String)> {
    let short = || (need.wanted, "the object is missing or cut short".to_owned());
    let [prefix, payload] = spans(need).ok_or_else(short)?;
    let prefix = fetched(&active.fetches, need.object, &prefix).ok_or_else(short)?;
    let extract = |owner: VolumeId| {
        if need.packed_bytes > 0 {
            let volumes = (owner, sources.asked);
            let found = packed::extract(volumes, need.seq, need.record, need.wanted, &prefix);
            return Ok(found.map(Found::Packed));
        }
        let location = Location::new(need.record, need.wanted).ok_or_else(short)?;
        let payload = fetched(&active.fetches, need.object, &payload).ok_or_else(short)?;
        Ok(location.extract(owner, need.seq, &prefix, payload).map(Found::Data))
    };
    let mut found = Err(RecordError::Header);
    for owner in sources.of(need.object) {
        found = extract(owner)?;
        if !matches!(found, Err(RecordError::Header)) {
            break;
        }
    }
    found.map_err(|error| {
        let damaged = match error {
            RecordError::Payload(block) => block.intersect(need.wanted).unwrap_or(need.wanted),
            _ => need.wanted,
        };
        (damaged, error.to_string())
    })
}

fn assemble(sources: &RecordSources, active: &Active) -> Result<Vec<ReadPart>, Damage> {
    let mut fragments = BTreeMap::new();
    for (key, need) in &active.needs {
        match extract(sources, active, need) {
            Ok(fragment) => fragments.insert(*key, (need.record, fragment)),
            Err((range, reason)) => {
                return Err(Damage { object: need.object, range, reason });
            }
        };
    }
    let part = |&(part, place): &Placed| match place {
        None => ReadPart::Hole(part.sectors),
        Some((object, place)) => match fragments.get(&(object, u64::from(place.offset()))) {
            None => ReadPart::Zero(part.sectors),
            Some((record, Found::Data(fragment))) => {
                let cover = part.block_cover().intersect(*record).unwrap_or(part);
                ReadPart::Data { wanted: part, fragment: fragment.cut(cover) }
            }
            // Two parts of one record may have a hole between them: each gets the blocks it needs.
            Some((record, Found::Packed(found))) => {
                let cut = packed::cut(sources.asked, *record, part, found);
                ReadPart::Packed { wanted: part, record: cut }
            }
        },
    };
    Ok(active.parts.iter().map(part).collect())
}
