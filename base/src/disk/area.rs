//! A part of a file or device.

use rustix::fs::Advice;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::time::SystemTime;

/// A part of an open file or block device. Places in it count from its start.
#[derive(Debug)]
pub struct FileArea {
    file: File,
    start: u64,
    bytes: u64,
}

impl FileArea {
    /// All of a file.
    ///
    /// # Errors
    /// If the kernel does not say how long it is.
    pub fn whole(file: File) -> io::Result<FileArea> {
        let bytes = file.metadata()?.len();
        Ok(FileArea { file, start: 0, bytes })
    }

    /// `bytes` bytes of a device from `start` on. Both are multiples of 4096.
    pub fn part(device: File, start: u64, bytes: u64) -> FileArea {
        FileArea { file: device, start, bytes }
    }

    /// The file or device.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Where it starts in the file, in bytes.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Its length.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it is a whole file.
    pub fn is_file(&self) -> bool {
        self.start == 0
    }

    /// The last write to it. Devices do not know that.
    pub fn modified(&self) -> Option<SystemTime> {
        self.file.metadata().and_then(|meta| meta.modified()).ok().filter(|_| self.is_file())
    }

    /// Fills the buffer from that place on.
    ///
    /// # Errors
    /// If a read fails, or it ends before.
    pub fn read_exact_at(&self, data: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(data, self.start + offset)
    }

    /// Writes all of the data at that place.
    ///
    /// # Errors
    /// If a write fails.
    pub fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(data, self.start + offset)
    }

    /// Tells the kernel how it is used.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn advise(&self, advice: Advice) -> rustix::io::Result<()> {
        rustix::fs::fadvise(&self.file, self.start, std::num::NonZeroU64::new(self.bytes), advice)
    }

    pub(super) fn into_parts(self) -> (File, u64) {
        (self.file, self.start)
    }
}
