//! What a message of a host costs of the limits of the tenant whose volume it is about.
//!
//! An operation is a read, of whatever length, also one ahead; a question which parts of a volume have data; a write, discard
//! or zeroing in a batch, as far as it was not overwritten in the same batch; a part of a copy. Bytes are those
//! that a read asks for, whatever comes of it; those of a batch as they travel and are stored, so
//! compressed; those that a copy is of. What is said of volumes as a whole costs nothing: it is rare.

use crate::block::{MAX_STAGE_SECTORS, Range, SECTOR_BYTES, VolumeId};
use crate::record;
use crate::wire::link::{MAX_READ_SECTORS, ToStore};

/// What something takes of the limits.
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
        | ToStore::ReadBehind { volume, .. }
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

/// What a message costs that comes with this payload, valid or not.
#[must_use]
pub fn cost(message: &ToStore, payload: &[u8]) -> Cost {
    // What is longer is refused: a number that the host makes up must not take the tenant's time.
    let of = |range: &Range, most: u64| range.sectors.min(most) * SECTOR_BYTES;
    let (operations, bytes) = match message {
        ToStore::Read { range, .. } | ToStore::ReadBehind { range, .. } => {
            (1, of(range, MAX_READ_SECTORS))
        }
        ToStore::Stage { range, .. } => (1, of(range, MAX_STAGE_SECTORS)),
        ToStore::Status { .. } => (1, 0),
        ToStore::Batch { volume, .. } => (records(*volume, payload), payload.len() as u64),
        _ => (0, 0),
    };
    Cost { operations, bytes }
}

/// Records of a batch, one at least. Where it is damaged nobody reads on.
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
