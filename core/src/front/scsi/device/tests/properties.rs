//! Random inputs in random order.
//!
//! - Any command bytes, output, attributes, task management, nexus losses, sizes and failures. No
//!   panic; requests lie within the volume (checked by [`World`]). Each task that is not aborted
//!   gets exactly one response, and no state is left.
//! - One command after another, with requests answered in any order: the same results as with a
//!   byte array.
//! - Many commands at a time: no write comes between a comparison and its write.

use super::lists;
use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Event {
    Command {
        nexus: NexusId,
        cdb: Vec<u8>,
        attribute: Attribute,
        out: Vec<u8>,
    },
    Send(usize),
    Answer(usize),
    Fail(usize, BlockError),
    /// An answer of the wrong kind.
    Nonsense(usize),
    DataFailure(usize),
    Saved(bool),
    Manage(NexusId, ManagementFunction),
    Lose(NexusId),
    Resize(u64),
    Part(NexusId, copy::CopyPart),
    EndPart(usize),
    Copied(usize, bool),
}

fn any_attribute() -> impl Strategy<Value = Attribute> {
    prop_oneof![
        6 => Just(Attribute::Simple),
        1 => Just(Attribute::Ordered),
        1 => Just(Attribute::HeadOfQueue),
        1 => Just(Attribute::Aca),
    ]
}

/// Commands, with small numbers in them as often as large ones.
fn any_cdb() -> impl Strategy<Value = Vec<u8>> {
    let known =
        (0..command_table::COMMANDS.len()).prop_map(|index| &command_table::COMMANDS[index]);
    let filled = (known, vec(any::<u8>(), 16), vec(0..4u8, 16), 0..3u8).prop_map(
        |(entry, wild, small, mix)| {
            let mut cdb = match mix {
                0 => wild,
                1 => small,
                // Small numbers at the ends of fields.
                _ => {
                    let ends = [5, 7, 8, 9, 11, 13];
                    let keep = |(at, byte)| if ends.contains(&at) { byte } else { 0 };
                    wild.into_iter().map(|byte| byte % 16).enumerate().map(keep).collect()
                }
            };
            cdb[0] = entry.opcode;
            if let Some(action) = entry.action {
                cdb[1] = cdb[1] & 0xe0 | action;
            }
            // Mostly without NACA.
            let control = entry.usage.len() - 1;
            cdb[control] &= 0xfb;
            cdb
        },
    );
    prop_oneof![8 => filled, 1 => vec(any::<u8>(), 16)]
}

fn any_out() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(Vec::new()),
        vec(any::<u8>(), 0..64),
        vec(0..3u8, 24..=24),
        (0..17usize, any::<u8>()).prop_map(|(blocks, byte)| vec![byte; blocks * 512]),
        vec((0..SECTORS + 2, 0..9u32), 0..4).prop_map(|ranges| unmap_list(&ranges)),
    ]
}

fn any_management() -> impl Strategy<Value = ManagementFunction> {
    prop_oneof![
        (1..60u64).prop_map(ManagementFunction::AbortTask),
        Just(ManagementFunction::AbortTaskSet),
        Just(ManagementFunction::ClearTaskSet),
        Just(ManagementFunction::LogicalUnitReset),
        Just(ManagementFunction::TargetReset),
        Just(ManagementFunction::NexusReset),
        (1..60u64).prop_map(ManagementFunction::QueryTask),
        Just(ManagementFunction::QueryTaskSet),
        Just(ManagementFunction::QueryAsyncEvent),
    ]
}

fn any_part() -> impl Strategy<Value = copy::CopyPart> {
    let range = || (0..SECTORS, 1..9u64).prop_map(|(lba, sectors)| Range::new(lba, sectors));
    let piece = |range| StagedPiece { range, content: crate::block::Staged::Zero };
    prop_oneof![
        range().prop_map(|range| {
            let into = VolumeId(1);
            copy::CopyPart::Stage { range, into, lba: range.lba, watch: None }
        }),
        range().prop_map(move |range| copy::CopyPart::Write(vec![piece(range)])),
        range().prop_map(copy::CopyPart::Zero),
    ]
}

/// Parameter lists of copies, valid or nearly so.
fn any_list() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let wild = (any::<prop::sample::Index>(), any::<u8>());
    let lists = prop_oneof![
        vec((0..2u16, 0..2u16, 0..9u16, 0..SECTORS, 0..SECTORS), 0..3)
            .prop_map(|segments| lists::extended_copy(&segments)),
        vec((0..SECTORS + 2, 0..9u32), 0..4).prop_map(|ranges| lists::populate(1, &ranges)),
        (vec((0..SECTORS + 2, 0..9u32), 0..4), 0..3u8).prop_map(|(ranges, flags)| {
            lists::write_using_token(2, flags, 0, &lists::zero_token(), &ranges)
        }),
    ];
    (lists, proptest::option::of(wild)).prop_map(|((cdb, mut list), wild)| {
        if let (Some((at, byte)), false) = (wild, list.is_empty()) {
            let at = at.index(list.len());
            list[at] ^= byte;
        }
        (cdb, list)
    })
}

fn any_event() -> impl Strategy<Value = Event> {
    let error = prop_oneof![
        Just(BlockError::Medium(Range::new(3, 9))),
        Just(BlockError::Fenced),
        Just(BlockError::Stopped),
        Just(BlockError::ShuttingDown),
        Just(BlockError::NoSpace),
    ];
    prop_oneof![
        30 => (1..=2u64, any_cdb(), any_attribute(), any_out())
            .prop_map(|(nexus, cdb, attribute, out)| Event::Command { nexus, cdb, attribute, out }),
        5 => (1..=2u64, any_list()).prop_map(|(nexus, (cdb, out))| {
            Event::Command { nexus, cdb, attribute: Attribute::Simple, out }
        }),
        15 => any::<usize>().prop_map(Event::Send),
        15 => any::<usize>().prop_map(Event::Answer),
        2 => (any::<usize>(), error).prop_map(|(index, error)| Event::Fail(index, error)),
        1 => any::<usize>().prop_map(Event::Nonsense),
        1 => any::<usize>().prop_map(Event::DataFailure),
        2 => any::<bool>().prop_map(Event::Saved),
        2 => (1..=2u64, any_management()).prop_map(|(nexus, what)| Event::Manage(nexus, what)),
        1 => (1..=2u64).prop_map(Event::Lose),
        1 => (0..=SECTORS).prop_map(Event::Resize),
        5 => (1..=2u64, any_part()).prop_map(|(nexus, part)| Event::Part(nexus, part)),
        1 => any::<usize>().prop_map(Event::EndPart),
        3 => (any::<usize>(), any::<bool>()).prop_map(|(index, good)| Event::Copied(index, good)),
    ]
}

/// A sequence of commands whose results a byte array predicts.
#[derive(Clone, Debug)]
enum Step {
    Write { lba: u64, blocks: u64, seed: u8, opcode: u8 },
    Read { lba: u64, blocks: u64 },
    Compare { lba: u64, blocks: u64, flip: Option<usize>, seed: u8 },
    Or { lba: u64, blocks: u64, seed: u8 },
    Same { lba: u64, blocks: u64, seed: Option<u8>, unmap: bool },
    Unmap(Vec<(u64, u64)>),
    Verify { lba: u64, blocks: u64, flip: Option<usize> },
}

const BLOCKS: u64 = 24;

fn any_step() -> impl Strategy<Value = Step> {
    let extent = || (0..BLOCKS).prop_flat_map(|lba| (Just(lba), 0..=(BLOCKS - lba).min(9)));
    let flip = || proptest::option::of(any::<usize>());
    let writes = prop_oneof![Just(0x8a), Just(0x8e), Just(0x9c)];
    prop_oneof![
        4 => (extent(), any::<u8>(), writes)
            .prop_map(|((lba, blocks), seed, opcode)| Step::Write { lba, blocks, seed, opcode }),
        3 => extent().prop_map(|(lba, blocks)| Step::Read { lba, blocks }),
        3 => (extent(), flip(), any::<u8>())
            .prop_map(|((lba, blocks), flip, seed)| Step::Compare { lba, blocks, flip, seed }),
        2 => (extent(), any::<u8>())
            .prop_map(|((lba, blocks), seed)| Step::Or { lba, blocks, seed }),
        2 => (extent(), proptest::option::of(any::<u8>()), any::<bool>()).prop_map(
            |((lba, blocks), seed, unmap)| Step::Same { lba, blocks: blocks.max(1), seed, unmap }
        ),
        2 => vec(extent(), 0..4).prop_map(Step::Unmap),
        2 => (extent(), flip())
            .prop_map(|((lba, blocks), flip)| Step::Verify { lba, blocks, flip }),
    ]
}

/// Acts on everything that is pending, in an order that `choices` select.
fn drain(world: &mut World, choices: &mut impl FnMut() -> usize) {
    loop {
        let (wants, requests) = (world.wants.len(), world.requests.len());
        if wants + requests == 0 {
            break;
        }
        let choice = choices() % (wants + requests);
        if choice < wants { world.send(choice) } else { world.answer(choice - wants) }
    }
}

fn noise(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|at| ((at as u32).wrapping_mul(2_654_435_761) >> 13) as u8 ^ seed).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn nothing_does_harm(block in prop_oneof![Just(512u32), Just(4096)],
                         piece in prop_oneof![Just(512usize), 1..2000usize],
                         events in vec(any_event(), 0..80)) {
        let mut world = World::new(block);
        world.piece = piece;
        let first = world.next_task;
        let mut lost = BTreeSet::new();
        let mut owners: BTreeMap<TaskId, NexusId> = BTreeMap::new();
        let mut functions = 0u64;
        let mut parts = 0u64;
        for event in events {
            match event {
                Event::Command { nexus, cdb, attribute, out } => {
                    owners.insert(world.next_task, nexus);
                    world.submit(nexus, &cdb, attribute, &out);
                }
                Event::Send(index) if !world.wants.is_empty() => {
                    world.send(index % world.wants.len());
                }
                Event::Answer(index) if !world.requests.is_empty() => {
                    world.answer(index % world.requests.len());
                }
                Event::Fail(index, error) if !world.requests.is_empty() => {
                    world.fail(index % world.requests.len(), error);
                }
                Event::Nonsense(index) if !world.requests.is_empty() => {
                    let (id, _) = world.requests.remove(index % world.requests.len());
                    let pieces = vec![ReadPiece::Zeroes(u64::MAX), ReadPiece::Zeroes(1)];
                    world.device.handle_reply(NOW, id, Ok(Reply::Data(pieces)));
                    world.collect();
                }
                Event::DataFailure(index) if !world.wants.is_empty() => {
                    let (task, _) = world.wants.remove(index % world.wants.len());
                    world.device.handle_data_failure(NOW, task, 0x0b, 0x4705);
                    world.collect();
                }
                Event::Saved(good) => if let Some((id, _)) = world.saves.pop() {
                    let result = if good { Ok(()) } else { Err("full".into()) };
                    world.device.handle_saved(NOW, id, result);
                    world.collect();
                },
                Event::Manage(nexus, function) => {
                    functions += 1;
                    world.device.handle_management(NOW, nexus, functions, 0, function);
                    world.collect();
                }
                Event::Lose(nexus) => {
                    let tasks = owners.iter().filter(|(_, owner)| **owner == nexus);
                    lost.extend(tasks.map(|(task, _)| *task));
                    world.device.handle_nexus_loss(NOW, nexus);
                    world.nexus(nexus);
                    world.collect();
                }
                Event::Part(nexus, part) => {
                    parts += 1;
                    world.device.handle_part(NOW, nexus, 1 << 40 | parts, part);
                    world.collect();
                }
                Event::EndPart(index) if parts > 0 => {
                    world.device.end_part(NOW, 1 << 40 | (index as u64 % parts + 1));
                    world.collect();
                }
                Event::Copied(index, good) if !world.copies.is_empty() => {
                    let problem = copy::CopyProblem::Inexact;
                    let failure = copy::CopyFailure { segment: 1, problem };
                    let index = index % world.copies.len();
                    world.copied(index, if good { Ok(()) } else { Err(failure) });
                }
                Event::Resize(sectors) => {
                    world.device.handle_resized(NOW, sectors);
                    world.collect();
                }
                _ => {}
            }
        }
        world.device.handle_resized(NOW, SECTORS);
        world.drain();
        for task in first..world.next_task {
            let ends = usize::from(world.responses.contains_key(&task))
                + usize::from(world.aborted.contains(&task));
            prop_assert!(ends == 1 || ends == 0 && lost.contains(&task), "task {}: {}", task, ends);
        }
        prop_assert_eq!(world.managed.len() as u64, functions);
        prop_assert_eq!(world.parts.len() as u64, parts);
        prop_assert!(world.device.tasks.is_idle());
        // The device still works.
        for nexus in 1..=2 {
            while world.run_by(nexus, &[0; 6], &[]).status == Status::CheckCondition {}
        }
    }

    #[test]
    fn commands_do_what_a_byte_array_does(block in prop_oneof![Just(512u64), Just(4096)],
                                          piece in prop_oneof![Just(4096usize), 1..9000usize],
                                          steps in vec(any_step(), 1..30),
                                          seed in any::<usize>()) {
        let mut world = World::new(block as u32);
        world.piece = piece;
        let mut random = seed;
        let mut choices = move || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_041);
            random >> 33
        };
        let mut model = vec![0u8; (BLOCKS * block) as usize];
        for step in steps {
            let at = |lba: u64, blocks: u64| {
                (lba * block) as usize..((lba + blocks) * block) as usize
            };
            let bytes = |blocks: u64| (blocks * block) as usize;
            let mut expected = None;
            let mut found = Vec::new();
            let (cdb, out) = match step {
                Step::Write { lba, blocks, seed, opcode } => {
                    let data = noise(bytes(blocks), seed);
                    model[at(lba, blocks)].copy_from_slice(&data);
                    let flags = if opcode == 0x8e { 2 } else { 0 };
                    let mut cdb = cdb16(opcode, flags, lba, blocks as u32);
                    if opcode == 0x9c {
                        cdb[10..14].copy_from_slice(&[0, 0, 0, blocks as u8]);
                    }
                    (cdb.to_vec(), data)
                }
                Step::Read { lba, blocks } => {
                    found = model[at(lba, blocks)].to_vec();
                    (cdb16(0x88, 0, lba, blocks as u32).to_vec(), Vec::new())
                }
                Step::Compare { lba, blocks, flip, seed } => {
                    let data = noise(bytes(blocks), seed);
                    let mut out = model[at(lba, blocks)].to_vec();
                    match flip {
                        Some(flip) if blocks > 0 => {
                            let flip = flip % out.len();
                            out[flip] ^= 0x10;
                            expected = Some(flip as u32);
                        }
                        _ => model[at(lba, blocks)].copy_from_slice(&data),
                    }
                    out.extend(data);
                    (caw(lba, blocks as u8).to_vec(), out)
                }
                Step::Or { lba, blocks, seed } => {
                    let data = noise(bytes(blocks), seed);
                    let target = model[at(lba, blocks)].iter_mut();
                    target.zip(&data).for_each(|(byte, data)| *byte |= data);
                    (cdb16(0x8b, 0, lba, blocks as u32).to_vec(), data)
                }
                Step::Same { lba, blocks, seed, unmap } => {
                    let data = seed.map_or(vec![0; bytes(1)], |seed| noise(bytes(1), seed));
                    for lba in lba..(lba + blocks).min(BLOCKS) {
                        model[at(lba, 1)].copy_from_slice(&data);
                    }
                    let blocks = blocks.min(BLOCKS - lba) as u32;
                    (cdb16(0x93, u8::from(unmap) << 3, lba, blocks).to_vec(), data)
                }
                Step::Unmap(ranges) => {
                    for (lba, blocks) in &ranges {
                        model[at(*lba, *blocks)].fill(0);
                    }
                    let ranges: Vec<(u64, u32)> =
                        ranges.into_iter().map(|(lba, blocks)| (lba, blocks as u32)).collect();
                    let list = unmap_list(&ranges);
                    (unmap(&list).to_vec(), list)
                }
                Step::Verify { lba, blocks, flip } => {
                    let mut out = model[at(lba, blocks)].to_vec();
                    if let Some(flip) = flip && blocks > 0 {
                        let flip = flip % out.len();
                        out[flip] ^= 0x10;
                        expected = Some((lba + flip as u64 / block) as u32);
                    }
                    (cdb16(0x8f, 0x02, lba, blocks as u32).to_vec(), out)
                }
            };
            let task = world.submit(1, &cdb, Attribute::Simple, &out);
            drain(&mut world, &mut choices);
            let response = world.responses.remove(&task).unwrap();
            match expected {
                None => prop_assert_eq!(response.status, Status::Good, "{:02x?}", response),
                Some(information) => {
                    prop_assert_eq!(response.sense[2], key::MISCOMPARE);
                    prop_assert_eq!(&response.sense[3..7], &information.to_be_bytes());
                }
            }
            prop_assert_eq!(bytes_of(&response.data), found);
            prop_assert_eq!(&world.bytes[..model.len()], &model[..]);
        }
    }

    /// Every write carries a number of its own. A comparison knows the number that it has to find.
    #[test]
    fn nothing_comes_between_a_comparison_and_its_write(
        steps in vec((0..4u64, 1..=2u64, 0..3u8, any::<bool>()), 1..40),
        seed in any::<usize>(),
    ) {
        let mut world = World::new(512);
        let mut random = seed;
        let mut choices = move || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_041);
            random >> 33
        };
        let tagged = |tag: u64, blocks: u64| tag.to_be_bytes().repeat((blocks * 64) as usize);
        // By the number of the write: the number that must be there before.
        let mut compares: BTreeMap<u64, u64> = BTreeMap::new();
        let mut tasks = Vec::new();
        let list = unmap_list(&[(1, 2)]);
        for (tag, (lba, blocks, kind, head)) in (1u64..).zip(steps) {
            let attribute = if head { Attribute::HeadOfQueue } else { Attribute::Simple };
            tasks.push(match kind {
                0 => {
                    let cdb = cdb16(0x8a, 0, lba, blocks as u32);
                    world.submit(1, &cdb, attribute, &tagged(tag, blocks))
                }
                1 => world.submit(2, &unmap(&list), attribute, &list),
                _ => {
                    // The number that one block holds now.
                    let at = (lba * 512) as usize;
                    let now = u64::from_be_bytes(world.bytes[at..at + 8].try_into().unwrap());
                    compares.insert(tag, now);
                    let both = [tagged(now, 1), tagged(tag, 1)].concat();
                    world.submit(2, &caw(lba, 1), attribute, &both)
                }
            });
            // Acts on a part of everything that is pending.
            for _ in 0..choices() % 4 {
                step(&mut world, &mut choices, &compares);
            }
        }
        while world.wants.len() + world.requests.len() > 0 {
            step(&mut world, &mut choices, &compares);
        }
        for task in tasks {
            let response = &world.responses[&task];
            prop_assert!(
                response.status == Status::Good || response.sense[2] == key::MISCOMPARE,
                "{response:02x?}"
            );
        }
        prop_assert!(world.device.tasks.is_idle());
    }
}

/// Sends one output or answers one request. The write of a comparison must find the blocks that it
/// compared.
fn step(world: &mut World, choices: &mut impl FnMut() -> usize, compares: &BTreeMap<u64, u64>) {
    let (wants, requests) = (world.wants.len(), world.requests.len());
    if wants + requests == 0 {
        return;
    }
    let choice = choices() % (wants + requests);
    if choice < wants {
        return world.send(choice);
    }
    if let (_, Request::Write { range, data, .. }) = &world.requests[choice - wants] {
        let tag = u64::from_be_bytes(data[..8].try_into().unwrap());
        if let Some(compared) = compares.get(&tag) {
            let at = (range.lba * 512) as usize;
            assert_eq!(world.bytes[at..at + 8], compared.to_be_bytes(), "lost update");
        }
    }
    world.answer(choice - wants);
}
