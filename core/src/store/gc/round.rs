//! One round of collecting: a reading of all live fragments, which counts what is named of every segment and marks what is
//! named of those that are being emptied, and then the moves of what was marked.
//!
//! It must be given *all* fragments of all roots that are kept, those of snapshots among them, root after root in order
//! of age; a fragment that cannot be read ends the round, since nothing is known then. What a root shares with the one
//! before is not read again, so a round has the names of two roots' fragments in memory, however many roots there are. What was
//! written after those roots names nothing but itself and what they name, so it need not be looked at, as long as
//! no segment after them is emptied.

use super::bundle::{self, Builder, Bundle, BundleId, Head};
use super::marks::{Marks, Named};
use super::usage::Usage;
use crate::block::VolumeId;
use crate::record;
use crate::store::map::MapError;
use crate::store::map::fragment::{self, Fragment, FragmentId};
use crate::store::segment;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

/// Fragments read at a time, and objects that are emptied: memory of 4 MiB each.
pub const READS_MAX: usize = 2;
/// Bytes of records looked at in a step.
const STEP_BYTES: usize = 256 << 10;

/// An object that is being emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Object {
    /// A segment, by its number.
    Segment(u64),
    /// What earlier rounds have moved.
    Bundle(BundleId),
}

/// What is to be emptied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emptied {
    /// The object.
    pub object: Object,
    /// The segments that are in it.
    pub segments: Vec<u64>,
}

/// Something to be done.
#[derive(Clone, Debug)]
pub enum Output {
    /// Read all of it; for [`Round::handle_fragment`].
    ReadFragment(Fragment),
    /// Read all of it; for [`Round::handle_object`].
    ReadObject(Object),
    /// Create it; for [`Round::handle_put`].
    Put(BundleId, Vec<Bytes>),
}

/// What has come of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// What is left of these segments is in a bundle now, which is there.
    Moved {
        /// Which.
        bundle: Bundle,
        /// Of which segments; none of them is in more than one bundle.
        segments: Vec<u64>,
        /// Bytes of the object.
        bytes: u64,
    },
    /// Of these segments nothing is named.
    Unnamed(Vec<u64>),
    /// Once the second map says so, nobody needs this object any more.
    Emptied(Object),
    /// It cannot be emptied, and stays.
    Damaged(Object, String),
}

#[derive(Debug)]
struct Scanning {
    /// The root that is being read names it.
    named: bool,
    object: Bytes,
    index: fragment::Index,
    page: usize,
}

#[derive(Debug)]
struct Moving {
    object: Object,
    bytes: Bytes,
    /// Of a bundle.
    index: Option<bundle::Index>,
    left: VecDeque<(u64, Named)>,
    began: (usize, usize),
    segments: Vec<u64>,
    unnamed: Vec<u64>,
}

/// A round under way.
#[derive(Debug)]
pub struct Round {
    volume: VolumeId,
    generation: u64,
    next: u64,
    bundle_bytes: u64,
    /// Of the root that is being read.
    root: BTreeMap<FragmentId, Fragment>,
    /// The same, to be read, and those that only the one before named.
    fragments: VecDeque<(bool, Fragment)>,
    /// That are being read.
    reading: BTreeMap<FragmentId, (bool, Fragment)>,
    /// A root has been begun, and is not counted yet.
    counting: bool,
    /// There are no more roots.
    ended: bool,
    scanning: VecDeque<Scanning>,
    usage: Usage,
    marks: Marks,
    emptied: VecDeque<Emptied>,
    fetching: Vec<Emptied>,
    fetched: VecDeque<(Emptied, Bytes)>,
    moving: Option<Moving>,
    builder: Builder,
    /// What the bundle that is being made has: segments, and objects that are empty once it is there.
    making: (Vec<u64>, Vec<Object>),
    putting: Option<(Bundle, Vec<u64>, Vec<Object>, u64)>,
    outputs: VecDeque<Output>,
    events: VecDeque<Event>,
}

impl Round {
    /// Of a volume with the segments after `before` up to `last`. Bundles get names of `generation`, numbered from `next` on, and are
    /// full with `bundle_bytes` of records, at most [`bundle::MAX_RECORDS_BYTES`] less the largest object.
    #[must_use]
    pub fn new(
        volume: VolumeId,
        (generation, next): (u64, u64),
        bundle_bytes: u64,
        (before, last): (u64, u64),
        emptied: Vec<Emptied>,
    ) -> Round {
        let segments = emptied.iter().flat_map(|emptied| emptied.segments.iter().copied());
        Round {
            volume,
            generation,
            next,
            bundle_bytes,
            root: BTreeMap::new(),
            fragments: VecDeque::new(),
            reading: BTreeMap::new(),
            counting: false,
            ended: false,
            scanning: VecDeque::new(),
            usage: Usage::new(before, last),
            marks: Marks::new(segments),
            emptied: emptied.into(),
            fetching: Vec::new(),
            fetched: VecDeque::new(),
            moving: None,
            builder: Builder::new(),
            making: Default::default(),
            putting: None,
            outputs: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Whether the next root is to be given.
    #[must_use]
    pub fn wants_root(&self) -> bool {
        !self.ended && !self.counting
    }

    /// The fragments of the next root that is kept.
    pub fn handle_root(&mut self, fragments: impl IntoIterator<Item = Fragment>) {
        let root = fragments.into_iter().map(|each| (each.id, each)).collect();
        let before = std::mem::replace(&mut self.root, root);
        let gone = before.values().filter(|each| !self.root.contains_key(&each.id));
        let come = self.root.values().filter(|each| !before.contains_key(&each.id));
        let all = gone.map(|each| (false, *each)).chain(come.map(|each| (true, *each)));
        self.fragments.extend(all);
        self.counting = true;
    }

    /// All roots that are kept have been given.
    pub fn end_roots(&mut self) {
        self.ended = true;
        self.root.clear();
    }

    /// The next thing to be done.
    pub fn poll(&mut self) -> Option<Output> {
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        if self.reading.len() + self.scanning.len() < READS_MAX
            && let Some((named, fragment)) = self.fragments.pop_front()
        {
            self.reading.insert(fragment.id, (named, fragment));
            return Some(Output::ReadFragment(fragment));
        }
        let under_way = self.fetching.len() + self.fetched.len();
        if self.is_scanned() && under_way < READS_MAX {
            let emptied = self.emptied.pop_front()?;
            let object = emptied.object;
            self.fetching.push(emptied);
            return Some(Output::ReadObject(object));
        }
        None
    }

    /// What came of it.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The number of the next bundle.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// What is named of every segment, once all fragments have been read.
    #[must_use]
    pub fn usage(&self) -> Option<&Usage> {
        self.is_scanned().then_some(&self.usage)
    }

    fn is_scanned(&self) -> bool {
        self.ended && !self.counting
    }

    /// Whether all is done.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.is_scanned()
            && self.emptied.is_empty()
            && self.fetching.is_empty()
            && self.fetched.is_empty()
            && self.moving.is_none()
            && self.builder.is_empty()
            && self.putting.is_none()
            && self.outputs.is_empty()
            && self.events.is_empty()
    }

    /// All bytes of a fragment.
    ///
    /// # Errors
    /// What is wrong with it; then the round has come to nothing, and is to be dropped.
    pub fn handle_fragment(&mut self, id: FragmentId, object: Bytes) -> Result<(), MapError> {
        let Some((named, fragment)) = self.reading.remove(&id) else { return Ok(()) };
        let range = fragment.index_range();
        if (object.len() as u64) < range.end {
            return Err(MapError::Short);
        }
        let bytes = object.slice(range.start as usize..range.end as usize);
        let index = fragment::Index::new(&fragment, bytes)?;
        self.scanning.push_back(Scanning { named, object, index, page: 0 });
        Ok(())
    }

    /// All bytes of an object that is being emptied, or why there are none.
    pub fn handle_object(&mut self, object: Object, result: Result<Bytes, String>) {
        let Some(at) = self.fetching.iter().position(|emptied| emptied.object == object) else {
            return;
        };
        let emptied = self.fetching.remove(at);
        match result {
            Ok(bytes) => self.fetched.push_back((emptied, bytes)),
            Err(error) => {
                for segment in emptied.segments {
                    let _ = self.marks.take(segment);
                }
                self.events.push_back(Event::Damaged(object, error));
            }
        }
    }

    /// A bundle is there.
    pub fn handle_put(&mut self, id: BundleId) {
        if let Some((bundle, segments, objects, bytes)) =
            self.putting.take_if(|(put, ..)| put.id == id)
        {
            self.events.push_back(Event::Moved { bundle, segments, bytes });
            self.events.extend(objects.into_iter().map(Event::Emptied));
        }
    }

    /// Does some of the work that waits for nothing; says whether there is more.
    ///
    /// # Errors
    /// A fragment is damaged; then the round has come to nothing, and is to be dropped.
    pub fn step(&mut self) -> Result<bool, MapError> {
        if let Some(scanning) = self.scanning.front_mut() {
            if scanning.page < scanning.index.pages() {
                let range = scanning.index.range(scanning.page);
                let bytes = &scanning.object[range.start as usize..range.end as usize];
                for entry in scanning.index.entries(scanning.page, bytes)? {
                    let entry = entry?;
                    if scanning.named {
                        self.usage.count(entry);
                        self.marks.mark(entry);
                    } else {
                        self.usage.discount(entry);
                    }
                }
                scanning.page += 1;
            } else {
                self.scanning.pop_front();
            }
            return Ok(true);
        }
        if self.counting && self.fragments.is_empty() && self.reading.is_empty() {
            self.usage.end_root();
            self.counting = false;
            return Ok(true);
        }
        if !self.is_scanned() {
            return Ok(false);
        }
        if self.moving.is_none()
            && !self.is_full()
            && let Some((emptied, bytes)) = self.fetched.pop_front()
        {
            self.begin(emptied, bytes);
            return Ok(true);
        }
        if self.moving.is_some() {
            self.move_some();
            return Ok(true);
        }
        let last = self.emptied.is_empty() && self.fetching.is_empty() && self.fetched.is_empty();
        if (self.is_full() || last) && !self.builder.is_empty() && self.putting.is_none() {
            self.put();
            return Ok(true);
        }
        Ok(false)
    }

    fn is_full(&self) -> bool {
        self.builder.bytes() >= self.bundle_bytes
    }

    fn begin(&mut self, emptied: Emptied, bytes: Bytes) {
        let Emptied { object, segments } = emptied;
        let mut left = VecDeque::new();
        let mut unnamed = Vec::new();
        let mut named_segments = Vec::new();
        for segment in segments {
            let named = self.marks.take(segment);
            if named.is_empty() {
                unnamed.push(segment);
            } else {
                named_segments.push(segment);
                left.extend(named.into_iter().map(|named| (segment, named)));
            }
        }
        let index = match object {
            Object::Segment(_) if left.is_empty() => Ok(None),
            Object::Segment(number) => is_segment(self.volume, number, &bytes).map(|()| None),
            Object::Bundle(id) => open(id, &bytes).map(Some),
        };
        match index {
            Ok(index) => {
                let began = self.builder.mark();
                let segments = named_segments;
                self.moving = Some(Moving { object, bytes, index, left, began, segments, unnamed });
            }
            Err(error) => self.events.push_back(Event::Damaged(object, error.to_string())),
        }
    }

    fn move_some(&mut self) {
        let Some(mut moving) = self.moving.take() else { return };
        let mut looked_at = 0;
        while looked_at < STEP_BYTES
            && let Some((segment, named)) = moving.left.pop_front()
        {
            match copy(self.volume, &moving, segment, &named, &mut self.builder) {
                Ok(bytes) => looked_at += bytes,
                Err(error) => {
                    self.builder.truncate(moving.began);
                    self.events.push_back(Event::Damaged(moving.object, error));
                    return;
                }
            }
        }
        if !moving.left.is_empty() {
            self.moving = Some(moving);
            return;
        }
        if !moving.unnamed.is_empty() {
            self.events.push_back(Event::Unnamed(moving.unnamed));
        }
        if moving.segments.is_empty() {
            self.events.push_back(Event::Emptied(moving.object));
        } else {
            self.making.0.append(&mut moving.segments);
            self.making.1.push(moving.object);
        }
    }

    fn put(&mut self) {
        let id = BundleId { volume: self.volume, generation: self.generation, number: self.next };
        self.next += 1;
        let builder = std::mem::take(&mut self.builder);
        let bundle = Bundle { id, entries: builder.entries() };
        let (segments, objects) = std::mem::take(&mut self.making);
        let data = builder.finish(id);
        let bytes = data.iter().map(|part| part.len() as u64).sum();
        self.putting = Some((bundle, segments, objects, bytes));
        self.outputs.push_back(Output::Put(id, data));
    }
}

/// Whether an object that was read whole is that segment: records of another one would be lost for good once it is moved.
fn is_segment(volume: VolumeId, number: u64, object: &Bytes) -> Result<(), MapError> {
    match segment::parse_header(object) {
        Ok((header, _)) if (header.volume, header.number) == (volume, number) => Ok(()),
        Ok(_) => Err(MapError::Invalid("it is another segment")),
        Err(_) => Err(MapError::Invalid("it is no segment")),
    }
}

/// The index of a bundle that was read whole.
fn open(id: BundleId, object: &Bytes) -> Result<bundle::Index, MapError> {
    let head = Head::parse(object)?;
    if head.id != id {
        return Err(MapError::Invalid("it is another bundle"));
    }
    if head.bytes() != object.len() as u64 {
        return Err(MapError::Short);
    }
    let range = head.index_range();
    bundle::Index::new(head, object.slice(range.start as usize..range.end as usize))
}

/// Adds what is named of a record to a bundle; says how many bytes were looked at.
fn copy(
    volume: VolumeId,
    moving: &Moving,
    segment: u64,
    named: &Named,
    builder: &mut Builder,
) -> Result<usize, String> {
    let mut looked_at = 0;
    let mut last = None;
    for run in &named.runs {
        let (at, skip) = match &moving.index {
            None => (u64::from(named.offset), 0),
            Some(index) => index.record(segment, named.offset, run).ok_or_else(|| {
                format!("it has nothing of segment {segment} at {}", named.offset)
            })?,
        };
        let record = match &last {
            Some((same, record)) if *same == at => record,
            _ => {
                let bytes =
                    moving.bytes.get(at as usize..).map(|rest| moving.bytes.slice_ref(rest));
                let bytes = bytes.ok_or_else(|| format!("it ends before byte {at}"))?;
                let record = record::parse(volume, &bytes);
                let record = record.map_err(|error| format!("record at byte {at}: {error}"))?;
                looked_at += record.header.record_bytes();
                &last.insert((at, record)).1
            }
        };
        let sectors = record.header.range.sectors;
        if moving.index.is_none() && sectors != named.sectors || run.end > skip + sectors {
            return Err(format!("record at byte {at}: not the one that the map names"));
        }
        builder.push(segment, named.offset, run.clone(), record, skip);
    }
    Ok(looked_at)
}
