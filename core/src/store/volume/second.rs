//! What the host that has the volume attached is told of a second place of its objects.

use super::super::segment::SegmentKind;
use super::Volume;
use crate::block::Time;
use crate::wire::link::{Lane, SecondState, ToHost};

/// What the shell knows of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Second {
    /// There is none.
    #[default]
    None,
    /// What is put gets there later.
    Behind,
    /// No put succeeds before it is there too, and all that was put before is there.
    InStep,
}

impl Volume {
    /// What it was told last.
    #[must_use]
    pub fn second(&self) -> Second {
        self.second
    }

    /// From now on it is so.
    pub fn handle_second(&mut self, now: Time, second: Second) {
        self.now = now;
        if std::mem::replace(&mut self.second, second) != second {
            self.tell_second();
        }
        self.advance();
    }

    /// Another store, which may still be at work, is not to go on with the log: the next number is taken, by a segment that says
    /// nothing new. Whoever has attached the volume keeps it.
    pub fn handle_fence(&mut self, now: Time) {
        self.now = now;
        self.fencing = true;
        self.advance();
    }

    /// Takes it, if that is to be done. A volume that nobody has ever attached has nothing to go on with.
    pub(super) fn put_fence(&mut self) -> bool {
        let puts = self.fencing && self.state.epoch() > 0 && !self.shutting_down;
        self.fencing &= self.state.epoch() > 0;
        if puts {
            self.put_segment(SegmentKind::Announce, Vec::new(), None);
        }
        puts
    }

    /// Tells whoever has the volume attached.
    pub(super) fn tell_second(&mut self) {
        let Some(holder) = self.holder.filter(|holder| holder.connected) else { return };
        let (volume, epoch) = (self.spec.id, self.state.epoch());
        let second = match self.second {
            Second::None => SecondState::None,
            Second::Behind => SecondState::Behind,
            Second::InStep => SecondState::InStep(self.state.committed),
        };
        self.send(holder.session, Lane::Control, ToHost::Second { volume, epoch, second });
    }
}
