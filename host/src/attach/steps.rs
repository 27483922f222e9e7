//! The steps of an attempt to attach a volume.

use super::journal::{OpenedJournal, claim, discard, journal_names, open_journal, prepare, undo};
use super::keys::{VolumeKeys, follow_keys, open_keys};
use super::refusals::{may_expect, refusal, refuse_in_use, refuse_undelivered, show};
use crate::cache::{self, CacheFile};
use crate::context::HostContext;
use crate::failure::AttachFailure;
use crate::kept_journal::KeptJournal;
use crate::state::save_zeroed_files;
use crate::task::AttachTask;
use crate::version_table::VersionTable;
use crate::versions;
use crate::volume::{Backing, Volume, snapshot_of};
use longhaul_base::disk::{JournalDisk, Zero};
use longhaul_core::block::VolumeId;
use longhaul_core::host::{self as engine, Event};
use longhaul_core::pack::{Keys, Packing};
use longhaul_core::wire::link::{Attached, ToHost, ToStore, VolumeInfo};
use std::rc::Rc;

/// Takes what the engine of a volume reports.
pub type OnEvent = Rc<dyn Fn(&Volume, Event)>;

/// One attempt to attach a volume.
pub struct Attempt<'a> {
    /// The parts that the host's volumes share.
    pub host: &'a Rc<HostContext>,
    /// The task that makes the attempt.
    pub task: &'a AttachTask,
    /// Whether to take the volume from another host that is connected.
    pub take_over: bool,
    /// Takes the events of its engine.
    pub on_event: OnEvent,
}

/// Attaches a volume by name. `journal` is what earlier attempts opened.
///
/// # Errors
/// Why the volume is not attached.
pub async fn attach(
    attempt: &Attempt<'_>,
    journal: &mut Option<OpenedJournal>,
) -> Result<Rc<Volume>, AttachFailure> {
    let attached = try_attach(attempt, journal).await;
    if let Err(failure) = &attached
        && *failure != AttachFailure::Link
    {
        discard(attempt.host, attempt.task, journal).await;
    }
    attached
}

async fn try_attach(
    attempt: &Attempt<'_>,
    journal: &mut Option<OpenedJournal>,
) -> Result<Rc<Volume>, AttachFailure> {
    let Attempt { host, task, take_over, .. } = *attempt;
    let name = task.name();
    let trouble = prepare(host, task, journal).await;
    let info = match show(host, name).await {
        // The operator can repair the journal meanwhile.
        Err(AttachFailure::Link) => {
            return Err(trouble.err().map_or(AttachFailure::Link, |(_, failure)| failure));
        }
        shown => shown?,
    };
    let stale =
        host.state.volumes()?.into_iter().find(|volume| {
            volume.name == name && volume.id != info.id.to_string() && !volume.released
        });
    if let Some(stale) = stale {
        let dir = host.state.volume_dir(stale.volume_id()?);
        return Err(AttachFailure::Refused(format!(
            "volume {name} was deleted and created again, and {} still holds the journal of the \
             deleted one: move that directory away to attach the new volume, or give up its writes \
             with `longhaul detach {name} --drop-undelivered`",
            dir.display()
        )));
    }
    host.space.wait(info.id).await;
    // The volume itself, whose keys a snapshot has.
    let volume = match snapshot_of(name) {
        Some(volume) => show(host, volume).await?,
        None => info.clone(),
    };
    let read_only = volume.id != info.id;
    if !read_only && !take_over {
        refuse_in_use(host, &info)?;
    }
    if host.settings.write_through || read_only {
        refuse_undelivered(&host.state, &info)?;
        *journal = None;
    } else {
        if let Err((about, failure)) = trouble
            && about.is_none_or(|id| id == info.id)
        {
            return Err(failure);
        }
        if journal.as_ref().is_none_or(|opened| opened.kept.file.id != info.id.to_string()) {
            let opened = open_journal(host, &info).await?;
            task.set_kept(Some(opened.kept.clone()));
            *journal = Some(opened);
        }
    }

    let restore = match journal {
        Some(opened) => claim(&host.state, &mut opened.kept.file)?,
        None => None,
    };
    let keys = match open_keys(host, &volume, read_only, journal.as_ref(), None).await {
        Ok(keys) => keys,
        Err(failure) => {
            undo(host, name, restore, journal);
            return Err(failure);
        }
    };
    if let Err(failure) = may_expect(host, name, read_only, keys.keys.is_some()) {
        undo(host, name, restore, journal);
        return Err(failure);
    }
    let cache =
        if read_only { None } else { open_cache(host, name, info.id, keys.keys.is_some()).await };
    let asked = ask(attempt, (&info, &volume), journal, keys, cache).await;
    if asked.is_err() {
        undo(host, name, restore, journal);
    }
    asked
}

/// Opens the read cache of a volume before the host asks the store for the volume, because that may
/// take a while. The cache of an encrypted volume is encrypted.
async fn open_cache(
    host: &HostContext,
    name: &str,
    id: VolumeId,
    encrypted: bool,
) -> Option<CacheFile> {
    if host.settings.write_through {
        return None;
    }
    let (state, bytes) = (host.state.clone(), host.settings.cache_bytes);
    let label = name.to_owned();
    let open = move || cache::open(&state, (&label, id), bytes, encrypted);
    let opened = tokio::task::spawn_blocking(open).await;
    // Reads go to the store, then.
    opened.unwrap_or_default()
}

async fn ask(
    attempt: &Attempt<'_>,
    (info, volume): (&VolumeInfo, &VolumeInfo),
    journal: &mut Option<OpenedJournal>,
    keys: VolumeKeys,
    cache: Option<CacheFile>,
) -> Result<Rc<Volume>, AttachFailure> {
    let Attempt { host, task, take_over, .. } = *attempt;
    let name = task.name();
    let read_only = volume.id != info.id;
    if let Some(keys) = keys.keys.as_ref().filter(|_| journal.is_some() && !read_only) {
        versions::look(host, info, keys).await?;
    }
    let generation = host.router.generation();
    let state = journal.as_ref().and_then(|opened| opened.recovered.state());
    let us = host.state.host();
    let asked = |request| ToStore::Attach {
        request,
        name: name.to_owned(),
        host: us,
        journal: state,
        take_over,
    };
    let reply = host.router.call(asked).await?;
    let ToHost::Attached { result, .. } = reply else {
        return Err(AttachFailure::Refused("the store gave an answer that does not fit".into()));
    };
    let attached = result.map_err(|error| refusal(host, name, info, &error))?;
    let Attached { volume: id, epoch, committed, .. } = attached;
    // With undelivered writes here the epoch must not count as ended in order.
    let delivered = state.is_none_or(|state| state.last <= committed);
    let granted = match id == info.id {
        true => granted(attempt, attached, volume, journal, (keys, cache)).await,
        false => Err(AttachFailure::Refused(format!(
            "volume {name} was replaced while it was being attached; try again"
        ))),
    };
    if let Err(failure) = &granted
        && *failure != AttachFailure::Link
        && delivered
    {
        // If the link goes down now, it leaves behind an epoch without writes.
        let _ = host.router.call(|request| ToStore::Detach { request, volume: id, epoch }).await;
    }
    let volume = granted?;
    tracing::info!(volume = name, epoch, "attached");
    // The engine takes the link for up. If it is not the one that answered, or none, it has to
    // resume like all the others.
    if host.router.generation() != generation {
        volume.with(|now, engine| engine.handle_link_down(now));
        if host.router.is_up() {
            volume.with(|now, engine| engine.handle_link_up(now));
        }
    }
    Ok(volume)
}

/// Makes a volume of the epoch that the store has granted. If that fails, the epoch has no writes.
async fn granted(
    attempt: &Attempt<'_>,
    attached: Attached,
    volume: &VolumeInfo,
    journal: &mut Option<OpenedJournal>,
    (mut keys, cache): (VolumeKeys, Option<CacheFile>),
) -> Result<Rc<Volume>, AttachFailure> {
    let Attempt { host, task, .. } = *attempt;
    let read_only = volume.id != attached.volume;
    if keys.keys.is_some() {
        // The last host may have got newer ones until a moment ago, and used them.
        let known = keys.secret.take();
        keys = open_keys(host, volume, read_only, journal.as_ref(), known).await?;
    }
    let VolumeKeys { data, keys, secret } = keys;
    let follow = keys.clone().map(|keys| (data, secret, keys));
    let ends = journal.as_ref().map(|opened| opened.recovered.ends());
    let (mut table, mut stated) = (None, None);
    if let Some(keys) = keys.as_ref().filter(|_| !read_only) {
        let opened = versions::open(host, task, &attached, keys, ends, ends.is_some()).await?;
        (table, stated) = (opened.0, Some(opened.1));
    }
    let volume = start(attempt, attached, journal.take(), keys, (cache, table))?;
    if let Some((known, stated)) = follow.zip(stated) {
        let follow = follow_keys(Rc::downgrade(host), Rc::downgrade(&volume), known, stated);
        tokio::task::spawn_local(follow);
    }
    Ok(volume)
}

fn start(
    attempt: &Attempt<'_>,
    attached: Attached,
    opened: Option<OpenedJournal>,
    keys: Option<Keys>,
    (cache, table): (Option<CacheFile>, Option<VersionTable>),
) -> Result<Rc<Volume>, AttachFailure> {
    let Attempt { host, task, .. } = *attempt;
    let name = task.name();
    let settings = &host.settings;
    let journal = opened.as_ref().map(|opened| opened.kept.file.journal_id.clone());
    let (mode, recovered, backing) = match opened {
        None => (engine::Mode::WriteThrough, None, Backing::None),
        Some(OpenedJournal { kept, files, recovered, zero_from, .. }) => {
            let KeptJournal { mut file, .. } = kept;
            file.name = name.into();
            file.epoch = attached.epoch;
            file.sectors = attached.sectors;
            file.block_bytes = attached.block_bytes;
            (file.released, file.delivered) = (false, false);
            file.encrypted |= keys.is_some();
            if let Err(error) = host.state.save_volume(&file) {
                // Only the epoch is outdated, which the journal knows better. A full disk must not
                // keep a volume down after a crash.
                tracing::warn!(volume = name, "{error:#}; going on, the journal has its space");
            }
            let dir = host.state.volume_dir(attached.volume);
            let names = journal_names(&host.state, &file, &dir);
            let id = file.journal_id;
            let done: Box<dyn Fn(u32) + Send> = Box::new(move |files| {
                if let Err(error) = save_zeroed_files(&dir, &id, files) {
                    tracing::debug!("zeroes will be written again: {error:#}");
                }
            });
            let zero = zero_from.map(|from| Zero { from, done });
            let disk = JournalDisk::start(files, names, zero);
            let mode = engine::Mode::Journal(recovered.geometry);
            (mode, Some(recovered), Backing::Disk(Box::new(disk)))
        }
    };
    let config = engine::Config {
        durability: settings.durability,
        on_journal_failure: settings.on_journal_failure,
        packing: Packing { compression: settings.compression, keys },
        readahead_bytes: settings.readahead_bytes,
        ..engine::Config::new(mode)
    };
    let now = host.clock.now();
    let us = host.state.host();
    let engine = engine::Volume::new(now, config, us, attached.clone(), recovered);
    let report = attempt.on_event.clone();
    let on_event = move |volume: &Volume, event| report(volume, event);
    let uplink = host.router.clone();
    let volume = Volume::new(name.into(), attached, host.clock, engine, backing, uplink, on_event);
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
    Ok(volume)
}
