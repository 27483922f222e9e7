//! Decides which store serves a volume. It takes the lease of a volume, closes a volume for good,
//! and opens it again.

use super::{Facts, Halt, Known, Note, Procedure, failed};
use crate::block::VolumeId;
use crate::store::VolumeSpec;
use crate::store::catalog::{self, parse_number};
use crate::store::lease::{self, Lease, Step};
use crate::store::object::{GetError, PutError};
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
    /// A host wants to use it, here; in a session with that key.
    Serve(HostId, KeyId, crate::wire::link::Claim),
    /// Ask something about it; the holder of the lease can answer as well.
    Ask,
}

/// The outcome of a [`Claim`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// The volume is this process's, by the lease of that number.
    Mine {
        /// Number of the lease.
        number: u64,
        /// The former holder, if this claim took the lease just now.
        taken: Option<LeaseSource>,
    },
    /// Another store has it and answers: ask that store.
    Elsewhere(StoreId, Vec<String>),
    /// The store that has it does not let this host have it.
    Refused(AttachError),
    /// The volume does not exist any more.
    Gone,
}

/// The former holder of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseSource {
    /// From nobody, or from an earlier process of this store.
    Nobody,
    /// From a store that let go of it.
    Handed,
    /// From a store that did not answer.
    Silent,
}

/// Finds the store that has a volume, and takes the volume if it may. While it cannot read or write
/// the objects, it tries again.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Who claims it.
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
            // Another store was faster: it is the one to ask now.
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
    fn attempt(&self, facts: &mut Facts<'_>) -> Result<Option<ClaimOutcome>, Halt<String>> {
        let Claim { me, spec, purpose } = self;
        let (number, newest) = newest(facts, spec.id)?;
        let newest = match newest {
            Newest::Damaged(reason) => {
                let why = format!("volume {}: {reason}; it is taken over", spec.name);
                facts.note(Note::Error(why));
                return self.take(facts, number, LeaseSource::Silent);
            }
            Newest::Lease(lease) => Some(lease),
            Newest::None => None,
        };
        let taken = match (Lease::step(newest.as_ref(), me.id, me.incarnation), newest) {
            (Step::Gone, _) => return Ok(Some(ClaimOutcome::Gone)),
            (Step::Serve, _) if facts.round() == 0 => {
                return Ok(Some(ClaimOutcome::Mine { number, taken: None }));
            }
            // An earlier round took the lease, and could not find out whether the volume has a
            // name.
            (Step::Serve, _) => return self.confirm(facts, number, None),
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
                    (Some(Err(error)), _) => return Err(Halt::Failed(error.to_string())),
                }
            }
            _ => LeaseSource::Nobody,
        };
        self.take(facts, number, taken)
    }

    /// Takes the lease after that of a number.
    fn take(
        &self,
        facts: &mut Facts<'_>,
        number: u64,
        taken: LeaseSource,
    ) -> Result<Option<ClaimOutcome>, Halt<String>> {
        let next = number.saturating_add(1);
        if !put(facts, self.spec.id, next, &self.me.lease())? {
            return Ok(None);
        }
        self.confirm(facts, next, Some(taken))
    }

    /// Checks whether a volume still has its name after this store has taken its lease. Another
    /// store may have deleted the name, with the leases, since this one read them.
    fn confirm(
        &self,
        facts: &mut Facts<'_>,
        number: u64,
        taken: Option<LeaseSource>,
    ) -> Result<Option<ClaimOutcome>, Halt<String>> {
        if has_name(facts, &self.spec)? {
            return Ok(Some(ClaimOutcome::Mine { number, taken }));
        }
        facts.delete(&lease::key(self.spec.id, number))?.map_err(Halt::Failed)?;
        Ok(Some(ClaimOutcome::Gone))
    }
}

/// Creates a lease; false if another one has its number.
fn put(
    facts: &mut Facts<'_>,
    volume: VolumeId,
    number: u64,
    lease: &Lease,
) -> Result<bool, Halt<String>> {
    let key = lease::key(volume, number);
    let text = Bytes::from(lease.encode());
    match facts.put(&key, text.clone())? {
        Ok(()) => {}
        // It may be this store's all the same, its answer lost.
        Err(PutError::Exists) => match facts.get(&key)? {
            Ok(there) if there == text => {}
            // A damaged object is not this lease, whatever it holds.
            Ok(_) | Err(GetError::NotFound | GetError::Damaged(_)) => return Ok(false),
            Err(GetError::Failed(error)) => return Err(Halt::Failed(error)),
        },
        Err(PutError::Failed(error)) => return Err(Halt::Failed(error)),
    }
    if let Some(old) = number.checked_sub(lease::KEPT).filter(|old| *old > 0) {
        facts.discard(&lease::key(volume, old))?;
    }
    Ok(true)
}

/// The newest lease of a volume.
enum Newest {
    None,
    Lease(Lease),
    /// No store can say which store has the volume. A lease protects nothing, so this stops no
    /// store from using the volume: the log protects it.
    Damaged(String),
}

/// The newest lease of a volume and its number, 0 if there is none.
fn newest(facts: &mut Facts<'_>, volume: VolumeId) -> Result<(u64, Newest), Halt<String>> {
    let prefix = lease::prefix(volume);
    let list = facts.list(&prefix)?.map_err(Halt::Failed)?;
    let number = list.iter().filter_map(|meta| parse_number(&prefix, &meta.key)).max();
    let Some(number) = number else { return Ok((0, Newest::None)) };
    let key = lease::key(volume, number);
    match facts.get(&key)? {
        Ok(bytes) => {
            let lease = Lease::decode(&key, &bytes).map_err(|error| error.to_string());
            Ok((number, lease.map_or_else(Newest::Damaged, Newest::Lease)))
        }
        Err(GetError::Damaged(reason)) => Ok((number, Newest::Damaged(reason))),
        Err(GetError::NotFound) => {
            Err(Halt::Failed(format!("the list has {key}, but the object is missing")))
        }
        Err(GetError::Failed(error)) => Err(Halt::Failed(error)),
    }
}

/// Whether a volume still has its name.
fn has_name(facts: &mut Facts<'_>, spec: &VolumeSpec) -> Result<bool, Halt<String>> {
    let key = catalog::name_key(&spec.name);
    match facts.get(&key)? {
        Ok(bytes) => Ok(catalog::decode_spec(&key, &bytes).is_ok_and(|there| there.id == spec.id)),
        Err(GetError::NotFound) => Ok(false),
        // Its holder keeps it; no other store gets that far.
        Err(GetError::Damaged(_)) => Ok(true),
        Err(GetError::Failed(error)) => Err(Halt::Failed(error)),
    }
}

/// Looks which store has a volume, and where that store is.
#[derive(Clone, Copy, Debug)]
pub struct FindHolder(pub VolumeId);

impl Procedure for FindHolder {
    type Outcome = Result<Option<(StoreId, Vec<String>)>, String>;

    fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome> {
        let newest = Halt::caught(newest(facts, self.0))?;
        Ok(newest.map(|(_, newest)| match newest {
            Newest::Lease(Lease::Held { store, addresses, .. }) => Some((store, addresses)),
            _ => None,
        }))
    }
}

/// Decides that no store gets a volume any more, before the volume loses its name. The store with
/// the lease `number` does this.
///
/// # Errors
/// If another store has taken it meanwhile, or this store cannot write the objects.
pub(super) fn close(facts: &mut Facts<'_>, volume: VolumeId, number: u64) -> Result<(), Halt> {
    let closed = put(facts, volume, number.saturating_add(1), &Lease::Deleted);
    if Halt::caught(closed)?.map_err(failed)? {
        return Ok(());
    }
    match Halt::caught(newest(facts, volume))?.map_err(failed)? {
        // An earlier attempt to delete it got so far.
        (_, Newest::Lease(Lease::Deleted)) => Ok(()),
        _ => Err(failed("another store has just taken the volume; try again").into()),
    }
}

/// Takes the lease of a volume that [`close`] has closed, before the volume gets a name again.
///
/// # Errors
/// If this store cannot read or write the objects.
pub(super) fn reopen(
    facts: &mut Facts<'_>,
    volume: VolumeId,
    me: &LeaseHolder,
) -> Result<(), Halt> {
    match Halt::caught(newest(facts, volume))?.map_err(failed)? {
        (number, Newest::Lease(Lease::Deleted) | Newest::Damaged(_)) => {
            // If another store has been faster, it has done the same.
            let put = put(facts, volume, number.saturating_add(1), &me.lease());
            Halt::caught(put)?.map_err(failed)?;
            Ok(())
        }
        _ => Ok(()),
    }
}

/// [`close`], alone.
#[derive(Clone, Copy, Debug)]
pub struct Close {
    /// The volume.
    pub volume: VolumeId,
    /// Number of the lease by which it is this store's.
    pub number: u64,
}

impl Procedure for Close {
    type Outcome = Result<(), VolumeError>;

    fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome> {
        Halt::caught(close(facts, self.volume, self.number))
    }
}
