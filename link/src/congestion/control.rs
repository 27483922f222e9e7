//! Decides how many bytes may be in flight: the link's congestion control, without transport, clock
//! or randomness.
//!
//! It fills a path and keeps the queue in front of the bottleneck short, so that urgent packets
//! find few bytes ahead. The *standing* queue steers the window: the extra time of the quickest
//! packet of an epoch, beyond the quickest ever. On a lossy path losses say little, and they count
//! only if they are many.
//!
//! A flow that reacts only to losses fills the queue whatever others do. Against it a short queue
//! means a small share. So the control tests a queue that stays. For a moment it sends less than
//! the path holds at its own rate. If the queue goes away, it was this flow's. If it stays twice,
//! another flow fills it. Then the window follows CUBIC until a later test finds the queue empty.
//!
//! A path that becomes longer looks like such a queue, too. So before the control blames another
//! flow, it assumes a longer path and fills that. If as much arrives as before, and nothing got
//! quicker meanwhile, the path was longer.
//!
//! Delay also varies by itself, on radio links and busy machines, and then says little. There, and
//! where another flow fills the queue, the control probes the path: for a moment it sends more. If
//! more arrives, whatever the delay, the path was not full, or this flow's share of it was small.
//!
//! Ideas come from Copa (target delay, competitive mode) and BBR (delivery rate, probes that
//! drain). Swift has the target that falls with the root of the rate, so that flows converge.
//! Nimbus asks by changing its own rate. The constants come from runs of the bench in `bench.rs`,
//! which shows the effect of other values.

use super::cubic::Cubic;
use super::delivery::{Delivery, seconds};
use super::losses::Losses;
use super::measured::{ACK_DELAY, Measured};
use super::phase::{Longer, Phase, Probe, Test};
use super::probing::Probing;
use super::rivals::{Rivals, SUSPICION};
use super::startup::Startup;
use std::time::{Duration, Instant};

/// First window, in packets. Guessed: a lone read's reply and some.
const INITIAL_PACKETS: u64 = 16;
/// Least window, in packets: enough to keep acknowledgments coming.
const LEAST_PACKETS: u64 = 4;
/// A burst below this number of bytes is acknowledgments and requests, and no load.
const SMALL_BYTES: u64 = 256;

/// Share of the window that counts as all of it: less is under way for a moment after it has grown.
const USED_SHARE: f64 = 0.8;

/// Least time over which an epoch takes samples: among them should be some that no busy machine
/// held up.
const LEAST_SAMPLING: Duration = Duration::from_millis(20);
/// First and largest share by which the window grows in an epoch while there is no queue.
const GROWTH: (f64, f64) = (1.0 / 32.0, 1.0 / 4.0);
/// If the path was not empty for so long, the control tests it.
const TEST_INTERVAL: Duration = Duration::from_secs(5);
/// Share of what the path holds at our rate that is under way in a test.
const TEST_SHARE: f64 = 0.6;
/// The share of its own queue that a test removes.
const DRAINED: f64 = 0.7;
/// The number of repetitions of a test that found the path slower and its queue shrinking.
const RETESTS: u32 = 2;
/// Share of the largest rate that arrives when the path is full again after it became longer. With
/// less, somebody else has the rest.
const FILLED: f64 = 0.8;
/// Epochs with a queue that did not shrink with the window, before the test.
const HIGH_EPOCHS: u32 = 2;
/// While another flow fills the queue, a loss counts only at a full queue, because drop-tail queues
/// overflow then. A queue is full at this share of the longest one so far.
const FULL_QUEUE: f64 = 0.7;
/// If the queue changes from epoch to epoch by at least this share of the target, delay says
/// little. Then the control probes the path.
const NOISY: f64 = 0.25;
/// Below this share of the largest rate the path probably has room.
const PROMISING: f64 = 0.8;
/// Factors of a probe for the window: the first for the first probe and while delay does not count,
/// the second after that.
const PROBE_STEP: (f64, f64) = (1.25, 1.5);
/// The rate has to grow by this share of the probe's growth. From a queue that is always full a
/// flow gets its share of the windows. So against other flows this ends at about half of the path.
const PROBE_FOLLOWS: f64 = 0.5;

/// The factor for the window after losses by congestion.
const LOSS_SHRINK: f64 = 0.85;
/// After so long without use, the old window may not fit any more.
const IDLE_SPAN: Duration = Duration::from_secs(10);
/// The known facts about a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Bytes that may be under way.
    pub window: u64,
    /// Bytes that arrived a second, over the last measured round trip.
    pub rate: u64,
    /// Least round-trip time of the last seconds.
    pub base_rtt: Duration,
    /// The extra time of the quickest packet of the last epoch.
    pub queue: Duration,
    /// Bytes counted lost while the queue was long.
    pub queue_lost_bytes: u64,
    /// Somebody else fills the queue.
    pub competing: bool,
}

/// Samples between two decisions.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    /// The epoch has the packets that the sender sent from here on,
    from: Instant,
    /// and ends with the acknowledgment of one that it sent from here on.
    until: Instant,
    least_rtt: f64,
    /// The last known one.
    rate: Option<f64>,
    acked: u64,
    lost: u64,
    marked: bool,
    peak_in_flight: u64,
}

/// Congestion control of one path. For each acknowledgment the caller calls [`Control::handle_ack`]
/// for each packet, then [`Control::handle_acks_end`], then the loss functions.
#[derive(Clone, Debug)]
pub struct Control {
    mtu: u64,
    window: f64,
    phase: Phase,
    path: Measured,
    delivery: Delivery,
    epoch: Epoch,
    startup: Startup,
    probing: Probing,
    losses: Losses,
    rivals: Rivals,
    cubic: Cubic,
    /// Share by which the window grew last.
    growth: f64,
    /// Epochs in a row with a long queue, and the window before them.
    high: u32,
    before: f64,
    /// The last test did not remove the queue, and the control has to repeat it.
    has_failed: bool,
    /// When the last startup ended.
    started_at: Instant,
    /// The times when the path was empty, when a test ended, and when the flow used its whole
    /// window.
    empty_at: Instant,
    tested_at: Instant,
    used_at: Instant,
}

impl Control {
    /// For a new path with packets of up to `mtu` bytes.
    pub fn new(now: Instant, mtu: u64) -> Control {
        let window = (INITIAL_PACKETS * mtu) as f64;
        Control {
            mtu,
            window,
            phase: Phase::Startup(None),
            path: Measured::new(now, window),
            delivery: Delivery::new(now),
            epoch: Epoch::new(now, 0.0, 0),
            startup: Startup::default(),
            probing: Probing::new(now),
            losses: Losses::new(now),
            rivals: Rivals::default(),
            cubic: Cubic::new(now, window, true),
            growth: 0.0,
            high: 0,
            before: 0.0,
            has_failed: false,
            started_at: now,
            empty_at: now,
            tested_at: now,
            used_at: now,
        }
    }

    /// Bytes that may be under way.
    pub fn window(&self) -> u64 {
        self.window as u64
    }

    /// Window of a new path, in bytes.
    pub fn initial_window(&self) -> u64 {
        INITIAL_PACKETS * self.mtu
    }

    /// The known facts about the path.
    pub fn estimate(&self) -> Estimate {
        Estimate {
            window: self.window(),
            rate: self.path.rate() as u64,
            base_rtt: Duration::from_secs_f64(self.path.base()),
            queue: Duration::from_secs_f64(self.path.queue().max(0.0)),
            queue_lost_bytes: self.losses.queue_bytes(),
            competing: match self.phase {
                Phase::Compete => true,
                Phase::Test(test) => test.competed,
                Phase::Probe(probe) => probe.competes,
                Phase::Startup(_) | Phase::Steady => false,
            },
        }
    }

    /// Packets are up to `mtu` bytes from now on.
    pub fn set_mtu(&mut self, mtu: u64) {
        self.mtu = mtu;
        self.set_window(self.window);
    }

    /// The sender has sent packets of `bytes` bytes in total.
    pub fn handle_sent(&mut self, now: Instant, bytes: u64) {
        if bytes < SMALL_BYTES {
            return;
        }
        let in_flight = self.delivery.begin(now, bytes);
        self.epoch.peak_in_flight = self.epoch.peak_in_flight.max(in_flight);
        let full = self.uses_window(in_flight);
        self.delivery.handle_sent(now, full);
    }

    /// A packet of `bytes` bytes, which the sender sent at `sent`, has arrived.
    pub fn handle_ack(&mut self, now: Instant, sent: Instant, bytes: u64) {
        self.delivery.handle_ack(now, sent, bytes);
        self.epoch.acked += bytes;
        if self.is_used() {
            let (window, bytes, mtu) = (self.window, bytes as f64, self.mtu as f64);
            match self.phase {
                Phase::Startup(_) => self.set_window(window + bytes),
                Phase::Compete => {
                    let grown = self.cubic.grown(now, window, bytes, self.path.last_rtt(), mtu);
                    self.set_window(grown);
                }
                Phase::Steady | Phase::Test(_) | Phase::Probe(_) => {}
            }
        }
    }

    /// Ends an acknowledgment; `in_flight` bytes are in flight now.
    pub fn handle_acks_end(&mut self, now: Instant, in_flight: u64) {
        let Some(newest) = self.delivery.take_news(in_flight) else { return };
        let rtt = seconds(newest, now);
        self.path.add_rtt(now, rtt);
        let base = self.path.base();
        if rtt <= base + self.target(self.path.rate()) / 2.0 {
            self.empty_at = now;
        }
        let rate = self.delivery.rate(now);
        if newest >= self.epoch.from {
            self.epoch.least_rtt = self.epoch.least_rtt.min(rtt);
            self.epoch.rate = rate.or(self.epoch.rate);
        }
        if let Phase::Startup(longer) = self.phase {
            self.startup.add(rtt, rate);
            if self.startup.has_queue(base) && self.is_used() && self.startup.rate() > 0.0 {
                return self.end_startup(now, longer);
            }
        }
        if newest >= self.epoch.until && self.epoch.least_rtt.is_finite() {
            self.end_epoch(now);
        }
    }

    /// The path lost packets of `bytes` bytes in total, the last of them sent at `sent`. If
    /// `persistent`, it lost everything else for a long time too.
    pub fn handle_loss(&mut self, now: Instant, sent: Instant, bytes: u64, persistent: bool) {
        if sent >= self.losses.from() {
            self.epoch.lost += bytes;
        }
        let base = self.path.base();
        if self.path.last_rtt() - base > 2.0 * self.limit(true) {
            self.losses.lost_in_queue(bytes);
        }
        // Anything may delay a single packet.
        let least = self.epoch.least_rtt;
        let queue = if least.is_finite() { least - base } else { self.path.queue() };
        if persistent {
            self.set_window(0.0);
            self.restart(now);
        } else if self.phase == Phase::Compete
            && sent > self.losses.from()
            && queue >= FULL_QUEUE * self.rivals.longest()
            && queue > self.limit(true)
            && !self.is_ambient()
        {
            self.yield_share(now);
        }
    }

    /// The bottleneck marked a packet from about `sent`, as it does before it has to drop one.
    pub fn handle_mark(&mut self, now: Instant, sent: Instant) {
        if sent > self.losses.from() {
            if self.phase == Phase::Compete {
                self.yield_share(now);
            } else {
                self.epoch.marked = true;
            }
        }
    }

    /// Backs off as CUBIC does, once a round trip.
    fn yield_share(&mut self, now: Instant) {
        let smaller = self.cubic.shrunk(now, self.window, self.mtu as f64);
        self.set_window(smaller);
        self.losses.begin(now);
    }

    fn set_window(&mut self, window: f64) {
        self.window = window.min(self.losses.ceiling()).max((LEAST_PACKETS * self.mtu) as f64);
    }

    /// Whether it is the window that holds the sender back when so much is under way.
    fn uses_window(&self, in_flight: u64) -> bool {
        in_flight as f64 >= USED_SHARE * self.window - 2.0 * self.mtu as f64
    }

    fn is_used(&self) -> bool {
        self.uses_window(self.epoch.peak_in_flight)
    }

    /// Longest queue, in seconds, that a test may leave if the queue belongs to this flow, or to
    /// flows like it. `slower`: the path may have become so.
    fn limit(&self, slower: bool) -> f64 {
        self.path.limit(slower, self.mtu)
    }

    /// Standing queue to aim at, in seconds.
    fn target(&self, rate: f64) -> f64 {
        self.path.target(rate, self.mtu)
    }

    fn restart(&mut self, now: Instant) {
        self.start(now, None);
    }

    fn start(&mut self, now: Instant, longer: Option<Longer>) {
        self.phase = Phase::Startup(longer);
        self.startup = Startup::default();
        self.growth = 0.0;
        self.high = 0;
        self.used_at = now;
        self.begin_epoch(now);
    }

    /// Takes a possible queue for a longer path, and fills the path. If the path has become longer,
    /// additional packets arrive until the path is as full as it was.
    fn take_for_longer(&mut self, now: Instant, window: f64) {
        let (base, least) = (self.path.base(), self.epoch.least_rtt);
        let longer = Longer { base, least, window, most: self.path.most_rate() };
        self.path.set_base(now, least);
        self.rivals.shared(now);
        self.set_window(window);
        self.start(now, Some(longer));
    }

    /// The way has not become longer: somebody else fills the queue.
    fn take_back(&mut self, now: Instant, longer: Longer) {
        self.path.restore_base(now, longer.base);
        self.set_window(longer.window);
        self.compete(now);
        self.begin_epoch(now);
    }

    fn end_startup(&mut self, now: Instant, longer: Option<Longer>) {
        if let Some(longer) = longer
            && (self.startup.rate() < FILLED * longer.most
                || self.path.base() < longer.least - ACK_DELAY - self.target(self.path.rate()))
        {
            return self.take_back(now, longer);
        }
        self.cubic = Cubic::new(now, self.window, true);
        self.rivals.start();
        self.started_at = now;
        self.has_failed = false;
        self.path.start(now, self.startup.rate());
        self.probing.start(self.startup.rate());
        self.test(now, self.window);
        self.begin_epoch(now);
    }

    fn begin_epoch(&mut self, now: Instant) {
        self.epoch = Epoch::new(now, self.path.last_rtt(), self.delivery.in_flight());
        if matches!(self.phase, Phase::Test(_)) {
            // The few packets of this time may all be behind the burst of another flow.
            self.epoch.until += Duration::from_secs_f64(self.path.last_rtt() / 2.0);
        }
    }

    fn end_epoch(&mut self, now: Instant) {
        let epoch = self.epoch;
        // Without a rate the sender was short of data, and what the window is has no effect.
        let used = self.is_used() && epoch.rate.is_some();
        let rate_before = self.path.rate();
        self.path.end_epoch(now, self.window, epoch.least_rtt, epoch.rate);
        if let Some(rate) = epoch.rate.filter(|_| !matches!(self.phase, Phase::Test(_))) {
            self.probing.add(rate);
        }
        if used {
            self.used_at = now;
        } else if now - self.used_at >= IDLE_SPAN {
            self.set_window((self.window / 2.0).max(self.initial_window() as f64));
            return self.restart(now);
        }
        let congested = self.is_congested(now);
        match self.phase {
            Phase::Startup(longer) if congested && self.startup.rate() > 0.0 => {
                return self.end_startup(now, longer);
            }
            Phase::Startup(_) => {}
            Phase::Steady if congested => {
                let ceiling = LOSS_SHRINK * self.window.min(epoch.peak_in_flight as f64);
                self.losses.set_ceiling(now, ceiling);
                self.set_window(ceiling);
                self.growth = 0.0;
                self.losses.begin(now);
            }
            Phase::Steady if used => self.steady(now, rate_before),
            Phase::Steady => self.high = 0,
            Phase::Probe(probe) => self.probed(now, probe, congested),
            Phase::Test(test) => self.tested(now, test),
            Phase::Compete => {
                self.rivals.shared(now);
                self.rivals.end_epoch(self.path.queue());
                let interval = TEST_INTERVAL.max(Duration::from_secs_f64(50.0 * self.path.base()));
                if now - self.tested_at >= interval {
                    self.test(now, self.window);
                } else if used && self.may_probe(now) {
                    self.probe(true);
                }
            }
        }
        self.begin_epoch(now);
    }

    /// Whether this epoch lost at most the usual share.
    fn is_ambient(&self) -> bool {
        self.losses.is_ambient(self.epoch.acked, self.epoch.lost, self.mtu)
    }

    /// Whether the last epoch lost more than the usual share.
    fn is_congested(&mut self, now: Instant) -> bool {
        let Epoch { acked, lost, marked, .. } = self.epoch;
        self.losses.end_epoch(now, acked, lost, self.mtu) || marked
    }

    fn steady(&mut self, now: Instant, rate_before: f64) {
        let target = self.target(self.path.rate());
        if self.path.queue() > target {
            self.growth = 0.0;
            if self.high == 0 {
                self.before = self.window;
            }
            let high = self.path.queue() > 2.0 * self.target(self.path.most_rate()) + 0.5e-3;
            self.high = if high { self.high + 1 } else { 0 };
            let suspicious = self.rivals.left_lately(now);
            if self.high >= HIGH_EPOCHS || high && suspicious {
                return self.test(now, self.before);
            }
            let excess = (self.path.queue() - target) * self.path.rate();
            self.set_window((self.window - excess).max(self.window / 2.0));
        } else if self.path.queue() < target / 2.0 {
            self.high = 0;
            // While the rate goes along the path is far from full.
            let follows = self.path.rate() >= rate_before * (1.0 + self.growth / 2.0);
            let growth = if follows { self.growth * 2.0 } else { self.growth };
            self.growth = growth.clamp(GROWTH.0, GROWTH.1);
            self.set_window(self.window + (self.window * self.growth).max(self.mtu as f64));
        } else {
            self.high = 0;
            self.growth = 0.0;
            let short = (target - self.path.queue()) * self.path.rate();
            self.set_window(self.window + (short / 2.0).min(self.window / 16.0));
        }
        if now - self.empty_at.max(self.tested_at) >= TEST_INTERVAL {
            self.test(now, self.window);
        } else if (self.path.noise() > NOISY * target || self.is_rising()) && self.may_probe(now) {
            self.probe(false);
        }
    }

    /// Sends more for an epoch.
    fn probe(&mut self, competes: bool) {
        let (window, rate, most) = (self.window, self.probing.mean_rate(), self.path.most_rate());
        self.phase = Phase::Probe(Probe { window, rate, most, competes, has_followed: false });
        self.set_window(window * PROBE_STEP.0);
    }

    /// Whether it is time for a probe. The path may have more if its rate was higher before, or has
    /// never been as high as now. Otherwise probes that find nothing become rare.
    fn may_probe(&self, now: Instant) -> bool {
        let competes = self.phase == Phase::Compete;
        let promising = self.path.rate() < PROMISING * self.path.most_rate() || self.is_rising();
        self.probing.is_due(now, competes, promising)
    }

    /// Whether the rate goes up although delay allows only small steps.
    fn is_rising(&self) -> bool {
        self.phase == Phase::Steady
            && self.path.rate() >= self.path.most_rate()
            && self.probing.is_rising()
    }

    fn probed(&mut self, now: Instant, probe: Probe, congested: bool) {
        let grown = self.window / probe.window - 1.0;
        let follows = self.path.rate() >= probe.rate * (1.0 + PROBE_FOLLOWS * grown);
        // Back to what it mostly is: the rate varies by itself.
        let usual = probe.rate >= PROMISING * probe.most && self.path.rate() <= probe.most;
        if follows && !usual && grown > 0.1 && !congested {
            let (window, rate) = (self.window, self.path.rate());
            self.probing.followed(rate);
            let queue = self.path.queue();
            let beyond = queue > self.target(rate);
            if queue > self.limit(true) && !probe.competes && !self.rivals.was_shared(now) {
                self.probing.ended(now);
                return self.take_for_longer(now, window);
            }
            let competes = probe.competes || beyond;
            let most = rate;
            self.phase = Phase::Probe(Probe { window, rate, most, competes, has_followed: true });
            let step = if probe.competes { PROBE_STEP.0 } else { PROBE_STEP.1 };
            return self.set_window(window * step);
        }
        self.set_window(probe.window);
        self.probing.found_nothing(now);
        self.high = 0;
        self.phase = if probe.competes { Phase::Compete } else { Phase::Steady };
        if probe.competes {
            self.cubic = Cubic::new(now, self.window, false);
        }
    }

    /// Sends little for an epoch.
    fn test(&mut self, now: Instant, before: f64) {
        let competed = self.phase == Phase::Compete;
        let (rate, queue) = (self.path.rate(), self.path.queue());
        self.phase = Phase::Test(Test { competed, before, rate, queue, retests: 0 });
        self.losses.begin(now);
        self.set_window(TEST_SHARE * rate * self.path.base());
    }

    /// Follows CUBIC from here on.
    fn compete(&mut self, now: Instant) {
        self.phase = Phase::Compete;
        self.rivals.saw(self.path.queue());
        self.has_failed = false;
        self.high = 0;
        self.growth = 0.0;
        let young = now - self.started_at < SUSPICION;
        self.cubic = Cubic::new(now, self.window, young && self.cubic.is_slow_start());
    }

    fn tested(&mut self, now: Instant, test: Test) {
        let gone = self.path.queue() <= (1.0 - DRAINED) * test.queue;
        let alone = self.path.queue() <= self.limit(gone);
        let mut failed = false;
        let drains = self.path.rate() < 0.9 * test.rate && self.path.queue() < 0.9 * test.queue;
        if alone {
            self.phase = Phase::Steady;
            if test.competed {
                self.rivals.leave(now, test.before);
            } else if gone {
                self.path.forget_most_rate(now);
            }
            let fits = test.rate * (self.path.base() + self.target(test.rate));
            self.set_window(test.before.min(fits));
        } else if drains && test.retests < RETESTS {
            // The path has become slower, and what it held too much is on its way out.
            let (rate, queue, retests) = (self.path.rate(), self.path.queue(), test.retests + 1);
            self.phase = Phase::Test(Test { rate, queue, retests, ..test });
            return self.set_window(TEST_SHARE * rate * self.path.base());
        } else {
            // A test just after a loss, when the other flow's queue was short, was wrong: undoes
            // it.
            let left = self.rivals.take_left(now);
            self.set_window(left.map_or(test.before, |window| window.max(test.before)));
            self.before = self.window;
            if test.competed {
                self.phase = Phase::Compete;
                self.rivals.saw(self.path.queue());
            } else if left.is_some() || self.rivals.was_shared(now) {
                self.compete(now);
            } else if !self.has_failed {
                // The first time it may have been in step with flows like this one.
                failed = true;
                self.phase = Phase::Steady;
            } else {
                self.tested_at = now;
                return self.take_for_longer(now, self.window);
            }
        }
        self.has_failed = failed;
        self.high = if failed { HIGH_EPOCHS - 1 } else { 0 };
        self.tested_at = now;
        self.growth = 0.0;
    }
}

impl Epoch {
    fn new(now: Instant, rtt: f64, in_flight: u64) -> Epoch {
        // A change of the window reaches the path only after most of a round trip.
        let half = Duration::from_secs_f64(rtt / 2.0);
        Epoch {
            from: now + half,
            until: now + half + half.max(LEAST_SAMPLING),
            least_rtt: f64::INFINITY,
            rate: None,
            acked: 0,
            lost: 0,
            marked: false,
            peak_in_flight: in_flight,
        }
    }
}
