//! PERSISTENT RESERVE IN (SPC-5 §6.16).

use super::refusal::ReservationRefusal;
use super::state::ReservationState;
use super::transport;
use bytes::{BufMut, Bytes};

/// LENGTH of the capabilities.
const CAPABILITIES_BYTES: u16 = 8;

/// The parameter data for `cdb`.
pub(super) fn report(
    state: &ReservationState,
    generation: u32,
    cdb: &[u8; 16],
) -> Result<Bytes, ReservationRefusal> {
    let allocation = usize::from(u16::from_be_bytes([cdb[7], cdb[8]]));
    let mut data = match cdb[1] & 0x1f {
        0x00 => with_header(generation, keys(state)),
        0x01 => with_header(generation, reservation(state)),
        0x02 => capabilities(state),
        0x03 => with_header(generation, full_status(state)),
        _ => return Err(ReservationRefusal::in_cdb(1, Some(4))),
    };
    data.truncate(allocation);
    Ok(data.into())
}

/// PRGENERATION and ADDITIONAL LENGTH, which counts all data even if the allocation length cuts it.
fn with_header(generation: u32, body: Vec<u8>) -> Vec<u8> {
    let mut data = Vec::with_capacity(8 + body.len());
    data.put_u32(generation);
    // MAX_REGISTRATIONS keeps it far below the limit.
    data.put_u32(u32::try_from(body.len()).unwrap_or(u32::MAX));
    data.put_slice(&body);
    data
}

fn keys(state: &ReservationState) -> Vec<u8> {
    state.registrations.values().flat_map(|key| key.to_be_bytes()).collect()
}

fn reservation(state: &ReservationState) -> Vec<u8> {
    let mut data = Vec::new();
    if let Some(reservation) = &state.reservation {
        // The key is 0 if all registrants hold the reservation.
        let key = reservation.holder.as_ref().and_then(|holder| state.registrations.get(holder));
        data.put_u64(key.copied().unwrap_or(0));
        data.put_bytes(0, 5);
        data.put_u8(reservation.kind as u8);
        data.put_bytes(0, 2);
    }
    data
}

fn capabilities(state: &ReservationState) -> Vec<u8> {
    let mut data = Vec::new();
    data.put_u16(CAPABILITIES_BYTES);
    // CRH, SIP_C, ATP_C, PTPL_C; not RLR_C.
    data.put_u8(0x10 | 0x08 | 0x04 | 0x01);
    // TMV. ALLOW COMMANDS 011b: TEST UNIT READY passes all types; MODE SENSE, REPORT SUPPORTED
    // OPERATION CODES, READ DEFECT DATA and similar commands pass Write Exclusive. PTPL_A.
    data.put_u8(0x80 | 0b011 << 4 | u8::from(state.aptpl));
    // All six types.
    data.put_u8(0xea);
    data.put_u8(0x01);
    data.put_u16(0);
    data
}

fn full_status(state: &ReservationState) -> Vec<u8> {
    let mut data = Vec::new();
    let mut transport_id = Vec::new();
    for (nexus, key) in &state.registrations {
        let held = state.reservation.as_ref().filter(|_| state.holds(nexus));
        data.put_u64(*key);
        data.put_u32(0);
        // R_HOLDER. ALL_TG_PT is 0, because the registration with each port is listed.
        data.put_u8(u8::from(held.is_some()));
        data.put_u8(held.map_or(0, |it| it.kind as u8));
        data.put_u32(0);
        data.put_u16(nexus.relative_port);
        transport_id.clear();
        transport::encode(&nexus.initiator_port, &mut transport_id);
        // A TransportID is shorter than 64 KiB.
        data.put_u32(u32::try_from(transport_id.len()).unwrap_or(u32::MAX));
        data.put_slice(&transport_id);
    }
    data
}
