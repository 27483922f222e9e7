//! The objects by which engines claim generations, each created if absent.

use super::super::context::Context;
use super::super::purpose::ObjectPurpose;
use crate::store::catalog;
use crate::store::object::ObjectMeta;
use bytes::Bytes;

/// Asks for the claimed generations.
pub(super) fn list(cx: &mut Context<'_>) {
    cx.out.list(ObjectPurpose::ListOwners, catalog::owner_prefix(cx.facts.spec().id));
}

/// Claims the generation after these.
pub(in crate::store::volume) fn claim_next(cx: &mut Context<'_>, list: &[ObjectMeta]) {
    let prefix = catalog::owner_prefix(cx.facts.spec().id);
    let claimed = list.iter().filter_map(|meta| catalog::parse_number(&prefix, &meta.key));
    claim(cx, claimed.max().unwrap_or(0) + 1);
}

fn claim(cx: &mut Context<'_>, generation: u64) {
    let key = catalog::owner_key(cx.facts.spec().id, generation);
    let data = vec![catalog::encode_owner(cx.facts.incarnation()).into()];
    cx.out.put(ObjectPurpose::PutOwner(generation), key, data);
}

/// Asks who has claimed a generation.
pub(in crate::store::volume) fn read_owner(cx: &mut Context<'_>, generation: u64) {
    let key = catalog::owner_key(cx.facts.spec().id, generation);
    cx.out.read(ObjectPurpose::ReadOwner(generation), key);
}

/// Whether the object of a generation names this engine. If not, claims a generation.
pub(super) fn is_claimed(cx: &mut Context<'_>, generation: u64, data: Option<Bytes>) -> bool {
    match data {
        // An engine claims a generation at most once. So an object with its name is its own.
        Some(data) if data == catalog::encode_owner(cx.facts.incarnation()).as_bytes() => {
            return true;
        }
        Some(_) => claim(cx, generation + 1),
        None => claim(cx, generation),
    }
    false
}
