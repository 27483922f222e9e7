//! Compares the host's knowledge of the versions of an encrypted volume with the store's grant.
//!
//! The comparison runs between the attach and the first request.

mod compare;
mod learn;
mod statement;

pub use compare::{conclude, look, open};
pub use statement::put;
