//! The replica of all objects: operations on it, and the end of this store if another one has taken
//! it over.

use super::completions::Completions;
use super::request::ReplyTo;
use crate::peers::Peers;
use crate::replica::{LocationNews, Replica};
use longhaul_core::block::VolumeId;
use longhaul_core::store::ReplicaDurability;
use longhaul_core::wire::link::{ReplicaOperation, StoreOperation, StoreReply, VolumeError};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Interval, MissedTickBehavior};

/// How often this store looks whether the replica is complete, in step, or taken over. The look
/// sends no request.
const TICK: Duration = Duration::from_millis(500);

/// Volumes to take from other stores at each look.
const FENCED_AT_ONCE: usize = 16;

/// The outcomes of the tasks about the replica.
pub(super) enum ReplicaDone {
    /// An operation has ended. The flag tells whether other stores have to know.
    Answered(ReplyTo, Result<StoreReply, VolumeError>, bool),
    /// Another store has taken it over, or the reason is known why replication has stopped.
    Lost(Result<String, String>),
    /// The write of the note that the replica is complete has ended.
    Built(Result<(), String>),
}

/// The actor's memory of the replica.
pub(super) struct ReplicaMonitor {
    replica: Arc<Replica>,
    tick: Interval,
    /// A write about it is under way.
    busy: bool,
    /// The store has reported why replication has stopped.
    reported: bool,
    ended: Option<String>,
    /// Volumes that their former store may still continue.
    unfenced: Vec<VolumeId>,
    fencing: BTreeSet<VolumeId>,
    done: Completions<ReplicaDone>,
}

impl ReplicaMonitor {
    pub fn new(replica: Arc<Replica>, done: Completions<ReplicaDone>) -> ReplicaMonitor {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ReplicaMonitor {
            replica,
            tick,
            busy: false,
            reported: false,
            ended: None,
            unfenced: Vec::new(),
            fencing: BTreeSet::new(),
            done,
        }
    }

    pub fn replica(&self) -> &Arc<Replica> {
        &self.replica
    }

    pub async fn tick(&mut self) {
        self.tick.tick().await;
    }

    /// Whether the engine of a volume has to take the volume from others. True once for each
    /// volume.
    pub fn take_fencing(&mut self, id: VolumeId) -> bool {
        self.fencing.remove(&id)
    }

    /// Why this store cannot go on, if so.
    pub fn ended(&self) -> Option<anyhow::Error> {
        self.ended.clone().map(anyhow::Error::msg)
    }

    /// After a takeover of this location: takes all volumes from the stores that served them
    /// before.
    pub fn take_over(&mut self, volumes: Vec<VolumeId>) {
        self.unfenced = volumes;
    }

    /// The next volumes to take.
    pub fn fence_some(&mut self) -> Vec<VolumeId> {
        let some = self.unfenced.len().saturating_sub(FENCED_AT_ONCE);
        let volumes = self.unfenced.split_off(some);
        self.fencing.extend(&volumes);
        volumes
    }

    /// The durability of a volume's puts on the replica.
    pub fn state_of(&self, id: VolumeId) -> ReplicaDurability {
        let replicated = self.replica.replicated();
        if !replicated.is_active() {
            ReplicaDurability::None
        } else if replicated.is_in_step(id) {
            ReplicaDurability::InStep
        } else {
            ReplicaDurability::Behind
        }
    }

    /// Carries out an operation on the replica.
    pub fn operate(
        &self,
        to: ReplyTo,
        operation: ReplicaOperation,
        volumes: Vec<VolumeId>,
        peers: Option<Peers>,
    ) {
        let replica = self.replica.clone();
        self.done.spawn(async move {
            let result = operate(&replica, operation, volumes, peers).await;
            let result = result.map(|()| StoreReply::Replica(replica.state()));
            let result = result.map_err(|error| VolumeError::Invalid(format!("{error:#}")));
            let tell = result.is_ok();
            ReplicaDone::Answered(to, result, tell)
        });
    }

    /// Looks whether it is complete, or taken over.
    pub fn look(&mut self) {
        if self.busy {
            return;
        }
        let replica = self.replica.clone();
        let fenced = replica.replicated().fenced().borrow().clone();
        if let Some(why) = fenced.filter(|_| !self.reported) {
            self.busy = true;
            self.done.spawn(async move {
                let lost = replica.lost(&why).await;
                ReplicaDone::Lost(lost.map_err(|error| format!("{error:#}")))
            });
        } else if replica.may_be_built() {
            self.busy = true;
            self.done.spawn(async move {
                let built = replica.built().await;
                ReplicaDone::Built(built.map_err(|error| format!("{error:#}")))
            });
        }
    }

    /// Another store seems to have taken it over, or the reason is known why replication has
    /// stopped.
    pub fn lost(&mut self, lost: Result<String, String>) {
        self.busy = false;
        match lost {
            Ok(by) => self.replaced(&by),
            Err(why) => {
                self.reported = true;
                tracing::error!("the replica: {why}");
            }
        }
    }

    /// The write of the note that it is complete has ended. Returns whether it succeeded.
    pub fn built(&mut self, built: Result<(), String>, volumes: Vec<VolumeId>) -> bool {
        self.busy = false;
        match built {
            Ok(()) => {
                if let Err(error) = self.replica.apply(volumes) {
                    tracing::warn!("the replica: {error:#}");
                }
                true
            }
            Err(why) => {
                tracing::warn!("the replica is complete, and that cannot be noted yet: {why}");
                false
            }
        }
    }

    /// The look at the location has found where volumes are served. Returns whether hosts have to
    /// hear of it.
    pub fn looked(&mut self, looked: &LocationNews) -> bool {
        match looked {
            LocationNews::Serving(changed) => *changed,
            LocationNews::Replaced(by) => {
                self.replaced(by);
                false
            }
        }
    }

    fn replaced(&mut self, by: &str) {
        self.ended = Some(format!(
            "another store has taken over the volumes in {by}: this store must not serve them any \
             more, and ends"
        ));
    }
}

async fn operate(
    replica: &Replica,
    operation: ReplicaOperation,
    volumes: Vec<VolumeId>,
    peers: Option<Peers>,
) -> anyhow::Result<()> {
    // One that goes on without repeating what it does would make the replica worthless.
    if let (ReplicaOperation::Add { .. }, Some(peers)) = (&operation, &peers) {
        for (id, addresses) in peers.list() {
            let show = StoreOperation::Replica(ReplicaOperation::Show);
            let answer = peers.operate(id, &addresses, show).await;
            if !matches!(answer, Ok(Ok(StoreReply::Replica(_)))) {
                anyhow::bail!(
                    "store {id} at {} does not answer: start it, or \
                     strike it off with `longhaul store forget`",
                    addresses.join(", ")
                );
            }
        }
    }
    match operation {
        ReplicaOperation::Show => {}
        ReplicaOperation::Add { location, in_step, standby, discard } => {
            replica.add(&location, in_step, standby, discard).await?;
        }
        ReplicaOperation::Remove => replica.remove().await?,
        ReplicaOperation::Mode { in_step } => replica.set_in_step(in_step).await?,
    }
    replica.apply(volumes)
}
