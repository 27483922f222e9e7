//! A volume grows or shrinks: the messages about it, and the data that survives.

use super::*;
use crate::wire::link::{Changes, Moment, SnapshotOperation, VolumeError, VolumeInfo};

fn opened(objects: &mut Objects, incarnation: u128) -> Rig {
    let mut rig = Rig::open(incarnation, &Config::default());
    rig.settle(objects);
    rig
}

fn ask(rig: &mut Rig, session: u64, sectors: u64) {
    let operation = VolumeOperation::Resize { name: "test".into(), sectors };
    rig.send(session, Lane::Control, ToStore::Volume { request: 9, operation });
}

fn answer(rig: &mut Rig) -> Option<Result<VolumeInfo, VolumeError>> {
    let at = rig.inbox.iter().position(|(.., f)| matches!(f.message, ToHost::Volume { .. }))?;
    let ToHost::Volume { result, .. } = rig.inbox.remove(at).2.message else { return None };
    Some(result.map(|reply| match reply {
        VolumeReply::Volume(info) => info,
        other => panic!("not an answer: {other:?}"),
    }))
}

fn resize(rig: &mut Rig, objects: &mut Objects, sectors: u64) -> Result<u64, VolumeError> {
    ask(rig, 50, sectors);
    rig.settle(objects);
    answer(rig).expect("no answer to resize").map(|info| info.sectors)
}

fn told(rig: &Rig, session: u64, expected: u64) -> bool {
    rig.has(session, |m| matches!(m, ToHost::Resized { sectors, .. } if *sectors == expected))
}

fn segments(objects: &Objects) -> usize {
    objects.0.keys().filter(|key| key.starts_with(&catalog::segment_prefix(ID))).count()
}

#[test]
fn an_attached_volume_grows_and_its_host_is_told() {
    let mut objects = Objects::default();
    let mut rig = opened(&mut objects, 1);
    rig.attach(&mut objects, 1, 1, None).unwrap();
    rig.send(1, Lane::Drain, batch(1, 1, &[data(0, 8, 1)]));
    assert_eq!(resize(&mut rig, &mut objects, 96), Ok(96));
    assert!(told(&rig, 1, 96) && rig.committed(1, 1));
    assert!(!rig.fenced(1) && !rig.refused(1));
    rig.send(1, Lane::Drain, batch(1, 2, &[data(90, 6, 2)]));
    rig.settle(&mut objects);
    assert!(rig.committed(1, 2));
    let expected = content_of(96, &[data(0, 8, 1), data(90, 6, 2)]);
    assert_eq!(rig.read_all(&mut objects).unwrap(), expected);
    rig.send(1, Lane::Drain, batch(1, 3, &[data(90, 7, 3)]));
    assert!(rig.refused(1));
    // From the segments, and from a root.
    for incarnation in 2..4 {
        let mut rig = opened(&mut objects, incarnation);
        assert_eq!(rig.read_all(&mut objects).unwrap(), expected);
        assert_eq!(rig.resume(&mut objects, 1, 1, 1).unwrap().sectors, 96);
        rig.volume.handle_shutdown(rig.now);
        rig.collect();
        rig.settle(&mut objects);
        assert!(rig.volume.is_idle());
    }
    assert!(objects.0.keys().any(|key| key.starts_with(&catalog::root_prefix(ID))));
}

#[test]
fn a_volume_that_nobody_has_attached_grows_and_stays_as_clean_as_it_was() {
    let mut objects = Objects::default();
    let mut rig = opened(&mut objects, 1);
    assert_eq!(resize(&mut rig, &mut objects, 65), Ok(65));
    assert_eq!((rig.volume.state().epoch(), rig.volume.state().clean), (0, true));
    rig.attach(&mut objects, 1, 1, None).unwrap();
    assert_eq!(resize(&mut rig, &mut objects, 66), Ok(66));
    assert!(!rig.volume.state().clean);
    rig.send(1, Lane::Control, ToStore::Detach { request: 2, volume: ID, epoch: 1 });
    rig.settle(&mut objects);
    rig.inbox.clear();
    assert_eq!(resize(&mut rig, &mut objects, 67), Ok(67));
    assert!(rig.volume.state().clean && rig.inbox.is_empty());
    let attached = opened(&mut objects, 2).attach(&mut objects, 1, 2, None).unwrap();
    assert_eq!((attached.epoch, attached.sectors), (2, 67));
}

#[test]
fn what_is_announced_survives_a_resize() {
    let mut objects = Objects::default();
    let mut rig = opened(&mut objects, 1);
    rig.attach(&mut objects, 1, 1, None).unwrap();
    rig.send(1, Lane::Control, announce(1, true, &[(0, 8, 1)]));
    resize(&mut rig, &mut objects, 96).unwrap();
    rig.send(1, Lane::Control, announce(1, false, &[(88, 8, 2)]));
    rig.settle(&mut objects);
    let mut rig = opened(&mut objects, 2);
    let refused = rig.attach(&mut objects, 2, 2, None);
    assert_eq!(refused, Err(AttachError::LossPending { host: HostId(1), bytes: 16 * 512 }));
}

#[test]
fn the_same_size_costs_nothing_and_a_smaller_or_impossible_one_is_refused() {
    let mut objects = Objects::default();
    let mut rig = opened(&mut objects, 1);
    assert_eq!(resize(&mut rig, &mut objects, SECTORS), Ok(SECTORS));
    assert_eq!(objects.0.len(), 0);
    assert_eq!(resize(&mut rig, &mut objects, 80), Ok(80));
    let objects_then = objects.0.len();
    assert_eq!(resize(&mut rig, &mut objects, 80), Ok(80));
    for (sectors, why) in
        [(79, "cut off"), (0, "multiple"), (crate::block::MAX_VOLUME_SECTORS + 1, "at most")]
    {
        let error = resize(&mut rig, &mut objects, sectors).unwrap_err();
        assert!(matches!(&error, VolumeError::Invalid(text) if text.contains(why)), "{error:?}");
    }
    assert_eq!(objects.0.len(), objects_then);
}

#[test]
fn a_lost_answer_is_asked_for_again() {
    let mut objects = Objects::default();
    let mut rig = opened(&mut objects, 1);
    ask(&mut rig, 50, 96);
    while rig.pending.iter().all(|(_, o)| !matches!(o, ObjectOperation::Put { .. })) {
        rig.execute(&mut objects, 0, Fate::Good);
    }
    rig.execute(&mut objects, 0, Fate::FailsAfter);
    rig.volume.handle_session_closed(rig.now, SessionId(50));
    rig.settle(&mut objects);
    assert_eq!(answer(&mut rig), None);
    assert_eq!((resize(&mut rig, &mut objects, 96), segments(&objects)), (Ok(96), 1));
}

#[test]
fn a_size_that_was_not_noted_when_the_store_died_is_noted_later() {
    let mut objects = Objects::default();
    let mut rig = opened(&mut objects, 1);
    ask(&mut rig, 50, 96);
    while segments(&objects) == 0 {
        rig.execute(&mut objects, 0, Fate::Good);
    }
    let key = catalog::size_key(ID, 1);
    assert!(!objects.0.contains_key(&key));
    assert_eq!(answer(&mut rig), None, "acknowledged before it was noted");
    let mut rig = Rig::open(2, &Config::default());
    ask(&mut rig, 50, 96);
    rig.settle(&mut objects);
    assert_eq!(answer(&mut rig).unwrap().unwrap().sectors, 96);
    assert_eq!(catalog::decode_size(&spec(), &key, &objects.0[&key]), Ok(96));
    // No root hides a size without a note.
    objects.0.remove(&key);
    let mut rig = opened(&mut objects, 3);
    assert!(objects.0.contains_key(&key));
    rig.volume.handle_shutdown(rig.now);
    rig.collect();
    rig.settle(&mut objects);
    assert_eq!(objects.roots().pop().unwrap().1.unwrap().state.sectors, 96);
}

#[test]
fn of_two_stores_the_one_that_loses_the_race_judges_anew() {
    let mut objects = Objects::default();
    let (mut a, mut b) = (opened(&mut objects, 1), opened(&mut objects, 2));
    a.attach(&mut objects, 1, 1, None).unwrap();
    assert_eq!(resize(&mut b, &mut objects, 96), Ok(96));
    // It does not know of that, and looks before it answers.
    assert_eq!(a.volume.sectors(), Some(SECTORS));
    assert!(matches!(resize(&mut a, &mut objects, 80), Err(VolumeError::Invalid(_))));
    assert_eq!(resize(&mut a, &mut objects, 96), Ok(96));
    // Its host is to resume, and learns the size.
    assert!(a.refused(1) && !a.fenced(1));
    assert_eq!(a.resume(&mut objects, 1, 1, 1).unwrap().sectors, 96);
    // Both at once: one segment each, and nothing goes back.
    ask(&mut a, 50, 100);
    ask(&mut b, 51, 104);
    for _ in 0..2 {
        for rig in [&mut a, &mut b] {
            if !rig.pending.is_empty() {
                rig.execute(&mut objects, 0, Fate::Good);
            }
        }
    }
    a.settle(&mut objects);
    b.settle(&mut objects);
    let answers = (answer(&mut a).unwrap(), answer(&mut b).unwrap());
    assert_eq!(answers.1.unwrap().sectors, 104);
    assert_eq!(opened(&mut objects, 3).volume.sectors(), Some(104));
}

#[test]
fn a_flush_under_way_is_of_the_size_before() {
    let config = tiny();
    let mut objects = Objects::default();
    let mut rig = Rig::open(1, &config);
    rig.settle(&mut objects);
    rig.attach(&mut objects, 1, 1, None).unwrap();
    for n in 1..=12 {
        rig.send(1, Lane::Drain, batch(1, n, &[data(n, 1, n as u16)]));
        let sectors = 64 + n * 8;
        resize(&mut rig, &mut objects, sectors).unwrap();
        objects.check_newest_root();
        let again = opened(&mut objects, 2);
        assert_eq!(again.volume.sectors(), Some(sectors));
        assert_eq!(places(&again.volume, &objects), places(&rig.volume, &objects));
    }
    assert!(objects.roots().len() >= 2);
}

#[test]
fn segments_that_resize_say_the_size() {
    let mut objects = Objects::default();
    let mut rig = opened(&mut objects, 1);
    resize(&mut rig, &mut objects, 96).unwrap();
    let object = &objects.0[&catalog::segment_key(ID, 1)];
    assert_eq!(object[4..7], [1, 0, 6]);
    assert_eq!(object[108..124], [96, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    // A size where there can be none, and none where there must be one.
    for (at, bytes) in [(4, &[1, 0, 5][..]), (108, &[0; 8]), (115, &[1])] {
        let mut bad = object.to_vec();
        bad[at..at + bytes.len()].copy_from_slice(bytes);
        let crc = crc32c::crc32c(&bad[..124]);
        bad[124..128].copy_from_slice(&crc.to_le_bytes());
        assert!(segment::parse_header(&bad).is_err(), "{at}");
    }
}

#[test]
fn the_offline_check_knows_the_size_behind_a_damaged_resize() {
    let mut objects = Objects::default();
    let mut rig = opened(&mut objects, 1);
    rig.attach(&mut objects, 1, 1, None).unwrap();
    resize(&mut rig, &mut objects, 96).unwrap();
    rig.send(1, Lane::Drain, batch(1, 1, &[data(90, 6, 1)]));
    rig.settle(&mut objects);
    resize(&mut rig, &mut objects, 128).unwrap();
    rig.send(1, Lane::Drain, batch(1, 2, &[data(120, 8, 2)]));
    rig.settle(&mut objects);
    objects.damage(&catalog::segment_key(ID, 2), 100);
    let mut check = LogCheck::new(&spec());
    let results: Vec<bool> = (1..=5)
        .map(|n| check.handle_segment(&objects.0[&catalog::segment_key(ID, n)]).is_ok())
        .collect();
    assert_eq!(results, [true, false, true, true, true]);
    assert_eq!(check.state().sectors, 128);
}

fn shrink(rig: &mut Rig, objects: &mut Objects, sectors: u64) -> Result<u64, VolumeError> {
    let operation = VolumeOperation::Shrink { name: "test".into(), sectors };
    rig.send(50, Lane::Control, ToStore::Volume { request: 9, operation });
    rig.settle(objects);
    answer(rig).expect("no answer to shrink").map(|info| info.sectors)
}

fn detach(rig: &mut Rig, objects: &mut Objects, epoch: u64) {
    rig.send(1, Lane::Control, ToStore::Detach { request: 2, volume: ID, epoch });
    rig.settle(objects);
    rig.inbox.clear();
}

#[test]
fn what_was_cut_off_is_gone_when_the_volume_grows_again() {
    let mut objects = Objects::default();
    let mut rig = Rig::open(1, &tiny());
    rig.attach(&mut objects, 1, 1, None).unwrap();
    let writes = [data(0, 8, 1), data(20, 4, 2), data(60, 4, 3)];
    rig.send(1, Lane::Drain, batch(1, 1, &writes));
    rig.settle(&mut objects);
    detach(&mut rig, &mut objects, 1);
    assert_eq!(shrink(&mut rig, &mut objects, 22), Ok(22));
    let state = rig.volume.state();
    assert_eq!((state.epoch(), state.host(), state.clean), (2, None, true));
    assert_eq!(
        rig.read_all(&mut objects).unwrap(),
        content_of(22, &[data(0, 8, 1), data(20, 2, 2)])
    );
    // A former host has to attach anew, and its cache is invalid.
    let fenced = rig.resume(&mut objects, 1, 1, 1);
    assert!(matches!(fenced, Err(AttachError::Fenced { epoch: 2, .. })), "{fenced:?}");
    assert_eq!(resize(&mut rig, &mut objects, 64), Ok(64));
    let expected = content_of(64, &[data(0, 8, 1), data(20, 2, 2)]);
    assert_eq!(rig.read_all(&mut objects).unwrap(), expected);
    let attached = rig.attach(&mut objects, 1, 1, None).unwrap();
    assert_eq!((attached.epoch, attached.committed), (3, 3));
    rig.send(
        1,
        Lane::Control,
        ToStore::Changed {
            request: 3,
            volume: ID,
            epoch: 3,
            since: Moment { epoch: 1, host: HostId(1), seq: 3 },
        },
    );
    rig.settle(&mut objects);
    let unknown = |m: &ToHost| matches!(m, ToHost::Changed { result: Ok(Changes::Unknown), .. });
    assert!(rig.has(1, unknown));
    // From the segments, and from roots.
    for incarnation in 2..4 {
        let mut rig = Rig::open(incarnation, &tiny());
        assert_eq!(rig.read_all(&mut objects).unwrap(), expected);
        assert_eq!(rig.volume.sectors(), Some(64));
        rig.volume.handle_shutdown(rig.now);
        rig.collect();
        rig.settle(&mut objects);
        assert!(rig.volume.is_idle());
        objects.check_newest_root();
    }
    // Smaller than at its creation, also where only a root says so.
    let mut rig = Rig::open(5, &tiny());
    rig.settle(&mut objects);
    detach(&mut rig, &mut objects, 3);
    rig.send(
        50,
        Lane::Control,
        ToStore::Volume {
            request: 8,
            operation: VolumeOperation::AcceptLoss { name: "test".into() },
        },
    );
    rig.settle(&mut objects);
    rig.inbox.clear();
    assert_eq!(shrink(&mut rig, &mut objects, 4), Ok(4));
    rig.volume.handle_shutdown(rig.now);
    rig.collect();
    rig.settle(&mut objects);
    let root = objects.roots().pop().unwrap().1.unwrap();
    assert_eq!(root.state.sectors, 4);
    let mut rig = Rig::open(6, &tiny());
    rig.settle(&mut objects);
    assert_eq!(rig.read_all(&mut objects).unwrap(), content_of(4, &[data(0, 4, 1)]));
}

#[test]
fn nothing_is_cut_off_under_a_host() {
    let mut objects = Objects::default();
    let mut rig = opened(&mut objects, 1);
    rig.attach(&mut objects, 1, 1, None).unwrap();
    let in_use = Err(VolumeError::InUse(HostId(1)));
    assert_eq!(shrink(&mut rig, &mut objects, 8), in_use);
    // Gone, and it may owe something.
    rig.volume.handle_session_closed(rig.now, SessionId(1));
    let refused = shrink(&mut rig, &mut objects, 8).unwrap_err();
    assert!(matches!(&refused, VolumeError::Invalid(why) if why.contains("accept-loss")));
    assert_eq!(rig.resume(&mut objects, 1, 1, 1).unwrap().sectors, SECTORS);
    detach(&mut rig, &mut objects, 1);
    let there = segments(&objects);
    for (sectors, why) in [(0, "multiple"), (SECTORS + 1, "smaller")] {
        let error = shrink(&mut rig, &mut objects, sectors).unwrap_err();
        assert!(matches!(&error, VolumeError::Invalid(text) if text.contains(why)), "{error:?}");
    }
    assert_eq!(shrink(&mut rig, &mut objects, SECTORS), Ok(SECTORS));
    assert_eq!(segments(&objects), there);
    assert_eq!(shrink(&mut rig, &mut objects, 8), Ok(8));
    assert_eq!(segments(&objects), there + 1);
    let key = catalog::size_key(ID, there as u64 + 1);
    assert_eq!(catalog::decode_size(&spec(), &key, &objects.0[&key]), Ok(8));
}

#[test]
fn segments_that_cut_off_say_what() {
    let mut objects = Objects::default();
    let mut rig = opened(&mut objects, 1);
    shrink(&mut rig, &mut objects, 8).unwrap();
    let object = &objects.0[&catalog::segment_key(ID, 1)];
    assert_eq!(object[4..7], [1, 0, 12]);
    assert_eq!(object[108..116], 8u64.to_le_bytes());
    let whole = segment::verify(object).unwrap();
    assert_eq!(whole.footer.pieces[0].range, Range::between(8, SECTORS));
    assert_eq!((whole.header.first, whole.header.last), (1, 0));
    let footer = whole.header.tail().start as usize;
    // Without a size, of another kind, and a record that begins elsewhere.
    for (at, bytes) in
        [(108, [0; 8]), (4, [1, 0, 6, 0, 0, 0, 0, 0]), (footer + 24, 9u64.to_le_bytes())]
    {
        let mut bad = object.to_vec();
        let bytes = if at == 4 { &bytes[..4] } else { &bytes[..] };
        bad[at..at + bytes.len()].copy_from_slice(bytes);
        let crc = crc32c::crc32c(&bad[..124]);
        bad[124..128].copy_from_slice(&crc.to_le_bytes());
        let tail = bad.len() - segment::TRAILER_BYTES;
        let crc = crc32c::crc32c(&bad[footer..tail]);
        bad[tail + 20..tail + 24].copy_from_slice(&crc.to_le_bytes());
        let crc = crc32c::crc32c(&bad[tail..tail + 28]);
        bad[tail + 28..].copy_from_slice(&crc.to_le_bytes());
        assert!(segment::verify(&bad.into()).is_err(), "{at}");
    }
}

#[test]
fn a_snapshot_that_is_larger_is_not_rolled_back_to() {
    let mut objects = Objects::default();
    let mut rig = opened(&mut objects, 1);
    let (id, created, barrier) = (VolumeId(7), 1, false);
    let create = SnapshotOperation::Create { snapshot: "s".into(), id, created, barrier };
    let ask = |rig: &mut Rig, objects: &mut Objects, operation| {
        let operation = VolumeOperation::Snapshot { name: "test".into(), operation };
        rig.send(50, Lane::Control, ToStore::Volume { request: 9, operation });
        rig.settle(objects);
        let ToHost::Volume { result, .. } = rig.inbox.pop().unwrap().2.message else { panic!() };
        result.map(|_| ())
    };
    ask(&mut rig, &mut objects, create).unwrap();
    shrink(&mut rig, &mut objects, 8).unwrap();
    let back = || SnapshotOperation::Rollback { snapshot: "s".into() };
    let refused = ask(&mut rig, &mut objects, back()).unwrap_err();
    assert!(
        matches!(&refused, VolumeError::Invalid(why) if why.contains("32768 bytes")),
        "{refused}"
    );
    resize(&mut rig, &mut objects, SECTORS).unwrap();
    ask(&mut rig, &mut objects, back()).unwrap();
}
