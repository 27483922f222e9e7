//! Which commands a reservation of somebody else stops.
//!
//! Sources: the tables "commands that are allowed in the presence of various reservations" of SPC-5 and
//! SBC-4 for persistent reservations, of SPC-2 and SBC-2 for RESERVE. In the tables of the former every command behaves in one of three ways, in those of
//! the latter in one of two, and four of the six combinations occur.

use super::Refusal;

/// What a command means to a reservation of another nexus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Never conflicts: it tells what the device is, or takes nothing away from the holder.
    Free,
    /// Conflicts with RESERVE only: TEST UNIT READY.
    Ready,
    /// Reads the medium or the device's state: conflicts with Exclusive Access and with RESERVE.
    Read,
    /// Everything else conflicts with every reservation.
    Write,
}

impl Class {
    /// The class of a command. Not for the commands that deal with reservations; one that the tables
    /// do not name is a [`Class::Write`].
    #[must_use]
    pub fn of(cdb: &[u8; 16]) -> Class {
        let action = cdb[1] & 0x1f;
        match cdb[0] {
            // TEST UNIT READY.
            0x00 => Class::Ready,
            // REQUEST SENSE, INQUIRY, READ CAPACITY(10), LOG SENSE, REPORT LUNS.
            0x03 | 0x12 | 0x25 | 0x4d | 0xa0 => Class::Free,
            // START STOP UNIT that starts, with no power condition.
            0x1b if cdb[4] & 0xf1 == 0x01 => Class::Free,
            // PREVENT ALLOW MEDIUM REMOVAL that allows.
            0x1e if cdb[4] & 0x03 == 0 => Class::Free,
            // READ CAPACITY(16), REPORT REFERRALS; GET LBA STATUS(16), GET STREAM STATUS.
            0x9e => match action {
                0x10 | 0x13 => Class::Free,
                0x12 | 0x16 => Class::Read,
                _ => Class::Write,
            },
            // REPORT IDENTIFYING INFORMATION, REPORT TARGET PORT GROUPS, REPORT ALIASES, REPORT
            // PRIORITY, REPORT TIMESTAMP; REPORT SUPPORTED OPERATION CODES, REPORT SUPPORTED TASK
            // MANAGEMENT FUNCTIONS, MANAGEMENT PROTOCOL IN.
            0xa3 => match action {
                0x05 | 0x0a | 0x0b | 0x0e | 0x0f => Class::Free,
                0x0c | 0x0d | 0x10 => Class::Read,
                _ => Class::Write,
            },
            // READ MEDIA SERIAL NUMBER.
            0xab if action == 0x01 => Class::Free,
            // READ(6), (10), (12), (16).
            0x08 | 0x28 | 0xa8 | 0x88 => Class::Read,
            // VERIFY(10), (12), (16), PRE-FETCH(10), (16), READ DEFECT DATA(10), (12).
            0x2f | 0xaf | 0x8f | 0x34 | 0x90 | 0x37 | 0xb7 => Class::Read,
            // MODE SENSE(6), (10), READ BUFFER(10), (16), RECEIVE DIAGNOSTIC RESULTS, READ
            // ATTRIBUTE, SECURITY PROTOCOL IN.
            0x1a | 0x5a | 0x3c | 0x9b | 0x1c | 0x8c | 0xa2 => Class::Read,
            // READ(32), VERIFY(32), GET LBA STATUS(32).
            0x7f => match u16::from_be_bytes([cdb[8], cdb[9]]) {
                0x0009 | 0x000a | 0x0012 => Class::Read,
                _ => Class::Write,
            },
            // RECEIVE COPY RESULTS and its kin; POPULATE TOKEN reads, its siblings write.
            0x84 => Class::Read,
            0x83 if action == 0x10 => Class::Read,
            _ => Class::Write,
        }
    }
}

/// RESERVE and RELEASE, 6 and 10: for the sender and the whole unit, nothing else.
pub(super) fn check_spc2(cdb: &[u8; 16]) -> Result<(), Refusal> {
    // 3RDPTY and its device, LONGID, EXTENT.
    for bit in (0..=4).rev() {
        if cdb[1] & 1 << bit != 0 {
            return Err(Refusal::in_cdb(1, Some(bit)));
        }
    }
    // Lists of extents, long device identifiers.
    let list = if cdb[0] & 0xe0 == 0 { 3 } else { 7 };
    if cdb[usize::from(list)] != 0 || cdb[usize::from(list) + 1] != 0 {
        return Err(Refusal::in_cdb(list, None));
    }
    Ok(())
}
