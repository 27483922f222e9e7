//! Verifies objects offline, for `longhaul check`: with any reader and without changes.
//!
//! The caller gives segments in order from the first. After the segment of a root it gives that
//! root, and then the fragments of the root.

use super::announce::Outstanding;
use super::catalog::{self, RootName, VolumeSpec};
use super::gc::bundle::Bundle;
use super::gc::moved;
use super::log::LogState;
use super::map::fragment::{Fragment, Index};
use super::map::page::MapEntry;
use super::map::table::Table;
use super::map::{MapError, Place};
use super::root::{self, Root};
use super::segment::{self, Segment, SegmentKind};
use super::snapshot::Snapshots;
use crate::block::{MAX_VOLUME_SECTORS, Range};
use crate::extent::Extent;
use bytes::Bytes;
use std::collections::BTreeMap;

/// Verifies a log segment by segment.
#[derive(Debug)]
pub struct LogCheck {
    state: LogState,
    table: Table,
    /// The changes since the last snapshot, or since a rollback to a snapshot.
    said: Table,
    /// That snapshot.
    since: Option<u64>,
    /// The changes of each snapshot against another one, and the number of that other one.
    taken: BTreeMap<u64, (Option<u64>, Table)>,
    skipped: bool,
    /// A damaged segment may have resized the volume.
    size_unknown: bool,
    damaged: bool,
}

impl LogCheck {
    /// Begins with the first segment.
    #[must_use]
    pub fn new(spec: &VolumeSpec) -> LogCheck {
        let state = LogState::new(spec, segment::MAX_ANNOUNCED);
        let (table, said, since, taken) = (Table::new(), Table::new(), None, BTreeMap::new());
        let (skipped, size_unknown, damaged) = (false, false, false);
        LogCheck { state, table, said, since, taken, skipped, size_unknown, damaged }
    }

    /// Continues with a clone of the verified volume. The clone begins with the log of its parent
    /// up to the segment that took the snapshot.
    #[must_use]
    pub fn begin_clone(self, spec: &VolumeSpec) -> LogCheck {
        let announced = Outstanding::new(segment::MAX_ANNOUNCED);
        let snapshots = Snapshots::default();
        let state = LogState { volume: spec.id, clean: true, announced, snapshots, ..self.state };
        // Its own snapshots have all that the parent had; none is beyond one of the parent's.
        let said = self.table.clone();
        LogCheck { state, said, since: None, taken: BTreeMap::new(), ..self }
    }

    /// Whether all segments so far were there and intact.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        !self.damaged
    }

    /// Begins after the segment of a root, once the caller has given all fragments of that root.
    /// The segments before may be missing.
    #[must_use]
    pub fn after(root: &RootCheck) -> LogCheck {
        let (state, table, said) =
            (root.root.state.clone(), root.table.clone(), root.table.clone());
        let (skipped, size_unknown, damaged) = (false, false, false);
        let (since, taken) = (None, BTreeMap::new());
        LogCheck { state, table, said, since, taken, skipped, size_unknown, damaged }
    }

    /// The number of the segment that comes next.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.state.next_number()
    }

    /// Verifies the next segment: all of its checksums, and that it continues the segment before.
    /// After a damaged segment the check continues with the next one, and cannot judge continuity
    /// across the damage.
    ///
    /// # Errors
    /// A description of the damage.
    pub fn handle_segment(&mut self, object: &Bytes) -> Result<Segment, String> {
        let number = self.next();
        let checked = segment::verify(object).map_err(|error| error.to_string());
        let result = checked.and_then(|segment| {
            if self.skipped && segment.header.number == number {
                self.state.void_after = segment.header.void_after;
                self.state.header_crc = segment.header.previous;
                self.state.committed = segment.header.first - 1;
            }
            if self.size_unknown && segment.header.kind == SegmentKind::Resize {
                self.state.sectors = segment.header.sectors.saturating_sub(1);
                self.size_unknown = false;
            }
            if self.size_unknown
                && segment.header.kind == SegmentKind::Shrink
                && let Some(piece) = segment.footer.pieces.last()
            {
                self.state.sectors = piece.range.end();
                self.size_unknown = false;
            }
            let followed = self.state.follows(&segment);
            match followed {
                Ok(()) => {
                    self.skipped = false;
                    self.state.commit(&segment);
                    for piece in &segment.footer.pieces {
                        self.table.apply(number, piece);
                        self.said.apply(number, piece);
                    }
                    self.mark(&segment);
                    Ok(segment)
                }
                // The damaged segment may also have begun epochs that this check does not know.
                Err(_) if self.skipped => {
                    self.state.number = number;
                    self.state.void_after = segment.header.last_void_after();
                    Ok(segment)
                }
                Err(reason) => Err(reason.to_owned()),
            }
        });
        if result.is_err() {
            self.handle_missing(number);
        }
        result
    }

    /// Keeps what a snapshot is, or goes back to it.
    fn mark(&mut self, segment: &Segment) {
        let Some(note) = &segment.footer.note else { return };
        match segment.header.kind {
            SegmentKind::Snapshot => {
                let said = std::mem::take(&mut self.said);
                self.taken.insert(note.segment, (self.since, said));
                self.since = Some(note.segment);
            }
            SegmentKind::Rollback => {
                (self.said, self.since) = (Table::new(), Some(note.segment));
                // The snapshot is older than the beginning of this check.
                self.damaged |= !self.taken.contains_key(&note.segment);
                let mut parts = Vec::new();
                let mut at = self.since;
                while let Some((before, said)) = at.and_then(|segment| self.taken.get(&segment)) {
                    parts.push(said);
                    at = *before;
                }
                let oldest_first = parts.into_iter().rev().cloned();
                self.table = oldest_first.fold(Table::new(), Table::overwritten_by);
            }
            _ => {}
        }
    }

    /// The reader cannot read the next segments up to number `last`, or they are missing.
    pub fn handle_missing(&mut self, last: u64) {
        if last <= self.state.number {
            return;
        }
        self.state.number = last;
        (self.skipped, self.size_unknown, self.damaged) = (true, true, true);
        self.state.sectors = MAX_VOLUME_SECTORS;
    }

    /// The segments from the next one to the one before `until`, which are missing. The segment
    /// `until`, with that beginning, says which of these numbers are void.
    pub fn missing(&self, until: u64, object: &[u8]) -> impl Iterator<Item = u64> + use<> {
        let void_after = segment::parse_header(object).map_or(0, |(header, _)| header.void_after);
        let is_void = move |number: u64| {
            segment::number_before(number.saturating_add(1), void_after) != number
        };
        (self.next()..until).filter(move |number| !is_void(*number))
    }

    /// Whether a segment, with that beginning, may exist after the end of the log: a dead engine
    /// had it on its way. It does not count. `proves`: the segments prove those before them.
    #[must_use]
    pub fn is_leftover(&self, number: u64, object: &[u8], proves: bool) -> bool {
        let next = self.next();
        let near = (next + 1..next + segment::IN_FLIGHT_MAX).contains(&number);
        let header = segment::parse_header(object);
        near && header.is_ok_and(|(header, _)| {
            header.number == number && !(proves && header.number_durable() >= next)
        })
    }

    /// The map so far, as the intact segments say.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The state of the log so far; meaningless after a damaged segment.
    #[must_use]
    pub fn state(&self) -> &LogState {
        &self.state
    }
}

/// The part of an object that a root needs.
#[derive(Clone, Debug, Default)]
pub struct Need {
    /// The name of the bundle, if the object is one.
    pub bundle: Option<Bundle>,
    /// Sectors, and where the segments had them.
    pub runs: Vec<(Range, Place)>,
}

/// Verifies a root, and that its fragments are the map that the segments say.
#[derive(Debug)]
pub struct RootCheck {
    spec: VolumeSpec,
    root: Root,
    table: Table,
    moved: BTreeMap<u64, Bundle>,
}

impl RootCheck {
    /// Begins with the root.
    ///
    /// # Errors
    /// The damage of the root.
    pub fn new(spec: &VolumeSpec, name: RootName, object: &[u8]) -> Result<RootCheck, MapError> {
        let root = root::parse(spec, object, segment::MAX_ANNOUNCED)?;
        if (root.generation, root.state.number) == (name.generation, name.segment) {
            let (table, moved) = (Table::new(), BTreeMap::new());
            Ok(RootCheck { spec: spec.clone(), root, table, moved })
        } else {
            Err(MapError::Invalid("it is not the one of its name"))
        }
    }

    /// The fragments that the root names, in the order in which the caller gives them.
    #[must_use]
    pub fn fragments(&self) -> Vec<Fragment> {
        let levels = &self.root.levels;
        levels.runs().iter().chain(levels.sorted()).rev().flatten().copied().collect()
    }

    /// The same of the second map, which says what has moved.
    #[must_use]
    pub fn moved_fragments(&self) -> Vec<Fragment> {
        let levels = &self.root.moved.levels;
        levels.runs().iter().chain(levels.sorted()).rev().flatten().copied().collect()
    }

    /// Whether the volume may have deleted segments before it wrote the root.
    #[must_use]
    pub fn has_collected(&self) -> bool {
        !self.root.moved.is_empty()
    }

    /// Verifies the next fragment of the second map.
    ///
    /// # Errors
    /// The damage of the fragment.
    pub fn handle_moved(&mut self, named: &Fragment, object: &Bytes) -> Result<(), MapError> {
        let volume = self.root.state.volume;
        let moved = &mut self.moved;
        entries(named, object, |MapEntry { range, place }| {
            for segment in range.lba..range.end() {
                match place {
                    Some(place) => moved.insert(segment, moved::bundle_at(volume, place)),
                    None => moved.remove(&segment),
                };
            }
        })
    }

    /// The roots of the snapshots that it names.
    pub fn pins(&self) -> impl Iterator<Item = RootName> + '_ {
        self.root.pins.values().copied()
    }

    /// The objects that the root needs, by key, and the parts of each. For a clone this leaves out
    /// the objects of its parents: their own checks look at these.
    #[must_use]
    pub fn needs(&self) -> BTreeMap<String, Need> {
        let mut needs = BTreeMap::new();
        for (range, place) in runs(&self.table) {
            self.need(range, place, &mut needs);
        }
        needs
    }

    /// Like [`needs`](Self::needs), for a fragment of a snapshot's root that this root names.
    ///
    /// # Errors
    /// The damage of the fragment.
    pub fn needs_of(
        &self,
        named: &Fragment,
        object: &Bytes,
    ) -> Result<BTreeMap<String, Need>, MapError> {
        let mut needs = BTreeMap::new();
        entries(named, object, |MapEntry { range, place }| {
            if let Some(place) = place {
                self.need(range, place, &mut needs);
            }
        })?;
        Ok(needs)
    }

    fn need(&self, range: Range, place: Place, needs: &mut BTreeMap<String, Need>) {
        let (volume, segment) = (self.spec.id, place.segment());
        let own = place.is_staged() || self.spec.owner_of(segment) == volume;
        if place.is_zero() || !own || place.is_staged() && !self.spec.parents.is_empty() {
            return;
        }
        let bundle = self.moved.get(&segment).filter(|_| !place.is_staged());
        let key = match bundle {
            Some(bundle) => catalog::bundle_key(bundle.id),
            None => catalog::data_key(volume, segment),
        };
        let need = needs.entry(key).or_default();
        need.bundle = bundle.copied();
        need.runs.push((range, place));
    }

    /// Verifies the next fragment: all of its checksums, and that the root names this one.
    ///
    /// # Errors
    /// The damage of the fragment.
    pub fn handle_fragment(&mut self, named: &Fragment, object: &Bytes) -> Result<(), MapError> {
        let table = &mut self.table;
        entries(named, object, |MapEntry { range, place }| table.replace(range, place))
    }

    /// Compares the root with the segments up to its own, once the caller has given all fragments.
    ///
    /// # Errors
    /// The first difference.
    pub fn compare(&self, log: &LogCheck) -> Result<(), String> {
        let (state, said) = (&self.root.state, &log.state);
        let same = (state.number, state.header_crc, state.sectors, state.committed, state.clean)
            == (said.number, said.header_crc, said.sectors, said.committed, said.clean)
            && state.history == said.history;
        if !same {
            return Err("its state differs from the segments".to_owned());
        }
        let (mut map, mut expected) = (runs(&self.table), runs(&log.table));
        loop {
            match (map.next(), expected.next()) {
                (None, None) => return Ok(()),
                (found, expected) if found == expected => {}
                (found, expected) => {
                    let at = |run: Option<(Range, Place)>| run.map(|(range, _)| range);
                    let first = at(found).into_iter().chain(at(expected)).map(|range| range.lba);
                    let first = first.min().unwrap_or(0);
                    return Err(format!(
                        "its map differs from the segments, from sector {first} on"
                    ));
                }
            }
        }
    }
}

/// Verifies a fragment, and that it is the named one. Returns its entries.
fn entries(
    named: &Fragment,
    object: &Bytes,
    mut take: impl FnMut(MapEntry),
) -> Result<(), MapError> {
    if Fragment::verify(object)? != *named {
        return Err(MapError::Invalid("it is another one than the root names"));
    }
    let range = named.index_range();
    let index = Index::new(named, object.slice(range.start as usize..range.end as usize))?;
    for page in 0..index.pages() {
        let range = index.range(page);
        let bytes = &object[range.start as usize..range.end as usize];
        for entry in index.verified_entries(page, bytes)? {
            take(entry?);
        }
    }
    Ok(())
}

/// The mapped ranges, in order, in as few runs as possible.
fn runs(table: &Table) -> impl Iterator<Item = (Range, Place)> + '_ {
    let mapped = table.iter_from(0).filter_map(|(range, place)| Some((range, place?)));
    let mut mapped = mapped.peekable();
    std::iter::from_fn(move || {
        let (mut range, place) = mapped.next()?;
        while let Some((next, _)) = mapped.next_if(|(next, other)| {
            next.lba == range.end() && place.continues(range.sectors, other)
        }) {
            range.sectors += next.sectors;
        }
        Some((range, place))
    })
}
