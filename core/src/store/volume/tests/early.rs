//! Reads that come with a Resume: what they may be answered from, and when.

use super::scenarios::{attached, commit, opened};
use super::*;

fn behind(request: u64, epoch: u64, committed: u64) -> ToStore {
    ToStore::EarlyRead { request, volume: ID, epoch, committed, range: Range::new(0, 1) }
}

fn resume(host: u128, epoch: u64) -> ToStore {
    ToStore::Resume { request: 9, volume: ID, epoch, host: HostId(host) }
}

/// The answer to a read of one sector: its tag, or why not.
fn answer(rig: &mut Rig, request: u64) -> Option<Result<u16, ReadError>> {
    let is = |m: &ToHost| matches!(m, ToHost::Data { request: of, .. } if *of == request);
    let at = rig.inbox.iter().position(|(.., frame)| is(&frame.message))?;
    let Frame { message: ToHost::Data { result, .. }, payload } = rig.inbox.remove(at).2 else {
        return None;
    };
    Some(result.map(
        |pieces| match &link::decode_data(Range::new(0, 1), &pieces, payload).unwrap()[..] {
            [link::ReadPart::Data { wanted, fragment }] => tag_of(&fragment.sectors(*wanted)),
            [_] => 0,
            parts => panic!("{} parts", parts.len()),
        },
    ))
}

#[test]
fn what_is_known_here_is_answered_at_once_and_takes_the_volume_from_nobody() {
    let (mut objects, mut rig) = attached();
    commit(&mut rig, &mut objects, 1, 1, &[data(0, 8, 7)]);
    rig.send(2, Lane::Read, behind(5, 1, 1));
    rig.send(2, Lane::Read, behind(6, 1, 0));
    rig.settle(&mut objects);
    assert_eq!((answer(&mut rig, 5), answer(&mut rig, 6)), (Some(Ok(7)), Some(Ok(7))));
    // Session 1 still has it.
    commit(&mut rig, &mut objects, 1, 2, &[data(0, 8, 8)]);
    assert_eq!(rig.resume(&mut objects, 2, 1, 1).unwrap().committed, 2);
    rig.send(2, Lane::Read, behind(7, 1, 2));
    rig.settle(&mut objects);
    assert_eq!(answer(&mut rig, 7), Some(Ok(8)));
}

#[test]
fn what_went_on_elsewhere_is_looked_for_first() {
    let (mut objects, mut here) = attached();
    commit(&mut here, &mut objects, 1, 1, &[data(0, 8, 7)]);
    let mut there = opened(&mut objects, 2);
    there.resume(&mut objects, 1, 1, 1).unwrap();
    commit(&mut there, &mut objects, 1, 2, &[data(0, 8, 8)]);
    here.send(2, Lane::Read, behind(5, 1, 2));
    here.settle(&mut objects);
    assert_eq!(answer(&mut here, 5), None, "this store knows of less than the host");
    assert_eq!(here.resume(&mut objects, 2, 1, 1).unwrap().committed, 2);
    assert_eq!(answer(&mut here, 5), Some(Ok(8)));
    // The same for an epoch that this store has not heard of.
    there.attach(&mut objects, 3, 2, None).unwrap();
    here.send(4, Lane::Read, behind(6, 2, 2));
    here.settle(&mut objects);
    assert_eq!(answer(&mut here, 6), None);
    here.send(4, Lane::Control, resume(2, 2));
    here.settle(&mut objects);
    assert_eq!(answer(&mut here, 6), Some(Ok(8)));
}

#[test]
fn a_volume_that_has_grown_elsewhere_is_read_to_its_end() {
    let (mut objects, mut here) = attached();
    let mut there = opened(&mut objects, 2);
    there.resume(&mut objects, 1, 1, 1).unwrap();
    let (name, sectors) = ("test".to_owned(), SECTORS * 2);
    let operation = VolumeOperation::Resize { name, sectors };
    there.send(1, Lane::Control, ToStore::Volume { request: 1, operation });
    there.settle(&mut objects);
    let range = Range::new(SECTORS, 1);
    let read = ToStore::EarlyRead { request: 5, volume: ID, epoch: 1, committed: 0, range };
    here.send(2, Lane::Read, read);
    here.settle(&mut objects);
    assert_eq!(answer(&mut here, 5), None);
    assert_eq!(here.resume(&mut objects, 2, 1, 1).unwrap().sectors, sectors);
    assert_eq!(answer(&mut here, 5), Some(Ok(0)));
    // Beyond what there is.
    let range = Range::new(sectors, 1);
    let read = ToStore::EarlyRead { request: 6, volume: ID, epoch: 1, committed: 0, range };
    here.send(2, Lane::Read, read);
    assert_eq!(answer(&mut here, 6), Some(Err(ReadError::Invalid)));
}

#[test]
fn a_resume_that_is_refused_refuses_them_too() {
    let (mut objects, mut here) = attached();
    commit(&mut here, &mut objects, 1, 1, &[data(0, 8, 7)]);
    let mut there = opened(&mut objects, 2);
    there.attach(&mut objects, 3, 2, None).unwrap();
    here.send(2, Lane::Read, behind(5, 1, 9));
    here.send(2, Lane::Control, resume(1, 1));
    here.settle(&mut objects);
    assert_eq!(answer(&mut here, 5), Some(Err(ReadError::Fenced(2))));
    here.send(2, Lane::Read, behind(6, 1, 1));
    assert_eq!(answer(&mut here, 6), Some(Err(ReadError::Fenced(2))), "known by now");
    // Of an epoch that the log does not have.
    here.send(4, Lane::Read, behind(7, 3, 1));
    here.send(4, Lane::Control, resume(1, 3));
    here.settle(&mut objects);
    here.send(4, Lane::Read, behind(8, 3, 1));
    let refused = Some(Err(ReadError::NotAttached));
    assert_eq!((answer(&mut here, 7), answer(&mut here, 8)), (refused.clone(), refused));
}

#[test]
fn those_that_wait_are_bounded_and_end_with_their_session_or_the_store() {
    let (mut objects, mut rig) = attached();
    for request in 0..1100 {
        rig.send(2, Lane::Read, behind(request, 1, 9));
    }
    rig.send(3, Lane::Read, behind(2000, 1, 9));
    rig.settle(&mut objects);
    assert_eq!((rig.inbox.len(), answer(&mut rig, 1023)), (77, None));
    assert!(!rig.volume.is_idle());
    rig.volume.handle_session_closed(rig.now, SessionId(2));
    rig.collect();
    assert!(rig.volume.is_idle());
    rig.send(3, Lane::Read, behind(2001, 1, 9));
    assert_eq!(answer(&mut rig, 2001), None);
    rig.volume.handle_shutdown(rig.now);
    rig.collect();
    rig.settle(&mut objects);
    assert_eq!(answer(&mut rig, 2001), Some(Err(ReadError::NotAttached)));
    assert!(rig.volume.is_idle());
}
