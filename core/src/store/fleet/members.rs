//! The stores over a location, and their list of accepted credentials.
//!
//! ```text
//! stores/ID/0000000000000001       the address of the store; the last one counts
//! accepted/0000000000000001        the credentials that all stores accept; the last one counts
//! ```

use super::{Facts, Halt, Known, Note, Procedure, READ_AT_ONCE};
use crate::store::catalog::{ACCEPTED_PREFIX, parse_number};
use crate::store::object::{GetError, PutError, StorageError};
use crate::wire::link::StoreId;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Beginning of the keys of all stores.
pub const STORES_PREFIX: &str = "stores/";
const VERSION: u32 = 1;

/// A store of the installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    /// Where hosts reach it.
    pub addresses: Vec<String>,
    /// Fingerprint of its CA.
    pub ca: String,
    number: u64,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    addresses: Vec<String>,
    ca: String,
    /// For people.
    software: String,
}

/// The key of what a store has said of itself under a number.
#[must_use]
pub fn store_key(id: StoreId, number: u64) -> String {
    format!("{STORES_PREFIX}{id}/{number:016x}")
}

/// The key of the list of accepted credentials of a number.
#[must_use]
pub fn accepted_key(number: u64) -> String {
    format!("{ACCEPTED_PREFIX}{number:016x}")
}

/// Finds all stores of a location.
#[derive(Clone, Copy, Debug)]
pub struct FindStores;

impl Procedure for FindStores {
    type Outcome = Result<BTreeMap<StoreId, Registered>, StorageError>;

    fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome> {
        Halt::caught(find(facts))
    }
}

fn find(facts: &mut Facts<'_>) -> Result<BTreeMap<StoreId, Registered>, Halt<StorageError>> {
    let list = facts.list(STORES_PREFIX)?;
    let list = list.map_err(|error| Halt::Failed(error.context("cannot list the stores")))?;
    let mut newest: BTreeMap<StoreId, u64> = BTreeMap::new();
    for meta in list {
        let rest = meta.key.strip_prefix(STORES_PREFIX).and_then(|rest| rest.split_once('/'));
        let Some((id, number)) = rest else { continue };
        let (Ok(id), Some(number)) = (id.parse(), parse_number("", number)) else { continue };
        let before = newest.entry(id).or_default();
        *before = number.max(*before);
    }
    let keys: Vec<String> = newest.iter().map(|(id, number)| store_key(*id, *number)).collect();
    let read = facts.get_all(&keys, READ_AT_ONCE)?;
    let read = read.map_err(|error| Halt::Failed(error.context("cannot read the stores")))?;
    let mut found = BTreeMap::new();
    for (((id, number), key), read) in newest.into_iter().zip(keys).zip(read) {
        let bytes = match read {
            Ok(bytes) => bytes,
            // Replaced or removed meanwhile; the store that did that says so.
            Err(GetError::NotFound) => continue,
            Err(reason) => {
                let why = "a store is not known by it; start that store again";
                facts.note(Note::Error(format!("{reason}: {why}")));
                continue;
            }
        };
        let stored: Stored = match serde_json::from_slice(&bytes) {
            Ok(stored) => stored,
            Err(error) => {
                let why = format!("{key} does not describe a store ({error}): delete it");
                facts.note(Note::Warning(why));
                continue;
            }
        };
        if stored.version != VERSION {
            let why = format!("{key} is of version {}: a newer store's", stored.version);
            facts.note(Note::Warning(why));
        }
        let Stored { addresses, ca, .. } = stored;
        found.insert(id, Registered { addresses, ca, number });
    }
    Ok(found)
}

/// Writes down where a store is, unless that is there already.
#[derive(Clone, Debug)]
pub struct Register {
    /// The former record of the store.
    pub before: Option<Registered>,
    /// The store.
    pub id: StoreId,
    /// Where hosts reach it.
    pub addresses: Vec<String>,
    /// Fingerprint of its CA.
    pub ca: String,
    /// Its software, for people.
    pub software: String,
}

impl Procedure for Register {
    type Outcome = Result<(), StorageError>;

    fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome> {
        let Register { before, id, addresses, ca, software } = self;
        let before = before.as_ref();
        if before.is_some_and(|before| before.addresses == *addresses && before.ca == *ca) {
            return Ok(Ok(()));
        }
        let stored = Stored {
            version: VERSION,
            addresses: addresses.clone(),
            ca: ca.clone(),
            software: software.clone(),
        };
        // Serializing strings and integers into memory cannot fail.
        let text = Bytes::from(serde_json::to_vec_pretty(&stored).unwrap_or_default());
        let mut number = before.map_or(1, |before| before.number.saturating_add(1));
        // Only this store writes its own records, unless an operator copied its state directory.
        loop {
            let key = store_key(*id, number);
            match facts.put(&key, text.clone())? {
                Ok(()) => break,
                Err(PutError::Exists) => {
                    if facts.get(&key)?.is_ok_and(|there| there == text) {
                        break;
                    }
                    number = number.saturating_add(1);
                }
                Err(PutError::Failed(error)) => {
                    return Ok(Err(error.context(format_args!("cannot write {key}"))));
                }
            }
        }
        if let Some(before) = before {
            facts.discard(&store_key(*id, before.number))?;
        }
        Ok(Ok(()))
    }
}

/// Forgets stores.
#[derive(Clone, Debug)]
pub struct ForgetStores(pub Vec<(StoreId, Registered)>);

impl Procedure for ForgetStores {
    type Outcome = Result<(), StorageError>;

    fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome> {
        for (id, registered) in &self.0 {
            let key = store_key(*id, registered.number);
            if let Err(error) = facts.delete(&key)? {
                return Ok(Err(error.context(format_args!("cannot delete {key}"))));
            }
        }
        Ok(Ok(()))
    }
}

/// The reason why the newest list of accepted credentials is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcceptedError {
    /// The list is damaged: another store may have revoked a credential in it.
    #[error("{0}")]
    Damaged(String),
    /// The store cannot read the objects.
    #[error("{0}")]
    Failed(StorageError),
}

/// Finds the newest list of accepted credentials, and its number; nothing if no store has written
/// one.
#[derive(Clone, Copy, Debug)]
pub struct FindAccepted;

impl Procedure for FindAccepted {
    type Outcome = Result<Option<(u64, Bytes)>, AcceptedError>;

    fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome> {
        let list = match facts.list(ACCEPTED_PREFIX)? {
            Ok(list) => list,
            Err(error) => {
                let error = error.context("cannot list the accepted credentials");
                return Ok(Err(AcceptedError::Failed(error)));
            }
        };
        let numbers = list.iter().filter_map(|meta| parse_number(ACCEPTED_PREFIX, &meta.key));
        let Some(number) = numbers.max() else { return Ok(Ok(None)) };
        let key = accepted_key(number);
        Ok(match facts.get(&key)? {
            Ok(bytes) => Ok(Some((number, bytes))),
            Err(GetError::Damaged(reason)) => Err(AcceptedError::Damaged(reason)),
            Err(error) => {
                let error = StorageError::from(error).context(format_args!("cannot read {key}"));
                Err(AcceptedError::Failed(error))
            }
        })
    }
}

/// Writes a list of accepted credentials under its number. If another store has written one under
/// the same number, that one counts.
#[derive(Clone, Debug)]
pub struct PublishAccepted {
    /// The number.
    pub number: u64,
    /// The list.
    pub text: Bytes,
}

impl Procedure for PublishAccepted {
    type Outcome = Result<(), StorageError>;

    fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome> {
        let key = accepted_key(self.number);
        match facts.put(&key, self.text.clone())? {
            Ok(()) | Err(PutError::Exists) => {}
            Err(PutError::Failed(error)) => {
                return Ok(Err(error.context(format_args!("cannot write {key}"))));
            }
        }
        for meta in facts.list(ACCEPTED_PREFIX)?.unwrap_or_default() {
            let number = parse_number(ACCEPTED_PREFIX, &meta.key);
            if number.is_some_and(|number| number < self.number) {
                facts.discard(&meta.key)?;
            }
        }
        Ok(Ok(()))
    }
}
