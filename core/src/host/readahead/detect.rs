//! Finds patterns in reads, and the next ranges in them.
//!
//! The detector remembers a read that continues no stream for a while. Three reads in a row, or
//! four at equal distances, make a stream that is worth a read-ahead. Its window grows with its
//! reads. The detector must not know the content of memory, nor whether a read-ahead pays: the
//! caller says how much it may ask for.

use crate::block::{Range, SECTOR_BYTES, Time};
use std::collections::VecDeque;
use std::time::Duration;

/// Most streams. For a new one, the stream that was silent the longest makes room. This is more
/// than the number of threads that read from one disk at the same time. It is small enough to look
/// at all streams for every read.
const STREAMS: usize = 32;
/// Remembered reads, in which a pattern may begin.
const RECENT: usize = 32;
/// Farthest distance between reads of one stride, in sectors (16 MiB). A guess.
const MAX_STRIDE: u64 = 16 << 11;
/// Steps of a stride that may be ahead.
const MAX_STEPS: u64 = 64;
/// Continuations before the first read-ahead of a stream: three reads in a row ...
const SURE: u32 = 2;
/// ... and four at equal distances, since any two reads are at some distance.
const SURE_OF_STRIDE: u32 = 3;
/// Continuations after which reads may come out of order or leave small gaps, as from many threads.
const WELL_KNOWN: u32 = 6;
/// How far out of order, in sectors (256 KiB), and in steps of a stride.
const SLACK: u64 = 512;
const SLACK_STEPS: i64 = 8;
/// Smallest window in bytes.
pub(super) const MIN_WINDOW: u64 = 128 << 10;
/// Smallest and largest piece of a request, in bytes; between them, a quarter of the window. So the
/// next piece is on its way long before the last one has come.
const MIN_PIECE: u64 = 64 << 10;
const MAX_PIECE: u64 = 1 << 20;
/// A stream that was silent for longer takes no share of the buffer.
const SILENT: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pattern {
    Forward,
    Backward,
    /// From the start of one read to the start of the next, in sectors.
    Stride(i64),
}

#[derive(Clone, Debug)]
struct Stream {
    pattern: Pattern,
    /// The furthest read.
    last: Range,
    /// Reads that came exactly at the expected place.
    hits: u32,
    /// Bytes of all its reads.
    bytes: u64,
    /// Forward: the first sector not asked for. Backward: the lowest sector asked for. Stride: the
    /// start of the last step asked for.
    ahead: u64,
    at: Time,
}

/// How a read fits a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fit {
    Exact,
    /// Further on than the expected place.
    Beyond,
    /// The stream has passed its place.
    Behind,
}

impl Stream {
    fn new(pattern: Pattern, last: Range, hits: u32, now: Time) -> Stream {
        let ahead = match pattern {
            Pattern::Forward => last.end(),
            Pattern::Backward | Pattern::Stride(_) => last.lba,
        };
        let bytes = last.bytes() * u64::from(hits + 1);
        Stream { pattern, last, hits, bytes, ahead, at: now }
    }

    fn is_sure(&self) -> bool {
        match self.pattern {
            Pattern::Forward | Pattern::Backward => self.hits >= SURE,
            Pattern::Stride(_) => self.hits >= SURE_OF_STRIDE,
        }
    }

    fn fit(&self, read: Range) -> Option<Fit> {
        let (last, known) = (self.last, self.hits >= WELL_KNOWN);
        match self.pattern {
            Pattern::Forward if read.lba == last.end() => Some(Fit::Exact),
            Pattern::Backward if read.end() == last.lba => Some(Fit::Exact),
            Pattern::Stride(step)
                if read.sectors == last.sectors
                    && last.lba.checked_add_signed(step) == Some(read.lba) =>
            {
                Some(Fit::Exact)
            }
            _ if !known => None,
            Pattern::Forward if read.lba > last.lba && read.end() > last.end() => {
                (read.lba <= last.end() + SLACK).then_some(Fit::Beyond)
            }
            Pattern::Forward => {
                (read.lba + SLACK >= last.end() && read.end() <= last.end()).then_some(Fit::Behind)
            }
            Pattern::Backward if read.end() < last.end() && read.lba < last.lba => {
                (read.end() + SLACK >= last.lba).then_some(Fit::Beyond)
            }
            Pattern::Backward => {
                (read.end() <= last.lba + SLACK && read.lba >= last.lba).then_some(Fit::Behind)
            }
            Pattern::Stride(step) => {
                let distance = read.lba as i64 - last.lba as i64;
                let steps = distance / step;
                let fits = distance % step == 0
                    && read.sectors == last.sectors
                    && steps.abs() <= SLACK_STEPS;
                fits.then_some(if steps > 0 { Fit::Beyond } else { Fit::Behind })
            }
        }
    }

    fn take(&mut self, now: Time, read: Range, fit: Fit) {
        self.at = now;
        self.bytes = self.bytes.saturating_add(read.bytes());
        if fit == Fit::Behind {
            return;
        }
        self.hits = self.hits.saturating_add(u32::from(fit == Fit::Exact));
        self.last = read;
        // The reader may have overtaken the requests.
        self.ahead = match self.pattern {
            Pattern::Forward => self.ahead.max(read.end()),
            Pattern::Backward => self.ahead.min(read.lba),
            Pattern::Stride(step) if step > 0 => self.ahead.max(read.lba),
            Pattern::Stride(_) => self.ahead.min(read.lba),
        };
    }

    /// The next range to ask for, if the window has room for it. `most` is the largest window.
    fn next(&self, most: u64, sectors: u64) -> Option<Range> {
        if !self.is_sure() {
            return None;
        }
        let window = self.bytes.saturating_mul(2).max(MIN_WINDOW).min(most);
        // In a small buffer half of the window has to do.
        let piece = (window / 4).clamp(MIN_PIECE, MAX_PIECE).min(window / 2).max(4096);
        let piece = piece / SECTOR_BYTES;
        let window = window / SECTOR_BYTES;
        let range = match self.pattern {
            Pattern::Forward => {
                let lead = self.ahead - self.last.end();
                // Cut at multiples, so that streams over the same range ask for the same pieces.
                let end = ((self.ahead / piece + 1) * piece).min(sectors);
                (lead + (end.saturating_sub(self.ahead)) <= window)
                    .then(|| Range::between(self.ahead, end.max(self.ahead)))
            }
            Pattern::Backward => {
                let lead = self.last.lba - self.ahead;
                let start = self.ahead.saturating_sub(1) / piece * piece;
                (lead + (self.ahead - start) <= window).then(|| Range::between(start, self.ahead))
            }
            Pattern::Stride(step) => {
                let steps = self.ahead.abs_diff(self.last.lba) / step.unsigned_abs();
                let allowed = (window / self.last.sectors.max(8)).clamp(1, MAX_STEPS);
                let start = self.ahead.checked_add_signed(step).filter(|_| steps < allowed)?;
                Some(Range::new(start, self.last.sectors)).filter(|range| range.fits(sectors))
            }
        };
        range.filter(|range| !range.is_empty())
    }

    fn asked(&mut self, range: Range) {
        self.ahead = match self.pattern {
            Pattern::Forward => range.end(),
            Pattern::Backward | Pattern::Stride(_) => range.lba,
        };
    }
}

/// A bounded number of streams, found among reads that follow no pattern.
#[derive(Debug, Default)]
pub(super) struct Detector {
    streams: Vec<Stream>,
    recent: VecDeque<Range>,
}

impl Detector {
    /// Takes a read. Returns its stream.
    pub(super) fn read(&mut self, now: Time, read: Range) -> Option<usize> {
        let exact = |stream: &Stream| stream.fit(read) == Some(Fit::Exact);
        if let Some(at) = self.streams.iter().position(exact) {
            self.streams[at].take(now, read, Fit::Exact);
            return Some(at);
        }
        let fits = |(at, stream): (usize, &Stream)| stream.fit(read).map(|fit| (at, fit));
        if let Some((at, fit)) = self.streams.iter().enumerate().find_map(fits) {
            self.streams[at].take(now, read, fit);
            return Some(at);
        }
        let Some((pattern, hits)) = self.begins(read) else {
            if self.recent.len() >= RECENT {
                self.recent.pop_front();
            }
            self.recent.push_back(read);
            return None;
        };
        let stream = Stream::new(pattern, read, hits, now);
        if self.streams.len() < STREAMS {
            self.streams.push(stream);
            return Some(self.streams.len() - 1);
        }
        let silent = self.streams.iter().enumerate().min_by_key(|(_, stream)| stream.at)?.0;
        self.streams[silent] = stream;
        Some(silent)
    }

    /// The pattern that a read makes with those before it.
    fn begins(&mut self, read: Range) -> Option<(Pattern, u32)> {
        for (at, before) in self.recent.iter().enumerate().rev() {
            let pattern = if before.end() == read.lba {
                Pattern::Forward
            } else if read.end() == before.lba {
                Pattern::Backward
            } else {
                continue;
            };
            self.recent.remove(at);
            return Some((pattern, 1));
        }
        for before in self.recent.iter().rev() {
            let step = read.lba as i64 - before.lba as i64;
            if step == 0 || step.unsigned_abs() > MAX_STRIDE || before.sectors != read.sectors {
                continue;
            }
            let first =
                before.lba.checked_add_signed(-step).map(|lba| Range::new(lba, read.sectors));
            if first.is_some_and(|first| self.recent.contains(&first)) {
                return Some((Pattern::Stride(step), 2));
            }
        }
        None
    }

    /// The next range to ask for in a stream that may be `most` bytes ahead, in a volume of
    /// `sectors`.
    pub(super) fn next(&self, stream: usize, most: u64, sectors: u64) -> Option<Range> {
        self.streams.get(stream)?.next(most, sectors)
    }

    /// Notes a request for that range.
    pub(super) fn asked(&mut self, stream: usize, range: Range) {
        if let Some(stream) = self.streams.get_mut(stream) {
            stream.asked(range);
        }
    }

    /// Number of streams with a read-ahead now.
    pub(super) fn active(&self, now: Time) -> u64 {
        let active = |stream: &&Stream| stream.is_sure() && now.since(stream.at) <= SILENT;
        self.streams.iter().filter(active).count() as u64
    }
}
