//! Finds the volumes that are deleted and still have data.

use super::records::{decoded, known};
use super::{Facts, Halt, Known, Note, Procedure, READ_AT_ONCE, names};
use crate::block::VolumeId;
use crate::store::VolumeSpec;
use crate::store::object::StorageError;
use crate::store::trash::{self, Decision};
use crate::wire::link::{DeletedInfo, MAX_DELETED_LISTED, VolumeError};
use std::collections::BTreeMap;

/// Finds the volumes with records, whatever these say, and the numbers of the newest.
#[derive(Clone, Copy, Debug)]
pub struct FindRecords;

impl Procedure for FindRecords {
    type Outcome = Result<BTreeMap<VolumeId, u64>, StorageError>;

    fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome> {
        known(facts)
    }
}

/// Lists deleted volumes by identity, and says whether there are more.
#[derive(Clone)]
pub struct ListDeleted<'a> {
    /// Those after this one.
    pub after: VolumeId,
    /// The time in seconds that data stays.
    pub grace: u64,
    /// Only these.
    pub wanted: &'a (dyn Fn(&VolumeSpec) -> bool + Sync),
}

impl Procedure for ListDeleted<'_> {
    type Outcome = Result<(Vec<DeletedInfo>, bool), VolumeError>;

    fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome> {
        Halt::caught(list(facts, self.after, self.grace, self.wanted))
    }
}

pub(super) fn list(
    facts: &mut Facts<'_>,
    after: VolumeId,
    grace: u64,
    wanted: &dyn Fn(&VolumeSpec) -> bool,
) -> Result<(Vec<DeletedInfo>, bool), Halt> {
    let all = known(facts)?.map_err(VolumeError::from)?;
    let mut keys = all.into_iter().filter(|(volume, _)| *volume > after);
    let mut found = Vec::new();
    loop {
        // So many at a time that a short list needs no more than it shows.
        let some: Vec<(VolumeId, String)> = keys
            .by_ref()
            .take(MAX_DELETED_LISTED)
            .map(|(volume, number)| (volume, trash::key(volume, number)))
            .collect();
        if some.is_empty() {
            return Ok((found, false));
        }
        let names: Vec<String> = some.iter().map(|(_, key)| key.clone()).collect();
        let read = facts.get_all(&names, READ_AT_ONCE)?.map_err(VolumeError::from)?;
        let mut records = Vec::new();
        for ((volume, key), read) in some.into_iter().zip(read) {
            match decoded(&key, read) {
                Ok(Some(record)) if record.decision == Decision::Purged => {}
                Ok(Some(record)) if wanted(&record.spec) => records.push(record),
                Ok(_) => {}
                // The damage costs its own volume and no other. It is no outage, in which the store
                // knows nothing.
                Err(Halt::Failed(VolumeError::Invalid(reason))) => {
                    let why = format!("deleted volume {volume} cannot be listed: {reason}");
                    facts.note(Note::Error(why));
                }
                Err(error) => return Err(error),
            }
        }
        let names: Vec<&str> = records.iter().map(|record| record.spec.name.as_str()).collect();
        let named = names::named_all(facts, &names)?;
        for (record, named) in records.into_iter().zip(named) {
            if named.is_some_and(|there| there.id == record.spec.id) {
                continue;
            }
            if found.len() == MAX_DELETED_LISTED {
                return Ok((found, true));
            }
            found.push(record.info(record.at.saturating_add(grace)));
        }
    }
}
