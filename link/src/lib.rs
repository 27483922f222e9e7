//! The link between host and store: frames in lanes over an authenticated connection.
//!
//! Promises: frames of a lane arrive in order, whole and once, or the connection is over. A lane
//! does not wait for another one that is more full or less urgent. Each side notices a dead peer
//! within [`IDLE_TIMEOUT`]. A peer has to prove its identity by a certificate. The link does not
//! know the meaning of a frame, apart from the first one (`Hello`) of each side.
//!
//! - [`transport`]: the interface to a connection; [`quic`] and [`tcp`] implement it, `tls` is
//!   common to both, and `dial` chooses.
//! - `stripe`: a lane over several streams of it; [`congestion`]: the number of bytes in flight.
//! - [`datagrams`]: small urgent reads, in datagrams if the transport has any.
//! - `first`: the messages before the store has answered, with the remembered session of
//!   `sessions`.
//! - [`lane`]: frames onto and off a stream.
//! - [`client`]: the host's side, which reconnects by itself.
//! - `elsewhere`: from one store to another.
//! - [`request`]: one connection for one command.
//! - `sockets`: the sockets of a store.
//! - [`listener`]: the store's side.
//!
//! `docs/protocol.md` describes the bytes on the wire.

mod address;
mod answers;
mod choice;
pub mod client;
pub mod congestion;
mod connect;
pub mod credential;
mod datagrams;
mod dial;
mod elsewhere;
mod ends;
mod error;
mod first;
pub mod lane;
pub mod listener;
mod local;
mod principal;
pub mod quic;
pub mod relay;
pub mod request;
mod seats;
mod sessions;
mod sockets;
mod steer;
mod stripe;
pub mod tcp;
#[cfg(test)]
mod tests;
mod threads;
mod timeouts;
mod tls;
pub mod transport;

pub use choice::Transport;
pub use client::{Client, LinkEvent, LinkStatus};
pub use error::{CloseCode, CredentialFault, LinkError};
pub use listener::{Door, FrameSender, Listener, ListenerEvent, Shortcut};
pub use principal::party;
pub use request::Requests;
pub use sockets::Sockets;
pub use steer::SOCKETS_MAX;
pub use timeouts::{CONNECT_TIMEOUT, IDLE_TIMEOUT, KEEP_ALIVE, SETUP_TIMEOUT};
