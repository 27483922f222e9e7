//! Where the work of a host itself stands, for operators.

/// Where warming by command stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarmState {
    /// It goes on.
    Running,
    /// It came to its end.
    Done,
    /// It was stopped.
    Stopped,
}

/// Warming by command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WarmStatus {
    /// Counts the commands since the attach.
    pub number: u64,
    /// Where it stands.
    pub state: WarmState,
    /// Bytes in its ranges.
    pub total_bytes: u64,
    /// Bytes of these that are in the cache by now, or were already.
    pub done_bytes: u64,
    /// Bytes that the store could not give.
    pub failed_bytes: u64,
}

/// Where encrypting anew stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RewriteStatus {
    /// Number of the key that all data should have in the end.
    pub key: u32,
    /// Whether everything is, and the store has committed it.
    pub done: bool,
    /// Bytes of the volume.
    pub total_bytes: u64,
    /// Bytes of it that have been looked at, in this pass.
    pub done_bytes: u64,
    /// Bytes that were written again, in this pass.
    pub rewritten_bytes: u64,
    /// Bytes that the store could not give, in this pass: there will be another one.
    pub failed_bytes: u64,
}
