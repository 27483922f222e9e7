//! Bytes on the wire: checked views and encoders, without state.

pub mod iscsi;
pub mod link;
pub mod nbd;
