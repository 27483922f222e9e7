//! Roots as objects: which there are, and what they say.

use super::super::VolumeSpec;
use super::super::catalog::{self, RootName};
use super::super::event::Event;
use super::super::object::ObjectMeta;
use super::super::root::{self, Root};
use super::outputs::Outputs;
use super::purpose::ObjectPurpose;
use crate::block::VolumeId;
use bytes::Bytes;

/// Asks for the roots of a volume.
pub(super) fn list(out: &mut Outputs, volume: VolumeId) {
    out.list(ObjectPurpose::ListRoots, catalog::root_prefix(volume));
}

/// The roots of a list, the newest last.
pub(super) fn names(volume: VolumeId, list: &[ObjectMeta]) -> Vec<RootName> {
    let prefix = catalog::root_prefix(volume);
    let names = list.iter().filter_map(|meta| catalog::parse_root_key(&prefix, &meta.key));
    let mut names: Vec<RootName> = names.collect();
    names.sort_unstable();
    names
}

pub(super) fn read(out: &mut Outputs, volume: VolumeId, name: RootName) {
    out.read(ObjectPurpose::ReadRoot(name), catalog::root_key(volume, name));
}

/// Reads the root of a snapshot.
pub(super) fn read_pin(out: &mut Outputs, volume: VolumeId, name: RootName) {
    out.read(ObjectPurpose::ReadPin(name), catalog::pin_key(volume, name));
}

/// A root that is what its name says, if it is good.
pub(super) fn parse(
    out: &mut Outputs,
    spec: &VolumeSpec,
    announce_max: usize,
    name: RootName,
    data: &Bytes,
) -> Option<Root> {
    let parsed = root::parse(spec, data, announce_max).map_err(|error| error.to_string());
    match parsed.and_then(|root| named(root, name)) {
        Ok(root) => Some(root),
        Err(reason) => {
            let key = catalog::root_key(spec.id, name);
            out.event(Event::RootDamaged { key, reason });
            None
        }
    }
}

/// The root of a snapshot, if it is there and good.
pub(super) fn parse_pin(
    out: &mut Outputs,
    spec: &VolumeSpec,
    name: RootName,
    data: Option<Bytes>,
) -> Option<Root> {
    let parsed = data
        .ok_or_else(|| "it is missing".to_owned())
        .and_then(|data| root::parse(spec, &data, 1).map_err(|error| error.to_string()));
    match parsed.and_then(|root| named(root, name)) {
        Ok(root) => Some(root),
        Err(reason) => {
            let key = catalog::pin_key(spec.id, name);
            out.event(Event::RootDamaged { key, reason });
            None
        }
    }
}

fn named(root: Root, name: RootName) -> Result<Root, String> {
    let same = (root.generation, root.state.number) == (name.generation, name.segment);
    if same { Ok(root) } else { Err("it is not the one of its name".to_owned()) }
}
