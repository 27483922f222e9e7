//! Other stores than the one that a host is connected to, or was.
//!
//! A host is at one store with all its volumes. It looks for another one when that falls silent or asks it to
//! leave, and stays until another has said Hello: a store that nobody else can stand in for is not left.

use super::Transport;
use super::connect::{self, Established, Known};
use super::dial::Dialer;
use super::transport::{self, Connection};
use super::{CloseCode, LinkError};
use crate::credential::Credential;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
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
const HEAD_START: Duration = Duration::from_millis(700);
/// How long after one address the next is tried too.
const STAGGER: Duration = Duration::from_millis(200);
/// What a silent store gets to answer once another one has: where the line was down they come back
/// together, and the one that has the volumes is the better choice. That many round trips, and a bit more.
const LAST_CALL: (u32, Duration, Duration) =
    (3, Duration::from_millis(50), Duration::from_millis(500));

/// How other stores are reached.
#[derive(Clone)]
pub(super) struct Elsewhere {
    credential: Credential,
    transport: Transport,
}

/// A connection with what keeps it going.
pub(super) type Found = (Dialer, Established);

impl Elsewhere {
    /// With this credential, over that.
    pub fn new(credential: Credential, transport: Transport) -> Elsewhere {
        Elsewhere { credential, transport }
    }

    /// Connects to the first of these addresses that answers; each has a moment before the next is tried too.
    async fn any(&self, addresses: &[String]) -> Option<Found> {
        let attempts = (0..).zip(addresses).map(|(n, address)| async move {
            tokio::time::sleep(STAGGER * n).await;
            let mut dialer = Dialer::new(&self.credential, self.transport).ok()?;
            let only = std::slice::from_ref(address);
            let connected = connect::connect(&mut dialer, only, None).await;
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

    /// Connects to one of these stores, the first of them if that answers soon. The dialer is another one if
    /// that store is.
    ///
    /// # Errors
    /// What each address said.
    pub async fn first(
        &self,
        dialer: &mut Dialer,
        stores: &[String],
        known: Option<&Known>,
    ) -> Result<(Option<Dialer>, Established), Vec<(String, LinkError)>> {
        let mut one = std::pin::pin!(connect::connect(dialer, stores, known));
        let others = async {
            match stores.get(1..).filter(|others| !others.is_empty()) {
                Some(others) => {
                    tokio::time::sleep(HEAD_START).await;
                    self.any(others).await
                }
                None => None,
            }
        };
        tokio::select! {
            connected = &mut one => connected.map(|established| (None, established)),
            Some((dialer, established)) = others => Ok((Some(dialer), established)),
            else => Err(Vec::new()),
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
                let (trips, least, most) = LAST_CALL;
                let rtt = established.connection.statistics().rtt;
                let wait = (rtt * trips + least).min(most);
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
