//! Uncommitted and held frames. The journal keeps held frames although the store has them, because
//! a version table lacks them.

use super::format::FrameRef;
use crate::block::{Seq, Time};
use std::collections::VecDeque;

/// A frame that the store has not committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// Where it is: address, number, checksum of the one before.
    pub at: FrameRef,
    /// Bytes in its file.
    pub bytes: u64,
    /// Bytes of records.
    pub body_bytes: u64,
    /// First number in it; `last + 1` if empty.
    pub first: Seq,
    /// Last number in or before it.
    pub last: Seq,
    /// The time of the acknowledgment of its first record.
    pub born: Time,
}

// `Config` relies on it: a deque of frames may have room for as many again.
const _: () = assert!(size_of::<Frame>() <= 72);

impl Frame {
    pub(crate) fn end(&self) -> u64 {
        self.at.addr + self.bytes
    }
}

/// Uncommitted and held frames, in order of address.
#[derive(Debug)]
pub(super) struct Frames {
    uncommitted: VecDeque<Frame>,
    /// Committed frames to keep until [`Frames::release`], if the journal has to keep any.
    held: Option<VecDeque<Frame>>,
    /// Bytes of records in `uncommitted`.
    body_bytes: u64,
}

impl Frames {
    pub(super) fn new(uncommitted: VecDeque<Frame>, hold: bool) -> Frames {
        let body_bytes = uncommitted.iter().map(|frame| frame.body_bytes).sum();
        Frames { uncommitted, held: hold.then(VecDeque::new), body_bytes }
    }

    pub(super) fn push(&mut self, frame: Frame) {
        self.body_bytes += frame.body_bytes;
        self.uncommitted.push_back(frame);
    }

    pub(super) fn body_bytes(&self) -> u64 {
        self.body_bytes
    }

    /// The first uncommitted frame.
    pub(super) fn first(&self) -> Option<&Frame> {
        self.uncommitted.front()
    }

    /// The uncommitted frames.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Frame> {
        self.uncommitted.iter()
    }

    /// The uncommitted frames from the one at or after `addr` on.
    pub(super) fn from(&self, addr: u64) -> impl Iterator<Item = &Frame> {
        let start = self.uncommitted.partition_point(|frame| frame.at.addr < addr);
        self.uncommitted.range(start..)
    }

    /// The store has everything up to `seq`. With `hold`, and after [`Frames::hold`], these frames
    /// become held frames.
    pub(super) fn commit(&mut self, seq: Seq, hold: bool) {
        while let Some(frame) = self.uncommitted.pop_front_if(|frame| frame.last <= seq) {
            self.body_bytes -= frame.body_bytes;
            if let Some(held) = self.held.as_mut().filter(|_| hold) {
                held.push_back(frame);
            }
        }
    }

    pub(super) fn first_held(&self) -> Option<&Frame> {
        self.held.as_ref().and_then(VecDeque::front)
    }

    pub(super) fn last_held(&self) -> Option<&Frame> {
        self.held.as_ref().and_then(VecDeque::back)
    }

    /// The first held frame; without one, the first uncommitted frame.
    pub(super) fn first_kept(&self) -> Option<&Frame> {
        self.first_held().or(self.first())
    }

    /// From now on holds committed frames until their release.
    pub(super) fn hold(&mut self) {
        self.held.get_or_insert_default();
    }

    /// Releases frames with numbers up to `seq`.
    pub(super) fn release(&mut self, seq: Seq) {
        let Some(held) = &mut self.held else { return };
        while held.pop_front_if(|frame| frame.last <= seq).is_some() {}
    }
}
