//! Tenants' quotas: batches and copies wait, or are refused, until their tenant has room. A volume
//! grows only if its tenant may have that much.
//!
//! If nobody writes and nobody waits for room, the stage sends no request to the objects.

use super::super::completions::Completions;
use super::super::directory::Directory;
use super::super::engines::Engines;
use super::super::refusal::Refusal;
use super::super::request::{Decision, Request, Target};
use super::held_drains::HeldDrains;
use crate::tenants;
use longhaul_base::limits::QUOTA_GRACE_BYTES;
use longhaul_core::block::{MAX_STAGE_SECTORS, SECTOR_BYTES, VolumeId};
use longhaul_core::store::tenant::tenant_of;
use longhaul_core::wire::link::{Lane, ToHost, ToStore, VolumeError, VolumeOperation};
use longhaul_objects::Objects;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// How often this store looks how much tenants store, and whether they have room again. A guess:
/// bytes that other stores store in that time exceed the quota.
pub(in super::super) const ROOM_INTERVAL: Duration = Duration::from_secs(5);

/// The outcomes of this stage's tasks.
pub(in super::super) enum QuotaDone {
    /// How much tenants store.
    Stored(Vec<FoundStored>),
    /// Whether a volume may grow as this request says.
    Growth(Result<(), VolumeError>, Box<Request>),
}

/// The stored bytes of a tenant, or why they are unknown.
pub(in super::super) struct FoundStored {
    tenant: String,
    /// Segments in the logs of its open volumes when the look began.
    segments: u64,
    /// Bytes stored, and how many there may be.
    stored: Result<(u64, Option<u64>), VolumeError>,
}

/// A request that waited here.
pub(in super::super) enum Released {
    /// The tenant has room: the next stage decides.
    Pass(Request),
    /// This store does not serve the volume any more. The store that does checks the quota.
    Gone(Request),
    Refused(Request, Refusal),
}

/// How much tenants store.
pub(in super::super) struct Quotas {
    /// Tenants that have no room for more data.
    full: BTreeSet<String>,
    /// Segments in the logs of their open volumes at the last look.
    seen: BTreeMap<String, u64>,
    stored: BTreeMap<String, TenantStored>,
    looking: bool,
    look_again: bool,
    released: VecDeque<Released>,
    /// Tenants whose hosts have to hear whether they have room.
    notices: BTreeMap<String, bool>,
    objects: Arc<dyn Objects>,
    done: Completions<QuotaDone>,
}

/// The stored bytes of a tenant, as far as this store knows them.
#[derive(Default)]
struct TenantStored {
    /// Bytes at the last look, and how many there may be. Nothing before the first look.
    seen: Option<(u64, Option<u64>)>,
    /// Bytes of batches and copies that passed since that look began.
    since: u64,
    /// How many of those passed before the present look began.
    before: u64,
    /// Batches that wait for room, and copies that wait until the store knows whether there is
    /// room, in order.
    waiting: VecDeque<Request>,
}

/// The volume for which a request adds data, and the number of bytes. The request is a batch, or a
/// copy staged in its directory.
fn adds(request: &Request) -> Option<(VolumeId, u64)> {
    match request.message() {
        ToStore::Batch { volume, .. } => Some((*volume, request.body.payload.len() as u64)),
        // The store refuses a larger one.
        ToStore::Stage { into, range, .. } => {
            Some((*into, range.sectors.min(MAX_STAGE_SECTORS) * SECTOR_BYTES))
        }
        _ => None,
    }
}

fn is_copy(request: &Request) -> bool {
    matches!(request.target, Target::Copy { .. })
}

impl TenantStored {
    /// Whether the store may take `bytes` more bytes. The store takes the writes that hosts
    /// acknowledged before they heard that there is no room. More than that comes from a host that
    /// does not listen.
    fn takes(&self, bytes: u64) -> bool {
        match self.seen {
            None => false,
            Some((_, None)) => true,
            Some((stored, Some(limit))) => {
                let most = limit.saturating_add(QUOTA_GRACE_BYTES);
                stored.saturating_add(self.since).saturating_add(bytes) <= most
            }
        }
    }

    /// Whether hosts may acknowledge more, with this number of acknowledged bytes that have not
    /// arrived. Some of these may count already.
    fn has_room(&self, announced: u64) -> bool {
        let Some((stored, Some(limit))) = self.seen else { return true };
        stored.saturating_add(self.since.max(announced)) < limit
    }
}

impl Quotas {
    pub fn new(objects: Arc<dyn Objects>, done: Completions<QuotaDone>) -> Quotas {
        Quotas {
            full: BTreeSet::new(),
            seen: BTreeMap::new(),
            stored: BTreeMap::new(),
            looking: false,
            look_again: false,
            released: VecDeque::new(),
            notices: BTreeMap::new(),
            objects,
            done,
        }
    }

    /// Holds a request for growth of a tenant's volume until the store knows whether the tenant may
    /// have that. If another store serves the volume, the request passes here first.
    pub fn decide_growth(&mut self, request: Request, directory: &Directory) -> Decision {
        let ToStore::Volume { operation: VolumeOperation::Resize { name, sectors }, .. } =
            request.message()
        else {
            return Decision::Pass(request);
        };
        let entry = directory.entry(name).filter(|_| tenant_of(name).is_some());
        let Some(entry) = entry.filter(|_| !request.is_from_store()) else {
            return Decision::Pass(request);
        };
        let (spec, sectors, objects) = (entry.spec.clone(), *sectors, self.objects.clone());
        self.done.spawn(async move {
            let allowed = tenants::allow_size(&*objects, &spec, sectors).await;
            QuotaDone::Growth(allowed, Box::new(request))
        });
        Decision::Hold
    }

    /// Holds or refuses what a tenant sends that has stored more than it may.
    pub fn decide(
        &mut self,
        request: Request,
        (directory, engines): (&Directory, &Engines),
        drains: &mut HeldDrains,
    ) -> Decision {
        let Some((volume, bytes)) = adds(&request) else { return Decision::Pass(request) };
        // The store that another store's request came in at has looked at it.
        let tenant = directory.tenant(volume).filter(|_| !request.is_from_store());
        let Some(tenant) = tenant else { return Decision::Pass(request) };
        let stored = self.stored.entry(tenant.to_owned()).or_default();
        let first = stored.seen.is_none();
        let copies = is_copy(&request);
        if (copies || stored.waiting.is_empty()) && stored.takes(bytes) {
            stored.since = stored.since.saturating_add(bytes);
            self.notice(volume, directory, engines);
            return Decision::Pass(request);
        }
        if copies && !first {
            return Decision::Refuse(request, Refusal::NoCopy);
        }
        if request.reply_to.lane == Lane::Drain {
            drains.add(request.session(), bytes);
        }
        stored.waiting.push_back(request);
        if first {
            self.look(directory, engines);
        }
        Decision::Hold
    }

    /// Looks up the stored bytes of the tenants whose volumes are in use here.
    pub fn look(&mut self, directory: &Directory, engines: &Engines) {
        let tenants = engines.tenants(directory);
        let waiting = self.stored.iter().filter(|(_, stored)| !stored.waiting.is_empty());
        let waiting: BTreeSet<String> = waiting.map(|(tenant, _)| tenant.clone()).collect();
        let attached = tenants.iter().filter(|(_, used)| used.attached).map(|(tenant, _)| tenant);
        let mut written: BTreeMap<String, u64> = BTreeMap::new();
        for tenant in attached.chain(&waiting) {
            let segments = tenants.get(tenant).map_or(0, |used| used.segments);
            written.insert(tenant.clone(), segments);
        }
        let Quotas { full, seen, stored, .. } = self;
        seen.retain(|tenant, _| written.contains_key(tenant));
        full.retain(|tenant| written.contains_key(tenant));
        stored.retain(|tenant, _| written.contains_key(tenant));
        let quiet = |tenant: &String, sum: &u64| {
            !full.contains(tenant) && !waiting.contains(tenant) && seen.get(tenant) == Some(sum)
        };
        written.retain(|tenant, sum| !quiet(tenant, &*sum));
        if written.is_empty() {
            return;
        }
        if std::mem::replace(&mut self.looking, true) {
            self.look_again = true;
            return;
        }
        for tenant in written.keys() {
            let stored = self.stored.entry(tenant.clone()).or_default();
            stored.before = stored.since;
        }
        let objects = self.objects.clone();
        self.done.spawn(async move {
            let mut found = Vec::new();
            for (tenant, segments) in written {
                let stored = tenants::stored(&*objects, &tenant).await;
                found.push(FoundStored { tenant, segments, stored });
            }
            QuotaDone::Stored(found)
        });
    }

    /// Takes the stored bytes of tenants. Their hosts hear of it as long as there is no room, and
    /// once when the store has room again.
    pub fn found(
        &mut self,
        found: Vec<FoundStored>,
        (directory, engines): (&Directory, &Engines),
        drains: &mut HeldDrains,
    ) {
        self.looking = false;
        for FoundStored { tenant, segments, stored: found } in found {
            let found = match found {
                Ok(found) => found,
                Err(error) => {
                    tracing::warn!("cannot read the stored bytes of tenant {tenant}: {error}");
                    continue;
                }
            };
            let stored = self.stored.entry(tenant.clone()).or_default();
            stored.seen = Some(found);
            stored.since = stored.since.saturating_sub(std::mem::take(&mut stored.before));
            self.seen.insert(tenant.clone(), segments);
            let room = self.has_room(&tenant, directory, engines);
            let was_full =
                if room { self.full.remove(&tenant) } else { !self.full.insert(tenant.clone()) };
            if room == was_full {
                let now = if room { "has room again" } else { "has no room for more data" };
                tracing::info!("tenant {tenant} {now}");
            }
            if !room || was_full {
                self.notices.insert(tenant.clone(), room);
            }
            self.release(&tenant, drains);
        }
    }

    /// Whether another look has to follow. True once for each request.
    pub fn take_look_again(&mut self) -> bool {
        std::mem::take(&mut self.look_again)
    }

    /// Releases waiting requests, as far as there is room, or if the tenant has no quota.
    fn release(&mut self, tenant: &str, drains: &mut HeldDrains) {
        let Some(stored) = self.stored.get_mut(tenant) else { return };
        while let Some(request) = stored.waiting.front() {
            let bytes = adds(request).map_or(0, |(_, bytes)| bytes);
            let fits = stored.takes(bytes);
            if !fits && !is_copy(request) {
                return;
            }
            let Some(request) = stored.waiting.pop_front() else { return };
            if !fits {
                self.released.push_back(Released::Refused(request, Refusal::NoCopy));
                continue;
            }
            stored.since = stored.since.saturating_add(bytes);
            if request.reply_to.lane == Lane::Drain {
                drains.remove(request.session(), bytes);
            }
            self.released.push_back(Released::Pass(request));
        }
    }

    /// The next request that waits no longer.
    pub fn poll_released(&mut self) -> Option<Released> {
        self.released.pop_front()
    }

    /// A session is over: nobody waits for what it sent.
    pub fn forget(&mut self, session: u64) {
        for stored in self.stored.values_mut() {
            stored.waiting.retain(|request| request.session() != session);
        }
    }

    /// This store does not serve a volume any more: releases its requests.
    pub fn release_volume(&mut self, id: VolumeId, drains: &mut HeldDrains) {
        for stored in self.stored.values_mut() {
            let of = |request: &Request| request.target.identities().contains(&Some(id));
            let (gone, stay): (VecDeque<_>, VecDeque<_>) = stored.waiting.drain(..).partition(of);
            stored.waiting = stay;
            for request in gone {
                if request.reply_to.lane == Lane::Drain {
                    drains.remove(request.session(), adds(&request).map_or(0, |(_, bytes)| bytes));
                }
                self.released.push_back(Released::Gone(request));
            }
        }
    }

    /// Data was stored or announced for a volume. If its tenant has no room any more, its hosts
    /// have to hear of it at once.
    pub fn notice(&mut self, volume: VolumeId, directory: &Directory, engines: &Engines) {
        let Some(tenant) = directory.tenant(volume) else { return };
        if self.full.contains(tenant) || self.has_room(tenant, directory, engines) {
            return;
        }
        self.full.insert(tenant.to_owned());
        tracing::info!("tenant {tenant} has no room for more data");
        self.notices.insert(tenant.to_owned(), false);
    }

    /// The messages that tell hosts whether their tenants have room, with their sessions.
    pub fn take_notices(&mut self, directory: &Directory, engines: &Engines) -> Vec<(u64, ToHost)> {
        if self.notices.is_empty() {
            return Vec::new();
        }
        let notices = std::mem::take(&mut self.notices);
        let told = engines.iter().filter_map(|(volume, engine)| {
            let room = *notices.get(directory.tenant(volume)?)?;
            let driven = engine.lock();
            let (session, epoch) = (driven.volume.session()?, driven.volume.info()?.epoch);
            Some((session.0, ToHost::Room { volume, epoch, room }))
        });
        told.collect()
    }

    /// Whether hosts of a tenant may acknowledge more.
    fn has_room(&self, tenant: &str, directory: &Directory, engines: &Engines) -> bool {
        let Some(stored) = self.stored.get(tenant) else { return true };
        if matches!(stored.seen, None | Some((_, None))) {
            return true;
        }
        stored.has_room(engines.announced_bytes(directory, tenant))
    }

    /// Quotas have changed: the known sizes mean something else.
    pub fn quotas_changed(&mut self) {
        self.seen.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hosts_acknowledged_in_time_is_taken_and_no_more() {
        let mut stored = TenantStored::default();
        assert!(!stored.takes(1), "nothing is known yet");
        assert!(stored.has_room(u64::MAX));
        stored.seen = Some((500, None));
        assert!(stored.takes(u64::MAX) && stored.has_room(u64::MAX));
        stored.seen = Some((500, Some(1000)));
        assert!(stored.has_room(499) && !stored.has_room(500));
        assert!(stored.takes(500 + QUOTA_GRACE_BYTES) && !stored.takes(501 + QUOTA_GRACE_BYTES));
        stored.since = 300;
        // Bytes that were announced and then taken count once.
        assert!(stored.has_room(300) && stored.has_room(0));
        stored.since = 500;
        assert!(!stored.has_room(0));
        assert!(stored.takes(QUOTA_GRACE_BYTES) && !stored.takes(1 + QUOTA_GRACE_BYTES));
    }
}
