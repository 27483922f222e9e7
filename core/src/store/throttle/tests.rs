use super::*;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const START: Time = Time(5_000_000_000);

/// A request as it passes: volume, lane, number.
type Name = (u128, Lane, u64);

fn bytes(rate: u64) -> Rates {
    Rates { operations: None, bytes: Some(rate) }
}

fn operations(rate: u64) -> Rates {
    Rates { operations: Some(rate), bytes: None }
}

/// A throttle on a virtual clock, and what it must keep to all the time.
struct World {
    throttle: Throttle<Name>,
    now: Time,
    rates: [Option<u64>; KINDS],
    costs: BTreeMap<Name, Cost>,
    next: u64,
    passed: Vec<(Time, Name)>,
    /// At each moment: what has passed, and what could have passed in no time.
    ledger: Vec<(Time, [u64; KINDS], [u64; KINDS])>,
}

impl World {
    fn new(rates: Rates) -> World {
        let mut throttle = Throttle::new();
        throttle.set(START, rates);
        World {
            throttle,
            now: START,
            rates: [rates.operations, rates.bytes],
            costs: BTreeMap::new(),
            next: 0,
            passed: Vec::new(),
            ledger: Vec::new(),
        }
    }

    fn ask_in(&mut self, session: u64, volume: u128, lane: Lane, cost: (u64, u64)) -> Name {
        self.next += 1;
        let name = (volume, lane, self.next);
        let cost = Cost { operations: cost.0, bytes: cost.1 };
        self.costs.insert(name, cost);
        let who = (SessionId(session), lane);
        self.throttle.handle_request(self.now, VolumeId(volume), who, cost, name);
        self.collect();
        name
    }

    fn ask(&mut self, volume: u128, lane: Lane, bytes: u64) -> Name {
        self.ask_in(1, volume, lane, (1, bytes))
    }

    fn collect(&mut self) {
        while let Some(name) = self.throttle.poll() {
            self.passed.push((self.now, name));
        }
        self.check();
    }

    /// The throttle has saved or passed all dealt tokens, and has dealt no more than the income.
    fn check(&mut self) {
        let mut could = [0; KINDS];
        let heads = self.throttle.volumes.values().flat_map(|volume| &volume.lanes);
        for kind in (0..KINDS).filter(|kind| self.rates[*kind].is_some()) {
            let saved: u64 = heads.clone().map(|queue| queue.saved[kind]).sum();
            let waits = |queue: &Queue<Name>| queue.requests.front().map(|first| first.cost[kind]);
            let heads: u64 = heads.clone().filter_map(waits).sum();
            assert!(saved <= heads, "{saved} saved for requests that cost {heads}");
            let there = self.throttle.pools[kind].limit.available(self.now);
            assert!(there <= self.rates[kind].unwrap_or(0), "more than a second's worth");
            could[kind] = saved + there;
        }
        let Cost { operations, bytes } = self.throttle.totals().passed;
        self.ledger.push((self.now, [operations, bytes], could));
    }

    /// Over any span: at most what could pass at its start, and the rate times the span.
    fn check_rates(&self) {
        for kind in (0..KINDS).filter(|kind| self.rates[*kind].is_some()) {
            let rate = i128::from(self.rates[kind].unwrap_or(0));
            let mut most = i128::MAX;
            for (at, passed, could) in &self.ledger {
                let billion = |tokens: u64| i128::from(tokens) * 1_000_000_000;
                let ahead = billion(passed[kind]) - rate * i128::from(at.0);
                assert!(ahead <= most, "{} more than may pass", (ahead - most) / 1_000_000_000);
                // The income counts whole tokens; the bucket may have a part of one already.
                most = most.min(ahead + billion(could[kind] + 1));
            }
        }
    }

    fn step_until(&mut self, end: Time) {
        while let Some(at) = self.throttle.poll_timeout().filter(|at| *at <= end) {
            // A timer is never early, and fires once for what is due.
            assert!(at > self.now || self.throttle.poll_timeout() > Some(self.now));
            self.now = at.max(self.now);
            self.throttle.handle_timeout(self.now);
            self.collect();
        }
        self.now = self.now.max(end);
        self.throttle.handle_timeout(self.now);
        self.collect();
    }

    fn wait(&mut self, time: Duration) {
        self.step_until(self.now.after(time));
    }

    /// Time passes, and nobody sees to it until then.
    fn sleep(&mut self, time: Duration) {
        self.now = self.now.after(time);
        self.throttle.handle_timeout(self.now);
        self.collect();
    }

    fn finish(&mut self) {
        self.step_until(Time(u64::MAX));
    }

    fn passed_of(&self, volume: u128) -> u64 {
        let of = self.passed.iter().filter(|(_, name)| name.0 == volume);
        of.map(|(_, name)| self.costs[name].bytes).sum()
    }

    fn has_passed(&self, name: Name) -> Option<Time> {
        self.passed.iter().find(|(_, passed)| *passed == name).map(|(at, _)| *at)
    }
}

fn lane() -> impl Strategy<Value = Lane> {
    prop::sample::select(vec![Lane::Read, Lane::ReadAhead, Lane::Drain])
}

proptest! {
    #[test]
    fn over_any_span_no_more_passes_than_comes_in(
        (operations, bytes) in (prop::option::of(1..2000u64), prop::option::of(MIB..(64 * MIB))),
        steps in prop::collection::vec(
            (
                0..400_000_000u64,
                (0..4u128, lane(), 0..3u64, 1..200u64, 0..(8 * MIB)),
                prop::option::weighted(0.1, 0..3u64),
            ),
            1..60,
        ),
    ) {
        let mut world = World::new(Rates { operations, bytes });
        let mut expected = Vec::new();
        for (pause, (volume, lane, session, operations, bytes), closed) in steps {
            world.wait(Duration::from_nanos(pause));
            let name = world.ask_in(session, volume, lane, (operations, bytes));
            expected.push((session, name));
            if let Some(closed) = closed {
                world.throttle.handle_session_closed(world.now, SessionId(closed));
                world.collect();
                let passed = world.passed.clone();
                let has_passed = |name| passed.iter().any(|(_, passed)| *passed == name);
                expected.retain(|(session, name)| *session != closed || has_passed(*name));
                let waiting = (expected.len() - world.passed.len()) as u64;
                prop_assert_eq!(world.throttle.waiting().requests, waiting);
            }
        }
        world.finish();
        world.check_rates();
        // All remaining requests pass, each lane in its order, and nothing is left.
        prop_assert_eq!(world.passed.len(), expected.len());
        prop_assert_eq!(world.throttle.waiting(), Waiting::default());
        prop_assert_eq!(world.throttle.poll_timeout(), None);
        let mut last: BTreeMap<(u128, Lane), u64> = BTreeMap::new();
        for (_, (volume, lane, number)) in &world.passed {
            let before = last.insert((*volume, *lane), *number);
            prop_assert!(before < Some(*number));
        }
    }

    #[test]
    fn volumes_that_want_all_the_time_get_the_same(
        rate in (100 << 10)..(100 * MIB),
        sizes in prop::collection::vec((lane(), 1..(2 * MIB)), 2..5),
        late: bool,
    ) {
        let mut world = World::new(bytes(rate));
        let total = 64 * MIB;
        for (volume, (lane, size)) in sizes.iter().enumerate() {
            for _ in 0..total / size + 1 {
                world.ask(volume as u128, *lane, *size);
            }
        }
        let quantum = world.throttle.pools[1].quantum();
        let all = sizes.len() as u64;
        for _ in 0..50 {
            let time = Duration::from_nanos(1_000_000_000 / 50 * total / rate);
            if late { world.sleep(time) } else { world.wait(time) }
            let got = (0..all).map(|volume| world.passed_of(u128::from(volume)));
            let got: Vec<u64> = got.collect();
            // The passed cost is less than a request behind the dealt tokens.
            for (one, (_, size)) in got.iter().zip(&sizes) {
                for other in &got {
                    prop_assert!(*other <= one + size + quantum, "{got:?} of {sizes:?}");
                }
            }
        }
    }

    #[test]
    fn a_lone_request_waits_for_a_quantum_of_each(
        rate in (100 << 10)..(100 * MIB),
        sizes in prop::collection::vec((lane(), 1..(8 * MIB)), 1..8),
        own in prop::option::of(1..(8 * MIB)),
        read in 1..MIB,
        after in 0..3_000_000_000u64,
    ) {
        let mut world = World::new(bytes(rate));
        for (volume, (lane, size)) in sizes.iter().enumerate() {
            for _ in 0..4 * rate / size + 2 {
                world.ask(volume as u128, *lane, *size);
            }
        }
        // Its own volume's drain, and reading ahead, are others too.
        let all = sizes.len() as u64;
        for lane in own.iter().flat_map(|_| [Lane::Drain, Lane::ReadAhead]) {
            for _ in 0..4 * rate / own.unwrap_or(1) + 2 {
                world.ask(u128::from(all), lane, own.unwrap_or(1));
            }
        }
        world.wait(Duration::from_nanos(after));
        let asked = world.now;
        let lone = world.ask(u128::from(all), Lane::Read, read);
        let quantum = world.throttle.pools[1].quantum();
        // Its own tokens, as many and a quantum for each other volume; an eighth of them goes to
        // each of its own lanes.
        let own = if own.is_some() { read * 3 / 8 + 2 * quantum } else { 0 };
        let tokens = (all + 1) * (read + own + quantum) + quantum;
        world.wait(Duration::from_nanos(tokens * 1_000_000_000 / rate + 1000));
        prop_assert!(world.has_passed(lone).is_some(), "asked at {asked:?}");
    }
}

#[test]
fn a_small_read_beside_a_large_batch_is_dealt_to_next() {
    let mut world = World::new(bytes(10 * MIB));
    for volume in 0..3 {
        for _ in 0..100 {
            world.ask(volume, Lane::Drain, 4 * MIB);
        }
    }
    for _ in 0..200 {
        world.wait(Duration::from_millis(37));
        let (asked, read) = (world.now, world.ask(9, Lane::Read, 8192));
        world.wait(Duration::from_millis(10));
        let waited = world.has_passed(read).unwrap().since(asked);
        // A quantum of 10 KiB for each of three, and its own 8 KiB.
        assert!(waited <= Duration::from_millis(5), "{waited:?}");
    }
}

#[test]
fn who_comes_and_goes_gets_no_more_than_who_stays() {
    let mut world = World::new(bytes(10 * MIB));
    for _ in 0..1000 {
        world.ask(1, Lane::Drain, MIB);
    }
    let end = world.now.after(Duration::from_secs(10));
    let mut read = world.ask(2, Lane::Read, 8192);
    while world.now < end {
        let at = world.throttle.poll_timeout().unwrap();
        world.step_until(at);
        if world.has_passed(read).is_some() {
            // The answer to a request brings the next one.
            read = world.ask(2, Lane::Read, 8192);
        }
    }
    let (stays, comes) = (world.passed_of(1), world.passed_of(2));
    assert!(stays + 2 * MIB > 50 * MIB, "{stays} and {comes}");
    assert!(comes > 40 * MIB, "{stays} and {comes}");
}

#[test]
fn who_wanted_nothing_gets_nothing_for_it() {
    let mut world = World::new(bytes(10 * MIB));
    for _ in 0..1000 {
        world.ask(1, Lane::Drain, MIB);
    }
    // The throttle knows the volume, which then wants nothing for a while.
    world.ask(2, Lane::Read, 8192);
    world.ask(1, Lane::Read, 8192);
    world.wait(Duration::from_secs(10));
    let of = |world: &World, volume| world.passed_of(volume) / MIB;
    assert!(of(&world, 1) >= 98);
    for _ in 0..1000 {
        world.ask(2, Lane::Drain, MIB);
    }
    for _ in 0..10_000 {
        world.ask(1, Lane::Read, 64 << 10);
    }
    world.wait(Duration::from_secs(10));
    assert!((48..=51).contains(&of(&world, 2)), "{}", of(&world, 2));
    let drained = world.passed.iter().filter(|(_, name)| name.0 == 1 && name.1 == Lane::Drain);
    // A ninth of what the volume got in the second half.
    assert!((103..=106).contains(&drained.count()));
}

#[test]
fn the_least_urgent_lane_goes_on_whatever_the_others_want() {
    let mut world = World::new(bytes(10 * MIB));
    for _ in 0..10_000 {
        for lane in [Lane::Read, Lane::ReadAhead] {
            world.ask(1, lane, 64 << 10);
        }
    }
    for _ in 0..100 {
        world.ask(1, Lane::Drain, 4 * MIB);
    }
    world.wait(Duration::from_secs(44));
    let of = |lane| {
        let of = world.passed.iter().filter(|(_, name)| name.1 == lane);
        of.map(|(_, name)| world.costs[name].bytes).sum::<u64>() / MIB
    };
    let (read, ahead, drain) = (of(Lane::Read), of(Lane::ReadAhead), of(Lane::Drain));
    assert!((315..=325).contains(&read), "{read} {ahead} {drain}");
    assert!((75..=85).contains(&ahead), "{read} {ahead} {drain}");
    assert!((36..=44).contains(&drain), "{read} {ahead} {drain}");
}

#[test]
fn requests_are_limited_by_what_they_lack() {
    // One volume wants operations, the other bytes: neither keeps the other from what it does not
    // use.
    let mut world = World::new(Rates { operations: Some(100), bytes: Some(100 * MIB) });
    for _ in 0..2000 {
        world.ask_in(1, 1, Lane::Read, (1, 4096));
        world.ask_in(1, 2, Lane::ReadAhead, (1, 4 * MIB));
    }
    world.wait(Duration::from_secs(10));
    let bytes = world.passed_of(2);
    assert!((970 * MIB..1010 * MIB).contains(&bytes), "{bytes}");
    let operations = world.passed.iter().filter(|(_, name)| name.0 == 1).count();
    assert!((740..=760).contains(&operations), "{operations}");
    world.finish();
    world.check_rates();
}

#[test]
fn what_is_larger_than_the_bucket_passes() {
    let mut world = World::new(Rates { operations: Some(10), bytes: Some(4096) });
    let batch = world.ask_in(1, 1, Lane::Drain, (100, 65_536));
    let read = world.ask_in(1, 2, Lane::Read, (1, 2048));
    world.wait(Duration::from_secs(3));
    assert!(world.has_passed(read).is_some() && world.has_passed(batch).is_none());
    world.wait(Duration::from_secs(14));
    assert!(world.has_passed(batch).is_some());
    world.check_rates();
}

#[test]
fn a_new_limit_takes_effect_at_once() {
    let mut world = World::new(bytes(1024));
    let batches: Vec<Name> = (0..4).map(|_| world.ask(1, Lane::Drain, 4 * MIB)).collect();
    world.wait(Duration::from_secs(1));
    assert_eq!(world.passed, []);
    // Raised, the first goes as soon as that allows.
    world.rates = [None, Some(8 * MIB)];
    world.throttle.set(world.now, bytes(8 * MIB));
    world.wait(Duration::from_millis(510));
    assert!(world.has_passed(batches[0]).is_some() && world.has_passed(batches[1]).is_none());
    // Limited in another way, only that counts.
    world.rates = [Some(1), None];
    world.throttle.set(world.now, operations(1));
    world.wait(Duration::from_millis(1010));
    assert!(world.has_passed(batches[1]).is_some() && world.has_passed(batches[2]).is_none());
    // Without limits all requests pass, and no savings remain.
    world.rates = [None, None];
    world.throttle.set(world.now, Rates::default());
    world.collect();
    assert_eq!(world.has_passed(batches[3]), Some(world.now));
    assert_eq!(world.throttle.poll_timeout(), None);
    let read = world.ask(1, Lane::Read, u64::from(u32::MAX));
    assert_eq!(world.has_passed(read), Some(world.now));
    // From none to some nothing is let through before its time.
    world.rates = [None, Some(1024)];
    world.throttle.set(world.now, bytes(1024));
    let read = world.ask(1, Lane::Read, 1024);
    world.wait(Duration::from_millis(999));
    assert_eq!(world.has_passed(read), None);
    world.wait(Duration::from_millis(1));
    assert!(world.has_passed(read).is_some());
    assert_eq!(world.throttle.totals().throttled, 5);
}

#[test]
fn nothing_passes_before_the_limits_are_known() {
    let mut throttle = Throttle::new();
    let (cost, who) = (Cost { operations: 1, bytes: 1 }, (SessionId(1), Lane::Read));
    for number in 0..3 {
        throttle.handle_request(START, VolumeId(1), who, cost, number);
    }
    throttle.handle_timeout(START.after(Duration::from_secs(9)));
    assert_eq!((throttle.poll(), throttle.poll_timeout(), throttle.rates()), (None, None, None));
    throttle.set(START.after(Duration::from_secs(9)), Rates::default());
    assert_eq!(std::iter::from_fn(|| throttle.poll()).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn a_session_that_closes_leaves_nothing_behind() {
    let mut world = World::new(bytes(MIB));
    for session in [1, 2] {
        for lane in [Lane::Read, Lane::Drain] {
            for _ in 0..3 {
                world.ask_in(session, 1, lane, (1, MIB));
            }
        }
    }
    world.wait(Duration::from_millis(900));
    assert_eq!(world.throttle.waiting(), Waiting { requests: 12, bytes: 12 * MIB });
    world.throttle.handle_session_closed(world.now, SessionId(1));
    world.collect();
    assert_eq!(world.throttle.waiting(), Waiting { requests: 6, bytes: 6 * MIB });
    let at = world.now;
    world.finish();
    assert_eq!(world.passed.len(), 6);
    // Savings for requests of closed sessions go to the others.
    assert!(world.passed[0].0.since(at) < Duration::from_millis(300));
    world.throttle.handle_session_closed(world.now, SessionId(2));
    assert_eq!(world.throttle.poll_timeout(), None);
    world.check_rates();
}

#[test]
fn a_volume_that_leaves_takes_its_requests_along() {
    let mut world = World::new(bytes(MIB));
    let left: Vec<Name> = (0..3).map(|_| world.ask(1, Lane::Drain, 4 * MIB)).collect();
    let stays = world.ask(2, Lane::Drain, 4 * MIB);
    world.wait(Duration::from_secs(3));
    world.throttle.release(world.now, VolumeId(1));
    world.collect();
    assert!(left.iter().all(|name| world.has_passed(*name) == Some(world.now)));
    assert_eq!(world.throttle.waiting(), Waiting { requests: 1, bytes: 4 * MIB });
    // The volume that left had saved tokens. The other one gets those, up to one second's worth,
    // and the whole income.
    world.wait(Duration::from_millis(1600));
    assert!(world.has_passed(stays).is_some());
}

#[test]
fn what_does_not_wait_is_paid_for() {
    let mut world = World::new(operations(10));
    world.wait(Duration::from_secs(5));
    world.throttle.handle_urgent(world.now, Cost { operations: 30, bytes: 0 });
    let read = world.ask(1, Lane::Read, 4096);
    world.wait(Duration::from_millis(2050));
    assert_eq!(world.has_passed(read), None);
    world.wait(Duration::from_millis(100));
    assert!(world.has_passed(read).is_some());
}

#[test]
fn volumes_that_were_there_are_forgotten() {
    let mut world = World::new(operations(1000));
    for volume in 0..10_000 {
        world.ask(volume, Lane::Read, 1);
        world.wait(Duration::from_millis(1));
    }
    assert!(world.throttle.volumes.len() < 64, "{}", world.throttle.volumes.len());
}
