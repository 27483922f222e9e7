//! The scan of all live fragments, root after root. It counts the named part of every segment, and
//! marks it in the segments that the round empties.

use super::marks::Marks;
use super::output::READS_MAX;
use super::usage::Usage;
use crate::store::map::MapError;
use crate::store::map::fragment::{self, Fragment, FragmentId};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

#[derive(Debug)]
struct Scanning {
    /// The present root names it.
    named: bool,
    object: Bytes,
    index: fragment::Index,
    page: usize,
}

/// Progress of the scan.
#[derive(Debug)]
pub(super) struct Scan {
    /// Fragments of the present root.
    root: BTreeMap<FragmentId, Fragment>,
    /// Fragments to read: of the present root, and those that only the root before it named.
    fragments: VecDeque<(bool, Fragment)>,
    /// Fragments whose reads are under way.
    reading: BTreeMap<FragmentId, (bool, Fragment)>,
    /// The scan has begun a root, and has not counted it.
    counting: bool,
    /// The last root has come.
    ended: bool,
    scanning: VecDeque<Scanning>,
    usage: Usage,
    marks: Marks,
}

impl Scan {
    pub fn new(usage: Usage, marks: Marks) -> Scan {
        Scan {
            root: BTreeMap::new(),
            fragments: VecDeque::new(),
            reading: BTreeMap::new(),
            counting: false,
            ended: false,
            scanning: VecDeque::new(),
            usage,
            marks,
        }
    }

    /// Whether the scan waits for the next root.
    pub fn wants_root(&self) -> bool {
        !self.ended && !self.counting
    }

    /// Takes the fragments of the next kept root.
    pub fn handle_root(&mut self, fragments: impl IntoIterator<Item = Fragment>) {
        let root = fragments.into_iter().map(|each| (each.id, each)).collect();
        let before = std::mem::replace(&mut self.root, root);
        let gone = before.values().filter(|each| !self.root.contains_key(&each.id));
        let come = self.root.values().filter(|each| !before.contains_key(&each.id));
        let all = gone.map(|each| (false, *each)).chain(come.map(|each| (true, *each)));
        self.fragments.extend(all);
        self.counting = true;
    }

    /// The last kept root has come.
    pub fn end_roots(&mut self) {
        self.ended = true;
        self.root.clear();
    }

    /// The next fragment to read.
    pub fn poll(&mut self) -> Option<Fragment> {
        if self.reading.len() + self.scanning.len() >= READS_MAX {
            return None;
        }
        let (named, fragment) = self.fragments.pop_front()?;
        self.reading.insert(fragment.id, (named, fragment));
        Some(fragment)
    }

    /// Whether the scan has read all fragments.
    pub fn is_done(&self) -> bool {
        self.ended && !self.counting
    }

    /// The named part of every segment.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// The named part of segments that the round empties.
    pub fn marks(&mut self) -> &mut Marks {
        &mut self.marks
    }

    /// Takes all bytes of a fragment.
    ///
    /// # Errors
    /// The damage.
    pub fn handle_fragment(&mut self, id: FragmentId, object: Bytes) -> Result<(), MapError> {
        let Some((named, fragment)) = self.reading.remove(&id) else { return Ok(()) };
        let range = fragment.index_range();
        if (object.len() as u64) < range.end {
            return Err(MapError::Short);
        }
        let bytes = object.slice(range.start as usize..range.end as usize);
        let index = fragment::Index::new(&fragment, bytes)?;
        self.scanning.push_back(Scanning { named, object, index, page: 0 });
        Ok(())
    }

    /// Looks at a page. Returns whether it had work.
    ///
    /// # Errors
    /// The damage of a fragment.
    pub fn step(&mut self) -> Result<bool, MapError> {
        if let Some(scanning) = self.scanning.front_mut() {
            if scanning.page < scanning.index.pages() {
                let range = scanning.index.range(scanning.page);
                let bytes = &scanning.object[range.start as usize..range.end as usize];
                for entry in scanning.index.entries(scanning.page, bytes)? {
                    let entry = entry?;
                    if scanning.named {
                        self.usage.count(entry);
                        self.marks.mark(entry);
                    } else {
                        self.usage.discount(entry);
                    }
                }
                scanning.page += 1;
            } else {
                self.scanning.pop_front();
            }
            return Ok(true);
        }
        if self.counting && self.fragments.is_empty() && self.reading.is_empty() {
            self.usage.end_root();
            self.counting = false;
            return Ok(true);
        }
        Ok(false)
    }
}
