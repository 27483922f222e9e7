//! Read-ahead: asks the store for data before clients do.
//!
//! Requests have three sources: streams that the detector sees ([`detect`]), hints of clients, and
//! the replay of a trace ([`trace`]). The data goes into one bounded buffer ([`buffer`]). A
//! client's read of a range that is under way waits for it and does not ask again.
//!
//! Promises: the buffer and the requests under way together stay below the limit. A read never gets
//! data that is older than a write before the read: the volume calls [`ReadAhead::forget`] for
//! every range written. The bytes that clients read bound the waste of streams ([`tally`]). It must
//! not know where data comes from, nor the content of the journal.

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

/// Least window of a volume: enough for a line without a measurement.
const MIN_PATH_BYTES: u64 = 256 << 10;
/// If a range under way is due or overdue by less than this number of round trips ...
const PATIENCE_TRIPS: u32 = 4;
/// ... and by less than this, a read waits for it.
const PATIENCE: Duration = Duration::from_millis(2);

/// The time of a request to the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentAt {
    at: Time,
    delivered: u64,
}

/// The capacity of the way to the store, measured by its requests.
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
        // Keep the distance from the longest possible trip: its peak is the least trip.
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

    /// Twice the capacity of the way: while a window's worth arrives, the requests for the next one
    /// go out. If the window has kept the rate low, the rate doubles.
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
    /// Expected time of arrival.
    due: Time,
    waiters: Vec<PendingPart>,
}

/// The state of a part of a read.
#[derive(Debug)]
pub(crate) enum AheadFound {
    Here(ReadPiece),
    /// It is under way under this number.
    Coming(RequestId),
    Absent,
}

/// The state of read-ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadAheadStatus {
    /// Bytes in the buffer, used ones included.
    pub buffered_bytes: u64,
    /// Bytes under way.
    pub in_flight_bytes: u64,
    /// Most bytes that the streams together may be ahead, by bandwidth and delay.
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
    /// Whether a recording of a trace is under way.
    pub recording: bool,
    /// For a replay, the bytes of the trace asked for so far, and all of its bytes.
    pub replay: Option<(u64, u64)>,
}

#[derive(Debug)]
pub(crate) struct ReadAhead {
    max: u64,
    buffer: Buffer,
    flights: BTreeMap<RequestId, AheadRequest>,
    /// Ranges under way that no client has overwritten since.
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

    /// Sets the limit of the rate, in bytes a second.
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

    /// Counts bytes of another machine's request toward the limit.
    pub(crate) fn take_of_limit(&mut self, now: Time, bytes: u64) {
        self.limit.take(now, bytes);
    }

    // --- reads ---

    /// `range` in order and without gaps. Content from the buffer counts as used.
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

    /// Whether it is better to wait for a request under way than to ask again ahead of it.
    fn is_soon(&self, now: Time, request: RequestId) -> bool {
        let Some(flight) = self.flights.get(&request) else { return false };
        let Some(trip) = self.path.trip() else { return true };
        let patience = trip * PATIENCE_TRIPS + PATIENCE;
        flight.due <= now.after(patience) && now <= flight.due.after(patience)
    }

    /// A part of a read waits for a request under way.
    pub(crate) fn wait(&mut self, request: RequestId, waiter: PendingPart) {
        if let Some(flight) = self.flights.get_mut(&request) {
            flight.waiters.push(waiter);
        }
    }

    /// A client has read. Returns its stream, and whether a replay ends with this read.
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

    // --- requests ---

    /// The share of the buffer that streams and a trace may each have. The rest is for hints and
    /// for used data.
    fn share(&self) -> u64 {
        let share = self.max / 4 * 3;
        if self.replay.is_some() { share / 2 } else { share }
    }

    /// The next range to ask for in a stream, in a volume of `sectors`.
    pub(crate) fn next_of_stream(&self, now: Time, stream: usize, sectors: u64) -> Option<Range> {
        let share = self.share() / self.detector.active(now).max(1);
        self.detector.next(stream, self.path.window().min(share), sectors)
    }

    /// Notes a request for a stream, without the parts that are here.
    pub(crate) fn asked_for_stream(&mut self, stream: usize, range: Range) {
        self.detector.asked(stream, range);
    }

    /// Whether a replay of a trace is under way.
    pub(crate) fn is_replaying(&self) -> bool {
        self.replay.is_some()
    }

    /// The next range of a trace to ask for; `None` at its end.
    pub(crate) fn next_of_trace(&mut self, sectors: u64) -> Option<Range> {
        self.replay.as_mut()?.next(sectors)
    }

    /// Whether a trace is not too far ahead of its reader.
    pub(crate) fn has_room_for_trace(&self, now: Time) -> bool {
        self.buffer.trace_bytes() + self.in_flight < self.share()
            && self.in_flight < self.path.window()
            && self.limit.wait(now).is_none()
    }

    /// Notes a request for a trace, without the parts that are here.
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

    /// Whether a request for `bytes` bytes may go out.
    pub(crate) fn may_ask(&self, now: Time, bytes: u64, why: AheadReason) -> bool {
        let backed = why != AheadReason::Stream || self.tally.backs_stream(bytes);
        backed
            && self.in_flight + bytes.max(ENTRY_CHARGE) <= self.max
            && self.limit.wait(now).is_none()
    }

    /// Notes a request for `range` under this number.
    pub(crate) fn asked(&mut self, now: Time, request: RequestId, range: Range, why: AheadReason) {
        let bytes = range.bytes().max(ENTRY_CHARGE);
        self.in_flight += bytes;
        self.make_room(0);
        self.limit.take(now, range.bytes());
        self.tally.issue(why, range.bytes());
        self.coming.insert(range, Uniform(request));
        // The measured rate of an idle line is too low. So count only the bytes beyond the window
        // as a queue.
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

    // --- answers ---

    /// A request goes to the store now.
    pub(crate) fn sent(&self, now: Time) -> SentAt {
        self.path.sent(now)
    }

    /// Bytes under way that keep the way to the store full.
    pub(crate) fn window(&self) -> u64 {
        self.path.window()
    }

    /// The answer to a request has come.
    pub(crate) fn measure(&mut self, now: Time, sent: SentAt, bytes: u64) {
        self.path.arrived(now, sent, bytes);
    }

    /// Takes the store's answer. If the answer is good, keeps the parts that no client has
    /// overwritten. Returns the reads that wait for it.
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
        // Waiting reads get the data whatever clients wrote since. So it was of use to them.
        self.tally.waste(why, range.bytes() - kept);
        for (run, data) in pieces.map(|pieces| join(range, pieces)).unwrap_or_default() {
            for part in good.iter().filter_map(|part| part.intersect(run)) {
                // Copy a part once more, so that it does not keep all of the answer alive.
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

    /// The connection is lost, and all requests under way with it. Returns the reads that wait for
    /// them.
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

    /// A client writes `range`: its data, here or under way, is old.
    pub(crate) fn forget(&mut self, range: Range) {
        self.buffer.forget(range, &mut self.tally);
        if !self.coming.is_empty() {
            self.coming.remove(range);
        }
    }

    // --- traces ---

    /// Begins to record. False if a recording is under way.
    pub(crate) fn record(&mut self) -> bool {
        let free = self.recorder.is_none();
        self.recorder.get_or_insert_default();
        free
    }

    /// Ends the recording. Returns its trace, if there was one.
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

/// Joins pieces to few runs, so that a long answer in small pieces makes few entries. Neighboring
/// data becomes one copy. The copy is no larger than necessary and keeps nothing else alive.
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
