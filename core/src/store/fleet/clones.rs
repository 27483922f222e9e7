//! Makes a clone. The log of the parent notes the clone, the clone gets its name, and then the
//! parent confirms it.

use super::listing::CatalogEntry;
use super::names::{NotCreated, delete_name};
use super::{ATTEMPTS, Facts, Halt, Known, Procedure, deletion, failed, invalid, listing, tenants};
use crate::block::VolumeId;
use crate::store::VolumeSpec;
use crate::store::catalog::name_key;
use crate::store::tenant::split;
use crate::wire::link::{SnapshotOperation, SnapshotReply, VolumeError};
use std::time::Duration;

/// Pause before the next question to the engine of a parent. The parent may move to another store
/// in that time.
const PAUSE: Duration = Duration::from_millis(500);

/// Makes a clone of a snapshot.
///
/// It fails if the snapshot does not exist, another volume has the name, or the tenant may not have
/// the volume. It also fails if the store cannot read or write the objects. A repetition with the
/// same identity continues the work. It fails if somebody has deleted the clone meanwhile.
#[derive(Clone, Debug)]
pub struct CloneVolume {
    /// The volume that has the snapshot.
    pub parent: VolumeSpec,
    /// The snapshot.
    pub snapshot: String,
    /// The name of the clone, with that of its tenant.
    pub name: String,
    /// The identity of the clone, drawn at random.
    pub id: VolumeId,
}

impl Procedure for CloneVolume {
    type Outcome = Result<CatalogEntry, VolumeError>;

    fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome> {
        Halt::caught(self.make(facts))
    }
}

impl CloneVolume {
    /// Has the engine of the parent note the clone in its log, unless the log has it already.
    fn note(&self, facts: &mut Facts<'_>) -> Result<SnapshotReply, Halt> {
        // The log has names without the tenant.
        let clone = split(&self.name).1.to_owned();
        let (snapshot, id) = (self.snapshot.clone(), self.id);
        let operation = SnapshotOperation::Clone { snapshot, clone, id };
        Ok(facts.engine(self.parent.id, operation)??)
    }

    /// Takes the clone out of the log of the parent. If this fails, the parent keeps data that no
    /// clone needs.
    fn forget(&self, facts: &mut Facts<'_>) -> Known<()> {
        let _ = facts.engine(self.parent.id, SnapshotOperation::Forget { id: self.id })?;
        Ok(())
    }

    /// Fails if a store has deleted the clone, or restored it by another name. A repeated request
    /// must not bring a deleted clone back. The procedure checks this before it puts the name, and
    /// once more afterward.
    fn was_not_deleted(&self, facts: &mut Facts<'_>, spec: &VolumeSpec) -> Result<(), Halt> {
        if deletion::is_otherwise(facts, spec)? {
            let why = "this clone was made, and deleted: restore it, or make another one";
            return Err(invalid(why).into());
        }
        Ok(())
    }

    /// Fails if the parent is a clone itself, and a volume that it shares data with is gone or
    /// about to go. A restored parent gets its name before its store has looked for that volume.
    /// The procedure checks this before it puts the name, and once more afterward.
    fn parent_is_whole(&self, facts: &mut Facts<'_>) -> Result<(), Halt> {
        if deletion::has_parent(facts, &self.parent)? {
            return Ok(());
        }
        let why = "the parent shares data with a volume that is deleted: restore that first";
        Err(invalid(why).into())
    }

    fn make(&self, facts: &mut Facts<'_>) -> Result<CatalogEntry, Halt> {
        self.parent_is_whole(facts)?;
        let SnapshotReply::Pinned { sectors, parents } = self.note(facts)? else {
            return Err(failed("the parent has not named the first segment of the clone").into());
        };
        let spec = VolumeSpec {
            id: self.id,
            name: self.name.clone(),
            created_sectors: sectors,
            block_bytes: self.parent.block_bytes,
            created: facts.now(),
            parents,
        };
        let mut entry = CatalogEntry { spec, sectors };
        let mut fresh = true;
        // An earlier attempt may have given the clone its name.
        let there = Halt::caught(listing::entry(facts, &name_key(&self.name)))?;
        let there = there.map_err(VolumeError::from)?;
        let named = match there.filter(|there| there.spec.id == self.id) {
            Some(there) => {
                (entry, fresh) = (there, false);
                Ok(())
            }
            None => {
                self.was_not_deleted(facts, &entry.spec)?;
                Halt::caught(tenants::put_name(facts, &entry.spec, sectors))?
            }
        };
        match named {
            Ok(()) => {}
            Err(NotCreated { taken: Some(there), .. }) if there.spec.id == self.id => {
                (entry, fresh) = (*there, false);
            }
            Err(NotCreated { error, taken }) => {
                if taken.is_some() {
                    self.forget(facts)?;
                }
                return Err(error.into());
            }
        }
        if entry.spec.parents.first().is_none_or(|parent| parent.volume != self.parent.id) {
            self.forget(facts)?;
            let (name, parent) = (&self.name, &self.parent.name);
            let why = format!("{name} is a clone of another volume that was called {parent}");
            return Err(invalid(format!("{why}: give this one another name")).into());
        }
        // Another store may have taken the parent meanwhile, and the snapshot may be gone. The
        // clone exists only if the present log of the parent has it.
        let error = match self.confirm(facts)? {
            Err(error) => error,
            Ok(()) => {
                if !fresh {
                    // The name may be that of a restoration.
                    deletion::check_stays(facts, &entry.spec)?;
                } else if let Err(error) = Halt::caught(self.was_not_deleted(facts, &entry.spec))? {
                    if !matches!(error, VolumeError::Store(_)) {
                        delete_name(facts, &entry.spec)?;
                    }
                    return Err(error.into());
                }
                // An engine that another store has overtaken confirms a clone of a volume that is
                // deleted.
                let looked = Halt::caught(deletion::check_stays(facts, &self.parent))?;
                match looked.and(Halt::caught(self.parent_is_whole(facts))?) {
                    Err(error) => error,
                    Ok(()) => return Ok(entry),
                }
            }
        };
        // Hosts may use the clone of an earlier attempt, so it keeps its name. So does any clone if
        // the state of the parent is unknown.
        if fresh
            && !matches!(error, VolumeError::Store(_))
            && let Err(why) = Halt::caught(deletion::take_back(facts, &entry))?
        {
            let name = &self.name;
            let why = format!("{error}; and the volume {name} is to be deleted: {why}");
            return Err(failed(why).into());
        }
        Err(error.into())
    }

    /// Asks the engine of the parent whether its log still has the clone. After a failure it asks
    /// again, [`ATTEMPTS`] times at most.
    fn confirm(&self, facts: &mut Facts<'_>) -> Result<Result<(), VolumeError>, Halt> {
        for _ in 1..ATTEMPTS {
            match Halt::caught(self.note(facts))? {
                Err(VolumeError::Store(_)) => facts.pause(PAUSE)?,
                result => return Ok(result.map(drop)),
            }
        }
        Ok(Halt::caught(self.note(facts))?.map(drop))
    }
}
