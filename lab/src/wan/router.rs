//! The router between the two devices: a thread that takes what one side sends, asks the model what becomes of it,
//! and hands what arrives to the other side when it is due.
//!
//! It works in real time beside what it is used to measure, on the same processors: it runs ahead of ordinary threads
//! (`SCHED_FIFO`, where it may), sleeps until the next packet is due, and never spins.

use super::config::LineConfig;
use super::line::{Fate, Line, Nanos, nanos};
use super::packet::{MAX_BYTES, Packet, Piece};
use super::probe;
use super::stats::Counters;
use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};
use std::io::IoSlice;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use std::time::Instant;

/// Segments of one super-packet that arrive within this time are delivered together, with the last of them.
const TOGETHER: Nanos = 50_000;
/// Reads between two looks at what is due.
const READS: usize = 16;
/// Bytes on their way at most, over both directions half each: 200 ms of 10 Gb/s.
const HELD_BYTES: usize = 256 << 20;
/// The background traffic is brought up to date at least this often.
const BACKGROUND_STEP: Nanos = 20_000_000;
/// Priority among real-time threads, 1 to 99: above none but ordinary threads.
const PRIORITY: libc::c_int = 1;

/// What the router's owner asks of it.
pub enum Command {
    /// From now on this direction is like this.
    Set(usize, Box<LineConfig>),
    /// Starts counting anew.
    Mark,
    /// Sends what was counted, per direction, and the processor time used, in seconds.
    Report(SyncSender<(Vec<Counters>, f64)>),
}

/// The clock of all lines of a WAN: nanoseconds since it was started.
#[derive(Clone, Copy)]
pub struct Clock(Instant);

impl Clock {
    /// Starts at 0.
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    /// Now.
    pub fn now(self) -> Nanos {
        nanos(self.0.elapsed())
    }
}

/// A part of a packet on its way.
struct Held {
    /// When its first and its last segment are due: they are delivered with the last one.
    first_due: Nanos,
    due: Nanos,
    /// When the last one leaves the bottleneck.
    left: Nanos,
    /// Order among those due at once.
    number: u64,
    segments: u32,
    /// Bytes on the wire.
    wire_bytes: u32,
    counts: bool,
    piece: Piece,
}

impl Held {
    fn bytes(&self) -> usize {
        self.piece.head.len() + self.piece.tail.len()
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Held) -> bool {
        (self.due, self.number) == (other.due, other.number)
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Held) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Held) -> Ordering {
        (self.due, self.number).cmp(&(other.due, other.number))
    }
}

/// One direction: from a device, over a line, to the other device.
pub struct Direction {
    from: Arc<OwnedFd>,
    to: Arc<OwnedFd>,
    line: Line,
    /// What arrives in order, and what is overtaken or overtakes.
    in_order: VecDeque<Held>,
    others: BinaryHeap<Reverse<Held>>,
    held_bytes: usize,
    number: u64,
    counters: Counters,
    background_before: super::line::BackgroundCount,
}

impl Direction {
    /// Nothing on its way.
    pub fn new(from: Arc<OwnedFd>, to: Arc<OwnedFd>, line: Line) -> Direction {
        Direction {
            from,
            to,
            line,
            in_order: VecDeque::new(),
            others: BinaryHeap::new(),
            held_bytes: 0,
            number: 0,
            counters: Counters::default(),
            background_before: Default::default(),
        }
    }

    /// Reads what there is, up to [`READS`]; whether there may be more.
    fn read(&mut self, clock: Clock, buffer: &mut [u8]) -> bool {
        for _ in 0..READS {
            match rustix::io::read(&*self.from, &mut *buffer) {
                Ok(length) => self.arrive(clock.now(), &buffer[..length]),
                Err(Errno::INTR) => {}
                // The device's end is this process's: there is no other error to come back from.
                Err(_) => return false,
            }
        }
        true
    }

    fn arrive(&mut self, now: Nanos, bytes: &[u8]) {
        self.counters.reads += 1;
        if self.held_bytes + bytes.len() > HELD_BYTES {
            self.counters.overflow += 1;
            return;
        }
        let mut copy = bytes.to_vec();
        let delay = nanos(self.line.config().delay);
        if probe::stamp(&mut copy, delay) {
            let tail = Bytes::from(copy);
            self.hold(Held {
                first_due: now + delay,
                due: now + delay,
                left: now,
                number: 0,
                segments: 1,
                wire_bytes: 0,
                counts: false,
                piece: Piece { head: Vec::new(), tail },
            });
            return;
        }
        let Some(packet) = Packet::parse(copy.into()) else { return };
        // Segments that go on together: those whose fates are alike and whose times are near.
        let mut run: Option<Held> = None;
        let mut first = 0;
        for index in 0..packet.segments() {
            let wire_bytes = packet.segment_bytes(index);
            self.counters.packets += 1;
            self.counters.bytes += u64::from(wire_bytes);
            let fate = self.line.offer(now, wire_bytes);
            if let Fate::Arrives { left, due, late: false } = fate
                && let Some(run) = &mut run
                && first + run.segments == index
                && due.saturating_sub(run.first_due) <= TOGETHER
            {
                (run.left, run.due) = (left, due);
                run.segments += 1;
                run.wire_bytes += wire_bytes;
                continue;
            }
            match fate {
                Fate::Arrives { left, due, late } => {
                    self.finish(&packet, first, run.take());
                    let held = Held {
                        first_due: due,
                        due,
                        left,
                        number: 0,
                        segments: 1,
                        wire_bytes,
                        counts: true,
                        piece: Piece { head: Vec::new(), tail: Bytes::new() },
                    };
                    if late {
                        self.counters.reordered += 1;
                        self.finish(&packet, index, Some(held));
                    } else {
                        run = Some(held);
                        first = index;
                    }
                }
                Fate::Lost => self.counters.lost += 1,
                Fate::QueueFull => self.counters.queue_drops += 1,
                Fate::Outage => self.counters.outage_drops += 1,
            }
        }
        self.finish(&packet, first, run);
    }

    fn finish(&mut self, packet: &Packet, first: u32, run: Option<Held>) {
        if let Some(mut held) = run {
            held.piece = packet.piece(first, held.segments);
            self.hold(held);
        }
    }

    fn hold(&mut self, mut held: Held) {
        held.number = self.number;
        self.number += 1;
        self.held_bytes += held.bytes();
        match self.in_order.back() {
            Some(last) if last.due > held.due => self.others.push(Reverse(held)),
            _ => self.in_order.push_back(held),
        }
    }

    fn next_due(&self) -> Option<Nanos> {
        let others = self.others.peek().map(|held| held.0.due);
        self.in_order.front().map(|held| held.due).into_iter().chain(others).min()
    }

    fn deliver(&mut self, clock: Clock) {
        let mut now = clock.now();
        while self.next_due().is_some_and(|due| due <= now) {
            let other = match (self.in_order.front(), self.others.peek()) {
                (Some(a), Some(Reverse(b))) => b < a,
                (front, _) => front.is_none(),
            };
            let held = match other {
                true => self.others.pop().map(|held| held.0),
                false => self.in_order.pop_front(),
            };
            let Some(held) = held else { return };
            self.held_bytes -= held.bytes();
            let written = if held.piece.head.is_empty() {
                rustix::io::write(&*self.to, &held.piece.tail)
            } else {
                let parts = [IoSlice::new(&held.piece.head), IoSlice::new(&held.piece.tail)];
                rustix::io::writev(&*self.to, &parts)
            };
            self.counters.writes += 1;
            now = clock.now();
            if !held.counts {
                continue;
            }
            let segments = u64::from(held.segments);
            if written.is_err() {
                self.counters.refused += segments;
                continue;
            }
            self.counters.delivered += segments;
            self.counters.delivered_bytes += u64::from(held.wire_bytes);
            // Between the first and the last of a run they are due at equal distances.
            let span = held.due - held.first_due;
            for index in 0..segments {
                let due = held.first_due + span * index / (segments - 1).max(1);
                self.counters.lateness.record(now - due);
            }
        }
    }

    fn set(&mut self, now: Nanos, config: LineConfig) {
        let replan = self.line.set(now, config);
        if !replan.is_needed() {
            return;
        }
        let mut last_due = 0;
        let held = std::mem::take(&mut self.in_order).into_iter();
        let others = std::mem::take(&mut self.others).into_vec();
        let mut all: Vec<Held> = held.chain(others.into_iter().map(|held| held.0)).collect();
        for held in &mut all {
            let span = held.due - held.first_due;
            held.due = held.due - held.left + replan.left(held.left);
            held.left = replan.left(held.left);
            held.first_due = held.due.saturating_sub(span);
            last_due = last_due.max(held.due);
        }
        self.line.moved(last_due);
        all.sort();
        self.in_order = all.into();
    }
}

/// The thread's work.
pub struct Router {
    directions: Vec<Direction>,
    clock: Clock,
    commands: Receiver<Command>,
    wake: Arc<OwnedFd>,
}

impl Router {
    /// Between these devices; `wake` becomes readable when there is a command, or when nobody can give one any more.
    pub fn new(
        directions: Vec<Direction>,
        clock: Clock,
        commands: Receiver<Command>,
        wake: Arc<OwnedFd>,
    ) -> Router {
        Router { directions, clock, commands, wake }
    }

    /// Works until there is nobody to give commands.
    pub fn run(mut self) {
        run_ahead();
        let mut buffer = vec![0; MAX_BYTES];
        loop {
            if !self.obey() {
                return;
            }
            let mut more = false;
            for direction in &mut self.directions {
                more |= direction.read(self.clock, &mut buffer);
                direction.deliver(self.clock);
                direction.line.advance(self.clock.now());
            }
            if !more {
                self.sleep();
            }
        }
    }

    fn obey(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(Command::Set(direction, config)) => {
                    let now = self.clock.now();
                    self.directions[direction].set(now, *config);
                }
                Ok(Command::Mark) => {
                    for direction in &mut self.directions {
                        direction.counters = Counters::default();
                        direction.background_before = direction.line.background();
                    }
                }
                Ok(Command::Report(to)) => {
                    let counters = self.directions.iter().map(|direction| Counters {
                        background: direction.line.background() - direction.background_before,
                        ..direction.counters.clone()
                    });
                    // Who asked may be gone.
                    let _ = to.send((counters.collect(), processor_seconds()));
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn sleep(&self) {
        let now = self.clock.now();
        let next = self.directions.iter().filter_map(Direction::next_due).min();
        let step =
            self.directions.iter().any(|direction| direction.line.config().background.is_some());
        let step = step.then_some(now + BACKGROUND_STEP);
        let wait = next.into_iter().chain(step).min().map(|at| at.saturating_sub(now));
        if wait == Some(0) {
            return;
        }
        let timeout = wait.map(|wait| Timespec {
            tv_sec: (wait / 1_000_000_000) as i64,
            tv_nsec: (wait % 1_000_000_000) as _,
        });
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(3);
        fds.push(PollFd::new(&*self.wake, PollFlags::IN));
        for direction in &self.directions {
            fds.push(PollFd::new(&*direction.from, PollFlags::IN));
        }
        // Interrupted or not, the loop looks at everything again.
        let _ = rustix::event::poll(&mut fds, timeout.as_ref());
        if !fds[0].revents().is_empty() {
            let mut count = [0; 8];
            let _ = rustix::io::read(&*self.wake, &mut count);
        }
    }
}

/// Puts this thread ahead of ordinary ones, as far as that is allowed.
pub fn run_ahead() {
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let parameter = libc::sched_param { sched_priority: PRIORITY };
    // SAFETY: the call reads one `sched_param`, which lives until it is over; 0 is this thread.
    #[allow(unsafe_code)]
    let done = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameter) };
    if done != 0 {
        // Where real time is not to be had, as in some containers.
        let _ = rustix::process::setpriority_process(None, -20);
    }
}

fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
