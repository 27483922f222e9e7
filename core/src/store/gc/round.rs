//! One round of collecting: a reading of all live fragments, which counts what is named of every segment and marks what is
//! named of those that are being emptied, and then the moves of what was marked.
//!
//! It must be given *all* fragments of all roots that are kept, those of snapshots among them, root after root in order
//! of age; a fragment that cannot be read ends the round, since nothing is known then. What a root shares with the one
//! before is not read again, so a round has the names of two roots' fragments in memory, however many roots there are. What was
//! written after those roots names nothing but itself and what they name, so it need not be looked at, as long as
//! no segment after them is emptied.

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

/// A round under way.
#[derive(Debug)]
pub struct Round {
    scan: Scan,
    emptying: Emptying,
}

impl Round {
    /// Of a volume with the segments after `before` up to `last`. Bundles get names of `generation`, numbered from `next` on, and are
    /// full with `bundle_bytes` of records, at most [`super::bundle::MAX_RECORDS_BYTES`] less the largest object.
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

    /// Whether the next root is to be given.
    #[must_use]
    pub fn wants_root(&self) -> bool {
        self.scan.wants_root()
    }

    /// The fragments of the next root that is kept.
    pub fn handle_root(&mut self, fragments: impl IntoIterator<Item = Fragment>) {
        self.scan.handle_root(fragments);
    }

    /// All roots that are kept have been given.
    pub fn end_roots(&mut self) {
        self.scan.end_roots();
    }

    /// The next thing to be done.
    pub fn poll(&mut self) -> Option<Output> {
        if let Some(put) = self.emptying.poll_put() {
            return Some(put);
        }
        if let Some(fragment) = self.scan.poll() {
            return Some(Output::ReadFragment(fragment));
        }
        if self.scan.is_done() { self.emptying.poll_read() } else { None }
    }

    /// What came of it.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.emptying.poll_event()
    }

    /// The number of the next bundle.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.emptying.next()
    }

    /// What is named of every segment, once all fragments have been read.
    #[must_use]
    pub fn usage(&self) -> Option<&Usage> {
        self.scan.is_done().then_some(self.scan.usage())
    }

    /// Whether all is done.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.scan.is_done() && self.emptying.is_done()
    }

    /// All bytes of a fragment.
    ///
    /// # Errors
    /// What is wrong with it; then the round has come to nothing, and is to be dropped.
    pub fn handle_fragment(&mut self, id: FragmentId, object: Bytes) -> Result<(), MapError> {
        self.scan.handle_fragment(id, object)
    }

    /// All bytes of an object that is being emptied, or why there are none.
    pub fn handle_object(&mut self, object: Object, result: Result<Bytes, String>) {
        self.emptying.handle_object(self.scan.marks(), object, result);
    }

    /// A bundle is there.
    pub fn handle_put(&mut self, id: BundleId) {
        self.emptying.handle_put(id);
    }

    /// Does some of the work that waits for nothing; says whether there is more.
    ///
    /// # Errors
    /// A fragment is damaged; then the round has come to nothing, and is to be dropped.
    pub fn step(&mut self) -> Result<bool, MapError> {
        if self.scan.step()? {
            return Ok(true);
        }
        Ok(self.scan.is_done() && self.emptying.step(self.scan.marks()))
    }
}
