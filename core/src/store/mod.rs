//! Volumes as a log of immutable segments.
//!
//! One [`Volume`] is the log of one volume over an object store that can only create, read, list and
//! delete whole objects. It promises:
//!
//! - what is committed is a prefix of what hosts acknowledged, cut at a batch boundary;
//! - a batch commits whole or not at all, and every byte of it was verified on arrival;
//! - one writer: an epoch begins with a segment created put-if-absent under the next number, so that of
//!   two rivals, in one store or in two, exactly one goes on;
//! - what a host announced and never delivered is known, and stands in the way of a host that attaches
//!   without it.
//!
//! It knows neither sockets nor which object store it runs on, and nothing of a host but its frames.
//!
//! | module | is |
//! |---|---|
//! | [`catalog`] | keys, volume names, the description of a volume |
//! | [`sealed`] | what binds small objects to their names |
//! | [`segment`] | the object format of the log (`docs/formats.md`) |
//! | [`map`] | which sectors lie where |
//! | [`root`] | the state after some segment, and what the map is made of |
//! | [`announce`] | what was acknowledged and has not arrived |
//! | [`attach`] | who may attach, as a function |
//! | [`snapshot`] | the snapshots and clones that the log knows of |
//! | [`log`] | the state that a log adds up to, segment by segment |
//! | [`staged`] | objects with data that a host had staged, to be written elsewhere |
//! | [`lease`] | which store serves a volume |
//! | [`fleet`] | what stores over one location decide together |
//! | [`tenant`] | whose a volume is, and what each tenant may have |
//! | [`trash`] | what becomes of volumes that are deleted |
//! | [`check`] | verifies objects offline |
//! | [`differences`] | what differs between two maps |
//! | [`replica`] | a second place for all objects |
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
pub use config::{Config, MAP_MEMORY, MISSING_WAIT, MISSING_WAIT_BUCKET};
pub use diff::{Places, differences};
pub use event::{Event, OpenError};
pub use object::{Copies, GetError, ObjectMeta, ObjectOperation, ObjectResult, PutError};
pub use session::{SHELL_SESSION, SessionId};
pub use volume::{ReplicaDurability, SessionPeer, Volume};
