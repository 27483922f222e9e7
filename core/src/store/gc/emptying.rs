//! Empties segments and bundles: moves their marked parts into new bundles.

use super::bundle::{self, Builder, Bundle, BundleId, Head};
use super::marks::{Marks, Named};
use super::output::{Emptied, Event, Object, Output, READS_MAX};
use crate::block::VolumeId;
use crate::record;
use crate::store::map::MapError;
use crate::store::segment;
use bytes::Bytes;
use std::collections::VecDeque;

/// Bytes of records looked at in a step.
const STEP_BYTES: usize = 256 << 10;

#[derive(Debug)]
struct Moving {
    object: Object,
    bytes: Bytes,
    /// The index of a bundle.
    index: Option<bundle::Index>,
    left: VecDeque<(u64, Named)>,
    began: (usize, usize),
    segments: Vec<u64>,
    unnamed: Vec<u64>,
}

/// Objects to empty, and the bundle in the making.
#[derive(Debug)]
pub(super) struct Emptying {
    volume: VolumeId,
    generation: u64,
    next: u64,
    bundle_bytes: u64,
    emptied: VecDeque<Emptied>,
    fetching: Vec<Emptied>,
    fetched: VecDeque<(Emptied, Bytes)>,
    moving: Option<Moving>,
    builder: Builder,
    /// Content of the bundle in the making: segments, and objects that are empty after its put.
    making: (Vec<u64>, Vec<Object>),
    putting: Option<(Bundle, Vec<u64>, Vec<Object>, u64)>,
    outputs: VecDeque<Output>,
    events: VecDeque<Event>,
}

impl Emptying {
    pub fn new(
        volume: VolumeId,
        (generation, next): (u64, u64),
        bundle_bytes: u64,
        emptied: Vec<Emptied>,
    ) -> Emptying {
        Emptying {
            volume,
            generation,
            next,
            bundle_bytes,
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

    /// A bundle to put.
    pub fn poll_put(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// The next object to read. Call it after the scan.
    pub fn poll_read(&mut self) -> Option<Output> {
        if self.fetching.len() + self.fetched.len() >= READS_MAX {
            return None;
        }
        let emptied = self.emptied.pop_front()?;
        let object = emptied.object;
        self.fetching.push(emptied);
        Some(Output::ReadObject(object))
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The number of the next bundle.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Whether no work is left.
    pub fn is_done(&self) -> bool {
        self.emptied.is_empty()
            && self.fetching.is_empty()
            && self.fetched.is_empty()
            && self.moving.is_none()
            && self.builder.is_empty()
            && self.putting.is_none()
            && self.outputs.is_empty()
            && self.events.is_empty()
    }

    /// Takes all bytes of an object to empty, or the reason for their absence.
    pub fn handle_object(
        &mut self,
        marks: &mut Marks,
        object: Object,
        result: Result<Bytes, String>,
    ) {
        let Some(at) = self.fetching.iter().position(|emptied| emptied.object == object) else {
            return;
        };
        let emptied = self.fetching.remove(at);
        match result {
            Ok(bytes) => self.fetched.push_back((emptied, bytes)),
            Err(error) => {
                for segment in emptied.segments {
                    let _ = marks.take(segment);
                }
                self.events.push_back(Event::Damaged(object, error));
            }
        }
    }

    /// The put of a bundle has succeeded.
    pub fn handle_put(&mut self, id: BundleId) {
        if let Some((bundle, segments, objects, bytes)) =
            self.putting.take_if(|(put, ..)| put.id == id)
        {
            self.events.push_back(Event::Moved { bundle, segments, bytes });
            self.events.extend(objects.into_iter().map(Event::Emptied));
        }
    }

    /// Does some of the work that waits for nothing. Returns whether it had work. Call it after the
    /// scan.
    pub fn step(&mut self, marks: &mut Marks) -> bool {
        if self.moving.is_none()
            && !self.is_full()
            && let Some((emptied, bytes)) = self.fetched.pop_front()
        {
            self.begin(marks, emptied, bytes);
            return true;
        }
        if self.moving.is_some() {
            self.move_some();
            return true;
        }
        let last = self.emptied.is_empty() && self.fetching.is_empty() && self.fetched.is_empty();
        if (self.is_full() || last) && !self.builder.is_empty() && self.putting.is_none() {
            self.put();
            return true;
        }
        false
    }

    fn is_full(&self) -> bool {
        self.builder.bytes() >= self.bundle_bytes
    }

    fn begin(&mut self, marks: &mut Marks, emptied: Emptied, bytes: Bytes) {
        let Emptied { object, segments } = emptied;
        let mut left = VecDeque::new();
        let mut unnamed = Vec::new();
        let mut named_segments = Vec::new();
        for segment in segments {
            let named = marks.take(segment);
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

/// Whether an object is that segment. A move of another one would lose its records for good.
fn is_segment(volume: VolumeId, number: u64, object: &Bytes) -> Result<(), MapError> {
    match segment::parse_header(object) {
        Ok((header, _)) if (header.volume, header.number) == (volume, number) => Ok(()),
        Ok(_) => Err(MapError::Invalid("it is another segment")),
        Err(_) => Err(MapError::Invalid("it is no segment")),
    }
}

/// The index of a whole bundle.
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

/// Adds the named parts of a record to a bundle. Returns how many bytes it has looked at.
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
