//! The saved form of reservations, which outlives power loss; drawn in `docs/formats.md`.

use super::state::{
    MAX_PORT_BYTES, MAX_REGISTRATIONS, Reservation, ReservationState, ReservationType,
};
use crate::front::scsi::nexus::Nexus;
use bytes::{Buf, BufMut, Bytes};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: u32 = u32::from_le_bytes(*b"LHPR");
const VERSION: u16 = 1;
const APTPL: u8 = 1;
/// The index that stands for no registration.
const NOBODY: u32 = u32::MAX;
const HEADER_BYTES: usize = 24;
/// Bytes of a registration before the name.
const ENTRY_BYTES: usize = 12;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: U32,
    version: U16,
    flags: u8,
    kind: u8,
    holder: U32,
    registrations: U32,
    bytes: U32,
    crc: U32,
}

const _: () = assert!(size_of::<RawHeader>() == HEADER_BYTES);

/// The reason why saved reservations cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// Too few bytes, or too many.
    #[error("the saved reservations have the wrong length")]
    Length,
    /// The bytes are something else.
    #[error("these are not saved reservations")]
    Magic,
    /// A later version wrote them.
    #[error("the saved reservations are of format version {0}, which needs a newer longhaul")]
    Version(u16),
    /// Damaged.
    #[error("the saved reservations do not match their checksum")]
    Checksum,
    /// The bytes are intact, but no valid reservations.
    #[error("the saved reservations are not valid: {0}")]
    Invalid(&'static str),
}

/// Encodes a state.
pub(super) fn encode(state: &ReservationState) -> Bytes {
    let mut body = Vec::new();
    for (nexus, key) in &state.registrations {
        body.put_u64_le(*key);
        body.put_u16_le(nexus.relative_port);
        // Registered names are at most MAX_PORT_BYTES long.
        body.put_u16_le(u16::try_from(nexus.initiator_port.len()).unwrap_or(u16::MAX));
        body.put_slice(nexus.initiator_port.as_bytes());
    }
    let holder = state.reservation.as_ref().and_then(|it| it.holder.as_ref());
    let index = holder.and_then(|holder| state.registrations.keys().position(|it| it == holder));
    let header = RawHeader {
        magic: MAGIC.into(),
        version: VERSION.into(),
        flags: if state.aptpl { APTPL } else { 0 },
        kind: state.reservation.as_ref().map_or(0, |it| it.kind as u8),
        holder: index.map_or(NOBODY, small).into(),
        registrations: small(state.registrations.len()).into(),
        bytes: small(body.len()).into(),
        crc: 0.into(),
    };
    let mut data = header.as_bytes().to_vec();
    data.put_slice(&body);
    let crc = checksum(&data);
    data[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
    data.into()
}

/// Counts here are bounded by MAX_REGISTRATIONS × 252 bytes.
fn small(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// The checksum of all bytes except itself.
fn checksum(data: &[u8]) -> u32 {
    let header = crc32c::crc32c(&data[..HEADER_BYTES - 4]);
    crc32c::crc32c_append(header, &data[HEADER_BYTES..])
}

/// Decodes a state; no bytes are an empty state.
pub(super) fn decode(data: &[u8]) -> Result<ReservationState, RestoreError> {
    use RestoreError::Invalid;

    if data.is_empty() {
        return Ok(ReservationState::default());
    }
    let Ok((header, mut body)) = RawHeader::read_from_prefix(data) else {
        return Err(RestoreError::Length);
    };
    if header.magic != MAGIC {
        return Err(RestoreError::Magic);
    }
    if header.version != VERSION {
        return Err(RestoreError::Version(header.version.get()));
    }
    if header.bytes.get() as usize != body.len() {
        return Err(RestoreError::Length);
    }
    if header.crc != checksum(data) {
        return Err(RestoreError::Checksum);
    }
    if header.flags & !APTPL != 0 {
        return Err(Invalid("unknown flags"));
    }
    if header.registrations.get() as usize > MAX_REGISTRATIONS {
        return Err(Invalid("too many registrations"));
    }
    let mut state =
        ReservationState { aptpl: header.flags & APTPL != 0, ..ReservationState::default() };
    let mut holder = None;
    for index in 0..header.registrations.get() {
        let (nexus, key) = entry(&mut body)?;
        if state.registrations.last_key_value().is_some_and(|(last, _)| *last >= nexus) {
            return Err(Invalid("registrations out of order"));
        }
        if index == header.holder.get() {
            holder = Some(nexus.clone());
        }
        state.registrations.insert(nexus, key);
    }
    if !body.is_empty() {
        return Err(Invalid("more bytes than registrations"));
    }
    if holder.is_none() && header.holder != NOBODY {
        return Err(Invalid("a holder that is not registered"));
    }
    match (header.kind, ReservationType::of(header.kind)) {
        (0, _) if holder.is_none() => {}
        (_, Some(kind)) if kind.all_registrants() => {
            if holder.is_some() || state.registrations.is_empty() {
                return Err(Invalid("a reservation of all registrants with one holder or none"));
            }
            state.reservation = Some(Reservation { kind, holder });
        }
        (_, Some(kind)) => state.reservation = Some(Reservation { kind, holder }),
        _ => return Err(Invalid("an unknown type of reservation")),
    }
    if state.kept().is_none() {
        return Err(Invalid("nothing that is to be kept"));
    }
    Ok(state)
}

fn entry(body: &mut &[u8]) -> Result<(Nexus, u64), RestoreError> {
    use RestoreError::Invalid;

    if body.len() < ENTRY_BYTES {
        return Err(Invalid("fewer bytes than registrations"));
    }
    let (key, relative_port) = (body.get_u64_le(), body.get_u16_le());
    let length = usize::from(body.get_u16_le());
    if key == 0 || length > MAX_PORT_BYTES {
        return Err(Invalid("a key of 0, or a name too long"));
    }
    let Some((name, rest)) = body.split_at_checked(length) else {
        return Err(Invalid("fewer bytes than registrations"));
    };
    *body = rest;
    let name = std::str::from_utf8(name).map_err(|_| Invalid("a name that is not UTF-8"))?;
    Ok((Nexus { initiator_port: name.to_owned(), relative_port }, key))
}
