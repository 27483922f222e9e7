//! The tenants, their limits and permissions, and the resources that they use.
//!
//! The limits of a tenant lie in the location, so that all stores over it agree. The use of a
//! tenant is the sum of its volumes. A store that gives a volume a name counts before it does so,
//! and once more afterward. If several stores do so at once, none gets past a limit, though all may
//! fail.

use super::deletion;
use super::listing::{CatalogEntry, entries};
use super::names::{self, NotCreated, of_tenant, of_tenants};
use super::{
    ATTEMPTS, Facts, Halt, Known, Note, Procedure, READ_AT_ONCE, deleted, failed, invalid,
};
use crate::block::{SECTOR_BYTES, VolumeId, show_bytes};
use crate::store::VolumeSpec;
use crate::store::catalog::{self, volume_prefix};
use crate::store::object::{GetError, PutError};
use crate::store::tenant::{self, TENANTS_PREFIX, check_tenant, check_volume_name, tenant_of};
use crate::wire::link::{TenantInfo, TenantLimits, TenantOperation, TenantReply, VolumeError};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;

/// Pause before the store counts the volumes of a tenant again, after a failure.
const PAUSE: Duration = Duration::from_millis(500);

fn no_such(name: &str) -> VolumeError {
    invalid(format!(
        "no tenant {name}: `longhaul tenant list` shows the existing ones, `longhaul \
         tenant create` makes one"
    ))
}

fn in_flux() -> Halt {
    failed("the tenant is changed at this moment; try again").into()
}

/// The content of a tenant's record, or its damage.
type Said = Result<Option<TenantLimits>, String>;

/// The newest record of each tenant whose records' keys begin with `prefix`, and its number.
/// Deleted tenants are among them.
fn newest(facts: &mut Facts<'_>, prefix: &str) -> Result<BTreeMap<String, (u64, Said)>, Halt> {
    'again: for _ in 0..ATTEMPTS {
        let list = facts.list(prefix)?.map_err(VolumeError::from)?;
        let mut numbers: BTreeMap<String, u64> = BTreeMap::new();
        for (name, number) in list.iter().filter_map(|meta| tenant::parse_key(&meta.key)) {
            let newest = numbers.entry(name.to_owned()).or_default();
            *newest = number.max(*newest);
        }
        let keys: Vec<String> =
            numbers.iter().map(|(name, number)| tenant::key(name, *number)).collect();
        let read = facts.get_all(&keys, READ_AT_ONCE)?.map_err(VolumeError::from)?;
        let mut found = BTreeMap::new();
        for (((name, number), key), read) in numbers.into_iter().zip(keys).zip(read) {
            let said = match read {
                Ok(bytes) => tenant::decode(&key, &bytes).map_err(|error| error.to_string()),
                // A newer record exists.
                Err(GetError::NotFound) => continue 'again,
                Err(error) => Err(error.to_string()),
            };
            found.insert(name, (number, said));
        }
        return Ok(found);
    }
    Err(failed("tenants are changed at this moment; try again").into())
}

/// Number and content of a tenant's newest record.
fn record(facts: &mut Facts<'_>, name: &str) -> Result<(u64, Option<TenantLimits>), Halt> {
    match newest(facts, &tenant::prefix(name))?.remove(name) {
        None => Ok((0, None)),
        Some((number, Ok(limits))) => Ok((number, limits)),
        Some((_, Err(reason))) => Err(failed(reason).into()),
    }
}

/// Writes the record after number `upon`, and removes older ones. Returns the number of the new
/// record. Returns `None` if another store has written a record of that number.
fn put(
    facts: &mut Facts<'_>,
    name: &str,
    upon: u64,
    limits: Option<&TenantLimits>,
) -> Result<Option<u64>, Halt> {
    let number = upon.saturating_add(1);
    let data = Bytes::from(tenant::encode(limits));
    match facts.put(&tenant::key(name, number), data)? {
        Ok(()) => {}
        Err(PutError::Exists) => return Ok(None),
        Err(PutError::Failed(error)) => return Err(VolumeError::from(error).into()),
    }
    for meta in facts.list(&tenant::prefix(name))?.unwrap_or_default() {
        if tenant::parse_key(&meta.key).is_some_and(|(_, other)| other < number) {
            facts.discard(&meta.key)?;
        }
    }
    Ok(Some(number))
}

/// The resources of a tenant.
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
        // Only the store service knows the waiting requests.
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

/// The use of the tenants whose volumes' keys begin with `prefix`, without one volume.
fn usage(
    facts: &mut Facts<'_>,
    prefix: &str,
    without: Option<VolumeId>,
) -> Result<BTreeMap<String, Usage>, Halt> {
    let found = Halt::caught(entries(facts, prefix))?.map_err(VolumeError::from)?;
    let mut usage: BTreeMap<String, Usage> = BTreeMap::new();
    // The sizes of damaged volumes are unknown.
    for tenant in found.damaged.keys().filter_map(|name| tenant_of(name)) {
        usage.entry(tenant.to_owned()).or_default().add(0);
    }
    for entry in found.entries.values().filter(|entry| Some(entry.spec.id) != without) {
        if let Some(tenant) = entry.spec.tenant() {
            usage.entry(tenant.to_owned()).or_default().add(entry.sectors);
        }
    }
    Ok(usage)
}

/// The deleted volumes of all tenants, each with the name of its tenant.
fn deleted(facts: &mut Facts<'_>) -> Result<Vec<(String, VolumeId)>, Halt> {
    let mut all = Vec::new();
    let mut after = VolumeId(0);
    loop {
        let (deleted, more) = deleted::list(facts, after, 0, &|spec| spec.tenant().is_some())?;
        for volume in deleted {
            after = volume.id;
            all.extend(tenant_of(&volume.name).map(|tenant| (tenant.to_owned(), volume.id)));
        }
        if !more {
            return Ok(all);
        }
    }
}

/// The use of all tenants, with their deleted volumes and the stored bytes of all volumes.
fn usage_with_deleted(facts: &mut Facts<'_>) -> Result<BTreeMap<String, Usage>, Halt> {
    let mut all = usage(facts, &of_tenants(), None)?;
    let specs = names::specs_of(facts, &of_tenants())?.into_iter();
    let mut volumes: Vec<(String, VolumeId)> =
        specs.filter_map(|spec| Some((spec.tenant()?.to_owned(), spec.id))).collect();
    for (tenant, volume) in deleted(facts)? {
        all.entry(tenant.clone()).or_default().deleted += 1;
        volumes.push((tenant, volume));
    }
    let ids: Vec<VolumeId> = volumes.iter().map(|(_, volume)| *volume).collect();
    let stored = stored_of(facts, &ids)?;
    for ((tenant, _), stored) in volumes.into_iter().zip(stored) {
        let usage = all.entry(tenant).or_default();
        usage.stored = usage.stored.saturating_add(stored);
    }
    Ok(all)
}

/// The bytes of all objects of each of these volumes, in the order of `volumes`.
fn stored_of(facts: &mut Facts<'_>, volumes: &[VolumeId]) -> Result<Vec<u64>, Halt> {
    let prefixes: Vec<String> = volumes.iter().map(|volume| volume_prefix(*volume)).collect();
    let lists = facts.list_all(&prefixes, READ_AT_ONCE)?.map_err(VolumeError::from)?;
    Ok(lists.into_iter().map(|list| list.iter().map(|meta| meta.bytes).sum()).collect())
}

/// Finds the limits of a tenant. A name without a tenant has no limits.
#[derive(Clone, Debug)]
pub struct FindLimits(pub String);

impl Procedure for FindLimits {
    type Outcome = Result<TenantLimits, VolumeError>;

    fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome> {
        let record = Halt::caught(record(facts, &self.0))?;
        Ok(record.map(|(_, limits)| limits.unwrap_or_default()))
    }
}

/// Fails if the limits permit no operation or no byte a second.
fn check(limits: &TenantLimits) -> Result<(), VolumeError> {
    if limits.max_iops == Some(0) || limits.max_rate == Some(0) {
        return Err(invalid(
            "a limit of nothing a second would stop everything: set none, or at least 1",
        ));
    }
    Ok(())
}

/// Finds the stored bytes of a tenant, with its deleted volumes, and its limit. It does not count
/// if the tenant has no limit.
#[derive(Clone, Debug)]
pub struct FindRoom(pub String);

impl Procedure for FindRoom {
    type Outcome = Result<(u64, Option<u64>), VolumeError>;

    fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome> {
        Halt::caught(self.find(facts))
    }
}

impl FindRoom {
    fn find(&self, facts: &mut Facts<'_>) -> Result<(u64, Option<u64>), Halt> {
        let limits = record(facts, &self.0)?.1;
        let Some(limit) = limits.and_then(|limits| limits.max_stored) else { return Ok((0, None)) };
        let there = names::specs_of(facts, &of_tenant(&self.0))?;
        let deleted = deleted(facts)?.into_iter().filter(|(of, _)| *of == self.0);
        let there = there.into_iter().map(|spec| spec.id);
        let volumes: Vec<VolumeId> = there.chain(deleted.map(|(_, volume)| volume)).collect();
        let stored = stored_of(facts, &volumes)?;
        Ok((stored.into_iter().fold(0, u64::saturating_add), Some(limit)))
    }
}

/// Fails if a tenant may not have this volume with this size, in sectors, beside its others.
fn allow(facts: &mut Facts<'_>, tenant: &str, volume: VolumeId, sectors: u64) -> Result<(), Halt> {
    let (_, Some(limits)) = record(facts, tenant)? else { return Err(no_such(tenant).into()) };
    if limits == TenantLimits::default() {
        return Ok(());
    }
    let all = usage(facts, &of_tenant(tenant), Some(volume))?.remove(tenant);
    let mut has = all.unwrap_or_default();
    let before = has.volumes;
    has.add(sectors);
    let raise =
        |limit| format!("have the limit raised with `longhaul tenant set {tenant} {limit}`");
    if let Some(limit) = limits.max_volumes.filter(|limit| has.volumes > *limit) {
        let raise = raise("--max-volumes");
        let why = format!("tenant {tenant} has {before} volumes and may have {limit}");
        return Err(invalid(format!("{why}: delete one, or {raise}")).into());
    }
    if let Some(limit) = limits.max_bytes.filter(|limit| has.bytes > *limit) {
        let (may, would) = (show_bytes(limit), show_bytes(has.bytes));
        let raise = raise("--max-bytes");
        let why =
            format!("tenant {tenant} may have volumes of {may} together, and would have {would}");
        return Err(invalid(format!("{why}: take less, delete a volume, or {raise}")).into());
    }
    Ok(())
}

/// Fails if the tenant of a volume, if there is one, may not have it with this size, in sectors.
pub(super) fn allow_volume(
    facts: &mut Facts<'_>,
    spec: &VolumeSpec,
    sectors: u64,
) -> Result<(), Halt> {
    match spec.tenant() {
        Some(tenant) => allow(facts, tenant, spec.id, sectors),
        None => Ok(()),
    }
}

/// Gives a volume its name, if its tenant may have it: from then on the volume exists.
///
/// # Errors
/// If the tenant does not exist or is over a limit, another volume has the name, or the store
/// cannot read or write the objects.
pub(super) fn put_name(
    facts: &mut Facts<'_>,
    spec: &VolumeSpec,
    sectors: u64,
) -> Result<(), Halt<NotCreated>> {
    give_name(facts, spec, sectors, None)
}

/// Gives a volume that a store restores its name, if its tenant may have it. `upon` is the number
/// of the restoration's record.
///
/// # Errors
/// As those of [`put_name`].
pub(super) fn put_name_again(
    facts: &mut Facts<'_>,
    spec: &VolumeSpec,
    sectors: u64,
    upon: u64,
) -> Result<(), Halt<NotCreated>> {
    give_name(facts, spec, sectors, Some(upon))
}

fn give_name(
    facts: &mut Facts<'_>,
    spec: &VolumeSpec,
    sectors: u64,
    restored: Option<u64>,
) -> Result<(), Halt<NotCreated>> {
    let Some(tenant) = spec.tenant() else { return names::put_name(facts, spec) };
    allow(facts, tenant, spec.id, sectors)?;
    names::put_name(facts, spec)?;
    let mut allowed = Halt::caught(allow(facts, tenant, spec.id, sectors))?;
    for _ in 1..ATTEMPTS {
        if !matches!(allowed, Err(VolumeError::Store(_))) {
            break;
        }
        facts.pause(PAUSE)?;
        allowed = Halt::caught(allow(facts, tenant, spec.id, sectors))?;
    }
    if let Err(error) = allowed {
        let entry = CatalogEntry { spec: spec.clone(), sectors };
        match restored {
            Some(upon) => deletion::take_back_restored(facts, &entry, upon)?,
            None => deletion::take_back(facts, &entry)?,
        }
        return Err(error.into());
    }
    Ok(())
}

/// Creates a volume, or gives a clone its name. It fails if the name or the sizes are invalid, the
/// tenant may not have the volume, or another volume has the name. It also fails if the store
/// cannot read or write the objects.
#[derive(Clone, Debug)]
pub struct CreateVolume(pub CatalogEntry);

impl Procedure for CreateVolume {
    type Outcome = Result<(), NotCreated>;

    fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome> {
        let CatalogEntry { spec, sectors } = &self.0;
        let refused = |error: catalog::CatalogError| Ok(Err(invalid(error.to_string()).into()));
        if let Err(error) = check_volume_name(&spec.name) {
            return refused(error);
        }
        if let Err(error) = catalog::check_size(spec.created_sectors, spec.block_bytes) {
            return refused(error);
        }
        Halt::caught(put_name(facts, spec, *sectors))
    }
}

/// Decides whether a volume may get a size. It fails if its tenant would be over a limit, or the
/// store cannot read the objects.
#[derive(Clone, Debug)]
pub struct AllowSize(pub CatalogEntry);

impl Procedure for AllowSize {
    type Outcome = Result<(), VolumeError>;

    fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome> {
        let CatalogEntry { spec, sectors } = &self.0;
        Halt::caught(allow_volume(facts, spec, *sectors))
    }
}

/// Executes an operation on tenants. The message of a failure gives the reason and the next step.
#[derive(Clone, Debug)]
pub struct OperateTenants(pub TenantOperation);

impl Procedure for OperateTenants {
    type Outcome = Result<TenantReply, VolumeError>;

    fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome> {
        Halt::caught(match &self.0 {
            TenantOperation::Create { tenant, limits } => create(facts, tenant, limits),
            TenantOperation::Set { tenant, limits } => set(facts, tenant, limits),
            TenantOperation::Show { tenant } => show(facts, tenant),
            TenantOperation::List => list(facts),
            TenantOperation::Delete { tenant } => delete(facts, tenant),
        })
    }
}

fn create(facts: &mut Facts<'_>, tenant: &str, limits: &TenantLimits) -> Result<TenantReply, Halt> {
    check_tenant(tenant).map_err(|error| invalid(error.to_string()))?;
    check(limits)?;
    let (number, there) = record(facts, tenant)?;
    if there.is_some() || put(facts, tenant, number, Some(limits))?.is_none() {
        return Err(invalid(format!("tenant {tenant} exists already")).into());
    }
    show(facts, tenant)
}

fn set(facts: &mut Facts<'_>, tenant: &str, limits: &TenantLimits) -> Result<TenantReply, Halt> {
    check(limits)?;
    for _ in 0..ATTEMPTS {
        let (number, Some(_)) = record(facts, tenant)? else { return Err(no_such(tenant).into()) };
        if put(facts, tenant, number, Some(limits))?.is_some() {
            return show(facts, tenant);
        }
    }
    Err(in_flux())
}

fn show(facts: &mut Facts<'_>, name: &str) -> Result<TenantReply, Halt> {
    let (_, Some(limits)) = record(facts, name)? else { return Err(no_such(name).into()) };
    let usage = usage_with_deleted(facts)?.remove(name).unwrap_or_default();
    Ok(TenantReply::Tenant(usage.info(name.to_owned(), limits)))
}

fn list(facts: &mut Facts<'_>) -> Result<TenantReply, Halt> {
    let mut usage = usage_with_deleted(facts)?;
    let mut list = Vec::new();
    for (name, (_, limits)) in newest(facts, TENANTS_PREFIX)? {
        match limits {
            Ok(Some(limits)) => {
                list.push(usage.remove(&name).unwrap_or_default().info(name, limits));
            }
            Ok(None) => {}
            // A damaged record costs its own tenant, and no other.
            Err(reason) => {
                facts.note(Note::Error(format!("tenant {name} cannot be listed: {reason}")));
            }
        }
    }
    Ok(TenantReply::List(list))
}

fn delete(facts: &mut Facts<'_>, tenant: &str) -> Result<TenantReply, Halt> {
    let (number, Some(limits)) = record(facts, tenant)? else {
        return Err(no_such(tenant).into());
    };
    let Some(number) = put(facts, tenant, number, None)? else { return Err(in_flux()) };
    // From now on, a store that gives a volume a name finds no such tenant.
    let usage = Halt::caught(usage_with_deleted(facts))?;
    let has = usage.map(|mut usage| usage.remove(tenant).unwrap_or_default());
    if has == Ok(Usage::default()) {
        return Ok(TenantReply::Done);
    }
    put(facts, tenant, number, Some(&limits))?;
    let Usage { volumes, deleted, .. } = has?;
    let has = format!("tenant {tenant} has {volumes} volumes and {deleted} deleted ones");
    Err(invalid(format!("{has}: delete them first, with `longhaul volume delete --now`")).into())
}
