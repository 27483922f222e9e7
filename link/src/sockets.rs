//! The sockets of a store. The store opens them before it writes anything, and uses them once it
//! has a certificate.
//!
//! It answers nobody before it makes [`quic::Acceptor`] and [`tcp::Acceptor`] of them. Until then
//! datagrams wait in the socket's buffer, and connections over TCP fail.

use super::{quic, steer, tcp};
use anyhow::{Context as _, Result, bail};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{SocketAddr, TcpListener};

/// The number of ports that it tries until one is free over UDP and TCP.
const ATTEMPTS: usize = 64;
/// Connections that wait in the kernel; the system may allow fewer.
const BACKLOG: i32 = 1024;

/// The sockets of an address.
pub struct Sockets {
    address: SocketAddr,
    /// For [`quic::Acceptor::over`]. Several have the same address, in the order of binding.
    udp: Vec<Socket>,
    /// Bound, and not listening yet.
    tcp: io::Result<Socket>,
}

impl Sockets {
    /// Takes an address over UDP with `count` sockets, and over TCP where that is free. With port 0
    /// it is a port that is free over both. Where the kernel cannot share packets out between the
    /// sockets, there is one.
    ///
    /// # Errors
    /// If UDP cannot be had.
    pub fn bind(listen: SocketAddr, count: usize) -> Result<Sockets> {
        for _ in 0..ATTEMPTS {
            // This one shares the address with nobody: two stores never get the same.
            let udp = quic::socket(listen, false).with_context(|| {
                format!("cannot listen on {listen} (UDP): is the address ours, and free?")
            })?;
            let address = udp.local_addr()?.as_socket().context("the socket has no address")?;
            let tcp = bound(address);
            if tcp.is_ok() || listen.port() != 0 {
                return Ok(Sockets { address, udp: beside(udp, address, count), tcp });
            }
        }
        bail!("cannot listen on {listen}: no port is free over both UDP and TCP; give one")
    }

    /// Where they are.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Parts with them; that of TCP listens from now on, if it could be had.
    pub fn split(self) -> (Vec<Socket>, Result<TcpListener>) {
        let Sockets { address, udp, tcp } = self;
        let listening = tcp.and_then(|socket| socket.listen(BACKLOG).map(|()| socket.into()));
        (udp, listening.with_context(|| tcp::cannot_listen(address)))
    }
}

/// The first socket of an address, and others with the same address beside it.
fn beside(first: Socket, address: SocketAddr, count: usize) -> Vec<Socket> {
    let mut all = vec![first];
    let others = || {
        all[0].set_reuse_port(true)?;
        let others =
            (1..count).map(|_| quic::socket(address, true)).collect::<io::Result<Vec<_>>>()?;
        steer::attach(&all[0], count)?;
        Ok::<_, io::Error>(others)
    };
    if count > 1 {
        match others() {
            Ok(others) => all.extend(others),
            Err(error) => tracing::warn!("one thread serves all links: {error}"),
        }
    }
    all
}

fn bound(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // Connections of a store before it may still be ending.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_free_over_both() {
        // Every other port of a range is in use over TCP, as those of outgoing connections are.
        let mut taken = Vec::new();
        let mut first = None;
        for _ in 0..20 {
            let sockets = Sockets::bind("127.0.0.1:0".parse().unwrap(), 2).unwrap();
            let address = sockets.address();
            let (udp, tcp) = sockets.split();
            let tcp = tcp.unwrap();
            assert_eq!(tcp.local_addr().unwrap(), address);
            for udp in &udp {
                assert_eq!(udp.local_addr().unwrap().as_socket(), Some(address));
            }
            first.get_or_insert(address);
            taken.push((udp, tcp));
        }
        let error = Sockets::bind(first.unwrap(), 2).map(|_| ()).unwrap_err();
        assert!(format!("{error:#}").contains("free"), "{error:#}");
    }

    #[test]
    fn nobody_is_let_in_before_it_listens() {
        let sockets = Sockets::bind("127.0.0.1:0".parse().unwrap(), 2).unwrap();
        let address = sockets.address();
        let refused = std::net::TcpStream::connect(address).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let (_udp, tcp) = sockets.split();
        let _tcp = tcp.unwrap();
        std::net::TcpStream::connect(address).unwrap();
    }
}
