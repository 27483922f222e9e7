//! The first flight of a connection: what a host sends before it knows whether anyone hears it.
//!
//! It may be read by the store twice, or much later than it was sent (RFC 8446 §8). So nothing goes into
//! it but Hello and reads, which change nothing. What is sent otherwise waits until the store has answered.

use super::error::LinkError;
use super::transport::Lanes;
use bytes::Bytes;
use longhaul_core::wire::link::{Frame, Lane, MAX_VERSION, MIN_VERSION, ToStore};
use tokio::sync::mpsc::UnboundedReceiver;

/// Reads in a flight, at most. With their Hello and the openings of the streams they fit two packets.
const MAX_READS: usize = 32;

/// What is to be sent at once. It is kept until one connection has brought it to the store: several may
/// be begun with it.
pub(super) struct First {
    /// Of the read lane.
    queue: UnboundedReceiver<Frame<ToStore>>,
    reads: Vec<Bytes>,
}

/// What the host says first.
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

    /// Waits for another read for the flights that are under way. A call that is cancelled loses nothing.
    ///
    /// # Errors
    /// If a frame of our own is not valid.
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

    /// Sends Hello and the reads that there are.
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
