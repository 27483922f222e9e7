//! Which volumes there are: reading the catalog, creating and deleting.
//!
//! A name is an object, created put-if-absent. Deleting removes the name first: from then on the
//! volume is gone. What becomes of its data is [`super::trash`]'s business.

use super::tenants;
use crate::objects::{GetError, ObjectMeta, Objects, PutError};
use crate::random;
use anyhow::{Context as _, Result};
use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _};
use longhaul_core::block::{Epoch, VolumeId};
use longhaul_core::store::VolumeSpec;
use longhaul_core::store::catalog::{self, VOLUMES_PREFIX};
use longhaul_core::store::tenant::check_volume_name;
use longhaul_core::wire::link::{StoredBytes, VolumeError};
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

/// Reads the descriptions of all volumes, and how large they are by now.
///
/// # Errors
/// If one cannot be read or is not valid: a store that leaves a volume out would let its name be
/// given away.
pub async fn load(objects: &dyn Objects) -> Result<BTreeMap<String, Entry>> {
    let found = entries(objects, VOLUMES_PREFIX).await?.into_iter();
    Ok(found.map(|entry| (entry.spec.name.clone(), entry)).collect())
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
pub async fn entries(objects: &dyn Objects, prefix: &str) -> Result<Vec<Entry>> {
    let list = objects.list(prefix).await.map_err(anyhow::Error::msg);
    let list = list.context("cannot read the catalog")?;
    let entries = futures_util::stream::iter(list)
        .map(|meta| async move { entry(objects, &meta.key).await })
        .buffer_unordered(READ_AT_ONCE);
    let found: Vec<Option<Entry>> = entries.try_collect().await?;
    Ok(found.into_iter().flatten().collect())
}

/// What is otherwise than a store knows.
pub struct Changes {
    /// Volumes that it does not know.
    pub new: Vec<Entry>,
    /// Names of those that are deleted.
    pub gone: Vec<String>,
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
    let new = futures_util::stream::iter(unknown)
        .map(|meta| async move { entry(objects, &meta.key).await })
        .buffer_unordered(READ_AT_ONCE);
    let new: Vec<Option<Entry>> = new.try_collect().await?;
    let mut gone = Vec::new();
    for (key, spec) in missing {
        // A list may lag behind a creation.
        match objects.get(&key, None).await {
            Err(GetError::NotFound) => gone.push(spec.name),
            Ok(_) => {}
            Err(error) => return Err(error).context("cannot read the catalog"),
        }
    }
    Ok(Changes { new: new.into_iter().flatten().collect(), gone })
}

/// The volume that an object describes; `None` if it is not there.
async fn entry(objects: &dyn Objects, key: &str) -> Result<Option<Entry>> {
    let bytes = match objects.get(key, None).await {
        Ok(bytes) => bytes,
        Err(GetError::NotFound) => {
            // A list may lag behind a deletion; the object itself says whether the name is free.
            tracing::warn!("{key} is in the list of volumes and is not there: it has been deleted");
            return Ok(None);
        }
        Err(error) => return Err(error).context("cannot read the catalog"),
    };
    let spec = catalog::decode_spec(key, &bytes)?;
    let sectors = size(objects, &spec).await?;
    Ok(Some(Entry { spec, sectors }))
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
        let bytes = objects.get(&key, None).await.context("cannot read the catalog")?;
        match catalog::decode_size(spec, &key, &bytes) {
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
pub async fn warn_of_leftovers(objects: &dyn Objects, volumes: &BTreeMap<String, Entry>) {
    let Ok(deleted) = super::trash::known(objects).await else { return };
    let ids = volumes.values().map(|entry| entry.spec.id).chain(deleted.into_keys());
    let known: BTreeSet<_> = ids.map(catalog::volume_prefix).collect();
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

/// The descriptions of all volumes.
///
/// # Errors
/// If one cannot be read.
pub async fn specs(objects: &dyn Objects) -> Result<Vec<VolumeSpec>, VolumeError> {
    specs_of(objects, VOLUMES_PREFIX).await
}

/// The descriptions of the volumes whose keys begin with `prefix`.
///
/// # Errors
/// If one cannot be read.
pub async fn specs_of(objects: &dyn Objects, prefix: &str) -> Result<Vec<VolumeSpec>, VolumeError> {
    let list = objects.list(prefix).await.map_err(VolumeError::Store)?;
    let specs = futures_util::stream::iter(list)
        .map(|meta| async move {
            match objects.get(&meta.key, None).await {
                Ok(bytes) => catalog::decode_spec(&meta.key, &bytes)
                    .map(Some)
                    .map_err(|error| VolumeError::Store(error.to_string())),
                Err(GetError::NotFound) => Ok(None),
                Err(error) => Err(VolumeError::Store(error.to_string())),
            }
        })
        .buffer_unordered(READ_AT_ONCE);
    let specs: Vec<Option<VolumeSpec>> = specs.try_collect().await?;
    Ok(specs.into_iter().flatten().collect())
}

/// Refuses if any of these clones exists, by whatever name.
///
/// # Errors
/// With their names, or what keeps one from being read.
pub async fn has_no_clones(
    objects: &dyn Objects,
    clones: &BTreeSet<VolumeId>,
) -> Result<(), VolumeError> {
    if clones.is_empty() {
        return Ok(());
    }
    let there = specs(objects).await?.into_iter().filter(|spec| clones.contains(&spec.id));
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
    Err(VolumeError::Store(format!("the list of the values of {name} lags behind; try again")))
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
        let number = match values.last() {
            Some((newer, _)) if *newer > epoch => return Err(VolumeError::Fenced(*newer)),
            Some((same, number)) if *same == epoch => number.saturating_add(1),
            _ => 1,
        };
        let number = number.max(least);
        let key = catalog::attribute_key(volume, name, epoch, number);
        match objects.put(&key, vec![data.clone()]).await {
            Ok(()) => {}
            Err(PutError::Exists) => {
                least = number.saturating_add(1);
                continue;
            }
            Err(PutError::Failed(error)) => return Err(VolumeError::Store(error)),
        }
        for (epoch, number) in values {
            let key = catalog::attribute_key(volume, name, epoch, number);
            if let Err(error) = objects.delete(&key).await {
                // It only takes space, and the next one tries again.
                tracing::warn!("cannot delete {key}, which is replaced: {error}");
            }
        }
        return Ok(());
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
mod tests {
    use super::*;
    use crate::objects::LocalObjects;
    use std::ops::Range;

    /// Whose deletions have their effect or not, and fail.
    struct Failing(LocalObjects, bool);

    #[async_trait::async_trait]
    impl Objects for Failing {
        async fn put(&self, key: &str, data: Vec<Bytes>) -> Result<(), PutError> {
            self.0.put(key, data).await
        }
        async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Bytes, GetError> {
            self.0.get(key, range).await
        }
        async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, String> {
            self.0.list(prefix).await
        }
        async fn delete(&self, key: &str) -> Result<(), String> {
            if self.1 {
                self.0.delete(key).await?;
            }
            Err("the directory cannot be synced".into())
        }
    }

    /// Whose answers to creations get lost: the first so many have their effect or not, and fail; with
    /// `again`, the creation is repeated before anyone is told, as clients of object stores do.
    struct Forgetful {
        objects: LocalObjects,
        lost: std::sync::atomic::AtomicUsize,
        effect: bool,
        again: bool,
    }

    impl Forgetful {
        fn new(dir: &std::path::Path, lost: usize, effect: bool, again: bool) -> Forgetful {
            Forgetful {
                objects: LocalObjects::open(dir).unwrap(),
                lost: lost.into(),
                effect,
                again,
            }
        }
    }

    #[async_trait::async_trait]
    impl Objects for Forgetful {
        async fn put(&self, key: &str, data: Vec<Bytes>) -> Result<(), PutError> {
            use std::sync::atomic::Ordering::Relaxed;
            let lost = self.lost.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
            if lost && self.effect {
                let _ = self.objects.put(key, data.clone()).await;
            }
            if lost && !self.again {
                return Err(PutError::Failed("no answer".into()));
            }
            self.objects.put(key, data).await
        }
        async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Bytes, GetError> {
            self.objects.get(key, range).await
        }
        async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, String> {
            self.objects.list(prefix).await
        }
        async fn delete(&self, key: &str) -> Result<(), String> {
            self.objects.delete(key).await
        }
    }

    #[tokio::test]
    async fn a_creation_whose_answer_is_lost_is_ones_own() {
        for (lost, effect, again, good) in [
            (1, true, true, true),
            (1, true, false, true),
            (1, false, false, true),
            (2, true, false, false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let objects = Forgetful::new(dir.path(), lost, effect, again);
            let result = create(&objects, "a".into(), 2048, 512).await;
            assert_eq!(result.is_ok(), good, "{result:?}");
            // Whoever asks again learns what there is, and can go on with it.
            let there = load(&objects).await.unwrap().remove("a").expect("it was created");
            let refused = create(&objects, "a".into(), 2048, 512).await.unwrap_err();
            assert_eq!(
                refused,
                NotCreated { error: VolumeError::Exists, taken: Some(there.clone()) }
            );
            if let Ok(spec) = result {
                assert_eq!(there.spec, spec);
            }
        }
    }

    #[tokio::test]
    async fn an_attribute_that_is_set_without_an_answer_is_set_again() {
        let dir = tempfile::tempdir().unwrap();
        let objects = Forgetful::new(dir.path(), 1, true, true);
        let data = Bytes::from_static(b"one");
        set_attribute(&objects, VolumeId(7), 1, "a", data.clone()).await.unwrap();
        assert_eq!(attribute(&objects, VolumeId(7), "a").await, Ok(data.to_vec()));
        assert_eq!(objects.list("v/").await.unwrap().len(), 1, "the first is replaced");
    }

    /// Whose lists show nothing that was created, and what was deleted.
    struct Lagging(LocalObjects, Vec<ObjectMeta>);

    #[async_trait::async_trait]
    impl Objects for Lagging {
        async fn put(&self, key: &str, data: Vec<Bytes>) -> Result<(), PutError> {
            self.0.put(key, data).await
        }
        async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Bytes, GetError> {
            self.0.get(key, range).await
        }
        async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, String> {
            let shown = self.1.iter().filter(|meta| meta.key.starts_with(prefix));
            Ok(shown.cloned().collect())
        }
        async fn delete(&self, key: &str) -> Result<(), String> {
            self.0.delete(key).await
        }
    }

    #[tokio::test]
    async fn lists_that_lag_wedge_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let shown = vec![
            ObjectMeta { key: catalog::attribute_key(VolumeId(7), "a", 1, 1), bytes: 1 },
            ObjectMeta { key: catalog::name_key("gone"), bytes: 1 },
        ];
        let objects = Lagging(LocalObjects::open(dir.path()).unwrap(), shown);
        // Deleted, and still in the list.
        let read = attribute(&objects, VolumeId(7), "a").await;
        assert!(matches!(&read, Err(VolumeError::Store(why)) if why.contains("lags")), "{read:?}");
        assert!(load(&objects).await.unwrap().is_empty());
        // Created, and not in it yet.
        for data in ["one", "two"] {
            set_attribute(&objects, VolumeId(7), 2, "b", Bytes::from(data)).await.unwrap();
        }
        let second = catalog::attribute_key(VolumeId(7), "b", 2, 2);
        assert_eq!(objects.get(&second, None).await.unwrap(), "two");
    }

    #[tokio::test]
    async fn what_another_store_creates_and_deletes_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let objects = LocalObjects::open(dir.path()).unwrap();
        let a = create(&objects, "a".into(), 2048, 512).await.unwrap();
        let b = create(&objects, "b".into(), 2048, 512).await.unwrap();
        delete(&objects, &a).await.unwrap();
        let changes = changes(&objects, vec![a]).await.unwrap();
        assert_eq!(changes.gone, ["a"]);
        assert_eq!(changes.new, [Entry { sectors: 2048, spec: b }]);
    }

    #[tokio::test]
    async fn a_volume_is_gone_before_its_data_is() {
        let dir = tempfile::tempdir().unwrap();
        let objects = LocalObjects::open(dir.path()).unwrap();
        let spec = create(&objects, "a".into(), 2048, 512).await.unwrap();
        let key = catalog::segment_key(spec.id, 1);
        objects.put(&key, vec![Bytes::from("x")]).await.unwrap();
        delete(&objects, &spec).await.unwrap();
        assert!(load(&objects).await.unwrap().is_empty());
        assert_eq!(objects.get(&key, None).await.unwrap(), "x");
        remove_data(&objects, &spec).await.unwrap();
        assert_eq!(objects.get(&key, None).await, Err(GetError::NotFound));
    }

    #[tokio::test]
    async fn attributes_are_replaced_and_fenced() {
        let dir = tempfile::tempdir().unwrap();
        let objects = LocalObjects::open(dir.path()).unwrap();
        let volume = VolumeId(7);
        let get = || attribute(&objects, volume, "a");
        let set = |epoch, data: &'static str| {
            set_attribute(&objects, volume, epoch, "a", Bytes::from_static(data.as_bytes()))
        };
        assert_eq!(get().await, Ok(Vec::new()));
        for (epoch, data) in [(1, "one"), (1, "two"), (3, "three"), (3, "")] {
            set(epoch, data).await.unwrap();
            assert_eq!(get().await, Ok(data.as_bytes().to_vec()));
            let kept = objects.list("v/").await.unwrap();
            assert_eq!(kept.len(), 1, "{kept:?}");
        }
        assert_eq!(set(2, "late").await, Err(VolumeError::Fenced(3)));
        assert_eq!(get().await, Ok(Vec::new()));
        // Where one value could not be deleted, the newer one counts.
        let old = catalog::attribute_key(volume, "a", 2, 9);
        objects.put(&old, vec![Bytes::from("old")]).await.unwrap();
        assert_eq!(get().await, Ok(Vec::new()));
        assert_eq!(attribute(&objects, VolumeId(8), "a").await, Ok(Vec::new()));
    }

    #[tokio::test]
    async fn the_newest_size_that_can_be_read_counts() {
        let dir = tempfile::tempdir().unwrap();
        let objects = LocalObjects::open(dir.path()).unwrap();
        let spec = create(&objects, "a".into(), 2048, 512).await.unwrap();
        let size = || async { load(&objects).await.unwrap()["a"].sectors };
        assert_eq!(size().await, 2048);
        for (number, bytes, expected) in [
            (9, catalog::encode_size(4096), 4096),
            (16, catalog::encode_size(8192), 8192),
            (17, b"{".to_vec(), 8192),
            (18, catalog::encode_size(1024), 1024),
        ] {
            let key = catalog::size_key(spec.id, number);
            objects.put(&key, vec![bytes.into()]).await.unwrap();
            assert_eq!(size().await, expected);
        }
    }

    #[tokio::test]
    async fn a_volume_whose_name_is_gone_is_deleted_whatever_was_said() {
        for effect in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let objects = Failing(LocalObjects::open(dir.path()).unwrap(), effect);
            let spec = create(&objects, "a".into(), 2048, 512).await.unwrap();
            let deleted = delete(&objects, &spec).await;
            assert_eq!(deleted.is_ok(), effect, "{deleted:?}");
            assert_eq!(load(&objects).await.unwrap().is_empty(), effect);
        }
    }
}
