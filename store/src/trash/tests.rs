//! Deletions and restores, cut short at each operation on the objects.

use super::*;
use crate::catalog::tests::{named, put_name};
use crate::catalog::{self, create};
use bytes::Bytes;
use longhaul_core::store::lease::Lease;
use longhaul_core::store::trash::HANDS_OFF;
use longhaul_core::wire::link::{Parent, StoreId};
use longhaul_objects::{GetError, MemoryObjects, ObjectMeta, PutError};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Objects of a process that dies at its so manieth change, which has its effect or not.
struct Dying {
    objects: Arc<MemoryObjects>,
    left: AtomicUsize,
    effect: bool,
}

const LATER: u64 = HANDS_OFF + 1;
const GRACE: u64 = 1000;

impl Dying {
    /// Whether to make a change, and whether to answer.
    fn change(&self) -> (bool, bool) {
        let before = |left: usize| left.checked_sub(1);
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, before) {
            Ok(1) => (self.effect, false),
            Ok(_) => (true, true),
            Err(_) => (false, false),
        }
    }

    fn is_dead(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0
    }
}

#[async_trait::async_trait]
impl Objects for Dying {
    async fn put(&self, key: &str, data: Vec<Bytes>) -> Result<(), PutError> {
        let (effect, answer) = self.change();
        let result = if effect { self.objects.put(key, data).await } else { Ok(()) };
        if answer { result } else { Err(PutError::Failed(StorageError::unavailable("dead"))) }
    }
    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Bytes, GetError> {
        if self.is_dead() {
            return Err(GetError::Failed(StorageError::unavailable("dead")));
        }
        self.objects.get(key, range).await
    }
    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, StorageError> {
        if self.is_dead() {
            return Err(StorageError::unavailable("dead"));
        }
        self.objects.list(prefix).await
    }
    async fn delete(&self, key: &str) -> Result<(), StorageError> {
        let (effect, answer) = self.change();
        if effect {
            self.objects.delete(key).await?;
        }
        if answer { Ok(()) } else { Err(StorageError::unavailable("dead")) }
    }
}

struct World {
    objects: Arc<MemoryObjects>,
    me: Holder,
    entry: Entry,
}

/// Puts the first lease of a volume. Its holder is [`World::me`].
async fn put_lease(objects: &MemoryObjects, spec: &VolumeSpec) {
    let held = Lease::Held { store: StoreId(1), incarnation: 1, addresses: Vec::new() };
    let key = longhaul_core::store::lease::key(spec.id, 1);
    objects.put(&key, vec![Bytes::from(held.encode())]).await.unwrap();
}

async fn world() -> World {
    let objects = Arc::new(MemoryObjects::new(1 << 30));
    let me = Holder { id: StoreId(1), incarnation: 1, addresses: Vec::new() };
    let spec = create(&*objects, "a".into(), 2048, 512).await.unwrap();
    put_lease(&objects, &spec).await;
    objects.put(&data(&spec), vec![Bytes::from("data")]).await.unwrap();
    World { objects, me, entry: Entry { spec, sectors: 4096 } }
}

fn data(spec: &VolumeSpec) -> String {
    longhaul_core::store::catalog::segment_key(spec.id, 1)
}

/// The state of a volume, as clients see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    There,
    Deleted,
    Gone,
}

impl World {
    fn dying(&self, after: usize, effect: bool) -> Dying {
        Dying { objects: self.objects.clone(), left: AtomicUsize::new(after), effect }
    }

    async fn delete(&self) -> Result<(), VolumeError> {
        delete(&*self.objects, &self.entry, Some(1), Some(&BTreeSet::new())).await
    }

    /// Tends at that time, until there is nothing to do.
    async fn tend(&self, now: u64) -> Tended {
        loop {
            let id = self.entry.spec.id;
            match tend(&*self.objects, Some(&self.me), id, GRACE, now).await.unwrap() {
                Tended::Wait(at) if at <= now => {}
                Tended::Kept | Tended::Removed(_) => {}
                other => return other,
            }
        }
    }

    /// The state of the volume, after a check that it is no state in between. With a name, an
    /// attach works. Without a name, the list has it with its data, or nothing at all is left of
    /// it.
    async fn state(&self) -> State {
        let spec = &self.entry.spec;
        let has_data = self.objects.get(&data(spec), None).await.is_ok();
        let all = catalog::load(&*self.objects).await.unwrap().entries;
        let names: Vec<_> = all.values().filter(|entry| entry.spec.id == spec.id).collect();
        let (listed, more) = list(&*self.objects, VolumeId(0), GRACE, |_| true).await.unwrap();
        assert!(!more && names.len() + listed.len() <= 1, "{names:?} {listed:?}");
        if !names.is_empty() {
            assert!(has_data);
            return State::There;
        }
        if let [deleted] = &listed[..] {
            assert!(has_data && deleted.sectors == 4096, "{deleted:?}");
            return State::Deleted;
        }
        State::Gone
    }

    /// Number of the newest lease.
    async fn leases(&self) -> u64 {
        let prefix = longhaul_core::store::lease::prefix(self.entry.spec.id);
        self.objects.list(&prefix).await.unwrap().len() as u64
    }

    /// Whether somebody can take its lease.
    async fn can_be_had(&self) -> bool {
        let prefix = longhaul_core::store::lease::prefix(self.entry.spec.id);
        let mut keys: Vec<_> = self.objects.list(&prefix).await.unwrap();
        keys.sort_by(|one, other| one.key.cmp(&other.key));
        let key = &keys.last().unwrap().key;
        let newest = Lease::decode(key, &self.objects.get(key, None).await.unwrap()).unwrap();
        newest != Lease::Deleted
    }
}

fn now() -> u64 {
    crate::clock::now()
}

/// Dies at each change of a piece of work in turn, and says what to expect then.
async fn each_crash(
    prepare: impl AsyncFn(&World),
    work: impl AsyncFn(&World, &dyn Objects) -> Result<(), VolumeError>,
    check: impl AsyncFn(&World, bool),
) -> usize {
    for after in 1.. {
        for effect in [false, true] {
            let world = world().await;
            prepare(&world).await;
            let dying = world.dying(after, effect);
            let result = work(&world, &dying).await;
            let dead = dying.is_dead();
            assert!(result.is_ok() || dead, "{result:?}");
            check(&world, result.is_ok()).await;
            if !dead {
                return after;
            }
        }
    }
    unreachable!()
}

#[tokio::test]
async fn a_deletion_that_is_cut_short_anywhere_has_happened_or_not() {
    let changes = each_crash(
        async |_| (),
        async |world, objects| delete(objects, &world.entry, Some(1), Some(&BTreeSet::new())).await,
        async |world, done| {
            let state = world.state().await;
            assert!(if done { state == State::Deleted } else { state != State::Gone });
            let listed = world.tend(now() + LATER).await;
            let after = world.state().await;
            match after {
                // The step had no effect, as if nobody had tried it.
                State::There => assert!(world.can_be_had().await && state == State::There),
                State::Deleted => assert!(matches!(listed, Tended::Wait(_)) && state == after),
                State::Gone => panic!("{state:?}"),
            }
            // A second attempt is possible and succeeds.
            if after == State::There {
                let lease = world.leases().await;
                let clones = BTreeSet::new();
                delete(&*world.objects, &world.entry, Some(lease), Some(&clones)).await.unwrap();
                assert_eq!(world.state().await, State::Deleted);
            }
            world.tend(now() + GRACE + LATER).await;
            assert_eq!(world.state().await, State::Gone);
            let left = world.objects.list("").await.unwrap();
            assert!(left.is_empty(), "{left:?}");
        },
    )
    .await;
    assert!(changes >= 3, "{changes}");
}

#[tokio::test]
async fn a_restoration_that_is_cut_short_anywhere_has_happened_or_not() {
    for name in ["a", "b"] {
        let changes = each_crash(
            async |world| world.delete().await.unwrap(),
            async |world, objects| {
                let id = world.entry.spec.id;
                restore(objects, Some(&world.me), id, name, None).await.map(|_| ())
            },
            async |world, done| {
                let state = world.state().await;
                assert!(if done { state == State::There } else { state != State::Gone });
                // Others leave it alone for a while, and then settle it.
                world.tend(now() + LATER).await;
                assert_eq!(world.state().await, state);
                if state == State::There {
                    assert!(world.can_be_had().await);
                    // Its time being up is nothing to it.
                    world.tend(now() + GRACE + LATER).await;
                    assert_eq!(world.state().await, State::There);
                }
                let id = world.entry.spec.id;
                let entry =
                    restore(&*world.objects, Some(&world.me), id, name, None).await.unwrap();
                assert_eq!((entry.spec.name.as_str(), entry.sectors), (name, 4096));
                assert_eq!(world.state().await, State::There);
                let lease = world.leases().await;
                delete(&*world.objects, &entry, Some(lease), Some(&BTreeSet::new())).await.unwrap();
                assert_eq!(world.state().await, State::Deleted);
                world.tend(now() + GRACE + LATER).await;
                assert!(world.objects.list("").await.unwrap().is_empty());
            },
        )
        .await;
        assert!(changes >= 3, "{changes}");
    }
}

#[tokio::test]
async fn a_removal_that_is_cut_short_anywhere_is_finished() {
    let changes = each_crash(
        async |world| world.delete().await.unwrap(),
        async |world, objects| purge(objects, world.entry.spec.id).await.map(|_| ()),
        async |world, done| {
            let (list, _) = list(&*world.objects, VolumeId(0), GRACE, |_| true).await.unwrap();
            let begun = list.is_empty();
            assert!(begun || !done);
            let id = world.entry.spec.id;
            let restored = restore(&*world.objects, Some(&world.me), id, "a", None).await;
            assert_eq!(restored.is_err(), begun, "{restored:?}");
            if begun {
                world.tend(now()).await;
                assert!(world.objects.list("").await.unwrap().is_empty());
            } else {
                assert_eq!(world.state().await, State::There);
            }
        },
    )
    .await;
    assert!(changes >= 4, "{changes}");
}

#[tokio::test]
async fn what_is_gone_is_not_deleted_again() {
    let world = world().await;
    // A store that has not heard of it.
    world.delete().await.unwrap();
    assert_eq!(world.delete().await, Ok(()));
    purge(&*world.objects, world.entry.spec.id).await.unwrap();
    let other = create(&*world.objects, "a".into(), 2048, 512).await.unwrap();
    assert_eq!(world.delete().await, Err(VolumeError::NotFound));
    assert_eq!(named(&*world.objects, "a").await, Ok(Some(other)));
    assert_eq!(list(&*world.objects, VolumeId(0), GRACE, |_| true).await, Ok((vec![], false)));
}

#[tokio::test]
async fn names_that_are_taken_and_parents_that_are_gone() {
    let world = world().await;
    let parent = &world.entry.spec;
    let parents = vec![Parent { volume: parent.id, segment: 1, snapshot: VolumeId(7) }];
    let spec = VolumeSpec { id: VolumeId(9), name: "copy".into(), parents, ..parent.clone() };
    put_name(&*world.objects, &spec).await.unwrap();
    put_lease(&world.objects, &spec).await;
    let clones = BTreeSet::from([spec.id]);
    let parent_of = |clones| delete(&*world.objects, &world.entry, Some(1), clones);
    let error = parent_of(Some(&clones)).await.unwrap_err();
    assert!(error.to_string().contains("copy"), "{error}");
    assert_eq!(world.state().await, State::There);
    let clone = Entry { sectors: spec.created_sectors, spec };
    delete(&*world.objects, &clone, Some(1), Some(&BTreeSet::new())).await.unwrap();
    parent_of(Some(&clones)).await.unwrap();
    let back = async |id| restore(&*world.objects, Some(&world.me), id, "new", None).await;
    let error = back(clone.spec.id).await.unwrap_err();
    assert!(error.to_string().contains("restore that first"), "{error}");
    assert!(named(&*world.objects, "new").await.unwrap().is_none());
    let taken = create(&*world.objects, "a".into(), 2048, 512).await.unwrap();
    let old = restore(&*world.objects, Some(&world.me), world.entry.spec.id, "a", None).await;
    assert_eq!(old, Err(VolumeError::Exists));
    assert_eq!(named(&*world.objects, "a").await, Ok(Some(taken)));
    restore(&*world.objects, Some(&world.me), world.entry.spec.id, "old", None).await.unwrap();
    assert_eq!(back(clone.spec.id).await.unwrap().spec.parents, clone.spec.parents);
    // With another name the clone still holds its parent.
    let entry = catalog::load(&*world.objects).await.unwrap().entries.remove("old").unwrap();
    let error = delete(&*world.objects, &entry, Some(3), Some(&clones)).await.unwrap_err();
    assert!(error.to_string().contains("new"), "{error}");
}
