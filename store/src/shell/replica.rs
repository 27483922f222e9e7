//! The second place of all objects: what is asked about it, what engines are told of it, and the end if somebody has gone
//! on there.

use super::{Asked, Outcome, Shell};
use crate::replica::Looked;
use longhaul_core::block::VolumeId;
use longhaul_core::store::{ReplicaDurability, SHELL_SESSION};
use longhaul_core::wire::link::{
    Lane, ReplicaOperation, StoreOperation, StoreReply, ToStore, VolumeError, VolumeOperation,
};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::{Interval, MissedTickBehavior};

/// How often it is looked whether it is complete, in step, or somebody else's. Nothing is asked for that.
const TICK: Duration = Duration::from_millis(500);

/// Volumes that are taken from others at each look.
const FENCED_AT_ONCE: usize = 16;

/// What the shell remembers of it.
pub(super) struct SecondPlace {
    tick: Interval,
    /// Something about it is being written down.
    busy: bool,
    /// It was said why nothing is repeated any more.
    reported: bool,
    ended: Option<String>,
    /// Volumes that whoever served them before may still go on with.
    unfenced: Vec<VolumeId>,
    fencing: BTreeSet<VolumeId>,
}

impl Default for SecondPlace {
    fn default() -> SecondPlace {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        SecondPlace {
            tick,
            busy: false,
            reported: false,
            ended: None,
            unfenced: Vec::new(),
            fencing: BTreeSet::new(),
        }
    }
}

impl SecondPlace {
    pub(super) async fn tick(&mut self) {
        self.tick.tick().await;
    }

    /// Whether the engine of a volume is to take the volume from others, which is said once.
    pub(super) fn take_fencing(&mut self, id: VolumeId) -> bool {
        self.fencing.remove(&id)
    }

    /// Why this store cannot go on, if so.
    pub(super) fn ended(&self) -> Option<anyhow::Error> {
        self.ended.clone().map(anyhow::Error::msg)
    }
}

impl Shell {
    /// The volumes that there are.
    pub(super) fn volumes(&self) -> Vec<VolumeId> {
        self.names.keys().copied().collect()
    }

    /// Something about the second place is asked.
    pub(super) fn replica_operation(&mut self, asked: Asked, operation: ReplicaOperation) {
        let keeper = self.keeper.clone();
        if operation == ReplicaOperation::Show {
            return self.reply_store(asked, Ok(StoreReply::Replica(keeper.state())));
        }
        let (volumes, outcomes) = (self.volumes(), self.outcomes.0.clone());
        let peers = self.fleet.as_ref().map(|fleet| fleet.peers.clone());
        tokio::spawn(async move {
            let done = async {
                // One that goes on without repeating what it does would make the other place worthless.
                if let (ReplicaOperation::Add { .. }, Some(peers)) = (&operation, &peers) {
                    for (id, addresses) in peers.list() {
                        let show = StoreOperation::Replica(ReplicaOperation::Show);
                        let answer = peers.operate(id, &addresses, show).await;
                        if !matches!(answer, Ok(Ok(StoreReply::Replica(_)))) {
                            anyhow::bail!(
                                "store {id} at {} does not answer, or is too old: start it, upgrade it, or strike it off \
                                 with `longhaul store forget`",
                                addresses.join(", ")
                            );
                        }
                    }
                }
                match operation {
                    ReplicaOperation::Show => {}
                    ReplicaOperation::Add { location, in_step, standby, discard } => {
                        keeper.add(&location, in_step, standby, discard).await?;
                    }
                    ReplicaOperation::Remove => keeper.remove().await?,
                    ReplicaOperation::Mode { in_step } => keeper.set_in_step(in_step).await?,
                }
                keeper.apply(volumes)?;
                anyhow::Ok(StoreReply::Replica(keeper.state()))
            };
            let result = done.await.map_err(|error| VolumeError::Invalid(format!("{error:#}")));
            let tell = result.is_ok();
            let _ = outcomes.send(Outcome::Replica(asked, result, tell));
        });
    }

    /// What was asked about it has been done, or not.
    pub(super) fn replica_answered(
        &mut self,
        asked: Asked,
        result: Result<StoreReply, VolumeError>,
        tell: bool,
    ) {
        if tell {
            self.tell_hosts();
            self.tell_stores();
        }
        self.reply_store(asked, result);
    }

    /// This location has just been gone on with: all volumes are taken from whoever served them before.
    pub fn take_over(&mut self) {
        self.second.unfenced = self.volumes();
    }

    fn fence_some(&mut self) {
        let some = self.second.unfenced.len().saturating_sub(FENCED_AT_ONCE);
        for id in self.second.unfenced.split_off(some) {
            let Some(name) = self.names.get(&id).cloned() else { continue };
            self.second.fencing.insert(id);
            let operation = VolumeOperation::Show { name };
            // Nobody waits for the answer: it is the engine that is wanted.
            let message = ToStore::Volume { request: u64::MAX, operation };
            self.admit(id, SHELL_SESSION.0, Lane::Control, message.into());
        }
    }

    /// Whether it is complete, in step, or somebody else's.
    pub(super) fn see_to_second(&mut self) {
        self.fence_some();
        self.tell_engines();
        if self.second.busy {
            return;
        }
        let (keeper, outcomes) = (self.keeper.clone(), self.outcomes.0.clone());
        let fenced = keeper.replicated().fenced().borrow().clone();
        if let Some(why) = fenced.filter(|_| !self.second.reported) {
            self.second.busy = true;
            tokio::spawn(async move {
                let lost = keeper.lost(&why).await.map_err(|error| format!("{error:#}"));
                let _ = outcomes.send(Outcome::Lost(lost));
            });
        } else if keeper.may_be_built() {
            self.second.busy = true;
            tokio::spawn(async move {
                let built = keeper.built().await.map_err(|error| format!("{error:#}"));
                let _ = outcomes.send(Outcome::Built(built));
            });
        }
    }

    /// Engines are told where what they put is.
    fn tell_engines(&mut self) {
        for id in self.engines.keys().copied().collect::<Vec<_>>() {
            let second = self.second_of(id);
            let now = self.now();
            let Some(engine) = self.engines.get_mut(&id) else { continue };
            if engine.volume.replica() != second {
                engine.volume.handle_replica(now, second);
                self.drive(id);
            }
        }
    }

    /// Where what is put of a volume is.
    pub(super) fn second_of(&self, id: VolumeId) -> ReplicaDurability {
        let replicated = self.keeper.replicated();
        if !replicated.is_active() {
            ReplicaDurability::None
        } else if replicated.is_in_step(id) {
            ReplicaDurability::InStep
        } else {
            ReplicaDurability::Behind
        }
    }

    /// Somebody has gone on there, it is said; or it has been found out why nothing is repeated.
    pub(super) fn second_lost(&mut self, lost: Result<String, String>) {
        self.second.busy = false;
        match lost {
            Ok(by) => self.replaced(&by),
            Err(why) => {
                self.second.reported = true;
                tracing::error!("the replica: {why}");
            }
        }
    }

    /// That it is complete has been written down, or not.
    pub(super) fn second_built(&mut self, built: Result<(), String>) {
        self.second.busy = false;
        match built {
            Ok(()) => {
                let volumes = self.volumes();
                if let Err(error) = self.keeper.apply(volumes) {
                    tracing::warn!("the replica: {error:#}");
                }
                self.tell_stores();
            }
            Err(why) => {
                tracing::warn!("the replica is complete, and that cannot be noted yet: {why}")
            }
        }
    }

    /// What was found in the location says where volumes are served from.
    pub(super) fn looked_at_site(&mut self, looked: &Looked) {
        match looked {
            Looked::Serving(true) => self.tell_hosts(),
            Looked::Serving(false) => {}
            Looked::Replaced(by) => self.replaced(by),
        }
    }

    fn replaced(&mut self, by: &str) {
        self.second.ended = Some(format!(
            "somebody has gone on with the volumes in {by}: this store must not serve them any more, and ends"
        ));
    }
}
