//! The facts that every machine of a volume gets with an input.

use super::config::Config;
use crate::block::{Epoch, Time, VolumeId};
use crate::wire::link::HostId;

/// The identity of the volume, its settings, and the time.
///
/// A plain value: only `now` changes after the attach, once for each input.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) now: Time,
    pub(super) config: Config,
    pub(super) host: HostId,
    pub(super) volume: VolumeId,
    pub(super) epoch: Epoch,
}
