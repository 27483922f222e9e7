//! One situation a test.

use super::*;

pub(super) fn opened(objects: &mut Objects, incarnation: u128) -> Rig {
    let mut rig = Rig::open(incarnation, &Config::default());
    rig.settle(objects);
    rig
}

/// A volume that host 1 has attached in session 1.
pub(super) fn attached() -> (Objects, Rig) {
    let mut objects = Objects::default();
    let mut rig = opened(&mut objects, 1);
    let attached = rig.attach(&mut objects, 1, 1, None).unwrap();
    assert_eq!((attached.epoch, attached.committed), (1, 0));
    (objects, rig)
}

pub(super) fn commit(
    rig: &mut Rig,
    objects: &mut Objects,
    epoch: u64,
    first: u64,
    writes: &[Write],
) {
    rig.send(1, Lane::Drain, batch(epoch, first, writes));
    rig.settle(objects);
    assert!(rig.committed(1, first + writes.len() as u64 - 1));
}

fn lost(rig: &mut Rig, objects: &mut Objects) -> Vec<(u64, u64)> {
    let operation = VolumeOperation::Lost { name: "test".into(), from_lba: 0 };
    rig.send(50, Lane::Control, ToStore::Volume { request: 9, operation });
    rig.settle(objects);
    let Some((_, _, frame)) = rig.inbox.pop() else { panic!("no answer") };
    let ToHost::Volume { result: Ok(VolumeReply::Lost { ranges, more, .. }), .. } = frame.message
    else {
        panic!("not an answer: {frame:?}");
    };
    assert!(!more);
    ranges.iter().map(|range| (range.lba, range.sectors)).collect()
}

#[test]
fn batches_that_are_not_right_are_refused_whole() {
    let good = [data(0, 8, 1), data(8, 8, 2)];
    let frame = batch(1, 1, &good);
    let change = |at: usize| {
        let mut bytes = frame.payload.to_vec();
        bytes[at] ^= 1;
        Frame { message: frame.message.clone(), payload: bytes.into() }
    };
    let with = |epoch, first, last, payload: &Bytes| Frame {
        message: ToStore::Batch { volume: ID, epoch, first, last },
        payload: payload.clone(),
    };
    let beyond = records(1, 1, &[data(0, 8, 1), data(SECTORS - 1, 2, 2)]);
    let future = records(2, 1, &good);
    let reversed = [records(1, 2, &good[..1]), records(1, 1, &good[1..])].concat();
    let cases = [
        ("payload", change(frame.payload.len() - 1)),
        ("first payload", change(100)),
        ("header", change(9)),
        ("cut", with(1, 1, 2, &frame.payload.slice(..frame.payload.len() - 1))),
        ("last record missing", with(1, 1, 2, &records(1, 1, &good[..1]))),
        ("beyond last", with(1, 1, 1, &frame.payload)),
        ("before first", with(1, 2, 2, &frame.payload)),
        ("gap", with(1, 2, 3, &records(1, 2, &good))),
        ("zero", with(1, 0, 1, &records(1, 0, &good))),
        ("no number after it", with(1, u64::MAX, u64::MAX, &records(1, u64::MAX, &good[..1]))),
        ("empty", with(1, 1, 2, &Bytes::new())),
        ("beyond the volume", with(1, 1, 2, &beyond)),
        ("from the future", with(1, 1, 2, &future)),
        ("out of order", with(1, 1, 2, &reversed.into())),
        ("epoch to come", with(2, 1, 2, &frame.payload)),
    ];
    for (name, bad) in cases {
        let (mut objects, mut rig) = attached();
        let before = objects.0.len();
        rig.send(1, Lane::Drain, bad);
        rig.settle(&mut objects);
        assert!(rig.refused(1), "{name}");
        assert_eq!((objects.0.len(), rig.volume.state().committed), (before, 0), "{name}");
        // Not before the host resumes.
        if name != "epoch to come" {
            rig.send(1, Lane::Drain, frame.clone());
            rig.settle(&mut objects);
            assert_eq!(rig.volume.state().committed, 0, "{name}");
        }
        assert_eq!(rig.resume(&mut objects, 1, 1, 1).unwrap().committed, 0);
        rig.send(1, Lane::Drain, frame.clone());
        rig.settle(&mut objects);
        assert!(rig.committed(1, 2), "{name}");
    }
}

#[test]
fn duplicates_are_answered_and_not_committed_again() {
    let (mut objects, mut rig) = attached();
    commit(&mut rig, &mut objects, 1, 1, &[data(0, 8, 1), data(0, 8, 2)]);
    rig.inbox.clear();
    let segments = rig.volume.state().number;
    rig.send(1, Lane::Drain, batch(1, 1, &[data(0, 8, 1)]));
    rig.settle(&mut objects);
    assert!(rig.committed(1, 2));
    assert_eq!(rig.volume.state().number, segments);
}

#[test]
fn strangers_are_told_so() {
    let (mut objects, mut rig) = attached();
    rig.send(2, Lane::Drain, batch(1, 1, &[data(0, 8, 1)]));
    assert!(rig.refused(2) && !rig.refused(1));
    let read = |epoch| ToStore::Read { request: 5, volume: ID, epoch, range: Range::new(0, 8) };
    rig.send(2, Lane::Read, read(1));
    let answer = |m: &ToHost| matches!(m, ToHost::Data { result: Err(ReadError::NotAttached), .. });
    assert!(rig.has(2, answer));
    rig.attach(&mut objects, 3, 3, None).unwrap();
    assert!(rig.fenced(1));
    rig.inbox.clear();
    rig.send(1, Lane::Drain, batch(1, 1, &[data(0, 8, 1)]));
    rig.send(1, Lane::Read, read(1));
    assert!(rig.fenced(1));
    assert!(rig.has(1, |m| matches!(m, ToHost::Data { result: Err(ReadError::Fenced(2)), .. })));
    assert!(matches!(
        rig.resume(&mut objects, 4, 1, 1),
        Err(AttachError::Fenced { epoch: 2, host: HostId(3) })
    ));
    let long = ToStore::Read { request: 6, volume: ID, epoch: 0, range: Range::new(60, 8) };
    rig.send(2, Lane::Read, long);
    assert!(rig.has(2, |m| matches!(m, ToHost::Data { result: Err(ReadError::Invalid), .. })));
}

#[test]
fn what_was_announced_survives_the_store_and_is_asked_about() {
    let (mut objects, mut rig) = attached();
    rig.send(1, Lane::Control, announce(1, true, &[(0, 8, 1), (8, 8, 2), (40, 2, 3)]));
    commit(&mut rig, &mut objects, 1, 1, &[data(0, 8, 1)]);
    assert_eq!(lost(&mut rig, &mut objects), [(8, 8), (40, 2)]);
    // The store dies, the host too.
    let mut rig = opened(&mut objects, 2);
    assert_eq!(lost(&mut rig, &mut objects), [(8, 8), (40, 2)]);
    let refused = rig.attach(&mut objects, 2, 2, None);
    assert_eq!(refused, Err(AttachError::LossPending { host: HostId(1), bytes: 10 * 512 }));
    let accept = || ToStore::Volume {
        request: 1,
        operation: VolumeOperation::AcceptLoss { name: "test".into() },
    };
    let done = |m: &ToHost| matches!(m, ToHost::Volume { result: Ok(VolumeReply::Done), .. });
    rig.send(3, Lane::Control, accept());
    rig.settle(&mut objects);
    assert!(rig.has(3, done) && lost(&mut rig, &mut objects).is_empty());
    let segments = rig.volume.state().number;
    rig.send(4, Lane::Control, accept());
    rig.settle(&mut objects);
    assert!(rig.has(4, done), "accepting twice is accepting once");
    assert_eq!(rig.volume.state().number, segments);
    assert_eq!(rig.attach(&mut objects, 2, 2, None).unwrap().committed, 1);
    // The first host comes back after all.
    assert_eq!(
        rig.attach(&mut objects, 5, 1, Some((1, 3))),
        Err(AttachError::Diverged { epoch: 1, from: 2, to: 3 })
    );
}

#[test]
fn announcements_without_data_get_a_segment_of_their_own() {
    let (mut objects, mut rig) = attached();
    let segments = rig.volume.state().number;
    rig.send(1, Lane::Control, announce(1, false, &[(3, 5, 1)]));
    assert!(rig.pending.is_empty());
    rig.settle(&mut objects);
    assert_eq!(rig.volume.state().number, segments + 1);
    let mut rig = opened(&mut objects, 2);
    assert_eq!(lost(&mut rig, &mut objects), [(3, 5)]);
}

#[test]
fn announcing_nothing_new_costs_no_segment() {
    let (mut objects, mut rig) = attached();
    let segments = rig.volume.state().number;
    rig.send(1, Lane::Control, announce(1, true, &[]));
    rig.settle(&mut objects);
    assert_eq!(rig.volume.state().number, segments);
}

#[test]
fn stragglers_of_an_epoch_replaced_over_the_same_session_fence_nobody() {
    let (mut objects, mut rig) = attached();
    assert_eq!(rig.attach(&mut objects, 1, 1, Some((1, 0))).unwrap().epoch, 2);
    rig.send(1, Lane::Drain, batch(1, 1, &[data(0, 8, 1)]));
    rig.settle(&mut objects);
    assert!(!rig.fenced(1) && !rig.refused(1));
    commit(&mut rig, &mut objects, 2, 1, &[data(0, 8, 1)]);
}

#[test]
fn what_cannot_be_announced_is_ignored() {
    let (mut objects, mut rig) = attached();
    rig.send(1, Lane::Control, announce(1, false, &[(60, 8, 1), (0, 0, 1), (5, 1, 2)]));
    rig.send(1, Lane::Control, announce(2, false, &[(1, 1, 1)]));
    rig.send(2, Lane::Control, announce(1, false, &[(1, 1, 1)]));
    rig.settle(&mut objects);
    assert_eq!(lost(&mut rig, &mut objects), [(5, 1)]);
    let ignored = Event::AnnounceIgnored { session: SessionId(1), entries: 2 };
    assert!(rig.events.contains(&ignored));
}

#[test]
fn a_connected_host_stands_in_the_way_of_accepting_loss() {
    let (mut objects, mut rig) = attached();
    let operation = || VolumeOperation::AcceptLoss { name: "test".into() };
    rig.send(2, Lane::Control, ToStore::Volume { request: 1, operation: operation() });
    rig.settle(&mut objects);
    let in_use = |m: &ToHost| {
        matches!(m, ToHost::Volume { result: Err(link::VolumeError::InUse(HostId(1))), .. })
    };
    assert!(rig.has(2, in_use));
    rig.volume.handle_session_closed(rig.now, SessionId(1));
    rig.send(2, Lane::Control, ToStore::Volume { request: 1, operation: operation() });
    rig.settle(&mut objects);
    assert_eq!(rig.volume.info().unwrap().epoch, 2);
    assert!(matches!(rig.resume(&mut objects, 3, 1, 1), Err(AttachError::Fenced { .. })));
}

#[test]
fn the_rest_of_a_journal_is_owed_even_if_none_of_it_was_announced() {
    let (mut objects, mut rig) = attached();
    commit(&mut rig, &mut objects, 1, 1, &[data(0, 8, 1)]);
    let granted = rig.attach(&mut objects, 2, 1, Some((1, 9))).unwrap();
    assert_eq!((granted.epoch, granted.committed), (2, 1));
    rig.volume.handle_session_closed(rig.now, SessionId(2));
    let refused = rig.attach(&mut objects, 3, 7, None);
    assert_eq!(refused, Err(AttachError::LossPending { host: HostId(1), bytes: 0 }));
    // Its own journal is welcome, in whichever of the two epochs it wrote last.
    rig.attach(&mut objects, 4, 1, Some((1, 9))).unwrap();
}

#[test]
fn what_was_announced_is_remembered_across_an_attach_with_the_journal() {
    let (mut objects, mut rig) = attached();
    rig.send(1, Lane::Control, announce(1, true, &[(8, 8, 1), (40, 2, 2)]));
    // Overwritten before any of it arrived.
    rig.send(1, Lane::Control, announce(1, false, &[(40, 2, 3)]));
    // The journal's tail, unflushed, went down with the host.
    rig.attach(&mut objects, 2, 1, Some((1, 2))).unwrap();
    let mut rig = opened(&mut objects, 2);
    assert_eq!(lost(&mut rig, &mut objects), [(8, 8), (40, 2)]);
    // Once the journal's rest has arrived there is nothing left to lose.
    rig.attach(&mut objects, 1, 1, Some((2, 2))).unwrap();
    rig.send(1, Lane::Drain, batch(3, 1, &[data(8, 8, 1), data(40, 2, 2)]));
    rig.settle(&mut objects);
    assert!(lost(&mut rig, &mut objects).is_empty());
    rig.attach(&mut objects, 3, 2, None).unwrap();
}

#[test]
fn batches_behind_an_attach_are_not_lost_silently() {
    let (mut objects, mut rig) = attached();
    // A put of a segment is in progress; another host asks; more of the first host's writes arrive.
    rig.send(1, Lane::Drain, batch(1, 1, &[data(0, 8, 1)]));
    let host = HostId(2);
    let ask =
        ToStore::Attach { request: 1, name: "test".into(), host, journal: None, take_over: true };
    rig.send(2, Lane::Control, ask);
    rig.send(1, Lane::Drain, batch(1, 2, &[data(8, 8, 2)]));
    rig.settle(&mut objects);
    let refused = rig.take_attached(2).unwrap();
    assert_eq!(refused, Err(AttachError::LossPending { host: HostId(1), bytes: 8 * 512 }));
    assert!(rig.committed(1, 2));
}

#[test]
fn batches_that_arrived_are_committed_before_the_host_resumes() {
    let (mut objects, mut rig) = attached();
    rig.send(1, Lane::Drain, batch(1, 1, &[data(0, 8, 1)]));
    rig.send(1, Lane::Drain, batch(1, 2, &[data(8, 8, 2)]));
    rig.volume.handle_session_closed(rig.now, SessionId(1));
    assert_eq!(rig.resume(&mut objects, 2, 1, 1).unwrap().committed, 2);
}

/// Whether a host's epoch has begun after that of another one.
fn began(
    rig: &Rig,
    epoch: u64,
    host: u128,
    unclean: Option<HostId>,
    former: Option<String>,
) -> bool {
    let (host, session, request) = (HostId(host), SessionId(host as u64), 1);
    rig.events.contains(&Event::Attached { epoch, host, unclean, session, request, former })
}

#[test]
fn a_clean_detach_leaves_nothing_to_ask() {
    let (mut objects, mut rig) = attached();
    commit(&mut rig, &mut objects, 1, 1, &[data(0, 8, 1)]);
    rig.send(1, Lane::Control, ToStore::Detach { request: 4, volume: ID, epoch: 1 });
    rig.settle(&mut objects);
    assert!(rig.has(1, |m| matches!(m, ToHost::Detached { request: 4 })));
    let info = rig.volume.info().unwrap();
    assert!(info.clean && !info.connected);
    rig.attach(&mut objects, 2, 2, None).unwrap();
    assert!(began(&rig, 2, 2, None, None));
    rig.attach(&mut objects, 3, 3, None).unwrap();
    let former = format!("host {}", HostId(2));
    assert!(began(&rig, 3, 3, Some(HostId(2)), Some(former)));
}

#[test]
fn a_put_that_failed_after_taking_effect_is_recognised() {
    let (mut objects, mut rig) = attached();
    rig.send(1, Lane::Drain, batch(1, 1, &[data(0, 8, 1)]));
    rig.execute(&mut objects, 0, Fate::FailsAfter);
    assert!(rig.pending.is_empty() && !rig.committed(1, 1));
    let due = rig.volume.poll_timeout().unwrap();
    assert_eq!(due.since(rig.now), Config::default().retry.0);
    rig.settle(&mut objects);
    assert!(rig.committed(1, 1) && !rig.fenced(1));
}

#[test]
fn pauses_double_up_to_the_longest() {
    let (mut objects, mut rig) = attached();
    rig.send(1, Lane::Drain, batch(1, 1, &[data(0, 8, 1)]));
    let mut pauses = Vec::new();
    for _ in 0..9 {
        rig.execute(&mut objects, 0, Fate::FailsBefore);
        let due = rig.volume.poll_timeout().unwrap();
        pauses.push(due.since(rig.now).as_millis());
        rig.tick();
    }
    assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]);
    rig.settle(&mut objects);
    assert!(rig.committed(1, 1));
}

#[test]
fn another_store_fences_through_the_log() {
    let (mut objects, mut old) = attached();
    commit(&mut old, &mut objects, 1, 1, &[data(0, 8, 1)]);
    let mut new = opened(&mut objects, 2);
    new.attach(&mut objects, 1, 2, None).unwrap();
    commit(&mut new, &mut objects, 2, 2, &[data(0, 8, 9)]);
    old.send(1, Lane::Drain, batch(1, 2, &[data(0, 8, 2)]));
    old.settle(&mut objects);
    assert!(old.fenced(1) && !old.committed(1, 2));
    assert_eq!(old.read_all(&mut objects).unwrap(), content(&[data(0, 8, 9)]));
}

#[test]
fn a_store_that_slept_knows_what_is_lost() {
    let (mut objects, mut first) = attached();
    let mut second = opened(&mut objects, 2);
    second.resume(&mut objects, 1, 1, 1).unwrap();
    second.send(1, Lane::Control, announce(1, true, &[(3, 5, 1)]));
    second.settle(&mut objects);
    assert_eq!(lost(&mut first, &mut objects), [(3, 5)]);
}

#[test]
fn nothing_is_said_to_be_lost_before_the_log_is_read() {
    let mut rig = Rig::open(1, &Config::default());
    rig.volume.handle_shutdown(rig.now);
    let operation = VolumeOperation::Lost { name: "test".into(), from_lba: 0 };
    rig.send(1, Lane::Control, ToStore::Volume { request: 1, operation });
    assert!(rig.has(1, |m| matches!(m, ToHost::Volume { result: Err(_), .. })));
}

#[test]
fn resuming_at_a_store_that_slept_tells_what_the_other_committed() {
    let (mut objects, mut first) = attached();
    let mut second = opened(&mut objects, 2);
    assert_eq!(second.resume(&mut objects, 1, 1, 1).unwrap().committed, 0);
    commit(&mut second, &mut objects, 1, 1, &[data(0, 8, 1)]);
    assert_eq!(first.resume(&mut objects, 2, 1, 1).unwrap().committed, 1);
    assert!(!first.fenced(1) && first.refused(1));
}

/// A read of the log's end for a host that has left is too old for the next one.
#[test]
fn a_look_at_the_log_serves_only_the_request_it_was_taken_for() {
    let (mut objects, mut first) = attached();
    let mut second = opened(&mut objects, 2);
    second.resume(&mut objects, 1, 1, 1).unwrap();
    let resume = || ToStore::Resume { request: 1, volume: ID, epoch: 1, host: HostId(1) };
    first.send(7, Lane::Control, resume());
    let (id, operation) = first.pending.remove(0);
    let old = objects.execute(&operation, Fate::Good);
    commit(&mut second, &mut objects, 1, 1, &[data(0, 8, 1)]);
    first.volume.handle_session_closed(first.now, SessionId(7));
    first.send(8, Lane::Control, resume());
    first.volume.handle_object(first.now, id, old);
    first.collect();
    first.settle(&mut objects);
    assert_eq!(first.take_attached(8).unwrap().unwrap().committed, 1);
}

#[test]
fn close_reads_come_in_one_operation() {
    let (mut objects, mut rig) = attached();
    let writes: Vec<Write> = (0..8).map(|n| data(n * 8, 8, n as u16 + 1)).collect();
    commit(&mut rig, &mut objects, 1, 1, &writes);
    let range = Range::new(0, SECTORS);
    rig.send(9, Lane::Read, ToStore::Read { request: 1, volume: ID, epoch: 0, range });
    assert_eq!(rig.pending.len(), 1);
}

#[test]
fn reads_are_bounded_and_read_ahead_waits() {
    let mut objects = Objects::default();
    let config = Config { read_operations_max: 4, reads_waiting_max: 10, ..Config::default() };
    let mut rig = Rig::open(1, &config);
    rig.settle(&mut objects);
    rig.attach(&mut objects, 1, 1, None).unwrap();
    commit(&mut rig, &mut objects, 1, 1, &[data(0, 8, 1)]);
    let read = |request| ToStore::Read { request, volume: ID, epoch: 1, range: Range::new(0, 8) };
    for request in 0..8 {
        rig.send(1, Lane::ReadAhead, read(request));
    }
    assert_eq!(rig.pending.len(), 2);
    for request in 10..16 {
        rig.send(1, Lane::Read, read(request));
    }
    assert_eq!(rig.pending.len(), 4);
    assert!(!rig.volume.wants_input());
    rig.inbox.clear();
    rig.settle(&mut objects);
    assert!(rig.volume.wants_input() && rig.volume.is_idle());
    let answers: Vec<Lane> = rig.inbox.iter().map(|(_, lane, _)| *lane).collect();
    assert_eq!(answers.len(), 14);
    assert!(answers[13] == Lane::ReadAhead && answers[12] == Lane::ReadAhead);
}

#[test]
fn a_full_queue_wants_no_input() {
    let mut objects = Objects::default();
    let config = Config { queue_bytes: 64 << 10, ..Config::default() };
    let mut rig = Rig::open(1, &config);
    rig.settle(&mut objects);
    rig.attach(&mut objects, 1, 1, None).unwrap();
    let mut first = 1;
    while rig.volume.wants_input() {
        rig.send(1, Lane::Drain, batch(1, first, &[data(0, 64, first as u16)]));
        first += 1;
        assert!(first < 10);
    }
    rig.settle(&mut objects);
    assert!(rig.volume.wants_input() && rig.committed(1, first - 1));
    // One put at a time: the first alone, then all that had arrived meanwhile.
    assert_eq!(rig.volume.state().number, 3);
}

/// Host 1 in session 1, with more reads than the engine begins at a time.
fn reading() -> (Objects, Rig, usize) {
    let mut objects = Objects::default();
    let config = Config { read_operations_max: 4, ..Config::default() };
    let mut rig = Rig::open(1, &config);
    rig.settle(&mut objects);
    rig.attach(&mut objects, 1, 1, None).unwrap();
    commit(&mut rig, &mut objects, 1, 1, &[data(0, 8, 1)]);
    for request in 0..10 {
        let range = Range::new(0, 8);
        rig.send(1, Lane::Read, ToStore::Read { request, volume: ID, epoch: 1, range });
        rig.send(9, Lane::ReadAhead, ToStore::Read { request, volume: ID, epoch: 0, range });
    }
    assert!(rig.pending.len() < 20);
    (objects, rig, 20)
}

fn answered_reads(rig: &Rig) -> usize {
    let data = |m: &&(SessionId, Lane, Frame<ToHost>)| matches!(m.2.message, ToHost::Data { .. });
    rig.inbox.iter().filter(data).count()
}

/// The fenced host may not know it yet: it must not see the next host's data.
#[test]
fn reads_that_wait_when_their_epoch_ends_are_not_answered_from_the_next() {
    let (mut objects, mut rig, _) = reading();
    let fetches: Vec<_> = std::mem::take(&mut rig.pending);
    rig.attach(&mut objects, 2, 2, None).unwrap();
    rig.send(2, Lane::Drain, batch(2, 2, &[data(0, 8, 7)]));
    rig.settle(&mut objects);
    rig.pending = fetches;
    rig.settle(&mut objects);
    let (mut old, mut fenced) = (0, 0);
    for (session, _, frame) in rig.inbox.iter().filter(|(session, ..)| *session == SessionId(1)) {
        match &frame.message {
            ToHost::Data { result: Ok(pieces), .. } => {
                let range = Range::new(0, 8);
                let parts = link::decode_data(range, pieces, frame.payload.clone()).unwrap();
                let [link::ReadPart::Data { wanted, fragment }] = &parts[..] else { panic!() };
                assert_eq!(tag_of(&fragment.sectors(*wanted)[..512]), 1, "{session:?}");
                old += 1;
            }
            ToHost::Data { result: Err(ReadError::Fenced(2)), .. } => fenced += 1,
            _ => {}
        }
    }
    assert!(old > 0 && fenced > 0 && old + fenced == 10, "{old} {fenced}");
}

#[test]
fn a_volume_that_fails_leaves_nobody_waiting() {
    let (mut objects, mut rig, reads) = reading();
    // Something that is no segment lies where the next one is to be.
    let key = catalog::segment_key(ID, 3);
    objects.0.insert(key.clone(), Bytes::from(vec![0; 4096]));
    rig.send(
        2,
        Lane::Control,
        ToStore::Attach {
            request: 1,
            name: "test".into(),
            host: HostId(2),
            journal: None,
            take_over: true,
        },
    );
    let reading: Vec<_> = rig.pending.extract_if(.., |(_, o)| o.key() != key).collect();
    rig.settle(&mut objects);
    assert!(rig.volume.failed().is_some() && rig.refused(1));
    assert!(
        matches!(rig.take_attached(2), Some(Err(AttachError::Damaged(text))) if text.contains(&key))
    );
    assert_eq!(answered_reads(&rig), reads);
    rig.pending = reading;
    rig.settle(&mut objects);
    assert_eq!(answered_reads(&rig), reads, "once each");
}

#[test]
fn shutdown_leaves_no_read_waiting() {
    let (mut objects, mut rig, reads) = reading();
    rig.volume.handle_shutdown(rig.now);
    rig.collect();
    rig.settle(&mut objects);
    assert_eq!(answered_reads(&rig), reads);
    assert!(rig.volume.is_idle());
}

#[test]
fn shutdown_keeps_everything_and_refuses_more() {
    let (mut objects, mut rig) = attached();
    rig.send(1, Lane::Drain, batch(1, 1, &[data(0, 8, 1)]));
    rig.send(1, Lane::Control, announce(1, true, &[(0, 8, 1), (9, 1, 2)]));
    rig.volume.handle_shutdown(rig.now);
    rig.collect();
    assert!(!rig.volume.is_idle());
    let refused = rig.attach(&mut objects, 2, 2, None);
    assert_eq!(refused, Err(AttachError::ShuttingDown));
    assert!(rig.volume.is_idle() && rig.committed(1, 1));
    let mut again = opened(&mut objects, 2);
    assert_eq!(lost(&mut again, &mut objects), [(9, 1)]);
    assert!(again.events.iter().any(|e| matches!(e, Event::Opened { replayed: 0, .. })));
}

#[test]
fn messages_wait_until_the_volume_is_open() {
    let mut objects = Objects::default();
    let mut rig = Rig::open(1, &Config::default());
    let host = HostId(1);
    let ask =
        ToStore::Attach { request: 1, name: "test".into(), host, journal: None, take_over: false };
    rig.send(1, Lane::Control, ask);
    assert!(rig.volume.info().is_none() && rig.inbox.is_empty());
    rig.execute(&mut objects, 0, Fate::FailsBefore);
    rig.settle(&mut objects);
    assert_eq!(rig.take_attached(1).unwrap().unwrap().epoch, 1);
}

#[test]
fn status_tells_data_zeroes_and_holes_apart() {
    let (mut objects, mut rig) = attached();
    let zero = Write { kind: Kind::Zero, range: Range::new(16, 8), tag: 0 };
    let discard = Write { kind: Kind::Discard, range: Range::new(4, 4), tag: 0 };
    commit(&mut rig, &mut objects, 1, 1, &[data(0, 16, 1), zero, discard]);
    let range = Range::new(2, 30);
    rig.send(9, Lane::Control, ToStore::Status { request: 1, volume: ID, epoch: 0, range });
    let Some((_, _, frame)) = rig.inbox.pop() else { panic!() };
    let ToHost::Status { result: Ok(runs), .. } = frame.message else { panic!() };
    let runs: Vec<_> = runs.iter().map(|run| (run.sectors, run.state)).collect();
    use BlockState::{Data, Hole, Zero};
    assert_eq!(runs, [(2, Data), (4, Hole), (8, Data), (8, Zero), (8, Hole)]);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes do not change by accident: these are the objects of `docs/formats.md`.
#[test]
fn golden_bytes() {
    let (mut objects, mut rig) = attached();
    rig.send(1, Lane::Control, announce(1, true, &[(8, 16, 1), (48, 8, 300)]));
    let discard = Write { kind: Kind::Discard, range: Range::new(8, 16), tag: 0 };
    commit(&mut rig, &mut objects, 1, 1, &[discard]);
    let object = &objects.0[&catalog::segment_key(ID, 2)];
    let parsed = segment::verify(object).unwrap();
    let tail = parsed.header.tail();
    let (footer, trailer) =
        object[tail.start as usize..].split_at(parsed.header.footer_bytes as usize);
    assert_eq!(
        hex(&object[..128]),
        "4c485347010001001000000000000000000000000000000002000000000000000100000000000000\
         01000000000000000000000000000000010000000000000000000000000000000200000000000000\
         01000000000000000100000000000000300000003c000000ba18c2b2000000000000000000000000\
         00000000207d24d7"
    );
    assert_eq!(
        hex(footer),
        "4c485346010000000100000001000000000000000000000008000000000000001000000000000000\
         010000000000000080000000020000003008ab02"
    );
    assert_eq!(hex(trailer), "4c48535401000000b0000000000000003c000000c817f9f6207d24d7843a2b14");
}

proptest! {
    #[test]
    fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400), magic in any::<bool>()) {
        let mut bytes = bytes;
        if magic && bytes.len() > 8 {
            bytes[..4].copy_from_slice(b"LHSG");
            bytes[4..6].copy_from_slice(&[1, 0]);
        }
        let bytes = Bytes::from(bytes);
        let _ = segment::verify(&bytes);
    }
}
