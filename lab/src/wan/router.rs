//! The router between the two devices: a thread. It takes the packets of one side, asks the model
//! about each, and hands the survivors to the other side when they are due.
//!
//! It works in real time beside the measured programs, on the same processors. It runs ahead of
//! ordinary threads (`SCHED_FIFO`, where it may), sleeps until the next packet is due, and never
//! spins.

use super::config::LineConfig;
use super::line::{Fate, Line, Nanos, nanos};
use super::packet::{IP_BYTES, MAX_BYTES, MERGED, Packet};
use super::probe;
use super::stats::Counters;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::cmp::{Ordering, Reverse};
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};
use std::io::IoSlice;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use std::time::{Duration, Instant};

/// Reads between two looks at what is due.
const READS: usize = 16;
/// Bytes on their way at most, over both directions half each: 200 ms of 10 Gb/s.
const HELD_BYTES: usize = 256 << 20;
/// Packets that are due within this time of each other leave together, when the last of them is
/// due. Waking up costs more than a packet. A single packet leaves when it is due.
const GATHER: Nanos = 100_000;
/// Packets leave so much before they are due: they waited about that long for the router, and
/// waking up takes as long.
pub const EARLY: Nanos = 20_000;
/// After so many wakings in a millisecond packets gather before the router reads them, too, as
/// network cards do it. Question and answer, one by one, do not come so often.
const WAKINGS: u32 = 24;
/// How far ahead the router looks for packets to gather.
const LOOK_AHEAD: usize = 64;
/// The router updates the background traffic at least this often.
const BACKGROUND_STEP: Nanos = 20_000_000;
/// Priority among real-time threads, 1 to 99: above none but ordinary threads.
const PRIORITY: libc::c_int = 1;

/// Requests of the router's owner.
pub enum Command {
    /// From now on this direction is like this.
    Set(usize, Box<LineConfig>),
    /// Starts counting anew.
    Mark,
    /// Sends the counts, per direction, and the processor time, in seconds.
    Report(SyncSender<(Vec<Counters>, f64)>),
}

/// The clock of all lines of a WAN: nanoseconds since its start.
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

/// A packet on its way, or one segment of a super-packet.
struct Held {
    due: Nanos,
    /// When it leaves the bottleneck.
    left: Nanos,
    /// Order of arrival at the line.
    number: u64,
    /// It may be overtaken, or overtake.
    late: bool,
    /// Whether it is one of the line's packets, and not the probe's.
    counts: bool,
    segment: u32,
    packet: Packet,
}

impl Held {
    fn bytes(&self) -> usize {
        self.packet.segment_bytes(self.segment) as usize
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
    /// Packets in order, and reordered ones.
    in_order: VecDeque<Held>,
    others: BinaryHeap<Reverse<Held>>,
    held_bytes: usize,
    number: u64,
    /// When the segments of one delivery were due.
    run: Vec<Nanos>,
    /// Datagrams that are delivered together with one before them.
    merged: Vec<Packet>,
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
            run: Vec::new(),
            merged: Vec::new(),
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
        let probe = probe::stamp(&mut copy, delay);
        let Some(packet) = Packet::parse(copy.into()) else { return };
        if probe {
            self.hold(packet, 0, (now, now + delay), true, false);
            return;
        }
        for segment in 0..packet.segments() {
            let bytes = packet.segment_bytes(segment);
            self.counters.packets += 1;
            self.counters.bytes += u64::from(bytes);
            match self.line.offer(now, bytes) {
                Fate::Arrives { left, due, late } => {
                    self.counters.reordered += u64::from(late);
                    self.hold(packet.clone(), segment, (left, due), late, true);
                }
                Fate::Lost => self.counters.lost += 1,
                Fate::QueueFull => self.counters.queue_drops += 1,
                Fate::Outage => self.counters.outage_drops += 1,
            }
        }
    }

    fn hold(
        &mut self,
        packet: Packet,
        segment: u32,
        (left, due): (Nanos, Nanos),
        late: bool,
        counts: bool,
    ) {
        let held = Held { due, left, number: self.number, late, counts, segment, packet };
        self.number += 1;
        self.held_bytes += held.bytes();
        match self.in_order.back() {
            Some(last) if last.due > due => self.others.push(Reverse(held)),
            _ => self.in_order.push_back(held),
        }
    }

    /// When to deliver next.
    fn next_delivery(&self) -> Option<Nanos> {
        let other = self.others.peek().map(|held| held.0.due);
        let first = self.in_order.front().map(|held| held.due);
        let dues = self.in_order.iter().take(LOOK_AHEAD).map(|held| held.due);
        let last = first.and_then(|first| dues.take_while(|due| *due <= first + GATHER).last());
        last.into_iter().chain(other).min().map(|due| due.saturating_sub(EARLY))
    }

    /// Takes what is due next.
    fn take_due(&mut self, now: Nanos) -> Option<Held> {
        let other = match (self.in_order.front(), self.others.peek()) {
            (Some(a), Some(Reverse(b))) => b < a,
            (front, _) => front.is_none(),
        };
        let held = if other {
            let Reverse(held) =
                PeekMut::pop(self.others.peek_mut().filter(|held| held.0.due <= now)?);
            held
        } else {
            self.in_order.pop_front_if(|held| held.due <= now)?
        };
        self.held_bytes -= held.bytes();
        Some(held)
    }

    fn deliver(&mut self, clock: Clock) {
        let mut now = clock.now();
        while let Some(first) = self.take_due(now + EARLY) {
            let wire_bytes = self.gather(&first, now + EARLY);
            let written = match self.merged.as_slice() {
                [] => {
                    let segments = self.run.len() as u32;
                    let piece = first.packet.piece(first.segment, segments);
                    let parts = [IoSlice::new(&piece.head), IoSlice::new(&piece.tail)];
                    rustix::io::writev(&*self.to, &parts[usize::from(piece.head.is_empty())..])
                }
                others => {
                    let all = || std::iter::once(&first.packet).chain(others);
                    let head =
                        first.packet.head_of_all(all().map(|part| part.payload().len()).sum());
                    let mut parts = Vec::with_capacity(1 + self.run.len());
                    parts.push(IoSlice::new(&head));
                    parts.extend(all().map(|part| IoSlice::new(part.payload())));
                    rustix::io::writev(&*self.to, &parts)
                }
            };
            self.counters.writes += 1;
            now = clock.now();
            let count = self.run.len() as u64;
            match written {
                _ if !first.counts => {}
                Err(_) => self.counters.refused += count,
                Ok(_) => {
                    self.counters.delivered += count;
                    self.counters.delivered_bytes += wire_bytes as u64;
                    for due in &self.run {
                        self.counters.lateness.record(now.saturating_sub(*due));
                    }
                }
            }
        }
    }

    /// Takes what is due and can go on together with the first: the next segments of its
    /// super-packet, or datagrams like it. Gives their bytes on the wire.
    fn gather(&mut self, first: &Held, now: Nanos) -> usize {
        self.run.clear();
        self.merged.clear();
        self.run.push(first.due);
        let (mut segment, mut last_bytes, mut wire_bytes) =
            (first.segment, first.bytes(), first.bytes());
        let alone = first.packet.segments() == 1;
        while let Some(next) = self.in_order.pop_front_if(|next| {
            let fits = match alone {
                true => {
                    self.merged.len() + 1 < MERGED
                        && wire_bytes + next.bytes() <= IP_BYTES
                        && last_bytes == first.bytes()
                        && first.packet.goes_with(&next.packet)
                }
                false => next.segment == segment + 1 && next.packet.is(&first.packet),
            };
            fits && next.due <= now && next.counts == first.counts && !next.late
        }) {
            (segment, last_bytes) = (next.segment, next.bytes());
            wire_bytes += last_bytes;
            self.held_bytes -= last_bytes;
            self.run.push(next.due);
            if alone {
                self.merged.push(next.packet);
            }
        }
        wire_bytes
    }

    fn set(&mut self, now: Nanos, config: LineConfig) {
        let replan = self.line.set(now, config);
        if !replan.is_needed() {
            return;
        }
        let others = std::mem::take(&mut self.others).into_vec();
        let mut all: Vec<Held> = std::mem::take(&mut self.in_order).into();
        all.extend(others.into_iter().map(|held| held.0));
        all.sort_by_key(|held| held.number);
        let mut last = 0;
        for held in &mut all {
            held.due = replan.due(held.left, held.due);
            held.left = replan.left(held.left);
            if !held.late {
                // With less time between them the delay could vary by more than that.
                held.due = held.due.max(last);
                last = held.due;
            }
        }
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
    /// Between these devices; `wake` becomes readable when there is a command, or when nobody can
    /// give one any more.
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
        let (mut millisecond, mut wakings) = (0, 0);
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
            if more {
                continue;
            }
            let now = self.clock.now();
            if now / 1_000_000 != millisecond {
                (millisecond, wakings) = (now / 1_000_000, 0);
            }
            wakings += 1;
            if wakings > WAKINGS {
                std::thread::sleep(Duration::from_nanos(GATHER));
            } else {
                self.sleep(now);
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
                    // The requester may be gone.
                    let _ = to.send((counters.collect(), processor_seconds()));
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// Until there is something to do.
    fn sleep(&self, now: Nanos) {
        let next = self.directions.iter().filter_map(Direction::next_delivery).min();
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
