//! The target with all its connections: carries out what the target machine wants.

use super::connection::{IscsiConnection, MovedIscsi};
use super::counters::Counters;
use crate::volume::{Clock, Requester, Volume};
use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use longhaul_base::limits::{self, Places, Strangers, Who};
use longhaul_base::units::show_bytes;
use longhaul_core::block::{BlockError, Reply, Request, STAGED_BIT, Time};
use longhaul_core::front::iscsi::{
    Access, Asker, CloseReason, Config, ConnectionId, CopyAnswer, CopyMessage, CopyQuestion,
    DeviceId, Event, Identity, OpenError, TARGET_PREFIX, Target, TargetId,
};
use longhaul_core::front::scsi::{DeviceConfig, TokenSecret};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Why a load or a save of persistent reservations failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReservationError {
    /// The volume is a snapshot, or this host keeps nothing.
    #[error("a snapshot keeps no registrations")]
    ReadOnly,
    /// The registrations are too long: bytes, and the most.
    #[error(
        "{} of registrations are more than a volume can keep ({}): unregister some initiators",
        show_bytes(*.0),
        show_bytes(*.1)
    )]
    TooLarge(u64, u64),
    /// Another host has the volume.
    #[error("the volume is fenced off here")]
    Fenced,
    /// The store did not answer in time, or failed: the last reason.
    #[error("{0}")]
    Unavailable(String),
    /// The store refused for good.
    #[error("{0}")]
    Refused(String),
    /// The answer does not fit.
    #[error("the store answered something else")]
    Unfit,
}

/// A volume with its saved persistent reservations.
pub type OpenedVolume = (Rc<Volume>, Bytes);

/// Places for iSCSI connections, of all front threads together. All clones are the same.
#[derive(Clone)]
pub struct IscsiPlaces {
    /// For connections without a login.
    pub strangers: Strangers,
    /// For those with one.
    pub places: Places<Who>,
}

impl Default for IscsiPlaces {
    fn default() -> IscsiPlaces {
        IscsiPlaces {
            strangers: Strangers::new(
                limits::MAX_ISCSI_STRANGERS,
                limits::MAX_ISCSI_STRANGERS_OF_ONE,
            ),
            places: Places::new(
                limits::MAX_ISCSI_CONNECTIONS,
                limits::MAX_ISCSI_CONNECTIONS_OF_ONE,
            ),
        }
    }
}

/// Another front thread, which has a volume.
pub trait IscsiHome {
    /// Goes on with a connection there.
    fn take_iscsi(self: Box<Self>, moved: MovedIscsi) -> LocalBoxFuture<'static, io::Result<()>>;
}

/// The volumes behind the protocol.
pub trait Volumes {
    /// The front thread that has a volume, unless that is this one.
    ///
    /// # Errors
    /// If the thread cannot start.
    fn elsewhere(&self, _name: &str) -> anyhow::Result<Option<Box<dyn IscsiHome>>> {
        Ok(None)
    }

    /// Asks the targets of all other front threads about a copy.
    fn ask_others(
        self: Rc<Self>,
        _asker: Asker,
        _question: CopyQuestion,
    ) -> LocalBoxFuture<'static, Vec<(TargetId, CopyAnswer)>> {
        Box::pin(async { Vec::new() })
    }

    /// Gives a message to the target of another front thread. False if that has ended.
    fn tell(self: Rc<Self>, _: TargetId, _: CopyMessage) -> LocalBoxFuture<'static, bool> {
        Box::pin(async { false })
    }

    /// Opens one. Takes a bounded time.
    fn open(
        self: Rc<Self>,
        name: String,
    ) -> LocalBoxFuture<'static, Result<OpenedVolume, OpenError>>;

    /// The names of all. Takes a bounded time.
    fn list(self: Rc<Self>) -> LocalBoxFuture<'static, Vec<String>>;

    /// Keeps persistent reservations with a volume, instead of those kept before. Takes a bounded
    /// time.
    fn save(
        self: Rc<Self>,
        volume: Rc<Volume>,
        data: Bytes,
    ) -> LocalBoxFuture<'static, Result<(), ReservationError>>;
}

/// The settings of a target that are not the operator's.
#[must_use]
pub fn config(portals: Vec<String>, weak_chap: bool) -> Config {
    Config {
        error_recovery_level: 2,
        max_connections: 8,
        // A PDU has to fit into the read buffer as a whole before its payload is split off.
        max_recv_data_segment: 256 << 10,
        max_burst: 1 << 20,
        // Linux offers this: an 8-block write of a file system then needs no R2T.
        first_burst: 256 << 10,
        max_outstanding_r2t: 16,
        // Linux has 128 in flight.
        commands: 256,
        // Four commands of the largest size.
        session_bytes: 32 << 20,
        ping_after: Duration::from_secs(15),
        ping_limit: Duration::from_secs(15),
        login_limit: Duration::from_secs(15),
        sessions_per_initiator: 64,
        weak_chap,
        has_others: false,
        portals,
    }
}

/// The target of a front thread with all its connections.
pub struct IscsiServer {
    volumes: Rc<dyn Volumes>,
    clock: Clock,
    pub(super) target: RefCell<Target>,
    pub(super) connections: RefCell<BTreeMap<ConnectionId, Rc<IscsiConnection>>>,
    devices: RefCell<BTreeMap<DeviceId, Rc<Unit>>>,
    /// Connections whose input nobody wanted when it was last asked.
    pub(super) stalled: RefCell<BTreeSet<ConnectionId>>,
    pub(super) next_id: Cell<ConnectionId>,
    /// [`IscsiServer::act`] is running.
    acting: Cell<bool>,
    /// When [`IscsiServer::run`] wakes up by itself.
    armed: Cell<Time>,
    rearm: Notify,
    pub(super) stopping: Cell<bool>,
    pub(super) counters: RefCell<Counters>,
    pub(super) places: IscsiPlaces,
}

/// A device with its volume, to which engines reply.
struct Unit {
    server: Rc<IscsiServer>,
    device: DeviceId,
    volume: Rc<Volume>,
    /// The connection has collected replies since the last flush.
    marked: Cell<bool>,
}

impl IscsiServer {
    /// A target without listeners.
    pub fn new(
        volumes: Rc<dyn Volumes>,
        clock: Clock,
        config: Config,
        (access, places): (Access, IscsiPlaces),
    ) -> Rc<IscsiServer> {
        Rc::new(IscsiServer {
            volumes,
            clock,
            target: RefCell::new(Target::new(config, access)),
            connections: RefCell::default(),
            devices: RefCell::default(),
            stalled: RefCell::default(),
            next_id: Cell::new(1),
            acting: Cell::new(false),
            armed: Cell::new(Time(u64::MAX)),
            rearm: Notify::new(),
            stopping: Cell::new(false),
            counters: RefCell::default(),
            places,
        })
    }

    /// Connections there are.
    pub fn connections(&self) -> usize {
        self.connections.borrow().len()
    }

    /// Other rights from now on; sessions that lost theirs end.
    pub fn set_access(self: &Rc<Self>, access: Access) {
        self.with(|now, target| target.set_access(now, access));
    }

    /// A volume is not here any more: its sessions end.
    pub fn volume_gone(self: &Rc<Self>, name: &str, why: &str) {
        self.with(|now, target| target.handle_volume_gone(now, name, why));
    }

    /// A volume has another size, in sectors.
    pub fn resized(self: &Rc<Self>, name: &str, sectors: u64) {
        self.with(|now, target| target.handle_resized(now, name, sectors));
    }

    /// Answers a question of another front thread's target.
    pub fn answer_copy(self: &Rc<Self>, asker: &Asker, question: CopyQuestion) -> CopyAnswer {
        self.with(|now, target| target.answer_copy(now, asker, question))
    }

    /// Takes a message of another front thread's target.
    pub fn told(self: &Rc<Self>, from: TargetId, message: CopyMessage) {
        self.with(|now, target| target.handle_told(now, from, message));
    }

    /// Takes no new connections and asks the initiators to log out. Cuts off those that have not
    /// after `limit`.
    pub fn stop(self: &Rc<Self>, limit: Duration) {
        self.stopping.set(true);
        self.with(|now, target| target.handle_shutdown(now, limit));
    }

    /// Serves the target's timers until dropped.
    pub async fn run(self: Rc<Self>) {
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(self.clock.instant(self.armed.get())) => {
                    self.armed.set(Time(u64::MAX));
                    self.with(|now, target| {
                        if target.poll_timeout().is_some_and(|due| due <= now) {
                            target.handle_timeout(now);
                        }
                    });
                }
                () = self.rearm.notified() => {}
            }
        }
    }

    /// Gives the target something and acts on what follows.
    pub(super) fn with<T>(self: &Rc<Self>, input: impl FnOnce(Time, &mut Target) -> T) -> T {
        let since = Instant::now();
        let result = input(self.clock.now(), &mut self.target.borrow_mut());
        self.act(since);
        result
    }

    /// Carries out what the target wants until it wants nothing more.
    fn act(self: &Rc<Self>, mut since: Instant) {
        if self.acting.replace(true) {
            return;
        }
        let mut requests: Vec<(DeviceId, u64, Request)> = Vec::new();
        let mut others = Vec::new();
        let mut outputs: Vec<ConnectionId> = Vec::new();
        loop {
            let mut target = self.target.borrow_mut();
            while let Some(event) = target.poll_event() {
                match event {
                    Event::Request { device, id, request } => requests.push((device, id, request)),
                    Event::Output { connection } => outputs.push(connection),
                    other => others.push(other),
                }
            }
            drop(target);
            if !others.is_empty() {
                others.drain(..).for_each(|event| self.handle_event(event));
            } else if !requests.is_empty() {
                self.submit(since, &mut requests);
                since = Instant::now();
            } else if !outputs.is_empty() {
                // Last, so that the responses of all requests leave together.
                for id in outputs.drain(..) {
                    if let Some(connection) = self.connection(id) {
                        connection.flush(self);
                    }
                }
            } else {
                break;
            }
        }
        self.acting.set(false);
        self.wake_stalled();
        let next = self.target.borrow().poll_timeout();
        if let Some(next) = next
            && next < self.armed.get()
        {
            self.armed.set(next);
            self.rearm.notify_one();
        }
    }

    /// Hands requests to their engines, those of one device that follow each other together.
    fn submit(&self, mut since: Instant, requests: &mut Vec<(DeviceId, u64, Request)>) {
        let mut rest = requests.drain(..).peekable();
        while let Some((device, id, request)) = rest.next() {
            let unit = self.devices.borrow().get(&device).cloned();
            // A device begins after its volume is here, and ends with the target.
            let Some(unit) = unit else { continue };
            let first = std::iter::once((id, request));
            let run = first.chain(std::iter::from_fn(|| {
                rest.next_if(|(next, ..)| *next == device).map(|(_, id, request)| (id, request))
            }));
            let run = run.map(|(id, request)| (id, with_object(request)));
            let client: Rc<dyn Requester> = unit.clone();
            unit.volume.submit(&client, since, run);
            since = Instant::now();
        }
    }

    fn wake_stalled(&self) {
        if self.stalled.borrow().is_empty() {
            return;
        }
        let target = self.target.borrow();
        self.stalled.borrow_mut().retain(|id| {
            let wanted = target.wants_input(*id);
            if wanted && let Some(connection) = self.connection(*id) {
                connection.kick();
            }
            !wanted
        });
    }

    /// A name for a new connection.
    pub(super) fn new_id(&self) -> ConnectionId {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        id
    }

    pub(super) fn connection(&self, id: ConnectionId) -> Option<Rc<IscsiConnection>> {
        self.connections.borrow().get(&id).cloned()
    }

    fn handle_event(self: &Rc<Self>, event: Event) {
        match event {
            Event::Place { connection, volume } => self.place(connection, &volume),
            Event::Ask { copy, asker, question } => {
                let this = self.clone();
                tokio::task::spawn_local(async move {
                    let answers = this.volumes.clone().ask_others(asker, question).await;
                    this.with(|now, target| target.handle_answers(now, copy, answers));
                });
            }
            Event::Tell { target: to, message } => {
                let (this, undelivered) = (self.clone(), message.undelivered());
                let told = self.volumes.clone().tell(to, message);
                tokio::task::spawn_local(async move {
                    if !told.await
                        && let Some(answer) = undelivered
                    {
                        this.with(|now, target| target.handle_told(now, to, answer));
                    }
                });
            }
            Event::Open { volume } => {
                let (this, open) = (self.clone(), self.volumes.clone().open(volume.clone()));
                tokio::task::spawn_local(async move {
                    let opened = open.await;
                    this.opened(&volume, opened);
                });
            }
            Event::List { connection } => {
                let (this, list) = (self.clone(), self.volumes.clone().list());
                tokio::task::spawn_local(async move {
                    let volumes = list.await;
                    this.with(|now, target| target.handle_listed(now, connection, volumes));
                });
            }
            Event::Save { device, id, data } => {
                let unit = self.devices.borrow().get(&device).cloned();
                let Some(unit) = unit else { return };
                let (this, volume) = (self.clone(), unit.volume.clone());
                let save = self.volumes.clone().save(volume.clone(), data);
                tokio::task::spawn_local(async move {
                    let saved = save.await.map_err(|error| error.to_string());
                    if let Err(why) = &saved {
                        tracing::warn!(
                            volume = volume.name(),
                            "persistent reservations could not be saved: {why}"
                        );
                    }
                    this.with(|now, target| target.handle_saved(now, device, id, saved));
                });
            }
            Event::Close { connection, reason } => self.close(connection, reason),
            Event::LoggedIn { connection, identity } => {
                let found = self.connection(connection);
                if let Some(found) = &found
                    && !found.logged_in(&self.places.places)
                {
                    self.turned_away(found.peer());
                    found.close(CloseReason::Refused("the target has too many connections".into()));
                }
                let peer = found.map(|found| found.peer().to_owned());
                tracing::info!(
                    peer,
                    initiator = identity.initiator,
                    volume = volume_of(&identity),
                    user = identity.user,
                    tsih = identity.tsih,
                    cid = identity.cid,
                    "iSCSI initiator logged in"
                );
            }
            Event::LoggedOut { identity } => tracing::info!(
                initiator = identity.initiator,
                volume = volume_of(&identity),
                tsih = identity.tsih,
                "iSCSI session ended"
            ),
            Event::Released { device, volume } => {
                self.devices.borrow_mut().remove(&device);
                tracing::debug!(volume, "no iSCSI session uses it any more");
            }
            // Collected by the caller.
            Event::Request { .. } | Event::Output { .. } => {}
        }
    }

    /// Moves a login to the thread that has its volume, unless that is this one.
    fn place(self: &Rc<Self>, id: ConnectionId, volume: &str) {
        let elsewhere = self.volumes.elsewhere(volume).unwrap_or_else(|error| {
            tracing::error!(volume, "{error:#}");
            None
        });
        let Some(to) = elsewhere else {
            return self.target.borrow_mut().handle_placed(self.clock.now(), id);
        };
        let login = self.target.borrow_mut().take_login(id);
        if let (Some(login), Some(connection)) = (login, self.connection(id)) {
            connection.send_to(to, login);
        }
    }

    fn opened(self: &Rc<Self>, name: &str, opened: Result<OpenedVolume, OpenError>) {
        let now = self.clock.now();
        let (volume, result) = match opened {
            Ok((volume, reservations)) => {
                let config = device_config(&volume, reservations)
                    .map_err(|error| OpenError::Unavailable(format!("{error:#}")));
                (Some(volume), config)
            }
            Err(error) => {
                tracing::info!(volume = name, "an iSCSI initiator cannot have it: {error}");
                (None, Err(error))
            }
        };
        let device = self.target.borrow_mut().handle_opened(now, name, result);
        if let (Some(device), Some(volume)) = (device, volume) {
            let unit = Unit { server: self.clone(), device, volume, marked: Cell::new(false) };
            self.devices.borrow_mut().insert(device, Rc::new(unit));
        }
        self.act(Instant::now());
    }

    /// Counts an initiator that found no place.
    pub(super) fn turned_away(&self, peer: &str) {
        let mut counters = self.counters.borrow_mut();
        if counters.turned_away.is_multiple_of(1000) {
            tracing::warn!(
                peer,
                "refused an iSCSI initiator: {} connections are logged in; log some of them out",
                self.places.places.taken()
            );
        }
        counters.turned_away += 1;
    }

    fn close(&self, id: ConnectionId, reason: CloseReason) {
        let name = match &reason {
            CloseReason::LoggedOut => "logout",
            CloseReason::Refused(_) => "refused",
            CloseReason::LoginLimit => "login_limit",
            CloseReason::Reinstated => "reinstated",
            CloseReason::Silent => "silent",
            CloseReason::Violation(_) => "violation",
            CloseReason::Reset => "reset",
            CloseReason::Forbidden => "forbidden",
            CloseReason::VolumeGone(_) => "volume_gone",
            CloseReason::Shutdown => "shutdown",
        };
        *self.counters.borrow_mut().closed.entry(name).or_default() += 1;
        if let Some(connection) = self.connection(id) {
            connection.close(reason);
        }
    }
}

fn volume_of(identity: &Identity) -> &str {
    identity.volume.as_deref().unwrap_or("(discovery)")
}

/// Draws the number of the staged object for a piece of a copy.
fn with_object(mut request: Request) -> Request {
    if let Request::Stage { object, .. } = &mut request {
        // Without random numbers, take numbers in order until one is free.
        let number = longhaul_base::random::identity().unwrap_or_default() as u64;
        *object = number | STAGED_BIT;
    }
    request
}

fn device_config(volume: &Volume, reservations: Bytes) -> anyhow::Result<DeviceConfig> {
    let attached = volume.attached();
    Ok(DeviceConfig {
        volume: attached.volume,
        name: volume.name().to_owned(),
        target_name: format!(
            "{TARGET_PREFIX}{}",
            volume.name().replace('@', ":").replace('/', "::")
        ),
        sectors: attached.sectors,
        block_bytes: attached.block_bytes,
        read_only: volume.is_read_only(),
        reservations,
        token_secret: TokenSecret(longhaul_base::random::secret()?),
    })
}

impl Requester for Unit {
    fn reply(&self, slot: u64, reply: Result<Reply, BlockError>) {
        let now = self.server.clock.now();
        self.server.target.borrow_mut().handle_reply(now, self.device, slot, reply);
    }

    fn flush(&self) {
        self.marked.set(false);
        self.server.act(Instant::now());
    }

    fn mark(&self) -> bool {
        !self.marked.replace(true)
    }
}
