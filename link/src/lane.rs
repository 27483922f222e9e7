//! Sends and receives frames on the streams of a lane.
//!
//! A payload goes to the transport as it is; the sender gathers only small ones with the heads
//! around them. The receiver copies a payload once, into a buffer of its length.

use super::answers::counted;
use super::error::LinkError;
use super::transport::{ReceiveStream, SendStream, priority};
use bytes::{BufMut as _, Bytes, BytesMut};
use longhaul_base::limits::Answer;
use longhaul_core::wire::link::{FRAME_PREFIX_BYTES, Frame, Lane};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{Notify, watch};

/// The sender does not copy payloads of at least this many bytes.
const GATHER_BYTES: usize = 4 << 10;
/// Frames taken off the queue at once.
const FRAMES_AT_ONCE: usize = 64;
/// Chunks taken off a stream at once.
const CHUNKS_AT_ONCE: usize = 64;

/// The bytes of a lane's queue that the sender has not written yet.
#[derive(Debug, Default)]
pub struct Backlog {
    bytes: AtomicUsize,
    drained: Notify,
}

/// A frame counts as at least this much, its head.
const HEAD_BYTES: usize = 64;

impl Backlog {
    /// Counts a new frame in the queue.
    pub fn add<M>(&self, frame: &Frame<M>) {
        self.bytes.fetch_add(frame.payload.len() + HEAD_BYTES, Ordering::Relaxed);
    }

    fn remove(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.drained.notify_one();
    }

    /// Waits until the queue has less than `limit` bytes. For one waiter at a time.
    pub async fn below(&self, limit: usize) {
        while self.bytes.load(Ordering::Relaxed) >= limit {
            self.drained.notified().await;
        }
    }
}

/// A frame in the queue.
pub struct Queued<M> {
    /// The frame.
    pub frame: Frame<M>,
    /// The room that it takes until the sender has sent it.
    pub answer: Option<Answer>,
}

impl<M> From<Frame<M>> for Queued<M> {
    fn from(frame: Frame<M>) -> Self {
        Queued { frame, answer: None }
    }
}

/// Sends the frames of `queue` until it closes. Then it ends the stream and waits until the peer
/// has received all.
///
/// # Errors
/// If the connection is over.
pub async fn send_all<M: Serialize + DeserializeOwned, Q: Into<Queued<M>>>(
    lane: Lane,
    mut stream: Box<dyn SendStream>,
    mut queue: UnboundedReceiver<Q>,
    backlog: &Backlog,
    mut drain_urgent: watch::Receiver<bool>,
) -> Result<(), LinkError> {
    let mut frames = Vec::with_capacity(FRAMES_AT_ONCE);
    let (mut chunks, mut answers) = (Vec::new(), Vec::new());
    while queue.recv_many(&mut frames, FRAMES_AT_ONCE).await > 0 {
        let mut gathered = BytesMut::new();
        let mut taken = 0;
        for queued in frames.drain(..) {
            let Queued { frame, answer } = queued.into();
            taken += frame.payload.len() + HEAD_BYTES;
            let head = frame.encode_head().map_err(|error| {
                LinkError::Protocol(format!("a frame of our own is not valid: {error}"))
            })?;
            gathered.put(head);
            if frame.payload.len() < GATHER_BYTES {
                gathered.put(frame.payload);
                answers.extend(answer);
            } else {
                chunks.push(gathered.split().freeze());
                chunks.push(match answer {
                    Some(answer) => counted(frame.payload, answer),
                    None => frame.payload,
                });
            }
        }
        if !gathered.is_empty() {
            chunks.push(gathered.freeze());
        }
        let mut rest = &mut chunks[..];
        while !rest.is_empty() {
            let written = if lane == Lane::Drain {
                tokio::select! {
                    biased;
                    changed = drain_urgent.changed() => {
                        if changed.is_ok() {
                            let urgent = *drain_urgent.borrow_and_update();
                            stream.set_priority(priority(lane, urgent));
                            continue;
                        }
                        stream.write(rest).await?
                    }
                    written = stream.write(rest) => written?,
                }
            } else {
                stream.write(rest).await?
            };
            rest = &mut rest[written..];
        }
        chunks.clear();
        answers.clear();
        backlog.remove(taken);
    }
    stream.finish().await
}

/// Takes frames off a stream.
pub struct FrameReader {
    stream: Box<dyn ReceiveStream>,
    chunks: Vec<Bytes>,
    at: usize,
    filled: usize,
}

impl FrameReader {
    /// Off this one.
    pub fn new(stream: Box<dyn ReceiveStream>) -> FrameReader {
        FrameReader { stream, chunks: vec![Bytes::new(); CHUNKS_AT_ONCE], at: 0, filled: 0 }
    }

    /// The next frame; `None` at the end of the stream. A canceled call loses the bytes that it has
    /// read.
    ///
    /// # Errors
    /// If the connection is over, or the bytes are not a frame.
    pub async fn next<M: Serialize + DeserializeOwned>(
        &mut self,
    ) -> Result<Option<Frame<M>>, LinkError> {
        let invalid = |error| LinkError::Protocol(format!("{error}"));
        let mut prefix = BytesMut::new();
        if !self.read(FRAME_PREFIX_BYTES, &mut prefix).await? {
            return Ok(None);
        }
        let prefix = prefix.first_chunk().copied().unwrap_or_default();
        let (head_bytes, payload_bytes) = Frame::<M>::lengths(prefix).map_err(invalid)?;
        let (mut head, mut payload) = (BytesMut::new(), BytesMut::new());
        let whole = self.read(head_bytes, &mut head).await?
            && self.read(payload_bytes, &mut payload).await?;
        if !whole {
            return Err(LinkError::Lost("a stream ended within a frame".into()));
        }
        Frame::decode(&head, payload.freeze()).map(Some).map_err(invalid)
    }

    /// Appends `bytes` bytes to `out`; false if the stream ends before the first of them.
    async fn read(&mut self, bytes: usize, out: &mut BytesMut) -> Result<bool, LinkError> {
        out.reserve(bytes);
        let mut missing = bytes;
        while missing > 0 {
            if self.at == self.filled {
                self.at = 0;
                self.filled = self.stream.read(&mut self.chunks).await?;
                if self.filled == 0 {
                    if missing == bytes {
                        return Ok(false);
                    }
                    return Err(LinkError::Lost("a stream ended within a frame".into()));
                }
            }
            let chunk = &mut self.chunks[self.at];
            let part = chunk.split_to(missing.min(chunk.len()));
            out.put_slice(&part);
            missing -= part.len();
            if chunk.is_empty() {
                // Not kept: it may hold on to a buffer of many packets.
                *chunk = Bytes::new();
                self.at += 1;
            }
        }
        Ok(true)
    }
}
