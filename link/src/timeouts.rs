//! How long the link waits, and for what.

use std::time::Duration;

/// How often something is sent when there is nothing to say.
pub const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// How long a silent peer counts as alive.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long each step of setting up a connection may take at either side: a peer that has answered is there, and may be
/// busy.
pub const SETUP_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an address may leave a connection attempt unanswered. What follows the answer has [`SETUP_TIMEOUT`].
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
