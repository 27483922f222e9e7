//! How long the link waits, and for what.

use std::time::Duration;

/// The pause after which an idle side sends something.
pub const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// How long a silent peer counts as alive.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long each step of setting up a connection may take at either side: a peer that has answered
/// is there, and may be busy.
pub const SETUP_TIMEOUT: Duration = Duration::from_secs(10);
/// The time that an address has for its first answer to a connection attempt. [`SETUP_TIMEOUT`]
/// limits the rest.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
