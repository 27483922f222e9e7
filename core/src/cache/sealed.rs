//! Caches of encrypted volumes: no plain text on the disk, and nothing from it that is not the
//! newest version.
//!
//! A block goes to the disk encrypted, and is authenticated together with the file, its place, its
//! stamp and its *version*: the marks that the volume's table of versions has for its sectors. When
//! it is read, it opens only with the marks that the table has by then. So whatever the store says
//! about what was written since, and whatever became of the file, an older version of a block is a
//! miss. A block whose version is not known is neither taken nor given out.
//!
//! Zeroes are kept as data, since the index, which has no key, could not be believed about them.

use super::format::{context, is_block, seal_of};
use super::version::{Version, VersionOf};
use super::{Cache, Slot};
use crate::block::{BLOCK_BYTES, Range};
use crate::pack::{Keys, SEAL_BYTES, Seal, Sealer, UNSEALED};

/// What a record in the file turned out to be.
pub(super) enum Opened {
    /// The block, in plain text in the record.
    Plain,
    /// The block.
    Block(Vec<u8>),
    /// Perhaps the block: its version is not known.
    Unknown,
    /// A block, of another version or of another key.
    Outdated,
    /// Not what was written there.
    Damaged,
}

impl Cache {
    /// Blocks are encrypted with this from now on, or not encrypted. What is there of the other
    /// kind is dropped.
    pub(crate) fn seal(&mut self, sealer: Option<Sealer>) {
        if self.head.sealed != sealer.is_some() {
            for slot in 0..self.index.slots() {
                if self.index.clear(slot, u8::MAX) {
                    self.dirty.set(self.head.geometry.page_of(slot));
                }
            }
            self.head.sealed = sealer.is_some();
            self.found_bytes = 0;
        }
        self.sealer = sealer;
    }

    /// The keys of the volume are these from now on.
    pub(crate) fn set_keys(&mut self, keys: Keys) {
        if let Some(sealer) = &mut self.sealer {
            sealer.set_keys(keys);
        }
    }

    /// Whether what is here is zeroes if its stamp says so.
    pub(super) fn believes_zeroes(&self) -> bool {
        self.sealer.is_none()
    }

    /// The range of which versions have to be known before the outcome of this operation can be
    /// taken.
    pub(crate) fn needs_versions(&self, id: u64) -> Option<Range> {
        self.reads.get(&id).filter(|_| self.sealer.is_some()).map(|reading| reading.range)
    }

    /// What goes to the disk of a block, and its seal; nothing if it cannot be kept, and whether it
    /// could be later.
    pub(super) fn sealed(
        &mut self,
        (block, stamp): (u64, u32),
        mut data: Vec<u8>,
        version: VersionOf<'_>,
    ) -> Result<(Vec<u8>, [u8; SEAL_BYTES]), Version> {
        let Some(sealer) = &mut self.sealer else { return Ok((data, UNSEALED)) };
        let version = match version(block) {
            Version::Is(version) => version,
            other => return Err(other),
        };
        let context = context(self.head.tag, (block, stamp), &version);
        let seal = sealer.seal(&context, &mut data).ok_or(Version::Unknown)?;
        Ok((data, seal.bytes()))
    }

    /// What a record is that was read for a block with a stamp of that low half.
    pub(super) fn open(
        &mut self,
        (block, stamp): (u64, u16),
        record: &[u8],
        version: VersionOf<'_>,
    ) -> Opened {
        let tag = self.head.tag;
        let found = seal_of(record).filter(|_| is_block(tag, block, stamp, record));
        let Some((stamp, seal)) = found else { return Opened::Damaged };
        match (&mut self.sealer, Seal::parse(seal)) {
            (None, None) => Opened::Plain,
            (Some(sealer), Some(seal)) => {
                let Version::Is(version) = version(block) else { return Opened::Unknown };
                let context = context(tag, (block, stamp), &version);
                let opened = sealer.open(&seal, &context, &record[..BLOCK_BYTES as usize]);
                opened.map_or(Opened::Outdated, Opened::Block)
            }
            (None, Some(_)) | (Some(_), None) => Opened::Outdated,
        }
    }

    /// The slot that still says that a block is in it with this stamp.
    pub(super) fn slot_of(&self, block: u64, stamp: u16) -> Option<Slot> {
        let slot = self.index.find(block / super::LINE_BLOCKS)?;
        (self.index.stamp(slot, block % super::LINE_BLOCKS) == Some(stamp)).then_some(slot)
    }
}
