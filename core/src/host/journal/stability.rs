//! The progress of a journal on its disk: its newest frames, and the operations under way.
//!
//! Writes of frames begin in order, several are under way together, and they end in any order. Two
//! addresses count, and both end a prefix. The files have everything below `written`. Stable
//! storage has everything below `stable`. A frame behind a gap counts for neither, because recovery
//! ends at the gap.
//!
//! A frame is on stable storage for one of two reasons. Its own write was one with a sync. Or a
//! sync of its file began after the end of its write. A sync says nothing about a write that was
//! still under way when the sync began. A write with a sync says nothing about other writes.

use crate::block::{Seq, Time};
use crate::disk::DiskOperation;
use std::collections::VecDeque;

/// Most writes under way, those with a sync included.
pub(super) const WRITES_MAX: usize = 8;
/// Most syncs under way, and writes with a sync. With two, one group of flushes gathers while the
/// disk works on the group before.
pub(super) const SYNCS_MAX: usize = 2;
/// Longest write with a sync, in bytes. Longer writes are worth a sync for several of them.
const SYNCED_WRITE_BYTES: u64 = 64 << 10;

/// A sealed frame that is not on stable storage, or that lies behind such a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnstableFrame {
    pub file: u32,
    pub addr: u64,
    pub end: u64,
    /// The last number before it.
    pub before: Seq,
    /// The last number in or before it.
    pub last: Seq,
    pub tail_addr: u64,
    pub born: Time,
}

/// The place of a frame on its way to stable storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameState {
    /// It is only in memory.
    Sealed,
    /// Its write is under way.
    Writing { id: u64, sync: bool },
    /// It is in its file. A sync of the file makes it stable if it begins after operation `after`.
    Written { after: u64 },
    /// It is on stable storage itself. Frames before it may not be.
    Stable,
}

/// A sync under way.
#[derive(Clone, Copy, Debug)]
struct SyncUnderWay {
    id: u64,
    file: u32,
}

/// Recovery has adopted frames that have had no sync in this run.
#[derive(Debug)]
struct Adoption {
    /// The tail that they name. It counts after the syncs.
    tail: u64,
    /// Files without a sync so far.
    files: VecDeque<u32>,
}

/// Operations under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnderWay {
    /// Writes without a sync.
    pub writes: usize,
    /// Syncs, and writes with a sync.
    pub syncs: usize,
}

/// The meaning of a finished operation for the volume.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FinishedOperation {
    /// Not an operation of the journal.
    NotOurs,
    /// Success.
    Done,
    /// The journal has just latched.
    Failed(String),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Stability {
    /// In order of address.
    frames: VecDeque<(UnstableFrame, FrameState)>,
    /// The writes of this many frames have begun.
    begun_frames: usize,
    /// This many frames, without a gap, are in their files.
    written_frames: usize,
    /// This many frames, without a gap, are on stable storage once all operations under way have
    /// succeeded.
    covered_frames: usize,
    syncs: Vec<SyncUnderWay>,
    /// The last operation that has begun.
    last_id: u64,
    /// Everything below this address is in the files: in the page cache at least.
    written: u64,
    written_seq: Seq,
    /// Everything below this address is on stable storage.
    stable: u64,
    stable_seq: Seq,
    /// A stable frame says that recovery starts here.
    published: u64,
    adoption: Option<Adoption>,
}

impl Stability {
    pub(super) fn new(written: u64, stable: u64) -> Stability {
        Stability {
            frames: VecDeque::new(),
            begun_frames: 0,
            written_frames: 0,
            covered_frames: 0,
            syncs: Vec::new(),
            last_id: 0,
            written,
            written_seq: 0,
            stable,
            stable_seq: 0,
            published: 0,
            adoption: None,
        }
    }

    /// The recovered bytes may never have left the page cache of the run before. That also holds
    /// for the frame that names the tail, which may lie anywhere.
    pub(super) fn adopt(&mut self, files: u32, tail: u64) {
        self.adoption = Some(Adoption { tail, files: (0..files).collect() });
    }

    // --- how far it is ---

    pub(super) fn written_seq(&self) -> Seq {
        self.written_seq
    }

    pub(super) fn stable(&self) -> u64 {
        self.stable
    }

    pub(super) fn stable_seq(&self) -> Seq {
        self.stable_seq
    }

    pub(super) fn published(&self) -> u64 {
        self.published
    }

    /// Whether recovery has adopted frames that have had no sync yet.
    pub(super) fn is_adopting(&self) -> bool {
        self.adoption.is_some()
    }

    /// Whether every sealed frame is on stable storage, and nothing is under way.
    pub(super) fn is_all_stable(&self) -> bool {
        self.frames.is_empty() && self.syncs.is_empty() && !self.is_adopting()
    }

    /// Bytes in the files that need one more sync.
    pub(super) fn unsynced_bytes(&self) -> u64 {
        let covered = self.covered_frames.checked_sub(1).and_then(|last| self.frames.get(last));
        let covered = covered.map_or(self.stable, |(frame, _)| frame.end);
        self.written.saturating_sub(covered)
    }

    /// The time of the acknowledgment of the oldest record in a sealed frame that nothing under way
    /// makes stable.
    pub(super) fn oldest_uncovered(&self) -> Option<Time> {
        self.frames.get(self.covered_frames).map(|(frame, _)| frame.born)
    }

    /// Whether the write of every sealed frame has begun.
    pub(super) fn has_begun_all(&self) -> bool {
        self.begun_frames == self.frames.len()
    }

    pub(super) fn under_way(&self) -> UnderWay {
        let mut count = UnderWay { writes: 0, syncs: self.syncs.len() };
        for (_, state) in self.frames.range(self.written_frames..self.begun_frames) {
            match state {
                FrameState::Writing { sync: true, .. } => count.syncs += 1,
                FrameState::Writing { sync: false, .. } => count.writes += 1,
                FrameState::Sealed | FrameState::Written { .. } | FrameState::Stable => {}
            }
        }
        count
    }

    // --- operations ---

    /// The disk has to write this frame.
    pub(super) fn sealed(&mut self, frame: UnstableFrame) {
        self.frames.push_back((frame, FrameState::Sealed));
    }

    /// Begins the write of the next sealed frame, if that may begin. Returns the frame, the number
    /// of the operation, and whether to sync the frame. Numbers up to `wanted` have to become
    /// stable.
    pub(super) fn begin_write(
        &mut self,
        wanted: Seq,
        ids: &mut u64,
    ) -> Option<(UnstableFrame, u64, bool)> {
        let UnderWay { writes, syncs } = self.under_way();
        let all_covered = self.covered_frames == self.begun_frames;
        let (frame, state) = self.frames.get_mut(self.begun_frames)?;
        let frame = *frame;
        if writes + syncs >= WRITES_MAX {
            return None;
        }
        // If earlier frames need a sync anyway, it can serve this frame too.
        let sync = frame.before < wanted
            && all_covered
            && syncs < SYNCS_MAX
            && frame.end - frame.addr <= SYNCED_WRITE_BYTES;
        let id = next(ids);
        *state = FrameState::Writing { id, sync };
        self.last_id = id;
        self.begun_frames += 1;
        self.advance();
        Some((frame, id, sync))
    }

    /// Begins a sync, if frames with numbers up to `wanted` need one and are all in their files.
    pub(super) fn begin_sync(&mut self, wanted: Seq, ids: &mut u64) -> Option<DiskOperation> {
        let file = match &self.adoption {
            Some(_) if !self.syncs.is_empty() => return None,
            Some(adoption) => *adoption.files.front()?,
            None => {
                let (frame, _) = self.frames.get(self.covered_frames)?;
                let wanted = self.frames.partition_point(|(frame, _)| frame.before < wanted);
                let due = self.covered_frames < wanted
                    && self.written_frames >= wanted
                    && self.under_way().syncs < SYNCS_MAX;
                due.then_some(frame.file)?
            }
        };
        let id = next(ids);
        self.last_id = id;
        self.syncs.push(SyncUnderWay { id, file });
        self.advance();
        Some(DiskOperation::Sync { id, file })
    }

    /// Takes the outcome of a write or sync. `last` is the last number of the journal.
    pub(super) fn finish(
        &mut self,
        id: u64,
        error: Option<String>,
        last: Seq,
    ) -> FinishedOperation {
        let sync = self.syncs.iter().position(|sync| sync.id == id);
        let mut begun = self.frames.range(self.written_frames..self.begun_frames);
        let write = begun.position(
            |(_, state)| matches!(state, FrameState::Writing { id: ours, .. } if *ours == id),
        );
        if sync.or(write).is_none() {
            return FinishedOperation::NotOurs;
        }
        if let Some(error) = error {
            let what = if sync.is_some() { "sync" } else { "write" };
            return FinishedOperation::Failed(format!("journal {what} failed: {error}"));
        }
        if let Some(place) = sync {
            let sync = self.syncs.swap_remove(place);
            self.synced(sync, last);
        }
        let write = write.and_then(|place| self.frames.get_mut(self.written_frames + place));
        if let Some((_, state)) = write {
            *state = match state {
                FrameState::Writing { sync: true, .. } => FrameState::Stable,
                _ => FrameState::Written { after: self.last_id },
            };
        }
        self.advance();
        FinishedOperation::Done
    }

    fn synced(&mut self, sync: SyncUnderWay, last: Seq) {
        for (frame, state) in self.frames.range_mut(..self.begun_frames) {
            if is_covered(frame, *state, &[sync]) {
                *state = FrameState::Stable;
            }
        }
        let Some(adoption) = &mut self.adoption else { return };
        adoption.files.retain(|file| *file != sync.file);
        if adoption.files.is_empty() {
            self.published = self.published.max(adoption.tail);
            self.stable = self.written;
            self.stable_seq = self.stable_seq.max(last);
            self.adoption = None;
        }
    }

    /// Moves the ends of all prefixes as far as the frames allow.
    fn advance(&mut self) {
        while let Some((frame, FrameState::Written { .. } | FrameState::Stable)) =
            self.frames.get(self.written_frames)
        {
            self.written = frame.end;
            self.written_seq = self.written_seq.max(frame.last);
            self.written_frames += 1;
        }
        while let Some((frame, state)) = self.frames.get(self.covered_frames)
            && (matches!(state, FrameState::Stable | FrameState::Writing { sync: true, .. })
                || is_covered(frame, *state, &self.syncs))
        {
            self.covered_frames += 1;
        }
        while let Some((frame, _)) =
            self.frames.pop_front_if(|(_, state)| *state == FrameState::Stable)
        {
            self.stable = frame.end;
            self.stable_seq = self.stable_seq.max(frame.last);
            self.published = self.published.max(frame.tail_addr);
            self.begun_frames -= 1;
            self.written_frames -= 1;
            self.covered_frames -= 1;
        }
    }

    /// Writes nothing any more, and counts on nothing that is under way. Returns the address from
    /// which on only memory has the bytes.
    pub(super) fn stop(&mut self) -> u64 {
        self.frames.clear();
        self.syncs.clear();
        (self.begun_frames, self.written_frames, self.covered_frames) = (0, 0, 0);
        match self.adoption.take() {
            // It had no sync in this run. But recovery read it from the disk, so it seems to be
            // there. The drain may send it. No flush has relied on it.
            Some(_) => self.written,
            None => self.stable,
        }
    }
}

/// Whether one of these syncs makes the frame stable.
fn is_covered(frame: &UnstableFrame, state: FrameState, syncs: &[SyncUnderWay]) -> bool {
    let FrameState::Written { after } = state else { return false };
    syncs.iter().any(|sync| sync.file == frame.file && sync.id > after)
}

/// The next number of an operation.
pub(super) fn next(ids: &mut u64) -> u64 {
    *ids += 1;
    *ids
}
