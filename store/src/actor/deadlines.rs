//! The times at which engines want to hear, in order. An event at one engine costs the same whether
//! the store has ten engines or a thousand.

use longhaul_core::block::{Time, VolumeId};
use std::collections::{BTreeSet, HashMap, HashSet};

/// See the module. A time may have changed since a look if the engine is in `touched`.
#[derive(Default)]
pub(super) struct Deadlines {
    by_time: BTreeSet<(Time, VolumeId)>,
    by_engine: HashMap<VolumeId, Time>,
    touched: HashSet<VolumeId>,
}

impl Deadlines {
    /// Somebody may have changed that engine, opened it or removed it.
    pub fn touch(&mut self, id: VolumeId) {
        self.touched.insert(id);
    }

    /// Asks for the times of all touched engines: nothing for one that wants to hear at no time.
    pub fn refresh(&mut self, time: impl Fn(VolumeId) -> Option<Time>) {
        for id in self.touched.drain() {
            let new = time(id);
            let old = match new {
                Some(at) => self.by_engine.insert(id, at),
                None => self.by_engine.remove(&id),
            };
            if new == old {
                continue;
            }
            if let Some(at) = old {
                self.by_time.remove(&(at, id));
            }
            if let Some(at) = new {
                self.by_time.insert((at, id));
            }
        }
    }

    /// The first time.
    pub fn first(&self) -> Option<Time> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// The engines whose time has come.
    pub fn due(&self, now: Time) -> Vec<VolumeId> {
        self.by_time.iter().take_while(|(at, _)| *at <= now).map(|(_, id)| *id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_change_and_go() {
        let (a, b) = (VolumeId(1), VolumeId(2));
        let mut deadlines = Deadlines::default();
        deadlines.touch(a);
        deadlines.touch(b);
        deadlines.refresh(|id| Some(Time(if id == a { 5 } else { 7 })));
        assert_eq!(deadlines.first(), Some(Time(5)));
        assert_eq!(deadlines.due(Time(4)), []);
        assert_eq!(deadlines.due(Time(7)), [a, b]);

        // Only a touched engine is asked.
        deadlines.touch(a);
        deadlines.refresh(|id| (id == a).then_some(Time(9)));
        assert_eq!(deadlines.due(Time(9)), [b, a]);

        deadlines.touch(b);
        deadlines.refresh(|_| None);
        assert_eq!(deadlines.due(Time(9)), [a]);
        deadlines.touch(a);
        deadlines.refresh(|_| None);
        assert_eq!(deadlines.first(), None);
    }
}
