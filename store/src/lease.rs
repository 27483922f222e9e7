//! Taking a volume's lease: reading who has it, asking that store, taking the next number.

use super::peers::{Peers, Silent};
use bytes::Bytes;
use longhaul_core::block::VolumeId;
use longhaul_core::store::VolumeSpec;
use longhaul_core::store::catalog::{self, parse_number};
use longhaul_core::store::lease::{self, Lease, Step};
use longhaul_core::wire::link::{
    AttachError, Claim, HostId, KeyId, StoreId, StoreOperation, StoreReply,
};
use longhaul_objects::{GetError, Objects, PutError};
use std::time::Duration;

/// First and longest pause before the objects are tried again.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// A process of a store, as leases name it.
#[derive(Clone, Debug)]
pub struct Holder {
    /// Which store.
    pub id: StoreId,
    /// Which process of it.
    pub incarnation: u128,
    /// Where it is reached.
    pub addresses: Vec<String>,
}

/// What a volume is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A host wants to use it, here; in a session with that key.
    Serve(HostId, KeyId, Claim),
    /// Something about it is asked for that its holder can do as well.
    Ask,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is this process's, by the lease of that number.
    Mine {
        /// Number of the lease.
        number: u64,
        /// Whether it was taken just now, and from whom.
        taken: Option<Source>,
    },
    /// Another store has it, answers, and is to be asked.
    Elsewhere(StoreId, Vec<String>),
    /// The store that has it does not let this host have it.
    Refused(AttachError),
    /// There is no such volume any more.
    Gone,
}

/// From whom a lease was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// From nobody, or from an earlier process of this store.
    Nobody,
    /// From a store that let go of it.
    Handed,
    /// From a store that did not answer.
    Silent,
}

/// Looks who has a volume, and takes it if it may. As long as the objects cannot be read or written it
/// tries on.
pub async fn claim(
    objects: &dyn Objects,
    peers: &Peers,
    me: &Holder,
    spec: &VolumeSpec,
    purpose: Purpose,
) -> Outcome {
    let mut pause = RETRY.0;
    loop {
        match attempt(objects, peers, me, spec, purpose).await {
            Ok(Some(outcome)) => return outcome,
            // Another store was faster: it is the one to ask now.
            Ok(None) => {}
            Err(error) => {
                tracing::warn!("volume {}: who has it cannot be told: {error}", spec.name);
            }
        }
        tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
        pause = (pause * 2).min(RETRY.1);
    }
}

async fn attempt(
    objects: &dyn Objects,
    peers: &Peers,
    me: &Holder,
    spec: &VolumeSpec,
    purpose: Purpose,
) -> Result<Option<Outcome>, String> {
    let (number, newest) = newest(objects, spec.id).await?;
    let newest = match newest {
        Newest::Damaged(reason) => {
            tracing::error!("volume {}: {reason}; it is taken over", spec.name);
            return take(objects, me, spec, number, Source::Silent).await;
        }
        Newest::Lease(lease) => Some(lease),
        Newest::None => None,
    };
    let taken = match (Lease::step(newest.as_ref(), me.id, me.incarnation), newest) {
        (Step::Gone, _) => return Ok(Some(Outcome::Gone)),
        (Step::Serve, _) => return Ok(Some(Outcome::Mine { number, taken: None })),
        (Step::Ask, Some(Lease::Held { store, addresses, .. })) => {
            let operation = match purpose {
                Purpose::Ask => StoreOperation::Report,
                Purpose::Serve(host, key, claim) => {
                    StoreOperation::Release { volume: spec.id, lease: number, host, key, claim }
                }
            };
            match (peers.operate(store, &addresses, operation).await, purpose) {
                (Err(Silent), _) => Source::Silent,
                (Ok(_), Purpose::Ask) => {
                    return Ok(Some(Outcome::Elsewhere(store, addresses)));
                }
                (Ok(Ok(StoreReply::Refused(error))), _) => {
                    return Ok(Some(Outcome::Refused(error)));
                }
                (Ok(Ok(_)), _) => Source::Handed,
                (Ok(Err(error)), _) => return Err(error.to_string()),
            }
        }
        _ => Source::Nobody,
    };
    take(objects, me, spec, number, taken).await
}

/// Takes the lease after that of a number.
async fn take(
    objects: &dyn Objects,
    me: &Holder,
    spec: &VolumeSpec,
    number: u64,
    taken: Source,
) -> Result<Option<Outcome>, String> {
    let next = number.saturating_add(1);
    let held =
        Lease::Held { store: me.id, incarnation: me.incarnation, addresses: me.addresses.clone() };
    if !put(objects, spec.id, next, &held).await? {
        return Ok(None);
    }
    // Its name may have been deleted, with its leases, since they were read.
    if !is_there(objects, spec).await? {
        objects.delete(&lease::key(spec.id, next)).await?;
        return Ok(Some(Outcome::Gone));
    }
    Ok(Some(Outcome::Mine { number: next, taken: Some(taken) }))
}

/// Creates a lease; false if another one has its number.
async fn put(
    objects: &dyn Objects,
    volume: VolumeId,
    number: u64,
    lease: &Lease,
) -> Result<bool, String> {
    let key = lease::key(volume, number);
    let text = Bytes::from(lease.encode());
    match objects.put(&key, vec![text.clone()]).await {
        Ok(()) => {}
        // It may be ours all the same, its answer lost.
        Err(PutError::Exists) => match objects.get(&key, None).await {
            Ok(there) if there == text => {}
            Ok(_) | Err(GetError::NotFound) => return Ok(false),
            // Whatever it is, it is not this one.
            Err(GetError::Damaged(_)) => return Ok(false),
            Err(GetError::Failed(error)) => return Err(error),
        },
        Err(PutError::Failed(error)) => return Err(error),
    }
    if let Some(old) = number.checked_sub(lease::KEPT).filter(|old| *old > 0) {
        let key = lease::key(volume, old);
        if let Err(error) = objects.delete(&key).await {
            tracing::debug!("cannot delete {key}: {error}");
        }
    }
    Ok(true)
}

/// What the newest lease of a volume is.
enum Newest {
    None,
    Lease(Lease),
    /// Nobody knows who has the volume. That protects nothing, so it keeps nobody from it: the log does.
    Damaged(String),
}

/// The newest lease of a volume and its number, 0 if there is none.
async fn newest(objects: &dyn Objects, volume: VolumeId) -> Result<(u64, Newest), String> {
    let prefix = lease::prefix(volume);
    let list = objects.list(&prefix).await?;
    let number = list.iter().filter_map(|meta| parse_number(&prefix, &meta.key)).max();
    let Some(number) = number else { return Ok((0, Newest::None)) };
    let key = lease::key(volume, number);
    match objects.get(&key, None).await {
        Ok(bytes) => {
            let lease = Lease::decode(&key, &bytes).map_err(|error| error.to_string());
            Ok((number, lease.map_or_else(Newest::Damaged, Newest::Lease)))
        }
        Err(GetError::Damaged(reason)) => Ok((number, Newest::Damaged(reason))),
        Err(GetError::NotFound) => Err(format!("{key} is in the list and not there")),
        Err(GetError::Failed(error)) => Err(error),
    }
}

/// Which store has a volume and where that is, as its newest lease says; `None` if nobody has.
///
/// # Errors
/// If the leases cannot be read.
pub async fn holder(
    objects: &dyn Objects,
    volume: VolumeId,
) -> Result<Option<(StoreId, Vec<String>)>, String> {
    Ok(match newest(objects, volume).await? {
        (_, Newest::Lease(Lease::Held { store, addresses, .. })) => Some((store, addresses)),
        _ => None,
    })
}

/// Whether a volume still has its name.
async fn is_there(objects: &dyn Objects, spec: &VolumeSpec) -> Result<bool, String> {
    let key = catalog::name_key(&spec.name);
    match objects.get(&key, None).await {
        Ok(bytes) => Ok(catalog::decode_spec(&key, &bytes).is_ok_and(|there| there.id == spec.id)),
        Err(GetError::NotFound) => Ok(false),
        // Who has it keeps it; nobody else gets that far.
        Err(GetError::Damaged(_)) => Ok(true),
        Err(GetError::Failed(error)) => Err(error),
    }
}

/// Says that nobody is to get a volume any more: before its name is deleted, by the store that has it by
/// the lease of that number.
///
/// # Errors
/// If another store has taken it meanwhile, or the objects cannot be written.
pub async fn close(objects: &dyn Objects, volume: VolumeId, number: u64) -> Result<(), String> {
    if put(objects, volume, number.saturating_add(1), &Lease::Deleted).await? {
        return Ok(());
    }
    match newest(objects, volume).await? {
        // An earlier attempt to delete it got so far.
        (_, Newest::Lease(Lease::Deleted)) => Ok(()),
        _ => Err("another store has just taken the volume; try again".to_owned()),
    }
}

/// Takes the lease of a volume of which [`close`] has said that nobody is to get it, before it has a name again.
///
/// # Errors
/// If the objects cannot be read or written.
pub async fn reopen(objects: &dyn Objects, volume: VolumeId, me: &Holder) -> Result<(), String> {
    let held =
        Lease::Held { store: me.id, incarnation: me.incarnation, addresses: me.addresses.clone() };
    // Whoever has been faster has done it.
    match newest(objects, volume).await? {
        (number, Newest::Lease(Lease::Deleted) | Newest::Damaged(_)) => {
            put(objects, volume, number.saturating_add(1), &held).await.map(|_| ())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::create;
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
        let held = Lease::Held { store: b.id, incarnation: 1, addresses: Vec::new() };
        assert!(put(&world.objects, world.spec.id, 2, &held).await.unwrap());
        assert!(close(&world.objects, world.spec.id, 1).await.unwrap_err().contains("another"));
        close(&world.objects, world.spec.id, 2).await.unwrap();
        close(&world.objects, world.spec.id, 2).await.unwrap();
        assert_eq!(world.claim(&b).await, Outcome::Gone);
        // Whoever read the leases before they went with the volume finds out by its name.
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
