//! Finds the end of the log, although engines delete segments.
//!
//! A store is fenced because another one has taken the number after its last segment. Once engines
//! may delete segments, a number may be free again. Then a store without contact could continue a
//! log that others have continued long ago. Rules:
//!
//! - The first segment that an engine writes after another engine's segment says so in its token.
//!   No engine deletes it. So an engine that wrote the segment before it never gets the number.
//! - An engine that knows the last segment only from a read lists the roots after that. It does so
//!   before it believes that the log ends there. It does so again after it has put its own first
//!   segment, before that segment counts. An engine deletes a segment only if that one or a later
//!   one has a root. Only newer roots replace roots.
//!
//! An engine that finds a longer log begins anew with the newest root. It may have put a segment in
//! the place of a deleted one. No engine reads that segment: nothing names it, and replaying begins
//! after it.

use crate::store::catalog::RootName;
use crate::store::event::OpenError;
use crate::store::segment::{BEGINS, Segment};

/// The facts about the end of the log.
#[derive(Default)]
pub(super) struct LogEnd {
    /// This engine wrote the last applied segment.
    wrote_last: bool,
    /// The last segment, by the counter in its token, that this engine has built and may have given
    /// up. Any that it gave up may still arrive. So up to there the engine counts as another one.
    disowned: u64,
    /// The first one read that follows a segment of another engine, neither being this one's; 0 for
    /// none.
    begun: u64,
    /// The newest root when opening began.
    listed: Option<RootName>,
    ending: Option<Ending>,
}

/// The segments have ended, and a list of roots is in progress.
struct Ending {
    /// The last segment that the engine knew before.
    base: u64,
    applied: u64,
    outcome: Result<(), OpenError>,
}

impl LogEnd {
    /// The roots there were when opening began.
    pub fn opens(&mut self, newest: Option<RootName>) {
        *self = LogEnd { listed: newest, disowned: self.disowned, ..LogEnd::default() };
    }

    pub fn is_listing(&self) -> bool {
        self.ending.is_some()
    }

    /// Whether this engine wrote the last applied segment.
    pub fn wrote_last(&self) -> bool {
        self.wrote_last
    }

    /// The engine gives up its segments on their way, the last of them with that counter.
    pub fn disown(&mut self, counter: u64) {
        (self.disowned, self.wrote_last) = (counter, false);
    }

    /// The engine has applied a segment.
    pub fn moved(&mut self, incarnation: u128, segment: &Segment) {
        let token = segment.header.token;
        let own = token.incarnation == incarnation && token.counter & !BEGINS > self.disowned;
        if token.begins() && !own && !self.wrote_last && self.begun == 0 {
            self.begun = segment.header.number;
        }
        self.wrote_last = own;
    }

    /// No segment follows the last applied one, or no valid one: a list of roots begins. `base` is
    /// the last segment that the engine knew before.
    pub fn ends(&mut self, base: u64, applied: u64, outcome: Result<(), OpenError>) {
        self.ending = Some(Ending { base, applied, outcome });
    }

    /// Takes the newest root, after segment `reached`. Returns `None` if the engine did not ask for
    /// it.
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

/// The end of the log, by the list of roots.
pub(super) enum EndFound {
    /// The log has gone on far from here.
    WentOn,
    End {
        applied: u64,
        outcome: Result<(), OpenError>,
    },
}
