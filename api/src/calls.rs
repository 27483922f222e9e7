//! The requests to a store: a method for each path of its API that commands need.

use super::client::Client;
use super::types::{
    Changes, DeletedVolumes, Evacuate, Evacuated, Limits, Lost, MaybeReplica, Moved, NewClone,
    NewReplica, NewSnapshot, NewTenant, NewVolume, ReplicaChange, Restore, Snapshot,
    SnapshotSchedule, Snapshots, Standby, Stores, Tenant, Tenants, Usage, Volume, VolumeChange,
    Volumes,
};
use anyhow::Result;
use axum::http::Method;
use longhaul_core::store::catalog::check_name;
use longhaul_core::store::tenant::check_tenant;
use std::fmt::Write as _;

/// A name as a part of a path, RFC 3986 §2.
fn part(name: &str) -> String {
    let mut part = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                part.push(byte.into());
            }
            // Writing to a string does not fail.
            _ => drop(write!(part, "%{byte:02X}")),
        }
    }
    part
}

/// The path of a volume. A path has no place for a name that is empty; any other is the store's to
/// judge.
fn of_volume(name: &str) -> Result<String> {
    if name.is_empty() {
        check_name(name)?;
    }
    Ok(format!("/v1/volumes/{}", part(name)))
}

fn of_snapshot(volume: &str, snapshot: &str) -> Result<String> {
    if snapshot.is_empty() {
        check_name(snapshot)?;
    }
    Ok(format!("{}/snapshots/{}", of_volume(volume)?, part(snapshot)))
}

fn of_tenant(name: &str) -> Result<String> {
    if name.is_empty() {
        check_tenant(name)?;
    }
    Ok(format!("/v1/tenants/{}", part(name)))
}

impl Client {
    /// All volumes.
    pub async fn volumes(&self) -> Result<Volumes> {
        self.get("/v1/volumes").await
    }

    /// A volume.
    pub async fn volume(&self, name: &str) -> Result<Volume> {
        self.get(&of_volume(name)?).await
    }

    /// Creates a volume.
    pub async fn create_volume(
        &self,
        name: &str,
        size_bytes: u64,
        block_bytes: u32,
    ) -> Result<Volume> {
        let (name, block_bytes) = (name.to_owned(), Some(block_bytes));
        self.call(Method::POST, "/v1/volumes", &NewVolume { name, size_bytes, block_bytes }).await
    }

    /// Gives a volume another size.
    pub async fn resize_volume(&self, name: &str, size_bytes: u64, force: bool) -> Result<Volume> {
        self.call(Method::PATCH, &of_volume(name)?, &VolumeChange { size_bytes, force }).await
    }

    /// Deletes a volume; its data with it, or later.
    pub async fn delete_volume(&self, name: &str, now: bool) -> Result<()> {
        let now = if now { "?now=true" } else { "" };
        self.act(Method::DELETE, &format!("{}{now}", of_volume(name)?)).await
    }

    /// The space of a volume and its snapshots.
    pub async fn usage(&self, name: &str) -> Result<Usage> {
        self.get_in_time(&format!("{}/usage", of_volume(name)?)).await
    }

    /// The writes that a host has not delivered.
    pub async fn lost(&self, name: &str) -> Result<Lost> {
        self.get(&format!("{}/lost", of_volume(name)?)).await
    }

    /// Gives that up.
    pub async fn accept_loss(&self, name: &str) -> Result<()> {
        self.act(Method::DELETE, &format!("{}/lost", of_volume(name)?)).await
    }

    /// The snapshot schedule of a volume.
    pub async fn schedule(&self, volume: &str) -> Result<SnapshotSchedule> {
        self.get(&format!("{}/schedule", of_volume(volume)?)).await
    }

    /// Has them taken like that.
    pub async fn set_schedule(&self, volume: &str, schedule: &str) -> Result<SnapshotSchedule> {
        let wanted = SnapshotSchedule { schedule: schedule.to_owned() };
        self.call(Method::PUT, &format!("{}/schedule", of_volume(volume)?), &wanted).await
    }

    /// The snapshots of a volume.
    pub async fn snapshots(&self, volume: &str) -> Result<Snapshots> {
        self.get(&format!("{}/snapshots", of_volume(volume)?)).await
    }

    /// Takes one.
    pub async fn create_snapshot(
        &self,
        volume: &str,
        snapshot: &str,
        no_barrier: bool,
    ) -> Result<Snapshot> {
        let new = NewSnapshot { name: snapshot.to_owned(), no_barrier };
        self.call(Method::POST, &format!("{}/snapshots", of_volume(volume)?), &new).await
    }

    /// Deletes one.
    pub async fn delete_snapshot(&self, volume: &str, snapshot: &str) -> Result<()> {
        self.act(Method::DELETE, &of_snapshot(volume, snapshot)?).await
    }

    /// Makes a volume what it was then.
    pub async fn roll_back(&self, volume: &str, snapshot: &str) -> Result<()> {
        self.act(Method::POST, &format!("{}/rollback", of_snapshot(volume, snapshot)?)).await
    }

    /// Makes a clone of a volume that is not encrypted.
    pub async fn create_clone(&self, volume: &str, snapshot: &str, clone: &str) -> Result<Volume> {
        let new = NewClone { name: clone.to_owned() };
        self.call(Method::POST, &format!("{}/clones", of_snapshot(volume, snapshot)?), &new).await
    }

    /// Some of what has changed since a snapshot, from there on.
    pub async fn changes(
        &self,
        volume: &str,
        since: &str,
        until: Option<&str>,
        from_bytes: u64,
    ) -> Result<Changes> {
        let until = until.map_or(String::new(), |until| format!("&until={}", part(until)));
        let path = of_snapshot(volume, since)?;
        self.get(&format!("{path}/changes?from_bytes={from_bytes}{until}")).await
    }

    /// Deleted volumes.
    pub async fn deleted(&self) -> Result<DeletedVolumes> {
        self.get("/v1/deleted").await
    }

    /// Removes the data of one.
    pub async fn purge(&self, id: &str) -> Result<()> {
        self.act(Method::DELETE, &format!("/v1/deleted/{}", part(id))).await
    }

    /// Brings one back, with that name.
    pub async fn restore(&self, id: &str, name: &str) -> Result<Volume> {
        let restore = Restore { name: Some(name.to_owned()) };
        self.call(Method::POST, &format!("/v1/deleted/{}/restore", part(id)), &restore).await
    }

    /// All tenants.
    pub async fn tenants(&self) -> Result<Tenants> {
        self.get("/v1/tenants").await
    }

    /// A tenant.
    pub async fn tenant(&self, name: &str) -> Result<Tenant> {
        self.get(&of_tenant(name)?).await
    }

    /// Makes one.
    pub async fn create_tenant(&self, name: &str, limits: Limits) -> Result<Tenant> {
        let new = NewTenant { name: name.to_owned(), limits };
        self.call(Method::POST, "/v1/tenants", &new).await
    }

    /// Limits one to that.
    pub async fn set_tenant(&self, name: &str, limits: &Limits) -> Result<Tenant> {
        self.call(Method::PUT, &of_tenant(name)?, limits).await
    }

    /// Deletes one.
    pub async fn delete_tenant(&self, name: &str) -> Result<()> {
        self.act(Method::DELETE, &of_tenant(name)?).await
    }

    /// All stores.
    pub async fn stores(&self) -> Result<Stores> {
        self.get("/v1/stores").await
    }

    /// Strikes one off their list.
    pub async fn forget_store(&self, id: &str) -> Result<()> {
        self.act(Method::DELETE, &format!("/v1/stores/{}", part(id))).await
    }

    /// Whether this store sends its hosts away, and how many are left.
    pub async fn evacuated(&self) -> Result<Evacuated> {
        self.get("/v1/store/evacuation").await
    }

    /// Has it do so, or stop.
    pub async fn evacuate(&self, evacuating: bool) -> Result<Evacuated> {
        self.call(Method::PUT, "/v1/store/evacuation", &Evacuate { evacuating }).await
    }

    /// The replica of all objects.
    pub async fn replica(&self) -> Result<MaybeReplica> {
        self.get("/v1/replica").await
    }

    /// Has one from now on.
    pub async fn add_replica(&self, new: &NewReplica) -> Result<MaybeReplica> {
        self.call(Method::PUT, "/v1/replica", new).await
    }

    /// Has commits wait for it, or not.
    pub async fn change_replica(&self, change: &ReplicaChange) -> Result<MaybeReplica> {
        self.call(Method::PATCH, "/v1/replica", change).await
    }

    /// Has none any more.
    pub async fn remove_replica(&self) -> Result<()> {
        self.act(Method::DELETE, "/v1/replica").await
    }

    /// Has a store that waits over a replica go on with it.
    pub async fn fail_over(&self, force: bool) -> Result<Standby> {
        self.act_for(Method::POST, &format!("/v1/failover?force={force}")).await
    }

    /// Has it hand hosts to others.
    pub async fn rebalance(&self) -> Result<Moved> {
        self.act_for(Method::POST, "/v1/store/rebalance").await
    }
}
