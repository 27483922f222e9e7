//! The volume's side of shipping: when a batch is due, where its frames come from, and what is
//! announced ahead of it.

use super::drain::{Assembly, Damage, Part, build};
use super::io::Event;
use super::journal::{FRAME_HEADER_BYTES, Frame, Where};
use super::reads::DiskUse;
use super::volume::{Link, Volume};
use crate::block::{Range, Seq, Time};
use crate::wire::link::{self, Lane, MAX_BATCH_BYTES, ToStore};
use bytes::Bytes;
use std::time::Duration;

/// Stable bytes that are worth a batch without waiting for more.
const SHIP_BYTES: u64 = 1 << 20;
/// First and longest pause before a damaged frame is read again.
const REREAD_FIRST: Duration = Duration::from_secs(1);
const REREAD_LAST: Duration = Duration::from_secs(60);

impl Volume {
    /// Ships as many batches as are due and fit the window.
    pub(super) fn ship(&mut self) {
        while self.may_ship() && self.is_due() && self.limit_end().is_none() {
            if self.log.journal().is_memory_only() {
                self.log.seal();
            }
            let frames = self.next_frames();
            if frames.is_empty() {
                // All that is left are frames without records, which go with what is committed.
                return self.log.commit(self.log.committed());
            }
            let bytes = frames.iter().map(|frame| frame.body_bytes).sum();
            if !self.drain.has_window(bytes) {
                return;
            }
            self.assemble(frames);
            self.finish_assembly();
        }
    }

    /// Whether the store, which has writes up to `committed`, lacks any that the journal has trimmed
    /// because it once had them: these cannot be shipped again.
    pub(super) fn check_behind(&mut self, committed: Seq) {
        let from = self.log.journal().first_uncommitted().max(self.log.committed() + 1);
        self.behind = from > committed + 1;
        if self.behind {
            self.out.event(Event::StoreBehind { committed, from });
        }
    }

    fn may_ship(&self) -> bool {
        self.link == Link::Up
            && self.fenced.is_none()
            && !self.behind
            && !self.versions.is_full()
            && self.drain.assembly.is_none()
            && self.drain_retry.is_none_or(|(at, _)| at <= self.context.now)
    }

    /// Whether there is something to ship and a reason not to wait for more.
    fn is_due(&self) -> bool {
        let bytes = self.log.journal().drainable_bytes(self.drain.addr);
        if bytes == 0 {
            return false;
        }
        self.drain_is_urgent()
            || self.acknowledger.has_waiting_writes()
            || bytes >= SHIP_BYTES
            || self.linger_end().is_some_and(|at| at <= self.context.now)
    }

    /// When the limit lets the next batch go, unless that is now. What somebody waits for goes at once
    /// and is counted; so does what would be lost with the process.
    fn limit_end(&self) -> Option<Time> {
        let waited_for = self.awaited().is_some_and(|seq| seq >= self.drain.next);
        let last_chance = self.shutting_down && self.log.journal().is_memory_only();
        if waited_for || last_chance { None } else { self.drain.limit.wait(self.context.now) }
    }

    fn linger_end(&self) -> Option<Time> {
        let born = self.log.journal().oldest_drainable(self.drain.addr)?;
        Some(born.after(self.context.config.drain_linger))
    }

    /// When lingering, and waiting for the limit, end for what could be shipped.
    pub(super) fn ship_deadline(&self) -> Option<Time> {
        let linger = if self.may_ship() { self.linger_end()? } else { return None };
        let limit = self.limit_end();
        if limit.is_some() && self.is_due() { limit } else { limit.max(Some(linger)) }
    }

    /// Whole frames for one batch: at least one, up to the size wanted. Frames without records are
    /// passed over.
    fn next_frames(&self) -> Vec<Frame> {
        let limit = self.context.config.batch_bytes.min(MAX_BATCH_BYTES as u64);
        // What goes in one go takes the line from everybody else.
        let limit = limit.min(self.drain.limit.piece_bytes());
        let mut frames: Vec<Frame> = Vec::new();
        let (mut records, mut bytes) = (0, 0);
        let drainable = self.log.journal().drainable(self.drain.addr);
        for frame in drainable.filter(|frame| frame.body_bytes > 0) {
            records += frame.body_bytes;
            // Frames are read whole, and one with a single small record takes a page all the same.
            bytes += frame.bytes;
            let whole = (2 * limit).min(MAX_BATCH_BYTES as u64);
            if !frames.is_empty() && (records > limit.min(self.drain.reach) || bytes > whole) {
                break;
            }
            frames.push(*frame);
        }
        frames
    }

    /// Whether what is in memory is verified as well, because something was wrong with it.
    pub(super) fn verifies_memory(&self) -> bool {
        self.drain.distrust || self.drain_retry.is_some()
    }

    /// Collects the frames' bytes from memory, and asks the disk for the rest.
    fn assemble(&mut self, frames: Vec<Frame>) {
        let mut parts: Vec<Option<Part>> = Vec::new();
        parts.resize_with(frames.len(), || None);
        let verify = self.verifies_memory();
        let mut missing = 0;
        let generation = self.drain.generation;
        let mut at = 0;
        while let Some(frame) = frames.get(at) {
            match self.log.journal().locate(frame.at.addr, frame.bytes as usize) {
                Where::Memory(bytes) => {
                    parts[at] = Some(Part { bytes, verify });
                    at += 1;
                }
                Where::Disk { file, offset } => {
                    // Frames that lie one behind the other are one read.
                    let (first, mut end) = (at, frame.end());
                    at += 1;
                    while let Some(next) = frames.get(at)
                        && next.at.addr == end
                        && self.log.journal().spot(next.at.addr).0 == file
                        && matches!(self.log.journal().locate(end, 1), Where::Disk { .. })
                        && next.end() - frame.at.addr <= MAX_BATCH_BYTES as u64
                    {
                        end = next.end();
                        at += 1;
                    }
                    missing += 1;
                    self.log.pin(file);
                    let bytes = (end - frame.at.addr) as usize;
                    let id = self.out.read_file((file, offset), bytes);
                    self.reads.disk.insert(id, (file, DiskUse::Drain { generation, first }));
                }
                // Uncommitted frames are never recycled. Should one be, the batch is found damaged.
                Where::Gone => {
                    parts[at] = Some(Part::default());
                    at += 1;
                }
            }
        }
        self.drain.assembly = Some(Assembly { frames, parts, missing });
    }

    /// Takes a read for the drain.
    pub(super) fn drain_read(
        &mut self,
        generation: u64,
        first: usize,
        outcome: Result<Bytes, String>,
    ) {
        if generation != self.drain.generation {
            return;
        }
        let Some(assembly) = &mut self.drain.assembly else { return };
        assembly.missing -= 1;
        match outcome {
            Ok(mut data) => {
                for (frame, part) in assembly.frames.iter().zip(&mut assembly.parts).skip(first) {
                    if data.is_empty() {
                        break;
                    }
                    let take = (frame.bytes as usize).min(data.len());
                    *part = Some(Part { bytes: data.split_to(take), verify: true });
                }
            }
            Err(problem) => {
                let frames = std::mem::take(&mut assembly.frames);
                let damage =
                    Damage { addr: frames[first].at.addr, range: Range::new(0, 0), problem };
                return self.unreadable(&frames, damage);
            }
        }
        self.finish_assembly();
    }

    /// Sends the batch if all of it is there.
    fn finish_assembly(&mut self) {
        let Some(assembly) = self.drain.assembly.take_if(|assembly| assembly.missing == 0) else {
            return;
        };
        let parts: Vec<Part> = assembly.parts.into_iter().map(Option::unwrap_or_default).collect();
        let batch = match build(self.context.volume, self.drain.next, &assembly.frames, &parts) {
            Ok(batch) => batch,
            Err(damage) => return self.unreadable(&assembly.frames, damage),
        };
        if self.versions.is_on() {
            for (frame, part) in assembly.frames.iter().zip(&parts) {
                let end = FRAME_HEADER_BYTES + frame.body_bytes as usize;
                self.versions.feed(part.bytes.get(FRAME_HEADER_BYTES..end).unwrap_or_default());
            }
        }
        self.drain_retry = None;
        self.drain.reach = self.drain.reach.saturating_mul(2);
        if let Some(last) = assembly.frames.last() {
            self.drain.addr = last.end();
        }
        if batch.last < self.drain.next {
            return;
        }
        // The store hears of a range before its data can get lost on the way.
        self.announce_pending();
        let (volume, epoch, first) = (self.context.volume, self.context.epoch, self.drain.next);
        let bytes = batch.payload.len() as u64;
        self.out.count().batches += 1;
        self.out.count().batch_bytes += bytes;
        self.out.count().coalesced_bytes += batch.coalesced;
        self.drain.ship(self.context.now, batch.last, bytes);
        self.caching.shipped(batch.last, &batch.payload);
        let message = ToStore::Batch { volume, epoch, first, last: batch.last };
        self.out.send(Lane::Drain, link::Frame { message, payload: batch.payload });
    }

    /// The batch cannot be put together. With fewer frames it is tried at once, so that the store
    /// gets what lies before the damage; a single one holds up all that follow, and is read again
    /// later.
    fn unreadable(&mut self, frames: &[Frame], damage: Damage) {
        self.drain.abandon();
        if frames.len() > 1 {
            let bytes: u64 = frames.iter().map(|frame| frame.body_bytes).sum();
            self.drain.reach = bytes / 2;
            return;
        }
        let Damage { addr, range, problem } = damage;
        if self.use_disk(addr, range, &problem) {
            return;
        }
        let (file, offset) = self.log.journal().spot(addr);
        let shipping_waits = true;
        self.out.event(Event::JournalDamaged { range, file, offset, problem, shipping_waits });
        let pause =
            self.drain_retry.map_or(REREAD_FIRST, |(_, pause)| (pause * 2).min(REREAD_LAST));
        self.drain_retry = Some((self.context.now.after(pause), pause));
    }

    /// What is in memory for `addr` is damaged: it is given up if the disk has a copy.
    pub(super) fn use_disk(&mut self, addr: u64, range: Range, problem: &str) -> bool {
        let dropped = self.log.drop_copy(addr);
        if dropped {
            let (file, offset) = self.log.journal().spot(addr);
            let problem = format!("{problem} (in memory; the copy on disk is used instead)");
            let shipping_waits = false;
            let event = Event::JournalDamaged { range, file, offset, problem, shipping_waits };
            self.out.event(event);
        }
        dropped
    }

    // --- announcements ---

    /// Sends what was collected if it is time.
    pub(super) fn announce_some(&mut self) {
        let due = self.announcer.deadline().is_some_and(|at| at <= self.context.now);
        if due || self.announcer.is_full() {
            self.announce_pending();
        }
    }

    fn announce_pending(&mut self) {
        if self.link != Link::Up || self.announcer.deadline().is_none() {
            return;
        }
        // `replace` would wipe what is sent here, so it goes first.
        while self.announcer.resync.is_some_and(|(_, first)| first) {
            self.announce_all();
        }
        let entries = self.announcer.take(self.log.committed());
        if !entries.is_empty() {
            let (volume, epoch) = (self.context.volume, self.context.epoch);
            let message = ToStore::Announce { volume, epoch, replace: false, entries };
            self.out.send(Lane::Control, message);
        }
    }

    /// Sends one frame of everything that is not committed, if that is being told.
    pub(super) fn announce_all(&mut self) {
        if self.link != Link::Up || self.fenced.is_some() {
            return;
        }
        let Some((lba, _)) = self.announcer.resync else { return };
        let uncommitted = self.log.uncommitted(lba);
        if let Some((replace, entries)) = self.announcer.take_resync(uncommitted) {
            let (volume, epoch) = (self.context.volume, self.context.epoch);
            let message = ToStore::Announce { volume, epoch, replace, entries };
            self.out.send(Lane::Control, message);
        }
    }
}
