//! Addresses of stores.

use super::error::LinkError;
use super::timeouts::SETUP_TIMEOUT;
use std::net::SocketAddr;

/// The sockets of an address.
pub(super) async fn resolve(address: &str) -> Result<Vec<SocketAddr>, LinkError> {
    let found = tokio::time::timeout(SETUP_TIMEOUT, tokio::net::lookup_host(address)).await;
    match found {
        Err(_) => Err(LinkError::Address("the name service does not answer".into())),
        Ok(Err(error)) => Err(LinkError::Address(format!("{error}; give it as HOST:PORT"))),
        Ok(Ok(found)) => Ok(found.collect()),
    }
}
