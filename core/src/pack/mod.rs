//! Packing: the form of a write's data from its entry on, and its reversal on every read.
//!
//! Packing treats each 4 KiB block of the volume by itself. It leaves out zeroes, and compresses
//! what it can. If the volume has keys, it encrypts the rest (AES-256-GCM) under a key that only
//! hosts have. Everything between a host's entry and a host's read carries, cuts and verifies the
//! result without knowing keys or methods: [`crate::record::packed`].
//!
//! Promises: unpacking returns the packed data for this volume, these sectors, this epoch and this
//! number, or an error. With keys, it refuses data that was packed without one. No key ever meets
//! the same nonce twice ([`Keys`]). Each block takes at most [`MAX_STORED_BYTES`]. It must not know
//! journals, links or requests.
//!
//! # The limits of encryption
//!
//! A holder of the store sees which sectors are written, discarded or zeroes, when, and how well
//! blocks compress. They can answer with an older block of the same sectors, or with zeroes. A
//! block proves a write there. It does not prove that nobody has written since. The host's version
//! table ([versions](crate::host::versions)) does that.

mod cached;
mod keys;
#[cfg(test)]
mod tests;

pub use cached::{SEAL_BYTES, Sealer};
pub use keys::{DATA_KEY_BYTES, DataKey, Keys};

pub(crate) use cached::{Seal, UNSEALED};

use crate::block::{BLOCK_BYTES, Epoch, Range, SECTOR_BYTES, Seq, VolumeId};
use crate::record::RecordError;
use crate::record::packed::{self, Builder, Lock, MAX_STORED_BYTES, Method, TAG_BYTES};
use bytes::{Bytes, BytesMut};
use keys::Subkeys;
use std::str::FromStr;

/// The method of compression.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// LZ4: about half a gigabyte a second, pays where the line is the limit.
    Lz4,
    /// Zstandard of this level, 1 to 19: slower and smaller.
    Zstd(i32),
}

/// Default level of zstd: blocks of 4 KiB gain little from higher ones.
const ZSTD_LEVEL: i32 = 1;

/// `none`, `lz4`, `zstd` or `zstd:9`.
impl FromStr for Compression {
    type Err = String;

    fn from_str(text: &str) -> Result<Compression, String> {
        match text.split_once(':') {
            None if text == "none" => Ok(Compression::None),
            None if text == "lz4" => Ok(Compression::Lz4),
            None if text == "zstd" => Ok(Compression::Zstd(ZSTD_LEVEL)),
            Some(("zstd", level)) => match level.parse() {
                Ok(level @ 1..=19) => Ok(Compression::Zstd(level)),
                _ => Err(format!("`{text}`: the level of zstd is a number from 1 to 19")),
            },
            _ => Err(format!("`{text}` is not a compression: none, lz4, zstd or zstd:LEVEL")),
        }
    }
}

/// The processing of the data of a volume's writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packing {
    /// The compression of new writes.
    pub compression: Compression,
    /// The volume's keys; `None`: it is not encrypted.
    pub keys: Option<Keys>,
}

/// Totals of packing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes of packed data.
    pub plain_bytes: u64,
    /// Bytes of its stored form, without headers and tables.
    pub stored_bytes: u64,
    /// Bytes of zeroes, which are left out.
    pub zero_bytes: u64,
    /// Bytes of data without an attempt at compression, because earlier attempts had not paid.
    pub untried_bytes: u64,
}

/// Blocks in a row that did not get smaller before compression is no longer tried on each.
const PATIENCE: u32 = 8;
/// First and longest run of blocks without an attempt then; a guess. One block in 256 takes half a
/// percent of the time that attempts on all would take. After a change of the data, it takes 1 MiB
/// until the packer notices.
const PAUSE_FIRST: u32 = 16;
const PAUSE_LAST: u32 = 256;

/// Packs and unpacks the data of one volume.
pub struct Packer {
    volume: VolumeId,
    packing: Packing,
    subkeys: Subkeys,
    squeezer: Option<zstd::bulk::Compressor<'static>>,
    expander: Option<zstd::bulk::Decompressor<'static>>,
    /// Blocks in a row that did not get smaller.
    misses: u32,
    /// The present pause, and the rest of it, in blocks.
    pause: (u32, u32),
    scratch: Vec<u8>,
    /// What was done.
    pub counters: Counters,
}

impl std::fmt::Debug for Packer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packer").field("packing", &self.packing).finish_non_exhaustive()
    }
}

impl Packer {
    /// For the data of `volume`.
    #[must_use]
    pub fn new(volume: VolumeId, packing: Packing) -> Packer {
        let squeezer = match packing.compression {
            Compression::Zstd(level) => zstd::bulk::Compressor::new(level).ok(),
            Compression::None | Compression::Lz4 => None,
        };
        Packer {
            volume,
            packing,
            subkeys: Subkeys::default(),
            squeezer,
            expander: None,
            misses: 0,
            pause: (0, 0),
            scratch: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// The volume of the data.
    #[must_use]
    pub fn volume(&self) -> VolumeId {
        self.volume
    }

    /// Whether data becomes packed records at all.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.is_encrypting() || self.packing.compression != Compression::None
    }

    /// Whether data is encrypted.
    #[must_use]
    pub fn is_encrypting(&self) -> bool {
        self.packing.keys.is_some()
    }

    /// Number of the key that new writes are encrypted with.
    #[must_use]
    pub fn key(&self) -> Option<u32> {
        self.packing.keys.as_ref().map(Keys::newest)
    }

    /// The keys, if data is encrypted.
    #[must_use]
    pub fn keys(&self) -> Option<&Keys> {
        self.packing.keys.as_ref()
    }

    /// Whether the host encrypts data under older keys anew.
    #[must_use]
    pub fn retires(&self) -> bool {
        self.packing.keys.as_ref().is_some_and(Keys::retires)
    }

    /// The keys are these from now on: new writes use the newest of them.
    pub fn set_keys(&mut self, keys: Keys) {
        if self.packing.keys.is_some() {
            self.packing.keys = Some(keys);
        }
    }

    // --- packing ---

    /// Appends the packed record of a write. Never call it twice with the same number of the same
    /// epoch.
    ///
    /// # Panics
    /// If `data` is not exactly the range, the range is empty or longer than
    /// [`packed::MAX_PACKED_SECTORS`].
    pub fn pack(
        &mut self,
        epoch: Epoch,
        seq: Seq,
        range: Range,
        data: &[u8],
        out: &mut BytesMut,
    ) -> crate::record::Header {
        assert_eq!(data.len() as u64, range.bytes(), "the data is the range's");
        let lock = self.packing.keys.as_ref().map(Keys::lock).unwrap_or_default();
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut builder = Builder::new(self.volume, epoch, seq, range, &lock, out);
        let mut rest = data;
        for block in crate::record::blocks(range) {
            let (plain, after) = rest.split_at(block.bytes() as usize);
            rest = after;
            let method = self.squeeze(plain, &mut scratch);
            if let Some(keys) = self.packing.keys.as_ref().filter(|_| method != Method::Zeroes) {
                if method == Method::Raw {
                    scratch.clear();
                    scratch.extend_from_slice(plain);
                }
                let place = keys::Place { volume: self.volume, epoch, seq, block, method };
                self.subkeys.seal(keys, &lock, &place, &mut scratch);
                builder.push(method, &scratch);
            } else {
                let stored = match method {
                    Method::Zeroes => &[],
                    Method::Raw => plain,
                    Method::Lz4 | Method::Zstd => &scratch[..],
                };
                builder.push(method, stored);
            }
        }
        let header = builder.finish();
        self.scratch = scratch;
        self.counters.plain_bytes += range.bytes();
        self.counters.stored_bytes += u64::from(header.packed_bytes);
        header
    }

    /// Chooses the best stored form of a block. A compressed form is in `out` then.
    fn squeeze(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Method {
        if is_zero(plain) {
            self.counters.zero_bytes += plain.len() as u64;
            return Method::Zeroes;
        }
        if self.packing.compression == Compression::None {
            return Method::Raw;
        }
        if self.pause.1 > 0 {
            self.pause.1 -= 1;
            self.counters.untried_bytes += plain.len() as u64;
            return Method::Raw;
        }
        // If compression saves less than an eighth, it is not worth unpacking the block on every
        // read.
        let limit = plain.len() / 8 * 7;
        let (method, bytes) = match self.packing.compression {
            Compression::None => (Method::Raw, None),
            Compression::Lz4 => {
                out.resize(lz4_flex::block::get_maximum_output_size(plain.len()), 0);
                (Method::Lz4, lz4_flex::block::compress_into(plain, out).ok())
            }
            Compression::Zstd(_) => {
                out.resize(limit, 0);
                let bytes = self
                    .squeezer
                    .as_mut()
                    .and_then(|squeezer| squeezer.compress_to_buffer(plain, &mut out[..]).ok());
                (Method::Zstd, bytes)
            }
        };
        match bytes.filter(|bytes| (1..=limit).contains(bytes)) {
            Some(bytes) => {
                out.truncate(bytes);
                self.misses = 0;
                self.pause = (0, 0);
                method
            }
            None => {
                self.misses = (self.misses + 1).min(PATIENCE);
                if self.misses == PATIENCE {
                    let pause = (2 * self.pause.0).clamp(PAUSE_FIRST, PAUSE_LAST);
                    self.pause = (pause, pause);
                }
                Method::Raw
            }
        }
    }

    // --- unpacking ---

    /// As [`Packer::unpack`], out of the record of number `seq` about `record` and no other.
    ///
    /// # Errors
    /// As for [`Packer::unpack`]; [`RecordError::Invalid`] if it is another record.
    pub fn unpack_of(
        &mut self,
        seq: Seq,
        record: Range,
        bytes: &[u8],
        wanted: Range,
    ) -> Result<Bytes, RecordError> {
        let header = crate::record::parse_prefix(self.volume, bytes)?;
        if (header.seq, header.range) != (seq, record) {
            return Err(RecordError::Invalid("another record than the map says"));
        }
        self.unpack(bytes, wanted)
    }

    /// The sectors of `wanted` from the packed record at the start of `bytes`, which hold at least
    /// the blocks around them.
    ///
    /// # Errors
    /// Those of [`crate::record::parse`] about these blocks. [`RecordError::NoKey`] and
    /// [`RecordError::Sealed`] if they do not open. [`RecordError::Plain`] if they are not
    /// encrypted and the volume is.
    pub fn unpack(&mut self, bytes: &[u8], wanted: Range) -> Result<Bytes, RecordError> {
        let (header, lock, blocks) = packed::open(self.volume, bytes)?;
        if header.range.intersect(wanted) != Some(wanted) {
            return Err(RecordError::Invalid("the sectors are not in the record"));
        }
        if lock.key == 0 && self.is_encrypting() {
            return Err(RecordError::Plain(wanted));
        }
        let mut out = BytesMut::with_capacity(wanted.bytes() as usize);
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut plain = [0; BLOCK_BYTES as usize];
        for block in blocks.of(wanted) {
            let packed::Block { range, method, stored } = block?;
            let opened = if method == Method::Zeroes || lock == Lock::default() {
                stored
            } else {
                let keys = self.packing.keys.as_ref();
                let (epoch, seq, volume) = (header.epoch, header.seq, self.volume);
                let place = keys::Place { volume, epoch, seq, block: range, method };
                scratch.clear();
                scratch.extend_from_slice(stored);
                self.subkeys.open(keys, &lock, &place, &mut scratch)?
            };
            let plain = &mut plain[..range.bytes() as usize];
            expand(&mut self.expander, method, opened, plain).ok_or(RecordError::Sealed(range))?;
            let part = range.intersect(wanted).unwrap_or(range);
            let skip = ((part.lba - range.lba) * SECTOR_BYTES) as usize;
            out.extend_from_slice(&plain[skip..skip + part.bytes() as usize]);
        }
        self.scratch = scratch;
        Ok(out.freeze())
    }
}

/// Undoes [`Packer::squeeze`]; `None` unless the result is exactly as long as `plain`.
fn expand(
    expander: &mut Option<zstd::bulk::Decompressor<'static>>,
    method: Method,
    stored: &[u8],
    plain: &mut [u8],
) -> Option<()> {
    let bytes = match method {
        Method::Zeroes => {
            plain.fill(0);
            plain.len()
        }
        Method::Raw => {
            if stored.len() != plain.len() {
                return None;
            }
            plain.copy_from_slice(stored);
            plain.len()
        }
        Method::Lz4 => lz4_flex::block::decompress_into(stored, plain).ok()?,
        Method::Zstd => {
            if expander.is_none() {
                *expander = zstd::bulk::Decompressor::new().ok();
            }
            expander.as_mut()?.decompress_to_buffer(stored, plain).ok()?
        }
    };
    (bytes == plain.len()).then_some(())
}

/// Whether there are only zeroes. For anything else the first bytes say so.
#[must_use]
pub fn is_zero(data: &[u8]) -> bool {
    // Compare the data with itself, shifted: that runs at the speed of memory.
    data.first().is_none_or(|first| *first == 0)
        && data.get(1..).is_none_or(|rest| rest == &data[..rest.len()])
}

const _: () = assert!(MAX_STORED_BYTES == BLOCK_BYTES as usize + TAG_BYTES);
