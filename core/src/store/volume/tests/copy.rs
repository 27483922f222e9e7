//! Staged objects: made, written, read, and what can go wrong with them.

use super::*;
use crate::block::{STAGED_BIT, StagedData};
use crate::store::staged;
use crate::wire::link::{StageError, StagedRun};

const OBJECT: u64 = STAGED_BIT | 0x77;

fn attached_with(config: &Config) -> (Objects, Rig) {
    let mut objects = Objects::default();
    let mut rig = Rig::open(1, config);
    rig.settle(&mut objects);
    rig.attach(&mut objects, 1, 1, None).unwrap();
    (objects, rig)
}

/// Sectors 5 to 20 hold 1, 21 to 24 are zeroes, 25 to 40 hold 2, and the first of them 3.
const WRITES: [Write; 4] = [
    data(5, 16, 1),
    Write { kind: Kind::Zero, range: Range::new(21, 4), tag: 0 },
    data(25, 16, 2),
    data(25, 1, 3),
];

fn written() -> (Objects, Rig) {
    let (mut objects, mut rig) = attached_with(&Config::default());
    rig.send(1, Lane::Drain, batch(1, 1, &WRITES));
    rig.settle(&mut objects);
    (objects, rig)
}

fn stage(range: Range, lba: u64, object: u64) -> ToStore {
    ToStore::Stage { request: 8, volume: ID, epoch: 1, range, into: ID, lba, object }
}

fn staged_answer(rig: &mut Rig) -> Option<Result<Vec<StagedRun>, StageError>> {
    let at = rig.inbox.iter().position(|(_, _, f)| matches!(f.message, ToHost::Staged { .. }))?;
    let ToHost::Staged { request: 8, result, .. } = rig.inbox.remove(at).2.message else {
        panic!("an answer to another request")
    };
    Some(result)
}

/// A batch of one record for each run, cut by `skip` sectors at the beginning of all.
fn copy_batch(first: u64, lba: u64, skip: u64, runs: &[StagedRun]) -> Frame<ToStore> {
    let (mut payload, mut seq, mut at) = (BytesMut::new(), first, lba);
    for run in runs {
        let (StagedRun::Hole(sectors) | StagedRun::Zero(sectors) | StagedRun::Data { sectors, .. }) =
            *run;
        let whole = Range::new(at, sectors);
        at = whole.end();
        let range = Range::between(whole.lba.max(lba + skip), whole.end());
        if range.is_empty() {
            continue;
        }
        match *run {
            StagedRun::Hole(_) => {
                record::encode_marker(ID, Kind::Discard, 1, seq, range, &mut payload);
            }
            StagedRun::Zero(_) => {
                record::encode_marker(ID, Kind::Zero, 1, seq, range, &mut payload);
            }
            StagedRun::Data { offset, .. } => {
                let staged = StagedData { object: OBJECT, offset, record: whole };
                record::encode_staged(ID, 1, seq, range, staged, &mut payload);
            }
        }
        seq += 1;
    }
    let message = ToStore::Batch { volume: ID, epoch: 1, first, last: seq - 1 };
    Frame { message, payload: payload.freeze() }
}

/// Stages sectors 3 to 27 for 30 and writes them there but for the first 7.
fn copied() -> (Objects, Rig, Vec<u16>) {
    let (mut objects, mut rig) = written();
    rig.send(1, Lane::ReadAhead, stage(Range::new(3, 24), 30, OBJECT));
    rig.settle(&mut objects);
    let runs = staged_answer(&mut rig).unwrap().unwrap();
    let before = rig.read_all(&mut objects).unwrap();
    assert_eq!(before, content(&WRITES), "staging changes nothing");
    rig.send(1, Lane::Drain, copy_batch(5, 30, 7, &runs));
    rig.settle(&mut objects);
    let mut expected = before.clone();
    expected[37..54].copy_from_slice(&before[10..27]);
    (objects, rig, expected)
}

#[test]
fn runs_say_what_is_where() {
    let (mut objects, mut rig) = written();
    rig.send(1, Lane::ReadAhead, stage(Range::new(3, 24), 30, OBJECT));
    rig.settle(&mut objects);
    let runs = staged_answer(&mut rig).unwrap().unwrap();
    let second = record::HEADER_BYTES as u32 + 2 * 4 + 16 * 512;
    // Neighbors of different records come together.
    let expected = [
        StagedRun::Hole(2),
        StagedRun::Data { sectors: 16, offset: 0 },
        StagedRun::Zero(4),
        StagedRun::Data { sectors: 2, offset: second },
    ];
    assert_eq!(runs, expected);
    let object = &objects.0[&catalog::staged_key(ID, OBJECT)];
    let first = record::parse(ID, object).unwrap();
    assert_eq!((first.header.range, first.header.seq), (Range::new(32, 16), OBJECT));
    let second = record::parse(ID, &object.slice(second as usize..)).unwrap();
    assert_eq!(second.header.range, Range::new(52, 2));
    assert_eq!(first.header.record_bytes() + second.header.record_bytes(), object.len());
}

#[test]
fn a_copy_is_read_replayed_and_checked_like_any_write() {
    let (mut objects, mut rig, expected) = copied();
    assert!(rig.committed(1, 7));
    assert_eq!(rig.read_all(&mut objects).unwrap(), expected);
    // From the segments alone, ...
    let mut again = Rig::open(2, &Config::default());
    again.settle(&mut objects);
    same_state(again.volume.state(), rig.volume.state());
    assert_eq!(places(&again.volume, &objects), places(&rig.volume, &objects));
    assert_eq!(again.read_all(&mut objects).unwrap(), expected);
    // ... from a root, ...
    rig.volume.handle_shutdown(rig.now);
    rig.collect();
    rig.settle(&mut objects);
    let mut again = Rig::open(3, &Config::default());
    again.settle(&mut objects);
    let opened = |event: &Event| matches!(event, Event::Opened { replayed: 0, .. });
    assert!(again.events.iter().any(opened), "{:?}", again.events);
    same_state(again.volume.state(), rig.volume.state());
    assert_eq!(places(&again.volume, &objects), places(&rig.volume, &objects));
    assert_eq!(again.read_all(&mut objects).unwrap(), expected);
    // ... and by the offline check.
    let mut check = LogCheck::new(&spec());
    while let Some(object) = objects.0.get(&catalog::segment_key(ID, check.next())) {
        check.handle_segment(object).unwrap();
    }
    same_state(check.state(), rig.volume.state());
    assert_eq!(places_in(check.table(), SECTORS), places(&rig.volume, &objects));
    let object = &objects.0[&catalog::staged_key(ID, OBJECT)];
    let places = check.table().iter_from(0).filter_map(|(range, place)| Some((range, place?)));
    for (range, place) in places.filter(|(_, place)| place.is_staged()) {
        staged::check(ID, object, range.lba, place).unwrap();
    }
    objects.check_newest_root();
}

#[test]
fn damage_to_a_segment_with_staged_records_is_noticed() {
    let (objects, ..) = copied();
    let object = &objects.0[&catalog::segment_key(ID, 3)];
    for at in 0..object.len() {
        let mut bad = object.to_vec();
        bad[at] ^= 0x10;
        assert!(segment::verify(&Bytes::from(bad)).is_err(), "byte {at}");
    }
}

#[test]
fn a_staged_object_that_is_damaged_or_gone_is_a_medium_error() {
    let (mut objects, mut rig, _) = copied();
    let key = catalog::staged_key(ID, OBJECT);
    let whole = objects.0[&key].clone();
    // The block of sector 40, which is the eighth of the record.
    objects.damage(&key, 48 + 2 * 4 + 8 * 512);
    assert_eq!(rig.read(&mut objects, Range::new(48, 6)).unwrap().len(), 6);
    let error = rig.read_all(&mut objects).unwrap_err();
    assert_eq!(error, ReadError::Medium(Range::new(40, 8)));
    let named = |event: &Event| matches!(event, Event::DataDamaged { key: k, .. } if *k == key);
    assert!(rig.events.iter().any(named));
    let place =
        rig.volume.map.tree().table().overlapping(Range::new(40, 1)).next().unwrap().1.unwrap();
    assert!(staged::check(ID, &objects.0[&key], 40, place).is_err());
    assert!(staged::check(ID, &whole.slice(..100), 40, place).is_err());
    // Another object in its place is not mistaken for it.
    let mut other = BytesMut::new();
    record::encode_data(ID, 1, OBJECT + 1, Range::new(32, 16), &[1; 16 * 512], &mut other);
    objects.0.insert(key.clone(), other.freeze());
    assert!(rig.read(&mut objects, Range::new(40, 1)).is_err());
    assert!(staged::check(ID, &objects.0[&key], 40, place).is_err());
    objects.0.remove(&key);
    assert!(rig.read(&mut objects, Range::new(40, 1)).is_err());
    // Staging of damaged data fails, and names the source.
    rig.send(1, Lane::ReadAhead, stage(Range::new(38, 4), 0, OBJECT + 2));
    rig.settle(&mut objects);
    let error = staged_answer(&mut rig).unwrap().unwrap_err();
    assert_eq!(error, StageError::Read(ReadError::Medium(Range::new(38, 4))));
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let (mut objects, mut rig) = written();
    let good = Range::new(0, 8);
    let epoch = |epoch| ToStore::Stage {
        request: 8,
        volume: ID,
        epoch,
        range: good,
        into: ID,
        lba: 0,
        object: OBJECT,
    };
    for (message, expected) in [
        (stage(Range::new(0, 0), 0, OBJECT), ReadError::Invalid),
        (stage(Range::new(60, 8), 0, OBJECT), ReadError::Invalid),
        (stage(good, 0, 7), ReadError::Invalid),
        (stage(good, (1 << 53) - 7, OBJECT), ReadError::Invalid),
        (stage(good, u64::MAX, OBJECT), ReadError::Invalid),
        (epoch(0), ReadError::Invalid),
        (epoch(2), ReadError::NotAttached),
    ] {
        rig.send(1, Lane::ReadAhead, message);
        rig.settle(&mut objects);
        let answer = staged_answer(&mut rig).unwrap();
        assert_eq!(answer, Err(StageError::Read(expected)));
    }
    rig.send(2, Lane::ReadAhead, stage(good, 0, OBJECT));
    let answer = staged_answer(&mut rig).unwrap();
    assert_eq!(answer, Err(StageError::Read(ReadError::NotAttached)));
    assert!(!objects.0.keys().any(|key| key.contains("/staged/")));
}

#[test]
fn a_number_is_used_once() {
    for fate in [Fate::Good, Fate::FailsAfter] {
        let (mut objects, mut rig) = written();
        if fate == Fate::Good {
            objects.0.insert(catalog::staged_key(ID, OBJECT), Bytes::from("other"));
        }
        rig.send(1, Lane::ReadAhead, stage(Range::new(5, 4), 0, OBJECT));
        rig.execute(&mut objects, 0, Fate::Good);
        assert!(rig.pending[0].1.key().contains("/staged/"));
        rig.execute(&mut objects, 0, fate);
        rig.settle(&mut objects);
        assert_eq!(staged_answer(&mut rig), Some(Err(StageError::Exists)));
    }
}

#[test]
fn what_holds_no_data_needs_no_object() {
    let (mut objects, mut rig) = written();
    rig.send(1, Lane::ReadAhead, stage(Range::new(21, 4), 0, OBJECT));
    assert_eq!(staged_answer(&mut rig), Some(Ok(vec![StagedRun::Zero(4)])));
    rig.settle(&mut objects);
    assert!(!objects.0.contains_key(&catalog::staged_key(ID, OBJECT)));
}

#[test]
fn who_leaves_gets_no_object() {
    let (mut objects, mut rig) = written();
    rig.send(1, Lane::ReadAhead, stage(Range::new(5, 4), 0, OBJECT));
    rig.volume.handle_session_closed(rig.now, SessionId(1));
    rig.collect();
    rig.settle(&mut objects);
    assert!(rig.volume.is_idle());
    assert!(!objects.0.contains_key(&catalog::staged_key(ID, OBJECT)));
    // The engine counts nothing of it any more, and serves others.
    assert_eq!(rig.read_all(&mut objects).unwrap(), content(&WRITES));
}

/// Objects that the store cannot put delay no read that an initiator waits for, and take no more
/// memory than the limit.
#[test]
fn staging_is_bounded_and_in_nobodys_way() {
    let config = Config { read_bytes_max: 16 << 10, ..Config::default() };
    let (mut objects, mut rig) = attached_with(&config);
    rig.send(1, Lane::Drain, batch(1, 1, &[data(0, 64, 9)]));
    rig.settle(&mut objects);
    for n in 0..20 {
        rig.send(1, Lane::ReadAhead, stage(Range::new(0, 8), 8, OBJECT + n));
    }
    let is_put = |operation: &ObjectOperation| matches!(operation, ObjectOperation::Put { .. });
    while let Some(at) = rig.pending.iter().position(|(_, operation)| !is_put(operation)) {
        rig.execute(&mut objects, at, Fate::Good);
    }
    let putting = rig.pending.len();
    assert!((1..=2).contains(&putting), "{putting} of 4 KiB and more are held");
    rig.send(
        1,
        Lane::Read,
        ToStore::Read { request: 5, volume: ID, epoch: 1, range: Range::new(0, 64) },
    );
    while let Some(at) = rig.pending.iter().position(|(_, operation)| !is_put(operation)) {
        rig.execute(&mut objects, at, Fate::Good);
    }
    assert!(rig.has(1, |m| matches!(m, ToHost::Data { request: 5, result: Ok(_), .. })));
    rig.settle(&mut objects);
    let answers = std::iter::from_fn(|| staged_answer(&mut rig));
    assert_eq!(answers.filter(Result::is_ok).count(), 20);
}

fn write() -> impl Strategy<Value = Write> {
    let kind = prop_oneof![4 => Just(Kind::Data), 2 => Just(Kind::Packed), 1 => Just(Kind::Zero), 1 => Just(Kind::Discard)];
    (0..SECTORS, 1..24u64, kind, 1..999u16).prop_map(|(lba, sectors, kind, tag)| Write {
        kind,
        range: Range::between(lba, (lba + sectors).min(SECTORS)),
        tag,
    })
}

proptest! {
    /// For any content and any destination, the copy equals the source.
    #[test]
    fn a_copy_is_what_it_was_made_of(
        writes in prop::collection::vec(write(), 1..12),
        from in 0..SECTORS,
        to in 0..SECTORS,
        sectors in 1..SECTORS,
        skip in 0..SECTORS,
    ) {
        let sectors = sectors.min(SECTORS - from).min(SECTORS - to);
        let skip = skip % sectors;
        let (mut objects, mut rig) = attached_with(&Config::default());
        rig.send(1, Lane::Drain, batch(1, 1, &writes));
        rig.settle(&mut objects);
        rig.send(1, Lane::ReadAhead, stage(Range::new(from, sectors), to, OBJECT));
        rig.settle(&mut objects);
        let runs = staged_answer(&mut rig).unwrap().unwrap();
        rig.send(1, Lane::Drain, copy_batch(writes.len() as u64 + 1, to, skip, &runs));
        rig.settle(&mut objects);
        let before = content(&writes);
        let mut expected = before.clone();
        expected[(to + skip) as usize..(to + sectors) as usize]
            .copy_from_slice(&before[(from + skip) as usize..(from + sectors) as usize]);
        prop_assert_eq!(rig.read_all(&mut objects).unwrap(), expected.clone());
        let mut again = Rig::open(2, &Config::default());
        again.settle(&mut objects);
        prop_assert_eq!(again.read_all(&mut objects).unwrap(), expected);
    }
}
