//! The store's end: who connects, and which connections are one link.

use super::stream::{ALPN, HTTP, configure, principal, server_error};
use super::{OPENING_BYTES, Slots, Tcp, Token, lock, opening};
use crate::credential::{Issued, ServerIdentity};
use crate::error::LinkError;
use crate::tls;
use crate::transport::Connection;
use anyhow::{Context as _, Result};
use longhaul_base::limits::{
    HANDSHAKE_LIMIT, MAX_INCOMPLETE, MAX_INCOMPLETE_OF_ONE, MAX_STRANGERS, MAX_STRANGERS_OF_ONE,
    Strangers,
};
use longhaul_core::wire::link::{Lane, Principal};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_rustls::{TlsAcceptor, TlsStream};

/// HTTP connections that wait for the HTTP server.
const MAX_VISITORS: usize = 64;
/// The time that a refused client may take to read the reason.
const LAST_WORD: Duration = Duration::from_secs(3);
/// The bytes that the store reads from a refused client meanwhile: the first request of a client
/// that did not wait.
const LAST_WORD_BYTES: u64 = 64 << 10;

/// The message for an address that the store cannot use.
pub fn cannot_listen(address: SocketAddr) -> String {
    format!("cannot listen on {address} (TCP): is another program there?")
}

/// The store's end.
pub struct Acceptor {
    arrived: mpsc::Receiver<Arrived>,
    visitors: Option<mpsc::Receiver<Visitor>>,
    _task: JoinSet<()>,
}

impl Acceptor {
    /// Accepts connections on a socket of [`Sockets`](crate::Sockets). Runs in the current tokio
    /// runtime.
    ///
    /// # Errors
    /// If the identity or the socket is unusable.
    pub fn over(
        listener: std::net::TcpListener,
        identity: &ServerIdentity,
        issued: Arc<Issued>,
    ) -> Result<Acceptor> {
        Acceptor::serving(listener, identity, issued, &[ALPN, HTTP])
    }

    /// Listens at an address for HTTP only, without links.
    ///
    /// # Errors
    /// If this process cannot bind it.
    pub fn bind_for_http(
        address: SocketAddr,
        identity: &ServerIdentity,
        issued: Arc<Issued>,
    ) -> Result<Acceptor> {
        let listener =
            std::net::TcpListener::bind(address).with_context(|| cannot_listen(address))?;
        listener.set_nonblocking(true)?;
        Acceptor::serving(listener, identity, issued, &[HTTP])
    }

    fn serving(
        listener: std::net::TcpListener,
        identity: &ServerIdentity,
        issued: Arc<Issued>,
        protocols: &[&[u8]],
    ) -> Result<Acceptor> {
        let config = tls::server(identity, issued, protocols)?;
        let listener = TcpListener::from_std(listener).context("cannot listen over TCP")?;
        let (sender, arrived) = mpsc::channel(16);
        let (visit, visitors) = mpsc::channel(MAX_VISITORS);
        let mut task = JoinSet::new();
        let links = protocols.contains(&ALPN);
        let config = TlsAcceptor::from(Arc::new(config));
        task.spawn(accept(listener, config, links, sender, visit));
        Ok(Acceptor { arrived, visitors: Some(visitors), _task: task })
    }

    /// The HTTP connections come out here; only the first call returns the receiver.
    pub fn visitors(&mut self) -> Option<mpsc::Receiver<Visitor>> {
        self.visitors.take()
    }

    /// The next link that has all its connections, or who was not let in.
    pub async fn accept(&mut self) -> Option<Arrived> {
        self.arrived.recv().await
    }
}

/// A link, or from where somebody was not let in, and why.
pub type Arrived = Result<Box<dyn Connection>, (SocketAddr, String)>;

/// The parts of a connection until it is complete.
type Incomplete = Mutex<HashMap<(String, Token), (Instant, Slots)>>;

async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    links: bool,
    arrived: mpsc::Sender<Arrived>,
    visitors: mpsc::Sender<Visitor>,
) {
    let strangers = Strangers::new(MAX_STRANGERS, MAX_STRANGERS_OF_ONE);
    let incomplete = Arc::new(Incomplete::default());
    let mut tasks = JoinSet::new();
    loop {
        let (socket, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!("cannot accept a TCP connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (acceptor, whole, arrived) = (acceptor.clone(), incomplete.clone(), arrived.clone());
        let visitors = visitors.clone();
        let mut stranger = strangers.enter(peer.ip().into());
        tasks.spawn(async move {
            let joined = join(socket, peer, &acceptor, &whole);
            let joined = tokio::select! {
                joined = tokio::time::timeout(HANDSHAKE_LIMIT, joined) => joined,
                () = stranger.dropped() => {
                    return tracing::debug!("dropped {peer} (TCP): others came after it");
                }
            };
            drop(stranger);
            match joined {
                Ok(Ok(Joined::Link(link))) => {
                    let _ = arrived.send(Ok(link)).await;
                }
                // Hosts do not wait for a slow HTTP server.
                Ok(Ok(Joined::Visitor(visitor))) => {
                    if visitors.try_send(*visitor).is_err() {
                        tracing::warn!("refused {peer} (HTTP): too many at once");
                    }
                }
                Ok(Ok(Joined::Part)) | Err(_) => {}
                // Hosts look for a store where there is none.
                Ok(Err(error)) if !links || error.is_of_nobody() => {
                    tracing::debug!("refused {peer} (TCP): {error}");
                }
                Ok(Err(error)) => {
                    tracing::warn!("refused {peer} (TCP): {error}");
                    if let LinkError::Credential(_) = error {
                        let _ = arrived.send(Err((peer, error.to_string()))).await;
                    }
                }
            }
        });
        while tasks.try_join_next().is_some() {}
        lock(&incomplete).retain(|_, (since, _)| since.elapsed() < HANDSHAKE_LIMIT);
    }
}

/// An authenticated HTTP connection.
pub struct Visitor {
    /// The stream of its requests.
    pub stream: TlsStream<TcpStream>,
    /// Where it is.
    pub peer: SocketAddr,
    /// The owner of the certificate that it has shown.
    pub principal: Principal,
}

/// The kind of a connection.
enum Joined {
    /// One of a link that is not whole yet.
    Part,
    /// The last of this link.
    Link(Box<dyn Connection>),
    Visitor(Box<Visitor>),
}

/// Ends the connection of a client that has its reason. The store reads the rest of the client's
/// bytes, because with unread bytes the kernel would take back the reason.
async fn dismiss(mut socket: TcpStream) {
    let _ = socket.shutdown().await;
    let (mut rest, mut nowhere) = (socket.take(LAST_WORD_BYTES), tokio::io::sink());
    let read = tokio::io::copy(&mut rest, &mut nowhere);
    let _ = tokio::time::timeout(LAST_WORD, read).await;
}

/// Gives up the oldest link that is not whole, if there are too many: of this credential, or of
/// all.
fn make_way(incomplete: &mut HashMap<(String, Token), (Instant, Slots)>, serial: &str) {
    let of_one = incomplete.keys().filter(|(of, _)| of == serial).count();
    if of_one < MAX_INCOMPLETE_OF_ONE && incomplete.len() < MAX_INCOMPLETE {
        return;
    }
    let may_go = |of: &str| of_one < MAX_INCOMPLETE_OF_ONE || of == serial;
    let candidates = incomplete.iter().filter(|((of, _), _)| may_go(of));
    let oldest = candidates.min_by_key(|(_, (since, _))| *since).map(|(key, _)| key.clone());
    if let Some(oldest) = oldest {
        incomplete.remove(&oldest);
    }
}

/// Authenticates a connection and puts it to the others of its link, unless it is none of a link.
async fn join(
    socket: TcpStream,
    peer: SocketAddr,
    acceptor: &TlsAcceptor,
    incomplete: &Incomplete,
) -> Result<Joined, LinkError> {
    configure(&socket).map_err(|error| LinkError::Lost(error.to_string()))?;
    let stream = match acceptor.accept(socket).into_fallible().await {
        Ok(stream) => stream,
        Err((error, socket)) => {
            dismiss(socket).await;
            return Err(server_error(&error));
        }
    };
    let mut stream = TlsStream::from(stream);
    let invalid = || LinkError::Protocol("a connection names no free lane".into());
    if stream.get_ref().1.alpn_protocol() != Some(ALPN) {
        let principal = principal(&stream).ok_or_else(invalid)?;
        return Ok(Joined::Visitor(Box::new(Visitor { stream, peer, principal })));
    }
    let mut first = [0; OPENING_BYTES];
    stream.read_exact(&mut first).await.map_err(|error| server_error(&error))?;
    let token: Token = first[4..].try_into().map_err(|_| invalid())?;
    let number = usize::from(first[3]);
    let named = |lane: &Lane| opening(*lane, number, &token) == first;
    let lane = Lane::ALL.into_iter().find(named).ok_or_else(invalid)?;
    let serial = principal(&stream).ok_or_else(invalid)?.serial;
    let mut incomplete = lock(incomplete);
    let key = (serial, token);
    if !incomplete.contains_key(&key) {
        make_way(&mut incomplete, &key.0);
    }
    let (_, slots) =
        incomplete.entry(key.clone()).or_insert_with(|| (Instant::now(), Slots::default()));
    if !slots.put(lane, number, stream) {
        return Err(invalid());
    }
    if !slots.are_full() {
        return Ok(Joined::Part);
    }
    Ok(match incomplete.remove(&key) {
        Some((_, slots)) => Joined::Link(Box::new(Tcp::new(peer, slots, server_error))),
        None => Joined::Part,
    })
}
