//! Tenants, their limits, and their use. [`longhaul_core::store::fleet::tenants`] decides.

use super::catalog::Entry;
use super::drive::drive;
use longhaul_core::store::VolumeSpec;
use longhaul_core::store::fleet::tenants::{AllowSize, FindLimits, FindRoom, OperateTenants};
use longhaul_core::wire::link::{TenantLimits, TenantOperation, TenantReply, VolumeError};
use longhaul_objects::Objects;

/// The limits of a tenant; none, if there is no tenant of that name.
///
/// # Errors
/// If the reads fail.
pub async fn limits(objects: &dyn Objects, tenant: &str) -> Result<TenantLimits, VolumeError> {
    drive(FindLimits(tenant.to_owned()), objects, None).await
}

/// The stored bytes of a tenant, with its deleted volumes, and its quota. Without a quota, this
/// does not count the bytes.
///
/// # Errors
/// If the reads fail.
pub async fn stored(
    objects: &dyn Objects,
    tenant: &str,
) -> Result<(u64, Option<u64>), VolumeError> {
    drive(FindRoom(tenant.to_owned()), objects, None).await
}

/// Whether a volume may have that size.
///
/// # Errors
/// If its tenant would be over a limit, or the reads fail.
pub async fn allow_size(
    objects: &dyn Objects,
    spec: &VolumeSpec,
    sectors: u64,
) -> Result<(), VolumeError> {
    let entry = Entry { spec: spec.clone(), sectors };
    drive(AllowSize(entry), objects, None).await
}

/// Carries out an operation on tenants.
///
/// # Errors
/// If it fails. The message says why and what to do.
pub async fn operate(
    objects: &dyn Objects,
    operation: TenantOperation,
) -> Result<TenantReply, VolumeError> {
    drive(OperateTenants(operation), objects, None).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{NotCreated, create};
    use crate::trash;
    use bytes::Bytes;
    use longhaul_core::store::tenant::TENANTS_PREFIX;
    use longhaul_core::wire::link::TenantInfo;
    use longhaul_objects::MemoryObjects;
    use std::collections::BTreeSet;

    fn limits(max_volumes: Option<u64>, max_bytes: Option<u64>) -> TenantLimits {
        TenantLimits { max_volumes, max_bytes, ..TenantLimits::default() }
    }

    async fn tenant(objects: &dyn Objects, limits: TenantLimits) {
        let tenant = "acme".to_owned();
        operate(objects, TenantOperation::Create { tenant, limits }).await.unwrap();
    }

    async fn shown(objects: &dyn Objects) -> TenantInfo {
        let shown = operate(objects, TenantOperation::Show { tenant: "acme".into() }).await;
        let TenantReply::Tenant(info) = shown.unwrap() else { panic!() };
        info
    }

    #[tokio::test]
    async fn limits_hold_and_are_raised() {
        let objects = MemoryObjects::new(1 << 30);
        let new = |name: &str| create(&objects, name.to_owned(), 2048, 512);
        let said = |refused: NotCreated| refused.error.to_string();
        assert!(said(new("acme/a").await.unwrap_err()).contains("no tenant acme"));
        tenant(&objects, limits(Some(2), Some(3 << 20))).await;
        let a = new("acme/a").await.unwrap();
        new("acme/b").await.unwrap();
        new("b").await.unwrap();
        assert!(said(new("acme/c").await.unwrap_err()).contains("may have 2"));
        let info = shown(&objects).await;
        assert_eq!((info.volumes, info.bytes, info.deleted), (2, 2 << 20, 0));
        allow_size(&objects, &a, 4096).await.unwrap();
        let error = allow_size(&objects, &a, 4104).await.unwrap_err().to_string();
        assert!(error.contains("3 MiB") && error.contains("--max-bytes"), "{error}");
        let set = |limits| TenantOperation::Set { tenant: "acme".into(), limits };
        operate(&objects, set(limits(None, Some(3 << 20)))).await.unwrap();
        let c = new("acme/c").await.unwrap();
        assert!(said(new("acme/d").await.unwrap_err()).contains("together"));
        // A deleted volume counts again when it comes back.
        let entry = Entry { sectors: 2048, spec: c.clone() };
        trash::delete(&objects, &entry, None, Some(&BTreeSet::new())).await.unwrap();
        new("acme/d").await.unwrap();
        let back = trash::restore(&objects, None, c.id, "acme/c", None).await.unwrap_err();
        assert!(back.to_string().contains("together"), "{back}");
        operate(&objects, set(TenantLimits::default())).await.unwrap();
        trash::restore(&objects, None, c.id, "acme/c", None).await.unwrap();
        assert_eq!(objects.list(TENANTS_PREFIX).await.unwrap().len(), 1, "older ones go");
    }

    async fn has_room(objects: &dyn Objects, tenant: &str) -> Result<bool, VolumeError> {
        let (stored, limit) = stored(objects, tenant).await?;
        Ok(limit.is_none_or(|limit| stored < limit))
    }

    #[tokio::test]
    async fn what_is_stored_counts_until_it_is_removed() {
        let objects = MemoryObjects::new(1 << 30);
        let stored = |max_stored| TenantLimits { max_stored, ..TenantLimits::default() };
        tenant(&objects, stored(Some(4096))).await;
        let new = |name: &str| create(&objects, name.to_owned(), 2048, 512);
        let (a, b, own) = (new("acme/a"), new("acme/b"), new("own"));
        let (a, b, own) = (a.await.unwrap(), b.await.unwrap(), own.await.unwrap());
        let put = async |spec: &VolumeSpec, bytes: usize| {
            let key = longhaul_core::store::catalog::segment_key(spec.id, 1);
            objects.put(&key, vec![Bytes::from(vec![0; bytes])]).await.unwrap();
        };
        put(&own, 1 << 20).await;
        put(&a, 3000).await;
        assert_eq!(has_room(&objects, "acme").await, Ok(true));
        put(&b, 1096).await;
        assert_eq!(has_room(&objects, "acme").await, Ok(false));
        let entry = Entry { sectors: 2048, spec: b };
        trash::delete(&objects, &entry, None, Some(&BTreeSet::new())).await.unwrap();
        assert_eq!(has_room(&objects, "acme").await, Ok(false));
        let info = shown(&objects).await;
        assert_eq!((info.volumes, info.deleted, info.stored), (1, 1, 4096));
        trash::purge(&objects, entry.spec.id).await.unwrap();
        assert_eq!(has_room(&objects, "acme").await, Ok(true));
        let set = |limits| TenantOperation::Set { tenant: "acme".into(), limits };
        operate(&objects, set(stored(Some(3000)))).await.unwrap();
        assert_eq!(has_room(&objects, "acme").await, Ok(false));
        operate(&objects, set(stored(None))).await.unwrap();
        assert_eq!(has_room(&objects, "acme").await, Ok(true));
        assert_eq!(has_room(&objects, "nobody").await, Ok(true));
    }

    #[tokio::test]
    async fn of_many_at_once_none_gets_past_a_limit() {
        let objects = MemoryObjects::new(1 << 30);
        tenant(&objects, limits(Some(3), None)).await;
        let all = (0..8).map(|n| create(&objects, format!("acme/v{n}"), 2048, 512));
        let done = futures_util::future::join_all(all).await;
        let volumes = shown(&objects).await.volumes;
        assert_eq!(done.iter().filter(|result| result.is_ok()).count() as u64, volumes);
        assert!(volumes <= 3);
    }

    #[tokio::test]
    async fn a_tenant_goes_when_nothing_of_it_is_left() {
        let objects = MemoryObjects::new(1 << 30);
        let delete = || operate(&objects, TenantOperation::Delete { tenant: "acme".into() });
        assert!(delete().await.unwrap_err().to_string().contains("no tenant"));
        tenant(&objects, limits(Some(3), None)).await;
        let again = TenantOperation::Create { tenant: "acme".into(), limits: limits(None, None) };
        assert!(operate(&objects, again).await.unwrap_err().to_string().contains("already"));
        let spec = create(&objects, "acme/a".into(), 2048, 512).await.unwrap();
        assert!(delete().await.unwrap_err().to_string().contains("1 volumes"));
        let entry = Entry { sectors: 2048, spec };
        trash::delete(&objects, &entry, None, Some(&BTreeSet::new())).await.unwrap();
        assert!(delete().await.unwrap_err().to_string().contains("1 deleted"));
        assert_eq!(shown(&objects).await.limits.max_volumes, Some(3));
        trash::purge(&objects, entry.spec.id).await.unwrap();
        assert_eq!(delete().await, Ok(TenantReply::Done));
        assert_eq!(operate(&objects, TenantOperation::List).await, Ok(TenantReply::List(vec![])));
        tenant(&objects, limits(None, None)).await;
        assert_eq!(shown(&objects).await.limits, TenantLimits::default());
        let odd = TenantOperation::Create { tenant: "a/b".into(), limits: limits(None, None) };
        assert!(operate(&objects, odd).await.unwrap_err().to_string().contains("letters"));
    }

    #[tokio::test]
    async fn limits_a_second_are_kept_and_taken_away() {
        let objects = MemoryObjects::new(1 << 30);
        let rates =
            |max_iops, max_rate| TenantLimits { max_iops, max_rate, ..limits(Some(3), None) };
        tenant(&objects, rates(Some(100), None)).await;
        let set = |limits| TenantOperation::Set { tenant: "acme".into(), limits };
        for stopped in [rates(Some(0), None), rates(None, Some(0))] {
            let error = operate(&objects, set(stopped.clone())).await.unwrap_err().to_string();
            assert!(error.contains("at least 1"), "{error}");
            let create = TenantOperation::Create { tenant: "other".into(), limits: stopped };
            assert!(operate(&objects, create).await.is_err());
        }
        operate(&objects, set(rates(Some(7), Some(1 << 20)))).await.unwrap();
        let found = super::limits(&objects, "acme").await.unwrap();
        assert_eq!(found, rates(Some(7), Some(1 << 20)));
        assert_eq!(shown(&objects).await.limits, found);
        operate(&objects, set(rates(None, None))).await.unwrap();
        assert_eq!(super::limits(&objects, "acme").await.unwrap(), limits(Some(3), None));
        assert_eq!(super::limits(&objects, "other").await, Ok(TenantLimits::default()));
    }
}
