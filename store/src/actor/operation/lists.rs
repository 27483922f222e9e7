//! Lists of volumes, and what they say of volumes that nobody uses.
//!
//! A store opens no volume before somebody wants it, and a list wants none of them. But whoever
//! looks at a list wants to know whose acknowledged writes have not arrived. So the end of each log
//! that is not known is read, once, a few logs at a time, without an engine that stays: that
//! changes nothing, here or at another store. A list waits for a moment and says of the rest that
//! it is not known; the reading goes on.

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

/// Logs that are read at a time. A guess: enough to hide the delay of a bucket, too few to be in a
/// host's way.
const AT_ONCE: usize = 8;
/// How long a list waits.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long reading the end of one log may take.
const LIMIT: Duration = Duration::from_secs(30);
/// How long what was read counts while other stores can write to the volume.
const FRESH: Duration = Duration::from_secs(20);

/// What became of the tasks for lists.
pub(in super::super) enum ListDone {
    /// What other stores know of volumes.
    Reports(Vec<ReplyTo>, Vec<StoreReport>),
    /// What the end of a volume's log says, if it can be read.
    Read(VolumeId, Option<LiveInfo>),
    /// A list has waited long enough for that.
    Due(u64),
}

/// Ends of logs that were read, and the lists that wait for others.
pub(in super::super) struct VolumeLists {
    found: HashMap<VolumeId, (Option<LiveInfo>, Instant)>,
    /// To be read, and being read.
    queue: VecDeque<VolumeId>,
    reading: BTreeSet<VolumeId>,
    lists: Vec<OpenList>,
    next: u64,
    /// Lists that wait until the store has looked at the location.
    before_look: Vec<ReplyTo>,
    objects: Arc<dyn Objects>,
    done: Completions<ListDone>,
}

/// A list of volumes that was asked for.
pub(in super::super) struct AskedList {
    pub to: Vec<ReplyTo>,
    /// What other stores say.
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

    /// What was read of a volume, if it still holds. It does if this store is alone.
    pub fn get(&self, id: VolumeId, alone: bool) -> Option<&LiveInfo> {
        let (live, since) = self.found.get(&id)?;
        live.as_ref().filter(|_| alone || since.elapsed() < FRESH)
    }

    /// Whether the end of a log was read, or could not be, a short time ago.
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

    /// A list waits until the ends of those logs are read.
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

    /// The end of a log was read, or could not be. Returns the lists that are complete.
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

/// What the log of a volume says at its end; nothing if it cannot be read.
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
                // Only whoever serves a volume changes anything.
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
