//! Where an answer goes.

use super::super::session::SessionId;
use crate::wire::link::{Lane, RequestId};

/// The session that asked, its lane, and the request that is to be answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplyAddress {
    pub session: SessionId,
    pub lane: Lane,
    pub request: RequestId,
}
