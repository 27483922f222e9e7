//! Compares the version table of a volume with the epoch that the store has granted, then opens it.

use super::learn;
use super::statement::{put, statement};
use crate::accepted::ExpectedRoot;
use crate::context::HostContext;
use crate::failure::AttachFailure;
use crate::task::AttachTask;
use crate::version_table::{VersionTable, dir, head, open_files, root_of, token};
use crate::volume::Volume;
use anyhow::{Context as _, Result};
use longhaul_api::keys;
use longhaul_core::host::versions::{Head, JournalEnd, Statement, Verdict};
use longhaul_core::pack::Keys;
use longhaul_core::wire::link::{Attached, LiveInfo, VolumeInfo};

/// Looks, before the attach, whether the host has to refuse the volume.
///
/// # Errors
/// If so.
pub async fn look(host: &HostContext, info: &VolumeInfo, keys: &Keys) -> Result<(), AttachFailure> {
    let head = head(&dir(&host.state, info.id), info.id)?;
    let Some(LiveInfo { epoch, committed, .. }) = info.live else { return Ok(()) };
    let VolumeInfo { id: volume, sectors, block_bytes, .. } = *info;
    let attached = Attached { volume, sectors, block_bytes, epoch: epoch + 1, committed };
    let wanted = expectation(host, &info.name, head.as_ref());
    if wanted.is_none() && head.is_none() {
        return Ok(());
    }
    let stated = statement(host, (&info.name, volume), keys).await?;
    if let Some(expected) = wanted {
        return learn::look(host, &info.name, &attached, (stated, expected));
    }
    let Some(head) = head else { return Ok(()) };
    match head.judge(&attached, None, stated, None) {
        Verdict::Refuse(why) if !is_accepted(host, &info.name, &head) => {
            Err(refusal(&info.name, &head, &why.to_string()))
        }
        _ => Ok(()),
    }
}

/// The root that a volume must have, if this host has to learn the volume: it knows nothing of it,
/// or not all.
fn expectation(host: &HostContext, name: &str, head: Option<&Head>) -> Option<ExpectedRoot> {
    let expected = host.settings.expected(name)?;
    match head {
        None => Some(expected),
        // Its knowledge counts for more than `any`, and for less than a root.
        Some(head) => expected.filter(|_| !head.complete).map(Some),
    }
}

fn is_accepted(host: &HostContext, name: &str, head: &Head) -> bool {
    let token = token(head);
    host.settings.accept_rollback.iter().any(|one| one.is_of(name, &token))
}

fn refusal(name: &str, head: &Head, why: &str) -> AttachFailure {
    AttachFailure::Refused(format!(
        "volume {name} is not as this host left it: {why}. If you rolled it back or know why, \
         start this host with --accept-rollback {name}={}: then it accepts the store's present \
         data",
        token(head)
    ))
}

/// Opens the table of a volume that was just attached, or makes one. States at the store that a
/// holder of the keys has the volume, and returns the last statement. With `table` unset there is
/// only the statement.
///
/// # Errors
/// If the volume is not what this host knows of it.
pub async fn open(
    host: &HostContext,
    task: &AttachTask,
    attached: &Attached,
    keys: &Keys,
    journal: Option<JournalEnd>,
    table: bool,
) -> Result<(Option<VersionTable>, Statement), AttachFailure> {
    let Attached { volume, epoch, committed, .. } = *attached;
    let name = task.name();
    let dir = dir(&host.state, volume);
    let found = if table { head(&dir, volume)? } else { None };
    let stated = statement(host, (name, volume), keys).await?;
    let us = host.state.host();
    let mut start = None;
    if let Some(expected) = expectation(host, name, found.as_ref()).filter(|_| table) {
        let learned = learn::learn(host, task, attached, (stated, expected), &dir).await?;
        start = Some((learned.attached(attached, us), Vec::new()));
    } else if let Some(head) = found {
        let mut verdict = head.judge(attached, journal, stated, None);
        if let Verdict::Ask(since) = verdict {
            let changes = host.router.changes(volume, epoch, since).await?;
            verdict = head.judge(attached, journal, stated, Some(changes));
        }
        match verdict {
            Verdict::Go(ranges) => start = Some((head.attached(attached, us), ranges)),
            Verdict::Refuse(why) if is_accepted(host, name, &head) => {
                tracing::warn!(volume = name, "{why}: accepted, and all versions are forgotten");
            }
            Verdict::Refuse(why) => return Err(refusal(name, &head, &why.to_string())),
            Verdict::Ask(_) => return Err(refusal(name, &head, "the store does not say")),
        }
    }
    let mut statement = keys::next_statement(stated.as_ref(), epoch, committed)?;
    if let Some((head, _)) = &start
        && head.key() != statement.key
    {
        // A root is one of marks made with the same key.
        (statement.key, statement.root) = (head.key(), None);
    }
    // This comes before any write under the epoch: a host that comes back after another one has to
    // know that.
    put(host, (name, volume), &statement, keys).await?;
    if !table {
        return Ok((None, statement));
    }
    let (head, forgotten, new) = match start {
        Some((head, ranges)) => (head, ranges, false),
        None => {
            let complete = committed == 0 && keys.parents().is_empty();
            (Head::new(attached, us, complete, statement.key), Vec::new(), true)
        }
    };
    let opened =
        tokio::task::spawn_blocking(move || open_files(&dir, head, committed, &forgotten, new));
    let opened = opened.await.context("the thread that opens a version table failed")??;
    Ok((Some(opened), statement))
}

/// The epoch of a volume has ended, and all of it is in the table: states its root. An error costs
/// no more than that.
pub async fn conclude(host: &HostContext, volume: &Volume) {
    let (name, &Attached { volume: id, epoch, .. }) = (volume.name(), volume.attached());
    let (Some(keys), dir) = (volume.keys(), dir(&host.state, id)) else { return };
    let worked_out = tokio::task::spawn_blocking(move || root_of(&dir, id)).await;
    let (head, root) = match worked_out.context("its thread failed").flatten() {
        Ok(Some(found)) => found,
        Ok(None) => {
            return tracing::info!(
                volume = name,
                "it has no root: this host does not know the version of all its blocks"
            );
        }
        Err(error) => {
            return tracing::warn!(volume = name, "its root is not known: {error:#}");
        }
    };
    // A table that failed ends earlier.
    if root.seq != volume.status().0.committed {
        return;
    }
    let statement = Statement { epoch, seq: root.seq, key: head.key(), root: Some(root) };
    match put(host, (name, id), &statement, &keys).await {
        Ok(()) => {
            tracing::info!(volume = name, "its root after write {} is {}", root.seq, root.hash)
        }
        Err(failure) => tracing::warn!(
            volume = name,
            "its root after write {} is {}, which the host could not state at the store: \
             {failure:?}",
            root.seq,
            root.hash
        ),
    }
}
