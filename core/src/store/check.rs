//! Verifies objects offline, for `longhaul check`: with any reader, changing nothing.
//!
//! Segments are to be given in order from the first; checkpoints each on its own.

use super::catalog::VolumeSpec;
use super::checkpoint::{Checkpoint, CheckpointError, Reader};
use super::log::State;
use super::segment::{self, Segment, SegmentKind};
use crate::block::MAX_VOLUME_SECTORS;
use bytes::Bytes;

/// Verifies a log segment by segment.
#[derive(Debug)]
pub struct LogCheck {
    state: State,
    skipped: bool,
    /// A damaged segment may have resized the volume.
    size_unknown: bool,
}

impl LogCheck {
    /// Begins with the first segment.
    #[must_use]
    pub fn new(spec: &VolumeSpec) -> LogCheck {
        let state = State::new(spec, segment::MAX_ANNOUNCED);
        LogCheck { state, skipped: false, size_unknown: false }
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

    /// The state of the log so far; not meaningful once a segment was damaged.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }
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
