//! Under which data keys the objects of a volume are: each packed record names its key in clear.

use super::report::{Checked, Report, read};
use super::stored::Stored;
use anyhow::Result;
use bytes::Bytes;
use longhaul_core::block::VolumeId;
use longhaul_core::record::{self, Kind, packed};
use longhaul_core::store::catalog;
use longhaul_core::store::gc::bundle;
use longhaul_core::store::segment::Segment;
use std::collections::BTreeMap;

/// Bytes of records by the number of their data key: live ones, and those whose space is not free
/// yet. Damaged ones do not count; another check reports them.
#[derive(Default)]
pub(super) struct DataKeys(BTreeMap<u32, u64>);

impl DataKeys {
    /// Counts a verified segment of that volume.
    pub(super) fn segment(&mut self, volume: VolumeId, segment: &Segment, object: &Bytes) {
        for piece in segment.footer.pieces.iter().filter(|piece| piece.kind == Kind::Packed) {
            let start = piece.offset as usize;
            if let Some(record) = object.get(start..start.saturating_add(piece.record_bytes())) {
                self.record(volume, record);
            }
        }
    }

    /// All bundles of that volume.
    pub(super) fn bundles(&mut self, objects: &dyn Stored, volume: VolumeId) -> Result<()> {
        for meta in objects.list(&catalog::bundle_prefix(volume))? {
            let Ok(object) = read(objects, &meta.key) else { continue };
            let Ok(head) = bundle::Head::parse(&object) else { continue };
            let start = usize::try_from(head.index_range().end).unwrap_or(usize::MAX);
            let mut rest = object.get(start..).unwrap_or_default();
            while let Ok(header) = record::parse_prefix(volume, rest)
                && let Some((record, after)) = rest.split_at_checked(header.record_bytes())
            {
                if header.kind == Kind::Packed {
                    self.record(volume, record);
                }
                rest = after;
            }
        }
        Ok(())
    }

    fn record(&mut self, volume: VolumeId, record: &[u8]) {
        if let Ok((_, lock, _)) = packed::open(volume, record)
            && lock.key > 0
        {
            *self.0.entry(lock.key).or_default() += record.len() as u64;
        }
    }

    /// By number, in bytes; nothing if the volume is not encrypted.
    pub(super) fn into_bytes(self) -> BTreeMap<u32, u64> {
        self.0
    }
}

/// The same in words.
pub(super) fn in_words(report: &Report) -> String {
    let encrypted = report.volumes.iter().filter(|volume| !volume.data_keys.is_empty());
    let line = |volume: &Checked| {
        let keys = volume.data_keys.iter();
        let keys =
            keys.map(|(key, bytes)| format!("{key}: {}", longhaul_base::units::show_bytes(*bytes)));
        let keys: Vec<String> = keys.collect();
        format!("data keys of {}: {}\n", volume.name, keys.join(", "))
    };
    encrypted.map(line).collect()
}
