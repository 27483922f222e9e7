//! Copies within the store: the stagings of clients, and their comparison with the committed
//! content. From then on a copy is a write of known content, held to the rules of all writes.

use super::client::{Asked, Pending};
use super::{State, World};
use crate::model::{Kind, Op, Stamp, stamp};
use crate::note;
use bytes::Bytes;
use longhaul_core::block::{
    MAX_WATCHES, Range, ReadPiece, Request, SECTOR_BYTES, STAGED_BIT, Seq, Staged, StagedData,
    StagedPiece, VolumeId,
};
use longhaul_core::record;
use longhaul_core::store::catalog;
use std::collections::BTreeMap;

/// Staged pieces to keep for writes, for each volume.
const READY_MAX: usize = 12;

/// A staged object: by offset, which sectors a record is for and what they hold.
#[derive(Debug, Default)]
pub struct Object(BTreeMap<u32, (Range, Vec<Stamp>)>);

impl Object {
    /// The content for `range`, if the record is as `place` says.
    pub fn at(&self, place: &StagedData, range: Range) -> Option<&[Stamp]> {
        let (record, content) = self.0.get(&place.offset)?;
        if *record != place.record || record.intersect(range) != Some(range) {
            return None;
        }
        let first = (range.lba - record.lba) as usize;
        content.get(first..first + range.sectors as usize)
    }

    /// Takes an object apart, trusting nothing but the stamps in the data.
    fn read(volume: VolumeId, number: u64, object: &Bytes) -> Result<Object, String> {
        let mut records = BTreeMap::new();
        let mut at = 0;
        while at < object.len() {
            let found = record::parse(volume, &object.slice(at..))
                .map_err(|error| format!("record at byte {at}: {error}"))?;
            let header = found.header;
            if (header.kind, header.seq) != (record::Kind::Data, number) {
                return Err(format!("the record at byte {at} does not belong there: {header:?}"));
            }
            let sectors = found.data.payload.chunks_exact(SECTOR_BYTES as usize);
            let content = sectors.map(stamp).collect::<Result<Vec<_>, _>>()?;
            records.insert(at as u32, (header.range, content));
            at += header.record_bytes();
        }
        Ok(Object(records))
    }
}

/// Ranges that a client watches.
#[derive(Clone, Debug)]
pub struct Watch {
    number: u64,
    range: Range,
    /// The last acknowledged write when the watch was requested: only later writes may break it.
    since: Seq,
    /// The last requested write when the watch had begun: later writes must break it.
    from: Seq,
}

/// The number of sectors of a read with content made for another sector.
pub fn copied(volume: usize, lba: u64, pieces: &[ReadPiece]) -> u64 {
    let (mut lba, mut count) = (lba, 0);
    for piece in pieces {
        match piece {
            ReadPiece::Zeroes(sectors) => lba += sectors,
            ReadPiece::Data(data) => {
                for sector in data.chunks_exact(SECTOR_BYTES as usize) {
                    let own = |stamp: Stamp| {
                        (stamp.volume as usize, u64::from(stamp.lba)) == (volume, lba)
                    };
                    count += u64::from(stamp(sector).is_ok_and(|stamp| !own(stamp)));
                    lba += 1;
                }
            }
        }
    }
    count
}

impl World {
    /// A put of a staged object took effect.
    pub(super) fn staged_created(&mut self, into: usize, key: &str, object: &Bytes) {
        let prefix = catalog::staged_prefix(self.volumes[into].id);
        let number = catalog::parse_number(&prefix, key).unwrap_or_default();
        match Object::read(self.volumes[into].id, number, object) {
            Ok(object) => {
                self.staged.insert((into, number), object);
            }
            Err(error) => self.fail(format!("staged object {key}: {error}")),
        }
    }

    /// A client has a range staged for its own volume or another, or watches it first.
    pub(super) fn ask_stage(&mut self, host: usize, volume: usize, range: Range) {
        let client = &mut self.slot(host, volume).client;
        let rng = &mut client.rng;
        let (new, watches, across) = (rng.percent(20), rng.percent(50), rng.percent(60));
        let (other, place, reuse) = (rng.draw(), rng.draw(), rng.percent(5));
        let mut object = STAGED_BIT | rng.draw();
        if new {
            let request = Request::Watch(vec![range]);
            return self.ask(host, volume, Asked::Watch, range, Vec::new(), request, false);
        }
        let watch = client.watches.last().filter(|_| watches);
        let range = watch.map_or(range, |watch| watch.range);
        let number = watch.map(|watch| watch.number);
        let into = if across { (other % self.volumes.len() as u64) as usize } else { volume };
        if reuse && let Some((_, number)) = self.staged.keys().find(|(v, _)| *v == into) {
            object = *number;
        }
        let sectors = self.volumes[into].spec.created_sectors;
        let range = Range::new(range.lba, range.sectors.min(sectors));
        let lba = place % (sectors - range.sectors + 1);
        let request =
            Request::Stage { range, into: self.volumes[into].id, lba, object, watch: number };
        let asked = Asked::Stage(into, lba, number);
        self.ask(host, volume, asked, range, Vec::new(), request, false);
    }

    pub(super) fn watching(&mut self, host: usize, volume: usize, asked: &Pending, number: u64) {
        let epoch = self.hosts[host].slots[volume].epoch;
        let from = self.branches.get(&(volume, epoch)).map_or(0, |b| b.log.len() as Seq);
        let (range, since) = (asked.range, asked.cover);
        self.slot(host, volume).client.watches.push(Watch { number, range, since, from });
    }

    /// Whether a write of the branch after number `from`, up to `to`, touches the watched range.
    fn touched(&self, volume: usize, epoch: u64, watched: Range, from: Seq, to: Seq) -> bool {
        self.branches.get(&(volume, epoch)).is_some_and(|branch| {
            let to = (to as usize).min(branch.log.len());
            let later = branch.log.get(from as usize..to).unwrap_or_default();
            later.iter().any(|id| self.ops.get(*id).range.intersect(watched).is_some())
        })
    }

    /// Whether a staging may have failed because of a write to its watched range.
    pub(super) fn may_have_changed(
        &mut self,
        host: usize,
        volume: usize,
        pending: &Pending,
    ) -> bool {
        let epoch = self.hosts[host].slots[volume].epoch;
        let watches = &self.slot(host, volume).client.watches;
        let Asked::Stage(_, _, Some(number)) = pending.asked else { return false };
        let Some(at) = watches.iter().position(|watch| watch.number == number) else {
            return false;
        };
        // A volume has room for this number of watches; the oldest give way.
        let (watch, gone) = (watches[at].clone(), at + MAX_WATCHES < watches.len());
        self.coverage.staged_changed += 1;
        gone || self.touched(volume, epoch, watch.range, watch.since, Seq::MAX)
    }

    /// A staged range has the committed content of a moment between request and answer.
    pub(super) fn staged(
        &mut self,
        host: usize,
        volume: usize,
        pending: &Pending,
        (into, lba, watch): (usize, u64, Option<u64>),
        pieces: &[StagedPiece],
    ) -> Result<(), String> {
        let epoch = self.hosts[host].slots[volume].epoch;
        if let Some(number) = watch
            && let watches = &self.slot(host, volume).client.watches
            && let Some(watch) = watches.iter().find(|watch| watch.number == number).cloned()
        {
            let acknowledged = self.branches.get(&(volume, epoch)).map_or(0, |b| b.acknowledged);
            if self.touched(volume, epoch, watch.range, watch.from, acknowledged) {
                return Err(format!("{} was watched and written all the same", watch.range));
            }
            self.coverage.staged_watched += 1;
        }
        let mut found: Vec<Stamp> = Vec::new();
        for piece in pieces {
            if piece.range.lba != lba + found.len() as u64 {
                return Err(format!("{piece:?} is out of place"));
            }
            match &piece.content {
                Staged::Zero | Staged::Hole => {
                    found.resize(found.len() + piece.range.sectors as usize, Stamp::default());
                }
                Staged::Data(data) => {
                    let object = self.staged.get(&(into, data.object));
                    let content = object.and_then(|object| object.at(data, piece.range));
                    found.extend(content.ok_or_else(|| format!("{piece:?} is not there"))?);
                }
            }
        }
        if found.len() as u64 != pending.range.sectors {
            return Err(format!("{} sectors of {} are staged", found.len(), pending.range));
        }
        self.coverage.staged += 1;
        self.coverage.staged_across += u64::from(into != volume);
        let ready = &mut self.volumes[into].ready;
        ready.extend(pieces);
        while ready.len() > READY_MAX {
            ready.pop_front();
        }
        // Later requests of the host may see more. This one saw at least the acknowledged writes,
        // all of them committed.
        self.check_prefix(volume, pending.range, (pending.cover, 0), &found)
    }

    /// A client writes some of the staged ranges for its volume, whichever client staged them.
    pub(super) fn ask_write_staged(&mut self, host: usize, volume: usize, fua: bool) {
        let epoch = self.hosts[host].slots[volume].epoch;
        if self.plan.volumes[volume].encrypted {
            // Refused by the engine unless all of it is zeroes.
            return;
        }
        let ready: Vec<StagedPiece> = self.volumes[volume].ready.iter().copied().collect();
        if ready.is_empty() {
            return;
        }
        let rng = &mut self.hosts[host].slots[volume].client.rng;
        let first = rng.index(ready.len());
        let count = rng.between(1, 3) as usize;
        let mut pieces: Vec<StagedPiece> = ready.into_iter().skip(first).take(count).collect();
        for piece in &mut pieces {
            if rng.percent(30) {
                let skip = rng.below(piece.range.sectors);
                let sectors = rng.between(1, piece.range.sectors - skip);
                piece.range = Range::new(piece.range.lba + skip, sectors);
                self.coverage.copies_cut += 1;
            }
        }
        let Some(branch) = self.branches.get_mut(&(volume, epoch)) else { return };
        let first = branch.log.len() as Seq + 1;
        let mut whole = pieces[0].range;
        for piece in &pieces {
            let range = piece.range;
            let id = match &piece.content {
                Staged::Hole => self.ops.push(Op { volume, kind: Kind::Discard, range }),
                Staged::Zero => self.ops.push(Op { volume, kind: Kind::Zero(true), range }),
                Staged::Data(data) => {
                    let object = self.staged.get(&(volume, data.object));
                    let content = object.and_then(|object| object.at(data, range));
                    self.ops.push_copy(volume, range, content.unwrap_or_default())
                }
            };
            branch.push(id, range);
            whole = Range::between(whole.lba.min(range.lba), whole.end().max(range.end()));
        }
        let last = branch.log.len() as Seq;
        note!(self, "h{host} v{volume} writes {pieces:?}");
        let asked = Asked::Write(Kind::Copy(0), first, last);
        let request = Request::WriteStaged { pieces, fua };
        self.ask(host, volume, asked, whole, Vec::new(), request, fua);
    }

    /// Counts reads of what only the store can tell and has not committed.
    pub(super) fn note_early_read(
        &mut self,
        host: usize,
        volume: usize,
        range: Range,
        floors: &[u32],
    ) {
        let slot = &self.hosts[host].slots[volume];
        let committed = match &slot.state {
            State::Running(machine) => machine.status(self.now).committed,
            _ => return,
        };
        let Some(branch) = self.branches.get(&(volume, slot.epoch)) else { return };
        let early = floors.iter().any(|seq| {
            Seq::from(*seq) > committed
                && matches!(self.ops.get(branch.log[*seq as usize - 1]).kind, Kind::Copy(_))
        });
        note!(self, "h{host} v{volume} reads {range}, early {early}");
        self.coverage.copies_read_early += u64::from(early);
    }
}
