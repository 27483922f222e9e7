//! The boundaries of PDUs in the stream (RFC 7143 §11.1), and the check of their digests.
//!
//! The framing allocates nothing for the lengths in a header, and splits payloads off the input
//! without copying. Its output depends on the bytes only. The boundaries of reads do not matter.

use crate::wire::iscsi::{BHS_BYTES, DIGEST_BYTES, RequestHeader};
use bytes::{Buf, Bytes, BytesMut};

/// A complete PDU.
#[derive(Clone, Debug)]
pub(super) struct Pdu {
    pub(super) header: RequestHeader,
    /// The bytes of the header, for a Reject.
    pub(super) raw: [u8; BHS_BYTES],
    pub(super) ahs: Bytes,
    pub(super) data: Bytes,
}

/// The result of a step.
#[derive(Clone, Debug)]
pub(super) enum Incoming {
    /// A PDU.
    Pdu(Pdu),
    /// A PDU without its damaged data segment (§7.8).
    DataDigest(Pdu),
    /// A header is damaged, so the framing cannot find the next PDU (§7.8).
    HeaderDigest,
    /// The framing cannot parse the rest of the stream.
    Lost(&'static str),
}

/// The input side of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Framing {
    pub(super) header_digest: bool,
    pub(super) data_digest: bool,
    /// Longest data segment that may come, in bytes.
    pub(super) max_data: usize,
    /// Bytes that the next step needs.
    pub(super) wanted: usize,
}

impl Framing {
    /// A stream without digests.
    pub(super) fn new(max_data: usize) -> Framing {
        Framing { header_digest: false, data_digest: false, max_data, wanted: BHS_BYTES }
    }

    /// Bytes that the input must hold before [`Framing::step`] can do anything.
    pub(super) fn wanted(&self) -> usize {
        self.wanted
    }

    /// Takes one PDU from the front of `input`, if it is complete.
    pub(super) fn step(&mut self, input: &mut BytesMut) -> Option<Incoming> {
        let Some(raw) = input.first_chunk::<BHS_BYTES>() else {
            self.wanted = BHS_BYTES;
            return None;
        };
        let raw = *raw;
        let header = RequestHeader::parse(&raw);
        let head = BHS_BYTES + header.ahs_bytes;
        let digest = if self.header_digest { DIGEST_BYTES } else { 0 };
        // Check the digest before using the lengths in the header.
        if !self.holds(input, head + digest) {
            return None;
        }
        if self.header_digest && crc32c::crc32c(&input[..head]) != le32(&input[head..]) {
            return Some(Incoming::HeaderDigest);
        }
        if header.data_bytes > self.max_data {
            return Some(Incoming::Lost("a data segment longer than MaxRecvDataSegmentLength"));
        }
        let padded = header.data_bytes.next_multiple_of(4);
        let has_digest = self.data_digest && padded > 0;
        let total = head + digest + padded + if has_digest { DIGEST_BYTES } else { 0 };
        if !self.holds(input, total) {
            return None;
        }
        self.wanted = BHS_BYTES;
        let mut pdu = Pdu { header, raw, ahs: Bytes::new(), data: Bytes::new() };
        if header.ahs_bytes > 0 {
            pdu.ahs = Bytes::copy_from_slice(&input[BHS_BYTES..head]);
        }
        input.advance(head + digest);
        if padded == 0 {
            return Some(Incoming::Pdu(pdu));
        }
        let whole = !has_digest || crc32c::crc32c(&input[..padded]) == le32(&input[padded..]);
        if whole {
            pdu.data = input.split_to(header.data_bytes).freeze();
            input.advance(total - head - digest - header.data_bytes);
            Some(Incoming::Pdu(pdu))
        } else {
            input.advance(total - head - digest);
            Some(Incoming::DataDigest(pdu))
        }
    }

    /// Whether `input` holds `total` bytes; if not, the next step needs them.
    fn holds(&mut self, input: &BytesMut, total: usize) -> bool {
        self.wanted = total;
        input.len() >= total
    }
}

/// The digest at the front of `bytes`. The least significant byte of a CRC32C comes first (§13.1,
/// with examples in §B.4).
fn le32(bytes: &[u8]) -> u32 {
    bytes.first_chunk::<4>().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}
