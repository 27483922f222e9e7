//! What is asked about tenants, and what they may have.

use super::{Asked, Outcome, Shell};
use crate::store::tenants;
use longhaul_core::store::tenant::tenant_of;
use longhaul_core::wire::link::{Frame, Lane, TenantOperation, ToStore, VolumeOperation};

impl Shell {
    /// Something about tenants is asked, by whom it may be.
    pub(super) fn tenant_operation(&mut self, asked: Asked, operation: TenantOperation) {
        let (objects, outcomes) = (self.objects.clone(), self.outcomes.0.clone());
        tokio::spawn(async move {
            let result = tenants::operate(&*objects, operation).await;
            let _ = outcomes.send(Outcome::Tenant(asked, result));
        });
    }

    /// Takes a frame that makes a tenant's volume larger until it is known whether that may be; gives any other back. From
    /// another store it comes after that.
    pub(super) fn take_growth(
        &mut self,
        session: u64,
        lane: Lane,
        frame: Frame<ToStore>,
    ) -> Option<Frame<ToStore>> {
        let ToStore::Volume { operation: VolumeOperation::Resize { name, sectors }, .. } =
            &frame.message
        else {
            return Some(frame);
        };
        let entry = self.catalog.get(name).filter(|_| tenant_of(name).is_some());
        let Some(entry) = entry.filter(|_| !self.stores.contains(&session)) else {
            return Some(frame);
        };
        let (spec, sectors) = (entry.spec.clone(), *sectors);
        let (objects, outcomes) = (self.objects.clone(), self.outcomes.0.clone());
        tokio::spawn(async move {
            let allowed = tenants::allow_size(&*objects, &spec, sectors).await;
            let _ = outcomes.send(Outcome::Allowed(allowed, session, lane, frame));
        });
        None
    }
}
