//! How much may be under way: the link's congestion control, without transport, clock or randomness.
//!
//! It fills a path and keeps the queue in front of the bottleneck short, so that what is urgent finds
//! little ahead of it. The window is steered by the *standing* queue: what the quickest packet of an
//! epoch took beyond the quickest ever. Losses say little on a lossy path and do not count,
//! unless they are many.
//!
//! A flow that goes by losses fills the queue whatever others do, and against it a short queue means
//! a small share. So a queue that stays is tested: for a moment less is sent than the path holds at our own
//! rate. If the queue goes away it was ours; if it does not, twice, somebody else fills it, and the window
//! follows CUBIC until a later test finds the queue empty.
//!
//! A way that becomes longer looks like such a queue, too. So before a queue is taken for somebody else's it is
//! taken for the way, and the path filled: if as much arrives as before, and nothing got quicker meanwhile, it was
//! the way.
//!
//! Delay also varies by itself, on radio links and busy machines, and then says little. So where it does,
//! and where somebody else fills the queue, the path is probed: for a moment more is sent, and if more arrives,
//! the path was not full, or our share of it small, whatever the delay.
//!
//! Ideas come from Copa (target delay, competitive mode), BBR (delivery rate, probes that drain),
//! Swift (a target that falls with the root of the rate, so that flows converge) and Nimbus (asking
//! by changing one's own rate). The constants were chosen on the bench in `bench.rs`, which is where
//! to see what another value does.

use super::cubic::Cubic;
use super::phase::{Longer, Phase, Probe, Test};
use super::recent::{Ambient, Recent};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// First window, in packets. Guessed: a lone read's reply and some.
const INITIAL_PACKETS: u64 = 16;
/// Least window, in packets: what keeps acknowledgements coming.
const LEAST_PACKETS: u64 = 4;
/// Largest window, in bytes; flow control ends before.
const LARGEST_WINDOW: f64 = (64 << 20) as f64;
/// What is sent at once with fewer bytes is acknowledgements and requests, and no load.
const SMALL_BYTES: u64 = 256;

/// Share of the window that counts as all of it: less is under way for a moment after it has grown.
const USED_SHARE: f64 = 0.8;

/// Standing queue aimed at, in seconds, at one byte a second; it falls with the root of the rate: 2 ms
/// at 20 Mb/s, which is three packets.
const TARGET_SCALE: f64 = 3.2;
/// Bounds of that, in seconds. Less than the first cannot be measured from user space.
const TARGET_BOUNDS: (f64, f64) = (0.5e-3, 5e-3);
/// Least time over which an epoch takes samples: among them should be some that no busy machine held up.
const LEAST_SAMPLING: Duration = Duration::from_millis(20);
/// First and largest share by which the window grows in an epoch while there is no queue.
const GROWTH: (f64, f64) = (1.0 / 32.0, 1.0 / 4.0);
/// How long the least round-trip time counts, once or twice over.
const BASE_SPAN: Duration = Duration::from_secs(15);
/// The same for the largest rate.
const RATE_SPAN: Duration = Duration::from_secs(10);

/// What the peer may hold acknowledgements back by: packets, and seconds. `quic.rs` asks for them.
const ACK_PACKETS: f64 = 10.0;
const ACK_DELAY: f64 = 2e-3;

/// A test is made when the path was not seen empty for so long.
const TEST_INTERVAL: Duration = Duration::from_secs(5);
/// Share of what the path holds at our rate that is under way in a test.
const TEST_SHARE: f64 = 0.6;
/// Share of the queue that goes away in a test if it was ours.
const DRAINED: f64 = 0.7;
/// How often a test is repeated that found the path slower and its queue shrinking.
const RETESTS: u32 = 2;
/// Share of the largest rate that arrives when the path is full again after it became longer. With less,
/// somebody else has the rest.
const FILLED: f64 = 0.8;
/// Epochs with a queue that our shrinking has not removed, before it is tested.
const HIGH_EPOCHS: u32 = 2;
/// How long after somebody else was there a queue is taken for theirs at once.
const SUSPICION: Duration = Duration::from_secs(15);
/// How long after that a queue that stays is not taken for a longer way.
const SHARED_SPAN: Duration = Duration::from_secs(20);
/// While somebody else fills the queue, a loss counts when it is at least this share of the longest
/// seen: drop-tail queues overflow when they are full.
const FULL_QUEUE: f64 = 0.7;
/// How fast the longest queue is forgotten, by epoch.
const LONGEST_DECAY: f64 = 0.995;

/// What the queue changes by from epoch to epoch, as a share of the target, from which on delay says
/// little, and the path is probed.
const NOISY: f64 = 0.25;
/// How much of a change that is remembered.
const NOISE_DECAY: f64 = 0.9;
/// How often a path is probed: shortest and longest pause; each probe that finds nothing doubles it.
const PROBE_PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(8));
/// Share of the largest rate below which the path is taken to have room.
const PROMISING: f64 = 0.8;
/// Growth of the rate from which on there may be more to come.
const RISING: f64 = 1.15;
/// What a probe multiplies the window by: at first and while delay does not count, and after that.
const PROBE_STEP: (f64, f64) = (1.25, 1.5);
/// By what share of that the rate has to grow. Of a queue that is always full a flow gets its share of the
/// windows, so against others this ends at about half of the path.
const PROBE_FOLLOWS: f64 = 0.5;

/// Share of the bytes of an epoch from which on losses are congestion, beyond twice what is always lost.
const LOSS_LIMIT: f64 = 0.05;
/// Fewer packets lost in an epoch mean nothing.
const LOSS_PACKETS: u64 = 8;
/// What is left of the window after such losses, and for how long it does not rise again.
const LOSS_SHRINK: f64 = 0.85;
const CEILING_SPAN: Duration = Duration::from_secs(2);
/// A window that was not used for so long is not known to fit any more.
const IDLE_SPAN: Duration = Duration::from_secs(10);
/// Round trips that end a startup when the least of them shows a queue (RFC 9406 §4.2 has as many).
const STARTUP_SAMPLES: usize = 8;

/// What is known of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Bytes that may be under way.
    pub window: u64,
    /// Bytes delivered a second, over the last round trip that was measured.
    pub rate: u64,
    /// Least round-trip time of the last seconds.
    pub base_rtt: Duration,
    /// What the quickest packet of the last epoch took beyond that.
    pub queue: Duration,
    /// Bytes counted lost while the queue was long.
    pub queue_lost_bytes: u64,
    /// Somebody else fills the queue.
    pub competing: bool,
}

/// What was known when a packet was sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Instant,
    delivered: u64,
    /// When that had been delivered.
    delivered_at: Instant,
    /// When the newest of that had been sent.
    newest_sent: Instant,
    /// The window was used.
    full: bool,
}

/// Samples between two decisions.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    /// Of packets that were sent from here,
    from: Instant,
    /// until one is acknowledged that was sent from here on.
    until: Instant,
    least_rtt: f64,
    /// The last one that is known.
    rate: Option<f64>,
    acked: u64,
    lost: u64,
    marked: bool,
    peak_in_flight: u64,
}

/// Congestion control of one path. For each acknowledgement there is [`Control::handle_ack`] for each
/// packet, then [`Control::handle_acks_end`], then what it shows as lost.
#[derive(Clone, Debug)]
pub struct Control {
    mtu: u64,
    window: f64,
    phase: Phase,
    base: Recent,
    most_rate: Recent,
    /// In order of time, from the newest packet acknowledged on.
    sent: VecDeque<Sent>,
    delivered: u64,
    delivered_at: Instant,
    /// Of all that arrived.
    newest_sent: Instant,
    /// That has changed with this acknowledgement.
    news: bool,
    /// When something was sent while nothing was under way.
    flight_since: Instant,
    in_flight: u64,
    epoch: Epoch,
    last_rtt: f64,
    /// Of the last epoch that has one.
    rate: f64,
    /// Of the last epoch, in seconds.
    queue: f64,
    /// Mean change of that from epoch to epoch.
    noise: f64,
    probed_at: Instant,
    probe_pause: Duration,
    /// Window of the last epoch.
    epoch_window: f64,
    /// Mean of the last rates, and the least of that since the last probe.
    mean_rate: f64,
    rate_mark: f64,
    /// Share by which the window grew last.
    growth: f64,
    /// Epochs in a row with a long queue, and the window before them.
    high: u32,
    before: f64,
    /// The last test did not end with the queue gone, and is to be repeated.
    has_failed: bool,
    /// When the last startup ended.
    started_at: Instant,
    /// When the path was seen empty, tested, and its window used.
    empty_at: Instant,
    tested_at: Instant,
    used_at: Instant,
    /// Losses of what was sent earlier are of a window that has been given up.
    losses_from: Instant,
    /// The window does not grow beyond this until then.
    ceiling: Option<(f64, Instant)>,
    ambient: Ambient,
    cubic: Cubic,
    /// Longest queue while somebody else filled it.
    longest: f64,
    /// When somebody else filled the queue last, or when a queue was last taken for a longer way: two of
    /// these soon after each other are rather the ups and downs of another flow.
    shared_at: Option<Instant>,
    /// The window when a test found nobody else any more, and when that was.
    left: Option<(f64, Instant)>,
    /// Of a startup: the last round-trip times, and the largest rate.
    startup_rtts: [f64; STARTUP_SAMPLES],
    startup_rate: f64,
    queue_lost_bytes: u64,
}

fn seconds(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64()
}

impl Control {
    /// For a new path with packets of up to `mtu` bytes.
    pub fn new(now: Instant, mtu: u64) -> Control {
        let window = (INITIAL_PACKETS * mtu) as f64;
        Control {
            mtu,
            window,
            phase: Phase::Startup(None),
            base: Recent::new(now, BASE_SPAN, f64::min),
            most_rate: Recent::new(now, RATE_SPAN, f64::max),
            sent: VecDeque::new(),
            delivered: 0,
            delivered_at: now,
            newest_sent: now,
            news: false,
            flight_since: now,
            in_flight: 0,
            epoch: Epoch::new(now, 0.0, 0),
            last_rtt: 0.0,
            rate: 0.0,
            queue: 0.0,
            noise: 0.0,
            probed_at: now,
            probe_pause: PROBE_PAUSE.1,
            epoch_window: window,
            mean_rate: 0.0,
            rate_mark: f64::INFINITY,
            growth: 0.0,
            high: 0,
            before: 0.0,
            has_failed: false,
            started_at: now,
            empty_at: now,
            tested_at: now,
            used_at: now,
            losses_from: now,
            ceiling: None,
            ambient: Ambient::new(now),
            cubic: Cubic::new(now, window, true),
            longest: 0.0,
            shared_at: None,
            left: None,
            startup_rtts: [f64::INFINITY; STARTUP_SAMPLES],
            startup_rate: 0.0,
            queue_lost_bytes: 0,
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

    /// What is known of the path.
    pub fn estimate(&self) -> Estimate {
        Estimate {
            window: self.window(),
            rate: self.rate as u64,
            base_rtt: Duration::from_secs_f64(self.base.get()),
            queue: Duration::from_secs_f64(self.queue.max(0.0)),
            queue_lost_bytes: self.queue_lost_bytes,
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

    /// Packets of together `bytes` bytes were sent.
    pub fn handle_sent(&mut self, now: Instant, bytes: u64) {
        if bytes < SMALL_BYTES {
            return;
        }
        if self.in_flight == 0 {
            // Nothing was to be delivered meanwhile.
            self.delivered_at = now;
            self.flight_since = now;
        }
        self.in_flight += bytes;
        self.epoch.peak_in_flight = self.epoch.peak_in_flight.max(self.in_flight);
        let full = self.uses_window(self.in_flight);
        match self.sent.back_mut().filter(|last| last.at >= now) {
            Some(last) => last.full = full,
            None => self.sent.push_back(Sent {
                at: now,
                delivered: self.delivered,
                delivered_at: self.delivered_at,
                newest_sent: self.newest_sent.max(self.flight_since),
                full,
            }),
        }
    }

    /// A packet of `bytes` bytes that was sent at `sent` arrived.
    pub fn handle_ack(&mut self, now: Instant, sent: Instant, bytes: u64) {
        self.delivered += bytes;
        self.delivered_at = now;
        if sent > self.newest_sent {
            self.newest_sent = sent;
            self.news = true;
        }
        self.epoch.acked += bytes;
        if self.is_used() {
            let (window, bytes, mtu) = (self.window, bytes as f64, self.mtu as f64);
            match self.phase {
                Phase::Startup(_) => self.set_window(window + bytes),
                Phase::Compete => {
                    let grown = self.cubic.grown(now, window, bytes, self.last_rtt, mtu);
                    self.set_window(grown);
                }
                Phase::Steady | Phase::Test(_) | Phase::Probe(_) => {}
            }
        }
    }

    /// That was all of an acknowledgement; so many bytes are under way now.
    pub fn handle_acks_end(&mut self, now: Instant, in_flight: u64) {
        self.in_flight = in_flight;
        if !std::mem::take(&mut self.news) {
            return;
        }
        let newest = self.newest_sent;
        let rtt = seconds(newest, now);
        self.last_rtt = rtt;
        self.base.add(now, rtt);
        let base = self.base.get();
        if rtt <= base + self.target(self.rate) / 2.0 {
            self.empty_at = now;
        }
        let rate = self.delivery_rate(now);
        if newest >= self.epoch.from {
            self.epoch.least_rtt = self.epoch.least_rtt.min(rtt);
            self.epoch.rate = rate.or(self.epoch.rate);
        }
        if let Phase::Startup(longer) = self.phase {
            self.startup_rate = self.startup_rate.max(rate.unwrap_or_default());
            self.startup_rtts.rotate_right(1);
            self.startup_rtts[0] = rtt;
            let least = self.startup_rtts.iter().copied().fold(f64::INFINITY, f64::min);
            // As RFC 9406 §4.2 has it, with a lower bound for short paths.
            let queue = (base / 8.0).clamp(2e-3, 16e-3);
            if least.is_finite()
                && least > base + queue
                && self.is_used()
                && self.startup_rate > 0.0
            {
                return self.end_startup(now, longer);
            }
        }
        if newest >= self.epoch.until && self.epoch.least_rtt.is_finite() {
            self.end_epoch(now);
        }
    }

    /// Packets of together `bytes` bytes, the last of them sent at `sent`, were lost; if `persistent`,
    /// together with everything else for a long time.
    pub fn handle_loss(&mut self, now: Instant, sent: Instant, bytes: u64, persistent: bool) {
        if sent >= self.losses_from {
            self.epoch.lost += bytes;
        }
        let base = self.base.get();
        if self.last_rtt - base > 2.0 * self.limit(true) {
            self.queue_lost_bytes += bytes;
        }
        // A single packet may have been held up anywhere.
        let least = self.epoch.least_rtt;
        let queue = if least.is_finite() { least - base } else { self.queue };
        if persistent {
            self.set_window(0.0);
            self.restart(now);
        } else if self.phase == Phase::Compete
            && sent > self.losses_from
            && queue >= FULL_QUEUE * self.longest
            && queue > self.limit(true)
            && !self.is_ambient()
        {
            self.yield_share(now);
        }
    }

    /// The bottleneck marked a packet that was sent about `sent`, as it does before it has to drop one.
    pub fn handle_mark(&mut self, now: Instant, sent: Instant) {
        if sent > self.losses_from {
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
        self.losses_from = now;
    }

    fn set_window(&mut self, window: f64) {
        let ceiling = self.ceiling.map_or(LARGEST_WINDOW, |(ceiling, _)| ceiling);
        self.window = window.min(ceiling).max((LEAST_PACKETS * self.mtu) as f64);
    }

    /// Whether it is the window that holds the sender back when so much is under way.
    fn uses_window(&self, in_flight: u64) -> bool {
        in_flight as f64 >= USED_SHARE * self.window - 2.0 * self.mtu as f64
    }

    fn is_used(&self) -> bool {
        self.uses_window(self.epoch.peak_in_flight)
    }

    /// Bytes delivered a second over the round trip of the newest packet; `None` if too little was
    /// sent to tell.
    fn delivery_rate(&mut self, now: Instant) -> Option<f64> {
        let newest = self.newest_sent;
        while self.sent.get(1).is_some_and(|next| next.at <= newest) {
            self.sent.pop_front();
        }
        let then = self.sent.front().filter(|then| then.at <= newest)?;
        // The longer of the two: acknowledgements that come at once say nothing of the path.
        let took = seconds(then.delivered_at, now).max(seconds(then.newest_sent, newest));
        (took > 0.0 && then.full).then(|| (self.delivered - then.delivered) as f64 / took)
    }

    /// Standing queue to aim at, in seconds.
    fn target(&self, rate: f64) -> f64 {
        if rate <= 0.0 {
            return TARGET_BOUNDS.1;
        }
        let scaled = TARGET_SCALE / rate.sqrt();
        scaled.clamp(TARGET_BOUNDS.0, TARGET_BOUNDS.1) + self.mtu as f64 / rate
    }

    /// Longest queue, in seconds, that a test may leave if it was ours, or of flows like this one.
    /// `slower`: the path may have become so.
    fn limit(&self, slower: bool) -> f64 {
        let most = self.most_rate.get();
        let rate = if slower { self.rate.max(most / 4.0) } else { most };
        let held_back = (ACK_PACKETS * self.mtu as f64 / rate.max(1.0)).min(ACK_DELAY);
        self.target(rate) + held_back.max(1e-3)
    }

    fn restart(&mut self, now: Instant) {
        self.start(now, None);
    }

    fn start(&mut self, now: Instant, longer: Option<Longer>) {
        self.phase = Phase::Startup(longer);
        self.startup_rtts = [f64::INFINITY; STARTUP_SAMPLES];
        self.startup_rate = 0.0;
        self.growth = 0.0;
        self.high = 0;
        self.used_at = now;
        self.begin_epoch(now);
    }

    /// Whether somebody else filled the queue lately.
    fn was_shared(&self, now: Instant) -> bool {
        self.shared_at.is_some_and(|at| now - at < SHARED_SPAN)
    }

    /// Takes what looks like a queue for the path itself, and fills it. If the way has become longer, what
    /// is sent more arrives until the path is as full as it was.
    fn take_for_longer(&mut self, now: Instant, window: f64) {
        let (base, least, most) = (self.base.get(), self.epoch.least_rtt, self.most_rate.get());
        let longer = Longer { base, least, window, most };
        self.base = Recent::new(now, BASE_SPAN, f64::min);
        self.base.add(now, least);
        self.shared_at = Some(now);
        self.set_window(window);
        self.start(now, Some(longer));
    }

    /// The way has not become longer: somebody else fills the queue.
    fn take_back(&mut self, now: Instant, longer: Longer) {
        self.queue += self.base.get() - longer.base;
        self.base = Recent::new(now, BASE_SPAN, f64::min);
        self.base.add(now, longer.base);
        self.set_window(longer.window);
        self.compete(now);
        self.begin_epoch(now);
    }

    fn end_startup(&mut self, now: Instant, longer: Option<Longer>) {
        if let Some(longer) = longer
            && (self.startup_rate < FILLED * longer.most
                || self.base.get() < longer.least - ACK_DELAY - self.target(self.rate))
        {
            return self.take_back(now, longer);
        }
        self.cubic = Cubic::new(now, self.window, true);
        self.longest = 0.0;
        self.started_at = now;
        self.has_failed = false;
        self.rate = self.startup_rate;
        self.mean_rate = self.rate;
        self.rate_mark = self.rate;
        self.most_rate.add(now, self.rate);
        self.test(now, self.window);
        self.begin_epoch(now);
    }

    fn begin_epoch(&mut self, now: Instant) {
        self.epoch = Epoch::new(now, self.last_rtt, self.in_flight);
        if matches!(self.phase, Phase::Test(_)) {
            // What little is sent may all be behind the burst of another flow.
            self.epoch.until += Duration::from_secs_f64(self.last_rtt / 2.0);
        }
    }

    fn end_epoch(&mut self, now: Instant) {
        let epoch = self.epoch;
        // Without a rate the sender was short of data, and what the window is has no effect.
        let used = self.is_used() && epoch.rate.is_some();
        let rate_before = self.rate;
        let queue = epoch.least_rtt - self.base.get();
        // What our own window has changed it by says nothing of the path.
        let ours = (self.window - self.epoch_window).abs() / self.rate.max(1.0);
        let change = ((queue - self.queue).abs() - ours).max(0.0);
        self.epoch_window = self.window;
        self.noise = NOISE_DECAY * self.noise + (1.0 - NOISE_DECAY) * change;
        self.queue = queue;
        if let Some(rate) = epoch.rate {
            self.rate = rate;
            if !matches!(self.phase, Phase::Test(_)) {
                self.mean_rate += (rate - self.mean_rate) / 4.0;
                self.rate_mark = self.rate_mark.min(self.mean_rate);
            }
            self.most_rate.add(now, rate);
        }
        if used {
            self.used_at = now;
        } else if now - self.used_at >= IDLE_SPAN {
            self.set_window((self.window / 2.0).max(self.initial_window() as f64));
            return self.restart(now);
        }
        let congested = self.is_congested(now);
        match self.phase {
            Phase::Startup(longer) if congested && self.startup_rate > 0.0 => {
                return self.end_startup(now, longer);
            }
            Phase::Startup(_) => {}
            Phase::Steady if congested => {
                let ceiling = LOSS_SHRINK * self.window.min(epoch.peak_in_flight as f64);
                self.ceiling = Some((ceiling, now + CEILING_SPAN));
                self.set_window(ceiling);
                self.growth = 0.0;
                self.losses_from = now;
            }
            Phase::Steady if used => self.steady(now, rate_before),
            Phase::Steady => self.high = 0,
            Phase::Probe(probe) => self.probed(now, probe, congested),
            Phase::Test(test) => self.tested(now, test),
            Phase::Compete => {
                self.shared_at = Some(now);
                self.longest = (self.longest * LONGEST_DECAY).max(self.queue);
                let interval = TEST_INTERVAL.max(Duration::from_secs_f64(50.0 * self.base.get()));
                if now - self.tested_at >= interval {
                    self.test(now, self.window);
                } else if used && self.may_probe(now) {
                    self.probe(true);
                }
            }
        }
        self.begin_epoch(now);
    }

    /// Whether no more was lost in this epoch than is always lost.
    fn is_ambient(&self) -> bool {
        let Epoch { acked, lost, .. } = self.epoch;
        let usual = self.ambient.get();
        usual >= 1e-3 && lost as f64 <= 2.0 * (usual * (acked + lost) as f64 + self.mtu as f64)
    }

    /// Whether the last epoch lost more than is always lost.
    fn is_congested(&mut self, now: Instant) -> bool {
        let Epoch { acked, lost, marked, .. } = self.epoch;
        let limit = LOSS_LIMIT + 2.0 * self.ambient.get();
        self.ambient.add(now, acked, lost);
        if self.ceiling.is_some_and(|(_, until)| now >= until) {
            self.ceiling = None;
        }
        let many = lost >= LOSS_PACKETS * self.mtu && lost as f64 > limit * (acked + lost) as f64;
        many || marked
    }

    fn steady(&mut self, now: Instant, rate_before: f64) {
        let target = self.target(self.rate);
        if self.queue > target {
            self.growth = 0.0;
            if self.high == 0 {
                self.before = self.window;
            }
            let high = self.queue > 2.0 * self.target(self.most_rate.get()) + 0.5e-3;
            self.high = if high { self.high + 1 } else { 0 };
            let suspicious = self.left.is_some_and(|(_, at)| now - at < SUSPICION);
            if self.high >= HIGH_EPOCHS || high && suspicious {
                return self.test(now, self.before);
            }
            let excess = (self.queue - target) * self.rate;
            self.set_window((self.window - excess).max(self.window / 2.0));
        } else if self.queue < target / 2.0 {
            self.high = 0;
            // While the rate goes along the path is far from full.
            let follows = self.rate >= rate_before * (1.0 + self.growth / 2.0);
            let growth = if follows { self.growth * 2.0 } else { self.growth };
            self.growth = growth.clamp(GROWTH.0, GROWTH.1);
            self.set_window(self.window + (self.window * self.growth).max(self.mtu as f64));
        } else {
            self.high = 0;
            self.growth = 0.0;
            let short = (target - self.queue) * self.rate;
            self.set_window(self.window + (short / 2.0).min(self.window / 16.0));
        }
        if now - self.empty_at.max(self.tested_at) >= TEST_INTERVAL {
            self.test(now, self.window);
        } else if (self.noise > NOISY * target || self.is_rising()) && self.may_probe(now) {
            self.probe(false);
        }
    }

    /// Sends more for an epoch.
    fn probe(&mut self, competes: bool) {
        let (window, rate, most) = (self.window, self.mean_rate, self.most_rate.get());
        self.phase = Phase::Probe(Probe { window, rate, most, competes, has_followed: false });
        self.set_window(window * PROBE_STEP.0);
    }

    /// Whether it is time for a probe. Where more was carried before, or never as much as now, there may
    /// be more; otherwise probes that find nothing become rare.
    fn may_probe(&self, now: Instant) -> bool {
        let shortest = PROBE_PAUSE.0 * if self.phase == Phase::Compete { 2 } else { 1 };
        let promising = self.rate < PROMISING * self.most_rate.get() || self.is_rising();
        now - self.probed_at >= if promising { shortest } else { self.probe_pause }
    }

    /// Whether the rate goes up although delay allows only small steps.
    fn is_rising(&self) -> bool {
        self.phase == Phase::Steady
            && self.rate >= self.most_rate.get()
            && self.mean_rate >= RISING * self.rate_mark
    }

    fn probed(&mut self, now: Instant, probe: Probe, congested: bool) {
        let grown = self.window / probe.window - 1.0;
        let follows = self.rate >= probe.rate * (1.0 + PROBE_FOLLOWS * grown);
        // Back to what it mostly is: the rate varies by itself.
        let usual = probe.rate >= PROMISING * probe.most && self.rate <= probe.most;
        if follows && !usual && grown > 0.1 && !congested {
            let (window, rate) = (self.window, self.rate);
            self.mean_rate = rate;
            self.probe_pause = PROBE_PAUSE.0;
            let beyond = self.queue > self.target(rate);
            if self.queue > self.limit(true) && !probe.competes && !self.was_shared(now) {
                self.probed_at = now;
                return self.take_for_longer(now, window);
            }
            let competes = probe.competes || beyond;
            let most = rate;
            self.phase = Phase::Probe(Probe { window, rate, most, competes, has_followed: true });
            let step = if probe.competes { PROBE_STEP.0 } else { PROBE_STEP.1 };
            return self.set_window(window * step);
        }
        self.set_window(probe.window);
        self.probed_at = now;
        self.probe_pause = (self.probe_pause * 2).min(PROBE_PAUSE.1);
        self.rate_mark = self.mean_rate;
        self.high = 0;
        self.phase = if probe.competes { Phase::Compete } else { Phase::Steady };
        if probe.competes {
            self.cubic = Cubic::new(now, self.window, false);
        }
    }

    /// Sends little for an epoch.
    fn test(&mut self, now: Instant, before: f64) {
        let competed = self.phase == Phase::Compete;
        let (rate, queue) = (self.rate, self.queue);
        self.phase = Phase::Test(Test { competed, before, rate, queue, retests: 0 });
        self.losses_from = now;
        self.set_window(TEST_SHARE * rate * self.base.get());
    }

    /// Follows CUBIC from here on.
    fn compete(&mut self, now: Instant) {
        self.phase = Phase::Compete;
        self.longest = self.longest.max(self.queue);
        self.has_failed = false;
        self.high = 0;
        self.growth = 0.0;
        let young = now - self.started_at < SUSPICION;
        self.cubic = Cubic::new(now, self.window, young && self.cubic.is_slow_start());
    }

    fn tested(&mut self, now: Instant, test: Test) {
        let gone = self.queue <= (1.0 - DRAINED) * test.queue;
        let alone = self.queue <= self.limit(gone);
        let mut failed = false;
        let drains = self.rate < 0.9 * test.rate && self.queue < 0.9 * test.queue;
        if alone {
            self.phase = Phase::Steady;
            if test.competed {
                self.left = Some((test.before, now));
            } else if gone {
                self.most_rate = Recent::new(now, RATE_SPAN, f64::max);
                self.most_rate.add(now, self.rate);
            }
            let fits = test.rate * (self.base.get() + self.target(test.rate));
            self.set_window(test.before.min(fits));
        } else if drains && test.retests < RETESTS {
            // The path has become slower, and what it held too much is on its way out.
            let (rate, queue, retests) = (self.rate, self.queue, test.retests + 1);
            self.phase = Phase::Test(Test { rate, queue, retests, ..test });
            return self.set_window(TEST_SHARE * rate * self.base.get());
        } else {
            // A test just when the other's queue was short, after a loss, was wrong: that is undone.
            let left = self.left.take().filter(|(_, at)| now - *at < SUSPICION);
            self.set_window(left.map_or(test.before, |(window, _)| window.max(test.before)));
            self.before = self.window;
            if test.competed {
                self.phase = Phase::Compete;
                self.longest = self.longest.max(self.queue);
            } else if left.is_some() || self.was_shared(now) {
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
        // What the window has changed by is under way only after most of a round trip.
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
