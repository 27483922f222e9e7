//! Which volumes there are: reading the catalog, creating and deleting.
//!
//! A name is an object, created put-if-absent. Deleting removes the name first: from then on the
//! volume is gone. What becomes of its data is [`super::trash`]'s business.

use super::tenants;
use anyhow::{Context as _, Result};
use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _};
use longhaul_base::random;
use longhaul_core::block::{Epoch, VolumeId};
use longhaul_core::store::VolumeSpec;
use longhaul_core::store::catalog::{self, VOLUMES_PREFIX};
use longhaul_core::store::tenant::check_volume_name;
use longhaul_core::wire::link::{StoredBytes, VolumeError, attribute_digest};
use longhaul_objects::{GetError, ObjectMeta, Objects, PutError};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Volumes whose descriptions are read at once: a bucket takes tens of milliseconds for each.
const READ_AT_ONCE: usize = 16;
/// Objects of a deleted volume that are removed at once: few, so that the others' requests pass.
const DELETE_AT_ONCE: usize = 8;
/// How often an attribute is looked for whose value goes while it is read, and the pause in between:
/// lists may lag behind deletions for a moment.
const ATTRIBUTE_TRIES: (usize, Duration) = (8, Duration::from_millis(50));

/// A volume as the catalog knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What never changes.
    pub spec: VolumeSpec,
    /// Its size in sectors.
    pub sectors: u64,
}

/// Volumes by name, and those whose descriptions are damaged: their names are taken all the same.
#[derive(Debug, Default)]
pub struct Catalog {
    /// Those that can be used.
    pub entries: BTreeMap<String, Entry>,
    /// By name, what is wrong with the others.
    pub damaged: BTreeMap<String, String>,
}

impl Catalog {
    fn of(found: impl IntoIterator<Item = (String, Looked)>) -> Catalog {
        let mut catalog = Catalog::default();
        for (key, looked) in found {
            match looked {
                Looked::Entry(entry) => {
                    catalog.entries.insert(entry.spec.name.clone(), entry);
                }
                Looked::Damaged(reason) => {
                    let name = catalog::name_of_key(&key).unwrap_or(key);
                    catalog.damaged.insert(name, reason);
                }
            }
        }
        catalog
    }
}

/// What an object of the catalog came to.
enum Looked {
    Entry(Entry),
    /// What is wrong with it.
    Damaged(String),
}

/// Reads the descriptions of all volumes, and how large they are by now.
///
/// # Errors
/// If they cannot be read. One that is damaged costs its own volume, and no other.
pub async fn load(objects: &dyn Objects) -> Result<Catalog> {
    let catalog = entries(objects, VOLUMES_PREFIX).await?;
    for (name, reason) in &catalog.damaged {
        tracing::error!("volume {name} cannot be used: {reason}");
    }
    Ok(catalog)
}

/// Beginning of the keys of the names of all volumes that have a tenant.
pub fn of_tenants() -> String {
    format!("{VOLUMES_PREFIX}_")
}

/// Beginning of the keys of the names of a tenant's volumes.
pub fn of_tenant(tenant: &str) -> String {
    format!("{VOLUMES_PREFIX}_{tenant}/")
}

/// Reads the descriptions of the volumes whose keys begin with `prefix`, and how large they are by now.
///
/// # Errors
/// As for [`load`].
pub async fn entries(objects: &dyn Objects, prefix: &str) -> Result<Catalog> {
    let list = objects.list(prefix).await.map_err(anyhow::Error::msg);
    let list = list.context("cannot read the catalog")?;
    Ok(Catalog::of(look_at(objects, list).await?))
}

async fn look_at(objects: &dyn Objects, list: Vec<ObjectMeta>) -> Result<Vec<(String, Looked)>> {
    // Whatever else lies there names nothing.
    let named = list.into_iter().filter(|meta| catalog::name_of_key(&meta.key).is_some());
    let entries = futures_util::stream::iter(named)
        .map(|meta| async move {
            let looked = look(objects, &meta.key).await?;
            anyhow::Ok(looked.map(|looked| (meta.key, looked)))
        })
        .buffer_unordered(READ_AT_ONCE);
    let found: Vec<Option<_>> = entries.try_collect().await?;
    Ok(found.into_iter().flatten().collect())
}

/// What is otherwise than a store knows.
pub struct Changes {
    /// Volumes that it does not know.
    pub new: Vec<Entry>,
    /// Names of those that are deleted.
    pub gone: Vec<String>,
    /// By name, what is wrong with volumes that cannot be used.
    pub damaged: BTreeMap<String, String>,
}

/// Looks for volumes that were created or deleted elsewhere since `known` was read.
///
/// # Errors
/// As for [`load`].
pub async fn changes(objects: &dyn Objects, known: Vec<VolumeSpec>) -> Result<Changes> {
    let list = objects.list(VOLUMES_PREFIX).await.map_err(anyhow::Error::msg);
    let list = list.context("cannot read the catalog")?;
    let mut missing: BTreeMap<String, VolumeSpec> =
        known.into_iter().map(|spec| (catalog::name_key(&spec.name), spec)).collect();
    let unknown = list.into_iter().filter(|meta| missing.remove(&meta.key).is_none());
    let unknown: Vec<_> = unknown.collect();
    let Catalog { entries, damaged } = Catalog::of(look_at(objects, unknown).await?);
    let mut gone = Vec::new();
    for (key, spec) in missing {
        // A list may lag behind a creation.
        match objects.get(&key, None).await {
            Err(GetError::NotFound) => gone.push(spec.name),
            // As it was when it was read, it is served on.
            Ok(_) | Err(GetError::Damaged(_)) => {}
            Err(error) => return Err(error).context("cannot read the catalog"),
        }
    }
    Ok(Changes { new: entries.into_values().collect(), gone, damaged })
}

/// The volume that an object describes; `None` if it is not there.
async fn entry(objects: &dyn Objects, key: &str) -> Result<Option<Entry>> {
    match look(objects, key).await? {
        Some(Looked::Entry(entry)) => Ok(Some(entry)),
        Some(Looked::Damaged(reason)) => Err(anyhow::Error::msg(reason)),
        None => Ok(None),
    }
}

async fn look(objects: &dyn Objects, key: &str) -> Result<Option<Looked>> {
    let bytes = match objects.get(key, None).await {
        Ok(bytes) => bytes,
        Err(GetError::NotFound) => {
            // A list may lag behind a deletion; the object itself says whether the name is free.
            tracing::warn!("{key} is in the list of volumes and is not there: it has been deleted");
            return Ok(None);
        }
        Err(GetError::Damaged(reason)) => return Ok(Some(Looked::Damaged(reason))),
        Err(error) => return Err(error).context("cannot read the catalog"),
    };
    let spec = match catalog::decode_spec(key, &bytes) {
        Ok(spec) => spec,
        Err(error) => return Ok(Some(Looked::Damaged(error.to_string()))),
    };
    let sectors = size(objects, &spec).await?;
    Ok(Some(Looked::Entry(Entry { spec, sectors })))
}

/// The size of a volume that is noted beside its log.
async fn size(objects: &dyn Objects, spec: &VolumeSpec) -> Result<u64> {
    let prefix = catalog::size_prefix(spec.id);
    let list = objects.list(&prefix).await.map_err(anyhow::Error::msg);
    let mut sizes: Vec<_> = list
        .context("cannot read the catalog")?
        .into_iter()
        .filter_map(|meta| Some((catalog::parse_number(&prefix, &meta.key)?, meta.key)))
        .collect();
    sizes.sort_unstable();
    while let Some((_, key)) = sizes.pop() {
        let read = match objects.get(&key, None).await {
            Ok(bytes) => catalog::decode_size(spec, &key, &bytes).map_err(|e| e.to_string()),
            Err(GetError::Damaged(reason)) => Err(reason),
            Err(error) => return Err(error).context("cannot read the catalog"),
        };
        match read {
            Ok(sectors) => return Ok(sectors),
            // It is known for certain once the volume is opened.
            Err(error) => tracing::warn!(
                "{error}; until volume {} is used an older size may be shown",
                spec.name
            ),
        }
    }
    Ok(spec.created_sectors)
}

/// Says what there is of volumes that are in no catalog. It lists everything there is.
pub async fn warn_of_leftovers(objects: &dyn Objects, catalog: &Catalog) {
    // What belongs to those is not known.
    if !catalog.damaged.is_empty() {
        return;
    }
    let volumes = &catalog.entries;
    let Ok(deleted) = super::trash::known(objects).await else { return };
    let ids = volumes.values().map(|entry| entry.spec.id).chain(deleted.into_keys());
    let known: BTreeSet<_> = ids.map(catalog::volume_prefix).collect();
    let Ok(list) = objects.list("v/").await else { return };
    let mut left: BTreeMap<String, u64> = BTreeMap::new();
    for meta in list {
        let Some((end, _)) = meta.key.match_indices('/').nth(1) else { continue };
        let end = end + 1;
        if !known.contains(&meta.key[..end]) {
            *left.entry(meta.key[..end].to_owned()).or_default() += meta.bytes;
        }
    }
    for (prefix, bytes) in left {
        // Not removed here: after an incomplete restore they may be all there is of a volume.
        tracing::warn!(
            "objects/{prefix} ({}) belongs to no volume, as after a deletion that was interrupted: remove it by hand",
            longhaul_base::units::show_bytes(bytes)
        );
    }
}

/// Why a volume was not created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotCreated {
    /// What to answer.
    pub error: VolumeError,
    /// The volume that has the name. The caller may not know of it: it was created at another store, or
    /// by an attempt that was given up before its effect was known.
    pub taken: Option<Entry>,
}

impl From<VolumeError> for NotCreated {
    fn from(error: VolumeError) -> Self {
        NotCreated { error, taken: None }
    }
}

/// Creates a volume.
///
/// # Errors
/// If name or sizes are not allowed, the tenant may not have it, the name is taken, or the objects cannot be written.
pub async fn create(
    objects: &dyn Objects,
    name: String,
    sectors: u64,
    block_bytes: u32,
) -> Result<VolumeSpec, NotCreated> {
    check_volume_name(&name).map_err(|error| VolumeError::Invalid(error.to_string()))?;
    catalog::check_size(sectors, block_bytes)
        .map_err(|error| VolumeError::Invalid(error.to_string()))?;
    let id = random::identity().map_err(|error| VolumeError::Store(error.to_string()))?;
    let id = VolumeId(id);
    let spec = VolumeSpec {
        id,
        name,
        created_sectors: sectors,
        block_bytes,
        created: super::now(),
        parents: Vec::new(),
    };
    tenants::put_name(objects, &spec, sectors).await.map(|()| spec)
}

/// Gives a volume its name: from then on there is such a volume.
///
/// # Errors
/// If the name is taken, or the objects cannot be written.
pub async fn put_name(objects: &dyn Objects, spec: &VolumeSpec) -> Result<(), NotCreated> {
    let data = vec![Bytes::from(catalog::encode_spec(spec))];
    let key = catalog::name_key(&spec.name);
    let mut result = objects.put(&key, data.clone()).await;
    if let Err(PutError::Failed(_)) = result {
        // It may exist all the same, perhaps not durably: creating it again settles that.
        result = objects.put(&key, data).await;
    }
    match result {
        Ok(()) => Ok(()),
        Err(PutError::Failed(error)) => Err(VolumeError::Store(error).into()),
        // An answer that was lost makes one's own object look like another's: its identity tells.
        Err(PutError::Exists) => match entry(objects, &key).await {
            Ok(Some(entry)) if entry.spec == *spec => Ok(()),
            Ok(taken @ Some(_)) => Err(NotCreated { error: VolumeError::Exists, taken }),
            Ok(None) => {
                Err(VolumeError::Store("the name is just being freed; try again".into()).into())
            }
            Err(error) => Err(VolumeError::Store(format!("{error:#}")).into()),
        },
    }
}

/// The volume of a name; `None` if there is none.
///
/// # Errors
/// If its description cannot be read.
pub async fn named(objects: &dyn Objects, name: &str) -> Result<Option<VolumeSpec>, VolumeError> {
    let key = catalog::name_key(name);
    let failed = |error: String| VolumeError::Store(error);
    match objects.get(&key, None).await {
        Ok(bytes) => {
            catalog::decode_spec(&key, &bytes).map(Some).map_err(|error| failed(error.to_string()))
        }
        Err(GetError::NotFound) => Ok(None),
        Err(error) => Err(failed(error.to_string())),
    }
}

/// The descriptions of all volumes, without those that are damaged.
///
/// # Errors
/// If they cannot be read.
pub async fn specs(objects: &dyn Objects) -> Result<Vec<VolumeSpec>, VolumeError> {
    specs_of(objects, VOLUMES_PREFIX).await
}

/// The descriptions of the volumes whose keys begin with `prefix`, without those that are damaged.
///
/// # Errors
/// If they cannot be read.
pub async fn specs_of(objects: &dyn Objects, prefix: &str) -> Result<Vec<VolumeSpec>, VolumeError> {
    Ok(sound_and_damaged(objects, prefix).await?.0)
}

/// The same, and the keys of those that are damaged.
async fn sound_and_damaged(
    objects: &dyn Objects,
    prefix: &str,
) -> Result<(Vec<VolumeSpec>, Vec<String>), VolumeError> {
    let list = objects.list(prefix).await.map_err(VolumeError::Store)?;
    let specs = futures_util::stream::iter(list)
        .map(|meta| async move {
            match objects.get(&meta.key, None).await {
                Ok(bytes) => {
                    Ok(Some(catalog::decode_spec(&meta.key, &bytes).map_err(|_| meta.key)))
                }
                Err(GetError::Damaged(_)) => Ok(Some(Err(meta.key))),
                Err(GetError::NotFound) => Ok(None),
                Err(error) => Err(VolumeError::Store(error.to_string())),
            }
        })
        .buffer_unordered(READ_AT_ONCE);
    let (mut sound, mut damaged) = (Vec::new(), Vec::new());
    for spec in specs.try_collect::<Vec<_>>().await?.into_iter().flatten() {
        match spec {
            Ok(spec) => sound.push(spec),
            Err(key) => damaged.push(key),
        }
    }
    Ok((sound, damaged))
}

/// Refuses if any of these clones of a tenant's volume exists, by whatever name.
///
/// # Errors
/// With their names, or what keeps one from being read.
pub async fn has_no_clones(
    objects: &dyn Objects,
    tenant: Option<&str>,
    clones: &BTreeSet<VolumeId>,
) -> Result<(), VolumeError> {
    if clones.is_empty() {
        return Ok(());
    }
    let (specs, damaged) = sound_and_damaged(objects, VOLUMES_PREFIX).await?;
    // A clone has the tenant of its parent.
    let prefix = tenant.map_or_else(|| VOLUMES_PREFIX.to_owned(), of_tenant);
    let of_nobody = |key: &String| tenant.is_some() || !key.starts_with(&of_tenants());
    if let Some(key) = damaged.iter().find(|key| key.starts_with(&prefix) && of_nobody(key)) {
        return Err(VolumeError::Invalid(format!(
            "it has clones, and {key} is damaged, which may be one: bring that back from a copy first"
        )));
    }
    let there = specs.into_iter().filter(|spec| clones.contains(&spec.id));
    let mut there: Vec<String> = there.map(|spec| spec.name).collect();
    if there.is_empty() {
        return Ok(());
    }
    there.sort_unstable();
    Err(VolumeError::Invalid(format!(
        "clones of it share its data: delete {} first",
        there.join(", ")
    )))
}

/// Deletes the name of a volume that no engine has open: from then on the volume is gone.
///
/// # Errors
/// If the name cannot be deleted; the volume is then still there.
pub async fn delete(objects: &dyn Objects, spec: &VolumeSpec) -> Result<(), VolumeError> {
    let key = catalog::name_key(&spec.name);
    if let Err(error) = objects.delete(&key).await {
        // It may have had its effect all the same. A volume that is still served without a name would
        // take writes until the next start, and then be gone with them.
        match objects.get(&key, None).await {
            Err(GetError::NotFound) => tracing::warn!("deleting {key}: {error}; it is gone"),
            _ => return Err(VolumeError::Store(error)),
        }
    }
    Ok(())
}

/// Removes the data of a volume whose name is deleted. It takes some milliseconds for each few segments,
/// minutes for a large volume.
///
/// # Errors
/// If some of it stays.
pub async fn remove_data(objects: &dyn Objects, spec: &VolumeSpec) -> Result<(), String> {
    let list = objects.list(&catalog::volume_prefix(spec.id)).await?;
    let deletions = futures_util::stream::iter(list)
        .map(|meta| async move { objects.delete(&meta.key).await })
        .buffer_unordered(DELETE_AT_ONCE);
    deletions.try_collect::<()>().await
}

/// What a volume takes: it lists all that there is of it.
///
/// # Errors
/// If it cannot be listed.
pub async fn stored(objects: &dyn Objects, volume: VolumeId) -> Result<StoredBytes, VolumeError> {
    let prefix = catalog::volume_prefix(volume);
    let list = objects.list(&prefix).await.map_err(VolumeError::Store)?;
    let mut stored = StoredBytes::default();
    let segments = [catalog::segment_prefix(volume), catalog::bundle_prefix(volume)];
    let staged = catalog::staged_prefix(volume);
    for ObjectMeta { key, bytes } in list {
        let kind = if segments.iter().any(|prefix| key.starts_with(prefix)) {
            &mut stored.segments
        } else if key.starts_with(&staged) {
            &mut stored.staged
        } else {
            &mut stored.maps
        };
        *kind += bytes;
    }
    Ok(stored)
}

/// Reads an attribute of a volume; empty if it was never set.
///
/// # Errors
/// If the objects cannot be read.
pub async fn attribute(
    objects: &dyn Objects,
    volume: VolumeId,
    name: &str,
) -> Result<Vec<u8>, VolumeError> {
    let (tries, pause) = ATTRIBUTE_TRIES;
    for again in 0..tries {
        if again > 1 {
            tokio::time::sleep(pause).await;
        }
        let values = attribute_values(objects, volume, name).await?;
        let Some((epoch, number)) = values.last() else { return Ok(Vec::new()) };
        let key = catalog::attribute_key(volume, name, *epoch, *number);
        match objects.get(&key, None).await {
            Ok(data) => return Ok(data.into()),
            // Replaced meanwhile: there is a newer one.
            Err(GetError::NotFound) => {}
            Err(error) => return Err(VolumeError::Store(error.to_string())),
        }
    }
    Err(lags(name))
}

fn lags(name: &str) -> VolumeError {
    VolumeError::Store(format!("the list of the values of {name} lags behind; try again"))
}

/// Replaces an attribute of a volume, on behalf of the host of an epoch.
///
/// The caller has seen to it that the epoch is not over as far as this store knows. Where another
/// store knows better, the value is written and does not count: one of a newer epoch, which its host
/// writes before it serves initiators, comes after it.
///
/// # Errors
/// If a newer epoch has set it, or the objects cannot be written. Then the old value stands, unless
/// the store failed: then it may be either.
pub async fn set_attribute(
    objects: &dyn Objects,
    volume: VolumeId,
    epoch: Epoch,
    name: &str,
    data: Bytes,
) -> Result<(), VolumeError> {
    // Numbers below are taken, whether a list says so or not. One may have been taken by this very value, in
    // an attempt whose answer was lost: then it is set twice, to the same.
    let mut least = 1;
    loop {
        let values = attribute_values(objects, volume, name).await?;
        let number = number_after(&values, epoch)?.max(least);
        if put_attribute(objects, volume, name, (epoch, number), &data).await? {
            forget_attributes(objects, volume, name, &values).await;
            return Ok(());
        }
        least = number.saturating_add(1);
    }
}

/// Replaces one value of an attribute, which has this [digest](attribute_digest), and no other one.
///
/// # Errors
/// As for [`set_attribute`]; [`VolumeError::Changed`] if there is another value than both. It may also say so although
/// the new value was set, if somebody replaced that one at once.
pub async fn replace_attribute(
    objects: &dyn Objects,
    volume: VolumeId,
    epoch: Epoch,
    name: &str,
    (data, old): (Bytes, [u8; 32]),
) -> Result<(), VolumeError> {
    let (tries, pause) = ATTRIBUTE_TRIES;
    for again in 0..tries {
        if again > 1 {
            tokio::time::sleep(pause).await;
        }
        let values = attribute_values(objects, volume, name).await?;
        let number = number_after(&values, epoch)?;
        let found = attribute(objects, volume, name).await?;
        // Else it is not certain which of them was found.
        if attribute_values(objects, volume, name).await? != values {
            continue;
        }
        // Set by an attempt whose answer was lost.
        if found == data {
            return Ok(());
        }
        if attribute_digest(&found) != old {
            return Err(VolumeError::Changed);
        }
        if put_attribute(objects, volume, name, (epoch, number), &data).await? {
            // The number may have been somebody else's, who was replaced already.
            let now = attribute_values(objects, volume, name).await?;
            if now.last() != Some(&(epoch, number)) {
                return Err(VolumeError::Changed);
            }
            forget_attributes(objects, volume, name, &values).await;
            return Ok(());
        }
    }
    Err(lags(name))
}

/// The number of the next value.
fn number_after(values: &[(Epoch, u64)], epoch: Epoch) -> Result<u64, VolumeError> {
    match values.last() {
        Some((newer, _)) if *newer > epoch => Err(VolumeError::Fenced(*newer)),
        Some((same, number)) if *same == epoch => Ok(number.saturating_add(1)),
        _ => Ok(1),
    }
}

/// Creates a value; false if its number is taken.
async fn put_attribute(
    objects: &dyn Objects,
    volume: VolumeId,
    name: &str,
    (epoch, number): (Epoch, u64),
    data: &Bytes,
) -> Result<bool, VolumeError> {
    let key = catalog::attribute_key(volume, name, epoch, number);
    match objects.put(&key, vec![data.clone()]).await {
        Ok(()) => Ok(true),
        Err(PutError::Exists) => Ok(false),
        Err(PutError::Failed(error)) => Err(VolumeError::Store(error)),
    }
}

async fn forget_attributes(
    objects: &dyn Objects,
    volume: VolumeId,
    name: &str,
    values: &[(Epoch, u64)],
) {
    for (epoch, number) in values {
        let key = catalog::attribute_key(volume, name, *epoch, *number);
        if let Err(error) = objects.delete(&key).await {
            // It only takes space, and the next one tries again.
            tracing::warn!("cannot delete {key}, which is replaced: {error}");
        }
    }
}

async fn attribute_values(
    objects: &dyn Objects,
    volume: VolumeId,
    name: &str,
) -> Result<Vec<(Epoch, u64)>, VolumeError> {
    let prefix = catalog::attribute_prefix(volume, name);
    let list = objects.list(&prefix).await.map_err(VolumeError::Store)?;
    let parse = |meta: ObjectMeta| catalog::parse_attribute_key(&prefix, &meta.key);
    let mut values: Vec<(Epoch, u64)> = list.into_iter().filter_map(parse).collect();
    values.sort_unstable();
    Ok(values)
}

#[cfg(test)]
mod tests;
