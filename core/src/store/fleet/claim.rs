//! Decides which store serves a volume. It takes the lease of a volume, closes a volume for good,
//! and opens it again.

use super::records::is_gone;
use super::{Facts, Halt, Known, Note, Procedure, failed};
use crate::block::VolumeId;
use crate::store::VolumeSpec;
use crate::store::catalog::{self, parse_number};
use crate::store::lease::{self, Lease, Step};
use crate::store::object::{GetError, PutError, StorageError};
use crate::wire::link::{
    AttachError, HostId, KeyId, StoreId, StoreOperation, StoreReply, VolumeError,
};
use bytes::Bytes;
use std::time::Duration;

/// First and longest pause before a claim begins anew.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// A process of a store, as leases name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseHolder {
    /// Which store.
    pub id: StoreId,
    /// The process of the store.
    pub incarnation: u128,
    /// The addresses of the store.
    pub addresses: Vec<String>,
}

impl LeaseHolder {
    fn lease(&self) -> Lease {
        let LeaseHolder { id, incarnation, addresses } = self.clone();
        Lease::Held { store: id, incarnation, addresses }
    }
}

/// The purpose of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeasePurpose {
    /// A host wants to use the volume at this store: the host, the key of its session, and its
    /// claim.
    Serve(HostId, KeyId, crate::wire::link::Claim),
    /// A request about the volume. The holder of the lease can answer it as well.
    Ask,
}

/// The outcome of a [`Claim`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// This process holds the lease of the volume.
    Mine {
        /// Number of the lease.
        number: u64,
        /// The former holder. `None` if the last round of the claim found this process as the
        /// holder.
        taken: Option<LeaseSource>,
    },
    /// Another store holds the lease and answers: its identity and its addresses.
    Elsewhere(StoreId, Vec<String>),
    /// The holder of the lease refuses to release the volume to this host.
    Refused(AttachError),
    /// The volume does not exist any more.
    Gone,
}

/// The former holder of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseSource {
    /// No store, or an earlier process of this store.
    Nobody,
    /// A store that released the volume.
    Handed,
    /// A store that did not answer, or a store unknown because of a damaged lease.
    Silent,
}

/// Finds the store that holds the lease of a volume, and takes the lease if it may. After a failure
/// of the location or an error of another store, it tries again.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The process that claims the volume.
    pub me: LeaseHolder,
    /// The volume.
    pub spec: VolumeSpec,
    /// The purpose of the claim.
    pub purpose: LeasePurpose,
}

impl Procedure for Claim {
    type Outcome = ClaimOutcome;

    fn decide(&self, facts: &mut Facts<'_>) -> Known<ClaimOutcome> {
        match Halt::caught(self.attempt(facts))? {
            Ok(Some(outcome)) => return Ok(outcome),
            // Another store has created that lease first. The next round asks that store.
            Ok(None) => {}
            Err(error) => {
                let name = &self.spec.name;
                let why = format!("volume {name}: its store is unknown: {error}");
                facts.note(Note::Warning(why));
            }
        }
        let pause = RETRY.0.saturating_mul(1 << facts.round().min(16)).min(RETRY.1);
        facts.begin_again(pause)
    }
}

impl Claim {
    fn attempt(&self, facts: &mut Facts<'_>) -> Result<Option<ClaimOutcome>, Halt<StorageError>> {
        let Claim { me, spec, purpose } = self;
        let (numbers, newest) = newest_and_older(facts, spec.id)?;
        let number = numbers.last().copied().unwrap_or_default();
        let newest = match newest {
            Newest::Damaged(reason) => {
                let why = format!("volume {}: {reason}; it is taken over", spec.name);
                facts.note(Note::Error(why));
                return self.take(facts, &numbers, LeaseSource::Silent);
            }
            Newest::Lease(lease) => Some(lease),
            Newest::None => None,
        };
        let taken = match (Lease::step(newest.as_ref(), me.id, me.incarnation), newest) {
            (Step::Gone, _) => return Ok(Some(ClaimOutcome::Gone)),
            (Step::Serve, _) if facts.round() == 0 => {
                return Ok(Some(ClaimOutcome::Mine { number, taken: None }));
            }
            // An earlier round may have taken the lease and failed before it saw the name.
            (Step::Serve, _) => {
                remove_old(facts, spec.id, &numbers, number)?;
                return self.confirm(facts, number, None);
            }
            (Step::Ask, Some(Lease::Held { store, addresses, .. })) => {
                let operation = match *purpose {
                    LeasePurpose::Ask => StoreOperation::Report,
                    LeasePurpose::Serve(host, key, claim) => {
                        StoreOperation::Release { volume: spec.id, lease: number, host, key, claim }
                    }
                };
                match (facts.peer(store, &addresses, operation)?, purpose) {
                    (None, _) => LeaseSource::Silent,
                    (Some(_), LeasePurpose::Ask) => {
                        return Ok(Some(ClaimOutcome::Elsewhere(store, addresses)));
                    }
                    (Some(Ok(StoreReply::Refused(error))), _) => {
                        return Ok(Some(ClaimOutcome::Refused(error)));
                    }
                    (Some(Ok(_)), _) => LeaseSource::Handed,
                    (Some(Err(error)), _) => {
                        return Err(Halt::Failed(StorageError::unavailable(error.to_string())));
                    }
                }
            }
            _ => LeaseSource::Nobody,
        };
        self.take(facts, &numbers, taken)
    }

    /// Takes the next lease. `numbers` are those of all leases, in order. Returns `None` if another
    /// store has created that lease.
    fn take(
        &self,
        facts: &mut Facts<'_>,
        numbers: &[u64],
        taken: LeaseSource,
    ) -> Result<Option<ClaimOutcome>, Halt<StorageError>> {
        let next = numbers.last().map_or(1, |number| number.saturating_add(1));
        if !put(facts, self.spec.id, next, &self.me.lease())? {
            return Ok(None);
        }
        remove_old(facts, self.spec.id, numbers, next)?;
        self.confirm(facts, next, Some(taken))
    }

    /// Checks whether a volume still has its name after this store has taken its lease. Another
    /// store may have deleted the name and the leases since this one read them. This removes the
    /// new lease if the data is gone, too.
    ///
    /// A deleted volume keeps the lease. Without it, a slow store could take a lease of that number
    /// after a restoration, although a newer one exists.
    fn confirm(
        &self,
        facts: &mut Facts<'_>,
        number: u64,
        taken: Option<LeaseSource>,
    ) -> Result<Option<ClaimOutcome>, Halt<StorageError>> {
        if has_name(facts, &self.spec)? {
            return Ok(Some(ClaimOutcome::Mine { number, taken }));
        }
        match Halt::caught(is_gone(facts, self.spec.id))? {
            Ok(true) => {
                facts.delete(&lease::key(self.spec.id, number))?.map_err(Halt::Failed)?;
            }
            Err(error @ VolumeError::Store(_)) => {
                return Err(Halt::Failed(StorageError::unavailable(error.to_string())));
            }
            // A damaged record keeps the data.
            Ok(false) | Err(_) => {}
        }
        Ok(Some(ClaimOutcome::Gone))
    }
}

/// Creates a lease. Returns false if another lease has this number.
fn put(
    facts: &mut Facts<'_>,
    volume: VolumeId,
    number: u64,
    lease: &Lease,
) -> Result<bool, Halt<StorageError>> {
    let key = lease::key(volume, number);
    let text = Bytes::from(lease.encode());
    match facts.put(&key, text.clone())? {
        Ok(()) => {}
        // If the answer to an earlier put got lost, this store's own lease is there.
        Err(PutError::Exists) => match facts.get(&key)? {
            Ok(there) if there == text => {}
            // A damaged object counts as another lease.
            Ok(_) | Err(GetError::NotFound | GetError::Damaged(_)) => return Ok(false),
            Err(GetError::Failed(error)) => return Err(Halt::Failed(error)),
        },
        Err(PutError::Failed(error)) => return Err(Halt::Failed(error)),
    }
    Ok(true)
}

/// Removes all leases but the [`lease::KEPT`] up to `newest`, also those that earlier claims failed
/// to remove. `numbers` are those of the leases that were listed.
fn remove_old(facts: &mut Facts<'_>, volume: VolumeId, numbers: &[u64], newest: u64) -> Known<()> {
    for old in numbers.iter().filter(|old| old.saturating_add(lease::KEPT) <= newest) {
        facts.discard(&lease::key(volume, *old))?;
    }
    Ok(())
}

/// The newest lease of a volume.
enum Newest {
    None,
    Lease(Lease),
    /// The damage of the newest lease. Its holder is unknown, and any store may take the volume:
    /// the log protects the data.
    Damaged(String),
}

/// The newest lease of a volume and its number, 0 if there is none.
fn newest(facts: &mut Facts<'_>, volume: VolumeId) -> Result<(u64, Newest), Halt<StorageError>> {
    let (numbers, newest) = newest_and_older(facts, volume)?;
    Ok((numbers.last().copied().unwrap_or_default(), newest))
}

/// The numbers of all leases of a volume, in order, and the newest lease.
fn newest_and_older(
    facts: &mut Facts<'_>,
    volume: VolumeId,
) -> Result<(Vec<u64>, Newest), Halt<StorageError>> {
    let prefix = lease::prefix(volume);
    let list = facts.list(&prefix)?.map_err(Halt::Failed)?;
    let mut numbers: Vec<u64> =
        list.iter().filter_map(|meta| parse_number(&prefix, &meta.key)).collect();
    numbers.sort_unstable();
    let Some(&number) = numbers.last() else { return Ok((numbers, Newest::None)) };
    let key = lease::key(volume, number);
    match facts.get(&key)? {
        Ok(bytes) => {
            let lease = Lease::decode(&key, &bytes).map_err(|error| error.to_string());
            Ok((numbers, lease.map_or_else(Newest::Damaged, Newest::Lease)))
        }
        Err(GetError::Damaged(reason)) => Ok((numbers, Newest::Damaged(reason))),
        Err(GetError::NotFound) => {
            let why = format!("the list has {key}, but the object is missing");
            Err(Halt::Failed(StorageError::unavailable(why)))
        }
        Err(GetError::Failed(error)) => Err(Halt::Failed(error)),
    }
}

/// Whether a volume still has its name.
fn has_name(facts: &mut Facts<'_>, spec: &VolumeSpec) -> Result<bool, Halt<StorageError>> {
    let key = catalog::name_key(&spec.name);
    match facts.get(&key)? {
        Ok(bytes) => Ok(catalog::decode_spec(&key, &bytes).is_ok_and(|there| there.id == spec.id)),
        Err(GetError::NotFound) => Ok(false),
        // Only a store that read the description before the damage gets here. It keeps the volume.
        Err(GetError::Damaged(_)) => Ok(true),
        Err(GetError::Failed(error)) => Err(Halt::Failed(error)),
    }
}

/// Finds the store that holds the lease of a volume, and its addresses.
#[derive(Clone, Copy, Debug)]
pub struct FindHolder(pub VolumeId);

impl Procedure for FindHolder {
    type Outcome = Result<Option<(StoreId, Vec<String>)>, StorageError>;

    fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome> {
        let newest = Halt::caught(newest(facts, self.0))?;
        Ok(newest.map(|(_, newest)| match newest {
            Newest::Lease(Lease::Held { store, addresses, .. }) => Some((store, addresses)),
            _ => None,
        }))
    }
}

/// Closes a volume: creates a last lease, after which no store takes one. The store with the lease
/// `number` does this before it deletes the name.
///
/// # Errors
/// If another store has taken it meanwhile, or this store cannot write the objects.
pub(super) fn close(facts: &mut Facts<'_>, volume: VolumeId, number: u64) -> Result<(), Halt> {
    let closed = put(facts, volume, number.saturating_add(1), &Lease::Deleted);
    if Halt::caught(closed)?.map_err(failed)? {
        return Ok(());
    }
    let newest = Halt::caught(newest(facts, volume))?.map_err(failed)?;
    if closes(&newest, number) { Ok(()) } else { Err(overtaken()) }
}

/// Fails if another store has taken a volume since the lease `number`, or this store cannot read
/// the leases. An earlier attempt to delete the volume may have closed it.
pub(super) fn check_held(facts: &mut Facts<'_>, volume: VolumeId, number: u64) -> Result<(), Halt> {
    let newest = Halt::caught(newest(facts, volume))?.map_err(failed)?;
    if newest.0 == number || closes(&newest, number) { Ok(()) } else { Err(overtaken()) }
}

/// Whether the newest lease comes right after `number`, and closes the volume. A later closing
/// lease is that of a store that has taken the volume since. An operator may have restored the
/// volume after that.
fn closes((newest, lease): &(u64, Newest), number: u64) -> bool {
    *newest == number.saturating_add(1) && matches!(lease, Newest::Lease(Lease::Deleted))
}

fn overtaken() -> Halt {
    failed("another store has just taken the volume; try again").into()
}

/// Takes the lease of a closed volume that has a name again. Returns the number of the lease.
/// Returns `None` if the volume is not closed, or another store was faster.
///
/// # Errors
/// If this store cannot read or write the objects.
pub(super) fn reopen(
    facts: &mut Facts<'_>,
    volume: VolumeId,
    me: &LeaseHolder,
) -> Result<Option<u64>, Halt> {
    let found = Halt::caught(newest_and_older(facts, volume))?;
    let (numbers, newest) = found.map_err(failed)?;
    if !matches!(newest, Newest::Lease(Lease::Deleted) | Newest::Damaged(_)) {
        return Ok(None);
    }
    let number = numbers.last().map_or(1, |number| number.saturating_add(1));
    let put = put(facts, volume, number, &me.lease());
    if !Halt::caught(put)?.map_err(failed)? {
        // Another store has reopened the volume.
        return Ok(None);
    }
    remove_old(facts, volume, &numbers, number)?;
    Ok(Some(number))
}

/// [`close`] as a procedure of its own.
#[derive(Clone, Copy, Debug)]
pub struct Close {
    /// The volume.
    pub volume: VolumeId,
    /// The number of this store's lease.
    pub number: u64,
}

impl Procedure for Close {
    type Outcome = Result<(), VolumeError>;

    fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome> {
        Halt::caught(close(facts, self.volume, self.number))
    }
}
