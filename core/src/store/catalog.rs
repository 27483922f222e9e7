//! Names: of volumes, and of the objects of a volume.
//!
//! ```text
//! volumes/NAME                     the volume of that name, as JSON; deleting it frees the name
//! volumes/_TENANT/NAME             the volume TENANT/NAME, likewise
//! v/ID/seg/0000000000000001        its segments, numbered from 1 in hexadecimal
//! v/ID/owner/0000000000000003      a generation that an engine has claimed for these objects:
//! v/ID/root/GEN-SEGMENT-NUMBER     its roots: generation, last segment, serial number
//! v/ID/snap/SEGMENT-GEN-NUMBER     the roots of its snapshots, likewise: first the segment of each
//! v/ID/frag/GEN-NUMBER             the fragments of its map
//! v/ID/bundle/GEN-NUMBER           records that garbage collection moved out of its segments
//! v/ID/attr/NAME/EPOCH-NUMBER      its attributes: of each the last in order counts
//! v/ID/size/0000000000000007       its size since that segment, which resized it
//! v/ID/staged/8f3c000000000001     staged data, under a random number with the highest bit set
//! v/ID/lease/0000000000000001      the store that serves it: the last counts ([`super::lease`])
//! deleted/ID/0000000000000001      the fate of a volume: the last counts ([`super::trash`])
//! snapshots/ID                     the volume and segment of a snapshot that a host has read
//! ```
//!
//! The log decides the size of a volume. The objects beside it tell the size to readers that list
//! volumes without opening them. The engine writes such an object before it acknowledges a new
//! size. If that fails, it writes the object again from the log.

mod error;
mod name;
#[cfg(test)]
mod tests;

pub use error::CatalogError;
pub use name::{check_name, parse_number};

use super::gc::bundle::BundleId;
use super::map::fragment::FragmentId;
use super::tenant::{self, TENANTS_PREFIX};
use crate::block::{Epoch, MAX_VOLUME_SECTORS, SECTOR_BYTES, STAGED_BIT, VolumeId};
use crate::wire::link::{LiveInfo, Parent, VolumeInfo};
use serde::{Deserialize, Serialize};

/// Beginning of the keys of all volume names.
pub const VOLUMES_PREFIX: &str = "volumes/";

/// Beginnings of the keys that have a meaning in a replica, besides those of volumes' objects. Keys
/// that name volumes come last.
pub const REPLICATED: [&str; 5] =
    ["snapshots/", TENANTS_PREFIX, ACCEPTED_PREFIX, TRASH_PREFIX, VOLUMES_PREFIX];
/// Beginning of the keys of all records of deleted volumes.
pub const TRASH_PREFIX: &str = "deleted/";
/// Beginning of the keys of the lists of accepted certificates.
pub const ACCEPTED_PREFIX: &str = "accepted/";
/// The key of a mark in the catalog of a replica: somebody has gone on with a copy of it.
pub const PROMOTED_KEY: &str = "promoted";

/// Most bytes of an encoded [`VolumeSpec`].
pub const MAX_SPEC_BYTES: usize = 8192;
/// Most volumes behind a clone.
pub const MAX_PARENTS: usize = 32;

/// The facts about a volume that never change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSpec {
    /// Its identity.
    pub id: VolumeId,
    /// Its name, after that of its tenant and a slash if it has one.
    pub name: String,
    /// The size in sectors at its creation.
    pub created_sectors: u64,
    /// Logical block size in bytes: 512 or 4096.
    pub block_bytes: u32,
    /// The time of its creation, seconds since 1970.
    pub created: u64,
    /// Of a clone: where what it did not write itself comes from, the nearest first; at most
    /// [`MAX_PARENTS`].
    pub parents: Vec<Parent>,
}

impl VolumeSpec {
    /// The tenant of the volume, unless the installation itself owns it.
    #[must_use]
    pub fn tenant(&self) -> Option<&str> {
        tenant::tenant_of(&self.name)
    }

    /// The last segment that is not its own: 0 unless it is a clone.
    #[must_use]
    pub fn begins_after(&self) -> u64 {
        self.parents.first().map_or(0, |parent| parent.segment)
    }

    /// The volume that owns the segment `segment`, as this volume counts.
    #[must_use]
    pub fn owner_of(&self, segment: u64) -> VolumeId {
        let parents = self.parents.iter().take_while(|parent| segment <= parent.segment);
        parents.last().map_or(self.id, |parent| parent.volume)
    }

    /// The same for the link, with its size now and what an open volume knows.
    #[must_use]
    pub fn info(&self, sectors: u64, live: Option<LiveInfo>) -> VolumeInfo {
        VolumeInfo {
            name: self.name.clone(),
            id: self.id,
            sectors,
            block_bytes: self.block_bytes,
            created: self.created,
            live,
            damaged: None,
        }
    }
}

/// Checks size and block size.
///
/// # Errors
/// [`CatalogError::BlockSize`], [`CatalogError::Size`].
pub fn check_size(sectors: u64, block_bytes: u32) -> Result<(), CatalogError> {
    if block_bytes != 512 && block_bytes != 4096 {
        return Err(CatalogError::BlockSize(block_bytes));
    }
    let whole = sectors.is_multiple_of(u64::from(block_bytes) / SECTOR_BYTES);
    if sectors == 0 || sectors > MAX_VOLUME_SECTORS || !whole {
        return Err(CatalogError::Size { sectors, block_bytes });
    }
    Ok(())
}

/// Checks a new size, without force, for a volume of `have` sectors.
///
/// # Errors
/// [`CatalogError::Size`], [`CatalogError::Shrink`].
pub fn check_resize(have: u64, asked: u64, block_bytes: u32) -> Result<(), CatalogError> {
    check_size(asked, block_bytes)?;
    if asked < have {
        let (have, asked) = (have * SECTOR_BYTES, asked * SECTOR_BYTES);
        return Err(CatalogError::Shrink { have, asked });
    }
    Ok(())
}

/// The key of a volume name. No name begins with the sign that tenants have before theirs.
#[must_use]
pub fn name_key(name: &str) -> String {
    match tenant::split(name) {
        (Some(tenant), name) => format!("{VOLUMES_PREFIX}_{tenant}/{name}"),
        (None, name) => format!("{VOLUMES_PREFIX}{name}"),
    }
}

/// The name of the volume whose object has that key, if it is a key of this form.
#[must_use]
pub fn name_of_key(key: &str) -> Option<String> {
    let rest = key.strip_prefix(VOLUMES_PREFIX)?;
    let name = rest.strip_prefix('_').unwrap_or(rest).to_owned();
    (tenant::check_volume_name(&name).is_ok() && name_key(&name) == key).then_some(name)
}

/// Beginning of the keys of everything that a volume consists of but its name.
#[must_use]
pub fn volume_prefix(volume: VolumeId) -> String {
    format!("v/{volume}/")
}

/// The volume that an object is of, and what its key says besides.
#[must_use]
pub fn parse_volume_key(key: &str) -> Option<(VolumeId, &str)> {
    let (volume, rest) = key.strip_prefix("v/")?.split_once('/')?;
    let id = VolumeId(u128::from_str_radix(volume, 16).ok()?);
    (id.to_string() == volume).then_some((id, rest))
}

/// Beginning of the keys of a volume's segments.
#[must_use]
pub fn segment_prefix(volume: VolumeId) -> String {
    format!("v/{volume}/seg/")
}

/// The key of a segment.
#[must_use]
pub fn segment_key(volume: VolumeId, number: u64) -> String {
    format!("v/{volume}/seg/{number:016x}")
}

/// Beginning of the keys of the claimed generations of a volume's map.
#[must_use]
pub fn owner_prefix(volume: VolumeId) -> String {
    format!("v/{volume}/owner/")
}

/// The key of a generation.
#[must_use]
pub fn owner_key(volume: VolumeId, generation: u64) -> String {
    format!("v/{volume}/owner/{generation:016x}")
}

/// The content of that object: it tells the one who has claimed it from others.
#[must_use]
pub fn encode_owner(incarnation: u128) -> String {
    format!("{{\"format\":1,\"owner\":\"{incarnation:032x}\"}}\n")
}

/// The name of a root. A later root has a greater name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RootName {
    /// The generation of who wrote it.
    pub generation: u64,
    /// The last segment that it includes.
    pub segment: u64,
    /// How many roots of that generation there were before.
    pub number: u64,
}

/// Beginning of the keys of a volume's roots.
#[must_use]
pub fn root_prefix(volume: VolumeId) -> String {
    format!("v/{volume}/root/")
}

/// The key of a root.
#[must_use]
pub fn root_key(volume: VolumeId, name: RootName) -> String {
    let RootName { generation, segment, number } = name;
    format!("v/{volume}/root/{generation:016x}-{segment:016x}-{number:016x}")
}

/// The name of a root whose key begins with `prefix`, if it is a key of this form.
#[must_use]
pub fn parse_root_key(prefix: &str, key: &str) -> Option<RootName> {
    let mut parts = key.strip_prefix(prefix)?.split('-').map(|part| parse_number("", part));
    let mut next = || parts.next().flatten();
    let name = RootName { generation: next()?, segment: next()?, number: next()? };
    parts.next().is_none().then_some(name)
}

/// Beginning of the keys of the roots of a volume's snapshots.
#[must_use]
pub fn pin_prefix(volume: VolumeId) -> String {
    format!("v/{volume}/snap/")
}

/// The key of the root of a snapshot, in order of the snapshots.
#[must_use]
pub fn pin_key(volume: VolumeId, name: RootName) -> String {
    let RootName { generation, segment, number } = name;
    format!("v/{volume}/snap/{segment:016x}-{generation:016x}-{number:016x}")
}

/// The name of a snapshot's root whose key begins with `prefix`, if it is a key of this form.
#[must_use]
pub fn parse_pin_key(prefix: &str, key: &str) -> Option<RootName> {
    let RootName { generation: segment, segment: generation, number } =
        parse_root_key(prefix, key)?;
    Some(RootName { generation, segment, number })
}

/// Beginning of the keys of the fragments of a volume's map.
#[must_use]
pub fn fragment_prefix(volume: VolumeId) -> String {
    format!("v/{volume}/frag/")
}

/// The key of a fragment.
#[must_use]
pub fn fragment_key(fragment: FragmentId) -> String {
    let FragmentId { volume, generation, number } = fragment;
    format!("v/{volume}/frag/{generation:016x}-{number:016x}")
}

/// The fragment of a key that [`fragment_key`] gives for this volume.
#[must_use]
pub fn parse_fragment_key(volume: VolumeId, key: &str) -> Option<FragmentId> {
    let rest = key.strip_prefix(&fragment_prefix(volume))?;
    let (generation, number) = rest.split_once('-')?;
    let (generation, number) = (parse_number("", generation)?, parse_number("", number)?);
    Some(FragmentId { volume, generation, number })
}

/// Beginning of the keys of a volume's bundles.
#[must_use]
pub fn bundle_prefix(volume: VolumeId) -> String {
    format!("v/{volume}/bundle/")
}

/// The key of a bundle.
#[must_use]
pub fn bundle_key(bundle: BundleId) -> String {
    let BundleId { volume, generation, number } = bundle;
    format!("v/{volume}/bundle/{generation:016x}-{number:016x}")
}

/// The bundle of a key that [`bundle_key`] gives for this volume.
#[must_use]
pub fn parse_bundle_key(volume: VolumeId, key: &str) -> Option<BundleId> {
    let rest = key.strip_prefix(&bundle_prefix(volume))?;
    let (generation, number) = rest.split_once('-')?;
    let (generation, number) = (parse_number("", generation)?, parse_number("", number)?);
    Some(BundleId { volume, generation, number })
}

/// Longest name of an attribute, in bytes.
pub const MAX_ATTRIBUTE_NAME_BYTES: usize = 32;

/// Checks the name of an attribute: `[a-z-]+`, at most [`MAX_ATTRIBUTE_NAME_BYTES`].
#[must_use]
pub fn is_attribute_name(name: &str) -> bool {
    (1..=MAX_ATTRIBUTE_NAME_BYTES).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-')
}

/// Beginning of the keys of an attribute's values.
#[must_use]
pub fn attribute_prefix(volume: VolumeId, name: &str) -> String {
    format!("v/{volume}/attr/{name}/")
}

/// The key of a value of an attribute: value `number`, from 1, of an epoch. Keys are in the order
/// in which the values replace each other.
#[must_use]
pub fn attribute_key(volume: VolumeId, name: &str, epoch: Epoch, number: u64) -> String {
    format!("v/{volume}/attr/{name}/{epoch:016x}-{number:016x}")
}

/// Epoch and number of a value's key that begins with `prefix`, if it is a key of this form.
#[must_use]
pub fn parse_attribute_key(prefix: &str, key: &str) -> Option<(Epoch, u64)> {
    let (epoch, number) = key.strip_prefix(prefix)?.split_once('-')?;
    Some((parse_number("", epoch)?, parse_number("", number)?))
}

/// Beginning of the keys of a volume's sizes.
#[must_use]
pub fn size_prefix(volume: VolumeId) -> String {
    format!("v/{volume}/size/")
}

/// The key of the size that a segment gave a volume.
#[must_use]
pub fn size_key(volume: VolumeId, number: u64) -> String {
    format!("v/{volume}/size/{number:016x}")
}

/// Beginning of the keys of the staged objects of a volume.
#[must_use]
pub fn staged_prefix(volume: VolumeId) -> String {
    format!("v/{volume}/staged/")
}

/// The key of a staged object.
#[must_use]
pub fn staged_key(volume: VolumeId, object: u64) -> String {
    format!("v/{volume}/staged/{object:016x}")
}

/// The key of the segment, or of the staged object, of that number.
#[must_use]
pub fn data_key(volume: VolumeId, number: u64) -> String {
    if number & STAGED_BIT == 0 { segment_key(volume, number) } else { staged_key(volume, number) }
}

/// Volume and number of a key that [`data_key`] gives.
#[must_use]
pub fn parse_data_key(key: &str) -> Option<(VolumeId, u64)> {
    let (prefix, digits) = key.rsplit_once('/')?;
    let (volume, _) = prefix.strip_prefix("v/")?.split_once('/')?;
    let volume = VolumeId(u128::from_str_radix(volume, 16).ok()?);
    let number = u64::from_str_radix(digits, 16).ok()?;
    (data_key(volume, number) == key).then_some((volume, number))
}

/// `VolumeSpec` in its stored form. JSON has no 128-bit numbers, so the identity is in hexadecimal.
#[derive(Serialize, Deserialize)]
pub(super) struct SpecParts {
    version: u32,
    name: String,
    id: String,
    sectors: u64,
    block_bytes: u32,
    created: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    parents: Vec<StoredParent>,
}

#[derive(Serialize, Deserialize)]
struct StoredParent {
    volume: String,
    segment: u64,
    snapshot: String,
}

const SPEC_VERSION: u32 = 1;

impl From<&VolumeSpec> for SpecParts {
    fn from(spec: &VolumeSpec) -> SpecParts {
        let parents = spec.parents.iter().map(|parent| StoredParent {
            volume: parent.volume.to_string(),
            segment: parent.segment,
            snapshot: parent.snapshot.to_string(),
        });
        SpecParts {
            version: SPEC_VERSION,
            name: spec.name.clone(),
            id: spec.id.to_string(),
            sectors: spec.created_sectors,
            block_bytes: spec.block_bytes,
            created: spec.created,
            parents: parents.collect(),
        }
    }
}

impl SpecParts {
    /// The volume of these parts.
    ///
    /// # Errors
    /// The error in the parts.
    pub(super) fn check(self) -> Result<VolumeSpec, String> {
        if self.version != SPEC_VERSION {
            return Err(format!("it is of version {}, which needs a newer longhaul", self.version));
        }
        tenant::check_volume_name(&self.name).map_err(|error| error.to_string())?;
        check_size(self.sectors, self.block_bytes).map_err(|error| error.to_string())?;
        let identity =
            |text: &str| identity(text).ok_or_else(|| format!("{text:?} is not an identity"));
        let mut parents = Vec::new();
        for StoredParent { volume, segment, snapshot } in &self.parents {
            let (volume, snapshot) = (identity(volume)?, identity(snapshot)?);
            parents.push(Parent { volume, segment: *segment, snapshot });
        }
        let falling = parents.windows(2).all(|pair| pair[1].segment < pair[0].segment);
        if parents.len() > MAX_PARENTS || !falling {
            return Err("its parents make no sense".to_owned());
        }
        Ok(VolumeSpec {
            id: identity(&self.id)?,
            name: self.name,
            created_sectors: self.sectors,
            block_bytes: self.block_bytes,
            created: self.created,
            parents,
        })
    }
}

/// The content of the object at [`name_key`].
#[must_use]
pub fn encode_spec(spec: &VolumeSpec) -> Vec<u8> {
    // Serializing strings and integers into memory cannot fail.
    let mut out = serde_json::to_vec(&SpecParts::from(spec)).unwrap_or_default();
    out.push(b'\n');
    out
}

/// Reads the output of [`encode_spec`]; `key` is the key of the object.
///
/// # Errors
/// [`CatalogError::Spec`] unless it is the description of a valid volume of that key.
pub fn decode_spec(key: &str, bytes: &[u8]) -> Result<VolumeSpec, CatalogError> {
    let bad = |reason: String| CatalogError::Spec { key: key.to_owned(), reason };
    if bytes.len() > MAX_SPEC_BYTES {
        return Err(bad(format!("it has {} bytes", bytes.len())));
    }
    let stored: SpecParts =
        serde_json::from_slice(bytes).map_err(|error| bad(error.to_string()))?;
    let spec = stored.check().map_err(bad)?;
    if name_key(&spec.name) != key {
        return Err(bad(format!("it names volume {:?}", spec.name)));
    }
    Ok(spec)
}

/// A size in its stored form.
#[derive(Serialize, Deserialize)]
struct StoredSize {
    version: u32,
    sectors: u64,
}

/// The content of the object at [`size_key`]: every writer writes the same.
#[must_use]
pub fn encode_size(sectors: u64) -> Vec<u8> {
    // Serializing integers into memory cannot fail.
    let mut out =
        serde_json::to_vec(&StoredSize { version: SPEC_VERSION, sectors }).unwrap_or_default();
    out.push(b'\n');
    out
}

/// Reads the output of [`encode_size`] for a volume; `key` is the key of the object.
///
/// # Errors
/// [`CatalogError::Spec`] unless it is a valid size for this volume.
pub fn decode_size(spec: &VolumeSpec, key: &str, bytes: &[u8]) -> Result<u64, CatalogError> {
    let bad = |reason: String| CatalogError::Spec { key: key.to_owned(), reason };
    if bytes.len() > MAX_SPEC_BYTES {
        return Err(bad(format!("it has {} bytes", bytes.len())));
    }
    let stored: StoredSize =
        serde_json::from_slice(bytes).map_err(|error| bad(error.to_string()))?;
    if stored.version != SPEC_VERSION {
        return Err(bad(format!(
            "it is of version {}, which needs a newer longhaul",
            stored.version
        )));
    }
    check_size(stored.sectors, spec.block_bytes).map_err(|error| bad(error.to_string()))?;
    Ok(stored.sectors)
}

/// The key of what says where a snapshot is.
#[must_use]
pub fn snapshot_key(snapshot: VolumeId) -> String {
    format!("snapshots/{snapshot}")
}

/// The stored record of a snapshot's place.
#[derive(Serialize, Deserialize)]
struct StoredPlace {
    version: u32,
    volume: String,
    segment: u64,
}

/// The content of the object at [`snapshot_key`]: of which volume it is, and the segment that took
/// it.
#[must_use]
pub fn encode_place(volume: VolumeId, segment: u64) -> Vec<u8> {
    let stored = StoredPlace { version: SPEC_VERSION, volume: volume.to_string(), segment };
    // Serializing strings and integers into memory cannot fail.
    let mut out = serde_json::to_vec(&stored).unwrap_or_default();
    out.push(b'\n');
    out
}

/// Reads that object.
///
/// # Errors
/// [`CatalogError::Spec`] if it does not say that.
pub fn decode_place(key: &str, bytes: &[u8]) -> Result<(VolumeId, u64), CatalogError> {
    let bad = |reason: String| CatalogError::Spec { key: key.to_owned(), reason };
    if bytes.len() > MAX_SPEC_BYTES {
        return Err(bad(format!("it has {} bytes", bytes.len())));
    }
    let stored: StoredPlace =
        serde_json::from_slice(bytes).map_err(|error| bad(error.to_string()))?;
    if stored.version != SPEC_VERSION {
        return Err(bad(format!(
            "it is of version {}, which needs a newer longhaul",
            stored.version
        )));
    }
    let volume = identity(&stored.volume)
        .ok_or_else(|| bad(format!("{:?} is not an identity", stored.volume)))?;
    Ok((volume, stored.segment))
}

/// Parses an identity in its written form.
fn identity(text: &str) -> Option<VolumeId> {
    let text = Some(text).filter(|text| text.len() == 32);
    text.and_then(|text| u128::from_str_radix(text, 16).ok()).map(VolumeId)
}
