//! Direct writes, around the page cache: where they are possible, and memory for them.

use bytes::Bytes;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::AsRawFd as _;

/// Memory and places of a frame are multiples of this. A disk that wants more gets buffered writes.
const ALIGNMENT_MAX: usize = 4096;

/// The alignment that a file wants of direct writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct DirectAlignment {
    memory: usize,
    offset: u64,
}

impl DirectAlignment {
    /// That of buffered writes.
    pub(super) const NONE: DirectAlignment = DirectAlignment { memory: 1, offset: 1 };

    /// `None` if the file system does not take direct writes, or does not say so
    /// (`STATX_DIOALIGN`, Linux 6.1).
    pub(super) fn of(file: &File) -> Option<DirectAlignment> {
        let found = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
        if found.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
            return None;
        }
        let (memory, offset) = (found.stx_dio_mem_align, found.stx_dio_offset_align);
        let fits =
            |alignment: u32| alignment.is_power_of_two() && alignment as usize <= ALIGNMENT_MAX;
        (fits(memory) && fits(offset))
            .then_some(DirectAlignment { memory: memory as usize, offset: u64::from(offset) })
    }

    /// Whether a write can be direct.
    pub(super) fn fits(&self, offset: u64, bytes: usize) -> bool {
        (offset | bytes as u64) & (self.offset - 1) == 0
    }

    /// The data in memory that is fit for a direct write. A copy, if it is not yet.
    pub(super) fn align(&self, data: Bytes) -> AlignedBytes {
        let start = data.as_ptr().align_offset(self.memory);
        if start == 0 {
            return AlignedBytes { memory: AlignedMemory::Shared(data), start };
        }
        let mut memory: Vec<u8> = Vec::with_capacity(data.len() + self.memory);
        let start = memory.as_ptr().align_offset(self.memory).min(self.memory);
        memory.resize(start, 0);
        // It has room for this, so it does not move.
        memory.extend_from_slice(&data);
        AlignedBytes { memory: AlignedMemory::Copy(memory), start }
    }
}

/// Bytes for a direct write.
pub(super) struct AlignedBytes {
    memory: AlignedMemory,
    start: usize,
}

enum AlignedMemory {
    Shared(Bytes),
    Copy(Vec<u8>),
}

impl AlignedBytes {
    pub(super) fn as_slice(&self) -> &[u8] {
        match &self.memory {
            AlignedMemory::Shared(data) => data,
            AlignedMemory::Copy(memory) => &memory[self.start..],
        }
    }
}

/// Opens a file once more, for writes and with these flags. It need not have its path any more.
pub(super) fn reopen(file: &File, flags: OFlags) -> Result<File, Errno> {
    if !rustix::fs::fcntl_getfl(file)?.intersects(OFlags::RDWR | OFlags::WRONLY) {
        return Err(Errno::ACCESS);
    }
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | flags;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}
