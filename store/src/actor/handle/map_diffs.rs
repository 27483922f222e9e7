//! Map diffs: begun when the volume's log says that its snapshots exist, and answered by the
//! engines of its maps.

use super::super::StoreActor;
use super::super::directory::SnapshotLocation;
use super::super::operation::map_diff::{
    DiffStep, Finds, MapQuestion, PlacesFound, WaitingDiff, party_of,
};
use super::super::request::ReplyTo;
use longhaul_base::limits::MAX_IDLE_SNAPSHOTS;
use longhaul_core::block::{Range, VolumeId};
use longhaul_core::store::{Account, SHELL_SESSION};
use longhaul_core::wire::link::{
    Lane, MAX_MAPS_COUNTED, Principal, ReadError, SnapshotError, SnapshotKey, ToStore, VolumeError,
};

impl StoreActor {
    /// Begins to compare a snapshot of a volume that this store serves with another one, or the
    /// volume.
    pub(super) fn begin_diff(
        &mut self,
        (to, principal): (ReplyTo, &Principal),
        volume: VolumeId,
        since: SnapshotKey,
        until: Option<SnapshotKey>,
        range: Range,
    ) {
        let party = party_of(principal, self.directory.tenant(volume));
        let snapshots = std::iter::once(since).chain(until).collect();
        let whole = until.is_none().then_some(range.end());
        let finds = Finds::Differences(Vec::new());
        self.push_diff(WaitingDiff { party, to, volume, snapshots, whole, range, finds });
    }

    /// Begins to count what snapshots of a volume that this store serves name, and the volume.
    pub(super) fn begin_usage(
        &mut self,
        (to, principal): (ReplyTo, &Principal),
        volume: VolumeId,
        snapshots: Vec<SnapshotKey>,
        whole: Option<u64>,
        range: Range,
    ) {
        if snapshots.len() > MAX_MAPS_COUNTED || snapshots.is_empty() && whole.is_none() {
            let why = format!("from 1 to {MAX_MAPS_COUNTED} snapshots are counted at a time");
            return self.sessions.reply(&[to], &Err(VolumeError::Invalid(why)));
        }
        let party = party_of(principal, self.directory.tenant(volume));
        let ids = snapshots.iter().map(|key| key.id).chain(whole.map(|_| volume));
        let begins_after = self.directory.spec(volume).map_or(0, |spec| spec.begins_after());
        let finds = Finds::Usage { account: Account::new(ids), begins_after };
        self.push_diff(WaitingDiff { party, to, volume, snapshots, whole, range, finds });
    }

    fn push_diff(&mut self, diff: WaitingDiff) {
        if diff.range.is_empty() {
            let why = VolumeError::Invalid("the range is empty".into());
            return self.sessions.reply(&[diff.to], &Err(why));
        }
        self.operations.diffs.push(diff);
        self.next_diffs();
    }

    /// Begins what may be: of each party one. Those whose volume is not open yet wait until it is.
    pub(super) fn next_diffs(&mut self) {
        let mut at = 0;
        while !self.operations.diffs.is_full() {
            let Some(diff) = self.operations.diffs.waiting(at) else { return };
            let (to, volume) = (diff.to, diff.volume);
            if self.operations.diffs.is_running(&diff.party) {
                at += 1;
                continue;
            }
            // That may open it, and end here with something else that waits.
            let known = self.known_snapshots(volume);
            let Some(diff) = self.operations.diffs.waiting(at) else { return };
            if (diff.to.session, diff.to.request) != (to.session, to.request) {
                at = 0;
                continue;
            }
            match known {
                None => at += 1,
                Some(Err(error)) => {
                    self.operations.diffs.take_waiting(at);
                    self.sessions.reply(&[to], &Err(error));
                }
                Some(Ok(())) => {
                    if let Some(diff) = self.operations.diffs.take_waiting(at) {
                        self.start_diff(diff);
                    }
                }
            }
        }
    }

    /// Opens a volume, if it is not open, to learn of its snapshots: nothing as long as that takes.
    fn known_snapshots(&mut self, volume: VolumeId) -> Option<Result<(), VolumeError>> {
        if !self.open(volume) {
            return Some(Err(VolumeError::NotFound));
        }
        // A new one begins with that.
        self.drive(volume);
        let mut driven = self.engines.get(volume)?.lock();
        driven.used = true;
        if let Some(failed) = driven.volume.failed() {
            return Some(Err(VolumeError::Store(failed.to_string())));
        }
        driven.volume.info().map(|_| Ok(()))
    }

    /// Begins a map diff, if the volume has those snapshots.
    fn start_diff(&mut self, diff: WaitingDiff) {
        let has_all = self.engines.get(diff.volume).is_some_and(|engine| {
            let driven = engine.lock();
            let snapshots = &driven.volume.state().snapshots;
            let has = |key: &SnapshotKey| {
                snapshots.at(key.segment).is_some_and(|known| known.id == key.id)
            };
            diff.snapshots.iter().all(has)
        });
        if !has_all && !diff.snapshots.is_empty() {
            let error = VolumeError::Snapshot(SnapshotError::NotFound);
            return self.sessions.reply(&[diff.to], &Err(error));
        }
        let mut needed = self.operations.diffs.engines();
        needed.extend(diff.snapshots.iter().map(|key| key.id));
        self.engines.close_idle_snapshots(&needed, MAX_IDLE_SNAPSHOTS);
        for key in &diff.snapshots {
            let location = SnapshotLocation { volume: diff.volume, segment: key.segment };
            self.directory.insert_snapshot(key.id, location);
        }
        let questions = self.operations.diffs.begin(diff);
        self.ask_maps(questions);
    }

    fn ask_maps(&mut self, questions: Vec<MapQuestion>) {
        for MapQuestion { request, engine: id, range } in questions {
            if !self.open(id) {
                return self.places_found(PlacesFound(request, Err(ReadError::NotAttached)));
            }
            let now = self.meter.now();
            if let Some(engine) = self.engines.get(id) {
                let mut driven = engine.lock();
                driven.used = true;
                let message = ToStore::Status { request, volume: id, epoch: 0, range };
                // Requests that a client waits for come first.
                let lane = Lane::ReadAhead;
                driven.volume.handle_message(now, SHELL_SESSION, lane, message.into());
            }
            self.drive(id);
        }
    }

    /// Takes what an engine says of a part.
    pub(super) fn places_found(&mut self, found: PlacesFound) {
        match self.operations.diffs.found(found) {
            DiffStep::Wait => {}
            DiffStep::Ask(questions) => self.ask_maps(questions),
            DiffStep::Answer(to, result) => {
                self.sessions.reply(&[to], &result);
                self.next_diffs();
            }
        }
    }
}
