//! Tenants: the owner of each volume, and the limits and permissions of each tenant.
//!
//! ```text
//! tenants/NAME/0000000000000001    the limits of a tenant: the last one counts
//! ```
//!
//! A volume of a tenant has the name `TENANT/NAME`, except in the tenant's own sessions, which know
//! only the second half. Volumes without a tenant belong to the installation itself.

use super::catalog::{CatalogError, check_name, parse_number};
use super::throttle::Rates;
use crate::wire::link::TenantLimits;
use serde::{Deserialize, Serialize};

/// Beginning of the keys of all tenants.
pub const TENANTS_PREFIX: &str = "tenants/";
/// Longest name of a tenant, in bytes.
pub const MAX_TENANT_BYTES: usize = 63;
/// Most bytes of an encoded record.
pub const MAX_TENANT_RECORD_BYTES: usize = 8192;

/// A volume's tenant, if it has one, and its name there.
#[must_use]
pub fn split(name: &str) -> (Option<&str>, &str) {
    name.split_once('/').map_or((None, name), |(tenant, name)| (Some(tenant), name))
}

/// The tenant of a volume of that name.
#[must_use]
pub fn tenant_of(name: &str) -> Option<&str> {
    split(name).0
}

/// The name of a tenant's volume.
#[must_use]
pub fn within(tenant: Option<&str>, name: &str) -> String {
    tenant.map_or_else(|| name.to_owned(), |tenant| format!("{tenant}/{name}"))
}

/// Checks the name of a tenant: as that of a volume, with at most [`MAX_TENANT_BYTES`].
///
/// # Errors
/// [`CatalogError::Tenant`].
pub fn check_tenant(name: &str) -> Result<(), CatalogError> {
    let good = name.len() <= MAX_TENANT_BYTES && check_name(name).is_ok();
    if good { Ok(()) } else { Err(CatalogError::Tenant(name.chars().take(300).collect())) }
}

/// Checks the name of a volume that may have a tenant: `NAME` or `TENANT/NAME`.
///
/// # Errors
/// [`CatalogError::Tenant`], [`CatalogError::Name`].
pub fn check_volume_name(name: &str) -> Result<(), CatalogError> {
    let (tenant, name) = split(name);
    tenant.map_or(Ok(()), check_tenant)?;
    check_name(name)
}

/// Beginning of the keys of a tenant's records.
#[must_use]
pub fn prefix(tenant: &str) -> String {
    format!("{TENANTS_PREFIX}{tenant}/")
}

/// The key of a tenant's record.
#[must_use]
pub fn key(tenant: &str, number: u64) -> String {
    format!("{TENANTS_PREFIX}{tenant}/{number:016x}")
}

/// Tenant and number of a record's key, if it is a key of this form.
#[must_use]
pub fn parse_key(key: &str) -> Option<(&str, u64)> {
    let (tenant, number) = key.strip_prefix(TENANTS_PREFIX)?.split_once('/')?;
    check_tenant(tenant).ok()?;
    Some((tenant, parse_number("", number)?))
}

/// The limits of the requests of a store: its part of the tenant's limits. `stores` stores share
/// these. No limit is less than one a second.
#[must_use]
pub fn rates(limits: &TenantLimits, stores: u64) -> Rates {
    let part = |limit: Option<u64>| limit.map(|limit| (limit / stores.max(1)).max(1));
    Rates { operations: part(limits.max_iops), bytes: part(limits.max_rate) }
}

/// The content of the object at [`key`]: what the tenant may have and do, or that there is no such
/// tenant any more.
#[must_use]
pub fn encode(limits: Option<&TenantLimits>) -> Vec<u8> {
    let stored = Stored { version: VERSION, limits: limits.map(StoredLimits::from) };
    // Serializing integers into memory cannot fail.
    let mut out = serde_json::to_vec(&stored).unwrap_or_default();
    out.push(b'\n');
    out
}

/// Reads the output of [`encode`]; `key` is the key of the object.
///
/// # Errors
/// [`CatalogError::TenantRecord`] unless it is one.
pub fn decode(key: &str, bytes: &[u8]) -> Result<Option<TenantLimits>, CatalogError> {
    let bad = |reason: String| CatalogError::TenantRecord { key: key.to_owned(), reason };
    if bytes.len() > MAX_TENANT_RECORD_BYTES {
        return Err(bad(format!("it has {} bytes", bytes.len())));
    }
    let stored: Stored = serde_json::from_slice(bytes).map_err(|error| bad(error.to_string()))?;
    if stored.version != VERSION {
        return Err(bad(format!(
            "it is of version {}, which needs a newer longhaul",
            stored.version
        )));
    }
    Ok(stored.limits.map(TenantLimits::from))
}

const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limits: Option<StoredLimits>,
}

#[derive(Serialize, Deserialize)]
struct StoredLimits {
    max_volumes: Option<u64>,
    max_bytes: Option<u64>,
    max_stored: Option<u64>,
    max_iops: Option<u64>,
    max_rate: Option<u64>,
}

impl From<&TenantLimits> for StoredLimits {
    fn from(limits: &TenantLimits) -> StoredLimits {
        let TenantLimits { max_volumes, max_bytes, max_stored, max_iops, max_rate } = *limits;
        StoredLimits { max_volumes, max_bytes, max_stored, max_iops, max_rate }
    }
}

impl From<StoredLimits> for TenantLimits {
    fn from(stored: StoredLimits) -> TenantLimits {
        let StoredLimits { max_volumes, max_bytes, max_stored, max_iops, max_rate } = stored;
        TenantLimits { max_volumes, max_bytes, max_stored, max_iops, max_rate }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_volumes_with_tenants() {
        for good in ["a", "t/a", &format!("{}/{}", "t".repeat(63), "a".repeat(255))] {
            assert_eq!(check_volume_name(good), Ok(()), "{good}");
            let (tenant, name) = split(good);
            assert_eq!(within(tenant, name), good);
        }
        let long = format!("{}/a", "t".repeat(64));
        for bad in ["", "/", "/a", "t/", "t//a", "t/a/b", "../a", "t/..", "_t/a", "t /a", &long] {
            let error = check_volume_name(bad).unwrap_err().to_string();
            assert!(error.contains("letters"), "{error}");
        }
        assert_eq!((tenant_of("a"), tenant_of("t/a")), (None, Some("t")));
    }

    #[test]
    fn records_round_trip_and_keep_their_form() {
        let limits =
            TenantLimits { max_volumes: Some(3), max_iops: Some(500), ..TenantLimits::default() };
        let key = key("acme", 17);
        assert_eq!(parse_key(&key), Some(("acme", 17)));
        let text = String::from_utf8(encode(Some(&limits))).unwrap();
        let form = "\"max_volumes\":3,\"max_bytes\":null,\"max_stored\":null,\"max_iops\":500,\
                    \"max_rate\":null";
        assert_eq!(text, format!("{{\"version\":1,\"limits\":{{{form}}}}}\n"));
        assert_eq!(decode(&key, text.as_bytes()), Ok(Some(limits)));
        assert_eq!(encode(None), b"{\"version\":1}\n");
        assert_eq!(decode(&key, &encode(None)), Ok(None));
        for bad in ["{", "{\"version\":2}", "{\"version\":1,\"limits\":{\"max_volumes\":-1}}"] {
            let error = decode(&key, bad.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(&key), "{error}");
        }
        for other in ["tenants/a", "tenants/_a/0000000000000001", "tenants/a/1"] {
            assert_eq!(parse_key(other), None);
        }
    }

    #[test]
    fn stores_share_what_a_tenant_may_do() {
        let limits = TenantLimits { max_iops: Some(1000), ..TenantLimits::default() };
        let share = |stores| rates(&limits, stores);
        assert_eq!(share(1), Rates { operations: Some(1000), bytes: None });
        assert_eq!(share(3).operations, Some(333));
        assert_eq!((share(0).operations, share(2000).operations), (Some(1000), Some(1)));
        assert_eq!(rates(&TenantLimits::default(), 2), Rates::default());
    }
}
