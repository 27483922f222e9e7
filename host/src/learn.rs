//! A host that knows nothing of an encrypted volume learns all of it before anybody uses it, where the operator says what
//! its root is.
//!
//! Promises: nothing that was learned counts before its root has proved to be the expected one. A link that goes down
//! costs only time: what was read is kept by this process, for the next attempt. Everything that was asked has its answer
//! when this returns, unless the link is down. A volume that is not what was expected is not read again before the host is
//! restarted.

use super::accepted::ExpectedRoot;
use super::attach::Failure;
use super::front::Front;
use super::versions::{create_files, head, memory, root_of, start_disk};
use anyhow::{Context as _, Result};
use bytes::Bytes;
use longhaul_base::disk::Disk;
use longhaul_base::files;
use longhaul_base::random;
use longhaul_base::units::show_bytes;
use longhaul_core::block::{BlockState, Range, SECTOR_BYTES, Seq, VolumeId};
use longhaul_core::host::versions::{Head, Learned, Learner, Statement};
use longhaul_core::wire::link::{
    Attached, Frame, Lane, MAX_READ_SECTORS, Piece, ReadError, ToHost, ToStore,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Reads under way.
const READS: usize = 16;
/// Sectors of which is asked at a time where there is data (1 GiB).
const LOOK_SECTORS: u64 = 1 << 21;
/// How often it is said how far it is.
const TELL_INTERVAL: Duration = Duration::from_secs(30);

/// What is being learned, or was learned in vain.
pub type Lessons = RefCell<BTreeMap<VolumeId, Lesson>>;

/// See [`Lessons`].
pub enum Lesson {
    /// A link went down meanwhile.
    Begun(Box<Reading>),
    /// With this many writes the volume is not what was expected: why.
    Failed(Seq, String),
}

/// A table on the way.
pub struct Reading {
    learner: Learner,
    disk: Disk,
    dir: PathBuf,
    committed: Seq,
    told: Instant,
}

/// Looks, before a volume is attached, whether it can be what is expected.
///
/// # Errors
/// If not.
pub fn look(
    front: &Front,
    name: &str,
    attached: &Attached,
    (stated, expected): (Option<Statement>, ExpectedRoot),
) -> Result<(), Failure> {
    let lessons = front.lessons.borrow();
    if let Some(Lesson::Failed(committed, why)) = lessons.get(&attached.volume)
        && *committed == attached.committed
    {
        return Err(Failure::Refused(why.clone()));
    }
    let Some(expected) = expected else { return Ok(()) };
    let refused = |why: String| {
        Err(Failure::Refused(format!(
            "volume {name} is not what --expect-root says: {why}; if that is as it should be, give its newest root \
             (`longhaul volume show {name} --key-file FILE`)"
        )))
    };
    match stated.and_then(|stated| stated.root) {
        None => refused(
            "no root is stated at the store by anybody with its keys, so the host that had it last did not let it go in \
             order, did not know all of it, or the store hides that"
                .into(),
        ),
        Some(root) if root.hash != expected => {
            refused(format!("another root is stated at the store, {}, after write {}", root.hash, root.seq))
        }
        Some(root) if root.seq != attached.committed => refused(format!(
            "that root is the one after write {}, and the store has writes up to {}",
            root.seq, attached.committed
        )),
        Some(_) => Ok(()),
    }
}

/// Learns a volume that was just attached, and puts the table into `dir`; its head.
///
/// # Errors
/// If the volume is not what is expected, or cannot be read.
pub async fn learn(
    front: &Rc<Front>,
    name: &str,
    attached: &Attached,
    (stated, expected): (Option<Statement>, ExpectedRoot),
    dir: &Path,
) -> Result<Head, Failure> {
    look(front, name, attached, (stated, expected))?;
    let begun = front.lessons.borrow_mut().remove(&attached.volume);
    let mut reading = match begun {
        Some(Lesson::Begun(reading)) if reading.committed == attached.committed => reading,
        _ => {
            let key = stated.map_or_else(random::secret, |stated| Ok(stated.key))?;
            let head = Head::new(attached, front.state.host(), true, key);
            tracing::info!(volume = name, "reading all of it, to know the version of every block");
            Box::new(begin(dir, head, attached.committed).await?)
        }
    };
    let read = reading.read(front, name, attached).await;
    match read {
        Ok(()) => {}
        Err(Failure::Link) if !front.gives_up(name) => {
            front.lessons.borrow_mut().insert(attached.volume, Lesson::Begun(reading));
            return Err(Failure::Link);
        }
        Err(failure) => {
            discard(*reading).await;
            return Err(failure);
        }
    }
    let (id, new) = (attached.volume, reading.dir.clone());
    let root = tokio::task::spawn_blocking(move || root_of(&new, id)).await;
    let root = root.context("the thread that works out a root failed").flatten()?;
    let (_, root) = root.context("what was just learned is damaged: try again")?;
    if expected.is_some_and(|expected| expected != root.hash) {
        let why = format!(
            "volume {name} is not what --expect-root says: all of it was read, and its root is {}. The store gives out \
             older or other data than the host that stated the root had written. Do not use it; bring the data back, then \
             restart this host to read it again",
            root.hash
        );
        let failed = Lesson::Failed(attached.committed, why.clone());
        front.lessons.borrow_mut().insert(id, failed);
        discard(*reading).await;
        return Err(Failure::Refused(why));
    }
    let place = dir.to_owned();
    let moved = tokio::task::spawn_blocking(move || move_in(*reading, &place, id));
    let head = moved.await.context("the thread for files failed").flatten()?;
    tracing::info!(volume = name, "all of it is known: its root is {}", root.hash);
    Ok(head)
}

async fn begin(dir: &Path, head: Head, committed: Seq) -> Result<Reading> {
    let dir = dir.with_extension("new");
    let begin = move || {
        let files = create_files(&dir, &head, true)?;
        let learner = Learner::new(head, memory()).context("a table of versions has no key")?;
        let disk = start_disk(&dir, files)?;
        Ok(Reading { learner, disk, dir, committed, told: Instant::now() })
    };
    tokio::task::spawn_blocking(begin).await.context("the thread for files failed")?
}

/// Removes what was learned.
async fn discard(reading: Reading) {
    let removed = tokio::task::spawn_blocking(move || {
        let Reading { disk, dir, .. } = reading;
        drop(disk);
        std::fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))
    });
    if let Err(error) = removed.await.context("the thread for files failed").flatten() {
        tracing::warn!("{error:#}");
    }
}

/// Puts the table where it counts; what was there did not know all.
fn move_in(reading: Reading, place: &Path, volume: VolumeId) -> Result<Head> {
    let Reading { disk, dir, .. } = reading;
    drop(disk);
    let move_in = || -> std::io::Result<()> {
        match std::fs::remove_dir_all(place) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        std::fs::rename(&dir, place)?;
        place.parent().map_or(Ok(()), files::sync_dir)
    };
    move_in().with_context(|| format!("cannot move {} to {}", dir.display(), place.display()))?;
    head(place, volume)?.context("the table that was just made is gone")
}

impl Reading {
    /// Reads on to the end of the volume.
    async fn read(
        &mut self,
        front: &Front,
        name: &str,
        attached: &Attached,
    ) -> Result<(), Failure> {
        while self.learner.at() < attached.sectors {
            let from = self.learner.at();
            let window = Range::between(from, attached.sectors.min(from + LOOK_SECTORS));
            let (data, end) = data_in(front, name, attached, window).await?;
            let mut data: VecDeque<Range> = data.into();
            let mut under_way = VecDeque::new();
            let mut outcome = Ok(());
            loop {
                while outcome.is_ok()
                    && under_way.len() < READS
                    && let Some(range) = data.pop_front()
                {
                    match ask(front, attached, range) {
                        _ if front.gives_up(name) => outcome = Err(Failure::Link),
                        Ok(answer) => under_way.push_back((range, answer)),
                        Err(failure) => outcome = Err(failure),
                    }
                }
                let Some((range, answer)) = under_way.pop_front() else { break };
                // All of them, also after a failure: an engine that follows would take them for its own.
                let answer = answer.await.map_err(|_| Failure::Link);
                if outcome.is_ok() {
                    outcome = match answer {
                        Ok(frame) => self.take(name, range, frame).await,
                        Err(failure) => Err(failure),
                    };
                    self.tell(name, attached.sectors);
                }
            }
            outcome?;
            self.learner.pass(end);
        }
        self.learner.finish();
        while !self.learner.is_at_rest() {
            self.carry_out().await?;
        }
        Ok(())
    }

    fn tell(&mut self, name: &str, sectors: u64) {
        if self.told.elapsed() >= TELL_INTERVAL {
            self.told = Instant::now();
            let (at, all) = (self.learner.at() * SECTOR_BYTES, sectors * SECTOR_BYTES);
            tracing::info!(
                volume = name,
                "{} of {} are read, to know the version of every block",
                show_bytes(at),
                show_bytes(all)
            );
        }
    }

    async fn take(
        &mut self,
        name: &str,
        range: Range,
        frame: Frame<ToHost>,
    ) -> Result<(), Failure> {
        let pieces: Vec<Piece> = match frame.message {
            ToHost::Data { result, .. } => result.map_err(|error| refusal(name, range, error))?,
            _ => return Err(unfit(name, range)),
        };
        let payload: Bytes = frame.payload;
        // What lies before it is zeroes.
        self.learner.pass(range.lba);
        loop {
            match self.learner.take(range, &pieces, &payload) {
                Learned::Taken => return Ok(()),
                Learned::Later => self.carry_out().await?,
                Learned::Unfit => return Err(unfit(name, range)),
            }
        }
    }

    /// Carries out operations on the files until one has its outcome.
    async fn carry_out(&mut self) -> Result<()> {
        let mut moved = false;
        while let Some(operation) = self.learner.poll_disk() {
            if let Some(result) = self.disk.start_operation(operation) {
                self.learner.handle_disk(result).map_err(anyhow::Error::msg)?;
                moved = true;
            }
        }
        self.disk.submit();
        loop {
            for result in self.disk.take_results() {
                self.learner.handle_disk(result).map_err(anyhow::Error::msg)?;
                moved = true;
            }
            if moved {
                return Ok(());
            }
            self.disk.watch().await;
        }
    }
}

/// Where a store says to have data in a window, in pieces that can be read, and up to where it said so.
async fn data_in(
    front: &Front,
    name: &str,
    attached: &Attached,
    window: Range,
) -> Result<(Vec<Range>, u64), Failure> {
    let Attached { volume, epoch, .. } = *attached;
    let ask = |request| ToStore::Status { request, volume, epoch, range: window };
    let answer = front.router.ask_early(Lane::ReadAhead, volume, ask)?.await;
    let runs = match answer.map_err(|_| Failure::Link)?.message {
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
    front: &Front,
    attached: &Attached,
    range: Range,
) -> Result<oneshot::Receiver<Frame<ToHost>>, Failure> {
    let Attached { volume, epoch, .. } = *attached;
    let read = |request| ToStore::Read { request, volume, epoch, range };
    Ok(front.router.ask_early(Lane::ReadAhead, volume, read)?)
}

fn refusal(name: &str, range: Range, error: ReadError) -> Failure {
    match error {
        // It is attached again, and goes on from there.
        ReadError::NotAttached => Failure::Link,
        ReadError::Fenced(epoch) => Failure::Refused(format!(
            "volume {name} was attached with epoch {epoch} by another host while it was being read"
        )),
        ReadError::Medium(range) => Failure::Refused(format!(
            "volume {name}: the store's data of {range} is damaged, so its root cannot be worked out: `longhaul check` \
             on the store says what is damaged"
        )),
        ReadError::Invalid => unfit(name, range),
    }
}

fn unfit(name: &str, range: Range) -> Failure {
    Failure::Refused(format!(
        "volume {name}: what the store gives out of {range} is no content of an encrypted volume"
    ))
}
