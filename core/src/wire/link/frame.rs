//! Frames: a message with its payload, as bytes.

use super::limits::{FRAME_PREFIX_BYTES, MAX_HEAD_BYTES, MAX_PAYLOAD_BYTES};
use bytes::{Buf, Bytes, BytesMut};
use serde::Serialize;

/// Why bytes are not a frame. The connection cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A length beyond its limit.
    #[error("frame {what} of {bytes} bytes is over the limit of {limit}")]
    TooLong {
        /// Which part.
        what: &'static str,
        /// Its announced length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The head is not a message of this protocol.
    #[error("frame head is not a message of this protocol version")]
    Head,
    /// The payload is not what the head describes.
    #[error("frame payload does not match its head")]
    Payload,
}

/// A message with its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame<M> {
    /// The message.
    pub message: M,
    /// Raw bytes it describes, usually none.
    pub payload: Bytes,
}

impl<M> From<M> for Frame<M> {
    fn from(message: M) -> Self {
        Frame { message, payload: Bytes::new() }
    }
}

impl<M: Serialize + serde::de::DeserializeOwned> Frame<M> {
    /// Prefix and head; the payload goes out behind them as it is.
    ///
    /// # Errors
    /// [`FrameError::TooLong`] if a part is beyond the limits of the protocol.
    pub fn encode_head(&self) -> Result<Bytes, FrameError> {
        let head = postcard::to_allocvec(&self.message).map_err(|_| FrameError::Head)?;
        check("head", head.len(), MAX_HEAD_BYTES)?;
        check("payload", self.payload.len(), MAX_PAYLOAD_BYTES)?;
        let mut out = BytesMut::with_capacity(FRAME_PREFIX_BYTES + head.len());
        out.extend_from_slice(&(head.len() as u32).to_le_bytes());
        out.extend_from_slice(&(self.payload.len() as u32).to_le_bytes());
        out.extend_from_slice(&head);
        Ok(out.freeze())
    }

    /// The lengths of head and payload that a prefix announces.
    ///
    /// # Errors
    /// [`FrameError::TooLong`] if either is beyond its limit.
    pub fn lengths(prefix: [u8; FRAME_PREFIX_BYTES]) -> Result<(usize, usize), FrameError> {
        let mut prefix = &prefix[..];
        let (head, payload) = (prefix.get_u32_le() as usize, prefix.get_u32_le() as usize);
        check("head", head, MAX_HEAD_BYTES)?;
        check("payload", payload, MAX_PAYLOAD_BYTES)?;
        Ok((head, payload))
    }

    /// Takes a head and its payload apart.
    ///
    /// # Errors
    /// [`FrameError::Head`] unless the head is exactly one message.
    pub fn decode(head: &[u8], payload: Bytes) -> Result<Self, FrameError> {
        let (message, rest) = postcard::take_from_bytes(head).map_err(|_| FrameError::Head)?;
        if !rest.is_empty() {
            return Err(FrameError::Head);
        }
        Ok(Frame { message, payload })
    }

    /// Takes the first frame off `buffer`, or nothing if it is not complete yet.
    ///
    /// # Errors
    /// As for [`Frame::lengths`] and [`Frame::decode`].
    pub fn take(buffer: &mut BytesMut) -> Result<Option<Self>, FrameError> {
        let Some(prefix) = buffer.first_chunk::<FRAME_PREFIX_BYTES>() else { return Ok(None) };
        let (head, payload) = Self::lengths(*prefix)?;
        let whole = FRAME_PREFIX_BYTES + head + payload;
        if buffer.len() < whole {
            buffer.reserve(whole - buffer.len());
            return Ok(None);
        }
        let mut frame = buffer.split_to(whole).freeze();
        frame.advance(FRAME_PREFIX_BYTES);
        let head = frame.split_to(head);
        Self::decode(&head, frame).map(Some)
    }
}

fn check(what: &'static str, bytes: usize, limit: usize) -> Result<(), FrameError> {
    if bytes > limit { Err(FrameError::TooLong { what, bytes, limit }) } else { Ok(()) }
}
