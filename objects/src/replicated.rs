//! Objects with a replica, on which the store repeats all changes
//! ([`longhaul_core::store::replica`]).
//!
//! Reads, lists and claims use the objects at home. If replication is *in step*, a change of
//! objects is done only when it is done at home and on the replica. Otherwise the replica follows
//! later.

use super::{
    CacheReport, Copies, GetError, ObjectMeta, ObjectOperation, Objects, PutError, StorageError,
    Usage, execute,
};
use async_trait::async_trait;
use bytes::Bytes;
use longhaul_core::block::{Time, VolumeId};
use longhaul_core::store::ObjectResult;
use longhaul_core::store::replica::{Limits, Moment, Replica, Site, Status, StreamId};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};

/// Objects that may have a replica.
pub struct Replicated {
    shared: Arc<Shared>,
}

struct Shared {
    home: Arc<dyn Objects>,
    origin: Instant,
    active: Mutex<Option<Active>>,
    /// Why this store does not own the replica any more.
    fenced: watch::Sender<Option<String>>,
}

struct Active {
    machine: Replica,
    away: Arc<dyn Objects>,
    in_step: bool,
    waiting: HashMap<u64, Waiting>,
    /// Distinguishes this replica from earlier ones, whose late results do not count.
    number: u64,
    timer: Option<Time>,
    /// The moment at which `in_step` last changed: operations before it do not count as in step.
    since: Moment,
}

/// The state of replication.
#[derive(Clone, Debug)]
pub struct Replication {
    /// The status of the machine.
    pub status: Status,
    /// The age of the oldest operation that the replica has not repeated.
    pub lag: Duration,
    /// In step only: the number of volumes whose replica lacks changes that did not wait for it.
    pub behind: Option<usize>,
    /// Why the store repeats nothing any more.
    pub fenced: Option<String>,
}

/// The outcome of restoring an object from the replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Brought {
    /// The object has its content again.
    Back,
    /// No replica exists, or another store owns it.
    NoPlace,
    /// The replica does not have the object: it was deleted, or has not arrived.
    Missing,
    /// The object of the replica is damaged, too.
    Unsound,
    /// The read from the replica or the write here failed, for this reason.
    Failed(StorageError),
}

impl Replicated {
    /// Objects without a replica.
    pub fn new(home: Arc<dyn Objects>) -> Replicated {
        let shared = Shared {
            home,
            origin: Instant::now(),
            active: Mutex::new(None),
            fenced: watch::Sender::new(None),
        };
        Replicated { shared: Arc::new(shared) }
    }

    /// Begins to repeat all changes on a replica. Knows nothing of the objects there yet.
    pub fn begin(&self, away: Arc<dyn Objects>) {
        let mut active = self.shared.lock();
        let number = active.as_ref().map_or(0, |active| active.number) + 1;
        let machine = Replica::new(self.shared.now(), Limits::default());
        let since = machine.begin();
        *active = Some(Active {
            machine,
            away,
            in_step: false,
            waiting: HashMap::new(),
            number,
            timer: None,
            since,
        });
    }

    /// Replaces the way to reach the replica.
    pub fn set_away(&self, away: Arc<dyn Objects>) {
        if let Some(active) = &mut *self.shared.lock() {
            active.away = away;
        }
    }

    /// Ends replication.
    pub fn end(&self) {
        *self.shared.lock() = None;
    }

    /// Whether there is a replica.
    pub fn is_active(&self) -> bool {
        self.shared.lock().is_some()
    }

    /// Sets whether changes of objects wait for the replica from now on.
    pub fn set_in_step(&self, in_step: bool) {
        if let Some(active) = &mut *self.shared.lock() {
            active.in_step = in_step;
            active.since = active.machine.begin();
            if !in_step {
                active.waiting.retain(|_, waiting| waiting.always);
            }
        }
    }

    /// Finds out what the replica lacks of these volumes, and of the catalog.
    pub fn visit(&self, volumes: impl IntoIterator<Item = VolumeId>) {
        let now = self.shared.now();
        if let Some(active) = &mut *self.shared.lock() {
            for volume in volumes {
                active.machine.visit(now, StreamId::Volume(volume));
            }
            active.machine.visit(now, StreamId::Catalog);
        }
        Shared::pump(&self.shared);
    }

    /// Finds out what the replica lacks of one volume.
    pub fn visit_volume(&self, volume: VolumeId) {
        let now = self.shared.now();
        if let Some(active) = &mut *self.shared.lock() {
            active.machine.visit(now, StreamId::Volume(volume));
        }
        Shared::pump(&self.shared);
    }

    /// Whether replication has visited the catalog, and everything that it names, since its
    /// beginning.
    pub fn has_visited(&self) -> bool {
        let active = self.shared.lock();
        active.as_ref().is_some_and(|active| active.machine.has_visited())
    }

    /// Whether all batches of a volume that the store commits from now on are at home and on the
    /// replica.
    pub fn is_in_step(&self, volume: VolumeId) -> bool {
        self.shared.lock().as_ref().is_some_and(|active| {
            active.in_step && active.machine.has_repeated(StreamId::Volume(volume), active.since)
        })
    }

    /// The state of replication; `None` without a replica.
    pub fn replication(&self) -> Option<Replication> {
        let now = self.shared.now();
        let active = self.shared.lock();
        let active = active.as_ref()?;
        let status = active.machine.status();
        let lag = status.since.map_or(Duration::ZERO, |since| now.since(since));
        let fenced = active.machine.fenced().map(str::to_owned);
        let behind = active.in_step.then(|| active.machine.behind(active.since));
        Some(Replication { status, lag, behind, fenced })
    }

    /// Gives the reason when another store has taken over the replica.
    pub fn fenced(&self) -> watch::Receiver<Option<String>> {
        self.shared.fenced.subscribe()
    }

    /// Restores a damaged or missing object at home from the replica. `is_sound` decides whether
    /// the replica's content is sound.
    pub async fn bring_back(&self, key: &str, is_sound: impl FnOnce(&Bytes) -> bool) -> Brought {
        let away = match &*self.shared.lock() {
            Some(active) if active.machine.fenced().is_none() => active.away.clone(),
            _ => return Brought::NoPlace,
        };
        let data = match away.get(key, None).await {
            Ok(data) if is_sound(&data) => data,
            Ok(_) => return Brought::Unsound,
            Err(GetError::NotFound) => return Brought::Missing,
            Err(GetError::Damaged(_)) => return Brought::Unsound,
            Err(GetError::Failed(error)) => return Brought::Failed(error),
        };
        match self.shared.home.restore(key, data).await {
            Ok(()) => Brought::Back,
            Err(error) => Brought::Failed(error),
        }
    }

    /// Runs `work` in a task of its own, so that it goes on if the caller gives up waiting.
    async fn detached<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, StorageError>> + Send + 'static,
    ) -> Result<T, StorageError> {
        let ended = tokio::spawn(work).await;
        ended
            .map_err(|error| StorageError::unavailable(format!("a task of ours failed: {error}")))?
    }

    /// Waits until the replica has all changes.
    pub async fn settle(&self) {
        let idle = || {
            let active = self.shared.lock();
            active.as_ref().is_none_or(|active| active.machine.is_idle())
        };
        while !idle() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Shared {
    /// Each change with the lock held is whole: the state stays usable after a panic.
    fn lock(&self) -> MutexGuard<'_, Option<Active>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn began(&self) -> Option<Moment> {
        self.lock().as_ref().map(|active| active.machine.begin())
    }

    /// Gives the machine an input, which it may number, and begins its operations. Returns a
    /// receiver to wait for, if the caller has to wait.
    fn tell(
        shared: &Arc<Shared>,
        always: bool,
        take: impl FnOnce(&mut Replica, Time, bool) -> Option<u64>,
    ) -> Option<oneshot::Receiver<()>> {
        let now = shared.now();
        let mut done = None;
        if let Some(active) = &mut *shared.lock()
            && let wanted = (active.in_step || always)
            && let Some(number) = take(&mut active.machine, now, wanted)
            && wanted
        {
            let (send, receive) = oneshot::channel();
            active.waiting.insert(number, Waiting { done: send, always });
            done = Some(receive);
        }
        Shared::pump(shared);
        done
    }

    /// Begins the machine's operations, and notifies the waiters of those that are done.
    fn pump(shared: &Arc<Shared>) {
        let now = shared.now();
        let mut guard = shared.lock();
        let Some(active) = &mut *guard else { return };
        while let Some((id, site, operation)) = active.machine.poll_operation() {
            let objects = match site {
                Site::Home => shared.home.clone(),
                Site::Away => active.away.clone(),
            };
            let (shared, number) = (shared.clone(), active.number);
            tokio::spawn(async move {
                let result = match operation {
                    ObjectOperation::Delete { key } => {
                        ObjectResult::Delete(objects.delete(&key).await)
                    }
                    operation => execute(&*objects, operation).await,
                };
                shared.finished(number, id, result);
                Shared::pump(&shared);
            });
        }
        while let Some(number) = active.machine.poll_repeated() {
            if let Some(waiting) = active.waiting.remove(&number) {
                let _ = waiting.done.send(());
            }
        }
        if let Some(reason) = active.machine.fenced() {
            // No waiter hears that its operation is done.
            active.waiting.clear();
            let reason = Some(reason.to_owned());
            shared.fenced.send_if_modified(|fenced| {
                let new = fenced.is_none();
                if new {
                    *fenced = reason;
                }
                new
            });
        }
        if let Some(due) = active.machine.poll_timeout()
            && active.timer.is_none_or(|timer| due < timer)
        {
            active.timer = Some(due);
            let (shared, number) = (shared.clone(), active.number);
            tokio::spawn(async move {
                tokio::time::sleep(due.since(now)).await;
                shared.timer(number, due);
                Shared::pump(&shared);
            });
        }
    }

    async fn ended(&self, waiting: Option<oneshot::Receiver<()>>) -> Ended {
        let Some(waiting) = waiting else { return Ended::Done };
        match waiting.await {
            Ok(()) => Ended::Done,
            Err(_) if self.fenced.borrow().is_some() => Ended::Lost,
            Err(_) => Ended::GivenUp,
        }
    }

    fn finished(&self, number: u64, id: u64, result: ObjectResult) {
        let now = self.now();
        if let Some(active) = &mut *self.lock()
            && active.number == number
        {
            active.machine.handle_operation(now, id, result);
        }
    }

    fn timer(&self, number: u64, due: Time) {
        let now = self.now();
        if let Some(active) = &mut *self.lock()
            && active.number == number
        {
            if active.timer == Some(due) {
                active.timer = None;
            }
            active.machine.handle_timeout(now);
        }
    }
}

/// A waiter, and whether it waits even if replication is not in step.
struct Waiting {
    done: oneshot::Sender<()>,
    always: bool,
}

/// The end of a wait.
enum Ended {
    /// The change is done at both places, or the replica need not have it.
    Done,
    /// Replication has ended.
    GivenUp,
    /// Another store owns the replica.
    Lost,
}

impl Ended {
    fn error() -> StorageError {
        StorageError::unavailable(
            "another store has taken over the replica: this store commits nothing any more",
        )
    }
}

#[async_trait]
impl Objects for Replicated {
    async fn put(&self, key: &str, data: Vec<Bytes>) -> Result<(), PutError> {
        let Some(began) = self.shared.began() else {
            return self.shared.home.put(key, data).await;
        };
        let (shared, key) = (self.shared.clone(), key.to_owned());
        let put = self.detached(async move {
            let result = shared.home.put(&key, data.clone()).await;
            // A copy: bytes of a link count for their session as long as anything holds them. The
            // replica may be out of reach for long.
            let there = match &result {
                Ok(()) => Some([Bytes::from(data.concat())]),
                Err(PutError::Exists) => None,
                Err(PutError::Failed(_)) => return Ok(result),
            };
            drop(data);
            let waiting = Shared::tell(&shared, false, |machine, now, wanted| {
                machine.put(now, began, &key, there.as_ref().map(<[Bytes; 1]>::as_slice), wanted)
            });
            match shared.ended(waiting).await {
                Ended::Done | Ended::GivenUp => Ok(result),
                Ended::Lost => Err(Ended::error()),
            }
        });
        put.await.map_err(PutError::Failed)?
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Bytes, GetError> {
        self.shared.home.get(key, range).await
    }

    fn try_get(&self, key: &str, range: Option<&Range<u64>>) -> Option<Result<Bytes, GetError>> {
        self.shared.home.try_get(key, range)
    }

    async fn read(&self, key: &str, range: Range<u64>, copies: Copies) -> Result<Bytes, GetError> {
        self.shared.home.read(key, range, copies).await
    }

    fn try_read(
        &self,
        key: &str,
        range: &Range<u64>,
        copies: Copies,
    ) -> Option<Result<Bytes, GetError>> {
        self.shared.home.try_read(key, range, copies)
    }

    async fn finish(&self) {
        self.shared.home.finish().await;
    }

    fn cache(&self) -> Option<CacheReport> {
        self.shared.home.cache()
    }

    fn usage(&self) -> Option<Usage> {
        self.shared.home.usage()
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, StorageError> {
        self.shared.home.list(prefix).await
    }

    async fn list_after(&self, prefix: &str, after: &str) -> Result<Vec<ObjectMeta>, StorageError> {
        self.shared.home.list_after(prefix, after).await
    }

    /// At home only: the replica still has the same content.
    async fn restore(&self, key: &str, data: Bytes) -> Result<(), StorageError> {
        self.shared.home.restore(key, data).await
    }

    async fn delete(&self, key: &str) -> Result<(), StorageError> {
        let Some(began) = self.shared.began() else {
            return self.shared.home.delete(key).await;
        };
        let (shared, key) = (self.shared.clone(), key.to_owned());
        self.detached(async move {
            let of_volume = matches!(StreamId::of(&key), Some(StreamId::Volume(_)));
            let waiting = if of_volume {
                // The deletion happens when it is allowed, at both places.
                Shared::tell(&shared, true, |machine, now, wanted| {
                    machine.delete(now, &key, wanted)
                })
            } else {
                shared.home.delete(&key).await?;
                Shared::tell(&shared, false, |machine, now, wanted| {
                    machine.deleted(now, began, &key, wanted)
                })
            };
            // A change that concerns only home need not wait.
            let at_once = of_volume && waiting.is_none();
            match shared.ended(waiting).await {
                Ended::Lost => Err(Ended::error()),
                Ended::GivenUp => shared.home.delete(&key).await,
                Ended::Done if at_once => shared.home.delete(&key).await,
                Ended::Done => Ok(()),
            }
        })
        .await
    }

    async fn delete_later(&self, key: &str) -> Result<(), StorageError> {
        let mut later = false;
        let waiting = Shared::tell(&self.shared, false, |machine, now, _| {
            let number = machine.delete(now, key, false);
            later = number.is_some();
            None
        });
        drop(waiting);
        if later { Ok(()) } else { self.shared.home.delete_later(key).await }
    }

    fn left(&self, volume: VolumeId) {
        let now = self.shared.now();
        if let Some(active) = &mut *self.shared.lock() {
            active.machine.leave(now, volume);
        }
        self.shared.home.left(volume);
    }
}
