//! The cost of a host's message, for the limits of the tenant of its volume.
//!
//! An operation is one of these:
//! - a read of any length, also a read-ahead;
//! - a question about the parts of a volume with data;
//! - a write, discard or zeroing in a batch, if the same batch does not overwrite it;
//! - a part of a copy.
//!
//! A read counts its requested bytes, whatever its result. A batch counts its bytes as they travel
//! and as the store keeps them, so compressed. A copy counts its copied bytes. Messages about whole
//! volumes cost nothing, because they are rare.

use crate::block::{MAX_STAGE_SECTORS, Range, SECTOR_BYTES, VolumeId};
use crate::record;
use crate::wire::link::{MAX_READ_SECTORS, ToStore};

/// The part of the limits that a request takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Operations.
    pub operations: u64,
    /// Bytes.
    pub bytes: u64,
}

/// The volume, or snapshot, that a message is about if it costs something.
#[must_use]
pub fn of_volume(message: &ToStore) -> Option<VolumeId> {
    match message {
        ToStore::Read { volume, .. }
        | ToStore::EarlyRead { volume, .. }
        | ToStore::Status { volume, .. }
        | ToStore::Stage { volume, .. }
        | ToStore::Batch { volume, .. } => Some(*volume),
        ToStore::Hello { .. }
        | ToStore::Attach { .. }
        | ToStore::Resume { .. }
        | ToStore::Detach { .. }
        | ToStore::Announce { .. }
        | ToStore::Volume { .. }
        | ToStore::Changed { .. }
        | ToStore::Store { .. }
        | ToStore::Barrier { .. }
        | ToStore::Tenant { .. } => None,
    }
}

/// The cost of a message with this payload, valid or not.
#[must_use]
pub fn cost(message: &ToStore, payload: &[u8]) -> Cost {
    // The store refuses a longer range. A number that the host makes up must not take the tenant's
    // time.
    let of = |range: &Range, most: u64| range.sectors.min(most) * SECTOR_BYTES;
    let (operations, bytes) = match message {
        ToStore::Read { range, .. } | ToStore::EarlyRead { range, .. } => {
            (1, of(range, MAX_READ_SECTORS))
        }
        ToStore::Stage { range, .. } => (1, of(range, MAX_STAGE_SECTORS)),
        ToStore::Status { .. } => (1, 0),
        ToStore::Batch { volume, .. } => (records(*volume, payload), payload.len() as u64),
        _ => (0, 0),
    };
    Cost { operations, bytes }
}

/// The number of records of a batch, at least one. A damaged record ends the count.
fn records(volume: VolumeId, payload: &[u8]) -> u64 {
    let (mut count, mut rest) = (0, payload);
    while let Ok(header) = record::parse_prefix(volume, rest) {
        count += 1;
        rest = rest.get(header.record_bytes()..).unwrap_or_default();
    }
    count.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Kind;
    use bytes::BytesMut;

    #[test]
    fn what_messages_cost() {
        let (request, volume, epoch) = (1, VolumeId(7), 3);
        let read = |sectors| {
            let range = Range::new(8, sectors);
            cost(&ToStore::Read { request, volume, epoch, range }, &[])
        };
        assert_eq!(read(16), Cost { operations: 1, bytes: 8192 });
        assert_eq!(read(u64::MAX), Cost { operations: 1, bytes: 1 << 20 });
        let range = Range::new(0, u64::MAX);
        let status = ToStore::Status { request, volume, epoch, range };
        assert_eq!(cost(&status, &[]), Cost { operations: 1, bytes: 0 });
        let mut batch = BytesMut::new();
        record::encode_data(volume, epoch, 5, Range::new(0, 16), &[1; 8192], &mut batch);
        record::encode_marker(volume, Kind::Discard, epoch, 6, Range::new(0, 1 << 30), &mut batch);
        record::encode_data(volume, epoch, 9, Range::new(3, 1), &[2; 512], &mut batch);
        let message = ToStore::Batch { volume, epoch, first: 5, last: 9 };
        let bytes = batch.len() as u64;
        assert_eq!(cost(&message, &batch), Cost { operations: 3, bytes });
        assert_eq!(cost(&message, &batch[..batch.len() - 1]).operations, 3);
        assert_eq!(cost(&message, &[0; 100]), Cost { operations: 1, bytes: 100 });
        assert_eq!(of_volume(&message), Some(volume));
        let detach = ToStore::Detach { request, volume, epoch };
        assert_eq!((of_volume(&detach), cost(&detach, &[])), (None, Cost::default()));
    }
}
