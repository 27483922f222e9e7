//! The attached volumes by identity.

use crate::volume::Volume;
use longhaul_core::block::VolumeId;
use longhaul_core::wire::link::{Frame, ToHost};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The attached volumes. A fenced volume is one of them: its clients still have it.
#[derive(Default)]
pub(super) struct AttachedVolumes {
    by_id: RefCell<BTreeMap<VolumeId, Rc<Volume>>>,
}

impl AttachedVolumes {
    /// All of them.
    pub fn all(&self) -> Vec<Rc<Volume>> {
        self.by_id.borrow().values().cloned().collect()
    }

    /// One by identity.
    pub fn get(&self, id: VolumeId) -> Option<Rc<Volume>> {
        self.by_id.borrow().get(&id).cloned()
    }

    /// One by name.
    pub fn find(&self, name: &str) -> Option<Rc<Volume>> {
        self.by_id.borrow().values().find(|volume| volume.name() == name).cloned()
    }

    /// Adds one.
    pub fn insert(&self, volume: Rc<Volume>) {
        self.by_id.borrow_mut().insert(volume.attached().volume, volume);
    }

    /// Takes one away.
    pub fn remove(&self, id: VolumeId) {
        self.by_id.borrow_mut().remove(&id);
    }

    /// Lets go of the engines of a name, which are over.
    pub fn end(&self, name: &str) {
        self.by_id.borrow_mut().retain(|_, volume| {
            let ends = volume.name() == name;
            if ends {
                volume.end();
            }
            !ends
        });
    }

    /// Resumes those that have not begun to.
    pub fn resume(&self) {
        for volume in self.all() {
            volume.with(|now, engine| {
                if engine.is_link_down() {
                    engine.handle_link_up(now);
                }
            });
        }
    }

    /// The link went down.
    pub fn suspend(&self) {
        for volume in self.all() {
            volume.with(|now, engine| engine.handle_link_down(now));
        }
    }

    /// Hands frames to their volumes. Frames of one volume that follow each other make one turn of
    /// it.
    pub fn deliver(&self, frames: &mut Vec<(VolumeId, Frame<ToHost>)>) {
        let mut rest = std::mem::take(frames).into_iter().peekable();
        while let Some((id, first)) = rest.next() {
            let run = std::iter::once(first).chain(std::iter::from_fn(|| {
                rest.next_if(|(next, _)| *next == id).map(|(_, frame)| frame)
            }));
            let run: Vec<Frame<ToHost>> = run.collect();
            // A volume that is no longer attached wants nothing.
            if let Some(volume) = self.get(id) {
                volume.handle_messages(run.into_iter());
            }
        }
    }
}
