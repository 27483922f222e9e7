//! The content of the HTTP API and of `--json`, in the same shapes.

use longhaul_core::block::{Range, SECTOR_BYTES};
use longhaul_core::wire::link::{
    DeletedInfo, LiveInfo, MapUsage, ReplicaState, SnapshotInfo, StoreReport, StoreState,
    StoredBytes, TenantInfo, TenantLimits, VolumeInfo,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

fn bytes(sectors: u64) -> u64 {
    sectors.saturating_mul(SECTOR_BYTES)
}

/// A volume.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// Its identity, 32 hexadecimal digits.
    pub id: String,
    /// Its size.
    pub size_bytes: u64,
    /// Logical block size: 512 or 4096.
    pub block_bytes: u32,
    /// Time of its creation, seconds since 1970.
    pub created: u64,
    /// The state at the end of its log. Missing if the store has not read that yet, or cannot.
    pub live: Option<Live>,
    /// Why the volume is unusable, if its description in the store is damaged: then only its name
    /// is known.
    pub damaged: Option<String>,
}

impl From<&VolumeInfo> for Volume {
    fn from(info: &VolumeInfo) -> Volume {
        Volume {
            name: info.name.clone(),
            id: info.id.to_string(),
            size_bytes: bytes(info.sectors),
            block_bytes: info.block_bytes,
            created: info.created,
            live: info.live.as_ref().map(Live::from),
            damaged: info.damaged.clone(),
        }
    }
}

/// The state of a volume that a store has opened.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Live {
    /// Current epoch: how often hosts have attached it, and more.
    pub epoch: u64,
    /// Identity of the host that attached it last.
    pub host: Option<String>,
    /// That host's credential and address, if the store that answers knows them.
    pub host_name: Option<String>,
    /// Whether the store has a connection to that host.
    pub connected: bool,
    /// Since when it is not, seconds since 1970, if the store that answers has seen that.
    pub silent_since: Option<u64>,
    /// Whether it let go of the volume in order.
    pub clean: bool,
    /// Number of the last committed write.
    pub committed: u64,
    /// Segments in the log.
    pub segments: u64,
    /// Bytes of data that the map refers to, at most.
    pub mapped_bytes: u64,
    /// Bytes that hosts have acknowledged and not delivered.
    pub announced_bytes: u64,
}

impl From<&LiveInfo> for Live {
    fn from(live: &LiveInfo) -> Live {
        Live {
            epoch: live.epoch,
            host: live.host.map(|host| host.to_string()),
            host_name: Some(live.name.clone()).filter(|name| !name.is_empty()),
            connected: live.connected,
            silent_since: live.silent_since,
            clean: live.clean,
            committed: live.committed,
            segments: live.segments,
            mapped_bytes: live.mapped_bytes,
            announced_bytes: live.announced_bytes,
        }
    }
}

/// Volumes.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Volumes {
    /// In order of their names.
    pub volumes: Vec<Volume>,
}

/// A new volume.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewVolume {
    /// Letters, digits, `.`, `_` and `-`.
    pub name: String,
    /// A multiple of the block size.
    pub size_bytes: u64,
    /// 512 by default, or 4096.
    pub block_bytes: Option<u32>,
}

/// Changes of a volume.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeChange {
    /// Its size from now on.
    pub size_bytes: u64,
    /// Cut off its end if that is less than it has.
    #[serde(default)]
    pub force: bool,
}

/// A snapshot.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// Of which volume.
    pub volume: String,
    /// Its name.
    pub name: String,
    /// Its identity, 32 hexadecimal digits.
    pub id: String,
    /// Its size.
    pub size_bytes: u64,
    /// Time of the snapshot, seconds since 1970.
    pub created: u64,
    /// Clones that began with it and are still there.
    pub clones: u32,
}

impl Snapshot {
    /// Of that volume.
    pub fn of(volume: &str, info: &SnapshotInfo) -> Snapshot {
        Snapshot {
            volume: volume.to_owned(),
            name: info.name.clone(),
            id: info.id.to_string(),
            size_bytes: bytes(info.sectors),
            created: info.created,
            clones: info.clones,
        }
    }
}

/// Snapshots.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Snapshots {
    /// The oldest first.
    pub snapshots: Vec<Snapshot>,
}

/// A new snapshot.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSnapshot {
    /// Letters, digits, `.`, `_` and `-`.
    pub name: String,
    /// Take it of what the store has, and do not wait for what the host has acknowledged and not
    /// delivered.
    #[serde(default)]
    pub no_barrier: bool,
}

/// A new clone.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewClone {
    /// Its name.
    pub name: String,
}

/// The snapshot schedule.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotSchedule {
    /// The number of snapshots to keep of each kind, as in `hourly=24,daily=7`; or `none`.
    #[schema(example = "hourly=24,daily=7")]
    pub schedule: String,
}

/// The space of a volume and its snapshots.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// Of the volume.
    pub name: String,
    /// Its identity.
    pub id: String,
    /// Its size.
    pub size_bytes: u64,
    /// Bytes of it that have data.
    pub logical_bytes: u64,
    /// Bytes of their stored form.
    pub referenced_bytes: u64,
    /// Of that, what no snapshot has.
    pub unique_bytes: u64,
    /// Bytes of the volume's segments, and of data staged for it.
    pub stored_bytes: u64,
    /// Bytes of its maps.
    pub map_bytes: u64,
    /// Stored bytes that nobody needs. Unknown with more than 64 snapshots.
    pub reclaimable_bytes: Option<u64>,
    /// The oldest first.
    pub snapshots: Vec<SnapshotUsage>,
}

impl Usage {
    /// The report of a volume with this usage and these stored bytes. `named_bytes` are the bytes
    /// of its data that any map names.
    pub fn new(
        info: &VolumeInfo,
        usage: &MapUsage,
        stored: StoredBytes,
        named_bytes: Option<u64>,
        snapshots: Vec<SnapshotUsage>,
    ) -> Usage {
        let stored_bytes = stored.segments.saturating_add(stored.staged);
        Usage {
            name: info.name.clone(),
            id: info.id.to_string(),
            size_bytes: bytes(info.sectors),
            logical_bytes: usage.logical_bytes,
            referenced_bytes: usage.referenced_bytes,
            unique_bytes: usage.unique_bytes,
            stored_bytes,
            map_bytes: stored.maps,
            reclaimable_bytes: named_bytes.map(|named| stored_bytes.saturating_sub(named)),
            snapshots,
        }
    }
}

/// The space of a snapshot.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct SnapshotUsage {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub id: String,
    /// Somebody deleted it, and it stays for its clones.
    pub deleted: bool,
    /// Clones that began with it and are still there.
    pub clones: u32,
    /// Its size.
    pub size_bytes: u64,
    /// Bytes of it that have data.
    pub logical_bytes: u64,
    /// Bytes of their stored form.
    pub referenced_bytes: u64,
    /// Of that, what deleting just this one would give back.
    pub unique_bytes: u64,
}

impl SnapshotUsage {
    /// Of a snapshot whose map names that.
    pub fn new(info: &SnapshotInfo, usage: &MapUsage) -> SnapshotUsage {
        SnapshotUsage {
            name: info.name.clone(),
            id: info.id.to_string(),
            deleted: info.hidden,
            clones: info.clones,
            size_bytes: bytes(info.sectors),
            logical_bytes: usage.logical_bytes,
            referenced_bytes: usage.referenced_bytes,
            unique_bytes: if info.clones > 0 { 0 } else { usage.unique_bytes },
        }
    }
}

/// What differs.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Changes {
    /// In order of address.
    pub ranges: Vec<Change>,
    /// Present if this is not all: ask for the rest from here. The next part may continue the last
    /// range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_bytes: Option<u64>,
}

impl Changes {
    /// Adds a range that follows.
    pub fn push(&mut self, change: Change) {
        match self.ranges.last_mut() {
            Some(last)
                if last.offset_bytes + last.bytes == change.offset_bytes
                    && last.kind == change.kind =>
            {
                last.bytes += change.bytes;
            }
            _ => self.ranges.push(change),
        }
    }
}

/// A range that differs.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Change {
    /// Where it begins.
    pub offset_bytes: u64,
    /// How long it is.
    pub bytes: u64,
    /// Of the later one.
    #[serde(rename = "type")]
    pub kind: ChangeKind,
}

/// The kind of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    /// It has data.
    Data,
    /// It is zero.
    Zero,
}

/// Writes that a host acknowledged and has not delivered.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Lost {
    /// Of which volume.
    pub name: String,
    /// The host's identity.
    pub host: Option<String>,
    /// The host is connected: these writes are merely under way.
    pub connected: bool,
    /// It let go of the volume in order.
    pub clean: bool,
    /// The ranges are wider than the writes, because there were too many.
    pub rounded: bool,
    /// All of them together.
    pub bytes: u64,
    /// In order of address.
    pub ranges: Vec<LostRange>,
}

/// A range of a volume.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct LostRange {
    /// Where it begins, in bytes.
    pub offset: u64,
    /// How long it is.
    pub bytes: u64,
}

impl From<&Range> for LostRange {
    fn from(range: &Range) -> LostRange {
        LostRange { offset: bytes(range.lba), bytes: range.bytes() }
    }
}

/// Stores of the installation.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Stores {
    /// Those there are.
    pub stores: Vec<Store>,
}

/// A store.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Store {
    /// Its identity, 32 hexadecimal digits.
    pub id: String,
    /// Where hosts reach it.
    pub addresses: Vec<String>,
    /// What it does.
    pub state: StoreCondition,
    /// Connected hosts.
    pub hosts: Option<u32>,
    /// Volumes that these have attached.
    pub volumes: Option<u32>,
    /// To and from hosts, of the last half minute.
    pub bytes_per_second: Option<u64>,
    /// What it runs.
    pub software: Option<String>,
}

impl From<&StoreState> for Store {
    fn from(store: &StoreState) -> Store {
        let report = store.report.as_ref();
        Store {
            id: store.id.to_string(),
            addresses: store.addresses.clone(),
            state: match report {
                None => StoreCondition::NoAnswer,
                Some(report) if report.evacuating => StoreCondition::Evacuating,
                Some(_) => StoreCondition::Serving,
            },
            hosts: report.map(|report| report.hosts),
            volumes: report.map(|report| report.attached),
            bytes_per_second: report.map(|report| report.bytes_per_second),
            software: report.map(|report| report.software.clone()),
        }
    }
}

/// The condition of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StoreCondition {
    /// It serves volumes.
    Serving,
    /// It sends its hosts to others.
    Evacuating,
    /// Nobody knows.
    NoAnswer,
}

/// Whether a store sends its hosts to others.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Evacuate {
    /// Begin, or end it.
    pub evacuating: bool,
}

/// How far a store is with that.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Evacuated {
    /// Its identity.
    pub store: String,
    /// Whether it sends its hosts to others.
    pub evacuating: bool,
    /// Hosts that are still there.
    pub hosts: u32,
}

impl From<&StoreReport> for Evacuated {
    fn from(report: &StoreReport) -> Evacuated {
        let (store, evacuating, hosts) = (report.id.to_string(), report.evacuating, report.hosts);
        Evacuated { store, evacuating, hosts }
    }
}

/// Whether commits wait for the replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ReplicaMode {
    /// A commit waits until the replica has it as well.
    InStep,
    /// Committed data reaches the replica later.
    Behind,
}

/// Have a replica.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewReplica {
    /// A directory, or `s3://BUCKET/PREFIX`.
    pub location: String,
    /// The mode after the replica has everything once.
    pub mode: ReplicaMode,
    /// Addresses of the stores that wait there (HOST:PORT), for hosts.
    #[serde(default)]
    pub standby: Vec<String>,
    /// Lose what is there and not here.
    #[serde(default)]
    pub discard: bool,
}

/// Change it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicaChange {
    /// To this.
    pub mode: ReplicaMode,
}

/// The replica, if there is one.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct MaybeReplica {
    /// It.
    pub replica: Option<Replica>,
}

/// A replica, as the answering store sees it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Replica {
    /// Where it is.
    pub location: String,
    /// `being made`, `catching up`, `in step`, `behind`, or `in trouble`.
    pub state: String,
    /// The mode, present or wanted.
    pub mode: ReplicaMode,
    /// Whether everything has been there once: it can be gone on with.
    pub complete: bool,
    /// Addresses of the stores that wait there.
    pub standby: Vec<String>,
    /// Age of the oldest operation of this store that the replica has not repeated, in seconds.
    pub lag_seconds: f64,
    /// How many of them there are.
    pub lag_operations: u64,
    /// Known bytes of objects that the replica lacks.
    pub lag_bytes: u64,
    /// Volumes whose replica may lack something, or lacks commits from before the mode changed.
    pub volumes_unknown: u64,
    /// Objects that the replica was found to lack, and gets now.
    pub missing_objects: u64,
    /// How many of these are there.
    pub missing_objects_put: u64,
    /// Bytes put there since the store has started.
    pub put_bytes: u64,
    /// Bytes that the location had from before, and that were not sent.
    pub reused_bytes: u64,
    /// Why the last operation there failed, if it did.
    pub trouble: Option<String>,
}

impl From<&ReplicaState> for Replica {
    fn from(state: &ReplicaState) -> Replica {
        let said = match (state.built, &state.trouble, state.in_step) {
            (_, Some(_), _) => "in trouble",
            (false, ..) => "being made",
            (true, _, true) if state.unknown > 0 => "catching up",
            (true, _, true) => "in step",
            (true, _, false) => "behind",
        };
        Replica {
            location: state.location.clone(),
            state: said.to_owned(),
            mode: if state.in_step { ReplicaMode::InStep } else { ReplicaMode::Behind },
            complete: state.built,
            standby: state.standby.clone(),
            lag_seconds: state.lag_ms as f64 / 1e3,
            lag_operations: state.operations,
            lag_bytes: state.bytes,
            volumes_unknown: state.unknown,
            missing_objects: state.missing.0,
            missing_objects_put: state.missing.1,
            put_bytes: state.put_bytes,
            reused_bytes: state.reused_bytes,
            trouble: state.trouble.clone(),
        }
    }
}

/// The state of a standby.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Standby {
    /// `standby` while it waits, `store` once it serves volumes.
    pub role: String,
    /// Of which location it is the replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// Whether everything has been here once.
    pub complete: bool,
}

/// Number of hosts that the store asked to go to other stores.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Moved {
    /// Hosts.
    pub hosts: u32,
}

/// A deleted volume, which is still there.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct DeletedVolume {
    /// The name that it had.
    pub name: String,
    /// Its identity, 32 hexadecimal digits.
    pub id: String,
    /// Its size.
    pub size_bytes: u64,
    /// Time of its deletion, seconds since 1970.
    pub deleted: u64,
    /// When its data goes.
    pub until: u64,
}

impl From<&DeletedInfo> for DeletedVolume {
    fn from(info: &DeletedInfo) -> DeletedVolume {
        DeletedVolume {
            name: info.name.clone(),
            id: info.id.to_string(),
            size_bytes: bytes(info.sectors),
            deleted: info.deleted,
            until: info.until,
        }
    }
}

/// Deleted volumes.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct DeletedVolumes {
    /// In the order of their deletions.
    pub volumes: Vec<DeletedVolume>,
}

/// The name that a deleted volume is to have.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Restore {
    /// By default, the name that it had.
    pub name: Option<String>,
}

/// A tenant.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Tenant {
    /// Its name.
    pub name: String,
    /// Most volumes that it may have, if that is limited.
    pub max_volumes: Option<u64>,
    /// Most bytes of all volumes together, as large as they are.
    pub max_bytes: Option<u64>,
    /// Most bytes that all of its objects may take.
    pub max_stored: Option<u64>,
    /// Most operations a second on all volumes together.
    pub max_iops: Option<u64>,
    /// Most bytes a second, read and written, of all volumes together.
    pub max_rate: Option<u64>,
    /// Volumes that it has.
    pub volumes: u64,
    /// Bytes of these together, as large as they are.
    pub bytes: u64,
    /// Deleted volumes that are still there.
    pub deleted: u64,
    /// Bytes that all of its objects take.
    pub stored: u64,
    /// Requests that wait at this store for the limits on operations and bytes a second.
    pub waiting_requests: u64,
    /// Bytes that these are about.
    pub waiting_bytes: u64,
}

impl From<&TenantInfo> for Tenant {
    fn from(info: &TenantInfo) -> Tenant {
        let TenantLimits { max_volumes, max_bytes, max_stored, max_iops, max_rate } = info.limits;
        Tenant {
            name: info.name.clone(),
            max_volumes,
            max_bytes,
            max_stored,
            max_iops,
            max_rate,
            volumes: info.volumes,
            bytes: info.bytes,
            deleted: info.deleted,
            stored: info.stored,
            waiting_requests: info.waiting_requests,
            waiting_bytes: info.waiting_bytes,
        }
    }
}

/// Tenants.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Tenants {
    /// In order of their names.
    pub tenants: Vec<Tenant>,
}

/// The limits of a tenant. A missing limit means no limit.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Most volumes.
    pub max_volumes: Option<u64>,
    /// Most bytes of all volumes together, as large as they are.
    pub max_bytes: Option<u64>,
    /// Most bytes that all of its objects take.
    pub max_stored: Option<u64>,
    /// Most operations a second on all volumes together, at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub max_iops: Option<u64>,
    /// Most bytes a second, read and written, of all volumes together, at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub max_rate: Option<u64>,
}

impl From<Limits> for TenantLimits {
    fn from(limits: Limits) -> TenantLimits {
        let Limits { max_volumes, max_bytes, max_stored, max_iops, max_rate } = limits;
        TenantLimits { max_volumes, max_bytes, max_stored, max_iops, max_rate }
    }
}

/// A new tenant.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewTenant {
    /// Letters, digits, `.`, `_` and `-`.
    pub name: String,
    /// Its limits. By default it has none.
    #[serde(default)]
    pub limits: Limits,
}

impl From<&Tenant> for Limits {
    fn from(tenant: &Tenant) -> Limits {
        let Tenant { max_volumes, max_bytes, max_stored, max_iops, max_rate, .. } = *tenant;
        Limits { max_volumes, max_bytes, max_stored, max_iops, max_rate }
    }
}

/// Why a request failed.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// In words, with what to do about it.
    pub error: String,
    /// For programs.
    pub kind: ProblemKind,
}

/// Why a request failed, for programs. Later versions may add kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ProblemKind {
    /// The object of the request does not exist.
    NotFound,
    /// The name or identity is in use.
    Exists,
    /// It makes no sense, or is not possible with what there is.
    Invalid,
    /// The request is too large.
    TooLarge,
    /// A host has the volume attached.
    InUse,
    /// The volume is encrypted: the command has to run where its keys are.
    Encrypted,
    /// It is not possible now.
    Conflict,
    /// It is not for this credential.
    Forbidden,
    /// The store cannot do it, and may again.
    Unavailable,
    /// The store did not do it.
    #[default]
    #[serde(other)]
    Failed,
}
