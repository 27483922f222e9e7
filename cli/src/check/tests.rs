use super::*;
use bytes::Bytes;
use bytes::BytesMut;
use longhaul_core::block::{STAGED_BIT, StagedData, VolumeId};
use longhaul_core::host::journal::create_plan;
use longhaul_core::record;
use longhaul_host::state::{JournalShape, StateDir};
use longhaul_objects::{DeviceObjects, Objects as _};

fn host() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(dir.path()).unwrap();
    let shape = JournalShape { file_bytes: 64 << 10, files: 2 };
    let mut volume = VolumeFile::new("v", VolumeId(7), 2048, 512, shape).unwrap();
    let plan = create_plan(shape.geometry(), volume.journal_number().unwrap(), VolumeId(7));
    state.create_journal(&mut volume, &plan.unwrap()).unwrap();
    let journal = state.volume_dir(VolumeId(7));
    (dir, journal)
}

#[test]
fn an_intact_host_passes_and_damage_is_placed() {
    let (dir, journal) = host();
    let report = check_host(dir.path(), None).unwrap();
    assert!(report.damage.is_empty() && report.volumes[0].ok, "{report:?}");
    check(dir.path(), None, true).unwrap();
    let path = state::journal_path(&journal, 1);
    File::options().write(true).open(&path).unwrap().write_all_at(b"XX", 0).unwrap();
    let report = check_host(dir.path(), None).unwrap();
    assert_eq!(report.damage.len(), 1);
    assert_eq!((&report.damage[0].file, report.damage[0].offset), (&path, Some(0)));
    assert!(in_words(&report).contains("DAMAGE in"));
    assert!(check(dir.path(), None, false).unwrap_err().to_string().contains("one place"));
    std::fs::remove_file(&path).unwrap();
    assert_eq!(check_host(dir.path(), None).unwrap().damage.len(), 1);
}

#[test]
fn tables_of_versions_are_checked() {
    let (dir, _) = host();
    let versions = dir.path().join("versions");
    let table = versions.join(VolumeId(7).to_string());
    std::fs::create_dir_all(versions.join(format!("{}.new", VolumeId(7)))).unwrap();
    std::fs::create_dir_all(&table).unwrap();
    for file in 0..3 {
        std::fs::write(table.join(format!("versions.{file:04}")), b"").unwrap();
    }
    let report = check_host(dir.path(), None).unwrap();
    assert!(report.damage.is_empty() && report.notes[0].contains(".new"), "{report:?}");
    std::fs::write(table.join("versions.0000"), [3; 4096]).unwrap();
    std::fs::write(table.join("versions.0001"), [3; 8192]).unwrap();
    std::fs::remove_file(table.join("versions.0002")).unwrap();
    let report = check_host(dir.path(), None).unwrap();
    let of = |file: u32| {
        report.damage.iter().filter(move |d| d.file.ends_with(format!("versions.{file:04}")))
    };
    assert_eq!([of(0).count(), of(1).count(), of(2).count()], [1, 2, 1], "{report:?}");
    std::fs::write(dir.path().join("encrypted"), b"").unwrap();
    assert_eq!(check_host(dir.path(), None).unwrap().damage.len(), 5);
}

#[test]
fn a_directory_in_use_or_of_someone_else_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert!(check(dir.path(), None, false).unwrap_err().to_string().contains("neither"));
    let held = StateDir::open(dir.path()).unwrap();
    let error = check(dir.path(), None, false).unwrap_err().to_string();
    assert!(error.contains(&std::process::id().to_string()), "{error}");
    drop(held);
    check(dir.path(), None, false).unwrap();
}

#[test]
fn staged_objects_are_checked_against_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let objects = dir.path().join("objects");
    let id = VolumeId(9);
    let (name, created_sectors, block_bytes) = ("v".to_owned(), 2048, 512);
    let spec =
        VolumeSpec { id, name, created_sectors, block_bytes, created: 0, parents: Vec::new() };
    let number = STAGED_BIT | 7;
    let path = objects.join(catalog::staged_key(id, number));
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let record = Range::new(16, 8);
    let mut object = BytesMut::new();
    record::encode_data(id, 1, number, record, &[5; 8 * 512], &mut object);
    std::fs::write(&path, &object).unwrap();
    std::fs::write(objects.join(catalog::staged_key(id, number + 1)), b"left").unwrap();
    let mut table = Table::new();
    let data = StagedData { object: number, offset: 0, record };
    let place = Place::staged(18, &data);
    table.replace(Range::new(18, 4), place);
    let check = || {
        let mut report = Report::default();
        check_staged(&Directory(objects.clone()), &spec, &table, &mut report).unwrap();
        (report.damage, report.notes)
    };
    let (damage, notes) = check();
    assert!(damage.is_empty(), "{damage:?}");
    assert!(notes[0].contains("1 staged objects"), "{notes:?}");
    object[900] ^= 1;
    std::fs::write(&path, &object).unwrap();
    let (damage, _) = check();
    assert_eq!((damage.len(), damage[0].offset), (1, Some(0)));
    assert!(damage[0].problem.contains("sectors 18+4"), "{damage:?}");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(check().0.len(), 1);
}

/// As it is stored.
fn sealed(key: &str, data: &[u8]) -> Vec<u8> {
    use longhaul_core::store::sealed;
    let content = Bytes::copy_from_slice(data);
    match sealed::is_sealed(key) {
        true => [&content[..], &sealed::seal(key, std::slice::from_ref(&content))].concat(),
        false => content.to_vec(),
    }
}

#[test]
fn store_objects_that_are_none_are_placed() {
    let dir = tempfile::tempdir().unwrap();
    let objects = dir.path().join("objects");
    let spec = VolumeSpec {
        id: VolumeId(9),
        name: "v".into(),
        created_sectors: 2048,
        block_bytes: 512,
        created: 0,
        parents: Vec::new(),
    };
    let put = |key: &str, data: &[u8]| {
        let path = objects.join(key);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, sealed(key, data)).unwrap();
    };
    put(&catalog::name_key("v"), &catalog::encode_spec(&spec));
    // A store does not start on objects without the mark of the directory.
    let unmarked = check_store(dir.path()).unwrap().damage;
    assert_eq!(unmarked.len(), 1, "{unmarked:?}");
    assert_eq!(unmarked[0].file, dir.path().join(longhaul_base::dirs::STORE_FILE));
    let marker = r#"{"format": 1, "installation": "00000000000000000000000000000009", "created_by": "test"}"#;
    std::fs::write(dir.path().join(longhaul_base::dirs::STORE_FILE), marker).unwrap();
    assert!(check_store(dir.path()).unwrap().damage.is_empty());
    put(&catalog::segment_key(spec.id, 2), b"nonsense");
    put(&catalog::name_key("w"), b"nonsense");
    put(&catalog::size_key(spec.id, 1), &catalog::encode_size(4096));
    put(&catalog::size_key(spec.id, 2), &catalog::encode_size(1025 << 50));
    let report = check_store(dir.path()).unwrap();
    let key = |path: &Path| path.strip_prefix(&objects).unwrap().to_string_lossy().into_owned();
    let damaged: BTreeSet<String> = report.damage.iter().map(|damage| key(&damage.file)).collect();
    let expected = BTreeSet::from([
        catalog::name_key("w"),
        catalog::segment_key(spec.id, 1),
        catalog::segment_key(spec.id, 2),
        catalog::size_key(spec.id, 2),
    ]);
    assert_eq!(damaged, expected);
    assert!(check(dir.path(), None, true).is_err());
}

#[tokio::test]
async fn a_device_is_checked_as_a_directory_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device");
    File::create(&path).unwrap().set_len(64 << 20).unwrap();
    let location = PathBuf::from(format!("file://{}", path.display()));
    assert!(format!("{:#}", check(&location, None, true).unwrap_err()).contains("blank"));
    let (name, created_sectors, block_bytes) = ("v".to_owned(), 2048, 512);
    let spec = VolumeSpec {
        id: VolumeId(9),
        name,
        created_sectors,
        block_bytes,
        created: 0,
        parents: Vec::new(),
    };
    let encoded = sealed(&catalog::name_key("v"), &catalog::encode_spec(&spec));
    let put = async |key: String, data: &[u8]| {
        let device = DeviceObjects::open(&path).unwrap();
        device.put(&key, vec![Bytes::copy_from_slice(data)]).await.unwrap();
        assert!(format!("{:#}", check(&location, None, true).unwrap_err()).contains("in use"));
    };
    put(catalog::name_key("v"), &encoded).await;
    check(&location, None, true).unwrap();
    put(catalog::segment_key(spec.id, 2), b"nonsense").await;
    let damaged = || {
        let report = check_device(&path).unwrap();
        let damage = report.damage.into_iter();
        damage.map(|damage| (damage.file, damage.problem)).collect::<BTreeMap<_, _>>()
    };
    let segment = |number| path.join(catalog::segment_key(spec.id, number));
    assert!(damaged().keys().eq([&segment(1), &segment(2)]), "{:?}", damaged());
    let bytes = std::fs::read(&path).unwrap();
    let place = bytes.windows(encoded.len()).position(|part| part == encoded).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(b"X", place as u64).unwrap();
    let problem = &damaged()[&path.join(catalog::name_key("v"))];
    assert!(!problem.is_empty() && check(&location, None, false).is_err());
}
