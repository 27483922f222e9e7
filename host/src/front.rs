//! The volumes of a host: attached because an operator named them, looked up by name.
//!
//! A host attaches what `--volume` and the config file name, what `longhaul attach` named and
//! `longhaul detach` has not ended, and what its state directory has undelivered writes of. A client
//! attaches nothing, unless `--attach-on-demand` says that it may. A volume is being attached (again
//! and again, as long as the link or an operator may help), attached, being detached, or fenced off,
//! which a command or a restart ends: this host taking the volume back by itself would only throw the
//! other one out.

mod events;
mod leave;
mod lookup;
mod reservations;

use super::accepted::{Accepted, Expected, ExpectedRoot};
use super::ahead::{Ahead, Limits};
use super::attach::{self, Failure, Kept};
use super::learn::Lessons;
use super::locks::Locks;
use super::state::{JournalShape, StateDir};
use super::uplink::Router;
use super::volume::{Clock, Volume};
use anyhow::{Result, bail};
use bytes::Bytes;
use longhaul_base::pattern::Pattern;
use longhaul_core::block::VolumeId;
use longhaul_core::host::{Durability, OnJournalFailure};
use longhaul_core::pack::Compression;
use longhaul_core::wire::link::{Frame, ToHost};
use longhaul_link::LinkEvent;
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};

/// How long a client waits for the link's first connection and for an attach before it is told to
/// try again: less than the patience of clients, and enough for a journal to be made or recovered on
/// most disks.
const LOOKUP_LIMIT: Duration = Duration::from_secs(10);

/// Pause before an attach that was refused is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// How long the status shows a volume that a command could not attach.
const FAILURE_SHOWN: Duration = Duration::from_secs(30);

/// Link events taken at a time.
const EVENT_BATCH: usize = 256;

/// What the command line says about all volumes.
#[derive(Clone, Debug)]
pub struct Options {
    /// Shape of new journals.
    pub journal: JournalShape,
    /// Bytes of each read cache, 0 for none.
    pub cache_bytes: u64,
    /// What a flush waits for.
    pub durability: Durability,
    /// What a failed journal leads to.
    pub on_journal_failure: OnJournalFailure,
    /// No journals.
    pub write_through: bool,
    /// How writes are compressed.
    pub compression: Compression,
    /// Which volumes have to be encrypted, and what opens them.
    pub locks: Locks,
    /// Rollbacks of encrypted volumes that are accepted.
    pub accept_rollback: Vec<Accepted>,
    /// What encrypted volumes have to be that this host does not know.
    pub expect_root: Vec<Expected>,
    /// Memory of a volume for what is read ahead, in bytes.
    pub readahead_bytes: u64,
    /// Limits of volumes that no command has given others.
    pub limits: Limits,
    /// The trace that is read ahead when a volume is attached.
    pub warm: Option<String>,
}

/// Where a volume is on its way.
#[derive(Clone)]
pub enum Stage {
    /// An attempt to attach it is under way; why the last one failed, if there was one.
    Trying(Option<Failure>),
    /// Not attached: the last attempt failed, the next one will come.
    Waiting(Failure),
    /// Attached.
    Attached(Rc<Volume>),
    /// A command ends it: the store has everything, and is being told.
    Detaching,
    /// Given up: why.
    Ended(Failure),
}

/// Who ended this host's epoch of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FencedBy {
    /// The epoch that ended it.
    pub epoch: u64,
    /// Identity of the host whose epoch that is, once the store has said it.
    pub host: Option<String>,
}

/// Who wants a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    /// The command line, or the state directory: for ever.
    Start,
    /// A command: until it fails.
    Command { take_over: bool },
    /// A client, where that is enough: until it fails.
    Client,
}

/// What becomes of a volume that is not attached when a command does not want it any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    /// What there is here stays.
    Cancelled,
    /// Its space is given back.
    Detached { drop_undelivered: bool },
}

struct Entry {
    stage: watch::Sender<Stage>,
    /// An operator named it: tried for ever, even if nobody asks.
    pinned: bool,
    /// Commands that asked for it.
    asked: u64,
    /// How many had asked when one gave up last: what they wanted does not count any more.
    cancelled: u64,
    /// The next attempt may take it from a host that is connected.
    take_over: bool,
    /// A command does not want it any more.
    leaving: Option<Leaving>,
    /// The task that attaches it has something to look at.
    wake: Rc<Notify>,
    /// What there is here of the volume; counts until it is attached.
    kept: Option<Kept>,
    fenced_by: Option<FencedBy>,
    /// Why it is fenced, while a command tries to attach it again.
    fenced: Option<String>,
}

impl Entry {
    /// Whether a command that asked for it has not given up.
    fn is_asked(&self) -> bool {
        self.asked > self.cancelled
    }
}

/// Told that a volume has a new size, in sectors.
type OnResized = Rc<dyn Fn(&Volume, u64)>;

/// All volumes of a host.
pub struct Front {
    pub(super) state: Arc<StateDir>,
    pub(super) options: Options,
    pub(super) router: Rc<Router>,
    pub(super) clock: Clock,
    pub(super) ahead: Ahead,
    entries: RefCell<BTreeMap<String, Entry>>,
    by_id: RefCell<BTreeMap<VolumeId, Rc<Volume>>>,
    on_resized: RefCell<Vec<OnResized>>,
    /// Persistent reservations as the store has them, with the epoch of the attach that knows: nobody
    /// else may save them before another one attaches.
    reservations: RefCell<BTreeMap<VolumeId, (u64, Bytes)>>,
    /// Changes with the link, and when its first attempt to connect is over.
    link: watch::Sender<u64>,
    /// Whether the link's first attempt to connect is over, well or not.
    link_tried: Cell<bool>,
    stopping: Cell<bool>,
    /// Attempts to attach that are under way.
    attempts: Cell<usize>,
    gone: RefCell<Option<OnGone>>,
    clients: RefCell<Option<Clients>>,
    /// Names of volumes that clients may have attached.
    on_demand: RefCell<Vec<Pattern>>,
    /// Volumes that commands attached, as the state directory has them.
    remembered: RefCell<BTreeSet<String>>,
    /// What is being learned of volumes whose roots are expected.
    pub(super) lessons: Lessons,
    /// Volumes whose space is being given back.
    freeing: RefCell<BTreeSet<VolumeId>>,
}

/// Told the name of a volume that was taken away, and why.
type OnGone = Box<dyn Fn(&str, &str)>;

/// Says how many clients a volume has.
type Clients = Box<dyn Fn(&str) -> usize>;

impl Front {
    /// No volumes yet.
    pub fn new(
        state: Arc<StateDir>,
        options: Options,
        router: Rc<Router>,
        clock: Clock,
    ) -> Rc<Front> {
        Rc::new(Front {
            state,
            options,
            router,
            clock,
            ahead: Ahead::default(),
            entries: RefCell::default(),
            by_id: RefCell::default(),
            on_resized: RefCell::default(),
            reservations: RefCell::default(),
            link: watch::Sender::new(0),
            link_tried: Cell::new(false),
            stopping: Cell::new(false),
            attempts: Cell::new(0),
            gone: RefCell::default(),
            clients: RefCell::default(),
            on_demand: RefCell::default(),
            remembered: RefCell::default(),
            lessons: Lessons::default(),
            freeing: RefCell::default(),
        })
    }

    /// Who is told when a volume is taken away from this host.
    pub fn on_gone(&self, gone: impl Fn(&str, &str) + 'static) {
        self.gone.replace(Some(Box::new(gone)));
    }

    fn tell_gone(&self, name: &str, why: &str) {
        if let Some(gone) = &*self.gone.borrow() {
            gone(name, why);
        }
    }

    /// Who knows how many clients a volume has.
    pub fn count_clients(&self, clients: impl Fn(&str) -> usize + 'static) {
        self.clients.replace(Some(Box::new(clients)));
    }

    /// Clients may have volumes attached whose names match, from now on.
    pub fn set_on_demand(&self, patterns: Vec<Pattern>) {
        self.on_demand.replace(patterns);
    }

    /// Attaches a volume that the command line names, and keeps trying.
    pub fn pin(self: &Rc<Self>, name: &str) {
        self.begin(name, Wish::Start);
    }

    /// Attaches what the state directory says: what commands attached, and what has a journal with
    /// writes that may not have been delivered.
    ///
    /// # Errors
    /// If it cannot be listed.
    pub fn pin_kept(self: &Rc<Self>) -> Result<()> {
        let survey = self.state.survey()?;
        for damaged in &survey.damaged {
            tracing::error!(
                "{}; the other volumes are served: `longhaul check` says what to do",
                damaged.problem
            );
        }
        for volume in survey.volumes.iter().filter(|volume| !volume.released) {
            self.pin(&volume.name);
        }
        let remembered = self.state.attached().unwrap_or_else(|error| {
            tracing::error!("{error:#}: attach the volumes again that commands had attached");
            BTreeSet::new()
        });
        for name in &remembered {
            self.pin(name);
        }
        self.remembered.replace(remembered);
        Ok(())
    }

    /// Attaches a volume by command. It succeeds once the volume is attached, and keeps trying only
    /// as long as the store cannot be reached.
    ///
    /// # Errors
    /// If it is being detached, or only a restart of this host can help.
    pub fn attach_now(self: &Rc<Self>, name: &str, take_over: bool) -> Result<()> {
        if self.stopping.get() {
            bail!("the host is shutting down");
        }
        let stage = self.stage(name);
        match stage {
            Some(Stage::Detaching) => {
                bail!("volume {name} is being detached: try again when that is done")
            }
            Some(Stage::Ended(Failure::Disk(why))) => bail!("{why}"),
            Some(Stage::Ended(failure)) => {
                self.end(name);
                let ended = self.entries.borrow_mut().remove(name);
                self.begin(name, Wish::Command { take_over });
                if let (Failure::Fenced(why), Some(entry)) =
                    (failure, self.entries.borrow_mut().get_mut(name))
                {
                    entry.fenced = Some(why);
                    entry.fenced_by = ended.and_then(|ended| ended.fenced_by);
                }
                return Ok(());
            }
            _ => {}
        }
        self.begin(name, Wish::Command { take_over });
        if let Some(Stage::Attached(_)) = self.stage(name) {
            self.keep(name);
        }
        Ok(())
    }

    fn stage(&self, name: &str) -> Option<Stage> {
        self.entries.borrow().get(name).map(|entry| entry.stage.borrow().clone())
    }

    /// It stays attached, also after a restart.
    fn keep(&self, name: &str) {
        if let Some(entry) = self.entries.borrow_mut().get_mut(name) {
            entry.pinned = true;
        }
        self.remember(name, true);
    }

    fn remember(&self, name: &str, attached: bool) {
        let mut names = self.remembered.borrow_mut();
        let changed = if attached { names.insert(name.to_owned()) } else { names.remove(name) };
        if changed && let Err(error) = self.state.save_attached(&names) {
            let what = if attached { "will not be" } else { "will be" };
            tracing::warn!(volume = name, "it {what} attached at the next start: {error:#}");
        }
    }

    /// What is known of each volume, by name.
    pub fn stages(&self) -> Vec<(String, Stage)> {
        let entries = self.entries.borrow();
        entries.iter().map(|(name, entry)| (name.clone(), entry.stage.borrow().clone())).collect()
    }

    /// The attached volumes.
    pub fn volumes(&self) -> Vec<Rc<Volume>> {
        self.by_id.borrow().values().cloned().collect()
    }

    /// Has `told` called whenever an attached volume has got a new size, with that size in sectors.
    /// Requests up to there are good by then, and whoever opens the volume is told the new size; what
    /// becomes of clients that were told the old one is the business of their protocol.
    pub fn on_resized(&self, told: impl Fn(&Volume, u64) + 'static) {
        self.on_resized.borrow_mut().push(Rc::new(told));
    }

    /// Resolves when the link's first attempt to connect is over, well or not.
    pub async fn link_tried(&self) {
        let mut link = self.link.subscribe();
        while !self.link_tried.get() && link.changed().await.is_ok() {}
    }

    /// Whether there are no more attaches.
    pub fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// Attempts to attach that are under way: what they attach has to be handed back.
    pub fn attempts(&self) -> usize {
        self.attempts.get()
    }

    /// What an encrypted volume has to be, if the operator says that.
    pub(super) fn expected(&self, name: &str) -> Option<ExpectedRoot> {
        self.options.expect_root.iter().find_map(|one| one.of(name))
    }

    /// Whether an attempt to attach a volume is not to go on: the host stops, or a command wants it no more.
    pub(super) fn gives_up(&self, name: &str) -> bool {
        let entries = self.entries.borrow();
        self.stopping.get() || entries.get(name).is_none_or(|entry| entry.leaving.is_some())
    }

    /// No more attaches.
    pub fn stop(&self) {
        self.stopping.set(true);
    }

    fn begin(self: &Rc<Self>, name: &str, wish: Wish) -> watch::Receiver<Stage> {
        let mut entries = self.entries.borrow_mut();
        let known = entries.contains_key(name);
        let entry = entries.entry(name.to_owned()).or_insert_with(|| Entry {
            stage: watch::Sender::new(Stage::Trying(None)),
            pinned: false,
            asked: 0,
            cancelled: 0,
            take_over: false,
            leaving: None,
            wake: Rc::default(),
            kept: None,
            fenced_by: None,
            fenced: None,
        });
        match wish {
            Wish::Start => entry.pinned = true,
            Wish::Command { take_over } => {
                entry.asked += 1;
                entry.take_over |= take_over;
                entry.leaving = None;
                entry.stage.send_if_modified(|stage| {
                    let waiting = matches!(stage, Stage::Waiting(_));
                    if waiting {
                        *stage = Stage::Trying(None);
                    }
                    waiting
                });
                entry.wake.notify_one();
            }
            Wish::Client => {}
        }
        let receiver = entry.stage.subscribe();
        if !known {
            tokio::task::spawn_local(self.clone().attach(name.to_owned()));
        }
        receiver
    }

    async fn attach(self: Rc<Self>, name: String) {
        let mut link = self.link.subscribe();
        let mut told: Option<Failure> = None;
        let mut journal = None;
        let Some(wake) = self.entries.borrow().get(&name).map(|entry| entry.wake.clone()) else {
            return;
        };
        loop {
            if self.stopping.get() {
                return;
            }
            link.mark_unchanged();
            let Some((asked, take_over)) = self.next_attempt(&name) else {
                attach::discard(&self, &name, &mut journal).await;
                drop(journal);
                return self.left(&name).await;
            };
            // What woke this task for a command that this attempt answers must not begin another one, whose failure would
            // hide this one's.
            tokio::select! {
                biased;
                () = wake.notified() => {}
                () = std::future::ready(()) => {}
            }
            self.set(&name, Stage::Trying(told.clone()));
            self.attempts.set(self.attempts.get() + 1);
            let attempt = attach::attach(&self, &name, take_over, &mut journal).await;
            self.attempts.set(self.attempts.get() - 1);
            let failure = match attempt {
                Ok(volume) => return self.attached_now(&name, volume),
                Err(failure) => failure,
            };
            // The store has not been asked, or its answer is not known: the operator's word still counts, unless it was
            // taken back meanwhile.
            if take_over
                && failure == Failure::Link
                && let Some(entry) = self.entries.borrow_mut().get_mut(&name)
                && entry.cancelled < asked
            {
                entry.take_over = true;
            }
            if told.as_ref() != Some(&failure) {
                match &failure {
                    Failure::Link => tracing::info!(volume = name, "waiting for the store"),
                    Failure::InUse(why) => tracing::warn!(volume = name, "not attached: {why}"),
                    Failure::NotFound(why)
                    | Failure::Refused(why)
                    | Failure::Fenced(why)
                    | Failure::Disk(why) => {
                        tracing::error!(volume = name, "not attached: {why}");
                    }
                }
                told = Some(failure.clone());
            }
            if let Failure::Disk(_) = failure {
                return self.set(&name, Stage::Ended(failure));
            }
            let wait_for_link = failure == Failure::Link && !self.router.is_up();
            let link_may_come = self.link_may_come(&failure);
            let Some((pinned, asked_now, wanted)) = self
                .entries
                .borrow()
                .get(&name)
                .map(|entry| (entry.pinned, entry.asked, entry.is_asked()))
            else {
                return;
            };
            if asked_now > asked {
                continue;
            }
            let waits = failure == Failure::Link && wanted;
            let gone = matches!(failure, Failure::NotFound(_));
            self.set(&name, Stage::Waiting(failure));
            if gone {
                self.clone().free_gone().await;
            }
            // Nobody may be left who wants it.
            if !pinned && !link_may_come && !waits {
                let shown = if asked > 0 { FAILURE_SHOWN } else { Duration::ZERO };
                tokio::select! {
                    biased;
                    () = wake.notified() => {}
                    () = tokio::time::sleep(shown) => return self.forget(&name),
                }
                continue;
            }
            tokio::select! {
                _ = link.changed() => {}
                () = wake.notified() => {}
                () = tokio::time::sleep(RETRY), if !wait_for_link => {}
            }
        }
    }

    /// Commands that the next attempt answers, and whether it may take the volume from a host that is
    /// connected; `None` if a command does not want it any more.
    fn next_attempt(&self, name: &str) -> Option<(u64, bool)> {
        let mut entries = self.entries.borrow_mut();
        let entry = entries.get_mut(name)?;
        if entry.leaving.is_some() {
            return None;
        }
        Some((entry.asked, std::mem::take(&mut entry.take_over)))
    }

    /// Nobody wants a volume any more that is not attached. One that was fenced is so again.
    fn forget(&self, name: &str) {
        let mut entries = self.entries.borrow_mut();
        let Some(entry) = entries.get_mut(name) else { return };
        match entry.fenced.take() {
            None => drop(entries.remove(name)),
            Some(why) => {
                (entry.leaving, entry.take_over) = (None, false);
                entry.stage.send_replace(Stage::Ended(Failure::Fenced(why)));
            }
        }
    }

    fn attached_now(self: &Rc<Self>, name: &str, volume: Rc<Volume>) {
        self.by_id.borrow_mut().insert(volume.attached().volume, volume.clone());
        let (mut by_command, mut leaving) = (false, None);
        if let Some(entry) = self.entries.borrow_mut().get_mut(name) {
            leaving = entry.leaving.take();
            by_command = entry.is_asked() && leaving.is_none();
            (entry.fenced, entry.fenced_by) = (None, None);
        }
        // Before anybody is told: a command has not succeeded if a restart forgets it.
        if by_command {
            self.keep(name);
        }
        self.set(name, Stage::Attached(volume.clone()));
        // A command has changed its mind meanwhile.
        if leaving.is_some()
            && let Err(error) = self.detach_attached(name, volume)
        {
            tracing::warn!(volume = name, "it stays attached: {error:#}");
        }
    }

    /// What there is here of a volume that is not attached.
    pub fn kept(&self, name: &str) -> Option<Kept> {
        self.entries.borrow().get(name).and_then(|entry| entry.kept.clone())
    }

    /// Who fenced a volume off, if somebody did.
    pub fn fenced_by(&self, name: &str) -> Option<FencedBy> {
        self.entries.borrow().get(name).and_then(|entry| entry.fenced_by.clone())
    }

    pub(super) fn set_kept(&self, name: &str, kept: Option<Kept>) {
        if let Some(entry) = self.entries.borrow_mut().get_mut(name) {
            entry.kept = kept;
        }
    }

    /// Whether what is missing is a link that may be there in a moment.
    fn link_may_come(&self, failure: &Failure) -> bool {
        *failure == Failure::Link && (self.router.is_up() || !self.link_tried.get())
    }

    fn set(&self, name: &str, stage: Stage) {
        if let Some(entry) = self.entries.borrow().get(name) {
            entry.stage.send_replace(stage);
        }
    }

    /// Hands what the link says to whom it concerns, until the link is closed.
    pub async fn run_link(self: Rc<Self>, mut events: mpsc::UnboundedReceiver<LinkEvent>) {
        let mut batch = Vec::with_capacity(EVENT_BATCH);
        let mut was_up = None;
        while events.recv_many(&mut batch, EVENT_BATCH).await > 0 {
            let mut frames: Vec<(VolumeId, Frame<ToHost>)> = Vec::new();
            for event in batch.drain(..) {
                match event {
                    LinkEvent::Frame(frame) => frames.extend(self.router.route(frame)),
                    LinkEvent::Stores(stores) => {
                        if let Err(error) = self.state.save_stores(&stores) {
                            tracing::warn!("stores will have to be asked for again: {error:#}");
                        }
                    }
                    LinkEvent::Early { version } => {
                        self.router.set_version(version);
                        self.router.set_early();
                        self.resume_volumes();
                    }
                    LinkEvent::Unreachable => {
                        if self.router.is_early() {
                            self.set_link(false);
                        }
                        if !self.link_tried.replace(true) {
                            self.link.send_modify(|generation| *generation += 1);
                        }
                    }
                    LinkEvent::Up { peer, software, version } => {
                        self.deliver(&mut frames);
                        self.router.set_version(version);
                        tracing::info!(peer, software, "the store is connected");
                        was_up = Some(true);
                        self.link_tried.set(true);
                        self.set_link(true);
                        tokio::task::spawn_local(self.clone().free_gone());
                    }
                    LinkEvent::Down { reason } => {
                        self.deliver(&mut frames);
                        if self.stopping.get() {
                            tracing::info!("the link to the store has ended: {reason}");
                        } else if was_up != Some(false) {
                            tracing::warn!("the store cannot be reached, trying on: {reason}");
                        }
                        if was_up.replace(false) == Some(true) || self.router.is_up() {
                            self.set_link(false);
                        }
                    }
                }
            }
            self.deliver(&mut frames);
        }
    }

    fn set_link(&self, up: bool) {
        self.router.set_up(up);
        if up {
            self.resume_volumes();
        } else {
            for volume in self.volumes() {
                volume.with(|now, engine| engine.handle_link_down(now));
            }
        }
        self.link.send_modify(|generation| *generation += 1);
    }

    /// Resumes the volumes that have not begun to.
    fn resume_volumes(&self) {
        for volume in self.volumes() {
            volume.with(|now, engine| {
                if engine.is_link_down() {
                    engine.handle_link_up(now);
                }
            });
        }
    }

    /// Frames of one volume that follow each other make one turn of it.
    fn deliver(&self, frames: &mut Vec<(VolumeId, Frame<ToHost>)>) {
        let mut rest = std::mem::take(frames).into_iter().peekable();
        while let Some((id, first)) = rest.next() {
            let run = std::iter::once(first).chain(std::iter::from_fn(|| {
                rest.next_if(|(next, _)| *next == id).map(|(_, frame)| frame)
            }));
            let run: Vec<Frame<ToHost>> = run.collect();
            // A volume that is no longer attached wants nothing.
            let volume = self.by_id.borrow().get(&id).cloned();
            if let Some(volume) = volume {
                volume.handle_messages(run.into_iter());
            }
        }
    }
}
