//! QUIC as the link's transport: mutual TLS 1.3, one long-lived bidirectional stream a lane.
//!
//! A stream begins with four bytes, `LH`, the lane's number and a zero, by which the store knows it.
//!
//! Windows: a stream's receive window stays at [`STREAM_WINDOW`], since quinn ends a connection whose
//! stream has more than 1,024 gaps, which a larger window with losses can reach. It also bounds what
//! a lane has in the sender's buffer, so that a drain that is not read never takes the room of a
//! read: [`CONNECTION_WINDOW`] and the send window hold all lanes at once.

use super::transport::{Connection, LaneStreams, Lanes, ReceiveStream, SendStream, Statistics};
use super::transport::{lane_number, priority};
use super::{CONNECT_TIMEOUT, CloseCode, IDLE_TIMEOUT, KEEP_ALIVE, LinkError, SETUP_TIMEOUT};
use crate::credential::{self, Credential, Issued, SERVER_NAME, ServerIdentity};
use anyhow::{Context as _, Result};
use async_trait::async_trait;
use bytes::Bytes;
use longhaul_core::wire::link::Lane;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{AckFrequencyConfig, EndpointConfig, MtuDiscoveryConfig, TransportConfig, VarInt};
use rustls::client::Resumption;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls_pki_types::{CertificateDer, UnixTime};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// Application protocol in the TLS handshake; a change that older peers cannot even say Hello in
/// would get another one.
pub const ALPN: &[u8] = b"longhaul/1";

/// Receive window of a stream, in bytes.
const STREAM_WINDOW: u32 = 1 << 20;
/// Receive window of a connection, in bytes: all lanes full, twice.
const CONNECTION_WINDOW: u32 = 8 << 20;
/// Unacknowledged bytes a sender keeps, over all lanes.
const SEND_WINDOW: u64 = 8 << 20;
/// Largest datagram tried, in bytes: a jumbo frame's.
const MAX_DATAGRAM: u16 = 8952;
/// Socket buffers asked for, in bytes; the system may give less.
const SOCKET_BUFFER: usize = 4 << 20;
/// Asked of the peer: how long it may hold back an acknowledgement. RFC 9000's 25 ms would be added
/// to the discovery of a lost last packet. The number itself is guessed.
const MAX_ACK_DELAY: Duration = Duration::from_millis(2);
/// Asked of the peer: how many packets it may receive without acknowledging. Guessed.
const ACK_THRESHOLD: u32 = 10;

fn transport_config() -> TransportConfig {
    let mut acks = AckFrequencyConfig::default();
    acks.max_ack_delay(Some(MAX_ACK_DELAY)).ack_eliciting_threshold(ACK_THRESHOLD.into());
    let mut mtu = MtuDiscoveryConfig::default();
    mtu.upper_bound(MAX_DATAGRAM);
    let mut config = TransportConfig::default();
    config
        .max_concurrent_bidi_streams((Lane::ALL.len() as u32).into())
        .max_concurrent_uni_streams(0_u32.into())
        .stream_receive_window(STREAM_WINDOW.into())
        .receive_window(CONNECTION_WINDOW.into())
        .send_window(SEND_WINDOW)
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_idle_timeout(IDLE_TIMEOUT.try_into().ok())
        .ack_frequency_config(Some(acks))
        .mtu_discovery_config(Some(mtu))
        .datagram_receive_buffer_size(None);
    config
}

fn endpoint(
    address: SocketAddr,
    server: Option<quinn::ServerConfig>,
) -> std::io::Result<quinn::Endpoint> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    // Refused by nobody; clamped to net.core.rmem_max and wmem_max.
    socket.set_recv_buffer_size(SOCKET_BUFFER)?;
    socket.set_send_buffer_size(SOCKET_BUFFER)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    tracing::debug!(
        receive = socket.recv_buffer_size().unwrap_or_default(),
        send = socket.send_buffer_size().unwrap_or_default(),
        "UDP socket buffers in bytes"
    );
    let mut config = EndpointConfig::default();
    config.max_udp_payload_size(MAX_DATAGRAM).map_err(std::io::Error::other)?;
    quinn::Endpoint::new(config, server, socket.into(), Arc::new(quinn::TokioRuntime))
}

/// The host's end.
pub struct Dialer {
    config: quinn::ClientConfig,
    v4: Option<quinn::Endpoint>,
    v6: Option<quinn::Endpoint>,
}

impl Dialer {
    /// Speaks with this credential.
    ///
    /// # Errors
    /// If key and certificate do not make a credential.
    pub fn new(credential: &Credential) -> Result<Dialer> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        roots.add(credential.ca.clone()).context("the credential's CA is not usable")?;
        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![credential.certificate.clone()], credential.key())
            .context("key and certificate of the credential do not belong together")?;
        tls.alpn_protocols = vec![ALPN.to_vec()];
        // A resumed session would not be checked for withdrawal.
        tls.resumption = Resumption::disabled();
        let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
        config.transport_config(Arc::new(transport_config()));
        Ok(Dialer { config, v4: None, v6: None })
    }

    /// Connects to an address.
    ///
    /// # Errors
    /// If nobody answers there, or not the store of the credential.
    pub async fn connect(&mut self, address: SocketAddr) -> Result<Box<dyn Connection>, LinkError> {
        let lost = |error: &dyn std::fmt::Display| LinkError::Lost(error.to_string());
        let (slot, local) = match address {
            SocketAddr::V4(_) => (&mut self.v4, SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))),
            SocketAddr::V6(_) => (&mut self.v6, SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))),
        };
        let endpoint = match slot {
            Some(endpoint) => endpoint,
            None => slot.insert(endpoint(local, None).map_err(|error| lost(&error))?),
        };
        let connecting = endpoint
            .connect_with(self.config.clone(), address, SERVER_NAME)
            .map_err(|error| lost(&error))?;
        match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
            Err(_) => Err(LinkError::TimedOut),
            Ok(Err(error)) => Err(client_error(&error)),
            Ok(Ok(connection)) => Ok(Box::new(Quic { connection, error: client_error })),
        }
    }

    /// Waits a little until the peers have been told of closed connections.
    pub async fn wait_idle(&self) {
        for endpoint in [&self.v4, &self.v6].into_iter().flatten() {
            let _ = tokio::time::timeout(Duration::from_millis(500), endpoint.wait_idle()).await;
        }
    }
}

/// The store's end.
pub struct Acceptor {
    endpoint: quinn::Endpoint,
}

/// Connections beyond this number make strangers prove their address first.
const UNPROVEN_CONNECTIONS: usize = 64;
/// More connections are refused.
const MAX_CONNECTIONS: usize = 1024;

impl Acceptor {
    /// Listens at an address.
    ///
    /// # Errors
    /// If it cannot be bound.
    pub fn bind(
        address: SocketAddr,
        identity: &ServerIdentity,
        issued: Arc<Issued>,
    ) -> Result<Acceptor> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        roots.add(identity.ca.clone()).context("the store's CA is not usable")?;
        let inner = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone())
            .build()
            .context("the store's CA is not usable")?;
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(Arc::new(Verifier { inner, issued }))
            .with_single_cert(vec![identity.certificate.clone()], identity.key.clone_key().into())
            .context("the store's certificate is not usable")?;
        tls.alpn_protocols = vec![ALPN.to_vec()];
        // A resumed session would not be checked for withdrawal.
        tls.send_tls13_tickets = 0;
        let mut config =
            quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
        config.transport_config(Arc::new(transport_config()));
        config.max_incoming(MAX_CONNECTIONS);
        let endpoint = endpoint(address, Some(config)).with_context(|| {
            format!("cannot listen on {address} (UDP): is the address ours, and free?")
        })?;
        Ok(Acceptor { endpoint })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.endpoint.local_addr()
    }

    /// The next one that wants to connect; `None` after [`Acceptor::close`].
    pub async fn accept(&self) -> Option<Arriving> {
        loop {
            let incoming = self.endpoint.accept().await?;
            let open = self.endpoint.open_connections();
            if open > MAX_CONNECTIONS {
                incoming.refuse();
            } else if open > UNPROVEN_CONNECTIONS && !incoming.remote_address_validated() {
                // Fails only for an address that is proven.
                let _ = incoming.retry();
            } else {
                return Some(Arriving { incoming });
            }
        }
    }

    /// Ends all connections, and waits a little until the peers have been told.
    pub async fn close(&self, code: CloseCode, reason: &str) {
        self.endpoint.close(VarInt::from_u32(code.number()), reason.as_bytes());
        let _ = tokio::time::timeout(Duration::from_millis(500), self.endpoint.wait_idle()).await;
    }
}

/// A connection that is not authenticated yet.
pub struct Arriving {
    incoming: quinn::Incoming,
}

impl Arriving {
    /// Where it comes from; may be forged.
    pub fn peer(&self) -> SocketAddr {
        self.incoming.remote_address()
    }

    /// Authenticates it.
    ///
    /// # Errors
    /// If it has no credential of this store.
    pub async fn authenticate(self) -> Result<Box<dyn Connection>, LinkError> {
        let connecting = self.incoming.accept().map_err(|error| server_error(&error))?;
        match tokio::time::timeout(SETUP_TIMEOUT, connecting).await {
            Err(_) => Err(LinkError::TimedOut),
            Ok(Err(error)) => Err(server_error(&error)),
            Ok(Ok(connection)) => Ok(Box::new(Quic { connection, error: server_error })),
        }
    }
}

/// Accepts certificates of our CA that have not been withdrawn.
#[derive(Debug)]
struct Verifier {
    inner: Arc<dyn ClientCertVerifier>,
    issued: Arc<Issued>,
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[rustls::DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.inner.verify_client_cert(end_entity, intermediates, now)?;
        let seen = credential::inspect(end_entity).map_err(|_| {
            rustls::Error::InvalidCertificate(rustls::CertificateError::BadEncoding)
        })?;
        if self.issued.accepts(&seen.serial) {
            Ok(verified)
        } else {
            Err(rustls::Error::InvalidCertificate(rustls::CertificateError::Revoked))
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

struct Quic {
    connection: quinn::Connection,
    error: fn(&quinn::ConnectionError) -> LinkError,
}

impl Quic {
    fn error(&self) -> impl Fn(quinn::ConnectionError) -> LinkError {
        let error = self.error;
        move |lost| error(&lost)
    }

    fn streams(&self, send: quinn::SendStream, receive: quinn::RecvStream) -> LaneStreams {
        let error = self.error;
        LaneStreams {
            send: Box::new(Sending { stream: send, error }),
            receive: Box::new(Receiving { stream: receive, error }),
        }
    }
}

fn opening(lane: Lane) -> [u8; 4] {
    [b'L', b'H', lane_number(lane), 0]
}

#[async_trait]
impl Connection for Quic {
    async fn open_lanes(&self) -> Result<Lanes, LinkError> {
        let mut lanes = Vec::with_capacity(Lane::ALL.len());
        for lane in Lane::ALL {
            let (mut send, receive) = self.connection.open_bi().await.map_err(self.error())?;
            let _ = send.set_priority(priority(lane, false));
            send.write_all(&opening(lane)).await.map_err(|error| write_error(error, self.error))?;
            lanes.push(self.streams(send, receive));
        }
        all_lanes(lanes)
    }

    async fn accept_lanes(&self) -> Result<Lanes, LinkError> {
        let mut lanes: [Option<LaneStreams>; Lane::ALL.len()] = [None, None, None, None];
        for _ in Lane::ALL {
            let (send, mut receive) = self.connection.accept_bi().await.map_err(self.error())?;
            let mut first = [0; 4];
            receive
                .read_exact(&mut first)
                .await
                .map_err(|error| LinkError::Protocol(format!("a stream named no lane: {error}")))?;
            let found = Lane::ALL.iter().position(|lane| opening(*lane) == first);
            match found {
                Some(at) if lanes[at].is_none() => {
                    let _ = send.set_priority(priority(Lane::ALL[at], false));
                    lanes[at] = Some(self.streams(send, receive));
                }
                _ => return Err(LinkError::Protocol("a stream names no free lane".into())),
            }
        }
        all_lanes(lanes.into_iter().flatten().collect())
    }

    fn peer(&self) -> SocketAddr {
        self.connection.remote_address()
    }

    fn peer_serial(&self) -> Option<String> {
        let identity = self.connection.peer_identity()?;
        let chain = identity.downcast::<Vec<CertificateDer<'static>>>().ok()?;
        Some(credential::inspect(chain.first()?).ok()?.serial)
    }

    fn statistics(&self) -> Statistics {
        let stats = self.connection.stats();
        Statistics {
            rtt: stats.path.rtt,
            lost_packets: stats.path.lost_packets,
            sent_bytes: stats.udp_tx.bytes,
            received_bytes: stats.udp_rx.bytes,
        }
    }

    fn close(&self, code: CloseCode, reason: &str) {
        self.connection.close(VarInt::from_u32(code.number()), reason.as_bytes());
    }

    async fn closed(&self) -> LinkError {
        (self.error)(&self.connection.closed().await)
    }
}

fn all_lanes(lanes: Vec<LaneStreams>) -> Result<Lanes, LinkError> {
    lanes.try_into().map_err(|_| LinkError::Protocol("not all lanes were opened".into()))
}

struct Sending {
    stream: quinn::SendStream,
    error: fn(&quinn::ConnectionError) -> LinkError,
}

#[async_trait]
impl SendStream for Sending {
    async fn write(&mut self, chunks: &mut [Bytes]) -> Result<usize, LinkError> {
        let written = self.stream.write_chunks(chunks).await;
        written.map(|written| written.chunks).map_err(|error| write_error(error, self.error))
    }

    fn set_priority(&self, priority: i32) {
        // Fails only once the stream is over, when it does not matter.
        let _ = self.stream.set_priority(priority);
    }

    async fn finish(&mut self) -> Result<(), LinkError> {
        if self.stream.finish().is_ok() {
            let _ = self.stream.stopped().await;
        }
        Ok(())
    }
}

struct Receiving {
    stream: quinn::RecvStream,
    error: fn(&quinn::ConnectionError) -> LinkError,
}

#[async_trait]
impl ReceiveStream for Receiving {
    async fn read(&mut self, chunks: &mut [Bytes]) -> Result<usize, LinkError> {
        match self.stream.read_chunks(chunks).await {
            Ok(read) => Ok(read.unwrap_or(0)),
            Err(quinn::ReadError::ConnectionLost(error)) => Err((self.error)(&error)),
            Err(error) => Err(LinkError::Lost(error.to_string())),
        }
    }
}

fn write_error(
    error: quinn::WriteError,
    connection: fn(&quinn::ConnectionError) -> LinkError,
) -> LinkError {
    match error {
        quinn::WriteError::ConnectionLost(error) => connection(&error),
        error => LinkError::Lost(error.to_string()),
    }
}

// TLS alerts, RFC 8446 §6.2; in QUIC an alert is the error code 0x100 plus its number, RFC 9001 §4.8.
const ALERT: u64 = 0x100;
const BAD_CERTIFICATE: u64 = ALERT + 42;
const CERTIFICATE_REVOKED: u64 = ALERT + 44;
const CERTIFICATE_EXPIRED: u64 = ALERT + 45;
const CERTIFICATE_UNKNOWN: u64 = ALERT + 46;
const UNKNOWN_CA: u64 = ALERT + 48;
const DECRYPT_ERROR: u64 = ALERT + 51;
const NO_APPLICATION_PROTOCOL: u64 = ALERT + 120;

/// What the end of a connection means to a client.
fn client_error(error: &quinn::ConnectionError) -> LinkError {
    use quinn::ConnectionError::{ConnectionClosed, TransportError};
    match error {
        // Found by us.
        TransportError(error) => match u64::from(error.code) {
            UNKNOWN_CA | BAD_CERTIFICATE | DECRYPT_ERROR => LinkError::WrongCa,
            CERTIFICATE_EXPIRED => LinkError::StoreExpired,
            _ => common_error(&quinn::ConnectionError::TransportError(error.clone())),
        },
        // Found by the store.
        ConnectionClosed(close) => match u64::from(close.error_code) {
            UNKNOWN_CA | BAD_CERTIFICATE | DECRYPT_ERROR | CERTIFICATE_UNKNOWN => {
                LinkError::WrongCa
            }
            CERTIFICATE_REVOKED => LinkError::Revoked,
            CERTIFICATE_EXPIRED => LinkError::Expired,
            _ => common_error(error),
        },
        error => common_error(error),
    }
}

/// What the end of a connection means to a store.
fn server_error(error: &quinn::ConnectionError) -> LinkError {
    use quinn::ConnectionError::TransportError;
    match error {
        TransportError(found) => match u64::from(found.code) {
            UNKNOWN_CA | BAD_CERTIFICATE | DECRYPT_ERROR => {
                LinkError::Lost("the client's credential is of another CA".into())
            }
            CERTIFICATE_REVOKED => LinkError::Lost("the client's credential was withdrawn".into()),
            CERTIFICATE_EXPIRED => LinkError::Lost("the client's credential has expired".into()),
            _ => common_error(error),
        },
        error => common_error(error),
    }
}

fn common_error(error: &quinn::ConnectionError) -> LinkError {
    use quinn::ConnectionError as E;
    match error {
        E::TimedOut => LinkError::TimedOut,
        E::Reset => LinkError::Lost("the peer was restarted".into()),
        E::LocallyClosed => LinkError::Closed("by ourselves".into()),
        E::ApplicationClosed(close) => {
            let reason = String::from_utf8_lossy(&close.reason).into_owned();
            if close.error_code == VarInt::from_u32(CloseCode::Revoked.number()) {
                LinkError::Revoked
            } else {
                LinkError::Closed(reason)
            }
        }
        E::ConnectionClosed(close) if u64::from(close.error_code) == NO_APPLICATION_PROTOCOL => {
            LinkError::Protocol("it is not longhaul, or of another generation".into())
        }
        error => LinkError::Lost(error.to_string()),
    }
}
