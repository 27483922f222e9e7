//! Requests and events of a round of collecting.
//!
//! [`Round::handle_fragment`]: super::Round::handle_fragment
//! [`Round::handle_object`]: super::Round::handle_object
//! [`Round::handle_put`]: super::Round::handle_put

use super::bundle::{Bundle, BundleId};
use crate::store::map::fragment::Fragment;
use bytes::Bytes;

/// Reads of fragments at a time, and reads of objects to empty. Each takes memory of 4 MiB.
pub(super) const READS_MAX: usize = 2;

/// An object to empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Object {
    /// A segment, by its number.
    Segment(u64),
    /// A bundle of an earlier round.
    Bundle(BundleId),
}

/// An object to empty, and its segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emptied {
    /// The object.
    pub object: Object,
    /// The segments that are in it.
    pub segments: Vec<u64>,
}

/// A request.
#[derive(Clone, Debug)]
pub enum Output {
    /// Read all of it; for [`Round::handle_fragment`].
    ReadFragment(Fragment),
    /// Read all of it; for [`Round::handle_object`].
    ReadObject(Object),
    /// Create it; for [`Round::handle_put`].
    Put(BundleId, Vec<Bytes>),
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The rest of these segments is in a bundle now. Its put has succeeded.
    Moved {
        /// Which.
        bundle: Bundle,
        /// Of which segments; none of them is in more than one bundle.
        segments: Vec<u64>,
        /// Bytes of the object.
        bytes: u64,
    },
    /// Nothing names any part of these segments.
    Unnamed(Vec<u64>),
    /// Once the second map says so, nobody needs this object any more.
    Emptied(Object),
    /// The round could not empty it. It stays.
    Damaged(Object, String),
}
