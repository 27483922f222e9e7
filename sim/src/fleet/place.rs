//! The location of all stores, with objects that never change. Operations are slow, they fail, and
//! some take effect although they fail. The simulator reads a list page by page.

use crate::rng::Rng;
use bytes::Bytes;
use longhaul_core::block::Time;
use longhaul_core::store::{
    GetError, ObjectMeta, ObjectOperation, ObjectResult, PutError, StorageError,
};
use std::collections::BTreeMap;

pub(super) const MS: u64 = 1_000_000;
pub(super) const SECOND: u64 = 1000 * MS;

/// Odds of faults in parts per million.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Odds {
    pub before: u64,
    pub after: u64,
    pub late: u64,
    pub exists_own: u64,
    pub get: u64,
    pub slow: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Works,
    FailsBefore,
    FailsAfter,
    /// The operation fails, and takes effect later.
    Late,
    /// The put takes effect and returns "exists".
    ExistsOwn,
}

pub(super) struct Course {
    pub fate: Fate,
    pub effect: Time,
    pub answer: Time,
}

pub(super) struct Place {
    pub map: BTreeMap<String, Bytes>,
    pub odds: Odds,
    pub away_until: Time,
    /// Keys on a page of a list.
    pub page: usize,
    latency: u64,
    rng: Rng,
}

impl Place {
    pub fn new(mut rng: Rng) -> Place {
        let calm = rng.percent(15);
        let mut odd = |limit| if calm { 0 } else { rng.below(limit) };
        let odds = Odds {
            before: odd(40_000),
            after: odd(40_000),
            late: odd(30_000),
            exists_own: odd(20_000),
            get: odd(30_000),
            slow: odd(60_000),
        };
        let (page, latency) = (rng.between(1, 6) as usize, rng.spread(MS, 60 * MS));
        Place { map: BTreeMap::new(), odds, away_until: Time(0), page, latency, rng }
    }

    pub fn latency(&mut self) -> u64 {
        self.rng.spread(self.latency / 8 + 1, self.latency * 2 + 2)
    }

    pub fn course(&mut self, now: Time, operation: &ObjectOperation) -> Course {
        let slow = self.odds.slow;
        let mut effect = now.0 + self.latency();
        if self.rng.ppm(slow) {
            effect += self.rng.spread(50 * MS, 8 * SECOND);
        }
        let mut answer = effect + self.latency();
        if self.rng.ppm(slow) {
            answer += self.rng.spread(50 * MS, 8 * SECOND);
        }
        let (effect, answer) = (Time(effect), Time(answer));
        if effect < self.away_until {
            return Course { fate: Fate::FailsBefore, effect, answer };
        }
        let (odds, rng) = (self.odds, &mut self.rng);
        let puts = matches!(operation, ObjectOperation::Put { .. });
        let changes = puts || matches!(operation, ObjectOperation::Delete { .. });
        let fate = if !changes {
            if rng.ppm(odds.get) { Fate::FailsBefore } else { Fate::Works }
        } else if rng.ppm(odds.before) {
            Fate::FailsBefore
        } else if rng.ppm(odds.after) {
            Fate::FailsAfter
        } else if puts && rng.ppm(odds.late) {
            let effect = Time(answer.0 + rng.spread(10 * MS, 12 * SECOND));
            return Course { fate: Fate::Late, effect, answer };
        } else if puts && rng.ppm(odds.exists_own) {
            Fate::ExistsOwn
        } else {
            Fate::Works
        };
        Course { fate, effect, answer }
    }

    pub fn get(&self, key: &str, range: Option<&std::ops::Range<u64>>) -> Result<Bytes, GetError> {
        let object = self.map.get(key).ok_or(GetError::NotFound)?;
        let Some(range) = range else { return Ok(object.clone()) };
        let end = range.end.min(object.len() as u64);
        let start = range.start.min(end);
        Ok(object.slice(start as usize..end as usize))
    }

    /// The objects whose keys begin with `prefix` and come after the key `after`.
    pub fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: &str,
    ) -> impl Iterator<Item = ObjectMeta> + 'a {
        let from = if after < prefix { prefix } else { after }.to_owned();
        let after = after.to_owned();
        let range = self.map.range(from..).take_while(move |(key, _)| key.starts_with(prefix));
        range
            .filter(move |(key, _)| *key > &after || after.is_empty())
            .map(|(key, data)| ObjectMeta { key: key.clone(), bytes: data.len() as u64 })
    }

    /// Executes an operation at once and without a fault.
    pub fn at_once(&mut self, operation: &ObjectOperation) -> ObjectResult {
        match operation {
            ObjectOperation::Put { key, data } => {
                if self.map.contains_key(key) {
                    return ObjectResult::Put(Err(PutError::Exists));
                }
                self.map.insert(key.clone(), data.concat().into());
                ObjectResult::Put(Ok(()))
            }
            ObjectOperation::Get { key, range, .. } => {
                ObjectResult::Get(self.get(key, range.as_ref()))
            }
            ObjectOperation::List { prefix } => {
                ObjectResult::List(Ok(self.list(prefix, "").collect()))
            }
            ObjectOperation::ListAfter { prefix, after } => {
                ObjectResult::List(Ok(self.list(prefix, after).collect()))
            }
            ObjectOperation::Delete { key } => {
                self.map.remove(key);
                ObjectResult::Delete(Ok(()))
            }
        }
    }
}

/// The result of a failed operation.
pub(super) fn failure(operation: &ObjectOperation) -> ObjectResult {
    let failed = StorageError::unavailable("injected failure");
    match operation {
        ObjectOperation::Put { .. } => ObjectResult::Put(Err(PutError::Failed(failed))),
        ObjectOperation::Get { .. } => ObjectResult::Get(Err(GetError::Failed(failed))),
        ObjectOperation::List { .. } | ObjectOperation::ListAfter { .. } => {
            ObjectResult::List(Err(failed))
        }
        ObjectOperation::Delete { .. } => ObjectResult::Delete(Err(failed)),
    }
}
