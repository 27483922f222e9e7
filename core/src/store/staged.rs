//! Staged objects: data that a store has prepared for a write to a volume.
//!
//! A staged object is a sequence of data records and nothing else. Its number is random with the
//! highest bit set. The records are about sectors of the destination volume, so that the map can
//! point at them like at records of a segment. They carry the number of the object where other
//! records carry the number of their write. So a reader notices a read from another object.

use crate::block::{BLOCK_SECTORS, Epoch, Range, SECTOR_BYTES, VolumeId};
use crate::pack::{Packer, Packing};
use crate::record::{self, MAX_RECORD_SECTORS, RecordError};
use crate::store::map::Place;
use crate::wire::link::{ReadPart, StagedRun};
use bytes::Bytes;

/// The content of a future object.
#[derive(Debug)]
pub(super) struct Staged {
    /// Runs in order.
    pub runs: Vec<StagedRun>,
    /// Its content, in pieces; none if no run is data.
    pub data: Vec<Bytes>,
}

/// Encodes data of volume `from` for volume `into`, where it begins at sector `lba`. The function
/// copies no payload.
///
/// # Errors
/// [`RecordError::NoKey`] if the data is encrypted; others if the data does not match its stored
/// checksums. The function verifies these once more after it has computed the new ones. So a
/// checksum covers the data at every moment.
pub(super) fn encode(
    (from, into): (VolumeId, VolumeId),
    epoch: Epoch,
    object: u64,
    lba: u64,
    parts: &[ReadPart],
) -> Result<Staged, RecordError> {
    // Without keys: only the host can copy encrypted data.
    let mut unpacker = Packer::new(from, Packing::default());
    let mut staged = Staged { runs: Vec::new(), data: Vec::new() };
    let (pieces, sectors) = (Vec::new(), 0);
    let mut writer = Writer { into, epoch, object, at: lba, offset: 0, pieces, sectors };
    for part in parts {
        match part {
            ReadPart::Hole(sectors) => {
                writer.flush(&mut staged);
                writer.at += sectors;
                staged.runs.push(StagedRun::Hole(*sectors));
            }
            ReadPart::Zero(sectors) => {
                writer.flush(&mut staged);
                writer.at += sectors;
                staged.runs.push(StagedRun::Zero(*sectors));
            }
            ReadPart::Data { wanted, fragment } => {
                writer.push(fragment.sectors(*wanted), &mut staged);
            }
            ReadPart::Packed { wanted, record } => {
                writer.push(unpacker.unpack(record, *wanted)?, &mut staged);
            }
        }
    }
    writer.flush(&mut staged);
    for part in parts {
        if let ReadPart::Data { fragment, .. } = part {
            fragment.verify()?;
        }
    }
    Ok(staged)
}

/// Collects data until a record is full.
struct Writer {
    into: VolumeId,
    epoch: Epoch,
    object: u64,
    /// The first sector of the record that this collects.
    at: u64,
    offset: u32,
    pieces: Vec<Bytes>,
    sectors: u64,
}

impl Writer {
    fn push(&mut self, mut data: Bytes, staged: &mut Staged) {
        while !data.is_empty() {
            // Cuts where the volume cuts its checksums.
            let full = (self.at + MAX_RECORD_SECTORS) / BLOCK_SECTORS * BLOCK_SECTORS - self.at;
            let take = (full - self.sectors).min(data.len() as u64 / SECTOR_BYTES);
            self.pieces.push(data.split_to((take * SECTOR_BYTES) as usize));
            self.sectors += take;
            if self.sectors == full {
                self.flush(staged);
            }
        }
    }

    fn flush(&mut self, staged: &mut Staged) {
        if self.sectors == 0 {
            return;
        }
        let range = Range::new(self.at, self.sectors);
        let prefix = record::data_prefix(self.into, self.epoch, self.object, range, &self.pieces);
        staged.runs.push(StagedRun::Data { sectors: self.sectors, offset: self.offset });
        // Few megabytes at most: the range of one request.
        self.offset += (prefix.len() as u64 + range.bytes()) as u32;
        staged.data.push(prefix);
        staged.data.append(&mut self.pieces);
        self.at = range.end();
        self.sectors = 0;
    }
}

/// Verifies the record of a staged object of `volume` at `place`. The map entry begins at sector
/// `lba`.
///
/// # Errors
/// The damage of the record.
pub fn check(volume: VolumeId, object: &Bytes, lba: u64, place: Place) -> Result<(), RecordError> {
    let offset = place.offset() as usize;
    if offset > object.len() {
        return Err(RecordError::Short { have: object.len(), need: offset });
    }
    let header = record::verify(volume, &object[offset..])?;
    let expected = (record::Kind::Data, place.record(lba), place.seq());
    if (header.kind, header.range, header.seq) != expected {
        return Err(RecordError::Invalid("another record than the map says"));
    }
    Ok(())
}
