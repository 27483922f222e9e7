//! The state of the log of a volume, besides its map. Applying all segments in order gives this
//! state. So does a root with the segments after it.

use super::announce::Outstanding;
use super::attach::{HistoryEntry, Lineage};
use super::catalog::VolumeSpec;
use super::segment::{self, Segment, SegmentKind};
use super::snapshot::Snapshots;
use crate::block::{Epoch, Seq, VolumeId};
use crate::wire::link::{HostId, KeyId};

/// The state of a volume after some segment.
#[derive(Clone, Debug)]
pub struct LogState {
    /// Which volume.
    pub volume: VolumeId,
    /// Its size in sectors.
    pub sectors: u64,
    /// The last segment applied, 0 for none.
    pub number: u64,
    /// The checksum of its header, 0 for none.
    pub header_crc: u32,
    /// The last segment that void numbers follow, 0 for none.
    pub void_after: u64,
    /// All epochs, the current one last.
    pub history: Vec<HistoryEntry>,
    /// Last committed number.
    pub committed: Seq,
    /// Whether the current epoch ended in order, or none has begun.
    pub clean: bool,
    /// Acknowledged and uncommitted writes.
    pub announced: Outstanding,
    /// Its snapshots, and its clones.
    pub snapshots: Snapshots,
}

impl LogState {
    /// The state before the first segment; keeps at most `announce_max` announced ranges.
    #[must_use]
    pub fn new(spec: &VolumeSpec, announce_max: usize) -> LogState {
        LogState {
            volume: spec.id,
            sectors: spec.created_sectors,
            number: 0,
            header_crc: 0,
            void_after: 0,
            history: Vec::new(),
            committed: 0,
            clean: true,
            announced: Outstanding::new(announce_max),
            snapshots: Snapshots::default(),
        }
    }

    /// The number of the next segment.
    #[must_use]
    pub fn next_number(&self) -> u64 {
        segment::number_after(self.number, self.void_after)
    }

    /// The current epoch, 0 before the first.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.history.last().map_or(0, |entry| entry.epoch)
    }

    /// The host of the current epoch, if the epoch has one.
    #[must_use]
    pub fn host(&self) -> Option<HostId> {
        self.history.last().and_then(|entry| entry.host)
    }

    /// The key that began an epoch; `None` if the log does not know of the epoch.
    #[must_use]
    pub fn key_of(&self, epoch: Epoch) -> Option<KeyId> {
        let entry = self.history.get(usize::try_from(epoch.checked_sub(1)?).ok()?)?;
        Some(entry.key)
    }

    /// The facts that the rules of lineage need.
    #[must_use]
    pub fn lineage(&self) -> Lineage<'_> {
        Lineage {
            volume: self.volume,
            history: &self.history,
            committed: self.committed,
            announced_last: self.announced.last_seq(),
            announced_bytes: self.announced.bytes(),
        }
    }

    /// Whether the segment is the next one of this log.
    ///
    /// # Errors
    /// What contradicts it.
    pub fn follows(&self, segment: &Segment) -> Result<(), &'static str> {
        let header = &segment.header;
        if header.volume != self.volume {
            return Err("it belongs to another volume");
        }
        if header.number != self.next_number() {
            return Err("its number is not the next one");
        }
        if header.void_after != self.void_after {
            return Err("it says of other numbers that they are void");
        }
        if header.previous != self.header_crc {
            return Err("it follows another segment than the one before it");
        }
        if header.first != self.committed.wrapping_add(1) {
            return Err("it does not begin where the log before it ends");
        }
        let epoch = self.epoch().wrapping_add(u64::from(header.kind.begins_epoch()));
        if header.epoch != epoch {
            return Err("its epoch is not the next one");
        }
        let host = (header.host != HostId(0)).then_some(header.host);
        let whose = match header.kind {
            SegmentKind::Attach => host.is_some(),
            SegmentKind::AcceptLoss | SegmentKind::Rollback | SegmentKind::Shrink => host.is_none(),
            _ => host == self.host(),
        };
        if !whose {
            return Err("its host is not the one of its epoch");
        }
        if header.kind == SegmentKind::Resize && header.sectors <= self.sectors {
            return Err("it does not make the volume larger");
        }
        let end = segment.footer.pieces.last().map(|piece| piece.range.end());
        if header.kind == SegmentKind::Shrink && end != Some(self.sectors) {
            return Err("it does not cut off the end of the volume");
        }
        if header.kind == SegmentKind::Rollback
            && let Some(note) = &segment.footer.note
            && self.snapshots.at(note.segment).is_some_and(|taken| taken.sectors > self.sectors)
        {
            return Err("it rolls back to a snapshot that is larger than the volume");
        }
        if segment.footer.pieces.iter().any(|piece| !piece.range.fits(self.sectors)) {
            return Err("it holds writes beyond the end of the volume");
        }
        self.snapshots.follows(segment)
    }

    /// Applies the next segment as read from the log.
    ///
    /// # Errors
    /// As for [`LogState::follows`]; then nothing has changed.
    pub fn apply(&mut self, segment: &Segment) -> Result<(), &'static str> {
        self.follows(segment)?;
        self.commit(segment);
        self.announced.replace(&segment.footer.announced, segment.footer.rounded);
        Ok(())
    }

    /// Applies a segment that this engine built as the next one. Later announcements stay.
    pub fn commit(&mut self, segment: &Segment) {
        let header = &segment.header;
        self.number = header.number;
        self.header_crc = segment.header_crc;
        self.void_after = header.last_void_after();
        self.committed = header.last;
        match header.kind {
            SegmentKind::Resize => self.sectors = header.sectors,
            SegmentKind::Shrink => (self.sectors, self.clean) = (header.sectors, true),
            SegmentKind::Data | SegmentKind::Attach | SegmentKind::Announce => self.clean = false,
            SegmentKind::Detach | SegmentKind::AcceptLoss | SegmentKind::Rollback => {
                self.clean = true;
            }
            SegmentKind::Snapshot
            | SegmentKind::DeleteSnapshot
            | SegmentKind::Clone
            | SegmentKind::Forget => {}
        }
        self.snapshots.commit(segment, self.sectors);
        if header.kind.begins_epoch() {
            self.history.push(HistoryEntry {
                epoch: header.epoch,
                host: (header.host != HostId(0)).then_some(header.host),
                base: segment.footer.base,
                committed: header.last,
                key: segment.footer.key,
            });
            self.announced.replace(&segment.footer.announced, segment.footer.rounded);
        } else {
            self.announced.settle(self.committed);
        }
    }
}
