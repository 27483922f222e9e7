//! Sealed frames in memory, within a limit in bytes.

use super::format::PAGE_BYTES;
use bytes::{Buf as _, Bytes, BytesMut};
use std::collections::VecDeque;

/// Buffers begin at multiples of this many bytes, as most disks want it of direct writes. Otherwise
/// the disk has to copy each of them.
const ALIGNMENT: usize = 512;

/// Bytes that a buffer counts for: its whole pages. Less than a page has gone into its alignment.
pub(super) fn charge(data: &BytesMut) -> u64 {
    data.capacity() as u64 / PAGE_BYTES * PAGE_BYTES
}

/// A sealed frame in memory.
#[derive(Debug)]
struct SealedFrame {
    addr: u64,
    data: Bytes,
    charge: u64,
}

impl SealedFrame {
    fn end(&self) -> u64 {
        self.addr + self.data.len() as u64
    }
}

/// The frames in memory, in order of address, and their buffers.
#[derive(Debug)]
pub(super) struct FrameMemory {
    groups: VecDeque<SealedFrame>,
    spare: Option<BytesMut>,
    /// Bytes of all buffers, including that of the open frame.
    bytes: u64,
    max: u64,
}

impl FrameMemory {
    pub(super) fn new(max: u64) -> FrameMemory {
        FrameMemory { groups: VecDeque::new(), spare: None, bytes: 0, max }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn max(&self) -> u64 {
        self.max
    }

    // Buffers.

    /// The spare buffer, if its size fits.
    pub(super) fn take_spare(&mut self, bytes: u64) -> Option<BytesMut> {
        self.spare.take_if(|spare| {
            let capacity = charge(spare);
            capacity >= bytes && capacity <= 2 * bytes
        })
    }

    /// An empty buffer for `bytes` bytes, which are whole pages. It begins at a multiple of
    /// [`ALIGNMENT`].
    pub(super) fn allocate(&mut self, bytes: u64) -> BytesMut {
        let mut data = BytesMut::with_capacity(bytes as usize + ALIGNMENT);
        let skipped = data.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        data.resize(skipped, 0);
        data.advance(skipped);
        self.bytes += charge(&data);
        data
    }

    /// Moves the data of a buffer to one for `bytes` bytes. The caller has reclaimed that many.
    pub(super) fn move_to_longer(&mut self, data: &mut BytesMut, bytes: u64) {
        let mut longer = self.allocate(bytes);
        longer.extend_from_slice(data);
        let shorter = std::mem::replace(data, longer);
        self.bytes -= charge(&shorter);
    }

    /// Frees memory until `bytes` more fit. False if that is not possible. Only frames that end at
    /// `below` or before may go. Also returns the end of the last frame that went, or 0.
    pub(super) fn reclaim(&mut self, bytes: u64, below: u64) -> (bool, u64) {
        let mut evicted = 0;
        while self.bytes + bytes > self.max {
            if let Some(spare) = self.spare.take() {
                self.bytes -= charge(&spare);
            } else if let Some(end) = self.evict_oldest(below) {
                evicted = end;
            } else {
                return (false, evicted);
            }
        }
        (true, evicted)
    }

    /// Drops the oldest frame, if it ends at `below` or before. Returns its end.
    fn evict_oldest(&mut self, below: u64) -> Option<u64> {
        let group = self.groups.pop_front_if(|group| group.end() <= below)?;
        let end = group.end();
        match group.data.try_into_mut() {
            Ok(mut data) if self.spare.is_none() => {
                data.clear();
                self.bytes = self.bytes - group.charge + charge(&data);
                self.spare = Some(data);
            }
            _ => self.bytes -= group.charge,
        }
        Some(end)
    }

    // Frames.

    pub(super) fn push(&mut self, addr: u64, data: Bytes, charge: u64) {
        self.groups.push_back(SealedFrame { addr, data, charge });
    }

    /// Drops the frames that begin at `addr` or before, as far as they end at `below` or before.
    /// Returns the end of the last frame that went, or 0.
    pub(super) fn drop_through(&mut self, addr: u64, below: u64) -> u64 {
        let mut evicted = 0;
        while self.groups.front().is_some_and(|group| group.addr <= addr)
            && let Some(end) = self.evict_oldest(below)
        {
            evicted = end;
        }
        evicted
    }

    /// Drops the frames that end at `addr` or before. Returns the end of the last of them, or 0.
    pub(super) fn drop_below(&mut self, addr: u64) -> u64 {
        let mut evicted = 0;
        while let Some(end) = self.evict_oldest(addr) {
            evicted = end;
        }
        evicted
    }

    /// `bytes` bytes at `addr`.
    pub(super) fn get(&self, addr: u64, bytes: usize) -> Option<Bytes> {
        let index = self.groups.partition_point(|group| group.end() <= addr);
        let group = self.groups.get(index).filter(|group| addr >= group.addr)?;
        let start = (addr - group.addr) as usize;
        (start + bytes <= group.data.len()).then(|| group.data.slice(start..start + bytes))
    }

    #[cfg(test)]
    pub(super) fn rot(&mut self, addr: u64) {
        let index = self.groups.partition_point(|group| group.end() <= addr);
        let group = &mut self.groups[index];
        let mut data = BytesMut::from(&group.data[..]);
        data[(addr - group.addr) as usize] ^= 1;
        group.data = data.freeze();
    }
}
