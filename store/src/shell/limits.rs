//! What tenants may do in a time: which limits there are, and what waits for them.
//!
//! A frame that costs something passes [`Shell::hold`] once it is known that its session may send it, and goes on from
//! there when the [`Throttle`] of the volume's tenant lets it pass. Where a volume is then, or whether it is still there, is
//! found out as for any other frame.
//!
//! The control lane never waits, nor do other stores, which take one that keeps them waiting to be gone: what comes there is
//! paid for afterwards; batches come in their own lane only. So memory is bounded: of reads by those that a session may have
//! open, of batches by [`HELD_MAX`] for each session, and for a party and all by what batches count for at the link.

use super::{Outcome, Shell};
use crate::tenants;
use crate::view::TenantState;
use longhaul_core::block::{Time, VolumeId};
use longhaul_core::store::SessionId;
use longhaul_core::store::tenant::{rates, tenant_of};
use longhaul_core::store::throttle::{self, Rates, Throttle, Waiting};
use longhaul_core::wire::link::{
    Frame, Lane, StoreReport, TenantInfo, TenantLimits, TenantReply, ToStore, VolumeError,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Bytes of a session's drain lane that wait here before no more is read of it: four batches as hosts make them, so that
/// those of other volumes that follow are seen.
const HELD_MAX: u64 = 16 << 20;
/// What a frame counts for besides its payload.
const FRAME_BYTES: u64 = 4096;

/// The tenants whose volumes are used here.
#[derive(Default)]
pub(super) struct Limits {
    tenants: BTreeMap<String, Tenant>,
    /// Bytes of drain lanes that wait, by session.
    drains: HashMap<u64, u64>,
    /// The limits are being read, and once more after that.
    looking: bool,
    look_again: bool,
    /// Other stores are being asked what they serve.
    asking: bool,
}

#[derive(Default)]
struct Tenant {
    throttle: Throttle<Held>,
    /// Nothing before they have been read.
    limits: Option<TenantLimits>,
    /// Other stores at which volumes of it are attached.
    others: u64,
    /// Since the last look.
    used: bool,
}

impl Tenant {
    /// Whether nothing waits, nor is going to.
    fn is_free(&self) -> bool {
        self.throttle.rates() == Some(Rates::default())
            && self.throttle.waiting() == Waiting::default()
    }

    /// Keeps to this store's part of the limits, once they are known.
    fn apply(&mut self, now: Time) {
        if let Some(limits) = &self.limits {
            self.throttle.set(now, rates(limits, self.others + 1));
        }
    }
}

/// A frame that waits.
struct Held {
    session: u64,
    lane: Lane,
    frame: Frame<ToStore>,
}

impl Held {
    /// What it counts for of [`HELD_MAX`].
    fn drain_bytes(&self) -> u64 {
        let drains = self.lane == Lane::Drain;
        if drains { self.frame.payload.len() as u64 + FRAME_BYTES } else { 0 }
    }
}

impl Limits {
    /// When something may pass.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.tenants.values().filter_map(|tenant| tenant.throttle.poll_timeout()).min()
    }

    /// Whether no more is to be read of what a session drains.
    pub(super) fn is_full(&self, session: u64) -> bool {
        self.drains.get(&session).is_some_and(|bytes| *bytes >= HELD_MAX)
    }

    /// The tenants that have a limit, at this moment.
    pub(super) fn states(&self) -> Vec<TenantState> {
        let all = self.tenants.iter().filter_map(|(name, tenant)| {
            let rates = tenant.throttle.rates().filter(|rates| *rates != Rates::default())?;
            let (waiting, totals) = (tenant.throttle.waiting(), tenant.throttle.totals());
            Some(TenantState { name: name.clone(), rates, waiting, totals })
        });
        all.collect()
    }

    /// Puts in what waits here.
    pub(super) fn complete(&self, reply: &mut TenantReply) {
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
}

impl Shell {
    /// Takes a frame about a tenant's volume that has to wait, for [`Shell::pass`]; gives any other back.
    pub(super) fn hold(
        &mut self,
        session: u64,
        lane: Lane,
        frame: Frame<ToStore>,
    ) -> Option<Frame<ToStore>> {
        let Some(id) = throttle::of_volume(&frame.message) else { return Some(frame) };
        let now = self.now();
        let volume = self.snapshots.place(id).map_or(id, |place| place.volume);
        let Some(name) = self.names.get(&volume).and_then(|name| tenant_of(name)) else {
            return Some(frame);
        };
        if !self.limits.tenants.contains_key(name) {
            self.limits.tenants.insert(name.to_owned(), Tenant::default());
            self.look_for_limits();
            return self.hold(session, lane, frame);
        }
        let tenant = self.limits.tenants.get_mut(name)?;
        tenant.used = true;
        if tenant.is_free() {
            return Some(frame);
        }
        let name = name.to_owned();
        let cost = throttle::cost(&frame.message, &frame.payload);
        if lane == Lane::Control || self.stores.contains(&session) {
            tenant.throttle.handle_urgent(now, cost);
            return Some(frame);
        }
        let held = Held { session, lane, frame };
        let bytes = held.drain_bytes();
        tenant.throttle.handle_request(now, id, (SessionId(session), lane), cost, held);
        if bytes > 0 {
            *self.limits.drains.entry(session).or_default() += bytes;
        }
        self.pass(&name);
        if self.limits.is_full(session) {
            self.pause_drains(&BTreeSet::from([session]));
        }
        None
    }

    /// Lets go on what may pass.
    fn pass(&mut self, tenant: &str) {
        while let Some(tenant) = self.limits.tenants.get_mut(tenant)
            && let Some(held) = tenant.throttle.poll()
        {
            let was_full = self.limits.is_full(held.session);
            if let Some(bytes) = self.limits.drains.get_mut(&held.session) {
                *bytes = bytes.saturating_sub(held.drain_bytes());
            }
            if was_full && !self.limits.is_full(held.session) {
                self.pause_drains(&BTreeSet::from([held.session]));
            }
            self.allowed_frame(held.session, held.lane, held.frame);
        }
    }

    /// Does something with the throttles of all tenants, and lets go on what may pass then.
    fn throttles(&mut self, mut what: impl FnMut(Time, &mut Throttle<Held>)) {
        let now = self.now();
        for name in self.limits.tenants.keys().cloned().collect::<Vec<_>>() {
            if let Some(tenant) = self.limits.tenants.get_mut(&name) {
                what(now, &mut tenant.throttle);
            }
            self.pass(&name);
        }
    }

    /// Lets go on what has waited for long enough.
    pub(super) fn pass_due(&mut self) {
        if self.limits.poll_timeout().is_some_and(|at| at <= self.now()) {
            self.throttles(|now, throttle| throttle.handle_timeout(now));
        }
    }

    /// So much of what a session drains waits here for something else than its turn.
    pub(super) fn hold_drain(&mut self, session: u64, bytes: u64) {
        *self.limits.drains.entry(session).or_default() += bytes + FRAME_BYTES;
        if self.limits.is_full(session) {
            self.pause_drains(&BTreeSet::from([session]));
        }
    }

    /// So much of it does not any more.
    pub(super) fn let_drain(&mut self, session: u64, bytes: u64) {
        let was_full = self.limits.is_full(session);
        if let Some(held) = self.limits.drains.get_mut(&session) {
            *held = held.saturating_sub(bytes + FRAME_BYTES);
        }
        if was_full && !self.limits.is_full(session) {
            self.pause_drains(&BTreeSet::from([session]));
        }
    }

    /// A session is over, and nobody waits for what it asked.
    pub(super) fn forget_held(&mut self, session: u64) {
        self.forget_waiting_for_room(session);
        self.forget_walks(session);
        self.limits.drains.remove(&session);
        self.throttles(|now, throttle| throttle.handle_session_closed(now, SessionId(session)));
    }

    /// Lets go on what waits of a volume that is not served here any more, to be told so.
    pub(super) fn release_held(&mut self, volume: VolumeId) {
        self.release_waiting_for_room(volume);
        self.throttles(|now, throttle| throttle.release(now, volume));
    }

    /// Every now and then: forgets the tenants that nobody needs, and reads the limits of the others, in case what
    /// another store has said of them did not arrive.
    pub(super) fn tend_limits(&mut self) {
        let attached: BTreeSet<String> =
            self.used_by_tenants().into_iter().map(|(tenant, _)| tenant).collect();
        self.limits.tenants.retain(|name, tenant| {
            let used = std::mem::take(&mut tenant.used) || attached.contains(name);
            used || tenant.throttle.waiting() != Waiting::default()
        });
        self.look_for_limits();
    }

    /// Reads the limits of the tenants whose volumes are used here.
    pub(super) fn look_for_limits(&mut self) {
        if self.limits.tenants.is_empty() {
            return;
        }
        if std::mem::replace(&mut self.limits.looking, true) {
            self.limits.look_again = true;
            return;
        }
        let (objects, outcomes) = (self.objects.clone(), self.outcomes.0.clone());
        let names: Vec<String> = self.limits.tenants.keys().cloned().collect();
        tokio::spawn(async move {
            let mut found = Vec::new();
            for name in names {
                let limits = tenants::limits(&*objects, &name).await;
                found.push((name, limits));
            }
            let _ = outcomes.send(Outcome::Limits(found));
        });
    }

    /// The limits have been read.
    pub(super) fn found_limits(&mut self, found: Vec<(String, Result<TenantLimits, VolumeError>)>) {
        self.limits.looking = false;
        let now = self.now();
        let mut new = false;
        for (name, limits) in found {
            let Some(tenant) = self.limits.tenants.get_mut(&name) else { continue };
            let before = tenant.limits.take();
            new |= before.is_none();
            tenant.limits = Some(limits.unwrap_or_else(|error| {
                tracing::warn!("what tenant {name} may do is not known: {error}");
                // Rather without limits than not at all.
                before.unwrap_or_default()
            }));
            tenant.apply(now);
            self.pass(&name);
        }
        if new {
            self.look_for_shares();
        }
        if std::mem::take(&mut self.limits.look_again) {
            self.look_for_limits();
        }
    }

    /// Asks the other stores of which tenants they have volumes attached, if one here has limits.
    pub(super) fn look_for_shares(&mut self) {
        let Some(fleet) = &self.fleet else { return };
        let rated = |tenant: &Tenant| tenant.throttle.rates() != Some(Rates::default());
        if !self.limits.tenants.values().any(rated) || self.limits.asking {
            return;
        }
        self.limits.asking = true;
        let (peers, outcomes) = (fleet.peers.clone(), self.outcomes.0.clone());
        tokio::spawn(async move {
            let reports = peers.reports().await.into_iter();
            let reports = reports.filter_map(|(_, _, report)| report).collect();
            let _ = outcomes.send(Outcome::Shares(reports));
        });
    }

    /// What the other stores that answer have attached is known: each has the same part of a tenant's limits.
    pub(super) fn found_shares(&mut self, reports: Vec<StoreReport>) {
        self.limits.asking = false;
        let now = self.now();
        let mut others: BTreeMap<String, u64> = BTreeMap::new();
        for report in reports {
            let attached = report.volumes.iter().filter(|served| served.live.connected);
            let names = attached.filter_map(|served| self.names.get(&served.volume));
            let tenants: BTreeSet<&str> = names.filter_map(|name| tenant_of(name)).collect();
            for tenant in tenants {
                *others.entry(tenant.to_owned()).or_default() += 1;
            }
        }
        for name in self.limits.tenants.keys().cloned().collect::<Vec<_>>() {
            if let Some(tenant) = self.limits.tenants.get_mut(&name) {
                tenant.others = others.get(&name).copied().unwrap_or_default();
                tenant.apply(now);
            }
            self.pass(&name);
        }
    }
}
