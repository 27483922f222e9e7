//! Frames about volumes that are not known, until the location has been looked at: another store may have created them.

use longhaul_base::limits::{MAX_STRANGE_BYTES, STRANGE_FRAME_BYTES};
use longhaul_core::wire::link::{Frame, Lane, ToStore};
use std::collections::HashMap;

/// Frames about volumes that are not known, until the location has been looked at.
#[derive(Default)]
pub(super) struct Strangers {
    frames: Vec<(u64, Lane, Frame<ToStore>)>,
    /// Bytes of each session, heads included.
    bytes: HashMap<u64, usize>,
}

impl Strangers {
    /// Keeps a frame; gives it back if its session has as many here as it may.
    pub(super) fn put(
        &mut self,
        session: u64,
        lane: Lane,
        frame: Frame<ToStore>,
    ) -> Option<Frame<ToStore>> {
        let bytes = self.bytes.entry(session).or_default();
        let more = frame.payload.len() + STRANGE_FRAME_BYTES;
        if *bytes + more > MAX_STRANGE_BYTES {
            return Some(frame);
        }
        *bytes += more;
        self.frames.push((session, lane, frame));
        None
    }

    pub(super) fn forget(&mut self, session: u64) {
        if self.bytes.remove(&session).is_some() {
            self.frames.retain(|(other, ..)| *other != session);
        }
    }

    pub(super) fn take(&mut self) -> Vec<(u64, Lane, Frame<ToStore>)> {
        self.bytes.clear();
        std::mem::take(&mut self.frames)
    }
}
