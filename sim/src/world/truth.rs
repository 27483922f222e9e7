//! The object log as an independent reader sees it. It parses every segment at the moment of its
//! creation, and compares it with the requests to the host of its epoch.

use super::copy::Object;
use super::maps::Said;
use super::snapshots::Taken;
use super::{MS, Volume, World, agree};
use crate::model::{Image, Kind, OpId, Ops, Stamp, apply, difference, stamp};
use crate::note;
use crate::order::{Arrival, LogOrder};
use crate::plan::VolumePlan;
use crate::rng::Rng;
use bytes::Bytes;
use longhaul_core::block::{Epoch, Range, SECTOR_BYTES, Seq, VolumeId};
use longhaul_core::pack::Packer;
use longhaul_core::record;
use longhaul_core::store::catalog::RootName;
use longhaul_core::store::gc::bundle::Bundle;
use longhaul_core::store::segment::{self, Header, Segment, SegmentKind};
use longhaul_core::store::{VolumeSpec, catalog};
use longhaul_core::wire::link::{Announced, HostId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// An epoch of the log.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    pub epoch: Epoch,
    /// Its host; 0 for none.
    pub host: HostId,
    /// The last number that it builds on.
    pub base: Seq,
    /// The segment that began it.
    pub segment: u64,
}

/// A rollback of a volume, or a shrink.
#[derive(Clone, Debug)]
pub struct Restored {
    /// The epoch that this began.
    pub epoch: Epoch,
    /// The segment that says so.
    pub segment: u64,
    /// The last number committed then, and how many data segments there were.
    pub seq: Seq,
    pub boundaries: usize,
    /// The segment of the snapshot; 0 for a shrink.
    pub from: u64,
    pub image: Image,
}

/// A segment that has arrived before one of those before it.
#[derive(Debug)]
pub struct EarlySegment {
    store: usize,
    incarnation: (u64, u64),
    key: String,
    object: Bytes,
}

/// The content of a volume's objects.
#[derive(Debug)]
pub struct Truth {
    /// The last segment of the log.
    pub segments: u64,
    pub order: LogOrder<EarlySegment>,
    /// Its size by these, in sectors.
    pub sectors: u64,
    /// The size that each segment gave it which did.
    pub sizes: BTreeMap<u64, u64>,
    /// The largest acknowledged size since the last shrink.
    pub resized: u64,
    header_crc: u32,
    pub epoch: Epoch,
    pub history: Vec<Begun>,
    /// Committed writes; the one with number `seq` is at `seq - 1`.
    pub log: Vec<OpId>,
    /// The last write of each data segment.
    pub boundaries: Vec<Seq>,
    pub image: Image,
    /// Its rollbacks, in order.
    pub restored: Vec<Restored>,
    /// Certain announcements that were known at the put of the last segment.
    pub announced: Vec<Announced>,
    /// The content of the map.
    pub said: Said,
    /// The last two roots that were the newest at their put.
    pub roots: Vec<RootName>,
    /// Deleted segments, whose remaining content has moved.
    pub deleted: BTreeSet<u64>,
    /// The moves up to the last of those roots.
    pub moves: BTreeMap<u64, Bundle>,
    /// The objects with data that these roots need, as far as the world has looked.
    pub needed: BTreeMap<RootName, BTreeSet<String>>,
    /// Snapshots that were ever taken, by their segments.
    pub taken: BTreeMap<u64, Taken>,
}

impl Truth {
    /// A volume of `sectors`, which an image of `most` has room for.
    fn new(sectors: u64, most: u64) -> Truth {
        Truth {
            segments: 0,
            order: LogOrder::new(0, 0),
            sectors,
            sizes: BTreeMap::new(),
            resized: sectors,
            header_crc: 0,
            epoch: 0,
            history: Vec::new(),
            log: Vec::new(),
            boundaries: Vec::new(),
            image: vec![Stamp::default(); most as usize],
            restored: Vec::new(),
            announced: Vec::new(),
            said: Said::default(),
            roots: Vec::new(),
            deleted: BTreeSet::new(),
            moves: BTreeMap::new(),
            needed: BTreeMap::new(),
            taken: BTreeMap::new(),
        }
    }

    /// The least number that an epoch after `epoch` builds on.
    pub fn base_after(&self, epoch: Epoch) -> Option<Seq> {
        self.history.iter().filter(|begun| begun.epoch > epoch).map(|begun| begun.base).min()
    }
}

impl Volume {
    /// A volume without content.
    pub(super) fn new(number: usize, plan: &VolumePlan, rng: &mut Rng) -> Volume {
        let id = VolumeId(rng.wide());
        let name = format!("volume-{number}");
        let spec = VolumeSpec {
            id,
            name: name.clone(),
            created_sectors: plan.sectors,
            block_bytes: (plan.block * SECTOR_BYTES) as u32,
            created: 0,
            parents: Vec::new(),
        };
        let truth = Truth::new(plan.sectors, plan.most_sectors);
        let (finish, ready) = (super::finish::Stage::Running, VecDeque::new());
        Volume { id, name, spec, truth, finish, statement: None, ready }
    }
}

/// Applies the records of a segment to an image. Trusts only the stamps in the data. For staged
/// objects, the content comes from `staged`, by their number.
///
/// # Errors
/// The bad record, and the problem.
pub fn replay<'a>(
    ops: &Ops,
    image: &mut Image,
    object: &Bytes,
    segment: &Segment,
    packer: &mut Packer,
    op_of: impl Fn(Seq) -> Option<OpId>,
    staged: impl Fn(u64) -> Option<&'a Object>,
) -> Result<(), String> {
    let (mut at, end) = (segment::HEADER_BYTES, segment.header.tail().start as usize);
    let mut last = segment.header.first;
    let mut pieces = segment.footer.pieces.iter();
    while at < end {
        let found = record::parse(segment.header.volume, &object.slice(at..end))
            .map_err(|e| format!("record at byte {at}: {e}"))?;
        let header = found.header;
        let piece =
            pieces.next().ok_or_else(|| format!("the record at byte {at} is not in the footer"))?;
        if (piece.kind, piece.range, piece.seq, piece.offset as usize, piece.staged)
            != (header.kind, header.range, header.seq, at, header.staged)
        {
            return Err(format!("the footer says {piece:?}, the record at byte {at} {header:?}"));
        }
        if header.seq < last || header.seq > segment.header.last {
            return Err(format!("record {} after {last}", header.seq));
        }
        last = header.seq;
        let Some(id) = op_of(header.seq) else {
            return Err(format!("record {} is a write that nobody asked for", header.seq));
        };
        let op = ops.get(id);
        if op.range.intersect(header.range) != Some(header.range) {
            return Err(format!(
                "record {} is about {}, the write {}",
                header.seq, header.range, op.range
            ));
        }
        let same = match header.kind {
            record::Kind::Data | record::Kind::Packed => {
                matches!(op.kind, Kind::Data | Kind::Again(_))
            }
            record::Kind::Discard => matches!(op.kind, Kind::Discard | Kind::Zero(false)),
            record::Kind::Zero => matches!(op.kind, Kind::Zero(_)),
            record::Kind::Staged => matches!(op.kind, Kind::Copy(_)),
        };
        if !same {
            return Err(format!(
                "record {} is {:?}, the write {:?}",
                header.seq, header.kind, op.kind
            ));
        }
        let data = match header.kind {
            record::Kind::Data => found.data.payload,
            record::Kind::Packed => packer
                .unpack(&object[at..end], header.range)
                .map_err(|e| format!("record {}: {e}", header.seq))?,
            _ => Bytes::new(),
        };
        if !data.is_empty() {
            for (n, sector) in data.chunks_exact(SECTOR_BYTES as usize).enumerate() {
                let lba = header.range.lba + n as u64;
                let found = stamp(sector)?;
                let expected = ops.shows(id, lba);
                if found != expected {
                    return Err(format!(
                        "record {} holds {found} at sector {lba}, not {expected}",
                        header.seq
                    ));
                }
            }
        }
        if let Some(place) = header.staged {
            let content = staged(place.object).and_then(|object| object.at(&place, header.range));
            let expected = (header.range.lba..header.range.end()).map(|lba| ops.shows(id, lba));
            if content.is_none_or(|content| !expected.eq(content.iter().copied())) {
                return Err(format!("record {} says {place:?}: not what was staged", header.seq));
            }
        }
        apply(image, ops, id, header.range);
        at += header.record_bytes();
    }
    if pieces.next().is_some() {
        return Err("the footer names a record that is not there".to_owned());
    }
    Ok(())
}

impl World {
    /// Unpacks what hosts of a volume packed.
    pub(super) fn packer(&self, volume: usize) -> Packer {
        Packer::new(self.volumes[volume].id, self.packing(volume))
    }

    /// A put took effect.
    pub(super) fn object_created(
        &mut self,
        store: usize,
        incarnation: (u64, u64),
        volume: usize,
        key: &str,
        object: &Bytes,
    ) {
        let id = self.volumes[volume].id;
        let staged = |id| catalog::parse_number(&catalog::staged_prefix(id), key);
        let into = self.volumes.iter().position(|volume| staged(volume.id).is_some());
        if let Some(into) = into {
            return self.staged_created(into, key, object);
        }
        if self.map_object_created(volume, key, object) {
            return;
        }
        if let Some(number) = catalog::parse_number(&catalog::size_prefix(id), key) {
            self.coverage.sizes_noted += 1;
            let volume = &self.volumes[volume];
            let said = catalog::decode_size(&volume.spec, key, object).ok();
            if said.is_none() || said.as_ref() != volume.truth.sizes.get(&number) {
                self.fail(format!("{key} says {said:?}, the segments do not"));
            }
            return;
        }
        let Some(number) = catalog::parse_number(&catalog::segment_prefix(id), key) else {
            return self.fail(format!("a store put an object of unknown name {key}"));
        };
        let (key, object) = (key.to_owned(), object.clone());
        let checked = self.segment_arrived(
            volume,
            number,
            EarlySegment { store, incarnation, key: key.clone(), object },
        );
        self.require(checked.map_err(|e| format!("segment {key}: {e}")));
    }

    /// A segment exists. It counts if all before it do.
    fn segment_arrived(
        &mut self,
        volume: usize,
        number: u64,
        arrived: EarlySegment,
    ) -> Result<(), String> {
        let header = segment::verify(&arrived.object).map_err(|e| e.to_string())?.header;
        let truth = &mut self.volumes[volume].truth;
        if truth.deleted.contains(&number) {
            // Its store has been out of touch. It does not count, and no store may take it for
            // valid.
            self.coverage.segments_again += 1;
            return Ok(());
        }
        if (header.number, header.volume) != (number, self.volumes[volume].id) {
            return Err(format!("it is number {} of {}", header.number, header.volume));
        }
        let truth = &mut self.volumes[volume].truth;
        match truth.order.arrives(number, &header)? {
            Arrival::Void => {
                note!(self, "v{volume} segment {number} is void");
                self.coverage.segments_void += 1;
                return Ok(());
            }
            Arrival::Ahead => {
                note!(self, "v{volume} segment {number} is ahead");
                self.coverage.segments_ahead += 1;
                truth.order.keep(number, arrived);
                let waiting = truth.order.waiting() as u64 + 1;
                let most = &mut self.coverage.segments_in_flight;
                *most = waiting.max(*most);
                return Ok(());
            }
            Arrival::Next => {}
        }
        let mut next = Some(arrived);
        while let Some(EarlySegment { store, incarnation, key, object }) = next {
            let live = (self.engine_now(store, volume) == incarnation).then_some(store);
            let header = self
                .segment_created(live, volume, &key, &object)
                .map_err(|e| format!("{e}, of {key}"))?;
            let (after, void) = self.volumes[volume].truth.order.take(&header)?;
            self.coverage.segments_overtaken += void;
            next = after;
        }
        Ok(())
    }

    fn segment_created(
        &mut self,
        store: Option<usize>,
        volume: usize,
        key: &str,
        object: &Bytes,
    ) -> Result<Header, String> {
        let segment = segment::verify(object).map_err(|e| e.to_string())?;
        let header = segment.header;
        let number = header.number;
        let truth = &self.volumes[volume].truth;
        note!(
            self,
            "v{volume} segment {number} {:?} epoch {} writes {}..={} announced {}",
            header.kind,
            header.epoch,
            header.first,
            header.last,
            segment.footer.announced.len()
        );
        let committed = truth.log.len() as Seq;
        let beyond = segment.footer.pieces.iter().find(|piece| !piece.range.fits(truth.sectors));
        if let Some(piece) = beyond {
            return Err(format!("it writes to {}, there are {}", piece.range, truth.sectors));
        }
        if header.previous != truth.header_crc {
            return Err("it does not follow the segment before it".to_owned());
        }
        if header.first != committed + 1 {
            return Err(format!("it begins with {}, committed is {committed}", header.first));
        }
        let epoch = truth.epoch + u64::from(header.kind.begins_epoch());
        if header.epoch != epoch {
            return Err(format!("it is of epoch {}, current is {}", header.epoch, truth.epoch));
        }
        if let Some(store) = store
            && !(header.kind.begins_epoch() && header.kind != SegmentKind::Attach)
        {
            // An attach keeps what its journal still owes.
            let owed =
                if header.kind == SegmentKind::Attach { segment.footer.base } else { Seq::MAX };
            let announced = &segment.footer.announced;
            self.check_announced(store, volume, key, announced, header.last, owed)?;
        }
        // Do not use the segment's own list, which may be rounded: the next segment need not repeat
        // that.
        let announced = store
            .filter(|_| !header.kind.begins_epoch())
            .and_then(|store| self.known_at_put(store, volume, key))
            .unwrap_or_default();
        self.coverage.segments_announcing += u64::from(!segment.footer.announced.is_empty());
        match header.kind {
            SegmentKind::Data => self.data_segment(volume, object, &segment)?,
            SegmentKind::Attach
            | SegmentKind::AcceptLoss
            | SegmentKind::Rollback
            | SegmentKind::Shrink => {
                let base = segment.footer.base;
                let truth = &mut self.volumes[volume].truth;
                truth.history.push(Begun { epoch, host: header.host, base, segment: number });
                truth.epoch = epoch;
                if header.kind == SegmentKind::Rollback {
                    self.noted(volume, &segment)?;
                }
                if header.kind == SegmentKind::Shrink {
                    self.shrunk(volume, &segment)?;
                }
                if header.kind != SegmentKind::Attach {
                    if base != header.last {
                        return Err(format!("it is nobody's and builds on {base}"));
                    }
                    let accepted = header.kind == SegmentKind::AcceptLoss;
                    self.coverage.losses_accepted += u64::from(accepted);
                    if !segment.footer.announced.is_empty() {
                        return Err("it accepts a loss and keeps announcements".to_owned());
                    }
                }
            }
            SegmentKind::Detach => {
                self.coverage.detaches += 1;
                if !segment.footer.announced.is_empty() {
                    return Err("it detaches with announcements outstanding".to_owned());
                }
            }
            SegmentKind::Announce => {}
            SegmentKind::Snapshot
            | SegmentKind::DeleteSnapshot
            | SegmentKind::Clone
            | SegmentKind::Forget => self.noted(volume, &segment)?,
            SegmentKind::Resize => {
                self.coverage.resizes += 1;
                let truth = &mut self.volumes[volume].truth;
                if header.sectors <= truth.sectors {
                    return Err(format!("it makes {} of {}", header.sectors, truth.sectors));
                }
                truth.sectors = header.sectors;
                truth.sizes.insert(number, header.sectors);
            }
        }
        let truth = &mut self.volumes[volume].truth;
        truth.segments = number;
        truth.said.push(&segment);
        truth.header_crc = segment.header_crc;
        truth.announced = announced;
        self.remember_image(volume);
        Ok(header)
    }

    fn data_segment(
        &mut self,
        volume: usize,
        object: &Bytes,
        segment: &Segment,
    ) -> Result<(), String> {
        let header = segment.header;
        let (first, last) = (header.first as usize, header.last as usize);
        let truth = &self.volumes[volume].truth;
        let Some(branch) = self.branches.get(&(volume, header.epoch)) else {
            return Err(format!("nobody serves epoch {}", header.epoch));
        };
        if last > branch.log.len() {
            return Err(format!("it commits up to {last}, asked for were {}", branch.log.len()));
        }
        if !agree(&truth.log, &branch.log) {
            return Err(format!("epoch {} does not build on what is committed", header.epoch));
        }
        let mut expected = truth.image.clone();
        for id in &branch.log[first - 1..last] {
            apply(&mut expected, &self.ops, *id, self.ops.get(*id).range);
        }
        let mut image = truth.image.clone();
        let op_of = |seq| branch.log.get(usize::try_from(seq).ok()?.checked_sub(1)?).copied();
        let staged = |number| self.staged.get(&(volume, number));
        let mut packer = self.packer(volume);
        replay(&self.ops, &mut image, object, segment, &mut packer, op_of, staged)?;
        if self.ops.is_torn(branch.log[last - 1]) {
            return Err(format!("it ends with write {last}, in the middle of what is one write"));
        }
        let packed = segment.footer.pieces.iter().filter(|p| p.kind == record::Kind::Packed);
        self.coverage.packed_committed += packed.count() as u64;
        if let Some(difference) = difference(&expected, &image) {
            return Err(format!("after write {last} {difference}"));
        }
        self.coverage.segments += 1;
        let copies = segment.footer.pieces.iter().filter(|piece| piece.staged.is_some());
        self.coverage.copies_committed += copies.count() as u64;
        let distinct = segment.footer.pieces.chunk_by(|a, b| a.seq == b.seq).count();
        self.coverage.segments_coalesced += u64::from(distinct < last - first + 1);
        let log = branch.log[first - 1..last].to_vec();
        let truth = &mut self.volumes[volume].truth;
        truth.log.extend(log);
        truth.boundaries.push(header.last);
        truth.image = image;
        Ok(())
    }

    /// A volume has shrunk: the part beyond its end is gone, whatever size the volume has later.
    fn shrunk(&mut self, volume: usize, segment: &Segment) -> Result<(), String> {
        let header = segment.header;
        let truth = &mut self.volumes[volume].truth;
        let cut = Range::between(header.sectors, truth.sectors);
        let [piece] = &segment.footer.pieces[..] else {
            return Err(format!("it has {:?}", segment.footer.pieces));
        };
        if cut.is_empty() || (piece.kind, piece.range) != (record::Kind::Discard, cut) {
            return Err(format!("it cuts off {piece:?} of {} sectors", truth.sectors));
        }
        self.coverage.shrinks_with_data += u64::from(
            truth.image[cut.lba as usize..].iter().any(|stamp| *stamp != Stamp::default()),
        );
        truth.image[cut.lba as usize..].fill(Stamp::default());
        truth.sectors = header.sectors;
        truth.resized = truth.resized.min(header.sectors);
        truth.sizes.insert(header.number, header.sectors);
        truth.restored.push(Restored {
            epoch: truth.epoch,
            segment: header.number,
            seq: truth.log.len() as Seq,
            boundaries: truth.boundaries.len(),
            from: 0,
            image: truth.image.clone(),
        });
        for store in &mut self.stores {
            for due in
                store.open.get_mut(&volume).into_iter().flat_map(|open| open.due.values_mut())
            {
                *due = header.sectors.min(*due);
            }
        }
        self.coverage.shrinks += 1;
        Ok(())
    }

    /// Looks at every host from time to time.
    pub(super) fn audit(&mut self) {
        for host in 0..self.hosts.len() {
            for volume in 0..self.volumes.len() {
                let checked = self.audit_slot(host, volume);
                self.require(checked);
            }
        }
        if !self.finished {
            self.after(20 * MS, super::Event::Audit);
        }
    }

    /// A write that is acknowledged and not on its way to a store has to be announced soon.
    pub(super) fn check_told(&self, host: usize, volume: usize, grace: u64) -> Result<(), String> {
        let slot = &self.hosts[host].slots[volume];
        let Some((_, told)) = slot.session.and_then(|number| self.sessions.get(&number)) else {
            return Ok(());
        };
        let Some(since) = slot.up_since else { return Ok(()) };
        if slot.fenced || self.now.since(since).as_nanos() < u128::from(grace) {
            return Ok(());
        }
        let settled = told.shipped.max(self.volumes[volume].truth.log.len() as Seq);
        for (when, seq, range) in &slot.recent {
            if *seq <= settled || self.now.since(*when).as_nanos() < u128::from(grace) {
                continue;
            }
            for lba in range.lba..range.end() {
                let here = |a: &Announced| {
                    a.seq >= *seq && a.range.intersect(Range::new(lba, 1)).is_some()
                };
                if !told.announced.iter().any(here) {
                    return Err(format!(
                        "host {host} acknowledged write {seq} to {range} more than {} ms ago and \
                         has neither announced nor shipped it",
                        grace / MS
                    ));
                }
            }
        }
        Ok(())
    }
}
