//! A front thread: volumes, their clients and their link, without a lock between them.
//!
//! A host has up to `--threads` of them. The first is the process's main thread, which also accepts
//! clients and answers the admin address. Each volume lives on one thread ([`placement`]), with all
//! its connections. A connection moves there once, when its client has named the volume. Each
//! thread has a link of its own to the store, so that encryption has a core for each thread, too.
//!
//! Threads share what [`HostShared`] holds, and otherwise send each other jobs ([`fronts`]).

pub mod fronts;
pub mod placement;

pub use fronts::{FrontHandle, Fronts, Jobs, Ways};

use crate::context::HostShared;
use crate::iscsi::{IscsiPlaces, IscsiServer};
use crate::nbd::{self, NbdPlaces, NbdServer};
use crate::registry::{AttachStage, VolumeRegistry};
use crate::settings::VolumeSettings;
use crate::uplink::Router;
use crate::volume::Volume;
use anyhow::Result;
use fronts::Others;
use longhaul_base::pattern::Pattern;
use longhaul_base::units::show_bytes;
use longhaul_core::front::iscsi as target;
use longhaul_link::credential::Credential;
use longhaul_link::{Client, LinkEvent, Transport};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::Instant;

/// How long the journal may take to become stable when the drain limit is over, or was zero.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);

/// How long before the end of the wait for clients the host cuts off those that have not left.
const GOODBYE_LIMIT: Duration = Duration::from_secs(1);

/// The settings of a front thread. Those that start later begin with the newest.
#[derive(Clone)]
pub struct FrontSettings {
    /// The proof of the host's identity.
    pub credential: Credential,
    /// The only store to go to.
    pub store: Option<String>,
    /// How the link goes there.
    pub transport: Transport,
    /// Of all volumes.
    pub volumes: VolumeSettings,
    /// Names of volumes that clients may have attached.
    pub on_demand: Vec<Pattern>,
    /// The certificate for NBD clients.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Rights of NBD clients.
    pub clients: nbd::Access,
    /// The iSCSI target.
    pub target: target::Config,
    /// Rights of initiators.
    pub initiators: target::Access,
    /// Places for clients, of all threads together.
    pub places: (NbdPlaces, IscsiPlaces),
}

impl FrontSettings {
    /// Starts a link to the store.
    ///
    /// # Errors
    /// If the credential is unusable, or no thread can start.
    pub fn link(&self) -> Result<(Client, UnboundedReceiver<LinkEvent>)> {
        Client::start(self.credential.clone(), self.store.clone(), self.transport)
    }
}

/// The volumes of a front thread, and the servers of their clients.
pub struct Front {
    /// Number of the thread.
    pub number: usize,
    /// The volumes.
    pub registry: Rc<VolumeRegistry>,
    /// Their NBD clients.
    pub server: Rc<NbdServer>,
    /// Their initiators.
    pub target: Rc<IscsiServer>,
    client: Client,
    /// An operator does not want to wait for the end.
    hurry: Notify,
    ended: Notify,
}

impl Front {
    /// The front of this thread, number `number` of the host.
    pub fn start(
        (shared, ways): (&HostShared, &Ways),
        number: usize,
        settings: FrontSettings,
        (client, events): (Client, UnboundedReceiver<LinkEvent>),
    ) -> Rc<Front> {
        let FrontSettings { volumes, on_demand, tls, clients, target, initiators, .. } = settings;
        let (nbd_places, iscsi_places) = settings.places;
        let several = target.has_others;
        let router = Rc::new(Router::new(client.clone()));
        let registry = VolumeRegistry::new(shared.clone(), number, volumes, router);
        registry.set_on_demand(on_demand);
        let server = NbdServer::new(registry.clone(), tls, nbd_places);
        server.set_access(clients);
        let rights = (initiators, iscsi_places);
        let target = IscsiServer::new(registry.clone(), shared.clock, target, rights);
        if several {
            registry.set_others(Rc::new(Others { here: number, ways: ways.clone() }));
        }
        registry.on_gone({
            let target = target.clone();
            move |name, why| target.volume_gone(name, why)
        });
        registry.on_resized({
            let (server, target) = (Rc::downgrade(&server), Rc::downgrade(&target));
            move |volume, sectors| {
                if let Some(server) = server.upgrade() {
                    server.resized(volume);
                }
                if let Some(target) = target.upgrade() {
                    target.resized(volume.name(), sectors);
                }
            }
        });
        registry.count_clients({
            let (server, target) = (Rc::downgrade(&server), Rc::downgrade(&target));
            move |name| {
                let nbd = server.upgrade().map_or(0, |server| server.connections_of(name));
                nbd + target.upgrade().map_or(0, |target| target.sessions_of(name))
            }
        });
        tokio::task::spawn_local(registry.clone().run_link(events));
        tokio::task::spawn_local(target.clone().run());
        tokio::task::spawn_local(registry.clone().run_limits());
        let (hurry, ended) = (Notify::new(), Notify::new());
        Rc::new(Front { number, registry, server, target, client, hurry, ended })
    }

    /// Does the jobs of other threads until the end of [`Front::end`].
    pub async fn serve(self: Rc<Self>, mut jobs: Jobs) {
        loop {
            tokio::select! {
                job = jobs.recv() => match job {
                    Some(job) => drop(tokio::task::spawn_local(job(self.clone()))),
                    None => return,
                },
                () = self.ended.notified() => return,
            }
        }
    }

    /// Takes no more requests, finishes those in flight, and drains for up to `limit`. Then closes
    /// the link.
    pub async fn end(self: Rc<Self>, limit: Duration) {
        self.registry.stop();
        self.server.stop();
        // Stop the target before refusing requests. Then an initiator that stays still hears of it.
        self.target.stop(limit.min(SETTLE_LIMIT).saturating_sub(GOODBYE_LIMIT));
        let winding = async {
            // Otherwise a volume would stay attached at the store after an attach under way.
            let settled = Instant::now() + limit.min(SETTLE_LIMIT);
            until(settled, || self.registry.attempts() == 0).await;
            let clients = || self.server.connections() + self.target.connections();
            wind_down(&self.registry.volumes(), clients, limit).await;
        };
        tokio::select! {
            () = winding => {}
            () = self.hurry.notified() => {}
        }
        farewell(&self.registry);
        // Close before the runtime goes: the link sends its queue, and journals end their threads.
        let client = self.client.clone();
        let closed = tokio::task::spawn_blocking(move || client.close());
        // It can only have panicked, which was reported.
        let _ = closed.await;
        self.ended.notify_one();
    }

    /// [`Front::end`] is to wait no longer.
    pub fn hurry(&self) {
        self.hurry.notify_one();
    }
}

/// Finishes all requests in flight and drains, within `limit`. Then the journal still gets time to
/// make all acknowledged writes stable.
async fn wind_down(volumes: &[Rc<Volume>], clients: impl Fn() -> usize, limit: Duration) {
    let deadline = Instant::now() + limit;
    until(deadline.min(Instant::now() + SETTLE_LIMIT), || clients() == 0).await;
    for volume in volumes {
        volume.with(|now, engine| engine.handle_shutdown(now));
    }
    until(deadline, || volumes.iter().all(|volume| volume.is_detached() || volume.is_fenced()))
        .await;
    until(Instant::now() + SETTLE_LIMIT, || volumes.iter().all(|volume| volume.is_idle())).await;
}

/// Waits until `done` is true, at most to the deadline. That takes seconds, so polling is good
/// enough.
async fn until(deadline: Instant, done: impl Fn() -> bool) {
    while !done() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Logs for each volume the data that the store still lacks.
fn farewell(registry: &VolumeRegistry) {
    for volume in registry.volumes() {
        let (status, ..) = volume.status();
        let name = volume.name();
        if volume.is_detached() {
            tracing::info!(volume = name, "everything is at the store");
        } else if volume.is_fenced() && !status.memory_only {
            tracing::warn!(
                volume = name,
                "it was fenced off; {} that were not delivered are kept in the journal",
                show_bytes(status.lag_bytes)
            );
        } else if status.lag_bytes == 0 {
            tracing::info!(
                volume = name,
                "the store has everything, but did not hear that this host stops"
            );
        } else if status.memory_only {
            tracing::error!(
                volume = name,
                "{} are undelivered and lost: the volume has no journal",
                show_bytes(status.lag_bytes)
            );
        } else {
            tracing::warn!(
                volume = name,
                "{} were not delivered; they are kept in the journal and sent when this host \
                 starts again",
                show_bytes(status.lag_bytes)
            );
        }
    }
    for (name, stage) in registry.stages() {
        if let AttachStage::Trying(_) | AttachStage::Waiting(_) = stage {
            let lag = registry.kept(&name).map_or(0, |kept| kept.lag_bytes);
            if lag == 0 {
                tracing::info!(volume = name, "it was not attached");
            } else {
                tracing::warn!(
                    volume = name,
                    "it was not attached; up to {} that were not delivered are kept in the journal \
                     and sent when this host starts again",
                    show_bytes(lag)
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::null::{One, volume, volume_with};
    use crate::volume::Clock;
    use crate::volume::{Requester, Uplink};
    use bytes::Bytes;
    use longhaul_core::block::{BlockError, Range, Reply, Request, VolumeId};
    use longhaul_core::host::journal::Geometry;
    use longhaul_core::wire::link::{Frame, Lane, ToHost, ToStore};
    use std::cell::Cell;

    const GEOMETRY: Geometry = Geometry { file_bytes: 1 << 20, files: 4 };

    /// A store that takes everything and never answers.
    struct SilentStore;

    impl Uplink for SilentStore {
        fn send(&self, _: Lane, _: Frame<ToStore>) -> Option<Frame<ToHost>> {
            None
        }

        fn submit(&self) {}

        fn set_drain_urgent(&self, _: VolumeId, _: bool) {}
    }

    #[derive(Default)]
    struct Counter(Cell<usize>);

    impl Requester for Counter {
        fn reply(&self, _: u64, reply: Result<Reply, BlockError>) {
            assert_eq!(reply, Ok(Reply::Done));
            self.0.set(self.0.get() + 1);
        }

        fn flush(&self) {}

        fn mark(&self) -> bool {
            true
        }
    }

    fn write(volume: &Rc<Volume>) {
        let counter = Rc::new(Counter::default());
        let requester: Rc<dyn Requester> = counter.clone();
        let data = Bytes::from_static(&[7; 4096]);
        let write = Request::Write { range: Range::new(0, 8), data, fua: false };
        let requests = [(1, write), (2, Request::Flush)];
        volume.submit(&requester, std::time::Instant::now(), requests.into_iter());
        assert_eq!(counter.0.get(), 2, "answered by the turn that asked");
    }

    fn local(test: impl Future<Output = ()>) {
        let runtime = crate::runtime::front_runtime().unwrap();
        runtime.block_on(tokio::task::LocalSet::new().run_until(test));
    }

    #[test]
    fn draining_ends_with_the_store_having_everything() {
        local(async {
            let volume = volume("v", 2048, Clock::start(), GEOMETRY);
            let server = NbdServer::new(Rc::new(One(volume.clone())), None, NbdPlaces::default());
            write(&volume);
            let started = Instant::now();
            wind_down(
                std::slice::from_ref(&volume),
                || server.connections(),
                Duration::from_secs(60),
            )
            .await;
            assert!(started.elapsed() < Duration::from_secs(10));
            assert!(volume.is_detached());
            assert_eq!(volume.status().0.lag_bytes, 0);
        });
    }

    #[test]
    fn nothing_is_drained_from_a_volume_that_is_fenced_off() {
        local(async {
            let silent = Rc::new(SilentStore);
            let volume = volume_with("v", 2048, Clock::start(), GEOMETRY, silent);
            let server = NbdServer::new(Rc::new(One(volume.clone())), None, NbdPlaces::default());
            write(&volume);
            let fenced = ToHost::Fenced { volume: volume.attached().volume, epoch: 2 };
            volume.handle_messages(std::iter::once(fenced.into()));
            let started = Instant::now();
            wind_down(
                std::slice::from_ref(&volume),
                || server.connections(),
                Duration::from_secs(60),
            )
            .await;
            assert!(started.elapsed() < Duration::from_secs(10));
            assert!(volume.is_fenced() && !volume.is_detached());
        });
    }

    #[test]
    fn the_drain_limit_holds_and_what_is_left_is_known() {
        local(async {
            let silent = Rc::new(SilentStore);
            let volume = volume_with("v", 2048, Clock::start(), GEOMETRY, silent);
            let server = NbdServer::new(Rc::new(One(volume.clone())), None, NbdPlaces::default());
            write(&volume);
            let (started, limit) = (Instant::now(), Duration::from_millis(300));
            wind_down(std::slice::from_ref(&volume), || server.connections(), limit).await;
            let took = started.elapsed();
            assert!((limit..limit + SETTLE_LIMIT / 2).contains(&took), "{took:?}");
            assert!(!volume.is_detached() && volume.is_idle());
            // Lag counts whole records.
            assert!((4096..4300).contains(&volume.status().0.lag_bytes));
        });
    }
}
