//! A lane over several QUIC streams.
//!
//! Chunk number `i` of the lane's bytes, [`CHUNK_BYTES`] long, travels on stream `i mod N`, without
//! any header; the reader takes the chunks in turn. Written bytes go out at once, also if they end
//! within a chunk. One stream could not fill a long fast line. Its window has to stay small
//! (`quic.rs` gives the reason), and a window over a round trip is its rate.

use super::ends::write_error;
use super::error::LinkError;
use super::transport::{ReceiveStream, SendStream};
use async_trait::async_trait;
use bytes::{Buf as _, Bytes};
use futures_util::FutureExt as _;
use longhaul_core::wire::link::Lane;

/// Bytes that travel on one stream before it is the next one's turn. Streams of a priority send
/// packet by packet in turn, so this times their number is what a frame's end can be behind.
const CHUNK_BYTES: usize = 16 << 10;

/// Streams of a lane. Bulk at 1 Gb/s over 100 ms has 12.5 MB in flight. The reader may have read an
/// eighth of a stream's window that it has not announced yet.
pub(super) fn streams(lane: Lane) -> usize {
    match lane {
        Lane::Read => 8,
        Lane::Control => 1,
        Lane::ReadAhead | Lane::Drain => 16,
    }
}

/// Streams of all lanes.
pub(super) fn all_streams() -> usize {
    Lane::ALL.into_iter().map(streams).sum()
}

/// The stream whose turn it is.
struct Turn {
    streams: usize,
    at: usize,
    /// Bytes left of the turn.
    left: usize,
}

impl Turn {
    fn new(streams: usize) -> Turn {
        let left = if streams == 1 { usize::MAX } else { CHUNK_BYTES };
        Turn { streams, at: 0, left }
    }

    fn advance(&mut self, bytes: usize) {
        if self.streams > 1 {
            self.left -= bytes;
            if self.left == 0 {
                self.at = (self.at + 1) % self.streams;
                self.left = CHUNK_BYTES;
            }
        }
    }
}

/// The sending half of a lane.
pub(super) struct Sending {
    streams: Vec<quinn::SendStream>,
    turn: Turn,
    error: fn(&quinn::ConnectionError) -> LinkError,
}

impl Sending {
    /// Over these streams, at least one, in their order.
    pub fn new(
        streams: Vec<quinn::SendStream>,
        error: fn(&quinn::ConnectionError) -> LinkError,
    ) -> Sending {
        let turn = Turn::new(streams.len());
        Sending { streams, turn, error }
    }
}

#[async_trait]
impl SendStream for Sending {
    async fn write(&mut self, chunks: &mut [Bytes]) -> Result<usize, LinkError> {
        let mut whole = 0;
        let mut room = self.turn.left;
        while let Some(chunk) = chunks.get(whole)
            && chunk.len() <= room
        {
            room -= chunk.len();
            whole += 1;
        }
        let stream = &mut self.streams[self.turn.at];
        let written = if whole > 0 {
            let written = stream.write_chunks(&mut chunks[..whole]).await;
            let written = written.map_err(|error| write_error(error, self.error))?;
            self.turn.advance(written.bytes);
            written.chunks
        } else if let Some(first) = chunks.first_mut() {
            let mut part = [first.slice(..self.turn.left)];
            let written = stream.write_chunks(&mut part).await;
            let written = written.map_err(|error| write_error(error, self.error))?;
            first.advance(written.bytes);
            self.turn.advance(written.bytes);
            0
        } else {
            0
        };
        Ok(written)
    }

    fn set_priority(&self, priority: i32) {
        for stream in &self.streams {
            // Fails only once the stream is over, when it does not matter.
            let _ = stream.set_priority(priority);
        }
    }

    async fn finish(&mut self) -> Result<(), LinkError> {
        for stream in &mut self.streams {
            // Fails only for one that is over, which the wait below finds.
            let _ = stream.finish();
        }
        for stream in &mut self.streams {
            let _ = stream.stopped().await;
        }
        Ok(())
    }
}

/// The receiving half of a lane.
pub(super) struct Receiving {
    streams: Vec<quinn::RecvStream>,
    turn: Turn,
    error: fn(&quinn::ConnectionError) -> LinkError,
}

impl Receiving {
    /// Over these streams, at least one, in their order.
    pub fn new(
        streams: Vec<quinn::RecvStream>,
        error: fn(&quinn::ConnectionError) -> LinkError,
    ) -> Receiving {
        let turn = Turn::new(streams.len());
        Receiving { streams, turn, error }
    }

    fn lost(&self, error: quinn::ReadError) -> LinkError {
        match error {
            quinn::ReadError::ConnectionLost(error) => (self.error)(&error),
            error => LinkError::Lost(error.to_string()),
        }
    }
}

#[async_trait]
impl ReceiveStream for Receiving {
    async fn read(&mut self, chunks: &mut [Bytes]) -> Result<usize, LinkError> {
        if let [stream] = &mut self.streams[..] {
            let read = stream.read_chunks(chunks).await;
            return read.map(|read| read.unwrap_or(0)).map_err(|error| self.lost(error));
        }
        let mut filled = 0;
        while filled < chunks.len() {
            let (stream, most) = (&mut self.streams[self.turn.at], self.turn.left);
            // The reader waits only for the first.
            let read = if filled == 0 {
                stream.read_chunk(most, true).await
            } else {
                match stream.read_chunk(most, true).now_or_never() {
                    Some(read) => read,
                    None => break,
                }
            };
            match read {
                Ok(Some(chunk)) => {
                    self.turn.advance(chunk.bytes.len());
                    chunks[filled] = chunk.bytes;
                    filled += 1;
                }
                Ok(None) => break,
                // The reader first returns the bytes before the error; the next call finds the same
                // error.
                Err(_) if filled > 0 => break,
                Err(error) => return Err(self.lost(error)),
            }
        }
        Ok(filled)
    }
}
