//! The present work of the congestion control, and its state. Times in seconds, windows in bytes,
//! rates in bytes a second.

/// The present work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Phase {
    /// Doubles every round trip until there is a queue.
    Startup(Option<Longer>),
    /// Holds the standing queue at the target.
    Steady,
    /// Sends little for an epoch to see whether the queue goes away.
    Test(Test),
    /// Sends more for an epoch to see whether more arrives.
    Probe(Probe),
    /// Follows CUBIC.
    Compete,
}

/// The facts before the control assumed a longer path. If the path is not longer, they hold again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Longer {
    /// Least round-trip time, in seconds.
    pub base: f64,
    /// The assumed delay of the path. While the sender sends more, it does not fall, unless it has
    /// a queue in it.
    pub least: f64,
    /// The window to go on with, and the largest rate of the last seconds.
    pub window: f64,
    pub most: f64,
}

/// Of a probe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Probe {
    /// The window that the rate has followed, and that rate.
    pub window: f64,
    pub rate: f64,
    /// The largest rate of the last seconds before.
    pub most: f64,
    /// Delay does not count: CUBIC goes on.
    pub competes: bool,
    /// The rate has followed at least once.
    pub has_followed: bool,
}

/// Of a test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Test {
    /// Somebody else was there.
    pub competed: bool,
    /// The window to go on with if somebody else is.
    pub before: f64,
    /// Rate and queue before.
    pub rate: f64,
    pub queue: f64,
    pub retests: u32,
}
