//! A question about the map and the data of a volume, and its purpose.

use super::map::lookup::Lookup;
use super::moves::Object;
use super::session::SessionId;
use crate::block::{Epoch, Range, VolumeId};
use crate::wire::link::{Lane, RequestId};

/// Pages of each level that a status query looks at, at most.
const STATUS_PAGES: usize = 4;

#[derive(Clone, Copy, Debug)]
pub(super) struct ReadRequest {
    pub session: SessionId,
    pub lane: Lane,
    pub request: RequestId,
    /// 0 for an observer.
    pub epoch: Epoch,
    pub range: Range,
    pub purpose: ReadPurpose,
}

/// The use of the found data.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReadPurpose {
    /// The host wants it.
    Data,
    /// The host wants to know what kind it is.
    Status,
    /// The store service wants to know where it lies.
    Places,
    /// It does not go to the host, but into an object.
    Stage(StageTarget),
    /// The engine tells the host which part lies in this damaged object.
    Damaged(Object),
}

/// The destination of staged data.
#[derive(Clone, Copy, Debug)]
pub(super) struct StageTarget {
    pub into: VolumeId,
    pub lba: u64,
    pub object: u64,
}

impl ReadRequest {
    /// Someone waits for the first class, nobody yet for the second.
    pub fn class(&self) -> usize {
        usize::from(self.lane == Lane::ReadAhead || self.is_staging())
    }

    pub fn is_staging(&self) -> bool {
        matches!(self.purpose, ReadPurpose::Stage(_))
    }

    pub fn is_status(&self) -> bool {
        matches!(self.purpose, ReadPurpose::Status | ReadPurpose::Places)
    }

    /// The lookup that the request begins with.
    pub fn lookup(&self) -> Lookup {
        match self.purpose {
            ReadPurpose::Status | ReadPurpose::Places => Lookup::bounded(self.range, STATUS_PAGES),
            ReadPurpose::Data | ReadPurpose::Stage(_) | ReadPurpose::Damaged(_) => {
                Lookup::new(self.range)
            }
        }
    }
}
