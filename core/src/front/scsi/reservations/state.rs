//! The persistent state: registrations, and the reservation of one of them.

use crate::front::scsi::nexus::{Nexus, NexusId};
use std::collections::BTreeMap;

/// Most registrations of a logical unit: 64 hosts with 16 paths each. Guessed.
pub const MAX_REGISTRATIONS: usize = 1024;

/// Longest parameter list of PERSISTENT RESERVE OUT, in bytes: room for 60 initiator ports.
pub const MAX_PARAMETER_BYTES: u32 = 16 << 10;

/// Longest name of an initiator port, in bytes: an iSCSI name (RFC 7143 §4.2.7.1), `,i,0x` and
/// twelve digits.
pub const MAX_PORT_BYTES: usize = 223 + 5 + 12;

/// Additional sense codes of the unit attentions, ASC in the high byte.
pub mod attention {
    /// RESERVATIONS PREEMPTED: another nexus cleared all registrations.
    pub const RESERVATIONS_PREEMPTED: u16 = 0x2a03;
    /// RESERVATIONS RELEASED: a reservation that this nexus shared is gone or has another type.
    pub const RESERVATIONS_RELEASED: u16 = 0x2a04;
    /// REGISTRATIONS PREEMPTED: another nexus removed this nexus' registration.
    pub const REGISTRATIONS_PREEMPTED: u16 = 0x2a05;
}

/// Types of persistent reservations (SPC-5, "Persistent reservation type").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ReservationType {
    /// Only the holder writes.
    WriteExclusive = 1,
    /// Only the holder reads and writes.
    ExclusiveAccess = 3,
    /// Only registered nexuses write.
    WriteExclusiveRegistrantsOnly = 5,
    /// Only registered nexuses read and write.
    ExclusiveAccessRegistrantsOnly = 6,
    /// Only registered nexuses write, and each of them is a holder.
    WriteExclusiveAllRegistrants = 7,
    /// Only registered nexuses read and write, and each of them is a holder.
    ExclusiveAccessAllRegistrants = 8,
}

impl ReservationType {
    /// The type with this code.
    pub(super) fn of(code: u8) -> Option<ReservationType> {
        Some(match code {
            1 => ReservationType::WriteExclusive,
            3 => ReservationType::ExclusiveAccess,
            5 => ReservationType::WriteExclusiveRegistrantsOnly,
            6 => ReservationType::ExclusiveAccessRegistrantsOnly,
            7 => ReservationType::WriteExclusiveAllRegistrants,
            8 => ReservationType::ExclusiveAccessAllRegistrants,
            _ => return None,
        })
    }

    /// Whether nexuses that are not registered may read.
    pub(super) fn reads_are_shared(self) -> bool {
        matches!(
            self,
            ReservationType::WriteExclusive
                | ReservationType::WriteExclusiveRegistrantsOnly
                | ReservationType::WriteExclusiveAllRegistrants
        )
    }

    pub(super) fn registrants_only(self) -> bool {
        matches!(
            self,
            ReservationType::WriteExclusiveRegistrantsOnly
                | ReservationType::ExclusiveAccessRegistrantsOnly
        )
    }

    pub(super) fn all_registrants(self) -> bool {
        matches!(
            self,
            ReservationType::WriteExclusiveAllRegistrants
                | ReservationType::ExclusiveAccessAllRegistrants
        )
    }
}

/// The persistent state: registrations, and the reservation of one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ReservationState {
    /// Registration keys, never 0. Port names are in [`canonical`](super::transport::canonical)
    /// form.
    pub registrations: BTreeMap<Nexus, u64>,
    pub reservation: Option<Reservation>,
    /// APTPL: the state outlives power loss.
    pub aptpl: bool,
}

/// A persistent reservation; its scope is always the logical unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reservation {
    pub kind: ReservationType,
    /// The holder, which is always registered. `None` if all registrants hold the reservation. For
    /// other types `None` means that nobody holds it: it replaces reservations that cannot be
    /// read.
    pub holder: Option<Nexus>,
}

impl ReservationState {
    pub(super) fn holds(&self, nexus: &Nexus) -> bool {
        match &self.reservation {
            Some(Reservation { holder: Some(holder), .. }) => holder == nexus,
            Some(Reservation { kind, holder: None }) => {
                kind.all_registrants() && self.registrations.contains_key(nexus)
            }
            None => false,
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.reservation
            .as_ref()
            .is_some_and(|it| it.holder.is_none() && !it.kind.all_registrants())
    }

    /// The state, if it has to outlive power loss.
    pub(super) fn kept(&self) -> Option<&ReservationState> {
        (self.is_lost() || self.aptpl && !self.registrations.is_empty()).then_some(self)
    }
}

/// The effect of a command.
#[derive(Debug)]
pub(super) struct StateChange {
    pub state: ReservationState,
    /// PRGENERATION is incremented.
    pub counts: bool,
    pub attentions: Vec<(Nexus, u16)>,
    pub aborts: Vec<Nexus>,
}

#[derive(Debug)]
pub(super) struct NexusRights {
    pub ends: Nexus,
    pub registered: bool,
    pub holder: bool,
}

/// The state that the evaluation of a command reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReservationView<'a> {
    pub state: &'a ReservationState,
    /// Relative identifiers of all target ports.
    pub ports: &'a [u16],
    pub nexuses: &'a BTreeMap<NexusId, NexusRights>,
}
