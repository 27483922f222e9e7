//! Volumes as logs of immutable segments.
//!
//! One [`Volume`] is the log of one volume over an object store. The object store can only create,
//! read, list and delete whole objects. The volume promises:
//!
//! - The committed writes are a prefix of the acknowledged writes, cut at a batch boundary.
//! - A batch commits whole or not at all. The volume verifies every byte of it on arrival.
//! - Each epoch has one writer. It begins with a segment created put-if-absent under the next
//!   number. Of two rivals, in one store or in two, exactly one continues.
//! - The volume knows announced writes that the host never delivered. A host that attaches without
//!   them gets an error.
//!
//! The volume knows neither sockets nor the kind of object store. It knows nothing of a host but
//! its frames.
//!
//! | module | content |
//! |---|---|
//! | [`catalog`] | keys, volume names, the description of a volume |
//! | [`sealed`] | the line that binds small objects to their names |
//! | [`segment`] | the object format of the log (`docs/formats.md`) |
//! | [`map`] | the places of sectors |
//! | [`root`] | the state after some segment, and the fragments of the map |
//! | [`announce`] | acknowledged writes that have not arrived |
//! | [`attach`] | the rules for an attach, as a function |
//! | [`snapshot`] | the snapshots and clones that the log knows of |
//! | [`log`] | the state of a log, segment by segment |
//! | [`staged`] | objects with staged data, which a host then writes elsewhere |
//! | [`lease`] | the store that serves a volume |
//! | [`fleet`] | joint decisions of the stores over one location |
//! | [`tenant`] | the tenant of a volume, and the limits of each tenant |
//! | [`trash`] | the fate of deleted volumes |
//! | [`check`] | offline verification of objects |
//! | [`differences`] | the map diff of two maps |
//! | [`replica`] | the copy of all objects |
//! | [`cache`] | pieces of objects on a local disk, in front of the object store |
//! | [`Volume`] | the engine |

mod account;
mod ancestor;
pub mod announce;
pub mod attach;
pub mod cache;
pub mod catalog;
pub mod check;
mod config;
mod diff;
mod event;
pub mod fleet;
pub mod gc;
pub mod lease;
pub mod log;
mod lookups;
pub mod map;
mod moves;
mod object;
mod open;
mod read_request;
mod reads;
pub mod replica;
pub mod root;
pub mod scrub;
pub mod sealed;
pub mod segment;
mod session;
pub mod snapshot;
pub mod staged;
pub mod tenant;
pub mod throttle;
pub mod trash;
mod volume;

pub use account::Account;
pub use catalog::VolumeSpec;
pub use config::{Config, InFlight, MAP_MEMORY, MISSING_WAIT, MISSING_WAIT_BUCKET};
pub use diff::{Places, differences};
pub use event::{Event, OpenError};
pub use object::{
    Copies, GetError, ObjectMeta, ObjectOperation, ObjectResult, PutError, StorageError,
    StorageErrorKind,
};
pub use session::{SHELL_SESSION, SessionId};
pub use volume::{ReplicaDurability, SessionPeer, Volume};
