//! Classes of commands, by operation code, for counters.

/// A class of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CommandClass {
    /// READ of all lengths.
    Read,
    /// WRITE of all lengths, and the commands that also write: WRITE AND VERIFY, WRITE SAME, WRITE
    /// ATOMIC, COMPARE AND WRITE, ORWRITE.
    Write,
    /// SYNCHRONIZE CACHE.
    Flush,
    /// UNMAP.
    Discard,
    /// PERSISTENT RESERVE IN and OUT, RESERVE, RELEASE.
    Reservation,
    /// Commands about the unit, and unknown ones.
    Other,
}

impl CommandClass {
    /// All classes with their names, in the order of their numbers.
    pub const ALL: [(CommandClass, &str); 6] = [
        (CommandClass::Read, "read"),
        (CommandClass::Write, "write"),
        (CommandClass::Flush, "flush"),
        (CommandClass::Discard, "discard"),
        (CommandClass::Reservation, "reservation"),
        (CommandClass::Other, "other"),
    ];

    /// The class of an operation code (SBC-4 §5, SPC-5 §6, SPC-2 §7.21).
    #[must_use]
    pub fn of(opcode: u8) -> CommandClass {
        match opcode {
            0x08 | 0x28 | 0x88 | 0xa8 => CommandClass::Read,
            0x0a | 0x2a | 0x2e | 0x41 | 0x89 | 0x8a | 0x8b | 0x8e | 0x93 | 0x9c | 0xaa | 0xae => {
                CommandClass::Write
            }
            0x35 | 0x91 => CommandClass::Flush,
            0x42 => CommandClass::Discard,
            0x16 | 0x17 | 0x5e | 0x5f => CommandClass::Reservation,
            _ => CommandClass::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::command_table::COMMANDS;
    use super::*;

    #[test]
    fn classes_are_numbered_in_order() {
        for (number, (class, _)) in CommandClass::ALL.into_iter().enumerate() {
            assert_eq!(class as usize, number);
        }
    }

    /// Every operation code with a class of its own is in the table.
    #[test]
    fn every_classified_command_is_known() {
        for opcode in 0..=255 {
            let known = COMMANDS.iter().any(|entry| entry.opcode == opcode);
            assert!(known || CommandClass::of(opcode) == CommandClass::Other, "{opcode:02x}");
        }
    }
}
