//! The quiet end of a world. All faults stop, and all work ends. Then the world checks everything
//! and removes it.

use super::operation::Kind;
use super::place::SECOND;
use super::store::Stage;
use super::truth::{Image, KEPT, Truth, stamp, volume_of};
use super::{Event, World};
use crate::note;
use longhaul_core::block::{Range, SECTOR_BYTES, Time, VolumeId};
use longhaul_core::store::lease::Lease;
use longhaul_core::store::trash::{Decision, HANDS_OFF};
use longhaul_core::store::{ObjectMeta, SessionId, Volume, VolumeSpec, catalog, lease, trash};
use longhaul_core::wire::link::{self, Lane, ReadPart, ToHost, ToStore};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stages {
    #[default]
    Running,
    /// All operations and procedures in progress end.
    Settling,
    /// The stores complete the interrupted deletions and restorations.
    Tending,
    /// The operator deletes and purges all volumes.
    Removing,
    Done,
}

/// The progress of the quiet end.
#[derive(Default)]
pub(super) struct End {
    stage: Stages,
    since: Time,
}

impl End {
    pub fn is_quiet(&self) -> bool {
        self.stage != Stages::Running
    }

    pub fn is_done(&self) -> bool {
        self.stage == Stages::Done
    }
}

impl World {
    fn become_stage(&mut self, stage: Stages) {
        note!(self, "the end: {stage:?}");
        self.end = End { stage, since: self.now };
        self.after(SECOND, Event::Finish);
    }

    pub(super) fn finish(&mut self) {
        let waited = (self.now.0 - self.end.since.0) / SECOND;
        match self.end.stage {
            Stages::Running => {
                self.calm_place();
                self.peering.cut.clear();
                self.peering.loss = 0;
                for store in 0..self.stores.len() {
                    self.stores[store].draining = false;
                    self.after(0, Event::StoreStarts(store));
                }
                self.become_stage(Stages::Settling);
            }
            Stages::Settling => {
                if let Some(busy) = self.busy() {
                    if waited > 600 {
                        return self.fail(format!("it does not come to rest: {busy}"));
                    }
                    return self.after(SECOND, Event::Finish);
                }
                for store in 0..self.stores.len() {
                    self.look_around(store);
                }
                self.become_stage(Stages::Tending);
            }
            // A store takes a step for a deleted volume [`HANDS_OFF`] seconds after it knows of it.
            Stages::Tending => {
                if waited < 4 * HANDS_OFF || self.busy().is_some() {
                    return self.after(SECOND, Event::Finish);
                }
                let checked = self.check_all();
                self.require(checked);
                self.become_stage(Stages::Removing);
            }
            Stages::Removing => {
                if let Some(left) = self.remove_more() {
                    if waited > 3000 {
                        return self.fail(format!("not everything can be removed: {left}"));
                    }
                    return self.after(2 * SECOND, Event::Finish);
                }
                self.become_stage(Stages::Done);
            }
            Stages::Done => {}
        }
    }

    /// The name of something that is still in progress; `None` if everything is at rest.
    fn busy(&self) -> Option<String> {
        if let Some(at) = self.stores.iter().position(|store| store.stage != Stage::Up) {
            return Some(format!("store {at} is {:?}", self.stores[at].stage));
        }
        if let Some(number) = self.operator.operations.keys().next() {
            return Some(format!("operation {number}"));
        }
        if let Some(at) = self.hosts.iter().position(|host| !host.is_idle()) {
            return Some(format!("host {at}"));
        }
        let waits = |at: usize| {
            self.stores[at].claims.values().any(|claim| {
                claim.asker.is_some() || !claim.waiting.is_empty() || !claim.releasing.is_empty()
            })
        };
        if let Some(at) = (0..self.stores.len()).find(|at| waits(*at)) {
            return Some(format!("a request at store {at}"));
        }
        let task = self.tasks.iter().next();
        task.map(|(number, entry)| format!("task {number} {:?}", entry.aim))
    }

    /// Checks all volumes, after everything has come to rest.
    fn check_all(&mut self) -> Result<(), String> {
        let ids: Vec<VolumeId> = self.truths.keys().copied().collect();
        for id in ids {
            self.check_volume(id).map_err(|error| format!("at the end volume {id}: {error}"))?;
        }
        Ok(())
    }

    fn check_volume(&mut self, id: VolumeId) -> Result<(), String> {
        let leases = self.place.list(&lease::prefix(id), "").count() as u64;
        self.coverage.leases_old += u64::from(leases > 1);
        let Some(truth) = self.truths.get(&id) else { return Ok(()) };
        let unexpected = |meta: ObjectMeta| !self.is_late(truth, &meta.key);
        if truth.fate.raced {
            return Ok(());
        }
        if truth.names.len() > 1 {
            return Err(format!("it has the names {:?}", truth.names));
        }
        let decision = truth.decision();
        let fate = &truth.fate;
        if fate.condemned {
            if let Some(name) = truth.names.first() {
                return Err(format!("it is purged, and has the name {name}"));
            }
            let late = |meta: &ObjectMeta| self.is_late(truth, &meta.key);
            let prefix = catalog::volume_prefix(id);
            let leftovers = self.place.list(&prefix, "").filter(late).count() as u64;
            let left = self.place.list(&prefix, "").any(|meta| !late(&meta));
            let records = trash::prefix(id);
            let records = self.place.list(&records, "").any(|meta| !late(&meta));
            if left || records {
                let left: Vec<String> = self.place.list(&prefix, "").map(|meta| meta.key).collect();
                return Err(format!("it is purged, and these are left: {left:?}"));
            }
            self.coverage.leftovers += leftovers;
            return Ok(());
        }
        // If a store fails to remove an old lease, the next claim removes it.
        if leases > KEPT + 2 {
            return Err(format!("it has {leases} leases"));
        }
        if truth.names.is_empty() {
            // Two operators may restore a clone without its parent, and one restoration takes the
            // name back.
            let orphan = !truth.spec.parents.is_empty() && fate.restores > 0;
            if fate.exists && fate.deletes == 0 && !orphan {
                return Err("it is gone, and nobody was told".to_owned());
            }
            match decision {
                None if self.place.list(&catalog::volume_prefix(id), "").any(unexpected) => {
                    return Err("it was never there, and something is left of it".to_owned());
                }
                Some(Decision::Restored) => {
                    return Err("it is restored, and has no name".to_owned());
                }
                _ => {}
            }
            return Ok(());
        }
        if decision.is_some_and(|decision| decision != Decision::Restored) {
            return Err(format!("it has a name, and {decision:?} is the last word on it"));
        }
        for parent in truth.spec.parents.iter().take(1) {
            let parent = self.truths.get(&parent.volume);
            if !parent.is_some_and(|parent| parent.clones.contains(&id)) {
                return Err("it is a clone, and its parent does not know".to_owned());
            }
        }
        if self.is_left_orphan(truth) {
            self.coverage.orphans_left += 1;
            return Ok(());
        }
        self.check_log(truth)?;
        self.coverage.logs_read += 1;
        Ok(())
    }

    /// Whether the store that made a clone died after the deletion of the parent. Without a
    /// restoration of the parent, no engine may be able to open the clone.
    pub(super) fn is_left_orphan(&self, truth: &Truth) -> bool {
        let mut parents = truth.spec.parents.iter().map(|parent| self.truths.get(&parent.volume));
        let gone = parents.any(|parent| parent.is_none_or(|parent| parent.names.is_empty()));
        gone && !truth.fate.exists
    }

    /// Whether no store removes an object any more. It came late, or its store died before it could
    /// remove the object.
    fn is_late(&self, truth: &Truth, key: &str) -> bool {
        let lease = self.place.map.get(key).filter(|_| key.contains("/lease/"));
        let lease = lease.and_then(|data| Lease::decode(key, data).ok());
        let dead = match lease {
            Some(Lease::Held { store, incarnation, .. }) => {
                self.stores.iter().all(|at| at.id != store || at.process != incarnation)
            }
            _ => false,
        };
        truth.fate.raced
            || truth.late.contains(key)
            || dead && (truth.fate.condemned || truth.names.is_empty())
    }

    /// Checks that a fresh engine reads the content that the log has.
    fn check_log(&self, truth: &Truth) -> Result<(), String> {
        let (image, sectors) = self.read_volume(&truth.spec)?;
        if sectors != truth.sectors {
            return Err(format!("it has {sectors} sectors, not {}", truth.sectors));
        }
        let said = |image: &Image, lba: u64| image.get(&lba).copied().unwrap_or(0);
        for lba in 0..sectors {
            let (found, due) = (said(&image, lba), said(&truth.image, lba));
            if found != due {
                return Err(format!("sector {lba} is {found:x}, not {due:x}"));
            }
        }
        Ok(())
    }

    fn read_volume(&self, spec: &VolumeSpec) -> Result<(Image, u64), String> {
        let mut now = Time(0);
        let mut copy = super::place::Place::new(crate::rng::Rng::new(1));
        copy.map.clone_from(&self.place.map);
        let mut engine = Volume::open(now, spec.clone(), 7, super::engines::config());
        let mut asked = false;
        for _ in 0..100_000 {
            while engine.poll_event().is_some() {}
            if let Some((id, operation)) = engine.poll_object() {
                let result = copy.at_once(&operation);
                engine.handle_object(now, id, result);
            } else if let Some((_, _, frame)) = engine.poll_message() {
                if let ToHost::Data { result, .. } = frame.message {
                    let pieces = result.map_err(|error| format!("it cannot be read: {error}"))?;
                    let range = Range::new(0, engine.sectors().unwrap_or(0));
                    let parts = link::decode_data(range, &pieces, frame.payload);
                    let parts = parts.map_err(|error| error.to_string())?;
                    return Ok((image_of(parts)?, range.sectors));
                }
            } else if let Some(error) = engine.failed() {
                return Err(format!("it cannot be opened: {error}"));
            } else if let (false, Some(sectors)) = (asked, engine.sectors()) {
                asked = true;
                let range = Range::new(0, sectors);
                let message = ToStore::Read { request: 1, volume: spec.id, epoch: 0, range };
                engine.handle_message(now, SessionId(1), Lane::Read, message.into());
            } else if let Some(due) = engine.poll_timeout() {
                now = now.max(due);
                engine.handle_timeout(now);
            } else {
                break;
            }
        }
        Err("it is not read".to_owned())
    }

    /// Deletes and purges the volumes that are still there. Returns the key of one of their
    /// objects, or `None` if nothing is left.
    fn remove_more(&mut self) -> Option<String> {
        let keys: Vec<String> = self.place.map.keys().cloned().collect();
        let ours = |key: &&String| {
            ["volumes/", "v/", "deleted/"].iter().any(|prefix| key.starts_with(prefix))
        };
        let late = |key: &String| {
            volume_of(key)
                .or_else(|| trash::parse_key(key).map(|(id, _)| id))
                .and_then(|id| self.truths.get(&id))
                .is_some_and(|truth| self.is_late(truth, key))
        };
        let left = keys.iter().find(|key| ours(key) && !late(key))?.clone();
        if !self.operator.operations.is_empty() {
            return Some(left);
        }
        let mut kinds = Vec::new();
        for truth in self.truths.values() {
            if let Some(name) = truth.names.first().cloned() {
                kinds.push(Kind::AcceptLoss { name: name.clone() });
                kinds.push(Kind::Delete { name });
            }
        }
        for key in keys.iter().filter(|key| key.starts_with(trash::TRASH_PREFIX)) {
            if let Some((id, _)) = trash::parse_key(key) {
                kinds.push(Kind::Purge { id });
            }
        }
        for kind in kinds {
            self.begin_operation(kind);
        }
        Some(left)
    }
}

fn image_of(parts: Vec<ReadPart>) -> Result<Image, String> {
    let (mut image, mut at) = (Image::new(), 0);
    for part in parts {
        match part {
            ReadPart::Hole(sectors) | ReadPart::Zero(sectors) => at += sectors,
            ReadPart::Data { wanted, fragment } => {
                let data = fragment.sectors(wanted);
                for sector in data.chunks_exact(SECTOR_BYTES as usize) {
                    image.insert(at, stamp(sector));
                    at += 1;
                }
            }
            ReadPart::Packed { .. } => return Err("it has packed records".to_owned()),
        }
    }
    Ok(image)
}
