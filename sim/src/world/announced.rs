//! Announcements as sets of sectors, and their comparison.

use longhaul_core::block::{Range, Seq};
use longhaul_core::wire::link::Announced;

/// The parts of `known` that are in `said` as well, for each entry. No part comes twice, even if
/// ranges of `said` overlap.
pub(super) fn still(known: &[Announced], said: &[Announced]) -> Vec<Announced> {
    let mut parts = Vec::new();
    for entry in known {
        let said = said.iter().filter(|other| other.seq >= entry.seq);
        let mut ranges: Vec<Range> =
            said.filter_map(|other| other.range.intersect(entry.range)).collect();
        ranges.sort();
        let mut from = entry.range.lba;
        for range in ranges {
            let lba = range.lba.max(from);
            if lba < range.end() {
                from = range.end();
                parts.push(Announced { range: Range::new(lba, from - lba), seq: entry.seq });
            }
        }
    }
    parts
}

/// Whether `said` announces every part of `known` beyond `committed` with at least its number.
pub(super) fn covered(
    known: &[Announced],
    said: &[Announced],
    committed: Seq,
) -> Result<(), String> {
    for entry in known.iter().filter(|entry| entry.seq > committed) {
        for lba in entry.range.lba..entry.range.end() {
            let here = |a: &Announced| {
                a.range.intersect(Range::new(lba, 1)).is_some() && a.seq >= entry.seq
            };
            if !said.iter().any(here) {
                return Err(format!(
                    "announced write {} to {} is missing from what is outstanding after \
                     {committed} at sector {lba}: {said:?}",
                    entry.seq, entry.range
                ));
            }
        }
    }
    Ok(())
}
