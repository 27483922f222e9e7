//! Where initiators find the target.

use super::connection::IscsiConnection;
use super::server::IscsiServer;
use crate::stream;
use anyhow::{Context as _, Result};
use longhaul_base::Usage;
use longhaul_core::front::iscsi::Peer;
use longhaul_core::wire::iscsi::PORT;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// A bound portal.
pub struct Portal {
    address: SocketAddr,
    socket: TcpListener,
}

/// Reads an address, with or without a port.
///
/// # Errors
/// If it is none.
pub fn parse(text: &str) -> Result<SocketAddr> {
    let named = match text.strip_prefix("localhost") {
        Some(rest) if rest.is_empty() || rest.starts_with(':') => format!("127.0.0.1{rest}"),
        _ => text.to_owned(),
    };
    let bare = named.trim_start_matches('[').trim_end_matches(']');
    named.parse().or_else(|_| bare.parse().map(|ip: IpAddr| SocketAddr::new(ip, PORT))).map_err(
        |_| {
            let why = "neither ADDR nor ADDR:PORT, as in `127.0.0.1` or `[::1]:3260`";
            Usage(format!("--iscsi {text}: {why}")).into()
        },
    )
}

impl Portal {
    /// Listens.
    ///
    /// # Errors
    /// If it is no address, or the address is taken or not of this machine.
    pub fn bind(text: &str) -> Result<Portal> {
        let address = parse(text)?;
        let bind = || {
            let listener = std::net::TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            TcpListener::from_std(listener)
        };
        let socket = bind().with_context(|| {
            format!(
                "cannot listen on {address} for iSCSI: stop the process that does, or choose \
                 another --iscsi"
            )
        })?;
        Ok(Portal { address: socket.local_addr()?, socket })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts initiators until dropped.
    pub async fn run(self, server: Rc<IscsiServer>) {
        loop {
            match self.socket.accept().await {
                Ok((stream, from)) => Portal::accepted(&server, stream, from),
                Err(error) => {
                    // Too few descriptors, mostly: some connection has to end first.
                    tracing::warn!("cannot accept an iSCSI initiator on {}: {error}", self.address);
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    fn accepted(server: &Rc<IscsiServer>, stream: TcpStream, from: SocketAddr) {
        let who = from.ip().into();
        if !server.places.places.has_room(&who) {
            return server.turned_away(&from.to_string());
        }
        let peer = stream.set_nodelay(true).and_then(|()| stream.local_addr()).map(|portal| {
            let (address, portal) = (plain(from), plain(portal));
            Peer {
                address: address.to_string(),
                portal: portal.to_string(),
                loopback: address.ip().is_loopback() && portal.ip().is_loopback(),
            }
        });
        match peer {
            Ok(peer) => {
                let (reader, writer) = stream::tcp(stream);
                let serve = IscsiConnection::serve(server.clone(), (peer, who), reader, writer);
                tokio::task::spawn_local(serve);
            }
            // It has gone already.
            Err(error) => tracing::debug!(peer = %from, "iSCSI connection lost: {error}"),
        }
    }
}

/// An IPv4 address that came in over an IPv6 socket, as what it is.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_default_port() {
        for (text, address) in [
            ("127.0.0.1", "127.0.0.1:3260"),
            ("0.0.0.0:3261", "0.0.0.0:3261"),
            ("::1", "[::1]:3260"),
            ("[::]", "[::]:3260"),
            ("[::1]:99", "[::1]:99"),
            ("localhost", "127.0.0.1:3260"),
            ("localhost:1", "127.0.0.1:1"),
        ] {
            assert_eq!(parse(text).unwrap().to_string(), address, "{text}");
        }
        for wrong in ["", "host", "localhosts", "1.2.3.4:x", "unix:/x"] {
            assert!(parse(wrong).unwrap_err().to_string().contains("--iscsi"), "{wrong}");
        }
    }
}
