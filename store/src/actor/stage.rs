//! The stages of the pipeline: what each keeps while requests pass.

pub(super) mod audit;
mod held_drains;
pub(super) mod ownership;
pub(super) mod quota;
pub(super) mod rates;
mod rights;
pub(super) mod scope;
pub(super) mod snapshots;
mod unknown;

pub(super) use held_drains::HeldDrains;
use ownership::Ownership;
use quota::Quotas;
use rates::RateLimits;
use snapshots::SnapshotNames;
pub(super) use unknown::UnknownVolumes;

/// The stages, in the order in which requests pass them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// The audit recorder notes the request.
    Audit,
    /// The tenant scope decides what the credential may do, and renames volumes.
    Scope,
    /// Requests about unknown volumes wait for a look at the location.
    Unknown,
    /// The tenant scope decides about volumes that the request names by identity.
    Visibility,
    /// Growth waits until the store knows whether the tenant may have that much.
    Growth,
    /// Requests that add data wait until the tenant has room.
    Quota,
    /// Requests with a cost wait for their turn.
    Rates,
    /// Names and identities become engines.
    Snapshots,
    /// The store that holds the volume's lease answers.
    Ownership,
    /// The engine answers, or an operation on the catalog, tenants or stores does.
    Operation,
}

impl Stage {
    /// The stage after this one: nothing after the last.
    pub fn next(self) -> Option<Stage> {
        Some(match self {
            Stage::Audit => Stage::Scope,
            Stage::Scope => Stage::Unknown,
            Stage::Unknown => Stage::Visibility,
            Stage::Visibility => Stage::Growth,
            Stage::Growth => Stage::Quota,
            Stage::Quota => Stage::Rates,
            Stage::Rates => Stage::Snapshots,
            Stage::Snapshots => Stage::Ownership,
            Stage::Ownership => Stage::Operation,
            Stage::Operation => return None,
        })
    }
}

/// The stages that keep requests or what they decide by. The first two are with the sessions,
/// because answers pass them too.
pub(super) struct Stages {
    pub unknown: UnknownVolumes,
    pub quotas: Quotas,
    pub rates: RateLimits,
    /// Requests that wait in the two stages before.
    pub drains: HeldDrains,
    pub snapshots: SnapshotNames,
    pub ownership: Ownership,
}
