//! Snapshots, clones and what they cost.

use super::scenarios::commit;
use super::*;
use crate::store::SHELL_SESSION;
use crate::wire::link::{
    Parent, SnapshotError, SnapshotInfo, SnapshotOperation, SnapshotReply, VolumeError,
};

pub(super) fn ask(
    rig: &mut Rig,
    objects: &mut Objects,
    operation: SnapshotOperation,
) -> Result<SnapshotReply, VolumeError> {
    let operation = VolumeOperation::Snapshot { name: "test".into(), operation };
    rig.send(SHELL_SESSION.0, Lane::Control, ToStore::Volume { request: 5, operation });
    rig.settle(objects);
    let ours = |(_, _, frame): &(SessionId, Lane, Frame<ToHost>)| {
        matches!(frame.message, ToHost::Volume { request: 5, .. })
    };
    let at = rig.inbox.iter().position(ours).expect("no answer");
    match rig.inbox.remove(at).2.message {
        ToHost::Volume { result: Ok(VolumeReply::Snapshot(reply)), .. } => Ok(reply),
        ToHost::Volume { result: Err(error), .. } => Err(error),
        other => panic!("{other:?}"),
    }
}

pub(super) fn create(name: &str, id: u128) -> SnapshotOperation {
    let (snapshot, id) = (name.to_owned(), VolumeId(id));
    SnapshotOperation::Create { snapshot, id, created: 9, barrier: false }
}

pub(super) fn delete(name: &str) -> SnapshotOperation {
    SnapshotOperation::Delete { snapshot: name.to_owned() }
}

fn clone(snapshot: &str, id: u128) -> SnapshotOperation {
    let clone = format!("c{id}");
    SnapshotOperation::Clone { snapshot: snapshot.to_owned(), clone, id: VolumeId(id) }
}

fn listed(rig: &mut Rig, objects: &mut Objects, after: u64) -> Vec<SnapshotInfo> {
    match ask(rig, objects, SnapshotOperation::List { after, hidden: false }).unwrap() {
        SnapshotReply::List { snapshots, .. } => snapshots,
        other => panic!("{other:?}"),
    }
}

pub(super) fn rig_of(volume: Volume) -> Rig {
    let now = Time(0);
    let mut rig = Rig { volume, now, pending: vec![], inbox: vec![], events: vec![] };
    rig.collect();
    rig
}

/// Reads all of a volume or snapshot of that identity as an observer.
pub(super) fn read_as(
    rig: &mut Rig,
    objects: &mut Objects,
    id: VolumeId,
) -> Result<Vec<u16>, ReadError> {
    rig.settle(objects);
    let sectors = rig.volume.sectors().unwrap_or(SECTORS);
    let range = Range::new(0, sectors);
    rig.send(9, Lane::Read, ToStore::Read { request: 77, volume: id, epoch: 0, range });
    rig.settle(objects);
    let ours = |(_, _, f): &(SessionId, Lane, Frame<ToHost>)| {
        matches!(f.message, ToHost::Data { request: 77, .. })
    };
    let at = rig.inbox.iter().position(ours).expect("no answer to read");
    let frame = rig.inbox.remove(at).2;
    let ToHost::Data { result, volume, .. } = &frame.message else { unreachable!() };
    assert_eq!(*volume, id);
    let mut tags = Vec::new();
    for part in link::decode_data(range, &result.clone()?, frame.payload.clone()).unwrap() {
        match part {
            link::ReadPart::Data { wanted, fragment } => {
                tags.extend(fragment.sectors(wanted).chunks(512).map(tag_of));
            }
            link::ReadPart::Hole(sectors) | link::ReadPart::Zero(sectors) => {
                tags.extend(std::iter::repeat_n(0, sectors as usize));
            }
            link::ReadPart::Packed { .. } => panic!("nothing is packed"),
        }
    }
    Ok(tags)
}

/// A batch for a volume of any identity.
fn batch_for(volume: VolumeId, epoch: u64, first: u64, writes: &[Write]) -> Frame<ToStore> {
    let mut frame = batch(epoch, first, writes);
    if let ToStore::Batch { volume: named, .. } = &mut frame.message {
        *named = volume;
    }
    frame.payload = records_of(volume, epoch, first, writes);
    frame
}

pub(super) fn attached_rig() -> (Objects, Rig) {
    let (mut objects, mut rig) = (Objects::default(), Rig::open(1, &tiny()));
    rig.settle(&mut objects);
    rig.attach(&mut objects, 1, 1, None).unwrap();
    (objects, rig)
}

#[test]
fn asking_again_is_asking_for_the_same() {
    let (mut objects, mut rig) = attached_rig();
    commit(&mut rig, &mut objects, 1, 1, &[data(3, 2, 1)]);
    let taken = ask(&mut rig, &mut objects, create("a", 7)).unwrap();
    assert_eq!(ask(&mut rig, &mut objects, create("a", 7)).unwrap(), taken);
    let refused = |result: Result<SnapshotReply, VolumeError>| match result {
        Err(VolumeError::Snapshot(error)) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(ask(&mut rig, &mut objects, create("a", 8))), SnapshotError::Exists);
    assert_eq!(refused(ask(&mut rig, &mut objects, create("b", 7))), SnapshotError::IdTaken);
    assert_eq!(refused(ask(&mut rig, &mut objects, create("b", ID.0))), SnapshotError::IdTaken);
    assert_eq!(refused(ask(&mut rig, &mut objects, delete("b"))), SnapshotError::NotFound);
    let bad = ask(&mut rig, &mut objects, create("a b", 9));
    assert!(matches!(bad, Err(VolumeError::Invalid(_))), "{bad:?}");
    let infos = listed(&mut rig, &mut objects, 0);
    assert_eq!(infos.len(), 1);
    let SnapshotInfo { name, id, segment, sectors, created, clones, hidden } = infos[0].clone();
    assert_eq!((name.as_str(), id, sectors, created, clones), ("a", VolumeId(7), SECTORS, 9, 0));
    assert!(!hidden);
    assert!(listed(&mut rig, &mut objects, segment).is_empty());
    assert_eq!(ask(&mut rig, &mut objects, delete("a")).unwrap(), SnapshotReply::Done);
    assert!(listed(&mut rig, &mut objects, 0).is_empty());
    // The content of the segment, byte by byte.
    let object = &objects.0[&catalog::segment_key(ID, segment)];
    let note = [&segment.to_le_bytes()[..], &7u128.to_le_bytes(), &9u64.to_le_bytes(), b"\x01a"];
    let footer = &object[segment::HEADER_BYTES..object.len() - segment::TRAILER_BYTES];
    assert_eq!(footer[24..], note.concat());
    assert_eq!((object[4], object[6]), (1, 7));
    let mut again = Rig::open(2, &tiny());
    again.settle(&mut objects);
    same_state(again.volume.state(), rig.volume.state());
    assert_eq!(again.volume.state().snapshots, rig.volume.state().snapshots);
}

#[test]
fn a_barrier_waits_for_what_the_host_says() {
    let (mut objects, mut rig) = attached_rig();
    let barrier = SnapshotOperation::Create {
        snapshot: "a".into(),
        id: VolumeId(7),
        created: 0,
        barrier: true,
    };
    let operation = VolumeOperation::Snapshot { name: "test".into(), operation: barrier };
    let message = ToStore::Volume { request: 5, operation };
    let asked = |rig: &Rig| rig.has(1, |m| matches!(m, ToHost::Barrier { barrier: 1, .. }));
    rig.send(2, Lane::Control, message.clone());
    rig.settle(&mut objects);
    let taken = |rig: &Rig| rig.has(2, |m| matches!(m, ToHost::Volume { .. }));
    assert!(asked(&rig) && !taken(&rig) && rig.volume.session() == Some(SessionId(1)));
    let (volume, epoch) = (ID, 1);
    rig.send(1, Lane::Control, ToStore::Barrier { volume, epoch, barrier: 1, seq: 2 });
    commit(&mut rig, &mut objects, 1, 1, &[data(0, 1, 1)]);
    assert!(!taken(&rig));
    commit(&mut rig, &mut objects, 1, 2, &[data(1, 1, 2)]);
    assert!(taken(&rig));
    let snapshot = rig.volume.state().snapshots.named("a").unwrap().clone();
    let mut reader =
        rig_of(Volume::open_snapshot(rig.now, spec(), (snapshot.segment, snapshot.id), 9, tiny()));
    let expected = content(&[data(0, 1, 1), data(1, 1, 2)]);
    assert_eq!(read_as(&mut reader, &mut objects, snapshot.id).unwrap(), expected);
    // The host goes away instead.
    let mut other = message;
    if let ToStore::Volume { operation: VolumeOperation::Snapshot { operation, .. }, .. } =
        &mut other
        && let SnapshotOperation::Create { snapshot, id, .. } = operation
    {
        (*snapshot, *id) = ("b".into(), VolumeId(8));
    }
    rig.send(3, Lane::Control, other);
    rig.settle(&mut objects);
    rig.volume.handle_session_closed(rig.now, SessionId(1));
    rig.collect();
    let error = VolumeError::Snapshot(SnapshotError::NoBarrier);
    assert!(rig.has(3, |m| matches!(m, ToHost::Volume { result: Err(e), .. } if *e == error)));
}

#[test]
fn a_snapshot_cannot_be_written_to_and_anybody_may_have_it() {
    let (mut objects, mut rig) = attached_rig();
    commit(&mut rig, &mut objects, 1, 1, &[data(3, 2, 1)]);
    ask(&mut rig, &mut objects, create("a", 7)).unwrap();
    commit(&mut rig, &mut objects, 1, 2, &[data(3, 2, 2)]);
    let segment = rig.volume.state().snapshots.named("a").unwrap().segment;
    let id = VolumeId(7);
    let mut reader = rig_of(Volume::open_snapshot(rig.now, spec(), (segment, id), 9, tiny()));
    reader.settle(&mut objects);
    for session in [1, 2] {
        let attached = reader.attach(&mut objects, session, 3, None).unwrap();
        assert_eq!((attached.volume, attached.epoch, attached.committed), (id, 0, 1));
    }
    reader.send(1, Lane::Drain, batch_for(id, 1, 2, &[data(0, 1, 5)]));
    assert!(reader.refused(1));
    let since = link::Moment { epoch: 0, host: HostId(3), seq: 0 };
    reader.send(1, Lane::Control, ToStore::Changed { request: 3, volume: id, epoch: 0, since });
    let nothing = link::Changes::Ranges(Vec::new());
    assert!(reader.has(1, |m| {
        matches!(m, ToHost::Changed { result: Ok(changes), .. } if *changes == nothing)
    }));
    assert_eq!(read_as(&mut reader, &mut objects, id).unwrap(), content(&[data(3, 2, 1)]));
    let before = objects.0.clone();
    reader.volume.handle_shutdown(reader.now);
    reader.collect();
    reader.settle(&mut objects);
    assert!(reader.volume.is_idle() && objects.0 == before, "it writes nothing");
    let mut none = rig_of(Volume::open_snapshot(rig.now, spec(), (segment, ID), 9, tiny()));
    none.settle(&mut objects);
    assert_eq!(none.volume.failed(), Some(&OpenError::NoSnapshot));
    assert_eq!(none.attach(&mut objects, 1, 3, None), Err(AttachError::NotFound));
}

/// A clone of what the rig's volume has in a snapshot.
pub(super) fn make_clone(
    rig: &mut Rig,
    objects: &mut Objects,
    snapshot: &str,
    id: u128,
) -> VolumeSpec {
    let reply = ask(rig, objects, clone(snapshot, id)).unwrap();
    let SnapshotReply::Pinned { sectors, parents } = reply else { panic!("{reply:?}") };
    let name = "test".to_owned();
    VolumeSpec { id: VolumeId(id), name, created_sectors: sectors, parents, ..spec() }
}

#[test]
fn clones_of_clones_go_their_own_ways() {
    let (mut objects, mut parent) = attached_rig();
    let mut history: Vec<Write> = Vec::new();
    for n in 1..=12 {
        history.push(data(n * 5 % 63, 1, n as u16));
        commit(&mut parent, &mut objects, 1, n, &history[n as usize - 1..]);
    }
    ask(&mut parent, &mut objects, create("a", 7)).unwrap();
    let mut rigs = vec![parent];
    let mut contents = vec![history.clone()];
    for generation in 1..=3u128 {
        let from = rigs.len() - 1;
        let id = VolumeId(0x100 + generation);
        let spec = make_clone(&mut rigs[from], &mut objects, "a", id.0);
        assert_eq!(spec.parents.len(), generation as usize);
        assert_eq!(make_clone(&mut rigs[from], &mut objects, "a", id.0), spec, "asked again");
        let mut rig = rig_of(Volume::open(Time(0), spec.clone(), id.0, tiny()));
        let mut mine = contents[from].clone();
        if generation == 1 {
            // The parent's writes before the snapshot.
            mine.truncate(12);
        }
        assert_eq!(read_as(&mut rig, &mut objects, id).unwrap(), content(&mine));
        let attached = rig.attach(&mut objects, 1, 1, None).unwrap();
        for n in 0..12 {
            let seq = attached.committed + 1 + n;
            let write =
                data((n * 7 + generation as u64) % 63, 1, 100 * generation as u16 + n as u16);
            mine.push(write);
            rig.send(1, Lane::Drain, batch_for(id, attached.epoch, seq, &[write]));
            rig.settle(&mut objects);
        }
        assert_eq!(read_as(&mut rig, &mut objects, id).unwrap(), content(&mine));
        // Opened again, from a root of its own.
        let mut again = rig_of(Volume::open(Time(0), spec.clone(), 0x999, tiny()));
        assert_eq!(read_as(&mut again, &mut objects, id).unwrap(), content(&mine));
        ask(&mut rig, &mut objects, create("a", 0x200 + generation)).unwrap();
        // The parent continues, and loses its snapshot.
        let volume = rigs[from].volume.id();
        let (epoch, committed) = {
            let state = rigs[from].volume.state();
            (state.epoch(), state.committed)
        };
        ask(&mut rigs[from], &mut objects, delete("a")).unwrap();
        assert!(listed(&mut rigs[from], &mut objects, 0).is_empty());
        assert_eq!(rigs[from].volume.state().snapshots.len(), 1, "it stays for the clone");
        for n in 0..20 {
            let write = data(n * 3 % 63, 1, 1000 + n as u16);
            contents[from].push(write);
            let frame = batch_for(volume, epoch, committed + 1 + n, &[write]);
            rigs[from].send(1, Lane::Drain, frame);
            rigs[from].settle(&mut objects);
        }
        rigs.push(rig);
        contents.push(mine);
    }
    for (rig, writes) in rigs.iter_mut().zip(&contents) {
        let id = rig.volume.id();
        assert_eq!(read_as(rig, &mut objects, id).unwrap(), content(writes));
        let spec = rig.volume.spec().clone();
        let mut again = rig_of(Volume::open(Time(0), spec, 0x888, tiny()));
        assert_eq!(read_as(&mut again, &mut objects, id).unwrap(), content(writes));
    }
    // The last clone goes, and with it what it needed.
    let forget = SnapshotOperation::Forget { id: VolumeId(0x103) };
    assert_eq!(ask(&mut rigs[2], &mut objects, forget.clone()).unwrap(), SnapshotReply::Done);
    assert_eq!(rigs[2].volume.state().snapshots.len(), 0);
    assert_eq!(ask(&mut rigs[2], &mut objects, forget).unwrap(), SnapshotReply::Done);
    let unknown = Parent { volume: ID, segment: 2, snapshot: VolumeId(5) };
    let orphan = VolumeSpec { id: VolumeId(0x300), parents: vec![unknown], ..spec() };
    let mut orphan = rig_of(Volume::open(Time(0), orphan, 1, tiny()));
    orphan.settle(&mut objects);
    assert_eq!(orphan.volume.failed(), Some(&OpenError::NoParent));
}

/// Takes so many snapshots and deletes all but one; prints what that costs.
fn many_snapshots(count: u64) {
    let config = Config { sweep_bytes: Config::default().sweep_bytes, ..tiny() };
    let (mut objects, mut rig) = (Objects::default(), Rig::open(1, &config));
    rig.settle(&mut objects);
    rig.attach(&mut objects, 1, 1, None).unwrap();
    let mut seq = 0;
    for n in 1..=count {
        if n % 10 == 0 {
            seq += 1;
            commit(&mut rig, &mut objects, 1, seq, &[data(n * 7 % 63, 1, n as u16)]);
        }
        let taken =
            ask(&mut rig, &mut objects, create(&format!("hourly-{n:06}"), 0x1000 + u128::from(n)));
        assert!(matches!(taken, Ok(SnapshotReply::Taken(_))), "{taken:?}");
    }
    let (key, root) = objects.roots().pop().unwrap();
    assert_eq!(root.unwrap().pins.len() as u64, count);
    let root_bytes = objects.0[&key].len();
    let pins = objects.0.iter().filter(|(key, _)| key.contains("/snap/"));
    let (pins, pins_bytes) = pins.fold((0, 0), |(n, sum), (_, object)| (n + 1, sum + object.len()));
    assert_eq!(pins as u64, count);
    assert!(root_bytes < count as usize * 80, "{root_bytes} bytes");
    assert!(objects.roots().len() <= 2);
    let mut again = Rig::open(2, &tiny());
    let mut operations = 0;
    while again.volume.info().is_none() {
        again.execute(&mut objects, 0, Fate::Good);
        operations += 1;
    }
    assert!(operations < 30, "{operations} operations to open");
    println!(
        "{count} snapshots: root {root_bytes} B, {} B each for its own, opened with {operations} operations",
        pins_bytes / pins
    );
    // All but one go; the objects of that one and of the volume remain.
    for n in 1..count {
        ask(&mut rig, &mut objects, delete(&format!("hourly-{n:06}"))).unwrap();
    }
    for n in 0..4 {
        ask(&mut rig, &mut objects, create(&format!("last-{n}"), 0x9000 + n)).unwrap();
    }
    let pins = objects.0.keys().filter(|key| key.contains("/snap/")).count();
    assert_eq!(pins, 5);
}

#[test]
fn a_thousand_snapshots() {
    many_snapshots(1000);
}

#[test]
#[ignore = "takes three minutes, and prints what it measures: make soak"]
fn ten_thousand_snapshots() {
    many_snapshots(10_000);
}
