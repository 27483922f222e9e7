//! `longhaul host`: from the command line to the last drained byte.

use super::accepted::RootArgumentError;
use super::admin;
use super::args::{DurabilityArg, HostArgs, OnJournalFailureArg};
use super::encryption::EncryptionPolicy;
use super::iscsi::{self, ConfiguredAccess, InitiatorRights};
use super::nbd::{self, Address, ClientRights, Listener, NbdServer, tls_config};
use super::registry::{AttachStage, VolumeRegistry};
use super::report::{self, AdminRequest};
use super::settings::{Limits, VolumeSettings};
use super::state::{JournalShape, StateDir};
use super::traces::check_name;
use super::uplink::Router;
use super::volume::{Clock, Volume};
use anyhow::{Context as _, Result, bail};
use longhaul_base::Usage;
use longhaul_base::reload::{self, Read, Reload, Settings};
use longhaul_base::service::{Stop, notify, raise_open_files};
use longhaul_base::units::show_bytes;
use longhaul_core::host::{Durability, OnJournalFailure};
use longhaul_link::Client;
use longhaul_link::credential::{Credential, tenant_of};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// How long the journal may take to become stable when the drain limit is over, or was zero.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);

/// How long before the end of the wait for clients the host cuts off those that have not left.
const GOODBYE_LIMIT: Duration = Duration::from_secs(1);

/// How long systemd waits for the first attempt to connect to a store. It takes seconds for each
/// address that does not answer. The limit is well within systemd's default for a start, 90 s.
const READY_LIMIT: Duration = Duration::from_secs(30);

/// Flags that a reload takes up.
const RELOADED: [&str; 7] = [
    "--attach-on-demand",
    "--drain-rate",
    "--nbd-tls-ca",
    "--nbd-tls-cert",
    "--nbd-tls-key",
    "--readahead-rate",
    "--volume",
];

/// Runs a host until a signal stops it. `read` reads the command line with its config file, now and
/// at each SIGHUP; the `[iscsi]` table of that file has no flag.
///
/// # Errors
/// If it cannot start: the state directory, credential, addresses or certificates are not usable.
pub fn run(read: &Read<HostArgs>) -> Result<()> {
    raise_open_files();
    super::runtime::front_runtime()?.block_on(tokio::task::LocalSet::new().run_until(serve(read)))
}

async fn serve(read: &Read<HostArgs>) -> Result<()> {
    let mut stop = Stop::listen()?;
    let reload = Reload::listen()?;
    let line = read()?;
    let (args, config, settings) = (&line.args, line.config.as_deref(), line.settings);
    if args.write_through && !args.roots.expect_root.is_empty() {
        bail!(Usage(
            "--expect-root needs a version table, and --write-through keeps none: leave one of \
             them out"
                .into()
        ));
    }
    let expected =
        args.roots.expect_root.iter().cloned().map(|one| one.named(&args.volume_args.volumes));
    let expect_root = expected
        .collect::<Result<_, _>>()
        .map_err(|error: RootArgumentError| Usage(error.to_string()))?;
    let mut credential = Credential::load(&args.credential)?;
    let volume_settings = VolumeSettings {
        journal: JournalShape::from_size(args.journal_size)?,
        cache_bytes: longhaul_base::cache_file::check_size(args.cache_size)?,
        durability: match args.durability {
            DurabilityArg::Host => Durability::Host,
            DurabilityArg::Store => Durability::Store,
            DurabilityArg::Replica => Durability::Replica,
        },
        on_journal_failure: match args.on_journal_failure {
            OnJournalFailureArg::Continue => OnJournalFailure::Continue,
            OnJournalFailureArg::Stop => OnJournalFailure::Stop,
        },
        write_through: args.write_through,
        compression: args.compression,
        accept_rollback: args.roots.accept_rollback.clone(),
        expect_root,
        locks: EncryptionPolicy::load(&args.keys)?.of_tenant(tenant_of(&credential.serial)),
        // Without a journal, read nothing ahead by default, so that measurements show the plain
        // distance.
        readahead_bytes: args.readahead.unwrap_or(if args.write_through { 0 } else { 32 << 20 }),
        limits: Limits {
            drain: args.rates.drain_rate.clone(),
            readahead: args.rates.readahead_rate.clone(),
        },
        warm: args.warm.clone(),
    };
    if let Some(name) = &volume_settings.warm {
        check_name(name)?;
    }
    let state = Arc::new(StateDir::open(&args.state)?);
    let heard = state.stores().into_iter();
    let heard: Vec<_> = heard.filter(|store| !credential.stores.contains(store)).collect();
    credential.stores.extend(heard);
    let tls = match (&args.nbd_args.nbd_tls_cert, &args.nbd_args.nbd_tls_key) {
        (Some(cert), Some(key)) => {
            Some(tls_config(cert, key, args.nbd_args.nbd_tls_ca.as_deref())?)
        }
        _ => None,
    };
    // Start this first, so that any program that can connect to a disk can also ask for the status.
    // Syncing the token's file may take a while.
    let (questions, asked) = mpsc::channel(16);
    let token = iscsi::new_token(&args.state)?;
    admin::start(&args.admin_args.admin, &args.admin_args.admin_host, token, questions.clone())?;
    let listeners = args
        .nbd_args
        .nbd
        .iter()
        .map(|text| {
            let address: Address = text.parse()?;
            Listener::bind(&address, tls.is_some(), args.nbd_args.nbd_tls_ca.is_some())
        })
        .collect::<Result<Vec<_>>>()?;
    let fixed = ConfiguredAccess::load(config)?;
    let rights = InitiatorRights::open(&args.state, fixed.clone())?;
    let access = rights.access()?;
    let clients = ClientRights::open(&args.state, nbd::load(config)?)?;
    let portals = args.iscsi.iter().map(|text| iscsi::Portal::bind(text));
    let portals = portals.collect::<Result<Vec<_>>>()?;
    let bound: Vec<String> = portals.iter().map(|portal| portal.address().to_string()).collect();
    let told = if fixed.portals.is_empty() { bound.clone() } else { fixed.portals.clone() };
    let (client, events) = Client::start(credential, args.store.clone(), args.transport)?;

    let router = Rc::new(Router::new(client));
    let clock = Clock::start();
    let registry = VolumeRegistry::new(state.clone(), volume_settings, router.clone(), clock);
    let server = NbdServer::new(registry.clone(), tls);
    let nbd: Vec<Address> = listeners.iter().map(|listener| listener.address().clone()).collect();
    set_nbd_access(&server, &nbd, clients.access());
    let config = iscsi::config(told, fixed.weak_chap);
    let target = iscsi::IscsiServer::new(registry.clone(), clock, config, access);
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
    let nobody = rights.is_empty();
    tokio::task::spawn_local(registry.clone().run_link(events));
    tokio::task::spawn_local(target.clone().run());
    tokio::task::spawn_local(registry.clone().run_limits());
    registry.count_clients({
        let (server, target) = (Rc::downgrade(&server), Rc::downgrade(&target));
        move |name| {
            let nbd = server.upgrade().map_or(0, |server| server.connections_of(name));
            nbd + target.upgrade().map_or(0, |target| target.sessions_of(name))
        }
    });
    let answers = Answers {
        registry: registry.clone(),
        server: server.clone(),
        target: target.clone(),
        nbd,
        portals: bound,
    };
    tokio::task::spawn_local(answers.run(rights, clients, asked));
    registry.set_on_demand(args.volume_args.attach_on_demand.clone());
    registry.attach_kept()?;
    for name in &args.volume_args.volumes {
        registry.attach_always(name);
    }
    if listeners.is_empty() && portals.is_empty() {
        tracing::info!(
            "no --nbd and no --iscsi address: the host attaches and drains volumes, but nobody can \
             use them"
        );
    }
    let mut accepting = Vec::new();
    for listener in listeners {
        tracing::info!("serving NBD on {}", listener.address());
        accepting.push(tokio::task::spawn_local(listener.run(server.clone())));
    }
    for portal in portals {
        let address = portal.address();
        if nobody && !address.ip().is_loopback() {
            tracing::info!(
                "serving iSCSI on {address}, where no initiator has a grant yet: `longhaul iscsi \
                 allow VOLUME IQN` gives one"
            );
        } else {
            tracing::info!("serving iSCSI on {address}");
        }
        accepting.push(tokio::task::spawn_local(portal.run(target.clone())));
    }
    tracing::info!(host = %state.host(), state = %state.path().display(), "host is running");
    tokio::select! {
        // If the store answers, clients that start after the host find their volumes.
        () = async {
            let _ = tokio::time::timeout(READY_LIMIT, registry.link_tried()).await;
            notify(sd_notify::NotifyState::Ready);
            std::future::pending().await
        } => {}
        () = follow((&registry, &server, &questions), (reload, read), settings, &fixed) => {}
        () = stop.wait() => {}
    }
    notify(sd_notify::NotifyState::Stopping);
    tracing::info!(
        "stopping: draining for up to {:?}; a second signal leaves at once",
        args.drain_limit
    );
    registry.stop();
    for listener in accepting {
        listener.abort();
    }
    server.stop();
    // Stop the target before refusing requests. Then an initiator that stays still hears of it.
    target.stop(args.drain_limit.min(SETTLE_LIMIT).saturating_sub(GOODBYE_LIMIT));
    let clients = || server.connections() + target.connections();
    let winding = async {
        // Otherwise a volume would stay attached at the store after an attach under way.
        let settled = Instant::now() + args.drain_limit.min(SETTLE_LIMIT);
        until(settled, || registry.attempts() == 0).await;
        wind_down(&registry.volumes(), clients, args.drain_limit).await;
    };
    tokio::select! {
        () = winding => {}
        () = stop.wait() => tracing::warn!("leaving at once"),
    }
    farewell(&registry);
    // Close before the runtime goes: the link sends its queue, and journals end their threads.
    let closed = tokio::task::spawn_blocking({
        let client = router.client();
        move || client.close()
    });
    let _ = closed.await;
    Ok(())
}

/// The parts that a reload concerns.
type Parts<'a> = (&'a Rc<VolumeRegistry>, &'a Rc<NbdServer>, &'a mpsc::Sender<AdminRequest>);

/// Follows SIGHUP for as long as the host runs.
async fn follow(
    parts: Parts<'_>,
    (mut reload, read): (Reload, &Read<HostArgs>),
    mut settings: Settings,
    fixed: &ConfiguredAccess,
) {
    loop {
        reload.wait().await;
        match take_up(parts, read, &settings, fixed).await {
            Ok(newer) => settings = newer,
            Err(error) => tracing::error!("nothing is reloaded: {error:#}"),
        }
    }
}

/// Reads the command line and its config file again, and applies the values that may change. Checks
/// everything before it applies anything.
async fn take_up(
    (registry, server, questions): Parts<'_>,
    read: &Read<HostArgs>,
    before: &Settings,
    fixed: &ConfiguredAccess,
) -> Result<Settings> {
    let line = read()?;
    let (args, config) = (&line.args, line.config.as_deref());
    let (initiators, clients) = (ConfiguredAccess::load(config)?, nbd::load(config)?);
    let certificates = match (&args.nbd_args.nbd_tls_cert, &args.nbd_args.nbd_tls_key) {
        (Some(cert), Some(key)) if server.has_tls() => {
            Some(tls_config(cert, key, args.nbd_args.nbd_tls_ca.as_deref())?)
        }
        _ => None,
    };
    if initiators.needs_restart(fixed) {
        tracing::warn!("changes of [iscsi] portals and weak-chap need a restart");
    }
    let (sender, answer) = oneshot::channel();
    let question = AdminRequest::Reload(Box::new(initiators), clients, sender);
    questions.send(question).await.ok().context("the host is stopping")?;
    answer.await.context("the host is stopping")??;
    let mut more = vec!["access lists"];
    if let Some(certificates) = certificates {
        server.set_tls(certificates);
        more.push("NBD certificates");
    }
    let changes = before.changes(&line.settings);
    let (drain, readahead) = (args.rates.drain_rate.clone(), args.rates.readahead_rate.clone());
    registry.set_common_limits(Limits { drain, readahead });
    registry.set_on_demand(args.volume_args.attach_on_demand.clone());
    for name in &args.volume_args.volumes {
        registry.attach_always(name);
    }
    reload::conclude(&line, &changes, &RELOADED, &more);
    Ok(line.settings)
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

/// Lets other users open the unix sockets if any of them has a grant.
fn set_nbd_access(server: &NbdServer, addresses: &[Address], access: nbd::Access) {
    for address in addresses {
        if let Err(error) = address.share(access.has_users()) {
            tracing::warn!("{error:#}");
        }
    }
    server.set_access(access);
}

/// Answers the admin listener's questions from the front thread.
struct Answers {
    registry: Rc<VolumeRegistry>,
    server: Rc<NbdServer>,
    target: Rc<iscsi::IscsiServer>,
    /// Addresses of NBD.
    nbd: Vec<Address>,
    /// Addresses of iSCSI.
    portals: Vec<String>,
}

impl Answers {
    async fn run(
        self,
        mut rights: InitiatorRights,
        mut clients: ClientRights,
        mut asked: mpsc::Receiver<AdminRequest>,
    ) {
        // The requester may have gone.
        while let Some(question) = asked.recv().await {
            match question {
                AdminRequest::Report(answer) => {
                    let mut collected = report::collect(&self.registry, &self.server, &self.target);
                    collected.report.nbd = self.nbd.iter().map(ToString::to_string).collect();
                    collected.report.iscsi.clone_from(&self.portals);
                    let _ = answer.send(collected);
                }
                AdminRequest::Traces(answer) => {
                    let _ = answer.send(self.registry.traces());
                }
                AdminRequest::Pins(answer) => {
                    let _ = answer.send(self.registry.pins());
                }
                AdminRequest::Control(control, answer) => {
                    let _ = answer.send(self.registry.control(control).await);
                }
                AdminRequest::Rights(answer) => {
                    let _ = answer.send(rights.report(self.portals.clone()));
                }
                AdminRequest::Change(change, answer) => {
                    let told = change.describe();
                    let changed = rights.change(change).await.map(|access| {
                        tracing::info!("iSCSI rights changed: {told}");
                        self.target.set_access(access);
                    });
                    let _ = answer.send(changed);
                }
                AdminRequest::Reload(initiators, fixed, answer) => {
                    let taken = rights.set_fixed(*initiators).map(|access| {
                        self.target.set_access(access);
                        clients.set_fixed(fixed);
                        set_nbd_access(&self.server, &self.nbd, clients.access());
                    });
                    let _ = answer.send(taken);
                }
                AdminRequest::NbdRights(answer) => {
                    let _ = answer.send(clients.report());
                }
                AdminRequest::NbdChange(change, answer) => {
                    let told = change.describe();
                    let changed = clients.change(change).await.map(|access| {
                        tracing::info!("NBD rights changed: {told}");
                        set_nbd_access(&self.server, &self.nbd, access);
                    });
                    let _ = answer.send(changed);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::null::{One, volume, volume_with};
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
            let server = NbdServer::new(Rc::new(One(volume.clone())), None);
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
            let server = NbdServer::new(Rc::new(One(volume.clone())), None);
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
            let server = NbdServer::new(Rc::new(One(volume.clone())), None);
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
