//! Tests of the target, with an initiator that checks every number.

mod abuse;
mod basic;
mod counters;
pub(super) mod device;
mod driver;
mod guesses;
mod management;
mod moved;
mod random;
mod recovery;
mod sessions;
