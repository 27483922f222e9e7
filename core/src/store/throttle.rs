//! Lets the requests of a tenant pass at the pace of its limits: a request waits here until it may
//! pass.
//!
//! One token bucket counts operations and one counts bytes. Each fills at the tenant's limit and
//! holds the tokens of one second. The throttle deals the tokens to the volumes with waiting
//! requests, a quantum at a time. The next quantum goes to the volume that has got the least since
//! it began to wait. This is start-time fair queueing (Goyal, Vin, Cheng 1996), with tokens for a
//! link. A volume deals its tokens to its lanes in the same way, by their weight. A lane saves its
//! tokens for its first request, which passes when the lane has its whole cost.
//!
//! So a request takes tokens from others for at most a quantum, however large it is: others get
//! theirs while it saves. The throttle rejects nothing, and nothing waits for ever. The least
//! urgent lane of a volume gets 1/11 of the volume's share, whatever the others want.
//!
//! Promises:
//! - The cost of the requests that pass in a span is at most the limit times the span, plus two
//!   amounts. These are the tokens of one second, and the savings at the start of the span. The
//!   savings are less than one request for each lane of a volume.
//! - Volumes that lack tokens all the time get the same amount, but for a quantum. A volume that
//!   begins to lack tokens gets the next ones.
//! - Requests of a lane of a volume pass in their order.
//!
//! The throttle must not know the content of a request or the part that executes it. The caller
//! bounds the waiting requests.

mod cost;
#[cfg(test)]
mod tests;

pub use cost::{Cost, cost, of_volume};

use super::session::SessionId;
use crate::block::{Time, VolumeId};
use crate::limit::Limit;
use crate::wire::link::Lane;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// The time of idleness that a bucket saves up tokens for.
const BURST: Duration = Duration::from_secs(1);
/// The income of this time is the quantum, the amount of one deal, which is at least [`LEAST`]. The
/// timers of the store service can distinguish a millisecond.
const QUANTUM: Duration = Duration::from_millis(1);
/// Operations and bytes that are dealt at once at least, unless a second's worth is less.
const LEAST: [u64; KINDS] = [1, 4096];

/// Operations and bytes.
const KINDS: usize = 2;
/// Reads, reading ahead, batches.
const LANES: usize = 3;
/// The weight of a token in each of these lanes: they share 8:2:1.
const STRIDE: [u64; LANES] = [1, 4, 8];

/// Limits of a tenant; nothing is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Operations a second.
    pub operations: Option<u64>,
    /// Bytes a second.
    pub bytes: Option<u64>,
}

/// Requests at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// How many.
    pub requests: u64,
    /// Bytes that they cost.
    pub bytes: u64,
}

/// Counts of the fates of requests since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The cost of the passed requests.
    pub passed: Cost,
    /// Requests that passed and had to wait.
    pub throttled: u64,
    /// How long they did, all together.
    pub time: Duration,
}

/// The requests of one tenant; `T` is the request itself.
///
/// Inputs are `handle_*`, `set` and `release`; after any of them [`Throttle::poll`] gives the
/// requests that may pass. `now` never goes back.
#[derive(Debug)]
pub struct Throttle<T> {
    /// The limits are: before that everything waits.
    known: bool,
    pools: [Pool; KINDS],
    /// Those with something waiting, and those that were dealt more than others lately.
    volumes: BTreeMap<VolumeId, Volume<T>>,
    /// At this number of volumes the throttle drops those without a use.
    tidy_at: usize,
    passed: VecDeque<T>,
    /// Before that nothing more can pass.
    due: Option<Time>,
    waiting: Waiting,
    totals: Totals,
}

/// The tokens of one kind.
#[derive(Debug)]
struct Pool {
    limit: Limit,
    least: u64,
    /// The amount that the last served volume had got before. A volume that begins to lack tokens
    /// begins there.
    reached: u64,
    /// The most that a volume has been dealt: all begin there once none lacks any.
    furthest: u64,
    /// Volumes that lack some, by what they have been dealt.
    lacking: BTreeSet<(u64, VolumeId)>,
}

impl Pool {
    fn is_limited(&self) -> bool {
        self.limit.rate().is_some()
    }

    fn quantum(&self) -> u64 {
        let rate = self.limit.rate().unwrap_or(u64::MAX);
        let worth = u128::from(rate) * QUANTUM.as_nanos() / BURST.as_nanos();
        u64::try_from(worth).unwrap_or(u64::MAX).max(self.least).min(rate)
    }
}

#[derive(Debug)]
struct Volume<T> {
    dealt: [u64; KINDS],
    lacks: [bool; KINDS],
    /// As in a pool, of the lanes.
    reached: [u64; KINDS],
    lanes: [Queue<T>; LANES],
}

impl<T> Default for Volume<T> {
    fn default() -> Self {
        let lanes = std::array::from_fn(|_| Queue::default());
        Volume { dealt: [0; KINDS], lacks: [false; KINDS], reached: [0; KINDS], lanes }
    }
}

impl<T> Volume<T> {
    fn is_idle(&self) -> bool {
        self.lanes.iter().all(|lane| lane.requests.is_empty())
    }

    /// The lane that is dealt to next, of those that lack tokens of that kind.
    fn next_lane(&self, kind: usize) -> Option<usize> {
        let lacking = (0..LANES).filter(|lane| self.lanes[*lane].lacks[kind]);
        lacking.min_by_key(|lane| self.lanes[*lane].dealt[kind])
    }
}

/// A lane of a volume.
#[derive(Debug)]
struct Queue<T> {
    requests: VecDeque<Request<T>>,
    /// For the first of them.
    saved: [u64; KINDS],
    /// The tokens of each lane, times the stride.
    dealt: [u64; KINDS],
    lacks: [bool; KINDS],
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        let requests = VecDeque::new();
        Queue { requests, saved: [0; KINDS], dealt: [0; KINDS], lacks: [false; KINDS] }
    }
}

impl<T> Queue<T> {
    /// Tokens of a limited kind that the first request lacks.
    fn lack(&self, kind: usize) -> u64 {
        let first = self.requests.front();
        first.map_or(0, |first| first.cost[kind].saturating_sub(self.saved[kind]))
    }
}

#[derive(Debug)]
struct Request<T> {
    session: SessionId,
    since: Time,
    cost: [u64; KINDS],
    what: T,
}

/// The queue that requests of a lane wait in.
fn queue_of(lane: Lane) -> usize {
    match lane {
        Lane::Read | Lane::Control => 0,
        Lane::ReadAhead => 1,
        Lane::Drain => 2,
    }
}

impl<T> Default for Throttle<T> {
    fn default() -> Self {
        Throttle::new()
    }
}

impl<T> Throttle<T> {
    /// Lets nothing pass until it has limits.
    #[must_use]
    pub fn new() -> Throttle<T> {
        let pool = |least| Pool {
            limit: Limit::with_burst(BURST),
            least,
            reached: 0,
            furthest: 0,
            lacking: BTreeSet::new(),
        };
        Throttle {
            known: false,
            pools: LEAST.map(pool),
            volumes: BTreeMap::new(),
            tidy_at: 0,
            passed: VecDeque::new(),
            due: None,
            waiting: Waiting::default(),
            totals: Totals::default(),
        }
    }

    /// Sets the limits, none less than one a second. Requests that passed under the old limit still
    /// have to be paid for. A bucket whose limit changes has no savings.
    pub fn set(&mut self, now: Time, rates: Rates) {
        self.known = true;
        for (pool, rate) in self.pools.iter_mut().zip([rates.operations, rates.bytes]) {
            pool.limit.set(now, rate);
        }
        for kind in (0..KINDS).filter(|kind| !self.pools[*kind].is_limited()) {
            for lane in self.volumes.values_mut().flat_map(|volume| &mut volume.lanes) {
                lane.saved[kind] = 0;
            }
        }
        for id in self.volumes.keys().copied().collect::<Vec<_>>() {
            self.settle(now, id);
        }
        self.deal(now);
    }

    /// The limits; `None` if they are unknown.
    #[must_use]
    pub fn rates(&self) -> Option<Rates> {
        let [operations, bytes] = &self.pools;
        let rates = Rates { operations: operations.limit.rate(), bytes: bytes.limit.rate() };
        self.known.then_some(rates)
    }

    /// A request of a volume, in the lane that it came in.
    pub fn handle_request(
        &mut self,
        now: Time,
        volume: VolumeId,
        (session, lane): (SessionId, Lane),
        cost: Cost,
        what: T,
    ) {
        if self.volumes.len() >= self.tidy_at {
            self.tidy();
        }
        self.waiting.requests += 1;
        self.waiting.bytes += cost.bytes;
        let request = Request { session, since: now, cost: [cost.operations, cost.bytes], what };
        let queue = &mut self.volumes.entry(volume).or_default().lanes[queue_of(lane)];
        queue.requests.push_back(request);
        if queue.requests.len() == 1 {
            self.settle(now, volume);
            self.deal(now);
        }
    }

    /// Counts a request that does not wait. Its cost delays later requests.
    pub fn handle_urgent(&mut self, now: Time, cost: Cost) {
        let costs = [cost.operations, cost.bytes];
        for (pool, cost) in self.pools.iter_mut().zip(costs).filter(|(pool, _)| pool.is_limited()) {
            pool.limit.take(now, cost);
        }
        self.totals.passed.operations += cost.operations;
        self.totals.passed.bytes += cost.bytes;
    }

    /// A session has ended: the throttle forgets its waiting requests.
    pub fn handle_session_closed(&mut self, now: Time, session: SessionId) {
        let mut waiting = Waiting::default();
        let mut changed = Vec::new();
        for (id, volume) in &mut self.volumes {
            for queue in &mut volume.lanes {
                let before = queue.requests.len();
                queue.requests.retain(|request| request.session != session);
                if queue.requests.len() < before {
                    changed.push(*id);
                }
                waiting.requests += queue.requests.len() as u64;
                waiting.bytes += queue.requests.iter().map(|request| request.cost[1]).sum::<u64>();
            }
        }
        self.waiting = waiting;
        for id in changed {
            self.settle(now, id);
        }
        self.deal(now);
    }

    /// The time that [`Throttle::poll_timeout`] gave has come.
    pub fn handle_timeout(&mut self, now: Time) {
        self.deal(now);
    }

    /// Lets the requests of a volume that this store no longer serves pass, so that their senders
    /// get that answer.
    pub fn release(&mut self, now: Time, volume: VolumeId) {
        let Some(found) = self.volumes.get_mut(&volume) else { return };
        for queue in &mut found.lanes {
            for request in std::mem::take(&mut queue.requests) {
                self.waiting.requests -= 1;
                self.waiting.bytes -= request.cost[1];
                self.passed.push_back(request.what);
            }
        }
        self.settle(now, volume);
        self.deal(now);
    }

    /// The next request that may pass.
    pub fn poll(&mut self) -> Option<T> {
        self.passed.pop_front()
    }

    /// The time at which [`Throttle::handle_timeout`] wants a call; a past time means at once.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.due
    }

    /// What waits.
    #[must_use]
    pub fn waiting(&self) -> Waiting {
        self.waiting
    }

    /// Counts of the other fates.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Deals what there is.
    fn deal(&mut self, now: Time) {
        // A request shows what it lacks of one kind only after it has got the other kind.
        while (0..KINDS).any(|kind| self.deal_kind(now, kind)) {}
        let due = (0..KINDS).filter_map(|kind| self.due(now, kind));
        self.due = due.min();
    }

    /// The time at which a request may have its missing tokens of a kind, if it gets the whole
    /// income. It is never later than the overflow of the bucket.
    fn due(&self, now: Time, kind: usize) -> Option<Time> {
        let pool = &self.pools[kind];
        let volumes = pool.lacking.iter().filter_map(|(_, id)| self.volumes.get(id));
        let lanes = volumes.flat_map(|volume| &volume.lanes).filter(|lane| lane.lacks[kind]);
        let least = lanes.map(|lane| lane.lack(kind)).min()?;
        let most = (pool.limit.rate()? / 2).max(1);
        // All that is there has been dealt.
        Some(pool.limit.when(now, least.max(pool.quantum()).min(most)).unwrap_or(now))
    }

    fn deal_kind(&mut self, now: Time, kind: usize) -> bool {
        let mut dealt = false;
        while let Some((had, id)) = self.pools[kind].lacking.first().copied() {
            let pool = &mut self.pools[kind];
            let there = pool.limit.available(now).min(pool.quantum());
            let Some(volume) = self.volumes.get_mut(&id).filter(|_| there > 0) else { break };
            let Some(lane) = volume.next_lane(kind) else { break };
            let queue = &mut volume.lanes[lane];
            let give = queue.lack(kind).min(there);
            pool.limit.take(now, give);
            pool.reached = pool.reached.max(had);
            pool.furthest = pool.furthest.max(had + give);
            pool.lacking.remove(&(had, id));
            pool.lacking.insert((had + give, id));
            volume.dealt[kind] += give;
            volume.reached[kind] = volume.reached[kind].max(queue.dealt[kind]);
            queue.dealt[kind] += give * STRIDE[lane];
            queue.saved[kind] += give;
            self.settle(now, id);
            dealt = true;
        }
        dealt
    }

    /// Lets pass what of a volume has all that it costs, and notes what the rest lacks.
    fn settle(&mut self, now: Time, id: VolumeId) {
        let limited = self.pools.each_ref().map(Pool::is_limited);
        let Some(volume) = self.volumes.get_mut(&id) else { return };
        let known = self.known;
        let lacks = |queue: &Queue<T>, kind: usize| known && limited[kind] && queue.lack(kind) > 0;
        for queue in &mut volume.lanes {
            while known && !(0..KINDS).any(|kind| lacks(queue, kind)) {
                let Some(request) = queue.requests.pop_front() else { break };
                for kind in (0..KINDS).filter(|kind| limited[*kind]) {
                    queue.saved[kind] -= request.cost[kind];
                }
                let waited = now.since(request.since);
                self.totals.passed.operations += request.cost[0];
                self.totals.passed.bytes += request.cost[1];
                self.totals.throttled += u64::from(!waited.is_zero());
                self.totals.time += waited;
                self.waiting.requests -= 1;
                self.waiting.bytes -= request.cost[1];
                self.passed.push_back(request.what);
            }
            // Saved up for one that is gone.
            let first = queue.requests.front().map_or([0; KINDS], |first| first.cost);
            for (kind, pool) in self.pools.iter_mut().enumerate() {
                pool.limit.give_back(queue.saved[kind].saturating_sub(first[kind]));
                queue.saved[kind] = queue.saved[kind].min(first[kind]);
            }
        }
        for (kind, pool) in self.pools.iter_mut().enumerate() {
            for queue in &mut volume.lanes {
                let now_lacks = lacks(queue, kind);
                if now_lacks && !queue.lacks[kind] {
                    // A volume gets no compensation for the time in which it wanted nothing.
                    queue.dealt[kind] = queue.dealt[kind].max(volume.reached[kind]);
                }
                queue.lacks[kind] = now_lacks;
            }
            let now_lacks = volume.lanes.iter().any(|queue| queue.lacks[kind]);
            let had = &mut volume.dealt[kind];
            if now_lacks && !volume.lacks[kind] {
                *had = (*had).max(pool.reached);
                pool.lacking.insert((*had, id));
            } else if !now_lacks && volume.lacks[kind] {
                pool.lacking.remove(&(*had, id));
            }
            volume.lacks[kind] = now_lacks;
            if pool.lacking.is_empty() {
                pool.reached = pool.furthest;
            }
        }
    }

    /// Forgets the volumes that it makes no difference to forget.
    fn tidy(&mut self) {
        let reached = self.pools.each_ref().map(|pool| pool.reached);
        self.volumes.retain(|_, volume| {
            let ahead = volume.dealt.iter().zip(&reached).any(|(dealt, reached)| dealt > reached);
            !volume.is_idle() || ahead
        });
        self.tidy_at = 2 * self.volumes.len() + 16;
    }
}
