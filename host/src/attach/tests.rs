use super::journal::{claim, distrust_page_cache};
use crate::failure::AttachFailure;
use crate::state::{JournalShape, StateDir, VolumeFile, journal_path};
use longhaul_base::disk::FileArea;
use longhaul_core::block::VolumeId;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

#[test]
fn a_journal_is_read_from_its_disk() {
    let dir = tempfile::tempdir().unwrap();
    let path = journal_path(dir.path(), 0);
    std::fs::write(&path, vec![7; 4 << 20]).unwrap();
    let file = File::open(&path).unwrap();
    // proc_pid_io(5) counts the bytes that reads of this thread took from disks. A read with
    // RWF_NOWAIT would not do: it starts reading a missing page ahead, and a quick disk ends that
    // in time.
    let from_disk = || {
        let taken = || -> u64 {
            let io = std::fs::read_to_string("/proc/thread-self/io").unwrap();
            let line = io.lines().find_map(|line| line.strip_prefix("read_bytes: "));
            line.unwrap().parse().unwrap()
        };
        let before = taken();
        file.read_exact_at(&mut [0; 4096], 2 << 20).unwrap();
        taken() - before
    };
    assert_eq!(from_disk(), 0, "just written");
    let files = [FileArea::whole(file.try_clone().unwrap()).unwrap()];
    distrust_page_cache(&files, dir.path()).unwrap();
    // A file system in memory has nothing else to read from.
    if rustix::fs::fstatfs(&file).unwrap().f_type != libc::TMPFS_MAGIC {
        assert!(from_disk() >= 4096);
    }
}

#[test]
fn a_volume_is_claimed_before_the_store_is_asked() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(&dir.path().join("state")).unwrap();
    let shape = JournalShape::from_size(64 << 20).unwrap();
    let file = VolumeFile::new("v", VolumeId(7), 2048, 512, shape).unwrap();
    // Where nothing can be written, nobody else is fenced off.
    assert!(matches!(claim(&state, &mut file.clone()), Err(AttachFailure::Refused(_))));
    std::fs::create_dir_all(state.volume_dir(VolumeId(7))).unwrap();
    let mut claimed = file.clone();
    assert_eq!(claim(&state, &mut claimed).unwrap(), Some(file));
    let kept = state.volume(VolumeId(7)).unwrap().unwrap();
    assert!(!kept.released && !kept.delivered && kept == claimed);
    assert_eq!(claim(&state, &mut claimed).unwrap(), None);
}

#[test]
fn a_journal_that_cannot_be_synced_is_not_asked_again() {
    // Devices like this one have no sync.
    let files = [FileArea::whole(File::open("/dev/null").unwrap()).unwrap()];
    let error = distrust_page_cache(&files, Path::new("/state/volumes/7")).unwrap_err();
    let failure = AttachFailure::from(anyhow::Error::from(error).context("volume v"));
    let AttachFailure::Disk(why) = failure else { panic!("{failure:?}") };
    for part in ["volume v", "fdatasync of /state/volumes/7/journal.0000", "restart"] {
        assert!(why.contains(part), "{why}");
    }
}
