//! The one link of a host, shared by its volumes: routes replies to the volumes and tasks that wait
//! for them.
//!
//! Some replies name only the request, and each volume numbers its requests by itself. Such a
//! request gets a number of the whole host on the way out, and its own back on the way in. When the
//! link goes down, all that wait for replies hear so. The engines ask again by themselves.

use super::volume::Uplink;
use longhaul_core::block::{Epoch, VolumeId};
use longhaul_core::wire::link::{
    Changes, Frame, Lane, Moment, ReadError, RequestId, ToHost, ToStore,
};
use longhaul_link::{Client, LinkStatus};
use std::cell::{Cell, RefCell};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use tokio::sync::oneshot;

/// The receiver of a reply that names only its request.
enum Waiter {
    /// The shell.
    Service(oneshot::Sender<ToHost>),
    /// The shell, about a volume that no engine has yet.
    Early(VolumeId, oneshot::Sender<Frame<ToHost>>),
    /// A volume, which knows the request by this number.
    Volume(VolumeId, RequestId),
}

/// The link went down before the reply came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the link to the store went down")]
pub struct LinkLost;

/// The shared link.
pub struct Router {
    client: Client,
    up: Cell<bool>,
    /// It is not up yet, but takes reads that follow a Resume.
    early: Cell<bool>,
    /// Grows whenever the link goes up or down.
    generation: Cell<u64>,
    next: Cell<RequestId>,
    waiters: RefCell<BTreeMap<RequestId, Waiter>>,
    buffered: RefCell<Vec<(Lane, Frame<ToStore>)>>,
    urgent: RefCell<BTreeSet<VolumeId>>,
}

impl Router {
    /// Shares a link that is not up yet.
    pub fn new(client: Client) -> Router {
        Router {
            client,
            up: Cell::new(false),
            early: Cell::new(false),
            generation: Cell::new(0),
            next: Cell::new(1),
            waiters: RefCell::default(),
            buffered: RefCell::default(),
            urgent: RefCell::default(),
        }
    }

    /// Whether the store is connected.
    pub fn is_up(&self) -> bool {
        self.up.get()
    }

    /// Changes whenever the link goes up or down.
    pub fn generation(&self) -> u64 {
        self.generation.get()
    }

    /// How the link is doing.
    pub fn status(&self) -> LinkStatus {
        self.client.status()
    }

    /// Whether it is not up yet, but takes reads that follow a Resume.
    pub fn is_early(&self) -> bool {
        self.early.get()
    }

    /// The link is not up yet, but takes messages of volumes: it sends them now or when it is up.
    pub fn set_early(&self) {
        self.early.set(true);
    }

    /// The link went up or down.
    pub fn set_up(&self, up: bool) {
        let begun = self.early.replace(false);
        self.up.set(up);
        self.generation.set(self.generation.get() + 1);
        if up && begun {
            return;
        }
        // Those who wait learn that they wait in vain when their senders go.
        self.waiters.borrow_mut().clear();
        self.buffered.borrow_mut().clear();
    }

    /// The link, to close it.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Asks the store and waits for the reply as long as the link is up.
    pub async fn call(
        &self,
        request: impl FnOnce(RequestId) -> ToStore,
    ) -> Result<ToHost, LinkLost> {
        if !self.up.get() {
            return Err(LinkLost);
        }
        let (sender, reply) = oneshot::channel();
        let id = self.ask(Waiter::Service(sender));
        self.client.send(Lane::Control, request(id).into());
        reply.await.map_err(|_| LinkLost)
    }

    /// Asks for the changes of a volume that has just been attached and has no engine yet.
    pub async fn changes(
        &self,
        volume: VolumeId,
        epoch: Epoch,
        since: Moment,
    ) -> Result<Changes, LinkLost> {
        let ask = |request| ToStore::Changed { request, volume, epoch, since };
        let answer = self.ask_early(Lane::Control, volume, ask)?.await;
        match answer.map(|frame| frame.message) {
            Ok(ToHost::Changed { result: Ok(changes), .. }) => Ok(changes),
            Ok(ToHost::Changed { result: Err(ReadError::NotAttached), .. }) | Err(_) => {
                Err(LinkLost)
            }
            Ok(_) => Ok(Changes::Unknown),
        }
    }

    /// Asks about a volume that has just been attached and has no engine yet. If the link goes
    /// down, no answer comes. The caller has to wait for the answer: a later engine would take it
    /// for the answer to its own request.
    pub fn ask_early(
        &self,
        lane: Lane,
        volume: VolumeId,
        message: impl FnOnce(RequestId) -> ToStore,
    ) -> Result<oneshot::Receiver<Frame<ToHost>>, LinkLost> {
        if !self.up.get() {
            return Err(LinkLost);
        }
        let (sender, reply) = oneshot::channel();
        let request = self.ask(Waiter::Early(volume, sender));
        self.client.send(lane, message(request).into());
        Ok(reply)
    }

    fn ask(&self, waiter: Waiter) -> RequestId {
        let id = self.next.get();
        self.next.set(id + 1);
        self.waiters.borrow_mut().insert(id, waiter);
        id
    }

    /// The volume that a frame is for, as the volume expects it; nothing if the shell waited for it
    /// or nobody does.
    pub fn route(&self, mut frame: Frame<ToHost>) -> Option<(VolumeId, Frame<ToHost>)> {
        if let ToHost::Changed { request, volume, .. }
        | ToHost::Data { request, volume, .. }
        | ToHost::Status { request, volume, .. } = &frame.message
            && let Entry::Occupied(asked) = self.waiters.borrow_mut().entry(*request)
            && matches!(asked.get(), Waiter::Early(of, _) if of == volume)
        {
            if let Waiter::Early(_, sender) = asked.remove() {
                // The requester may have given up waiting.
                let _ = sender.send(frame);
            }
            return None;
        }
        let request = match &mut frame.message {
            ToHost::Hello { .. }
            | ToHost::Store { .. }
            | ToHost::Stores { .. }
            | ToHost::Tenant { .. } => return None,
            ToHost::Committed { volume, .. }
            | ToHost::Fenced { volume, .. }
            | ToHost::Resized { volume, .. }
            | ToHost::BatchRefused { volume, .. }
            | ToHost::Data { volume, .. }
            | ToHost::Status { volume, .. }
            | ToHost::Staged { volume, .. }
            | ToHost::Changed { volume, .. }
            | ToHost::Room { volume, .. }
            | ToHost::Replica { volume, .. }
            | ToHost::Damaged { volume, .. }
            | ToHost::Barrier { volume, .. } => return Some((*volume, frame)),
            ToHost::Attached { request, .. }
            | ToHost::Detached { request }
            | ToHost::Volume { request, .. } => request,
        };
        match self.waiters.borrow_mut().remove(request)? {
            Waiter::Volume(volume, number) => {
                *request = number;
                Some((volume, frame))
            }
            Waiter::Service(sender) => {
                // The requester may have given up waiting.
                let _ = sender.send(frame.message);
                None
            }
            // The answer does not fit the request: the requester hears that none comes.
            Waiter::Early(..) => None,
        }
    }
}

impl Uplink for Router {
    fn send(&self, lane: Lane, mut frame: Frame<ToStore>) -> Option<Frame<ToHost>> {
        // The client drops it too. Here a caller would wait for it in vain.
        if self.up.get() || self.early.get() {
            if let ToStore::Resume { request, volume, .. }
            | ToStore::Detach { request, volume, .. } = &mut frame.message
            {
                *request = self.ask(Waiter::Volume(*volume, *request));
            }
            self.buffered.borrow_mut().push((lane, frame));
        }
        None
    }

    fn submit(&self) {
        for (lane, frame) in self.buffered.borrow_mut().drain(..) {
            self.client.send(lane, frame);
        }
    }

    fn set_drain_urgent(&self, volume: VolumeId, urgent: bool) {
        let mut volumes = self.urgent.borrow_mut();
        if urgent {
            volumes.insert(volume);
        } else {
            volumes.remove(&volume);
        }
        self.client.set_drain_urgent(!volumes.is_empty());
    }
}
