//! Packets as a TUN device gives and takes them: a `virtio_net_hdr`, then an IPv4 packet. It may be
//! a super-packet of many segments of one flow, which the line sees one by one.
//!
//! This module computes no checksums. A super-packet carries none (`VIRTIO_NET_HDR_F_NEEDS_CSUM`
//! asks the sender on a real wire), and the receiving kernel takes it as verified.

use bytes::Bytes;

/// Bytes of `struct virtio_net_hdr`: flags, gso_type (u8 each), hdr_len, gso_size, csum_start,
/// csum_offset (u16 each, in the machine's order).
pub const HEADER: usize = 10;
/// The largest read from a device.
pub const MAX_BYTES: usize = HEADER + 65_536;

const NEEDS_CSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_UDP_L4: u8 = 5;
/// Headers of a datagram: IPv4 without options, UDP.
const DATAGRAM: usize = 28;
/// The most datagrams that go into a super-packet; the kernel takes 128 (`UDP_MAX_SEGMENTS`), older
/// ones 64.
pub const MERGED: usize = 64;
/// The largest IP packet.
pub const IP_BYTES: usize = 65_535;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// TCP flags that only the last segment carries: FIN, PSH.
const LAST_FLAGS: u8 = 0x01 | 0x08;
/// TCP's CWR, which only the first segment carries (RFC 3168 §6.1.2).
const CWR: u8 = 0x80;

/// One read from a device, at least one segment.
#[derive(Clone, Debug)]
pub struct Packet {
    /// As read, with the `virtio_net_hdr`.
    bytes: Bytes,
    gso: u8,
    /// Length of the IP and TCP or UDP headers; of the whole IP packet if it is a single one.
    headers: usize,
    /// Payload of each segment but the last.
    size: usize,
    segments: u32,
}

/// A part of a packet, ready to be written: `head`, then `tail`.
#[derive(Clone, Debug)]
pub struct Piece {
    /// New headers; empty if the packet goes on as it came.
    pub head: Vec<u8>,
    /// The rest.
    pub tail: Bytes,
}

impl Packet {
    /// Parses a read; `None` if an IPv4 line cannot carry it.
    #[must_use]
    pub fn parse(bytes: Bytes) -> Option<Packet> {
        let ip = bytes.get(HEADER..)?;
        if ip.len() < 20 || ip[0] >> 4 != 4 {
            return None;
        }
        let gso = bytes[1];
        let size = usize::from(u16::from_ne_bytes([bytes[4], bytes[5]]));
        let single = Packet { gso, headers: ip.len(), size: 0, segments: 1, bytes: bytes.clone() };
        let ip_header = usize::from(ip[0] & 15) * 4;
        let headers = match (gso, ip[9]) {
            (GSO_NONE, _) => return Some(single),
            (GSO_TCPV4, TCP) => ip_header + usize::from(*ip.get(ip_header + 12)? >> 4) * 4,
            (GSO_UDP_L4, UDP) => ip_header + 8,
            // The device supports nothing else (`TUNSETOFFLOAD`).
            _ => return None,
        };
        let payload = ip.len().checked_sub(headers)?;
        if size == 0 || ip_header < 20 || payload == 0 {
            return None;
        }
        let segments = payload.div_ceil(size) as u32;
        Some(Packet { bytes, gso, headers, size, segments })
    }

    /// How many packets it is on the wire.
    #[must_use]
    pub fn segments(&self) -> u32 {
        self.segments
    }

    /// The bytes of a segment on the wire, with its IP header.
    #[must_use]
    pub fn segment_bytes(&self, index: u32) -> u32 {
        let payload = self.bytes.len() - HEADER - self.headers;
        let before = index as usize * self.size;
        (self.headers + payload.saturating_sub(before).min(self.size)) as u32
    }

    /// Whether both are the same, not only alike.
    #[must_use]
    pub fn is(&self, other: &Packet) -> bool {
        self.bytes.as_ptr() == other.bytes.as_ptr()
    }

    /// Segments `first..first + count` as a packet or super-packet of their own.
    #[must_use]
    pub fn piece(&self, first: u32, count: u32) -> Piece {
        if count == self.segments {
            return Piece { head: Vec::new(), tail: self.bytes.clone() };
        }
        let from = HEADER + self.headers + first as usize * self.size;
        let end = (from + count as usize * self.size).min(self.bytes.len());
        let mut head = self.bytes[..HEADER + self.headers].to_vec();
        if count == 1 {
            head[1] = GSO_NONE;
            head[4..6].copy_from_slice(&0u16.to_ne_bytes());
        }
        head[2..4].copy_from_slice(&(self.headers as u16).to_ne_bytes());
        self.rewrite(&mut head[HEADER..], first, count, end - from);
        Piece { head, tail: self.bytes.slice(from..end) }
    }

    /// Whether both are datagrams that differ only in their contents. Then they can form a
    /// super-packet, in which only the last may be shorter.
    #[must_use]
    pub fn goes_with(&self, next: &Packet) -> bool {
        if !self.is_plain_datagram() || !next.is_plain_datagram() {
            return false;
        }
        let (a, b) = (&self.bytes[HEADER..], &next.bytes[HEADER..]);
        // Type of service; fragments, time to live, protocol; addresses and ports.
        a[1] == b[1] && a[6..10] == b[6..10] && a[12..24] == b[12..24] && b.len() <= a.len()
    }

    /// One datagram of UDP, not in fragments, without IP options, with a payload, and without its
    /// checksum.
    fn is_plain_datagram(&self) -> bool {
        let ip = &self.bytes[HEADER..];
        let whole = ip[0] == 0x45 && ip[9] == UDP && ip[6] & 0x3f == 0 && ip[7] == 0;
        self.gso == GSO_NONE && self.bytes[0] & NEEDS_CSUM != 0 && whole && ip.len() > DATAGRAM
    }

    /// The headers of a super-packet of this one and others that go with it, together `payload`
    /// bytes without headers; the payloads follow.
    #[must_use]
    pub fn head_of_all(&self, payload: usize) -> Vec<u8> {
        let mut head = self.bytes[..HEADER + DATAGRAM].to_vec();
        head[1] = GSO_UDP_L4;
        head[2..4].copy_from_slice(&(DATAGRAM as u16).to_ne_bytes());
        head[4..6].copy_from_slice(&(self.payload().len() as u16).to_ne_bytes());
        let like = Packet { gso: GSO_UDP_L4, headers: DATAGRAM, ..self.clone() };
        like.rewrite(&mut head[HEADER..], 0, 1, payload);
        head
    }

    /// The payload of a datagram.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.bytes[(HEADER + DATAGRAM).min(self.bytes.len())..]
    }

    /// The changes in the headers of a piece, as in `inet_gso_segment`, `tcp_gso_segment` and
    /// `__udp_gso_segment` of Linux.
    fn rewrite(&self, ip: &mut [u8], first: u32, count: u32, payload: usize) {
        let l4 = usize::from(ip[0] & 15) * 4;
        let total = (self.headers + payload) as u16;
        ip[2..4].copy_from_slice(&total.to_be_bytes());
        let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(first as u16);
        ip[4..6].copy_from_slice(&id.to_be_bytes());
        ip[10..12].fill(0);
        let sum = !fold(add(0, &ip[..l4]));
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        if self.gso == GSO_TCPV4 {
            let sequence = u32::from_be_bytes([ip[l4 + 4], ip[l4 + 5], ip[l4 + 6], ip[l4 + 7]]);
            let sequence = sequence.wrapping_add(first * self.size as u32);
            ip[l4 + 4..l4 + 8].copy_from_slice(&sequence.to_be_bytes());
            if first + count < self.segments {
                ip[l4 + 13] &= !LAST_FLAGS;
            }
            if first > 0 {
                ip[l4 + 13] &= !CWR;
            }
        } else {
            let length = (8 + payload) as u16;
            ip[l4 + 4..l4 + 6].copy_from_slice(&length.to_be_bytes());
        }
        // The kernel's value in the checksum's field while the checksum is still missing. It is the
        // sum of the pseudo header (RFC 9293 §3.1), with the length in it.
        let length = (self.headers - l4 + payload) as u32;
        let pseudo = fold(add(u32::from(ip[9]) + length, &ip[12..20]));
        let check = l4 + if self.gso == GSO_TCPV4 { 16 } else { 6 };
        ip[check..check + 2].copy_from_slice(&pseudo.to_be_bytes());
    }
}

/// The Internet checksum's sum (RFC 1071) of `bytes`, which are even in number, on top of `sum`.
fn add(sum: u32, bytes: &[u8]) -> u32 {
    bytes
        .chunks_exact(2)
        .fold(sum, |sum, pair| sum + u32::from(u16::from_be_bytes([pair[0], pair[1]])))
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A super-packet with `payload` bytes 0, 1, 2, … and a 20-byte IP header.
    fn packet(gso: u8, size: u16, payload: usize) -> Packet {
        let (protocol, l4) = if gso == GSO_TCPV4 { (TCP, 32) } else { (UDP, 8) };
        let mut bytes = vec![NEEDS_CSUM, gso, 0, 0, 0, 0, 20, 0, 16, 0];
        bytes[4..6].copy_from_slice(&size.to_ne_bytes());
        let total = (20 + l4 + payload) as u16;
        bytes.extend([0x45, 0]);
        bytes.extend(total.to_be_bytes());
        bytes.extend([0, 7, 0x40, 0, 64, protocol, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2]);
        let mut header = vec![0; l4];
        if gso == GSO_TCPV4 {
            header[4..8].copy_from_slice(&1000u32.to_be_bytes());
            header[12] = 8 << 4;
            header[13] = 0x10 | LAST_FLAGS | CWR;
        }
        bytes.extend(header);
        bytes.extend((0..payload).map(|index| index as u8));
        Packet::parse(bytes.into()).unwrap()
    }

    fn whole(piece: &Piece) -> Vec<u8> {
        [piece.head.as_slice(), &piece.tail].concat()
    }

    #[test]
    fn segments_have_the_bytes_of_the_wire() {
        let packet = packet(GSO_UDP_L4, 1000, 2500);
        let sizes: Vec<u32> = (0..packet.segments()).map(|i| packet.segment_bytes(i)).collect();
        assert_eq!(sizes, [1028, 1028, 528]);
    }

    #[test]
    fn all_segments_go_on_untouched() {
        let packet = packet(GSO_TCPV4, 1000, 2500);
        assert!(packet.piece(0, 3).head.is_empty());
        assert_eq!(packet.piece(0, 3).tail.len(), HEADER + 52 + 2500);
    }

    #[test]
    fn tcp_pieces() {
        let packet = packet(GSO_TCPV4, 1000, 3500);
        let bytes = whole(&packet.piece(1, 2));
        assert_eq!(bytes[1], GSO_TCPV4);
        let ip = &bytes[HEADER..];
        assert_eq!(ip.len(), 52 + 2000);
        assert_eq!(u16::from_be_bytes([ip[2], ip[3]]), 2052);
        assert_eq!(u16::from_be_bytes([ip[4], ip[5]]), 8, "IP id");
        assert_eq!(fold(add(0, &ip[..20])), 0xffff, "IP checksum");
        assert_eq!(u32::from_be_bytes([ip[24], ip[25], ip[26], ip[27]]), 2000, "sequence");
        assert_eq!(ip[33], 0x10, "neither FIN nor PSH nor CWR");
        let pseudo = fold(add(u32::from(TCP) + 32 + 2000, &ip[12..20]));
        assert_eq!(u16::from_be_bytes([ip[36], ip[37]]), pseudo);
        assert_eq!(ip[52], 1000u32 as u8, "payload");

        let last = whole(&packet.piece(3, 1));
        assert_eq!((last[1], &last[4..6]), (GSO_NONE, &[0, 0][..]));
        assert_eq!(last.len(), HEADER + 52 + 500);
        assert_eq!(last[HEADER + 33], 0x10 | LAST_FLAGS);
        let first = whole(&packet.piece(0, 1));
        assert_eq!(first[HEADER + 33], 0x10 | CWR);
    }

    #[test]
    fn udp_pieces() {
        let packet = packet(GSO_UDP_L4, 1000, 2500);
        let bytes = whole(&packet.piece(1, 2));
        assert_eq!(bytes[1], GSO_UDP_L4);
        assert_eq!(u16::from_ne_bytes([bytes[2], bytes[3]]), 28, "length of the headers");
        let ip = &bytes[HEADER..];
        assert_eq!(u16::from_be_bytes([ip[24], ip[25]]), 1508);
        assert_eq!(u16::from_be_bytes([ip[26], ip[27]]), fold(add(17 + 1508, &ip[12..20])));
        assert_eq!(ip.len(), 1528);
    }

    #[test]
    fn datagrams_alike_make_a_super_packet() {
        let all = packet(GSO_UDP_L4, 1000, 2500);
        let parts: Vec<Packet> = (0..3)
            .map(|index| Packet::parse(whole(&all.piece(index, 1)).into()).unwrap())
            .collect();
        assert!(parts[0].goes_with(&parts[1]) && parts[1].goes_with(&parts[2]));
        assert!(!parts[2].goes_with(&parts[1]), "only the last may be shorter");
        assert!(!all.goes_with(&parts[0]));
        let other = |at: usize, value: u8| {
            let mut bytes = parts[1].bytes.to_vec();
            bytes[at] = value;
            Packet::parse(bytes.into()).unwrap()
        };
        for (at, value) in [(0, 0), (HEADER + 1, 1), (HEADER + 6, 0x20), (HEADER + 23, 9)] {
            assert!(!parts[0].goes_with(&other(at, value)), "{at}");
        }
        let mut again = parts[0].head_of_all(2500);
        parts.iter().for_each(|part| again.extend(part.payload()));
        let (ip, sums) = (&again[HEADER..], fold(add(0, &again[HEADER..HEADER + 20])));
        assert_eq!((sums, ip.len()), (0xffff, 28 + 2500));
        assert_eq!(ip[28..], all.bytes[HEADER + 28..]);
        assert_eq!((again[1], u16::from_ne_bytes([again[4], again[5]])), (GSO_UDP_L4, 1000));
        assert_eq!(u16::from_be_bytes([ip[24], ip[25]]), 2508);
    }

    #[test]
    fn what_is_no_packet_is_refused() {
        assert!(Packet::parse(Bytes::new()).is_none());
        assert!(Packet::parse(vec![0; HEADER + 40].into()).is_none(), "not IPv4");
        let mut bytes = packet(GSO_UDP_L4, 1000, 2500).bytes.to_vec();
        bytes[4..6].fill(0);
        assert!(Packet::parse(bytes.clone().into()).is_none(), "no segment size");
        bytes.truncate(HEADER + 24);
        assert!(Packet::parse(bytes.into()).is_none(), "shorter than its headers");
    }
}
