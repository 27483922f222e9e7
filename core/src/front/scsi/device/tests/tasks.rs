//! The task set, task management, and nexuses.

use super::*;
use Attribute::{HeadOfQueue, Ordered, Simple};

fn read(lba: u32) -> [u8; 10] {
    cdb10(0x28, 0, lba, 1)
}

#[test]
fn ordered_tasks_wait_and_are_waited_for() {
    let mut world = World::new(512);
    let first = world.submit(1, &read(0), Simple, &[]);
    let ordered = world.submit(1, &read(1), Ordered, &[]);
    let after = world.submit(1, &read(2), Simple, &[]);
    assert_eq!(world.requests.len(), 1);
    let head = world.submit(1, &read(3), HeadOfQueue, &[]);
    assert_eq!(world.requests.len(), 2);
    world.answer(0);
    assert!(world.responses.contains_key(&first));
    assert_eq!(world.requests.len(), 1);
    world.answer(0);
    assert!(world.responses.contains_key(&head));
    assert!(matches!(world.requests[..], [(_, Request::Read(Range { lba: 1, .. }))]));
    world.answer(0);
    assert!(world.responses.contains_key(&ordered));
    world.answer(0);
    assert!(world.responses.contains_key(&after));
}

#[test]
fn an_ordered_task_waits_for_output_of_older_ones() {
    let mut world = World::new(512);
    world.submit(1, &cdb10(0x2a, 0, 0, 1), Simple, &[1; 512]);
    let ordered = world.submit(1, &[0; 6], Ordered, &[]);
    assert!(world.responses.is_empty());
    world.send(0);
    assert!(world.responses.is_empty());
    world.answer(0);
    assert_eq!(world.responses[&ordered].status, Status::Good);
}

#[test]
fn what_one_initiator_keeps_back_holds_up_no_other() {
    let mut world = World::new(512);
    for attribute in [Ordered, HeadOfQueue] {
        // The data of this one never comes.
        world.submit(1, &cdb10(0x2a, 0, 0, 1), attribute, &[1; 512]);
    }
    let compare = world.submit(1, &caw(0, 1), Simple, &[0; 1024]);
    // The data of this one comes, but it has to wait for the others.
    let at = world.wants.iter().position(|(task, ..)| *task == compare).unwrap();
    world.send(at);
    world.wants.clear();
    for (cdb, data) in [(&read(0)[..], &[][..]), (&cdb10(0x2a, 0, 0, 1), &[2; 512])] {
        assert_eq!(world.run_by(2, cdb, data).status, Status::Good);
    }
    assert_eq!(world.run_by(2, &caw(0, 1), &[[2; 512], [3; 512]].concat()).status, Status::Good);
    assert!(!world.responses.contains_key(&compare));
}

#[test]
fn an_auto_contingent_allegiance_never_is() {
    let mut world = World::new(512);
    let task = world.submit(1, &read(0), Attribute::Aca, &[]);
    assert_eq!(code_of(&world.responses[&task]), code::INVALID_MESSAGE);
}

#[test]
fn compare_and_write_keeps_other_writers_out() {
    let mut world = World::new(512);
    world.submit(1, &caw(8, 2), Simple, &[0; 2048]);
    world.send(0);
    let write = world.submit(2, &cdb10(0x2a, 0, 9, 1), Simple, &[1; 512]);
    world.send(0);
    let other = world.submit(2, &cdb10(0x2a, 0, 10, 1), Simple, &[2; 512]);
    world.send(0);
    let list = unmap_list(&[(100, 1)]);
    let unmap = world.submit(2, &unmap(&list), Simple, &list);
    world.send(0);
    // The read of the comparison, and the write beside it.
    assert_eq!(world.requests.len(), 2);
    world.answer(1);
    assert!(world.responses.contains_key(&other));
    world.answer(0);
    world.answer(0);
    assert_eq!(world.requests.len(), 2);
    world.drain();
    assert_eq!(world.responses[&write].status, Status::Good);
    assert_eq!(world.responses[&unmap].status, Status::Good);
    assert_eq!(world.bytes[9 * 512..10 * 512], [1; 512]);
}

#[test]
fn a_head_of_queue_task_does_not_wait_for_those_that_wait_for_it() {
    let mut world = World::new(512);
    let write = |seed: u8| (cdb10(0x2a, 0, 0, 1), [seed; 512]);
    let (cdb, data) = write(1);
    // One is under way, and two wait for it.
    world.submit(1, &cdb, Simple, &data);
    world.send(0);
    world.submit(1, &caw(0, 1), Simple, &[[1; 512], [2; 512]].concat());
    world.send(0);
    let head = world.submit(1, &cdb, HeadOfQueue, &[3; 512]);
    world.send(0);
    world.drain();
    assert_eq!(world.responses[&head].status, Status::Good);
    assert_eq!(world.responses.len(), 3);
}

#[test]
fn many_comparisons_of_one_block_take_turns() {
    let mut world = World::new(512);
    let mut tasks = Vec::new();
    for round in 0..500u32 {
        let value = |round: u32| [round as u8; 512];
        let both = [value(round), value(round + 1)].concat();
        tasks.push(world.submit(u64::from(round % 2) + 1, &caw(0, 1), Simple, &both));
        world.send(0);
    }
    assert_eq!(world.requests.len(), 1);
    world.drain();
    assert!(tasks.iter().all(|task| world.responses[task].status == Status::Good));
}

#[test]
fn what_commands_hold_inside_is_bounded() {
    let mut world = World::new(512);
    for _ in 0..200 {
        world.submit(1, &cdb16(0x8f, 0, 0, 4096), Simple, &[]);
    }
    // 64 MiB, by 1 MiB.
    assert_eq!(world.requests.len(), 64);
    world.drain();
    assert_eq!(world.responses.len(), 200);
}

#[test]
fn the_task_set_is_bounded() {
    let mut world = World::new(512);
    for _ in 0..MAX_TASKS {
        world.submit(1, &read(0), Simple, &[]);
    }
    let full = world.submit(2, &read(0), Simple, &[]);
    assert_eq!(world.responses[&full].status, Status::TaskSetFull);
    world.answer(7);
    let next = world.submit(2, &[0; 6], Simple, &[]);
    assert_eq!(world.responses[&next].status, Status::Good);
    // This includes a flush that goes on after its command ended.
    let mut world = World::new(512);
    for _ in 0..MAX_TASKS {
        world.submit(1, &cdb10(0x35, 2, 0, 0), Simple, &[]);
    }
    let full = world.submit(1, &cdb10(0x35, 2, 0, 0), Simple, &[]);
    assert_eq!(world.responses[&full].status, Status::TaskSetFull);
}

fn manage(world: &mut World, nexus: NexusId, function: ManagementFunction) {
    world.device.handle_management(NOW, nexus, 1, 0, function);
    world.collect();
}

#[test]
fn abort_task_waits_for_what_is_being_written() {
    let mut world = World::new(512);
    let task = world.submit(1, &cdb10(0x2a, 0, 0, 1), Simple, &[1; 512]);
    manage(&mut world, 1, ManagementFunction::QueryTask(task));
    assert_eq!(world.managed.pop(), Some((1, ManagementResponse::Succeeded)));
    // It does not end the task of the other nexus.
    manage(&mut world, 2, ManagementFunction::AbortTask(task));
    assert_eq!(world.managed.pop(), Some((1, ManagementResponse::Complete)));
    assert!(world.aborted.is_empty());
    world.send(0);
    manage(&mut world, 1, ManagementFunction::AbortTask(task));
    assert!(world.aborted.contains(&task) && world.managed.is_empty());
    manage(&mut world, 1, ManagementFunction::QueryTask(task));
    assert_eq!(world.managed.pop(), Some((1, ManagementResponse::Complete)));
    // Until then no comparison of the same blocks starts.
    let caw = world.submit(2, &caw(0, 1), Simple, &[1; 1024]);
    world.send(0);
    assert_eq!(world.requests.len(), 1);
    world.answer(0);
    assert_eq!(world.managed.pop(), Some((1, ManagementResponse::Complete)));
    world.drain();
    assert_eq!(world.responses[&caw].status, Status::Good);
    assert_eq!(world.responses.len(), 1);
}

#[test]
fn a_read_that_takes_for_ever_holds_up_no_reset() {
    let mut world = World::new(512);
    world.submit(1, &read(0), Simple, &[]);
    world.submit(1, &caw(1, 1), Simple, &[0; 1024]);
    world.send(0);
    world.submit(1, &cdb10(0x35, 0, 0, 0), Simple, &[]);
    manage(&mut world, 1, ManagementFunction::LogicalUnitReset);
    assert_eq!(world.managed.pop(), Some((1, ManagementResponse::Complete)));
    assert_eq!((world.aborted.len(), world.requests.len()), (3, 3));
    world.run(&[0; 6], &[]);
    // The comparison ends.
    world.drain();
    assert!(!world.mapped[1] && world.device.tasks.is_empty());
}

#[test]
fn clear_task_set_tells_those_it_hits() {
    let mut world = World::new(512);
    world.submit(1, &read(0), Simple, &[]);
    world.submit(2, &read(0), Simple, &[]);
    manage(&mut world, 1, ManagementFunction::ClearTaskSet);
    assert_eq!(world.aborted.len(), 2);
    let told = world.run_by(2, &[0; 6], &[]);
    assert_eq!(attention(&told), Some(code::COMMANDS_CLEARED));
    assert_eq!(world.run_by(2, &[0; 6], &[]).status, Status::Good);
    assert_eq!(world.run(&[0; 6], &[]).status, Status::Good);
    // TAS: a status tells the other nexus instead.
    let list = [0, 0, 0, 0, 0x0a, 0x0a, 0, 0x10, 0, 0x40, 0, 0, 0, 0, 0, 0];
    world.good(&[0x15, 0x10, 0, 0, 16, 0], &list);
    world.run_by(2, &[0; 6], &[]);
    world.responses.clear();
    let mine = world.submit(1, &read(0), Simple, &[]);
    let other = world.submit(2, &read(0), Simple, &[]);
    manage(&mut world, 1, ManagementFunction::ClearTaskSet);
    assert!(world.aborted.contains(&mine));
    assert_eq!(world.responses[&other].status, Status::TaskAborted);
    assert_eq!(world.run_by(2, &[0; 6], &[]).status, Status::Good);
}

#[test]
fn abort_task_set_and_queries_are_of_one_nexus() {
    let mut world = World::new(512);
    let mine = world.submit(1, &read(0), Simple, &[]);
    let other = world.submit(2, &read(0), Simple, &[]);
    manage(&mut world, 1, ManagementFunction::AbortTaskSet);
    assert!(world.aborted.contains(&mine) && !world.aborted.contains(&other));
    world.managed.clear();
    manage(&mut world, 1, ManagementFunction::QueryTaskSet);
    manage(&mut world, 2, ManagementFunction::QueryTaskSet);
    manage(&mut world, 2, ManagementFunction::QueryAsyncEvent);
    world.device.handle_resized(NOW, 8);
    manage(&mut world, 2, ManagementFunction::QueryAsyncEvent);
    use ManagementResponse::{Complete, NoLun, Succeeded};
    assert_eq!(world.managed, [(1, Complete), (1, Succeeded), (1, Complete), (1, Succeeded)]);
    world.device.handle_management(NOW, 1, 9, 1 << 48, ManagementFunction::LogicalUnitReset);
    world.collect();
    assert_eq!(world.managed.pop(), Some((9, NoLun)));
}

#[test]
fn a_lost_nexus_leaves_nothing_and_is_told_when_it_is_back() {
    let mut world = World::new(512);
    world.submit(1, &read(0), Simple, &[]);
    world.submit(1, &cdb10(0x2a, 0, 0, 1), Simple, &[0; 512]);
    world.good(&[0x16, 0, 0, 0, 0, 0], &[]);
    assert_eq!(world.run_by(2, &[0; 6], &[]).status, Status::ReservationConflict);
    world.responses.clear();
    world.submit(1, &read(0), Simple, &[]);
    world.device.handle_nexus_loss(NOW, 1);
    world.collect();
    assert!(world.responses.is_empty() && world.aborted.is_empty());
    assert_eq!(world.run_by(2, &[0; 6], &[]).status, Status::Good);
    world.wants.clear();
    world.drain();
    assert!(world.device.tasks.is_empty());
    let initiator_port = "iqn.2026-11.io.example:1,i,0x000000000001".into();
    world.device.handle_nexus(NOW, 3, Nexus { initiator_port, relative_port: 1 });
    let told = world.run_by(3, &[0; 6], &[]);
    assert_eq!(attention(&told), Some(code::NEXUS_LOSS_OCCURRED));
    assert_eq!(world.run_by(3, &[0; 6], &[]).status, Status::Good);
    // Commands of a nexus that does not exist.
    assert_eq!(world.run_by(9, &[0; 6], &[]).status, Status::TaskSetFull);
}

#[test]
fn a_reset_covers_older_unit_attentions() {
    let mut world = World::new(512);
    world.device.handle_resized(NOW, 8);
    world.device.handle_resized(NOW, 16);
    assert_eq!(world.device.unit.nexuses.attentions(1), [code::CAPACITY_CHANGED]);
    manage(&mut world, 2, ManagementFunction::TargetReset);
    assert_eq!(world.device.unit.nexuses.attentions(1), [code::DEVICE_RESET_OCCURRED]);
}

#[test]
fn output_that_does_not_come_ends_the_task() {
    let mut world = World::new(512);
    let task = world.submit(1, &cdb10(0x2a, 0, 0, 1), Simple, &[0; 512]);
    world.device.handle_data_failure(NOW, task, 0x0b, 0x4705);
    world.collect();
    let response = &world.responses[&task];
    assert_eq!((response.sense[2], code_of(response)), (0x0b, 0x4705));
    world.device.handle_data(NOW, task, vec![Bytes::from_static(&[0; 512])]);
    world.collect();
    assert!(world.requests.is_empty());
    // Output of the wrong length reaches nothing.
    let task = world.submit(1, &cdb10(0x2a, 0, 0, 1), Simple, &[0; 512]);
    world.device.handle_data(NOW, task, vec![Bytes::from_static(&[0; 511])]);
    world.collect();
    assert_eq!(world.responses[&task].sense[2], key::HARDWARE_ERROR);
    assert!(world.requests.is_empty());
}

fn reserve_out(action: u8, kind: u8, key: u64, service: u64) -> ([u8; 10], Vec<u8>) {
    let list = [key.to_be_bytes(), service.to_be_bytes(), [0; 8]].concat();
    ([0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0], list)
}

#[test]
fn preempt_and_abort_ends_tasks_of_the_preempted() {
    let mut world = World::new(512);
    for (nexus, key) in [(1, 11), (2, 22)] {
        let (cdb, list) = reserve_out(0x06, 0, 0, key);
        assert_eq!(world.run_by(nexus, &cdb, &list).status, Status::Good);
    }
    let (cdb, list) = reserve_out(0x01, 0x05, 22, 0);
    assert_eq!(world.run_by(2, &cdb, &list).status, Status::Good);
    let write = world.submit(2, &cdb10(0x2a, 0, 0, 1), Simple, &[1; 512]);
    world.send(0);
    let (cdb, list) = reserve_out(0x05, 0x05, 11, 22);
    let preempt = world.submit(1, &cdb, Simple, &list);
    world.send(0);
    assert!(world.aborted.contains(&write));
    // PREEMPT AND ABORT waits for a write of the other nexus that may still reach the medium.
    assert!(!world.responses.contains_key(&preempt));
    world.drain();
    assert_eq!(world.responses[&preempt].status, Status::Good);
    assert!(attention(&world.run_by(2, &[0; 6], &[])).is_some());
    let refused = world.run_by(2, &cdb10(0x2a, 0, 0, 1), &[1; 512]);
    assert_eq!(refused.status, Status::ReservationConflict);
    assert_eq!(world.run_by(2, &cdb10(0x28, 0, 0, 1), &[]).status, Status::Good);
}

#[test]
fn persistent_reservations_are_saved_before_they_are_answered() {
    let mut world = World::new(512);
    let (cdb, mut list) = reserve_out(0x00, 0, 0, 11);
    list[20] = 0x01;
    let task = world.submit(1, &cdb, Simple, &list);
    world.send(0);
    assert!(!world.responses.contains_key(&task));
    let (id, data) = world.saves.pop().unwrap();
    assert!(!data.is_empty());
    world.device.handle_saved(NOW, id, Ok(()));
    world.collect();
    assert_eq!(world.responses[&task].status, Status::Good);
    assert!(!world.device.is_idle());
    let config = DeviceConfig { reservations: data, ..world.device.unit.config.clone() };
    world.device = Device::new(config);
    world.nexus(1);
    world.run(&[0; 6], &[]);
    let keys = world.good(&[0x5e, 0, 0, 0, 0, 0, 0, 1, 0, 0], &[]);
    assert_eq!(keys[8..], 11u64.to_be_bytes());
}
