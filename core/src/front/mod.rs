//! Session machines, one per client protocol, and the disk that SCSI hosts see.
//!
//! `nbd` and `iscsi` have parallel interfaces: each has its own `Config`, `Event`, `CloseReason`
//! and `Session`. Users name them with the module. Nothing here knows the host or the store.

pub mod iscsi;
pub mod nbd;
mod output;
pub mod scsi;
