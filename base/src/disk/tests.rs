//! Both disks on both backends, and on one that ends operations as a test likes.

use super::backend::{Backend, DiskMessage, DiskRequest, FileAction, Mailbox, WriteData, lock};
use super::direct::DirectAlignment;
use super::inline::INLINE_BYTES;
use super::pool::Pool;
use super::ring::Ring;
use super::shared::of_this_thread;
use super::{FileArea, JournalDisk, OrderedDisk, Zero};
use bytes::Bytes;
use longhaul_core::host::{DiskOperation, DiskResult};
use rustix::fs::{MemfdFlags, OFlags, SealFlags};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MIB: usize = 1 << 20;

/// Runs each test with an io_uring and with threads. Without io_uring here, its tests fail.
macro_rules! on_both_backends {
    ($($test:ident),* $(,)?) => {
        mod with_io_uring {
            $(
                #[tokio::test]
                async fn $test() {
                    super::$test(super::Ring::new().unwrap()).await;
                }
            )*
        }
        mod with_threads {
            $(
                #[tokio::test]
                async fn $test() {
                    super::$test(super::Pool::new()).await;
                }
            )*
        }
    };
}

on_both_backends!(
    a_journal_writes_syncs_and_reads,
    frames_go_around_the_page_cache,
    a_journal_has_a_part_of_a_device,
    many_operations_are_under_way,
    a_failed_write_latches,
    writes_to_a_sealed_file_fail,
    small_writes_that_nothing_holds_up_are_done_at_once,
    a_journal_that_is_dropped_ends_what_it_took,
    an_ordered_disk_joins_what_belongs_together,
    an_ordered_disk_latches,
    a_sparse_file_reads_as_zeroes_beyond_its_end,
    an_ordered_disk_that_is_dropped_ends_what_it_took,
);

fn files(dir: &tempfile::TempDir, count: u32) -> Vec<File> {
    let new = |number| {
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(true);
        let file = file.open(path(dir, number)).unwrap();
        file.set_len(MIB as u64).unwrap();
        file
    };
    (0..count).map(new).collect()
}

fn path(dir: &tempfile::TempDir, number: u32) -> std::path::PathBuf {
    dir.path().join(format!("journal.{number:04}"))
}

fn content(dir: &tempfile::TempDir, number: u32) -> Vec<u8> {
    std::fs::read(path(dir, number)).unwrap()
}

fn areas(files: Vec<File>) -> Vec<FileArea> {
    files.into_iter().map(|file| FileArea::whole(file).unwrap()).collect()
}

fn journal(files: Vec<File>, backend: Arc<dyn Backend>) -> JournalDisk {
    JournalDisk::start(areas(files), "journal".into(), None).on(backend)
}

fn ordered(files: Vec<File>, backend: Arc<dyn Backend>) -> OrderedDisk {
    OrderedDisk::new(files, "cache".into()).on(backend)
}

fn write(id: u64, file: u32, offset: u64, data: impl Into<Bytes>) -> DiskOperation {
    DiskOperation::Write { id, file, offset, data: data.into(), sync: false }
}

fn synced(id: u64, file: u32, offset: u64, data: impl Into<Bytes>) -> DiskOperation {
    DiskOperation::Write { id, file, offset, data: data.into(), sync: true }
}

fn sync(id: u64, file: u32) -> DiskOperation {
    DiskOperation::Sync { id, file }
}

fn read(id: u64, file: u32, offset: u64, bytes: usize) -> DiskOperation {
    DiskOperation::Read { id, file, offset, bytes }
}

/// The common part of both disks.
trait AnyDisk {
    fn start(&mut self, operation: DiskOperation) -> Option<DiskResult>;
    fn go(&mut self);
    fn take(&mut self) -> Vec<DiskResult>;
    fn wait(&self) -> impl Future<Output = ()>;
}

macro_rules! any_disk {
    ($disk:ty) => {
        impl AnyDisk for $disk {
            fn start(&mut self, operation: DiskOperation) -> Option<DiskResult> {
                self.forget_pause();
                self.start_operation(operation)
            }
            fn go(&mut self) {
                self.submit();
            }
            fn take(&mut self) -> Vec<DiskResult> {
                self.take_results()
            }
            fn wait(&self) -> impl Future<Output = ()> {
                self.watch()
            }
        }
    };
}

any_disk!(JournalDisk);
any_disk!(OrderedDisk);

/// Starts the operations together. Returns the results in the order of their numbers.
async fn carry_out(
    disk: &mut impl AnyDisk,
    operations: impl IntoIterator<Item = DiskOperation>,
) -> Vec<DiskResult> {
    let mut count = 0;
    let mut results = Vec::new();
    for operation in operations {
        count += 1;
        results.extend(disk.start(operation));
    }
    disk.go();
    while results.len() < count {
        let watch = tokio::time::timeout(Duration::from_secs(10), disk.wait());
        watch.await.expect("the backend answers");
        results.extend(disk.take());
    }
    results.sort_by_key(id_of);
    results
}

fn id_of(result: &DiskResult) -> u64 {
    match result {
        DiskResult::Done { id } | DiskResult::Data { id, .. } | DiskResult::Failed { id, .. } => {
            *id
        }
    }
}

fn done(ids: impl IntoIterator<Item = u64>) -> Vec<DiskResult> {
    ids.into_iter().map(|id| DiskResult::Done { id }).collect()
}

fn errors(results: &[DiskResult]) -> Vec<&str> {
    results.iter().map(error_of).collect()
}

fn error_of(result: &DiskResult) -> &str {
    match result {
        DiskResult::Failed { error, .. } => error,
        result => panic!("{result:?}"),
    }
}

async fn a_journal_writes_syncs_and_reads(backend: Arc<dyn Backend>) {
    let dir = tempfile::tempdir().unwrap();
    let mut disk = journal(files(&dir, 2), backend);
    let frame = |byte| vec![byte; 8192];
    let operations = [
        synced(1, 0, 4096, frame(1)),
        synced(2, 0, 12288, frame(2)),
        write(3, 0, 20480, frame(3)),
        sync(4, 0),
        sync(5, 1),
        synced(6, 1, 4096, frame(6)),
    ];
    assert_eq!(carry_out(&mut disk, operations).await, done(1..=6));
    let counters = disk.counters();
    assert_eq!((counters.writes, counters.syncs, counters.bytes), (4, 5, 4 * 8192));
    // Here it is no multiple of anything.
    assert_eq!(carry_out(&mut disk, [synced(7, 0, 4097, "abc")]).await, done([7]));
    let reads = [read(8, 0, 4096, 5), read(9, 0, MIB as u64 - 1, 6)];
    let results = carry_out(&mut disk, reads).await;
    let data = Bytes::from_static(b"\x01abc\x01");
    assert_eq!(results[0], DiskResult::Data { id: 8, data });
    assert!(errors(&results[1..])[0].contains("read of journal.0000"));
    let all = content(&dir, 0);
    assert!(all[12288..20480] == frame(2) && all[20480..28672] == frame(3));
    assert!(content(&dir, 1)[4096..12288] == frame(6));
    let missing = disk.start_operation(sync(10, 2));
    assert!(errors(&[missing.unwrap()])[0].contains("no such file"));
}

/// Whether there are direct writes in the folder for temporary files.
fn is_direct(file: &File) -> bool {
    let is_direct = DirectAlignment::of(file).is_some();
    if !is_direct {
        eprintln!("NOT TESTED: direct writes. TMPDIR is on a file system without them.");
    }
    is_direct
}

async fn frames_go_around_the_page_cache(backend: Arc<dyn Backend>) {
    let dir = tempfile::tempdir().unwrap();
    let files = files(&dir, 2);
    if !is_direct(&files[0]) {
        return;
    }
    let mut disk = journal(files, backend);
    let frame = |byte| vec![byte; 256 << 10];
    let operations =
        [synced(1, 0, 4096, frame(1)), synced(2, 0, 266_240, frame(2)), synced(3, 0, 528_384, "x")];
    assert_eq!(carry_out(&mut disk, operations).await, done(1..=3));
    assert_eq!(disk.open_directs(), 2, "one for each write with a sync");
    assert_eq!(carry_out(&mut disk, [write(4, 0, 4096, frame(4))]).await, done([4]));
    assert_eq!(carry_out(&mut disk, [write(5, 0, 8192, "small")]).await, done([5]));
    let small = carry_out(&mut disk, [read(6, 0, 8190, 8)]).await;
    let data = Bytes::from_static(b"\x04\x04small\x04");
    assert_eq!(small, [DiskResult::Data { id: 6, data }]);
    assert_eq!(carry_out(&mut disk, [write(7, 0, 8192, frame(7)), sync(8, 0)]).await, done(7..=8));
    assert_eq!(content(&dir, 0)[8190..8194], [4, 4, 7, 7]);
    assert_eq!(carry_out(&mut disk, [write(9, 1, 4096, frame(9))]).await, done([9]));
    assert_eq!(disk.open_directs(), 1, "the journal has left the first file");
}

async fn many_operations_are_under_way(backend: Arc<dyn Backend>) {
    let dir = tempfile::tempdir().unwrap();
    // More than the queues of a ring hold.
    let frames = 700;
    let file = files(&dir, 1);
    file[0].set_len(frames * 4096).unwrap();
    let mut disk = journal(file, backend);
    let frame = |at: u64| write(at, 0, at * 4096, vec![at as u8; 4096]);
    // Nothing is written at once beside it.
    let operations = std::iter::once(sync(frames, 0)).chain((0..frames).map(frame));
    assert_eq!(carry_out(&mut disk, operations).await, done(0..=frames));
    let all = content(&dir, 0);
    assert!(all.chunks(4096).enumerate().all(|(at, page)| page == [at as u8; 4096]));
}

async fn a_failed_write_latches(backend: Arc<dyn Backend>) {
    let dir = tempfile::tempdir().unwrap();
    let mut all = files(&dir, 2);
    all[0] = File::open(path(&dir, 0)).unwrap();
    let mut disk = journal(all, backend);
    let results = carry_out(&mut disk, [synced(1, 0, 0, "read-only")]).await;
    assert!(errors(&results)[0].starts_with("write of journal.0000: "), "{results:?}");
    let later = [sync(2, 1), synced(3, 1, 4096, "fine but too late"), write(4, 1, 0, "and small")];
    let results = carry_out(&mut disk, later).await;
    for error in errors(&results) {
        assert!(error.contains("after: write of journal.0000"), "{error}");
    }
    assert!(content(&dir, 1).iter().all(|byte| *byte == 0));
    let data = Bytes::from_static(&[0; 4]);
    let results = carry_out(&mut disk, [read(5, 1, 4096, 4)]).await;
    assert_eq!(results, [DiskResult::Data { id: 5, data }], "reads go on");
}

async fn writes_to_a_sealed_file_fail(backend: Arc<dyn Backend>) {
    let file = rustix::fs::memfd_create("journal", MemfdFlags::ALLOW_SEALING).unwrap();
    let file = File::from(file);
    file.set_len(MIB as u64).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE).unwrap();
    let mut disk = journal(vec![file], backend);
    assert_eq!(carry_out(&mut disk, [sync(1, 0)]).await, done([1]));
    let frame = vec![1; 128 << 10];
    let results = carry_out(&mut disk, [write(2, 0, 4096, frame)]).await;
    assert!(errors(&results)[0].starts_with("write of journal.0000: "), "{results:?}");
    let results = carry_out(&mut disk, [sync(3, 0)]).await;
    assert!(errors(&results)[0].contains("after: write of journal.0000"), "{results:?}");
}

async fn small_writes_that_nothing_holds_up_are_done_at_once(backend: Arc<dyn Backend>) {
    let dir = tempfile::tempdir().unwrap();
    let mut all = files(&dir, 3);
    all[2] = File::open(path(&dir, 2)).unwrap();
    let mut disk = journal(all, backend);
    assert_eq!(disk.start(write(1, 0, 8192, "first")), Some(DiskResult::Done { id: 1 }));
    assert_eq!(content(&dir, 0)[8192..8197], *b"first");
    assert_eq!(disk.counters().writes, 1);
    assert_eq!(disk.start(write(2, 0, 0, vec![1; INLINE_BYTES + 1])), None, "it is long");
    assert_eq!(disk.start(write(3, 0, 12288, "x")), None, "another one is under way");
    while disk.counters().writes < 3 {
        disk.submit();
        disk.watch().await;
        disk.take_results();
    }
    assert_eq!(disk.start(synced(5, 0, 20480, "z")), None, "it has a sync");
    assert_eq!(disk.start(write(6, 0, 24576, "z")), None, "a sync is under way");
    assert_eq!(disk.start(write(7, 1, 4096, "z")), Some(DiskResult::Done { id: 7 }), "elsewhere");
    while disk.counters().writes < 6 {
        disk.submit();
        disk.watch().await;
        disk.take_results();
    }
    let failed = disk.start(write(8, 2, 0, "read-only")).unwrap();
    assert!(errors(&[failed])[0].starts_with("write of journal.0002: "));
    let failed = disk.start(write(9, 0, 0, "fine")).unwrap();
    assert!(errors(&[failed])[0].contains("after: write of journal.0002: "));
}

async fn a_journal_that_is_dropped_ends_what_it_took(backend: Arc<dyn Backend>) {
    let dir = tempfile::tempdir().unwrap();
    let mut disk = journal(files(&dir, 2), backend);
    for at in 0..8 {
        disk.start_operation(write(at, 0, 4096 + at * 98_304, vec![at as u8 + 1; 98_304]));
    }
    disk.start_operation(sync(8, 0));
    disk.start_operation(sync(9, 0));
    disk.start_operation(write(10, 1, 1, vec![7; 100_000]));
    disk.start_operation(write(11, 1, 131_072, vec![8; 131_072]));
    drop(disk);
    let all = content(&dir, 0);
    for (at, frame) in all[4096..][..8 * 98_304].chunks(98_304).enumerate() {
        assert!(frame.iter().all(|byte| usize::from(*byte) == at + 1));
    }
    let all = content(&dir, 1);
    assert_eq!((all[1], all[100_000], all[131_072], all[262_143]), (7, 7, 8, 8));
}

async fn an_ordered_disk_joins_what_belongs_together(backend: Arc<dyn Backend>) {
    let dir = tempfile::tempdir().unwrap();
    let mut disk = ordered(files(&dir, 2), backend);
    let operations = [
        synced(1, 1, 0, "in front"),
        write(2, 0, 4096, "abc"),
        write(3, 0, 4099, "def"),
        sync(4, 0),
        sync(5, 0),
        write(6, 0, 4098, "x"),
        write(7, 1, 0, "I"),
        synced(8, 1, 1, "N"),
    ];
    assert_eq!(carry_out(&mut disk, operations).await, done(1..=8));
    assert_eq!((disk.counters().writes, disk.counters().syncs), (4, 3), "adjacent ones join");
    let results = carry_out(&mut disk, [read(9, 0, 4096, 6), read(10, 1, 0, 8)]).await;
    let data = |result: &DiskResult| match result {
        DiskResult::Data { data, .. } => data.clone(),
        result => panic!("{result:?}"),
    };
    assert_eq!(
        (&data(&results[0])[..], &data(&results[1])[..]),
        (&b"abxdef"[..], &b"IN front"[..])
    );
    assert_eq!(disk.start(write(11, 0, 0, "at once")), Some(DiskResult::Done { id: 11 }));
}

async fn an_ordered_disk_latches(backend: Arc<dyn Backend>) {
    let dir = tempfile::tempdir().unwrap();
    let mut all = files(&dir, 2);
    all[0] = File::open(path(&dir, 0)).unwrap();
    let mut disk = ordered(all, backend);
    let operations = [synced(1, 0, 0, "read-only"), sync(2, 1), write(3, 1, 0, "too late")];
    let results = carry_out(&mut disk, operations).await;
    for error in errors(&results) {
        assert!(error.contains("write of cache.0000"), "{error}");
    }
    let results = carry_out(&mut disk, [write(4, 1, 0, "too late"), sync(5, 7)]).await;
    assert!(errors(&results)[0].contains("not tried after: write of cache.0000"), "{results:?}");
    assert_eq!(content(&dir, 1)[0], 0);
}

async fn a_sparse_file_reads_as_zeroes_beyond_its_end(backend: Arc<dyn Backend>) {
    let dir = tempfile::tempdir().unwrap();
    let file = files(&dir, 1);
    file[0].set_len(0).unwrap();
    let mut disk = OrderedDisk::sparse(file, "versions".into()).on(backend);
    let results = carry_out(&mut disk, [synced(1, 0, 4096, "ab")]).await;
    assert_eq!(results, done([1]));
    let results = carry_out(&mut disk, [read(2, 0, 4096, 4), read(3, 0, 1 << 20, 2)]).await;
    let data = Bytes::from_static(b"ab\0\0");
    assert_eq!(results[0], DiskResult::Data { id: 2, data });
    assert_eq!(results[1], DiskResult::Data { id: 3, data: Bytes::from_static(&[0; 2]) });
    // The same without the page cache.
    let dropped = File::open(path(&dir, 0)).unwrap();
    rustix::fs::fadvise(&dropped, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let results = carry_out(&mut disk, [read(4, 0, 4095, 4)]).await;
    assert_eq!(results[0], DiskResult::Data { id: 4, data: Bytes::from_static(b"\0ab\0") });
}

async fn an_ordered_disk_that_is_dropped_ends_what_it_took(backend: Arc<dyn Backend>) {
    let dir = tempfile::tempdir().unwrap();
    let mut disk = ordered(files(&dir, 2), backend);
    disk.start_operation(synced(1, 0, 0, vec![1; 100_000]));
    disk.start_operation(write(2, 1, 0, vec![2; 100_000]));
    disk.start_operation(synced(3, 0, 50_000, vec![3; 100_000]));
    // As a task that discards a table does it.
    std::thread::spawn(move || drop(disk)).join().unwrap();
    let all = content(&dir, 0);
    assert_eq!((all[49_999], all[50_000], all[149_999]), (1, 3, 3));
    assert_eq!(content(&dir, 1)[99_999], 2);
}

#[test]
fn disks_of_one_thread_share_a_backend_of_the_present_runtime() {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let one = of_this_thread();
            assert!(Arc::ptr_eq(&one, &of_this_thread()));
            one
        })
    };
    let first = run();
    let second = run();
    assert!(!Arc::ptr_eq(&first, &second), "the attendant of the first one is gone");
}

/// Ends operations as the test likes.
#[derive(Default)]
struct Manual {
    requests: Mutex<Vec<DiskRequest>>,
}

impl Backend for Manual {
    fn start(&self, request: DiskRequest) {
        lock(&self.requests).push(request);
    }
    fn submit(&self) {}
    fn wait(&self, _: &Mailbox) {
        while let Some(first) = self.under_way().first() {
            self.end(first, Ok(0));
        }
    }
    fn is_attended(&self) -> bool {
        true
    }
}

impl Manual {
    /// A word for each operation under way.
    fn under_way(&self) -> Vec<String> {
        let word = |request: &DiskRequest| {
            let operation = &request.operation;
            let what = match &operation.action {
                FileAction::Sync => "sync",
                FileAction::Read(_) => "read",
                FileAction::Write { sync: true, .. } => "synced",
                FileAction::Write { sync: false, .. } => "write",
            };
            let flags = rustix::fs::fcntl_getfl(&*operation.file).unwrap();
            let is_direct = flags.contains(OFlags::DIRECT);
            if let FileAction::Write { data, .. } = &operation.action {
                assert_eq!(is_direct, matches!(data, WriteData::Aligned(_)));
            }
            format!("{what} {}{}", operation.offset, if is_direct { " direct" } else { "" })
        };
        lock(&self.requests).iter().map(word).collect()
    }

    fn end(&self, word: &str, outcome: Result<usize, Errno>) {
        let place = self.under_way().iter().position(|other| other == word).unwrap();
        let DiskRequest { token, operation, mailbox } = lock(&self.requests).remove(place);
        mailbox.post(DiskMessage::Ended { token, operation, outcome });
    }
}

#[test]
fn after_a_failure_nothing_under_way_counts() {
    let dir = tempfile::tempdir().unwrap();
    let manual = Arc::new(Manual::default());
    let mut disk = journal(files(&dir, 2), manual.clone());
    disk.start_operation(synced(1, 0, 1, "a"));
    disk.start_operation(sync(2, 1));
    disk.start_operation(sync(3, 1));
    disk.start_operation(synced(4, 1, 1, "held"));
    manual.end("synced 1", Err(Errno::IO));
    let mut results = disk.take_results();
    results.sort_by_key(id_of);
    assert_eq!(results.iter().map(id_of).collect::<Vec<_>>(), [1, 3, 4], "2 is under way");
    assert!(errors(&results)[1].contains("after: write of journal.0000"), "{results:?}");
    assert_eq!(manual.under_way(), ["sync 0"]);
    manual.end("sync 0", Ok(0));
    let results = disk.take_results();
    assert!(errors(&results)[0].contains("after: write of journal.0000"), "{results:?}");
}

#[test]
fn a_description_has_one_sync_under_way() {
    let dir = tempfile::tempdir().unwrap();
    let files = files(&dir, 2);
    let is_direct = is_direct(&files[0]);
    let manual = Arc::new(Manual::default());
    let mut disk = journal(files, manual.clone());
    for id in 1..=2 {
        disk.start_operation(sync(id, 0));
        disk.start_operation(sync(2 + id, 1));
    }
    assert_eq!(manual.under_way(), ["sync 0"; 2], "one for each file");
    manual.end("sync 0", Ok(0));
    disk.take_results();
    assert_eq!(manual.under_way(), ["sync 0"; 2], "and then the next");
    if !is_direct {
        return;
    }
    let frame = || vec![1; 4096];
    for id in 5..=7 {
        disk.start_operation(synced(id, 0, id * 4096, frame()));
    }
    assert_eq!(manual.under_way()[2..], ["synced 20480 direct", "synced 24576 direct"]);
    let requests = lock(&manual.requests);
    assert!(!Arc::ptr_eq(&requests[2].operation.file, &requests[3].operation.file));
    drop(requests);
    manual.end("synced 24576 direct", Ok(4096));
    disk.take_results();
    assert_eq!(manual.under_way()[2..], ["synced 20480 direct", "synced 28672 direct"]);
}

#[test]
fn buffered_and_direct_writes_take_turns() {
    let dir = tempfile::tempdir().unwrap();
    let files = files(&dir, 2);
    if !is_direct(&files[0]) {
        return;
    }
    let manual = Arc::new(Manual::default());
    let mut disk = journal(files, manual.clone());
    let frame = || vec![1; 4096];
    disk.start_operation(sync(1, 0));
    disk.start_operation(write(2, 0, 4096, frame()));
    disk.start_operation(write(3, 0, 8192, frame()));
    disk.start_operation(write(4, 0, 9, "odd"));
    disk.start_operation(write(5, 0, 12288, frame()));
    assert_eq!(manual.under_way(), ["sync 0", "write 4096 direct", "write 8192 direct"]);
    manual.end("write 4096 direct", Ok(4096));
    disk.take_results();
    assert_eq!(manual.under_way(), ["sync 0", "write 8192 direct"]);
    manual.end("write 8192 direct", Ok(4096));
    disk.take_results();
    assert_eq!(manual.under_way(), ["sync 0", "write 9"]);
    manual.end("write 9", Ok(3));
    disk.take_results();
    assert_eq!(manual.under_way(), ["sync 0", "write 12288 direct"]);
    manual.end("sync 0", Ok(0));
    disk.take_results();
    assert_eq!(disk.start(write(6, 0, 16384, "small")), None, "a direct write is under way");
}

#[test]
fn an_ordered_disk_does_one_thing_after_another() {
    let dir = tempfile::tempdir().unwrap();
    let manual = Arc::new(Manual::default());
    let mut disk = ordered(files(&dir, 2), manual.clone());
    for operation in [synced(1, 0, 0, "a"), write(2, 0, 5, "b"), sync(3, 1), write(4, 1, 0, "c")] {
        assert_eq!(disk.start_operation(operation), None);
    }
    disk.submit();
    for (step, results) in [
        ("write 0", done([])),
        ("sync 0", done([1])),
        ("write 5", done([2])),
        ("sync 0", done([3])),
    ] {
        assert_eq!(manual.under_way(), [step]);
        manual.end(step, Ok(1));
        assert_eq!(disk.take_results(), results);
    }
    assert_eq!(manual.under_way(), ["write 0"]);
}

async fn a_journal_has_a_part_of_a_device(backend: Arc<dyn Backend>) {
    let dir = tempfile::tempdir().unwrap();
    let device = &files(&dir, 1)[0];
    let open = || std::fs::OpenOptions::new().read(true).write(true).open(path(&dir, 0)).unwrap();
    let part = |number: u64| FileArea::part(open(), (2 + number) << 16, 1 << 16);
    let parts = vec![part(0), part(1)];
    let mut disk = JournalDisk::start(parts, "journal".into(), None).on(backend);
    let page = |byte| vec![byte; 4096];
    let operations = [write(1, 0, 0, page(1)), synced(2, 1, 8192, page(2)), sync(3, 0)];
    let mut results = carry_out(&mut disk, operations).await;
    results.sort_by_key(id_of);
    assert_eq!(results, done([1, 2, 3]));
    let read = carry_out(&mut disk, [read(4, 1, 8192, 4096)]).await;
    assert_eq!(read, [DiskResult::Data { id: 4, data: page(2).into() }]);
    drop(disk);
    let mut expected = vec![0; MIB];
    expected[2 << 16..][..4096].fill(1);
    expected[(3 << 16) + 8192..][..4096].fill(2);
    let mut found = vec![0; MIB];
    device.read_exact_at(&mut found, 0).unwrap();
    assert!(found == expected);
}

// --- zeroes ---

#[tokio::test]
async fn zeroing_stays_out_of_what_was_reached() {
    let dir = tempfile::tempdir().unwrap();
    let all = files(&dir, 4);
    for file in &all {
        file.write_all_at(&[7; MIB], 0).unwrap();
    }
    let (told, heard) = std::sync::mpsc::channel();
    let done_to = Box::new(move |files| told.send(files).unwrap());
    let zero = Zero { from: 1, done: done_to };
    let mut disk = JournalDisk::start(areas(all), "journal".into(), Some(zero));
    let results = carry_out(&mut disk, [write(0, 0, 4096, vec![7; 4096])]).await;
    assert_eq!(results, done([0]));
    assert!(disk.zeroing_is_idle(), "an attach writes that much");
    // From now on the thread is at the first of its files, or before it.
    let results = carry_out(&mut disk, [write(1, 1, MIB as u64 - 4096, vec![1; 4096])]).await;
    assert_eq!(results, done([1]));
    // A file that the writer has taken over is dealt with.
    let finished: Vec<u32> =
        (0..3).map(|_| heard.recv_timeout(Duration::from_secs(10)).unwrap()).collect();
    assert_eq!(finished, [2, 3, 4]);
    drop(disk);
    assert!(content(&dir, 0).iter().all(|byte| *byte == 7), "it is not fresh");
    assert!(content(&dir, 1)[MIB - 4096..].iter().all(|byte| *byte == 1));
    for number in 2..4 {
        let all = content(&dir, number);
        assert!(all[..4096].iter().all(|byte| *byte == 7), "the header stays");
        assert!(all[4096..].iter().all(|byte| *byte == 0));
    }
}

#[tokio::test]
async fn a_disk_that_is_dropped_ends_the_zeroing() {
    let dir = tempfile::tempdir().unwrap();
    let all = files(&dir, 2);
    // Half a second of zeroes.
    all[1].set_len(128 << 20).unwrap();
    let zero = Zero { from: 1, done: Box::new(|_| panic!("it cannot be through")) };
    let mut disk = JournalDisk::start(areas(all), "journal".into(), Some(zero));
    for at in 0..4 {
        // Not in the page cache of the header, and perhaps held up by the thread.
        disk.start_operation(synced(at, 1, 4096 + at * 4096, vec![1; 4096]));
    }
    drop(disk);
    let all = content(&dir, 1);
    assert!(all[4096..20480].iter().all(|byte| *byte == 1));
}
