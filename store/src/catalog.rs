//! Reads the catalog of volumes; creates and deletes volumes. [`longhaul_core::store::fleet`]
//! decides.

use super::drive::drive;
use anyhow::Result;
use bytes::Bytes;
use longhaul_base::random;
use longhaul_core::block::{Epoch, VolumeId};
use longhaul_core::store::VolumeSpec;
use longhaul_core::store::fleet::attributes::{ReadAttribute, SetAttribute};
use longhaul_core::store::fleet::listing::{FindChanges, FindLeftovers, FindStored, ReadCatalog};
use longhaul_core::store::fleet::tenants::CreateVolume;
use longhaul_core::wire::link::{StoredBytes, VolumeError};
use longhaul_objects::Objects;

pub use longhaul_core::store::fleet::listing::{
    Catalog, CatalogChanges as Changes, CatalogEntry as Entry,
};
pub use longhaul_core::store::fleet::names::NotCreated;

/// Reads the descriptions of all volumes, and their present sizes.
///
/// # Errors
/// If the reads fail. A damaged description costs its own volume, and no other.
pub async fn load(objects: &dyn Objects) -> Result<Catalog> {
    let catalog = drive(ReadCatalog::default(), objects, None).await;
    let catalog = catalog.map_err(anyhow::Error::new)?;
    for (name, reason) in &catalog.damaged {
        tracing::error!("volume {name} cannot be used: {reason}");
    }
    Ok(catalog)
}

/// Looks for volumes that other stores created or deleted since the read of `known`.
///
/// # Errors
/// Those of [`load`].
pub async fn changes(objects: &dyn Objects, known: Vec<VolumeSpec>) -> Result<Changes> {
    drive(FindChanges { known }, objects, None).await.map_err(anyhow::Error::new)
}

/// Says what there is of volumes that are in no catalog. It lists everything there is.
pub async fn warn_of_leftovers(objects: &dyn Objects, catalog: &Catalog) {
    // The objects of damaged descriptions are unknown.
    if !catalog.damaged.is_empty() {
        return;
    }
    let named = catalog.entries.values().map(|entry| entry.spec.id).collect();
    for (prefix, bytes) in drive(FindLeftovers { named }, objects, None).await {
        // Not removed here: after an incomplete restore they may be all there is of a volume.
        tracing::warn!(
            "objects/{prefix} ({}) belongs to no volume, as after a deletion that was interrupted: \
             remove it by hand",
            longhaul_base::units::show_bytes(bytes)
        );
    }
}

/// Creates a volume.
///
/// # Errors
/// If the name or a size is not allowed, the tenant may not have it, the name is in use, or a write
/// fails.
pub async fn create(
    objects: &dyn Objects,
    name: String,
    sectors: u64,
    block_bytes: u32,
) -> Result<VolumeSpec, NotCreated> {
    let id = random::identity().map_err(|error| VolumeError::Store(error.to_string()))?;
    let spec = VolumeSpec {
        id: VolumeId(id),
        name,
        created_sectors: sectors,
        block_bytes,
        created: super::clock::now(),
        parents: Vec::new(),
    };
    let entry = Entry { spec: spec.clone(), sectors };
    drive(CreateVolume(entry), objects, None).await.map(|()| spec)
}

/// The bytes that a volume takes. This lists all of its objects.
///
/// # Errors
/// If a list fails.
pub async fn stored(objects: &dyn Objects, volume: VolumeId) -> Result<StoredBytes, VolumeError> {
    drive(FindStored(volume), objects, None).await
}

/// Reads an attribute of a volume; empty if nobody ever set it.
///
/// # Errors
/// If the reads fail.
pub async fn attribute(
    objects: &dyn Objects,
    volume: VolumeId,
    name: &str,
) -> Result<Vec<u8>, VolumeError> {
    let read = drive(ReadAttribute { volume, name: name.to_owned() }, objects, None).await;
    read.map(Vec::from)
}

/// Replaces an attribute of a volume, on behalf of the host of an epoch.
///
/// # Errors
/// See [`SetAttribute`].
pub async fn set_attribute(
    objects: &dyn Objects,
    volume: VolumeId,
    epoch: Epoch,
    name: &str,
    data: Bytes,
) -> Result<(), VolumeError> {
    let name = name.to_owned();
    drive(SetAttribute { volume, epoch, name, data, replaces: None }, objects, None).await
}

/// Replaces one value of an attribute, which has this
/// [digest](longhaul_core::wire::link::attribute_digest), and no other one.
///
/// # Errors
/// See [`SetAttribute`].
pub async fn replace_attribute(
    objects: &dyn Objects,
    volume: VolumeId,
    epoch: Epoch,
    name: &str,
    (data, old): (Bytes, [u8; 32]),
) -> Result<(), VolumeError> {
    let (name, replaces) = (name.to_owned(), Some(old));
    drive(SetAttribute { volume, epoch, name, data, replaces }, objects, None).await
}

#[cfg(test)]
pub mod tests;
