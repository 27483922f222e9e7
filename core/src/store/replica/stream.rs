//! The open operations of a volume, or of the catalog.

use super::super::catalog;
use super::super::segment::{self, Header, IN_FLIGHT_MAX};
use super::status::Status;
use super::visit_state::Visit;
use crate::block::Time;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// An operation that home has executed, or that both sides will execute.
pub(super) struct Entry {
    pub key: String,
    what: What,
    /// Of what it may need: everything done until then.
    after: u64,
    since: Time,
    bytes: u64,
    /// Its number in the log, if it is a segment.
    segment: Option<u64>,
    /// And its header.
    header: Option<Header>,
    under_way: bool,
    /// Somebody waits for it.
    wanted: bool,
}

/// What it does.
#[derive(Clone)]
pub(super) enum What {
    /// Puts an object: its content, if the replica keeps it in memory.
    Put(Option<Vec<Bytes>>),
    /// An object of the catalog is gone at home.
    Gone,
    /// An object of a volume is to go.
    Delete,
}

impl Entry {
    pub fn new(now: Time, after: u64, key: &str, what: What, wanted: bool) -> Entry {
        let bytes = match &what {
            What::Put(Some(data)) => data.iter().map(|part| part.len() as u64).sum(),
            _ => 0,
        };
        let segment = catalog::parse_volume_key(key)
            .and_then(|(volume, _)| catalog::parse_number(&catalog::segment_prefix(volume), key));
        let header = segment.and_then(|_| header_of(&what));
        let key = key.to_owned();
        Entry { key, what, after, since: now, bytes, segment, header, under_way: false, wanted }
    }

    /// Bytes of memory for its content.
    pub fn held_bytes(&self) -> u64 {
        if let What::Put(Some(_)) = self.what { self.bytes } else { 0 }
    }

    /// Drops the content: the replica reads it again when it needs it.
    pub fn let_go(&mut self) {
        if let What::Put(data) = &mut self.what {
            *data = None;
        }
    }

    pub fn begin(&mut self) -> What {
        self.under_way = true;
        self.what.clone()
    }
}

fn header_of(what: &What) -> Option<Header> {
    let What::Put(Some(data)) = what else { return None };
    segment::parse_header(data.first()?).ok().map(|(header, _)| header)
}

/// A stream.
#[derive(Default)]
pub(super) struct Stream {
    /// Objects to put, in order; for the catalog also objects to delete.
    puts: BTreeMap<u64, Entry>,
    /// Objects of a volume to delete; nothing waits for these.
    deletes: BTreeMap<u64, Entry>,
    /// The missing objects of the stream are unknown.
    pub unknown: bool,
    /// Since when.
    unknown_since: Option<Time>,
    pub visit: Option<Box<Visit>>,
    pub has_been_visited: bool,
    /// Somebody else may have changed it since.
    pub left: bool,
    begun: bool,
    /// Segments up to this one are in the replica, or will be before the next puts: the stream has
    /// put or listed them.
    segment: u64,
    /// Except these: the stream has neither put nor listed them, and another store may put them.
    gaps: BTreeSet<u64>,
    /// The generation of the last root that the stream put.
    generation: u64,
}

impl Stream {
    /// One that others may change.
    pub fn of_others() -> Stream {
        Stream { left: true, ..Stream::default() }
    }

    pub fn add(&mut self, number: u64, entry: Entry) {
        if !std::mem::replace(&mut self.begun, true) || std::mem::take(&mut self.left) {
            self.unknown = true;
        }
        self.unknown |= self.follows_others(&entry);
        match entry.what {
            What::Delete => self.deletes.insert(number, entry),
            _ => self.puts.insert(number, entry),
        };
    }

    /// Whether this put may need objects that another store has put. These are the segments that
    /// were durable before it. The first segment of an engine follows one of another engine. A root
    /// may cover segments of others, or continue a root of another generation.
    fn follows_others(&mut self, entry: &Entry) -> bool {
        let key = &entry.key;
        let Some((volume, _)) = catalog::parse_volume_key(key) else { return false };
        if let Some(number) = catalog::parse_number(&catalog::segment_prefix(volume), key) {
            let before = self.segment;
            self.has(number, entry.header.map_or(IN_FLIGHT_MAX - 1, |header| header.ahead.into()));
            let Some(header) = entry.header else { return number > before + 1 };
            let durable = header.number_durable();
            // The engine wrote those after its first segment, and a visit follows that one.
            self.gaps.retain(|gap| *gap > durable);
            return header.token.begins() || durable > before;
        }
        if let Some(pin) = catalog::parse_pin_key(&catalog::pin_prefix(volume), key) {
            return self.lacks(pin.segment);
        }
        if let Some(root) = catalog::parse_root_key(&catalog::root_prefix(volume), key) {
            let before = std::mem::replace(&mut self.generation, root.generation);
            return before != root.generation || self.lacks(root.segment);
        }
        false
    }

    /// The stream has put or listed that segment. As many as `ahead` before it may be on their way.
    fn has(&mut self, number: u64, ahead: u64) {
        let near = number.saturating_sub(ahead);
        self.gaps.extend(near.max(self.segment + 1)..number);
        self.gaps.remove(&number);
        self.segment = self.segment.max(number);
    }

    /// Whether others may have put some of the segments up to this one.
    fn lacks(&self, through: u64) -> bool {
        through > self.segment || self.gaps.first().is_some_and(|gap| *gap <= through)
    }

    /// Operations in memory.
    pub fn entries(&self) -> usize {
        self.puts.len() + self.deletes.len()
    }

    /// Forgets all operations that are not in progress and that nothing waits for: a visit will
    /// find them. Objects to delete stay, at home. Returns the freed bytes of memory.
    pub fn forget_entries(&mut self) -> u64 {
        let mut held = 0;
        let idle = |entry: &Entry| !entry.under_way && !entry.wanted;
        for (_, entry) in self.puts.extract_if(.., |_, entry| idle(entry)) {
            held += entry.held_bytes();
            self.unknown_since.get_or_insert(entry.since);
        }
        self.deletes.retain(|_, entry| !idle(entry));
        self.unknown = true;
        held
    }

    pub fn remove(&mut self, number: u64) -> Option<Entry> {
        self.puts.remove(&number).or_else(|| self.deletes.remove(&number))
    }

    /// A visit has put all missing objects, `put` among them. Segments up to `after`, and those of
    /// `listed`, in order, are in the replica. The visit does not know which store put the other
    /// objects, so the stream still puts and compares each of them. Returns the finished operations
    /// and the freed bytes of memory.
    pub fn visit_ended(
        &mut self,
        put: &BTreeSet<String>,
        (after, listed): (u64, Vec<u64>),
    ) -> (Vec<u64>, u64) {
        (self.begun, self.has_been_visited, self.unknown_since) = (true, true, None);
        self.segment = self.segment.max(after);
        for number in &listed {
            self.has(*number, IN_FLIGHT_MAX - 1);
        }
        // No segment exists while one 16 numbers before it is on its way.
        let near =
            listed.last().map_or(after, |last| last.saturating_sub(IN_FLIGHT_MAX).max(after));
        self.gaps.retain(|gap| *gap > near);
        let mut held = 0;
        let mut done = Vec::new();
        let is_done = |_: &u64, entry: &mut Entry| {
            matches!(entry.what, What::Put(_)) && put.contains(&entry.key)
        };
        for (number, entry) in self.puts.extract_if(.., is_done) {
            held += entry.held_bytes();
            done.push(number);
        }
        (done, held)
    }

    /// The replica has all operations before this number; `None` if that is unknown.
    pub fn oldest(&self) -> u64 {
        if self.unknown || self.visit.is_some() {
            return 0;
        }
        self.puts.first_key_value().map_or(u64::MAX, |(number, _)| *number)
    }

    pub fn under_way(&self) -> usize {
        let under_way = |entry: &&Entry| entry.under_way;
        self.puts.values().filter(under_way).count()
            + self.deletes.values().filter(under_way).count()
    }

    /// The next one to put, if before `others` all that it may need is there. A segment does not
    /// need those right before it: no more are missing than a log may lack at its end.
    pub fn next_put(&mut self, others: u64) -> Option<(u64, &mut Entry)> {
        let (next, entry) = self.puts.iter().find(|(_, entry)| !entry.under_way)?;
        let near =
            entry.segment.map_or(u64::MAX, |number| (number + 1).saturating_sub(IN_FLIGHT_MAX));
        let needs = |other: &Entry| other.segment.is_none_or(|number| number < near);
        let mut needed = self.puts.range(..=next).filter(|(_, other)| needs(other));
        let oldest = needed.next().map_or(u64::MAX, |(number, _)| *number);
        let oldest = if self.oldest() == 0 { 0 } else { oldest };
        let next = *next;
        let (number, entry) = self.puts.range_mut(next..).next()?;
        let ready = (entry.after < oldest || *number == oldest) && entry.after < others;
        ready.then_some((*number, entry))
    }

    /// The next object to delete, if the replica has all earlier operations.
    pub fn next_delete(&mut self, others: u64) -> Option<(u64, &mut Entry)> {
        let (number, entry) = self.deletes.iter_mut().find(|(_, entry)| !entry.under_way)?;
        (entry.after < others).then_some((*number, entry))
    }

    /// Whether something waits for what others are to do.
    pub fn is_blocked(&self, others: u64, all: u64) -> bool {
        let waits = |entries: &BTreeMap<u64, Entry>, limit: u64| {
            entries.values().any(|entry| !entry.under_way && entry.after >= limit)
        };
        waits(&self.puts, others) || waits(&self.deletes, all)
    }

    pub fn is_idle(&self) -> bool {
        self.entries() == 0 && !self.unknown && self.visit.is_none()
    }

    pub fn count(&self, status: &mut Status) {
        status.operations += self.entries() as u64;
        status.bytes += self.puts.values().map(|entry| entry.bytes).sum::<u64>();
        let first = self.puts.values().next().map(|entry| entry.since);
        let since = [first, self.unknown_since, status.since].into_iter().flatten().min();
        status.since = since;
        status.unknown += usize::from(self.unknown);
        if let Some(visit) = &self.visit {
            visit.count(status);
        }
    }
}
