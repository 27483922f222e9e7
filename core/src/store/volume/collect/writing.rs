//! The end of a round: what is to be known of segments that are given up, and the second map.

use super::super::super::Event;
use super::super::super::catalog;
use super::super::super::gc::bundle::Bundle;
use super::super::super::gc::moved;
use super::super::super::map::Get;
use super::super::super::map::fragment::FragmentId;
use super::super::super::map::page::Entry;
use super::super::super::map::tree;
use super::super::super::object::{Copies, ObjectOperation};
use super::super::super::segment::HEADER_BYTES;
use super::super::{Purpose, Volume};
use super::{Ask, HEADS, Inventory, Object, Step};
use bytes::Bytes;

impl Volume {
    pub(super) fn next_heads(&mut self) {
        while let Step::Heads { left, reading } = &mut self.collect.step
            && *reading < HEADS
            && let Some(number) = left.pop_front()
        {
            *reading += 1;
            let key = catalog::segment_key(self.spec.id, number);
            self.ask_for(Ask::Head(number), key, Some(0..HEADER_BYTES as u64));
        }
        if !matches!(&self.collect.step, Step::Heads { reading: 0, .. }) {
            return;
        }
        self.collect.step = Step::Writing;
        if self.collect.moved.table().is_empty() {
            self.moves_written();
        } else {
            self.collect.moved.freeze(0);
            self.collect.stepping = true;
        }
    }

    pub(super) fn head_read(&mut self, number: u64, data: Option<Bytes>) {
        if let Step::Heads { reading, .. } = &mut self.collect.step {
            *reading -= 1;
        }
        if let Some(data) = data {
            match self.may_go(number, &data) {
                Ok(()) => self.collect.give_up(Object::Segment(number)),
                Err(_) => self.collect.stick(Object::Segment(number)),
            }
        }
        self.next_heads();
    }

    pub(super) fn note_moved(&mut self, segments: &[u64], bundle: Option<&Bundle>) {
        let pages = &mut *self.config.pages.lock();
        for range in segments.iter().filter_map(|segment| moved::range_of(*segment)) {
            let place = bundle.and_then(moved::place_of);
            self.collect.moved.replace(Entry { range, place }, pages);
        }
    }

    /// What the second map wants of the object store, and what has come to its end.
    pub(super) fn moved_outputs(&mut self) {
        while let Some(output) = self.collect.moved.poll() {
            match output {
                tree::Output::Put(fragment, data) => {
                    let key = catalog::fragment_key(fragment.id);
                    let operation = ObjectOperation::Put { key, data };
                    self.book.issue(Purpose::PutFragment(fragment.id), operation);
                }
                tree::Output::Get(get) => {
                    self.read_fragment(Purpose::ReadFragment, get, Copies::Refused);
                }
            }
        }
        while let Some(event) = self.collect.moved.poll_event() {
            if let tree::Event::Merged { gone, .. } = event {
                for fragment in gone {
                    self.config.pages.lock().forget(fragment.id);
                    self.upkeep.is_gone(fragment.id);
                }
            }
        }
    }

    pub(in super::super) fn moved_fragment_put(&mut self, fragment: FragmentId) {
        self.collect.moved.handle_written(fragment);
        self.collect.stepping = true;
    }

    pub(in super::super) fn moved_fragment_read(&mut self, get: &Get, data: Option<Bytes>) {
        // The next step asks for it again, or says that it is damaged.
        let _ = self.collect.moved.handle_read(get, data.unwrap_or_default());
        self.collect.stepping = true;
    }

    /// The second map is written: the next root has it, and nobody needs what was given up.
    pub(super) fn moves_written(&mut self) {
        self.collect.step = Step::Idle;
        self.collect.inventory = Inventory::default();
        self.collect.stepping = false;
        let given_up = std::mem::take(&mut self.collect.given_up);
        let bytes: u64 = given_up.iter().map(|(_, bytes)| bytes).sum();
        self.collect.counted = Some(self.collect.stored + self.collect.written);
        self.collect.mapped = self.tree.mapped_bytes();
        if !given_up.is_empty() {
            let objects = given_up.len() as u64;
            self.event(Event::Reclaimed { objects, bytes });
            self.upkeep.collected(given_up.into_iter().map(|(key, _)| key).collect());
        }
    }
}
