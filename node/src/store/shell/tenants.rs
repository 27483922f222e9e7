//! What is asked about tenants, and whether they have room.

use super::{Asked, Outcome, Shell};
use crate::store::tenants;
use longhaul_core::block::VolumeId;
use longhaul_core::store::tenant::tenant_of;
use longhaul_core::wire::link::{
    Frame, Lane, TENANT_VERSION, TenantOperation, TenantReply, ToHost, ToStore, VolumeError,
    VolumeOperation,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How often it is looked whether tenants have written more than they may, or have room again. A guess: what is written in that
/// time goes beyond the quota.
pub(super) const ROOM_INTERVAL: Duration = Duration::from_secs(5);

/// Tenants that have no room for more data, and how long the logs of their volumes were when that was last looked at. Where
/// nothing is written, and nobody waits for room, nothing is asked of the objects.
#[derive(Default)]
pub(super) struct Room {
    full: BTreeSet<String>,
    seen: BTreeMap<String, u64>,
    looking: bool,
}

impl Shell {
    /// Looks at the tenants whose volumes are used here.
    pub(super) fn look_for_room(&mut self) {
        let mut written: BTreeMap<String, u64> = BTreeMap::new();
        for (tenant, _) in self.used_by_tenants() {
            written.entry(tenant).or_default();
        }
        for (id, engine) in &self.engines {
            let tenant = self.names.get(id).and_then(|name| tenant_of(name));
            if let Some(sum) = tenant.and_then(|tenant| written.get_mut(tenant)) {
                *sum += engine.volume.info().map_or(0, |live| live.segments);
            }
        }
        let Room { full, seen, looking } = &mut self.room;
        seen.retain(|tenant, _| written.contains_key(tenant));
        full.retain(|tenant| written.contains_key(tenant));
        written.retain(|tenant, sum| full.contains(tenant) || seen.get(tenant) != Some(sum));
        if written.is_empty() || std::mem::replace(looking, true) {
            return;
        }
        let (objects, outcomes) = (self.objects.clone(), self.outcomes.0.clone());
        tokio::spawn(async move {
            let mut found = Vec::new();
            for (tenant, sum) in written {
                let room = tenants::has_room(&*objects, &tenant).await;
                found.push((tenant, sum, room));
            }
            let _ = outcomes.send(Outcome::Room(found));
        });
    }

    /// Volumes of tenants that hosts have attached here.
    pub(super) fn used_by_tenants(&self) -> Vec<(String, VolumeId)> {
        let used = self.engines.iter().filter(|(_, engine)| engine.volume.session().is_some());
        let of = |id| self.names.get(id).and_then(|name| tenant_of(name)).map(str::to_owned);
        used.filter_map(|(id, _)| Some((of(id)?, *id))).collect()
    }

    /// It is known which tenants have room: tells their hosts, as long as there is none and once when there is again.
    pub(super) fn found_room(&mut self, found: Vec<(String, u64, Result<bool, VolumeError>)>) {
        self.room.looking = false;
        let mut tell: BTreeMap<String, bool> = BTreeMap::new();
        for (tenant, sum, room) in found {
            match room {
                Ok(room) => {
                    self.room.seen.insert(tenant.clone(), sum);
                    let was_full = if room {
                        self.room.full.remove(&tenant)
                    } else {
                        !self.room.full.insert(tenant.clone())
                    };
                    if room == was_full {
                        let now = if room { "has room again" } else { "has no room for more data" };
                        tracing::info!("tenant {tenant} {now}");
                    }
                    if !room || was_full {
                        tell.insert(tenant, room);
                    }
                }
                Err(error) => tracing::warn!("what tenant {tenant} stores is not known: {error}"),
            }
        }
        for (tenant, id) in self.used_by_tenants() {
            let engine = self.engines.get(&id);
            let told = engine
                .and_then(|engine| Some((engine.volume.session()?, engine.volume.info()?.epoch)));
            if let (Some(room), Some((session, epoch))) = (tell.get(&tenant).copied(), told) {
                let message = ToHost::Room { volume: id, epoch, room };
                self.send(session.0, Lane::Control, message.into());
            }
        }
    }
}

impl Shell {
    /// Something about tenants is asked, by whom it may be.
    pub(super) fn tenant_operation(&mut self, asked: Asked, operation: TenantOperation) {
        let version = self.listener.version(asked.session);
        if version.is_some_and(|version| version < TENANT_VERSION) {
            let why = "the store is newer, and has other limits for tenants: ask with a longhaul of its version";
            return self.told_tenant(asked, false, Err(VolumeError::Invalid(why.to_owned())));
        }
        let (objects, outcomes) = (self.objects.clone(), self.outcomes.0.clone());
        let changes = !matches!(operation, TenantOperation::Show { .. } | TenantOperation::List);
        tokio::spawn(async move {
            let result = tenants::operate(&*objects, operation).await;
            let _ = outcomes.send(Outcome::Tenant(asked, changes && result.is_ok(), result));
        });
    }

    /// It was done, or not. Limits that changed are kept to at once, here and at the other stores.
    pub(super) fn told_tenant(
        &mut self,
        Asked { session, lane, request }: Asked,
        changed: bool,
        mut result: Result<TenantReply, VolumeError>,
    ) {
        if changed {
            self.look_for_limits();
            self.tell_stores();
        }
        if let Ok(reply) = &mut result {
            self.limits.complete(reply);
        }
        self.send(session, lane, ToHost::Tenant { request, result }.into());
    }

    /// Takes a frame that makes a tenant's volume larger until it is known whether that may be; gives any other back. From
    /// another store it comes after that.
    pub(super) fn take_growth(
        &mut self,
        session: u64,
        lane: Lane,
        frame: Frame<ToStore>,
    ) -> Option<Frame<ToStore>> {
        let ToStore::Volume { operation: VolumeOperation::Resize { name, sectors }, .. } =
            &frame.message
        else {
            return Some(frame);
        };
        let entry = self.catalog.get(name).filter(|_| tenant_of(name).is_some());
        let Some(entry) = entry.filter(|_| !self.stores.contains(&session)) else {
            return Some(frame);
        };
        let (spec, sectors) = (entry.spec.clone(), *sectors);
        let (objects, outcomes) = (self.objects.clone(), self.outcomes.0.clone());
        tokio::spawn(async move {
            let allowed = tenants::allow_size(&*objects, &spec, sectors).await;
            let _ = outcomes.send(Outcome::Allowed(allowed, session, lane, frame));
        });
        None
    }
}
