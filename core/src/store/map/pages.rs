//! Pages and indexes in memory, for all volumes of a store. Their limit in bytes also counts the
//! tables of the maps.
//!
//! The reader has verified each entry, and entries never change. Replacement is S3-FIFO (Yang et
//! al., SOSP 2023): a new entry is on probation in a queue with a tenth of the room. So a scan
//! passes through and does not push out entries that have uses.

use super::fragment::{FragmentId, Index};
use super::page::Page;
use crate::store::gc::bundle;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Memory of a page besides its bytes: keys in a queue and a tree, and the allocation. A guess.
const OVERHEAD_BYTES: u64 = 192;
/// The highest count of uses.
const USES_MAX: u8 = 3;

/// A part of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Its index.
    Index,
    /// A page, by its number.
    Page(u32),
    /// The index of a bundle, which has the same kind of name.
    Bundle,
}

/// The name of an entry: a part of a fragment.
pub type Key = (FragmentId, Part);

/// A part of a fragment, read and verified.
#[derive(Clone, Debug)]
pub enum Content {
    /// Its index.
    Index(std::sync::Arc<Index>),
    /// A page.
    Page(std::sync::Arc<Page>),
    /// The index of a bundle.
    Bundle(std::sync::Arc<bundle::Index>),
}

impl Content {
    fn cost(&self) -> u64 {
        OVERHEAD_BYTES
            + match self {
                Content::Index(index) => index.bytes(),
                Content::Page(page) => page.bytes(),
                Content::Bundle(index) => index.bytes(),
            }
    }
}

#[derive(Debug)]
struct Slot {
    content: Content,
    uses: u8,
    main: bool,
}

/// The cache.
#[derive(Debug)]
pub struct Pages {
    limit: u64,
    tables: u64,
    bytes: u64,
    small_bytes: u64,
    slots: BTreeMap<Key, Slot>,
    small: VecDeque<Key>,
    main: VecDeque<Key>,
    ghosts: VecDeque<Key>,
    ghost_set: BTreeSet<Key>,
    hits: u64,
    misses: u64,
}

impl Pages {
    /// A cache that together with tables takes at most `limit` bytes, if the tables leave as much.
    #[must_use]
    pub fn new(limit: u64) -> Pages {
        Pages {
            limit,
            tables: 0,
            bytes: 0,
            small_bytes: 0,
            slots: BTreeMap::new(),
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghosts: VecDeque::new(),
            ghost_set: BTreeSet::new(),
            hits: 0,
            misses: 0,
        }
    }

    /// Bytes of pages and indexes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of tables.
    #[must_use]
    pub fn tables(&self) -> u64 {
        self.tables
    }

    /// The limit in bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Whether tables take more than half of the limit: then the large ones need a flush.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        self.tables > self.limit / 2
    }

    /// Lookups that found their part here, and lookups that did not.
    #[must_use]
    pub fn looks(&self) -> (u64, u64) {
        (self.hits, self.misses)
    }

    /// A table that took `before` bytes takes `after` now.
    pub fn resize_table(&mut self, before: u64, after: u64) {
        self.tables = (self.tables + after).saturating_sub(before);
        self.shrink();
    }

    /// A part, if it is here.
    pub fn get(&mut self, key: &Key) -> Option<Content> {
        let Some(slot) = self.slots.get_mut(key) else {
            self.misses += 1;
            return None;
        };
        self.hits += 1;
        slot.uses = (slot.uses + 1).min(USES_MAX);
        Some(slot.content.clone())
    }

    /// Keeps a part for as long as there is room.
    pub fn insert(&mut self, key: Key, content: Content) {
        if self.slots.contains_key(&key) {
            return;
        }
        let cost = content.cost();
        let main = self.ghost_set.remove(&key);
        if main {
            self.main.push_back(key);
        } else {
            self.small.push_back(key);
            self.small_bytes += cost;
        }
        self.bytes += cost;
        self.slots.insert(key, Slot { content, uses: 0, main });
        self.shrink();
    }

    /// Forgets what it has of a fragment that is gone.
    pub fn forget(&mut self, fragment: FragmentId) {
        let all = (fragment, Part::Index)..=(fragment, Part::Page(u32::MAX));
        for (_, slot) in self.slots.extract_if(all, |_, _| true) {
            let cost = slot.content.cost();
            self.bytes -= cost;
            self.small_bytes -= if slot.main { 0 } else { cost };
        }
        // Its keys leave the queues when their turn comes.
    }

    fn shrink(&mut self) {
        let room = self.limit.saturating_sub(self.tables);
        while self.bytes > room {
            if self.small_bytes > room / 10 || self.main.is_empty() {
                let Some(key) = self.small.pop_front() else { break };
                self.leave_small(key);
            } else if let Some(key) = self.main.pop_front() {
                self.leave_main(key);
            }
        }
        // Keys of forgotten and of long absent entries must not pile up.
        let most = 2 * self.slots.len() + 64;
        if self.small.len() + self.main.len() > most {
            self.small.retain(|key| self.slots.get(key).is_some_and(|slot| !slot.main));
            self.main.retain(|key| self.slots.get(key).is_some_and(|slot| slot.main));
        }
        while self.ghosts.len() > most {
            if let Some(key) = self.ghosts.pop_front() {
                self.ghost_set.remove(&key);
            }
        }
    }

    fn leave_small(&mut self, key: Key) {
        let Some(slot) = self.slots.get_mut(&key).filter(|slot| !slot.main) else { return };
        self.small_bytes -= slot.content.cost();
        if slot.uses > 0 {
            slot.uses = 0;
            slot.main = true;
            self.main.push_back(key);
        } else {
            self.remove(&key);
            if self.ghost_set.insert(key) {
                self.ghosts.push_back(key);
            }
        }
    }

    fn leave_main(&mut self, key: Key) {
        let Some(slot) = self.slots.get_mut(&key).filter(|slot| slot.main) else { return };
        if slot.uses > 0 {
            slot.uses -= 1;
            self.main.push_back(key);
        } else {
            self.remove(&key);
        }
    }

    fn remove(&mut self, key: &Key) {
        if let Some(slot) = self.slots.remove(key) {
            self.bytes -= slot.content.cost();
        }
    }
}

/// One cache, in the hands of all volumes of a store.
#[derive(Clone, Debug)]
#[expect(clippy::disallowed_types, reason = "held for one input of one volume, never across")]
pub struct SharedPages(std::sync::Arc<std::sync::Mutex<Pages>>);

impl SharedPages {
    /// A cache with that limit in bytes; see [`Pages::new`].
    #[must_use]
    #[expect(clippy::disallowed_types, reason = "as above")]
    pub fn new(limit: u64) -> SharedPages {
        SharedPages(std::sync::Arc::new(std::sync::Mutex::new(Pages::new(limit))))
    }

    /// The cache, for a moment.
    pub fn lock(&self) -> impl std::ops::DerefMut<Target = Pages> + '_ {
        // A panic with the lock leaves a valid cache, because each entry was valid when it came.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{Range, VolumeId};

    fn key(number: u64, page: u32) -> Key {
        (FragmentId { volume: VolumeId(1), generation: 1, number }, Part::Page(page))
    }

    /// 486 holes of 4 KiB, each coded in a byte.
    fn page() -> Content {
        let bytes = [&486_u16.to_le_bytes()[..], &[0; 486]].concat();
        let page = Page::new(bytes.into(), Range::new(0, 486 * 8)).unwrap();
        let content = Content::Page(std::sync::Arc::new(page));
        assert_eq!(content.cost(), 1000);
        content
    }

    #[test]
    fn a_scan_does_not_push_out_what_is_used() {
        let mut pages = Pages::new(100_000);
        for _ in 0..3 {
            for n in 0..50 {
                if pages.get(&key(1, n)).is_none() {
                    pages.insert(key(1, n), page());
                }
            }
        }
        for n in 0..1000 {
            assert!(pages.get(&key(2, n)).is_none());
            pages.insert(key(2, n), page());
            assert!(pages.bytes() <= 100_000);
        }
        let kept = (0..50).filter(|n| pages.get(&key(1, *n)).is_some()).count();
        assert_eq!(kept, 50);
    }

    #[test]
    fn tables_take_room_from_pages() {
        let mut pages = Pages::new(10_000);
        for n in 0..20 {
            pages.insert(key(1, n), page());
        }
        assert_eq!(pages.bytes(), 10_000);
        pages.resize_table(0, 6000);
        assert!(pages.bytes() <= 4000 && pages.is_crowded());
        pages.resize_table(6000, 100_000);
        assert_eq!((pages.bytes(), pages.tables()), (0, 100_000));
        pages.insert(key(1, 0), page());
        assert_eq!(pages.bytes(), 0);
        pages.resize_table(100_000, 0);
        pages.insert(key(1, 0), page());
        assert_eq!(pages.bytes(), 1000);
    }

    #[test]
    fn what_is_forgotten_is_gone_and_counts_no_more() {
        let mut pages = Pages::new(100_000);
        for round in 0..100 {
            for n in 0..90 {
                pages.insert(key(round, n), page());
            }
            pages.forget(key(round, 0).0);
            assert_eq!((pages.bytes(), pages.small_bytes), (0, 0));
            assert!(pages.small.len() <= 400, "{}", pages.small.len());
        }
        pages.insert(key(100, 1), page());
        assert!(pages.get(&key(100, 1)).is_some());
        assert!(pages.get(&key(99, 1)).is_none());
    }
}
