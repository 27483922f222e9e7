//! Tenants' limits on operations and bytes a second: requests with a cost wait for their turn.
//!
//! A request comes here after the check that its session may send it. The next stages find out
//! where its volume is then, or whether it still exists.
//!
//! Requests in the control lane never wait. Requests of other stores never wait either, because
//! those stores take a slow store for a dead one. The tenants pay their cost later. Batches come in
//! their own lane only. So memory is bounded: for reads by the open reads of a session, and for
//! batches by [`HeldDrains`] for each session. For a party and for all of them, the bytes that
//! batches count for at the link bound it.

use super::super::completions::Completions;
use super::super::directory::Directory;
use super::super::request::{Decision, Request};
use super::held_drains::HeldDrains;
use crate::peers::Peers;
use crate::tenants;
use crate::view::TenantState;
use longhaul_core::block::{Time, VolumeId};
use longhaul_core::store::SessionId;
use longhaul_core::store::tenant::{rates, tenant_of};
use longhaul_core::store::throttle::{self, Rates, Throttle, Waiting};
use longhaul_core::wire::link::{
    Lane, StoreReport, TenantInfo, TenantLimits, TenantReply, VolumeError,
};
use longhaul_objects::Objects;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// The outcomes of this stage's tasks.
pub(in super::super) enum RatesDone {
    /// The limits of tenants.
    Limits(Vec<(String, Result<TenantLimits, VolumeError>)>),
    /// The reports of other stores, to share the limits of tenants.
    Shares(Vec<StoreReport>),
}

/// The tenants whose volumes are in use here.
pub(in super::super) struct RateLimits {
    tenants: BTreeMap<String, TenantRate>,
    /// Requests whose turn has come.
    ready: VecDeque<Request>,
    /// A read of the limits is under way, and another one has to follow.
    looking: bool,
    look_again: bool,
    /// A request to the other stores for their reports is under way.
    asking: bool,
    objects: Arc<dyn Objects>,
    done: Completions<RatesDone>,
}

#[derive(Default)]
struct TenantRate {
    throttle: Throttle<Request>,
    /// `None` before the first read.
    limits: Option<TenantLimits>,
    /// Number of other stores with attached volumes of it.
    others: u64,
    /// Since the last look.
    used: bool,
}

impl TenantRate {
    /// Whether nothing waits, nor is going to.
    fn is_free(&self) -> bool {
        self.throttle.rates() == Some(Rates::default())
            && self.throttle.waiting() == Waiting::default()
    }

    /// Applies this store's part of the limits, once they are known.
    fn apply(&mut self, now: Time) {
        if let Some(limits) = &self.limits {
            self.throttle.set(now, rates(limits, self.others + 1));
        }
    }
}

/// The bytes that a request counts for in the drain lane of its session.
fn drain_bytes(request: &Request) -> Option<u64> {
    let drains = request.reply_to.lane == Lane::Drain;
    drains.then_some(request.body.payload.len() as u64)
}

/// Takes the requests whose turn has come.
fn poll(tenant: &mut TenantRate, ready: &mut VecDeque<Request>, drains: &mut HeldDrains) {
    while let Some(request) = tenant.throttle.poll() {
        if let Some(bytes) = drain_bytes(&request) {
            drains.remove(request.session(), bytes);
        }
        ready.push_back(request);
    }
}

impl RateLimits {
    pub fn new(objects: Arc<dyn Objects>, done: Completions<RatesDone>) -> RateLimits {
        RateLimits {
            tenants: BTreeMap::new(),
            ready: VecDeque::new(),
            looking: false,
            look_again: false,
            asking: false,
            objects,
            done,
        }
    }

    /// When the turn of something comes.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.tenants.values().filter_map(|tenant| tenant.throttle.poll_timeout()).min()
    }

    /// The next request whose turn has come.
    pub fn poll_ready(&mut self) -> Option<Request> {
        self.ready.pop_front()
    }

    /// Whether requests of a tenant's volumes, or of those without one, pass at once until the
    /// limits change.
    pub fn is_free(&self, tenant: Option<&str>) -> bool {
        let Some(tenant) = tenant else { return true };
        self.tenants.get(tenant).is_some_and(TenantRate::is_free)
    }

    /// The tenants that have a limit, at this moment.
    pub fn states(&self) -> Vec<TenantState> {
        let all = self.tenants.iter().filter_map(|(name, tenant)| {
            let rates = tenant.throttle.rates().filter(|rates| *rates != Rates::default())?;
            let (waiting, totals) = (tenant.throttle.waiting(), tenant.throttle.totals());
            Some(TenantState { name: name.clone(), rates, waiting, totals })
        });
        all.collect()
    }

    /// Puts in what waits here.
    pub fn complete(&self, reply: &mut TenantReply) {
        let complete = |info: &mut TenantInfo| {
            let tenant = self.tenants.get(&info.name);
            let waiting = tenant.map(|tenant| tenant.throttle.waiting()).unwrap_or_default();
            (info.waiting_requests, info.waiting_bytes) = (waiting.requests, waiting.bytes);
        };
        match reply {
            TenantReply::Done => {}
            TenantReply::Tenant(info) => complete(info),
            TenantReply::List(all) => all.iter_mut().for_each(complete),
        }
    }

    /// Holds a request about a tenant's volume that has to wait for its turn.
    pub fn decide(
        &mut self,
        now: Time,
        request: Request,
        directory: &Directory,
        drains: &mut HeldDrains,
    ) -> Decision {
        let Some(id) = throttle::of_volume(request.message()) else {
            return Decision::Pass(request);
        };
        let Some(name) = directory.tenant(directory.volume_of(id)) else {
            return Decision::Pass(request);
        };
        if !self.tenants.contains_key(name) {
            self.tenants.insert(name.to_owned(), TenantRate::default());
            self.look();
        }
        let Some(tenant) = self.tenants.get_mut(name) else { return Decision::Pass(request) };
        tenant.used = true;
        if tenant.is_free() {
            return Decision::Pass(request);
        }
        let cost = throttle::cost(request.message(), &request.body.payload);
        let (session, lane) = (request.session(), request.reply_to.lane);
        if lane == Lane::Control || request.is_from_store() {
            tenant.throttle.handle_urgent(now, cost);
            return Decision::Pass(request);
        }
        if let Some(bytes) = drain_bytes(&request) {
            drains.add(session, bytes);
        }
        tenant.throttle.handle_request(now, id, (SessionId(session), lane), cost, request);
        poll(tenant, &mut self.ready, drains);
        Decision::Hold
    }

    /// Does something with the throttles of all tenants.
    fn all(&mut self, drains: &mut HeldDrains, mut what: impl FnMut(&str, &mut TenantRate)) {
        for (name, tenant) in &mut self.tenants {
            what(name, tenant);
            poll(tenant, &mut self.ready, drains);
        }
    }

    pub fn handle_timeout(&mut self, now: Time, drains: &mut HeldDrains) {
        if self.poll_timeout().is_some_and(|at| at <= now) {
            self.all(drains, |_, tenant| tenant.throttle.handle_timeout(now));
        }
    }

    /// A session is over, and nobody waits for what it asked.
    pub fn forget(&mut self, now: Time, session: u64, drains: &mut HeldDrains) {
        let session = SessionId(session);
        self.all(drains, |_, tenant| tenant.throttle.handle_session_closed(now, session));
    }

    /// This store does not serve a volume any more: its waiting requests go on, to hear that.
    pub fn release_volume(&mut self, now: Time, volume: VolumeId, drains: &mut HeldDrains) {
        self.all(drains, |_, tenant| tenant.throttle.release(now, volume));
    }

    /// Every now and then: forgets the tenants that nobody needs, and reads the limits of the
    /// others. That helps if a notice of another store did not arrive.
    pub fn tick(&mut self, attached: &BTreeSet<String>) {
        self.tenants.retain(|name, tenant| {
            let used = std::mem::take(&mut tenant.used) || attached.contains(name);
            used || tenant.throttle.waiting() != Waiting::default()
        });
        self.look();
    }

    /// Reads the limits of the tenants whose volumes are in use here.
    pub fn look(&mut self) {
        if self.tenants.is_empty() {
            return;
        }
        if std::mem::replace(&mut self.looking, true) {
            self.look_again = true;
            return;
        }
        let objects = self.objects.clone();
        let names: Vec<String> = self.tenants.keys().cloned().collect();
        self.done.spawn(async move {
            let mut found = Vec::new();
            for name in names {
                let limits = tenants::limits(&*objects, &name).await;
                found.push((name, limits));
            }
            RatesDone::Limits(found)
        });
    }

    /// Takes the limits. Returns whether they are new for one of the tenants.
    pub fn found_limits(
        &mut self,
        now: Time,
        found: Vec<(String, Result<TenantLimits, VolumeError>)>,
        drains: &mut HeldDrains,
    ) -> bool {
        self.looking = false;
        let mut new = false;
        for (name, limits) in found {
            let Some(tenant) = self.tenants.get_mut(&name) else { continue };
            let before = tenant.limits.take();
            new |= before.is_none();
            tenant.limits = Some(limits.unwrap_or_else(|error| {
                tracing::warn!("cannot read the limits of tenant {name}: {error}");
                // Rather without limits than not at all.
                before.unwrap_or_default()
            }));
            tenant.apply(now);
            poll(tenant, &mut self.ready, drains);
        }
        new
    }

    /// Whether another read of the limits has to follow. True once for each request.
    pub fn take_look_again(&mut self) -> bool {
        std::mem::take(&mut self.look_again)
    }

    /// Asks the other stores of which tenants they have volumes attached, if one here has limits.
    pub fn look_for_shares(&mut self, peers: &Peers) {
        let rated = |tenant: &TenantRate| tenant.throttle.rates() != Some(Rates::default());
        if !self.tenants.values().any(rated) || std::mem::replace(&mut self.asking, true) {
            return;
        }
        let peers = peers.clone();
        self.done.spawn(async move {
            let reports = peers.reports().await.into_iter();
            RatesDone::Shares(reports.filter_map(|(_, _, report)| report).collect())
        });
    }

    /// Takes the attached volumes of the other stores that answer: each store has the same part of
    /// a tenant's limits.
    pub fn found_shares(
        &mut self,
        now: Time,
        reports: Vec<StoreReport>,
        directory: &Directory,
        drains: &mut HeldDrains,
    ) {
        self.asking = false;
        let mut others: BTreeMap<String, u64> = BTreeMap::new();
        for report in reports {
            let attached = report.volumes.iter().filter(|served| served.live.connected);
            let names = attached.filter_map(|served| directory.name(served.volume));
            let tenants: BTreeSet<&str> = names.filter_map(tenant_of).collect();
            for tenant in tenants {
                *others.entry(tenant.to_owned()).or_default() += 1;
            }
        }
        self.all(drains, |name, tenant| {
            tenant.others = others.get(name).copied().unwrap_or_default();
            tenant.apply(now);
        });
    }
}
