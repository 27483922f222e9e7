//! What is known of volumes that nobody uses: a list looks where their logs end.
//!
//! A store opens no volume before somebody wants it, and a list wants none of them. But whoever looks at a list wants to
//! know whose acknowledged writes have not arrived. So the end of each log that is not known is read, once, a few logs at
//! a time, without an engine that stays: that changes nothing, here or at another store. A list waits for a moment and
//! says of the rest that it is not known; the reading goes on.

use super::{Asked, Outcome, Shell};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use longhaul_base::random;
use longhaul_core::block::{Time, VolumeId};
use longhaul_core::store::{Config, ObjectOperation, Volume, VolumeSpec};
use longhaul_core::wire::link::{LiveInfo, StoreReport};
use longhaul_objects::{self, Objects};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Logs that are read at a time. A guess: enough to hide the delay of a bucket, too few to be in a host's way.
const AT_ONCE: usize = 8;
/// How long a list waits.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long reading the end of one log may take.
const LIMIT: Duration = Duration::from_secs(30);
/// How long what was read counts while other stores can write to the volume.
const FRESH: Duration = Duration::from_secs(20);

/// What was read, and who waits for it.
#[derive(Default)]
pub(super) struct Survey {
    found: HashMap<VolumeId, (Option<LiveInfo>, Instant)>,
    /// To be read, and being read.
    queue: VecDeque<VolumeId>,
    reading: BTreeSet<VolumeId>,
    lists: Vec<List>,
    next: u64,
}

/// A list that is not complete yet.
struct List {
    number: u64,
    asked: Vec<Asked>,
    reports: Vec<StoreReport>,
    missing: BTreeSet<VolumeId>,
}

impl Survey {
    /// What was read of a volume, if it still holds.
    pub(super) fn get(&self, id: VolumeId, alone: bool) -> Option<&LiveInfo> {
        let (live, since) = self.found.get(&id)?;
        live.as_ref().filter(|_| alone || since.elapsed() < FRESH)
    }

    fn is_read(&self, id: VolumeId, alone: bool) -> bool {
        self.found
            .get(&id)
            .is_some_and(|(live, since)| (alone && live.is_some()) || since.elapsed() < FRESH)
    }

    /// Somebody uses the volume, or it is gone.
    pub(super) fn forget(&mut self, id: VolumeId) {
        self.found.remove(&id);
    }

    fn read(&mut self, id: VolumeId, live: Option<LiveInfo>) {
        self.reading.remove(&id);
        self.found.insert(id, (live, Instant::now()));
        for list in &mut self.lists {
            list.missing.remove(&id);
        }
    }

    fn complete(&mut self) -> Vec<List> {
        self.lists.extract_if(.., |list| list.missing.is_empty()).collect()
    }
}

impl Shell {
    /// Whether no other store can write to a volume.
    pub(super) fn is_alone(&self) -> bool {
        self.fleet.as_ref().is_none_or(|fleet| fleet.peers.list().is_empty())
    }

    /// Answers a list, once it is known what is to be said of the volumes that whoever asks may see.
    pub(super) fn list(&mut self, asked: Vec<Asked>, reports: Vec<StoreReport>) {
        let alone = self.is_alone();
        let reported: BTreeSet<VolumeId> =
            reports.iter().flat_map(|report| &report.volumes).map(|served| served.volume).collect();
        let unknown = |id: &VolumeId| {
            let seen = asked.iter().any(|asked| self.may_have(asked.session, *id));
            seen && !reported.contains(id)
                && self.live(*id).is_none()
                && !self.survey.is_read(*id, alone)
        };
        let ids = self.catalog.values().map(|entry| entry.spec.id);
        let missing: BTreeSet<VolumeId> = ids.filter(unknown).collect();
        if missing.is_empty() {
            return self.list_with(&asked, &reports);
        }
        for id in &missing {
            if !self.survey.reading.contains(id) && !self.survey.queue.contains(id) {
                self.survey.queue.push_back(*id);
            }
        }
        self.survey.next += 1;
        let number = self.survey.next;
        self.survey.lists.push(List { number, asked, reports, missing });
        let outcomes = self.outcomes.0.clone();
        tokio::spawn(async move {
            tokio::time::sleep(PATIENCE).await;
            let _ = outcomes.send(Outcome::ListDue(number));
        });
        self.read_on();
    }

    /// A list has waited long enough.
    pub(super) fn list_due(&mut self, number: u64) {
        let due: Vec<_> = self.survey.lists.extract_if(.., |list| list.number == number).collect();
        self.answer_lists(due);
    }

    /// The end of a log was read, or could not be.
    pub(super) fn surveyed(&mut self, id: VolumeId, live: Option<LiveInfo>) {
        self.survey.read(id, live);
        if !self.names.contains_key(&id) {
            self.survey.forget(id);
        }
        let complete = self.survey.complete();
        self.answer_lists(complete);
        self.read_on();
    }

    fn answer_lists(&self, lists: Vec<List>) {
        for List { asked, reports, .. } in lists {
            self.list_with(&asked, &reports);
        }
    }

    fn read_on(&mut self) {
        while self.survey.reading.len() < AT_ONCE
            && let Some(id) = self.survey.queue.pop_front()
        {
            let name = self.names.get(&id);
            let entry = name.and_then(|name| self.catalog.get(name));
            let Some(spec) = entry.map(|entry| entry.spec.clone()) else {
                self.survey.read(id, None);
                continue;
            };
            self.survey.reading.insert(id);
            let (objects, outcomes) = (self.objects.clone(), self.outcomes.0.clone());
            let config = self.config.clone();
            tokio::spawn(async move {
                let read = tokio::time::timeout(LIMIT, end_of_log(&objects, spec, config));
                let live = read.await.ok().flatten();
                let _ = outcomes.send(Outcome::Surveyed(id, live));
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
