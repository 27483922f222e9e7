//! Copies a raw image into a volume, as a host without a journal. It sends each batch after its
//! read. A batch is done when the store has committed it.
//!
//! The import first discards the old content, so that it need not send holes and zeroes of the
//! image.

use crate::output::progress;
use anyhow::{Context as _, Result, bail};
use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use indicatif::ProgressBar;
use longhaul_api::attributes;
use longhaul_api::keys::{
    self, Given, VERSIONS_ATTRIBUTE, next_statement, open_statement, seal_statement,
};
use longhaul_api::queries::show;
use longhaul_api::queries::status;
use longhaul_base::random;
use longhaul_base::service::Stop;
use longhaul_base::text::tell;
use longhaul_core::block::{Range, SECTOR_BYTES, Seq, VolumeId};
use longhaul_core::pack::{Keys, Packer, Packing};
use longhaul_core::record::packed::MAX_PACKED_SECTORS;
use longhaul_core::record::{self, Kind, MAX_RECORD_SECTORS, RecordError};
use longhaul_core::wire::link::{
    Attached, Frame, HostId, Lane, LiveInfo, ToHost, ToStore, VolumeInfo, VolumeOperation,
};
use longhaul_link::Requests;
use ring::digest::{Context, SHA256};
use rustix::fs::SeekFrom;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;
use tokio::sync::mpsc;

/// Bytes read and sent as one record.
pub(super) const PIECE_BYTES: usize = (MAX_RECORD_SECTORS * SECTOR_BYTES) as usize;
/// Skip zeroes in units of this many bytes.
const ZERO_BYTES: usize = 16 << 10;
/// Size at which to send a batch. The last record may exceed it.
const BATCH_BYTES: usize = 3 << 20;
/// Bytes sent and not committed.
const WINDOW_BYTES: usize = 32 << 20;

/// How long an interrupted command waits for the commits under way, and for the store to confirm
/// its end.
const LEAVE_LIMIT: Duration = Duration::from_secs(10);

/// Imports `file` into the volume `name`, and discards the old content. With `yes`, does not ask
/// first.
///
/// # Errors
/// If the file does not fit or is unreadable, the volume is attached, or the store fails.
pub async fn run(
    requests: &Requests,
    name: &str,
    file: &Path,
    given: &Given,
    (shown, yes): (bool, bool),
) -> Result<Value> {
    run_with(requests, name, file, given, (progress(0, shown), yes)).await
}

/// The same, with a bar that shows how much of the image is committed.
pub async fn run_with(
    requests: &Requests,
    name: &str,
    file: &Path,
    given: &Given,
    (bar, yes): (ProgressBar, bool),
) -> Result<Value> {
    let source = Source::open(file)?;
    let info = show(requests, name).await?;
    let size = info.sectors.saturating_mul(SECTOR_BYTES);
    if let Some(length) = source.length
        && length > size
    {
        bail!(
            "{} has {length} bytes, volume {name} only {size}: create one with --size {}",
            file.display(),
            length.next_multiple_of(u64::from(info.block_bytes))
        );
    }
    agree_to_discard(requests, &info, "the import", yes).await?;
    let mut stop = Stop::listen()?;
    let mut writer = attach(requests, &info, given).await?;
    bar.set_length(source.length.unwrap_or(size));
    writer.bar = Some(bar.clone());
    let sectors = writer.attached.sectors;
    let result = until(&mut stop, copy(&mut writer, source, sectors)).await;
    bar.finish_and_clear();
    if let Err(error) = result {
        tell(&format!("volume {name} is incomplete now: import again, with --yes"));
        writer.leave(&mut stop).await;
        return Err(error);
    }
    writer.detach().await?;
    Ok(json!({ "name": name, "data_bytes": writer.data_bytes }))
}

/// Does the work until a signal stops it.
///
/// # Errors
/// The error of the work, or that a signal stopped it.
pub(super) async fn until<T>(stop: &mut Stop, work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::select! {
        result = work => result,
        () = stop.wait() => bail!("stopped by a signal"),
    }
}

/// The upper half of the host identity of imports into a volume. They have no journal. So if one
/// ends early, only the store has its data, and nothing needs to wait for the host.
fn mark(volume: VolumeId) -> u64 {
    let mut hash = Context::new(&SHA256);
    hash.update(b"longhaul import");
    hash.update(&volume.0.to_be_bytes());
    let digest = hash.finish();
    digest.as_ref().iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// Whether the host of a volume was an import. Both are in their printed form.
pub(super) fn is_import(volume: &str, host: &str) -> bool {
    let number = |text| u128::from_str_radix(text, 16).ok();
    let (Some(volume), Some(host)) = (number(volume), number(host)) else { return false };
    (host >> 64) as u64 == mark(VolumeId(volume))
}

/// Asks whether to discard the content of a volume, if it has any.
///
/// # Errors
/// If the answer is no, nobody can answer, a host has the volume, or the store fails.
pub(super) async fn agree_to_discard(
    requests: &Requests,
    info: &VolumeInfo,
    by: &str,
    yes: bool,
) -> Result<()> {
    refuse_attached(info)?;
    if yes || !has_data(requests, info).await? {
        return Ok(());
    }
    let what = format!("volume {} has data, and {by} discards all of it", info.name);
    let asked = tokio::task::spawn_blocking(move || crate::confirm::ask(&what)).await;
    asked.context("the question on the terminal failed: say --yes")?
}

async fn has_data(requests: &Requests, info: &VolumeInfo) -> Result<bool> {
    let mut live = info.live.clone();
    if live.is_none() {
        // Asking for a part opens it.
        let first = Range::new(0, u64::from(info.block_bytes) / SECTOR_BYTES);
        status(requests, info.id, first).await?;
        live = show(requests, &info.name).await?.live;
    }
    Ok(live.is_none_or(|live| live.mapped_bytes > 0))
}

/// Refuses a volume that a host has, or owes something.
///
/// # Errors
/// If one does: what to do about it.
pub(super) fn refuse_attached(info: &VolumeInfo) -> Result<()> {
    let name = &info.name;
    let owed = |live: &LiveInfo, host: HostId| {
        let import = is_import(&info.id.to_string(), &host.to_string());
        live.announced_bytes > 0 || !(live.clean || import)
    };
    if let Some(live) = &info.live
        && let Some(host) = live.host
        && (live.connected || owed(live, host))
    {
        let advice = if live.connected {
            "stop that host first".to_owned()
        } else {
            format!(
                "it is not connected: start it and let it stop in order, or see the missing writes \
                 with `longhaul volume lost {name}` and give them up with `longhaul volume \
                 accept-loss {name}`, and try again"
            )
        };
        bail!("host {host} has volume {name} attached: {advice}");
    }
    Ok(())
}

/// Attaches a volume that no host has attached, for writes.
///
/// # Errors
/// If a host has attached it, the keys are not available, or the store fails.
pub(super) async fn attach<'a>(
    requests: &'a Requests,
    info: &VolumeInfo,
    given: &Given,
) -> Result<Writer<'a>> {
    refuse_attached(info)?;
    let name = &info.name;
    // Check the keys before fencing anyone off.
    keys::of_volume(requests, info, given).await?;
    let host = HostId(u128::from(mark(info.id)) << 64 | (random::identity()? >> 64));
    let reply = requests.call(Lane::Control, |request| ToStore::Attach {
        request,
        name: name.to_owned(),
        host,
        journal: None,
        take_over: false,
    });
    let ToHost::Attached { result, .. } = reply.await?.message else {
        return Err(longhaul_api::queries::unexpected());
    };
    let attached = result.with_context(|| format!("cannot attach volume {name}"))?;
    // Nobody but this epoch changes them from now on.
    let keys = keys::of_volume(requests, info, given).await?;
    if let Some(keys) = &keys {
        // A host that knows the volume believes in changes that somebody with the keys states.
        let Attached { volume, epoch, committed, .. } = attached;
        let last = attributes::get(requests, info, VERSIONS_ATTRIBUTE).await?;
        let last = open_statement(keys, volume, &last);
        let statement = next_statement(last.as_ref(), epoch, committed)?;
        let (attribute, data) =
            (VERSIONS_ATTRIBUTE.into(), seal_statement(keys, volume, &statement)?);
        let set = VolumeOperation::SetAttribute { volume, epoch, attribute, data, replaces: None };
        let stated = requests.volume(set).await;
        stated.context("the store does not keep the statement about the volume")?;
    }
    Ok(Writer::new(requests, &attached, keys))
}

async fn copy(writer: &mut Writer<'_>, source: Source, sectors: u64) -> Result<()> {
    writer.discard(Range::new(0, sectors));
    let (sender, mut pieces) = mpsc::channel(8);
    // Ends by itself once nobody takes its pieces.
    let reader = tokio::task::spawn_blocking(move || source.read_all(&sender));
    while let Some((offset, piece)) = pieces.recv().await {
        writer.at = offset + piece.len() as u64;
        let end = (offset + piece.len() as u64).div_ceil(SECTOR_BYTES);
        if end > sectors {
            bail!("the input is larger than the volume ({sectors} sectors)");
        }
        writer.write(offset, &piece).await?;
    }
    reader.await.context("the reading thread failed")??;
    writer.finish().await
}

/// Batches on their way.
pub(super) struct Writer<'a> {
    requests: &'a Requests,
    attached: Attached,
    packer: Packer,
    batch: BytesMut,
    first: Seq,
    next: Seq,
    /// Last number, bytes, and up to where of the source it reaches.
    under_way: VecDeque<(Seq, usize, u64)>,
    under_way_bytes: usize,
    /// The store commits nothing more of it.
    is_over: bool,
    /// Up to here the source has been written.
    pub(super) at: u64,
    /// Shows up to where the source is committed.
    pub(super) bar: Option<ProgressBar>,
    /// Bytes of data written.
    pub(super) data_bytes: u64,
}

impl<'a> Writer<'a> {
    fn new(requests: &'a Requests, attached: &Attached, keys: Option<Keys>) -> Writer<'a> {
        let next = attached.committed + 1;
        Writer {
            requests,
            attached: attached.clone(),
            packer: Packer::new(attached.volume, Packing { keys, ..Packing::default() }),
            batch: BytesMut::new(),
            first: next,
            next,
            under_way: VecDeque::new(),
            under_way_bytes: 0,
            is_over: false,
            at: 0,
            bar: None,
            data_bytes: 0,
        }
    }

    pub(super) fn requests(&self) -> &'a Requests {
        self.requests
    }

    /// Number of the key that new writes are encrypted with.
    pub(super) fn key(&self) -> Option<u32> {
        self.packer.key()
    }

    /// The sectors of `wanted` out of a packed record.
    pub(super) fn unpack(&mut self, record: &[u8], wanted: Range) -> Result<Bytes, RecordError> {
        self.packer.unpack(record, wanted)
    }

    pub(super) fn discard(&mut self, range: Range) {
        let (volume, epoch) = (self.attached.volume, self.attached.epoch);
        record::encode_marker(volume, Kind::Discard, epoch, self.next, range, &mut self.batch);
        self.next += 1;
    }

    /// Writes what is not zero of a piece at a multiple of [`PIECE_BYTES`].
    async fn write(&mut self, offset: u64, piece: &[u8]) -> Result<()> {
        let mut start = None;
        let mut at = 0;
        while at <= piece.len() {
            let unit = &piece[at..piece.len().min(at + ZERO_BYTES)];
            let data = unit.iter().any(|byte| *byte != 0);
            match (data, start) {
                (true, None) => start = Some(at),
                (false, Some(from)) => {
                    self.record(offset + from as u64, &piece[from..at.min(piece.len())]);
                    start = None;
                }
                _ => {}
            }
            at += ZERO_BYTES;
        }
        if let Some(from) = start {
            self.record(offset + from as u64, &piece[from..]);
        }
        self.flow().await
    }

    /// Sends what has come together, if it is enough, and waits while much is under way.
    pub(super) async fn flow(&mut self) -> Result<()> {
        if self.batch.len() >= BATCH_BYTES {
            self.send();
            self.committed(WINDOW_BYTES).await?;
        }
        // Take the notices that have come, without waiting.
        while let Some(notice) = self.requests.notice().now_or_never() {
            self.noticed(&notice?)?;
        }
        Ok(())
    }

    /// Ends interrupted work in order: waits for the commits under way, as far as that does not
    /// take long, and detaches the volume. A second signal ends that too.
    pub(super) async fn leave(&mut self, stop: &mut Stop) {
        let host = "lists show it as an unfinished import, which blocks nobody";
        let left = async {
            if !self.is_over {
                let _ = tokio::time::timeout(LEAVE_LIMIT, self.committed(0)).await;
            }
            tokio::time::timeout(LEAVE_LIMIT, self.detach()).await
        };
        tokio::select! {
            left = left => match left {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tell(&format!("the volume was not detached ({error:#}): {host}")),
                Err(_) => tell(&format!("the store has not confirmed the detach: {host}")),
            },
            () = stop.wait() => tell(&format!("left at once: {host}")),
        }
    }

    /// Sends the rest, and waits until all is committed.
    pub(super) async fn finish(&mut self) -> Result<()> {
        self.send();
        self.committed(0).await
    }

    /// Writes data that lies within one [`PIECE_BYTES`].
    pub(super) fn record(&mut self, offset: u64, data: &[u8]) {
        let padded;
        // The last sector of an image may be incomplete.
        let data = if data.len().is_multiple_of(SECTOR_BYTES as usize) {
            data
        } else {
            let mut longer = data.to_vec();
            longer.resize(data.len().next_multiple_of(SECTOR_BYTES as usize), 0);
            padded = longer;
            &padded
        };
        let range = Range::new(offset / SECTOR_BYTES, data.len() as u64 / SECTOR_BYTES);
        let epoch = self.attached.epoch;
        if self.packer.is_active() {
            // The pieces begin at multiples of their length. So their cuts are at boundaries of
            // checksums.
            let longest = (MAX_PACKED_SECTORS * SECTOR_BYTES) as usize;
            for (part, lba) in data.chunks(longest).zip((range.lba..).step_by(longest / 512)) {
                let range = Range::new(lba, part.len() as u64 / SECTOR_BYTES);
                self.packer.pack(epoch, self.next, range, part, &mut self.batch);
                self.next += 1;
            }
        } else {
            record::encode_data(
                self.attached.volume,
                epoch,
                self.next,
                range,
                data,
                &mut self.batch,
            );
            self.next += 1;
        }
        self.data_bytes += data.len() as u64;
    }

    fn send(&mut self) {
        if self.next == self.first {
            return;
        }
        let payload = self.batch.split().freeze();
        let last = self.next - 1;
        let Attached { volume, epoch, .. } = self.attached;
        self.under_way.push_back((last, payload.len(), self.at));
        self.under_way_bytes += payload.len();
        let message = ToStore::Batch { volume, epoch, first: self.first, last };
        self.requests.send(Lane::Drain, Frame { message, payload });
        self.first = self.next;
    }

    /// Waits until no more than `limit` bytes are under way.
    async fn committed(&mut self, limit: usize) -> Result<()> {
        while self.under_way_bytes > limit {
            let notice = self.requests.notice().await?;
            self.noticed(&notice)?;
        }
        Ok(())
    }

    fn noticed(&mut self, notice: &ToHost) -> Result<()> {
        match notice {
            ToHost::Committed { volume, seq, .. } if *volume == self.attached.volume => {
                while let Some((_, bytes, at)) =
                    self.under_way.pop_front_if(|(last, ..)| *last <= *seq)
                {
                    self.under_way_bytes -= bytes;
                    if let Some(bar) = &self.bar {
                        bar.set_position(at);
                    }
                }
            }
            ToHost::Fenced { .. } => {
                self.is_over = true;
                bail!("another host attached the volume meanwhile");
            }
            ToHost::BatchRefused { reason, .. } => {
                self.is_over = true;
                bail!("the store refused a batch: {reason}");
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) async fn detach(&self) -> Result<()> {
        let (volume, epoch) = (self.attached.volume, self.attached.epoch);
        let detach = |request| ToStore::Detach { request, volume, epoch };
        self.requests.call(Lane::Control, detach).await.map(drop)
    }
}

/// An image, or what comes from standard input.
struct Source {
    file: Option<File>,
    length: Option<u64>,
    name: String,
}

impl Source {
    fn open(path: &Path) -> Result<Source> {
        let name = path.display().to_string();
        if path.as_os_str() == "-" {
            return Ok(Source { file: None, length: None, name: "standard input".into() });
        }
        let open = || -> std::io::Result<(File, Option<u64>)> {
            let file = File::open(path)?;
            let metadata = file.metadata()?;
            // To find the length of a block device, seek to its end.
            let length = rustix::fs::seek(&file, SeekFrom::End(0)).ok();
            rustix::fs::seek(&file, SeekFrom::Start(0)).ok();
            Ok((file, if metadata.is_file() { Some(metadata.len()) } else { length }))
        };
        let (file, length) = open().with_context(|| format!("cannot read the image {name}"))?;
        Ok(Source { file: Some(file), length, name })
    }

    fn read_all(self, pieces: &mpsc::Sender<(u64, Bytes)>) -> Result<()> {
        match (&self.file, self.length) {
            (Some(file), Some(length)) => self.read_file(file, length, pieces),
            (Some(file), None) => self.read_stream(file, pieces),
            (None, _) => self.read_stream(std::io::stdin().lock(), pieces),
        }
    }

    fn read_file(
        &self,
        file: &File,
        length: u64,
        pieces: &mpsc::Sender<(u64, Bytes)>,
    ) -> Result<()> {
        let piece_bytes = PIECE_BYTES as u64;
        let mut at = 0;
        while at < length {
            // ENXIO: nothing but a hole follows. Other errors: a file system without holes.
            match rustix::fs::seek(file, SeekFrom::Data(at)) {
                Ok(data) => at = at.max(data / piece_bytes * piece_bytes),
                Err(rustix::io::Errno::NXIO) => return Ok(()),
                Err(_) => {}
            }
            let bytes = piece_bytes.min(length - at) as usize;
            let mut piece = vec![0; bytes];
            file.read_exact_at(&mut piece, at)
                .with_context(|| format!("cannot read {} at byte {at}", self.name))?;
            if pieces.blocking_send((at, piece.into())).is_err() {
                return Ok(());
            }
            at += bytes as u64;
        }
        Ok(())
    }

    fn read_stream(&self, mut from: impl Read, pieces: &mpsc::Sender<(u64, Bytes)>) -> Result<()> {
        let mut at = 0;
        loop {
            let mut piece = vec![0; PIECE_BYTES];
            let mut filled = 0;
            while filled < piece.len() {
                match from.read(&mut piece[filled..]) {
                    Ok(0) => break,
                    Ok(bytes) => filled += bytes,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => {
                        return Err(error).with_context(|| format!("cannot read {}", self.name));
                    }
                }
            }
            piece.truncate(filled);
            let last = filled < PIECE_BYTES;
            if filled == 0 || pieces.blocking_send((at, piece.into())).is_err() || last {
                return Ok(());
            }
            at += filled as u64;
        }
    }
}
