//! The side of an operation, home or replica, and the stream that its object belongs to.

use super::super::catalog;
use crate::block::VolumeId;

/// The side that executes an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// The location that the stores serve the volumes from.
    Home,
    /// The replica.
    Away,
}

/// What belongs together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StreamId {
    /// Names, and everything else that is not of one volume.
    Catalog,
    /// The objects of a volume.
    Volume(VolumeId),
}

impl StreamId {
    /// To which stream an object belongs; `None` for one that has no meaning elsewhere: who serves
    /// what here.
    #[must_use]
    pub fn of(key: &str) -> Option<StreamId> {
        match catalog::parse_volume_key(key) {
            Some((_, rest)) if rest.starts_with("lease/") => None,
            Some((volume, _)) => Some(StreamId::Volume(volume)),
            None if catalog::REPLICATED.iter().any(|prefix| key.starts_with(prefix)) => {
                Some(StreamId::Catalog)
            }
            None => None,
        }
    }
}
