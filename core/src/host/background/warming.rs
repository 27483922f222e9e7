//! Brings ranges into the read cache: those that a command names, and the pinned ones that it
//! lacks.
//!
//! Promises: warming does not ask for ranges that the cache has. Its requests, together with the
//! data on the way to the cache's disk, stay below [`AHEAD_BYTES`], so that the cache can take the
//! answers. The limit of read-ahead holds. The cache gets these answers under the same rule as any
//! answer of the store: not if the store may have lacked a write. Warming tries such ranges again
//! later.

use super::piece::PIECE;
use super::status::{WarmState, WarmStatus};
use crate::block::{Range, SECTOR_BYTES, Time};
use crate::extent::{RangeSet, Uniform};
use crate::host::cache::{Cache, WRITING_BYTES_MAX};
use crate::host::io::Event;
use crate::host::outputs::Outputs;
use std::time::Duration;

/// Most bytes asked for and not yet on the cache's disk. The rest of the limit for that disk is for
/// reads of clients.
const AHEAD_BYTES: u64 = WRITING_BYTES_MAX / 4 * 3;
/// Pieces to look at before other work has its turn, because the cache has most of them.
const LOOKS: usize = 256;
const TURN: Duration = Duration::from_millis(1);
/// Pause before the next attempt at a range that failed.
const PAUSE: Duration = Duration::from_millis(200);

/// Why a command cannot warm ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WarmError {
    /// The volume has no read cache.
    #[error("the volume has no read cache")]
    NoCache,
    /// Its disk has failed.
    #[error("the disk of the read cache has failed")]
    Failed,
    /// Another warming is under way.
    #[error("something is being warmed already")]
    Busy,
    /// The ranges do not fit beside the pinned ones.
    #[error("{bytes} bytes do not fit into {most}")]
    TooMuch {
        /// Bytes in the ranges that no pin covers.
        bytes: u64,
        /// Bytes of the cache that no pin covers.
        most: u64,
    },
}

/// For whom content is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::host) enum WarmingFor {
    /// The command of this number.
    Command(u64),
    /// Pinned ranges.
    Pins,
}

/// Walks through a set. Elements leave the set when requests go out, and may come back.
#[derive(Debug, Default)]
struct Cursor {
    at: u64,
    rest: Option<Time>,
}

impl Cursor {
    fn next(&mut self, now: Time, set: &RangeSet) -> Option<Range> {
        if set.is_empty() || self.rest.is_some_and(|until| until > now) {
            return None;
        }
        self.rest = None;
        let Some((range, _)) = set.iter_from(self.at).next() else {
            *self = Cursor { at: 0, rest: Some(now.after(PAUSE)) };
            return None;
        };
        let lba = range.lba.max(self.at);
        self.at = range.end().min((lba / PIECE + 1) * PIECE);
        Some(Range::between(lba, self.at))
    }
}

#[derive(Debug)]
struct WarmCommand {
    status: WarmStatus,
    left: RangeSet,
    left_sectors: u64,
    in_flight: u64,
    cursor: Cursor,
}

/// Ranges to bring into the cache, and ranges under way.
#[derive(Debug, Default)]
pub(in crate::host) struct Warming {
    command: Option<WarmCommand>,
    pins: Cursor,
    in_flight: u64,
    /// Pieces to look at in this turn.
    looks: usize,
    turn: Option<Time>,
}

impl Warming {
    // --- inputs ---

    /// The pinned ranges have changed.
    pub(in crate::host) fn pins_changed(&mut self) {
        self.pins = Cursor::default();
    }

    /// Brings ranges into the cache.
    pub(in crate::host) fn begin(
        &mut self,
        cache: Option<&Cache>,
        ranges: &[Range],
    ) -> Result<(), WarmError> {
        let cache = cache.ok_or(WarmError::NoCache)?;
        let status = cache.status();
        if status.off {
            return Err(WarmError::Failed);
        }
        if self.running().is_some() {
            return Err(WarmError::Busy);
        }
        let mut left = RangeSet::new();
        for range in ranges {
            left.insert(*range, Uniform(()));
        }
        let bytes = left.iter_from(0).map(|(range, _)| cache.unpinned_bytes(range)).sum();
        let most = status.capacity_bytes - status.pinned_bytes;
        if bytes > most {
            return Err(WarmError::TooMuch { bytes, most });
        }
        let left_sectors = left.mapped_sectors();
        let number = self.command.as_ref().map_or(0, |command| command.status.number) + 1;
        let status = WarmStatus {
            number,
            state: WarmState::Running,
            total_bytes: left_sectors * SECTOR_BYTES,
            done_bytes: 0,
            failed_bytes: 0,
        };
        let cursor = Cursor::default();
        self.command = Some(WarmCommand { status, left, left_sectors, in_flight: 0, cursor });
        Ok(())
    }

    /// Ends warming by command; false if there was none.
    pub(in crate::host) fn stop(&mut self) -> bool {
        let Some(command) = self.running() else { return false };
        command.status.state = WarmState::Stopped;
        true
    }

    // --- pieces ---

    /// Whether a turn begins.
    pub(in crate::host) fn begin_turn(&mut self, now: Time) -> bool {
        if self.turn.is_some_and(|turn| turn > now) {
            return false;
        }
        self.turn = None;
        self.looks = LOOKS;
        true
    }

    /// The next piece to look at, if the `cache` is ready. `window` are the bytes that keep the way
    /// to the store full. `limited`: the limit of read-ahead lets nothing through.
    pub(in crate::host) fn next_piece(
        &mut self,
        now: Time,
        (window, limited): (u64, bool),
        cache: Option<&mut Cache>,
    ) -> Option<(WarmingFor, Range)> {
        if self.looks == 0 {
            self.turn = Some(now.after(TURN));
            return None;
        }
        self.looks -= 1;
        let cache = cache?;
        let ahead = self.in_flight + cache.writing_bytes();
        if ahead >= AHEAD_BYTES.min(window.max(PIECE * SECTOR_BYTES)) || limited {
            return None;
        }
        let commanded = self.running().and_then(|command| {
            let piece = command.cursor.next(now, &command.left)?;
            command.left.remove(piece);
            command.left_sectors -= piece.sectors;
            Some((WarmingFor::Command(command.status.number), piece))
        });
        commanded.or_else(|| {
            let piece = self.pins.next(now, cache.lacking())?;
            cache.take_lacking(piece);
            Some((WarmingFor::Pins, piece))
        })
    }

    /// Notes a request for a range.
    pub(in crate::host) fn asked(&mut self, whose: WarmingFor, range: Range) {
        self.in_flight += range.bytes();
        if let Some(command) = self.command_of(whose) {
            command.in_flight += range.bytes();
        }
    }

    /// The store has answered.
    pub(in crate::host) fn landed(&mut self, whose: WarmingFor, range: Range) {
        self.in_flight = self.in_flight.saturating_sub(range.bytes());
        if let Some(command) = self.command_of(whose) {
            command.in_flight -= range.bytes();
        }
    }

    /// The store cannot give it.
    pub(in crate::host) fn failed(&mut self, whose: WarmingFor, range: Range) {
        self.landed(whose, range);
        if let Some(command) = self.command_of(whose) {
            command.status.failed_bytes += range.bytes();
        }
    }

    /// A range is not available now. Warming will ask for it once more. True if the cache has to
    /// remember that it lacks the range.
    pub(in crate::host) fn later(&mut self, whose: WarmingFor, range: Range) -> bool {
        if let Some(command) = self.command_of(whose) {
            // Parts of lines may come twice.
            let there: u64 = command.left.overlapping(range).map(|(part, _)| part.sectors).sum();
            command.left.insert(range, Uniform(()));
            command.left_sectors += range.sectors - there;
        }
        whose == WarmingFor::Pins
    }

    /// Reports that a command's warming is done.
    pub(in crate::host) fn end(&mut self, out: &mut Outputs) {
        let Some(command) = self.running() else { return };
        if command.left.is_empty() && command.in_flight == 0 {
            command.status.state = WarmState::Done;
            let WarmStatus { total_bytes, failed_bytes, .. } = command.status;
            out.event(Event::Warmed { bytes: total_bytes - failed_bytes, failed_bytes });
        }
    }

    // --- outputs ---

    /// The time of the next piece, if the cache is ready. `limit` is the time when the limit of
    /// read-ahead lets something through.
    pub(in crate::host) fn deadline(
        &self,
        now: Time,
        cache: &Cache,
        limit: Option<Time>,
    ) -> Option<Time> {
        let open = |command: &&WarmCommand| {
            command.status.state == WarmState::Running && !command.left.is_empty()
        };
        let command = self.command.as_ref().filter(open).map(|command| &command.cursor);
        let pins = (!cache.lacking().is_empty()).then_some(&self.pins);
        let first = [command, pins].into_iter().flatten();
        let rest = first.map(|cursor| cursor.rest.unwrap_or(now)).min()?;
        // A wait for room ends with the input that makes room.
        [Some(rest), self.turn, limit].into_iter().flatten().max()
    }

    pub(in crate::host) fn status(&self) -> Option<WarmStatus> {
        let command = self.command.as_ref()?;
        let open =
            command.left_sectors * SECTOR_BYTES + command.in_flight + command.status.failed_bytes;
        let done_bytes = command.status.total_bytes.saturating_sub(open);
        Some(WarmStatus { done_bytes, ..command.status })
    }

    fn running(&mut self) -> Option<&mut WarmCommand> {
        self.command.as_mut().filter(|command| command.status.state == WarmState::Running)
    }

    fn command_of(&mut self, whose: WarmingFor) -> Option<&mut WarmCommand> {
        self.running().filter(|command| whose == WarmingFor::Command(command.status.number))
    }
}
