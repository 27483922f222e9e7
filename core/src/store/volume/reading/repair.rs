//! Reads that met an object that is damaged or missing. They wait until the store service has said whether it could bring the
//! object back from the replica.

use crate::block::Range;
use crate::store::read_request::ReadRequest;
use crate::store::session::SessionId;
use std::collections::{BTreeMap, BTreeSet};

/// Objects that are remembered as brought back: one that is damaged again is not waited for.
const REPAIRED_MAX: usize = 1024;

/// Reads that wait for objects, and objects that were brought back.
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

    /// Keeps a read of that range until the object is repaired; says no if it has been before.
    pub fn hold(&mut self, key: &str, read: ReadRequest, range: Range) -> bool {
        let held = !self.repaired.contains(key);
        if held {
            self.waiting.entry(key.to_owned()).or_default().push((read, range));
        }
        held
    }

    /// The object can be read again, or not: gives the reads that waited for it, with the ranges that it held.
    pub fn decided(&mut self, key: &str, repaired: bool) -> Vec<(ReadRequest, Range)> {
        if repaired && self.repaired.len() < REPAIRED_MAX {
            self.repaired.insert(key.to_owned());
        }
        self.waiting.remove(key).unwrap_or_default()
    }
}
