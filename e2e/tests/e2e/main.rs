//! The built binary under real clients, crashes, cuts and mistakes. See the crate's documentation.

// A test's harness: a panic is how it reports.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod ahead;
mod api;
mod attach;
mod backends;
mod buckets;
mod clients;
mod commands;
mod copy;
mod crashes;
mod credentials;
mod damage;
mod docs;
mod encryption;
mod engines;
mod filesystems;
mod fleet;
mod harness;
mod hosts;
mod iscsi;
mod iscsi_wire;
mod isolation;
mod keyed;
mod linux;
mod operation;
mod outages;
mod pack;
mod pins;
mod power;
mod readiness;
mod refusals;
mod repair;
mod replica;
mod resize;
mod root;
mod snapshots;
mod space;
mod store_cache;
mod tenants;
mod threads;
mod tls;
mod upgrade;
