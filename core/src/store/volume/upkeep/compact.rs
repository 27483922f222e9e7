//! Writing and merging all that there is of the map, so that it can be counted.

use super::super::Volume;

impl Volume {
    /// Writes what there is in the table, before the map is merged; up to which segment.
    pub(in super::super) fn flush(&mut self) -> u64 {
        self.upkeep.flush_wanted = self.upkeep.through() < self.state.number;
        self.state.number
    }

    /// Merges all that there is of the map, before it is counted.
    pub(in super::super) fn compact(&mut self) {
        self.tree.compact();
        self.upkeep.stepping = true;
    }

    /// Whether that is done. If something that it takes is damaged, what it has come to is all there will be of it.
    pub(in super::super) fn is_compacted(&mut self) -> bool {
        if self.tree.is_compacting() && self.upkeep.paused.is_some() {
            self.tree.stop_compacting();
            self.tree_outputs();
            (self.upkeep.failures, self.upkeep.paused) = (0, None);
            self.upkeep.stepping = true;
        }
        !self.tree.is_compacting()
    }
}
