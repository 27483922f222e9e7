//! What the journal keeps although the store has it: a table elsewhere does not know of it yet.

use super::Journal;
use crate::block::Seq;
use std::collections::VecDeque;

impl Journal {
    /// The address below which nothing is needed any more: the tail, or what is held before it.
    pub(super) fn kept(&self) -> u64 {
        let held = self.held.as_ref().and_then(VecDeque::front);
        held.map_or_else(|| self.tail(), |frame| frame.at.addr)
    }

    /// Committed frames are held from now on until they are released.
    pub(crate) fn hold(&mut self) {
        self.held.get_or_insert_default();
    }

    /// Frames with numbers up to `seq` need not be held any more.
    pub(crate) fn release(&mut self, seq: Seq) {
        let Some(held) = &mut self.held else { return };
        while held.pop_front_if(|frame| frame.last <= seq).is_some() {}
    }

    /// Whether the next number is not the one after what is held: somebody else had the volume
    /// since. A frame of this epoch would name what is held as its tail, and recovery could not
    /// walk from there across the numbers that are missing. So what is held has to be released
    /// first.
    pub(crate) fn has_gap(&self) -> bool {
        let held = self.held.as_ref().and_then(VecDeque::back);
        !self.memory_only
            && self.epoch_frame_end.is_none()
            && held.is_some_and(|frame| frame.last + 1 < self.next_seq)
    }

    /// Address space of what is held, in bytes.
    pub(crate) fn held_bytes(&self) -> u64 {
        if self.memory_only { 0 } else { self.tail() - self.kept() }
    }
}
