//! Facts that every machine of a volume may read: only time and the shutdown change them.

use super::super::config::Config;
use super::super::map::pages::Pages;
use super::super::moves::Object;
use super::super::{VolumeSpec, catalog, segment};
use crate::block::{STAGED_BIT, Time, VolumeId};
use std::ops::DerefMut;

/// The facts of one engine.
pub(super) struct Facts {
    spec: VolumeSpec,
    /// The segment that took the snapshot, and the snapshot's identity, if the engine is of a
    /// snapshot.
    snapshot: Option<(u64, VolumeId)>,
    config: Config,
    incarnation: u128,
    now: Time,
    stopping: bool,
}

impl Facts {
    pub fn new(
        now: Time,
        spec: VolumeSpec,
        snapshot: Option<(u64, VolumeId)>,
        incarnation: u128,
        mut config: Config,
    ) -> Facts {
        config.segment_bytes = config.segment_bytes.clamp(1, segment::MAX_RECORDS_BYTES);
        let most = &mut config.in_flight.segments;
        *most = (*most).clamp(1, segment::IN_FLIGHT_MAX as usize);
        config.announce_in_segment_max =
            config.announce_in_segment_max.clamp(1, segment::MAX_ANNOUNCED);
        Facts { spec, snapshot, config, incarnation, now, stopping: false }
    }

    pub fn spec(&self) -> &VolumeSpec {
        &self.spec
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The cache of the map's pages.
    pub fn pages(&self) -> impl DerefMut<Target = Pages> + '_ {
        self.config.pages.lock()
    }

    pub fn incarnation(&self) -> u128 {
        self.incarnation
    }

    pub fn now(&self) -> Time {
        self.now
    }

    /// Time never goes back.
    pub fn pass(&mut self, now: Time) {
        self.now = now;
    }

    /// Whether the engine takes no new work.
    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// The identity that messages carry: the volume's, or the snapshot's.
    pub fn id(&self) -> VolumeId {
        self.snapshot.map_or(self.spec.id, |(_, id)| id)
    }

    /// Whether the engine is of a snapshot, and so writes nothing.
    pub fn is_readonly(&self) -> bool {
        self.snapshot.is_some()
    }

    /// The snapshot that the engine is of: the segment that took it, and its identity.
    pub fn snapshot(&self) -> Option<(u64, VolumeId)> {
        self.snapshot
    }

    pub fn object_key(&self, object: Object) -> String {
        match object {
            Object::Own(number) => self.data_key(number),
            Object::Bundle(id) => catalog::bundle_key(id),
        }
    }

    /// The key of a segment or of a staged object. A staged object of a parent has the same number
    /// there.
    pub fn data_key(&self, number: u64) -> String {
        let staged = number & STAGED_BIT != 0;
        let volume = if staged { self.spec.id } else { self.spec.owner_of(number) };
        catalog::data_key(volume, number)
    }
}
