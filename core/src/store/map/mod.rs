//! Which sectors of a volume lie where: in its segments, or in objects staged for it.
//!
//! A [`Tree`] has in memory what the newest segments say, and the rest in objects, of which it reads pages
//! when it needs them: a log-structured merge of extents, whose memory does not grow with what is mapped.
//!
//! | module | is |
//! |---|---|
//! | `place` | where a run of sectors lies |
//! | [`table`] | what the newest segments say, in memory |
//! | [`page`] | up to 16 KiB of entries, coded |
//! | [`fragment`] | an immutable object of pages, with their index |
//! | [`levels`] | the fragments of a map, and which to merge next |
//! | [`merge`] | makes fragments of a table, and of fragments |
//! | [`pages`] | the cache of pages and indexes, for all volumes of a store |
//! | [`lookup`] | what a map says about a range |
//! | [`tree`] | a volume's map, with all of that going on |
//!
//! None of them does I/O or deletes anything: they say what is to be read and written, and which
//! fragments a map no longer needs.

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
