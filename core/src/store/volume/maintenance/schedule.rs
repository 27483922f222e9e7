//! Decides when to flush and merge the map: the requests, the finished work that no root has yet,
//! and the pauses.

use crate::block::Time;
use std::time::Duration;

/// Pause before the engine reads the fragments of a failed merge again.
const MERGE_PAUSE: Duration = Duration::from_secs(60);

/// The work on the map.
#[derive(Default)]
pub(super) struct Schedule {
    /// Write the table, however small it is.
    flush_wanted: bool,
    /// When it will be, if not before.
    flush_by: Option<Time>,
    /// A flush without a root, or a merge, exists.
    flush_unwritten: bool,
    merge_unwritten: bool,
    /// Work is ready.
    stepping: bool,
    /// A read for a merge has failed: no merge continues before then.
    paused: Option<Time>,
    failures: u32,
}

impl Schedule {
    /// Ends the work in progress without effect.
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

    /// An object has no use any more, and goes once a root says so: on a volume at rest, too.
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

    /// A root has all finished work.
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

    /// Gives up the failed merge.
    pub fn forgive(&mut self) {
        (self.failures, self.paused) = (0, None);
    }

    pub fn has_failed(&self) -> bool {
        self.failures > 0
    }

    /// A fragment of a merge is damaged. The engine reads it once more at once, and then after a
    /// pause. Returns the failures in a row.
    pub fn failed(&mut self, now: Time, flushing: bool) -> u32 {
        self.failures = self.failures.saturating_add(1);
        if self.failures > 1 {
            self.paused = Some(now.after(MERGE_PAUSE));
        }
        self.stepping = self.paused.is_none() || flushing;
        self.failures
    }
}
