//! Inputs for operators: limits on the rate of the line, and traces of the reads of clients.

use super::Volume;
use crate::block::Time;
use crate::host::readahead::Trace;

impl Volume {
    /// Limits the traffic on the line, in bytes a second: for the drain, and for read-ahead. Reads
    /// have no limit, nor has the part of the drain that a client waits for.
    pub fn handle_limits(&mut self, now: Time, drain: Option<u64>, readahead: Option<u64>) {
        self.input(now);
        self.drain.set_limit(now, drain);
        self.readahead.set_limit(now, readahead);
    }

    /// Records the sectors that clients read, in order of their first use, until
    /// [`Volume::handle_stop_recording`]. False if a recording is under way.
    pub fn handle_record(&mut self, now: Time) -> bool {
        self.input(now);
        self.readahead.record()
    }

    /// Ends the recording and gives its trace, if there was one.
    pub fn handle_stop_recording(&mut self, now: Time) -> Option<Trace> {
        self.input(now);
        self.readahead.stop_recording()
    }

    /// Reads a trace ahead, as fast as the line allows, and only as far ahead of the clients as
    /// memory allows. It ends with the trace, or when clients read something else.
    /// [`Event::TraceReplayed`](crate::host::Event::TraceReplayed) says how it ended, unless
    /// another replay takes its place.
    pub fn handle_replay(&mut self, now: Time, trace: &Trace) {
        self.input(now);
        self.readahead.start_replay(trace);
    }

    /// Ends a replay; false if there was none.
    pub fn handle_stop_replay(&mut self, now: Time) -> bool {
        self.input(now);
        self.readahead.stop_replay()
    }
}
