//! The events of a world, as lines: printed, hashed or dropped.
//!
//! Two runs of one seed must give the same hash. A test for that keeps the world deterministic.

use longhaul_core::block::Time;
use std::fmt::Arguments;

/// The use of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing: the fast way.
    Off,
    /// Hash them.
    Hash,
    /// Print them to standard error, and hash them.
    Print,
}

/// Takes the lines.
#[derive(Debug)]
pub struct Trace {
    mode: Mode,
    hash: u64,
    lines: u64,
}

impl Trace {
    /// A trace without lines yet.
    #[must_use]
    pub fn new(mode: Mode) -> Trace {
        Trace { mode, hash: 0xcbf2_9ce4_8422_2325, lines: 0 }
    }

    /// Whether anybody wants the lines.
    #[must_use]
    pub fn wanted(&self) -> bool {
        self.mode != Mode::Off
    }

    /// Adds a line.
    pub fn line(&mut self, now: Time, line: Arguments<'_>) {
        if self.mode == Mode::Off {
            return;
        }
        let text = format!("{:>13.6} {line}", now.0 as f64 / 1e6);
        for byte in text.bytes() {
            // FNV-1a.
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        self.lines += 1;
        if self.mode == Mode::Print {
            eprintln!("{text}");
        }
    }

    /// The hash of all lines, 0 if they were dropped.
    #[must_use]
    pub fn hash(&self) -> u64 {
        if self.mode == Mode::Off { 0 } else { self.hash }
    }
}

/// Adds a line to the trace of a world; its arguments are not looked at when nobody wants it.
#[macro_export]
macro_rules! note {
    ($world:expr, $($arg:tt)*) => {
        if $world.trace.wanted() {
            let now = $world.now;
            $world.trace.line(now, format_args!($($arg)*));
        }
    };
}
