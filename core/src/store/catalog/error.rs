//! Why something cannot be in the catalog.

use crate::wire::link::MAX_NAME_BYTES;

/// The reason why a volume cannot be as requested.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CatalogError {
    /// Not a name.
    #[error(
        "{0:?} is not a volume name: use 1 to {MAX_NAME_BYTES} letters, digits, dots, dashes and \
         underscores, beginning with a letter or digit"
    )]
    Name(String),
    /// Not the name of a tenant.
    #[error(
        "{0:?} is not the name of a tenant: use 1 to 63 letters, digits, dots, dashes and \
         underscores, beginning with a letter or digit"
    )]
    Tenant(String),
    /// The object is no record of a tenant.
    #[error("object {key} does not describe a tenant: {reason}; bring it back from a copy")]
    TenantRecord {
        /// Of the object.
        key: String,
        /// The damage of the record.
        reason: String,
    },
    /// Not a block size.
    #[error("a block size of {0} bytes is not supported: use 512 or 4096")]
    BlockSize(u32),
    /// Not a size.
    #[error(
        "a volume of {sectors} sectors is impossible: use a positive multiple of {block_bytes} \
         bytes, at most 4 EiB"
    )]
    Size {
        /// The requested size.
        sectors: u64,
        /// With this block size.
        block_bytes: u32,
    },
    /// Smaller than it is.
    #[error(
        "the volume has {have} bytes, the request is for {asked}: to cut off its end with the data \
         there, stop its host and use `longhaul volume resize --force`"
    )]
    Shrink {
        /// Its size in bytes.
        have: u64,
        /// The requested size in bytes.
        asked: u64,
    },
    /// Not a description.
    #[error(
        "object {key} does not describe a volume: {reason}; bring it back from a copy of the \
         object store"
    )]
    Spec {
        /// Of the object.
        key: String,
        /// The damage of the object.
        reason: String,
    },
    /// The object is no record of a deleted volume.
    #[error("object {key} does not describe a deleted volume: {reason}; bring it back from a copy")]
    Trash {
        /// Of the object.
        key: String,
        /// The damage of the object.
        reason: String,
    },
    /// Not a lease.
    #[error("object {key} does not say which store has a volume: {reason}; delete it")]
    Lease {
        /// Of the object.
        key: String,
        /// The damage of the object.
        reason: String,
    },
}
