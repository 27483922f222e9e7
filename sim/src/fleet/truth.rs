//! The true state of each volume, by the objects of the location. Each object that appears or
//! disappears updates the state, and the world checks whether it may do so.

use super::World;
use super::host::Write;
use super::objects::{Origin, PendingObject};
use super::place::Fate as Fault;
use crate::note;
use crate::order::{Arrival, LogOrder};
use bytes::Bytes;
use longhaul_core::block::{Epoch, SECTOR_BYTES, Seq, Time, VolumeId};
use longhaul_core::record::{self, Kind};
use longhaul_core::store::lease::Lease;
use longhaul_core::store::segment::{self, Header, SegmentKind};
use longhaul_core::store::trash::{Decision, Record};
use longhaul_core::store::{ObjectOperation, VolumeSpec, catalog, lease, tenant, trash};
use longhaul_core::wire::link::{HostId, TenantLimits};
use std::collections::{BTreeMap, BTreeSet};

/// The number of leases that stay, with the newest one. A store with an old list must not find a
/// free number.
pub(super) const KEPT: u64 = 16;

/// The stamp of each written sector.
pub(super) type Image = BTreeMap<u64, u64>;

/// The state of a volume at the moment of a snapshot.
#[derive(Clone, Default)]
pub(super) struct Taken {
    pub name: String,
    pub image: Image,
    /// The segment of the snapshot, and the end of the log there.
    segment: u64,
    void_after: u64,
    header_crc: u32,
    epoch: Epoch,
    committed: Seq,
    sectors: u64,
}

/// The fate of a volume, by the operations of operators and their answers.
#[derive(Clone, Default)]
pub(super) struct Fate {
    /// By the last answer to an operator, the volume exists.
    pub exists: bool,
    /// By the last answer to an operator, a store has deleted the volume.
    pub deleted: bool,
    /// The number of requested deletions that may still take effect.
    pub deletes: u32,
    /// The number of requested restorations, and of late names, that may still take effect.
    pub restores: u32,
    /// The number of repeated requests for this clone that may still take effect.
    pub again: u32,
    /// The number of requested purges that may still take effect.
    pub purges: u32,
    /// A record says that the data goes.
    pub condemned: bool,
    /// An object came or went so late that no store could know. The check at the end skips the
    /// volume then.
    pub raced: bool,
    /// The time of the last statement of an engine that was open at the same time as one of another
    /// store. Such an engine may lack commits of the other one.
    pub rivaled: Option<Time>,
    /// An operator has heard of the volume, at any time.
    pub made: bool,
    /// The number of acknowledged restorations.
    pub restored: u64,
}

/// The true state of a volume, by its objects.
pub(super) struct Truth {
    pub spec: VolumeSpec,
    pub names: BTreeSet<String>,
    /// The time since which the volume has a name.
    named: Time,
    pub fate: Fate,
    pub segments: u64,
    /// Of those that are ahead, their objects.
    order: LogOrder<Bytes>,
    header_crc: u32,
    pub epoch: Epoch,
    /// The last committed number before each epoch.
    begun: BTreeMap<Epoch, Seq>,
    pub committed: Seq,
    /// The host of the last epoch.
    pub host: HostId,
    pub sectors: u64,
    pub image: Image,
    pub snapshots: BTreeMap<VolumeId, Taken>,
    /// Clones that the log knows of.
    pub clones: BTreeSet<VolumeId>,
    /// The writes that hosts have sent, by epoch and number.
    pub sent: BTreeMap<(Epoch, Seq), Write>,
    /// The number of the newest lease.
    lease: u64,
    /// The number of its tenant's newest record when the volume got its name.
    tenant: u64,
    /// The highest number that a store has acknowledged to a host.
    pub acked: Seq,
    /// Objects that came after a purge, or while the volume had no name. No store removes them.
    pub late: BTreeSet<String>,
    /// The records of the decisions about the volume, by number.
    pub records: BTreeMap<u64, Record>,
}

impl Truth {
    /// A volume that begins with the content of a snapshot.
    fn new(spec: VolumeSpec, taken: Taken) -> Truth {
        Truth {
            names: BTreeSet::new(),
            named: Time(0),
            fate: Fate::default(),
            segments: taken.segment,
            order: LogOrder::new(taken.segment, taken.void_after),
            header_crc: taken.header_crc,
            epoch: taken.epoch,
            begun: BTreeMap::new(),
            committed: taken.committed,
            host: HostId(0),
            sectors: spec.created_sectors,
            image: taken.image,
            snapshots: BTreeMap::new(),
            clones: BTreeSet::new(),
            sent: BTreeMap::new(),
            lease: 0,
            tenant: 0,
            acked: taken.committed,
            late: BTreeSet::new(),
            records: BTreeMap::new(),
            spec,
        }
    }

    /// Whether the log has the writes of an epoch up to a number.
    pub fn has(&self, epoch: Epoch, seq: Seq) -> bool {
        let end = self.begun.range(epoch + 1..).map(|(_, base)| *base).next();
        self.committed >= seq && end.is_none_or(|end| end >= seq)
    }

    pub fn tenant_then(&self) -> u64 {
        self.tenant
    }

    pub fn decision(&self) -> Option<Decision> {
        self.records.values().next_back().map(|record| record.decision)
    }

    pub fn base_of(&self, epoch: Epoch) -> Option<Seq> {
        self.begun.get(&epoch).copied()
    }
}

/// The true state of the tenants, by their objects.
#[derive(Default)]
pub(super) struct Tenants {
    /// The limits, by tenant and number of the record; `None` for a deleted tenant.
    records: BTreeMap<(String, u64), Option<TenantLimits>>,
    newest: BTreeMap<String, u64>,
}

impl Tenants {
    pub fn limits(&self, name: &str) -> Option<&TenantLimits> {
        let number = *self.newest.get(name)?;
        self.records.get(&(name.to_owned(), number))?.as_ref()
    }

    /// The largest limit of volumes in the records of a tenant from `since` on.
    pub fn most_volumes(&self, name: &str, since: u64) -> u64 {
        let of = self.records.range((name.to_owned(), since)..);
        let of = of.take_while(|((other, _), _)| other == name);
        let limits = of.filter_map(|(_, limits)| limits.as_ref());
        limits.map(|limits| limits.max_volumes.unwrap_or(u64::MAX)).max().unwrap_or(0)
    }

    pub fn number(&self, name: &str) -> u64 {
        self.newest.get(name).copied().unwrap_or(0)
    }
}

/// The volume that a put gives a name.
pub(super) fn named_by(operation: &ObjectOperation) -> Option<VolumeSpec> {
    let ObjectOperation::Put { key, data } = operation else { return None };
    if !key.starts_with(catalog::VOLUMES_PREFIX) {
        return None;
    }
    catalog::decode_spec(key, &data.concat()).ok()
}

/// The volume of a key below `v/`.
pub(super) fn volume_of(key: &str) -> Option<VolumeId> {
    let id = key.strip_prefix("v/")?.split('/').next()?;
    u128::from_str_radix(id, 16).ok().map(VolumeId)
}

impl World {
    /// Checks an object that a put has created, and updates the state.
    pub(super) fn object_created(&mut self, pending: &PendingObject) -> Result<(), String> {
        let ObjectOperation::Put { key, data } = &pending.operation else { return Ok(()) };
        let data = Bytes::from(data.concat());
        if key.starts_with(catalog::VOLUMES_PREFIX) {
            return self.name_created(key, &data, pending);
        }
        if let Some((volume, number)) = trash::parse_key(key) {
            let record = Record::decode(key, &data).map_err(|error| error.to_string())?;
            let tends = match pending.origin {
                Origin::Task(task, _) => self.is_tending(task),
                Origin::Engine(..) => false,
            };
            let back = tends && record.decision == Decision::Deleted;
            self.coverage.taken_back += u64::from(back);
            let orphan = match pending.origin {
                Origin::Task(task, _) => !self.tasks.contains_key(&task),
                Origin::Engine(..) => true,
            };
            let late = pending.fate == Fault::Late || orphan;
            if let Some(truth) = self.truths.get_mut(&volume).filter(|truth| truth.fate.condemned) {
                if late || pending.fate == Fault::FailsAfter {
                    truth.late.insert(key.clone());
                    truth.fate.raced |= late;
                } else if let Origin::Task(task, _) = pending.origin
                    && let Some(entry) = self.tasks.get_mut(&task)
                {
                    entry.left.push((volume, key.clone()));
                }
            }
            self.check_deleted_again(pending, &record)?;
            self.check_clones_keep_data(pending, volume, &record)?;
            return self.record_created(pending.store, volume, number, record);
        }
        if let Some((name, number)) = tenant::parse_key(key) {
            let limits = tenant::decode(key, &data).map_err(|error| error.to_string())?;
            self.operator.tenants.records.entry((name.to_owned(), number)).or_insert(limits);
            let newest = self.operator.tenants.newest.entry(name.to_owned()).or_default();
            // A record that comes late has a lower number than the newest one, and does not count.
            *newest = number.max(*newest);
            return Ok(());
        }
        let Some(volume) = volume_of(key) else { return Ok(()) };
        // No store removes an object that comes after its procedure has ended, or after a put that
        // failed by its answer, or an attribute.
        let orphan = match pending.origin {
            Origin::Task(task, _) => {
                let failed = matches!(pending.fate, Fault::Late | Fault::FailsAfter);
                failed || !self.tasks.contains_key(&task)
            }
            Origin::Engine(..) => true,
        };
        let Some(truth) = self.truths.get_mut(&volume) else {
            return Err(format!("{key} is of no volume"));
        };
        let gone = truth.fate.condemned || truth.names.is_empty();
        if gone && (orphan || key.contains("/attr/")) {
            truth.late.insert(key.clone());
        }
        if let Some(number) = catalog::parse_number(&lease::prefix(volume), key) {
            if truth.fate.condemned {
                return Ok(());
            }
            if number <= truth.lease {
                return Err(format!("{key} comes after lease {}", truth.lease));
            }
            truth.lease = number;
            return Ok(());
        }
        if let Some(number) = catalog::parse_number(&catalog::segment_prefix(volume), key) {
            if truth.fate.condemned {
                self.coverage.commits_late += 1;
                return Ok(());
            }
            return self.segment_arrived(volume, number, &data).map_err(|e| format!("{key}: {e}"));
        }
        Ok(())
    }

    fn name_created(
        &mut self,
        key: &str,
        data: &Bytes,
        pending: &PendingObject,
    ) -> Result<(), String> {
        let late = pending.fate == Fault::Late;
        let spec = catalog::decode_spec(key, data).map_err(|error| error.to_string())?;
        if let (Origin::Task(task, _), false) = (pending.origin, late) {
            self.note_named(task, &spec);
        }
        let taken = match spec.parents.first() {
            None => Taken::default(),
            Some(parent) => {
                let truth = self.truths.get(&parent.volume);
                let gone = truth.is_some_and(|truth| truth.names.is_empty());
                self.coverage.clones_orphaned += u64::from(gone && pending.of_clone);
                // A purged volume whose name comes late counts as another one, of unknown content.
                let back = truth.is_some_and(|truth| truth.fate.condemned);
                let taken = truth.and_then(|truth| truth.snapshots.get(&parent.snapshot));
                match taken {
                    Some(taken) if taken.sectors != spec.created_sectors => {
                        return Err(format!("{key} has not the size of its snapshot"));
                    }
                    Some(taken) => taken.clone(),
                    None if back => Taken::default(),
                    None => return Err(format!("{key} begins with nothing")),
                }
            }
        };
        // After a purge, or after a store has taken a clone back, a repeated request creates the
        // clone anew. A restoration whose name comes after the purge takes the name back, and the
        // volume stays purged.
        let before = self.truths.get(&spec.id).filter(|truth| {
            let undone = truth.names.is_empty() && !self.is_left(spec.id);
            pending.of_clone && !late && (truth.fate.condemned || undone)
        });
        let before = before.map(|truth| (truth.late.clone(), truth.fate.clone()));
        if before.is_some() {
            self.truths.remove(&spec.id);
            self.operator.attributes.begin_anew(spec.id);
        }
        // No store can distinguish a late name from a new one.
        if late && let Some(truth) = self.truths.get_mut(&spec.id) {
            truth.fate.restores += 1;
            let other = truth.names.iter().any(|name| *name != spec.name);
            truth.fate.raced |= truth.fate.deleted || truth.fate.condemned || other;
        }
        let truth = self.truths.entry(spec.id).or_insert_with(|| Truth::new(spec.clone(), taken));
        let fate = &truth.fate;
        // A deleted volume gets a name only upon a request. A purged one counts as another volume.
        // Before the first answer, the creator may not know that others have found the volume and
        // deleted it.
        if fate.made && fate.deleted && fate.restores + fate.again == 0 && !fate.condemned {
            return Err(format!("{key}: volume {} comes back by itself", spec.id));
        }
        if let Some((late, fate)) = before {
            truth.late = late;
            if !fate.condemned {
                truth.fate = fate;
            }
        }
        if truth.names.is_empty() {
            truth.named = self.now;
        }
        truth.names.insert(spec.name.clone());
        truth.tenant = spec.tenant().map_or(0, |tenant| self.operator.tenants.number(tenant));
        truth.spec = spec;
        Ok(())
    }

    fn name_deleted(&mut self, key: &str, pending: &PendingObject) -> Result<(), String> {
        let Some(data) = self.place.map.get(key) else { return Ok(()) };
        let spec = catalog::decode_spec(key, data).map_err(|error| error.to_string())?;
        if let Origin::Task(task, _) = pending.origin {
            self.note_freed(task, &spec);
        }
        // The procedure of a clone may take back a name that an operator has restored meanwhile.
        let undoes = match pending.origin {
            Origin::Task(task, _) => self.is_operation(task),
            Origin::Engine(..) => false,
        };
        let Some(truth) = self.truths.get_mut(&spec.id) else { return Ok(()) };
        truth.names.remove(&spec.name);
        // Between the last look and the deletion, another volume may get the name. No object store
        // can prevent that.
        let Some((looked, found)) = &pending.looked else {
            return Err(format!("{key} goes, and nobody has looked whose it is"));
        };
        if looked != key {
            return Err(format!("{key} goes, and nobody has looked whose it is"));
        }
        if *found != spec.id {
            (truth.fate.exists, truth.fate.raced) = (false, true);
            return Ok(());
        }
        let fate = &truth.fate;
        let undone = !fate.exists && !fate.deleted && fate.deletes + fate.restores == 0;
        self.coverage.clones_undone += u64::from(undone && !spec.parents.is_empty());
        // A volume may get two names at once, and one of them goes again.
        let last = truth.names.is_empty();
        if undoes && fate.restored > 0 {
            return Ok(());
        }
        // Two restorations of a clone without its parent do not know of each other.
        if !spec.parents.is_empty() && fate.restores > 0 {
            return Ok(());
        }
        if last && truth.fate.exists && truth.fate.deletes == 0 {
            return Err(format!("{key} goes, and nobody has asked for that"));
        }
        Ok(())
    }

    /// Checks the second record of a deletion, which deletes the volume again. An operator may have
    /// restored the volume since the deletion took the name. So the deletion looks at the name
    /// before, and a restored volume stays.
    fn check_deleted_again(&self, pending: &PendingObject, record: &Record) -> Result<(), String> {
        let Origin::Task(task, _) = pending.origin else { return Ok(()) };
        let spec = &record.spec;
        if record.decision != Decision::Deleted || pending.fate == Fault::Late {
            return Ok(());
        }
        let deleting = self.stores[pending.store].chores.deleting.as_ref();
        let deletes = deleting.is_some_and(|deleting| deleting.id == spec.id);
        let named = self.truths.get(&spec.id).is_some_and(|at| at.names.contains(&spec.name));
        if deletes && named && self.has_freed(task, spec) {
            let name = &spec.name;
            return Err(format!("{name} is restored, and a slow deletion deletes it again"));
        }
        Ok(())
    }

    /// Whether a put gives a clone its name whose parent has none.
    pub(super) fn is_orphan(&self, operation: &ObjectOperation) -> bool {
        let spec = named_by(operation);
        let parent = spec.as_ref().and_then(|spec| spec.parents.first());
        let parent = parent.and_then(|parent| self.truths.get(&parent.volume));
        parent.is_some_and(|parent| parent.names.is_empty())
    }

    /// Whether a put gives a volume a name that its newest record does not have.
    pub(super) fn is_overtaken(&self, operation: &ObjectOperation) -> bool {
        let Some(spec) = named_by(operation) else { return false };
        let newest = self.truths.get(&spec.id).and_then(|truth| truth.records.values().next_back());
        newest.is_some_and(|record| record.spec.name != spec.name)
    }

    /// Checks that a purge spares the data of clones. It does not see a clone that gets its name
    /// while it is at work.
    fn check_clones_keep_data(
        &self,
        pending: &PendingObject,
        volume: VolumeId,
        record: &Record,
    ) -> Result<(), String> {
        let Origin::Task(task, _) = pending.origin else { return Ok(()) };
        let Some(entry) = self.tasks.get(&task) else { return Ok(()) };
        if record.decision != Decision::Purged {
            return Ok(());
        }
        let shares = |clone: &&Truth| {
            let mut parents = clone.spec.parents.iter();
            let here = !clone.names.is_empty() && clone.named < entry.began;
            here && parents.any(|parent| parent.volume == volume)
        };
        match self.truths.values().find(shares) {
            Some(clone) => {
                let name = &clone.spec.name;
                Err(format!("volume {volume} is purged, and clone {name} shares its data"))
            }
            None => Ok(()),
        }
    }

    fn record_created(
        &mut self,
        store: usize,
        volume: VolumeId,
        number: u64,
        record: Record,
    ) -> Result<(), String> {
        let clock = self.clock(store);
        let grace = self.plan.grace;
        let Some(truth) = self.truths.get_mut(&volume) else {
            return Err(format!("a record {number} of no volume {volume}"));
        };
        note!(self, "volume {volume} record {number} says {:?}", record.decision);
        // After a purge or a newer record, the writer removes this record again.
        let newest = truth.records.keys().next_back().copied().unwrap_or_default();
        if truth.fate.condemned || number < newest {
            return Ok(());
        }
        if record.decision == Decision::Purged {
            // Without a record before it, the writer removes this one again.
            let Some(before) = truth.records.get(&(number - 1)) else { return Ok(()) };
            let over = grace == 0 || before.at + grace <= clock;
            let expired = before.decision == Decision::Deleted && over;
            if !expired && truth.fate.purges == 0 {
                return Err(format!("volume {volume} is purged before its time"));
            }
            if let Some(name) = truth.names.first()
                && truth.fate.restores == 0
            {
                return Err(format!("volume {volume} is purged, and has the name {name}"));
            }
            self.coverage.expired += u64::from(expired && truth.fate.purges == 0);
            truth.fate.condemned = true;
        }
        truth.records.insert(number, record);
        Ok(())
    }

    fn segment_arrived(
        &mut self,
        volume: VolumeId,
        number: u64,
        object: &Bytes,
    ) -> Result<(), String> {
        let Some(truth) = self.truths.get_mut(&volume) else { return Ok(()) };
        let header = segment::verify(object).map_err(|error| error.to_string())?.header;
        if header.number != number {
            return Err(format!("it is number {}", header.number));
        }
        match truth.order.arrives(number, &header)? {
            Arrival::Void => {
                self.coverage.segments_void += 1;
                return Ok(());
            }
            Arrival::Ahead => {
                self.coverage.segments_ahead += 1;
                truth.order.keep(number, object.clone());
                return Ok(());
            }
            Arrival::Next => {}
        }
        let mut next = Some(object.clone());
        while let Some(object) = next {
            let header = self.segment_created(volume, &object)?;
            let Some(truth) = self.truths.get_mut(&volume) else { return Ok(()) };
            (next, _) = truth.order.take(&header)?;
        }
        Ok(())
    }

    fn segment_created(&mut self, volume: VolumeId, object: &Bytes) -> Result<Header, String> {
        let segment = segment::verify(object).map_err(|error| error.to_string())?;
        let header = segment.header;
        let number = header.number;
        let Some(truth) = self.truths.get_mut(&volume) else { return Ok(header) };
        note!(
            self,
            "volume {volume} segment {number} {:?} epoch {} {}..={}",
            header.kind,
            header.epoch,
            header.first,
            header.last
        );
        if header.previous != truth.header_crc {
            return Err(format!("it does not follow segment {}", truth.segments));
        }
        if header.first != truth.committed + 1 {
            return Err(format!("it begins with {}, after {}", header.first, truth.committed));
        }
        if header.kind.begins_epoch() {
            truth.epoch += 1;
            truth.begun.insert(truth.epoch, truth.committed);
            truth.host = header.host;
        }
        if header.epoch != truth.epoch {
            return Err(format!("it is of epoch {}, after {}", header.epoch, truth.epoch));
        }
        (truth.segments, truth.header_crc) = (number, segment.header_crc);
        for piece in &segment.footer.pieces {
            let found = record::parse(volume, &object.slice(piece.offset as usize..));
            let found = found.map_err(|error| error.to_string())?;
            if found.header.kind != Kind::Data {
                continue;
            }
            let write = truth.sent.get(&(header.epoch, found.header.seq));
            let stamps = found.data.payload.chunks_exact(SECTOR_BYTES as usize).map(stamp);
            if !write.is_some_and(|write| stamps.into_iter().all(|stamp| stamp == write.stamp)) {
                return Err(format!("number {} is what nobody has sent", found.header.seq));
            }
        }
        if header.kind == SegmentKind::Data {
            for seq in header.first..=header.last {
                let Some(write) = truth.sent.get(&(header.epoch, seq)) else {
                    return Err(format!("number {seq} is what nobody has sent"));
                };
                truth
                    .image
                    .extend((write.lba..write.lba + write.sectors).map(|lba| (lba, write.stamp)));
            }
        }
        truth.committed = header.last.max(truth.committed);
        if matches!(header.kind, SegmentKind::Resize | SegmentKind::Shrink) {
            truth.sectors = header.sectors;
            truth.image = truth.image.split_off(&0);
            truth.image.retain(|lba, _| *lba < header.sectors);
        }
        let Some(about) = segment.footer.note else { return Ok(header) };
        match header.kind {
            SegmentKind::Snapshot => {
                let taken = Taken {
                    name: about.name,
                    image: truth.image.clone(),
                    segment: number,
                    void_after: header.last_void_after(),
                    header_crc: segment.header_crc,
                    epoch: truth.epoch,
                    committed: truth.committed,
                    sectors: truth.sectors,
                };
                truth.snapshots.insert(about.id, taken);
            }
            SegmentKind::Clone => {
                truth.clones.insert(about.id);
            }
            SegmentKind::Forget => {
                truth.clones.remove(&about.id);
                // A store may purge the clone during a repeated request, which fails then. Its name
                // may come late.
                let there = |clone: &Truth| {
                    !clone.names.is_empty() && clone.fate.again == 0 && !clone.fate.condemned
                };
                if self.truths.get(&about.id).is_some_and(there) {
                    return Err(format!("clone {} is forgotten, and is there", about.id));
                }
            }
            _ => {}
        }
        Ok(header)
    }

    /// Checks an object that a deletion is about to remove, and updates the state.
    pub(super) fn object_deleted(&mut self, pending: &PendingObject) -> Result<(), String> {
        let ObjectOperation::Delete { key } = &pending.operation else { return Ok(()) };
        if key.starts_with(catalog::VOLUMES_PREFIX) {
            return self.name_deleted(key, pending);
        }
        if let Some((volume, number)) = trash::parse_key(key) {
            if let Some(truth) = self.truths.get_mut(&volume)
                && !truth.fate.condemned
            {
                let segments = catalog::segment_prefix(volume);
                let empty = self.place.list(&segments, "").next().is_none();
                let never = empty && !truth.fate.exists && !truth.fate.deleted;
                let all = catalog::volume_prefix(volume);
                let never = never || self.place.list(&all, "").next().is_none();
                // A volume with a name needs no record.
                let restored = truth.decision() == Some(Decision::Restored);
                let never = never || restored && !truth.names.is_empty();
                // A first record without a name may come after the removal of the volume.
                let never = never || number == 1 && truth.names.is_empty();
                if truth.records.keys().next_back() == Some(&number) && !never {
                    return Err(format!("{key} goes, the newest word on its volume"));
                }
                truth.records.remove(&number);
            }
            return Ok(());
        }
        let Some(volume) = volume_of(key) else { return Ok(()) };
        let Some(truth) = self.truths.get_mut(&volume) else { return Ok(()) };
        if let Some(number) = catalog::parse_number(&lease::prefix(volume), key)
            && !truth.fate.condemned
            && number + KEPT > truth.lease + 1
        {
            // A store that finds no name removes its own lease.
            let mine = self.place.map.get(key).and_then(|there| Lease::decode(key, there).ok());
            let me = self.stores[pending.store].id;
            if !matches!(mine, Some(Lease::Held { store, .. }) if store == me) {
                return Err(format!("{key} goes, lease {} is the newest", truth.lease));
            }
            if number == truth.lease {
                // Earlier claims may have removed their leases already.
                let prefix = lease::prefix(volume);
                let others = self.place.list(&prefix, "").filter(|meta| meta.key != *key);
                let numbers = others.filter_map(|meta| catalog::parse_number(&prefix, &meta.key));
                truth.lease = numbers.max().unwrap_or(0);
            }
        }
        if catalog::parse_number(&catalog::segment_prefix(volume), key).is_some() {
            if !truth.fate.condemned {
                return Err(format!("{key} goes, of a volume that is not purged"));
            }
            let needs = |truth: &Truth| {
                truth.fate.exists
                    && truth.fate.restores + truth.fate.deletes == 0
                    && !truth.names.is_empty()
                    && truth.spec.parents.iter().any(|parent| parent.volume == volume)
            };
            if let Some(clone) = self.truths.values().find(|truth| needs(truth)) {
                return Err(format!("{key} goes, and clone {} needs it", clone.spec.name));
            }
        }
        Ok(())
    }

    /// Whether the location has data or records of a volume.
    pub(super) fn is_left(&self, volume: VolumeId) -> bool {
        let prefixes = [catalog::volume_prefix(volume), trash::prefix(volume)];
        prefixes.iter().any(|prefix| self.place.list(prefix, "").next().is_some())
    }
}

/// The stamp in the data of a sector.
pub(super) fn stamp(sector: &[u8]) -> u64 {
    sector.first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}
