//! The wall clock.

use std::time::SystemTime;

/// Seconds since 1970, by this machine's clock.
pub fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
