//! The volumes that somebody wants, by name: where each is on its way, and who wants it.

use crate::failure::AttachFailure;
use crate::front::placement::Seat;
use crate::task::{AttachTask, Leaving};
use crate::volume::Volume;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use tokio::sync::watch;

/// Where a volume is on its way.
#[derive(Clone)]
pub enum AttachStage {
    /// An attempt to attach it is under way. The failure is that of the last attempt.
    Trying(Option<AttachFailure>),
    /// The last attempt failed. The next one will come.
    Waiting(AttachFailure),
    /// Attached.
    Attached(Rc<Volume>),
    /// A command ends it: the store has everything, and is about to hear so.
    Detaching,
    /// Given up.
    Ended(AttachFailure),
}

/// The host that ended this host's epoch of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FencedBy {
    /// The epoch that ended it.
    pub epoch: u64,
    /// Identity of that host, once the store has said it.
    pub host: Option<String>,
}

/// The source of a wish for a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// The command line, or the state directory: for ever.
    Always,
    /// A command: until it fails.
    Command { take_over: bool },
    /// A client, where that is enough: until it fails.
    Client,
}

/// The wishes of commands and of the command line for a volume.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Demand {
    /// An operator named it: tried for ever, even if nobody asks.
    pub always: bool,
    /// Commands that asked for it.
    pub asked: u64,
    /// How many had asked when one gave up last. Their wishes do not count any more.
    cancelled: u64,
    /// The next attempt may take it from a host that is connected.
    take_over: bool,
}

impl Demand {
    /// Whether a command that asked for the volume has not given up.
    pub fn is_asked(&self) -> bool {
        self.asked > self.cancelled
    }
}

struct Entry {
    stage: watch::Sender<AttachStage>,
    demand: Demand,
    task: Rc<AttachTask>,
    fenced_by: Option<FencedBy>,
    /// Why it is fenced, while a command tries to attach it again.
    fenced: Option<String>,
    /// Keeps the volume on this thread.
    _seat: Seat,
}

/// All entries.
#[derive(Default)]
pub(super) struct Entries {
    by_name: RefCell<BTreeMap<String, Entry>>,
}

impl Entries {
    /// Adds a wish for a volume, whose stage the receiver shows. If the volume is new here, returns
    /// the task to start: one of those that `made` makes.
    pub fn wish(
        &self,
        name: &str,
        wish: Wish,
        made: impl FnOnce() -> (Rc<AttachTask>, Seat),
    ) -> (watch::Receiver<AttachStage>, Option<Rc<AttachTask>>) {
        let mut entries = self.by_name.borrow_mut();
        let known = entries.contains_key(name);
        let entry = entries.entry(name.to_owned()).or_insert_with(|| {
            let (task, seat) = made();
            Entry {
                stage: watch::Sender::new(AttachStage::Trying(None)),
                demand: Demand::default(),
                task,
                fenced_by: None,
                fenced: None,
                _seat: seat,
            }
        });
        match wish {
            Wish::Always => entry.demand.always = true,
            Wish::Command { take_over } => {
                entry.demand.asked += 1;
                entry.demand.take_over |= take_over;
                entry.task.set_leaving(None);
                entry.stage.send_if_modified(|stage| {
                    let waiting = matches!(stage, AttachStage::Waiting(_));
                    if waiting {
                        *stage = AttachStage::Trying(None);
                    }
                    waiting
                });
                entry.task.wake();
            }
            Wish::Client => {}
        }
        let new = (!known).then(|| entry.task.clone());
        (entry.stage.subscribe(), new)
    }

    /// Where a volume is on its way.
    pub fn stage(&self, name: &str) -> Option<AttachStage> {
        self.by_name.borrow().get(name).map(|entry| entry.stage.borrow().clone())
    }

    /// Where all volumes are on their way, by name.
    pub fn stages(&self) -> Vec<(String, AttachStage)> {
        let entries = self.by_name.borrow();
        entries.iter().map(|(name, entry)| (name.clone(), entry.stage.borrow().clone())).collect()
    }

    /// Shows the stage of a volume from now on.
    pub fn subscribe(&self, name: &str) -> Option<watch::Receiver<AttachStage>> {
        self.by_name.borrow().get(name).map(|entry| entry.stage.subscribe())
    }

    /// Whether the registry has the volume.
    pub fn contains(&self, name: &str) -> bool {
        self.by_name.borrow().contains_key(name)
    }

    /// Sets where a volume is on its way.
    pub fn set(&self, name: &str, stage: AttachStage) {
        if let Some(entry) = self.by_name.borrow().get(name) {
            entry.stage.send_replace(stage);
        }
    }

    /// Forgets a volume.
    pub fn remove(&self, name: &str) {
        if let Some(entry) = self.by_name.borrow_mut().remove(name) {
            entry.task.forget();
        }
    }

    /// A volume stays wanted for ever.
    pub fn keep(&self, name: &str) {
        if let Some(entry) = self.by_name.borrow_mut().get_mut(name) {
            entry.demand.always = true;
        }
    }

    /// The task that attaches a volume.
    pub fn task(&self, name: &str) -> Option<Rc<AttachTask>> {
        self.by_name.borrow().get(name).map(|entry| entry.task.clone())
    }

    /// The wishes for a volume.
    pub fn demand(&self, name: &str) -> Option<Demand> {
        self.by_name.borrow().get(name).map(|entry| entry.demand)
    }

    /// The number of commands that the next attempt answers, and whether it may take the volume
    /// from a connected host. `None` if a command does not want the volume any more.
    pub fn next_attempt(&self, name: &str) -> Option<(u64, bool)> {
        let mut entries = self.by_name.borrow_mut();
        let entry = entries.get_mut(name)?;
        if entry.task.leaving().is_some() {
            return None;
        }
        Some((entry.demand.asked, std::mem::take(&mut entry.demand.take_over)))
    }

    /// The next attempt may take the volume over as well, unless the command that allowed it has
    /// given up. `asked` is the number of commands that the last attempt answered.
    pub fn allow_take_over(&self, name: &str, asked: u64) {
        if let Some(entry) = self.by_name.borrow_mut().get_mut(name)
            && entry.demand.cancelled < asked
        {
            entry.demand.take_over = true;
        }
    }

    /// Notes the attach of a volume. Returns whether a command asked for it, and whether one
    /// changed its mind meanwhile.
    pub fn conclude(&self, name: &str) -> (bool, Option<Leaving>) {
        let mut entries = self.by_name.borrow_mut();
        let Some(entry) = entries.get_mut(name) else { return (false, None) };
        let leaving = entry.task.leaving();
        entry.task.set_leaving(None);
        (entry.fenced, entry.fenced_by) = (None, None);
        (entry.demand.is_asked() && leaving.is_none(), leaving)
    }

    /// Notes that nobody wants a detached volume any more. If it was fenced off before, it is so
    /// again.
    pub fn give_up(&self, name: &str) {
        let mut entries = self.by_name.borrow_mut();
        let Some(entry) = entries.get_mut(name) else { return };
        match entry.fenced.take() {
            None => {
                entry.task.forget();
                entries.remove(name);
            }
            Some(why) => {
                entry.task.set_leaving(None);
                entry.demand.take_over = false;
                entry.stage.send_replace(AttachStage::Ended(AttachFailure::Fenced(why)));
            }
        }
    }

    /// Notes that a command wants a detached volume gone.
    pub fn detach(&self, name: &str, drop_undelivered: bool) {
        if let Some(entry) = self.by_name.borrow_mut().get_mut(name) {
            entry.demand.always = false;
            entry.task.set_leaving(Some(Leaving::Detached { drop_undelivered }));
            entry.task.wake();
        }
    }

    /// Notes that the command that asked for a volume does not wait for it any more. Its permission
    /// to take the volume from another host ends, even if others still wait for the volume.
    pub fn cancel(&self, name: &str) {
        let mut entries = self.by_name.borrow_mut();
        let Some(entry) = entries.get_mut(name) else { return };
        (entry.demand.take_over, entry.demand.cancelled) = (false, entry.demand.asked);
        if entry.demand.always {
            return;
        }
        entry.task.set_leaving(Some(Leaving::Cancelled));
        entry.task.wake();
    }

    /// The host that fenced a volume off.
    pub fn fenced_by(&self, name: &str) -> Option<FencedBy> {
        self.by_name.borrow().get(name).and_then(|entry| entry.fenced_by.clone())
    }

    /// Notes that a command tries to attach a fenced volume again. If the attempt fails, the volume
    /// is fenced off as before.
    pub fn remember_fence(&self, name: &str, why: String, by: Option<FencedBy>) {
        if let Some(entry) = self.by_name.borrow_mut().get_mut(name) {
            (entry.fenced, entry.fenced_by) = (Some(why), by);
        }
    }

    /// A volume is fenced off by the host of this epoch.
    pub fn fence(&self, name: &str, epoch: u64, why: String) {
        if let Some(entry) = self.by_name.borrow_mut().get_mut(name) {
            entry.fenced_by = Some(FencedBy { epoch, host: None });
        }
        self.set(name, AttachStage::Ended(AttachFailure::Fenced(why)));
    }

    /// The store has said which host has the epoch that fenced a volume off.
    pub fn name_fence(&self, name: &str, epoch: u64, host: &str, why: String) {
        let mut entries = self.by_name.borrow_mut();
        let Some(entry) = entries.get_mut(name) else { return };
        let Some(by) = entry.fenced_by.as_mut().filter(|by| by.epoch == epoch) else { return };
        by.host = Some(host.to_owned());
        entry.stage.send_if_modified(|stage| {
            let fenced = matches!(stage, AttachStage::Ended(AttachFailure::Fenced(_)));
            if fenced {
                *stage = AttachStage::Ended(AttachFailure::Fenced(why));
            }
            fenced
        });
    }
}
