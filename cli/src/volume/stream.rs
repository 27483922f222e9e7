//! The map diff of two snapshots of a volume with its data, as a stream of frames
//! (`docs/formats.md`).

use anyhow::{Context as _, Result, bail};
use bytes::{Buf as _, Bytes};
use longhaul_core::block::{MAX_VOLUME_SECTORS, Range, SECTOR_BYTES, VolumeId};
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Read, Write};

/// Begins every stream; the last byte is the version.
const MAGIC: [u8; 8] = *b"LHSNAPS\x01";
/// Type, payload bytes, checksum.
const FRAME_BYTES: usize = 1 + 4 + 4;
/// Longest payload: 1 MiB of data and where it is.
pub const MAX_PAYLOAD_BYTES: usize = (1 << 20) + RANGE_BYTES;
const RANGE_BYTES: usize = 16;

const HEADER: u8 = 1;
const DATA: u8 = 2;
const ZEROES: u8 = 3;
const END: u8 = 4;

/// The beginning of a stream: its source and its target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Name of the volume that it comes from.
    pub volume: String,
    /// And its identity.
    #[serde(with = "identity")]
    pub volume_id: VolumeId,
    /// The snapshot that it begins with; without one it has everything.
    pub since: Option<Taken>,
    /// The snapshot that it ends with.
    pub snapshot: Taken,
    /// Size of that.
    pub sectors: u64,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// Its name.
    pub name: String,
    /// Its identity there.
    #[serde(with = "identity")]
    pub origin: VolumeId,
}

/// 32 hexadecimal digits.
mod identity {
    use longhaul_core::block::VolumeId;
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub fn serialize<S: Serializer>(id: &VolumeId, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(id)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<VolumeId, D::Error> {
        let text = String::deserialize(from)?;
        u128::from_str_radix(&text, 16).map(VolumeId).map_err(D::Error::custom)
    }
}

/// One piece of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// At most 1 MiB.
    Data(Range, Bytes),
    Zeroes(Range),
}

/// Writes a stream.
pub struct Sender<W> {
    out: W,
    pieces: u64,
}

impl<W: Write> Sender<W> {
    /// Begins a stream.
    ///
    /// # Errors
    /// If the write fails.
    pub fn new(mut out: W, header: &Header) -> Result<Sender<W>> {
        out.write_all(&MAGIC).context("cannot write the stream")?;
        let mut sender = Sender { out, pieces: 0 };
        sender.frame(HEADER, &[&serde_json::to_vec(header)?])?;
        Ok(sender)
    }

    /// Writes one piece; pieces come in order of address.
    ///
    /// # Errors
    /// If the write fails.
    pub fn piece(&mut self, piece: &Piece) -> Result<()> {
        self.pieces += 1;
        let at = |range: &Range| [range.lba.to_le_bytes(), range.sectors.to_le_bytes()].concat();
        match piece {
            Piece::Data(range, data) => self.frame(DATA, &[&at(range), data]),
            Piece::Zeroes(range) => self.frame(ZEROES, &[&at(range)]),
        }
    }

    /// Ends the stream. A stream without an end is incomplete.
    ///
    /// # Errors
    /// If the write fails.
    pub fn finish(mut self) -> Result<W> {
        let pieces = self.pieces;
        self.frame(END, &[&pieces.to_le_bytes()])?;
        self.out.flush().context("cannot write the stream")?;
        Ok(self.out)
    }

    fn frame(&mut self, kind: u8, parts: &[&[u8]]) -> Result<()> {
        let bytes = parts.iter().map(|part| part.len()).sum::<usize>();
        let bytes = u32::try_from(bytes).context("a frame is too long")?.to_le_bytes();
        let mut crc = crc32c::crc32c_append(crc32c::crc32c(&[kind]), &bytes);
        for part in parts {
            crc = crc32c::crc32c_append(crc, part);
        }
        let mut write = || {
            self.out.write_all(&[kind])?;
            self.out.write_all(&bytes)?;
            self.out.write_all(&crc.to_le_bytes())?;
            parts.iter().try_for_each(|part| self.out.write_all(part))
        };
        write().context("cannot write the stream: is there space?")
    }
}

/// Reads a stream.
pub struct Receiver<R> {
    from: R,
    pieces: u64,
    /// The sector up to which pieces have come, and the size.
    at: u64,
    sectors: u64,
}

impl<R: Read> Receiver<R> {
    /// Reads the beginning of one.
    ///
    /// # Errors
    /// If there is none, or of a version that this program does not know.
    pub fn new(mut from: R) -> Result<(Receiver<R>, Header)> {
        let mut magic = [0; MAGIC.len()];
        read(&mut from, &mut magic).context("this is no stream of `longhaul snapshot send`")?;
        if magic[..7] != MAGIC[..7] {
            bail!("this is no stream of `longhaul snapshot send`");
        }
        if magic != MAGIC {
            bail!("the stream is of version {}: update this program", magic[7]);
        }
        let mut receiver = Receiver { from, pieces: 0, at: 0, sectors: 0 };
        let (HEADER, payload) = receiver.frame()? else { bail!("the stream has no header") };
        let header: Header = serde_json::from_slice(&payload).context("the header is damaged")?;
        if header.sectors == 0 || header.sectors > MAX_VOLUME_SECTORS {
            bail!("the header is damaged: no volume has {} sectors", header.sectors);
        }
        receiver.sectors = header.sectors;
        Ok((receiver, header))
    }

    /// The next piece; `None` after the last.
    ///
    /// # Errors
    /// If the stream ends early or is damaged.
    pub fn piece(&mut self) -> Result<Option<Piece>> {
        let (kind, mut payload) = self.frame()?;
        if kind == END {
            if payload.len() != 8 || payload.get_u64_le() != self.pieces {
                bail!("the stream is damaged: pieces of it are missing");
            }
            return Ok(None);
        }
        self.pieces += 1;
        if payload.len() < RANGE_BYTES {
            bail!("the stream is damaged: piece {} is too short", self.pieces);
        }
        let range = Range::new(payload.get_u64_le(), payload.get_u64_le());
        let fits = !range.is_empty() && range.lba >= self.at && range.fits(self.sectors);
        let piece = match kind {
            DATA if Some(payload.len() as u64) == range.sectors.checked_mul(SECTOR_BYTES) => {
                Piece::Data(range, payload)
            }
            ZEROES if payload.is_empty() => Piece::Zeroes(range),
            _ => bail!("the stream is damaged: piece {} is not valid", self.pieces),
        };
        if !fits {
            bail!("the stream is damaged: piece {} is not where it can be", self.pieces);
        }
        self.at = range.end();
        Ok(Some(piece))
    }

    fn frame(&mut self) -> Result<(u8, Bytes)> {
        let mut head = [0; FRAME_BYTES];
        read(&mut self.from, &mut head)?;
        let [kind, a, b, c, d, crc @ ..] = head;
        let bytes = u32::from_le_bytes([a, b, c, d]) as usize;
        if bytes > MAX_PAYLOAD_BYTES {
            bail!("the stream is damaged after piece {}", self.pieces);
        }
        let mut payload = vec![0; bytes];
        read(&mut self.from, &mut payload)?;
        let found = crc32c::crc32c_append(crc32c::crc32c(&head[..5]), &payload);
        if found != u32::from_le_bytes(crc) {
            bail!("the stream is damaged after piece {}: a checksum is wrong", self.pieces);
        }
        Ok((kind, payload.into()))
    }
}

fn read(from: &mut impl Read, into: &mut [u8]) -> Result<()> {
    from.read_exact(into).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => anyhow::anyhow!("the stream is cut short"),
        _ => anyhow::Error::new(error).context("cannot read the stream"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let taken = |name: &str| Taken { name: name.into(), origin: VolumeId(7 << 100) };
        let (since, snapshot) = (Some(taken("monday")), taken("tuesday"));
        Header { volume: "db".into(), volume_id: VolumeId(3), since, snapshot, sectors: 4096 }
    }

    fn pieces() -> Vec<Piece> {
        vec![
            Piece::Data(Range::new(8, 3), vec![7; 3 * 512].into()),
            Piece::Zeroes(Range::new(11, 4000)),
            Piece::Data(Range::new(4095, 1), vec![9; 512].into()),
        ]
    }

    fn stream(pieces: &[Piece]) -> Vec<u8> {
        let mut sender = Sender::new(Vec::new(), &header()).unwrap();
        for piece in pieces {
            sender.piece(piece).unwrap();
        }
        sender.finish().unwrap()
    }

    fn received(stream: &[u8]) -> Result<(Header, Vec<Piece>)> {
        let (mut receiver, header) = Receiver::new(stream)?;
        let mut pieces = Vec::new();
        while let Some(piece) = receiver.piece()? {
            pieces.push(piece);
        }
        Ok((header, pieces))
    }

    #[test]
    fn it_comes_as_it_went() {
        assert_eq!(received(&stream(&pieces())).unwrap(), (header(), pieces()));
        assert_eq!(received(&stream(&[])).unwrap(), (header(), vec![]));
    }

    #[test]
    fn what_is_cut_short_or_damaged_is_refused() {
        let whole = stream(&pieces());
        for length in 0..whole.len() {
            received(&whole[..length]).unwrap_err();
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            received(&damaged).unwrap_err();
        }
    }

    #[test]
    fn pieces_are_in_order_and_within_the_volume() {
        for bad in [
            vec![Piece::Zeroes(Range::new(4096, 1))],
            vec![Piece::Zeroes(Range::new(1, u64::MAX))],
            vec![Piece::Zeroes(Range::new(1, 0))],
            vec![Piece::Zeroes(Range::new(8, 8)), Piece::Zeroes(Range::new(15, 1))],
        ] {
            received(&stream(&bad)).unwrap_err();
        }
    }
}
