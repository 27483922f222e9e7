//! The bytes of the journal: geometry, file header, frame header. `docs/formats.md` draws them.

use crate::block::{Epoch, Seq, VolumeId};
use crate::record::MAX_RECORD_SECTORS;
use bytes::Bytes;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of file headers and frames. A reader that does not know the version must not take a
/// frame for the end of the journal.
pub const JOURNAL_VERSION: u16 = 1;
/// Frames start at multiples of this, and the file header takes one of it.
pub const PAGE_BYTES: u64 = 4096;
/// Bytes of a frame before its first record.
pub const FRAME_HEADER_BYTES: usize = 128;
/// Longest frame, in bytes, with header and padding.
pub const MAX_FRAME_BYTES: u64 = 4 << 20;
/// Smallest journal file, in bytes.
pub const MIN_FILE_BYTES: u64 = 64 << 10;
/// Largest journal, in bytes over all files. The engine's index of frames has room for it.
pub const MAX_JOURNAL_BYTES: u64 = 1 << 40;
/// Most journal files.
pub const MAX_FILES: u32 = 4096;

const FILE_MAGIC: u64 = u64::from_le_bytes(*b"LHJOURNL");
const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"LHJF");

const _: () = assert!(size_of::<RawFile>() == 64);
const _: () = assert!(size_of::<RawFrame>() == FRAME_HEADER_BYTES);

/// Shape of a journal: a ring of preallocated files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes in each file, header included: a multiple of 4 KiB, at least [`MIN_FILE_BYTES`].
    pub file_bytes: u64,
    /// Number of files, from 2 to [`MAX_FILES`].
    pub files: u32,
}

impl Default for Geometry {
    /// 1 GiB in 16 files.
    fn default() -> Self {
        Geometry { file_bytes: 64 << 20, files: 16 }
    }
}

impl Geometry {
    /// The geometry of the default file size whose files together are `bytes` or a little less.
    ///
    /// # Errors
    /// If that is too small or too large for a journal.
    pub fn for_size(bytes: u64) -> Result<Geometry, JournalError> {
        // At least eight files, so that recycling one at a time leaves most of the ring in use.
        let file_bytes = (bytes / 8 / PAGE_BYTES * PAGE_BYTES).min(64 << 20);
        let files = bytes.checked_div(file_bytes).unwrap_or(0);
        let geometry = Geometry { file_bytes, files: u32::try_from(files).unwrap_or(u32::MAX) };
        geometry.check()?;
        Ok(geometry)
    }

    /// Checks that the engine can work with the geometry.
    ///
    /// # Errors
    /// [`JournalError::Geometry`] says what is wrong.
    pub fn check(self) -> Result<(), JournalError> {
        let wrong = if !self.file_bytes.is_multiple_of(PAGE_BYTES) {
            "the file size is not a multiple of 4 KiB"
        } else if self.file_bytes < MIN_FILE_BYTES {
            "a file is smaller than 64 KiB"
        } else if self.files < 2 {
            "there are fewer than 2 files"
        } else if self.files > MAX_FILES {
            "there are more than 4096 files"
        } else if self.file_bytes.saturating_mul(self.files.into()) > MAX_JOURNAL_BYTES {
            "the files together are larger than 1 TiB"
        } else {
            return Ok(());
        };
        Err(JournalError::Geometry { geometry: self, wrong })
    }

    /// Bytes of a file for frames.
    #[must_use]
    pub const fn area(self) -> u64 {
        self.file_bytes - PAGE_BYTES
    }

    /// Bytes of all files for frames. An address and the address this much later are the same
    /// place.
    #[must_use]
    pub const fn ring(self) -> u64 {
        self.area() * self.files as u64
    }

    /// The file that holds an address.
    #[must_use]
    pub const fn file(self, addr: u64) -> u32 {
        (addr / self.area() % self.files as u64) as u32
    }

    /// The place of an address in its file.
    #[must_use]
    pub const fn offset(self, addr: u64) -> u64 {
        PAGE_BYTES + addr % self.area()
    }

    /// The first address after the file that holds `addr`.
    #[must_use]
    pub const fn file_end(self, addr: u64) -> u64 {
        (addr / self.area() + 1) * self.area()
    }

    /// Longest frame, so that a file holds at least two.
    pub(crate) fn frame_max(self) -> u64 {
        (self.area() / 2 / PAGE_BYTES * PAGE_BYTES).min(MAX_FRAME_BYTES)
    }
}

/// Longest data record, in sectors, so that a frame of `frame_max` bytes holds at least one
/// together with its headers.
pub(crate) fn record_sectors_max(frame_max: u64) -> u64 {
    (frame_max / 2 / 512 / 8 * 8).clamp(8, MAX_RECORD_SECTORS)
}

/// Why journal files are unusable, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// No journal can have this shape.
    #[error(
        "a journal of {} files of {} bytes is not possible: {wrong}; choose another journal size",
        geometry.files, geometry.file_bytes
    )]
    Geometry {
        /// The shape.
        geometry: Geometry,
        /// Why not.
        wrong: &'static str,
    },
    /// A file does not start with a journal file header.
    #[error(
        "journal file {file} has no valid header ({problem}): restore the file from where the \
         journal was copied, or move the journal's directory away to attach without it (writes \
         that only it holds are then lost)"
    )]
    FileHeader {
        /// Number of the file.
        file: u32,
        /// What is wrong.
        problem: &'static str,
    },
    /// A later version wrote it.
    #[error(
        "journal file {file}, offset {offset}, has format version {version}, which this version of \
         longhaul does not know: use a newer one"
    )]
    Version {
        /// Number of the file.
        file: u32,
        /// In bytes from its start.
        offset: u64,
        /// The version found.
        version: u16,
    },
    /// A file belongs to another journal than the first.
    #[error(
        "journal file {file} belongs to another journal ({found:032x} instead of {expected:032x}): \
         the directory holds a mixture of journals; bring back the files that belong together"
    )]
    Mixed {
        /// Number of the file.
        file: u32,
        /// The journal of file 0.
        expected: u128,
        /// The journal of this file.
        found: u128,
    },
    /// The journal belongs to another volume.
    #[error(
        "the journal belongs to volume {found}, not to {expected}: move its directory to where \
         that volume is attached"
    )]
    WrongVolume {
        /// The volume wanted.
        expected: VolumeId,
        /// The volume it belongs to.
        found: VolumeId,
    },
    /// Files are missing or there are too many.
    #[error(
        "the journal has {found} files, its headers say {expected}: bring back the missing ones"
    )]
    FileCount {
        /// As the headers say.
        expected: u32,
        /// As found.
        found: u32,
    },
    /// A file is not as long as its header says.
    #[error(
        "journal file {file} is {found} bytes long, its header says {expected}: it was cut short; \
         restore it from where the journal was copied"
    )]
    Truncated {
        /// Number of the file.
        file: u32,
        /// As the header says.
        expected: u64,
        /// As found.
        found: u64,
    },
    /// Data from stable storage does not come back intact.
    #[error(
        "journal file {file}, offset {offset}: {problem}, although it was on stable storage; the \
         disk has lost flushed data. Restore the file if there is a copy; otherwise move the \
         journal's directory away and attach without it (the store then says what is lost)"
    )]
    Damaged {
        /// Number of the file.
        file: u32,
        /// In bytes from its start.
        offset: u64,
        /// The damage.
        problem: String,
    },
    /// A read failed.
    #[error("journal file {file}, offset {offset} cannot be read: {error}; check the disk")]
    Read {
        /// Number of the file.
        file: u32,
        /// In bytes from its start.
        offset: u64,
        /// The error of the operating system.
        error: String,
    },
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawFile {
    magic: U64,
    version: U16,
    reserved: U16,
    file: U32,
    journal: U128,
    volume: U128,
    file_bytes: U64,
    files: U32,
    crc: U32,
}

/// The content of the first page of a journal file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHeader {
    /// The journal's identity, drawn at random at its creation.
    pub journal: u128,
    /// The volume it belongs to.
    pub volume: VolumeId,
    /// Number of this file.
    pub file: u32,
    /// Shape of the whole.
    pub geometry: Geometry,
}

impl FileHeader {
    /// Encodes the file's first page.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut raw = RawFile {
            magic: FILE_MAGIC.into(),
            version: JOURNAL_VERSION.into(),
            reserved: 0.into(),
            file: self.file.into(),
            journal: self.journal.into(),
            volume: self.volume.0.into(),
            file_bytes: self.geometry.file_bytes.into(),
            files: self.geometry.files.into(),
            crc: 0.into(),
        };
        let crc = crc32c::crc32c(&raw.as_bytes()[..size_of::<RawFile>() - 4]);
        raw.crc = crc.into();
        let mut page = vec![0; PAGE_BYTES as usize];
        page[..size_of::<RawFile>()].copy_from_slice(raw.as_bytes());
        page.into()
    }

    /// Parses the page.
    ///
    /// # Errors
    /// [`JournalError::FileHeader`], [`JournalError::Version`] or [`JournalError::Geometry`];
    /// `file` is the number the file should have.
    pub fn parse(file: u32, page: &[u8]) -> Result<FileHeader, JournalError> {
        let bad = |problem| JournalError::FileHeader { file, problem };
        let Ok((raw, _)) = RawFile::ref_from_prefix(page) else { return Err(bad("too short")) };
        if raw.magic.get() != FILE_MAGIC {
            return Err(bad("not a journal file"));
        }
        if raw.version.get() != JOURNAL_VERSION {
            return Err(JournalError::Version { file, offset: 0, version: raw.version.get() });
        }
        if crc32c::crc32c(&raw.as_bytes()[..size_of::<RawFile>() - 4]) != raw.crc.get() {
            return Err(bad("checksum mismatch"));
        }
        if raw.file.get() != file {
            return Err(bad("it is another file of the journal"));
        }
        let geometry = Geometry { file_bytes: raw.file_bytes.get(), files: raw.files.get() };
        geometry.check()?;
        Ok(FileHeader {
            journal: raw.journal.get(),
            volume: VolumeId(raw.volume.get()),
            file,
            geometry,
        })
    }
}

/// A plan for the creation of a journal: for each file its number and its first page. The shell
/// makes each file `geometry.file_bytes` long, with space and either zeroed or new. It writes the
/// page at offset 0. It syncs files and directory before the first attach.
///
/// `journal` must be random and never used before. It distinguishes this journal's frames from
/// those of an older journal on the same disk blocks.
///
/// # Errors
/// [`JournalError::Geometry`].
pub fn create_plan(
    geometry: Geometry,
    journal: u128,
    volume: VolumeId,
) -> Result<Vec<(u32, Bytes)>, JournalError> {
    geometry.check()?;
    let header = |file| FileHeader { journal, volume, file, geometry };
    Ok((0..geometry.files).map(|file| (file, header(file).encode())).collect())
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawFrame {
    magic: U32,
    version: U16,
    reserved: U16,
    journal: U128,
    incarnation: U32,
    body_bytes: U32,
    addr: U64,
    number: U64,
    epoch: U64,
    first_seq: U64,
    last_seq: U64,
    tail_addr: U64,
    tail_number: U64,
    synced_addr: U64,
    tail_prev_crc: U32,
    prev_crc: U32,
    tail_before: U64,
    reserved2: [u8; 12],
    crc: U32,
}

/// The content of the header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The journal it belongs to.
    pub journal: u128,
    /// Grows with each opening of the journal for writes.
    pub incarnation: u32,
    /// Bytes of records after the header.
    pub body_bytes: u32,
    /// Its own address.
    pub addr: u64,
    /// Frames have consecutive numbers.
    pub number: u64,
    /// The epoch that wrote it.
    pub epoch: Epoch,
    /// First number in it; `last_seq + 1` in an empty frame.
    pub first_seq: Seq,
    /// Last number in it or before it.
    pub last_seq: Seq,
    /// The oldest frame that recovery needs: the store has committed all older ones.
    pub tail: FrameRef,
    /// When the frame was sealed, everything below this address was on stable storage.
    pub synced_addr: u64,
    /// Header checksum of the frame before.
    pub prev_crc: u32,
}

/// Names a frame so that no other frame that ever lay at its address can pass for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameRef {
    /// Its address.
    pub addr: u64,
    /// Its number.
    pub number: u64,
    /// Header checksum of the frame before it.
    pub prev_crc: u32,
    /// The last write before it.
    pub before: Seq,
}

/// A frame header of another version. Magic number, version, journal and checksum are in the same
/// place in every version. The rest of its layout is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherVersion {
    /// The version found.
    pub version: u16,
    /// The journal it says it belongs to.
    pub journal: u128,
}

impl FrameHeader {
    /// Bytes of its file that a frame with this much in it takes.
    #[must_use]
    pub const fn frame_bytes_for(body_bytes: u64) -> u64 {
        (FRAME_HEADER_BYTES as u64 + body_bytes).div_ceil(PAGE_BYTES) * PAGE_BYTES
    }

    /// Bytes of its file that this frame takes.
    #[must_use]
    pub const fn frame_bytes(&self) -> u64 {
        Self::frame_bytes_for(self.body_bytes as u64)
    }

    /// Writes the header to the first [`FRAME_HEADER_BYTES`] of `frame`. Returns its checksum.
    ///
    /// # Panics
    /// If `frame` is shorter than a header.
    pub fn encode_to(&self, frame: &mut [u8]) -> u32 {
        let mut raw = RawFrame {
            magic: FRAME_MAGIC.into(),
            version: JOURNAL_VERSION.into(),
            reserved: 0.into(),
            journal: self.journal.into(),
            incarnation: self.incarnation.into(),
            body_bytes: self.body_bytes.into(),
            addr: self.addr.into(),
            number: self.number.into(),
            epoch: self.epoch.into(),
            first_seq: self.first_seq.into(),
            last_seq: self.last_seq.into(),
            tail_addr: self.tail.addr.into(),
            tail_number: self.tail.number.into(),
            synced_addr: self.synced_addr.into(),
            tail_prev_crc: self.tail.prev_crc.into(),
            prev_crc: self.prev_crc.into(),
            tail_before: self.tail.before.into(),
            reserved2: [0; 12],
            crc: 0.into(),
        };
        let crc = crc32c::crc32c(&raw.as_bytes()[..FRAME_HEADER_BYTES - 4]);
        raw.crc = crc.into();
        frame[..FRAME_HEADER_BYTES].copy_from_slice(raw.as_bytes());
        crc
    }

    /// The header at the start of `bytes` with its checksum. `None` if no header of a known version
    /// is there, or its values are impossible.
    ///
    /// # Errors
    /// A header of another version. A client of the volume chooses most of the bytes in the files.
    /// So such a header means nothing unless it names the journal at hand.
    pub fn parse(bytes: &[u8]) -> Result<Option<(FrameHeader, u32)>, OtherVersion> {
        let Ok((raw, _)) = RawFrame::ref_from_prefix(bytes) else { return Ok(None) };
        if raw.magic.get() != FRAME_MAGIC
            || crc32c::crc32c(&raw.as_bytes()[..FRAME_HEADER_BYTES - 4]) != raw.crc.get()
        {
            return Ok(None);
        }
        if raw.version.get() != JOURNAL_VERSION {
            return Err(OtherVersion { version: raw.version.get(), journal: raw.journal.get() });
        }
        let header = FrameHeader {
            journal: raw.journal.get(),
            incarnation: raw.incarnation.get(),
            body_bytes: raw.body_bytes.get(),
            addr: raw.addr.get(),
            number: raw.number.get(),
            epoch: raw.epoch.get(),
            first_seq: raw.first_seq.get(),
            last_seq: raw.last_seq.get(),
            tail: FrameRef {
                addr: raw.tail_addr.get(),
                number: raw.tail_number.get(),
                prev_crc: raw.tail_prev_crc.get(),
                before: raw.tail_before.get(),
            },
            synced_addr: raw.synced_addr.get(),
            prev_crc: raw.prev_crc.get(),
        };
        let sound = header.frame_bytes() <= MAX_FRAME_BYTES
            && header.addr.is_multiple_of(PAGE_BYTES)
            && header.tail.addr <= header.addr
            && header.synced_addr <= header.addr
            && header.first_seq <= header.last_seq.saturating_add(1);
        Ok(sound.then_some((header, raw.crc.get())))
    }
}
