//! `longhaul bench-link`: a host's side of the link without a host, to load a store with.
//!
//! It sends what a host would send: records in batches of up to 5 MiB, and single reads. It takes
//! commits as they come. It has no journal and no client, so it measures the link and the store.

use crate::args::{BenchLinkArgs, BenchLinkCommand};
use anyhow::{Context as _, Result, bail};
use bytes::{Bytes, BytesMut};
use futures_util::stream::{StreamExt as _, TryStreamExt as _, iter};
use longhaul_base::Usage;
use longhaul_base::random;
use longhaul_base::service::Stop;
use longhaul_core::block::{Epoch, Range, SECTOR_BYTES, Seq, VolumeId};
use longhaul_core::record::{self, MAX_RECORD_SECTORS};
use longhaul_core::wire::link::{
    Attached, BATCH_BYTES, Frame, HostId, Lane, ToHost, ToStore, VolumeOperation, VolumeReply,
};
use longhaul_link::Requests;
use longhaul_link::credential::Credential;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::Write as _;
use std::time::Instant;

/// Most uncommitted bytes under way, for each volume and for all of them.
const WINDOW_BYTES: (u64, u64) = (32 << 20, 64 << 20);
/// Bytes of a read.
const READ_BYTES: u64 = 8 << 10;
/// Logical block size of the volumes.
const BLOCK_BYTES: u64 = 4096;

/// Runs the command.
///
/// # Errors
/// If the store is out of reach or does not do its part.
pub fn run(args: &BenchLinkArgs) -> Result<()> {
    let credential = Credential::load(&args.credential)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut stop = Stop::listen()?;
        let connect = || Requests::connect_by(args.transport, &credential, None);
        let requests = connect().await?;
        match &args.command {
            BenchLinkCommand::Hold { sessions } => {
                let begun = Instant::now();
                let mut open = Vec::new();
                for number in 0..*sessions {
                    let session = connect().await?;
                    attach(&session, &[format!("h{number}")], BLOCK_BYTES).await?;
                    open.push(session);
                }
                let seconds = begun.elapsed().as_secs_f64();
                print(&json!({ "sessions": sessions, "seconds": seconds }))?;
                stop.wait().await;
            }
            BenchLinkCommand::Write { names, bytes, record, random, one_at_a_time, hold } => {
                let mut load = Load::new(names.len(), *bytes, *record, *random)?;
                if *one_at_a_time {
                    load.one_at_a_time();
                }
                let mut volumes = attach(&requests, names, *bytes).await?;
                print(&write(&requests, &mut volumes, &load).await?)?;
                if *hold {
                    stop.wait().await;
                }
                for (id, volume) in &volumes {
                    let (volume, epoch) = (*id, volume.epoch);
                    let detach = |request| ToStore::Detach { request, volume, epoch };
                    requests.call(Lane::Control, detach).await?;
                }
            }
            BenchLinkCommand::Read { name, bytes, count, depth } => {
                print(&read(&requests, name, *bytes, *count, *depth).await?)?;
            }
        }
        requests.close().await;
        Ok(())
    })
}

fn print(value: &Value) -> Result<()> {
    writeln!(std::io::stdout(), "{value}").context("cannot write the result")
}

/// A volume with writes under way.
struct Writing {
    volume: VolumeId,
    epoch: Epoch,
    /// The last number sent, and the last one committed.
    sent: Seq,
    committed: Seq,
    /// Writes so far.
    records: u64,
}

async fn attach(
    requests: &Requests,
    names: &[String],
    bytes: u64,
) -> Result<HashMap<VolumeId, Writing>> {
    let host = HostId(random::identity()?);
    let mut volumes = HashMap::new();
    for name in names {
        let sectors = bytes.next_multiple_of(BLOCK_BYTES) / SECTOR_BYTES;
        let (name, block_bytes) = (name.clone(), BLOCK_BYTES as u32);
        let create = VolumeOperation::Create { name: name.clone(), sectors, block_bytes };
        requests.volume(create).await?;
        let attach =
            |request| ToStore::Attach { request, name, host, journal: None, take_over: false };
        match requests.call(Lane::Control, attach).await?.message {
            ToHost::Attached { result, .. } => {
                let Attached { volume, epoch, committed, .. } = result?;
                let writing = Writing { volume, epoch, sent: committed, committed, records: 0 };
                volumes.insert(volume, writing);
            }
            _ => bail!("the store gave an answer that does not fit"),
        }
    }
    Ok(volumes)
}

/// The data to write to each volume.
struct Load {
    /// Writes, and bytes of each.
    records: u64,
    record_bytes: u64,
    /// From one write to the next, in writes; has no common divisor with their number.
    stride: u64,
    /// Most bytes of data under way to a volume, and most in a batch.
    window_bytes: u64,
    batch_bytes: usize,
    data: Vec<u8>,
}

impl Load {
    fn new(volumes: usize, bytes: u64, record_bytes: u64, random: bool) -> Result<Load> {
        let largest = MAX_RECORD_SECTORS * SECTOR_BYTES;
        if record_bytes == 0 || !record_bytes.is_multiple_of(BLOCK_BYTES) || record_bytes > largest
        {
            return Err(Usage("--record is a multiple of 4KiB, at most 1MiB".into()).into());
        }
        let records = bytes / record_bytes;
        let stride = if random { scattered(records) } else { 1 };
        let mut data = vec![0; record_bytes as usize];
        fastrand::fill(&mut data);
        let window_bytes = WINDOW_BYTES.0.min(WINDOW_BYTES.1 / volumes.max(1) as u64);
        let batch_bytes = BATCH_BYTES.min(window_bytes as usize);
        Ok(Load { records, record_bytes, stride, window_bytes, batch_bytes, data })
    }

    /// One write in each batch, and one batch under way.
    fn one_at_a_time(&mut self) {
        self.batch_bytes = 1;
        self.window_bytes = self.record_bytes;
    }

    fn finished(&self, volume: &Writing) -> bool {
        volume.records == self.records
    }

    /// The next batch of a volume, and how many writes are in it.
    fn batch(&self, volume: &Writing) -> (u64, Bytes) {
        let mut payload = BytesMut::with_capacity(self.batch_bytes);
        let (mut count, mut bytes) = (0, 0);
        while volume.records + count < self.records && payload.len() + bytes <= self.batch_bytes {
            let before = payload.len();
            let at = (volume.records + count) * self.stride % self.records;
            let sectors = self.record_bytes / SECTOR_BYTES;
            count += 1;
            let (seq, range) = (volume.sent + count, Range::new(at * sectors, sectors));
            record::encode_data(volume.volume, volume.epoch, seq, range, &self.data, &mut payload);
            bytes = payload.len() - before;
        }
        (count, payload.freeze())
    }
}

/// A number of about 0.6 of `count` that has no common divisor with it: steps of it come by
/// everything before anything comes again.
fn scattered(count: u64) -> u64 {
    let gcd = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let about = (count as f64 * 0.618) as u64;
    (about.max(1)..).find(|step| gcd(*step, count) == 1).unwrap_or(1)
}

/// Writes everything and waits until all of it is committed.
async fn write(
    requests: &Requests,
    volumes: &mut HashMap<VolumeId, Writing>,
    load: &Load,
) -> Result<Value> {
    let begun = Instant::now();
    let count = volumes.len() as u64;
    loop {
        for (id, volume) in volumes.iter_mut() {
            while !load.finished(volume)
                && (volume.sent - volume.committed) * load.record_bytes < load.window_bytes
            {
                let (count, payload) = load.batch(volume);
                let (first, last) = (volume.sent + 1, volume.sent + count);
                (volume.records, volume.sent) = (volume.records + count, last);
                let message = ToStore::Batch { volume: *id, epoch: volume.epoch, first, last };
                requests.send(Lane::Drain, Frame { message, payload });
            }
        }
        let done = |volume: &Writing| load.finished(volume) && volume.committed == volume.sent;
        if volumes.values().all(done) {
            break;
        }
        match requests.notice().await? {
            ToHost::Committed { volume, seq, .. } => {
                if let Some(volume) = volumes.get_mut(&volume) {
                    volume.committed = volume.committed.max(seq);
                }
            }
            other => bail!("the store says {other:?}"),
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    let bytes = count * load.records * load.record_bytes;
    Ok(json!({ "volumes": count, "bytes": bytes, "seconds": seconds }))
}

async fn read(
    requests: &Requests,
    name: &str,
    bytes: u64,
    count: u64,
    depth: usize,
) -> Result<Value> {
    let show = VolumeOperation::Show { name: name.to_owned() };
    let VolumeReply::Volume(info) = requests.volume(show).await? else {
        bail!("the store gave an answer that does not fit");
    };
    let places = bytes / READ_BYTES;
    if count > places {
        return Err(Usage(format!("there are only {places} places to read from")).into());
    }
    let (volume, step) = (info.id, scattered(places));
    let read = async |number: u64| {
        let sectors = READ_BYTES / SECTOR_BYTES;
        let range = Range::new(number * step % places * sectors, sectors);
        let begun = Instant::now();
        let read = |request| ToStore::Read { request, volume, epoch: 0, range };
        let reply = requests.call(Lane::Read, read).await?;
        let micros = begun.elapsed().as_secs_f64() * 1e6;
        match reply.message {
            ToHost::Data { result: Ok(_), .. } if reply.payload.len() as u64 >= READ_BYTES => {
                Ok(micros)
            }
            other => bail!("{range} is not there: {other:?}"),
        }
    };
    let begun = Instant::now();
    let reads = iter((0..count).map(read)).buffer_unordered(depth.max(1));
    let mut micros: Vec<f64> = reads.try_collect().await?;
    let seconds = begun.elapsed().as_secs_f64();
    micros.sort_by(f64::total_cmp);
    let at = |share: f64| micros.get((micros.len() as f64 * share) as usize);
    Ok(json!({
        "reads": count,
        "bytes": count * READ_BYTES,
        "seconds": seconds,
        "p50_us": at(0.5),
        "p99_us": at(0.99),
        "p999_us": at(0.999),
        "max_us": micros.last(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_written_once() {
        for count in [1, 2, 7, 512, 1000, 262_144] {
            let step = scattered(count);
            let places: std::collections::BTreeSet<u64> =
                (0..count).map(|number| number * step % count).collect();
            assert_eq!(places.len() as u64, count, "{count}");
        }
    }

    #[test]
    fn batches_are_full_and_follow_each_other() {
        let load = Load::new(1, 8 << 20, 4096, true).unwrap();
        let mut volume =
            Writing { volume: VolumeId(1), epoch: 3, sent: 10, committed: 10, records: 0 };
        let mut sizes = Vec::new();
        while !load.finished(&volume) {
            let (count, payload) = load.batch(&volume);
            let record = record::parse(volume.volume, &payload).unwrap();
            assert_eq!((record.header.epoch, record.header.seq), (3, volume.sent + 1));
            sizes.push(payload.len());
            (volume.records, volume.sent) = (volume.records + count, volume.sent + count);
        }
        assert_eq!(volume.sent, 10 + 2048);
        assert!(sizes[0] <= BATCH_BYTES && sizes[0] > BATCH_BYTES - 5000, "{sizes:?}");
        assert!(Load::new(1, 8 << 20, 1000, false).is_err());
    }
}
