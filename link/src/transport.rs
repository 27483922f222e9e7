//! The interface of the link to a connection, for any transport.
//!
//! A connection is mutually authenticated and encrypted, and has a stream in either direction for
//! each lane. Priorities are strict: a stream sends nothing while a more urgent stream has data to
//! send and may send it.

use super::congestion::Estimate;
use super::error::{CloseCode, LinkError};
use async_trait::async_trait;
use bytes::Bytes;
use longhaul_core::wire::link::{Lane, Principal};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// A connection to an authenticated peer. Until the handshake ends, only an earlier session has
/// proved its identity.
#[async_trait]
pub trait Connection: Send + Sync {
    /// Opens all lanes (the host does).
    async fn open_lanes(&self) -> Result<Lanes, LinkError>;
    /// Waits for the peer to open all lanes.
    async fn accept_lanes(&self) -> Result<Lanes, LinkError>;
    /// Largest datagram that the connection can send now, in bytes; `None` if the transport or the
    /// peer has none.
    fn datagram_bytes(&self) -> Option<usize> {
        None
    }
    /// Sends a datagram, before any data of streams. It may get lost, here too.
    fn send_datagram(&self, _: Bytes) {}
    /// Waits for a datagram. A canceled call loses nothing.
    async fn receive_datagram(&self) -> Result<Bytes, LinkError> {
        std::future::pending().await
    }
    /// The transport: `quic` or `tcp`.
    fn transport(&self) -> &'static str {
        "quic"
    }
    /// Where the peer is.
    fn peer(&self) -> SocketAddr;
    /// The owner of the peer's certificate.
    fn principal(&self) -> Option<Principal>;
    /// Waits until the peer has proven that it is there now. Before, what comes may be a copy of
    /// what it sent long ago.
    async fn proven(&self) -> Result<(), LinkError> {
        Ok(())
    }
    /// Whether it has.
    fn is_proven(&self) -> bool {
        true
    }
    /// Numbers about the connection so far.
    fn statistics(&self) -> Statistics;
    /// Ends the connection. Undelivered data is lost.
    fn close(&self, code: CloseCode, reason: &str);
    /// Waits until the connection is over.
    async fn closed(&self) -> LinkError;
}

/// A datagram that is none of [`longhaul_core::link`]'s.
const PROBE: &[u8] = &[0];
/// Least pause between probes for overdue data. Timers can distinguish it, and a store may take so
/// long for its work on a short line.
const SHORTEST_PAUSE: Duration = Duration::from_millis(3);
/// From this many on the pauses double.
const PROBES_AT_FULL_PACE: u32 = 4;
/// The pause between checks of a connection for silence.
const LOOK: Duration = Duration::from_millis(500);
/// As many looks without anything received are silence: more than a keep-alive and its answer take.
const SILENT_LOOKS: u32 = 3;

/// Sends a datagram at each check while the peer is silent, for ever. The transport repeats lost
/// data after pauses that double. So after three seconds without a line, it may take another three
/// until it notices the line. The answer to a probe shows the line at once, and with it the losses.
///
/// The peer ignores such a datagram, because it is none of its own. Without datagrams this sends
/// nothing.
pub(super) async fn probe(connection: &dyn Connection) -> Infallible {
    let mut received = 0;
    let mut silent = 0;
    loop {
        tokio::time::sleep(LOOK).await;
        let now = connection.statistics().received_bytes;
        silent = if now == received { silent + 1 } else { 0 };
        received = now;
        if silent >= SILENT_LOOKS {
            connection.send_datagram(Bytes::from_static(PROBE));
        }
    }
}

/// Asks a peer for a sign of life. Without datagrams this sends nothing.
pub(super) fn poke(connection: &dyn Connection) {
    connection.send_datagram(Bytes::from_static(PROBE));
}

/// The pause between the last data and its probe. The probe must not be in the same packet, nor in
/// the same burst of losses.
fn tail_pause(rtt: Duration) -> Duration {
    (rtt / 8).clamp(Duration::from_millis(1), Duration::from_millis(10))
}

/// Like [`probe`]. In addition, a probe follows each time something was `sent` whose loss the
/// transport would notice late.
pub(super) async fn trail(connection: &dyn Connection, sent: &Notify) -> Infallible {
    let tails = async {
        loop {
            sent.notified().await;
            tokio::time::sleep(tail_pause(connection.statistics().rtt)).await;
            connection.send_datagram(Bytes::from_static(PROBE));
        }
    };
    tokio::select! {
        never = probe(connection) => never,
        never = tails => never,
    }
}

/// Like [`probe`], and sooner while `waited` is set: someone waits for the last data. quinn sends a
/// PING when the acknowledgment of a stream's last packet is overdue, and repeats the packet after
/// the answer. So a loss costs two round trips and more. With a probe close behind the packet a
/// loss costs one and an eighth. More probes follow, each a round trip and a quarter later, because
/// the transport notices a repeated loss at pauses that double.
pub(super) async fn hurry(
    connection: &dyn Connection,
    mut waited: watch::Receiver<bool>,
) -> Infallible {
    let late = async {
        let mut sent = 0;
        loop {
            let is_waited = *waited.borrow_and_update();
            let overdue = async {
                if !is_waited {
                    return std::future::pending().await;
                }
                let rtt = connection.statistics().rtt;
                // Slower and slower: it may be the store that takes its time.
                let pause = (rtt * 5 / 4).max(SHORTEST_PAUSE);
                let pause = pause * (1 << (sent / PROBES_AT_FULL_PACE).min(10));
                let pause = if sent == 0 { tail_pause(rtt) } else { pause.min(LOOK) };
                tokio::time::sleep(pause).await;
            };
            tokio::select! {
                changed = waited.changed() => match changed {
                    Ok(()) => sent = 0,
                    Err(_) => return std::future::pending().await,
                },
                () = overdue => {
                    connection.send_datagram(Bytes::from_static(PROBE));
                    sent += 1;
                }
            }
        }
    };
    tokio::select! {
        never = probe(connection) => never,
        never = late => never,
    }
}

/// The two directions of a lane.
pub struct LaneStreams {
    /// To the peer.
    pub send: Box<dyn SendStream>,
    /// From the peer.
    pub receive: Box<dyn ReceiveStream>,
}

/// A stream pair for each lane, in the order of [`Lane::ALL`].
pub type Lanes = [LaneStreams; Lane::ALL.len()];

/// The sending half of a lane.
#[async_trait]
pub trait SendStream: Send {
    /// Takes the chunks that fit, and replaces them with the rest. Returns the number of whole
    /// chunks that it took. A canceled call takes nothing.
    async fn write(&mut self, chunks: &mut [Bytes]) -> Result<usize, LinkError>;
    /// Sets the priority; more is more urgent.
    fn set_priority(&self, priority: i32);
    /// Ends the stream, and waits until the peer's transport has received all of it.
    async fn finish(&mut self) -> Result<(), LinkError>;
}

/// The receiving half of a lane.
#[async_trait]
pub trait ReceiveStream: Send {
    /// Waits for data and puts it into the first of `chunks`. Returns the number of filled chunks,
    /// 0 at the end of the stream.
    async fn read(&mut self, chunks: &mut [Bytes]) -> Result<usize, LinkError>;
}

/// Numbers about a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// The estimate of the path by its congestion control.
    pub path: Estimate,
    /// Packets that count as lost.
    pub lost_packets: u64,
    /// Bytes in them.
    pub lost_bytes: u64,
    /// Bytes sent, in datagrams.
    pub sent_bytes: u64,
    /// Bytes received, in datagrams.
    pub received_bytes: u64,
}

/// The facts that a side knows of the path over which it sends.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct PathStatus {
    /// Bytes that may be under way.
    pub window_bytes: u64,
    /// Bytes that arrived a second, over the last round trip that used the whole window.
    pub rate_bytes_per_second: u64,
    /// Least round-trip time of the last seconds, in milliseconds.
    pub base_rtt_ms: f64,
    /// Queue in front of the bottleneck, in milliseconds.
    pub queue_ms: f64,
    /// Somebody else fills that queue.
    pub competing: bool,
}

impl From<Estimate> for PathStatus {
    fn from(estimate: Estimate) -> PathStatus {
        PathStatus {
            window_bytes: estimate.window,
            rate_bytes_per_second: estimate.rate,
            base_rtt_ms: estimate.base_rtt.as_secs_f64() * 1e3,
            queue_ms: estimate.queue.as_secs_f64() * 1e3,
            competing: estimate.competing,
        }
    }
}

/// The priority of a lane's stream. A drain that a flush waits for is worth as much as a commit.
pub fn priority(lane: Lane, drain_urgent: bool) -> i32 {
    match lane {
        Lane::Read => 3,
        Lane::Control => 2,
        Lane::ReadAhead => 1,
        Lane::Drain if drain_urgent => 2,
        Lane::Drain => 0,
    }
}

/// The number of a lane on the wire.
pub fn lane_number(lane: Lane) -> u8 {
    match lane {
        Lane::Read => 0,
        Lane::Control => 1,
        Lane::ReadAhead => 2,
        Lane::Drain => 3,
    }
}
