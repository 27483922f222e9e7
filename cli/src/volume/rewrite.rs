//! `longhaul volume rotate-key --rewrite`: encrypts all content of a volume with its newest data
//! key.
//!
//! If a host has the volume attached, the command asks it to do this, in the list of keys. The host
//! reports its progress in an [attribute](longhaul_api::keys::Progress) of the volume. Without a
//! host the command does it, in an epoch of its own: nobody else writes meanwhile. A host that
//! attaches the volume ends that epoch. The command only reads content that is under the newest key
//! already. So a later run completes an interrupted one. The older keys leave the list here, once
//! no snapshot can need them.

use super::import::{Writer, attach, is_import, refuse_attached};
use crate::output::{pretty, print, progress};
use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use futures_util::stream::{StreamExt as _, iter};
use longhaul_api::attributes;
use longhaul_api::keys::{Change, Given, Progress};
use longhaul_api::queries::show;
use longhaul_api::queries::{snapshots, status};
use longhaul_base::text::tell;
use longhaul_base::units::show_bytes;
use longhaul_core::block::{BlockState, Range, SECTOR_BYTES, VolumeId};
use longhaul_core::record::{RecordError, packed};
use longhaul_core::wire::link::{
    Lane, MAX_READ_SECTORS, ReadPart, ToHost, ToStore, VolumeInfo, decode_data,
};
use longhaul_link::Requests;
use serde_json::json;
use std::time::Duration;

/// Reads under way.
const READS: usize = 16;
/// How often to ask a host for its progress.
const ASK_INTERVAL: Duration = Duration::from_secs(2);
/// The epoch of an observer.
const OBSERVER: u64 = 0;

/// The way to do it.
#[derive(Clone, Copy)]
pub(super) struct How {
    /// Until a host has done it.
    pub(super) wait: bool,
    pub(super) as_json: bool,
}

/// Rewrites what is encrypted with older keys, or has that done, and takes them from the list.
pub(super) async fn run(requests: &Requests, name: &str, given: &Given, how: How) -> Result<()> {
    given.required()?;
    // A store that opens the volume only now does not know at once whether a host has it.
    attributes::epoch(requests, name).await?;
    let info = show(requests, name).await?;
    match is_attached(&info) {
        true => by_host(requests, name, given, how).await,
        false => here(requests, info, given, how.as_json).await,
    }
}

/// Whether a host has it attached that can do the work; an import cannot.
fn is_attached(info: &VolumeInfo) -> bool {
    let Some(live) = info.live.as_ref().filter(|live| live.connected) else { return false };
    let host = live.host.map(|host| host.to_string());
    host.is_some_and(|host| !is_import(&info.id.to_string(), &host))
}

/// Asks the host that has the volume attached to do it, or how far it is.
async fn by_host(requests: &Requests, name: &str, given: &Given, how: How) -> Result<()> {
    let bar = progress(0, how.wait && !how.as_json);
    loop {
        let info = show(requests, name).await?;
        if !is_attached(&info) {
            bail!("its host has let go of it: the same command does the rest");
        }
        let change = Change::begin(requests, &info, given, None).await?;
        let mut said = None;
        if change.retires() {
            said = change.progress().await?;
            if let Some(done) = said.filter(|said| said.done) {
                bar.finish_and_clear();
                let retired = retire(requests, name, change).await?;
                return report(name, done.rewritten_bytes, &retired, how.as_json);
            }
        } else {
            let key = change.begin_retiring().await?;
            if !how.as_json {
                tell(&format!("new writes to volume {name} are encrypted with key {key}"));
            }
        }
        if !how.wait {
            return on_its_way(name, said, how.as_json);
        }
        if let Some(said) = said {
            bar.set_length(said.total_bytes);
            bar.set_position(said.done_bytes);
        }
        tokio::time::sleep(ASK_INTERVAL).await;
    }
}

fn on_its_way(name: &str, said: Option<Progress>, as_json: bool) -> Result<()> {
    if as_json {
        return print(&pretty(&json!({ "done": false, "progress": said }))?);
    }
    let how_far = match said {
        None => {
            "its host begins within 30 s to encrypt the content under older keys anew".to_owned()
        }
        Some(Progress { done_bytes, total_bytes, failed_bytes, .. }) => {
            let failed = match failed_bytes {
                0 => String::new(),
                failed => format!(
                    "; the store could not give {}, which is tried again",
                    show_bytes(failed)
                ),
            };
            format!(
                "{} of {} are looked at{failed}",
                show_bytes(done_bytes),
                show_bytes(total_bytes)
            )
        }
    };
    tell(&format!(
        "volume {name}: {how_far}; `longhaul status` on the host shows the progress; when it is \
         done, the same command takes the older keys from the list"
    ));
    Ok(())
}

/// Does it in an epoch of this command.
async fn here(requests: &Requests, info: VolumeInfo, given: &Given, as_json: bool) -> Result<()> {
    let name = &*info.name;
    refuse_attached(&info)?;
    let change = Change::begin(requests, &info, given, None).await?;
    // Several keys: complete an earlier run, or an earlier rotation.
    if change.numbers().len() == 1 {
        let newest = change.rotate().await?;
        if !as_json {
            tell(&format!("new writes to volume {name} are encrypted with key {newest}"));
        }
    }
    let mut writer = attach(requests, &info, given).await?;
    let bar = progress(info.sectors.saturating_mul(SECTOR_BYTES), !as_json);
    let rewritten = rewrite(&mut writer, &info, &bar).await;
    bar.finish_and_clear();
    let rewritten = async {
        let rewritten = rewritten?;
        writer.finish().await?;
        // In the epoch that has rewritten everything: if another one has begun, this fails.
        let info = show(requests, name).await?;
        let change = Change::begin(requests, &info, given, None).await?;
        if change.numbers().into_iter().max() != writer.key() {
            bail!("another command has drawn another data key meanwhile");
        }
        let retired = retire(requests, name, change).await?;
        anyhow::Ok((rewritten, retired))
    };
    let rewritten = rewritten.await;
    let detached = writer.detach().await;
    let (bytes, retired) = rewritten.with_context(|| {
        format!("volume {name} has blocks under older keys: the same command goes on from there")
    })?;
    detached?;
    report(name, bytes, &retired, as_json)
}

fn report(name: &str, bytes: u64, retired: &Retired, as_json: bool) -> Result<()> {
    if as_json {
        let Retired { keys, snapshots } = retired;
        return print(&pretty(&json!({
            "done": true, "rewritten_bytes": bytes, "retired_keys": keys, "snapshots": snapshots,
        }))?);
    }
    tell(&format!("{} of volume {name} were encrypted anew", show_bytes(bytes)));
    tell(&match (&retired.keys[..], retired.snapshots) {
        ([], 0) => "the volume has only one data key".to_owned(),
        (_, 0) => {
            "the older data keys are gone from its list; the store gives their blocks' space back"
                .to_owned()
        }
        (_, snapshots) => format!(
            "{snapshots} snapshots may need the older data keys, which stay in its list: delete \
             them, and run this again"
        ),
    });
    Ok(())
}

/// The fate of the older keys.
struct Retired {
    keys: Vec<u32>,
    /// Because of which they stay.
    snapshots: usize,
}

/// Takes the older keys from a list, whose newest one everything is under.
async fn retire(requests: &Requests, name: &str, change: Change<'_>) -> Result<Retired> {
    // A snapshot from now on has no content under an older key.
    let snapshots = snapshots::listed(requests, name, true).await?.len();
    if snapshots > 0 {
        return Ok(Retired { keys: Vec::new(), snapshots });
    }
    Ok(Retired { keys: change.retire().await?, snapshots })
}

async fn rewrite(
    writer: &mut Writer<'_>,
    info: &VolumeInfo,
    bar: &indicatif::ProgressBar,
) -> Result<u64> {
    let requests = writer.requests();
    let mut bytes = 0;
    let mut at = 0;
    while at < info.sectors {
        let mut ranges = Vec::new();
        for run in status(requests, info.id, Range::between(at, info.sectors)).await? {
            let part = Range::new(at, run.sectors);
            at = part.end();
            if run.state == BlockState::Data {
                ranges.extend(pieces(part));
            }
        }
        let reads = iter(ranges).map(|range| read(requests, info.id, range));
        let mut reads = std::pin::pin!(reads.buffered(READS));
        while let Some(parts) = reads.next().await {
            for (wanted, record) in parts? {
                let (_, lock, _) =
                    packed::open(info.id, &record).context("the store's data is damaged")?;
                if Some(lock.key) == writer.key() {
                    continue;
                }
                let data = writer.unpack(&record, wanted);
                let data = data.with_context(|| format!("cannot read {wanted}"))?;
                writer.record(wanted.lba * SECTOR_BYTES, &data);
                bytes += data.len() as u64;
            }
            writer.flow().await?;
        }
        bar.set_position(at.saturating_mul(SECTOR_BYTES));
    }
    Ok(bytes)
}

/// Parts that one read may ask for, cut where records may end.
fn pieces(range: Range) -> impl Iterator<Item = Range> {
    let first = range.lba / MAX_READ_SECTORS * MAX_READ_SECTORS;
    (first..range.end()).step_by(MAX_READ_SECTORS as usize).map(move |start| {
        Range::between(start.max(range.lba), range.end().min(start + MAX_READ_SECTORS))
    })
}

/// Reads a range in its packed form.
async fn read(requests: &Requests, volume: VolumeId, range: Range) -> Result<Vec<(Range, Bytes)>> {
    let message = |request| ToStore::Read { request, volume, epoch: OBSERVER, range };
    let frame = requests.call(Lane::ReadAhead, message).await?;
    let ToHost::Data { result, .. } = frame.message else {
        return Err(longhaul_api::queries::unexpected());
    };
    let pieces = result.with_context(|| format!("cannot read {range}"))?;
    let mut found = Vec::new();
    for part in decode_data(range, &pieces, frame.payload)? {
        match part {
            ReadPart::Hole(_) | ReadPart::Zero(_) => {}
            ReadPart::Packed { wanted, record } => found.push((wanted, record)),
            ReadPart::Data { wanted, .. } => return Err(RecordError::Plain(wanted).into()),
        }
    }
    Ok(found)
}
