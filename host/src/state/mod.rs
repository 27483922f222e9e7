//! The state directory of a host: the host's identity, and its files for each volume.
//!
//! ```text
//! lock                        held while a host runs, with its process id
//! host.toml                   the identity drawn when the directory was made
//! stores.json                 where the stores are that this host has heard of; may be missing
//! attached.json               volumes that `longhaul attach` named; may be missing
//! encrypted/NAME.ID           that this volume was attached here encrypted; empty
//! volumes/ID/volume.json      what the journal beside it belongs to
//! volumes/ID/journal.NNNN     the journal's files, preallocated; none of these if it is on a
//!                             journal device ([`JournalDevice`])
//! volumes/ID/cache.0000      the read cache; may be missing
//! volumes/ID/zeroed.json      how many of these have been written once; may be missing
//! ```
//!
//! Promises: one process at a time; a description is replaced whole or not at all; a journal that
//! was created has its space. It does not know what is in a journal.

mod description;
mod dir;
mod journal_device;
mod journal_files;
#[cfg(test)]
mod tests;

pub use description::{
    Damaged, JournalShape, MIN_JOURNAL_BYTES, Survey, VolumeFile, parse_id, random, read_volume,
};
pub use dir::{KnownEncryption, StateDir, identity};
pub use journal_device::{JournalDevice, JournalSlot};
pub use journal_files::{cache_path, journal_path, open_journal, save_zeroed_files, zeroed_files};
