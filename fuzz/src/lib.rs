//! Common parts of the fuzz targets: parsing the input, seeds, and small valid worlds to damage.

pub mod iscsi;
pub mod world;

use std::path::Path;

/// With `LONGHAUL_FUZZ_SEEDS=DIR` in the environment, writes the seeds of a target below DIR and
/// ends the process. The seeds are the same each time. `scripts/fuzz --seeds` makes those in
/// `fuzz/corpus` in this way.
///
/// # Panics
/// If a write fails.
pub fn seeds(target: &str, make: impl FnOnce() -> Vec<Vec<u8>>) {
    let Some(dir) = std::env::var_os("LONGHAUL_FUZZ_SEEDS") else { return };
    let dir = Path::new(&dir).join(target);
    std::fs::create_dir_all(&dir).unwrap();
    for (number, seed) in make().into_iter().enumerate() {
        std::fs::write(dir.join(format!("seed-{number:02}")), seed).unwrap();
    }
    std::process::exit(0);
}

/// Fuzz input, taken from the front. Zeroes follow its end.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// Whether all input is used.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    /// The next four bytes.
    pub fn u32(&mut self) -> u32 {
        self.bytes(4).iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte))
    }

    /// A number below `limit`, which is at least 1.
    pub fn below(&mut self, limit: usize) -> usize {
        self.u32() as usize % limit
    }

    /// The next `count` bytes, or what there is.
    pub fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// Cuts `data` into pieces whose lengths follow from `cuts`.
pub fn pieces(data: &[u8], cuts: u32) -> impl Iterator<Item = &[u8]> {
    let (mut rest, mut state) = (data, cuts);
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Mostly a few bytes, sometimes many.
        let length = if state >> 30 == 0 { (state >> 8) % 5000 } else { (state >> 8) % 40 };
        let (piece, after) = rest.split_at((length as usize + 1).min(rest.len()));
        rest = after;
        Some(piece)
    })
}
