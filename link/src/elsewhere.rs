//! Other stores than the one that a host is connected to, or was.
//!
//! A host is at one store with all its volumes. It looks for another one when that falls silent or asks it to
//! leave, and stays until another has said Hello: a store that nobody else can stand in for is not left.

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

/// After so long without a packet another store is looked for: both sides send something every second, so
/// two rounds of that are lost.
const SILENT: Duration = Duration::from_secs(2);
/// How often the connection is looked at for silence.
const LOOK: Duration = Duration::from_millis(250);
/// Pause between attempts to find another store.
const PAUSE: Duration = Duration::from_secs(1);
/// How long the store that answered last is alone in being tried.
pub(super) const HEAD_START: Duration = Duration::from_millis(700);
/// How long after one address the next is tried too.
const STAGGER: Duration = Duration::from_millis(200);
/// What a silent store gets to answer once another one has: where the line was down they come back
/// together, and the one that has the volumes is the better choice. That many round trips, and a bit more.
const LAST_CALL: (u32, Duration, Duration) =
    (3, Duration::from_millis(50), Duration::from_millis(500));

/// What the store that answered last gets on top, where it is not connected: while nobody answers it is tried this
/// often.
const TURN: Duration = Duration::from_millis(500);

/// How other stores are reached.
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

    /// Connects to the first of these addresses that answers; each has a moment before the next is tried too.
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

    /// Connects to one of these stores: to the one that data is to be sent to at once, if there is one, else to the
    /// first, if that answers soon. The dialer is another one if the store is.
    ///
    /// # Errors
    /// What each address said.
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

    /// Waits until another store is to be gone to, and has answered: one of the `others` when this one is
    /// silent, one of those that it names when it asks to `leave`.
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

/// Waits until nothing has come for a while. Over TCP the kernel notices, and nothing comes while nothing
/// is asked.
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
