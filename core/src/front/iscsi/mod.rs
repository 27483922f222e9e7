//! The target side of iSCSI: bytes of connections in, block requests out, replies back as bytes.
//!
//! Promises: whatever initiators send, the target never panics, and holds no more memory than its
//! [`Config`] allows: for a session, `session_bytes` and one command's payload beyond, `first_burst` of
//! unsolicited data and one data segment for each of `commands`, and output of 1 MiB above that for
//! each connection; a payload also keeps alive the rest of the buffer it was split from. It stays in
//! step with each stream or closes the connection. What it does depends on the bytes, not on how they
//! were cut into reads.
//!
//! It knows nothing of sockets, nor of what is behind a volume; SCSI it leaves to
//! [`scsi`](crate::front::scsi), and that knows nothing of connections, numbers and buffers.
//!
//! Where things are: `framing` finds PDUs in the stream, `entry` and [`login`] take a connection to its
//! session, `session` puts requests in order, `commands` and `collect` move their data, `management`
//! ends them, `copy` moves data between volumes, `recovery` sends things again, `connection` numbers what goes out.
//!
//! Source: RFC 7143, and RFC 7144 for what Linux uses of it. What the standard leaves open and was
//! decided here is written down in `docs/iscsi.md`.

mod access;
mod chap;
mod collect;
mod commands;
mod connection;
mod copy;
mod counters;
mod entry;
mod failures;
mod framing;
mod keys;
pub mod login;
mod management;
pub mod name;
mod recovery;
mod session;
mod target;
mod tasks;
pub mod text;

#[cfg(test)]
mod tests;

pub use counters::Counters;
pub use target::Target;

use crate::block::Request;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;

// Tests of the transport need a device that waits and fails at will.
#[cfg(not(test))]
use crate::front::scsi::Device;
#[cfg(test)]
use tests::device::Device;

/// How names of targets begin; the volume's name follows.
pub const TARGET_PREFIX: &str = "iqn.2026-11.io.longhaul:";

/// The only portal group.
pub const PORTAL_GROUP: u16 = 1;

/// Settings of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Highest error recovery level offered, 0 to 2.
    pub error_recovery_level: u8,
    /// Most connections of a session.
    pub max_connections: u16,
    /// Longest data segment taken, in bytes (MaxRecvDataSegmentLength), 512 to 2^24 − 1.
    pub max_recv_data_segment: u32,
    /// Longest sequence of Data-In or solicited Data-Out, in bytes (MaxBurstLength).
    pub max_burst: u32,
    /// Most unsolicited data of a command, in bytes (FirstBurstLength).
    pub first_burst: u32,
    /// Most R2Ts of a task at a time.
    pub max_outstanding_r2t: u16,
    /// Commands a session may have outstanding: the window of CmdSN.
    pub commands: u32,
    /// Payload that one session may hold in unfinished commands, in bytes.
    pub session_bytes: u64,
    /// Silence after which a connection is pinged.
    pub ping_after: Duration,
    /// How long the answer may take before the connection is closed.
    pub ping_limit: Duration,
    /// How long a login may take.
    pub login_limit: Duration,
    /// Sessions of one initiator name.
    pub sessions_per_initiator: usize,
    /// MD5 and SHA-1 may be used for CHAP.
    pub weak_chap: bool,
    /// Where initiators find this target, `address:port`, for SendTargets; a portal that listens on
    /// all addresses is told by the address that the initiator connected to.
    pub portals: Vec<String>,
}

/// A CHAP secret; 12 bytes at least (RFC 7143 §12.1.3 asks for 96 bits where IPsec is not used).
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub Vec<u8>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Who may use what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// CHAP users and their secrets.
    pub users: BTreeMap<String, Secret>,
    /// What the target answers with where the initiator authenticates it.
    pub target_user: Option<(String, Secret)>,
    /// By volume name; a volume that is not named here may be used from loopback only.
    pub volumes: BTreeMap<String, Vec<Grant>>,
    /// Volumes whose initiators are sent elsewhere: address of the portal to go to.
    pub moved: BTreeMap<String, String>,
}

/// Who may use a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// iSCSI name of the initiator.
    pub initiator: String,
    /// CHAP user it has to authenticate as; `None`: needs none.
    pub user: Option<String>,
}

/// Where a connection comes from and goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Address and port of the initiator.
    pub address: String,
    /// Address and port it connected to.
    pub portal: String,
    /// Both are on this machine.
    pub loopback: bool,
}

/// Who logs in, and to what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// InitiatorName, normalised.
    pub initiator: String,
    /// InitiatorAlias, for people.
    pub alias: String,
    /// The initiator's part of the session's identity.
    pub isid: [u8; 6],
    /// The session to join, or 0 for a new one.
    pub tsih: u16,
    /// Connection within the session.
    pub cid: u16,
    /// Volume name; `None` for a discovery session.
    pub volume: Option<String>,
    /// CHAP user, if it authenticated.
    pub user: Option<String>,
}

/// How initiators learn of tasks that others ended (RFC 7143 §13.23).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskReporting {
    /// They answer R2Ts of the tasks they end themselves, and are told of nothing.
    #[default]
    Rfc3720,
    /// The same, and responses are ordered across connections, as they always are here.
    ResponseFence,
    /// They stop at once, and are told by asynchronous messages.
    FastAbort,
}

/// What was negotiated (RFC 7143 §13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// CRC32C over headers.
    pub header_digest: bool,
    /// CRC32C over data segments.
    pub data_digest: bool,
    /// Longest data segment the initiator takes, in bytes.
    pub initiator_data_segment: u32,
    /// Longest data segment the target takes, in bytes.
    pub target_data_segment: u32,
    /// MaxBurstLength, in bytes.
    pub max_burst: u32,
    /// FirstBurstLength, in bytes.
    pub first_burst: u32,
    /// Unsolicited Data-Out PDUs are forbidden.
    pub initial_r2t: bool,
    /// Data may come with the command.
    pub immediate_data: bool,
    /// MaxOutstandingR2T.
    pub max_outstanding_r2t: u16,
    /// MaxConnections.
    pub max_connections: u16,
    /// ErrorRecoveryLevel.
    pub error_recovery_level: u8,
    /// DefaultTime2Wait, in seconds.
    pub time2wait: u16,
    /// DefaultTime2Retain, in seconds.
    pub time2retain: u16,
    /// DataPDUInOrder.
    pub data_pdu_in_order: bool,
    /// DataSequenceInOrder.
    pub data_sequence_in_order: bool,
    /// TaskReporting.
    pub task_reporting: TaskReporting,
    /// iSCSIProtocolLevel (RFC 7144 §7.1.1): 1 unless both offered 2.
    pub protocol_level: u8,
}

/// A PDU of the target without its numbers, which the connection fills in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextPdu {
    /// The rest of the header.
    pub response: crate::wire::iscsi::Response,
    /// Data segment.
    pub text: Bytes,
}

/// Names a connection for as long as it exists; chosen by the shell, never used again.
pub type ConnectionId = u64;

/// Names a device for as long as it exists; never used again.
pub type DeviceId = u64;

/// What the shell has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Answer with [`Target::handle_opened`].
    Open {
        /// Name of the volume.
        volume: String,
    },
    /// Answer with [`Target::handle_listed`].
    List {
        /// Who asks.
        connection: ConnectionId,
    },
    /// Answer with [`Target::handle_reply`], in any order. In a [`Request::Stage`] the number of the
    /// object is 0: draw another one, and ask for the range with that.
    Request {
        /// Whose volume.
        device: DeviceId,
        /// Names the request in the answer.
        id: u64,
        /// Within the volume; a payload has the range's length.
        request: Request,
    },
    /// Keep this with the volume instead of what was saved before; answer with
    /// [`Target::handle_saved`].
    Save {
        /// Whose volume.
        device: DeviceId,
        /// Names the request in the answer.
        id: u64,
        /// Opaque; empty to forget.
        data: Bytes,
    },
    /// There is something to write: [`Target::poll_output`]. Not said again before that gave `None`.
    Output {
        /// To whom.
        connection: ConnectionId,
    },
    /// Write all output, then end the connection. The target has forgotten all about it but its
    /// output, and that with [`Target::handle_closed`].
    Close {
        /// Which.
        connection: ConnectionId,
        /// Why.
        reason: CloseReason,
    },
    /// A connection is in the full feature phase.
    LoggedIn {
        /// Which.
        connection: ConnectionId,
        /// Who, and to what; with the TSIH of the session.
        identity: Identity,
    },
    /// A session is over.
    LoggedOut {
        /// Who was logged in, and to what.
        identity: Identity,
    },
    /// A device is gone: its volume is not in use any more. There will be no more requests for it.
    Released {
        /// Which device.
        device: DeviceId,
        /// Of which volume.
        volume: String,
    },
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// As the initiator asked.
    #[error("the initiator logged out")]
    LoggedOut,
    /// A login was refused.
    #[error("login refused: {0}")]
    Refused(String),
    /// A login took too long.
    #[error("the login was not finished in time")]
    LoginLimit,
    /// The same initiator port logged in anew.
    #[error("the initiator logged in again and took this connection's place")]
    Reinstated,
    /// Pings were not answered.
    #[error("the initiator does not answer pings; check it and the network")]
    Silent,
    /// The initiator broke the protocol in a way that leaves no safe answer.
    #[error("protocol violation: {0}; check the initiator's iSCSI implementation")]
    Violation(&'static str),
    /// A cold reset, by this initiator or another one.
    #[error("the target was reset")]
    Reset,
    /// The initiator lost its right to the volume.
    #[error("the initiator may not use the volume any more")]
    Forbidden,
    /// The volume is not here any more.
    #[error("the volume is gone: {0}")]
    VolumeGone(String),
    /// The target is shutting down.
    #[error("the target is shutting down")]
    Shutdown,
}

/// Why a volume is not to be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// There is no such volume.
    #[error("no such volume: {0}")]
    NotFound(String),
    /// There is, but not now: the initiator may try again.
    #[error("the volume cannot be had now: {0}")]
    Unavailable(String),
}

/// What there is to know of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// Who, and to what.
    pub identity: Identity,
    /// What was negotiated.
    pub parameters: Parameters,
    /// Its connections.
    pub connections: Vec<ConnectionId>,
    /// Commands that have not ended.
    pub commands: usize,
    /// Payload it holds, in bytes.
    pub held_bytes: u64,
}
