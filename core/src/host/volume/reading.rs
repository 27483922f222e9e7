//! Routing of reads: from the log, from the read-ahead, from the cache, or from the store. Also
//! routing of status queries.
//!
//! If the log does not have a part, the store may give it at any later time. The store has
//! committed everything older than the read, and later writes are concurrent with it. Read-ahead
//! has no such excuse, so a write spoils it. Only the store can give a staged part, after its
//! commit. A read of it waits for that.

use super::Volume;
use crate::block::{BlockError, BlockState, Range, ReadPiece, Reply};
use crate::host::io::Event;
use crate::host::journal_reads::{JournalPart, JournalRead};
use crate::host::pieces::merge;
use crate::host::reads::{ReadPlan, ReadSlot, ReadTarget};
use crate::host::requests::Purpose;
use bytes::Bytes;

/// Runs of the dirty map that one status query looks at: its range may be the volume.
const RUNS: usize = 1024;

impl Volume {
    /// A client reads.
    pub(super) fn read(&mut self, id: u64, range: Range) {
        let counters = self.out.count();
        counters.reads += 1;
        counters.read_bytes += range.bytes();
        self.read_for(ReadTarget::Client(id), range);
        // Begin a read-ahead behind the requests of this read.
        self.read_on(range);
    }

    pub(super) fn read_for(&mut self, target: ReadTarget, range: Range) {
        let read = self.reads.begin();
        let plan = self.plan(read, range);
        let ReadPlan {
            slots, on_disk, in_memory, cached, absent, uncommitted, coming, used, ..
        } = plan;
        self.caching.used(self.context.now, used, &mut self.keyed);
        if !self.reads.insert(read, target, slots, &mut self.out) {
            return;
        }
        self.log.read_parts(read, on_disk, &mut self.out);
        for part in in_memory {
            self.read_memory(read, part);
        }
        for (reader, range, at) in cached {
            self.caching.read(reader, range, at);
        }
        self.ask_for(absent);
        for (seq, part) in uncommitted {
            self.reads.wait_for_commit(seq, part);
        }
        for (request, part) in coming {
            self.readahead.wait(request, part);
        }
    }

    /// Finds the sources of the parts of a read.
    fn plan(&mut self, read: u64, range: Range) -> ReadPlan {
        let Volume { context, log, readahead, caching, drain, keyed, out, .. } = self;
        let trusted = !drain.verifies_memory() && !keyed.packing().is_encrypting();
        let (keeps, counters) = (caching.is_on(), out.count());
        let mut plan = ReadPlan::new(read);
        for (wanted, place) in log.newest(range) {
            if let Some(place) = place {
                plan.add_record((wanted, place), log.journal(), trusted, counters);
                continue;
            }
            for (part, found) in readahead.read(context.now, wanted) {
                if plan.add_ahead(part, found, keeps, counters) {
                    continue;
                }
                for (part, found) in caching.cover(part) {
                    plan.add_cached(part, found, counters);
                }
            }
        }
        plan
    }

    /// Asks the store for staged parts of reads that it has committed by now.
    pub(super) fn read_committed(&mut self) {
        let parts = self.reads.take_committed(self.log.committed());
        self.ask_for(parts);
    }

    /// A part of a read has its outcome.
    pub(super) fn fill(&mut self, read: u64, slot: usize, result: Result<ReadSlot, BlockError>) {
        self.reads.fill(read, slot, result, &mut self.out);
    }

    // --- the journal ---

    /// Reads from memory, and verifies the data.
    fn read_memory(&mut self, read: u64, part: JournalPart) {
        let found = part.extract_from_memory(self.log.journal(), self.keyed.packer());
        if let Err(problem) = &found
            && self.log.use_disk(part.place.addr, part.wanted, problem, &mut self.out)
        {
            return self.log.read_parts(read, vec![part], &mut self.out);
        }
        self.fill_from_journal(read, part, found);
    }

    /// Takes the outcome of a read of the journal's files.
    pub(super) fn disk_read(&mut self, id: u64, outcome: Result<Bytes, String>) {
        let Some((file, what)) = self.log.take_read(id) else { return };
        match what {
            JournalRead::Frames { generation, first } => {
                self.frames_read(generation, first, outcome);
            }
            JournalRead::Near { read, addr, parts } => {
                for part in parts {
                    let packer = self.keyed.packer();
                    let found = outcome.clone().and_then(|data| part.extract(addr, &data, packer));
                    self.fill_from_journal(read, part, found);
                }
            }
            JournalRead::Prefix { read, part } => {
                let problem = match outcome {
                    Ok(prefix) => {
                        let goes_on = self.log.read_payload(read, part, prefix, &mut self.out);
                        (!goes_on).then(String::new)
                    }
                    Err(problem) => Some(problem),
                };
                if let Some(problem) = problem {
                    self.fill_from_journal(read, part, Err(problem));
                }
            }
            JournalRead::Payload { read, part, prefix } => {
                let volume = self.context.volume;
                let found = outcome.and_then(|payload| part.verify(volume, &prefix, payload));
                self.fill_from_journal(read, part, found);
            }
        }
        self.log.end_read(file);
    }

    fn fill_from_journal(&mut self, read: u64, part: JournalPart, found: Result<Bytes, String>) {
        let JournalPart { slot, place, wanted } = part;
        let problem = match (part.unfit(self.keyed.packing()), found) {
            (None, Ok(data)) => {
                return self.fill(read, slot, Ok(ReadSlot::One(ReadPiece::Data(data))));
            }
            (Some(problem), _) | (None, Err(problem)) => problem,
        };
        let (file, offset) = self.log.journal().spot(place.addr);
        let (range, shipping_waits) = (wanted, false);
        self.out.event(Event::JournalDamaged { range, file, offset, problem, shipping_waits });
        if place.seq > self.log.committed() || self.drain.has_store_lost_writes() {
            return self.fill(read, slot, Err(BlockError::Medium(wanted)));
        }
        // The journal only had a copy of it. The store has this, or something newer.
        self.log.forget(wanted, place.addr);
        if self.reads.waits(read) {
            self.out.count().store_read_bytes += wanted.bytes();
            self.ask(wanted, Purpose::Read { read, slot }, false);
        }
    }

    // --- status ---

    /// A client asks which ranges have content.
    pub(super) fn query_status(&mut self, id: u64, range: Range) {
        let cover = self.log.cover(range).take(RUNS);
        let local: Vec<(Range, Option<BlockState>)> =
            cover.map(|(part, place)| (part, place.map(|place| place.state()))).collect();
        let unknown = local.iter().position(|(_, state)| state.is_none());
        let first = match unknown {
            // If a part is known here, it is an answer: the store may be far away.
            Some(known) if known == 0 || self.session.is_up() => local[known].0,
            _ => {
                let runs = merge(&local[..unknown.unwrap_or(local.len())], &[]);
                return self.out.reply(id, Ok(Reply::Status(runs)));
            }
        };
        let end = local.last().map_or(first.end(), |(part, _)| part.end());
        self.ask(Range::between(first.lba, end), Purpose::Status { id, local }, false);
    }
}
