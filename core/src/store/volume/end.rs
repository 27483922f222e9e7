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
//! Who finds that the log has gone on begins anew with the newest root. What it may have put in the place of a
//! deleted segment is read by nobody: nothing names it, and replaying begins after it.

use super::super::catalog::RootName;
use super::super::gc::moved::Moved;
use super::super::map::levels::Levels;
use super::super::map::table::Table;
use super::super::object::{ObjectMeta, ObjectOperation};
use super::super::segment::{BEGINS, Segment};
use super::super::{Event, OpenError, catalog};
use super::opening::Opening;
use super::readonly::Only;
use super::rollback::Rolling;
use super::upkeep::Upkeep;
use super::{Phase, Purpose, Volume};
use crate::wire::link::ReadError;

/// What is known of the end of the log.
#[derive(Default)]
pub(super) struct End {
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

impl End {
    /// The roots there were when opening began.
    pub fn opens(&mut self, newest: Option<RootName>) {
        *self = End { listed: newest, ..End::default() };
    }

    pub fn is_listing(&self) -> bool {
        self.ending.is_some()
    }
}

impl Volume {
    /// A segment has been applied.
    pub(super) fn end_moved(&mut self, segment: &Segment) {
        let token = segment.header.token;
        let own = token.incarnation == self.incarnation;
        if token.begins() && !own && !self.end.wrote_last && self.end.begun == 0 {
            self.end.begun = segment.header.number;
        }
        self.end.wrote_last = own;
    }

    /// The counter of the next segment.
    pub(super) fn next_counter(&mut self) -> u64 {
        self.counter += 1;
        if self.end.wrote_last { self.counter } else { self.counter | BEGINS }
    }

    /// No segment follows the last one applied, or none that can.
    pub(super) fn replay_ended(&mut self, applied: u64, outcome: Result<(), OpenError>) {
        if applied == 0 && self.end.wrote_last && outcome.is_ok() {
            return self.log_ended(applied);
        }
        let base = self.state.number - applied.min(self.state.number);
        self.end.ending = Some(Ending { base, applied, outcome });
        self.list_end(Purpose::ListEnd);
    }

    fn list_end(&mut self, purpose: Purpose) {
        let prefix = catalog::root_prefix(self.spec.id);
        self.book.issue(purpose, ObjectOperation::List { prefix });
    }

    pub(super) fn end_listed(&mut self, list: &[ObjectMeta]) {
        let Some(Ending { base, applied, outcome }) = self.end.ending.take() else { return };
        let newest = self.roots_in(list).pop();
        let opening = matches!(self.phase, Phase::Opening(_));
        let (begun, reached) = (std::mem::take(&mut self.end.begun), self.state.number);
        let went_on = newest.is_some_and(|newest| {
            let doubtful = newest.segment > reached
                || (1..=newest.segment).contains(&begun)
                || outcome.is_err();
            newest.segment > base && doubtful && (!opening || Some(newest) > self.end.listed)
        });
        if went_on {
            return self.restart();
        }
        match outcome {
            Ok(()) if opening && self.is_readonly() => self.fail(OpenError::NoSnapshot),
            Ok(()) => self.log_ended(applied),
            Err(error) => self.fail(error),
        }
    }

    /// Sees to it that the first segment of this engine's is the next one of the log.
    pub(super) fn confirm_put(&mut self, number: u64) {
        self.list_end(Purpose::ConfirmPut(number));
    }

    pub(super) fn put_confirmed(&mut self, number: u64, list: &[ObjectMeta]) {
        if self.put.as_ref().is_none_or(|put| put.segment.header.number != number) {
            return;
        }
        if self.roots_in(list).iter().all(|root| root.segment < number) {
            return self.segment_confirmed();
        }
        self.restart();
    }

    /// The log has gone on far from here: what is known of it is not worth anything.
    pub(super) fn restart(&mut self) {
        self.event(Event::LeftBehind { segment: self.state.number });
        // It may have its effect: then it is read like any other, or by nobody.
        self.lost_put();
        self.drop_holder();
        for read in self.reads.abandon() {
            self.read_failed(read, ReadError::NotAttached);
        }
        self.refuse_walks();
        // Nobody waits for anything else that is under way; reads are counted until they come.
        self.book.retain(|purpose| {
            matches!(
                purpose,
                Purpose::PutStaged(_)
                    | Purpose::PutSize { .. }
                    | Purpose::Delete
                    | Purpose::Fetch { .. }
                    | Purpose::ReadPage(..)
            )
        });
        self.upkeep = Upkeep::default();
        self.rolling = Rolling::default();
        self.only = self.only.take().map(|only| Only::new(only.segment, only.id));
        self.adopt_moved(Moved::default());
        {
            let pages = &mut *self.config.pages.lock();
            self.tree.adopt(Levels::default(), 0, pages);
            self.tree.load(Table::new(), pages);
        }
        self.must_reach = None;
        self.announce_unsaved = None;
        self.probed = !self.queue.is_empty();
        self.phase = Phase::Opening(Opening::Roots);
        self.list_roots();
    }
}
