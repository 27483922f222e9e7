//! Metadata contexts: `base:allocation` and dirty bitmaps (NBD `proto.md`, "Metadata querying").

use crate::wire::nbd::{self as wire, opt};
use bytes::BytesMut;

/// The identifier of `base:allocation`. It is not 0, because 0 is reserved in the replies to
/// `LIST_META_CONTEXT`.
pub(super) const BASE_ALLOCATION_ID: u32 = 1;

pub(super) const BASE_NAMESPACE: &str = "base";

pub(super) const BASE_ALLOCATION: &str = "base:allocation";

/// The identifier of the first selected dirty bitmap. The next bitmaps have the next numbers.
pub(super) const FIRST_BITMAP_ID: u32 = 2;

pub(super) const QEMU_NAMESPACE: &str = "qemu";

pub(super) const DIRTY_BITMAP: &str = "dirty-bitmap:";

/// Most dirty bitmaps in a list, and most that a client can select.
pub(super) const MAX_LISTED: usize = 512;

pub(super) const MAX_SELECTED: usize = 16;

/// Metadata contexts of an export.
#[derive(Clone, Debug, Default)]
pub(super) struct Contexts {
    /// `base:allocation`.
    pub(super) allocation: bool,
    /// Names of dirty bitmaps.
    pub(super) bitmaps: Vec<String>,
}

impl Contexts {
    pub(super) fn is_empty(&self) -> bool {
        !self.allocation && self.bitmaps.is_empty()
    }

    /// The identifiers.
    pub(super) fn ids(&self) -> impl Iterator<Item = u32> {
        let bitmaps = (FIRST_BITMAP_ID..).take(self.bitmaps.len());
        self.allocation.then_some(BASE_ALLOCATION_ID).into_iter().chain(bitmaps)
    }

    /// The bitmap that has this identifier.
    pub(super) fn bitmap(&self, id: u32) -> Option<&String> {
        self.bitmaps.get(id.checked_sub(FIRST_BITMAP_ID)? as usize)
    }

    pub(super) fn put(&self, out: &mut BytesMut, option: u32) {
        // The identifier is reserved in the replies to `LIST_META_CONTEXT`.
        let id = |id| if option == opt::SET_META_CONTEXT { id } else { 0 };
        if self.allocation {
            wire::put_meta_context(out, option, id(BASE_ALLOCATION_ID), BASE_ALLOCATION);
        }
        for (number, name) in (FIRST_BITMAP_ID..).zip(&self.bitmaps) {
            let name = format!("{QEMU_NAMESPACE}:{DIRTY_BITMAP}{name}");
            wire::put_meta_context(out, option, id(number), &name);
        }
    }
}

/// The contexts that a client asks for, whether or not they exist.
#[derive(Clone, Debug, Default)]
pub(super) struct WantedContexts {
    pub(super) allocation: bool,
    /// All bitmaps.
    pub(super) bitmaps: bool,
    /// The bitmaps with these names.
    pub(super) named: Vec<String>,
}

impl WantedContexts {
    pub(super) fn of(&self, bitmaps: &[String], most: usize) -> Contexts {
        let wanted = |name: &&String| self.bitmaps || self.named.contains(name);
        let bitmaps = bitmaps.iter().filter(wanted).take(most);
        Contexts { allocation: self.allocation, bitmaps: bitmaps.cloned().collect() }
    }
}
