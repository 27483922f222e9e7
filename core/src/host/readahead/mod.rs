//! Reading ahead: what clients will want next, asked for before they do.
//!
//! Three things ask: streams that the detector sees ([`detect`]), hints of clients, and a trace
//! that is replayed ([`trace`]). What comes is kept in one bounded buffer ([`buffer`]); what is
//! under way is known, so that a read that meets it waits for it instead of asking again.
//!
//! Promises: what is kept and what is under way together stay below the limit. Neither is ever
//! older than a write that came before the read that gets it: the volume calls
//! [`ReadAhead::forget`] for every range written. What streams may waste is bounded by what clients
//! read ([`tally`]). It must not know where data comes from, nor what the journal has.

mod buffer;
mod detect;
mod tally;
#[cfg(test)]
mod tests;
mod trace;

pub(crate) use tally::AheadReason;
pub use tally::Totals;
pub use trace::{MAX_TRACE_BYTES, MAX_TRACE_RANGES, Trace};

use super::peak::Peak;
use super::pieces::PendingPart;
use crate::block::{Range, ReadPiece, SECTOR_BYTES, Time};
use crate::extent::{ExtentMap, Uniform};
use crate::limit::Limit;
use crate::wire::link::RequestId;
use buffer::{Buffer, ENTRY_CHARGE};
use bytes::{Bytes, BytesMut};
use detect::Detector;
use std::collections::BTreeMap;
use std::time::Duration;
use tally::Tally;
use trace::{Recorder, Replay};

/// Least window of a volume: enough for a line that has not been measured yet.
const MIN_PATH_BYTES: u64 = 256 << 10;
/// A read waits for what is under way if that is due, or overdue, by less than so many round trips
/// ...
const PATIENCE_TRIPS: u32 = 4;
/// ... and this.
const PATIENCE: Duration = Duration::from_millis(2);

/// When something was asked of the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentAt {
    at: Time,
    delivered: u64,
}

/// What the way to the store carries, measured by what is asked of it.
#[derive(Debug, Default)]
struct StorePath {
    delivered: u64,
    rate: Peak,
    trip: Peak,
}

impl StorePath {
    fn sent(&self, now: Time) -> SentAt {
        SentAt { at: now, delivered: self.delivered }
    }

    fn arrived(&mut self, now: Time, sent: SentAt, bytes: u64) {
        self.delivered += bytes;
        let trip = u64::try_from(now.since(sent.at).as_nanos()).unwrap_or(u64::MAX).max(1);
        // The least trip is the greatest distance from the longest one possible.
        self.trip.add(now, u64::MAX - trip);
        let bytes = u128::from(self.delivered - sent.delivered) * 1_000_000_000;
        self.rate.add(now, u64::try_from(bytes / u128::from(trip)).unwrap_or(u64::MAX));
    }

    /// Bytes a second; zero before there is a measurement.
    fn rate(&self) -> u64 {
        self.rate.get()
    }

    fn trip(&self) -> Option<Duration> {
        let trip = u64::MAX - self.trip.get();
        (self.rate() > 0).then(|| Duration::from_nanos(trip))
    }

    /// Twice what the way holds: a window's worth arrives while the next one is asked for, and a
    /// rate that the window kept low doubles.
    fn window(&self) -> u64 {
        let trip = self.trip().unwrap_or_default().as_nanos();
        let bytes = u128::from(self.rate()).saturating_mul(2 * trip) / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX).max(MIN_PATH_BYTES)
    }
}

#[derive(Debug)]
struct AheadRequest {
    range: Range,
    why: AheadReason,
    /// When it should be here.
    due: Time,
    waiters: Vec<PendingPart>,
}

/// What a part of a read finds.
#[derive(Debug)]
pub(crate) enum AheadFound {
    Here(ReadPiece),
    /// Under this number it is under way.
    Coming(RequestId),
    Absent,
}

/// How reading ahead is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadAheadStatus {
    /// Bytes kept, used ones included.
    pub buffered_bytes: u64,
    /// Bytes under way.
    pub in_flight_bytes: u64,
    /// Most bytes that the streams together are ahead, by bandwidth and delay.
    pub window_bytes: u64,
    /// Least round trip of a read lately, if there was one.
    pub trip: Option<Duration>,
    /// Highest rate of delivery lately, in bytes a second.
    pub rate: u64,
    /// Streams read ahead of in the last second.
    pub streams: u64,
    /// For hints.
    pub hints: Totals,
    /// For streams.
    pub detected: Totals,
    /// For traces.
    pub traces: Totals,
    /// Whether reads are being recorded.
    pub recording: bool,
    /// Bytes of the trace being replayed that were asked for, and all that it has.
    pub replay: Option<(u64, u64)>,
}

#[derive(Debug)]
pub(crate) struct ReadAhead {
    max: u64,
    buffer: Buffer,
    flights: BTreeMap<RequestId, AheadRequest>,
    /// What is under way and not overwritten since.
    coming: ExtentMap<Uniform<RequestId>>,
    in_flight: u64,
    detector: Detector,
    tally: Tally,
    path: StorePath,
    limit: Limit,
    recorder: Option<Recorder>,
    replay: Option<Replay>,
}

impl ReadAhead {
    /// Keeps and asks for at most `max` bytes.
    pub(crate) fn new(max: u64) -> ReadAhead {
        ReadAhead {
            max,
            buffer: Buffer::default(),
            flights: BTreeMap::new(),
            coming: ExtentMap::new(),
            in_flight: 0,
            detector: Detector::default(),
            tally: Tally::new(max),
            path: StorePath::default(),
            limit: Limit::default(),
            recorder: None,
            replay: None,
        }
    }

    pub(crate) fn status(&self, now: Time) -> ReadAheadStatus {
        let (hints, detected, traces) = self.tally.totals();
        ReadAheadStatus {
            buffered_bytes: self.buffer.bytes(),
            in_flight_bytes: self.in_flight,
            window_bytes: self.path.window().min(self.share()),
            trip: self.path.trip(),
            rate: self.path.rate(),
            streams: self.detector.active(now),
            hints,
            detected,
            traces,
            recording: self.recorder.is_some(),
            replay: self.replay.as_ref().map(|replay| (replay.asked_bytes, replay.total_bytes)),
        }
    }

    // --- the limit ---

    /// How much may be asked for, in bytes a second.
    pub(crate) fn set_limit(&mut self, now: Time, rate: Option<u64>) {
        self.limit.set(now, rate);
    }

    /// The limit, in bytes a second.
    pub(crate) fn rate(&self) -> Option<u64> {
        self.limit.rate()
    }

    /// When the limit lets something through, unless that is now.
    pub(crate) fn limit_end(&self, now: Time) -> Option<Time> {
        self.limit.wait(now)
    }

    /// So much is asked for by somebody else, within the limit.
    pub(crate) fn take_of_limit(&mut self, now: Time, bytes: u64) {
        self.limit.take(now, bytes);
    }

    // --- reads ---

    /// `range` in order and without gaps. What is here counts as used.
    pub(crate) fn read(&mut self, now: Time, range: Range) -> Vec<(Range, AheadFound)> {
        let parts = self.buffer.read(range, &mut self.tally);
        let mut found = Vec::with_capacity(parts.len());
        for (part, piece) in parts {
            match piece {
                Some(piece) => found.push((part, AheadFound::Here(piece))),
                None if self.coming.is_empty() => found.push((part, AheadFound::Absent)),
                None => {
                    for (part, coming) in self.coming.cover(part) {
                        let coming = coming.filter(|coming| self.is_soon(now, coming.0));
                        let coming = coming
                            .map_or(AheadFound::Absent, |coming| AheadFound::Coming(coming.0));
                        found.push((part, coming));
                    }
                }
            }
        }
        found
    }

    /// Whether it is better to wait for what is under way than to ask again ahead of it.
    fn is_soon(&self, now: Time, request: RequestId) -> bool {
        let Some(flight) = self.flights.get(&request) else { return false };
        let Some(trip) = self.path.trip() else { return true };
        let patience = trip * PATIENCE_TRIPS + PATIENCE;
        flight.due <= now.after(patience) && now <= flight.due.after(patience)
    }

    /// A part of a read waits for what is under way.
    pub(crate) fn wait(&mut self, request: RequestId, waiter: PendingPart) {
        if let Some(flight) = self.flights.get_mut(&request) {
            flight.waiters.push(waiter);
        }
    }

    /// A client has read; gives the stream that it belongs to, and whether a replay ends with it.
    pub(crate) fn observe(&mut self, now: Time, range: Range) -> (Option<usize>, bool) {
        self.tally.read(range.bytes());
        if let Some(recorder) = &mut self.recorder {
            recorder.read(range);
        }
        let lost = self.replay.as_mut().is_some_and(|replay| !replay.read(range));
        if lost {
            self.replay = None;
        }
        if self.max == 0 {
            return (None, lost);
        }
        (self.detector.read(now, range), lost)
    }

    // --- what to ask for ---

    /// What streams and a trace may each have of the buffer: the rest is for hints and for what is
    /// used.
    fn share(&self) -> u64 {
        let share = self.max / 4 * 3;
        if self.replay.is_some() { share / 2 } else { share }
    }

    /// What to ask for next for a stream in a volume of `sectors`.
    pub(crate) fn next_of_stream(&self, now: Time, stream: usize, sectors: u64) -> Option<Range> {
        let share = self.share() / self.detector.active(now).max(1);
        self.detector.next(stream, self.path.window().min(share), sectors)
    }

    /// That was asked for, as far as it was not here.
    pub(crate) fn asked_for_stream(&mut self, stream: usize, range: Range) {
        self.detector.asked(stream, range);
    }

    /// Whether a trace is being replayed.
    pub(crate) fn is_replaying(&self) -> bool {
        self.replay.is_some()
    }

    /// What to ask for next for a trace; `None` at its end.
    pub(crate) fn next_of_trace(&mut self, sectors: u64) -> Option<Range> {
        self.replay.as_mut()?.next(sectors)
    }

    /// Whether a trace is not too far ahead of its reader.
    pub(crate) fn has_room_for_trace(&self, now: Time) -> bool {
        self.buffer.trace_bytes() + self.in_flight < self.share()
            && self.in_flight < self.path.window()
            && self.limit.wait(now).is_none()
    }

    /// That was asked for, as far as it was not here.
    pub(crate) fn asked_for_trace(&mut self, range: Range) {
        if let Some(replay) = &mut self.replay {
            replay.asked(range);
        }
    }

    /// The parts of `range` that are neither here nor under way.
    pub(crate) fn missing(&self, range: Range) -> Vec<Range> {
        let absent = self.buffer.missing(range).flat_map(|part| {
            self.coming.cover(part).filter(|(_, coming)| coming.is_none()).map(|(part, _)| part)
        });
        absent.collect()
    }

    /// Whether so much may be asked for.
    pub(crate) fn may_ask(&self, now: Time, bytes: u64, why: AheadReason) -> bool {
        let backed = why != AheadReason::Stream || self.tally.backs_stream(bytes);
        backed
            && self.in_flight + bytes.max(ENTRY_CHARGE) <= self.max
            && self.limit.wait(now).is_none()
    }

    /// `range` is asked for under this number.
    pub(crate) fn asked(&mut self, now: Time, request: RequestId, range: Range, why: AheadReason) {
        let bytes = range.bytes().max(ENTRY_CHARGE);
        self.in_flight += bytes;
        self.make_room(0);
        self.limit.take(now, range.bytes());
        self.tally.issue(why, range.bytes());
        self.coming.insert(range, Uniform(request));
        // A rate that was never tried is underestimated: what is within the window flows.
        let queue = self.in_flight.saturating_sub(self.path.window());
        let queue = u128::from(queue) * 1_000_000_000;
        let queue = queue.checked_div(u128::from(self.path.rate())).unwrap_or(0);
        let queue = Duration::from_nanos(u64::try_from(queue).unwrap_or(u64::MAX));
        let due = now.after(self.path.trip().unwrap_or_default()).after(queue);
        self.flights.insert(request, AheadRequest { range, why, due, waiters: Vec::new() });
    }

    fn make_room(&mut self, bytes: u64) {
        while self.in_flight + self.buffer.bytes() + bytes > self.max
            && self.buffer.drop_one(&mut self.tally)
        {}
    }

    // --- what comes of it ---

    /// Something is asked of the store now.
    pub(crate) fn sent(&self, now: Time) -> SentAt {
        self.path.sent(now)
    }

    /// What keeps the way to the store full.
    pub(crate) fn window(&self) -> u64 {
        self.path.window()
    }

    /// It has come.
    pub(crate) fn measure(&mut self, now: Time, sent: SentAt, bytes: u64) {
        self.path.arrived(now, sent, bytes);
    }

    /// The store has answered. Keeps what is not overwritten, if the answer is good, and gives who
    /// waits for it.
    pub(crate) fn arrived(
        &mut self,
        request: RequestId,
        pieces: Option<&[ReadPiece]>,
    ) -> Vec<PendingPart> {
        let Some(flight) = self.flights.remove(&request) else { return Vec::new() };
        let AheadRequest { range, why, waiters, .. } = flight;
        self.in_flight -= range.bytes().max(ENTRY_CHARGE);
        let good: Vec<Range> = self
            .coming
            .overlapping(range)
            .filter(|(_, coming)| coming.0 == request)
            .map(|(part, _)| part)
            .collect();
        self.coming.remove_if(range, |coming| coming.0 == request);
        let kept: u64 =
            if pieces.is_some() { good.iter().map(|part| part.bytes()).sum() } else { 0 };
        // Those who wait have it whatever was written since, so to them it was of use.
        self.tally.waste(why, range.bytes() - kept);
        for (run, data) in pieces.map(|pieces| join(range, pieces)).unwrap_or_default() {
            for part in good.iter().filter_map(|part| part.intersect(run)) {
                // A part is copied once more, so that it does not keep all of it alive.
                let data = data.as_ref().filter(|_| part != run).map_or(data.clone(), |data| {
                    let start = ((part.lba - run.lba) * SECTOR_BYTES) as usize;
                    Some(Bytes::copy_from_slice(&data[start..start + part.bytes() as usize]))
                });
                self.make_room(data.as_ref().map_or(0, |data| data.len() as u64).max(ENTRY_CHARGE));
                self.buffer.insert(part, data, why, &mut self.tally);
            }
        }
        if pieces.is_some() {
            for waiter in &waiters {
                self.buffer.read(waiter.range, &mut self.tally);
            }
        }
        waiters
    }

    /// The connection is lost, and with it what is under way; gives who waits for it.
    pub(crate) fn link_lost(&mut self) -> Vec<PendingPart> {
        self.coming.clear();
        self.in_flight = 0;
        let mut waiters = Vec::new();
        for flight in std::mem::take(&mut self.flights).into_values() {
            self.tally.waste(flight.why, flight.range.bytes());
            waiters.extend(flight.waiters);
        }
        waiters
    }

    /// `range` is written: what is here or under way of it is old news.
    pub(crate) fn forget(&mut self, range: Range) {
        self.buffer.forget(range, &mut self.tally);
        if !self.coming.is_empty() {
            self.coming.remove(range);
        }
    }

    // --- traces ---

    /// Records from now on; false if that is being done already.
    pub(crate) fn record(&mut self) -> bool {
        let free = self.recorder.is_none();
        self.recorder.get_or_insert_default();
        free
    }

    /// What was recorded, if anything was.
    pub(crate) fn stop_recording(&mut self) -> Option<Trace> {
        Some(self.recorder.take()?.finish())
    }

    /// Replays a trace, in place of another one.
    pub(crate) fn start_replay(&mut self, trace: &Trace) {
        self.replay = Some(Replay::new(trace));
    }

    /// Ends a replay; true if there was one.
    pub(crate) fn stop_replay(&mut self) -> bool {
        self.replay.take().is_some()
    }

    /// When a replay that waits for the limit goes on.
    pub(crate) fn deadline(&self, now: Time) -> Option<Time> {
        self.replay.as_ref().and_then(|_| self.limit.wait(now))
    }
}

/// Pieces as few runs, so that a long answer in small pieces is few entries: data that lies
/// together becomes one copy, which is no larger than it has to be and keeps nothing else alive.
fn join(range: Range, pieces: &[ReadPiece]) -> Vec<(Range, Option<Bytes>)> {
    let is_data = |piece: &ReadPiece| matches!(piece, ReadPiece::Data(_));
    let mut at = range.lba;
    pieces
        .chunk_by(|a, b| is_data(a) == is_data(b))
        .map(|chunk| {
            let run = Range::new(at, chunk.iter().map(ReadPiece::sectors).sum());
            at = run.end();
            let mut data = BytesMut::new();
            if chunk.first().is_some_and(is_data) {
                data.reserve(run.bytes() as usize);
            }
            for piece in chunk {
                if let ReadPiece::Data(bytes) = piece {
                    data.extend_from_slice(bytes);
                }
            }
            (run, (!data.is_empty()).then(|| data.freeze()))
        })
        .collect()
}
