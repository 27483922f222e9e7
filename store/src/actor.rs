//! The store service: one actor that owns all sessions and volumes of the process.
//!
//! The actor routes. Each of its children owns a part of the state, and none of them knows the
//! actor. A child takes typed inputs. Its outputs are return values, queues that the actor polls,
//! and completions of its own type ([`event::TaskDone`]). A request passes the stages of the
//! pipeline ([`handle::pipeline`]) in one order, and every answer leaves through
//! [`sessions::Sessions::send`].

mod completions;
mod damage;
mod directory;
mod engine_task;
mod engines;
mod event;
mod fleet;
mod handle;
mod meter;
mod operation;
mod refusal;
mod repair;
mod replica;
mod request;
mod routes;
mod sessions;
mod stage;

pub use fleet::{Fleet, addresses};

use super::audit::Audit;
use super::catalog::Catalog;
use super::replica::Replica;
use super::scrub::Scrub;
use super::view::Question;
use completions::Completions;
use damage::DamageReports;
use directory::Directory;
use engine_task::Services;
use engines::Engines;
use event::TaskDone;
use fleet::FleetService;
use longhaul_core::block::VolumeId;
use longhaul_core::store::Config;
use longhaul_link::Listener;
use longhaul_link::credential::{Issued, Own};
use longhaul_objects::Objects;
use meter::Meter;
use operation::Operations;
use operation::clones::Clones;
use operation::jobs::CatalogJobs;
use operation::lists::VolumeLists;
use operation::map_diff::MapDiffs;
use operation::own_queries::OwnQueries;
use operation::tenants::TenantOperations;
use operation::trash::Trash;
use repair::Repairs;
use replica::ReplicaMonitor;
use routes::Routes;
use sessions::Sessions;
use stage::audit::AuditRecorder;
use stage::ownership::Ownership;
use stage::quota::{self, Quotas};
use stage::rates::RateLimits;
use stage::scope::TenantScope;
use stage::snapshots::SnapshotNames;
use stage::{HeldDrains, Stages, UnknownVolumes};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Interval;

/// How often to look for engines that nobody needs: one goes after one to two of these. A guess:
/// longer than the pause between an operator's commands.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);

/// The store's one owner.
pub struct StoreActor {
    sessions: Sessions,
    directory: Directory,
    engines: Engines,
    stages: Stages,
    operations: Operations,
    fleet: FleetService,
    replica: ReplicaMonitor,
    repairs: Repairs,
    damage: DamageReports,
    objects: Arc<dyn Objects>,
    meter: Meter,
    pub(super) inputs: Inputs,
}

/// The inputs of the actor, besides its listener.
pub(super) struct Inputs {
    done: mpsc::UnboundedReceiver<TaskDone>,
    questions: mpsc::Receiver<Question>,
    /// When to look for engines to close, and after much else.
    pub(super) look: Interval,
    /// When to look how much tenants store.
    look_for_room: Interval,
    /// When to remind hosts that are to leave.
    remind: Interval,
}

/// A store's knowledge of its volumes at the start, and the places to note changes of them.
pub struct Initial {
    /// All volumes by name.
    pub catalog: Catalog,
    /// Deleted volumes.
    pub deleted: Vec<VolumeId>,
    /// How long the data of these stays.
    pub delete_grace: Duration,
    /// The audit log.
    pub audit: Audit,
    /// Known damage.
    pub scrub: Scrub,
    /// The accepted certificates and their grants.
    pub issued: Arc<Issued>,
    /// The certificate of this store.
    pub own: Arc<Own>,
}

impl StoreActor {
    /// Builds the actor from these parts.
    pub fn new(
        listener: Listener,
        objects: Arc<dyn Objects>,
        initial: Initial,
        questions: mpsc::Receiver<Question>,
        config: Config,
        fleet: Option<Fleet>,
        replica: Arc<Replica>,
    ) -> StoreActor {
        let Initial { catalog, deleted, delete_grace, audit, scrub, issued, own } = initial;
        let (sender, done) = mpsc::unbounded_channel::<TaskDone>();
        let (scope, recorder) = (TenantScope::new(issued), AuditRecorder::new(audit));
        let shared = || objects.clone();
        let member = fleet.as_ref().map(|fleet| (&fleet.me, &fleet.peers));
        let stages = Stages {
            unknown: UnknownVolumes::default(),
            quotas: Quotas::new(shared(), Completions::new(&sender)),
            rates: RateLimits::new(shared(), Completions::new(&sender)),
            drains: HeldDrains::default(),
            snapshots: SnapshotNames::new(shared(), Completions::new(&sender)),
            ownership: Ownership::new(member, shared(), Completions::new(&sender)),
        };
        let me = fleet.as_ref().map(|fleet| fleet.me.clone());
        let (meter, routes) = (Meter::new(), Routes::default());
        let (passed, metered) = (routes.clone(), meter.clone());
        listener.set_shortcut(Box::new(move |session, lane, frame| {
            passed.pass(&metered, session, lane, frame)
        }));
        let out = listener.sender();
        let services = Services {
            objects: shared(),
            send: Arc::new(move |session, lane, frame| out.send(session, lane, frame)),
            meter: meter.clone(),
            attend: Completions::new(&sender),
        };
        let schedules = Completions::new(&sender);
        let engines = Engines::new(config, listener.runtimes(), routes, services, schedules);
        let trash = Trash::new((delete_grace, deleted), me, shared(), Completions::new(&sender));
        let operations = Operations {
            jobs: CatalogJobs::new(shared(), Completions::new(&sender)),
            clones: Clones::new(shared(), Completions::new(&sender)),
            trash,
            lists: VolumeLists::new(shared(), Completions::new(&sender)),
            diffs: MapDiffs::new(Completions::new(&sender)),
            queries: OwnQueries::default(),
            tenants: TenantOperations::new(shared(), Completions::new(&sender)),
        };
        StoreActor {
            sessions: Sessions::new(listener, scope, recorder, Completions::new(&sender)),
            directory: Directory::new(catalog),
            engines,
            stages,
            operations,
            fleet: FleetService::new(fleet, own, shared(), Completions::new(&sender)),
            repairs: Repairs::new(replica.repair().clone(), Completions::new(&sender)),
            replica: ReplicaMonitor::new(replica, Completions::new(&sender)),
            damage: DamageReports::new(scrub),
            objects,
            meter,
            inputs: Inputs {
                done,
                questions,
                look: tokio::time::interval(LOOK_INTERVAL),
                look_for_room: tokio::time::interval(quota::ROOM_INTERVAL),
                remind: tokio::time::interval(fleet::REMIND),
            },
        }
    }

    /// The configuration of engines that open from now on.
    #[cfg(test)]
    pub(super) fn config(&mut self) -> &mut Config {
        &mut self.engines.config
    }
}
