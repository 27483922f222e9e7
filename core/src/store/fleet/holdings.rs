//! The use that a store makes of its leases: the other side of a [`Claim`](super::claim::Claim).
//!
//! For each volume it knows whether the store holds the lease, whether a claim is in progress, and
//! whether another store waits for the volume. It owns no engine and no frame: its owner tells it
//! about them.

use super::claim::{ClaimOutcome, LeaseSource};
use super::failed;
use crate::block::VolumeId;
use crate::wire::link::{AttachError, StoreReply, VolumeError};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, Default)]
struct Holding {
    /// The number of this store's lease.
    lease: Option<u64>,
    claiming: bool,
    leaving: bool,
}

/// The engine of this store for a volume that another store asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeldEngine {
    /// No engine.
    None,
    /// The engine stops because a request deletes the volume.
    Deleting,
    /// An engine, and whether it lets the host at the other store have the volume.
    Open(Result<(), AttachError>),
}

/// The reaction of a store to another store's request for a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Release {
    /// It answers at once.
    Answer(Result<StoreReply, VolumeError>),
    /// Its engine has to stop. Then [`Holdings::handle_left`] gives the answer.
    Leave,
}

/// The leases of a store.
#[derive(Clone, Debug, Default)]
pub struct Holdings {
    all: BTreeMap<VolumeId, Holding>,
}

impl Holdings {
    /// The number of leases that this store holds.
    #[must_use]
    pub fn count(&self) -> usize {
        self.all.values().filter(|holding| holding.lease.is_some()).count()
    }

    /// The number of this store's lease of a volume, if it holds the lease.
    #[must_use]
    pub fn lease(&self, id: VolumeId) -> Option<u64> {
        self.all.get(&id).and_then(|holding| holding.lease)
    }

    /// The number of the lease with which this store deletes a volume, after its engine has stopped
    /// for that.
    ///
    /// # Errors
    /// If another store has taken the volume since. This store's engine may not know of the hosts
    /// and clones of the volume then.
    pub fn deleting_lease(&self, id: VolumeId) -> Result<u64, VolumeError> {
        self.lease(id).ok_or_else(|| failed("another store has just taken the volume; try again"))
    }

    /// Whether frames for a volume have to wait until a claim ends or until the store has left the
    /// volume.
    #[must_use]
    pub fn is_busy(&self, id: VolumeId) -> bool {
        self.all.get(&id).is_some_and(|holding| holding.claiming || holding.leaving)
    }

    /// Whether another store waits for the volume.
    #[must_use]
    pub fn is_leaving(&self, id: VolumeId) -> bool {
        self.all.get(&id).is_some_and(|holding| holding.leaving)
    }

    /// A claim begins.
    pub fn begin_claim(&mut self, id: VolumeId) {
        self.all.entry(id).or_default().claiming = true;
    }

    /// A claim has ended. Returns whether to drop an engine that is open here: it knows the state
    /// of the volume before another store had it.
    pub fn handle_claimed(&mut self, id: VolumeId, outcome: &ClaimOutcome) -> bool {
        let holding = self.all.entry(id).or_default();
        holding.claiming = false;
        match outcome {
            ClaimOutcome::Mine { number, taken } => {
                let before = holding.lease.replace(*number);
                taken.is_some() || before != Some(*number)
            }
            ClaimOutcome::Elsewhere(..) | ClaimOutcome::Refused(_) => {
                holding.lease = None;
                false
            }
            ClaimOutcome::Gone => false,
        }
    }

    /// Another store asks for a volume. It has read that this store holds the lease of that number.
    pub fn handle_release(&mut self, id: VolumeId, lease: u64, engine: HeldEngine) -> Release {
        let holding = self.all.entry(id).or_default();
        if holding.claiming || holding.lease.is_some_and(|number| number > lease) {
            let why = "the store is just taking the volume; try again";
            return Release::Answer(Err(failed(why)));
        }
        if holding.lease.is_none() {
            return Release::Answer(Ok(StoreReply::Released));
        }
        match engine {
            HeldEngine::None => {
                holding.lease = None;
                Release::Answer(Ok(StoreReply::Released))
            }
            HeldEngine::Deleting => {
                Release::Answer(Err(failed("the volume is being deleted; try again")))
            }
            HeldEngine::Open(Err(error)) => Release::Answer(Ok(StoreReply::Refused(error))),
            HeldEngine::Open(Ok(())) => {
                holding.leaving = true;
                Release::Leave
            }
        }
    }

    /// The engine of a volume that another store waits for has stopped. This store gives the lease
    /// up.
    pub fn handle_left(&mut self, id: VolumeId) -> Result<StoreReply, VolumeError> {
        let holding = self.all.entry(id).or_default();
        (holding.lease, holding.leaving) = (None, false);
        Ok(StoreReply::Released)
    }

    /// The volume does not exist any more.
    pub fn forget(&mut self, id: VolumeId) {
        self.all.remove(&id);
    }
}

impl LeaseSource {
    /// Whether another store had the volume before.
    #[must_use]
    pub fn is_other(self) -> bool {
        matches!(self, LeaseSource::Handed | LeaseSource::Silent)
    }
}
