//! A party with a key of its own that speaks for hosts. It knows everything that they know, except
//! their key: volumes, epochs, identities, numbers. Its messages must not change the content or the
//! knowledge of a store. They must answer nothing in the name of an epoch, and fence nobody.

use super::World;
use crate::note;
use bytes::BytesMut;
use longhaul_core::block::{Epoch, Range, SECTOR_BYTES, STAGED_BIT, Seq};
use longhaul_core::record;
use longhaul_core::store::{SessionId, SessionPeer, Volume};
use longhaul_core::wire::link::{
    Announced, AttachError, Frame, HostId, JournalState, KeyId, Lane, Moment, ToHost, ToStore,
};

/// The forger's key.
const FORGER: KeyId = KeyId([0xff; 32]);

/// The store's content and knowledge of a volume, and its owner.
fn known(machine: &Volume) -> impl PartialEq + std::fmt::Debug + use<> {
    let state = machine.state();
    let announced: Vec<Announced> = state.announced.iter_from(0).collect();
    (state.number, state.committed, state.history.len(), state.clean, announced, machine.session())
}

impl World {
    /// Says who is at the other end, then hands a frame to an engine.
    pub(super) fn meet_and_tell(
        &mut self,
        number: u64,
        store: usize,
        volume: usize,
        lane: Lane,
        frame: Frame<ToStore>,
    ) {
        let forged = self.forgers.contains(&number);
        let host = self.sessions.get(&number).map(|(session, _)| session.host);
        let key = match host {
            _ if forged => FORGER,
            Some(host) => KeyId([host as u8 + 1; 32]),
            None => KeyId::NONE,
        };
        let now = self.now;
        let Some(open) = self.stores[store].open.get_mut(&volume) else { return };
        open.machine.handle_session(SessionId(number), SessionPeer { key, name: String::new() });
        // After the decision about an attach, earlier messages of its host count as announced.
        let looked_at = forged && !matches!(frame.message, ToStore::Attach { .. });
        let before = looked_at.then(|| (known(&open.machine), format!("{:?}", frame.message)));
        open.machine.handle_message(now, SessionId(number), lane, frame);
        if let Some((before, brief)) = before {
            let after = known(&open.machine);
            if before != after {
                self.fail(format!("{brief}, forged, has made {after:?} of {before:?}"));
            }
        }
    }

    /// Somebody speaks for the host of a volume.
    pub(super) fn forge(&mut self) {
        if self.finishing {
            return;
        }
        let next = self.forge_rng.spread(self.plan.forgery / 4, self.plan.forgery * 2);
        self.after(next, super::Event::Forge);
        let store = self.forge_rng.index(self.stores.len());
        let volume = self.forge_rng.index(self.volumes.len());
        if !self.stores[store].up || self.stores[store].stopping {
            return;
        }
        // An epoch of nobody needs no key, and nothing can happen in it.
        let truth = &self.volumes[volume].truth;
        let Some(begun) = truth.history.last().filter(|begun| begun.host != HostId(0)) else {
            return;
        };
        let (epoch, host, committed) = (begun.epoch, begun.host, truth.log.len() as Seq);
        let connected = self.stores[store].open.get(&volume);
        let connected = connected.is_some_and(|open| open.machine.session().is_some());
        let number = self.number();
        self.forgers.insert(number);
        for _ in 0..self.forge_rng.between(1, 5) {
            let (lane, frame) = self.forged(volume, epoch, host, committed);
            note!(self, "s{store} forger {number} <- {:?}", frame.message);
            self.coverage.forged += 1;
            self.coverage.forged_connected += u64::from(connected);
            self.hand_over_frame(number, store, volume, lane, frame);
        }
    }

    fn forged(
        &mut self,
        volume: usize,
        epoch: Epoch,
        host: HostId,
        committed: Seq,
    ) -> (Lane, Frame<ToStore>) {
        let (id, name) = (self.volumes[volume].id, self.volumes[volume].name.clone());
        let blocks = self.volumes[volume].spec.created_sectors / 8;
        let range = Range::new(self.forge_rng.below(blocks) * 8, 8);
        let request = self.number();
        let message = match self.forge_rng.weighted(&[4, 4, 3, 4, 2, 1, 1, 1, 1, 3]) {
            0 => ToStore::Resume { request, volume: id, epoch, host },
            1 => ToStore::Announce { volume: id, epoch, replace: true, entries: Vec::new() },
            2 => {
                let seq = committed + self.forge_rng.between(1, 100);
                let entries = vec![Announced { range, seq }];
                let replace = self.forge_rng.percent(50);
                ToStore::Announce { volume: id, epoch, replace, entries }
            }
            3 => {
                let mut payload = BytesMut::new();
                let (first, last) = (committed + 1, committed + 3);
                for seq in first..=last {
                    let data = vec![0x66; (8 * SECTOR_BYTES) as usize];
                    record::encode_data(id, epoch, seq, range, &data, &mut payload);
                }
                let message = ToStore::Batch { volume: id, epoch, first, last };
                return (Lane::Drain, Frame { message, payload: payload.freeze() });
            }
            4 => ToStore::Detach { request, volume: id, epoch },
            5 => {
                let barrier = self.forge_rng.between(1, 5);
                ToStore::Barrier { volume: id, epoch, barrier, seq: 0 }
            }
            6 => ToStore::EarlyRead { request, volume: id, epoch, committed, range },
            7 => ToStore::Read { request, volume: id, epoch, range },
            8 if self.forge_rng.percent(50) => ToStore::Changed {
                request,
                volume: id,
                epoch,
                since: Moment { epoch, host, seq: 0 },
            },
            8 => {
                let (into, lba, object) = (id, range.lba, STAGED_BIT | u64::from(u32::MAX) << 16);
                ToStore::Stage { request, volume: id, epoch, range, into, lba, object }
            }
            _ => {
                // It has all that is missing, it says.
                let journal = Some(JournalState { volume: id, epoch, last: 1 << 60 });
                ToStore::Attach { request, name, host, journal, take_over: false }
            }
        };
        (Lane::Control, message.into())
    }

    /// Checks the messages to a forger.
    pub(super) fn check_forger(&mut self, frame: &Frame<ToHost>) -> Result<(), String> {
        match &frame.message {
            ToHost::Attached { result: Err(_), .. } => {
                self.coverage.forged_refused += 1;
                Ok(())
            }
            ToHost::Attached { result: Ok(_), .. }
            | ToHost::Committed { .. }
            | ToHost::Data { result: Ok(_), .. }
            | ToHost::Changed { result: Ok(_), .. }
            | ToHost::Staged { result: Ok(_), .. }
            | ToHost::Barrier { .. } => {
                Err(format!("somebody without its key speaks for a host: {:?}", frame.message))
            }
            _ => Ok(()),
        }
    }

    /// Checks to whom a store refuses a volume.
    pub(super) fn check_owner(
        &self,
        store: usize,
        volume: usize,
        number: u64,
        frame: &Frame<ToHost>,
    ) -> Result<(), String> {
        let Some((session, told)) = self.sessions.get(&number) else { return Ok(()) };
        let open = self.stores[store].open.get(&volume);
        let has = open.and_then(|open| open.machine.state().host());
        match &frame.message {
            ToHost::Attached {
                result: Err(AttachError::InUse { .. } | AttachError::OtherKey { .. }),
                ..
            } if has.is_some() && has == told.host => {
                Err(format!("host {} is shut out of its own volume", session.host))
            }
            _ => Ok(()),
        }
    }
}
