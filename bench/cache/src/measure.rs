//! Processor time, memory, and small statistics.

use anyhow::Result;
use std::alloc::{GlobalAlloc, Layout, System};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// The system's allocator, which counts.
struct Counting;

static ALLOCATED: AtomicU64 = AtomicU64::new(0);

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: all of it is the system allocator's work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: as our caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: as our caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Bytes allocated now.
pub fn allocated() -> i64 {
    ALLOCATED.load(Ordering::Relaxed) as i64
}

/// Processor time of the process, all threads.
pub struct Cpu(f64);

impl Cpu {
    pub fn now() -> Cpu {
        // SAFETY: an all-zero rusage is valid, and the call fills it.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_SELF, &mut usage);
            usage
        };
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        Cpu(seconds(usage.ru_utime) + seconds(usage.ru_stime))
    }

    /// Seconds since then.
    pub fn since(&self) -> f64 {
        Cpu::now().0 - self.0
    }
}

/// Has the page cache forget a file.
pub fn drop_pages(path: &Path) -> Result<()> {
    let file = std::fs::File::open(path)?;
    file.sync_all()?;
    // SAFETY: the descriptor is open, and the call takes no memory.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    Ok(())
}

pub fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * share) as usize]
}

pub fn median(mut values: Vec<f64>) -> f64 {
    percentile(&mut values, 0.5)
}
