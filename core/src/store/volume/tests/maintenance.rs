//! Flushes, merges, roots and what they leave behind; lookups that need pages.

use super::scenarios::commit;
use super::*;

fn puts(rig: &Rig) -> usize {
    rig.pending.iter().filter(|(_, o)| matches!(o, ObjectOperation::Put { .. })).count()
}

/// Writes many small runs, so that there are several levels.
fn used(config: &Config) -> (Objects, Rig) {
    let mut objects = Objects::default();
    let mut rig = Rig::open(1, config);
    rig.settle(&mut objects);
    rig.attach(&mut objects, 1, 1, None).unwrap();
    for n in 1..=40 {
        let at = n * 13 % 63;
        commit(&mut rig, &mut objects, 1, n, &[data(at, 1, n as u16)]);
    }
    (objects, rig)
}

#[test]
fn a_volume_at_rest_costs_no_put() {
    let (mut objects, rig) = used(&tiny());
    drop(rig);
    let before = objects.0.len();
    let mut rig = Rig::open(2, &tiny());
    for _ in 0..100 {
        assert_eq!(puts(&rig), 0);
        if rig.pending.is_empty() {
            break;
        }
        rig.execute(&mut objects, 0, Fate::Good);
    }
    rig.read_all(&mut objects).unwrap();
    assert!(rig.volume.is_idle() && rig.volume.poll_timeout().is_none());
    assert_eq!(objects.0.len(), before);
}

#[test]
fn every_level_is_read_and_what_is_not_needed_goes() {
    let config = tiny();
    let (mut objects, mut rig) = used(&config);
    let levels = rig.volume.map.tree().levels().clone();
    assert!(levels.sorted().len() >= 2, "{levels:?}");
    let writes = writes_in(&objects);
    assert_eq!(rig.read_all(&mut objects).unwrap(), content(&writes));
    // The last two roots, and nothing that neither names.
    let named: std::collections::BTreeSet<String> = objects
        .roots()
        .into_iter()
        .flat_map(|(_, root)| root.unwrap().levels.fragments().copied().collect::<Vec<_>>())
        .map(|fragment| catalog::fragment_key(fragment.id))
        .collect();
    let there: std::collections::BTreeSet<String> =
        objects.0.keys().filter(|key| key.contains("/frag/")).cloned().collect();
    // Besides, what merges made and used up between the two.
    assert!(named.is_subset(&there) && there.len() < named.len() + 12, "{there:?} {named:?}");
    assert_eq!(objects.roots().len(), 2);
    let deleted = |event: &&Event| matches!(event, Event::Deleted { .. });
    assert!(rig.events.iter().filter(deleted).count() > 3);
    // Its part of the cache goes with it.
    drop(rig);
    assert_eq!(config.pages.lock().tables(), 0);
}

#[test]
fn reads_that_want_the_same_page_have_it_read_once() {
    let (mut objects, rig) = used(&tiny());
    drop(rig);
    let mut rig = Rig::open(2, &Config { read_operations_max: 32, ..tiny() });
    rig.settle(&mut objects);
    for request in 0..8 {
        let range = Range::new(0, 8);
        rig.send(9, Lane::Read, ToStore::Read { request, volume: ID, epoch: 0, range });
    }
    let mut gets: Vec<String> = rig.pending.iter().map(|(_, o)| format!("{o:?}")).collect();
    assert!(!gets.is_empty() && gets.iter().all(|get| get.contains("/frag/")), "{gets:?}");
    gets.sort();
    gets.dedup();
    assert_eq!(gets.len(), rig.pending.len());
    rig.settle(&mut objects);
    assert_eq!(rig.inbox.len(), 8);
}

/// The fenced host may not know it yet: late pages show it nothing of the next host.
#[test]
fn reads_that_wait_for_pages_are_fenced() {
    let (mut objects, rig) = used(&tiny());
    drop(rig);
    let mut rig = Rig::open(2, &tiny());
    rig.settle(&mut objects);
    rig.resume(&mut objects, 1, 1, 1).unwrap();
    let range = Range::new(0, 8);
    rig.send(1, Lane::Read, ToStore::Read { request: 5, volume: ID, epoch: 1, range });
    rig.send(9, Lane::Read, ToStore::Read { request: 6, volume: ID, epoch: 0, range });
    let late = std::mem::take(&mut rig.pending);
    assert!(!late.is_empty());
    rig.attach(&mut objects, 2, 2, None).unwrap();
    rig.send(2, Lane::Drain, batch(2, 41, &[data(0, 8, 99)]));
    rig.settle(&mut objects);
    assert!(rig.has(1, |m| matches!(
        m,
        ToHost::Data { request: 5, result: Err(ReadError::Fenced(2)), .. }
    )));
    rig.pending = late;
    rig.settle(&mut objects);
    let answers = |session| rig.has(session, |m| matches!(m, ToHost::Data { result: Ok(_), .. }));
    assert!(!answers(1) && answers(9));
}

#[test]
fn a_damaged_page_is_a_medium_error_for_its_range() {
    let (mut objects, rig) = used(&tiny());
    drop(rig);
    let root = objects.roots().pop().unwrap().1.unwrap();
    let bottom = *root.levels.fragments().last().unwrap();
    let key = catalog::fragment_key(bottom.id);
    let whole = content(&writes_in(&objects));
    for gone in [false, true] {
        let mut objects = objects.clone();
        if gone {
            objects.0.remove(&key);
        } else {
            objects.damage(&key, 3);
        }
        let mut rig = Rig::open(2, &tiny());
        rig.settle(&mut objects);
        let (mut damaged, mut good) = (0, 0);
        for lba in 0..SECTORS {
            let range = Range::new(lba, 1);
            match rig.read(&mut objects, range) {
                Ok(tags) => {
                    assert_eq!(tags[0], whole[lba as usize]);
                    good += 1;
                }
                Err(ReadError::Medium(found)) => {
                    assert!(found == range && bottom.span.intersect(range).is_some());
                    damaged += 1;
                }
                Err(error) => panic!("{error:?}"),
            }
        }
        assert!(damaged > 0 && good > 10, "{damaged} {good}");
        let told = |e: &Event| matches!(e, Event::DataDamaged { key: told, .. } if *told == key);
        assert!(rig.events.iter().any(told));
    }
    let mut rig = Rig::open(3, &tiny());
    rig.settle(&mut objects);
    assert_eq!(rig.read_all(&mut objects).unwrap(), whole);
}

/// A store that has had the volume open all the while finds that what it names is gone, and goes on
/// from the newest root.
#[test]
fn a_store_that_was_superseded_goes_on_from_the_newest_root() {
    let (mut objects, mut first) = used(&Config { pages: SharedPages::new(0), ..tiny() });
    let mut second = Rig::open(2, &tiny());
    second.settle(&mut objects);
    second.attach(&mut objects, 1, 2, None).unwrap();
    for n in 41..=80 {
        commit(&mut second, &mut objects, 2, n, &[data(n * 13 % 63, 1, n as u16)]);
    }
    let claimed = |rig: &Rig| {
        let mut claims = rig.events.iter().filter_map(|event| match event {
            Event::Claimed { generation } => Some(*generation),
            _ => None,
        });
        claims.next_back()
    };
    assert_eq!((claimed(&first), claimed(&second)), (Some(1), Some(2)));
    let expected = content(&writes_in(&objects));
    // It had to read before write 40. The objects that it knows are gone, so it catches up.
    assert_eq!(first.read_all(&mut objects).unwrap(), expected);
    assert!(first.volume.state().committed == 80 && first.volume.failed().is_none());
    // And claims anew when it has something to flush.
    first.attach(&mut objects, 1, 3, None).unwrap();
    for n in 81..=90 {
        commit(&mut first, &mut objects, 3, n, &[data(n * 13 % 63, 1, n as u16)]);
    }
    assert_eq!(claimed(&first), Some(3));
    objects.check_newest_root();
}

#[test]
fn status_goes_through_the_levels_a_part_at_a_time() {
    let (mut objects, mut rig) = used(&tiny());
    let whole = content(&writes_in(&objects));
    let (mut lba, mut states) = (0, Vec::new());
    while lba < SECTORS {
        let range = Range::between(lba, SECTORS);
        rig.inbox.clear();
        rig.send(9, Lane::Control, ToStore::Status { request: 1, volume: ID, epoch: 0, range });
        rig.settle(&mut objects);
        let Some((_, _, frame)) = rig.inbox.pop() else { panic!() };
        let ToHost::Status { result: Ok(runs), .. } = frame.message else { panic!() };
        assert!(!runs.is_empty());
        for run in runs {
            states.extend(std::iter::repeat_n(run.state, run.sectors as usize));
            lba += run.sectors;
        }
    }
    let expected =
        whole.iter().map(|tag| if *tag == 0 { BlockState::Hole } else { BlockState::Data });
    assert!(states.into_iter().eq(expected));
}
