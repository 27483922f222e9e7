//! Learns all of an encrypted volume before its first use, on a host that knows nothing of it and
//! whose operator has given the root.
//!
//! Promises: nothing learned counts before its root has proved to be the expected one. If the link
//! goes down, this process keeps its reads for the next attempt, so that only time is lost. When
//! this returns, all requests have their answers, unless the link is down. If a volume is not the
//! expected one, the host does not read it again before a restart.

use crate::accepted::ExpectedRoot;
use crate::context::HostContext;
use crate::failure::AttachFailure;
use crate::learning::{TableInProgress, discard, move_in, refusal, unfit};
use crate::task::AttachTask;
use crate::version_table::root_of;
use anyhow::Context as _;
use longhaul_base::random;
use longhaul_core::block::{BlockState, Range};
use longhaul_core::host::versions::{Head, Statement};
use longhaul_core::wire::link::{Attached, Frame, Lane, MAX_READ_SECTORS, ToHost, ToStore};
use std::collections::VecDeque;
use std::path::Path;
use tokio::sync::oneshot;

/// Reads under way.
const READS: usize = 16;
/// Sectors to ask about at a time where there is data (1 GiB).
const LOOK_SECTORS: u64 = 1 << 21;
/// Checks, before an attach, whether the volume can be the expected one.
///
/// # Errors
/// If not.
pub fn look(
    host: &HostContext,
    name: &str,
    attached: &Attached,
    (stated, expected): (Option<Statement>, ExpectedRoot),
) -> Result<(), AttachFailure> {
    if let Some(why) = host.learned.failed(attached.volume, attached.committed) {
        return Err(AttachFailure::Refused(why));
    }
    let Some(expected) = expected else { return Ok(()) };
    let refused = |why: String| {
        Err(AttachFailure::Refused(format!(
            "volume {name} does not match --expect-root: {why}; if that is right, give its newest \
             root (`longhaul volume show {name} --key-file FILE`)"
        )))
    };
    match stated.and_then(|stated| stated.root) {
        None => refused(
            "no holder of its keys has stated a root at the store. So the last host did not detach \
             it in order, did not know all of it, or the store hides the root"
                .into(),
        ),
        Some(root) if root.hash != expected => {
            refused(format!("another root is stated at the store, {}, after write \
                 {}", root.hash, root.seq))
        }
        Some(root) if root.seq != attached.committed => refused(format!(
            "that root is the one after write {}, and the store has writes up to {}",
            root.seq, attached.committed
        )),
        Some(_) => Ok(()),
    }
}

/// Learns a volume that was just attached, and puts the table into `dir`. Returns its head.
///
/// # Errors
/// If the volume is not the expected one, or is unreadable.
pub async fn learn(
    host: &HostContext,
    task: &AttachTask,
    attached: &Attached,
    (stated, expected): (Option<Statement>, ExpectedRoot),
    dir: &Path,
) -> Result<Head, AttachFailure> {
    let name = task.name();
    look(host, name, attached, (stated, expected))?;
    let begun = host.learned.begun(attached.volume, attached.committed);
    let mut reading = match begun {
        Some(reading) => reading,
        None => {
            let key = stated.map_or_else(random::secret, |stated| Ok(stated.key))?;
            let head = Head::new(attached, host.state.host(), true, key);
            tracing::info!(volume = name, "reading all of it, to know the version of every block");
            Box::new(TableInProgress::begin(dir, head, attached.committed).await?)
        }
    };
    match read(&mut reading, host, task, attached).await {
        Ok(()) => {}
        Err(AttachFailure::Link) if !task.gives_up() => {
            host.learned.keep(attached.volume, reading);
            return Err(AttachFailure::Link);
        }
        Err(failure) => {
            discard(*reading).await;
            return Err(failure);
        }
    }
    let (id, new) = (attached.volume, reading.dir().to_owned());
    let root = tokio::task::spawn_blocking(move || root_of(&new, id)).await;
    let root = root.context("the thread that works out a root failed").flatten()?;
    let (_, root) = root.context("the data just learned is damaged: try again")?;
    if expected.is_some_and(|expected| expected != root.hash) {
        let why = format!(
            "volume {name} does not match --expect-root: the host read all of it, and its root is \
             {}. The store returns older or other data than the host of that root wrote. Do not \
             use it; restore the data, then restart this host to read it again",
            root.hash
        );
        host.learned.fail(id, attached.committed, why.clone());
        discard(*reading).await;
        return Err(AttachFailure::Refused(why));
    }
    let place = dir.to_owned();
    let moved = tokio::task::spawn_blocking(move || move_in(*reading, &place, id));
    let head = moved.await.context("the thread for files failed").flatten()?;
    tracing::info!(volume = name, "all of it is known: its root is {}", root.hash);
    Ok(head)
}

/// Reads on to the end of the volume.
async fn read(
    reading: &mut TableInProgress,
    host: &HostContext,
    task: &AttachTask,
    attached: &Attached,
) -> Result<(), AttachFailure> {
    let name = task.name();
    while reading.at() < attached.sectors {
        let from = reading.at();
        let window = Range::between(from, attached.sectors.min(from + LOOK_SECTORS));
        let (data, end) = data_in(host, name, attached, window).await?;
        let mut data: VecDeque<Range> = data.into();
        let mut under_way = VecDeque::new();
        let mut outcome = Ok(());
        loop {
            while outcome.is_ok()
                && under_way.len() < READS
                && let Some(range) = data.pop_front()
            {
                match ask(host, attached, range) {
                    _ if task.gives_up() => outcome = Err(AttachFailure::Link),
                    Ok(answer) => under_way.push_back((range, answer)),
                    Err(failure) => outcome = Err(failure),
                }
            }
            let Some((range, answer)) = under_way.pop_front() else { break };
            // All of them, also after a failure: an engine that follows would take them for its
            // own.
            let answer = answer.await.map_err(|_| AttachFailure::Link);
            if outcome.is_ok() {
                outcome = match answer {
                    Ok(frame) => reading.take(name, range, frame).await,
                    Err(failure) => Err(failure),
                };
                reading.tell(name, attached.sectors);
            }
        }
        outcome?;
        reading.pass(end);
    }
    reading.finish().await?;
    Ok(())
}

/// The ranges with data in a window, as a store reports them, in pieces of readable size. Also
/// returns the end of the report.
async fn data_in(
    host: &HostContext,
    name: &str,
    attached: &Attached,
    window: Range,
) -> Result<(Vec<Range>, u64), AttachFailure> {
    let Attached { volume, epoch, .. } = *attached;
    let ask = |request| ToStore::Status { request, volume, epoch, range: window };
    let answer = host.router.ask_early(Lane::ReadAhead, volume, ask)?.await;
    let runs = match answer.map_err(|_| AttachFailure::Link)?.message {
        ToHost::Status { result, .. } => result.map_err(|error| refusal(name, window, error))?,
        _ => return Err(unfit(name, window)),
    };
    let (mut data, mut at) = (Vec::new(), window.lba);
    for run in runs {
        let end = at.saturating_add(run.sectors).min(window.end());
        while run.state == BlockState::Data && at < end {
            let part = Range::between(at, end.min(at + MAX_READ_SECTORS));
            at = part.end();
            data.push(part);
        }
        at = end;
    }
    if at == window.lba {
        return Err(unfit(name, window));
    }
    Ok((data, at))
}

fn ask(
    host: &HostContext,
    attached: &Attached,
    range: Range,
) -> Result<oneshot::Receiver<Frame<ToHost>>, AttachFailure> {
    let Attached { volume, epoch, .. } = *attached;
    let read = |request| ToStore::Read { request, volume, epoch, range };
    Ok(host.router.ask_early(Lane::ReadAhead, volume, read)?)
}
