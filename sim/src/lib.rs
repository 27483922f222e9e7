//! A deterministic world around `longhaul-core`, from one seed.
//!
//! It runs the production state machines of host and store. Its disks tear, its links lose and
//! reorder, its object stores fail after the fact, and its processes die at any step. It compares
//! every answer to a client with a model (`docs/simulator.md`). It replaces or switches nothing of
//! the core.

pub mod coverage;
pub mod disk;
pub mod fleet;
pub mod link;
pub mod model;
pub mod objects;
pub mod order;
pub mod plan;
pub mod rng;
pub mod trace;
pub mod world;
