//! What a block device is: sectors, ranges, requests and their outcomes.
//!
//! Shared by the protocol sessions (`front`), which produce [`Request`]s, and the host engine
//! (`host`), which answers them. It knows neither protocols nor journals.

use bytes::Bytes;
use std::time::Duration;

/// Bytes in a sector, the smallest unit any request can name.
pub const SECTOR_BYTES: u64 = 512;

/// Sectors in a checksum block. A payload carries one CRC32C for each block of the *volume* that it
/// touches, so cutting a write at a block boundary never needs a checksum to be computed again.
pub const BLOCK_SECTORS: u64 = 8;

/// Bytes in a checksum block.
pub const BLOCK_BYTES: u64 = BLOCK_SECTORS * SECTOR_BYTES;

/// Largest volume, in sectors (4 EiB): sector arithmetic on any valid range cannot overflow `u64`,
/// nor can the same range in bytes overflow `i64`, which the file interfaces of clients use.
pub const MAX_VOLUME_SECTORS: u64 = 1 << 53;

const _: () = assert!(MAX_VOLUME_SECTORS.checked_mul(SECTOR_BYTES).is_some());

// Sizes travel as `u64` and index buffers as `usize`; a 32-bit host is not supported.
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

/// The identity of a volume, drawn at random when it is created and never used again.
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

/// What an initiator asks of a volume. A session produces only requests whose range fits the volume
/// and whose payload has the range's length; the engine relies on it.
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
    /// Everything acknowledged before this request was received is durable before its reply.
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
    /// The range will soon be read; replied to at once, whatever becomes of it.
    Prefetch(Range),
    /// Which parts of the range are data, zeroes or holes.
    Status(Range),
    /// From now on writes to these ranges are noticed, until [`Request::Unwatch`]. A volume keeps
    /// [`MAX_WATCHES`]; one more, and the oldest is given up as if its ranges had been written.
    Watch(Vec<Range>),
    /// Forgets the watch of that number, if there is one.
    Unwatch(u64),
    /// Has the store make the range ready to be written to another volume, or elsewhere to this one,
    /// without its data coming here. Changes no volume: [`Request::WriteStaged`] does.
    ///
    /// What is made ready is the content at a moment between request and reply, with everything that
    /// was acknowledged before the request. Waits as long as the store cannot be reached.
    Stage {
        /// Of this volume; not empty, at most [`MAX_STAGE_SECTORS`].
        range: Range,
        /// The volume that will be written.
        into: VolumeId,
        /// Where in that volume the range's first sector goes.
        lba: u64,
        /// Number of the object to make: bit 63 is set, the rest drawn at random for this request.
        /// If there is one of that number, others that follow from it are taken.
        object: u64,
        /// Fails with [`BlockError::Changed`] if what this watches is written before the reply, or
        /// has been.
        watch: Option<u64>,
    },
    /// Writes what is staged: what [`Request::Stage`] gave for this volume, or parts of it.
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

/// A piece of a copy that the store has ready: see [`Request::Stage`]. It may be cut: then `range`
/// is a part of what it was, and the rest stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagedPiece {
    /// Sectors of the volume that will be written; never empty.
    pub range: Range,
    /// What they will hold.
    pub content: Staged,
}

/// What a [`StagedPiece`] holds.
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
    /// The whole record's range, in the volume that will be written.
    pub record: Range,
}

/// Largest payload of one read or write, in bytes: what every NBD client may assume a server
/// supports (NBD proto.md, "Block size constraints").
pub const MAX_TRANSFER_BYTES: u64 = 32 << 20;

/// The outcome of a [`Request`] that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A write, flush, discard, zero, prefetch or unwatch is done.
    Done,
    /// What a read found: pieces in order that together are exactly the range asked for.
    Data(Vec<ReadPiece>),
    /// What a status query found: runs in order from the start of the range. They may end before
    /// the range does, never beyond, and hold at least one sector.
    Status(Vec<StatusRun>),
    /// The number of a watch that has begun, not used again while the volume is attached.
    Watching(u64),
    /// What was staged: pieces in order that together are exactly the range where it will be
    /// written.
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
    /// The journal failed and the volume was configured to stop then, or nothing can be promised.
    #[error("the volume has stopped after a local disk error")]
    Stopped,
    /// The host is shutting down.
    #[error("shutting down")]
    ShuttingDown,
    /// The store cannot take more data for this volume.
    #[error("no space")]
    NoSpace,
    /// What was watched has been written, or the watch is gone.
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
