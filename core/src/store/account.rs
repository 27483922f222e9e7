//! Counts how much of the stored data each map of a volume names: the volume's map, and those of
//! its snapshots.
//!
//! The count compares places and reads no data. Data never changes in its place. So if two maps
//! give the same place for a sector, they share the data.

use super::diff::{Named, Places, what};
use super::map::Place;
use crate::block::{SECTOR_BYTES, VolumeId};
use crate::wire::link::MapUsage;

/// The bytes that maps name of some sectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// By each map, in the order of the call's arguments.
    pub maps: Vec<MapUsage>,
    /// By any, of what the volume itself has stored.
    pub named_bytes: u64,
}

impl Account {
    /// Nothing yet, of these maps.
    #[must_use]
    pub fn new(maps: impl IntoIterator<Item = VolumeId>) -> Account {
        let none = |id| MapUsage { id, logical_bytes: 0, referenced_bytes: 0, unique_bytes: 0 };
        Account { maps: maps.into_iter().map(none).collect(), named_bytes: 0 }
    }

    /// Counts what the maps name, from their first sector to the end of the shortest map. Returns
    /// that end. All maps begin at the same sector. Segments up to `begins_after` belong to a
    /// parent: the count shows them as referenced, and as no map's own.
    pub fn count(&mut self, maps: &[&Places], begins_after: u64) -> u64 {
        let end = maps.iter().map(|parts| parts.last().map_or(0, |(part, _)| part.end()));
        let end = end.min().unwrap_or(0);
        let mut at = maps.iter().filter_map(|parts| parts.first()).map(|(part, _)| part.lba).max();
        let mut next = vec![0; maps.len()];
        let mut named = Vec::with_capacity(maps.len());
        while let Some(begin) = at.filter(|begin| *begin < end) {
            let mut until = end;
            named.clear();
            for (map, parts) in maps.iter().enumerate() {
                while parts.get(next[map]).is_some_and(|(part, _)| part.end() <= begin) {
                    next[map] += 1;
                }
                let Some(&(part, place)) = parts.get(next[map]) else { continue };
                until = until.min(part.end());
                if let (Some(named_as), Some(place)) = (what(part, place), place) {
                    named.push((named_as, map, place));
                }
            }
            self.named(&mut named, until - begin, begins_after);
            at = Some(until);
        }
        end
    }

    /// Counts the places that the maps give for a run of sectors.
    fn named(&mut self, named: &mut [(Named, usize, Place)], sectors: u64, begins_after: u64) {
        named.sort_unstable_by_key(|((segment, offset, record), ..)| {
            (*segment, *offset, record.lba)
        });
        for same in named.chunk_by(|(one, ..), (other, ..)| one == other) {
            for (_, map, place) in same {
                let own = place.is_staged() || place.segment() > begins_after;
                let bytes = place.stored_bytes(sectors);
                let usage = &mut self.maps[*map];
                usage.logical_bytes += sectors * SECTOR_BYTES;
                usage.referenced_bytes += bytes;
                if own && same.len() == 1 {
                    usage.unique_bytes += bytes;
                }
            }
            if let Some((_, _, place)) = same.first()
                && (place.is_staged() || place.segment() > begins_after)
            {
                self.named_bytes += place.stored_bytes(sectors);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Range;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    const SECTORS: u64 = 64;

    /// A record of 8 sectors in segment `segment`, of which each map has some.
    fn place(segment: u64, record: u64, skip: u64) -> Place {
        Place::new(segment, 1, 4096 * record as u32, skip, 8).unwrap()
    }

    /// The place that a map gives for each sector, cut at `cuts`.
    fn parts(map: &BTreeMap<u64, u64>, cuts: &BTreeSet<u64>, end: u64) -> Places {
        let mut parts: Places = Vec::new();
        for lba in 0..end {
            let place = map.get(&lba).map(|segment| place(*segment, lba / 8 + 1, lba % 8));
            let whole = |place: Option<Place>, lba| place.map(|place| place.record(lba));
            match parts.last_mut() {
                Some((part, last))
                    if !cuts.contains(&lba)
                        && last.map(|last| (last.segment(), last.offset()))
                            == place.map(|place| (place.segment(), place.offset()))
                        && whole(*last, part.lba) == whole(place, lba) =>
                {
                    part.sectors += 1;
                }
                _ => parts.push((Range::new(lba, 1), place)),
            }
        }
        parts
    }

    proptest! {
        #[test]
        fn it_is_what_counting_sector_by_sector_gives(
            maps in prop::collection::vec(
                prop::collection::btree_map(0..SECTORS, 1u64..4, 0..40), 1..5),
            cuts in prop::collection::vec(prop::collection::btree_set(0..SECTORS, 0..6), 5),
            ends in prop::collection::vec(1..=SECTORS, 5),
            begins_after in 0u64..3,
        ) {
            let all: Vec<Places> = maps.iter().zip(&cuts).zip(&ends)
                .map(|((map, cuts), end)| parts(map, cuts, *end))
                .collect();
            let ids: Vec<VolumeId> = (0..maps.len() as u128).map(VolumeId).collect();
            let mut account = Account::new(ids.clone());
            let end = account.count(&all.iter().collect::<Vec<_>>(), begins_after);
            prop_assert_eq!(end, ends[..maps.len()].iter().copied().min().unwrap());
            // Counted sector by sector, less what a block's checksum adds.
            for (n, map) in maps.iter().enumerate() {
                let of = |lba: &u64| map.get(lba).copied();
                let mine: Vec<u64> = (0..end).filter(|lba| of(lba).is_some()).collect();
                let others = |lba: &u64| {
                    maps.iter().enumerate().any(|(m, map)| m != n && map.get(lba).copied() == of(lba))
                };
                let own = |lba: &&u64| of(lba) > Some(begins_after) && !others(lba);
                let unique = mine.iter().filter(own).count() as u64 * SECTOR_BYTES;
                let usage = &account.maps[n];
                prop_assert_eq!(usage.logical_bytes, mine.len() as u64 * SECTOR_BYTES);
                let sums = 4 * mine.len() as u64;
                let near = |found: u64, least: u64| found >= least && found <= least + sums;
                prop_assert!(near(usage.referenced_bytes, usage.logical_bytes), "{usage:?}");
                prop_assert!(near(usage.unique_bytes, unique), "{usage:?} {unique}");
            }
            let places: BTreeSet<(u64, u64)> = maps.iter()
                .flat_map(|map| map.iter().map(|(lba, segment)| (*lba, *segment)))
                .filter(|(lba, segment)| *lba < end && *segment > begins_after)
                .collect();
            let named = places.len() as u64 * SECTOR_BYTES;
            prop_assert!(account.named_bytes >= named);
            prop_assert!(account.named_bytes <= named + 4 * places.len() as u64);
        }
    }

    #[test]
    fn what_is_staged_is_ones_own_and_zeroes_are_nothing() {
        let staged = 1 << 63 | 5;
        let staged = Place::new(staged, staged, 4096, 0, 8).unwrap();
        let maps = [
            vec![(Range::new(0, 8), Some(staged)), (Range::new(8, 8), Some(Place::ZERO))],
            vec![(Range::new(0, 16), None)],
        ];
        let mut account = Account::new([VolumeId(1), VolumeId(2)]);
        assert_eq!(account.count(&[&maps[0], &maps[1]], 7), 16);
        let bytes = 8 * SECTOR_BYTES + 4;
        let [one, other] = &account.maps[..] else { panic!("{account:?}") };
        assert_eq!(
            (one.logical_bytes, one.referenced_bytes, one.unique_bytes),
            (8 * SECTOR_BYTES, bytes, bytes)
        );
        assert_eq!((other.logical_bytes, account.named_bytes), (0, bytes));
        assert_eq!(Account::new([]).count(&[], 0), 0);
    }
}
