//! What the store says of the space that there is for a volume.
//!
//! While there is none, new data is refused as a thin provisioned disk does it. What was acknowledged before is shipped, and
//! everything else goes on. The store says it again every now and then, and when there is room; after a link is back it begins
//! anew.

use super::io::Event;
use super::volume::Volume;
use crate::block::{BlockError, Request};

impl Volume {
    /// The store says whether there is room.
    pub(super) fn told_room(&mut self, room: bool) {
        if self.full == room {
            self.full = !room;
            self.out.event(Event::Room { room });
        }
    }

    /// Why a request is not taken for want of space.
    pub(super) fn want_of_space(&self, request: &Request) -> Option<BlockError> {
        let takes_some = match request {
            Request::Write { .. } | Request::WriteStaged { .. } => true,
            Request::Zero { allocate, .. } => *allocate,
            Request::Read(_)
            | Request::Flush
            | Request::Discard { .. }
            | Request::Prefetch(_)
            | Request::Status(_)
            | Request::Watch(_)
            | Request::Unwatch(_)
            | Request::Stage { .. } => false,
        };
        (self.full && takes_some).then_some(BlockError::NoSpace)
    }
}
