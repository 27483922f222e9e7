//! The volumes of a host: attached at start or when a client asks, looked up by name.
//!
//! A volume is in one of three states: being attached (again and again, as long as the link or an
//! operator may help), attached, or fenced off, which only a restart ends: this host taking the
//! volume back by itself would only throw the other one out.

mod reservations;

use super::ahead::{Ahead, Limits};
use super::attach::{self, Failure, Kept};
use super::bitmaps::Bitmaps;
use super::iscsi::{Opened, Volumes};
use super::nbd::Exports;
use super::state::{JournalShape, StateDir};
use super::uplink::Router;
use super::volume::{Clock, Volume};
use crate::keys::KeyFile;
use crate::link::LinkEvent;
use crate::units::show_bytes;
use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use longhaul_core::block::{SECTOR_BYTES, VolumeId};
use longhaul_core::front::iscsi::OpenError;
use longhaul_core::front::nbd::{ExportEntry, ExportInfo, LookupError, LookupErrorKind};
use longhaul_core::host::{Durability, Event, OnJournalFailure};
use longhaul_core::pack::Compression;
use longhaul_core::wire::link::{
    AttachError, Frame, ToHost, ToStore, VolumeOperation, VolumeReply,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// How long a client waits for the link's first connection and for an attach before it is told to
/// try again: less than the patience of clients, and enough for a journal to be made or recovered on
/// most disks.
const LOOKUP_LIMIT: Duration = Duration::from_secs(10);

/// Pause before an attach that was refused is tried again.
const RETRY: Duration = Duration::from_secs(5);

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
    /// What the keys of encrypted volumes open with.
    pub key_files: Vec<KeyFile>,
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
    /// Given up: why.
    Ended(Failure),
}

struct Entry {
    stage: watch::Sender<Stage>,
    /// Attached at start: tried for ever, even if nobody asks.
    pinned: bool,
    /// What there is here of the volume; counts until it is attached.
    kept: Option<Kept>,
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
    gone: RefCell<Option<OnGone>>,
}

/// Told the name of a volume that was taken away, and why.
type OnGone = Box<dyn Fn(&str, &str)>;

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
            gone: RefCell::default(),
        })
    }

    /// Who is told when a volume is taken away from this host.
    pub fn on_gone(&self, gone: impl Fn(&str, &str) + 'static) {
        self.gone.replace(Some(Box::new(gone)));
    }

    /// Attaches a volume and keeps trying.
    pub fn pin(self: &Rc<Self>, name: &str) {
        self.begin(name, true);
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

    /// No more attaches.
    pub fn stop(&self) {
        self.stopping.set(true);
    }

    fn begin(self: &Rc<Self>, name: &str, pinned: bool) -> watch::Receiver<Stage> {
        let mut entries = self.entries.borrow_mut();
        if let Some(entry) = entries.get_mut(name) {
            entry.pinned |= pinned;
            return entry.stage.subscribe();
        }
        let stage = watch::Sender::new(Stage::Trying(None));
        let receiver = stage.subscribe();
        entries.insert(name.to_owned(), Entry { stage, pinned, kept: None });
        tokio::task::spawn_local(self.clone().attach(name.to_owned()));
        receiver
    }

    async fn attach(self: Rc<Self>, name: String) {
        let mut link = self.link.subscribe();
        let mut told: Option<Failure> = None;
        let mut journal = None;
        loop {
            if self.stopping.get() {
                return;
            }
            link.mark_unchanged();
            self.set(&name, Stage::Trying(told.clone()));
            let failure = match attach::attach(&self, &name, &mut journal).await {
                Ok(volume) => {
                    self.by_id.borrow_mut().insert(volume.attached().volume, volume.clone());
                    self.set(&name, Stage::Attached(volume));
                    return;
                }
                Err(failure) => failure,
            };
            if told.as_ref() != Some(&failure) {
                match &failure {
                    Failure::Link => tracing::info!(volume = name, "waiting for the store"),
                    Failure::NotFound(why) | Failure::Refused(why) | Failure::Disk(why) => {
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
            self.set(&name, Stage::Waiting(failure));
            // Nobody may be left who wants it.
            let wanted = link_may_come || {
                let mut entries = self.entries.borrow_mut();
                let wanted = entries.get(&name).is_some_and(|entry| entry.pinned);
                if !wanted {
                    entries.remove(&name);
                }
                wanted
            };
            if !wanted {
                return;
            }
            tokio::select! {
                _ = link.changed() => {}
                () = tokio::time::sleep(RETRY), if !wait_for_link => {}
            }
        }
    }

    /// What there is here of a volume that is not attached.
    pub fn kept(&self, name: &str) -> Option<Kept> {
        self.entries.borrow().get(name).and_then(|entry| entry.kept.clone())
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
                    }
                    LinkEvent::Down { reason } => {
                        self.deliver(&mut frames);
                        if was_up != Some(false) {
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

    /// Something an engine reported.
    pub(super) fn handle_event(&self, volume: &Volume, event: Event) {
        let name = volume.name();
        match event {
            Event::Fenced { epoch } => {
                let lag = volume.status().0.lag_bytes;
                let why = format!(
                    "volume {name} was attached by another host with epoch {epoch} and is fenced off \
                     here; {} that were not delivered are kept in {}: restart this host to attach it \
                     here again",
                    show_bytes(lag),
                    self.state.volume_dir(volume.attached().volume).display()
                );
                tracing::error!(volume = name, "{why}");
                self.release(volume, lag == 0);
                if let Some(gone) = &*self.gone.borrow() {
                    gone(name, &why);
                }
                self.set(name, Stage::Ended(Failure::Refused(why)));
            }
            Event::JournalFailed { error, continues } => {
                let then = if continues {
                    "the volume goes on with every flush waiting for the store"
                } else {
                    "the volume has stopped"
                };
                let why = format!("the journal failed: {error}; {then}; replace the disk");
                tracing::error!(volume = name, "{why}");
                volume.set_trouble(why);
            }
            Event::JournalDamaged { range, file, offset, problem, shipping_waits } => {
                let at = if range.is_empty() { String::new() } else { format!(" at {range}") };
                let then = if shipping_waits {
                    "; nothing from there on reaches the store unless it can be read after all, which is tried again \
                     every minute: check the disk, and copy what clients can still read before this host is stopped"
                } else {
                    "; check disk and memory"
                };
                let why =
                    format!("journal file {file}, offset {offset} is damaged{at}: {problem}{then}");
                tracing::error!(volume = name, "{why}");
                volume.set_trouble(why);
            }
            Event::StoreDamaged { range } => tracing::error!(
                volume = name,
                "the store's data is damaged at {range}: run `longhaul check` on the stopped store"
            ),
            Event::Resized { sectors } => self.resized(volume, sectors),
            Event::Room { room: true } => tracing::info!(volume = name, "there is room again"),
            Event::Room { room: false } => tracing::warn!(
                volume = name,
                "the tenant is over its quota of stored bytes: new data is refused with `no space` until there is room"
            ),
            Event::TraceReplayed { followed: true } => {
                tracing::info!(volume = name, "the trace has been read ahead to its end");
            }
            Event::TraceReplayed { followed: false } => tracing::info!(
                volume = name,
                "the trace is read ahead no further: what is read now is not in it"
            ),
            Event::Resumed { committed } => {
                tracing::info!(volume = name, committed, "resumed");
                volume.end_trouble(&self.not_at_the_store(volume));
            }
            Event::Refused(AttachError::NotFound) if volume.is_read_only() => {
                let why = self.not_at_the_store(volume);
                tracing::error!(volume = name, "{why}");
                if let Some(gone) = &*self.gone.borrow() {
                    gone(name, &why);
                }
                // There may be another one of that name.
                self.entries.borrow_mut().remove(name);
                self.by_id.borrow_mut().remove(&volume.attached().volume);
            }
            Event::Refused(AttachError::NotFound) => {
                let why = self.not_at_the_store(volume);
                if volume.trouble().as_ref() != Some(&why) {
                    tracing::error!(volume = name, "{why}");
                    volume.set_trouble(why);
                }
            }
            Event::Refused(error) => {
                tracing::warn!(volume = name, "the store does not let it go on for now: {error}");
            }
            Event::BatchRefused { reason } => {
                tracing::warn!(
                    volume = name,
                    "the store refused a batch, shipping it again: {reason}"
                );
            }
            Event::StoreBehind { committed, from } => {
                let why = format!(
                    "the store has writes up to {committed} only and once had more; the journal \
                     begins at {from}, so nothing is shipped any more: restore the store's data"
                );
                tracing::error!(volume = name, "{why}");
                volume.set_trouble(why);
            }
            Event::Warmed { bytes, failed_bytes: 0 } => {
                tracing::info!(volume = name, "warmed {}", show_bytes(bytes));
            }
            Event::Warmed { bytes, failed_bytes } => tracing::warn!(
                volume = name,
                "warmed {}; {} could not be read at the store",
                show_bytes(bytes),
                show_bytes(failed_bytes)
            ),
            Event::CacheFailed { error } => {
                let why = format!(
                    "the read cache is off: {error}; reads go to the store; check the disk and restart this host"
                );
                tracing::error!(volume = name, "{why}");
                volume.set_trouble(why);
            }
            // After a power cut it is what was on its way to the disk.
            Event::CacheDamaged { range, problem } => {
                tracing::debug!(
                    volume = name,
                    "the read cache does not have {range}: {problem}; it was read from the store"
                );
            }
            Event::CacheReady { found_bytes, dropped_bytes, dropped_all } => {
                let (found, dropped) = (show_bytes(found_bytes), show_bytes(dropped_bytes));
                if dropped_all {
                    tracing::warn!(
                        volume = name,
                        "the read cache begins empty: the store cannot say what was written since its {found} were cached"
                    );
                } else {
                    tracing::info!(
                        volume = name,
                        "the read cache has {found}, of which {dropped} were written elsewhere or later"
                    );
                }
            }
            Event::DamageTold { ranges, bytes } => tracing::warn!(
                volume = name,
                "the store's data is damaged in {ranges} ranges, {} in all: what the read cache has of it is written back",
                show_bytes(bytes)
            ),
            Event::WrittenBack { range, .. } => {
                tracing::debug!(volume = name, "{range} written back");
            }
            Event::Repaired { told_bytes, written_bytes } => tracing::warn!(
                volume = name,
                "of {} that the store's data is damaged in, {} were written back; the rest is not in the read cache, not to \
                 be had at the store, or on its way there",
                show_bytes(told_bytes),
                show_bytes(written_bytes)
            ),
            Event::Detached => {
                tracing::info!(volume = name, "detached");
                self.release(volume, true);
            }
        }
    }

    /// What there is to say of a volume that was attached and that the store does not have any more.
    fn not_at_the_store(&self, volume: &Volume) -> String {
        if volume.is_read_only() {
            return "the store does not have this snapshot any more: it was deleted".into();
        }
        format!(
            "the store does not have this volume any more: its data is another than it was, or was in memory only; \
             nothing is shipped until the volume is there again, and what was not delivered is kept in {}",
            self.state.volume_dir(volume.attached().volume).display()
        )
    }

    fn resized(&self, volume: &Volume, sectors: u64) {
        let size = show_bytes(sectors * SECTOR_BYTES);
        tracing::info!(volume = volume.name(), "resized, it has {size}");
        let noted = || -> anyhow::Result<()> {
            if let Some(mut file) = self.state.volume(volume.attached().volume)? {
                file.sectors = sectors;
                self.state.save_volume(&file)?;
            }
            Ok(())
        };
        if let Err(error) = noted() {
            // The next attach says it again.
            tracing::warn!(
                volume = volume.name(),
                "while it is not attached its old size is shown, because: {error:#}"
            );
        }
        let told = self.on_resized.borrow().clone();
        for told in told {
            told(volume, sectors);
        }
    }

    fn release(&self, volume: &Volume, delivered: bool) {
        let released = || -> anyhow::Result<()> {
            if let Some(mut file) = self.state.volume(volume.attached().volume)? {
                (file.released, file.delivered) = (true, delivered);
                self.state.save_volume(&file)?;
            }
            Ok(())
        };
        if let Err(error) = released() {
            tracing::warn!(
                volume = volume.name(),
                "it will be attached again at the next start, because: {error:#}"
            );
        }
    }

    async fn lookup(self: Rc<Self>, name: String) -> Result<(ExportInfo, Rc<Volume>), LookupError> {
        let name = if name.is_empty() { self.only_volume()? } else { name };
        if self.stopping.get() {
            let message = "the host is shutting down".into();
            return Err(LookupError { kind: LookupErrorKind::Shutdown, message });
        }
        let mut stage = self.begin(&name, false);
        let mut link = self.link.subscribe();
        let settled = async {
            loop {
                match &*stage.borrow_and_update() {
                    Stage::Trying(_) => {}
                    Stage::Waiting(failure) if self.link_may_come(failure) => {}
                    Stage::Waiting(_) | Stage::Attached(_) | Stage::Ended(_) => return,
                }
                tokio::select! {
                    // An entry that goes away has told its last failure before.
                    changed = stage.changed() => if changed.is_err() { return },
                    _ = link.changed() => {}
                }
            }
        };
        // Where it stands by then is the answer.
        let _ = tokio::time::timeout(LOOKUP_LIMIT, settled).await;
        let stage = stage.borrow().clone();
        let (kind, message) = match stage {
            Stage::Attached(volume) => return Ok((super::export_info(&volume), volume)),
            Stage::Trying(None) => (
                LookupErrorKind::Policy,
                format!("volume {name} is still being attached; try again"),
            ),
            Stage::Trying(Some(failure)) | Stage::Waiting(failure) | Stage::Ended(failure) => {
                match failure {
                    Failure::Link => {
                        let status = self.router.status();
                        let why = status.last_error.unwrap_or_else(|| "not connected yet".into());
                        let message = format!(
                            "volume {name} is not attached yet: the store cannot be reached ({why}); the \
                         host keeps trying, try again later"
                        );
                        (LookupErrorKind::Policy, message)
                    }
                    Failure::NotFound(why) => (LookupErrorKind::Unknown, why),
                    Failure::Refused(why) | Failure::Disk(why) => (LookupErrorKind::Policy, why),
                }
            }
        };
        Err(LookupError { kind, message })
    }

    fn only_volume(&self) -> Result<String, LookupError> {
        let entries = self.entries.borrow();
        let mut names = entries.keys();
        match (names.next(), names.next()) {
            (Some(name), None) => Ok(name.clone()),
            _ => Err(LookupError {
                kind: LookupErrorKind::Unknown,
                message: "there is no default export: name a volume, `nbdinfo --list` shows them"
                    .into(),
            }),
        }
    }

    async fn names(self: Rc<Self>) -> Result<Vec<ExportEntry>, LookupError> {
        let operation = VolumeOperation::List;
        let asked = self.router.call(|request| ToStore::Volume { request, operation });
        let mut exports = BTreeMap::new();
        if let Ok(Ok(ToHost::Volume { result: Ok(VolumeReply::List(volumes)), .. })) =
            tokio::time::timeout(Duration::from_secs(5), asked).await
        {
            for volume in volumes {
                exports.insert(volume.name, String::new());
            }
        }
        // Without the store these are what there is.
        for (name, stage) in self.stages() {
            let description = if let Stage::Attached(_) = stage { "attached" } else { "" };
            exports.insert(name, description.into());
        }
        let entry = |(name, description)| ExportEntry { name, description };
        Ok(exports.into_iter().map(entry).collect())
    }
}

impl Volumes for Front {
    fn open(self: Rc<Self>, name: String) -> LocalBoxFuture<'static, Result<Opened, OpenError>> {
        Box::pin(async move {
            if name.is_empty() {
                return Err(OpenError::NotFound("the target's name ends without one".into()));
            }
            let (_, volume) =
                self.clone().lookup(name).await.map_err(|error| match error.kind {
                    LookupErrorKind::Unknown => OpenError::NotFound(error.message),
                    _ => OpenError::Unavailable(error.message),
                })?;
            let saved = self.reservations(&volume).await.map_err(OpenError::Unavailable)?;
            Ok((volume, saved))
        })
    }

    fn list(self: Rc<Self>) -> LocalBoxFuture<'static, Vec<String>> {
        let names = self.names();
        Box::pin(async move {
            let all = names.await.unwrap_or_default();
            all.into_iter().map(|entry| entry.name).collect()
        })
    }

    fn save(
        self: Rc<Self>,
        volume: Rc<Volume>,
        data: Bytes,
    ) -> LocalBoxFuture<'static, Result<(), String>> {
        Box::pin(async move { self.save_reservations(&volume, &data).await })
    }
}

impl Exports for Front {
    fn open(
        self: Rc<Self>,
        name: String,
        _: bool,
    ) -> LocalBoxFuture<'static, Result<(ExportInfo, Rc<Volume>), LookupError>> {
        Box::pin(self.lookup(name))
    }

    fn bitmaps(self: Rc<Self>, name: String) -> LocalBoxFuture<'static, Option<Bitmaps>> {
        Box::pin(Bitmaps::of(self.router.clone(), name))
    }

    fn list(self: Rc<Self>) -> LocalBoxFuture<'static, Result<Vec<ExportEntry>, LookupError>> {
        Box::pin(self.names())
    }
}
