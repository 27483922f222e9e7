//! Attaching a volume: its journal first, then the store, then the engine.
//!
//! The journal is found or made, with all its space, before the store is asked to attach: an attach that
//! succeeds fences every other host off, so nothing that can be known before may fail after it. Whether
//! another host has the volume, or owes it writes, is asked before a journal is made, and one that was
//! made for an attach that the store refuses is removed.

use super::cache::{self, CacheFile};
use super::front::Front;
use super::state::{
    JournalShape, Pin, StateDir, VolumeFile, journal_path, save_zeroed_files, zeroed_files,
};
use super::uplink::LinkLost;
use super::versions::{self, VersionTable};
use super::volume::{Backing, Volume};
use anyhow::{Context as _, Result};
use longhaul_api::keys::{self, PROGRESS_ATTRIBUTE, Progress, Secret};
use longhaul_base::disk::{Disk, Zero};
use longhaul_base::units::show_bytes;
use longhaul_core::block::VolumeId;
use longhaul_core::host::journal::{self, Recovered, Recovery};
use longhaul_core::host::versions::Statement;
use longhaul_core::host::{self as engine, DiskOperation, DiskResult};
use longhaul_core::pack::{Compression, Keys, Packing};
use longhaul_core::wire::link::{
    ATTRIBUTES_VERSION, AttachError, Attached, PACKED_VERSION, ToHost, ToStore, VolumeError,
    VolumeInfo, VolumeOperation, VolumeReply,
};
use std::fs::File;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant, SystemTime};

/// How often an encrypted volume that is attached is looked at for new keys.
const KEYS_INTERVAL: Duration = Duration::from_secs(20);
/// The same while it encrypts something anew, and says how far it is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Why a volume could not be attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The link is down: it is tried again when it is up.
    Link,
    /// There is no such volume.
    NotFound(String),
    /// Another host has it: it is tried again quietly.
    InUse(String),
    /// Another host took it.
    Fenced(String),
    /// Something that someone has to decide or repair.
    Refused(String),
    /// The disk under the journal failed to sync: not tried again by this process.
    Disk(String),
}

impl From<LinkLost> for Failure {
    fn from(_: LinkLost) -> Failure {
        Failure::Link
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        let text = format!("{error:#}");
        if error.is::<JournalDisk>() { Failure::Disk(text) } else { Failure::Refused(text) }
    }
}

/// The journal of a volume, ready for its engine.
pub struct Opened {
    files: Vec<File>,
    recovered: Recovered,
    /// First file to be zeroed in the background, it and all after it hold no frame; and these
    /// files once more.
    zero: (u32, Vec<File>),
    kept: Kept,
    /// It was made for this attach and has never been used.
    made: bool,
}

/// What this host keeps of a volume that is not attached.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Its description.
    pub file: VolumeFile,
    /// Bytes of writes that are not known to be at the store: at most so many are not.
    pub lag_bytes: u64,
    /// Journal space they take.
    pub journal_bytes: u64,
    /// The last write to the journal; the oldest one that is missing at the store is not younger.
    pub since: Option<SystemTime>,
    /// Whether the journal has been read; until then it may be full.
    pub known: bool,
}

impl Kept {
    fn unread(file: VolumeFile) -> Kept {
        let bytes = if file.delivered { 0 } else { file.journal.bytes() };
        let since = (bytes > 0).then(SystemTime::now);
        Kept { known: file.delivered, file, lag_bytes: bytes, journal_bytes: bytes, since }
    }

    fn read(file: VolumeFile, files: &[File], report: &journal::Report) -> Kept {
        if file.delivered || report.live_bytes == 0 {
            let (lag_bytes, journal_bytes, since) = (0, 0, None);
            return Kept { file, lag_bytes, journal_bytes, since, known: true };
        }
        let written = |file: &File| file.metadata().and_then(|meta| meta.modified()).ok();
        Kept {
            file,
            lag_bytes: report.live_bytes,
            journal_bytes: report.end.saturating_sub(report.tail),
            since: files.iter().filter_map(written).max(),
            known: true,
        }
    }
}

/// Attaches a volume by name. `journal` is what earlier attempts opened. `take_over`: also if another
/// host that is connected has it.
pub async fn attach(
    front: &Rc<Front>,
    name: &str,
    take_over: bool,
    journal: &mut Option<Opened>,
) -> Result<Rc<Volume>, Failure> {
    let attached = try_attach(front, name, take_over, journal).await;
    if let Err(failure) = &attached
        && *failure != Failure::Link
    {
        discard(front, name, journal).await;
    }
    attached
}

/// Removes a journal that was made for an attach which did not succeed.
pub async fn discard(front: &Rc<Front>, name: &str, journal: &mut Option<Opened>) {
    let Some(Opened { kept, .. }) = journal.take_if(|journal| journal.made) else { return };
    front.set_kept(name, None);
    let state = front.state.clone();
    let freed = tokio::task::spawn_blocking(move || state.free_volume(&kept.file)).await;
    if let Err(error) = freed.context("the thread for files failed").flatten() {
        tracing::warn!(volume = name, "the journal made for it stays: {error:#}");
    }
}

async fn try_attach(
    front: &Rc<Front>,
    name: &str,
    take_over: bool,
    journal: &mut Option<Opened>,
) -> Result<Rc<Volume>, Failure> {
    let trouble = prepare(front, name, journal).await;
    let info = match show(front, name).await {
        // What is wrong here can be repaired meanwhile.
        Err(Failure::Link) => {
            return Err(trouble.err().map_or(Failure::Link, |(_, failure)| failure));
        }
        shown => shown?,
    };
    let stale =
        front.state.volumes()?.into_iter().find(|volume| {
            volume.name == name && volume.id != info.id.to_string() && !volume.released
        });
    if let Some(stale) = stale {
        let dir = front.state.volume_dir(stale.volume_id()?);
        return Err(Failure::Refused(format!(
            "volume {name} was deleted and created again, and {} still holds the journal of the \
             deleted one: move that directory away to attach the new volume, or give up what is in it with `longhaul \
             detach {name} --drop-undelivered`",
            dir.display()
        )));
    }
    front.not_freeing(info.id).await;
    // The volume itself, whose keys a snapshot has.
    let volume = match snapshot_of(name) {
        Some(volume) => show(front, volume).await?,
        None => info.clone(),
    };
    let read_only = volume.id != info.id;
    if !read_only && !take_over {
        refuse_in_use(front, &info)?;
    }
    if front.options.write_through || read_only {
        refuse_undelivered(&front.state, &info)?;
        *journal = None;
    } else {
        if let Err((about, failure)) = trouble
            && about.is_none_or(|id| id == info.id)
        {
            return Err(failure);
        }
        if journal.as_ref().is_none_or(|opened| opened.kept.file.id != info.id.to_string()) {
            let opened = open_journal(front, &info).await?;
            front.set_kept(name, Some(opened.kept.clone()));
            *journal = Some(opened);
        }
    }

    let restore = match journal {
        Some(opened) => claim(&front.state, &mut opened.kept.file)?,
        None => None,
    };
    let keys = match open_keys(front, &volume, read_only, journal.as_ref(), None).await {
        Ok(keys) => keys,
        Err(failure) => {
            undo(front, name, restore, journal);
            return Err(failure);
        }
    };
    if let Err(failure) = may_expect(front, name, read_only, keys.keys.is_some()) {
        undo(front, name, restore, journal);
        return Err(failure);
    }
    let cache =
        if read_only { None } else { open_cache(front, name, info.id, keys.keys.is_some()).await };
    let asked = ask(front, name, (&info, &volume), take_over, journal, keys, cache).await;
    if asked.is_err() {
        undo(front, name, restore, journal);
    }
    asked
}

/// A root is expected of what can have one.
fn may_expect(front: &Front, name: &str, read_only: bool, encrypted: bool) -> Result<(), Failure> {
    let why = match (read_only, encrypted) {
        _ if front.expected(name).is_none() => return Ok(()),
        (true, _) => "snapshots have none",
        (false, true) => return Ok(()),
        (false, false) => {
            "the store says that it is not encrypted, and only encrypted volumes have one"
        }
    };
    Err(Failure::Refused(format!("volume {name}: a root is expected of it, and {why}")))
}

/// The volume of which a name names a snapshot.
pub(super) fn snapshot_of(name: &str) -> Option<&str> {
    name.split_once('@').map(|(volume, _)| volume)
}

/// Takes a claim back.
fn undo(front: &Front, name: &str, before: Option<VolumeFile>, journal: &mut Option<Opened>) {
    if let Some(file) = before
        && let Some(opened) = journal
    {
        if let Err(error) = front.state.save_volume(&file) {
            tracing::warn!(volume = name, "it will be attached at the next start: {error:#}");
        }
        opened.kept.file = file;
    }
}

/// The keys of a volume as the store has them now.
struct VolumeKeys {
    /// The attribute they come from.
    data: Vec<u8>,
    /// `None`: it is not encrypted, and need not be.
    keys: Option<Keys>,
    /// What they are wrapped with.
    secret: Option<Secret>,
}

/// Opens a list of keys away from the front's thread: a passphrase may take a second.
async fn unlock(
    front: &Front,
    (name, id): (&str, VolumeId),
    data: Vec<u8>,
    known: Option<Secret>,
) -> anyhow::Result<Option<(Keys, Secret)>> {
    let (owner, openers) = (front.options.locks.owner(name, id), front.options.locks.openers(name));
    let opened =
        tokio::task::spawn_blocking(move || keys::open(&owner, &data, &openers, known.as_ref()));
    opened.await.context("the thread that opens keys failed")?
}

/// The keys of a volume as the store has them now. What is wrong with them is told before the volume is attached.
/// `snapshot`: they are for one of its snapshots. `known`: what opened them before.
async fn open_keys(
    front: &Rc<Front>,
    info: &VolumeInfo,
    snapshot: bool,
    journal: Option<&Opened>,
    known: Option<Secret>,
) -> Result<VolumeKeys, Failure> {
    let refused = |why: String| Failure::Refused(format!("volume {}: {why}", info.name));
    let version = front.router.version();
    let data = if version < ATTRIBUTES_VERSION {
        Vec::new()
    } else {
        let id = info.id;
        let attribute = keys::ATTRIBUTE.to_owned();
        let operation = VolumeOperation::GetAttribute { volume: id, attribute };
        match front.router.call(|request| ToStore::Volume { request, operation }).await? {
            ToHost::Volume { result: Ok(VolumeReply::Attribute(data)), .. } => data,
            ToHost::Volume { result: Err(error), .. } => {
                return Err(refused(format!("cannot ask for its keys: {error}")));
            }
            _ => return Err(Failure::Refused("the store gave an answer that does not fit".into())),
        }
    };
    let opened = unlock(front, (&info.name, info.id), data.clone(), known).await;
    let opened = opened.map_err(|error| refused(format!("{error:#}")))?;
    let (mut keys, secret) = opened.unzip();
    if snapshot {
        keys = keys.map(|keys| keys.of_snapshot(info.id));
    }
    if keys.is_some() {
        front.state.remember_encryption(&info.name, info.id)?;
    } else {
        let before = journal.is_some_and(|opened| opened.kept.file.encrypted);
        let pin = match before {
            true => Some(Pin::Volume),
            false => front.state.encryption(&info.name, info.id)?,
        };
        if let Some(why) = front.options.locks.refusal(&info.name, pin) {
            return Err(refused(why));
        }
    }
    if let Some(opened) = journal.filter(|_| keys.is_some())
        && let Some(range) = opened.recovered.plain()
    {
        return Err(refused(format!(
            "it is encrypted, and the journal in {} holds writes that are not, the first at {range}: they are not \
             delivered; move that directory away to give them up",
            front.state.volume_dir(info.id).display()
        )));
    }
    let packs = keys.is_some() || front.options.compression != Compression::None;
    if packs && version < PACKED_VERSION {
        let what = if keys.is_some() { "encrypted" } else { "compressed" };
        return Err(refused(format!(
            "the store is too old to keep {what} data: upgrade it{}",
            if keys.is_some() { "" } else { ", or start this host with --compression none" }
        )));
    }
    Ok(VolumeKeys { data, keys, secret })
}

/// Takes up new keys of a volume while it is attached. Ends with the volume.
async fn follow_keys(
    front: Weak<Front>,
    volume: Weak<Volume>,
    (mut known, mut secret, mut present): (Vec<u8>, Option<Secret>, Keys),
    statement: Statement,
) {
    let mut interval = KEYS_INTERVAL;
    let mut said = None;
    loop {
        tokio::time::sleep(interval).await;
        let (Some(front), Some(volume)) = (front.upgrade(), volume.upgrade()) else { return };
        if volume.is_fenced() || volume.has_ended() {
            return;
        }
        let attached = volume.attached();
        let progress = volume.status().0.rewriting;
        let progress = progress.map(|status| Progress::new(attached.epoch, &status));
        let under_way = progress.is_some_and(|progress| !progress.done);
        interval = if under_way { PROGRESS_INTERVAL } else { KEYS_INTERVAL };
        if let Some(progress) = progress.filter(|progress| said != Some(*progress))
            && say(&front, attached.volume, &present, progress).await
        {
            said = Some(progress);
        }
        let (id, attribute) = (attached.volume, keys::ATTRIBUTE.to_owned());
        let operation = VolumeOperation::GetAttribute { volume: id, attribute };
        let asked = front.router.call(|request| ToStore::Volume { request, operation }).await;
        let Ok(ToHost::Volume { result: Ok(VolumeReply::Attribute(data)), .. }) = asked else {
            continue;
        };
        if data == known || data.is_empty() {
            continue;
        }
        let name = volume.name();
        match unlock(&front, (name, id), data.clone(), secret.clone()).await {
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
                if versions::put(&front, (name, id), &statement, &keys).await.is_err() {
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
async fn say(front: &Front, volume: VolumeId, keys: &Keys, progress: Progress) -> bool {
    let Ok(data) = progress.seal(keys, volume) else { return false };
    let (epoch, attribute) = (progress.epoch, PROGRESS_ATTRIBUTE.to_owned());
    let operation =
        VolumeOperation::SetAttribute { volume, epoch, attribute, data, replaces: None };
    let set = front.router.call(|request| ToStore::Volume { request, operation }).await;
    matches!(set, Ok(ToHost::Volume { result: Ok(_), .. }))
}

/// Notes that the volume is in use here before the store is asked for it, and returns what to go
/// back to if the store refuses: once another host is fenced off, nothing may fail.
fn claim(state: &StateDir, file: &mut VolumeFile) -> Result<Option<VolumeFile>, Failure> {
    if !file.released {
        return Ok(None);
    }
    let before = file.clone();
    (file.released, file.delivered) = (false, false);
    state.save_volume(file)?;
    Ok(Some(before))
}

/// Opens the read cache of a volume before the store is asked for the volume: it may take a while.
/// That of an encrypted volume is encrypted.
async fn open_cache(
    front: &Rc<Front>,
    name: &str,
    id: VolumeId,
    encrypted: bool,
) -> Option<CacheFile> {
    if front.options.write_through {
        return None;
    }
    let (state, bytes) = (front.state.clone(), front.options.cache_bytes);
    let label = name.to_owned();
    let open = move || cache::open(&state, (&label, id), bytes, encrypted);
    let opened = tokio::task::spawn_blocking(open).await;
    // Reads go to the store, then.
    opened.unwrap_or_default()
}

async fn ask(
    front: &Rc<Front>,
    name: &str,
    (info, volume): (&VolumeInfo, &VolumeInfo),
    take_over: bool,
    journal: &mut Option<Opened>,
    keys: VolumeKeys,
    cache: Option<CacheFile>,
) -> Result<Rc<Volume>, Failure> {
    let read_only = volume.id != info.id;
    if let Some(keys) = keys.keys.as_ref().filter(|_| journal.is_some() && !read_only) {
        versions::look(front, info, keys).await?;
    }
    let generation = front.router.generation();
    let state = journal.as_ref().and_then(|opened| opened.recovered.state());
    let host = front.state.host();
    let asked = |request| ToStore::Attach {
        request,
        name: name.to_owned(),
        host,
        journal: state,
        take_over,
    };
    let reply = front.router.call(asked).await?;
    let ToHost::Attached { result, .. } = reply else {
        return Err(Failure::Refused("the store gave an answer that does not fit".into()));
    };
    let attached = result.map_err(|error| refusal(front, name, info, &error))?;
    let Attached { volume: id, epoch, committed, .. } = attached;
    // With undelivered writes here the epoch must not count as ended in order.
    let delivered = state.is_none_or(|state| state.last <= committed);
    let granted = match id == info.id {
        true => granted(front, name, attached, volume, journal, (keys, cache)).await,
        false => Err(Failure::Refused(format!(
            "volume {name} was replaced while it was being attached; try again"
        ))),
    };
    if let Err(failure) = &granted
        && *failure != Failure::Link
        && delivered
    {
        // A link that is lost now leaves an epoch behind in which nothing was written.
        let _ = front.router.call(|request| ToStore::Detach { request, volume: id, epoch }).await;
    }
    let volume = granted?;
    tracing::info!(volume = name, epoch, "attached");
    // The engine takes the link for up. If it is not the one that answered, or none, it has to
    // resume like all the others.
    if front.router.generation() != generation {
        volume.with(|now, engine| engine.handle_link_down(now));
        if front.router.is_up() {
            volume.with(|now, engine| engine.handle_link_up(now));
        }
    }
    Ok(volume)
}

/// The store has granted an epoch: makes a volume of it. If that fails, nothing was written under the epoch.
async fn granted(
    front: &Rc<Front>,
    name: &str,
    attached: Attached,
    volume: &VolumeInfo,
    journal: &mut Option<Opened>,
    (mut keys, cache): (VolumeKeys, Option<CacheFile>),
) -> Result<Rc<Volume>, Failure> {
    let read_only = volume.id != attached.volume;
    if keys.keys.is_some() {
        // The last host may have got newer ones until a moment ago, and used them.
        let known = keys.secret.take();
        keys = open_keys(front, volume, read_only, journal.as_ref(), known).await?;
    }
    let VolumeKeys { data, keys, secret } = keys;
    let follow = keys.clone().map(|keys| (data, secret, keys));
    let ends = journal.as_ref().map(|opened| opened.recovered.ends());
    let (mut table, mut stated) = (None, None);
    if let Some(keys) = keys.as_ref().filter(|_| !read_only) {
        let opened = versions::open(front, name, &attached, keys, ends, ends.is_some()).await?;
        (table, stated) = (opened.0, Some(opened.1));
    }
    let volume = start(front, name, attached, journal.take(), keys, (cache, table))?;
    if let Some((known, stated)) = follow.zip(stated) {
        let follow = follow_keys(Rc::downgrade(front), Rc::downgrade(&volume), known, stated);
        tokio::task::spawn_local(follow);
    }
    Ok(volume)
}

fn start(
    front: &Rc<Front>,
    name: &str,
    attached: Attached,
    opened: Option<Opened>,
    keys: Option<Keys>,
    (cache, table): (Option<CacheFile>, Option<VersionTable>),
) -> Result<Rc<Volume>, Failure> {
    let options = &front.options;
    let journal = opened.as_ref().map(|opened| opened.kept.file.journal_id.clone());
    let (mode, recovered, backing) = match opened {
        None => (engine::Mode::WriteThrough, None, Backing::None),
        Some(Opened { kept, files, recovered, zero: (from, fresh), .. }) => {
            let Kept { mut file, .. } = kept;
            file.name = name.into();
            file.epoch = attached.epoch;
            file.sectors = attached.sectors;
            file.block_bytes = attached.block_bytes;
            (file.released, file.delivered) = (false, false);
            file.encrypted |= keys.is_some();
            if let Err(error) = front.state.save_volume(&file) {
                // Only the epoch is outdated, which the journal knows better: a full disk is no
                // reason to leave a volume down after a crash.
                tracing::warn!(volume = name, "{error:#}; going on, the journal has its space");
            }
            let dir = front.state.volume_dir(attached.volume);
            let names = journal_names(&dir);
            let id = file.journal_id;
            let done = Box::new(move |files| {
                if let Err(error) = save_zeroed_files(&dir, &id, files) {
                    tracing::debug!("zeroes will be written again: {error:#}");
                }
            });
            let disk = Disk::start(files, names, Some(Zero { from, files: fresh, done }))
                .context("cannot start the thread of a journal")?;
            let mode = engine::Mode::Journal(recovered.geometry);
            (mode, Some(recovered), Backing::Disk(disk))
        }
    };
    let config = engine::Config {
        durability: options.durability,
        on_journal_failure: options.on_journal_failure,
        packing: Packing { compression: options.compression, keys },
        readahead_bytes: options.readahead_bytes,
        ..engine::Config::new(mode)
    };
    let now = front.clock.now();
    let host = front.state.host();
    let engine = engine::Volume::new(now, config, host, attached.clone(), recovered);
    let weak = Rc::downgrade(front);
    let on_event = move |volume: &Volume, event| {
        if let Some(front) = weak.upgrade() {
            front.handle_event(volume, event);
        }
    };
    let uplink = front.router.clone();
    let volume = Volume::new(name.into(), attached, front.clock, engine, backing, uplink, on_event);
    if let Some(id) = journal {
        volume.set_journal(id);
    }
    if let Some(cache) = cache {
        volume.set_cache(cache);
    }
    if let Some(table) = table {
        volume.set_versions(table);
    }
    tokio::task::spawn_local(volume.clone().run());
    // Recovery may have left something to write or to ship.
    volume.with(|_, _| {});
    front.dress(&volume);
    Ok(volume)
}

async fn show(front: &Rc<Front>, name: &str) -> Result<VolumeInfo, Failure> {
    let operation = VolumeOperation::Show { name: name.to_owned() };
    match front.router.call(|request| ToStore::Volume { request, operation }).await? {
        // What was asked for counts, not what the store calls it.
        ToHost::Volume { result: Ok(VolumeReply::Volume(info)), .. } => {
            Ok(VolumeInfo { name: name.to_owned(), ..info })
        }
        ToHost::Volume { result: Err(error @ VolumeError::NotFound), .. } => {
            let kept = front.state.volumes()?.into_iter().find(|v| v.name == name && !v.released);
            let kept = match kept {
                None => String::new(),
                Some(volume) => format!(
                    "; what was not delivered to it is kept in {}: `longhaul detach {name} --drop-undelivered` gives it \
                     up",
                    front.state.volume_dir(volume.volume_id()?).display()
                ),
            };
            Err(Failure::NotFound(format!("volume {name}: {error}{kept}")))
        }
        ToHost::Volume { result: Err(error), .. } => {
            Err(Failure::Refused(format!("volume {name}: {error}")))
        }
        _ => Err(Failure::Refused("the store gave an answer that does not fit".into())),
    }
}

/// What to do about an attach that the store refused.
fn refusal(front: &Front, name: &str, info: &VolumeInfo, error: &AttachError) -> Failure {
    let dir = front.state.volume_dir(info.id);
    match error {
        AttachError::NotFound => Failure::NotFound(format!("volume {name}: {error}")),
        AttachError::ShuttingDown => Failure::Link,
        AttachError::InUse { .. } => Failure::InUse(error.to_string()),
        AttachError::Diverged { .. } | AttachError::WrongVolume(_) => {
            Failure::Refused(format!("volume {name}: {error} (it is in {})", dir.display()))
        }
        _ => Failure::Refused(format!("volume {name}: {error}")),
    }
}

/// An attach would be refused, or fence off a host that is at work.
fn refuse_in_use(front: &Front, info: &VolumeInfo) -> Result<(), Failure> {
    let live = info.live.as_ref().filter(|live| live.connected);
    match live.and_then(|live| live.host) {
        Some(host) if host != front.state.host() => {
            let by = live.map(|live| live.name.clone()).unwrap_or_default();
            let error = AttachError::InUse { volume: info.name.clone(), host, by };
            Err(Failure::InUse(error.to_string()))
        }
        _ => Ok(()),
    }
}

/// What another host never delivered has to be decided before a journal is made.
async fn refuse_loss(front: &Front, info: &VolumeInfo) -> Result<(), Failure> {
    let operation = VolumeOperation::Lost { name: info.name.clone(), from_lba: 0 };
    let asked = front.router.call(|request| ToStore::Volume { request, operation }).await?;
    let ToHost::Volume { result: Ok(VolumeReply::Lost { host, connected, ranges, .. }), .. } =
        asked
    else {
        // The attach says what is wrong.
        return Ok(());
    };
    match host {
        Some(host) if !connected && !ranges.is_empty() && host != front.state.host() => {
            let bytes = ranges.iter().map(|range| range.bytes()).sum();
            let error = AttachError::LossPending { host, bytes };
            Err(Failure::Refused(format!("volume {}: {error}", info.name)))
        }
        _ => Ok(()),
    }
}

fn refuse_undelivered(state: &StateDir, info: &VolumeInfo) -> Result<(), Failure> {
    match state.volume(info.id)? {
        Some(file) if !file.released => Err(Failure::Refused(format!(
            "volume {} has a journal in {} that may hold undelivered writes: start the host without \
             --write-through until it has drained and stop it in order, then with it",
            info.name,
            state.volume_dir(info.id).display()
        ))),
        // It was fenced off with them.
        Some(file) if !file.delivered => Err(Failure::Refused(format!(
            "volume {0} has a journal in {1} with writes that were not delivered before another host attached the \
             volume: move that directory away to keep them for salvage, or give them up with `longhaul detach {0} \
             --drop-undelivered`",
            info.name,
            state.volume_dir(info.id).display()
        ))),
        _ => Ok(()),
    }
}

/// Reads the journal kept for a name before the store is asked, which may be out of reach for long:
/// what was not delivered is known from the start. On failure says of which volume the journal is.
async fn prepare(
    front: &Rc<Front>,
    name: &str,
    journal: &mut Option<Opened>,
) -> Result<(), (Option<VolumeId>, Failure)> {
    let all = front.state.volumes().map_err(|error| (None, error.into()))?;
    let mut named = all.into_iter().filter(|volume| volume.name == name);
    let first = named.next();
    let file = match first {
        Some(file) if file.released => named.find(|volume| !volume.released).or(Some(file)),
        first => first,
    };
    let unused = |file: &VolumeFile| {
        front.options.write_through && file.released && file.delivered
            || front.state.is_half_freed(file)
    };
    let Some(file) = file.filter(|file| !unused(file)) else {
        *journal = None;
        front.set_kept(name, None);
        return Ok(());
    };
    let id = file.volume_id().map_err(|error| (None, error.into()))?;
    if journal.as_ref().is_some_and(|opened| opened.is_still(&file, &front.state.volume_dir(id))) {
        return Ok(());
    }
    *journal = None;
    front.set_kept(name, Some(Kept::unread(file.clone())));
    let (state, shape) = (front.state.clone(), front.options.journal);
    let recovered = tokio::task::spawn_blocking(move || recover(&state, file, shape)).await;
    let opened = recovered.context("the thread that reads a journal failed");
    let opened = opened.and_then(|opened| opened).map_err(|error| (Some(id), error.into()))?;
    front.set_kept(name, Some(opened.kept.clone()));
    *journal = Some(opened);
    Ok(())
}

impl Opened {
    /// Whether this is the journal of that description: an operator may have moved the files away
    /// since, or brought others.
    fn is_still(&self, file: &VolumeFile, dir: &Path) -> bool {
        let same = |number: u32, open: &File| -> std::io::Result<bool> {
            let (there, here) = (std::fs::metadata(journal_path(dir, number))?, open.metadata()?);
            Ok((there.dev(), there.ino()) == (here.dev(), here.ino()))
        };
        let mut files = (0..).zip(&self.files);
        self.kept.file == *file && files.all(|(number, open)| same(number, open).unwrap_or(false))
    }
}

/// Finds the journal of a volume and what it holds, or makes one.
async fn open_journal(front: &Rc<Front>, info: &VolumeInfo) -> Result<Opened, Failure> {
    let state = front.state.clone();
    let shape = front.options.journal;
    let info = info.clone();
    let known = state.volume(info.id)?.filter(|file| !state.is_half_freed(file));
    if known.is_none() {
        refuse_loss(front, &info).await?;
    }
    let opened = tokio::task::spawn_blocking(move || match known {
        Some(file) => recover(&state, file, shape),
        None => create(&state, &info, shape),
    });
    Ok(opened.await.context("the thread that opens a journal failed")??)
}

fn create(state: &StateDir, info: &VolumeInfo, shape: JournalShape) -> Result<Opened> {
    let started = Instant::now();
    let file = VolumeFile::new(&info.name, info.id, info.sectors, info.block_bytes, shape)?;
    let number = file.journal_number()?;
    let geometry = shape.geometry();
    let plan = journal::create_plan(geometry, number, info.id)?;
    state.create_journal(&file, &plan)?;
    let took = started.elapsed().as_secs_f64();
    let size = show_bytes(shape.bytes());
    tracing::info!(volume = info.name, "made a journal of {size} in {took:.2} s");
    let files = state.open_journal(&file)?;
    let recovered = Recovered::empty(geometry, number, info.id);
    let zero = fresh_files(state, &file, 1)?;
    let kept = Kept::unread(file);
    Ok(Opened { files, recovered, zero, kept, made: true })
}

fn fresh_files(state: &StateDir, file: &VolumeFile, from: u32) -> Result<(u32, Vec<File>)> {
    if from >= file.journal.files {
        return Ok((from, Vec::new()));
    }
    Ok((from, state.open_journal(file)?.split_off(from as usize)))
}

fn recover(state: &StateDir, file: VolumeFile, wanted: JournalShape) -> Result<Opened> {
    let started = Instant::now();
    let files = state.open_journal(&file)?;
    let id = file.volume_id()?;
    let dir = state.volume_dir(id);
    distrust_page_cache(&files, &dir)?;
    let mut recovery = Recovery::new(Some(id), lengths(&files)?);
    if file.encrypted {
        recovery = recovery.with_versions();
    }
    let recovered = std::thread::scope(|scope| {
        // The disk reads ahead while what is there is verified; only time is lost if it cannot.
        scope.spawn(|| {
            for file in &files {
                let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::WillNeed);
            }
        });
        run_recovery(&mut recovery, &files)
    })
    .with_context(|| format!("the journal in {} cannot be used", dir.display()))?;
    let report = recovery.report();
    tracing::info!(
        volume = file.name,
        "recovered a journal with {} writes ({}) in {:.2} s",
        report.records,
        show_bytes(report.live_bytes),
        started.elapsed().as_secs_f64()
    );
    if file.journal != wanted {
        tracing::info!(
            volume = file.name,
            "the journal keeps its size of {}; --journal-size is for new ones",
            show_bytes(file.journal.bytes())
        );
    }
    let zero = fresh_files(state, &file, report.files_reached.max(zeroed_files(&dir, &file)))?;
    let kept = Kept::read(file, &files, report);
    Ok(Opened { files, recovered, zero, kept, made: false })
}

/// Makes reads of a journal see what its disk holds.
///
/// The page cache may hold more: after a failed fsync the kernel marks the pages clean although they
/// never reached the disk (fsync(2), and "PostgreSQL's fsync surprise", LWN 2018), and a killed
/// process may have left pages that were never synced. Recovery would adopt writes from them that the
/// next power cut takes away. So everything dirty is written, clean pages are dropped, which needs
/// that (`POSIX_FADV_DONTNEED` skips dirty ones), and only then the files are read.
fn distrust_page_cache(files: &[File], dir: &Path) -> Result<(), JournalDisk> {
    for (number, file) in (0..).zip(files) {
        let path = journal_path(dir, number);
        let failed = |what: &str, error: rustix::io::Errno| {
            JournalDisk(format!(
                "the disk under the journal fails: {what} of {}: {error}; nothing more is asked of \
                 it until this host is restarted: check the disk, or carry {} to another one",
                path.display(),
                dir.display()
            ))
        };
        rustix::fs::fdatasync(file).map_err(|error| failed("fdatasync", error))?;
        rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)
            .map_err(|error| failed("dropping the page cache", error))?;
    }
    Ok(())
}

/// A sync of a journal failed: a second one may succeed without having stored what the first could
/// not, so there is none.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct JournalDisk(String);

/// The length of each file.
pub fn lengths(files: &[File]) -> std::io::Result<Vec<u64>> {
    files.iter().map(|file| Ok(file.metadata()?.len())).collect()
}

/// Gives a recovery what it asks for until it has an outcome.
pub fn run_recovery(recovery: &mut Recovery, files: &[File]) -> Result<Recovered> {
    loop {
        let Some(operation) = recovery.poll_disk() else {
            let outcome = recovery.poll_outcome().context("recovery came to no end")?;
            return Ok(outcome?);
        };
        let result = match operation {
            DiskOperation::Read { id, file, offset, bytes } => {
                let mut data = vec![0; bytes];
                match files[file as usize].read_exact_at(&mut data, offset) {
                    Ok(()) => DiskResult::Data { id, data: data.into() },
                    Err(error) => DiskResult::Failed { id, error: error.to_string() },
                }
            }
            DiskOperation::Write { id, .. } | DiskOperation::Sync { id, .. } => {
                DiskResult::Failed { id, error: "recovery is read-only".into() }
            }
        };
        recovery.handle_disk(result);
    }
}

/// What journal files are called in errors, without their number.
fn journal_names(dir: &Path) -> String {
    let path = journal_path(dir, 0);
    path.with_extension("").display().to_string()
}

#[cfg(test)]
mod tests;
