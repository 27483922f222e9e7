//! The metrics of a host, for Prometheus. Each is declared here once.

use super::iscsi::Counters;
use super::metrics::RequestKind;
use super::report::{CacheReport, HostSnapshot, RewriteReport, VolumeReport};
use longhaul_api::metrics;
use longhaul_api::metrics::Metrics;
use longhaul_core::front::scsi::CommandClass;
use longhaul_core::wire::iscsi::RejectReason;
use longhaul_link::LinkStatus;
use longhaul_link::transport::PathStatus;

metrics! {
    /// Of each volume.
    VOLUME: VolumeReport {
        gauge "longhaul_host_volume_attached" Number
            "Whether the volume is attached." |v| v.state == "attached";
        gauge "longhaul_host_epoch" Number "Writing epoch." |v| v.epoch;
        gauge "longhaul_host_size_bytes" Bytes "Size of the volume." |v| v.size_bytes;
        gauge "longhaul_host_lag_bytes" Bytes
            "Bytes the store has not committed." |v| v.journal.lag_bytes;
        gauge "longhaul_host_lag_seconds" Seconds
            "Age of the oldest write the store has not committed." |v| v.journal.lag_seconds;
        gauge "longhaul_host_journal_used_bytes" Bytes
            "Journal space taken by undelivered writes." |v| v.journal.journal_bytes;
        gauge "longhaul_host_journal_capacity_bytes" Bytes
            "Journal space." |v| v.journal.journal_capacity_bytes;
        gauge "longhaul_host_journal_failed" Number
            "Whether the journal has failed." |v| v.journal.journal_failed;
        gauge "longhaul_host_memory_bytes" Bytes
            "Buffers of writes in memory." |v| v.journal.memory_bytes;
        gauge "longhaul_host_dirty_entries" Number
            "Entries of the dirty map." |v| v.journal.dirty_entries;
        gauge "longhaul_host_in_flight_bytes" Bytes
            "Bytes shipped and not committed." |v| v.journal.in_flight_bytes;
        gauge "longhaul_host_waiting_reads" Number
            "Reads that wait for disk or store." |v| v.waiting.waiting_reads;
        gauge "longhaul_host_waiting_writes" Number
            "Writes that wait for room." |v| v.waiting.waiting_writes;
        gauge "longhaul_host_waiting_flushes" Number
            "Flushes that wait for durability." |v| v.waiting.waiting_flushes;
        gauge "longhaul_readahead_buffered_bytes" Bytes
            "Memory of the read-ahead, used or not." |v| v.readahead.buffered_bytes;
        gauge "longhaul_readahead_in_flight_bytes" Bytes
            "Bytes being read ahead." |v| v.readahead.in_flight_bytes;
        gauge "longhaul_readahead_window_bytes" Bytes
            "How far ahead streams may be together." |v| v.readahead.window_bytes;
        gauge "longhaul_readahead_streams" Number
            "Streams read ahead of in the last second." |v| v.readahead.streams;
        gauge "longhaul_readahead_accuracy" Ratio
            "Share of the read-ahead that clients read."
            |v| v.readahead.accuracy.unwrap_or(1.0);
        gauge "longhaul_host_connections" Number "NBD clients." |v| v.connections;
    }
}

metrics! {
    /// Of each read cache.
    CACHE: CacheReport {
        gauge "longhaul_cache_ready" Number "Whether the cache is in use." |c| c.state == "ready";
        gauge "longhaul_cache_capacity_bytes" Bytes "Bytes that fit." |c| c.capacity_bytes;
        gauge "longhaul_cache_valid_bytes" Bytes "Bytes that are there." |c| c.valid_bytes;
        gauge "longhaul_cache_found_bytes" Bytes
            "Bytes that were there at the attach." |c| c.found_bytes;
        gauge "longhaul_cache_dropped_bytes" Bytes
            "Bytes of these that were dropped." |c| c.dropped_bytes;
        gauge "longhaul_cache_pinned_bytes" Bytes
            "Bytes of the volume that are pinned." |c| c.pinned_bytes;
        gauge "longhaul_cache_pinned_valid_bytes" Bytes
            "Bytes of these that are there." |c| c.pinned_valid_bytes;
        gauge "longhaul_cache_warm_total_bytes" Bytes
            "Bytes in the ranges of the last warming by command."
            |c| c.warming.as_ref().map_or(0, |warming| warming.total_bytes);
        gauge "longhaul_cache_warm_done_bytes" Bytes
            "Bytes of these that were warmed."
            |c| c.warming.as_ref().map_or(0, |warming| warming.done_bytes);
        counter "longhaul_cache_hit_bytes_total" Bytes "Bytes given out." |c| c.hit_bytes;
        counter "longhaul_cache_miss_bytes_total" Bytes
            "Bytes that were not there." |c| c.miss_bytes;
        counter "longhaul_cache_written_bytes_total" Bytes
            "Bytes written to its disk." |c| c.written_bytes;
        counter "longhaul_cache_index_bytes_total" Bytes
            "Bytes of the index among them." |c| c.index_bytes;
        counter "longhaul_cache_evictions_total" Number "Lines of 16 KiB evicted." |c| c.evictions;
        counter "longhaul_cache_refused_bytes_total" Bytes
            "Bytes turned away by policy." |c| c.refused_bytes;
        counter "longhaul_cache_behind_bytes_total" Bytes
            "Bytes turned away because the disk was behind." |c| c.behind_bytes;
        counter "longhaul_cache_forgotten_bytes_total" Bytes
            "Bytes forgotten because they were written." |c| c.forgotten_bytes;
        counter "longhaul_cache_damaged_blocks_total" Number
            "Blocks of 4 KiB that the disk did not return as written." |c| c.damaged_blocks;
    }
}

metrics! {
    /// Of each volume that is being encrypted anew.
    REWRITE: RewriteReport {
        gauge "longhaul_rewrite_done" Number
            "Whether everything is under the newest data key." |r| r.done;
        gauge "longhaul_rewrite_total_bytes" Bytes
            "Bytes to be looked at for older data keys." |r| r.total_bytes;
        gauge "longhaul_rewrite_looked_at_bytes" Bytes "Bytes of these that were." |r| r.done_bytes;
        gauge "longhaul_rewrite_rewritten_bytes" Bytes
            "Bytes that were encrypted anew." |r| r.rewritten_bytes;
        gauge "longhaul_rewrite_failed_bytes" Bytes
            "Bytes that the store could not give." |r| r.failed_bytes;
    }
}

metrics! {
    /// Totals of each volume.
    VOLUME_TOTALS: VolumeReport {
        counter "longhaul_host_reads_total" Number
            "Read requests." |v| v.counters.get("reads").copied();
        counter "longhaul_host_read_bytes_total" Bytes
            "Bytes they asked for." |v| v.counters.get("read_bytes").copied();
        counter "longhaul_host_writes_total" Number
            "Write requests." |v| v.counters.get("writes").copied();
        counter "longhaul_host_write_bytes_total" Bytes
            "Bytes they brought." |v| v.counters.get("write_bytes").copied();
        counter "longhaul_host_markers_total" Number
            "Discard and zero requests." |v| v.counters.get("markers").copied();
        counter "longhaul_host_flushes_total" Number
            "Flush requests." |v| v.counters.get("flushes").copied();
        counter "longhaul_host_stages_total" Number
            "Requests to have the store stage data for a copy."
            |v| v.counters.get("stages").copied();
        counter "longhaul_host_stage_bytes_total" Bytes
            "Bytes they asked for." |v| v.counters.get("stage_bytes").copied();
        counter "longhaul_host_copies_total" Number
            "Writes of staged data." |v| v.counters.get("copies").copied();
        counter "longhaul_host_copy_bytes_total" Bytes
            "Bytes they wrote that never came here." |v| v.counters.get("copy_bytes").copied();
        counter "longhaul_host_prefetches_total" Number
            "Prefetch requests." |v| v.counters.get("prefetches").copied();
        counter "longhaul_host_errors_total" Number
            "Requests that failed." |v| v.counters.get("errors").copied();
        counter "longhaul_host_memory_hit_bytes_total" Bytes
            "Bytes read from memory." |v| v.counters.get("memory_hit_bytes").copied();
        counter "longhaul_host_journal_hit_bytes_total" Bytes
            "Bytes read from the journal." |v| v.counters.get("journal_hit_bytes").copied();
        counter "longhaul_host_readahead_hit_bytes_total" Bytes
            "Bytes read from the read-ahead."
            |v| v.counters.get("readahead_hit_bytes").copied();
        counter "longhaul_host_cache_hit_bytes_total" Bytes
            "Bytes read from the read cache." |v| v.counters.get("cache_hit_bytes").copied();
        counter "longhaul_host_readahead_wait_bytes_total" Bytes
            "Bytes of reads that waited for a read-ahead under way."
            |v| v.counters.get("readahead_wait_bytes").copied();
        counter "longhaul_readahead_issued_bytes_total" Bytes
            "Bytes read ahead." |v| v.counters.get("readahead_issued_bytes").copied();
        counter "longhaul_readahead_used_bytes_total" Bytes
            "Bytes read ahead that clients read."
            |v| v.counters.get("readahead_used_bytes").copied();
        counter "longhaul_readahead_wasted_bytes_total" Bytes
            "Bytes read ahead that were overwritten, lost or dropped before anyone read them."
            |v| v.counters.get("readahead_wasted_bytes").copied();
        counter "longhaul_host_store_read_bytes_total" Bytes
            "Bytes that had to be read from the store."
            |v| v.counters.get("store_read_bytes").copied();
        counter "longhaul_host_written_back_bytes_total" Bytes
            "Bytes of the read cache written back because they were damaged at the store."
            |v| v.counters.get("written_back_bytes").copied();
        counter "longhaul_host_batches_total" Number
            "Batches shipped, repeats included." |v| v.counters.get("batches").copied();
        counter "longhaul_host_batch_bytes_total" Bytes
            "Bytes in them." |v| v.counters.get("batch_bytes").copied();
        counter "longhaul_host_coalesced_bytes_total" Bytes
            "Bytes overwritten before they were shipped."
            |v| v.counters.get("coalesced_bytes").copied();
        counter "longhaul_packed_plain_bytes_total" Bytes
            "Bytes of data that were compressed, encrypted, or both."
            |v| v.counters.get("packed_plain_bytes").copied();
        counter "longhaul_packed_stored_bytes_total" Bytes
            "Bytes that came out of that." |v| v.counters.get("packed_stored_bytes").copied();
        counter "longhaul_packed_zero_bytes_total" Bytes
            "Bytes of zeroes left out of writes." |v| v.counters.get("packed_zero_bytes").copied();
        counter "longhaul_packed_untried_bytes_total" Bytes
            "Bytes not compressed because it had not paid just before."
            |v| v.counters.get("packed_untried_bytes").copied();
        counter "longhaul_host_journal_writes_total" Number
            "Write calls of the journal." |v| v.counters.get("journal_writes").copied();
        counter "longhaul_host_journal_write_bytes_total" Bytes
            "Bytes written to the journal." |v| v.counters.get("journal_write_bytes").copied();
        counter "longhaul_host_journal_syncs_total" Number
            "Syncs of the journal." |v| v.counters.get("journal_syncs").copied();
    }
}

metrics! {
    /// Of the link.
    LINK: LinkStatus {
        gauge "longhaul_host_link_up" Number "Whether a store is connected." |link| link.up;
        gauge "longhaul_host_link_rtt_seconds" Seconds
            "Round-trip time to the store." |link| link.rtt_ms.map(|rtt| rtt / 1e3);
    }
}

metrics! {
    /// Of the path to the store.
    PATH: PathStatus {
        gauge "longhaul_host_link_window_bytes" Bytes
            "Bytes that may be under way to the store." |path| path.window_bytes;
        gauge "longhaul_host_link_rate_bytes_per_second" BytesPerSecond
            "Rate of the path to the store at its last use."
            |path| path.rate_bytes_per_second;
        gauge "longhaul_host_link_base_rtt_seconds" Seconds
            "Least round-trip time to the store of the last seconds." |path| path.base_rtt_ms / 1e3;
        gauge "longhaul_host_link_queue_seconds" Seconds
            "Queue in front of the bottleneck on the way to the store." |path| path.queue_ms / 1e3;
        gauge "longhaul_host_link_competing" Number
            "Whether traffic of others fills that queue." |path| path.competing;
    }
}

metrics! {
    /// Totals of the link.
    LINK_TOTALS: LinkStatus {
        counter "longhaul_host_link_datagram_requests_total" Number
            "Small reads asked for in datagrams." |link| link.datagrams.requests;
        counter "longhaul_host_link_datagram_repeats_total" Number
            "The ones among them that repeat a lost or late request." |link| link.datagrams.repeats;
        counter "longhaul_host_link_datagram_recovered_total" Number
            "Replies with a lost part restored from the parity." |link| link.datagrams.recovered;
        counter "longhaul_host_link_datagram_by_stream_total" Number
            "Requests that went by stream after all." |link| link.datagrams.by_stream;
        counter "longhaul_host_link_datagram_useful_bytes_total" Bytes
            "Bytes in datagrams that were needed." |link| link.datagrams.useful_bytes;
        counter "longhaul_host_link_datagram_redundant_bytes_total" Bytes
            "Bytes in datagrams that were not." |link| link.datagrams.redundant_bytes;
        counter "longhaul_host_link_sent_bytes_total" Bytes "Bytes sent." |link| link.sent_bytes;
        counter "longhaul_host_link_received_bytes_total" Bytes
            "Bytes received." |link| link.received_bytes;
        counter "longhaul_host_link_lost_packets_total" Number
            "Packets lost." |link| link.lost_packets;
        counter "longhaul_host_link_lost_bytes_total" Bytes
            "Bytes in packets lost." |link| link.lost_bytes;
        counter "longhaul_host_link_queue_lost_bytes_total" Bytes
            "Bytes lost while the queue was long." |link| link.queue_lost_bytes;
        counter "longhaul_host_link_reconnects_total" Number
            "Connections after the first." |link| link.reconnects;
        counter "longhaul_host_link_early_offered_total" Number
            "Connections begun with data in the first flight (0-RTT)." |link| link.early.offered;
        counter "longhaul_host_link_early_accepted_total" Number
            "The ones among them whose data the store took." |link| link.early.accepted;
        counter "longhaul_host_link_early_rejected_total" Number
            "The ones among them whose data had to go out again." |link| link.early.rejected;
    }
}

metrics! {
    /// Totals of the host.
    HOST_TOTALS: HostSnapshot {
        counter "longhaul_host_connections_refused_total" Number
            "NBD clients turned away." |host| host.report.connections_refused;
    }
}

metrics! {
    /// Of the iSCSI target.
    ISCSI: HostSnapshot {
        gauge "longhaul_iscsi_connections" Number
            "iSCSI connections." |host| host.report.iscsi_connections;
        gauge "longhaul_iscsi_commands" Number
            "SCSI commands that have not ended." |host| commands(host);
        gauge "longhaul_iscsi_held_bytes" Bytes
            "Payload that sessions hold." |host| held_bytes(host);
    }
}

metrics! {
    /// Totals of the iSCSI target.
    ISCSI_TOTALS: Counters {
        counter "longhaul_iscsi_logins_total" Number
            "Connections that logged in." |iscsi| iscsi.target.logins;
        counter "longhaul_iscsi_logins_refused_total" Number
            "Logins refused." |iscsi| iscsi.target.logins_refused;
        counter "longhaul_iscsi_logins_redirected_total" Number
            "Logins sent to another portal." |iscsi| iscsi.target.logins_redirected;
        counter "longhaul_iscsi_received_bytes_total" Bytes
            "Bytes read from initiators." |iscsi| iscsi.received_bytes;
        counter "longhaul_iscsi_sent_bytes_total" Bytes
            "Bytes written to initiators." |iscsi| iscsi.sent_bytes;
        counter "longhaul_iscsi_connections_refused_total" Number
            "Connections turned away because their portal had too many." |iscsi| iscsi.turned_away;
    }
}

fn commands(host: &HostSnapshot) -> usize {
    host.report.iscsi_sessions.iter().map(|session| session.commands).sum()
}

fn held_bytes(host: &HostSnapshot) -> u64 {
    host.report.iscsi_sessions.iter().map(|session| session.held_bytes).sum()
}

/// All metrics as text.
pub fn prometheus(host: &HostSnapshot) -> String {
    let mut out = Metrics::default();
    let volumes = host.report.volumes.iter().map(|volume| (volume.name.as_str(), volume));
    let caches = volumes.clone().filter_map(|(name, volume)| Some((name, volume.cache.as_ref()?)));
    let rewrites =
        volumes.clone().filter_map(|(name, volume)| Some((name, volume.rewrite.as_ref()?)));
    out.each(VOLUME, "volume", volumes.clone());
    out.each(CACHE, "volume", caches);
    out.each(REWRITE, "volume", rewrites);
    out.each(VOLUME_TOTALS, "volume", volumes);
    durations(&mut out, host);
    link(&mut out, &host.report.link);
    out.all(HOST_TOTALS, host);
    iscsi(&mut out, host);
    out.finish()
}

fn durations(out: &mut Metrics, host: &HostSnapshot) {
    let name = "longhaul_host_request_seconds";
    let mut family = out.family(name, "histogram", "Time from request to reply.");
    for (volume, numbers) in &host.metrics {
        for (kind, label) in RequestKind::ALL {
            family.durations(&[("volume", volume), ("kind", label)], numbers.of(kind));
        }
    }
    let help = "Time in a stage. Divide its sum by the number of requests for the time of one.";
    let mut family = out.family("longhaul_stage_seconds", "histogram", help);
    for (volume, numbers) in &host.metrics {
        for (stage, histogram) in numbers.stages.all() {
            family.durations(&[("volume", volume), ("stage", stage)], histogram);
        }
    }
}

fn link(out: &mut Metrics, link: &LinkStatus) {
    out.all(LINK, link);
    if let Some(path) = &link.path {
        out.all(PATH, path);
    }
    if let Some(transport) = &link.transport {
        let help = "1 for the present transport of the link.";
        let mut family = out.family("longhaul_host_link_transport", "gauge", help);
        family.sample(&[("transport", transport.as_str())], 1.0);
    }
    out.all(LINK_TOTALS, link);
}

fn iscsi(out: &mut Metrics, host: &HostSnapshot) {
    let help = "iSCSI sessions, discovery not counted.";
    let mut family = out.family("longhaul_iscsi_sessions", "gauge", help);
    for volume in &host.report.volumes {
        family.sample(&[("volume", &volume.name)], volume.iscsi_sessions as f64);
    }
    out.all(ISCSI, host);
    out.all(ISCSI_TOTALS, &host.iscsi);
    let target = &host.iscsi.target;
    let mut counter = |name, help, label, samples: Vec<(&str, u64)>| {
        let mut family = out.family(name, "counter", help);
        for (value, count) in samples {
            family.sample(&[(label, value)], count as f64);
        }
    };
    let classes = CommandClass::ALL.iter().zip(target.commands);
    let classes = classes.map(|((_, class), count)| (*class, count));
    let name = "longhaul_iscsi_commands_total";
    counter(name, "SCSI commands by class.", "class", classes.collect());
    let digests =
        vec![("header", target.header_digest_errors), ("data", target.data_digest_errors)];
    let name = "longhaul_iscsi_digest_errors_total";
    counter(name, "Digests that did not match.", "segment", digests);
    let rejects = target.rejects.iter().map(|(reason, count)| (reason_name(*reason), *count));
    let name = "longhaul_iscsi_rejects_total";
    counter(name, "Requests rejected, by reason.", "reason", rejects.collect());
    let aborted = vec![("function", target.aborted_by_function), ("loss", target.aborted_by_loss)];
    let name = "longhaul_iscsi_aborted_tasks_total";
    let help = "SCSI commands that ended without a status, by cause.";
    counter(name, help, "cause", aborted);
    let closed = host.iscsi.closed.iter().map(|(reason, count)| (*reason, *count));
    let name = "longhaul_iscsi_closed_total";
    counter(name, "Connections that the target closed, by reason.", "reason", closed.collect());
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
