//! What stores over one location decide together: leases, names, deletions, tenants and members.
//!
//! Each operation is a [`Procedure`]: a function of the results that it has got so far. It returns its outcome,
//! or it names the next [`Effect`]. A [`Runner`] keeps the results and runs the function again with each new one.
//! So a procedure reads like a program and holds no state of its own. The store service carries out its
//! effects, and a crash is a runner that is dropped.
//!
//! A procedure must depend on its fields and on its results alone. Debug builds verify that each run asks for
//! the same effects again.
//!
//! No procedure trusts that it is alone. What two stores decide at once is settled by put-if-absent, and each
//! procedure can be cut short after any effect. `docs/decisions/fleet.md` and `docs/decisions/tenants.md` say why.
//!
//! | module | decides |
//! |---|---|
//! | [`claim`] | which store serves a volume |
//! | [`names`] | which volume has a name |
//! | [`listing`] | which volumes there are, and how large they are |
//! | [`attributes`] | the value of an attribute of a volume |
//! | [`clones`] | whether a clone exists |
//! | [`deleted`] | which volumes are deleted and not gone |
//! | [`deletion`] | what becomes of a volume that is deleted |
//! | [`tenants`] | what a tenant may have |
//! | [`members`] | which stores there are, and which credentials they accept |
//! | [`holdings`] | what a store does with the leases that it has |

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

/// Objects that are read at once where many are: a bucket takes tens of milliseconds for each.
const READ_AT_ONCE: usize = 16;
/// Objects of a deleted volume that are removed at once: few, so that requests of other volumes pass.
const DELETE_AT_ONCE: usize = 8;
/// Attempts at a record while other stores write some, at most.
const ATTEMPTS: usize = 8;

fn failed(error: impl std::fmt::Display) -> VolumeError {
    VolumeError::Store(error.to_string())
}

fn invalid(why: impl Into<String>) -> VolumeError {
    VolumeError::Invalid(why.into())
}
