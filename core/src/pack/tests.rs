//! Properties of packing: data comes back, forgeries do not open, nonces never repeat.

use super::*;
use crate::record::{self, Kind, Record};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const VOLUME: VolumeId = VolumeId(0xfeed);

fn keys(salt: u8, numbers: &[u32]) -> Keys {
    let key = |number: &u32| (*number, DataKey::new([*number as u8; DATA_KEY_BYTES]));
    Keys::new([salt; 12], numbers.iter().map(key).collect::<BTreeMap<_, _>>()).unwrap()
}

fn packer(compression: Compression, encrypted: bool) -> Packer {
    let keys = encrypted.then(|| keys(7, &[1, 2]));
    Packer::new(VOLUME, Packing { compression, keys })
}

/// Blocks that are zero, compress, or do not, in turn.
fn content(range: Range, seed: u64) -> Vec<u8> {
    let mut noise = seed | 1;
    let sector = |lba: u64| match (lba / 8 + seed) % 3 {
        0 => vec![0; 512],
        1 => vec![lba as u8; 512],
        _ => (0..512)
            .map(|_| {
                noise = noise.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                (noise >> 56) as u8
            })
            .collect(),
    };
    (range.lba..range.end()).flat_map(sector).collect()
}

fn pack(packer: &mut Packer, range: Range, data: &[u8]) -> Bytes {
    let mut out = BytesMut::from(&b"before"[..]);
    let header = packer.pack(3, 77, range, data, &mut out);
    let record = out.freeze().slice(6..);
    assert_eq!(header.record_bytes(), record.len());
    assert!(record.len() <= packed::bytes_max(range));
    assert_eq!(record::verify(packer.volume(), &record), Ok(header));
    record
}

fn range() -> impl Strategy<Value = Range> {
    (0..1_000_000u64, 1..=packed::MAX_PACKED_SECTORS).prop_map(|(lba, n)| Range::new(lba, n))
}

fn compression() -> impl Strategy<Value = Compression> {
    prop_oneof![Just(Compression::None), Just(Compression::Lz4), (1..6).prop_map(Compression::Zstd)]
}

proptest! {
    /// Any part of any cut of a record has the packed data.
    #[test]
    fn what_is_packed_comes_back(
        range in range(),
        seed in 0..9u64,
        compression in compression(),
        encrypted in any::<bool>(),
        (cut_at, cut_len, at, len) in any::<(prop::sample::Index, prop::sample::Index, prop::sample::Index, prop::sample::Index)>(),
    ) {
        let data = content(range, seed);
        let mut packer = packer(compression, encrypted);
        let bytes = pack(&mut packer, range, &data);
        let part = |of: Range, at: prop::sample::Index, len: prop::sample::Index| {
            let at = at.index(of.sectors as usize) as u64;
            Range::new(of.lba + at, 1 + len.index((of.sectors - at) as usize) as u64)
        };
        let cut = part(range, cut_at, cut_len);
        let mut out = BytesMut::new();
        record::parse(VOLUME, &bytes).unwrap().encode_part(cut, &mut out);
        let mut cut = record::parse(VOLUME, &out.freeze()).unwrap();
        prop_assert_eq!(cut.header.kind, Kind::Packed);
        let wanted = part(cut.header.range, at, len);
        let mut out = BytesMut::new();
        cut.encode_part(wanted, &mut out);
        cut = record::parse(VOLUME, &out.freeze()).unwrap();
        let mut again = BytesMut::new();
        cut.encode_part(cut.header.range, &mut again);
        // Another machine, that only knows the keys.
        let mut reader = self::packer(Compression::None, encrypted);
        let skip = ((wanted.lba - range.lba) * SECTOR_BYTES) as usize;
        let expected = &data[skip..skip + wanted.bytes() as usize];
        prop_assert_eq!(&reader.unpack(&again, wanted).unwrap()[..], expected);
        // Like the store, which has only the bytes that a reader may need.
        let span = packed::span_max(range, wanted).min(bytes.len());
        let found = packed::extract((VOLUME, VOLUME), 77, range, wanted, &bytes.slice(..span)).unwrap();
        prop_assert_eq!(&reader.unpack(&found, wanted).unwrap()[..], expected);
    }

    /// A flipped bit is an error for the blocks it is in, with or without keys.
    #[test]
    fn damage_is_noticed(
        range in range(),
        compression in compression(),
        encrypted in any::<bool>(),
        at in any::<prop::sample::Index>(),
        bit in 0..8u8,
    ) {
        let data = content(range, 1);
        let mut packer = packer(compression, encrypted);
        let mut bytes = pack(&mut packer, range, &data).to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(record::verify(VOLUME, &bytes).is_err());
        prop_assert!(packer.unpack(&bytes, range).is_err());
    }

    /// Possible tricks of a store with encrypted blocks and sound checksums: another number, epoch,
    /// place, method, or record.
    #[test]
    fn an_encrypted_block_passes_only_for_itself(lba in 0..1000u64, what in 0..5usize) {
        let range = Range::new(lba * 8, 8);
        let data = vec![lba as u8 | 1; 4096];
        let mut packer = packer(Compression::None, true);
        let bytes = pack(&mut packer, range, &data);
        prop_assert_eq!(&packer.unpack(&bytes, range).unwrap()[..], &data[..]);
        let (header, lock, blocks) = packed::open(VOLUME, &bytes).unwrap();
        let block = blocks.of(range).next().unwrap().unwrap();
        let (mut epoch, mut seq, mut to, mut lock) = (header.epoch, header.seq, range, lock);
        match what {
            0 => epoch += 1,
            1 => seq += 1,
            2 => to.lba += 8,
            3 => lock.salt[0] ^= 1,
            _ => lock.key = 1,
        }
        let mut out = BytesMut::new();
        let mut builder = Builder::new(VOLUME, epoch, seq, to, &lock, &mut out);
        builder.push(block.method, block.stored);
        builder.finish();
        prop_assert_eq!(packer.unpack(&out, to), Err(RecordError::Sealed(to)));
    }
}

#[test]
fn without_the_key_nothing_opens_and_it_is_said_which() {
    let range = Range::new(8, 8);
    let data = vec![1; 4096];
    let bytes = pack(&mut packer(Compression::None, true), range, &data);
    for keys in [None, Some(keys(7, &[1, 3]))] {
        let mut other = Packer::new(VOLUME, Packing { compression: Compression::None, keys });
        assert_eq!(other.unpack(&bytes, range), Err(RecordError::NoKey { range, key: 2 }));
    }
    let mut elsewhere = Packer::new(
        VolumeId(1),
        Packing { compression: Compression::None, keys: Some(keys(7, &[1, 2])) },
    );
    assert_eq!(elsewhere.unpack(&bytes, range), Err(RecordError::Header));
    assert_eq!(
        elsewhere.unpack(&taken_over(&bytes, range), range),
        Err(RecordError::Sealed(range))
    );
}

/// As a store gives a record of the volume to volume 1, which is a clone of it, or says so.
fn taken_over(bytes: &Bytes, range: Range) -> Bytes {
    packed::extract((VOLUME, VolumeId(1)), 77, range, range, bytes).unwrap()
}

#[test]
fn a_statement_opens_with_the_keys_of_its_volume_only() {
    let key = |n: u8| (u32::from(n), DataKey::new([n; DATA_KEY_BYTES]));
    let keys = |list: &[u8]| Keys::new([9; 12], list.iter().map(|n| key(*n)).collect()).unwrap();
    let sealed = keys(&[1, 2]).seal(VolumeId(7), [5; 12], b"it is so").unwrap();
    let opened = |list: &[u8], volume| keys(list).unseal(VolumeId(volume), &sealed);
    assert_eq!(opened(&[1, 2, 3], 7).unwrap(), b"it is so");
    assert_eq!(opened(&[1, 2], 8), None);
    assert_eq!(opened(&[1, 3], 7), None);
    for at in 0..sealed.len() {
        let mut changed = sealed.clone();
        changed[at] ^= 1;
        assert_eq!(keys(&[1, 2]).unseal(VolumeId(7), &changed), None);
    }
    assert_eq!(keys(&[1, 2]).unseal(VolumeId(7), &[]), None);
}

#[test]
fn what_was_packed_without_a_key_is_not_unpacked_with_keys() {
    let range = Range::new(8, 24);
    for compression in [Compression::None, Compression::Lz4] {
        for data in [content(range, 1), vec![0; range.bytes() as usize]] {
            let bytes = pack(&mut packer(compression, false), range, &data);
            let part = Range::new(9, 3);
            let found = packer(compression, true).unpack(&bytes, part);
            assert_eq!(found, Err(RecordError::Plain(part)));
            assert!(packer(Compression::None, false).unpack(&bytes, part).is_ok());
        }
    }
}

#[test]
fn a_clone_reads_what_the_volumes_behind_it_wrote() {
    let range = Range::new(8, 16);
    let old = content(range, 1);
    let mut parent = packer(Compression::None, true);
    let before = taken_over(&pack(&mut parent, range, &old), range);
    let of = |id: u128, salt: u8, parents: &[u128]| {
        let parents = parents.iter().map(|id| VolumeId(*id)).collect();
        let keys = Some(keys(salt, &[1, 2]).with_parents(parents));
        Packer::new(VolumeId(id), Packing { compression: Compression::None, keys })
    };
    let mut clone = of(1, 8, &[5, VOLUME.0]);
    let new = content(range, 2);
    let after = pack(&mut clone, range, &new);
    for _ in 0..2 {
        assert_eq!(clone.unpack(&before, range).as_deref(), Ok(&old[..]));
        assert_eq!(clone.unpack(&after, range).as_deref(), Ok(&new[..]));
    }
    // Unpacking finds damage, before and after the record's volume is known. It refuses another
    // volume's record.
    let mut damaged = before.to_vec();
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    for mut clone in [of(1, 8, &[5, VOLUME.0]), clone] {
        assert!(clone.unpack(&damaged, range).is_err());
        assert_eq!(clone.unpack(&before, range).as_deref(), Ok(&old[..]));
    }
    assert!(of(2, 8, &[5]).unpack(&before, range).is_err());
    assert!(parent.unpack(&after, range).is_err());
}

#[test]
fn plain_text_is_not_in_an_encrypted_record_and_equal_blocks_differ() {
    let data: Vec<u8> =
        (0..16).flat_map(|_| b"confidential...".repeat(274)[..4096].to_vec()).collect();
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd(3)] {
        let bytes = pack(&mut packer(compression, true), Range::new(0, 128), &data);
        assert!(!bytes.windows(8).any(|window| window == b"confiden"));
        let (_, _, blocks) = packed::open(VOLUME, &bytes).unwrap();
        let stored: BTreeSet<Vec<u8>> =
            blocks.of(Range::new(0, 128)).map(|block| block.unwrap().stored.to_vec()).collect();
        assert_eq!(stored.len(), 16);
    }
}

#[test]
fn the_newest_key_is_for_new_writes_and_old_ones_open_what_is_there() {
    let range = Range::new(0, 8);
    let data = vec![5; 4096];
    let mut packer = packer(Compression::None, true);
    let old = pack(&mut packer, range, &data);
    packer.set_keys(keys(7, &[1, 2, 3]));
    let new = pack(&mut packer, range, &data);
    let key = |bytes: &Bytes| packed::open(VOLUME, bytes).unwrap().1.key;
    assert_eq!((key(&old), key(&new)), (2, 3));
    assert_eq!(packer.unpack(&old, range), packer.unpack(&new, range));
}

#[test]
fn compression_stops_where_it_does_not_pay_and_tries_again() {
    let range = Range::new(16, 8);
    let noise = content(range, 0);
    let text = vec![9; 4096];
    for compression in [Compression::Lz4, Compression::Zstd(1)] {
        let mut packer = packer(compression, false);
        for _ in 0..2000 {
            pack(&mut packer, range, &noise);
        }
        let tried = 2000 - packer.counters.untried_bytes / 4096;
        assert!((8..40).contains(&tried), "{tried} of 2000 were tried");
        let stored = packer.counters.stored_bytes;
        assert_eq!(stored, packer.counters.plain_bytes);
        for _ in 0..300 {
            pack(&mut packer, range, &text);
        }
        let few = packer.counters.stored_bytes - stored;
        assert!(few < 260 * 4096 + 300 * 200, "{few} bytes for text");
    }
}

#[test]
fn zeroes_are_left_out() {
    let mut packer = packer(Compression::None, true);
    let bytes = pack(&mut packer, Range::new(3, 100), &[0; 51200]);
    assert_eq!(packer.unpack(&bytes, Range::new(5, 9)).unwrap(), Bytes::from(vec![0; 9 * 512]));
    assert_eq!((packer.counters.zero_bytes, packer.counters.stored_bytes), (51200, 0));
    assert!(is_zero(&[]) && is_zero(&[0]) && is_zero(&[0; 4097]));
    assert!(!is_zero(&[1]) && !is_zero(&[0, 0, 1]) && !is_zero(&[1, 0, 0]));
}

/// The bytes themselves: a change of the format, or of a derivation, has to be intended.
#[test]
fn golden_bytes() {
    let range = Range::new(20, 12);
    let data = content(range, 2);
    let bytes = pack(&mut packer(Compression::None, true), range, &data);
    let sum = ring::digest::digest(&ring::digest::SHA256, &bytes);
    let hex: String = sum.as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let head: String = bytes[..88].iter().map(|byte| format!("{byte:02x}")).collect();
    let expected = "4c4852430105000003000000000000004d0000000000000014000000000000000c0000000000000020180000\
                    fc1140480200000007070707070707070707070766ada46d100801008ba9746a10100100d1c1962f164c1799";
    assert_eq!((head.as_str(), hex.as_str()), (expected, "436619db36e012ed"));
}

#[test]
fn tables_that_no_record_has_are_refused() {
    let range = Range::new(0, 16);
    let data = content(range, 1);
    let bytes = pack(&mut packer(Compression::Lz4, false), range, &data);
    let seal = |bytes: &mut Vec<u8>| {
        let prefix = 48 + 16 + 16;
        let crc = crc32c::crc32c_append(record::seed(VOLUME), &bytes[..44]);
        let crc = crc32c::crc32c_append(crc, &bytes[48..prefix]);
        bytes[44..48].copy_from_slice(&crc.to_le_bytes());
    };
    let mut same = bytes.to_vec();
    seal(&mut same);
    assert_eq!(same, bytes);
    // Salt without a key, an unknown method, a length that does not fit, something in the last
    // byte.
    for at in [52, 70, 68, 71] {
        let mut bad = bytes.to_vec();
        bad[at] ^= 0x40;
        seal(&mut bad);
        assert!(matches!(record::verify(VOLUME, &bad), Err(RecordError::Invalid(_))), "byte {at}");
    }
    let _: Record = record::parse(VOLUME, &bytes).unwrap();
}
