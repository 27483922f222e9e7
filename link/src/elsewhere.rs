//! Other stores than the present or the last one of a host.
//!
//! A host is at one store with all its volumes. It looks for another store when that one falls
//! silent or asks it to leave. It stays until another one has said Hello: it never leaves a store
//! without a replacement.

use super::Transport;
use super::connect::{self, Established, Known, Opening};
use super::dial::Dialer;
use super::error::{CloseCode, LinkError};
use super::quic::EarlyCounters;
use super::transport::{self, Connection};
use crate::credential::Credential;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// After so long without a packet the host looks for another store. Both sides send something every
/// second, so this takes two lost rounds.
const SILENT: Duration = Duration::from_secs(2);
/// The pause between checks of a connection for silence.
const LOOK: Duration = Duration::from_millis(250);
/// Pause between attempts to find another store.
const PAUSE: Duration = Duration::from_secs(1);
/// The time in which the host tries only the store that answered last.
pub(super) const HEAD_START: Duration = Duration::from_millis(700);
/// The time after which the host tries the next address too.
const STAGGER: Duration = Duration::from_millis(200);
/// The time that a silent store gets once another store has answered: this number of round trips,
/// and a bit more. If the line was down, both come back together, and the store with the volumes is
/// the better choice.
const LAST_CALL: (u32, Duration, Duration) =
    (3, Duration::from_millis(50), Duration::from_millis(500));

/// The additional time for the store that answered last, if the host has no connection to it. While
/// no store answers, the host tries it this often.
const TURN: Duration = Duration::from_millis(500);

/// How to reach other stores.
#[derive(Clone)]
pub(super) struct Elsewhere {
    credential: Credential,
    transport: Transport,
    /// Of the dialers that are to remember sessions.
    early: Option<Arc<EarlyCounters>>,
}

/// A connection with what keeps it going.
pub(super) type Found = (Dialer, Established);

impl Elsewhere {
    /// With this credential, in the same way as the dialer.
    pub fn new(credential: Credential, dialer: &Dialer) -> Elsewhere {
        let early = dialer.remembers().then(|| dialer.early());
        Elsewhere { credential, transport: dialer.transport(), early }
    }

    /// Connects to the first of these addresses that answers. Each has a moment before the attempt
    /// at the next one.
    async fn any(&self, addresses: &[String]) -> Option<Found> {
        let attempts = (0..).zip(addresses).map(|(n, address)| async move {
            tokio::time::sleep(STAGGER * n).await;
            let mut dialer = Dialer::new(&self.credential, self.transport).ok()?;
            if let Some(counters) = &self.early {
                dialer.remember(counters.clone());
            }
            let (only, opening) = (std::slice::from_ref(address), Opening::new(false));
            let connected = connect::connect(&mut dialer, only, None, opening).await;
            connected.ok().map(|established| (dialer, established))
        });
        let mut attempts: FuturesUnordered<_> = attempts.collect();
        while let Some(found) = attempts.next().await {
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Connects to one of these stores. If data for one of them waits, that one is the first
    /// choice, at once. Otherwise the first one is, if it answers soon. With another store the
    /// dialer is another one too.
    ///
    /// # Errors
    /// The error of each address.
    pub async fn first(
        &self,
        dialer: &mut Dialer,
        stores: &[String],
        known: Option<&Known>,
        opening: Opening,
    ) -> Result<(Option<Dialer>, Established), Vec<(String, LinkError)>> {
        let (mut ours, mut others) = (stores.to_vec(), stores.to_vec());
        if let Some(known) = known.filter(|_| opening.early) {
            ours = vec![known.address.clone()];
        }
        others.retain(|store| Some(store) != ours.first());
        let mut one = std::pin::pin!(connect::connect(dialer, &ours, known, opening));
        let others = async {
            if others.is_empty() {
                return None;
            }
            tokio::time::sleep(HEAD_START).await;
            self.any(&others).await
        };
        tokio::select! {
            connected = &mut one => connected.map(|established| (None, established)),
            Some((other, found)) = others => {
                match tokio::time::timeout(TURN + last_call(&found), one).await {
                    Ok(Ok(established)) => {
                        found.connection.close(CloseCode::Done, "not needed after all");
                        Ok((None, established))
                    }
                    _ => Ok((Some(other), found)),
                }
            }
        }
    }

    /// Waits until the host has to leave, and another store has answered. If this store is silent,
    /// that is one of the `others`. If this store asks the host to `leave`, it is one of the stores
    /// that it names.
    pub async fn instead(
        &self,
        connection: &dyn Connection,
        others: impl Fn() -> Vec<String>,
        mut leave: watch::Receiver<Vec<String>>,
    ) -> Found {
        loop {
            let asked = tokio::select! {
                () = silence(connection) => false,
                Ok(()) = leave.changed() => true,
            };
            let received = connection.statistics().received_bytes;
            let others = if asked { leave.borrow_and_update().clone() } else { others() };
            let found = tokio::select! {
                found = self.any(&others) => found,
                () = heard(connection, received), if !asked => None,
            };
            if let Some((dialer, established)) = found {
                let wait = last_call(&established);
                transport::poke(connection);
                let answers =
                    async { tokio::time::timeout(wait, heard(connection, received)).await.is_ok() };
                if asked || !answers.await {
                    return (dialer, established);
                }
                established.connection.close(CloseCode::Done, "not needed after all");
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// How long a store may still answer once another one has.
fn last_call(other: &Established) -> Duration {
    let (trips, least, most) = LAST_CALL;
    (other.connection.statistics().rtt * trips + least).min(most)
}

/// Waits until nothing has come for a while. Over TCP the kernel notices a dead peer, and without
/// requests nothing comes.
async fn silence(connection: &dyn Connection) {
    if connection.transport() != "quic" {
        return std::future::pending().await;
    }
    let mut last = (connection.statistics().received_bytes, Instant::now());
    loop {
        tokio::time::sleep(LOOK).await;
        let received = connection.statistics().received_bytes;
        if received != last.0 {
            last = (received, Instant::now());
        } else if last.1.elapsed() >= SILENT {
            return;
        }
    }
}

/// Waits until something more has come.
async fn heard(connection: &dyn Connection, received: u64) {
    while connection.statistics().received_bytes == received {
        tokio::time::sleep(LOOK / 10).await;
    }
}
