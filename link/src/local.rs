//! A link within the process. A peer that came in by another door, and proved its identity there,
//! has a session like any other, with the same checks.

use super::error::{CloseCode, LinkError};
use super::transport::{Connection, LaneStreams, Lanes, ReceiveStream, SendStream, Statistics};
use async_trait::async_trait;
use bytes::Bytes;
use longhaul_core::wire::link::{Lane, Principal};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{mpsc, watch};

/// Chunks on their way in a lane.
const QUEUED_CHUNKS: usize = 16;

/// One end of a link.
struct End {
    peer: SocketAddr,
    /// The owner of the other end's certificate, as this end sees it.
    principal: Option<Principal>,
    lanes: Mutex<Option<Lanes>>,
    closed: watch::Sender<Option<String>>,
}

/// The two ends of a link: that of `peer`, who has shown the certificate of that principal, and the
/// store's.
pub(super) fn link(
    peer: SocketAddr,
    principal: Principal,
) -> (Arc<dyn Connection>, Arc<dyn Connection>) {
    let (closed, _) = watch::channel(None);
    let (theirs, ours) = lanes();
    let end = |principal, lanes| -> Arc<dyn Connection> {
        Arc::new(End { peer, principal, lanes: Mutex::new(Some(lanes)), closed: closed.clone() })
    };
    (end(None, theirs), end(Some(principal), ours))
}

fn lanes() -> (Lanes, Lanes) {
    let pair = |_| {
        let (there, here) = (mpsc::channel(QUEUED_CHUNKS), mpsc::channel(QUEUED_CHUNKS));
        let streams = |send, receive| LaneStreams {
            send: Box::new(Sending(Some(send))),
            receive: Box::new(Receiving(receive)),
        };
        (streams(there.0, here.1), streams(here.0, there.1))
    };
    let [(a, e), (b, f), (c, g), (d, h)] = Lane::ALL.map(pair);
    ([a, b, c, d], [e, f, g, h])
}

impl End {
    fn take(&self) -> Result<Lanes, LinkError> {
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner).take();
        lanes.ok_or_else(|| LinkError::Protocol("its lanes are open".into()))
    }
}

#[async_trait]
impl Connection for End {
    async fn open_lanes(&self) -> Result<Lanes, LinkError> {
        self.take()
    }

    async fn accept_lanes(&self) -> Result<Lanes, LinkError> {
        self.take()
    }

    fn transport(&self) -> &'static str {
        "local"
    }

    fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn principal(&self) -> Option<Principal> {
        self.principal.clone()
    }

    fn statistics(&self) -> Statistics {
        Statistics::default()
    }

    fn close(&self, _: CloseCode, reason: &str) {
        self.closed.send_if_modified(|closed| {
            let first = closed.is_none();
            closed.get_or_insert_with(|| reason.to_owned());
            first
        });
    }

    async fn closed(&self) -> LinkError {
        let mut closed = self.closed.subscribe();
        let reason = closed.wait_for(Option::is_some).await;
        // The sender is this end's own.
        LinkError::Closed(reason.ok().and_then(|reason| reason.clone()).unwrap_or_default())
    }
}

struct Sending(Option<mpsc::Sender<Bytes>>);

fn over() -> LinkError {
    LinkError::Lost("the other end is gone".into())
}

#[async_trait]
impl SendStream for Sending {
    async fn write(&mut self, chunks: &mut [Bytes]) -> Result<usize, LinkError> {
        let sender = self.0.as_ref().ok_or_else(over)?;
        let Some(first) = chunks.first_mut() else { return Ok(0) };
        let room = sender.reserve().await.map_err(|_| over())?;
        room.send(std::mem::take(first));
        Ok(1)
    }

    fn set_priority(&self, _: i32) {}

    async fn finish(&mut self) -> Result<(), LinkError> {
        if let Some(sender) = self.0.take() {
            // All of them are free once the other end has taken everything.
            let _ = sender.reserve_many(QUEUED_CHUNKS).await;
        }
        Ok(())
    }
}

struct Receiving(mpsc::Receiver<Bytes>);

#[async_trait]
impl ReceiveStream for Receiving {
    async fn read(&mut self, chunks: &mut [Bytes]) -> Result<usize, LinkError> {
        let (Some(first), Some(chunk)) = (chunks.first_mut(), self.0.recv().await) else {
            return Ok(0);
        };
        *first = chunk;
        Ok(1)
    }
}
