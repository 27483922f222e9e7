//! The cost of garbage collection: the engine of one volume over objects in memory, overwritten at
//! random in 4 KiB.
//!
//! Time is virtual, so that the results do not depend on the machine. A turnover of the volume
//! takes eight hours, as 1 TiB does at 38 MB/s. Deletions follow ten minutes later. Everything
//! counts: segments, bundles, the map, roots, and what waits for its deletion. The memory keeps
//! objects compressed, since their content says little.

use crate::report::Table;
use crate::rounds::Tally;
use crate::suite::Suite;
use anyhow::{Context as _, Result, bail, ensure};
use bytes::{Bytes, BytesMut};
use longhaul_core::block::{Range, SECTOR_BYTES, Time, VolumeId};
use longhaul_core::record;
use longhaul_core::store::gc::usage::Policy;
use longhaul_core::store::{
    Config, Event, GetError, ObjectMeta, ObjectOperation, ObjectResult, PutError, SessionId,
    Volume, VolumeSpec,
};
use longhaul_core::wire::link::{
    self, AttachError, Frame, HostId, Lane, ReadPart, ToHost, ToStore,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const BLOCK_BYTES: u64 = 4096;
const BLOCK_SECTORS: u64 = BLOCK_BYTES / SECTOR_BYTES;
/// Bytes of the volume under writes, four fifths of it.
const LIVE: u64 = 8 << 30;
/// How often as much follows the first writing.
const TURNOVERS: u64 = 5;
/// Writes of a batch, which makes a segment.
const BATCH: u64 = 1000;
const TURNOVER_TIME: Duration = Duration::from_secs(8 * 3600);
const READS: u64 = 2000;

const VOLUME: VolumeId = VolumeId(1);
const SESSION: SessionId = SessionId(1);

/// An object, with its size.
enum Object {
    /// Data says little here.
    Packed(u64, Vec<u8>),
    Plain(Bytes),
}

impl Object {
    fn bytes(&self) -> u64 {
        match self {
            Object::Packed(bytes, _) => *bytes,
            Object::Plain(data) => data.len() as u64,
        }
    }

    fn data(&self) -> Result<Bytes> {
        Ok(match self {
            Object::Packed(_, packed) => lz4_flex::decompress_size_prepended(packed)?.into(),
            Object::Plain(data) => data.clone(),
        })
    }
}

/// Objects, and the bytes of all puts.
#[derive(Default)]
struct Objects {
    map: BTreeMap<String, Object>,
    stored: u64,
    put: BTreeMap<&'static str, u64>,
}

/// All other objects.
const MAP: &str = "map and roots";

fn kind(key: &str) -> &'static str {
    let kinds = [("/seg/", "segments"), ("/bundle/", "bundles")];
    kinds.into_iter().find(|(part, _)| key.contains(part)).map_or(MAP, |(_, kind)| kind)
}

impl Objects {
    fn execute(&mut self, operation: ObjectOperation) -> Result<ObjectResult> {
        Ok(match operation {
            ObjectOperation::Put { key, data } => {
                if self.map.contains_key(&key) {
                    return Ok(ObjectResult::Put(Err(PutError::Exists)));
                }
                let data = data.concat();
                let (kind, bytes) = (kind(&key), data.len() as u64);
                self.stored += bytes;
                *self.put.entry(kind).or_default() += bytes;
                let object = if kind == MAP {
                    Object::Plain(data.into())
                } else {
                    Object::Packed(bytes, lz4_flex::compress_prepend_size(&data))
                };
                self.map.insert(key, object);
                ObjectResult::Put(Ok(()))
            }
            ObjectOperation::Get { key, range, .. } => {
                ObjectResult::Get(match self.map.get(&key) {
                    None => Err(GetError::NotFound),
                    Some(object) => {
                        let (data, bytes) = (object.data()?, object.bytes());
                        let range = range.unwrap_or(0..bytes);
                        let range = range.start.min(bytes)..range.end.min(bytes);
                        Ok(data.slice(range.start as usize..range.end as usize))
                    }
                })
            }
            ObjectOperation::List { prefix } | ObjectOperation::ListAfter { prefix, .. } => {
                let listed = self.map.range(prefix.clone()..);
                let listed = listed.take_while(|(key, _)| key.starts_with(&prefix));
                let meta = |(key, object): (&String, &Object)| {
                    let (key, bytes) = (key.clone(), object.bytes());
                    ObjectMeta { key, bytes }
                };
                ObjectResult::List(Ok(listed.map(meta).collect()))
            }
            ObjectOperation::Delete { key } => {
                if let Some(object) = self.map.remove(&key) {
                    self.stored -= object.bytes();
                }
                ObjectResult::Delete(Ok(()))
            }
        })
    }
}

struct Bench {
    volume: Volume,
    objects: Objects,
    now: Time,
    seq: u64,
    epoch: u64,
    inbox: Vec<Frame<ToHost>>,
    collected: BTreeSet<&'static str>,
}

impl Bench {
    fn new() -> Result<Bench> {
        let spec = VolumeSpec {
            id: VOLUME,
            name: "gc".into(),
            created_sectors: LIVE / 4 * 5 / SECTOR_BYTES,
            block_bytes: BLOCK_BYTES as u32,
            created: 0,
            parents: Vec::new(),
        };
        let config = Config { garbage_collection: Some(Policy::default()), ..Config::default() };
        let mut bench = Bench {
            volume: Volume::open(Time(0), spec, 1, config),
            objects: Objects::default(),
            now: Time(0),
            seq: 0,
            epoch: 0,
            inbox: Vec::new(),
            collected: BTreeSet::new(),
        };
        bench.settle()?;
        let (name, host) = ("gc".to_owned(), HostId(1));
        bench.send(
            Lane::Control,
            ToStore::Attach { request: 1, name, host, journal: None, take_over: false },
        )?;
        let answer = bench.answer(|message| match message {
            ToHost::Attached { result, .. } => Some(result.clone()),
            _ => None,
        })?;
        bench.epoch = answer.map_err(|error: AttachError| anyhow::anyhow!("{error:?}"))?.epoch;
        Ok(bench)
    }

    fn answer<T>(&mut self, wanted: impl Fn(&ToHost) -> Option<T>) -> Result<T> {
        let found = self.inbox.iter().find_map(|frame| wanted(&frame.message));
        self.inbox.clear();
        found.context("the engine did not answer")
    }

    fn send(&mut self, lane: Lane, frame: impl Into<Frame<ToStore>>) -> Result<()> {
        self.volume.handle_message(self.now, SESSION, lane, frame.into());
        self.settle()
    }

    /// All work that is due by now.
    fn settle(&mut self) -> Result<()> {
        loop {
            while let Some((_, _, frame)) = self.volume.poll_message() {
                self.inbox.push(frame);
            }
            while let Some(event) = self.volume.poll_event() {
                match event {
                    Event::Retry { key, error, .. } => bail!("{key}: {error}"),
                    Event::DataDamaged { key, reason, .. } => bail!("{key}: {reason}"),
                    Event::NotCollected { key, reason } => bail!("{key}: {reason}"),
                    Event::Moved { .. } => drop(self.collected.insert("moved")),
                    _ => {}
                }
            }
            if let Some((id, operation)) = self.volume.poll_object() {
                let result = self.objects.execute(operation)?;
                self.volume.handle_object(self.now, id, result);
            } else if self.volume.poll_timeout().is_some_and(|due| due <= self.now) {
                self.volume.handle_timeout(self.now);
            } else {
                return Ok(());
            }
        }
    }

    /// Writes these blocks, each filled with the number of its write.
    fn write(&mut self, blocks: impl Iterator<Item = u64>) -> Result<()> {
        let mut payload = BytesMut::new();
        let first = self.seq + 1;
        for block in blocks {
            self.seq += 1;
            let data = self.seq.to_le_bytes().repeat(BLOCK_BYTES as usize / 8);
            let range = Range::new(block * BLOCK_SECTORS, BLOCK_SECTORS);
            record::encode_data(VOLUME, self.epoch, self.seq, range, &data, &mut payload);
        }
        let written = (self.seq + 1 - first) * BLOCK_BYTES;
        let nanos = TURNOVER_TIME.as_nanos() * u128::from(written) / u128::from(LIVE);
        self.now = self.now.after(Duration::from_nanos(nanos as u64));
        let (volume, epoch, last) = (VOLUME, self.epoch, self.seq);
        let message = ToStore::Batch { volume, epoch, first, last };
        self.send(Lane::Drain, Frame { message, payload: payload.freeze() })?;
        self.answer(|message| match message {
            ToHost::Committed { seq, .. } if *seq == last => Some(()),
            _ => None,
        })
    }

    /// Reads a block, and says which write it is of.
    fn read(&mut self, block: u64) -> Result<u64> {
        let range = Range::new(block * BLOCK_SECTORS, BLOCK_SECTORS);
        let read = ToStore::Read { request: 2, volume: VOLUME, epoch: self.epoch, range };
        self.send(Lane::Read, read)?;
        let frame = self.inbox.pop().context("no answer to a read")?;
        self.inbox.clear();
        let ToHost::Data { result: Ok(pieces), .. } = &frame.message else {
            bail!("a read is answered with {:?}", frame.message)
        };
        match link::decode_data(range, pieces, frame.payload)?.first() {
            Some(ReadPart::Data { wanted, fragment }) => {
                let data = fragment.sectors(*wanted);
                let number = data.first_chunk().context("too short")?;
                Ok(u64::from_le_bytes(*number))
            }
            _ => Ok(0),
        }
    }
}

/// Runs it. It counts bytes in virtual time: a busy machine does not change the figures.
pub fn run(suite: &Suite) -> Result<()> {
    let mut bench = Bench::new()?;
    let blocks = LIVE / BLOCK_BYTES;
    let mut last = vec![0_u64; blocks as usize];
    for begin in (0..blocks).step_by(BATCH as usize) {
        let range = begin..(begin + BATCH).min(blocks);
        for block in range.clone() {
            last[block as usize] = bench.seq + 1 + block - begin;
        }
        bench.write(range)?;
    }
    let head = ["turnover", "written", "segments", "bundles", "map", "space", "most"];
    let mut table = Table {
        title: "Bytes for each byte of a client".into(),
        head: head.map(str::to_owned).into(),
        rows: Vec::new(),
    };
    let (mut all_put, mut all_space) = (Vec::new(), Vec::new());
    let mut random = fastrand::Rng::with_seed(1);
    for turnover in 1..=TURNOVERS {
        let before = bench.objects.put.clone();
        let (mut written, mut space, mut most, mut samples) = (0, 0.0, 0.0_f64, 0.0);
        while written < LIVE {
            let mut chosen = BTreeSet::new();
            while (chosen.len() as u64) < BATCH {
                chosen.insert(random.u64(0..blocks));
            }
            let chosen: Vec<u64> = chosen.into_iter().collect();
            for (n, block) in chosen.iter().enumerate() {
                last[*block as usize] = bench.seq + 1 + n as u64;
            }
            bench.write(chosen.into_iter())?;
            written += BATCH * BLOCK_BYTES;
            let now = bench.objects.stored as f64 / LIVE as f64;
            (space, most, samples) = (space + now, most.max(now), samples + 1.0);
        }
        let put = |kind: &str| {
            let before = before.get(kind).copied().unwrap_or(0);
            let now = bench.objects.put.get(kind).copied().unwrap_or(0);
            (now - before) as f64 / written as f64
        };
        let [segments, bundles, map] = ["segments", "bundles", MAP].map(put);
        let (put, space) = (segments + bundles + map, space / samples);
        let cells = [put, segments, bundles, map, space, most].map(|cell| format!("{cell:.3}"));
        table.rows.push(std::iter::once(turnover.to_string()).chain(cells).collect());
        // The first turnover fills what the next ones collect.
        if turnover > 1 {
            all_put.push(put);
            all_space.push(space);
        }
    }
    ensure!(!bench.collected.is_empty(), "nothing was collected");
    for _ in 0..READS {
        let block = random.u64(0..blocks);
        let found = bench.read(block)?;
        ensure!(found == last[block as usize], "block {block} is not what was written last");
    }
    let single = |name: &str, values: &[f64], bound: f64| {
        suite.report.single(name, values, "", Some((bound, false)), &Tally::default())
    };
    single("bytes put for each byte written, turnovers 2 to 5", &all_put, 2.0)?;
    single("bytes stored for each live byte, turnovers 2 to 5", &all_space, 1.5)?;
    suite.report.table(table);
    suite.report.note(&format!("{READS} blocks were read back and were right."));
    Ok(())
}
