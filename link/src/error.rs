//! Why there is no connection, or no longer.

/// Why there is no connection, or no longer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// Nobody answers.
    #[error("no answer: is it running, and does UDP or TCP reach it?")]
    TimedOut,
    /// An address that is none.
    #[error("cannot be resolved: {0}")]
    Address(String),
    /// Store and credential are of different installations.
    #[error(
        "the credential belongs to another CA: if the store was installed anew, copy its new \
         admin.toml here"
    )]
    WrongCa,
    /// The client's certificate is past its end.
    #[error(
        "the credential has expired: run `longhaul credential rotate --state STATE` where the \
         store runs and copy its new admin.toml here"
    )]
    Expired,
    /// The store's certificate is past its end.
    #[error(
        "the store's certificate is not valid at this time: check the clocks, then restart the \
         store, which renews it"
    )]
    StoreExpired,
    /// The client's certificate was withdrawn.
    #[error(
        "the credential was withdrawn by `longhaul credential rotate` or `revoke`: copy the \
         store's new admin.toml here, or get another one"
    )]
    Revoked,
    /// A store has turned a client away because of its credential.
    #[error("the client's credential {0}")]
    Credential(CredentialFault),
    /// No protocol version in common.
    #[error(
        "the store speaks link protocol {}, this longhaul {}: upgrade the older of the two",
        versions(*.store),
        versions(*.host)
    )]
    Version {
        /// Oldest and newest of the store.
        store: (u16, u16),
        /// Oldest and newest of the host.
        host: (u16, u16),
    },
    /// The peer does not do what the protocol says.
    #[error("the peer broke the link protocol: {0}")]
    Protocol(String),
    /// The peer ended the connection in order.
    #[error("the peer closed the connection: {0}")]
    Closed(String),
    /// The connection broke.
    #[error("the connection was lost: {0}")]
    Lost(String),
}

/// Why a store does not accept the credential of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialFault {
    /// Another certificate authority signed it.
    #[error("is of another CA")]
    OtherCa,
    /// Its certificate is past its end.
    #[error("has expired")]
    Expired,
    /// An operator withdrew it.
    #[error("was withdrawn")]
    Withdrawn,
}

fn versions((oldest, newest): (u16, u16)) -> String {
    if oldest == newest {
        format!("version {oldest}")
    } else {
        format!("versions {oldest} to {newest}")
    }
}

impl LinkError {
    /// Whether trying again soon cannot help: someone has to do something first.
    pub fn needs_operator(&self) -> bool {
        use LinkError::{Expired, Revoked, StoreExpired, Version, WrongCa};
        matches!(self, WrongCa | Expired | StoreExpired | Revoked | Version { .. })
    }

    /// Whether it says of somebody who has shown nothing that it is gone: anybody can have a store
    /// say so.
    pub(crate) fn is_of_nobody(&self) -> bool {
        matches!(self, LinkError::Lost(_) | LinkError::TimedOut)
    }
}

/// Why a side closes a connection; the number travels in the QUIC CONNECTION_CLOSE frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseCode {
    /// Nothing more to say.
    Done,
    /// No protocol version in common.
    Version,
    /// The credential was withdrawn.
    Revoked,
    /// The program stops; come back later.
    ShuttingDown,
    /// The peer broke the protocol.
    Protocol,
    /// The credential has expired.
    Expired,
}

impl CloseCode {
    /// Its number.
    pub fn number(self) -> u32 {
        match self {
            CloseCode::Done => 0,
            CloseCode::Version => 1,
            CloseCode::Revoked => 2,
            CloseCode::ShuttingDown => 3,
            CloseCode::Protocol => 4,
            CloseCode::Expired => 5,
        }
    }
}
