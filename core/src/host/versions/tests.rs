use super::head::{HEAD_BYTES, Head};
use super::mark::Mark;
use super::table::{PAGE_BLOCKS, Table};
use super::*;
use crate::block::VolumeId;
use crate::host::tests::table::{Rng, TableDisk};
use crate::wire::link::{Attached, Changes, HostId};
use proptest::prelude::*;
use std::collections::BTreeMap;

const VOLUME: VolumeId = VolumeId(7);
const HOST: HostId = HostId(9);

fn attached(epoch: u64, committed: u64) -> Attached {
    Attached { volume: VOLUME, sectors: 1 << 20, block_bytes: 512, epoch, committed }
}

/// Carries out everything until the table wants nothing more.
fn run(table: &mut Table, disk: &mut TableDisk) {
    loop {
        while let Some(operation) = table.poll_disk() {
            disk.start(operation);
        }
        let Some(result) = disk.finish_read().or_else(|| disk.finish()) else { return };
        table.handle_disk(result);
    }
}

fn set(table: &mut Table, disk: &mut TableDisk, part: Range, mark: Mark) {
    while !table.set(part, mark) {
        run(table, disk);
    }
}

fn get(table: &mut Table, disk: &mut TableDisk, sector: u64) -> Mark {
    loop {
        match table.get(sector / BLOCK_SECTORS) {
            Some(Ok(mark)) => return mark,
            Some(Err(split)) => return split[(sector % BLOCK_SECTORS) as usize],
            None => run(table, disk),
        }
    }
}

#[test]
fn heads_are_written_in_turn_and_the_newest_counts() {
    let first = Head::new(&attached(1, 5), HOST, true, [1; TABLE_KEY_BYTES]);
    let second = first.attached(&attached(2, 5), HOST);
    assert_ne!(first.slot(), second.slot());
    let mut file = vec![0; 2 * HEAD_BYTES];
    assert_eq!(Head::newest(VOLUME, &file), Ok(None));
    assert_eq!(Head::newest(VOLUME, &[]), Ok(None));
    for head in [&first, &second] {
        let at = head.slot() as usize * HEAD_BYTES;
        file[at..at + HEAD_BYTES].copy_from_slice(&head.encode());
        assert_eq!(Head::newest(VOLUME, &file).as_ref(), Ok(&Some(head.clone())));
    }
    let at = second.slot() as usize * HEAD_BYTES;
    file[at + 9] ^= 1;
    assert_eq!(Head::newest(VOLUME, &file), Ok(Some(first)), "a torn one does not count");
    file[HEAD_BYTES - at + 9] ^= 1;
    assert_eq!(Head::newest(VOLUME, &file), Err(HeadError::Damaged));
    let other = Head::newest(VolumeId(8), &second.encode());
    assert_eq!(other, Err(HeadError::WrongVolume(VOLUME)));
}

#[test]
fn statements_are_what_they_were() {
    let key = [7; TABLE_KEY_BYTES];
    for root in [None, Some(Root { seq: 899, hash: RootHash([9; ROOT_BYTES]) })] {
        let statement = Statement { epoch: 3, seq: 900, key, root };
        assert_eq!(Statement::parse(&statement.encode()), Some(statement));
    }
    assert_eq!(Statement::parse(&[0; STATEMENT_BYTES - 1]), None);
    let hash = RootHash([0x0a; ROOT_BYTES]);
    assert_eq!(hash.to_string().parse(), Ok(hash));
    assert_eq!("0A".repeat(ROOT_BYTES).parse(), Ok(hash));
    for wrong in
        [String::new(), "0a".repeat(ROOT_BYTES - 1), "0g".repeat(ROOT_BYTES), "é".repeat(32)]
    {
        assert!(wrong.parse::<RootHash>().is_err(), "{wrong}");
    }
}

/// The marks of a damaged unit become unknown. Its neighbors stay as they are.
#[test]
fn damage_is_noticed_and_forgotten() {
    let head = Head::new(&attached(1, 0), HOST, true, [1; TABLE_KEY_BYTES]);
    let mut disk = TableDisk::new();
    let mut table = Table::new(head.clone(), 0);
    for block in [3, 200] {
        let part = Range::new(block * BLOCK_SECTORS, BLOCK_SECTORS);
        set(&mut table, &mut disk, part, Mark(99));
    }
    table.checkpoint(1);
    run(&mut table, &mut disk);
    assert_eq!(table.head().seq, 1);
    let mut byte = disk.file(1)[16];
    byte ^= 1;
    let mut unit = disk.file(1)[..512].to_vec();
    unit[16] = byte;
    disk.write(1, 0, &unit);
    let mut table = Table::new(head, 0);
    assert_eq!(get(&mut table, &mut disk, 3 * BLOCK_SECTORS), Mark::UNKNOWN);
    assert_eq!(get(&mut table, &mut disk, 200 * BLOCK_SECTORS), Mark(99));
    assert_eq!(table.damaged_bytes(), 512);
}

/// A dead process leaves written marks that it never synced. The next process reads them back as if
/// they were on the disk, and makes the same changes again. Its checkpoint must write them.
#[test]
fn marks_that_were_never_synced_are_written_again() {
    for (seed, part) in
        (0..16).flat_map(|seed| [(seed, Range::new(16, 8)), (seed, Range::new(18, 3))])
    {
        let head = Head::new(&attached(1, 0), HOST, true, [1; TABLE_KEY_BYTES]);
        let (mut disk, mut rng) = (TableDisk::new(), Rng(seed));
        let mut first = Table::new(head.clone(), 0);
        set(&mut first, &mut disk, part, Mark(99));
        first.checkpoint(1);
        while first.head().seq == 0 {
            while let Some(operation) = first.poll_disk() {
                disk.start(operation);
            }
            // All is written, and no sync reaches the disk.
            if let Some(DiskOperation::Sync { id, .. }) = disk.writes.front() {
                let id = *id;
                disk.writes.pop_front();
                first.handle_disk(DiskResult::Done { id });
            } else if let Some(DiskOperation::Write { sync: true, .. }) = disk.writes.front() {
                break;
            } else if let Some(result) = disk.finish_read().or_else(|| disk.finish()) {
                first.handle_disk(result);
            }
        }
        disk.writes.clear();
        let mut second = Table::new(head, 0);
        set(&mut second, &mut disk, part, Mark(99));
        second.checkpoint(1);
        run(&mut second, &mut disk);
        assert_eq!(second.head().seq, 1);
        disk.cut(true, &mut rng);
        let mut third = Table::new(second.head().clone(), 0);
        assert_eq!(get(&mut third, &mut disk, part.lba), Mark(99), "seed {seed}, {part}");
    }
}

/// While ranges are left to forget, a checkpoint does not claim to have the writes.
#[test]
fn what_is_to_be_forgotten_holds_checkpoints_up() {
    let head = Head::new(&attached(1, 0), HOST, true, [1; TABLE_KEY_BYTES]);
    let mut disk = TableDisk::new();
    let forgotten = [Range::new(0, 8), Range::new(PAGE_BLOCKS * BLOCK_SECTORS, 8)];
    let mut versions = Versions::new(head, 200, &forgotten, 0).unwrap();
    versions.replay(vec![Fed { seq: 100, range: forgotten[0], seal: Seal::Zero }]);
    // The first page comes, the second one takes its time.
    for reads in [1, 9] {
        let mut left = reads;
        for _ in 0..100 {
            versions.settle(Time(0), true, true);
            while let Some(operation) = versions.poll_disk() {
                disk.start(operation);
            }
            let reads = left > 0 && !disk.reads.is_empty();
            left -= u64::from(reads);
            let read = if reads { disk.finish_read() } else { None };
            if let Some(result) = read.or_else(|| disk.finish()) {
                versions.handle_disk(result);
            }
        }
        let durable = versions.durable();
        assert!(durable == 200 || reads == 1 && durable <= 100, "durable up to {durable}");
    }
    assert!(versions.is_settled());
}

/// On a slow disk changes all over the volume do not wait for one page after the other.
#[test]
fn pages_are_read_many_at_a_time() {
    let head = Head::new(&attached(1, 0), HOST, true, [1; TABLE_KEY_BYTES]);
    let mut disk = TableDisk::new();
    let mut versions = Versions::new(head, 100, &[], 0).unwrap();
    let range = |n| Range::new(n * PAGE_BLOCKS * BLOCK_SECTORS, BLOCK_SECTORS);
    let fed = |n| Fed { seq: n, range: range(n), seal: Seal::Zero };
    versions.replay((1..=100).map(fed).collect());
    let mut rounds = 0;
    while !versions.is_settled() {
        versions.settle(Time(0), true, false);
        while let Some(operation) = versions.poll_disk() {
            disk.start(operation);
        }
        rounds += u64::from(!disk.reads.is_empty());
        while !disk.reads.is_empty() {
            versions.handle_disk(disk.finish_read().unwrap());
        }
        while let Some(result) = disk.finish() {
            versions.handle_disk(result);
        }
    }
    assert!(rounds <= 10, "{rounds} times of waiting");
}

/// The volume does not wait for pages whose read failed.
#[test]
fn a_table_that_failed_says_nothing_against_zeroes() {
    let head = Head::new(&attached(1, 0), HOST, true, [1; TABLE_KEY_BYTES]);
    let mut versions = Versions::new(head, 1, &[Range::new(0, 8)], 0).unwrap();
    assert_eq!(versions.zeroes(Range::new(8, 24)), None);
    let Some(DiskOperation::Read { id, .. }) = versions.poll_disk() else { panic!() };
    let error = "input/output error".to_owned();
    assert!(versions.handle_disk(DiskResult::Failed { id, error }).is_some());
    assert_eq!(versions.zeroes(Range::new(8, 24)), Some(24));
    assert!(versions.take_moved());
}

/// If a store names ranges beyond the volume, the table neither grows nor fails.
#[test]
fn changes_beyond_the_volume_are_none() {
    let head = Head::new(&attached(1, 0), HOST, true, [1; TABLE_KEY_BYTES]);
    let after = attached(3, 10);
    let statement = Some(Statement { epoch: 2, seq: 10, key: head.key(), root: None });
    let judge = |ranges| head.judge(&after, None, statement, Some(Changes::Ranges(ranges)));
    let inside = Range::new(8, 8);
    let far = [Range::new(1 << 52, 8), Range::new(u64::MAX - 3, 8), Range::new(u64::MAX, u64::MAX)];
    let ranges = far.into_iter().chain([inside, Range::new(16, 0)]).collect();
    assert_eq!(judge(ranges), Verdict::Go(vec![inside]));
    let all = Range::new(0, after.sectors);
    assert_eq!(judge(vec![Range::new(0, 1 << 53)]), Verdict::Go(vec![all]));
}

/// Pages that came in during a checkpoint go at its end.
#[test]
fn pages_in_memory_are_bounded() {
    let head = Head::new(&attached(1, 0), HOST, true, [1; TABLE_KEY_BYTES]);
    let mut disk = TableDisk::new();
    let mut table = Table::new(head, 0);
    table.limit_pages(64);
    let sector = |page: u64| page * PAGE_BLOCKS * BLOCK_SECTORS;
    for page in 0..20 {
        set(&mut table, &mut disk, Range::new(sector(page), BLOCK_SECTORS), Mark(9));
    }
    table.checkpoint(1);
    for page in 0..400 {
        while table.get(page * PAGE_BLOCKS).is_none() {
            while let Some(operation) = table.poll_disk() {
                disk.start(operation);
            }
            table.handle_disk(disk.finish_read().unwrap());
        }
    }
    assert!(table.is_frozen());
    run(&mut table, &mut disk);
    assert!(!table.is_frozen());
    let (pages, most) = table.pages_in_memory();
    assert!(pages <= most, "{pages} pages, {most} at most");
    for page in 0..400 {
        get(&mut table, &mut disk, sector(page));
        let (pages, most) = table.pages_in_memory();
        assert!(pages <= most, "{pages} pages, {most} at most");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Changes to a table with little memory, checkpoints and power cuts at any moment. After the
    /// host makes the changes since the last checkpoint again, the table agrees with an array.
    #[test]
    fn a_table_is_an_array(seed in any::<u64>(), lives in 1..6usize) {
        let mut rng = Rng(seed);
        let mut head = Head::new(&attached(1, 0), HOST, true, [1; TABLE_KEY_BYTES]);
        let mut disk = TableDisk::new();
        let mut model: BTreeMap<u64, Mark> = BTreeMap::new();
        let mut log: Vec<(Range, Mark)> = Vec::new();
        for _ in 0..lives {
            let mut table = Table::new(head.clone(), 0);
            table.limit_pages(64);
            for (part, mark) in &log[head.seq as usize..] {
                set(&mut table, &mut disk, *part, *mark);
            }
            for _ in 0..rng.below(300) {
                let spread = PAGE_BLOCKS * 40;
                let block = rng.below(40) * PAGE_BLOCKS + rng.below(3);
                let lba = block % spread * BLOCK_SECTORS;
                let first = if rng.chance(50) { 0 } else { rng.below(BLOCK_SECTORS) };
                let most = BLOCK_SECTORS - first;
                let sectors = if rng.chance(50) { most } else { 1 + rng.below(most) };
                let mark = Mark(if rng.chance(20) { 1 } else { 4 + rng.below(6) as u32 });
                let part = Range::new(lba + first, sectors);
                if table.is_crowded() || rng.chance(3) {
                    table.checkpoint(log.len() as u64);
                    // The power goes, now or never, after some of the operations.
                    if rng.chance(30) {
                        for _ in 0..rng.below(8) {
                            while let Some(operation) = table.poll_disk() {
                                disk.start(operation);
                            }
                            if let Some(result) = disk.finish() {
                                table.handle_disk(result);
                            }
                        }
                        break;
                    }
                    run(&mut table, &mut disk);
                    prop_assert!(!table.is_frozen());
                }
                set(&mut table, &mut disk, part, mark);
                log.push((part, mark));
                for sector in part.lba..part.end() {
                    model.insert(sector, mark);
                }
            }
            disk.cut(true, &mut rng);
            head = Head::newest(VOLUME, disk.file(0)).unwrap().unwrap_or(head);
        }
        let mut table = Table::new(head.clone(), 0);
        table.limit_pages(64);
        for (part, mark) in &log[head.seq as usize..] {
            if table.is_crowded() {
                table.checkpoint(log.len() as u64);
                run(&mut table, &mut disk);
            }
            set(&mut table, &mut disk, *part, *mark);
        }
        for (sector, mark) in model {
            prop_assert_eq!(get(&mut table, &mut disk, sector), mark, "sector {}", sector);
        }
    }
}
