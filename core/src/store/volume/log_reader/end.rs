//! Where the log ends, although segments are deleted.
//!
//! What fences a store is that the number after its last segment is taken. Once segments may be deleted a number may be free
//! again, and a store that had been out of touch could go on with a log that has long gone on without it. Rules:
//!
//! - the first segment that an engine writes after one that another engine wrote says so in its token, and is never deleted:
//!   whoever wrote the segment before it itself is refused its number for ever;
//! - whoever has the last segment from reading lists the roots after that: before it believes that the log ends there, and
//!   when it has put the first segment of its own, before it counts. A segment was deleted only if a root is of that one or
//!   a later one, and roots are replaced by newer ones only.
//!
//! An engine that finds that the log has gone on begins anew with the newest root. Nobody reads what it may have put in the
//! place of a deleted segment: nothing names it, and replaying begins after it.

use crate::store::catalog::RootName;
use crate::store::event::OpenError;
use crate::store::segment::Segment;

/// What is known of the end of the log.
#[derive(Default)]
pub(super) struct LogEnd {
    /// The last segment applied was written by this engine.
    wrote_last: bool,
    /// The first one read that follows a segment of another engine, neither being this one's; 0 for none.
    begun: u64,
    /// The newest root when opening began.
    listed: Option<RootName>,
    ending: Option<Ending>,
}

/// The segments have come to an end, and roots are being listed.
struct Ending {
    /// The last segment that was known before.
    base: u64,
    applied: u64,
    outcome: Result<(), OpenError>,
}

impl LogEnd {
    /// The roots there were when opening began.
    pub fn opens(&mut self, newest: Option<RootName>) {
        *self = LogEnd { listed: newest, ..LogEnd::default() };
    }

    pub fn is_listing(&self) -> bool {
        self.ending.is_some()
    }

    /// Whether the last segment applied was written by this engine.
    pub fn wrote_last(&self) -> bool {
        self.wrote_last
    }

    /// A segment has been applied.
    pub fn moved(&mut self, incarnation: u128, segment: &Segment) {
        let token = segment.header.token;
        let own = token.incarnation == incarnation;
        if token.begins() && !own && !self.wrote_last && self.begun == 0 {
            self.begun = segment.header.number;
        }
        self.wrote_last = own;
    }

    /// No segment follows the last one applied, `reached`, or none that can: roots are being listed.
    pub fn ends(&mut self, reached: u64, applied: u64, outcome: Result<(), OpenError>) {
        let base = reached - applied.min(reached);
        self.ending = Some(Ending { base, applied, outcome });
    }

    /// Takes the newest root, after segment `reached` was applied. Gives nothing if nobody asked for it.
    pub fn listed(
        &mut self,
        newest: Option<RootName>,
        reached: u64,
        opening: bool,
    ) -> Option<EndFound> {
        let Ending { base, applied, outcome } = self.ending.take()?;
        let begun = std::mem::take(&mut self.begun);
        let went_on = newest.is_some_and(|newest| {
            let doubtful = newest.segment > reached
                || (1..=newest.segment).contains(&begun)
                || outcome.is_err();
            newest.segment > base && doubtful && (!opening || Some(newest) > self.listed)
        });
        Some(if went_on { EndFound::WentOn } else { EndFound::End { applied, outcome } })
    }
}

/// What the list of roots says of the end of the log.
pub(super) enum EndFound {
    /// The log has gone on far from here.
    WentOn,
    End {
        applied: u64,
        outcome: Result<(), OpenError>,
    },
}
