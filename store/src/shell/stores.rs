//! This store among the others of its installation: what they ask of it, and where its hosts go.

use super::{Asked, Outcome, Shell};
use crate::balance::{self, Guest, Load};
use crate::catalog;
use crate::lease::Holder;
use crate::peers::Peers;
use crate::registry::{self, Registered};
use crate::replica::Looked;
use crate::trash;
use longhaul_core::block::VolumeId;
use longhaul_core::wire::link::{
    LiveInfo, MAX_SERVED, MAX_SERVED_NAME_BYTES, MAX_STORES, Principal, Served, StoreId,
    StoreOperation, StoreReply, StoreReport, StoreState, ToHost, VolumeError, VolumeInfo,
    VolumeReply,
};
use longhaul_link::credential::{self, Issued, Stamp};
use longhaul_link::party;
use longhaul_objects::Objects;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often hosts that are to leave are told so: some may not have found another store yet.
pub(super) const REMIND: Duration = Duration::from_secs(2);

/// This store as one of several. A store that has its objects for itself is none.
pub struct Fleet {
    /// It, as leases name it.
    pub me: Holder,
    /// The others.
    pub peers: Peers,
    /// Its state directory.
    pub state: PathBuf,
    draining: bool,
    issued: Arc<Issued>,
    /// What was accepted when the other stores agreed.
    accepted: Option<Stamp>,
    /// To be told that something has changed, once it is in the location.
    tell: bool,
    /// When traffic was looked at last.
    measured: Instant,
    /// Of each session: bytes until then, and how many a second before.
    traffic: BTreeMap<u64, (u64, u64)>,
}

impl Fleet {
    /// A store among others.
    pub fn new(me: Holder, peers: Peers, state: PathBuf, issued: Arc<Issued>) -> Fleet {
        let (measured, traffic) = (Instant::now(), BTreeMap::new());
        let accepted = issued.stamp();
        let (draining, tell) = (false, false);
        Fleet { me, peers, state, draining, issued, accepted, tell, measured, traffic }
    }

    /// Whether hosts are to leave it.
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    fn rate(&self, session: u64) -> u64 {
        self.traffic.get(&session).map_or(0, |(_, rate)| *rate)
    }
}

/// Certificates that are being signed or seen to.
#[derive(Default)]
pub(super) struct Signing {
    /// For whom.
    parties: BTreeSet<String>,
    /// This store's own.
    tending: bool,
}

/// What was found in the location.
pub(super) struct Found {
    stores: BTreeMap<StoreId, Registered>,
    volumes: catalog::Changes,
    deleted: Vec<VolumeId>,
    site: Looked,
}

/// The addresses of all stores as hosts are told them: this one's first, unless hosts are to leave it.
pub fn addresses(me: &Holder, others: &BTreeMap<StoreId, Vec<String>>, last: bool) -> Vec<String> {
    let others = others.values().flatten().cloned();
    let own = me.addresses.iter().cloned();
    let mut all: Vec<String> =
        if last { others.chain(own).collect() } else { own.chain(others).collect() };
    let mut seen = BTreeSet::new();
    all.retain(|address| seen.insert(address.clone()));
    all.truncate(MAX_STORES);
    all
}

fn served(volume: VolumeId, mut live: LiveInfo) -> Served {
    let length = live.name.floor_char_boundary(MAX_SERVED_NAME_BYTES);
    live.name.truncate(length);
    Served { volume, live }
}

/// Strikes a store off the list and withdraws its certificate, unless it answers.
async fn forget(
    objects: &dyn Objects,
    state: &Path,
    peers: &Peers,
    id: StoreId,
) -> Result<(), VolumeError> {
    let failed = |error: anyhow::Error| VolumeError::Store(format!("{error:#}"));
    let known = registry::stores(objects).await.map_err(failed)?;
    let Some(registered) = known.get(&id) else {
        return Err(VolumeError::Invalid(format!("there is no store {id}")));
    };
    if peers.operate(id, &registered.addresses, StoreOperation::Report).await.is_ok() {
        let why = format!("store {id} answers: stop it first");
        return Err(VolumeError::Invalid(why));
    }
    // First, so that a forget that is cut short can be repeated.
    registry::agree(objects, state).await.map_err(failed)?;
    credential::revoke_store(state, &id.to_string()).map_err(failed)?;
    registry::agree(objects, state).await.map_err(failed)?;
    registry::forget(objects, &known, &[id]).await.map_err(failed)?;
    tracing::info!("store {id} does not answer: it is forgotten, and its certificate withdrawn");
    Ok(())
}

impl Shell {
    /// A session has begun.
    pub(super) fn session_opened(&mut self, session: u64, principal: &Principal) {
        // A host that is to leave is told when hosts are reminded.
        if principal.store {
            self.stores.insert(session);
        }
    }

    /// Something about stores is asked.
    pub(super) fn store_operation(&mut self, asked: Asked, operation: StoreOperation) {
        if let StoreOperation::Replica(operation) = operation {
            return self.replica_operation(asked, operation);
        }
        if let StoreOperation::Renew { request } = operation {
            return self.renew(asked, request);
        }
        let Some(fleet) = &mut self.fleet else {
            let why = "this store has its data for itself: there are no others".to_owned();
            return self.reply_store(asked, Err(VolumeError::Invalid(why)));
        };
        match operation {
            StoreOperation::Report => {
                let report = self.report();
                let reply = report.map(StoreReply::Report).ok_or(VolumeError::NotFound);
                self.reply_store(asked, reply);
            }
            StoreOperation::List => {
                let (peers, outcomes) = (fleet.peers.clone(), self.outcomes.0.clone());
                tokio::spawn(async move {
                    let reports = peers.reports().await;
                    let others = reports.into_iter().map(|(id, addresses, report)| {
                        let report =
                            report.map(|report| StoreReport { volumes: Vec::new(), ..report });
                        StoreState { id, addresses, report }
                    });
                    let _ = outcomes.send(Outcome::Stores(asked, others.collect()));
                });
            }
            StoreOperation::Refresh => {
                fleet.peers.heard();
                self.look_around();
                self.reply_store(asked, Ok(StoreReply::Done));
            }
            StoreOperation::Release { .. } if !self.stores.contains(&asked.session) => {
                let why = "only another store may ask for that".to_owned();
                self.reply_store(asked, Err(VolumeError::Invalid(why)));
            }
            StoreOperation::Release { .. } => self.release(asked, operation),
            StoreOperation::Sign { store, request } => self.join(asked, store, request),
            StoreOperation::Drain { on } => {
                if on && fleet.peers.list().is_empty() {
                    let why = "there is no other store to go to".to_owned();
                    return self.reply_store(asked, Err(VolumeError::Invalid(why)));
                }
                if fleet.draining != on {
                    tracing::info!(
                        "{}",
                        if on {
                            "draining: hosts are sent to other stores"
                        } else {
                            "not draining"
                        }
                    );
                }
                fleet.draining = on;
                self.tell_hosts();
                self.reply_store(asked, Ok(StoreReply::Done));
            }
            StoreOperation::Replica(_) | StoreOperation::Renew { .. } => {}
            StoreOperation::Rebalance => self.rebalance(Some(asked)),
            StoreOperation::Forget { id } if id == fleet.me.id => {
                let why = "this is that store: stop it, and ask another one".to_owned();
                self.reply_store(asked, Err(VolumeError::Invalid(why)));
            }
            StoreOperation::Forget { id } => {
                let (objects, outcomes) = (self.objects.clone(), self.outcomes.0.clone());
                let (peers, state) = (fleet.peers.clone(), fleet.state.clone());
                tokio::spawn(async move {
                    let forgotten = forget(&*objects, &state, &peers, id).await;
                    let _ = outcomes.send(Outcome::Forgotten(asked, forgotten));
                });
            }
        }
    }

    /// Somebody wants another certificate for the same key. The other stores hear of it when stores are reminded.
    fn renew(&mut self, asked: Asked, request: Vec<u8>) {
        let Some(principal) = self.guests.principal(asked.session).cloned() else { return };
        let state = self.own.state().to_owned();
        let key = principal.key.to_string();
        self.sign(asked, &principal.clone(), move || {
            credential::renew(&state, &principal.serial, &key, &request).map(StoreReply::Renewed)
        });
    }

    /// Somebody with a token is to become a store.
    fn join(&mut self, asked: Asked, store: StoreId, request: Vec<u8>) {
        let Some(fleet) = &self.fleet else { return };
        let Some(principal) = self.guests.principal(asked.session).cloned() else { return };
        let (state, id) = (fleet.state.clone(), store.to_string());
        self.sign(asked, &principal.clone(), move || {
            let signed = credential::answer(&state, &principal.serial, &id, &request)?;
            let credential::Signed { certificate, ca_key, list } = signed;
            Ok(StoreReply::Signed { certificate, ca_key, list })
        });
    }

    /// Signs something for somebody, which takes files, a lock and syncs: on another thread, one after the other for each
    /// party.
    fn sign(
        &mut self,
        asked: Asked,
        principal: &Principal,
        work: impl FnOnce() -> anyhow::Result<StoreReply> + Send + 'static,
    ) {
        let party = party(principal);
        if !self.signing.parties.insert(party.clone()) {
            let why =
                "a certificate is just being signed for this tenant, or credential; try again";
            return self.reply_store(asked, Err(VolumeError::Store(why.to_owned())));
        }
        let outcomes = self.outcomes.0.clone();
        tokio::task::spawn_blocking(move || {
            let signed = work().map_err(|error| VolumeError::Invalid(format!("{error:#}")));
            let _ = outcomes.send(Outcome::Signed(asked, party, signed));
        });
    }

    /// It was signed, or not.
    pub(super) fn signed(
        &mut self,
        asked: Asked,
        party: &str,
        result: Result<StoreReply, VolumeError>,
    ) {
        self.signing.parties.remove(party);
        if let (Ok(StoreReply::Signed { .. }), Some(fleet)) = (&result, &mut self.fleet) {
            tracing::info!("another store joins the installation");
            fleet.tell = true;
            self.look_around();
        }
        self.reply_store(asked, result);
    }

    /// A store is no longer one of those there are, or stays.
    pub(super) fn forgotten(&mut self, asked: Asked, result: Result<(), VolumeError>) {
        if result.is_ok()
            && let Some(fleet) = &mut self.fleet
        {
            fleet.tell = true;
            self.look_around();
        }
        self.reply_store(asked, result.map(|()| StoreReply::Done));
    }

    /// All other stores have said what they have to say.
    pub(super) fn listed(&mut self, asked: Asked, mut stores: Vec<StoreState>) {
        if let Some(report) = self.report() {
            let report = StoreReport { volumes: Vec::new(), ..report };
            let (id, addresses) = (report.id, report.addresses.clone());
            stores.push(StoreState { id, addresses, report: Some(report) });
        }
        stores.sort_unstable_by_key(|store| store.id);
        self.reply_store(asked, Ok(StoreReply::List(stores)));
    }

    /// What this store says of itself.
    pub(super) fn report(&self) -> Option<StoreReport> {
        let fleet = self.fleet.as_ref()?;
        let open = self.engines.iter();
        let open = open.filter_map(|(id, engine)| Some((*id, engine.volume.info()?)));
        let mut volumes: Vec<Served> = open.map(|(volume, live)| served(volume, live)).collect();
        let attached = volumes.iter().filter(|served| served.live.connected).count();
        volumes.truncate(MAX_SERVED);
        Some(StoreReport {
            id: fleet.me.id,
            addresses: fleet.me.addresses.clone(),
            software: longhaul_base::software(),
            draining: fleet.draining,
            hosts: u32::try_from(self.hosts().len()).unwrap_or(u32::MAX),
            attached: u32::try_from(attached).unwrap_or(u32::MAX),
            bytes_per_second: fleet.traffic.values().map(|(_, rate)| rate).sum(),
            volumes,
        })
    }

    /// Sessions that have a volume attached, with how many.
    fn hosts(&self) -> BTreeMap<u64, usize> {
        let mut hosts = BTreeMap::new();
        for engine in self.engines.values() {
            if let Some(session) = engine.volume.session() {
                *hosts.entry(session.0).or_default() += 1;
            }
        }
        hosts
    }

    /// Tells hosts which stores there are, or to leave.
    pub(super) fn tell_hosts(&self) {
        let Some(fleet) = &self.fleet else { return };
        let others = fleet.peers.list();
        let mut stores = addresses(&fleet.me, &others, fleet.draining);
        // Where volumes will be served from if all this is lost.
        stores.extend(self.keeper.standby());
        self.listener.set_stores(stores.clone());
        let leave = fleet.draining && !others.is_empty();
        // Those that leave are told where to, and nothing that could be this store again.
        let stores = if leave { others.into_values().flatten().collect() } else { stores };
        self.listener.tell_hosts(&ToHost::Stores { stores, leave });
    }

    /// This store is about to stop: sends its hosts to others, and says whether there are any of both.
    pub(super) fn send_away(&mut self) -> bool {
        let Some(fleet) = &mut self.fleet else { return false };
        if fleet.peers.list().is_empty() {
            return false;
        }
        fleet.draining = true;
        self.tell_hosts();
        self.has_hosts()
    }

    /// Whether a host has a volume attached here.
    pub(super) fn has_hosts(&self) -> bool {
        self.engines.values().any(|engine| engine.volume.session().is_some())
    }

    /// Every now and then.
    pub(super) fn tick(&mut self) {
        let Some(fleet) = &mut self.fleet else { return };
        fleet.peers.tidy();
        let elapsed = std::mem::replace(&mut fleet.measured, Instant::now()).elapsed();
        let seconds = elapsed.as_secs().max(1);
        let before = std::mem::take(&mut fleet.traffic);
        for (session, total) in self.listener.traffic() {
            let last = before.get(&session).map_or(0, |(total, _)| *total);
            fleet.traffic.insert(session, (total, total.saturating_sub(last) / seconds));
        }
        self.rebalance(None);
    }

    /// Sees to hosts that are to leave and have not yet, and to credentials that were rotated.
    pub(super) fn remind(&mut self) {
        let Some(fleet) = &mut self.fleet else { return };
        let stamp = fleet.issued.stamp();
        let rotated = stamp.is_some() && stamp != fleet.accepted;
        // Another store may have issued it, and this one has not heard of that.
        let strange = fleet.issued.was_strange();
        if rotated {
            fleet.accepted = stamp;
            fleet.tell = true;
        }
        if fleet.draining {
            self.tell_hosts();
        }
        if rotated {
            self.tend_certificate();
        }
        if rotated || strange {
            self.look_around();
        }
    }

    /// Renews this store's certificate in time, and takes the one that was put into its place: on another thread, as that
    /// takes a lock and files.
    pub(super) fn tend_certificate(&mut self) {
        if std::mem::replace(&mut self.signing.tending, true) {
            return;
        }
        let (own, outcomes) = (self.own.clone(), self.outcomes.0.clone());
        tokio::task::spawn_blocking(move || {
            let _ = outcomes.send(Outcome::Certificate(own.tend()));
        });
    }

    /// It was seen to.
    pub(super) fn tended_certificate(&mut self, result: anyhow::Result<bool>) {
        self.signing.tending = false;
        match result {
            Ok(true) => tracing::info!("this store shows another certificate from now on"),
            Ok(false) => {}
            Err(error) => tracing::error!("the certificate of this store stays: {error:#}"),
        }
    }

    /// Looks in the location for what stores have in common, unless that is under way.
    pub(super) fn look_around(&mut self) {
        let Some(fleet) = &self.fleet else { return };
        if std::mem::replace(&mut self.looking, true) {
            self.look_again = true;
            return;
        }
        let known = self.catalog.values().map(|entry| entry.spec.clone()).collect();
        let (objects, outcomes) = (self.objects.clone(), self.outcomes.0.clone());
        let state = fleet.state.clone();
        let (keeper, ids) = (self.keeper.clone(), self.volumes());
        tokio::spawn(async move {
            let look = async {
                let stores = registry::stores(&*objects).await?;
                registry::agree(&*objects, &state).await?;
                let volumes = catalog::changes(&*objects, known).await?;
                let deleted = trash::known(&*objects).await.map_err(anyhow::Error::msg)?;
                let deleted = deleted.into_keys().collect();
                let site = keeper.look(ids).await?;
                anyhow::Ok(Found { stores, volumes, deleted, site })
            };
            let found = look.await.map_err(|error| format!("{error:#}"));
            let _ = outcomes.send(Outcome::Found(found));
        });
    }

    /// What was looked for is there.
    pub(super) fn found(&mut self, found: Result<Found, String>) {
        self.looking = false;
        match found {
            Ok(Found { stores, volumes, deleted, site }) => {
                self.looked_at_site(&site);
                self.know_deleted(deleted);
                for name in &volumes.gone {
                    tracing::info!("volume {name} was deleted at another store");
                    self.forget_volume(name);
                }
                for (name, reason) in &volumes.damaged {
                    if !self.unusable.contains_key(name) {
                        tracing::error!("volume {name} cannot be used: {reason}");
                    }
                }
                self.unusable = volumes.damaged;
                for entry in volumes.new {
                    if !self.catalog.contains_key(&entry.spec.name) {
                        tracing::info!("volume {} was created at another store", entry.spec.name);
                        self.learn(entry);
                    }
                }
                self.know_stores(stores);
                self.look_for_limits();
                let tell = self.fleet.as_mut().map(|fleet| std::mem::take(&mut fleet.tell));
                if tell == Some(true) {
                    self.tell_stores();
                }
            }
            Err(error) => tracing::warn!("what other stores do cannot be told: {error}"),
        }
        if std::mem::take(&mut self.look_again) {
            return self.look_around();
        }
        let lists = std::mem::take(&mut self.lists);
        if let Some(fleet) = self.fleet.as_ref().filter(|_| !lists.is_empty()) {
            let (peers, outcomes) = (fleet.peers.clone(), self.outcomes.0.clone());
            tokio::spawn(async move {
                let reports = peers.reports().await.into_iter();
                let reports = reports.filter_map(|(_, _, report)| report).collect();
                let _ = outcomes.send(Outcome::Lives(lists, reports));
            });
        }
        for (session, lane, frame) in self.strangers.take() {
            self.known_frame(session, lane, frame);
        }
    }

    /// Lists all volumes with what the stores know that have them open.
    pub(super) fn list_with(&self, asked: &[Asked], reports: &[StoreReport]) {
        let lives = reports.iter().flat_map(|report| &report.volumes);
        let lives: BTreeMap<VolumeId, &LiveInfo> =
            lives.map(|served| (served.volume, &served.live)).collect();
        let list = self.catalog.values().map(|entry| {
            let id = entry.spec.id;
            match lives.get(&id).filter(|_| self.claims.lease(id).is_none()) {
                Some(live) => entry.spec.info(entry.sectors, Some((*live).clone())),
                None => self.info(entry),
            }
        });
        let damaged = self.unusable.iter();
        let damaged = damaged.map(|(name, why)| VolumeInfo::unusable(name.clone(), why.clone()));
        self.reply(asked, &Ok(VolumeReply::List(list.chain(damaged).collect())));
    }

    fn know_stores(&mut self, mut stores: BTreeMap<StoreId, Registered>) {
        let Some(fleet) = &self.fleet else { return };
        stores.remove(&fleet.me.id);
        let stores: BTreeMap<_, _> =
            stores.into_iter().map(|(id, store)| (id, store.addresses)).collect();
        if stores != fleet.peers.list() {
            for (id, addresses) in &stores {
                tracing::info!("store {id} at {}", addresses.join(", "));
            }
            fleet.peers.set(stores);
            self.tell_hosts();
        }
    }

    /// Tells the other stores that they should look around.
    pub fn tell_stores(&self) {
        if let Some(fleet) = &self.fleet {
            let peers = fleet.peers.clone();
            tokio::spawn(async move { peers.tell().await });
        }
    }

    /// Has hosts go to stores that have clearly less to do: one each time it is looked at, so that what
    /// comes of it is seen first, and all that are too many when asked to.
    fn rebalance(&mut self, asked: Option<Asked>) {
        let Some(fleet) = &self.fleet else { return };
        let busy = self.hosts().len() > 1 && !fleet.draining && !fleet.peers.list().is_empty();
        if !busy {
            if let Some(asked) = asked {
                self.reply_store(asked, Ok(StoreReply::Moved(0)));
            }
            return;
        }
        let (peers, outcomes) = (fleet.peers.clone(), self.outcomes.0.clone());
        tokio::spawn(async move {
            let reports = peers.reports().await;
            let reports = reports.into_iter().filter_map(|(_, _, report)| report).collect();
            let _ = outcomes.send(Outcome::Loads(asked, reports));
        });
    }

    /// What the other stores have to do is known.
    pub(super) fn loads(&mut self, asked: Option<Asked>, reports: Vec<StoreReport>) {
        let Some(fleet) = &self.fleet else { return };
        let guest = |(session, volumes)| {
            let load = Load { volumes, bytes: fleet.rate(session) };
            Guest { session, load }
        };
        let guests: Vec<Guest> = self.hosts().into_iter().map(guest).collect();
        let others: Vec<_> = reports.into_iter().filter(|report| !report.draining).collect();
        let loads = others.iter().map(|report| Load {
            volumes: report.attached as usize,
            bytes: report.bytes_per_second,
        });
        let limit = if asked.is_some() { usize::MAX } else { 1 };
        let moves = balance::plan(&guests, &loads.collect::<Vec<_>>(), limit);
        for (session, to) in &moves {
            let stores = others[*to].addresses.clone();
            self.listener.tell_host(*session, &ToHost::Stores { stores, leave: true });
        }
        self.counts.rebalanced += moves.len() as u64;
        if !moves.is_empty() {
            tracing::info!("asked {} hosts to go to stores with less to do", moves.len());
        }
        if let Some(asked) = asked {
            let moved = u32::try_from(moves.len()).unwrap_or(u32::MAX);
            self.reply_store(asked, Ok(StoreReply::Moved(moved)));
        }
    }
}
