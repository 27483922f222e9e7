//! At which of the two places an operation is carried out, and to what its object belongs.

use super::super::catalog;
use crate::block::VolumeId;

/// Where an operation is to be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// Where the volumes are served from.
    Home,
    /// The second place.
    Away,
}

/// What belongs together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StreamId {
    /// Names, and everything else that is not of one volume.
    Catalog,
    /// What a volume consists of.
    Volume(VolumeId),
}

impl StreamId {
    /// To which stream an object belongs; `None` for one that has no meaning elsewhere: who serves what here.
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
