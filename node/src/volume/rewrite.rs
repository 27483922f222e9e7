//! `longhaul volume rotate-key --rewrite`: everything that a volume holds is encrypted with its newest data key.
//!
//! Works on a volume that no host has attached, in an epoch of its own: nobody else writes meanwhile, and whoever
//! attaches the volume ends it. What is encrypted with the newest key already is read and not written, so that a run
//! that was cut short goes on with the next one. Older keys leave the list once no snapshot can need them.

use super::export::status;
use super::import::{Writer, attach};
use super::{pretty, print, progress, show, snapshot, tell};
use crate::keys::{Change, Given};
use crate::link::Requests;
use crate::units::show_bytes;
use anyhow::{Context as _, Result};
use bytes::Bytes;
use futures_util::stream::{StreamExt as _, iter};
use longhaul_core::block::{BlockState, Range, SECTOR_BYTES, VolumeId};
use longhaul_core::record::{RecordError, packed};
use longhaul_core::wire::link::{
    Lane, MAX_READ_SECTORS, ReadPart, ToHost, ToStore, VolumeInfo, decode_data,
};
use serde_json::json;

/// Reads under way.
const READS: usize = 16;
/// The epoch of an observer.
const OBSERVER: u64 = 0;

/// Rewrites what is encrypted with older keys, and takes them from the list.
pub(super) async fn run(
    requests: &Requests,
    name: &str,
    given: &Given<'_>,
    as_json: bool,
) -> Result<()> {
    given.required()?;
    let info = show(requests, name).await?;
    let change = Change::begin(requests, &info, given, None).await?;
    // Several: an earlier run, or an earlier rotation, is to be completed.
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
        let retired = retire(requests, name, given).await?;
        anyhow::Ok((rewritten, retired))
    };
    let rewritten = rewritten.await;
    let detached = writer.detach().await;
    let (bytes, retired) = rewritten.with_context(|| {
        format!("volume {name} has blocks under older keys: the same command goes on from there")
    })?;
    detached?;
    if as_json {
        let Retired { keys, snapshots } = &retired;
        return print(&pretty(&json!({
            "rewritten_bytes": bytes, "retired_keys": keys, "snapshots": snapshots,
        }))?);
    }
    tell(&format!("{} of volume {name} were encrypted anew", show_bytes(bytes)));
    tell(&match (&retired.keys[..], retired.snapshots) {
        ([], 0) => "there is only one data key".to_owned(),
        (_, 0) => {
            "the older data keys are gone from its list; the store gives their blocks' space back"
                .to_owned()
        }
        (_, snapshots) => format!(
            "{snapshots} snapshots may need the older data keys, which stay in its list: delete them, and run this again"
        ),
    });
    Ok(())
}

/// What became of the older keys.
struct Retired {
    keys: Vec<u32>,
    /// Because of which they stay.
    snapshots: usize,
}

async fn retire(requests: &Requests, name: &str, given: &Given<'_>) -> Result<Retired> {
    // In the epoch that has rewritten everything: if another one has begun, this fails.
    let info = show(requests, name).await?;
    let snapshots = snapshot::listed(requests, name, true).await?.len();
    if snapshots > 0 {
        return Ok(Retired { keys: Vec::new(), snapshots });
    }
    let change = Change::begin(requests, &info, given, None).await?;
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

/// What a range holds, as it was packed.
async fn read(requests: &Requests, volume: VolumeId, range: Range) -> Result<Vec<(Range, Bytes)>> {
    let message = |request| ToStore::Read { request, volume, epoch: OBSERVER, range };
    let frame = requests.call(Lane::ReadAhead, message).await?;
    let ToHost::Data { result, .. } = frame.message else { return Err(super::unexpected()) };
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
