//! The way to a store for who speaks HTTP with it: one connection, and no link.

use super::stream::{HTTP, Stream, secured};
use crate::address::resolve;
use crate::credential::Credential;
use crate::error::LinkError;
use crate::tls;
use anyhow::Result;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

/// The time before the attempt at the next address.
const STAGGER: Duration = Duration::from_millis(700);

/// A connection to a store, which has shown who it is and will have HTTP spoken.
pub struct Visit {
    /// To it.
    pub stream: Stream,
    /// Its address, in the given form.
    pub address: String,
}

/// Connects to the first of these addresses at which a store speaks HTTP. `None` if there is none,
/// for any reason: a link to the same store finds the reason. Only the first answer shows whether a
/// store refuses the credential. Sets `answered` once TCP has got through to an address. From then
/// on the caller may wait for the rest, however busy the machines are.
///
/// # Errors
/// If key and certificate do not make a credential.
pub async fn visit(
    credential: &Credential,
    addresses: &[String],
    answered: &Arc<AtomicBool>,
) -> Result<Option<Visit>> {
    let connector = TlsConnector::from(Arc::new(tls::client(credential, &[HTTP])?));
    let mut waiting = addresses.iter();
    let mut attempts = JoinSet::new();
    loop {
        let begun = match waiting.next() {
            Some(address) => {
                attempts.spawn(attempt(connector.clone(), address.clone(), answered.clone()));
                true
            }
            None if attempts.is_empty() => return Ok(None),
            None => false,
        };
        tokio::select! {
            Some(ended) = attempts.join_next() => match ended {
                Ok(Ok(visit)) => return Ok(Some(visit)),
                Ok(Err((address, error))) => {
                    tracing::debug!("no HTTP with the store at {address}: {error}");
                }
                Err(error) => tracing::debug!("no HTTP with a store: {error}"),
            },
            () = tokio::time::sleep(STAGGER), if begun => {}
        }
    }
}

async fn attempt(
    connector: TlsConnector,
    address: String,
    answered: Arc<AtomicBool>,
) -> Result<Visit, (String, LinkError)> {
    let reached = async {
        let mut failed = LinkError::Address("the address names no host".into());
        for socket in resolve(&address).await? {
            match speak(&connector, socket, &answered).await {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    };
    match reached.await {
        Ok(stream) => Ok(Visit { stream, address }),
        Err(error) => Err((address, error)),
    }
}

async fn speak(
    connector: &TlsConnector,
    address: SocketAddr,
    answered: &AtomicBool,
) -> Result<Stream, LinkError> {
    let noted = || answered.store(true, Ordering::Relaxed);
    let (stream, _) = secured(connector, address, noted).await?;
    match stream.get_ref().1.alpn_protocol() {
        Some(HTTP) => Ok(stream),
        _ => Err(LinkError::Protocol("it does not speak HTTP".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::stream::ALPN;
    use super::*;
    use crate::SETUP_TIMEOUT;
    use crate::credential::{self, Issued};
    use std::time::Instant;
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    /// A store that speaks these protocols over TCP, and hangs up.
    async fn store(dir: &std::path::Path, protocols: &[&[u8]]) -> String {
        let identity = credential::prepare(dir, &[], "").unwrap();
        let config = tls::server(&identity, Arc::new(Issued::new(dir)), protocols).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let _ = acceptor.accept(socket).await;
            }
        });
        address
    }

    #[tokio::test]
    async fn a_store_is_found_that_speaks_http() {
        let dir = tempfile::tempdir().unwrap();
        let older = store(dir.path(), &[ALPN]).await;
        let mute = store(dir.path(), &[]).await;
        let newer = store(dir.path(), &[ALPN, HTTP]).await;
        let file = dir.path().join("credentials/admin.toml");
        let credential = Credential::load(&file).unwrap();
        let found = async |addresses: &[&String]| {
            let addresses: Vec<String> =
                addresses.iter().map(|address| (*address).clone()).collect();
            visit(&credential, &addresses, &Arc::default())
                .await
                .unwrap()
                .map(|visit| visit.address)
        };
        assert_eq!(found(&[]).await, None);
        assert_eq!(found(&[&older]).await, None);
        assert_eq!(found(&[&older, &mute, &newer]).await, Some(newer.clone()));
        // Somebody else's.
        let other = tempfile::tempdir().unwrap();
        let foreign = store(other.path(), &[HTTP]).await;
        assert_eq!(found(&[&foreign]).await, None);
        // One that says nothing holds nobody up for long.
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let silent = silent.local_addr().map(|at| (silent, at.to_string())).unwrap();
        let begun = Instant::now();
        assert_eq!(found(&[&silent.1, &newer]).await, Some(newer));
        // Nor does what is between the two depend on how fast the machine is.
        assert!((STAGGER..SETUP_TIMEOUT).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    }
}
