//! The host of a volume, and the owners of its epochs.

use super::scenarios::{attached, commit, opened};
use super::*;
use crate::wire::link::{Claim, KeyId, Moment, SnapshotOperation, StageError, VolumeError};

const VICTIM: KeyId = KeyId([0xaa; 32]);
const OTHER: KeyId = KeyId([0xbb; 32]);

fn meet(rig: &mut Rig, session: u64, key: KeyId, name: &str) {
    rig.volume.handle_session(SessionId(session), SessionPeer { key, name: name.into() });
}

/// A volume that host 1 has attached in session 1, with a key.
fn victim(config: &Config) -> (Objects, Rig) {
    let mut objects = Objects::default();
    let mut rig = Rig::open(1, config);
    rig.settle(&mut objects);
    meet(&mut rig, 1, VICTIM, "db1 at 10.0.0.1:77");
    assert_eq!(ask(&mut rig, &mut objects, 1, 1, None, false).unwrap().epoch, 1);
    (objects, rig)
}

fn ask(
    rig: &mut Rig,
    objects: &mut Objects,
    session: u64,
    host: u128,
    journal: Option<(u64, u64)>,
    take_over: bool,
) -> Result<Attached, AttachError> {
    let journal = journal.map(|(epoch, last)| JournalState { volume: ID, epoch, last });
    let (name, host) = ("test".to_owned(), HostId(host));
    let attach = ToStore::Attach { request: 1, name, host, journal, take_over };
    rig.send(session, Lane::Control, attach);
    // No timers: a refusal may depend on the time.
    while !rig.pending.is_empty() {
        rig.execute(objects, 0, Fate::Good);
    }
    rig.take_attached(session).expect("no answer to attach")
}

/// Asks for an operation on the volume, without timers.
fn operate(
    rig: &mut Rig,
    objects: &mut Objects,
    operation: VolumeOperation,
) -> Result<(), VolumeError> {
    rig.inbox.clear();
    rig.send(9, Lane::Control, ToStore::Volume { request: 1, operation });
    while !rig.pending.is_empty() {
        rig.execute(objects, 0, Fate::Good);
    }
    let answer = rig.inbox.drain(..).find_map(|(_, _, frame)| match frame.message {
        ToHost::Volume { result, .. } => Some(result.map(|_| ())),
        _ => None,
    });
    answer.expect("no answer")
}

fn close(rig: &mut Rig, session: u64) {
    rig.volume.handle_session_closed(rig.now, SessionId(session));
    rig.collect();
}

fn in_use(by: &str) -> Result<Attached, AttachError> {
    Err(AttachError::InUse { volume: "test".into(), host: HostId(1), by: by.into() })
}

#[test]
fn a_volume_whose_host_is_connected_is_taken_only_by_name() {
    let (mut objects, mut rig) = victim(&Config::default());
    let held = "db1 at 10.0.0.1:77";
    meet(&mut rig, 2, OTHER, "db2");
    meet(&mut rig, 3, VICTIM, "db1 at 10.0.0.1:78");
    // Another host, another key of the same host's name, another host with the same key.
    for (session, host) in [(2, 2), (2, 1), (3, 2)] {
        assert_eq!(ask(&mut rig, &mut objects, session, host, None, false), in_use(held));
    }
    let text = in_use(held).unwrap_err().to_string();
    for part in ["test", held, "longhaul detach test", "longhaul attach test --take-over"] {
        assert!(text.contains(part), "{text}");
    }
    commit(&mut rig, &mut objects, 1, 1, &[data(0, 8, 1)]);
    assert!(!rig.fenced(1));
    // The same host, whose old session still seems open.
    assert_eq!(ask(&mut rig, &mut objects, 3, 1, None, false).unwrap().epoch, 2);
    assert!(rig.fenced(1));
    assert_eq!(ask(&mut rig, &mut objects, 2, 2, None, true).unwrap().epoch, 3);
    assert!(rig.fenced(3));
    let former = format!("host {} (db1 at 10.0.0.1:78)", HostId(1));
    let told = |event: &Event| matches!(event, Event::Attached { epoch: 3, former: Some(f), .. } if *f == former);
    assert!(rig.events.iter().any(told), "{:?}", rig.events);
    let info = rig.volume.info().unwrap();
    assert_eq!((info.host, info.name.as_str(), info.connected), (Some(HostId(2)), "db2", true));
}

#[test]
fn a_host_that_is_gone_is_replaced_after_a_while() {
    let config = Config { holder_grace: Duration::from_secs(5), ..Config::default() };
    let (mut objects, mut rig) = victim(&config);
    meet(&mut rig, 2, OTHER, "db2");
    close(&mut rig, 1);
    let held = "db1 at 10.0.0.1:77";
    assert_eq!(ask(&mut rig, &mut objects, 2, 2, None, false), in_use(held));
    rig.now = rig.now.after(Duration::from_millis(4999));
    assert_eq!(ask(&mut rig, &mut objects, 2, 2, None, false), in_use(held));
    // It comes back at once, if it does.
    let resume = ToStore::Resume { request: 1, volume: ID, epoch: 1, host: HostId(1) };
    meet(&mut rig, 3, VICTIM, held);
    rig.send(3, Lane::Control, resume);
    while !rig.pending.is_empty() {
        rig.execute(&mut objects, 0, Fate::Good);
    }
    assert!(rig.take_attached(3).unwrap().is_ok());
    close(&mut rig, 3);
    rig.now = rig.now.after(Duration::from_secs(5));
    assert_eq!(ask(&mut rig, &mut objects, 2, 2, None, false).unwrap().epoch, 2);
    // The engine does not wait for a host that has detached.
    rig.send(2, Lane::Control, ToStore::Detach { request: 4, volume: ID, epoch: 2 });
    rig.settle(&mut objects);
    meet(&mut rig, 4, VICTIM, held);
    assert_eq!(ask(&mut rig, &mut objects, 4, 1, None, false).unwrap().epoch, 3);
}

#[test]
fn after_a_start_of_the_store_its_hosts_come_first() {
    let config = Config::default();
    let (mut objects, _) = victim(&config);
    let mut rig = Rig::open(2, &config);
    rig.settle(&mut objects);
    let until = rig.now.after(Duration::from_secs(5));
    rig.volume.handle_awaited(until);
    meet(&mut rig, 2, OTHER, "db2");
    assert_eq!(ask(&mut rig, &mut objects, 2, 2, None, false), in_use(""));
    assert!(in_use("").unwrap_err().to_string().contains(&format!("by host {}", HostId(1))));
    rig.now = until;
    assert_eq!(ask(&mut rig, &mut objects, 2, 2, None, false).unwrap().epoch, 2);
}

/// The state of the victim's volume in the store, and the losses in its answers.
fn known(rig: &Rig) -> (u64, u64, Vec<Announced>, Option<HostId>, bool, bool) {
    let state = rig.volume.state();
    let announced = state.announced.iter_from(0).collect();
    let connected = rig.volume.session() == Some(SessionId(1));
    (state.number, state.committed, announced, state.host(), state.clean, connected)
}

/// Every message that names an epoch, forged.
fn forged(epoch: u64, host: u128) -> Vec<(Lane, Frame<ToStore>)> {
    let (volume, range) = (ID, Range::new(0, 8));
    let since = Moment { epoch, host: HostId(host), seq: 0 };
    let stage =
        ToStore::Stage { request: 5, volume, epoch, range, into: ID, lba: 0, object: 1 << 63 | 7 };
    let control = vec![
        ToStore::Resume { request: 1, volume, epoch, host: HostId(host) },
        announce(epoch, true, &[]),
        announce(epoch, false, &[(0, 8, 9)]),
        ToStore::Detach { request: 2, volume, epoch },
        ToStore::Barrier { volume, epoch, barrier: 1, seq: 0 },
        ToStore::EarlyRead { request: 3, volume, epoch, committed: 0, range },
        ToStore::Read { request: 3, volume, epoch, range },
        ToStore::Status { request: 4, volume, epoch, range },
        stage,
        ToStore::Changed { request: 6, volume, epoch, since },
    ];
    let mut all: Vec<(Lane, Frame<ToStore>)> =
        control.into_iter().map(|message| (Lane::Control, message.into())).collect();
    all.insert(2, (Lane::Drain, batch(epoch, 2, &[data(0, 8, 66)])));
    all
}

#[test]
fn nobody_speaks_for_an_epoch_of_another_key() {
    let (mut objects, mut rig) = victim(&Config::default());
    commit(&mut rig, &mut objects, 1, 1, &[data(0, 8, 1)]);
    rig.send(1, Lane::Control, announce(1, true, &[(8, 8, 2), (32, 8, 3)]));
    rig.settle(&mut objects);
    let before = known(&rig);
    assert!(before.5 && before.2.len() == 2);
    meet(&mut rig, 2, OTHER, "db2");
    for (lane, frame) in forged(1, 1) {
        rig.send(2, lane, frame);
        rig.settle(&mut objects);
        assert_eq!(known(&rig), before);
    }
    let refused = Err(AttachError::OtherKey { epoch: 1, key: VICTIM });
    assert_eq!(rig.take_attached(2), Some(refused));
    let fenced =
        |result: &Result<Vec<link::Piece>, ReadError>| *result == Err(ReadError::Fenced(1));
    assert!(rig.has(2, |m| matches!(m, ToHost::Data { result, .. } if fenced(result))));
    assert!(
        !rig.has(2, |m| matches!(m, ToHost::Data { result: Ok(_), .. } | ToHost::Detached { .. }))
    );
    let staged = Err(StageError::Read(ReadError::Fenced(1)));
    assert!(rig.has(2, |m| matches!(m, ToHost::Staged { result, .. } if *result == staged)));
    // The engine reports each once, however many come.
    for (lane, frame) in forged(1, 1) {
        rig.send(2, lane, frame);
    }
    let told = rig.events.iter().filter_map(|event| match event {
        Event::OtherKey { session: SessionId(2), action, epoch: 1, key: VICTIM, .. } => {
            Some(*action)
        }
        _ => None,
    });
    let mut told: Vec<_> = told.collect();
    told.sort_unstable();
    let actions = ["announce", "barrier", "batch", "detach", "read", "stage"];
    assert_eq!(told, actions.map(|action| format!("volume.{action}")));
    // The victim has not noticed.
    commit(&mut rig, &mut objects, 1, 2, &[data(8, 8, 2)]);
    assert!(!rig.fenced(1) && !rig.refused(1));
    assert_eq!(rig.read(&mut objects, Range::new(0, 1)), Ok(vec![1]));
}

/// A second credential once resumed the epoch, committed a block and settled the announcement. Then
/// the store did not ask a new host about the loss.
#[test]
fn a_loss_is_asked_about_whatever_another_key_has_said() {
    let (mut objects, mut rig) = victim(&Config::default());
    rig.send(1, Lane::Control, announce(1, true, &[(8, 8, 2)]));
    commit(&mut rig, &mut objects, 1, 1, &[data(0, 8, 1)]);
    rig.settle(&mut objects);
    meet(&mut rig, 2, OTHER, "");
    for connected in [true, false] {
        for (lane, frame) in forged(1, 1) {
            rig.send(2, lane, frame);
            rig.settle(&mut objects);
        }
        rig.inbox.clear();
        // A journal that holds it all, or nothing of it; one that holds more.
        for last in [1, 2, 1 << 40] {
            let refused = ask(&mut rig, &mut objects, 2, 1, Some((1, last)), false).unwrap_err();
            let carried = AttachError::Carried { epoch: 1, key: VICTIM };
            assert!(
                refused == carried || connected && matches!(refused, AttachError::InUse { .. })
            );
        }
        if connected {
            close(&mut rig, 1);
        }
    }
    for take_over in [false, true] {
        let refused = ask(&mut rig, &mut objects, 2, 2, None, take_over);
        assert_eq!(refused, Err(AttachError::LossPending { host: HostId(1), bytes: 8 * 512 }));
    }
    // A host with the journal of another one replays it, if an operator orders that.
    assert_eq!(ask(&mut rig, &mut objects, 2, 2, Some((1, 2)), true).unwrap().committed, 1);
    close(&mut rig, 2);
    // Its claim about its journal differs from the delivered writes that the first host knows.
    meet(&mut rig, 3, VICTIM, "");
    let carried = AttachError::Carried { epoch: 2, key: OTHER };
    assert_eq!(ask(&mut rig, &mut objects, 3, 1, Some((1, 2)), false), Err(carried));
}

#[test]
fn keys_are_in_the_log_and_in_its_roots() {
    for config in [Config::default(), tiny()] {
        let (mut objects, mut rig) = victim(&config);
        for n in 1..=8 {
            commit(&mut rig, &mut objects, 1, n, &[data(n, 1, n as u16)]);
        }
        let roots = objects.roots().len();
        assert_eq!(roots > 0, config.flush_every_segments == 3);
        let mut again = Rig::open(2, &config);
        again.settle(&mut objects);
        assert_eq!(again.volume.state().history[0].key, VICTIM);
        meet(&mut again, 5, OTHER, "");
        // Its certificate is another one, with the same key.
        meet(&mut again, 6, VICTIM, "renewed");
        let refused = again.resume(&mut objects, 5, 1, 1);
        assert_eq!(refused, Err(AttachError::OtherKey { epoch: 1, key: VICTIM }));
        assert_eq!(again.resume(&mut objects, 6, 1, 1).unwrap().committed, 8);
    }
}

/// No key is a key like others.
#[test]
fn within_the_process_there_is_no_key() {
    let (mut objects, mut rig) = attached();
    meet(&mut rig, 2, OTHER, "");
    let refused = rig.resume(&mut objects, 2, 1, 1);
    assert_eq!(refused, Err(AttachError::OtherKey { epoch: 1, key: KeyId::NONE }));
    assert_eq!(rig.resume(&mut objects, 3, 1, 1).unwrap().epoch, 1);
}

/// The engine knows the key of another store's epoch once it has read the log on.
#[test]
fn an_epoch_of_another_store_belongs_to_its_key() {
    let mut objects = Objects::default();
    let mut behind = opened(&mut objects, 1);
    let mut ahead = opened(&mut objects, 2);
    meet(&mut ahead, 1, VICTIM, "");
    ask(&mut ahead, &mut objects, 1, 1, None, false).unwrap();
    meet(&mut behind, 2, OTHER, "");
    let range = Range::new(0, 8);
    let read = ToStore::EarlyRead { request: 8, volume: ID, epoch: 1, committed: 0, range };
    behind.send(2, Lane::Read, read);
    let refused = behind.resume(&mut objects, 2, 1, 1);
    assert_eq!(refused, Err(AttachError::OtherKey { epoch: 1, key: VICTIM }));
    let fenced = Err(ReadError::Fenced(1));
    assert!(
        behind
            .has(2, |m| matches!(m, ToHost::Data { request: 8, result, .. } if *result == fenced))
    );
    meet(&mut behind, 3, VICTIM, "");
    assert!(behind.resume(&mut objects, 3, 1, 1).is_ok());
}

#[test]
fn a_volume_is_left_to_another_store_for_its_host_only() {
    let (mut objects, mut rig) = victim(&Config::default());
    let attach = |take_over| Claim::Attach { journal: None, take_over };
    let may = |rig: &Rig, host, key, claim| rig.volume.may_leave(HostId(host), key, claim);
    let held = in_use("db1 at 10.0.0.1:77").map(|_| ());
    let other_key = Err(AttachError::OtherKey { epoch: 1, key: VICTIM });
    let fenced = Err(AttachError::Fenced { epoch: 1, host: HostId(1) });
    assert_eq!(may(&rig, 2, OTHER, attach(false)), held);
    assert_eq!(may(&rig, 1, OTHER, attach(false)), held);
    assert_eq!(may(&rig, 1, OTHER, Claim::Resume(1)), other_key);
    assert_eq!(may(&rig, 2, VICTIM, Claim::Resume(1)), fenced);
    // Another epoch than the one there is, whoever asks and whatever host it says it is.
    for (epoch, refused) in [(0, &fenced), (2, &other_key), (1 << 40, &other_key)] {
        assert_eq!(may(&rig, 1, OTHER, Claim::Resume(epoch)), *refused);
        assert_eq!(may(&rig, 2, OTHER, Claim::Resume(epoch)), *refused);
    }
    assert_eq!(may(&rig, 1, VICTIM, Claim::Resume(0)), fenced);
    for claim in [attach(false), attach(true), Claim::Resume(1)] {
        assert_eq!(may(&rig, 1, VICTIM, claim), Ok(()));
    }
    assert_eq!(may(&rig, 2, OTHER, attach(true)), Ok(()));
    rig.send(1, Lane::Control, announce(1, true, &[(8, 8, 1)]));
    let loss = Err(AttachError::LossPending { host: HostId(1), bytes: 8 * 512 });
    assert_eq!(may(&rig, 2, OTHER, attach(true)), loss);
    assert_eq!(may(&rig, 1, OTHER, attach(true)), loss);
    close(&mut rig, 1);
    // Without its host it is for the other store to decide.
    assert_eq!(may(&rig, 2, OTHER, attach(false)), Ok(()));
    assert_eq!(may(&rig, 1, OTHER, Claim::Resume(1)), other_key);
    assert_eq!(may(&rig, 1, OTHER, Claim::Resume(2)), other_key);
    assert_eq!(may(&rig, 1, VICTIM, Claim::Resume(1)), Ok(()));
    rig.settle(&mut objects);
}

/// A host that may be on its way back counts as connected for whoever would give up its writes,
/// too.
#[test]
fn losses_are_given_up_of_hosts_that_are_gone_for_good() {
    let config = Config { holder_grace: Duration::from_secs(5), ..Config::default() };
    let (mut objects, mut rig) = victim(&config);
    snapshots::ask(&mut rig, &mut objects, snapshots::create("s", 0x70)).unwrap();
    commit(&mut rig, &mut objects, 1, 1, &[data(0, 8, 1)]);
    close(&mut rig, 1);
    let operation = SnapshotOperation::Rollback { snapshot: "s".into() };
    let name = || "test".to_owned();
    let roll_back = || VolumeOperation::Snapshot { name: name(), operation: operation.clone() };
    let accept = || VolumeOperation::AcceptLoss { name: name() };
    let in_use = Err(VolumeError::InUse(HostId(1)));
    assert_eq!(operate(&mut rig, &mut objects, accept()), in_use);
    assert_eq!(operate(&mut rig, &mut objects, roll_back()), in_use);
    rig.now = rig.now.after(Duration::from_secs(5));
    assert_eq!(operate(&mut rig, &mut objects, roll_back()), Ok(()));
    meet(&mut rig, 2, VICTIM, "");
    assert_eq!(ask(&mut rig, &mut objects, 2, 1, None, false).unwrap().epoch, 3);
    close(&mut rig, 2);
    assert_eq!(operate(&mut rig, &mut objects, accept()), in_use);
    rig.now = rig.now.after(Duration::from_secs(5));
    assert_eq!(operate(&mut rig, &mut objects, accept()), Ok(()));
    // The engine does not wait for a host that has detached.
    meet(&mut rig, 3, VICTIM, "");
    assert_eq!(ask(&mut rig, &mut objects, 3, 1, None, false).unwrap().epoch, 5);
    rig.send(3, Lane::Control, ToStore::Detach { request: 4, volume: ID, epoch: 5 });
    rig.settle(&mut objects);
    close(&mut rig, 3);
    assert_eq!(operate(&mut rig, &mut objects, roll_back()), Ok(()));
}
