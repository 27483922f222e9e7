//! Where the NBD server listens, and under which terms.

use super::access::Identity;
use super::connection::NbdConnection;
use super::server::NbdServer;
use crate::stream;
use anyhow::{Context as _, Result, bail};
use longhaul_base::Usage;
use longhaul_base::limits::Who;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use socket2::{Domain, SockAddr, Socket, Type};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};

/// Clients that may wait at a unix socket for the accept, as many as at a TCP socket of std.
const BACKLOG: i32 = 128;

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP socket.
    Tcp(SocketAddr),
    /// A unix socket's path.
    Unix(PathBuf),
}

impl std::str::FromStr for Address {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Address> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                bail!(Usage(format!("--nbd {text}: a path has to follow `unix:`")));
            }
            return Ok(Address::Unix(path.into()));
        }
        let text = text.replace("localhost:", "127.0.0.1:");
        match text.parse() {
            Ok(address) => Ok(Address::Tcp(address)),
            Err(_) => {
                bail!(Usage(format!(
                    "--nbd {text}: neither ADDR:PORT, as in `127.0.0.1:10809`, nor `unix:PATH`"
                )))
            }
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Address {
    /// Lets other users than the host's open a unix socket, or not any more. Their grants say which
    /// volumes they may use.
    ///
    /// # Errors
    /// If its mode stays.
    pub fn share(&self, with_others: bool) -> Result<()> {
        let Address::Unix(path) = self else { return Ok(()) };
        let mode = if with_others { 0o666 } else { 0o600 };
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
            .with_context(|| format!("cannot change the mode of {}", path.display()))
    }

    /// Whether only this machine can reach it.
    fn is_local(&self) -> bool {
        match self {
            Address::Tcp(address) => address.ip().is_loopback(),
            Address::Unix(_) => true,
        }
    }
}

/// The terms of TLS for NBD: the server's chain and key, and optionally the CA that must have
/// signed clients' certificates.
///
/// # Errors
/// If a file is unreadable or unusable.
pub fn tls_config(
    chain: &Path,
    key: &Path,
    ca: Option<&Path>,
) -> Result<Arc<rustls::ServerConfig>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?;
    let builder = match ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = rustls::RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).with_context(|| {
                    format!("{} holds a certificate that cannot be a CA", path.display())
                })?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
            builder.with_client_cert_verifier(verifier.build()?)
        }
    };
    let private = PrivateKeyDer::from_pem_file(key)
        .with_context(|| format!("{} is not a private key in PEM", key.display()))?;
    let config = builder.with_single_cert(certificates(chain)?, private).with_context(|| {
        format!("{} and {} do not make a usable pair", chain.display(), key.display())
    })?;
    Ok(Arc::new(config))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = || -> Result<Vec<_>> {
        let all: Vec<_> = CertificateDer::pem_file_iter(path)?.collect::<Result<_, _>>()?;
        if all.is_empty() {
            bail!("there is none in it");
        }
        Ok(all)
    };
    read().with_context(|| format!("cannot read PEM certificates from {}", path.display()))
}

/// A bound socket.
pub struct Listener {
    address: Address,
    socket: Bound,
}

enum Bound {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Listens. `tls` and `ca` say whether clients have to use TLS and to show a certificate.
    ///
    /// # Errors
    /// If the address is in use or not of this machine, or if clients from elsewhere could connect
    /// without authentication.
    pub fn bind(address: &Address, tls: bool, ca: bool) -> Result<Listener> {
        if !(address.is_local() || tls && ca) {
            bail!(Usage(format!(
                "refusing to serve NBD on {address}, which other machines can reach, without TLS \
                 and client certificates: give --nbd-tls-cert, --nbd-tls-key and --nbd-tls-ca, or \
                 listen on 127.0.0.1 or unix:PATH"
            )));
        }
        let (address, socket) = match address {
            Address::Tcp(tcp) => {
                let listener = bind_tcp(*tcp).with_context(|| {
                    format!(
                        "cannot listen on {address} for NBD: stop the process that does, or choose \
                         another --nbd"
                    )
                })?;
                (Address::Tcp(listener.local_addr()?), Bound::Tcp(listener))
            }
            Address::Unix(path) => {
                let listener = bind_unix(path)
                    .with_context(|| format!("cannot listen on {address} for NBD"))?;
                (address.clone(), Bound::Unix(listener))
            }
        };
        Ok(Listener { address, socket })
    }

    /// Where it listens.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Accepts clients until dropped.
    pub async fn run(self, server: Rc<NbdServer>) {
        loop {
            let accepted = match &self.socket {
                Bound::Tcp(listener) => listener.accept().await.and_then(|(stream, peer)| {
                    stream.set_nodelay(true)?;
                    let who = (peer.to_string(), peer.ip().into(), Identity::default());
                    Ok((who, stream::tcp(stream)))
                }),
                Bound::Unix(listener) => listener.accept().await.and_then(|(stream, _)| {
                    let user = stream.peer_cred()?.uid();
                    let client = Identity { user: Some(user), names: Vec::new() };
                    let who = (self.address.to_string(), Who::User(user), client);
                    Ok((who, stream::unix(stream)))
                }),
            };
            match accepted {
                Ok((who, (reader, writer))) => {
                    let serve = NbdConnection::serve(server.clone(), who, reader, writer);
                    tokio::task::spawn_local(serve);
                }
                Err(error) => {
                    // Too few descriptors, mostly: some connection has to end first.
                    tracing::warn!("cannot accept an NBD client on {}: {error}", self.address);
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Address::Unix(path) = &self.address {
            // The path may be missing: this removes it.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn bind_tcp(address: SocketAddr) -> std::io::Result<TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

fn bind_unix(path: &Path) -> Result<UnixListener> {
    if let Ok(meta) = std::fs::symlink_metadata(path) {
        if !meta.file_type().is_socket() {
            bail!("a file that is no socket is there: move it, or choose another path");
        }
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            bail!("another process listens there: stop it, or choose another path");
        }
        std::fs::remove_file(path).context("the socket of a process that ended is in the way")?;
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    // A user who may open the socket may read and write the volumes, from the moment it listens.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(UnixListener::from_std(socket.into())?)
}
