//! Snapshots: taken, deleted and read at any time, whatever goes wrong.
//!
//! A snapshot never changes until its deletion. A confirmed snapshot exists. It has all writes that
//! its host had acknowledged at the barrier. At the end, only objects that a root names are left.

use super::truth::Restored;
use super::{Event, World};
use crate::model::{Image, Stamp, difference};
use crate::note;
use longhaul_core::block::{Range, Seq, VolumeId};
use longhaul_core::pack::Packer;
use longhaul_core::store::gc::bundle::Bundle;
use longhaul_core::store::log::LogState;
use longhaul_core::store::root::Pins;
use longhaul_core::store::segment::{Segment, SegmentKind};
use longhaul_core::store::{
    self, ObjectOperation, ObjectResult, OpenError, SessionId, catalog, root,
};
use longhaul_core::wire::link::{
    Lane, MAX_READ_SECTORS, ReadError, SnapshotError, SnapshotInfo, SnapshotOperation,
    SnapshotReply, ToHost, ToStore, VolumeError, VolumeOperation, VolumeReply,
};
use std::collections::BTreeMap;

/// Most existing snapshots of a volume. Beyond that the world deletes one.
const SNAPSHOTS_MAX: usize = 8;

/// A snapshot.
#[derive(Clone, Debug)]
pub struct Taken {
    pub id: VolumeId,
    pub name: String,
    pub sectors: u64,
    /// The last number committed then.
    pub seq: Seq,
    pub image: Image,
    /// The segment that deleted it.
    pub deleted: Option<u64>,
}

impl Taken {
    fn is_there_at(&self, segment: u64) -> bool {
        self.deleted.is_none_or(|deleted| deleted > segment)
    }
}

/// A question about snapshots.
#[derive(Clone, Debug)]
pub struct Question {
    store: usize,
    volume: usize,
    operation: SnapshotOperation,
    /// The number of segments at its request.
    segments: u64,
    /// The acknowledged writes of the host at the barrier for this.
    barrier: Option<Seq>,
    answered: bool,
}

/// An engine of a snapshot that stays open.
pub struct Reader {
    volume: usize,
    segment: u64,
    machine: store::Volume,
    reads: u64,
}

impl World {
    /// A segment about snapshots exists.
    pub(super) fn noted(&mut self, volume: usize, segment: &Segment) -> Result<(), String> {
        let note = segment.footer.note.clone().ok_or("it has no note")?;
        let number = segment.header.number;
        let truth = &mut self.volumes[volume].truth;
        match segment.header.kind {
            SegmentKind::Snapshot => {
                let there = |taken: &&Taken| taken.deleted.is_none();
                let same = |taken: &Taken| taken.name == note.name || taken.id == note.id;
                if truth.taken.values().filter(there).any(same) {
                    return Err(format!("it takes {note:?} once more"));
                }
                let (id, name) = (note.id, note.name);
                let (seq, sectors) = (truth.log.len() as Seq, truth.sectors);
                let image = truth.image.clone();
                let taken = Taken { id, name, sectors, seq, image, deleted: None };
                truth.taken.insert(number, taken);
                self.coverage.snapshots += 1;
            }
            SegmentKind::DeleteSnapshot => {
                let taken = truth.taken.get_mut(&note.segment);
                let taken = taken.filter(|taken| taken.deleted.is_none() && taken.id == note.id);
                let taken = taken.ok_or_else(|| format!("it deletes {note:?}"))?;
                taken.deleted = Some(number);
                self.coverage.snapshots_deleted += 1;
            }
            SegmentKind::Rollback => {
                let taken = truth.taken.get(&note.segment);
                let taken = taken.filter(|taken| taken.deleted.is_none() && taken.id == note.id);
                let taken = taken.ok_or_else(|| format!("it rolls back to {note:?}"))?;
                truth.image.clone_from(&taken.image);
                let restored = Restored {
                    epoch: truth.epoch,
                    segment: number,
                    seq: truth.log.len() as Seq,
                    boundaries: truth.boundaries.len(),
                    from: note.segment,
                    image: truth.image.clone(),
                };
                truth.restored.push(restored);
                self.coverage.rollbacks += 1;
            }
            kind => return Err(format!("nobody asked for {kind:?}")),
        }
        Ok(())
    }

    /// Somebody does something about snapshots.
    pub(super) fn snap(&mut self) {
        if self.finishing || self.plan.snapshots == 0 {
            return;
        }
        let mean = self.plan.snapshots;
        let next = self.snap_rng.spread(mean / 4, mean * 3);
        self.after(next, Event::Snap);
        let store = self.snap_rng.index(self.stores.len());
        let volume = self.snap_rng.index(self.volumes.len());
        if self.snap_rng.percent(30) {
            let checked = self.read_some_snapshot(volume);
            return self.require(checked);
        }
        if !self.stores[store].up || self.stores[store].stopping {
            return;
        }
        let truth = &self.volumes[volume].truth;
        let there: Vec<String> = truth
            .taken
            .values()
            .filter(|taken| taken.deleted.is_none())
            .map(|taken| taken.name.clone())
            .collect();
        let any = |world: &mut World| there.get(world.snap_rng.index(there.len().max(1))).cloned();
        let many = there.len() >= SNAPSHOTS_MAX;
        let operation = match self.snap_rng.weighted(&[6, if many { 12 } else { 4 }, 1, 2]) {
            0 if !many => {
                let again = self.snap_rng.percent(5);
                let name = format!("s{}", self.next_number);
                let snapshot = any(self).filter(|_| again).unwrap_or(name);
                let id = VolumeId(self.snap_rng.wide());
                let barrier = self.snap_rng.percent(50);
                let barrier = barrier
                    && self.questions.iter().all(|asked| {
                        asked.answered
                            || !matches!(
                                asked.operation,
                                SnapshotOperation::Create { barrier: true, .. }
                            )
                    });
                SnapshotOperation::Create { snapshot, id, created: self.now.0, barrier }
            }
            0 | 1 => {
                let name = any(self).unwrap_or_else(|| "nothing".to_owned());
                SnapshotOperation::Delete { snapshot: name }
            }
            2 => SnapshotOperation::List { after: 0, hidden: false },
            _ => {
                let snapshot = any(self).unwrap_or_else(|| "nothing".to_owned());
                SnapshotOperation::Rollback { snapshot }
            }
        };
        self.ask_snapshot(store, volume, operation);
    }

    fn ask_snapshot(&mut self, store: usize, volume: usize, operation: SnapshotOperation) {
        let (number, request) = (self.number(), self.questions.len() as u64);
        let segments = self.volumes[volume].truth.segments;
        let question = Question {
            store,
            volume,
            operation: operation.clone(),
            segments,
            barrier: None,
            answered: false,
        };
        self.questions.push(question);
        let name = self.volumes[volume].name.clone();
        let operation = VolumeOperation::Snapshot { name, operation };
        let message = ToStore::Volume { request, operation };
        note!(self, "s{store} somebody {number} <- {message:?}");
        self.hand_over_frame(number, store, volume, Lane::Control, message.into());
    }

    /// A store asks a host for what it has acknowledged.
    pub(super) fn barrier_sent(&mut self, store: usize, volume: usize, number: u64) {
        let Some((session, _)) = self.sessions.get(&number) else { return };
        let host = session.host;
        let committed = self.volumes[volume].truth.log.len() as Seq;
        let slot = self.slot(host, volume);
        if slot.session != Some(number) {
            return;
        }
        let acknowledged = slot.recent.iter().map(|(_, seq, _)| *seq).max();
        let seq = acknowledged.unwrap_or(0).max(committed);
        let asked = self.questions.iter_mut().rev().find(|asked| {
            (asked.store, asked.volume) == (store, volume)
                && matches!(asked.operation, SnapshotOperation::Create { barrier: true, .. })
        });
        if let Some(asked) = asked {
            asked.barrier = Some(seq);
        }
    }

    pub(super) fn snapshot_answered(
        &mut self,
        number: usize,
        result: &Result<VolumeReply, VolumeError>,
    ) -> Result<(), String> {
        let Some(question) = self.questions.get_mut(number) else {
            return Err("an answer to a question that nobody asked".to_owned());
        };
        question.answered = true;
        let Question { volume, segments, barrier, .. } = *question;
        let operation = question.operation.clone();
        let truth = &self.volumes[volume].truth;
        match (&operation, result) {
            (
                SnapshotOperation::Create { snapshot, id, .. },
                Ok(VolumeReply::Snapshot(SnapshotReply::Taken(info))),
            ) => {
                let SnapshotInfo { name, id: said, segment, sectors, .. } = info;
                let taken = truth.taken.get(segment);
                let taken = taken.ok_or_else(|| format!("{info:?} was not taken"))?;
                if (snapshot, id) != (name, said)
                    || (&taken.name, taken.id, taken.sectors) != (name, *said, *sectors)
                {
                    return Err(format!("{operation:?} is answered with {info:?}"));
                }
                if let Some(seq) = barrier {
                    self.coverage.snapshots_barriered += 1;
                    if taken.seq < seq {
                        return Err(format!(
                            "{info:?} has the writes up to {}; acknowledged were {seq}",
                            taken.seq
                        ));
                    }
                }
                Ok(())
            }
            (SnapshotOperation::Create { .. }, Err(VolumeError::Snapshot(error))) => {
                self.coverage.snapshots_unbarriered +=
                    u64::from(*error == SnapshotError::NoBarrier);
                Ok(())
            }
            (SnapshotOperation::Delete { snapshot }, Ok(_)) => {
                // Another store may have taken one of that name since.
                let there = |taken: &Taken| taken.deleted.is_none() && taken.name == *snapshot;
                if truth.taken.range(..=segments).any(|(_, taken)| there(taken)) {
                    return Err(format!("{snapshot} is said to be deleted"));
                }
                Ok(())
            }
            (
                SnapshotOperation::List { .. },
                Ok(VolumeReply::Snapshot(SnapshotReply::List { snapshots, more: false })),
            ) => {
                for info in snapshots {
                    let taken = truth.taken.get(&info.segment);
                    if taken.is_none_or(|taken| !taken.is_there_at(segments)) {
                        return Err(format!("{info:?} is listed"));
                    }
                }
                for (segment, taken) in &truth.taken {
                    let all_the_time = *segment <= segments && taken.deleted.is_none();
                    if all_the_time && !snapshots.iter().any(|info| info.segment == *segment) {
                        return Err(format!("the snapshot of segment {segment} is not listed"));
                    }
                }
                Ok(())
            }
            (SnapshotOperation::Rollback { snapshot }, Ok(_)) => {
                let asked = |from: &u64| truth.taken[from].name == *snapshot;
                let later = truth.restored.iter();
                let later =
                    later.filter(|restored| restored.segment > segments && restored.from > 0);
                if !later.map(|restored| restored.from).any(|from| asked(&from)) {
                    return Err(format!("{snapshot} is said to have been rolled back to"));
                }
                Ok(())
            }
            (SnapshotOperation::Rollback { snapshot }, Err(VolumeError::Invalid(_)))
                if truth.taken.values().any(|taken| {
                    taken.name == *snapshot
                        && truth.sizes.values().any(|sectors| taken.sectors > *sectors)
                }) =>
            {
                Ok(())
            }
            (SnapshotOperation::Rollback { .. }, Err(VolumeError::InUse(_))) => {
                self.coverage.rollbacks_refused += 1;
                Ok(())
            }
            (_, Err(VolumeError::Store(_) | VolumeError::Snapshot(_))) => Ok(()),
            (operation, result) => Err(format!("{operation:?} is answered with {result:?}")),
        }
    }

    /// The newest root names the roots of exactly the snapshots that there were, and these are what
    /// the segments say.
    pub(super) fn check_pins(
        &mut self,
        volume: usize,
        state: &LogState,
        pins: &Pins,
        moves: &BTreeMap<u64, Bundle>,
    ) -> Result<(), String> {
        let truth = &self.volumes[volume].truth;
        let there = truth.taken.range(..=state.number);
        let there = there.filter(|(_, taken)| taken.is_there_at(state.number));
        let expected: Vec<(u64, VolumeId)> = there.map(|(n, taken)| (*n, taken.id)).collect();
        let said: Vec<(u64, VolumeId)> =
            state.snapshots.iter().map(|s| (s.segment, s.id)).collect();
        if said != expected || !said.iter().map(|(n, _)| n).eq(pins.keys()) {
            return Err(format!("it has snapshots {said:?} and roots {pins:?}, not {expected:?}"));
        }
        for pin in pins.values() {
            let key = catalog::pin_key(self.volumes[volume].id, *pin);
            if let Some(map) = self.verified_pins.get(&key) {
                // Garbage collection may have moved their content since.
                if *moves != self.volumes[volume].truth.moves {
                    let image = self.image(volume, map, moves);
                    self.check_taken(volume, pin.segment, image)
                        .map_err(|e| format!("{key}: {e}"))?;
                }
                continue;
            }
            let object = self.objects.map.get(&key);
            let object = object.ok_or_else(|| format!("it names {key}, which is not there"))?;
            let found = root::parse(&self.volumes[volume].spec, object, 1000);
            let found = found.map_err(|e| format!("{key}: {e}"))?;
            if (found.generation, found.state.number) != (pin.generation, pin.segment) {
                return Err(format!("{key} is not what its name says"));
            }
            let map = self.check_map(volume, &found.state, &found.levels);
            let map = map.map_err(|e| format!("{key}: {e}"))?;
            let image = self.image(volume, &map, moves);
            self.check_taken(volume, pin.segment, image).map_err(|e| format!("{key}: {e}"))?;
            self.verified_pins.insert(key, map);
            self.coverage.pins_verified += 1;
        }
        Ok(())
    }

    /// A read of a snapshot returns the content at its creation.
    fn check_taken(
        &self,
        volume: usize,
        segment: u64,
        image: Result<Image, String>,
    ) -> Result<(), String> {
        let image = image?;
        let taken = &self.volumes[volume].truth.taken[&segment].image;
        let at = |image: &Image, lba: usize| image.get(lba).copied().unwrap_or_default();
        match (0..image.len().max(taken.len())).find(|lba| at(&image, *lba) != at(taken, *lba)) {
            Some(lba) => Err(format!("sector {lba} is not what was taken by segment {segment}")),
            None => Ok(()),
        }
    }

    /// Reads some snapshot whole, with an engine that has been open for a while or a new one.
    fn read_some_snapshot(&mut self, volume: usize) -> Result<(), String> {
        let old = self.readers.iter().position(|reader| reader.volume == volume);
        if let Some(old) = old.filter(|_| self.snap_rng.percent(70)) {
            let mut reader = self.readers.swap_remove(old);
            let goes_on = self.read_snapshot(&mut reader)?;
            if goes_on && self.snap_rng.percent(80) {
                self.readers.push(reader);
            }
            return Ok(());
        }
        let taken = &self.volumes[volume].truth.taken;
        let recent: Vec<(u64, VolumeId)> =
            taken.iter().rev().take(2 * SNAPSHOTS_MAX).map(|(n, taken)| (*n, taken.id)).collect();
        if recent.is_empty() {
            return Ok(());
        }
        let (segment, id) = recent[self.snap_rng.index(recent.len())];
        let spec = self.volumes[volume].spec.clone();
        let (incarnation, config) = (self.snap_rng.wide(), self.store_config());
        let machine =
            store::Volume::open_snapshot(self.now, spec, (segment, id), incarnation, config);
        let mut reader = Reader { volume, segment, machine, reads: 0 };
        if self.read_snapshot(&mut reader)? && self.readers.len() < 6 {
            self.readers.push(reader);
        }
        Ok(())
    }

    /// Compares a snapshot with what it has to be; false if it is gone.
    fn read_snapshot(&mut self, reader: &mut Reader) -> Result<bool, String> {
        let Reader { volume, segment, .. } = *reader;
        let taken = self.volumes[volume].truth.taken[&segment].clone();
        let context = |e: String| format!("snapshot {} of volume {volume}: {e}", taken.name);
        let mut now = self.now;
        let mut found = vec![Stamp::default(); taken.sectors as usize];
        let mut lba = 0;
        while lba < taken.sectors {
            let range = Range::new(lba, MAX_READ_SECTORS.min(taken.sectors - lba));
            let message = ToStore::Read { request: lba, volume: taken.id, epoch: 0, range };
            reader.machine.handle_message(now, SessionId(1), Lane::Read, message.into());
            let mut answer = None;
            for _ in 0..100_000 {
                if let Some((number, operation)) = reader.machine.poll_object() {
                    if matches!(
                        operation,
                        ObjectOperation::Put { .. } | ObjectOperation::Delete { .. }
                    ) {
                        return Err(context(format!("its engine wants to {operation:?}")));
                    }
                    let result: ObjectResult = self.object_at_once(&operation);
                    reader.machine.handle_object(now, number, result);
                } else if let Some((_, _, frame)) = reader.machine.poll_message() {
                    answer = Some(frame);
                    break;
                } else if let Some(due) = reader.machine.poll_timeout() {
                    now = now.max(due);
                    reader.machine.handle_timeout(now);
                } else {
                    break;
                }
            }
            while let Some(event) = reader.machine.poll_event() {
                if let store::Event::Opened { replayed: 1.., .. } = event {
                    self.coverage.snapshots_replayed += 1;
                }
            }
            let Some(frame) = answer else {
                return Err(context(format!("no answer to a read of {range}")));
            };
            if let ToHost::Data { result: Err(error), .. } = &frame.message
                && taken.deleted.is_some()
            {
                let clear = reader.machine.failed() == Some(&OpenError::NoSnapshot)
                    && *error == ReadError::NotAttached;
                if !clear {
                    let why = reader.machine.failed();
                    return Err(context(format!(
                        "it is deleted, and reads fail with {error}: {why:?}"
                    )));
                }
                self.coverage.snapshots_gone += 1;
                return Ok(false);
            }
            // Like a host that serves the snapshot: the content is bound to that identity.
            let of = self.volumes[volume].id;
            let id = match &frame.message {
                ToHost::Data { volume, .. } => *volume,
                _ => of,
            };
            let mut packing = self.packing(volume);
            packing.keys = packing.keys.map(|keys| keys.of_snapshot(of));
            let mut packer = Packer::new(id, packing);
            let part = super::observe::shown(range, &frame, &mut packer).map_err(context)?;
            found[range.lba as usize..range.end() as usize].copy_from_slice(&part);
            lba = range.end();
        }
        let expected: Image = taken.image[..taken.sectors as usize].to_vec();
        if let Some(difference) = difference(&expected, &found) {
            return Err(context(difference.to_string()));
        }
        self.coverage.snapshots_read += 1;
        self.coverage.snapshots_read_again += u64::from(reader.reads > 0);
        reader.reads += 1;
        Ok(true)
    }

    /// After the deletion of all snapshots, only the objects of the last roots are left.
    pub(super) fn check_space(&mut self, volume: usize) -> Result<(), String> {
        for (segment, taken) in self.volumes[volume].truth.taken.clone() {
            if taken.deleted.is_none() {
                let (spec, id) = (self.volumes[volume].spec.clone(), taken.id);
                let (incarnation, config) = (self.snap_rng.wide(), self.store_config());
                let machine = store::Volume::open_snapshot(
                    self.now,
                    spec,
                    (segment, id),
                    incarnation,
                    config,
                );
                let mut reader = Reader { volume, segment, machine, reads: 0 };
                self.read_snapshot(&mut reader)?;
            }
        }
        let kept = self.objects.map.clone();
        let checked = self.clean(volume);
        self.objects.map = kept;
        checked
    }

    fn clean(&mut self, volume: usize) -> Result<(), String> {
        let spec = self.volumes[volume].spec.clone();
        let name = spec.name.clone();
        let mut names: Vec<String> = self.volumes[volume]
            .truth
            .taken
            .values()
            .filter(|taken| taken.deleted.is_none())
            .map(|taken| taken.name.clone())
            .collect();
        if names.is_empty() && self.plan.snapshots == 0 {
            return Ok(());
        }
        let (incarnation, config) = (self.snap_rng.wide(), self.store_config());
        let mut machine = store::Volume::open(self.now, spec, incarnation, config);
        let mut now = self.now;
        // A few more, so that roots follow the deletions.
        for round in 0..6 {
            if round > 0 {
                names.push(format!("last{round}"));
                let create = SnapshotOperation::Create {
                    snapshot: format!("last{round}"),
                    id: VolumeId(self.snap_rng.wide()),
                    created: 0,
                    barrier: false,
                };
                let operation = VolumeOperation::Snapshot { name: name.clone(), operation: create };
                let message = ToStore::Volume { request: 1, operation };
                machine.handle_message(now, SessionId(1), Lane::Control, message.into());
                self.settle(&mut machine, &mut now)?;
            }
            for snapshot in names.drain(..) {
                let operation = SnapshotOperation::Delete { snapshot };
                let operation = VolumeOperation::Snapshot { name: name.clone(), operation };
                let message = ToStore::Volume { request: 1, operation };
                machine.handle_message(now, SessionId(1), Lane::Control, message.into());
                self.settle(&mut machine, &mut now)?;
            }
        }
        let id = self.volumes[volume].id;
        let mut named = std::collections::BTreeMap::new();
        for (key, _) in self.objects.list(&catalog::root_prefix(id)) {
            // A late root of an overtaken store may name deleted objects.
            if let Ok(found) = self.named_by(volume, &key) {
                named.extend(found);
            }
        }
        for (key, _) in self.objects.list(&catalog::fragment_prefix(id)) {
            let fragment = catalog::parse_fragment_key(id, &key);
            if fragment.is_none_or(|fragment| !named.contains_key(&fragment)) {
                return Err(format!("{key} is left, and no root names it"));
            }
            self.coverage.fragments_named += 1;
        }
        let pins = self.objects.list(&catalog::pin_prefix(id));
        if pins.len() > 2 {
            return Err(format!("roots of snapshots are left: {pins:?}"));
        }
        Ok(())
    }

    /// Lets an engine do what it wants until it is quiet.
    fn settle(
        &mut self,
        machine: &mut store::Volume,
        now: &mut longhaul_core::block::Time,
    ) -> Result<(), String> {
        for _ in 0..200_000 {
            if let Some((number, operation)) = machine.poll_object() {
                let result = match operation {
                    ObjectOperation::Put { key, data } => {
                        let there = !self.objects.create(&key, &data.concat().into());
                        ObjectResult::Put(if there { Err(store::PutError::Exists) } else { Ok(()) })
                    }
                    ObjectOperation::Delete { key } => {
                        self.objects.map.remove(&key);
                        ObjectResult::Delete(Ok(()))
                    }
                    other => self.object_at_once(&other),
                };
                machine.handle_object(*now, number, result);
            } else if let Some((_, _, frame)) = machine.poll_message() {
                if let ToHost::Volume { result: Err(error), .. } = frame.message {
                    return Err(format!("at the end: {error}"));
                }
            } else if let Some(event) = machine.poll_event() {
                if let store::Event::RootDamaged { .. } = event {
                    return Err(format!("at the end: {event:?}"));
                }
            } else if let Some(due) = machine.poll_timeout() {
                *now = (*now).max(due);
                machine.handle_timeout(*now);
            } else {
                return Ok(());
            }
        }
        Err("at the end an engine does not come to rest".to_owned())
    }
}
