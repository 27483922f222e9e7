//! A TCP connection with TLS: its setup, its owner, and the meaning of its end.

use crate::credential::SERVER_NAME;
use crate::error::{CredentialFault, LinkError};
use crate::timeouts::{CONNECT_TIMEOUT, IDLE_TIMEOUT, KEEP_ALIVE, SETUP_TIMEOUT};
use longhaul_core::wire::link::Principal;
use rustls_pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, TlsStream};

/// Application protocol in the TLS handshake.
pub(super) const ALPN: &[u8] = b"longhaul-tcp/1";
/// The same of those who have no link.
pub(super) const HTTP: &[u8] = b"http/1.1";
/// Unsent bytes that the kernel takes of a connection before it calls it full.
const NOT_SENT_BYTES: u32 = 32 << 10;

pub(super) fn configure(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let socket = SockRef::from(socket);
    let keepalive = TcpKeepalive::new().with_time(KEEP_ALIVE).with_interval(KEEP_ALIVE);
    let probes = IDLE_TIMEOUT.as_secs() / KEEP_ALIVE.as_secs() - 1;
    socket.set_tcp_keepalive(&keepalive.with_retries(probes as u32))?;
    socket.set_tcp_user_timeout(Some(IDLE_TIMEOUT))?;
    socket.set_tcp_notsent_lowat(NOT_SENT_BYTES)?;
    // If the kernel does not have it, the system's default has to do. BBR, often the default,
    // delays datagram requests.
    if let Err(error) = socket.set_tcp_congestion(b"cubic") {
        tracing::debug!("TCP congestion control stays the system's: {error}");
    }
    Ok(())
}

/// A connection to the store of the credential, and how long the way there and back took. Calls
/// `answered` once somebody has answered.
///
/// An address may be silent for [`CONNECT_TIMEOUT`]. A store that has answered has
/// [`SETUP_TIMEOUT`] for the handshake.
pub(super) async fn secured(
    connector: &TlsConnector,
    address: SocketAddr,
    answered: impl FnOnce(),
) -> Result<(Stream, Duration), LinkError> {
    let begun = Instant::now();
    let refused = |error: io::Error| match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::TimedOut => LinkError::TimedOut,
        _ => LinkError::Lost(error.to_string()),
    };
    let connected = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await;
    let socket = connected.map_err(|_| LinkError::TimedOut)?.map_err(refused)?;
    let rtt = begun.elapsed();
    answered();
    configure(&socket).map_err(refused)?;
    let name =
        ServerName::try_from(SERVER_NAME).map_err(|error| LinkError::Lost(error.to_string()))?;
    let handshake = tokio::time::timeout(SETUP_TIMEOUT, connector.connect(name, socket)).await;
    let stream = handshake.map_err(|_| LinkError::TimedOut)?;
    Ok((TlsStream::from(stream.map_err(|error| client_error(&error))?), rtt))
}

pub(super) type Stream = TlsStream<TcpStream>;

pub(super) fn principal(stream: &Stream) -> Option<Principal> {
    let (_, session) = stream.get_ref();
    crate::principal::of(session.peer_certificates()?.first()?).ok()
}

/// The error of TLS, if it is one.
fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// The meaning of the end of a connection for a client.
pub fn client_error(error: &io::Error) -> LinkError {
    use rustls::AlertDescription as Alert;
    use rustls::CertificateError as Bad;
    match tls_error(error) {
        Some(rustls::Error::InvalidCertificate(
            Bad::Expired | Bad::ExpiredContext { .. } | Bad::NotValidYet,
        )) => LinkError::StoreExpired,
        Some(rustls::Error::InvalidCertificate(_)) => LinkError::WrongCa,
        Some(rustls::Error::AlertReceived(alert)) => match *alert {
            Alert::UnknownCA
            | Alert::BadCertificate
            | Alert::DecryptError
            | Alert::CertificateUnknown => LinkError::WrongCa,
            Alert::CertificateRevoked => LinkError::Revoked,
            Alert::CertificateExpired => LinkError::Expired,
            Alert::NoApplicationProtocol => {
                LinkError::Protocol("it is not longhaul, or of another generation".into())
            }
            _ => LinkError::Lost(error.to_string()),
        },
        _ => common_error(error),
    }
}

/// The meaning of the end of a connection for a store.
pub(super) fn server_error(error: &io::Error) -> LinkError {
    use rustls::CertificateError as Bad;
    match tls_error(error) {
        Some(rustls::Error::InvalidCertificate(bad)) => LinkError::Credential(match bad {
            Bad::Revoked => CredentialFault::Withdrawn,
            Bad::Expired | Bad::ExpiredContext { .. } => CredentialFault::Expired,
            _ => CredentialFault::OtherCa,
        }),
        _ => common_error(error),
    }
}

fn common_error(error: &io::Error) -> LinkError {
    match error.kind() {
        io::ErrorKind::TimedOut => LinkError::TimedOut,
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe => LinkError::Lost("the peer was restarted".into()),
        _ => LinkError::Lost(error.to_string()),
    }
}
