//! How many bytes may be on their way to the store: twice the measured capacity of the way.

use crate::block::{Seq, Time};
use crate::host::peak::Peak;
use crate::wire::link::BATCH_BYTES;
use std::collections::VecDeque;

/// Least window: enough for one batch to travel while the store writes another.
const MIN_WINDOW_BYTES: u64 = BATCH_BYTES as u64;

#[derive(Debug)]
struct ShippedBatch {
    last: Seq,
    bytes: u64,
    at: Time,
    delivered: u64,
}

/// Batches that were sent and are not committed.
#[derive(Debug)]
pub(super) struct Window {
    shipped: VecDeque<ShippedBatch>,
    in_flight: u64,
    delivered: u64,
    most: u64,
    rate: Peak,
    trip: Peak,
}

impl Window {
    /// Never wider than `most` bytes.
    pub(super) fn new(most: u64) -> Window {
        Window {
            shipped: VecDeque::new(),
            in_flight: 0,
            delivered: 0,
            most: most.max(MIN_WINDOW_BYTES),
            rate: Peak::default(),
            trip: Peak::default(),
        }
    }

    /// Bytes on their way.
    pub(super) fn in_flight_bytes(&self) -> u64 {
        self.in_flight
    }

    /// Most bytes that may be.
    pub(super) fn bytes(&self) -> u64 {
        let rate = u128::from(self.rate.get());
        let trip = u128::from(u64::MAX - self.trip.get());
        // Without a measurement the rate is zero. Bytes per second times nanoseconds.
        let estimate = rate.saturating_mul(2 * trip) / 1_000_000_000;
        u64::try_from(estimate).unwrap_or(u64::MAX).clamp(MIN_WINDOW_BYTES, self.most)
    }

    /// Whether another batch of about `bytes` may go.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        self.in_flight == 0 || self.in_flight.saturating_add(bytes) <= self.bytes()
    }

    /// A batch up to `last` goes out.
    pub(super) fn ship(&mut self, now: Time, last: Seq, bytes: u64) {
        self.in_flight += bytes;
        self.shipped.push_back(ShippedBatch { last, bytes, at: now, delivered: self.delivered });
    }

    /// The store has everything up to `seq`.
    pub(super) fn commit(&mut self, now: Time, seq: Seq) {
        while let Some(batch) = self.shipped.pop_front_if(|batch| batch.last <= seq) {
            self.in_flight -= batch.bytes;
            self.delivered += batch.bytes;
            let trip = u64::try_from(now.since(batch.at).as_nanos()).unwrap_or(u64::MAX).max(1);
            // Keep the distance from the longest possible trip: its peak is the least trip.
            self.trip.add(now, u64::MAX - trip);
            let bytes = u128::from(self.delivered - batch.delivered) * 1_000_000_000;
            self.rate.add(now, u64::try_from(bytes / u128::from(trip)).unwrap_or(u64::MAX));
        }
    }

    /// Nothing is on its way any more.
    pub(super) fn clear(&mut self) {
        self.shipped.clear();
        self.in_flight = 0;
    }
}
