//! The parameters of a session and its connections (RFC 7143 §13).

/// How initiators learn of tasks that other initiators ended (RFC 7143 §13.23).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskReporting {
    /// Initiators answer R2Ts of tasks that they end themselves. They are not told of others.
    #[default]
    Rfc3720,
    /// As before, and responses are ordered across connections. This target always orders them.
    ResponseFence,
    /// Initiators stop at once. Asynchronous messages tell them of tasks that others ended.
    FastAbort,
}

/// The negotiated parameters (RFC 7143 §13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// HeaderDigest is CRC32C.
    pub header_digest: bool,
    /// DataDigest is CRC32C.
    pub data_digest: bool,
    /// Longest data segment that the initiator takes, in bytes.
    pub initiator_data_segment: u32,
    /// Longest data segment that the target takes, in bytes.
    pub target_data_segment: u32,
    /// MaxBurstLength, in bytes.
    pub max_burst: u32,
    /// FirstBurstLength, in bytes.
    pub first_burst: u32,
    /// InitialR2T: unsolicited Data-Out PDUs are forbidden.
    pub initial_r2t: bool,
    /// ImmediateData: data may come with the command.
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
    /// iSCSIProtocolLevel (RFC 7144 §7.1.1): 2 if both sides offered it, else 1.
    pub protocol_level: u8,
}
