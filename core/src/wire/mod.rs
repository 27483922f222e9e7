//! Bytes on the wire: checked views and encoders, without state.

pub mod nbd;
