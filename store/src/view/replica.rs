//! The metrics of the replica.

use longhaul_api::admin::Metrics;
use longhaul_core::wire::link::ReplicaState;

/// For Prometheus.
pub(super) fn metrics(out: &mut Metrics, state: &ReplicaState) {
    let help = "How long the oldest operation has been waiting to be repeated at the replica.";
    out.single("longhaul_replica_lag_seconds", "gauge", help, state.lag_ms as f64 / 1e3);
    let help = "Bytes of objects that are not at the replica, as far as that is known.";
    out.single("longhaul_replica_lag_bytes", "gauge", help, state.bytes as f64);
    let help = "Operations of this store that are not repeated at the replica.";
    out.single("longhaul_replica_lag_operations", "gauge", help, state.operations as f64);
    let help = "Volumes for which the missing objects of the replica are unknown.";
    out.single("longhaul_replica_volumes_unknown", "gauge", help, state.unknown as f64);
    let help =
        "Whether the replica has had everything once, so that a store can take over with it.";
    out.single("longhaul_replica_complete", "gauge", help, f64::from(u8::from(state.built)));
    let help = "Whether all that is committed is at the replica, too.";
    let in_step = state.in_step && state.built && state.unknown == 0;
    out.single("longhaul_replica_in_step", "gauge", help, f64::from(u8::from(in_step)));
    let help = "Whether the last operation at the replica failed.";
    let trouble = f64::from(u8::from(state.trouble.is_some()));
    out.single("longhaul_replica_trouble", "gauge", help, trouble);
    let help = "Bytes of objects put at the replica.";
    out.single("longhaul_replica_put_bytes_total", "counter", help, state.put_bytes as f64);
    let help = "Bytes of objects that were there from before, and were not sent.";
    out.single("longhaul_replica_reused_bytes_total", "counter", help, state.reused_bytes as f64);
}
