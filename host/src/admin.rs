//! What the admin listener of a host shows: a question to the front thread, and its answer as JSON
//! or as numbers for Prometheus.

use super::metrics::Kind;
use super::ready;
use super::report::{Answer, CacheReport, Question, RewriteReport, VolumeReport};
use anyhow::{Context as _, Result};
use async_trait::async_trait;
use longhaul_api::admin::{self, Metrics, Refusal, Unready};
use longhaul_base::limits::{ADMIN_BODY_BYTES, ADMIN_SMALL_BODY_BYTES};
use longhaul_core::front::scsi::CommandClass;
use longhaul_core::wire::iscsi::RejectReason;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// How long the front thread may take for an answer before the host counts as hung.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Serves `address` from a thread of its own, unless that is `none`. `names` are what it may be called; `token` is
/// what whoever wants to change something has to show.
///
/// # Errors
/// If it cannot be listened on.
pub fn start(
    address: &str,
    names: &[String],
    token: String,
    questions: mpsc::Sender<Question>,
) -> Result<()> {
    match admin::bind(address, names)? {
        Some(listener) => admin::start(listener, Arc::new(Host { questions, token })),
        None => Ok(()),
    }
}

struct Host {
    questions: mpsc::Sender<Question>,
    token: String,
}

impl Host {
    async fn report(&self) -> Result<Answer> {
        self.ask(Question::Report).await
    }

    async fn ask<T>(&self, question: impl FnOnce(oneshot::Sender<T>) -> Question) -> Result<T> {
        let (sender, answer) = oneshot::channel();
        let asked = async {
            self.questions.send(question(sender)).await.ok()?;
            answer.await.ok()
        };
        tokio::time::timeout(ANSWER_LIMIT, asked)
            .await
            .context("the host's front thread does not answer")?
            .context("the host is stopping")
    }
}

#[async_trait]
impl admin::Report for Host {
    async fn metrics(&self) -> String {
        match self.report().await {
            Ok(answer) => prometheus(&answer),
            // Missing numbers are what alarms are made for.
            Err(error) => format!("# {error:#}\n"),
        }
    }

    async fn status(&self) -> Result<serde_json::Value, String> {
        let answer = self.report().await;
        answer
            .and_then(|answer| Ok(serde_json::to_value(answer.report)?))
            .map_err(|error| format!("{error:#}"))
    }

    async fn live(&self) -> Result<(), String> {
        match self.report().await {
            // A host that stops has not hung.
            Err(error) if !self.questions.is_closed() => Err(format!("{error:#}")),
            _ => Ok(()),
        }
    }

    async fn ready(&self) -> Vec<Unready> {
        match self.report().await {
            Ok(answer) => ready::reasons(&answer.report),
            Err(error) => {
                let hung = !self.questions.is_closed();
                let reason = if hung { "not-answering" } else { "shutting-down" };
                vec![Unready { reason, volume: None, detail: format!("{error:#}") }]
            }
        }
    }

    async fn page(&self, name: &str) -> Option<Result<serde_json::Value, String>> {
        if name == "traces" {
            let traces = self.ask(Question::Traces).await.flatten();
            let page = traces.and_then(|traces| Ok(serde_json::to_value(traces)?));
            return Some(page.map_err(|error| format!("{error:#}")));
        }
        if name == "pins" {
            let pins = self.ask(Question::Pins).await;
            let page = pins.and_then(|pins| Ok(serde_json::to_value(pins)?));
            return Some(page.map_err(|error| format!("{error:#}")));
        }
        if name == "nbd" {
            let rights = self.ask(Question::NbdRights).await;
            let page = rights.and_then(|rights| Ok(serde_json::to_value(rights)?));
            return Some(page.map_err(|error| format!("{error:#}")));
        }
        if name != "iscsi" {
            return None;
        }
        let rights = self.ask(Question::Rights).await;
        let page = rights.and_then(|rights| Ok(serde_json::to_value(rights)?));
        Some(page.map_err(|error| format!("{error:#}")))
    }

    fn may_change(&self, name: &str, token: &str) -> Option<Result<usize, Refusal>> {
        let most = match name {
            "iscsi" | "nbd" => ADMIN_SMALL_BODY_BYTES,
            "control" => ADMIN_BODY_BYTES,
            _ => return None,
        };
        Some(if same(token, &self.token) { Ok(most) } else { Err(Refusal::Forbidden) })
    }

    async fn change(&self, name: &str, change: serde_json::Value) -> Result<(), Refusal> {
        let unknown = |error| anyhow::Error::new(error).context("this host knows no such change");
        let changed = if name == "control" {
            match serde_json::from_value(change) {
                Ok(control) => {
                    self.ask(|sender| Question::Control(control, sender)).await.flatten()
                }
                Err(error) => Err(unknown(error)),
            }
        } else if name == "nbd" {
            match serde_json::from_value(change) {
                Ok(change) => {
                    self.ask(|sender| Question::NbdChange(change, sender)).await.flatten()
                }
                Err(error) => Err(unknown(error)),
            }
        } else {
            match serde_json::from_value(change) {
                Ok(change) => self.ask(|sender| Question::Change(change, sender)).await.flatten(),
                Err(error) => Err(unknown(error)),
            }
        };
        changed.map_err(|error| Refusal::Failed(format!("{error:#}")))
    }
}

/// Takes as long wherever they differ.
fn same(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

/// A number of a volume: name, help, value.
type Number = (&'static str, &'static str, fn(&VolumeReport) -> f64);

const GAUGES: [Number; 20] = [
    ("longhaul_host_volume_attached", "Whether the volume is attached.", |v| {
        f64::from(u8::from(v.state == "attached"))
    }),
    ("longhaul_host_epoch", "Writing epoch.", |v| v.epoch as f64),
    ("longhaul_host_size_bytes", "Size of the volume.", |v| v.size_bytes as f64),
    ("longhaul_host_lag_bytes", "Bytes the store has not committed.", |v| v.lag_bytes as f64),
    ("longhaul_host_lag_seconds", "Age of the oldest write the store has not committed.", |v| {
        v.lag_seconds
    }),
    ("longhaul_host_journal_used_bytes", "Journal space taken by undelivered writes.", |v| {
        v.journal_bytes as f64
    }),
    ("longhaul_host_journal_capacity_bytes", "Journal space.", |v| v.journal_capacity_bytes as f64),
    ("longhaul_host_journal_failed", "Whether the journal has failed.", |v| {
        f64::from(u8::from(v.journal_failed))
    }),
    ("longhaul_host_memory_bytes", "Buffers of writes in memory.", |v| v.memory_bytes as f64),
    ("longhaul_host_dirty_entries", "Entries of the dirty map.", |v| v.dirty_entries as f64),
    ("longhaul_host_in_flight_bytes", "Bytes shipped and not committed.", |v| {
        v.in_flight_bytes as f64
    }),
    ("longhaul_host_waiting_reads", "Reads that wait for disk or store.", |v| {
        v.waiting_reads as f64
    }),
    ("longhaul_host_waiting_writes", "Writes that wait for room.", |v| v.waiting_writes as f64),
    ("longhaul_host_waiting_flushes", "Flushes that wait for durability.", |v| {
        v.waiting_flushes as f64
    }),
    ("longhaul_readahead_buffered_bytes", "Memory taken by what was read ahead.", |v| {
        v.readahead.buffered_bytes as f64
    }),
    ("longhaul_readahead_in_flight_bytes", "Bytes being read ahead.", |v| {
        v.readahead.in_flight_bytes as f64
    }),
    ("longhaul_readahead_window_bytes", "How far ahead streams may be together.", |v| {
        v.readahead.window_bytes as f64
    }),
    ("longhaul_readahead_streams", "Streams read ahead of in the last second.", |v| {
        v.readahead.streams as f64
    }),
    ("longhaul_readahead_accuracy", "Share of what was read ahead that clients read.", |v| {
        v.readahead.accuracy.unwrap_or(1.0)
    }),
    ("longhaul_host_connections", "NBD clients.", |v| v.connections as f64),
];

/// Counters of `/status` with name and help.
const COUNTERS: [(&str, &str, &str); 32] = [
    ("reads", "longhaul_host_reads_total", "Read requests."),
    ("read_bytes", "longhaul_host_read_bytes_total", "Bytes they asked for."),
    ("writes", "longhaul_host_writes_total", "Write requests."),
    ("write_bytes", "longhaul_host_write_bytes_total", "Bytes they brought."),
    ("markers", "longhaul_host_markers_total", "Discard and zero requests."),
    ("flushes", "longhaul_host_flushes_total", "Flush requests."),
    ("stages", "longhaul_host_stages_total", "Requests to have the store stage data for a copy."),
    ("stage_bytes", "longhaul_host_stage_bytes_total", "Bytes they asked for."),
    ("copies", "longhaul_host_copies_total", "Writes of staged data."),
    ("copy_bytes", "longhaul_host_copy_bytes_total", "Bytes they wrote that never came here."),
    ("prefetches", "longhaul_host_prefetches_total", "Prefetch requests."),
    ("errors", "longhaul_host_errors_total", "Requests that failed."),
    ("memory_hit_bytes", "longhaul_host_memory_hit_bytes_total", "Bytes read from memory."),
    ("journal_hit_bytes", "longhaul_host_journal_hit_bytes_total", "Bytes read from the journal."),
    (
        "readahead_hit_bytes",
        "longhaul_host_readahead_hit_bytes_total",
        "Bytes read from what was read ahead.",
    ),
    ("cache_hit_bytes", "longhaul_host_cache_hit_bytes_total", "Bytes read from the read cache."),
    (
        "readahead_wait_bytes",
        "longhaul_host_readahead_wait_bytes_total",
        "Bytes that were being read ahead when clients asked for them.",
    ),
    ("readahead_issued_bytes", "longhaul_readahead_issued_bytes_total", "Bytes read ahead."),
    (
        "readahead_used_bytes",
        "longhaul_readahead_used_bytes_total",
        "Bytes read ahead that clients read.",
    ),
    (
        "readahead_wasted_bytes",
        "longhaul_readahead_wasted_bytes_total",
        "Bytes read ahead that were overwritten, lost or dropped before anyone read them.",
    ),
    (
        "store_read_bytes",
        "longhaul_host_store_read_bytes_total",
        "Bytes that had to be read from the store.",
    ),
    (
        "written_back_bytes",
        "longhaul_host_written_back_bytes_total",
        "Bytes of the read cache written back because they were damaged at the store.",
    ),
    ("batches", "longhaul_host_batches_total", "Batches shipped, repeats included."),
    ("batch_bytes", "longhaul_host_batch_bytes_total", "Bytes in them."),
    (
        "coalesced_bytes",
        "longhaul_host_coalesced_bytes_total",
        "Bytes overwritten before they were shipped.",
    ),
    (
        "packed_plain_bytes",
        "longhaul_packed_plain_bytes_total",
        "Bytes of data that were compressed, encrypted, or both.",
    ),
    ("packed_stored_bytes", "longhaul_packed_stored_bytes_total", "Bytes that came out of that."),
    (
        "packed_zero_bytes",
        "longhaul_packed_zero_bytes_total",
        "Bytes of zeroes left out of writes.",
    ),
    (
        "packed_untried_bytes",
        "longhaul_packed_untried_bytes_total",
        "Bytes not compressed because it had not paid just before.",
    ),
    ("journal_writes", "longhaul_host_journal_writes_total", "Write calls of the journal."),
    (
        "journal_write_bytes",
        "longhaul_host_journal_write_bytes_total",
        "Bytes written to the journal.",
    ),
    ("journal_syncs", "longhaul_host_journal_syncs_total", "Syncs of the journal."),
];

/// A number of encrypting anew: name, help, value.
type RewriteNumber = (&'static str, &'static str, fn(&RewriteReport) -> u64);

const REWRITE: [RewriteNumber; 5] = [
    ("longhaul_rewrite_done", "Whether everything is under the newest data key.", |r| {
        u64::from(r.done)
    }),
    ("longhaul_rewrite_total_bytes", "Bytes to be looked at for older data keys.", |r| {
        r.total_bytes
    }),
    ("longhaul_rewrite_looked_at_bytes", "Bytes of these that were.", |r| r.done_bytes),
    ("longhaul_rewrite_rewritten_bytes", "Bytes that were encrypted anew.", |r| r.rewritten_bytes),
    ("longhaul_rewrite_failed_bytes", "Bytes that the store could not give.", |r| r.failed_bytes),
];

/// A number of a read cache: name, type, help, value.
type CacheNumber = (&'static str, &'static str, &'static str, fn(&CacheReport) -> u64);

const CACHE: [CacheNumber; 18] = [
    ("longhaul_cache_ready", "gauge", "Whether the cache is in use.", |c| {
        u64::from(c.state == "ready")
    }),
    ("longhaul_cache_capacity_bytes", "gauge", "Bytes that fit.", |c| c.capacity_bytes),
    ("longhaul_cache_valid_bytes", "gauge", "Bytes that are there.", |c| c.valid_bytes),
    ("longhaul_cache_found_bytes", "gauge", "Bytes that were there at the attach.", |c| {
        c.found_bytes
    }),
    ("longhaul_cache_dropped_bytes", "gauge", "Bytes of these that were dropped.", |c| {
        c.dropped_bytes
    }),
    ("longhaul_cache_pinned_bytes", "gauge", "Bytes of the volume that are pinned.", |c| {
        c.pinned_bytes
    }),
    ("longhaul_cache_pinned_valid_bytes", "gauge", "Bytes of these that are there.", |c| {
        c.pinned_valid_bytes
    }),
    (
        "longhaul_cache_warm_total_bytes",
        "gauge",
        "Bytes in the ranges of the last warming by command.",
        |c| c.warming.as_ref().map_or(0, |warming| warming.total_bytes),
    ),
    ("longhaul_cache_warm_done_bytes", "gauge", "Bytes of these that were warmed.", |c| {
        c.warming.as_ref().map_or(0, |warming| warming.done_bytes)
    }),
    ("longhaul_cache_hit_bytes_total", "counter", "Bytes given out.", |c| c.hit_bytes),
    ("longhaul_cache_miss_bytes_total", "counter", "Bytes that were not there.", |c| c.miss_bytes),
    ("longhaul_cache_written_bytes_total", "counter", "Bytes written to its disk.", |c| {
        c.written_bytes
    }),
    ("longhaul_cache_index_bytes_total", "counter", "Bytes of the index among them.", |c| {
        c.index_bytes
    }),
    ("longhaul_cache_evictions_total", "counter", "Lines of 16 KiB evicted.", |c| c.evictions),
    ("longhaul_cache_refused_bytes_total", "counter", "Bytes turned away by policy.", |c| {
        c.refused_bytes
    }),
    (
        "longhaul_cache_behind_bytes_total",
        "counter",
        "Bytes turned away because the disk was behind.",
        |c| c.behind_bytes,
    ),
    (
        "longhaul_cache_forgotten_bytes_total",
        "counter",
        "Bytes forgotten because they were written.",
        |c| c.forgotten_bytes,
    ),
    (
        "longhaul_cache_damaged_blocks_total",
        "counter",
        "Blocks of 4 KiB that were not what had been written.",
        |c| c.damaged_blocks,
    ),
];

/// The text format of Prometheus.
pub(super) fn prometheus(answer: &Answer) -> String {
    let mut metrics = Metrics::default();
    let volumes = &answer.report.volumes;
    for (name, help, value) in GAUGES {
        let mut family = metrics.family(name, "gauge", help);
        for volume in volumes {
            family.sample(&[("volume", &volume.name)], value(volume));
        }
    }
    for (name, kind, help, value) in CACHE {
        let mut family = metrics.family(name, kind, help);
        for volume in volumes {
            if let Some(cache) = &volume.cache {
                family.sample(&[("volume", &volume.name)], value(cache) as f64);
            }
        }
    }
    for (name, help, value) in REWRITE {
        let mut family = metrics.family(name, "gauge", help);
        for volume in volumes {
            if let Some(rewrite) = &volume.rewrite {
                family.sample(&[("volume", &volume.name)], value(rewrite) as f64);
            }
        }
    }
    for (key, name, help) in COUNTERS {
        let mut family = metrics.family(name, "counter", help);
        for volume in volumes {
            if let Some(value) = volume.counters.get(key) {
                family.sample(&[("volume", &volume.name)], *value as f64);
            }
        }
    }
    let name = "longhaul_host_request_seconds";
    let mut family = metrics.family(name, "histogram", "Time from request to reply.");
    for (volume, numbers) in &answer.metrics {
        for (kind, label) in Kind::ALL {
            let histogram = numbers.of(kind);
            family.histogram(
                &[("volume", volume), ("kind", label)],
                histogram.buckets(),
                histogram.above(),
                histogram.seconds(),
            );
        }
    }
    let help =
        "Time in a stage; its sum divided by the number of requests is what one spends there.";
    let mut family = metrics.family("longhaul_stage_seconds", "histogram", help);
    for (volume, numbers) in &answer.metrics {
        for (stage, histogram) in numbers.stages.all() {
            family.histogram(
                &[("volume", volume), ("stage", stage)],
                histogram.buckets(),
                histogram.above(),
                histogram.seconds(),
            );
        }
    }
    let link = &answer.report.link;
    let up = f64::from(u8::from(link.up));
    metrics.single("longhaul_host_link_up", "gauge", "Whether a store is connected.", up);
    if let Some(rtt) = link.rtt_ms {
        let name = "longhaul_host_link_rtt_seconds";
        metrics.single(name, "gauge", "Round-trip time to the store.", rtt / 1e3);
    }
    if let Some(path) = &link.path {
        for (name, help, value) in [
            (
                "longhaul_host_link_window_bytes",
                "Bytes that may be under way to the store.",
                path.window_bytes as f64,
            ),
            (
                "longhaul_host_link_rate_bytes_per_second",
                "What the path to the store delivered when it was used last.",
                path.rate_bytes_per_second as f64,
            ),
            (
                "longhaul_host_link_base_rtt_seconds",
                "Least round-trip time to the store of the last seconds.",
                path.base_rtt_ms / 1e3,
            ),
            (
                "longhaul_host_link_queue_seconds",
                "Queue in front of the bottleneck on the way to the store.",
                path.queue_ms / 1e3,
            ),
            (
                "longhaul_host_link_competing",
                "Whether somebody else fills that queue.",
                f64::from(u8::from(path.competing)),
            ),
        ] {
            metrics.single(name, "gauge", help, value);
        }
    }
    if let Some(transport) = &link.transport {
        let help = "1 for what carries the link now.";
        let mut family = metrics.family("longhaul_host_link_transport", "gauge", help);
        family.sample(&[("transport", transport.as_str())], 1.0);
    }
    let datagrams = &link.datagrams;
    let totals = [
        (
            "longhaul_host_link_datagram_requests_total",
            "Small reads asked for in datagrams.",
            datagrams.requests,
        ),
        (
            "longhaul_host_link_datagram_repeats_total",
            "Of those, repeats for what was lost or late.",
            datagrams.repeats,
        ),
        (
            "longhaul_host_link_datagram_recovered_total",
            "Replies whose lost part was made from the parity.",
            datagrams.recovered,
        ),
        (
            "longhaul_host_link_datagram_by_stream_total",
            "Requests that went by stream after all.",
            datagrams.by_stream,
        ),
        (
            "longhaul_host_link_datagram_useful_bytes_total",
            "Bytes in datagrams that were needed.",
            datagrams.useful_bytes,
        ),
        (
            "longhaul_host_link_datagram_redundant_bytes_total",
            "Bytes in datagrams that were not.",
            datagrams.redundant_bytes,
        ),
        ("longhaul_host_link_sent_bytes_total", "Bytes sent.", link.sent_bytes),
        ("longhaul_host_link_received_bytes_total", "Bytes received.", link.received_bytes),
        ("longhaul_host_link_lost_packets_total", "Packets lost.", link.lost_packets),
        ("longhaul_host_link_lost_bytes_total", "Bytes in packets lost.", link.lost_bytes),
        (
            "longhaul_host_link_queue_lost_bytes_total",
            "Bytes lost while the queue was long.",
            link.queue_lost_bytes,
        ),
        ("longhaul_host_link_reconnects_total", "Connections after the first.", link.reconnects),
        (
            "longhaul_host_link_early_offered_total",
            "Connections begun with data in the first flight (0-RTT).",
            link.early.offered,
        ),
        (
            "longhaul_host_link_early_accepted_total",
            "Of them those whose data the store took.",
            link.early.accepted,
        ),
        (
            "longhaul_host_link_early_rejected_total",
            "Of them those whose data had to be sent again.",
            link.early.rejected,
        ),
        (
            "longhaul_host_connections_refused_total",
            "NBD clients turned away.",
            answer.report.connections_refused,
        ),
    ];
    for (name, help, value) in totals {
        metrics.single(name, "counter", help, value as f64);
    }
    iscsi(&mut metrics, answer);
    metrics.finish()
}

fn reason_name(reason: RejectReason) -> &'static str {
    match reason {
        RejectReason::DataDigestError => "data_digest",
        RejectReason::SnackReject => "snack",
        RejectReason::ProtocolError => "protocol",
        RejectReason::CommandNotSupported => "not_supported",
        RejectReason::TooManyImmediateCommands => "too_many_immediate",
        RejectReason::TaskInProgress => "task_in_progress",
        RejectReason::InvalidDataAck => "data_ack",
        RejectReason::InvalidPduField => "invalid_field",
        RejectReason::LongOperationReject => "long_operation",
        RejectReason::NegotiationReset => "negotiation_reset",
        RejectReason::WaitingForLogout => "waiting_for_logout",
    }
}

fn iscsi(metrics: &mut Metrics, answer: &Answer) {
    let name = "longhaul_iscsi_sessions";
    let mut family = metrics.family(name, "gauge", "iSCSI sessions, discovery not counted.");
    for volume in &answer.report.volumes {
        family.sample(&[("volume", &volume.name)], volume.iscsi_sessions as f64);
    }
    let commands =
        answer.report.iscsi_sessions.iter().map(|session| session.commands).sum::<usize>();
    let held = answer.report.iscsi_sessions.iter().map(|session| session.held_bytes).sum::<u64>();
    for (name, help, value) in [
        (
            "longhaul_iscsi_connections",
            "iSCSI connections.",
            answer.report.iscsi_connections as f64,
        ),
        ("longhaul_iscsi_commands", "SCSI commands that have not ended.", commands as f64),
        ("longhaul_iscsi_held_bytes", "Payload that sessions hold.", held as f64),
    ] {
        metrics.single(name, "gauge", help, value);
    }
    let counters = &answer.iscsi;
    let target = &counters.target;
    for (name, help, value) in [
        ("longhaul_iscsi_logins_total", "Connections that logged in.", target.logins),
        ("longhaul_iscsi_logins_refused_total", "Logins refused.", target.logins_refused),
        (
            "longhaul_iscsi_logins_redirected_total",
            "Logins sent to another portal.",
            target.logins_redirected,
        ),
        (
            "longhaul_iscsi_received_bytes_total",
            "Bytes read from initiators.",
            counters.received_bytes,
        ),
        ("longhaul_iscsi_sent_bytes_total", "Bytes written to initiators.", counters.sent_bytes),
        (
            "longhaul_iscsi_connections_refused_total",
            "Connections turned away because their portal had too many.",
            counters.turned_away,
        ),
    ] {
        metrics.single(name, "counter", help, value as f64);
    }
    let name = "longhaul_iscsi_commands_total";
    let mut family = metrics.family(name, "counter", "SCSI commands by class.");
    for ((_, class), count) in CommandClass::ALL.iter().zip(target.commands) {
        family.sample(&[("class", class)], count as f64);
    }
    let name = "longhaul_iscsi_digest_errors_total";
    let mut family = metrics.family(name, "counter", "Digests that did not match.");
    family.sample(&[("segment", "header")], target.header_digest_errors as f64);
    family.sample(&[("segment", "data")], target.data_digest_errors as f64);
    let name = "longhaul_iscsi_rejects_total";
    let mut family = metrics.family(name, "counter", "Requests rejected, by reason.");
    for (reason, count) in &target.rejects {
        family.sample(&[("reason", reason_name(*reason))], *count as f64);
    }
    let name = "longhaul_iscsi_aborted_tasks_total";
    let help = "SCSI commands that ended without a status, by cause.";
    let mut family = metrics.family(name, "counter", help);
    family.sample(&[("cause", "function")], target.aborted_by_function as f64);
    family.sample(&[("cause", "loss")], target.aborted_by_loss as f64);
    let name = "longhaul_iscsi_closed_total";
    let mut family =
        metrics.family(name, "counter", "Connections that the target closed, by reason.");
    for (reason, count) in &counters.closed {
        family.sample(&[("reason", reason)], *count as f64);
    }
}
