//! What came of operations on objects, to whom it may concern.

use super::super::Event;
use super::super::object::{GetError, ObjectOperation, Pending};
use super::Volume;
use super::ancestors::maps;
use super::purpose::{Outcome, Purpose};
use crate::wire::link::StageError;

/// Failures of a read after which it is said that the object cannot be read: some seconds, with the pauses of
/// [`Config::retry`](super::super::Config::retry).
const UNREADABLE: u32 = 6;

impl Volume {
    pub(super) fn object_failed(&mut self, pending: Pending<Purpose>, error: String) {
        let key = pending.operation.key().to_owned();
        // Not only what a copy that lags behind says, nor for a moment.
        let stays = pending.missing == 2 || pending.missing == 0 && pending.failures == UNREADABLE;
        if stays && matches!(pending.operation, ObjectOperation::Get { .. }) {
            self.event(Event::Unreadable { key: key.clone() });
        }
        self.event(Event::Retry { key, error, failures: pending.failures.saturating_add(1) });
        // What could not be deleted is found by who has the next generation.
        if matches!(pending.purpose, Purpose::Delete) {
            self.collect.deleted(pending.operation.key());
        } else {
            self.book.retry(self.now, pending);
        }
    }

    pub(super) fn object_done(&mut self, pending: Pending<Purpose>, outcome: Outcome) {
        match (pending.purpose, outcome) {
            (Purpose::ListRoots, Outcome::List(list)) => self.roots_listed(&list),
            (Purpose::ListAncestor(which), Outcome::List(list)) => {
                self.ancestor_listed(which, &list);
            }
            (Purpose::ReadAncestor(which, name, older), Outcome::Data(data)) => {
                self.ancestor_read(which, name, older, Some(&data));
            }
            (Purpose::ReadAncestor(which, name, older), Outcome::NotFound) => {
                self.ancestor_read(which, name, older, None);
            }
            (Purpose::ListEnd, Outcome::List(list)) => self.end_listed(&list),
            (Purpose::ConfirmPut(number), Outcome::List(list)) => self.put_confirmed(number, &list),
            (Purpose::ReadRoot(name), Outcome::Data(data)) => self.root_read(name, Some(data)),
            (Purpose::ReadRoot(name), Outcome::NotFound) => self.root_read(name, None),
            (Purpose::ReadLog { number, part }, outcome) => {
                let result = match outcome {
                    Outcome::Data(data) => Ok(data),
                    _ => Err(GetError::NotFound),
                };
                if let Some(replay) = self.phase.replay() {
                    replay.handle(number, part, result);
                }
            }
            (Purpose::PutSegment, Outcome::Done) => self.segment_put(),
            (Purpose::PutSegment, Outcome::Exists) => self.read_back(),
            (Purpose::ReadBack, Outcome::Data(data)) => self.segment_read_back(Some(&data)),
            (Purpose::ReadBack, Outcome::NotFound) => self.segment_read_back(None),
            (Purpose::ListOwners, Outcome::List(list)) => self.owners_listed(&list),
            (Purpose::PutOwner(generation), Outcome::Done) => self.claimed(generation),
            (Purpose::PutOwner(generation), Outcome::Exists) => self.read_owner(generation),
            (Purpose::ReadOwner(generation), Outcome::Data(data)) => {
                self.owner_read(generation, Some(data));
            }
            (Purpose::ReadOwner(generation), Outcome::NotFound) => {
                self.owner_read(generation, None);
            }
            (Purpose::ListFragments, Outcome::List(list)) => self.fragments_listed(&list),
            (Purpose::ListPins, Outcome::List(list)) => self.pins_listed(&list),
            (Purpose::ReadPin(name), Outcome::Data(data)) => self.pin_read(name, Some(data)),
            (Purpose::ReadPin(name), Outcome::NotFound) => self.pin_read(name, None),
            (Purpose::ReadBase(name), Outcome::Data(data)) => self.base_read(name, Some(data)),
            (Purpose::ReadBase(name), Outcome::NotFound) => self.base_read(name, None),
            (Purpose::PutPin(name), Outcome::Done | Outcome::Exists) => self.pin_put(name),
            // Names are never used again: what is there is what an attempt before has put.
            (Purpose::PutFragment(fragment), Outcome::Done | Outcome::Exists) => {
                self.fragment_put(fragment);
            }
            (Purpose::PutRoot(name), Outcome::Done | Outcome::Exists) => self.root_put(name),
            (Purpose::ReadFragment(get), Outcome::Data(data)) => {
                self.fragment_read(&get, Some(data));
            }
            (Purpose::ReadFragment(get), Outcome::NotFound) => self.fragment_read(&get, None),
            (Purpose::ReadPage(want, _), outcome @ (Outcome::Data(_) | Outcome::NotFound)) => {
                let data = if let Outcome::Data(data) = outcome { Some(data) } else { None };
                let pages = &mut *self.config.pages.lock();
                let maps = maps(&self.spec, &self.tree, &self.collect, &self.ancestors);
                self.reads.handle_page(&want, data, maps, pages);
            }
            (Purpose::Rebuild { number, part }, Outcome::Data(data)) => {
                self.rebuild_read(number, part, Some(data));
            }
            (Purpose::Rebuild { number, part }, Outcome::NotFound) => {
                self.rebuild_read(number, part, None);
            }
            (Purpose::Delete, _) => self.collect.deleted(pending.operation.key()),
            (Purpose::Collect(serial, ask), outcome) => {
                self.collected(serial, ask, pending.operation.key().to_owned(), outcome);
            }
            // What is there says the same: the segment of that number cannot say anything else.
            (Purpose::PutSize { number }, Outcome::Done | Outcome::Exists) => {
                self.size_put(number);
            }
            (Purpose::Fetch { read, index, .. }, outcome) => {
                // One that is gone for good reads as one that is cut short.
                let data = if let Outcome::Data(data) = outcome { Some(data) } else { None };
                if let Some(finished) = self.reads.handle(read, index, data) {
                    self.read_finished(finished);
                }
            }
            (Purpose::PutStaged(putting), Outcome::Done) => self.staged(putting, Ok(())),
            // An attempt that was thought to have failed may have put it; another number is as good.
            (Purpose::PutStaged(putting), Outcome::Exists) => {
                self.staged(putting, Err(StageError::Exists));
            }
            (Purpose::Walk { walk, number, part }, Outcome::Data(data)) => {
                self.walked(walk, number, part, Some(&data));
            }
            (Purpose::Walk { walk, number, part }, Outcome::NotFound) => {
                self.walked(walk, number, part, None);
            }
            // The answer to another question than was asked: ask again.
            (purpose, _) => self.object_failed(
                Pending { purpose, ..pending },
                "the result is of another kind than the operation".to_owned(),
            ),
        }
    }
}
