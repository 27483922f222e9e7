//! What a round of collecting wants done, and what has come of it.
//!
//! [`Round::handle_fragment`]: super::Round::handle_fragment
//! [`Round::handle_object`]: super::Round::handle_object
//! [`Round::handle_put`]: super::Round::handle_put

use super::bundle::{Bundle, BundleId};
use crate::store::map::fragment::Fragment;
use bytes::Bytes;

/// Fragments read at a time, and objects that are emptied: memory of 4 MiB each.
pub(super) const READS_MAX: usize = 2;

/// An object that is being emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Object {
    /// A segment, by its number.
    Segment(u64),
    /// What earlier rounds have moved.
    Bundle(BundleId),
}

/// What is to be emptied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emptied {
    /// The object.
    pub object: Object,
    /// The segments that are in it.
    pub segments: Vec<u64>,
}

/// Something to be done.
#[derive(Clone, Debug)]
pub enum Output {
    /// Read all of it; for [`Round::handle_fragment`].
    ReadFragment(Fragment),
    /// Read all of it; for [`Round::handle_object`].
    ReadObject(Object),
    /// Create it; for [`Round::handle_put`].
    Put(BundleId, Vec<Bytes>),
}

/// What has come of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// What is left of these segments is in a bundle now, which is there.
    Moved {
        /// Which.
        bundle: Bundle,
        /// Of which segments; none of them is in more than one bundle.
        segments: Vec<u64>,
        /// Bytes of the object.
        bytes: u64,
    },
    /// Of these segments nothing is named.
    Unnamed(Vec<u64>),
    /// Once the second map says so, nobody needs this object any more.
    Emptied(Object),
    /// It cannot be emptied, and stays.
    Damaged(Object, String),
}
