//! Work that this host does by itself, while no client has to wait for it. [`Repairs`] write back
//! ranges that the store has lost. [`Warming`] brings ranges into the cache. [`Rewriting`] encrypts
//! content under older keys anew.
//!
//! Each machine names the range to read next, takes the result, and names the range to write. None
//! of them knows the journal, the cache, the link or another one of them.

mod piece;
mod repair;
mod rewriting;
mod status;
mod warming;

pub(super) use piece::piece_sectors;
pub(super) use repair::Repairs;
pub(super) use rewriting::{RewriteFacts, RewriteWork, Rewriting, older_parts};
pub use status::{RewriteStatus, WarmState, WarmStatus};
pub use warming::WarmError;
pub(super) use warming::{Warming, WarmingFor};

use super::cache::Cache;
use crate::block::{Range, Time};

/// The work of this host itself.
#[derive(Debug, Default)]
pub(super) struct Background {
    repairs: Repairs,
    warming: Warming,
    rewriting: Rewriting,
}

impl Background {
    /// A client writes a range.
    pub(super) fn written(&mut self, range: Range) {
        self.repairs.written(range);
        self.rewriting.written(range);
    }

    /// Gives up on everything.
    pub(super) fn give_up(&mut self) {
        *self = Background::default();
    }

    pub(super) fn repairs(&mut self) -> &mut Repairs {
        &mut self.repairs
    }

    pub(super) fn warming(&mut self) -> &mut Warming {
        &mut self.warming
    }

    pub(super) fn rewriting(&mut self) -> &mut Rewriting {
        &mut self.rewriting
    }

    /// Whether the journal has to make room although no client waits for it.
    pub(super) fn wants_room(&self) -> bool {
        self.rewriting.wants_room()
    }

    /// The time when some work can continue, if none can now. `cache`: the cache is ready. `limit`:
    /// the time when the limit of read-ahead lets something through.
    pub(super) fn deadline(
        &self,
        now: Time,
        cache: Option<&Cache>,
        limit: Option<Time>,
    ) -> [Option<Time>; 3] {
        let warming = cache.and_then(|cache| self.warming.deadline(now, cache, limit));
        [self.repairs.deadline(), warming, self.rewriting.deadline(limit)]
    }

    pub(super) fn warm_status(&self) -> Option<WarmStatus> {
        self.warming.status()
    }

    pub(super) fn rewrite_status(&self, sectors: u64) -> Option<RewriteStatus> {
        self.rewriting.status(sectors)
    }
}
