//! A deterministic world around `longhaul-core`, from one seed.
//!
//! It runs the production state machines of host and store, with disks that tear, links that lose
//! and reorder, object stores that fail after the fact, processes that die at any step, and clients
//! whose every answer is compared with a model (`docs/simulator.md`). Nothing of the core is replaced
//! or switched for it.

pub mod coverage;
pub mod disk;
pub mod link;
pub mod model;
pub mod objects;
pub mod plan;
pub mod rng;
pub mod trace;
pub mod world;
