//! The datagrams. `docs/protocol.md` draws them; all integers are little-endian.

use super::limits::{MAX_PARTS, MAX_REPLY_BYTES};
use bytes::{Buf, BufMut, Bytes, BytesMut};

const REQUEST: u8 = 1;
const PART: u8 = 2;
const WORKING: u8 = 3;
const BY_STREAM: u8 = 4;

/// Bytes before the head of a request.
pub(super) const REQUEST_HEADER_BYTES: usize = 20;
/// Bytes before the bytes of a part.
pub(super) const PART_HEADER_BYTES: usize = 20;
/// Largest datagram of a request: its head is a Read or a Status, both of a few integers.
pub const REQUEST_BYTES_MAX: usize = REQUEST_HEADER_BYTES + 128;

/// A datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// Host to store: a request, or what is missing of its reply.
    Request {
        /// Number of the call, unique within the connection.
        call: u64,
        /// 0 for the request and its second copy, then growing: the store answers each once.
        attempt: u8,
        /// The reply whose parts have arrived; 0 for none.
        reply: u16,
        /// The parts of that reply that have arrived, a bit each.
        have: u64,
        /// Head of the request's frame.
        head: Bytes,
    },
    /// Store to host: a part of a reply.
    Part(Part),
    /// Store to host: the request has arrived and takes its time.
    Working {
        /// Number of the call.
        call: u64,
    },
    /// Store to host: the reply does not fit datagrams, ask by stream.
    ByStream {
        /// Number of the call.
        call: u64,
    },
}

/// A part of a reply. The reply is an encoded frame of `total` bytes in `count` parts. All parts
/// have the same length but the last one, which has the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Number of the call.
    pub call: u64,
    /// Number of the reply: another execution of the same call has another.
    pub reply: u16,
    /// The attempt that it answers, which says how long the answer took.
    pub attempt: u8,
    /// The number of the part; `count` is the parity, all parts XORed.
    pub index: u8,
    /// Data parts, 1 to [`MAX_PARTS`].
    pub count: u8,
    /// Whether this is the last one sent for now.
    pub last: bool,
    /// Bytes of the whole, 1 to [`MAX_REPLY_BYTES`].
    pub total: u32,
    /// The bytes.
    pub data: Bytes,
}

impl Part {
    /// Bytes of each data part but the last, and of the parity.
    pub(super) fn stride(total: usize, count: usize) -> usize {
        total.div_ceil(count)
    }

    /// Whether lengths and numbers agree.
    fn is_valid(&self) -> bool {
        let (total, count) = (self.total as usize, usize::from(self.count));
        let index = usize::from(self.index);
        if !(1..=MAX_REPLY_BYTES).contains(&total) || !(1..=MAX_PARTS).contains(&count) {
            return false;
        }
        let stride = Part::stride(total, count);
        let Some(last) = total.checked_sub(stride * (count - 1)) else { return false };
        let expected = if index + 1 == count { last } else { stride };
        index <= count && last > 0 && self.data.len() == expected
    }
}

impl Packet {
    /// The datagram.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(match self {
            Packet::Request { head, .. } => REQUEST_HEADER_BYTES + head.len(),
            Packet::Part(part) => PART_HEADER_BYTES + part.data.len(),
            Packet::Working { .. } | Packet::ByStream { .. } => 9,
        });
        match self {
            Packet::Request { call, attempt, reply, have, head } => {
                out.put_u8(REQUEST);
                out.put_u8(*attempt);
                out.put_u16_le(*reply);
                out.put_u64_le(*call);
                out.put_u64_le(*have);
                out.put_slice(head);
            }
            Packet::Part(part) => {
                out.put_u8(PART);
                out.put_u8(part.index);
                out.put_u8(part.count);
                out.put_u8(u8::from(part.last));
                out.put_u16_le(part.reply);
                out.put_u8(part.attempt);
                out.put_u8(0);
                out.put_u32_le(part.total);
                out.put_u64_le(part.call);
                out.put_slice(&part.data);
            }
            Packet::Working { call } => {
                out.put_u8(WORKING);
                out.put_u64_le(*call);
            }
            Packet::ByStream { call } => {
                out.put_u8(BY_STREAM);
                out.put_u64_le(*call);
            }
        }
        out.freeze()
    }

    /// Parses a datagram; `None` if it is none of this protocol.
    #[must_use]
    pub fn decode(mut bytes: Bytes) -> Option<Packet> {
        let kind = bytes.try_get_u8().ok()?;
        match kind {
            REQUEST => {
                if bytes.len() + 1 > REQUEST_BYTES_MAX {
                    return None;
                }
                let attempt = bytes.try_get_u8().ok()?;
                let reply = bytes.try_get_u16_le().ok()?;
                let call = bytes.try_get_u64_le().ok()?;
                let have = bytes.try_get_u64_le().ok()?;
                Some(Packet::Request { call, attempt, reply, have, head: bytes })
            }
            PART => {
                let index = bytes.try_get_u8().ok()?;
                let count = bytes.try_get_u8().ok()?;
                let last = match bytes.try_get_u8().ok()? {
                    0 => false,
                    1 => true,
                    _ => return None,
                };
                let reply = bytes.try_get_u16_le().ok()?;
                let attempt = bytes.try_get_u8().ok()?;
                if bytes.try_get_u8().ok()? != 0 {
                    return None;
                }
                let total = bytes.try_get_u32_le().ok()?;
                let call = bytes.try_get_u64_le().ok()?;
                let part = Part { call, reply, attempt, index, count, last, total, data: bytes };
                part.is_valid().then_some(Packet::Part(part))
            }
            WORKING | BY_STREAM => {
                let call = bytes.try_get_u64_le().ok()?;
                if !bytes.is_empty() {
                    return None;
                }
                Some(match kind {
                    WORKING => Packet::Working { call },
                    _ => Packet::ByStream { call },
                })
            }
            _ => None,
        }
    }
}
