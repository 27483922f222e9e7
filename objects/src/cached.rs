//! Objects with a cache on a local disk in front of them.
//!
//! ```text
//! DIR/objects.0000       the cache, preallocated; may be deleted while no store runs
//! ```
//!
//! Promises: if the cache fails, is full, or has no room, the store warns and reads from the
//! objects. The engine knows the content of the file ([`longhaul_core::store::cache`]). Only the
//! data of volumes goes through the cache, and not the reads that verify objects.

use super::{CacheReport, Copies, GetError, ObjectMeta, Objects, PutError, StorageError, Usage};
use anyhow::{Context as _, Result};
use async_trait::async_trait;
use bytes::Bytes;
use longhaul_base::cache_file::{fitting, run_load};
use longhaul_base::disk::OrderedDisk;
use longhaul_base::files;
use longhaul_base::files::free_bytes;
use longhaul_base::random;
use longhaul_base::units::show_bytes;
use longhaul_core::block::Time;
use longhaul_core::cache::{Geometry, MIN_CACHE_BYTES, Source};
use longhaul_core::store::cache::{CELL_BYTES, ObjectCache, ObjectId, Trouble};
use longhaul_core::store::catalog;
use rustix::fs::FallocateFlags;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};

/// How long a change of the index may stay out of the file. A crash loses that much of the cache.
const INTERVAL: Duration = Duration::from_secs(10);
/// Space that a cache leaves free on its disk, which may also hold volumes.
const LEFT_FREE_BYTES: u64 = 256 << 20;
/// Longest part of a new object to offer at a time, in cells. Others wait for about 0.1 ms
/// meanwhile.
const OFFER_CELLS: usize = 64;
/// How long an orderly end waits for the write of the index.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);

/// Objects, and a cache.
pub struct CachedObjects {
    objects: Arc<dyn Objects>,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Notified when the deadline may have changed, or when the last owner has gone.
    changed: Arc<Notify>,
    origin: Instant,
}

struct State {
    cache: ObjectCache,
    disk: OrderedDisk,
    waiting: HashMap<u64, oneshot::Sender<Option<Bytes>>>,
    /// Look-ups that [`Objects::try_read`] began and could not finish, for the read that follows.
    begun: Vec<(ObjectId, Range<u64>, oneshot::Receiver<Option<Bytes>>)>,
    /// Number of deletions so far. Data that a read returned before a deletion does not enter the
    /// cache.
    deletions: u64,
    hurried: bool,
}

impl CachedObjects {
    /// Puts a cache of this size in `dir` before `objects`. Returns `objects` if there can be no
    /// cache. Blocks.
    pub fn open(
        objects: Arc<dyn Objects>,
        dir: &Path,
        installation: u128,
        bytes: u64,
    ) -> Arc<dyn Objects> {
        match open(dir, installation, bytes) {
            Ok(Some(state)) => {
                let shared = Arc::new(Shared {
                    state: Mutex::new(state),
                    changed: Arc::default(),
                    origin: Instant::now(),
                });
                tokio::spawn(attend(Arc::downgrade(&shared)));
                Arc::new(CachedObjects { objects, shared })
            }
            Ok(None) => objects,
            Err(error) => {
                tracing::warn!("the store runs without an object cache: {error:#}");
                objects
            }
        }
    }

    /// Reads the bytes from the object store, and offers them to the cache.
    async fn fetch(&self, object: ObjectId, key: &str, range: &Range<u64>) -> Fetched {
        let whole = ObjectCache::whole(range);
        let deletions = self.shared.lock().deletions;
        let data = self.objects.get(key, Some(whole.clone())).await?;
        Ok(self.shared.take(object, range, &whole, data, deletions))
    }
}

type Fetched = Result<Bytes, GetError>;

/// Opens the file, or makes one. `None` if there is no room for it.
fn open(dir: &Path, installation: u128, wanted: u64) -> Result<Option<State>> {
    let started = Instant::now();
    files::create_dir(dir)?;
    let path = path(dir);
    let cannot = || format!("cannot use {}", path.display());
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(&path).with_context(cannot)?;
    let have = file.metadata().with_context(cannot)?.len();
    let free = free_bytes(dir)?.saturating_add(have).saturating_sub(LEFT_FREE_BYTES);
    let bytes = fitting(wanted, free);
    if bytes < wanted {
        tracing::warn!(
            "the object cache gets {} of {}: {} has no more room",
            show_bytes(bytes),
            show_bytes(wanted),
            dir.display()
        );
    }
    let Some(geometry) = Geometry::for_size(bytes).filter(|_| bytes >= MIN_CACHE_BYTES) else {
        std::fs::remove_file(&path).with_context(cannot)?;
        return Ok(None);
    };
    if have != bytes {
        // The content of the file has the layout of another size.
        file.set_len(0).with_context(cannot)?;
        if let Err(error) = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes) {
            std::fs::remove_file(&path).with_context(cannot)?;
            let what = || format!("{} has no room for {}", dir.display(), show_bytes(bytes));
            return Err(error).with_context(what);
        }
    }
    let cache = load(&file, geometry, installation, have == bytes)?;
    tracing::info!(
        "opened a cache of {} before the objects with {} in {:.2} s",
        show_bytes(bytes),
        show_bytes(cache.status().cache.valid_bytes),
        started.elapsed().as_secs_f64()
    );
    let names = path.with_extension("").display().to_string();
    let disk = OrderedDisk::new(vec![file], names);
    Ok(Some(State {
        cache,
        disk,
        waiting: HashMap::new(),
        begun: Vec::new(),
        deletions: 0,
        hurried: false,
    }))
}

fn load(file: &File, geometry: Geometry, installation: u128, used: bool) -> Result<ObjectCache> {
    let mut load = ObjectCache::load(geometry, installation);
    run_load(&mut load, file);
    let report = load.report();
    if report.bad_pages > 0 {
        tracing::warn!(
            "{} pages of the index of the object cache are damaged; the store does not use their \
             blocks",
            report.bad_pages
        );
    }
    if used && !report.found {
        tracing::warn!(
            "the store drops the content of the object cache: it is of another installation or \
             version, or damaged"
        );
    }
    Ok(ObjectCache::new(Time(0), load, installation, random::identity()?, INTERVAL))
}

/// The path of the cache.
pub fn path(dir: &Path) -> PathBuf {
    dir.join("objects.0000")
}

/// Takes the results of the disk, and keeps the index in the file up to date.
async fn attend(weak: Weak<Shared>) {
    loop {
        let Some(shared) = weak.upgrade() else { return };
        let (watch, deadline) = {
            let mut state = shared.lock();
            shared.drive(&mut state);
            (state.disk.watch(), state.cache.deadline())
        };
        let wait = deadline.map(|at| at.since(shared.now()));
        let changed = shared.changed.clone();
        // The last other owner ends this task by its drop.
        drop(shared);
        let timeout = async {
            match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = watch => {}
            () = changed.notified() => {}
            () = timeout => {}
        }
    }
}

impl Drop for CachedObjects {
    fn drop(&mut self) {
        self.shared.changed.notify_one();
    }
}

impl Shared {
    /// A panic with the lock held leaves whole entries behind: the state stays usable.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn drive(&self, state: &mut State) {
        let now = self.now();
        for result in state.disk.take_results() {
            complain(state.cache.handle_disk(now, result));
        }
        loop {
            state.cache.settle(now, state.hurried);
            let Some(operation) = state.cache.poll_disk() else { break };
            if let Some(result) = state.disk.start_operation(operation) {
                complain(state.cache.handle_disk(now, result));
            }
        }
        state.disk.submit();
        while let Some((id, data)) = state.cache.poll_found() {
            if let Some(waiter) = state.waiting.remove(&id) {
                // The reader may have gone.
                let _ = waiter.send(data);
            }
        }
    }

    /// Looks for bytes in the cache. `None` if it lacks some of them.
    fn look_up(
        &self,
        state: &mut State,
        object: ObjectId,
        range: &Range<u64>,
    ) -> Option<oneshot::Receiver<Option<Bytes>>> {
        let id = state.cache.look_up(object, range)?;
        let (sender, receiver) = oneshot::channel();
        state.waiting.insert(id, sender);
        self.drive(state);
        Some(receiver)
    }

    /// Offers fetched data to the cache, and returns the requested part of it.
    fn take(
        &self,
        object: ObjectId,
        range: &Range<u64>,
        whole: &Range<u64>,
        data: Bytes,
        deletions: u64,
    ) -> Bytes {
        let mut state = self.lock();
        state.cache.missed(range);
        if state.deletions == deletions {
            state.cache.offer(self.now(), Source::Read, object, whole, &data);
        }
        self.drive(&mut state);
        drop(state);
        self.changed.notify_one();
        let start = ((range.start - whole.start) as usize).min(data.len());
        let end = ((range.end - whole.start) as usize).min(data.len());
        data.slice(start..end)
    }

    fn forget(&self, object: ObjectId) {
        let mut state = self.lock();
        state.deletions += 1;
        state.cache.forget(self.now(), object);
        self.drive(&mut state);
        drop(state);
        self.changed.notify_one();
    }
}

fn complain(trouble: Option<Trouble>) {
    match trouble {
        None => {}
        Some(Trouble::Failed(error)) => {
            tracing::error!("the store no longer uses the object cache: {error}");
        }
        Some(Trouble::Damaged(problem)) => {
            tracing::warn!(
                "the object cache is damaged, so the store reads the objects: {problem}"
            );
        }
    }
}

fn data_object(key: &str) -> Option<ObjectId> {
    let (volume, number) = catalog::parse_data_key(key)?;
    Some(ObjectId { volume, number })
}

#[async_trait]
impl Objects for CachedObjects {
    async fn put(&self, key: &str, data: Vec<Bytes>) -> Result<(), PutError> {
        self.objects.put(key, data.clone()).await?;
        let Some(object) = data_object(key) else { return Ok(()) };
        // Offer the new object while there is room: a client is likely to read the latest writes.
        let whole: Vec<u8> = data.concat();
        let whole = Bytes::from(whole);
        let step = OFFER_CELLS * CELL_BYTES as usize;
        let deletions = self.shared.lock().deletions;
        for start in (0..whole.len()).step_by(step) {
            let part = whole.slice(start..whole.len().min(start + step));
            let asked = start as u64..(start + step) as u64;
            {
                let mut state = self.shared.lock();
                if state.deletions != deletions {
                    break;
                }
                state.cache.offer(self.shared.now(), Source::Write, object, &asked, &part);
                self.shared.drive(&mut state);
            }
            tokio::task::yield_now().await;
        }
        self.shared.changed.notify_one();
        Ok(())
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Bytes, GetError> {
        self.objects.get(key, range).await
    }

    fn try_get(&self, key: &str, range: Option<&Range<u64>>) -> Option<Result<Bytes, GetError>> {
        self.objects.try_get(key, range)
    }

    async fn read(&self, key: &str, range: Range<u64>, copies: Copies) -> Result<Bytes, GetError> {
        let Some(object) = data_object(key).filter(|_| copies != Copies::Refused) else {
            return self.objects.get(key, Some(range)).await;
        };
        if copies == Copies::Bad {
            self.shared.forget(object);
            return self.fetch(object, key, &range).await;
        }
        let receiver = {
            let mut state = self.shared.lock();
            let same =
                |(other, place, _): &(ObjectId, Range<u64>, _)| *other == object && *place == range;
            match state.begun.iter().position(same) {
                Some(at) => Some(state.begun.swap_remove(at).2),
                None => self.shared.look_up(&mut state, object, &range),
            }
        };
        if let Some(receiver) = receiver
            && let Ok(Some(data)) = receiver.await
        {
            return Ok(data);
        }
        self.fetch(object, key, &range).await
    }

    fn try_read(
        &self,
        key: &str,
        range: &Range<u64>,
        copies: Copies,
    ) -> Option<Result<Bytes, GetError>> {
        let object = match copies {
            Copies::Refused => return self.objects.try_get(key, Some(range)),
            Copies::Bad => return None,
            Copies::Welcome => data_object(key)?,
        };
        let mut state = self.shared.lock();
        if let Some(mut receiver) = self.shared.look_up(&mut state, object, range) {
            return match receiver.try_recv() {
                Ok(data) => data.map(Ok),
                Err(_) => {
                    state.begun.push((object, range.clone(), receiver));
                    None
                }
            };
        }
        let deletions = state.deletions;
        drop(state);
        let whole = ObjectCache::whole(range);
        let data = self.objects.try_get(key, Some(&whole))?;
        Some(data.map(|data| self.shared.take(object, range, &whole, data, deletions)))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, StorageError> {
        self.objects.list(prefix).await
    }

    async fn list_after(&self, prefix: &str, after: &str) -> Result<Vec<ObjectMeta>, StorageError> {
        self.objects.list_after(prefix, after).await
    }

    async fn restore(&self, key: &str, data: Bytes) -> Result<(), StorageError> {
        let restored = self.objects.restore(key, data).await;
        if let Some(object) = data_object(key) {
            self.shared.forget(object);
        }
        restored
    }

    async fn delete(&self, key: &str) -> Result<(), StorageError> {
        let object = data_object(key);
        if let Some(object) = object {
            self.shared.forget(object);
        }
        let deleted = self.objects.delete(key).await;
        if let Some(object) = object {
            // A read may have offered the object meanwhile.
            self.shared.forget(object);
        }
        deleted
    }

    fn usage(&self) -> Option<Usage> {
        self.objects.usage()
    }

    fn cache(&self) -> Option<CacheReport> {
        Some(CacheReport { status: self.shared.lock().cache.status() })
    }

    async fn finish(&self) {
        let settled = async {
            loop {
                let watch = {
                    let mut state = self.shared.lock();
                    state.hurried = true;
                    self.shared.drive(&mut state);
                    if state.cache.is_settled() || state.cache.status().cache.off {
                        return;
                    }
                    self.shared.changed.notify_one();
                    state.disk.watch()
                };
                // Another watcher may have taken the notice.
                let _ = tokio::time::timeout(Duration::from_millis(20), watch).await;
            }
        };
        if tokio::time::timeout(SETTLE_LIMIT, settled).await.is_err() {
            tracing::warn!("the cache before the objects could not be brought up to date");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_core::block::VolumeId;
    use std::sync::atomic::{AtomicU64, Ordering};

    const SIZE: u64 = 64 << 20;

    /// Objects in memory that count the requests, and may be out of reach.
    #[derive(Default)]
    struct Memory {
        objects: Mutex<HashMap<String, Bytes>>,
        gets: AtomicU64,
        away: std::sync::atomic::AtomicBool,
    }

    #[async_trait]
    impl Objects for Memory {
        async fn put(&self, key: &str, data: Vec<Bytes>) -> Result<(), PutError> {
            self.objects.lock().unwrap().insert(key.into(), data.concat().into());
            Ok(())
        }
        async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Bytes, GetError> {
            self.gets.fetch_add(1, Ordering::Relaxed);
            if self.away.load(Ordering::Relaxed) {
                return Err(GetError::Failed(StorageError::unavailable("away")));
            }
            let objects = self.objects.lock().unwrap();
            let data = objects.get(key).ok_or(GetError::NotFound)?;
            let range = range.unwrap_or(0..data.len() as u64);
            let end = (range.end as usize).min(data.len());
            Ok(data.slice((range.start as usize).min(end)..end))
        }
        async fn list(&self, _: &str) -> Result<Vec<ObjectMeta>, StorageError> {
            Ok(Vec::new())
        }
        async fn delete(&self, key: &str) -> Result<(), StorageError> {
            self.objects.lock().unwrap().remove(key);
            Ok(())
        }
    }

    struct Rig {
        dir: tempfile::TempDir,
        memory: Arc<Memory>,
        objects: Arc<dyn Objects>,
    }

    impl Rig {
        fn new() -> Rig {
            let dir = tempfile::tempdir().unwrap();
            let memory = Arc::new(Memory::default());
            let objects = CachedObjects::open(memory.clone(), dir.path(), 1, SIZE);
            Rig { dir, memory, objects }
        }

        /// Opens the cache as another process, perhaps of another installation.
        fn reopen(&mut self, installation: u128) {
            self.objects = self.memory.clone();
            self.objects =
                CachedObjects::open(self.memory.clone(), self.dir.path(), installation, SIZE);
        }

        /// Reads the way a store does. Also returns whether the read went to the objects.
        async fn read(&self, key: &str, range: Range<u64>, copies: Copies) -> (Bytes, bool) {
            let before = self.memory.gets.load(Ordering::Relaxed);
            let data = match self.objects.try_read(key, &range, copies) {
                Some(data) => data.unwrap(),
                None => self.objects.read(key, range.clone(), copies).await.unwrap(),
            };
            assert_eq!(data, content(range.end)[range.start as usize..], "{key} {range:?}");
            (data, self.memory.gets.load(Ordering::Relaxed) > before)
        }

        fn status(&self) -> longhaul_core::store::cache::ObjectCacheStatus {
            self.objects.cache().unwrap().status
        }
    }

    fn content(bytes: u64) -> Vec<u8> {
        (0..bytes).map(|at| (at % 251) as u8).collect()
    }

    fn key(number: u64) -> String {
        catalog::data_key(VolumeId(9), number)
    }

    async fn eventually(what: impl Fn() -> bool) {
        for _ in 0..500 {
            if what() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("it never came true");
    }

    #[tokio::test]
    async fn the_second_read_does_not_reach_the_objects_nor_one_after_a_restart() {
        let mut rig = Rig::new();
        rig.memory.put(&key(1), vec![content(1 << 20).into()]).await.unwrap();
        assert!(rig.read(&key(1), 5000..13_000, Copies::Welcome).await.1);
        eventually(|| rig.status().cache.valid_bytes > 0).await;
        rig.memory.away.store(true, Ordering::Relaxed);
        assert!(!rig.read(&key(1), 5000..13_000, Copies::Welcome).await.1);
        assert!(!rig.read(&key(1), 6000..6001, Copies::Welcome).await.1);
        let refused = rig.objects.read(&key(1), 5000..13_000, Copies::Refused).await;
        assert!(refused.is_err(), "what the log is made of is asked of the objects");
        rig.objects.finish().await;
        rig.reopen(1);
        assert!(!rig.read(&key(1), 5000..13_000, Copies::Welcome).await.1);
        assert_eq!((rig.status().hits, rig.status().misses), (1, 0));
        rig.memory.away.store(false, Ordering::Relaxed);
        rig.reopen(2);
        assert!(rig.read(&key(1), 5000..13_000, Copies::Welcome).await.1, "another installation");
    }

    #[tokio::test]
    async fn a_bad_copy_is_replaced_and_a_deleted_object_is_gone() {
        let rig = Rig::new();
        rig.memory.put(&key(1), vec![content(20_000).into()]).await.unwrap();
        rig.read(&key(1), 100..9000, Copies::Welcome).await;
        eventually(|| rig.status().cache.valid_bytes > 0).await;
        assert!(!rig.read(&key(1), 100..9000, Copies::Welcome).await.1);
        assert!(rig.read(&key(1), 100..9000, Copies::Bad).await.1);
        eventually(|| rig.status().cache.valid_bytes > 0).await;
        assert!(!rig.read(&key(1), 100..9000, Copies::Welcome).await.1);
        rig.objects.delete(&key(1)).await.unwrap();
        assert!(rig.objects.try_read(&key(1), &(100..9000), Copies::Welcome).is_none());
        let read = rig.objects.read(&key(1), 100..9000, Copies::Welcome).await;
        assert_eq!(read, Err(GetError::NotFound));
    }

    #[tokio::test]
    async fn what_is_put_is_there_and_its_end_is_known() {
        let rig = Rig::new();
        let data = Bytes::from(content(700_000));
        rig.objects.put(&key(3), vec![data.slice(..10), data.slice(10..)]).await.unwrap();
        eventually(|| rig.status().cache.valid_bytes > 690_000).await;
        assert!(!rig.read(&key(3), 0..700_000, Copies::Welcome).await.1);
        assert!(!rig.read(&key(3), 699_999..700_000, Copies::Welcome).await.1);
        let beyond = rig.objects.read(&key(3), 699_990..800_000, Copies::Welcome).await.unwrap();
        assert_eq!(beyond.len(), 10);
        let metadata = catalog::owner_key(VolumeId(9), 1);
        rig.objects.put(&metadata, vec![data.clone()]).await.unwrap();
        assert!(rig.read(&metadata, 0..10, Copies::Welcome).await.1, "not of a volume's data");
    }

    #[tokio::test]
    async fn where_there_can_be_none_there_is_none() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(path(dir.path())).unwrap();
        let objects = CachedObjects::open(Arc::new(Memory::default()), dir.path(), 1, SIZE);
        assert!(objects.cache().is_none());
        let file = dir.path().join("file");
        std::fs::write(&file, "x").unwrap();
        let objects = CachedObjects::open(Arc::new(Memory::default()), &file, 1, SIZE);
        assert!(objects.cache().is_none());
    }
}
