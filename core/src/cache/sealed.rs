//! Caches of encrypted volumes: they keep no plain text on the disk, and give out only the newest
//! version of a block.
//!
//! A block goes to the disk encrypted. The seal authenticates it together with the file, its place,
//! its stamp and its *version*: the marks of its sectors in the volume's version table. A later
//! read opens the block only with the marks that the table has at that time. So an older version of
//! a block is a miss, even if the store lists wrong changes or somebody tampers with the file. If
//! the version of a block is unknown, the cache neither takes it nor gives it out.
//!
//! The cache keeps zeroes as data: no key protects the index, so the cache cannot trust an entry
//! that says zeroes.

use super::format::{context, is_block, seal_of};
use super::version::{Version, VersionOf};
use super::{Cache, Slot};
use crate::block::{BLOCK_BYTES, Range};
use crate::pack::{Keys, SEAL_BYTES, Seal, Sealer, UNSEALED};

/// The result of opening a record of the file.
pub(super) enum Opened {
    /// The record holds the block in plain text.
    Plain,
    /// The decrypted block.
    Block(Vec<u8>),
    /// The version is unknown, so the record may or may not be the block.
    Unknown,
    /// The block, but of another version or under another key.
    Outdated,
    /// Not the record that the cache wrote there.
    Damaged,
}

impl Cache {
    /// Sets how the cache encrypts blocks from now on, if at all. If this turns encryption on or
    /// off, the cache drops all blocks.
    pub(crate) fn seal(&mut self, sealer: Option<Sealer>) {
        if self.head.sealed != sealer.is_some() {
            for slot in 0..self.index.slots() {
                if self.index.clear(slot, u8::MAX) {
                    self.rounds.mark(self.head.geometry.page_of(slot));
                }
            }
            self.head.sealed = sealer.is_some();
            self.found_bytes = 0;
        }
        self.sealer = sealer;
    }

    /// Replaces the keys of the volume.
    pub(crate) fn set_keys(&mut self, keys: Keys) {
        if let Some(sealer) = &mut self.sealer {
            sealer.set_keys(keys);
        }
    }

    /// Whether a block is zeroes if its stamp says so.
    pub(super) fn believes_zeroes(&self) -> bool {
        self.sealer.is_none()
    }

    /// The range whose versions the cache has to know before it can take the outcome of this
    /// operation.
    pub(crate) fn needs_versions(&self, id: u64) -> Option<Range> {
        self.reads.get(&id).filter(|_| self.sealer.is_some()).map(|reading| reading.range)
    }

    /// Seals a block. Returns the bytes for the disk and the seal. The error says whether the
    /// version is unknown for good or only now.
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

    /// Opens a record that the cache read for a block. `stamp` is the low half of the expected
    /// stamp.
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

    /// The slot of a block, if the index still has the block with this stamp.
    pub(super) fn slot_of(&self, block: u64, stamp: u16) -> Option<Slot> {
        let slot = self.index.find(block / super::LINE_BLOCKS)?;
        (self.index.stamp(slot, block % super::LINE_BLOCKS) == Some(stamp)).then_some(slot)
    }
}
