use super::*;
use longhaul_core::store::catalog;
use longhaul_core::store::fleet::names::alone::{DeleteName, FindName, HasNoClones, PutName};
use longhaul_core::wire::link::attribute_digest;
use longhaul_objects::{GetError, LocalObjects, ObjectMeta, PutError, StorageError};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

async fn delete(objects: &dyn Objects, spec: &VolumeSpec) -> Result<(), VolumeError> {
    drive(DeleteName(spec.clone()), objects, None).await
}

/// Gives a volume its name, whatever its tenant may have.
pub async fn put_name(objects: &dyn Objects, spec: &VolumeSpec) -> Result<(), NotCreated> {
    drive(PutName(spec.clone()), objects, None).await
}

/// The volume of a name; `None` if there is none.
pub async fn named(objects: &dyn Objects, name: &str) -> Result<Option<VolumeSpec>, VolumeError> {
    drive(FindName(name.to_owned()), objects, None).await
}

async fn has_no_clones(
    objects: &dyn Objects,
    tenant: Option<&str>,
    clones: &BTreeSet<VolumeId>,
) -> Result<(), VolumeError> {
    let (tenant, clones) = (tenant.map(str::to_owned), clones.clone());
    drive(HasNoClones { tenant, clones }, objects, None).await
}

/// Objects whose deletions fail, with or without their effect.
struct Failing(LocalObjects, bool);

#[async_trait::async_trait]
impl Objects for Failing {
    async fn put(&self, key: &str, data: Vec<Bytes>) -> Result<(), PutError> {
        self.0.put(key, data).await
    }
    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Bytes, GetError> {
        self.0.get(key, range).await
    }
    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, StorageError> {
        self.0.list(prefix).await
    }
    async fn delete(&self, key: &str) -> Result<(), StorageError> {
        if self.1 {
            self.0.delete(key).await?;
        }
        Err(StorageError::unavailable("the directory cannot be synced"))
    }
}

/// Objects that lose the answers to creations: the first `n` fail, with or without their effect.
/// With `again`, they repeat the creation before they report it, as clients of object stores do.
struct Forgetful {
    objects: LocalObjects,
    lost: std::sync::atomic::AtomicUsize,
    effect: bool,
    again: bool,
}

impl Forgetful {
    fn new(dir: &std::path::Path, lost: usize, effect: bool, again: bool) -> Forgetful {
        Forgetful { objects: LocalObjects::open(dir).unwrap(), lost: lost.into(), effect, again }
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
            return Err(PutError::Failed(StorageError::unavailable("no answer")));
        }
        self.objects.put(key, data).await
    }
    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Bytes, GetError> {
        self.objects.get(key, range).await
    }
    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, StorageError> {
        self.objects.list(prefix).await
    }
    async fn delete(&self, key: &str) -> Result<(), StorageError> {
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
        // A second request finds the existing volume, and can go on with it.
        let there = load(&objects).await.unwrap().entries.remove("a").expect("it was created");
        let refused = create(&objects, "a".into(), 2048, 512).await.unwrap_err();
        let taken = Some(Box::new(there.clone()));
        assert_eq!(refused, NotCreated { error: VolumeError::Exists, taken });
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

/// Objects whose lists lack new objects and show deleted ones.
struct Lagging(LocalObjects, Vec<ObjectMeta>);

#[async_trait::async_trait]
impl Objects for Lagging {
    async fn put(&self, key: &str, data: Vec<Bytes>) -> Result<(), PutError> {
        self.0.put(key, data).await
    }
    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Bytes, GetError> {
        self.0.get(key, range).await
    }
    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, StorageError> {
        let shown = self.1.iter().filter(|meta| meta.key.starts_with(prefix));
        Ok(shown.cloned().collect())
    }
    async fn delete(&self, key: &str) -> Result<(), StorageError> {
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
    assert!(load(&objects).await.unwrap().entries.is_empty());
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
    assert!(load(&objects).await.unwrap().entries.is_empty());
    assert_eq!(objects.get(&key, None).await.unwrap(), "x");
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
    // If the deletion of an old value failed, the newer one counts.
    let old = catalog::attribute_key(volume, "a", 2, 9);
    objects.put(&old, vec![Bytes::from("old")]).await.unwrap();
    assert_eq!(get().await, Ok(Vec::new()));
    assert_eq!(attribute(&objects, VolumeId(8), "a").await, Ok(Vec::new()));
}

#[tokio::test]
async fn an_attribute_is_replaced_by_who_has_seen_it() {
    let dir = tempfile::tempdir().unwrap();
    let objects = LocalObjects::open(dir.path()).unwrap();
    let volume = VolumeId(7);
    let replace = |epoch, old: &str, new: &str| {
        let new = (Bytes::from(new.to_owned()), attribute_digest(old.as_bytes()));
        let objects = &objects;
        async move { replace_attribute(objects, volume, epoch, "keys", new).await }
    };
    assert_eq!(replace(1, "", "one").await, Ok(()));
    assert_eq!(replace(1, "", "other").await, Err(VolumeError::Changed));
    // The answer got lost.
    assert_eq!(replace(1, "", "one").await, Ok(()));
    assert_eq!(replace(2, "one", "two").await, Ok(()));
    assert_eq!(replace(1, "two", "late").await, Err(VolumeError::Fenced(2)));
    assert_eq!(objects.list("v/").await.unwrap().len(), 1);
    // Each adds a letter to the value that it has seen, and none is lost.
    let adding = ('a'..='h').map(async |letter| {
        loop {
            let seen =
                String::from_utf8(attribute(&objects, volume, "keys").await.unwrap()).unwrap();
            // Its value may have counted although the answer was that the attribute has changed.
            if seen.contains(letter) {
                return;
            }
            match replace(2, &seen, &format!("{seen}{letter}")).await {
                Ok(()) => return,
                Err(VolumeError::Changed | VolumeError::Store(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
    });
    futures_util::future::join_all(adding).await;
    let all = attribute(&objects, volume, "keys").await.unwrap();
    for letter in 'a'..='h' {
        assert_eq!(all.iter().filter(|one| **one == letter as u8).count(), 1, "{all:?}");
    }
}

#[tokio::test]
async fn the_newest_size_that_can_be_read_counts() {
    let dir = tempfile::tempdir().unwrap();
    let objects = LocalObjects::open(dir.path()).unwrap();
    let spec = create(&objects, "a".into(), 2048, 512).await.unwrap();
    let size = || async { load(&objects).await.unwrap().entries["a"].sectors };
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
async fn a_description_that_is_damaged_costs_its_own_volume() {
    let dir = tempfile::tempdir().unwrap();
    let objects = longhaul_objects::Sealed::new(Arc::new(LocalObjects::open(dir.path()).unwrap()));
    for name in ["a", "b"] {
        create(&objects, name.into(), 2048, 512).await.unwrap();
    }
    let path = dir.path().join("objects/volumes/a");
    let sound = std::fs::read(&path).unwrap();
    let flip = |at: usize| {
        let mut bytes = sound.clone();
        bytes[at] ^= 1;
        bytes
    };
    for at in 0..sound.len() {
        std::fs::write(&path, flip(at)).unwrap();
        let catalog = load(&objects).await.unwrap();
        assert_eq!(catalog.entries.keys().collect::<Vec<_>>(), ["b"], "byte {at}");
        let reason = catalog.damaged["a"].clone();
        assert!(reason.contains("volumes/a"), "{reason}");
    }
    // The store keeps its name, and every volume that may be its parent.
    let again = create(&objects, "a".into(), 2048, 512).await.unwrap_err();
    assert!(matches!(&again.error, VolumeError::Store(_) | VolumeError::Exists), "{again:?}");
    let clones = BTreeSet::from([VolumeId(5)]);
    let refused = has_no_clones(&objects, None, &clones).await.unwrap_err().to_string();
    assert!(refused.contains("volumes/a"), "{refused}");
    assert_eq!(has_no_clones(&objects, Some("acme"), &clones).await, Ok(()));
    // A name that another volume's description lies under is as bad.
    std::fs::copy(dir.path().join("objects/volumes/b"), &path).unwrap();
    assert!(load(&objects).await.unwrap().damaged.contains_key("a"));
    std::fs::write(&path, &sound).unwrap();
    assert!(load(&objects).await.unwrap().damaged.is_empty());
}

#[tokio::test]
async fn a_volume_whose_name_is_gone_is_deleted_whatever_was_said() {
    for effect in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let objects = Failing(LocalObjects::open(dir.path()).unwrap(), effect);
        let spec = create(&objects, "a".into(), 2048, 512).await.unwrap();
        let deleted = delete(&objects, &spec).await;
        assert_eq!(deleted.is_ok(), effect, "{deleted:?}");
        assert_eq!(load(&objects).await.unwrap().entries.is_empty(), effect);
    }
}
