//! The scrub: reads and verifies every object of every volume, slowly, again and again.
//!
//! The file `scrub.json` in the state directory holds its position and its findings. So the scrub
//! goes on after a restart and forgets no finding. It has damaged objects restored from the
//! replica, if there is one. Otherwise it changes no object.

use super::clock::now;
use super::peers::Peers;
use super::repair::Repair;
use super::{catalog, lease};
use anyhow::{Context as _, Result};
use bytes::Bytes;
use longhaul_api::admin::Metrics;
use longhaul_base::files;
use longhaul_core::block::{Range, VolumeId};
use longhaul_core::store::{VolumeSpec, scrub};
use longhaul_core::wire::link::{StoreId, StoreOperation};
use longhaul_objects::{GetError, Objects};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;

/// Objects verified between two notes of how far it is.
const NOTE_EVERY: u64 = 64;
/// Pauses before the next read of an unreadable object. After the last pause it counts as lost, if
/// other objects are readable. An object that does not verify gets one more read after the first
/// pause.
const RETRY_PAUSES: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(10), Duration::from_secs(60)];
/// Longest sleep. Then the scrub looks at the clock again, because somebody may have set it.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);
/// Most damaged objects to remember, and most ranges of each. Only the log has the others.
const DAMAGE_MAX: usize = 1000;
const RANGES_MAX: usize = 64;
/// The file's format.
const VERSION: u32 = 1;

/// How to scrub.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// From the beginning of one pass to that of the next; zero for never.
    pub every: Duration,
    /// Most bytes read in a second.
    pub bytes_per_second: u64,
}

/// The content of the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ScrubState {
    version: u32,
    /// When the last pass began, or if there was none, when the store did, in seconds since 1970.
    began: u64,
    /// When the last whole pass ended.
    ended: Option<u64>,
    /// The last object that the present pass has verified; nothing if none is under way.
    at: Option<String>,
    /// Known damage.
    damage: Vec<DamagedObject>,
    /// The damage that the present pass has found.
    found: Vec<DamagedObject>,
}

/// A damaged object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct DamagedObject {
    volume: String,
    object: String,
    problem: String,
    /// First sector and number of sectors.
    sectors: Vec<(u64, u64)>,
    /// Whether more may be lost than `sectors` says.
    unknown: bool,
    /// All of `sectors`, until their report.
    #[serde(skip)]
    ranges: Vec<Range>,
}

/// An object with damage to its content of these ranges of its volume.
#[derive(Clone, Debug)]
pub struct FoundDamage {
    /// Whose it is.
    pub volume: VolumeId,
    /// Its key.
    pub object: String,
    /// The ranges that it lost. Later writes may have replaced them elsewhere.
    pub ranges: Vec<Range>,
}

#[derive(Debug)]
struct ScrubShared {
    state: ScrubState,
    /// Since the start.
    objects: u64,
    bytes: u64,
    failures: u64,
    told_bytes: u64,
    /// The receiver of the findings.
    reports: Option<mpsc::UnboundedSender<FoundDamage>>,
}

/// The volumes that one of several stores scrubs. These are the volumes that it has, and its part
/// of the volumes that no answering store has.
pub struct Share {
    /// This store.
    pub me: StoreId,
    /// The others.
    pub peers: Peers,
}

impl Share {
    async fn has(&self, objects: &dyn Objects, volume: VolumeId) -> Result<bool> {
        let mut stores: Vec<StoreId> = self.peers.list().into_keys().collect();
        let holder = lease::holder(objects, volume).await.map_err(anyhow::Error::new)?;
        if let Some((holder, addresses)) = holder {
            if holder == self.me {
                return Ok(true);
            }
            let report = self.peers.operate(holder, &addresses, StoreOperation::Report);
            if stores.contains(&holder) && report.await.is_ok() {
                return Ok(false);
            }
            stores.retain(|store| *store != holder);
        }
        // Each store decides the same without asking.
        stores.push(self.me);
        let weight = |store: &StoreId| {
            let both = [volume.0.to_be_bytes(), store.0.to_be_bytes()].concat();
            let digest = ring::digest::digest(&ring::digest::SHA256, &both);
            digest.as_ref().to_vec()
        };
        Ok(stores.into_iter().min_by_key(weight) == Some(self.me))
    }
}

/// A scrub that may be under way.
#[derive(Clone, Debug)]
pub struct Scrub {
    settings: Settings,
    file: PathBuf,
    shared: Arc<Mutex<ScrubShared>>,
}

impl Scrub {
    /// Reads the file in the state directory. If it is unreadable, begins anew: it holds nothing
    /// that a pass does not find out.
    pub fn open(state: &Path, settings: Settings) -> Scrub {
        let file = state.join("scrub.json");
        let state = match read(&file) {
            Ok(Some(state)) => state,
            Ok(None) => ScrubState::new(),
            Err(error) => {
                tracing::warn!("the scrub begins anew: {error:#}");
                ScrubState::new()
            }
        };
        let shared =
            ScrubShared { state, objects: 0, bytes: 0, failures: 0, told_bytes: 0, reports: None };
        Scrub { settings, file, shared: Arc::new(Mutex::new(shared)) }
    }

    /// Scrubs for ever, or not at all if the settings say so: this store's share, or everything
    /// where there are no others.
    pub async fn run(self, objects: Arc<dyn Objects>, share: Option<Share>, repair: Repair) {
        if self.settings.every.is_zero() || self.settings.bytes_per_second == 0 {
            return;
        }
        let state = self.shared().state.clone();
        self.note(&state).await;
        loop {
            let due = self.shared().state.due(self.settings.every);
            match due.duration_since(SystemTime::now()) {
                Ok(wait) if !wait.is_zero() => {
                    tokio::time::sleep(wait.min(LONGEST_SLEEP)).await;
                    continue;
                }
                _ => {}
            }
            if let Err(error) = self.pass(&*objects, share.as_ref(), &repair).await {
                tracing::warn!("the scrub pauses: {error:#}");
                tokio::time::sleep(RETRY_PAUSES[2]).await;
            }
        }
    }

    /// One pass, or the rest of it.
    async fn pass(
        &self,
        objects: &dyn Objects,
        share: Option<&Share>,
        repair: &Repair,
    ) -> Result<()> {
        {
            let state = &mut self.shared().state;
            if state.at.is_none() {
                state.began = now();
                state.at = Some(String::new());
                state.found.clear();
            }
        }
        let mut volumes: Vec<_> = catalog::load(objects).await?.entries.into_values().collect();
        volumes.sort_by_key(|entry| entry.spec.id);
        for entry in volumes {
            let ours = match share {
                Some(share) => share.has(objects, entry.spec.id).await?,
                None => true,
            };
            if ours {
                self.volume(objects, &entry.spec, repair).await?;
            }
        }
        let mut state = self.shared().state.clone();
        state.ended = Some(now());
        state.at = None;
        state.damage = std::mem::take(&mut state.found);
        let ended = state.damage.len();
        self.note(&state).await;
        self.shared().state = state;
        match ended {
            0 => tracing::info!("the scrub has come to its end, no object is damaged"),
            damaged => tracing::error!(
                "the scrub has come to its end: {damaged} objects are damaged, see /status at the \
                 admin address"
            ),
        }
        Ok(())
    }

    async fn volume(
        &self,
        objects: &dyn Objects,
        spec: &VolumeSpec,
        repair: &Repair,
    ) -> Result<()> {
        let prefix = longhaul_core::store::catalog::volume_prefix(spec.id);
        let at = self.shared().state.at.clone().unwrap_or_default();
        if at > prefix && !at.starts_with(&prefix) {
            return Ok(());
        }
        let list = objects.list(&prefix).await.map_err(anyhow::Error::new)?;
        let mut keys: Vec<_> =
            list.into_iter().map(|meta| meta.key).filter(|key| *key > at).collect();
        keys.sort_unstable();
        for (number, key) in keys.into_iter().enumerate() {
            let mut damage = self.object(objects, spec, &key).await?;
            if damage.is_some() && repair.object(spec, &key).await {
                damage = self.object(objects, spec, &key).await?;
            }
            self.report(spec, damage.as_mut());
            let mut state = self.shared().state.clone();
            state.damage.retain(|known| known.object != key);
            for list in [&mut state.damage, &mut state.found] {
                if list.len() < DAMAGE_MAX {
                    list.extend(damage.clone());
                }
            }
            state.at = Some(key.clone());
            if damage.is_some() || number as u64 % NOTE_EVERY == NOTE_EVERY - 1 {
                self.note(&state).await;
            }
            // A restart must not forget reported findings.
            self.shared().state = state;
            if let Some(damage) = &damage {
                tracing::error!(
                    "volume {}: {key} is damaged: {}{}",
                    spec.name,
                    damage.problem,
                    in_words(damage)
                );
            }
        }
        Ok(())
    }

    /// Returns a receiver of all findings from now on. It replaces the earlier receiver.
    pub fn reports(&self) -> mpsc::UnboundedReceiver<FoundDamage> {
        let (reports, found) = mpsc::unbounded_channel();
        self.shared().reports = Some(reports);
        found
    }

    fn report(&self, spec: &VolumeSpec, damage: Option<&mut DamagedObject>) {
        let Some(damage) = damage else { return };
        let ranges = std::mem::take(&mut damage.ranges);
        if let Some(reports) = self.shared().reports.as_ref().filter(|_| !ranges.is_empty()) {
            let object = damage.object.clone();
            let _ = reports.send(FoundDamage { volume: spec.id, object, ranges });
        }
    }

    /// Known damaged objects of a volume, and their lost ranges, as far as the scrub remembers
    /// them.
    pub fn known(&self, volume: VolumeId) -> Vec<(String, Vec<Range>)> {
        let prefix = longhaul_core::store::catalog::volume_prefix(volume);
        let shared = self.shared();
        let damage = shared.state.damage.iter();
        let damage =
            damage.filter(|known| known.object.starts_with(&prefix) && !known.sectors.is_empty());
        let ranges = |known: &DamagedObject| {
            known.sectors.iter().map(|&(lba, sectors)| Range::new(lba, sectors)).collect()
        };
        damage.map(|known| (known.object.clone(), ranges(known))).collect()
    }

    /// Counts damaged bytes reported to hosts.
    pub fn told(&self, bytes: u64) {
        self.shared().told_bytes += bytes;
    }

    /// Verifies an object. It counts as damaged only after a second read: a network may have
    /// damaged the first one.
    async fn object(
        &self,
        objects: &dyn Objects,
        spec: &VolumeSpec,
        key: &str,
    ) -> Result<Option<DamagedObject>> {
        let mut attempt = 0;
        loop {
            let (tries, problem, damage) = match self.read(objects, key).await {
                Ok(data) => match verify(spec, key, data).await? {
                    Ok(()) => return Ok(None),
                    Err(damage) => (1, damage.problem.clone(), damage),
                },
                // Somebody has deleted it meanwhile. If a segment is missing wrongly, the next open
                // of the volume notices.
                Err(GetError::NotFound) => return Ok(None),
                Err(GetError::Damaged(problem)) => {
                    let damage = scrub::Damage { problem, ranges: Vec::new(), unknown: true };
                    (1, damage.problem.clone(), damage)
                }
                Err(GetError::Failed(error)) => {
                    self.shared().failures += 1;
                    let problem = format!("it cannot be read: {error}");
                    let damage = scrub::Damage { problem, ranges: Vec::new(), unknown: true };
                    (RETRY_PAUSES.len(), error.to_string(), damage)
                }
            };
            let Some(pause) = RETRY_PAUSES[..tries].get(attempt) else {
                // If no read works, nothing is known about this object.
                let probe = longhaul_core::store::catalog::name_key(&spec.name);
                return match objects.get(&probe, None).await {
                    Ok(_) | Err(GetError::NotFound | GetError::Damaged(_)) => {
                        Ok(Some(DamagedObject::new(spec, key, damage)))
                    }
                    Err(GetError::Failed(_)) => Err(anyhow::Error::msg(problem)),
                };
            };
            attempt += 1;
            tracing::debug!("{key}: {problem}; once more");
            tokio::time::sleep(*pause).await;
        }
    }

    /// Reads an object, and waits until the next read may begin.
    async fn read(&self, objects: &dyn Objects, key: &str) -> Result<Bytes, GetError> {
        let data = objects.get(key, None).await?;
        let seconds = data.len() as f64 / self.settings.bytes_per_second as f64;
        {
            let mut shared = self.shared();
            shared.objects += 1;
            shared.bytes += data.len() as u64;
        }
        tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
        Ok(data)
    }

    /// Writes down how far it is, on another thread: a sync takes longer than hosts may wait.
    async fn note(&self, state: &ScrubState) {
        let (state, file) = (state.clone(), self.file.clone());
        let write = move || files::replace(&file, &serde_json::to_vec_pretty(&state)?, 0o600);
        let written = tokio::task::spawn_blocking(write).await;
        if let Err(error) = written.map_err(anyhow::Error::from).flatten() {
            tracing::warn!("how far the scrub is cannot be noted: {error:#}");
        }
    }

    fn shared(&self) -> MutexGuard<'_, ScrubShared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For Prometheus.
    pub fn metrics(&self, out: &mut Metrics) {
        let shared = self.shared();
        for (name, help, value) in [
            (
                "longhaul_store_scrub_objects_total",
                "Objects that the scrub has read.",
                shared.objects,
            ),
            ("longhaul_store_scrub_bytes_total", "Bytes in them.", shared.bytes),
            (
                "longhaul_store_scrub_failures_total",
                "Objects that it could not read at once.",
                shared.failures,
            ),
            (
                "longhaul_store_damage_told_bytes_total",
                "Damaged bytes reported to their hosts.",
                shared.told_bytes,
            ),
        ] {
            out.single(name, "counter", help, value as f64);
        }
        let help = "When the last whole pass of the scrub ended; 0 if none has.";
        let ended = shared.state.ended.unwrap_or(0);
        out.single("longhaul_store_scrub_ended_timestamp_seconds", "gauge", help, ended as f64);
        let help = "Objects that are damaged, as far as the scrub knows.";
        let damaged = shared.state.damage.len();
        out.single("longhaul_store_scrub_damaged_objects", "gauge", help, damaged as f64);
    }

    /// The damage of a volume, for the status.
    pub fn volume_json(&self, name: &str) -> Value {
        let shared = self.shared();
        let damage = shared.state.damage.iter().filter(|damage| damage.volume == name);
        let damage = damage.map(|damage| {
            let ranges = damage.sectors.iter().map(|&(lba, sectors)| {
                json!({ "offset_bytes": lba.saturating_mul(512), "bytes": sectors.saturating_mul(512) })
            });
            json!({
                "object": damage.object,
                "problem": damage.problem,
                "ranges": ranges.collect::<Vec<_>>(),
                "unknown": damage.unknown,
            })
        });
        damage.collect()
    }

    /// For the status: of all.
    pub fn json(&self) -> Value {
        let shared = self.shared();
        json!({
            "every_seconds": self.settings.every.as_secs(),
            "began": shared.state.began,
            "ended": shared.state.ended,
            "at": shared.state.at.as_ref().filter(|at| !at.is_empty()),
            "objects": shared.objects,
            "bytes": shared.bytes,
            "damaged_objects": shared.state.damage.len(),
        })
    }
}

impl ScrubState {
    fn new() -> ScrubState {
        let (damage, found) = (Vec::new(), Vec::new());
        ScrubState { version: VERSION, began: now(), ended: None, at: None, damage, found }
    }

    /// When a pass is to begin, or to go on.
    fn due(&self, every: Duration) -> SystemTime {
        let began = SystemTime::UNIX_EPOCH + Duration::from_secs(self.began);
        match self.at {
            Some(_) => SystemTime::UNIX_EPOCH,
            // A clock that went back must not put it off for years.
            None => began.min(SystemTime::now()) + every,
        }
    }
}

impl DamagedObject {
    fn new(spec: &VolumeSpec, key: &str, damage: scrub::Damage) -> DamagedObject {
        let scrub::Damage { problem, ranges, unknown } = damage;
        let unknown = unknown || ranges.len() > RANGES_MAX;
        let sectors = ranges.iter().take(RANGES_MAX);
        let sectors = sectors.map(|range| (range.lba, range.sectors)).collect();
        let (volume, object) = (spec.name.clone(), key.to_owned());
        DamagedObject { volume, object, problem, sectors, unknown, ranges }
    }
}

/// The cost of the damage, for the log.
fn in_words(damage: &DamagedObject) -> String {
    const SHOWN: usize = 8;
    let ranges = damage.sectors.iter().take(SHOWN);
    let ranges: Vec<_> =
        ranges.map(|&(lba, sectors)| Range::new(lba, sectors).to_string()).collect();
    let more = if damage.sectors.len() > SHOWN { " and more" } else { "" };
    match (ranges.is_empty(), damage.unknown) {
        (true, true) => "; its content is unreadable until clients write it anew".into(),
        (true, false) => String::new(),
        (false, _) => format!(
            "; {}{more} cannot be read, as far as it is not written anew",
            ranges.join(", ")
        ),
    }
}

/// On another thread: this one serves hosts.
async fn verify(
    spec: &VolumeSpec,
    key: &str,
    data: Bytes,
) -> Result<Result<(), scrub::Damage>, tokio::task::JoinError> {
    let (spec, key) = (spec.clone(), key.to_owned());
    let verify = move || scrub::verify(&spec, &key, &data).unwrap_or(Ok(()));
    tokio::task::spawn_blocking(verify).await
}

/// Whether the file in a state directory holds the position of the scrub.
///
/// # Errors
/// If it is damaged, or a newer longhaul wrote it.
pub fn check_file(file: &Path) -> Result<()> {
    read(file).map(drop)
}

fn read(file: &Path) -> Result<Option<ScrubState>> {
    let text = match files::read(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
    };
    let state: ScrubState =
        serde_json::from_slice(&text).with_context(|| format!("{} is damaged", file.display()))?;
    anyhow::ensure!(
        state.version == VERSION,
        "{} is of format {}, which needs a newer longhaul",
        file.display(),
        state.version
    );
    Ok(Some(state))
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_core::store::lease::{Lease, key};
    use longhaul_link::credential;
    use longhaul_objects::LocalObjects;

    const STORES: [StoreId; 3] = [StoreId(1), StoreId(2), StoreId(3)];

    #[tokio::test]
    async fn each_volume_is_of_one_store() {
        let dir = tempfile::tempdir().unwrap();
        let objects = LocalObjects::open(dir.path()).unwrap();
        let identity = credential::prepare(dir.path(), &[], "").unwrap();
        // Nobody listens there.
        let nowhere = || vec!["127.0.0.1:1".to_owned()];
        let share = |me: StoreId| {
            let peers = Peers::new(identity.own.clone());
            let others = STORES.into_iter().filter(|store| *store != me);
            peers.set(others.map(|store| (store, nowhere())).collect());
            Share { me, peers }
        };
        let shares = STORES.map(share);
        let mut parts = [0; 3];
        for volume in (1..=40).map(VolumeId) {
            let holder = match volume.0 {
                1..=2 => Some(STORES[0]),
                // Of a store that is there no more.
                3 => Some(StoreId(9)),
                _ => None,
            };
            if let Some(store) = holder {
                let held = Lease::Held { store, incarnation: 1, addresses: nowhere() };
                objects.put(&key(volume, 1), vec![held.encode().into()]).await.unwrap();
            }
            let mut ours = Vec::new();
            for share in &shares {
                ours.push(share.has(&objects, volume).await.unwrap());
            }
            match holder {
                // It does not answer: another one takes its place, until it is back.
                Some(store) if STORES.contains(&store) => {
                    assert!(ours[0] && ours[1] != ours[2], "{volume}: {ours:?}");
                }
                _ => {
                    let one = ours.iter().position(|ours| *ours).unwrap();
                    assert_eq!(ours.iter().filter(|ours| **ours).count(), 1, "{volume}: {ours:?}");
                    parts[one] += 1;
                }
            }
        }
        assert!(parts.iter().all(|part| *part > 4), "{parts:?}");
    }
}
