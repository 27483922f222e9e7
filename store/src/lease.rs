//! The leases of volumes. [`longhaul_core::store::fleet::claim`] decides.

use super::drive::drive;
use super::peers::Peers;
use longhaul_core::block::VolumeId;
use longhaul_core::store::VolumeSpec;
use longhaul_core::store::fleet::claim;
use longhaul_core::wire::link::StoreId;
use longhaul_objects::{Objects, StorageError};

pub use claim::{
    ClaimOutcome as Outcome, LeaseHolder as Holder, LeasePurpose as Purpose, LeaseSource as Source,
};

/// Looks up the holder of a volume's lease, and takes the lease if allowed. Repeats this as long as
/// reads and writes of objects fail.
pub async fn claim(
    objects: &dyn Objects,
    peers: &Peers,
    me: &Holder,
    spec: &VolumeSpec,
    purpose: Purpose,
) -> Outcome {
    let claim = claim::Claim { me: me.clone(), spec: spec.clone(), purpose };
    drive(claim, objects, Some(peers)).await
}

/// The store that holds a volume's lease and its addresses, by the newest lease; `None` if nobody
/// does.
///
/// # Errors
/// If the leases are unreadable.
pub async fn holder(
    objects: &dyn Objects,
    volume: VolumeId,
) -> Result<Option<(StoreId, Vec<String>)>, StorageError> {
    drive(claim::FindHolder(volume), objects, None).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::create;
    use longhaul_core::store::catalog;
    use longhaul_core::store::fleet::claim::Close;
    use longhaul_core::store::lease;
    use longhaul_core::wire::link::{Claim, HostId, KeyId};
    use longhaul_link::credential;
    use longhaul_objects::LocalObjects;

    struct World {
        _dir: tempfile::TempDir,
        objects: LocalObjects,
        peers: Peers,
        spec: VolumeSpec,
    }

    async fn world() -> World {
        let dir = tempfile::tempdir().unwrap();
        let objects = LocalObjects::open(dir.path()).unwrap();
        let identity = credential::prepare(dir.path(), &[], "").unwrap();
        let spec = create(&objects, "v".into(), 2048, 512).await.unwrap();
        World { _dir: dir, objects, peers: Peers::new(identity.own), spec }
    }

    fn holder(id: u128, incarnation: u128) -> Holder {
        // Nobody listens there.
        Holder { id: StoreId(id), incarnation, addresses: vec!["127.0.0.1:1".into()] }
    }

    const SERVE: Purpose =
        Purpose::Serve(HostId(1), KeyId::NONE, Claim::Attach { journal: None, take_over: false });

    impl World {
        async fn claim(&self, me: &Holder) -> Outcome {
            claim(&self.objects, &self.peers, me, &self.spec, SERVE).await
        }
    }

    fn taken(number: u64, from: Source) -> Outcome {
        Outcome::Mine { number, taken: Some(from) }
    }

    #[tokio::test]
    async fn a_lease_is_taken_once_and_from_the_silent() {
        let world = world().await;
        let (a, b) = (holder(0xa, 1), holder(0xb, 1));
        assert_eq!(world.claim(&a).await, taken(1, Source::Nobody));
        assert_eq!(world.claim(&a).await, Outcome::Mine { number: 1, taken: None });
        // Started anew it asks nobody.
        let a = Holder { incarnation: 2, ..a };
        assert_eq!(world.claim(&a).await, taken(2, Source::Nobody));
        assert_eq!(world.claim(&b).await, taken(3, Source::Silent));
        assert_eq!(world.claim(&b).await, Outcome::Mine { number: 3, taken: None });
        assert_eq!(world.claim(&a).await, taken(4, Source::Silent));
    }

    #[tokio::test]
    async fn of_two_at_once_one_gets_it() {
        let world = world().await;
        let (a, b) = (holder(0xa, 1), holder(0xb, 1));
        let (first, second) = tokio::join!(world.claim(&a), world.claim(&b));
        let numbers = |outcome| match outcome {
            Outcome::Mine { number, .. } => number,
            other => panic!("{other:?}"),
        };
        // Each finds the other one silent, so that they have it one after the other.
        assert_ne!(numbers(first), numbers(second));
    }

    #[tokio::test]
    async fn nobody_gets_what_is_deleted() {
        let world = world().await;
        let (a, b) = (holder(0xa, 1), holder(0xb, 1));
        assert_eq!(world.claim(&a).await, taken(1, Source::Nobody));
        // Another one took it: it may have a host by now.
        assert_eq!(world.claim(&b).await, taken(2, Source::Silent));
        let close = |number| drive(Close { volume: world.spec.id, number }, &world.objects, None);
        assert!(close(1).await.unwrap_err().to_string().contains("another"));
        close(2).await.unwrap();
        close(2).await.unwrap();
        assert_eq!(world.claim(&b).await, Outcome::Gone);
        // If a store read the leases before they went with the volume, it learns of the end by the
        // name.
        for meta in world.objects.list("v/").await.unwrap() {
            world.objects.delete(&meta.key).await.unwrap();
        }
        world.objects.delete(&catalog::name_key("v")).await.unwrap();
        assert_eq!(world.claim(&a).await, Outcome::Gone);
        assert!(world.objects.list("v/").await.unwrap().is_empty(), "nothing is left");
    }

    #[tokio::test]
    async fn old_leases_go() {
        let world = world().await;
        for process in 0..u128::from(lease::KEPT) + 4 {
            world.claim(&holder(0xa, process)).await;
        }
        let left = world.objects.list(&lease::prefix(world.spec.id)).await.unwrap();
        assert_eq!(left.len() as u64, lease::KEPT);
    }
}
