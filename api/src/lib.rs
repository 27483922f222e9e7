//! The HTTP API: the functions of `longhaul volume`, `snapshot`, `tenant` and `store`, except those
//! that move data or need keys.
//!
//! A store serves it on its TCP address, over TLS. A client shows the certificate of a credential,
//! as hosts do. It has a session within the store, with the same rights as one over a link. The
//! server's code generates the description of the API: `GET /v1/openapi.json`.
//!
//! - `routes`: the paths and their answers; `body`: reading requests.
//! - `serve`: the connections, and their limits.
//! - [`client`]: the commands' end; `calls`: its requests.
//! - [`types`]: the content of requests and answers.

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
