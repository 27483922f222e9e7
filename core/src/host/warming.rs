//! Bringing ranges into the read cache: those that a command names, and those that are pinned and not
//! there.
//!
//! Promises: nothing is asked for that is in the cache; what is under way together with what is on its
//! way to the cache's disk stays below [`AHEAD_BYTES`], so that the cache can take what comes; the limit
//! of reading ahead holds. What comes is offered to the cache under the same rule as any answer of the
//! store: not if anything was written that the store may not have had. That is tried again later.

use super::cache::{Pins, Source, WRITING_BYTES_MAX, whole_lines};
use super::io::Event;
use super::reads::LinkUse;
use super::volume::{Link, Volume};
use crate::block::{Range, ReadPiece, SECTOR_BYTES, Time};
use crate::extent::{RangeSet, Uniform};
use std::time::Duration;

/// Most bytes asked for and not yet on the cache's disk: the rest of what may be on its way there is
/// for what clients read.
const AHEAD_BYTES: u64 = WRITING_BYTES_MAX / 4 * 3;
/// Sectors asked for at once (256 KiB).
const PIECE: u64 = 512;
/// Pieces looked at before anything else has its turn: most are in the cache.
const LOOKS: usize = 256;
const TURN: Duration = Duration::from_millis(1);
/// Pause before what could not be had is tried again.
const PAUSE: Duration = Duration::from_millis(200);

/// Why ranges cannot be warmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WarmError {
    /// There is no read cache.
    #[error("there is no read cache")]
    NoCache,
    /// Its disk has failed.
    #[error("the disk of the read cache has failed")]
    Failed,
    /// Something is being warmed already.
    #[error("something is being warmed already")]
    Busy,
    /// It would not fit beside what is pinned.
    #[error("{bytes} bytes do not fit into {most}")]
    TooMuch {
        /// Bytes in the ranges that are not pinned.
        bytes: u64,
        /// Bytes of the cache that are not.
        most: u64,
    },
}

/// Where warming by command stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarmState {
    /// It goes on.
    Running,
    /// It came to its end.
    Done,
    /// It was stopped.
    Stopped,
}

/// Warming by command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WarmStatus {
    /// Counts the commands since the attach.
    pub number: u64,
    /// Where it stands.
    pub state: WarmState,
    /// Bytes in its ranges.
    pub total_bytes: u64,
    /// Bytes of these that are in the cache by now, or were already.
    pub done_bytes: u64,
    /// Bytes that the store could not give.
    pub failed_bytes: u64,
}

/// For whom content is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    /// The command of this number.
    Command(u64),
    /// What is pinned.
    Pins,
}

/// A way through a set whose elements leave it as they are asked for, and may come back.
#[derive(Debug, Default)]
struct Walk {
    at: u64,
    rest: Option<Time>,
}

impl Walk {
    fn next(&mut self, now: Time, set: &RangeSet) -> Option<Range> {
        if set.is_empty() || self.rest.is_some_and(|until| until > now) {
            return None;
        }
        self.rest = None;
        let Some((range, _)) = set.iter_from(self.at).next() else {
            *self = Walk { at: 0, rest: Some(now.after(PAUSE)) };
            return None;
        };
        let lba = range.lba.max(self.at);
        self.at = range.end().min((lba / PIECE + 1) * PIECE);
        Some(Range::between(lba, self.at))
    }
}

#[derive(Debug)]
struct Job {
    status: WarmStatus,
    left: RangeSet,
    left_sectors: u64,
    in_flight: u64,
    walk: Walk,
}

/// What is to be brought into the cache, and what is under way.
#[derive(Debug, Default)]
pub(super) struct Warming {
    job: Option<Job>,
    pins: Walk,
    in_flight: u64,
    turn: Option<Time>,
}

impl Warming {
    pub(super) fn status(&self) -> Option<WarmStatus> {
        let job = self.job.as_ref()?;
        let open = job.left_sectors * SECTOR_BYTES + job.in_flight + job.status.failed_bytes;
        let done_bytes = job.status.total_bytes.saturating_sub(open);
        Some(WarmStatus { done_bytes, ..job.status })
    }

    fn running(&mut self) -> Option<&mut Job> {
        self.job.as_mut().filter(|job| job.status.state == WarmState::Running)
    }

    fn job_of(&mut self, whose: For) -> Option<&mut Job> {
        self.running().filter(|job| whose == For::Command(job.status.number))
    }
}

impl Volume {
    /// This is pinned from now on and nothing else, as far as the cache allows
    /// ([`super::cache::CacheStatus::pinned_most_bytes`]): what clients read and write of it stays in
    /// the cache, and what is not there is read ahead. False if there is no cache.
    pub fn handle_pins(&mut self, now: Time, pins: Pins) -> bool {
        self.input(now);
        self.warming.pins = Walk::default();
        self.caching.set_pins(pins)
    }

    /// What is pinned, if there is a cache.
    #[must_use]
    pub fn pins(&self) -> Option<&Pins> {
        Some(self.caching.get()?.pins())
    }

    /// Brings ranges into the cache, as fast as the line allows and behind everything that clients
    /// read, whatever they replace there. [`super::Status::warming`] says how it goes, and
    /// [`Event::Warmed`] that it has come to its end.
    ///
    /// # Errors
    /// If that cannot be.
    pub fn handle_warm(&mut self, now: Time, ranges: &[Range]) -> Result<(), WarmError> {
        self.input(now);
        let cache = self.caching.get().ok_or(WarmError::NoCache)?;
        let status = cache.status();
        if status.off {
            return Err(WarmError::Failed);
        }
        if self.warming.running().is_some() {
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
        let number = self.warming.job.as_ref().map_or(0, |job| job.status.number) + 1;
        let status = WarmStatus {
            number,
            state: WarmState::Running,
            total_bytes: left_sectors * SECTOR_BYTES,
            done_bytes: 0,
            failed_bytes: 0,
        };
        let walk = Walk::default();
        self.warming.job = Some(Job { status, left, left_sectors, in_flight: 0, walk });
        Ok(())
    }

    /// Ends warming by command; false if there was none.
    pub fn handle_stop_warming(&mut self, now: Time) -> bool {
        self.input(now);
        let Some(job) = self.warming.running() else { return false };
        job.status.state = WarmState::Stopped;
        true
    }

    /// Goes on with what is to be warmed.
    pub(super) fn warm_on(&mut self) {
        self.warm_end();
        let now = self.context.now;
        if self.link != Link::Up || self.warming.turn.is_some_and(|turn| turn > now) {
            return;
        }
        self.warming.turn = None;
        for _ in 0..LOOKS {
            let Some(cache) = self.caching.ready() else { return };
            let ahead = self.warming.in_flight + cache.writing_bytes();
            let most = AHEAD_BYTES.min(self.readahead.window().max(PIECE * SECTOR_BYTES));
            if ahead >= most || self.readahead.limit.wait(now).is_some() {
                return;
            }
            let job = self.warming.running();
            let next = job.and_then(|job| {
                let piece = job.walk.next(now, &job.left)?;
                job.left.remove(piece);
                job.left_sectors -= piece.sectors;
                Some((For::Command(job.status.number), piece))
            });
            let next = next.or_else(|| {
                let piece = self.warming.pins.next(now, cache.lacking())?;
                cache.take_lacking(piece);
                Some((For::Pins, piece))
            });
            let Some((whose, piece)) = next else { return };
            self.warm(whose, piece);
            self.warm_end();
        }
        self.warming.turn = Some(now.after(TURN));
    }

    /// Asks for what of a piece is not in the cache, as far as the store has it.
    fn warm(&mut self, whose: For, piece: Range) {
        // The last line that is pinned may be longer than the volume.
        let Some(piece) = piece.intersect(Range::new(0, self.sectors())) else { return };
        for missing in self.caching.missing(piece) {
            let committed = self.log.committed();
            let mut wanted = RangeSet::new();
            wanted.insert(missing, Uniform(()));
            let uncommitted: Vec<Range> = self
                .log
                .cover(missing)
                .filter(|(_, place)| place.is_some_and(|place| place.seq > committed))
                .filter_map(|(part, _)| whole_lines(part).intersect(missing))
                .collect();
            for part in uncommitted {
                wanted.remove(part);
                self.warm_later(whose, part);
            }
            let wanted: Vec<Range> = wanted.iter_from(0).map(|(range, _)| range).collect();
            for range in wanted {
                self.warming.in_flight += range.bytes();
                if let Some(job) = self.warming.job_of(whose) {
                    job.in_flight += range.bytes();
                }
                self.readahead.limit.take(self.context.now, range.bytes());
                self.ask(range, LinkUse::Warm(whose), false);
            }
        }
    }

    fn warm_later(&mut self, whose: For, range: Range) {
        match whose {
            For::Pins => self.caching.lack(range),
            For::Command(_) => {
                if let Some(job) = self.warming.job_of(whose) {
                    // Parts of lines may come twice.
                    let there: u64 =
                        job.left.overlapping(range).map(|(part, _)| part.sectors).sum();
                    job.left.insert(range, Uniform(()));
                    job.left_sectors += range.sectors - there;
                }
            }
        }
    }

    fn warm_landed(&mut self, whose: For, range: Range) {
        let in_flight = &mut self.warming.in_flight;
        *in_flight = in_flight.saturating_sub(range.bytes());
        if let Some(job) = self.warming.job_of(whose) {
            job.in_flight -= range.bytes();
        }
    }

    /// The store has answered; `found` if the answer is good.
    pub(super) fn warm_came(
        &mut self,
        whose: For,
        range: Range,
        found: Option<Vec<ReadPiece>>,
        spoiled: bool,
        again: bool,
    ) {
        let Some(pieces) = found else {
            if again {
                return self.warm_failed(whose, range);
            }
            return self.ask(range, LinkUse::Warm(whose), true);
        };
        self.warm_landed(whose, range);
        let taken = match self.caching.ready() {
            Some(cache) if !spoiled => {
                let version = &mut |block| self.versions.version_offered(block);
                cache.offer_versions(self.context.now, Source::Warm, range, &pieces, version)
            }
            _ => false,
        };
        if !taken {
            self.warm_later(whose, range);
        }
    }

    /// The store cannot give it.
    pub(super) fn warm_failed(&mut self, whose: For, range: Range) {
        self.warm_landed(whose, range);
        if let Some(job) = self.warming.job_of(whose) {
            job.status.failed_bytes += range.bytes();
        }
    }

    /// Says so if what a command asked for is done.
    fn warm_end(&mut self) {
        let Some(job) = self.warming.running() else { return };
        if job.left.is_empty() && job.in_flight == 0 {
            job.status.state = WarmState::Done;
            let WarmStatus { total_bytes, failed_bytes, .. } = job.status;
            self.out.event(Event::Warmed { bytes: total_bytes - failed_bytes, failed_bytes });
        }
    }

    /// When [`Volume::warm_on`] has something to do that it has not now.
    pub(super) fn warm_deadline(&self) -> Option<Time> {
        let cache = self.caching.get().filter(|cache| cache.is_ready())?;
        let job = self.warming.job.as_ref();
        let job = job.filter(|job| job.status.state == WarmState::Running && !job.left.is_empty());
        let pins = (!cache.lacking().is_empty()).then_some(&self.warming.pins);
        let first = [job.map(|job| &job.walk), pins].into_iter().flatten();
        let rest = first.map(|walk| walk.rest.unwrap_or(self.context.now)).min()?;
        let limit = self.readahead.limit.wait(self.context.now);
        // What waits for room is woken by what makes it.
        [Some(rest), self.warming.turn, limit].into_iter().flatten().max()
    }
}
