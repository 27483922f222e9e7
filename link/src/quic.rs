//! QUIC as the link's transport: mutual TLS 1.3, a few long-lived bidirectional streams a lane.
//!
//! A stream begins with four bytes, `LH`, the lane's number and its own number within the lane, by
//! which the store knows it.
//!
//! Windows: a stream's receive window is at most [`STREAM_WINDOW`]. quinn ends a connection whose
//! stream has more than 1,024 gaps, which a larger window with losses can reach. The window also
//! bounds the bytes of a lane in the sender's buffer. So an unread drain never takes the room of a
//! read: the windows of the connection hold all lanes at once.

mod accept;

pub use accept::{Acceptor, AcceptorSocket, Arriving};

use super::congestion;
use super::ends::{client_error, write_error};
use super::error::{CloseCode, LinkError};
use super::first::First;
use super::sessions::Remembered;
use super::steer::{self, FirstIds, Steering};
use super::stripe::{self, Receiving, Sending};
use super::timeouts::{IDLE_TIMEOUT, KEEP_ALIVE, SETUP_TIMEOUT};
use super::tls;
use super::transport::{Connection, LaneStreams, Lanes, Statistics};
use super::transport::{lane_number, priority};
use crate::credential::{Credential, SERVER_NAME};
use anyhow::Result;
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::Shared;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use longhaul_core::wire::link::{Lane, Principal};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{AckFrequencyConfig, EndpointConfig, MtuDiscoveryConfig, TransportConfig, VarInt};
use rustls_pki_types::CertificateDer;
use socket2::Socket;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// Generations of the protocol, the newest first: application protocols in the TLS handshake. A new
/// one serves for facts that each side must know before the first stream.
pub const GENERATIONS: [&[u8]; 1] = [b"longhaul/1"];

/// Receive window of a stream, in bytes.
const STREAM_WINDOW: u32 = 1 << 20;
/// The least that a store with many sessions has instead: 16 of them are 1 MiB a lane.
const MIN_STREAM_WINDOW: u32 = 64 << 10;
/// Sessions that get the full window. Beyond these, the n-th session gets their share of it. So n
/// sessions together grow with the logarithm of n.
const WIDE_SESSIONS: u32 = 8;
/// Largest datagram, in bytes. quinn hands the kernel up to ten at once (UDP segmentation offload),
/// and the kernel takes 65,507 bytes. quinn-udp counts a burst that is too long as sent. So with
/// larger datagrams every full burst would be lost, again and again.
const MAX_DATAGRAM: u16 = 6144;
/// quinn's `MAX_TRANSMIT_SEGMENTS`.
const SEGMENTS_AT_ONCE: usize = 10;
const _: () = assert!(MAX_DATAGRAM as usize * SEGMENTS_AT_ONCE <= 65_507);
/// Socket buffers asked for, in bytes; the system may give less.
const SOCKET_BUFFER: usize = 4 << 20;
/// Bytes of datagrams that the sender has not sent, or the receiver has not taken. Beyond it quinn
/// drops the oldest. All replies that a host may have asked for in datagrams fit twice.
const DATAGRAM_BUFFER: usize = 1 << 20;
/// The assumed round trip before any measurement. The transport repeats lost parts of a handshake
/// after three of these, six more, and so on. With RFC 9002's 333 ms the first packet after an
/// outage could come up to two seconds late.
const INITIAL_RTT: Duration = Duration::from_millis(100);
/// While no store answers, the host begins a new connection this often, beside the earlier ones.
/// The pauses in which a connection repeats its first packet double, and a packet should be on its
/// way soon after a line returns. More often would help little: with the repetitions the longest
/// gap is 0.6 s.
const BEGIN_ANEW: Duration = Duration::from_secs(1);
/// The same while connections can begin with data. When quinn repeats a first packet, it leaves out
/// its data (quinn-proto 0.11, `pto_time_and_space`). So the first packet after an outage should be
/// the beginning of an attempt.
const BEGIN_EARLY_ANEW: Duration = Duration::from_millis(500);
/// So these repeat nothing before their answer: the first repetition comes after three of these,
/// longer than an attempt lasts.
const EARLY_INITIAL_RTT: Duration = Duration::from_secs(2);
/// The limit for the peer: how long it may hold back an acknowledgment. RFC 9000's 25 ms would
/// delay the discovery of a lost last packet. The number itself is a guess.
const MAX_ACK_DELAY: Duration = Duration::from_millis(2);
/// Asked of the peer: how many packets it may receive without acknowledging. Guessed.
const ACK_THRESHOLD: u32 = 10;

/// How often a host that stays connected has the store give it new sessions: they last a day
/// (rustls).
const RENEW: Duration = Duration::from_secs(12 * 3600);
/// The time that the host waits for the data that a store sends once it is connected.
const RENEWAL: Duration = Duration::from_secs(2);
/// Stores of which a host remembers sessions.
const STORES_REMEMBERED: usize = 8;

/// Receive window of the streams of a store's session when `open` sessions are open with it.
fn session_window(open: usize) -> u32 {
    let open = u32::try_from(open).unwrap_or(u32::MAX).max(WIDE_SESSIONS);
    let share = u64::from(STREAM_WINDOW) * u64::from(WIDE_SESSIONS) / u64::from(open);
    (share as u32).max(MIN_STREAM_WINDOW)
}

fn transport_config(stream_window: u32) -> TransportConfig {
    let streams = stripe::all_streams() as u32;
    let all_windows = stream_window * streams;
    let mut acks = AckFrequencyConfig::default();
    acks.max_ack_delay(Some(MAX_ACK_DELAY)).ack_eliciting_threshold(ACK_THRESHOLD.into());
    let mut mtu = MtuDiscoveryConfig::default();
    mtu.upper_bound(MAX_DATAGRAM);
    let mut config = TransportConfig::default();
    config
        .max_concurrent_bidi_streams(streams.into())
        .max_concurrent_uni_streams(0_u32.into())
        .stream_receive_window(stream_window.into())
        .receive_window(all_windows.into())
        .send_window(all_windows.into())
        .initial_rtt(INITIAL_RTT)
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_idle_timeout(IDLE_TIMEOUT.try_into().ok())
        .ack_frequency_config(Some(acks))
        .mtu_discovery_config(Some(mtu))
        .packet_threshold(congestion::PACKET_THRESHOLD)
        .time_threshold(congestion::TIME_THRESHOLD)
        .congestion_controller_factory(Arc::new(congestion::Factory))
        .datagram_receive_buffer_size(Some(DATAGRAM_BUFFER))
        .datagram_send_buffer_size(DATAGRAM_BUFFER);
    config
}

/// A UDP socket as links want it. If `beside`, others may have this address already.
pub(super) fn socket(address: SocketAddr, beside: bool) -> std::io::Result<Socket> {
    use socket2::{Domain, Protocol, Type};
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    // Without the privilege to exceed net.core.rmem_max and wmem_max, the kernel limits them to
    // these.
    use rustix::net::sockopt;
    if sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BUFFER).is_err() {
        socket.set_recv_buffer_size(SOCKET_BUFFER)?;
    }
    socket.set_send_buffer_size(SOCKET_BUFFER)?;
    socket.set_nonblocking(true)?;
    socket.set_reuse_port(beside)?;
    socket.bind(&address.into())?;
    tracing::debug!(
        receive = socket.recv_buffer_size().unwrap_or_default(),
        send = socket.send_buffer_size().unwrap_or_default(),
        "UDP socket buffers in bytes"
    );
    Ok(socket)
}

/// `steer` is for an endpoint that shares its address with others.
fn endpoint(
    socket: Socket,
    server: Option<quinn::ServerConfig>,
    steer: Option<Steering>,
) -> std::io::Result<quinn::Endpoint> {
    let mut config = EndpointConfig::default();
    if let Some(steer) = steer {
        config.cid_generator(move || Box::new(steer.connection_ids()));
    }
    config.max_udp_payload_size(MAX_DATAGRAM).map_err(std::io::Error::other)?;
    quinn::Endpoint::new(config, server, socket.into(), Arc::new(quinn::TokioRuntime))
}

/// The host's end.
pub struct Dialer {
    tls: rustls::ClientConfig,
    config: quinn::ClientConfig,
    /// Stores with remembered sessions, if the host remembers any, the last connected at the end.
    stores: Option<Vec<Store>>,
    early: Arc<EarlyCounters>,
    first_ids: Option<FirstIds>,
    v4: Option<quinn::Endpoint>,
    v6: Option<quinn::Endpoint>,
}

/// A store with remembered sessions.
struct Store {
    address: SocketAddr,
    remembered: Arc<Remembered>,
    config: quinn::ClientConfig,
}

/// Connections begun with data, since the start.
#[derive(Debug, Default)]
pub(super) struct EarlyCounters {
    pub offered: AtomicU64,
    pub accepted: AtomicU64,
    pub rejected: AtomicU64,
}

/// A connection to a store.
pub(super) struct Connected {
    pub connection: Box<dyn Connection>,
    /// Its lanes, if they are open and the first flight has come to the store in them.
    pub lanes: Option<Lanes>,
}

/// A connection that begins with data.
struct Offered {
    connection: quinn::Connection,
    lanes: Lanes,
}

/// Waits for another read of the first flight; for ever if there is no such flight.
async fn more(first: Option<&mut First>) -> Result<Bytes, LinkError> {
    match first {
        Some(first) => first.more().await,
        None => std::future::pending().await,
    }
}

/// The end of a handshake; tells when its peer has answered.
async fn finished(
    mut connecting: quinn::Connecting,
    answered: &Notify,
) -> Result<quinn::Connection, quinn::ConnectionError> {
    connecting.handshake_data().await?;
    answered.notify_one();
    connecting.await
}

impl Dialer {
    /// Speaks with this credential.
    ///
    /// # Errors
    /// If key and certificate do not make a credential.
    pub fn new(credential: &Credential) -> Result<Dialer> {
        Dialer::with_generations(credential, &GENERATIONS)
    }

    /// As [`Dialer::new`], speaking these generations of the protocol.
    pub(super) fn with_generations(
        credential: &Credential,
        generations: &[&[u8]],
    ) -> Result<Dialer> {
        let tls = tls::client(credential, generations)?;
        let config = QuicClientConfig::try_from(tls.clone())?;
        let mut config = quinn::ClientConfig::new(Arc::new(config));
        config.transport_config(Arc::new(transport_config(STREAM_WINDOW)));
        let (stores, early) = (None, Arc::default());
        Ok(Dialer { tls, config, stores, early, first_ids: None, v4: None, v6: None })
    }

    /// Goes to the same thread of a store with all connections from now on, and to another one than
    /// the link before.
    pub(super) fn spread(&mut self) {
        let ids = steer::first_ids();
        self.config.initial_dst_cid_provider(ids.clone());
        self.first_ids = Some(ids);
    }

    /// Remembers sessions from now on, to begin connections with data, and counts what becomes of
    /// that.
    pub(super) fn remember(&mut self, counters: Arc<EarlyCounters>) {
        self.stores.get_or_insert_default();
        self.early = counters;
    }

    /// Whether the host remembers sessions.
    pub(super) fn remembers(&self) -> bool {
        self.stores.is_some()
    }

    /// Counts of early data and its fates.
    pub(super) fn early(&self) -> Arc<EarlyCounters> {
        self.early.clone()
    }

    /// Whether a connection to this store can begin with data.
    pub(super) fn may_be_early(&self, address: SocketAddr) -> bool {
        let mut stores = self.stores.iter().flatten();
        stores.any(|store| store.address == address && store.remembered.has_session())
    }

    /// The remembered facts about a store, and the configuration for it.
    fn store(&mut self, address: SocketAddr) -> (Option<Arc<Remembered>>, quinn::ClientConfig) {
        let Some(stores) = &mut self.stores else { return (None, self.config.clone()) };
        let at = stores.iter().position(|store| store.address == address);
        if at.is_none() {
            let remembered = Arc::<Remembered>::default();
            let tls = tls::remembering(&self.tls, remembered.clone());
            // `with_generations` has found it usable.
            let Ok(crypto) = QuicClientConfig::try_from(tls) else {
                return (None, self.config.clone());
            };
            let mut config = quinn::ClientConfig::new(Arc::new(crypto));
            config.transport_config(Arc::new(transport_config(STREAM_WINDOW)));
            config.token_store(remembered.clone());
            if let Some(ids) = &self.first_ids {
                config.initial_dst_cid_provider(ids.clone());
            }
            if stores.len() >= STORES_REMEMBERED {
                stores.remove(0);
            }
            stores.push(Store { address, remembered, config });
        }
        let at = at.unwrap_or(stores.len() - 1);
        (Some(stores[at].remembered.clone()), stores[at].config.clone())
    }

    /// Has the store give new sessions now and then, for ever.
    pub(super) async fn renew(&mut self, address: SocketAddr) -> LinkError {
        loop {
            tokio::time::sleep(RENEW).await;
            if self.stores.is_none() {
                continue;
            }
            if let Ok(found) = self.connect(address, super::CONNECT_TIMEOUT).await {
                tokio::time::sleep(RENEWAL).await;
                found.close(CloseCode::Done, "new sessions");
            }
        }
    }

    /// Connects to an address. The store has `limit` for its first answer, and [`SETUP_TIMEOUT`]
    /// for the rest.
    ///
    /// # Errors
    /// If no store answers there, or not the store of the credential.
    pub async fn connect(
        &mut self,
        address: SocketAddr,
        limit: Duration,
    ) -> Result<Box<dyn Connection>, LinkError> {
        Ok(self.connect_with(address, limit, None).await?.connection)
    }

    /// As [`Dialer::connect`], sending a first flight along where a session allows it.
    pub(super) async fn connect_with(
        &mut self,
        address: SocketAddr,
        limit: Duration,
        mut first: Option<&mut First>,
    ) -> Result<Connected, LinkError> {
        let lost = |error: &dyn std::fmt::Display| LinkError::Lost(error.to_string());
        let (remembered, config) = self.store(address);
        let offered = remembered.as_ref().filter(|_| first.is_some());
        let mut early_config = config.clone();
        let mut transport = transport_config(STREAM_WINDOW);
        transport.initial_rtt(EARLY_INITIAL_RTT);
        early_config.transport_config(Arc::new(transport));
        let counters = self.early.clone();
        let count = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
        let (slot, local) = match address {
            SocketAddr::V4(_) => (&mut self.v4, SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))),
            SocketAddr::V6(_) => (&mut self.v6, SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))),
        };
        let endpoint = match slot {
            Some(endpoint) => endpoint,
            None => {
                let made = socket(local, false).and_then(|socket| endpoint(socket, None, None));
                slot.insert(made.map_err(|error| lost(&error))?)
            }
        };
        let answered = Notify::new();
        let mut was_answered = false;
        let mut attempts = FuturesUnordered::new();
        let mut early: Vec<Option<Offered>> = Vec::new();
        let mut answers = FuturesUnordered::new();
        let pause = if offered.is_some() { BEGIN_EARLY_ANEW } else { BEGIN_ANEW };
        let mut anew = tokio::time::interval(pause);
        anew.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut deadline = std::pin::pin!(tokio::time::sleep(limit));
        loop {
            tokio::select! {
                _ = anew.tick() => {
                    // Sessions can run out.
                    let has_session = offered.is_some_and(|remembered| remembered.has_session());
                    let config = if has_session { &early_config } else { &config };
                    let begin = || endpoint.connect_with(config.clone(), address, SERVER_NAME);
                    let connecting = match offered {
                        Some(remembered) => remembered.offer(begin),
                        None => begin(),
                    };
                    let connecting = connecting.map_err(|error| lost(&error))?;
                    let Some(first) = &first else {
                        attempts.push(finished(connecting, &answered));
                        continue;
                    };
                    let (connection, accepted) = match connecting.into_0rtt() {
                        Ok(begun) => begun,
                        Err(connecting) => {
                            attempts.push(finished(connecting, &answered));
                            continue;
                        }
                    };
                    let quic = Quic::new(connection.clone(), client_error);
                    // The host knows the store's limits from before, and waits for nothing.
                    let mut lanes = quic.open_lanes().await?;
                    first.begin(&mut lanes).await?;
                    count(&counters.offered);
                    let number = early.len();
                    early.push(Some(Offered { connection, lanes }));
                    answers.push(accepted.map(move |accepted| (number, accepted)));
                }
                read = more(first.as_deref_mut()) => {
                    let read = read?;
                    for Offered { lanes, .. } in early.iter_mut().flatten() {
                        // If it is over, its answer says so.
                        let _ = First::add(lanes, read.clone()).await;
                    }
                }
                Some((number, accepted)) = answers.next() => {
                    let Some(Offered { connection, lanes }) = early[number].take() else { continue };
                    if let Some(error) = connection.close_reason() {
                        return Err(client_error(&error));
                    }
                    count(if accepted { &counters.accepted } else { &counters.rejected });
                    let connection = Box::new(Quic::new(connection, client_error));
                    return Ok(Connected { connection, lanes: accepted.then_some(lanes) });
                }
                // The host gives up the other attempts, and tells their peers.
                Some(connected) = attempts.next() => return match connected {
                    Ok(connection) => {
                        let connection = Box::new(Quic::new(connection, client_error));
                        Ok(Connected { connection, lanes: None })
                    }
                    Err(error) => Err(client_error(&error)),
                },
                () = answered.notified(), if !was_answered => {
                    was_answered = true;
                    deadline.as_mut().reset(tokio::time::Instant::now() + limit.max(SETUP_TIMEOUT));
                }
                () = &mut deadline => return Err(LinkError::TimedOut),
            }
        }
    }

    /// Sends from another address from now on, as behind a NAT that has forgotten the host.
    #[cfg(test)]
    pub(super) fn move_away(&self) {
        for endpoint in [&self.v4, &self.v6].into_iter().flatten() {
            endpoint.rebind(std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        }
    }

    /// Waits a little, until the peers know of closed connections.
    pub async fn wait_idle(&self) {
        for endpoint in [&self.v4, &self.v6].into_iter().flatten() {
            let _ = tokio::time::timeout(Duration::from_millis(500), endpoint.wait_idle()).await;
        }
    }
}

struct Quic {
    connection: quinn::Connection,
    /// Of a connection that goes on with a session: ends with the handshake.
    proof: Option<Shared<quinn::ZeroRttAccepted>>,
    error: fn(&quinn::ConnectionError) -> LinkError,
}

/// The streams of a lane that are open so far.
type Opened = Vec<Option<(quinn::SendStream, quinn::RecvStream)>>;

impl Quic {
    fn new(connection: quinn::Connection, error: fn(&quinn::ConnectionError) -> LinkError) -> Quic {
        Quic { connection, proof: None, error }
    }

    fn error(&self) -> impl Fn(quinn::ConnectionError) -> LinkError {
        let error = self.error;
        move |lost| error(&lost)
    }

    fn peer_certificate(&self) -> Option<CertificateDer<'static>> {
        let identity = self.connection.peer_identity()?;
        let chain = identity.downcast::<Vec<CertificateDer<'static>>>().ok()?;
        chain.into_iter().next()
    }

    fn lanes(&self, opened: impl IntoIterator<Item = Opened>) -> Result<Lanes, LinkError> {
        let lanes: Vec<LaneStreams> = opened
            .into_iter()
            .map(|streams| {
                let (send, receive) = streams.into_iter().flatten().unzip();
                LaneStreams {
                    send: Box::new(Sending::new(send, self.error)),
                    receive: Box::new(Receiving::new(receive, self.error)),
                }
            })
            .collect();
        lanes.try_into().map_err(|_| LinkError::Protocol("not all lanes were opened".into()))
    }
}

/// First bytes of stream `number` of a lane.
fn opening(lane: Lane, number: usize) -> [u8; 4] {
    [b'L', b'H', lane_number(lane), number as u8]
}

#[async_trait]
impl Connection for Quic {
    async fn open_lanes(&self) -> Result<Lanes, LinkError> {
        let mut lanes: Vec<Opened> = Vec::with_capacity(Lane::ALL.len());
        for lane in Lane::ALL {
            let mut streams = Opened::new();
            for number in 0..stripe::streams(lane) {
                let (mut send, receive) = self.connection.open_bi().await.map_err(self.error())?;
                let _ = send.set_priority(priority(lane, false));
                let opened = send.write_all(&opening(lane, number)).await;
                opened.map_err(|error| write_error(error, self.error))?;
                streams.push(Some((send, receive)));
            }
            lanes.push(streams);
        }
        self.lanes(lanes)
    }

    async fn accept_lanes(&self) -> Result<Lanes, LinkError> {
        let mut lanes = Lane::ALL.map(|lane| -> Opened {
            std::iter::repeat_with(|| None).take(stripe::streams(lane)).collect()
        });
        for _ in 0..lanes.iter().map(Vec::len).sum() {
            let (send, mut receive) = self.connection.accept_bi().await.map_err(self.error())?;
            let mut first = [0; 4];
            receive
                .read_exact(&mut first)
                .await
                .map_err(|error| LinkError::Protocol(format!("a stream named no lane: {error}")))?;
            let number = usize::from(first[3]);
            let found = Lane::ALL.into_iter().find(|lane| opening(*lane, number) == first);
            let free = found.and_then(|lane| {
                let slot = lanes[lane as usize].get_mut(number)?;
                slot.is_none().then_some((lane, slot))
            });
            let Some((lane, slot)) = free else {
                return Err(LinkError::Protocol("a stream names no free lane".into()));
            };
            let _ = send.set_priority(priority(lane, false));
            *slot = Some((send, receive));
        }
        self.lanes(lanes)
    }

    fn datagram_bytes(&self) -> Option<usize> {
        self.connection.max_datagram_size()
    }

    fn send_datagram(&self, data: Bytes) {
        // If the path has shrunk or the connection has ended, the datagram is lost.
        let _ = self.connection.send_datagram(data);
    }

    async fn receive_datagram(&self) -> Result<Bytes, LinkError> {
        self.connection.read_datagram().await.map_err(self.error())
    }

    fn peer(&self) -> SocketAddr {
        self.connection.remote_address()
    }

    fn principal(&self) -> Option<Principal> {
        super::principal::of(&self.peer_certificate()?).ok()
    }

    async fn proven(&self) -> Result<(), LinkError> {
        if let Some(proof) = self.proof.clone() {
            // At a store it says only that the handshake has ended, one way or the other.
            proof.await;
            if let Some(error) = self.connection.close_reason() {
                return Err((self.error)(&error));
            }
        }
        Ok(())
    }

    fn is_proven(&self) -> bool {
        let over = |proof: &Shared<_>| proof.peek().is_some();
        self.proof.as_ref().is_none_or(over) && self.connection.close_reason().is_none()
    }

    fn statistics(&self) -> Statistics {
        let stats = self.connection.stats();
        let estimate = congestion::estimate(self.connection.congestion_state());
        Statistics {
            rtt: stats.path.rtt,
            path: estimate.unwrap_or_default(),
            lost_packets: stats.path.lost_packets,
            lost_bytes: stats.path.lost_bytes,
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

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_base::limits::MAX_SESSIONS;

    #[test]
    fn windows_of_many_sessions_stay_bounded() {
        let drain = |open| u64::from(session_window(open)) * stripe::streams(Lane::Drain) as u64;
        assert_eq!(drain(0), 16 << 20);
        assert_eq!(drain(8), 16 << 20);
        assert_eq!(drain(64), 2 << 20);
        // The memory of a store that cannot commit, under 64 hosts that drain at full speed.
        assert!((1..=64).map(drain).sum::<u64>() < 400 << 20);
        assert_eq!(drain(MAX_SESSIONS as usize), 1 << 20);
    }
}
