//! The read buffer of a connection.
//!
//! Payloads are slices of it without a copy. So a buffer is in use until its last write is done.
//! The rest of an unfinished PDU at its end has to go into the next buffer by a copy. To leave no
//! rest, a buffer has the size of a whole number of PDUs like the last one. Initiators send many
//! PDUs of one size after another.

use bytes::BytesMut;

/// Size of a buffer, unless a PDU is longer: some dozen 4 KiB writes of a deep queue in one read.
const BUFFER_BYTES: usize = 256 << 10;

/// If less room than this is left behind a whole PDU, the next read gets a new buffer.
const LEAST_ROOM_BYTES: usize = 16 << 10;

/// Length of a header: a PDU of which the target wants no more has not told its own length.
const HEADER_BYTES: usize = 48;

/// Bytes that the target has not taken yet.
pub(super) struct Input {
    pub(super) bytes: BytesMut,
    /// Length of the last PDU that did not fit the end of a buffer; 0 before the first.
    pdu: usize,
}

impl Input {
    /// Nothing yet, and no memory.
    pub(super) fn new() -> Input {
        Input { bytes: BytesMut::new(), pdu: 0 }
    }

    /// Bytes that another connection's buffer has left.
    pub(super) fn from(bytes: BytesMut) -> Input {
        Input { bytes, pdu: 0 }
    }

    /// Makes room for the next read. The target waits for `wanted` bytes in total. Returns the
    /// number of bytes that it had to copy.
    pub(super) fn make_room(&mut self, wanted: usize) -> usize {
        let held = self.bytes.len();
        let room = self.bytes.capacity() - held;
        if held > 0 {
            if held + room >= wanted && room > 0 {
                return 0;
            }
            if wanted > HEADER_BYTES {
                self.pdu = wanted;
            }
        } else if room >= LEAST_ROOM_BYTES {
            return 0;
        }
        let pdu = self.pdu.max(1);
        let size = ((BUFFER_BYTES / pdu).max(1) * pdu).max(wanted).max(held + 1);
        // If no write needs the buffer any more, use it again.
        if !self.bytes.try_reclaim(size - held) {
            let mut next = BytesMut::with_capacity(size);
            next.extend_from_slice(&self.bytes);
            self.bytes = next;
        }
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads `count` PDUs of `length` bytes that all stay in use. Each read fills the room, or
    /// `most` bytes. Returns the copied bytes.
    fn copied(input: &mut Input, length: usize, count: usize, most: usize) -> usize {
        let mut left = length * count - input.bytes.len();
        let mut held = Vec::new();
        let mut copied = 0;
        while left > 0 {
            let wanted = if input.bytes.len() < HEADER_BYTES { HEADER_BYTES } else { length };
            copied += input.make_room(wanted);
            let room = input.bytes.capacity() - input.bytes.len();
            assert!(room > 0);
            let read = room.min(left).min(most);
            input.bytes.resize(input.bytes.len() + read, 0);
            left -= read;
            while input.bytes.len() >= length {
                held.push(input.bytes.split_to(length).freeze());
            }
        }
        copied
    }

    #[test]
    fn a_run_of_equal_pdus_is_copied_once_at_most() {
        for length in [48, 4144, 4148, 65_584, 100_000, 262_192] {
            for most in [usize::MAX, 200_000, 5000] {
                let copied = copied(&mut Input::new(), length, 500, most);
                assert!(copied < length, "{copied} bytes of {length} in reads of {most}");
            }
        }
    }

    #[test]
    fn another_size_is_learned_from_the_first_that_does_not_fit() {
        let mut input = Input::new();
        assert!(copied(&mut input, 4144, 300, usize::MAX) < 4144);
        assert!(copied(&mut input, 65_584, 300, usize::MAX) < 2 * 65_584);
        assert!(copied(&mut input, 4144, 3000, usize::MAX) < 2 * 65_584);
    }

    #[test]
    fn a_buffer_that_nobody_needs_is_used_again() {
        let mut input = Input::new();
        input.make_room(HEADER_BYTES);
        let (start, size) = (input.bytes.as_ptr(), input.bytes.capacity());
        for _ in 0..1000 {
            input.make_room(HEADER_BYTES);
            input.bytes.resize(4144, 0);
            drop(input.bytes.split());
        }
        input.make_room(HEADER_BYTES);
        assert!(input.bytes.capacity() <= size);
        assert!(input.bytes.as_ptr() >= start && input.bytes.as_ptr() < start.wrapping_add(size));
    }
}
