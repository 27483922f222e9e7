//! Reads and writes the records of the decisions about deleted volumes ([`trash`]).

use super::{ATTEMPTS, Facts, Halt, Known, Note, failed, invalid};
use crate::block::VolumeId;
use crate::store::object::{GetError, ObjectMeta, PutError, StorageError};
use crate::store::trash::{self, Decision, Record, TRASH_PREFIX};
use crate::wire::link::VolumeError;
use bytes::Bytes;
use std::collections::BTreeMap;

/// The volumes with records, whatever their content, and the number of the newest record of each.
pub(super) fn known(facts: &mut Facts<'_>) -> Known<Result<BTreeMap<VolumeId, u64>, StorageError>> {
    Ok(facts.list(TRASH_PREFIX)?.map(newest_of))
}

fn newest_of(list: &[ObjectMeta]) -> BTreeMap<VolumeId, u64> {
    let mut found: BTreeMap<VolumeId, u64> = BTreeMap::new();
    for (volume, number) in list.iter().filter_map(|meta| trash::parse_key(&meta.key)) {
        let newest = found.entry(volume).or_default();
        *newest = number.max(*newest);
    }
    found
}

/// The newest record of a volume, and its number.
pub(super) fn newest(
    facts: &mut Facts<'_>,
    volume: VolumeId,
) -> Result<Option<(u64, Record)>, Halt> {
    for _ in 0..ATTEMPTS {
        let list = facts.list(&trash::prefix(volume))?.map_err(failed)?;
        let Some(number) = newest_of(list).remove(&volume) else { return Ok(None) };
        // A missing record means a removal meanwhile, or a list that lags behind.
        if let Some(record) = read(facts, volume, number)? {
            return Ok(Some((number, record)));
        }
    }
    Ok(None)
}

/// Whether a volume without a name has no data, or its data goes. The removal ends with the
/// newest record.
pub(super) fn is_gone(facts: &mut Facts<'_>, volume: VolumeId) -> Result<bool, Halt> {
    let newest = newest(facts, volume)?;
    Ok(newest.is_none_or(|(_, record)| record.decision == Decision::Purged))
}

pub(super) fn read(
    facts: &mut Facts<'_>,
    volume: VolumeId,
    number: u64,
) -> Result<Option<Record>, Halt> {
    let key = trash::key(volume, number);
    decoded(&key, facts.get(&key)?)
}

pub(super) fn decoded(key: &str, read: Result<Bytes, GetError>) -> Result<Option<Record>, Halt> {
    match read {
        Ok(bytes) => Ok(Some(Record::decode(key, &bytes).map_err(|e| invalid(e.to_string()))?)),
        Err(GetError::Damaged(reason)) => Err(VolumeError::Invalid(reason).into()),
        Err(GetError::NotFound) => Ok(None),
        Err(error) => Err(failed(error).into()),
    }
}

/// Writes the record after number `upon`, which is 0 if the volume has no record. Returns the
/// number of the new record. Returns `None` if another store has decided meanwhile, or has removed
/// everything.
pub(super) fn decide(
    facts: &mut Facts<'_>,
    upon: u64,
    record: &Record,
) -> Result<Option<u64>, Halt> {
    let number = upon.saturating_add(1);
    let key = trash::key(record.spec.id, number);
    let data = Bytes::from(record.encode());
    let mut result = facts.put(&key, data.clone())?;
    if let Err(PutError::Failed(_)) = result {
        // The object may exist all the same, perhaps not durably. A second put settles that.
        result = facts.put(&key, data.clone())?;
    }
    match result {
        Ok(()) => {}
        Err(PutError::Failed(error)) => return Err(VolumeError::from(error).into()),
        // If the answer to a put got lost, this store's own record is there.
        Err(PutError::Exists) => match facts.get(&key)? {
            Ok(there) if there == data => {}
            Ok(_) | Err(GetError::NotFound) => return Ok(None),
            Err(error) => return Err(failed(error).into()),
        },
    }
    if upon > 0 && read(facts, record.spec.id, upon)?.is_none() {
        // Others have decided since, or have removed everything. This record does not count.
        facts.delete(&key)?.map_err(failed)?;
        return Ok(None);
    }
    Ok(Some(number))
}

pub(super) fn contended() -> Halt {
    failed("another store decides about the volume at this moment; try again").into()
}

/// Removes the records before a number, the oldest first.
pub(super) fn prune(facts: &mut Facts<'_>, volume: VolumeId, number: u64) -> Known<()> {
    // If the store cannot list or delete them, they only take space, and the next call tries again.
    // No number may be free while an earlier record exists. A slow store may still write a record
    // under a free number. It then finds the record before missing, and its own does not count.
    let list = facts.list(&trash::prefix(volume))?.unwrap_or_default();
    let numbers = list.iter().filter_map(|meta| trash::parse_key(&meta.key));
    let mut older: Vec<u64> = numbers.map(|(_, other)| other).filter(|n| *n < number).collect();
    older.sort_unstable();
    for other in older {
        let key = trash::key(volume, other);
        if let Err(error) = facts.delete(&key)? {
            facts.note(Note::Debug(format!("cannot delete {key}: {error}")));
            break;
        }
    }
    Ok(())
}
