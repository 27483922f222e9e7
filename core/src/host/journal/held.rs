//! Frames that the journal keeps although the store has them, because a version table lacks them.

use super::Journal;
use crate::block::Seq;
use std::collections::VecDeque;

impl Journal {
    /// The address below which the journal needs nothing: the tail, or held frames before it.
    pub(super) fn kept(&self) -> u64 {
        let held = self.held.as_ref().and_then(VecDeque::front);
        held.map_or_else(|| self.tail(), |frame| frame.at.addr)
    }

    /// From now on holds committed frames until their release.
    pub(crate) fn hold(&mut self) {
        self.held.get_or_insert_default();
    }

    /// Releases frames with numbers up to `seq`.
    pub(crate) fn release(&mut self, seq: Seq) {
        let Some(held) = &mut self.held else { return };
        while held.pop_front_if(|frame| frame.last <= seq).is_some() {}
    }

    /// Whether numbers are missing after the held frames, because another host had the volume
    /// since. A frame of this epoch would name a held frame as its tail. Recovery could not walk
    /// from there across the missing numbers. So the journal has to release the held frames first.
    pub(crate) fn has_gap(&self) -> bool {
        let held = self.held.as_ref().and_then(VecDeque::back);
        !self.memory_only
            && self.epoch_frame_end.is_none()
            && held.is_some_and(|frame| frame.last + 1 < self.next_seq)
    }

    /// Address space of held frames, in bytes.
    pub(crate) fn held_bytes(&self) -> u64 {
        if self.memory_only { 0 } else { self.tail() - self.kept() }
    }
}
