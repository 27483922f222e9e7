//! Ranges that hosts wrote since a moment in the log.

use super::*;
use crate::wire::link::{Changes, MAX_CHANGED_RANGES, Moment};

fn attached() -> (Objects, Rig) {
    let mut objects = Objects::default();
    let mut rig = Rig::open(1, &Config::default());
    rig.settle(&mut objects);
    rig.attach(&mut objects, 1, 1, None).unwrap();
    (objects, rig)
}

fn moment(epoch: u64, host: u128, seq: u64) -> Moment {
    Moment { epoch, host: HostId(host), seq }
}

fn ask(rig: &mut Rig, objects: &mut Objects, session: u64, epoch: u64, since: Moment) -> Answer {
    rig.send(session, Lane::Control, ToStore::Changed { request: 9, volume: ID, epoch, since });
    rig.settle(objects);
    let at = rig
        .inbox
        .iter()
        .position(|(_, _, f)| matches!(f.message, ToHost::Changed { request: 9, .. }))
        .expect("no answer");
    match rig.inbox.remove(at).2.message {
        ToHost::Changed { result, .. } => result,
        _ => unreachable!(),
    }
}

type Answer = Result<Changes, ReadError>;

fn ranges(list: &[(u64, u64)]) -> Answer {
    Ok(Changes::Ranges(list.iter().map(|&(lba, sectors)| Range::new(lba, sectors)).collect()))
}

const UNKNOWN: Answer = Ok(Changes::Unknown);

/// Numbers 1 to 4 in three segments.
fn written() -> (Objects, Rig) {
    let (mut objects, mut rig) = attached();
    let zero = |lba, sectors, kind| Write { kind, range: Range::new(lba, sectors), tag: 0 };
    for (first, writes) in [
        (1, vec![data(0, 8, 1), data(16, 4, 2)]),
        (3, vec![zero(30, 2, Kind::Discard)]),
        (4, vec![zero(20, 4, Kind::Zero)]),
    ] {
        rig.send(1, Lane::Drain, batch(1, first, &writes));
        rig.settle(&mut objects);
    }
    (objects, rig)
}

#[test]
fn writes_discards_and_zeroes_after_the_moment_are_told() {
    let (mut objects, mut rig) = written();
    let mut since = |seq| ask(&mut rig, &mut objects, 1, 1, moment(1, 1, seq));
    assert_eq!(since(4), ranges(&[]));
    assert_eq!(since(3), ranges(&[(20, 4)]));
    assert_eq!(since(2), ranges(&[(20, 4), (30, 2)]));
    assert_eq!(since(1), ranges(&[(16, 8), (30, 2)]), "within a segment, too");
    assert_eq!(since(0), ranges(&[(0, 8), (16, 8), (30, 2)]));
    assert_eq!(since(5), UNKNOWN, "the log once had more");
}

#[test]
fn another_epoch_is_told_like_our_own() {
    let (mut objects, mut rig) = written();
    rig.attach(&mut objects, 2, 2, None).unwrap();
    rig.send(2, Lane::Drain, batch(2, 5, &[data(40, 1, 9)]));
    rig.settle(&mut objects);
    let attached = rig.attach(&mut objects, 3, 1, None).unwrap();
    assert_eq!((attached.epoch, attached.committed), (3, 5));
    let mut since = |moment| ask(&mut rig, &mut objects, 3, 3, moment);
    assert_eq!(since(moment(1, 1, 3)), ranges(&[(20, 4), (40, 1)]));
    assert_eq!(since(moment(2, 2, 5)), ranges(&[]));
    assert_eq!(since(moment(2, 1, 5)), UNKNOWN, "that epoch was another host's");
    assert_eq!(since(moment(4, 1, 5)), UNKNOWN, "there was no such epoch");
    // Number 5 was not in the log of epoch 1, or a later epoch continued without it.
    assert_eq!(since(moment(1, 1, 5)), UNKNOWN);
}

#[test]
fn who_does_not_hold_the_epoch_is_told_nothing() {
    let (mut objects, mut rig) = written();
    rig.attach(&mut objects, 2, 2, None).unwrap();
    let since = moment(1, 1, 0);
    let mut asked = |session, epoch| ask(&mut rig, &mut objects, session, epoch, since);
    assert_eq!(asked(1, 1), Err(ReadError::Fenced(2)));
    assert_eq!(asked(1, 2), Err(ReadError::NotAttached));
    assert_eq!(asked(1, 0), Err(ReadError::Invalid));
}

#[test]
fn a_segment_that_cannot_be_read_makes_everything_unknown() {
    let (mut objects, mut rig) = written();
    objects.damage(&catalog::segment_key(ID, 3), 40);
    let mut since = |seq| ask(&mut rig, &mut objects, 1, 1, moment(1, 1, seq));
    assert_eq!(since(3), ranges(&[(20, 4)]), "nobody had to read it");
    assert_eq!(since(0), UNKNOWN);
    objects.0.remove(&catalog::segment_key(ID, 3));
    assert_eq!(ask(&mut rig, &mut objects, 1, 1, moment(1, 1, 0)), UNKNOWN);
}

#[test]
fn failures_of_the_object_store_are_outlived() {
    let (mut objects, mut rig) = written();
    let since = moment(1, 1, 0);
    rig.send(1, Lane::Control, ToStore::Changed { request: 9, volume: ID, epoch: 1, since });
    while !rig.pending.is_empty() {
        rig.execute(&mut objects, 0, Fate::FailsBefore);
    }
    rig.settle(&mut objects);
    let answer = ranges(&[(0, 8), (16, 8), (30, 2)]);
    assert!(rig.has(1, |m| matches!(m, ToHost::Changed { result, .. } if *result == answer)));
}

#[test]
fn a_moment_too_long_ago_is_unknown() {
    let (mut objects, mut rig) = attached();
    for seq in 1..=1030 {
        rig.send(1, Lane::Drain, batch(1, seq, &[data(seq % 60, 1, 1)]));
        rig.settle(&mut objects);
    }
    let mut since = |seq| ask(&mut rig, &mut objects, 1, 1, moment(1, 1, seq));
    let number = 1031;
    assert_eq!(since(number - 1024 - 2), UNKNOWN);
    assert_eq!(since(number - 1024 - 1), ranges(&[(0, 60)]));
}

#[test]
fn too_many_ranges_become_wider_ones() {
    // Groups of 50 that lie close together.
    let at = |n: u64| n / 50 * 100_000 + n % 50 * 20;
    let mut many = super::super::diffs::Ranges::default();
    for n in 0..200_000 {
        many.insert(Range::new(at(n), 1));
    }
    let found = many.finish();
    assert!(found.len() <= MAX_CHANGED_RANGES && found.len() >= 4000, "{}", found.len());
    let mut left = found.iter().peekable();
    for n in 0..200_000 {
        while left.next_if(|range| range.end() <= at(n)).is_some() {}
        assert!(left.peek().is_some_and(|range| range.lba <= at(n)));
    }
}
