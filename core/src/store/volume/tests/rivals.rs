//! Two hosts and two stores over one object store, with all failures in any order.
//!
//! Invariants, after every step:
//! - The log only grows, and every segment in it is valid.
//! - The log has every write that a host hears to be committed, and it is that host's write. Rivals
//!   never both commit.
//! - The committed number in a resume is never less than an earlier answer.
//! - All objects that the newest root names exist, whichever store flushes, merges and deletes
//!   meanwhile.
//! - An acknowledged size is in the log and has a note. Later answers are at least that size. The
//!   store refuses no write within the size that its host knows.
//!
//! At checks and at the end, each store reads the content of the log up to its last commit. A newly
//! opened store has the same state as a replay of the log from the beginning.

use super::*;
use crate::wire::link::VolumeError;

#[derive(Clone, Debug)]
enum Action {
    Write { host: usize, write: Write },
    Ship { host: usize, count: usize },
    Announce { host: usize },
    Attach { host: usize, store: usize, close: bool },
    Resume { host: usize, store: usize, close: bool },
    Detach { host: usize },
    AcceptLoss { store: usize },
    Resize { store: usize, sectors: u64 },
    Step { store: usize, pick: usize, fate: Fate },
    Tick { store: usize },
    Crash { store: usize, late: bool },
    Restart { store: usize },
    Check { store: usize },
}

fn action() -> impl Strategy<Value = Action> {
    let kind = prop_oneof![4 => Just(Kind::Data), 3 => Just(Kind::Packed), 1 => Just(Kind::Discard), 1 => Just(Kind::Zero)];
    let write = (kind, 0..SECTORS, 1..24u64).prop_map(|(kind, lba, sectors)| Write {
        kind,
        range: Range::between(lba, (lba + sectors).min(SECTORS)),
        tag: 0,
    });
    let fate = prop_oneof![
        6 => Just(Fate::Good),
        1 => Just(Fate::FailsBefore),
        1 => Just(Fate::FailsAfter)
    ];
    let host = 0..2usize;
    let store = 0..2usize;
    prop_oneof![
        6 => (host.clone(), write).prop_map(|(host, write)| Action::Write { host, write }),
        6 => (host.clone(), 1..5usize).prop_map(|(host, count)| Action::Ship { host, count }),
        2 => host.clone().prop_map(|host| Action::Announce { host }),
        2 => (host.clone(), store.clone(), any::<bool>())
            .prop_map(|(host, store, close)| Action::Attach { host, store, close }),
        2 => (host.clone(), store.clone(), any::<bool>())
            .prop_map(|(host, store, close)| Action::Resume { host, store, close }),
        1 => host.prop_map(|host| Action::Detach { host }),
        1 => store.clone().prop_map(|store| Action::AcceptLoss { store }),
        2 => (store.clone(), SECTORS - 8..SECTORS * 4)
            .prop_map(|(store, sectors)| Action::Resize { store, sectors }),
        20 => (store.clone(), 0..8usize, fate)
            .prop_map(|(store, pick, fate)| Action::Step { store, pick, fate }),
        4 => store.clone().prop_map(|store| Action::Tick { store }),
        1 => (store.clone(), any::<bool>()).prop_map(|(store, late)| Action::Crash { store, late }),
        1 => store.clone().prop_map(|store| Action::Restart { store }),
        1 => store.prop_map(|store| Action::Check { store }),
    ]
}

#[derive(Default)]
struct Host {
    writes: Vec<Write>,
    /// Epoch and store of the attachment; the journal's epoch once there is one.
    epoch: u64,
    store: usize,
    session: u64,
    attached: bool,
    /// It has told the content of its journal, and writes nothing before it has the answer.
    attaching: bool,
    fenced: bool,
    committed: u64,
    shipped: u64,
    /// The size that the host knows.
    sectors: u64,
    /// The acknowledged size at the time of its request.
    due_sectors: u64,
}

struct World {
    config: Config,
    objects: Objects,
    stores: Vec<Rig>,
    /// Puts of stores that are gone, which may still take effect.
    late: Vec<ObjectOperation>,
    hosts: [Host; 2],
    log: Vec<Write>,
    counter: u64,
    /// The largest size in any answer to a resize.
    resized: u64,
    /// That at the time when a session asked for a resize.
    asked: BTreeMap<u64, u64>,
}

impl World {
    fn new() -> World {
        let config = Config { segment_bytes: 8 << 10, announce_in_segment_max: 3, ..tiny() };
        let stores = vec![Rig::open(1, &config), Rig::open(2, &config)];
        World {
            config,
            objects: Objects::default(),
            stores,
            late: vec![],
            hosts: Default::default(),
            log: vec![],
            counter: 100,
            resized: SECTORS,
            asked: BTreeMap::new(),
        }
    }

    fn count(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Write { host, mut write } => {
                self.counter += 1;
                write.tag = self.counter as u16;
                if write.kind.is_marker() {
                    write.tag = 0;
                }
                let host = &mut self.hosts[host];
                if host.epoch > 0 && !host.fenced && !host.attaching {
                    if self.counter.is_multiple_of(2) {
                        write.range.lba += host.sectors - SECTORS;
                    }
                    host.writes.push(write);
                }
            }
            Action::Ship { host, count } => {
                let host = &mut self.hosts[host];
                let from = host.shipped as usize;
                let to = (from + count).min(host.writes.len());
                if host.attached && to > from {
                    host.shipped = to as u64;
                    let frame = batch(host.epoch, from as u64 + 1, &host.writes[from..to]);
                    self.stores[host.store].send(host.session, Lane::Drain, frame);
                }
            }
            Action::Announce { host } => {
                let host = &self.hosts[host];
                if host.attached {
                    let entries: Vec<_> = (1..)
                        .zip(&host.writes)
                        .skip(host.committed as usize)
                        .map(|(seq, write)| (write.range.lba, write.range.sectors, seq))
                        .collect();
                    let message = announce(host.epoch, true, &entries);
                    self.stores[host.store].send(host.session, Lane::Control, message);
                }
            }
            Action::Attach { host, store, close } => {
                self.connect(host, store, close);
                self.hosts[host].attaching = true;
                let journal = (self.hosts[host].epoch > 0).then(|| JournalState {
                    volume: ID,
                    epoch: self.hosts[host].epoch,
                    last: self.hosts[host].writes.len() as u64,
                });
                let message = ToStore::Attach {
                    request: 1,
                    name: "test".into(),
                    host: HostId(host as u128 + 1),
                    journal,
                    take_over: true,
                };
                self.stores[store].send(self.hosts[host].session, Lane::Control, message);
            }
            Action::Resume { host, store, close } => {
                let asks = &self.hosts[host];
                if asks.epoch > 0 && !asks.fenced && !asks.attaching {
                    self.connect(host, store, close);
                    let message = ToStore::Resume {
                        request: 1,
                        volume: ID,
                        epoch: self.hosts[host].epoch,
                        host: HostId(host as u128 + 1),
                    };
                    self.stores[store].send(self.hosts[host].session, Lane::Control, message);
                }
            }
            Action::Detach { host } => {
                let host = &mut self.hosts[host];
                if host.attached && host.committed == host.writes.len() as u64 {
                    let message = ToStore::Detach { request: 2, volume: ID, epoch: host.epoch };
                    self.stores[host.store].send(host.session, Lane::Control, message);
                    host.attached = false;
                }
            }
            Action::AcceptLoss { store } => {
                let session = self.count();
                let operation = VolumeOperation::AcceptLoss { name: "test".into() };
                let message = ToStore::Volume { request: 3, operation };
                self.stores[store].send(session, Lane::Control, message);
            }
            Action::Resize { store, sectors } => {
                let session = self.count();
                self.asked.insert(session, self.resized);
                let operation = VolumeOperation::Resize { name: "test".into(), sectors };
                let message = ToStore::Volume { request: sectors, operation };
                self.stores[store].send(session, Lane::Control, message);
            }
            Action::Step { store, pick, fate } => {
                let rig = &mut self.stores[store];
                if !rig.pending.is_empty() {
                    let pick = pick % rig.pending.len();
                    rig.execute(&mut self.objects, pick, fate);
                }
            }
            Action::Tick { store } => {
                self.stores[store].tick();
            }
            Action::Crash { store, late } => {
                let incarnation = u128::from(self.count());
                let rig = Rig::open(incarnation, &self.config);
                let gone = std::mem::replace(&mut self.stores[store], rig);
                if late {
                    let puts = gone.pending.into_iter().map(|(_, operation)| operation);
                    self.late.extend(
                        puts.filter(|operation| matches!(operation, ObjectOperation::Put { .. })),
                    );
                } else if let Some(operation) = self.late.pop() {
                    self.objects.execute(&operation, Fate::Good);
                }
                for host in &mut self.hosts {
                    host.attached &= host.store != store;
                }
            }
            // The engine begins anew, with everything that it has on its way.
            Action::Restart { store } => {
                let rig = &mut self.stores[store];
                if rig.volume.reader.is_running() {
                    rig.volume.restart();
                    rig.collect();
                }
            }
            Action::Check { store } => self.check(store),
        }
        self.deliver();
    }

    fn connect(&mut self, host: usize, store: usize, close: bool) {
        let session = self.count();
        let host = &mut self.hosts[host];
        if close {
            let rig = &mut self.stores[host.store];
            rig.volume.handle_session_closed(rig.now, SessionId(host.session));
            rig.collect();
        }
        (host.session, host.store, host.attached) = (session, store, false);
        host.due_sectors = self.resized;
    }

    fn deliver(&mut self) {
        let log = writes_in(&self.objects);
        assert_eq!(log[..self.log.len()], self.log[..], "the log changed");
        self.objects.check_newest_root();
        self.log = log;
        for (store, rig) in self.stores.iter_mut().enumerate() {
            assert_eq!(rig.volume.failed(), None);
            for (session, _, frame) in std::mem::take(&mut rig.inbox) {
                if let ToHost::Volume { request, result } = &frame.message
                    && *request >= SECTORS - 8
                {
                    match result {
                        Ok(VolumeReply::Volume(info)) => {
                            assert!(
                                info.sectors >= *request && info.sectors >= self.asked[&session.0]
                            );
                            assert!(noted(&self.objects).1 >= info.sectors, "not noted");
                            self.resized = self.resized.max(info.sectors);
                        }
                        Ok(_) => panic!("not an answer: {frame:?}"),
                        Err(VolumeError::Invalid(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                    continue;
                }
                let Some(host) =
                    self.hosts.iter_mut().find(|h| h.session == session.0 && h.store == store)
                else {
                    continue;
                };
                host.attaching &= !matches!(frame.message, ToHost::Attached { .. });
                match frame.message {
                    ToHost::Attached { result: Ok(attached), .. } => {
                        let committed = attached.committed as usize;
                        assert!(attached.committed >= host.committed, "a commit was taken back");
                        assert!(committed <= self.log.len());
                        if attached.epoch != host.epoch && host.fenced {
                            host.fenced = false;
                        }
                        let known = committed.min(host.writes.len());
                        if host.epoch > 0 {
                            assert_eq!(host.writes[..known], self.log[..known]);
                        }
                        assert!(attached.sectors >= host.due_sectors, "the size went back");
                        host.sectors = host.sectors.max(attached.sectors);
                        host.writes.extend_from_slice(&self.log[known..committed]);
                        host.epoch = attached.epoch;
                        host.committed = attached.committed;
                        host.shipped = attached.committed;
                        host.attached = true;
                    }
                    ToHost::Attached {
                        result: Err(AttachError::Diverged { from, to, .. }),
                        ..
                    } => {
                        // A later epoch left its writes behind: the log lacks them, or has them as
                        // another host's.
                        assert!(from <= to && from > host.committed);
                        *host = Host::default();
                    }
                    ToHost::Attached { result: Err(AttachError::Fenced { epoch, .. }), .. }
                    | ToHost::Fenced { epoch, .. } => {
                        assert!(epoch > host.epoch);
                        (host.fenced, host.attached) = (true, false);
                    }
                    ToHost::Committed { epoch, seq, .. } => {
                        assert_eq!(epoch, host.epoch);
                        let upto = seq as usize;
                        assert!(upto <= self.log.len(), "told before it was durable");
                        assert_eq!(host.writes[..upto], self.log[..upto], "someone else's");
                        host.committed = host.committed.max(seq);
                    }
                    ToHost::BatchRefused { reason, .. } => {
                        assert!(!reason.contains("beyond the volume"), "{reason}");
                        host.attached = false;
                    }
                    ToHost::Resized { sectors, .. } => {
                        assert!(noted(&self.objects).0 >= sectors, "told before it was durable");
                        host.sectors = host.sectors.max(sectors);
                    }
                    _ => {}
                }
            }
        }
    }

    fn check(&mut self, store: usize) {
        self.stores[store].settle(&mut self.objects);
        self.deliver();
        let rig = &mut self.stores[store];
        let tags = rig.read_all(&mut self.objects).unwrap();
        let committed = rig.volume.state().committed as usize;
        assert_eq!(tags, content_of(rig.volume.state().sectors, &self.log[..committed]));
    }

    fn end(&mut self) {
        for store in [0, 1, 0] {
            self.check(store);
        }
        let mut fresh = Rig::open(999, &self.config);
        fresh.settle(&mut self.objects);
        assert_eq!(fresh.volume.state().committed as usize, self.log.len());
        let sectors = fresh.volume.state().sectors;
        assert!(sectors >= self.resized);
        assert_eq!(noted(&self.objects), (sectors, sectors));
        let content = content_of(sectors, &self.log);
        assert_eq!(fresh.read_all(&mut self.objects).unwrap(), content);
        // Without roots it comes to the same state.
        let mut bare = self.objects.clone();
        bare.0.retain(|key, _| key.contains("/seg/"));
        let replayed = {
            let mut rig = Rig::open(998, &self.config);
            rig.settle(&mut bare);
            rig
        };
        let (a, b) = (fresh.volume.state(), replayed.volume.state());
        assert_eq!((a.sectors, &a.history), (b.sectors, &b.history));
        assert_eq!(places(&fresh.volume, &self.objects), places(&replayed.volume, &bare));
        for (key, root) in self.objects.roots() {
            root.unwrap_or_else(|error| panic!("{key}: {error}"));
        }
    }
}

/// The size in the log, and the size in the note beside it.
fn noted(objects: &Objects) -> (u64, u64) {
    let (mut logged, mut noted) = (SECTORS, SECTORS);
    for (key, object) in &objects.0 {
        if key.starts_with(&catalog::segment_prefix(ID)) {
            logged = logged.max(segment::parse_header(object).unwrap().0.sectors);
        } else if key.starts_with(&catalog::size_prefix(ID)) {
            let sectors = catalog::decode_size(&spec(), key, object).unwrap();
            assert!(sectors > noted, "not in the order of the log");
            noted = sectors;
        }
    }
    assert!(noted <= logged, "noted before it is so");
    (logged, noted)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 4000, ..ProptestConfig::default() })]
    #[test]
    fn never_both_commit(actions in prop::collection::vec(action(), 20..250)) {
        let mut world = World::new();
        for action in actions {
            world.act(action);
        }
        world.end();
    }
}
