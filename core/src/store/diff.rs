//! The map diff between two maps of one volume.
//!
//! A place says where data lies, and the data never changes in its place. Two maps with the same
//! place for a sector have the same content there. So the comparison reads no data.

use super::map::Place;
use crate::block::Range;

/// Where what lies, of parts in order without gaps.
pub type Places = Vec<(Range, Option<Place>)>;

/// Returns the ranges in which two maps differ, in order, and the last sector (exclusive) up to
/// which both maps go. Both maps begin at the same sector. A zeroed range equals a range without
/// data.
#[must_use]
pub fn differences(
    one: &[(Range, Option<Place>)],
    other: &[(Range, Option<Place>)],
) -> (Vec<Range>, u64) {
    let mut found: Vec<Range> = Vec::new();
    let (mut ones, mut others) = (one.iter(), other.iter());
    let (mut a, mut b) = (ones.next(), others.next());
    let mut end = one.first().map_or(0, |(range, _)| range.lba);
    while let (Some((left, here)), Some((right, there))) = (a, b) {
        let until = left.end().min(right.end());
        if what(*left, *here) != what(*right, *there) {
            match found.last_mut() {
                Some(last) if last.end() == end => last.sectors += until - end,
                _ => found.push(Range::between(end, until)),
            }
        }
        end = until;
        if left.end() == until {
            a = ones.next();
        }
        if right.end() == until {
            b = others.next();
        }
    }
    (found, end)
}

/// A record by its segment, its offset there, and the range that it is about.
pub(super) type Named = (u64, u32, Range);

/// Names the record, and the part of it, at a sector, in a form that is the same for all parts of
/// the record.
pub(super) fn what(part: Range, place: Option<Place>) -> Option<Named> {
    let place = place.filter(|place| !place.is_zero())?;
    Some((place.segment(), place.offset(), place.record(part.lba)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(segment: u64, skip: u64) -> Option<Place> {
        Some(Place::new(segment, 1, 4096, skip, 16).unwrap())
    }

    #[test]
    fn parts_of_one_record_are_the_same_however_they_are_cut() {
        let whole = [(Range::new(8, 16), place(3, 0)), (Range::new(24, 8), None)];
        let cut = [
            (Range::new(8, 4), place(3, 0)),
            (Range::new(12, 12), place(3, 4)),
            (Range::new(24, 4), Some(Place::ZERO)),
        ];
        assert_eq!(differences(&whole, &cut), (vec![], 28));
        assert_eq!(differences(&cut, &whole), (vec![], 28));
    }

    #[test]
    fn what_is_another_record_or_at_another_place_of_it_differs() {
        let one = [(Range::new(16, 8), place(3, 0)), (Range::new(24, 8), None)];
        for (other, found) in [
            (vec![(Range::new(16, 16), place(4, 0))], vec![Range::new(16, 16)]),
            (vec![(Range::new(16, 16), place(3, 0))], vec![Range::new(24, 8)]),
            (
                vec![(Range::new(16, 8), place(3, 8)), (Range::new(24, 8), None)],
                vec![Range::new(16, 8)],
            ),
            (
                vec![(Range::new(16, 2), place(3, 0)), (Range::new(18, 14), None)],
                vec![Range::new(18, 6)],
            ),
        ] {
            assert_eq!(differences(&one, &other), (found.clone(), 32), "{other:?}");
            assert_eq!(differences(&other, &one), (found, 32), "{other:?}");
        }
        assert_eq!(differences(&[], &one), (vec![], 0));
    }
}
