//! How a store shows what it asks of a bucket.

use super::view::VolumeState;
use longhaul_api::admin::Metrics;
use longhaul_objects::Usage;
use serde_json::{Value, json};

/// Counters and times for Prometheus.
pub fn metrics(out: &mut Metrics, usage: &Usage, volumes: &[VolumeState]) {
    let mut family = out.family(
        "longhaul_store_object_requests_total",
        "counter",
        "Requests to the bucket, every attempt counted.",
    );
    for ((operation, outcome), count) in &usage.requests {
        let labels = [("operation", operation.name()), ("outcome", outcome.name())];
        family.sample(&labels, *count as f64);
    }
    let mut family = out.family(
        "longhaul_store_object_request_seconds",
        "histogram",
        "Time until the answer to a request to the bucket began.",
    );
    for (operation, histogram) in &usage.seconds {
        family.histogram(
            &[("operation", operation.name())],
            histogram.buckets(),
            histogram.above(),
            histogram.seconds(),
        );
    }
    let volumes = volumes.iter().filter_map(|volume| {
        Some((volume.info.name.as_str(), usage.volumes.get(&volume.info.id)?))
    });
    let mut family = out.family(
        "longhaul_store_volume_requests_total",
        "counter",
        "Requests to the bucket about a volume, by their usual price: put (with lists) or get.",
    );
    for (name, priced) in volumes {
        for (class, count) in [("put", priced.puts), ("get", priced.gets)] {
            family.sample(&[("volume", name), ("class", class)], count as f64);
        }
    }
    for (name, help, value) in [
        (
            "longhaul_store_object_sent_bytes_total",
            "Bytes of objects sent to the bucket, every attempt counted.",
            usage.sent_bytes as f64,
        ),
        (
            "longhaul_store_object_received_bytes_total",
            "Bytes of objects received from the bucket.",
            usage.received_bytes as f64,
        ),
        (
            "longhaul_store_object_retries_total",
            "Requests to the bucket that were another attempt at the same.",
            usage.retries as f64,
        ),
        (
            "longhaul_store_object_pauses_total",
            "Pauses of all requests because the bucket asked for fewer.",
            usage.pauses as f64,
        ),
        (
            "longhaul_store_object_paused_seconds_total",
            "How long these pauses were.",
            usage.paused.as_secs_f64(),
        ),
    ] {
        out.single(name, "counter", help, value);
    }
}

/// The totals for the status.
pub fn json(usage: &Usage) -> Value {
    let requests: Vec<_> = usage
        .requests
        .iter()
        .map(|((operation, outcome), count)| {
            json!({"operation": operation.name(), "outcome": outcome.name(), "requests": count})
        })
        .collect();
    json!({
        "requests": requests,
        "sent_bytes": usage.sent_bytes,
        "received_bytes": usage.received_bytes,
        "retries": usage.retries,
        "pauses": usage.pauses,
        "paused_seconds": usage.paused.as_secs_f64(),
    })
}
