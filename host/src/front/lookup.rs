//! What clients find: volumes that are attached, and what they may have attached.

use super::{Front, LOOKUP_LIMIT, Stage, Wish};
use crate::attach::{Failure, snapshot_of};
use crate::bitmaps::Bitmaps;
use crate::export_info;
use crate::iscsi::{Opened, Volumes};
use crate::nbd::Exports;
use crate::volume::Volume;
use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use longhaul_core::front::iscsi::OpenError;
use longhaul_core::front::nbd::{ExportEntry, ExportInfo, LookupError, LookupErrorKind};
use std::rc::Rc;
use tokio::sync::watch;

/// Why a name leads to nothing.
fn not_attached(name: &str) -> String {
    format!(
        "volume {name} is not attached here: an operator attaches it with `longhaul attach {name}`"
    )
}

impl Front {
    /// Where a volume stands that a client asks for. Only one that is `entering` has anything attached,
    /// where `--attach-on-demand` lets it, and never a volume that another host has. A snapshot of a
    /// volume of this host is opened for whoever looks: that takes nothing from anybody.
    fn find(
        self: &Rc<Self>,
        name: &str,
        entering: bool,
    ) -> Result<watch::Receiver<Stage>, LookupError> {
        let unknown = |kind| Err(LookupError { kind, message: not_attached(name) });
        let entries = self.entries.borrow();
        if let Some(entry) = entries.get(name) {
            return Ok(entry.stage.subscribe());
        }
        let of_ours = snapshot_of(name).is_some_and(|volume| entries.contains_key(volume));
        drop(entries);
        let on_demand = self.on_demand.borrow().iter().any(|pattern| pattern.matches(name));
        if of_ours || on_demand && entering {
            return Ok(self.begin(name, Wish::Client));
        }
        unknown(if on_demand { LookupErrorKind::OnEntry } else { LookupErrorKind::Unknown })
    }

    async fn lookup(
        self: Rc<Self>,
        name: String,
        entering: bool,
    ) -> Result<(ExportInfo, Rc<Volume>), LookupError> {
        let name = if name.is_empty() { self.only_volume()? } else { name };
        if self.stopping.get() {
            let message = "the host is shutting down".into();
            return Err(LookupError { kind: LookupErrorKind::Shutdown, message });
        }
        let mut stage = self.find(&name, entering)?;
        let mut link = self.link.subscribe();
        let settled = async {
            loop {
                match &*stage.borrow_and_update() {
                    Stage::Trying(_) => {}
                    Stage::Waiting(failure) if self.link_may_come(failure) => {}
                    Stage::Waiting(_) | Stage::Attached(_) | Stage::Detaching | Stage::Ended(_) => {
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
            Stage::Attached(volume) => return Ok((export_info(&volume), volume)),
            Stage::Detaching => {
                (LookupErrorKind::Policy, format!("volume {name} is being detached"))
            }
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
                    Failure::InUse(why)
                    | Failure::Refused(why)
                    | Failure::Fenced(why)
                    | Failure::Disk(why) => (LookupErrorKind::Policy, why),
                }
            }
        };
        Err(LookupError { kind, message })
    }

    /// What the empty name means: the only volume there is.
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

    fn attached_names(&self) -> Vec<String> {
        let stages = self.stages().into_iter();
        let attached = stages.filter(|(_, stage)| matches!(stage, Stage::Attached(_)));
        attached.map(|(name, _)| name).collect()
    }
}

impl Volumes for Front {
    fn open(self: Rc<Self>, name: String) -> LocalBoxFuture<'static, Result<Opened, OpenError>> {
        Box::pin(async move {
            if name.is_empty() {
                return Err(OpenError::NotFound("the target's name ends without one".into()));
            }
            let (_, volume) =
                self.clone().lookup(name, true).await.map_err(|error| match error.kind {
                    LookupErrorKind::Unknown => OpenError::NotFound(error.message),
                    _ => OpenError::Unavailable(error.message),
                })?;
            let saved = self.reservations(&volume).await.map_err(OpenError::Unavailable)?;
            Ok((volume, saved))
        })
    }

    fn list(self: Rc<Self>) -> LocalBoxFuture<'static, Vec<String>> {
        Box::pin(async move { self.attached_names() })
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
        entering: bool,
    ) -> LocalBoxFuture<'static, Result<(ExportInfo, Rc<Volume>), LookupError>> {
        Box::pin(self.lookup(name, entering))
    }

    fn bitmaps(self: Rc<Self>, name: String) -> LocalBoxFuture<'static, Option<Bitmaps>> {
        Box::pin(Bitmaps::of(self.router.clone(), name))
    }

    fn list(self: Rc<Self>) -> LocalBoxFuture<'static, Result<Vec<ExportEntry>, LookupError>> {
        let entry = |name| ExportEntry { name, description: String::new() };
        Box::pin(async move { Ok(self.attached_names().into_iter().map(entry).collect()) })
    }
}
