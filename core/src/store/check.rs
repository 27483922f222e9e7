//! Verifies objects offline, for `longhaul check`: with any reader, changing nothing.
//!
//! Segments are to be given in order from the first; a root when the segment has been that it is of, then
//! its fragments; old checkpoints each on its own.

use super::catalog::{RootName, VolumeSpec};
use super::checkpoint::{Checkpoint, CheckpointError, Reader};
use super::log::State;
use super::map::fragment::{Fragment, Index};
use super::map::page::Entry;
use super::map::table::Table;
use super::map::{MapError, Place};
use super::root::{self, Root};
use super::segment::{self, Segment, SegmentKind};
use crate::block::{MAX_VOLUME_SECTORS, Range};
use crate::extent::Extent;
use bytes::Bytes;

/// Verifies a log segment by segment.
#[derive(Debug)]
pub struct LogCheck {
    state: State,
    table: Table,
    skipped: bool,
    /// A damaged segment may have resized the volume.
    size_unknown: bool,
}

impl LogCheck {
    /// Begins with the first segment.
    #[must_use]
    pub fn new(spec: &VolumeSpec) -> LogCheck {
        let state = State::new(spec, segment::MAX_ANNOUNCED);
        LogCheck { state, table: Table::new(), skipped: false, size_unknown: false }
    }

    /// The number of the segment that comes next.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.state.number.saturating_add(1)
    }

    /// Verifies the next segment: all of its checksums, and that it goes on where the one before
    /// ended. After a damaged one the check goes on with the segment itself; only continuity across
    /// the damage cannot be judged.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn handle_segment(&mut self, object: &Bytes) -> Result<Segment, String> {
        let number = self.next();
        let checked = segment::verify(object).map_err(|error| error.to_string());
        let result = checked.and_then(|segment| {
            if self.skipped && segment.header.number == number {
                self.state.header_crc = segment.header.previous;
                self.state.committed = segment.header.first - 1;
            }
            if self.size_unknown && segment.header.kind == SegmentKind::Resize {
                self.state.sectors = segment.header.sectors.saturating_sub(1);
                self.size_unknown = false;
            }
            let followed = self.state.follows(&segment);
            match followed {
                Ok(()) => {
                    self.skipped = false;
                    self.state.commit(&segment);
                    for piece in &segment.footer.pieces {
                        self.table.apply(number, piece);
                    }
                    Ok(segment)
                }
                // Which epochs began in a damaged segment is not known either.
                Err(_) if self.skipped => {
                    self.state.number = number;
                    Ok(segment)
                }
                Err(reason) => Err(reason.to_owned()),
            }
        });
        if result.is_err() {
            self.handle_missing(1);
        }
        result
    }

    /// The next segments, this many, are not there or cannot be read.
    pub fn handle_missing(&mut self, segments: u64) {
        self.state.number = self.state.number.saturating_add(segments);
        self.skipped |= segments > 0;
        if segments > 0 {
            self.size_unknown = true;
            self.state.sectors = MAX_VOLUME_SECTORS;
        }
    }

    /// The map so far: what the segments that were intact say.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The state of the log so far; not meaningful once a segment was damaged.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }
}

/// Verifies a root, and that its fragments are the map that the segments say.
#[derive(Debug)]
pub struct RootCheck {
    root: Root,
    table: Table,
}

impl RootCheck {
    /// Begins with the root.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(spec: &VolumeSpec, name: RootName, object: &[u8]) -> Result<RootCheck, MapError> {
        let root = root::parse(spec, object, segment::MAX_ANNOUNCED)?;
        if (root.generation, root.state.number) == (name.generation, name.segment) {
            Ok(RootCheck { root, table: Table::new() })
        } else {
            Err(MapError::Invalid("it is not the one of its name"))
        }
    }

    /// The fragments that it names, in the order in which they are to be given.
    #[must_use]
    pub fn fragments(&self) -> Vec<Fragment> {
        let levels = &self.root.levels;
        levels.runs().iter().chain(levels.sorted()).rev().flatten().copied().collect()
    }

    /// Verifies the next fragment: all of its checksums, and that it is the one that the root names.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn handle_fragment(&mut self, named: &Fragment, object: &Bytes) -> Result<(), MapError> {
        if Fragment::verify(object)? != *named {
            return Err(MapError::Invalid("it is another one than the root names"));
        }
        let range = named.index_range();
        let index = Index::new(named, object.slice(range.start as usize..range.end as usize))?;
        for page in 0..index.pages() {
            let range = index.range(page);
            let bytes = &object[range.start as usize..range.end as usize];
            for entry in index.verified_entries(page, bytes)? {
                let Entry { range, place } = entry?;
                self.table.replace(range, place);
            }
        }
        Ok(())
    }

    /// Compares it with what the segments up to its own say, once all fragments were given.
    ///
    /// # Errors
    /// The first difference.
    pub fn compare(&self, log: &LogCheck) -> Result<(), String> {
        let (state, said) = (&self.root.state, &log.state);
        let same = (state.number, state.header_crc, state.sectors, state.committed, state.clean)
            == (said.number, said.header_crc, said.sectors, said.committed, said.clean)
            && state.history == said.history;
        if !same {
            return Err("its state is not what the segments say".to_owned());
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
                        "its map is not what the segments say, from sector {first} on"
                    ));
                }
            }
        }
    }
}

/// What is mapped, in order, in as few runs as possible.
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

/// Verifies a checkpoint whose bytes come in pieces of any size.
///
/// # Errors
/// See [`CheckpointError`].
pub fn check_checkpoint(
    spec: &VolumeSpec,
    number: u64,
    pieces: impl IntoIterator<Item = Bytes>,
) -> Result<Checkpoint, CheckpointError> {
    let mut reader = Reader::new(spec, number, segment::MAX_ANNOUNCED);
    for piece in pieces {
        reader.push(&piece)?;
    }
    reader.finish()
}
