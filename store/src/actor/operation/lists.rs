//! Lists of volumes, with the state of volumes that nobody uses.
//!
//! A store opens no volume before somebody wants it, and a list wants none of them. But its reader
//! wants to know which volumes lack acknowledged writes. So the store reads the end of each unknown
//! log, once, a few logs at a time, without an engine that stays. That changes nothing, here or at
//! another store. A list waits for a moment and shows the rest as unknown. The reads go on.

use super::super::completions::Completions;
use super::super::directory::Directory;
use super::super::request::ReplyTo;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use longhaul_base::random;
use longhaul_core::block::{Time, VolumeId};
use longhaul_core::store::{Config, ObjectOperation, Volume, VolumeSpec};
use longhaul_core::wire::link::{LiveInfo, StoreReport};
use longhaul_objects::{self, Objects};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Logs to read at a time. A guess: enough to hide the delay of a bucket, too few to delay hosts.
const AT_ONCE: usize = 8;
/// How long a list waits.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long reading the end of one log may take.
const LIMIT: Duration = Duration::from_secs(30);
/// How long a read state counts while other stores can write to the volume.
const FRESH: Duration = Duration::from_secs(20);

/// The outcomes of the tasks for lists.
pub(in super::super) enum ListDone {
    /// The reports of other stores about volumes.
    Reports(Vec<ReplyTo>, Vec<StoreReport>),
    /// The state at the end of a volume's log, if it is readable.
    Read(VolumeId, Option<LiveInfo>),
    /// A list has waited long enough for that.
    Due(u64),
}

/// The known ends of logs, and the lists that wait for others.
pub(in super::super) struct VolumeLists {
    found: HashMap<VolumeId, (Option<LiveInfo>, Instant)>,
    /// Volumes to read, and volumes with a read under way.
    queue: VecDeque<VolumeId>,
    reading: BTreeSet<VolumeId>,
    lists: Vec<OpenList>,
    next: u64,
    /// Lists that wait until the store has looked at the location.
    before_look: Vec<ReplyTo>,
    objects: Arc<dyn Objects>,
    done: Completions<ListDone>,
}

/// A requested list of volumes.
pub(in super::super) struct AskedList {
    pub to: Vec<ReplyTo>,
    /// The reports of other stores.
    pub reports: Vec<StoreReport>,
}

/// A list that is not complete yet.
struct OpenList {
    number: u64,
    asked: AskedList,
    missing: BTreeSet<VolumeId>,
}

impl VolumeLists {
    pub fn new(objects: Arc<dyn Objects>, done: Completions<ListDone>) -> VolumeLists {
        VolumeLists {
            found: HashMap::new(),
            queue: VecDeque::new(),
            reading: BTreeSet::new(),
            lists: Vec::new(),
            next: 0,
            before_look: Vec::new(),
            objects,
            done,
        }
    }

    /// The read state of a volume, if it still holds. It does if this store is alone.
    pub fn get(&self, id: VolumeId, alone: bool) -> Option<&LiveInfo> {
        let (live, since) = self.found.get(&id)?;
        live.as_ref().filter(|_| alone || since.elapsed() < FRESH)
    }

    /// Whether a read of the end of a log ended a short time ago.
    pub fn is_read(&self, id: VolumeId, alone: bool) -> bool {
        self.found
            .get(&id)
            .is_some_and(|(live, since)| (alone && live.is_some()) || since.elapsed() < FRESH)
    }

    /// Somebody uses the volume, or it is gone.
    pub fn forget(&mut self, id: VolumeId) {
        self.found.remove(&id);
    }

    /// A list that waits until the store has looked at the location.
    pub fn wait_for_look(&mut self, to: ReplyTo) {
        self.before_look.push(to);
    }

    pub fn take_before_look(&mut self) -> Vec<ReplyTo> {
        std::mem::take(&mut self.before_look)
    }

    /// Asks for the reports of the other stores.
    pub fn ask_reports(
        &self,
        to: Vec<ReplyTo>,
        reports: impl Future<Output = Vec<StoreReport>> + Send + 'static,
    ) {
        self.done.spawn(async move { ListDone::Reports(to, reports.await) });
    }

    /// Adds a list that waits until the ends of those logs are known.
    pub fn open(
        &mut self,
        asked: AskedList,
        missing: BTreeSet<VolumeId>,
        (directory, config): (&Directory, &Config),
    ) {
        for id in &missing {
            if !self.reading.contains(id) && !self.queue.contains(id) {
                self.queue.push_back(*id);
            }
        }
        self.next += 1;
        let number = self.next;
        self.lists.push(OpenList { number, asked, missing });
        self.done.spawn(async move {
            tokio::time::sleep(PATIENCE).await;
            ListDone::Due(number)
        });
        self.read_on(directory, config);
    }

    /// A list has waited long enough.
    pub fn due(&mut self, number: u64) -> Vec<AskedList> {
        let due = self.lists.extract_if(.., |list| list.number == number);
        due.map(|list| list.asked).collect()
    }

    /// A read of the end of a log has ended. Returns the complete lists.
    pub fn read(
        &mut self,
        id: VolumeId,
        live: Option<LiveInfo>,
        (directory, config): (&Directory, &Config),
    ) -> Vec<AskedList> {
        self.note(id, live);
        if !directory.has_volume(id) {
            self.forget(id);
        }
        let complete = self.lists.extract_if(.., |list| list.missing.is_empty());
        let complete = complete.map(|list| list.asked).collect();
        self.read_on(directory, config);
        complete
    }

    fn note(&mut self, id: VolumeId, live: Option<LiveInfo>) {
        self.reading.remove(&id);
        self.found.insert(id, (live, Instant::now()));
        for list in &mut self.lists {
            list.missing.remove(&id);
        }
    }

    fn read_on(&mut self, directory: &Directory, config: &Config) {
        while self.reading.len() < AT_ONCE
            && let Some(id) = self.queue.pop_front()
        {
            let Some(spec) = directory.spec(id).cloned() else {
                self.note(id, None);
                continue;
            };
            self.reading.insert(id);
            let (objects, config) = (self.objects.clone(), config.clone());
            self.done.spawn(async move {
                let read = tokio::time::timeout(LIMIT, end_of_log(&objects, spec, config));
                let live = read.await.ok().flatten();
                ListDone::Read(id, live)
            });
        }
    }
}

/// Reads the state at the end of a volume's log; `None` if it is unreadable.
async fn end_of_log(
    objects: &Arc<dyn Objects>,
    spec: VolumeSpec,
    config: Config,
) -> Option<LiveInfo> {
    let origin = Instant::now();
    let now = || Time(u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX));
    let mut volume = Volume::open(now(), spec, random::identity().ok()?, config);
    let mut under_way = FuturesUnordered::new();
    loop {
        if let Some(live) = volume.info() {
            return Some(live);
        }
        if volume.failed().is_some() {
            return None;
        }
        while volume.poll_event().is_some() {}
        while let Some((number, operation)) = volume.poll_object() {
            if matches!(operation, ObjectOperation::Put { .. } | ObjectOperation::Delete { .. }) {
                // Only the store that serves a volume changes anything.
                return volume.info();
            }
            under_way.push(async move {
                (number, longhaul_objects::execute(&**objects, operation).await)
            });
        }
        let due = volume.poll_timeout().map(|at| at.since(now()));
        tokio::select! {
            Some((number, result)) = under_way.next() => volume.handle_object(now(), number, result),
            () = tokio::time::sleep(due.unwrap_or_default()), if due.is_some() => {
                volume.handle_timeout(now());
            }
            else => return None,
        }
    }
}
