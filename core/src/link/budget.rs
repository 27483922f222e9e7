//! Limits the redundant bytes.

/// Redundant bytes saved up at most: enough for a few replies after a pause, too little to matter.
const MOST_BYTES: u64 = 16 << 10;

/// Earns a share of the necessary bytes and pays for redundant ones.
#[derive(Debug)]
pub(super) struct Budget {
    per_mille: u64,
    /// In thousandths of a byte.
    saved: u64,
}

impl Budget {
    pub(super) fn new(per_mille: u64) -> Budget {
        Budget { per_mille, saved: 0 }
    }

    /// Counts necessary bytes.
    pub(super) fn earn(&mut self, bytes: u64) {
        self.saved = (self.saved + bytes * self.per_mille).min(MOST_BYTES * 1000);
    }

    /// Whether the sender may send these redundant bytes; if so, pays for them.
    pub(super) fn pay(&mut self, bytes: u64) -> bool {
        let enough = self.saved >= bytes * 1000;
        if enough {
            self.saved -= bytes * 1000;
        }
        enough
    }
}
