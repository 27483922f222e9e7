//! The keys of an encrypted volume: opens them before the attach, and follows them after it.

use super::journal::OpenedJournal;
use crate::context::HostContext;
use crate::failure::AttachFailure;
use crate::state::KnownEncryption;
use crate::versions;
use crate::volume::Volume;
use anyhow::Context as _;
use longhaul_api::keys::{self, PROGRESS_ATTRIBUTE, Progress, Secret};
use longhaul_core::block::VolumeId;
use longhaul_core::host::versions::Statement;
use longhaul_core::pack::Keys;
use longhaul_core::wire::link::{ToHost, ToStore, VolumeInfo, VolumeOperation, VolumeReply};
use std::rc::Weak;
use std::time::Duration;

/// How often the host looks for new keys of an attached encrypted volume.
const KEYS_INTERVAL: Duration = Duration::from_secs(20);
/// The same while it encrypts something anew, and says how far it is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// The keys of a volume as the store has them now.
pub(super) struct VolumeKeys {
    /// The attribute they come from.
    pub(super) data: Vec<u8>,
    /// `None`: it is not encrypted, and need not be.
    pub(super) keys: Option<Keys>,
    /// The secret that wraps them.
    pub(super) secret: Option<Secret>,
}

/// Opens a list of keys away from the front's thread: a passphrase may take a second.
async fn unlock(
    host: &HostContext,
    (name, id): (&str, VolumeId),
    data: Vec<u8>,
    known: Option<Secret>,
) -> anyhow::Result<Option<(Keys, Secret)>> {
    let (owner, openers) = (host.settings.locks.owner(name, id), host.settings.locks.openers(name));
    let opened =
        tokio::task::spawn_blocking(move || keys::open(&owner, &data, &openers, known.as_ref()));
    opened.await.context("the thread that opens keys failed")?
}

/// The keys of a volume as the store has them now. Errors show before the volume is attached.
/// `snapshot`: they are for one of its snapshots. `known`: what opened them before.
pub(super) async fn open_keys(
    host: &HostContext,
    info: &VolumeInfo,
    snapshot: bool,
    journal: Option<&OpenedJournal>,
    known: Option<Secret>,
) -> Result<VolumeKeys, AttachFailure> {
    let refused = |why: String| AttachFailure::Refused(format!("volume {}: {why}", info.name));
    let attribute = keys::ATTRIBUTE.to_owned();
    let operation = VolumeOperation::GetAttribute { volume: info.id, attribute };
    let data = match host.router.call(|request| ToStore::Volume { request, operation }).await? {
        ToHost::Volume { result: Ok(VolumeReply::Attribute(data)), .. } => data,
        ToHost::Volume { result: Err(error), .. } => {
            return Err(refused(format!("cannot ask for its keys: {error}")));
        }
        _ => {
            return Err(AttachFailure::Refused(
                "the store gave an answer that does not fit".into(),
            ));
        }
    };
    let opened = unlock(host, (&info.name, info.id), data.clone(), known).await;
    let opened = opened.map_err(|error| refused(format!("{error:#}")))?;
    let (mut keys, secret) = opened.unzip();
    if snapshot {
        keys = keys.map(|keys| keys.of_snapshot(info.id));
    }
    if keys.is_some() {
        host.state.remember_encryption(&info.name, info.id)?;
    } else {
        let before = journal.is_some_and(|opened| opened.kept.file.encrypted);
        let pin = match before {
            true => Some(KnownEncryption::Volume),
            false => host.state.encryption(&info.name, info.id)?,
        };
        if let Some(why) = host.settings.locks.refusal(&info.name, pin) {
            return Err(refused(why));
        }
    }
    if let Some(opened) = journal.filter(|_| keys.is_some())
        && let Some(range) = opened.recovered.plain()
    {
        return Err(refused(format!(
            "it is encrypted, and the journal in {} holds writes that are not, the first at \
             {range}: the host does not deliver them; move that directory away to give them up",
            host.state.volume_dir(info.id).display()
        )));
    }
    Ok(VolumeKeys { data, keys, secret })
}

/// Applies new keys of an attached volume. Ends with the volume.
pub(super) async fn follow_keys(
    host: Weak<HostContext>,
    volume: Weak<Volume>,
    (mut known, mut secret, mut present): (Vec<u8>, Option<Secret>, Keys),
    statement: Statement,
) {
    let mut interval = KEYS_INTERVAL;
    let mut said = None;
    loop {
        tokio::time::sleep(interval).await;
        let (Some(host), Some(volume)) = (host.upgrade(), volume.upgrade()) else { return };
        if volume.is_fenced() || volume.has_ended() {
            return;
        }
        let attached = volume.attached();
        let progress = volume.status().0.rewriting;
        let progress = progress.map(|status| Progress::new(attached.epoch, &status));
        let under_way = progress.is_some_and(|progress| !progress.done);
        interval = if under_way { PROGRESS_INTERVAL } else { KEYS_INTERVAL };
        if let Some(progress) = progress.filter(|progress| said != Some(*progress))
            && say(&host, attached.volume, &present, progress).await
        {
            said = Some(progress);
        }
        let (id, attribute) = (attached.volume, keys::ATTRIBUTE.to_owned());
        let operation = VolumeOperation::GetAttribute { volume: id, attribute };
        let asked = host.router.call(|request| ToStore::Volume { request, operation }).await;
        let Ok(ToHost::Volume { result: Ok(VolumeReply::Attribute(data)), .. }) = asked else {
            continue;
        };
        if data == known || data.is_empty() {
            continue;
        }
        let name = volume.name();
        match unlock(&host, (name, id), data.clone(), secret.clone()).await {
            Ok(Some((keys, opened))) => {
                secret = Some(opened);
                tracing::info!(
                    volume = name,
                    "new writes are encrypted with key {}",
                    keys.newest()
                );
                // The end of the epoch states more than this.
                if volume.has_ended() {
                    return;
                }
                // With all the keys there are: the next attach may find only the newest ones.
                if versions::put(&host, (name, id), &statement, &keys).await.is_err() {
                    continue;
                }
                present = keys.clone();
                volume.with(|now, engine| engine.handle_keys(now, keys));
                interval = PROGRESS_INTERVAL;
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(
                volume = name,
                "its keys have changed, and the next attach will be refused: {error:#}"
            ),
        }
        known = data;
    }
}

/// Says at the store how far this host is with encrypting a volume anew; false if it could not.
async fn say(host: &HostContext, volume: VolumeId, keys: &Keys, progress: Progress) -> bool {
    let Ok(data) = progress.seal(keys, volume) else { return false };
    let (epoch, attribute) = (progress.epoch, PROGRESS_ATTRIBUTE.to_owned());
    let operation =
        VolumeOperation::SetAttribute { volume, epoch, attribute, data, replaces: None };
    let set = host.router.call(|request| ToStore::Volume { request, operation }).await;
    matches!(set, Ok(ToHost::Volume { result: Ok(_), .. }))
}
