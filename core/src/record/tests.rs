use super::*;
use proptest::prelude::*;

const VOLUME: VolumeId = VolumeId(0xfeed);

fn data(range: Range) -> Vec<u8> {
    (0..range.bytes()).map(|n| (n / 3 + range.lba) as u8).collect()
}

fn encoded(range: Range) -> Bytes {
    let mut out = BytesMut::new();
    encode_data(VOLUME, 3, 77, range, &data(range), &mut out);
    out.freeze()
}

/// The bytes on disk do not change by accident: this is the record of `docs/formats.md`.
#[test]
fn golden_bytes() {
    let mut out = BytesMut::new();
    encode_marker(VOLUME, Kind::Discard, 1, 2, Range::new(8, 16), &mut out);
    let hex: String = out.iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(
        hex,
        "4c48524301020000010000000000000002000000000000000800000000000000100000000000000000000000\
         75138d15"
    );
}

fn staged(range: Range, record: Range) -> Bytes {
    let staged = StagedData { object: STAGED_BIT | 0xfeed, offset: 4096, record };
    let mut out = BytesMut::new();
    encode_staged(VOLUME, 1, 2, range, staged, &mut out);
    out.freeze()
}

#[test]
fn golden_staged_bytes() {
    let hex: String =
        staged(Range::new(8, 16), Range::new(4, 24)).iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(
        hex,
        "4c48524301040000010000000000000002000000000000000800000000000000100000000000000000000000\
         5bc00ecbedfe00000000008004000000000000000010000018000000"
    );
}

#[test]
fn marker_has_no_payload_and_any_length() {
    let mut out = BytesMut::new();
    encode_marker(VOLUME, Kind::Zero, 1, 2, Range::new(0, 1 << 40), &mut out);
    assert_eq!(out.len(), HEADER_BYTES);
    let record = parse(VOLUME, &out.freeze()).unwrap();
    assert_eq!(record.header.kind, Kind::Zero);
    assert_eq!(record.header.range.sectors, 1 << 40);
}

#[test]
fn later_version_is_named() {
    let mut out = BytesMut::from(&encoded(Range::new(0, 8))[..]);
    out[4] = 9;
    assert_eq!(parse(VOLUME, &out.freeze()), Err(RecordError::Version(9)));
}

fn range() -> impl Strategy<Value = Range> {
    (0..40u64, 1..60u64).prop_map(|(lba, sectors)| Range::new(lba, sectors))
}

proptest! {
    #[test]
    fn round_trip(range in range()) {
        let bytes = encoded(range);
        prop_assert!(bytes.len() <= MAX_RECORD_BYTES);
        let record = parse(VOLUME, &bytes).unwrap();
        let header = Header { kind: Kind::Data, epoch: 3, seq: 77, range, staged: None, packed_bytes: 0 };
        prop_assert_eq!(record.header, header);
        prop_assert_eq!(&record.data.payload[..], &data(range)[..]);
    }

    #[test]
    fn staged_records_round_trip_and_can_be_cut(
        record in range(), skip in 0..60u64, len in 1..60u64, cut in 0..60u64, bit in 0..576usize,
    ) {
        let range = Range::new(record.lba + skip % record.sectors, len).intersect(record).unwrap();
        let bytes = staged(range, record);
        let parsed = parse(VOLUME, &bytes).unwrap();
        prop_assert_eq!(bytes.len(), parsed.header.record_bytes());
        prop_assert_eq!(parsed.header.staged.unwrap().record, record);
        let part = Range::between(range.lba + cut % range.sectors, range.end());
        let mut out = BytesMut::new();
        parsed.encode_part(part, &mut out);
        let piece = parse(VOLUME, &out.freeze()).unwrap();
        prop_assert_eq!(piece.header, Header { range: part, ..parsed.header });
        let mut damaged = bytes.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(parse(VOLUME, &Bytes::from(damaged)).is_err());
    }

    #[test]
    fn a_prefix_does_not_depend_on_the_pieces(range in range(), at in any::<prop::sample::Index>()) {
        let bytes = encoded(range);
        let payload = bytes.slice(bytes.len() - range.bytes() as usize..);
        let (one, two) = payload.split_at(at.index(payload.len()));
        let pieces = [Bytes::copy_from_slice(one), Bytes::copy_from_slice(two)];
        let prefix = data_prefix(VOLUME, 3, 77, range, &pieces);
        prop_assert_eq!(&prefix[..], &bytes[..bytes.len() - payload.len()]);
    }

    #[test]
    fn any_flipped_bit_is_noticed(range in range(), at in any::<prop::sample::Index>(), bit in 0..8u8) {
        let mut bytes = encoded(range).to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(parse(VOLUME, &Bytes::from(bytes)).is_err());
    }

    #[test]
    fn any_cut_is_noticed(range in range(), at in any::<prop::sample::Index>()) {
        let bytes = encoded(range);
        let cut = bytes.slice(..at.index(bytes.len()));
        let short = matches!(parse(VOLUME, &cut), Err(RecordError::Short { .. }));
        prop_assert!(short);
    }

    #[test]
    fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = bytes;
        let _ = parse(VOLUME, &Bytes::from(bytes.clone()));
        if bytes.len() >= 6 {
            bytes[..4].copy_from_slice(b"LHRC");
            bytes[4] = RECORD_VERSION;
            let _ = parse(VOLUME, &Bytes::from(bytes));
        }
    }

    #[test]
    fn parts_keep_checksums(range in range(), skip in 0..60u64, len in 1..60u64) {
        let part = Range::new(range.lba + skip % range.sectors, len).intersect(range).unwrap();
        let bytes = encoded(range);
        let record = parse(VOLUME, &bytes).unwrap();

        let mut out = BytesMut::new();
        record.encode_part(part, &mut out);
        let piece = parse(VOLUME, &out.freeze()).unwrap();
        prop_assert_eq!(piece.header.seq, 77);
        prop_assert!(piece.header.range.intersect(part) == Some(part));
        prop_assert_eq!(piece.data.sectors(part), record.data.sectors(part));

        let location = Location::new(range, part).unwrap();
        let fragment = location.extract(
            VOLUME, 77,
            &bytes.slice(..location.prefix_bytes),
            bytes.slice(location.payload_start..location.span()),
        ).unwrap();
        prop_assert_eq!(fragment.range, piece.header.range);
        prop_assert_eq!(fragment.sectors(part), record.data.sectors(part));
    }
}
