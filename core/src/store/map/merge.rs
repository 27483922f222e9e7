//! Makes fragments from a table, and from other fragments.
//!
//! Both work in bounded steps. A merge holds an index, a chunk of encoded pages and a decoded page
//! for each of its sources, and the new fragment.

use super::error::MapError;
use super::fragment::{Builder, Fragment, Index};
use super::get::{Damage, FragmentPart, Get};
use super::levels::Plan;
use super::limits::Limits;
use super::page::MapEntry;
use super::table::Table;
use crate::block::{MAX_VOLUME_SECTORS, Range};
use crate::extent::{Extent, RangeSet};
use bytes::Bytes;
use std::collections::VecDeque;

/// Entries that a step looks at, at most: less than a millisecond.
const STEP_ENTRIES: usize = 4096;
/// Bytes of pages that a merge reads at once from a source. A guess at the size that justifies a
/// request to an object store.
const CHUNK_BYTES: u64 = 256 << 10;

/// The result of a step.
#[derive(Debug)]
pub enum MergeStep {
    /// The caller can take the next step.
    More,
    /// The merge needs these reads first: at most one of each source.
    Needs(Vec<(usize, Get)>),
    /// A fragment is full.
    Full(Builder),
    /// The merge has ended. The builder holds the last fragment, if it has entries.
    Done(Builder),
}

/// Collects entries in order, joining those that can be one.
#[derive(Debug)]
struct Writer {
    builder: Builder,
    pending: Option<MapEntry>,
    page_bytes: usize,
    fragment_bytes: u64,
}

impl Writer {
    fn new(limits: &Limits) -> Writer {
        let Limits { page_bytes, fragment_bytes, .. } = *limits;
        Writer { builder: Builder::new(page_bytes), pending: None, page_bytes, fragment_bytes }
    }

    fn push(&mut self, entry: MapEntry) {
        match &mut self.pending {
            Some(last)
                if last.range.end() == entry.range.lba
                    && last.place.continues(last.range.sectors, &entry.place) =>
            {
                last.range.sectors += entry.range.sectors;
            }
            pending => {
                if let Some(last) = pending.replace(entry) {
                    self.builder.push(last);
                }
            }
        }
    }

    fn full(&mut self) -> Option<Builder> {
        let full = self.builder.bytes() >= self.fragment_bytes;
        full.then(|| std::mem::replace(&mut self.builder, Builder::new(self.page_bytes)))
    }

    fn finish(&mut self) -> Builder {
        if let Some(last) = self.pending.take() {
            self.builder.push(last);
        }
        std::mem::replace(&mut self.builder, Builder::new(self.page_bytes))
    }
}

/// Makes the fragments of a table that no longer changes.
#[derive(Debug)]
pub struct Flush {
    at: u64,
    writer: Writer,
}

impl Flush {
    /// Begins with the first sector.
    #[must_use]
    pub fn new(limits: &Limits) -> Flush {
        Flush { at: 0, writer: Writer::new(limits) }
    }

    /// Goes on with the same table.
    pub fn step(&mut self, table: &Table) -> MergeStep {
        let mut last = true;
        for (n, (range, place)) in table.iter_from(self.at).enumerate() {
            if n == STEP_ENTRIES {
                last = false;
                break;
            }
            self.writer.push(MapEntry { range, place });
            self.at = range.end();
            if let Some(full) = self.writer.full() {
                return MergeStep::Full(full);
            }
        }
        if last { MergeStep::Done(self.writer.finish()) } else { MergeStep::More }
    }
}

/// A run of fragments, read entry by entry.
#[derive(Debug)]
struct Source {
    fragments: VecDeque<Fragment>,
    index: Option<Index>,
    page: usize,
    /// Encoded pages from `page` on.
    chunk: Bytes,
    entries: std::vec::IntoIter<MapEntry>,
    head: Option<MapEntry>,
}

impl Source {
    /// Makes `head` the next entry that has sectors from `at` on, if there is one. Returns the read
    /// that this needs. It skips fragments that newer entries hide completely.
    fn advance(&mut self, at: u64, newer: &[Source]) -> Result<Option<Get>, Damage> {
        loop {
            self.head = self.head.and_then(|head| head.from(at));
            if self.head.is_some() {
                return Ok(None);
            }
            self.head = self.entries.next();
            if self.head.is_some() {
                continue;
            }
            let Some(fragment) = self.fragments.front().copied() else { return Ok(None) };
            let Some(index) = &self.index else {
                let left = Range::between(fragment.span.lba.max(at), fragment.span.end());
                let hides = |head: MapEntry| head.range.intersect(left) == Some(left);
                if left.is_empty() || newer.iter().any(|newer| newer.head.is_some_and(hides)) {
                    self.fragments.pop_front();
                    continue;
                }
                return Ok(Some(Get::index(fragment)));
            };
            if self.page == index.pages() {
                self.fragments.pop_front();
                (self.index, self.page, self.chunk) = (None, 0, Bytes::new());
                continue;
            }
            let range = index.range(self.page);
            if self.chunk.is_empty() {
                let mut end = self.page + 1;
                while end < index.pages() && index.range(end).end - range.start <= CHUNK_BYTES {
                    end += 1;
                }
                let bytes = range.start..index.range(end - 1).end;
                let what = FragmentPart::Pages(self.page as u32..end as u32);
                return Ok(Some(Get { fragment, what, bytes }));
            }
            let bytes = self.chunk.split_to((range.end - range.start) as usize);
            let entries = index.entries(self.page, &bytes).and_then(Iterator::collect);
            match entries {
                Ok(entries) => {
                    let entries: Vec<MapEntry> = entries;
                    self.entries = entries.into_iter();
                    self.page += 1;
                }
                Err(reason) => {
                    self.chunk = Bytes::new();
                    let span = index.span(self.page);
                    return Err(Damage { fragment: fragment.id, span, reason });
                }
            }
        }
    }

    fn supply(&mut self, get: &Get, bytes: Bytes) -> Result<(), Damage> {
        let Some(fragment) = self.fragments.front().filter(|front| front.id == get.fragment.id)
        else {
            return Ok(());
        };
        let damage = |reason| Damage { fragment: fragment.id, span: fragment.span, reason };
        match get.what {
            FragmentPart::Index => {
                self.index = Some(Index::new(fragment, bytes).map_err(damage)?);
            }
            FragmentPart::Pages(_) if bytes.len() as u64 != get.bytes.end - get.bytes.start => {
                return Err(damage(MapError::Short));
            }
            FragmentPart::Pages(_) => self.chunk = bytes,
        }
        Ok(())
    }
}

/// Merges runs of fragments: of the entries for a sector the newest stays.
#[derive(Debug)]
pub struct Merge {
    sources: Vec<Source>,
    below: RangeSet,
    at: u64,
    writer: Writer,
}

impl Merge {
    /// Begins a merge.
    #[must_use]
    pub fn new(plan: &Plan, limits: &Limits) -> Merge {
        let source = |run: &Vec<Fragment>| Source {
            fragments: run.iter().copied().collect(),
            index: None,
            page: 0,
            chunk: Bytes::new(),
            entries: Vec::new().into_iter(),
            head: None,
        };
        Merge {
            sources: plan.sources.iter().map(source).collect(),
            below: plan.below.clone(),
            at: 0,
            writer: Writer::new(limits),
        }
    }

    /// Takes the result of a read for a source. Damage of pages shows in the next step.
    ///
    /// # Errors
    /// The damage: the step asks for the same again.
    pub fn supply(&mut self, source: usize, get: &Get, bytes: Bytes) -> Result<(), Damage> {
        match self.sources.get_mut(source) {
            Some(source) => source.supply(get, bytes),
            None => Ok(()),
        }
    }

    /// Goes on.
    ///
    /// # Errors
    /// The damage: the next step asks for the same again.
    pub fn step(&mut self) -> Result<MergeStep, Damage> {
        for _ in 0..STEP_ENTRIES {
            let mut needs = Vec::new();
            for n in 0..self.sources.len() {
                let (newer, rest) = self.sources.split_at_mut(n);
                if let Some(source) = rest.first_mut() {
                    needs.extend(source.advance(self.at, newer)?.map(|get| (n, get)));
                }
            }
            if !needs.is_empty() {
                return Ok(MergeStep::Needs(needs));
            }
            let Some(entry) = self.next() else { return Ok(MergeStep::Done(self.writer.finish())) };
            self.at = entry.range.end();
            let hides = || self.below.overlapping(entry.range).next().is_some();
            if entry.place.is_some() || hides() {
                self.writer.push(entry);
                if let Some(full) = self.writer.full() {
                    return Ok(MergeStep::Full(full));
                }
            }
        }
        Ok(MergeStep::More)
    }

    /// The next run about which the newest source that knows of it says one thing.
    fn next(&self) -> Option<MapEntry> {
        let heads = || self.sources.iter().filter_map(|source| source.head);
        let lba = heads().map(|head| head.range.lba).min()?;
        let mut end = MAX_VOLUME_SECTORS;
        for head in heads() {
            if head.range.lba == lba {
                return head.part(Range::between(lba, end));
            }
            end = end.min(head.range.lba);
        }
        None
    }
}
