//! Routing of work of this host itself: repairs, warming, and encrypting anew.

use super::Volume;
use crate::block::{Range, ReadPiece};
use crate::extent::{RangeSet, Uniform};
use crate::host::background::{RewriteFacts, RewriteWork, WarmingFor, older_parts, piece_sectors};
use crate::host::cache::{Found, Reader, whole_lines};
use crate::host::io::Event;
use crate::host::pieces::Unfit;
use crate::host::requests::{Purpose, StoreRequest};
use crate::host::versions::Standing;
use crate::wire::link::{Piece, ReadError};
use bytes::Bytes;

/// More than this part of the journal has to be free for a write of this host itself.
const FREE_OF_JOURNAL: u64 = 2;

impl Volume {
    /// Whether no client could have to wait for a write of this host itself, and the write would
    /// reach the store.
    fn may_write_own(&self) -> bool {
        let ends = self.session.is_closing() || self.session.is_fenced();
        let stuck = self.acknowledger.has_failed()
            || self.drain.has_store_lost_writes()
            || self.session.is_full()
            || self.acknowledger.has_waiting_writes();
        let journal = self.log.journal();
        let free = journal.used_bytes() <= journal.capacity_bytes() / FREE_OF_JOURNAL;
        // A snapshot takes no writes.
        self.context.epoch > 0 && !ends && !stuck && free
    }

    /// Longest piece of a write of this host itself, in sectors.
    fn own_sectors(&self) -> u64 {
        let journal = self.log.journal();
        piece_sectors(journal.capacity_bytes(), journal.record_sectors_max())
    }

    // --- writing back ---

    /// The store reports that it has lost these ranges.
    pub(super) fn told_damaged(&mut self, ranges: &[Range]) {
        self.background.repairs().told(ranges, self.session.sectors(), &mut self.out);
    }

    /// Continues with the ranges that the store has lost.
    pub(super) fn repair_on(&mut self) {
        if !self.background.repairs().is_waiting() {
            return;
        }
        let usable = self.caching.get().is_some_and(|cache| !cache.status().off);
        if !usable || !self.may_write_own() {
            self.background.repairs().give_up();
        }
        let ready = self.caching.ready().is_some() && self.session.is_up();
        if ready && self.background.repairs().begin_turn(self.context.now) {
            self.look_at_pieces();
        }
        self.background.repairs().end(&mut self.out);
    }

    fn look_at_pieces(&mut self) {
        let (now, committed, longest) =
            (self.context.now, self.log.committed(), self.own_sectors());
        while let Some(piece) = self.background.repairs().next_piece(now, committed, longest) {
            let found = self.cached_parts(piece);
            for (reader, range, at) in self.background.repairs().read(found) {
                self.caching.read(reader, range, at);
            }
            self.write_back();
        }
    }

    /// The parts of a piece that the cache has, without uncommitted ranges.
    fn cached_parts(&mut self, piece: Range) -> Vec<(Range, Found)> {
        let mut here = RangeSet::new();
        for range in self.log.at_store(piece) {
            here.insert(range, Uniform(()));
        }
        for missing in self.caching.missing(piece) {
            here.remove(missing);
        }
        here.iter_from(0).flat_map(|(range, _)| self.caching.cover(range)).collect()
    }

    /// The cache has given a part of a piece, or could not.
    pub(super) fn repair_read(&mut self, reader: Reader, data: Option<Bytes>) {
        self.background.repairs().came(reader, data);
        self.write_back();
    }

    /// Writes a piece after all reads of it.
    fn write_back(&mut self) {
        let may = self.may_write_own();
        for (range, data) in self.background.repairs().take_read(may) {
            let first = self.log.last() + 1;
            let (whole, _) = self.write_own(range, data);
            if !whole {
                return;
            }
            let numbers = (first, self.log.last());
            self.background.repairs().written_back(range, numbers, &mut self.out);
        }
    }

    // --- warming ---

    /// Continues the warming.
    pub(super) fn warm_on(&mut self) {
        self.background.warming().end(&mut self.out);
        let now = self.context.now;
        if !self.session.is_up() || !self.background.warming().begin_turn(now) {
            return;
        }
        loop {
            let line = (self.readahead.window(), self.readahead.limit_end(now).is_some());
            let cache = self.caching.ready();
            let next = self.background.warming().next_piece(now, line, cache);
            let Some((whose, piece)) = next else { return };
            self.warm(whose, piece);
            self.background.warming().end(&mut self.out);
        }
    }

    /// Asks the store for the parts of a piece that the cache lacks.
    fn warm(&mut self, whose: WarmingFor, piece: Range) {
        // The last pinned line may end after the volume.
        let Some(piece) = piece.intersect(Range::new(0, self.session.sectors())) else { return };
        for missing in self.caching.missing(piece) {
            let mut wanted = RangeSet::new();
            wanted.insert(missing, Uniform(()));
            let uncommitted: Vec<Range> = self
                .log
                .not_at_store(missing)
                .filter_map(|part| whole_lines(part).intersect(missing))
                .collect();
            for part in uncommitted {
                wanted.remove(part);
                self.warm_later(whose, part);
            }
            for (range, _) in wanted.iter_from(0) {
                self.background.warming().asked(whose, range);
                self.readahead.take_of_limit(self.context.now, range.bytes());
                self.ask(range, Purpose::Warm(whose), false);
            }
        }
    }

    fn warm_later(&mut self, whose: WarmingFor, range: Range) {
        if self.background.warming().later(whose, range) {
            self.caching.lack(range);
        }
    }

    /// The store has answered; `found` if the answer is good.
    pub(super) fn warm_came(
        &mut self,
        whose: WarmingFor,
        range: Range,
        found: Option<Vec<ReadPiece>>,
        (spoiled, again): (bool, bool),
    ) {
        let Some(pieces) = found else {
            if again {
                return self.background.warming().failed(whose, range);
            }
            return self.ask(range, Purpose::Warm(whose), true);
        };
        self.background.warming().landed(whose, range);
        let now = self.context.now;
        if !self.caching.warmed(now, (range, &pieces), spoiled, &mut self.keyed) {
            self.warm_later(whose, range);
        }
    }

    // --- encrypting anew ---

    /// The keys may be others than before.
    pub(super) fn keys_changed(&mut self) {
        let packing = self.keyed.packing();
        let key = packing.key().filter(|_| packing.retires() && self.context.epoch > 0);
        self.background.rewriting().set_key(key, self.log.last());
    }

    /// Continues the encryption under the newest key.
    pub(super) fn rewrite_on(&mut self) {
        if !self.background.rewriting().is_running() {
            return;
        }
        self.background.rewriting().committed(self.log.committed());
        loop {
            let facts = RewriteFacts {
                now: self.context.now,
                may: self.session.is_up() && self.may_write_own(),
                committed: self.log.committed(),
                sectors: self.session.sectors(),
                capacity_bytes: self.log.journal().capacity_bytes(),
                longest: self.own_sectors(),
                limited: self.readahead.limit_end(self.context.now).is_some(),
            };
            match self.background.rewriting().next_work(&facts, &mut self.out) {
                Some(RewriteWork::Read(piece)) => self.rewrite_ask(piece),
                Some(RewriteWork::FindContent(number, range)) => {
                    return self.ask(range, Purpose::FindContent(number), false);
                }
                None => return,
            }
        }
    }

    /// Asks for a piece, without uncommitted ranges: these are under the newest key already.
    fn rewrite_ask(&mut self, piece: Range) {
        let Some(piece) = piece.intersect(Range::new(0, self.session.sectors())) else { return };
        let mut wanted = RangeSet::new();
        for part in self.log.at_store(piece) {
            wanted.insert(part, Uniform(()));
        }
        for (range, _) in wanted.iter_from(0) {
            let number = self.background.rewriting().asked(range);
            self.readahead.take_of_limit(self.context.now, range.bytes());
            self.ask(range, Purpose::Rewrite(number), false);
        }
    }

    /// Takes the store's answer for a piece.
    pub(super) fn rewrite_came(
        &mut self,
        number: u64,
        request: StoreRequest,
        found: Result<Vec<Piece>, ReadError>,
        (payload, standing): (Bytes, &Standing),
    ) {
        let pieces = match found {
            Ok(pieces) => pieces,
            Err(error) => return self.store_refused(request, error),
        };
        let now = self.context.now;
        let StoreRequest { range, spoiled, again, .. } = request;
        let older = older_parts(range, &pieces, payload, self.keyed.packer());
        let unfit = match (older, standing) {
            (Ok(_), Standing::Outdated) if spoiled => {
                // It may have been the newest at the time of the request.
                return self.background.rewriting().later(now, number);
            }
            (Ok(_), Standing::Outdated) => None,
            (Ok(older), _) => {
                self.keyed.adopt(now, spoiled, standing);
                return self.rewrite(number, older);
            }
            (Err(unfit), _) => Some(unfit),
        };
        if !again {
            return self.ask(range, Purpose::Rewrite(number), true);
        }
        self.out.event(match unfit {
            None => Event::StoreOutdated { range },
            Some(Unfit::Damaged) => Event::StoreDamaged { range },
            Some(Unfit::Plain) => Event::StorePlain { range },
        });
        self.background.rewriting().failed(now, number);
    }

    /// Writes the parts of a piece that are under an older key, without those that clients wrote
    /// since the request.
    fn rewrite(&mut self, number: u64, older: Vec<(Range, Bytes)>) {
        let now = self.context.now;
        if !self.may_write_own() {
            return self.background.rewriting().later(now, number);
        }
        for (range, data) in self.background.rewriting().take_piece(number, older) {
            let first = self.log.last() + 1;
            let (_, done) = self.write_own(range, data);
            let numbers = (first, self.log.last());
            let rewriting = self.background.rewriting();
            rewriting.rewritten(now, (range, done), numbers, &mut self.out);
        }
    }
}
