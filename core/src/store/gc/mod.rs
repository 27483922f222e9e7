//! Giving space back: what of which segments is still named, which segments to empty, and moving
//! what is left of them into [bundles](bundle).
//!
//! Maps are not touched: a record's name, its segment and offset, stays its name, and a second map
//! says which segments have moved into which bundle. What is live is what an entry of a live
//! fragment names, so a [`Round`] reads all fragments of all roots that are kept, each once. It
//! deletes nothing; it says what nobody needs any more.
//!
//! | module | is |
//! |---|---|
//! | [`bundle`] | an object with what was moved |
//! | [`moved`] | the second map: which segment has moved where |
//! | [`usage`] | how much of each segment is named, and which to empty |
//! | [`marks`] | what is named of those that are being emptied |
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
