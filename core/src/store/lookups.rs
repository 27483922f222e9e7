//! Lookups in progress, and the pages of the maps that they wait for. Several lookups of one page
//! share a read.
//!
//! After its wait a lookup begins anew with the current map. If a fragment, bundle or segment is
//! gone, a newer one has replaced it. Either a merge or the garbage collection here did so, or
//! another store. Before the engine calls the object missing, it has to read the newest root.

use super::Copies;
use super::catalog;
use super::gc::bundle::{Bundle, BundleId};
use super::map::fragment::{Fragment, FragmentId};
use super::map::lookup::{Answer, Lookup};
use super::map::pages::{Key, Pages};
use super::map::{Damage, MapError, Place};
use super::moves::{Lost, Maps, Moves, MovesStep, Placed, Want};
use super::read_request::ReadRequest;
use crate::block::Range;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The result of a lookup: in order from its beginning, without gaps.
pub(super) enum Looked {
    /// The places of the data, and whether the newest root names the objects.
    Found(ReadRequest, Vec<Placed>, bool),
    /// The answer to a status query.
    Status(ReadRequest, Vec<(Range, Option<Place>)>),
    Damaged(ReadRequest, Lost),
}

struct Looking {
    request: ReadRequest,
    lookup: Lookup,
    /// The moves of the data, once the first map has answered.
    moves: Option<Moves>,
    /// Pages that it waits for.
    outstanding: usize,
    /// The missing object, and the number of searches for newer roots before. A map names the
    /// object, or the map is unknown.
    gone: Option<(Gone, u64)>,
    /// It began anew because the maps were not of one moment.
    again: bool,
    /// The engine has searched for the newest root for this lookup.
    known: bool,
}

/// The missing object.
#[derive(Clone, Copy, Debug)]
enum Gone {
    Fragment(Fragment),
    Bundle(Bundle),
    /// An object with data, or the map itself.
    Data,
}

/// The name of what a lookup needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    Fragment(FragmentId),
    Bundle(BundleId),
}

impl Gone {
    fn name(&self) -> Option<Name> {
        match self {
            Gone::Fragment(fragment) => Some(Name::Fragment(fragment.id)),
            Gone::Bundle(bundle) => Some(Name::Bundle(bundle.id)),
            Gone::Data => None,
        }
    }

    /// Whether the maps still name it, as far as the engine can tell.
    fn is_named(&self, maps: Maps<'_>) -> bool {
        match self {
            Gone::Fragment(fragment) => maps.names(fragment),
            Gone::Bundle(_) => true,
            Gone::Data => false,
        }
    }

    fn lost(&self, range: Range) -> Lost {
        let reason = MapError::Invalid("the object is missing");
        match self {
            Gone::Fragment(Fragment { id, span, .. }) => {
                let range = span.intersect(range).unwrap_or(range);
                Lost { key: catalog::fragment_key(*id), range, reason }
            }
            Gone::Bundle(bundle) => Lost { key: catalog::bundle_key(bundle.id), range, reason },
            Gone::Data => Lost { key: String::new(), range, reason },
        }
    }
}

/// A page that the engine reads, or will read.
struct Coming {
    want: Want,
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
    /// Objects that were missing although the newest root names them.
    missed: BTreeSet<Name>,
    /// The number of searches for newer roots.
    round: u64,
}

impl Looking {
    fn supply(&mut self, want: &Want, data: &Bytes, pages: &mut Pages) -> Result<(), Lost> {
        let range = self.request.range;
        match (want, &mut self.moves) {
            (Want::Page(get), None) => {
                let supplied = self.lookup.supply(get, data.clone(), pages);
                supplied.map_err(|damage| lost(damage, range))
            }
            (Want::Page(get), Some(moves)) => {
                let supplied = moves.supply(get, data, pages);
                supplied.map_err(|damage| moves.lost_page(&damage))
            }
            (Want::Bundle(bundle), Some(moves)) => {
                let supplied = moves.supply_index(bundle, data, pages);
                supplied.map_err(|reason| moves.lost_bundle(bundle, reason))
            }
            (Want::Bundle(_), None) => Ok(()),
        }
    }
}

fn lost(damage: Damage, range: Range) -> Lost {
    let Damage { fragment, span, reason } = damage;
    let range = span.intersect(range).unwrap_or(range);
    Lost { key: catalog::fragment_key(fragment), range, reason }
}

impl Lookups {
    pub fn len(&self) -> usize {
        self.looking.len()
    }

    /// Takes out those that are to go.
    pub fn take(&mut self, goes: impl Fn(&ReadRequest) -> bool) -> Vec<ReadRequest> {
        let taken = self.looking.extract_if(.., |_, looking| goes(&looking.request));
        let mut requests = Vec::new();
        for (_, looking) in taken {
            self.stranded -= usize::from(looking.gone.is_some());
            requests.push(looking.request);
        }
        requests
    }

    /// Begins a lookup. Returns its result if that needs no reads.
    pub fn begin(
        &mut self,
        request: ReadRequest,
        maps: Maps<'_>,
        pages: &mut Pages,
    ) -> Option<Looked> {
        let id = self.insert(request, None);
        self.step(id, maps, pages)
    }

    /// The object of a read is missing: the read begins anew after the next search for newer roots.
    pub fn strand(&mut self, request: ReadRequest) {
        let gone = Some((Gone::Data, self.round));
        self.insert(request, gone);
        self.stranded += 1;
    }

    fn insert(&mut self, request: ReadRequest, gone: Option<(Gone, u64)>) -> u64 {
        let id = self.next;
        self.next += 1;
        let lookup = request.lookup();
        let (moves, outstanding, again, known) = (None, 0, false, false);
        let looking = Looking { request, lookup, moves, outstanding, gone, again, known };
        self.looking.insert(id, looking);
        id
    }

    fn step(&mut self, id: u64, maps: Maps<'_>, pages: &mut Pages) -> Option<Looked> {
        let looking = self.looking.get_mut(&id)?;
        if looking.moves.is_none() && maps.tree.is_lost() {
            looking.gone = Some((Gone::Data, self.round));
            self.stranded += 1;
            return None;
        }
        let needs = loop {
            if let Some(moves) = &mut looking.moves {
                match moves.step(maps, pages) {
                    Ok(MovesStep::Needs(needs)) => break needs,
                    Ok(MovesStep::Found(parts)) => {
                        let looking = self.looking.remove(&id)?;
                        return Some(Looked::Found(looking.request, parts, looking.known));
                    }
                    Ok(MovesStep::Stale(_)) if !looking.again => {
                        looking.again = true;
                        looking.moves = None;
                        looking.lookup = looking.request.lookup();
                    }
                    Ok(MovesStep::Stale(lost)) => return self.damaged(id, lost),
                    Err(damage) => {
                        let lost = moves.lost_page(&damage);
                        return self.damaged(id, lost);
                    }
                }
                continue;
            }
            match maps.tree.look(&mut looking.lookup, pages) {
                Ok(Answer::Parts(parts)) if looking.request.is_status() => {
                    let looking = self.looking.remove(&id)?;
                    return Some(Looked::Status(looking.request, parts));
                }
                Ok(Answer::Parts(parts)) => looking.moves = Some(Moves::new(parts, maps)),
                Ok(Answer::Needs(needs)) => break needs.into_iter().map(Want::Page).collect(),
                Err(damage) => {
                    let lost = lost(damage, looking.request.range);
                    return self.damaged(id, lost);
                }
            }
        };
        let class = looking.request.class();
        looking.outstanding = needs.len();
        for want in needs {
            let key = want.key();
            let coming = self.coming.entry(key).or_insert_with(|| {
                let (copies, waiting) = (Copies::Welcome, Vec::new());
                Coming { want, copies, issued: false, waiting }
            });
            coming.waiting.push(id);
            // Once more, if it is there for one who is in less of a hurry.
            if !coming.issued {
                self.backlog[class].push_back(key);
            }
        }
        None
    }

    fn damaged(&mut self, id: u64, lost: Lost) -> Option<Looked> {
        let looking = self.looking.remove(&id)?;
        self.stranded -= usize::from(looking.gone.is_some());
        Some(Looked::Damaged(looking.request, lost))
    }

    /// The next page to read for lookups of that class, and whether the newest root is known to
    /// name the page.
    pub fn poll(&mut self, class: usize) -> Option<(Want, Copies, bool)> {
        while let Some(key) = self.backlog[class].pop_front() {
            let looking = &self.looking;
            if let Some(coming) = self.coming.get_mut(&key)
                && !coming.issued
            {
                if coming.waiting.iter().any(|id| looking.contains_key(id)) {
                    coming.issued = true;
                    let known = self.missed.contains(&name(&coming.want));
                    return Some((coming.want.clone(), coming.copies, known));
                }
                self.coming.remove(&key);
            }
        }
        None
    }

    /// Takes the result of a page read; `None` if the object is gone.
    pub fn handle(
        &mut self,
        want: &Want,
        data: Option<Bytes>,
        maps: Maps<'_>,
        pages: &mut Pages,
    ) -> Vec<Looked> {
        let key = want.key();
        let Some(mut coming) = self.coming.remove(&key) else { return Vec::new() };
        let asked = match want {
            Want::Page(get) => get.bytes.clone(),
            Want::Bundle(bundle) => bundle.head_range(),
        };
        let whole = |data: &Bytes| data.len() as u64 == asked.end - asked.start;
        let mut bad = None;
        if let Some(data) = &data {
            for id in &coming.waiting {
                let Some(looking) = self.looking.get_mut(id) else { continue };
                if let Err(lost) = looking.supply(want, data, pages) {
                    let reason = if whole(data) { lost.reason } else { MapError::Short };
                    bad = Some(reason);
                    break;
                }
            }
        }
        if let Some(reason) = bad {
            if coming.copies != Copies::Bad {
                (coming.copies, coming.issued) = (Copies::Bad, false);
                self.coming.insert(key, coming);
                self.backlog[0].push_back(key);
                return Vec::new();
            }
            let mut looked = Vec::new();
            for id in coming.waiting {
                let Some(looking) = self.looking.get_mut(&id) else { continue };
                let data = data.clone().unwrap_or_default();
                let Err(lost) = looking.supply(want, &data, pages) else { continue };
                looked.extend(self.damaged(id, Lost { reason, ..lost }));
            }
            return looked;
        }
        if data.is_some() {
            self.missed.remove(&name(want));
        }
        let gone = match want {
            Want::Page(get) => Gone::Fragment(get.fragment),
            Want::Bundle(bundle) => Gone::Bundle(*bundle),
        };
        let lost = data.is_none() && gone.is_named(maps);
        let mut looked = Vec::new();
        for id in coming.waiting {
            let Some(looking) = self.looking.get_mut(&id) else { continue };
            looking.outstanding -= 1;
            if lost {
                let before = looking.gone.replace((gone, self.round));
                self.stranded += usize::from(before.is_none());
            }
            if looking.outstanding == 0 && looking.gone.is_none() {
                looked.extend(self.step(id, maps, pages));
            }
        }
        looked
    }

    /// Whether lookups wait for a search for a newer root.
    pub fn is_stranded(&self) -> bool {
        self.stranded > 0
    }

    /// A search for newer roots begins.
    pub fn look_for_roots(&mut self) {
        self.round += 1;
    }

    /// The map is the newest. If the search found no newer map, the lookups ask for the missing
    /// objects once more. If such an object is still absent, it is missing.
    pub fn roots_seen(&mut self, newer: bool, maps: Maps<'_>, pages: &mut Pages) -> Vec<Looked> {
        let stranded = self.looking.iter().filter_map(|(id, looking)| {
            let (gone, round) = looking.gone?;
            Some((*id, gone, round < self.round && !newer, looking.outstanding == 0))
        });
        let mut looked = Vec::new();
        let before = std::mem::take(&mut self.missed);
        for (id, gone, judged, ready) in stranded.collect::<Vec<_>>() {
            let named = gone.name().filter(|_| judged && gone.is_named(maps));
            if named.is_some_and(|name| before.contains(&name)) {
                let range = self.looking.get(&id).map(|looking| looking.request.range);
                looked.extend(self.damaged(id, gone.lost(range.unwrap_or(Range::new(0, 1)))));
            } else if (newer || judged)
                && ready
                && let Some(looking) = self.looking.get_mut(&id)
            {
                looking.gone = None;
                looking.known |= judged;
                looking.moves = None;
                self.stranded -= 1;
                self.missed.extend(named);
                looked.extend(self.step(id, maps, pages));
            }
        }
        looked
    }
}

fn name(want: &Want) -> Name {
    match want {
        Want::Page(get) => Name::Fragment(get.fragment.id),
        Want::Bundle(bundle) => Name::Bundle(bundle.id),
    }
}
