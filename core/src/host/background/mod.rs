//! Work that this host does by itself, while no client has to wait for it: it writes back ranges
//! that the store has lost ([`Repairs`]), brings ranges into the cache ([`Warming`]), and encrypts
//! content under older keys anew ([`Rewriting`]).
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
    /// A range is written.
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

    /// When something can go on that cannot now. `cache` is in use; `limit` is when the
    /// limit of reading ahead lets something through.
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
