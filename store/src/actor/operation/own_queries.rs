//! Questions of the store itself to the engines of volumes, which may be at other stores.

use super::super::request::{ReplyTo, Request};
use super::clones::EngineReply;
use longhaul_api::schedule::Due;
use longhaul_core::block::VolumeId;
use longhaul_core::wire::link::RequestId;
use std::collections::HashMap;

/// The purpose of an answer.
pub(in super::super) enum OwnQuery {
    /// Finds the snapshot of a volume that this request names.
    FindSnapshot { volume: VolumeId, request: Box<Request> },
    /// Tells whether the deletion of a snapshot has succeeded.
    DeleteSnapshot { to: ReplyTo, id: Option<VolumeId> },
    /// The task that makes a clone waits.
    ForClone(EngineReply),
    /// Nobody waits.
    ForgetClone,
    /// The schedule of this volume takes or deletes a snapshot.
    Scheduled(VolumeId, Due),
}

/// The questions without an answer.
#[derive(Default)]
pub(in super::super) struct OwnQueries {
    open: HashMap<RequestId, OwnQuery>,
    last: RequestId,
}

impl OwnQueries {
    /// The number of the query.
    pub fn open(&mut self, query: OwnQuery) -> RequestId {
        self.last += 1;
        self.open.insert(self.last, query);
        self.last
    }

    pub fn close(&mut self, request: RequestId) -> Option<OwnQuery> {
        self.open.remove(&request)
    }
}
