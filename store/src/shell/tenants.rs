//! What is asked about tenants, and whether they have room.

use super::{Asked, Outcome, Shell};
use crate::tenants;
use longhaul_base::limits::QUOTA_GRACE_BYTES;
use longhaul_core::block::{MAX_STAGE_SECTORS, SECTOR_BYTES, VolumeId};
use longhaul_core::store::tenant::tenant_of;
use longhaul_core::wire::link::{
    Frame, Lane, StageError, TENANT_VERSION, TenantOperation, TenantReply, ToHost, ToStore,
    VolumeError, VolumeOperation,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// What a tenant has stored, and how much it may; or why that is not known.
pub(super) type FoundStored = Result<(u64, Option<u64>), VolumeError>;

/// How often it is looked how much tenants have stored, and whether they have room again. A guess: what is stored
/// through other stores in that time goes beyond the quota.
pub(super) const ROOM_INTERVAL: Duration = Duration::from_secs(5);

/// How much tenants have stored. Where nothing is written, and nobody waits for room, nothing is asked of the objects.
#[derive(Default)]
pub(super) struct Room {
    /// Those that have no room for more data.
    full: BTreeSet<String>,
    /// How long the logs of their volumes were at the last look.
    seen: BTreeMap<String, u64>,
    stored: BTreeMap<String, Stored>,
    looking: bool,
    look_again: bool,
}

/// What a tenant has stored, as far as it is known here.
#[derive(Default)]
struct Stored {
    /// Bytes at the last look, and how many there may be. Nothing before the first look.
    seen: Option<(u64, Option<u64>)>,
    /// Bytes of batches and copies that were taken since that look began.
    since: u64,
    /// How many of those were taken before the present look began.
    before: u64,
    /// Batches that wait until there is room for them, and copies until it is known whether there is, in their order, with
    /// sessions and lanes.
    waiting: VecDeque<(u64, Lane, Frame<ToStore>)>,
}

/// What a frame adds to what the tenant of a volume has stored: a batch, or a copy that is made ready in its directory.
fn adds(frame: &Frame<ToStore>) -> Option<(VolumeId, u64)> {
    match &frame.message {
        ToStore::Batch { volume, .. } => Some((*volume, frame.payload.len() as u64)),
        // A larger one is refused.
        ToStore::Stage { into, range, .. } => {
            Some((*into, range.sectors.min(MAX_STAGE_SECTORS) * SECTOR_BYTES))
        }
        _ => None,
    }
}

impl Stored {
    /// Whether so much more may be stored. What hosts have acknowledged before they were told that there is no
    /// room is; more than that comes from a host that does not listen.
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

    /// Whether hosts may acknowledge more, if so many bytes that they have acknowledged have not arrived. Of those
    /// some may have been taken already.
    fn has_room(&self, announced: u64) -> bool {
        let Some((stored, Some(limit))) = self.seen else { return true };
        stored.saturating_add(self.since.max(announced)) < limit
    }
}

impl Shell {
    /// Looks at the tenants whose volumes are used here.
    pub(super) fn look_for_room(&mut self) {
        let mut written: BTreeMap<String, u64> = BTreeMap::new();
        for (tenant, _) in self.used_by_tenants() {
            written.entry(tenant).or_default();
        }
        let waiting = self.room.stored.iter().filter(|(_, stored)| !stored.waiting.is_empty());
        let waiting: BTreeSet<String> = waiting.map(|(tenant, _)| tenant.clone()).collect();
        for tenant in &waiting {
            written.entry(tenant.clone()).or_default();
        }
        for (id, engine) in &self.engines {
            let tenant = self.names.get(id).and_then(|name| tenant_of(name));
            if let Some(sum) = tenant.and_then(|tenant| written.get_mut(tenant)) {
                *sum += engine.volume.info().map_or(0, |live| live.segments);
            }
        }
        let Room { full, seen, stored, looking, look_again } = &mut self.room;
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
        if std::mem::replace(looking, true) {
            *look_again = true;
            return;
        }
        for tenant in written.keys() {
            let stored = stored.entry(tenant.clone()).or_default();
            stored.before = stored.since;
        }
        let (objects, outcomes) = (self.objects.clone(), self.outcomes.0.clone());
        tokio::spawn(async move {
            let mut found = Vec::new();
            for (tenant, sum) in written {
                let stored = tenants::stored(&*objects, &tenant).await;
                found.push((tenant, sum, stored));
            }
            let _ = outcomes.send(Outcome::Room(found));
        });
    }

    /// Takes a batch or a copy of a tenant that has stored more than it may, a batch until there is room; gives any other
    /// frame back.
    pub(super) fn keep_to_quota(
        &mut self,
        session: u64,
        lane: Lane,
        frame: Frame<ToStore>,
    ) -> Option<Frame<ToStore>> {
        let Some((volume, bytes)) = adds(&frame) else { return Some(frame) };
        let tenant = self.names.get(&volume).and_then(|name| tenant_of(name));
        // It was looked at where it came in.
        let Some(tenant) = tenant.filter(|_| !self.stores.contains(&session)) else {
            return Some(frame);
        };
        let tenant = tenant.to_owned();
        let stored = stored_of(&mut self.room, &tenant);
        let first = stored.seen.is_none();
        let copies = matches!(frame.message, ToStore::Stage { .. });
        if (copies || stored.waiting.is_empty()) && stored.takes(bytes) {
            stored.since = stored.since.saturating_add(bytes);
            self.notice_room(&tenant);
            return Some(frame);
        }
        if copies && !first {
            self.refuse_copy(session, lane, frame.message);
            return None;
        }
        if lane == Lane::Drain {
            self.hold_drain(session, bytes);
        }
        stored_of(&mut self.room, &tenant).waiting.push_back((session, lane, frame));
        if first {
            self.look_for_room();
        }
        None
    }

    /// There is no room for a copy: who wants it reads and writes, which waits until there is.
    fn refuse_copy(&self, session: u64, lane: Lane, message: ToStore) {
        if let ToStore::Stage { request, volume, .. } = message {
            let result = Err(StageError::Unsupported);
            self.send(session, lane, ToHost::Staged { request, volume, result }.into());
        }
    }

    /// Lets go on what waits for room, as far as there is any, or it is known that there is no quota.
    fn release_for_room(&mut self, tenant: &str) {
        while let Some(stored) = self.room.stored.get_mut(tenant)
            && let Some((.., frame)) = stored.waiting.front()
        {
            let bytes = adds(frame).map_or(0, |(_, bytes)| bytes);
            let fits = stored.takes(bytes);
            if !fits && !matches!(frame.message, ToStore::Stage { .. }) {
                return;
            }
            let Some((session, lane, frame)) = stored.waiting.pop_front() else { return };
            if !fits {
                self.refuse_copy(session, lane, frame.message);
                continue;
            }
            stored.since = stored.since.saturating_add(bytes);
            if lane == Lane::Drain {
                self.let_drain(session, bytes);
            }
            if let Some(frame) = self.hold(session, lane, frame) {
                self.allowed_frame(session, lane, frame);
            }
        }
    }

    /// A session is over: nobody waits for what it sent.
    pub(super) fn forget_waiting_for_room(&mut self, session: u64) {
        for stored in self.room.stored.values_mut() {
            stored.waiting.retain(|(of, ..)| *of != session);
        }
    }

    /// A volume is not served here any more: who sent something for it is told so.
    pub(super) fn release_waiting_for_room(&mut self, id: VolumeId) {
        let mut gone = Vec::new();
        for stored in self.room.stored.values_mut() {
            let of = |frame: &Frame<ToStore>| match &frame.message {
                ToStore::Batch { volume, .. } => *volume == id,
                ToStore::Stage { volume, into, .. } => *volume == id || *into == id,
                _ => false,
            };
            let (go, stay): (VecDeque<_>, VecDeque<_>) =
                stored.waiting.drain(..).partition(|(.., frame)| of(frame));
            stored.waiting = stay;
            gone.extend(go);
        }
        for (session, lane, frame) in gone {
            if lane == Lane::Drain {
                self.let_drain(session, adds(&frame).map_or(0, |(_, bytes)| bytes));
            }
            self.allowed_frame(session, lane, frame);
        }
    }

    /// A batch or an announcement has come in for a volume: if with that its tenant has no room any more, its hosts
    /// hear of it at once.
    pub(super) fn notice_announced(&mut self, volume: VolumeId) {
        let tenant = self.names.get(&volume).and_then(|name| tenant_of(name)).map(str::to_owned);
        if let Some(tenant) = tenant {
            self.notice_room(&tenant);
        }
    }

    fn notice_room(&mut self, tenant: &str) {
        if !self.room.full.contains(tenant) && !self.has_room(tenant) {
            self.room.full.insert(tenant.to_owned());
            tracing::info!("tenant {tenant} has no room for more data");
            self.tell_room(&BTreeMap::from([(tenant.to_owned(), false)]));
        }
    }

    /// Whether hosts of a tenant may acknowledge more.
    fn has_room(&self, tenant: &str) -> bool {
        let Some(stored) = self.room.stored.get(tenant) else { return true };
        if matches!(stored.seen, None | Some((_, None))) {
            return true;
        }
        let of =
            |id: &VolumeId| self.names.get(id).and_then(|name| tenant_of(name)) == Some(tenant);
        let engines = self.engines.iter().filter(|(id, _)| of(id));
        let announced = engines.filter_map(|(_, engine)| engine.volume.info());
        stored.has_room(announced.map(|live| live.announced_bytes).sum())
    }

    /// Volumes of tenants that hosts have attached here.
    pub(super) fn used_by_tenants(&self) -> Vec<(String, VolumeId)> {
        let used = self.engines.iter().filter(|(_, engine)| engine.volume.session().is_some());
        let of = |id| self.names.get(id).and_then(|name| tenant_of(name)).map(str::to_owned);
        used.filter_map(|(id, _)| Some((of(id)?, *id))).collect()
    }

    /// It is known how much tenants have stored: tells their hosts, as long as there is no room and once when there is
    /// again.
    pub(super) fn found_room(&mut self, found: Vec<(String, u64, FoundStored)>) {
        self.room.looking = false;
        let mut tell: BTreeMap<String, bool> = BTreeMap::new();
        for (tenant, sum, found) in found {
            let found = match found {
                Ok(found) => found,
                Err(error) => {
                    tracing::warn!("what tenant {tenant} stores is not known: {error}");
                    continue;
                }
            };
            let stored = stored_of(&mut self.room, &tenant);
            stored.seen = Some(found);
            stored.since = stored.since.saturating_sub(std::mem::take(&mut stored.before));
            self.room.seen.insert(tenant.clone(), sum);
            let room = self.has_room(&tenant);
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
                tell.insert(tenant.clone(), room);
            }
            self.release_for_room(&tenant);
        }
        self.tell_room(&tell);
        if std::mem::take(&mut self.room.look_again) {
            self.look_for_room();
        }
    }

    /// Tells the hosts of tenants whether there is room.
    fn tell_room(&self, tell: &BTreeMap<String, bool>) {
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

fn stored_of<'a>(room: &'a mut Room, tenant: &str) -> &'a mut Stored {
    room.stored.entry(tenant.to_owned()).or_default()
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
            // With another quota what is known means something else.
            self.room.seen.clear();
            self.look_for_room();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hosts_acknowledged_in_time_is_taken_and_no_more() {
        let mut stored = Stored::default();
        assert!(!stored.takes(1), "nothing is known yet");
        assert!(stored.has_room(u64::MAX));
        stored.seen = Some((500, None));
        assert!(stored.takes(u64::MAX) && stored.has_room(u64::MAX));
        stored.seen = Some((500, Some(1000)));
        assert!(stored.has_room(499) && !stored.has_room(500));
        assert!(stored.takes(500 + QUOTA_GRACE_BYTES) && !stored.takes(501 + QUOTA_GRACE_BYTES));
        stored.since = 300;
        // What was announced and taken counts once.
        assert!(stored.has_room(300) && stored.has_room(0));
        stored.since = 500;
        assert!(!stored.has_room(0));
        assert!(stored.takes(QUOTA_GRACE_BYTES) && !stored.takes(1 + QUOTA_GRACE_BYTES));
    }
}
