//! Tenants: operations on them, and changes of their quotas and limits.

use super::super::StoreActor;
use super::super::operation::tenants::TenantDone;
use super::super::refusal::Refusal;
use super::super::request::ReplyTo;
use super::super::stage::Stage;
use super::super::stage::quota::QuotaDone;
use super::super::stage::rates::RatesDone;
use longhaul_core::wire::link::{TenantOperation, ToHost};
use std::collections::BTreeSet;

impl StoreActor {
    /// Carries out an operation on tenants for a session that may do so.
    pub(super) fn tenant_operation(&mut self, to: ReplyTo, operation: TenantOperation) {
        self.operations.tenants.begin(to, operation);
    }

    /// The operation has ended. Changed limits take effect at once, here and at the other stores.
    pub(super) fn tenant_done(&mut self, done: TenantDone) {
        let TenantDone { to, changed, mut result } = done;
        if changed {
            self.stages.rates.look();
            self.stages.quotas.quotas_changed();
            self.look_for_room();
            self.fleet.tell_peers();
        }
        if let Ok(reply) = &mut result {
            self.stages.rates.complete(reply);
        }
        self.sessions.answer(to, ToHost::Tenant { request: to.request, result });
    }

    pub(super) fn look_for_room(&mut self) {
        self.stages.quotas.look(&self.directory, &self.engines);
    }

    pub(super) fn look_for_shares(&mut self) {
        if let Some(peers) = self.fleet.peers() {
            self.stages.rates.look_for_shares(peers);
        }
    }

    pub(super) fn quota_done(&mut self, done: QuotaDone) {
        match done {
            QuotaDone::Growth(Ok(()), request) => self.run(Stage::Snapshots, *request),
            QuotaDone::Growth(Err(error), request) => {
                self.refuse(*request, Refusal::Unavailable(error));
            }
            QuotaDone::Stored(found) => {
                let uses = (&self.directory, &self.engines);
                self.stages.quotas.found(found, uses, &mut self.stages.drains);
                self.resume();
                if self.stages.quotas.take_look_again() {
                    self.look_for_room();
                }
            }
        }
    }

    pub(super) fn rates_done(&mut self, done: RatesDone) {
        let now = self.meter.now();
        let drains = &mut self.stages.drains;
        // Their tenants may have limits now.
        self.engines.close_routes();
        match done {
            RatesDone::Limits(found) => {
                let new = self.stages.rates.found_limits(now, found, drains);
                self.resume();
                if new {
                    self.look_for_shares();
                }
                if self.stages.rates.take_look_again() {
                    self.stages.rates.look();
                }
            }
            RatesDone::Shares(reports) => {
                self.stages.rates.found_shares(now, reports, &self.directory, drains);
                self.resume();
            }
        }
    }

    /// Lets requests go on whose turn has come.
    pub(super) fn pass_due(&mut self) {
        self.stages.rates.handle_timeout(self.meter.now(), &mut self.stages.drains);
        self.resume();
    }

    /// Every now and then.
    pub(super) fn tend_limits(&mut self) {
        // The stage forgets tenants, and then does not hear of their limits.
        self.engines.close_routes();
        let tenants = self.engines.tenants(&self.directory).into_iter();
        let attached = tenants.filter(|(_, used)| used.attached).map(|(tenant, _)| tenant);
        self.stages.rates.tick(&attached.collect::<BTreeSet<String>>());
    }

    /// A session is over: nobody waits for what it sent.
    pub(super) fn forget_held(&mut self, session: u64) {
        self.stages.quotas.forget(session);
        self.stages.drains.forget(session);
        let now = self.meter.now();
        self.stages.rates.forget(now, session, &mut self.stages.drains);
        self.resume();
    }
}
