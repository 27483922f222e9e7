//! The volumes that clients find: attached ones, and those that they may have attached.

use super::entries::{AttachStage, Wish};
use super::others::Home;
use super::reservations::LOOKUP_LIMIT;
use super::volume_registry::VolumeRegistry;
use crate::bitmaps::Bitmaps;
use crate::failure::AttachFailure;
use crate::iscsi::{IscsiHome, OpenedVolume, ReservationError, Volumes};
use crate::nbd::{Exports, FoundExport, NbdHome, export_info};
use crate::volume::{Volume, snapshot_of};
use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use longhaul_core::front::iscsi::{
    Asker, CopyAnswer, CopyMessage, CopyQuestion, OpenError, TargetId,
};
use longhaul_core::front::nbd::{ExportEntry, ExportInfo, LookupError, LookupErrorKind};
use std::rc::Rc;
use tokio::sync::watch;

/// Why a name leads to nothing.
fn not_attached(name: &str) -> String {
    format!(
        "volume {name} is not attached here: an operator attaches it with `longhaul attach {name}`"
    )
}

impl VolumeRegistry {
    /// Where a volume stands that a client asks for. Only one that is `entering` has anything
    /// attached, where `--attach-on-demand` lets it, and never a volume that another host has. A
    /// snapshot of a volume of this host is opened for every initiator: that takes nothing from
    /// anybody.
    fn stage_for(
        self: &Rc<Self>,
        name: &str,
        entering: bool,
    ) -> Result<watch::Receiver<AttachStage>, LookupError> {
        let unknown = |kind| Err(LookupError { kind, message: not_attached(name) });
        if let Some(stage) = self.entries.subscribe(name) {
            return Ok(stage);
        }
        let of_ours = snapshot_of(name).is_some_and(|volume| self.entries.contains(volume));
        let on_demand = self.on_demand.borrow().iter().any(|pattern| pattern.matches(name));
        if of_ours || on_demand && entering {
            return Ok(self.begin(name, Wish::Client));
        }
        unknown(if on_demand { LookupErrorKind::OnEntry } else { LookupErrorKind::Unknown })
    }

    /// The thread that has the volume that a client asks for, unless that is this one.
    fn place(&self, name: &str) -> anyhow::Result<Option<Box<dyn Home>>> {
        let Some(others) = self.others.get() else { return Ok(None) };
        let on_demand = self.on_demand.borrow().iter().any(|pattern| pattern.matches(name));
        others.place(name, on_demand)
    }

    async fn lookup(
        self: Rc<Self>,
        name: String,
        entering: bool,
    ) -> Result<(ExportInfo, Rc<Volume>), LookupError> {
        let name = if name.is_empty() { self.only_volume().await? } else { name };
        let Some(_seat) = self.host.sit(&name) else {
            let message = format!("volume {name} is about to move to another thread: try again");
            return Err(LookupError { kind: LookupErrorKind::Policy, message });
        };
        if self.shutdown.has_begun() {
            let message = "the host is shutting down".into();
            return Err(LookupError { kind: LookupErrorKind::Shutdown, message });
        }
        let mut stage = self.stage_for(&name, entering)?;
        let mut link = self.link.subscribe();
        let settled = async {
            loop {
                match &*stage.borrow_and_update() {
                    AttachStage::Trying(_) => {}
                    AttachStage::Waiting(failure) if self.link.may_help(failure) => {}
                    AttachStage::Waiting(_)
                    | AttachStage::Attached(_)
                    | AttachStage::Detaching
                    | AttachStage::Ended(_) => {
                        return;
                    }
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
            AttachStage::Attached(volume) => return Ok((export_info(&volume), volume)),
            AttachStage::Detaching => {
                (LookupErrorKind::Policy, format!("volume {name} is being detached"))
            }
            AttachStage::Trying(None) => (
                LookupErrorKind::Policy,
                format!("volume {name} is still being attached; try again"),
            ),
            AttachStage::Trying(Some(failure))
            | AttachStage::Waiting(failure)
            | AttachStage::Ended(failure) => match failure {
                AttachFailure::Link => {
                    let status = self.host.router.status();
                    let why = status.last_error.unwrap_or_else(|| "not connected yet".into());
                    let message = format!(
                        "volume {name} is not attached yet: the store cannot be reached ({why}); \
                         the host keeps trying, try again later"
                    );
                    (LookupErrorKind::Policy, message)
                }
                AttachFailure::NotFound(why) => (LookupErrorKind::Unknown, why),
                AttachFailure::InUse(why)
                | AttachFailure::Refused(why)
                | AttachFailure::Fenced(why)
                | AttachFailure::Disk(why) => (LookupErrorKind::Policy, why),
            },
        };
        Err(LookupError { kind, message })
    }

    /// The empty name means the only volume there is.
    async fn only_volume(&self) -> Result<String, LookupError> {
        let mut names = match self.others.get() {
            Some(others) => others.names(false).await,
            None => self.names(false),
        };
        names.pop().filter(|_| names.is_empty()).ok_or_else(|| LookupError {
            kind: LookupErrorKind::Unknown,
            message: "the host has no default export: name a volume, `nbdinfo --list` shows them"
                .into(),
        })
    }

    /// The names of the volumes of this thread, or of those that are `attached`.
    pub fn names(&self, attached: bool) -> Vec<String> {
        let stages = self.stages().into_iter();
        let wanted = |stage: &AttachStage| !attached || matches!(stage, AttachStage::Attached(_));
        stages.filter(|(_, stage)| wanted(stage)).map(|(name, _)| name).collect()
    }

    /// The attached volumes of all threads.
    async fn attached_names(&self) -> Vec<String> {
        match self.others.get() {
            Some(others) => others.names(true).await,
            None => self.names(true),
        }
    }
}

impl Volumes for VolumeRegistry {
    fn elsewhere(&self, name: &str) -> anyhow::Result<Option<Box<dyn IscsiHome>>> {
        Ok(self.place(name)?.map(|home| home as Box<dyn IscsiHome>))
    }

    fn open(
        self: Rc<Self>,
        name: String,
    ) -> LocalBoxFuture<'static, Result<OpenedVolume, OpenError>> {
        Box::pin(async move {
            if name.is_empty() {
                return Err(OpenError::NotFound("the target's name ends without one".into()));
            }
            let (_, volume) =
                self.clone().lookup(name, true).await.map_err(|error| match error.kind {
                    LookupErrorKind::Unknown => OpenError::NotFound(error.message),
                    _ => OpenError::Unavailable(error.message),
                })?;
            let saved = self.reservations.load(&volume).await;
            let saved = saved.map_err(|error| OpenError::Unavailable(error.to_string()))?;
            Ok((volume, saved))
        })
    }

    fn ask_others(
        self: Rc<Self>,
        asker: Asker,
        question: CopyQuestion,
    ) -> LocalBoxFuture<'static, Vec<(TargetId, CopyAnswer)>> {
        match self.others.get() {
            Some(others) => others.ask(asker, question),
            None => Box::pin(async { Vec::new() }),
        }
    }

    fn tell(self: Rc<Self>, to: TargetId, message: CopyMessage) -> LocalBoxFuture<'static, bool> {
        match self.others.get() {
            Some(others) => others.tell(to, message),
            None => Box::pin(async { false }),
        }
    }

    fn list(self: Rc<Self>) -> LocalBoxFuture<'static, Vec<String>> {
        Box::pin(async move { self.attached_names().await })
    }

    fn save(
        self: Rc<Self>,
        volume: Rc<Volume>,
        data: Bytes,
    ) -> LocalBoxFuture<'static, Result<(), ReservationError>> {
        Box::pin(async move { self.reservations.save(&volume, &data).await })
    }
}

impl Exports for VolumeRegistry {
    fn elsewhere(
        self: Rc<Self>,
        name: String,
    ) -> LocalBoxFuture<'static, Result<FoundExport, LookupError>> {
        Box::pin(async move {
            let name = if name.is_empty() { self.only_volume().await? } else { name };
            let elsewhere = self.place(&name).map_err(|error| LookupError {
                kind: LookupErrorKind::Policy,
                message: format!("{error:#}"),
            })?;
            Ok((name, elsewhere.map(|home| home as Box<dyn NbdHome>)))
        })
    }

    fn open(
        self: Rc<Self>,
        name: String,
        entering: bool,
    ) -> LocalBoxFuture<'static, Result<(ExportInfo, Rc<Volume>), LookupError>> {
        Box::pin(self.lookup(name, entering))
    }

    fn bitmaps(self: Rc<Self>, name: String) -> LocalBoxFuture<'static, Option<Bitmaps>> {
        Box::pin(Bitmaps::of(self.host.router.clone(), name))
    }

    fn list(self: Rc<Self>) -> LocalBoxFuture<'static, Result<Vec<ExportEntry>, LookupError>> {
        let entry = |name| ExportEntry { name, description: String::new() };
        Box::pin(async move { Ok(self.attached_names().await.into_iter().map(entry).collect()) })
    }
}
