//! This store as one of several: what it knows of the others, what it tells them, and the
//! certificates that it signs.

use super::completions::Completions;
use super::request::ReplyTo;
use crate::catalog;
use crate::lease::Holder;
use crate::peers::Peers;
use crate::registry::{self, Registered};
use crate::replica::{LocationNews, Replica};
use crate::trash;
use longhaul_core::block::VolumeId;
use longhaul_core::store::VolumeSpec;
use longhaul_core::wire::link::{
    LiveInfo, MAX_SERVED, MAX_SERVED_NAME_BYTES, MAX_STORES, Principal, Served, StoreId,
    StoreOperation, StoreReply, StoreReport, StoreState, VolumeError,
};
use longhaul_link::credential::{self, Issued, Own, Stamp};
use longhaul_link::party;
use longhaul_objects::Objects;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often to repeat the request to hosts to leave: some may not have found another store yet.
pub(super) const REMIND: Duration = Duration::from_secs(2);

/// The outcomes of the tasks about other stores.
pub(super) enum FleetDone {
    /// The look at the location has ended.
    Found(Result<FoundInLocation, String>),
    /// The reports of other stores, for a list.
    Listed(ReplyTo, Vec<StoreState>),
    /// The reports of other stores, to share the hosts.
    Loads(Option<ReplyTo>, Vec<StoreReport>),
    /// A certificate that a party asked for is signed, or not.
    Signed(ReplyTo, String, Result<StoreReply, VolumeError>),
    /// The check of this store's own certificate has ended. True if the store shows a new one.
    Certificate(anyhow::Result<bool>),
    /// The removal of a store that does not answer has ended.
    Forgotten(ReplyTo, Result<(), VolumeError>),
}

/// This store as one of several. A store that has its objects for itself is none.
pub struct Fleet {
    /// It, as leases name it.
    pub me: Holder,
    /// The others.
    pub peers: Peers,
    /// Its state directory.
    pub state: PathBuf,
    evacuating: bool,
    issued: Arc<Issued>,
    /// The state of the accepted certificates at the last agreement of the stores.
    accepted: Option<Stamp>,
    /// The other stores have to hear of a change, once the location has it.
    tell: bool,
    traffic: Traffic,
}

/// The traffic of sessions.
struct Traffic {
    /// Time of the last measurement.
    measured: Instant,
    /// Of each session: bytes until then, and how many a second before.
    sessions: BTreeMap<u64, (u64, u64)>,
}

impl Fleet {
    /// A store among others.
    pub fn new(me: Holder, peers: Peers, state: PathBuf, issued: Arc<Issued>) -> Fleet {
        let traffic = Traffic { measured: Instant::now(), sessions: BTreeMap::new() };
        let accepted = issued.stamp();
        Fleet { me, peers, state, evacuating: false, issued, accepted, tell: false, traffic }
    }

    /// Whether hosts are to leave it.
    pub(super) fn is_evacuating(&self) -> bool {
        self.evacuating
    }

    /// Has hosts leave it, or not. Says whether there is another store to go to.
    pub(super) fn drain(&mut self, on: bool) -> bool {
        if on && self.is_alone() {
            return false;
        }
        if self.evacuating != on {
            let now =
                if on { "evacuating: hosts are sent to other stores" } else { "not evacuating" };
            tracing::info!("{now}");
        }
        self.evacuating = on;
        true
    }

    /// This store is about to stop. Says whether there is another store to go to.
    pub(super) fn leave_quietly(&mut self) -> bool {
        self.evacuating |= !self.is_alone();
        !self.is_alone()
    }

    /// Whether there are no other stores.
    pub(super) fn is_alone(&self) -> bool {
        self.peers.list().is_empty()
    }

    /// Has the other stores told that something has changed, once it is in the location.
    pub(super) fn tell_later(&mut self) {
        self.tell = true;
    }

    /// Whether the other stores have to hear of a change now. True once for each change.
    pub(super) fn take_tell(&mut self) -> bool {
        std::mem::take(&mut self.tell)
    }

    /// Tells the other stores that they should look at the location.
    pub(super) fn tell_peers(&self) {
        let peers = self.peers.clone();
        tokio::spawn(async move { peers.tell().await });
    }

    /// Looks how much each session has sent and got since the last time.
    pub(super) fn measure(&mut self, totals: Vec<(u64, u64)>) {
        self.peers.tidy();
        let Traffic { measured, sessions } = &mut self.traffic;
        let elapsed = std::mem::replace(measured, Instant::now()).elapsed();
        let seconds = elapsed.as_secs().max(1);
        let before = std::mem::take(sessions);
        for (session, total) in totals {
            let last = before.get(&session).map_or(0, |(total, _)| *total);
            sessions.insert(session, (total, total.saturating_sub(last) / seconds));
        }
    }

    /// Bytes a second of a session.
    pub(super) fn rate(&self, session: u64) -> u64 {
        self.traffic.sessions.get(&session).map_or(0, |(_, rate)| *rate)
    }

    /// Whether the accepted credentials have changed since the last call. Also whether a client
    /// showed an unknown credential, which another store may have issued.
    pub(super) fn credentials(&mut self) -> CredentialNews {
        let stamp = self.issued.stamp();
        let rotated = stamp.is_some() && stamp != self.accepted;
        let unknown = self.issued.was_strange();
        if rotated {
            self.accepted = stamp;
            self.tell = true;
        }
        CredentialNews { rotated, unknown }
    }

    /// The addresses for hosts, and whether they have to leave. `standby` are the stores that will
    /// serve the volumes after a loss of all this.
    pub(super) fn advice(&self, standby: Vec<String>) -> Advice {
        let others = self.peers.list();
        let mut stores = addresses(&self.me, &others, self.evacuating);
        stores.extend(standby);
        let leave = self.evacuating && !others.is_empty();
        // Hosts that leave get the addresses of other stores only, and none that could be this
        // store again.
        let told = if leave { others.into_values().flatten().collect() } else { stores.clone() };
        Advice { stores, told, leave }
    }

    /// Takes the list of stores. Returns whether it is a new one.
    pub(super) fn know(&self, mut stores: BTreeMap<StoreId, Registered>) -> bool {
        stores.remove(&self.me.id);
        let stores: BTreeMap<_, _> =
            stores.into_iter().map(|(id, store)| (id, store.addresses)).collect();
        if stores == self.peers.list() {
            return false;
        }
        for (id, addresses) in &stores {
            tracing::info!("store {id} at {}", addresses.join(", "));
        }
        self.peers.set(stores);
        true
    }

    /// The report of this store about itself.
    pub(super) fn report(&self, volumes: Vec<(VolumeId, LiveInfo)>, hosts: usize) -> StoreReport {
        let attached = volumes.iter().filter(|(_, live)| live.connected).count();
        let volumes = volumes.into_iter().take(MAX_SERVED);
        StoreReport {
            id: self.me.id,
            addresses: self.me.addresses.clone(),
            software: longhaul_base::software(),
            evacuating: self.evacuating,
            hosts: u32::try_from(hosts).unwrap_or(u32::MAX),
            attached: u32::try_from(attached).unwrap_or(u32::MAX),
            bytes_per_second: self.traffic.sessions.values().map(|(_, rate)| rate).sum(),
            volumes: volumes.map(|(volume, live)| served(volume, live)).collect(),
        }
    }
}

/// News about credentials.
pub(super) struct CredentialNews {
    pub rotated: bool,
    pub unknown: bool,
}

/// The addresses and orders for hosts.
pub(super) struct Advice {
    /// For hosts that come.
    pub stores: Vec<String>,
    /// For connected hosts.
    pub told: Vec<String>,
    pub leave: bool,
}

/// The findings in the location.
pub(super) struct FoundInLocation {
    pub stores: BTreeMap<StoreId, Registered>,
    pub volumes: catalog::Changes,
    pub deleted: Vec<VolumeId>,
    pub replica: LocationNews,
}

/// The work of this store for and with the others.
pub(super) struct FleetService {
    /// Nothing if this store has its volumes for itself.
    pub fleet: Option<Fleet>,
    /// A look at the location is under way, and another one has to follow.
    looking: bool,
    look_again: bool,
    /// Parties for which a certificate is being signed.
    signing: BTreeSet<String>,
    /// A check of this store's own certificate is under way.
    tending: bool,
    own: Arc<Own>,
    objects: Arc<dyn Objects>,
    done: Completions<FleetDone>,
}

impl FleetService {
    pub fn new(
        fleet: Option<Fleet>,
        own: Arc<Own>,
        objects: Arc<dyn Objects>,
        done: Completions<FleetDone>,
    ) -> FleetService {
        FleetService {
            fleet,
            looking: false,
            look_again: false,
            signing: BTreeSet::new(),
            tending: false,
            own,
            objects,
            done,
        }
    }

    /// Whether volumes are shared with other stores, if there are any.
    pub fn is_shared(&self) -> bool {
        self.fleet.is_some()
    }

    /// Whether no other store can write to a volume.
    pub fn is_alone(&self) -> bool {
        self.fleet.as_ref().is_none_or(Fleet::is_alone)
    }

    pub fn peers(&self) -> Option<&Peers> {
        self.fleet.as_ref().map(|fleet| &fleet.peers)
    }

    pub fn me(&self) -> Option<Holder> {
        self.fleet.as_ref().map(|fleet| fleet.me.clone())
    }

    pub fn tell_peers(&self) {
        if let Some(fleet) = &self.fleet {
            fleet.tell_peers();
        }
    }

    /// The reports of the other stores that answer.
    pub fn reports(&self) -> Option<impl Future<Output = Vec<StoreReport>> + Send + 'static> {
        let peers = self.peers()?.clone();
        Some(async move {
            let reports = peers.reports().await.into_iter();
            reports.filter_map(|(_, _, report)| report).collect()
        })
    }

    /// Looks in the location for what stores have in common, unless that is under way: `known` are
    /// the volumes.
    pub fn look(
        &mut self,
        known: impl FnOnce() -> Vec<VolumeSpec>,
        ids: impl FnOnce() -> Vec<VolumeId>,
        replica: &Arc<Replica>,
    ) {
        let Some(fleet) = &self.fleet else { return };
        if std::mem::replace(&mut self.looking, true) {
            self.look_again = true;
            return;
        }
        let (known, ids, replica) = (known(), ids(), replica.clone());
        let (objects, state) = (self.objects.clone(), fleet.state.clone());
        self.done.spawn(async move {
            let look = async {
                let stores = registry::stores(&*objects).await?;
                registry::agree(&*objects, &state).await?;
                let volumes = catalog::changes(&*objects, known).await?;
                let deleted = trash::known(&*objects).await.map_err(anyhow::Error::new)?;
                let deleted = deleted.into_keys().collect();
                let replica = replica.look(ids).await?;
                anyhow::Ok(FoundInLocation { stores, volumes, deleted, replica })
            };
            FleetDone::Found(look.await.map_err(|error| format!("{error:#}")))
        });
    }

    pub fn looked(&mut self) {
        self.looking = false;
    }

    /// Whether another look has to follow. True once for each request.
    pub fn take_look_again(&mut self) -> bool {
        std::mem::take(&mut self.look_again)
    }

    /// Asks the other stores what they say of themselves, for a list of stores.
    pub fn list(&self, to: ReplyTo) {
        let Some(peers) = self.peers().cloned() else { return };
        self.done.spawn(async move {
            let reports = peers.reports().await;
            let others = reports.into_iter().map(|(id, addresses, report)| {
                let report = report.map(|report| StoreReport { volumes: Vec::new(), ..report });
                StoreState { id, addresses, report }
            });
            FleetDone::Listed(to, others.collect())
        });
    }

    /// Asks the other stores what they have to do, to share the hosts.
    pub fn ask_loads(&self, to: Option<ReplyTo>) {
        let Some(reports) = self.reports() else { return };
        self.done.spawn(async move { FleetDone::Loads(to, reports.await) });
    }

    /// Strikes a store off the list.
    pub fn forget(&self, to: ReplyTo, id: StoreId) {
        let Some(fleet) = &self.fleet else { return };
        let (peers, state, objects) =
            (fleet.peers.clone(), fleet.state.clone(), self.objects.clone());
        self.done.spawn(async move {
            FleetDone::Forgotten(to, forget(&*objects, &state, &peers, id).await)
        });
    }

    /// Gives a party another certificate for the same key. The other stores hear of it with the
    /// next reminder.
    pub fn renew(
        &mut self,
        to: ReplyTo,
        principal: &Principal,
        request: Vec<u8>,
    ) -> Result<(), VolumeError> {
        let (state, serial) = (self.own.state().to_owned(), principal.serial.clone());
        let key = principal.key.to_string();
        self.sign(to, principal, move || {
            credential::renew(&state, &serial, &key, &request).map(StoreReply::Renewed)
        })
    }

    /// Somebody with a token becomes a store.
    pub fn join(
        &mut self,
        to: ReplyTo,
        principal: &Principal,
        (store, request): (StoreId, Vec<u8>),
    ) -> Result<(), VolumeError> {
        let Some(fleet) = &self.fleet else { return Ok(()) };
        let (state, id) = (fleet.state.clone(), store.to_string());
        let serial = principal.serial.clone();
        self.sign(to, principal, move || {
            let signed = credential::answer(&state, &serial, &id, &request)?;
            let credential::Signed { certificate, ca_key, list } = signed;
            Ok(StoreReply::Signed { certificate, ca_key, list })
        })
    }

    /// Signs something for a party, which takes files, a lock and syncs: on another thread, one
    /// after the other for each party.
    fn sign(
        &mut self,
        to: ReplyTo,
        principal: &Principal,
        work: impl FnOnce() -> anyhow::Result<StoreReply> + Send + 'static,
    ) -> Result<(), VolumeError> {
        let party = party(principal);
        if !self.signing.insert(party.clone()) {
            let why =
                "a certificate is just being signed for this tenant, or credential; try again";
            return Err(VolumeError::Store(why.to_owned()));
        }
        let done = self.done.clone();
        tokio::task::spawn_blocking(move || {
            let signed = work().map_err(|error| VolumeError::Invalid(format!("{error:#}")));
            done.send(FleetDone::Signed(to, party, signed));
        });
        Ok(())
    }

    /// A certificate is signed, or not.
    pub fn signed(&mut self, party: &str) {
        self.signing.remove(party);
    }

    /// Renews this store's certificate in time, and takes a new one that somebody put in its place.
    /// Runs on another thread, because that takes a lock and files.
    pub fn tend_certificate(&mut self) {
        if std::mem::replace(&mut self.tending, true) {
            return;
        }
        let (own, done) = (self.own.clone(), self.done.clone());
        tokio::task::spawn_blocking(move || done.send(FleetDone::Certificate(own.tend())));
    }

    /// The check of the certificate has ended.
    pub fn tended_certificate(&mut self, result: anyhow::Result<bool>) {
        self.tending = false;
        match result {
            Ok(true) => tracing::info!("this store shows another certificate from now on"),
            Ok(false) => {}
            Err(error) => tracing::error!("the certificate of this store stays: {error:#}"),
        }
    }
}

/// The addresses of all stores for hosts: this store's come first, unless hosts have to leave it.
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
        return Err(VolumeError::Invalid(format!("no store {id}")));
    };
    if peers.operate(id, &registered.addresses, StoreOperation::Report).await.is_ok() {
        let why = format!("store {id} answers: stop it first");
        return Err(VolumeError::Invalid(why));
    }
    // This comes first, so that an unfinished removal can be repeated.
    registry::agree(objects, state).await.map_err(failed)?;
    credential::revoke_store(state, &id.to_string()).map_err(failed)?;
    registry::agree(objects, state).await.map_err(failed)?;
    registry::forget(objects, &known, &[id]).await.map_err(failed)?;
    tracing::info!("store {id} does not answer: it is forgotten, and its certificate withdrawn");
    Ok(())
}
