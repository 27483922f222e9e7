//! Objects that are said not to exist although the log names them, or that are not what was put.

use super::scenarios::{attached, commit};
use super::*;

/// Reads while the first segment with data is said not to exist, so many times or for so long.
fn read_with_absences(times: u32, until: Duration) -> (Objects, Rig) {
    let (mut objects, mut rig) = attached();
    commit(&mut rig, &mut objects, 1, 1, &[data(0, 8, 7)]);
    rig.events.clear();
    let range = Range::new(0, 8);
    rig.send(999, Lane::Read, ToStore::Read { request: 76, volume: ID, epoch: 0, range });
    let mut without = objects.clone();
    let key = catalog::segment_key(ID, 2);
    without.0.remove(&key).expect("the segment with the data");
    let (mut left, begun) = (times, rig.now);
    while left > 0 || rig.now < begun.after(until) {
        while rig.pending.is_empty() {
            assert!(rig.tick(), "it is asked for again");
        }
        left = left.saturating_sub(u32::from(rig.pending[0].1.key() == key));
        rig.execute(&mut without, 0, Fate::Good);
    }
    (objects, rig)
}

fn damaged(rig: &Rig) -> bool {
    let named =
        |event: &Event| matches!(event, Event::DataDamaged { key, .. } if key.contains("/seg/"));
    rig.events.iter().any(named)
}

#[test]
fn a_segment_that_is_absent_for_a_while_is_waited_for() {
    for times in [1, 3, 8] {
        let (mut objects, mut rig) = read_with_absences(times, Duration::ZERO);
        assert_eq!(rig.read(&mut objects, Range::new(0, 8)).unwrap(), [7; 8], "{times}");
        let retries = rig.events.iter().filter(|event| matches!(event, Event::Retry { .. }));
        // The first time a newer root might have said where it is now.
        assert_eq!(retries.count(), times as usize - 1);
        assert!(!damaged(&rig), "{:?}", rig.events);
    }
}

#[test]
fn a_segment_that_stays_absent_is_reported_once_it_was_waited_for() {
    let (mut objects, mut rig) = attached();
    commit(&mut rig, &mut objects, 1, 1, &[data(0, 8, 7)]);
    let (_, longest) = rig.volume.facts.config().retry;
    let wait = rig.volume.facts.config().missing_wait;
    let (key, begun) = (catalog::segment_key(ID, 2), rig.now);
    let there = objects.0.remove(&key).unwrap();
    let range = Range::new(0, 8);
    rig.send(999, Lane::Read, ToStore::Read { request: 76, volume: ID, epoch: 0, range });
    let failed = |m: &ToHost| matches!(m, ToHost::Data { result: Err(ReadError::Medium(_)), .. });
    while !rig.has(999, failed) {
        match rig.pending.is_empty() {
            true => assert!(rig.tick(), "it is asked for again"),
            false => rig.execute(&mut objects, 0, Fate::Good),
        }
    }
    assert!(damaged(&rig), "{:?}", rig.events);
    assert!((begun.after(wait)..=begun.after(wait + longest)).contains(&rig.now));
    rig.settle(&mut objects);
    // From then on at once,
    let now = rig.now;
    rig.read(&mut objects, Range::new(0, 8)).unwrap_err();
    assert_eq!(rig.now, now);
    // until it is there again.
    objects.0.insert(key, there);
    assert_eq!(rig.read(&mut objects, Range::new(0, 8)).unwrap(), [7; 8]);
}

#[test]
fn an_object_store_that_cannot_be_reached_is_waited_for() {
    let (mut objects, mut rig) = attached();
    commit(&mut rig, &mut objects, 1, 1, &[data(0, 8, 7)]);
    let range = Range::new(0, 8);
    rig.send(999, Lane::Read, ToStore::Read { request: 77, volume: ID, epoch: 0, range });
    let end = rig.now.after(10 * rig.volume.facts.config().missing_wait);
    while rig.now < end {
        while rig.pending.is_empty() {
            assert!(rig.tick(), "it is asked for again");
        }
        rig.execute(&mut objects, 0, Fate::FailsBefore);
    }
    assert!(!rig.has(999, |message| matches!(message, ToHost::Data { .. })), "no answer");
    rig.settle(&mut objects);
    assert!(rig.has(999, |m| matches!(m, ToHost::Data { result: Ok(_), .. })));
}

#[test]
fn what_is_no_object_any_more_is_a_medium_error_at_once() {
    let (mut objects, mut rig) = attached();
    commit(&mut rig, &mut objects, 1, 1, &[data(0, 8, 7)]);
    let (range, begun) = (Range::new(0, 8), rig.now);
    rig.send(999, Lane::Read, ToStore::Read { request: 77, volume: ID, epoch: 0, range });
    while !rig.pending.is_empty() {
        let (id, operation) = rig.pending.remove(0);
        let result = match &operation {
            ObjectOperation::Get { key, .. } if key.contains("/seg/") => {
                ObjectResult::Get(Err(GetError::Damaged("it is a directory".into())))
            }
            other => objects.execute(other, Fate::Good),
        };
        rig.volume.handle_object(rig.now, id, result);
        rig.collect();
    }
    let failed = ReadError::Medium(range);
    assert!(rig.has(999, |m| matches!(m, ToHost::Data { result: Err(e), .. } if *e == failed)));
    assert_eq!(rig.now, begun);
}
