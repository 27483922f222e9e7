//! One round of garbage collection. It first reads all live fragments. The read counts the named
//! bytes of every segment, and marks the named parts of the segments that the round empties. Then
//! the round moves the marked parts.
//!
//! The caller must give it *all* fragments of all kept roots, also of those of snapshots, root
//! after root in order of age. A fragment that the engine cannot read ends the round, because the
//! counts are unknown then. The round does not read fragments again that a root shares with the
//! root before. So it has the names of two roots' fragments in memory, however many roots there
//! are. Later objects name only themselves and objects of these roots. The round may ignore them
//! while it empties no segment after the roots.

pub use super::output::{Emptied, Event, Object, Output};

use super::bundle::BundleId;
use super::emptying::Emptying;
use super::marks::Marks;
use super::scan::Scan;
use super::usage::Usage;
use crate::block::VolumeId;
use crate::store::map::MapError;
use crate::store::map::fragment::{Fragment, FragmentId};
use bytes::Bytes;

/// A round in progress.
#[derive(Debug)]
pub struct Round {
    scan: Scan,
    emptying: Emptying,
}

impl Round {
    /// Begins a round of a volume with the segments after `before` up to `last`. Bundles get names
    /// of `generation`, with numbers from `next` on. A bundle is full with `bundle_bytes` of
    /// records, at most [`super::bundle::MAX_RECORDS_BYTES`] less the largest object.
    #[must_use]
    pub fn new(
        volume: VolumeId,
        (generation, next): (u64, u64),
        bundle_bytes: u64,
        (before, last): (u64, u64),
        emptied: Vec<Emptied>,
    ) -> Round {
        let segments = emptied.iter().flat_map(|emptied| emptied.segments.iter().copied());
        let scan = Scan::new(Usage::new(before, last), Marks::new(segments));
        let emptying = Emptying::new(volume, (generation, next), bundle_bytes, emptied);
        Round { scan, emptying }
    }

    /// Whether the round wants the next root.
    #[must_use]
    pub fn wants_root(&self) -> bool {
        self.scan.wants_root()
    }

    /// Takes the fragments of the next kept root.
    pub fn handle_root(&mut self, fragments: impl IntoIterator<Item = Fragment>) {
        self.scan.handle_root(fragments);
    }

    /// The caller has given all kept roots.
    pub fn end_roots(&mut self) {
        self.scan.end_roots();
    }

    /// The next work for the caller.
    pub fn poll(&mut self) -> Option<Output> {
        if let Some(put) = self.emptying.poll_put() {
            return Some(put);
        }
        if let Some(fragment) = self.scan.poll() {
            return Some(Output::ReadFragment(fragment));
        }
        if self.scan.is_done() { self.emptying.poll_read() } else { None }
    }

    /// The next result.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.emptying.poll_event()
    }

    /// The number of the next bundle.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.emptying.next()
    }

    /// The named bytes of every segment, once the round has read all fragments.
    #[must_use]
    pub fn usage(&self) -> Option<&Usage> {
        self.scan.is_done().then_some(self.scan.usage())
    }

    /// Whether the round has ended.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.scan.is_done() && self.emptying.is_done()
    }

    /// Takes all bytes of a fragment.
    ///
    /// # Errors
    /// The damage of the fragment. The round is then useless, and the caller drops it.
    pub fn handle_fragment(&mut self, id: FragmentId, object: Bytes) -> Result<(), MapError> {
        self.scan.handle_fragment(id, object)
    }

    /// Takes all bytes of an object that the round empties, or the reason why there are none.
    pub fn handle_object(&mut self, object: Object, result: Result<Bytes, String>) {
        self.emptying.handle_object(self.scan.marks(), object, result);
    }

    /// A bundle exists now.
    pub fn handle_put(&mut self, id: BundleId) {
        self.emptying.handle_put(id);
    }

    /// Does some of the ready work. Returns whether more work is ready.
    ///
    /// # Errors
    /// A fragment is damaged. The round is then useless, and the caller drops it.
    pub fn step(&mut self) -> Result<bool, MapError> {
        if self.scan.step()? {
            return Ok(true);
        }
        Ok(self.scan.is_done() && self.emptying.step(self.scan.marks()))
    }
}
