//! The files that say which program a directory belongs to, so that no other program takes it.

use std::path::Path;

/// The file that makes a directory the state directory of a host.
pub const HOST_FILE: &str = "host.toml";
/// The file that makes a directory the data directory of a store.
pub const STORE_FILE: &str = "longhaul-store.json";

/// Whether a directory is the state directory of a host.
pub fn is_state_dir(path: &Path) -> bool {
    path.join(HOST_FILE).exists()
}

/// Whether a directory is the data directory of a store.
pub fn is_data_dir(path: &Path) -> bool {
    path.join(STORE_FILE).exists()
}
