//! Chooses the transport of a host: QUIC where it works, TCP where it does not.

use super::Transport;
use super::error::LinkError;
use super::first::First;
use super::quic::{Connected, EarlyCounters};
use super::timeouts::CONNECT_TIMEOUT;
use super::transport::Connection;
use super::{quic, tcp};
use crate::credential::Credential;
use anyhow::Result;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The time in which the host tries only QUIC. A guess: longer than a handshake on any usable path,
/// with a lost packet.
const TCP_AFTER: Duration = Duration::from_secs(1);
/// The pause between attempts over QUIC while TCP is in use.
const QUIC_AGAIN: Duration = Duration::from_secs(30);

/// Connects over what works.
pub(super) struct Dialer {
    quic: quic::Dialer,
    tcp: tcp::Dialer,
    transport: Transport,
    again: Duration,
}

impl Dialer {
    /// Speaks with this credential.
    ///
    /// # Errors
    /// If key and certificate do not make a credential.
    pub fn new(credential: &Credential, transport: Transport) -> Result<Dialer> {
        let (quic, tcp) = (quic::Dialer::new(credential)?, tcp::Dialer::new(credential)?);
        Ok(Dialer { quic, tcp, transport, again: QUIC_AGAIN })
    }

    /// The transports that it may use.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Tries QUIC again this often while TCP is in use.
    #[cfg(test)]
    pub fn try_again_every(&mut self, again: Duration) {
        self.again = again;
    }

    /// Remembers sessions from now on, to begin connections with data, and counts what becomes of
    /// that.
    pub fn remember(&mut self, counters: Arc<EarlyCounters>) {
        self.quic.remember(counters);
    }

    /// Spreads the links of the process over the threads of a store.
    pub fn spread(&mut self) {
        self.quic.spread();
    }

    /// Whether it remembers sessions.
    pub fn remembers(&self) -> bool {
        self.quic.remembers()
    }

    /// Counts of early data and its fates.
    pub fn early(&self) -> Arc<EarlyCounters> {
        self.quic.early()
    }

    /// Whether a connection to this store can begin with data.
    pub fn may_be_early(&self, address: SocketAddr) -> bool {
        self.transport != Transport::Tcp && self.quic.may_be_early(address)
    }

    /// Connects to an address, sending a first flight along where that is possible.
    ///
    /// # Errors
    /// If nobody answers there, or not the store of the credential.
    pub async fn connect(
        &mut self,
        address: SocketAddr,
        first: Option<&mut First>,
    ) -> Result<Connected, LinkError> {
        let plain = |connection| Connected { connection, lanes: None };
        match self.transport {
            Transport::Quic => {
                return self.quic.connect_with(address, CONNECT_TIMEOUT, first).await;
            }
            Transport::Tcp => return self.tcp.connect(address).await.map(plain),
            Transport::Auto => {}
        }
        let dialer = &self.tcp;
        let mut tcp = std::pin::pin!(async move {
            tokio::time::sleep(TCP_AFTER).await;
            dialer.connect(address).await.map(plain)
        });
        // As long as TCP may take: a line that returns meanwhile has to find a packet.
        let limit = TCP_AFTER + CONNECT_TIMEOUT;
        let mut quic = std::pin::pin!(self.quic.connect_with(address, limit, first));
        tokio::select! {
            result = &mut quic => match result {
                // An address that answered is not worth another attempt.
                Err(error @ (LinkError::TimedOut | LinkError::Lost(_))) => {
                    tcp.await.map_err(|other| more_telling(error, other))
                }
                result => result,
            },
            result = &mut tcp => match result {
                Ok(connection) => Ok(connection),
                // It knows by itself when it has waited long enough, and waits longer for who has
                // answered.
                Err(other) => quic.await.map_err(|error| more_telling(error, other)),
            },
        }
    }

    /// Waits until QUIC works where TCP is in use. Over QUIC it waits for ever, and keeps the
    /// remembered session fresh.
    pub async fn wait_for_quic(&mut self, connection: &dyn Connection) {
        if connection.transport() == "quic" {
            self.quic.renew(connection.peer()).await;
        }
        if self.transport != Transport::Auto {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(self.again).await;
            if let Ok(found) = self.quic.connect(connection.peer(), CONNECT_TIMEOUT).await {
                found.close(super::CloseCode::Done, "UDP gets through");
                return;
            }
        }
    }

    /// Waits a little, until the peers know of closed connections.
    pub async fn wait_idle(&self) {
        self.quic.wait_idle().await;
    }
}

/// Of what QUIC and TCP failed with, what is worth saying.
fn more_telling(quic: LinkError, tcp: LinkError) -> LinkError {
    if tcp.needs_operator() || (quic == LinkError::TimedOut && tcp != LinkError::TimedOut) {
        tcp
    } else {
        quic
    }
}
