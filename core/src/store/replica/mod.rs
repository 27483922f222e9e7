//! The replica of a location: it repeats each operation at home later, so that at all times it
//! equals a former state of home.
//!
//! No name of an object comes twice, so a repetition needs no records: only the order counts. Every
//! object belongs to a *stream*: a volume, or the catalog. The promises hold if the other stores of
//! the home keep them too:
//!
//! - The replica repeats an operation of a stream after all operations of the stream that ended
//!   before this one began. A segment does not wait for the last few segments before it: a log may
//!   lack as many at its end.
//! - It repeats an operation on the catalog after all operations of all streams that ended before
//!   this one began. So a name comes after the objects that it names.
//! - It deletes an object of a volume after it has repeated all operations of all streams that came
//!   before the request. It deletes the object in the replica first, then at home. So home has each
//!   object that the replica lacks. The replica does not need an object that home has deleted.
//!
//! After a start or a long outage the missing objects of a stream are unknown. Then a *visit* finds
//! them. It lists both sides, the replica first. At home it lists objects that name others before
//! the named ones. It puts the missing objects in an order in which they are usable. Any store may
//! do that at any time.
//!
//! A store that takes over the replica takes the next number of a log, or a generation. Before it
//! continues the catalog, it leaves a [mark](catalog::PROMOTED_KEY). An operation that meets any of
//! these ends all repetition: [`Replica::fenced`].

mod site;
mod status;
mod stream;
mod visit;
mod visit_state;

#[cfg(test)]
mod tests;

pub use site::{Site, StreamId};
pub use status::Status;

use super::object::{GetError, ObjectOperation, ObjectResult, OperationQueue, Pending, PutError};
use super::{Copies, catalog};
use crate::block::{Time, VolumeId};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use stream::{Entry, Stream, What};
use visit_state::VisitStep;

/// Bytes that tell two objects of one name apart: their first bytes are unique.
const COMPARED_BYTES: u64 = 64 << 10;

/// Limits of a [`Replica`].
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Operations of a stream under way.
    pub window: usize,
    /// Bytes of objects in memory that wait for their put; the replica reads others again from
    /// home.
    pub held_bytes: u64,
    /// Operations of a stream remembered; if there are more, a visit takes their place.
    pub entries: usize,
    /// Visits to volumes at a time.
    pub visits: usize,
    /// First and longest pause before a retry of a failed operation.
    pub retry: (Duration, Duration),
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            window: 8,
            held_bytes: 64 << 20,
            entries: 4096,
            visits: 4,
            retry: (Duration::from_millis(250), Duration::from_secs(10)),
        }
    }
}

/// A moment: it comes after all earlier operations at home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

enum Purpose {
    /// At home: reads an object that is not in memory.
    Read {
        stream: StreamId,
        number: u64,
    },
    Put {
        stream: StreamId,
        number: u64,
    },
    /// Reads the object of that name in the replica.
    Compare {
        stream: StreamId,
        number: u64,
        data: Vec<Bytes>,
    },
    /// Whether somebody has gone on with the catalog.
    Mark {
        stream: StreamId,
        number: u64,
    },
    Delete {
        stream: StreamId,
        number: u64,
        site: Site,
    },
    Visit {
        stream: StreamId,
        step: VisitStep,
    },
}

impl Purpose {
    fn site(&self) -> Site {
        match self {
            Purpose::Read { .. } => Site::Home,
            Purpose::Put { .. } | Purpose::Compare { .. } | Purpose::Mark { .. } => Site::Away,
            Purpose::Delete { site, .. } => *site,
            Purpose::Visit { step, .. } => step.site(),
        }
    }
}

/// Repeats operations of one side at the other; see the [module](self).
///
/// Inputs are `begin`, `put`, `deleted`, `delete`, `visit`, `leave` and `handle_*`. After any of
/// them the caller polls the outputs until there are none.
pub struct Replica {
    limits: Limits,
    now: Time,
    /// The number of operations that home has executed, or that callers have requested.
    done: u64,
    streams: BTreeMap<StreamId, Stream>,
    book: OperationQueue<Purpose>,
    /// Numbers of operations that both sides have executed.
    repeated: VecDeque<u64>,
    held_bytes: u64,
    /// Streams of which something waits for others.
    blocked: BTreeSet<StreamId>,
    /// Streams that want a visit while there are enough.
    queued: BTreeSet<StreamId>,
    put: (u64, u64),
    trouble: Option<String>,
    fenced: Option<String>,
}

impl Replica {
    /// Begins without knowledge of the replica's objects.
    #[must_use]
    pub fn new(now: Time, limits: Limits) -> Replica {
        Replica {
            limits,
            now,
            done: 0,
            streams: BTreeMap::new(),
            book: OperationQueue::new(limits.retry),
            repeated: VecDeque::new(),
            held_bytes: 0,
            blocked: BTreeSet::new(),
            queued: BTreeSet::new(),
            put: (0, 0),
            trouble: None,
            fenced: None,
        }
    }

    /// An operation is about to begin at home.
    #[must_use]
    pub fn begin(&self) -> Moment {
        Moment(self.done)
    }

    /// An object is at home now: `data`, or the former object without an argument. If `wanted`,
    /// returns a number that [`Replica::poll_repeated`] gives once the replica has it as well.
    /// `None` if it does not belong there.
    pub fn put(
        &mut self,
        now: Time,
        began: Moment,
        key: &str,
        data: Option<&[Bytes]>,
        wanted: bool,
    ) -> Option<u64> {
        self.now = now;
        let what = What::Put(data.map(<[Bytes]>::to_vec));
        self.add(began, key, what, wanted)
    }

    /// An object of the catalog is gone at home. Returns a number, as [`Replica::put`] does.
    pub fn deleted(&mut self, now: Time, began: Moment, key: &str, wanted: bool) -> Option<u64> {
        self.now = now;
        self.add(began, key, What::Gone, wanted)
    }

    /// Requests the deletion of an object of a volume. If `wanted`, returns a number that
    /// [`Replica::poll_repeated`] gives once the object is gone at both sides. `None` if only home
    /// has it: the caller can delete it there at once.
    pub fn delete(&mut self, now: Time, key: &str, wanted: bool) -> Option<u64> {
        self.now = now;
        self.add(Moment(self.done), key, What::Delete, wanted)
    }

    fn add(&mut self, began: Moment, key: &str, what: What, wanted: bool) -> Option<u64> {
        let id = StreamId::of(key)?;
        self.done += 1;
        let number = self.done;
        let mut entry = Entry::new(self.now, began.0, key, what, wanted);
        if self.held_bytes + entry.held_bytes() > self.limits.held_bytes {
            entry.let_go();
        }
        self.held_bytes += entry.held_bytes();
        let stream = self.streams.entry(id).or_default();
        stream.add(number, entry);
        if stream.entries() > self.limits.entries {
            self.held_bytes -= stream.forget_entries();
        }
        self.advance(id);
        Some(number)
    }

    /// Finds out what is missing of a volume, or of the catalog: of that and of all volumes whose
    /// names are missing.
    pub fn visit(&mut self, now: Time, id: StreamId) {
        self.now = now;
        self.streams.entry(id).or_default().unknown = true;
        self.advance(id);
    }

    /// Whether the replica has visited the catalog, with all volumes whose names were missing.
    #[must_use]
    pub fn has_visited(&self) -> bool {
        self.streams.get(&StreamId::Catalog).is_some_and(|catalog| catalog.has_been_visited)
    }

    /// Whether the replica has all operations of a stream from before that moment; false without a
    /// visit.
    #[must_use]
    pub fn has_repeated(&self, id: StreamId, since: Moment) -> bool {
        self.streams.get(&id).is_some_and(|stream| stream.oldest() > since.0)
    }

    /// The number of streams that lack operations from before that moment, or that had no visit.
    #[must_use]
    pub fn behind(&self, since: Moment) -> usize {
        self.streams.values().filter(|stream| stream.oldest() <= since.0).count()
    }

    /// From now on others may change the volume, too.
    pub fn leave(&mut self, now: Time, volume: VolumeId) {
        self.now = now;
        let id = StreamId::Volume(volume);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.left = true;
        }
        self.advance(id);
    }

    /// The next operation, and where.
    pub fn poll_operation(&mut self) -> Option<(u64, Site, ObjectOperation)> {
        if self.fenced.is_some() {
            return None;
        }
        let (id, operation) = self.book.poll()?;
        let site = self.book.purpose(id)?.site();
        Some((id, site, operation))
    }

    /// The outcome of an operation that [`Replica::poll_operation`] gave.
    pub fn handle_operation(&mut self, now: Time, id: u64, result: ObjectResult) {
        self.now = now;
        let Some(pending) = self.book.finish(id) else { return };
        if self.fenced.is_some() {
            return;
        }
        let error = match &result {
            ObjectResult::Put(Err(PutError::Failed(error)))
            | ObjectResult::Get(Err(GetError::Failed(error)))
            | ObjectResult::List(Err(error))
            | ObjectResult::Delete(Err(error)) => error.to_string(),
            ObjectResult::Get(Err(GetError::Damaged(reason))) => reason.clone(),
            _ => {
                self.trouble = None;
                return self.finished(pending, result);
            }
        };
        let key = pending.operation.key();
        self.trouble = Some(match pending.purpose.site() {
            Site::Home => format!("object {key}, here: {error}"),
            Site::Away => format!("object {key}, there: {error}"),
        });
        self.book.retry(self.now, pending);
    }

    /// The time that [`Replica::poll_timeout`] gave has come.
    pub fn handle_timeout(&mut self, now: Time) {
        self.now = now;
        self.book.handle_timeout(now);
    }

    /// The time at which [`Replica::handle_timeout`] wants a call.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.book.poll_timeout().filter(|_| self.fenced.is_none())
    }

    /// The next number whose operation both sides have executed.
    pub fn poll_repeated(&mut self) -> Option<u64> {
        self.repeated.pop_front()
    }

    /// The reason why the replica will never repeat anything more: another store has taken it over.
    #[must_use]
    pub fn fenced(&self) -> Option<&str> {
        self.fenced.as_deref()
    }

    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.fenced.is_some() || self.streams.values().all(Stream::is_idle)
    }

    /// How far it is.
    #[must_use]
    pub fn status(&self) -> Status {
        let mut status =
            Status { put: self.put, trouble: self.trouble.clone(), ..Status::default() };
        for stream in self.streams.values() {
            stream.count(&mut status);
        }
        status
    }

    fn fence(&mut self, reason: String) {
        self.fenced.get_or_insert(reason);
    }

    fn finished(&mut self, pending: Pending<Purpose>, result: ObjectResult) {
        let operation = pending.operation;
        match (pending.purpose, result) {
            (Purpose::Read { stream, number }, ObjectResult::Get(Ok(data))) => {
                let data = vec![data];
                let key = operation.key().to_owned();
                let purpose = Purpose::Put { stream, number };
                self.book.issue(purpose, ObjectOperation::Put { key, data });
            }
            // Home has deleted it since, and the replica repeats that as well.
            (Purpose::Read { stream, number }, _) => self.done_there(stream, number),
            (Purpose::Put { stream, number }, ObjectResult::Put(Ok(()))) => {
                if let ObjectOperation::Put { data, .. } = &operation {
                    self.count_put(data);
                }
                self.done_there(stream, number);
            }
            (Purpose::Put { stream, number }, _) => {
                let ObjectOperation::Put { key, data } = operation else { return };
                let purpose = Purpose::Compare { stream, number, data };
                self.book.issue(purpose, head(key));
            }
            (Purpose::Compare { stream, number, data }, ObjectResult::Get(Ok(there))) => {
                let key = operation.key();
                if is_head(&data, &there) {
                    self.done_there(stream, number);
                } else {
                    self.fence(another(key));
                }
            }
            // It has gone again meanwhile.
            (Purpose::Compare { stream, number, data }, _) => {
                let key = operation.key().to_owned();
                let purpose = Purpose::Put { stream, number };
                self.book.issue(purpose, ObjectOperation::Put { key, data });
            }
            (Purpose::Mark { stream, number }, ObjectResult::Get(Err(_))) => {
                self.entry_repeated(stream, number);
            }
            (Purpose::Mark { .. }, _) => self.fence(promoted()),
            (Purpose::Delete { stream, number, site: Site::Away }, _) => {
                if stream == StreamId::Catalog {
                    return self.done_there(stream, number);
                }
                let purpose = Purpose::Delete { stream, number, site: Site::Home };
                self.book.issue(purpose, operation);
            }
            (Purpose::Delete { stream, number, site: Site::Home }, _) => {
                self.entry_repeated(stream, number);
            }
            (Purpose::Visit { stream, step }, result) => {
                self.visited(stream, step, operation, result);
            }
        }
    }

    fn count_put(&mut self, data: &[Bytes]) {
        self.put.0 += 1;
        self.put.1 += data.iter().map(|part| part.len() as u64).sum::<u64>();
    }

    /// The replica has executed an operation. On the catalog it counts if no other store has
    /// continued the catalog.
    fn done_there(&mut self, stream: StreamId, number: u64) {
        if stream == StreamId::Catalog {
            self.book.issue(Purpose::Mark { stream, number }, mark());
        } else {
            self.entry_repeated(stream, number);
        }
    }

    fn entry_repeated(&mut self, id: StreamId, number: u64) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if let Some(entry) = stream.remove(number) {
            self.held_bytes -= entry.held_bytes();
            self.repeated.push_back(number);
        }
        self.advance(id);
    }

    /// Begins the next operations of a stream, and of the streams that waited for it.
    fn advance(&mut self, id: StreamId) {
        self.advance_one(id);
        while let Some(next) = self.queued.first().copied()
            && self.may_visit()
        {
            self.queued.remove(&next);
            self.advance_one(next);
        }
        for waiting in std::mem::take(&mut self.blocked) {
            self.advance_one(waiting);
        }
    }

    fn may_visit(&self) -> bool {
        let visits =
            |(id, stream): (&StreamId, &Stream)| *id != StreamId::Catalog && stream.visit.is_some();
        self.streams.iter().map(visits).filter(|visits| *visits).count() < self.limits.visits
    }

    fn advance_one(&mut self, id: StreamId) {
        if self.fenced.is_some() {
            return;
        }
        let Some(stream) = self.streams.get(&id) else { return };
        if stream.visit.is_none() && stream.unknown && stream.under_way() == 0 {
            if id != StreamId::Catalog && !self.may_visit() {
                self.queued.insert(id);
                return;
            }
            return self.begin_visit(id);
        }
        if stream.visit.is_some() || stream.unknown {
            // A visit to the catalog waits for those to volumes.
            if id == StreamId::Catalog && stream.visit.is_some() {
                self.advance_visit(id);
            }
            return;
        }
        self.repeat_some(id);
        if let Some(stream) = self.streams.get(&id)
            && stream.left
            && stream.is_idle()
        {
            self.streams.remove(&id);
        }
    }

    /// Begins the operations of a stream whose turn it is.
    fn repeat_some(&mut self, id: StreamId) {
        // The replica has executed all earlier operations of all streams.
        let all = self.streams.values().map(Stream::oldest).min().unwrap_or(u64::MAX);
        let volumes = self.streams.iter().filter(|(id, _)| **id != StreamId::Catalog);
        let volumes = volumes.map(|(_, stream)| stream.oldest()).min().unwrap_or(u64::MAX);
        let limit = self.limits.window;
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let global = if id == StreamId::Catalog { volumes } else { u64::MAX };
        while stream.under_way() < limit
            && let Some((number, entry)) = stream.next_put(global)
        {
            let key = entry.key.clone();
            let (purpose, operation) = match entry.begin() {
                What::Put(Some(data)) => {
                    (Purpose::Put { stream: id, number }, ObjectOperation::Put { key, data })
                }
                What::Put(None) => (
                    Purpose::Read { stream: id, number },
                    ObjectOperation::Get { key, range: None, copies: Copies::Refused },
                ),
                What::Gone | What::Delete => (
                    Purpose::Delete { stream: id, number, site: Site::Away },
                    ObjectOperation::Delete { key },
                ),
            };
            self.book.issue(purpose, operation);
        }
        while let Some((number, entry)) = stream.next_delete(all) {
            let operation = ObjectOperation::Delete { key: entry.key.clone() };
            entry.begin();
            let purpose = Purpose::Delete { stream: id, number, site: Site::Away };
            self.book.issue(purpose, operation);
        }
        if stream.is_blocked(global, all) {
            self.blocked.insert(id);
        }
    }
}

/// Reads the first bytes of an object in the replica, as many as the comparison needs.
fn head(key: String) -> ObjectOperation {
    ObjectOperation::Get { key, range: Some(0..COMPARED_BYTES), copies: Copies::Refused }
}

/// Whether these are the first bytes of an object.
fn is_head(data: &[Bytes], head: &[u8]) -> bool {
    let bytes: usize = data.iter().map(Bytes::len).sum();
    let mut rest = head;
    for part in data {
        let (compared, more) = rest.split_at(rest.len().min(part.len()));
        if part[..compared.len()] != *compared {
            return false;
        }
        rest = more;
    }
    head.len() == bytes.min(COMPARED_BYTES as usize)
}

fn mark() -> ObjectOperation {
    ObjectOperation::Get { key: catalog::PROMOTED_KEY.into(), range: None, copies: Copies::Refused }
}

fn another(key: &str) -> String {
    format!("another {key} is there: another store has taken over the replica")
}

fn promoted() -> String {
    "the replica has been promoted".into()
}
