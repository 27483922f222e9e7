//! The block path of longhaul as state machines.
//!
//! Nothing here does I/O, reads a clock, starts a thread or draws a random number. Inputs come in
//! through `handle_*`, outputs come from `poll_*`, and the time is an argument. The shell
//! (`longhaul`) and the simulator (`longhaul-sim`) drive the same code.
//!
//! Arrows between modules run one way: `block`, `disk`, `extent`, `limit`, `ranges`, `record`,
//! `pack` ← `wire` ← `cache` ← `front`, `host`, `store`, `link`. The last four never import each
//! other.

pub mod block;
pub mod cache;
pub mod disk;
pub mod extent;
pub mod front;
pub mod host;
mod limit;
pub mod link;
pub mod pack;
pub mod ranges;
pub mod record;
pub mod store;
pub mod wire;
