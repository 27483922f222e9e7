//! The object store: create-only puts, ranged gets, lists. It is strongly consistent and often
//! late. It fails before or after it did its part, and is away for a while now and then.
//!
//! This module holds the objects and decides the fate of each operation; the world keeps the time.

use crate::rng::Rng;
use bytes::Bytes;
use longhaul_core::block::Time;
use std::collections::BTreeMap;

const MS: u64 = 1_000_000;

/// Odds of what goes wrong, in parts per million.
#[derive(Clone, Copy, Debug, Default)]
pub struct Odds {
    /// A put fails without effect.
    pub put_before: u64,
    /// A put takes effect and fails.
    pub put_after: u64,
    /// A put fails, and takes effect some time later.
    pub put_late: u64,
    /// A put takes effect and says "exists", as after a retry inside the client library.
    pub put_exists_own: u64,
    /// A get or list fails.
    pub get: u64,
    /// An operation takes up to seconds.
    pub slow: u64,
}

/// The fate of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It works.
    Works,
    /// It fails, and nothing happens.
    FailsBefore,
    /// It happens, and fails.
    FailsAfter,
    /// It fails, and happens later.
    Late,
    /// It happens, and "exists" is the answer.
    ExistsOwn,
}

/// The times of an operation's effect and of its answer.
#[derive(Clone, Copy, Debug)]
pub struct Course {
    /// Its fate.
    pub fate: Fate,
    /// When it takes effect.
    pub effect: Time,
    /// When its answer arrives.
    pub answer: Time,
}

/// The objects.
#[derive(Debug)]
pub struct Objects {
    /// By key.
    pub map: BTreeMap<String, Bytes>,
    /// Odds of faults; all zero in the last phase.
    pub odds: Odds,
    /// Nothing works before this time.
    pub away_until: Time,
    /// Typical latency in nanoseconds.
    pub latency: u64,
    rng: Rng,
}

impl Objects {
    /// An empty store.
    #[must_use]
    pub fn new(rng: Rng, odds: Odds, latency: u64) -> Objects {
        Objects { map: BTreeMap::new(), odds, away_until: Time(0), latency, rng }
    }

    /// Decides the course of an operation that begins `now`.
    pub fn course(&mut self, now: Time, put: bool) -> Course {
        let rng = &mut self.rng;
        let mut delay = rng.spread(self.latency / 8 + 1, self.latency * 2 + 2);
        if rng.ppm(self.odds.slow) {
            delay += rng.spread(50 * MS, 3000 * MS);
        }
        let effect = Time(now.0 + delay);
        let answer = Time(effect.0 + rng.spread(self.latency / 8 + 1, self.latency + 2));
        if effect < self.away_until {
            let answer = Time(effect.0 + rng.spread(MS, 500 * MS));
            return Course { fate: Fate::FailsBefore, effect, answer };
        }
        let odds = self.odds;
        let fate = if !put {
            if rng.ppm(odds.get) { Fate::FailsBefore } else { Fate::Works }
        } else if rng.ppm(odds.put_before) {
            Fate::FailsBefore
        } else if rng.ppm(odds.put_after) {
            Fate::FailsAfter
        } else if rng.ppm(odds.put_late) {
            let effect = Time(answer.0 + rng.spread(10 * MS, 4000 * MS));
            return Course { fate: Fate::Late, effect, answer };
        } else if rng.ppm(odds.put_exists_own) {
            Fate::ExistsOwn
        } else {
            Fate::Works
        };
        Course { fate, effect, answer }
    }

    /// Creates an object; false if there is one of that key.
    pub fn create(&mut self, key: &str, data: &Bytes) -> bool {
        if self.map.contains_key(key) {
            return false;
        }
        self.map.insert(key.to_owned(), data.clone());
        true
    }

    /// Keys with a prefix, and lengths.
    pub fn list(&self, prefix: &str) -> Vec<(String, u64)> {
        self.map
            .range(prefix.to_owned()..)
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, data)| (key.clone(), data.len() as u64))
            .collect()
    }
}
