//! Shipping: the writes that go to the store next, in [batches](batch), within a [window].
//!
//! Promises: batches hold whole frames in order. Each batch starts where the last one ended. A
//! batch leaves out only content that the same batch overwrites. The drain sends only writes on
//! stable storage, or writes in memory if there is no stable storage. An unreadable frame holds up
//! everything after it. The announcement of a range goes out before its data. It must not know the
//! requests that wait: [`Demand`] says how urgent the drain is.
//!
//! # Call order
//!
//! [`Drain::begin`] until it gives nothing. After each call, and after each [`Drain::frames_read`],
//! comes [`Drain::finish`]. If that gives a batch, [`Drain::announce_pending`] and [`Drain::send`]
//! follow.

mod announce;
mod batch;
mod window;

use super::context::Context;
use super::io::Event;
use super::journal::{BytesAt, FRAME_HEADER_BYTES, Frame};
use super::log::WriteLog;
use super::outputs::Outputs;
use crate::block::{Range, Seq, Time};
use crate::limit::Limit;
use crate::wire::link::{self, Lane, MAX_BATCH_BYTES, ToStore};
use announce::Announcer;
use batch::{Batch, Damage, FrameBytes, build};
use bytes::Bytes;
use std::time::Duration;
use window::Window;

/// This many stable bytes make a batch without waiting for more.
const SHIP_BYTES: u64 = 1 << 20;
/// First and longest pause before the next read of a damaged frame.
const REREAD_FIRST: Duration = Duration::from_secs(1);
const REREAD_LAST: Duration = Duration::from_secs(60);

/// How urgent the drain is, and the reasons against it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    /// The epoch goes on: the store takes batches.
    pub(super) open: bool,
    /// The version table takes no more changes.
    pub(super) versions_full: bool,
    /// The last number that somebody waits to see committed.
    pub(super) awaited: Option<Seq>,
    /// Writes wait for room that only commits can make.
    pub(super) writes_wait: bool,
    /// The volume is about to end.
    pub(super) closing: bool,
}

/// Frames to read from the journal's files for the next batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameRead {
    pub(super) addr: u64,
    pub(super) bytes: usize,
    pub(super) generation: u64,
    /// The first of these frames in the batch.
    pub(super) first: usize,
}

/// A batch that is ready to go.
#[derive(Debug)]
pub(super) struct ReadyBatch {
    pub(super) last: Seq,
    pub(super) payload: Bytes,
}

/// An unfinished batch.
#[derive(Debug)]
struct Assembly {
    frames: Vec<Frame>,
    /// The frames' bytes as they arrive.
    parts: Vec<Option<FrameBytes>>,
    missing: usize,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Drain {
    /// First number of the next batch.
    next: Seq,
    /// The drain does not send frames before this address (again).
    addr: u64,
    assembly: Option<Assembly>,
    /// Distinguishes reads for this batch from those for one that the drain gave up.
    generation: u64,
    /// The store refused a batch and has committed nothing since: verify everything before it goes.
    distrust: bool,
    /// Most bytes of records in the next batch. Halved when a batch fails, so that in the end
    /// everything before the damage goes out. Doubled when one succeeds.
    reach: u64,
    /// A read of the journal failed. Read again at this time, and then after this pause.
    reread: Option<(Time, Duration)>,
    /// The store lacks writes that it had committed, and the journal no longer has them. The drain
    /// sends nothing.
    store_lost_writes: bool,
    window: Window,
    /// Limits the rate of batches that nobody waits for.
    limit: Limit,
    announcer: Announcer,
}

impl Drain {
    pub(super) fn new(committed: Seq, window_max: u64) -> Drain {
        Drain {
            next: committed + 1,
            addr: 0,
            assembly: None,
            generation: 0,
            distrust: false,
            reach: u64::MAX,
            reread: None,
            store_lost_writes: false,
            window: Window::new(window_max),
            limit: Limit::default(),
            announcer: Announcer::begin(),
        }
    }

    // --- inputs ---

    /// The log has appended a write.
    pub(super) fn written(&mut self, now: Time, range: Range, seq: Seq) {
        self.announcer.add(now, range, seq);
    }

    /// The store has everything up to `seq`.
    pub(super) fn commit(&mut self, now: Time, seq: Seq) {
        self.distrust = false;
        self.window.commit(now, seq);
        self.next = self.next.max(seq + 1);
    }

    /// Gives up the unfinished batch. Reads for it count no more.
    pub(super) fn abandon(&mut self) {
        self.assembly = None;
        self.generation += 1;
    }

    /// The epoch goes on at a store that has writes up to `has`. Sends and announces all
    /// uncommitted writes again.
    pub(super) fn restart(&mut self, log: &WriteLog, has: Seq, out: &mut Outputs) {
        self.check_store(log, has, out);
        self.next = log.committed() + 1;
        self.addr = 0;
        self.abandon();
        self.window.clear();
        self.announcer.restart();
    }

    /// Checks that the store, which has writes up to `has`, lacks none that the journal has trimmed
    /// because the store once had them. The drain could not send those again.
    pub(super) fn check_store(&mut self, log: &WriteLog, has: Seq, out: &mut Outputs) {
        let from = log.journal().first_uncommitted().max(log.committed() + 1);
        self.store_lost_writes = from > has + 1;
        if self.store_lost_writes {
            out.event(Event::StoreLostWrites { committed: has, from });
        }
    }

    /// The store could not take a batch.
    pub(super) fn refused(&mut self) {
        self.distrust = true;
    }

    /// Sets the limit of the rate, in bytes a second.
    pub(super) fn set_limit(&mut self, now: Time, rate: Option<u64>) {
        self.limit.set(now, rate);
    }

    // --- batches ---

    /// Begins a batch if one is due and fits the window. Returns the reads for it.
    pub(super) fn begin(
        &mut self,
        context: &Context,
        demand: &Demand,
        log: &mut WriteLog,
    ) -> Option<Vec<FrameRead>> {
        let may = self.may_ship(context.now, demand) && self.is_due(context, demand, log);
        if !may || self.limit_end(context.now, demand, log).is_some() {
            return None;
        }
        if log.journal().is_memory_only() {
            log.seal();
        }
        let frames = self.next_frames(context, log);
        if frames.is_empty() {
            // Only frames without records are left. They count as committed with the write before
            // them.
            log.commit(log.committed());
            return None;
        }
        let bytes = frames.iter().map(|frame| frame.body_bytes).sum();
        self.window.has_room(bytes).then(|| self.assemble(frames, log))
    }

    fn may_ship(&self, now: Time, demand: &Demand) -> bool {
        demand.open
            && !self.store_lost_writes
            && !demand.versions_full
            && self.assembly.is_none()
            && self.reread.is_none_or(|(at, _)| at <= now)
    }

    /// Whether there is something to send and a reason not to wait for more.
    fn is_due(&self, context: &Context, demand: &Demand, log: &WriteLog) -> bool {
        let bytes = log.journal().drainable_bytes(self.addr);
        if bytes == 0 {
            return false;
        }
        demand.awaited.is_some()
            || demand.closing
            || demand.writes_wait
            || bytes >= SHIP_BYTES
            || self.linger_end(context, log).is_some_and(|at| at <= context.now)
    }

    /// The time when the limit lets the next batch go, unless that is now. Writes that a client
    /// waits for go at once and count toward the limit. So do writes that the end of the process
    /// would lose.
    fn limit_end(&self, now: Time, demand: &Demand, log: &WriteLog) -> Option<Time> {
        let waited_for = demand.awaited.is_some_and(|seq| seq >= self.next);
        let last_chance = demand.closing && log.journal().is_memory_only();
        if waited_for || last_chance { None } else { self.limit.wait(now) }
    }

    fn linger_end(&self, context: &Context, log: &WriteLog) -> Option<Time> {
        let born = log.journal().oldest_drainable(self.addr)?;
        Some(born.after(context.config.drain_linger))
    }

    /// Whole frames for one batch: at least one, up to the wanted size. Skips frames without
    /// records.
    fn next_frames(&self, context: &Context, log: &WriteLog) -> Vec<Frame> {
        let limit = context.config.batch_bytes.min(MAX_BATCH_BYTES as u64);
        // A batch takes the line from everybody else for its time on the line.
        let limit = limit.min(self.limit.piece_bytes());
        let mut frames: Vec<Frame> = Vec::new();
        let (mut records, mut bytes) = (0, 0);
        let drainable = log.journal().drainable(self.addr);
        for frame in drainable.filter(|frame| frame.body_bytes > 0) {
            records += frame.body_bytes;
            // Reads cover whole frames. A frame with one small record still takes a page.
            bytes += frame.bytes;
            let whole = (2 * limit).min(MAX_BATCH_BYTES as u64);
            if !frames.is_empty() && (records > limit.min(self.reach) || bytes > whole) {
                break;
            }
            frames.push(*frame);
        }
        frames
    }

    /// Collects the frames' bytes from memory. Returns the reads from the disk.
    fn assemble(&mut self, frames: Vec<Frame>, log: &WriteLog) -> Vec<FrameRead> {
        let mut parts: Vec<Option<FrameBytes>> = Vec::new();
        parts.resize_with(frames.len(), || None);
        let verify = self.verifies_memory();
        let generation = self.generation;
        let journal = log.journal();
        let mut reads = Vec::new();
        let mut at = 0;
        while let Some(frame) = frames.get(at) {
            match journal.locate(frame.at.addr, frame.bytes as usize) {
                BytesAt::Memory(bytes) => {
                    parts[at] = Some(FrameBytes { bytes, verify });
                    at += 1;
                }
                BytesAt::Disk { file, .. } => {
                    // One read covers frames that lie one behind the other.
                    let (first, addr, mut end) = (at, frame.at.addr, frame.end());
                    at += 1;
                    while let Some(next) = frames.get(at)
                        && next.at.addr == end
                        && journal.spot(next.at.addr).0 == file
                        && matches!(journal.locate(end, 1), BytesAt::Disk { .. })
                        && next.end() - addr <= MAX_BATCH_BYTES as u64
                    {
                        end = next.end();
                        at += 1;
                    }
                    reads.push(FrameRead { addr, bytes: (end - addr) as usize, generation, first });
                }
                // The journal never recycles uncommitted frames. If it did, the batch would count
                // as damaged.
                BytesAt::Gone => {
                    parts[at] = Some(FrameBytes::default());
                    at += 1;
                }
            }
        }
        self.assembly = Some(Assembly { frames, parts, missing: reads.len() });
        reads
    }

    /// Takes the outcome of a read. False if its batch was given up, or the bytes are unusable.
    pub(super) fn frames_read(
        &mut self,
        context: &Context,
        (generation, first): (u64, usize),
        outcome: Result<Bytes, String>,
        log: &mut WriteLog,
        out: &mut Outputs,
    ) -> bool {
        if generation != self.generation {
            return false;
        }
        let Some(assembly) = &mut self.assembly else { return false };
        assembly.missing -= 1;
        match outcome {
            Ok(mut data) => {
                for (frame, part) in assembly.frames.iter().zip(&mut assembly.parts).skip(first) {
                    if data.is_empty() {
                        break;
                    }
                    let take = (frame.bytes as usize).min(data.len());
                    *part = Some(FrameBytes { bytes: data.split_to(take), verify: true });
                }
                true
            }
            Err(problem) => {
                let frames = std::mem::take(&mut assembly.frames);
                let addr = frames[first].at.addr;
                let damage = Damage { addr, range: Range::new(0, 0), problem };
                self.unreadable(context.now, &frames, damage, log, out);
                false
            }
        }
    }

    /// Puts the batch together if all of it is there. Calls `shipped` with the records of each of
    /// its frames.
    pub(super) fn finish(
        &mut self,
        context: &Context,
        log: &mut WriteLog,
        out: &mut Outputs,
        mut shipped: impl FnMut(&[u8]),
    ) -> Option<ReadyBatch> {
        let assembly = self.assembly.take_if(|assembly| assembly.missing == 0)?;
        let parts: Vec<FrameBytes> =
            assembly.parts.into_iter().map(Option::unwrap_or_default).collect();
        let batch = match build(context.volume, self.next, &assembly.frames, &parts) {
            Ok(batch) => batch,
            Err(damage) => {
                self.unreadable(context.now, &assembly.frames, damage, log, out);
                return None;
            }
        };
        for (frame, part) in assembly.frames.iter().zip(&parts) {
            let end = FRAME_HEADER_BYTES + frame.body_bytes as usize;
            shipped(part.bytes.get(FRAME_HEADER_BYTES..end).unwrap_or_default());
        }
        self.reread = None;
        self.reach = self.reach.saturating_mul(2);
        if let Some(last) = assembly.frames.last() {
            self.addr = last.end();
        }
        let Batch { last, payload, coalesced } = batch;
        if last < self.next {
            return None;
        }
        let counters = out.count();
        counters.batches += 1;
        counters.batch_bytes += payload.len() as u64;
        counters.coalesced_bytes += coalesced;
        Some(ReadyBatch { last, payload })
    }

    /// A batch goes out.
    pub(super) fn send(&mut self, context: &Context, batch: ReadyBatch, out: &mut Outputs) {
        let (ReadyBatch { last, payload }, first) = (batch, self.next);
        let bytes = payload.len() as u64;
        self.next = last + 1;
        self.limit.take(context.now, bytes);
        self.window.ship(context.now, last, bytes);
        let Context { volume, epoch, .. } = *context;
        let message = ToStore::Batch { volume, epoch, first, last };
        out.send(Lane::Drain, link::Frame { message, payload });
    }

    /// The batch fails. With fewer frames the drain tries again at once, so that the store gets
    /// everything before the damage. If a single frame fails, it holds up all that follow; the
    /// drain reads it again later.
    fn unreadable(
        &mut self,
        now: Time,
        frames: &[Frame],
        damage: Damage,
        log: &mut WriteLog,
        out: &mut Outputs,
    ) {
        self.abandon();
        if frames.len() > 1 {
            let bytes: u64 = frames.iter().map(|frame| frame.body_bytes).sum();
            self.reach = bytes / 2;
            return;
        }
        let Damage { addr, range, problem } = damage;
        if log.use_disk(addr, range, &problem, out) {
            return;
        }
        let (file, offset) = log.journal().spot(addr);
        let shipping_waits = true;
        out.event(Event::JournalDamaged { range, file, offset, problem, shipping_waits });
        let pause = self.reread.map_or(REREAD_FIRST, |(_, pause)| (pause * 2).min(REREAD_LAST));
        self.reread = Some((now.after(pause), pause));
    }

    // --- announcements ---

    /// Announces the collected ranges if it is time.
    pub(super) fn announce_due(
        &mut self,
        context: &Context,
        open: bool,
        log: &WriteLog,
        out: &mut Outputs,
    ) {
        let due = self.announcer.deadline().is_some_and(|at| at <= context.now);
        if due || self.announcer.is_full() {
            self.announce_pending(context, open, log, out);
        }
    }

    /// Announces the collected ranges, so that the store hears of a range before its data can get
    /// lost on the way.
    pub(super) fn announce_pending(
        &mut self,
        context: &Context,
        open: bool,
        log: &WriteLog,
        out: &mut Outputs,
    ) {
        if !open || self.announcer.deadline().is_none() {
            return;
        }
        // `replace` would wipe the ranges that follow here, so it goes first.
        while self.announcer.has_told_nothing() {
            self.announce_rest(context, log, out);
        }
        let entries = self.announcer.take(log.committed());
        if !entries.is_empty() {
            let Context { volume, epoch, .. } = *context;
            let replace = false;
            out.send(Lane::Control, ToStore::Announce { volume, epoch, replace, entries });
        }
    }

    /// Announces one frame of all uncommitted ranges, if any are left to announce.
    pub(super) fn announce_rest(&mut self, context: &Context, log: &WriteLog, out: &mut Outputs) {
        let Some(lba) = self.announcer.untold() else { return };
        if let Some((replace, entries)) = self.announcer.take_rest(log.uncommitted(lba)) {
            let Context { volume, epoch, .. } = *context;
            out.send(Lane::Control, ToStore::Announce { volume, epoch, replace, entries });
        }
    }

    // --- outputs ---

    /// Last number sent.
    pub(super) fn shipped(&self) -> Seq {
        self.next - 1
    }

    pub(super) fn in_flight_bytes(&self) -> u64 {
        self.window.in_flight_bytes()
    }

    pub(super) fn window_bytes(&self) -> u64 {
        self.window.bytes()
    }

    pub(super) fn rate(&self) -> Option<u64> {
        self.limit.rate()
    }

    /// Whether to verify data in memory as well, because something was wrong with it.
    pub(super) fn verifies_memory(&self) -> bool {
        self.distrust || self.reread.is_some()
    }

    /// Whether the store has lost writes, so that it cannot replace data that the journal has lost.
    pub(super) fn has_store_lost_writes(&self) -> bool {
        self.store_lost_writes
    }

    /// The time when lingering, or the wait for the limit, ends for the next batch.
    pub(super) fn ship_deadline(
        &self,
        context: &Context,
        demand: &Demand,
        log: &WriteLog,
    ) -> Option<Time> {
        if !self.may_ship(context.now, demand) {
            return None;
        }
        let linger = self.linger_end(context, log)?;
        let limit = self.limit_end(context.now, demand, log);
        let due = limit.is_some() && self.is_due(context, demand, log);
        if due { limit } else { limit.max(Some(linger)) }
    }

    /// The time to announce the collected ranges.
    pub(super) fn announce_deadline(&self) -> Option<Time> {
        self.announcer.deadline()
    }

    /// The time of the next read of a damaged frame.
    pub(super) fn reread_deadline(&self) -> Option<Time> {
        self.reread.map(|(at, _)| at)
    }
}
