//! Finds the entries of a map for a range: in the tables, then in the flushes and levels from the
//! newest to the oldest.
//!
//! The lookup requests all known pages that are not in memory at once, and holds them until it has
//! an answer. So a cache that is too small makes a lookup slow, not endless. If a merge replaces
//! fragments meanwhile, that costs another round.

use super::error::MapError;
use super::fragment::{Fragment, Index};
use super::get::{Damage, FragmentPart, Get};
use super::levels::Levels;
use super::page::MapEntry;
use super::pages::{Content, Key, Pages, Part};
use super::place::Place;
use super::table::Table;
use crate::block::Range;
use crate::extent::Extent;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Entries of a table that count as much as a page of a level.
const TABLE_ENTRIES: usize = 1024;

/// The result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The range from its beginning in order and without gaps; `None` for holes.
    Parts(Vec<(Range, Option<Place>)>),
    /// The lookup needs these reads first; see [`Lookup::supply`].
    Needs(Vec<Get>),
}

/// A lookup under way.
#[derive(Clone, Debug)]
pub struct Lookup {
    range: Range,
    pages_max: usize,
    held: BTreeMap<Key, Content>,
}

impl Lookup {
    /// Looks up all of `range`: for ranges as long as a request may read.
    #[must_use]
    pub fn new(range: Range) -> Lookup {
        Lookup::bounded(range, usize::MAX)
    }

    /// Looks up a part of `range`, from its beginning: as much as `pages_max` pages of each level
    /// cover. A table counts 1024 entries as a page. The part is never empty.
    #[must_use]
    pub fn bounded(range: Range, pages_max: usize) -> Lookup {
        Lookup { range, pages_max: pages_max.max(1), held: BTreeMap::new() }
    }

    /// Takes the result of a read, and keeps it in the cache too.
    ///
    /// # Errors
    /// The damage: the next step asks for the same again.
    pub fn supply(&mut self, get: &Get, bytes: Bytes, pages: &mut Pages) -> Result<(), Damage> {
        let fragment = get.fragment;
        let damage = |span, reason| Damage { fragment: fragment.id, span, reason };
        match &get.what {
            FragmentPart::Index => {
                let index =
                    Index::new(&fragment, bytes).map_err(|error| damage(fragment.span, error))?;
                self.keep((fragment.id, Part::Index), Content::Index(Arc::new(index)), pages);
            }
            FragmentPart::Pages(range) => {
                // A lookup asks for pages of which it holds the index, and for one at a time.
                let Some(Content::Index(index)) = self.held.get(&(fragment.id, Part::Index)) else {
                    return Ok(());
                };
                let page = range.start as usize;
                let content =
                    index.page(page, bytes).map_err(|error| damage(index.span(page), error))?;
                let key = (fragment.id, Part::Page(range.start));
                self.keep(key, Content::Page(Arc::new(content)), pages);
            }
        }
        Ok(())
    }

    fn keep(&mut self, key: Key, content: Content, pages: &mut Pages) {
        pages.insert(key, content.clone());
        self.held.insert(key, content);
    }

    fn find(&mut self, key: Key, pages: &mut Pages) -> Option<Content> {
        if let Some(content) = self.held.get(&key) {
            return Some(content.clone());
        }
        let content = pages.get(&key)?;
        self.held.insert(key, content.clone());
        Some(content)
    }

    fn index(&mut self, fragment: &Fragment, pages: &mut Pages) -> Option<Arc<Index>> {
        match self.find((fragment.id, Part::Index), pages)? {
            Content::Index(index) => Some(index),
            Content::Page(_) | Content::Bundle(_) => None,
        }
    }

    /// Reads the tables, the newest first, and the levels, as far as they are in memory.
    ///
    /// # Errors
    /// The damage of pages that the cache had verified when they came.
    pub fn step(
        &mut self,
        tables: &[&Table],
        levels: &Levels,
        pages: &mut Pages,
    ) -> Result<Answer, Damage> {
        let mut needs = Vec::new();
        let range = self.bound(tables, levels, pages, &mut needs);
        let mut unknown = if range.is_empty() { Vec::new() } else { vec![range] };
        let mut found: Vec<(Range, Option<Place>)> = Vec::new();
        for table in tables {
            let entries = table.overlapping(range).map(|(range, place)| MapEntry { range, place });
            resolve(&mut unknown, &mut found, entries);
        }
        for run in levels.overlapping(range) {
            if unknown.is_empty() {
                break;
            }
            let mut entries = Vec::new();
            for fragment in run {
                self.read(fragment, &unknown, pages, &mut entries, &mut needs)?;
            }
            resolve(&mut unknown, &mut found, entries.into_iter());
        }
        if !needs.is_empty() {
            return Ok(Answer::Needs(needs));
        }
        found.extend(unknown.into_iter().map(|range| (range, None)));
        found.sort_unstable_by_key(|(range, _)| range.lba);
        found.dedup_by(|(next, what), (last, before)| {
            let joins = before.continues(last.sectors, what);
            last.sectors += if joins { next.sectors } else { 0 };
            joins
        });
        Ok(Answer::Parts(found))
    }

    /// The range, cut so that no level has to read more pages for it than it may.
    fn bound(
        &mut self,
        tables: &[&Table],
        levels: &Levels,
        pages: &mut Pages,
        needs: &mut Vec<Get>,
    ) -> Range {
        let mut range = self.range;
        let most = self.pages_max;
        if most == usize::MAX {
            return range;
        }
        for table in tables {
            let beyond = table.overlapping(range).nth(most.saturating_mul(TABLE_ENTRIES));
            if let Some((beyond, _)) = beyond {
                range = Range::between(range.lba, beyond.lba);
            }
        }
        for run in levels.overlapping(range) {
            if let Some(beyond) = run.get(most) {
                range = Range::between(range.lba, range.end().min(beyond.span.lba));
            }
        }
        for run in levels.overlapping(range) {
            for fragment in run {
                let Some(index) = self.index(fragment, pages) else {
                    needs.push(Get::index(*fragment));
                    continue;
                };
                let hit = index.overlapping(range);
                if hit.len() > most {
                    let beyond = index.span(hit.start + most).lba;
                    range = Range::between(range.lba, range.end().min(beyond));
                }
            }
        }
        range
    }

    /// Reads the entries of a fragment for the unknown sectors, as far as they are in memory.
    fn read(
        &mut self,
        fragment: &Fragment,
        unknown: &[Range],
        pages: &mut Pages,
        entries: &mut Vec<MapEntry>,
        needs: &mut Vec<Get>,
    ) -> Result<(), Damage> {
        let concerns = |span: Range| {
            let first = unknown.partition_point(|range| range.end() <= span.lba);
            unknown.get(first).is_some_and(|range| range.lba < span.end())
        };
        if !concerns(fragment.span) {
            return Ok(());
        }
        let Some(index) = self.index(fragment, pages) else {
            let get = Get::index(*fragment);
            if !needs.contains(&get) {
                needs.push(get);
            }
            return Ok(());
        };
        let first = unknown.first().map_or(0, |range| range.lba);
        let end = unknown.last().map_or(0, |range| range.end());
        for page in index.overlapping(Range::between(first, end)) {
            let span = index.span(page);
            if !concerns(span) {
                continue;
            }
            let number = page as u32;
            let Some(Content::Page(content)) = self.find((fragment.id, Part::Page(number)), pages)
            else {
                let bytes = index.range(page);
                let what = FragmentPart::Pages(number..number + 1);
                needs.push(Get { fragment: *fragment, what, bytes });
                continue;
            };
            let damage = |reason: MapError| Damage { fragment: fragment.id, span, reason };
            for entry in content.entries_from(first) {
                let entry = entry.map_err(damage)?;
                if entry.range.lba >= end {
                    break;
                }
                if entry.range.end() > first {
                    entries.push(entry);
                }
            }
        }
        Ok(())
    }
}

/// Moves the unknown parts that the entries cover to the found parts. The entries are in order.
fn resolve(
    unknown: &mut Vec<Range>,
    found: &mut Vec<(Range, Option<Place>)>,
    entries: impl Iterator<Item = MapEntry>,
) {
    let mut left = Vec::new();
    let mut entries = entries.peekable();
    for &range in unknown.iter() {
        let mut at = range.lba;
        while let Some(entry) = entries.peek() {
            if let Some(part) = entry.part(Range::between(at, range.end())) {
                if part.range.lba > at {
                    left.push(Range::between(at, part.range.lba));
                }
                at = part.range.end();
                found.push((part.range, part.place));
            }
            // It may reach into what is unknown after this.
            if entry.range.end() > range.end() {
                break;
            }
            entries.next();
        }
        if at < range.end() {
            left.push(Range::between(at, range.end()));
        }
    }
    *unknown = left;
}
