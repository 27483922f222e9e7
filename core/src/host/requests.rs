//! Requests to the store without an answer.
//!
//! Promises: a request stays until somebody takes its answer, across connections. Only a read-ahead
//! ends with its connection. A request knows whether a later write has touched its range. It must
//! not know the link: the [session](super::session) decides when a request goes out.

use super::background::WarmingFor;
use super::copy::Staging;
use super::readahead::SentAt;
use crate::block::{BlockState, Range, StatusRun};
use crate::wire::link::{Moment, Piece, RequestId};
use bytes::Bytes;
use std::collections::BTreeMap;

/// The use of the answer to a request.
#[derive(Debug)]
pub(super) enum Purpose {
    /// A part of a read.
    Read { read: u64, slot: usize },
    /// A read-ahead. The machine for read-ahead knows the rest.
    Prefetch,
    /// A status query, with the local knowledge.
    Status { id: u64, local: Vec<(Range, Option<BlockState>)> },
    /// A copy.
    Stage(Staging),
    /// The ranges written since that moment, for the cache.
    Changes(Moment),
    /// Content for the cache.
    Warm(WarmingFor),
    /// The ranges with content, to encrypt them anew.
    FindContent(u64),
    /// That content.
    Rewrite(u64),
}

impl Purpose {
    /// Whether it serves only work of this host, and no client waits for it.
    fn is_own(&self) -> bool {
        matches!(
            self,
            Purpose::Prefetch | Purpose::Warm(_) | Purpose::FindContent(_) | Purpose::Rewrite(_)
        )
    }
}

/// A request to the store.
#[derive(Debug)]
pub(super) struct StoreRequest {
    pub(super) range: Range,
    pub(super) purpose: Purpose,
    /// A later write has changed the range, and the answer may not have it. So the cache must not
    /// take it.
    pub(super) spoiled: bool,
    /// It is the second request, because the first answer was damaged.
    pub(super) again: bool,
    /// The time of the request, to measure the way to the store.
    pub(super) at: SentAt,
}

/// An answer that waits for a comparison with the version table.
#[derive(Debug)]
pub(super) enum ParkedAnswer {
    Data(Vec<Piece>, Bytes),
    Status(Vec<StatusRun>),
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct StoreRequests {
    /// The last number.
    last: RequestId,
    /// Each request, and whether it is under way on the present connection.
    asked: BTreeMap<RequestId, (StoreRequest, bool)>,
    parked: Vec<(RequestId, StoreRequest, ParkedAnswer)>,
}

impl StoreRequests {
    // --- inputs ---

    /// A number that no other request of this volume has.
    pub(super) fn next_number(&mut self) -> RequestId {
        self.last += 1;
        self.last
    }

    /// Adds a request; `sent` if it is under way.
    pub(super) fn insert(&mut self, number: RequestId, request: StoreRequest, sent: bool) {
        self.asked.insert(number, (request, sent));
    }

    /// Takes out a request that has its answer.
    pub(super) fn take(&mut self, number: RequestId) -> Option<StoreRequest> {
        self.asked.remove(&number).map(|(request, _)| request)
    }

    /// Keeps an answer until the version table can check it.
    pub(super) fn park(&mut self, number: RequestId, request: StoreRequest, answer: ParkedAnswer) {
        self.parked.push((number, request, answer));
    }

    /// Takes the answers that waited for the version table.
    pub(super) fn take_parked(&mut self) -> Vec<(RequestId, StoreRequest, ParkedAnswer)> {
        std::mem::take(&mut self.parked)
    }

    /// Takes the requests that are not under way, in order: all of them, or only reads of clients.
    pub(super) fn take_unsent(&mut self, all: bool) -> Vec<StoreRequest> {
        let goes = |request: &StoreRequest| all || matches!(request.purpose, Purpose::Read { .. });
        let unsent = self.asked.extract_if(.., |_, (request, sent)| !*sent && goes(request));
        unsent.map(|(_, (request, _))| request).collect()
    }

    /// The connection is gone. Requests on it have to go out again, or end.
    pub(super) fn link_lost(&mut self) {
        let stays = |request: &StoreRequest| !matches!(request.purpose, Purpose::Prefetch);
        self.asked.retain(|_, (request, _)| stays(request));
        self.parked.retain(|(_, request, _)| stays(request));
        for (_, sent) in self.asked.values_mut() {
            *sent = false;
        }
    }

    /// A client writes `range`: answers about it may not have that.
    pub(super) fn spoil(&mut self, range: Range) {
        let asked = self.asked.values_mut().map(|(request, _)| request);
        let parked = self.parked.iter_mut().map(|(_, request, _)| request);
        for request in asked.chain(parked) {
            request.spoiled |= request.range.intersect(range).is_some();
        }
    }

    /// Gives up on everything. Returns the clients' requests that need an answer.
    pub(super) fn give_up(&mut self) -> Vec<u64> {
        let parked = self.take_parked().into_iter().map(|(_, request, _)| request);
        let asked = std::mem::take(&mut self.asked).into_values().map(|(request, _)| request);
        let id = |request: StoreRequest| match request.purpose {
            Purpose::Status { id, .. } | Purpose::Stage(Staging { id, .. }) => Some(id),
            Purpose::Read { .. } | Purpose::Changes(_) => None,
            Purpose::Prefetch | Purpose::Warm(_) => None,
            Purpose::FindContent(_) | Purpose::Rewrite(_) => None,
        };
        asked.chain(parked).filter_map(id).collect()
    }

    // --- outputs ---

    fn all(&self) -> impl Iterator<Item = &StoreRequest> {
        let asked = self.asked.values().map(|(request, _)| request);
        asked.chain(self.parked.iter().map(|(_, request, _)| request))
    }

    /// Whether no client waits for any of them.
    pub(super) fn are_own(&self) -> bool {
        self.all().all(|request| {
            request.purpose.is_own() || matches!(request.purpose, Purpose::Changes(_))
        })
    }

    /// Number of requests that a client waits for.
    pub(super) fn waiting(&self) -> u64 {
        self.all().filter(|request| !request.purpose.is_own()).count() as u64
    }
}
