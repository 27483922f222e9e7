//! The text of the engines' events.

use longhaul_base::units::show_bytes;
use longhaul_core::block::SECTOR_BYTES;
use longhaul_core::store::Event;

/// Logs what happened to a volume.
pub fn log(volume: &str, event: &Event) {
    match event {
        Event::Opened { segments, replayed, epoch, committed } => tracing::info!(
            "volume {volume}: opened, {segments} segments ({replayed} replayed), epoch {epoch}, \
             committed {committed}"
        ),
        Event::Failed(error) => tracing::error!("volume {volume}: {error}"),
        Event::RootDamaged { key, reason } => {
            tracing::warn!("volume {volume}: {key} is not used: {reason}");
        }
        Event::Claimed { generation } => {
            tracing::debug!("volume {volume}: has the map's generation {generation}");
        }
        Event::Superseded { generation } => tracing::warn!(
            "volume {volume}: another store looks after the map since (generation {generation})"
        ),
        Event::Adopted { generation, through, .. } => tracing::debug!(
            "volume {volume}: map goes on from the root of segment {through}, generation \
             {generation}"
        ),
        Event::Flushed { through, fragments, bytes } => tracing::debug!(
            "volume {volume}: map up to segment {through} flushed, {fragments} fragments, {bytes} \
             bytes"
        ),
        Event::Merged { bytes } => tracing::debug!("volume {volume}: map merged, {bytes} bytes"),
        Event::Deleted { objects } => {
            tracing::debug!(
                "volume {volume}: {objects} objects of the map are not needed any more"
            );
        }
        Event::Compacted => tracing::debug!("volume {volume}: map merged into one level"),
        Event::Counted { stored_bytes, named_bytes } => tracing::debug!(
            "volume {volume}: {named_bytes} bytes of {stored_bytes} in segments and bundles are \
             needed"
        ),
        Event::Moved { segments, bytes } => tracing::debug!(
            "volume {volume}: the rest of {segments} segments is in a bundle of {bytes} bytes"
        ),
        Event::Reclaimed { objects, bytes } => tracing::debug!(
            "volume {volume}: {objects} segments and bundles ({bytes} bytes) are not needed any \
             more"
        ),
        Event::NotCollected { key, reason } => {
            tracing::warn!("volume {volume}: the space of {key} cannot be given back: {reason}")
        }
        Event::LeftBehind { segment } => tracing::warn!(
            "volume {volume}: other stores have written far beyond segment {segment}; opening the \
             volume anew"
        ),
        Event::Attached { epoch, host, unclean, .. } => match unclean {
            None => tracing::info!("volume {volume}: epoch {epoch}, host {host}"),
            Some(before) => tracing::warn!(
                "volume {volume}: epoch {epoch}, host {host}; host {before} had not detached and \
                 is fenced"
            ),
        },
        Event::OtherKey { session, action, epoch, key, .. } => tracing::warn!(
            "volume {volume}: refused {action} of session {}: epoch {epoch} belongs to key {key}",
            session.0
        ),
        Event::Resized { sectors } => {
            let size = show_bytes(sectors * SECTOR_BYTES);
            tracing::info!("volume {volume}: resized, it has {size}");
        }
        Event::LossAccepted { epoch, bytes } => {
            tracing::warn!("volume {volume}: epoch {epoch}, {bytes} undelivered bytes given up");
        }
        Event::RolledBack { epoch, segment, bytes } => tracing::warn!(
            "volume {volume}: epoch {epoch}, rolled back to the snapshot of segment {segment}; \
             {bytes} undelivered bytes given up"
        ),
        Event::Rival { epoch, host, segments } => tracing::error!(
            "volume {volume}: another store wrote {segments} segments (epoch {epoch}, host \
             {host:?}): is it running twice over the same data?"
        ),
        Event::BatchRefused { session, reason } => {
            tracing::warn!("volume {volume}: refused a batch of session {}: {reason}", session.0);
        }
        Event::AnnounceIgnored { session, entries } => tracing::warn!(
            "volume {volume}: ignored {entries} announced ranges of session {} that make no sense",
            session.0
        ),
        Event::DataDamaged { key, range, reason } => tracing::error!(
            "volume {volume}: {range} cannot be read: {reason} in {key}; without a replica that \
             has the object, restore it from a copy"
        ),
        Event::Unreadable { key } => {
            tracing::error!("volume {volume}: {key} has to exist, and is unreadable or missing")
        }
        Event::DamageTold { session, ranges, bytes } => tracing::warn!(
            "volume {volume}: reported {1} in {ranges} damaged ranges to the host of session {0}, \
             which may have the data",
            session.0,
            show_bytes(*bytes)
        ),
        Event::Retry { key, error, failures } => {
            // Said once a doubling: it may go on for days.
            if failures.is_power_of_two() {
                tracing::error!(
                    "volume {volume}: {key}: {error} (failed {failures} times, trying on)"
                );
            }
        }
    }
}
