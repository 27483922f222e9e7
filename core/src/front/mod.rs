//! Session machines, one per client protocol, and the disk that SCSI hosts see.

pub mod iscsi;
pub mod nbd;
mod output;
pub mod scsi;
