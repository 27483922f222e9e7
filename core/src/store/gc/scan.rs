//! The reading of all live fragments, root after root: what is named of every segment, and of those that are being emptied.

use super::marks::Marks;
use super::output::READS_MAX;
use super::usage::Usage;
use crate::store::map::MapError;
use crate::store::map::fragment::{self, Fragment, FragmentId};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

#[derive(Debug)]
struct Scanning {
    /// The root that is being read names it.
    named: bool,
    object: Bytes,
    index: fragment::Index,
    page: usize,
}

/// How far it is.
#[derive(Debug)]
pub(super) struct Scan {
    /// Of the root that is being read.
    root: BTreeMap<FragmentId, Fragment>,
    /// The same, to be read, and those that only the one before named.
    fragments: VecDeque<(bool, Fragment)>,
    /// That are being read.
    reading: BTreeMap<FragmentId, (bool, Fragment)>,
    /// A root has been begun, and is not counted yet.
    counting: bool,
    /// There are no more roots.
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

    /// Whether the next root is to be given.
    pub fn wants_root(&self) -> bool {
        !self.ended && !self.counting
    }

    /// The fragments of the next root that is kept.
    pub fn handle_root(&mut self, fragments: impl IntoIterator<Item = Fragment>) {
        let root = fragments.into_iter().map(|each| (each.id, each)).collect();
        let before = std::mem::replace(&mut self.root, root);
        let gone = before.values().filter(|each| !self.root.contains_key(&each.id));
        let come = self.root.values().filter(|each| !before.contains_key(&each.id));
        let all = gone.map(|each| (false, *each)).chain(come.map(|each| (true, *each)));
        self.fragments.extend(all);
        self.counting = true;
    }

    /// All roots that are kept have been given.
    pub fn end_roots(&mut self) {
        self.ended = true;
        self.root.clear();
    }

    /// The next fragment to be read.
    pub fn poll(&mut self) -> Option<Fragment> {
        if self.reading.len() + self.scanning.len() >= READS_MAX {
            return None;
        }
        let (named, fragment) = self.fragments.pop_front()?;
        self.reading.insert(fragment.id, (named, fragment));
        Some(fragment)
    }

    /// Whether all fragments have been read.
    pub fn is_done(&self) -> bool {
        self.ended && !self.counting
    }

    /// What is named of every segment.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// What is named of those that are being emptied.
    pub fn marks(&mut self) -> &mut Marks {
        &mut self.marks
    }

    /// All bytes of a fragment.
    ///
    /// # Errors
    /// What is wrong with it.
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

    /// Looks at a page; says whether there was something to do.
    ///
    /// # Errors
    /// A fragment is damaged.
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
