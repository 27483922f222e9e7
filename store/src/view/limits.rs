//! Tenants with limits on operations and bytes a second, and their waiting requests. Also bytes
//! that parties share.

use super::snapshot::TenantState;
use longhaul_api::admin::Metrics;
use serde_json::{Value, json};

/// Bytes of answers under way, and of waiting input.
pub(super) fn bytes(out: &mut Metrics, answers: u64, waiting: u64) {
    out.single(
        "longhaul_store_answer_bytes",
        "gauge",
        "Bytes that answers which were begun and are not sent count for.",
        answers as f64,
    );
    out.single(
        "longhaul_store_waiting_bytes",
        "gauge",
        "Bytes that came in and are not stored yet, or wait for something else.",
        waiting as f64,
    );
}

/// Samples of each tenant.
pub(super) fn metrics(out: &mut Metrics, tenants: &[TenantState]) {
    type Value = fn(&TenantState) -> Option<f64>;
    let families: [(&str, &str, &str, Value); 8] = [
        (
            "longhaul_tenant_operations_total",
            "counter",
            "Operations of a tenant that has a limit, as far as they passed here.",
            |tenant| Some(tenant.totals.passed.operations as f64),
        ),
        ("longhaul_tenant_bytes_total", "counter", "Bytes of them.", |tenant| {
            Some(tenant.totals.passed.bytes as f64)
        }),
        (
            "longhaul_tenant_throttled_requests_total",
            "counter",
            "Requests that had to wait for the tenant's limits before they passed.",
            |tenant| Some(tenant.totals.throttled as f64),
        ),
        (
            "longhaul_tenant_throttled_seconds_total",
            "counter",
            "How long they did, all together.",
            |tenant| Some(tenant.totals.time.as_secs_f64()),
        ),
        (
            "longhaul_tenant_waiting_requests",
            "gauge",
            "Requests that wait for the tenant's limits.",
            |tenant| Some(tenant.waiting.requests as f64),
        ),
        ("longhaul_tenant_waiting_bytes", "gauge", "Bytes that these are about.", |tenant| {
            Some(tenant.waiting.bytes as f64)
        }),
        (
            "longhaul_tenant_limit_operations_per_second",
            "gauge",
            "Operations that the tenant may do here in a second.",
            |tenant| tenant.rates.operations.map(|limit| limit as f64),
        ),
        (
            "longhaul_tenant_limit_bytes_per_second",
            "gauge",
            "Bytes that the tenant may read and write here in a second.",
            |tenant| tenant.rates.bytes.map(|limit| limit as f64),
        ),
    ];
    for (name, kind, help, value) in families {
        let mut family = out.family(name, kind, help);
        for tenant in tenants {
            if let Some(value) = value(tenant) {
                family.sample(&[("tenant", &tenant.name)], value);
            }
        }
    }
}

/// The same of one.
pub(super) fn json(tenant: &TenantState) -> Value {
    let TenantState { name, rates, waiting, totals } = tenant;
    json!({
        "name": name,
        "limit_iops": rates.operations,
        "limit_rate": rates.bytes,
        "operations": totals.passed.operations,
        "bytes": totals.passed.bytes,
        "throttled_requests": totals.throttled,
        "throttled_seconds": totals.time.as_secs_f64(),
        "waiting_requests": waiting.requests,
        "waiting_bytes": waiting.bytes,
    })
}
