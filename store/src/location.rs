//! The role of a location: it serves volumes, or it is a replica of a location that does.
//!
//! ```text
//! site/0000000000000001     what it is: the last one counts; without any it is a place of its own, in its first tree
//! ```
//!
//! A store creates each record put-if-absent and never changes it. So if two stores want to change
//! the role, one comes first. The records lie beside the trees of the location
//! ([`longhaul_objects::Tree`]) and say which tree counts.

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use longhaul_core::store::catalog::parse_number;
use longhaul_objects::{CATALOGS, GetError, Objects, PutError, TREES, Tree};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Beginning of the keys of all records.
pub const PREFIX: &str = "site/";
const VERSION: u32 = 1;
/// Most bytes of a record.
pub const MAX_BYTES: u64 = 64 << 10;
/// Records to keep. A store that read the list a while ago must not find a free number.
const KEPT: u64 = 8;

/// A tree and a catalog of a location; both empty for those that it began with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectTrees {
    /// Of what belongs to volumes.
    pub tree: String,
    /// Of everything else.
    pub catalog: String,
}

impl ObjectTrees {
    /// The key of one of its objects in the location.
    pub fn key(&self, key: &str) -> String {
        let (below, token) =
            if key.starts_with("v/") { (TREES, &self.tree) } else { (CATALOGS, &self.catalog) };
        if token.is_empty() { key.to_owned() } else { format!("{below}{token}/{key}") }
    }

    /// Whether the location began with it, and not as a replica.
    pub fn is_first(&self) -> bool {
        self.tree.is_empty()
    }

    /// Its objects, in a location.
    pub fn open(&self, base: Arc<dyn Objects>) -> Arc<dyn Objects> {
        Tree::open(base, &self.tree, &self.catalog)
    }
}

/// A replica of all objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaRecord {
    /// Where, as `--data` says it.
    pub location: String,
    /// What of it.
    pub place: ObjectTrees,
    /// Whether commits wait for the replica.
    pub in_step: bool,
    /// Whether everything has been there once.
    pub built: bool,
    /// Addresses of the stores that wait there, for hosts.
    pub standby: Vec<String>,
    /// Its trees from before, until the replica has had everything once: the store need not send
    /// equal objects again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<ObjectTrees>,
}

/// The role of a location.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "lowercase")]
pub enum LocationRole {
    /// The location serves volumes.
    Primary {
        /// The replica of its objects.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        second: Option<ReplicaRecord>,
    },
    /// The location is the replica of another one.
    Replica {
        /// Of which.
        of: String,
        /// Whether everything has been here once.
        built: bool,
        /// Fingerprint of the CA of the stores there.
        ca: String,
        /// Its earlier trees, which are complete.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        before: Option<ObjectTrees>,
    },
    /// Somebody has gone on elsewhere.
    Replaced {
        /// Where.
        by: String,
    },
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocationRecord {
    /// The number under which it lies; 0 for what a location is without any.
    pub number: u64,
    /// Its valid trees.
    pub place: ObjectTrees,
    /// Its role.
    pub role: LocationRole,
}

impl LocationRecord {
    /// The role of a location without a record.
    pub fn first() -> LocationRecord {
        LocationRecord {
            number: 0,
            place: ObjectTrees::default(),
            role: LocationRole::Primary { second: None },
        }
    }

    /// The replica, if there is one.
    pub fn second(&self) -> Option<&ReplicaRecord> {
        match &self.role {
            LocationRole::Primary { second } => second.as_ref(),
            _ => None,
        }
    }

    /// The same with another role.
    pub fn with(&self, role: LocationRole) -> LocationRecord {
        LocationRecord { role, ..self.clone() }
    }
}

#[derive(Serialize, Deserialize)]
struct StoredRecord {
    version: u32,
    place: ObjectTrees,
    #[serde(flatten)]
    role: LocationRole,
    /// For people.
    software: String,
}

fn key(number: u64) -> String {
    format!("{PREFIX}{number:016x}")
}

/// Reads the role of a location.
///
/// # Errors
/// If the read fails, or a newer longhaul wrote the record.
pub async fn read(base: &dyn Objects) -> Result<LocationRecord> {
    loop {
        let list = base.list(PREFIX).await.map_err(anyhow::Error::new);
        let list = list.context("cannot list the records of the location")?;
        let newest = list.iter().filter_map(|meta| parse_number(PREFIX, &meta.key)).max();
        let Some(number) = newest else { return Ok(LocationRecord::first()) };
        let key = key(number);
        match base.get(&key, None).await {
            Ok(text) => return parse(&key, &text),
            // Newer ones have taken its place.
            Err(GetError::NotFound) => {}
            Err(error) => return Err(error).with_context(|| format!("cannot read {key}")),
        }
    }
}

/// Parses the record at that key.
///
/// # Errors
/// If it is damaged, or a newer longhaul wrote it.
pub fn parse(key: &str, text: &[u8]) -> Result<LocationRecord> {
    let number = parse_number(PREFIX, key).with_context(|| format!("{key} is no record"))?;
    let value: serde_json::Value = serde_json::from_slice(text)
        .with_context(|| format!("object {key} is no valid record of the location"))?;
    if value.get("version") != Some(&VERSION.into()) {
        bail!("object {key} was written by a newer longhaul: use that one");
    }
    let stored: StoredRecord = serde_json::from_value(value)
        .with_context(|| format!("object {key} is no valid record of the location"))?;
    Ok(LocationRecord { number, place: stored.place, role: stored.role })
}

/// Writes the next record of a location, if `site.number` was the last one until now. Returns the
/// record with its number.
///
/// # Errors
/// If another store was first, or the write fails.
pub async fn write(base: &dyn Objects, site: LocationRecord) -> Result<LocationRecord> {
    let number = site.number + 1;
    let LocationRecord { place, role, .. } = site.clone();
    let stored =
        StoredRecord { version: VERSION, place, role, software: longhaul_base::software() };
    let mut text = serde_json::to_vec(&stored)?;
    text.push(b'\n');
    match base.put(&key(number), vec![Bytes::from(text.clone())]).await {
        Ok(()) => {}
        // It may be this one, its answer lost.
        Err(PutError::Exists) => {
            let there = base.get(&key(number), None).await?;
            if there != text {
                bail!(
                    "another store has just changed the record of the location: look, and try again"
                );
            }
        }
        Err(PutError::Failed(error)) => {
            bail!(error.context("cannot write the record of the location"))
        }
    }
    if let Some(old) = number.checked_sub(KEPT).filter(|old| *old > 0)
        && let Err(error) = base.delete(&key(old)).await
    {
        tracing::debug!("cannot delete an old record of the location: {error}");
    }
    Ok(LocationRecord { number, ..site })
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_objects::MemoryObjects;

    #[tokio::test]
    async fn the_last_record_counts_and_of_two_one_is_first() {
        let base = MemoryObjects::new(1 << 20);
        let first = read(&base).await.unwrap();
        assert_eq!(first, LocationRecord::first());
        let second = ReplicaRecord {
            location: "/srv/b".into(),
            place: ObjectTrees { tree: "t".into(), catalog: "c".into() },
            in_step: true,
            built: false,
            standby: vec!["b:7777".into()],
            before: None,
        };
        let site = first.with(LocationRole::Primary { second: Some(second.clone()) });
        let mut site = write(&base, site).await.unwrap();
        assert_eq!(read(&base).await.unwrap(), site);
        assert_eq!(site.second(), Some(&second));
        let late = write(&base, first.with(LocationRole::Replaced { by: "x".into() })).await;
        assert!(late.unwrap_err().to_string().contains("another store has just changed"));
        for _ in 0..10 {
            let before = Some(site.place.clone());
            let role =
                LocationRole::Replica { of: "/srv/a".into(), built: true, ca: "x".into(), before };
            site = write(&base, site.with(role)).await.unwrap();
        }
        assert_eq!(read(&base).await.unwrap(), site);
        assert!(base.list(PREFIX).await.unwrap().len() <= KEPT as usize);
        base.put(&key(99), vec![Bytes::from_static(b"{\"version\":2}")]).await.unwrap();
        assert!(read(&base).await.unwrap_err().to_string().contains("newer"));
    }
}
