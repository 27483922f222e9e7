//! What kind of command an operation code is, for those who count.

/// Kinds of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// READ of all lengths.
    Read,
    /// WRITE of all lengths, and what writes besides: WRITE AND VERIFY, WRITE SAME, WRITE ATOMIC,
    /// COMPARE AND WRITE, ORWRITE.
    Write,
    /// SYNCHRONIZE CACHE.
    Flush,
    /// UNMAP.
    Discard,
    /// PERSISTENT RESERVE IN and OUT, RESERVE, RELEASE.
    Reservation,
    /// About the unit, or not known here.
    Other,
}

impl Class {
    /// All of them with their names, in the order of their numbers.
    pub const ALL: [(Class, &str); 6] = [
        (Class::Read, "read"),
        (Class::Write, "write"),
        (Class::Flush, "flush"),
        (Class::Discard, "discard"),
        (Class::Reservation, "reservation"),
        (Class::Other, "other"),
    ];

    /// Of the command with this operation code (SBC-4 §5, SPC-5 §6, SPC-2 §7.21).
    #[must_use]
    pub fn of(opcode: u8) -> Class {
        match opcode {
            0x08 | 0x28 | 0x88 | 0xa8 => Class::Read,
            0x0a | 0x2a | 0x2e | 0x41 | 0x89 | 0x8a | 0x8b | 0x8e | 0x93 | 0x9c | 0xaa | 0xae => {
                Class::Write
            }
            0x35 | 0x91 => Class::Flush,
            0x42 => Class::Discard,
            0x16 | 0x17 | 0x5e | 0x5f => Class::Reservation,
            _ => Class::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cdb::COMMANDS;
    use super::*;

    #[test]
    fn classes_are_numbered_in_order() {
        for (number, (class, _)) in Class::ALL.into_iter().enumerate() {
            assert_eq!(class as usize, number);
        }
    }

    /// A class is of commands that there are.
    #[test]
    fn every_classified_command_is_known() {
        for opcode in 0..=255 {
            let known = COMMANDS.iter().any(|entry| entry.opcode == opcode);
            assert!(known || Class::of(opcode) == Class::Other, "{opcode:02x}");
        }
    }
}
