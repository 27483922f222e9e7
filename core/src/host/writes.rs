//! Writes on their way into the journal, and their division into records.

use crate::block::{BLOCK_SECTORS, Range, SECTOR_BYTES, Staged, StagedData, StagedPiece};
use crate::record::Kind;
use bytes::Bytes;

/// A write in parts, because it may be larger than the memory.
#[derive(Debug)]
pub(super) struct PendingWrite {
    id: u64,
    content: WriteContent,
    fua: bool,
    /// Sectors, or staged pieces, appended so far.
    done: u64,
}

/// The content of a write.
#[derive(Debug)]
pub(super) enum WriteContent {
    Data(Range, Bytes),
    Marker(Kind, Range),
    Staged(Vec<StagedPiece>),
}

/// The part of a write that becomes its next record, or its next packed records. Recovery finds all
/// of them or none.
pub(super) struct WritePart<'a> {
    pub(super) kind: Kind,
    pub(super) range: Range,
    pub(super) data: &'a [u8],
    pub(super) staged: Option<StagedData>,
    /// Sectors, or staged pieces, that it appends.
    pub(super) step: u64,
}

impl PendingWrite {
    /// A client's write.
    pub(super) fn new(id: u64, content: WriteContent, fua: bool) -> PendingWrite {
        PendingWrite { id, content, fua, done: 0 }
    }

    /// A write of this host itself, without a client that waits.
    pub(super) fn own(range: Range, data: Bytes) -> PendingWrite {
        PendingWrite::new(0, WriteContent::Data(range, data), false)
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn fua(&self) -> bool {
        self.fua
    }

    /// Sectors, or staged pieces, that are in the journal.
    pub(super) fn done(&self) -> u64 {
        self.done
    }

    /// A part is in the journal.
    pub(super) fn advance(&mut self, step: u64) {
        self.done += step;
    }

    /// The next record, with data of at most `longest` sectors; `None` after the last.
    pub(super) fn next(&self, longest: u64) -> Option<WritePart<'_>> {
        match &self.content {
            WriteContent::Data(range, data) => {
                let lba = range.lba + self.done;
                // Cut at the boundaries of checksums.
                let end = ((lba + longest) / BLOCK_SECTORS * BLOCK_SECTORS).min(range.end());
                let range = Range::between(lba, end);
                let skip = (self.done * SECTOR_BYTES) as usize;
                let data = data.get(skip..skip + range.bytes() as usize)?;
                let step = range.sectors;
                Some(WritePart { kind: Kind::Data, range, data, staged: None, step })
            }
            WriteContent::Marker(kind, range) => {
                let (kind, step) = (*kind, range.sectors);
                Some(WritePart { kind, range: *range, data: &[], staged: None, step })
                    .filter(|part| self.done < part.step)
            }
            WriteContent::Staged(pieces) => {
                let piece = pieces.get(self.done as usize)?;
                let (kind, staged) = match piece.content {
                    Staged::Data(staged) => (Kind::Staged, Some(staged)),
                    Staged::Zero => (Kind::Zero, None),
                    Staged::Hole => (Kind::Discard, None),
                };
                Some(WritePart { kind, range: piece.range, data: &[], staged, step: 1 })
            }
        }
        .filter(|part| !part.range.is_empty())
    }
}

/// Splits `range` into records of at most `longest` sectors, at the boundaries of checksums.
pub(super) fn records(range: Range, longest: u64) -> impl Iterator<Item = Range> {
    let longest = longest.max(BLOCK_SECTORS);
    let mut at = range.lba;
    std::iter::from_fn(move || {
        let end = at.saturating_add(longest) / BLOCK_SECTORS * BLOCK_SECTORS;
        let part = Range::between(at, end.min(range.end()));
        at = part.end();
        (!part.is_empty()).then_some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{MAX_RECORD_SECTORS, MAX_WHOLE_SECTORS};

    /// A write that has to be atomic is one record.
    #[test]
    fn a_write_of_the_longest_whole_length_is_not_cut() {
        for lba in 0..2 * BLOCK_SECTORS {
            let range = Range::new(lba, MAX_WHOLE_SECTORS);
            let data = Bytes::from(vec![0; range.bytes() as usize]);
            let write = PendingWrite::own(range, data);
            let first = write.next(MAX_RECORD_SECTORS).map(|part| part.range);
            assert_eq!(first, Some(range));
        }
    }
}
