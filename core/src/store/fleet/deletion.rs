//! The fate of a deleted volume: its data stays for a time, then the data goes, unless the volume
//! gets a name again.
//!
//! A record ([`trash`]) decides each step, and the store executes the step afterward. If a store
//! dies, another store finds the record and completes the step. After its put, the writer of a
//! record checks that the record before still exists. If that is missing, others have decided
//! since, or have removed everything. The new record does not count then, and the writer removes
//! it. The newest record stays as long as the data.
//!
//! A deleted clone does not hold its parent. The deletion of a parent writes its record first, and
//! looks for clones afterward. The restoration of a clone writes its name first, and looks for its
//! parent's record afterward. So at least one of the two sees the other. No volume loses the data
//! of its parent.

use super::claim::{self, LeaseHolder};
use super::listing::{CatalogEntry, remove_data};
use super::names::{self, NotCreated, delete_name, has_no_clones, is_named};
use super::records::{contended, decide, is_gone, newest, prune, read};
use super::{ATTEMPTS, Facts, Halt, Known, Procedure, failed, invalid, tenants};
use crate::block::VolumeId;
use crate::store::VolumeSpec;
use crate::store::catalog::{self, VOLUMES_PREFIX};
use crate::store::lease;
use crate::store::tenant::{check_volume_name, tenant_of};
use crate::store::trash::{self, Decision, Next, Record};
use crate::wire::link::VolumeError;
use std::collections::BTreeSet;

/// Tells from the name of a volume whether the volume exists for the requester.
pub type Wanted<'a> = &'a (dyn Fn(&str) -> bool + Sync);

/// Whether the newest record of a volume contradicts its name. The record says that a store has
/// deleted or purged the volume, or has restored it by another name.
pub(super) fn is_otherwise(facts: &mut Facts<'_>, spec: &VolumeSpec) -> Result<bool, Halt> {
    let newest = newest(facts, spec.id)?;
    Ok(newest.is_some_and(|(_, record)| !record.names(&spec.name)))
}

/// Takes back the name that a creation has just given to a volume. Another store may have taken the
/// volume since, and hosts may have written to it. So this deletes the volume like any other one,
/// with a record, and its data stays for a time. If the volume has neither data nor an older
/// record, the new record goes as well.
pub(super) fn take_back(facts: &mut Facts<'_>, entry: &CatalogEntry) -> Result<(), Halt> {
    let before = newest(facts, entry.spec.id)?.is_some();
    begin(facts, entry)?;
    delete_name(facts, &entry.spec)?;
    // If a record was there before, the volume is an older one. It needs its newest record.
    if !before && is_removed(facts, entry.spec.id)? {
        // Only the first record goes. A claim may have taken a lease since, and removes that
        // itself. Such a lease lets an operator restore the volume, which then keeps its name.
        facts.delete(&trash::key(entry.spec.id, 1))?.map_err(failed)?;
    }
    Ok(())
}

/// Takes back the name that a restoration has just given to a volume.
///
/// If the newest record says this name, a new record first says that the volume is deleted. In any
/// other case this only deletes the name. If the volume has no record at all, another store has
/// removed all of it. A new record would promise data that does not exist.
///
/// `upon` is the number of the restoration's record. This fails if a later restoration by the same
/// name counts, or if the store cannot read or write the objects.
pub(super) fn take_back_restored(
    facts: &mut Facts<'_>,
    entry: &CatalogEntry,
    upon: u64,
) -> Result<(), Halt> {
    for _ in 0..ATTEMPTS {
        if let Some((number, record)) = newest(facts, entry.spec.id)?
            && record.names(&entry.spec.name)
        {
            if number > upon {
                break;
            }
            let (decision, at) = (Decision::Deleted, facts.now());
            if decide(facts, number, &Record { decision, at, ..record })?.is_none() {
                continue;
            }
        }
        return delete_name(facts, &entry.spec);
    }
    Err(contended())
}

/// Writes the record that a volume is deleted, unless the newest record says so already.
///
/// Returns false, and writes nothing, if the newest record says that the volume has another name. A
/// record with the wrong name would hide that name. A restoration would then give the volume a
/// second name, and in time its data would go.
fn begin(facts: &mut Facts<'_>, entry: &CatalogEntry) -> Result<bool, Halt> {
    let CatalogEntry { spec, sectors } = entry;
    for _ in 0..ATTEMPTS {
        let number = match newest(facts, spec.id)? {
            Some((_, Record { decision: Decision::Deleted, .. })) => return Ok(true),
            Some((_, Record { decision: Decision::Purged, .. })) => break,
            Some((_, record)) if !record.names(&spec.name) => return Ok(false),
            Some((number, _)) => number,
            None => 0,
        };
        let (decision, at) = (Decision::Deleted, facts.now());
        let record = Record { decision, at, spec: spec.clone(), sectors: *sectors };
        let Some(made) = decide(facts, number, &record)? else { continue };
        if number == 0 && !is_named(facts, spec)? && is_removed(facts, spec.id)? {
            // Another store has removed all of the volume since, and a record would have no volume.
            facts.delete(&trash::key(spec.id, made))?.map_err(failed)?;
            return Err(VolumeError::NotFound.into());
        }
        return Ok(true);
    }
    Err(contended())
}

/// Deletes a volume that no engine has open: its data stays, and an operator can restore it.
///
/// If another store has deleted the volume already, it succeeds. It fails if the volume does not
/// exist, if it has clones, or if the store cannot read or write the objects. If it fails halfway,
/// a store makes the volume usable again after a minute.
#[derive(Clone, Debug)]
pub struct DeleteVolume {
    /// The volume.
    pub entry: CatalogEntry,
    /// The number of this store's lease. `None` without leases, or if an earlier deletion has
    /// closed the volume.
    pub lease: Option<u64>,
    /// The clones in the log of the volume; `None` if the store has not read the log.
    pub clones: Option<BTreeSet<VolumeId>>,
}

impl Procedure for DeleteVolume {
    type Outcome = Result<(), VolumeError>;

    fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome> {
        Halt::caught(self.delete(facts))
    }
}

impl DeleteVolume {
    fn delete(&self, facts: &mut Facts<'_>) -> Result<(), Halt> {
        let DeleteVolume { entry, lease, clones } = self;
        let spec = &entry.spec;
        if !is_named(facts, spec)? {
            // Another store has deleted the volume, and another volume may have its name. Or the
            // volume has another name, and a deletion by that name may still fail.
            return match newest(facts, spec.id)? {
                Some((_, record))
                    if record.decision == Decision::Deleted
                        && (record.spec.name == spec.name || !is_named(facts, &record.spec)?) =>
                {
                    Ok(())
                }
                _ => Err(VolumeError::NotFound.into()),
            };
        }
        if let Some(number) = *lease {
            claim::check_held(facts, spec.id, number)?;
        }
        let clones = clones.as_ref();
        needs_nobody(facts, spec, clones)?;
        if !begin(facts, entry)? {
            // Other stores have deleted it meanwhile, and restored it by another name. If it still
            // has this name, a restoration died before it could take the name back.
            delete_name(facts, spec)?;
            return Err(VolumeError::NotFound.into());
        }
        if let Err(error) = Halt::caught(needs_nobody(facts, spec, clones))? {
            // Without a lease the volume may be closed. [`TendVolume`] reopens it and keeps it.
            if lease.is_some() {
                keep(facts, spec.id)?;
            }
            return Err(error.into());
        }
        if let Some(number) = *lease {
            claim::close(facts, spec.id, number)?;
        }
        delete_name(facts, spec)?;
        // Another store may have taken this deletion for an abandoned one, and kept the volume. Or
        // another store may have removed all of the volume.
        match newest(facts, spec.id)? {
            // With that name, an operator has restored the volume since. Without it, the deletion
            // counts.
            Some((_, record)) if record.decision == Decision::Restored => {
                if !is_named(facts, &record.spec)? {
                    begin(facts, entry)?;
                }
            }
            Some((_, record)) if record.decision == Decision::Deleted => {}
            // The removal may have come before the last lease, which then is left.
            Some(_) | None => {
                if let Some(number) = *lease {
                    facts.discard(&lease::key(spec.id, number.saturating_add(1)))?;
                }
            }
        }
        Ok(())
    }
}

/// Ends a failed deletion: writes the record that the volume keeps its name.
fn keep(facts: &mut Facts<'_>, volume: VolumeId) -> Result<(), Halt> {
    if let Some((number, record)) = newest(facts, volume)?
        && record.decision == Decision::Deleted
    {
        let record = Record { decision: Decision::Restored, at: facts.now(), ..record };
        if let Some(number) = decide(facts, number, &record)? {
            prune(facts, volume, number)?;
        }
    }
    Ok(())
}

/// Gives a deleted volume a name again.
///
/// It fails if the volume does not exist, another volume has the name, or the parent of a clone is
/// missing. It also fails if the tenant may not have the volume, or another store decides about the
/// volume. Or the store cannot read or write the objects. A repetition continues the work.
#[derive(Clone)]
pub struct RestoreVolume<'a> {
    /// The process that takes the lease; `None` without leases.
    pub me: Option<LeaseHolder>,
    /// The volume.
    pub volume: VolumeId,
    /// Its name from now on.
    pub name: String,
    /// The volumes that exist for the requester; all if absent.
    pub of: Option<Wanted<'a>>,
}

impl Procedure for RestoreVolume<'_> {
    type Outcome = Result<CatalogEntry, VolumeError>;

    fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome> {
        Halt::caught(self.restore(facts))
    }
}

impl RestoreVolume<'_> {
    /// Whether another restoration may be about to give the volume another name. A slow deletion
    /// may have deleted the volume again meanwhile.
    fn is_second(&self, facts: &mut Facts<'_>, number: u64, newest: &Record) -> Result<bool, Halt> {
        let now = facts.now();
        let is_other = |record: &Record| {
            record.decision == Decision::Restored
                && record.spec.name != self.name
                && now < record.at.saturating_add(trash::HANDS_OFF)
        };
        if newest.decision == Decision::Restored {
            return Ok(is_other(newest));
        }
        if number < 3 || !read(facts, self.volume, number - 1)?.is_some_and(|old| is_other(&old)) {
            return Ok(false);
        }
        // At its end a restoration removes the records before its own.
        Ok(read(facts, self.volume, number - 2)?.is_some())
    }

    fn restore(&self, facts: &mut Facts<'_>) -> Result<CatalogEntry, Halt> {
        let RestoreVolume { me, volume, name, of } = self;
        check_volume_name(name).map_err(|error| invalid(error.to_string()))?;
        let Some((number, old)) = newest(facts, *volume)? else {
            return Err(VolumeError::NotFound.into());
        };
        if of.is_some_and(|wanted| !wanted(&old.spec.name)) {
            return Err(VolumeError::NotFound.into());
        }
        if old.spec.tenant() != tenant_of(name) {
            let why = match old.spec.tenant() {
                Some(tenant) => format!("it stays with its tenant: give it the name {tenant}/NAME"),
                None => "it has no tenant: give it a name without one".to_owned(),
            };
            return Err(invalid(why).into());
        }
        let spec = VolumeSpec { name: name.clone(), ..old.spec.clone() };
        let entry = CatalogEntry { spec: spec.clone(), sectors: old.sectors };
        match old.decision {
            Decision::Purged => return Err(VolumeError::NotFound.into()),
            Decision::Restored if is_named(facts, &old.spec)? => {
                if old.spec.name != *name {
                    return Err(VolumeError::NotFound.into());
                }
                // The restoration that gave it the name may not have looked for the parent yet.
                if !has_parent(facts, &spec)? {
                    return Err(orphan().into());
                }
                confirm(facts, number, &old, me.as_ref())?;
                return Ok(entry);
            }
            // The deletion stopped before it deleted the name.
            Decision::Deleted if is_named(facts, &old.spec)? && old.spec.name != *name => {
                let called = &old.spec.name;
                let why = "its deletion was cut short, and it is still called";
                return Err(invalid(format!("{why} {called}: restore it by that name")).into());
            }
            // The volume would have two names.
            Decision::Deleted | Decision::Restored if self.is_second(facts, number, &old)? => {
                return Err(contended());
            }
            // The record came after the removal of everything. With leases, each deleted volume has
            // at least a lease. Without leases, a deleted volume may have no objects at all.
            Decision::Deleted | Decision::Restored
                if (me.is_some() || old.decision == Decision::Restored)
                    && !is_upon(facts, number, &old)? =>
            {
                return Err(VolumeError::NotFound.into());
            }
            Decision::Deleted | Decision::Restored => {}
        }
        let (decision, at) = (Decision::Restored, facts.now());
        let record = Record { decision, at, spec: spec.clone(), sectors: old.sectors };
        let Some(number) = decide(facts, number, &record)? else { return Err(contended()) };
        let again = Record { decision: Decision::Deleted, ..old };
        let named = tenants::put_name_again(facts, &spec, entry.sectors, number);
        if let Err(NotCreated { error, .. }) = Halt::caught(named)? {
            // After a failure of the location, the name may be there.
            if !matches!(error, VolumeError::Store(_)) {
                take_back_record(facts, number, &again)?;
            }
            return Err(error.into());
        }
        let refused = match Halt::caught(has_parent(facts, &spec))? {
            Ok(true) => match newest(facts, *volume)? {
                // The record of this restoration, or of another one by the same name.
                Some((_, record)) if record.names(name) => None,
                // Another store has taken this restoration for an abandoned one.
                _ => Some(failed("it took too long; try again")),
            },
            Ok(false) => Some(orphan()),
            // The state is unknown, and a host may use the volume, so it keeps its name.
            Err(error) => return Err(error.into()),
        };
        if let Some(error) = refused {
            delete_name(facts, &spec)?;
            take_back_record(facts, number, &again)?;
            return Err(error.into());
        }
        reopen(facts, *volume, me.as_ref())?;
        prune(facts, *volume, number)?;
        Ok(entry)
    }
}

/// Ends a refused restoration: writes the record that the volume is deleted. This removes the
/// records before, so that nobody waits for the restoration.
fn take_back_record(facts: &mut Facts<'_>, restored: u64, again: &Record) -> Result<(), Halt> {
    if let Some(number) = decide(facts, restored, again)? {
        prune(facts, again.spec.id, number)?;
    }
    Ok(())
}

/// Opens a restored volume: the last step of a restoration, except for the removal of old records.
///
/// A volume without a name stays closed. A store that knows the volume from before its deletion
/// would open it otherwise, and a host would write to a deleted volume. If another store has
/// deleted the volume again meanwhile, this closes it again.
fn reopen(facts: &mut Facts<'_>, volume: VolumeId, me: Option<&LeaseHolder>) -> Result<(), Halt> {
    let Some(me) = me else { return Ok(()) };
    let Some(number) = claim::reopen(facts, volume, me)? else { return Ok(()) };
    if newest(facts, volume)?.is_some_and(|(_, record)| record.decision == Decision::Deleted) {
        claim::close(facts, volume, number)?;
    }
    if is_gone(facts, volume)? {
        // The removal of everything may have come before these leases, which then are left.
        for number in [number, number.saturating_add(1)] {
            facts.discard(&lease::key(volume, number))?;
        }
    }
    Ok(())
}

/// Confirms a restoration of another request, after which this request may succeed. The other one
/// may find its tenant over a limit and take the name back. Both would write the next record, so
/// only one of the two counts.
fn confirm(
    facts: &mut Facts<'_>,
    number: u64,
    restored: &Record,
    me: Option<&LeaseHolder>,
) -> Result<(), Halt> {
    let Record { spec, sectors, .. } = restored;
    // A restoration removes the record before its own at its end. It takes nothing back then.
    if spec.tenant().is_none() || number < 2 || read(facts, spec.id, number - 1)?.is_none() {
        return reopen(facts, spec.id, me);
    }
    tenants::allow_volume(facts, spec, *sectors)?;
    let record = Record { at: facts.now(), ..restored.clone() };
    let Some(number) = decide(facts, number, &record)? else { return Err(contended()) };
    reopen(facts, spec.id, me)?;
    prune(facts, spec.id, number)?;
    Ok(())
}

fn orphan() -> VolumeError {
    invalid("it is a clone, and the volume that it shares data with is deleted: restore that first")
}

/// Fails if a volume has lost its name, or is about to. A store may still take back a restoration
/// while the record before it exists.
pub(super) fn check_stays(facts: &mut Facts<'_>, spec: &VolumeSpec) -> Result<(), Halt> {
    let goes = match newest(facts, spec.id)? {
        None => false,
        Some((number, record)) if record.decision == Decision::Restored => {
            if number > 1 && read(facts, spec.id, number - 1)?.is_some() {
                return Err(contended());
            }
            false
        }
        Some(_) => true,
    };
    if goes || !is_named(facts, spec)? {
        return Err(invalid(format!("{} is deleted: restore it first", spec.name)).into());
    }
    Ok(())
}

/// Whether every volume that a clone shares data with has a name, and no record says that it goes.
/// True for a volume that is no clone.
///
/// A look at the nearest one is not enough. If a store restores that one, it has its name before
/// the store has looked for the others.
pub(super) fn has_parent(facts: &mut Facts<'_>, spec: &VolumeSpec) -> Result<bool, Halt> {
    if spec.parents.is_empty() {
        return Ok(true);
    }
    for parent in &spec.parents {
        let going = newest(facts, parent.volume)?;
        if going.is_some_and(|(_, record)| record.decision != Decision::Restored) {
            return Ok(false);
        }
    }
    let (specs, damaged) = names::sound_and_damaged(facts, VOLUMES_PREFIX)?;
    let named = |volume: VolumeId| specs.iter().any(|spec| spec.id == volume);
    if spec.parents.iter().all(|parent| named(parent.volume)) {
        return Ok(true);
    }
    match damaged.first() {
        // The damaged description may be that of a parent.
        Some(key) => {
            Err(failed(format!("{key} is damaged: bring that back from a copy first")).into())
        }
        None => Ok(false),
    }
}

/// Whether something is left of the volume of a record. The removal of everything ends with the
/// record before the newest one. So if that record exists, something is left. A restoration removes
/// the older records, too. So without that record the objects of the volume tell, except for a
/// purge.
fn is_upon(facts: &mut Facts<'_>, number: u64, record: &Record) -> Result<bool, Halt> {
    let id = record.spec.id;
    if number > 1 && read(facts, id, number - 1)?.is_some() {
        return Ok(true);
    }
    Ok(record.decision != Decision::Purged && !is_removed(facts, id)?)
}

/// Whether a volume has no object, apart from its name and its records.
fn is_removed(facts: &mut Facts<'_>, volume: VolumeId) -> Result<bool, Halt> {
    Ok(facts.list(&catalog::volume_prefix(volume))?.map_err(failed)?.is_empty())
}

/// The outcome of a step for a volume with a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tended {
    /// Nothing to do before this time, in seconds since 1970.
    Wait(u64),
    /// Nothing more to do.
    Nothing,
    /// The store has removed its data.
    Removed(VolumeSpec),
    /// The deletion had stopped halfway, and the volume keeps its name.
    Kept,
}

/// Takes the next step for a volume with a record, if it is time. If the store cannot read or write
/// the objects, a later call continues.
#[derive(Clone, Debug)]
pub struct TendVolume {
    /// The process that takes the lease if the volume keeps its name; `None` without leases.
    pub me: Option<LeaseHolder>,
    /// The volume.
    pub volume: VolumeId,
    /// The time in seconds that data stays after the deletion.
    pub grace: u64,
    /// The present time in seconds since 1970.
    pub now: u64,
}

impl Procedure for TendVolume {
    type Outcome = Result<Tended, VolumeError>;

    fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome> {
        Halt::caught(self.tend(facts))
    }
}

impl TendVolume {
    fn tend(&self, facts: &mut Facts<'_>) -> Result<Tended, Halt> {
        let TendVolume { ref me, volume, grace, now } = *self;
        let Some((number, record)) = newest(facts, volume)? else { return Ok(Tended::Nothing) };
        let named = is_named(facts, &record.spec)?;
        let before = match named {
            true => number > 1 && read(facts, volume, number - 1)?.is_some(),
            false => is_upon(facts, number, &record)?,
        };
        match record.next(now, grace, named, before) {
            Next::Wait(at) => Ok(Tended::Wait(at)),
            Next::Nothing => Ok(Tended::Nothing),
            Next::Purge => purge(facts, volume, Some(number)),
            Next::Keep => {
                if let Some(me) = me {
                    claim::reopen(facts, volume, me)?;
                }
                keep(facts, volume)?;
                Ok(Tended::Kept)
            }
            Next::Confirm => {
                if has_parent(facts, &record.spec)? {
                    reopen(facts, volume, me.as_ref())?;
                    prune(facts, volume, number)?;
                    return Ok(Tended::Nothing);
                }
                delete_name(facts, &record.spec)?;
                let record = Record { decision: Decision::Deleted, at: now, ..record };
                decide(facts, number, &record)?;
                Ok(Tended::Wait(record.at.saturating_add(grace)))
            }
            Next::TakeBack => {
                let record = Record { decision: Decision::Deleted, at: now, ..record };
                decide(facts, number, &record)?;
                Ok(Tended::Wait(record.at.saturating_add(grace)))
            }
            Next::Forget => {
                facts.delete(&trash::key(volume, number))?.map_err(failed)?;
                Ok(Tended::Nothing)
            }
            Next::Remove => remove(facts, record.spec),
        }
    }
}

/// Decides that the data of a deleted volume goes. It fails if no such deleted volume exists, a
/// clone needs the data, or the store cannot read or write the objects.
#[derive(Clone)]
pub struct CondemnVolume<'a> {
    /// The volume.
    pub volume: VolumeId,
    /// The volumes that exist for the requester; all if absent.
    pub of: Option<Wanted<'a>>,
}

impl Procedure for CondemnVolume<'_> {
    type Outcome = Result<VolumeSpec, VolumeError>;

    fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome> {
        Halt::caught(condemn(facts, self.volume, self.of, None))
    }
}

/// Writes the record that the data of a deleted volume goes. With a number in `upon`, it does so
/// only while that record is the newest one.
fn condemn(
    facts: &mut Facts<'_>,
    volume: VolumeId,
    of: Option<Wanted<'_>>,
    upon: Option<u64>,
) -> Result<VolumeSpec, Halt> {
    for _ in 0..ATTEMPTS {
        let Some((number, record)) = newest(facts, volume)? else { break };
        if of.is_some_and(|wanted| !wanted(&record.spec.name)) {
            break;
        }
        match record.decision {
            Decision::Purged => return Ok(record.spec),
            Decision::Restored => break,
            // Somebody has restored and deleted the volume since.
            Decision::Deleted if upon.is_some_and(|upon| upon != number) => break,
            Decision::Deleted if is_named(facts, &record.spec)? => break,
            Decision::Deleted => {}
        }
        let named = names::specs_of(facts, VOLUMES_PREFIX)?;
        // A late put may have brought back a name that an older record has.
        if named.iter().any(|spec| spec.id == volume) {
            break;
        }
        // A clone may have got its name from a store that died before it looked for its parent.
        no_clones_among(&named, volume)?;
        let record = Record { decision: Decision::Purged, at: facts.now(), ..record };
        if decide(facts, number, &record)?.is_some() {
            return Ok(record.spec);
        }
    }
    Err(VolumeError::NotFound.into())
}

/// Fails if a volume has clones with names. `clones` are those in its log. Without them, the
/// descriptions of all volumes tell.
fn needs_nobody(
    facts: &mut Facts<'_>,
    spec: &VolumeSpec,
    clones: Option<&BTreeSet<VolumeId>>,
) -> Result<(), Halt> {
    match clones {
        Some(clones) => has_no_clones(facts, spec.tenant(), clones),
        None => has_no_named_clones(facts, spec.id),
    }
}

/// Fails if the description of a volume with a name says that it shares data with this one.
fn has_no_named_clones(facts: &mut Facts<'_>, volume: VolumeId) -> Result<(), Halt> {
    no_clones_among(&names::specs_of(facts, VOLUMES_PREFIX)?, volume)
}

/// Fails if one of these volumes shares the data of another: a clone of it, or a clone of a clone.
fn no_clones_among(specs: &[VolumeSpec], volume: VolumeId) -> Result<(), Halt> {
    let begins = |spec: &&VolumeSpec| spec.parents.iter().any(|parent| parent.volume == volume);
    let clones: Vec<&str> = specs.iter().filter(begins).map(|spec| spec.name.as_str()).collect();
    if clones.is_empty() {
        return Ok(());
    }
    Err(invalid(format!("clones of it share its data: delete {} first", clones.join(", "))).into())
}

/// Decides that the data of a deleted volume goes, and removes it. It takes some milliseconds for
/// each few segments, minutes for a large volume.
#[derive(Clone, Copy, Debug)]
pub struct PurgeVolume(pub VolumeId);

impl Procedure for PurgeVolume {
    type Outcome = Result<Tended, VolumeError>;

    fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome> {
        Halt::caught(purge(facts, self.0, None))
    }
}

fn purge(facts: &mut Facts<'_>, volume: VolumeId, upon: Option<u64>) -> Result<Tended, Halt> {
    match Halt::caught(condemn(facts, volume, None, upon))? {
        Ok(spec) => remove(facts, spec),
        Err(VolumeError::NotFound) => Ok(Tended::Nothing),
        Err(error) => Err(error.into()),
    }
}

/// Removes all objects of a volume after the decision: its data, its name, and its records. The
/// newest record goes last.
fn remove(facts: &mut Facts<'_>, spec: VolumeSpec) -> Result<Tended, Halt> {
    remove_data(facts, spec.id)?;
    // A restoration that came too late may have died before it could take the name back.
    delete_name(facts, &spec)?;
    let list = facts.list(&trash::prefix(spec.id))?.map_err(failed)?;
    let mut keys: Vec<&str> = list.iter().map(|meta| meta.key.as_str()).collect();
    keys.sort_unstable();
    for key in keys {
        facts.delete(key)?.map_err(failed)?;
    }
    Ok(Tended::Removed(spec))
}
