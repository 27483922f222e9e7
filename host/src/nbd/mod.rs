//! The NBD server: sockets around the session machine.
//!
//! Promises: the turn that reads a request also answers it, if the request needs no I/O. Replies of
//! a turn leave in one write. The server does not read from a client that does not read its
//! replies. It drops a client that dawdles in the handshake. Clients without an export have places
//! of their own, of which the oldest give way, so they keep nobody out. The server knows volumes
//! only through [`Exports`].

pub mod access;
mod connection;
mod listen;
mod server;
#[cfg(test)]
mod tests;

pub use access::{Access, ClientChange, ClientRights, ClientRightsReport, Identity, load};
pub use connection::{MovedNbd, NbdConnection};
pub use listen::{Address, Listener, tls_config};
pub use server::{Exports, FoundExport, NbdHome, NbdPlaces, NbdServer, export_info};
