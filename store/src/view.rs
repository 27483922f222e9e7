//! The pages of the admin address of a store. The actor answers questions between two events.

mod limits;
mod replica;
mod snapshot;

pub use snapshot::{
    CollectCounts, Counts, FleetState, MapCounts, MapMemory, SessionState, Snapshot, TenantState,
    VolumeState,
};

use super::replica::Replica;
use super::scrub::Scrub;
use super::usage;
use async_trait::async_trait;
use longhaul_api::admin::{Metrics, Report, Unready};
use longhaul_api::types::{self, Volume};
use longhaul_core::wire::link::VolumeInfo;
use longhaul_link::transport::{PathStatus, Statistics};
use longhaul_objects::{CacheReport, StorageError, StorageErrorKind};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// Asks the store service for its state.
pub type Question = oneshot::Sender<Snapshot>;

/// The admin address's way to the store service.
#[derive(Clone)]
pub struct View {
    questions: mpsc::Sender<Question>,
    scrub: Scrub,
    http: Arc<longhaul_api::Counts>,
    replica: Arc<Replica>,
}

impl View {
    /// Asks over this channel, this scrub, what counts HTTP, and who knows of a replica.
    pub fn new(
        questions: mpsc::Sender<Question>,
        scrub: Scrub,
        http: Arc<longhaul_api::Counts>,
        replica: Arc<Replica>,
    ) -> View {
        View { questions, scrub, http, replica }
    }

    async fn snapshot(&self) -> Option<Snapshot> {
        let (sender, snapshot) = oneshot::channel();
        self.questions.send(sender).await.ok()?;
        snapshot.await.ok()
    }
}

fn http_metrics(out: &mut Metrics, counts: &longhaul_api::Counts) {
    let help = "Requests of the HTTP API.";
    let requests = counts.requests() as f64;
    out.single("longhaul_store_http_requests_total", "counter", help, requests);
    let help = "Connections over which it is spoken.";
    let connections = counts.connections() as f64;
    out.single("longhaul_store_http_connections", "gauge", help, connections);
    let help = "Connections that were turned away, as there were too many.";
    let refused = counts.refused() as f64;
    out.single("longhaul_store_http_refused_total", "counter", help, refused);
}

fn map_metrics(out: &mut Metrics, memory: &MapMemory, counts: &MapCounts) {
    let help = "Memory of the volumes' maps: recent changes, and pages of the rest.";
    let mut family = out.family("longhaul_store_map_bytes", "gauge", help);
    for (kind, bytes) in [("tables", memory.tables), ("pages", memory.pages)] {
        family.sample(&[("kind", kind)], bytes as f64);
    }
    let help = "Limit of both together.";
    out.single("longhaul_store_map_limit_bytes", "gauge", help, memory.limit as f64);
    for (name, help, value) in [
        (
            "longhaul_store_map_hits_total",
            "Pages of maps that were in memory when they were needed.",
            memory.hits,
        ),
        ("longhaul_store_map_misses_total", "Pages of maps that had to be read.", memory.misses),
        ("longhaul_store_map_flushes_total", "Tables of maps written.", counts.flushes),
        ("longhaul_store_map_flushed_bytes_total", "Bytes of that.", counts.flushed_bytes),
        (
            "longhaul_store_map_merged_bytes_total",
            "Bytes of maps written by merges.",
            counts.merged_bytes,
        ),
        (
            "longhaul_store_map_deletes_total",
            "Objects of maps that were no longer needed and deleted.",
            counts.deletes,
        ),
    ] {
        out.single(name, "counter", help, value as f64);
    }
}

fn collect_metrics(out: &mut Metrics, counts: &CollectCounts, volumes: &[VolumeState]) {
    for (name, help, value) in [
        (
            "longhaul_store_gc_moved_bytes_total",
            "Bytes of bundles written, with the needed data of badly used segments.",
            counts.moved_bytes,
        ),
        (
            "longhaul_store_gc_moved_segments_total",
            "Segments and parts of bundles whose rest is in these.",
            counts.moved_segments,
        ),
        (
            "longhaul_store_gc_reclaimed_objects_total",
            "Segments and bundles that are not needed any more; they are deleted ten minutes later.",
            counts.reclaimed,
        ),
        ("longhaul_store_gc_reclaimed_bytes_total", "Bytes of them.", counts.reclaimed_bytes),
        (
            "longhaul_store_gc_damaged_objects_total",
            "Damaged segments and bundles, whose needed data stays where it is.",
            counts.damaged,
        ),
    ] {
        out.single(name, "counter", help, value as f64);
    }
    let help = "Bytes of a volume's segments and bundles, and of their needed data, at the last \
                count.";
    let mut family = out.family("longhaul_store_gc_volume_bytes", "gauge", help);
    for volume in volumes {
        if let Some((stored, named)) = volume.space {
            let name = volume.info.name.as_str();
            family.sample(&[("volume", name), ("kind", "stored")], stored as f64);
            family.sample(&[("volume", name), ("kind", "needed")], named as f64);
        }
    }
}

fn failure_metrics(out: &mut Metrics, failures: &BTreeMap<StorageErrorKind, u64>) {
    let mut family = out.family(
        "longhaul_store_object_failures_by_kind_total",
        "counter",
        "Operations on objects that failed, by what has to be done about it.",
    );
    for kind in StorageErrorKind::ALL {
        let count = failures.get(&kind).copied().unwrap_or_default();
        family.sample(&[("kind", kind.name())], count as f64);
    }
}

#[async_trait]
impl Report for View {
    async fn metrics(&self) -> String {
        let snapshot = self.snapshot().await.unwrap_or_default();
        let mut out = Metrics::default();
        let (counts, datagrams) = (snapshot.counts, snapshot.datagrams);
        failure_metrics(&mut out, &counts.failures);
        out.single(
            "longhaul_store_sessions",
            "gauge",
            "Connected hosts.",
            snapshot.sessions.len() as f64,
        );
        out.single("longhaul_store_volumes", "gauge", "Volumes.", snapshot.volumes.len() as f64);
        out.single(
            "longhaul_store_volumes_open",
            "gauge",
            "Volumes that are open: those in use, and for a minute after.",
            snapshot.open as f64,
        );
        limits::bytes(&mut out, snapshot.answer_bytes, snapshot.waiting_bytes);
        if let Some(fleet) = snapshot.fleet {
            let evacuating = usize::from(fleet.evacuating);
            for (name, help, value) in [
                ("longhaul_store_leases", "Volumes that this store has.", fleet.leases),
                ("longhaul_store_stores", "Stores of the installation.", fleet.stores),
                ("longhaul_store_evacuating", "Whether hosts are to leave it.", evacuating),
            ] {
                out.single(name, "gauge", help, value as f64);
            }
            for (name, help, value) in [
                (
                    "longhaul_store_failovers_total",
                    "Volumes taken from a store that did not answer.",
                    counts.failovers,
                ),
                (
                    "longhaul_store_taken_over_total",
                    "Volumes taken from a store that let go of them.",
                    counts.taken_over,
                ),
                (
                    "longhaul_store_handed_over_total",
                    "Volumes let go for another store.",
                    counts.handed_over,
                ),
                (
                    "longhaul_store_forwarded_total",
                    "Requests passed on to the store that has the volume.",
                    counts.forwarded,
                ),
                (
                    "longhaul_store_rebalanced_total",
                    "Hosts asked to go to a store with less load.",
                    counts.rebalanced,
                ),
            ] {
                out.single(name, "counter", help, value as f64);
            }
        }
        for (name, help, value) in [
            ("longhaul_store_frames_total", "Frames from hosts.", counts.frames),
            (
                "longhaul_store_received_bytes_total",
                "Payload bytes from hosts.",
                counts.received_bytes,
            ),
            ("longhaul_store_sent_bytes_total", "Payload bytes to hosts.", counts.sent_bytes),
            ("longhaul_store_object_puts_total", "Objects created.", counts.puts),
            (
                "longhaul_store_object_put_bytes_total",
                "Bytes in objects created.",
                counts.put_bytes,
            ),
            (
                "longhaul_store_object_gets_total",
                "Ranges read of objects, or of the cache.",
                counts.gets,
            ),
            ("longhaul_store_object_get_bytes_total", "Bytes in them.", counts.get_bytes),
            ("longhaul_store_object_lists_total", "Lists of objects asked for.", counts.lists),
            ("longhaul_store_object_deletes_total", "Objects deleted.", counts.deletes),
            (
                "longhaul_store_object_failures_total",
                "Operations on objects that failed.",
                counts.failures.values().sum(),
            ),
            (
                "longhaul_store_link_early_sessions_total",
                "Sessions that hosts began with data in the first flight (0-RTT).",
                snapshot.early,
            ),
            (
                "longhaul_store_datagram_requests_total",
                "Small reads asked for in datagrams.",
                datagrams.requests,
            ),
            (
                "longhaul_store_datagram_repeats_total",
                "The ones among them that came again because of a lost or late part of the reply.",
                datagrams.repeats,
            ),
            (
                "longhaul_store_datagram_replies_total",
                "Replies sent in datagrams.",
                datagrams.replies,
            ),
            (
                "longhaul_store_datagram_by_stream_total",
                "Replies that datagrams do not carry: the host has to ask by stream.",
                datagrams.by_stream,
            ),
            (
                "longhaul_store_datagram_sent_bytes_total",
                "Bytes of replies sent in datagrams, once each.",
                datagrams.sent_bytes,
            ),
            (
                "longhaul_store_datagram_redundant_bytes_total",
                "Bytes of parity sent beside them.",
                datagrams.redundant_bytes,
            ),
            (
                "longhaul_store_datagram_repeated_bytes_total",
                "Bytes of replies sent again on request.",
                datagrams.repeated_bytes,
            ),
        ] {
            out.single(name, "counter", help, value as f64);
        }
        http_metrics(&mut out, &self.http);
        map_metrics(&mut out, &snapshot.map, &counts.map);
        collect_metrics(&mut out, &counts.collect, &snapshot.volumes);
        limits::metrics(&mut out, &snapshot.tenants);
        if let Some(report) = &snapshot.cache {
            cache_metrics(&mut out, report);
        }
        if let Some(usage) = &snapshot.usage {
            usage::metrics(&mut out, usage, &snapshot.volumes);
        }
        self.scrub.metrics(&mut out);
        self.replica.repair().metrics(&mut out);
        if let Some(state) = self.replica.state() {
            replica::metrics(&mut out, &state);
        }
        out.single(
            "longhaul_store_object_put_seconds_total",
            "counter",
            "Time spent creating objects.",
            counts.put.seconds(),
        );
        let help = "Time in a stage. Divide its sum by the number of requests for the time of one.";
        let mut family = out.family("longhaul_stage_seconds", "histogram", help);
        for (stage, histogram) in
            [("store", &counts.work), ("object_get", &counts.get), ("object_put", &counts.put)]
        {
            family.histogram(
                &[("stage", stage)],
                histogram.buckets(),
                histogram.above(),
                histogram.seconds(),
            );
        }
        let live = |value: fn(&longhaul_core::wire::link::LiveInfo) -> f64| {
            let volumes = snapshot.volumes.iter();
            volumes
                .filter_map(move |volume| {
                    Some((volume.info.name.as_str(), value(volume.info.live.as_ref()?)))
                })
                .collect::<Vec<_>>()
        };
        for (name, help, samples) in [
            (
                "longhaul_store_volume_epoch",
                "Current epoch of an open volume.",
                live(|live| live.epoch as f64),
            ),
            (
                "longhaul_store_volume_attached",
                "Whether a host that has the volume attached is connected.",
                live(|live| f64::from(live.connected)),
            ),
            (
                "longhaul_store_volume_committed_seq",
                "Last committed number.",
                live(|live| live.committed as f64),
            ),
            (
                "longhaul_store_volume_segments",
                "Segments in the log.",
                live(|live| live.segments as f64),
            ),
            (
                "longhaul_store_volume_mapped_bytes",
                "Most bytes of data that the map refers to: overwritten data counts until a merge.",
                live(|live| live.mapped_bytes as f64),
            ),
            (
                "longhaul_store_volume_announced_bytes",
                "Bytes acknowledged at the host that have not arrived.",
                live(|live| live.announced_bytes as f64),
            ),
        ] {
            let mut family = out.family(name, "gauge", help);
            for (volume, value) in samples {
                family.sample(&[("volume", volume)], value);
            }
        }
        let mut family = out.family(
            "longhaul_store_volume_failed",
            "gauge",
            "Whether the volume cannot be used, or its objects not be written.",
        );
        for volume in &snapshot.volumes {
            let failed = volume.failed.is_some() || volume.retrying.is_some();
            family.sample(&[("volume", &volume.info.name)], f64::from(failed));
        }
        let families: [(&str, &str, &str, fn(&Statistics) -> f64); 8] = [
            ("longhaul_store_session_rtt_seconds", "gauge", "Round-trip time to a host.", |link| {
                link.rtt.as_secs_f64()
            }),
            (
                "longhaul_store_session_window_bytes",
                "gauge",
                "Bytes that may be under way to a host.",
                |link| link.path.window as f64,
            ),
            (
                "longhaul_store_session_rate_bytes_per_second",
                "gauge",
                "Rate of the path to a host at its last use.",
                |link| link.path.rate as f64,
            ),
            (
                "longhaul_store_session_base_rtt_seconds",
                "gauge",
                "Least round-trip time to a host of the last seconds.",
                |link| link.path.base_rtt.as_secs_f64(),
            ),
            (
                "longhaul_store_session_queue_seconds",
                "gauge",
                "Queue in front of the bottleneck on the way to a host.",
                |link| link.path.queue.as_secs_f64(),
            ),
            (
                "longhaul_store_session_competing",
                "gauge",
                "Whether traffic of others fills that queue.",
                |link| f64::from(u8::from(link.path.competing)),
            ),
            (
                "longhaul_store_session_lost_bytes_total",
                "counter",
                "Bytes in packets lost.",
                |link| link.lost_bytes as f64,
            ),
            (
                "longhaul_store_session_queue_lost_bytes_total",
                "counter",
                "Bytes lost while the queue was long.",
                |link| link.path.queue_lost_bytes as f64,
            ),
        ];
        for (name, kind, help, value) in families {
            let mut family = out.family(name, kind, help);
            for session in &snapshot.sessions {
                family.sample(&[("peer", &session.peer.to_string())], value(&session.link));
            }
        }
        out.finish()
    }

    async fn status(&self) -> Result<Value, String> {
        let snapshot = self.snapshot().await.ok_or("the store is shutting down")?;
        let volumes: Vec<_> = snapshot
            .volumes
            .iter()
            .map(|volume| {
                let mut value = info_json(&volume.info);
                value["failed"] = json!(volume.failed);
                let retrying = volume.retrying.as_ref();
                value["retrying"] = json!(retrying.map(StorageError::message));
                value["retrying_kind"] = json!(retrying.map(|error| error.kind().name()));
                value["space"] = json!(volume.space.map(|(stored, needed)| {
                    json!({ "stored_bytes": stored, "needed_bytes": needed })
                }));
                value["damage"] = self.scrub.volume_json(&volume.info.name);
                value
            })
            .collect();
        let sessions: Vec<_> = snapshot
            .sessions
            .iter()
            .map(|session| {
                json!({
                    "peer": session.peer.to_string(),
                    "rtt_ms": session.link.rtt.as_secs_f64() * 1e3,
                    "path": PathStatus::from(session.link.path),
                    "lost_packets": session.link.lost_packets,
                    "lost_bytes": session.link.lost_bytes,
                    "queue_lost_bytes": session.link.path.queue_lost_bytes,
                })
            })
            .collect();
        let datagrams = snapshot.datagrams;
        let datagrams = json!({
            "requests": datagrams.requests,
            "repeats": datagrams.repeats,
            "replies": datagrams.replies,
            "by_stream": datagrams.by_stream,
            "sent_bytes": datagrams.sent_bytes,
            "redundant_bytes": datagrams.redundant_bytes,
            "repeated_bytes": datagrams.repeated_bytes,
        });
        let cache = snapshot.cache.as_ref().map(cache_json);
        Ok(json!({
            "volumes": volumes,
            "sessions": sessions,
            "tenants": snapshot.tenants.iter().map(limits::json).collect::<Vec<_>>(),
            "datagrams": datagrams,
            "early_sessions": snapshot.early,
            "cache": cache,
            "bucket": snapshot.usage.as_ref().map(usage::json),
            "scrub": self.scrub.json(),
            "replica": self.replica.state().as_ref().map(types::Replica::from),
        }))
    }

    async fn ready(&self) -> Vec<Unready> {
        let Some(snapshot) = self.snapshot().await else {
            let detail = "the store is shutting down".to_owned();
            return vec![Unready { reason: "shutting-down", volume: None, detail }];
        };
        let wrong = snapshot.volumes.iter().filter_map(|volume| {
            let (reason, why) = match (&volume.failed, &volume.retrying) {
                (Some(why), _) => ("volume-failed", why.as_str()),
                (None, Some(why)) => ("volume-waits", why.message()),
                (None, None) => return None,
            };
            let name = volume.info.name.clone();
            let detail = format!("volume {name}: {why}");
            Some(Unready { reason, volume: Some(name), detail })
        });
        wrong.collect()
    }
}

fn cache_metrics(out: &mut Metrics, report: &CacheReport) {
    let status = &report.status;
    let cache = &status.cache;
    for (name, help, value) in [
        (
            "longhaul_store_cache_capacity_bytes",
            "Room for data in the cache in front of the objects.",
            cache.capacity_bytes,
        ),
        ("longhaul_store_cache_bytes", "Data in it.", cache.valid_bytes),
        ("longhaul_store_cache_off", "Whether its disk has failed.", u64::from(cache.off)),
    ] {
        out.single(name, "gauge", help, value as f64);
    }
    let counters = &cache.counters;
    for (name, help, value) in [
        ("longhaul_store_cache_hits_total", "Reads that it answered.", status.hits),
        ("longhaul_store_cache_hit_bytes_total", "Bytes in them.", status.hit_bytes),
        (
            "longhaul_store_cache_misses_total",
            "Reads of data that the objects had to answer.",
            status.misses,
        ),
        ("longhaul_store_cache_miss_bytes_total", "Bytes in them.", status.miss_bytes),
        (
            "longhaul_store_cache_written_bytes_total",
            "Bytes written to its disk.",
            counters.written_bytes,
        ),
        (
            "longhaul_store_cache_evictions_total",
            "Lines that had to go for others.",
            counters.evictions,
        ),
        (
            "longhaul_store_cache_refused_bytes_total",
            "Bytes that it did not want.",
            counters.refused_bytes,
        ),
        (
            "longhaul_store_cache_behind_bytes_total",
            "Bytes that its disk was too slow for.",
            counters.behind_bytes,
        ),
        (
            "longhaul_store_cache_damaged_blocks_total",
            "Blocks that were damaged on its disk.",
            counters.damaged_blocks,
        ),
    ] {
        out.single(name, "counter", help, value as f64);
    }
}

fn cache_json(report: &CacheReport) -> Value {
    let status = &report.status;
    json!({
        "off": status.cache.off,
        "capacity_bytes": status.cache.capacity_bytes,
        "bytes": status.cache.valid_bytes,
        "hits": status.hits,
        "hit_bytes": status.hit_bytes,
        "misses": status.misses,
        "miss_bytes": status.miss_bytes,
        "written_bytes": status.cache.counters.written_bytes,
        "damaged_blocks": status.cache.counters.damaged_blocks,
    })
}

/// A volume as JSON, the same everywhere.
fn info_json(info: &VolumeInfo) -> Value {
    // Strings and numbers become JSON without fail.
    serde_json::to_value(Volume::from(info)).unwrap_or_default()
}
