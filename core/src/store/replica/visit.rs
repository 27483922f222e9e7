//! Finds the objects that the replica lacks, and puts them.
//!
//! A volume's objects name each other, so the order of the lists and puts matters. At home a visit
//! lists objects that name others first. At that time the named objects exist, or a store has
//! deleted them since. A home deletes them only after it has repeated something newer. The visit
//! puts the objects that name others last.

use super::super::catalog::{self, VolumeSpec};
use super::super::segment::IN_FLIGHT_MAX;
use super::super::{Copies, ObjectOperation, ObjectResult, sealed, trash};
use super::site::{Site, StreamId};
use super::stream::Stream;
use super::visit_state::{Phase, PutOrder, Visit, VisitStep};
use super::{Purpose, Replica, another, head, is_head, mark, promoted};
use crate::block::VolumeId;
use bytes::Bytes;
use std::collections::VecDeque;

/// Kinds of objects of a volume, in the order of their puts.
const KINDS: [(&str, PutOrder); 9] = [
    // A store claims a generation before it writes anything of it.
    ("owner/", PutOrder::Serial),
    ("frag/", PutOrder::Any),
    ("bundle/", PutOrder::Any),
    ("staged/", PutOrder::Any),
    (SEGMENTS, PutOrder::Segments),
    ("snap/", PutOrder::Any),
    ("map/", PutOrder::Serial),
    (ROOTS, PutOrder::Serial),
    // Beside the log: notes of its content.
    ("size/", PutOrder::Serial),
];
const ATTRIBUTES: &str = "attr/";
const SEGMENTS: &str = "seg/";
const ROOTS: &str = "root/";

/// The visit lists the objects at home in these groups, one group after the other.
const GROUPS: [&[&str]; 5] = [
    &[ROOTS, "map/", "size/", ATTRIBUTES],
    &["snap/"],
    // A segment names objects that a store staged before it.
    &[SEGMENTS],
    &["staged/", "bundle/", "frag/"],
    &["owner/"],
];

impl Replica {
    pub(super) fn begin_visit(&mut self, id: StreamId) {
        self.done += 1;
        let began = self.done;
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.unknown = false;
        stream.visit = Some(Box::new(Visit::new(began)));
        self.ask(id, VisitStep::Mark, mark());
    }

    fn visit_of(&mut self, id: StreamId) -> Option<&mut Visit> {
        self.streams.get_mut(&id)?.visit.as_deref_mut()
    }

    fn ask(&mut self, id: StreamId, step: VisitStep, operation: ObjectOperation) {
        if let Some(visit) = self.visit_of(id) {
            visit.under_way += 1;
            self.book.issue(Purpose::Visit { stream: id, step }, operation);
        }
    }

    /// Takes the outcome of an operation of a visit.
    pub(super) fn visited(
        &mut self,
        id: StreamId,
        step: VisitStep,
        operation: ObjectOperation,
        result: ObjectResult,
    ) {
        let Some(visit) = self.visit_of(id) else { return };
        visit.under_way -= 1;
        match (step, result) {
            (VisitStep::Mark, ObjectResult::Get(Ok(_))) => return self.fence(promoted()),
            (VisitStep::List(site), ObjectResult::List(Ok(list))) => {
                let keys = list.into_iter().map(|meta| (meta.key, meta.bytes));
                match site {
                    Site::Away => visit.away.extend(keys.map(|(key, _)| key)),
                    Site::Home => visit.home.extend(keys),
                }
            }
            (VisitStep::Name, ObjectResult::Get(Ok(data))) => {
                visit.volumes.extend(volumes_of(operation.key(), &data));
            }
            (VisitStep::Read, ObjectResult::Get(Ok(data))) => {
                let (key, data) = (operation.key().to_owned(), vec![data]);
                self.ask(id, VisitStep::Put, ObjectOperation::Put { key, data });
            }
            (VisitStep::Read | VisitStep::Name, _) => visit.again = true,
            (VisitStep::Put, ObjectResult::Put(Ok(()))) => {
                visit.counts.1 += 1;
                visit.segments.retain(|number| Some(*number) != number_of(operation.key()));
                visit.put.insert(operation.key().to_owned());
                if let ObjectOperation::Put { data, .. } = &operation {
                    self.count_put(data);
                }
            }
            (VisitStep::Put, _) => {
                let ObjectOperation::Put { key, data } = operation else { return };
                self.ask(id, VisitStep::Compare(data), head(key));
            }
            (VisitStep::Compare(data), ObjectResult::Get(Ok(there))) => {
                visit.counts.1 += 1;
                visit.segments.retain(|number| Some(*number) != number_of(operation.key()));
                visit.put.insert(operation.key().to_owned());
                if !is_head(&data, &there) {
                    return self.fence(another(operation.key()));
                }
            }
            // Somebody has deleted it there meanwhile.
            (VisitStep::Compare(_), _) => visit.again = true,
            (VisitStep::Mark | VisitStep::List(_) | VisitStep::Delete, _) => {}
        }
        self.advance_visit(id);
        self.advance(id);
    }

    /// Begins the next step once the step before has ended.
    pub(super) fn advance_visit(&mut self, id: StreamId) {
        while let Some(visit) = self.visit_of(id)
            && visit.under_way == 0
            && visit.phase != Phase::Putting
        {
            let catalog = id == StreamId::Catalog;
            match visit.phase {
                Phase::Mark if catalog => self.list_away(id),
                Phase::Mark => self.list_roots(id),
                Phase::Roots => self.list_away(id),
                Phase::Away => self.list_home(id, 0),
                Phase::Home(group) if !catalog && group + 1 < GROUPS.len() => {
                    self.list_home(id, group + 1);
                }
                Phase::Home(_) if catalog => self.read_names(),
                Phase::Home(_) => self.begin_putting(id),
                Phase::Names => self.visit_volumes(),
                Phase::Volumes if !visit.volumes.is_empty() => return,
                Phase::Volumes => self.begin_putting(id),
                Phase::Putting => return,
                Phase::Deleting => {
                    visit.phase = Phase::MarkAgain;
                    self.ask(id, VisitStep::Mark, mark());
                }
                Phase::MarkAgain => return self.end_visit(id),
            }
        }
        self.put_missing(id);
    }

    fn list_roots(&mut self, id: StreamId) {
        let StreamId::Volume(volume) = id else { return };
        if let Some(visit) = self.visit_of(id) {
            visit.phase = Phase::Roots;
        }
        let prefix = catalog::root_prefix(volume);
        self.ask(id, VisitStep::List(Site::Away), ObjectOperation::List { prefix });
    }

    /// A replica without a root needs all objects.
    fn list_away(&mut self, id: StreamId) {
        let Some(visit) = self.visit_of(id) else { return };
        visit.phase = Phase::Away;
        let prefixes = match id {
            StreamId::Catalog => catalog::REPLICATED.map(str::to_owned).to_vec(),
            StreamId::Volume(volume) => {
                let prefix = catalog::root_prefix(volume);
                let roots =
                    visit.away.iter().filter_map(|key| catalog::parse_root_key(&prefix, key));
                visit.after = roots.max().map_or(0, |newest| newest.segment);
                let kinds = KINDS.iter().map(|(kind, _)| *kind).filter(|kind| *kind != ROOTS);
                kinds.chain([ATTRIBUTES]).map(|kind| within(volume, kind)).collect()
            }
        };
        self.list(id, Site::Away, prefixes);
    }

    fn list_home(&mut self, id: StreamId, group: usize) {
        let Some(visit) = self.visit_of(id) else { return };
        visit.phase = Phase::Home(group);
        let prefixes = match id {
            StreamId::Catalog => catalog::REPLICATED.map(str::to_owned).to_vec(),
            StreamId::Volume(volume) => {
                GROUPS[group].iter().map(|kind| within(volume, kind)).collect()
            }
        };
        self.list(id, Site::Home, prefixes);
    }

    fn list(&mut self, id: StreamId, site: Site, prefixes: Vec<String>) {
        let after = self.visit_of(id).map_or(0, |visit| visit.after);
        for prefix in prefixes {
            let operation = match id {
                // The replica has the needed objects from before its newest root.
                StreamId::Volume(volume) if prefix == catalog::segment_prefix(volume) => {
                    let after = catalog::segment_key(volume, after);
                    ObjectOperation::ListAfter { prefix, after }
                }
                _ => ObjectOperation::List { prefix },
            };
            self.ask(id, VisitStep::List(site), operation);
        }
    }

    /// Reads the names, to find the volumes that must be in the replica before them.
    fn read_names(&mut self) {
        let id = StreamId::Catalog;
        let Some(visit) = self.visit_of(id) else { return };
        visit.phase = Phase::Names;
        let missing = visit.home.keys().filter(|key| !visit.away.contains(*key));
        let names: Vec<String> = missing.filter(|key| names_volume(key)).cloned().collect();
        for key in names {
            let operation = ObjectOperation::Get { key, range: None, copies: Copies::Refused };
            self.ask(id, VisitStep::Name, operation);
        }
    }

    fn visit_volumes(&mut self) {
        self.done += 1;
        let now = self.done;
        let Some(visit) = self.visit_of(StreamId::Catalog) else { return };
        visit.phase = Phase::Volumes;
        // A visit that is under way may have looked before there was what the names mean.
        visit.began = now;
        for volume in visit.volumes.clone() {
            self.want_visit(StreamId::Volume(volume));
            self.advance_one(StreamId::Volume(volume));
        }
    }

    fn begin_putting(&mut self, id: StreamId) {
        let Some(visit) = self.visit_of(id) else { return };
        visit.phase = Phase::Putting;
        let missing: Vec<String> =
            visit.home.keys().filter(|key| !visit.away.contains(*key)).cloned().collect();
        visit.counts.0 = missing.len() as u64;
        let part = |prefix: String| -> VecDeque<String> {
            missing.iter().filter(|key| key.starts_with(&prefix)).cloned().collect()
        };
        match id {
            StreamId::Catalog => {
                // The objects that name volumes come last in the list.
                let parts = catalog::REPLICATED.iter();
                let parts = parts.map(|prefix| (PutOrder::Serial, part((*prefix).into())));
                visit.missing = parts.collect();
                let extra = visit.away.iter().filter(|key| !visit.home.contains_key(*key));
                visit.extra = extra.cloned().collect();
            }
            StreamId::Volume(volume) => {
                let kinds = KINDS.iter().chain([&(ATTRIBUTES, PutOrder::Serial)]);
                let parts = kinds.map(|(kind, order)| (*order, part(within(volume, kind))));
                visit.missing = parts.collect();
            }
        }
    }

    /// Puts what is missing, as much at a time as may be.
    fn put_missing(&mut self, id: StreamId) {
        let window = self.limits.window;
        loop {
            let Some(visit) = self.visit_of(id).filter(|visit| visit.phase == Phase::Putting)
            else {
                return;
            };
            if visit.again && visit.under_way == 0 {
                return self.begin_visit_again(id);
            }
            let Some((order, part)) = visit.missing.front_mut() else {
                if visit.under_way == 0 {
                    self.all_put(id);
                }
                return;
            };
            if part.is_empty() {
                if visit.under_way > 0 {
                    return;
                }
                visit.missing.pop_front();
                continue;
            }
            let most = if *order == PutOrder::Serial { 1 } else { window };
            if visit.under_way >= most || visit.again {
                return;
            }
            if *order == PutOrder::Segments
                && let Some(number) = part.front().and_then(|key| number_of(key))
            {
                let first = visit.segments.first();
                if first.is_some_and(|first| *first + IN_FLIGHT_MAX <= number) {
                    return;
                }
                visit.segments.insert(number);
            }
            let Some(key) = part.pop_front() else { return };
            let operation = ObjectOperation::Get { key, range: None, copies: Copies::Refused };
            self.ask(id, VisitStep::Read, operation);
        }
    }

    fn begin_visit_again(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.visit = None;
        }
        self.begin_visit(id);
    }

    fn all_put(&mut self, id: StreamId) {
        let Some(visit) = self.visit_of(id) else { return };
        visit.phase = Phase::Deleting;
        for key in std::mem::take(&mut visit.extra) {
            self.ask(id, VisitStep::Delete, ObjectOperation::Delete { key });
        }
        self.advance_visit(id);
    }

    fn end_visit(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let Some(visit) = stream.visit.take() else { return };
        let (done, held) = stream.visit_ended(&visit.put, visit.listed_segments(id));
        self.held_bytes -= held;
        self.repeated.extend(done);
        if let StreamId::Volume(volume) = id
            && let Some(waiting) = self.visit_of(StreamId::Catalog)
            && waiting.phase == Phase::Volumes
            && visit.began > waiting.began
            && waiting.volumes.remove(&volume)
        {
            self.advance_visit(StreamId::Catalog);
        }
    }

    /// Wants a visit of a volume that another store may change.
    fn want_visit(&mut self, id: StreamId) {
        let stream = self.streams.entry(id).or_insert_with(Stream::of_others);
        stream.unknown = true;
    }
}

fn within(volume: VolumeId, kind: &str) -> String {
    format!("{}{kind}", catalog::volume_prefix(volume))
}

/// The number of a segment.
fn number_of(key: &str) -> Option<u64> {
    let (volume, _) = catalog::parse_volume_key(key)?;
    catalog::parse_number(&catalog::segment_prefix(volume), key)
}

fn names_volume(key: &str) -> bool {
    key.starts_with(catalog::VOLUMES_PREFIX) || key.starts_with(trash::TRASH_PREFIX)
}

/// The volumes without which a name, or a decision about a deleted volume, is useless.
fn volumes_of(key: &str, data: &Bytes) -> Vec<VolumeId> {
    // Takes objects as they are. The store service, which seals them, never repeats a damaged one
    // as a good one.
    let data = &sealed::open(key, data).unwrap_or_else(|_| data.clone());
    let with_parents = |spec: &VolumeSpec| {
        spec.parents.iter().map(|parent| parent.volume).chain([spec.id]).collect()
    };
    if let Ok(spec) = catalog::decode_spec(key, data) {
        return with_parents(&spec);
    }
    match trash::Record::decode(key, data) {
        Ok(record) => with_parents(&record.spec),
        // A reader of the replica will find the same damage.
        Err(_) => Vec::new(),
    }
}
