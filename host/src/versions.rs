//! The table of versions of a keyed volume: opened between the attach and the first request, after what this host
//! knows of the volume was compared with what the store has granted.
//!
//! ```text
//! versions/ID/versions.0000   two heads: up to which write the table is complete
//! versions/ID/versions.0001   a mark for each block, sparse
//! versions/ID/versions.0002   marks for the sectors of blocks that were written in part, sparse
//! ```
//!
//! It lies beside the directories of journals and not in them: an operator who moves a journal away still wants to
//! be told that the store has rolled the volume back. What is in the files is the engine's business.

use super::accepted::ExpectedRoot;
use super::attach::Failure;
use super::front::Front;
use super::learn;
use super::state::StateDir;
use super::volume::Volume;
use anyhow::{Context as _, Result};
use longhaul_api::keys;
use longhaul_base::disk::Disk;
use longhaul_base::files;
use longhaul_core::block::{Range, VolumeId};
use longhaul_core::host::versions::{
    BLOCKS, FILES, HEAD_BYTES, Head, JournalEnd, PAGE_BYTES, Root, Rooting, SECTORS, Statement,
    Verdict, damaged_bytes,
};
use longhaul_core::host::{Config, Mode, Versions};
use longhaul_core::pack::Keys;
use longhaul_core::wire::link::{
    Attached, LiveInfo, ToHost, ToStore, VolumeInfo, VolumeOperation, VolumeReply,
};
use rustix::fs::{OFlags, SeekFrom};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// A table and the disk it is on.
pub struct VersionTable {
    /// For the engine.
    pub versions: Versions,
    /// Where its operations go.
    pub disk: Disk,
}

/// Names what is accepted: it is good for this state of the table and for nothing that comes later.
fn token(head: &Head) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, &head.encode());
    digest.as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn dir(state: &StateDir, volume: VolumeId) -> PathBuf {
    state.path().join("versions").join(volume.to_string())
}

fn path(dir: &Path, file: u32) -> PathBuf {
    dir.join(format!("versions.{file:04}"))
}

/// The head of the table of a volume, if there is one.
pub(super) fn head(dir: &Path, volume: VolumeId) -> Result<Option<Head>> {
    let path = path(dir, 0);
    let mut heads = Vec::new();
    match files::open(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.and_then(|file| file.take(2 * HEAD_BYTES as u64).read_to_end(&mut heads)),
    }
    .with_context(|| format!("cannot read {}", path.display()))?;
    Head::newest(volume, &heads).with_context(|| {
        format!(
            "the table of versions in {} cannot be used, so nothing tells whether the store rolls the volume back: \
             bring it back from a copy, or move that directory away to believe what the store has now",
            dir.display()
        )
    })
}

/// What whoever has the keys stated last.
async fn statement(
    front: &Front,
    (name, volume): (&str, VolumeId),
    keys: &Keys,
) -> Result<Option<Statement>, Failure> {
    let attribute = keys::VERSIONS_ATTRIBUTE.into();
    let operation = VolumeOperation::GetAttribute { volume, attribute };
    let reply = front.router.call(|request| ToStore::Volume { request, operation }).await?;
    let data = match reply {
        ToHost::Volume { result: Ok(VolumeReply::Attribute(data)), .. } => data,
        ToHost::Volume { result: Err(error), .. } => {
            return Err(Failure::Refused(format!(
                "volume {name}: cannot ask what was stated of it: {error}"
            )));
        }
        _ => return Err(Failure::Refused("the store gave an answer that does not fit".into())),
    };
    let opened = keys::open_statement(keys, volume, &data);
    if opened.is_none() && !data.is_empty() {
        tracing::warn!(
            volume = name,
            "what was stated of the volume at the store was not made with its keys"
        );
    }
    Ok(opened)
}

/// States something at the store: also when there are new keys, since the old ones may be given up.
///
/// # Errors
/// If the store does not take it.
pub async fn put(
    front: &Front,
    (name, volume): (&str, VolumeId),
    statement: &Statement,
    keys: &Keys,
) -> Result<(), Failure> {
    let (epoch, attribute) = (statement.epoch, keys::VERSIONS_ATTRIBUTE.to_owned());
    let data = keys::seal_statement(keys, volume, statement)?;
    let operation =
        VolumeOperation::SetAttribute { volume, epoch, attribute, data, replaces: None };
    match front.router.call(|request| ToStore::Volume { request, operation }).await? {
        ToHost::Volume { result: Ok(_), .. } => Ok(()),
        ToHost::Volume { result: Err(error), .. } => Err(Failure::Refused(format!(
            "volume {name}: the store does not keep what is stated of it: {error}"
        ))),
        _ => Err(Failure::Refused("the store gave an answer that does not fit".into())),
    }
}

/// Looks, before the volume is attached, whether it would have to be refused.
///
/// # Errors
/// If so.
pub async fn look(front: &Rc<Front>, info: &VolumeInfo, keys: &Keys) -> Result<(), Failure> {
    let head = head(&dir(&front.state, info.id), info.id)?;
    let Some(LiveInfo { epoch, committed, .. }) = info.live else { return Ok(()) };
    let VolumeInfo { id: volume, sectors, block_bytes, .. } = *info;
    let attached = Attached { volume, sectors, block_bytes, epoch: epoch + 1, committed };
    let wanted = lesson(front, &info.name, head.as_ref());
    if wanted.is_none() && head.is_none() {
        return Ok(());
    }
    let stated = statement(front, (&info.name, volume), keys).await?;
    if let Some(expected) = wanted {
        return learn::look(front, &info.name, &attached, (stated, expected));
    }
    let Some(head) = head else { return Ok(()) };
    match head.judge(&attached, None, stated, None) {
        Verdict::Refuse(why) if !is_accepted(front, &info.name, &head) => {
            Err(refusal(&info.name, &head, &why.to_string()))
        }
        _ => Ok(()),
    }
}

/// What a volume has to be, if that is to be learned: what this host knows of it is not all, or nothing.
fn lesson(front: &Front, name: &str, head: Option<&Head>) -> Option<ExpectedRoot> {
    let expected = front.expected(name)?;
    match head {
        None => Some(expected),
        // What it knows counts for more than whatever is there, and for less than all.
        Some(head) => expected.filter(|_| !head.complete).map(Some),
    }
}

fn is_accepted(front: &Front, name: &str, head: &Head) -> bool {
    let token = token(head);
    front.options.accept_rollback.iter().any(|one| one.is_of(name, &token))
}

fn refusal(name: &str, head: &Head, why: &str) -> Failure {
    Failure::Refused(format!(
        "volume {name} is not as this host left it: {why}. If you rolled it back or know why, start this host with \
         --accept-rollback {name}={}: then it believes what the store has now",
        token(head)
    ))
}

/// Opens the table of a volume that was just attached, or makes one, and states at the store that whoever has the
/// keys has it; also what was stated. With `table` unset there is only the statement.
///
/// # Errors
/// If the volume is not what this host knows of it.
pub async fn open(
    front: &Rc<Front>,
    name: &str,
    attached: &Attached,
    keys: &Keys,
    journal: Option<JournalEnd>,
    table: bool,
) -> Result<(Option<VersionTable>, Statement), Failure> {
    let Attached { volume, epoch, committed, .. } = *attached;
    let dir = dir(&front.state, volume);
    let found = if table { head(&dir, volume)? } else { None };
    let stated = statement(front, (name, volume), keys).await?;
    let host = front.state.host();
    let mut start = None;
    if let Some(expected) = lesson(front, name, found.as_ref()).filter(|_| table) {
        let learned = learn::learn(front, name, attached, (stated, expected), &dir).await?;
        start = Some((learned.attached(attached, host), Vec::new()));
    } else if let Some(head) = found {
        let mut verdict = head.judge(attached, journal, stated, None);
        if let Verdict::Ask(since) = verdict {
            let changes = front.router.changes(volume, epoch, since).await?;
            verdict = head.judge(attached, journal, stated, Some(changes));
        }
        match verdict {
            Verdict::Go(ranges) => start = Some((head.attached(attached, host), ranges)),
            Verdict::Refuse(why) if is_accepted(front, name, &head) => {
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
    // Before anything is written under the epoch: who comes back after somebody else has to know that.
    put(front, (name, volume), &statement, keys).await?;
    if !table {
        return Ok((None, statement));
    }
    let (head, forgotten, new) = match start {
        Some((head, ranges)) => (head, ranges, false),
        None => {
            let complete = committed == 0 && keys.parents().is_empty();
            (Head::new(attached, host, complete, statement.key), Vec::new(), true)
        }
    };
    let opened =
        tokio::task::spawn_blocking(move || open_files(&dir, head, committed, &forgotten, new));
    let opened = opened.await.context("the thread that opens a table of versions failed")??;
    Ok((Some(opened), statement))
}

/// Creates or opens the files of a table, and writes its head.
pub(super) fn create_files(dir: &Path, head: &Head, new: bool) -> Result<Vec<File>> {
    let shown = dir.display();
    let open = || -> std::io::Result<Vec<File>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(new).mode(0o600);
        // The heads go first, and come last.
        // Nobody waits for the other end of a pipe in the place of one.
        options.custom_flags(OFlags::NONBLOCK.bits() as i32);
        let files = (0..FILES).map(|file| regular(options.open(path(dir, file))?));
        let files: Vec<File> = files.collect::<Result<_, _>>()?;
        for file in files.iter().rev() {
            file.sync_all()?;
        }
        let data = head.encode();
        files[0].write_all_at(&data, head.slot() * HEAD_BYTES as u64)?;
        files[0].sync_all()?;
        files::sync_dir(dir)?;
        Ok(files)
    };
    files::create_dir(dir)?;
    open().with_context(|| format!("cannot open the table of versions in {shown}"))
}

fn regular(file: File) -> std::io::Result<File> {
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(std::io::Error::new(ErrorKind::InvalidData, "it is not a regular file")),
    }
}

/// What is wrong with the files of a table: which, where, and how.
pub fn problems(dir: &Path, volume: VolumeId) -> Vec<(PathBuf, Option<u64>, String)> {
    let mut problems = Vec::new();
    if let Err(error) = head(dir, volume) {
        problems.push((path(dir, 0), None, format!("{error:#}")));
    }
    for file in [BLOCKS, SECTORS] {
        let path = path(dir, file);
        let mut look = || -> std::io::Result<()> {
            let open = files::open(&path)?;
            let mut next = 0;
            while let Some(start) = data_from(&open, next)? {
                let number = start / PAGE_BYTES as u64;
                next = (number + 1) * PAGE_BYTES as u64;
                let damaged = damaged_bytes(file, number, &read_page(&open, number)?);
                if damaged > 0 {
                    let place = Some(number * PAGE_BYTES as u64);
                    problems.push((
                        path.clone(),
                        place,
                        format!("{damaged} bytes of marks are damaged"),
                    ));
                }
            }
            Ok(())
        };
        if let Err(error) = look() {
            problems.push((path.clone(), None, format!("it cannot be read: {error}")));
        }
    }
    problems
}

/// Memory for the pages of a table, in bytes.
pub(super) fn memory() -> u64 {
    Config::new(Mode::WriteThrough).versions_bytes
}

/// Starts what carries out the operations on files of a table.
pub(super) fn start_disk(dir: &Path, files: Vec<File>) -> Result<Disk> {
    let names = dir.join("versions").display().to_string();
    Disk::start_sparse(files, names).context("cannot start its thread")
}

fn open_files(
    dir: &Path,
    head: Head,
    committed: u64,
    forgotten: &[Range],
    new: bool,
) -> Result<VersionTable> {
    let files = create_files(dir, &head, new)?;
    let versions = Versions::new(head, committed, forgotten, memory());
    let versions = versions
        .with_context(|| format!("the table of versions in {} has no key", dir.display()))?;
    Ok(VersionTable { versions, disk: start_disk(dir, files)? })
}

/// Works out the root of a table that is at rest; `None` if it does not know the version of every block.
///
/// # Errors
/// If it cannot be read.
pub(super) fn root_of(dir: &Path, volume: VolumeId) -> Result<Option<(Head, Root)>> {
    let Some(head) = head(dir, volume)? else { return Ok(None) };
    let Some(mut rooting) = Rooting::new(&head) else { return Ok(None) };
    let mut work = || -> std::io::Result<()> {
        let (blocks, sectors) =
            (files::open(&path(dir, BLOCKS))?, files::open(&path(dir, SECTORS))?);
        let page = PAGE_BYTES as u64;
        let mut next = 0;
        // The files are sparse, and as large as the volume makes them.
        while let Some(start) = data_from(&blocks, next * page)? {
            let number = start / page;
            let data = read_page(&blocks, number)?;
            rooting.take(number, &data, |number| read_page(&sectors, number))?;
            next = number + 1;
        }
        Ok(())
    };
    work().with_context(|| format!("cannot read the table of versions in {}", dir.display()))?;
    Ok(rooting.finish().map(|root| (head, root)))
}

/// Where there is data in a file, from an offset on.
fn data_from(file: &File, offset: u64) -> std::io::Result<Option<u64>> {
    match rustix::fs::seek(file, SeekFrom::Data(offset)) {
        Ok(start) => Ok(Some(start)),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A page; what lies beyond the end of the file is left out.
fn read_page(file: &File, number: u64) -> std::io::Result<Vec<u8>> {
    let mut page = vec![0; PAGE_BYTES];
    let mut have = 0;
    while have < page.len() {
        match file.read_at(&mut page[have..], number * PAGE_BYTES as u64 + have as u64)? {
            0 => break,
            read => have += read,
        }
    }
    page.truncate(have);
    Ok(page)
}

/// The epoch of a volume has ended, and all of it is in the table: states its root. What goes wrong costs no more than
/// that.
pub async fn conclude(front: &Rc<Front>, volume: &Volume) {
    let (name, &Attached { volume: id, epoch, .. }) = (volume.name(), volume.attached());
    let (Some(keys), dir) = (volume.keys(), dir(&front.state, id)) else { return };
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
    match put(front, (name, id), &statement, &keys).await {
        Ok(()) => {
            tracing::info!(volume = name, "its root after write {} is {}", root.seq, root.hash)
        }
        Err(failure) => tracing::warn!(
            volume = name,
            "its root after write {} is {}, which the store was not told: {failure:?}",
            root.seq,
            root.hash
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::accepted::Accepted;
    use super::*;
    use longhaul_core::wire::link::HostId;
    use rustix::fs::{FileType, Mode};

    #[test]
    fn what_is_accepted_is_named_and_changes_with_the_table() {
        let attached = |epoch| Attached {
            volume: VolumeId(7),
            sectors: 2048,
            block_bytes: 512,
            epoch,
            committed: 5,
        };
        let first = Head::new(&attached(1), HostId(1), true, [1; 32]);
        let second = first.attached(&attached(2), HostId(1));
        assert_ne!(token(&first), token(&second));
        let text = format!("acme/db={}", token(&first));
        assert!(text.parse::<Accepted>().unwrap().is_of("acme/db", &token(&first)));
        for wrong in ["db", "db=", "=0123456789abcdef", "db=0123456789abcdeg", "db=0123"] {
            assert!(wrong.parse::<Accepted>().unwrap_err().contains("NAME=TOKEN"), "{wrong}");
        }
    }

    #[test]
    fn a_table_is_made_found_and_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("versions");
        let volume = VolumeId(7);
        assert_eq!(head(&dir, volume).unwrap(), None);
        let attached = Attached { volume, sectors: 2048, block_bytes: 512, epoch: 1, committed: 0 };
        let first = Head::new(&attached, HostId(1), true, [1; 32]);
        drop(open_files(&dir, first.clone(), 0, &[], true).unwrap());
        assert_eq!(head(&dir, volume).unwrap(), Some(first.clone()));
        std::fs::write(path(&dir, 1), [7; 4096]).unwrap();
        let second = first.attached(&attached, HostId(1));
        drop(open_files(&dir, second.clone(), 0, &[], false).unwrap());
        assert_eq!(head(&dir, volume).unwrap(), Some(second));
        assert_eq!(std::fs::metadata(path(&dir, 1)).unwrap().len(), 4096);
        drop(open_files(&dir, first.clone(), 0, &[], true).unwrap());
        assert_eq!(head(&dir, volume).unwrap(), Some(first.clone()));
        assert_eq!(std::fs::metadata(path(&dir, 1)).unwrap().len(), 0);
        assert!(head(&dir, VolumeId(8)).is_err());
        assert_eq!(problems(&dir, volume), []);
        std::fs::write(path(&dir, 2), [7; 512]).unwrap();
        let found = problems(&dir, volume);
        assert_eq!((&found[0].0, found[0].1), (&path(&dir, 2), Some(0)), "{found:?}");
        // In a pipe nobody ever writes anything.
        for file in 0..FILES {
            let path = path(&dir, file);
            let kept = std::fs::read(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
            assert!(problems(&dir, volume).iter().any(|(of, ..)| *of == path));
            assert!(create_files(&dir, &first, false).is_err());
            assert!(file > 0 || head(&dir, volume).is_err());
            std::fs::remove_file(&path).unwrap();
            std::fs::write(&path, kept).unwrap();
        }
        std::fs::write(path(&dir, 0), [7; 8192]).unwrap();
        let error = format!("{:#}", head(&dir, volume).unwrap_err());
        assert!(error.contains("move that directory away"), "{error}");
    }
}
