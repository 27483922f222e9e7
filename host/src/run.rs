//! `longhaul host`: from the command line to the last drained byte.

use super::accepted::RootArgumentError;
use super::admin;
use super::args::{DurabilityArg, HostArgs, OnJournalFailureArg};
use super::context::HostShared;
use super::control::HostCommand;
use super::encryption::EncryptionPolicy;
use super::front::{Front, FrontHandle, FrontSettings, Fronts, Jobs, Ways};
use super::iscsi::{self, ConfiguredAccess, InitiatorRights, IscsiPlaces};
use super::nbd::{self, Address, ClientRights, Listener, NbdPlaces, tls_config};
use super::report::{self, AdminRequest, HostSnapshot};
use super::settings::{Limits, VolumeSettings};
use super::state::{JournalShape, StateDir};
use super::traces::{TraceReport, check_name};
use super::volume::Clock;
use anyhow::{Context as _, Result, bail};
use longhaul_base::Usage;
use longhaul_base::reload::{self, Read, Reload, Settings};
use longhaul_base::service::{Stop, notify, raise_open_files};
use longhaul_core::front::iscsi::Access;
use longhaul_core::host::{Durability, OnJournalFailure};
use longhaul_link::credential::{Credential, tenant_of};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Most front threads by default. A machine with more cores has other work for them, too.
const MAX_DEFAULT_THREADS: usize = 8;

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
        journal: JournalShape::from_size(args.journal_args.journal_size)?,
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
    let mut state = StateDir::open(&args.state)?;
    if let Some(device) = &args.journal_args.journal {
        state.use_device(device, volume_settings.journal)?;
    }
    let state = Arc::new(state);
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
    let clock = Clock::start();
    let threads = args.process.threads.map_or_else(default_threads, usize::from);
    if args.process.no_io_uring {
        longhaul_base::disk::use_threads_only();
    }
    let mut target = iscsi::config(told, fixed.weak_chap);
    target.has_others = threads > 1;
    let settings_of_fronts = FrontSettings {
        credential,
        store: args.store.clone(),
        transport: args.transport,
        volumes: volume_settings,
        on_demand: args.volume_args.attach_on_demand.clone(),
        tls,
        clients: clients.access(),
        target,
        initiators: access,
        places: (NbdPlaces::default(), IscsiPlaces::default()),
    };
    let ways = Ways::default();
    let shared = HostShared::new(state.clone(), clock, threads);
    let link = settings_of_fronts.link()?;
    let first = Front::start((&shared, &ways), 0, settings_of_fronts.clone(), link);
    let (handle, jobs) = FrontHandle::new();
    tokio::task::spawn_local(first.clone().serve(jobs));
    let newest = Arc::new(Mutex::new(settings_of_fronts));
    let fronts = Arc::new(Fronts::new(shared.placement.clone(), handle, {
        let (shared, ways, newest) = (shared.clone(), ways.clone(), newest.clone());
        Box::new(move |number, jobs| start_thread((&shared, &ways), number, &newest, jobs))
    }));
    if threads > 1 {
        // Nobody else sets it.
        let _ = ways.set(Arc::downgrade(&fronts));
    }
    let nbd: Vec<Address> = listeners.iter().map(|listener| listener.address().clone()).collect();
    share_sockets(&nbd, clients.access().has_users());
    let nobody = rights.is_empty();
    let host = Host { state: state.clone(), fronts: fronts.clone(), newest, nbd, portals: bound };
    let host = Rc::new(host);
    tokio::task::spawn_local(host.clone().answer(rights, clients, asked));
    attach_kept(&shared, &host).await?;
    for name in &args.volume_args.volumes {
        host.attach_always(name).await;
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
        accepting.push(tokio::task::spawn_local(listener.run(first.server.clone())));
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
        accepting.push(tokio::task::spawn_local(portal.run(first.target.clone())));
    }
    tracing::info!(host = %state.host(), state = %state.path().display(), "host is running");
    tokio::select! {
        // If the store answers, clients that start after the host find their volumes.
        () = async {
            let _ = tokio::time::timeout(READY_LIMIT, first.registry.link_tried()).await;
            notify(sd_notify::NotifyState::Ready);
            std::future::pending().await
        } => {}
        () = follow((&host, &questions), (reload, read), settings, &fixed) => {}
        () = stop.wait() => {}
    }
    notify(sd_notify::NotifyState::Stopping);
    tracing::info!(
        "stopping: draining for up to {:?}; a second signal leaves at once",
        args.process.drain_limit
    );
    for listener in accepting {
        listener.abort();
    }
    let limit = args.process.drain_limit;
    fronts.close();
    let mut ended = std::pin::pin!(fronts.each(move |front| front.end(limit)));
    tokio::select! {
        _ = &mut ended => {}
        () = stop.wait() => {
            tracing::warn!("leaving at once");
            fronts.each(|front| async move { front.hurry() }).await;
            ended.await;
        }
    }
    fronts.join();
    Ok(())
}

/// The number of front threads unless `--threads` says it.
fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().min(MAX_DEFAULT_THREADS))
}

/// Starts a front thread beside the first.
fn start_thread(
    (shared, ways): (&HostShared, &Ways),
    number: usize,
    settings: &Mutex<FrontSettings>,
    jobs: Jobs,
) -> Result<JoinHandle<()>> {
    let settings = lock(settings).clone();
    let (shared, ways) = (shared.clone(), ways.clone());
    let link = settings.link()?;
    let runtime = super::runtime::front_runtime()?;
    let thread = std::thread::Builder::new().name(format!("front-{number}")).spawn(move || {
        runtime.block_on(tokio::task::LocalSet::new().run_until(async move {
            Front::start((&shared, &ways), number, settings, link).serve(jobs).await;
        }));
    })?;
    Ok(thread)
}

/// A panic with the lock held leaves whole settings behind.
fn lock(settings: &Mutex<FrontSettings>) -> MutexGuard<'_, FrontSettings> {
    settings.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The parts that a reload concerns.
type Parts<'a> = (&'a Rc<Host>, &'a mpsc::Sender<AdminRequest>);

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
    (host, questions): Parts<'_>,
    read: &Read<HostArgs>,
    before: &Settings,
    fixed: &ConfiguredAccess,
) -> Result<Settings> {
    let line = read()?;
    let (args, config) = (&line.args, line.config.as_deref());
    let (initiators, clients) = (ConfiguredAccess::load(config)?, nbd::load(config)?);
    let certificates = match (&args.nbd_args.nbd_tls_cert, &args.nbd_args.nbd_tls_key) {
        (Some(cert), Some(key)) if lock(&host.newest).tls.is_some() => {
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
        lock(&host.newest).tls = Some(certificates.clone());
        let set = move |front: Rc<Front>| {
            let certificates = certificates.clone();
            async move { front.server.set_tls(certificates) }
        };
        host.fronts.each(set).await;
        more.push("NBD certificates");
    }
    let changes = before.changes(&line.settings);
    let (drain, readahead) = (args.rates.drain_rate.clone(), args.rates.readahead_rate.clone());
    let (limits, on_demand) =
        (Limits { drain, readahead }, args.volume_args.attach_on_demand.clone());
    {
        let mut newest = lock(&host.newest);
        newest.volumes.limits = limits.clone();
        newest.on_demand.clone_from(&on_demand);
    }
    let set = move |front: Rc<Front>| {
        let (limits, on_demand) = (limits.clone(), on_demand.clone());
        async move {
            front.registry.set_common_limits(limits);
            front.registry.set_on_demand(on_demand);
        }
    };
    host.fronts.each(set).await;
    for name in &args.volume_args.volumes {
        host.attach_always(name).await;
    }
    reload::conclude(&line, &changes, &RELOADED, &more);
    Ok(line.settings)
}

/// Attaches the volumes that commands attached before, and those whose journals may hold
/// undelivered writes.
///
/// # Errors
/// If the state directory is unreadable.
async fn attach_kept(shared: &HostShared, host: &Host) -> Result<()> {
    let survey = shared.state.survey()?;
    for damaged in &survey.damaged {
        tracing::error!(
            "{}; the host serves the other volumes: `longhaul check` says what to do",
            damaged.problem
        );
    }
    for volume in survey.volumes.iter().filter(|volume| !volume.released) {
        host.attach_always(&volume.name).await;
    }
    for name in &shared.remembered.load() {
        host.attach_always(name).await;
    }
    Ok(())
}

/// Lets other users open the unix sockets, or not any more.
fn share_sockets(addresses: &[Address], with_others: bool) {
    for address in addresses {
        if let Err(error) = address.share(with_others) {
            tracing::warn!("{error:#}");
        }
    }
}

/// The host as a whole, seen from its first front thread.
struct Host {
    state: Arc<StateDir>,
    fronts: Arc<Fronts>,
    /// The settings of threads that start from now on.
    newest: Arc<Mutex<FrontSettings>>,
    /// Addresses of NBD.
    nbd: Vec<Address>,
    /// Addresses of iSCSI.
    portals: Vec<String>,
}

impl Host {
    /// Attaches a volume on its thread, and keeps trying.
    async fn attach_always(&self, name: &str) {
        let attached = async {
            let (front, _seat) = self.fronts.of(name)?;
            let name = name.to_owned();
            front.call(|front| async move { front.registry.attach_always(&name) }).await?;
            anyhow::Ok(())
        };
        if let Err(error) = attached.await {
            tracing::error!(volume = name, "not attached: {error:#}");
        }
    }

    async fn control(&self, command: HostCommand) -> Result<()> {
        let (front, _seat) = match &command {
            HostCommand::Attach { volume, .. } => self.fronts.of(volume)?,
            other => self.fronts.of_known(other.volume())?,
        };
        front.call(|front| async move { front.registry.control(command).await }).await?
    }

    async fn set_clients(&self, access: nbd::Access) {
        share_sockets(&self.nbd, access.has_users());
        lock(&self.newest).clients = access.clone();
        let set = move |front: Rc<Front>| {
            let access = access.clone();
            async move { front.server.set_access(access) }
        };
        self.fronts.each(set).await;
    }

    async fn set_initiators(&self, access: Access) {
        lock(&self.newest).initiators = access.clone();
        let set = move |front: Rc<Front>| {
            let access = access.clone();
            async move { front.target.set_access(access) }
        };
        self.fronts.each(set).await;
    }

    async fn report(&self) -> HostSnapshot {
        let look = |front: Rc<Front>| async move {
            report::look(&front.registry, &front.server, &front.target)
        };
        let mut collected = report::join(&self.state, self.fronts.each(look).await);
        collected.report.nbd = self.nbd.iter().map(ToString::to_string).collect();
        collected.report.iscsi.clone_from(&self.portals);
        collected
    }

    async fn traces(&self) -> Result<Vec<TraceReport>> {
        let traces = self.fronts.each(|front| async move { front.registry.traces() }).await;
        Ok(traces.into_iter().collect::<Result<Vec<_>>>()?.concat())
    }

    /// Answers the admin listener's questions, one after the other.
    async fn answer(
        self: Rc<Self>,
        mut rights: InitiatorRights,
        mut clients: ClientRights,
        mut asked: mpsc::Receiver<AdminRequest>,
    ) {
        // The requester may have gone.
        while let Some(question) = asked.recv().await {
            match question {
                AdminRequest::Report(answer) => {
                    let _ = answer.send(self.report().await);
                }
                AdminRequest::Traces(answer) => {
                    let _ = answer.send(self.traces().await);
                }
                AdminRequest::Pins(answer) => {
                    let pins = self.fronts.each(|front| async move { front.registry.pins() });
                    let _ = answer.send(pins.await.concat());
                }
                AdminRequest::Control(control, answer) => {
                    let _ = answer.send(self.control(control).await);
                }
                AdminRequest::Rights(answer) => {
                    let _ = answer.send(rights.report(self.portals.clone()));
                }
                AdminRequest::Change(change, answer) => {
                    let told = change.describe();
                    let changed = match rights.change(change).await {
                        Ok(access) => {
                            tracing::info!("iSCSI rights changed: {told}");
                            self.set_initiators(access).await;
                            Ok(())
                        }
                        Err(error) => Err(error),
                    };
                    let _ = answer.send(changed);
                }
                AdminRequest::Reload(initiators, fixed, answer) => {
                    let taken = match rights.set_fixed(*initiators) {
                        Ok(access) => {
                            self.set_initiators(access).await;
                            clients.set_fixed(fixed);
                            self.set_clients(clients.access()).await;
                            Ok(())
                        }
                        Err(error) => Err(error),
                    };
                    let _ = answer.send(taken);
                }
                AdminRequest::NbdRights(answer) => {
                    let _ = answer.send(clients.report());
                }
                AdminRequest::NbdChange(change, answer) => {
                    let told = change.describe();
                    let changed = match clients.change(change).await {
                        Ok(access) => {
                            tracing::info!("NBD rights changed: {told}");
                            self.set_clients(access).await;
                            Ok(())
                        }
                        Err(error) => Err(error),
                    };
                    let _ = answer.send(changed);
                }
            }
        }
    }
}
