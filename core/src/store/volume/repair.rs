//! Objects that are damaged or missing, while the shell may bring them back from a second place.
//!
//! What is said not to exist is asked for again anyhow. Reads that met damage wait until the shell has said what became of it.

use super::super::reads::{Request, What};
use super::super::{Event, Second, SessionId};
use super::Volume;
use crate::block::{Range, Time};
use crate::wire::link::ReadError;
use std::collections::{BTreeMap, BTreeSet};

/// Objects that are remembered as brought back: one that is damaged again is not waited for.
const REPAIRED_MAX: usize = 1024;

/// Reads that wait for objects, and objects that were brought back.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    waiting: BTreeMap<String, Vec<(Request, Range)>>,
    repaired: BTreeSet<String>,
}

impl Repairs {
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn forget(&mut self, session: SessionId) {
        self.waiting.retain(|_, reads| {
            reads.retain(|(read, _)| read.session != session);
            !reads.is_empty()
        });
    }

    pub fn take_all(&mut self) -> impl Iterator<Item = Request> + use<> {
        std::mem::take(&mut self.waiting).into_values().flatten().map(|(read, _)| read)
    }
}

impl Volume {
    /// What became of an object of which an event said that it is damaged or missing: it can be read again, or not.
    pub fn handle_repaired(&mut self, now: Time, key: &str, repaired: bool) {
        self.now = now;
        if repaired {
            self.gone.remove(key);
            if self.repairs.repaired.len() < REPAIRED_MAX {
                self.repairs.repaired.insert(key.to_owned());
            }
        }
        for (read, range) in self.repairs.waiting.remove(key).unwrap_or_default() {
            if repaired {
                self.asked_to_read(read, u64::MAX);
            } else {
                self.read_failed(read, ReadError::Medium(range));
            }
        }
        self.advance();
    }

    /// A read found an object damaged or gone.
    pub(super) fn read_damaged(
        &mut self,
        read: Request,
        key: String,
        range: Range,
        reason: String,
    ) {
        self.event(Event::DataDamaged { key: key.clone(), range, reason });
        let may_wait = self.second != Second::None && !self.shutting_down;
        let asked = matches!(read.what, What::Data | What::Status | What::Places);
        if may_wait && asked && !self.repairs.repaired.contains(&key) {
            self.repairs.waiting.entry(key).or_default().push((read, range));
        } else {
            self.read_failed(read, ReadError::Medium(range));
        }
    }
}
