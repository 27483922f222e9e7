//! Damaged and missing objects: the detection, the rest of the data, and the messages to the host.

use super::scenarios::{attached, commit, opened};
use super::*;
use crate::wire::link::MAX_DAMAGED_RANGES;

fn told(rig: &Rig) -> Vec<Vec<Range>> {
    let told = rig.inbox.iter().filter_map(|(session, lane, frame)| match &frame.message {
        ToHost::Damaged { volume, epoch, ranges } => {
            assert_eq!((*session, *lane, *volume, *epoch), (SessionId(1), Lane::Control, ID, 1));
            assert!(ranges.len() <= MAX_DAMAGED_RANGES);
            Some(ranges.clone())
        }
        _ => None,
    });
    told.collect()
}

fn damaged(rig: &mut Rig, objects: &mut Objects, key: &str, ranges: &[Range]) {
    rig.inbox.clear();
    rig.volume.handle_damaged(rig.now, key, ranges);
    rig.collect();
    rig.settle(objects);
}

#[test]
fn the_host_is_told_of_what_is_still_read_from_a_damaged_object() {
    let (mut objects, mut rig) = attached();
    commit(&mut rig, &mut objects, 1, 1, &[data(0, 16, 1), data(24, 8, 2)]);
    commit(&mut rig, &mut objects, 1, 3, &[data(4, 4, 3)]);
    let key = |number| catalog::segment_key(ID, number);
    let all = [Range::new(0, 16), Range::new(24, 8)];
    damaged(&mut rig, &mut objects, &key(2), &all);
    let left = vec![Range::new(0, 4), Range::new(8, 8), Range::new(24, 8)];
    assert_eq!(told(&rig), [left]);
    assert!(rig.events.contains(&Event::DamageTold {
        session: SessionId(1),
        ranges: 3,
        bytes: 20 * 512
    }));
    // Only of the ranges that the object lost.
    damaged(&mut rig, &mut objects, &key(2), &[Range::new(26, 2), Range::new(60, 400)]);
    assert_eq!(told(&rig), [[Range::new(26, 2)]]);
    // Once the host has written all of it anew, the store has nothing left to tell.
    commit(&mut rig, &mut objects, 1, 4, &[data(0, 32, 4)]);
    damaged(&mut rig, &mut objects, &key(2), &all);
    assert!(told(&rig).is_empty());
    // Nor of objects that it has nothing to do with.
    for key in [key(9), catalog::segment_key(VolumeId(7), 4), "v/x/frag/1".into()] {
        damaged(&mut rig, &mut objects, &key, &all);
        assert!(told(&rig).is_empty(), "{key}");
    }
    // The store tells all ranges that a part of the map has lost.
    let fragment = format!("{}map/1", catalog::volume_prefix(ID));
    damaged(&mut rig, &mut objects, &fragment, &all);
    assert_eq!(told(&rig), [all]);
}

#[test]
fn nobody_is_told_where_nobody_listens() {
    let (mut objects, mut rig) = attached();
    commit(&mut rig, &mut objects, 1, 1, &[data(0, 16, 1)]);
    rig.volume.handle_session_closed(rig.now, SessionId(1));
    rig.collect();
    damaged(&mut rig, &mut objects, &catalog::segment_key(ID, 2), &[Range::new(0, 16)]);
    assert!(told(&rig).is_empty());
    rig.volume.handle_shutdown(rig.now);
    rig.collect();
    damaged(&mut rig, &mut objects, &catalog::segment_key(ID, 2), &[Range::new(0, 16)]);
    rig.settle(&mut objects);
    assert!(rig.volume.is_idle());
}

#[test]
fn damage_is_confined_to_its_range() {
    let (mut objects, mut rig) = attached();
    commit(&mut rig, &mut objects, 1, 1, &[data(0, 32, 1), data(32, 8, 2)]);
    let key = catalog::segment_key(ID, 2);
    let tags = content(&[data(0, 32, 1), data(32, 8, 2)]);
    // The second block of the first record.
    objects.damage(&key, segment::HEADER_BYTES + 48 + 16 + 4096 + 5);
    assert_eq!(rig.read_all(&mut objects), Err(ReadError::Medium(Range::new(8, 8))));
    assert_eq!(rig.read(&mut objects, Range::new(9, 3)), Err(ReadError::Medium(Range::new(9, 3))));
    assert_eq!(rig.read(&mut objects, Range::new(16, 48)).unwrap(), tags[16..]);
    assert_eq!(rig.read(&mut objects, Range::new(0, 8)).unwrap(), tags[..8]);
    let named = |event: &Event| matches!(event, Event::DataDamaged { key: k, .. } if *k == key);
    assert!(rig.events.iter().any(named));
    // A segment that is gone is damage too.
    let gone = objects.0.remove(&key);
    let whole = Range::new(0, 32);
    assert_eq!(rig.read(&mut objects, whole), Err(ReadError::Medium(whole)));
    assert!(gone.is_some());
}

#[test]
fn damage_is_waited_for_where_there_is_a_second_place() {
    let (mut objects, mut rig) = attached();
    commit(&mut rig, &mut objects, 1, 1, &[data(0, 8, 1)]);
    rig.volume.handle_replica(rig.now, ReplicaDurability::Behind);
    let key = catalog::segment_key(ID, 2);
    let sound = objects.0[&key].clone();
    objects.damage(&key, segment::HEADER_BYTES + 48 + 16 + 5);
    let range = Range::new(0, 8);
    let answers = |rig: &Rig| rig.inbox.iter().filter(|m| m.0 == SessionId(999)).count();
    let ask = |rig: &mut Rig, objects: &mut Objects| {
        rig.send(999, Lane::Read, ToStore::Read { request: 5, volume: ID, epoch: 0, range });
        rig.settle(objects);
    };
    let repaired = |rig: &mut Rig, objects: &mut Objects, repaired| {
        rig.volume.handle_repaired(rig.now, &key, repaired);
        rig.collect();
        rig.settle(objects);
    };
    ask(&mut rig, &mut objects);
    let named = |event: &Event| matches!(event, Event::DataDamaged { key: k, .. } if *k == key);
    assert!(rig.events.iter().any(named));
    assert!(answers(&rig) == 0 && !rig.volume.is_idle());
    // The object is lost: the answer without a replica comes now.
    repaired(&mut rig, &mut objects, false);
    assert!(answers(&rig) == 1 && rig.volume.is_idle());
    // The engine does not wait for closed sessions.
    ask(&mut rig, &mut objects);
    rig.volume.handle_session_closed(rig.now, SessionId(999));
    assert!(rig.volume.is_idle());
    ask(&mut rig, &mut objects);
    objects.0.insert(key.clone(), sound);
    repaired(&mut rig, &mut objects, true);
    assert_eq!(answers(&rig), 2);
    assert_eq!(rig.read(&mut objects, range).unwrap(), content(&[data(0, 8, 1)])[..8]);
    // Once more damaged, as if it had not become better: nobody waits for ever.
    objects.damage(&key, segment::HEADER_BYTES + 48 + 16 + 5);
    assert_eq!(rig.read(&mut objects, range), Err(ReadError::Medium(range)));
    // The engine reports a missing object soon, and looks for it anew when it is back.
    let mut sound = objects.0.remove(&key).unwrap().to_vec();
    assert_eq!(rig.read(&mut objects, range), Err(ReadError::Medium(range)));
    let told = |event: &&Event| matches!(event, Event::Unreadable { key: k } if *k == key);
    assert_eq!(rig.events.iter().filter(told).count(), 1);
    sound[segment::HEADER_BYTES + 48 + 16 + 5] ^= 0x40;
    objects.0.insert(key.clone(), sound.into());
    repaired(&mut rig, &mut objects, true);
    assert_eq!(rig.read(&mut objects, range).unwrap(), content(&[data(0, 8, 1)])[..8]);
}

#[test]
fn what_does_not_verify_is_fetched_once_more() {
    let (mut objects, mut rig) = attached();
    commit(&mut rig, &mut objects, 1, 1, &[data(0, 8, 1)]);
    let range = Range::new(0, 8);
    rig.send(999, Lane::Read, ToStore::Read { request: 77, volume: ID, epoch: 0, range });
    let (id, _) = rig.pending.remove(0);
    rig.volume.handle_object(rig.now, id, ObjectResult::Get(Ok(Bytes::from(vec![0; 5000]))));
    rig.collect();
    assert_eq!(
        (rig.pending.len(), rig.inbox.iter().filter(|m| m.0 == SessionId(999)).count()),
        (1, 0)
    );
    rig.settle(&mut objects);
    assert!(rig.has(999, |m| matches!(m, ToHost::Data { result: Ok(_), .. })));
}

#[test]
fn a_damaged_root_falls_back() {
    let mut objects = Objects::default();
    let config = tiny();
    let mut rig = Rig::open(1, &config);
    rig.settle(&mut objects);
    rig.attach(&mut objects, 1, 1, None).unwrap();
    for n in 1..=18 {
        commit(&mut rig, &mut objects, 1, n, &[data(n, 9, n as u16)]);
    }
    rig.send(1, Lane::Control, announce(1, true, &[(1, 2, 19), (30, 3, 20)]));
    rig.settle(&mut objects);
    let roots: Vec<String> = objects.roots().into_iter().map(|(key, _)| key).collect();
    assert_eq!(roots.len(), 2, "older roots are deleted");
    let expected = places(&rig.volume, &objects);
    for damaged in [0, 1, 2] {
        let mut objects = objects.clone();
        for key in roots.iter().rev().take(damaged) {
            let at = objects.0[key].len() / 2;
            objects.damage(key, at);
        }
        let mut again = Rig::open(2, &config);
        again.settle(&mut objects);
        same_state(again.volume.state(), rig.volume.state());
        assert_eq!(places(&again.volume, &objects), expected);
        let complaint = |event: &&Event| matches!(event, Event::RootDamaged { .. });
        // Again when the engine reads them to continue from one.
        assert!(again.events.iter().filter(complaint).count() >= damaged);
        assert!(damaged > 0 || !again.events.iter().any(|event| complaint(&event)));
    }
}

#[test]
fn a_damaged_or_missing_segment_is_named() {
    let (mut objects, mut rig) = attached();
    for n in 1..=6 {
        commit(&mut rig, &mut objects, 1, n, &[data(n, 1, 1)]);
    }
    for number in [1, 3, 6] {
        let key = catalog::segment_key(ID, number);
        let size = objects.0[&key].len();
        for at in [20, size - 40, size - 10] {
            let mut objects = objects.clone();
            objects.damage(&key, at);
            let mut again = opened(&mut objects, 2);
            assert!(again.volume.failed().unwrap().to_string().contains(&key));
            let refused = again.attach(&mut objects, 1, 1, Some((1, 6)));
            assert!(matches!(refused, Err(AttachError::Damaged(text)) if text.contains(&key)));
        }
        let mut objects = objects.clone();
        objects.0.remove(&key);
        let again = opened(&mut objects, 2);
        assert_eq!(again.volume.failed(), Some(&OpenError::Missing { key }));
    }
    // Another volume's segment, or this volume's of another history, is no substitute.
    let mut swapped = objects.clone();
    let other = objects.0[&catalog::segment_key(ID, 3)].clone();
    swapped.0.insert(catalog::segment_key(ID, 4), other);
    assert!(opened(&mut swapped, 2).volume.failed().is_some());
}

/// The right number, the right numbers of writes, but of another past.
#[test]
fn a_segment_of_another_history_is_noticed() {
    let (mut objects, mut rig) = attached();
    let mut other = objects.clone();
    let mut twin = opened(&mut other, 2);
    twin.resume(&mut other, 1, 1, 1).unwrap();
    commit(&mut twin, &mut other, 1, 1, &[data(0, 8, 9)]);
    commit(&mut rig, &mut objects, 1, 1, &[data(0, 8, 1)]);
    commit(&mut rig, &mut objects, 1, 2, &[data(8, 8, 2)]);
    let key = catalog::segment_key(ID, 2);
    objects.0.insert(key.clone(), other.0[&key].clone());
    let again = opened(&mut objects, 3);
    let key = catalog::segment_key(ID, 3);
    assert!(again.volume.failed().unwrap().to_string().contains(&key));
}

#[test]
fn a_log_shorter_than_its_root_is_refused() {
    let (mut objects, mut rig) = attached();
    commit(&mut rig, &mut objects, 1, 1, &[data(0, 8, 1)]);
    rig.volume.handle_shutdown(rig.now);
    rig.collect();
    rig.settle(&mut objects);
    let map = objects.roots().pop().unwrap().0;
    assert!(rig.volume.is_idle());
    objects.damage(&map, 60);
    objects.0.remove(&catalog::segment_key(ID, 2));
    let again = opened(&mut objects, 2);
    assert_eq!(again.volume.failed(), Some(&OpenError::Truncated { key: map, number: 2, end: 1 }));
}

#[test]
fn every_byte_of_a_segment_is_covered() {
    let (mut objects, mut rig) = attached();
    rig.send(1, Lane::Control, announce(1, true, &[(8, 16, 7)]));
    commit(&mut rig, &mut objects, 1, 1, &[data(3, 9, 1), data(1, 1, 2)]);
    let object = objects.0[&catalog::segment_key(ID, 2)].clone();
    segment::verify(&object).unwrap();
    for at in 0..object.len() {
        let mut bad = object.to_vec();
        bad[at] ^= 0x10;
        assert!(segment::verify(&Bytes::from(bad)).is_err(), "byte {at}");
    }
    for cut in [0, 1, 127, 128, 200, object.len() - 1] {
        assert!(segment::verify(&object.slice(..cut)).is_err());
    }
    let longer = [&object[..], &[0]].concat();
    assert!(segment::verify(&longer.into()).is_err());
}

#[test]
fn the_offline_check_goes_on_behind_damage() {
    let (mut objects, mut rig) = attached();
    for n in 1..=4 {
        commit(&mut rig, &mut objects, 1, n, &[data(n, 1, 1)]);
    }
    objects.damage(&catalog::segment_key(ID, 3), 300);
    let mut check = LogCheck::new(&spec());
    let results: Vec<bool> = (1..=5)
        .map(|n| check.handle_segment(&objects.0[&catalog::segment_key(ID, n)]).is_ok())
        .collect();
    assert_eq!(results, [true, true, false, true, true]);
}

/// A segment as another log might hold it: the same numbers, places and lengths, and other content.
fn imitation(object: &Bytes, volume: VolumeId, number: u64, first: u64) -> Bytes {
    let segment = segment::parse(object).unwrap();
    let shift = |seq: u64| seq - segment.header.first + first;
    let (mut records, mut pieces) = (BytesMut::new(), Vec::new());
    for piece in &segment.footer.pieces {
        let (range, seq) = (piece.range, shift(piece.seq));
        let offset = (segment::HEADER_BYTES + records.len()) as u32;
        if piece.kind == Kind::Packed {
            let packing = Packing { compression: Compression::Lz4, keys: None };
            let data = [0xee, 0].repeat(range.bytes() as usize / 2);
            Packer::new(volume, packing).pack(1, seq, range, &data, &mut records);
        } else {
            let data = [0xee, 0].repeat(range.bytes() as usize / 2);
            record::encode_data(volume, 1, seq, range, &data, &mut records);
        }
        pieces.push(segment::Piece { seq, offset, ..*piece });
    }
    let header = segment::Header {
        volume,
        number,
        first,
        last: shift(segment.header.last),
        ..segment.header
    };
    let footer = segment::Footer { pieces, ..segment.footer };
    segment::build(header, footer, vec![records.freeze()]).1.concat().into()
}

#[test]
fn a_segment_of_another_volume_or_number_is_a_medium_error_on_every_read() {
    let packed = |lba, sectors, tag| Write { kind: Kind::Packed, ..data(lba, sectors, tag) };
    let writes = [data(0, 16, 1), packed(16, 8, 2)];
    let (mut objects, mut rig) = attached();
    commit(&mut rig, &mut objects, 1, 1, &writes);
    commit(&mut rig, &mut objects, 1, 3, &[data(32, 16, 3), packed(48, 8, 4)]);
    let key = catalog::segment_key(ID, 2);
    let sound = objects.0[&key].clone();
    // Of another volume, under its own identity or with this volume's header: the same ranges and
    // numbers. Of this volume: the same ranges and later numbers.
    let other = VolumeId(0x11);
    let mut forged = imitation(&sound, other, 2, 1).to_vec();
    forged[..segment::HEADER_BYTES].copy_from_slice(&sound[..segment::HEADER_BYTES]);
    for wrong in [imitation(&sound, other, 2, 1), forged.into(), imitation(&sound, ID, 3, 3)] {
        assert_eq!(wrong.len(), sound.len());
        objects.0.insert(key.clone(), wrong);
        for (lba, sectors) in [(0, 16), (5, 1), (16, 8), (20, 1)] {
            let range = Range::new(lba, sectors);
            let read = rig.read(&mut objects, range);
            assert!(matches!(read, Err(ReadError::Medium(_))), "{range}: {read:?}");
        }
        assert_eq!(rig.read(&mut objects, Range::new(32, 1)).unwrap(), [3]);
        // A staging reads as well.
        let stage = ToStore::Stage {
            request: 1,
            volume: ID,
            epoch: 1,
            range: Range::new(0, 8),
            into: ID,
            lba: 40,
            object: STAGED_BIT | 1,
        };
        rig.send(1, Lane::ReadAhead, stage);
        rig.settle(&mut objects);
        assert!(!objects.0.contains_key(&catalog::staged_key(ID, STAGED_BIT | 1)));
        let verified = crate::store::scrub::verify(&spec(), &key, &objects.0[&key]);
        assert!(matches!(verified, Some(Err(_))));
    }
    objects.0.insert(key, sound);
    assert_eq!(rig.read_all(&mut objects).unwrap()[..4], [1; 4]);
    // Nor does the store take a batch of records of another volume.
    let mut batch = batch(1, 5, &[data(0, 8, 9)]);
    let mut records = BytesMut::new();
    record::encode_data(other, 1, 5, Range::new(0, 8), &[9; 4096], &mut records);
    batch.payload = records.freeze();
    rig.send(1, Lane::Drain, batch);
    rig.settle(&mut objects);
    assert!(rig.refused(1) && !rig.committed(1, 5));
}
