//! Decides the fate of deleted volumes: a series of records for each volume. Each record has the
//! next number, created put-if-absent.
//!
//! ```text
//! deleted/ID/0000000000000001      the newest one has the last decision about the volume
//! ```
//!
//! A deleted volume loses its name and keeps its data for a time. Until then it can get a name
//! again. If a restoration and the removal of the data compete, the one that gets the next number
//! wins. The newest record of a volume stays as long as its data, so that no number comes twice.

pub use super::catalog::TRASH_PREFIX;
use super::catalog::{CatalogError, SpecParts, VolumeSpec, check_size, parse_number};
use crate::block::VolumeId;
use crate::wire::link::DeletedInfo;
use serde::{Deserialize, Serialize};

/// Most bytes of an encoded [`Record`].
pub const MAX_RECORD_BYTES: usize = 16 << 10;

/// A decision about a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    /// Deleted: the volume loses its name, and its data stays for a time.
    Deleted,
    /// It gets a name again, or keeps the one it has.
    Restored,
    /// Its data goes.
    Purged,
}

/// A decision, with all facts for its execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What was decided.
    pub decision: Decision,
    /// The time of the decision in seconds since 1970. If a restoration takes itself back, its new
    /// record may have the time of the record before it.
    pub at: u64,
    /// The volume, with the name that it had, or that it gets.
    pub spec: VolumeSpec,
    /// Its size in sectors.
    pub sectors: u64,
}

/// The next step for a volume with a record. Any store may take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing to do before this time, in seconds since 1970.
    Wait(u64),
    /// Nothing to do any more.
    Nothing,
    /// Remove the data: its time is up.
    Purge,
    /// The deletion stopped before the volume lost its name: the volume stays as it was.
    Keep,
    /// The volume has its name, and the restoration has not removed the older records. Check
    /// whether the parents of the volume exist.
    Confirm,
    /// The restoration stopped before the volume got its name: the volume is still deleted.
    TakeBack,
    /// Remove this record: nothing else is left of its volume.
    Forget,
    /// Continue the removal of the data.
    Remove,
}

/// For this number of seconds other stores leave the execution to the store that made the record. A
/// guess: longer than the retries of an object store's client.
pub const HANDS_OFF: u64 = 60;

impl Record {
    /// The next step, if this is the newest record of its volume. `now` is in seconds since 1970,
    /// and `grace` is the time in seconds that data stays. `named`: the volume has the name in the
    /// record. `before`: the record before this one exists. If the volume does not have the name,
    /// `before` is also true if objects of the volume exist.
    #[must_use]
    pub fn next(&self, now: u64, grace: u64, named: bool, before: bool) -> Next {
        let settled = self.at.saturating_add(HANDS_OFF);
        match self.decision {
            Decision::Deleted if named && now < settled => Next::Wait(settled),
            Decision::Deleted if named => Next::Keep,
            Decision::Deleted if now < self.at.saturating_add(grace) => {
                Next::Wait(self.at.saturating_add(grace))
            }
            Decision::Deleted => Next::Purge,
            Decision::Restored if named && !before => Next::Nothing,
            Decision::Restored if now < settled => Next::Wait(settled),
            Decision::Restored if named => Next::Confirm,
            Decision::Restored if before => Next::TakeBack,
            Decision::Restored => Next::Forget,
            Decision::Purged if before => Next::Remove,
            Decision::Purged => Next::Forget,
        }
    }

    /// Whether the record says that the volume has this name.
    #[must_use]
    pub fn names(&self, name: &str) -> bool {
        self.decision == Decision::Restored && self.spec.name == name
    }

    /// The deleted volume as a message of the link. `until` is the time at which the data goes, in
    /// seconds since 1970.
    #[must_use]
    pub fn info(&self, until: u64) -> DeletedInfo {
        DeletedInfo {
            name: self.spec.name.clone(),
            id: self.spec.id,
            sectors: self.sectors,
            deleted: self.at,
            until,
        }
    }

    /// The content of the object at [`key`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let stored = Stored {
            version: VERSION,
            decision: self.decision,
            at: self.at,
            sectors: self.sectors,
            volume: SpecParts::from(&self.spec),
        };
        // Serializing strings and integers into memory cannot fail.
        let mut out = serde_json::to_vec(&stored).unwrap_or_default();
        out.push(b'\n');
        out
    }

    /// Reads the output of [`Record::encode`]; `key` is the key of the object.
    ///
    /// # Errors
    /// [`CatalogError::Trash`] unless it is the record of a valid volume of that key.
    pub fn decode(key: &str, bytes: &[u8]) -> Result<Record, CatalogError> {
        let bad = |reason: String| CatalogError::Trash { key: key.to_owned(), reason };
        if bytes.len() > MAX_RECORD_BYTES {
            return Err(bad(format!("it has {} bytes", bytes.len())));
        }
        let stored: Stored =
            serde_json::from_slice(bytes).map_err(|error| bad(error.to_string()))?;
        if stored.version != VERSION {
            return Err(bad(format!(
                "it is of version {}, which needs a newer longhaul",
                stored.version
            )));
        }
        let spec = stored.volume.check().map_err(bad)?;
        if parse_key(key).map(|(id, _)| id) != Some(spec.id) {
            return Err(bad(format!("it is of volume {}", spec.id)));
        }
        // The volume may be smaller than at its creation.
        check_size(stored.sectors, spec.block_bytes).map_err(|error| bad(error.to_string()))?;
        let Stored { decision, at, sectors, .. } = stored;
        Ok(Record { decision, at, spec, sectors })
    }
}

/// Beginning of the keys of a volume's records.
#[must_use]
pub fn prefix(volume: VolumeId) -> String {
    format!("{TRASH_PREFIX}{volume}/")
}

/// The key of a record.
#[must_use]
pub fn key(volume: VolumeId, number: u64) -> String {
    format!("{TRASH_PREFIX}{volume}/{number:016x}")
}

/// Volume and number of a record's key, if it is a key of this form.
#[must_use]
pub fn parse_key(key: &str) -> Option<(VolumeId, u64)> {
    let (volume, number) = key.strip_prefix(TRASH_PREFIX)?.split_once('/')?;
    let volume = VolumeId(u128::from_str_radix(volume, 16).ok()?);
    let number = parse_number("", number)?;
    (self::key(volume, number) == key).then_some((volume, number))
}

const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    decision: Decision,
    at: u64,
    sectors: u64,
    volume: SpecParts,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let spec = VolumeSpec {
            id: VolumeId(0xfeed),
            name: "db-1.main".into(),
            created_sectors: 80,
            block_bytes: 4096,
            created: 1_700_000_000,
            parents: Vec::new(),
        };
        Record { decision: Decision::Deleted, at: 1_700_000_100, spec, sectors: 160 }
    }

    #[test]
    fn records_round_trip_and_keep_their_form() {
        let key = key(VolumeId(0xfeed), 1);
        assert_eq!(key, "deleted/0000000000000000000000000000feed/0000000000000001");
        assert_eq!(parse_key(&key), Some((VolumeId(0xfeed), 1)));
        let bytes = record().encode();
        let text = std::str::from_utf8(&bytes).unwrap();
        assert_eq!(
            text,
            "{\"version\":1,\"decision\":\"deleted\",\"at\":1700000100,\"sectors\":160,\"volume\":{\"version\":1,\
             \"name\":\"db-1.main\",\"id\":\"0000000000000000000000000000feed\",\"sectors\":80,\"block_bytes\":4096,\
             \"created\":1700000000}}\n"
        );
        assert_eq!(Record::decode(&key, &bytes), Ok(record()));
        for (from, to) in
            [("{\"version\":1", "{\"version\":2"), ("160", "79"), ("feed", "beef"), ("db-1", "/b")]
        {
            let error = Record::decode(&key, text.replace(from, to).as_bytes()).unwrap_err();
            assert!(error.to_string().contains(&key), "{error}");
        }
        // An operator had made the volume smaller.
        let smaller = Record { sectors: 8, ..record() };
        assert_eq!(Record::decode(&key, &smaller.encode()), Ok(smaller));
        assert!(Record::decode(&key, &[b' '; MAX_RECORD_BYTES + 1]).is_err());
        for other in ["deleted/1/1", "deleted/+feed/0000000000000001", "volumes/a"] {
            assert_eq!(parse_key(other), None);
        }
    }

    #[test]
    fn nothing_is_removed_before_its_time_or_while_it_has_a_name() {
        let record = |decision| Record { decision, at: 1000, ..record() };
        let next = |decision, now, named, before| record(decision).next(now, 500, named, before);
        for before in [false, true] {
            assert_eq!(next(Decision::Deleted, 1499, false, before), Next::Wait(1500));
            assert_eq!(next(Decision::Deleted, 1500, false, before), Next::Purge);
            assert_eq!(next(Decision::Deleted, 1059, true, before), Next::Wait(1060));
            assert_eq!(next(Decision::Deleted, 9999, true, before), Next::Keep);
            assert_eq!(next(Decision::Restored, 1059, false, before), Next::Wait(1060));
        }
        assert_eq!(next(Decision::Restored, 1059, true, false), Next::Nothing);
        assert_eq!(next(Decision::Restored, 1059, true, true), Next::Wait(1060));
        assert_eq!(next(Decision::Restored, 1060, true, true), Next::Confirm);
        assert_eq!(next(Decision::Restored, 1060, false, true), Next::TakeBack);
        assert_eq!(next(Decision::Restored, 1060, false, false), Next::Forget);
        assert_eq!(next(Decision::Purged, 1000, false, true), Next::Remove);
        assert_eq!(next(Decision::Purged, 1000, false, false), Next::Forget);
    }
}
