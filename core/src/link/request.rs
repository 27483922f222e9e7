//! Messages that may go in datagrams, and their replies.

use super::limits::MAX_SECTORS;
use crate::wire::link::{RequestId, ToHost, ToStore};

/// Requests that fit a datagram: they change nothing, and their replies are small.
#[must_use]
pub fn fits_datagram(message: &ToStore) -> bool {
    match message {
        ToStore::Read { range, .. } | ToStore::EarlyRead { range, .. } => {
            (1..=MAX_SECTORS).contains(&range.sectors)
        }
        ToStore::Status { .. } => true,
        _ => false,
    }
}

/// The number of a datagram request.
pub(super) fn request_of(message: &mut ToStore) -> Option<&mut RequestId> {
    match message {
        ToStore::Read { request, .. }
        | ToStore::EarlyRead { request, .. }
        | ToStore::Status { request, .. } => Some(request),
        _ => None,
    }
}

/// The datagram request that a reply names.
pub(super) fn answered_by(message: &mut ToHost) -> Option<&mut RequestId> {
    match message {
        ToHost::Data { request, .. } | ToHost::Status { request, .. } => Some(request),
        _ => None,
    }
}
