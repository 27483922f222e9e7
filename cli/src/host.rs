//! The commands that ask a running host for something, or tell it to do something.

mod attach;
mod cache;
mod control;
mod extents;
mod iscsi;
mod nbd;
mod status;

pub use attach::{attach, detach};
pub use cache::cache;
pub use control::{limit, trace};
pub use iscsi::run as iscsi;
pub use nbd::run as nbd;
pub use status::{columns, get, status};
