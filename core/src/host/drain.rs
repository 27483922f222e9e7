//! Shipping: which writes go to the store next, in which batch, and how many may be on their way.
//!
//! Promises: batches hold whole frames in order, each starts where the last one ended, and nothing
//! is left out of one but what the same batch overwrites. It must not know the disk or the link:
//! frames come in as bytes, batches go out as bytes.

use super::journal::{FRAME_HEADER_BYTES, Frame, FrameHeader};
use crate::block::{Range, Seq, Time};
use crate::extent::{ExtentMap, Uniform};
use crate::record::{self, Kind, Record};
use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;
use std::time::Duration;

/// Least window: enough for one batch to be written while the next one travels.
const MIN_WINDOW_BYTES: u64 = 4 << 20;
/// How long a measurement counts. A guess: longer than a pause between bursts, shorter than a
/// change of path is worth waiting for.
const ESTIMATE_SPAN: Duration = Duration::from_secs(10);

/// A batch being put together.
#[derive(Debug)]
pub(crate) struct Assembly {
    pub(crate) frames: Vec<Frame>,
    /// The frames' bytes as they arrive.
    pub(crate) parts: Vec<Option<Bytes>>,
    pub(crate) missing: usize,
}

#[derive(Debug)]
struct Shipped {
    last: Seq,
    bytes: u64,
    at: Time,
    delivered: u64,
}

#[derive(Debug)]
pub(crate) struct Drain {
    /// First number of the next batch.
    pub(crate) next: Seq,
    /// No frame before this address is shipped (again).
    pub(crate) addr: u64,
    pub(crate) assembly: Option<Assembly>,
    /// Tells reads for this assembly from those for one that was given up.
    pub(crate) generation: u64,
    shipped: VecDeque<Shipped>,
    in_flight: u64,
    delivered: u64,
    window_max: u64,
    rate: Peak,
    trip: Peak,
}

/// The best value of the last one to two spans.
#[derive(Debug, Default)]
struct Peak {
    current: u64,
    previous: u64,
    since: Time,
}

impl Peak {
    fn add(&mut self, now: Time, value: u64) {
        if now.since(self.since) >= ESTIMATE_SPAN {
            self.previous = self.current;
            self.current = 0;
            self.since = now;
        }
        self.current = self.current.max(value);
    }

    fn get(&self) -> u64 {
        self.current.max(self.previous)
    }
}

impl Drain {
    pub(crate) fn new(committed: Seq, window_max: u64) -> Drain {
        Drain {
            next: committed + 1,
            addr: 0,
            assembly: None,
            generation: 0,
            shipped: VecDeque::new(),
            in_flight: 0,
            delivered: 0,
            window_max: window_max.max(MIN_WINDOW_BYTES),
            rate: Peak::default(),
            trip: Peak::default(),
        }
    }

    pub(crate) fn in_flight_bytes(&self) -> u64 {
        self.in_flight
    }

    /// Last number shipped.
    pub(crate) fn shipped(&self) -> Seq {
        self.next - 1
    }

    pub(crate) fn window(&self) -> u64 {
        let rate = u128::from(self.rate.get());
        let trip = u128::from(u64::MAX - self.trip.get());
        // Without a measurement the rate is zero. Bytes per second times nanoseconds.
        let estimate = rate.saturating_mul(2 * trip) / 1_000_000_000;
        u64::try_from(estimate).unwrap_or(u64::MAX).clamp(MIN_WINDOW_BYTES, self.window_max)
    }

    /// Whether the window lets another batch of about `bytes` go.
    pub(crate) fn has_window(&self, bytes: u64) -> bool {
        self.in_flight == 0 || self.in_flight.saturating_add(bytes) <= self.window()
    }

    /// A batch up to `last` goes out.
    pub(crate) fn ship(&mut self, now: Time, last: Seq, bytes: u64) {
        self.next = last + 1;
        self.in_flight += bytes;
        self.shipped.push_back(Shipped { last, bytes, at: now, delivered: self.delivered });
    }

    /// The store has everything up to `seq`.
    pub(crate) fn commit(&mut self, now: Time, seq: Seq) {
        while let Some(batch) = self.shipped.pop_front_if(|batch| batch.last <= seq) {
            self.in_flight -= batch.bytes;
            self.delivered += batch.bytes;
            let trip = u64::try_from(now.since(batch.at).as_nanos()).unwrap_or(u64::MAX).max(1);
            // The least trip is the greatest distance from the longest one possible.
            self.trip.add(now, u64::MAX - trip);
            let bytes = u128::from(self.delivered - batch.delivered) * 1_000_000_000;
            self.rate.add(now, u64::try_from(bytes / u128::from(trip)).unwrap_or(u64::MAX));
        }
        self.next = self.next.max(seq + 1);
    }

    /// The batch being put together will not be sent: reads for it count no more.
    pub(crate) fn abandon(&mut self) {
        self.assembly = None;
        self.generation += 1;
    }

    /// Everything after `committed` is shipped again.
    pub(crate) fn restart(&mut self, committed: Seq) {
        self.next = committed + 1;
        self.addr = 0;
        self.abandon();
        self.shipped.clear();
        self.in_flight = 0;
    }
}

/// A batch ready to go.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Last number in it.
    pub(crate) last: Seq,
    /// Records in order.
    pub(crate) payload: Bytes,
    /// Bytes of records that were left out.
    pub(crate) coalesced: u64,
}

/// What keeps a batch from being built.
#[derive(Debug)]
pub(crate) struct Damage {
    pub(crate) addr: u64,
    pub(crate) range: Range,
    pub(crate) problem: String,
}

/// Puts verified frames together into a batch that starts with number `next`, leaving out what is
/// overwritten within it.
pub(crate) fn build(next: Seq, frames: &[Frame], parts: &[Bytes]) -> Result<Batch, Damage> {
    let mut records: Vec<(Record, Bytes)> = Vec::new();
    let mut owners: ExtentMap<Uniform<u32>> = ExtentMap::new();
    let mut overlaps = false;
    let mut expected = next;
    for (frame, bytes) in frames.iter().zip(parts) {
        let damage = |range: Range, problem: String| Damage { addr: frame.at.addr, range, problem };
        let nowhere = Range::new(0, 0);
        match FrameHeader::parse(bytes) {
            Ok(Some((header, _)))
                if header.addr == frame.at.addr
                    && header.number == frame.at.number
                    && header.prev_crc == frame.at.prev_crc
                    && u64::from(header.body_bytes) == frame.body_bytes => {}
            _ => return Err(damage(nowhere, "the frame is not the one written here".into())),
        }
        let mut rest =
            bytes.slice(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + frame.body_bytes as usize);
        while !rest.is_empty() {
            let record = record::parse(&rest).map_err(|error| {
                let range = match error {
                    record::RecordError::Payload(range) => range,
                    _ => nowhere,
                };
                damage(range, error.to_string())
            })?;
            let raw = rest.split_to(record.header.record_bytes());
            if record.header.seq < next {
                continue;
            }
            if record.header.seq != expected {
                return Err(damage(record.header.range, "a write is missing".into()));
            }
            expected += 1;
            let range = record.header.range;
            overlaps = overlaps || owners.overlapping(range).next().is_some();
            owners.insert(range, Uniform(records.len() as u32));
            records.push((record, raw));
        }
    }
    let last = expected - 1;
    let whole: u64 = records.iter().map(|(_, raw)| raw.len() as u64).sum();
    if !overlaps
        && let ([frame], [bytes]) = (frames, parts)
        && whole == frame.body_bytes
    {
        let payload = bytes.slice(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + whole as usize);
        return Ok(Batch { last, payload, coalesced: 0 });
    }
    let mut payload = BytesMut::with_capacity(whole as usize);
    for (index, (record, raw)) in (0u32..).zip(&records) {
        if !overlaps {
            payload.extend_from_slice(raw);
            continue;
        }
        let range = record.header.range;
        let mut left = owners.overlapping(range).filter(|(_, owner)| owner.0 == index).peekable();
        if record.header.kind != Kind::Data {
            // A marker costs the same whatever its length: cutting it could only add bytes.
            if left.peek().is_some() {
                payload.extend_from_slice(raw);
            }
            continue;
        }
        // Pieces are widened to whole blocks, so neighbours may come to overlap.
        let mut piece: Option<Range> = None;
        for (part, _) in left {
            let Some(part) = part.block_cover().intersect(range) else { continue };
            match &mut piece {
                Some(piece) if piece.end() >= part.lba => {
                    *piece = Range::between(piece.lba, part.end());
                }
                _ => {
                    if let Some(done) = piece.replace(part) {
                        record.encode_part(done, &mut payload);
                    }
                }
            }
        }
        if let Some(done) = piece {
            record.encode_part(done, &mut payload);
        }
    }
    let coalesced = whole.saturating_sub(payload.len() as u64);
    Ok(Batch { last, payload: payload.freeze(), coalesced })
}
