//! The host's side of one connection: finding a store, Hello, and moving frames until it ends.

use super::address::resolve;
use super::datagrams;
use super::dial::Dialer;
use super::error::{CloseCode, LinkError};
use super::first::First;
use super::lane::{Backlog, FrameReader, send_all};
use super::quic::Connected;
use super::timeouts::SETUP_TIMEOUT;
use super::transport::{Connection, Lanes};
use longhaul_base::text::bounded;
use longhaul_core::link::AskCounters;
use longhaul_core::wire::link::{Frame, Lane, MAX_VERSION, MIN_VERSION, ToHost, ToStore};
use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How long a graceful end may take.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Where frames for the store go in, by lane.
pub(super) type Senders = [UnboundedSender<Frame<ToStore>>; Lane::ALL.len()];

/// The facts that a store reports in its Hello.
#[derive(Clone, Debug)]
pub(super) struct Greeting {
    /// Of the protocol.
    pub version: u16,
    pub software: String,
    pub stores: Vec<String>,
}

/// A store with a connection a moment ago. Nothing indicates that it is another one now.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub address: String,
    /// The same, resolved.
    pub socket: SocketAddr,
    pub greeting: Greeting,
}

/// The queues of a connection that there is not yet.
pub(super) struct Opening {
    pub senders: Senders,
    queues: [UnboundedReceiver<Frame<ToStore>>; Lane::ALL.len()],
    /// If the host sends data to the remembered store at once.
    pub early: bool,
}

impl Opening {
    /// Empty ones.
    pub fn new(early: bool) -> Opening {
        let channels = Lane::ALL.map(|_| unbounded_channel());
        let senders = channels.each_ref().map(|(sender, _)| sender.clone());
        Opening { senders, queues: channels.map(|(_, queue)| queue), early }
    }
}

/// A connection that has said Hello.
///
/// With a remembered store the host does not wait for the answer: the next frames follow Hello in
/// the same flight, a round trip sooner. The answer is still the first frame of the control lane.
/// If it is unexpected, the connection ends before the host takes anything else from the store.
pub(super) struct Established {
    /// Of the protocol.
    pub version: u16,
    pub connection: Arc<dyn Connection>,
    pub address: String,
    pub software: String,
    /// Once the store has said it.
    pub greeting: Arc<OnceLock<Greeting>>,
    pub senders: Senders,
    /// Totals of its requests in datagrams, kept up to date.
    pub datagrams: Arc<Mutex<AskCounters>>,
    queues: [UnboundedReceiver<Frame<ToStore>>; Lane::ALL.len()],
    lanes: Lanes,
    control: FrameReader,
}

/// Tries addresses in order until a store says Hello, or is the `known` one.
///
/// # Errors
/// The error of each address.
pub(super) async fn connect(
    dialer: &mut Dialer,
    addresses: &[String],
    known: Option<&Known>,
    opening: Opening,
) -> Result<Established, Vec<(String, LinkError)>> {
    let mut errors = Vec::new();
    let Opening { senders, mut queues, early } = opening;
    let (_, nothing) = unbounded_channel();
    let read = std::mem::replace(&mut queues[Lane::Read as usize], nothing);
    let mut first = First::new(read);
    for address in addresses {
        match resolve(address).await {
            Err(error) => errors.push((address.clone(), error)),
            Ok(resolved) => {
                let known = known.filter(|known| known.address == *address);
                for socket in resolved {
                    let made = establish(dialer, socket, known, (&mut first, early)).await;
                    match made {
                        Ok(made) => {
                            queues[Lane::Read as usize] = first.into_queue();
                            return Ok(made.established(address.clone(), senders, queues));
                        }
                        Err(error) => errors.push((address.clone(), error)),
                    }
                }
            }
        }
    }
    Err(errors)
}

/// The reasons why no store answered, in one line.
pub(super) fn describe(errors: &[(String, LinkError)]) -> String {
    if errors.is_empty() {
        return "no address of a store is known: give one with --store HOST:PORT".to_owned();
    }
    let mut lines: Vec<_> =
        errors.iter().map(|(address, error)| format!("store at {address}: {error}")).collect();
    lines.dedup();
    lines.join("; ")
}

/// A connection on which the host has said Hello.
struct Made {
    connection: Arc<dyn Connection>,
    lanes: Lanes,
    control: FrameReader,
    expected: Greeting,
    greeting: Arc<OnceLock<Greeting>>,
}

impl Made {
    fn established(
        self,
        address: String,
        senders: Senders,
        queues: [UnboundedReceiver<Frame<ToStore>>; Lane::ALL.len()],
    ) -> Established {
        Established {
            version: self.expected.version,
            connection: self.connection,
            address,
            software: self.expected.software,
            greeting: self.greeting,
            senders,
            datagrams: Arc::default(),
            queues,
            lanes: self.lanes,
            control: self.control,
        }
    }
}

async fn establish(
    dialer: &mut Dialer,
    socket: SocketAddr,
    known: Option<&Known>,
    (first, early): (&mut First, bool),
) -> Result<Made, LinkError> {
    let flight = if early { Some(&mut *first) } else { None };
    let Connected { connection, lanes } = dialer.connect(socket, flight).await?;
    greet(connection.into(), lanes, known, first).await
}

/// Says Hello over a connection that is there.
pub(super) async fn over(
    connection: Arc<dyn Connection>,
    address: String,
) -> Result<Established, LinkError> {
    let Opening { senders, mut queues, .. } = Opening::new(false);
    let (_, nothing) = unbounded_channel();
    let mut first = First::new(std::mem::replace(&mut queues[Lane::Read as usize], nothing));
    let made = greet(connection, None, None, &mut first).await?;
    queues[Lane::Read as usize] = first.into_queue();
    Ok(made.established(address, senders, queues))
}

async fn greet(
    connection: Arc<dyn Connection>,
    lanes: Option<Lanes>,
    known: Option<&Known>,
    first: &mut First,
) -> Result<Made, LinkError> {
    let setup = async {
        let mut lanes = match lanes {
            Some(lanes) => lanes,
            None => {
                let mut lanes = connection.open_lanes().await?;
                first.begin(&mut lanes).await?;
                lanes
            }
        };
        let receive = &mut lanes[Lane::Control as usize].receive;
        let mut control = FrameReader::new(std::mem::replace(receive, Box::new(Nothing)));
        let reply = match known {
            Some(_) => None,
            None => Some(control.next::<ToHost>().await?),
        };
        Ok((lanes, control, reply))
    };
    let (lanes, control, reply) = match tokio::time::timeout(SETUP_TIMEOUT, setup).await {
        Err(_) => return Err(LinkError::TimedOut),
        Ok(Err(LinkError::Lost(_) | LinkError::Closed(_))) => {
            return Err(connection.closed().await);
        }
        Ok(result) => result?,
    };
    let greeting = Arc::new(OnceLock::new());
    let expected = match (reply, known) {
        (Some(reply), _) => {
            let said = self::greeting(reply, &*connection)?;
            greeting.get_or_init(|| said).clone()
        }
        (None, Some(known)) => known.greeting.clone(),
        (None, None) => return Err(LinkError::Protocol("it said nothing".into())),
    };
    Ok(Made { connection, lanes, control, expected, greeting })
}

/// Reads the store's first frame; closes the connection if the store is unusable.
fn greeting(
    reply: Option<Frame<ToHost>>,
    connection: &dyn Connection,
) -> Result<Greeting, LinkError> {
    let Some(Frame { message: ToHost::Hello { version, supported, software, stores }, .. }) = reply
    else {
        connection.close(CloseCode::Protocol, "expected Hello");
        return Err(LinkError::Protocol("its first frame is not Hello".into()));
    };
    let version = version.filter(|version| (MIN_VERSION..=MAX_VERSION).contains(version));
    let Some(version) = version else {
        connection.close(CloseCode::Version, "no version in common");
        return Err(LinkError::Version { store: supported, host: (MIN_VERSION, MAX_VERSION) });
    };
    Ok(Greeting { version, software: bounded(&software), stores })
}

/// Takes the Hello that the host did not wait for.
async fn late_greeting(
    control: &mut FrameReader,
    connection: &dyn Connection,
    expected: u16,
    said: &OnceLock<Greeting>,
) -> Result<(), LinkError> {
    if said.get().is_some() {
        return Ok(());
    }
    let reply = tokio::time::timeout(SETUP_TIMEOUT, control.next::<ToHost>()).await;
    let found = greeting(reply.map_err(|_| LinkError::TimedOut)??, connection)?;
    if found.version != expected {
        connection.close(CloseCode::Done, "another version than before");
        return Err(LinkError::Closed("the store speaks another version than before".into()));
    }
    said.get_or_init(|| found);
    Ok(())
}

/// Moves frames in both directions. It ends when the connection breaks, which is an error, or when
/// `deliver` returns false. It also ends when every sender is gone and all frames have arrived.
pub(super) async fn pump(
    connection: Arc<dyn Connection>,
    moving: Moving,
    drain_urgent: watch::Receiver<bool>,
    deliver: impl Fn(Lane, Frame<ToHost>) -> bool + Clone + Send + Sync + 'static,
) -> Result<(), LinkError> {
    let mut readers = JoinSet::new();
    let mut writers = JoinSet::new();
    let mut control = Some(moving.control);
    let mut queues = moving.queues;
    if connection.datagram_bytes().is_some() {
        let (rest, streamed) = unbounded_channel();
        let queue = std::mem::replace(&mut queues[Lane::Read as usize], streamed);
        let deliver = deliver.clone();
        writers.spawn(datagrams::ask(
            connection.clone(),
            queue,
            rest,
            moving.datagrams,
            move |frame| deliver(Lane::Read, frame),
        ));
    }
    for (lane, (streams, queue)) in Lane::ALL.into_iter().zip(moving.lanes.into_iter().zip(queues))
    {
        let mut reader = match lane {
            Lane::Control => control.take().unwrap_or_else(|| FrameReader::new(streams.receive)),
            _ => FrameReader::new(streams.receive),
        };
        let deliver = deliver.clone();
        let (connection, greeting) = (connection.clone(), moving.greeting.clone());
        readers.spawn(async move {
            if lane == Lane::Control {
                late_greeting(&mut reader, &*connection, moving.version, &greeting).await?;
            }
            while let Some(frame) = reader.next().await? {
                if !deliver(lane, frame) {
                    return Ok(());
                }
            }
            Err(LinkError::Lost("the store ended a lane".into()))
        });
        let urgent = drain_urgent.clone();
        writers.spawn(async move {
            send_all::<ToStore, _>(lane, streams.send, queue, &Backlog::default(), urgent).await
        });
    }
    let all_sent = async {
        while let Some(result) = writers.join_next().await {
            flatten(result)?;
        }
        Ok(())
    };
    let result = tokio::select! {
        result = all_sent => result,
        Some(result) = readers.join_next() => flatten(result),
        never = super::transport::hurry(&*connection, drain_urgent) => match never {},
        error = connection.closed() => Err(error),
    };
    match result {
        Ok(()) => connection.close(CloseCode::Done, "done"),
        Err(LinkError::Protocol(ref reason)) => connection.close(CloseCode::Protocol, reason),
        // The connection knows better why a stream has failed.
        Err(LinkError::Lost(_)) => {
            let closed = tokio::time::timeout(Duration::from_millis(100), connection.closed());
            if let Ok(error) = closed.await {
                return Err(error);
            }
            connection.close(CloseCode::Done, "lost");
        }
        Err(_) => connection.close(CloseCode::Done, "lost"),
    }
    result
}

/// What [`pump`] moves.
pub(super) struct Moving {
    queues: [UnboundedReceiver<Frame<ToStore>>; Lane::ALL.len()],
    lanes: Lanes,
    control: FrameReader,
    version: u16,
    greeting: Arc<OnceLock<Greeting>>,
    datagrams: Arc<Mutex<AskCounters>>,
}

impl Established {
    /// Parts with what moves the frames; the senders stay the only way in.
    pub fn split(self) -> (Arc<dyn Connection>, Senders, Moving) {
        let moving = Moving {
            queues: self.queues,
            lanes: self.lanes,
            control: self.control,
            version: self.version,
            greeting: self.greeting,
            datagrams: self.datagrams,
        };
        (self.connection, self.senders, moving)
    }
}

fn flatten(result: Result<Result<(), LinkError>, tokio::task::JoinError>) -> Result<(), LinkError> {
    result.unwrap_or_else(|error| Err(LinkError::Lost(format!("a task of ours failed: {error}"))))
}

/// Sends the queued frames, within limits.
pub(super) async fn flushed(pump: impl Future<Output = Result<(), LinkError>>) {
    let _ = tokio::time::timeout(FLUSH_TIMEOUT, pump).await;
}

/// Replaces a stream that another part has taken.
struct Nothing;

#[async_trait::async_trait]
impl super::transport::ReceiveStream for Nothing {
    async fn read(&mut self, _: &mut [bytes::Bytes]) -> Result<usize, LinkError> {
        Ok(0)
    }
}
