//! Small requests in datagrams over a connection: drives [`longhaul_core::link`] at either side.

use super::error::LinkError;
use super::transport::Connection;
use longhaul_core::block::Time;
use longhaul_core::link::{AnswerCounters, AskCounters, DatagramClient, DatagramServer, Output};
use longhaul_core::wire::link::{Frame, ToHost, ToStore};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

/// Datagrams and requests that the task takes before it sends the results.
const AT_ONCE: usize = 64;

/// Asks the requests of `queue` in datagrams, or passes them on to `stream`. It ends when the queue
/// is closed and has no open requests.
///
/// # Errors
/// If the connection is over.
pub(super) async fn ask(
    connection: Arc<dyn Connection>,
    mut queue: UnboundedReceiver<Frame<ToStore>>,
    stream: UnboundedSender<Frame<ToStore>>,
    counters: Arc<Mutex<AskCounters>>,
    deliver: impl Fn(Frame<ToHost>) -> bool,
) -> Result<(), LinkError> {
    let origin = Instant::now();
    let now = || Time(u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX));
    let mut client = DatagramClient::new(connection.statistics().rtt);
    let mut open = true;
    let mut deadline = None;
    let timer = tokio::time::sleep(Duration::ZERO);
    tokio::pin!(timer);
    while open || deadline.is_some() {
        tokio::select! {
            frame = queue.recv(), if open => {
                let bytes = connection.datagram_bytes();
                match frame {
                    None => open = false,
                    Some(frame) => client.handle_request(now(), frame, bytes),
                }
                for _ in 1..AT_ONCE {
                    let Ok(frame) = queue.try_recv() else { break };
                    client.handle_request(now(), frame, bytes);
                }
            }
            datagram = connection.receive_datagram() => client.handle_datagram(now(), datagram?),
            () = &mut timer, if deadline.is_some() => {
                deadline = None;
                client.handle_timeout(now());
            }
        }
        while let Some(output) = client.poll() {
            match output {
                Output::Datagram(data) => connection.send_datagram(data),
                Output::Stream(frame) => {
                    // Fails only once the connection is over.
                    let _ = stream.send(frame);
                }
                Output::Reply(frame) => {
                    if !deliver(frame) {
                        return Ok(());
                    }
                }
            }
        }
        *lock(&counters) = client.counters();
        let due = client.poll_timeout();
        if due != deadline {
            deadline = due;
            if let Some(due) = due {
                timer.as_mut().reset((origin + Duration::from_nanos(due.0)).into());
            }
        }
    }
    Ok(())
}

/// The store's replies to what one connection asks in datagrams.
#[derive(Default)]
pub(super) struct Replies {
    server: Mutex<DatagramServer>,
}

impl Replies {
    /// Waits for a datagram; gives the request in it if there is one to execute.
    ///
    /// # Errors
    /// If the connection is over.
    pub async fn receive(
        &self,
        connection: &dyn Connection,
    ) -> Result<Option<Frame<ToStore>>, LinkError> {
        let datagram = connection.receive_datagram().await?;
        let Some(bytes) = connection.datagram_bytes() else { return Ok(None) };
        let mut server = lock(&self.server);
        let frame = server.handle_datagram(datagram, bytes);
        flush(&mut server, connection);
        Ok(frame)
    }

    /// Sends the reply to a request that came in a datagram; gives back any other.
    pub fn send(&self, connection: &dyn Connection, frame: Frame<ToHost>) -> Option<Frame<ToHost>> {
        let mut server = lock(&self.server);
        // Without datagrams any more, a request that came in one gets the reply that says so.
        let bytes = connection.datagram_bytes().unwrap_or(0);
        let given_back = server.handle_reply(frame, bytes);
        flush(&mut server, connection);
        given_back
    }

    /// Totals of the connection.
    pub fn counters(&self) -> AnswerCounters {
        lock(&self.server).counters()
    }
}

fn flush(server: &mut DatagramServer, connection: &dyn Connection) {
    while let Some(data) = server.poll_datagram() {
        connection.send_datagram(data);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
