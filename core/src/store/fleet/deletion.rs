//! The fate of a deleted volume: its data stays for a time, then the data goes, unless the volume
//! gets a name again.
//!
//! A record ([`trash`]) decides each step, and the store executes the step afterward. If a store
//! dies, the next store that looks finds the open step. A record counts if the record that it
//! builds on still exists. Only the removal of everything removes the newest record, and then the
//! store knows that it is too late.
//!
//! A deleted clone does not hold its parent. The deletion of a parent writes its record first, and
//! looks for clones afterward. The restoration of a clone writes its name first, and looks for its
//! parent's record afterward. So at least one of the two sees the other. No volume loses the data
//! of its parent.

use super::claim::{self, LeaseHolder};
use super::listing::{CatalogEntry, remove_data};
use super::names::{self, NotCreated, delete_name, has_no_clones, is_named};
use super::records::{contended, decide, newest, prune, read};
use super::{ATTEMPTS, Facts, Halt, Known, Procedure, failed, invalid, tenants};
use crate::block::VolumeId;
use crate::store::VolumeSpec;
use crate::store::catalog::VOLUMES_PREFIX;
use crate::store::tenant::{check_volume_name, tenant_of};
use crate::store::trash::{self, Decision, Next, Record};
use crate::wire::link::VolumeError;
use std::collections::BTreeSet;

/// The names of the volumes that exist for the requester.
pub type Wanted<'a> = &'a (dyn Fn(&str) -> bool + Sync);

/// Decides that a volume is deleted, if there is no such decision.
fn begin(facts: &mut Facts<'_>, entry: &CatalogEntry) -> Result<(), Halt> {
    let CatalogEntry { spec, sectors } = entry;
    for _ in 0..ATTEMPTS {
        let number = match newest(facts, spec.id)? {
            Some((_, Record { decision: Decision::Deleted, .. })) => return Ok(()),
            Some((_, Record { decision: Decision::Purged, .. })) => break,
            Some((number, _)) => number,
            None => 0,
        };
        let (decision, at) = (Decision::Deleted, facts.now());
        let record = Record { decision, at, spec: spec.clone(), sectors: *sectors };
        if decide(facts, number, &record)?.is_some() {
            return Ok(());
        }
    }
    Err(contended())
}

/// Deletes a volume that no engine has open: its data stays, and an operator can restore it.
///
/// It fails if the volume is gone already, if it has clones, or if the store cannot read or write
/// the objects. The volume then still exists, or exists again after a minute, unless someone
/// deletes it again.
#[derive(Clone, Debug)]
pub struct DeleteVolume {
    /// The volume.
    pub entry: CatalogEntry,
    /// The lease by which it is this store's, if there are leases.
    pub lease: Option<u64>,
    /// The clones that its log knows of.
    pub clones: BTreeSet<VolumeId>,
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
            // Another store has done it, and another volume may have its name.
            let newest = newest(facts, spec.id)?;
            let deleted = newest.is_some_and(|(_, record)| record.decision == Decision::Deleted);
            return if deleted { Ok(()) } else { Err(VolumeError::NotFound.into()) };
        }
        has_no_clones(facts, spec.tenant(), clones)?;
        begin(facts, entry)?;
        if let Err(error) = Halt::caught(has_no_clones(facts, spec.tenant(), clones))? {
            keep(facts, spec.id)?;
            return Err(error.into());
        }
        if let Some(number) = *lease {
            claim::close(facts, spec.id, number)?;
        }
        delete_name(facts, spec)?;
        // A store that took the deletion for an abandoned one has changed that meanwhile. A store
        // that did not may have removed it.
        match newest(facts, spec.id)? {
            Some((_, Record { decision: Decision::Restored, .. })) => begin(facts, entry),
            _ => Ok(()),
        }
    }
}

/// The deletion fails: the volume has its name.
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
/// missing. It also fails if the store cannot read or write the objects. A repetition continues the
/// work.
#[derive(Clone)]
pub struct RestoreVolume<'a> {
    /// Takes its lease, if there are leases.
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
                let same = old.spec.name == *name;
                return if same { Ok(entry) } else { Err(VolumeError::NotFound.into()) };
            }
            // The deletion failed in the end.
            Decision::Deleted if is_named(facts, &old.spec)? && old.spec.name != *name => {
                let called = &old.spec.name;
                let why = "its deletion was cut short, and it is still called";
                return Err(invalid(format!("{why} {called}: restore it by that name")).into());
            }
            Decision::Deleted | Decision::Restored => {}
        }
        let (decision, at) = (Decision::Restored, facts.now());
        let record = Record { decision, at, spec: spec.clone(), sectors: old.sectors };
        let Some(number) = decide(facts, number, &record)? else { return Err(contended()) };
        let again = Record { decision: Decision::Deleted, ..old };
        if let Some(me) = me {
            claim::reopen(facts, *volume, me)?;
        }
        let named = tenants::put_name(facts, &spec, entry.sectors);
        if let Err(NotCreated { error, .. }) = Halt::caught(named)? {
            // Else it may be there.
            if !matches!(error, VolumeError::Store(_)) {
                decide(facts, number, &again)?;
            }
            return Err(error.into());
        }
        let refused = match Halt::caught(has_parent(facts, &spec))? {
            Ok(true) => match newest(facts, *volume)? {
                Some((newest, _)) if newest == number => None,
                // Another store took the restoration for an abandoned one.
                _ => Some(failed("it took too long; try again")),
            },
            Ok(false) => Some(invalid(
                "it is a clone, and the volume that it shares data with is deleted: restore that \
                 first",
            )),
            Err(error) => Some(error),
        };
        if let Some(error) = refused {
            delete_name(facts, &spec)?;
            decide(facts, number, &again)?;
            return Err(error.into());
        }
        prune(facts, *volume, number)?;
        Ok(entry)
    }
}

/// Whether the volume is there that a clone begins with, and stays; true of a volume that is no
/// clone.
fn has_parent(facts: &mut Facts<'_>, spec: &VolumeSpec) -> Result<bool, Halt> {
    let Some(parent) = spec.parents.first() else { return Ok(true) };
    let going = newest(facts, parent.volume)?;
    if going.is_some_and(|(_, record)| record.decision != Decision::Restored) {
        return Ok(false);
    }
    let specs = names::specs_of(facts, VOLUMES_PREFIX)?;
    Ok(specs.iter().any(|spec| spec.id == parent.volume))
}

/// The outcome for a volume with a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tended {
    /// Nothing to do before that second.
    Wait(u64),
    /// Nothing more to do.
    Nothing,
    /// The store has removed its data.
    Removed(VolumeSpec),
    /// The deletion had stopped halfway, and the volume stays.
    Kept,
}

/// Takes the next step for a volume with a record, if it is time. If the store cannot read or write
/// the objects, a later call continues.
#[derive(Clone, Debug)]
pub struct TendVolume {
    /// Takes its lease, if it stays and there are leases.
    pub me: Option<LeaseHolder>,
    /// The volume.
    pub volume: VolumeId,
    /// The time in seconds that data stays after the deletion.
    pub grace: u64,
    /// The time that it is.
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
        let before = number > 1 && read(facts, volume, number - 1)?.is_some();
        match record.next(now, grace, named, before) {
            Next::Wait(at) => Ok(Tended::Wait(at)),
            Next::Nothing => Ok(Tended::Nothing),
            Next::Purge => purge(facts, volume),
            Next::Keep => {
                if let Some(me) = me {
                    claim::reopen(facts, volume, me)?;
                }
                keep(facts, volume)?;
                Ok(Tended::Kept)
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

/// Decides that the data of a deleted volume goes. It fails if no such deleted volume exists, or
/// the store cannot read or write the objects.
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
        Halt::caught(condemn(facts, self.volume, self.of))
    }
}

fn condemn(
    facts: &mut Facts<'_>,
    volume: VolumeId,
    of: Option<Wanted<'_>>,
) -> Result<VolumeSpec, Halt> {
    for _ in 0..ATTEMPTS {
        let Some((number, record)) = newest(facts, volume)? else { break };
        if of.is_some_and(|wanted| !wanted(&record.spec.name)) {
            break;
        }
        match record.decision {
            Decision::Purged => return Ok(record.spec),
            Decision::Restored => break,
            Decision::Deleted if is_named(facts, &record.spec)? => break,
            Decision::Deleted => {}
        }
        // A clone may have got its name from a store that died before it looked for its parent.
        let clones = clones_of(facts, volume)?;
        if !clones.is_empty() {
            let clones = clones.join(", ");
            return Err(
                invalid(format!("clones of it share its data: delete {clones} first")).into()
            );
        }
        let record = Record { decision: Decision::Purged, at: facts.now(), ..record };
        if decide(facts, number, &record)?.is_some() {
            return Ok(record.spec);
        }
    }
    Err(VolumeError::NotFound.into())
}

/// The names of the volumes that begin with what is in this one.
fn clones_of(facts: &mut Facts<'_>, volume: VolumeId) -> Result<Vec<String>, Halt> {
    let begins = |spec: &VolumeSpec| spec.parents.iter().any(|parent| parent.volume == volume);
    let specs = names::specs_of(facts, VOLUMES_PREFIX)?.into_iter();
    Ok(specs.filter(begins).map(|spec| spec.name).collect())
}

/// Removes the data of a deleted volume. It takes some milliseconds for each few segments, minutes
/// for a large volume.
#[derive(Clone, Copy, Debug)]
pub struct PurgeVolume(pub VolumeId);

impl Procedure for PurgeVolume {
    type Outcome = Result<Tended, VolumeError>;

    fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome> {
        Halt::caught(purge(facts, self.0))
    }
}

fn purge(facts: &mut Facts<'_>, volume: VolumeId) -> Result<Tended, Halt> {
    match Halt::caught(condemn(facts, volume, None))? {
        Ok(spec) => remove(facts, spec),
        Err(VolumeError::NotFound) => Ok(Tended::Nothing),
        Err(error) => Err(error.into()),
    }
}

/// Removes all objects of a volume after that decision: the records last, and of these the newest
/// last.
fn remove(facts: &mut Facts<'_>, spec: VolumeSpec) -> Result<Tended, Halt> {
    remove_data(facts, spec.id)?;
    let list = facts.list(&trash::prefix(spec.id))?.map_err(failed)?;
    let mut keys: Vec<&str> = list.iter().map(|meta| meta.key.as_str()).collect();
    keys.sort_unstable();
    for key in keys {
        facts.delete(key)?.map_err(failed)?;
    }
    Ok(Tended::Removed(spec))
}
