//! Which tenants there are, what they may have and do, and have.
//!
//! What a tenant may have lies in the location, so that all stores over it agree; what it has is what there is. Whoever
//! gives a volume a name looks before, and once more afterwards: of several at once, at several stores, none gets past a
//! limit, though all may be refused.

use super::catalog::{self, NotCreated};
use super::trash;
use bytes::Bytes;
use longhaul_base::units::show_bytes;
use longhaul_core::block::{SECTOR_BYTES, VolumeId};
use longhaul_core::store::VolumeSpec;
use longhaul_core::store::catalog::volume_prefix;
use longhaul_core::store::tenant::{self, TENANTS_PREFIX, check_tenant, tenant_of};
use longhaul_core::wire::link::{
    TenantInfo, TenantLimits, TenantOperation, TenantReply, VolumeError,
};
use longhaul_objects::{GetError, Objects, PutError};
use std::collections::BTreeMap;

/// Attempts at a record while others make some, at most.
const ATTEMPTS: usize = 8;

fn failed(error: impl std::fmt::Display) -> VolumeError {
    VolumeError::Store(error.to_string())
}

fn invalid(why: impl Into<String>) -> VolumeError {
    VolumeError::Invalid(why.into())
}

fn no_such(name: &str) -> VolumeError {
    invalid(format!(
        "there is no tenant {name}; `longhaul tenant list` shows those there are, `longhaul tenant create` makes one"
    ))
}

/// What a tenant's record says, or what is wrong with it.
type Said = Result<Option<TenantLimits>, String>;

/// The newest record of each tenant whose records' keys begin with `prefix`, and its number; those that are deleted are among
/// them.
async fn newest(
    objects: &dyn Objects,
    prefix: &str,
) -> Result<BTreeMap<String, (u64, Said)>, VolumeError> {
    'again: for _ in 0..ATTEMPTS {
        let list = objects.list(prefix).await.map_err(VolumeError::Store)?;
        let mut numbers: BTreeMap<String, u64> = BTreeMap::new();
        for (name, number) in list.iter().filter_map(|meta| tenant::parse_key(&meta.key)) {
            let newest = numbers.entry(name.to_owned()).or_default();
            *newest = number.max(*newest);
        }
        let mut found = BTreeMap::new();
        for (name, number) in numbers {
            let key = tenant::key(&name, number);
            match objects.get(&key, None).await {
                Ok(bytes) => {
                    let limits = tenant::decode(&key, &bytes).map_err(|error| error.to_string());
                    found.insert(name, (number, limits));
                }
                Err(GetError::Damaged(reason)) => {
                    found.insert(name, (number, Err(reason)));
                }
                // There is a newer one.
                Err(GetError::NotFound) => continue 'again,
                Err(error) => return Err(failed(error)),
            }
        }
        return Ok(found);
    }
    Err(failed("tenants are changed at this moment; try again"))
}

/// Number and content of a tenant's newest record.
async fn record(
    objects: &dyn Objects,
    name: &str,
) -> Result<(u64, Option<TenantLimits>), VolumeError> {
    match newest(objects, &tenant::prefix(name)).await?.remove(name) {
        None => Ok((0, None)),
        Some((number, Ok(limits))) => Ok((number, limits)),
        Some((_, Err(reason))) => Err(failed(reason)),
    }
}

/// Makes the record after that of a number. Gives nothing if somebody else has done so.
async fn put(
    objects: &dyn Objects,
    name: &str,
    upon: u64,
    limits: Option<&TenantLimits>,
) -> Result<Option<u64>, VolumeError> {
    let number = upon.saturating_add(1);
    let key = tenant::key(name, number);
    let data = Bytes::from(tenant::encode(limits));
    match objects.put(&key, vec![data]).await {
        Ok(()) => {}
        Err(PutError::Exists) => return Ok(None),
        Err(PutError::Failed(error)) => return Err(VolumeError::Store(error)),
    }
    for meta in objects.list(&tenant::prefix(name)).await.unwrap_or_default() {
        let older = tenant::parse_key(&meta.key).is_some_and(|(_, other)| other < number);
        if older && let Err(error) = objects.delete(&meta.key).await {
            // It only takes space, and the next one tries again.
            tracing::debug!("cannot delete {}: {error}", meta.key);
        }
    }
    Ok(Some(number))
}

/// What a tenant has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Usage {
    volumes: u64,
    bytes: u64,
    deleted: u64,
    stored: u64,
}

impl Usage {
    fn info(self, name: String, limits: TenantLimits) -> TenantInfo {
        let Usage { volumes, bytes, deleted, stored } = self;
        // What waits is the shell's to say.
        let (waiting_requests, waiting_bytes) = (0, 0);
        TenantInfo {
            name,
            limits,
            volumes,
            bytes,
            deleted,
            stored,
            waiting_requests,
            waiting_bytes,
        }
    }

    fn add(&mut self, sectors: u64) {
        self.volumes += 1;
        self.bytes = self.bytes.saturating_add(sectors.saturating_mul(SECTOR_BYTES));
    }
}

/// What tenants have whose volumes' keys begin with `prefix`, without one volume.
async fn usage(
    objects: &dyn Objects,
    prefix: &str,
    without: Option<VolumeId>,
) -> Result<BTreeMap<String, Usage>, VolumeError> {
    let entries = catalog::entries(objects, prefix).await;
    let entries = entries.map_err(|error| VolumeError::Store(format!("{error:#}")))?;
    let mut usage: BTreeMap<String, Usage> = BTreeMap::new();
    // How large they are is not known.
    for tenant in entries.damaged.keys().filter_map(|name| tenant_of(name)) {
        usage.entry(tenant.to_owned()).or_default().add(0);
    }
    for entry in entries.entries.values().filter(|entry| Some(entry.spec.id) != without) {
        if let Some(tenant) = entry.spec.tenant() {
            usage.entry(tenant.to_owned()).or_default().add(entry.sectors);
        }
    }
    Ok(usage)
}

/// Deleted volumes that have a tenant, with that.
async fn deleted(objects: &dyn Objects) -> Result<Vec<(String, VolumeId)>, VolumeError> {
    let mut all = Vec::new();
    let mut after = VolumeId(0);
    loop {
        let (deleted, more) =
            trash::list(objects, after, 0, |spec| spec.tenant().is_some()).await?;
        for volume in deleted {
            after = volume.id;
            all.extend(tenant_of(&volume.name).map(|tenant| (tenant.to_owned(), volume.id)));
        }
        if !more {
            return Ok(all);
        }
    }
}

/// The same as [`usage`] with deleted volumes, and what all of it takes.
async fn usage_with_deleted(objects: &dyn Objects) -> Result<BTreeMap<String, Usage>, VolumeError> {
    let mut all = usage(objects, &catalog::of_tenants(), None).await?;
    let specs = catalog::specs_of(objects, &catalog::of_tenants()).await?.into_iter();
    let there = specs.filter_map(|spec| Some((spec.tenant()?.to_owned(), spec.id)));
    let mut volumes: Vec<_> = there.collect();
    for (tenant, volume) in deleted(objects).await? {
        all.entry(tenant.clone()).or_default().deleted += 1;
        volumes.push((tenant, volume));
    }
    for (tenant, volume) in volumes {
        let usage = all.entry(tenant).or_default();
        usage.stored = usage.stored.saturating_add(volume_stored(objects, volume).await?);
    }
    Ok(all)
}

/// Bytes of all objects that a volume consists of.
async fn volume_stored(objects: &dyn Objects, volume: VolumeId) -> Result<u64, VolumeError> {
    let list = objects.list(&volume_prefix(volume)).await.map_err(VolumeError::Store)?;
    Ok(list.iter().map(|meta| meta.bytes).sum())
}

/// What a tenant may have and do; nothing, if there is none of that name.
///
/// # Errors
/// If the objects cannot be read.
pub async fn limits(objects: &dyn Objects, tenant: &str) -> Result<TenantLimits, VolumeError> {
    Ok(record(objects, tenant).await?.1.unwrap_or_default())
}

/// Whether limits are such that something can be done.
fn check(limits: &TenantLimits) -> Result<(), VolumeError> {
    if limits.max_iops == Some(0) || limits.max_rate == Some(0) {
        return Err(invalid(
            "a limit of nothing a second would stop everything: set none, or at least 1",
        ));
    }
    Ok(())
}

/// What a tenant has stored, deleted volumes and all, and how much it may; what it has is not counted where it may
/// have any amount.
///
/// # Errors
/// If the objects cannot be read.
pub async fn stored(
    objects: &dyn Objects,
    tenant: &str,
) -> Result<(u64, Option<u64>), VolumeError> {
    let limits = record(objects, tenant).await?.1;
    let Some(limit) = limits.and_then(|limits| limits.max_stored) else { return Ok((0, None)) };
    let there = catalog::specs_of(objects, &catalog::of_tenant(tenant)).await?;
    let deleted = deleted(objects).await?.into_iter().filter(|(of, _)| of == tenant);
    let volumes = there.into_iter().map(|spec| spec.id).chain(deleted.map(|(_, volume)| volume));
    let mut stored = 0_u64;
    for volume in volumes {
        stored = stored.saturating_add(volume_stored(objects, volume).await?);
    }
    Ok((stored, Some(limit)))
}

/// Whether a tenant may have a volume of so many sectors, beside those that it has.
async fn allow(
    objects: &dyn Objects,
    tenant: &str,
    volume: VolumeId,
    sectors: u64,
) -> Result<(), VolumeError> {
    let (_, Some(limits)) = record(objects, tenant).await? else { return Err(no_such(tenant)) };
    if limits == TenantLimits::default() {
        return Ok(());
    }
    let prefix = catalog::of_tenant(tenant);
    let mut has = usage(objects, &prefix, Some(volume)).await?.remove(tenant).unwrap_or_default();
    let before = has;
    has.add(sectors);
    if let Some(limit) = limits.max_volumes.filter(|limit| has.volumes > *limit) {
        return Err(invalid(format!(
            "tenant {tenant} has {} volumes and may have {limit}: delete one, or have the limit raised with `longhaul \
             tenant set {tenant} --max-volumes`",
            before.volumes
        )));
    }
    if let Some(limit) = limits.max_bytes.filter(|limit| has.bytes > *limit) {
        return Err(invalid(format!(
            "tenant {tenant} may have volumes of {} together, and would have {}: take less, delete a volume, or have the \
             limit raised with `longhaul tenant set {tenant} --max-bytes`",
            show_bytes(limit),
            show_bytes(has.bytes)
        )));
    }
    Ok(())
}

/// Gives a volume its name, if its tenant may have it: from then on there is such a volume.
///
/// # Errors
/// If there is no such tenant or it is over a limit, the name is taken, or the objects cannot be read or written.
pub async fn put_name(
    objects: &dyn Objects,
    spec: &VolumeSpec,
    sectors: u64,
) -> Result<(), NotCreated> {
    let Some(tenant) = spec.tenant() else { return catalog::put_name(objects, spec).await };
    allow(objects, tenant, spec.id, sectors).await?;
    catalog::put_name(objects, spec).await?;
    if let Err(error) = allow(objects, tenant, spec.id, sectors).await {
        catalog::delete(objects, spec).await?;
        return Err(error.into());
    }
    Ok(())
}

/// Whether a volume may be given that size.
///
/// # Errors
/// If its tenant would be over a limit, or the objects cannot be read.
pub async fn allow_size(
    objects: &dyn Objects,
    spec: &VolumeSpec,
    sectors: u64,
) -> Result<(), VolumeError> {
    match spec.tenant() {
        Some(tenant) => allow(objects, tenant, spec.id, sectors).await,
        None => Ok(()),
    }
}

/// Does what is asked about tenants.
///
/// # Errors
/// If it cannot be done; the message says why and what to do.
pub async fn operate(
    objects: &dyn Objects,
    operation: TenantOperation,
) -> Result<TenantReply, VolumeError> {
    match operation {
        TenantOperation::Create { tenant, limits } => {
            check_tenant(&tenant).map_err(|error| invalid(error.to_string()))?;
            check(&limits)?;
            let (number, there) = record(objects, &tenant).await?;
            let exists = || invalid(format!("there is a tenant {tenant} already"));
            if there.is_some() || put(objects, &tenant, number, Some(&limits)).await?.is_none() {
                return Err(exists());
            }
            show(objects, tenant).await
        }
        TenantOperation::Set { tenant, limits } => {
            check(&limits)?;
            for _ in 0..ATTEMPTS {
                let (number, Some(_)) = record(objects, &tenant).await? else {
                    return Err(no_such(&tenant));
                };
                if put(objects, &tenant, number, Some(&limits)).await?.is_some() {
                    return show(objects, tenant).await;
                }
            }
            Err(failed("the tenant is changed at this moment; try again"))
        }
        TenantOperation::Show { tenant } => show(objects, tenant).await,
        TenantOperation::List => {
            let mut usage = usage_with_deleted(objects).await?;
            let all = newest(objects, TENANTS_PREFIX).await?.into_iter();
            // One that is damaged costs its own tenant, and no other.
            let list = all.filter_map(|(name, (_, limits))| match limits {
                Ok(limits) => Some(usage.remove(&name).unwrap_or_default().info(name, limits?)),
                Err(reason) => {
                    tracing::error!("tenant {name} cannot be listed: {reason}");
                    None
                }
            });
            Ok(TenantReply::List(list.collect()))
        }
        TenantOperation::Delete { tenant } => {
            let (number, Some(limits)) = record(objects, &tenant).await? else {
                return Err(no_such(&tenant));
            };
            let Some(number) = put(objects, &tenant, number, None).await? else {
                return Err(failed("the tenant is changed at this moment; try again"));
            };
            // Whoever names a volume now finds that there is no such tenant.
            let usage = usage_with_deleted(objects).await;
            let has = usage.map(|mut usage| usage.remove(&tenant).unwrap_or_default());
            if has == Ok(Usage::default()) {
                return Ok(TenantReply::Done);
            }
            put(objects, &tenant, number, Some(&limits)).await?;
            let Usage { volumes, deleted, .. } = has?;
            Err(invalid(format!(
                "tenant {tenant} has {volumes} volumes and {deleted} deleted ones: delete them first, with `longhaul \
                 volume delete --now`"
            )))
        }
    }
}

async fn show(objects: &dyn Objects, name: String) -> Result<TenantReply, VolumeError> {
    let (_, Some(limits)) = record(objects, &name).await? else { return Err(no_such(&name)) };
    let usage = usage_with_deleted(objects).await?.remove(&name).unwrap_or_default();
    Ok(TenantReply::Tenant(usage.info(name, limits)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{Entry, create};
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
        // What is deleted does not count, until it is to come back.
        let entry = Entry { sectors: 2048, spec: c.clone() };
        trash::delete(&objects, &entry, None, &BTreeSet::new()).await.unwrap();
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
        trash::delete(&objects, &entry, None, &BTreeSet::new()).await.unwrap();
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
        trash::delete(&objects, &entry, None, &BTreeSet::new()).await.unwrap();
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
