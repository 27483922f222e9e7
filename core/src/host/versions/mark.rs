//! The entry of the table for a block or a sector: a mark of 32 bits.
//!
//! The mark of encrypted content is a function of the tag that AES-GCM gave the block, under a key
//! that only this host has. The tag depends on volume, epoch, write, sectors and content. So two
//! versions of a block have the same mark once in 2³² cases. Nobody without the key knows in which.

use crate::block::{Range, VolumeId};
use crate::record::packed::{self, TAG_BYTES};
use crate::record::{Header, Kind};
use ring::aead::quic::{AES_256, HeaderProtectionKey};

/// Bytes of the key of a table.
pub const TABLE_KEY_BYTES: usize = 32;

/// A mark. The first values have a meaning of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mark(pub u32);

impl Mark {
    /// The mark in a new table. In a complete table nobody ever wrote there, else it is
    /// [`Mark::UNKNOWN`].
    pub(crate) const BLANK: Mark = Mark(0);
    /// Zeroes: written as such, discarded, or known to be a hole.
    pub(crate) const ZERO: Mark = Mark(1);
    /// A block whose sectors have marks of their own.
    pub(crate) const MIXED: Mark = Mark(2);
    /// Unknown: the host believes the first content that proves to be of this volume.
    pub(crate) const UNKNOWN: Mark = Mark(3);
    /// First mark of encrypted content.
    const FIRST: u32 = 4;
}

/// The identity of a piece of a record, or of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seal {
    /// Zeroes, or nothing at all. Nothing proves it.
    Zero,
    /// Encrypted content with this tag.
    Tag([u8; TAG_BYTES]),
    /// Content in plain text: no keyed volume has any.
    Plain,
}

/// The key of a table.
pub(crate) struct MarkKey(HeaderProtectionKey);

impl std::fmt::Debug for MarkKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MarkKey(..)")
    }
}

impl MarkKey {
    /// A key of these bytes, which must be random. `None` if they are not usable as a key.
    pub(crate) fn new(bytes: &[u8; TABLE_KEY_BYTES]) -> Option<MarkKey> {
        HeaderProtectionKey::new(&AES_256, bytes).ok().map(MarkKey)
    }

    /// The mark of content with that seal; `None` for content that no table can name.
    pub(crate) fn mark(&self, seal: &Seal) -> Option<Mark> {
        match seal {
            Seal::Zero => Some(Mark::ZERO),
            Seal::Plain => None,
            // One block of AES-256, of which QUIC takes 40 bits and this 32 (RFC 9001 §5.4.3).
            Seal::Tag(tag) => {
                let [a, b, c, d, _] = self.0.new_mask(tag).ok()?;
                let mark = u32::from_le_bytes([a, b, c, d]);
                Some(Mark(if mark < Mark::FIRST { mark + Mark::FIRST } else { mark }))
            }
        }
    }
}

/// The seals of a verified record of `volume`, block by block; `bytes` begin with it.
pub(crate) fn seals(
    volume: VolumeId,
    header: &Header,
    bytes: &[u8],
    mut each: impl FnMut(Range, Seal),
) {
    match header.kind {
        Kind::Discard | Kind::Zero => each(header.range, Seal::Zero),
        Kind::Data | Kind::Staged => each(header.range, Seal::Plain),
        Kind::Packed => seals_of(volume, bytes, header.range, each),
    }
}

/// The seals of the blocks of the packed record at the start of `bytes` that touch `wanted`.
pub(crate) fn seals_of(
    volume: VolumeId,
    bytes: &[u8],
    wanted: Range,
    mut each: impl FnMut(Range, Seal),
) {
    let Ok((_, lock, blocks)) = packed::open(volume, bytes) else {
        return each(wanted, Seal::Plain);
    };
    for (range, tag) in blocks.tags(wanted) {
        let Some(part) = range.intersect(wanted) else { continue };
        let seal = match tag {
            None => Seal::Zero,
            Some(Some(tag)) if lock.key != 0 => Seal::Tag(tag),
            Some(_) => Seal::Plain,
        };
        each(part, seal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_differ_by_key_and_tag_and_are_none_of_the_others() {
        let one = MarkKey::new(&[1; TABLE_KEY_BYTES]).unwrap();
        let two = MarkKey::new(&[2; TABLE_KEY_BYTES]).unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for n in 0..=255 {
            let seal = Seal::Tag([n; TAG_BYTES]);
            let (a, b) = (one.mark(&seal).unwrap(), two.mark(&seal).unwrap());
            assert!(a.0 >= Mark::FIRST && a != b);
            seen.insert(a);
        }
        assert_eq!(seen.len(), 256);
        assert_eq!(one.mark(&Seal::Zero), Some(Mark::ZERO));
        assert_eq!(one.mark(&Seal::Plain), None);
    }
}
