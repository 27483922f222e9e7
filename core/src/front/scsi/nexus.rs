//! Names of nexuses and tasks, and the two ends of a nexus (SAM-5 §4.5).

/// Relative target port identifier of the only target port, and the tag of its port group.
pub const TARGET_PORT: u16 = 1;

/// Names an I_T nexus as long as it exists. The transport chooses it, and never uses it again.
pub type NexusId = u64;

/// Names a task as long as it exists. The transport chooses it, and never uses it again.
pub type TaskId = u64;

/// The two ends of a nexus.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nexus {
    /// Initiator port name: iSCSI name, `,i,0x`, and the ISID in hexadecimal (SPC-5 §7.6.4.6).
    pub initiator_port: String,
    /// Relative target port identifier.
    pub relative_port: u16,
}
