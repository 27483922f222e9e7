//! Objects in a medium of fixed size.
//!
//! A put writes the content to free blocks and syncs it. Then it writes a record to the index and
//! syncs that. After that the object exists. Changes that wait for a sync share the next one. The
//! index is a log in one of two areas. When the area is full, the engine writes the records of all
//! objects to the other area, which counts from then on.
//!
//! Promises: the medium may lose any writes without a sync. After a crash each object whose put
//! succeeded is there and whole. Other objects are whole or absent. Deleted objects stay deleted.
//! No two objects share a block. After a write or sync of the index has failed, the engine writes
//! nothing more.

use super::super::failure;
use super::super::{GetError, ObjectMeta, PutError, StorageError, StorageErrorKind};
use super::format::{
    self, AREA_HEADERS, AreaHeader, BLOCK, Extent, FRAME_HEADER_BYTES, FRAMES_AT, FormatError,
    FrameId, Geometry, HEADER_BYTES, MAX_BODY_BYTES, MAX_EXTENTS, MAX_KEY_BYTES, MAX_OBJECT_BYTES,
    Object, Record, SUPERBLOCKS, Superblock,
};
use super::space::Space;
use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use longhaul_base::units::show_bytes;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Largest object to read whole.
const MAX_WHOLE_BYTES: u64 = 1 << 30;
/// Bytes of the index to read at a time where no frame is expected.
const SCAN_BYTES: u64 = 1 << 20;
/// Longest record. A frame of a newly written index may leave this many bytes unused.
const MAX_RECORD_BYTES: usize = 16 + MAX_KEY_BYTES + 12 * MAX_EXTENTS;

/// A range of bytes that can be read and written anywhere, and made durable.
pub trait Medium: Send + Sync {
    /// Fills `data` from `offset` on.
    fn read_at(&self, offset: u64, data: &mut [u8]) -> std::io::Result<()>;
    /// Writes all of `data`, which is durable after a sync that begins later and succeeds.
    fn write_at(&self, offset: u64, data: &[u8]) -> std::io::Result<()>;
    /// Makes all writes so far durable.
    fn sync(&self) -> std::io::Result<()>;
}

/// The objects of a medium.
pub struct Engine<M> {
    medium: M,
    superblock: Superblock,
    state: Mutex<State>,
    /// Held by the thread that writes to the index. Taken before `state`.
    log: Mutex<Log>,
}

#[derive(Default)]
struct State {
    /// The durable objects.
    objects: BTreeMap<String, Arc<Object>>,
    space: Space,
    /// Deleted objects that somebody may still read: their blocks are not free yet.
    graves: Vec<Arc<Object>>,
    /// Bytes of the records of all objects.
    index_bytes: u64,
    waiting: VecDeque<Change>,
    /// Why the engine writes nothing any more.
    failed: Option<StorageError>,
}

/// The place of the next frame of the index.
struct Log {
    area: usize,
    next: FrameId,
    /// Bytes from the start of the area.
    at: u64,
}

/// The outcome of a change, once it is known.
pub(super) type Outcome = Arc<OnceLock<Result<(), PutError>>>;

/// A change of the index that waits for its turn.
pub(super) struct Change {
    key: String,
    /// The object to create. `None`: delete the object.
    object: Option<Object>,
    outcome: Outcome,
}

/// The content of an index.
pub(super) struct Loaded {
    pub superblock: Superblock,
    pub objects: BTreeMap<String, Arc<Object>>,
    space: Space,
    log: Log,
    /// Copies of headers that differ from the valid one: their byte, and the right content.
    repairs: Vec<(u64, [u8; HEADER_BYTES])>,
}

/// The space in use.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Objects.
    pub objects: usize,
    /// Bytes of the objects.
    pub used_bytes: u64,
    /// Bytes for objects.
    pub total_bytes: u64,
}

/// Formats an empty medium as a store without objects. Only the last write makes it a store's.
///
/// # Errors
/// If a write fails.
pub fn format(medium: &impl Medium, superblock: &Superblock) -> std::io::Result<()> {
    let header = AreaHeader { identity: superblock.identity, generation: 1, frames: 0 };
    for (area, bytes) in [(0, header.encode()), (1, [0; HEADER_BYTES])] {
        for at in AREA_HEADERS {
            medium.write_at(superblock.geometry.area(area) + at, &block(&bytes))?;
        }
    }
    medium.sync()?;
    for at in SUPERBLOCKS {
        medium.write_at(at, &block(&superblock.encode()))?;
        medium.sync()?;
    }
    Ok(())
}

/// Reads the first superblock, or the second if the first is damaged. `None` if nobody ever wrote
/// either.
///
/// # Errors
/// If a read fails, or the medium is of a later version.
pub fn superblock(medium: &impl Medium) -> Result<Option<Superblock>> {
    let mut found = Vec::new();
    for at in SUPERBLOCKS {
        let bytes = header(medium, at).context("cannot read the superblock")?;
        found.push(Superblock::parse(&bytes));
    }
    match (found.remove(0), found.remove(0)) {
        (Ok(superblock), _) | (_, Ok(superblock)) => Ok(Some(superblock)),
        (Err(FormatError::Version(version)), _) | (_, Err(FormatError::Version(version))) => {
            Err(FormatError::Version(version)).context("the superblock")
        }
        _ => Ok(None),
    }
}

fn header(medium: &impl Medium, at: u64) -> std::io::Result<[u8; HEADER_BYTES]> {
    let mut bytes = [0; HEADER_BYTES];
    medium.read_at(at, &mut bytes)?;
    Ok(bytes)
}

/// A header in a block of its own.
fn block(header: &[u8; HEADER_BYTES]) -> Vec<u8> {
    let mut out = header.to_vec();
    out.resize(BLOCK as usize, 0);
    out
}

/// Reads the index and changes nothing. Reads of the medium must return durable data only.
///
/// # Errors
/// If a read fails, or the index is damaged or missing.
pub(super) fn load(medium: &impl Medium) -> Result<Loaded> {
    let superblock = superblock(medium)?.context("both superblocks are damaged")?;
    let geometry = superblock.geometry;
    let mut repairs = Vec::new();
    for at in SUPERBLOCKS {
        if header(medium, at)? != superblock.encode() {
            repairs.push((at, superblock.encode()));
        }
    }
    let mut newest: Option<(usize, AreaHeader)> = None;
    for area in [0, 1] {
        let found = area_header(medium, superblock, area)?;
        if let (Some((_, one)), Some(other)) = (newest, found)
            && one.generation == other.generation
        {
            bail!("the areas of the index are of the same generation: one is a copy");
        }
        if let Some(found) = found
            && newest.is_none_or(|(_, newest)| newest.generation < found.generation)
        {
            newest = Some((area, found));
        }
    }
    let (area, found) = newest.context("neither area of the index was ever written")?;
    for at in AREA_HEADERS {
        let at = geometry.area(area) + at;
        if header(medium, at)? != found.encode() {
            repairs.push((at, found.encode()));
        }
    }
    let next = FrameId { identity: superblock.identity, generation: found.generation, number: 0 };
    let mut log = Log { area, next, at: FRAMES_AT };
    let objects = replay(medium, geometry, &mut log)?;
    if log.next.number < found.frames.into() {
        bail!(
            "the index is damaged at byte {}: frame {} of {} that were written at once is not whole",
            geometry.area(area) + log.at,
            log.next.number,
            found.frames
        );
    }
    let mut space = Space::new(geometry.blocks());
    for (key, object) in &objects {
        if !object.extents.iter().all(|extent| space.take(*extent)) {
            bail!("the index is damaged: object {key} lies where another does");
        }
    }
    Ok(Loaded { superblock, objects, space, log, repairs })
}

/// The valid header of an area. If its two copies differ, the newer one counts.
fn area_header(
    medium: &impl Medium,
    superblock: Superblock,
    area: usize,
) -> Result<Option<AreaHeader>> {
    let (mut found, mut damaged) = (None::<AreaHeader>, None);
    for at in AREA_HEADERS {
        let at = superblock.geometry.area(area) + at;
        match AreaHeader::parse(&header(medium, at).context("cannot read the index")?) {
            Ok(Some(header)) if header.identity == superblock.identity => {
                if found.is_none_or(|found| found.generation < header.generation) {
                    found = Some(header);
                }
            }
            Ok(Some(_)) => damaged = Some((at, "it is another store's".to_owned())),
            Ok(None) => {}
            Err(error) => damaged = Some((at, error.to_string())),
        }
    }
    match damaged {
        // This area may be newer than the other one, so the other one must not count.
        Some((at, why)) if found.is_none() => {
            bail!("the index is damaged: header of an area at byte {at}: {why}")
        }
        _ => Ok(found),
    }
}

/// Follows the frames of an area to the last one.
fn replay(
    medium: &impl Medium,
    geometry: Geometry,
    log: &mut Log,
) -> Result<BTreeMap<String, Arc<Object>>> {
    let mut objects = BTreeMap::new();
    let begin = geometry.area(log.area);
    let mut frame = vec![0; FRAME_HEADER_BYTES + MAX_BODY_BYTES];
    while log.at < geometry.area_bytes {
        let (first, rest) = frame.split_at_mut(BLOCK as usize);
        medium.read_at(begin + log.at, first).context("cannot read the index")?;
        let length = format::frame_length(first).min(geometry.area_bytes - log.at) as usize;
        if let Some(more) = length.checked_sub(first.len()) {
            let from = begin + log.at + BLOCK;
            medium.read_at(from, &mut rest[..more]).context("cannot read the index")?;
        }
        let bytes = &frame[..length];
        let Ok((id, body)) = format::parse_frame(bytes) else { break };
        if id != log.next {
            break;
        }
        let at = begin + log.at;
        let damaged =
            |what: &str| format!("the index is damaged in the frame at byte {at}: {what}");
        let records = format::parse_records(body, geometry);
        for record in records.map_err(|error| anyhow::anyhow!(damaged(&error.to_string())))? {
            let before = match record {
                Record::Create(key, object) => objects.insert(key, Arc::new(object)).is_none(),
                Record::Delete(key) => objects.remove(&key).is_some(),
            };
            if !before {
                bail!(damaged("it creates what is there, or deletes what is not"));
            }
        }
        log.at += format::frame_bytes(body.len());
        log.next.number += 1;
    }
    // The engine writes and syncs one frame at a time. A later frame proves that this one was
    // durable.
    let mut at = log.at + BLOCK;
    while at < geometry.area_bytes {
        let length = SCAN_BYTES.min(geometry.area_bytes - at);
        let mut bytes = vec![0; length as usize];
        medium.read_at(begin + at, &mut bytes).context("cannot read the index")?;
        for start in (0..bytes.len()).step_by(BLOCK as usize) {
            let later = |id: FrameId| {
                id.identity == log.next.identity
                    && id.generation == log.next.generation
                    && id.number > log.next.number
            };
            if format::peek_frame(&bytes[start..]).is_some_and(later) {
                bail!(
                    "the index is damaged at byte {}: the frame there is not whole, and a later \
                     one is there at byte {}",
                    begin + log.at,
                    begin + at + start as u64
                );
            }
        }
        at += length;
    }
    Ok(objects)
}

impl<M: Medium> Engine<M> {
    /// Opens a [formatted](format) medium. Reads of it must return durable data only.
    ///
    /// # Errors
    /// Those of [`load`]. Also if a damaged copy of a header cannot be written again.
    pub fn open(medium: M) -> Result<Engine<M>> {
        let Loaded { superblock, objects, space, log, repairs } = load(&medium)?;
        for (at, bytes) in &repairs {
            tracing::warn!("a copy of a header at byte {at} is written again");
            medium.write_at(*at, &block(bytes)).context("cannot write a header again")?;
        }
        if !repairs.is_empty() {
            medium.sync().context("cannot write a header again")?;
        }
        let index_bytes =
            objects.iter().map(|(key, object)| format::create_bytes(key, object) as u64).sum();
        let state = State { objects, space, index_bytes, ..State::default() };
        Ok(Engine { medium, superblock, state: Mutex::new(state), log: Mutex::new(log) })
    }

    /// The superblock, which says whose medium it is.
    pub fn superblock(&self) -> Superblock {
        self.superblock
    }

    /// The medium.
    pub fn medium(&self) -> &M {
        &self.medium
    }

    /// Ends the engine. All durable objects were durable before.
    #[cfg(test)]
    pub fn into_medium(self) -> M {
        self.medium
    }

    /// The space in use.
    pub fn usage(&self) -> Usage {
        let mut state = self.state();
        state.bury();
        state.usage(self.superblock.geometry)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic leaves no half change: the state latches a failure to write.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates an object; durable when it succeeds.
    ///
    /// # Errors
    /// See [`PutError`].
    pub fn put(&self, key: &str, data: &[Bytes]) -> Result<(), PutError> {
        let outcome = self.prepare(key, data)?;
        self.settle(&outcome)
    }

    /// Deletes an object; durable when it succeeds.
    ///
    /// # Errors
    /// Why the object may still exist.
    pub fn delete(&self, key: &str) -> Result<(), StorageError> {
        match self.settle(&self.prepare_delete(key)) {
            Ok(()) => Ok(()),
            Err(PutError::Exists) => {
                Err(StorageError::unavailable(format!("{key} cannot be deleted")))
            }
            Err(PutError::Failed(error)) => Err(error),
        }
    }

    /// Writes the content of an object again, in the same place, if it equals that of the put. Puts
    /// the object if it does not exist. Durable when it succeeds.
    ///
    /// # Errors
    /// Why the object may be unchanged.
    pub fn restore(&self, key: &str, data: Bytes) -> Result<(), StorageError> {
        let (object, failed) = {
            let state = self.state();
            (state.objects.get(key).cloned(), state.failed.clone())
        };
        if let Some(error) = failed {
            return Err(error);
        }
        let Some(object) = object else {
            return self.put(key, &[data]).map_err(|error| match error {
                PutError::Exists => {
                    StorageError::unavailable(format!("{key} has been put just now"))
                }
                PutError::Failed(error) => error,
            });
        };
        if (object.bytes, object.crc) != (data.len() as u64, crc32c::crc32c(&data)) {
            let why = format!("{key} is another object: its index says so");
            return Err(StorageError::new(StorageErrorKind::Damaged, why));
        }
        let mut content = data.to_vec();
        content.resize(object.bytes.next_multiple_of(BLOCK) as usize, 0);
        let cannot =
            |error: std::io::Error| failure::of_io(format_args!("cannot write {key}"), &error);
        let mut rest = &content[..];
        for extent in &object.extents {
            let (part, after) = rest.split_at((u64::from(extent.blocks) * BLOCK) as usize);
            self.medium.write_at(extent.block * BLOCK, part).map_err(cannot)?;
            rest = after;
        }
        self.medium.sync().map_err(cannot)
    }

    /// Writes the content of an object and queues its record.
    pub(super) fn prepare(&self, key: &str, data: &[Bytes]) -> Result<Outcome, PutError> {
        let bytes: u64 = data.iter().map(|part| part.len() as u64).sum();
        if key.is_empty() || key.len() > MAX_KEY_BYTES || bytes > MAX_OBJECT_BYTES {
            let why = format!("`{key}` is not an object that can be kept here");
            return Err(PutError::Failed(StorageError::unavailable(why)));
        }
        let extents = {
            let mut state = self.state();
            if let Some(error) = &state.failed {
                return Err(PutError::Failed(error.clone()));
            }
            if state.objects.contains_key(key) {
                return Err(PutError::Exists);
            }
            state.bury();
            let found = state.space.allocate(bytes.div_ceil(BLOCK));
            let usage = state.usage(self.superblock.geometry);
            found.ok_or_else(|| no_space(key, usage))?
        };
        let mut content = Vec::with_capacity(bytes.next_multiple_of(BLOCK) as usize);
        data.iter().for_each(|part| content.extend_from_slice(part));
        let crc = crc32c::crc32c(&content);
        // Fill up to whole blocks, so that the write needs no read.
        content.resize(bytes.next_multiple_of(BLOCK) as usize, 0);
        let mut rest = &content[..];
        for extent in &extents {
            let (part, after) = rest.split_at((u64::from(extent.blocks) * BLOCK) as usize);
            if let Err(error) = self.medium.write_at(extent.block * BLOCK, part) {
                self.state().space.free_all(&extents);
                let what = format_args!("cannot write {key}");
                return Err(PutError::Failed(failure::of_io(what, &error)));
            }
            rest = after;
        }
        let object = Object { bytes, crc, extents: extents.into() };
        Ok(self.state().enqueue(key, Some(object)))
    }

    /// Queues the record of a deletion. If a put of the object is under way, the order of the
    /// changes decides.
    pub(super) fn prepare_delete(&self, key: &str) -> Outcome {
        self.state().enqueue(key, None)
    }

    /// Waits for the outcome of a change. If nobody else does, makes the change with all others
    /// that wait.
    pub(super) fn settle(&self, outcome: &OnceLock<Result<(), PutError>>) -> Result<(), PutError> {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(outcome) = outcome.get() {
                return outcome.clone();
            }
            self.turn(&mut log);
        }
    }

    /// Makes as many of the waiting changes as one frame can hold.
    fn turn(&self, log: &mut Log) {
        let mut batch = Batch::default();
        {
            let mut state = self.state();
            let limit = index_limit(self.superblock.geometry);
            batch.take(&mut state, limit, self.superblock.geometry);
        }
        if !batch.body.is_empty()
            && let Err(error) = self.commit(log, &batch)
        {
            let mut state = self.state();
            let kind = failure::kind_of_io(&error);
            let error = StorageError::new(
                kind,
                format!(
                    "cannot write to the device: {error}; nothing more is written to it until the \
                     store is restarted: check the disk"
                ),
            );
            // Do not try a sync again: the second one may count lost data as stored.
            state.failed.get_or_insert(error.clone());
            drop(state);
            batch.outcomes.iter_mut().for_each(|(_, outcome)| {
                *outcome = Err(PutError::Failed(error.clone()));
            });
        } else {
            let mut state = self.state();
            let record = |key: &str, object: &Object| format::create_bytes(key, object) as u64;
            for (key, object) in std::mem::take(&mut batch.changed) {
                if let Some(before) = state.objects.remove(&key) {
                    state.index_bytes -= record(&key, &before);
                    state.graves.push(before);
                }
                if let Some(object) = object {
                    state.index_bytes += record(&key, &object);
                    state.objects.insert(key, object);
                }
            }
            for extents in &batch.unused {
                state.space.free_all(extents);
            }
        }
        for (slot, outcome) in batch.outcomes {
            // Only this thread sets it, and once.
            let _ = slot.set(outcome);
        }
    }

    /// Makes content and records durable, in this order.
    fn commit(&self, log: &mut Log, batch: &Batch) -> std::io::Result<()> {
        let geometry = self.superblock.geometry;
        if batch.creates {
            self.medium.sync()?;
        }
        if log.at + format::frame_bytes(batch.body.len()) > geometry.area_bytes {
            self.compact(log)?;
        }
        let frame = format::encode_frame(log.next, &batch.body);
        self.medium.write_at(geometry.area(log.area) + log.at, &frame)?;
        self.medium.sync()?;
        log.at += frame.len() as u64;
        log.next.number += 1;
        Ok(())
    }

    /// Writes the records of all objects to the other area, which counts from then on.
    fn compact(&self, log: &mut Log) -> std::io::Result<()> {
        let area = 1 - log.area;
        let begin = self.superblock.geometry.area(area);
        let FrameId { identity, generation, .. } = log.next;
        let mut next = FrameId { identity, generation: generation + 1, number: 0 };
        let mut at = FRAMES_AT;
        for body in self.state().snapshot() {
            let frame = format::encode_frame(next, &body);
            self.medium.write_at(begin + at, &frame)?;
            at += frame.len() as u64;
            next.number += 1;
        }
        self.medium.sync()?;
        let frames = next.number as u32;
        let header = AreaHeader { identity, generation: next.generation, frames };
        for place in AREA_HEADERS {
            self.medium.write_at(begin + place, &block(&header.encode()))?;
        }
        self.medium.sync()?;
        *log = Log { area, next, at };
        Ok(())
    }

    /// Finds an object. It stays in its place as long as the caller holds it.
    pub fn find(&self, key: &str) -> Result<Arc<Object>, GetError> {
        self.state().objects.get(key).cloned().ok_or(GetError::NotFound)
    }

    /// Reads an object, or the existing part of a range of it.
    ///
    /// # Errors
    /// See [`GetError`].
    pub fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Bytes, GetError> {
        let object = self.find(key)?;
        let damaged = |what: &str| {
            let why = format!("cannot read {key} from the device: {what}");
            GetError::Failed(StorageError::new(StorageErrorKind::Damaged, why))
        };
        let whole = range.is_none();
        let range = range.unwrap_or(0..object.bytes);
        if range.end.min(object.bytes).saturating_sub(range.start) > MAX_WHOLE_BYTES {
            return Err(damaged("it is too large to be read at once"));
        }
        let data = read(&self.medium, &object, range).map_err(|error| {
            let what = format_args!("cannot read {key} from the device");
            GetError::Failed(failure::of_io(what, &error))
        })?;
        if whole && crc32c::crc32c(&data) != object.crc {
            return Err(damaged("its content is damaged: it differs from the written data"));
        }
        Ok(data)
    }

    /// All objects whose names begin with `prefix`, in order.
    pub fn list(&self, prefix: &str) -> Vec<ObjectMeta> {
        list(&self.state().objects, prefix)
    }
}

/// The objects whose names begin with `prefix`, in order.
pub(super) fn list(objects: &BTreeMap<String, Arc<Object>>, prefix: &str) -> Vec<ObjectMeta> {
    let from = objects.range(prefix.to_owned()..);
    from.take_while(|(key, _)| key.starts_with(prefix))
        .map(|(key, object)| ObjectMeta { key: key.clone(), bytes: object.bytes })
        .collect()
}

/// Reads the existing part of a range of an object.
pub(super) fn read(
    medium: &impl Medium,
    object: &Object,
    range: Range<u64>,
) -> std::io::Result<Bytes> {
    let end = range.end.min(object.bytes);
    let range = range.start.min(end)..end;
    let mut data = vec![0; (range.end - range.start) as usize];
    let mut rest = &mut data[..];
    for place in places(&object.extents, range) {
        let (part, after) = rest.split_at_mut((place.end - place.start) as usize);
        medium.read_at(place.start, part)?;
        rest = after;
    }
    Ok(data.into())
}

/// The ranges of the medium that hold a range of an object. The object has to have the range.
pub fn places(extents: &[Extent], range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let mut before = 0;
    extents.iter().filter_map(move |extent| {
        let length = u64::from(extent.blocks) * BLOCK;
        let (start, end) = (range.start.max(before), range.end.min(before + length));
        let offset = extent.block * BLOCK;
        let place = (start < end).then(|| offset + start - before..offset + end - before);
        before += length;
        place
    })
}

/// Bytes of records that fit an area with room left for changes, however they fall into frames.
fn index_limit(geometry: Geometry) -> u64 {
    let frames = (geometry.area_bytes - FRAMES_AT) / format::frame_bytes(MAX_BODY_BYTES);
    frames * 3 / 4 * (MAX_BODY_BYTES - MAX_RECORD_BYTES) as u64
}

fn no_space(key: &str, usage: Usage) -> PutError {
    PutError::Failed(failure::no_space(format_args!(
        "no space left on the device for {key}: {} of {} are in use, by {} objects; delete \
         volumes; until then the store commits nothing, and reads go on",
        show_bytes(usage.used_bytes),
        show_bytes(usage.total_bytes),
        usage.objects
    )))
}

impl State {
    fn usage(&self, geometry: Geometry) -> Usage {
        let all = geometry.blocks();
        let total = all.end - all.start;
        Usage {
            objects: self.objects.len(),
            used_bytes: (total - self.space.free_blocks()) * BLOCK,
            total_bytes: total * BLOCK,
        }
    }

    fn enqueue(&mut self, key: &str, object: Option<Object>) -> Outcome {
        let outcome = Arc::new(OnceLock::new());
        let change = Change { key: key.to_owned(), object, outcome: outcome.clone() };
        self.waiting.push_back(change);
        outcome
    }

    /// Frees the blocks of deleted objects that nobody reads any more.
    fn bury(&mut self) {
        let State { graves, space, .. } = self;
        graves.retain(|object| {
            let read = Arc::strong_count(object) > 1;
            if !read {
                space.free_all(&object.extents);
            }
            read
        });
    }

    /// The records of all objects, in bodies of frames.
    fn snapshot(&self) -> Vec<Vec<u8>> {
        let mut bodies: Vec<Vec<u8>> = Vec::new();
        for (key, object) in &self.objects {
            let bytes = format::create_bytes(key, object);
            match bodies.last_mut().filter(|body| body.len() + bytes <= MAX_BODY_BYTES) {
                Some(body) => format::encode_create(key, object, body),
                None => {
                    let mut body = Vec::new();
                    format::encode_create(key, object, &mut body);
                    bodies.push(body);
                }
            }
        }
        bodies
    }
}

/// Changes that the engine makes together.
#[derive(Default)]
struct Batch {
    body: Vec<u8>,
    /// The objects that the changes create, and `None` for those that they delete.
    changed: BTreeMap<String, Option<Arc<Object>>>,
    /// Whether there is new content.
    creates: bool,
    /// The results of the changes if the frame is written, and where to store them.
    outcomes: Vec<(Outcome, Result<(), PutError>)>,
    /// Blocks that nothing refers to.
    unused: Vec<Box<[Extent]>>,
}

impl Batch {
    /// Takes the changes in their order, until the frame has no more room.
    fn take(&mut self, state: &mut State, index_limit: u64, geometry: Geometry) {
        let mut index_bytes = state.index_bytes;
        while let Some(change) = state.waiting.front() {
            let bytes = match &change.object {
                Some(object) => format::create_bytes(&change.key, object),
                None => format::delete_bytes(&change.key),
            };
            if self.body.len() + bytes > MAX_BODY_BYTES {
                return;
            }
            let Some(Change { key, object, outcome }) = state.waiting.pop_front() else { return };
            let there = match self.changed.get(&key) {
                Some(changed) => changed.is_some(),
                None => state.objects.contains_key(&key),
            };
            let result = match (object, &state.failed) {
                (_, Some(error)) => Err(PutError::Failed(error.clone())),
                (Some(object), _) if there => {
                    self.unused.push(object.extents);
                    Err(PutError::Exists)
                }
                (Some(object), _) if index_bytes + bytes as u64 > index_limit => {
                    self.unused.push(object.extents);
                    Err(no_space(&key, state.usage(geometry)))
                }
                (Some(object), _) => {
                    format::encode_create(&key, &object, &mut self.body);
                    index_bytes += bytes as u64;
                    self.creates = true;
                    self.changed.insert(key, Some(Arc::new(object)));
                    Ok(())
                }
                (None, _) if there => {
                    format::encode_delete(&key, &mut self.body);
                    if let Some(Some(object)) = self.changed.insert(key, None) {
                        // This frame itself creates it.
                        self.unused.push(object.extents.clone());
                    }
                    Ok(())
                }
                (None, _) => Ok(()),
            };
            self.outcomes.push((outcome, result));
        }
    }
}
