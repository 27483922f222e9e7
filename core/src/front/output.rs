//! The bytes that wait for the shell to write them. Headers share blocks of memory; payloads pass
//! through without a copy.

use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;

/// Memory to allocate at a time for headers.
const BLOCK_BYTES: usize = 16 << 10;

/// More bytes than any header or short message has, so that one rarely straddles two blocks.
const HEADROOM_BYTES: usize = 256;

/// Zeroes, for replies that cannot describe a hole.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// A queue of pieces to write.
#[derive(Debug, Default)]
pub(super) struct OutputQueue {
    queue: VecDeque<Bytes>,
    /// Comes after all pieces of `queue`.
    tail: BytesMut,
    queued_bytes: u64,
}

impl OutputQueue {
    /// Appends the bytes that `write` puts into its buffer; `write` may only append.
    pub(super) fn head(&mut self, write: impl FnOnce(&mut BytesMut)) {
        if self.tail.capacity() - self.tail.len() < HEADROOM_BYTES {
            self.tail.reserve(BLOCK_BYTES);
        }
        write(&mut self.tail);
    }

    /// Appends `payload` as a piece of its own.
    pub(super) fn payload(&mut self, payload: Bytes) {
        if !payload.is_empty() {
            self.seal();
            self.push(payload);
        }
    }

    /// Appends this many zero bytes. They take no memory.
    pub(super) fn zeroes(&mut self, mut bytes: u64) {
        while bytes > 0 {
            let part = bytes.min(ZEROES.len() as u64);
            self.payload(Bytes::from_static(&ZEROES[..part as usize]));
            bytes -= part;
        }
    }

    /// Takes the next piece.
    pub(super) fn poll(&mut self) -> Option<Bytes> {
        if self.queue.is_empty() {
            self.seal();
        }
        let piece = self.queue.pop_front()?;
        self.queued_bytes -= piece.len() as u64;
        Some(piece)
    }

    /// Bytes that the shell has not taken.
    pub(super) fn bytes(&self) -> u64 {
        self.queued_bytes + self.tail.len() as u64
    }

    fn seal(&mut self) {
        if !self.tail.is_empty() {
            let piece = self.tail.split().freeze();
            self.push(piece);
        }
    }

    fn push(&mut self, piece: Bytes) {
        self.queued_bytes += piece.len() as u64;
        self.queue.push_back(piece);
    }
}
