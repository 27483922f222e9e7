//! Several segments on their way at once: whatever order they arrive in, and whoever takes over.

use super::*;
use crate::store::InFlight;
use crate::store::segment::IN_FLIGHT_MAX;

/// Each batch is worth a segment.
fn config() -> Config {
    Config { segment_bytes: 600, ..Config::default() }
}

/// A store with an attached host, whose `count` batches of a write each are on their way.
fn shipped(objects: &mut Objects, config: &Config, count: u64) -> Rig {
    let mut rig = Rig::open(1, config);
    rig.settle(objects);
    rig.attach(objects, 1, 1, None).unwrap();
    ship(&mut rig, 1..=count);
    rig
}

fn write(number: u64) -> Write {
    data(number % SECTORS, 1, number as u16)
}

fn ship(rig: &mut Rig, numbers: std::ops::RangeInclusive<u64>) {
    for number in numbers {
        rig.send(1, Lane::Drain, batch(1, number, &[write(number)]));
    }
}

fn put_key(operation: &ObjectOperation) -> Option<&str> {
    match operation {
        ObjectOperation::Put { key, .. } => Some(key),
        _ => None,
    }
}

/// The place of the put of a segment among the operations under way.
fn put_of(rig: &Rig, number: u64) -> usize {
    let wanted = catalog::segment_key(ID, number);
    let puts = |key: &str| key == wanted;
    let is_put = |(_, operation): &(u64, ObjectOperation)| put_key(operation).is_some_and(puts);
    rig.pending.iter().position(is_put).expect("the segment is on its way")
}

fn putting(rig: &Rig) -> usize {
    let prefix = catalog::segment_prefix(ID);
    let keys = rig.pending.iter().filter_map(|(_, operation)| put_key(operation));
    keys.filter(|key| key.starts_with(&prefix)).count()
}

#[test]
fn segments_count_in_order() {
    let mut objects = Objects::default();
    let mut rig = shipped(&mut objects, &config(), 4);
    assert_eq!(putting(&rig), 4);
    for (segment, committed) in [(4, 0), (3, 0), (2, 3), (5, 4)] {
        let at = put_of(&rig, segment);
        rig.execute(&mut objects, at, Fate::Good);
        assert_eq!(rig.volume.state().committed, committed);
        assert!(!rig.committed(1, committed + 1));
    }
    rig.settle(&mut objects);
    assert!(rig.committed(1, 3) && rig.committed(1, 4));
    assert_eq!(writes_in(&objects).len(), 4);
}

#[test]
fn a_failed_put_in_the_middle_repeats_and_the_others_wait() {
    for fate in [Fate::FailsBefore, Fate::FailsAfter] {
        let mut objects = Objects::default();
        let mut rig = shipped(&mut objects, &config(), 3);
        let at = put_of(&rig, 3);
        rig.execute(&mut objects, at, fate);
        for segment in [2, 4] {
            let at = put_of(&rig, segment);
            rig.execute(&mut objects, at, Fate::Good);
        }
        assert_eq!(rig.volume.state().committed, 1);
        rig.settle(&mut objects);
        assert_eq!(rig.volume.state().committed, 3);
        assert_eq!(writes_in(&objects).len(), 3);
    }
}

#[test]
fn number_and_bytes_on_their_way_are_bounded() {
    let mut objects = Objects::default();
    let rig = shipped(&mut objects, &config(), 40);
    assert_eq!(putting(&rig), IN_FLIGHT_MAX as usize);
    let most = Config::default().in_flight;
    let few = Config { in_flight: InFlight { segments: 3, ..most }, ..config() };
    assert_eq!(putting(&shipped(&mut Objects::default(), &few, 40)), 3);
    let bytes = Config { in_flight: InFlight { bytes: 5000, ..most }, ..config() };
    let rig = shipped(&mut Objects::default(), &bytes, 40);
    assert!((2..=6).contains(&putting(&rig)), "{}", putting(&rig));
    let mut objects = Objects::default();
    let mut rig = shipped(&mut objects, &bytes, 40);
    rig.settle(&mut objects);
    assert_eq!(writes_in(&objects).len(), 40);
}

#[test]
fn little_data_does_not_go_ahead() {
    let mut objects = Objects::default();
    let large = Config { segment_bytes: 8 << 10, ..Config::default() };
    let mut rig = shipped(&mut objects, &large, 3);
    assert_eq!(putting(&rig), 1);
    rig.settle(&mut objects);
    assert_eq!(rig.volume.state().number, 3, "two batches share a segment");
}

#[test]
fn the_first_segment_of_an_engine_goes_alone() {
    let mut objects = Objects::default();
    drop(shipped(&mut objects, &config(), 0));
    let mut rig = Rig::open(7, &config());
    rig.settle(&mut objects);
    rig.resume(&mut objects, 1, 1, 1).unwrap();
    ship(&mut rig, 1..=4);
    assert_eq!(putting(&rig), 1);
    rig.settle(&mut objects);
    assert_eq!(rig.volume.state().committed, 4);
    assert_eq!(rig.volume.state().void_after, 2);
}

/// A dead store left segments behind a gap. The rest arrives at any later time.
#[test]
fn leftovers_never_count() {
    for late_before in [true, false] {
        let mut objects = Objects::default();
        let mut dead = shipped(&mut objects, &config(), 6);
        for segment in [2, 4, 6] {
            let at = put_of(&dead, segment);
            dead.execute(&mut objects, at, Fate::Good);
        }
        let late: Vec<_> = dead.pending.drain(..).map(|(_, operation)| operation).collect();
        drop(dead);

        let mut rig = Rig::open(7, &config());
        rig.settle(&mut objects);
        assert_eq!((rig.volume.failed(), rig.volume.state().committed), (None, 1));
        let attached = rig.attach(&mut objects, 1, 2, None);
        // Announced or not, the dead store told its host nothing of the later ones.
        assert_eq!(attached.unwrap().committed, 1);
        if late_before {
            for operation in &late {
                objects.execute(operation, Fate::Good);
            }
        }
        let first = rig.volume.state().number;
        assert_eq!((first, rig.volume.state().void_after), (3, 3));
        for number in 2..=20 {
            rig.send(1, Lane::Drain, batch(2, number, &[write(number + 100)]));
        }
        rig.settle(&mut objects);
        for operation in &late {
            objects.execute(operation, Fate::Good);
        }
        assert_eq!(rig.volume.state().committed, 20);
        let writes = writes_in(&objects);
        assert_eq!(writes[0], write(1));
        assert_eq!(writes[1..], (2..=20).map(|n| write(n + 100)).collect::<Vec<_>>());
        let mut again = Rig::open(8, &config());
        again.settle(&mut objects);
        same_state(again.volume.state(), rig.volume.state());
        assert_eq!(again.read_all(&mut objects), rig.read_all(&mut objects));
    }
}

/// A store that does not know of another one that has taken over. Its next number is taken, and
/// nothing that it had on its way counts.
#[test]
fn a_fenced_store_loses_everything_on_its_way() {
    let mut objects = Objects::default();
    let mut old = shipped(&mut objects, &config(), 5);
    for segment in [3, 5] {
        let at = put_of(&old, segment);
        old.execute(&mut objects, at, Fate::Good);
    }
    let mut new = Rig::open(7, &config());
    new.settle(&mut objects);
    new.attach(&mut objects, 1, 2, None).unwrap();
    new.send(1, Lane::Drain, batch(2, 1, &[write(50)]));
    new.settle(&mut objects);
    old.settle(&mut objects);
    assert!(old.fenced(1) && !old.committed(1, 1));
    assert_eq!(writes_in(&objects), [write(50)]);
    same_state(old.volume.state(), new.volume.state());
    // It goes on like any other, and the numbers after its first segment are void.
    old.attach(&mut objects, 9, 1, None).unwrap();
    assert_eq!(old.volume.state().void_after, old.volume.state().number);
}

/// A segment that is missing, and not one that never was.
#[test]
fn a_missing_segment_stops_the_volume_if_a_later_one_proves_it() {
    let mut objects = Objects::default();
    let mut rig = shipped(&mut objects, &config(), 5);
    rig.settle(&mut objects);
    ship(&mut rig, 6..=6);
    rig.settle(&mut objects);
    let key = catalog::segment_key(ID, 4);
    let mut damaged = objects.clone();
    damaged.0.remove(&key);
    let mut again = Rig::open(7, &config());
    again.settle(&mut damaged);
    assert_eq!(again.volume.failed(), Some(&OpenError::Missing { key }));
    // Without the last one nothing says that the others were ever whole.
    damaged.0.remove(&catalog::segment_key(ID, 7));
    let mut again = Rig::open(8, &config());
    again.settle(&mut damaged);
    assert_eq!(again.volume.state().committed, 2);
}

/// The first segment of an engine is missing: the one after the void numbers says so.
#[test]
fn the_first_segment_of_an_engine_is_missed() {
    let mut objects = Objects::default();
    drop(shipped(&mut objects, &config(), 0));
    let mut rig = Rig::open(7, &config());
    rig.settle(&mut objects);
    rig.resume(&mut objects, 1, 1, 1).unwrap();
    ship(&mut rig, 1..=2);
    rig.settle(&mut objects);
    let key = catalog::segment_key(ID, 2);
    objects.0.remove(&key);
    let mut again = Rig::open(8, &config());
    again.settle(&mut objects);
    assert_eq!(again.volume.failed(), Some(&OpenError::Missing { key }));
}

/// The leftovers in a replica prove nothing: home had more than the replica. A store that takes
/// over there goes on, and so does the one after it.
#[test]
fn leftovers_in_a_former_replica_stop_nobody() {
    let mut home = Objects::default();
    let mut rig = shipped(&mut home, &config(), 5);
    rig.settle(&mut home);
    let there = Config { proves_segments: false, ..config() };
    // The last segment says that all before it were durable, as they were at home.
    ship(&mut rig, 6..=6);
    rig.settle(&mut home);
    let mut objects = home.clone();
    for number in [4, 6] {
        objects.0.remove(&catalog::segment_key(ID, number));
    }
    let mut rig = Rig::open(7, &there);
    rig.settle(&mut objects);
    assert_eq!((rig.volume.failed(), rig.volume.state().committed), (None, 2));
    rig.resume(&mut objects, 1, 1, 1).unwrap();
    ship(&mut rig, 3..=6);
    rig.settle(&mut objects);
    let mut again = Rig::open(8, &there);
    again.settle(&mut objects);
    assert_eq!((again.volume.failed(), again.volume.state().committed), (None, 6));
    same_state(again.volume.state(), rig.volume.state());
}

/// An engine begins anew with segments on its way. They arrive among those that it puts next.
#[test]
fn an_engine_that_begins_anew_disowns_what_it_has_on_its_way() {
    let mut objects = Objects::default();
    let mut rig = shipped(&mut objects, &config(), 6);
    let mut late = std::mem::take(&mut rig.pending);
    late.reverse();
    let mut arrive = |objects: &mut Objects| {
        if let Some((_, operation)) = late.pop() {
            objects.execute(&operation, Fate::Good);
        }
    };
    rig.volume.restart();
    rig.collect();
    arrive(&mut objects);
    let mut committed = 0;
    for session in 2..20 {
        committed = rig.resume(&mut objects, session, 1, 1).unwrap().committed;
        for number in committed + 1..=6 {
            rig.send(session, Lane::Drain, batch(1, number, &[write(number)]));
        }
        arrive(&mut objects);
        // The newest one is the first to arrive.
        while let Some(last) = rig.pending.len().checked_sub(1) {
            rig.execute(&mut objects, last, Fate::Good);
        }
        assert_eq!(rig.volume.failed(), None);
    }
    assert_eq!(committed, 6);
    assert_eq!(writes_in(&objects), (1..=6).map(write).collect::<Vec<_>>());
    let mut again = Rig::open(8, &config());
    again.settle(&mut objects);
    same_state(again.volume.state(), rig.volume.state());
}

/// After a damaged first segment of an engine, an offline check knows that no number is missing.
#[test]
fn void_numbers_are_not_missing_after_damage() {
    let mut objects = Objects::default();
    drop(shipped(&mut objects, &config(), 0));
    let mut rig = Rig::open(7, &config());
    rig.settle(&mut objects);
    rig.resume(&mut objects, 1, 1, 1).unwrap();
    ship(&mut rig, 1..=3);
    rig.settle(&mut objects);
    let of = |number| objects.0[&catalog::segment_key(ID, number)].clone();
    let (first, next) = (2, 2 + IN_FLIGHT_MAX);
    for whole in [true, false] {
        let mut check = LogCheck::new(&spec());
        check.handle_segment(&of(1)).unwrap();
        if whole {
            check.handle_segment(&Bytes::from_static(b"damaged")).unwrap_err();
        }
        let missing: Vec<u64> = check.missing(next, &of(next)).collect();
        assert_eq!(missing, [first].as_slice()[usize::from(whole)..]);
        check.handle_missing(next - 1);
        check.handle_segment(&of(next)).unwrap();
        check.handle_segment(&of(next + 1)).unwrap();
        assert_eq!(check.next(), next + 2);
    }
}
