//! The HTTP API: what `longhaul volume`, `snapshot`, `tenant` and `store` do, but for what moves data or needs keys.
//!
//! It is spoken on the store's TCP address, over TLS: who comes shows the certificate of a credential, as hosts do, and has
//! a session within the store that may do what one over the link may, and nothing else. What the API is is
//! generated from what serves it: `GET /v1/openapi.json`.
//!
//! - `routes`: what is answered, whoever asks; `body`: how requests are read.
//! - `serve`: the connections, and how many there may be.
//! - [`client`]: the other end, which the commands are; `calls`: what it can ask for.
//! - [`types`]: what is said.

pub mod admin;
pub mod attributes;
mod body;
mod calls;
pub mod client;
mod failure;
pub mod keys;
pub mod metrics;
pub mod queries;
mod routes;
pub mod schedule;
mod serve;
mod session;
pub mod types;

pub use serve::{Bounds, Counts, serve};
