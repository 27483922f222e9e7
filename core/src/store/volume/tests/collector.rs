//! The collector frees space and loses no committed data. A store without contact does not continue
//! a log with deleted segments.

use super::scenarios::commit;
use super::snapshots::{ask, create, delete, make_clone, read_as, rig_of};
use super::*;
use crate::store::gc::usage::Policy;

fn collecting() -> Config {
    let policy =
        Policy { least_bytes: 0, high_percent: 130, low_percent: 120, ..Policy::default() };
    Config { garbage_collection: Some(policy), segment_bytes: 8 << 10, ..tiny() }
}

fn stored(objects: &Objects) -> usize {
    let data = |key: &str| key.contains("/seg/") || key.contains("/bundle/");
    objects.0.iter().filter(|(key, _)| data(key)).map(|(_, object)| object.len()).sum()
}

fn count(objects: &Objects, kind: &str) -> usize {
    objects.0.keys().filter(|key| key.contains(kind)).count()
}

/// Overwrites runs of the volume again and again; what it holds then.
fn overwrite(
    rig: &mut Rig,
    objects: &mut Objects,
    epoch: u64,
    from: u64,
    times: u64,
    expected: &mut [u16],
) -> u64 {
    let mut seed = from.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for n in from..from + times {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let sectors = 1 + seed % 8;
        let at = (seed >> 8) % (SECTORS - sectors);
        commit(rig, objects, epoch, n, &[data(at, sectors, n as u16)]);
        expected[at as usize..(at + sectors) as usize].fill(n as u16);
    }
    from + times
}

#[test]
fn what_is_overwritten_is_given_back_and_the_rest_is_read() {
    let mut objects = Objects::default();
    let mut rig = Rig::open(1, &collecting());
    rig.settle(&mut objects);
    rig.attach(&mut objects, 1, 1, None).unwrap();
    let mut expected = vec![0; SECTORS as usize];
    let mut next = 1;
    for round in 0..8 {
        next = overwrite(&mut rig, &mut objects, 1, next, 40, &mut expected);
        assert_eq!(rig.read_all(&mut objects).unwrap(), expected, "round {round}");
        // 32 KiB are live. A write of one sector takes three times that with its overhead. The
        // objects of the last two roots exist too.
        assert!(stored(&objects) < 120 << 10, "{} B in round {round}", stored(&objects));
        objects.check_newest_root();
        let mut again = Rig::open(2 + round, &collecting());
        again.settle(&mut objects.clone());
        assert_eq!(again.read_all(&mut objects.clone()).unwrap(), expected, "round {round}");
    }
    assert!(count(&objects, "/bundle/") > 0);
    let moved = rig.events.iter().filter(|event| matches!(event, Event::Moved { .. }));
    assert!(moved.count() > 3, "{:?}", rig.events);
    assert!(!rig.events.iter().any(|event| matches!(event, Event::NotCollected { .. })));
}

#[test]
fn an_idle_volume_comes_to_rest() {
    let mut objects = Objects::default();
    let mut rig = Rig::open(1, &collecting());
    rig.settle(&mut objects);
    rig.attach(&mut objects, 1, 1, None).unwrap();
    overwrite(&mut rig, &mut objects, 1, 1, 60, &mut vec![0; SECTORS as usize]);
    assert!(rig.volume.is_idle());
    let now = rig.now;
    assert!(!rig.tick(), "nothing is left to do");
    assert_eq!(rig.now, now);
}

#[test]
fn what_only_a_deleted_snapshot_needed_goes_from_a_volume_at_rest() {
    let mut objects = Objects::default();
    let mut rig = Rig::open(1, &collecting());
    rig.settle(&mut objects);
    rig.attach(&mut objects, 1, 1, None).unwrap();
    let mut expected = vec![0; SECTORS as usize];
    let next = overwrite(&mut rig, &mut objects, 1, 1, 60, &mut expected);
    ask(&mut rig, &mut objects, create("a", 7)).unwrap();
    let next = overwrite(&mut rig, &mut objects, 1, next, 60, &mut expected);
    rig.settle(&mut objects);
    let before = stored(&objects);
    assert_eq!(count(&objects, "/snap/"), 1);
    ask(&mut rig, &mut objects, delete("a")).unwrap();
    assert!(rig.volume.is_idle());
    assert_eq!(count(&objects, "/snap/"), 0);
    // Of 32 KiB the snapshot had most to itself.
    let after = stored(&objects);
    assert!(after + (16 << 10) < before, "{before} and then {after}");
    assert_eq!(rig.read_all(&mut objects).unwrap(), expected);
    overwrite(&mut rig, &mut objects, 1, next, 1, &mut expected);
    objects.check_newest_root();
}

/// A store that has the volume open and is out of touch while another goes on with it, and
/// collects.
fn left_behind() -> (Objects, Rig, Rig, Vec<u16>) {
    let mut objects = Objects::default();
    let mut rig = Rig::open(1, &collecting());
    rig.settle(&mut objects);
    rig.attach(&mut objects, 1, 1, None).unwrap();
    let mut expected = vec![0; SECTORS as usize];
    let next = overwrite(&mut rig, &mut objects, 1, 1, 5, &mut expected);
    let mut behind = Rig::open(2, &collecting());
    behind.settle(&mut objects);
    overwrite(&mut rig, &mut objects, 1, next, 100, &mut expected);
    let number = behind.volume.state().number + 1;
    assert!(!objects.0.contains_key(&catalog::segment_key(ID, number)), "{number} is deleted");
    (objects, rig, behind, expected)
}

#[test]
fn who_was_out_of_touch_finds_out_when_it_looks() {
    let (mut objects, rig, mut behind, expected) = left_behind();
    let attached = behind.attach(&mut objects, 7, 1, Some((1, 105))).unwrap();
    assert_eq!((attached.epoch, attached.committed), (2, 105));
    assert!(behind.events.iter().any(|event| matches!(event, Event::LeftBehind { .. })));
    assert_eq!(behind.read_all(&mut objects).unwrap(), expected);
    assert!(rig.volume.state().number < behind.volume.state().number);
}

#[test]
fn who_was_out_of_touch_commits_nothing_in_the_past() {
    let (mut objects, mut rig, mut behind, expected) = left_behind();
    // It has looked already, before all that, and has its first segment on the way.
    let old = Objects::default();
    behind.send(
        7,
        Lane::Control,
        ToStore::Attach {
            request: 1,
            name: "test".to_owned(),
            host: HostId(9),
            journal: None,
            take_over: true,
        },
    );
    let is_put = |rig: &Rig| {
        let put = |(_, operation): &(u64, ObjectOperation)| matches!(operation, ObjectOperation::Put { key, .. } if key.contains("/seg/"));
        rig.pending.iter().any(put)
    };
    let mut empty = old;
    while !is_put(&behind) {
        behind.execute(&mut empty, 0, Fate::Good);
    }
    behind.settle(&mut objects);
    let number = behind.volume.state().number;
    assert!(number > rig.volume.state().number, "{number}");
    let attached = behind.take_attached(7).expect("an answer");
    // The epoch is the next one of the log as it is.
    if let Ok(attached) = attached {
        assert_eq!((attached.epoch, attached.committed), (2, 105));
    }
    assert_eq!(behind.read_all(&mut objects).unwrap(), expected);
    assert_eq!(rig.read_all(&mut objects).unwrap(), expected);
}

#[test]
fn what_moved_while_it_was_read_is_found_where_it_is() {
    let (mut objects, _, mut behind, expected) = left_behind();
    // It reads by an old map, of whose segments most are gone.
    let held = behind.volume.state().number;
    let read = behind.read_all(&mut objects);
    assert!(read.is_err_and(|error| error == ReadError::NotAttached), "it has to begin anew");
    assert!(behind.volume.state().number > held);
    assert_eq!(behind.read_all(&mut objects).unwrap(), expected);
    assert!(!behind.events.iter().any(|event| matches!(event, Event::DataDamaged { .. })));
}

#[test]
fn what_snapshots_name_stays_and_goes_with_them() {
    let mut objects = Objects::default();
    let mut rig = Rig::open(1, &collecting());
    rig.settle(&mut objects);
    rig.attach(&mut objects, 1, 1, None).unwrap();
    let mut expected = vec![0; SECTORS as usize];
    let (mut next, mut taken) = (1, Vec::new());
    for round in 0..4 {
        next = overwrite(&mut rig, &mut objects, 1, next, 30, &mut expected);
        let id = 100 + round;
        ask(&mut rig, &mut objects, create(&format!("s{round}"), id)).unwrap();
        let segment = rig.volume.state().number;
        let at = (segment, VolumeId(id));
        // One reader stays open, and finds what moves in the meantime.
        let open = rig_of(Volume::open_snapshot(rig.now, spec(), at, 50 + id, collecting()));
        taken.push((at, expected.clone(), open));
        for ((segment, id), expected, open) in &mut taken {
            assert_eq!(read_as(open, &mut objects, *id).unwrap(), *expected, "{segment}");
            let at = (*segment, *id);
            let reader = Volume::open_snapshot(rig.now, spec(), at, 70 + id.0, collecting());
            assert_eq!(read_as(&mut rig_of(reader), &mut objects, *id).unwrap(), *expected);
        }
    }
    assert!(count(&objects, "/bundle/") > 0);
    overwrite(&mut rig, &mut objects, 1, next, 60, &mut expected);
    let with = stored(&objects);
    for round in 0..4 {
        ask(&mut rig, &mut objects, delete(&format!("s{round}"))).unwrap();
    }
    overwrite(&mut rig, &mut objects, 1, next + 60, 40, &mut expected);
    let without = stored(&objects);
    assert!(without < 120 << 10 && with > 3 * without / 2, "{with} B, then {without} B");
    assert_eq!(rig.read_all(&mut objects).unwrap(), expected);
    let damaged = |event: &Event| matches!(event, Event::DataDamaged { .. });
    assert!(!taken.iter().any(|(.., open)| open.events.iter().any(damaged)));
}

#[test]
fn a_clone_finds_what_its_parents_have_moved() {
    let mut objects = Objects::default();
    let mut rig = Rig::open(1, &collecting());
    rig.settle(&mut objects);
    rig.attach(&mut objects, 1, 1, None).unwrap();
    let mut expected = vec![0; SECTORS as usize];
    let mut next = overwrite(&mut rig, &mut objects, 1, 1, 40, &mut expected);
    ask(&mut rig, &mut objects, create("a", 7)).unwrap();
    let first = make_clone(&mut rig, &mut objects, "a", 0x101);
    let mut first = rig_of(Volume::open(rig.now, first, 2, collecting()));
    assert_eq!(read_as(&mut first, &mut objects, VolumeId(0x101)).unwrap(), expected);
    ask(&mut first, &mut objects, create("b", 8)).unwrap();
    let second = make_clone(&mut first, &mut objects, "b", 0x102);
    let mut second = rig_of(Volume::open(rig.now, second, 3, collecting()));
    assert_eq!(read_as(&mut second, &mut objects, VolumeId(0x102)).unwrap(), expected);
    ask(&mut rig, &mut objects, delete("a")).unwrap();
    let of_clones = expected.clone();
    let segments = |objects: &Objects| {
        let prefixes = [catalog::segment_prefix(ID), catalog::bundle_prefix(ID)];
        let of_parent = |key: &&String| prefixes.iter().any(|prefix| key.starts_with(prefix));
        objects.0.keys().filter(of_parent).cloned().collect::<Vec<_>>()
    };
    let before = segments(&objects);
    for round in 0..6 {
        next = overwrite(&mut rig, &mut objects, 1, next, 40, &mut expected);
        for clone in [&mut first, &mut second] {
            let id = clone.volume.id();
            assert_eq!(read_as(clone, &mut objects, id).unwrap(), of_clones, "round {round}");
            let spec = clone.volume.spec().clone();
            let mut again = rig_of(Volume::open(rig.now, spec, 90 + round, collecting()));
            assert_eq!(read_as(&mut again, &mut objects, id).unwrap(), of_clones);
            let damaged = |event: &Event| matches!(event, Event::DataDamaged { .. });
            assert!(!clone.events.iter().chain(&again.events).any(damaged));
        }
        assert_eq!(rig.read_all(&mut objects).unwrap(), expected);
    }
    let after = segments(&objects);
    let gone = before.iter().filter(|key| !after.contains(key)).count();
    assert!(gone > 2, "{gone} segments and bundles of before the snapshot have moved");
}
