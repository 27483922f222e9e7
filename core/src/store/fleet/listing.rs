//! Lists the volumes, their sizes and their space.
//!
//! A list may lag behind a creation or a deletion for a moment. So an object in a list that the
//! store cannot find counts as deleted. For a known volume that is not in the list, the store reads
//! the key of the volume.

use super::{DELETE_AT_ONCE, Facts, Halt, Known, Note, Procedure, READ_AT_ONCE, records};
use crate::block::VolumeId;
use crate::store::VolumeSpec;
use crate::store::catalog::{self, VOLUMES_PREFIX, parse_number};
use crate::store::object::{GetError, ObjectMeta, StorageError, StorageErrorKind};
use crate::wire::link::{StoredBytes, VolumeError};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// A volume as the catalog knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogEntry {
    /// What never changes.
    pub spec: VolumeSpec,
    /// Its size in sectors.
    pub sectors: u64,
}

/// Volumes by name, and the volumes with damaged descriptions, which still occupy their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalog {
    /// The usable volumes.
    pub entries: BTreeMap<String, CatalogEntry>,
    /// By name, what is wrong with the others.
    pub damaged: BTreeMap<String, String>,
}

/// The differences to the store's knowledge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogChanges {
    /// Volumes that it does not know.
    pub new: Vec<CatalogEntry>,
    /// Names of the deleted volumes.
    pub gone: Vec<String>,
    /// By name, the damage of the unusable volumes.
    pub damaged: BTreeMap<String, String>,
}

/// The meaning of an object of the catalog.
enum Looked {
    Entry(CatalogEntry),
    /// The damage of the object.
    Damaged(String),
}

/// Reads the descriptions of the volumes whose keys begin with a prefix, and how large they are by
/// now.
#[derive(Clone, Debug)]
pub struct ReadCatalog {
    /// Beginning of the keys.
    pub prefix: String,
}

impl Default for ReadCatalog {
    /// Of all volumes.
    fn default() -> Self {
        ReadCatalog { prefix: VOLUMES_PREFIX.to_owned() }
    }
}

impl Procedure for ReadCatalog {
    type Outcome = Result<Catalog, StorageError>;

    fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome> {
        Halt::caught(entries(facts, &self.prefix))
    }
}

/// The volumes whose keys begin with `prefix`.
///
/// # Errors
/// If the store cannot read them. A damaged description costs its own volume, and no other.
pub(super) fn entries(facts: &mut Facts<'_>, prefix: &str) -> Result<Catalog, Halt<StorageError>> {
    let list = facts.list(prefix)?.map_err(unreadable)?;
    look_at(facts, list.iter().map(|meta| meta.key.clone()))
}

fn unreadable(error: impl Into<StorageError>) -> Halt<StorageError> {
    Halt::Failed(error.into().context("cannot read the catalog"))
}

fn look_at(
    facts: &mut Facts<'_>,
    keys: impl Iterator<Item = String>,
) -> Result<Catalog, Halt<StorageError>> {
    // Any other object there names nothing.
    let keys: Vec<String> = keys.filter(|key| catalog::name_of_key(key).is_some()).collect();
    let mut found = Catalog::default();
    for (key, looked) in look(facts, &keys)? {
        match looked {
            Looked::Entry(entry) => {
                found.entries.insert(entry.spec.name.clone(), entry);
            }
            Looked::Damaged(reason) => {
                let name = catalog::name_of_key(&key).unwrap_or(key);
                found.damaged.insert(name, reason);
            }
        }
    }
    Ok(found)
}

/// The volume that an object describes; `None` if the object does not exist.
///
/// # Errors
/// If the store cannot read it, or it is damaged.
pub(super) fn entry(
    facts: &mut Facts<'_>,
    key: &str,
) -> Result<Option<CatalogEntry>, Halt<StorageError>> {
    match look(facts, &[key.to_owned()])?.pop() {
        Some((_, Looked::Entry(entry))) => Ok(Some(entry)),
        Some((_, Looked::Damaged(reason))) => {
            Err(Halt::Failed(StorageError::new(StorageErrorKind::Damaged, reason)))
        }
        None => Ok(None),
    }
}

/// The meaning of the objects of these keys, without missing objects.
fn look(
    facts: &mut Facts<'_>,
    keys: &[String],
) -> Result<Vec<(String, Looked)>, Halt<StorageError>> {
    let read = facts.get_all(keys, READ_AT_ONCE)?.map_err(unreadable)?;
    let (mut specs, mut found) = (Vec::new(), Vec::new());
    for (key, read) in keys.iter().zip(read) {
        match described(facts, key, read) {
            Some(Ok(spec)) => specs.push((key.clone(), spec)),
            Some(Err(reason)) => found.push((key.clone(), Looked::Damaged(reason))),
            None => {}
        }
    }
    let sizes = sizes(facts, &specs)?;
    let entries = specs.into_iter().zip(sizes);
    found.extend(
        entries.map(|((key, spec), sectors)| (key, Looked::Entry(CatalogEntry { spec, sectors }))),
    );
    Ok(found)
}

/// The volume of an object, or the damage of the object; `None` if it does not exist.
fn described(
    facts: &mut Facts<'_>,
    key: &str,
    read: Result<Bytes, GetError>,
) -> Option<Result<VolumeSpec, String>> {
    match read {
        Ok(bytes) => Some(catalog::decode_spec(key, &bytes).map_err(|error| error.to_string())),
        Err(GetError::NotFound) => {
            // The object itself says whether the name is free.
            let why = "is in the list of volumes and is not there: it has been deleted";
            facts.note(Note::Warning(format!("{key} {why}")));
            None
        }
        Err(error) => Some(Err(error.to_string())),
    }
}

/// The sizes of volumes, as noted beside their logs.
fn sizes(
    facts: &mut Facts<'_>,
    specs: &[(String, VolumeSpec)],
) -> Result<Vec<u64>, Halt<StorageError>> {
    let prefixes: Vec<String> =
        specs.iter().map(|(_, spec)| catalog::size_prefix(spec.id)).collect();
    let lists = facts.list_all(&prefixes, READ_AT_ONCE)?.map_err(unreadable)?;
    // Of each volume the keys of its sizes, the newest last.
    let mut keys: Vec<Vec<String>> = Vec::new();
    for (prefix, list) in prefixes.iter().zip(lists) {
        let ours = |meta: &&ObjectMeta| parse_number(prefix, &meta.key).is_some();
        let mut of: Vec<String> = list.iter().filter(ours).map(|meta| meta.key.clone()).collect();
        of.sort_unstable();
        keys.push(of);
    }
    let mut sizes: Vec<Option<u64>> = vec![None; specs.len()];
    loop {
        let mut asked: Vec<(usize, String)> = Vec::new();
        for (at, of) in keys.iter_mut().enumerate() {
            if let Some(key) = of.pop().filter(|_| sizes[at].is_none()) {
                asked.push((at, key));
            }
        }
        let wanted: Vec<String> = asked.iter().map(|(_, key)| key.clone()).collect();
        let read = facts.get_all(&wanted, READ_AT_ONCE)?.map_err(unreadable)?;
        for ((at, key), read) in asked.into_iter().zip(read) {
            let spec = &specs[at].1;
            let read = match read {
                Ok(bytes) => {
                    catalog::decode_size(spec, &key, &bytes).map_err(|error| error.to_string())
                }
                // Another task removes the volume at this moment.
                Err(GetError::NotFound) => continue,
                Err(error) => Err(error.to_string()),
            };
            match read {
                Ok(sectors) => sizes[at] = Some(sectors),
                // The exact size is in the log, which an engine reads when it opens the volume.
                Err(error) => {
                    let name = &spec.name;
                    let why =
                        format!("{error}; until volume {name} is used an older size may be shown");
                    facts.note(Note::Warning(why));
                }
            }
        }
        if keys.iter().zip(&sizes).all(|(of, size)| of.is_empty() || size.is_some()) {
            break;
        }
    }
    let sizes = sizes.into_iter().zip(specs);
    Ok(sizes.map(|(size, (_, spec))| size.unwrap_or(spec.created_sectors)).collect())
}

/// Finds the volumes that other stores created or deleted since this store read `known`.
#[derive(Clone, Debug)]
pub struct FindChanges {
    /// The volumes that this store knows.
    pub known: Vec<VolumeSpec>,
}

impl Procedure for FindChanges {
    type Outcome = Result<CatalogChanges, StorageError>;

    fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome> {
        Halt::caught(self.find(facts))
    }
}

impl FindChanges {
    fn find(&self, facts: &mut Facts<'_>) -> Result<CatalogChanges, Halt<StorageError>> {
        let list = facts.list(VOLUMES_PREFIX)?.map_err(unreadable)?;
        let mut missing: BTreeMap<String, &VolumeSpec> =
            self.known.iter().map(|spec| (catalog::name_key(&spec.name), spec)).collect();
        let unknown = list.iter().filter(|meta| missing.remove(&meta.key).is_none());
        let unknown: Vec<String> = unknown.map(|meta| meta.key.clone()).collect();
        let Catalog { entries, damaged } = look_at(facts, unknown.into_iter())?;
        let keys: Vec<String> = missing.keys().cloned().collect();
        let read = facts.get_all(&keys, READ_AT_ONCE)?.map_err(unreadable)?;
        let mut gone = Vec::new();
        for (spec, read) in missing.into_values().zip(read) {
            match read {
                Err(GetError::NotFound) => gone.push(spec.name.clone()),
                // The store continues to serve the volume with the description that it has read.
                Ok(_) | Err(GetError::Damaged(_)) => {}
                Err(error) => return Err(unreadable(error)),
            }
        }
        Ok(CatalogChanges { new: entries.into_values().collect(), gone, damaged })
    }
}

/// Finds the objects of volumes that are in no catalog: bytes, by the beginning of their keys. It
/// lists all objects. It returns `None` if it cannot find out.
#[derive(Clone, Debug)]
pub struct FindLeftovers {
    /// All volumes with names.
    pub named: Vec<VolumeId>,
}

impl Procedure for FindLeftovers {
    type Outcome = BTreeMap<String, u64>;

    fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome> {
        let mut left: BTreeMap<String, u64> = BTreeMap::new();
        let Ok(deleted) = records::known(facts)? else { return Ok(left) };
        let ids = self.named.iter().copied().chain(deleted.into_keys());
        let known: BTreeSet<String> = ids.map(catalog::volume_prefix).collect();
        let Ok(list) = facts.list("v/")? else { return Ok(left) };
        for meta in list {
            let Some((end, _)) = meta.key.match_indices('/').nth(1) else { continue };
            let prefix = &meta.key[..=end];
            if !known.contains(prefix) {
                *left.entry(prefix.to_owned()).or_default() += meta.bytes;
            }
        }
        Ok(left)
    }
}

/// Finds what a volume takes: it lists all that there is of it.
#[derive(Clone, Copy, Debug)]
pub struct FindStored(pub VolumeId);

impl Procedure for FindStored {
    type Outcome = Result<StoredBytes, VolumeError>;

    fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome> {
        let volume = self.0;
        let list = match facts.list(&catalog::volume_prefix(volume))? {
            Ok(list) => list,
            Err(error) => return Ok(Err(error.into())),
        };
        let mut stored = StoredBytes::default();
        let segments = [catalog::segment_prefix(volume), catalog::bundle_prefix(volume)];
        let staged = catalog::staged_prefix(volume);
        for ObjectMeta { key, bytes } in list {
            let kind = if segments.iter().any(|prefix| key.starts_with(prefix)) {
                &mut stored.segments
            } else if key.starts_with(&staged) {
                &mut stored.staged
            } else {
                &mut stored.maps
            };
            *kind += bytes;
        }
        Ok(Ok(stored))
    }
}

/// Removes the data of a volume whose name is deleted. It takes some milliseconds for each few
/// segments, minutes for a large volume.
///
/// # Errors
/// If some of it stays.
pub(super) fn remove_data(facts: &mut Facts<'_>, volume: VolumeId) -> Result<(), Halt> {
    let list = facts.list(&catalog::volume_prefix(volume))?.map_err(VolumeError::from)?;
    let keys = list.iter().map(|meta| meta.key.clone()).collect();
    facts.delete_all(keys, DELETE_AT_ONCE)?.map_err(VolumeError::from)?;
    Ok(())
}
