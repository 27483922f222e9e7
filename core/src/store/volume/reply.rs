//! Where an answer goes.

use super::super::session::SessionId;
use crate::wire::link::{Lane, RequestId};

/// The session that asked, its lane, and the request that wants the answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplyAddress {
    pub session: SessionId,
    pub lane: Lane,
    pub request: RequestId,
}
