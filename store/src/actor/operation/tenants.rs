//! Operations on tenants: their records lie in the location.

use super::super::completions::Completions;
use super::super::request::ReplyTo;
use crate::tenants;
use longhaul_core::wire::link::{TenantOperation, TenantReply, VolumeError};
use longhaul_objects::Objects;
use std::sync::Arc;

/// Something was asked about tenants, or changed about one.
pub(in super::super) struct TenantDone {
    pub to: ReplyTo,
    /// Limits or quotas may be others than before.
    pub changed: bool,
    pub result: Result<TenantReply, VolumeError>,
}

pub(in super::super) struct TenantOperations {
    objects: Arc<dyn Objects>,
    done: Completions<TenantDone>,
}

impl TenantOperations {
    pub fn new(objects: Arc<dyn Objects>, done: Completions<TenantDone>) -> TenantOperations {
        TenantOperations { objects, done }
    }

    pub fn begin(&self, to: ReplyTo, operation: TenantOperation) {
        let objects = self.objects.clone();
        let changes = !matches!(operation, TenantOperation::Show { .. } | TenantOperation::List);
        self.done.spawn(async move {
            let result = tenants::operate(&*objects, operation).await;
            TenantDone { to, changed: changes && result.is_ok(), result }
        });
    }
}
