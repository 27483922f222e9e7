//! The attributes of volumes: which exist, and who sets them.

use super::super::stage::audit::RESERVATIONS;
use longhaul_api::schedule;
use longhaul_core::block::Epoch;
use longhaul_core::store::catalog::is_attribute_name;
use longhaul_core::wire::link::{LiveInfo, MAX_ATTRIBUTE_BYTES, VolumeError};

/// The attributes that volumes may have: so their number, and what they take, is bounded.
const ATTRIBUTES: [&str; 5] = [
    longhaul_api::keys::ATTRIBUTE,
    longhaul_api::keys::PROGRESS_ATTRIBUTE,
    longhaul_api::keys::VERSIONS_ATTRIBUTE,
    schedule::ATTRIBUTE,
    RESERVATIONS,
];

/// Those that only the host sets that has the volume.
const OF_HOSTS: [&str; 3] =
    [longhaul_api::keys::PROGRESS_ATTRIBUTE, longhaul_api::keys::VERSIONS_ATTRIBUTE, RESERVATIONS];

pub(in super::super) fn is_kept(attribute: &str) -> Result<(), VolumeError> {
    match ATTRIBUTES.contains(&attribute) {
        true => Ok(()),
        false => Err(VolumeError::Invalid(format!(
            "a volume has no attribute {attribute}; it has {}",
            ATTRIBUTES.join(", ")
        ))),
    }
}

/// Whether only the host sets it that has the volume.
pub(in super::super) fn is_of_host(attribute: &str) -> bool {
    OF_HOSTS.contains(&attribute)
}

/// The volume's epoch is not known here yet.
pub(in super::super) fn not_open() -> VolumeError {
    VolumeError::Store("the volume is not open here yet; try again".to_owned())
}

/// Whether an attribute may have that name and that many bytes.
pub(in super::super) fn is_valid(attribute: &str, bytes: usize) -> Result<(), VolumeError> {
    let invalid = |what: &str| Err(VolumeError::Invalid(what.to_owned()));
    if !is_attribute_name(attribute) {
        return invalid("an attribute's name has at most 32 small letters and dashes");
    }
    if bytes > MAX_ATTRIBUTE_BYTES {
        return invalid("an attribute has at most 192 KiB");
    }
    Ok(())
}

/// Whether an epoch is the last one, as far as this store knows.
pub(in super::super) fn is_current(
    live: Option<LiveInfo>,
    epoch: Epoch,
) -> Result<(), VolumeError> {
    match live {
        Some(live) if live.epoch == epoch => Ok(()),
        Some(live) if live.epoch > epoch => Err(VolumeError::Fenced(live.epoch)),
        // Its host has yet to resume at this store.
        _ => Err(not_open()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hosts_and_commands_set_is_kept() {
        for name in ["keys", "rewrite", "versions", "schedule", "reservations"] {
            is_kept(name).unwrap();
        }
        let refused = is_kept("keyz").unwrap_err().to_string();
        assert!(refused.contains("keyz") && refused.contains("keys, rewrite"), "{refused}");
    }
}
