//! Small writes into the page cache by the caller's own thread.

use rustix::io::Errno;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

/// Longest write by the caller's own thread, in bytes. A copy of it into the page cache takes less
/// time than waking another thread (`docs/performance.md`).
pub(super) const INLINE_BYTES: usize = 64 << 10;

/// If a write by the caller's own thread takes longer than this, the kernel held it up. When much
/// memory is dirty, the kernel makes every writer wait. ...
const INLINE_LIMIT: Duration = Duration::from_millis(1);

/// ... Then the backend does the waiting for this long.
const INLINE_PAUSE: Duration = Duration::from_secs(1);

/// Decides which writes the caller's own thread does, and does them.
pub(super) struct InlineWrites {
    /// The caller's own thread writes nothing before this time.
    from: Instant,
}

impl InlineWrites {
    pub(super) fn new() -> InlineWrites {
        InlineWrites { from: Instant::now() }
    }

    /// Whether the caller's own thread may do a write that nothing else holds up.
    pub(super) fn may_write(&self, bytes: usize) -> bool {
        bytes <= INLINE_BYTES && Instant::now() >= self.from
    }

    /// Writes all of the data. Returns the time that it took.
    pub(super) fn write(
        &mut self,
        file: &File,
        data: &[u8],
        offset: u64,
    ) -> Result<Duration, Errno> {
        let begun = Instant::now();
        let mut done = 0;
        while done < data.len() {
            let rest = &[IoSlice::new(&data[done..])];
            match rustix::io::pwritev(file, rest, offset + done as u64) {
                Ok(0) => return Err(Errno::IO),
                Ok(written) => done += written,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        let took = begun.elapsed();
        if took > INLINE_LIMIT {
            self.from = Instant::now() + INLINE_PAUSE;
        }
        Ok(took)
    }

    /// Any time of a write on a loaded machine is fine.
    #[cfg(test)]
    pub(super) fn forget_pause(&mut self) {
        self.from = Instant::now();
    }
}

/// Has the kernel start writing a range to the disk, without waiting for it.
#[allow(unsafe_code)]
pub(super) fn start_writeback(file: &File, offset: u64, bytes: u64) -> Result<(), Errno> {
    let range = (offset.try_into(), bytes.try_into());
    let (Ok(offset), Ok(bytes)) = range else { return Err(Errno::OVERFLOW) };
    // SAFETY: the descriptor is open as long as `file` is borrowed, and the call takes no memory.
    let done = unsafe {
        libc::sync_file_range(file.as_raw_fd(), offset, bytes, libc::SYNC_FILE_RANGE_WRITE)
    };
    if done == 0 {
        return Ok(());
    }
    match Errno::from_io_error(&io::Error::last_os_error()) {
        // A sandbox may not know or may forbid the call. Then the sync does all of the work.
        Some(Errno::NOSYS | Errno::PERM) => Ok(()),
        error => Err(error.unwrap_or(Errno::IO)),
    }
}
