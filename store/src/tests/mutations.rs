//! Every kind of object and state file of a store, damaged in every way. The tests start a store on
//! it, and run `longhaul check`.
//!
//! They make one installation with something of everything. For each mutation they copy it and
//! change one file of the copy. They start a store on it, and read all blocks of two volumes of two
//! tenants. After any change,
//!
//! - each block has its written content or is an error;
//! - the store serves all of the other tenant's volume. Or it does not start at all, which only
//!   files of the whole installation may cause;
//! - all of it ends within a bounded time;
//! - the check names everything that the store does not serve as before.
//!
//! The outcomes are the table of `docs/damage.md`. `LONGHAUL_WRITE_DAMAGE=1` writes it anew.

use super::*;
use longhaul_core::block::BLOCK_SECTORS;
use longhaul_core::pack::{Compression, Packer, Packing};
use longhaul_core::wire::link::{
    ReadError, ReadPart, SnapshotOperation, SnapshotReply, TenantLimits, TenantOperation,
    decode_data,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const VICTIM: &str = "acme/victim";
const CANARY: &str = "umbra/canary";
const BLOCKS: u64 = 48;
/// A store has to answer all requests within this time.
const LIMIT: Duration = Duration::from_secs(60);
/// How long to wait here for a missing object.
const MISSING: Duration = Duration::from_millis(300);
/// Stores at a time.
const THREADS: usize = 3;

/// The number that fills each block; 0 for unwritten ones.
type Image = BTreeMap<u64, u8>;

/// Something to damage.
struct Target {
    /// For the table.
    kind: &'static str,
    /// The file, from the directory of the store.
    path: PathBuf,
    /// The same of another volume, if there is one.
    other: Option<PathBuf>,
    /// The same of another number, or an older one.
    sibling: Option<PathBuf>,
    /// Whether it is the whole installation's, without which a store may refuse to start.
    shared: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mutation {
    Flip,
    FlipEnd,
    Truncate,
    Empty,
    Garbage,
    Remove,
    Directory,
    Pipe,
    OtherVolume,
    OtherNumber,
}

impl Mutation {
    const ALL: [Mutation; 10] = [
        Mutation::Flip,
        Mutation::FlipEnd,
        Mutation::Truncate,
        Mutation::Empty,
        Mutation::Garbage,
        Mutation::Remove,
        Mutation::Directory,
        Mutation::Pipe,
        Mutation::OtherVolume,
        Mutation::OtherNumber,
    ];

    fn name(self) -> &'static str {
        match self {
            Mutation::Flip => "bit flipped",
            Mutation::FlipEnd => "bit flipped at the end",
            Mutation::Truncate => "cut to half",
            Mutation::Empty => "emptied",
            Mutation::Garbage => "garbage",
            Mutation::Remove => "removed",
            Mutation::Directory => "a directory",
            Mutation::Pipe => "a pipe",
            Mutation::OtherVolume => "another volume's",
            Mutation::OtherNumber => "another number's",
        }
    }

    /// Changes a file in `dir`; `false` if there is nothing to do it with.
    fn apply(self, dir: &Path, target: &Target) -> bool {
        let path = dir.join(&target.path);
        let content = std::fs::read(&path).unwrap();
        let flipped = |at: usize| {
            let mut bytes = content.clone();
            bytes[at] ^= 4;
            bytes
        };
        let from =
            |other: &Option<PathBuf>| Some(std::fs::read(dir.join(other.as_ref()?)).unwrap());
        let new = match self {
            Mutation::Flip | Mutation::FlipEnd | Mutation::Truncate if content.is_empty() => None,
            Mutation::Flip => Some(flipped(content.len() / 4)),
            Mutation::FlipEnd => Some(flipped(content.len() - 1 - content.len() / 16)),
            Mutation::Truncate => Some(content[..content.len() / 2].to_vec()),
            Mutation::Empty => Some(Vec::new()),
            Mutation::Garbage => {
                let mut noise = 0x5851_f42d_4c95_7f2d_u64;
                let byte = |_| {
                    noise = noise.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    (noise >> 56) as u8
                };
                Some((0..content.len().max(64)).map(byte).collect())
            }
            Mutation::Remove | Mutation::Directory | Mutation::Pipe => Some(Vec::new()),
            Mutation::OtherVolume => from(&target.other),
            Mutation::OtherNumber => from(&target.sibling),
        };
        let Some(new) = new.filter(|new| *new != content || new.is_empty()) else { return false };
        // A new file: the copies share what they do not change.
        std::fs::remove_file(&path).unwrap();
        match self {
            Mutation::Remove => {}
            Mutation::Directory => std::fs::create_dir(&path).unwrap(),
            Mutation::Pipe => {
                let mode = rustix::fs::Mode::from_raw_mode(0o600);
                rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
            }
            _ => std::fs::write(&path, new).unwrap(),
        }
        true
    }
}

/// The state of a volume after a mutation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Served {
    /// All blocks were right.
    Right,
    /// Some were errors, the others right.
    Errors,
    /// It was unusable, and a message said why.
    Refused,
    /// The volume does not exist.
    Gone,
    /// The store did not start, and said why; or nobody could connect.
    NoStore,
}

impl Served {
    fn name(self) -> &'static str {
        match self {
            Served::Right => "right",
            Served::Errors => "errors",
            Served::Refused => "refused",
            Served::Gone => "gone",
            Served::NoStore => "no start",
        }
    }
}

fn fill(number: u8) -> Vec<u8> {
    // Neither zero nor compressible to nothing.
    (0..4096_u32).map(|at| number.wrapping_add((at / 7) as u8) | 1).collect()
}

async fn attach_as(requests: &Requests, name: &str) -> Result<Attached, AttachError> {
    let name = name.to_owned();
    let attach = |request| ToStore::Attach {
        request,
        name,
        host: HostId(7),
        journal: None,
        take_over: false,
    };
    let reply = requests.call(Lane::Control, attach).await.unwrap();
    let ToHost::Attached { result, .. } = reply.message else { panic!() };
    result
}

/// Writes blocks as a batch of one segment.
async fn write(
    requests: &Requests,
    at: &Attached,
    seq: &mut u64,
    blocks: &[u64],
    image: &mut Image,
) {
    let (mut payload, first) = (BytesMut::new(), *seq + 1);
    for (place, block) in blocks.iter().enumerate() {
        *seq += 1;
        let (range, number) = (Range::new(block * BLOCK_SECTORS, BLOCK_SECTORS), *seq as u8);
        if place % 3 == 2 {
            let packing = Packing { compression: Compression::Lz4, keys: None };
            let mut packer = Packer::new(at.volume, packing);
            packer.pack(at.epoch, *seq, range, &fill(number), &mut payload);
        } else {
            record::encode_data(at.volume, at.epoch, *seq, range, &fill(number), &mut payload);
        }
        image.insert(*block, number);
    }
    let message = ToStore::Batch { volume: at.volume, epoch: at.epoch, first, last: *seq };
    requests.send(Lane::Drain, Frame { message, payload: payload.freeze() });
    loop {
        match requests.notice().await.unwrap() {
            ToHost::Committed { seq: committed, .. } if committed == *seq => return,
            ToHost::BatchRefused { reason, .. } => panic!("{reason}"),
            _ => {}
        }
    }
}

async fn detach(requests: &Requests, at: &Attached) {
    let (volume, epoch) = (at.volume, at.epoch);
    requests
        .call(Lane::Control, |request| ToStore::Detach { request, volume, epoch })
        .await
        .unwrap();
}

async fn snapshot(
    requests: &Requests,
    volume: &str,
    operation: SnapshotOperation,
) -> SnapshotReply {
    let operation = VolumeOperation::Snapshot { name: volume.into(), operation };
    let VolumeReply::Snapshot(reply) = requests.volume(operation).await.unwrap() else { panic!() };
    reply
}

/// Makes an installation with something of everything; returns what the volumes hold.
async fn build(dir: &Path) -> BTreeMap<&'static str, Image> {
    let mut images: BTreeMap<&'static str, Image> = BTreeMap::new();
    for round in 0..2_u64 {
        let store = start(dir).await;
        let requests = store.requests().await;
        for (tenant, name) in [("acme", VICTIM), ("umbra", CANARY)] {
            if round == 0 {
                let (tenant, limits) = (tenant.to_owned(), TenantLimits::default());
                let create = TenantOperation::Create { tenant: tenant.clone(), limits };
                requests.tenant(create).await.unwrap();
                let limits = TenantLimits { max_volumes: Some(9), ..TenantLimits::default() };
                requests.tenant(TenantOperation::Set { tenant, limits }).await.unwrap();
                store.volume(&["create", name, "--size", "256KiB"]).await.unwrap();
            }
            let image = images.entry(name).or_default();
            let at = attach_as(&requests, name).await.unwrap();
            let mut seq = at.committed;
            let from = round * 5;
            let blocks: Vec<u64> = (from..from + 12).collect();
            write(&requests, &at, &mut seq, &blocks, image).await;
            let blocks: Vec<u64> = (from + 20..from + 32).collect();
            write(&requests, &at, &mut seq, &blocks, image).await;
            // A copy within the store, as a host makes it.
            let object = STAGED_BIT | (seq + 1);
            let (volume, epoch, range) = (at.volume, at.epoch, Range::new(20 * 8, 8));
            let stage = |request| ToStore::Stage {
                request,
                volume,
                epoch,
                range,
                into: volume,
                lba: (44 + round) * 8,
                object,
            };
            let reply = requests.call(Lane::ReadAhead, stage).await.unwrap().message;
            let ToHost::Staged { result: Ok(_), .. } = reply else { panic!("{reply:?}") };
            seq += 1;
            let range = Range::new((44 + round) * 8, 8);
            let mut payload = BytesMut::new();
            let data = StagedData { object, offset: 0, record: range };
            record::encode_staged(volume, epoch, seq, range, data, &mut payload);
            let message = ToStore::Batch { volume, epoch, first: seq, last: seq };
            requests.send(Lane::Drain, Frame { message, payload: payload.freeze() });
            while !matches!(requests.notice().await.unwrap(), ToHost::Committed { seq: s, .. } if s == seq)
            {
            }
            let copied = image[&20];
            image.insert(44 + round, copied);
            for (attribute, data) in [("reservations", "one"), ("versions", "two")] {
                let operation = VolumeOperation::SetAttribute {
                    volume,
                    epoch,
                    attribute: attribute.into(),
                    data: data.into(),
                    replaces: None,
                };
                requests.call_volume(operation).await.unwrap().unwrap();
            }
            let create = SnapshotOperation::Create {
                snapshot: format!("s{round}"),
                id: VolumeId(volume.0 ^ (1 + u128::from(round))),
                created: 0,
                barrier: false,
            };
            snapshot(&requests, name, create).await;
            let blocks: Vec<u64> = (from + 8..from + 12).collect();
            write(&requests, &at, &mut seq, &blocks, image).await;
            detach(&requests, &at).await;
            let sectors = (BLOCKS + 16 * (round + 1)) * BLOCK_SECTORS + 128;
            requests.volume(VolumeOperation::Resize { name: name.into(), sectors }).await.unwrap();
            // A volume after a look-up of its place.
            let mut reader = BTreeMap::new();
            let by_snapshot = attach_as(&requests, &format!("{name}@s{round}")).await.unwrap();
            read_all(&requests, &by_snapshot, 1, &mut reader).await;
            if round == 1 {
                let snapshot_of = SnapshotOperation::Delete { snapshot: "s0".into() };
                snapshot(&requests, name, snapshot_of).await;
            }
        }
        if round == 0 {
            store.volume(&["create", "gone", "--size", "1MiB"]).await.unwrap();
            store.volume(&["delete", "gone"]).await.unwrap();
        }
        requests.close().await;
        store.stop().await;
    }
    // The record of a location that once had a replica.
    let base = longhaul_objects::LocalObjects::open(dir).unwrap();
    let site = crate::location::LocationRecord::first();
    crate::location::write(&base, site).await.unwrap();
    images
}

/// The content of the first blocks, an error or what it is.
async fn read_all(
    requests: &Requests,
    at: &Attached,
    blocks: u64,
    found: &mut BTreeMap<u64, Result<Vec<u8>, ReadError>>,
) {
    for block in 0..blocks {
        let range = Range::new(block * BLOCK_SECTORS, BLOCK_SECTORS);
        let (volume, epoch) = (at.volume, at.epoch);
        let read = |request| ToStore::Read { request, volume, epoch, range };
        let reply = tokio::time::timeout(LIMIT, requests.call(Lane::Read, read)).await;
        let reply = reply.expect("a read hangs").unwrap();
        let ToHost::Data { result, .. } = reply.message else { panic!() };
        let content = result.map(|pieces| {
            let mut content = Vec::new();
            for part in decode_data(range, &pieces, reply.payload.clone()).unwrap() {
                match part {
                    ReadPart::Hole(sectors) | ReadPart::Zero(sectors) => {
                        content.resize(content.len() + sectors as usize * 512, 0);
                    }
                    ReadPart::Data { wanted, fragment } => {
                        fragment.verify().unwrap();
                        content.extend_from_slice(&fragment.sectors(wanted));
                    }
                    ReadPart::Packed { wanted, record } => {
                        let mut packer = Packer::new(volume, Packing::default());
                        content.extend_from_slice(&packer.unpack(&record, wanted).unwrap());
                    }
                }
            }
            content
        });
        found.insert(block, content);
    }
}

/// The state in which the store serves a volume.
async fn served(requests: &Requests, name: &str, image: &Image) -> (Served, String) {
    let attached = tokio::time::timeout(LIMIT, attach_as(requests, name)).await;
    let at = match attached.unwrap_or_else(|_| panic!("attaching {name} hangs")) {
        Ok(at) => at,
        Err(AttachError::NotFound) => return (Served::Gone, String::new()),
        Err(error) => return (Served::Refused, error.to_string()),
    };
    let mut found = BTreeMap::new();
    read_all(requests, &at, BLOCKS, &mut found).await;
    let mut errors = 0;
    for (block, content) in found {
        let number = image.get(&block);
        let expected = number.map_or_else(|| vec![0; 4096], |number| fill(*number));
        match content {
            Ok(content) => assert!(content == expected, "{name}: block {block} is WRONG"),
            Err(ReadError::Medium(_)) => errors += 1,
            Err(error) => panic!("{name}: block {block}: {error}"),
        }
    }
    (if errors > 0 { Served::Errors } else { Served::Right }, format!("{errors} blocks"))
}

/// Starts a store on a directory and looks at both volumes.
async fn serve(dir: &Path, images: &BTreeMap<&'static str, Image>) -> (Served, Served, String) {
    let options = Options {
        data: &Location::Directory(dir.into()),
        state: dir,
        listen: "127.0.0.1:0".parse().unwrap(),
        advertise: None,
        cache_bytes: 0,
        cache_dir: None,
        map_memory: MAP_MEMORY,
        collect: None,
        delete_delay: Duration::from_secs(600),
        new_ca: false,
        scrub: Default::default(),
        delete_grace: Duration::from_secs(3600),
    };
    let started = tokio::time::timeout(LIMIT, Store::start(&options)).await;
    let mut store = match started.expect("the start hangs") {
        Ok(store) => store,
        Err(error) => return (Served::NoStore, Served::NoStore, format!("{error:#}")),
    };
    store.actor.config().missing_wait = MISSING;
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async {
        let _ = stopped.await;
    };
    let address = store.address().to_string();
    let running = store.run(stopped, tokio::time::sleep(Duration::from_secs(5)));
    let look = async {
        // The credential from before the damage.
        let credential = Credential::load(&dir.join("admin.toml")).unwrap();
        let connect = Requests::connect(&credential, Some(&address));
        let requests = tokio::time::timeout(LIMIT, connect).await.expect("a connect hangs");
        let found = match requests {
            Ok(requests) => {
                let (canary, of_canary) = served(&requests, CANARY, &images[CANARY]).await;
                let (victim, said) = served(&requests, VICTIM, &images[VICTIM]).await;
                let said = if canary == Served::Right { said } else { of_canary };
                requests.close().await;
                (victim, canary, said)
            }
            Err(error) => (Served::NoStore, Served::NoStore, format!("{error:#}")),
        };
        let _ = stop.send(());
        found
    };
    let both = Box::pin(async { tokio::join!(running, look) });
    let (ended, found) = tokio::time::timeout(3 * LIMIT, both).await.expect("the store hangs");
    ended.unwrap();
    found
}

/// Copies a directory. The files are links to the same content, so tests may only replace them.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else if entry.path().extension().is_some_and(|name| name == "jsonl")
            || entry.file_name().to_string_lossy().ends_with("lock")
        {
            // Written in place.
            std::fs::copy(entry.path(), target).unwrap();
        } else {
            std::fs::hard_link(entry.path(), target).unwrap();
        }
    }
}

fn files(dir: &Path, below: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.join(below)];
    while let Some(next) = dirs.pop() {
        let Ok(entries) = std::fs::read_dir(&next) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                found.push(path.strip_prefix(dir).unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

/// One file of each kind, of the victim where it is a volume's.
fn targets(dir: &Path, victim: VolumeId, canary: VolumeId) -> Vec<Target> {
    let mut targets = Vec::new();
    let mut add = |kind, path: PathBuf, other, sibling, shared| {
        targets.push(Target { kind, path, other, sibling, shared });
    };
    let kind_of = |path: &Path| segment_kind(&std::fs::read(dir.join(path)).unwrap());
    let of = |volume: VolumeId, kind: &str| files(dir, &format!("objects/v/{volume}/{kind}"));
    let (mine, theirs) = (of(victim, "seg"), of(canary, "seg"));
    let mut seen = BTreeSet::new();
    for path in &mine {
        let kind = kind_of(path);
        if seen.insert(kind) {
            let same = |other: &&PathBuf| kind_of(other) == kind;
            let other = theirs.iter().find(|other| other.file_name() == path.file_name());
            let sibling = mine.iter().filter(|other| *other != path).find(same);
            let sibling = sibling.or_else(|| mine.iter().find(|other| *other != path));
            add(kind, path.clone(), other.cloned(), sibling.cloned(), false);
        }
    }
    let last = mine.last().unwrap();
    let sibling = mine.iter().rev().nth(2);
    add("last segment", last.clone(), theirs.last().cloned(), sibling.cloned(), false);
    for (kind, below) in [
        ("fragment of the map", "frag"),
        ("newest root", "root"),
        ("root of a snapshot", "snap"),
        ("staged object", "staged"),
        ("owner of the map", "owner"),
        ("note of the size", "size"),
        ("attribute", "attr"),
        ("lease", "lease"),
    ] {
        let (mine, theirs) = (of(victim, below), of(canary, below));
        let Some(path) = mine.last() else { panic!("there is no {kind}") };
        let sibling = mine.iter().rev().nth(1).cloned();
        add(kind, path.clone(), theirs.last().cloned(), sibling, false);
    }
    let object = |key: &str| Path::new("objects").join(key);
    let name = object("volumes/_acme/victim");
    add("description of a volume", name, Some(object("volumes/_umbra/canary")), None, false);
    for (kind, below, shared) in [
        ("tenant", "tenants/acme", false),
        ("deleted volume", "deleted", false),
        ("place of a snapshot", "snapshots", false),
        ("store in the registry", "stores", false),
        ("accepted certificates", "accepted", true),
        ("purpose of the location", "site", true),
    ] {
        let mine = files(dir, &format!("objects/{below}"));
        let Some(path) = mine.last() else { panic!("there is no {kind}") };
        let other = (below == "tenants/acme")
            .then(|| files(dir, "objects/tenants/umbra").last().cloned())
            .flatten();
        add(kind, path.clone(), other, mine.iter().rev().nth(1).cloned(), shared);
    }
    for (kind, name) in [
        ("mark of the data directory", STORE_FILE),
        ("identity of the store", "store.json"),
        ("audit log", "audit.jsonl"),
        ("lock", "lock"),
        ("CA", "credentials/ca.pem"),
        ("certificate of the store", "credentials/store.pem"),
        ("lock of the certificates", "credentials/lock"),
        ("issued certificates", "credentials/issued.json"),
        ("first credential", "credentials/admin.toml"),
    ] {
        assert!(dir.join(name).exists(), "there is no {kind}");
        add(kind, name.into(), None, None, true);
    }
    targets
}

fn segment_kind(object: &[u8]) -> &'static str {
    use longhaul_core::store::segment::{SegmentKind, parse_header};
    match parse_header(object).unwrap().0.kind {
        SegmentKind::Data => "segment with data",
        SegmentKind::Attach => "segment of an attach",
        SegmentKind::Detach => "segment of a detach",
        SegmentKind::Resize => "segment that resizes",
        SegmentKind::Snapshot => "segment of a snapshot",
        SegmentKind::DeleteSnapshot => "segment that deletes a snapshot",
        other => panic!("{other:?}"),
    }
}

/// A line of the table.
struct Outcome {
    kind: &'static str,
    mutation: Mutation,
    served: Served,
    named: bool,
    /// The outcome depends on the bit, and these files differ in each run.
    by_bit: bool,
}

/// Changes of the service that the check does not name, and why it cannot.
const UNSEEN: [(&str, &str); 4] = [
    // It parses, and its signature does not hold.
    ("CA", "bit flipped"),
    ("CA", "bit flipped at the end"),
    ("certificate of the store", "bit flipped"),
    ("certificate of the store", "bit flipped at the end"),
];

/// Does one mutation in a copy of `original`.
fn mutate(
    original: &Path,
    copied: &Path,
    images: &BTreeMap<&'static str, Image>,
    target: &Target,
    mutation: Mutation,
) -> Option<Result<Outcome, String>> {
    copy(original, copied);
    if !mutation.apply(copied, target) {
        return None;
    }
    let what = format!("{}, {}", target.kind, mutation.name());
    let (done, report) = std::sync::mpsc::channel();
    let checked = copied.to_owned();
    std::thread::spawn(move || done.send(longhaul::check::damage_in(&checked)));
    let Ok(report) = report.recv_timeout(LIMIT) else {
        return Some(Err(format!("{what}: the check hangs")));
    };
    let file = copied.join(&target.path);
    let named = match &report {
        // The check cannot always name the place of a missing file.
        Ok(damaged) if mutation == Mutation::Remove => !damaged.is_empty(),
        Ok(damaged) => damaged.contains(&file),
        Err(error) => format!("{error:#}").contains(&*target.path.file_name()?.to_string_lossy()),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let began = std::time::Instant::now();
    let (served, canary, said) = runtime.block_on(serve(copied, images));
    runtime.shutdown_timeout(Duration::from_secs(5));
    if began.elapsed() > LIMIT {
        return Some(Err(format!("{what}: it took {:?}", began.elapsed())));
    }
    let others = report.map_or_else(
        |error| vec![format!("{error:#}")],
        |damaged| damaged.iter().map(|path| path.display().to_string()).collect(),
    );
    let problem = if canary != Served::Right && !(target.shared && canary == Served::NoStore) {
        Some(format!("the other tenant's volume is {canary:?}"))
    } else if served != Served::Right && !named && !UNSEEN.contains(&(target.kind, mutation.name()))
    {
        Some(format!("the volume is {served:?}, and the check does not name the file"))
    } else {
        None
    };
    let flipped = matches!(mutation, Mutation::Flip | Mutation::FlipEnd);
    let by_bit = flipped && !target.path.starts_with("objects");
    let outcome = Outcome { kind: target.kind, mutation, served, named, by_bit };
    Some(problem.map_or(Ok(outcome), |problem| {
        Err(format!("{what}: {problem} ({said}; the check names {others:?})"))
    }))
}

#[test]
fn no_damage_gives_wrong_data_or_costs_another_tenant() {
    let place = tempfile::tempdir().unwrap();
    let original = place.path().join("original");
    std::fs::create_dir(&original).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let images = runtime.block_on(build(&original));
    runtime.shutdown_timeout(Duration::from_secs(5));
    std::fs::copy(original.join("credentials/admin.toml"), original.join("admin.toml")).unwrap();
    let damaged = longhaul::check::damage_in(&original).unwrap();
    assert!(damaged.is_empty(), "{damaged:?}");
    let id = |name: &str| {
        let text = std::fs::read_to_string(original.join("objects/volumes").join(name)).unwrap();
        let json = text.lines().next().unwrap();
        let value: serde_json::Value = serde_json::from_str(json).unwrap();
        let id = value["id"].as_str().unwrap();
        VolumeId(u128::from_str_radix(id, 16).unwrap())
    };
    let targets = targets(&original, id("_acme/victim"), id("_umbra/canary"));
    let work: Vec<_> = targets
        .iter()
        .flat_map(|target| Mutation::ALL.map(|mutation| (target, mutation)))
        .collect();
    let next = AtomicUsize::new(0);
    let results = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some((target, mutation)) = work.get(number) else { return };
                    let copied = place.path().join(number.to_string());
                    let doing = || mutate(&original, &copied, &images, target, *mutation);
                    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(doing));
                    let done = done.unwrap_or_else(|panic| {
                        let said = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                        Some(Err(format!("{}, {}: {said}", target.kind, mutation.name())))
                    });
                    let _ = std::fs::remove_dir_all(&copied);
                    if let Some(done) = done {
                        results.lock().unwrap().insert(number, done);
                    }
                }
            });
        }
    });
    let results = results.into_inner().unwrap();
    assert!(results.len() >= 80, "only {} mutations", results.len());
    let (mut outcomes, mut problems) = (Vec::new(), Vec::new());
    for result in results.into_values() {
        match result {
            Ok(outcome) => outcomes.push(outcome),
            Err(problem) => problems.push(problem),
        }
    }
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
    compare(&table(&outcomes));
}

/// A line for each kind of file, a column for each mutation.
fn table(outcomes: &[Outcome]) -> String {
    let names = Mutation::ALL.map(Mutation::name).join(" | ");
    let mut out = format!("| what | {names} |\n|{}\n", "---|".repeat(1 + Mutation::ALL.len()));
    let mut kinds: Vec<&str> = outcomes.iter().map(|outcome| outcome.kind).collect();
    kinds.dedup();
    for kind in kinds {
        write!(out, "| {kind} |").unwrap();
        for mutation in Mutation::ALL {
            let of = |outcome: &&Outcome| outcome.kind == kind && outcome.mutation == mutation;
            let cell = match outcomes.iter().find(of) {
                None => "–".to_owned(),
                Some(Outcome { by_bit: true, .. }) => "by bit".to_owned(),
                Some(Outcome { served, named, .. }) => {
                    format!("{}{}", served.name(), if *named { "" } else { " (unnamed)" })
                }
            };
            write!(out, " {cell} |").unwrap();
        }
        out.push('\n');
    }
    out
}

/// The table between the two marks of the document.
fn compare(table: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/damage.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- outcomes: begin -->\n", "<!-- outcomes: end -->");
    let (before, rest) = text.split_once(begin).expect("the mark before the table");
    let (there, after) = rest.split_once(end).expect("the mark after the table");
    if std::env::var_os("LONGHAUL_WRITE_DAMAGE").is_some() {
        std::fs::write(&path, format!("{before}{begin}{table}{end}{after}")).unwrap();
        return;
    }
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let (new, old) = (lines(table), lines(there));
    let more: Vec<_> = new.difference(&old).collect();
    let less: Vec<_> = old.difference(&new).collect();
    assert!(
        there == table,
        "docs/damage.md is not up to date (LONGHAUL_WRITE_DAMAGE=1 writes it): it lacks {more:#?} \
         and has {less:#?}"
    );
}
