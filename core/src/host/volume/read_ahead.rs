//! Routing of reading ahead: requests for hints, streams and traces, and their answers.

use super::Volume;
use crate::block::Range;
use crate::host::io::Event;
use crate::host::pieces::{PendingPart, cut, pieces};
use crate::host::readahead::AheadReason;
use crate::host::reads::ReadSlot;
use crate::host::requests::{Purpose, StoreRequest};
use crate::host::versions::Standing;
use crate::wire::link::{MAX_READ_SECTORS, Piece, ReadError, RequestId};
use bytes::Bytes;

/// Runs of the dirty map, and pieces of what is missing, that one hint looks at: its range may be
/// the volume.
const RUNS: usize = 1024;

impl Volume {
    /// A client says that it will read a range.
    pub(super) fn prefetch(&mut self, range: Range) {
        self.ask_ahead(range, AheadReason::Hint);
    }

    /// Asks for what of a range the store alone has, and is neither here nor under way. False if
    /// something stood against asking for all of it.
    fn ask_ahead(&mut self, range: Range, why: AheadReason) -> bool {
        if !self.session.is_up() {
            return false;
        }
        let absent: Vec<Range> = self
            .log
            .newest(range)
            .take(RUNS)
            .filter(|(_, place)| place.is_none())
            .flat_map(|(part, _)| self.readahead.missing(part))
            .collect();
        let absent = absent.into_iter().flat_map(|part| pieces(part, MAX_READ_SECTORS));
        for part in absent.take(RUNS) {
            for part in self.caching.missing(part) {
                if !self.readahead.may_ask(self.context.now, part.bytes(), why) {
                    return false;
                }
                let number = self.session.next_number();
                self.ask_as(number, part, Purpose::Prefetch, false);
                self.readahead.asked(self.context.now, number, part, why);
            }
        }
        true
    }

    /// A client reads a range: reads on where it is likely to.
    pub(super) fn read_on(&mut self, range: Range) {
        let (stream, lost) = self.readahead.observe(self.context.now, range);
        if lost {
            self.out.event(Event::TraceReplayed { followed: false });
        }
        let Some(stream) = stream else { return };
        let (now, sectors) = (self.context.now, self.session.sectors());
        while self.session.is_up()
            && let Some(next) = self.readahead.next_of_stream(now, stream, sectors)
            && self.ask_ahead(next, AheadReason::Stream)
        {
            self.readahead.asked_for_stream(stream, next);
        }
    }

    /// Goes on with a trace.
    pub(super) fn replay_on(&mut self) {
        let (now, sectors) = (self.context.now, self.session.sectors());
        while self.session.is_up() && self.readahead.is_replaying() {
            let Some(next) = self.readahead.next_of_trace(sectors) else {
                self.readahead.stop_replay();
                return self.out.event(Event::TraceReplayed { followed: true });
            };
            if !self.readahead.has_room_for_trace(now) || !self.ask_ahead(next, AheadReason::Trace)
            {
                return;
            }
            self.readahead.asked_for_trace(next);
        }
    }

    /// Takes the answer to what was asked for ahead.
    pub(super) fn ahead_came(
        &mut self,
        number: RequestId,
        request: StoreRequest,
        result: Result<Vec<Piece>, ReadError>,
        (payload, standing): (Bytes, &Standing),
    ) {
        let found = match result {
            Ok(pieces) => self
                .keyed
                .open(request.range, &pieces, payload)
                .ok()
                .filter(|_| *standing != Standing::Outdated),
            Err(error) => {
                let waiters = self.readahead.arrived(number, None);
                self.ask_for(waiters);
                return self.store_refused(request, error);
            }
        };
        let (now, StoreRequest { range, spoiled, .. }) = (self.context.now, request);
        if found.is_some() {
            self.keyed.adopt(now, spoiled, standing);
        }
        let waiters = self.readahead.arrived(number, found.as_deref());
        let Some(found) = found else {
            // The content does not come that reads wait for: they ask for themselves.
            return self.ask_for(waiters);
        };
        for PendingPart { read, slot, range: wanted } in waiters {
            let pieces = cut(range, &found, wanted);
            self.caching.missed(now, (wanted, &pieces), spoiled, &mut self.keyed);
            self.fill(read, slot, Ok(ReadSlot::Many(pieces)));
        }
    }
}
