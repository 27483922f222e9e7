//! Map diffs: they compare several maps of one volume. Differences are ranges with different
//! entries. The usage of each is the data that it names. The engines of the maps give the entries,
//! part by part.
//!
//! No client waits long for an answer: it gets the result of some parts, and goes on from there. If
//! a host writes to the volume meanwhile, the result mixes moments.
//!
//! A map diff begins only when the volume's own log says that its snapshots exist. Each party has
//! one under way; its others wait in their order. The bytes that their answers count for bound the
//! number of waiting ones.

use super::super::completions::Completions;
use super::super::request::ReplyTo;
use longhaul_base::limits::MAX_WALKS;
use longhaul_core::block::{Range, VolumeId};
use longhaul_core::extent::Extent as _;
use longhaul_core::store::{Account, Places, differences};
use longhaul_core::wire::link::{
    MAX_CHANGED_RANGES, Principal, ReadError, RequestId, SnapshotError, SnapshotKey, SnapshotReply,
    VolumeError, VolumeReply,
};
use longhaul_link::party;
use std::collections::{BTreeSet, HashMap, VecDeque};

/// Most questions to engines for one answer, and at least one to each. A question is for some pages
/// of each level of a map. If these are not in memory, it usually takes one or two reads of each of
/// the objects.
const QUESTIONS_MAX: usize = 128;

/// An engine has said where what lies that a map diff asked for.
pub(in super::super) struct PlacesFound(pub RequestId, pub Result<Places, ReadError>);

/// Map diffs under way, and those that wait.
pub(in super::super) struct MapDiffs {
    next: u64,
    running: HashMap<u64, MapDiff>,
    waiting: VecDeque<WaitingDiff>,
    done: Completions<PlacesFound>,
}

/// A map diff that has not begun.
pub(in super::super) struct WaitingDiff {
    pub party: String,
    pub to: ReplyTo,
    pub volume: VolumeId,
    pub snapshots: Vec<SnapshotKey>,
    /// The size of the volume, if the diff covers it too.
    pub whole: Option<u64>,
    pub range: Range,
    pub finds: Finds,
}

struct MapDiff {
    party: String,
    to: ReplyTo,
    maps: Vec<ComparedMap>,
    /// The rest to compare.
    range: Range,
    questions: usize,
    finds: Finds,
}

/// A question to an engine, under that number.
pub(in super::super) struct MapQuestion {
    pub request: RequestId,
    pub engine: VolumeId,
    pub range: Range,
}

/// The next step after an engine's answer.
pub(in super::super) enum DiffStep {
    /// Other engines have not answered.
    Wait,
    /// Ask for more.
    Ask(Vec<MapQuestion>),
    Answer(ReplyTo, Box<Result<VolumeReply, VolumeError>>),
}

/// One of the maps.
struct ComparedMap {
    engine: VolumeId,
    /// In what comes after these it has nothing.
    sectors: u64,
    /// Its answered and unused entries, from the start of the rest on.
    places: Places,
}

/// The purpose of a map diff.
pub(in super::super) enum Finds {
    Differences(Vec<Range>),
    Usage {
        account: Account,
        /// The segments up to this one hold a clone's data from its parents.
        begins_after: u64,
    },
}

impl MapDiffs {
    pub fn new(done: Completions<PlacesFound>) -> MapDiffs {
        MapDiffs { next: 0, running: HashMap::new(), waiting: VecDeque::new(), done }
    }

    /// Queues an engine's answer, because the engine is busy with its outputs now.
    pub fn queue(&self, found: PlacesFound) {
        self.done.send(found);
    }

    pub fn push(&mut self, diff: WaitingDiff) {
        self.waiting.push_back(diff);
    }

    pub fn is_full(&self) -> bool {
        self.running.len() >= MAX_WALKS
    }

    /// The one in that place of those that wait.
    pub fn waiting(&self, at: usize) -> Option<&WaitingDiff> {
        self.waiting.get(at)
    }

    pub fn take_waiting(&mut self, at: usize) -> Option<WaitingDiff> {
        self.waiting.remove(at)
    }

    /// Whether one of that party is under way.
    pub fn is_running(&self, party: &str) -> bool {
        self.running.values().any(|diff| diff.party == party)
    }

    /// The volumes and snapshots whose maps it compares.
    pub fn engines(&self) -> BTreeSet<VolumeId> {
        let maps = self.running.values().flat_map(|diff| &diff.maps);
        maps.map(|map| map.engine).collect()
    }

    /// Begins a map diff. Returns the first questions.
    pub fn begin(&mut self, waiting: WaitingDiff) -> Vec<MapQuestion> {
        let WaitingDiff { party, to, volume, snapshots, whole, range, finds } = waiting;
        let map = |engine, sectors| ComparedMap { engine, sectors, places: Vec::new() };
        let maps = snapshots.iter().map(|key| map(key.id, key.sectors));
        let maps = maps.chain(whole.map(|sectors| map(volume, sectors))).collect();
        self.next += 1;
        let mut diff = MapDiff { party, to, maps, range, questions: 0, finds };
        let questions = diff.ask(self.next);
        self.running.insert(self.next, diff);
        questions
    }

    /// A session is over: nobody waits for what it asked.
    pub fn forget(&mut self, session: u64) {
        self.waiting.retain(|diff| diff.to.session != session);
    }

    /// Takes what an engine says of a part.
    pub fn found(&mut self, PlacesFound(request, result): PlacesFound) -> DiffStep {
        let (number, at) = (request >> 8, (request & 0xff) as usize);
        let Some(diff) = self.running.get_mut(&number) else { return DiffStep::Wait };
        let Some(map) = diff.maps.get_mut(at) else { return DiffStep::Wait };
        let error = match result {
            Ok(places) if !places.is_empty() => {
                map.places = places;
                None
            }
            Ok(_) => Some(VolumeError::Store("a map says nothing".into())),
            // The snapshot is gone, or its volume has moved to another store: another request will
            // tell.
            Err(ReadError::NotAttached) => Some(VolumeError::Snapshot(SnapshotError::NotFound)),
            Err(ReadError::Invalid) => {
                Some(VolumeError::Invalid("the range is not within the volume".into()))
            }
            Err(other) => Some(VolumeError::Store(other.to_string())),
        };
        let answer = match error {
            Some(error) => Err(error),
            None if diff.maps.iter().any(|map| map.places.is_empty()) => return DiffStep::Wait,
            None => {
                let done = diff.look();
                if !done && diff.questions < QUESTIONS_MAX {
                    return DiffStep::Ask(diff.ask(number));
                }
                diff.reply().map(VolumeReply::Snapshot)
            }
        };
        let to = diff.to;
        self.running.remove(&number);
        DiffStep::Answer(to, Box::new(answer))
    }
}

impl MapDiff {
    /// Asks the engines for more entries of the maps that have none left.
    fn ask(&mut self, number: u64) -> Vec<MapQuestion> {
        let mut questions = Vec::new();
        for (at, map) in self.maps.iter_mut().enumerate() {
            if !map.places.is_empty() {
                continue;
            }
            let there = Range::between(self.range.lba, self.range.end().min(map.sectors));
            if there.is_empty() {
                map.places.push((self.range, None));
            } else {
                let request = number << 8 | at as u64;
                questions.push(MapQuestion { request, engine: map.engine, range: there });
            }
        }
        self.questions += questions.len();
        questions
    }

    /// Looks at what all maps have said of. Says whether that is all, or as much as an answer has
    /// room for.
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
                // The next answer will contain the ranges that do not fit.
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

/// The party that a map diff of a volume of that tenant counts for. Another store passes on
/// requests of many parties. Then the party is the tenant: except for the parties that may see all
/// volumes, nobody else asks about it.
pub(in super::super) fn party_of(principal: &Principal, tenant: Option<&str>) -> String {
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
        let (one, other) = (party_of(&store, Some("one")), party_of(&store, Some("other")));
        assert_ne!(one, other);
        let host = Principal { tenant: Some("one".into()), ..Principal::embedded() };
        assert_eq!(one, party(&host), "here and there it is the same");
        assert_eq!(party_of(&host, Some("one")), one);
        assert_eq!(party_of(&store, None), party(&store));
        let operator = Principal { serial: "07".into(), ..Principal::embedded() };
        assert_eq!(party_of(&operator, Some("one")), "07");
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
