//! Wire formats: NBD, and the link protocol between host and store.

pub mod link;
pub mod nbd;
