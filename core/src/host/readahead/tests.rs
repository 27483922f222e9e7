//! Read-ahead over a line of given bandwidth and delay. The tests measure the gain on patterns.
//! They also check that the waste stays within its bound for any reads.

use super::tally::{EARN, START_BYTES};
use super::*;
use crate::host::pieces::PendingPart;
use proptest::prelude::*;

/// 8 GiB.
const SECTORS: u64 = 8 << 21;
const MAX: u64 = 32 << 20;
/// 8 KiB.
const READ: u64 = 16;

struct Rng(u64);

impl Rng {
    fn below(&mut self, limit: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }

    /// Roughly Zipf: half of the draws from each next smaller tenth.
    fn skewed(&mut self, limit: u64) -> u64 {
        let mut limit = limit;
        while limit > 100 && self.below(2) == 0 {
            limit /= 10;
        }
        self.below(limit)
    }
}

/// One client, one read at a time, over a line.
struct Rig {
    ahead: ReadAhead,
    now: Time,
    trip: Duration,
    rate: u64,
    sectors: u64,
    /// The time when the line has carried all requests.
    free: Time,
    under_way: std::collections::VecDeque<(RequestId, SentAt, Range, Time)>,
    requests: RequestId,
    read_bytes: u64,
    foreground: u64,
    source: Bytes,
}

impl Rig {
    fn new(trip_ms: u64, mbit: u64, sectors: u64) -> Rig {
        Rig {
            ahead: ReadAhead::new(MAX),
            now: Time(1_000_000_000),
            trip: Duration::from_millis(trip_ms),
            rate: mbit * 125_000,
            sectors,
            free: Time(0),
            under_way: Default::default(),
            requests: 0,
            read_bytes: 0,
            foreground: 0,
            source: Bytes::from(vec![7; 1 << 20]),
        }
    }

    fn carry(&mut self, bytes: u64) -> Time {
        let took = Duration::from_nanos(bytes * 1_000_000_000 / self.rate);
        self.free = self.free.max(self.now).after(took);
        self.free.after(self.trip)
    }

    fn deliver(&mut self) {
        while let Some((request, sent, range, _)) =
            self.under_way.pop_front_if(|(.., at)| *at <= self.now)
        {
            self.ahead.measure(self.now, sent, range.bytes());
            let piece = ReadPiece::Data(self.source.slice(..range.bytes() as usize));
            self.ahead.arrived(request, Some(&[piece]));
        }
    }

    fn read(&mut self, range: Range) {
        self.now = self.now.after(Duration::from_micros(10));
        self.deliver();
        self.read_bytes += range.bytes();
        let mut until = self.now;
        let mut absent = Vec::new();
        for (part, found) in self.ahead.read(self.now, range) {
            match found {
                AheadFound::Here(piece) => assert_eq!(piece.sectors(), part.sectors),
                AheadFound::Coming(request) => {
                    self.ahead.wait(request, PendingPart { read: 1, slot: 0, range: part });
                    let flight = self.under_way.iter().find(|(number, ..)| *number == request);
                    until = until.max(flight.unwrap().3);
                }
                AheadFound::Absent => absent.push(part),
            }
        }
        let sent = self.ahead.sent(self.now);
        for part in &absent {
            self.foreground += part.bytes();
            until = until.max(self.carry(part.bytes()));
        }
        let (stream, _) = self.ahead.observe(self.now, range);
        while let Some(stream) = stream
            && let Some(next) = self.ahead.next_of_stream(self.now, stream, self.sectors)
        {
            let missing = self.ahead.missing(next);
            if !missing.iter().all(|part| self.ask(*part)) {
                break;
            }
            self.ahead.asked_for_stream(stream, next);
        }
        self.now = until;
        for part in absent {
            self.ahead.measure(self.now, sent, part.bytes());
        }
        self.deliver();
        let status = self.ahead.status(self.now);
        assert!(status.buffered_bytes + status.in_flight_bytes <= MAX);
    }

    fn ask(&mut self, part: Range) -> bool {
        assert!(part.fits(self.sectors) && part.bytes() <= 1 << 20);
        if !self.ahead.may_ask(self.now, part.bytes(), AheadReason::Stream) {
            return false;
        }
        self.requests += 1;
        let sent = self.ahead.sent(self.now);
        self.ahead.asked(self.now, self.requests, part, AheadReason::Stream);
        let at = self.carry(part.bytes());
        self.under_way.push_back((self.requests, sent, part, at));
        true
    }

    fn totals(&self) -> Totals {
        self.ahead.status(self.now).detected
    }

    /// All unused read-ahead, at the end of everything.
    fn wasted(&self) -> u64 {
        let totals = self.totals();
        totals.issued - totals.used
    }
}

/// Bytes a second over the second half of `reads`.
fn rate_of(rig: &mut Rig, reads: &[Range]) -> f64 {
    let (first, second) = reads.split_at(reads.len() / 2);
    first.iter().for_each(|range| rig.read(*range));
    let start = rig.now;
    second.iter().for_each(|range| rig.read(*range));
    let bytes: u64 = second.iter().map(|range| range.bytes()).sum();
    bytes as f64 / rig.now.since(start).as_secs_f64()
}

fn sequence(lba: u64, count: u64) -> Vec<Range> {
    (0..count).map(|n| Range::new(lba + n * READ, READ)).collect()
}

#[test]
fn sequential_reads_fill_the_line() {
    for (trip, mbit) in [(2, 1000), (16, 1000), (50, 1000), (100, 1000), (16, 155), (60, 20)] {
        let mut reads = sequence(12_345, if trip > 20 { 64_000 } else { 24_000 });
        for _ in 0..2 {
            let mut rig = Rig::new(trip, mbit, SECTORS);
            // Without any delay a client that takes 10 µs for a read would get 800 MB/s.
            let rate = rate_of(&mut rig, &reads);
            let line = rig.rate as f64;
            assert!(rate >= 0.9 * line, "{trip} ms, {mbit} Mbit/s: {rate:.0} of {line:.0} B/s");
            assert!(rig.foreground < 1 << 20, "{}", rig.foreground);
            reads.reverse();
        }
    }
}

#[test]
fn strides_and_many_streams_are_followed() {
    let mut rig = Rig::new(16, 1000, SECTORS);
    let strided: Vec<Range> = (0..20_000).map(|n| Range::new(n * 400, READ)).collect();
    let rate = rate_of(&mut rig, &strided);
    // One at a time: 0.5 MB/s; 64 steps a round trip: 32 MB/s.
    assert!(rate > 10e6, "{rate}");
    // Sixteen streams, some backward, and random reads between.
    let mut rig = Rig::new(16, 1000, SECTORS);
    let mut rng = Rng(7);
    let mut random = 0;
    for n in 0..2000 {
        for stream in 0..16u64 {
            let at = if stream % 3 == 0 { (2000 - n) * READ } else { n * READ };
            rig.read(Range::new(stream * 1_000_000 + 77 + at, READ));
        }
        let read = Range::new(rng.below(SECTORS - READ), READ);
        random += read.bytes();
        rig.read(read);
    }
    assert!(rig.foreground < random + (8 << 20), "{} of {}", rig.foreground, rig.read_bytes);
    assert_eq!(rig.ahead.status(rig.now).streams, 16);
}

#[test]
fn reads_of_many_threads_are_one_stream() {
    let mut rig = Rig::new(16, 1000, SECTORS);
    let mut rng = Rng(3);
    let mut reads = sequence(0, 10_000);
    for n in 100..reads.len() - 8 {
        let other = n + rng.below(8) as usize;
        reads.swap(n, other);
    }
    reads.iter().for_each(|range| rig.read(*range));
    assert!(rig.foreground < rig.read_bytes / 20, "{} of {}", rig.foreground, rig.read_bytes);
}

#[test]
fn a_stream_that_ends_is_not_read_beyond_the_volume_or_on_for_ever() {
    let mut rig = Rig::new(16, 1000, 40_000);
    sequence(0, 2500).iter().for_each(|range| rig.read(*range));
    assert_eq!(rig.totals().issued - rig.totals().used, 0);
    let mut rig = Rig::new(16, 1000, SECTORS);
    sequence(0, 2500).iter().for_each(|range| rig.read(*range));
    let issued = rig.totals().issued;
    let mut rng = Rng(1);
    for _ in 0..5000 {
        rig.read(Range::new(rng.below(SECTORS - READ), READ));
    }
    assert_eq!(rig.totals().issued, issued);
}

#[derive(Clone, Debug)]
enum Load {
    Random,
    Skewed,
    /// Runs of so many reads at random places: long enough to look like streams.
    Runs(u64),
    Strides(u64),
}

fn load() -> impl Strategy<Value = Load> {
    prop_oneof![
        Just(Load::Random),
        Just(Load::Skewed),
        (2..40u64).prop_map(Load::Runs),
        (3..12u64).prop_map(Load::Strides),
    ]
}

fn play(rig: &mut Rig, loads: &[Load], seed: u64, bytes: u64) {
    let mut rng = Rng(seed);
    while rig.read_bytes < bytes {
        let end = rig.sectors - 64 * READ;
        match loads[rng.below(loads.len() as u64) as usize] {
            Load::Random => rig.read(Range::new(rng.below(end), READ)),
            Load::Skewed => rig.read(Range::new(rng.skewed(end / READ) * READ, READ)),
            Load::Runs(reads) => {
                let lba = rng.below(end);
                sequence(lba, reads).iter().for_each(|range| rig.read(*range));
            }
            Load::Strides(reads) => {
                let (lba, step) = (rng.below(end - 12 * 512), rng.below(512) + 1);
                (0..reads).for_each(|n| rig.read(Range::new(lba + n * step, READ)));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn little_is_wasted_on_any_mixture(
        loads in prop::collection::vec(load(), 1..5),
        small in any::<bool>(),
        trip in 1..40u64,
        seed in any::<u64>(),
    ) {
        let mut rig = Rig::new(trip, 1000, if small { 64 << 11 } else { SECTORS });
        play(&mut rig, &loads, seed, 100 << 20);
        let (wasted, read) = (rig.wasted(), rig.read_bytes);
        prop_assert!(wasted <= read / 10, "{wasted} of {read}");
        prop_assert!(rig.totals().wasted <= START_BYTES + read * EARN.0 / EARN.1);
    }
}

/// Without the account the property above does not hold, so it means something.
#[test]
fn without_the_account_more_would_be_wasted() {
    let wasted = |account: bool| {
        let mut rig = Rig::new(16, 1000, SECTORS);
        if !account {
            rig.ahead.tally.back_everything();
        }
        play(&mut rig, &[Load::Runs(6)], 1, 100 << 20);
        (rig.wasted(), rig.read_bytes)
    };
    let (without, read) = wasted(false);
    assert!(without > read / 10, "{without} of {read}");
    let (with, read) = wasted(true);
    assert!(with <= read / 10, "{with} of {read}");
}

#[test]
fn random_reads_make_nothing_be_read_ahead() {
    let mut rig = Rig::new(4, 1000, SECTORS);
    play(&mut rig, &[Load::Random], 5, 200 << 20);
    assert_eq!(rig.totals(), Totals::default());
    let mut rig = Rig::new(4, 1000, SECTORS);
    play(&mut rig, &[Load::Skewed], 5, 200 << 20);
    assert!(rig.wasted() <= rig.read_bytes / 20, "{} of {}", rig.wasted(), rig.read_bytes);
}

#[test]
fn what_is_far_behind_on_the_line_is_asked_for_again() {
    // A hint queues 16 MiB, which takes 6 s of the line. A read at its end does not wait for all of
    // that.
    let mut rig = Rig::new(16, 20, SECTORS);
    sequence(0, 200).iter().for_each(|range| rig.read(*range));
    for n in 0..16 {
        let part = Range::new(1_000_000 + n * 2048, 2048);
        assert!(rig.ahead.may_ask(rig.now, part.bytes(), AheadReason::Hint));
        rig.requests += 1;
        rig.ahead.asked(rig.now, rig.requests, part, AheadReason::Hint);
    }
    let at = |rig: &mut Rig, lba: u64| rig.ahead.read(rig.now, Range::new(lba, 8)).remove(0).1;
    assert!(matches!(at(&mut rig, 1_000_000 + 15 * 2048), AheadFound::Absent));
}
