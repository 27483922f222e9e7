//! The object stores that may hold the objects of a store.
//!
//! The creation of an object is atomic, and durable when it succeeds. Objects never change. If two
//! creations have the same name, exactly one succeeds. This crate does not interpret the content of
//! objects. A damaged object can be [restored](Objects::restore) from a copy.

mod cached;
mod device;
mod failure;
mod interface;
mod local;
mod location;
mod memory;
mod replicated;
mod reusing;
mod s3;
mod sealed;
#[cfg(test)]
mod tests;
mod tree;

pub use cached::CachedObjects;
pub use device::{DeviceObjects, StoppedDevice};
pub use failure::kind_of;
pub use interface::{CacheReport, Objects, execute};
pub use local::{LocalObjects, looks_like_object, open_object};
pub use location::Location;
pub use longhaul_core::store::{
    Copies, GetError, ObjectMeta, ObjectOperation, ObjectResult, PutError, StorageError,
    StorageErrorKind,
};
pub use memory::MemoryObjects;
pub use replicated::{Brought, Replicated, Replication};
pub use reusing::Reusing;
pub use s3::{S3Objects, Usage, probe};
pub use sealed::Sealed;
pub use tree::{CATALOGS, TREES, Tree};
