//! What engines tell, as lines of the log.

use longhaul_core::block::SECTOR_BYTES;
use longhaul_core::store::Event;

/// Logs an event of a volume.
pub fn log(volume: &str, event: &Event) {
    match event {
        Event::Opened { segments, replayed, epoch, committed } => tracing::info!(
            "volume {volume}: opened, {segments} segments ({replayed} replayed), epoch {epoch}, committed {committed}"
        ),
        Event::Failed(error) => tracing::error!("volume {volume}: {error}"),
        Event::CheckpointDamaged { key, reason } => {
            tracing::warn!("volume {volume}: checkpoint {key} is not used: {reason}");
        }
        Event::CheckpointWritten { number, entries } => {
            tracing::debug!("volume {volume}: checkpoint at segment {number}, {entries} entries");
        }
        Event::Attached { epoch, host, unclean } => match unclean {
            None => tracing::info!("volume {volume}: epoch {epoch}, host {host}"),
            Some(before) => tracing::warn!(
                "volume {volume}: epoch {epoch}, host {host}; host {before} had not detached and is fenced"
            ),
        },
        Event::Resized { sectors } => {
            let size = crate::units::show_bytes(sectors * SECTOR_BYTES);
            tracing::info!("volume {volume}: resized, it has {size}");
        }
        Event::LossAccepted { epoch, bytes } => {
            tracing::warn!("volume {volume}: epoch {epoch}, {bytes} undelivered bytes given up");
        }
        Event::Rival { epoch, host, segments } => tracing::error!(
            "volume {volume}: another store wrote {segments} segments (epoch {epoch}, host {host:?}): is it running twice \
             over the same data?"
        ),
        Event::BatchRefused { session, reason } => {
            tracing::warn!("volume {volume}: refused a batch of session {}: {reason}", session.0);
        }
        Event::AnnounceIgnored { session, entries } => tracing::warn!(
            "volume {volume}: ignored {entries} announced ranges of session {} that make no sense",
            session.0
        ),
        Event::DataDamaged { key, range, reason } => tracing::error!(
            "volume {volume}: {range} cannot be read: {reason} in {key}; bring that object back from a copy"
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
