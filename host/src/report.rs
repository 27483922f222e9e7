//! The status of a running host, as `/status` gives it.
//!
//! The front thread collects it for each request, and keeps nothing up to date otherwise.

use super::control::HostCommand;
use super::failure::AttachFailure;
use super::iscsi::{
    self, ConfiguredAccess, Counters, InitiatorChange, InitiatorRightsReport, SessionReport,
};
use super::kept_journal::KeptJournal;
use super::metrics::VolumeMetrics;
use super::nbd::{self, NbdServer};
use super::pins::PinsReport;
use super::registry::{AttachStage, FencedBy, VolumeRegistry};
use super::state::{Damaged, StateDir, VolumeFile};
use super::traces::TraceReport;
use longhaul_core::host as engine;
use longhaul_core::host::VersionsStatus;
use longhaul_core::host::cache::CacheStatus;
use longhaul_core::host::{RewriteStatus, WarmState, WarmStatus};
use longhaul_core::wire::link::ReplicaProgress;
use longhaul_link::LinkStatus;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

/// A request of the admin listener to the front thread, with the way back for the answer.
pub enum AdminRequest {
    /// The state of everything.
    Report(oneshot::Sender<HostSnapshot>),
    /// The kept traces.
    Traces(oneshot::Sender<anyhow::Result<Vec<TraceReport>>>),
    /// The pinned ranges.
    Pins(oneshot::Sender<Vec<PinsReport>>),
    /// A command.
    Control(HostCommand, oneshot::Sender<anyhow::Result<()>>),
    /// The rights of initiators.
    Rights(oneshot::Sender<InitiatorRightsReport>),
    /// Other rights.
    Change(InitiatorChange, oneshot::Sender<anyhow::Result<()>>),
    /// The rights of NBD clients.
    NbdRights(oneshot::Sender<nbd::ClientRightsReport>),
    /// Other rights of theirs.
    NbdChange(nbd::ClientChange, oneshot::Sender<anyhow::Result<()>>),
    /// The config file has other rights now.
    Reload(Box<ConfiguredAccess>, nbd::Access, oneshot::Sender<anyhow::Result<()>>),
}

/// Everything at one moment, as the front thread sees it.
pub struct HostSnapshot {
    /// The report for people and programs.
    pub report: HostReport,
    /// Latencies by volume.
    pub metrics: Vec<(String, VolumeMetrics)>,
    /// Totals of the iSCSI target.
    pub iscsi: Counters,
}

/// `/status`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct HostReport {
    /// Identity of the host.
    pub host: String,
    /// Whether it is shutting down.
    pub stopping: bool,
    /// By name.
    pub volumes: Vec<VolumeReport>,
    /// Unreadable descriptions in the state directory.
    pub damaged: Vec<DamagedReport>,
    /// The addresses of NBD.
    pub nbd: Vec<String>,
    /// NBD clients have to use TLS.
    pub nbd_tls: bool,
    /// The addresses of iSCSI.
    pub iscsi: Vec<String>,
    /// The links to the store, taken together: up if all are, with their totals.
    pub link: LinkStatus,
    /// Each link: one for each front thread that has had a volume.
    pub links: Vec<LinkStatus>,
    /// NBD clients.
    pub connections: usize,
    /// NBD clients turned away because there were too many.
    pub connections_refused: u64,
    /// iSCSI connections.
    pub iscsi_connections: usize,
    /// iSCSI sessions.
    pub iscsi_sessions: Vec<SessionReport>,
}

/// A volume of the state directory that the host cannot attach, because its description is damaged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamagedReport {
    /// Its identity, as its directory says it.
    pub id: String,
    /// The problem, with the file's name.
    pub problem: String,
}

/// A volume in `/status`. Numbers are zero while it is detached.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct VolumeReport {
    /// Name.
    pub name: String,
    /// Identity, once attached.
    pub id: Option<String>,
    /// One of these states:
    ///
    /// - `attached`;
    /// - `attaching`: under way, or waiting for the store;
    /// - `refused`: the last attempt failed, the next one will come;
    /// - `detaching`, `fenced`, `stopped`;
    /// - `left`: detached, with undelivered writes in its journal.
    pub state: String,
    /// The host that fenced it off.
    pub fenced_by: Option<FencedBy>,
    /// Why it is detached, or the trouble that it has.
    pub reason: Option<String>,
    /// Size.
    pub size_bytes: u64,
    /// Writing epoch.
    pub epoch: u64,
    /// NBD clients.
    pub connections: usize,
    /// iSCSI sessions.
    pub iscsi_sessions: usize,
    /// The journal, and the writes in it.
    #[serde(flatten)]
    pub journal: JournalReport,
    /// The store's word on it.
    #[serde(flatten)]
    pub at_store: AtStoreReport,
    /// Requests that wait.
    #[serde(flatten)]
    pub waiting: WaitingReport,
    /// Shares and ratios since the attach.
    #[serde(flatten)]
    pub ratios: RatioReport,
    /// Number of the key that new writes are encrypted with, if the volume is encrypted.
    pub encryption_key: Option<u32>,
    /// Reading ahead.
    pub readahead: ReadAheadReport,
    /// Limits on what it takes of the line.
    pub limits: LimitReport,
    /// The read cache, if there is one.
    pub cache: Option<CacheReport>,
    /// The version table, if the volume is encrypted and has one.
    pub versions: Option<VersionsReport>,
    /// Encrypting anew what is under older data keys, if `rotate-key --rewrite` asked for it.
    pub rewrite: Option<RewriteReport>,
    /// Totals since the attach.
    pub counters: std::collections::BTreeMap<String, u64>,
}

/// The journal of a volume in `/status`, and the writes in it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct JournalReport {
    /// Bytes that the store has not committed; the loss of this host would lose them. While the
    /// volume is detached, the bytes in the journal that may be uncommitted, which is never less.
    pub lag_bytes: u64,
    /// Age of the oldest of them. Writes of an earlier run count from the attach. While the volume
    /// is detached, the age of the last write.
    pub lag_seconds: f64,
    /// Journal space they take.
    pub journal_bytes: u64,
    /// Journal space there is.
    pub journal_capacity_bytes: u64,
    /// Whether the journal has failed.
    pub journal_failed: bool,
    /// Whether writes live in memory until committed.
    pub memory_only: bool,
    /// Buffers of writes.
    pub memory_bytes: u64,
    /// Last write accepted, made stable here, committed by the store.
    pub last_seq: u64,
    /// Last write on stable storage here.
    pub stable_seq: u64,
    /// Last write committed by the store.
    pub committed_seq: u64,
    /// Bytes on their way to the store.
    pub in_flight_bytes: u64,
    /// How many may be.
    pub window_bytes: u64,
    /// Entries of the dirty map.
    pub dirty_entries: u64,
}

/// Requests of a volume that wait.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct WaitingReport {
    /// Requests that wait for disk or store.
    pub waiting_reads: u64,
    /// Writes that wait for room.
    pub waiting_writes: u64,
    /// Flushes that wait for durability.
    pub waiting_flushes: u64,
}

/// Shares and ratios of a volume since the attach.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RatioReport {
    /// Share of the read bytes that needed no store, if clients read anything.
    pub hit_rate: Option<f64>,
    /// Bytes of data for each byte after compression, if the host compressed anything. Zeroes,
    /// which take nothing, count.
    pub compression_ratio: Option<f64>,
    /// Share of the bytes on their way to the store that the host left out because a later write
    /// replaced them, if it sent anything.
    pub coalescing_ratio: Option<f64>,
}

/// The store's word on a volume.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AtStoreReport {
    /// Whether the store refuses new data because the tenant is over its quota of stored bytes.
    pub no_space: bool,
    /// Whether the store has a replica, as it says: `none`, `behind`, or `in step` if the replica
    /// has all committed data.
    pub replica: String,
}

/// Reading ahead, for one volume.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReadAheadReport {
    /// Memory of data that was read ahead, used or not.
    pub buffered_bytes: u64,
    /// Being read ahead.
    pub in_flight_bytes: u64,
    /// How far ahead of their readers streams may be together.
    pub window_bytes: u64,
    /// Streams read ahead of in the last second.
    pub streams: u64,
    /// Least round trip of a read lately.
    pub round_trip_ms: Option<f64>,
    /// Highest rate at which the store delivered lately.
    pub rate_bytes: u64,
    /// Share of the read-ahead that clients read, once its end is known.
    pub accuracy: Option<f64>,
    /// Whether the host records a trace.
    pub recording: bool,
    /// For the trace under replay, the bytes that the host has asked for, and all bytes.
    pub replay: Option<(u64, u64)>,
}

/// Limits of one volume.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LimitReport {
    /// Rate that the drain may take now, in bits a second.
    pub drain_bits: Option<u64>,
    /// Rate that read-ahead may take now, in bits a second.
    pub readahead_bits: Option<u64>,
    /// By time of day.
    pub drain_rate: String,
    /// By time of day.
    pub readahead_rate: String,
}

/// The version table of an encrypted volume in `/status`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct VersionsReport {
    /// `complete`: the table knows the version of every block. `partial`: it knows the blocks that
    /// clients wrote or read here. `failed`: the host compares nothing any more.
    pub state: String,
    /// All writes up to this number are in the table on disk.
    pub durable: u64,
    /// Answers of the store that were not the newest version.
    pub outdated: u64,
    /// Damaged bytes of the table. The versions that they held are unknown.
    pub damaged_bytes: u64,
}

impl From<VersionsStatus> for VersionsReport {
    fn from(status: VersionsStatus) -> VersionsReport {
        let state = match (status.failed, status.complete) {
            (Some(_), _) => "failed",
            (None, true) => "complete",
            (None, false) => "partial",
        };
        let VersionsStatus { durable, outdated, damaged_bytes, .. } = status;
        VersionsReport { state: state.into(), durable, outdated, damaged_bytes }
    }
}

/// Encrypting a volume anew in `/status`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RewriteReport {
    /// Number of the data key that all data should have in the end.
    pub key: u32,
    /// Whether everything is, and the store has it.
    pub done: bool,
    /// Bytes of the volume.
    pub total_bytes: u64,
    /// Bytes that the host has looked at.
    pub done_bytes: u64,
    /// Bytes that were encrypted anew since the attach, or since the store could not give
    /// something.
    pub rewritten_bytes: u64,
    /// Bytes that the store could not give. The host tries them again.
    pub failed_bytes: u64,
}

impl From<RewriteStatus> for RewriteReport {
    fn from(status: RewriteStatus) -> RewriteReport {
        let RewriteStatus { key, done, total_bytes, done_bytes, rewritten_bytes, failed_bytes } =
            status;
        RewriteReport { key, done, total_bytes, done_bytes, rewritten_bytes, failed_bytes }
    }
}

/// The read cache of a volume in `/status`. Totals are those since the attach.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CacheReport {
    /// `ready`, `asking` the store for the writes since its last use, or `off` after its disk has
    /// failed.
    pub state: String,
    /// Bytes that fit.
    pub capacity_bytes: u64,
    /// Bytes that are there.
    pub valid_bytes: u64,
    /// Bytes that the file held at the attach.
    pub found_bytes: u64,
    /// The part of these that the cache dropped, because clients wrote there since.
    pub dropped_bytes: u64,
    /// Whether the cache dropped all, because the store did not know the later writes.
    pub dropped_all: bool,
    /// Bytes given out.
    pub hit_bytes: u64,
    /// Bytes that were not there.
    pub miss_bytes: u64,
    /// Bytes written to its disk.
    pub written_bytes: u64,
    /// Bytes of the index among them.
    pub index_bytes: u64,
    /// Lines of 16 KiB that had to go for others.
    pub evictions: u64,
    /// Bytes that the policy turned away.
    pub refused_bytes: u64,
    /// Bytes that the cache turned away because the disk was behind.
    pub behind_bytes: u64,
    /// Bytes that the cache forgot because a client overwrote them.
    pub forgotten_bytes: u64,
    /// Blocks of 4 KiB that the disk did not return as written.
    pub damaged_blocks: u64,
    /// Bytes of the volume that pins cover.
    pub pinned_bytes: u64,
    /// Bytes of these that are there.
    pub pinned_valid_bytes: u64,
    /// Most bytes that pins may cover.
    pub pinned_most_bytes: u64,
    /// The last warming by command, if there was one.
    pub warming: Option<WarmReport>,
}

/// Warming by command.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct WarmReport {
    /// Counts the commands since the attach.
    pub number: u64,
    /// `running`, `done` or `stopped`.
    pub state: String,
    /// Bytes to warm.
    pub total_bytes: u64,
    /// Bytes of these that are warm.
    pub done_bytes: u64,
    /// Bytes that the store could not give.
    pub failed_bytes: u64,
}

impl From<WarmStatus> for WarmReport {
    fn from(status: WarmStatus) -> WarmReport {
        let state = match status.state {
            WarmState::Running => "running",
            WarmState::Done => "done",
            WarmState::Stopped => "stopped",
        };
        WarmReport {
            number: status.number,
            state: state.into(),
            total_bytes: status.total_bytes,
            done_bytes: status.done_bytes,
            failed_bytes: status.failed_bytes,
        }
    }
}

impl From<CacheStatus> for CacheReport {
    fn from(status: CacheStatus) -> CacheReport {
        let state = match (status.off, status.ready) {
            (true, _) => "off",
            (_, true) => "ready",
            _ => "asking",
        };
        let counters = status.counters;
        CacheReport {
            state: state.into(),
            capacity_bytes: status.capacity_bytes,
            valid_bytes: status.valid_bytes,
            found_bytes: status.found_bytes,
            dropped_bytes: status.dropped_bytes,
            dropped_all: status.dropped_all,
            hit_bytes: counters.hit_bytes,
            miss_bytes: counters.miss_bytes,
            written_bytes: counters.written_bytes,
            index_bytes: counters.index_bytes,
            evictions: counters.evictions,
            refused_bytes: counters.refused_bytes,
            behind_bytes: counters.behind_bytes,
            forgotten_bytes: counters.forgotten_bytes,
            damaged_blocks: counters.damaged_blocks,
            pinned_bytes: status.pinned_bytes,
            pinned_valid_bytes: status.pinned_valid_bytes,
            pinned_most_bytes: status.pinned_most_bytes,
            warming: None,
        }
    }
}

/// Everything at one moment, as one front thread sees it.
pub struct FrontSnapshot {
    volumes: Vec<VolumeReport>,
    metrics: Vec<(String, VolumeMetrics)>,
    stopping: bool,
    link: LinkStatus,
    connections: usize,
    connections_refused: u64,
    nbd_tls: bool,
    iscsi_connections: usize,
    iscsi_sessions: Vec<SessionReport>,
    iscsi: Counters,
}

/// Looks at everything of a front thread.
pub fn look(
    registry: &VolumeRegistry,
    server: &NbdServer,
    iscsi: &iscsi::IscsiServer,
) -> FrontSnapshot {
    let mut metrics = Vec::new();
    let mut volumes: Vec<VolumeReport> = Vec::new();
    let attached = registry.volumes();
    for (name, stage) in registry.stages() {
        let (state, reason) = match &stage {
            AttachStage::Attached(_) => ("attached", None),
            AttachStage::Trying(failure) => ("attaching", failure.as_ref().map(why)),
            AttachStage::Waiting(failure @ AttachFailure::Link) => {
                ("attaching", Some(why(failure)))
            }
            AttachStage::Waiting(failure) => ("refused", Some(why(failure))),
            AttachStage::Detaching => ("detaching", None),
            AttachStage::Ended(failure @ AttachFailure::Disk(_)) => ("stopped", Some(why(failure))),
            AttachStage::Ended(failure) => ("fenced", Some(why(failure))),
        };
        let mut report = VolumeReport {
            connections: server.connections_of(&name),
            iscsi_sessions: iscsi.sessions_of(&name),
            state: state.into(),
            fenced_by: registry.fenced_by(&name),
            reason,
            name,
            ..VolumeReport::default()
        };
        // A fenced volume still has its engine, and clients that hear of it.
        if let Some(volume) = attached.iter().find(|volume| volume.name() == report.name) {
            fill(&mut report, volume);
            let limits = registry.limits(&report.name);
            report.limits.drain_rate = limits.drain.to_string();
            report.limits.readahead_rate = limits.readahead.to_string();
            metrics.push((report.name.clone(), volume.status().2));
        } else if let Some(kept) = registry.kept(&report.name) {
            fill_kept(&mut report, &kept);
        }
        volumes.push(report);
    }
    FrontSnapshot {
        volumes,
        metrics,
        stopping: registry.is_stopping(),
        link: registry.link_status(),
        connections: server.connections(),
        connections_refused: server.refused(),
        nbd_tls: server.has_tls(),
        iscsi_connections: iscsi.connections(),
        iscsi_sessions: iscsi.sessions(),
        iscsi: iscsi.counters(),
    }
}

/// Joins what the front threads have seen, with what no thread has. At least one has to be there.
pub fn join(state: &StateDir, fronts: Vec<FrontSnapshot>) -> HostSnapshot {
    let mut host = HostSnapshot {
        report: HostReport { host: state.host().to_string(), ..HostReport::default() },
        metrics: Vec::new(),
        iscsi: Counters::default(),
    };
    let report = &mut host.report;
    for front in fronts {
        report.volumes.extend(front.volumes);
        report.stopping |= front.stopping;
        report.nbd_tls |= front.nbd_tls;
        report.links.push(front.link);
        report.connections += front.connections;
        report.connections_refused += front.connections_refused;
        report.iscsi_connections += front.iscsi_connections;
        report.iscsi_sessions.extend(front.iscsi_sessions);
        host.metrics.extend(front.metrics);
        host.iscsi.add(front.iscsi);
    }
    report.volumes.sort_by(|a, b| a.name.cmp(&b.name));
    host.metrics.sort_by(|(a, _), (b, _)| a.cmp(b));
    report.link = LinkStatus::together(&report.links);
    let survey = state.survey().unwrap_or_default();
    for file in survey.volumes.iter().filter(|file| !file.delivered) {
        if !report.volumes.iter().any(|report| report.name == file.name) {
            report.volumes.push(left(state, file));
        }
    }
    let damaged = |damaged: Damaged| DamagedReport { id: damaged.id, problem: damaged.problem };
    report.damaged = survey.damaged.into_iter().map(damaged).collect();
    host
}

/// A detached volume whose journal holds undelivered writes.
fn left(state: &StateDir, file: &VolumeFile) -> VolumeReport {
    let dir = file.volume_id().map(|id| state.volume_dir(id)).unwrap_or_default();
    VolumeReport {
        name: file.name.clone(),
        id: Some(file.id.clone()),
        state: "left".into(),
        reason: Some(format!(
            "not attached, and {} holds writes that were not delivered: keep them for salvage, or \
             give them up with `longhaul detach {} --drop-undelivered`",
            dir.display(),
            file.name
        )),
        size_bytes: file.sectors * 512,
        epoch: file.epoch,
        journal: JournalReport {
            journal_capacity_bytes: file.journal.bytes(),
            ..JournalReport::default()
        },
        ..VolumeReport::default()
    }
}

fn why(failure: &AttachFailure) -> String {
    failure.text().unwrap_or("waiting for the store").to_owned()
}

/// Fills in the journal of a detached volume.
fn fill_kept(report: &mut VolumeReport, kept: &KeptJournal) {
    report.id = Some(kept.file.id.clone());
    report.size_bytes = kept.file.sectors * 512;
    report.epoch = kept.file.epoch;
    report.journal.lag_bytes = kept.lag_bytes;
    report.journal.lag_seconds = kept.since.map_or(0.0, |since| {
        // Never zero while something is missing, even if somebody has set the clock.
        since.elapsed().unwrap_or_default().as_secs_f64().max(0.001)
    });
    report.journal.journal_bytes = kept.journal_bytes;
    report.journal.journal_capacity_bytes = kept.file.journal.bytes();
    if !kept.known && report.reason.is_none() {
        report.reason = Some("its journal is being read; until then it counts as full".into());
    }
}

fn fill(report: &mut VolumeReport, volume: &super::volume::Volume) {
    let attached = volume.attached();
    let (status, disk, metrics) = volume.status();
    let counters = &status.counters;
    let hits = counters.memory_hit_bytes
        + counters.journal_hit_bytes
        + counters.readahead_hit_bytes
        + counters.readahead_wait_bytes
        + counters.cache_hit_bytes;
    let warming = status.warming.map(WarmReport::from);
    report.cache = status.cache.map(|cache| CacheReport { warming, ..CacheReport::from(cache) });
    report.versions = status.versions.map(VersionsReport::from);
    report.rewrite = status.rewriting.map(RewriteReport::from);
    let read = hits + counters.store_read_bytes;
    if status.latched && status.fenced.is_none() && !status.memory_only {
        report.state = "stopped".into();
    }
    report.id = Some(attached.volume.to_string());
    report.size_bytes = volume.sectors() * 512;
    report.epoch = status.epoch;
    report.journal.lag_bytes = status.lag_bytes;
    report.journal.lag_seconds = status.lag.as_secs_f64();
    report.journal.journal_bytes = status.journal_bytes;
    report.journal.journal_capacity_bytes = status.journal_capacity_bytes;
    report.journal.journal_failed = status.latched;
    report.reason = report.reason.take().or_else(|| volume.trouble());
    report.journal.memory_only = status.memory_only;
    report.at_store.no_space = status.full;
    report.journal.memory_bytes = status.memory_bytes;
    report.journal.last_seq = status.last;
    report.journal.stable_seq = status.stable;
    report.journal.committed_seq = status.committed;
    report.journal.in_flight_bytes = status.in_flight_bytes;
    report.journal.window_bytes = status.window_bytes;
    report.journal.dirty_entries = status.dirty_entries;
    report.waiting.waiting_reads = status.waiting_reads;
    report.waiting.waiting_writes = status.waiting_writes;
    report.waiting.waiting_flushes = status.waiting_flushes;
    let replica = match status.second {
        ReplicaProgress::None => "none",
        ReplicaProgress::Behind => "behind",
        ReplicaProgress::InStep(_) => "in step",
    };
    report.at_store.replica = replica.to_owned();
    report.ratios.hit_rate = (read > 0).then(|| hits as f64 / read as f64);
    let packed = &status.packed;
    let ratio = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
    report.ratios.compression_ratio = ratio(packed.plain_bytes, packed.stored_bytes);
    report.ratios.coalescing_ratio =
        ratio(counters.coalesced_bytes, counters.coalesced_bytes + counters.batch_bytes);
    report.encryption_key = status.key;
    let ahead = status.readahead;
    let all = [ahead.hints, ahead.detected, ahead.traces];
    let sum = |value: fn(&engine::Totals) -> u64| all.iter().map(value).sum::<u64>();
    let (used, wasted) = (sum(|totals| totals.used), sum(|totals| totals.wasted));
    report.readahead = ReadAheadReport {
        buffered_bytes: ahead.buffered_bytes,
        in_flight_bytes: ahead.in_flight_bytes,
        window_bytes: ahead.window_bytes,
        streams: ahead.streams,
        round_trip_ms: ahead.trip.map(|trip| trip.as_secs_f64() * 1e3),
        rate_bytes: ahead.rate,
        accuracy: (used + wasted > 0).then(|| used as f64 / (used + wasted) as f64),
        recording: ahead.recording,
        replay: ahead.replay,
    };
    report.limits.drain_bits = status.drain_rate.map(|rate| rate * 8);
    report.limits.readahead_bits = status.readahead_rate.map(|rate| rate * 8);
    let disk = disk.unwrap_or_default();
    report.counters = [
        ("reads", counters.reads),
        ("read_bytes", counters.read_bytes),
        ("writes", counters.writes),
        ("write_bytes", counters.write_bytes),
        ("markers", counters.markers),
        ("flushes", counters.flushes),
        ("stages", counters.stages),
        ("stage_bytes", counters.stage_bytes),
        ("copies", counters.copies),
        ("copy_bytes", counters.copy_bytes),
        ("prefetches", counters.prefetches),
        ("errors", metrics.errors),
        ("memory_hit_bytes", counters.memory_hit_bytes),
        ("journal_hit_bytes", counters.journal_hit_bytes),
        ("readahead_hit_bytes", counters.readahead_hit_bytes),
        ("readahead_wait_bytes", counters.readahead_wait_bytes),
        ("readahead_issued_bytes", sum(|totals| totals.issued)),
        ("readahead_used_bytes", used),
        ("readahead_wasted_bytes", wasted),
        ("cache_hit_bytes", counters.cache_hit_bytes),
        ("store_read_bytes", counters.store_read_bytes),
        ("written_back_bytes", counters.written_back_bytes),
        ("batches", counters.batches),
        ("batch_bytes", counters.batch_bytes),
        ("coalesced_bytes", counters.coalesced_bytes),
        ("packed_plain_bytes", packed.plain_bytes),
        ("packed_stored_bytes", packed.stored_bytes),
        ("packed_zero_bytes", packed.zero_bytes),
        ("packed_untried_bytes", packed.untried_bytes),
        ("journal_writes", disk.writes),
        ("journal_write_bytes", disk.bytes),
        ("journal_syncs", disk.syncs),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect();
}
