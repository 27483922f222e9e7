//! The plan that a seed makes for a world: how many hosts and volumes, how fast and how bad
//! everything is.

use crate::link::Quality;
use crate::objects::Odds;
use crate::rng::Rng;
use longhaul_core::pack::Compression;

const MS: u64 = 1_000_000;

/// How a volume acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acknowledge {
    /// Journal; a flush is durable at the host.
    Host,
    /// Journal; a flush is durable at the store.
    Store,
    /// No journal.
    WriteThrough,
}

/// The read caches of a volume.
#[derive(Clone, Copy, Debug)]
pub struct CachePlan {
    /// Sets, 0 for no cache, and slots of each.
    pub sets: u32,
    /// Slots of a set.
    pub ways: u16,
    /// How long a change of the index may stay out of the file, in nanoseconds.
    pub interval: u64,
    /// Most bytes on their way to the file.
    pub writing_bytes: u64,
    /// Disk faults.
    pub odds: DiskOdds,
    /// Odds in percent of strange moves of the cache. It moves although only the journal should, it
    /// stays although the journal moves, or an old copy of it comes back.
    pub strange: u64,
}

impl CachePlan {
    fn new(rng: &mut Rng) -> CachePlan {
        let on = rng.percent(80);
        let faults = rng.percent(40);
        let ppm = |rng: &mut Rng, high: u64| if faults { rng.spread(500, high) } else { 0 };
        CachePlan {
            sets: if on { rng.between(1, 6) as u32 } else { 0 },
            ways: rng.between(1, 6) as u16,
            interval: rng.spread(2 * MS, 500 * MS),
            writing_bytes: rng.fork(1).spread(4 << 10, 4 << 20),
            odds: DiskOdds {
                write: ppm(rng, 2000),
                sync: ppm(rng, 4000),
                misdirect: ppm(rng, 50_000),
                flip: ppm(rng, 50_000),
            },
            strange: rng.between(0, 50),
        }
    }
}

/// A volume.
#[derive(Clone, Copy, Debug)]
pub struct VolumePlan {
    /// Its read caches.
    pub cache: CachePlan,
    /// Size in sectors at its creation.
    pub sectors: u64,
    /// Size in sectors that it never grows beyond.
    pub most_sectors: u64,
    /// Logical block in sectors.
    pub block: u64,
    /// How it acknowledges.
    pub acknowledge: Acknowledge,
    /// Whether it goes on after its journal's disk failed.
    pub continues: bool,
    /// Size of a journal file.
    pub file_bytes: u64,
    /// Journal files.
    pub files: u32,
    /// Memory for writes.
    pub memory_bytes: u64,
    /// Size of a batch.
    pub batch_bytes: u64,
    /// How long writes wait for company, and for a sync, in nanoseconds.
    pub linger: u64,
    /// Entries of the dirty map.
    pub map_entries: u64,
    /// Most requests a client has open.
    pub depth: u64,
    /// Longest pause of a client between two requests, in nanoseconds.
    pub think: u64,
    /// Longest request in sectors.
    pub longest: u64,
    /// Weights of read, write, FUA write, flush, discard, zero, status, prefetch, stage, and write
    /// of a staged range.
    pub mix: [u64; 10],
    /// Odds that a read goes on from the one before, in percent.
    pub walk: u64,
    /// Memory for read-ahead.
    pub readahead_bytes: u64,
    /// Limits of drain and read-ahead, in bytes a second.
    pub limits: (Option<u64>, Option<u64>),
    /// The compression of its hosts.
    pub compression: Compression,
    /// Whether it is encrypted.
    pub encrypted: bool,
    /// Longest packed record, in sectors.
    pub packed_sectors: u64,
}

impl VolumePlan {
    /// Whether data becomes packed records.
    #[must_use]
    pub fn packs(&self) -> bool {
        self.encrypted || self.compression != Compression::None
    }
}

/// Odds of disk faults, in parts per million of operations.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskOdds {
    /// A write fails.
    pub write: u64,
    /// A sync fails.
    pub sync: u64,
    /// A write lands elsewhere.
    pub misdirect: u64,
    /// A bit flips under a read.
    pub flip: u64,
}

/// A replica of all objects.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaPlan {
    /// A commit waits until the replica has it.
    pub sync: bool,
    /// Its latency in nanoseconds.
    pub latency: u64,
    /// Operations of a volume to remember.
    pub entries: usize,
}

/// Weights of what chaos does next; see `world/chaos.rs`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weights {
    /// A host process dies.
    pub crash: u64,
    /// A host's power is cut.
    pub power: u64,
    /// A host is stopped in order.
    pub shutdown: u64,
    /// A host is lost with its state.
    pub lose: u64,
    /// A host dies and its journal is carried to another.
    pub carry: u64,
    /// Another host attaches.
    pub compete: u64,
    /// A store process dies.
    pub store_crash: u64,
    /// A store is stopped in order.
    pub store_shutdown: u64,
    /// A link is cut.
    pub cut: u64,
    /// The object store goes away.
    pub outage: u64,
    /// A store leaves a volume to another one, or finds that another one has taken it.
    pub hand_over: u64,
}

/// A world.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Volumes.
    pub volumes: Vec<VolumePlan>,
    /// Hosts.
    pub hosts: usize,
    /// Length of the phase with faults, in nanoseconds.
    pub chaos: u64,
    /// Mean time between faults, in nanoseconds.
    pub calm: u64,
    /// What happens.
    pub weights: Weights,
    /// Links.
    pub quality: Quality,
    /// Object store faults.
    pub odds: Odds,
    /// Object store latency in nanoseconds.
    pub object_latency: u64,
    /// Size of a segment, and segments of a volume on their way at once.
    pub segments: (u64, usize),
    /// Disk faults.
    pub disk: DiskOdds,
    /// Time of a disk write in nanoseconds; a sync takes some times that.
    pub disk_latency: u64,
    /// Share of flushes with a trial recovery of a copy of the disk, in percent.
    pub shadow: u64,
    /// Odds that an observer makes a volume larger instead of asking something, in percent.
    pub resize: u64,
    /// Mean time between operations on snapshots, in nanoseconds; 0 for none.
    pub snapshots: u64,
    /// Odds that a reconnecting host goes to the other store, in percent.
    pub wander: u64,
    /// Whether stores lie to hosts about keyed volumes.
    pub liar: bool,
    /// Whether all objects have a replica.
    pub replica: Option<ReplicaPlan>,
    /// Mean time between attempts to speak for hosts with another key, in nanoseconds; 0 for none.
    pub forgery: u64,
    /// Whether keyed volumes go from a host that dies to another one and back.
    pub relays: bool,
}

impl Plan {
    /// The world of a seed.
    #[must_use]
    pub fn new(rng: &mut Rng) -> Plan {
        let volumes = 1 + rng.weighted(&[5, 2, 1]);
        let hosts = 1 + rng.weighted(&[2, 4, 2]);
        let disk_faults = rng.percent(35);
        let some = |rng: &mut Rng, odds: u64, value: u64| if rng.percent(odds) { value } else { 0 };
        let weights = Weights {
            crash: some(rng, 60, 3),
            power: some(rng, 60, 3),
            shutdown: some(rng, 40, 2),
            lose: some(rng, 35, 1),
            carry: some(rng, 30, 1),
            compete: some(rng, 40, 2),
            store_crash: some(rng, 60, 3),
            store_shutdown: some(rng, 40, 2),
            cut: some(rng, 75, 6),
            outage: some(rng, 50, 2),
            hand_over: some(&mut rng.fork(7), 50, 4),
        };
        let faulty_objects = rng.percent(60);
        let ppm = |rng: &mut Rng, on: bool, high: u64| if on { rng.spread(500, high) } else { 0 };
        let mut plan = Plan {
            volumes: (0..volumes).map(|_| VolumePlan::new(rng)).collect(),
            hosts,
            chaos: rng.between(1500, 5000) * MS,
            calm: rng.spread(40 * MS, 600 * MS),
            weights,
            quality: Quality { delay: rng.spread(100_000, 30 * MS), late: ppm(rng, true, 30_000) },
            odds: Odds {
                put_before: ppm(rng, faulty_objects, 100_000),
                put_after: ppm(rng, faulty_objects, 100_000),
                put_late: ppm(rng, faulty_objects, 60_000),
                put_exists_own: ppm(rng, faulty_objects, 60_000),
                get: ppm(rng, faulty_objects, 60_000),
                slow: ppm(rng, faulty_objects, 40_000),
            },
            object_latency: rng.spread(500_000, 40 * MS),
            segments: (96 << 10, 1),
            disk: DiskOdds {
                write: ppm(rng, disk_faults, 3000),
                sync: ppm(rng, disk_faults, 5000),
                misdirect: if disk_faults && rng.percent(40) { 1500 } else { 0 },
                flip: if disk_faults && rng.percent(40) { 4000 } else { 0 },
            },
            disk_latency: rng.spread(20_000, 2 * MS),
            shadow: 8,
            wander: rng.between(0, 40),
            resize: rng.between(0, 30),
            snapshots: 0,
            liar: false,
            replica: None,
            forgery: 0,
            relays: false,
        };
        for volume in &mut plan.volumes {
            volume.cache = CachePlan::new(rng);
            volume.draw_packing(rng);
        }
        if rng.percent(60) {
            plan.snapshots = rng.spread(10 * MS, 300 * MS);
        }
        let mut forger = rng.fork(9);
        if forger.percent(60) {
            plan.forgery = forger.spread(4 * MS, 200 * MS);
        }
        plan.liar = rng.fork(10).percent(40);
        plan.relays = rng.fork(11).percent(60);
        let mut segments = rng.fork(12);
        if segments.percent(80) {
            let (bytes, most) = (segments.spread(2 << 10, 64 << 10), segments.between(2, 16));
            plan.segments = (bytes, most as usize);
        }
        let mut rng = rng.fork(8);
        plan.replica = rng.percent(40).then(|| ReplicaPlan {
            sync: rng.percent(50),
            latency: rng.spread(500_000, 60 * MS),
            entries: rng.spread(3, 300) as usize,
        });
        plan
    }
}

impl VolumePlan {
    /// Draws the compression and encryption, for an otherwise complete plan.
    fn draw_packing(&mut self, rng: &mut Rng) {
        self.compression =
            [Compression::None, Compression::Lz4, Compression::Zstd(1)][rng.weighted(&[6, 2, 2])];
        self.encrypted = rng.percent(30);
        self.packed_sectors = rng.between(1, 8) * 8;
    }

    fn new(rng: &mut Rng) -> VolumePlan {
        let block = if rng.percent(50) { 8 } else { 1 };
        let sectors = rng.between(32, 128) * 8;
        VolumePlan {
            cache: CachePlan {
                sets: 0,
                ways: 1,
                interval: 0,
                writing_bytes: 0,
                odds: DiskOdds::default(),
                strange: 0,
            },
            sectors,
            most_sectors: sectors * 3 / 16 * 8,
            block,
            acknowledge: [Acknowledge::Host, Acknowledge::Store, Acknowledge::WriteThrough]
                [rng.weighted(&[6, 2, 2])],
            continues: rng.percent(60),
            file_bytes: rng.between(16, 64) * 4096,
            files: rng.between(2, 6) as u32,
            memory_bytes: rng.spread(64 << 10, 1 << 20),
            batch_bytes: rng.spread(32 << 10, 512 << 10),
            linger: rng.spread(MS, 200 * MS),
            map_entries: rng.spread(64, 4096),
            depth: rng.spread(1, 16),
            think: rng.spread(100_000, 20 * MS),
            longest: rng.spread(8, 96),
            mix: [
                rng.between(5, 40),
                rng.between(20, 60),
                rng.between(0, 8),
                rng.between(1, 10),
                rng.between(0, 8),
                rng.between(0, 8),
                rng.between(0, 4),
                rng.between(0, 4),
                rng.between(0, 12),
                rng.between(0, 20),
            ],
            compression: Compression::None,
            encrypted: false,
            packed_sectors: 8,
            walk: rng.between(0, 90),
            readahead_bytes: rng.spread(32 << 10, 512 << 10),
            limits: (
                rng.percent(30).then(|| rng.spread(128 << 10, 8 << 20)),
                rng.percent(30).then(|| rng.spread(64 << 10, 8 << 20)),
            ),
        }
    }
}
