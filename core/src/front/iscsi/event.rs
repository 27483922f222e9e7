//! Events: what a target asks of the shell.

use super::foreign::{Asker, CopyId, CopyMessage, CopyQuestion, TargetId};
use super::identity::{ConnectionId, DeviceId, Identity};
use crate::block::Request;
use bytes::Bytes;

/// An event for the shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A login is authorized for a volume that another target may have. If this one has it, answer
    /// with [`handle_placed`](super::Target::handle_placed). Else move the login with
    /// [`take_login`](super::Target::take_login) and
    /// [`handle_moved`](super::Target::handle_moved). Only with
    /// [`Config::has_others`](super::Config::has_others).
    Place {
        /// The connection that logs in.
        connection: ConnectionId,
        /// Name of the volume.
        volume: String,
    },
    /// Answer with [`handle_opened`](super::Target::handle_opened).
    Open {
        /// Name of the volume.
        volume: String,
    },
    /// Answer with [`handle_listed`](super::Target::handle_listed).
    List {
        /// The connection that asks.
        connection: ConnectionId,
    },
    /// Ask all other targets of this host with [`answer_copy`](super::Target::answer_copy). Give
    /// their answers to [`handle_answers`](super::Target::handle_answers). Only with
    /// [`Config::has_others`](super::Config::has_others).
    Ask {
        /// The copy.
        copy: CopyId,
        /// The initiator that asked for it.
        asker: Asker,
        /// The question.
        question: CopyQuestion,
    },
    /// Give this to [`handle_told`](super::Target::handle_told) of another target, in any order. If
    /// there is no such target any more, give [`undelivered`](CopyMessage::undelivered) to this
    /// one.
    Tell {
        /// The other target.
        target: TargetId,
        /// The message.
        message: CopyMessage,
    },
    /// Answer with [`handle_reply`](super::Target::handle_reply), in any order. In a
    /// [`Request::Stage`] the number of the object is 0. Draw another one, and use that in the
    /// request.
    Request {
        /// The device whose volume it is for.
        device: DeviceId,
        /// Names the request in the answer.
        id: u64,
        /// Within the volume; a payload has the length of the range.
        request: Request,
    },
    /// Save this with the volume, in the place of the last save. Answer with
    /// [`handle_saved`](super::Target::handle_saved).
    Save {
        /// The device whose volume it is for.
        device: DeviceId,
        /// Names the request in the answer.
        id: u64,
        /// Opaque bytes. If they are empty, remove the last save.
        data: Bytes,
    },
    /// Write the waiting output: call [`poll_output`](super::Target::poll_output). The event comes
    /// again only after that returned `None`.
    Output {
        /// The connection.
        connection: ConnectionId,
    },
    /// Write all output, then end the connection and call
    /// [`handle_closed`](super::Target::handle_closed). Until then the target keeps only the
    /// output.
    Close {
        /// The connection.
        connection: ConnectionId,
        /// The reason.
        reason: CloseReason,
    },
    /// A connection is in the full feature phase.
    LoggedIn {
        /// The connection.
        connection: ConnectionId,
        /// The initiator and the volume, with the TSIH of the session.
        identity: Identity,
    },
    /// A session is over.
    LoggedOut {
        /// The initiator and the volume.
        identity: Identity,
    },
    /// A device was dropped, and its volume is not in use any more. No more requests come for it.
    Released {
        /// The device.
        device: DeviceId,
        /// The volume.
        volume: String,
    },
}

/// The reason why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The initiator logged out.
    #[error("the initiator logged out")]
    LoggedOut,
    /// The login was refused.
    #[error("login refused: {0}")]
    Refused(String),
    /// The login took too long.
    #[error("the login was not finished in time")]
    LoginLimit,
    /// The same initiator port logged in again.
    #[error("the initiator logged in again and took this connection's place")]
    Reinstated,
    /// The initiator did not answer a ping.
    #[error("the initiator does not answer pings; check it and the network")]
    Silent,
    /// The initiator broke the protocol, and no answer is safe.
    #[error("protocol violation: {0}; check the initiator's iSCSI implementation")]
    Violation(&'static str),
    /// The target was reset by a cold reset, of this initiator or another one.
    #[error("the target was reset")]
    Reset,
    /// The initiator lost its right to the volume.
    #[error("the initiator may not use the volume any more")]
    Forbidden,
    /// The volume is not here any more.
    #[error("the volume is gone: {0}")]
    VolumeGone(String),
    /// The target is shutting down.
    #[error("the target is shutting down")]
    Shutdown,
}

/// The reason why a volume cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// No such volume.
    #[error("no such volume: {0}")]
    NotFound(String),
    /// The volume exists, but cannot be used now. The initiator may try again.
    #[error("the volume cannot be had now: {0}")]
    Unavailable(String),
}
