//! The sessions of hosts, as the shell numbers them.

/// A connection of a host, numbered by the shell and never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// The session in which the shell itself asks an engine for something; no connection has it.
pub const SHELL_SESSION: SessionId = SessionId(u64::MAX);
