//! The model of one direction: which packets arrive, and when.
//!
//! A state machine without a clock, threads or I/O, random from a seed: the same packets at the
//! same times have the same fates. A packet passes these in order. An outage drops it. The
//! bottleneck has a drop-tail queue, which the background traffic shares. Then come loss, so a lost
//! packet has used the bottleneck, and the delay.

use super::background::Traffic;
use super::config::LineConfig;
use fastrand::Rng;
use std::time::Duration;

/// Time since the start of the line, in nanoseconds.
pub type Nanos = u64;

/// The fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It leaves the bottleneck at `left` and arrives at `due`. `due` never decreases from packet
    /// to packet, unless `late`: others overtake such a packet.
    Arrives {
        /// When the bottleneck has sent it.
        left: Nanos,
        /// When it arrives.
        due: Nanos,
        /// Whether the model chose it for reordering.
        late: bool,
    },
    /// Lost on the way.
    Lost,
    /// Dropped: the queue was full.
    QueueFull,
    /// Dropped: the line is down.
    Outage,
}

/// Jitter takes a new value this often at least, or every two times its own size: slowly enough
/// that it never reorders.
const JITTER_INTERVAL: Nanos = 10_000_000;

/// One direction.
#[derive(Debug)]
pub struct Line {
    config: LineConfig,
    rng: Rng,
    bottleneck: Option<Bottleneck>,
    traffic: Option<Traffic>,
    /// In the bad state of Gilbert and Elliott.
    bad: bool,
    jitter: Wander,
    /// When the last packet in order leaves the bottleneck, and arrives.
    last: (Nanos, Nanos),
    background: BackgroundCount,
}

/// The bytes of the background traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct BackgroundCount {
    /// Packets that arrived at the bottleneck.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets of these that found its queue full.
    pub queue_drops: u64,
}

impl std::ops::Sub for BackgroundCount {
    type Output = BackgroundCount;

    fn sub(self, before: BackgroundCount) -> BackgroundCount {
        BackgroundCount {
            packets: self.packets - before.packets,
            bytes: self.bytes - before.bytes,
            queue_drops: self.queue_drops - before.queue_drops,
        }
    }
}

/// A server of fixed rate with a drop-tail queue, as the time when it will have sent all it has.
#[derive(Clone, Copy, Debug)]
struct Bottleneck {
    /// Picoseconds: at 1 Tb/s a byte takes 8.
    free: u64,
    byte: u64,
    queue: u64,
}

/// Picoseconds in a nanosecond.
const PICOS: u64 = 1000;

impl Bottleneck {
    fn new(rate: u64, queue: u64, free: u64) -> Bottleneck {
        let byte = (8e12 / rate.max(1) as f64).round().max(1.0) as u64;
        Bottleneck { free, byte, queue: queue.saturating_mul(byte) }
    }

    /// Takes a packet, if there is room, and says when it will have left. An idle line has room for
    /// any packet.
    fn offer(&mut self, now: Nanos, bytes: u32) -> Option<Nanos> {
        let now = now * PICOS;
        let start = self.free.max(now);
        let sent = start.saturating_add(self.byte.saturating_mul(u64::from(bytes)));
        if start > now && sent - now > self.queue {
            return None;
        }
        self.free = sent;
        Some(sent.div_ceil(PICOS))
    }
}

/// A value that wanders between 0 and a size, linear between points drawn at random.
#[derive(Clone, Copy, Debug, Default)]
struct Wander {
    size: f64,
    interval: Nanos,
    start: Nanos,
    from: f64,
    to: f64,
}

impl Wander {
    fn new(size: Duration, now: Nanos, rng: &mut Rng) -> Wander {
        let size = nanos(size);
        let interval = JITTER_INTERVAL.max(2 * size);
        let size = size as f64;
        Wander { size, interval, start: now, from: size * rng.f64(), to: size * rng.f64() }
    }

    fn at(&mut self, time: Nanos, rng: &mut Rng) -> Nanos {
        if self.size <= 0.0 {
            return 0;
        }
        while time >= self.start + self.interval {
            // After a long silence what was in between does not matter.
            let steps = (time - self.start) / self.interval;
            self.start += self.interval * (steps.saturating_sub(1)).max(1);
            self.from = self.to;
            self.to = self.size * rng.f64();
        }
        let share = time.saturating_sub(self.start) as f64 / self.interval as f64;
        (self.from + (self.to - self.from) * share) as Nanos
    }
}

/// How a change of the line's rate moves what waits at the bottleneck: see [`Line::set`].
#[derive(Clone, Copy, Debug)]
pub struct Replan {
    now: Nanos,
    factor: f64,
}

impl Replan {
    /// When what was to leave the bottleneck at `left` leaves it now.
    #[must_use]
    pub fn left(&self, left: Nanos) -> Nanos {
        match left.checked_sub(self.now) {
            None => left,
            Some(ahead) => self.now + (ahead as f64 * self.factor) as Nanos,
        }
    }

    /// When what was to leave the bottleneck at `left` and to arrive at `due` arrives now.
    #[must_use]
    pub fn due(&self, left: Nanos, due: Nanos) -> Nanos {
        due - left + self.left(left)
    }

    /// Whether anything moves.
    #[must_use]
    pub fn is_needed(&self) -> bool {
        (self.factor - 1.0).abs() > 1e-9
    }
}

impl Line {
    /// A line whose time starts at 0.
    #[must_use]
    pub fn new(config: LineConfig, seed: u64) -> Line {
        let mut line = Line {
            config: LineConfig::default(),
            rng: Rng::with_seed(seed),
            bottleneck: None,
            traffic: None,
            bad: false,
            jitter: Wander::default(),
            last: (0, 0),
            background: BackgroundCount::default(),
        };
        line.set(0, config);
        line
    }

    /// The settings of the line.
    #[must_use]
    pub fn config(&self) -> &LineConfig {
        &self.config
    }

    /// Changes it. From now on packets at the bottleneck leave at the new rate: the caller moves
    /// its packets accordingly. Packets beyond the bottleneck, and lost ones, stay as they are.
    pub fn set(&mut self, now: Nanos, config: LineConfig) -> Replan {
        self.advance(now);
        let byte = |bottleneck: &Option<Bottleneck>| bottleneck.map_or(0, |b| b.byte) as f64;
        let before = byte(&self.bottleneck);
        let replan_of = |after: f64| match before > 0.0 {
            true => Replan { now, factor: after / before },
            false => Replan { now, factor: 1.0 },
        };
        let next = config.rate.map(|rate| Bottleneck::new(rate, config.queue_bytes(), 0));
        let replan = replan_of(byte(&next));
        self.bottleneck = next.map(|mut next| {
            let waits = self.bottleneck.map_or(0, |b| b.free.saturating_sub(now * PICOS));
            next.free = now * PICOS + (waits as f64 * replan.factor) as u64;
            next
        });
        if config.jitter != self.config.jitter {
            self.jitter = Wander::new(config.jitter, now, &mut self.rng);
        }
        if config.background != self.config.background || config.rate != self.config.rate {
            self.traffic = match (&config.background, config.rate) {
                (Some(background), Some(rate)) if background.load > 0.0 => {
                    Some(Traffic::new(background.load, rate, now, &mut self.rng))
                }
                _ => None,
            };
        }
        self.config = config;
        let (left, due) = self.last;
        self.last = (replan.left(left), replan.due(left, due));
        replan
    }

    /// Lets the background traffic arrive until `now`. [`Line::offer`] does so too; after a long
    /// pause it costs less in small steps.
    pub fn advance(&mut self, now: Nanos) {
        let (Some(traffic), Some(bottleneck)) = (&mut self.traffic, &mut self.bottleneck) else {
            return;
        };
        while let Some((at, bytes)) = traffic.poll(now, &mut self.rng) {
            self.background.packets += 1;
            self.background.bytes += u64::from(bytes);
            if bottleneck.offer(at, bytes).is_none() {
                self.background.queue_drops += 1;
            }
        }
    }

    /// A packet of `bytes` arrives at the line; `now` never decreases.
    pub fn offer(&mut self, now: Nanos, bytes: u32) -> Fate {
        self.advance(now);
        if self.is_down(now) {
            return Fate::Outage;
        }
        let left = match &mut self.bottleneck {
            None => now,
            Some(bottleneck) => match bottleneck.offer(now, bytes) {
                None => return Fate::QueueFull,
                Some(left) => left,
            },
        };
        if self.loses() {
            return Fate::Lost;
        }
        let delay = nanos(self.config.delay) + self.jitter.at(left, &mut self.rng);
        if let Some(reorder) = &self.config.reorder
            && self.rng.f64() < reorder.share
        {
            return Fate::Arrives { left, due: left + delay + nanos(reorder.by), late: true };
        }
        // Only a shorter delay lets a packet catch up with the one before.
        self.last = (left, self.last.1.max(left + delay));
        Fate::Arrives { left, due: self.last.1, late: false }
    }

    /// Background traffic so far.
    #[must_use]
    pub fn background(&self) -> BackgroundCount {
        self.background
    }

    fn is_down(&self, now: Nanos) -> bool {
        let scheduled = self.config.outages.as_ref().is_some_and(|outages| {
            let Some(since) = now.checked_sub(nanos(outages.after)) else { return false };
            let within = since.checked_rem(nanos(outages.every)).unwrap_or(since);
            within < nanos(outages.length)
        });
        self.config.outage || scheduled
    }

    fn loses(&mut self) -> bool {
        let mut lost = self.config.loss > 0.0 && self.rng.f64() < self.config.loss;
        if let Some(bursts) = &self.config.burst_loss {
            let stay = if self.bad { bursts.bad } else { bursts.good };
            self.bad ^= self.rng.f64() * stay < 1.0;
            lost |= self.bad && self.rng.f64() < bursts.loss;
        }
        lost
    }
}

/// A duration as [`Nanos`].
#[must_use]
pub fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
