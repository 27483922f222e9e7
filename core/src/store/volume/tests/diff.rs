//! The map diff of snapshots, as the store service computes it.

use super::scenarios::commit;
use super::snapshots::{ask, attached_rig, create, rig_of};
use super::*;
use crate::store::{Places, SHELL_SESSION, differences};
use crate::wire::link::SnapshotOperation;

/// Where all of it lies, from one sector on, as far as one answer goes.
fn places(rig: &mut Rig, objects: &mut Objects, from: u64) -> Result<Places, ReadError> {
    rig.settle(objects);
    let (volume, range) = (rig.volume.id(), Range::between(from, SECTORS));
    let message = ToStore::Status { request: 7, volume, epoch: 0, range };
    rig.send(SHELL_SESSION.0, Lane::ReadAhead, message);
    rig.settle(objects);
    let (request, places) = rig.volume.poll_places().expect("an answer");
    assert_eq!(request, 7);
    places
}

/// For each sector whether it differs.
fn diff(one: &mut Rig, other: &mut Rig, objects: &mut Objects) -> Vec<bool> {
    let mut differs = vec![false; SECTORS as usize];
    let mut at = 0;
    while at < SECTORS {
        let (one, other) = (places(one, objects, at), places(other, objects, at));
        let (found, end) = differences(&one.unwrap(), &other.unwrap());
        assert!(end > at, "it comes to an end");
        for range in found {
            differs[range.lba as usize..range.end() as usize].fill(true);
        }
        at = end;
    }
    differs
}

#[test]
fn what_was_written_between_two_snapshots_differs_and_nothing_else() {
    let (mut objects, mut rig) = attached_rig();
    let (mut contents, mut image) = (Vec::new(), content(&[]));
    let mut random = 12345_u64;
    let mut seq = 0;
    let mut epoch = 1;
    for n in 0..8_u128 {
        for _ in 0..9 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(n as u64 | 1);
            let (lba, sectors) = (random >> 33, 1 + (random >> 20) % 5);
            let lba = lba % (SECTORS - sectors);
            seq += 1;
            let kind = if random >> 60 == 3 { Kind::Zero } else { Kind::Data };
            let write = Write { kind, ..data(lba, sectors, seq as u16) };
            commit(&mut rig, &mut objects, epoch, seq, &[write]);
            let tag = if kind == Kind::Data { seq as u16 } else { 0 };
            image[lba as usize..(lba + sectors) as usize].fill(tag);
        }
        ask(&mut rig, &mut objects, create(&format!("s{n}"), 0x70 + n)).unwrap();
        contents.push(image.clone());
        if n == 5 {
            rig.volume.handle_session_closed(rig.now, SessionId(1));
            let snapshot = "s2".to_owned();
            ask(&mut rig, &mut objects, SnapshotOperation::Rollback { snapshot }).unwrap();
            image.clone_from(&contents[2]);
            epoch = rig.attach(&mut objects, 1, 1, None).unwrap().epoch;
        }
    }
    let taken: Vec<_> = rig.volume.state().snapshots.iter().cloned().collect();
    let now = rig.now;
    let open = |n: usize| {
        let key = (taken[n].segment, taken[n].id);
        rig_of(Volume::open_snapshot(now, spec(), key, 9, tiny()))
    };
    for one in 0..contents.len() {
        for other in 0..contents.len() {
            let found = diff(&mut open(one), &mut open(other), &mut objects);
            let pairs = contents[one].iter().zip(&contents[other]);
            let expected: Vec<bool> = pairs.map(|(one, other)| one != other).collect();
            assert_eq!(found, expected, "s{one} and s{other}");
        }
    }
    commit(&mut rig, &mut objects, epoch, seq + 1, &[data(3, 2, 999)]);
    let found = diff(&mut open(7), &mut rig, &mut objects);
    assert_eq!(found.iter().filter(|differs| **differs).count(), 2);
    assert!(found[3] && found[4]);
}

#[test]
fn what_is_not_there_says_so() {
    let (mut objects, rig) = attached_rig();
    let mut none = rig_of(Volume::open_snapshot(rig.now, spec(), (1, VolumeId(0x99)), 9, tiny()));
    assert_eq!(places(&mut none, &mut objects, 0), Err(ReadError::NotAttached));
}
