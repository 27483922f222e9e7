//! The storage gateway: link, objects, admin address and signals around the engines.
//!
//! One thread, the actor's, owns sessions and catalog, and decides about volumes. The engine of
//! each volume in use does its everyday work in the thread of its host's session. Other threads,
//! which know nothing of volumes, write and read objects.

mod actor;
mod args;
pub mod audit;
mod balance;
mod bootstrap;
mod bucket;
mod catalog;
mod clock;
mod drive;
mod events;
mod lease;
pub mod location;
mod marker;
mod options;
mod peers;
pub mod registry;
mod repair;
pub mod replica;
mod scrub;
mod tenants;
#[cfg(test)]
mod tests;
mod trash;
mod usage;
mod view;

use actor::{Fleet, Initial, StoreActor};
use anyhow::{Context as _, Result, bail};
pub use args::StoreArgs;
use audit::Audit;
use bootstrap::{Bootstrap, FirstStarts};
use lease::Holder;
use location::{LocationRole, ObjectTrees};
use longhaul_api::admin;
use longhaul_base::Usage;
use longhaul_base::cache_file::check_size;
use longhaul_base::dirs::STORE_FILE;
use longhaul_base::files::{Lock, Sharing};
use longhaul_base::random;
use longhaul_base::reload::{self, CommandLine, Read, Reload, Settings};
use longhaul_base::service::{Stop, notify, raise_open_files};
use longhaul_core::store::gc::usage::Policy;
use longhaul_core::store::map::pages::SharedPages;
use longhaul_core::store::{Config, MISSING_WAIT, MISSING_WAIT_BUCKET};
use longhaul_core::wire::link::StoreId;
use longhaul_link::credential::{self, Issued};
use longhaul_link::quic::Acceptor;
use longhaul_link::{Listener, Sockets, tcp};
use longhaul_objects::{CachedObjects, Location, Objects, Replicated, Sealed};
pub use marker::installation;
pub use options::Options;
use options::reachable;
use peers::Peers;
pub use registry::{STORES_PREFIX, identity as store_identity};
use replica::Replica;
use replica::standby::Standby;
pub use scrub::check_file as scrub_state;
use scrub::{Scrub, Share};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Threads for objects: enough to keep a disk's queue full.
const OBJECT_THREADS: usize = 32;
/// How long a shutdown may take. Uncommitted writes then stay in the journals of the hosts.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(30);

/// Runs `longhaul store` until SIGTERM or Ctrl-C.
///
/// # Errors
/// If it cannot start, or cannot go on.
pub fn run(read: Arc<Read<StoreArgs>>) -> Result<()> {
    let CommandLine { args, settings, .. } = read()?;
    let given = args.data.as_deref().ok_or_else(|| Usage("no --data".into()))?;
    let data = Location::parse(given)?;
    let state = match (args.state.as_deref(), &data) {
        (Some(state), _) => state,
        (None, Location::Directory(dir)) => dir,
        (None, _) => {
            return Err(Usage(format!(
                "--data {} is no directory: say with --state DIR where credentials and lock are",
                given.display()
            ))
            .into());
        }
    };
    raise_open_files();
    if args.no_io_uring {
        longhaul_base::disk::use_threads_only();
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(OBJECT_THREADS)
        .build()
        .context("cannot start the store's runtime")?;
    runtime.block_on(async {
        // Make all checks before writing anything.
        let admin = admin::bind(&args.admin, &args.admin_host)?;
        let sockets = Sockets::bind(args.listen, args.link_threads())?;
        let mut stop = Stop::listen()?;
        tokio::spawn(take_up(Reload::listen()?, read, settings));
        let options = Options {
            data: &data,
            state,
            listen: sockets.address(),
            advertise: args.advertise.as_deref(),
            cache_bytes: check_size(args.cache_size)?,
            cache_dir: args.cache_dir.as_deref(),
            map_memory: args.map_memory,
            collect: collect_policy(args.gc_percent, args.gc_rate)?,
            delete_delay: args.delete_delay,
            new_ca: args.new_ca,
            scrub: scrub::Settings { every: args.scrub_every, bytes_per_second: args.scrub_rate },
            delete_grace: args.delete_grace,
        };
        options.check()?;
        let mut bootstrap = Bootstrap::take_or_wait(&options).await?;
        if let LocationRole::Replica { of, .. } = &bootstrap.site.role {
            tracing::info!(
                "{data} is a replica of {of}: waiting on {} (TCP) for `longhaul store failover`",
                options.listen
            );
            notify(sd_notify::NotifyState::Ready);
            let of = of.clone();
            bootstrap.keep();
            let standby = Standby::new(bootstrap.base.clone(), bootstrap.site.clone());
            let mut shown = JoinSet::new();
            if let Some(listener) = &admin {
                let (listener, standby) = (listener.try_clone()?, standby.clone());
                shown.spawn(async move { admin::serve(listener, standby).await });
            }
            bootstrap.site = tokio::select! {
                site = bootstrap.wait(&options, standby) => site?,
                () = stop.wait() => return Ok(()),
            };
            shown.shutdown().await;
            bootstrap.promoted = true;
            tracing::info!("going on with the volumes of {of}");
        }
        let store = Store::start_over(&options, bootstrap, sockets).await?;
        if let Some(listener) = admin {
            let view = Arc::new(store.view());
            tokio::spawn(async move {
                if let Err(error) = admin::serve(listener, view).await {
                    tracing::error!("{error:#}");
                }
            });
        }
        tracing::info!("store ready on {} (UDP), data in {data}", store.address());
        notify(sd_notify::NotifyState::Ready);
        let stop = async {
            stop.wait().await;
            notify(sd_notify::NotifyState::Stopping);
        };
        Box::pin(store.run(stop, Stop::wait_again())).await
    })
}

/// Follows SIGHUP. The store notices withdrawn credentials without it.
async fn take_up(mut reload: Reload, read: Arc<Read<StoreArgs>>, mut settings: Settings) {
    loop {
        reload.wait().await;
        match read() {
            Ok(line) => {
                reload::conclude(&line, &settings.changes(&line.settings), &[], &[]);
                settings = line.settings;
            }
            Err(error) => tracing::error!("nothing is reloaded: {error:#}"),
        }
    }
}

/// Least limit of stored bytes for garbage collection, in percent of the needed bytes. Below it the
/// store would write everything again and again.
const GC_PERCENT_LEAST: u64 = 110;

/// A round reduces the stored bytes by this many percent. Smaller steps would mean more rounds,
/// each with a merge of the map, for a little space.
const GC_PERCENT_LESS: u64 = 9;

fn collect_policy(percent: u64, bytes_per_second: u64) -> Result<Option<Policy>> {
    if percent == 0 {
        return Ok(None);
    }
    if percent < GC_PERCENT_LEAST {
        bail!("--gc-percent {percent} is too little: at least {GC_PERCENT_LEAST}, or 0 for never");
    }
    let low_percent = percent - GC_PERCENT_LESS;
    let high_percent = percent;
    Ok(Some(Policy { high_percent, low_percent, bytes_per_second, ..Policy::default() }))
}

/// A store that listens.
pub struct Store {
    actor: StoreActor,
    address: SocketAddr,
    view: view::View,
    _locks: Vec<Lock>,
    _sharing: Option<Sharing>,
    /// The HTTP API, for as long as there is a store.
    _api: JoinSet<()>,
}

impl Store {
    /// Takes the directories, makes credentials if there are none, reads the catalog and listens.
    ///
    /// # Errors
    /// If any of it fails; the message says what to do.
    pub async fn start(options: &Options<'_>) -> Result<Store> {
        Store::start_in(options, 1).await
    }

    /// As [`Store::start`], with so many link threads.
    async fn start_in(options: &Options<'_>, threads: usize) -> Result<Store> {
        let sockets = Sockets::bind(options.listen, threads)?;
        let bootstrap = Bootstrap::take(options).await?;
        Store::start_over(options, bootstrap, sockets).await
    }

    async fn start_over(
        options: &Options<'_>,
        mut bootstrap: Bootstrap,
        sockets: Sockets,
    ) -> Result<Store> {
        let Options {
            data,
            state,
            listen: _,
            advertise,
            cache_bytes,
            cache_dir,
            map_memory,
            collect,
            delete_delay,
            new_ca,
            scrub,
            delete_grace,
        } = *options;
        let (base, site, installation) =
            (bootstrap.base.clone(), bootstrap.site.clone(), bootstrap.installation.clone());
        let promoted = bootstrap.promoted;
        let began_as_store = site.place.is_first();
        let mut objects = site.place.open(base.clone());
        if cache_bytes > 0 {
            let dir = cache_dir.map_or_else(|| state.join("cache"), Path::to_owned);
            let number = cache_number(&installation, &site.place)?;
            let dirs: Vec<&Path> = bootstrap.dirs.iter().map(PathBuf::as_path).collect();
            match lock_cache(&dir, &dirs, &mut bootstrap.made) {
                Ok(lock) => {
                    bootstrap.locks.extend(lock);
                    objects = CachedObjects::open(objects, &dir, number, cache_bytes);
                }
                Err(error) => tracing::warn!("the store runs without an object cache: {error:#}"),
            }
        }
        let replicated = Arc::new(Replicated::new(objects));
        let objects: Arc<dyn Objects> = Arc::new(Sealed::new(replicated.clone()));
        let issued = Arc::new(Issued::new(state));
        let address = sockets.address();
        let own = vec![advertise.map_or_else(|| reachable(address), str::to_owned)];
        // Others can use a directory or a bucket, too.
        let shared = matches!(data, Location::Directory(_) | Location::Bucket { .. });
        let known = if shared { registry::stores(&*objects).await? } else { BTreeMap::new() };
        let me = Holder {
            id: registry::identity(state)?,
            incarnation: random::identity()?,
            addresses: own,
        };
        let addresses =
            |(id, store): (&StoreId, &registry::Registered)| (*id, store.addresses.clone());
        let mut others: BTreeMap<_, _> = known.iter().map(addresses).collect();
        others.remove(&me.id);
        let mut stores = actor::addresses(&me, &others, false);
        let identity = credential::prepare(state, &stores, &me.id.to_string())?;
        let ca = registry::fingerprint(&identity.ca);
        let replica = Replica::new(base, replicated, data, &installation, &ca, site);
        let replica = Arc::new(replica);
        stores.extend(replica.standby());
        let foreign: Vec<StoreId> =
            known.iter().filter(|(_, store)| store.ca != ca).map(|(id, _)| *id).collect();
        if !foreign.is_empty() && !new_ca {
            bail!(
                "the data in {data} has stores ({}) with another CA than {}: have them invite this \
                 one (`longhaul store invite --state DIR` there, `longhaul store join` here, into \
                 a new state directory); or, if they are gone for good with their state, start \
                 this one once with --new-ca, and give its admin.toml to all hosts",
                stores_in_words(&known, &foreign),
                state.display()
            );
        }
        let (udp, tcp) = sockets.split();
        let acceptor = Acceptor::over(udp, &identity, issued.clone())?;
        // Links over TCP and requests over HTTP have the first link thread.
        let link_thread = acceptor.runtime();
        let tcp = tcp.and_then(|tcp| {
            let _entered = link_thread.enter();
            tcp::Acceptor::over(tcp, &identity, issued.clone())
        });
        let catalog = catalog::load(&*objects).await?;
        tracing::info!("installation {installation}: {} volumes", catalog.entries.len());
        let deleted = trash::known(&*objects).await.map_err(anyhow::Error::new);
        let deleted = deleted.context("cannot list deleted volumes")?.into_keys().collect();
        // In a bucket it would take a request for each thousand objects.
        if matches!(data, Location::Directory(_)) {
            catalog::warn_of_leftovers(&*objects, &catalog).await;
        }
        let fleet = if shared {
            registry::forget(&*objects, &known, &foreign).await?;
            registry::register(&*objects, &known, me.id, &me.addresses, &ca).await?;
            registry::agree(&*objects, state).await?;
            if identity.own.tend()? {
                // The other stores have withdrawn the earlier certificate: somebody had removed
                // this store.
                tracing::warn!("this store was forgotten, and is one of the installation again");
                registry::agree(&*objects, state).await?;
            }
            let peers = Peers::new(identity.own.clone());
            others.retain(|id, _| !foreign.contains(id));
            for (id, addresses) in &others {
                tracing::info!(
                    "another store of the installation: {id} at {}",
                    addresses.join(", ")
                );
            }
            peers.set(others);
            Some(Fleet::new(me, peers, state.to_owned(), issued.clone()))
        } else {
            None
        };
        let bounds = longhaul_api::Bounds::default();
        let (mut api, http) = (JoinSet::new(), Arc::new(longhaul_api::Counts::new(&bounds)));
        let audit = Audit::open(state)?;
        let mut listener = Listener::start(acceptor, issued.clone(), stores);
        let refusals = audit.clone();
        listener.on_refused(Box::new(move |peer, why| refusals.refused(peer, why)));
        match tcp {
            Ok(mut tcp) => {
                if let Some(visitors) = tcp.visitors() {
                    let serving =
                        longhaul_api::serve(visitors, listener.door(), http.clone(), bounds);
                    api.spawn_on(serving, &link_thread);
                }
                listener.add_tcp(tcp);
            }
            // UDP is what nearly all hosts use.
            Err(error) => tracing::warn!("hosts that UDP does not reach cannot connect: {error:#}"),
        }
        let scrub = Scrub::open(state, scrub);
        let share =
            fleet.as_ref().map(|fleet| Share { me: fleet.me.id, peers: fleet.peers.clone() });
        let (view, questions) = mpsc::channel(16);
        let view = view::View::new(view, scrub.clone(), http, replica.clone());
        let pages = SharedPages::new(map_memory);
        let holder_grace = longhaul_link::IDLE_TIMEOUT;
        let missing_wait = match data {
            Location::Bucket { .. } => MISSING_WAIT_BUCKET,
            _ => MISSING_WAIT,
        };
        let config = Config {
            pages,
            garbage_collection: collect,
            delete_delay,
            holder_grace,
            missing_wait,
            proves_segments: began_as_store,
            ..Config::default()
        };
        let own = identity.own;
        let scrubs = scrub.clone();
        let initial = Initial { catalog, deleted, delete_grace, audit, scrub: scrubs, issued, own };
        replica.apply(initial.catalog.entries.values().map(|entry| entry.spec.id))?;
        let (scrubbed, repair) = (objects.clone(), replica.repair().clone());
        let mut actor =
            StoreActor::new(listener, objects, initial, questions, config, fleet, replica);
        tokio::spawn(scrub.run(scrubbed, share, repair));
        if promoted {
            actor.take_over();
        }
        actor.tell_stores();
        bootstrap.keep();
        let Bootstrap { locks, sharing, .. } = bootstrap;
        Ok(Store { actor, address, view, _locks: locks, _sharing: sharing, _api: api })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The state for the admin address.
    pub fn view(&self) -> view::View {
        self.view.clone()
    }

    /// Serves until `stop`. Then finishes the work under way, for at most [`SHUTDOWN_LIMIT`] and
    /// until `at_once`, which is not polled before.
    ///
    /// # Errors
    /// If it had to end by itself: another store has taken over the replica.
    pub async fn run(
        mut self,
        stop: impl Future<Output = ()>,
        at_once: impl Future<Output = ()>,
    ) -> Result<()> {
        tokio::select! {
            why = self.actor.serve() => {
                // Nothing under way can finish.
                self.actor.close().await;
                return Err(why);
            }
            () = stop => {}
        }
        tracing::info!(
            "stopping: finishing for up to {} s; a second signal leaves at once",
            SHUTDOWN_LIMIT.as_secs()
        );
        tokio::select! {
            () = self.actor.finish() => {}
            () = tokio::time::sleep(SHUTDOWN_LIMIT) => tracing::warn!(
                "not everything could be finished within {} s: hosts will send it again",
                SHUTDOWN_LIMIT.as_secs()
            ),
            () = at_once => tracing::warn!("leaving at once: hosts will send missing writes again"),
        }
        self.actor.close().await;
        Ok(())
    }
}

/// A number for the cache of a location, different for each location. It also differs for each of
/// its trees, because an object of one tree may have the name of another object in the next.
fn cache_number(installation: &str, place: &ObjectTrees) -> Result<u128> {
    let number = u128::from_str_radix(installation, 16);
    let number = number.with_context(|| format!("{STORE_FILE} has no valid identity"))?;
    if place.tree.is_empty() {
        return Ok(number);
    }
    let digest = ring::digest::digest(&ring::digest::SHA256, place.tree.as_bytes());
    let token = digest.as_ref().iter().take(16).fold(0, |sum, byte| sum << 8 | u128::from(*byte));
    Ok(number ^ token)
}

fn stores_in_words(known: &BTreeMap<StoreId, registry::Registered>, ids: &[StoreId]) -> String {
    let words = ids
        .iter()
        .filter_map(|id| Some(format!("{id} at {}", known.get(id)?.addresses.join(", "))));
    words.collect::<Vec<_>>().join("; ")
}

/// Makes the directory of the cache, and locks it, unless it is one of the directories in `taken`.
fn lock_cache(dir: &Path, taken: &[&Path], made: &mut FirstStarts) -> Result<Option<Lock>> {
    made.create(dir)?;
    let whole = dir.canonicalize()?;
    for other in taken {
        if other.canonicalize()? == whole {
            return Ok(None);
        }
    }
    let lock = Lock::acquire(dir)?;
    made.locked(dir)?;
    Ok(Some(lock))
}

/// The problems of the audit log in a state directory, with their places.
///
/// # Errors
/// If it is unreadable.
pub fn audit_problems(state: &Path) -> Result<Vec<String>> {
    let problems = audit::verify(state, None)?.problems.into_iter();
    Ok(problems
        .map(|problem| format!("{}, line {}: {}", problem.file, problem.line, problem.what))
        .collect())
}
