//! The block device: sectors, ranges, requests and their outcomes.
//!
//! Shared by the protocol sessions (`front`), which produce [`Request`]s, and the host engine
//! (`host`), which answers them. It knows neither protocols nor journals.

use bytes::Bytes;
use std::time::Duration;

/// Bytes in a sector, the smallest unit any request can name.
pub const SECTOR_BYTES: u64 = 512;

/// Sectors in a checksum block. A payload carries one CRC32C for each block of the *volume* that it
/// touches. So a cut of a write at a block boundary never needs a new checksum.
pub const BLOCK_SECTORS: u64 = 8;

/// Bytes in a checksum block.
pub const BLOCK_BYTES: u64 = BLOCK_SECTORS * SECTOR_BYTES;

/// Largest volume, in sectors (4 EiB). Sector arithmetic on a valid range cannot overflow `u64`.
/// The same range in bytes cannot overflow `i64`, which the file interfaces of clients use.
pub const MAX_VOLUME_SECTORS: u64 = 1 << 53;

const _: () = assert!(MAX_VOLUME_SECTORS.checked_mul(SECTOR_BYTES).is_some());

// Sizes travel as `u64` and index buffers as `usize`. longhaul does not support 32-bit hosts.
const _: () = assert!(usize::BITS == 64);

/// A point in time: nanoseconds since an origin the shell chose at start. Only differences mean
/// anything, and only within one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The time `after` this one, saturating at the end of time.
    #[must_use]
    pub fn after(self, after: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long ago `earlier` was, zero if it is in the future.
    #[must_use]
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// The identity of a volume, drawn at random at its creation and never used again.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct VolumeId(pub u128);

impl std::fmt::Display for VolumeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A writing epoch of a volume: one per attach, growing by one. Epoch 0 is the state before the
/// first attach and never writes.
pub type Epoch = u64;

/// The number of a write within its volume: consecutive from 1 across epochs, 0 is "nothing yet".
pub type Seq = u64;

/// A run of sectors of a volume.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct Range {
    /// First sector.
    pub lba: u64,
    /// Number of sectors; may be zero.
    pub sectors: u64,
}

impl Range {
    /// `sectors` sectors from `lba` on.
    #[must_use]
    pub const fn new(lba: u64, sectors: u64) -> Range {
        Range { lba, sectors }
    }

    /// The sectors from `lba` up to, not including, `end`; empty when `end <= lba`.
    #[must_use]
    pub const fn between(lba: u64, end: u64) -> Range {
        Range { lba, sectors: end.saturating_sub(lba) }
    }

    /// The sector after the last; saturates for a range that no volume can hold.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.lba.saturating_add(self.sectors)
    }

    /// Length in bytes; saturates for a range that no volume can hold.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.sectors.saturating_mul(SECTOR_BYTES)
    }

    /// Whether no sector is in it.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.sectors == 0
    }

    /// Whether the range lies within a volume of `volume_sectors`, without overflow.
    #[must_use]
    pub const fn fits(self, volume_sectors: u64) -> bool {
        self.lba <= volume_sectors && self.sectors <= volume_sectors - self.lba
    }

    /// The sectors both hold, if any.
    #[must_use]
    pub fn intersect(self, other: Range) -> Option<Range> {
        let lba = self.lba.max(other.lba);
        let end = self.end().min(other.end());
        (lba < end).then(|| Range::between(lba, end))
    }

    /// The smallest run of whole checksum blocks that holds this range.
    #[must_use]
    pub const fn block_cover(self) -> Range {
        let first = self.lba / BLOCK_SECTORS * BLOCK_SECTORS;
        Range::between(first, self.end().div_ceil(BLOCK_SECTORS) * BLOCK_SECTORS)
    }

    /// How many checksum blocks it touches.
    #[must_use]
    pub const fn blocks(self) -> u64 {
        if self.sectors == 0 { 0 } else { self.block_cover().sectors / BLOCK_SECTORS }
    }
}

impl std::fmt::Display for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "sectors {}+{}", self.lba, self.sectors)
    }
}

/// A request of an initiator to a volume. A session produces only requests whose range fits the
/// volume and whose payload has the range's length; the engine relies on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Read a range of at most [`MAX_TRANSFER_BYTES`].
    Read(Range),
    /// Write `data`, of the range's length and at most [`MAX_TRANSFER_BYTES`].
    Write {
        /// Where.
        range: Range,
        /// What.
        data: Bytes,
        /// Durable before the reply.
        fua: bool,
    },
    /// All writes acknowledged before this request came are durable before its reply.
    Flush,
    /// The range's content is no longer needed and reads as zeroes from now on.
    Discard {
        /// Where; may be as large as the volume.
        range: Range,
        /// Durable before the reply.
        fua: bool,
    },
    /// The range reads as zeroes from now on.
    Zero {
        /// Where; may be as large as the volume.
        range: Range,
        /// Keep the range allocated (`NBD_CMD_FLAG_NO_HOLE`).
        allocate: bool,
        /// Durable before the reply.
        fua: bool,
    },
    /// A client will soon read the range. The reply comes at once, whatever the read-ahead does.
    Prefetch(Range),
    /// The parts of the range that are data, zeroes or holes.
    Status(Range),
    /// From now on notes writes to these ranges, until [`Request::Unwatch`]. A volume keeps
    /// [`MAX_WATCHES`]. If there is one more, the oldest ends as if a client had written to its
    /// ranges.
    Watch(Vec<Range>),
    /// Forgets the watch of that number, if there is one.
    Unwatch(u64),
    /// Has the store stage the range for a write to another volume, or to another place in this
    /// one. The data does not come here. Changes no volume: [`Request::WriteStaged`] does.
    ///
    /// The staged content is that of a moment between request and reply. It has all writes
    /// acknowledged before the request. Waits as long as the store is out of reach.
    Stage {
        /// Of this volume; not empty, at most [`MAX_STAGE_SECTORS`].
        range: Range,
        /// The volume that the later write is for.
        into: VolumeId,
        /// Where in that volume the range's first sector goes.
        lba: u64,
        /// Number of the new object: bit 63 is set, the rest is a random number for this request.
        /// If an object of that number exists, the volume takes others that follow from it.
        object: u64,
        /// Fails with [`BlockError::Changed`] if a client writes to this watch's ranges before the
        /// reply, or has written to them.
        watch: Option<u64>,
    },
    /// Writes staged pieces: those that [`Request::Stage`] returned for this volume, or parts of
    /// them.
    WriteStaged {
        /// In any order; where they overlap, the last counts.
        pieces: Vec<StagedPiece>,
        /// Durable before the reply.
        fua: bool,
    },
}

/// Longest range of one [`Request::Stage`], in sectors (4 MiB).
pub const MAX_STAGE_SECTORS: u64 = 8192;

/// Most watches of one volume.
pub const MAX_WATCHES: usize = 64;

/// The bit that tells the number of a staged object from that of a segment.
pub const STAGED_BIT: u64 = 1 << 63;

/// A staged piece of a copy: see [`Request::Stage`]. A client may cut it: then `range` is a part of
/// what it was, and the rest stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagedPiece {
    /// Sectors of the volume that the later write is for; never empty.
    pub range: Range,
    /// The content for them.
    pub content: Staged,
}

/// The content of a [`StagedPiece`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Staged {
    /// Data.
    Data(StagedData),
    /// Allocated zeroes.
    Zero,
    /// Not allocated, reads as zeroes.
    Hole,
}

/// Where a data record lies in a staged object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagedData {
    /// Number of the object.
    pub object: u64,
    /// Byte of the object at which the record begins.
    pub offset: u32,
    /// The whole record's range, in the volume that the later write is for.
    pub record: Range,
}

/// Largest payload of one read or write, in bytes: what every NBD client may assume a server
/// supports (NBD proto.md, "Block size constraints").
pub const MAX_TRANSFER_BYTES: u64 = 32 << 20;

/// The outcome of a [`Request`] that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The end of a write, flush, discard, zero, prefetch or unwatch.
    Done,
    /// The result of a read: pieces in order that together are exactly the requested range.
    Data(Vec<ReadPiece>),
    /// The result of a status query: runs in order from the start of the range. They may end before
    /// the range does, never beyond, and hold at least one sector.
    Status(Vec<StatusRun>),
    /// The number of a new watch. No other watch gets it while the volume is attached.
    Watching(u64),
    /// The staged pieces, in order. Together they are exactly the range of the later write.
    Staged(Vec<StagedPiece>),
}

/// A part of what a read found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadPiece {
    /// Verified data, a multiple of a sector.
    Data(Bytes),
    /// This many sectors of zeroes.
    Zeroes(u64),
}

impl ReadPiece {
    /// Length in sectors.
    #[must_use]
    pub fn sectors(&self) -> u64 {
        match self {
            ReadPiece::Data(data) => data.len() as u64 / SECTOR_BYTES,
            ReadPiece::Zeroes(sectors) => *sectors,
        }
    }

    /// The part of it that `part`, counted from its start, names; it must lie within.
    #[must_use]
    pub fn cut(&self, part: Range) -> ReadPiece {
        match self {
            ReadPiece::Data(data) => {
                let bytes = |sectors: u64| (sectors * SECTOR_BYTES) as usize;
                ReadPiece::Data(data.slice(bytes(part.lba)..bytes(part.end())))
            }
            ReadPiece::Zeroes(_) => ReadPiece::Zeroes(part.sectors),
        }
    }
}

/// A run of sectors in the same state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct StatusRun {
    /// Length in sectors.
    pub sectors: u64,
    /// State of all of them.
    pub state: BlockState,
}

/// The state of a run of sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum BlockState {
    /// Written data.
    Data,
    /// Allocated, reads as zeroes.
    Zero,
    /// Never written or discarded: not allocated, reads as zeroes.
    Hole,
}

/// Why a request failed. Blips of the link or the store are not among the reasons: those wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The data of this range is damaged: its checksum did not match.
    #[error("medium error at {0}")]
    Medium(Range),
    /// Another host attached the volume with a newer epoch.
    #[error("fenced: another host attached this volume")]
    Fenced,
    /// The journal failed and the volume has to stop then, or the volume cannot promise anything.
    #[error("the volume has stopped after a local disk error")]
    Stopped,
    /// The host is shutting down.
    #[error("shutting down")]
    ShuttingDown,
    /// The store cannot take more data for this volume.
    #[error("no space")]
    NoSpace,
    /// A client has written to a watched range, or the watch is gone.
    #[error("the data has changed")]
    Changed,
    /// The store cannot do this: its version is older, or it does not know the other volume.
    #[error("not supported by the store")]
    Unsupported,
}

/// Bytes for people: `1.5 MiB`.
#[must_use]
pub fn show_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 || value.fract() == 0.0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}
