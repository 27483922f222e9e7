//! Observers: they attach nothing. They ask any store, even one that another has overtaken, for the
//! content of a volume and for losses.
//!
//! The answers have to be true. A read shows a prefix of the committed writes, cut at a batch
//! boundary, and no older than the store's knowledge. An answer about losses is about the log as it
//! is.

use super::announced::covered;
use super::truth::Restored;
use super::{Event, MS, World};
use crate::model::{Image, Stamp, apply, difference, stamp};
use crate::note;
use longhaul_core::block::{Range, SECTOR_BYTES, Seq};
use longhaul_core::pack::Packer;
use longhaul_core::store::catalog;
use longhaul_core::wire::link::{
    Announced, Frame, Lane, ReadError, ReadPart, ToHost, ToStore, VolumeError, VolumeOperation,
    VolumeReply, decode_data,
};

/// A question without an answer.
#[derive(Clone, Copy, Debug)]
pub enum Asked {
    /// The losses, at this number of segments in the log.
    Lost { segments: u64 },
    /// A larger size, when the acknowledged size was `due` sectors.
    Resize { due: u64, sectors: u64, segments: u64 },
    /// That it become smaller, at this number of segments in the log.
    Shrink { sectors: u64, segments: u64 },
    /// Something about snapshots.
    Snapshot(usize),
    /// The content, at this number of committed writes at the store.
    Read { range: Range, committed: Seq, segments: u64 },
}

/// The origin of each sector in the answer to a read.
pub(super) fn shown(
    range: Range,
    frame: &Frame<ToHost>,
    packer: &mut Packer,
) -> Result<Image, String> {
    let ToHost::Data { result: Ok(pieces), .. } = &frame.message else {
        return Err(format!("a read of {range} is answered with {:?}", frame.message));
    };
    let parts = decode_data(range, pieces, frame.payload.clone()).map_err(|e| e.to_string())?;
    let mut shown = Vec::with_capacity(range.sectors as usize);
    for part in parts {
        match part {
            ReadPart::Hole(sectors) | ReadPart::Zero(sectors) => {
                shown.resize(shown.len() + sectors as usize, Stamp::default());
            }
            ReadPart::Packed { wanted, record } => {
                let data = packer.unpack(&record, wanted).map_err(|e| e.to_string())?;
                for sector in data.chunks_exact(SECTOR_BYTES as usize) {
                    shown.push(stamp(sector)?);
                }
            }
            ReadPart::Data { wanted, fragment } => {
                fragment.verify().map_err(|e| e.to_string())?;
                for sector in fragment.sectors(wanted).chunks_exact(SECTOR_BYTES as usize) {
                    shown.push(stamp(sector)?);
                }
            }
        }
    }
    Ok(shown)
}

impl World {
    /// An observer asks some store about some volume.
    pub(super) fn observe(&mut self) {
        if self.finishing {
            return;
        }
        let next = self.observer_rng.spread(20 * MS, 400 * MS);
        self.after(next, Event::Observe);
        let store = self.observer_rng.index(self.stores.len());
        let volume = self.observer_rng.index(self.volumes.len());
        let lost = self.observer_rng.percent(50);
        if !self.stores[store].up || self.stores[store].stopping {
            return;
        }
        let (id, name) = (self.volumes[volume].id, self.volumes[volume].name.clone());
        if self.observer_rng.percent(self.plan.resize) {
            return self.resize(store, volume);
        }
        // This store may know less than there is.
        let open = self.stores[store].open.get(&volume);
        let created = self.volumes[volume].spec.created_sectors;
        let sectors = open.and_then(|open| open.machine.sectors()).unwrap_or(created);
        let (number, request) = (self.number(), self.number());
        let lba = self.observer_rng.below(sectors);
        let range = Range::between(lba, sectors);
        let message = if lost {
            ToStore::Volume { request, operation: VolumeOperation::Lost { name, from_lba: 0 } }
        } else {
            ToStore::Read { request, volume: id, epoch: 0, range }
        };
        note!(self, "s{store} observer {number} <- {message:?}");
        let lane = if lost { Lane::Control } else { Lane::Read };
        self.hand_over_frame(number, store, volume, lane, message.into());
    }

    /// An operator makes a volume larger, or smaller, or asks for what it has or had.
    fn resize(&mut self, store: usize, volume: usize) {
        let (number, request) = (self.number(), self.number());
        let plan = self.plan.volumes[volume];
        let blocks =
            self.observer_rng.between(plan.sectors / plan.block, plan.most_sectors / plan.block);
        let grown = self.volumes[volume].truth.sectors + 8 * self.observer_rng.between(0, 8);
        let small = self.observer_rng.percent(70);
        let sectors = if small { grown.min(plan.most_sectors) } else { blocks * plan.block };
        let name = self.volumes[volume].name.clone();
        // Never below the size at the creation: clients of the other hosts know no less.
        let shrink = self.observer_rng.percent(25) && sectors >= plan.sectors;
        let operation = match shrink {
            true => {
                let most = self.volumes[volume].truth.sectors / plan.block;
                let blocks = self.observer_rng.between(plan.sectors / plan.block, most);
                VolumeOperation::Shrink { name, sectors: blocks * plan.block }
            }
            false => VolumeOperation::Resize { name, sectors },
        };
        let message = ToStore::Volume { request, operation };
        note!(self, "s{store} operator {number} <- {message:?}");
        self.hand_over_frame(number, store, volume, Lane::Control, message.into());
    }

    /// Remembers a question whose answer depends on its time.
    pub(super) fn asked(&mut self, number: u64, store: usize, volume: usize, message: &ToStore) {
        let segments = self.volumes[volume].truth.segments;
        let Some(open) = self.stores[store].open.get_mut(&volume) else { return };
        let info = open.machine.info();
        let (request, asked) = match message {
            ToStore::Volume { request, operation: VolumeOperation::Lost { .. } } => {
                (*request, Asked::Lost { segments })
            }
            ToStore::Volume { request, operation: VolumeOperation::Resize { sectors, .. } } => {
                let due = self.volumes[volume].truth.resized;
                (*request, Asked::Resize { due, sectors: *sectors, segments })
            }
            ToStore::Volume { request, operation: VolumeOperation::Shrink { sectors, .. } } => {
                (*request, Asked::Shrink { sectors: *sectors, segments })
            }
            ToStore::Read { request, epoch: 0, range, .. } => {
                let committed = info.as_ref().map_or(0, |info| info.committed);
                let segments = info.as_ref().map_or(0, |info| info.segments);
                (*request, Asked::Read { range: *range, committed, segments })
            }
            ToStore::Volume { request, operation: VolumeOperation::Snapshot { .. } } => {
                (*request, Asked::Snapshot(*request as usize))
            }
            _ => return,
        };
        open.asked.insert((number, request), asked);
        self.coverage.overtaken_asked +=
            u64::from(info.is_some_and(|info| info.segments < segments));
    }

    /// Checks the answer to a remembered question.
    pub(super) fn check_answer(
        &mut self,
        store: usize,
        volume: usize,
        number: u64,
        frame: &Frame<ToHost>,
    ) -> Result<(), String> {
        let (ToHost::Volume { request, .. } | ToHost::Data { request, .. }) = &frame.message else {
            return Ok(());
        };
        let Some(open) = self.stores[store].open.get_mut(&volume) else { return Ok(()) };
        let Some(asked) = open.asked.remove(&(number, *request)) else { return Ok(()) };
        let truth = &self.volumes[volume].truth;
        match (asked, &frame.message) {
            (
                Asked::Lost { segments },
                ToHost::Volume {
                    result: Ok(VolumeReply::Lost { ranges, more: false, .. }), ..
                },
            ) => {
                let Some(info) = open.machine.info() else {
                    return Err(format!(
                        "store {store} says what is lost of a log it has not read"
                    ));
                };
                if info.segments < segments {
                    return Err(format!(
                        "store {store} says what is lost after segment {}, but was asked after \
                         {segments}",
                        info.segments
                    ));
                }
                // Another store may go on during the answer. Once this one has read that the epoch
                // of its holder is over, the announcements of that holder are history.
                if info.segments != truth.segments || info.epoch != open.known_epoch {
                    return Ok(());
                }
                let committed = truth.log.len() as Seq;
                let said: Vec<Announced> =
                    ranges.iter().map(|range| Announced { range: *range, seq: u64::MAX }).collect();
                let outstanding = open.known.iter().any(|entry| entry.seq > committed);
                self.coverage.losses_named += u64::from(outstanding);
                covered(&open.known, &said, committed)
            }
            (
                Asked::Resize { due, sectors, segments },
                ToHost::Volume { result: Ok(VolumeReply::Volume(info)), .. },
            ) => {
                let said = info.sectors;
                let smaller = |restored: &&Restored| restored.from == 0;
                if truth.restored.iter().rfind(smaller).is_some_and(|cut| cut.segment > segments) {
                    // Made smaller since.
                    return Ok(());
                }
                if said < sectors || said < due || said > truth.sectors {
                    return Err(format!(
                        "store {store} says that the volume has {said} sectors now; it has {}, \
                         asked for were {sectors}, acknowledged were {due}",
                        truth.sectors
                    ));
                }
                let prefix = catalog::size_prefix(info.id);
                let notes = self.objects.list(&prefix).into_iter();
                let notes = notes.filter_map(|(key, _)| catalog::parse_number(&prefix, &key));
                let noted = notes.filter_map(|number| truth.sizes.get(&number)).max();
                let created = self.volumes[volume].spec.created_sectors;
                if noted.copied().unwrap_or(created) < said {
                    return Err(format!(
                        "store {store} acknowledges {said} sectors, noted are {noted:?}"
                    ));
                }
                self.coverage.resizes_acknowledged += 1;
                let truth = &mut self.volumes[volume].truth;
                truth.resized = truth.resized.max(said);
                Ok(())
            }
            (
                Asked::Shrink { sectors, segments },
                ToHost::Volume { result: Ok(VolumeReply::Volume(info)), .. },
            ) => {
                // By this request or by an earlier, repeated one. Another client may have made it
                // larger again.
                let sizes = || truth.sizes.iter().rev();
                let had = |(number, size): (&u64, &u64)| *number > segments && *size == sectors;
                let before = sizes().find(|(number, _)| **number <= segments);
                let created = self.volumes[volume].spec.created_sectors;
                if !sizes().any(had) && before.map_or(created, |(_, size)| *size) != sectors {
                    return Err(format!(
                        "store {store} says it has cut it off at {sectors}: {info:?}"
                    ));
                }
                let prefix = catalog::size_prefix(info.id);
                let last = sizes().next();
                if let Some((number, _)) = last.filter(|(_, size)| **size == info.sectors)
                    && !self.objects.map.contains_key(&catalog::size_key(info.id, *number))
                {
                    return Err(format!(
                        "store {store} says {}, {prefix}{number:x} is not there",
                        info.sectors
                    ));
                }
                self.coverage.shrinks_acknowledged += 1;
                Ok(())
            }
            (Asked::Shrink { .. }, ToHost::Volume { result: Err(VolumeError::InUse(_)), .. }) => {
                self.coverage.shrinks_refused += 1;
                Ok(())
            }
            (
                Asked::Resize { sectors, .. },
                ToHost::Volume { result: Err(VolumeError::Invalid(why)), .. },
            ) if sectors >= truth.sectors
                // Unless it has not yet read that somebody made it smaller.
                && truth.sizes.values().all(|size| sectors >= *size) =>
            {
                Err(format!(
                    "store {store} does not give a volume of {} sectors {sectors}: {why}",
                    truth.sectors
                ))
            }
            (Asked::Snapshot(number), ToHost::Volume { result, .. }) => {
                let result = result.clone();
                self.snapshot_answered(number, &result)
            }
            // The size shrank after the look at this store.
            (Asked::Read { range, .. }, ToHost::Data { result: Err(ReadError::Invalid), .. })
                if truth
                    .restored
                    .iter()
                    .any(|cut| cut.from == 0 && !range.fits(truth.sizes[&cut.segment])) =>
            {
                Ok(())
            }
            (Asked::Read { .. }, ToHost::Data { result: Err(ReadError::NotAttached), .. })
            | (Asked::Snapshot(_), _)
            | (Asked::Lost { .. } | Asked::Resize { .. } | Asked::Shrink { .. }, _) => Ok(()),
            (Asked::Read { range, committed, segments }, _) => {
                let found = shown(range, frame, &mut self.packer(volume))?;
                self.coverage.observer_reads += 1;
                self.check_prefix(volume, range, (committed, segments), &found)
                    .map_err(|e| format!("store {store} tells an observer: {e}"))
            }
        }
    }

    /// Whether `range` had this content after some segment. The segment may not come before
    /// `committed`, nor before a rollback by one of that many segments.
    pub(super) fn check_prefix(
        &self,
        volume: usize,
        range: Range,
        (committed, segments): (Seq, u64),
        found: &Image,
    ) -> Result<(), String> {
        let truth = &self.volumes[volume].truth;
        let known = truth.restored.iter().filter(|restored| restored.segment <= segments).count();
        let mut rolled_back = 0;
        let mut image = vec![Stamp::default(); truth.image.len()];
        let (mut at, mut last) = (0, None);
        let boundaries = std::iter::once(0).chain(truth.boundaries.iter().copied());
        for (n, boundary) in boundaries.enumerate() {
            for id in &truth.log[at..boundary as usize] {
                apply(&mut image, &self.ops, *id, self.ops.get(*id).range);
            }
            at = boundary as usize;
            loop {
                if boundary >= committed && rolled_back >= known {
                    let expected = image[range.lba as usize..range.end() as usize].to_vec();
                    last = difference(&expected, found);
                    if last.is_none() {
                        return Ok(());
                    }
                }
                let next = truth.restored.get(rolled_back);
                let Some(restored) = next.filter(|restored| restored.boundaries == n) else {
                    break;
                };
                image.clone_from(&restored.image);
                rolled_back += 1;
            }
        }
        Err(format!(
            "{range} as it never was from write {committed} on; after the last {}",
            last.unwrap_or_default()
        ))
    }
}
