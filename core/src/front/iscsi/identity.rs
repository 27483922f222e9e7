//! The two ends of connections and sessions.

use super::parameters::Parameters;

/// Names a connection as long as it exists. The shell chooses it, and never uses it again.
pub type ConnectionId = u64;

/// Names a device as long as it exists. It is never used again.
pub type DeviceId = u64;

/// The ends of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Address and port of the initiator.
    pub address: String,
    /// Address and port that it connected to.
    pub portal: String,
    /// Both ends are on this machine.
    pub loopback: bool,
}

/// The initiator and the volume of a login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// InitiatorName in normalized form.
    pub initiator: String,
    /// InitiatorAlias, for people.
    pub alias: String,
    /// ISID: the initiator's part of the session identifier.
    pub isid: [u8; 6],
    /// TSIH of the session to join, or 0 for a new one.
    pub tsih: u16,
    /// CID: the connection within the session.
    pub cid: u16,
    /// Volume name; `None` for a discovery session.
    pub volume: Option<String>,
    /// The CHAP user that the initiator authenticated as.
    pub user: Option<String>,
}

/// A description of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// The initiator and the volume.
    pub identity: Identity,
    /// The negotiated parameters.
    pub parameters: Parameters,
    /// Its connections.
    pub connections: Vec<ConnectionId>,
    /// Commands that have not ended.
    pub commands: usize,
    /// Payload that it holds, in bytes.
    pub held_bytes: u64,
}
