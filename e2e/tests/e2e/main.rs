//! The built binary under real clients, crashes, cuts and mistakes. See the crate's documentation.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod harness;
