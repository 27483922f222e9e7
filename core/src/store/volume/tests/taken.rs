//! A volume that another store has taken: whoever waits for something here comes to know.

use super::scenarios::{attached, commit};
use super::*;
use crate::block::STAGED_BIT;
use crate::wire::link::{Moment, StageError, VolumeError};

/// The numbers of answered requests, with whether the answer is valid: a result, or the order to
/// come again.
fn answered(rig: &mut Rig) -> Vec<(u64, bool)> {
    let mut all: Vec<_> = std::mem::take(&mut rig.inbox)
        .into_iter()
        .filter_map(|(_, _, frame)| match frame.message {
            ToHost::Data { request, result: Err(error), .. }
            | ToHost::Status { request, result: Err(error), .. }
            | ToHost::Changed { request, result: Err(error), .. }
            | ToHost::Staged { request, result: Err(StageError::Read(error)), .. } => {
                Some((request, error == ReadError::NotAttached))
            }
            // This one needs nothing but memory.
            ToHost::Status { request, result: Ok(_), .. } => Some((request, true)),
            ToHost::Attached { request, result: Err(error) } => {
                Some((request, error == AttachError::ShuttingDown))
            }
            ToHost::Volume { request, result: Err(VolumeError::Store(reason)) } => {
                Some((request, reason.contains("try again")))
            }
            _ => None,
        })
        .collect();
    all.sort_unstable();
    all
}

fn all_of(range: std::ops::RangeInclusive<u64>) -> Vec<(u64, bool)> {
    range.map(|request| (request, true)).collect()
}

fn ask(rig: &mut Rig, first: u64) {
    let range = Range::new(0, 8);
    let read = |request| ToStore::Read { request, volume: ID, epoch: 1, range };
    let stage = |request| {
        let (into, object) = (ID, STAGED_BIT | request);
        ToStore::Stage { request, volume: ID, epoch: 1, range, into, lba: 16, object }
    };
    rig.send(1, Lane::Read, read(first));
    rig.send(1, Lane::ReadAhead, stage(first + 1));
    let status = ToStore::Status { request: first + 2, volume: ID, epoch: 1, range };
    rig.send(1, Lane::Read, status);
    let since = Moment { epoch: 1, host: HostId(1), seq: 0 };
    let changed = ToStore::Changed { request: first + 3, volume: ID, epoch: 1, since };
    rig.send(1, Lane::Control, changed);
    let (name, sectors) = ("test".to_owned(), SECTORS * 2);
    let operation = VolumeOperation::Resize { name, sectors };
    rig.send(9, Lane::Control, ToStore::Volume { request: first + 4, operation });
    let (name, host) = ("test".to_owned(), HostId(2));
    let attach = ToStore::Attach { request: first + 5, name, host, journal: None, take_over: true };
    rig.send(3, Lane::Control, attach);
    let resume = ToStore::Resume { request: first + 6, volume: ID, epoch: 1, host: HostId(1) };
    rig.send(1, Lane::Control, resume);
}

#[test]
fn who_waits_for_it_is_told_to_come_again() {
    let (mut objects, mut rig) = attached();
    commit(&mut rig, &mut objects, 1, 1, &[data(0, 8, 7)]);
    rig.inbox.clear();
    // A staging whose put is in progress, after its read.
    ask(&mut rig, 10);
    while !rig.pending.iter().any(|(_, operation)| operation.key().contains("/staged/")) {
        rig.execute(&mut objects, 0, Fate::Good);
    }
    rig.inbox.clear();
    // The requests that still wait will wait for good.
    rig.volume.handle_taken(rig.now);
    rig.collect();
    assert!(rig.refused(1), "its host learns of it without asking");
    let early = answered(&mut rig);
    assert!(early.contains(&(11, true)) && early.iter().all(|(_, again)| *again), "{early:?}");
}

#[test]
fn nothing_is_left_without_an_answer() {
    let (mut objects, mut rig) = attached();
    commit(&mut rig, &mut objects, 1, 1, &[data(0, 8, 7)]);
    rig.inbox.clear();
    rig.send(1, Lane::Drain, batch(1, 2, &[data(8, 8, 8)]));
    ask(&mut rig, 10);
    rig.volume.handle_taken(rig.now);
    rig.collect();
    assert!(rig.refused(1));
    assert_eq!(answered(&mut rig), all_of(10..=16));
}

#[test]
fn the_same_while_it_is_being_opened() {
    let mut rig = Rig::open(1, &Config::default());
    ask(&mut rig, 10);
    assert_eq!(answered(&mut rig), []);
    rig.volume.handle_taken(rig.now);
    rig.collect();
    assert_eq!(answered(&mut rig), all_of(10..=16));
}
