//! Deleted volumes: what keeps their data until its time is up, gives them a name again, or removes them.
//!
//! Each step is decided by a record ([`longhaul_core::store::trash`]) and carried out afterwards, so that whoever comes
//! after a crash, at this store or another, finds what is to be done. A record counts if the one that it was decided upon
//! is still there: only the removal of everything removes the newest, and then it is known to be too late.
//!
//! A clone that is deleted does not hold its parent. A parent is deleted by its record first, and then looks for clones;
//! a clone is restored by its name first, and then looks for its parent's record. So of the two one at least sees the
//! other, and no volume is there whose parent's data goes.

use super::catalog::{self, Entry, NotCreated};
use super::lease::{self, Holder};
use super::tenants;
use bytes::Bytes;
use longhaul_core::block::VolumeId;
use longhaul_core::store::VolumeSpec;
use longhaul_core::store::tenant::{check_volume_name, tenant_of};
use longhaul_core::store::trash::{self, Decision, Next, Record, TRASH_PREFIX};
use longhaul_core::wire::link::{DeletedInfo, MAX_DELETED_LISTED, VolumeError};
use longhaul_link::credential::Reach;
use longhaul_objects::{GetError, ObjectMeta, Objects, PutError};
use std::collections::{BTreeMap, BTreeSet};

/// Attempts at a record while others make some, at most.
const ATTEMPTS: usize = 8;

fn failed(error: impl std::fmt::Display) -> VolumeError {
    VolumeError::Store(error.to_string())
}

/// Volumes with records, whatever these say, and the numbers of the newest.
///
/// # Errors
/// If they cannot be listed.
pub async fn known(objects: &dyn Objects) -> Result<BTreeMap<VolumeId, u64>, String> {
    Ok(newest_of(objects.list(TRASH_PREFIX).await?))
}

fn newest_of(list: Vec<ObjectMeta>) -> BTreeMap<VolumeId, u64> {
    let mut found: BTreeMap<VolumeId, u64> = BTreeMap::new();
    for (volume, number) in list.iter().filter_map(|meta| trash::parse_key(&meta.key)) {
        let newest = found.entry(volume).or_default();
        *newest = number.max(*newest);
    }
    found
}

/// The newest record of a volume, and its number.
async fn newest(
    objects: &dyn Objects,
    volume: VolumeId,
) -> Result<Option<(u64, Record)>, VolumeError> {
    for _ in 0..ATTEMPTS {
        let list = objects.list(&trash::prefix(volume)).await.map_err(failed)?;
        let Some(number) = newest_of(list).remove(&volume) else { return Ok(None) };
        match read(objects, volume, number).await? {
            Some(record) => return Ok(Some((number, record))),
            // Removed meanwhile, or the list lags behind.
            None => tokio::task::yield_now().await,
        }
    }
    Ok(None)
}

async fn read(
    objects: &dyn Objects,
    volume: VolumeId,
    number: u64,
) -> Result<Option<Record>, VolumeError> {
    let key = trash::key(volume, number);
    match objects.get(&key, None).await {
        Ok(bytes) => Record::decode(&key, &bytes)
            .map(Some)
            .map_err(|error| VolumeError::Invalid(error.to_string())),
        Err(GetError::Damaged(reason)) => Err(VolumeError::Invalid(reason)),
        Err(GetError::NotFound) => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// Makes the record after that of a number; 0 if there is none. Gives nothing if somebody else has decided meanwhile.
async fn decide(
    objects: &dyn Objects,
    upon: u64,
    record: &Record,
) -> Result<Option<u64>, VolumeError> {
    let number = upon.saturating_add(1);
    let key = trash::key(record.spec.id, number);
    let data = Bytes::from(record.encode());
    let mut result = objects.put(&key, vec![data.clone()]).await;
    if let Err(PutError::Failed(_)) = result {
        // It may exist all the same, perhaps not durably: creating it again settles that.
        result = objects.put(&key, vec![data.clone()]).await;
    }
    match result {
        Ok(()) => {}
        Err(PutError::Failed(error)) => return Err(VolumeError::Store(error)),
        // An answer that was lost makes one's own object look like another's.
        Err(PutError::Exists) => match objects.get(&key, None).await {
            Ok(there) if there == data => {}
            Ok(_) | Err(GetError::NotFound) => return Ok(None),
            Err(error) => return Err(failed(error)),
        },
    }
    if upon > 0 && read(objects, record.spec.id, upon).await?.is_none() {
        // Everything was removed in between: this is the word on nothing.
        objects.delete(&key).await.map_err(failed)?;
        return Ok(None);
    }
    Ok(Some(number))
}

/// Decides that a volume is deleted, if that is not decided.
///
/// # Errors
/// If the objects cannot be read or written.
pub async fn begin(
    objects: &dyn Objects,
    spec: &VolumeSpec,
    sectors: u64,
) -> Result<(), VolumeError> {
    for _ in 0..ATTEMPTS {
        let number = match newest(objects, spec.id).await? {
            Some((_, Record { decision: Decision::Deleted, .. })) => return Ok(()),
            Some((_, Record { decision: Decision::Purged, .. })) => break,
            Some((number, _)) => number,
            None => 0,
        };
        let (decision, at) = (Decision::Deleted, super::now());
        let record = Record { decision, at, spec: spec.clone(), sectors };
        if decide(objects, number, &record).await?.is_some() {
            return Ok(());
        }
    }
    Err(failed("somebody else decides about the volume at this moment; try again"))
}

/// Deletes a volume that no engine has open: its data stays, and it can be restored. `lease` is that of the store that has
/// it.
///
/// # Errors
/// If it is gone already, it has clones, or the objects cannot be read or written: the volume is then still there, or will be
/// after a minute, unless it is deleted again.
pub async fn delete(
    objects: &dyn Objects,
    entry: &Entry,
    lease: Option<u64>,
    clones: &BTreeSet<VolumeId>,
) -> Result<(), VolumeError> {
    let Entry { spec, sectors } = entry;
    if !is_named(objects, spec).await? {
        // Somebody else has done it, and another volume may have its name.
        let newest = newest(objects, spec.id).await?;
        let deleted = newest.is_some_and(|(_, record)| record.decision == Decision::Deleted);
        return if deleted { Ok(()) } else { Err(VolumeError::NotFound) };
    }
    catalog::has_no_clones(objects, spec.tenant(), clones).await?;
    begin(objects, spec, *sectors).await?;
    if let Err(error) = catalog::has_no_clones(objects, spec.tenant(), clones).await {
        keep(objects, spec.id).await?;
        return Err(error);
    }
    if let Some(number) = lease {
        lease::close(objects, spec.id, number).await.map_err(VolumeError::Store)?;
    }
    catalog::delete(objects, spec).await?;
    // Whoever took the deletion for one that was cut short has changed that meanwhile; whoever did not may have removed it.
    match newest(objects, spec.id).await? {
        Some((_, Record { decision: Decision::Restored, .. })) => {
            begin(objects, spec, *sectors).await
        }
        _ => Ok(()),
    }
}

/// The volume is not deleted after all, and has its name.
async fn keep(objects: &dyn Objects, volume: VolumeId) -> Result<(), VolumeError> {
    if let Some((number, record)) = newest(objects, volume).await?
        && record.decision == Decision::Deleted
    {
        let record = Record { decision: Decision::Restored, at: super::now(), ..record };
        if let Some(number) = decide(objects, number, &record).await? {
            prune(objects, volume, number).await;
        }
    }
    Ok(())
}

/// Removes the records before that of a number.
async fn prune(objects: &dyn Objects, volume: VolumeId, number: u64) {
    let list = objects.list(&trash::prefix(volume)).await.unwrap_or_default();
    for meta in list {
        let older = trash::parse_key(&meta.key).is_some_and(|(_, other)| other < number);
        if older && let Err(error) = objects.delete(&meta.key).await {
            // It only takes space, and the next one tries again.
            tracing::debug!("cannot delete {}: {error}", meta.key);
        }
    }
}

/// Whether there is a volume of that name and identity.
async fn is_named(objects: &dyn Objects, spec: &VolumeSpec) -> Result<bool, VolumeError> {
    Ok(catalog::named(objects, &spec.name).await?.is_some_and(|there| there.id == spec.id))
}

/// Gives a deleted volume a name again. `me` takes its lease, if there are leases. For whoever asks there are only those of `of`.
///
/// # Errors
/// If there is none, the name is taken, the volume is a clone whose parent is not there, or the objects cannot be read or
/// written: asking again goes on from there.
pub async fn restore(
    objects: &dyn Objects,
    me: Option<&Holder>,
    volume: VolumeId,
    name: &str,
    of: Option<&Reach>,
) -> Result<Entry, VolumeError> {
    check_volume_name(name).map_err(|error| VolumeError::Invalid(error.to_string()))?;
    let Some((number, old)) = newest(objects, volume).await? else {
        return Err(VolumeError::NotFound);
    };
    if of.is_some_and(|reach| !reach.has(&old.spec.name)) {
        return Err(VolumeError::NotFound);
    }
    if old.spec.tenant() != tenant_of(name) {
        return Err(VolumeError::Invalid(match old.spec.tenant() {
            Some(tenant) => format!("it stays with its tenant: give it the name {tenant}/NAME"),
            None => "it has no tenant: give it a name without one".to_owned(),
        }));
    }
    let spec = VolumeSpec { name: name.to_owned(), ..old.spec.clone() };
    let entry = Entry { spec: spec.clone(), sectors: old.sectors };
    match old.decision {
        Decision::Purged => return Err(VolumeError::NotFound),
        Decision::Restored if is_named(objects, &old.spec).await? => {
            return if old.spec.name == name { Ok(entry) } else { Err(VolumeError::NotFound) };
        }
        // It was not deleted in the end.
        Decision::Deleted if is_named(objects, &old.spec).await? && old.spec.name != name => {
            return Err(VolumeError::Invalid(format!(
                "its deletion was cut short, and it is still called {}: restore it by that name",
                old.spec.name
            )));
        }
        Decision::Deleted | Decision::Restored => {}
    }
    let (decision, at) = (Decision::Restored, super::now());
    let record = Record { decision, at, spec: spec.clone(), sectors: old.sectors };
    let Some(number) = decide(objects, number, &record).await? else {
        return Err(failed("somebody else decides about the volume at this moment; try again"));
    };
    let again = Record { decision: Decision::Deleted, ..old };
    if let Some(me) = me {
        lease::reopen(objects, volume, me).await.map_err(VolumeError::Store)?;
    }
    if let Err(NotCreated { error, .. }) = tenants::put_name(objects, &spec, old.sectors).await {
        // Else it may be there.
        if !matches!(error, VolumeError::Store(_)) {
            decide(objects, number, &again).await?;
        }
        return Err(error);
    }
    let refused = match has_parent(objects, &spec).await {
        Ok(true) => match newest(objects, volume).await? {
            Some((newest, _)) if newest == number => None,
            // Taken for one that had been given up.
            _ => Some(failed("it took too long; try again")),
        },
        Ok(false) => Some(VolumeError::Invalid(
            "it is a clone, and the volume that it shares data with is deleted: restore that first"
                .into(),
        )),
        Err(error) => Some(error),
    };
    if let Some(error) = refused {
        catalog::delete(objects, &spec).await?;
        decide(objects, number, &again).await?;
        return Err(error);
    }
    prune(objects, volume, number).await;
    Ok(entry)
}

/// Whether the volume is there that a clone begins with, and stays; true of one that is no clone.
async fn has_parent(objects: &dyn Objects, spec: &VolumeSpec) -> Result<bool, VolumeError> {
    let Some(parent) = spec.parents.first() else { return Ok(true) };
    let going = newest(objects, parent.volume).await?;
    if going.is_some_and(|(_, record)| record.decision != Decision::Restored) {
        return Ok(false);
    }
    let specs = catalog::specs(objects).await?;
    Ok(specs.iter().any(|spec| spec.id == parent.volume))
}

/// What became of a volume with a record.
#[derive(Debug, PartialEq, Eq)]
pub enum Tended {
    /// There is nothing to do before that second.
    Wait(u64),
    /// There is nothing more to do.
    Nothing,
    /// Its data is removed.
    Removed(VolumeSpec),
    /// Its deletion had been cut short, and it stays.
    Kept,
}

/// Does what is to be done about a volume that has a record, if it is time by `now`; its data stays for `grace` seconds after
/// it was deleted.
///
/// # Errors
/// If the objects cannot be read or written: the next one goes on.
pub async fn tend(
    objects: &dyn Objects,
    me: Option<&Holder>,
    volume: VolumeId,
    grace: u64,
    now: u64,
) -> Result<Tended, VolumeError> {
    let Some((number, record)) = newest(objects, volume).await? else {
        return Ok(Tended::Nothing);
    };
    let named = is_named(objects, &record.spec).await?;
    let before = number > 1 && read(objects, volume, number - 1).await?.is_some();
    match record.next(now, grace, named, before) {
        Next::Wait(at) => Ok(Tended::Wait(at)),
        Next::Nothing => Ok(Tended::Nothing),
        Next::Purge => purge(objects, volume).await,
        Next::Keep => {
            if let Some(me) = me {
                lease::reopen(objects, volume, me).await.map_err(VolumeError::Store)?;
            }
            keep(objects, volume).await?;
            Ok(Tended::Kept)
        }
        Next::TakeBack => {
            let record = Record { decision: Decision::Deleted, at: now, ..record };
            decide(objects, number, &record).await?;
            Ok(Tended::Wait(record.at.saturating_add(grace)))
        }
        Next::Forget => {
            objects.delete(&trash::key(volume, number)).await.map_err(failed)?;
            Ok(Tended::Nothing)
        }
        Next::Remove => remove(objects, record.spec).await,
    }
}

/// Decides that the data of a deleted volume goes. For whoever asks there are only those of `of`.
///
/// # Errors
/// If there is no such deleted volume, or the objects cannot be read or written.
pub async fn condemn(
    objects: &dyn Objects,
    volume: VolumeId,
    of: Option<&Reach>,
) -> Result<VolumeSpec, VolumeError> {
    for _ in 0..ATTEMPTS {
        let Some((number, record)) = newest(objects, volume).await? else { break };
        if of.is_some_and(|reach| !reach.has(&record.spec.name)) {
            break;
        }
        match record.decision {
            Decision::Purged => return Ok(record.spec),
            Decision::Restored => break,
            Decision::Deleted if is_named(objects, &record.spec).await? => break,
            Decision::Deleted => {}
        }
        let record = Record { decision: Decision::Purged, at: super::now(), ..record };
        if decide(objects, number, &record).await?.is_some() {
            return Ok(record.spec);
        }
    }
    Err(VolumeError::NotFound)
}

/// Removes the data of a deleted volume. It takes some milliseconds for each few segments, minutes for a large volume.
///
/// # Errors
/// As for [`condemn`].
pub async fn purge(objects: &dyn Objects, volume: VolumeId) -> Result<Tended, VolumeError> {
    match condemn(objects, volume, None).await {
        Ok(spec) => remove(objects, spec).await,
        Err(VolumeError::NotFound) => Ok(Tended::Nothing),
        Err(error) => Err(error),
    }
}

/// Removes all objects of a volume of which that is decided, the records last and the newest of them very last.
async fn remove(objects: &dyn Objects, spec: VolumeSpec) -> Result<Tended, VolumeError> {
    catalog::remove_data(objects, &spec).await.map_err(VolumeError::Store)?;
    let list = objects.list(&trash::prefix(spec.id)).await.map_err(failed)?;
    let mut keys: Vec<_> = list.into_iter().map(|meta| meta.key).collect();
    keys.sort_unstable();
    for key in keys {
        objects.delete(&key).await.map_err(failed)?;
    }
    Ok(Tended::Removed(spec))
}

/// Deleted volumes by identity, after the one named, as far as `wanted`; and whether there are more. `grace` is for how
/// many seconds data stays.
///
/// # Errors
/// If they cannot be read.
pub async fn list(
    objects: &dyn Objects,
    after: VolumeId,
    grace: u64,
    wanted: impl Fn(&VolumeSpec) -> bool,
) -> Result<(Vec<DeletedInfo>, bool), VolumeError> {
    let mut found = Vec::new();
    let all = known(objects).await.map_err(VolumeError::Store)?;
    for (volume, number) in all.into_iter().filter(|(volume, _)| *volume > after) {
        let record = match read(objects, volume, number).await {
            Ok(Some(record)) => record,
            Ok(None) => continue,
            // It costs its own volume, and no other; and is no outage, in which nothing can be said.
            Err(VolumeError::Invalid(reason)) => {
                tracing::error!("deleted volume {volume} cannot be listed: {reason}");
                continue;
            }
            Err(error) => return Err(error),
        };
        let deleted = match record.decision {
            Decision::Deleted | Decision::Restored => !is_named(objects, &record.spec).await?,
            Decision::Purged => false,
        };
        if !deleted || !wanted(&record.spec) {
            continue;
        }
        if found.len() == MAX_DELETED_LISTED {
            return Ok((found, true));
        }
        found.push(record.info(record.at.saturating_add(grace)));
    }
    Ok((found, false))
}

#[cfg(test)]
mod tests;
