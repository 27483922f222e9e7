//! Operations on the catalog, tenants and maps: the state of those that take more than one step.

pub(super) mod attributes;
pub(super) mod clones;
pub(super) mod jobs;
pub(super) mod lists;
pub(super) mod map_diff;
pub(super) mod own_queries;
pub(super) mod tenants;
pub(super) mod trash;

use clones::Clones;
use jobs::CatalogJobs;
use lists::VolumeLists;
use map_diff::MapDiffs;
use own_queries::OwnQueries;
use tenants::TenantOperations;
use trash::Trash;

pub(super) struct Operations {
    pub jobs: CatalogJobs,
    pub clones: Clones,
    pub trash: Trash,
    pub lists: VolumeLists,
    pub diffs: MapDiffs,
    pub queries: OwnQueries,
    pub tenants: TenantOperations,
}
