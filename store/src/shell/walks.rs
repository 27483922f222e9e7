//! Walks over several maps of one volume: what two of them do not say the same of is what differs, and what each names
//! is what it takes. Their engines are asked where what lies, part by part.
//!
//! Nobody waits long for an answer: after some parts it is given as far as it goes, and who asked goes on
//! from there. Of a volume that is written meanwhile it is a mixture of moments.
//!
//! A walk is begun only when the volume's own log says that its snapshots exist. Of each party one is under way, others of
//! it wait in their order; how many may wait is bounded by what answers count for.

use super::snapshots::Place;
use super::{Asked, Shell};
use longhaul_base::limits::{MAX_IDLE_SNAPSHOTS, MAX_WALKS};
use longhaul_core::block::{Range, VolumeId};
use longhaul_core::extent::Extent as _;
use longhaul_core::store::tenant::tenant_of;
use longhaul_core::store::{Account, Places, SHELL_SESSION, differences};
use longhaul_core::wire::link::{
    Lane, MAX_CHANGED_RANGES, MAX_MAPS_COUNTED, Principal, ReadError, RequestId, SnapshotError,
    SnapshotKey, SnapshotReply, ToStore, VolumeError, VolumeReply,
};
use longhaul_link::party;
use std::collections::{BTreeSet, HashMap, VecDeque};

/// Questions to engines for one answer, at most, or one to each. A question is for some pages of each level of a map:
/// usually one or two reads of each of the objects if these are not in memory.
const QUESTIONS_MAX: usize = 128;

/// Walks under way.
#[derive(Default)]
pub(super) struct Walks {
    next: u64,
    all: HashMap<u64, Walk>,
    waiting: VecDeque<Waiting>,
}

/// A walk that has not begun.
struct Waiting {
    party: String,
    asked: Asked,
    volume: VolumeId,
    snapshots: Vec<SnapshotKey>,
    /// The size of the volume, if it is looked at too.
    whole: Option<u64>,
    range: Range,
    finds: Finds,
}

struct Walk {
    party: String,
    asked: Asked,
    maps: Vec<Map>,
    /// What is left to be looked at.
    range: Range,
    questions: usize,
    finds: Finds,
}

/// One of the maps.
struct Map {
    engine: VolumeId,
    /// In what comes after these it has nothing.
    sectors: u64,
    /// What it has said and not been looked at, from the start of what is left on.
    places: Places,
}

/// What is to be found out.
enum Finds {
    Differences(Vec<Range>),
    Usage {
        account: Account,
        /// What a clone has of its parents is in segments up to this one.
        begins_after: u64,
    },
}

impl Shell {
    /// Begins to compare a snapshot of a volume that is this store's with another one, or the volume.
    pub(super) fn begin_diff(
        &mut self,
        asked: Asked,
        volume: VolumeId,
        since: SnapshotKey,
        until: Option<SnapshotKey>,
        range: Range,
    ) {
        let keys: Vec<SnapshotKey> = std::iter::once(since).chain(until).collect();
        let whole = until.is_none().then_some(range.end());
        self.begin_walk(asked, volume, &keys, whole, range, Finds::Differences(Vec::new()));
    }

    /// Begins to count what snapshots of a volume that is this store's name, and the volume.
    pub(super) fn begin_usage(
        &mut self,
        asked: Asked,
        volume: VolumeId,
        snapshots: &[SnapshotKey],
        whole: Option<u64>,
        range: Range,
    ) {
        if snapshots.len() > MAX_MAPS_COUNTED || snapshots.is_empty() && whole.is_none() {
            let why = format!("from 1 to {MAX_MAPS_COUNTED} snapshots are counted at a time");
            return self.reply(&[asked], &Err(VolumeError::Invalid(why)));
        }
        let ids = snapshots.iter().map(|key| key.id).chain(whole.map(|_| volume));
        let spec = self.names.get(&volume).and_then(|name| self.catalog.get(name));
        let begins_after = spec.map_or(0, |entry| entry.spec.begins_after());
        let finds = Finds::Usage { account: Account::new(ids), begins_after };
        self.begin_walk(asked, volume, snapshots, whole, range, finds);
    }

    /// Of these snapshots, and of the volume if that has a size.
    fn begin_walk(
        &mut self,
        asked: Asked,
        volume: VolumeId,
        snapshots: &[SnapshotKey],
        whole: Option<u64>,
        range: Range,
        finds: Finds,
    ) {
        if range.is_empty() {
            return self.reply(&[asked], &Err(VolumeError::Invalid("the range is empty".into())));
        }
        let party = self.walker(asked.session, volume);
        let snapshots = snapshots.to_vec();
        let walk = Waiting { party, asked, volume, snapshots, whole, range, finds };
        self.walks.waiting.push_back(walk);
        self.next_walks();
    }

    /// Whose a walk over a volume is, that was asked for in a session.
    fn walker(&self, session: u64, volume: VolumeId) -> String {
        let Some(principal) = self.guests.principal(session) else { return String::new() };
        let tenant = self.names.get(&volume).and_then(|name| tenant_of(name));
        walker(principal, tenant)
    }

    /// Begins what may be: of each party one. Those whose volume is not open yet wait until it is.
    pub(super) fn next_walks(&mut self) {
        let mut at = 0;
        while self.walks.all.len() < MAX_WALKS {
            let Some(walk) = self.walks.waiting.get(at) else { return };
            let (asked, volume) = (walk.asked, walk.volume);
            if self.walks.all.values().any(|other| other.party == walk.party) {
                at += 1;
                continue;
            }
            // That may open it, and end here with something else that waits.
            let known = self.known_snapshots(volume);
            let Some(walk) = self.walks.waiting.get(at) else { return };
            if (walk.asked.session, walk.asked.request) != (asked.session, asked.request) {
                at = 0;
                continue;
            }
            match known {
                None => at += 1,
                Some(Err(error)) => {
                    self.walks.waiting.remove(at);
                    self.reply(&[asked], &Err(error));
                }
                Some(Ok(())) => {
                    if let Some(walk) = self.walks.waiting.remove(at) {
                        self.begin(walk);
                    }
                }
            }
        }
    }

    /// Opens a volume, if it is not open, to learn of its snapshots: nothing as long as that takes.
    fn known_snapshots(&mut self, volume: VolumeId) -> Option<Result<(), VolumeError>> {
        if !self.open(volume) {
            return Some(Err(VolumeError::NotFound));
        }
        // A new one begins with that.
        self.drive(volume);
        let engine = self.engines.get_mut(&volume)?;
        engine.used = true;
        if let Some(failed) = engine.volume.failed() {
            return Some(Err(VolumeError::Store(failed.to_string())));
        }
        engine.volume.info().map(|_| Ok(()))
    }

    /// Begins a walk, if the volume has those snapshots.
    fn begin(&mut self, walk: Waiting) {
        let Waiting { party, asked, volume, snapshots, whole, range, finds } = walk;
        let engine = self.engines.get(&volume);
        let has = |key: &SnapshotKey| {
            let known = engine.and_then(|engine| engine.volume.state().snapshots.at(key.segment));
            known.is_some_and(|known| known.id == key.id)
        };
        if !snapshots.iter().all(has) {
            return self.reply(&[asked], &Err(VolumeError::Snapshot(SnapshotError::NotFound)));
        }
        self.close_idle_snapshots(&snapshots);
        for key in &snapshots {
            self.snapshots.insert(key.id, Place { volume, segment: key.segment });
        }
        let map = |engine, sectors| Map { engine, sectors, places: Vec::new() };
        let maps = snapshots.iter().map(|key| map(key.id, key.sectors));
        let maps = maps.chain(whole.map(|sectors| map(volume, sectors))).collect();
        self.walks.next += 1;
        let number = self.walks.next;
        self.walks.all.insert(number, Walk { party, asked, maps, range, questions: 0, finds });
        self.walk_on(number);
    }

    /// Closes snapshots that only walks have opened, beyond those that the next one is about.
    fn close_idle_snapshots(&mut self, next: &[SnapshotKey]) {
        let needed = self.walks.all.values().flat_map(|walk| &walk.maps).map(|map| map.engine);
        let needed: BTreeSet<VolumeId> = needed.chain(next.iter().map(|key| key.id)).collect();
        let idle = self.engines.iter().filter(|(id, engine)| {
            let volume = &engine.volume;
            let at_rest = volume.is_idle() && volume.poll_timeout().is_none();
            at_rest
                && volume.id() != volume.spec().id
                && engine.under_way == 0
                && engine.sessions.is_empty()
                && !needed.contains(*id)
        });
        let idle: Vec<VolumeId> = idle.map(|(id, _)| *id).collect();
        for id in idle.iter().skip(MAX_IDLE_SNAPSHOTS) {
            self.engines.remove(id);
            self.objects.left(*id);
        }
    }

    /// A walk is over.
    fn end_walk(&mut self, number: u64, result: Result<VolumeReply, VolumeError>) {
        if let Some(walk) = self.walks.all.remove(&number) {
            self.reply(&[walk.asked], &result);
        }
        self.next_walks();
    }

    /// A session is over: nobody waits for what it asked.
    pub(super) fn forget_walks(&mut self, session: u64) {
        self.walks.waiting.retain(|walk| walk.asked.session != session);
    }

    /// Asks the engines of those maps for more of which nothing is left.
    fn walk_on(&mut self, number: u64) {
        let Some(walk) = self.walks.all.get_mut(&number) else { return };
        let mut questions = Vec::new();
        for (at, map) in walk.maps.iter_mut().enumerate() {
            if !map.places.is_empty() {
                continue;
            }
            let there = Range::between(walk.range.lba, walk.range.end().min(map.sectors));
            if there.is_empty() {
                map.places.push((walk.range, None));
            } else {
                questions.push((at, map.engine, there));
            }
        }
        walk.questions += questions.len();
        for (at, engine, range) in questions {
            if !self.open(engine) {
                return self.places(number << 8 | at as u64, Err(ReadError::NotAttached));
            }
            let (now, request) = (self.now(), number << 8 | at as u64);
            if let Some(open) = self.engines.get_mut(&engine) {
                open.used = true;
                let message = ToStore::Status { request, volume: engine, epoch: 0, range };
                // What somebody waits for comes first.
                let lane = Lane::ReadAhead;
                open.volume.handle_message(now, SHELL_SESSION, lane, message.into());
            }
            self.drive(engine);
        }
    }

    /// Takes what an engine says of a part.
    pub(super) fn places(&mut self, request: RequestId, result: Result<Places, ReadError>) {
        let (number, at) = (request >> 8, (request & 0xff) as usize);
        let Some(walk) = self.walks.all.get_mut(&number) else { return };
        let Some(map) = walk.maps.get_mut(at) else { return };
        let error = match result {
            Ok(places) if !places.is_empty() => {
                map.places = places;
                None
            }
            Ok(_) => Some(VolumeError::Store("a map says nothing".into())),
            // It was deleted, or its volume has moved to another store: asking again tells.
            Err(ReadError::NotAttached) => Some(VolumeError::Snapshot(SnapshotError::NotFound)),
            Err(ReadError::Invalid) => {
                Some(VolumeError::Invalid("the range is not within the volume".into()))
            }
            Err(other) => Some(VolumeError::Store(other.to_string())),
        };
        if let Some(error) = error {
            return self.end_walk(number, Err(error));
        }
        if walk.maps.iter().any(|map| map.places.is_empty()) {
            return;
        }
        let done = walk.look();
        if !done && walk.questions < QUESTIONS_MAX {
            return self.walk_on(number);
        }
        let reply = walk.reply().map(VolumeReply::Snapshot);
        self.end_walk(number, reply);
    }
}

impl Walk {
    /// Looks at what all maps have said of. Says whether that is all, or as much as an answer has room for.
    fn look(&mut self) -> bool {
        let end = match &mut self.finds {
            Finds::Differences(all) => {
                let [one, other] = &self.maps[..] else { return true };
                let (found, end) = differences(&one.places, &other.places);
                for range in found {
                    match all.last_mut() {
                        Some(last) if last.end() == range.lba => last.sectors += range.sectors,
                        _ => all.push(range),
                    }
                }
                // Those that do not fit are found again.
                let end = all.get(MAX_CHANGED_RANGES).map_or(end, |beyond| beyond.lba);
                all.truncate(MAX_CHANGED_RANGES);
                end
            }
            Finds::Usage { account, begins_after } => {
                let maps: Vec<&Places> = self.maps.iter().map(|map| &map.places).collect();
                account.count(&maps, *begins_after)
            }
        };
        self.range = Range::between(end, self.range.end().max(end));
        for map in &mut self.maps {
            drop_before(&mut map.places, end);
        }
        let full =
            matches!(&self.finds, Finds::Differences(all) if all.len() == MAX_CHANGED_RANGES);
        full || self.range.is_empty()
    }

    fn reply(&mut self) -> Result<SnapshotReply, VolumeError> {
        let end = self.range.lba;
        Ok(match &mut self.finds {
            Finds::Differences(ranges) => {
                SnapshotReply::Diff { ranges: std::mem::take(ranges), end }
            }
            Finds::Usage { account: Account { maps, named_bytes }, .. } => {
                SnapshotReply::Usage { maps: std::mem::take(maps), named_bytes: *named_bytes, end }
            }
        })
    }
}

/// Whose a walk over a volume of that tenant is. What another store passes on it has from many: then it is the tenant's, as
/// nobody else asks about the volume but who may see all.
fn walker(principal: &Principal, tenant: Option<&str>) -> String {
    let of = tenant.filter(|_| principal.store).map(str::to_owned);
    match of {
        tenant @ Some(_) => party(&Principal { tenant, ..principal.clone() }),
        None => party(principal),
    }
}

/// Leaves what is from a sector on.
fn drop_before(places: &mut Places, lba: u64) {
    let gone = places.partition_point(|(part, _)| part.end() <= lba);
    places.drain(..gone);
    if let Some((part, place)) = places.first_mut()
        && part.lba < lba
    {
        *place = place.skip(lba - part.lba);
        *part = Range::between(lba, part.end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_core::store::map::Place;

    #[test]
    fn what_a_store_passes_on_is_whose_volume_it_is_about() {
        let store = Principal { store: true, serial: "store:1".into(), ..Principal::embedded() };
        let (one, other) = (walker(&store, Some("one")), walker(&store, Some("other")));
        assert_ne!(one, other);
        let host = Principal { tenant: Some("one".into()), ..Principal::embedded() };
        assert_eq!(one, party(&host), "here and there it is the same");
        assert_eq!(walker(&host, Some("one")), one);
        assert_eq!(walker(&store, None), party(&store));
        let operator = Principal { serial: "07".into(), ..Principal::embedded() };
        assert_eq!(walker(&operator, Some("one")), "07");
    }

    #[test]
    fn what_is_left_of_a_part_is_still_part_of_its_record() {
        let place = Place::new(3, 1, 4096, 2, 16).unwrap();
        let mut places: Places = vec![(Range::new(8, 8), Some(place)), (Range::new(16, 4), None)];
        drop_before(&mut places, 11);
        let left = Place::new(3, 1, 4096, 5, 16).unwrap();
        assert_eq!(places, [(Range::new(11, 5), Some(left)), (Range::new(16, 4), None)]);
        drop_before(&mut places, 16);
        assert_eq!(places, [(Range::new(16, 4), None)]);
        drop_before(&mut places, 20);
        assert_eq!(places, []);
    }
}
