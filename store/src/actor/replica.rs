//! The replica of all objects: what is asked about it, and the end of this store if another one has
//! gone on with it.

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

/// How often this store looks whether the replica is complete, in step, or taken over. Nothing is
/// asked for that.
const TICK: Duration = Duration::from_millis(500);

/// Volumes that are taken from others at each look.
const FENCED_AT_ONCE: usize = 16;

/// What became of the tasks about the replica.
pub(super) enum ReplicaDone {
    /// What was asked about it is done, or not; whether other stores are to know.
    Answered(ReplyTo, Result<StoreReply, VolumeError>, bool),
    /// Somebody has gone on there, or it has been found why nothing is repeated.
    Lost(Result<String, String>),
    /// It has been noted that the replica is complete, or not.
    Built(Result<(), String>),
}

/// What the actor remembers of the replica.
pub(super) struct ReplicaMonitor {
    replica: Arc<Replica>,
    tick: Interval,
    /// Something about it is being written down.
    busy: bool,
    /// It was said why nothing is repeated any more.
    reported: bool,
    ended: Option<String>,
    /// Volumes that whoever served them before may still go on with.
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

    /// Whether the engine of a volume is to take the volume from others, which is said once.
    pub fn take_fencing(&mut self, id: VolumeId) -> bool {
        self.fencing.remove(&id)
    }

    /// Why this store cannot go on, if so.
    pub fn ended(&self) -> Option<anyhow::Error> {
        self.ended.clone().map(anyhow::Error::msg)
    }

    /// This location has just been gone on with: all volumes are taken from whoever served them
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

    /// Where what is put of a volume is.
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

    /// Something about the replica is asked.
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

    /// Somebody has gone on there, it is said; or it has been found out why nothing is repeated.
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

    /// That it is complete has been written down, or not. Says whether it has.
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

    /// What was found in the location says where volumes are served from. Says whether hosts are to
    /// be told.
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
            "somebody has gone on with the volumes in {by}: this store must not serve them any \
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
                    "store {id} at {} does not answer, or is too old: start it, upgrade it, or \
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
