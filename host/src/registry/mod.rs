//! The volume registry: the volumes of a host, which operators name and clients find by name.
//!
//! The registry attaches the volumes of `--volume` and the config file, and those that `longhaul
//! attach` named until `longhaul detach`. It also attaches volumes with undelivered writes in the
//! state directory. A client attaches nothing, unless `--attach-on-demand` allows it. A volume is
//! about to attach, attached, about to detach, or fenced off. Attempts to attach go on as long as
//! the link or an operator may help. Only a command or a restart takes a fenced volume back:
//! otherwise two hosts would throw each other out.
//!
//! [`VolumeRegistry`] routes. Each of its parts owns one thing:
//!
//! | part | what it owns |
//! |---|---|
//! | [`entries`] | by name: the stage, and what commands and clients wish |
//! | [`attached`] | by identity: the attached volumes |
//! | [`remembered`] | the names that commands attached, on disk |
//! | [`link`] | whether and when the link went up or down |
//! | [`limits`] | rates of drain and read-ahead |
//! | [`recordings`] | traces to record and to replay |
//! | [`reservations`] | persistent reservations as the store has them |
//! | [`observers`] | the servers that hear of volumes that go or grow |

mod attached;
mod attaching;
mod commands;
mod detaching;
mod engine_events;
mod entries;
mod limits;
mod link;
mod link_events;
mod lookup;
mod observers;
pub mod others;
mod pins;
mod recordings;
pub mod remembered;
mod reservations;
mod volume_registry;

pub use entries::{AttachStage, FencedBy};
pub use volume_registry::VolumeRegistry;
