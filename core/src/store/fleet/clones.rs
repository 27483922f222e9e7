//! A clone: noted in the log of its parent, given a name, and confirmed with the parent.

use super::listing::CatalogEntry;
use super::names::{NotCreated, delete_name};
use super::{ATTEMPTS, Facts, Halt, Known, Procedure, failed, tenants};
use crate::block::VolumeId;
use crate::store::VolumeSpec;
use crate::store::tenant::split;
use crate::wire::link::{SnapshotOperation, SnapshotReply, VolumeError};
use std::time::Duration;

/// Pause before the next question to a parent, which moves from store to store in that time.
const PAUSE: Duration = Duration::from_millis(500);

/// Makes a clone of a snapshot.
///
/// It fails if the snapshot does not exist, another volume has the name, or the tenant may not have
/// the volume. It also fails if the store cannot read or write the objects. A repetition with the
/// same identity continues the work.
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
    /// Has the parent's log note the clone, unless it does.
    fn note(&self, facts: &mut Facts<'_>) -> Result<SnapshotReply, Halt> {
        // The log has names as the tenant has them.
        let clone = split(&self.name).1.to_owned();
        let (snapshot, id) = (self.snapshot.clone(), self.id);
        let operation = SnapshotOperation::Clone { snapshot, clone, id };
        Ok(facts.engine(self.parent.id, operation)??)
    }

    fn make(&self, facts: &mut Facts<'_>) -> Result<CatalogEntry, Halt> {
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
        let named = tenants::put_name(facts, &entry.spec, sectors);
        match Halt::caught(named)? {
            Ok(()) => {}
            // An earlier attempt, whose request may be some time old.
            Err(NotCreated { taken: Some(there), .. }) if there.spec.id == self.id => {
                (entry, fresh) = (*there, false);
            }
            Err(NotCreated { error, taken }) => {
                if taken.is_some() {
                    // If this fails, the parent keeps more than it has to.
                    let forget = SnapshotOperation::Forget { id: self.id };
                    let _ = facts.engine(self.parent.id, forget)?;
                }
                return Err(error.into());
            }
        }
        // Meanwhile another store may have taken over, and the snapshot may be gone. Unless the
        // present log notes the clone, the clone does not exist.
        let Err(error) = self.confirm(facts)? else { return Ok(entry) };
        // Hosts may use the clone of an earlier attempt. With an unknown state the store takes
        // nothing back.
        if fresh
            && !matches!(error, VolumeError::Store(_))
            && let Err(why) = Halt::caught(delete_name(facts, &entry.spec))?
        {
            let name = &self.name;
            let why = format!("{error}; and the volume {name} is to be deleted: {why}");
            return Err(failed(why).into());
        }
        Err(error.into())
    }

    /// Asks once more whether the log notes the clone, until it has an answer.
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
