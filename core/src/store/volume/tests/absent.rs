//! Objects that are said not to exist although the log names them.

use super::scenarios::{attached, commit};
use super::*;

/// Reads while the first segment with data is said not to exist so many times.
fn read_with_absences(times: u32) -> (Objects, Rig) {
    let (mut objects, mut rig) = attached();
    commit(&mut rig, &mut objects, 1, 1, &[data(0, 8, 7)]);
    rig.events.clear();
    let range = Range::new(0, 8);
    rig.send(999, Lane::Read, ToStore::Read { request: 76, volume: ID, epoch: 0, range });
    let mut without = objects.clone();
    let key = catalog::segment_key(ID, 2);
    without.0.remove(&key).expect("the segment with the data");
    let mut left = times;
    while left > 0 {
        while rig.pending.is_empty() {
            assert!(rig.tick(), "it is asked for again");
        }
        left -= u32::from(rig.pending[0].1.key() == key);
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
    for times in [1, 3, MISSING_TRIES + 1] {
        let (mut objects, mut rig) = read_with_absences(times);
        assert_eq!(rig.read(&mut objects, Range::new(0, 8)).unwrap(), [7; 8], "{times}");
        let retries = rig.events.iter().filter(|event| matches!(event, Event::Retry { .. }));
        // The first time a newer root might have said where it is now.
        assert_eq!(retries.count(), times as usize - 1);
        assert!(!damaged(&rig), "{:?}", rig.events);
    }
}

#[test]
fn a_segment_that_stays_absent_is_reported_once_it_was_waited_for() {
    // Once more at the end, since it might have been a bad copy.
    let (mut objects, mut rig) = read_with_absences(MISSING_TRIES + 3);
    assert!(damaged(&rig), "{:?}", rig.events);
    // From then on at once,
    let key = catalog::segment_key(ID, 2);
    let there = objects.0.remove(&key).unwrap();
    let now = rig.now;
    rig.read(&mut objects, Range::new(0, 8)).unwrap_err();
    assert_eq!(rig.now, now);
    // until it is there again.
    objects.0.insert(key, there);
    assert_eq!(rig.read(&mut objects, Range::new(0, 8)).unwrap(), [7; 8]);
}
