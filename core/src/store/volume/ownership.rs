//! The owners of a volume's epochs, and the session that has the volume.
//!
//! Promises:
//! - The engine executes and answers a request of the current epoch only in a session with the key
//!   that began the epoch.
//! - If the host of a volume is connected, or may be on its way back, another host gets the volume
//!   only by a takeover.
//!
//! The store service names the key of a session before the session's first message
//! ([`Ownership::session_began`]).

use super::super::attach::{self, Granted, Requester};
use super::super::event::Event;
use super::super::log::LogState;
use super::super::session::SessionId;
use super::context::Context;
use super::facts::Facts;
use super::outputs::Outputs;
use crate::block::{Epoch, Time};
use crate::wire::link::{
    AttachError, Claim, Frame, HostId, JournalState, KeyId, Lane, ReadError, ReplicaProgress,
    RequestId, StageError, ToHost, ToStore,
};
use std::collections::{BTreeMap, BTreeSet};

/// The peer of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionPeer {
    /// The key that it has proven to hold; [`KeyId::NONE`] within the process.
    pub key: KeyId,
    /// Its credential and its address, for people; may be empty. At most some hundred bytes.
    pub name: String,
}

/// How far the replica of the volume's objects is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplicaDurability {
    /// The installation has no replica.
    #[default]
    None,
    /// A put object gets there later.
    Behind,
    /// A put succeeds only when the replica has the object too, with all earlier ones.
    InStep,
}

/// The session whose batches count.
#[derive(Clone, Copy, Debug)]
struct Holder {
    epoch: Epoch,
    session: SessionId,
    connected: bool,
    /// The engine refused a batch, and drops the next ones until the host resumes.
    refused: bool,
}

/// The host that wants an epoch, and its journal.
#[derive(Clone, Copy)]
pub(super) struct AttachRequest {
    pub host: HostId,
    pub journal: Option<JournalState>,
    /// Also take the volume from a connected host.
    pub take_over: bool,
}

/// Whether the engine may handle a message.
pub(super) enum Admission {
    Admitted(Frame<ToStore>),
    Refused,
    /// The engine refused a Resume, so it has to answer the session's early reads too.
    ResumeRefused,
}

/// The facts that an engine knows about the owners of its epochs.
#[derive(Default)]
pub(super) struct Ownership {
    holder: Option<Holder>,
    peers: BTreeMap<SessionId, SessionPeer>,
    /// The refusals so far, so that the engine reports each once.
    refused: BTreeSet<(SessionId, &'static str)>,
    /// The host of this epoch, for people.
    name: (Epoch, String),
    /// When its session ended, as seconds since 1970.
    silent_since: Option<u64>,
    /// Until then the host of the epoch may be on its way back.
    awaited: Time,
    replica: ReplicaDurability,
}

/// The kind and the epoch of a message that only the host of that epoch may send.
fn in_epoch(message: &ToStore) -> Option<(&'static str, Epoch)> {
    Some(match message {
        ToStore::Resume { epoch, .. } => ("volume.resume", *epoch),
        ToStore::Detach { epoch, .. } => ("volume.detach", *epoch),
        ToStore::Batch { epoch, .. } => ("volume.batch", *epoch),
        ToStore::Announce { epoch, .. } => ("volume.announce", *epoch),
        ToStore::Barrier { epoch, .. } => ("volume.barrier", *epoch),
        ToStore::Stage { epoch, .. } => ("volume.stage", *epoch),
        ToStore::Read { epoch, .. }
        | ToStore::EarlyRead { epoch, .. }
        | ToStore::Status { epoch, .. }
        | ToStore::Changed { epoch, .. } => ("volume.read", *epoch),
        ToStore::Hello { .. }
        | ToStore::Attach { .. }
        | ToStore::Volume { .. }
        | ToStore::Store { .. }
        | ToStore::Tenant { .. } => return None,
    })
}

/// The key of the current epoch, if that is another one than this.
fn other_key(log: &LogState, key: KeyId) -> Option<KeyId> {
    log.key_of(log.epoch()).filter(|of| log.host().is_some() && *of != key)
}

/// Whether a key may speak for the current epoch.
pub(super) fn is_key_of_epoch(log: &LogState, key: KeyId) -> bool {
    other_key(log, key).is_none()
}

impl Ownership {
    /// Names the peer of a session. Without this call a session has [`KeyId::NONE`].
    pub fn session_began(&mut self, session: SessionId, peer: SessionPeer) {
        self.peers.insert(session, peer);
    }

    /// A session is over.
    pub fn session_closed(&mut self, facts: &Facts, session: SessionId) {
        self.peers.remove(&session);
        self.refused.retain(|(other, _)| *other != session);
        if let Some(holder) = &mut self.holder
            && holder.session == session
        {
            holder.connected = false;
            self.await_holder(facts);
        }
    }

    /// Until then the host may be on its way here. It counts as connected for any other host that
    /// wants the volume.
    pub fn await_until(&mut self, until: Time) {
        self.awaited = self.awaited.max(until);
    }

    /// The host of the epoch was here until now, or has gone on at another store.
    fn await_holder(&mut self, facts: &Facts) {
        self.await_until(facts.now().after(facts.config().holder_grace));
    }

    /// The session ended at `since`, as seconds since 1970, and closes now.
    pub fn ended(&mut self, session: SessionId, since: u64) {
        if self.session() == Some(session) {
            self.silent_since = Some(since);
        }
    }

    /// Since when the host that has not detached is silent, if it is.
    pub fn silent_since(&self, log: &LogState) -> Option<u64> {
        self.silent_since.filter(|_| !self.is_connected() && !log.clean)
    }

    /// The session of the host that has the volume attached, if the host has a connection.
    pub fn session(&self) -> Option<SessionId> {
        self.holder.filter(|holder| holder.connected).map(|holder| holder.session)
    }

    pub fn is_connected(&self) -> bool {
        self.session().is_some()
    }

    /// Whether that session's batches count, connected or not.
    pub fn is_held_by(&self, session: SessionId) -> bool {
        self.holder.is_some_and(|holder| holder.session == session)
    }

    /// Whether the engine refused a batch of the holder, and the holder has not resumed since.
    pub fn is_refusing(&self) -> bool {
        self.holder.is_some_and(|holder| holder.refused)
    }

    pub fn key_of_session(&self, session: SessionId) -> KeyId {
        self.peers.get(&session).map_or(KeyId::NONE, |peer| peer.key)
    }

    /// The key of an epoch that a session must not speak for.
    pub fn key_of_other(&self, log: &LogState, session: SessionId, epoch: Epoch) -> Option<KeyId> {
        let current = epoch == log.epoch();
        other_key(log, self.key_of_session(session)).filter(|_| current)
    }

    /// Refuses what comes in the name of an epoch of another key.
    pub fn admit(
        &mut self,
        cx: &mut Context<'_>,
        session: SessionId,
        lane: Lane,
        frame: Frame<ToStore>,
    ) -> Admission {
        let Some((action, epoch)) = in_epoch(&frame.message) else {
            return Admission::Admitted(frame);
        };
        let Some(key) = self.key_of_other(cx.log, session, epoch) else {
            return Admission::Admitted(frame);
        };
        let volume = cx.facts.spec().id;
        let fenced = ReadError::Fenced(epoch);
        let (request, reply) = match frame.message {
            // The store service logs refused attachments anyhow.
            ToStore::Resume { request, .. } => {
                let result = Err(AttachError::OtherKey { epoch, key });
                cx.out.send(session, lane, ToHost::Attached { request, result });
                return Admission::ResumeRefused;
            }
            ToStore::Batch { .. } => {
                let reason = format!("epoch {epoch} belongs to key {key}");
                (None, Some(ToHost::BatchRefused { volume, epoch, reason }))
            }
            ToStore::Read { request, .. } | ToStore::EarlyRead { request, .. } => {
                (None, Some(ToHost::Data { request, volume, result: Err(fenced) }))
            }
            ToStore::Status { request, .. } => {
                (None, Some(ToHost::Status { request, volume, result: Err(fenced) }))
            }
            ToStore::Changed { request, .. } => {
                (None, Some(ToHost::Changed { request, volume, result: Err(fenced) }))
            }
            ToStore::Stage { request, .. } => {
                let result = Err(StageError::Read(fenced));
                (None, Some(ToHost::Staged { request, volume, result }))
            }
            ToStore::Detach { request, .. } => (Some(request), None),
            _ => (None, None),
        };
        if let Some(reply) = reply {
            let lane =
                if matches!(reply, ToHost::BatchRefused { .. }) { Lane::Control } else { lane };
            cx.out.send(session, lane, reply);
        }
        self.refused_other(cx.out, session, action, request, (epoch, key));
        Admission::Refused
    }

    fn refused_other(
        &mut self,
        out: &mut Outputs,
        session: SessionId,
        action: &'static str,
        request: Option<RequestId>,
        (epoch, key): (Epoch, KeyId),
    ) {
        if self.refused.insert((session, action)) {
            out.event(Event::OtherKey { session, action, request, epoch, key });
        }
    }

    /// The host that has the volume: connected, or perhaps on its way back. Nobody gives up or
    /// undoes what that host wrote. A host that does not take the volume over does not get it.
    pub fn host(&self, facts: &Facts, log: &LogState) -> Option<HostId> {
        let awaited = !log.clean && facts.now() < self.awaited;
        log.host().filter(|_| self.is_connected() || awaited)
    }

    /// The host that has the volume, if it is another one than this.
    fn in_use_by_other(
        &self,
        facts: &Facts,
        log: &LogState,
        host: HostId,
        key: KeyId,
    ) -> Option<AttachError> {
        let has = self.host(facts, log)?;
        if has == host && other_key(log, key).is_none() {
            return None;
        }
        let (volume, by) = (facts.spec().name.clone(), self.holder_name(log));
        Some(AttachError::InUse { volume, host: has, by })
    }

    /// Whether a host may begin an epoch, and the base of that epoch. Announced writes that the
    /// journal owes stay announced.
    pub fn may_attach(
        &self,
        facts: &Facts,
        log: &LogState,
        session: SessionId,
        request: AttachRequest,
    ) -> Result<(), AttachError> {
        let AttachRequest { host, take_over, .. } = request;
        if host == HostId(0) {
            return Err(AttachError::Damaged("host identity 0 is reserved".into()));
        }
        let key = self.key_of_session(session);
        match self.in_use_by_other(facts, log, host, key).filter(|_| !take_over) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// The base of the new epoch, by the rules of lineage, and its key.
    pub fn decide(
        &self,
        log: &LogState,
        session: SessionId,
        request: AttachRequest,
    ) -> Result<(Granted, KeyId), AttachError> {
        let key = self.key_of_session(session);
        let requester = Requester { key, take_over: request.take_over };
        Ok((attach::decide(log.lineage(), requester, request.journal)?, key))
    }

    /// Whether another store may have the volume for a host; see
    /// [`Volume::may_leave`](super::Volume::may_leave).
    pub fn may_leave(
        &self,
        facts: &Facts,
        log: &LogState,
        host: HostId,
        key: KeyId,
        claim: Claim,
    ) -> Result<(), AttachError> {
        match claim {
            Claim::Attach { journal, take_over } => {
                let in_use = self.in_use_by_other(facts, log, host, key);
                if let Some(error) = in_use.filter(|_| !take_over) {
                    return Err(error);
                }
                let other = log.host() != Some(host) || other_key(log, key).is_some();
                if !(self.is_connected() && other) {
                    return Ok(());
                }
                let requester = Requester { key, take_over };
                attach::decide(log.lineage(), requester, journal).map(|_| ())
            }
            // The epoch is what the peer says: it is no reason to look away from the key.
            Claim::Resume(epoch) => {
                let (current, owner) = (log.epoch(), log.host());
                if epoch < current || epoch == current && owner != Some(host) {
                    let host = owner.unwrap_or(HostId(0));
                    return Err(AttachError::Fenced { epoch: current, host });
                }
                match other_key(log, key) {
                    Some(key) => Err(AttachError::OtherKey { epoch: current, key }),
                    None => Ok(()),
                }
            }
        }
    }

    /// The host of the epoch, for people.
    pub fn holder_name(&self, log: &LogState) -> String {
        let (epoch, name) = &self.name;
        if *epoch == log.epoch() { name.clone() } else { String::new() }
    }

    /// From whom an attach takes the volume, for people, if that host has not detached.
    pub fn former(&self, log: &LogState) -> Option<String> {
        let host = log.host().filter(|_| self.is_connected() || !log.clean)?;
        let (name, connected) = (self.holder_name(log), self.is_connected());
        let name = if name.is_empty() { String::new() } else { format!(" ({name})") };
        let gone = if connected { "" } else { ", which was not connected" };
        Some(format!("host {host}{name}{gone}"))
    }

    /// A host goes on in its epoch.
    pub fn resume(
        &mut self,
        facts: &Facts,
        log: &LogState,
        session: SessionId,
        epoch: Epoch,
        host: HostId,
    ) -> Result<(), AttachError> {
        let current = log.epoch();
        if epoch > current {
            return Err(AttachError::Damaged(format!(
                "the host is in epoch {epoch}, the log ends in epoch {current}: part of the log is \
                 gone; bring the missing segments back from a copy of the object store"
            )));
        }
        let owner = log.host();
        if epoch < current || owner != Some(host) {
            return Err(AttachError::Fenced { epoch: current, host: owner.unwrap_or(HostId(0)) });
        }
        if let Some(key) = self.key_of_other(log, session, epoch) {
            return Err(AttachError::OtherKey { epoch, key });
        }
        self.take(facts, log, session, true);
        Ok(())
    }

    /// Makes `session` the one whose batches count.
    pub fn take(&mut self, facts: &Facts, log: &LogState, session: SessionId, connected: bool) {
        let epoch = log.epoch();
        self.holder = Some(Holder { epoch, session, connected, refused: false });
        let name = self.peers.get(&session).map(|peer| peer.name.clone());
        self.name = (epoch, name.unwrap_or_default());
        self.silent_since = None;
        if !connected {
            self.await_holder(facts);
        }
    }

    /// The host has detached.
    pub fn release(&mut self) {
        self.holder = None;
    }

    /// An epoch has begun for `session`: the holder of the epoch before is fenced.
    pub fn fence(&mut self, cx: &mut Context<'_>, session: SessionId) {
        if let Some(before) = self.holder.take()
            && before.session != session
        {
            let (volume, epoch) = (cx.facts.spec().id, cx.log.epoch());
            cx.out.send(before.session, Lane::Control, ToHost::Fenced { volume, epoch });
        }
    }

    /// Another store has gone on with the log: nobody holds the epoch here any more.
    pub fn drop_holder(&mut self, cx: &mut Context<'_>) {
        self.await_holder(cx.facts);
        let Some(holder) = self.holder else { return };
        let (volume, epoch) = (cx.facts.spec().id, cx.log.epoch());
        if epoch != holder.epoch {
            cx.out.send(holder.session, Lane::Control, ToHost::Fenced { volume, epoch });
        } else {
            // The same epoch went on at another store: its host may come back here, but not
            // unasked.
            let reason = "another store went on with it: resume";
            self.refuse_batch(cx, holder.session, epoch, reason.into());
        }
        self.holder = None;
    }

    /// Refuses a batch, and what follows it until the host resumes.
    pub fn refuse_batch(
        &mut self,
        cx: &mut Context<'_>,
        session: SessionId,
        epoch: Epoch,
        reason: String,
    ) {
        if let Some(holder) = &mut self.holder
            && holder.session == session
        {
            if holder.refused {
                return;
            }
            holder.refused = true;
        }
        cx.out.event(Event::BatchRefused { session, reason: reason.clone() });
        let volume = cx.facts.spec().id;
        cx.out.send(session, Lane::Control, ToHost::BatchRefused { volume, epoch, reason });
    }

    /// Refuses the holder's batches of `epoch`, or of the holder's own epoch without an argument.
    pub fn refuse_holder(&mut self, cx: &mut Context<'_>, epoch: Option<Epoch>, reason: &str) {
        if let Some(holder) = self.holder {
            let epoch = epoch.unwrap_or(holder.epoch);
            self.refuse_batch(cx, holder.session, epoch, reason.to_owned());
        }
    }

    /// Tells the holder the committed number.
    pub fn tell_committed(&self, cx: &mut Context<'_>) {
        let Some(session) = self.session() else { return };
        let (volume, epoch, seq) = (cx.facts.spec().id, cx.log.epoch(), cx.log.committed);
        cx.out.send(session, Lane::Control, ToHost::Committed { volume, epoch, seq });
        if self.replica == ReplicaDurability::InStep {
            self.tell_replica(cx);
        }
    }

    /// How far the replica is.
    pub fn replica(&self) -> ReplicaDurability {
        self.replica
    }

    pub fn has_replica(&self) -> bool {
        self.replica != ReplicaDurability::None
    }

    pub fn set_replica(&mut self, cx: &mut Context<'_>, replica: ReplicaDurability) {
        if std::mem::replace(&mut self.replica, replica) != replica {
            self.tell_replica(cx);
        }
    }

    /// Tells the holder how far the replica is.
    pub fn tell_replica(&self, cx: &mut Context<'_>) {
        let Some(session) = self.session() else { return };
        let (volume, epoch) = (cx.facts.spec().id, cx.log.epoch());
        let progress = match self.replica {
            ReplicaDurability::None => ReplicaProgress::None,
            ReplicaDurability::Behind => ReplicaProgress::Behind,
            ReplicaDurability::InStep => ReplicaProgress::InStep(cx.log.committed),
        };
        cx.out.send(session, Lane::Control, ToHost::Replica { volume, epoch, progress });
    }
}
