//! Attributes of a volume: to read one, to set one, and to replace a certain value of one.

use super::{Facts, Halt, Known, Note, Procedure, failed};
use crate::block::{Epoch, VolumeId};
use crate::store::catalog;
use crate::store::object::{GetError, PutError};
use crate::wire::link::{VolumeError, attribute_digest};
use bytes::Bytes;
use std::time::Duration;

/// The number of searches for an attribute whose value goes while the store reads it, and the pause
/// in between. Lists may lag behind deletions for a moment.
const TRIES: (usize, Duration) = (8, Duration::from_millis(50));

/// Reads an attribute of a volume; empty if no host has set it.
#[derive(Clone, Debug)]
pub struct ReadAttribute {
    /// The volume.
    pub volume: VolumeId,
    /// The name.
    pub name: String,
}

impl Procedure for ReadAttribute {
    type Outcome = Result<Bytes, VolumeError>;

    fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome> {
        Halt::caught(read(facts, self.volume, &self.name))
    }
}

fn read(facts: &mut Facts<'_>, volume: VolumeId, name: &str) -> Result<Bytes, Halt> {
    let (tries, pause) = TRIES;
    for again in 0..tries {
        if again > 1 {
            facts.pause(pause)?;
        }
        let values = values(facts, volume, name)?;
        let Some((epoch, number)) = values.last() else { return Ok(Bytes::new()) };
        match facts.get(&catalog::attribute_key(volume, name, *epoch, *number))? {
            Ok(data) => return Ok(data),
            // Replaced meanwhile: there is a newer one.
            Err(GetError::NotFound) => {}
            Err(error) => return Err(failed(error).into()),
        }
    }
    Err(lags(name))
}

fn lags(name: &str) -> Halt {
    failed(format!("the list of the values of {name} lags behind; try again")).into()
}

/// Replaces an attribute of a volume, for the host of an epoch.
///
/// The caller has checked that the epoch has not ended, as far as this store knows. If another
/// store knows of a newer epoch, the value exists but does not count. The host of the newer epoch
/// writes its own value before it serves initiators, and that value comes after this one.
///
/// It fails if a newer epoch has set the attribute, or the store cannot write the objects. Then the
/// old value stands. If the object store failed, either value may stand.
#[derive(Clone, Debug)]
pub struct SetAttribute {
    /// The volume.
    pub volume: VolumeId,
    /// The epoch of the host.
    pub epoch: Epoch,
    /// The name.
    pub name: String,
    /// The new value.
    pub data: Bytes,
    /// The [digest](attribute_digest) of the only value that this may replace. If the value is
    /// neither that one nor the new one, the answer is [`VolumeError::Changed`]. The answer may be
    /// the same if another write replaced the new value at once.
    pub replaces: Option<[u8; 32]>,
}

impl Procedure for SetAttribute {
    type Outcome = Result<(), VolumeError>;

    fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome> {
        Halt::caught(match self.replaces {
            Some(old) => self.replace(facts, old),
            None => self.set(facts),
        })
    }
}

impl SetAttribute {
    fn set(&self, facts: &mut Facts<'_>) -> Result<(), Halt> {
        // Numbers below are in use, whether a list shows them or not. If the answer of an attempt
        // got lost, this very value may have taken one. Then the attribute gets the same value
        // twice.
        let mut least = 1;
        loop {
            let values = values(facts, self.volume, &self.name)?;
            let number = number_after(&values, self.epoch)?.max(least);
            if self.put(facts, number)? {
                return self.forget(facts, &values);
            }
            least = number.saturating_add(1);
        }
    }

    fn replace(&self, facts: &mut Facts<'_>, old: [u8; 32]) -> Result<(), Halt> {
        let SetAttribute { volume, epoch, name, data, .. } = self;
        let (tries, pause) = TRIES;
        for again in 0..tries {
            if again > 1 {
                facts.pause(pause)?;
            }
            let before = values(facts, *volume, name)?;
            let number = number_after(&before, *epoch)?;
            let found = read(facts, *volume, name)?;
            // Otherwise the store does not know which of them it has read.
            if values(facts, *volume, name)? != before {
                continue;
            }
            // An attempt whose answer got lost set this value.
            if found == *data {
                return Ok(());
            }
            if attribute_digest(&found) != old {
                return Err(VolumeError::Changed.into());
            }
            if self.put(facts, number)? {
                // The number may belong to another store, whose value a later one has replaced
                // already.
                if values(facts, *volume, name)?.last() != Some(&(*epoch, number)) {
                    return Err(VolumeError::Changed.into());
                }
                return self.forget(facts, &before);
            }
        }
        Err(lags(name))
    }

    /// Creates the value; false if its number is in use.
    fn put(&self, facts: &mut Facts<'_>, number: u64) -> Result<bool, Halt> {
        let key = catalog::attribute_key(self.volume, &self.name, self.epoch, number);
        match facts.put(&key, self.data.clone())? {
            Ok(()) => Ok(true),
            Err(PutError::Exists) => Ok(false),
            Err(PutError::Failed(error)) => Err(VolumeError::from(error).into()),
        }
    }

    fn forget(&self, facts: &mut Facts<'_>, values: &[(Epoch, u64)]) -> Result<(), Halt> {
        for (epoch, number) in values {
            let key = catalog::attribute_key(self.volume, &self.name, *epoch, *number);
            if let Err(error) = facts.delete(&key)? {
                // It only takes space, and the next one tries again.
                let why = format!("cannot delete {key}, which is replaced: {error}");
                facts.note(Note::Warning(why));
            }
        }
        Ok(())
    }
}

/// The number of the next value.
fn number_after(values: &[(Epoch, u64)], epoch: Epoch) -> Result<u64, VolumeError> {
    match values.last() {
        Some((newer, _)) if *newer > epoch => Err(VolumeError::Fenced(*newer)),
        Some((same, number)) if *same == epoch => Ok(number.saturating_add(1)),
        _ => Ok(1),
    }
}

fn values(facts: &mut Facts<'_>, volume: VolumeId, name: &str) -> Result<Vec<(Epoch, u64)>, Halt> {
    let prefix = catalog::attribute_prefix(volume, name);
    let list = facts.list(&prefix)?.map_err(VolumeError::from)?;
    let parsed = list.iter().filter_map(|meta| catalog::parse_attribute_key(&prefix, &meta.key));
    let mut values: Vec<(Epoch, u64)> = parsed.collect();
    values.sort_unstable();
    Ok(values)
}
