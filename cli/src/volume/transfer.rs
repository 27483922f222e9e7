//! Sends the writes between two snapshots as a stream, and applies it to a volume elsewhere.
//!
//! A received snapshot has a computed identity. It follows from the identity of its original and
//! that of its volume. So any store can tell whether the next stream continues from it.

use super::export::{create, is_stream, read, refuse_existing};
use super::import::{PIECE_BYTES, Writer, agree_to_discard, attach, until};
use super::stream::{Header, Piece, Receiver, Sender, Taken};
use crate::args::SnapshotName;
use crate::output::{done, pretty, print, progress};
use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use futures_util::stream::{StreamExt as _, iter};
use longhaul_api::keys::{self, Given};
use longhaul_api::queries::diff::{Differs, Later, find, later};
use longhaul_api::queries::show;
use longhaul_api::queries::{snapshots, status};
use longhaul_base::service::Stop;
use longhaul_base::text::tell;
use longhaul_base::units::show_bytes;
use longhaul_core::block::{BlockState, Range, SECTOR_BYTES, VolumeId};
use longhaul_core::pack::{Packer, Packing};
use longhaul_core::wire::link::{SnapshotInfo, SnapshotOperation, VolumeInfo};
use longhaul_link::Requests;
use ring::digest::{Context, SHA256};
use serde_json::json;
use std::cell::RefCell;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;
use tokio::sync::mpsc;

const PIECE_SECTORS: u64 = PIECE_BYTES as u64 / SECTOR_BYTES;
/// Reads under way: with 1 MiB each, enough for 1 Gbit/s over 250 ms.
const READS: usize = 32;

/// Writes the difference between two snapshots, or all of one, to `file`. Overwrites an existing
/// file with `force` only.
///
/// # Errors
/// If a snapshot is missing, the file exists or a write fails, the store fails or its data is
/// damaged.
pub async fn send(
    requests: &Requests,
    name: &SnapshotName,
    since: Option<&str>,
    (file, force): (&Path, bool),
    given: &Given,
    as_json: bool,
) -> Result<()> {
    if !force {
        refuse_existing(file)?;
    }
    let volume = show(requests, &name.volume).await?;
    let snapshot = find(requests, &name.volume, &name.snapshot).await?;
    let earlier = match since {
        Some(since) => Some(find(requests, &name.volume, since).await?),
        None => None,
    };
    if let Some(earlier) = earlier.as_ref().filter(|earlier| earlier.segment >= snapshot.segment) {
        bail!("{name} was not taken after {}: the earlier one goes with --since", earlier.name);
    }
    // By its name the store finds it, even if nobody has read it before; by its identity alone it
    // would not.
    let named = show(requests, &name.to_string()).await?;
    if named.id != snapshot.id {
        bail!("{name} has been deleted meanwhile, and another one has its name: try again");
    }
    let keys = keys::of_volume(requests, &volume, given).await?;
    let keys = keys.map(|keys| keys.of_snapshot(volume.id));
    let taken = |info: &SnapshotInfo| Taken { name: info.name.clone(), origin: info.id };
    let header = Header {
        volume: name.volume.clone(),
        volume_id: volume.id,
        since: earlier.as_ref().map(taken),
        snapshot: taken(&snapshot),
        sectors: snapshot.sectors,
    };
    let disk = match file.as_os_str() == "-" {
        true => None,
        false => {
            let created = create(file, force);
            Some(created.with_context(|| format!("cannot write {}", file.display()))?)
        }
    };
    let out: Box<dyn Write> = match &disk {
        None => Box::new(std::io::stdout()),
        Some(disk) => Box::new(disk.try_clone()?),
    };
    let bar = progress(snapshot.sectors.saturating_mul(SECTOR_BYTES), !as_json);
    let packer = Packer::new(snapshot.id, Packing { keys, ..Packing::default() });
    let mut outgoing = Outgoing {
        requests,
        snapshot: snapshot.id,
        packer: RefCell::new(packer),
        whole: earlier.is_none(),
        sender: Sender::new(BufWriter::new(out), &header)?,
        bar: bar.clone(),
        bytes: [0; 2],
    };
    let sent = async {
        match &earlier {
            None => outgoing.range(Range::new(0, snapshot.sectors)).await?,
            Some(earlier) => {
                let mut differs = Differs::new(requests, &name.volume, earlier, &later(&snapshot));
                while let Some(ranges) = differs.next().await? {
                    for range in ranges {
                        outgoing.range(range).await?;
                    }
                }
            }
        }
        let Outgoing { sender, bytes, .. } = outgoing;
        sender.finish()?;
        if let Some(disk) = disk.as_ref().filter(|_| !is_stream(file)) {
            disk.sync_all()?;
        }
        anyhow::Ok(bytes)
    };
    let sent = sent.await;
    bar.finish_and_clear();
    let [data, zero] = sent.with_context(|| match &disk {
        None => "the stream is incomplete".to_owned(),
        Some(_) => format!("{} is incomplete", file.display()),
    })?;
    if as_json && disk.is_some() {
        return print(&pretty(&json!({ "data_bytes": data, "zero_bytes": zero }))?);
    }
    tell(&format!("sent {name} to {}: {} of data", file.display(), show_bytes(data)));
    Ok(())
}

/// A stream on its way out.
struct Outgoing<'a> {
    requests: &'a Requests,
    snapshot: VolumeId,
    /// One thread answers the reads, one after another.
    packer: RefCell<Packer>,
    /// The stream has all data, so that all other ranges are zeroes.
    whole: bool,
    sender: Sender<BufWriter<Box<dyn Write>>>,
    bar: indicatif::ProgressBar,
    /// Of data and of zeroes.
    bytes: [u64; 2],
}

impl Outgoing<'_> {
    async fn range(&mut self, range: Range) -> Result<()> {
        let mut at = range.lba;
        while at < range.end() {
            let asked = Range::between(at, range.end());
            let mut parts = Vec::new();
            for run in status(self.requests, self.snapshot, asked).await? {
                let part = Range::new(at, run.sectors);
                at = part.end();
                if run.state == BlockState::Data {
                    parts.extend(cut(part).map(|part| (part, true)));
                } else if !self.whole {
                    parts.push((part, false));
                }
            }
            self.parts(parts).await?;
        }
        Ok(())
    }

    async fn parts(&mut self, parts: Vec<(Range, bool)>) -> Result<()> {
        let (requests, snapshot, packer) = (self.requests, self.snapshot, &self.packer);
        let pieces = parts.into_iter().map(async |(range, data)| {
            if !data {
                return Ok(Piece::Zeroes(range));
            }
            let mut whole = vec![0; range.bytes() as usize];
            for (lba, data) in read(requests, snapshot, range, packer).await? {
                let start = ((lba - range.lba) * SECTOR_BYTES) as usize;
                whole[start..start + data.len()].copy_from_slice(&data);
            }
            anyhow::Ok(Piece::Data(range, Bytes::from(whole)))
        });
        let mut pieces = std::pin::pin!(iter(pieces).buffered(READS));
        while let Some(piece) = pieces.next().await {
            let piece = piece?;
            self.sender.piece(&piece)?;
            let (range, zero) = match &piece {
                Piece::Data(range, _) => (range, 0),
                Piece::Zeroes(range) => (range, 1),
            };
            self.bytes[zero] += range.bytes();
            self.bar.set_position(range.end().saturating_mul(SECTOR_BYTES));
        }
        Ok(())
    }
}

/// Parts that end where records do.
fn cut(range: Range) -> impl Iterator<Item = Range> {
    let first = range.lba / PIECE_SECTORS * PIECE_SECTORS;
    (first..range.end()).step_by(PIECE_SECTORS as usize).map(move |start| {
        Range::between(start.max(range.lba), range.end().min(start + PIECE_SECTORS))
    })
}

/// Gives a volume the content of a stream, and takes a snapshot of that. If the stream does not
/// continue a snapshot, this discards the old content: with `yes` it does not ask first.
///
/// # Errors
/// If the volume is attached, its content has to stay, or the stream does not continue it. Also if
/// the stream is damaged, or the store fails.
pub async fn receive(
    requests: &Requests,
    name: &str,
    file: &Path,
    given: &Given,
    (as_json, yes): (bool, bool),
) -> Result<()> {
    let from: Box<dyn Read + Send> = if file.as_os_str() == "-" {
        Box::new(std::io::stdin())
    } else {
        let opened = File::open(file);
        Box::new(opened.with_context(|| format!("cannot read {}", file.display()))?)
    };
    let (receiver, header) =
        Receiver::new(BufReader::new(from)).with_context(|| file.display().to_string())?;
    let info = show(requests, name).await?;
    let taken = header.snapshot.name.clone();
    let there = snapshots::of_volume(requests, name).await?;
    let id = copy_of(header.snapshot.origin, info.id);
    if there.iter().any(|snapshot| snapshot.id == id) {
        return done(as_json, &format!("volume {name} has {taken} already"));
    }
    if there.iter().any(|snapshot| snapshot.name == taken) {
        bail!(
            "volume {name} has another snapshot {taken}: delete it if it is not needed, or receive \
             into another volume"
        );
    }
    if info.sectors < header.sectors {
        let size = header.sectors.saturating_mul(SECTOR_BYTES);
        bail!("volume {name} is too small: `longhaul volume resize {name} {size}` first");
    }
    let base = base(&header, &info, &there)?;
    if base.is_none() {
        agree_to_discard(requests, &info, "the stream", yes).await?;
    }
    let mut stop = Stop::listen()?;
    let mut writer = attach(requests, &info, given).await?;
    let written = write(&mut writer, &header, &info, base, receiver, !as_json);
    let result = until(&mut stop, written).await;
    if let Err(error) = result {
        writer.leave(&mut stop).await;
        return Err(error);
    }
    let operation =
        SnapshotOperation::Create { snapshot: taken.clone(), id, created: 0, barrier: false };
    let created = snapshots::ask(requests, name, operation).await;
    let detached = writer.detach().await;
    created.with_context(|| format!("volume {name} is {taken}, but cannot have that snapshot"))?;
    detached?;
    if as_json {
        let bytes = writer.data_bytes;
        return print(&pretty(&json!({ "snapshot": taken, "data_bytes": bytes }))?);
    }
    tell(&format!("volume {name} is {}@{taken} now, and has that snapshot", header.volume));
    Ok(())
}

/// The snapshot of the volume from which a stream goes on.
fn base<'a>(
    header: &Header,
    info: &VolumeInfo,
    there: &'a [SnapshotInfo],
) -> Result<Option<&'a SnapshotInfo>> {
    let Some(since) = &header.since else { return Ok(None) };
    // A copy of it, itself, or what it is a copy of.
    let same = |snapshot: &&SnapshotInfo| {
        snapshot.id == copy_of(since.origin, info.id)
            || snapshot.id == since.origin
            || copy_of(snapshot.id, header.volume_id) == since.origin
    };
    let found = there.iter().find(same).with_context(|| {
        format!(
            "volume {} has no snapshot that is {}@{}, which the stream goes on from: receive that \
             one first, or send without --since",
            info.name, header.volume, since.name
        )
    });
    found.map(Some)
}

/// The identity of a copy of a snapshot, in that volume.
fn copy_of(origin: VolumeId, volume: VolumeId) -> VolumeId {
    let mut hash = Context::new(&SHA256);
    hash.update(b"longhaul received snapshot");
    hash.update(&origin.0.to_be_bytes());
    hash.update(&volume.0.to_be_bytes());
    let mut id = [0; 16];
    id.copy_from_slice(&hash.finish().as_ref()[..16]);
    VolumeId(u128::from_be_bytes(id))
}

async fn write(
    writer: &mut Writer<'_>,
    header: &Header,
    info: &VolumeInfo,
    base: Option<&SnapshotInfo>,
    receiver: Receiver<BufReader<Box<dyn Read + Send>>>,
    bar: bool,
) -> Result<()> {
    let name = &info.name;
    match base {
        Some(base) => {
            let until = Later { id: info.id, sectors: info.sectors, key: None };
            let mut differs = Differs::new(writer.requests(), name, base, &until);
            while let Some(ranges) = differs.next().await? {
                if !ranges.is_empty() {
                    bail!(
                        "volume {name} has been written to since its snapshot {}: `longhaul \
                         snapshot rollback {name}@{}` takes that back",
                        base.name,
                        base.name
                    );
                }
            }
        }
        None => writer.discard(Range::new(0, info.sectors)),
    }
    let bar = progress(header.sectors.saturating_mul(SECTOR_BYTES), bar);
    writer.bar = Some(bar.clone());
    let result = pieces(writer, receiver).await;
    bar.finish_and_clear();
    result.with_context(|| match base {
        Some(base) => format!(
            "volume {name} may have a part of it now: `longhaul snapshot rollback {name}@{}`, and \
             receive it again",
            base.name
        ),
        None => format!("volume {name} is incomplete now: receive it again, with --yes"),
    })
}

async fn pieces(
    writer: &mut Writer<'_>,
    mut receiver: Receiver<BufReader<Box<dyn Read + Send>>>,
) -> Result<()> {
    let (sender, mut pieces) = mpsc::channel(8);
    // Ends by itself once nobody takes its pieces.
    let reader = tokio::task::spawn_blocking(move || {
        while let Some(piece) = receiver.piece()? {
            if sender.blocking_send(piece).is_err() {
                break;
            }
        }
        anyhow::Ok(())
    });
    while let Some(piece) = pieces.recv().await {
        let end = match &piece {
            Piece::Zeroes(range) => {
                writer.discard(*range);
                range.end()
            }
            Piece::Data(range, data) => {
                for part in cut(*range) {
                    let start = ((part.lba - range.lba) * SECTOR_BYTES) as usize;
                    let data = &data[start..start + part.bytes() as usize];
                    writer.record(part.lba * SECTOR_BYTES, data);
                }
                range.end()
            }
        };
        writer.at = end.saturating_mul(SECTOR_BYTES);
        writer.flow().await?;
    }
    reader.await.context("the reading thread failed")??;
    writer.finish().await
}
