//! The mode parameters that an initiator can change (SPC-5 §7.5, SBC-4 §6.5).

/// The parameters that can be changed. Each is off by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ModeParameters {
    /// WCE: writes need not be durable when they end.
    ///
    /// It is off until an initiator asks for it, also after every restart. An initiator logs in
    /// again by itself after a restart. A later flush would succeed, although the restart may have
    /// lost acknowledged writes.
    pub write_cache: bool,
    /// D_SENSE: sense data in descriptor format.
    pub descriptor_sense: bool,
    /// SWP: writes are refused.
    pub write_protect: bool,
    /// TAS: tasks that another nexus aborts get a response.
    pub task_aborted: bool,
}
