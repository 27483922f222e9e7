//! `longhaul`: the commands, and the gateways as commands.
//!
//! - [`args`]: the command line; [`commands`]: which code runs a command.
//! - `host`: what asks a running host; `volume`, `tenant`, `stores`: what asks a store.
//! - `check`: what looks at directories; `demo`, `bench`: what tries and measures.

// The programs of this crate are its interface. Public items are for them and for tests.
#![allow(missing_docs)]

pub mod args;
mod bench;
pub mod check;
pub mod commands;
mod confirm;
mod connect;
mod demo;
mod host;
mod output;
mod reload;
mod stores;
mod tenant;
pub mod volume;
