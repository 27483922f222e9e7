//! The routing of the actor. Requests go through the stages. Completions and timers go to their
//! children. The consequences go from one child to the others.

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
