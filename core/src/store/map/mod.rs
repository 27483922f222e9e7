//! The map: the places of a volume's sectors, in its segments or in objects with staged data.
//!
//! A [`Tree`] has the content of the newest segments in memory, and the rest in objects. It reads
//! pages of these when it needs them. It is a log-structured merge of extents: its memory does not
//! grow with the mapped sectors.
//!
//! | module | content |
//! |---|---|
//! | `place` | the place of a run of sectors |
//! | [`table`] | the entries of the newest segments, in memory |
//! | [`page`] | up to 16 KiB of entries, coded |
//! | [`fragment`] | an immutable object of pages, with their index |
//! | [`levels`] | the fragments of a map, and the choice of the next merge |
//! | [`merge`] | makes fragments from a table, and from fragments |
//! | [`pages`] | the cache of pages and indexes, for all volumes of a store |
//! | [`lookup`] | the entries of a map for a range |
//! | [`tree`] | a volume's map, with all of this work in progress |
//!
//! None of them does I/O or deletes anything. They name the objects to read and write, and the
//! fragments that a map no longer needs.

mod error;
pub mod fragment;
mod get;
pub mod levels;
mod limits;
pub mod lookup;
pub mod merge;
pub mod page;
pub mod pages;
mod place;
pub mod table;
pub mod tree;

pub use error::MapError;
pub use get::{Damage, FragmentPart, Get};
pub use limits::Limits;
pub use place::Place;
pub use tree::Tree;

#[cfg(test)]
mod random;
