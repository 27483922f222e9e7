//! A state directory on a disk.

use super::dir::ENCRYPTED;
use super::*;
use bytes::Bytes;
use longhaul_core::block::VolumeId;
use longhaul_core::host::journal;
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

fn volume(shape: JournalShape) -> VolumeFile {
    VolumeFile::new("v", VolumeId(7), 2048, 512, shape).unwrap()
}

#[test]
fn identity_survives_and_is_not_made_twice() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let first = StateDir::open(&path).unwrap().host();
    assert_eq!(StateDir::open(&path).unwrap().host(), first);
    std::fs::write(path.join("host.toml"), "version = 1\nid = \"xyz\"").unwrap();
    let error = format!("{:#}", StateDir::open(&path).err().unwrap());
    assert!(error.contains("host.toml") && error.contains("hexadecimal"), "{error}");
    std::fs::write(path.join("host.toml"), "version = 9\nid = \"\"").unwrap();
    assert!(format!("{:#}", StateDir::open(&path).err().unwrap()).contains("newer"));
}

#[test]
fn what_was_encrypted_is_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(dir.path()).unwrap();
    let encryption = |name: &str, id: u128| state.encryption(name, VolumeId(id)).unwrap();
    assert_eq!(encryption("acme/db", 7), None);
    for _ in 0..2 {
        state.remember_encryption("acme/db", VolumeId(7)).unwrap();
    }
    state.remember_encryption("a.b", VolumeId(9)).unwrap();
    assert_eq!(encryption("acme/db", 7), Some(KnownEncryption::Volume));
    assert_eq!(encryption("other", 7), Some(KnownEncryption::Volume));
    assert_eq!(encryption("acme/db", 8), Some(KnownEncryption::Name));
    assert_eq!((encryption("db", 8), encryption("a", 8)), (None, None));
    assert_eq!(encryption("a.b", 8), Some(KnownEncryption::Name));
    // An unreadable memory is an error, not an empty one.
    std::fs::remove_dir_all(dir.path().join(ENCRYPTED)).unwrap();
    std::fs::write(dir.path().join(ENCRYPTED), "").unwrap();
    assert!(state.encryption("db", VolumeId(8)).is_err());
    assert!(state.remember_encryption("db", VolumeId(8)).is_err());
}

#[test]
fn a_lost_identity_beside_volumes_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    drop(StateDir::open(dir.path()).unwrap());
    std::fs::create_dir(dir.path().join("volumes/x")).unwrap();
    std::fs::remove_file(dir.path().join("host.toml")).unwrap();
    assert!(StateDir::open(dir.path()).err().unwrap().to_string().contains("bring it back"));
}

#[test]
fn the_lock_names_its_holder() {
    let dir = tempfile::tempdir().unwrap();
    let held = StateDir::open(dir.path()).unwrap();
    let error = StateDir::open(dir.path()).err().unwrap().to_string();
    assert!(error.contains(&std::process::id().to_string()), "{error}");
    drop(held);
    StateDir::open(dir.path()).unwrap();
}

#[test]
fn journals_come_with_their_space() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(dir.path()).unwrap();
    let mut volume = volume(JournalShape { file_bytes: 64 << 10, files: 3 });
    let plan: Vec<_> = (0..3).map(|n| (n, Bytes::from(vec![n as u8 + 1; 16]))).collect();
    state.create_journal(&mut volume, &plan).unwrap();
    let files = state.open_journal(&volume).unwrap();
    assert_eq!(files.len(), 3);
    for (number, file) in files.iter().enumerate() {
        use std::os::unix::fs::MetadataExt as _;
        assert!(file.file().metadata().unwrap().blocks() * 512 >= 64 << 10, "space is reserved");
        let mut start = [0; 17];
        file.read_exact_at(&mut start, 0).unwrap();
        assert_eq!((start[0], start[16]), (number as u8 + 1, 0));
    }
    assert_eq!(state.volumes().unwrap(), std::slice::from_ref(&volume));
    assert_eq!(state.volume(VolumeId(7)).unwrap(), Some(volume.clone()));
    assert_eq!(state.volume(VolumeId(8)).unwrap(), None);
    let file = journal_path(&state.volume_dir(VolumeId(7)), 1);
    OpenOptions::new().write(true).open(&file).unwrap().set_len(5).unwrap();
    let error = state.open_journal(&volume).unwrap_err().to_string();
    assert!(error.contains("journal.0001") && error.contains("5 bytes"), "{error}");
    std::fs::remove_file(file).unwrap();
    assert!(format!("{:#}", state.open_journal(&volume).unwrap_err()).contains("journal.0001"));
}

#[test]
fn what_was_zeroed_is_remembered_by_journal() {
    let dir = tempfile::tempdir().unwrap();
    let volume = volume(JournalShape { file_bytes: 4096, files: 4 });
    assert_eq!(zeroed_files(dir.path(), &volume), 1);
    save_zeroed_files(dir.path(), &volume.journal_id, 3).unwrap();
    assert_eq!(zeroed_files(dir.path(), &volume), 3);
    let another = VolumeFile { journal_id: "0".into(), ..volume.clone() };
    assert_eq!(zeroed_files(dir.path(), &another), 1);
    std::fs::write(dir.path().join("zeroed.json"), "{").unwrap();
    assert_eq!(zeroed_files(dir.path(), &volume), 1);
}

#[test]
fn a_disk_without_room_is_an_error_with_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(dir.path()).unwrap();
    let mut volume = volume(JournalShape { file_bytes: 1 << 50, files: 2 });
    let error = state.create_journal(&mut volume, &[]).unwrap_err().to_string();
    assert!(error.contains("2 PiB") && error.contains("are free"), "{error}");
    assert!(state.volumes().unwrap().is_empty());
}

#[test]
fn small_journals_are_refused_with_the_least_size() {
    let error = JournalShape::from_size(1 << 20).unwrap_err().to_string();
    assert!(error.contains("1 MiB") && error.contains("64 MiB"), "{error}");
    let shape = JournalShape::from_size(1 << 30).unwrap();
    assert_eq!(shape, JournalShape { file_bytes: 64 << 20, files: 16 });
}

#[test]
fn descriptions_that_make_no_sense_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(dir.path()).unwrap();
    let mut volume = volume(JournalShape { file_bytes: 4096, files: 1 });
    state.create_journal(&mut volume, &[]).unwrap();
    let path = state.volume_dir(VolumeId(7)).join("volume.json");
    std::fs::write(&path, "{").unwrap();
    let survey = state.survey().unwrap();
    let [Damaged { id, problem }] = survey.damaged.as_slice() else { panic!("{survey:?}") };
    assert_eq!(id, &volume.id);
    assert!(problem.contains("volume.json"), "{problem}");
    let error = format!("{:#}", state.volume(VolumeId(7)).unwrap_err());
    assert!(error.contains("volume.json"), "{error}");
}

#[test]
fn one_bad_description_costs_its_own_volume_only() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(dir.path()).unwrap();
    let mut good = volume(JournalShape { file_bytes: 4096, files: 1 });
    state.create_journal(&mut good, &[]).unwrap();
    let bad = state.volume_dir(VolumeId(8));
    std::fs::create_dir(&bad).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        bad.join("volume.json"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    assert_eq!(state.volumes().unwrap(), [good]);
    let damaged = state.survey().unwrap().damaged;
    assert!(damaged[0].problem.contains("not a regular file"), "{damaged:?}");
}

#[test]
fn a_freed_volume_leaves_nothing_and_can_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(dir.path()).unwrap();
    let mut volume = volume(JournalShape { file_bytes: 8192, files: 2 });
    let used: Vec<_> = (0..2).map(|n| (n, Bytes::from(vec![7; 8192]))).collect();
    state.create_journal(&mut volume, &used).unwrap();
    state.free_volume(&volume).unwrap();
    assert!(!state.volume_dir(VolumeId(7)).exists());
    // Traces stay, and what was cut short is in nobody's way.
    state.create_journal(&mut volume, &used).unwrap();
    std::fs::create_dir(state.volume_dir(VolumeId(7)).join("traces")).unwrap();
    OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(journal_path(&state.volume_dir(VolumeId(7)), 0))
        .unwrap();
    assert!(state.is_half_freed(&volume));
    state.create_journal(&mut volume, &used).unwrap();
    assert!(!state.is_half_freed(&volume));
    state.free_volume(&VolumeFile { released: false, delivered: false, ..volume }).unwrap();
    assert_eq!(std::fs::read_dir(state.volume_dir(VolumeId(7))).unwrap().count(), 1);
    assert!(state.survey().unwrap().volumes.is_empty());
}

#[test]
fn what_commands_attached_is_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(dir.path()).unwrap();
    assert!(state.attached().unwrap().is_empty());
    let names: BTreeSet<String> = ["a".to_owned(), "t/b".to_owned()].into();
    state.save_attached(&names).unwrap();
    assert_eq!(state.attached().unwrap(), names);
    std::fs::write(dir.path().join("attached.json"), "[").unwrap();
    assert!(format!("{:#}", state.attached().unwrap_err()).contains("attached.json"));
}

const SHAPE: JournalShape = JournalShape { file_bytes: 64 << 10, files: 2 };

/// A state directory, and a blank journal device with room for two journals.
fn with_device() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let device = dir.path().join("device");
    std::fs::File::create(&device).unwrap().set_len((1 << 20) + 2 * SHAPE.bytes() + 4096).unwrap();
    (dir, device)
}

fn on_device(dir: &tempfile::TempDir, device: &Path) -> anyhow::Result<StateDir> {
    let mut state = StateDir::open(&dir.path().join("state"))?;
    state.use_device(device, SHAPE)?;
    Ok(state)
}

fn plan(id: u64) -> Vec<(u32, Bytes)> {
    journal::create_plan(SHAPE.geometry(), u128::from(id), VolumeId(u128::from(id))).unwrap()
}

fn numbered(id: u64) -> VolumeFile {
    let (id, number) = (VolumeId(u128::from(id)), format!("{id:032x}"));
    VolumeFile { id: id.to_string(), journal_id: number, ..volume(SHAPE) }
}

#[test]
fn journals_share_a_device() {
    let (dir, device) = with_device();
    let state = on_device(&dir, &device).unwrap();
    let (mut one, mut two, mut three) = (numbered(1), numbered(2), numbered(3));
    state.create_journal(&mut one, &plan(1)).unwrap();
    state.create_journal(&mut two, &plan(2)).unwrap();
    let error = format!("{:#}", state.create_journal(&mut three, &plan(3)).unwrap_err());
    assert!(error.contains("all of its 2 slots of 128 KiB are taken; detach"), "{error}");
    for (volume, byte) in [(&one, 1), (&two, 2)] {
        for file in state.open_journal(volume).unwrap() {
            assert_eq!(file.bytes(), 64 << 10);
            file.write_all_at(&[byte; 100], (64 << 10) - 100).unwrap();
        }
    }
    drop(state);

    // A restart finds them where they are.
    let state = on_device(&dir, &device).unwrap();
    assert_eq!(state.volumes().unwrap(), [one.clone(), two.clone()]);
    let mut end = [0; 100];
    for (volume, byte) in [(&one, 1), (&two, 2)] {
        for (number, file) in (0..).zip(state.open_journal(volume).unwrap()) {
            let mut page = vec![0; 4096];
            file.read_exact_at(&mut page, 0).unwrap();
            assert_eq!(page, plan(byte)[number].1);
            file.read_exact_at(&mut end, (64 << 10) - 100).unwrap();
            assert_eq!(end, [byte as u8; 100]);
        }
    }
    assert!(!state.is_half_freed(&one));

    // A freed slot goes to the next volume.
    state.free_volume(&one).unwrap();
    state.create_journal(&mut three, &plan(3)).unwrap();
    assert_eq!(three.slot, one.slot);
}

#[test]
fn a_device_is_of_one_host_and_its_journals_are_on_it() {
    let (dir, device) = with_device();
    let state = on_device(&dir, &device).unwrap();
    let error = format!("{:#}", on_device(&dir, &device).err().unwrap());
    assert!(error.contains("lock") || error.contains("pid"), "{error}");
    let mut one = numbered(1);
    state.create_journal(&mut one, &plan(1)).unwrap();
    let (other, _) = with_device();
    let error = format!("{:#}", on_device(&other, &device).err().unwrap());
    assert!(error.contains("in use by another longhaul process"), "{error}");
    drop(state);
    let error = format!("{:#}", on_device(&other, &device).err().unwrap());
    assert!(error.contains("has the journals of host"), "{error}");

    let another = other.path().join("device");
    drop(on_device(&other, &another).unwrap());
    let error = format!("{:#}", on_device(&dir, &another).err().unwrap());
    assert!(error.contains("has the journals of host"), "{error}");
    let state = StateDir::open(&dir.path().join("state")).unwrap();
    let error = format!("{:#}", state.open_journal(&one).unwrap_err());
    assert!(error.contains("start the host with --journal DEVICE"), "{error}");
}

#[test]
fn a_device_with_other_data_is_left_alone() {
    let (dir, device) = with_device();
    for (place, byte) in [(510, 0x55), (1 << 16, 1)] {
        let file = OpenOptions::new().write(true).open(&device).unwrap();
        file.write_all_at(&[byte], place).unwrap();
        let before = std::fs::read(&device).unwrap();
        let error = format!("{:#}", on_device(&dir, &device).err().unwrap());
        assert!(error.contains(&format!("byte {place} is not zero")), "{error}");
        assert!(std::fs::read(&device).unwrap() == before);
        file.write_all_at(&[0], place).unwrap();
    }
    OpenOptions::new().write(true).open(&device).unwrap().set_len(1 << 20).unwrap();
    let error = format!("{:#}", on_device(&dir, &device).err().unwrap());
    assert!(error.contains("too small") && error.contains("128 KiB"), "{error}");
}

#[test]
fn a_journal_whose_description_was_lost_stays() {
    let (dir, device) = with_device();
    let state = on_device(&dir, &device).unwrap();
    let (mut one, mut two, mut three) = (numbered(1), numbered(2), numbered(3));
    state.create_journal(&mut one, &plan(1)).unwrap();
    std::fs::remove_dir_all(state.volume_dir(VolumeId(1))).unwrap();
    drop(state);
    let state = on_device(&dir, &device).unwrap();
    state.create_journal(&mut two, &plan(2)).unwrap();
    assert_ne!(two.slot, one.slot);
    let error = format!("{:#}", state.create_journal(&mut three, &plan(3)).unwrap_err());
    assert!(error.contains("1 of them have journals that no volume.json"), "{error}");
    assert!(error.contains(&format!("seek={} ", (1 << 20) / 4096)), "{error}");
}

#[test]
fn a_creation_or_an_end_that_was_cut_short_takes_no_slot() {
    let (dir, device) = with_device();
    let state = on_device(&dir, &device).unwrap();
    let (mut one, mut two) = (numbered(1), numbered(2));
    state.create_journal(&mut one, &plan(1)).unwrap();
    // As after a crash between the description and the journal, or between their ends.
    state.device().unwrap().free(&one, one.slot.as_ref().unwrap()).unwrap();
    drop(state);
    let state = on_device(&dir, &device).unwrap();
    assert!(state.is_half_freed(&one));
    let mut again = numbered(1);
    state.create_journal(&mut again, &plan(1)).unwrap();
    assert!(!state.is_half_freed(&again));
    state.create_journal(&mut two, &plan(2)).unwrap();
}

/// A description may outlive its journal: after a crash, or if its removal fails.
#[test]
fn a_slot_belongs_to_the_journal_in_it() {
    let (dir, device) = with_device();
    let state = on_device(&dir, &device).unwrap();
    let (mut one, mut two) = (numbered(1), numbered(2));
    state.create_journal(&mut one, &plan(1)).unwrap();
    state.free_volume(&one).unwrap();
    state.create_journal(&mut two, &plan(2)).unwrap();
    assert_eq!(two.slot, one.slot);
    std::fs::create_dir_all(state.volume_dir(VolumeId(1))).unwrap();
    state.save_volume(&one).unwrap();
    let is_there = |state: &StateDir| {
        let mut page = vec![0; 4096];
        state.open_journal(&two).unwrap()[0].read_exact_at(&mut page, 0).unwrap();
        page == plan(2)[0].1
    };
    // Neither its end nor its next journal touches that of the other volume.
    state.free_volume(&one).unwrap();
    assert!(is_there(&state));
    std::fs::create_dir_all(state.volume_dir(VolumeId(1))).unwrap();
    state.save_volume(&one).unwrap();
    drop(state);
    let state = on_device(&dir, &device).unwrap();
    assert!(state.is_half_freed(&one) && is_there(&state));
    let mut again = numbered(1);
    state.create_journal(&mut again, &plan(1)).unwrap();
    assert_ne!(again.slot, two.slot);
    assert!(is_there(&state));
}

/// The slot that a volume has just taken is blank, as that of a journal that has ended.
#[test]
fn a_slot_that_was_taken_stays_taken() {
    let (dir, device) = with_device();
    let state = on_device(&dir, &device).unwrap();
    let mut one = numbered(1);
    state.create_journal(&mut one, &plan(1)).unwrap();
    state.free_volume(&one).unwrap();
    std::fs::create_dir_all(state.volume_dir(VolumeId(1))).unwrap();
    state.save_volume(&one).unwrap();
    let taken = state.device().unwrap().take().unwrap();
    let mut again = numbered(1);
    state.create_journal(&mut again, &plan(1)).unwrap();
    assert_ne!(again.slot, Some(taken));
}

/// The device that a host has lost is not to be replaced by a blank one without a word.
#[test]
fn a_blank_device_stays_blank_if_journals_are_on_another() {
    let (dir, device) = with_device();
    let state = on_device(&dir, &device).unwrap();
    state.create_journal(&mut numbered(1), &plan(1)).unwrap();
    drop(state);
    let (_other, blank) = with_device();
    let before = std::fs::read(&blank).unwrap();
    let error = format!("{:#}", on_device(&dir, &blank).err().unwrap());
    assert!(error.contains("is blank") && error.contains("--journal"), "{error}");
    assert!(std::fs::read(&blank).unwrap() == before);
}

/// Damage must not look like the end of a journal.
#[test]
fn a_damaged_header_is_no_end_of_a_journal() {
    let (dir, device) = with_device();
    let state = on_device(&dir, &device).unwrap();
    let mut one = numbered(1);
    state.create_journal(&mut one, &plan(1)).unwrap();
    state.open_journal(&one).unwrap()[0].write_all_at(&[7; 8], 0).unwrap();
    assert!(!state.is_half_freed(&one));
    let mut two = numbered(2);
    state.create_journal(&mut two, &plan(2)).unwrap();
    assert_ne!(two.slot, one.slot);
}
