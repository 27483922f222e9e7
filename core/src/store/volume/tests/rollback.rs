//! Rolling back to snapshots.

use super::scenarios::commit;
use super::snapshots::{ask, attached_rig, create, delete, make_clone, read_as, rig_of};
use super::*;
use crate::wire::link::{SnapshotError, SnapshotOperation, SnapshotReply, VolumeError};

fn roll_back(
    rig: &mut Rig,
    objects: &mut Objects,
    name: &str,
) -> Result<SnapshotReply, VolumeError> {
    let snapshot = name.to_owned();
    ask(rig, objects, SnapshotOperation::Rollback { snapshot })
}

/// The content of the volume, by this engine, by a new one, and by a check of the log.
fn holds(rig: &mut Rig, objects: &mut Objects, expected: &[u16]) {
    assert_eq!(read_as(rig, objects, ID).unwrap(), expected);
    let mut again = Rig::open(0x777, &tiny());
    assert_eq!(read_as(&mut again, objects, ID).unwrap(), expected);
    let mut check = LogCheck::new(&spec());
    while let Some(object) = objects.0.get(&catalog::segment_key(ID, check.next())) {
        check.handle_segment(object).expect("the log is valid");
    }
    let mut mapped = 0;
    for (range, place) in check.table().iter_from(0) {
        let data = place.is_some_and(|place| !place.is_zero());
        mapped += if data { range.sectors } else { 0 };
    }
    assert_eq!(mapped, expected.iter().filter(|tag| **tag != 0).count() as u64);
}

#[test]
fn back_and_forth() {
    let (mut objects, mut rig) = attached_rig();
    let mut contents = Vec::new();
    let mut writes = Vec::new();
    let mut seq = 0;
    for (n, name) in ["a", "b", "c"].iter().enumerate() {
        for k in 0..9 {
            seq += 1;
            writes.push(data((seq * 5 + k) % 60, 2, seq as u16));
            commit(&mut rig, &mut objects, 1, seq, &writes[writes.len() - 1..]);
        }
        ask(&mut rig, &mut objects, create(name, 0x70 + n as u128)).unwrap();
        contents.push(content(&writes));
    }
    let clone = make_clone(&mut rig, &mut objects, "b", 0x500);
    let error = roll_back(&mut rig, &mut objects, "a").unwrap_err();
    assert_eq!(error, VolumeError::InUse(HostId(1)));
    let error = roll_back(&mut rig, &mut objects, "z");
    assert!(error.is_err());
    rig.volume.handle_session_closed(rig.now, SessionId(1));
    let error = roll_back(&mut rig, &mut objects, "z").unwrap_err();
    assert_eq!(error, VolumeError::Snapshot(SnapshotError::NotFound));
    for (epoch, n) in [(2, 0), (3, 2), (4, 1), (5, 0)] {
        let name = ["a", "b", "c"][n];
        assert_eq!(roll_back(&mut rig, &mut objects, name).unwrap(), SnapshotReply::Done);
        let state = rig.volume.state();
        assert_eq!((state.epoch(), state.host(), state.committed), (epoch, None, seq));
        assert!(state.clean && state.announced.is_empty());
        holds(&mut rig, &mut objects, &contents[n]);
    }
    // The rollback left a journal with an undelivered write behind.
    let refused = rig.attach(&mut objects, 2, 1, Some((1, seq + 1)));
    let (from, to) = (seq + 1, seq + 1);
    assert_eq!(refused, Err(AttachError::Diverged { epoch: 1, from, to }));
    let attached = rig.attach(&mut objects, 2, 1, Some((1, seq))).unwrap();
    assert_eq!((attached.epoch, attached.committed), (6, seq));
    let since = link::Moment { epoch: 1, host: HostId(1), seq };
    rig.send(2, Lane::Control, ToStore::Changed { request: 3, volume: ID, epoch: 6, since });
    let unknown =
        |m: &ToHost| matches!(m, ToHost::Changed { result: Ok(link::Changes::Unknown), .. });
    assert!(rig.has(2, unknown));
    rig.send(2, Lane::Drain, batch(6, seq + 1, &[data(7, 3, 999)]));
    rig.settle(&mut objects);
    let mut expected = contents[0].clone();
    expected[7..10].fill(999);
    holds(&mut rig, &mut objects, &expected);
    // All snapshots are what they were, and so is the clone.
    for (n, expected) in contents.iter().enumerate() {
        let taken = rig.volume.state().snapshots.identified(VolumeId(0x70 + n as u128)).unwrap();
        let key = (taken.segment, taken.id);
        let mut reader = rig_of(Volume::open_snapshot(rig.now, spec(), key, 9, tiny()));
        assert_eq!(read_as(&mut reader, &mut objects, key.1).unwrap(), *expected);
    }
    let id = clone.id;
    let mut clone = rig_of(Volume::open(Time(0), clone, 0x888, tiny()));
    assert_eq!(read_as(&mut clone, &mut objects, id).unwrap(), contents[1]);
    ask(&mut rig, &mut objects, delete("a")).unwrap();
    holds(&mut rig, &mut objects, &expected);
}

#[test]
fn the_size_stays() {
    let (mut objects, mut rig) = attached_rig();
    commit(&mut rig, &mut objects, 1, 1, &[data(0, 4, 1)]);
    ask(&mut rig, &mut objects, create("a", 7)).unwrap();
    let operation = VolumeOperation::Resize { name: "test".into(), sectors: 2 * SECTORS };
    rig.send(3, Lane::Control, ToStore::Volume { request: 8, operation });
    rig.settle(&mut objects);
    rig.send(1, Lane::Drain, batch(1, 2, &[data(SECTORS - 2, 8, 2)]));
    rig.settle(&mut objects);
    rig.volume.handle_session_closed(rig.now, SessionId(1));
    roll_back(&mut rig, &mut objects, "a").unwrap();
    let mut expected = content(&[data(0, 4, 1)]);
    expected.resize(2 * SECTORS as usize, 0);
    assert_eq!(rig.volume.sectors(), Some(2 * SECTORS));
    holds(&mut rig, &mut objects, &expected);
}
