//! Tests of losses of power, and of devices that must be refused.

use super::engine::{format, load, superblock};
use super::format::{AREA_HEADERS, BLOCK, FRAMES_AT, Geometry, MIN_AREA_BYTES, SUPERBLOCKS};
use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::sync::Mutex;

const SECTOR: u64 = 512;
type Sector = [u8; SECTOR as usize];

/// A disk that keeps all synced writes, and of the others a random part. Each sector has the
/// content of the last sync, or of any write since.
#[derive(Default)]
struct Torn(Mutex<Sectors>);

#[derive(Clone, Default)]
struct Sectors {
    durable: BTreeMap<u64, Sector>,
    /// Writes since the last sync, in their order.
    written: BTreeMap<u64, Vec<Sector>>,
    /// Operations until the power goes. `None`: the power stays.
    fuel: Option<u64>,
}

impl Sectors {
    fn spend(&mut self) -> bool {
        match &mut self.fuel {
            Some(0) => false,
            Some(fuel) => {
                *fuel -= 1;
                true
            }
            None => true,
        }
    }

    fn after_power_loss(&self, rng: &mut fastrand::Rng) -> Torn {
        let mut durable = self.durable.clone();
        for (sector, versions) in &self.written {
            if let Some(last) = rng.usize(..=versions.len()).checked_sub(1) {
                durable.insert(*sector, versions[last]);
            }
        }
        Torn(Mutex::new(Sectors { durable, ..Sectors::default() }))
    }
}

fn power() -> std::io::Error {
    std::io::Error::other("there is no power")
}

impl Medium for Torn {
    fn read_at(&self, offset: u64, data: &mut [u8]) -> std::io::Result<()> {
        let sectors = self.0.lock().unwrap();
        assert!(offset.is_multiple_of(SECTOR), "reads of this test are of whole sectors");
        for (at, part) in (offset / SECTOR..).zip(data.chunks_mut(SECTOR as usize)) {
            let written = sectors.written.get(&at).and_then(|versions| versions.last());
            let found = written.or_else(|| sectors.durable.get(&at));
            part.copy_from_slice(&found.unwrap_or(&[0; SECTOR as usize])[..part.len()]);
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        let mut sectors = self.0.lock().unwrap();
        assert!(offset.is_multiple_of(BLOCK) && (data.len() as u64).is_multiple_of(BLOCK));
        let powered = sectors.spend();
        if powered || sectors.fuel == Some(0) {
            for (at, part) in (offset / SECTOR..).zip(data.chunks(SECTOR as usize)) {
                sectors.written.entry(at).or_default().push(part.try_into().unwrap());
            }
        }
        if powered { Ok(()) } else { Err(power()) }
    }

    fn sync(&self) -> std::io::Result<()> {
        let mut sectors = self.0.lock().unwrap();
        if !sectors.spend() {
            return Err(power());
        }
        for (sector, mut versions) in std::mem::take(&mut sectors.written) {
            sectors.durable.extend(versions.pop().map(|last| (sector, last)));
        }
        Ok(())
    }
}

/// Little space, so that the engine uses it again and again. A small index, so that it fills up
/// often.
const BLOCKS: u64 = 40;

fn small() -> Superblock {
    let geometry = Geometry { device_bytes: 0, area_bytes: MIN_AREA_BYTES };
    let geometry = Geometry { device_bytes: geometry.area(2) + BLOCKS * BLOCK, ..geometry };
    Superblock { identity: 77, geometry }
}

fn fresh() -> Torn {
    let disk = Torn::default();
    format(&disk, &small()).unwrap();
    disk
}

/// A test step; changes of one step run at the same time.
#[derive(Clone, Debug)]
enum Step {
    Change(Vec<(u8, Option<(u8, u16)>)>),
    /// An orderly end, and a new start.
    Restart,
    /// This many deletions and creations, to fill the index.
    Spin(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let object = (any::<u8>(), 0_u16..20_000);
    let change = (0_u8..6, prop::option::weighted(0.6, object));
    let step = prop_oneof![
        10 => prop::collection::vec(change, 1..5).prop_map(Step::Change),
        1 => Just(Step::Restart),
        1 => (10_u8..70).prop_map(Step::Spin),
    ];
    prop::collection::vec(step, 1..40)
}

fn content(byte: u8, bytes: u16) -> Vec<u8> {
    (0..bytes).map(|n| byte ^ (n >> 5) as u8).collect()
}

type Contents = BTreeMap<String, Option<Vec<u8>>>;

/// The possible contents of each name: the last acknowledged one, or any later request.
#[derive(Clone, Default)]
struct Model(BTreeMap<String, BTreeSet<Option<Vec<u8>>>>);

impl Model {
    fn now(&self, key: &str) -> Option<Vec<u8>> {
        let possible = self.0.get(key)?;
        assert_eq!(possible.len(), 1, "{key} is not settled");
        possible.first().unwrap().clone()
    }

    fn set(&mut self, key: &str, value: Option<Vec<u8>>) {
        self.0.insert(key.to_owned(), BTreeSet::from([value]));
    }

    fn perhaps(&mut self, key: &str, value: Option<Vec<u8>>) {
        self.0.entry(key.to_owned()).or_insert_with(|| BTreeSet::from([None])).insert(value);
    }

    /// Checks that the content is possible. From now on it is certain.
    fn observe(&mut self, engine: &Engine<Torn>) {
        let mut found: Contents = self.0.keys().map(|key| (key.clone(), None)).collect();
        for meta in engine.list("") {
            let data = engine.get(&meta.key, None).unwrap().to_vec();
            assert_eq!(data.len() as u64, meta.bytes);
            found.insert(meta.key, Some(data));
        }
        for (key, value) in found {
            let possible = self.0.get(&key).unwrap_or_else(|| panic!("{key} was never put"));
            assert!(possible.contains(&value), "{key} is {value:?}, not one of {possible:?}");
            self.set(&key, value);
        }
    }
}

/// Makes changes together. False once the power is gone.
fn change(engine: &Engine<Torn>, model: &mut Model, changes: &[(u8, Option<(u8, u16)>)]) -> bool {
    let mut waiting = Vec::new();
    // The content of each name after the changes so far, in their order.
    let mut after: Contents = Contents::new();
    for (key, object) in changes {
        let key = format!("v/{key}");
        let there = after.get(&key).cloned().unwrap_or_else(|| model.now(&key));
        let Some((byte, bytes)) = *object else {
            waiting.push((key.clone(), engine.prepare_delete(&key), Ok(())));
            after.insert(key, None);
            continue;
        };
        let data = content(byte, bytes);
        let parts = [
            Bytes::copy_from_slice(&data[..data.len() / 3]),
            data[data.len() / 3..].to_vec().into(),
        ];
        match engine.prepare(&key, &parts) {
            Ok(outcome) => {
                let expected = if there.is_some() { Err(PutError::Exists) } else { Ok(()) };
                waiting.push((key.clone(), outcome, expected));
                if there.is_none() {
                    after.insert(key, Some(data));
                }
            }
            Err(PutError::Exists) => assert!(model.now(&key).is_some(), "{key} does not exist"),
            Err(PutError::Failed(error)) if error.message().contains("no space") => {}
            Err(PutError::Failed(error)) => {
                assert!(error.message().contains("no power"), "{error}")
            }
        }
    }
    let mut powered = true;
    for (key, outcome, expected) in waiting {
        match engine.settle(&outcome) {
            Err(PutError::Failed(error)) => {
                assert!(error.message().contains("no power"), "{error}");
                powered = false;
            }
            result => assert_eq!(result, expected, "{key}"),
        }
    }
    for (key, value) in after {
        if powered { model.set(&key, value) } else { model.perhaps(&key, value) }
    }
    powered && engine.usage().total_bytes > 0
}

fn run(disk: Torn, model: &mut Model, steps: &[Step]) -> Torn {
    let mut engine = Some(Engine::open(disk).unwrap());
    for step in steps {
        let Some(now) = &engine else { break };
        let powered = match step {
            Step::Change(changes) => change(now, model, changes),
            Step::Spin(times) => {
                (0..*times).all(|n| change(now, model, &[(9, (n % 2 == 0).then_some((n, 100)))]))
            }
            Step::Restart => {
                let disk = engine.take().unwrap().into_medium();
                match Engine::open(disk) {
                    Ok(next) => {
                        model.observe(&next);
                        engine = Some(next);
                    }
                    Err(error) => panic!("{error:#}"),
                }
                true
            }
        };
        if !powered {
            break;
        }
    }
    let engine = engine.unwrap();
    for (key, possible) in &model.0 {
        // Reads return acknowledged content only, also while no write succeeds.
        let now = engine.get(key, None).ok().map(|data| data.to_vec());
        assert!(possible.contains(&now), "{key}");
    }
    engine.into_medium()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn whatever_was_acknowledged_survives_a_loss_of_power(
        lives in prop::collection::vec((steps(), 0_u64..400), 1..4),
        seed in any::<u64>(),
    ) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut disk = fresh();
        let mut model = Model::default();
        for (steps, fuel) in lives {
            disk.0.lock().unwrap().fuel = Some(fuel + 1);
            let ended = run(disk, &mut model, &steps);
            disk = ended.0.lock().unwrap().after_power_loss(&mut rng);
            let engine = Engine::open(disk).unwrap();
            model.observe(&engine);
            disk = engine.into_medium();
        }
    }
}

/// Random tests seldom hit the moment in which the engine writes the index anew.
#[test]
fn a_loss_of_power_while_the_index_is_written_anew_loses_nothing() {
    let engine = Engine::open(fresh()).unwrap();
    let mut model = Model::default();
    let frames = (MIN_AREA_BYTES - FRAMES_AT) / BLOCK;
    for n in 0..frames as u16 - 3 {
        let object = (n < 6 || n % 2 == 1).then_some((n as u8, 3000));
        assert!(change(&engine, &mut model, &[(n.min(6) as u8, object)]));
    }
    let base = engine.into_medium().0.into_inner().unwrap();
    let again = |n| [Step::Change(vec![(n, None)]), Step::Change(vec![(n, Some((n, 5000)))])];
    let steps: Vec<Step> = (0..4).flat_map(again).collect();
    for fuel in 0..40 {
        for seed in 0..40 {
            let mut model = model.clone();
            let disk = Torn(Mutex::new(Sectors { fuel: Some(fuel), ..base.clone() }));
            let ended = run(disk, &mut model, &steps);
            let mut rng = fastrand::Rng::with_seed(seed);
            let engine = Engine::open(ended.0.lock().unwrap().after_power_loss(&mut rng)).unwrap();
            model.observe(&engine);
        }
    }
}

#[test]
fn a_format_that_is_cut_short_leaves_a_blank_device_or_a_store() {
    for fuel in 0..12 {
        for seed in 0..20 {
            let disk = Torn::default();
            disk.0.lock().unwrap().fuel = Some(fuel);
            let result = format(&disk, &small());
            let disk = disk.0.lock().unwrap().after_power_loss(&mut fastrand::Rng::with_seed(seed));
            match superblock(&disk).unwrap() {
                Some(_) => assert!(Engine::open(disk).unwrap().list("").is_empty()),
                None => {
                    assert!(result.is_err());
                    let mut beginning = vec![1; 1 << 20];
                    disk.read_at(0, &mut beginning).unwrap();
                    assert!(beginning.iter().all(|byte| *byte == 0));
                }
            }
        }
    }
}

/// Overwrites a sector.
fn damage(disk: &Torn, at: u64) {
    disk.0.lock().unwrap().durable.insert(at / SECTOR, [0x55; SECTOR as usize]);
}

fn refused(disk: &Torn) -> String {
    format!("{:#}", load(disk).err().expect("it is damaged"))
}

#[test]
fn damage_of_the_index_is_never_taken_for_its_end() {
    let put = |count: u8| {
        let engine = Engine::open(fresh()).unwrap();
        for n in 0..count {
            if let Some(before) = n.checked_sub(20) {
                engine.delete(&format!("k{before}")).unwrap();
            }
            engine.put(&format!("k{n}"), &[Bytes::from(vec![n; 10])]).unwrap();
        }
        engine.into_medium()
    };
    let area = small().geometry.area(0);
    let frame = |n: u64| area + FRAMES_AT + n * BLOCK;
    let disk = put(5);
    damage(&disk, frame(1));
    assert!(refused(&disk).contains("a later one is there"), "{}", refused(&disk));
    // The engine cannot tell a damaged last frame from one without a sync.
    let disk = put(5);
    damage(&disk, frame(4));
    assert_eq!(load(&disk).unwrap().objects.len(), 4);

    // One copy of a header is enough, and the engine writes the other again. Without both it
    // guesses nothing.
    let disk = put(2);
    damage(&disk, area + AREA_HEADERS[0]);
    damage(&disk, SUPERBLOCKS[0]);
    let disk = Engine::open(disk).unwrap().into_medium();
    damage(&disk, area + AREA_HEADERS[1]);
    damage(&disk, SUPERBLOCKS[1]);
    let engine = Engine::open(disk).unwrap();
    assert_eq!(engine.list("").len(), 2);
    let disk = engine.into_medium();
    damage(&disk, area + AREA_HEADERS[0]);
    damage(&disk, area + AREA_HEADERS[1]);
    assert!(refused(&disk).contains("header of an area"), "{}", refused(&disk));

    // The engine wrote these frames at once when it wrote the index anew. None of them may be
    // missing.
    let disk = put(80);
    let second = small().geometry.area(1);
    damage(&disk, second + FRAMES_AT);
    let error = refused(&disk);
    assert!(error.contains("is not whole"), "{error}");
}

#[test]
fn content_that_is_damaged_is_not_given_out_whole() {
    let engine = Engine::open(fresh()).unwrap();
    engine.put("a", &[Bytes::from(vec![7; 9000])]).unwrap();
    let place = engine.find("a").unwrap().extents[0].block * BLOCK;
    damage(engine.medium(), place + BLOCK);
    assert_eq!(engine.get("a", Some(0..100)).unwrap(), vec![7; 100]);
    let Err(GetError::Failed(error)) = engine.get("a", None) else { panic!("it is damaged") };
    assert!(error.message().contains("damaged"), "{error}");
}

#[test]
fn a_reader_keeps_what_is_deleted_and_its_blocks() {
    let engine = Engine::open(fresh()).unwrap();
    let whole = Bytes::from(vec![7; (BLOCKS * BLOCK) as usize]);
    engine.put("a", std::slice::from_ref(&whole)).unwrap();
    let Err(PutError::Failed(error)) = engine.put("b", &[Bytes::from("x")]) else {
        panic!("there is no room");
    };
    assert!(error.message().contains("no space left on the device for b"), "{error}");
    engine.put("empty", &[]).unwrap();
    let reader = engine.find("a").unwrap();
    engine.delete("a").unwrap();
    assert!(engine.put("b", &[Bytes::from("x")]).is_err());
    drop(reader);
    engine.put("b", &[Bytes::from("x")]).unwrap();
    assert_eq!(engine.usage().used_bytes, BLOCK);
}

#[test]
fn an_index_that_is_full_says_so_and_goes_on() {
    let engine = Engine::open(fresh()).unwrap();
    let key = |n: usize| format!("{n:0900}");
    let put = |n| engine.put(&key(n), &[]);
    let count = (0..).find(|n| put(*n).is_err()).unwrap();
    assert!((300..400).contains(&count), "{count}");
    let Err(PutError::Failed(error)) = put(count) else { panic!("there is no room") };
    assert!(error.message().contains("no space left"), "{error}");
    // However often the engine has to write it anew.
    for n in 0..200 {
        engine.delete(&key(n)).unwrap();
        put(count + n).unwrap();
    }
    assert!(put(count + 200).is_err());
    let again = Engine::open(engine.into_medium()).unwrap();
    assert_eq!(again.list("").len(), count);
    let too_long = again.put(&"x".repeat(1025), &[]);
    let Err(PutError::Failed(error)) = too_long else { panic!("the name is too long") };
    assert!(error.message().contains("not an object"), "{error}");
}

/// A file of fixed size.
fn file(dir: &Path, bytes: u64) -> std::path::PathBuf {
    let path = dir.join("device");
    File::create(&path).unwrap().set_len(bytes).unwrap();
    path
}

#[tokio::test]
async fn objects_in_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), (64 << 20) + 1000);
    let objects = DeviceObjects::open(&path).unwrap();
    let installation = objects.installation();
    let objects = Arc::new(objects);
    super::super::tests::keeps_the_contract(objects.clone()).await;
    assert_eq!(objects.engine.usage().used_bytes, 0);
    objects.put("v/1/seg/1", vec![Bytes::from(vec![9; 5 << 20])]).await.unwrap();
    let again = |path: &Path| format!("{:#}", DeviceObjects::open(path).err().unwrap());
    assert!(again(&path).contains("in use by another"), "{}", again(&path));
    drop(objects);
    let objects = DeviceObjects::open(&path).unwrap();
    assert_eq!(objects.installation(), installation);
    assert_eq!(objects.get("v/1/seg/1", None).await.unwrap(), vec![9; 5 << 20]);
    // The engine writes the lost content anew in the same place, and nothing else.
    let block = objects.engine.find("v/1/seg/1").unwrap().extents[0].block;
    objects.engine.medium().write_at(block * BLOCK, &[1; 100]).unwrap();
    assert_eq!(objects.get("v/1/seg/1", Some(0..2)).await.unwrap(), [1, 1][..]);
    let other = objects.restore("v/1/seg/1", Bytes::from(vec![8; 5 << 20])).await;
    assert!(other.unwrap_err().message().contains("another object"));
    objects.restore("v/1/seg/1", Bytes::from(vec![9; 5 << 20])).await.unwrap();
    assert_eq!(objects.get("v/1/seg/1", None).await.unwrap(), vec![9; 5 << 20]);
    drop(objects);
    OpenOptions::new().write(true).open(&path).unwrap().set_len(64 << 20).unwrap();
    drop(DeviceObjects::open(&path).unwrap());
    OpenOptions::new().write(true).open(&path).unwrap().set_len((64 << 20) - 4096).unwrap();
    assert!(again(&path).contains("64 MiB at least"), "{}", again(&path));
}

#[test]
fn what_holds_something_else_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |path: &Path| format!("{:#}", DeviceObjects::open(path).err().unwrap());
    let path = file(dir.path(), 80 << 20);
    // An ext4 superblock's magic is here.
    OpenOptions::new().write(true).open(&path).unwrap().write_all_at(&[0x53, 0xef], 0x438).unwrap();
    let before = std::fs::read(&path).unwrap();
    assert!(refused(&path).contains("byte 1080 is not zero"), "{}", refused(&path));
    assert!(std::fs::read(&path).unwrap() == before);
    assert!(refused(dir.path()).contains("neither a file nor a block device"));
    assert!(refused(&dir.path().join("none")).contains("fallocate"));
    let path = file(dir.path(), 1 << 20);
    assert!(refused(&path).contains("64 MiB"), "{}", refused(&path));
    let path = file(dir.path(), 80 << 20);
    drop(DeviceObjects::open(&path).unwrap());
    OpenOptions::new().write(true).open(&path).unwrap().set_len(70 << 20).unwrap();
    assert!(refused(&path).contains("was made for 83886080"), "{}", refused(&path));
    std::fs::File::create(&path).unwrap().write_all(&[0; 10]).unwrap();
    assert!(refused(&path).contains("needs 64 MiB"), "{}", refused(&path));
}
