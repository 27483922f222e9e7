//! The replica of a location: having one, and taking it over.
//!
//! Records at both places name it ([`site`]). Stores repeat their changes on it
//! ([`longhaul_objects::Replicated`]). A store that takes it over leaves a mark in the repeated
//! catalog, and goes on with a copy of that catalog. It takes volumes as one store takes them from
//! another. If a store meets any sign of that, it notes that its own location is replaced, and
//! ends.

mod objects;
pub mod standby;

use super::location::{self, LocationRecord, LocationRole, ObjectTrees, ReplicaRecord};
use super::repair::Repair;
use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _};
use longhaul_base::random;
use longhaul_core::block::VolumeId;
use longhaul_core::store::catalog::{PROMOTED_KEY, REPLICATED};
use longhaul_core::store::segment;
use longhaul_core::wire::link::ReplicaState;
use longhaul_objects::{
    CATALOGS, GetError, Location, Objects, PutError, Replicated, Replication, Reusing, TREES,
};
use objects::ReplicaObjects;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most requests at a time for copies or removals of many objects.
const AT_ONCE: usize = 16;

/// The replica of this store's location, or that there is none.
pub struct Replica {
    base: Arc<dyn Objects>,
    replicated: Arc<Replicated>,
    repair: Repair,
    /// Where this is, as others may say it.
    location: String,
    installation: String,
    /// Fingerprint of the CA of its stores.
    ca: String,
    state: Mutex<KnownRecord>,
}

struct KnownRecord {
    site: LocationRecord,
    reusing: Option<Arc<Reusing>>,
    /// The addresses of standby stores, or of those that served when this location was replaced.
    standby: Vec<String>,
}

impl KnownRecord {
    fn new(site: LocationRecord) -> KnownRecord {
        let mut state =
            KnownRecord { site: LocationRecord::first(), reusing: None, standby: Vec::new() };
        state.set(site);
        state
    }

    /// The location is that now. Returns what it was.
    fn set(&mut self, site: LocationRecord) -> LocationRecord {
        match &site.role {
            LocationRole::Primary { second } => {
                let standby = second.as_ref().map(|second| second.standby.clone());
                self.standby = standby.unwrap_or_default();
            }
            // Hosts are to find who goes on.
            LocationRole::Replaced { .. } | LocationRole::Replica { .. } => {}
        }
        std::mem::replace(&mut self.site, site)
    }
}

/// The findings of a look at the replica.
pub enum LocationNews {
    /// It goes on. The flag tells whether the replica has changed.
    Serving(bool),
    /// Somebody has gone on elsewhere: there.
    Replaced(String),
}

impl Replica {
    /// Of a location that is what `site` says.
    pub fn new(
        base: Arc<dyn Objects>,
        replicated: Arc<Replicated>,
        location: &Location,
        installation: &str,
        ca: &str,
        site: LocationRecord,
    ) -> Replica {
        let repair = Repair::new(replicated.clone());
        Replica {
            base,
            replicated,
            repair,
            location: location.to_string(),
            installation: installation.to_owned(),
            ca: ca.to_owned(),
            state: Mutex::new(KnownRecord::new(site)),
        }
    }

    /// Each change under it is whole.
    fn lock(&self) -> MutexGuard<'_, KnownRecord> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The repeated objects.
    pub fn replicated(&self) -> &Arc<Replicated> {
        &self.replicated
    }

    /// Restores objects damaged here from the replica.
    pub fn repair(&self) -> &Repair {
        &self.repair
    }

    /// Addresses of the stores that wait there, for hosts.
    pub fn standby(&self) -> Vec<String> {
        self.lock().standby.clone()
    }

    /// The replica, as far as this store knows.
    pub fn second(&self) -> Option<ReplicaRecord> {
        self.lock().site.second().cloned()
    }

    /// Begins or ends replication, as the location says.
    ///
    /// # Errors
    /// If the replica is unusable.
    pub fn apply(&self, volumes: impl IntoIterator<Item = VolumeId>) -> Result<()> {
        let Some(second) = self.second() else {
            self.replicated.end();
            return Ok(());
        };
        if !self.replicated.is_active() {
            let base: Arc<dyn Objects> =
                Arc::new(ReplicaObjects::new(&second.location, &self.installation)?);
            let tree = second.place.open(base.clone());
            let mut away = tree.clone();
            if let Some(before) = second.before.as_ref().filter(|_| !second.built) {
                let (old, new) = (below(TREES, &before.tree), below(TREES, &second.place.tree));
                let reusing = Arc::new(Reusing::new(base, tree, old, new));
                self.lock().reusing = Some(reusing.clone());
                away = reusing;
            }
            tracing::info!("everything is repeated in {}", second.location);
            self.replicated.begin(away);
            self.replicated.visit(volumes);
        }
        // Until everything has been there once nobody waits for it.
        self.replicated.set_in_step(second.in_step && second.built);
        Ok(())
    }

    /// Reads the present role of the location.
    ///
    /// # Errors
    /// If the read fails.
    pub async fn look(&self, volumes: impl IntoIterator<Item = VolumeId>) -> Result<LocationNews> {
        let site = location::read(&*self.base).await?;
        if let LocationRole::Replaced { by } = &site.role {
            return Ok(LocationNews::Replaced(by.clone()));
        }
        let before = self.lock().set(site.clone());
        let place = |site: &LocationRecord| site.second().map(|second| second.place.clone());
        if place(&before) != place(&site) {
            self.replicated.end();
        }
        let changed = before.second() != site.second();
        if changed {
            self.apply(volumes)?;
        }
        Ok(LocationNews::Serving(changed))
    }

    async fn change(&self, role: LocationRole) -> Result<()> {
        let site = self.lock().site.with(role);
        let site = location::write(&*self.base, site).await?;
        self.lock().set(site);
        Ok(())
    }

    /// Adds a replica.
    ///
    /// # Errors
    /// If it is unusable, holds data that must not be lost, or there is one already.
    pub async fn add(
        &self,
        location: &str,
        in_step: bool,
        standby: Vec<String>,
        discard: bool,
    ) -> Result<()> {
        if let Some(second) = self.second() {
            bail!("the replica is in {}: `longhaul store replica remove` first", second.location);
        }
        let there = ReplicaObjects::new(location, &self.installation)?;
        if there.location().to_string() == self.location {
            bail!("{location} is where the volumes are: give another location");
        }
        let used = there.make().await?;
        let there: Arc<dyn Objects> = Arc::new(there);
        let site = location::read(&*there).await?;
        let empty = site.number == 0 && is_empty(&*there).await?;
        let before = match &site.role {
            _ if empty => None,
            LocationRole::Primary { .. } if used => {
                bail!("a store serves volumes from {location}: stop it, or give another location")
            }
            LocationRole::Primary { .. } if !discard => bail!(
                "{location} has volumes of this installation, which may have changed there: \
                 --discard loses the data that is only there"
            ),
            LocationRole::Primary { .. } | LocationRole::Replaced { .. } => {
                Some(site.place.clone())
            }
            LocationRole::Replica { before, built, .. } => {
                if *built {
                    Some(site.place.clone())
                } else {
                    before.clone()
                }
            }
        };
        let token = format!("{:016x}", random::identity()? >> 64);
        let place = ObjectTrees { tree: token.clone(), catalog: token };
        let of = self.location.clone();
        let role =
            LocationRole::Replica { of, built: false, ca: self.ca.clone(), before: before.clone() };
        location::write(&*there, LocationRecord { place: place.clone(), ..site.with(role) })
            .await?;
        let location = location.to_owned();
        let second = ReplicaRecord { location, place, in_step, built: false, standby, before };
        self.change(LocationRole::Primary { second: Some(second) }).await
    }

    /// Removes the replica.
    ///
    /// # Errors
    /// If there is none, or the write to the location fails.
    pub async fn remove(&self) -> Result<()> {
        let second = self.second().context("the installation has no replica")?;
        self.change(LocationRole::Primary { second: None }).await?;
        // It falls behind from now on: nobody is to go on with it unawares.
        if let Err(error) = self.give_up(&second).await {
            tracing::warn!("{} still says that it is complete: {error:#}", second.location);
        }
        self.lock().reusing = None;
        self.replicated.end();
        Ok(())
    }

    async fn give_up(&self, second: &ReplicaRecord) -> Result<()> {
        let base = ReplicaObjects::new(&second.location, &self.installation)?;
        let there = location::read(&base).await?;
        if let LocationRole::Replica { of, built: true, ca, .. } = &there.role
            && there.place == second.place
        {
            let (of, ca) = (of.clone(), ca.clone());
            let role =
                LocationRole::Replica { of, built: false, ca, before: Some(second.place.clone()) };
            location::write(&base, there.with(role)).await?;
        }
        Ok(())
    }

    /// Sets whether commits wait for the replica.
    ///
    /// # Errors
    /// If there is none, or the write to the location fails.
    pub async fn set_in_step(&self, in_step: bool) -> Result<()> {
        let second = self.second().context("the installation has no replica")?;
        let second = ReplicaRecord { in_step, ..second };
        self.change(LocationRole::Primary { second: Some(second) }).await
    }

    /// Whether the replica has had everything once, and others do not know that yet.
    pub fn may_be_built(&self) -> bool {
        self.second().is_some_and(|second| !second.built) && self.replicated.has_visited()
    }

    /// Notes that the replica has had everything once: a store can take it over.
    ///
    /// # Errors
    /// If the write of the note fails. Then it is still due.
    pub async fn built(&self) -> Result<()> {
        let Some(second) = self.second() else { return Ok(()) };
        let base: Arc<dyn Objects> =
            Arc::new(ReplicaObjects::new(&second.location, &self.installation)?);
        let there = location::read(&*base).await?;
        match &there.role {
            LocationRole::Replica { built: true, .. } if there.place == second.place => {}
            LocationRole::Replica { of, ca, .. } if there.place == second.place => {
                let (of, ca) = (of.clone(), ca.clone());
                let role = LocationRole::Replica { of, built: true, ca, before: None };
                location::write(&*base, there.with(role)).await?;
            }
            _ => bail!("{} is not the replica of this location any more", second.location),
        }
        let second = ReplicaRecord { built: true, before: None, ..second };
        self.change(LocationRole::Primary { second: Some(second.clone()) }).await?;
        tracing::info!("the replica in {} is complete", second.location);
        self.replicated.set_away(second.place.open(base.clone()));
        tokio::spawn(async move {
            if let Err(error) = remove_others(&*base, &second.place).await {
                tracing::warn!(
                    "the old objects in {} stay, and take space: {error:#}",
                    second.location
                );
            }
        });
        Ok(())
    }

    /// Another store seems to have taken over the replica. If so, notes that this location is
    /// replaced.
    ///
    /// # Errors
    /// If no store has, or a read or the write of the note fails.
    pub async fn lost(&self, why: &str) -> Result<String> {
        let second = self.second().context("the installation has no replica")?;
        let base = ReplicaObjects::new(&second.location, &self.installation)?;
        let there = location::read(&base).await?;
        let goes_on = match &there.role {
            LocationRole::Primary { .. } => true,
            LocationRole::Replica { .. } => is_marked(&base, &second.place).await?,
            LocationRole::Replaced { .. } => false,
        };
        if !goes_on {
            bail!(
                "{why}; but no store has taken over {}: somebody wrote to it, or it is damaged. \
                 Replication has stopped: `longhaul store replica remove`, and add it again",
                second.location
            );
        }
        let by = second.location.clone();
        self.change(LocationRole::Replaced { by: by.clone() }).await?;
        Ok(by)
    }

    /// How it is doing.
    pub fn state(&self) -> Option<ReplicaState> {
        let second = self.second()?;
        let reused_bytes = self.lock().reusing.as_ref().map_or(0, |reusing| reusing.reused_bytes());
        let replication = self.replicated.replication();
        let mut state = ReplicaState {
            location: second.location,
            in_step: second.in_step,
            built: second.built,
            standby: second.standby,
            operations: 0,
            bytes: 0,
            lag_ms: 0,
            unknown: 0,
            missing: (0, 0),
            put_bytes: 0,
            reused_bytes,
            trouble: None,
        };
        // The replica may still lack commits from before they waited.
        let waits = state.in_step && state.built;
        let behind = replication.as_ref().and_then(|replication| replication.behind);
        let behind = behind.unwrap_or(1) as u64;
        if let Some(Replication { status, lag, fenced, .. }) = replication {
            state.operations = status.operations;
            state.bytes = status.bytes;
            state.lag_ms = u64::try_from(lag.as_millis()).unwrap_or(u64::MAX);
            state.unknown = status.unknown as u64;
            state.missing = status.visiting;
            state.put_bytes = status.put.1.saturating_sub(reused_bytes);
            state.trouble = fenced.or(status.trouble);
        }
        if waits {
            state.unknown = behind;
        }
        Some(state)
    }
}

/// Beginning of the keys of what has that token.
fn below(trees: &str, token: &str) -> String {
    if token.is_empty() { String::new() } else { format!("{trees}{token}/") }
}

/// Whether there are no volumes in a location.
async fn is_empty(base: &dyn Objects) -> Result<bool> {
    for prefix in REPLICATED.iter().chain(&[TREES, CATALOGS]) {
        if !base.list(prefix).await.map_err(anyhow::Error::new)?.is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn is_marked(base: &dyn Objects, place: &ObjectTrees) -> Result<bool> {
    let key = format!("{}{PROMOTED_KEY}", below(CATALOGS, &place.catalog));
    match base.get(&key, None).await {
        Ok(_) => Ok(true),
        Err(GetError::NotFound) => Ok(false),
        Err(error) => Err(error).context("cannot look whether another store has taken over there"),
    }
}

/// Takes a replica over: from now on it serves the volumes. After an interruption, a second call
/// completes this.
///
/// # Errors
/// If it is no replica, is not complete, or a write fails.
pub async fn promote(base: &Arc<dyn Objects>, force: bool) -> Result<LocationRecord> {
    let site = location::read(&**base).await?;
    let place = match &site.role {
        LocationRole::Primary { .. } => return Ok(site),
        LocationRole::Replaced { by } => bail!(
            "volumes are served from {by} since that took over from here: `longhaul store replica \
             add` there makes this place its replica"
        ),
        LocationRole::Replica { built: true, .. } => site.place.clone(),
        LocationRole::Replica { before: Some(before), .. } if force => before.clone(),
        LocationRole::Replica { before: Some(_), .. } => bail!(
            "the replica is incomplete: --force goes back to the volumes from before it began"
        ),
        LocationRole::Replica { .. } => bail!(
            "the replica is incomplete: wait until `longhaul store replica show` says that it is \
             complete"
        ),
    };
    let old = below(CATALOGS, &place.catalog);
    // A store that still repeats the catalog meets the mark. If it does not, its last change came
    // before, and this store sees it.
    let mark = vec![Bytes::from_static(b"{\"version\":1}\n")];
    match base.put(&format!("{old}{PROMOTED_KEY}"), mark).await {
        Ok(()) | Err(PutError::Exists) => {}
        Err(PutError::Failed(error)) => bail!(error.context("cannot mark the catalog")),
    }
    let catalog = format!("{:016x}", random::identity()? >> 64);
    let new = below(CATALOGS, &catalog);
    for prefix in REPLICATED {
        let list = base.list(&format!("{old}{prefix}")).await.map_err(anyhow::Error::new)?;
        let copies = list.into_iter().map(|meta| {
            let to = format!("{new}{}", meta.key.strip_prefix(&old).unwrap_or(&meta.key));
            async move { base.copy(&meta.key, &to).await }
        });
        let copied = futures_util::stream::iter(copies).buffer_unordered(AT_ONCE);
        copied.try_collect::<Vec<()>>().await.context("cannot copy the catalog")?;
    }
    let place = ObjectTrees { catalog, ..place };
    let role = LocationRole::Primary { second: None };
    location::write(&**base, LocationRecord { place, ..site.with(role) }).await
}

/// Removes all of a location except these trees. Keeps objects whose names nobody may use again:
/// the first segments that stores wrote after others.
async fn remove_others(base: &dyn Objects, place: &ObjectTrees) -> Result<()> {
    let (tree, catalog) = (below(TREES, &place.tree), below(CATALOGS, &place.catalog));
    let mut prefixes = vec![TREES, CATALOGS];
    if !place.tree.is_empty() {
        prefixes.push("v/");
    }
    if !place.catalog.is_empty() {
        prefixes.extend(REPLICATED);
    }
    let kept = |key: &str| {
        let of = |prefix: &str| !prefix.is_empty() && key.starts_with(prefix);
        of(&tree) || of(&catalog)
    };
    for prefix in prefixes {
        let list = base.list(prefix).await.map_err(anyhow::Error::new)?;
        let keys = list.into_iter().map(|meta| meta.key).filter(|key| !kept(key));
        let removed = futures_util::stream::iter(keys).map(|key| async move {
            if key.contains("/seg/") && begins(base, &key).await? {
                return Ok(());
            }
            base.delete(&key).await.map_err(anyhow::Error::new)
        });
        removed.buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
    }
    Ok(())
}

/// Whether a segment is the first of a store after one of another.
async fn begins(base: &dyn Objects, key: &str) -> Result<bool> {
    let range = Some(0..segment::HEADER_BYTES as u64);
    match base.get(key, range).await {
        Ok(header) => {
            Ok(segment::parse_header(&header).is_ok_and(|(header, _)| header.token.begins()))
        }
        Err(GetError::NotFound) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
