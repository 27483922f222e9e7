//! The first flight of a connection: the messages that a host sends before it knows whether a store
//! hears it.
//!
//! The store may read it twice, or much later (RFC 8446 §8). So it has only Hello and reads, which
//! change nothing. All other messages wait until the store has answered.

use super::error::LinkError;
use super::transport::Lanes;
use bytes::Bytes;
use longhaul_core::wire::link::{Frame, Lane, MAX_VERSION, MIN_VERSION, ToStore};
use tokio::sync::mpsc::UnboundedReceiver;

/// Reads in a flight, at most. With their Hello and the openings of the streams they fit two
/// packets.
const MAX_READS: usize = 32;

/// The messages for the first flight. They stay until one connection has brought them to the store,
/// because several connections may begin with them.
pub(super) struct First {
    /// Of the read lane.
    queue: UnboundedReceiver<Frame<ToStore>>,
    reads: Vec<Bytes>,
}

/// The first message of the host.
pub(super) fn hello() -> Frame<ToStore> {
    let (min_version, max_version) = (MIN_VERSION, MAX_VERSION);
    ToStore::Hello { min_version, max_version, software: longhaul_base::software() }.into()
}

fn encoded(frame: &Frame<ToStore>) -> Result<Bytes, LinkError> {
    frame.encode_head().map_err(|error| LinkError::Protocol(error.to_string()))
}

async fn write(lanes: &mut Lanes, lane: Lane, bytes: Bytes) -> Result<(), LinkError> {
    let mut chunks = [bytes];
    while lanes[lane as usize].send.write(&mut chunks).await? == 0 {}
    Ok(())
}

impl First {
    /// With what comes out of the read lane's queue.
    pub fn new(queue: UnboundedReceiver<Frame<ToStore>>) -> First {
        First { queue, reads: Vec::new() }
    }

    /// Waits for another read for the flights in progress. A canceled call loses nothing.
    ///
    /// # Errors
    /// If a frame of this host is invalid.
    pub async fn more(&mut self) -> Result<Bytes, LinkError> {
        while self.reads.len() < MAX_READS {
            let Some(frame) = self.queue.recv().await else { break };
            // Before the store has answered nothing else has a place in this lane.
            if matches!(frame.message, ToStore::EarlyRead { .. }) {
                let bytes = encoded(&frame)?;
                self.reads.push(bytes.clone());
                return Ok(bytes);
            }
        }
        std::future::pending().await
    }

    /// Sends a read after what [`First::begin`] has sent.
    ///
    /// # Errors
    /// If the connection is over.
    pub async fn add(lanes: &mut Lanes, read: Bytes) -> Result<(), LinkError> {
        write(lanes, Lane::Read, read).await
    }

    /// Sends Hello and the waiting reads.
    ///
    /// # Errors
    /// If the connection is over.
    pub async fn begin(&self, lanes: &mut Lanes) -> Result<(), LinkError> {
        write(lanes, Lane::Control, encoded(&hello())?).await?;
        for read in &self.reads {
            write(lanes, Lane::Read, read.clone()).await?;
        }
        Ok(())
    }

    /// What follows.
    pub fn into_queue(self) -> UnboundedReceiver<Frame<ToStore>> {
        self.queue
    }
}
