//! The paths of the HTTP API.

use super::body::{MAX_BYTES, Query, Said};
use super::failure::Failure;
use super::session::Session;
use super::types::{
    Changes, DeletedVolume, DeletedVolumes, Evacuate, Evacuated, Limits, Lost, MaybeReplica, Moved,
    NewClone, NewReplica, NewSnapshot, NewTenant, NewVolume, Problem, ProblemKind, Replica,
    ReplicaChange, ReplicaMode, Restore, Snapshot, SnapshotSchedule, Snapshots, Store, Stores,
    Tenant, Tenants, Usage, Volume, VolumeChange, Volumes,
};
use crate::queries;
use axum::extract::{DefaultBodyLimit, Path};
use axum::http::StatusCode;
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use longhaul_base::random;
use longhaul_core::block::{SECTOR_BYTES, VolumeId};
use longhaul_core::wire::link::{
    ReplicaOperation, SnapshotOperation, SnapshotReply, StoreId, StoreOperation, StoreReply,
    TenantOperation, TenantReply, TrashOperation, VolumeError, VolumeInfo, VolumeOperation,
    VolumeReply,
};
use serde::Deserialize;
use utoipa::{IntoParams, OpenApi};

/// Default logical block size of a volume.
const BLOCK_BYTES: u32 = 512;

/// All paths.
pub(super) fn router() -> Router {
    Router::new()
        .route("/v1/openapi.json", get(openapi))
        .route("/v1/volumes", get(volumes).post(create_volume))
        .route("/v1/volumes/{volume}", get(volume).patch(change_volume).delete(delete_volume))
        .route("/v1/volumes/{volume}/usage", get(usage))
        .route("/v1/volumes/{volume}/lost", get(lost).delete(accept_loss))
        .route("/v1/volumes/{volume}/schedule", get(schedule).put(set_schedule))
        .route("/v1/volumes/{volume}/snapshots", get(snapshots).post(create_snapshot))
        .route("/v1/volumes/{volume}/snapshots/{snapshot}", get(snapshot).delete(delete_snapshot))
        .route("/v1/volumes/{volume}/snapshots/{snapshot}/changes", get(changes))
        .route("/v1/volumes/{volume}/snapshots/{snapshot}/clones", post(create_clone))
        .route("/v1/volumes/{volume}/snapshots/{snapshot}/rollback", post(roll_back))
        .route("/v1/deleted", get(deleted))
        .route("/v1/deleted/{id}", delete(purge))
        .route("/v1/deleted/{id}/restore", post(restore))
        .route("/v1/tenants", get(tenants).post(create_tenant))
        .route("/v1/tenants/{tenant}", get(tenant).put(set_tenant).delete(delete_tenant))
        .route("/v1/stores", get(stores))
        .route("/v1/stores/{store}", delete(forget_store))
        .route("/v1/store/evacuation", get(evacuated).put(evacuate))
        .route("/v1/store/rebalance", post(rebalance))
        .route(
            "/v1/replica",
            get(replica).put(add_replica).patch(change_replica).delete(remove_replica),
        )
        .fallback(async || Failure::not_found("no such path: see /v1/openapi.json"))
        .method_not_allowed_fallback(async || {
            let why = "not for this path: see /v1/openapi.json";
            Failure::new(StatusCode::METHOD_NOT_ALLOWED, ProblemKind::Invalid, why)
        })
        .layer(DefaultBodyLimit::max(MAX_BYTES))
}

/// The description of the API.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "longhaul",
        description = "Volumes, snapshots and stores of a longhaul installation. \
                       Every store serves this API over TLS, on its TCP address for hosts. \
                       A client shows the client certificate of a credential. Clients that do \
                       not belong to a tenant name its volumes TENANT/NAME, with the slash \
                       encoded.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    paths(
        openapi,
        volumes,
        create_volume,
        volume,
        change_volume,
        delete_volume,
        usage,
        lost,
        accept_loss,
        schedule,
        set_schedule,
        snapshots,
        create_snapshot,
        snapshot,
        delete_snapshot,
        changes,
        create_clone,
        roll_back,
        deleted,
        purge,
        restore,
        tenants,
        create_tenant,
        tenant,
        set_tenant,
        delete_tenant,
        stores,
        forget_store,
        replica,
        add_replica,
        change_replica,
        remove_replica,
        evacuated,
        evacuate,
        rebalance,
    )
)]
struct Api;

type Answer<T> = Result<Json<T>, Failure>;

fn unexpected() -> Failure {
    queries::unexpected().into()
}

fn sectors(bytes: u64) -> Result<u64, Failure> {
    if !bytes.is_multiple_of(SECTOR_BYTES) {
        return Err(Failure::invalid(format!(
            "a size of {bytes} bytes is not a multiple of {SECTOR_BYTES}"
        )));
    }
    Ok(bytes / SECTOR_BYTES)
}

async fn about(session: &Session, operation: VolumeOperation) -> Result<VolumeInfo, Failure> {
    match session.volume(operation).await? {
        VolumeReply::Volume(info) => Ok(info),
        _ => Err(unexpected()),
    }
}

async fn about_snapshots(
    session: &Session,
    volume: &str,
    operation: SnapshotOperation,
) -> Result<SnapshotReply, Failure> {
    match queries::snapshots::ask(session, volume, operation).await? {
        VolumeReply::Snapshot(reply) => Ok(reply),
        _ => Err(unexpected()),
    }
}

fn identity() -> Result<VolumeId, Failure> {
    Ok(VolumeId(random::identity()?))
}

/// This API, as OpenAPI.
#[utoipa::path(
    get, path = "/v1/openapi.json",
    responses((status = 200, description = "An OpenAPI document")),
)]
async fn openapi() -> Json<utoipa::openapi::OpenApi> {
    Json(Api::openapi())
}

/// All volumes.
#[utoipa::path(
    get, path = "/v1/volumes",
    responses((status = 200, body = Volumes), (status = "default", body = Problem)),
)]
async fn volumes(session: Session) -> Answer<Volumes> {
    let VolumeReply::List(list) = session.volume(VolumeOperation::List).await? else {
        return Err(unexpected());
    };
    Ok(Json(Volumes { volumes: list.iter().map(Volume::from).collect() }))
}

/// Creates a volume, which takes no space until its first write. To create an encrypted one, use
/// `longhaul volume create`, where its keys are.
#[utoipa::path(
    post, path = "/v1/volumes", request_body = NewVolume,
    responses((status = 201, body = Volume), (status = "default", body = Problem)),
)]
async fn create_volume(
    session: Session,
    Said(new): Said<NewVolume>,
) -> Result<(StatusCode, Json<Volume>), Failure> {
    let NewVolume { name, size_bytes, block_bytes } = new;
    let block_bytes = block_bytes.unwrap_or(BLOCK_BYTES);
    let operation = VolumeOperation::Create { name, sectors: sectors(size_bytes)?, block_bytes };
    let info = about(&session, operation).await?;
    Ok((StatusCode::CREATED, Json(Volume::from(&info))))
}

/// A volume, or with `VOLUME@SNAPSHOT` a snapshot as a volume. Opens it at the store if necessary.
#[utoipa::path(
    get, path = "/v1/volumes/{volume}", params(("volume" = String, Path)),
    responses((status = 200, body = Volume), (status = "default", body = Problem)),
)]
async fn volume(session: Session, Path(name): Path<String>) -> Answer<Volume> {
    let info = about(&session, VolumeOperation::Show { name }).await?;
    Ok(Json(Volume::from(&info)))
}

/// Makes a volume larger, also while a host has it attached; or smaller, by force and while none
/// has.
#[utoipa::path(
    patch, path = "/v1/volumes/{volume}",
    params(("volume" = String, Path)), request_body = VolumeChange,
    responses((status = 200, body = Volume), (status = "default", body = Problem)),
)]
async fn change_volume(
    session: Session,
    Path(name): Path<String>,
    Said(change): Said<VolumeChange>,
) -> Answer<Volume> {
    let sectors = sectors(change.size_bytes)?;
    let smaller = change.force && queries::info(&session, &name).await?.sectors > sectors;
    let operation = match smaller {
        true => VolumeOperation::Shrink { name, sectors },
        false => VolumeOperation::Resize { name, sectors },
    };
    let info = about(&session, operation).await?;
    Ok(Json(Volume::from(&info)))
}

/// How to delete a volume.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
struct Deletion {
    /// Remove its data now: nothing brings it back.
    #[serde(default)]
    now: bool,
}

/// Deletes a volume that no host has attached. A restore is possible for as long as the store keeps
/// it.
#[utoipa::path(
    delete, path = "/v1/volumes/{volume}", params(("volume" = String, Path), Deletion),
    responses((status = 204), (status = "default", body = Problem)),
)]
async fn delete_volume(
    session: Session,
    Path(name): Path<String>,
    Query(Deletion { now }): Query<Deletion>,
) -> Result<StatusCode, Failure> {
    // An existing volume goes by name, a deleted one by identity.
    let shown = if now { Some(queries::info(&session, &name).await?.id) } else { None };
    session.volume(VolumeOperation::Delete { name }).await?;
    if let Some(volume) = shown {
        let operation = VolumeOperation::Trash(TrashOperation::Purge { volume });
        match session.call_volume(operation).await? {
            // Or it went with its name.
            Ok(_) | Err(VolumeError::NotFound) => {}
            Err(error) => {
                return Err(anyhow::Error::from(error).context("the store refused").into());
            }
        }
    }
    Ok(StatusCode::NO_CONTENT)
}

/// The space of a volume and of each of its snapshots. The store reads all of their maps for it.
#[utoipa::path(
    get, path = "/v1/volumes/{volume}/usage", params(("volume" = String, Path)),
    responses((status = 200, body = Usage), (status = "default", body = Problem)),
)]
async fn usage(session: Session, Path(name): Path<String>) -> Answer<Usage> {
    Ok(Json(queries::usage::of(&session, &name).await?))
}

/// Writes that a host acknowledged and has not delivered. They are lost if it never comes back.
#[utoipa::path(
    get, path = "/v1/volumes/{volume}/lost", params(("volume" = String, Path)),
    responses((status = 200, body = Lost), (status = "default", body = Problem)),
)]
async fn lost(session: Session, Path(name): Path<String>) -> Answer<Lost> {
    Ok(Json(queries::lost::of(&session, &name).await?))
}

/// Gives those writes up, so that another host can attach the volume.
#[utoipa::path(
    delete, path = "/v1/volumes/{volume}/lost", params(("volume" = String, Path)),
    responses((status = 204), (status = "default", body = Problem)),
)]
async fn accept_loss(session: Session, Path(name): Path<String>) -> Result<StatusCode, Failure> {
    session.volume(VolumeOperation::AcceptLoss { name }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The snapshot schedule of a volume.
#[utoipa::path(
    get, path = "/v1/volumes/{volume}/schedule", params(("volume" = String, Path)),
    responses((status = 200, body = SnapshotSchedule), (status = "default", body = Problem)),
)]
async fn schedule(session: Session, Path(name): Path<String>) -> Answer<SnapshotSchedule> {
    let schedule = queries::snapshots::schedule_of(&session, &name).await?.to_string();
    Ok(Json(SnapshotSchedule { schedule }))
}

/// Has snapshots of a volume taken from now on.
#[utoipa::path(
    put, path = "/v1/volumes/{volume}/schedule",
    params(("volume" = String, Path)), request_body = SnapshotSchedule,
    responses((status = 200, body = SnapshotSchedule), (status = "default", body = Problem)),
)]
async fn set_schedule(
    session: Session,
    Path(name): Path<String>,
    Said(wanted): Said<SnapshotSchedule>,
) -> Answer<SnapshotSchedule> {
    let schedule = wanted.schedule.parse().map_err(|error: String| Failure::invalid(error))?;
    queries::snapshots::set_schedule(&session, &name, &schedule).await?;
    Ok(Json(SnapshotSchedule { schedule: schedule.to_string() }))
}

/// All snapshots of a volume, the oldest first.
#[utoipa::path(
    get, path = "/v1/volumes/{volume}/snapshots", params(("volume" = String, Path)),
    responses((status = 200, body = Snapshots), (status = "default", body = Problem)),
)]
async fn snapshots(session: Session, Path(name): Path<String>) -> Answer<Snapshots> {
    let list = queries::snapshots::of_volume(&session, &name).await?;
    Ok(Json(Snapshots { snapshots: list.iter().map(|info| Snapshot::of(&name, info)).collect() }))
}

/// Takes a snapshot, at once and while the volume is in use.
#[utoipa::path(
    post, path = "/v1/volumes/{volume}/snapshots",
    params(("volume" = String, Path)), request_body = NewSnapshot,
    responses((status = 201, body = Snapshot), (status = "default", body = Problem)),
)]
async fn create_snapshot(
    session: Session,
    Path(name): Path<String>,
    Said(new): Said<NewSnapshot>,
) -> Result<(StatusCode, Json<Snapshot>), Failure> {
    let (snapshot, barrier) = (new.name, !new.no_barrier);
    let operation = SnapshotOperation::Create { snapshot, id: identity()?, created: 0, barrier };
    match about_snapshots(&session, &name, operation).await? {
        SnapshotReply::Taken(info) => Ok((StatusCode::CREATED, Json(Snapshot::of(&name, &info)))),
        _ => Err(unexpected()),
    }
}

/// A snapshot.
#[utoipa::path(
    get, path = "/v1/volumes/{volume}/snapshots/{snapshot}",
    params(("volume" = String, Path), ("snapshot" = String, Path)),
    responses((status = 200, body = Snapshot), (status = "default", body = Problem)),
)]
async fn snapshot(
    session: Session,
    Path((name, snapshot)): Path<(String, String)>,
) -> Answer<Snapshot> {
    let list = queries::snapshots::of_volume(&session, &name).await?;
    let found = list.iter().find(|info| info.name == snapshot);
    let found = found.ok_or_else(|| Failure::not_found("the volume has no such snapshot"))?;
    Ok(Json(Snapshot::of(&name, found)))
}

/// Deletes a snapshot. One with clones is no longer seen, and goes with the last of these.
#[utoipa::path(
    delete, path = "/v1/volumes/{volume}/snapshots/{snapshot}",
    params(("volume" = String, Path), ("snapshot" = String, Path)),
    responses((status = 204), (status = "default", body = Problem)),
)]
async fn delete_snapshot(
    session: Session,
    Path((name, snapshot)): Path<(String, String)>,
) -> Result<StatusCode, Failure> {
    about_snapshots(&session, &name, SnapshotOperation::Delete { snapshot }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The later end of a comparison with a snapshot.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
struct Until {
    /// A later snapshot. Without one, the volume as it is.
    until: Option<String>,
    /// From where on, in bytes: what `next_bytes` of the answer before says.
    #[serde(default)]
    from_bytes: u64,
}

/// The ranges in which a snapshot and a later one, or the volume as it is, differ. If there is much
/// to look at the answer has a part of them, and says from where to ask for the next.
#[utoipa::path(
    get, path = "/v1/volumes/{volume}/snapshots/{snapshot}/changes",
    params(("volume" = String, Path), ("snapshot" = String, Path), Until),
    responses((status = 200, body = Changes), (status = "default", body = Problem)),
)]
async fn changes(
    session: Session,
    Path((name, since)): Path<(String, String)>,
    Query(Until { until, from_bytes }): Query<Until>,
) -> Answer<Changes> {
    let from = sectors(from_bytes)?;
    Ok(Json(queries::diff::changes(&session, &name, &since, until.as_deref(), from).await?))
}

/// Creates a volume that begins as a snapshot and shares its data. To clone an encrypted one, use
/// `longhaul volume clone`, where its keys are.
#[utoipa::path(
    post, path = "/v1/volumes/{volume}/snapshots/{snapshot}/clones",
    params(("volume" = String, Path), ("snapshot" = String, Path)), request_body = NewClone,
    responses((status = 201, body = Volume), (status = "default", body = Problem)),
)]
async fn create_clone(
    session: Session,
    Path((name, snapshot)): Path<(String, String)>,
    Said(NewClone { name: clone }): Said<NewClone>,
) -> Result<(StatusCode, Json<Volume>), Failure> {
    let parent = queries::info(&session, &name).await?;
    let keys = crate::attributes::get(&session, &parent, crate::keys::ATTRIBUTE).await?;
    if !keys.is_empty() {
        let why = "the volume is encrypted, and so are clones of it: make one with `longhaul \
                   volume clone --key-file`";
        return Err(Failure::new(StatusCode::CONFLICT, ProblemKind::Encrypted, why));
    }
    let id = identity()?;
    let operation = SnapshotOperation::Clone { snapshot, clone, id };
    match queries::snapshots::ask(&session, &name, operation).await? {
        VolumeReply::Volume(info) => Ok((StatusCode::CREATED, Json(Volume::from(&info)))),
        _ => Err(unexpected()),
    }
}

/// Gives a volume the content of a snapshot. The store refuses while a host has it attached.
#[utoipa::path(
    post, path = "/v1/volumes/{volume}/snapshots/{snapshot}/rollback",
    params(("volume" = String, Path), ("snapshot" = String, Path)),
    responses((status = 204), (status = "default", body = Problem)),
)]
async fn roll_back(
    session: Session,
    Path((name, snapshot)): Path<(String, String)>,
) -> Result<StatusCode, Failure> {
    about_snapshots(&session, &name, SnapshotOperation::Rollback { snapshot }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Deleted volumes that are still there.
#[utoipa::path(
    get, path = "/v1/deleted",
    responses((status = 200, body = DeletedVolumes), (status = "default", body = Problem)),
)]
async fn deleted(session: Session) -> Answer<DeletedVolumes> {
    let all = queries::deleted::deleted(&session).await?;
    Ok(Json(DeletedVolumes { volumes: all.iter().map(DeletedVolume::from).collect() }))
}

fn identified(id: &str) -> Result<u128, Failure> {
    let number = u128::from_str_radix(id, 16).ok().filter(|_| id.len() == 32);
    number.ok_or_else(|| Failure::invalid("an identity has 32 hexadecimal digits"))
}

/// Removes the data of a deleted volume now.
#[utoipa::path(
    delete, path = "/v1/deleted/{id}", params(("id" = String, Path)),
    responses((status = 204), (status = "default", body = Problem)),
)]
async fn purge(session: Session, Path(id): Path<String>) -> Result<StatusCode, Failure> {
    let volume = VolumeId(identified(&id)?);
    queries::deleted::ask(&session, TrashOperation::Purge { volume }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Brings a deleted volume back, with its snapshots.
#[utoipa::path(
    post, path = "/v1/deleted/{id}/restore", params(("id" = String, Path)), request_body = Restore,
    responses((status = 200, body = Volume), (status = "default", body = Problem)),
)]
async fn restore(
    session: Session,
    Path(id): Path<String>,
    Said(Restore { name }): Said<Restore>,
) -> Answer<Volume> {
    let volume = VolumeId(identified(&id)?);
    let name = match name {
        Some(name) => name,
        None => {
            let all = queries::deleted::deleted(&session).await?;
            let found = all.into_iter().find(|deleted| deleted.id == volume);
            found.ok_or_else(|| Failure::not_found("no such deleted volume"))?.name
        }
    };
    match queries::deleted::ask(&session, TrashOperation::Restore { volume, name }).await? {
        VolumeReply::Volume(info) => Ok(Json(Volume::from(&info))),
        _ => Err(unexpected()),
    }
}

async fn tenancy(session: &Session, operation: TenantOperation) -> Result<TenantReply, Failure> {
    session.tenant(operation).await.map_err(Failure::from)
}

/// Does something to a tenant that has to be there.
async fn to_tenant(
    session: &Session,
    tenant: &str,
    operation: TenantOperation,
) -> Result<TenantReply, Failure> {
    match tenancy(session, operation).await {
        Err(failure) if failure.kind == ProblemKind::Invalid => {
            match tenancy(session, TenantOperation::List).await {
                Ok(TenantReply::List(all)) if all.iter().all(|info| info.name != tenant) => {
                    Err(failure.of_nothing())
                }
                _ => Err(failure),
            }
        }
        result => result,
    }
}

fn shown(reply: TenantReply) -> Answer<Tenant> {
    match reply {
        TenantReply::Tenant(info) => Ok(Json(Tenant::from(&info))),
        _ => Err(unexpected()),
    }
}

/// All tenants.
#[utoipa::path(
    get, path = "/v1/tenants",
    responses((status = 200, body = Tenants), (status = "default", body = Problem)),
)]
async fn tenants(session: Session) -> Answer<Tenants> {
    match tenancy(&session, TenantOperation::List).await? {
        TenantReply::List(list) => {
            Ok(Json(Tenants { tenants: list.iter().map(Tenant::from).collect() }))
        }
        _ => Err(unexpected()),
    }
}

/// Creates a tenant. To issue its credentials, use `longhaul credential issue`, where a store runs.
#[utoipa::path(
    post, path = "/v1/tenants", request_body = NewTenant,
    responses((status = 201, body = Tenant), (status = "default", body = Problem)),
)]
async fn create_tenant(
    session: Session,
    Said(NewTenant { name, limits }): Said<NewTenant>,
) -> Result<(StatusCode, Json<Tenant>), Failure> {
    let operation = TenantOperation::Create { tenant: name, limits: limits.into() };
    Ok((StatusCode::CREATED, shown(tenancy(&session, operation).await?)?))
}

/// A tenant.
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}", params(("tenant" = String, Path)),
    responses((status = 200, body = Tenant), (status = "default", body = Problem)),
)]
async fn tenant(session: Session, Path(name): Path<String>) -> Answer<Tenant> {
    let operation = TenantOperation::Show { tenant: name.clone() };
    shown(to_tenant(&session, &name, operation).await?)
}

/// Replaces what a tenant may have, all of it.
#[utoipa::path(
    put, path = "/v1/tenants/{tenant}", params(("tenant" = String, Path)), request_body = Limits,
    responses((status = 200, body = Tenant), (status = "default", body = Problem)),
)]
async fn set_tenant(
    session: Session,
    Path(name): Path<String>,
    Said(limits): Said<Limits>,
) -> Answer<Tenant> {
    let operation = TenantOperation::Set { tenant: name.clone(), limits: limits.into() };
    shown(to_tenant(&session, &name, operation).await?)
}

/// Deletes a tenant that has no volumes.
#[utoipa::path(
    delete, path = "/v1/tenants/{tenant}", params(("tenant" = String, Path)),
    responses((status = 204), (status = "default", body = Problem)),
)]
async fn delete_tenant(session: Session, Path(name): Path<String>) -> Result<StatusCode, Failure> {
    let operation = TenantOperation::Delete { tenant: name.clone() };
    to_tenant(&session, &name, operation).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn fleet(session: &Session, operation: StoreOperation) -> Result<StoreReply, Failure> {
    session.store(operation).await.map_err(Failure::from)
}

/// All stores of the installation.
#[utoipa::path(
    get, path = "/v1/stores",
    responses((status = 200, body = Stores), (status = "default", body = Problem)),
)]
async fn stores(session: Session) -> Answer<Stores> {
    match fleet(&session, StoreOperation::List).await? {
        StoreReply::List(list) => {
            Ok(Json(Stores { stores: list.iter().map(Store::from).collect() }))
        }
        _ => Err(unexpected()),
    }
}

/// Strikes a store that is gone for good off the list of stores.
#[utoipa::path(
    delete, path = "/v1/stores/{store}",
    params(("store" = String, Path, description = "Its identity")),
    responses((status = 204), (status = "default", body = Problem)),
)]
async fn forget_store(session: Session, Path(store): Path<String>) -> Result<StatusCode, Failure> {
    let id = StoreId(identified(&store)?);
    match fleet(&session, StoreOperation::Forget { id }).await {
        Err(failure) if failure.kind == ProblemKind::Invalid => {
            match fleet(&session, StoreOperation::List).await {
                Ok(StoreReply::List(all)) if all.iter().all(|store| store.id != id) => {
                    Err(failure.of_nothing())
                }
                _ => Err(failure),
            }
        }
        result => result.map(|_| StatusCode::NO_CONTENT),
    }
}

async fn report(session: &Session) -> Answer<Evacuated> {
    match fleet(session, StoreOperation::Report).await? {
        StoreReply::Report(report) => Ok(Json(Evacuated::from(&report))),
        _ => Err(unexpected()),
    }
}

/// Whether this store sends its hosts to others, and how many are left.
#[utoipa::path(
    get, path = "/v1/store/evacuation",
    responses((status = 200, body = Evacuated), (status = "default", body = Problem)),
)]
async fn evacuated(session: Session) -> Answer<Evacuated> {
    report(&session).await
}

/// Has this store send its hosts to others, as before maintenance, or take hosts again.
#[utoipa::path(
    put, path = "/v1/store/evacuation", request_body = Evacuate,
    responses((status = 200, body = Evacuated), (status = "default", body = Problem)),
)]
async fn evacuate(
    session: Session,
    Said(Evacuate { evacuating }): Said<Evacuate>,
) -> Answer<Evacuated> {
    fleet(&session, StoreOperation::Evacuate { on: evacuating }).await?;
    report(&session).await
}

/// Has this store hand hosts to stores that have clearly less to do.
#[utoipa::path(
    post, path = "/v1/store/rebalance",
    responses((status = 200, body = Moved), (status = "default", body = Problem)),
)]
async fn rebalance(session: Session) -> Answer<Moved> {
    match fleet(&session, StoreOperation::Rebalance).await? {
        StoreReply::Moved(hosts) => Ok(Json(Moved { hosts })),
        _ => Err(unexpected()),
    }
}

async fn about_replica(
    session: &Session,
    operation: ReplicaOperation,
) -> Result<Option<Replica>, Failure> {
    match fleet(session, StoreOperation::Replica(operation)).await? {
        StoreReply::Replica(state) => Ok(state.as_ref().map(Replica::from)),
        _ => Err(unexpected()),
    }
}

/// The replica of all objects, and its lag at this store.
#[utoipa::path(
    get, path = "/v1/replica",
    responses((status = 200, body = MaybeReplica), (status = "default", body = Problem)),
)]
async fn replica(session: Session) -> Answer<MaybeReplica> {
    let replica = about_replica(&session, ReplicaOperation::Show).await?;
    Ok(Json(MaybeReplica { replica }))
}

/// Adds a replica: the store repeats all changes of objects there.
#[utoipa::path(
    put, path = "/v1/replica", request_body = NewReplica,
    responses((status = 200, body = MaybeReplica), (status = "default", body = Problem)),
)]
async fn add_replica(session: Session, Said(new): Said<NewReplica>) -> Answer<MaybeReplica> {
    let NewReplica { location, mode, standby, discard } = new;
    let in_step = mode == ReplicaMode::InStep;
    let operation = ReplicaOperation::Add { location, in_step, standby, discard };
    Ok(Json(MaybeReplica { replica: about_replica(&session, operation).await? }))
}

/// Sets whether commits wait for the replica.
#[utoipa::path(
    patch, path = "/v1/replica", request_body = ReplicaChange,
    responses((status = 200, body = MaybeReplica), (status = "default", body = Problem)),
)]
async fn change_replica(
    session: Session,
    Said(ReplicaChange { mode }): Said<ReplicaChange>,
) -> Answer<MaybeReplica> {
    let operation = ReplicaOperation::Mode { in_step: mode == ReplicaMode::InStep };
    Ok(Json(MaybeReplica { replica: about_replica(&session, operation).await? }))
}

/// Ends replication. The objects there stay, but no store can take over with them.
#[utoipa::path(
    delete, path = "/v1/replica",
    responses((status = 204), (status = "default", body = Problem)),
)]
async fn remove_replica(session: Session) -> Result<StatusCode, Failure> {
    about_replica(&session, ReplicaOperation::Remove).await?;
    Ok(StatusCode::NO_CONTENT)
}
