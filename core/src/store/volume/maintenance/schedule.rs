//! When the map is flushed and merged: what is wanted, what has been done and no root says, and pauses.

use crate::block::Time;
use std::time::Duration;

/// Pause before fragments that could not be merged are read again.
const MERGE_PAUSE: Duration = Duration::from_secs(60);

/// What is to be done to the map.
#[derive(Default)]
pub(super) struct Schedule {
    /// The table is to be written whatever it has.
    flush_wanted: bool,
    /// When it will be, if not before.
    flush_by: Option<Time>,
    /// There is a flush without a root, or a merge.
    flush_unwritten: bool,
    merge_unwritten: bool,
    /// There is work that waits for nothing.
    stepping: bool,
    /// Fragments to be merged could not be read: no merge goes on before then.
    paused: Option<Time>,
    failures: u32,
}

impl Schedule {
    /// What was begun comes to nothing.
    pub fn stop(&mut self) {
        (self.flush_unwritten, self.merge_unwritten, self.stepping) = (false, false, false);
        self.paused = None;
    }

    pub fn want_flush(&mut self, wanted: bool) {
        self.flush_wanted = wanted;
    }

    pub fn is_flush_wanted(&self) -> bool {
        self.flush_wanted
    }

    /// Something is not needed any more, which goes once a root says so: on a volume at rest, too.
    pub fn flush_by(&mut self, at: Time) {
        self.flush_by.get_or_insert(at);
    }

    pub fn flush_time(&self) -> Option<Time> {
        self.flush_by
    }

    /// Whether the time has come, once.
    pub fn take_flush_time(&mut self, now: Time) -> bool {
        self.flush_by.take_if(|at| *at <= now).is_some()
    }

    pub fn flushed(&mut self) {
        self.flush_unwritten = true;
    }

    pub fn merged(&mut self) {
        self.failures = 0;
        self.merge_unwritten = true;
    }

    /// A root says all that has been done.
    pub fn rooted(&mut self) {
        (self.flush_unwritten, self.merge_unwritten) = (false, false);
    }

    pub fn is_flush_unwritten(&self) -> bool {
        self.flush_unwritten
    }

    pub fn is_merge_unwritten(&self) -> bool {
        self.merge_unwritten
    }

    /// Whether there is work that waits for nothing.
    pub fn is_stepping(&self) -> bool {
        self.stepping
    }

    pub fn set_stepping(&mut self, stepping: bool) {
        self.stepping = stepping;
    }

    pub fn paused(&self) -> Option<Time> {
        self.paused
    }

    /// Goes on after a pause, if that is over.
    pub fn wake(&mut self, now: Time) {
        if self.paused.take_if(|until| *until <= now).is_some() {
            self.stepping = true;
        }
    }

    /// What could not be merged is not to be.
    pub fn forgive(&mut self) {
        (self.failures, self.paused) = (0, None);
    }

    pub fn has_failed(&self) -> bool {
        self.failures > 0
    }

    /// A fragment to be merged is damaged: it is read once more at once, and then after a pause. Gives the failures in a row.
    pub fn failed(&mut self, now: Time, flushing: bool) -> u32 {
        self.failures = self.failures.saturating_add(1);
        if self.failures > 1 {
            self.paused = Some(now.after(MERGE_PAUSE));
        }
        self.stepping = self.paused.is_none() || flushing;
        self.failures
    }
}
