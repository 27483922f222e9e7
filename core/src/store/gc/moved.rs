//! The second map: it tells where segments have moved, in the same form as the first map, with
//! segments instead of sectors. Its entry for a segment is a [`Place`]. The segment of that place
//! is a bundle's number, and its `seq` is the bundle's generation. Its offset is the number of
//! entries in the bundle's index, so that one read fetches the index.
//!
//! A hole means that no map names anything of a segment any more, which had been in a bundle
//! before.

use super::bundle::{Bundle, BundleId};
use crate::block::{Range, STAGED_BIT, VolumeId};
use crate::store::map::fragment::{DESCRIPTION_BYTES, Fragment};
use crate::store::map::levels::{LEVELS_MAX, Levels};
use crate::store::map::{MapError, Place};
use bytes::{BufMut, BytesMut};

/// Numbers of the second map's fragments begin there: those of both maps share a generation.
pub const FIRST_FRAGMENT: u64 = 1 << 63;
/// Most runs of its level 0.
const MAX_RUNS: usize = 1 << 12;

/// The sector of the second map that stands for a segment; `None` for staged objects, which do not
/// move.
#[must_use]
pub fn range_of(segment: u64) -> Option<Range> {
    (segment & STAGED_BIT == 0).then(|| Range::new(segment, 1))
}

/// The entry of the second map for data in a bundle.
#[must_use]
pub fn place_of(bundle: &Bundle) -> Option<Place> {
    Place::new(bundle.id.number, bundle.id.generation, bundle.entries, 0, 1)
}

/// The bundle that an entry of the second map of a volume names.
#[must_use]
pub fn bundle_at(volume: VolumeId, place: Place) -> Bundle {
    let id = BundleId { volume, generation: place.seq(), number: place.segment() };
    Bundle { id, entries: place.offset() }
}

/// The moves in a root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// The second map.
    pub levels: Levels,
    /// Bytes of all segments and bundles when they were last counted, less those that went then.
    pub stored_bytes: u64,
    /// The upper bound of their named bytes.
    pub named_bytes: u64,
}

impl Moved {
    /// Whether no move and no count has ever ended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Moved::default()
    }

    /// Appends it to a root.
    pub fn encode(&self, out: &mut BytesMut) {
        let runs = self.levels.runs();
        let all = || runs.iter().chain(self.levels.sorted());
        out.put_u64_le(self.stored_bytes);
        out.put_u64_le(self.named_bytes);
        out.put_u32_le(runs.len() as u32);
        out.put_u32_le(self.levels.sorted().len() as u32);
        for run in all() {
            out.put_u32_le(run.len() as u32);
            for fragment in run {
                out.put_slice(&fragment.describe());
            }
        }
    }

    /// Takes it from the beginning of the rest of a root.
    ///
    /// # Errors
    /// The damage of the root.
    pub fn take(bytes: &mut &[u8]) -> Result<Moved, MapError> {
        let bad = MapError::Invalid("impossible list of moves");
        let (head, mut rest) = bytes.split_first_chunk::<24>().ok_or(bad)?;
        let number = |at: usize| head[at..at + 4].iter().rev().fold(0, |n, b| n << 8 | *b as usize);
        let long = |at: usize| number(at) as u64 | (number(at + 4) as u64) << 32;
        let (runs, levels) = (number(16), number(20));
        if runs > MAX_RUNS || levels > LEVELS_MAX {
            return Err(bad);
        }
        let mut all = Vec::with_capacity(runs + levels);
        for _ in 0..runs + levels {
            let (count, after) = rest.split_first_chunk().ok_or(bad)?;
            let bytes = (u32::from_le_bytes(*count) as usize).checked_mul(DESCRIPTION_BYTES);
            let (run, after) = after.split_at_checked(bytes.ok_or(bad)?).ok_or(bad)?;
            let run = run.as_chunks::<DESCRIPTION_BYTES>().0;
            all.push(run.iter().map(|each| Fragment::parse(each)).collect::<Result<Vec<_>, _>>()?);
            rest = after;
        }
        *bytes = rest;
        let sorted = all.split_off(runs);
        let levels = Levels::new(all, sorted)?;
        let (stored_bytes, named_bytes) = (long(0), long(8));
        Ok(Moved { levels, stored_bytes, named_bytes })
    }
}
