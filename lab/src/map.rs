//! The store's paged map by itself: written at random, then looked up.
//!
//! The production code of the map over files in a directory, in one thread. It flushes and merges a
//! table of 64 segments to the end before the next one, which is the slowest order. A "cold" read
//! comes from the page cache of this machine. An object store adds its latency once for each round
//! of reads, and a cold lookup has two rounds.

use crate::process::status_bytes;
use crate::stats::quantile;
use crate::units;
use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use longhaul_core::block::{Range, SECTOR_BYTES, VolumeId};
use longhaul_core::record::Kind;
use longhaul_core::store::catalog::VolumeSpec;
use longhaul_core::store::gc::moved::Moved;
use longhaul_core::store::log::LogState;
use longhaul_core::store::map::fragment::{Fragment, FragmentId, Index};
use longhaul_core::store::map::levels::Levels;
use longhaul_core::store::map::lookup::{Answer, Lookup};
use longhaul_core::store::map::pages::Pages;
use longhaul_core::store::map::tree::{Event, Output};
use longhaul_core::store::map::{Get, Limits, Tree};
use longhaul_core::store::root;
use longhaul_core::store::segment::Piece;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const VOLUME: VolumeId = VolumeId(1);
const BLOCK_BYTES: u64 = 4096;
const BLOCK_SECTORS: u64 = BLOCK_BYTES / SECTOR_BYTES;
/// Header, checksum and payload of a record of one block.
const RECORD_BYTES: u64 = 48 + 4 + BLOCK_BYTES;
const SEGMENT_HEADER_BYTES: u64 = 128;
const RECORDS_PER_SEGMENT: u64 = (4 << 20) / RECORD_BYTES;
const SEGMENTS_PER_FLUSH: u64 = 64;
/// Lookups of each kind.
const LOOKUPS: usize = 20_000;
/// Blocks for repeated lookups.
const WORKING_SET: u64 = 1000;

/// What `bench-map` takes.
#[derive(clap::Args)]
pub struct MapArgs {
    /// Bytes written to the volume, in blocks of 4 KiB in random order, none of them twice. A TiB
    /// makes some 3.5 GB of map.
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, default_value = "128GiB")]
    written: u64,
    /// Size of the volume that they spread over [default: the written size].
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    size: Option<u64>,
    /// Memory for tables and pages.
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, default_value = "256MiB")]
    map_memory: u64,
    /// Size of a volume of many like this side by side, which the benchmark opens too.
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, default_value = "64TiB")]
    opened: u64,
    /// Directory on the disk for the map.
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    dir: PathBuf,
}

/// Runs it and prints what came out.
pub fn run(args: &MapArgs) -> Result<()> {
    let size = args.size.unwrap_or(args.written);
    if args.written < BLOCK_BYTES || size < args.written {
        bail!("the volume must be at least as large as what is written, which is at least 4KiB");
    }
    std::fs::create_dir_all(&args.dir)?;
    let dir = tempfile::tempdir_in(&args.dir)?;
    let mut bench = Bench {
        order: Order::new(size / BLOCK_BYTES),
        tree: Tree::new(Limits::default(), VOLUME, 1, Levels::default()),
        pages: Pages::new(args.map_memory),
        objects: Objects { dir: dir.path().to_owned(), gets: 0, read: 0, written: 0 },
        flushed: 0,
        merges: 0,
        peak: 0,
        slowest_step: Duration::ZERO,
    };
    let blocks = args.written / BLOCK_BYTES;
    bench.fill(blocks)?;
    bench.compression()?;
    bench.open(size, 1)?;
    if args.opened > size {
        bench.open(size, args.opened / size)?;
    }
    bench.lookups(blocks, args.map_memory)
}

fn row(name: &str, value: impl std::fmt::Display) {
    println!("{name:<52} {value}");
}

/// A permutation of block numbers that looks random: a Feistel network over the smallest even
/// number of bits, walked until it is back in range.
struct Order {
    blocks: u64,
    half: u32,
}

impl Order {
    fn new(blocks: u64) -> Order {
        let bits = u64::BITS - blocks.max(2).next_power_of_two().leading_zeros() - 1;
        Order { blocks, half: bits.div_ceil(2) }
    }

    fn block(&self, n: u64) -> u64 {
        let mask: u64 = (1 << self.half) - 1;
        let mut value = n;
        loop {
            let (mut left, mut right) = (value >> self.half, value & mask);
            for round in 1..5u64 {
                // Mixing as in SplitMix64 (Steele, Lea and Flood 2014).
                let mut mixed: u64 = right.wrapping_add(round.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
                (left, right) = (right, left ^ (mixed ^ mixed >> 31) & mask);
            }
            value = left << self.half | right;
            if value < self.blocks {
                return value;
            }
        }
    }
}

/// The maps of so many volumes like this one, of so many sectors, as one.
fn side_by_side(levels: &Levels, sectors: u64, times: u64) -> Result<Levels> {
    let numbers = 1 + levels.fragments().map(|fragment| fragment.id.number).max().unwrap_or(0);
    let many = |run: &Vec<Fragment>| {
        let copies = (0..times).flat_map(|copy| {
            run.iter().map(move |fragment| {
                let mut fragment = *fragment;
                fragment.id.number += copy * numbers;
                fragment.span.lba += copy * sectors;
                fragment
            })
        });
        copies.collect::<Vec<_>>()
    };
    let (runs, sorted) = (levels.runs(), levels.sorted());
    Ok(Levels::new(runs.iter().map(many).collect(), sorted.iter().map(many).collect())?)
}

/// Objects as files.
struct Objects {
    dir: PathBuf,
    gets: u64,
    read: u64,
    written: u64,
}

impl Objects {
    fn path(&self, id: FragmentId) -> PathBuf {
        self.dir.join(format!("{:016x}-{:016x}", id.generation, id.number))
    }

    fn put(&mut self, id: FragmentId, data: &[Bytes]) -> Result<()> {
        let data = data.concat();
        self.written += data.len() as u64;
        std::fs::write(self.path(id), data).context("cannot write a fragment")
    }

    fn get(&mut self, get: &Get) -> Result<Bytes> {
        let mut bytes = vec![0; (get.bytes.end - get.bytes.start) as usize];
        self.gets += 1;
        self.read += bytes.len() as u64;
        let file = File::open(self.path(get.fragment.id)).context("cannot open a fragment")?;
        file.read_exact_at(&mut bytes, get.bytes.start)?;
        Ok(bytes.into())
    }
}

struct Bench {
    order: Order,
    tree: Tree,
    pages: Pages,
    objects: Objects,
    flushed: u64,
    merges: u64,
    peak: u64,
    slowest_step: Duration,
}

/// How lookups went.
struct Times {
    micros: Vec<f64>,
    gets: f64,
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (p50, p99) = (quantile(&self.micros, 0.5), quantile(&self.micros, 0.99));
        write!(f, "p50 {p50:.1} us, p99 {p99:.1} us, {:.2} reads each", self.gets)
    }
}

impl Bench {
    /// Writes so many blocks.
    fn fill(&mut self, blocks: u64) -> Result<()> {
        let start = Instant::now();
        let mut segment: u64 = 0;
        for n in 0..blocks {
            let place = n % RECORDS_PER_SEGMENT;
            if place == 0 {
                if segment > 0 && segment.is_multiple_of(SEGMENTS_PER_FLUSH) {
                    self.flush(segment)?;
                }
                segment += 1;
            }
            let piece = Piece {
                kind: Kind::Data,
                range: Range::new(self.order.block(n) * BLOCK_SECTORS, BLOCK_SECTORS),
                seq: n + 1,
                offset: (SEGMENT_HEADER_BYTES + place * RECORD_BYTES) as u32,
                staged: None,
                packed_bytes: 0,
            };
            self.tree.apply(segment, &piece, &mut self.pages);
        }
        self.flush(segment)?;
        let seconds = start.elapsed().as_secs_f64();
        let levels = self.tree.levels();
        let bytes: u64 = levels.fragments().map(Fragment::bytes).sum();
        let entries: u64 = levels.fragments().map(|fragment| fragment.entries).sum();
        let written = blocks * BLOCK_BYTES;
        row("written to the volume, 4 KiB at random", units::show_bytes(written));
        row("entries in the map", entries);
        row(
            "bytes of the map",
            format!("{bytes}, {:.2} each entry", bytes as f64 / entries as f64),
        );
        row("fragments, levels", {
            let sizes = levels.sorted().iter().map(|level| level.len().to_string());
            let sizes: Vec<String> = sizes.collect();
            format!("{} + {}", levels.runs().len(), sizes.join(" + "))
        });
        row("written for each byte that was flushed", {
            let Objects { written: all, .. } = self.objects;
            let share = 100.0 * all as f64 / written as f64;
            format!("{:.1}, {share:.2} % of the data", all as f64 / self.flushed as f64)
        });
        row("merges", self.merges);
        row("time for each entry", format!("{:.2} us", seconds * 1e6 / blocks as f64));
        row("longest step", format!("{:.1} ms", self.slowest_step.as_secs_f64() * 1e3));
        row("tables and pages, at most", units::show_bytes(self.peak));
        row("memory of this process, at most", {
            units::show_bytes(status_bytes(std::process::id(), "VmHWM:")?)
        });
        Ok(())
    }

    fn flush(&mut self, through: u64) -> Result<()> {
        self.tree.freeze(through);
        loop {
            let start = Instant::now();
            let stepped = self.tree.step(&mut self.pages);
            self.slowest_step = self.slowest_step.max(start.elapsed());
            let mut more = stepped.map_err(|damage| anyhow::anyhow!("{damage:?}"))?;
            self.peak = self.peak.max(self.pages.bytes() + self.pages.tables());
            while let Some(output) = self.tree.poll() {
                more = true;
                match output {
                    Output::Put(fragment, data) => {
                        self.objects.put(fragment.id, &data)?;
                        self.tree.handle_written(fragment.id);
                    }
                    Output::Get(get) => {
                        let bytes = self.objects.get(&get)?;
                        let taken = self.tree.handle_read(&get, bytes);
                        taken.map_err(|damage| anyhow::anyhow!("{damage:?}"))?;
                    }
                }
            }
            while let Some(event) = self.tree.poll_event() {
                match event {
                    Event::Flushed { bytes, .. } => self.flushed += bytes,
                    Event::Merged { gone, bytes } => {
                        self.merges += u64::from(bytes > 0);
                        for fragment in gone {
                            std::fs::remove_file(self.objects.path(fragment.id))?;
                            self.pages.forget(fragment.id);
                        }
                    }
                    Event::RolledBack { .. } => unreachable!("nobody rolls back"),
                }
            }
            if !more {
                return Ok(());
            }
        }
    }

    /// Whether compressing pages would pay.
    fn compression(&mut self) -> Result<()> {
        let (mut before, mut after, mut took) = (0, 0, Duration::ZERO);
        let fragments: Vec<Fragment> = self.tree.levels().fragments().copied().collect();
        for fragment in fragments.iter().step_by(fragments.len().div_ceil(16)) {
            let object = Bytes::from(std::fs::read(self.objects.path(fragment.id))?);
            let range = fragment.index_range();
            let index = object.slice(range.start as usize..range.end as usize);
            let index = Index::new(fragment, index)?;
            for page in 0..index.pages() {
                let range = index.range(page);
                let page = &object[range.start as usize..range.end as usize];
                let start = Instant::now();
                after += lz4_flex::block::compress(page).len();
                took += start.elapsed();
                before += page.len();
            }
        }
        let share = 100.0 * after as f64 / before as f64;
        row("pages compressed with LZ4", {
            format!(
                "{share:.1} % of their size, {:.0} MB/s",
                before as f64 / 1e6 / took.as_secs_f64()
            )
        });
        Ok(())
    }

    /// Writes the root of so many of these volumes side by side, and opens the map from it.
    fn open(&mut self, size: u64, times: u64) -> Result<()> {
        let sectors = size / BLOCK_BYTES * BLOCK_SECTORS;
        let spec = VolumeSpec {
            id: VOLUME,
            name: "bench".to_owned(),
            created_sectors: sectors * times,
            block_bytes: BLOCK_BYTES as u32,
            created: 0,
            parents: Vec::new(),
        };
        let levels = side_by_side(self.tree.levels(), sectors, times)?;
        let object = root::encode(
            1,
            &LogState::new(&spec, 1),
            &levels,
            &root::Pins::new(),
            &Moved::default(),
            1,
        );
        drop(levels);
        let path = self.objects.dir.join("root");
        std::fs::write(&path, &object)?;
        let start = Instant::now();
        let found = root::parse(&spec, &std::fs::read(&path)?, 1)?;
        let opened = Tree::new(Limits::default(), VOLUME, 2, found.levels);
        let took = start.elapsed().as_secs_f64() * 1e3;
        row(&format!("root of {}", units::show_bytes(size * times)), {
            let fragments = opened.levels().fragments().count();
            format!("{} bytes, {fragments} fragments, read in {took:.2} ms", object.len())
        });
        if times == 1 {
            self.tree = opened;
        }
        Ok(())
    }

    fn lookups(&mut self, blocks: u64, memory: u64) -> Result<()> {
        let mut numbers = fastrand::Rng::with_seed(1);
        let mut anywhere = || numbers.u64(0..blocks);
        let some: Vec<u64> = (0..LOOKUPS).map(|_| anywhere()).collect();
        // Nothing is kept.
        self.pages = Pages::new(0);
        row("lookup of a block, nothing in memory", self.look_up(&some)?);
        self.pages = Pages::new(memory);
        for _ in 0..10 {
            let others: Vec<u64> = (0..LOOKUPS).map(|_| anywhere()).collect();
            self.look_up(&others)?;
        }
        row("… anywhere, after 200,000 lookups", self.look_up(&some)?);
        row("pages in memory", units::show_bytes(self.pages.bytes()));
        let few: Vec<u64> = some.iter().map(|n| n % WORKING_SET.min(blocks)).collect();
        self.look_up(&few)?;
        row("… of 1000 blocks again and again", self.look_up(&few)?);
        Ok(())
    }

    fn look_up(&mut self, writes: &[u64]) -> Result<Times> {
        let before = self.objects.gets;
        let mut micros = Vec::with_capacity(writes.len());
        for &n in writes {
            let start = Instant::now();
            let range = Range::new(self.order.block(n) * BLOCK_SECTORS, BLOCK_SECTORS);
            let mut lookup = Lookup::new(range);
            let parts = loop {
                let answer = self.tree.look(&mut lookup, &mut self.pages);
                match answer.map_err(|damage| anyhow::anyhow!("{damage:?}"))? {
                    Answer::Parts(parts) => break parts,
                    Answer::Needs(needs) => {
                        for get in needs {
                            let bytes = self.objects.get(&get)?;
                            let taken = lookup.supply(&get, bytes, &mut self.pages);
                            taken.map_err(|damage| anyhow::anyhow!("{damage:?}"))?;
                        }
                    }
                }
            };
            micros.push(start.elapsed().as_secs_f64() * 1e6);
            let [(found, Some(place))] = parts[..] else { bail!("write {n} is not found") };
            let segment = n / RECORDS_PER_SEGMENT + 1;
            if (found, place.segment(), place.seq()) != (range, segment, n + 1) {
                bail!("write {n} is found where another one is: {place:?}");
            }
        }
        Ok(Times { micros, gets: (self.objects.gets - before) as f64 / writes.len() as f64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_meets_every_block_once() {
        for blocks in [1, 2, 3, 1000, 4096] {
            let order = Order::new(blocks);
            let mut met: Vec<u64> = (0..blocks).map(|n| order.block(n)).collect();
            met.sort_unstable();
            assert_eq!(met, (0..blocks).collect::<Vec<u64>>());
        }
    }

    #[test]
    fn what_was_written_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let (dir, written) = (dir.path().to_owned(), 1 << 30);
        run(&MapArgs { written, size: Some(1 << 44), map_memory: 8 << 20, opened: 1 << 46, dir })
            .unwrap();
    }
}
