//! Batches: frames of the journal put together for the store. A batch leaves out content that it
//! overwrites itself.

use crate::block::{Range, Seq, VolumeId};
use crate::extent::{ExtentMap, Uniform};
use crate::host::journal::{FRAME_HEADER_BYTES, Frame, FrameHeader};
use crate::record::{self, Header, Record};
use bytes::{Bytes, BytesMut};

/// A batch ready to go.
#[derive(Debug)]
pub(super) struct Batch {
    /// Last number in it.
    pub(super) last: Seq,
    /// Records in order.
    pub(super) payload: Bytes,
    /// Bytes of records that the batch leaves out.
    pub(super) coalesced: u64,
}

/// The reason why a batch fails.
#[derive(Debug)]
pub(super) struct Damage {
    pub(super) addr: u64,
    pub(super) range: Range,
    pub(super) problem: String,
}

/// The bytes of a frame.
#[derive(Debug, Default)]
pub(super) struct FrameBytes {
    pub(super) bytes: Bytes,
    /// They come from the disk, so the data may have changed since its checksum. Data that never
    /// left memory needs no check here. Its checksums go along, and the store checks them before it
    /// applies anything.
    pub(super) verify: bool,
}

/// A record of a batch.
struct FoundRecord {
    header: Header,
    part: usize,
    /// Where in the part.
    at: usize,
    /// Another record of the batch writes some of the same sectors.
    touched: bool,
}

impl FoundRecord {
    fn end(&self) -> usize {
        self.at + self.header.record_bytes()
    }
}

/// The records of `frames` from number `next` on.
fn find(
    volume: VolumeId,
    next: Seq,
    frames: &[Frame],
    parts: &[FrameBytes],
) -> Result<Vec<FoundRecord>, Damage> {
    let mut records: Vec<FoundRecord> = Vec::new();
    let mut expected = next;
    for (index, (frame, part)) in frames.iter().zip(parts).enumerate() {
        let damage = |range: Range, problem: String| Damage { addr: frame.at.addr, range, problem };
        let nowhere = Range::new(0, 0);
        let mut at = FRAME_HEADER_BYTES;
        let end = at + frame.body_bytes as usize;
        let body = match FrameHeader::parse(&part.bytes) {
            Ok(Some((header, _)))
                if header.addr == frame.at.addr
                    && header.number == frame.at.number
                    && header.prev_crc == frame.at.prev_crc
                    && u64::from(header.body_bytes) == frame.body_bytes =>
            {
                part.bytes.get(..end)
            }
            _ => None,
        };
        let Some(body) = body else {
            return Err(damage(nowhere, "the frame is not the one written here".into()));
        };
        while at < end {
            let rest = &body[at..];
            let outcome = if part.verify {
                record::verify(volume, rest)
            } else {
                record::parse_whole(volume, rest)
            };
            let header = outcome.map_err(|error| {
                let range = match error {
                    record::RecordError::Payload(range) => range,
                    _ => nowhere,
                };
                damage(range, error.to_string())
            })?;
            let found = FoundRecord { header, part: index, at, touched: false };
            at = found.end();
            if header.seq < next {
                continue;
            }
            if header.seq != expected {
                return Err(damage(header.range, "a write is missing".into()));
            }
            expected += 1;
            records.push(found);
        }
    }
    Ok(records)
}

/// Marks the records that have sectors in common with another. Returns whether there are any.
fn touch(records: &mut [FoundRecord]) -> bool {
    let mut order: Vec<(u64, usize)> =
        records.iter().enumerate().map(|(index, found)| (found.header.range.lba, index)).collect();
    order.sort_unstable();
    let mut any = false;
    // The record that reaches furthest, among those so far in order of their first sector. A record
    // that overlaps any of them overlaps this one. A record that this one hides got its mark when
    // it came.
    let mut furthest = (0, 0);
    for (lba, index) in order {
        let (end, other) = furthest;
        if lba < end {
            records[index].touched = true;
            records[other].touched = true;
            any = true;
        }
        furthest = furthest.max((records[index].header.range.end(), index));
    }
    any
}

/// Puts frames of `volume` together into a batch that starts with number `next`. Leaves out content
/// that the batch overwrites.
pub(super) fn build(
    volume: VolumeId,
    next: Seq,
    frames: &[Frame],
    parts: &[FrameBytes],
) -> Result<Batch, Damage> {
    let mut records = find(volume, next, frames, parts)?;
    let last = next + records.len() as u64 - 1;
    let overlaps = touch(&mut records);
    if !overlaps
        && let (Some(from), Some(to)) = (records.first(), records.last())
        && from.part == to.part
    {
        let payload = parts[from.part].bytes.slice(from.at..to.end());
        return Ok(Batch { last, payload, coalesced: 0 });
    }
    let mut owners: ExtentMap<Uniform<usize>> = ExtentMap::new();
    for (index, found) in records.iter().enumerate().filter(|(_, found)| found.touched) {
        owners.insert(found.header.range, Uniform(index));
    }
    let whole: usize = records.iter().map(|found| found.header.record_bytes()).sum();
    let mut payload = BytesMut::with_capacity(whole);
    // Records in a row that the batch takes as they are.
    let mut run = (0, 0..0);
    let copy = |run: &(usize, std::ops::Range<usize>), payload: &mut BytesMut| {
        if let Some(part) = parts.get(run.0) {
            payload.extend_from_slice(&part.bytes[run.1.clone()]);
        }
    };
    for (index, found) in records.iter().enumerate() {
        let kept =
            if found.touched { KeptPart::of(index, found, &owners) } else { KeptPart::Whole };
        if matches!(kept, KeptPart::Whole) && run.0 == found.part && run.1.end == found.at {
            run.1.end = found.end();
            continue;
        }
        copy(&run, &mut payload);
        run = (found.part, found.at..found.at);
        match kept {
            KeptPart::Whole => run.1.end = found.end(),
            KeptPart::Pieces(pieces) => {
                let raw = parts[found.part].bytes.slice(found.at..found.end());
                let record = Record::take_apart(volume, found.header, &raw);
                for piece in pieces {
                    record.encode_part(piece, &mut payload);
                }
            }
        }
    }
    copy(&run, &mut payload);
    let coalesced = whole.saturating_sub(payload.len()) as u64;
    Ok(Batch { last, payload: payload.freeze(), coalesced })
}

/// The part of a record that a batch needs.
enum KeptPart {
    Whole,
    /// In order, apart from each other, cut at block boundaries.
    Pieces(Vec<Range>),
}

impl KeptPart {
    fn of(index: usize, found: &FoundRecord, owners: &ExtentMap<Uniform<usize>>) -> KeptPart {
        let range = found.header.range;
        let left = owners.overlapping(range).filter(|(_, owner)| owner.0 == index);
        let mut pieces: Vec<Range> = Vec::new();
        for (part, _) in left {
            if found.header.kind.is_marker() {
                // A marker costs the same whatever its length: cutting it could only add bytes.
                return KeptPart::Whole;
            }
            // Widened to whole blocks, neighbors may come to overlap.
            let Some(part) = part.block_cover().intersect(range) else { continue };
            match pieces.last_mut() {
                Some(piece) if piece.end() >= part.lba => {
                    *piece = Range::between(piece.lba, part.end());
                }
                _ => pieces.push(part),
            }
        }
        if pieces == [range] { KeptPart::Whole } else { KeptPart::Pieces(pieces) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Time;
    use crate::host::journal::FrameRef;
    use crate::record::Kind;

    const VOLUME: VolumeId = VolumeId(5);
    use proptest::prelude::*;

    const SECTORS: u64 = 64;

    /// A frame of `writes`, numbered from `first` on; each fills its sectors with its number.
    fn frame(first: Seq, addr: u64, writes: &[(Range, Kind)]) -> (Frame, Bytes) {
        let mut data = BytesMut::zeroed(FRAME_HEADER_BYTES);
        for (seq, (range, kind)) in (first..).zip(writes) {
            if *kind == Kind::Data {
                let content = vec![seq as u8; range.bytes() as usize];
                record::encode_data(VOLUME, 1, seq, *range, &content, &mut data);
            } else {
                record::encode_marker(VOLUME, *kind, 1, seq, *range, &mut data);
            }
        }
        let body_bytes = data.len() - FRAME_HEADER_BYTES;
        let last = first + writes.len() as u64 - 1;
        let at = FrameRef { addr, number: addr / 4096, prev_crc: 0, before: first - 1 };
        let header = FrameHeader {
            journal: 1,
            incarnation: 1,
            body_bytes: body_bytes as u32,
            addr,
            number: at.number,
            epoch: 1,
            first_seq: first,
            last_seq: last,
            tail: at,
            synced_addr: 0,
            prev_crc: 0,
        };
        data.resize(header.frame_bytes() as usize, 0);
        header.encode_to(&mut data);
        let (bytes, body_bytes) = (header.frame_bytes(), body_bytes as u64);
        (Frame { at, bytes, body_bytes, first, last, born: Time(0) }, data.freeze())
    }

    /// The numbers of the last writes of each sector, markers as the negative number.
    fn apply(mut payload: Bytes) -> Vec<i64> {
        let mut volume = vec![0; SECTORS as usize];
        let mut before = 0;
        while !payload.is_empty() {
            let record = record::parse(VOLUME, &payload).unwrap();
            let header = record.header;
            assert!(header.seq >= before);
            before = header.seq;
            for sector in header.range.lba..header.range.end() {
                volume[sector as usize] = if header.kind == Kind::Data {
                    let data = record.data.sectors(Range::new(sector, 1));
                    assert!(data.iter().all(|byte| *byte == header.seq as u8));
                    header.seq as i64
                } else {
                    -(header.seq as i64)
                };
            }
            let _ = payload.split_to(header.record_bytes());
        }
        volume
    }

    fn write() -> impl Strategy<Value = (Range, Kind)> {
        let kind = prop_oneof![4 => Just(Kind::Data), 1 => Just(Kind::Zero)];
        (0..SECTORS, 1..24u64, kind).prop_map(|(lba, sectors, kind)| {
            (Range::between(lba, (lba + sectors).min(SECTORS)), kind)
        })
    }

    proptest! {
        /// Applying a batch gives what applying every record from `next` on gives, with no data
        /// block in it twice.
        #[test]
        fn a_batch_is_its_records(
            groups in prop::collection::vec(prop::collection::vec(write(), 1..5), 1..5),
            done in 0..3u64,
            verify in any::<bool>(),
        ) {
            let (mut frames, mut parts) = (Vec::new(), Vec::new());
            let (mut seq, mut addr) = (1, 0);
            let mut all = BytesMut::new();
            for writes in &groups {
                let (frame, bytes) = frame(seq, addr, writes);
                let mut body = bytes.slice(FRAME_HEADER_BYTES..);
                body.truncate(frame.body_bytes as usize);
                while !body.is_empty() {
                    let header = record::parse_prefix(VOLUME, &body).unwrap();
                    let raw = body.split_to(header.record_bytes());
                    if header.seq > done {
                        all.extend_from_slice(&raw);
                    }
                }
                (seq, addr) = (frame.last + 1, frame.end());
                frames.push(frame);
                parts.push(FrameBytes { bytes, verify });
            }
            let batch = build(VOLUME, done + 1, &frames, &parts).unwrap();
            prop_assert_eq!(batch.last, (seq - 1).max(done));
            prop_assert_eq!(batch.payload.len() as u64 + batch.coalesced, all.len() as u64);
            let mut later: Vec<Range> = Vec::new();
            let mut payload = batch.payload.clone();
            let mut headers = Vec::new();
            while !payload.is_empty() {
                let header = record::parse(VOLUME, &payload).unwrap().header;
                let _ = payload.split_to(header.record_bytes());
                headers.push(header);
            }
            for header in headers.iter().rev() {
                let block = |lba: u64| Range::new(lba, 1).block_cover().intersect(header.range);
                for sector in header.range.lba..header.range.end() {
                    let Some(block) = block(sector).filter(|_| header.kind == Kind::Data) else {
                        continue;
                    };
                    let hidden = |lba| later.iter().any(|r| r.lba <= lba && lba < r.end());
                    let all_hidden = (block.lba..block.end()).all(hidden);
                    prop_assert!(!all_hidden, "{} of {} is overwritten", block, header.seq);
                }
                later.push(header.range);
            }
            prop_assert_eq!(apply(batch.payload), apply(all.freeze()));
        }

        /// Damage on disk stops the batch. Damage in memory stays visible to the store, which
        /// verifies the batch.
        #[test]
        fn damage_never_gets_by(
            writes in prop::collection::vec(write(), 1..5),
            at in any::<prop::sample::Index>(),
            verify in any::<bool>(),
        ) {
            let (frame, bytes) = frame(1, 0, &writes);
            let mut bytes = bytes.to_vec();
            let end = FRAME_HEADER_BYTES + frame.body_bytes as usize;
            bytes[at.index(end)] ^= 4;
            let built = build(VOLUME, 1, &[frame], &[FrameBytes { bytes: bytes.into(), verify }]);
            prop_assert!(!verify || built.is_err());
            let Ok(batch) = built else { return Ok(()) };
            let mut payload = batch.payload;
            let mut sound = true;
            while sound && !payload.is_empty() {
                let outcome = record::parse(VOLUME, &payload);
                sound = outcome.is_ok();
                let _ = payload.split_to(outcome.map_or(0, |r| r.header.record_bytes()));
            }
            // The damage may also lie in overwritten content.
            prop_assert!(!sound || batch.coalesced > 0);
        }
    }
}
