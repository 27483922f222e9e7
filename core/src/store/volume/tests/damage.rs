//! What the host is told of damaged objects.

use super::scenarios::{attached, commit};
use super::*;
use crate::wire::link::MAX_DAMAGED_RANGES;

fn told(rig: &Rig) -> Vec<Vec<Range>> {
    let told = rig.inbox.iter().filter_map(|(session, lane, frame)| match &frame.message {
        ToHost::Damaged { volume, epoch, ranges } => {
            assert_eq!((*session, *lane, *volume, *epoch), (SessionId(1), Lane::Control, ID, 1));
            assert!(ranges.len() <= MAX_DAMAGED_RANGES);
            Some(ranges.clone())
        }
        _ => None,
    });
    told.collect()
}

fn damaged(rig: &mut Rig, objects: &mut Objects, key: &str, ranges: &[Range]) {
    rig.inbox.clear();
    rig.volume.handle_damaged(rig.now, key, ranges);
    rig.collect();
    rig.settle(objects);
}

#[test]
fn the_host_is_told_of_what_is_still_read_from_a_damaged_object() {
    let (mut objects, mut rig) = attached();
    commit(&mut rig, &mut objects, 1, 1, &[data(0, 16, 1), data(24, 8, 2)]);
    commit(&mut rig, &mut objects, 1, 3, &[data(4, 4, 3)]);
    let key = |number| catalog::segment_key(ID, number);
    let all = [Range::new(0, 16), Range::new(24, 8)];
    damaged(&mut rig, &mut objects, &key(2), &all);
    let left = vec![Range::new(0, 4), Range::new(8, 8), Range::new(24, 8)];
    assert_eq!(told(&rig), [left]);
    assert!(rig.events.contains(&Event::DamageTold {
        session: SessionId(1),
        ranges: 3,
        bytes: 20 * 512
    }));
    // Of no more than what the object is said to have lost.
    damaged(&mut rig, &mut objects, &key(2), &[Range::new(26, 2), Range::new(60, 400)]);
    assert_eq!(told(&rig), [[Range::new(26, 2)]]);
    // Once all of it is written anew there is nothing left to tell.
    commit(&mut rig, &mut objects, 1, 4, &[data(0, 32, 4)]);
    damaged(&mut rig, &mut objects, &key(2), &all);
    assert!(told(&rig).is_empty());
    // Nor of objects that it has nothing to do with.
    for key in [key(9), catalog::segment_key(VolumeId(7), 4), "v/x/frag/1".into()] {
        damaged(&mut rig, &mut objects, &key, &all);
        assert!(told(&rig).is_empty(), "{key}");
    }
    // What a part of the map does not say any more is all told.
    let fragment = format!("{}map/1", catalog::volume_prefix(ID));
    damaged(&mut rig, &mut objects, &fragment, &all);
    assert_eq!(told(&rig), [all]);
}

#[test]
fn nobody_is_told_where_nobody_listens() {
    let (mut objects, mut rig) = attached();
    commit(&mut rig, &mut objects, 1, 1, &[data(0, 16, 1)]);
    rig.volume.handle_session_closed(rig.now, SessionId(1));
    rig.collect();
    damaged(&mut rig, &mut objects, &catalog::segment_key(ID, 2), &[Range::new(0, 16)]);
    assert!(told(&rig).is_empty());
    rig.volume.handle_shutdown(rig.now);
    rig.collect();
    damaged(&mut rig, &mut objects, &catalog::segment_key(ID, 2), &[Range::new(0, 16)]);
    rig.settle(&mut objects);
    assert!(rig.volume.is_idle());
}
