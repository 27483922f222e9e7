//! Routing of reads of the cache, and inputs for the cache.

use super::Volume;
use crate::block::{Range, ReadPiece, Time};
use crate::host::background::{Repairs, WarmError};
use crate::host::cache::{Cache, Pins, Reader};
use crate::host::caching::CacheRead;
use crate::host::io::{DiskOperation, DiskResult};
use crate::host::reads::ReadSlot;
use crate::host::requests::Purpose;

impl Volume {
    // --- inputs and outputs ---

    /// Gives the volume a read cache, before its first request. The volume uses the old content of
    /// the cache after the store has listed the writes since. If the volume is encrypted, the cache
    /// is sealed, and is of use with a [version table](Volume::set_versions) only.
    /// [`Volume::handle_pins`] sets the pinned ranges, here and after each change.
    pub fn set_cache(&mut self, now: Time, cache: Cache) {
        self.input(now);
        let keys = self.keyed.packing().keys().cloned();
        if let Some(since) = self.caching.set_cache(&self.context, keys, &self.log, cache) {
            self.ask(Range::new(0, 0), Purpose::Changes(since), false);
        }
    }

    /// Takes the outcome of an operation on the cache file.
    pub fn handle_cache(&mut self, now: Time, result: DiskResult) {
        self.input(now);
        self.cache_done(result);
    }

    /// The next operation on the cache file. Carry out writes and syncs in the order given. Their
    /// order relative to those of the journal is free.
    pub fn poll_cache(&mut self) -> Option<DiskOperation> {
        self.settle();
        self.caching.poll_disk()
    }

    /// Replaces all pinned ranges, as far as the cache allows
    /// ([`CacheStatus::pinned_most_bytes`](crate::host::cache::CacheStatus::pinned_most_bytes)).
    /// The cache keeps the data of these ranges that clients read and write. The volume reads the
    /// missing ranges ahead. False if there is no cache.
    pub fn handle_pins(&mut self, now: Time, pins: Pins) -> bool {
        self.input(now);
        self.background.warming().pins_changed();
        self.caching.set_pins(pins)
    }

    /// The pinned ranges, if there is a cache.
    #[must_use]
    pub fn pins(&self) -> Option<&Pins> {
        Some(self.caching.get()?.pins())
    }

    /// Brings ranges into the cache, as fast as the line allows and behind all reads of clients.
    /// They may replace any other content there. [`Status::warming`](crate::host::Status::warming)
    /// shows the progress, and [`Event::Warmed`](crate::host::Event::Warmed) reports the end.
    ///
    /// # Errors
    /// Why that is not possible.
    pub fn handle_warm(&mut self, now: Time, ranges: &[Range]) -> Result<(), WarmError> {
        self.input(now);
        self.background.warming().begin(self.caching.get(), ranges)
    }

    /// Ends warming by command; false if there was none.
    pub fn handle_stop_warming(&mut self, now: Time) -> bool {
        self.input(now);
        self.background.warming().stop()
    }

    // --- routing ---

    /// Takes the outcome of an operation on the cache file.
    pub(super) fn cache_done(&mut self, result: DiskResult) {
        let now = self.context.now;
        match self.caching.handle_disk(now, result, &mut self.keyed, &mut self.out) {
            CacheRead::Waits => {}
            CacheRead::None => {
                self.caching.offer_committed(&self.context, &self.log, &mut self.keyed);
            }
            CacheRead::Done(reader, data) if Repairs::reads(reader) => {
                self.repair_read(reader, Some(data));
            }
            CacheRead::Done(Reader { read, slot }, data) => {
                self.fill(read, slot, Ok(ReadSlot::One(ReadPiece::Data(data))));
            }
            CacheRead::Lost(parts) => {
                for (reader, range) in parts {
                    self.cache_lacks(reader, range);
                }
            }
        }
    }

    /// The cache lacks a range that looked like a hit.
    fn cache_lacks(&mut self, reader: Reader, range: Range) {
        if Repairs::reads(reader) {
            return self.repair_read(reader, None);
        }
        let Reader { read, slot } = reader;
        let counters = self.out.count();
        counters.cache_hit_bytes = counters.cache_hit_bytes.saturating_sub(range.bytes());
        if self.reads.waits(read) {
            counters.store_read_bytes += range.bytes();
            self.ask(range, Purpose::Read { read, slot }, false);
        }
    }
}
