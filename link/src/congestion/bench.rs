//! A bench for the congestion control: senders, a bottleneck with a drop-tail queue, delay and
//! loss. It uses a virtual clock, so every run gives the same result.
//!
//! A sender works like quinn's. It has a window, and a token-bucket pacer with the runtime's timers
//! of 1 ms. The receiver acknowledges ten packets at once, or after 2 ms. The sender finds losses
//! by later packets, or after more than a round trip, and probes after a silence. The competitor is
//! TCP CUBIC (RFC 9438) with selective acknowledgments, without pacing. The bench loses no
//! acknowledgment, because it does not model the next one that would make up for it.

use super::control::{Control, Estimate};
use super::{PACKET_THRESHOLD, TIME_THRESHOLD};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::{Duration, Instant};

const MS: u64 = 1_000_000;
/// In nanoseconds, as all times here.
pub const SECOND: u64 = 1_000_000_000;
/// Bytes of a datagram.
const PACKET: u64 = 1472;
/// Mean time between two stalls.
const STALL_PAUSE: f64 = 20e6;
/// UDP and IP.
const HEADERS: u64 = 28;

/// A path. Times in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Bits a second, of IP packets.
    pub rate: f64,
    /// Round-trip time without queue.
    pub rtt: u64,
    /// Bytes that the queue holds.
    pub queue: u64,
    /// Share lost at random.
    pub loss: f64,
    /// Now and then a busy machine delays acknowledgments, by up to this time.
    pub stall: u64,
    /// Either way takes up to so much longer: it wanders, in no less than 20 ms, and keeps the
    /// order.
    pub jitter: u64,
    /// Share of the packets that arrive late, and by how much.
    pub reorder: (f64, u64),
}

/// A value that wanders between 0 and a size.
#[derive(Default)]
struct Wander {
    since: u64,
    from: f64,
    to: f64,
}

impl Wander {
    fn at(&mut self, time: u64, size: u64, random: impl FnOnce() -> f64) -> u64 {
        let interval = (20 * MS).max(2 * size);
        if time >= self.since + interval {
            self.since = time;
            self.from = self.to;
            self.to = random();
        }
        let gone = (time - self.since) as f64 / interval as f64;
        ((self.from + (self.to - self.from) * gone) * size as f64) as u64
    }
}

impl Path {
    /// `bdps`: what the queue holds, in products of rate and round-trip time.
    pub fn new(mbit: f64, rtt_ms: f64, bdps: f64, loss: f64) -> Path {
        let rate = mbit * 1e6;
        let rtt = (rtt_ms * 1e6) as u64;
        let queue = (rate / 8.0 * rtt as f64 / 1e9 * bdps) as u64;
        Path {
            rate,
            rtt,
            queue: queue.max(10 * 1500),
            loss,
            stall: 0,
            jitter: 0,
            reorder: (0.0, 0),
        }
    }
}

struct Cubic {
    window: f64,
    threshold: f64,
    most: f64,
    k: f64,
    since: u64,
    reno: f64,
    recovery: u64,
}

impl Cubic {
    fn new() -> Cubic {
        let threshold = f64::INFINITY;
        Cubic { window: 10.0, threshold, most: 0.0, k: 0.0, since: 0, reno: 0.0, recovery: 0 }
    }

    fn ack(&mut self, now: u64, packets: f64, rtt: u64) {
        if self.window < self.threshold {
            self.window += packets;
            return;
        }
        if self.since == 0 {
            self.since = now;
            self.most = self.window;
            self.reno = self.window;
        }
        self.reno += 0.53 * packets / self.window;
        let t = (now - self.since + rtt) as f64 / 1e9 - self.k;
        let target = (self.most + 0.4 * t * t * t).clamp(self.window, 1.5 * self.window);
        self.window += (target - self.window) * packets / self.window;
        self.window = self.window.max(self.reno);
    }

    fn loss(&mut self, now: u64, sent: u64) {
        if sent <= self.recovery && self.recovery > 0 {
            return;
        }
        self.recovery = now;
        self.most = if self.window < self.most { self.window * 0.85 } else { self.window };
        self.window = (self.window * 0.7).max(2.0);
        self.threshold = self.window;
        self.k = ((self.most - self.window).max(0.0) / 0.4).cbrt();
        self.since = now;
        self.reno = self.window;
    }

    fn timeout(&mut self, now: u64) {
        self.loss(now, now);
        self.window = 1.0;
    }
}

enum Controller {
    Ours(Box<Control>),
    Cubic(Cubic),
}

/// The data that a flow sends.
#[derive(Clone, Copy)]
pub enum Load {
    /// Always something.
    Bulk,
    /// Bytes in each interval of this number of nanoseconds.
    Bursts(u64, u64),
}

struct Flow {
    controller: Controller,
    load: Load,
    from: u64,
    to: u64,
    budget: u64,
    next: u64,
    sent: BTreeMap<u64, u64>,
    in_flight: u64,
    largest_acked: Option<u64>,
    srtt: f64,
    var: f64,
    latest: u64,
    pacer: Pacer,
    wake: u64,
    loss_time: u64,
    last_progress: u64,
    probes: u32,
    forced: u64,
    receiver: Receiver,
    results: Results,
}

/// A token bucket.
struct Pacer {
    tokens: f64,
    filled: u64,
}

/// The other end of a flow.
#[derive(Default)]
struct Receiver {
    expected: u64,
    unacked: Vec<u64>,
    ack_due: Option<u64>,
    ack_at: u64,
    stalls_at: u64,
}

/// The outcome of a flow.
#[derive(Default)]
struct Results {
    acked: u64,
    /// The value of `acked`, every 100 ms.
    marks: Vec<u64>,
    queue_drops: u64,
    sent_packets: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Wake(usize),
    Arrive(usize, u64),
    AckTimer(usize),
    Ack(usize, Vec<u64>),
    Sample,
    Change(usize),
}

/// A bottleneck with flows.
pub struct Bench {
    now: u64,
    start: Instant,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    serial: u64,
    path: Path,
    changes: Vec<(u64, Path)>,
    cut: bool,
    free_at: u64,
    /// There and back.
    wander: [Wander; 2],
    random: u64,
    flows: Vec<Flow>,
    /// Queue in nanoseconds, every millisecond.
    queue: Vec<u64>,
}

impl Bench {
    /// Without flows.
    pub fn new(path: Path) -> Bench {
        let mut bench = Bench {
            now: 1,
            start: Instant::now(),
            events: BinaryHeap::new(),
            serial: 0,
            path,
            changes: Vec::new(),
            cut: false,
            free_at: 0,
            wander: Default::default(),
            random: 0x9e37_79b9_7f4a_7c15,
            flows: Vec::new(),
            queue: Vec::new(),
        };
        bench.at(1, Event::Sample);
        bench
    }

    /// The path changes at a time; a rate of 0 cuts it.
    pub fn change(&mut self, at: u64, path: Path) {
        self.changes.push((at, path));
        self.at(at, Event::Change(self.changes.len() - 1));
    }

    /// Adds a flow of this link that sends between two times.
    pub fn ours(&mut self, load: Load, from: u64, to: u64) -> usize {
        let now = self.instant(from);
        self.flow(Controller::Ours(Box::new(Control::new(now, PACKET))), load, from, to)
    }

    /// Adds a flow of TCP CUBIC.
    pub fn cubic(&mut self, from: u64, to: u64) -> usize {
        self.flow(Controller::Cubic(Cubic::new()), Load::Bulk, from, to)
    }

    fn flow(&mut self, controller: Controller, load: Load, from: u64, to: u64) -> usize {
        let id = self.flows.len();
        self.flows.push(Flow {
            controller,
            load,
            from,
            to,
            budget: 0,
            next: 0,
            sent: BTreeMap::new(),
            in_flight: 0,
            largest_acked: None,
            srtt: 100.0 * MS as f64,
            var: 50.0 * MS as f64,
            latest: 100 * MS,
            pacer: Pacer { tokens: 10.0 * PACKET as f64, filled: from },
            wake: 0,
            loss_time: u64::MAX,
            last_progress: from,
            probes: 0,
            forced: 0,
            receiver: Receiver::default(),
            results: Results::default(),
        });
        self.at(from, Event::Wake(id));
        id
    }

    fn instant(&self, at: u64) -> Instant {
        self.start + Duration::from_nanos(at)
    }

    fn at(&mut self, at: u64, event: Event) {
        self.serial += 1;
        self.events.push(Reverse((at, self.serial, event)));
    }

    fn random(&mut self) -> f64 {
        // xorshift64*
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Lets time pass.
    pub fn run(&mut self, until: u64) {
        while let Some(Reverse((at, _, _))) = self.events.peek() {
            if *at > until {
                break;
            }
            let Some(Reverse((at, _, event))) = self.events.pop() else { break };
            self.now = at;
            match event {
                Event::Wake(id) => {
                    self.timers(id);
                    self.send(id);
                }
                Event::Arrive(id, packet) => self.arrive(id, packet),
                Event::AckTimer(id) => {
                    if self.flows[id].receiver.ack_due.is_some_and(|due| due <= at) {
                        self.acknowledge(id);
                    }
                }
                Event::Ack(id, packets) => {
                    self.acked(id, &packets);
                    self.timers(id);
                    self.send(id);
                }
                Event::Sample => {
                    self.queue.push(self.free_at.saturating_sub(at));
                    if (at / MS).is_multiple_of(100) {
                        for flow in &mut self.flows {
                            flow.results.marks.push(flow.results.acked);
                        }
                    }
                    self.at(at + MS, Event::Sample);
                }
                Event::Change(n) => {
                    let path = self.changes[n].1;
                    self.cut = path.rate == 0.0;
                    if !self.cut {
                        self.path = path;
                    }
                }
            }
        }
        self.now = until;
    }

    fn timers(&mut self, id: usize) {
        let now = self.now;
        let flow = &mut self.flows[id];
        if now >= flow.loss_time {
            self.detect(id);
        }
        let flow = &mut self.flows[id];
        if flow.in_flight > 0 {
            let pto = flow.srtt + (4.0 * flow.var).max(1e6) + 2e6;
            let floor = if matches!(flow.controller, Controller::Cubic(_)) { 200e6 } else { 0.0 };
            let pto = (pto.max(floor) * f64::from(1 << flow.probes.min(8))) as u64;
            let due = flow.last_progress + pto;
            let due = if now >= due {
                flow.probes += 1;
                flow.forced = 2;
                flow.last_progress = now;
                if let Controller::Cubic(cubic) = &mut flow.controller {
                    cubic.timeout(now);
                    flow.in_flight = 0;
                    flow.sent.clear();
                }
                now + 2 * pto
            } else {
                due
            };
            if flow.wake <= now || flow.wake > due {
                flow.wake = due;
                self.at(due, Event::Wake(id));
            }
        }
    }

    fn send(&mut self, id: usize) {
        let now = self.now;
        let instant = self.instant(now);
        for _ in 0..20 {
            let flow = &mut self.flows[id];
            if now < flow.from || now >= flow.to {
                return;
            }
            if let Load::Bursts(bytes, every) = flow.load {
                let due = ((now - flow.from) / every + 1) * bytes;
                if flow.budget + PACKET > due && flow.forced == 0 {
                    let next = flow.from + ((now - flow.from) / every + 1) * every;
                    return self.at(next, Event::Wake(id));
                }
            }
            let (window, paced) = match &flow.controller {
                Controller::Ours(control) => (control.window(), true),
                Controller::Cubic(cubic) => ((cubic.window * PACKET as f64) as u64, false),
            };
            if flow.forced > 0 {
                flow.forced -= 1;
            } else {
                if flow.in_flight + PACKET >= window.max(PACKET + 1) {
                    return;
                }
                if paced {
                    let rate = 1.25 * window as f64 / flow.srtt;
                    let capacity = (window as f64 * 2e6 / flow.srtt)
                        .clamp(10.0 * PACKET as f64, 256.0 * PACKET as f64);
                    if flow.pacer.tokens < PACKET as f64 {
                        flow.pacer.tokens = (flow.pacer.tokens
                            + rate * (now - flow.pacer.filled) as f64)
                            .min(capacity);
                        flow.pacer.filled = now;
                    }
                    flow.pacer.tokens = flow.pacer.tokens.min(capacity);
                    if flow.pacer.tokens < PACKET as f64 {
                        // tokio's timer has milliseconds.
                        let due = now + ((capacity - flow.pacer.tokens) / rate) as u64;
                        let due = due.div_ceil(MS) * MS;
                        return self.at(due, Event::Wake(id));
                    }
                    flow.pacer.tokens -= PACKET as f64;
                }
            }
            let number = flow.next;
            flow.next += 1;
            flow.budget += PACKET;
            if flow.in_flight == 0 {
                flow.last_progress = now;
            }
            flow.in_flight += PACKET;
            flow.sent.insert(number, now);
            flow.results.sent_packets += 1;
            if let Controller::Ours(control) = &mut flow.controller {
                control.handle_sent(instant, PACKET);
            }
            self.bottleneck(id, number);
        }
        self.at(now + 1000, Event::Wake(id));
    }

    fn bottleneck(&mut self, id: usize, number: u64) {
        let begin = self.free_at.max(self.now);
        let queued = (begin - self.now) as f64 / 1e9 * self.path.rate / 8.0;
        if self.cut {
            return;
        }
        if queued + (PACKET + HEADERS) as f64 > self.path.queue as f64 {
            self.flows[id].results.queue_drops += 1;
            return;
        }
        self.free_at = begin + ((PACKET + HEADERS) as f64 * 8e9 / self.path.rate) as u64;
        if self.random() >= self.path.loss {
            let mut due = self.way(0, self.free_at);
            let (share, by) = self.path.reorder;
            if share > 0.0 && self.random() < share {
                due += by;
            }
            self.at(due, Event::Arrive(id, number));
        }
    }

    /// When what leaves at a time is at the other end.
    fn way(&mut self, direction: usize, at: u64) -> u64 {
        let mut late = 0;
        if self.path.jitter > 0 {
            let mut wander = std::mem::take(&mut self.wander[direction]);
            late = wander.at(at, self.path.jitter, || self.random());
            self.wander[direction] = wander;
        }
        at + self.path.rtt / 2 + late
    }

    fn arrive(&mut self, id: usize, number: u64) {
        let now = self.now;
        let flow = &mut self.flows[id];
        let in_order = number == flow.receiver.expected;
        flow.receiver.expected = flow.receiver.expected.max(number + 1);
        flow.receiver.unacked.push(number);
        let (most, delay) = match flow.controller {
            Controller::Ours(_) => (10, 2 * MS),
            Controller::Cubic(_) => (2, 40 * MS),
        };
        if flow.receiver.unacked.len() >= most || !in_order {
            self.acknowledge(id);
        } else if flow.receiver.ack_due.is_none() {
            flow.receiver.ack_due = Some(now + delay);
            self.at(now + delay, Event::AckTimer(id));
        }
    }

    fn acknowledge(&mut self, id: usize) {
        let packets = std::mem::take(&mut self.flows[id].receiver.unacked);
        self.flows[id].receiver.ack_due = None;
        // The next acknowledgment would repeat it all later; the bench leaves that out.
        let mut back = self.way(1, self.now);
        if self.path.stall > 0 && back >= self.flows[id].receiver.stalls_at {
            back += (self.random() * self.path.stall as f64) as u64;
            let pause = -(1.0 - self.random()).ln() * STALL_PAUSE;
            self.flows[id].receiver.stalls_at = back + pause as u64;
        }
        back = back.max(self.flows[id].receiver.ack_at);
        self.flows[id].receiver.ack_at = back;
        if !packets.is_empty() && !self.cut {
            self.at(back, Event::Ack(id, packets));
        }
    }

    fn acked(&mut self, id: usize, packets: &[u64]) {
        let now = self.now;
        let instant = self.instant(now);
        let start = self.start;
        let flow = &mut self.flows[id];
        flow.probes = 0;
        flow.last_progress = now;
        let mut newest = None;
        let mut new = 0;
        for packet in packets {
            flow.largest_acked = flow.largest_acked.max(Some(*packet));
            if let Some(sent) = flow.sent.remove(packet) {
                flow.in_flight = flow.in_flight.saturating_sub(PACKET);
                flow.results.acked += PACKET;
                new += 1;
                newest = newest.max(Some(sent));
                if let Controller::Ours(control) = &mut flow.controller {
                    control.handle_ack(instant, start + Duration::from_nanos(sent), PACKET);
                }
            }
        }
        let Some(sent) = newest else { return };
        flow.latest = now - sent;
        match &mut flow.controller {
            Controller::Ours(control) => control.handle_acks_end(instant, flow.in_flight),
            Controller::Cubic(cubic) => cubic.ack(now, f64::from(new), flow.latest),
        }
        let sample = flow.latest as f64;
        if flow.srtt == 100e6 && flow.var == 50e6 {
            (flow.srtt, flow.var) = (sample, sample / 2.0);
        } else {
            flow.var = 0.75 * flow.var + 0.25 * (flow.srtt - sample).abs();
            flow.srtt = 0.875 * flow.srtt + 0.125 * sample;
        }
        self.detect(id);
    }

    fn detect(&mut self, id: usize) {
        let now = self.now;
        let instant = self.instant(now);
        let start = self.start;
        let mut due = None;
        let flow = &mut self.flows[id];
        let Some(largest) = flow.largest_acked else { return };
        let delay = (flow.srtt.max(flow.latest as f64) * f64::from(TIME_THRESHOLD)).max(1e6) as u64;
        let mut lost = Vec::new();
        flow.loss_time = u64::MAX;
        for (&packet, &sent) in flow.sent.range(..largest) {
            if largest >= packet + u64::from(PACKET_THRESHOLD) || now - sent >= delay {
                lost.push((packet, sent));
            } else {
                flow.loss_time = flow.loss_time.min(sent + delay);
                due = Some(flow.loss_time);
                break;
            }
        }
        if let (Some(first), Some(last)) = (lost.first(), lost.last()) {
            let period = 3.0 * (flow.srtt + (4.0 * flow.var).max(1e6));
            let whole = last.0 - first.0 + 1 == lost.len() as u64;
            let persistent = whole && (last.1 - first.1) as f64 > period;
            let bytes = lost.len() as u64 * PACKET;
            for (packet, _) in &lost {
                flow.sent.remove(packet);
            }
            flow.in_flight = flow.in_flight.saturating_sub(bytes);
            match &mut flow.controller {
                Controller::Ours(control) => {
                    let sent = start + Duration::from_nanos(last.1);
                    control.handle_loss(instant, sent, bytes, persistent);
                }
                Controller::Cubic(cubic) => cubic.loss(now, last.1),
            }
        }
        if let Some(due) = due {
            self.at(due.max(now), Event::Wake(id));
        }
    }

    /// Megabits of payload a second that arrived between two times.
    pub fn rate(&self, id: usize, from: u64, to: u64) -> f64 {
        let mark = |at: u64| self.flows[id].results.marks[(at / MS / 100) as usize] as f64;
        (mark(to) - mark(from)) * 8.0 / ((to - from) as f64 / 1e9) / 1e6
    }

    /// Share of its packets that a flow lost in the queue.
    pub fn own_loss(&self, id: usize) -> f64 {
        self.flows[id].results.queue_drops as f64 / self.flows[id].results.sent_packets as f64
    }

    /// The bottleneck marked a packet of our flow.
    pub fn mark(&mut self, id: usize) {
        let now = self.instant(self.now);
        if let Controller::Ours(control) = &mut self.flows[id].controller {
            control.handle_mark(now, now);
        }
    }

    /// The estimate of the path by the controller of this link.
    pub fn estimate(&self, id: usize) -> Estimate {
        match &self.flows[id].controller {
            Controller::Ours(control) => control.estimate(),
            Controller::Cubic(_) => Estimate::default(),
        }
    }

    /// Milliseconds of queue at a quantile between two times.
    pub fn queue_ms(&self, quantile: f64, from: u64, to: u64) -> f64 {
        let mut part = self.queue[(from / MS) as usize..(to / MS) as usize].to_vec();
        part.sort_unstable();
        part[((part.len() - 1) as f64 * quantile) as usize] as f64 / 1e6
    }
}

/// Jain's index of fairness: 1 if all are the same, 1/n if one has all.
pub fn jain(rates: &[f64]) -> f64 {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    sum * sum / (rates.len() as f64 * squares)
}
