//! PERSISTENT RESERVE OUT: the checks of its fields that need no state (SPC-5 §6.17).

use super::refusal::ReservationRefusal;
use super::state::{MAX_PARAMETER_BYTES, ReservationType};
use super::transport::{self, TransportId, be64};

/// Bytes of the parameter list without TransportIDs.
const BASIC_BYTES: usize = 24;

/// A PERSISTENT RESERVE OUT command.
#[derive(Debug)]
pub(super) struct ReserveOutCommand {
    /// RESERVATION KEY.
    pub key: u64,
    /// SERVICE ACTION RESERVATION KEY.
    pub action_key: u64,
    pub action: ReserveOutAction,
}

#[derive(Debug)]
pub(super) enum ReserveOutAction {
    Register {
        /// REGISTER AND IGNORE EXISTING KEY.
        ignore: bool,
        /// ALL_TG_PT.
        all_ports: bool,
        aptpl: bool,
        /// SPEC_I_PT: other initiator ports to register.
        others: Option<Vec<TransportId>>,
    },
    Reserve(ReservationType),
    Release {
        /// SCOPE and TYPE.
        what: u8,
    },
    Clear,
    Preempt {
        what: u8,
        abort: bool,
    },
    Move {
        unregister: bool,
        aptpl: bool,
        relative_port: u16,
        to: TransportId,
    },
}

/// The type in SCOPE and TYPE. The scope has to be the logical unit.
pub(super) fn kind(what: u8) -> Result<ReservationType, ReservationRefusal> {
    if what >> 4 != 0 {
        return Err(ReservationRefusal::in_cdb(2, Some(7)));
    }
    ReservationType::of(what).ok_or(ReservationRefusal::in_cdb(2, Some(3)))
}

/// The length of the parameter list, if service action and length are valid.
pub(super) fn check(cdb: &[u8; 16]) -> Result<u32, ReservationRefusal> {
    match cdb[1] & 0x1f {
        0x01 => {
            kind(cdb[2])?;
        }
        0x00 | 0x02..=0x07 => {}
        // REPLACE LOST RESERVATION (08h) is for devices that set RLR_C. The rest is reserved.
        _ => return Err(ReservationRefusal::in_cdb(1, Some(4))),
    }
    let length = u32::from_be_bytes([cdb[5], cdb[6], cdb[7], cdb[8]]);
    if (BASIC_BYTES as u32..=MAX_PARAMETER_BYTES).contains(&length) {
        Ok(length)
    } else {
        Err(ReservationRefusal::length())
    }
}

/// The command in `cdb` and `list`.
pub(super) fn parse(cdb: &[u8; 16], list: &[u8]) -> Result<ReserveOutCommand, ReservationRefusal> {
    check(cdb)?;
    let Some((basic, rest)) = list.split_first_chunk::<BASIC_BYTES>() else {
        return Err(ReservationRefusal::length());
    };
    let service = cdb[1] & 0x1f;
    let (key, action_key) = (be64(basic, 0), be64(basic, 8));
    let (spec_i_pt, all_ports, aptpl) =
        (basic[20] & 0x08 != 0, basic[20] & 0x04 != 0, basic[20] & 0x01 != 0);
    if service == 0x07 {
        let length = u32::from_be_bytes([basic[20], basic[21], basic[22], basic[23]]);
        if length as usize != rest.len() {
            return Err(ReservationRefusal::length());
        }
        let (to, left) = transport::parse(rest, BASIC_BYTES)?;
        if !left.is_empty() {
            return Err(ReservationRefusal::length());
        }
        if to.isid.is_none() {
            // The TransportID names a device, but a nexus has a port (SPC-5 §7.6.4.6).
            return Err(ReservationRefusal::in_list(BASIC_BYTES, Some(7)));
        }
        let action = ReserveOutAction::Move {
            unregister: basic[17] & 0x02 != 0,
            aptpl: basic[17] & 0x01 != 0,
            relative_port: u16::from_be_bytes([basic[18], basic[19]]),
            to,
        };
        return Ok(ReserveOutCommand { key, action_key, action });
    }
    if spec_i_pt && service != 0x00 {
        return Err(ReservationRefusal::in_list(20, Some(3)));
    }
    let others = match spec_i_pt {
        true => Some(transports(rest)?),
        false if rest.is_empty() => None,
        false => return Err(ReservationRefusal::length()),
    };
    let action = match service {
        0x00 | 0x06 => {
            ReserveOutAction::Register { ignore: service == 0x06, all_ports, aptpl, others }
        }
        0x01 => ReserveOutAction::Reserve(kind(cdb[2])?),
        0x02 => ReserveOutAction::Release { what: cdb[2] },
        0x03 => ReserveOutAction::Clear,
        _ => ReserveOutAction::Preempt { what: cdb[2], abort: service == 0x05 },
    };
    Ok(ReserveOutCommand { key, action_key, action })
}

/// The TransportIDs after the basic parameter list, with their length.
fn transports(rest: &[u8]) -> Result<Vec<TransportId>, ReservationRefusal> {
    let Some((length, mut left)) = rest.split_first_chunk::<4>() else {
        return Err(ReservationRefusal::length());
    };
    if u32::from_be_bytes(*length) as usize != left.len() {
        return Err(ReservationRefusal::length());
    }
    let mut found = Vec::new();
    while !left.is_empty() {
        let at = BASIC_BYTES + rest.len() - left.len();
        let (id, next) = transport::parse(left, at)?;
        found.push(id);
        left = next;
    }
    Ok(found)
}
