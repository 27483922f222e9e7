//! Routes: reads that go from their session to the engine, and not through the actor.
//!
//! The stages of the pipeline have decided about the first such read of a session. As long as they
//! would decide the same, the next ones need no decision. A change of that removes the route, and
//! the next read goes to the actor again. So does a read of a closed engine.

use super::engine_task::{EngineTask, Input, SentFrame};
use super::meter::Meter;
use longhaul_core::block::VolumeId;
use longhaul_core::wire::link::{Frame, Lane, ToStore};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// See the module.
#[derive(Clone, Default)]
pub(super) struct Routes(Arc<RwLock<Table>>);

/// The engines by session and volume.
type Table = HashMap<(u64, VolumeId), Arc<EngineTask>>;

/// The volume that a message reads, if such a message may have a route.
pub(super) fn reads(message: &ToStore) -> Option<VolumeId> {
    match message {
        // Any store may answer epoch 0.
        ToStore::Read { volume, epoch, .. } if *epoch != 0 => Some(*volume),
        _ => None,
    }
}

impl Routes {
    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a frame to its engine, or gives it back.
    pub fn pass(
        &self,
        meter: &Meter,
        session: u64,
        lane: Lane,
        frame: Frame<ToStore>,
    ) -> Option<Frame<ToStore>> {
        let Some(volume) = reads(&frame.message) else { return Some(frame) };
        let engine = self.read().get(&(session, volume)).cloned();
        let Some(engine) = engine else { return Some(frame) };
        match engine.push(Input::Frame(SentFrame { session, lane, frame })) {
            Some(Input::Frame(SentFrame { frame, .. })) => return Some(frame),
            Some(Input::Object(_)) | None => {}
        }
        meter.counts().frames += 1;
        None
    }

    /// Reads of a volume by a session go to that engine from now on.
    pub fn insert(&self, session: u64, engine: &Arc<EngineTask>) {
        self.write().insert((session, engine.id), engine.clone());
    }

    /// A session is over.
    pub fn forget_session(&self, session: u64) {
        self.write().retain(|(of, _), _| *of != session);
    }

    /// An engine is closed.
    pub fn forget_volume(&self, volume: VolumeId) {
        self.write().retain(|(_, of), _| *of != volume);
    }

    /// The stages may decide otherwise from now on.
    pub fn clear(&self) {
        self.write().clear();
    }
}
