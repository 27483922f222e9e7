//! The commands for copies at one unit, without other units.

use super::*;
use crate::front::scsi::copy::*;
use crate::front::scsi::sense::Side;
use std::time::Duration;

/// Key, code, and the field pointer's first byte and offset, of sense data in fixed format.
fn sense(response: &CommandResponse) -> (u8, u16, u8, u16) {
    assert_eq!(response.status, Status::CheckCondition);
    let sense = &response.sense;
    assert_eq!(usize::from(sense[7]) + 8, sense.len());
    (sense[2], code_of(response), sense[15], u16::from_be_bytes([sense[16], sense[17]]))
}

fn run(world: &mut World, (cdb, list): &(Vec<u8>, Vec<u8>)) -> CommandResponse {
    world.run(cdb, list)
}

/// Hands in a command and leaves the copy to the test.
fn submit(world: &mut World, (cdb, list): &(Vec<u8>, Vec<u8>)) -> TaskId {
    let task = world.submit(1, cdb, Attribute::Simple, list);
    if !world.wants.is_empty() {
        world.send(0);
    }
    task
}

#[test]
fn lists_of_extended_copies() {
    let mut world = World::new(512);
    let name = lists::descriptor(lists::naa(7), 512);
    let good = lists::extended_copy_of(3, &[name], &[(0, 0, 8, 0, 100), (0, 0, 9, 8, 200)]);
    submit(&mut world, &good);
    let CopyPlan::Segments { descriptors, segments } = &world.copies[0].1 else { panic!() };
    assert_eq!(descriptors.len(), 1);
    assert_eq!(descriptors[0].block_bytes, 512);
    assert_eq!(
        (segments[1].blocks, segments[1].source_lba, segments[1].destination_lba),
        (9, 8, 200)
    );
    world.copied(0, Ok(()));

    // Without a list there is no copy.
    assert_eq!(world.run(&lists::cdb(0, 0, 0), &[]).status, Status::Good);
    let changed = |at: usize, byte: u8| {
        let (cdb, mut list) = good.clone();
        list[at] = byte;
        (cdb, list)
    };
    let illegal = key::ILLEGAL_REQUEST;
    for (command, code, pointer) in [
        (changed(12, 1), code::INLINE_DATA_LENGTH_EXCEEDED, 12),
        (changed(3, 33), code::PARAMETER_LIST_LENGTH_ERROR, 0),
        (changed(1, 0x08), code::INVALID_FIELD_IN_LIST, 1),
        // A list identifier that must be 0.
        (changed(1, 0x18), code::INVALID_FIELD_IN_LIST, 0),
        (changed(16, 0xe0), code::UNSUPPORTED_TARGET_DESCRIPTOR, 16),
        (changed(48, 3), code::UNSUPPORTED_SEGMENT_DESCRIPTOR, 48),
        (changed(48 + 28 + 3, 25), code::INVALID_FIELD_IN_LIST, 48 + 28 + 2),
    ] {
        let found = sense(&run(&mut world, &command));
        assert_eq!((found.0, found.1, found.3), (illegal, code, pointer), "{command:x?}");
    }
    let many = |units: usize, segments: usize| {
        lists::extended_copy_of(1, &vec![name; units], &vec![(0, 0, 1, 0, 9); segments])
    };
    for (units, segments, code) in [
        (16, 256, None),
        (17, 1, Some(code::TOO_MANY_TARGET_DESCRIPTORS)),
        (1, 257, Some(code::TOO_MANY_SEGMENT_DESCRIPTORS)),
        (17, 256, Some(code::PARAMETER_LIST_LENGTH_ERROR)),
    ] {
        let response = run(&mut world, &many(units, segments));
        match code {
            None => assert_eq!(response.status, Status::Good),
            Some(code) => assert_eq!(code_of(&response), code),
        }
    }
    // The list is cut short.
    for length in [15, 16, 47, 75] {
        let (_, list) = &good;
        let cut = (lists::cdb(0, 0, length), list[..length].to_vec());
        let found = sense(&run(&mut world, &cut));
        assert_eq!(found.1, code::PARAMETER_LIST_LENGTH_ERROR, "{length}");
    }
}

#[test]
fn failures_say_where() {
    let mut world = World::new(512);
    let copy = lists::extended_copy(&[(0, 1, 8, 0, 0)]);
    let refused = |code| PartFailure::from(Sense::new(key::MEDIUM_ERROR, code));
    let aborted = key::COPY_ABORTED;
    for (problem, expected) in [
        (CopyProblem::NoDescriptor(Side::Destination), (aborted, 0x0804, 0xa0, 6)),
        (CopyProblem::NotReachable(Side::Source), (aborted, 0x0d02, 0xa0, 4)),
        (CopyProblem::OutOfRange(Side::Destination), (aborted, 0x0000, 0xa0, 20)),
        (CopyProblem::Inexact, (aborted, 0x260a, 0, 0)),
        (CopyProblem::BlockLength(1), (key::ILLEGAL_REQUEST, 0x2600, 0x80, 16 + 32 + 29)),
        (CopyProblem::Part(Side::Source, refused(0x1100)), (aborted, 0x0d01, 0, 0)),
        (CopyProblem::Part(Side::Source, PartFailure::Unsupported), (aborted, 0x0d00, 0, 0)),
        (CopyProblem::Part(Side::Destination, PartFailure::Ended), (aborted, 0x0d01, 0, 0)),
    ] {
        let task = submit(&mut world, &copy);
        world.copied(0, Err(CopyFailure { segment: 0x102, problem }));
        let response = world.responses.remove(&task).unwrap();
        assert_eq!(sense(&response), expected, "{problem:?}");
        if expected.0 == aborted {
            assert_eq!(response.sense[10..12], [1, 2], "the segment");
        }
    }
    // The copy manager forwards the sense data of the source, in either format.
    let problem = CopyProblem::Part(Side::Source, refused(0x1100));
    let task = submit(&mut world, &copy);
    world.copied(0, Err(CopyFailure { segment: 0, problem }));
    let sense = &world.responses[&task].sense;
    assert_eq!((sense[8], sense[9]), (18, 0));
    assert_eq!((sense[18], sense[19], sense[21], sense[31], sense[32]), (2, 0x70, 3, 0x11, 0));
    let CommandRefusal::Check(sense) = (CopyFailure { segment: 0, problem }).refusal(0) else {
        panic!()
    };
    let bytes = sense.bytes(true);
    assert_eq!(usize::from(bytes[7]) + 8, bytes.len());
    assert_eq!(bytes[20..], [0x0c, 10, 1, 2, 0x72, 3, 0x11, 0, 0, 0, 0, 0]);
}

#[test]
fn results_of_copies() {
    let mut world = World::new(512);
    let copy = lists::extended_copy(&[(0, 1, 8, 0, 0), (0, 1, 8, 8, 8)]);
    for action in [0, 1, 4] {
        assert_eq!(world.bad(&lists::results(action, 1), &[]), code::INVALID_FIELD_IN_CDB);
    }
    submit(&mut world, &copy);
    let copy_id = world.copies[0].0;
    world.device.handle_copy_progress(copy_id, 1, 8);
    let status = |world: &mut World| {
        let copies = std::mem::take(&mut world.copies);
        let data = world.good(&lists::results(0, 1), &[]);
        world.copies = copies;
        assert_eq!(data[..4], [0, 0, 0, 8]);
        (data[4], u16::from_be_bytes([data[5], data[6]]), data[7], data[8..].to_vec())
    };
    assert_eq!(status(&mut world), (0, 1, 0, 4096u32.to_be_bytes().to_vec()));
    // The unit refuses another copy with that identifier, and has no details yet.
    let again = submit(&mut world, &copy);
    assert_eq!(code_of(&world.responses[&again]), code::OPERATION_IN_PROGRESS);
    assert_eq!(world.copies.len(), 1);
    world.copied(0, Err(CopyFailure { segment: 1, problem: CopyProblem::Inexact }));
    assert_eq!(status(&mut world).0, 2);
    let details = world.good(&lists::results(4, 1), &[]);
    assert_eq!(u32::from_be_bytes(details[..4].try_into().unwrap()) as usize + 4, details.len());
    assert_eq!((details[56], details[59], details[62], details[71]), (2, 18, 0x0a, 1));
    // The unit holds no data.
    assert_eq!(world.good(&lists::results(1, 1), &[]), [0; 4]);
    // Other nexuses do not see the result. A new copy replaces it.
    let other = world.run_by(2, &lists::results(0, 1), &[]);
    assert_eq!(code_of(&other), code::INVALID_FIELD_IN_CDB);
    assert_eq!(run(&mut world, &copy).status, Status::Good);
    assert_eq!(status(&mut world).0, 1);
    assert_eq!(world.good(&lists::results(4, 1), &[]), [0; 4]);
    world.device.handle_nexus_loss(NOW, 1);
    world.nexus(1);
    world.run(&[0; 6], &[]);
    assert_eq!(world.bad(&lists::results(0, 1), &[]), code::INVALID_FIELD_IN_CDB);
    let parameters = world.good(&lists::results(3, 9), &[]);
    assert_eq!(parameters[43..], [2, 0x02, 0xe4]);
    assert_eq!(u32::from_be_bytes(parameters[..4].try_into().unwrap()) as usize, 42);
}

#[test]
fn an_aborted_copy_is_waited_for() {
    let mut world = World::new(512);
    let task = submit(&mut world, &lists::extended_copy(&[(0, 1, 8, 0, 0)]));
    world.device.handle_management(NOW, 1, 7, 0, ManagementFunction::AbortTask(task));
    world.collect();
    assert!(world.aborted.contains(&task));
    assert_eq!(world.ends.len(), 1, "the copy is told to end");
    assert!(world.managed.is_empty(), "it may still write");
    world.copied(0, Ok(()));
    assert_eq!(world.managed.len(), 1);
    assert!(!world.responses.contains_key(&task));
    assert!(world.device.tasks.is_idle());
}

#[test]
fn a_copy_in_the_background() {
    let mut world = World::new(512);
    let write = lists::write_using_token(5, 0x01, 0, &lists::zero_token(), &[(0, 8)]);
    let task = submit(&mut world, &write);
    assert_eq!(world.responses[&task].status, Status::Good, "the copy has only begun");
    let CopyPlan::Zeroes { ranges } = &world.copies[0].1 else { panic!() };
    assert_eq!(ranges[..], [Range::new(0, 8)]);
    // Functions that do not concern it do not wait for it.
    world.device.handle_management(NOW, 2, 1, 0, ManagementFunction::AbortTaskSet);
    world.device.handle_management(NOW, 1, 2, 0, ManagementFunction::AbortTask(task));
    world.collect();
    assert_eq!((world.managed.len(), world.ends.len()), (2, 0));
    let copies = std::mem::take(&mut world.copies);
    let information = world.good(&lists::token_information(5), &[]);
    assert_eq!((information[4], information[5]), (0x11, 0x12));
    world.copies = copies;
    // Functions that concern it end it.
    world.device.handle_management(NOW, 2, 3, 0, ManagementFunction::LogicalUnitReset);
    world.collect();
    assert_eq!((world.managed.len(), world.ends.len()), (2, 1));
    world.copied(0, Ok(()));
    assert_eq!(world.managed.len(), 3);
    assert!(world.device.tasks.is_idle());
}

#[test]
fn a_lost_nexus_ends_its_copies() {
    let mut world = World::new(512);
    submit(&mut world, &lists::write_using_token(5, 0x01, 0, &lists::zero_token(), &[(0, 8)]));
    submit(&mut world, &lists::extended_copy(&[(0, 1, 8, 0, 0)]));
    world.device.handle_nexus_loss(NOW, 1);
    world.collect();
    assert_eq!(world.ends.len(), 2);
    world.copied(0, Ok(()));
    world.copied(0, Ok(()));
    assert!(world.device.tasks.is_idle());
}

fn populate(world: &mut World, id: u32, blocks: &[(u64, u32)]) -> RodToken {
    assert_eq!(run(world, &lists::populate(id, blocks)).status, Status::Good);
    let information = world.good(&lists::token_information(id), &[]);
    assert_eq!((information[4], information[5], information[12]), (0x10, 0x01, 0));
    assert_eq!(information[15], 0xf1);
    let blocks: u64 = blocks.iter().map(|(_, blocks)| u64::from(*blocks)).sum();
    assert_eq!(information[16..24], blocks.to_be_bytes());
    lists::token_of(&information)
}

#[test]
fn tokens_stand_for_what_is_watched() {
    let mut world = World::new(4096);
    let token = populate(&mut world, 9, &[(1, 2), (10, 3)]);
    assert_eq!(world.watches[&1], [Range::new(8, 16), Range::new(80, 24)]);
    assert_eq!(token[48..64], (5 * 4096u128).to_be_bytes());
    assert!(world.device.is_called(&Designator::parse(token[16..48].try_into().unwrap()).unwrap()));
    let grant = world.device.use_token(NOW, &token, false).unwrap();
    assert_eq!((grant.ranges, grant.watch), (world.watches[&1].clone(), 1));
    let other = populate(&mut world, 9, &[(1, 2)]);
    assert_ne!(token[128..160], other[128..160]);
    // A difference in any byte counts.
    for at in [0, 20, 63, 128, 159, 511] {
        let mut forged = token;
        forged[at] ^= 1;
        assert_eq!(world.device.use_token(NOW, &forged, false), Err(code::TOKEN_CORRUPT), "{at}");
    }
    let mut unknown = token;
    unknown[15] = 99;
    assert_eq!(world.device.use_token(NOW, &unknown, false), Err(code::TOKEN_UNKNOWN));
}

#[test]
fn tokens_end() {
    let mut world = World::new(512);
    let after = |seconds| NOW.after(Duration::from_secs(seconds));
    let token = populate(&mut world, 1, &[(0, 8)]);
    assert_eq!(world.device.poll_timeout(), Some(after(30)));
    // The token does not expire during its use.
    let grant = world.device.use_token(after(29), &token, false).unwrap();
    assert_eq!(world.device.poll_timeout(), None);
    world.device.release_token(after(100), grant.id, false);
    assert_eq!(world.device.poll_timeout(), Some(after(130)));
    world.device.handle_timeout(after(130));
    world.collect();
    world.drain();
    assert!(world.watches.is_empty());
    assert_eq!(world.device.use_token(after(130), &token, false), Err(code::TOKEN_EXPIRED));
    let token = populate(&mut world, 1, &[(0, 8)]);
    let grant = world.device.use_token(NOW, &token, false).unwrap();
    world.device.release_token(NOW, grant.id, true);
    assert_eq!(world.device.use_token(NOW, &token, false), Err(code::TOKEN_REVOKED));
    let token = populate(&mut world, 1, &[(0, 8)]);
    let grant = world.device.use_token(NOW, &token, true).unwrap();
    assert_eq!(world.device.use_token(NOW, &token, false), Err(code::TOKEN_DELETED));
    world.device.release_token(NOW, grant.id, false);
    world.collect();
    world.drain();
    assert!(world.watches.is_empty());
    // The unit revokes the oldest token.
    let first = populate(&mut world, 1, &[(0, 8)]);
    for id in 0..64 {
        populate(&mut world, id, &[(0, 8)]);
    }
    assert_eq!(world.device.use_token(NOW, &first, false), Err(code::TOKEN_UNKNOWN));
    assert_eq!(world.watches.len(), 64);
}

#[test]
fn an_aborted_populate_leaves_no_watch() {
    let mut world = World::new(512);
    let task = submit(&mut world, &lists::populate(1, &[(0, 8)]));
    assert!(matches!(world.requests[..], [(_, Request::Watch(_))]));
    world.device.handle_management(NOW, 1, 1, 0, ManagementFunction::AbortTask(task));
    world.collect();
    world.drain();
    assert!(world.watches.is_empty() && world.device.tasks.is_idle());
    assert_eq!(world.managed.len(), 1);
}

#[test]
fn lists_with_tokens() {
    let mut world = World::new(512);
    let good = lists::populate(1, &[(0, 8), (100, 8)]);
    let changed = |at: usize, byte: u8| {
        let (cdb, mut list) = good.clone();
        list[at] = byte;
        (cdb, list)
    };
    let typed = |kind: u32| {
        let (cdb, mut list) = good.clone();
        list[2] = 2;
        list[8..12].copy_from_slice(&kind.to_be_bytes());
        (cdb, list)
    };
    for kind in [0x0080_0000, 0x0080_0001, 0x0080_ffff] {
        assert_eq!(run(&mut world, &typed(kind)).status, Status::Good);
    }
    for (command, code) in [
        (typed(0x0001_0000), code::UNSUPPORTED_TOKEN_TYPE),
        (typed(0xffff_0001), code::UNSUPPORTED_TOKEN_TYPE),
        // The timeout is too long.
        (changed(5, 1), code::INVALID_FIELD_IN_LIST),
        (changed(15, 15), code::INVALID_FIELD_IN_LIST),
        (changed(15, 33), code::PARAMETER_LIST_LENGTH_ERROR),
        (changed(1, 45), code::INVALID_FIELD_IN_LIST),
        (lists::populate(1, &[(SECTORS - 1, 2)]), code::LBA_OUT_OF_RANGE),
        (lists::populate(1, &[(0, 8), (7, 2)]), code::INVALID_FIELD_IN_LIST),
        (lists::populate(1, &[(0, 0)]), code::INVALID_FIELD_IN_LIST),
        (lists::populate(1, &[(0, 1); 257]), code::PARAMETER_LIST_LENGTH_ERROR),
    ] {
        let found = sense(&run(&mut world, &command));
        assert_eq!((found.0, found.1), (key::ILLEGAL_REQUEST, code), "{command:x?}");
    }
    let mut short = lists::zero_token();
    short[7] = 0;
    for (command, code) in [
        (lists::write_using_token(1, 0, 0, &[0; 512], &[(0, 1)]), code::UNSUPPORTED_TOKEN_TYPE),
        (lists::write_using_token(1, 0, 0, &short, &[(0, 1)]), code::INVALID_TOKEN_LENGTH),
        (
            lists::write_using_token(1, 0, 0, &lists::zero_token(), &[(SECTORS, 1)]),
            code::LBA_OUT_OF_RANGE,
        ),
    ] {
        let found = sense(&run(&mut world, &command));
        assert_eq!((found.0, found.1), (key::ILLEGAL_REQUEST, code));
    }
    // The destination is write protected.
    let protect = [0, 0, 0, 0, 0x0a, 0x0a, 0, 0x10, 8, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(world.run(&[0x15, 0x10, 0, 0, 16, 0], &protect).status, Status::Good);
    let zeroes = lists::write_using_token(1, 0, 0, &lists::zero_token(), &[(0, 1)]);
    assert_eq!(sense(&run(&mut world, &zeroes)).1, code::SOFTWARE_WRITE_PROTECTED);
}

fn part(world: &mut World, nexus: NexusId, id: TaskId, part: CopyPart) {
    world.device.handle_part(NOW, nexus, id, part);
    world.collect();
}

fn written(range: Range) -> CopyPart {
    CopyPart::Write(vec![StagedPiece { range, content: Staged::Hole }])
}

#[test]
fn parts_respect_what_commands_claim() {
    let mut world = World::new(512);
    world.submit(1, &caw(8, 2), Attribute::Simple, &[0; 2048]);
    world.send(0);
    part(&mut world, 2, 100, written(Range::new(9, 4)));
    part(&mut world, 2, 101, written(Range::new(10, 4)));
    assert!(
        matches!(
            &world.requests[..],
            [(_, Request::Read(_)), (_, Request::WriteStaged { fua: true, .. })]
        ),
        "the comparison is not disturbed: {:?}",
        world.requests
    );
    world.drain();
    assert_eq!(world.parts[&100], Ok(PartReply::Done));
    // A comparison does not start before the part is done.
    part(&mut world, 2, 102, written(Range::new(9, 4)));
    world.submit(1, &caw(8, 2), Attribute::HeadOfQueue, &[0; 2048]);
    world.send(0);
    assert_eq!(world.requests.len(), 1);
    world.drain();
}

/// A part does not wait for tasks that wait for the task it belongs to.
#[test]
fn parts_are_outside_of_the_order() {
    let mut world = World::new(512);
    let copy = submit(&mut world, &lists::extended_copy(&[(0, 1, 8, 0, 0)]));
    let ordered = world.submit(1, &caw(8, 2), Attribute::Ordered, &[0; 2048]);
    world.send(0);
    part(&mut world, 1, 100, written(Range::new(8, 4)));
    assert!(matches!(world.requests[..], [(_, Request::WriteStaged { .. })]));
    world.answer(0);
    assert_eq!(world.parts[&100], Ok(PartReply::Done));
    world.copied(0, Ok(()));
    assert_eq!(world.responses[&copy].status, Status::Good);
    world.drain();
    assert_eq!(world.responses[&ordered].status, Status::Good);
}

#[test]
fn parts_end_with_tasks() {
    let mut world = World::new(512);
    let stage =
        || CopyPart::Stage { range: Range::new(0, 8), into: VolumeId(1), lba: 0, watch: None };
    part(&mut world, 2, 100, stage());
    part(&mut world, 2, 101, written(Range::new(0, 8)));
    world.device.handle_management(NOW, 1, 1, 0, ManagementFunction::LogicalUnitReset);
    world.collect();
    assert_eq!(world.parts[&100], Err(PartFailure::Ended), "it changes nothing");
    assert!(!world.parts.contains_key(&101) && world.managed.is_empty(), "it may still write");
    world.drain();
    assert_eq!(world.parts[&101], Err(PartFailure::Ended));
    assert_eq!(world.managed.len(), 1);
    assert!(world.aborted.is_empty() && world.responses.is_empty());
    part(&mut world, 2, 102, written(Range::new(0, 8)));
    world.device.handle_nexus_loss(NOW, 2);
    world.collect();
    world.drain();
    assert_eq!(world.parts[&102], Err(PartFailure::Ended));
    part(&mut world, 2, 103, stage());
    assert_eq!(world.parts[&103], Err(PartFailure::Ended), "there is no such nexus");
    assert!(world.device.tasks.is_idle());
}

#[test]
fn parts_fail_like_commands() {
    let mut world = World::new(512);
    let stage =
        |lba| CopyPart::Stage { range: Range::new(lba, 8), into: VolumeId(1), lba: 0, watch: None };
    for (error, failure) in [
        (BlockError::Changed, Some(PartFailure::Changed)),
        (BlockError::Unsupported, Some(PartFailure::Unsupported)),
        (BlockError::Medium(Range::new(3, 1)), None),
    ] {
        part(&mut world, 1, 100, stage(0));
        world.fail(0, error);
        let result = world.parts.remove(&100).unwrap();
        match failure {
            Some(failure) => assert_eq!(result, Err(failure)),
            None => assert!(matches!(result, Err(PartFailure::Refused(_)))),
        }
    }
    part(&mut world, 1, 101, stage(SECTORS - 7));
    assert!(matches!(world.parts[&101], Err(PartFailure::Refused(_))), "beyond the end");
    // The other nexus has reserved it: Write Exclusive.
    let mut register = [0; 24];
    register[15] = 5;
    world.run_by(2, &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], &register);
    register[7] = 5;
    world.run_by(2, &[0x5f, 1, 1, 0, 0, 0, 0, 0, 24, 0], &register);
    let conflict = PartFailure::Refused(crate::front::scsi::copy::part::PartRefusal(
        CommandRefusal::Status(Status::ReservationConflict),
    ));
    part(&mut world, 1, 102, written(Range::new(0, 8)));
    assert_eq!(world.parts[&102], Err(conflict));
    assert!(
        world.device.lets(1, false) && !world.device.lets(1, true) && world.device.lets(2, true)
    );
    part(&mut world, 1, 103, stage(0));
    part(&mut world, 2, 104, CopyPart::Zero(Range::new(0, 8)));
    world.drain();
    assert!(world.parts[&103].is_ok() && world.parts[&104].is_ok());
    // PREEMPT AND ABORT waits for the write of a part.
    world.run_by(1, &[0x5f, 6, 0, 0, 0, 0, 0, 0, 24, 0], &register);
    part(&mut world, 2, 105, written(Range::new(0, 8)));
    let mut preempt = register;
    preempt[15] = 5;
    let preempts =
        world.submit(1, &[0x5f, 5, 3, 0, 0, 0, 0, 0, 24, 0], Attribute::Simple, &preempt);
    world.send(0);
    assert!(!world.responses.contains_key(&preempts));
    world.drain();
    assert_eq!(world.responses[&preempts].status, Status::Good);
    assert_eq!(world.parts[&105], Err(PartFailure::Ended));
    let _ = cdb10(0x2a, 0, 0, 1);
}

#[test]
fn what_the_unit_says_it_can() {
    let mut world = World::new(512);
    let inquiry = world.good(&[0x12, 0, 0, 0, 96, 0], &[]);
    assert_eq!(inquiry[5] & 0x08, 0x08, "3PC");
    let page = world.good(&[0x12, 1, 0x8f, 4, 0, 0], &[]);
    assert_eq!(usize::from(page[2]) << 8 | usize::from(page[3]), page.len() - 4);
    let mut found = Vec::new();
    let mut rest = &page[4..];
    while let [high, low, long, length, ..] = *rest {
        let length = usize::from(u16::from_be_bytes([long, length]));
        assert!(length.is_multiple_of(4));
        found.push((u16::from_be_bytes([high, low]), length));
        rest = &rest[4 + length..];
    }
    assert!(rest.is_empty());
    let expected = [(0, 32), (1, 16), (4, 28), (8, 4), (0x106, 92), (0x108, 132), (0x8001, 32)];
    assert_eq!(found, expected);
    for (opcode, actions) in [(0x83u8, &[0u8, 0x10, 0x11][..]), (0x84, &[0, 1, 3, 4, 7])] {
        for action in actions {
            let one = world.good(&[0xa3, 0x0c, 2, opcode, 0, *action, 0, 0, 0, 64, 0, 0], &[]);
            assert_eq!((one[1] & 7, one[3], one[4]), (3, 16, opcode), "{opcode:x} {action:x}");
        }
    }
}
