//! Deleted volumes: keeps their data until their time is up, gives them a name again, or removes
//! them. [`longhaul_core::store::fleet::deletion`] decides.

use super::catalog::Entry;
use super::drive::drive;
use super::lease::Holder;
use longhaul_core::block::VolumeId;
use longhaul_core::store::VolumeSpec;
use longhaul_core::store::fleet::deleted::{FindRecords, ListDeleted};
use longhaul_core::store::fleet::deletion::{
    CondemnVolume, DeleteVolume, PurgeVolume, RestoreVolume, TendVolume,
};
use longhaul_core::wire::link::{DeletedInfo, VolumeError};
use longhaul_link::credential::Reach;
use longhaul_objects::{Objects, StorageError};
use std::collections::{BTreeMap, BTreeSet};

pub use longhaul_core::store::fleet::deletion::Tended;

/// Volumes with records, whatever their content, and the numbers of the newest records.
///
/// # Errors
/// If the list fails.
pub async fn known(objects: &dyn Objects) -> Result<BTreeMap<VolumeId, u64>, StorageError> {
    drive(FindRecords, objects, None).await
}

/// Deletes a volume that no engine has open. Its data stays, and a restore is possible. `lease` is
/// that of the store that has the volume.
///
/// # Errors
/// See [`DeleteVolume`].
pub async fn delete(
    objects: &dyn Objects,
    entry: &Entry,
    lease: Option<u64>,
    clones: Option<&BTreeSet<VolumeId>>,
) -> Result<(), VolumeError> {
    let (entry, clones) = (entry.clone(), clones.cloned());
    drive(DeleteVolume { entry, lease, clones }, objects, None).await
}

/// Gives a deleted volume a name again. `me` takes its lease, if there are leases. For whoever asks
/// there are only those of `of`.
///
/// # Errors
/// See [`RestoreVolume`].
pub async fn restore(
    objects: &dyn Objects,
    me: Option<&Holder>,
    volume: VolumeId,
    name: &str,
    of: Option<&Reach>,
) -> Result<Entry, VolumeError> {
    let has = |name: &str| of.is_none_or(|reach| reach.has(name));
    let (me, name) = (me.cloned(), name.to_owned());
    drive(RestoreVolume { me, volume, name, of: Some(&has) }, objects, None).await
}

/// Carries out the next step for a volume with a record, if its time has come by `now`. Its data
/// stays for `grace` seconds after its deletion.
///
/// # Errors
/// If a read or a write fails: the next call goes on.
pub async fn tend(
    objects: &dyn Objects,
    me: Option<&Holder>,
    volume: VolumeId,
    grace: u64,
    now: u64,
) -> Result<Tended, VolumeError> {
    drive(TendVolume { me: me.cloned(), volume, grace, now }, objects, None).await
}

/// Decides to remove the data of a deleted volume. The caller only sees the volumes of `of`.
///
/// # Errors
/// If the deleted volume does not exist, or a read or a write fails.
pub async fn condemn(
    objects: &dyn Objects,
    volume: VolumeId,
    of: Option<&Reach>,
) -> Result<VolumeSpec, VolumeError> {
    let has = |name: &str| of.is_none_or(|reach| reach.has(name));
    drive(CondemnVolume { volume, of: Some(&has) }, objects, None).await
}

/// Removes the data of a deleted volume. It takes some milliseconds for each few segments, minutes
/// for a large volume.
///
/// # Errors
/// As for [`condemn`].
pub async fn purge(objects: &dyn Objects, volume: VolumeId) -> Result<Tended, VolumeError> {
    drive(PurgeVolume(volume), objects, None).await
}

/// Deleted volumes by identity, after `after`, as far as `wanted`. Also whether there are more.
/// Data stays for `grace` seconds.
///
/// # Errors
/// If the reads fail.
pub async fn list(
    objects: &dyn Objects,
    after: VolumeId,
    grace: u64,
    wanted: impl Fn(&VolumeSpec) -> bool + Sync,
) -> Result<(Vec<DeletedInfo>, bool), VolumeError> {
    drive(ListDeleted { after, grace, wanted: &wanted }, objects, None).await
}

#[cfg(test)]
mod tests;
