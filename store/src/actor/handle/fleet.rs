//! This store among the others of its installation: what they ask of it, where its hosts go, and
//! the replica.

use super::super::StoreActor;
use super::super::fleet::{Advice, CredentialNews, FleetDone, FoundInLocation};
use super::super::replica::ReplicaDone;
use super::super::request::{Decision, ReplyTo, Request};
use super::super::stage::Stage;
use crate::balance::{self, BusyHost, Load};
use crate::catalog;
use longhaul_core::block::VolumeId;
use longhaul_core::wire::link::{
    LiveInfo, ReplicaOperation, StoreOperation, StoreReply, StoreReport, StoreState, ToHost,
    ToStore, VolumeError, VolumeOperation,
};

impl StoreActor {
    /// Carries out an operation on stores.
    pub(super) fn store_operation(
        &mut self,
        request: &Request,
        operation: StoreOperation,
    ) -> Decision {
        let (to, principal) = (request.reply_to, &request.principal);
        let invalid = |why: &str| Err(VolumeError::Invalid(why.to_owned()));
        let reply = match operation {
            StoreOperation::Replica(operation) => return self.replica_operation(to, operation),
            StoreOperation::Renew { request } => match self.fleet.renew(to, principal, request) {
                Ok(()) => return Decision::Hold,
                Err(error) => Err(error),
            },
            _ if !self.fleet.is_shared() => {
                invalid("this store has its data for itself: other stores do not exist")
            }
            StoreOperation::Report => {
                self.report().map(StoreReply::Report).ok_or(VolumeError::NotFound)
            }
            StoreOperation::List => {
                self.fleet.list(to);
                return Decision::Hold;
            }
            StoreOperation::Refresh => {
                if let Some(peers) = self.fleet.peers() {
                    peers.heard();
                }
                self.look_around();
                Ok(StoreReply::Done)
            }
            StoreOperation::Release { .. } if !request.is_from_store() => {
                invalid("only another store may ask for that")
            }
            StoreOperation::Release { .. } => match self.release(to, operation) {
                Some(reply) => reply,
                None => return Decision::Hold,
            },
            StoreOperation::Sign { store, request } => {
                match self.fleet.join(to, principal, (store, request)) {
                    Ok(()) => return Decision::Hold,
                    Err(error) => Err(error),
                }
            }
            StoreOperation::Evacuate { on } => {
                if self.fleet.fleet.as_mut().is_some_and(|fleet| fleet.drain(on)) {
                    self.tell_hosts();
                    Ok(StoreReply::Done)
                } else {
                    invalid("no other store exists")
                }
            }
            StoreOperation::Rebalance => {
                self.rebalance(Some(to));
                return Decision::Hold;
            }
            StoreOperation::Forget { id } => {
                if self.fleet.me().is_some_and(|me| me.id == id) {
                    invalid("this is that store: stop it, and ask another one")
                } else {
                    self.fleet.forget(to, id);
                    return Decision::Hold;
                }
            }
        };
        Decision::Answer(to, ToHost::Store { request: to.request, result: reply })
    }

    pub(super) fn fleet_done(&mut self, done: FleetDone) {
        match done {
            FleetDone::Found(found) => self.found(found),
            FleetDone::Listed(to, stores) => self.listed(to, stores),
            FleetDone::Loads(to, reports) => self.loads(to, reports),
            FleetDone::Signed(to, party, result) => {
                self.fleet.signed(&party);
                if let Ok(StoreReply::Signed { .. }) = &result {
                    tracing::info!("another store joins the installation");
                    self.tell_later();
                }
                self.sessions.reply_store(to, result);
            }
            FleetDone::Certificate(result) => self.fleet.tended_certificate(result),
            FleetDone::Forgotten(to, result) => {
                if result.is_ok() {
                    self.tell_later();
                }
                self.sessions.reply_store(to, result.map(|()| StoreReply::Done));
            }
        }
    }

    /// Tells the other stores of a change, once the location has it.
    fn tell_later(&mut self) {
        if let Some(fleet) = &mut self.fleet.fleet {
            fleet.tell_later();
            self.look_around();
        }
    }

    /// All other stores have said what they have to say.
    fn listed(&mut self, to: ReplyTo, mut stores: Vec<StoreState>) {
        if let Some(report) = self.report() {
            let report = StoreReport { volumes: Vec::new(), ..report };
            let (id, addresses) = (report.id, report.addresses.clone());
            stores.push(StoreState { id, addresses, report: Some(report) });
        }
        stores.sort_unstable_by_key(|store| store.id);
        self.sessions.reply_store(to, Ok(StoreReply::List(stores)));
    }

    /// The report of this store about itself.
    fn report(&self) -> Option<StoreReport> {
        let fleet = self.fleet.fleet.as_ref()?;
        let open = self.engines.iter();
        let open = open.filter_map(|(id, engine)| Some((id, engine.lock().volume.info()?)));
        let volumes: Vec<(VolumeId, LiveInfo)> = open.collect();
        Some(fleet.report(volumes, self.engines.hosts().len()))
    }

    /// Tells hosts which stores there are, or to leave.
    fn tell_hosts(&self) {
        let Some(fleet) = &self.fleet.fleet else { return };
        let Advice { stores, told, leave } = fleet.advice(self.replica.replica().standby());
        let listener = self.sessions.listener();
        listener.set_stores(stores);
        listener.tell_hosts(&ToHost::Stores { stores: told, leave });
    }

    /// This store is about to stop: sends its hosts to others, and says whether there are any of
    /// both.
    pub(super) fn send_away(&mut self) -> bool {
        let Some(fleet) = &mut self.fleet.fleet else { return false };
        if !fleet.leave_quietly() {
            return false;
        }
        self.tell_hosts();
        self.engines.has_hosts()
    }

    /// Every now and then.
    pub(super) fn tend_fleet(&mut self) {
        let Some(fleet) = &mut self.fleet.fleet else { return };
        fleet.measure(self.sessions.listener().traffic());
        self.rebalance(None);
    }

    /// Handles hosts that have to leave and have not yet, and rotated credentials.
    pub(super) fn remind(&mut self) {
        let Some(fleet) = &mut self.fleet.fleet else { return };
        let CredentialNews { rotated, unknown } = fleet.credentials();
        if fleet.is_evacuating() {
            self.tell_hosts();
        }
        if rotated {
            self.fleet.tend_certificate();
        }
        if rotated || unknown {
            self.look_around();
        }
    }

    /// Looks in the location for what stores have in common, unless that is under way.
    pub(super) fn look_around(&mut self) {
        let known = || self.directory.entries().map(|entry| entry.spec.clone()).collect();
        self.fleet.look(known, || self.directory.ids(), self.replica.replica());
    }

    /// The look at the location has ended.
    fn found(&mut self, found: Result<FoundInLocation, String>) {
        self.fleet.looked();
        match found {
            Ok(FoundInLocation { stores, volumes, deleted, replica }) => {
                if self.replica.looked(&replica) {
                    self.tell_hosts();
                }
                self.operations.trash.know_deleted(deleted);
                self.found_volumes(volumes);
                let fleet = self.fleet.fleet.as_mut();
                if fleet.is_some_and(|fleet| fleet.know(stores)) {
                    self.tell_hosts();
                }
                self.stages.rates.look();
                if self.fleet.fleet.as_mut().is_some_and(|fleet| fleet.take_tell()) {
                    self.fleet.tell_peers();
                }
            }
            Err(error) => tracing::warn!("cannot read the list of stores: {error}"),
        }
        if self.fleet.take_look_again() {
            return self.look_around();
        }
        let lists = self.operations.lists.take_before_look();
        if let Some(reports) = self.fleet.reports().filter(|_| !lists.is_empty()) {
            self.operations.lists.ask_reports(lists, reports);
        }
        for request in self.stages.unknown.take() {
            self.run(Stage::Visibility, request);
        }
    }

    fn found_volumes(&mut self, volumes: catalog::Changes) {
        for name in &volumes.gone {
            tracing::info!("volume {name} was deleted at another store");
            self.forget_volume(name);
        }
        for (name, reason) in &volumes.damaged {
            if self.directory.damage(name).is_none() {
                tracing::error!("volume {name} cannot be used: {reason}");
            }
        }
        self.directory.set_damaged(volumes.damaged);
        for entry in volumes.new {
            if !self.directory.has_name(&entry.spec.name) {
                tracing::info!("volume {} was created at another store", entry.spec.name);
                self.directory.learn(entry);
            }
        }
    }

    /// Asks hosts to go to stores with clearly less load. A periodic call moves one host, so that
    /// its effect shows first. A call by command moves all that are too many.
    fn rebalance(&mut self, to: Option<ReplyTo>) {
        let Some(fleet) = &self.fleet.fleet else { return };
        let busy = self.engines.hosts().len() > 1 && !fleet.is_evacuating() && !fleet.is_alone();
        if busy {
            return self.fleet.ask_loads(to);
        }
        if let Some(to) = to {
            self.sessions.reply_store(to, Ok(StoreReply::Moved(0)));
        }
    }

    /// The loads of the other stores are known.
    fn loads(&mut self, to: Option<ReplyTo>, reports: Vec<StoreReport>) {
        let Some(fleet) = &self.fleet.fleet else { return };
        let host = |(session, volumes)| {
            let load = Load { volumes, bytes: fleet.rate(session) };
            BusyHost { session, load }
        };
        let hosts: Vec<BusyHost> = self.engines.hosts().into_iter().map(host).collect();
        let others: Vec<_> = reports.into_iter().filter(|report| !report.evacuating).collect();
        let loads = others.iter().map(|report| Load {
            volumes: report.attached as usize,
            bytes: report.bytes_per_second,
        });
        let limit = if to.is_some() { usize::MAX } else { 1 };
        let moves = balance::plan(&hosts, &loads.collect::<Vec<_>>(), limit);
        for (session, store) in &moves {
            let stores = others[*store].addresses.clone();
            let listener = self.sessions.listener();
            listener.tell_host(*session, &ToHost::Stores { stores, leave: true });
        }
        self.meter.counts().rebalanced += moves.len() as u64;
        if !moves.is_empty() {
            tracing::info!("asked {} hosts to go to stores with less load", moves.len());
        }
        if let Some(to) = to {
            let moved = u32::try_from(moves.len()).unwrap_or(u32::MAX);
            self.sessions.reply_store(to, Ok(StoreReply::Moved(moved)));
        }
    }
}

/// The replica.
impl StoreActor {
    fn replica_operation(&mut self, to: ReplyTo, operation: ReplicaOperation) -> Decision {
        if operation == ReplicaOperation::Show {
            let result = Ok(StoreReply::Replica(self.replica.replica().state()));
            return Decision::Answer(to, ToHost::Store { request: to.request, result });
        }
        let peers = self.fleet.peers().cloned();
        self.replica.operate(to, operation, self.directory.ids(), peers);
        Decision::Hold
    }

    pub(super) fn replica_done(&mut self, done: ReplicaDone) {
        match done {
            ReplicaDone::Answered(to, result, tell) => {
                if tell {
                    self.tell_hosts();
                    self.fleet.tell_peers();
                }
                self.sessions.reply_store(to, result);
            }
            ReplicaDone::Lost(lost) => self.replica.lost(lost),
            ReplicaDone::Built(built) => {
                if self.replica.built(built, self.directory.ids()) {
                    self.fleet.tell_peers();
                }
            }
        }
    }

    /// Looks whether the replica is complete, in step, or taken over.
    pub(super) fn tend_replica(&mut self) {
        for id in self.replica.fence_some() {
            let Some(name) = self.directory.name(id) else { continue };
            let operation = VolumeOperation::Show { name: name.to_owned() };
            // Nobody waits for the answer. Only the open engine matters.
            self.run_own(id, ToStore::Volume { request: u64::MAX, operation });
        }
        self.tell_engines_of_replica();
        self.replica.look();
    }
}
