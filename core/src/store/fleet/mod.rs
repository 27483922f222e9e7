//! Joint decisions of the stores over one location: leases, names, deletions, tenants and members.
//!
//! Each operation is a [`Procedure`]: a function of the results that it has got so far. It returns
//! its outcome, or it names the next [`Effect`]. A [`Runner`] keeps the results and runs the
//! function again with each new one. So a procedure reads like a program and holds no state of its
//! own. The store service executes the effects. If the service drops a runner, that is like a
//! crash.
//!
//! A procedure must depend on its fields and on its results alone. Debug builds verify that each
//! run asks for the same effects again.
//!
//! No procedure trusts that it is alone. Put-if-absent settles concurrent decisions of two stores.
//! Any procedure may stop after any effect. `docs/decisions/fleet.md` and
//! `docs/decisions/tenants.md` give the reasons.
//!
//! | module | decides |
//! |---|---|
//! | [`claim`] | the store that serves a volume |
//! | [`names`] | the volume that has a name |
//! | [`listing`] | the list of volumes, and their sizes |
//! | [`attributes`] | the value of an attribute of a volume |
//! | [`clones`] | whether a clone exists |
//! | [`deleted`] | the list of deleted volumes with data |
//! | [`deletion`] | the fate of a deleted volume |
//! | [`tenants`] | the limits of a tenant |
//! | [`members`] | the list of stores, and their accepted credentials |
//! | [`holdings`] | the use that a store makes of its leases |

pub mod attributes;
pub mod claim;
pub mod clones;
pub mod deleted;
pub mod deletion;
pub mod holdings;
pub mod listing;
pub mod members;
pub mod names;
mod records;
mod runner;
pub mod tenants;
#[cfg(test)]
mod tests;

pub use runner::{
    Effect, EffectResult, Facts, Halt, Known, Note, Peered, Procedure, Runner, Unknown,
};

use crate::wire::link::VolumeError;

/// Objects that a procedure reads at once: a bucket takes tens of milliseconds for each.
const READ_AT_ONCE: usize = 16;
/// Objects of a deleted volume that a procedure removes at once: few, so that requests of other
/// volumes pass.
const DELETE_AT_ONCE: usize = 8;
/// Attempts at a record while other stores write some, at most.
const ATTEMPTS: usize = 8;

fn failed(error: impl std::fmt::Display) -> VolumeError {
    VolumeError::Store(error.to_string())
}

fn invalid(why: impl Into<String>) -> VolumeError {
    VolumeError::Invalid(why.into())
}
