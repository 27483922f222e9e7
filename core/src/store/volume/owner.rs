//! Whose the epochs of a volume are, and who has the volume.
//!
//! Promises: what names the current epoch is done and answered only in a session with the key that began the epoch; a volume
//! whose host is connected, or may be on its way back, goes to no other host that is not to take it over. Which key a session
//! has its shell says, before the session's first message ([`Volume::handle_session`]).

use super::super::attach::{self, Asker};
use super::super::{Event, SessionId};
use super::Volume;
use crate::block::{Epoch, Time};
use crate::wire::link::{
    AttachError, Claim, Frame, HostId, KeyId, Lane, ReadError, RequestId, StageError, ToHost,
    ToStore,
};
use std::collections::{BTreeMap, BTreeSet};

/// Who is at the other end of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionPeer {
    /// The key that it has proven to hold; [`KeyId::NONE`] within the process.
    pub key: KeyId,
    /// Its credential and its address, for people; may be empty. At most some hundred bytes.
    pub name: String,
}

/// What an engine knows of the owners of its epochs.
#[derive(Default)]
pub(super) struct Owners {
    peers: BTreeMap<SessionId, SessionPeer>,
    /// What was refused to whom, so that it is told once.
    refused: BTreeSet<(SessionId, &'static str)>,
    /// The host of this epoch, for people.
    name: (Epoch, String),
    /// When its session ended, as seconds since 1970.
    silent_since: Option<u64>,
    /// Until then the host of the epoch may be on its way back.
    awaited: Time,
}

/// What a message is about that only the host of an epoch may send; and which epoch.
fn in_epoch(message: &ToStore) -> Option<(&'static str, Epoch)> {
    Some(match message {
        ToStore::Resume { epoch, .. } => ("volume.resume", *epoch),
        ToStore::Detach { epoch, .. } => ("volume.detach", *epoch),
        ToStore::Batch { epoch, .. } => ("volume.batch", *epoch),
        ToStore::Announce { epoch, .. } => ("volume.announce", *epoch),
        ToStore::Barrier { epoch, .. } => ("volume.barrier", *epoch),
        ToStore::Stage { epoch, .. } => ("volume.stage", *epoch),
        ToStore::Read { epoch, .. }
        | ToStore::ReadBehind { epoch, .. }
        | ToStore::Status { epoch, .. }
        | ToStore::Changed { epoch, .. } => ("volume.read", *epoch),
        ToStore::Hello { .. }
        | ToStore::Attach { .. }
        | ToStore::Volume { .. }
        | ToStore::Store { .. }
        | ToStore::Tenant { .. } => return None,
    })
}

impl Volume {
    /// Says who is at the other end of a session. Of one that it is not said of, nobody knows the key: it has
    /// [`KeyId::NONE`].
    pub fn handle_session(&mut self, session: SessionId, peer: SessionPeer) {
        self.owners.peers.insert(session, peer);
    }

    /// Until then the host of the volume may be on its way here: the store has just been started, or has just got the
    /// volume from another one. Meanwhile it counts as connected for whoever wants the volume.
    pub fn handle_awaited(&mut self, until: Time) {
        self.owners.awaited = self.owners.awaited.max(until);
    }

    /// Says, before [`Volume::handle_session_closed`], when a session has ended, as seconds since 1970. It is for people.
    pub fn handle_silent(&mut self, session: SessionId, since: u64) {
        if self.session() == Some(session) {
            self.owners.silent_since = Some(since);
        }
    }

    /// Since when the host that has not detached is silent, if it is.
    pub(super) fn silent_since(&self) -> Option<u64> {
        self.owners.silent_since.filter(|_| !self.connected() && !self.state.clean)
    }

    pub(super) fn key_of_session(&self, session: SessionId) -> KeyId {
        self.owners.peers.get(&session).map_or(KeyId::NONE, |peer| peer.key)
    }

    /// The key of the current epoch, if that is another one than this.
    fn other_key(&self, key: KeyId) -> Option<KeyId> {
        let epoch = self.state.epoch();
        self.state.key_of(epoch).filter(|of| self.state.host().is_some() && *of != key)
    }

    /// Whether a key may speak for the current epoch.
    #[must_use]
    pub fn is_key_of_epoch(&self, key: KeyId) -> bool {
        self.other_key(key).is_none()
    }

    /// The key of an epoch that a session must not speak for.
    pub(super) fn key_of_other(&self, session: SessionId, epoch: Epoch) -> Option<KeyId> {
        let current = epoch == self.state.epoch();
        self.other_key(self.key_of_session(session)).filter(|_| current)
    }

    /// Refuses what comes in the name of an epoch of another key; gives back what does not.
    pub(super) fn only_in_own_epoch(
        &mut self,
        session: SessionId,
        lane: Lane,
        frame: Frame<ToStore>,
    ) -> Option<Frame<ToStore>> {
        let Some((action, epoch)) = in_epoch(&frame.message) else { return Some(frame) };
        let Some(key) = self.key_of_other(session, epoch) else { return Some(frame) };
        let volume = self.spec.id;
        let fenced = ReadError::Fenced(epoch);
        let (request, reply) = match frame.message {
            // What is told of an attachment goes into the log anyhow.
            ToStore::Resume { request, .. } => {
                let result = Err(AttachError::OtherKey { epoch, key });
                self.send(session, lane, ToHost::Attached { request, result });
                self.release_behind(session);
                return None;
            }
            ToStore::Batch { .. } => {
                let reason = format!("epoch {epoch} belongs to key {key}");
                (None, Some(ToHost::BatchRefused { volume, epoch, reason }))
            }
            ToStore::Read { request, .. } | ToStore::ReadBehind { request, .. } => {
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
            self.send(session, lane, reply);
        }
        self.refused_other(session, action, request, (epoch, key));
        None
    }

    fn refused_other(
        &mut self,
        session: SessionId,
        action: &'static str,
        request: Option<RequestId>,
        (epoch, key): (Epoch, KeyId),
    ) {
        if self.owners.refused.insert((session, action)) {
            self.event(Event::OtherKey { session, action, request, epoch, key });
        }
    }

    /// The host that has the volume: connected, or perhaps on its way back. Nobody gives up or undoes what that host
    /// wrote, and nobody gets the volume instead of it who is not to take it over.
    pub(super) fn held_by(&self) -> Option<HostId> {
        let awaited = !self.state.clean && self.now < self.owners.awaited;
        self.state.host().filter(|_| self.connected() || awaited)
    }

    /// The host that has the volume, if it is another one than this.
    pub(super) fn in_use_by_other(&self, host: HostId, key: KeyId) -> Option<AttachError> {
        let has = self.held_by()?;
        if has == host && self.other_key(key).is_none() {
            return None;
        }
        let (volume, by) = (self.spec.name.clone(), self.holder_name());
        Some(AttachError::InUse { volume, host: has, by })
    }

    /// Whether another store may have the volume for a host, going by what is known here and without changing anything.
    ///
    /// # Errors
    /// Why that host does not get it, as long as this store can tell: [`AttachError::InUse`], and what
    /// [`attach::decide`] says of a volume whose host is connected; [`AttachError::Fenced`] and [`AttachError::OtherKey`].
    pub fn may_leave(&self, host: HostId, key: KeyId, claim: Claim) -> Result<(), AttachError> {
        if self.info().is_none() {
            return Ok(());
        }
        match claim {
            Claim::Attach { journal, take_over } => {
                if let Some(error) = self.in_use_by_other(host, key).filter(|_| !take_over) {
                    return Err(error);
                }
                let other = self.state.host() != Some(host) || self.other_key(key).is_some();
                if !(self.connected() && other) {
                    return Ok(());
                }
                let asker = Asker { key, take_over };
                attach::decide(self.state.lineage(), asker, journal).map(|_| ())
            }
            // The epoch is what the peer says: it is no reason to look away from the key.
            Claim::Resume(epoch) => {
                let (current, owner) = (self.state.epoch(), self.state.host());
                if epoch < current || epoch == current && owner != Some(host) {
                    let host = owner.unwrap_or(HostId(0));
                    return Err(AttachError::Fenced { epoch: current, host });
                }
                match self.other_key(key) {
                    Some(key) => Err(AttachError::OtherKey { epoch: current, key }),
                    None => Ok(()),
                }
            }
        }
    }

    /// The host of the epoch, for people.
    pub(super) fn holder_name(&self) -> String {
        let (epoch, name) = &self.owners.name;
        if *epoch == self.state.epoch() { name.clone() } else { String::new() }
    }

    /// Whom an attach has taken the volume from, for people.
    pub(super) fn former(&self) -> Option<String> {
        let host = self.state.host()?;
        let (name, connected) = (self.holder_name(), self.connected());
        let name = if name.is_empty() { String::new() } else { format!(" ({name})") };
        let gone = if connected { "" } else { ", which was not connected" };
        Some(format!("host {host}{name}{gone}"))
    }

    /// A session has the epoch from now on.
    pub(super) fn note_holder(&mut self, session: SessionId) {
        let name = self.owners.peers.get(&session).map(|peer| peer.name.clone());
        self.owners.name = (self.state.epoch(), name.unwrap_or_default());
        self.owners.silent_since = None;
    }

    /// The host of the epoch was here until now, or has gone on elsewhere.
    pub(super) fn await_holder(&mut self) {
        self.handle_awaited(self.now.after(self.config.holder_grace));
    }

    /// A session is over.
    pub(super) fn forget_peer(&mut self, session: SessionId) {
        self.owners.peers.remove(&session);
        self.owners.refused.retain(|(other, _)| *other != session);
    }
}
