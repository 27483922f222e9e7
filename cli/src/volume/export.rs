//! Copies the committed content of a volume into a raw image, as an observer who attaches nothing.
//!
//! It asks for holes and zeroes first and does not read them. Many reads are under way at once. If
//! a host writes to the volume meanwhile, the image mixes states.

use crate::output::progress;
use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use futures_util::stream::{StreamExt as _, iter};
use longhaul_api::keys::{self, Given};
use longhaul_api::queries::show;
use longhaul_api::queries::status;
use longhaul_base::text::tell;
use longhaul_core::block::{BlockState, Range, SECTOR_BYTES, VolumeId};
use longhaul_core::pack::{Keys, Packer, Packing};
use longhaul_core::record::RecordError;
use longhaul_core::wire::link::{
    Lane, MAX_READ_SECTORS, ReadPart, ToHost, ToStore, VolumeInfo, decode_data,
};
use longhaul_link::Requests;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Reads under way: with 1 MiB each, enough for 1 Gbit/s over 250 ms.
const READS: usize = 32;
/// The epoch of an observer.
const OBSERVER: u64 = 0;

/// Exports the volume `name` to `file`. Overwrites an existing file with `force` only.
///
/// # Errors
/// If a write fails, the store fails or its data is damaged.
pub async fn run(
    requests: &Requests,
    name: &str,
    (file, force): (&Path, bool),
    given: &Given,
    bar: bool,
) -> Result<Value> {
    let info = show(requests, name).await?;
    if info.live.as_ref().is_some_and(|live| live.connected) {
        tell(
            "a host has the volume attached: the image gets the writes committed during the export",
        );
    }
    let keys = match name.split_once('@') {
        None => keys::of_volume(requests, &info, given).await?,
        Some((volume, _)) => {
            let volume = show(requests, volume).await?;
            let keys = keys::of_volume(requests, &volume, given).await?;
            keys.map(|keys| keys.of_snapshot(volume.id))
        }
    };
    let mut target = Target::open(file, force)?;
    let bar = progress(info.sectors.saturating_mul(SECTOR_BYTES), bar);
    let result = copy(requests, &info, keys, &mut target, &bar).await;
    bar.finish_and_clear();
    let data_bytes = result.with_context(|| format!("{} is incomplete", file.display()))?;
    Ok(json!({ "name": name, "data_bytes": data_bytes }))
}

async fn copy(
    requests: &Requests,
    info: &VolumeInfo,
    keys: Option<Keys>,
    target: &mut Target,
    bar: &indicatif::ProgressBar,
) -> Result<u64> {
    // One thread answers the reads, one after another.
    let packer = &RefCell::new(Packer::new(info.id, Packing { keys, ..Packing::default() }));
    let mut data_bytes = 0;
    let mut at = 0;
    while at < info.sectors {
        let asked = Range::between(at, info.sectors);
        let ranges = data_ranges(requests, info.id, asked, &mut at).await?;
        let reads = ranges.into_iter().flat_map(|range| {
            let starts = (range.lba..range.end()).step_by(MAX_READ_SECTORS as usize);
            starts.map(move |lba| Range::between(lba, range.end().min(lba + MAX_READ_SECTORS)))
        });
        let mut pieces = std::pin::pin!(
            iter(reads.map(|range| read(requests, info.id, range, packer))).buffered(READS)
        );
        while let Some(piece) = pieces.next().await {
            for (lba, data) in piece? {
                data_bytes += data.len() as u64;
                target.write(lba * SECTOR_BYTES, &data)?;
                bar.set_position(lba * SECTOR_BYTES);
            }
        }
    }
    target.finish(info.sectors.saturating_mul(SECTOR_BYTES))?;
    Ok(data_bytes)
}

/// The parts of `range` that hold data, as far as the store says at once; moves `at` to where it
/// stopped.
async fn data_ranges(
    requests: &Requests,
    volume: VolumeId,
    range: Range,
    at: &mut u64,
) -> Result<Vec<Range>> {
    let mut ranges = Vec::new();
    for run in status(requests, volume, range).await? {
        let part = Range::new(*at, run.sectors);
        if run.state == BlockState::Data {
            ranges.push(part);
        }
        *at = part.end();
    }
    Ok(ranges)
}

/// The parts of a range that are not zero.
pub(super) async fn read(
    requests: &Requests,
    volume: VolumeId,
    range: Range,
    packer: &RefCell<Packer>,
) -> Result<Vec<(u64, Bytes)>> {
    let message = |request| ToStore::Read { request, volume, epoch: OBSERVER, range };
    let frame = requests.call(Lane::Read, message).await?;
    let ToHost::Data { result, .. } = frame.message else {
        return Err(longhaul_api::queries::unexpected());
    };
    let pieces = result.with_context(|| format!("cannot read {range}"))?;
    let parts = decode_data(range, &pieces, frame.payload)?;
    let mut at = range.lba;
    let mut found = Vec::new();
    for part in parts {
        match part {
            ReadPart::Hole(sectors) | ReadPart::Zero(sectors) => at += sectors,
            ReadPart::Packed { wanted, record } => {
                let data = packer.borrow_mut().unpack(&record, wanted);
                found.push((wanted.lba, data.with_context(|| format!("cannot unpack {wanted}"))?));
                at = wanted.end();
            }
            ReadPart::Data { wanted, .. } if packer.borrow().is_encrypting() => {
                return Err(RecordError::Plain(wanted))
                    .with_context(|| format!("cannot read {wanted}"));
            }
            ReadPart::Data { wanted, fragment } => {
                fragment.verify().with_context(|| format!("{wanted} was damaged on its way"))?;
                found.push((wanted.lba, fragment.sectors(wanted)));
                at = wanted.end();
            }
        }
    }
    if at != range.end() {
        bail!("the store's answer to a read of {range} is cut short");
    }
    Ok(found)
}

/// Refuses a file or device that has something in it.
pub(super) fn refuse_existing(path: &Path) -> Result<()> {
    if path.as_os_str() != "-" && path.symlink_metadata().is_ok() && !is_stream(path) {
        bail!(
            "{} exists: give the name of a new file, or --force to write over it",
            path.display()
        );
    }
    Ok(())
}

/// Whether a write to a path overwrites nothing: a pipe, a terminal, /dev/null.
pub(super) fn is_stream(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    std::fs::metadata(path).is_ok_and(|metadata| {
        let kind = metadata.file_type();
        kind.is_fifo() || kind.is_char_device() || kind.is_socket()
    })
}

/// Opens a file for writes. Overwrites an existing file only with `force`, or if it is a stream.
///
/// # Errors
/// If the file exists, or the open fails.
pub(super) fn create(path: &Path, force: bool) -> std::io::Result<File> {
    let mut options = File::options();
    options.write(true);
    match force || is_stream(path) {
        true => options.create(true).truncate(true),
        // Another process may have made the file since the check.
        false => options.create_new(true),
    };
    options.open(path)
}

/// Where the image goes.
enum Target {
    /// Skipped ranges become holes.
    Sparse(File),
    /// All ranges, zeroes too, go out in order.
    Stream { out: Box<dyn std::io::Write>, at: u64 },
}

static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

impl Target {
    fn open(path: &Path, force: bool) -> Result<Target> {
        if path.as_os_str() == "-" {
            return Ok(Target::Stream { out: Box::new(std::io::stdout()), at: 0 });
        }
        let open = || -> std::io::Result<Target> {
            let file = create(path, force)?;
            if file.metadata()?.is_file() {
                Ok(Target::Sparse(file))
            } else {
                Ok(Target::Stream { out: Box::new(file), at: 0 })
            }
        };
        open().with_context(|| format!("cannot write {}", path.display()))
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let result = match self {
            Target::Sparse(file) => file.write_all_at(data, offset),
            Target::Stream { out, at } => {
                fill(out, at, offset).and_then(|()| out.write_all(data)).map(|()| {
                    *at += data.len() as u64;
                })
            }
        };
        result.context("cannot write the image: is there space?")
    }

    fn finish(&mut self, length: u64) -> Result<()> {
        let result = match self {
            Target::Sparse(file) => file.set_len(length).and_then(|()| file.sync_all()),
            Target::Stream { out, at } => fill(out, at, length).and_then(|()| out.flush()),
        };
        result.context("cannot finish the image: is there space?")
    }
}

fn fill(out: &mut dyn std::io::Write, at: &mut u64, until: u64) -> std::io::Result<()> {
    while *at < until {
        let bytes = (until - *at).min(ZEROES.len() as u64);
        out.write_all(&ZEROES[..bytes as usize])?;
        *at += bytes;
    }
    Ok(())
}
