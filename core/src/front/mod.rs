//! Session machines, one per client protocol.

pub mod nbd;
