//! Which volumes there are: reading the catalog, creating and deleting.
//!
//! A name is an object, created put-if-absent. Deleting removes the name first: from then on the
//! volume is gone, and what a crash leaves of its data is only space.

use crate::objects::{Objects, PutError};
use crate::random;
use anyhow::{Context as _, Result};
use bytes::Bytes;
use longhaul_core::block::VolumeId;
use longhaul_core::store::VolumeSpec;
use longhaul_core::store::catalog::{self, VOLUMES_PREFIX};
use longhaul_core::wire::link::VolumeError;
use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

/// Reads the descriptions of all volumes.
///
/// # Errors
/// If one cannot be read or is not valid: a store that leaves a volume out would let its name be
/// given away.
pub async fn load(objects: &dyn Objects) -> Result<BTreeMap<String, VolumeSpec>> {
    let list = objects.list(VOLUMES_PREFIX).await.map_err(anyhow::Error::msg);
    let mut volumes = BTreeMap::new();
    for meta in list.context("cannot read the catalog")? {
        let bytes = objects.get(&meta.key, None).await.context("cannot read the catalog")?;
        let spec = catalog::decode_spec(&meta.key, &bytes)?;
        volumes.insert(spec.name.clone(), spec);
    }
    warn_of_leftovers(objects, &volumes).await;
    Ok(volumes)
}

async fn warn_of_leftovers(objects: &dyn Objects, volumes: &BTreeMap<String, VolumeSpec>) {
    let known: BTreeSet<_> = volumes.values().map(|spec| catalog::volume_prefix(spec.id)).collect();
    let Ok(list) = objects.list("v/").await else { return };
    let mut left: BTreeMap<String, u64> = BTreeMap::new();
    for meta in list {
        let end = meta.key.match_indices('/').nth(1).map_or(0, |(at, _)| at + 1);
        if !known.contains(&meta.key[..end]) {
            *left.entry(meta.key[..end].to_owned()).or_default() += meta.bytes;
        }
    }
    for (prefix, bytes) in left {
        // Not removed here: after an incomplete restore they may be all there is of a volume.
        tracing::warn!(
            "objects/{prefix} ({}) belongs to no volume, as after a deletion that was interrupted: remove it by hand",
            crate::units::show_bytes(bytes)
        );
    }
}

/// Creates a volume.
///
/// # Errors
/// If name or sizes are not allowed, the name is taken, or the objects cannot be written.
pub async fn create(
    objects: &dyn Objects,
    name: String,
    sectors: u64,
    block_bytes: u32,
) -> Result<VolumeSpec, VolumeError> {
    catalog::check_name(&name).map_err(|error| VolumeError::Invalid(error.to_string()))?;
    catalog::check_size(sectors, block_bytes)
        .map_err(|error| VolumeError::Invalid(error.to_string()))?;
    let id = random::identity().map_err(|error| VolumeError::Store(error.to_string()))?;
    let created = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let created = created.map_or(0, |since| since.as_secs());
    let spec = VolumeSpec { id: VolumeId(id), name, sectors, block_bytes, created };
    let data = vec![Bytes::from(catalog::encode_spec(&spec))];
    match objects.put(&catalog::name_key(&spec.name), data).await {
        Ok(()) => Ok(spec),
        Err(PutError::Exists) => Err(VolumeError::Exists),
        Err(PutError::Failed(error)) => Err(VolumeError::Store(error)),
    }
}

/// Deletes a volume that no engine has open.
///
/// # Errors
/// If the name cannot be deleted; the volume is then still there.
pub async fn delete(objects: &dyn Objects, spec: &VolumeSpec) -> Result<(), VolumeError> {
    objects.delete(&catalog::name_key(&spec.name)).await.map_err(VolumeError::Store)?;
    let remove = async {
        for meta in objects.list(&catalog::volume_prefix(spec.id)).await? {
            objects.delete(&meta.key).await?;
        }
        Ok::<_, String>(())
    };
    if let Err(error) = remove.await {
        tracing::warn!("deleted volume {}, but some of its data stays: {error}", spec.name);
    }
    Ok(())
}
