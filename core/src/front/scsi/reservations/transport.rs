//! Names of initiator ports, and iSCSI TransportIDs (SPC-5 §7.6.4.6).

use super::refusal::ReservationRefusal;
use bytes::BufMut;

/// PROTOCOL IDENTIFIER of iSCSI.
const ISCSI: u8 = 0x05;
/// Smallest ADDITIONAL LENGTH.
const MIN_BYTES: usize = 20;
/// Separates the name of an initiator device from its ISID.
const SEPARATOR: &str = ",i,0x";
/// Longest iSCSI name, in bytes.
const MAX_NAME_BYTES: usize = 223;

/// An initiator device, or one of its ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TransportId {
    /// iSCSI name, in lower case.
    pub name: String,
    /// ISID of the port; `None` for a device.
    pub isid: Option<[u8; 6]>,
}

impl TransportId {
    /// Parses the name of a port or of a device.
    fn of(text: &str) -> Option<TransportId> {
        let (name, isid) = match text.split_once(SEPARATOR) {
            Some((name, digits)) => (name, Some(isid(digits)?)),
            None => (text, None),
        };
        Some(TransportId { name: name.to_lowercase(), isid })
    }

    /// The name of the port, or of the device if it has no ISID.
    pub(super) fn port(&self) -> String {
        match self.isid {
            Some([a, b, c, d, e, f]) => {
                let name = &self.name;
                format!("{name}{SEPARATOR}{a:02x}{b:02x}{c:02x}{d:02x}{e:02x}{f:02x}")
            }
            None => self.name.clone(),
        }
    }
}

/// Parses up to twelve hexadecimal digits; leading zeroes may be missing.
fn isid(digits: &str) -> Option<[u8; 6]> {
    if digits.is_empty() || digits.len() > 12 || !digits.bytes().all(|it| it.is_ascii_hexdigit()) {
        return None;
    }
    let [_, _, isid @ ..] = u64::from_str_radix(digits, 16).ok()?.to_be_bytes();
    Some(isid)
}

/// The canonical form of a port's name, in which nexuses are compared.
pub(super) fn canonical(port: &str) -> String {
    TransportId::of(port).map_or_else(|| port.to_owned(), |id| id.port())
}

/// Takes a TransportID from the front of `bytes`, which begin at offset `at` of the parameter list.
pub(super) fn parse(bytes: &[u8], at: usize) -> Result<(TransportId, &[u8]), ReservationRefusal> {
    let Some((&[first, _, high, low], rest)) = bytes.split_first_chunk::<4>() else {
        return Err(ReservationRefusal::length());
    };
    let length = usize::from(u16::from_be_bytes([high, low]));
    if first & 0x0f != ISCSI {
        return Err(ReservationRefusal::in_list(at, Some(3)));
    }
    if length < MIN_BYTES || length % 4 != 0 {
        return Err(ReservationRefusal::in_list(at + 2, None));
    }
    let Some((text, rest)) = rest.split_at_checked(length) else {
        return Err(ReservationRefusal::length());
    };
    let wrong = ReservationRefusal::in_list(at + 4, None);
    // The name ends with a null; the padding is nulls, too.
    let end = text.iter().position(|&byte| byte == 0).ok_or(wrong)?;
    let text = std::str::from_utf8(&text[..end]).map_err(|_| wrong)?;
    let id = TransportId::of(text).ok_or(wrong)?;
    if id.name.is_empty() || id.name.len() > MAX_NAME_BYTES {
        return Err(wrong);
    }
    match (first >> 6, id.isid) {
        (0, None) | (1, Some(_)) => Ok((id, rest)),
        (0 | 1, _) => Err(wrong),
        _ => Err(ReservationRefusal::in_list(at, Some(7))),
    }
}

/// Appends the TransportID of a port.
pub(super) fn encode(port: &str, out: &mut Vec<u8>) {
    let format = u8::from(port.contains(SEPARATOR));
    let length = (port.len() + 1).next_multiple_of(4).max(MIN_BYTES);
    out.put_u8(format << 6 | ISCSI);
    out.put_u8(0);
    // Names of ports are at most MAX_PORT_BYTES long.
    out.put_u16(u16::try_from(length).unwrap_or(u16::MAX));
    out.put_slice(port.as_bytes());
    out.put_bytes(0, length - port.len());
}

/// Eight big-endian bytes at offset `at`.
pub(super) fn be64(bytes: &[u8; 24], at: usize) -> u64 {
    bytes[at..at + 8].iter().fold(0, |value, &byte| value << 8 | u64::from(byte))
}
