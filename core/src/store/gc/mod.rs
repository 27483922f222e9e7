//! Garbage collection: counts the named parts of each segment, chooses the segments to empty, and
//! moves the rest of these into [bundles](bundle).
//!
//! Garbage collection changes no map. The name of a record stays its segment and offset, and a
//! second map tells which segments have moved into which bundle. An entry of a live fragment keeps
//! the parts that it names alive. So a [`Round`] reads all fragments of all kept roots, each once.
//! It deletes nothing; it names the objects that no root needs any more.
//!
//! | module | content |
//! |---|---|
//! | [`bundle`] | an object with moved records |
//! | [`moved`] | the second map: the bundles of the moved segments |
//! | [`usage`] | the named bytes of each segment, and the choice of the segments to empty |
//! | [`marks`] | the named parts of the segments that a round empties |
//! | `scan` | one reading of all fragments |
//! | `emptying` | the moves |
//! | [`round`] | the two, one after the other |

pub mod bundle;
mod emptying;
pub mod marks;
pub mod moved;
mod output;
pub mod round;
mod scan;
pub mod usage;

pub use round::Round;

#[cfg(test)]
mod random;
