//! How the actor routes: requests through the stages, completions and timers to the children they
//! belong to, and what follows from one child to the others.

mod catalog;
mod engines;
mod fleet;
mod map_diffs;
mod ownership;
pub(super) mod pipeline;
mod service;
mod snapshots;
mod tasks;
mod tenants;
