//! The answer to a read: pieces in the head, checksum tables and blocks, or packed records, in the
//! payload.

use super::ids::RequestId;
use super::{Frame, FrameError, ToHost};
use crate::block::{MAX_VOLUME_SECTORS, Range, VolumeId};
use crate::record::Fragment;
use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};

/// A part of a read's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Piece {
    /// Sectors never written or discarded.
    Hole(u64),
    /// Sectors that were zeroed.
    Zero(u64),
    /// `sectors` sectors that lie in the blocks of `cover`, whose table and data are in the
    /// payload.
    Data {
        /// How many sectors of the answer this is.
        sectors: u64,
        /// The verified blocks around them.
        cover: Range,
    },
    /// `sectors` sectors that lie in the packed record of `bytes` bytes that is in the payload.
    Packed {
        /// How many sectors of the answer this is.
        sectors: u64,
        /// Bytes of the record: as much of the one written as the sectors' blocks.
        bytes: u32,
    },
}

/// A part of a read's answer with its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadPart {
    /// Sectors never written or discarded.
    Hole(u64),
    /// Sectors that were zeroed.
    Zero(u64),
    /// `wanted` out of a fragment that holds it.
    Data {
        /// The sectors of the answer.
        wanted: Range,
        /// The blocks around them.
        fragment: Fragment,
    },
    /// `wanted` out of a packed record that holds it.
    Packed {
        /// The sectors of the answer.
        wanted: Range,
        /// The record, or as much of it as the blocks around them.
        record: Bytes,
    },
}

/// Encodes the answer to a read.
#[must_use]
pub fn encode_data(request: RequestId, volume: VolumeId, parts: &[ReadPart]) -> Frame<ToHost> {
    let bytes = parts.iter().map(|part| match part {
        ReadPart::Data { fragment, .. } => fragment.table.len() + fragment.payload.len(),
        ReadPart::Packed { record, .. } => record.len(),
        ReadPart::Hole(_) | ReadPart::Zero(_) => 0,
    });
    let mut payload = BytesMut::with_capacity(bytes.sum());
    let pieces = parts
        .iter()
        .map(|part| match part {
            ReadPart::Hole(sectors) => Piece::Hole(*sectors),
            ReadPart::Zero(sectors) => Piece::Zero(*sectors),
            ReadPart::Data { wanted, fragment } => {
                payload.extend_from_slice(&fragment.table);
                payload.extend_from_slice(&fragment.payload);
                Piece::Data { sectors: wanted.sectors, cover: fragment.range }
            }
            ReadPart::Packed { wanted, record } => {
                payload.extend_from_slice(record);
                Piece::Packed { sectors: wanted.sectors, bytes: record.len() as u32 }
            }
        })
        .collect();
    Frame {
        message: ToHost::Data { request, volume, result: Ok(pieces) },
        payload: payload.freeze(),
    }
}

/// Takes the answer to a read of `range` apart. Fragments are not verified yet.
///
/// # Errors
/// [`FrameError::Payload`] unless pieces and payload together are exactly the range.
pub fn decode_data(
    range: Range,
    pieces: &[Piece],
    mut payload: Bytes,
) -> Result<Vec<ReadPart>, FrameError> {
    let mut at = range.lba;
    let mut parts = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let sectors = match *piece {
            Piece::Hole(sectors) | Piece::Zero(sectors) => sectors,
            Piece::Data { sectors, .. } | Piece::Packed { sectors, .. } => sectors,
        };
        let wanted = Range::new(at, sectors);
        if sectors == 0 || wanted.intersect(range) != Some(wanted) {
            return Err(FrameError::Payload);
        }
        at = wanted.end();
        parts.push(match *piece {
            Piece::Hole(sectors) => ReadPart::Hole(sectors),
            Piece::Zero(sectors) => ReadPart::Zero(sectors),
            Piece::Packed { bytes, .. } => {
                if bytes as usize > payload.len() {
                    return Err(FrameError::Payload);
                }
                ReadPart::Packed { wanted, record: payload.split_to(bytes as usize) }
            }
            Piece::Data { cover, .. } => {
                if !cover.fits(MAX_VOLUME_SECTORS) {
                    return Err(FrameError::Payload);
                }
                let table = cover.blocks().saturating_mul(4);
                let bytes = table.saturating_add(cover.bytes());
                if cover.intersect(wanted) != Some(wanted) || bytes > payload.len() as u64 {
                    return Err(FrameError::Payload);
                }
                let table = payload.split_to(table as usize);
                let data = payload.split_to(cover.bytes() as usize);
                ReadPart::Data { wanted, fragment: Fragment { range: cover, table, payload: data } }
            }
        });
    }
    if at != range.end() || !payload.is_empty() {
        return Err(FrameError::Payload);
    }
    Ok(parts)
}
