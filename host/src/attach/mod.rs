//! Attaching a volume: its journal first, then the store, then the engine.
//!
//! The host finds or makes the journal, with all its space, before it asks the store to attach. A
//! successful attach fences every other host off, so no step after it may fail that could have come
//! before. The host asks whether another host has the volume, or owes it writes, before it makes a
//! journal. If the store refuses the attach, the host removes a journal that it made for it.

mod journal;
mod keys;
mod refusals;
mod steps;
#[cfg(test)]
mod tests;

pub use journal::{OpenedJournal, discard, lengths, run_recovery};
pub use steps::{Attempt, OnEvent, attach};
