//! Comparing a snapshot with another one, or with its volume: both engines are asked where what lies, part by part,
//! and where they do not say the same is what differs.
//!
//! Nobody waits long for an answer: after some parts it is given as far as it goes, and who asked goes on
//! from there. What is compared while the volume is written is a mixture of moments.

use super::snapshots::Place;
use super::{Asked, Shell};
use longhaul_core::block::{Range, VolumeId};
use longhaul_core::store::{Places, SHELL_SESSION, differences};
use longhaul_core::wire::link::{
    Lane, MAX_CHANGED_RANGES, ReadError, RequestId, SnapshotError, SnapshotKey, SnapshotReply,
    ToStore, VolumeError, VolumeReply,
};
use std::collections::HashMap;

/// Parts looked at for one answer, at most. A part is some pages of each level of a map: usually one or two
/// reads of each of the objects if these are not in memory.
const PARTS_MAX: usize = 64;

/// Comparisons under way.
#[derive(Default)]
pub(super) struct Diffs {
    next: u64,
    all: HashMap<u64, Diff>,
}

struct Diff {
    asked: Asked,
    /// The engines, the earlier one first.
    engines: [VolumeId; 2],
    /// Sectors that the earlier one has; in the others it has nothing.
    sectors: u64,
    /// What is left to be looked at.
    range: Range,
    found: Vec<Range>,
    halves: [Option<Places>; 2],
    parts: usize,
}

impl Shell {
    /// Begins to compare a snapshot of a volume that is this store's.
    pub(super) fn begin_diff(
        &mut self,
        asked: Asked,
        volume: VolumeId,
        since: SnapshotKey,
        until: Option<SnapshotKey>,
        range: Range,
    ) {
        for key in [Some(since), until].into_iter().flatten() {
            let place = Place { volume, segment: key.segment };
            let known = self.snapshots.place(key.id).is_none_or(|known| *known == place);
            if self.names.contains_key(&key.id) || !known {
                return self.refuse_diff(asked, VolumeError::Snapshot(SnapshotError::NotFound));
            }
            // If it is not there, its engine says so when it is opened.
            self.snapshots.insert(key.id, place);
        }
        let until_id = until.map_or(volume, |key| key.id);
        if range.is_empty() {
            return self.refuse_diff(asked, VolumeError::Invalid("the range is empty".into()));
        }
        self.diffs.next += 1;
        let number = self.diffs.next;
        let diff = Diff {
            asked,
            engines: [since.id, until_id],
            sectors: since.sectors,
            range,
            found: Vec::new(),
            halves: [None, None],
            parts: 0,
        };
        self.diffs.all.insert(number, diff);
        self.compare_on(number);
    }

    /// Asks both engines for the next part.
    fn compare_on(&mut self, number: u64) {
        let Some(diff) = self.diffs.all.get_mut(&number) else { return };
        let (engines, range) = (diff.engines, diff.range);
        let earlier = Range::between(range.lba, range.end().min(diff.sectors));
        if earlier.is_empty() {
            diff.halves[0] = Some(vec![(range, None)]);
        }
        for (half, range) in [(0, earlier), (1, range)] {
            let id = engines[half];
            if range.is_empty() {
                continue;
            }
            if !self.open(id) {
                return self.places(number << 1, Err(ReadError::NotAttached));
            }
            let (now, request) = (self.now(), number << 1 | half as u64);
            if let Some(engine) = self.engines.get_mut(&id) {
                engine.used = true;
                let volume = id;
                let message = ToStore::Status { request, volume, epoch: 0, range };
                // What somebody waits for comes first.
                let lane = Lane::ReadAhead;
                engine.volume.handle_message(now, SHELL_SESSION, lane, message.into());
            }
            self.drive(id);
        }
    }

    /// Takes what an engine says of a part.
    pub(super) fn places(&mut self, request: RequestId, result: Result<Places, ReadError>) {
        let (number, half) = (request >> 1, (request & 1) as usize);
        let Some(diff) = self.diffs.all.get_mut(&number) else { return };
        match result {
            Ok(places) => diff.halves[half] = Some(places),
            Err(error) => {
                let asked = diff.asked;
                self.diffs.all.remove(&number);
                let error = match error {
                    // It was deleted, or its volume has moved to another store: asking again tells.
                    ReadError::NotAttached => VolumeError::Snapshot(SnapshotError::NotFound),
                    ReadError::Invalid => {
                        VolumeError::Invalid("the range is not within the volume".into())
                    }
                    other => VolumeError::Store(other.to_string()),
                };
                return self.refuse_diff(asked, error);
            }
        }
        let [Some(one), Some(other)] = &diff.halves else { return };
        let (found, end) = differences(one, other);
        diff.halves = [None, None];
        diff.parts += 1;
        for range in found {
            match diff.found.last_mut() {
                Some(last) if last.end() == range.lba => last.sectors += range.sectors,
                _ => diff.found.push(range),
            }
        }
        // Those that do not fit are found again.
        let end = match diff.found.get(MAX_CHANGED_RANGES) {
            Some(beyond) => beyond.lba,
            None => end,
        };
        diff.found.truncate(MAX_CHANGED_RANGES);
        let full = diff.found.len() == MAX_CHANGED_RANGES || diff.parts == PARTS_MAX;
        let stuck = end <= diff.range.lba;
        diff.range = Range::between(end, diff.range.end().max(end));
        if !full && !stuck && !diff.range.is_empty() {
            return self.compare_on(number);
        }
        if let Some(Diff { asked, found: ranges, .. }) = self.diffs.all.remove(&number) {
            if stuck {
                return self.refuse_diff(asked, VolumeError::Store("a map says nothing".into()));
            }
            let reply = SnapshotReply::Diff { ranges, end };
            self.reply(&[asked], &Ok(VolumeReply::Snapshot(reply)));
        }
    }

    fn refuse_diff(&self, asked: Asked, error: VolumeError) {
        self.reply(&[asked], &Err(error));
    }
}
