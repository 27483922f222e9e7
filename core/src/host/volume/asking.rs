//! Routing of requests to the store, and of the answers.

use super::Volume;
use crate::block::{BlockError, Range, Reply, StatusRun};
use crate::host::io::Event;
use crate::host::pieces::{PendingPart, Unfit, merge};
use crate::host::reads::{ReadSlot, ReadTarget};
use crate::host::requests::{ParkedAnswer, Purpose, StoreRequest};
use crate::host::versions::Standing;
use crate::wire::link::{Changes, Piece, ReadError, RequestId};
use bytes::Bytes;

/// The part of a full journal that it may hold for the version table before a checkpoint makes
/// room.
const HELD_OF_JOURNAL: u64 = 4;

impl Volume {
    // --- asking ---

    pub(super) fn ask(&mut self, range: Range, purpose: Purpose, again: bool) {
        let number = self.session.next_number();
        self.ask_as(number, range, purpose, again);
    }

    pub(super) fn ask_as(
        &mut self,
        number: RequestId,
        range: Range,
        purpose: Purpose,
        again: bool,
    ) {
        // Only a cache and a version table care.
        let matters = self.caching.is_on() || self.keyed.has_versions();
        let spoiled = matters && self.log.not_at_store(range).next().is_some();
        let at = self.readahead.sent(self.context.now);
        let request = StoreRequest { range, purpose, spoiled, again, at };
        let committed = self.log.committed();
        self.session.ask(&self.context, committed, (number, request), &mut self.out);
    }

    /// Asks for parts of reads that only the store has.
    pub(super) fn ask_for(&mut self, parts: Vec<PendingPart>) {
        for PendingPart { read, slot, range } in parts {
            self.out.count().store_read_bytes += range.bytes();
            self.ask(range, Purpose::Read { read, slot }, false);
        }
    }

    /// Sends requests again that are not under way on this connection: all of them after a resume,
    /// and reads of clients before its answer.
    pub(super) fn ask_again(&mut self) {
        for StoreRequest { range, purpose, again, .. } in self.session.take_unsent() {
            let purpose = match purpose {
                // The object may exist, or may come to exist.
                Purpose::Stage(staging) => Purpose::Stage(staging.again()),
                purpose => purpose,
            };
            self.ask(range, purpose, again);
        }
    }

    // --- answers ---

    /// Takes the store's answer to a read.
    pub(super) fn store_data(
        &mut self,
        number: RequestId,
        result: Result<Vec<Piece>, ReadError>,
        payload: Bytes,
    ) {
        let Some(request) = self.session.answered(number) else { return };
        if result.is_ok() {
            self.readahead.measure(self.context.now, request.at, request.range.bytes());
        }
        self.take_data(number, request, result, payload);
    }

    /// Takes the answer once the versions of its blocks are known.
    fn take_data(
        &mut self,
        number: RequestId,
        request: StoreRequest,
        result: Result<Vec<Piece>, ReadError>,
        payload: Bytes,
    ) {
        let standing = self.keyed.standing(request.range, &result, &payload);
        let result = match (&standing, result) {
            (Standing::Unknown, Ok(pieces)) => {
                let answer = ParkedAnswer::Data(pieces, payload);
                return self.session.park(number, request, answer);
            }
            (_, result) => result,
        };
        if let Purpose::Prefetch = request.purpose {
            return self.ahead_came(number, request, result, (payload, &standing));
        }
        if let Purpose::Rewrite(piece) = request.purpose {
            return self.rewrite_came(piece, request, result, (payload, &standing));
        }
        let pieces = match result {
            Ok(pieces) => pieces,
            Err(error) => return self.store_refused(request, error),
        };
        let mut found = self.keyed.open(request.range, &pieces, payload);
        if standing == Standing::Outdated {
            if let (Ok(_), Purpose::Read { read, slot }) = (&found, &request.purpose) {
                let (read, slot) = (*read, *slot);
                return self.outdated(request, read, slot);
            }
            // Content for the cache can come later, if a client has written to the range since the
            // request.
            let later = request.spoiled && matches!(request.purpose, Purpose::Warm(_));
            found = found.and_then(|found| if later { Ok(found) } else { Err(Unfit::Damaged) });
        } else if found.is_ok() {
            self.keyed.adopt(self.context.now, request.spoiled, &standing);
        }
        let StoreRequest { range, purpose, spoiled, again, .. } = request;
        match (purpose, found) {
            (Purpose::Read { read, slot }, Ok(pieces)) => {
                let now = self.context.now;
                self.caching.missed(now, (range, &pieces), spoiled, &mut self.keyed);
                self.fill(read, slot, Ok(ReadSlot::Many(pieces)));
            }
            (Purpose::Read { read, slot }, Err(unfit)) => {
                if again {
                    self.out.event(match unfit {
                        Unfit::Damaged => Event::StoreDamaged { range },
                        Unfit::Plain => Event::StorePlain { range },
                    });
                    self.fill(read, slot, Err(BlockError::Medium(range)));
                } else {
                    self.ask(range, Purpose::Read { read, slot }, true);
                }
            }
            (Purpose::Warm(whose), found) => {
                self.warm_came(whose, range, found.ok(), (spoiled, again));
            }
            (Purpose::Prefetch | Purpose::Rewrite(_), _) => {}
            // An answer of the wrong kind. A second request may get the right one.
            (
                purpose @ (Purpose::Status { .. }
                | Purpose::Stage(_)
                | Purpose::Changes(_)
                | Purpose::FindContent(_)),
                _,
            ) => self.ask(range, purpose, true),
        }
    }

    /// A part of a read has come, and is not the newest version.
    fn outdated(&mut self, request: StoreRequest, read: u64, slot: usize) {
        let StoreRequest { range, spoiled, again, .. } = request;
        if spoiled {
            // It may have been the newest at the time of the request.
            self.read_for(ReadTarget::Slot { read, slot }, range);
        } else if again {
            self.out.event(Event::StoreOutdated { range });
            self.fill(read, slot, Err(BlockError::Medium(range)));
        } else {
            self.ask(range, Purpose::Read { read, slot }, true);
        }
    }

    /// Takes the store's answer to a status query.
    pub(super) fn store_status(
        &mut self,
        number: RequestId,
        result: Result<Vec<StatusRun>, ReadError>,
    ) {
        let Some(request) = self.session.answered(number) else { return };
        match result {
            Ok(runs) => self.take_status(number, request, runs),
            Err(error) => self.store_refused(request, error),
        }
    }

    fn take_status(&mut self, number: RequestId, request: StoreRequest, runs: Vec<StatusRun>) {
        let Some(runs) = self.keyed.true_runs(request.range, &runs) else {
            return self.session.park(number, request, ParkedAnswer::Status(runs));
        };
        let StoreRequest { range, purpose, again, .. } = request;
        let (id, local) = match purpose {
            Purpose::FindContent(number) => {
                let now = self.context.now;
                return self.background.rewriting().content_found(now, number, range, &runs);
            }
            Purpose::Status { id, local } => (id, local),
            _ => return,
        };
        let merged = merge(&local, &runs);
        if !merged.is_empty() {
            self.out.reply(id, Ok(Reply::Status(merged)));
        } else if again {
            self.out.reply(id, Err(BlockError::Medium(range)));
        } else {
            self.ask(range, Purpose::Status { id, local }, true);
        }
    }

    /// Takes the store's answer to the request for changes.
    pub(super) fn store_changes(&mut self, number: RequestId, result: Result<Changes, ReadError>) {
        let Some(request) = self.session.answered(number) else { return };
        match (result, &request.purpose) {
            (Ok(changes), Purpose::Changes(_)) => {
                self.caching.changed(self.context.now, &changes, &mut self.out);
            }
            (Err(error), Purpose::Changes(_)) => self.store_refused(request, error),
            // An answer of the wrong kind. A second request may get the right one.
            _ => self.ask(request.range, request.purpose, true),
        }
    }

    /// The store refuses the request.
    pub(super) fn store_refused(&mut self, request: StoreRequest, error: ReadError) {
        match error {
            ReadError::Fenced(epoch) => {
                // Put it back, so that it gets its answer with all others.
                self.session.put_back(request);
                self.fence(epoch);
            }
            ReadError::NotAttached => {
                if let Purpose::Prefetch = request.purpose {
                    return;
                }
                self.session.put_back(request);
                if self.session.is_up() {
                    self.hold();
                }
            }
            ReadError::Medium(range) => self.store_lacks(request, range),
            ReadError::Invalid => {
                let range = request.range;
                self.store_lacks(request, range);
            }
        }
    }

    /// The store does not have the range.
    fn store_lacks(&mut self, request: StoreRequest, range: Range) {
        let now = self.context.now;
        match request.purpose {
            Purpose::Read { read, slot } => {
                self.out.event(Event::StoreDamaged { range });
                self.fill(read, slot, Err(BlockError::Medium(range)));
            }
            Purpose::Status { id, .. } => self.out.reply(id, Err(BlockError::Medium(range))),
            Purpose::Stage(staging) => {
                self.out.event(Event::StoreDamaged { range });
                self.out.reply(staging.id, Err(BlockError::Medium(range)));
            }
            Purpose::Warm(whose) => self.background.warming().failed(whose, request.range),
            Purpose::FindContent(number) | Purpose::Rewrite(number) => {
                self.background.rewriting().failed(now, number);
            }
            Purpose::Prefetch => {}
            Purpose::Changes(_) => {
                self.caching.changed(now, &Changes::Unknown, &mut self.out);
            }
        }
    }

    // --- the version table ---

    /// Continues the work of the version table, and the requests that waited for it.
    pub(super) fn settle_versions(&mut self) {
        let journal = self.log.journal();
        let held = journal.held_bytes();
        let waits = self.acknowledger.has_waiting_writes() || self.background.wants_room();
        let full = held >= journal.capacity_bytes() / HELD_OF_JOURNAL;
        let short = held > 0 && (waits || journal.has_gap() || full);
        let closing = self.session.is_closing() || self.session.is_fenced();
        let Some(durable) = self.keyed.settle(self.context.now, short, closing) else { return };
        self.log.release(durable);
        if !self.keyed.take_moved() {
            return;
        }
        for result in self.caching.take_parked() {
            self.cache_done(result);
        }
        for (number, request, answer) in self.session.take_parked() {
            match answer {
                ParkedAnswer::Data(pieces, payload) => {
                    self.take_data(number, request, Ok(pieces), payload);
                }
                ParkedAnswer::Status(runs) => self.take_status(number, request, runs),
            }
        }
    }
}
