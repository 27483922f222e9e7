//! The refusal of a command by the reservations.

/// The location of an invalid field, for the sense key specific bytes (SPC-5, "Field pointer").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldPointer {
    /// The field is in the CDB, otherwise in the parameter list.
    pub in_cdb: bool,
    /// Its first byte.
    pub byte: u16,
    /// Its highest bit, unless the field is whole bytes.
    pub bit: Option<u8>,
}

/// The status of a refused command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationRefusal {
    /// Status RESERVATION CONFLICT.
    Conflict,
    /// Status BUSY: too many reservation commands wait.
    Busy,
    /// Status CHECK CONDITION with this sense.
    Check {
        /// Sense key.
        key: u8,
        /// Additional sense code and qualifier.
        code: u16,
        /// The invalid field, if one is the cause.
        field: Option<FieldPointer>,
    },
}

impl ReservationRefusal {
    pub(super) fn illegal(code: u16, field: Option<FieldPointer>) -> ReservationRefusal {
        ReservationRefusal::Check { key: 0x5, code, field }
    }

    /// INVALID FIELD IN CDB.
    pub(super) fn in_cdb(byte: u16, bit: Option<u8>) -> ReservationRefusal {
        ReservationRefusal::illegal(0x2400, Some(FieldPointer { in_cdb: true, byte, bit }))
    }

    /// INVALID FIELD IN PARAMETER LIST.
    pub(super) fn in_list(byte: usize, bit: Option<u8>) -> ReservationRefusal {
        // A parameter list is at most MAX_PARAMETER_BYTES long.
        let byte = u16::try_from(byte).unwrap_or(u16::MAX);
        ReservationRefusal::illegal(0x2600, Some(FieldPointer { in_cdb: false, byte, bit }))
    }

    /// PARAMETER LIST LENGTH ERROR.
    pub(super) fn length() -> ReservationRefusal {
        ReservationRefusal::illegal(0x1a00, None)
    }
}
