//! Reads that met a damaged or missing object. They wait until the store service says whether it
//! could restore the object from the replica.

use crate::block::Range;
use crate::store::read_request::ReadRequest;
use crate::store::session::SessionId;
use std::collections::{BTreeMap, BTreeSet};

/// Objects that the engine remembers as restored: reads do not wait if one is damaged again.
const REPAIRED_MAX: usize = 1024;

/// Reads that wait for objects, and restored objects.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    waiting: BTreeMap<String, Vec<(ReadRequest, Range)>>,
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

    /// Gives up all that wait.
    pub fn take_all(&mut self) -> impl Iterator<Item = ReadRequest> + use<> {
        std::mem::take(&mut self.waiting).into_values().flatten().map(|(read, _)| read)
    }

    /// Keeps a read of that range until the repair of the object; false after an earlier repair.
    pub fn hold(&mut self, key: &str, read: ReadRequest, range: Range) -> bool {
        let held = !self.repaired.contains(key);
        if held {
            self.waiting.entry(key.to_owned()).or_default().push((read, range));
        }
        held
    }

    /// The repair has succeeded or failed: returns the reads that waited for the object, with their
    /// ranges in it.
    pub fn decided(&mut self, key: &str, repaired: bool) -> Vec<(ReadRequest, Range)> {
        if repaired && self.repaired.len() < REPAIRED_MAX {
            self.repaired.insert(key.to_owned());
        }
        self.waiting.remove(key).unwrap_or_default()
    }
}
