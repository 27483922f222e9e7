//! Settings of a target.

use std::time::Duration;

/// The tag of the only portal group.
pub const PORTAL_GROUP: u16 = crate::front::scsi::TARGET_PORT;

/// Settings of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Highest error recovery level offered, 0 to 2.
    pub error_recovery_level: u8,
    /// Most connections of a session.
    pub max_connections: u16,
    /// Longest data segment that the target takes, in bytes (MaxRecvDataSegmentLength), 512 to 2^24
    /// − 1.
    pub max_recv_data_segment: u32,
    /// Longest sequence of Data-In or solicited Data-Out, in bytes (MaxBurstLength).
    pub max_burst: u32,
    /// Most unsolicited data of a command, in bytes (FirstBurstLength).
    pub first_burst: u32,
    /// Most R2Ts of a task at a time (MaxOutstandingR2T).
    pub max_outstanding_r2t: u16,
    /// Commands that a session may have outstanding: the size of its CmdSN window.
    pub commands: u32,
    /// Payload that a session may hold in unfinished commands, in bytes.
    pub session_bytes: u64,
    /// Time without a PDU after which the target pings.
    pub ping_after: Duration,
    /// Time for the answer to a ping. After it the connection is closed.
    pub ping_limit: Duration,
    /// Time for a login.
    pub login_limit: Duration,
    /// Most sessions of one initiator name.
    pub sessions_per_initiator: usize,
    /// Allow MD5 and SHA-1 for CHAP.
    pub weak_chap: bool,
    /// Other targets of this host serve volumes behind the same portals. So the target asks for
    /// each login where its volume is.
    pub has_others: bool,
    /// Addresses of this target for SendTargets, as `address:port`. A portal that listens on all
    /// addresses is reported with the address that the initiator connected to.
    pub portals: Vec<String>,
}

/// A CHAP secret of at least 12 bytes. RFC 7143 §12.1.3 asks for 96 bits if IPsec is not used.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub Vec<u8>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}
