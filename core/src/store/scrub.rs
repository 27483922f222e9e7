//! Verifies objects one by one, as a scrub reads them. For a damaged object it reports the lost
//! ranges of the volume.
//!
//! [`LogCheck`](super::check::LogCheck) checks the continuity from one segment to the next, for
//! which it needs all of them in order.

use super::catalog::{self, VolumeSpec};
use super::check::RootCheck;
use super::gc::bundle;
use super::map::fragment::Fragment;
use super::segment;
use crate::block::{Range, STAGED_BIT};
use crate::record::{self, Kind};
use bytes::Bytes;

/// The damage of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// In words.
    pub problem: String,
    /// The ranges of the volume that this object has lost; later writes may have replaced them
    /// elsewhere. Empty if the damage costs no data.
    pub ranges: Vec<Range>,
    /// Whether the object may have lost more than these ranges.
    pub unknown: bool,
}

impl Damage {
    fn whole(problem: String) -> Damage {
        Damage { problem, ranges: Vec::new(), unknown: true }
    }

    fn none(problem: String) -> Damage {
        Damage { problem, ranges: Vec::new(), unknown: false }
    }
}

/// Verifies an object of a volume; `None` if it is of a kind that has no checksums, or none of
/// ours.
#[must_use]
pub fn verify(spec: &VolumeSpec, key: &str, object: &Bytes) -> Option<Result<(), Damage>> {
    let number = |prefix: String| catalog::parse_number(&prefix, key);
    if let Some(number) = number(catalog::segment_prefix(spec.id)) {
        Some(verify_segment(spec, number, object))
    } else if let Some(number) = number(catalog::staged_prefix(spec.id)) {
        Some(verify_staged(spec, number, object))
    } else if let Some(name) = catalog::parse_root_key(&catalog::root_prefix(spec.id), key) {
        let result = RootCheck::new(spec, name, object);
        Some(result.map(drop).map_err(|error| Damage::none(error.to_string())))
    } else if let Some(name) = catalog::parse_pin_key(&catalog::pin_prefix(spec.id), key) {
        let result = RootCheck::new(spec, name, object);
        Some(result.map(drop).map_err(|error| Damage::none(error.to_string())))
    } else if let Some(id) = catalog::parse_fragment_key(spec.id, key) {
        Some(match Fragment::verify(object) {
            Ok(fragment) if fragment.id == id => Ok(()),
            Ok(_) => Err(Damage::whole("it is another fragment".to_owned())),
            Err(error) => Err(Damage::whole(error.to_string())),
        })
    } else if let Some(id) = catalog::parse_bundle_key(spec.id, key) {
        Some(bundle::verify(id, object).map_err(|(problem, ranges)| {
            let unknown = ranges.is_empty();
            Damage { problem, ranges, unknown }
        }))
    } else if key.starts_with(&catalog::size_prefix(spec.id)) {
        let result = catalog::decode_size(spec, key, object);
        Some(result.map(drop).map_err(|error| Damage::none(error.to_string())))
    } else {
        None
    }
}

fn verify_segment(spec: &VolumeSpec, number: u64, object: &Bytes) -> Result<(), Damage> {
    let segment = segment::parse(object).map_err(|error| Damage::whole(error.to_string()))?;
    if (segment.header.volume, segment.header.number) != (spec.id, number) {
        return Err(Damage::whole(format!(
            "it is segment {} of volume {}",
            segment.header.number, segment.header.volume
        )));
    }
    let mut damage: Option<Damage> = None;
    for piece in &segment.footer.pieces {
        if let Err(error) = segment::verify_record(object, &segment.header, piece) {
            damage.get_or_insert_with(|| Damage::none(error.to_string())).ranges.push(piece.range);
        }
    }
    damage.map_or(Ok(()), Err)
}

/// Staged records follow each other without an index: each one leads to the beginning of the next.
fn verify_staged(spec: &VolumeSpec, number: u64, object: &Bytes) -> Result<(), Damage> {
    if number & STAGED_BIT == 0 {
        return Err(Damage::whole("its number is none of a staged object".into()));
    }
    let mut damage: Option<Damage> = None;
    let mut at = 0;
    while at < object.len() {
        let rest = &object[at..];
        let bad = |error: record::RecordError| format!("record at byte {at}: {error}");
        let header = match record::parse_prefix(spec.id, rest) {
            Ok(header) if header.record_bytes() <= rest.len() => header,
            Ok(header) => {
                let (have, need) = (rest.len(), header.record_bytes());
                return Err(Damage::whole(bad(record::RecordError::Short { have, need })));
            }
            Err(error) => return Err(Damage::whole(bad(error))),
        };
        let problem = match record::verify(spec.id, rest) {
            Ok(_) if header.kind == Kind::Data && header.seq == number => None,
            Ok(_) => Some(format!("record at byte {at}: not one that was staged here")),
            Err(error) => Some(bad(error)),
        };
        if let Some(problem) = problem {
            damage.get_or_insert_with(|| Damage::none(problem)).ranges.push(header.range);
        }
        at += header.record_bytes();
    }
    damage.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::VolumeId;
    use crate::store::catalog::RootName;
    use crate::store::segment::{Footer, Header, Piece, SegmentKind, Token};
    use bytes::BytesMut;

    fn spec() -> VolumeSpec {
        let (name, created_sectors, block_bytes) = ("v".to_owned(), 1 << 20, 512);
        VolumeSpec {
            id: VolumeId(9),
            name,
            created_sectors,
            block_bytes,
            created: 0,
            parents: Vec::new(),
        }
    }

    /// Three records of eight sectors each.
    fn records(seq: impl Fn(u64) -> u64, at: usize) -> (BytesMut, Vec<Piece>) {
        let mut records = BytesMut::new();
        let mut pieces = Vec::new();
        for n in 0..3 {
            let range = Range::new(100 * n, 8);
            let (offset, seq) = ((at + records.len()) as u32, seq(n));
            record::encode_data(VolumeId(9), 1, seq, range, &[n as u8; 4096], &mut records);
            let (staged, packed_bytes) = (None, 0);
            pieces.push(Piece { kind: Kind::Data, range, seq, offset, staged, packed_bytes });
        }
        (records, pieces)
    }

    fn object() -> Bytes {
        let (records, pieces) = records(|n| n + 1, segment::HEADER_BYTES);
        let header = Header {
            volume: VolumeId(9),
            number: 2,
            kind: SegmentKind::Data,
            epoch: 1,
            host: crate::wire::link::HostId(3),
            token: Token { incarnation: 4, counter: 5 },
            first: 1,
            last: 3,
            records_bytes: 0,
            footer_bytes: 0,
            previous: 0,
            void_after: 0,
            voids: false,
            ahead: 0,
            sectors: 0,
        };
        let footer = Footer { pieces, ..Footer::default() };
        let (_, data) = segment::build(header, footer, vec![records.freeze()]);
        data.concat().into()
    }

    fn flipped(object: &[u8], at: usize) -> Bytes {
        let mut bytes = object.to_vec();
        bytes[at] ^= 1;
        bytes.into()
    }

    #[test]
    fn damage_to_a_segment_is_confined_to_what_was_hit() {
        let (spec, object) = (spec(), object());
        let key = catalog::segment_key(spec.id, 2);
        let check = |object: &Bytes| verify(&spec, &key, object).expect("a segment");
        assert_eq!(check(&object), Ok(()));
        let record = (object.len() - segment::HEADER_BYTES - segment::TRAILER_BYTES) / 3;
        for at in 0..object.len() {
            let damage = check(&flipped(&object, at)).expect_err("a flipped bit");
            let whole = damage.unknown && damage.ranges.is_empty();
            let one = !damage.unknown && damage.ranges.len() == 1;
            assert!(whole || one, "byte {at}: {damage:?}");
            assert!(one || !(200..3 * record).contains(&at), "byte {at}: {damage:?}");
        }
        // Both flipped ones.
        let twice = flipped(&flipped(&object, 1000), 1000 + 2 * 4096);
        assert_eq!(check(&twice).unwrap_err().ranges, [Range::new(0, 8), Range::new(200, 8)]);
        assert!(check(&object.slice(..object.len() - 1)).unwrap_err().unknown);
        let elsewhere = catalog::segment_key(spec.id, 3);
        let damage = verify(&spec, &elsewhere, &object).unwrap().unwrap_err();
        assert!(damage.unknown && damage.problem.contains("segment 2"), "{damage:?}");
    }

    #[test]
    fn damage_to_a_staged_object_is_confined_to_its_record() {
        let spec = spec();
        let number = STAGED_BIT | 7;
        let key = catalog::staged_key(spec.id, number);
        let object = records(|_| number, 0).0.freeze();
        let check = |object: &Bytes| verify(&spec, &key, object).expect("a staged object");
        assert_eq!(check(&object), Ok(()));
        let damage = check(&flipped(&object, object.len() - 1)).unwrap_err();
        assert_eq!((damage.ranges, damage.unknown), (vec![Range::new(200, 8)], false));
        assert!(check(&flipped(&object, 0)).unwrap_err().unknown);
        assert!(check(&object.slice(..5000)).unwrap_err().unknown);
        let other = records(|_| number + 1, 0).0.freeze();
        assert_eq!(check(&other).unwrap_err().ranges.len(), 3);
    }

    #[test]
    fn what_holds_no_data_loses_none() {
        let spec = spec();
        let nonsense = Bytes::from_static(b"nonsense");
        let name = RootName { generation: 1, segment: 1, number: 0 };
        for key in [catalog::root_key(spec.id, name), catalog::size_key(spec.id, 1)] {
            let damage = verify(&spec, &key, &nonsense).expect("ours").unwrap_err();
            assert!(!damage.unknown && damage.ranges.is_empty(), "{damage:?}");
        }
        assert_eq!(verify(&spec, &catalog::attribute_key(spec.id, "a", 1, 1), &nonsense), None);
        assert_eq!(verify(&spec, "volumes/v", &nonsense), None);
    }
}
