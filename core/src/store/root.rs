//! The root of a volume's map: an object with the state of the log after some segment. It also has
//! the names of all fragments of the map at that moment (`docs/formats.md`).
//!
//! It is exact: applying exactly the segments after that one gives the state of the log. Readers
//! read it whole. A fragment of up to 4 MiB takes 80 bytes in it, an epoch 72, and a snapshot 58
//! and its name.
//!
//! The root of a snapshot is of the segment that took it. It has only the map and the epochs, and
//! neither announced ranges nor snapshots. Every later root names the object.

use super::announce;
use super::attach::{self, MAX_HISTORY};
use super::catalog::{RootName, VolumeSpec, check_name};
use super::gc::moved::Moved;
use super::log::LogState;
use super::map::MapError;
use super::map::fragment::{DESCRIPTION_BYTES, Fragment};
use super::map::levels::{LEVELS_MAX, Levels};
use super::segment::MAX_ANNOUNCED;
use super::snapshot::{CloneOf, Snapshot, Snapshots};
use crate::block::{MAX_VOLUME_SECTORS, VolumeId};
use bytes::{BufMut, Bytes, BytesMut};
use std::collections::BTreeMap;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of the format.
pub const ROOT_VERSION: u16 = 1;
/// Most runs of level 0.
pub const MAX_RUNS: usize = 1 << 12;

const MAGIC: u32 = u32::from_le_bytes(*b"LHRT");
const HEADER_BYTES: usize = size_of::<RawHeader>();
const FLAG_CLEAN: u16 = 1;
const FLAG_ROUNDED: u16 = 2;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: U32,
    version: U16,
    flags: U16,
    volume: U128,
    generation: U64,
    number: U64,
    sectors: U64,
    committed: U64,
    header_crc: U32,
    epochs: U32,
    announced: U32,
    announced_bytes: U32,
    runs: U32,
    levels: U32,
    void_after: U64,
    body_bytes: U64,
    body_crc: U32,
    crc: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSnapshot {
    segment: U64,
    id: U128,
    created: U64,
    sectors: U64,
    generation: U64,
    number: U64,
    flags: u8,
    name_bytes: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawClone {
    segment: U64,
    id: U128,
    name_bytes: u8,
}

const FLAG_HIDDEN: u8 = 1;

/// The roots of snapshots, by the segments that took them.
pub type Pins = BTreeMap<u64, RootName>;

/// A verified root.
#[derive(Clone, Debug)]
pub struct Root {
    /// The generation of who wrote it.
    pub generation: u64,
    /// The state of the log.
    pub state: LogState,
    /// The fragments.
    pub levels: Levels,
    /// The roots of all snapshots that are in the state.
    pub pins: Pins,
    /// The moves of data out of the segments.
    pub moved: Moved,
}

/// Encodes a root. `levels` must be the map after the last segment of `state`. `pins` must have the
/// roots of all snapshots in `state`; the encoder leaves out a snapshot without one, which the
/// callers prevent. `moved` is of the same moment. The root has at most `announce_max` announced
/// ranges; the encoder joins further ones with their neighbors.
#[must_use]
pub fn encode(
    generation: u64,
    state: &LogState,
    levels: &Levels,
    pins: &Pins,
    moved: &Moved,
    announce_max: usize,
) -> Bytes {
    let (announced, rounded) =
        state.announced.snapshot(state.committed, announce_max.min(MAX_ANNOUNCED));
    let flags = if state.clean { FLAG_CLEAN } else { 0 } | if rounded { FLAG_ROUNDED } else { 0 };
    let mut out = BytesMut::zeroed(HEADER_BYTES);
    attach::encode_history(&state.history, &mut out);
    let before = out.len();
    announce::encode(&announced, state.committed, &mut out);
    let announced_bytes = (out.len() - before) as u32;
    for run in levels.runs().iter().chain(levels.sorted()) {
        out.put_u32_le(run.len() as u32);
        for fragment in run {
            out.put_slice(&fragment.describe());
        }
    }
    moved.encode(&mut out);
    put_snapshots(&state.snapshots, pins, &mut out);
    let body = &out[HEADER_BYTES..];
    let mut raw = RawHeader {
        magic: MAGIC.into(),
        version: ROOT_VERSION.into(),
        flags: flags.into(),
        volume: state.volume.0.into(),
        generation: generation.into(),
        number: state.number.into(),
        sectors: state.sectors.into(),
        committed: state.committed.into(),
        header_crc: state.header_crc.into(),
        epochs: (state.history.len() as u32).into(),
        announced: (announced.len() as u32).into(),
        announced_bytes: announced_bytes.into(),
        runs: (levels.runs().len() as u32).into(),
        levels: (levels.sorted().len() as u32).into(),
        void_after: state.void_after.into(),
        body_bytes: (body.len() as u64).into(),
        body_crc: crc32c::crc32c(body).into(),
        crc: 0.into(),
    };
    raw.crc = crc32c::crc32c(&raw.as_bytes()[..HEADER_BYTES - 4]).into();
    out[..HEADER_BYTES].copy_from_slice(raw.as_bytes());
    out.freeze()
}

/// Encodes the root of a snapshot: `levels` are its map, and `state` that after the segment that
/// took it.
#[must_use]
pub fn encode_pin(generation: u64, state: &LogState, levels: &Levels) -> Bytes {
    let mut state = state.clone();
    state.announced.clear();
    state.snapshots = Snapshots::default();
    encode(generation, &state, levels, &Pins::new(), &Moved::default(), 1)
}

fn put_snapshots(snapshots: &Snapshots, pins: &Pins, out: &mut BytesMut) {
    let pinned = |snapshot: &&Snapshot| pins.contains_key(&snapshot.segment);
    out.put_u32_le(snapshots.iter().filter(pinned).count() as u32);
    out.put_u32_le(snapshots.clones().len() as u32);
    for snapshot in snapshots.iter() {
        let Some(pin) = pins.get(&snapshot.segment) else { continue };
        let raw = RawSnapshot {
            segment: snapshot.segment.into(),
            id: snapshot.id.0.into(),
            created: snapshot.created.into(),
            sectors: snapshot.sectors.into(),
            generation: pin.generation.into(),
            number: pin.number.into(),
            flags: if snapshot.hidden { FLAG_HIDDEN } else { 0 },
            name_bytes: snapshot.name.len() as u8,
        };
        out.put_slice(raw.as_bytes());
        out.put_slice(snapshot.name.as_bytes());
    }
    for clone in snapshots.clones() {
        let raw = RawClone {
            segment: clone.segment.into(),
            id: clone.id.0.into(),
            name_bytes: clone.name.len() as u8,
        };
        out.put_slice(raw.as_bytes());
        out.put_slice(clone.name.as_bytes());
    }
}

fn take_name(bytes: &[u8], length: u8) -> Option<(String, &[u8])> {
    let (name, rest) = bytes.split_at_checked(usize::from(length))?;
    let name = std::str::from_utf8(name).ok().filter(|name| check_name(name).is_ok())?;
    Some((name.to_owned(), rest))
}

/// Reads the output of [`put_snapshots`], of a volume after segment `number`.
fn take_snapshots(bytes: &[u8], number: u64) -> Option<(Snapshots, Pins)> {
    let (count, rest) = bytes.split_first_chunk()?;
    let (clones, mut rest) = rest.split_first_chunk()?;
    let (mut list, mut pins) = (Vec::new(), Pins::new());
    for _ in 0..u32::from_le_bytes(*count) {
        let (raw, after) = RawSnapshot::ref_from_prefix(rest).ok()?;
        let (name, after) = take_name(after, raw.name_bytes)?;
        let snapshot = Snapshot {
            segment: raw.segment.get(),
            id: VolumeId(raw.id.get()),
            name,
            created: raw.created.get(),
            sectors: raw.sectors.get(),
            hidden: raw.flags & FLAG_HIDDEN != 0,
        };
        let pin = RootName {
            generation: raw.generation.get(),
            segment: snapshot.segment,
            number: raw.number.get(),
        };
        let possible = raw.flags & !FLAG_HIDDEN == 0
            && (1..=number).contains(&snapshot.segment)
            && snapshot.sectors <= MAX_VOLUME_SECTORS;
        pins.insert(snapshot.segment, pin);
        list.push(possible.then_some(snapshot)?);
        rest = after;
    }
    let mut found = Vec::new();
    for _ in 0..u32::from_le_bytes(*clones) {
        let (raw, after) = RawClone::ref_from_prefix(rest).ok()?;
        let (name, after) = take_name(after, raw.name_bytes)?;
        found.push(CloneOf { segment: raw.segment.get(), id: VolumeId(raw.id.get()), name });
        rest = after;
    }
    let snapshots = Snapshots::new(list, found)?;
    rest.is_empty().then_some((snapshots, pins))
}

/// Reads a root of a volume, or of a snapshot of it. It keeps at most `announce_max` announced
/// ranges.
///
/// # Errors
/// The damage of the root.
pub fn parse(spec: &VolumeSpec, object: &[u8], announce_max: usize) -> Result<Root, MapError> {
    let (raw, body) = RawHeader::ref_from_prefix(object).map_err(|_| MapError::Short)?;
    if raw.magic.get() != MAGIC {
        return Err(MapError::Magic("root"));
    }
    if raw.version.get() != ROOT_VERSION {
        return Err(MapError::Version(raw.version.get()));
    }
    if crc32c::crc32c(&raw.as_bytes()[..HEADER_BYTES - 4]) != raw.crc.get() {
        return Err(MapError::Checksum("header"));
    }
    if raw.volume.get() != spec.id.0 {
        return Err(MapError::Invalid("it belongs to another volume"));
    }
    if raw.body_bytes.get() > body.len() as u64 {
        return Err(MapError::Short);
    }
    if raw.body_bytes.get() < body.len() as u64 {
        return Err(MapError::Invalid("bytes follow its end"));
    }
    if crc32c::crc32c(body) != raw.body_crc.get() {
        return Err(MapError::Checksum("body"));
    }
    let (epochs, committed) = (raw.epochs.get() as usize, raw.committed.get());
    let (runs, levels) = (raw.runs.get() as usize, raw.levels.get() as usize);
    let bad = MapError::Invalid("impossible root");
    let sectors = raw.sectors.get();
    let possible = (1..=MAX_VOLUME_SECTORS).contains(&sectors)
        && epochs <= MAX_HISTORY
        && runs <= MAX_RUNS
        && levels <= LEVELS_MAX
        && raw.void_after.get() <= raw.number.get()
        && raw.flags.get() & !(FLAG_CLEAN | FLAG_ROUNDED) == 0;
    if !possible {
        return Err(bad);
    }
    let (history, rest) = attach::decode_history(body, epochs).ok_or(bad)?;
    let (announced, mut rest) =
        rest.split_at_checked(raw.announced_bytes.get() as usize).ok_or(bad)?;
    let announced =
        announce::decode(announced, raw.announced.get() as usize, committed).ok_or(bad)?;
    let mut all = Vec::with_capacity(runs + levels);
    for _ in 0..runs + levels {
        let (fragments, after) = take_run(rest).ok_or(bad)?;
        let fragments = fragments.as_chunks::<DESCRIPTION_BYTES>().0;
        let run: Result<Vec<Fragment>, MapError> =
            fragments.iter().map(|fragment| Fragment::parse(fragment)).collect();
        let run = run?;
        // It may have holes beyond the end of a volume that shrank.
        if run.iter().any(|fragment| !fragment.span.fits(MAX_VOLUME_SECTORS)) {
            return Err(MapError::Invalid("a fragment beyond the end of any volume"));
        }
        all.push(run);
        rest = after;
    }
    let moved = Moved::take(&mut rest)?;
    let (snapshots, pins) = take_snapshots(rest, raw.number.get()).ok_or(bad)?;
    let sorted = all.split_off(runs);
    let levels = Levels::new(all, sorted)?;
    let mut state = LogState::new(spec, announce_max);
    state.number = raw.number.get();
    state.header_crc = raw.header_crc.get();
    state.void_after = raw.void_after.get();
    state.sectors = sectors;
    state.committed = committed;
    state.clean = raw.flags.get() & FLAG_CLEAN != 0;
    state.announced.replace(&announced, raw.flags.get() & FLAG_ROUNDED != 0);
    state.history = history;
    state.snapshots = snapshots;
    Ok(Root { generation: raw.generation.get(), state, levels, pins, moved })
}

/// The descriptions of a run, and what follows it.
fn take_run(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (count, rest) = bytes.split_first_chunk()?;
    let count = u32::from_le_bytes(*count) as usize;
    rest.split_at_checked(count.checked_mul(DESCRIPTION_BYTES)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Range;
    use crate::store::attach::HistoryEntry;
    use crate::store::map::fragment::FragmentId;
    use crate::wire::link::{Announced, HostId, KeyId};

    fn spec() -> VolumeSpec {
        VolumeSpec {
            id: VolumeId(0xfeed),
            name: "a".into(),
            created_sectors: 800,
            block_bytes: 512,
            created: 0,
            parents: Vec::new(),
        }
    }

    fn fragment(number: u64, lba: u64) -> Fragment {
        Fragment {
            id: FragmentId { volume: VolumeId(7), generation: 3, number },
            span: Range::new(lba, 100),
            entries: 5,
            data_sectors: 40,
            holes: 1,
            pages_bytes: 60,
            pages: 1,
            index_crc: 0x1234_5678,
        }
    }

    fn root() -> (LogState, Levels) {
        let mut state = LogState::new(&spec(), 100);
        (state.number, state.void_after) = (64, 0x31);
        state.header_crc = 0xdead_beef;
        state.sectors = 1000;
        state.committed = 9;
        state.clean = false;
        state.announced.insert(Announced { range: Range::new(8, 8), seq: 10 });
        let (host, key) = (Some(HostId(2)), KeyId([0xab; 32]));
        state.history = vec![HistoryEntry { epoch: 1, host, base: 5, committed: 4, key }];
        let runs = vec![vec![fragment(9, 50)], vec![fragment(8, 0), fragment(7, 100)]];
        let levels = Levels::new(runs, vec![Vec::new(), vec![fragment(1, 0)]]);
        (state, levels.unwrap())
    }

    #[test]
    fn golden_bytes() {
        let (state, levels) = root();
        let bytes = encode(5, &state, &levels, &Pins::new(), &Moved::default(), 100);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = [
            "4c485254 0100 0000 edfe0000000000000000000000000000",
            "0500000000000000 4000000000000000 e803000000000000 0900000000000000",
            "efbeadde 01000000 01000000 03000000 02000000 02000000",
            "3100000000000000 bb01000000000000 2304c330 6a0efdaa",
            "0100000000000000 0500000000000000 0400000000000000 02000000000000000000000000000000",
            "abababababababababababababababababababababababababababababababab",
            "080801",
            "01000000",
            "07000000000000000000000000000000 0300000000000000 0900000000000000",
            "3200000000000000 6400000000000000 0500000000000000 2800000000000000",
            "3c000000 01000000 78563412 01000000",
            "02000000",
        ];
        // Nothing has moved, and there are no snapshots.
        assert!(hex.ends_with(&"00".repeat(24 + 8)), "{hex}");
        assert!(hex.starts_with(&expected.concat().replace(' ', "")), "{hex}");
        assert_eq!(bytes.len(), HEADER_BYTES + 72 + 3 + 4 * 4 + 4 * DESCRIPTION_BYTES + 24 + 8);
        assert_eq!((HEADER_BYTES, DESCRIPTION_BYTES), (104, 80));
    }

    #[test]
    fn roots_round_trip() {
        let (state, levels) = root();
        let bytes = encode(5, &state, &levels, &Pins::new(), &Moved::default(), 100);
        let root = parse(&spec(), &bytes, 100).unwrap();
        assert_eq!((root.generation, &root.levels), (5, &levels));
        let LogState { number, header_crc, sectors, committed, clean, .. } = root.state;
        assert_eq!((number, header_crc, sectors), (64, 0xdead_beef, 1000));
        assert_eq!((committed, clean), (9, false));
        assert_eq!(root.state.history, state.history);
        assert_eq!(encode(5, &root.state, &root.levels, &root.pins, &root.moved, 100), bytes);
    }

    /// Two snapshots, one of which is only there for its clone.
    fn with_snapshots() -> (LogState, Levels, Pins) {
        let (mut state, levels) = root();
        let snapshot = |segment, hidden| Snapshot {
            segment,
            id: VolumeId(segment.into()),
            name: format!("s{segment}"),
            created: 1_700_000_000,
            sectors: 900,
            hidden,
        };
        let clone = CloneOf { segment: 8, id: VolumeId(0xc), name: "c".into() };
        state.snapshots =
            Snapshots::new(vec![snapshot(8, true), snapshot(64, false)], vec![clone]).unwrap();
        let pin = |segment| RootName { generation: 3, segment, number: 2 };
        (state, levels, Pins::from([(8, pin(8)), (64, pin(64))]))
    }

    #[test]
    fn what_has_moved_round_trips() {
        let (plain, levels) = root();
        let (state, _, pins) = with_snapshots();
        let second = Levels::new(vec![vec![fragment(1 << 63, 7)]], Vec::new()).unwrap();
        let moved = Moved { levels: second, stored_bytes: 1 << 40, named_bytes: 99 };
        for (state, pins) in [(plain, Pins::new()), (state, pins)] {
            let bytes = encode(5, &state, &levels, &pins, &moved, 100);
            let root = parse(&spec(), &bytes, 100).unwrap();
            assert_eq!((&root.levels, &root.moved, &root.pins), (&levels, &moved, &pins));
            assert_eq!(root.state.snapshots, state.snapshots);
            assert_eq!(encode(5, &root.state, &root.levels, &root.pins, &root.moved, 100), bytes);
            for at in 0..bytes.len() {
                assert!(parse(&spec(), &bytes[..at], 100).is_err(), "cut at {at}");
            }
        }
    }

    #[test]
    fn snapshots_and_clones_round_trip() {
        let none = Moved::default();
        let (state, levels, pins) = with_snapshots();
        let bytes = encode(5, &state, &levels, &pins, &none, 100);
        let plain = encode(5, &root().0, &levels, &Pins::new(), &none, 100);
        assert_eq!(bytes.len() - plain.len(), 2 * 58 + 2 + 3 + 25 + 1);
        let expected = [
            "02000000 01000000",
            "0800000000000000 08000000000000000000000000000000 00f1536500000000 8403000000000000",
            "0300000000000000 0200000000000000 01 02 7338",
        ];
        let hex: String =
            bytes[plain.len() - 8..].iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(hex.starts_with(&expected.concat().replace(' ', "")), "{hex}");
        let found = parse(&spec(), &bytes, 100).unwrap();
        assert_eq!((&found.state.snapshots, &found.pins), (&state.snapshots, &pins));
        assert_eq!(encode(5, &found.state, &found.levels, &found.pins, &none, 100), bytes);
        let pin = parse(&spec(), &encode_pin(5, &state, &levels), 100).unwrap();
        assert!(pin.state.snapshots.is_empty() && pin.state.announced.is_empty());
        assert_eq!((pin.levels, pin.state.history), (levels, state.history));
        for at in 0..bytes.len() {
            assert!(parse(&spec(), &bytes[..at], 100).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn damaged_or_foreign_roots_are_refused() {
        let (state, levels) = root();
        let bytes = encode(5, &state, &levels, &Pins::new(), &Moved::default(), 100);
        for at in 0..bytes.len() {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 4;
            assert!(parse(&spec(), &damaged, 100).is_err(), "byte {at}");
            assert!(parse(&spec(), &bytes[..at], 100).is_err(), "cut at {at}");
        }
        let other = VolumeSpec { id: VolumeId(1), ..spec() };
        assert!(parse(&other, &bytes, 100).is_err());
        assert!(parse(&spec(), &[&bytes[..], &[0]].concat(), 100).is_err());
        // Fragments that overlap, and one named twice.
        let overlapping = vec![vec![fragment(1, 0), fragment(2, 50)]];
        assert!(Levels::new(Vec::new(), overlapping).is_err());
        assert!(Levels::new(vec![vec![fragment(1, 0)], vec![fragment(1, 0)]], Vec::new()).is_err());
    }
}
