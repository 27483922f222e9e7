//! The commands that a reservation of another nexus stops.
//!
//! The sources are the tables "commands that are allowed in the presence of various reservations".
//! SPC-5 and SBC-4 have them for persistent reservations, SPC-2 and SBC-2 for RESERVE. The former
//! have three kinds of commands, the latter two. Four of the six combinations occur.

use super::refusal::ReservationRefusal;

/// How a command conflicts with a reservation of another nexus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConflictClass {
    /// The command never conflicts: it reports the identity of the device, or takes nothing away
    /// from the holder.
    Free,
    /// The command conflicts only with RESERVE: TEST UNIT READY.
    Ready,
    /// The command reads the medium or the state of the device. It conflicts with Exclusive Access
    /// and with RESERVE.
    Read,
    /// The command conflicts with every reservation.
    Write,
}

impl ConflictClass {
    /// The class of a command, except for reservation commands. Commands that the tables do not
    /// name are [`ConflictClass::Write`].
    #[must_use]
    pub fn of(cdb: &[u8; 16]) -> ConflictClass {
        let action = cdb[1] & 0x1f;
        match cdb[0] {
            // TEST UNIT READY.
            0x00 => ConflictClass::Ready,
            // REQUEST SENSE, INQUIRY, READ CAPACITY(10), LOG SENSE, REPORT LUNS.
            0x03 | 0x12 | 0x25 | 0x4d | 0xa0 => ConflictClass::Free,
            // START STOP UNIT that starts, with no power condition.
            0x1b if cdb[4] & 0xf1 == 0x01 => ConflictClass::Free,
            // PREVENT ALLOW MEDIUM REMOVAL that allows.
            0x1e if cdb[4] & 0x03 == 0 => ConflictClass::Free,
            // READ CAPACITY(16), REPORT REFERRALS; GET LBA STATUS(16), GET STREAM STATUS.
            0x9e => match action {
                0x10 | 0x13 => ConflictClass::Free,
                0x12 | 0x16 => ConflictClass::Read,
                _ => ConflictClass::Write,
            },
            // REPORT IDENTIFYING INFORMATION, REPORT TARGET PORT GROUPS, REPORT ALIASES, REPORT
            // PRIORITY, REPORT TIMESTAMP; REPORT SUPPORTED OPERATION CODES, REPORT SUPPORTED TASK
            // MANAGEMENT FUNCTIONS, MANAGEMENT PROTOCOL IN.
            0xa3 => match action {
                0x05 | 0x0a | 0x0b | 0x0e | 0x0f => ConflictClass::Free,
                0x0c | 0x0d | 0x10 => ConflictClass::Read,
                _ => ConflictClass::Write,
            },
            // READ MEDIA SERIAL NUMBER.
            0xab if action == 0x01 => ConflictClass::Free,
            // READ(6), (10), (12), (16).
            0x08 | 0x28 | 0xa8 | 0x88 => ConflictClass::Read,
            // VERIFY(10), (12), (16), PRE-FETCH(10), (16), READ DEFECT DATA(10), (12).
            0x2f | 0xaf | 0x8f | 0x34 | 0x90 | 0x37 | 0xb7 => ConflictClass::Read,
            // MODE SENSE(6), (10), READ BUFFER(10), (16), RECEIVE DIAGNOSTIC RESULTS, READ
            // ATTRIBUTE, SECURITY PROTOCOL IN.
            0x1a | 0x5a | 0x3c | 0x9b | 0x1c | 0x8c | 0xa2 => ConflictClass::Read,
            // READ(32), VERIFY(32), GET LBA STATUS(32).
            0x7f => match u16::from_be_bytes([cdb[8], cdb[9]]) {
                0x0009 | 0x000a | 0x0012 => ConflictClass::Read,
                _ => ConflictClass::Write,
            },
            // RECEIVE COPY RESULTS and its variants. POPULATE TOKEN reads; the other copy commands
            // write.
            0x84 => ConflictClass::Read,
            0x83 if action == 0x10 => ConflictClass::Read,
            _ => ConflictClass::Write,
        }
    }
}

/// Checks RESERVE and RELEASE, 6 and 10. They must be for the sender and the whole unit.
pub(super) fn check_spc2(cdb: &[u8; 16]) -> Result<(), ReservationRefusal> {
    // 3RDPTY and its device, LONGID, EXTENT.
    for bit in (0..=4).rev() {
        if cdb[1] & 1 << bit != 0 {
            return Err(ReservationRefusal::in_cdb(1, Some(bit)));
        }
    }
    // Lists of extents, long device identifiers.
    let list = if cdb[0] & 0xe0 == 0 { 3 } else { 7 };
    if cdb[usize::from(list)] != 0 || cdb[usize::from(list) + 1] != 0 {
        return Err(ReservationRefusal::in_cdb(list, None));
    }
    Ok(())
}
