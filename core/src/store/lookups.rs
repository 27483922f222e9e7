//! Lookups under way, and the pages of the map that they wait for. Several that want the same page have it
//! read once.
//!
//! A lookup that has waited begins anew with the map as it is then. A fragment that is not there any more
//! has been replaced: by a merge here, or by another store's, and then the newest root has to be read
//! before it can be said that it is missing.

use super::Copies;
use super::map::fragment::{Fragment, FragmentId};
use super::map::lookup::{Answer, Lookup};
use super::map::pages::{Key, Pages, Part};
use super::map::{Damage, Get, MapError, Place, Tree, What};
use super::reads::Request;
use crate::block::Range;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What a lookup came to.
pub(super) enum Looked {
    /// From its beginning in order and without gaps.
    Found(Request, Vec<(Range, Option<Place>)>),
    Damaged(Request, Damage),
}

struct Looking {
    request: Request,
    lookup: Lookup,
    /// Pages that it waits for.
    outstanding: usize,
    /// A fragment that is gone although the map names it, and how often newer roots had been looked for
    /// when that was found.
    lost: Option<(Fragment, u64)>,
}

/// A page that is being read, or is to be.
struct Coming {
    get: Get,
    copies: Copies,
    issued: bool,
    waiting: Vec<u64>,
}

/// The lookups of a volume.
#[derive(Default)]
pub(super) struct Lookups {
    next: u64,
    looking: BTreeMap<u64, Looking>,
    coming: BTreeMap<Key, Coming>,
    /// By class, as the reads are.
    backlog: [VecDeque<Key>; 2],
    stranded: usize,
    /// Fragments that were not there although the newest root names them.
    missed: BTreeSet<FragmentId>,
    /// Times that newer roots have been looked for.
    round: u64,
}

fn key(get: &Get) -> Key {
    let part = match &get.what {
        What::Index => Part::Index,
        What::Pages(pages) => Part::Page(pages.start),
    };
    (get.fragment.id, part)
}

impl Lookups {
    pub fn len(&self) -> usize {
        self.looking.len()
    }

    /// Takes out those that are to go.
    pub fn take(&mut self, goes: impl Fn(&Request) -> bool) -> Vec<Request> {
        let taken = self.looking.extract_if(.., |_, looking| goes(&looking.request));
        let mut requests = Vec::new();
        for (_, looking) in taken {
            self.stranded -= usize::from(looking.lost.is_some());
            requests.push(looking.request);
        }
        requests
    }

    /// Begins a lookup; gives what it comes to if nothing has to be read for it.
    pub fn begin(
        &mut self,
        request: Request,
        lookup: Lookup,
        tree: &Tree,
        pages: &mut Pages,
    ) -> Option<Looked> {
        let id = self.next;
        self.next += 1;
        let looking = Looking { request, lookup, outstanding: 0, lost: None };
        self.looking.insert(id, looking);
        self.step(id, tree, pages)
    }

    fn step(&mut self, id: u64, tree: &Tree, pages: &mut Pages) -> Option<Looked> {
        let looking = self.looking.get_mut(&id)?;
        let class = looking.request.class();
        match tree.look(&mut looking.lookup, pages) {
            Ok(Answer::Parts(parts)) => {
                let looking = self.looking.remove(&id)?;
                Some(Looked::Found(looking.request, parts))
            }
            Ok(Answer::Needs(needs)) => {
                looking.outstanding = needs.len();
                for get in needs {
                    let key = key(&get);
                    let coming = self.coming.entry(key).or_insert_with(|| {
                        let (copies, waiting) = (Copies::Welcome, Vec::new());
                        Coming { get, copies, issued: false, waiting }
                    });
                    coming.waiting.push(id);
                    // Once more, if it is there for one who is in less of a hurry.
                    if !coming.issued {
                        self.backlog[class].push_back(key);
                    }
                }
                None
            }
            Err(damage) => self.damaged(id, damage),
        }
    }

    fn damaged(&mut self, id: u64, damage: Damage) -> Option<Looked> {
        let looking = self.looking.remove(&id)?;
        self.stranded -= usize::from(looking.lost.is_some());
        Some(Looked::Damaged(looking.request, damage))
    }

    /// The next page to read for lookups of that class, and whether the newest root is known to name it.
    pub fn poll(&mut self, class: usize) -> Option<(Get, Copies, bool)> {
        while let Some(key) = self.backlog[class].pop_front() {
            let looking = &self.looking;
            if let Some(coming) = self.coming.get_mut(&key)
                && !coming.issued
            {
                if coming.waiting.iter().any(|id| looking.contains_key(id)) {
                    coming.issued = true;
                    let known = self.missed.contains(&coming.get.fragment.id);
                    return Some((coming.get.clone(), coming.copies, known));
                }
                self.coming.remove(&key);
            }
        }
        None
    }

    /// What reading a page gave; nothing if its fragment is gone.
    pub fn handle(
        &mut self,
        get: &Get,
        data: Option<Bytes>,
        tree: &Tree,
        pages: &mut Pages,
    ) -> Vec<Looked> {
        let key = key(get);
        let Some(mut coming) = self.coming.remove(&key) else { return Vec::new() };
        let whole = |data: &Bytes| data.len() as u64 == get.bytes.end - get.bytes.start;
        let mut bad = None;
        if let Some(data) = &data {
            for id in &coming.waiting {
                let Some(looking) = self.looking.get_mut(id) else { continue };
                let supplied = looking.lookup.supply(get, data.clone(), pages);
                if let Err(damage) = supplied {
                    let reason = if whole(data) { damage.reason } else { MapError::Short };
                    bad = Some(Damage { reason, ..damage });
                    break;
                }
            }
        }
        if let Some(damage) = bad {
            if coming.copies != Copies::Bad {
                (coming.copies, coming.issued) = (Copies::Bad, false);
                self.coming.insert(key, coming);
                self.backlog[0].push_back(key);
                return Vec::new();
            }
            let waiting = coming.waiting.into_iter();
            return waiting.filter_map(|id| self.damaged(id, damage.clone())).collect();
        }
        if data.is_some() {
            self.missed.remove(&get.fragment.id);
        }
        let lost = data.is_none() && tree.levels().names(&get.fragment);
        let mut looked = Vec::new();
        for id in coming.waiting {
            let Some(looking) = self.looking.get_mut(&id) else { continue };
            looking.outstanding -= 1;
            if lost {
                let before = looking.lost.replace((get.fragment, self.round));
                self.stranded += usize::from(before.is_none());
            }
            if looking.outstanding == 0 && looking.lost.is_none() {
                looked.extend(self.step(id, tree, pages));
            }
        }
        looked
    }

    /// Whether lookups wait for it to be seen whether there is a newer root.
    pub fn is_stranded(&self) -> bool {
        self.stranded > 0
    }

    /// Newer roots are being looked for from now on.
    pub fn look_for_roots(&mut self) {
        self.round += 1;
    }

    /// The map is the newest there is. If it is not a newer one than before, what was missing is asked for
    /// once more, as something that is known to exist, and then is missing.
    pub fn roots_seen(&mut self, newer: bool, tree: &Tree, pages: &mut Pages) -> Vec<Looked> {
        let stranded = self.looking.iter().filter_map(|(id, looking)| {
            let (fragment, round) = looking.lost?;
            Some((*id, fragment, round < self.round && !newer, looking.outstanding == 0))
        });
        let mut looked = Vec::new();
        let before = std::mem::take(&mut self.missed);
        for (id, fragment, judged, ready) in stranded.collect::<Vec<_>>() {
            let named = judged && tree.levels().names(&fragment);
            if named && before.contains(&fragment.id) {
                let reason = MapError::Invalid("the object is missing");
                let damage = Damage { fragment: fragment.id, span: fragment.span, reason };
                looked.extend(self.damaged(id, damage));
            } else if (newer || judged)
                && ready
                && let Some(looking) = self.looking.get_mut(&id)
            {
                looking.lost = None;
                self.stranded -= 1;
                self.missed.extend(named.then_some(fragment.id));
                looked.extend(self.step(id, tree, pages));
            }
        }
        looked
    }
}
