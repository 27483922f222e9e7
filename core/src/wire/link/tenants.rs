//! Messages about tenants.

use serde::{Deserialize, Serialize};

/// The limits and permissions of a tenant; `None` is no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantLimits {
    /// Most volumes.
    pub max_volumes: Option<u64>,
    /// Most bytes of all volumes together, as large as they are.
    pub max_bytes: Option<u64>,
    /// Most bytes that the data of all volumes takes at the store, that of deleted ones included.
    pub max_stored: Option<u64>,
    /// Most operations a second on all volumes together, never zero.
    pub max_iops: Option<u64>,
    /// Most bytes a second, read and written, of all volumes together, never zero.
    pub max_rate: Option<u64>,
}

/// Something about tenants, which only the installation's own credential may ask for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TenantOperation {
    /// Makes one.
    Create {
        /// Its name.
        tenant: String,
        /// Its limits.
        limits: TenantLimits,
    },
    /// Replaces the limits and permissions of a tenant. The tenant keeps its volumes.
    Set {
        /// Which.
        tenant: String,
        /// All of it.
        limits: TenantLimits,
    },
    /// Shows one.
    Show {
        /// Which.
        tenant: String,
    },
    /// Lists all.
    List,
    /// Deletes one that has no volumes, deleted ones included.
    Delete {
        /// Which.
        tenant: String,
    },
}

/// The outcome of a [`TenantOperation`] that succeeded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TenantReply {
    /// Deleted.
    Done,
    /// Created, changed or shown.
    Tenant(TenantInfo),
    /// All tenants, by name.
    List(Vec<TenantInfo>),
}

/// The facts about a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantInfo {
    /// Its name.
    pub name: String,
    /// Its limits.
    pub limits: TenantLimits,
    /// Volumes that it has.
    pub volumes: u64,
    /// Bytes of these together, as large as they are.
    pub bytes: u64,
    /// Deleted volumes that still have data.
    pub deleted: u64,
    /// Bytes that the data of all of these takes at the store.
    pub stored: u64,
    /// Requests that wait at the asked store for the limits on operations and bytes a second.
    pub waiting_requests: u64,
    /// Bytes that these are about.
    pub waiting_bytes: u64,
}
