//! The store's end of QUIC: who may connect, and which sessions go on.

use super::{GENERATIONS, Quic, STREAM_WINDOW, endpoint, session_window, transport_config};
use crate::credential::{self, Issued, ServerIdentity};
use crate::ends::server_error;
use crate::error::{CloseCode, LinkError};
use crate::sessions::{SESSIONS_KEPT, Seen};
use crate::steer::Steering;
use crate::threads::LinkThreads;
use crate::tls;
use crate::transport::Connection;
use anyhow::{Context as _, Result};
use futures_util::FutureExt as _;
use longhaul_base::limits::{
    HANDSHAKE_LIMIT, MAX_SESSIONS, MAX_STORE_SESSIONS, MAX_STRANGERS, MAX_STRANGERS_OF_ONE,
    Stranger, Strangers,
};
use quinn::VarInt;
use quinn::crypto::rustls::QuicServerConfig;
use socket2::Socket;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::runtime::Handle;

/// The store's end: a socket, or several with the same address, each in a thread of its own.
pub struct Acceptor {
    sockets: Vec<AcceptorSocket>,
    threads: LinkThreads,
}

/// A socket of an [`Acceptor`].
#[derive(Clone)]
pub struct AcceptorSocket {
    endpoint: quinn::Endpoint,
    common: Arc<Common>,
}

/// The common part of the sockets of an acceptor.
struct Common {
    endpoints: OnceLock<Vec<quinn::Endpoint>>,
    config: quinn::ServerConfig,
    /// As `config`, for sessions that have the full windows: it keeps sessions, and takes data with
    /// them. A host remembers the windows with a session, and they must not be smaller when it
    /// comes back with it (RFC 9000 §7.4.1).
    keeping: quinn::ServerConfig,
    issued: Arc<Issued>,
    strangers: Strangers,
}

/// Connections beyond this number make strangers prove their address first.
const UNPROVEN_CONNECTIONS: usize = 64;
/// The store refuses more connections: it has sessions and strangers for fewer, and those that
/// close.
const MAX_CONNECTIONS: usize = (MAX_SESSIONS + MAX_STORE_SESSIONS) as usize + 2 * MAX_STRANGERS;

impl Acceptor {
    /// Listens with the sockets of [`Sockets`](crate::Sockets). One socket is served by the current
    /// runtime. Several have a thread each.
    ///
    /// # Errors
    /// If the identity is unusable, or a thread cannot start.
    pub fn over(
        sockets: Vec<Socket>,
        identity: &ServerIdentity,
        issued: Arc<Issued>,
    ) -> Result<Acceptor> {
        Acceptor::with_generations(sockets, identity, issued, &GENERATIONS)
    }

    /// As [`Acceptor::over`], speaking these generations of the protocol.
    pub(crate) fn with_generations(
        sockets: Vec<Socket>,
        identity: &ServerIdentity,
        issued: Arc<Issued>,
        generations: &[&[u8]],
    ) -> Result<Acceptor> {
        let tls = tls::server(identity, issued.clone(), generations)?;
        let sessions = rustls::server::ServerSessionMemoryCache::new(SESSIONS_KEPT);
        let takes_data = QuicServerConfig::try_from(tls::keeping(&tls, sessions))?;
        let mut config =
            quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
        config.max_incoming(MAX_CONNECTIONS);
        config.validation_token.sent(1).log(Arc::new(Seen::default()));
        // A clone has the same key for tokens.
        let mut keeping = config.clone();
        keeping.crypto = Arc::new(takes_data);
        let strangers = Strangers::new(MAX_STRANGERS, MAX_STRANGERS_OF_ONE);
        let endpoints = OnceLock::new();
        let common = Arc::new(Common { endpoints, config, keeping, issued, strangers });
        let threads = LinkThreads::start(sockets.len()).context("cannot start a link thread")?;
        let count = sockets.len();
        let mut open = Vec::new();
        for (place, (socket, runtime)) in sockets.into_iter().zip(threads.runtimes()).enumerate() {
            let _entered = runtime.enter();
            let steering = (count > 1).then(|| Steering::new(place, count));
            let endpoint = endpoint(socket, Some(common.config.clone()), steering);
            let endpoint = endpoint.context("cannot listen over UDP")?;
            open.push(AcceptorSocket { endpoint, common: common.clone() });
        }
        // It is new.
        let _ = common.endpoints.set(open.iter().map(|socket| socket.endpoint.clone()).collect());
        Ok(Acceptor { sockets: open, threads })
    }

    /// Each socket, with the runtime of its thread.
    pub fn sockets(&self) -> impl Iterator<Item = (&AcceptorSocket, &Handle)> {
        self.sockets.iter().zip(self.threads.runtimes())
    }

    /// The runtime for links over TCP and for visitors over HTTP.
    pub fn runtime(&self) -> Handle {
        // At least one exists.
        self.threads.runtimes()[0].clone()
    }

    /// Ends all connections, and waits a little until the peers know.
    pub async fn close(&self, code: CloseCode, reason: &str) {
        for AcceptorSocket { endpoint, .. } in &self.sockets {
            endpoint.close(VarInt::from_u32(code.number()), reason.as_bytes());
        }
        let told = async {
            for AcceptorSocket { endpoint, .. } in &self.sockets {
                endpoint.wait_idle().await;
            }
        };
        let _ = tokio::time::timeout(Duration::from_millis(500), told).await;
    }
}

impl Common {
    fn open_connections(&self) -> usize {
        let endpoints = self.endpoints.get().into_iter().flatten();
        endpoints.map(quinn::Endpoint::open_connections).sum()
    }
}

impl AcceptorSocket {
    /// The next one that wants to connect; `None` after [`Acceptor::close`].
    pub async fn accept(&self) -> Option<Arriving> {
        loop {
            let incoming = self.endpoint.accept().await?;
            let open = self.common.open_connections();
            if open > MAX_CONNECTIONS {
                incoming.refuse();
            } else if open > UNPROVEN_CONNECTIONS && !incoming.remote_address_validated() {
                // Fails only for an address that is proven.
                let _ = incoming.retry();
            } else {
                let stranger = self.common.strangers.enter(incoming.remote_address().ip().into());
                let window = session_window(open);
                let keeping = (window == STREAM_WINDOW).then(|| self.common.issued.clone());
                let config =
                    if keeping.is_some() { &self.common.keeping } else { &self.common.config };
                let mut config = config.clone();
                let mut transport = transport_config(window);
                // Those of the host keep both ends alive, and each wakes both.
                transport.keep_alive_interval(None);
                config.transport_config(Arc::new(transport));
                return Some(Arriving { incoming, config: Arc::new(config), keeping, stranger });
            }
        }
    }
}

/// A connection before its authentication.
pub struct Arriving {
    incoming: quinn::Incoming,
    config: Arc<quinn::ServerConfig>,
    /// If it may go on with a session: what to check its certificate against.
    keeping: Option<Arc<Issued>>,
    stranger: Stranger,
}

impl Arriving {
    /// Its source address; may be forged.
    pub fn peer(&self) -> SocketAddr {
        self.incoming.remote_address()
    }

    /// Authenticates it. One that goes on with a session is not [proven](Connection::proven) yet.
    ///
    /// # Errors
    /// If it has no credential of this store.
    pub async fn authenticate(self) -> Result<Box<dyn Connection>, LinkError> {
        let Arriving { incoming, config, keeping, mut stranger } = self;
        let connecting = incoming.accept_with(config);
        let connecting = connecting.map_err(|error| server_error(&error))?;
        let authenticated = async {
            match keeping {
                Some(issued) => Arriving::resume(connecting, &issued).await,
                None => {
                    let connection = connecting.await.map_err(|error| server_error(&error))?;
                    Ok(Quic::new(connection, server_error))
                }
            }
        };
        tokio::select! {
            ended = tokio::time::timeout(HANDSHAKE_LIMIT, authenticated) => match ended {
                Err(_) => Err(LinkError::TimedOut),
                Ok(result) => Ok(Box::new(result?)),
            },
            () = stranger.dropped() => {
                Err(LinkError::Lost("it did not finish before newer connections".into()))
            }
        }
    }

    /// Goes on with a session, if it is one, and authenticates it in any case.
    async fn resume(mut connecting: quinn::Connecting, issued: &Issued) -> Result<Quic, LinkError> {
        // The client has said which session it goes on with, or has none.
        let said = connecting.handshake_data().await;
        said.map_err(|error| server_error(&error))?;
        let (connection, proof) = match connecting.into_0rtt() {
            Ok(begun) => begun,
            Err(connecting) => {
                let connection = connecting.await.map_err(|error| server_error(&error))?;
                return Ok(Quic::new(connection, server_error));
            }
        };
        let mut quic = Quic::new(connection, server_error);
        quic.proof = Some(proof.shared());
        let Some(certificate) = quic.peer_certificate() else {
            // The peer is unknown so far: its certificate comes with the end of the handshake.
            quic.proven().await?;
            return Ok(quic);
        };
        // The session began with this certificate, and TLS does not check it again.
        let refused = match credential::inspect(&certificate) {
            Err(_) => Some((CloseCode::Protocol, "the certificate cannot be read")),
            Ok(seen) if !issued.accepts(&seen.serial) => {
                Some((CloseCode::Revoked, "the credential was withdrawn"))
            }
            Ok(seen) if !seen.is_valid() => {
                Some((CloseCode::Expired, "the credential has expired"))
            }
            Ok(_) => None,
        };
        if let Some((code, reason)) = refused {
            // The store can tell the client only after the handshake.
            quic.proven().await?;
            quic.close(code, reason);
            return Err(LinkError::Lost(reason.to_owned()));
        }
        Ok(quic)
    }
}
